//! Server-side encryption: stored data differs from sent data, and damaged data is not served.

use crate::s3::S3;
use crate::support::nacre;
use std::process::Command;

#[test]
fn one_secret_counts_whoever_makes_one() {
    // The name from earlier releases is used if it exists.
    for kept in ["", "rgw/crypt/default_encryption_key"] {
        let s3 = S3::start();
        let suite = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/s3/one_secret.py");
        let conf = s3.conf();
        let args = [suite, &s3.endpoint, &s3.access, &s3.secret, conf.to_str().unwrap(), nacre(), kept];
        s3.ok("/usr/bin/python3", &args);
    }
}

#[test]
fn what_is_stored_is_not_what_was_sent() {
    let s3 = S3::start();
    let suite = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/s3/encryption.py");
    s3.ok("/usr/bin/python3", &[suite, &s3.endpoint, &s3.access, &s3.secret]);
    let pool = ["rados", "-p", "default.rgw.buckets.data"];
    let rados = |args: &[&str]| s3.nacre(&[&pool[..], args].concat());
    let names = String::from_utf8(rados(&["ls"])).unwrap();
    let mut searched = 0;
    for name in names.lines().filter(|name| !name.ends_with("_plain")) {
        let data = rados(&["get", name, "-"]);
        searched += data.len();
        let mark = b"must not be found";
        assert!(!data.windows(mark.len()).any(|window| window == mark), "{name} has plain text");
    }
    assert!(searched > 50 << 20, "{searched} bytes");
    // One bit of the last object is flipped.
    let head = names.lines().find(|name| name.ends_with("_damaged")).unwrap();
    let tag = |name: &str| name.rsplit_once('_').map(|(run, _)| run.to_owned());
    let own = head.split('_').next().unwrap();
    let tails = names.lines().filter(|name| name.starts_with(own) && name.contains("__shadow_"));
    let of_last = tails.filter_map(tag).max().unwrap();
    let tail = format!("{of_last}_0");
    let mut data = rados(&["get", &tail, "-"]);
    data[100_000] ^= 1;
    let file = s3.path("changed");
    std::fs::write(&file, &data).unwrap();
    rados(&["put", &tail, file.to_str().unwrap()]);
    let out = Command::new("/usr/bin/aws")
        .args([
            "--endpoint-url",
            &s3.endpoint,
            "s3api",
            "get-object",
            "--bucket",
            "secret",
            "--key",
            "damaged",
            "back",
        ])
        .current_dir(s3.path(""))
        .env("HOME", s3.path(""))
        .env("AWS_ACCESS_KEY_ID", &s3.access)
        .env("AWS_SECRET_ACCESS_KEY", &s3.secret)
        .env("AWS_DEFAULT_REGION", "us-east-1")
        .env("AWS_MAX_ATTEMPTS", "1")
        .output()
        .unwrap();
    assert!(!out.status.success(), "{head}: what was damaged was served");
}
