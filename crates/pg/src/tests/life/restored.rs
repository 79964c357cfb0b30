//! A MapStore that was restored from an older copy (R7).

use super::super::cluster::{Cluster, osd, test_settings};
use super::super::host::{MS, Request};
use super::{append, cluster, set, write_some};
use std::collections::BTreeSet;

#[test]
fn a_restored_map_store_is_overruled_by_the_members() {
    let mut c = cluster(3, 3, 2);
    write_some(&mut c, 3);
    let old = c.mon.membership().cloned();
    c.kill(osd(2), 0);
    c.mon.down(osd(2));
    write_some(&mut c, 3);
    assert_eq!(c.in_sync(), set(&[0, 1]));
    c.mon.restore(old);
    // All records must have arrived before any member acts.
    let mark = c.clients.mark();
    let op = c.send("a0", Request::Append(mark));
    assert!(!c.run_for(1000 * MS, &|c| c.clients.answer(op).is_some()));
    c.boot(osd(2));
    c.run_until("an answer", |c| c.clients.answer(op).is_some());
    c.run_clean();
}

#[test]
fn a_pg_that_the_restored_map_never_heard_of_is_put_back() {
    let mut c = cluster(3, 3, 2);
    write_some(&mut c, 3);
    c.mon.set_up(&[2, 1, 0]);
    c.mon.restore(None);
    // The first of the up set has a copy and must not create another PG.
    append(&mut c, "a0");
    assert_eq!(c.ask("a0", Request::Read).len(), 8);
    c.run_clean();
    assert!(c.mon.history.iter().all(|m| !m.interval.is_creation() || m.interval.0 == 1));
}

#[test]
fn a_pg_that_the_lost_history_created_in_name_only_is_created_again() {
    let mut c = Cluster::new(3, 3, 2, test_settings());
    c.run_until("creation", |c| c.mon.membership().is_some());
    let old = c.mon.membership().cloned();
    for n in 0..3 {
        c.kill(osd(n), 0);
        c.boot(osd(n));
    }
    c.mon.restore(old);
    write_some(&mut c, 3);
    c.run_clean();
}

#[test]
fn a_member_without_a_copy_is_left_out_when_the_pg_is_put_back() {
    let mut c = cluster(3, 3, 2);
    write_some(&mut c, 3);
    let old = c.mon.membership().cloned();
    c.kill(osd(2), 0);
    c.mon.down(osd(2));
    // It was dropped under a record that no member remembers.
    c.disks.get_mut(&osd(2)).unwrap().1 = Default::default();
    c.mon.restore(old);
    c.boot(osd(2));
    let seen = c.mon.history.len();
    c.run_clean();
    let put_back: BTreeSet<u32> = c.mon.history[seen].in_sync.iter().map(|m| m.osd.0).collect();
    assert_eq!((put_back, c.in_sync()), (set(&[0, 1]), set(&[0, 1, 2])));
}
