//! Events outlive their configuration and bucket: both are removed while their events are in the bucket's index and the gateway
//! that wrote them has failed.

use crate::s3_faults::Gateway;
use crate::s3_programs::Client;
use crate::support::{TEST_TIMEOUT, TestCluster, free_port};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const CONF: &str = "[global]
osd_pool_default_pg_num = 8
rgw_pending_bucket_index_op_expiration = 2
rgw_gateway_lease_duration = 2
rgw_bucket_persistent_notif_num_shards = 3
";
/// The bucket whose configuration is removed, and the one that is removed itself.
const BUCKETS: [&str; 2] = ["unconfigured", "removed"];
/// Minimum number of objects in each of them when the gateway is killed.
const OBJECTS: u64 = 50;

/// The keys of a bucket's objects.
fn listed(client: &Client<'_>, bucket: &str) -> BTreeSet<String> {
    let endpoint = ["--endpoint-url", client.endpoint, "--output", "json"];
    let list = ["s3api", "list-objects-v2", "--bucket", bucket];
    let listed = client.ok("/usr/bin/aws", &[&endpoint[..], &list].concat());
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let key = |object: &Value| object["Key"].as_str().unwrap().to_owned();
    listed["Contents"].as_array().unwrap().iter().map(key).collect()
}

fn objects(cluster: &TestCluster, bucket: &str) -> u64 {
    let stats = cluster.ok(&["bucket", "stats", "--bucket", bucket]);
    let stats: Value = serde_json::from_str(&stats).unwrap();
    stats["usage"]["rgw.main"]["num_objects"].as_u64().unwrap_or(0)
}

/// The keys of the queued events of a bucket and a type. Fails if there are duplicates.
fn queued(events: &[Value], bucket: &str, name: &str) -> BTreeSet<String> {
    let of_bucket = |event: &&Value| {
        event["event"]["s3"]["bucket"]["name"] == bucket && event["event"]["eventName"] == name
    };
    let mut keys = BTreeSet::new();
    for event in events.iter().filter(of_bucket) {
        let key = event["event"]["s3"]["object"]["key"].as_str().unwrap();
        assert!(keys.insert(key.to_owned()), "{name} of {bucket}/{key} is queued twice: {events:?}");
    }
    keys
}

#[test]
fn events_outlive_their_configuration_and_their_bucket() {
    let cluster = TestCluster::start_with(3, "bluestore", CONF);
    let mut gateways = [Gateway::new(), Gateway::new()];
    gateways.iter_mut().for_each(|gateway| gateway.start(&cluster));
    let user = cluster.ok(&["user", "create", "--uid", "u", "--display-name", "U"]);
    let user: Value = serde_json::from_str(&user).unwrap();
    let key = |name: &str| user["keys"][0][name].as_str().unwrap().to_owned();
    let (access, secret) = (key("access_key"), key("secret_key"));
    let (doomed, endpoint) = (gateways[0].endpoint(), gateways[1].endpoint());
    let client = Client { endpoint: &endpoint, access: &access, secret: &secret, folder: cluster.folder() };
    let to = ["--endpoint-url", endpoint.as_str()];
    let aws = |args: &[&str]| client.ok("/usr/bin/aws", &[&to[..], args].concat());
    // Nothing listens there, so events stay in the queue.
    let attributes = format!("push-endpoint=http://127.0.0.1:{},persistent=true", free_port());
    aws(&["--region", "default", "sns", "create-topic", "--name", "t", "--attributes", &attributes]);
    let topic = json!({
        "TopicArn": "arn:aws:sns:default::t",
        "Events": ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"],
    });
    let configuration = json!({ "TopicConfigurations": [topic] }).to_string();
    for bucket in BUCKETS {
        aws(&["s3api", "create-bucket", "--bucket", bucket]);
        let put = ["s3api", "put-bucket-notification-configuration", "--bucket", bucket];
        aws(&[&put[..], &["--notification-configuration", configuration.as_str()]].concat());
    }

    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/s3/flood.py");
    let mut flood = Command::new("/usr/bin/python3")
        .args([script, doomed.as_str(), access.as_str(), secret.as_str()])
        .args(BUCKETS)
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    cluster.wait_for("objects in both buckets", |cluster| {
        BUCKETS.iter().all(|bucket| objects(cluster, bucket) >= OBJECTS)
    });
    gateways[0].kill();
    // Its remains are in both indexes now: pending changes, and events that were not moved.
    cluster.ok(&["notification", "rm", "--bucket", BUCKETS[0]]);
    let deadline = Instant::now() + TEST_TIMEOUT;
    loop {
        let removal = cluster.run(&["bucket", "rm", "--bucket", BUCKETS[1], "--purge-objects"]);
        if removal.status.success() {
            break;
        }
        // Refused until the changes of the failed gateway are finished.
        assert!(Instant::now() < deadline, "never removed: {}", String::from_utf8_lossy(&removal.stderr));
        std::thread::sleep(Duration::from_millis(200));
    }
    flood.wait().unwrap();

    let deadline = Instant::now() + TEST_TIMEOUT;
    loop {
        let dumped = cluster.ok(&["topic", "dump", "t", "--max-entries", "1000000"]);
        let events: Vec<Value> = serde_json::from_str(&dumped).unwrap();
        let kept = (queued(&events, BUCKETS[0], "ObjectCreated:Put"), listed(&client, BUCKETS[0]));
        let created = queued(&events, BUCKETS[1], "ObjectCreated:Put");
        let removed = queued(&events, BUCKETS[1], "ObjectRemoved:Delete");
        if kept.0 == kept.1 && created == removed && created.len() as u64 >= OBJECTS {
            break;
        }
        let counts = [kept.0.len(), kept.1.len(), created.len(), removed.len()];
        assert!(Instant::now() < deadline, "events and objects that never agree: {counts:?}");
        std::thread::sleep(Duration::from_millis(200));
    }
    let buckets: Value = serde_json::from_str(&cluster.ok(&["bucket", "list"])).unwrap();
    assert_eq!(buckets, json!([BUCKETS[0]]));
}
