//! Observability of a gateway: request ids, metrics, the access log, limits.

use crate::support::{Serve, free_port, nacre};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// The answer to a GET: head and body.
fn get(addr: &str, path: &str) -> String {
    let mut socket = TcpStream::connect(addr).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    write!(socket, "GET {path} HTTP/1.1\r\nHost: {addr}\r\nUser-Agent: it\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut text = String::new();
    socket.read_to_string(&mut text).unwrap();
    text
}

/// Polls until a file has a matching line. Returns it.
fn line_with(path: &Path, wanted: impl Fn(&str) -> bool) -> String {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        if let Some(line) = text.lines().find(|line| wanted(line)) {
            return line.to_owned();
        }
        assert!(Instant::now() < deadline, "no such line: {text}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn requests_are_named_counted_logged_and_limited() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    std::fs::create_dir_all(&data).unwrap();
    let log = folder.path().join("access.log");
    let (s3, listen) = (format!("127.0.0.1:{}", free_port()), format!("127.0.0.1:{}", free_port()));
    let metrics = free_port();
    let options = [
        "osd_pool_default_pg_num=8".to_owned(),
        format!("exporter_http_port={metrics}"),
        format!("rgw_ops_log_file_path={}", log.display()),
        "rgw_max_request_rate=40".to_owned(),
        "rgw_thread_pool_size=1".to_owned(),
        // Every request counts as slow.
        "rgw_op_complaint_time=0".to_owned(),
    ];
    let mut args = vec!["--osds", "1", "--listen", &listen, "--s3", &s3];
    args.extend(options.iter().flat_map(|option| ["-o", option.as_str()]));
    let (serve, _) = Serve::start(&data, &args);
    let threads = std::fs::read_dir(format!("/proc/{}/task", serve.pid())).unwrap();
    let names = threads.map(|thread| std::fs::read_to_string(thread.unwrap().path().join("comm")));
    assert_eq!(names.filter(|name| name.as_ref().is_ok_and(|name| name.trim() == "rgw")).count(), 1);
    let user = Command::new(nacre())
        .args(["user", "info", "--uid", "admin", "-c"])
        .arg(data.join("ceph.conf"))
        .output()
        .unwrap();
    let user: serde_json::Value = serde_json::from_slice(&user.stdout).unwrap();
    let aws = |args: &[&str]| {
        Command::new("/usr/bin/aws")
            .args(["--endpoint-url", &format!("http://{s3}")])
            .args(args)
            .current_dir(folder.path())
            .env("HOME", folder.path())
            .env("AWS_ACCESS_KEY_ID", user["keys"][0]["access_key"].as_str().unwrap())
            .env("AWS_SECRET_ACCESS_KEY", user["keys"][0]["secret_key"].as_str().unwrap())
            .env("AWS_DEFAULT_REGION", "us-east-1")
            .output()
            .unwrap()
    };
    let ok = |args: &[&str]| {
        let out = aws(args);
        assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    };
    ok(&["s3api", "create-bucket", "--bucket", "bkt"]);
    std::fs::write(folder.path().join("file"), [7; 5000]).unwrap();
    ok(&["s3api", "put-object", "--bucket", "bkt", "--key", "k", "--body", "file"]);
    ok(&["s3api", "get-object", "--bucket", "bkt", "--key", "k", "back"]);

    // An error has its id in header and body, and the log has it, too.
    let refused = get(&s3, "/bkt/none?acl");
    let id = refused.lines().find_map(|line| line.strip_prefix("x-amz-request-id: ")).unwrap().trim();
    assert!(
        refused.starts_with("HTTP/1.1 403") && refused.contains(&format!("<RequestId>{id}</RequestId>")),
        "{refused}"
    );
    let length = refused.lines().find_map(|line| line.strip_prefix("content-length: "));
    let body = refused.split_once("\r\n\r\n").unwrap().1;
    assert!(length.is_none_or(|length| length.trim() == body.len().to_string()), "{refused}");
    let line = line_with(&log, |line| line.contains(id));
    assert!(line.starts_with("admin bkt [") && line.contains(" 403 AccessDenied "), "{line}");
    assert!(
        line.contains(&format!(" 127.0.0.1 - {id} REST.GET."))
            && line.contains(" none \"GET /bkt/none?acl HTTP/1.1\" "),
        "{line}"
    );

    let line = line_with(&log, |line| line.contains("REST.PUT.OBJECT"));
    assert!(line.contains(" admin ") && line.contains(" k \"PUT /bkt/k HTTP/1.1\" 200 - - 5000 "), "{line}");
    assert!(line.contains("SigV4 - AuthHeader"), "{line}");
    let line = line_with(&log, |line| line.contains("REST.GET.OBJECT"));
    assert!(line.contains(" 200 - 5000 5000 "), "{line}");
    // The log is moved away: a new file is created.
    std::fs::rename(&log, folder.path().join("access.log.1")).unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    while !log.exists() {
        assert!(Instant::now() < deadline, "no new log");
        std::thread::sleep(Duration::from_millis(50));
    }

    let page = get(&format!("127.0.0.1:{metrics}"), "/metrics");
    let daemon = format!("ceph_daemon=\"rgw.{s3}\"");
    let value = |name: &str| -> f64 {
        let line = page.lines().find(|line| line.starts_with(&format!("{name}{{{daemon}")));
        line.unwrap_or_else(|| panic!("{name}: {page}")).rsplit(' ').next().unwrap().parse().unwrap()
    };
    assert_eq!((value("ceph_rgw_put"), value("ceph_rgw_put_b")), (1.0, 5000.0));
    assert_eq!((value("ceph_rgw_get"), value("ceph_rgw_get_b")), (1.0, 5000.0));
    assert!(value("ceph_rgw_req") >= 4.0 && value("ceph_rgw_failed_req") >= 1.0);
    assert!(page.contains(&format!(
        "ceph_rgw_op_latency_seconds_bucket{{{daemon},operation=\"PutObject\",le=\"+Inf\"}} 1\n"
    )));

    // Above the rate, requests are told to slow down; below it they are accepted again.
    let deadline = Instant::now() + Duration::from_secs(30);
    let slowed = loop {
        let answer = get(&s3, "/bkt/k");
        if answer.starts_with("HTTP/1.1 503") {
            break answer;
        }
        assert!(Instant::now() < deadline, "never told to slow down");
    };
    assert!(
        slowed.contains("<Code>SlowDown</Code>") && slowed.to_lowercase().contains("retry-after: 1"),
        "{slowed}"
    );
    let deadline = Instant::now() + Duration::from_secs(30);
    while get(&s3, "/bkt/k").starts_with("HTTP/1.1 503") {
        assert!(Instant::now() < deadline, "told to slow down for ever");
        std::thread::sleep(Duration::from_millis(100));
    }

    // A slow request is logged. Refused requests are not errors of the server.
    let told = folder.path().join("serve.err");
    line_with(&told, |line| line.contains("slow request") && line.contains("PutObject"));
    let text = std::fs::read_to_string(&told).unwrap();
    assert!(!text.contains("op returns error") && !text.contains("failed to prepare"), "{text}");
}
