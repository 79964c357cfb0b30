//! Topics and buckets' notification configurations with awscli and boto3, on a served cluster.

use crate::s3::S3;
use crate::support::{TEST_TIMEOUT, free_port};
use serde_json::{Value, json};
use std::time::Instant;

/// The second user's keys.
const OTHER: [&str; 2] = ["OTHERSKEY", "secret of the other"];

fn start(more: &[&str]) -> S3 {
    let s3 = S3::start_with(more);
    let keys = ["--access-key", OTHER[0], "--secret-key", OTHER[1]];
    s3.nacre(&[&["user", "create", "--uid", "other", "--display-name", "The other one"], &keys[..]].concat());
    s3
}

impl S3 {
    /// Runs Debian's awscli, as in the documents, and returns its output.
    fn aws(&self, args: &[&str]) -> Value {
        let endpoint = ["--region=default", "--endpoint-url", &self.endpoint];
        let out = self.ok("/usr/bin/aws", &[&endpoint[..], args].concat());
        serde_json::from_slice(&out.stdout).unwrap_or(Value::Null)
    }

    fn command(&self, args: &[&str]) -> Value {
        serde_json::from_slice(&self.nacre(args)).unwrap_or(Value::Null)
    }

    /// The objects of topics' queues from `rados ls`, sorted.
    fn queues(&self) -> Vec<String> {
        let out = self.nacre(&["rados", "-p", "default.rgw.log", "--namespace", "notif", "ls"]);
        let mut names: Vec<String> = String::from_utf8(out).unwrap().lines().map(str::to_owned).collect();
        names.sort();
        names
    }
}

#[test]
fn boto3_makes_topics_and_configurations() {
    let s3 = start(&[]);
    let suite = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/s3/topics.py");
    s3.ok("/usr/bin/python3", &[suite, &s3.endpoint, &s3.access, &s3.secret, OTHER[0], OTHER[1]]);
    assert_eq!(s3.queues(), [""; 0], "queues that belong to no topic");
    let log = std::fs::read_to_string(s3.path("serve.err")).unwrap();
    assert!(!log.contains("hunter2"), "a password is in the log");
}

#[test]
fn awscli_makes_topics_with_as_many_queues_as_the_option_says() {
    let s3 = start(&[]);
    // The monitors' configuration applies to the next topic.
    let set_shards = |shards: &str| {
        s3.nacre(&["config", "set", "client.admin", "rgw_bucket_persistent_notif_num_shards", shards]);
    };
    set_shards("1");
    let create = |name: &str| {
        let name = format!("--name={name}");
        let attributes = r#"--attributes={"push-endpoint": "kafka://", "persistent": "true"}"#;
        s3.aws(&["sns", "create-topic", &name, attributes])["TopicArn"].as_str().unwrap().to_owned()
    };
    let configure = |bucket: &str, arn: &str| {
        let configuration =
            json!({ "TopicConfigurations": [{ "Id": "notif1", "TopicArn": arn, "Events": [] }] });
        let configuration = format!("--notification-configuration={configuration}");
        s3.aws(&["s3api", "put-bucket-notification-configuration", "--bucket", bucket, &configuration]);
    };
    let bucket = "bk000000000000";
    s3.aws(&["s3api", "create-bucket", "--bucket", bucket]);
    assert_eq!(create("fishtopic0"), "arn:aws:sns:default::fishtopic0");
    configure(bucket, "arn:aws:sns:default::fishtopic0");
    assert_eq!(s3.queues(), [":fishtopic0"]);
    set_shards("11");
    create("fishtopic1");
    let mut eleven: Vec<String> = (1..11).map(|shard| format!(":fishtopic1.{shard}")).collect();
    eleven.extend([":fishtopic0".to_owned(), ":fishtopic1".to_owned()]);
    eleven.sort();
    assert_eq!(s3.queues(), eleven, "an existing topic keeps its shards");
    s3.nacre(&["topic", "reshard", "fishtopic1", "--shards", "3"]);
    assert_eq!(s3.queues(), [":fishtopic0", ":fishtopic1", ":fishtopic1.1", ":fishtopic1.2"]);
    let stats = s3.command(&["topic", "stats", "fishtopic1"]);
    assert_eq!(stats["Topic Stats"], json!({ "Reservations": 0, "Size": 0, "Entries": 0 }));
    s3.nacre(&["topic", "rm", "fishtopic1"]);
    let found = s3.aws(&["s3api", "get-bucket-notification-configuration", "--bucket", bucket]);
    let all = ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"];
    assert_eq!(
        found,
        json!({ "TopicConfigurations": [
            { "Id": "notif1", "TopicArn": "arn:aws:sns:default::fishtopic0", "Events": all },
        ] })
    );
    let shown = s3.command(&["topic", "get", "--topic", "fishtopic0"]);
    assert_eq!((&shown["user"], &shown["shards"]), (&json!("admin"), &json!(1)));
    assert_eq!(shown["dest"]["persistent_queue"], ":fishtopic0");
    let listed = s3.command(&["radosgw-admin", "topic", "list"]);
    assert_eq!(listed["topics"].as_array().unwrap().len(), 1);
    let configured = s3.command(&["radosgw-admin", "notification", "list", "--bucket", bucket]);
    assert_eq!(configured["notifications"][0]["Id"], "notif1");
    s3.nacre(&["notification", "rm", "--bucket", bucket, "--notification-id", "notif1"]);
    assert_eq!(s3.aws(&["s3api", "get-bucket-notification-configuration", "--bucket", bucket]), Value::Null);
    s3.nacre(&["topic", "rm", "--topic", "fishtopic0"]);
    assert_eq!(s3.queues(), [""; 0]);
}

#[test]
fn changes_have_the_events_that_their_configurations_ask_for() {
    let s3 = start(&[]);
    let suite = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/s3/events.py");
    s3.ok("/usr/bin/python3", &[suite, &s3.endpoint, &s3.access, &s3.secret]);
    // Nothing listens at its endpoint: the event becomes a dead letter after a retry, and can be shown.
    let deadline = Instant::now() + TEST_TIMEOUT;
    let letters = loop {
        let letters = s3.command(&["topic", "dlq", "list", "dead"]);
        if letters[0].is_object() {
            break letters;
        }
        assert!(Instant::now() < deadline, "never dead: {}", s3.command(&["topic", "stats", "dead"]));
    };
    assert_eq!((&letters[0]["reason"], &letters[0]["attempts"]), (&json!("max_retries"), &json!(2)));
    assert_eq!(letters[0]["event"]["s3"]["object"]["key"], "dead");
    assert_eq!(s3.command(&["topic", "dlq", "purge", "dead", "--all"]), json!({ "purged": 1 }));
    for topic in ["dead", "queued", "immediate"] {
        s3.nacre(&["topic", "rm", topic]);
    }
    assert_eq!(s3.queues(), [""; 0]);
}

#[test]
fn a_changed_time_to_live_holds_at_once_and_stats_show_the_breaker() {
    const EVENTS: usize = 20;
    let s3 = start(&["rgw_bucket_persistent_notif_num_shards=1"]);
    // Nothing listens at its endpoint.
    let attributes = format!("--attributes=push-endpoint=http://127.0.0.1:{},persistent=true", free_port());
    s3.aws(&["sns", "create-topic", "--name=late", &attributes]);
    s3.aws(&["s3api", "create-bucket", "--bucket", "late"]);
    let stats = || s3.command(&["topic", "stats", "late"]);
    assert_eq!(stats()["shards"][0]["breaker"], "closed");
    let topic = json!({ "TopicArn": "arn:aws:sns:default::late", "Events": [] });
    let configuration = json!({ "TopicConfigurations": [topic] });
    let configuration = format!("--notification-configuration={configuration}");
    s3.aws(&["s3api", "put-bucket-notification-configuration", "--bucket", "late", &configuration]);
    std::fs::create_dir(s3.path("objects")).unwrap();
    for number in 0..EVENTS {
        std::fs::write(s3.path(&format!("objects/{number}")), "x").unwrap();
    }
    s3.aws(&["s3", "cp", "--recursive", "objects", "s3://late/"]);
    let wait = |what: &str, reached: &dyn Fn() -> bool| {
        let deadline = Instant::now() + TEST_TIMEOUT;
        while !reached() {
            assert!(Instant::now() < deadline, "never {what}: {}", stats());
        }
    };
    let entries = || stats()["Topic Stats"]["Entries"].clone();
    wait("queued", &|| entries() == EVENTS);
    wait("open", &|| stats()["shards"][0]["breaker"] == "open");
    assert_eq!(s3.command(&["topic", "dump", "late"]).as_array().unwrap().len(), EVENTS);
    assert_eq!(s3.command(&["topic", "dlq", "list", "late"]), json!([]));
    s3.nacre(&["config", "set", "client.admin", "rgw_topic_persistency_time_to_live", "1"]);
    wait("expired", &|| entries() == 0);
    let letters = || s3.command(&["topic", "dlq", "list", "late"]).as_array().map_or(0, Vec::len);
    wait("dead", &|| letters() == EVENTS);
    assert_eq!(s3.command(&["topic", "dlq", "list", "late"])[0]["reason"], "time_to_live");
    assert_eq!(stats()["Topic Stats"], json!({ "Reservations": 0, "Size": 0, "Entries": 0 }));
    s3.nacre(&["topic", "rm", "late"]);
}
