//! Bucket notifications with two gateways that share the work: a full queue, and a gateway that fails.

use crate::notifications::{
    EventConsumer, Expected, TestGateway, is_slow_down, put, remove, run, text, wait_for,
};
use crate::s3_faults::Gateway;
use crate::s3_notifications_faults::client::{Reply, Request, text_of};
use crate::s3_notifications_faults::credentials;
use crate::servers::sink::Sink;
use crate::support::{TestCluster, free_port};
use futures::future::join_all;
use http::{Method, StatusCode};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const CONF: &str = "[global]
osd_pool_default_pg_num = 8
rgw_gateway_lease_duration = 4
rgw_bucket_persistent_notif_num_shards = 5
";
const BUCKET: &str = "bucket";
/// The limit of the queue that is filled, in bytes.
const LIMIT: u64 = 40_000;
/// Concurrent clients of each gateway.
const CLIENTS: usize = 6;
/// Changes before a gateway is killed.
const CHANGES: usize = 200;
/// The size of objects that fill the queue, or are written when a gateway is killed.
const SIZE: usize = 5;
/// Maximum time until the events of a killed gateway are delivered. Its watch and its lease end after at most 10 seconds, and
/// the other gateway needs less than 5 more; the rest is for busy machines.
const RECOVERY: Duration = Duration::from_secs(45);

/// A cluster with two gateways, and both with the same user.
fn served() -> (TestCluster, [Gateway; 2], [TestGateway; 2]) {
    let cluster = TestCluster::start_with(3, "bluestore", CONF);
    let mut gateways = [Gateway::new(), Gateway::new()];
    gateways.iter_mut().for_each(|gateway| gateway.start(&cluster));
    let keys = credentials(&cluster);
    let sites = gateways.each_ref().map(|gateway| TestGateway::of_gateway(&cluster, gateway, &keys));
    (cluster, gateways, sites)
}

/// Puts new objects through both gateways until both refuse, and the queue contains the events of all acknowledged ones.
fn fill(sites: &[TestGateway; 2], topic: &str, expected: &mut Expected) {
    let mut number = 0;
    wait_for("the queue is full", || {
        let clients = sites.iter().flat_map(|site| [site; CLIENTS]).zip(number..);
        let work = clients.map(|(site, number)| async move {
            let key = format!("key-{number:05}");
            let answer = site.ask(&mut site.connect(), &put(BUCKET, &key, SIZE)).await;
            let is_refused = is_slow_down(&answer);
            assert!(is_refused || answer.error().is_none(), "{answer:?}");
            (key, is_refused)
        });
        let outcomes = run(join_all(work));
        number += outcomes.len();
        let accepted: Vec<&String> =
            outcomes.iter().filter(|(_, is_refused)| !is_refused).map(|(key, _)| key).collect();
        accepted.iter().for_each(|key| expected.created(key, SIZE));
        if !accepted.is_empty() {
            return Err(format!("{} of {} operations were accepted", accepted.len(), outcomes.len()));
        }
        let stats = sites[0].stats(topic);
        if stats["Topic Stats"]["Entries"] == expected.count() { Ok(()) } else { Err(stats.to_string()) }
    });
}

/// Checks that a gateway refuses operations that would have events, and that they change nothing.
fn check_refusals(site: &TestGateway, kept: &str) {
    let copy = "copy-of-what-is-kept-there";
    let source = format!("/{BUCKET}/{kept}");
    let requests = [
        put(BUCKET, kept, 2),
        remove(BUCKET, kept),
        Request::new(Method::PUT, BUCKET, copy).header("x-amz-copy-source", source),
    ];
    for request in requests {
        let answer = site.answer(&request);
        assert!(is_slow_down(&answer), "{request:?}: {answer:?}");
    }
    // A request that removes several keys reports this for each.
    let document = format!("<Delete><Object><Key>{kept}</Key></Object></Delete>");
    let answer = site.answer(&Request::new(Method::POST, BUCKET, "").query("delete", "").document(document));
    assert_eq!(text_of(&answer.body, "Code"), Some("SlowDown"), "{answer:?}");
    let found = site.succeed(&Request::new(Method::GET, BUCKET, kept));
    assert_eq!(found.body.len(), 1);
    let absent = site.answer(&Request::new(Method::GET, BUCKET, copy));
    assert_eq!(absent.status, StatusCode::NOT_FOUND, "{absent:?}");
}

/// Repeats a request as long as the queue is considered full.
fn succeed_in_the_end(site: &TestGateway, request: &Request) {
    wait_for("operations are accepted", || {
        let answer = site.answer(request);
        assert!(is_slow_down(&answer) || answer.error().is_none(), "{answer:?}");
        if answer.error().is_none() { Ok(()) } else { Err(format!("{answer:?}")) }
    });
}

#[test]
fn a_full_queue_refuses_operations_before_they_take_effect() {
    let (_cluster, _gateways, sites) = served();
    let site = &sites[0];
    // Nothing listens there for now.
    let port = free_port();
    let limit = LIMIT.to_string();
    let attributes = [("queue-full-policy", "refuse"), ("queue-max-bytes", limit.as_str())];
    site.create_topic("limited", &format!("http://127.0.0.1:{port}/events"), &attributes);
    site.create_bucket(BUCKET, &["limited"]);
    // Its events are larger than those that fill the queue, so the remaining space is too small for it.
    let kept = "an-object-that-is-there-from-the-beginning";
    let mut expected = Expected::default();
    site.succeed(&put(BUCKET, kept, 1));
    expected.created(kept, 1);
    fill(&sites, "limited", &mut expected);
    let stats = site.stats("limited");
    let size = stats["Topic Stats"]["Size"].as_u64().unwrap();
    // Between two updates, a second gateway may admit a fourth of such a limit.
    assert!((LIMIT / 2..=LIMIT + LIMIT / 4).contains(&size), "{stats}");
    sites.iter().for_each(|site| check_refusals(site, kept));
    assert_eq!(site.stats("limited")["Topic Stats"]["Entries"], expected.count());

    let consumer = EventConsumer::new(Sink::start_at(port));
    consumer.wait_for("limited", &expected);
    site.wait_entries("limited", 0);
    for (site, size) in sites.iter().zip([2, 3]) {
        succeed_in_the_end(site, &put(BUCKET, kept, size));
        expected.created(kept, size);
    }
    succeed_in_the_end(site, &remove(BUCKET, kept));
    expected.removed(kept);
    consumer.wait_for("limited", &expected);
}

/// Puts new objects through a gateway until it is gone. Returns the acknowledged keys, and the last one.
async fn put_until_gone(
    site: &TestGateway,
    client: usize,
    acknowledged: &AtomicUsize,
) -> (Vec<String>, String) {
    let mut connection = site.connect();
    let mut keys = Vec::new();
    loop {
        let key = format!("client-{client}-{:05}", keys.len());
        match connection.send(&site.keys, &put(BUCKET, &key, SIZE)).await {
            Reply::Answered(answer) => {
                assert_eq!(answer.error(), None, "{answer:?}");
                keys.push(key);
                acknowledged.fetch_add(1, Ordering::Relaxed);
            }
            // It may have taken effect.
            Reply::Lost | Reply::NotSent => return (keys, key),
        }
    }
}

#[test]
fn events_of_a_gateway_that_dies_are_delivered_by_another() {
    let (_cluster, mut gateways, [dying, other]) = served();
    let consumer = EventConsumer::start();
    other.create_topic("topic", &consumer.url(), &[]);
    other.create_bucket(BUCKET, &["topic"]);
    let count = AtomicUsize::new(0);
    let (died, outcomes) = std::thread::scope(|scope| {
        let clients = (0..CLIENTS).map(|client| put_until_gone(&dying, client, &count));
        let load = scope.spawn(|| run(join_all(clients)));
        wait_for("enough changes", || match count.load(Ordering::Relaxed) {
            count if count < CHANGES => Err(format!("{count}")),
            _ => Ok(()),
        });
        gateways[0].kill();
        (Instant::now(), load.join().unwrap())
    });
    let (acknowledged, unanswered): (Vec<Vec<String>>, Vec<String>) = outcomes.into_iter().unzip();
    let acknowledged: BTreeSet<String> = acknowledged.into_iter().flatten().collect();
    let missing = || {
        let records = consumer.records();
        let arrived: BTreeSet<String> = records.iter().map(|record| text(record, "/s3/object/key")).collect();
        acknowledged.difference(&arrived).count()
    };
    let left = missing();
    assert!(left > 0, "the gateway left nothing to be done");
    // The bucket is not listed.
    wait_for("all acknowledged changes have events", || match missing() {
        0 => Ok(()),
        count => Err(format!("{count} have none")),
    });
    let took = died.elapsed();
    println!("{left} of {} events were left, and arrived within {took:?}", acknowledged.len());
    assert!(took < RECOVERY, "{took:?}");

    let mut answered = Expected::default();
    acknowledged.iter().for_each(|key| answered.created(key, SIZE));
    // Of the other changes, those that took effect have events.
    wait_for("events are those of what took effect", || {
        let mut expected = answered.clone();
        for key in &unanswered {
            let found = other.answer(&Request::new(Method::GET, BUCKET, key));
            if found.status.is_success() {
                expected.created(key, SIZE);
            } else if found.status != StatusCode::NOT_FOUND {
                return Err(format!("{key}: {found:?}"));
            }
        }
        expected.check(&consumer.records())
    });
}
