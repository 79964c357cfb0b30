//! `nacre bucket check`: finds what was damaged on purpose, mends it, and harms nothing.

use crate::s3::S3;
use crate::support::nacre;
use serde_json::Value;
use std::process::Command;

/// The report of a check, and whether it ended with success.
fn check(s3: &S3, args: &[&str]) -> (Value, bool) {
    let out =
        Command::new(nacre()).arg("-c").arg(s3.conf()).args(["bucket", "check"]).args(args).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    let report = serde_json::from_str(&text);
    (
        report.unwrap_or_else(|e| panic!("{e}: {text}{}", String::from_utf8_lossy(&out.stderr))),
        out.status.success(),
    )
}

/// What is wrong: `kind name`.
fn problems(report: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = report["problems"].as_array().unwrap();
    all.iter().map(|problem| format!("{} {}", text(&problem["type"]), text(&problem["name"]))).collect()
}

fn rados(s3: &S3, pool: &str, args: &[&str]) -> String {
    let pool = format!("default.rgw.buckets.{pool}");
    String::from_utf8_lossy(&s3.nacre(&[&["rados", "-p", pool.as_str()], args].concat())).into_owned()
}

/// The shard that has an entry.
fn shard_with(s3: &S3, entry: &str) -> String {
    let shards = rados(s3, "index", &["ls"]);
    let has = |shard: &&str| rados(s3, "index", &["listomapkeys", shard]).lines().any(|key| key == entry);
    shards.lines().find(has).unwrap_or_else(|| panic!("no shard has {entry}")).to_owned()
}

#[test]
fn a_check_finds_and_mends_what_is_wrong() {
    let s3 = S3::start();
    let aws = |args: &[&str]| {
        s3.ok("/usr/bin/aws", &[&["--endpoint-url", s3.endpoint.as_str(), "s3api"], args].concat())
    };
    let small = s3.file("small", 3000);
    let large = s3.file("large", 6 << 20);
    aws(&["create-bucket", "--bucket", "bkt"]);
    for (key, file) in [("a", &small), ("b", &small), ("c", &large), ("_d", &large), ("e", &small)] {
        aws(&["put-object", "--bucket", "bkt", "--key", key, "--body", file]);
    }
    let sound = |objects: u64| {
        let (report, success) = check(&s3, &["--bucket", "bkt"]);
        assert!(success, "{report}");
        assert_eq!((&report["num_problems"], &report["bucket"]), (&0.into(), &"bkt".into()));
        let result = &report["check_result"];
        assert_eq!(result["existing_header"], result["calculated_header"]);
        assert_eq!(result["existing_header"]["usage"]["rgw.main"]["num_objects"], objects);
    };
    // What was just answered is finished soon.
    s3.wait_finished("bkt", 5);
    sound(5);
    let id = {
        let stats: Value =
            serde_json::from_slice(&s3.nacre(&["bucket", "stats", "--bucket", "bkt"])).unwrap();
        stats["id"].as_str().unwrap().to_owned()
    };

    rados(&s3, "index", &["rmomapkey", &shard_with(&s3, "oa"), "oa"]);
    rados(&s3, "data", &["rm", &format!("{id}_b")]);
    rados(&s3, "index", &["setomapval", &shard_with(&s3, "oe"), "oe", "garbage"]);
    let run = format!("{id}__shadow_ffffffffffffffffffffffffffffffff");
    rados(&s3, "data", &["put", &format!("{run}_1"), &small]);
    let (report, success) = check(&s3, &["--bucket", "bkt"]);
    let found = problems(&report);
    for wanted in ["wrong_entry a", "wrong_entry b", "corrupt_entry e", &format!("orphan {run}")] {
        assert!(found.contains(&wanted.to_owned()), "{wanted}: {report}");
    }
    assert!(
        !success && found.iter().filter(|problem| !problem.starts_with("wrong_sums")).count() == 4,
        "{report}"
    );
    // Looking changes nothing.
    assert_eq!(problems(&check(&s3, &["--bucket", "bkt"]).0), found);

    let (report, success) = check(&s3, &["--bucket", "bkt", "--fix"]);
    assert!(success && report["fixed"] == true, "{report}");
    sound(4);
    assert!(check(&s3, &[]).1, "all buckets at once");
    s3.nacre(&["gc", "process", "--include-all"]);
    let left = rados(&s3, "data", &["ls"]);
    assert!(!left.contains(&run), "{left}");
    for (key, file) in [("a", &small), ("c", &large), ("_d", &large), ("e", &small)] {
        aws(&["get-object", "--bucket", "bkt", "--key", key, "back"]);
        s3.ok("cmp", &["back", file]);
    }

    // An upload that lost its entry, and an entry that lost its upload.
    let begun = aws(&["create-multipart-upload", "--bucket", "bkt", "--key", "f"]);
    let begun: Value = serde_json::from_slice(&begun.stdout).unwrap();
    let upload = begun["UploadId"].as_str().unwrap();
    let part =
        ["--bucket", "bkt", "--key", "f", "--upload-id", upload, "--part-number", "1", "--body", &large];
    aws(&[&["upload-part"], &part[..]].concat());
    sound(4);
    rados(&s3, "data", &["rm", &format!("{id}__multipart_f.{upload}")]);
    let (report, _) = check(&s3, &["--bucket", "bkt"]);
    assert!(problems(&report).iter().any(|problem| problem.starts_with("orphan ")), "{report}");
    check(&s3, &["--bucket", "bkt", "--fix"]);
    s3.nacre(&["bucket", "rm", "--bucket", "bkt", "--purge-objects"]);
    s3.nacre(&["gc", "process", "--include-all"]);
    assert_eq!(rados(&s3, "data", &["ls"]) + &rados(&s3, "index", &["ls"]), "");
}

#[test]
fn an_upload_that_is_completed_twice_keeps_its_parts() {
    let s3 = S3::start();
    let aws = |args: &[&str]| {
        s3.ok("/usr/bin/aws", &[&["--endpoint-url", s3.endpoint.as_str(), "s3api"], args].concat())
    };
    let large = s3.file("large", 6 << 20);
    aws(&["create-bucket", "--bucket", "bkt"]);
    let begun = aws(&["create-multipart-upload", "--bucket", "bkt", "--key", "k"]);
    let begun: Value = serde_json::from_slice(&begun.stdout).unwrap();
    let upload = begun["UploadId"].as_str().unwrap();
    let of = ["--bucket", "bkt", "--key", "k", "--upload-id", upload];
    let part = aws(&[&["upload-part", "--part-number", "1", "--body", &large], &of[..]].concat());
    let part: Value = serde_json::from_slice(&part.stdout).unwrap();
    let stats: Value = serde_json::from_slice(&s3.nacre(&["bucket", "stats", "--bucket", "bkt"])).unwrap();
    let name = format!("{}__multipart_k.{upload}", stats["id"].as_str().unwrap());
    // As a gateway leaves it that dies before it has cleared up.
    rados(&s3, "data", &["cp", &name, "saved"]);
    let parts = serde_json::json!({ "Parts": [{ "PartNumber": 1, "ETag": part["ETag"] }] }).to_string();
    let complete = || aws(&[&["complete-multipart-upload", "--multipart-upload", &parts], &of[..]].concat());
    complete();
    rados(&s3, "data", &["cp", "saved", &name]);
    complete();
    // The answer of the second may have been lost too.
    complete();
    s3.wait_finished("bkt", 1);
    s3.nacre(&["gc", "process", "--include-all"]);
    aws(&["get-object", "--bucket", "bkt", "--key", "k", "back"]);
    s3.ok("cmp", &["back", &large]);
}
