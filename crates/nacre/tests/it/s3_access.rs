//! Tests access control of a gateway on a served cluster.

use crate::s3::S3;

#[test]
fn users_may_what_they_are_allowed() {
    let s3 = S3::start();
    let suite = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/s3/access.py");
    let keys = ["--access-key", "OTHERSKEY", "--secret-key", "secret of the other"];
    s3.nacre(&[&["user", "create", "--uid", "other", "--display-name", "The other one"], &keys[..]].concat());
    s3.ok("/usr/bin/python3", &[suite, &s3.endpoint, &s3.access, &s3.secret, keys[1], keys[3]]);
}

#[test]
fn iam_and_sts_give_and_limit_rights() {
    let s3 = S3::start();
    let suite = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/s3/iam.py");
    let keys = ["--access-key", "OTHERSKEY", "--secret-key", "secret of the other"];
    s3.nacre(&[&["user", "create", "--uid", "other", "--display-name", "The other one"], &keys[..]].concat());
    s3.nacre(&["caps", "add", "--uid", "admin", "--caps", "users=*;user-policy=*;roles=*"]);
    s3.ok("/usr/bin/python3", &[suite, &s3.endpoint, &s3.access, &s3.secret, keys[1], keys[3]]);
}

#[test]
fn strangers_get_nothing() {
    let s3 = S3::start();
    let suite = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/s3/strangers.py");
    let keys = ["--access-key", "OTHERSKEY", "--secret-key", "secret of the other"];
    s3.nacre(&[&["user", "create", "--uid", "other", "--display-name", "The other one"], &keys[..]].concat());
    s3.ok("/usr/bin/python3", &[suite, &s3.endpoint, &s3.access, &s3.secret, keys[1], keys[3]]);
    // A damaged record is an error of the server, and the details are only in the log.
    let damaged = s3.path("damaged");
    std::fs::write(&damaged, b"secret detail").unwrap();
    let put = ["rados", "-p", "default.rgw.meta", "-N", "root", "put", "damaged"];
    s3.nacre(&[&put[..], &[damaged.to_str().unwrap()]].concat());
    let out = s3.ok("curl", &["-s", "-w", "%{http_code}", &format!("{}/damaged/k", s3.endpoint)]);
    let out = String::from_utf8(out.stdout).unwrap();
    assert!(out.ends_with("500") && out.contains("<Code>InternalError</Code>"), "{out}");
    assert!(out.contains("We encountered an internal error.") && !out.contains("secret"), "{out}");
    s3.nacre(&["rados", "-p", "default.rgw.meta", "-N", "root", "rm", "damaged"]);
    // Objects that a suspended user made public are not public any more.
    let public = format!("{}/theirs", s3.endpoint);
    let status = || {
        let out = s3.ok("curl", &["-s", "-o", "/dev/null", "-w", "%{http_code}", &public]);
        String::from_utf8(out.stdout).unwrap()
    };
    assert_eq!(status(), "200");
    let copies = || {
        let copy = "import boto3, sys; boto3.client('s3', endpoint_url=sys.argv[1]).copy_object(Bucket='mine', Key='copy', \
                    CopySource='theirs/copied')";
        let out = std::process::Command::new("/usr/bin/python3")
            .args(["-c", copy, &s3.endpoint])
            .env("AWS_ACCESS_KEY_ID", &s3.access)
            .env("AWS_SECRET_ACCESS_KEY", &s3.secret)
            .env("AWS_DEFAULT_REGION", "us-east-1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success() || said.contains("UserSuspended"), "{said}");
        out.status.success()
    };
    assert!(copies());
    s3.nacre(&["user", "suspend", "--uid", "other"]);
    assert_eq!(status(), "403");
    assert!(!copies());
    s3.nacre(&["user", "enable", "--uid", "other"]);
    assert_eq!(status(), "200");
}
