use super::*;
use crate::attributes::Attributes;
use crate::topic::{Topic, TopicId};
use crate::xml::{self, Element};

fn parse(form: &str) -> Result<Request> {
    Request::parse(form.as_bytes())
}

fn arn(name: &str) -> TopicArn {
    format!("arn:aws:sns:default::{name}").parse().unwrap()
}

fn topic(name: &str, list: &[(&str, &str)]) -> Topic {
    let pairs: Vec<_> = list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Topic::new(
        TopicId::from_random([1; 16]),
        arn(name),
        "testid",
        0,
        11,
        Attributes::from_pairs(&pairs).unwrap(),
    )
    .unwrap()
}

/// The request of `aws sns create-topic --name=fishtopic0 --attributes='{"push-endpoint": "kafka://", "persistent":
/// "true"}'`, as awscli encodes it.
const CREATE: &str = "Action=CreateTopic&Version=2010-03-31&Name=fishtopic0&Attributes.entry.1.key=push-endpoint\
    &Attributes.entry.1.value=kafka%3A%2F%2F&Attributes.entry.2.key=persistent&Attributes.entry.2.value=true";

#[test]
fn create_topic_of_awscli_makes_a_persistent_kafka_topic() {
    let Request::CreateTopic { name, attributes } = parse(CREATE).unwrap() else { panic!("another request") };
    assert_eq!(name, "fishtopic0");
    let attributes = Attributes::from_pairs(&attributes).unwrap();
    let arn = arn("fishtopic0");
    let made = Topic::new(TopicId::from_random([1; 16]), arn.clone(), "testid", 0, 11, attributes).unwrap();
    assert_eq!(made.arn.to_string(), "arn:aws:sns:default::fishtopic0");
    assert!(made.attributes.is_queued());
    assert_eq!(made.endpoint().unwrap().unwrap().to_string(), "kafka://localhost:9092");
}

#[test]
fn requests_of_all_actions_are_read() {
    let named = "TopicArn=arn%3Aaws%3Asns%3Adefault%3A%3At";
    for (form, wanted) in [
        (
            "Name=t&Action=CreateTopic".to_owned(),
            Request::CreateTopic { name: "t".into(), attributes: Vec::new() },
        ),
        (format!("Action=DeleteTopic&{named}&Version=2010-03-31"), Request::DeleteTopic { topic: arn("t") }),
        (format!("Action=GetTopic&{named}"), Request::GetTopic { topic: arn("t") }),
        (format!("Action=GetTopicAttributes&{named}"), Request::GetTopicAttributes { topic: arn("t") }),
        (
            format!("Action=SetTopicAttributes&{named}&AttributeName=OpaqueData&AttributeValue=a+b%2Bc"),
            Request::SetTopicAttributes { topic: arn("t"), name: "OpaqueData".into(), value: "a b+c".into() },
        ),
        (
            format!("Action=SetTopicAttributes&{named}&AttributeName=OpaqueData"),
            Request::SetTopicAttributes { topic: arn("t"), name: "OpaqueData".into(), value: String::new() },
        ),
        ("Action=ListTopics&Version=2010-03-31".to_owned(), Request::ListTopics { after: None }),
        ("Action=ListTopics&NextToken=".to_owned(), Request::ListTopics { after: None }),
        ("Action=ListTopics&NextToken=t_1".to_owned(), Request::ListTopics { after: Some("t_1".into()) }),
    ] {
        let found = parse(&form).unwrap();
        assert_eq!(found, wanted, "{form}");
        assert!(is_action(found.action()) && form.contains(&format!("Action={}", found.action())));
        assert!(found.permission().starts_with("sns:"));
    }
    assert!(!is_action("ListUsers"));
}

#[test]
fn attributes_come_in_the_order_of_their_numbers() {
    let form = "Action=CreateTopic&Name=t&Attributes.entry.10.value=c&Attributes.entry.2.key=B&Attributes.entry.10.key=C\
                &Attributes.entry.2.value=b%26&Attributes.entry.0.key=A&Attributes.entry.0.value=";
    let Request::CreateTopic { attributes, .. } = parse(form).unwrap() else { panic!("another request") };
    let found: Vec<_> = attributes.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(found, [("A", ""), ("B", "b&"), ("C", "c")]);
}

#[test]
fn malformed_requests_are_refused() {
    for form in [
        "",
        "Name=t",
        "Action=",
        "Action=CreateTopic",
        "Action=CreateTopic&Name=",
        "Action=CreateTopic&Name=a.b",
        "Action=CreateTopic&Name=a&Name=b",
        "Action=CreateTopic&Name=t&Unknown=1",
        "Action=CreateTopic&Name=t&Attributes.entry.1.key=a",
        "Action=CreateTopic&Name=t&Attributes.entry.1.value=a",
        "Action=CreateTopic&Name=t&Attributes.entry.01.key=a&Attributes.entry.01.value=b",
        "Action=CreateTopic&Name=t&Attributes.entry.x.key=a&Attributes.entry.x.value=b",
        "Action=CreateTopic&Name=t&Attributes.entry.1.name=a",
        "Action=CreateTopic&Name=t&Attributes.entry.1=a",
        "Action=CreateTopic&Name=t&Attributes.entry.=a",
        "Action=CreateTopic&Name=t&Tags.member.1.Key=a&Tags.member.1.Value=b",
        "Action=DeleteTopic",
        "Action=DeleteTopic&TopicArn=t",
        "Action=GetTopic&TopicArn=arn:aws:sns:default::t&Name=t",
        "Action=SetTopicAttributes&TopicArn=arn:aws:sns:default::t",
        "Action=ListTopics&NextToken=a/b",
        "Action=CreateTopic&Name=%ff",
    ] {
        assert!(parse(form).is_err(), "{form}");
    }
    assert!(Request::parse(b"Action=CreateTopic&Name=\xff").is_err());
    assert!(matches!(parse("Action=Publish&TopicArn=a"), Err(Error::UnknownAction(_))));
}

#[test]
fn forms_are_bounded() {
    let fields = |count: usize| -> String {
        (0..count / 2)
            .map(|at| format!("&Attributes.entry.{at}.key=k&Attributes.entry.{at}.value=v"))
            .collect()
    };
    assert!(parse(&format!("Action=CreateTopic&Name=t{}", fields(MAX_FIELDS - 2))).is_ok());
    let many = parse(&format!("Action=CreateTopic&Name=t{}", fields(MAX_FIELDS)));
    assert!(matches!(many, Err(Error::TooLarge { .. })));
    let long = |bytes: usize| {
        let start = "Action=CreateTopic&Name=t&Attributes.entry.1.key=k&Attributes.entry.1.value=";
        format!("{start}{}", "x".repeat(bytes - start.len()))
    };
    assert!(parse(&long(MAX_FORM_BYTES)).is_ok());
    assert!(matches!(parse(&long(MAX_FORM_BYTES + 1)), Err(Error::TooLarge { .. })));
}

#[test]
fn requests_tell_whether_they_carry_secrets_and_do_not_print_them() {
    let entry = |name: &str, value: &str| {
        format!("Action=CreateTopic&Name=t&Attributes.entry.1.key={name}&Attributes.entry.1.value={value}")
    };
    for (form, wanted) in [
        (entry("password", "hunter2"), true),
        (entry("push-endpoint", "kafka://bob:hunter2@k"), true),
        (entry("push-endpoint", "kafka://k"), false),
        (entry("OpaqueData", "password"), false),
        ("Action=ListTopics".to_owned(), false),
        (
            "Action=SetTopicAttributes&TopicArn=arn:aws:sns:default::t&AttributeName=password&AttributeValue=hunter2"
                .to_owned(),
            true,
        ),
        ("Action=SetTopicAttributes&TopicArn=arn:aws:sns:default::t&AttributeName=password".to_owned(), false),
    ] {
        let request = parse(&form).unwrap();
        assert_eq!(request.contains_secret(), wanted, "{form}");
        assert!(!format!("{request:?}").contains("hunter2"), "{request:?}");
    }
}

/// The text of the element at `path`.
fn at<'a>(root: &'a Element, path: &[&str]) -> &'a str {
    let found =
        path.iter().try_fold(root, |element, name| element.children.iter().find(|child| child.name == *name));
    &found.unwrap_or_else(|| panic!("no {path:?} in {root:?}")).text
}

#[test]
fn create_topic_answers_with_the_arn() {
    let text = create_topic(&topic("fishtopic0", &[]), "tx1");
    assert_eq!(
        text,
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?><CreateTopicResponse xmlns=\"https://sns.amazonaws.com/doc/2010-03-31/\">\
         <CreateTopicResult><TopicArn>arn:aws:sns:default::fishtopic0</TopicArn></CreateTopicResult>\
         <ResponseMetadata><RequestId>tx1</RequestId></ResponseMetadata></CreateTopicResponse>"
    );
}

#[test]
fn answers_without_a_result_have_the_request_id() {
    for (text, root) in [
        (delete_topic("tx1"), "DeleteTopicResponse"),
        (set_topic_attributes("tx1"), "SetTopicAttributesResponse"),
    ] {
        let document = xml::parse(text.as_bytes()).unwrap();
        assert_eq!((document.name.as_str(), document.children.len()), (root, 1));
        assert_eq!(at(&document, &["ResponseMetadata", "RequestId"]), "tx1");
    }
}

#[test]
fn get_topic_attributes_answers_with_entries() {
    let shown = topic(
        "fishtopic",
        &[
            ("push-endpoint", "amqps://bob:hunter2@mq"),
            ("amqp-exchange", "ex1"),
            ("OpaqueData", "<&>"),
            ("time_to_live", "60"),
        ],
    );
    let text = get_topic_attributes(&shown, "tx1");
    assert!(!text.contains("hunter2"));
    let document = xml::parse(text.as_bytes()).unwrap();
    let attributes = &document.children[0].children[0];
    let found: Vec<_> =
        attributes.children.iter().map(|entry| (at(entry, &["key"]), at(entry, &["value"]))).collect();
    let endpoint = r#"{"EndpointAddress":"amqps://bob:****@mq","EndpointArgs":"amqp-exchange=ex1","EndpointTopic":"fishtopic","HasStoredSecret":true,"Persistent":false,"TimeToLive":"60","MaxRetries":"None","RetrySleepDuration":"None"}"#;
    assert_eq!(
        found,
        [
            ("User", "testid"),
            ("Name", "fishtopic"),
            ("EndPoint", endpoint),
            ("TopicArn", "arn:aws:sns:default::fishtopic"),
            ("OpaqueData", "<&>"),
            ("Policy", ""),
        ]
    );
}

#[test]
fn get_topic_answers_with_elements() {
    let shown = topic("t", &[("push-endpoint", "http://bob:hunter2@sink"), ("persistent", "true")]);
    let text = get_topic(&shown, "tx1");
    assert!(!text.contains("hunter2"));
    let document = xml::parse(text.as_bytes()).unwrap();
    let endpoint = |name| at(&document, &["GetTopicResult", "Topic", "EndPoint", name]);
    assert_eq!(endpoint("EndpointAddress"), "http://bob:****@sink");
    assert_eq!((endpoint("HasStoredSecret"), endpoint("Persistent")), ("True", "True"));
    assert_eq!((endpoint("EndpointTopic"), endpoint("TimeToLive")), ("t", "None"));
    assert_eq!(at(&document, &["GetTopicResult", "Topic", "TopicArn"]), "arn:aws:sns:default::t");
}

#[test]
fn list_topics_answers_with_members_and_a_token_that_is_taken_back() {
    let topics = [topic("a", &[]), topic("b", &[])];
    let document = xml::parse(list_topics(&topics, true, "tx1").as_bytes()).unwrap();
    let members = &document.children[0].children[0].children;
    let arns: Vec<_> = members.iter().map(|member| at(member, &["TopicArn"])).collect();
    assert_eq!(arns, ["arn:aws:sns:default::a", "arn:aws:sns:default::b"]);
    let token = at(&document, &["ListTopicsResult", "NextToken"]);
    let next = parse(&format!("Action=ListTopics&NextToken={token}")).unwrap();
    assert_eq!(next, Request::ListTopics { after: Some("b".into()) });
    assert!(!list_topics(&topics, false, "tx1").contains("NextToken"));
    assert!(!list_topics(&[], true, "tx1").contains("NextToken"));
}

#[test]
fn errors_have_a_type_a_code_and_the_request_id() {
    let text = error(404, "NotFound", "no topic <t>", "tx1");
    assert_eq!(
        text,
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?><ErrorResponse xmlns=\"https://sns.amazonaws.com/doc/2010-03-31/\">\
         <Error><Type>Sender</Type><Code>NotFound</Code><Message>no topic &lt;t&gt;</Message></Error>\
         <RequestId>tx1</RequestId></ErrorResponse>"
    );
    assert!(error(503, "InternalError", "", "tx1").contains("<Type>Receiver</Type>"));
}
