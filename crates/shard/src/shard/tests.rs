//! A shard without threads and sockets: the primary of one PG. The test plays the other member.

mod bounds;
mod busy;
mod copies;
mod gate;
mod tiers;
mod watching;

use super::ops::{InflightOp, backoff};
use super::*;
use crate::host::ShardHost;
use crate::session::{IncomingRequest, Session};
use crate::shared::{RunState, ShardSettings};
use nacre_common::auth::Peer;
use nacre_common::clock::{Clock, SystemClock};
use nacre_common::config::ConfigBuilder;
use nacre_common::conn::Connection;
use nacre_common::error::Error;
use nacre_common::throttle::{Permit, Throttle};
use nacre_exec::testing::{CountingStore, EMFILE};
use nacre_objectstore::{MemStore, MemStoreConfig};
use nacre_pg::heartbeat::{HbEnvelope, HbMsg};
use nacre_pg::lease::LeaseRequest;
use nacre_pg::{ClientOp, MemberInfo};
use nacre_types::errno::Errno;
use nacre_types::ids::{ClientId, EntityName, Incarnation, PoolId, ReqId};
use nacre_types::msg::{EncodedMessage, Message, OsdBackoff, OsdReply, OsdRequest, WatchLost};
use nacre_types::object::{ObjectId, SNAP_HEAD};
use nacre_types::op::{Op, OsdOp};
use nacre_types::osdmap::{Member, OsdInfo, PgMembership};
use nacre_types::pool::Pool;
use std::any::Any;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::AtomicUsize;
use uuid::Uuid;

const PG: PgId = PgId { pool: PoolId(1), seed: 0 };
const OTHER: OsdId = OsdId(1);
const CLIENT: ClientId = ClientId(4);
const SECOND: u64 = 1_000_000_000;
/// The lease term: osd_heartbeat_grace times osd_pool_default_read_lease_ratio.
const TERM_MS: u64 = 300;

/// The shard of osd.0.
struct Bench {
    _directory: tempfile::TempDir,
    store: Arc<CountingStore>,
    shared: Arc<Shared>,
    cell: ShardCell,
    map: OsdMap,
    asked: Asked,
}

/// The requests to other pools, with tickets.
type Asked = Arc<Mutex<Vec<(u64, OsdRequest)>>>;

impl Bench {
    /// Begins another interval with the same members.
    fn next_interval(&mut self) {
        let before = self.map.membership(PG).unwrap().clone();
        self.enter_interval(PgMembership { interval: before.interval.next(), ..before });
        self.peer();
        self.gain_lease();
        self.cell.enter(|_| ()).unwrap();
    }

    /// The requests to other pools since the last call, with tickets.
    fn asked(&self) -> Vec<(u64, OsdRequest)> {
        self.cell.enter(|_| ()).unwrap();
        std::mem::take(&mut *self.asked.lock())
    }

    /// Creates the bench with an active PG, without leases.
    fn new() -> Bench {
        Bench::with(&[])
    }

    fn with(options: &[(&str, &str)]) -> Bench {
        Bench::on(MemStoreConfig::default(), options)
    }

    fn on(size: MemStoreConfig, options: &[(&str, &str)]) -> Bench {
        let directory = tempfile::tempdir().unwrap();
        MemStore::mkfs(directory.path()).unwrap();
        let (store, report) = MemStore::mount(directory.path(), size).unwrap();
        let store = Arc::new(CountingStore::new(store));
        let config = ConfigBuilder::new(EntityName::osd(OsdId(0)))
            .set("osd_heartbeat_grace", "1")
            .set("osd_pool_default_read_lease_ratio", "0.3")
            .set("osd_op_num_shards", "1");
        let config = options.iter().fold(config, |config, (name, value)| config.set(name, *value));
        let me = Member { osd: OsdId(0), incarnation: report.incarnation };
        let config = config.build().unwrap();
        let settings = ShardSettings::of(&config.snapshot());
        let asked = Asked::default();
        let world = Alone { asked: Arc::clone(&asked) };
        let shared = Shared::new(&config, me, 5, store.clone(), Arc::new(world), &settings);
        let other = Member { osd: OTHER, incarnation: Incarnation(Uuid::from_u128(7)) };
        let mut map = OsdMap::new(Uuid::nil(), 0, Default::default());
        map.pools.insert(PG.pool, Arc::new(Pool::replicated("p", 2, 2, 0, 1, Epoch(1))));
        for (member, boot_nonce) in [(me, shared.boot_nonce), (other, 9)] {
            let incarnation = Some(member.incarnation);
            map.osds.insert(member.osd, OsdInfo { up: true, incarnation, boot_nonce, ..OsdInfo::never_up() });
        }
        let cell = ShardCell::new(&shared, 0);
        let mut bench = Bench { _directory: directory, store, shared, cell, map, asked };
        // Members create their copies in the first interval, and order updates in the second one.
        let first =
            PgMembership { interval: Interval::creation(1), primary: me.osd, in_sync: vec![me, other] };
        let second = PgMembership { interval: first.interval.next(), ..first.clone() };
        for membership in [first, second] {
            bench.enter_interval(membership);
            bench.peer();
        }
        assert!(bench.cell.inspect(|shard| shard.slots[0].as_ref().unwrap().active));
        bench
    }

    fn enter_interval(&mut self, membership: PgMembership) {
        self.map.epoch = self.map.epoch.next();
        self.map.pgs.insert(PG.pool, Arc::new(vec![Some(membership)]));
        let map = Arc::new(self.map.clone());
        let up: PgUpSets = Arc::new([(PG, vec![OsdId(0), OTHER])].into_iter().collect());
        self.cell.enter(|shard| shard.on_map(map, up, Arc::from([]))).unwrap();
    }

    /// The other member answers that it has the PG.
    fn peer(&mut self) {
        let interval = self.map.interval(PG);
        let info = MemberInfo { exists: true, complete: true, boot_nonce: 9, ..MemberInfo::default() };
        // Only the latest query counts; its number is internal to the machine.
        for round in 1..10 {
            let msg = PeerMsg::Info { interval, round, info: info.clone(), versions: None };
            let envelope = PgEnvelope { pg: PG, space_bytes: u64::MAX, msg };
            self.cell.enter(|shard| shard.on_peer(OTHER, envelope)).unwrap();
        }
    }

    /// The other member acknowledges all updates.
    fn acknowledge(&self) {
        let interval = self.map.interval(PG);
        self.cell.enter(|_| ()).unwrap();
        let head = self.cell.inspect(|shard| shard.slots[0].as_ref().unwrap().machine.head());
        let envelope = PgEnvelope { pg: PG, space_bytes: u64::MAX, msg: PeerMsg::RepAck { interval, head } };
        self.cell.enter(|shard| shard.on_peer(OTHER, envelope)).unwrap();
    }

    /// The other member grants a lease that was requested just now.
    fn gain_lease(&self) {
        self.shared.heartbeats.lock().hold_lease(OTHER, self.shared.world.boot_ns());
        self.shared.post_all(|| ShardMessage::Leases);
    }

    /// A client reads an object for the first time. Returns whether it has its answer at the end of that turn.
    fn read(&self, tid: u64) -> bool {
        let request = self.request(tid, Op::Read { offset: 0, len: 0 });
        let reqid = request.reqid;
        let op = ClientOp {
            token: 0,
            reqid,
            oldest_tid: tid,
            attempt: 0,
            interval: request.interval,
            object: request.object.clone(),
            write: false,
            listing: false,
            dup_check_by_host: false,
            requeued: false,
        };
        self.cell
            .enter(|shard| {
                let now_ns = shard.now_ns;
                let track = shard.tracker.start(&request, None, now_ns, now_ns);
                let in_hand = InflightOp::new(request, None, reqid.client, 0, track, now_ns, false);
                shard.submit_op(0, op, in_hand);
            })
            .unwrap();
        self.unanswered() == 0
    }

    /// A request of its own for a separate object.
    fn request(&self, tid: u64, op: Op) -> OsdRequest {
        OsdRequest {
            reqid: ReqId { client: CLIENT, tid },
            oldest_tid: tid,
            attempt: 0,
            epoch: self.map.epoch,
            pg: PG,
            interval: self.map.interval(PG),
            object: ObjectId::new(PG.pool, "", "", &format!("o{tid}")),
            mtime_ns: 0,
            flags: 0,
            snap: SNAP_HEAD,
            snap_context: None,
            ops: vec![OsdOp::from(op)],
            tier: None,
        }
    }

    fn arrive(&self, request: OsdRequest, conn: &ConnRef, permit: Option<Permit>) {
        let arrival =
            IncomingRequest { request, conn: conn.clone(), permit, arrived_ns: self.shared.world.boot_ns() };
        self.cell.enter(|shard| shard.on_request(arrival)).unwrap();
    }

    fn unanswered(&self) -> usize {
        self.cell.inspect(|shard| shard.ops.tokens_of(0).len())
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.cell.with(Shard::close);
    }
}

/// The machine's clocks, without peers and map authority. The test plays other pools.
struct Alone {
    asked: Asked,
}

impl ShardHost for Alone {
    fn boot_ns(&self) -> u64 {
        SystemClock.monotonic().as_nanos() as u64
    }

    fn wall_ns(&self) -> u64 {
        SystemClock.wall_ns()
    }

    fn fresh_uuid(&self) -> Uuid {
        Uuid::new_v4()
    }

    fn send_to_mon(&self, _message: EncodedMessage) {}

    fn peer(&self, _osd: OsdId, _shard: usize) -> Result<Option<ConnRef>, Error> {
        Ok(None)
    }

    fn drop_peer(&self, _osd: OsdId) {}

    fn follow_map(&self, _map: &OsdMap) -> Vec<OsdId> {
        Vec::new()
    }

    fn ping(&self, _osd: OsdId, _message: &HbEnvelope) {}

    fn public_addr(&self) -> Option<SocketAddr> {
        None
    }

    fn fetch(&self, _shard: usize, _arrival: Box<IncomingRequest>) {}

    fn read_base(&self, _shard: usize, ticket: u64, request: Box<OsdRequest>, _max_bytes: u64) {
        self.asked.lock().push((ticket, *request));
    }

    fn request_other_pool(&self, _shard: usize, ticket: u64, request: Box<OsdRequest>) {
        self.asked.lock().push((ticket, *request));
    }
}

/// A client's connection whose other end reports nothing itself.
struct Silent {
    session: Session,
    heard: Arc<Mutex<Heard>>,
    room: AtomicUsize,
    over: AtomicBool,
}

/// The messages that a client was sent.
#[derive(Default)]
struct Heard {
    /// Results by request.
    results: Vec<(u64, i32)>,
    /// Requests sent back.
    backoffs: Vec<u64>,
    /// Watches that have lapsed.
    lost: Vec<u64>,
}

impl Heard {
    fn note(&mut self, message: EncodedMessage) {
        match message.kind {
            OsdReply::KIND => {
                let reply: OsdReply = message.decode().unwrap();
                self.results.push((reply.reqid.tid, reply.result));
            }
            OsdBackoff::KIND => self.backoffs.push(message.decode::<OsdBackoff>().unwrap().reqid.tid),
            WatchLost::KIND => self.lost.push(message.decode::<WatchLost>().unwrap().cookie),
            _ => {}
        }
    }

    /// The result of a request, which must have been answered at most once.
    fn result(&self, tid: u64) -> Option<i32> {
        let mut of = self.results.iter().filter(|(of, _)| *of == tid);
        let result = of.next().map(|(_, result)| *result);
        assert!(of.next().is_none(), "request {tid} was answered twice");
        result
    }
}

const ADDR: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1);

impl Connection for Silent {
    fn send_encoded(&self, message: EncodedMessage) -> Result<(), Error> {
        if self.is_over() {
            return Err(Error::Closed);
        }
        let sent = self.room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |room| room.checked_sub(1));
        sent.map_err(|_| Error::Full)?;
        self.heard.lock().note(message);
        Ok(())
    }

    fn id(&self) -> u64 {
        std::ptr::from_ref(self).addr() as u64
    }

    fn peer_addr(&self) -> SocketAddr {
        ADDR
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn abort(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    fn context(&self) -> Option<&(dyn Any + Send + Sync)> {
        Some(&self.session)
    }
}

/// A peer's connection that refuses every message as too long.
struct Narrow;

impl Connection for Narrow {
    fn send_encoded(&self, _message: EncodedMessage) -> Result<(), Error> {
        Err(Error::TooBig { bytes: 1, limit: 0 })
    }

    fn id(&self) -> u64 {
        1
    }

    fn peer_addr(&self) -> SocketAddr {
        ADDR
    }

    fn is_over(&self) -> bool {
        false
    }

    fn abort(&self) {}

    fn context(&self) -> Option<&(dyn Any + Send + Sync)> {
        None
    }
}

/// Connects the client.
fn connect() -> ConnRef {
    connect_and_hear().0
}

/// Connects the client, and records the messages that it is sent.
fn connect_and_hear() -> (ConnRef, Arc<Mutex<Heard>>) {
    connect_as(EntityName::client("admin"))
}

fn connect_as(entity: EntityName) -> (ConnRef, Arc<Mutex<Heard>>) {
    let peer = Peer {
        entity,
        client: Some(CLIENT),
        caps: [("osd".to_owned(), "allow *".to_owned())].into(),
        nonce: 0,
        key_fingerprint: 0,
        expires_unix: None,
    };
    let session = Session::new(&peer, ADDR);
    let heard = Arc::<Mutex<Heard>>::default();
    let (room, over) = (AtomicUsize::new(1000), AtomicBool::new(false));
    let silent = Silent { session, heard: Arc::clone(&heard), room, over };
    (ConnRef::new(Arc::new(silent)), heard)
}

#[test]
fn a_message_that_is_too_long_leaves_the_connection_to_the_other_pgs() {
    let bench = Bench::new();
    let interval = bench.map.interval(PG);
    let keeps_link = |shard: &mut Shard| {
        shard.links.insert(OTHER, ConnRef::new(Arc::new(Narrow)));
        shard.send(0, OTHER, PeerMsg::Stray { interval });
        shard.links.contains_key(&OTHER)
    };
    assert!(bench.cell.enter(keeps_link).unwrap());
    bench.cell.enter(|_| ()).unwrap();
    assert!(bench.cell.inspect(|shard| shard.slots[0].as_ref().unwrap().active), "the PG peers again");
}

#[test]
fn a_ping_is_answered_at_once_unless_a_shard_hangs() {
    let bench = Bench::new();
    let shared = &bench.shared;
    let lease = LeaseRequest { boot_nonce: 9, epoch: Epoch(0), sent_at_ns: 7 };
    let msg = HbMsg::Ping { to_boot_nonce: shared.boot_nonce, lease };
    let ping = || shared.on_ping(OTHER, HbEnvelope { space_bytes: 1 << 30, msg }).map(|answer| answer.msg);
    let answers = |msg| matches!(msg, Some(HbMsg::Pong { for_boot_nonce: 9, sent_at_ns: 7, .. }));
    assert!(answers(ping()));
    shared.progress.set_stalled(true);
    assert_eq!(ping(), None);
    shared.progress.set_stalled(false);
    assert!(answers(ping()));
}

#[test]
fn requests_of_future_maps_take_a_part_of_the_throttle_for_a_while() {
    const CAP: u64 = 128;
    let bench = Bench::with(&[("osd_client_message_cap", "128")]);
    let throttle = Throttle::new(u64::MAX, CAP);
    let free = || (0..CAP).map_while(|_| throttle.try_take(0)).collect::<Vec<_>>().len() as u64;
    let early = || bench.cell.inspect(|shard| shard.early.len());
    let send = |conn: &ConnRef, count: u64| {
        for tid in 1..=count {
            let request = bench.request(tid, Op::Read { offset: 0, len: 0 });
            let permit = throttle.try_take(0);
            assert!(permit.is_some(), "the throttle is exhausted");
            bench.arrive(OsdRequest { epoch: Epoch(u32::MAX), ..request }, conn, permit);
        }
    };
    let conns: Vec<ConnRef> = (0..6).map(|_| connect()).collect();
    send(&conns[0], 2 * CAP);
    assert_eq!(early(), 4, "the part of one connection");
    for conn in &conns[1..5] {
        send(conn, 2 * CAP);
    }
    assert_eq!((early(), free()), (16, CAP - 16), "the part of the OSD");
    // Requests whose connections have ended make room.
    conns[..3].iter().for_each(ConnRef::abort);
    send(&conns[5], 3);
    assert_eq!(early(), 7);
    bench
        .cell
        .enter(|shard| {
            shard.now_ns += 3 * SECOND;
            shard.expire_waiting_for_map();
        })
        .unwrap();
    assert_eq!((early(), free()), (0, CAP), "the map does not come");
    send(&conns[5], 4);
    assert_eq!(early(), 4);
}

#[test]
fn requests_of_the_next_map_go_on_with_it() {
    let mut bench = Bench::new();
    let (conn, gone) = (connect(), connect());
    for (tid, conn) in [(1, &conn), (2, &gone)] {
        let request = bench.request(tid, Op::Read { offset: 0, len: 0 });
        bench.arrive(OsdRequest { epoch: bench.map.epoch.next(), ..request }, conn, None);
    }
    gone.abort();
    assert_eq!((bench.cell.inspect(|shard| shard.early.len()), bench.unanswered()), (2, 0));
    let membership = bench.map.membership(PG).unwrap().clone();
    bench.enter_interval(membership);
    assert_eq!((bench.cell.inspect(|shard| shard.early.len()), bench.unanswered()), (0, 1));
}

#[test]
fn who_gives_up_a_request_that_was_sent_back_goes_on_with_later_ones() {
    let bench = Bench::new();
    let conn = connect();
    let session = conn.context::<Session>().unwrap();
    let request = |tid, attempt| {
        let request = bench.request(tid, Op::Read { offset: 0, len: 0 });
        // Another PG's request keeps this one low.
        OsdRequest { oldest_tid: 1, attempt, ..request }
    };
    assert!(session.note_backoff(&request(5, 0)));
    assert!(session.is_out_of_order(&request(6, 0)) && session.is_out_of_order(&request(7, 0)));
    // The client resends in order: if the earlier request still existed, it would have arrived first.
    assert!(!session.is_out_of_order(&request(7, 1)) && !session.is_out_of_order(&request(8, 0)));
    assert!(session.note_backoff(&request(9, 0)));
    assert!(session.is_out_of_order(&request(10, 0)) && !session.is_out_of_order(&request(9, 1)));
    assert!(!session.is_out_of_order(&request(10, 1)));
}

#[test]
fn a_client_that_takes_no_backoffs_loses_its_connection() {
    let bench = Bench::new();
    let conn = connect();
    let request = bench.request(1, Op::Read { offset: 0, len: 0 });
    let probe = OsdBackoff { reqid: request.reqid, attempt: 0, epoch: Epoch(1) };
    let closed = (0..2000).any(|_| {
        backoff(&conn, &request, Epoch(1));
        matches!(conn.send(&probe), Err(Error::Closed))
    });
    assert!(closed, "it would wait for the requests whose backoffs were lost");
}

impl Bench {
    /// A client watches an object of its own; without a ping, the watch lapses after 30 s. Returns the time.
    fn watch(&self, tid: u64, conn: &ConnRef) -> u64 {
        let object = self.request(tid, Op::Stat).object;
        self.cell.with(|shard| {
            let watch = (CLIENT, 7);
            shard.watches.connect((0, &object), watch, 30, conn.clone(), shard.now_ns, &mut Vec::new());
            shard.now_ns
        })
    }

    /// Makes the watches without pings lapse at `now_ns`. Returns how many are being removed for this reason.
    fn lapsed_at(&self, now_ns: u64, answers: bool) -> usize {
        self.cell.with(|shard| {
            shard.now_ns = now_ns;
            if answers {
                shard.shared.heartbeats.lock().hold_lease(OTHER, now_ns);
            }
            let before = shard.ops.tokens_of(0).len();
            shard.check_watch_timeouts();
            shard.ops.tokens_of(0).len() - before
        })
    }
}

#[test]
fn a_ping_that_waits_for_its_pg_is_a_sign_of_life() {
    let bench = Bench::new();
    let conn = connect();
    let start_ns = bench.watch(1, &conn);
    let request = bench.request(1, Op::WatchPing { cookie: 7 });
    let arrival = IncomingRequest { request, conn, permit: None, arrived_ns: 0 };
    bench.cell.with(|shard| {
        shard.now_ns = start_ns + 20 * SECOND;
        shard.on_request(arrival);
    });
    assert_eq!(bench.unanswered(), 1, "no lease is held");
    assert_eq!(bench.lapsed_at(start_ns + 49 * SECOND, true), 0);
    assert_eq!(bench.lapsed_at(start_ns + 50 * SECOND, true), 1);
}

#[test]
fn a_ping_that_comes_during_a_long_turn_counts_from_then() {
    let bench = Bench::new();
    let conn = connect();
    let start_ns = bench.watch(1, &conn);
    let request = bench.request(1, Op::WatchPing { cookie: 7 });
    let arrival = IncomingRequest { request, conn, permit: None, arrived_ns: 0 };
    bench.cell.enter(|shard| {
        // The turn has waited for the store since then.
        shard.now_ns = start_ns.saturating_sub(20 * SECOND);
        bench.shared.inboxes[0].post(ShardMessage::Client(Box::new(arrival)));
    });
    assert_eq!(bench.lapsed_at(start_ns + 29 * SECOND, true), 0);
    assert_eq!(bench.lapsed_at(start_ns + 60 * SECOND, true), 1);
}

#[test]
fn no_watch_lapses_while_its_pg_can_not_answer() {
    let bench = Bench::new();
    let start_ns = bench.watch(1, &connect());
    assert_eq!(bench.lapsed_at(start_ns + 30 * SECOND, false), 0);
    assert_eq!(bench.lapsed_at(start_ns + 59 * SECOND, true), 0, "its client has its timeout again");
    assert_eq!(bench.lapsed_at(start_ns + 60 * SECOND, true), 1);
}

#[test]
fn a_watch_whose_removal_failed_lapses_again() {
    let bench = Bench::new();
    let start_ns = bench.watch(1, &connect());
    assert_eq!(bench.lapsed_at(start_ns + 30 * SECOND, true), 1);
    bench.cell.with(|shard| {
        shard.now_ns = start_ns + 30 * SECOND;
        let token = shard.ops.tokens_of(0)[0];
        shard.refuse(0, token, Errno::EIO);
    });
    bench.acknowledge();
    assert_eq!(bench.lapsed_at(start_ns + 31 * SECOND - 1, true), 0);
    assert_eq!(bench.lapsed_at(start_ns + 31 * SECOND, true), 1);
}

#[test]
fn requests_that_waited_do_not_nest() {
    const REQUESTS: u64 = 4000;
    // A small stack reveals nesting that a large one would hide until there are more requests.
    let small = std::thread::Builder::new().stack_size(512 << 10);
    let run = || {
        let mut bench = Bench::with(&[("osd_client_message_cap", "40000")]);
        let membership = bench.map.membership(PG).unwrap().clone();
        // With a higher min_size, the PG does not serve for a while.
        let pool = bench.map.pools[&PG.pool].clone();
        let strict = Pool::replicated("p", 3, 3, 0, 1, Epoch(1));
        bench.map.pools.insert(PG.pool, Arc::new(strict));
        bench.enter_interval(membership.clone());
        for tid in 1..=REQUESTS {
            bench.read(tid);
        }
        let executed = || bench.cell.inspect(|shard| shard.metrics.context_misses.get());
        assert_eq!((bench.unanswered(), executed()), (REQUESTS as usize, 0));
        bench.map.pools.insert(PG.pool, pool);
        bench.enter_interval(membership);
        bench.gain_lease();
        bench.cell.enter(|_| ()).unwrap();
        assert_eq!(bench.unanswered(), 0);
    };
    small.spawn(run).unwrap().join().unwrap();
}

#[test]
fn a_read_that_outlasts_the_lease_is_not_answered() {
    let bench = Bench::new();
    bench.gain_lease();
    assert!(bench.read(1), "the lease holds");
    bench.store.set_delay_ms(2 * TERM_MS);
    bench.gain_lease();
    assert!(!bench.read(2), "somebody else may have changed the object since the lease ran out");
    bench.store.set_delay_ms(0);
    bench.gain_lease();
    bench.cell.enter(|_| ()).unwrap();
    assert_eq!(bench.unanswered(), 0, "with a new lease it is");
}

#[test]
fn the_watchdog_sees_a_turn_that_waits_for_the_store() {
    let bench = Bench::new();
    let progress = &bench.shared.progress;
    bench.store.set_delay_ms(2 * TERM_MS);
    std::thread::scope(|scope| {
        let read = scope.spawn(|| bench.read(1));
        while progress.turn_since_ns(0).is_none() {
            assert!(!read.is_finished(), "the turn was over without being seen");
            std::thread::yield_now();
        }
    });
    assert!(progress.turn_since_ns(0).is_none());
}

#[test]
fn a_turn_ends_while_messages_keep_coming() {
    let bench = Bench::new();
    let inbox = Arc::clone(&bench.shared.inboxes[0]);
    let waits = || {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        std::pin::pin!(inbox.wait()).poll(&mut context).is_pending()
    };
    let count = 3 * MESSAGES_PER_TURN;
    for _ in 0..count {
        inbox.post(ShardMessage::Space { from: OTHER, space_bytes: 1 });
    }
    assert!(!waits());
    let turns = (1..).find(|_| {
        bench.cell.enter(|_| ()).unwrap();
        if !inbox.is_empty() {
            assert!(!waits(), "the shard's task is not told of what is left");
        }
        inbox.is_empty()
    });
    assert!(turns >= Some(3), "{count} messages in {turns:?} turns");
}

#[test]
fn a_shard_whose_store_refuses_a_change_says_nothing_more() {
    let bench = Bench::new();
    let conn = connect();
    bench.store.refuse_once();
    bench.arrive(bench.request(1, Op::Create { exclusive: false }), &conn, None);
    assert!(matches!(*bench.shared.state.borrow(), RunState::Failed(_)));
    // The machine assumes that the change was stored: it must not get another turn.
    assert!(bench.cell.enter(|_| ()).is_none());
    assert_eq!(bench.unanswered(), 1);
    conn.abort();
}

#[test]
fn what_was_sent_after_a_request_that_was_sent_back_does_not_overtake_it() {
    let mut bench = Bench::with(&[("osd_client_message_cap", "64")]);
    let conn = connect();
    let membership = bench.map.membership(PG).unwrap().clone();
    let pool = bench.map.pools[&PG.pool].clone();
    // With a higher min_size, the PG does not serve: it holds an eighth of what clients may have in flight.
    bench.map.pools.insert(PG.pool, Arc::new(Pool::replicated("p", 3, 3, 0, 1, Epoch(1))));
    bench.enter_interval(membership.clone());
    let sent: Vec<OsdRequest> = (1..=12)
        .map(|tid| OsdRequest { oldest_tid: 1, ..bench.request(tid, Op::Read { offset: 0, len: 0 }) })
        .collect();
    let send = |bench: &Bench, tid: usize| bench.arrive(sent[tid - 1].clone(), &conn, None);
    (1..=10).for_each(|tid| send(&bench, tid));
    assert_eq!(bench.unanswered(), 8);
    bench.map.pools.insert(PG.pool, pool);
    bench.enter_interval(membership);
    assert_eq!(bench.unanswered(), 8, "they wait for a lease");
    // These were in the socket when the PG started to serve.
    send(&bench, 11);
    send(&bench, 12);
    assert_eq!(bench.unanswered(), 8, "9 was sent back and has not come again");
    (9..=12).for_each(|tid| send(&bench, tid));
    assert_eq!(bench.unanswered(), 12);
    // A client that has given up the ninth request continues with the others.
    let session = conn.context::<Session>().unwrap();
    assert!(session.note_backoff(&sent[8]));
    assert!(session.is_out_of_order(&sent[9]) && !session.is_out_of_order(&sent[7]));
    assert!(!session.is_out_of_order(&OsdRequest { oldest_tid: 10, ..sent[9].clone() }));
    assert!(!session.is_out_of_order(&sent[10]));
}

#[test]
fn a_write_that_the_store_failed_does_not_take_effect_later() {
    for fail in [CountingStore::fail_once, CountingStore::fail_to_reserve_once] {
        let bench = Bench::new();
        let (conn, heard) = connect_and_hear();
        let request = bench.request(1, Op::Create { exclusive: true });
        bench.gain_lease();
        fail(&bench.store);
        bench.arrive(OsdRequest { attempt: 1, ..request.clone() }, &conn, None);
        bench.acknowledge();
        assert_eq!(heard.lock().results, [(1, EMFILE.negated())]);
        // The first attempt was in flight on an earlier connection.
        bench.arrive(request, &conn, None);
        bench.acknowledge();
        assert_eq!(heard.lock().results, [(1, EMFILE.negated()); 2]);
    }
}
