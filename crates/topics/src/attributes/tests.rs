use super::*;

fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
    list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn attributes(list: &[(&str, &str)]) -> Attributes {
    Attributes::from_pairs(&pairs(list)).unwrap()
}

/// A value for each attribute that differs from its default.
fn other_value(name: &str) -> &'static str {
    match name {
        "push-endpoint" => "http://sink:10900",
        "persistent" | "use-ssl" | "cloudevents" | "transactional" => "true",
        "verify-ssl" => "false",
        "OpaqueData" => "me@example.com",
        "time_to_live" | "max_retries" | "retry_sleep_duration" | "batch-size" | "queue-max-bytes" => "7",
        "Policy" => {
            r#"{"Statement":{"Effect":"Allow","Principal":"*","Action":"sns:Publish","Resource":"*"}}"#
        }
        "ca-location" => "/etc/nacre/ca/kafka.pem",
        "mechanism" => "SCRAM-SHA-512",
        "user-name" | "password" => "someone",
        "kafka-ack-level" | "amqp-ack-level" => "none",
        "kafka-brokers" => "k2:9093",
        "amqp-exchange" => "ex1",
        "queue-full-policy" => "refuse",
        name => panic!("{name} has no example"),
    }
}

#[test]
fn every_attribute_can_be_set_alone_and_reset() {
    for info in ATTRIBUTE_TABLE {
        let mut attributes = Attributes::default();
        attributes.set(info.name, other_value(info.name)).unwrap();
        assert_ne!(attributes, Attributes::default(), "{}", info.name);
        attributes.set(info.name, "").unwrap();
        assert_eq!(attributes, Attributes::default(), "{}", info.name);
        // The default is an accepted value.
        attributes.set(info.name, info.default).unwrap();
    }
}

#[test]
fn the_documentation_has_every_attribute_with_its_default() {
    let text = include_str!("../../../../docs/notifications.md");
    for info in ATTRIBUTE_TABLE {
        let default = if info.default.is_empty() { String::new() } else { format!("`{}`", info.default) };
        let row = format!("| `{}` | {default} |", info.name).replace("|  |", "| |");
        assert!(text.contains(&row), "docs/notifications.md has no row that begins with {row}");
    }
}

#[test]
fn unknown_and_repeated_attributes_are_refused() {
    let error = Attributes::from_pairs(&pairs(&[("DisplayName", "x")])).unwrap_err();
    assert!(error.to_string().contains("DisplayName"), "{error}");
    assert!(Attributes::from_pairs(&pairs(&[("persistent", "true"), ("persistent", "true")])).is_err());
    assert!(Attributes::default().set("push_endpoint", "http://a").is_err());
}

#[test]
fn values_out_of_range_are_refused() {
    for (name, value) in [
        ("persistent", "maybe"),
        ("time_to_live", "-1"),
        ("time_to_live", "+1"),
        ("time_to_live", "1.5"),
        ("max_retries", "4294967296"),
        ("queue-max-bytes", "18446744073709551616"),
        ("queue-max-bytes", "0"),
        ("retry_sleep_duration", "1s"),
        ("batch-size", "0"),
        ("batch-size", "1001"),
        ("kafka-ack-level", "routable"),
        ("amqp-ack-level", "all"),
        ("mechanism", "plain"),
        ("queue-full-policy", "drop"),
        ("ca-location", "/etc/\nca"),
        ("user-name", "a\0b"),
        ("OpaqueData", "a\u{1}b"),
        ("kafka-brokers", "a:9092,,b"),
        ("kafka-brokers", "a:0"),
        ("Policy", "{"),
        ("Policy", "[]"),
        ("Policy", "{}"),
        ("Policy", r#"{"Statement":[]}"#),
        ("Policy", r#"{"Statement":[{"Effect":"allow","Action":"sns:Publish"}]}"#),
        ("Policy", r#"{"Statement":[{"Effect":"Allow"}]}"#),
    ] {
        let error = Attributes::default().set(name, value).unwrap_err();
        assert!(
            matches!(&error, Error::Invalid { parameter, .. } if parameter == name),
            "{name} {value}: {error}"
        );
    }
    assert!(Attributes::default().set("OpaqueData", &"x".repeat(MAX_OPAQUE_BYTES + 1)).is_err());
    assert!(Attributes::default().set("OpaqueData", &"x".repeat(MAX_OPAQUE_BYTES)).is_ok());
    let brokers = |count: usize| vec!["k"; count].join(",");
    assert!(Attributes::default().set("kafka-brokers", &brokers(MAX_BROKERS)).is_ok());
    assert!(Attributes::default().set("kafka-brokers", &brokers(MAX_BROKERS + 1)).is_err());
}

#[test]
fn booleans_are_taken_in_the_usual_spellings() {
    for (text, value) in
        [("true", true), ("True", true), ("1", true), ("on", true), ("FALSE", false), ("no", false)]
    {
        let mut attributes = Attributes { persistent: !value, ..Attributes::default() };
        attributes.set("persistent", text).unwrap();
        assert_eq!(attributes.persistent, value, "{text}");
    }
}

#[test]
fn policies_of_the_ceph_documentation_are_kept_verbatim() {
    let text = r#"{
      "Version": "2012-10-17",
      "Statement": [{
        "Effect": "Allow",
        "Principal": {"AWS": ["arn:aws:iam::usfolks:user/fred:subuser"]},
        "Action": ["sns:GetTopicAttributes","sns:Publish"],
        "Resource": ["arn:aws:sns:default::mytopic"]
      }]
    }"#;
    assert_eq!(attributes(&[("Policy", text)]).policy, text);
    let long = format!("{text}{}", " ".repeat(MAX_POLICY_BYTES));
    assert!(matches!(Attributes::default().set("Policy", &long), Err(Error::TooLarge { .. })));
}

#[test]
fn endpoint_args_list_what_was_set_in_order_and_no_credentials() {
    assert_eq!(attributes(&[]).endpoint_args(), "");
    let all: Vec<(&str, &str)> =
        ATTRIBUTE_TABLE.iter().map(|info| (info.name, other_value(info.name))).collect();
    assert_eq!(
        attributes(&all).endpoint_args(),
        "amqp-ack-level=none&amqp-exchange=ex1&batch-size=7&ca-location=/etc/nacre/ca/kafka.pem&cloudevents=true\
         &kafka-ack-level=none&kafka-brokers=k2:9093&mechanism=SCRAM-SHA-512&queue-full-policy=refuse&queue-max-bytes=7\
         &transactional=true&use-ssl=true&verify-ssl=false"
    );
    // Defaults that were set are listed too, as Ceph does.
    assert_eq!(attributes(&[("use-ssl", "false")]).endpoint_args(), "use-ssl=false");
}

#[test]
fn secrets_do_not_show_in_debug_output() {
    let attributes = attributes(&[
        ("push-endpoint", "amqps://bob:hunter2@mq/v"),
        ("user-name", "u53r"),
        ("password", "pa55"),
    ]);
    assert!(attributes.has_secret());
    let shown = format!("{attributes:?}");
    assert!(!shown.contains("hunter2") && !shown.contains("pa55") && !shown.contains("u53r"), "{shown}");
    assert!(!Attributes::default().has_secret());
}

#[test]
fn a_masked_password_is_not_taken_for_a_new_one() {
    assert!(Attributes::default().set("password", MASK).is_err());
    assert!(Attributes::default().set("push-endpoint", &format!("amqps://bob:{MASK}@mq")).is_err());
}

#[test]
fn only_persistent_topics_with_an_endpoint_are_queued() {
    assert!(!attributes(&[]).is_queued());
    assert!(!attributes(&[("persistent", "true")]).is_queued());
    assert!(!attributes(&[("push-endpoint", "kafka://k")]).is_queued());
    assert!(attributes(&[("push-endpoint", "kafka://k"), ("persistent", "true")]).is_queued());
}

#[test]
fn mechanisms_that_kafkas_client_has_not_are_refused_by_name() {
    for name in ["GSSAPI", "OAUTHBEARER"] {
        let error = Attributes::default().set("mechanism", name).unwrap_err().to_string();
        assert_eq!(error, format!("mechanism: {name} is not supported"));
    }
}
