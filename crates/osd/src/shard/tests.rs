//! A shard without threads and sockets: the primary of one PG, whose other member is played by the test.

use super::ops::InflightOp;
use super::*;
use crate::server::share;
use arc_swap::ArcSwapOption;
use nacre_common::config::ConfigBuilder;
use nacre_exec::testing::Counting;
use nacre_pg::{ClientOp, MemberInfo};
use nacre_store::MemStore;
use nacre_types::ids::{ClientId, EntityName, Incarnation, PoolId, ReqId};
use nacre_types::msg::OsdRequest;
use nacre_types::object::{ObjectId, SNAP_HEAD};
use nacre_types::op::{Op, OsdOp};
use nacre_types::osdmap::{Member, OsdInfo, PgMembership};
use nacre_types::pool::Pool;
use uuid::Uuid;

const PG: PgId = PgId { pool: PoolId(1), seed: 0 };
const OTHER: OsdId = OsdId(1);
/// How long a lease lasts: osd_heartbeat_grace times osd_pool_default_read_lease_ratio.
const TERM_MS: u64 = 300;

/// The shard of osd.0.
struct Bench {
    _directory: tempfile::TempDir,
    store: Arc<Counting>,
    shared: Arc<Shared>,
    cell: ShardCell,
    map: OsdMap,
}

impl Bench {
    /// The PG is active; no lease is held.
    fn new() -> Bench {
        let directory = tempfile::tempdir().unwrap();
        MemStore::mkfs(directory.path()).unwrap();
        let (store, report) = MemStore::mount(directory.path(), Default::default()).unwrap();
        let store = Arc::new(Counting::new(store));
        let config = ConfigBuilder::new(EntityName::osd(OsdId(0)))
            .set("osd_heartbeat_grace", "1")
            .set("osd_pool_default_read_lease_ratio", "0.3")
            .set("osd_op_num_shards", "1");
        let me = Member { osd: OsdId(0), incarnation: report.incarnation };
        let no_ticket = Arc::new(ArcSwapOption::empty());
        let config = config.build().unwrap();
        let shared = share(&config, me, Uuid::nil(), store.clone(), &no_ticket);
        let other = Member { osd: OTHER, incarnation: Incarnation(Uuid::from_u128(7)) };
        let mut map = OsdMap::new(Uuid::nil(), 0, Default::default());
        map.pools.insert(PG.pool, Arc::new(Pool::replicated("p", 2, 2, 0, 1, Epoch(1))));
        for (member, boot_nonce) in [(me, shared.boot_nonce), (other, 9)] {
            let incarnation = Some(member.incarnation);
            map.osds.insert(member.osd, OsdInfo { up: true, incarnation, boot_nonce, ..OsdInfo::absent() });
        }
        let cell = ShardCell::new(&shared, 0);
        let mut bench = Bench { _directory: directory, store, shared, cell, map };
        // Members begin their copies in the first interval, and order updates in the second one.
        let first =
            PgMembership { interval: Interval::creation(1), primary: me.osd, in_sync: vec![me, other] };
        let second = PgMembership { interval: first.interval.next(), ..first.clone() };
        for membership in [first, second] {
            bench.enter_interval(membership);
        }
        assert!(bench.cell.inspect(|shard| shard.slots[0].as_ref().unwrap().active));
        bench
    }

    fn enter_interval(&mut self, membership: PgMembership) {
        let interval = membership.interval;
        self.map.epoch = self.map.epoch.next();
        self.map.pgs.insert(PG.pool, Arc::new(vec![Some(membership)]));
        let map = Arc::new(self.map.clone());
        let up: UpMap = Arc::new([(PG, vec![OsdId(0), OTHER])].into());
        self.cell.enter(|shard| shard.on_map(map, up, Arc::from([]))).unwrap();
        let info = MemberInfo { exists: true, complete: true, boot_nonce: 9, ..MemberInfo::default() };
        // Of the questions only the latest counts; which number it has is the machine's business.
        for round in 1..10 {
            let msg = PeerMsg::Info { interval, round, info: info.clone(), versions: None };
            let envelope = PgEnvelope { pg: PG, space_bytes: u64::MAX, msg };
            self.cell.enter(|shard| shard.on_peer(OTHER, envelope)).unwrap();
        }
    }

    /// The other member grants a lease that was asked for just now.
    fn gain_lease(&self) {
        self.shared.heartbeats.lock().hold_lease(OTHER, clock::boot_ns());
        self.shared.post_all(|| ShardMessage::Leases);
    }

    /// A client reads an object that was not asked for before. Returns whether it has its answer at the end of that turn.
    fn read(&self, tid: u64) -> bool {
        let (reqid, interval) = (ReqId { client: ClientId(4), tid }, self.map.interval(PG));
        let object = ObjectId::new(PG.pool, "", "", &format!("o{tid}"));
        let request = OsdRequest {
            reqid,
            oldest_tid: tid,
            attempt: 0,
            epoch: self.map.epoch,
            pg: PG,
            interval,
            object: object.clone(),
            mtime_ns: 0,
            flags: 0,
            snap: SNAP_HEAD,
            snap_context: None,
            ops: vec![OsdOp::from(Op::Read { offset: 0, len: 0 })],
        };
        let op = ClientOp {
            token: 0,
            reqid,
            oldest_tid: tid,
            attempt: 0,
            interval,
            object,
            write: false,
            listing: false,
        };
        self.cell
            .enter(|shard| {
                let now_ns = shard.now_ns;
                let track = shard.tracker.start(&request, None, now_ns, now_ns);
                let in_hand = InflightOp::new(request, None, reqid.client, 0, track, now_ns, false);
                shard.feed_new(0, op, in_hand);
            })
            .unwrap();
        self.unanswered() == 0
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
        while !progress.is_in_turn(0) {
            assert!(!read.is_finished(), "the turn was over without being seen");
            std::thread::yield_now();
        }
    });
    assert!(!progress.is_in_turn(0));
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
