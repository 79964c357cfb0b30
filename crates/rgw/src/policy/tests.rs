use super::*;
use serde_json::json;

fn decide(statements: Value, user: Option<&str>, action: &str, key: &str, ip: &str) -> Decision {
    let text = json!({ "Version": "2012-10-17", "Statement": statements }).to_string();
    let policy = Policy::read(&text, "b").unwrap();
    let context = |name: &str| match name {
        "aws:sourceip" => vec![ip.to_owned()],
        "s3:prefix" => vec!["home/".to_owned()],
        "s3:requestobjecttagkeys" => vec!["one".to_owned(), "two".to_owned()],
        _ => vec![],
    };
    policy
        .decide(&PolicyRequest {
            who: PolicyPrincipal { user, role: None },
            action,
            resource: &format!("arn:aws:s3:::b{key}"),
            context: &context,
        })
        .unwrap()
}

#[test]
fn statements_decide() {
    use Decision::{Allow, Deny, Pass};
    let read = json!([{ "Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::b/*" }]);
    assert_eq!(decide(read.clone(), None, "s3:GetObject", "/k", "10.0.0.1"), Allow);
    assert_eq!(decide(read.clone(), None, "s3:PutObject", "/k", "10.0.0.1"), Pass);
    assert_eq!(decide(read, None, "s3:GetObject", "", "10.0.0.1"), Pass);
    let both = json!([
        { "Effect": "Allow", "Principal": {"AWS": ["arn:aws:iam:::user/alice"]}, "Action": ["s3:*"], "Resource": ["arn:aws:s3:::b", "arn:aws:s3:::b/*"] },
        { "Effect": "Deny", "Principal": "*", "Action": "s3:Delete*", "Resource": "arn:aws:s3:::b/keep/*",
          "Condition": { "NotIpAddress": { "aws:SourceIp": "10.0.0.0/8" } } },
    ]);
    assert_eq!(decide(both.clone(), Some("alice"), "s3:DeleteObject", "/keep/k", "192.168.0.1"), Deny);
    assert_eq!(decide(both.clone(), Some("alice"), "s3:DeleteObject", "/keep/k", "10.1.2.3"), Allow);
    assert_eq!(decide(both, Some("bob"), "s3:GetObject", "/k", "10.1.2.3"), Pass);
    let conditions = |operator: &str, key: &str, value: Value| {
        let statement = json!([{ "Effect": "Allow", "Principal": "*", "NotAction": "s3:PutObject", "Resource": "*",
            "Condition": { operator: { key: value } } }]);
        decide(statement, None, "s3:ListBucket", "", "::1") == Allow
    };
    assert!(conditions("StringEquals", "s3:prefix", json!(["x", "home/"])));
    assert!(conditions("StringLike", "s3:prefix", json!("ho*")));
    assert!(!conditions("StringNotEquals", "s3:prefix", json!("home/")));
    assert!(!conditions("StringEquals", "aws:Referer", json!("x")));
    assert!(conditions("StringEqualsIfExists", "aws:Referer", json!("x")));
    // A condition on several values usually demands that there are no others.
    let tags = "s3:RequestObjectTagKeys";
    for (operator, known, holds) in [
        ("ForAllValues:StringEquals", json!(["one", "two", "three"]), true),
        ("ForAllValues:StringEquals", json!("one"), false),
        ("ForAnyValue:StringEquals", json!("one"), true),
        ("ForAnyValue:StringEquals", json!("three"), false),
        ("ForAnyValue:StringNotEquals", json!("one"), true),
        ("ForAnyValue:StringNotEquals", json!(["one", "two"]), false),
        ("StringNotEquals", json!("one"), false),
    ] {
        assert_eq!(conditions(operator, tags, known.clone()), holds, "{operator} {known}");
    }
    assert!(conditions("ForAllValues:StringEquals", "aws:Referer", json!("x")));
    assert!(!conditions("ForAnyValue:StringNotEquals", "aws:Referer", json!("x")));
    assert!(conditions("Null", "aws:Referer", json!("true")));
    assert!(conditions("IpAddress", "aws:SourceIp", json!("::/64")));
    assert!(!conditions("IpAddress", "aws:SourceIp", json!("10.0.0.0/8")));
}

#[test]
fn policies_of_identities_and_of_trust_say_other_things() {
    let none = |_: &str| vec![];
    let ask = |policy: &Policy, who: PolicyPrincipal<'_>, action: &str, resource: &str| {
        policy.decide(&PolicyRequest { who, action, resource, context: &none }).unwrap()
    };
    let alice = PolicyPrincipal { user: Some("alice"), role: None };
    let assumed = PolicyPrincipal { user: Some("alice"), role: Some(("reader", "s1")) };
    let own = json!({ "Statement": { "Effect": "Allow", "Action": ["s3:Get*", "sts:AssumeRole"],
        "Resource": ["arn:aws:s3:::a/*", "arn:aws:iam:::role/reader"] } });
    let own = Policy::read_identity(&own.to_string()).unwrap();
    assert_eq!(ask(&own, alice, "s3:GetObject", "arn:aws:s3:::a/k"), Decision::Allow);
    assert_eq!(ask(&own, alice, "s3:GetObject", "arn:aws:s3:::b/k"), Decision::Pass);
    assert_eq!(ask(&own, alice, "sts:AssumeRole", "arn:aws:iam:::role/reader"), Decision::Allow);
    let trust = json!({ "Statement": { "Effect": "Allow", "Action": "sts:AssumeRole",
        "Principal": { "AWS": ["arn:aws:iam:::user/alice"] } } });
    let trust = Policy::read_trust(&trust.to_string()).unwrap();
    assert_eq!(ask(&trust, alice, "sts:AssumeRole", "arn:aws:iam:::role/reader"), Decision::Allow);
    // The session of a role is not the user that assumed the role.
    assert_eq!(ask(&trust, assumed, "sts:AssumeRole", ""), Decision::Pass);
    let to = |principal: &str| {
        let statement = json!({ "Effect": "Allow", "Action": "s3:*", "Resource": "*", "Principal": { "AWS": principal } });
        Policy::read(&json!({ "Statement": statement }).to_string(), "b").unwrap()
    };
    for (principal, expected) in [
        ("arn:aws:iam:::role/reader", Decision::Allow),
        ("arn:aws:iam:::role/path/reader", Decision::Allow),
        ("arn:aws:iam:::role/writer", Decision::Pass),
        ("arn:aws:sts:::assumed-role/reader/s1", Decision::Allow),
        ("arn:aws:sts:::assumed-role/reader/s2", Decision::Pass),
        ("arn:aws:iam:::user/alice", Decision::Pass),
    ] {
        assert_eq!(ask(&to(principal), assumed, "s3:GetObject", "arn:aws:s3:::b/k"), expected, "{principal}");
    }
    for wrong in [
        json!({ "Effect": "Allow", "Action": "s3:*", "Resource": "*", "Principal": "*" }),
        json!({ "Effect": "Allow", "Action": "s3", "Resource": "*" }),
        json!({ "Effect": "Allow", "Action": "s3:*" }),
    ] {
        assert!(Policy::read_identity(&json!({ "Statement": [wrong] }).to_string()).is_err());
    }
}

#[test]
fn public_is_what_names_nobody() {
    let public = |effect: &str, principal: Value, condition: Value| {
        let statement = json!([{ "Effect": effect, "Principal": principal, "Action": "s3:GetObject", "Resource": "*",
            "Condition": condition }]);
        Policy::read(&json!({ "Statement": statement }).to_string(), "b").unwrap().is_public()
    };
    let alice = json!({"AWS": "arn:aws:iam:::user/alice"});
    assert!(public("Allow", json!("*"), json!({})));
    assert!(!public("Deny", json!("*"), json!({})));
    assert!(!public("Allow", alice, json!({})));
    assert!(public("Allow", json!({"AWS": "*"}), json!({"StringEquals": {"s3:prefix": "a"}})));
    assert!(public("Allow", json!("*"), json!({"IpAddress": {"aws:SourceIp": ["10.0.0.0/8", "0.0.0.0/0"]}})));
    assert!(public("Allow", json!("*"), json!({"NotIpAddress": {"aws:SourceIp": "10.0.0.0/8"}})));
    assert!(public("Allow", json!("*"), json!({"IpAddressIfExists": {"aws:SourceIp": "10.0.0.0/8"}})));
    assert!(!public("Allow", json!("*"), json!({"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}})));
    assert!(!public("Allow", json!("*"), json!({"StringEquals": {"aws:username": "alice"}})));
}

#[test]
fn what_is_not_understood_is_refused() {
    for statement in [
        json!({ "Effect": "Maybe", "Principal": "*", "Action": "s3:*", "Resource": "*" }),
        json!({ "Effect": "Allow", "Action": "s3:*", "Resource": "*" }),
        json!({ "Effect": "Allow", "Principal": "*", "Action": "ec2:*", "Resource": "*" }),
        json!({ "Effect": "Allow", "Principal": "*", "Action": "s3:*", "Resource": "arn:aws:s3:::bother/*" }),
        json!({ "Effect": "Allow", "Principal": "*", "Action": "s3:*", "Resource": "*", "Condition": { "Sounds": { "a": "b" } } }),
        json!({ "Effect": "Allow", "Principal": "*", "Action": "s3:*", "Resource": "*", "Condition": { "IpAddress": { "aws:SourceIp": "x" } } }),
        json!({ "Effect": "Allow", "Principal": "*", "Action": "s3:*", "Resource": "*", "Wit": 1 }),
    ] {
        let text = json!({ "Statement": [statement] }).to_string();
        assert!(Policy::read(&text, "b").is_err(), "{text}");
    }
    assert!(Policy::read("{", "b").is_err());
    assert!(Policy::read(&" ".repeat(MAX_BYTES + 1), "b").is_err());
}

#[test]
fn an_evaluation_has_a_limit_of_steps() {
    let pattern = format!("*{}?b*", "a".repeat(4000));
    let statement = json!([
        { "Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "*" },
        { "Effect": "Deny", "Principal": "*", "Action": "s3:GetObject", "Resource": "*",
          "Condition": { "StringLike": { "aws:Referer": pattern } } },
    ]);
    let policy = Policy::read(&json!({ "Statement": statement }).to_string(), "b").unwrap();
    let decide = |referer: &str| {
        let context = |_: &str| vec![referer.to_owned()];
        let (who, resource) = (PolicyPrincipal::default(), "arn:aws:s3:::b/k");
        policy.decide(&PolicyRequest { who, action: "s3:GetObject", resource, context: &context })
    };
    assert_eq!(decide("http://x"), Ok(Decision::Allow));
    assert_eq!(decide(&"a".repeat(20_000)), Err(StepLimitExceeded));
}

#[test]
fn policies_say_whether_they_ask_for_tags() {
    let asks = |key: &str| {
        let statement = json!([{ "Effect": "Deny", "Action": "s3:*", "Resource": "*",
            "Condition": { "StringEquals": { key: "x" } } }]);
        Policy::read_identity(&json!({ "Statement": statement }).to_string()).unwrap().uses_object_tags()
    };
    assert!(asks("s3:ExistingObjectTag/Class") && !asks("s3:RequestObjectTag/Class"));
}
