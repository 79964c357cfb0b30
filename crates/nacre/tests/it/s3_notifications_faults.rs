//! Bucket notifications while gateways, OSDs and consumers are killed, topics and buckets are resharded, and one endpoint is
//! always dead: an event exists exactly if its operation took effect, and each key's events are in order.
//!
//! Every request has its own loopback source address, which its event contains (`sourceIPAddress`). So each event identifies its
//! operation, even if that was never answered.

mod check;
pub(crate) mod client;
mod ends;
mod faults;
mod history;
mod load;
mod sink;

use crate::s3_edges::generate_certificate;
use crate::s3_faults::Gateway;
use crate::s3_programs::Client;
use crate::support::{TEST_TIMEOUT, TestCluster, free_port};
use check::{HistoryViolation, Source};
use client::Keys;
use ends::Reader;
use faults::Faults;
use history::{Event, History, PLAIN, VERSIONED};
use load::{Load, Plan};
use serde_json::{Value, json};
use sink::Sink;
use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime};

const CONF: &str = "[global]
osd_heartbeat_interval = 1
osd_heartbeat_grace = 4
mon_osd_down_out_interval = 600
osd_pool_default_pg_num = 8
rgw_pending_bucket_index_op_expiration = 2
rgw_gateway_lease_duration = 2
rgw_bucket_persistent_notif_num_shards = 5
rgw_reshard_bucket_lock_duration = 5
rgw_reshard_thread_interval = 1
rgw_allow_notification_local_endpoints = true
";

/// The topics: for an HTTP sink, for an HTTPS sink, and for an address where nothing listens.
const TOPICS: [&str; 3] = ["http", "https", DEAD];
/// The topic whose endpoint never answers.
const DEAD: &str = "dead";
const BUCKETS: [&str; 2] = [PLAIN, VERSIONED];
/// Maximum number of problems that are printed.
const SHOWN: usize = 20;

/// Number of operations of all clients.
fn operations() -> u32 {
    let is_long = std::env::var("NEXTEST_PROFILE").is_ok_and(|profile| profile == "long");
    if is_long { 100_000 } else { 12_000 }
}

/// The seed of all choices. `NACRE_TEST_SEED` repeats an earlier run.
fn seed() -> u64 {
    let named = std::env::var("NACRE_TEST_SEED").ok().map(|seed| seed.parse().unwrap());
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    named.unwrap_or(now.as_millis() as u64)
}

/// The keys of a new user.
pub(crate) fn credentials(cluster: &TestCluster) -> Keys {
    let user = cluster.ok(&["user", "create", "--uid", "u", "--display-name", "U"]);
    let user: Value = serde_json::from_str(&user).unwrap();
    let key = |name: &str| user["keys"][0][name].as_str().unwrap().to_owned();
    Keys { access: key("access_key"), secret: key("secret_key") }
}

/// Creates the topics and the buckets, whose configurations name all topics. `endpoints` are (URI, further attributes).
fn set_up(client: &Client<'_>, endpoints: [(String, Value); 3]) {
    let aws = |args: &[&str]| {
        let out = client
            .ok("/usr/bin/aws", &[&["--endpoint-url", client.endpoint, "--output", "json"], args].concat());
        serde_json::from_slice::<Value>(&out.stdout).unwrap_or_default()
    };
    let configurations: Vec<Value> = TOPICS
        .iter()
        .zip(endpoints)
        .map(|(name, (endpoint, mut attributes))| {
            let fixed = json!({
                "push-endpoint": endpoint,
                "persistent": "true",
                "time_to_live": "0",
                "max_retries": "0",
                "retry_sleep_duration": "1",
            });
            attributes.as_object_mut().unwrap().extend(fixed.as_object().unwrap().clone());
            let attributes = attributes.to_string();
            let topic = aws(&["sns", "create-topic", "--name", name, "--attributes", &attributes]);
            let events = ["s3:ObjectCreated:*", "s3:ObjectRemoved:*", "s3:ObjectTagging:*"];
            json!({ "Id": name, "TopicArn": topic["TopicArn"], "Events": events })
        })
        .collect();
    let configuration = json!({ "TopicConfigurations": configurations }).to_string();
    for bucket in BUCKETS {
        let of_bucket = ["--bucket", bucket];
        aws(&[&["s3api", "create-bucket"], &of_bucket[..]].concat());
        if bucket == VERSIONED {
            let enabled = ["--versioning-configuration", "Status=Enabled"];
            aws(&[&["s3api", "put-bucket-versioning"], &of_bucket[..], &enabled].concat());
        }
        let named = ["--notification-configuration", &configuration];
        aws(&[&["s3api", "put-bucket-notification-configuration"], &of_bucket[..], &named].concat());
    }
}

/// The number with that name in an answer, at any depth.
fn number_in(value: &Value, name: &str) -> Option<u64> {
    match value {
        Value::Object(fields) => {
            let own = fields.get(name).and_then(Value::as_u64);
            own.or_else(|| fields.values().find_map(|field| number_in(field, name)))
        }
        Value::Array(values) => values.iter().find_map(|value| number_in(value, name)),
        _ => None,
    }
}

/// The events in an answer, at any depth.
fn events_in(value: &Value, events: &mut Vec<Event>) {
    if value.get("eventId").is_some() {
        events.push(Event::of_record(value).unwrap_or_else(|| panic!("no whole event: {value}")));
        return;
    }
    match value {
        Value::Object(fields) => fields.values().for_each(|field| events_in(field, events)),
        Value::Array(values) => values.iter().for_each(|value| events_in(value, events)),
        _ => {}
    }
}

/// The number of events in a topic's queues, or `None` if the answer does not contain it.
fn entries(cluster: &TestCluster, topic: &str) -> Option<u64> {
    let out = cluster.run(&["topic", "stats", "--topic", topic]);
    number_in(&serde_json::from_slice(&out.stdout).ok()?, "Entries")
}

/// All events in a topic's queues.
fn dump(cluster: &TestCluster, topic: &str) -> Vec<Event> {
    // More than can exist.
    let all = history::MAX_OPERATIONS.to_string();
    let text = cluster.ok(&["topic", "dump", "--topic", topic, "--max-entries", &all]);
    let mut events = Vec::new();
    events_in(&serde_json::from_str(&text).unwrap(), &mut events);
    events
}

/// Waits until consumers have received all queued events.
fn drain(cluster: &TestCluster, sinks: &[Sink]) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    let live = &TOPICS[..sinks.len()];
    loop {
        let left: Vec<_> = live.iter().map(|topic| entries(cluster, topic)).collect();
        if left.iter().all(|entries| *entries == Some(0)) {
            return;
        }
        assert!(Instant::now() < deadline, "queued for {live:?} at the end: {left:?}");
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// All problems.
fn problems(
    cluster: &TestCluster,
    history: &History,
    ends: &history::FinalState,
    sinks: &[Sink],
) -> Vec<HistoryViolation> {
    let queued = dump(cluster, DEAD);
    let delivered: Vec<_> = sinks.iter().map(Sink::events).collect();
    let mut problems = check::check(history, &queued, ends, Source::Queued);
    for events in &delivered {
        problems.extend(check::check(history, events, ends, Source::Delivered));
        problems.extend(check::compare_topics(events, &queued));
    }
    problems
}

/// Cleans up remains of killed gateways, such as uploads that no listing shows. Then the bucket's index is sound.
fn mend(cluster: &TestCluster, bucket: &str) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    loop {
        cluster.run(&["bucket", "check", "--bucket", bucket, "--fix"]);
        let out = cluster.run(&["bucket", "check", "--bucket", bucket]);
        if out.status.success() {
            return;
        }
        assert!(Instant::now() < deadline, "{bucket}: {}", String::from_utf8_lossy(&out.stdout));
    }
}

#[test]
fn events_are_those_of_what_took_effect_while_everything_is_killed() {
    let seed = seed();
    println!("seed {seed} (NACRE_TEST_SEED={seed} repeats its choices)");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let allowed = format!("rgw_notification_ca_folder = {}\n", folder.path().display());
    let mut cluster = TestCluster::start_with(3, "bluestore", &(CONF.to_owned() + &allowed));
    let mut gateways = [Gateway::new(), Gateway::new()];
    for gateway in &mut gateways {
        gateway.start(&cluster);
    }
    let credentials = credentials(&cluster);
    generate_certificate(folder.path(), "sink");
    let file = |name: &str| folder.path().join(name);
    let (certificate, key) = (file("sink.crt"), file("sink.key"));
    let ports = [free_port(), free_port()];
    let mut sinks = [
        Sink::new(runtime.handle().clone(), ports[0], None),
        Sink::new(runtime.handle().clone(), ports[1], Some((&certificate, &key))),
    ];
    sinks.iter_mut().for_each(Sink::start);
    // Bound, so that no other process uses it, but not listening, so that connections are refused.
    let nobody = tokio::net::TcpSocket::new_v4().unwrap();
    nobody.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let dead = nobody.local_addr().unwrap();

    let endpoint = gateways[0].endpoint();
    let client = Client {
        endpoint: &endpoint,
        access: &credentials.access,
        secret: &credentials.secret,
        folder: folder.path(),
    };
    let endpoints = [
        (format!("http://127.0.0.1:{}/events", ports[0]), json!({})),
        (format!("https://127.0.0.1:{}/events", ports[1]), json!({ "ca-location": file("ca.crt") })),
        (format!("http://{dead}/events"), json!({})),
    ];
    set_up(&client, endpoints);

    let addresses = gateways.iter().map(|gateway| gateway.endpoint()["http://".len()..].parse().unwrap());
    let operations = operations();
    let plan = Plan {
        seed,
        operations,
        // Few enough that clients meet on each, many enough that a key's history remains short.
        keys: (operations / 250).clamp(10, 200),
        gateways: addresses.collect(),
        credentials: credentials.clone(),
    };
    let to = plan.gateways[0];
    let started = Instant::now();
    let load = runtime.spawn(Load::new(plan).run());
    let counts = {
        let mut faults = Faults::new(seed, &mut cluster, &mut gateways, &mut sinks, (&TOPICS, &BUCKETS));
        while !load.is_finished() {
            faults.inject();
        }
        faults.restore();
        faults.counts
    };
    let history = runtime.block_on(load).unwrap();
    println!(
        "{operations} operations in {} s; {counts:?}; {}",
        started.elapsed().as_secs(),
        history.summary()
    );
    drain(&cluster, &sinks);

    let reader = Reader { to, credentials: &credentials };
    let deadline = Instant::now() + TEST_TIMEOUT;
    loop {
        let ends = runtime.block_on(reader.read(&history));
        let problems = problems(&cluster, &history, &ends, &sinks);
        if problems.is_empty() {
            break;
        }
        // Operations of killed gateways are finished some seconds after their leases end, then delivered.
        if Instant::now() > deadline {
            let shown: Vec<_> = problems.iter().take(SHOWN).map(ToString::to_string).collect();
            panic!("seed {seed}: {} problems:\n{}", problems.len(), shown.join("\n"));
        }
        std::thread::sleep(Duration::from_secs(1));
    }
    for (topic, sink) in TOPICS.iter().zip(&sinks) {
        println!("{topic}: {} deliveries", sink.count());
    }
    for bucket in BUCKETS {
        mend(&cluster, bucket);
    }
    let said: String = gateways.iter().map(|gateway| gateway.log(&cluster)).collect();
    assert!(!said.contains("panicked"), "{said}");
}
