//! Operations that wait: below `min_size`, before the PG is active, for leases.

use super::super::cluster::{Cluster, osd, test_settings};
use super::super::host::{MS, Request, TERM};
use super::{cluster, set, write_some};
use crate::api::ClientOp;
use crate::settings::PgSettings;
use nacre_types::ids::{ClientId, Interval, PoolId, ReqId};
use nacre_types::object::ObjectId;
use std::collections::VecDeque;
use std::sync::Arc;

#[test]
fn below_min_size_operations_wait_and_the_set_stays() {
    let mut c = cluster(3, 3, 2);
    write_some(&mut c, 2);
    for n in [1, 2] {
        c.kill(osd(n), 0);
        c.mon.down(osd(n));
    }
    let mark = c.clients.mark();
    let op = c.send("a0", Request::Append(mark));
    assert!(!c.run_for(2000 * MS, &|c| c.clients.answer(op).is_some()));
    assert!(c.in_sync().len() >= 2, "{:?}", c.in_sync());
    c.boot(osd(1));
    c.run_until("an answer", |c| c.clients.answer(op).is_some());
    c.boot(osd(2));
    c.run_clean();
}

#[test]
fn listings_wait_for_the_updates_that_they_show() {
    let mut c = cluster(3, 3, 2);
    write_some(&mut c, 2);
    let primary = c.primary();
    let other = (0..3).map(osd).find(|member| *member != primary).unwrap();
    c.cut(primary, other);
    let mark = c.clients.mark();
    let write = c.send("new", Request::Append(mark));
    let list = c.send("", Request::List);
    assert!(!c.run_for(TERM / 4, &|c| c.clients.answer(list).is_some()));
    assert!(c.clients.answer(write).is_none());
    c.heal();
    c.run_until("both answers", |c| [write, list].iter().all(|op| c.clients.answer(*op).is_some()));
    c.run_clean();
}

#[test]
fn few_operations_wait_for_a_pg_that_is_not_active() {
    let mut c = Cluster::new(2, 2, 2, PgSettings { max_waiting_inactive: 3, ..test_settings() });
    c.run_clean();
    write_some(&mut c, 2);
    c.kill(osd(1), 0);
    let send = |c: &mut Cluster, n: u32| {
        let mark = c.clients.mark();
        c.send(&format!("a{n}"), Request::Append(mark))
    };
    // Some arrive while the PG is active, others when it no longer is.
    let mut ops: Vec<_> = (0..6).map(|n| send(&mut c, n)).collect();
    c.run_for(20 * MS, &|_| false);
    c.mon.down(osd(1));
    c.run_for(500 * MS, &|_| false);
    ops.extend((6..12).map(|n| send(&mut c, n)));
    c.run_for(500 * MS, &|_| false);
    let waiting = c.hosts[&osd(0)].pg.primary.as_ref().unwrap().waiting.len();
    assert!(waiting <= 3, "{waiting} wait");
    c.boot(osd(1));
    c.run_until("all answers", |c| ops.iter().all(|op| c.clients.answer(*op).is_some()));
    c.run_clean();
}

#[test]
fn few_operations_wait_below_min_size() {
    let mut c = Cluster::new(2, 2, 2, PgSettings { max_waiting_inactive: 3, ..test_settings() });
    c.run_clean();
    write_some(&mut c, 2);
    c.kill(osd(1), 0);
    c.mon.down(osd(1));
    c.run_for(20 * MS, &|_| false);
    assert!(c.hosts[&osd(0)].pg.is_active(), "the set can't shrink, but the interval goes on");
    let ops: Vec<_> = (0..12)
        .map(|n| {
            let mark = c.clients.mark();
            let request = if n % 2 == 0 { Request::Append(mark) } else { Request::Read };
            c.send(&format!("a{n}"), request)
        })
        .collect();
    c.run_for(500 * MS, &|_| false);
    let held = c.hosts[&osd(0)].ops.len();
    assert!((1..=3).contains(&held), "{held} are held");
    c.boot(osd(1));
    c.run_until("all answers", |c| ops.iter().all(|op| c.clients.answer(*op).is_some()));
    c.run_clean();
}

#[test]
fn few_operations_wait_for_leases_that_do_not_come() {
    let mut c = Cluster::new(2, 2, 2, PgSettings { max_waiting_inactive: 3, ..test_settings() });
    c.believes_reports = false;
    c.run_clean();
    write_some(&mut c, 2);
    c.kill(osd(1), 0);
    c.run_for(2 * TERM, &|_| false);
    let mut ops = vec![c.send("a0", Request::Read)];
    c.run_for(150 * MS, &|_| false);
    ops.extend((1..12).map(|n| c.send(&format!("a{n}"), Request::Read)));
    c.run_for(20 * MS, &|_| false);
    assert!(c.hosts[&osd(0)].pg.is_active());
    let held = c.hosts[&osd(0)].ops.len();
    assert!((1..=3).contains(&held), "{held} are held");
    c.boot(osd(1));
    c.run_until("all answers", |c| ops.iter().all(|op| c.clients.answer(*op).is_some()));
    c.run_clean();
}

#[test]
fn a_pool_whose_min_size_falls_is_served_again() {
    let mut c = cluster(3, 3, 2);
    write_some(&mut c, 2);
    c.kill(osd(2), 0);
    c.mon.down(osd(2));
    write_some(&mut c, 2);
    assert_eq!(c.in_sync(), set(&[0, 1]));
    let set_min_size = |c: &mut Cluster, min_size: u32| {
        c.mon.min_size = min_size as usize;
        let id = c.pg.pool;
        c.mon.change(|map| {
            let mut pool = (*map.pools[&id]).clone();
            pool.min_size = min_size;
            map.pools.insert(id, Arc::new(pool));
        });
    };
    set_min_size(&mut c, 3);
    // Its primary peers again, and finds too few members.
    c.reset_session(osd(0), osd(1));
    let mark = c.clients.mark();
    let op = c.send("a0", Request::Append(mark));
    assert!(!c.run_for(1000 * MS, &|c| c.clients.answer(op).is_some()));
    set_min_size(&mut c, 2);
    c.run_until("an answer", |c| c.clients.answer(op).is_some());
    c.boot(osd(2));
    c.run_clean();
}

#[test]
fn operations_that_the_host_had_before_go_on_before_what_came_since() {
    let mut waiting = VecDeque::new();
    let mut enqueue = |tid, object: &str, resumed| {
        let op = ClientOp {
            token: tid,
            reqid: ReqId { client: ClientId(1), tid },
            oldest_tid: 1,
            attempt: 0,
            interval: Interval(1),
            object: ObjectId::new(PoolId(1), "", "", object),
            write: true,
            listing: false,
            dup_check_by_host: false,
            requeued: resumed,
        };
        crate::primary::enqueue(&mut waiting, op);
    };
    [(1, "x"), (2, "y"), (3, "x")].into_iter().for_each(|(tid, object)| enqueue(tid, object, false));
    [(4, "x"), (5, "x"), (6, "z")].into_iter().for_each(|(tid, object)| enqueue(tid, object, true));
    enqueue(7, "x", false);
    let order: Vec<u64> = waiting.iter().map(|op| op.reqid.tid).collect();
    assert_eq!(order, [4, 5, 1, 2, 3, 6, 7]);
}
