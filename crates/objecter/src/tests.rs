use super::*;
use nacre_crush::CrushMap;
use nacre_types::op::{Op, OsdOp, request_flag};
use nacre_types::osdmap::{Member, OsdInfo, PgMembership, flag};
use nacre_types::pool::Pool;
use nacre_types::{Incarnation, object::SNAP_HEAD};
use uuid::Uuid;

const BASE: PoolId = PoolId(1);
const TIER: PoolId = PoolId(2);

#[derive(Debug, PartialEq)]
enum Event {
    /// OSD, tid, attempt, PG, interval.
    Sent(u32, u64, u32, PgId, u64),
    Closed(u32),
    Done(u32, Result<i32, Errno>),
}

#[derive(Default)]
struct Recorder {
    events: Vec<Event>,
    oldest: Vec<u64>,
    /// Requests for which the out-queue still has room, if it is bounded.
    room: Option<usize>,
}

impl Sink<u32> for Recorder {
    fn send(&mut self, osd: OsdId, addr: SocketAddr, request: &OsdRequest) -> SendOutcome {
        match &mut self.room {
            Some(0) => return SendOutcome::Full,
            Some(room) => *room -= 1,
            None => {}
        }
        assert_eq!(addr, address(osd.0));
        assert_eq!(request.object.pool(), request.pg.pool);
        let OsdRequest { reqid, attempt, pg, interval, .. } = request;
        self.events.push(Event::Sent(osd.0, reqid.tid, *attempt, *pg, interval.0));
        self.oldest.push(request.oldest_tid);
        SendOutcome::Queued
    }

    fn close(&mut self, osd: OsdId) {
        self.events.push(Event::Closed(osd.0));
    }

    fn complete(&mut self, token: u32, result: Result<Answer, Error>) {
        let result = result.map(|answer| answer.reply.result).map_err(|error| error.errno());
        self.events.push(Event::Done(token, result));
    }
}

fn address(osd: u32) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 40_000 + osd as u16))
}

fn osd_info(osd: u32) -> OsdInfo {
    OsdInfo {
        up: true,
        addr: Some(address(osd)),
        incarnation: Some(Incarnation(Uuid::from_u128(100 + u128::from(osd)))),
        boot_nonce: 1,
        ..OsdInfo::never_up()
    }
}

fn membership(interval: u64, osds: &[u32]) -> Option<PgMembership> {
    let member = |osd: &u32| Member {
        osd: OsdId(*osd),
        incarnation: Incarnation(Uuid::from_u128(100 + u128::from(*osd))),
    };
    Some(PgMembership {
        interval: Interval(interval),
        primary: OsdId(osds[0]),
        in_sync: osds.iter().map(member).collect(),
    })
}

/// Three OSDs; two pools of one PG each: osd.0 is the primary of PG 1.0, osd.1 of PG 2.0.
fn map() -> OsdMap {
    let mut map = OsdMap::new(Uuid::nil(), 0, CrushMap::default());
    map.pool_max = TIER;
    for osd in 0..3 {
        map.osds.insert(OsdId(osd), osd_info(osd));
    }
    for (pool, first) in [(BASE, 0), (TIER, 1)] {
        map.pools.insert(pool, Arc::new(Pool::replicated("p", 3, 2, 0, 1, Epoch(1))));
        map.pgs.insert(pool, Arc::new(vec![membership(1, &[first, (first + 1) % 3, (first + 2) % 3])]));
    }
    map
}

struct World {
    objecter: Objecter<u32>,
    sink: Recorder,
    map: OsdMap,
    token: u32,
}

impl World {
    fn new() -> World {
        let mut world =
            World { objecter: Objecter::new(ClientId(7)), sink: Recorder::default(), map: map(), token: 0 };
        world.publish(|_| {});
        world
    }

    fn publish(&mut self, change: impl FnOnce(&mut OsdMap)) {
        self.map.epoch = self.map.epoch.next();
        change(&mut self.map);
        self.objecter.on_map(Arc::new(self.map.clone()), 0, &mut self.sink);
    }

    fn submit_op(&mut self, op: Op, flags: u32, deadline_ms: Option<u64>) {
        let submission = Submission {
            object: ObjectId::new(BASE, "", "", "name"),
            ops: vec![OsdOp::from(op)],
            flags,
            snap: SNAP_HEAD,
            snap_context: None,
            mtime_ns: 0,
            deadline_ms,
            tier: None,
        };
        self.token += 1;
        self.objecter.submit(submission, self.token, 0, &mut self.sink);
    }

    fn write(&mut self) {
        self.submit_op(Op::Truncate { size: 1 }, 0, None);
    }

    fn read(&mut self) {
        self.submit_op(Op::Stat, 0, None);
    }

    fn reply(&mut self, tid: u64, attempt: u32) {
        let reqid = ReqId { client: ClientId(7), tid };
        let reply = OsdReply { reqid, attempt, epoch: Epoch(1), result: 0, user_version: 1, ops: Vec::new() };
        self.objecter.on_reply(reply, &mut self.sink);
    }

    fn backoff(&mut self, tid: u64, attempt: u32, epoch: Epoch, now_ms: u64) {
        let reqid = ReqId { client: ClientId(7), tid };
        self.objecter.on_backoff(OsdBackoff { reqid, attempt, epoch }, now_ms);
    }

    fn tick(&mut self, now_ms: u64) {
        self.objecter.on_tick(now_ms, &mut self.sink);
    }

    fn take(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.sink.events)
    }
}

fn base_pg() -> PgId {
    PgId::new(BASE, 0)
}

fn sent(osd: u32, tid: u64, attempt: u32, interval: u64) -> Event {
    Event::Sent(osd, tid, attempt, base_pg(), interval)
}

fn set_membership(map: &mut OsdMap, interval: u64, osds: &[u32]) {
    Arc::make_mut(map.pgs.get_mut(&BASE).unwrap())[0] = membership(interval, osds);
}

fn change_pool(map: &mut OsdMap, pool: PoolId, change: impl FnOnce(&mut Pool)) {
    change(Arc::make_mut(map.pools.get_mut(&pool).unwrap()));
}

#[test]
fn requests_go_to_the_primary_and_complete_once() {
    let mut world = World::new();
    world.write();
    world.read();
    assert_eq!(world.take(), [sent(0, 1, 0, 1), sent(0, 2, 0, 1)]);
    world.reply(2, 0);
    world.reply(2, 0);
    assert_eq!(world.take(), [Event::Done(2, Ok(0))]);
    assert_eq!(world.objecter.in_flight(), 1);
}

#[test]
fn requests_before_the_first_map_wait_for_it() {
    let mut world = World::new();
    world.objecter = Objecter::new(ClientId(7));
    world.write();
    assert_eq!(world.take(), []);
    world.publish(|_| {});
    assert_eq!(world.take(), [sent(0, 1, 0, 1)]);
}

#[test]
fn a_new_interval_resends_in_tid_order() {
    let mut world = World::new();
    for _ in 0..3 {
        world.write();
    }
    world.reply(2, 0);
    world.take();
    world.publish(|map| set_membership(map, 2, &[1, 2]));
    assert_eq!(world.take(), [sent(1, 1, 1, 2), sent(1, 3, 1, 2)]);
    // The same primary receives them again in a later interval: it dropped the earlier ones.
    world.publish(|map| set_membership(map, 3, &[1]));
    assert_eq!(world.take(), [sent(1, 1, 2, 3), sent(1, 3, 2, 3)]);
    world.publish(|map| map.flags |= flag::NOOUT);
    assert_eq!(world.take(), []);
    // An answer to an earlier attempt counts.
    world.reply(1, 1);
    assert_eq!(world.take(), [Event::Done(1, Ok(0))]);
}

#[test]
fn a_restarted_primary_gets_everything_again_on_a_new_connection() {
    let mut world = World::new();
    world.write();
    world.take();
    world.publish(|map| map.osds.get_mut(&OsdId(0)).unwrap().boot_nonce = 2);
    assert_eq!(world.take(), [Event::Closed(0), sent(0, 1, 1, 1)]);
}

#[test]
fn a_connection_without_requests_is_closed_with_its_process() {
    let restarted: fn(&mut OsdInfo) = |info| info.boot_nonce = 2;
    let moved: fn(&mut OsdInfo) = |info| info.addr = Some(address(9));
    let ended: fn(&mut OsdInfo) = |info| info.up = false;
    for change in [restarted, moved, ended] {
        // Independent of whether the client is blocklisted.
        for blocklisted in [false, true] {
            let mut world = World::new();
            assert_eq!(world.objecter.open_session(OsdId(2)), Some(address(2)));
            world.publish(|map| {
                change(map.osds.get_mut(&OsdId(2)).unwrap());
                if blocklisted {
                    map.blocklist.insert("client.7".into(), u64::MAX);
                }
            });
            assert_eq!(world.take(), [Event::Closed(2)]);
        }
    }
    let mut world = World::new();
    world.publish(|map| map.osds.get_mut(&OsdId(2)).unwrap().up = false);
    assert_eq!(world.objecter.open_session(OsdId(2)), None);
}

#[test]
fn requests_wait_while_the_primary_is_down() {
    let mut world = World::new();
    world.write();
    world.take();
    world.publish(|map| map.osds.get_mut(&OsdId(0)).unwrap().up = false);
    world.write();
    assert_eq!(world.take(), [Event::Closed(0)]);
    world.publish(|map| set_membership(map, 2, &[2, 1]));
    assert_eq!(world.take(), [sent(2, 1, 1, 2), sent(2, 2, 0, 2)]);
}

#[test]
fn a_lost_connection_resends_after_a_growing_bounded_delay() {
    let mut world = World::new();
    world.write();
    world.write();
    world.take();
    let mut now = 1000;
    let mut delays = Vec::new();
    for attempt in 1..=12 {
        world.objecter.on_reset(OsdId(0), now);
        world.read();
        assert_eq!(world.take(), [], "held while the connection is down");
        let wake = world.objecter.next_wake_ms().unwrap();
        delays.push(wake - now);
        world.tick(wake - 1);
        assert_eq!(world.take(), []);
        world.tick(wake);
        let events = world.take();
        assert_eq!(events[..2], [sent(0, 1, attempt, 1), sent(0, 2, attempt, 1)]);
        now = wake;
    }
    assert!(delays.windows(2).all(|pair| pair[0] <= pair[1]));
    assert_eq!(
        (delays[0], delays[1], *delays.last().unwrap()),
        (FIRST_RETRY_MS, 2 * FIRST_RETRY_MS, LONGEST_RETRY_MS)
    );
    world.reply(1, 12);
    world.objecter.on_reset(OsdId(0), now);
    assert_eq!(world.objecter.next_wake_ms(), Some(now + FIRST_RETRY_MS), "an answer resets the delay");
}

#[test]
fn a_backoff_holds_the_whole_pg_until_the_epoch_comes() {
    let mut world = World::new();
    world.write();
    world.write();
    world.take();
    let wanted = world.map.epoch.next();
    world.backoff(1, 0, wanted, 50);
    world.write();
    world.tick(1_000_000);
    assert_eq!(world.take(), [], "later requests of the PG must not overtake");
    world.publish(|map| set_membership(map, 2, &[0, 1]));
    assert_eq!(world.take(), [sent(0, 1, 1, 2), sent(0, 2, 1, 2), sent(0, 3, 0, 2)]);
    // The second request's backoff for the old attempt arrives late.
    world.backoff(2, 0, wanted, 60);
    world.write();
    assert_eq!(world.take(), [sent(0, 4, 0, 2)]);
}

#[test]
fn an_answer_leaves_the_backoff_of_its_pg_in_place() {
    // With a hold until a time, and until an epoch.
    for news in [false, true] {
        let mut world = World::new();
        world.write();
        world.write();
        world.take();
        let epoch = if news { world.map.epoch.next() } else { world.map.epoch };
        world.backoff(1, 0, epoch, 50);
        world.reply(2, 0);
        world.write();
        assert_eq!(world.take(), [Event::Done(2, Ok(0))], "the third must not overtake the first");
        if news {
            world.publish(|_| {});
        } else {
            let wake = world.objecter.next_wake_ms().unwrap();
            world.tick(wake);
        }
        assert_eq!(world.take(), [sent(0, 1, 1, 1), sent(0, 3, 0, 1)]);
    }
}

#[test]
fn an_answer_resets_the_delay_of_its_pg() {
    let mut world = World::new();
    world.write();
    world.write();
    for attempt in 0..3 {
        world.backoff(1, attempt, world.map.epoch, 0);
        let wake = world.objecter.next_wake_ms().unwrap();
        world.tick(wake);
    }
    world.reply(2, 3);
    world.backoff(1, 3, world.map.epoch, 0);
    assert_eq!(world.objecter.next_wake_ms(), Some(FIRST_RETRY_MS));
}

#[test]
fn a_backoff_without_news_delays_and_grows() {
    let mut world = World::new();
    world.write();
    world.take();
    let mut now = 0;
    for attempt in 0..4 {
        world.backoff(1, attempt, world.map.epoch, now);
        let wake = world.objecter.next_wake_ms().unwrap();
        assert_eq!(wake - now, FIRST_RETRY_MS << attempt);
        world.tick(wake);
        assert_eq!(world.take(), [sent(0, 1, attempt + 1, 1)]);
        now = wake;
    }
}

#[test]
fn oldest_tid_never_passes_a_request_that_waits() {
    let mut world = World::new();
    for _ in 0..3 {
        world.write();
    }
    world.reply(2, 0);
    world.write();
    world.reply(1, 0);
    world.write();
    assert_eq!(world.sink.oldest, [1, 1, 1, 1, 3]);
}

#[test]
fn pause_flags_hold_reads_and_writes_apart() {
    let mut world = World::new();
    world.publish(|map| map.flags |= flag::PAUSEWR);
    world.write();
    world.read();
    assert_eq!(world.take(), [sent(0, 2, 0, 1)]);
    world.publish(|map| map.flags = (map.flags & !flag::PAUSEWR) | flag::PAUSERD);
    world.read();
    assert_eq!(world.take(), [sent(0, 1, 0, 1)]);
}

#[test]
fn calls_in_compound_writes_are_held_back_like_writes() {
    let call = || Op::Call { class: "lock".into(), method: "lock".into(), input: Default::default() };
    for flags in [flag::PAUSEWR, flag::FULL] {
        let mut world = World::new();
        world.publish(|map| map.flags |= flags);
        world.submit_op(call(), 0, None);
        assert_eq!(world.take().len(), 1, "a read, as far as the client knows");
        world.submit_op(call(), request_flag::WRITE, None);
        assert_eq!(world.take(), []);
        world.publish(|map| map.flags &= !flags);
        assert_eq!(world.take().len(), 1);
    }
}

#[test]
fn a_full_pool_holds_writes_but_not_deletes_or_those_that_try() {
    let mut world = World::new();
    world.publish(|map| change_pool(map, BASE, |pool| pool.flags |= pool_flag_full()));
    world.write();
    world.read();
    world.submit_op(Op::Remove, 0, None);
    world.submit_op(Op::Truncate { size: 9 }, request_flag::FULL_TRY, None);
    world.submit_op(Op::Truncate { size: 9 }, request_flag::FULL_FORCE, None);
    assert_eq!(world.take(), (2..=5).map(|tid| sent(0, tid, 0, 1)).collect::<Vec<_>>());
    world.publish(|map| change_pool(map, BASE, |pool| pool.flags &= !pool_flag_full()));
    assert_eq!(world.take(), [sent(0, 1, 0, 1)]);
}

#[test]
fn watches_are_taken_up_again_while_writes_wait() {
    for flags in [flag::FULL, flag::PAUSEWR] {
        let mut world = World::new();
        world.publish(|map| map.flags |= flags);
        world.submit_op(Op::Watch { cookie: 1, timeout_s: 0 }, 0, None);
        world.submit_op(Op::WatchReconnect { cookie: 2 }, 0, None);
        assert_eq!(world.take(), [sent(0, 2, 0, 1)]);
        // The end of a watch frees space in the object's info, but is a change.
        world.submit_op(Op::Unwatch { cookie: 2 }, 0, None);
        let ended = world.take();
        assert_eq!(ended, if flags == flag::FULL { vec![sent(0, 3, 0, 1)] } else { vec![] });
    }
}

#[test]
fn a_watch_is_lost_by_word_of_the_osd_at_which_it_is_registered() {
    let mut world = World::new();
    let mut watches = Watches::default();
    let (cookie, effect) = watches.register(ObjectId::new(BASE, "", "", "name"), 0, 30, (), 0);
    let WatchEffect::Send { attempt, .. } = effect else { panic!("{effect:?}") };
    assert!(watches.on_lost(OsdId(0), cookie).is_none(), "the answer to its registration tells");
    world.write();
    let target = world.objecter.ops.values().find_map(|op| op.sent).unwrap();
    let reply = OsdReply {
        reqid: ReqId { client: ClientId(7), tid: 1 },
        attempt: 0,
        epoch: Epoch(1),
        result: 0,
        user_version: 0,
        ops: Vec::new(),
    };
    assert!(watches.on_step(attempt, &Ok(Answer { reply, target }), None, 1).is_empty());
    // It was registered there before an overlay was set or removed.
    assert!(watches.on_lost(OsdId(1), cookie).is_none() && watches.since_confirmed_ms(cookie, 2).is_ok());
    assert!(matches!(watches.on_lost(OsdId(0), cookie), Some(WatchEffect::Lost { .. })));
}

fn pool_flag_full() -> u64 {
    nacre_types::pool::flag::FULL
}

#[test]
fn a_removed_pool_fails_its_requests_but_an_unknown_new_one_waits() {
    let mut world = World::new();
    world.write();
    world.take();
    world.publish(|map| drop((map.pools.remove(&BASE), map.pgs.remove(&BASE))));
    world.read();
    assert_eq!(world.take(), [Event::Done(1, Err(Errno::ENOENT)), Event::Done(2, Err(Errno::ENOENT))]);

    let mut world = World::new();
    world.publish(|map| {
        map.pool_max = PoolId(0);
        map.pools.clear();
        map.pgs.clear();
    });
    world.write();
    assert_eq!(world.take(), []);
    assert_eq!(world.objecter.in_flight(), 1);
}

#[test]
fn overlays_are_resolved_anew_at_each_send() {
    let mut world = World::new();
    world.write();
    world.publish(|map| {
        change_pool(map, BASE, |pool| {
            (pool.tiering.read_tier, pool.tiering.write_tier) = (Some(TIER), Some(TIER));
        });
    });
    world.submit_op(Op::Stat, request_flag::IGNORE_OVERLAY, None);
    let tier = PgId::new(TIER, 0);
    let moved = Event::Sent(1, 1, 1, tier, 1);
    assert_eq!(world.take(), [sent(0, 1, 0, 1), moved, sent(0, 2, 0, 1)]);
    world.publish(|map| change_pool(map, BASE, |pool| pool.tiering.write_tier = None));
    world.read();
    assert_eq!(world.take(), [sent(0, 1, 2, 1), Event::Sent(1, 3, 0, tier, 1)]);
}

#[test]
fn split_pgs_are_resent_to_the_child() {
    let mut world = World::new();
    world.write();
    world.take();
    let hash = ObjectId::new(BASE, "", "", "name").hash();
    let pg_num = (1..9).find(|n| nacre_types::hash::pg_of_hash(hash, *n) != 0).unwrap();
    world.publish(|map| {
        change_pool(map, BASE, |pool| pool.pg_num = pg_num);
        let pgs = (0..pg_num).map(|_| membership(2, &[2, 0])).collect();
        map.pgs.insert(BASE, Arc::new(pgs));
    });
    let child = PgId::new(BASE, nacre_types::hash::pg_of_hash(hash, pg_num));
    assert_eq!(world.take(), [Event::Sent(2, 1, 1, child, 2)]);
}

#[test]
fn deadlines_fail_requests_with_etimedout() {
    let mut world = World::new();
    world.submit_op(Op::Stat, 0, Some(500));
    world.write();
    world.take();
    assert_eq!(world.objecter.next_wake_ms(), Some(500));
    world.tick(499);
    assert_eq!(world.take(), []);
    world.tick(500);
    assert_eq!(world.take(), [Event::Done(1, Err(Errno::ETIMEDOUT))]);
    world.reply(1, 0);
    assert_eq!(world.take(), []);
}

#[test]
fn a_blocklisted_client_fails_at_once() {
    let mut world = World::new();
    world.write();
    world.take();
    world.publish(|map| {
        // Its time has passed, but it counts until the map authority removes it.
        map.blocklist.insert("client.7".into(), 0);
    });
    world.write();
    assert_eq!(
        world.take(),
        [Event::Done(1, Err(Errno::EBLOCKLISTED)), Event::Done(2, Err(Errno::EBLOCKLISTED))]
    );
}

#[test]
fn a_full_out_queue_delays_without_reordering() {
    let mut world = World::new();
    world.sink.room = Some(1);
    world.write();
    world.write();
    world.sink.room = None;
    world.write();
    assert_eq!(world.take(), [sent(0, 1, 0, 1)], "the third must not overtake the second");
    let wake = world.objecter.next_wake_ms().unwrap();
    world.tick(wake);
    assert_eq!(world.take(), [sent(0, 2, 0, 1), sent(0, 3, 0, 1)], "what was not sent is no attempt");
}

#[test]
fn another_session_fails_what_the_old_one_had_in_flight() {
    let mut world = World::new();
    world.write();
    world.take();
    world.objecter.set_client(ClientId(7), &mut world.sink);
    assert_eq!(world.take(), []);
    world.objecter.set_client(ClientId(8), &mut world.sink);
    assert_eq!(world.take(), [Event::Closed(0), Event::Done(1, Err(Errno::ETIMEDOUT))]);
}

#[test]
fn another_session_is_not_shut_out_with_the_old_one() {
    let mut world = World::new();
    world.objecter.set_client(ClientId(7), &mut world.sink);
    world.map.epoch = Epoch(world.map.epoch.0 + 1);
    world.map.blocklist.insert("client.7".into(), u64::MAX);
    world.objecter.on_map(Arc::new(world.map.clone()), 0, &mut world.sink);
    world.write();
    assert_eq!(world.take(), [Event::Done(1, Err(Error::Blocklisted.errno()))]);
    world.objecter.set_client(ClientId(8), &mut world.sink);
    world.write();
    assert_eq!(world.take().len(), 1);
    assert_eq!(world.objecter.in_flight(), 1);
}

#[test]
fn who_is_bound_to_a_session_ends_with_it() {
    let mut world = World::new();
    world.objecter.set_client(ClientId(7), &mut world.sink);
    assert_eq!(world.objecter.pin_session(), ClientId(7));
    world.objecter.set_client(ClientId(7), &mut world.sink);
    world.write();
    assert_eq!(world.take().len(), 1);
    world.objecter.set_client(ClientId(8), &mut world.sink);
    assert_eq!(world.take(), [Event::Closed(0), Event::Done(1, Err(Errno::ETIMEDOUT))]);
    // Nothing is sent under another client id, whatever the maps contain.
    world.write();
    assert_eq!(world.take(), [Event::Done(2, Err(Error::Blocklisted.errno()))]);
    world.map.epoch = Epoch(world.map.epoch.0 + 1);
    world.objecter.on_map(Arc::new(world.map.clone()), 0, &mut world.sink);
    world.write();
    assert_eq!(world.take(), [Event::Done(3, Err(Error::Blocklisted.errno()))]);
}

#[test]
fn a_range_of_the_blocklist_is_no_session_of_that_number() {
    let mut world = World::new();
    world.write();
    world.take();
    let shut_out = |world: &mut World, who: &str| {
        world.map.epoch = Epoch(world.map.epoch.0 + 1);
        world.map.blocklist.insert(who.to_owned(), u64::MAX);
        world.objecter.on_map(Arc::new(world.map.clone()), 0, &mut world.sink);
        world.take()
    };
    assert_eq!(shut_out(&mut world, "cidr:10.0.0.0:0/7"), []);
    let ended = [Event::Done(1, Err(Error::Blocklisted.errno()))];
    assert_eq!(shut_out(&mut world, "10.0.0.1:0/7"), ended);
}

#[test]
fn older_maps_are_ignored_unless_the_map_authority_was_restored() {
    let mut world = World::new();
    world.write();
    world.take();
    let moved = |world: &mut World, generation: u64| {
        world.map.epoch = Epoch(1);
        world.map.generation = generation;
        set_membership(&mut world.map, 9, &[2]);
        world.objecter.on_map(Arc::new(world.map.clone()), 0, &mut world.sink);
        world.take()
    };
    assert_eq!(moved(&mut world, 1), []);
    assert_eq!(moved(&mut world, 2), [sent(2, 1, 1, 9)]);
}

#[test]
fn a_waiting_notify_does_not_hold_dup_records_back() {
    let mut world = World::new();
    world.submit_op(Op::Notify { timeout_s: 30, payload: Default::default() }, 0, None);
    world.submit_op(Op::Remove, 0, None);
    world.submit_op(Op::Remove, 0, None);
    assert_eq!(world.sink.oldest, [1, 2, 2]);
}
