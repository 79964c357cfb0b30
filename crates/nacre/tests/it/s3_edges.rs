//! Access to a gateway by TLS and by buckets' host names, its limits, and its end.

use crate::s3::S3;
use crate::support::{free_port, nacre};
use std::path::Path;
use std::process::Command;

/// Creates a CA, and with it the certificate `NAME.crt` with the key `NAME.key`.
pub(crate) fn generate_certificate(folder: &Path, name: &str) {
    let openssl = |args: &[&str]| {
        let out = Command::new("openssl").args(args).current_dir(folder).output().unwrap();
        assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    };
    let new = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
    if !folder.join("ca.crt").exists() {
        let ca = ["-x509", "-days", "2", "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.crt"];
        openssl(&[&new[..], &ca].concat());
    }
    let names = "subjectAltName=DNS:s3.localhost,DNS:*.s3.localhost,DNS:*.web.localhost,IP:127.0.0.1";
    std::fs::write(folder.join("names"), names).unwrap();
    let (key, request, certificate) = (format!("{name}.key"), format!("{name}.csr"), format!("{name}.crt"));
    openssl(&[&new[..], &["-subj", "/CN=s3", "-keyout", &key, "-out", &request]].concat());
    let signing = ["x509", "-req", "-days", "2", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial"];
    openssl(&[&signing[..], &["-extfile", "names", "-in", &request, "-out", &certificate]].concat());
}

/// A served cluster with TLS and names. Also returns its address for TLS.
pub(crate) fn start() -> (S3, String) {
    let folder = tempfile::tempdir().unwrap();
    for name in ["first", "second", "third"] {
        generate_certificate(folder.path(), name);
    }
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    for kind in ["crt", "key"] {
        std::fs::copy(path(&format!("first.{kind}")), path(&format!("tls.{kind}"))).unwrap();
    }
    let tls = format!("127.0.0.1:{}", free_port());
    let (certificate, key) = (path("tls.crt"), path("tls.key"));
    let more = [
        &["--s3-tls", &tls, "--s3-tls-cert", &certificate, "--s3-tls-key", &key][..],
        &["-o", "rgw_dns_name=s3.example.com,s3.localhost", "-o", "rgw_dns_s3website_name=web.localhost"],
    ];
    let s3 = S3::start_in(folder, &more.concat());
    (s3, tls)
}

/// Runs one of the suites in Python.
fn run(s3: &S3, tls: &str, name: &str) {
    let suite = format!("{}/tests/it/s3/{name}", env!("CARGO_MANIFEST_DIR"));
    let folder = s3.folder().to_str().unwrap();
    let pid = s3.serve.pid().to_string();
    s3.ok("/usr/bin/python3", &[&suite, &s3.endpoint, tls, &s3.access, &s3.secret, folder, &pid, nacre()]);
}

#[test]
fn requests_have_limits_and_ends_are_orderly() {
    let (s3, tls) = start();
    run(&s3, &tls, "limits.py");
    run(&s3, &tls, "starvation.py");
}

#[test]
fn requests_that_deceive_are_refused() {
    let (s3, tls) = start();
    run(&s3, &tls, "abuse.py");
}

#[test]
fn gateways_are_reached_by_tls_and_by_buckets_hosts() {
    let (s3, tls) = start();
    run(&s3, &tls, "edges.py");
    let (url, ca) = (format!("https://{tls}"), s3.folder().join("ca.crt"));
    let ca = ca.to_str().unwrap();
    let aws = |args: &[&str]| {
        s3.ok("/usr/bin/aws", &[&["--endpoint-url", &url, "--ca-bundle", ca][..], args].concat())
    };
    let file = s3.file("large", 20_000_000);
    aws(&["s3", "mb", "s3://by-aws"]);
    aws(&["s3", "cp", "--only-show-errors", &file, "s3://by-aws/large"]);
    aws(&["s3", "cp", "--only-show-errors", "s3://by-aws/large", "back"]);
    s3.ok("cmp", &[&file, "back"]);
    let curl = s3.ok("curl", &["--silent", "--fail", "--cacert", ca, &format!("{url}/healthz")]);
    assert_eq!(String::from_utf8_lossy(&curl.stdout), "ok\n");
}
