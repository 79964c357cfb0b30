//! Requests with resets, refusals, moves, bounds and deadlines.

use crate::fake::{Arrival, Fake, Mood, until};
use nacre_client::{Cursor, ListRange, ReadOp, WriteOp, block_on};
use nacre_types::OsdId;
use nacre_types::errno::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc;

fn tids_by_object(arrivals: &[Arrival]) -> BTreeMap<String, Vec<u64>> {
    let mut out: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for arrival in arrivals {
        out.entry(arrival.object.clone()).or_default().push(arrival.tid);
    }
    out
}

#[test]
fn objects_are_written_read_and_removed() {
    let fake = Fake::start();
    let pool = block_on(fake.connect().open_pool("data")).unwrap();
    pool.write_full("one", "first").wait().unwrap();
    pool.append("one", " and more").wait().unwrap();
    assert_eq!(pool.read("one", 0, 0).wait().unwrap(), "first and more");
    assert_eq!(pool.stat("one").wait().unwrap().size, 14);
    let mut op = ReadOp::new();
    op.stat().read(0, 0);
    let mut reply = pool.operate_read("one", op).wait().unwrap().success().unwrap();
    assert_eq!((reply.stat(0).unwrap().size, reply.output(1).unwrap().len()), (14, 14));
    pool.remove("one").wait().unwrap();
    assert_eq!(pool.stat("one").wait().unwrap_err().errno(), Errno::ENOENT);
    assert_eq!(pool.read(&"x".repeat(2049), 0, 0).wait().unwrap_err().errno(), Errno::ENAMETOOLONG);
    assert!(block_on(fake.connect().open_pool("nothing")).err().unwrap().is_not_found());
}

#[test]
fn lost_connections_resend_in_order_and_execute_once() {
    let fake = Fake::start();
    let cluster = fake.connect();
    let pool = block_on(cluster.open_pool("data")).unwrap();
    fake.world.lock().mood = Mood::Swallow;
    let pending: Vec<_> =
        (0..60).map(|n| pool.append(&format!("object{}", n % 6), format!("{n},"))).collect();
    until("the arrival of all", || fake.world.lock().arrivals.len() == 60);
    {
        let mut world = fake.world.lock();
        world.mood = Mood::Serve;
        world.arrivals.clear();
    }
    fake.cut_osd_connections();
    for pending in pending {
        pending.wait().unwrap();
    }
    let world = fake.world.lock();
    assert!(world.executions.values().all(|count| *count == 1));
    for (object, tids) in tids_by_object(&world.arrivals) {
        assert!(tids.is_sorted() && tids.len() == 10, "{object}: {tids:?}");
    }
    assert!(world.arrivals.iter().all(|arrival| arrival.attempt >= 1 && arrival.oldest_tid <= arrival.tid));
    drop(world);
    let expected: String = (0..10).map(|n| format!("{},", n * 6 + 3)).collect();
    assert_eq!(pool.read("object3", 0, 0).wait().unwrap(), expected);
    assert!(cluster.engine().stats().resends >= 60);
}

#[test]
fn refused_requests_wait_for_the_map_and_keep_their_order() {
    let fake = Fake::start();
    let pool = block_on(fake.connect().open_pool("data")).unwrap();
    fake.world.lock().mood = Mood::Backoff(fake.epoch().next());
    let pending: Vec<_> = (0..20).map(|n| pool.append("object", format!("{n},"))).collect();
    until("a refusal's arrival", || !fake.world.lock().arrivals.is_empty());
    fake.move_all_to(OsdId(1));
    for pending in pending {
        pending.wait().unwrap();
    }
    let expected: String = (0..20).map(|n| format!("{n},")).collect();
    assert_eq!(pool.read("object", 0, 0).wait().unwrap(), expected);
    assert!(fake.world.lock().executions.values().all(|count| *count == 1));
}

#[test]
fn writes_go_on_while_pgs_move_back_and_forth() {
    let fake = Fake::start();
    let pool = block_on(fake.connect().open_pool("data")).unwrap();
    let mut expected = String::new();
    for round in 0..10 {
        let pending: Vec<_> = (0..30)
            .map(|n| {
                let text = format!("{round}.{n},");
                expected.push_str(&text);
                (pool.append("object", text), pool.append(&format!("other{n}"), "x"))
            })
            .collect();
        fake.move_all_to(OsdId(round % 2));
        for (one, other) in pending {
            one.wait().unwrap();
            other.wait().unwrap();
        }
    }
    assert_eq!(pool.read("object", 0, 0).wait().unwrap(), expected);
    assert_eq!(pool.read("other7", 0, 0).wait().unwrap(), "x".repeat(10));
}

#[test]
fn listings_are_complete_ordered_and_resumable() {
    let fake = Fake::start();
    let pool = block_on(fake.connect().open_pool("data")).unwrap();
    let names: BTreeSet<String> = (0..2500).map(|n| format!("object{n}")).collect();
    let pending: Vec<_> = names.iter().map(|name| pool.write_full(name, "x")).collect();
    pending.into_iter().for_each(|pending| pending.wait().unwrap());
    pool.with_namespace("ns").write_full("hidden", "x").wait().unwrap();
    let listed = block_on(async {
        let mut lister = pool.list();
        let mut out = Vec::new();
        while let Some(object) = lister.next().await.unwrap() {
            out.push(object);
            if out.len() == 1234 {
                let Cursor::At(cursor) = lister.cursor() else { panic!("the end") };
                lister = pool.list_range(ListRange::from(cursor), Some(""));
            }
        }
        out
    });
    assert!(listed.is_sorted());
    assert_eq!(listed.iter().map(|o| o.name().to_owned()).collect::<BTreeSet<_>>(), names);
    assert_eq!(listed.len(), names.len());
    let all = |range| {
        let mut lister = pool.list_range(range, None);
        block_on(async {
            let mut count = 0;
            while lister.next().await.unwrap().is_some() {
                count += 1;
            }
            count
        })
    };
    assert_eq!((0..5).map(|n| all(ListRange::slice(pool.pool(), n, 5))).sum::<usize>(), names.len() + 1);
}

#[test]
fn what_is_in_flight_is_bounded_and_callers_wait() {
    let fake = Fake::start();
    let cluster = fake.connect_with(&[("objecter_inflight_ops", "4")]);
    let pool = block_on(cluster.open_pool("data")).unwrap();
    fake.world.lock().mood = Mood::Swallow;
    let first: Vec<_> = (0..4).map(|n| pool.write_full(&format!("o{n}"), "x")).collect();
    let fifth = pool.write_full("o4", "x");
    let (sender, receiver) = mpsc::channel();
    let blocked = std::thread::spawn({
        let pool = pool.clone();
        move || {
            let mut op = WriteOp::new();
            op.write_full("x");
            pool.aio_operate("o5", op, Box::new(move |reply| sender.send(reply.is_ok()).unwrap()));
        }
    });
    until("the arrival of four", || fake.world.lock().arrivals.len() == 4);
    assert_eq!(cluster.engine().stats().in_flight, 4);
    fake.world.lock().mood = Mood::Serve;
    fake.cut_osd_connections();
    first.into_iter().for_each(|pending| pending.wait().unwrap());
    fifth.wait().unwrap();
    blocked.join().unwrap();
    assert!(receiver.recv().unwrap());
    until("the end of all", || cluster.engine().stats().in_flight == 0);
}

#[test]
fn callbacks_may_start_the_next_request() {
    fn chain(pool: nacre_client::IoCtx, left: u32, done: mpsc::Sender<()>) {
        let mut op = WriteOp::new();
        op.write_full("x");
        let again = pool.clone();
        let next = move |reply: nacre_client::Result<nacre_client::OpReply>| {
            reply.unwrap().success().unwrap();
            if left == 0 { done.send(()).unwrap() } else { chain(again, left - 1, done) }
        };
        pool.aio_operate("chained", op, Box::new(next));
    }
    let fake = Fake::start();
    let cluster = fake.connect_with(&[("objecter_inflight_ops", "1")]);
    let pool = block_on(cluster.open_pool("data")).unwrap();
    let (sender, receiver) = mpsc::channel();
    chain(pool, 200, sender);
    receiver.recv().unwrap();
}

#[test]
fn requests_expire_by_rados_osd_op_timeout() {
    let fake = Fake::start();
    let cluster = fake.connect_with(&[("rados_osd_op_timeout", "1")]);
    let pool = block_on(cluster.open_pool("data")).unwrap();
    fake.world.lock().mood = Mood::Swallow;
    let error = pool.write_full("object", "x").wait().unwrap_err();
    assert_eq!(error.errno(), Errno::ETIMEDOUT);
    assert!(error.to_string().contains("writefull of 'object'"), "{error}");
}
