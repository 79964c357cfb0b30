//! Resharding: a bucket's index moves while it is in use, even if the process is killed, and automatically.

use crate::s3::S3;
use crate::support::{TEST_TIMEOUT, nacre};
use serde_json::Value;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn json(s3: &S3, args: &[&str]) -> Value {
    serde_json::from_slice(&s3.nacre(args)).unwrap()
}

fn shards(s3: &S3, bucket: &str) -> u64 {
    json(s3, &["bucket", "stats", "--bucket", bucket])["num_shards"].as_u64().unwrap()
}

/// The shards that exist as RADOS objects.
fn shard_objects(s3: &S3) -> usize {
    String::from_utf8_lossy(&s3.nacre(&["rados", "-p", "default.rgw.buckets.index", "ls"])).lines().count()
}

#[test]
fn a_busy_bucket_moves_and_nothing_is_lost() {
    let s3 = S3::start_with(&["rgw_reshard_thread_interval=1", "rgw_reshard_bucket_lock_duration=2"]);
    let aws = |args: &[&str]| {
        s3.ok("/usr/bin/aws", &[&["--endpoint-url", s3.endpoint.as_str(), "s3api"], args].concat())
    };
    aws(&["create-bucket", "--bucket", "busy"]);
    let begun = aws(&["create-multipart-upload", "--bucket", "busy", "--key", "upload"]);
    let begun: Value = serde_json::from_slice(&begun.stdout).unwrap();
    let suite = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/s3/reshard.py");
    let stop = s3.path("stop");
    let work = Command::new("/usr/bin/python3")
        .args([suite, &s3.endpoint, &s3.access, &s3.secret])
        .arg(&stop)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    for wanted in ["23", "7", "40"] {
        let args =
            ["bucket", "reshard", "--bucket", "busy", "--num-shards", wanted, "--yes-i-really-mean-it"];
        s3.nacre(&args);
        assert_eq!(shards(&s3, "busy").to_string(), wanted);
        assert_eq!(shard_objects(&s3).to_string(), wanted, "shards that belong to nothing");
    }
    // Killed at several moments. A gateway completes the interrupted operation.
    for (delay, wanted) in [(30, "5"), (60, "19"), (100, "3"), (150, "29")] {
        let mut reshard = Command::new(nacre())
            .arg("-c")
            .arg(s3.conf())
            .args(["bucket", "reshard", "--bucket", "busy", "--num-shards", wanted, "--yes-i-really-mean-it"])
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(delay));
        reshard.kill().unwrap();
        reshard.wait().unwrap();
        // It may have been killed before it requested the resharding.
        if json(&s3, &["reshard", "list"]) == serde_json::json!([])
            && shards(&s3, "busy").to_string() != wanted
        {
            s3.nacre(&["reshard", "add", "--bucket", "busy", "--num-shards", wanted]);
        }
        let deadline = Instant::now() + TEST_TIMEOUT;
        while json(&s3, &["reshard", "list"]) != serde_json::json!([]) {
            assert!(Instant::now() < deadline, "never resharded");
        }
        assert_eq!(shards(&s3, "busy").to_string(), wanted);
        assert_eq!(shard_objects(&s3).to_string(), wanted, "shards that belong to nothing");
    }
    std::fs::write(&stop, "").unwrap();
    let out = work.wait_with_output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
    let count: u64 = String::from_utf8_lossy(&out.stdout).trim().parse().unwrap();
    s3.wait_finished("busy", count);
    let report = json(&s3, &["bucket", "check", "--bucket", "busy"]);
    assert_eq!(report["num_problems"], 0, "{report}");
    let uploads = aws(&["list-multipart-uploads", "--bucket", "busy"]);
    let uploads: Value = serde_json::from_slice(&uploads.stdout).unwrap();
    assert_eq!(uploads["Uploads"][0]["UploadId"], begun["UploadId"], "{uploads}");
}

#[test]
fn a_crowded_bucket_gets_more_shards_by_itself() {
    let options = [
        "rgw_override_bucket_index_max_shards=2",
        "rgw_max_objs_per_shard=20",
        "rgw_reshard_thread_interval=1",
    ];
    let s3 = S3::start_with(&options);
    let aws =
        |args: &[&str]| s3.ok("/usr/bin/aws", &[&["--endpoint-url", s3.endpoint.as_str()], args].concat());
    let folder = s3.path("many");
    std::fs::create_dir_all(&folder).unwrap();
    for n in 0..150 {
        std::fs::write(folder.join(n.to_string()), n.to_string()).unwrap();
    }
    aws(&["s3", "mb", "s3://crowded"]);
    assert_eq!(shards(&s3, "crowded"), 2);
    aws(&["s3", "sync", "--only-show-errors", folder.to_str().unwrap(), "s3://crowded"]);
    let deadline = Instant::now() + TEST_TIMEOUT;
    while shards(&s3, "crowded") < 8 {
        assert!(Instant::now() < deadline, "{} shards", shards(&s3, "crowded"));
    }
    s3.wait_finished("crowded", 150);
    aws(&["s3", "sync", "--only-show-errors", "s3://crowded", "back"]);
    s3.ok("diff", &["-r", folder.to_str().unwrap(), "back"]);
}

#[test]
fn closed_buckets_open_again_and_gateways_forget_in_time() {
    let s3 = S3::start_with(&["rgw_override_bucket_index_max_shards=2"]);
    let suite = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/s3/closures.py");
    let conf = s3.conf();
    let args = [suite, &s3.endpoint, &s3.access, &s3.secret, conf.to_str().unwrap(), nacre()];
    s3.ok("/usr/bin/python3", &args);
}
