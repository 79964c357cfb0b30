//! Storage classes: the data of objects is in their class's pool, and is removed from there; a class in use keeps its pool.

use crate::s3_faults::Gateway;
use crate::support::{TEST_TIMEOUT, TestCluster, nacre};
use serde_json::Value;
use std::process::{Command, Output, Stdio};
use std::time::Instant;

const SUITE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/s3/classes.py");
const TRANSITIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/s3/transitions.py");
const CLASSES: [(&str, &str); 2] = [("COLD", "cold.data"), ("STANDARD_IA", "default.rgw.ia.data")];
const TARGET: [&str; 2] = ["--placement-id", "default-placement"];

/// A cluster with a gateway.
struct Zone {
    cluster: TestCluster,
    gateway: Gateway,
}

impl Zone {
    fn start() -> Zone {
        Zone::start_with("")
    }

    /// With a further option.
    fn start_with(option: &str) -> Zone {
        let conf = format!("[global]\nosd_pool_default_pg_num = 8\nrgw_gc_obj_min_wait = 0\n{option}");
        let cluster = TestCluster::start_with(3, "memstore", &conf);
        cluster.ok(&[
            "user",
            "create",
            "--uid",
            "u",
            "--display-name",
            "u",
            "--access-key",
            "AK",
            "--secret",
            "SK",
        ]);
        let mut gateway = Gateway::new();
        gateway.start(&cluster);
        Zone { cluster, gateway }
    }

    fn run(&self, subject: &str, verb: &str, class: &str, more: &[&str]) -> Output {
        let words = [&[subject, "placement", verb], &TARGET[..], &["--storage-class", class], more].concat();
        self.cluster.run(&words)
    }

    fn ok(&self, subject: &str, verb: &str, class: &str, more: &[&str]) -> Value {
        let out = self.run(subject, verb, class, more);
        assert!(out.status.success(), "{subject} {verb} {class}: {}", String::from_utf8_lossy(&out.stderr));
        serde_json::from_slice(&out.stdout).unwrap()
    }

    /// Requires a failure with that text.
    fn fails(&self, subject: &str, verb: &str, class: &str, more: &[&str], told: &str) {
        let out = self.run(subject, verb, class, more);
        let text = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success() && text.contains(told), "{subject} {verb} {class}: {text}");
    }

    fn add_classes(&self) {
        for (class, pool) in CLASSES {
            self.ok("zonegroup", "add", class, &[]);
            self.ok("zone", "add", class, &["--data-pool", pool]);
        }
    }

    fn suite(&self, stage: &str) -> String {
        self.python(SUITE, stage)
    }

    fn python(&self, suite: &str, stage: &str) -> String {
        let out = Command::new("/usr/bin/python3")
            .args([suite, stage, &self.gateway.endpoint(), "AK", "SK"])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{stage}: {text}\n{}", self.gateway.log(&self.cluster));
        String::from_utf8(out.stdout).unwrap()
    }

    /// The names of a pool's objects after garbage collection.
    fn names(&self, pool: &str) -> Vec<String> {
        self.cluster.ok(&["gc", "process", "--include-all"]);
        self.cluster.ok(&["rados", "-p", pool, "ls"]).lines().map(str::to_owned).collect()
    }

    /// Waits until a pool has `wanted` objects, and checks their names.
    fn wait_objects(&self, class: &str, pool: &str, wanted: u64) {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            let names = self.names(pool);
            let mark = format!("__shadow_{class}_");
            assert!(names.iter().all(|name| name.contains(&mark)), "{pool}: {names:?}");
            if names.len() as u64 == wanted {
                return;
            }
            // Changes may not be finished yet.
            assert!(Instant::now() < deadline, "{pool} has not {wanted} objects: {names:#?}");
        }
    }

    /// Checks `plain`, which has `problems` problems, and `versioned`, which has none.
    fn check_buckets(&self, problems: u64, fix: &[&str]) {
        self.check_buckets_of(&["plain", "versioned"], problems, fix);
    }

    fn check_buckets_of(&self, buckets: &[&str], problems: u64, fix: &[&str]) {
        for bucket in buckets {
            let problems = if *bucket == "plain" { problems } else { 0 };
            let words = [&["bucket", "check", "--bucket", bucket], fix].concat();
            let report: Value = serde_json::from_str(&self.cluster.ok(&words)).unwrap();
            assert_eq!(report["num_problems"], problems, "{bucket}: {report}");
        }
    }
}

#[test]
fn the_data_of_objects_is_in_their_classs_pool_and_goes_from_there() {
    let mut zone = Zone::start();
    // The gateway is running already.
    zone.add_classes();
    let wanted: Value = serde_json::from_str(&zone.suite("write")).unwrap();
    for (class, pool) in CLASSES {
        zone.wait_objects(class, pool, wanted[class].as_u64().unwrap());
    }
    let heads = zone.names("default.rgw.buckets.data");
    let classed =
        heads.iter().find(|name| name.contains("__shadow_COLD_") || name.contains("__shadow_STANDARD_IA_"));
    assert_eq!(classed, None, "it is in the pool of heads");
    zone.check_buckets(0, &[]);
    let stats: Value =
        serde_json::from_str(&zone.cluster.ok(&["bucket", "stats", "--bucket", "plain"])).unwrap();
    assert_eq!(stats["usage"]["rgw.main"]["size"], wanted["bytes"], "{stats}");

    zone.gateway.kill();
    zone.gateway.start(&zone.cluster);
    let again: Value = serde_json::from_str(&zone.suite("check")).unwrap();
    assert_eq!(again, wanted);

    // Unreferenced data in a class is found and removed.
    let tail = zone.names("cold.data").swap_remove(0);
    let (bucket, _) = tail.split_once("__shadow_").unwrap();
    let id = stats["id"].as_str().unwrap();
    assert!(bucket.len() == id.len(), "{tail} {id}");
    let orphan = format!("{id}__shadow_COLD_{}_1", "0123456789abcdef".repeat(2));
    zone.cluster.ok(&["rados", "-p", "cold.data", "put", &orphan, "/etc/hostname"]);
    zone.check_buckets(1, &["--fix"]);
    zone.wait_objects("COLD", "cold.data", wanted["COLD"].as_u64().unwrap());
    zone.check_buckets(0, &[]);

    // A class with data keeps its pool, with and without gateways.
    let moved = ["--data-pool", "elsewhere"];
    zone.fails("zone", "modify", "COLD", &moved, "stop all gateways");
    zone.fails("zone", "rm", "COLD", &[], "stop all gateways");
    zone.fails("zonegroup", "rm", "COLD", &[], "remove it there first");
    zone.ok("zone", "modify", "COLD", &["--data-pool", "cold.data"]);
    zone.suite("delete");
    for (class, pool) in CLASSES {
        zone.wait_objects(class, pool, 0);
    }
    zone.check_buckets(0, &[]);
    let heads = zone.names("default.rgw.buckets.data");
    assert!(heads.is_empty(), "{heads:#?}");
}

#[test]
fn a_class_is_defined_given_a_pool_and_removed() {
    let mut zone = Zone::start();
    let pool = ["--data-pool", "cold.data"];
    zone.fails("zone", "add", "COLD", &pool, "storage class 'COLD' is not defined in zonegroup");
    zone.fails("zonegroup", "add", "a/b", &[], "a name has 1 to 32");
    let targets = zone.ok("zonegroup", "add", "COLD", &[]);
    assert_eq!(targets[0]["val"]["storage_classes"], serde_json::json!(["COLD", "STANDARD"]));
    zone.fails("zone", "add", "COLD", &[], "need to specify --data-pool");
    // Until something is written into it, its pool can be changed.
    zone.ok("zone", "add", "COLD", &["--data-pool", "first"]);
    let placement = zone.ok("zone", "modify", "COLD", &pool);
    assert_eq!(placement[0]["val"]["storage_classes"]["COLD"]["data_pool"], "cold.data");
    assert_eq!(
        zone.cluster.ok(&["zone", "placement", "ls"]),
        zone.cluster.ok(&["zone", "placement", "list"])
    );
    assert!(zone.cluster.ok(&["zonegroup", "get"]).contains("COLD"));
    zone.fails("zone", "rm", "STANDARD", &[], "can't be removed");

    let aws = |zone: &Zone, words: &str| {
        let out = Command::new("/usr/bin/aws")
            .args(["--endpoint-url", &zone.gateway.endpoint(), "s3api"])
            .args(words.split_whitespace())
            .env("AWS_ACCESS_KEY_ID", "AK")
            .env("AWS_SECRET_ACCESS_KEY", "SK")
            .env("AWS_DEFAULT_REGION", "default")
            .output()
            .unwrap();
        assert!(out.status.success(), "{words}: {out:?}");
    };
    aws(&zone, "create-bucket --bucket plain");
    aws(&zone, &format!("put-object --bucket plain --key k --storage-class COLD --body {SUITE}"));
    assert_eq!(zone.names("cold.data").len(), 1);
    assert!(!zone.cluster.ok(&["osd", "pool", "ls"]).contains("first"), "a pool was made that nothing is in");

    zone.gateway.kill();
    let gone = |cluster: &TestCluster| {
        let watchers = cluster.ok(&["rados", "-p", "default.rgw.control", "listwatchers", "notify.0"]);
        watchers.trim().is_empty()
    };
    zone.cluster.wait_for("the end of the gateway's watch", gone);
    zone.fails("zone", "rm", "COLD", &[], "data of objects in it is there");
    zone.fails("zone", "modify", "COLD", &["--data-pool", "elsewhere"], "data of objects in it is there");
    zone.gateway.start(&zone.cluster);
    zone.cluster.ok(&["bucket", "rm", "--bucket", "plain", "--purge-objects"]);
    zone.wait_objects("COLD", "cold.data", 0);
    zone.gateway.kill();
    zone.cluster.wait_for("the end of the gateway's watch", gone);
    zone.ok("zone", "rm", "COLD", &[]);
    let targets = zone.ok("zonegroup", "rm", "COLD", &[]);
    assert_eq!(targets[0]["val"]["storage_classes"], serde_json::json!(["STANDARD"]));

    // A watcher that does not understand the request: a gateway of an earlier release.
    let mut old = Command::new(nacre())
        .args(["rados", "-p", "default.rgw.control", "watch", "notify.0", "-c"])
        .arg(zone.cluster.conf())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    zone.cluster.wait_for("a watch", |cluster| !gone(cluster));
    zone.fails("zonegroup", "add", "COLD", &[], "a gateway of an earlier release runs");
    old.kill().unwrap();
    old.wait().unwrap();
}

#[test]
fn lifecycle_rules_move_objects_between_classes() {
    let mut zone = Zone::start_with("rgw_lc_debug_interval = 1");
    zone.add_classes();
    let [(_, cold), (_, ia)] = CLASSES;
    zone.python(TRANSITIONS, "write");
    // Data of STANDARD, of an object that moves between classes, and of one that stays.
    let tails = 1 + 3 + 2 + (2 + 1) + (2 + 1);
    zone.python(TRANSITIONS, "move COLD");
    zone.wait_objects("COLD", cold, tails);
    zone.check_buckets_of(&["plain"], 0, &[]);
    zone.python(TRANSITIONS, "move STANDARD_IA");
    zone.wait_objects("COLD", cold, 0);
    zone.wait_objects("STANDARD_IA", ia, tails);
    zone.gateway.kill();
    zone.gateway.start(&zone.cluster);
    zone.python(TRANSITIONS, "move STANDARD");
    zone.wait_objects("STANDARD_IA", ia, 0);
    zone.python(TRANSITIONS, "move COLD");

    zone.python(TRANSITIONS, "versions");
    zone.wait_objects("COLD", cold, tails + 1);
    zone.wait_objects("STANDARD_IA", ia, (2 + 1) + 2 + 1 + 1);
    zone.check_buckets(0, &[]);
    zone.python(TRANSITIONS, "delete");
    for (class, pool) in CLASSES {
        zone.wait_objects(class, pool, 0);
    }
    zone.check_buckets(0, &[]);
}

#[test]
fn a_transition_that_its_gateway_does_not_survive_leaves_nothing() {
    let options = "rgw_lc_debug_interval = 1\nrgw_pending_bucket_index_op_expiration = 1\nrgw_gateway_lease_duration = 5";
    let mut zone = Zone::start_with(options);
    zone.add_classes();
    zone.python(TRANSITIONS, "many");
    let count = |zone: &Zone| {
        let out = zone.cluster.run(&["rados", "-p", "cold.data", "ls"]);
        String::from_utf8_lossy(&out.stdout).lines().count() as u64
    };
    zone.cluster.wait_for("data in the class", |_| count(&zone) > 0);
    zone.gateway.kill();
    let written = count(&zone);
    // The next one can't continue for a while: the first one holds the lock on the bucket's lifecycle.
    zone.gateway.start(&zone.cluster);
    let moved: u64 = zone.python(TRANSITIONS, "stopped").trim().parse().unwrap();
    // 6 parts of 8 MiB each.
    assert!(written > 12 * moved, "nothing was on its way: {written} objects, {moved} moved");
    zone.wait_objects("COLD", "cold.data", 12 * moved);
    zone.check_buckets_of(&["many"], 0, &[]);
}
