//! Tests the administration of a gateway on a served cluster.

use crate::s3::S3;
use crate::support::{TEST_TIMEOUT, nacre};
use serde_json::Value;
use std::process::{Command, Output};
use std::time::Instant;

const OTHERS: [&str; 4] = ["--access-key", "OTHERSKEY", "--secret-key", "secret of the other"];

fn json(s3: &S3, args: &[&str]) -> Value {
    serde_json::from_slice(&s3.nacre(args)).unwrap()
}

#[test]
fn quotas_hold_users_and_buckets_back() {
    let options = ["rgw_bucket_quota_ttl=1", "rgw_user_quota_bucket_sync_interval=1"];
    let s3 = S3::start_with(&options);
    let user =
        json(&s3, &[&["user", "create", "--uid", "other", "--display-name", "Other"], &OTHERS[..]].concat());
    assert_eq!(user["user_quota"]["enabled"], false);
    assert_eq!(user["bucket_quota"]["max_size"], -1);
    let suite = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/s3/quota.py");
    let run = |part: &str| {
        s3.ok("/usr/bin/python3", &[suite, &s3.endpoint, OTHERS[1], OTHERS[3], part]);
    };
    run("unlimited");
    s3.wait_finished("full", 2);
    s3.nacre(&["quota", "set", "--quota-scope=bucket", "--uid", "other", "--max-objects", "4"]);
    // A limit that is not enabled has no effect.
    run("not_enabled");
    s3.nacre(&["quota", "enable", "--quota-scope=bucket", "--uid", "other"]);
    run("bucket_objects");
    // A bucket's own quota takes precedence.
    s3.nacre(&["quota", "set", "--bucket", "full", "--max-objects", "-1", "--max-size", "10M"]);
    s3.nacre(&["quota", "enable", "--quota-scope=bucket", "--bucket", "full"]);
    let stats = json(&s3, &["bucket", "stats", "--bucket", "full"]);
    let quota = &stats["bucket_quota"];
    assert_eq!((&quota["enabled"], &quota["max_size"]), (&true.into(), &(10 << 20).into()), "{stats}");
    run("bucket_size");
    s3.nacre(&["quota", "disable", "--quota-scope=bucket", "--bucket", "full"]);
    s3.nacre(&["quota", "disable", "--quota-scope=bucket", "--uid", "other"]);
    s3.nacre(&["quota", "set", "--quota-scope=user", "--uid", "other", "--max-size", "12M"]);
    s3.nacre(&["quota", "enable", "--quota-scope=user", "--uid", "other"]);
    let user = json(&s3, &["user", "info", "--uid", "other"]);
    assert_eq!(user["user_quota"]["max_size_kb"], 12 << 10, "{user}");
    run("user_size");
    let deadline = Instant::now() + TEST_TIMEOUT;
    loop {
        let stats = json(&s3, &["user", "stats", "--uid", "other", "--sync-stats"]);
        let bytes: u64 = ["full", "more"]
            .iter()
            .map(|bucket| {
                let stats = json(&s3, &["bucket", "stats", "--bucket", bucket]);
                stats["usage"]["rgw.main"]["size"].as_u64().unwrap_or(0)
            })
            .sum();
        if stats["stats"]["size"] == bytes && bytes > 0 {
            break;
        }
        assert!(Instant::now() < deadline, "{stats} {bytes}");
    }
}

#[test]
fn usage_is_counted_and_trimmed() {
    let options = ["rgw_enable_usage_log=true", "rgw_usage_log_tick_interval=1"];
    let s3 = S3::start_with(&options);
    let aws = |args: &[&str]| {
        s3.ok("/usr/bin/aws", &[&["--endpoint-url", s3.endpoint.as_str(), "s3api"], args].concat())
    };
    let file = s3.file("file", 5000);
    aws(&["create-bucket", "--bucket", "bkt"]);
    aws(&["put-object", "--bucket", "bkt", "--key", "k", "--body", &file]);
    aws(&["get-object", "--bucket", "bkt", "--key", "k", "back"]);
    aws(&["get-object", "--bucket", "bkt", "--key", "k", "back"]);
    let sum = |usage: &Value, category: &str| {
        let categories = usage["summary"][0]["categories"].as_array().cloned().unwrap_or_default();
        categories.into_iter().find(|found| found["category"] == category).unwrap_or_default()
    };
    let deadline = Instant::now() + TEST_TIMEOUT;
    let usage = loop {
        let usage = json(&s3, &["usage", "show", "--uid", "admin"]);
        if sum(&usage, "get_obj")["ops"] == 2 {
            break usage;
        }
        assert!(Instant::now() < deadline, "{usage}");
    };
    assert_eq!(sum(&usage, "get_obj")["bytes_sent"], 10_000, "{usage}");
    assert_eq!(sum(&usage, "put_obj")["successful_ops"], 1);
    assert!(sum(&usage, "put_obj")["bytes_received"].as_u64() >= Some(5000), "{usage}");
    assert_eq!(sum(&usage, "create_bucket")["ops"], 1);
    let hours = usage["entries"][0]["buckets"].as_array().unwrap();
    assert!(hours.iter().any(|hour| hour["bucket"] == "bkt" && hour["owner"] == "admin"), "{usage}");
    let none = json(&s3, &["usage", "show", "--uid", "admin", "--end-date", "2020-01-01"]);
    assert_eq!(none["entries"], Value::Array(vec![]), "{none}");
    let only_sums = json(&s3, &["usage", "show", "--show-log-entries=0"]);
    assert!(only_sums["entries"].is_null() && only_sums["summary"][0]["user"] == "admin");
    s3.nacre(&["usage", "trim", "--uid", "admin", "--end-date", "2020-01-01"]);
    assert_eq!(sum(&json(&s3, &["usage", "show", "--uid", "admin"]), "get_obj")["ops"], 2);
    s3.nacre(&["usage", "trim", "--uid", "admin"]);
    assert_eq!(json(&s3, &["usage", "show", "--uid", "admin"])["summary"], Value::Array(vec![]));
}

#[test]
fn an_access_key_that_is_given_to_several_users_concurrently_belongs_to_at_most_one() {
    let s3 = S3::start();
    let run = |args: &[&str]| -> Output {
        Command::new(nacre()).arg("-c").arg(s3.conf()).args(args).output().unwrap()
    };
    for round in 0..12 {
        let key = format!("SHAREDKEY{round}");
        let ids: Vec<String> = (0..4).map(|at| format!("user-{round}-{at}")).collect();
        // Half of the rounds add the key to users that exist.
        let is_added = round % 2 == 1;
        if is_added {
            for id in &ids {
                s3.nacre(&["user", "create", "--uid", id, "--display-name", id]);
            }
        }
        let give = |id: &str| {
            let keys = ["--uid", id, "--access-key", &key, "--secret-key", id];
            let command: &[&str] =
                if is_added { &["key", "create"] } else { &["user", "create", "--display-name", "x"] };
            run(&[command, &keys].concat())
        };
        let given: Vec<Output> = std::thread::scope(|scope| {
            let threads: Vec<_> = ids.iter().map(|id| scope.spawn(|| give(id))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let messages: Vec<_> = given.iter().map(|out| String::from_utf8_lossy(&out.stderr)).collect();
        let winners: Vec<&String> =
            ids.iter().zip(&given).filter(|(_, out)| out.status.success()).map(|(id, _)| id).collect();
        assert!(winners.len() <= 1, "{winners:?} have {key}: {messages:?}");
        for id in &ids {
            let info = run(&["user", "info", "--uid", id]);
            assert!(info.status.success() || !is_added, "{}", String::from_utf8_lossy(&info.stderr));
            let has_key = String::from_utf8_lossy(&info.stdout).contains(&key);
            assert_eq!(has_key, winners.contains(&id), "{key} of {id}: {messages:?}");
        }
        // A key that no user got can be given afterwards.
        if winners.is_empty() {
            s3.nacre(&["key", "create", "--uid", "admin", "--access-key", &key, "--secret-key", "late"]);
        }
    }
}

#[test]
fn buckets_users_and_objects_are_administered() {
    let s3 = S3::start();
    let aws = |args: &[&str]| {
        s3.ok("/usr/bin/aws", &[&["--endpoint-url", s3.endpoint.as_str(), "s3api"], args].concat())
    };
    let large = s3.file("large", 6 << 20);
    aws(&["create-bucket", "--bucket", "bkt"]);
    aws(&["put-object", "--bucket", "bkt", "--key", "a/b", "--body", &large, "--metadata", "colour=green"]);
    s3.wait_finished("bkt", 1);
    let stat = json(&s3, &["object", "stat", "--bucket", "bkt", "--object", "a/b"]);
    assert_eq!((&stat["name"], &stat["size"]), (&"a/b".into(), &(6 << 20).into()));
    assert_eq!(stat["attrs"]["metadata"]["colour"], "green", "{stat}");
    assert_eq!(stat["policy"]["owner"]["id"], "admin");
    assert_eq!(stat["manifest"]["tails"][0]["objects"], 2, "{stat}");

    // Another user gets the bucket.
    s3.nacre(&[&["user", "create", "--uid", "other", "--display-name", "Other"], &OTHERS[..]].concat());
    s3.nacre(&["bucket", "link", "--bucket", "bkt", "--uid", "other"]);
    assert_eq!(json(&s3, &["bucket", "ls", "--uid", "other"]), serde_json::json!(["bkt"]));
    assert_eq!(json(&s3, &["bucket", "ls", "--uid", "admin"]), serde_json::json!([]));
    let stats = json(&s3, &["bucket", "stats", "--bucket", "bkt"]);
    assert_eq!((&stats["owner"], &stats["versioning"]), (&"other".into(), &"off".into()), "{stats}");
    assert_eq!(stats["usage"]["rgw.main"]["size_kb"], 6 << 10);
    let suite = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/s3/linked.py");
    s3.ok("/usr/bin/python3", &[suite, &s3.endpoint, &s3.access, &s3.secret, OTHERS[1], OTHERS[3]]);
    assert_eq!(json(&s3, &["metadata", "get", "bucket:bkt"])["data"]["linked"], "true");
    s3.nacre(&["bucket", "unlink", "--bucket", "bkt", "--uid", "other"]);
    assert_eq!(json(&s3, &["bucket", "ls", "--uid", "other"]), serde_json::json!([]));
    assert_eq!(json(&s3, &["metadata", "get", "bucket:bkt"])["data"]["linked"], "false");
    s3.nacre(&["bucket", "link", "--bucket", "bkt", "--uid", "other"]);

    // Users are modified.
    let caps = json(&s3, &["caps", "add", "--uid", "other", "--caps", "users=read, write;buckets=read"]);
    assert_eq!(caps["caps"][1], serde_json::json!({ "type": "users", "perm": "*" }), "{caps}");
    let caps = json(&s3, &["caps", "rm", "--uid", "other", "--caps", "users=write"]);
    assert_eq!(caps["caps"][1]["perm"], "read");
    let args = [
        "user",
        "modify",
        "--uid",
        "other",
        "--display-name",
        "Someone",
        "--email",
        "a@b.c",
        "--max-buckets",
        "2",
    ];
    let user = json(&s3, &[&args[..], &["--system", "--suspended=1"]].concat());
    assert_eq!((&user["display_name"], &user["email"]), (&"Someone".into(), &"a@b.c".into()));
    assert_eq!(
        (&user["max_buckets"], &user["system"], &user["suspended"]),
        (&2.into(), &true.into(), &1.into())
    );
    let user = json(&s3, &["user", "modify", "--uid", "other", "--system=0", "--suspended=0", "--admin"]);
    assert!(user["system"].is_null() && user["admin"] == true && user["suspended"] == 0, "{user}");
    assert_eq!(json(&s3, &["metadata", "list", "user"]), serde_json::json!(["admin", "other"]));
    let kept = json(&s3, &["metadata", "get", "user:other"]);
    assert_eq!((&kept["key"], &kept["data"]["user_id"]), (&"user:other".into(), &"other".into()), "{kept}");
    s3.nacre(&["user", "rm", "--uid", "other", "--purge-data"]);
    assert_eq!(json(&s3, &["bucket", "ls"]), serde_json::json!([]));
    assert_eq!(json(&s3, &["user", "ls"]), serde_json::json!(["admin"]));
}

#[test]
fn the_admin_api_answers_as_radosgws() {
    let s3 = S3::start();
    let aws = |args: &[&str]| {
        s3.ok("/usr/bin/aws", &[&["--endpoint-url", s3.endpoint.as_str(), "s3api"], args].concat())
    };
    let file = s3.file("file", 5000);
    aws(&["create-bucket", "--bucket", "bkt"]);
    aws(&["put-object", "--bucket", "bkt", "--key", "k", "--body", &file]);
    s3.wait_finished("bkt", 1);
    let suite = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/s3/admin_api.py");
    let caps = "users=*;buckets=*;usage=*;metadata=*;info=*";
    s3.nacre(&["caps", "add", "--uid", "admin", "--caps", caps]);
    s3.ok("/usr/bin/python3", &[suite, &s3.endpoint, &s3.access, &s3.secret]);
    // A check of a bucket, which the suite requests, does not affect the gateway: it still watches for changes of others.
    let watchers = s3.nacre(&["rados", "-p", "default.rgw.control", "listwatchers", "notify.0"]);
    let watchers = String::from_utf8_lossy(&watchers);
    assert!(watchers.contains("client."), "{watchers}");
}
