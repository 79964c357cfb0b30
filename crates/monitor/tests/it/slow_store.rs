//! A map authority whose map store does not answer.

use crate::site::{PATIENCE, Session, Site, boot, booted};
use async_trait::async_trait;
use bytes::Bytes;
use nacre_common::auth::{AuthTicketReply, AuthTicketRequest};
use nacre_mapstore::{
    LeaseId, MapStore, MapStoreError, RangePage, StoreHealth, StoredEntry, Txn, TxnOutcome, Watch,
};
use nacre_monitor::{LocalStore, MonServer};
use nacre_types::ids::OsdId;
use nacre_types::msg::{ConfigPublish, MonCommand, MonCommandReply, OsdMarkMeDown};
use nacre_types::osdmap::flag;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// What the store does with a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gate {
    Open,
    Closed,
    /// Closed for changes of entities only.
    ClosedForEntities,
    Broken,
}

/// A store whose transactions wait at a gate.
struct GatedStore {
    store: LocalStore,
    gate: watch::Sender<Gate>,
    waiting: AtomicUsize,
}

impl GatedStore {
    fn open(site: &Site) -> Arc<GatedStore> {
        let store = LocalStore::open(&site.data().join("store.db")).unwrap();
        Arc::new(GatedStore { store, gate: watch::Sender::new(Gate::Open), waiting: AtomicUsize::new(0) })
    }

    fn set(&self, gate: Gate) {
        self.gate.send_replace(gate);
    }

    /// Waits until a transaction waits.
    fn wait_for_transaction(&self) {
        let deadline = Instant::now() + PATIENCE;
        while self.waiting.load(Ordering::SeqCst) == 0 {
            assert!(Instant::now() < deadline, "no transaction comes");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[async_trait]
impl MapStore for GatedStore {
    async fn transact(&self, txn: &Txn) -> Result<TxnOutcome, MapStoreError> {
        let changes_entities = txn.ops.iter().any(|op| op.key().starts_with(b"auth/"));
        let passes = |gate: &Gate| match gate {
            Gate::Closed => false,
            Gate::ClosedForEntities => !changes_entities,
            Gate::Open | Gate::Broken => true,
        };
        let mut gate = self.gate.subscribe();
        let is_waiting = !passes(&gate.borrow());
        self.waiting.fetch_add(usize::from(is_waiting), Ordering::SeqCst);
        let gate = *gate.wait_for(passes).await.expect("the sender is in the store");
        self.waiting.fetch_sub(usize::from(is_waiting), Ordering::SeqCst);
        match gate {
            Gate::Broken => Err(MapStoreError::Io("broken".into())),
            _ => self.store.transact(txn).await,
        }
    }
    async fn get(&self, key: &[u8]) -> Result<Option<StoredEntry>, MapStoreError> {
        self.store.get(key).await
    }
    async fn range(
        &self,
        start: &[u8],
        end: &[u8],
        limit: usize,
        revision: Option<u64>,
    ) -> Result<RangePage, MapStoreError> {
        self.store.range(start, end, limit, revision).await
    }
    async fn grant_lease(&self, ttl: Duration) -> Result<LeaseId, MapStoreError> {
        self.store.grant_lease(ttl).await
    }
    async fn keep_alive(&self, lease: LeaseId) -> Result<(), MapStoreError> {
        self.store.keep_alive(lease).await
    }
    async fn revoke_lease(&self, lease: LeaseId) -> Result<(), MapStoreError> {
        self.store.revoke_lease(lease).await
    }
    async fn watch(&self, start: &[u8], end: &[u8], revision: u64) -> Result<Box<dyn Watch>, MapStoreError> {
        self.store.watch(start, end, revision).await
    }
    fn health(&self) -> StoreHealth {
        let is_closed = *self.gate.borrow() == Gate::Closed;
        StoreHealth {
            unavailable: is_closed.then(|| "the gate is closed".to_owned()),
            ..StoreHealth::default()
        }
    }
}

fn start(site: &Site) -> (Arc<GatedStore>, MonServer) {
    let store = GatedStore::open(site);
    let mon = MonServer::start_on(&site.config(), site.data(), store.clone(), "127.0.0.1:0".parse().unwrap())
        .unwrap();
    (store, mon)
}

fn send_command(session: &Session, tid: u64, command: serde_json::Value) {
    session.send(&MonCommand { tid, cmd: command.to_string(), input: Bytes::new() });
}

fn request_ticket(session: &Session, tid: u64) {
    session.send(&AuthTicketRequest { tid, renew: None });
}

#[test]
fn reads_and_tickets_go_on_while_a_commit_waits_and_changes_follow_it() {
    let site = Site::new();
    let (store, mon) = start(&site);
    let (mut admin, osds) = booted(&site, &mon);
    store.set(Gate::Closed);
    send_command(&admin, 1, json!({ "prefix": "osd set", "key": "noout" }));
    store.wait_for_transaction();

    let mut client = site.connect(&mon, "client.admin");
    client.subscribe(0);
    client.map_where(|map| map.pool_by_name("p").is_some() && !map.has_flag(flag::NOOUT));
    let _config: ConfigPublish = client.wait();
    for tid in 0..1_500 {
        request_ticket(&client, tid);
        let reply: AuthTicketReply = client.wait();
        assert_eq!((reply.tid, reply.code), (tid, 0));
    }
    // An OSD that starts and stops meanwhile is down in the end.
    for nonce in 2..6 {
        osds[2].send(&boot(2, nonce));
    }
    osds[2].send(&OsdMarkMeDown { boot_nonce: 5 });
    // Commands that change something wait, a limited number of them.
    let mut others = site.connect(&mon, "client.admin");
    for tid in 0..1_100 {
        send_command(
            &others,
            tid,
            json!({ "prefix": "config-key set", "key": format!("k{tid}"), "val": "v" }),
        );
    }
    let mut refused = Vec::new();
    while refused.len() < 1_100 - 1_024 {
        let reply: MonCommandReply = others.wait();
        assert_eq!((reply.code, reply.status.as_str()), (-11, "too many commands wait for the map store"));
        refused.push(reply.tid);
    }
    // Commands that only show something are answered when it takes long.
    let deadline = Instant::now() + PATIENCE;
    loop {
        let (code, status, output) = client.command(json!({ "prefix": "health", "detail": "detail" }));
        if code == 0 {
            assert!(output.contains("MAP_STORE_UNAVAILABLE"), "{output}");
            break;
        }
        assert!(code == -11 && Instant::now() < deadline, "{code} {status}");
        std::thread::sleep(Duration::from_millis(100));
    }
    store.set(Gate::Open);
    let set: MonCommandReply = admin.wait();
    assert_eq!((set.tid, set.code), (1, 0));
    for _ in refused.len()..1_100 {
        let reply: MonCommandReply = others.wait();
        assert!(reply.code == 0 && !refused.contains(&reply.tid), "{}", reply.status);
    }
    client.map_where(|map| map.has_flag(flag::NOOUT) && !map.is_up(OsdId(2)));
    assert!(mon.failure().borrow().is_none());
}

#[test]
fn capabilities_count_when_they_are_durable() {
    let site = Site::new();
    let (store, mon) = start(&site);
    let admin = site.connect(&mon, "client.admin");
    let mut reader = site.connect(&mon, "client.reader");
    request_ticket(&reader, 1);
    let _granted: AuthTicketReply = reader.wait();
    store.set(Gate::ClosedForEntities);
    let caps = json!({ "prefix": "auth caps", "entity": "client.reader", "caps": ["mon", "allow *"] });
    send_command(&admin, 1, caps);
    store.wait_for_transaction();
    request_ticket(&reader, 2);
    std::thread::sleep(Duration::from_millis(300));
    assert!(reader.heard.try_recv().is_err(), "a ticket with capabilities that are not durable");
    store.set(Gate::Open);
    let granted: AuthTicketReply = reader.wait();
    assert_eq!((granted.tid, granted.code), (2, 0));
}

#[test]
fn a_stop_does_not_wait_for_the_store() {
    let site = Site::new();
    let (store, mon) = start(&site);
    let admin = site.connect(&mon, "client.admin");
    store.set(Gate::Closed);
    send_command(&admin, 1, json!({ "prefix": "osd set", "key": "noout" }));
    store.wait_for_transaction();
    let started = Instant::now();
    mon.stop();
    assert!(started.elapsed() < PATIENCE, "{:?}", started.elapsed());
    // What was not answered is not there.
    drop(store);
    let mon = site.start();
    let shown = site.connect(&mon, "client.admin").command(json!({ "prefix": "osd dump" })).2;
    assert!(!shown.contains("noout"), "{shown}");
}

#[test]
fn a_failed_store_ends_the_authority() {
    let site = Site::new();
    let (store, mon) = start(&site);
    let admin = site.connect(&mon, "client.admin");
    store.set(Gate::Broken);
    send_command(&admin, 1, json!({ "prefix": "osd set", "key": "noout" }));
    let deadline = Instant::now() + PATIENCE;
    while mon.failure().borrow().is_none() {
        assert!(Instant::now() < deadline, "the authority goes on");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(mon.failure().borrow().as_ref().unwrap().to_string().contains("broken"));
}

#[test]
fn tickets_are_renewed_for_a_limited_time_while_the_store_does_not_answer() {
    let site = Site::with_options(&[("mon_ticket_grace", "0")]);
    let (store, mon) = start(&site);
    let mut client = site.connect(&mon, "client.admin");
    request_ticket(&client, 1);
    let granted: AuthTicketReply = client.wait();
    store.set(Gate::Closed);
    let deadline = Instant::now() + PATIENCE;
    while !client.command(json!({ "prefix": "health", "detail": "detail" })).2.contains("no longer renewed") {
        assert!(Instant::now() < deadline, "the end of the grace is not reported");
        std::thread::sleep(Duration::from_millis(100));
    }
    client.send(&AuthTicketRequest { tid: 2, renew: granted.ticket.map(|ticket| ticket.blob) });
    std::thread::sleep(Duration::from_millis(1_500));
    assert!(client.heard.try_recv().is_err(), "a ticket was renewed");
    store.set(Gate::Open);
    let renewed: AuthTicketReply = client.wait();
    assert_eq!((renewed.tid, renewed.code, renewed.client), (2, 0, granted.client));
}
