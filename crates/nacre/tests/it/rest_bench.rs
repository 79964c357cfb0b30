//! Runs `rest-bench` by its name on served clusters.

use crate::s3::S3;
use crate::s3_edges;
use crate::support::{TEST_TIMEOUT, nacre};
use serde_json::{Value, json};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Instant;

/// The parameters with which `rest-bench` accesses a gateway.
pub(crate) struct Bench<'a> {
    /// The folder of the link through which the program is called.
    folder: &'a Path,
    host: &'a str,
    keys: (&'a str, &'a str),
}

impl<'a> Bench<'a> {
    fn of(s3: &'a S3) -> Bench<'a> {
        let host = s3.endpoint.strip_prefix("http://").unwrap();
        Bench::new(s3.folder(), host, (&s3.access, &s3.secret))
    }

    pub(crate) fn new(folder: &'a Path, host: &'a str, keys: (&'a str, &'a str)) -> Bench<'a> {
        let link = folder.join("rest-bench");
        if !link.exists() {
            symlink(nacre(), link).unwrap();
        }
        Bench { folder, host, keys }
    }

    fn command(&self, words: &str) -> Command {
        let mut command = Command::new(self.folder.join("rest-bench"));
        command.args(["--api-host", self.host, "--access-key", self.keys.0, "--secret", self.keys.1]);
        command.args(words.split_whitespace()).env_remove("CEPH_ARGS").current_dir(self.folder);
        command
    }

    pub(crate) fn run(&self, words: &str) -> Output {
        self.command(words).output().unwrap()
    }

    /// Requires success. Returns the output.
    pub(crate) fn ok(&self, words: &str) -> String {
        let out = self.run(words);
        assert!(out.status.success(), "{words}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    }

    /// Requires a failure. Returns the error output.
    fn fails(&self, words: &str) -> String {
        let out = self.run(words);
        assert_eq!(out.status.code(), Some(1), "{words}: {}", String::from_utf8_lossy(&out.stdout));
        String::from_utf8(out.stderr).unwrap()
    }
}

/// Waits until the bucket has no objects, and its statistics are empty.
fn wait_empty(s3: &S3, bucket: &str) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    loop {
        let stats = s3.nacre(&["bucket", "stats", "--bucket", bucket]);
        let stats: Value = serde_json::from_slice(&stats).unwrap();
        if stats["usage"] == json!({}) {
            return;
        }
        assert!(Instant::now() < deadline, "objects stayed: {stats}");
    }
}

#[test]
fn rest_bench_writes_reads_verifies_and_cleans_up() {
    let s3 = S3::start();
    let bench = Bench::of(&s3);
    let none = bench.fails("--bucket load seq");
    assert!(
        none.starts_with("Must write data before running a read benchmark!\nerror during benchmark: (2) "),
        "{none}"
    );
    assert_eq!(bench.ok("--bucket load cleanup"), "");

    // A number of objects, in the table of `rados bench`.
    let write = bench.ok("--bucket load -t 4 -b 5000 --seconds 60 --max-objects 33 --no-cleanup write");
    let head = "Maintaining 4 concurrent writes of 5000 bytes to objects of size 5000 for up to 60 seconds or 33 objects\n\
                Object prefix: benchmark_data_";
    assert!(write.starts_with(head), "{write}");
    let heading = "  sec Cur ops   started  finished  avg MB/s  cur MB/s last lat(s)  avg lat(s)\n";
    assert!(write.contains(heading), "{write}");
    for line in ["Total writes made:      33", "Write size:             5000", "Object size:            5000"]
    {
        assert!(write.lines().any(|have| have == line), "{line}: {write}");
    }
    for label in ["Bandwidth (MB/sec):", "Average IOPS:", "Stddev Latency(s):", "Max latency(s):"] {
        assert!(write.contains(label), "{label}: {write}");
    }
    // The objects, and the record of the run.
    s3.wait_finished("load", 34);
    let read: Value = serde_json::from_str(&bench.ok("--bucket load -t 3 --format json seq")).unwrap();
    assert_eq!((&read["total_reads_made"], &read["read_size"]), (&json!("33"), &json!("5000")));
    bench.ok("--bucket load -t 4 --seconds 1 rand");

    // Damage to the data is detected.
    let prefix = write.lines().nth(1).unwrap().strip_prefix("Object prefix: ").unwrap().to_owned();
    let endpoint = ["--endpoint-url", &s3.endpoint];
    let object = format!("s3://load/{prefix}_object7");
    let cp = |from: &str, to: &str| {
        s3.ok("/usr/bin/aws", &[&endpoint[..], &["s3", "cp", "--only-show-errors", from, to]].concat());
    };
    cp(&object, "object");
    let mut data = std::fs::read(s3.path("object")).unwrap();
    assert!(data.starts_with(b"I'm the                7th op!zzz") && data.len() == 5000);
    for damaged in [[&data[..], b"z"].concat(), data[1..].to_vec()] {
        std::fs::write(s3.path("object"), damaged).unwrap();
        cp("object", &object);
        let told = bench.fails("--bucket load -t 1 seq");
        assert!(told.contains("_object7 is not correct!"), "{told}");
    }
    data[4000] ^= 1;
    std::fs::write(s3.path("object"), data).unwrap();
    cp("object", &object);
    assert!(bench.fails("--bucket load -t 1 seq").contains("_object7 is not correct!"));

    assert_eq!(bench.ok("--bucket load cleanup"), "Removed 33 objects\n");
    assert_eq!(bench.ok("--bucket load cleanup"), "");
    wait_empty(&s3, "load");

    // With a seed, the contents depend only on that seed. A run with another name is found by it.
    let named = "--bucket load -t 2 --run-name mine --seed 7";
    bench.ok(&format!("{named} -b 70000 --max-objects 5 --no-cleanup write"));
    bench.ok(&format!("{named} seq"));
    assert!(bench.fails("--bucket load --run-name mine seq").contains("is not correct!"));
    assert!(bench.fails("--bucket load seq").starts_with("Must write data"));
    // The objects of a run that ended before it wrote its record are found by their name.
    assert_eq!(bench.ok("--bucket load cleanup --prefix benchmark_data"), "Removed 5 objects\n");
    // The record with another name remains.
    s3.wait_finished("load", 1);
    assert!(
        bench.fails("--bucket load cleanup --prefix x").contains("it must begin with \"benchmark_data\"")
    );

    // For a given time, in the bucket that it creates, with the written objects removed.
    let out = bench.ok("-t 4 -b 4K --seconds 1 write");
    assert!(out.contains("\nCleaning up (deleting benchmark objects)\nRemoved "), "{out}");
    let made =
        out.lines().find_map(|line| line.strip_prefix("Total writes made:")).unwrap().trim().to_owned();
    assert!(made != "0" && out.contains(&format!("\nRemoved {made} objects\n")), "{out}");
    wait_empty(&s3, "rest-bench-bucket");
}

#[test]
fn rest_bench_tells_what_fails() {
    let s3 = S3::start();
    let bench = Bench::of(&s3);
    let wrong = Bench { keys: (&s3.access, "wrong"), ..Bench::of(&s3) };
    let told = wrong.fails("write");
    assert!(told.starts_with("ERROR: failed to create bucket: ") && told.contains("403"), "{told}");
    assert!(told.ends_with("failed initializing benchmark\n"), "{told}");
    let told = Bench { host: "127.0.0.1:1", ..Bench::of(&s3) }.fails("write");
    assert!(told.contains("can't connect to 127.0.0.1:1"), "{told}");
    let told = bench.fails("--protocol https write");
    assert!(told.contains("TLS handshake with "), "{told}");
    assert!(bench.fails("--protocol ftp write").starts_with("bad protocol\nusage: rest-bench "));

    // The keys in the environment are used if none are given.
    let out = Command::new(s3.folder().join("rest-bench"))
        .args(["--api-host", bench.host, "-t", "1", "-b", "1", "--max-objects", "1", "write"])
        .env("AWS_ACCESS_KEY_ID", &s3.access)
        .env("AWS_SECRET_ACCESS_KEY", &s3.secret)
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));

    // A quota that is reached ends the run. The written objects are counted and removed.
    s3.nacre(&[
        "quota",
        "set",
        "--quota-scope",
        "bucket",
        "--bucket",
        "rest-bench-bucket",
        "--max-objects",
        "20",
    ]);
    s3.nacre(&["quota", "enable", "--quota-scope", "bucket", "--bucket", "rest-bench-bucket"]);
    let out = bench.run("-t 2 -b 100 --seconds 60 write");
    let (text, told) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert_eq!(out.status.code(), Some(1));
    assert!(told.contains("QuotaExceeded") && told.contains("error during benchmark: (13) "), "{told}");
    assert!(text.contains("Total writes made:") && text.contains("\nRemoved "), "{text}");
    wait_empty(&s3, "rest-bench-bucket");
}

#[test]
fn rest_bench_speaks_tls_and_to_buckets_hosts() {
    let (s3, tls) = s3_edges::start();
    let bench = Bench { host: &tls, ..Bench::of(&s3) };
    let words = "--protocol https -t 4 -b 5M --max-objects 5 write";
    // The system does not trust the issuer of the certificate.
    assert!(bench.fails(words).contains("certificate"));
    let ok = |words: &str| {
        let out = bench.command(words).env("SSL_CERT_FILE", s3.folder().join("ca.crt")).output().unwrap();
        assert!(out.status.success(), "{words}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    };
    assert!(ok(&format!("{words} --no-cleanup")).contains("Total writes made:      5\n"));
    assert!(ok("--protocol https seq").contains("Total reads made:     5\n"));

    let s3 = S3::start_with(&["rgw_dns_name=localhost"]);
    let host = format!("localhost:{}", s3.endpoint.rsplit_once(':').unwrap().1);
    let bench = Bench { host: &host, ..Bench::of(&s3) };
    let words = "--uri-style vhost --bucket by-host";
    assert!(
        bench
            .ok(&format!("{words} -t 4 -b 4K --max-objects 5 --no-cleanup write"))
            .contains("made:      5\n")
    );
    assert!(bench.ok("--bucket by-host seq").contains("Total reads made:     5\n"), "by path");
    assert!(bench.ok(&format!("{words} seq")).contains("Total reads made:     5\n"));
    assert_eq!(
        bench.ok("--uri_style=vhost --bucket=by-host cleanup --prefix benchmark_data"),
        "Removed 5 objects\n"
    );
}
