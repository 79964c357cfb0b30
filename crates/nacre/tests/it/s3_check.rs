//! `nacre bucket check`: finds intended damage, repairs it, and does no harm.

use crate::s3::S3;
use crate::support::nacre;
use bytes::Bytes;
use nacre_client::IoCtx;
use nacre_common::config::ConfigBuilder;
use nacre_types::encoding::{Versioned, encode};
use nacre_types::ids::EntityName;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// The report of a check, and whether it succeeded.
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

/// The problems: `kind name`.
fn problems(report: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = report["problems"].as_array().unwrap();
    all.iter().map(|problem| format!("{} {}", text(&problem["type"]), text(&problem["name"]))).collect()
}

fn rados(s3: &S3, pool: &str, args: &[&str]) -> String {
    let pool = format!("default.rgw.buckets.{pool}");
    String::from_utf8_lossy(&s3.nacre(&[&["rados", "-p", pool.as_str()], args].concat())).into_owned()
}

fn open(s3: &S3, pool: &str) -> IoCtx {
    let config = ConfigBuilder::new(EntityName::client("admin")).conf(s3.conf()).build().unwrap();
    let cluster = nacre_client::native::connect(&config).wait().unwrap();
    nacre_client::block_on(cluster.open_pool(&format!("default.rgw.buckets.{pool}"))).unwrap()
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
    // The index does not know any more whether it has tags.
    aws(&["put-object-acl", "--bucket", "bkt", "--key", "b", "--acl", "private"]);
    let sound = |objects: u64| {
        let (report, success) = check(&s3, &["--bucket", "bkt"]);
        assert!(success, "{report}");
        assert_eq!((&report["num_problems"], &report["bucket"]), (&0.into(), &"bkt".into()));
        let result = &report["check_result"];
        assert_eq!(result["existing_header"], result["calculated_header"]);
        assert_eq!(result["existing_header"]["usage"]["rgw.main"]["num_objects"], objects);
    };
    // Acknowledged changes are finished soon.
    s3.wait_finished("bkt", 5);
    sound(5);
    let id = {
        let stats: Value =
            serde_json::from_slice(&s3.nacre(&["bucket", "stats", "--bucket", "bkt"])).unwrap();
        stats["id"].as_str().unwrap().to_owned()
    };

    rados(&s3, "index", &["rmomapkey", &shard_with(&s3, "Oa"), "Oa"]);
    rados(&s3, "data", &["rm", &format!("{id}_b")]);
    rados(&s3, "index", &["setomapval", &shard_with(&s3, "Oe"), "Oe", "garbage"]);
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
    // A check without repair changes nothing.
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
    // The state that a gateway leaves if it fails before it has cleaned up.
    rados(&s3, "data", &["cp", &name, "saved"]);
    let parts = serde_json::json!({ "Parts": [{ "PartNumber": 1, "ETag": part["ETag"] }] }).to_string();
    let complete = || aws(&[&["complete-multipart-upload", "--multipart-upload", &parts], &of[..]].concat());
    complete();
    rados(&s3, "data", &["cp", "saved", &name]);
    complete();
    // The answer to the second one may have been lost, too.
    complete();
    s3.wait_finished("bkt", 1);
    s3.nacre(&["gc", "process", "--include-all"]);
    aws(&["get-object", "--bucket", "bkt", "--key", "k", "back"]);
    s3.ok("cmp", &["back", &large]);
}

/// The index's record of a change, from docs/format/index.md; here without an event.
#[derive(Serialize, Deserialize)]
struct Pending {
    begun_ns: u64,
    session: String,
    tails: Option<(String, u64)>,
    replaced: Vec<(String, u64)>,
    parts: Vec<(String, u64)>,
    upload: Option<String>,
    slot: bool,
    event: Option<()>,
}

impl Versioned for Pending {
    const NAME: &'static str = "pending index entry";
    const VERSION: u8 = 2;
    const COMPAT: u8 = 2;
}

#[test]
fn a_key_with_very_many_changes_pending_is_listed() {
    let s3 = S3::start_with(&["rgw_override_bucket_index_max_shards=1"]);
    let aws = |args: &[&str]| {
        s3.ok("/usr/bin/aws", &[&["--endpoint-url", s3.endpoint.as_str(), "s3api"], args].concat())
    };
    let small = s3.file("small", 10);
    aws(&["create-bucket", "--bucket", "bkt"]);
    for key in ["a/1", "k/1", "k/2", "z"] {
        aws(&["put-object", "--bucket", "bkt", "--key", key, "--body", &small]);
    }
    s3.wait_finished("bkt", 4);
    let shard = rados(&s3, "index", &["ls"]).trim().to_owned();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let pending = Pending {
        begun_ns: now.as_nanos() as u64,
        session: "another gateway's".into(),
        tails: None,
        replaced: Vec::new(),
        parts: Vec::new(),
        upload: None,
        slot: false,
        event: None,
    };
    let pending = Bytes::from(encode(&pending));
    let pool = open(&s3, "index");
    // Several times more than one answer of an OSD contains: for a key that exists, and for one that does not.
    for key in ["k/1", "none"] {
        let entry = |tag: u32| (Bytes::from(format!("P{key}\u{1}{tag:032x}")), pending.clone());
        nacre_client::block_on(pool.omap_set(&shard, (0..2500).map(entry).collect())).unwrap();
    }
    let listed = |args: &[&str]| -> Vec<String> {
        let out = aws(&[&["list-objects-v2", "--bucket", "bkt"], args].concat());
        let out: Value = serde_json::from_slice(&out.stdout).unwrap();
        let names = |list: &str, name: &str| -> Vec<String> {
            let all = out[list].as_array().cloned().unwrap_or_default();
            all.iter().map(|entry| entry[name].as_str().unwrap().to_owned()).collect()
        };
        [names("CommonPrefixes", "Prefix"), names("Contents", "Key")].concat()
    };
    assert_eq!(listed(&[]), ["a/1", "k/1", "k/2", "z"]);
    assert_eq!(listed(&["--page-size", "1"]), ["a/1", "k/1", "k/2", "z"]);
    assert_eq!(listed(&["--prefix", "k"]), ["k/1", "k/2"]);
    assert_eq!(listed(&["--delimiter", "/"]), ["a/", "k/", "z"]);
    assert_eq!(listed(&["--start-after", "k/1"]), ["k/2", "z"]);
}

#[test]
fn marked_uploads_take_nothing_and_go_with_their_bucket() {
    let s3 = S3::start_with(&["rgw_override_bucket_index_max_shards=1"]);
    let aws = |args: &[&str]| {
        s3.ok("/usr/bin/aws", &[&["--endpoint-url", s3.endpoint.as_str(), "s3api"], args].concat())
    };
    let large = s3.file("large", 6 << 20);
    aws(&["create-bucket", "--bucket", "bkt"]);
    let begun = aws(&["create-multipart-upload", "--bucket", "bkt", "--key", "k"]);
    let begun: Value = serde_json::from_slice(&begun.stdout).unwrap();
    let id = begun["UploadId"].as_str().unwrap();
    let of = ["--bucket", "bkt", "--key", "k", "--upload-id", id];
    aws(&[&["upload-part", "--part-number", "1", "--body", &large], &of[..]].concat());
    let data = rados(&s3, "data", &["ls"]);
    let name = data.lines().find(|name| name.ends_with(id)).unwrap();
    // The state for a moment while it is completed or aborted.
    rados(&s3, "data", &["setomapval", name, "c", &"f".repeat(32)]);
    let part = [&["upload-part", "--part-number", "2", "--body", &large], &of[..]].concat();
    let refused = Command::new("/usr/bin/aws")
        .args(["--endpoint-url", &s3.endpoint, "--region", "us-east-1", "s3api"])
        .args(part)
        .env("AWS_ACCESS_KEY_ID", &s3.access)
        .env("AWS_SECRET_ACCESS_KEY", &s3.secret)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && text.contains("NoSuchUpload"), "{text}");
    assert_eq!(
        rados(&s3, "data", &["listomapkeys", name]),
        "c\np00001\n",
        "the record is in a namespace that is no longer read"
    );
    assert_eq!(rados(&s3, "data", &["ls"]), data);

    // Remains of uploads are removed with their bucket.
    aws(&["create-multipart-upload", "--bucket", "bkt", "--key", "l"]);
    aws(&["delete-bucket", "--bucket", "bkt"]);
    s3.nacre(&["gc", "process", "--include-all"]);
    assert_eq!(rados(&s3, "data", &["ls"]) + &rados(&s3, "index", &["ls"]), "");
}
