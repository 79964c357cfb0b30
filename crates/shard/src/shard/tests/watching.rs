//! Watches whose objects change while the requests about them wait.

use super::*;

const COOKIE: u64 = 7;

impl Bench {
    /// A request on object o0.
    fn on_object(&self, tid: u64, op: Op) -> OsdRequest {
        OsdRequest { object: ObjectId::new(PG.pool, "", "", "o0"), ..self.request(tid, op) }
    }

    /// The number of watches in the shard's table.
    fn watches(&self) -> usize {
        self.cell.inspect(|shard| shard.dump_watchers().len())
    }
}

#[test]
fn a_watch_that_is_removed_while_its_client_reconnects_is_not_connected() {
    for removal in [Op::Remove, Op::Unwatch { cookie: COOKIE }] {
        let bench = Bench::new();
        let (conn, heard) = connect_and_hear();
        let send = |tid, op| bench.arrive(bench.on_object(tid, op), &conn, None);
        bench.gain_lease();
        send(1, Op::Create { exclusive: true });
        send(2, Op::Watch { cookie: COOKIE, timeout_s: 30 });
        bench.acknowledge();
        assert_eq!((heard.lock().result(2), bench.watches()), (Some(0), 1));
        bench.gain_lease();
        send(3, Op::Truncate { size: 5 });
        send(4, Op::WatchReconnect { cookie: COOKIE });
        send(5, removal);
        assert_eq!(heard.lock().result(4), None, "it waits for the write");
        // One message commits both updates.
        bench.acknowledge();
        assert_eq!(heard.lock().result(5), Some(0));
        assert_eq!(heard.lock().result(4), Some(Errno::ENOTCONN.negated()));
        assert_eq!(bench.watches(), 0, "it is in no object's info");
    }
}

#[test]
fn updates_that_wait_for_a_lease_are_answered_before_later_ones() {
    let bench = Bench::new();
    let (conn, heard) = connect_and_hear();
    let send = |tid, op| bench.arrive(bench.on_object(tid, op), &conn, None);
    send(1, Op::Create { exclusive: true });
    send(2, Op::Watch { cookie: COOKIE, timeout_s: 30 });
    bench.acknowledge();
    assert_eq!(heard.lock().results, [], "no lease is held");
    // The shard does not know of the lease yet.
    bench.shared.heartbeats.lock().hold_lease(OTHER, bench.shared.world.boot_ns());
    send(3, Op::Remove);
    bench.acknowledge();
    bench.gain_lease();
    bench.cell.enter(|_| ()).unwrap();
    assert_eq!(heard.lock().results, [(1, 0), (2, 0), (3, 0)]);
    assert_eq!((bench.watches(), &heard.lock().lost[..]), (0, &[COOKIE][..]));
}

#[test]
fn a_lapsed_watch_whose_object_is_gone_is_forgotten() {
    let bench = Bench::new();
    // It was connected although it is not in its object's info.
    let start_ns = bench.watch(1, &connect());
    bench.gain_lease();
    assert_eq!(bench.lapsed_at(start_ns + 30 * SECOND, true), 1);
    bench.shared.heartbeats.lock().hold_lease(OTHER, start_ns + 30 * SECOND);
    bench.acknowledge();
    bench.gain_lease();
    bench.cell.enter(|_| ()).unwrap();
    assert_eq!((bench.unanswered(), bench.watches()), (0, 0));
}

#[test]
fn a_ping_that_waits_for_a_copy_is_a_sign_of_life() {
    let bench = Bench::new();
    let (conn, heard) = connect_and_hear();
    let object = bench.request(1, Op::Stat).object;
    let start_ns = bench.watch(1, &conn);
    let source = ObjectId::new(PG.pool, "", "", "source");
    bench.arrive(
        bench.request(1, Op::CopyFrom { source, version: 0, flags: 0, truncate: (0, 0) }),
        &connect(),
        None,
    );
    let request = OsdRequest { object, ..bench.request(2, Op::WatchPing { cookie: COOKIE }) };
    let arrival = IncomingRequest { request, conn, permit: None, arrived_ns: 0 };
    bench.cell.with(|shard| {
        shard.now_ns = start_ns + 20 * SECOND;
        shard.on_request(arrival);
    });
    assert_eq!((bench.unanswered(), heard.lock().result(2)), (0, None), "it waits for the copy");
    assert_eq!(bench.lapsed_at(start_ns + 49 * SECOND, true), 0);
    assert_eq!(bench.lapsed_at(start_ns + 50 * SECOND, true), 1);
}
