//! Watches and notifies over real processes: primaries killed, the map authority restarted; and the verbs of `rados`
//! for watches and locks.

use crate::failures::open;
use crate::support::{Daemon, TEST_TIMEOUT, TestCluster, nacre};
use nacre_client::{Error, IoCtx, Notification, WatchHandler};
use nacre_types::errno::Errno;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

struct Watcher {
    io: IoCtx,
    lost: AtomicU32,
}

impl WatchHandler for Watcher {
    fn notified(&self, notification: Notification) {
        let Notification { cookie, notify_id, payload, .. } = notification;
        self.io.notify_ack("watched", notify_id, cookie, payload);
    }

    fn lost(&self, _cookie: u64, _error: Error) {
        self.lost.fetch_add(1, Ordering::SeqCst);
    }
}

fn conf() -> &'static str {
    "[global]\nosd_heartbeat_interval = 1\nosd_heartbeat_grace = 4\nmon_osd_down_out_interval = 600\n"
}

/// The primary of the object's PG.
fn primary(cluster: &TestCluster, object: &str) -> usize {
    let text = cluster.ok(&["ceph", "osd", "map", "data", object, "--format", "json"]);
    let map: serde_json::Value = serde_json::from_str(&text).unwrap();
    map["acting_primary"].as_u64().unwrap() as usize
}

#[test]
fn watchers_hear_every_notify_while_primaries_are_killed() {
    let mut cluster = TestCluster::start_with(3, "bluestore", conf());
    cluster.create_pool("data", 8, 3, 2);
    cluster.wait_healthy();
    let watchers: Vec<_> =
        (0..3).map(|_| Arc::new(Watcher { io: open(&cluster, "data"), lost: AtomicU32::new(0) })).collect();
    let notifier = open(&cluster, "data");
    notifier.write_full("watched", "x").wait().unwrap();
    for watcher in &watchers {
        watcher.io.watch("watched", None, watcher.clone()).1.wait().unwrap();
    }
    for round in 0..3 {
        let victim = primary(&cluster, "watched");
        match round {
            // The dead primary's connections break at once.
            0 => cluster.kill(Daemon::Osd(victim)),
            1 => {
                cluster.kill(Daemon::Osd(victim));
                cluster.kill(Daemon::Mon);
                cluster.spawn(Daemon::Mon);
            }
            _ => cluster.terminate(Daemon::Osd(victim)),
        }
        let payload = format!("round {round}");
        let outcome = notifier.notify("watched", payload.clone(), Some(TEST_TIMEOUT)).wait().unwrap();
        assert!(!outcome.timed_out, "{round}: {outcome:?}");
        assert_eq!((outcome.reply.acks.len(), outcome.reply.missed.len()), (3, 0), "{round}");
        assert!(outcome.reply.acks.iter().all(|(_, _, answer)| *answer == payload));
        cluster.spawn(Daemon::Osd(victim));
        cluster.wait_healthy();
    }
    assert_eq!(notifier.list_watchers("watched").wait().unwrap().len(), 3);
    for watcher in &watchers {
        assert_eq!(watcher.lost.load(Ordering::SeqCst), 0);
    }
}

#[test]
fn the_programs_verbs_for_watches_and_locks_work() {
    let cluster = TestCluster::start_with(1, "memstore", "[global]\nmon_allow_pool_size_one = true");
    cluster.create_pool("data", 8, 1, 1);
    let rados = |words: &[&str]| {
        let output = cluster.run(&[&["rados", "-p", "data"], words].concat());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
    };
    let io = open(&cluster, "data");
    assert_eq!(
        rados(&["watch", "o"]),
        (1, String::new(), "error calling watch: -2\nerror 2: (2) No such file or directory\n".into())
    );
    io.write_full("o", "x").wait().unwrap();
    let mut watching = Command::new(nacre())
        .args(["rados", "-p", "data", "watch", "o", "-c"])
        .arg(cluster.conf())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut heard = BufReader::new(watching.stdout.take().unwrap());
    let mut line = || {
        let mut text = String::new();
        heard.read_line(&mut text).unwrap();
        text
    };
    assert_eq!(line(), "press enter to exit...\n");
    let (code, listed, _) = rados(&["listwatchers", "o"]);
    assert!(
        code == 0 && listed.starts_with("watcher=127.0.0.1:0/") && listed.ends_with("cookie=1\n"),
        "{listed}"
    );
    let (code, told, errors) = rados(&["notify", "o", "hello"]);
    assert_eq!((code, errors.as_str()), (0, ""));
    assert!(
        told.starts_with("reply client.") && told.contains(" cookie 1 : 9 bytes\n00000000  05 00 00 00"),
        "{told}"
    );
    assert!(line().starts_with("NOTIFY cookie 1 notify_id "));
    assert!(line().starts_with("00000000  05 00 00 00 68 65 6c 6c"));
    watching.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(watching.wait().unwrap().success());
    assert_eq!(rados(&["listwatchers", "o"]), (0, String::new(), String::new()));

    let quiet = (0, String::new(), String::new());
    assert_eq!(rados(&["lock", "list", "o"]).1, r#"{"objname":"o","locks":[]}"#);
    assert_eq!(rados(&["lock", "get", "o", "l", "--lock-cookie", "c", "--lock-description", "why"]), quiet);
    let busy =
        "ERROR: failed locking: (16) Device or resource busy\nerror 16: (16) Device or resource busy\n";
    assert_eq!(rados(&["lock", "get", "o", "l"]), (1, String::new(), busy.into()));
    assert_eq!(rados(&["lock", "list", "o"]).1, r#"{"objname":"o","locks":[{"name":"l"}]}"#);
    let info: serde_json::Value = serde_json::from_str(&rados(&["lock", "info", "o", "l"]).1).unwrap();
    assert_eq!((&info["name"], &info["type"], &info["tag"]), (&"l".into(), &"exclusive".into(), &"".into()));
    let locker = &info["lockers"][0];
    assert_eq!(
        (&locker["cookie"], &locker["description"], &locker["expiration"]),
        (&"c".into(), &"why".into(), &"0.000000".into())
    );
    let holder = locker["name"].as_str().unwrap();
    assert_eq!(rados(&["lock", "break", "o", "l", "nobody"]).0, 1);
    assert_eq!(rados(&["lock", "break", "o", "l", holder, "--lock-cookie", "c"]), quiet);
    assert_eq!(
        rados(&[
            "lock",
            "get",
            "o",
            "l",
            "--lock-type",
            "shared",
            "--lock-tag",
            "t",
            "--lock-duration",
            "3600"
        ]),
        quiet
    );
    let info: serde_json::Value = serde_json::from_str(&rados(&["lock", "info", "o", "l"]).1).unwrap();
    assert_eq!((&info["type"], &info["tag"]), (&"shared".into(), &"t".into()));
    assert!(info["lockers"][0]["expiration"].as_str().unwrap().starts_with("20"), "{info}");
    assert_eq!(rados(&["mapext", "o"]), (0, "0\t1\n".into(), String::new()));
    assert_eq!(
        io.lock_exclusive("o", "l", "", "", Duration::ZERO, 0).wait().unwrap_err().errno(),
        Errno::EBUSY
    );
}
