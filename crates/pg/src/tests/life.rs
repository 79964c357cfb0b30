//! Scenarios of the life of a PG.

mod copying;
mod lost;
mod restored;
mod waiting;

use super::cluster::{Action, Cluster, Wire, osd, test_settings};
use super::host::{MS, Request, TERM};
use crate::api::{PeerMsg, PgEvent};
use crate::log::{EntryKind, LogEntry};
use crate::settings::PgSettings;
use bytes::Bytes;
use nacre_types::ids::{ClientId, Eversion, ReqId};
use nacre_types::stats::pg_state;
use nacre_types::txn::Transaction;
use std::collections::BTreeSet;
use std::sync::Arc;

fn set(ids: &[u32]) -> BTreeSet<u32> {
    ids.iter().copied().collect()
}

pub(super) fn cluster(osds: u32, size: u32, min_size: u32) -> Cluster {
    let mut cluster = Cluster::new(osds, size, min_size, test_settings());
    cluster.run_clean();
    cluster
}

fn append(cluster: &mut Cluster, object: &str) {
    let mark = cluster.clients.mark();
    cluster.ask(object, Request::Append(mark));
}

pub(super) fn write_some(cluster: &mut Cluster, objects: u32) {
    for n in 0..objects {
        append(cluster, &format!("a{n}"));
    }
}

#[test]
fn the_first_of_the_up_set_creates_the_pg() {
    let cluster = cluster(3, 3, 2);
    assert_eq!((cluster.primary(), cluster.in_sync()), (osd(0), set(&[0, 1, 2])));
    assert_eq!(cluster.mon.history.len(), 2, "one interval to begin the copies, and the first to order in");
    assert_eq!(cluster.mon.history[0].in_sync, cluster.mon.history[1].in_sync);
}

#[test]
fn a_pg_whose_creator_is_lost_at_once_comes_into_being_without_it() {
    let mut c = Cluster::new(3, 3, 2, test_settings());
    c.run_until("creation", |c| c.mon.membership().is_some());
    assert!(c.mon.membership().unwrap().interval.is_creation());
    // No member has a copy yet.
    c.kill(osd(0), 0);
    c.wipe(osd(0));
    c.mon.down(osd(0));
    write_some(&mut c, 3);
    c.boot(osd(0));
    c.run_clean();
    assert_eq!((c.primary(), c.in_sync()), (osd(0), set(&[0, 1, 2])));
}

#[test]
fn a_creator_ends_the_first_interval_though_a_member_bid_for_the_next_one() {
    let mut c = Cluster::new(2, 2, 1, test_settings());
    c.run_until("creation", |c| c.mon.membership().is_some());
    // The creator does not learn that the other member has its copy.
    c.cut(osd(0), osd(1));
    c.run_for(200 * MS, &|_| false);
    assert!(c.hosts[&osd(1)].pg.has_copy() && c.mon.membership().unwrap().interval.is_creation());
    // The other member considers it dead. Its proposal is refused, because it is down itself when the proposal arrives.
    c.mon.down(osd(0));
    let (map, up) = (c.mon.map.clone(), c.mon.up.clone());
    c.mon.up_again(osd(0));
    let now = c.now;
    c.host(osd(1)).take_map(now, &map, &up);
    c.collect(osd(1));
    assert!(!c.to_mon.is_empty(), "a bid");
    c.cut_from_mon(osd(0));
    c.mon.down(osd(1));
    c.run_for(50 * MS, &|_| false);
    c.mon.up_again(osd(1));
    assert!(c.mon.membership().unwrap().interval.is_creation());
    c.heal();
    c.run_clean();
    assert_eq!((c.primary(), c.in_sync()), (osd(0), set(&[0, 1])));
}

#[test]
fn a_member_that_lost_its_copy_does_not_begin_another() {
    let mut c = cluster(2, 2, 1);
    write_some(&mut c, 3);
    for n in 0..2 {
        c.kill(osd(n), 0);
        c.mon.down(osd(n));
    }
    // It claims to be the same store, but it is empty.
    c.disks.get_mut(&osd(0)).unwrap().1 = Default::default();
    c.boot(osd(0));
    let mark = c.clients.mark();
    let op = c.send("a0", Request::Append(mark));
    let began = |c: &Cluster| c.hosts[&osd(0)].pg.has_copy() || c.clients.answer(op).is_some();
    assert!(!c.run_for(2000 * MS, &began));
    c.boot(osd(1));
    assert!(!c.run_for(2000 * MS, &began));
}

#[test]
fn writes_are_read_back_and_reach_every_member() {
    let mut cluster = cluster(3, 3, 2);
    write_some(&mut cluster, 5);
    append(&mut cluster, "a3");
    let data = cluster.ask("a3", Request::Read);
    assert_eq!(data.len(), 8);
    append(&mut cluster, "d1");
    cluster.ask("d1", Request::Delete);
    assert!(cluster.ask("d1", Request::Read).is_empty());
    cluster.ask("", Request::List);
    cluster.run_clean();
    assert_eq!(cluster.hosts[&osd(2)].store.durable.objects.len(), 5);
}

#[test]
fn a_restarted_replica_takes_the_tail_that_it_missed() {
    let mut c = cluster(3, 3, 2);
    write_some(&mut c, 3);
    c.kill(osd(2), 0);
    c.boot(osd(2));
    write_some(&mut c, 3);
    c.run_clean();
    assert_eq!(c.mon.history.len(), 2, "nobody was marked down: the set stays");
}

#[test]
fn a_restarted_primary_goes_on_without_waiting_for_leases() {
    let mut c = cluster(3, 3, 2);
    write_some(&mut c, 3);
    c.kill(osd(0), 0);
    c.boot(osd(0));
    let before = c.now;
    let mark = c.clients.mark();
    c.ask("a0", Request::Append(mark));
    assert!(c.now - before < TERM / 2, "it waited {} ms", (c.now - before) / MS);
    c.run_clean();
    assert_eq!(c.mon.history.len(), 3, "the same set in a new interval");
    assert_eq!(c.in_sync(), set(&[0, 1, 2]));
}

#[test]
fn a_primary_that_lost_its_record_gives_no_version_away_twice() {
    let mut c = cluster(4, 4, 2);
    write_some(&mut c, 3);
    // osd.2 is being filled: one object that it needs has not arrived yet.
    c.kill(osd(2), 0);
    c.mon.down(osd(2));
    append(&mut c, "a0");
    c.boot(osd(2));
    let filling = |c: &Cluster| {
        c.hosts[&osd(0)].pg.catching_up().iter().any(|row| (row.osd, row.missing) == (osd(2), 1))
    };
    c.run_until("the last missing object", filling);
    // osd.3 dies, and the primary continues in the next interval.
    c.kill(osd(3), 0);
    c.mon.down(osd(3));
    for action in [Action::Map(osd(0)), Action::ToMon(osd(0)), Action::Map(osd(0))] {
        c.act(action);
    }
    assert_eq!((c.primary(), c.in_sync()), (osd(0), set(&[0, 1])));
    assert_eq!(c.hosts[&osd(0)].pg.membership(), c.mon.membership());
    // Only osd.2 keeps the first write of that interval; the others lose even the record of the interval.
    let mark = c.clients.mark();
    c.send("a2", Request::Append(mark));
    c.act(Action::Client(osd(0)));
    let version = c.hosts[&osd(0)].pg.head();
    while let Some(action) = [Action::Deliver(osd(0), osd(2)), Action::Flush(osd(2))]
        .into_iter()
        .find(|action| c.actions().contains(action))
    {
        c.act(action);
    }
    for n in 0..3 {
        c.kill(osd(n), 0);
    }
    assert!(c.disks[&osd(2)].1.durable.log.contains_key(&version));
    assert!((0..2).all(|n| !c.disks[&osd(n)].1.durable.log.contains_key(&version)));
    // All are back before any of them was marked down.
    for n in 0..3 {
        c.boot(osd(n));
    }
    c.run_until("activity", |c| c.hosts[&osd(0)].pg.is_active());
    append(&mut c, "a1");
    c.boot(osd(3));
    c.mon.set_up(&[2, 0, 1, 3]);
    c.run_until("promotion of the one that was filled", |c| c.primary() == osd(2));
    assert_eq!(c.ask("a1", Request::Read).len(), 8, "an acknowledged append is lost");
    c.run_clean();
}

#[test]
fn a_dead_primary_is_replaced_and_its_tail_adopted() {
    let mut c = cluster(3, 3, 2);
    write_some(&mut c, 3);
    // Only osd.2 gets the last write; the primary dies before any other member has it.
    c.cut(osd(0), osd(1));
    let mark = c.clients.mark();
    let op = c.send("a1", Request::Append(mark));
    assert!(!c.run_for(80 * MS, &|c| c.clients.answer(op).is_some()));
    c.kill(osd(0), 0);
    c.heal();
    c.mon.down(osd(0));
    c.run_until("an answer by the new primary", |c| c.clients.answer(op).is_some());
    assert_eq!((c.primary(), c.in_sync()), (osd(1), set(&[1, 2])));
    assert_eq!(c.ask("a1", Request::Read).len(), 8);
    write_some(&mut c, 2);
    c.boot(osd(0));
    c.run_clean();
    assert_eq!((c.primary(), c.in_sync()), (osd(0), set(&[0, 1, 2])));
}

#[test]
fn a_new_primary_waits_for_the_old_ones_leases() {
    let mut c = cluster(3, 3, 2);
    write_some(&mut c, 1);
    c.cut_from_mon(osd(0));
    c.cut(osd(0), osd(1));
    c.cut(osd(0), osd(2));
    c.mon.down(osd(0));
    let before = c.now;
    append(&mut c, "a0");
    assert!(c.now - before >= TERM * 3 / 4, "it waited only {} ms", (c.now - before) / MS);
    c.heal();
    c.mon.up_again(osd(0));
    c.run_clean();
}

#[test]
fn an_heir_does_not_wait_for_one_that_answers() {
    let mut c = cluster(3, 3, 2);
    write_some(&mut c, 1);
    let before = c.now;
    c.mon.set_up(&[1, 2, 0]);
    c.run_until("handover", |c| c.primary() == osd(1));
    c.run_until("activity", |c| c.hosts[&osd(1)].pg.state() & pg_state::ACTIVE != 0);
    assert!(c.now - before < TERM / 2, "it waited {} ms", (c.now - before) / MS);
    append(&mut c, "a0");
    c.run_clean();
    assert_eq!((c.primary(), c.in_sync()), (osd(1), set(&[0, 1, 2])));
}

#[test]
fn a_member_that_was_away_catches_up_by_log() {
    let mut c = cluster(3, 3, 2);
    write_some(&mut c, 4);
    append(&mut c, "d1");
    append(&mut c, "d2");
    c.kill(osd(2), 0);
    c.mon.down(osd(2));
    write_some(&mut c, 2);
    c.ask("d1", Request::Delete);
    append(&mut c, "new");
    assert_eq!(c.in_sync(), set(&[0, 1]));
    c.boot(osd(2));
    // Writes continue while it catches up.
    for _ in 0..4 {
        write_some(&mut c, 4);
    }
    c.run_clean();
    assert_eq!(c.in_sync(), set(&[0, 1, 2]));
}

#[test]
fn a_lost_question_to_a_member_is_repeated_while_clients_write() {
    let mut c = cluster(3, 3, 2);
    write_some(&mut c, 4);
    c.kill(osd(2), 0);
    c.mon.down(osd(2));
    write_some(&mut c, 2);
    assert_eq!(c.in_sync(), set(&[0, 1]));
    c.boot(osd(2));
    let link = (osd(0), osd(2));
    let is_question =
        |wire: &Wire| matches!(wire, Wire::Peer { msg: PeerMsg::Query { versions_after: Some(_), .. }, .. });
    c.run_until("the question", |c| c.links.get(&link).is_some_and(|wires| wires.iter().any(is_question)));
    c.links.get_mut(&link).unwrap().retain(|wire| !is_question(wire));
    // The time between two writes is shorter than the retry interval.
    for _ in 0..40 {
        append(&mut c, "a0");
        c.run_for(c.settings.retry_ns / 3, &|_| false);
    }
    assert_eq!(c.in_sync(), set(&[0, 1, 2]));
    c.run_clean();
}

#[test]
fn divergent_updates_are_rolled_back() {
    let mut c = cluster(3, 3, 2);
    write_some(&mut c, 4);
    append(&mut c, "d1");
    c.ask("d1", Request::Delete);
    append(&mut c, "d2");
    // Only the primary has these: no other member ever sees them.
    c.cut(osd(0), osd(1));
    c.cut(osd(0), osd(2));
    for request in ["a1", "a2", "fresh", "d1"] {
        let mark = c.clients.mark();
        c.send(request, Request::Append(mark));
    }
    c.send("d2", Request::Delete);
    c.run_for(60 * MS, &|_| false);
    let head = c.hosts[&osd(0)].pg.head();
    c.kill(osd(0), 100);
    c.heal();
    c.mon.down(osd(0));
    write_some(&mut c, 3);
    assert!(head > Default::default() && !c.hosts[&osd(1)].pg.log().contains(head));
    c.boot(osd(0));
    c.run_clean();
    assert!(!c.hosts[&osd(0)].pg.log().contains(head), "the divergent update is still there");
}

#[test]
fn a_pg_is_clean_where_crush_finds_too_few_osds() {
    let mut c = cluster(3, 3, 2);
    c.mon.set_up(&[2, 0]);
    let wanted = pg_state::ACTIVE | pg_state::CLEAN | pg_state::REMAPPED;
    c.run_until("clean", |c| {
        let host = &c.hosts[&c.primary()];
        c.primary() == osd(2) && host.pg.state() == wanted
    });
    assert_eq!(c.in_sync(), set(&[0, 1, 2]));
}

#[test]
fn nobody_leaves_while_those_that_stay_are_silent() {
    let mut c = cluster(2, 1, 1);
    write_some(&mut c, 12);
    c.mon.set_up(&[1]);
    c.run_until("both are in sync", |c| c.in_sync() == set(&[0, 1]));
    // The map still shows it up.
    c.kill(osd(1), 0);
    c.wipe(osd(1));
    assert!(!c.run_for(5000 * MS, &|c| c.in_sync() == set(&[1])), "{:?}", c.mon.history);
    c.boot(osd(1));
    c.run_clean();
    assert_eq!((c.primary(), c.in_sync()), (osd(1), set(&[1])));
}

#[test]
fn a_pair_serves_with_one_member_left() {
    let mut c = cluster(2, 2, 1);
    write_some(&mut c, 2);
    c.kill(osd(0), 0);
    c.mon.down(osd(0));
    write_some(&mut c, 2);
    assert_eq!((c.primary(), c.in_sync()), (osd(1), set(&[1])));
    c.boot(osd(0));
    c.run_clean();
    c.kill(osd(1), 0);
    c.mon.down(osd(1));
    write_some(&mut c, 2);
    c.boot(osd(1));
    c.run_clean();
}

#[test]
fn a_wiped_member_is_another_one() {
    let mut c = cluster(3, 3, 2);
    write_some(&mut c, 5);
    c.kill(osd(1), 0);
    c.wipe(osd(1));
    c.boot(osd(1));
    write_some(&mut c, 5);
    c.run_clean();
    assert_eq!(c.in_sync(), set(&[0, 1, 2]));
    // The same for the primary.
    c.kill(osd(0), 0);
    c.wipe(osd(0));
    c.boot(osd(0));
    write_some(&mut c, 5);
    c.run_clean();
    assert_eq!((c.primary(), c.in_sync()), (osd(0), set(&[0, 1, 2])));
}

/// A cluster of two whose primary's map shows osd.1 before the replacement of its disk, with a record of the PG's first
/// interval, or of the next one.
fn cluster_with_unshown_store(exists: bool) -> Cluster {
    let mut c = Cluster::new(2, 2, 2, test_settings());
    let is_record = |c: &Cluster| c.hosts[&osd(0)].pg.membership().is_some_and(|m| m.interval.is_creation());
    match exists {
        true => c.run_clean(),
        false => c.run_until("a record", is_record),
    }
    c.kill(osd(1), 0);
    c.wipe(osd(1));
    c.cut_from_mon(osd(0));
    c.boot(osd(1));
    c
}

#[test]
fn a_new_store_does_not_take_the_place_of_one_that_the_map_still_shows() {
    let mut c = cluster_with_unshown_store(false);
    assert!(
        !c.run_for(2000 * MS, &|c| c.hosts[&osd(1)].pg.has_copy()),
        "a copy on a store that is no member"
    );
    assert!(c.to_mon.get(&osd(0)).is_none_or(|queue| queue.is_empty()), "the copies do not exist");
    c.heal();
    write_some(&mut c, 3);
    c.run_clean();
    assert_eq!(c.in_sync(), set(&[0, 1]));
}

#[test]
fn what_a_new_store_holds_is_not_acknowledged_for_the_member_before() {
    let mut c = cluster_with_unshown_store(true);
    let mark = c.clients.mark();
    let op = c.send("a0", Request::Append(mark));
    // Leases that the lost member granted are valid for a while.
    assert!(!c.run_for(2000 * MS, &|c| c.clients.answer(op).is_some()), "one member in sync has it");
    assert!(!c.hosts[&osd(1)].pg.has_copy());
    c.heal();
    c.run_clean();
    assert_eq!(c.in_sync(), set(&[0, 1]));
}

#[test]
fn a_new_store_is_not_filled_as_one_that_the_map_still_shows() {
    let mut c = cluster(3, 2, 2);
    write_some(&mut c, 3);
    // CRUSH wants osd.2 instead of osd.1, and the primary learns no more than that.
    c.kill(osd(2), 0);
    c.mon.set_up(&[0, 2]);
    let map = c.mon.map.epoch;
    c.run_until("the map", |c| c.hosts[&osd(0)].map.as_ref().is_some_and(|of| of.epoch == map));
    c.cut_from_mon(osd(0));
    c.wipe(osd(2));
    c.boot(osd(2));
    assert!(!c.run_for(2000 * MS, &|c| c.hosts[&osd(2)].pg.has_copy()));
    assert!(c.to_mon.get(&osd(0)).is_none_or(|queue| queue.is_empty()), "a store that is gone would join");
    c.heal();
    c.run_clean();
    assert_eq!(c.in_sync(), set(&[0, 2]));
}

#[test]
fn a_resend_is_answered_not_executed() {
    let mut c = cluster(3, 3, 2);
    let mark = c.clients.mark();
    let op = c.send("a0", Request::Append(mark));
    c.clients.resend(&c.mon.map.clone(), c.pg);
    c.clients.resend(&c.mon.map.clone(), c.pg);
    c.run_until("an answer", |c| c.clients.answer(op).is_some());
    c.run_clean();
    assert_eq!(c.ask("a0", Request::Read).len(), 4);
    // The same after a change of primary.
    c.cut(osd(0), osd(1));
    let op = c.send("a0", Request::Append(mark + 1));
    c.run_for(60 * MS, &|_| false);
    c.kill(osd(0), 0);
    c.heal();
    c.mon.down(osd(0));
    c.run_until("an answer", |c| c.clients.answer(op).is_some());
    assert_eq!(c.ask("a0", Request::Read).len(), 8);
    c.boot(osd(0));
    c.run_clean();
}

#[test]
fn a_client_heard_by_another_primary_was_not_silent() {
    let term = 60_000 * MS;
    let mut c = Cluster::new(3, 3, 2, PgSettings { session_expiry_ns: term, ..test_settings() });
    c.run_clean();
    let expired_at = |c: &mut Cluster, id| {
        let now = c.now;
        c.host(id).feed(now, PgEvent::Tick);
        c.collect(id);
        c.hosts[&id].pg.limit_hits().sessions_expired
    };
    append(&mut c, "a0");
    assert_eq!(expired_at(&mut c, osd(0)), 0);
    c.mon.set_up(&[1, 2, 0]);
    c.run_until("handover", |c| c.primary() == osd(1) && c.is_served());
    c.run_for(term, &|_| false);
    append(&mut c, "a0");
    // The first one is primary again: it has had no contact with the client for a term.
    c.mon.set_up(&[0, 1, 2]);
    c.run_until("handover", |c| c.primary() == osd(0));
    assert_eq!(expired_at(&mut c, osd(0)), 0, "while it peers");
    c.run_until("activity", Cluster::is_served);
    assert_eq!(expired_at(&mut c, osd(0)), 0, "once it serves");
    c.run_for(term, &|_| false);
    assert_eq!(expired_at(&mut c, osd(0)), 1, "after a term's silence");
    c.run_clean();
}

#[test]
fn a_late_copy_of_a_request_that_changed_nothing_changes_nothing() {
    let mut c = cluster(3, 3, 2);
    append(&mut c, "d0");
    let op = c.send("d0", Request::Ensure);
    c.run_until("an answer", |c| c.clients.answer(op).is_some());
    assert_eq!(c.clients.answer(op).unwrap(), "there");
    // Another client, which saw that answer, removes the object.
    let map = c.mon.map.clone();
    let removal = c.clients.issue(1, "d0", Request::Delete, &map, c.pg);
    c.run_until("the removal", |c| c.clients.answer(removal).is_some());
    let is_gone = |c: &Cluster| {
        let object = c.clients.object("d0");
        c.hosts.values().all(|host| !host.store.seen.objects.contains_key(&object))
    };
    c.clients.send_again(op, &map, c.pg);
    c.run_for(200 * MS, &|_| false);
    assert!(is_gone(&c), "the removed object is there again");
    // The same after a change of primary.
    c.kill(osd(0), 0);
    c.mon.down(osd(0));
    c.run_until("a new primary", |c| c.mon.membership().is_some_and(|m| m.primary == osd(1)));
    c.clients.send_again(op, &c.mon.map.clone(), c.pg);
    c.run_for(200 * MS, &|_| false);
    c.boot(osd(0));
    c.run_clean();
    assert!(is_gone(&c), "the removed object is there again");
}

#[test]
fn an_update_by_a_former_process_of_the_primary_is_not_taken() {
    let mut c = cluster(2, 2, 1);
    write_some(&mut c, 1);
    c.run_clean();
    let (interval, nonce) = (c.mon.membership().unwrap().interval, c.hosts[&osd(0)].nonce);
    let (now, head, pg) = (c.now, c.hosts[&osd(1)].pg.head(), c.pg);
    let version = Eversion::new(interval, head.version + 1);
    let entry = LogEntry {
        version,
        prior: Eversion::default(),
        object: c.clients.object("d1"),
        kind: EntryKind::Error,
        reqid: ReqId { client: ClientId(9), tid: 1 },
        user_version: 0,
        mtime_ns: 0,
        result: Bytes::new(),
    };
    let rep_op = |boot_nonce| PeerMsg::RepOp {
        interval,
        entry: entry.encode(),
        txn: Arc::new(Transaction::new(pg)),
        committed_to: head,
        trim_to: Eversion::default(),
        oldest_tid: 1,
        boot_nonce,
    };
    let query = |boot_nonce| PeerMsg::Query { interval, round: 99, versions_after: None, boot_nonce };
    let replica = c.host(osd(1));
    for msg in [rep_op(nonce + 1), query(nonce + 1), rep_op(nonce + 1)] {
        replica.feed(now, PgEvent::Peer { from: osd(0), msg });
        assert_eq!(replica.pg.head(), head);
    }
    replica.feed(now, PgEvent::Peer { from: osd(0), msg: rep_op(nonce) });
    assert_eq!(replica.pg.head(), version);
}

#[test]
fn lost_sessions_are_peered_anew() {
    let mut c = cluster(3, 3, 2);
    for (a, b) in [(0, 1), (1, 2), (0, 2), (0, 1)] {
        let mark = c.clients.mark();
        c.send("a0", Request::Append(mark));
        for _ in 0..3 {
            if let Some(action) = c.actions().first().copied() {
                c.act(action);
            }
        }
        c.reset_session(osd(a), osd(b));
        write_some(&mut c, 2);
    }
    c.run_clean();
}

#[test]
fn an_unanswered_proposal_is_repeated() {
    let mut c = cluster(3, 3, 2);
    write_some(&mut c, 2);
    c.cut_from_mon(osd(0));
    c.kill(osd(2), 0);
    c.mon.down(osd(2));
    // The primary learns of it, but its proposals are not delivered.
    let (map, up) = (c.mon.map.clone(), c.mon.up.clone());
    let now = c.now;
    c.host(osd(0)).take_map(now, &map, &up);
    c.collect(osd(0));
    c.to_mon.clear();
    let mark = c.clients.mark();
    let op = c.send("a0", Request::Append(mark));
    assert!(!c.run_for(300 * MS, &|c| c.clients.answer(op).is_some()));
    c.heal();
    c.run_until("an answer", |c| c.clients.answer(op).is_some());
    c.boot(osd(2));
    c.run_clean();
}

#[test]
fn a_member_that_cannot_bid_for_the_vacant_role_is_passed_over() {
    let mut c = Cluster::new(3, 3, 1, test_settings());
    c.run_clean();
    write_some(&mut c, 2);
    assert_eq!(c.primary(), osd(0));
    c.kill(osd(0), 0);
    // The map shows osd.1 as up throughout.
    c.cut_from_mon(osd(1));
    c.mon.down(osd(0));
    c.run_until("another primary", |c| c.latest_membership().is_some_and(|m| m.primary == osd(2)));
    c.heal();
    c.boot(osd(0));
    c.run_clean();
    c.check();
}
