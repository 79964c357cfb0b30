//! Real failures: processes killed, a disk wiped, the map authority restarted, under a load that verifies every byte.

use crate::support::{Daemon, TEST_TIMEOUT, TestCluster, free_port, nacre};
use bytes::Bytes;
use nacre_client::{Cluster, IoCtx};
use nacre_common::auth::Key;
use nacre_common::config::ConfigBuilder;
use nacre_types::ids::EntityName;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A client of the cluster under test.
pub(crate) fn connect(cluster: &TestCluster) -> Cluster {
    let config = ConfigBuilder::new(EntityName::client("admin")).conf(cluster.conf()).build().unwrap();
    nacre_client::native::connect(&config).wait().unwrap()
}

pub(crate) fn open(cluster: &TestCluster, pool: &str) -> IoCtx {
    nacre_client::block_on(connect(cluster).open_pool(pool)).unwrap()
}

/// The contents of object `name` after its `round`-th write: recognisable, with a length that depends on the round.
fn contents(name: &str, round: u64) -> Bytes {
    let line = format!("{name} round {round}\n");
    let length = 1 + (round as usize * 7919 + name.len() * 31) % 20_000;
    line.into_bytes().into_iter().cycle().take(length.max(32)).collect::<Vec<_>>().into()
}

/// Clients that write, overwrite, append, read back and verify until they are stopped.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
    clients: Vec<JoinHandle<BTreeMap<String, Bytes>>>,
    pool: String,
}

impl Load {
    pub(crate) fn start(cluster: &TestCluster, pool: &str, prefix: &'static str, clients: usize) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let acknowledged = Arc::new(AtomicU64::new(0));
        let clients = (0..clients)
            .map(|client| {
                let (io, stop, acknowledged) = (open(cluster, pool), stop.clone(), acknowledged.clone());
                std::thread::spawn(move || {
                    run_client(&format!("{prefix}-{client}"), &io, &stop, &acknowledged)
                })
            })
            .collect();
        Load { stop, acknowledged, clients, pool: pool.to_owned() }
    }

    /// Waits until that many more writes are acknowledged.
    pub(crate) fn expect_progress(&self, writes: u64, cluster: &TestCluster) {
        let from = self.acknowledged.load(Ordering::SeqCst);
        cluster.wait_for("progress of clients' writes", |_| {
            self.acknowledged.load(Ordering::SeqCst) >= from + writes
        });
    }

    /// Stops the clients and verifies all acknowledged data through a new client.
    pub(crate) fn finish(self, cluster: &TestCluster) -> u64 {
        self.stop.store(true, Ordering::SeqCst);
        let written: Vec<_> = self.clients.into_iter().map(|client| client.join().unwrap()).collect();
        let io = open(cluster, &self.pool);
        let mut count = 0;
        for (name, expected) in written.iter().flatten() {
            let found = io.read(name, 0, 0).wait().unwrap_or_else(|e| panic!("{name}: {e}"));
            assert!(
                found == *expected,
                "{name}: {} bytes read, {} acknowledged",
                found.len(),
                expected.len()
            );
            count += 1;
        }
        count
    }
}

fn run_client(
    client: &str,
    io: &IoCtx,
    stop: &AtomicBool,
    acknowledged: &AtomicU64,
) -> BTreeMap<String, Bytes> {
    let mut held: BTreeMap<String, Bytes> = BTreeMap::new();
    let mut round = 0;
    while !stop.load(Ordering::SeqCst) {
        round += 1;
        let name = format!("{client}-object-{}", round % 23);
        let began = Instant::now();
        let data = contents(&name, round);
        let now = if round % 5 == 0 {
            io.append(&name, data.clone()).wait().unwrap();
            [held.get(&name).cloned().unwrap_or_default(), data].concat().into()
        } else {
            io.write_full(&name, data.clone()).wait().unwrap();
            data
        };
        held.insert(name.clone(), now);
        acknowledged.fetch_add(1, Ordering::SeqCst);
        assert!(began.elapsed() < TEST_TIMEOUT, "a write took {:?}", began.elapsed());
        let other = format!("{client}-object-{}", (round * 13) % 23);
        if let Some(expected) = held.get(&other) {
            let found = io.read(&other, 0, 0).wait().unwrap();
            assert!(found == *expected, "{other}: {} bytes read, {} written", found.len(), expected.len());
        }
    }
    held
}

pub(crate) fn conf() -> &'static str {
    // Failures are detected in seconds, so that tests need not wait for the defaults, which are for real networks.
    "[global]\nosd_heartbeat_interval = 1\nosd_heartbeat_grace = 4\nmon_osd_down_out_interval = 600\n"
}

#[test]
fn io_goes_on_while_osds_die_a_disk_is_wiped_and_the_mon_restarts() {
    let mut cluster = TestCluster::start_with(4, "bluestore", conf());
    cluster.create_pool("data", 16, 3, 2);
    cluster.wait_healthy();
    let load = Load::start(&cluster, "data", "client", 3);
    load.expect_progress(50, &cluster);

    cluster.kill(Daemon::Osd(0));
    load.expect_progress(50, &cluster);
    cluster.spawn(Daemon::Osd(0));
    load.expect_progress(20, &cluster);
    cluster.wait_healthy();

    cluster.kill(Daemon::Osd(1));
    cluster.wipe(1);
    load.expect_progress(50, &cluster);
    cluster.spawn(Daemon::Osd(1));
    load.expect_progress(20, &cluster);
    cluster.wait_healthy();

    cluster.kill(Daemon::Mon);
    load.expect_progress(20, &cluster);
    cluster.spawn(Daemon::Mon);
    load.expect_progress(20, &cluster);

    cluster.terminate(Daemon::Osd(2));
    load.expect_progress(50, &cluster);
    cluster.spawn(Daemon::Osd(2));
    cluster.wait_healthy();
    load.expect_progress(20, &cluster);
    assert!(load.finish(&cluster) >= 60);
    cluster.wait_healthy();
}

/// Clients that continuously append small records to shared objects.
struct Appends {
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<u64>>,
}

impl Appends {
    const CLIENTS: usize = 6;
    const OBJECTS: u64 = 40;

    fn start(cluster: &TestCluster, pool: &str) -> Appends {
        let stop = Arc::new(AtomicBool::new(false));
        let append = |client: usize| {
            let (io, stop) = (open(cluster, pool), stop.clone());
            std::thread::spawn(move || {
                let mut count = 0;
                while !stop.load(Ordering::SeqCst) {
                    let object = format!("appended-{}", count % Appends::OBJECTS);
                    io.append(&object, Bytes::from(format!("{client} {count:07}\n"))).wait().unwrap();
                    count += 1;
                }
                count
            })
        };
        let clients = (0..Appends::CLIENTS).map(append).collect();
        Appends { stop, clients }
    }

    /// Stops the clients and verifies that every record exists once, in order for each client. Returns their number.
    fn finish(self, cluster: &TestCluster, pool: &str) -> u64 {
        self.stop.store(true, Ordering::SeqCst);
        let counts: Vec<u64> = self.clients.into_iter().map(|client| client.join().unwrap()).collect();
        let io = open(cluster, pool);
        for object in 0..Appends::OBJECTS {
            let found = io.read(&format!("appended-{object}"), 0, 0).wait().unwrap();
            let found = String::from_utf8(found.to_vec()).unwrap();
            for (client, count) in counts.iter().enumerate() {
                let prefix = format!("{client} ");
                let records = found.lines().filter_map(|line| line.strip_prefix(&prefix));
                let records: Vec<u64> = records.map(|record| record.parse().unwrap()).collect();
                let expected: Vec<u64> = (object..*count).step_by(Appends::OBJECTS as usize).collect();
                assert!(
                    records == expected,
                    "client {client}, object {object}: {records:?}, not {expected:?}"
                );
            }
        }
        counts.iter().sum()
    }
}

#[test]
fn an_osd_that_starts_again_at_once_is_filled_while_clients_write() {
    let mut cluster = TestCluster::start_with(4, "memstore", conf());
    cluster.create_pool("data", 16, 3, 2);
    cluster.wait_healthy();
    let appends = Appends::start(&cluster, "data");
    for osd in 0..3 {
        std::thread::sleep(Duration::from_secs(2));
        cluster.kill(Daemon::Osd(osd));
        cluster.spawn(Daemon::Osd(osd));
        // The earlier health must not be used.
        std::thread::sleep(Duration::from_secs(5));
        cluster.wait_healthy();
    }
    assert!(appends.finish(&cluster, "data") > 1000);
}

#[test]
fn restarting_all_osds_at_once_loses_nothing() {
    let mut cluster = TestCluster::start_with(3, "bluestore", conf());
    cluster.create_pool("data", 16, 3, 2);
    cluster.wait_healthy();
    for (orderly, prefix) in [(true, "term"), (false, "kill")] {
        let load = Load::start(&cluster, "data", prefix, 2);
        load.expect_progress(40, &cluster);
        for osd in 0..3 {
            if orderly { cluster.terminate(Daemon::Osd(osd)) } else { cluster.kill(Daemon::Osd(osd)) }
        }
        for osd in 0..3 {
            cluster.spawn(Daemon::Osd(osd));
        }
        load.expect_progress(40, &cluster);
        load.finish(&cluster);
        cluster.wait_healthy();
    }
}

#[test]
fn size_two_with_min_size_one_survives_one_death() {
    let mut cluster = TestCluster::start_with(2, "bluestore", conf());
    cluster.create_pool("data", 8, 2, 1);
    cluster.wait_healthy();
    let load = Load::start(&cluster, "data", "client", 2);
    load.expect_progress(30, &cluster);
    cluster.kill(Daemon::Osd(0));
    load.expect_progress(30, &cluster);
    cluster.spawn(Daemon::Osd(0));
    load.expect_progress(10, &cluster);
    cluster.wait_healthy();
    load.finish(&cluster);
}

#[test]
fn an_osd_whose_disk_hangs_ends_and_the_others_go_on() {
    let conf = format!("{}osd_op_thread_suicide_timeout = 5\n", conf());
    let mut cluster = TestCluster::start_with(3, "bluestore", &conf);
    cluster.create_pool("data", 16, 3, 2);
    cluster.wait_healthy();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/failures/hang.c");
    let (library, hang) = (cluster.folder().join("hang.so"), cluster.folder().join("hang"));
    let compiled = Command::new("clang").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).status();
    assert!(compiled.unwrap().success());
    cluster.terminate(Daemon::Osd(1));
    cluster.spawn_with(Daemon::Osd(1), &[("LD_PRELOAD", &library), ("HANG", &hang)]);
    cluster.wait_healthy();
    let load = Load::start(&cluster, "data", "hang", 4);
    load.expect_progress(100, &cluster);

    fs::write(&hang, "").unwrap();
    let status = cluster.wait_ended(Daemon::Osd(1));
    assert_eq!(status.signal(), Some(6), "{status}: {}", cluster.log_of(Daemon::Osd(1)));
    assert!(cluster.log_of(Daemon::Osd(1)).contains("hangs for longer than osd_op_thread_suicide_timeout"));
    load.expect_progress(100, &cluster);
    cluster.spawn(Daemon::Osd(1));
    cluster.wait_healthy();
    load.finish(&cluster);
}

#[test]
fn a_full_store_refuses_writes_and_still_deletes() {
    let mut cluster =
        TestCluster::start_with_options(3, "bluestore", &["-o", "bluestore_block_size=268435456"], conf());
    cluster.create_pool("data", 8, 3, 2);
    cluster.wait_healthy();
    // A benchmark that fills the store prints its results and frees the space.
    let bench = cluster.run(&["rados", "-p", "data", "bench", "100", "write", "-b", "1M", "-t", "4"]);
    let (said, failed) = (String::from_utf8_lossy(&bench.stdout), String::from_utf8_lossy(&bench.stderr));
    assert!(!bench.status.success() && failed.contains("No space left on device"), "{said}{failed}");
    for wanted in ["Total writes made:", "Average Latency(s):", "Removed "] {
        assert!(said.contains(wanted), "{wanted}: {said}{failed}");
    }
    assert_eq!(cluster.ok(&["rados", "-p", "data", "ls"]), "");
    cluster.wait_healthy();
    let io = open(&cluster, "data").with_full_try();
    let block = Bytes::from(vec![7u8; 1 << 20]);
    // Each OSD learns from the next heartbeats of its peers that they have space again; 32 objects reach every PG.
    let mut stored = 32;
    for at in 0..stored {
        let write = |_: &TestCluster| io.write_full(&format!("fill-{at}"), block.clone()).wait().is_ok();
        cluster.wait_for("room for a write", write);
    }
    let is_full = |c: &TestCluster| {
        String::from_utf8_lossy(&c.run(&["ceph", "health", "detail"]).stdout).contains("OSD_FULL")
    };
    let began = Instant::now();
    let refusal = loop {
        match io.write_full(&format!("fill-{stored}"), block.clone()).wait() {
            Ok(()) => stored += 1,
            Err(error) if is_full(&cluster) => break error,
            // A primary uses the space that members reported with their last heartbeats. They may have freed more since.
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
        assert!(stored < 400, "a store of 256 MiB took {stored} MiB");
        assert!(began.elapsed() < TEST_TIMEOUT, "never full: {stored} MiB");
    };
    assert_eq!(refusal.errno(), nacre_types::errno::Errno::ENOSPC);
    assert!(stored > 50, "full after {stored} MiB");
    for at in 0..stored {
        assert_eq!(io.read(&format!("fill-{at}"), 0, 0).wait().unwrap(), block, "fill-{at} is damaged");
    }
    for at in 0..stored {
        io.remove(&format!("fill-{at}")).wait().unwrap();
    }
    cluster.wait_healthy();
    // The members report their space to each other with every heartbeat.
    cluster.wait_for("room for a write", |_| io.write_full("afterwards", block.clone()).wait().is_ok());
    cluster.kill(Daemon::Osd(0));
    cluster.spawn(Daemon::Osd(0));
    cluster.wait_healthy();
    assert_eq!(io.read("afterwards", 0, 0).wait().unwrap(), block);
}

/// Runs `serve` in `folder`, which must fail. Returns its error output.
fn refused_serve(folder: &Path, args: &[&str]) -> String {
    let limits = if args.contains(&"--s3") { &[][..] } else { &["--s3", "none"][..] };
    let out = Command::new(nacre())
        .args(["serve", "--data", "data", "-o", "exporter_http_port=0"])
        .args(args)
        .args(limits)
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(!out.status.success(), "serve {args:?} works: {}", String::from_utf8_lossy(&out.stdout));
    String::from_utf8_lossy(&out.stderr).into_owned()
}

#[test]
fn first_errors_say_what_is_wrong_and_what_to_do() {
    let home = tempfile::Builder::new().prefix("nacre-first-").tempdir().unwrap();
    let folder = home.path();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let free = format!("127.0.0.1:{}", free_port());
    let silent = format!("127.0.0.1:{}", free_port());
    // There is no cluster: it prints that after 3 s, and keeps trying.
    let waits = Command::new(nacre())
        .args([
            "status",
            "-m",
            &silent,
            "--client_mount_timeout",
            "5",
            "--key",
            &Key::generate().unwrap().to_base64(),
        ])
        .current_dir(folder)
        .env_remove("CEPH_CONF")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    for (args, said) in [
        (&["--listen", &taken][..], "is in use by another program: choose another address with --listen"),
        (&["--listen", &free, "--osds", "9000000"], "free some space, or choose another folder with --data"),
        (
            &["--listen", &free, "--osds", "1", "--s3", &taken],
            "is in use by another program: choose another address with --s3",
        ),
    ] {
        let errors = refused_serve(folder, args);
        assert!(errors.contains(said), "{args:?}: {errors}");
    }
    assert!(!folder.join("data/ceph.conf").exists(), "a failed start made a cluster");
    let made = Command::new(nacre())
        .args(["serve", "--data", "data", "--mkfs-only", "--osds", "1", "--listen", &free])
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    // Data that another release wrote.
    let block = folder.join("data/osd/0/block");
    let file = File::options().read(true).write(true).open(&block).unwrap();
    let mut label = vec![0; 4096];
    file.read_exact_at(&mut label, 0).unwrap();
    let ours = label.clone();
    label[16..20].copy_from_slice(&99_u32.to_le_bytes());
    let sum = nacre_types::crc32c::crc32c(&label[..4092]);
    label[4092..].copy_from_slice(&sum.to_le_bytes());
    file.write_all_at(&label, 0).unwrap();
    let errors = refused_serve_again(folder, &[]);
    assert!(
        errors.contains("osd.0 did not start") && errors.contains("this release does not read"),
        "{errors}"
    );
    file.write_all_at(&ours, 0).unwrap();
    // Data of another user. Root without its capabilities has only the rights of a file's mode.
    let mon = folder.join("data/mon");
    fs::set_permissions(&mon, fs::Permissions::from_mode(0o0)).unwrap();
    let errors = refused_serve_again(folder, &["setpriv", "--bounding-set=-all", "--inh-caps=-all"]);
    assert!(errors.contains("no permission for") && errors.contains("data/mon"), "{errors}");
    fs::set_permissions(&mon, fs::Permissions::from_mode(0o700)).unwrap();

    let out = waits.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&out.stderr).into_owned();
    let hint = errors.find(&format!("no answer from the monitor at {silent}"));
    assert!(hint.is_some() && hint < errors.find("gave up after 5 s"), "{errors}");
}

/// Runs `serve` on the existing cluster, which must fail, after the words `before` if the tests run as root. Returns its error
/// output.
fn refused_serve_again(folder: &Path, before: &[&str]) -> String {
    let before = if rustix::process::geteuid().is_root() { before } else { &[] };
    let words = [before, &[nacre(), "serve", "--data", "data", "--s3", "none"]].concat();
    let out = Command::new(words[0]).args(&words[1..]).current_dir(folder).output().unwrap();
    assert!(!out.status.success(), "{words:?} works: {}", String::from_utf8_lossy(&out.stdout));
    String::from_utf8_lossy(&out.stderr).into_owned()
}

#[test]
fn a_map_store_that_was_restored_goes_on_under_a_new_generation() {
    let mut cluster = TestCluster::start_with(2, "bluestore", conf());
    cluster.create_pool("data", 8, 2, 1);
    cluster.wait_healthy();
    let file = cluster.folder().join("file");
    fs::write(&file, "contents").unwrap();
    cluster.ok(&["rados", "-p", "data", "put", "object", file.to_str().unwrap()]);

    let (store, copy) = (cluster.folder().join("mon"), cluster.folder().join("copy"));
    let move_to = |from: &Path, to: &Path| {
        let _ = fs::remove_dir_all(to);
        assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
    };
    cluster.terminate(Daemon::Mon);
    move_to(&store, &copy);
    cluster.spawn(Daemon::Mon);
    cluster.create_pool("later", 8, 2, 1);
    cluster.wait_healthy();
    cluster.terminate(Daemon::Mon);
    move_to(&copy, &store);

    let refused = |args: &[&str], why: &str| {
        let output = cluster.run(args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(why), "{args:?}: {said}");
    };
    refused(&["mon", "osd.1"], "OSDs may be listed only with --mint-generation");
    refused(&["mon", "--mkfs", "--mint-generation"], "can't be used together");
    let absent = cluster.folder().join("absent");
    refused(&["mon", "--mint-generation", "--mon_data", absent.to_str().unwrap()], "absent");
    assert!(!absent.exists(), "a store was made");
    let said = cluster.ok(&["mon", "--mint-generation", "osd.1"]);
    assert!(said.contains("has generation"), "{said}");
    cluster.spawn(Daemon::Mon);
    cluster.wait_healthy();
    assert!(!cluster.ok(&["osd", "pool", "ls"]).contains("later"));
    cluster.ok(&["rados", "-p", "data", "get", "object", file.to_str().unwrap()]);
    assert_eq!(fs::read_to_string(&file).unwrap(), "contents");
}
