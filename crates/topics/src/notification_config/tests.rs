use super::*;
use crate::event::EventType;
use nacre_types::encoding;

/// The body of `--notification-configuration='{"TopicConfigurations": [{"Id": "notif1", "TopicArn":
/// "arn:aws:sns:default::fishtopic0", "Events": []}]}'`, as awscli sends it.
const FISHTOPIC: &str = "<NotificationConfiguration xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
    <TopicConfiguration><Id>notif1</Id><Topic>arn:aws:sns:default::fishtopic0</Topic></TopicConfiguration>\
    </NotificationConfiguration>";

fn read(inner: &str) -> Result<NotificationConfig> {
    NotificationConfig::from_xml(
        format!("<NotificationConfiguration>{inner}</NotificationConfiguration>").as_bytes(),
    )
}

/// A configuration with a topic and the elements in `inner`.
fn one(inner: &str) -> Result<TopicConfiguration> {
    let config = read(&format!(
        "<TopicConfiguration><Topic>arn:aws:sns:default::t</Topic>{inner}</TopicConfiguration>"
    ))?;
    Ok(config.configurations.into_iter().next().expect("one was given"))
}

fn key_rule(name: &str, value: &str) -> String {
    format!(
        "<Filter><S3Key><FilterRule><Name>{name}</Name><Value>{value}</Value></FilterRule></S3Key></Filter>"
    )
}

fn matches(inner: &str, key: &str) -> bool {
    let config = NotificationConfig { configurations: vec![one(inner).unwrap()] };
    Matcher::new(config).unwrap().candidates(&[EventType::ObjectCreatedPut], key).count() == 1
}

#[test]
fn a_configuration_without_events_has_cephs_default_set() {
    let config = NotificationConfig::from_xml(FISHTOPIC.as_bytes()).unwrap();
    let [configuration] = &config.configurations[..] else { panic!("{config:?}") };
    assert_eq!((configuration.id.as_str(), configuration.topic.name.as_str()), ("notif1", "fishtopic0"));
    assert_eq!(configuration.events, EventPattern::DEFAULT);
    let matcher = Matcher::new(config).unwrap();
    for event in EventType::all() {
        let wanted = event.name().starts_with("ObjectCreated:") || event.name().starts_with("ObjectRemoved:");
        assert_eq!(matcher.candidates(&[event], "k").count(), usize::from(wanted), "{event}");
    }
}

#[test]
fn the_document_is_printed_with_the_default_events_and_read_again() {
    let config = NotificationConfig::from_xml(FISHTOPIC.as_bytes()).unwrap();
    assert_eq!(
        config.to_xml(None),
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\
         <NotificationConfiguration xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><TopicConfiguration>\
         <Id>notif1</Id><Topic>arn:aws:sns:default::fishtopic0</Topic><Event>s3:ObjectCreated:*</Event>\
         <Event>s3:ObjectRemoved:*</Event></TopicConfiguration></NotificationConfiguration>"
    );
    assert_eq!(NotificationConfig::from_xml(config.to_xml(None).as_bytes()).unwrap(), config);
    assert_eq!(encoding::decode::<NotificationConfig>(&encoding::encode(&config)).unwrap(), config);
}

/// Uses the filters of Ceph's examples.
#[test]
fn all_filters_are_read_and_printed() {
    let text = "<TopicConfiguration><Id>a &amp; b</Id><Topic>arn:aws:sns:default:acme:t</Topic><Filter>\
        <S3Key><FilterRule><Name>prefix</Name><Value> images/ </Value></FilterRule>\
        <FilterRule><Name>suffix</Name><Value>.jpg</Value></FilterRule>\
        <FilterRule><Name>regex</Name><Value>([a-z]+/)*.*&lt;</Value></FilterRule></S3Key>\
        <S3Metadata><FilterRule><Name>x-amz-meta-foo</Name><Value>bar</Value></FilterRule>\
        <FilterRule><Name>x-amz-meta-hello</Name><Value>world</Value></FilterRule></S3Metadata>\
        <S3Tags><FilterRule><Name>Colour</Name><Value></Value></FilterRule></S3Tags></Filter>\
        <Event>s3:ObjectCreated:Put</Event><Event>s3:ObjectLifecycle:*</Event></TopicConfiguration>";
    let config = read(text).unwrap();
    let configuration = config.get("a & b").unwrap();
    assert_eq!(
        configuration.key,
        KeyFilter { prefix: " images/ ".into(), suffix: ".jpg".into(), regex: "([a-z]+/)*.*<".into() }
    );
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(configuration.attributes.metadata, [pair("foo", "bar"), pair("hello", "world")]);
    assert_eq!(configuration.attributes.tags, [pair("Colour", "")]);
    let printed = config.to_xml(None);
    assert!(printed.ends_with(&format!("{text}</NotificationConfiguration>")), "{printed}");
    assert_eq!(NotificationConfig::from_xml(printed.as_bytes()).unwrap(), config);
}

#[test]
fn configurations_are_shown_and_removed_by_id() {
    let topic = "<Topic>arn:aws:sns:default::t</Topic>";
    let part = |id: &str| format!("<TopicConfiguration><Id>{id}</Id>{topic}</TopicConfiguration>");
    let mut config = read(&format!("{}{}", part("one"), part("two"))).unwrap();
    let shown = NotificationConfig::from_xml(config.to_xml(Some("two")).as_bytes()).unwrap();
    assert_eq!(shown.configurations, [config.get("two").unwrap().clone()]);
    assert!(
        NotificationConfig::from_xml(config.to_xml(Some("no")).as_bytes()).unwrap().configurations.is_empty()
    );
    assert!(config.references_topic(&"arn:aws:sns:default::t".parse().unwrap()));
    assert!(!config.references_topic(&"arn:aws:sns:default::u".parse().unwrap()));
    assert!(!config.remove(Some("no")));
    assert!(config.remove(Some("one")));
    assert_eq!(config.configurations.len(), 1);
    assert!(config.remove(None));
    assert!(config.configurations.is_empty() && !config.remove(None));
    assert!(read("").unwrap().configurations.is_empty());
}

#[test]
fn configurations_without_ids_have_stable_and_distinct_ones() {
    let part = "<TopicConfiguration><Topic>arn:aws:sns:default::t</Topic></TopicConfiguration>";
    let other = "<TopicConfiguration><Topic>arn:aws:sns:default::u</Topic><Id/></TopicConfiguration>";
    let ids = |text: &str| -> Vec<String> {
        read(text).unwrap().configurations.into_iter().map(|configuration| configuration.id).collect()
    };
    let found = ids(&format!("{part}{part}{other}"));
    assert!(found[0].starts_with("notif-"));
    assert_eq!(found[1], format!("{}-2", found[0]));
    assert_ne!(found[2], found[0]);
    assert_eq!(ids(&format!("{other}{part}")), [found[2].clone(), found[0].clone()]);
}

#[test]
fn prefix_and_suffix_must_both_hold() {
    let rules = "<Filter><S3Key><FilterRule><Name>Prefix</Name><Value>a/</Value></FilterRule>\
        <FilterRule><Name>Suffix</Name><Value>/b</Value></FilterRule></S3Key></Filter>";
    for (key, wanted) in
        [("a/x/b", true), ("a/b", true), ("a/x", false), ("x/b", false), ("a/", false), ("", false)]
    {
        assert_eq!(matches(rules, key), wanted, "{key}");
    }
    assert!(matches("", "anything") && matches(&key_rule("prefix", ""), "anything"));
}

#[test]
fn regular_expressions_match_whole_keys() {
    for (pattern, key, wanted) in [
        ("([a-z]+)", "abc", true),
        ("([a-z]+)", "abc1", false),
        ("[0-9]*", "", true),
        ("a|ab", "ab", true),
        (r".*\.(jpg|png)", "x/y.png", true),
        (r"\d\w", "1_", true),
        (r"(?i)abc", "ABC", true),
        ("größe", "größe", true),
        ("^abc$", "abc", true),
        ("a.c", "a\nc", false),
    ] {
        assert_eq!(matches(&key_rule("regex", pattern), key), wanted, "{pattern} {key}");
    }
}

#[test]
fn regular_expressions_are_bounded() {
    for pattern in [
        "(",
        "a)(b",
        "[",
        "*",
        r"(a)\1",
        "(?=a)",
        "a{1000}{1000}",
        r"\pL",
        &"(".repeat(100),
        &format!("{}a{}", "(".repeat(40), ")".repeat(40)),
    ] {
        assert!(matches!(one(&key_rule("regex", pattern)), Err(Error::Invalid { .. })), "{pattern}");
    }
    assert!(one(&key_rule("regex", &"a".repeat(MAX_KEY_RULE_BYTES))).is_ok());
    let long = one(&key_rule("regex", &"a".repeat(MAX_KEY_RULE_BYTES + 1)));
    assert!(matches!(long, Err(Error::TooLarge { .. })));
}

#[test]
fn a_change_of_two_types_is_a_candidate_once_for_each() {
    let config = |event: &str| {
        let configuration =
            one(&format!("<Event>{event}</Event><Event>s3:LifecycleExpiration:*</Event>")).unwrap();
        Matcher::new(NotificationConfig { configurations: vec![configuration] }).unwrap()
    };
    let types = [EventType::ObjectExpirationCurrent, EventType::LifecycleExpirationDelete];
    let found =
        |matcher: &Matcher| -> Vec<_> { matcher.candidates(&types, "k").map(|found| found.event).collect() };
    assert_eq!(found(&config("s3:ObjectLifecycle:Expiration:*")), types);
    assert_eq!(found(&config("s3:ObjectCreated:*")), types[1..]);
    assert_eq!(config("s3:ObjectCreated:*").candidates(&[], "k").count(), 0);
}

#[test]
fn candidates_come_in_the_order_of_configurations() {
    let part = |id: &str, event: &str| {
        format!(
            "<TopicConfiguration><Id>{id}</Id><Topic>arn:aws:sns:default::t</Topic><Event>{event}</Event></TopicConfiguration>"
        )
    };
    let text = format!(
        "{}{}{}",
        part("z", "s3:ObjectCreated:*"),
        part("m", "s3:ObjectRemoved:*"),
        part("a", "s3:ObjectCreated:Put")
    );
    let matcher = Matcher::new(read(&text).unwrap()).unwrap();
    let ids: Vec<_> = matcher
        .candidates(&[EventType::ObjectCreatedPut], "k")
        .map(|candidate| candidate.configuration.id.as_str())
        .collect();
    assert_eq!(ids, ["z", "a"]);
    assert!(!matcher.is_empty() && Matcher::new(NotificationConfig::default()).unwrap().is_empty());
}

#[test]
fn metadata_and_tags_must_have_all_pairs_and_may_have_others() {
    let pairs = |list: &[(&str, &str)]| -> Vec<(String, String)> {
        list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    let filter =
        MetadataTagFilter { metadata: pairs(&[("colour", "green")]), tags: pairs(&[("a", "1"), ("b", "2")]) };
    let (metadata, tags) =
        (pairs(&[("x", "y"), ("colour", "green")]), pairs(&[("b", "2"), ("c", "3"), ("a", "1")]));
    assert!(filter.matches(&metadata, &tags));
    assert!(!filter.matches(&[], &tags) && !filter.matches(&metadata, &[]));
    assert!(!filter.matches(&pairs(&[("colour", "Green")]), &tags));
    assert!(!filter.matches(&metadata, &tags[..2]));
    assert!(MetadataTagFilter::default().matches(&[], &[]) && MetadataTagFilter::default().is_empty());
    assert!(!filter.is_empty());
}

#[test]
fn names_of_metadata_are_compared_in_lower_case() {
    let rule = |name: &str| {
        one(&format!(
            "<Filter><S3Metadata><FilterRule><Name>{name}</Name><Value>V</Value></FilterRule></S3Metadata></Filter>"
        ))
    };
    assert_eq!(rule("X-Amz-Meta-Foo").unwrap().attributes.metadata, [("foo".to_owned(), "V".to_owned())]);
    assert!(rule("foo").is_err() && rule("x-amz-meta-").is_err());
}

#[test]
fn what_is_not_understood_is_refused() {
    let topic = "<Topic>arn:aws:sns:default::t</Topic>";
    for inner in [
        "<QueueConfiguration/>".to_owned(),
        "<CloudFunctionConfiguration/>".to_owned(),
        "<EventBridgeConfiguration/>".to_owned(),
        "<TopicConfigurations/>".to_owned(),
        "<TopicConfiguration/>".to_owned(),
        format!("<TopicConfiguration>{topic}{topic}</TopicConfiguration>"),
        "<TopicConfiguration><Topic>t</Topic></TopicConfiguration>".to_owned(),
        format!("<TopicConfiguration>{topic}<Event>s3:Nothing</Event></TopicConfiguration>"),
        format!("<TopicConfiguration>{topic}<Filters/></TopicConfiguration>"),
        format!("<TopicConfiguration>{topic}<Id>a</Id><Id>a</Id></TopicConfiguration>"),
        format!("<TopicConfiguration>{topic}<Id>a&#10;b</Id></TopicConfiguration>"),
        format!("<TopicConfiguration>{topic}<Id>{}</Id></TopicConfiguration>", "x".repeat(MAX_ID_BYTES + 1)),
        format!("<TopicConfiguration>{topic}<Id><b/></Id></TopicConfiguration>"),
        format!("<TopicConfiguration>{topic}<Filter><S3Zones/></Filter></TopicConfiguration>"),
        format!("<TopicConfiguration>{topic}<Filter><S3Key><Rule/></S3Key></Filter></TopicConfiguration>"),
        format!("<TopicConfiguration>{topic}<Filter><S3Key/><S3Key/></Filter></TopicConfiguration>"),
        format!("<TopicConfiguration>{topic}{}</TopicConfiguration>", key_rule("middle", "x")),
        format!(
            "<TopicConfiguration>{topic}{}</TopicConfiguration>",
            key_rule("prefix", "x</Value><Exclude>true</Exclude><Value>")
        ),
        format!(
            "<TopicConfiguration>{topic}<Filter><S3Key><FilterRule><Name>prefix</Name></FilterRule></S3Key></Filter></TopicConfiguration>"
        ),
    ] {
        assert!(read(&inner).is_err(), "{inner}");
    }
    let twice = "<FilterRule><Name>prefix</Name><Value>a</Value></FilterRule>".repeat(2);
    assert!(one(&format!("<Filter><S3Key>{twice}</S3Key></Filter>")).is_err());
    let twice = "<FilterRule><Name>k</Name><Value>a</Value></FilterRule>".repeat(2);
    assert!(one(&format!("<Filter><S3Tags>{twice}</S3Tags></Filter>")).is_err());
    assert!(NotificationConfig::from_xml(b"<Tagging/>").is_err());
    let same =
        "<TopicConfiguration><Id>a</Id><Topic>arn:aws:sns:default::t</Topic></TopicConfiguration>".repeat(2);
    assert!(read(&same).is_err());
}

#[test]
fn numbers_of_configurations_rules_and_events_are_bounded() {
    let part = "<TopicConfiguration><Topic>arn:aws:sns:default::t</Topic></TopicConfiguration>";
    assert_eq!(read(&part.repeat(MAX_CONFIGURATIONS)).unwrap().configurations.len(), MAX_CONFIGURATIONS);
    assert!(matches!(read(&part.repeat(MAX_CONFIGURATIONS + 1)), Err(Error::TooLarge { .. })));
    let rules = |count: usize| {
        let rule = |at| format!("<FilterRule><Name>k{at}</Name><Value>v</Value></FilterRule>");
        let rules: String = (0..count).map(rule).collect();
        one(&format!("<Filter><S3Tags>{rules}</S3Tags></Filter>"))
    };
    assert_eq!(rules(MAX_FILTER_RULES).unwrap().attributes.tags.len(), MAX_FILTER_RULES);
    assert!(matches!(rules(MAX_FILTER_RULES + 1), Err(Error::TooLarge { .. })));
    let long = |bytes: usize| {
        let value = "v".repeat(bytes);
        one(&format!(
            "<Filter><S3Tags><FilterRule><Name>k</Name><Value>{value}</Value></FilterRule></S3Tags></Filter>"
        ))
    };
    assert!(long(MAX_FILTER_RULE_BYTES).is_ok());
    assert!(matches!(long(MAX_FILTER_RULE_BYTES + 1), Err(Error::TooLarge { .. })));
    // Repeated patterns count once, so all of them fit.
    let events: String = EventPattern::all().map(|event| format!("<Event>{event}</Event>")).collect();
    assert_eq!(one(&events.repeat(3)).unwrap().events.len(), EventPattern::all().count());
    assert!(EventPattern::all().count() <= MAX_EVENT_PATTERNS);
}
