//! The map store on a real etcd: the contract, and a map authority while members fail.

use crate::etcd_cluster::EtcdCluster;
use crate::site::{Session, Site, booted};
use nacre_common::auth::{AuthTicketReply, AuthTicketRequest};
use nacre_mapstore::{MapStore, MapStoreError, Txn, TxnOutcome, conformance};
use nacre_monitor::{EtcdAccess, EtcdStore, MonServer};
use serde_json::json;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// A session that stores keys one after the other, until it is stopped.
struct Load {
    stop: Arc<AtomicBool>,
    stored: Arc<AtomicUsize>,
    thread: JoinHandle<Session>,
}

impl Load {
    fn start(mut session: Session) -> Load {
        let (stop, stored) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let thread = std::thread::spawn({
            let (stop, stored) = (stop.clone(), stored.clone());
            move || {
                while !stop.load(Ordering::SeqCst) {
                    let number = stored.load(Ordering::SeqCst);
                    let command = json!({ "prefix": "config-key set", "key": format!("load/{number:06}"),
                        "val": number.to_string() });
                    let (code, status, _) = session.command(command);
                    assert_eq!(code, 0, "{status}");
                    stored.store(number + 1, Ordering::SeqCst);
                }
                session
            }
        });
        Load { stop, stored, thread }
    }

    /// Waits until more keys were stored.
    fn wait_for_more(&self) {
        let (before, deadline) =
            (self.stored.load(Ordering::SeqCst), Instant::now() + Duration::from_secs(60));
        while self.stored.load(Ordering::SeqCst) < before + 5 {
            assert!(Instant::now() < deadline && !self.thread.is_finished(), "no more commands are answered");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends the load. Returns the session and the number of keys.
    fn stop(self) -> (Session, usize) {
        self.stop.store(true, Ordering::SeqCst);
        (self.thread.join().unwrap(), self.stored.load(Ordering::SeqCst))
    }
}

/// Every key of the load is there, and no other.
fn assert_stored(session: &mut Session, count: usize) {
    let listed = session.command(json!({ "prefix": "config-key ls", "format": "json" })).2;
    let listed: Vec<String> = serde_json::from_str(&listed).unwrap();
    let found: Vec<&String> = listed.iter().filter(|key| key.starts_with("load/")).collect();
    assert_eq!(found.len(), count);
}

fn assert_running(mon: &MonServer) {
    assert!(mon.failure().borrow().is_none(), "{:?}", mon.failure().borrow());
}

#[test]
fn etcd_keeps_the_contract() {
    let etcd = EtcdCluster::start(1, &[]);
    let part = AtomicUsize::new(0);
    runtime().block_on(conformance::run(&|| {
        let prefix = format!("part{}", part.fetch_add(1, Ordering::SeqCst));
        (etcd.store(&prefix), Box::new(()) as Box<dyn std::any::Any>)
    }));
    assert!(etcd.ctl(0, &["get", "--prefix", "--keys-only", "part0/"]).unwrap().starts_with("part0/"));
}

#[test]
fn clusters_share_an_etcd_by_prefixes() {
    let etcd = EtcdCluster::start(1, &[]);
    let sites: Vec<Site> = ["one", "two"]
        .iter()
        .map(|prefix| Site::with_options(&[("mon_map_store", &etcd.url(prefix))]))
        .collect();
    for (number, site) in sites.iter().enumerate() {
        let mon = site.start();
        let mut admin = site.connect(&mon, "client.admin");
        let pool = format!("pool{number}");
        let create = json!({ "prefix": "osd pool create", "pool": pool, "pg_num": 1 });
        assert_eq!(admin.command(create).0, 0);
        assert_eq!(admin.command(json!({ "prefix": "osd pool ls" })).2.trim(), pool);
    }
}

#[test]
fn a_map_authority_outlives_the_failures_of_members() {
    let mut etcd = EtcdCluster::start(3, &[]);
    let site = Site::with_options(&[("mon_map_store", &etcd.url("nacre"))]);
    let mon = site.start();
    let (admin, osds) = booted(&site, &mon);
    let load = Load::start(admin);
    load.wait_for_more();

    // The leader is killed.
    let leader = etcd.wait_for_leader();
    etcd.kill(leader);
    load.wait_for_more();
    etcd.restart(leader);
    etcd.wait_for_leader();

    // The quorum is lost, and comes back.
    let mut client = site.connect(&mon, "client.admin");
    client.send(&AuthTicketRequest { tid: 1, renew: None });
    let ticket: AuthTicketReply = client.wait();
    let blob = ticket.ticket.expect("granted").blob;
    etcd.kill(0);
    etcd.kill(1);
    std::thread::sleep(Duration::from_secs(5));
    let stored = load.stored.load(Ordering::SeqCst);
    client.subscribe(0);
    client.map_where(|map| map.pool_by_name("p").is_some());
    client.send(&AuthTicketRequest { tid: 2, renew: Some(blob) });
    let renewed: AuthTicketReply = client.wait();
    assert_eq!((renewed.code, renewed.client), (0, ticket.client), "tickets are renewed without the store");
    let health = client.command(json!({ "prefix": "health", "detail": "detail" }));
    assert!(health.0 == 0 && health.2.contains("MAP_STORE_UNAVAILABLE"), "{health:?}");
    assert!(load.stored.load(Ordering::SeqCst) <= stored + 1, "nothing is stored without a quorum");
    assert_running(&mon);
    etcd.restart(0);
    load.wait_for_more();
    etcd.restart(1);

    // A member does not answer; then it is replaced by a new one.
    let member = etcd.wait_for_leader();
    etcd.signal(member, "STOP");
    load.wait_for_more();
    etcd.signal(member, "CONT");
    load.wait_for_more();
    let member = (etcd.wait_for_leader() + 1) % 3;
    etcd.kill(member);
    etcd.replace(member);
    load.wait_for_more();

    let (mut admin, count) = load.stop();
    assert_running(&mon);
    assert_stored(&mut admin, count);
    assert!(osds.iter().all(|osd| !osd.conn.is_over()), "no session ended");
    // What was answered is there for the next authority.
    mon.stop();
    let mon = site.start();
    assert_stored(&mut site.connect(&mon, "client.admin"), count);
}

#[test]
fn a_map_authority_outlives_changes_of_the_leader() {
    let etcd = EtcdCluster::start(3, &[]);
    let site = Site::with_options(&[("mon_map_store", &etcd.url("nacre"))]);
    let mon = site.start();
    let load = Load::start(site.connect(&mon, "client.admin"));
    for _ in 0..20 {
        etcd.move_leader();
        load.wait_for_more();
    }
    let (mut admin, count) = load.stop();
    assert_running(&mon);
    assert_stored(&mut admin, count);
}

#[test]
fn a_newer_authority_fences_off_the_older_one() {
    let etcd = EtcdCluster::start(1, &[]);
    let site = Site::with_options(&[("mon_map_store", &etcd.url("nacre"))]);
    let old = site.start();
    let new = site.start();
    // Without anything to write.
    let deadline = Instant::now() + Duration::from_secs(30);
    while old.failure().borrow().is_none() {
        assert!(Instant::now() < deadline, "the older authority goes on");
        std::thread::sleep(Duration::from_millis(20));
    }
    let failure = old.failure().borrow().as_ref().unwrap().to_string();
    assert!(failure.contains("fenced"), "{failure}");
    let mut admin = site.connect(&new, "client.admin");
    assert_eq!(admin.command(json!({ "prefix": "config-key set", "key": "k", "val": "v" })).0, 0);
}

#[test]
fn a_full_database_stops_changes_until_there_is_room() {
    let etcd = EtcdCluster::start(1, &["--quota-backend-bytes", "20000000"]);
    let site = Site::with_options(&[("mon_map_store", &etcd.url("nacre"))]);
    let mon = site.start();
    let load = Load::start(site.connect(&mon, "client.admin"));
    load.wait_for_more();
    let runtime = runtime();
    let other = etcd.store("other");
    let filled = runtime.block_on(async {
        for _ in 0..40 {
            if let Err(error) = other.transact(&Txn::default().put("k", vec![b'x'; 1_000_000])).await {
                return error;
            }
        }
        panic!("etcd accepts 40 MB");
    });
    assert!(matches!(&filled, MapStoreError::Unavailable(text) if text.contains("space")), "{filled:?}");
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let stored = load.stored.load(Ordering::SeqCst);
        std::thread::sleep(Duration::from_secs(2));
        if load.stored.load(Ordering::SeqCst) == stored {
            break;
        }
        assert!(Instant::now() < deadline, "commands are answered although etcd is full");
    }
    assert_running(&mon);
    let revision = runtime.block_on(other.range(b"", b"z", 1, None)).unwrap().revision;
    etcd.ctl(0, &["compact", &revision.to_string()]).unwrap();
    let before = etcd.db_bytes(0);
    etcd.ctl(0, &["defrag"]).unwrap();
    assert!(etcd.db_bytes(0) < before);
    etcd.ctl(0, &["alarm", "disarm"]).unwrap();
    load.wait_for_more();
    let (mut admin, count) = load.stop();
    assert_running(&mon);
    assert_stored(&mut admin, count);
}

#[test]
fn a_watch_behind_a_compaction_is_told_so_and_others_go_on_at_another_member() {
    let mut etcd = EtcdCluster::start(3, &[]);
    let store = etcd.store("w");
    runtime().block_on(async {
        let put = async |key: &str| {
            loop {
                match store.transact(&Txn::default().put(key, "x")).await {
                    Ok(TxnOutcome::Committed { revision }) => return revision,
                    Ok(other) => panic!("{other:?}"),
                    Err(MapStoreError::Unavailable(_)) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        };
        let first = put("a").await;
        let mut watch = store.watch(b"", b"z", first).await.unwrap();
        let next = watch.next(Duration::from_secs(20)).await.unwrap().expect("a change");
        assert_eq!((next.revision, next.key.as_slice()), (first, &b"a"[..]));
        // The member that the watch is connected to.
        etcd.kill(0);
        let second = put("b").await;
        let next = watch.next(Duration::from_secs(30)).await.unwrap().expect("a change");
        assert_eq!((next.revision, next.key.as_slice()), (second, &b"b"[..]));
        etcd.ctl(1, &["compact", &second.to_string()]).unwrap();
        let mut late = store.watch(b"", b"z", first).await.unwrap();
        let lost = late.next(Duration::from_secs(20)).await;
        assert_eq!(lost, Err(MapStoreError::Compacted { oldest: second }));
    });
}

/// Runs `openssl` in a directory.
fn openssl(dir: &Path, args: &str) {
    let output =
        std::process::Command::new("openssl").current_dir(dir).args(args.split(' ')).output().unwrap();
    assert!(output.status.success(), "openssl {args}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Makes a certificate authority in a directory: `ca.crt` and `ca.key`.
fn make_authority(dir: &Path) {
    openssl(
        dir,
        "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -days 2 -subj /CN=ca -addext basicConstraints=critical,CA:TRUE",
    );
}

/// Makes a certificate for `names`, signed by the authority in the directory: `NAME.crt` and `NAME.key`.
fn make_certificate(dir: &Path, name: &str, names: &str) {
    std::fs::write(dir.join("san"), format!("subjectAltName={names}")).unwrap();
    openssl(dir, &format!("req -newkey rsa:2048 -nodes -keyout {name}.key -out {name}.csr -subj /CN={name}"));
    openssl(
        dir,
        &format!(
            "x509 -req -in {name}.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out {name}.crt -days 2 -extfile san"
        ),
    );
}

#[test]
fn a_member_whose_certificate_has_another_name_or_authority_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    make_authority(dir.path());
    make_certificate(dir.path(), "server", "DNS:elsewhere");
    let tls = [
        format!("--cert-file={}", at("server.crt").display()),
        format!("--key-file={}", at("server.key").display()),
    ];
    let etcd = EtcdCluster::start_with(
        1,
        &tls.each_ref().map(String::as_str),
        "https",
        &["--insecure-skip-tls-verify", "--insecure-transport=false"],
    );
    let other = tempfile::tempdir().unwrap();
    make_authority(other.path());
    for ca in [at("ca.crt"), other.path().join("ca.crt")] {
        let access = EtcdAccess { ca_file: Some(ca), ..EtcdAccess::default() };
        let store = EtcdStore::new(etcd.url("nacre").parse().unwrap(), access, 2 << 30);
        let refused = runtime().block_on(store.transact(&Txn::default().put("k", "v")));
        assert!(matches!(refused, Err(MapStoreError::Unavailable(_))), "{refused:?}");
    }
    assert_eq!(etcd.ctl(0, &["get", "--prefix", ""]).unwrap(), "");
}

#[test]
fn connections_use_tls_certificates_and_users() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    make_authority(dir.path());
    for name in ["server", "mon"] {
        make_certificate(dir.path(), name, "IP:127.0.0.1,DNS:localhost");
    }
    let (ca, cert, key) = (at("ca.crt"), at("mon.crt"), at("mon.key"));
    let tls = [
        format!("--cert-file={}", at("server.crt")),
        format!("--key-file={}", at("server.key")),
        format!("--trusted-ca-file={ca}"),
        "--client-cert-auth".to_owned(),
    ];
    let tls: Vec<&str> = tls.iter().map(String::as_str).collect();
    let ctl = [format!("--cacert={ca}"), format!("--cert={cert}"), format!("--key={key}")];
    let ctl: Vec<&str> = ctl.iter().map(String::as_str).collect();
    let mut etcd = EtcdCluster::start_with(1, &tls, "https", &ctl);
    for command in [
        &["user", "add", "root:secret"][..],
        &["user", "add", "nacre:word"],
        &["role", "add", "nacre"],
        &["role", "grant-permission", "nacre", "--prefix=true", "readwrite", "nacre/"],
        &["user", "grant-role", "nacre", "nacre"],
        &["user", "grant-role", "root", "root"],
        &["auth", "enable"],
    ] {
        etcd.ctl(0, command).unwrap();
    }
    std::fs::write(at("password"), "word\n").unwrap();
    let (url, password) = (etcd.url("nacre"), at("password"));
    let options = [
        ("mon_map_store", url.as_str()),
        ("mon_map_store_cacert", &ca),
        ("mon_map_store_cert", &cert),
        ("mon_map_store_key", &key),
        ("mon_map_store_user", "nacre"),
        ("mon_map_store_password_file", &password),
    ];
    let site = Site::with_options(&options);
    let mon = site.start();
    let load = Load::start(site.connect(&mon, "client.admin"));
    load.wait_for_more();
    // A member that restarts knows no tokens.
    etcd.kill(0);
    etcd.restart(0);
    load.wait_for_more();
    assert_running(&mon);
    let (mut admin, count) = load.stop();
    assert_stored(&mut admin, count);
    drop(admin);
    mon.stop();

    std::fs::write(at("password"), "wrong\n").unwrap();
    let refused = site.try_start().err().expect("refused").to_string();
    assert!(refused.contains("refuses access"), "{refused}");
}
