//! A cache that writes through. The test plays the base.

use super::*;
use bytes::Bytes;
use nacre_exec::CopiedObject;
use nacre_types::op::{CopyGetReply, copy_from_flag, request_flag};
use nacre_types::pool::{CacheMode, HitSetKind, flag};
use nacre_types::tier::{dirty_log_object, dirty_object};

const BASE: PoolId = PoolId(2);

impl Bench {
    /// Creates a PG of a cache in writeback mode that holds its leases.
    fn cache(writes_through: bool, options: &[(&str, &str)]) -> Bench {
        let mut bench = Bench::with(options);
        let mut cache = Pool::replicated("cache", 2, 2, 0, 1, Epoch(1));
        (cache.tiering.tier_of, cache.tiering.cache_mode) = (Some(BASE), CacheMode::Writeback);
        if writes_through {
            cache.flags |= flag::CACHE_WRITE_THROUGH;
        }
        let mut base = Pool::replicated("base", 2, 2, 0, 1, Epoch(1));
        base.tiering.tiers = vec![PG.pool];
        (base.tiering.read_tier, base.tiering.write_tier) = (Some(PG.pool), Some(PG.pool));
        for pool in [&mut cache, &mut base] {
            pool.tiering.overlay_epoch = Epoch(1);
        }
        bench.map.pools.insert(PG.pool, Arc::new(cache));
        bench.map.pools.insert(BASE, Arc::new(base));
        bench.map.pgs.insert(BASE, Arc::new(vec![None]));
        bench.next_interval();
        bench
    }

    /// A request on the object `x`.
    fn on_x(&self, tid: u64, op: Op) -> OsdRequest {
        OsdRequest { object: ObjectId::new(PG.pool, "", "", "x"), oldest_tid: 1, ..self.request(tid, op) }
    }

    fn append(&self, tid: u64) -> OsdRequest {
        self.on_x(tid, Op::Append { data: vec![b'a'; 4].into() })
    }

    /// The ticket of the only request to the base since the last call.
    fn asked_to(&self, what: impl Fn(&Op) -> bool) -> u64 {
        let asked = self.asked();
        let ops: Vec<_> = asked.iter().map(|(_, request)| request.ops[0].op.clone()).collect();
        assert!(ops.len() == 1 && what(&ops[0]), "{ops:?}");
        asked[0].0
    }

    fn asked_to_flush(&self) -> u64 {
        self.asked_to(|op| matches!(op, Op::CopyFrom { flags, .. } if flags & copy_from_flag::FLUSH != 0))
    }

    /// The base answers that the object does not exist.
    fn says_absent(&self, ticket: u64) {
        let head = CopyGetReply { is_absent: true, ..CopyGetReply::default() };
        let copy = Ok(Box::new(CopiedObject { head, ..CopiedObject::default() }));
        let fetched = crate::copy::FetchedSource { copy, share: None };
        self.cell.enter(|shard| shard.on_promotion_read(ticket, fetched)).unwrap();
    }

    fn says(&self, ticket: u64, result: i32) {
        let reqid = ReqId { client: ClientId(0), tid: 0 };
        let reply =
            OsdReply { reqid, attempt: 0, epoch: self.map.epoch, result, user_version: 0, ops: vec![] };
        self.cell.enter(|shard| shard.on_tier_reply(ticket, Ok(reply))).unwrap();
        self.acknowledge();
    }

    /// Request 1 creates `x` and waits for the flush. Returns the ticket of the flush.
    fn first_write(&self, conn: &ConnRef) -> u64 {
        self.arrive(self.append(1), conn, None);
        self.says_absent(self.asked_to(|op| matches!(op, Op::CopyFrom { .. })));
        self.acknowledge();
        self.asked_to_flush()
    }

    fn agent(&self, after_s: u64) {
        self.cell
            .enter(|shard| {
                shard.now_ns += after_s * SECOND;
                shard.shared.heartbeats.lock().hold_lease(OTHER, shard.now_ns);
                shard.run_due_agents();
            })
            .unwrap();
    }
}

#[test]
fn a_write_is_answered_when_the_base_has_it() {
    let bench = Bench::cache(true, &[]);
    let (conn, heard) = connect_and_hear();
    let flush = bench.first_write(&conn);
    assert_eq!(heard.lock().result(1), None, "only the cache has it");
    bench.says(flush, 0);
    assert_eq!(heard.lock().result(1), Some(0));
    // The object is clean: a read does not wait.
    bench.arrive(bench.on_x(2, Op::Read { offset: 0, len: 0 }), &conn, None);
    assert_eq!((heard.lock().result(2), bench.asked().len()), (Some(0), 0));

    let bench = Bench::cache(false, &[]);
    let (conn, heard) = connect_and_hear();
    bench.arrive(bench.append(1), &conn, None);
    bench.says_absent(bench.asked_to(|op| matches!(op, Op::CopyFrom { .. })));
    bench.acknowledge();
    assert_eq!((heard.lock().result(1), bench.asked().len()), (Some(0), 0), "it does not write through");
}

#[test]
fn what_waited_for_an_object_is_executed_before_what_came_later() {
    let bench = Bench::cache(false, &[]);
    let (conn, heard) = connect_and_hear();
    bench.arrive(bench.append(1), &conn, None);
    let ticket = bench.asked_to(|op| matches!(op, Op::CopyFrom { .. }));
    // With the promotion, the maximum number of writes is in flight.
    let (others, _) = connect_and_hear();
    for tid in 10..1033 {
        let object = ObjectId::new(PG.pool, "", "", &format!("o{tid}"));
        let flags = request_flag::IGNORE_CACHE;
        bench.arrive(OsdRequest { object, flags, ..bench.append(tid) }, &others, None);
    }
    let head = CopyGetReply { user_version: 7, ..CopyGetReply::default() };
    let copy = Ok(Box::new(CopiedObject { head, ..CopiedObject::default() }));
    let fetched = crate::copy::FetchedSource { copy, share: None };
    bench.cell.enter(|shard| shard.on_promotion_read(ticket, fetched)).unwrap();
    // These wait in the PG's machine, the first one for the promotion.
    bench.arrive(bench.append(2), &conn, None);
    bench.arrive(bench.append(3), &conn, None);
    (0..4).for_each(|_| bench.acknowledge());
    assert_eq!(heard.lock().results, [(1, 0), (2, 0), (3, 0)]);
}

#[test]
fn the_agent_flushes_more_at_a_time_while_clients_are_idle() {
    for (is_client_there, expected) in [(true, 2), (false, 16)] {
        let mut bench = Bench::cache(false, &[]);
        let mut cache = Pool::clone(&bench.map.pools[&PG.pool]);
        // Low speed: the 20 objects are all above the first ratio, and below the second.
        cache.tiering.target_max_objects = 100;
        (cache.tiering.dirty_ratio_micro, cache.tiering.dirty_high_ratio_micro) = (0, 900_000);
        bench.map.pools.insert(PG.pool, Arc::new(cache));
        bench.next_interval();
        let (conn, _) = connect_and_hear();
        for tid in 1..=20 {
            let object = ObjectId::new(PG.pool, "", "", &format!("o{tid}"));
            bench.arrive(OsdRequest { object, ..bench.append(tid) }, &conn, None);
            bench.says_absent(bench.asked_to(|op| matches!(op, Op::CopyFrom { .. })));
            bench.acknowledge();
        }
        // The PG's objects are counted.
        bench.cell.enter(|shard| (0..8).for_each(|_| shard.run_background())).unwrap();
        bench.asked();
        bench
            .cell
            .enter(|shard| {
                shard.now_ns += 2 * SECOND;
                shard.shared.heartbeats.lock().hold_lease(OTHER, shard.now_ns);
                shard.tiers.client_ns = if is_client_there { shard.now_ns } else { 0 };
                shard.run_due_agents();
            })
            .unwrap();
        assert_eq!(bench.asked().len(), expected, "a client is there: {is_client_there}");
    }
}

/// A cache in writeback mode that records dirty objects, after its agent has found that there is no log in the base.
fn cache_with_log() -> Bench {
    let mut bench = Bench::cache(false, &[]);
    let mut cache = Pool::clone(&bench.map.pools[&PG.pool]);
    cache.flags |= flag::CACHE_DIRTY_LOG;
    bench.map.pools.insert(PG.pool, Arc::new(cache));
    bench.next_interval();
    // The PG's objects are counted.
    bench.cell.enter(|shard| (0..8).for_each(|_| shard.run_background())).unwrap();
    bench.agent(2);
    let read = bench.asked_to(|op| matches!(op, Op::OmapGetVals { .. }));
    bench.says(read, Errno::ENOENT.negated());
    bench
}

/// The names that a request on a log records, and the names that it removes.
fn recorded(request: &OsdRequest) -> (Vec<String>, Vec<String>) {
    let name = |key: &Bytes| dirty_object(key).unwrap().name().to_owned();
    let (mut set, mut removed) = (Vec::new(), Vec::new());
    for op in &request.ops {
        match &op.op {
            Op::OmapSet { entries } => set.extend(entries.iter().map(|(key, _)| name(key))),
            Op::OmapRmKeys { keys } => removed.extend(keys.iter().map(name)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(request.object, dirty_log_object(BASE, PG));
    set.sort_unstable();
    (set, removed)
}

#[test]
fn a_write_waits_until_the_base_has_the_name_of_what_it_makes_dirty() {
    let bench = cache_with_log();
    let (conn, heard) = connect_and_hear();
    bench.arrive(bench.append(1), &conn, None);
    let asked = bench.asked();
    assert_eq!((asked.len(), recorded(&asked[0].1)), (1, (vec!["x".to_owned()], vec![])));
    // The other names wait for the answer and are sent together.
    for (tid, name) in [(2, "y"), (3, "z")] {
        let other = OsdRequest { object: ObjectId::new(PG.pool, "", "", name), ..bench.append(tid) };
        bench.arrive(other, &conn, None);
    }
    assert_eq!(bench.asked().len(), 0);
    bench.says(asked[0].0, 0);
    let asked = bench.asked();
    let (promotions, logs): (Vec<_>, Vec<_>) =
        asked.into_iter().partition(|(_, request)| matches!(request.ops[0].op, Op::CopyFrom { .. }));
    assert_eq!((promotions.len(), logs.len()), (1, 1));
    assert_eq!(recorded(&logs[0].1), (vec!["y".to_owned(), "z".to_owned()], vec![]));
    bench.says_absent(promotions[0].0);
    bench.acknowledge();
    assert_eq!(heard.lock().results, [(1, 0)]);
    // The base refuses: waiting clients send again.
    bench.says(logs[0].0, Errno::ENOSPC.negated());
    assert_eq!((heard.lock().result(2), bench.asked().len()), (None, 0));
    // A second write on the first object needs no record.
    let (other, heard) = connect_and_hear();
    bench.arrive(bench.append(4), &other, None);
    bench.acknowledge();
    assert_eq!((heard.lock().result(4), bench.asked().len()), (Some(0), 0));
}

#[test]
fn names_of_clean_objects_leave_the_base() {
    let bench = cache_with_log();
    let (conn, heard) = connect_and_hear();
    bench.arrive(bench.append(1), &conn, None);
    let asked = bench.asked();
    bench.says(asked[0].0, 0);
    bench.says_absent(bench.asked_to(|op| matches!(op, Op::CopyFrom { .. })));
    bench.acknowledge();
    assert_eq!(heard.lock().result(1), Some(0));
    bench.agent(2);
    assert_eq!(bench.asked().len(), 0, "it is dirty");
    bench.arrive(bench.on_x(2, Op::CacheFlush), &conn, None);
    let flush = bench.asked_to_flush();
    bench.says(flush, 0);
    bench.acknowledge();
    bench.agent(2);
    let asked = bench.asked();
    assert_eq!((asked.len(), recorded(&asked[0].1)), (1, (vec![], vec!["x".to_owned()])));
    // A write that arrives now records the name again, after the removal.
    bench.arrive(bench.append(3), &conn, None);
    assert_eq!((heard.lock().result(3), bench.asked().len()), (None, 0));
    bench.says(asked[0].0, 0);
    let asked = bench.asked();
    assert_eq!((asked.len(), recorded(&asked[0].1)), (1, (vec!["x".to_owned()], vec![])));
    bench.says(asked[0].0, 0);
    bench.acknowledge();
    assert_eq!(heard.lock().result(3), Some(0));
}

#[test]
fn a_new_primary_hit_set_has_the_writes_of_the_log() {
    let mut bench = Bench::cache(false, &[]);
    let (conn, _) = connect_and_hear();
    bench.arrive(bench.append(1), &conn, None);
    bench.says_absent(bench.asked_to(|op| matches!(op, Op::CopyFrom { .. })));
    bench.acknowledge();
    let mut cache = Pool::clone(&bench.map.pools[&PG.pool]);
    cache.tiering.hit_set = HitSetKind::ExplicitObject;
    (cache.tiering.hit_set_count, cache.tiering.hit_set_period_s) = (4, 3600);
    bench.map.pools.insert(PG.pool, Arc::new(cache));
    bench.next_interval();
    let is_recorded = |bench: &Bench| {
        let x = ObjectId::new(PG.pool, "", "", "x");
        bench.cell.enter(|shard| {
            let hosted = shard.slots.iter().flatten().find(|hosted| hosted.pg == PG).unwrap();
            hosted.cache.as_ref().unwrap().history.is_in_current(&x)
        })
    };
    assert_eq!(is_recorded(&bench), Some(true), "the log has it");
}

#[test]
fn what_comes_during_a_flush_goes_into_the_next_one_together() {
    let bench = Bench::cache(true, &[]);
    let (conn, heard) = connect_and_hear();
    let flush = bench.first_write(&conn);
    for tid in 2..=5 {
        bench.arrive(bench.append(tid), &conn, None);
    }
    bench.arrive(bench.on_x(6, Op::Read { offset: 0, len: 0 }), &conn, None);
    bench.acknowledge();
    assert_eq!((heard.lock().results.clone(), bench.asked().len()), (vec![], 0));
    bench.says(flush, 0);
    bench.acknowledge();
    assert_eq!(heard.lock().results, [(1, 0)]);
    let flush = bench.asked_to_flush();
    bench.says(flush, 0);
    let mut results = heard.lock().results.clone();
    results.sort_unstable();
    assert_eq!(results, (1..=6).map(|tid| (tid, 0)).collect::<Vec<_>>());
    assert_eq!(bench.asked().len(), 0);
}

#[test]
fn a_flush_carries_no_more_writes_than_it_has_records_of() {
    let bench = Bench::cache(true, &[]);
    let (conn, heard) = connect_and_hear();
    let flush = bench.first_write(&conn);
    let most = nacre_exec::MAX_COPIED_REQIDS as u64;
    for tid in 2..=2 + most {
        bench.arrive(bench.append(tid), &conn, None);
    }
    bench.says(flush, 0);
    bench.acknowledge();
    let flush = bench.asked_to_flush();
    bench.says(flush, 0);
    assert_eq!(heard.lock().results.len() as u64, 1 + most, "one waits for the next flush");
    bench.acknowledge();
    let flush = bench.asked_to_flush();
    bench.says(flush, 0);
    assert_eq!(heard.lock().results.len() as u64, 2 + most);
}

#[test]
fn a_resend_waits_for_the_flush_too() {
    let mut bench = Bench::cache(true, &[]);
    let (conn, heard) = connect_and_hear();
    let early = bench.first_write(&conn);
    bench.next_interval();
    assert_eq!(heard.lock().backoffs, [1]);
    // Nothing of the previous interval counts.
    bench.says(early, 0);
    assert_eq!(heard.lock().result(1), None);
    bench.arrive(OsdRequest { attempt: 1, ..bench.append(1) }, &conn, None);
    bench.acknowledge();
    assert_eq!(heard.lock().result(1), None, "the log knows it, the base does not");
    let flush = bench.asked_to_flush();
    // A read of an unflushed change waits too, and another write waits until that change is flushed.
    bench.arrive(bench.on_x(2, Op::Stat), &conn, None);
    assert_eq!(heard.lock().result(2), None);
    bench.says(flush, 0);
    assert_eq!(heard.lock().result(1), Some(0));
    assert_eq!(heard.lock().result(2), Some(0));
}

#[test]
fn a_removal_is_answered_when_the_base_has_removed_the_object() {
    let bench = Bench::cache(true, &[]);
    let (conn, heard) = connect_and_hear();
    bench.says(bench.first_write(&conn), 0);
    bench.arrive(bench.on_x(2, Op::Remove), &conn, None);
    bench.acknowledge();
    let removal = bench.asked_to(|op| matches!(op, Op::Remove));
    assert_eq!(heard.lock().result(2), None);
    bench.says(removal, 0);
    assert_eq!(heard.lock().result(2), Some(0));
}

#[test]
fn a_base_without_room_holds_writes_and_their_clients_are_sent_back_in_the_end() {
    let bench = Bench::cache(true, &[]);
    let (conn, heard) = connect_and_hear();
    let mut flush = bench.first_write(&conn);
    bench.arrive(bench.append(2), &conn, None);
    for _ in 0..5 {
        bench.says(flush, Errno::ENOSPC.negated());
        assert_eq!(bench.asked().len(), 0, "not at once");
        bench.agent(2);
        flush = bench.asked_to_flush();
    }
    assert!(heard.lock().results.is_empty());
    assert!(heard.lock().backoffs.is_empty());
    let mut tries = 5;
    loop {
        bench.says(flush, Errno::ENOSPC.negated());
        bench.agent(2);
        tries += 1;
        assert!(tries < 100);
        match bench.asked().pop() {
            Some((ticket, _)) => flush = ticket,
            None => break,
        }
    }
    assert!(heard.lock().results.is_empty());
    assert_eq!(heard.lock().backoffs, [1, 2], "after {tries}");
    // The base has room again.
    for tid in [1, 2] {
        bench.arrive(OsdRequest { attempt: 1, ..bench.append(tid) }, &conn, None);
    }
    bench.acknowledge();
}

#[test]
fn what_waits_for_flushes_is_bounded() {
    let bench = Bench::cache(true, &[("osd_client_message_cap", "24")]);
    let (conn, heard) = connect_and_hear();
    let flush = bench.first_write(&conn);
    for tid in 2..=9 {
        bench.arrive(bench.append(tid), &conn, None);
    }
    assert_eq!(heard.lock().backoffs, (4..=9).collect::<Vec<_>>(), "three of them wait");
    bench.says(flush, 0);
    bench.acknowledge();
    bench.says(bench.asked_to_flush(), 0);
    assert_eq!(heard.lock().results, [(1, 0), (2, 0), (3, 0)]);
}
