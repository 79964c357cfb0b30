//! Operations in the PG of a cache. The test plays the base.

use super::*;
use crate::copy::FetchedSource;
use nacre_exec::CopiedObject;
use nacre_objectstore::ReadStore;
use nacre_types::op::CopyGetReply;
use nacre_types::op::request_flag;
use nacre_types::pool::CacheMode;
use nacre_types::tier::TierSender;

const BASE: PoolId = PoolId(2);

impl Bench {
    /// Makes the pool a cache in use, and starts an interval.
    fn becomes_cache(&mut self, mode: CacheMode) {
        let overlay_epoch = self.map.epoch.next();
        let mut cache = Pool::replicated("p", 2, 2, 0, 1, Epoch(1));
        cache.tiering.tier_of = Some(BASE);
        cache.tiering.cache_mode = mode;
        cache.tiering.overlay_epoch = overlay_epoch;
        let mut base = Pool::replicated("base", 2, 2, 0, 1, Epoch(1));
        base.tiering.tiers = vec![PG.pool];
        (base.tiering.read_tier, base.tiering.write_tier) = (Some(PG.pool), Some(PG.pool));
        base.tiering.overlay_epoch = overlay_epoch;
        self.map.pools.insert(PG.pool, Arc::new(cache));
        self.map.pools.insert(BASE, Arc::new(base));
        self.next_interval();
    }

    /// A request for the one object of these tests.
    fn ask(&self, tid: u64, op: Op) -> OsdRequest {
        let object = ObjectId::new(PG.pool, "", "", "object");
        OsdRequest { object, oldest_tid: 1, ..self.request(tid, op) }
    }

    fn only_asked(&self) -> (u64, OsdRequest) {
        let mut asked = self.asked();
        assert_eq!(asked.len(), 1, "{asked:?}");
        asked.remove(0)
    }

    /// The base returns the object, with this data.
    fn base_has(&self, ticket: u64, data: &'static str) {
        let head = CopyGetReply { size: data.len() as u64, user_version: 7, ..CopyGetReply::default() };
        let copied = CopiedObject { head, data: vec![data.into()], ..CopiedObject::default() };
        let fetched = FetchedSource { copy: Ok(Box::new(copied)), share: None };
        self.cell.enter(|shard| shard.on_promotion_read(ticket, fetched)).unwrap();
        self.acknowledge();
        self.cell.enter(|_| ()).unwrap();
    }

    fn base_answers(&self, ticket: u64, result: i32) {
        let reply = OsdReply {
            reqid: ReqId { client: ClientId(0), tid: 0 },
            attempt: 0,
            epoch: self.map.epoch,
            result,
            user_version: 9,
            ops: Vec::new(),
        };
        self.cell.enter(|shard| shard.on_tier_reply(ticket, Ok(reply))).unwrap();
        self.cell.enter(|_| ()).unwrap();
    }

    fn hits_and_misses(&self) -> (u64, u64) {
        self.cell.inspect(|shard| (shard.metrics.tier_hits.get(), shard.metrics.tier_misses.get()))
    }
}

fn read() -> Op {
    Op::Read { offset: 0, len: 0 }
}

fn write(data: &'static str) -> Op {
    Op::WriteFull { data: data.into() }
}

#[test]
fn a_miss_is_promoted_and_then_hit() {
    let mut bench = Bench::new();
    bench.becomes_cache(CacheMode::Writeback);
    let (conn, heard) = connect_and_hear();
    bench.arrive(bench.ask(1, read()), &conn, None);
    let (ticket, asked) = bench.only_asked();
    assert!(matches!(asked.ops[0].op, Op::CopyFrom { .. }) && asked.object.pool() == BASE, "{asked:?}");
    assert_eq!(asked.tier.map(|sender| sender.interval), Some(bench.map.interval(PG)));
    assert_eq!(heard.lock().result(1), None, "it waits for its object");
    bench.base_has(ticket, "data");
    assert_eq!(heard.lock().result(1), Some(0));
    bench.arrive(bench.ask(2, read()), &conn, None);
    assert_eq!(heard.lock().result(2), Some(0));
    assert!(bench.asked().is_empty(), "the cache has it");
    assert_eq!(bench.hits_and_misses(), (1, 1), "what waited for its promotion counts once");
}

#[test]
fn a_miss_in_mode_proxy_is_answered_by_the_base() {
    let mut bench = Bench::new();
    bench.becomes_cache(CacheMode::Proxy);
    let (conn, heard) = connect_and_hear();
    for (tid, op) in [(1, read()), (2, write("data"))] {
        bench.arrive(bench.ask(tid, op), &conn, None);
        let (ticket, asked) = bench.only_asked();
        assert!(asked.flags & request_flag::IGNORE_OVERLAY != 0 && asked.object.pool() == BASE);
        let client = asked.tier.unwrap().client.unwrap();
        assert_eq!(client.reqid, ReqId { client: CLIENT, tid }, "the base knows whose request it is");
        assert_eq!(heard.lock().result(tid), None);
        bench.base_answers(ticket, -5);
        assert_eq!(heard.lock().result(tid), Some(-5));
    }
    assert_eq!(bench.hits_and_misses(), (0, 2));
}

#[test]
fn operations_parked_behind_a_promotion_go_on_in_order() {
    let mut bench = Bench::new();
    bench.becomes_cache(CacheMode::Writeback);
    let (conn, heard) = connect_and_hear();
    bench.arrive(bench.ask(1, read()), &conn, None);
    let (ticket, _) = bench.only_asked();
    for (tid, data) in [(2, "first"), (3, "second"), (4, "third")] {
        bench.arrive(bench.ask(tid, write(data)), &conn, None);
    }
    bench.arrive(bench.ask(5, read()), &conn, None);
    assert!(bench.asked().is_empty() && heard.lock().results.is_empty());
    bench.base_has(ticket, "data");
    for _ in 0..5 {
        bench.acknowledge();
        bench.cell.enter(|_| ()).unwrap();
    }
    let order: Vec<u64> = heard.lock().results.iter().map(|(tid, _)| *tid).collect();
    assert_eq!(order, [1, 2, 3, 4, 5]);
    assert!(heard.lock().results.iter().all(|(_, result)| *result == 0), "{:?}", heard.lock().results);
    let object = bench.ask(6, read()).object;
    let data = bench.store.read(PG, &object, 0, 100).unwrap();
    assert_eq!(&data[..], b"third");
}

#[test]
fn requests_of_maps_older_than_the_overlay_are_sent_back() {
    let mut bench = Bench::new();
    bench.becomes_cache(CacheMode::Writeback);
    let (conn, heard) = connect_and_hear();
    let before = Epoch(bench.map.epoch.0 - 1);
    bench.arrive(OsdRequest { epoch: before, ..bench.ask(1, write("data")) }, &conn, None);
    assert_eq!(heard.lock().backoffs, [1]);
    assert!(heard.lock().results.is_empty());
    assert!(bench.asked().is_empty());
}

#[test]
fn what_waits_is_sent_back_when_the_interval_ends() {
    let mut bench = Bench::new();
    bench.becomes_cache(CacheMode::Writeback);
    let (conn, heard) = connect_and_hear();
    bench.arrive(bench.ask(1, read()), &conn, None);
    bench.arrive(bench.ask(2, write("data")), &conn, None);
    let (ticket, _) = bench.only_asked();
    bench.next_interval();
    assert_eq!(heard.lock().backoffs, [1, 2]);
    bench.base_has(ticket, "late");
    bench.arrive(bench.ask(3, read()), &conn, None);
    assert_eq!((bench.asked().len(), heard.lock().result(3)), (1, None), "the late copy was not taken");
}

#[test]
fn a_deposed_primary_of_the_cache_is_refused() {
    let mut bench = Bench::new();
    // The pool is the base now, and the other one its cache, which has this PG.
    let cache_pg = PgId { pool: BASE, seed: 0 };
    let overlay_epoch = bench.map.epoch.next();
    let mut base = Pool::replicated("p", 2, 2, 0, 1, Epoch(1));
    base.tiering.tiers = vec![BASE];
    (base.tiering.read_tier, base.tiering.write_tier) = (Some(BASE), Some(BASE));
    base.tiering.overlay_epoch = overlay_epoch;
    let mut cache = Pool::replicated("cache", 2, 2, 0, 1, Epoch(1));
    cache.tiering.tier_of = Some(PG.pool);
    cache.tiering.cache_mode = CacheMode::Writeback;
    cache.tiering.overlay_epoch = overlay_epoch;
    bench.map.pools.insert(PG.pool, Arc::new(base));
    bench.map.pools.insert(BASE, Arc::new(cache));
    let of_cache = bench.map.membership(PG).unwrap().clone();
    let interval = of_cache.interval.next();
    bench.map.pgs.insert(BASE, Arc::new(vec![Some(PgMembership { interval, ..of_cache })]));
    bench.next_interval();
    let (conn, heard) = connect_as(EntityName::osd(OTHER));
    let sender = |interval, epoch| {
        Some(Box::new(TierSender { pg: cache_pg, interval, epoch, client: None, user_version: 0 }))
    };
    let before = Interval::creation(1);
    assert!(before < interval);
    for (tid, tier) in [(1, sender(before, bench.map.epoch)), (2, sender(interval, Epoch(1)))] {
        let flags = request_flag::IGNORE_OVERLAY;
        bench.arrive(OsdRequest { tier, flags, ..bench.ask(tid, write("late")) }, &conn, None);
        let refused = Errno::ENOTCONN.negated();
        assert_eq!(heard.lock().result(tid), Some(refused), "request {tid}");
    }
    let tier = sender(interval, bench.map.epoch);
    let flags = request_flag::IGNORE_OVERLAY;
    bench.arrive(OsdRequest { tier, flags, ..bench.ask(3, write("data")) }, &conn, None);
    bench.acknowledge();
    assert_eq!(heard.lock().result(3), Some(0), "its successor is not");
}
