//! Scenarios with objects that can't be read (R10).

use super::cluster::{Cluster, osd, test_settings};
use super::host::{MS, Request};
use crate::api::StoreRefusal;
use crate::pg::OnCommit;
use crate::settings::PgSettings;
use nacre_types::stats::pg_state;
use nacre_types::txn::{Transaction, TxnOp};

/// A cluster of three members with some objects.
fn cluster() -> Cluster {
    let mut cluster = Cluster::new(4, 3, 2, test_settings());
    cluster.run_clean();
    for n in 0..4 {
        append(&mut cluster, &format!("a{n}"));
    }
    append(&mut cluster, "d0");
    cluster.run_clean();
    cluster
}

fn append(cluster: &mut Cluster, object: &str) {
    let mark = cluster.clients.mark();
    cluster.ask(object, Request::Append(mark));
}

fn damage(cluster: &mut Cluster, object: &str, members: &[u32]) {
    let object = cluster.clients.object(object);
    for id in members {
        cluster.host(osd(*id)).store.damaged.insert(object.clone());
    }
}

/// Checks that everything is repaired, without a change of the membership.
fn check_mended(cluster: &mut Cluster, history: usize) {
    cluster.run_clean();
    assert!(cluster.hosts.values().all(|host| host.store.damaged.is_empty()), "something is damaged still");
    assert_eq!(cluster.mon.history.len(), history, "the membership changed");
    assert!(cluster.lost.is_empty(), "{:?}", cluster.lost);
}

#[test]
fn a_member_that_cannot_apply_an_update_gets_the_object() {
    // The primary fetches the object; a replica is sent it.
    for member in [0, 1] {
        let mut c = cluster();
        let history = c.mon.history.len();
        damage(&mut c, "a1", &[member]);
        append(&mut c, "a1");
        check_mended(&mut c, history);
        assert_eq!(c.ask("a1", Request::Read).len(), 8);
    }
}

#[test]
fn a_primary_fetches_what_it_cannot_read_before_it_answers() {
    let mut c = cluster();
    let history = c.mon.history.len();
    damage(&mut c, "a1", &[0, 1]);
    assert_eq!(c.ask("a1", Request::Read).len(), 4);
    // osd.1 was asked first, and found that it lacks the object too.
    check_mended(&mut c, history);
}

#[test]
fn a_damaged_copy_becomes_known_only_when_it_is_needed_and_survives_a_restart() {
    let mut c = cluster();
    damage(&mut c, "a1", &[1]);
    let mark = c.clients.mark();
    c.send("a1", Request::Append(mark));
    let noted = |c: &Cluster| {
        c.hosts[&osd(1)].store.copy().is_some_and(|copy| !copy.missing.is_empty())
            && !c.clients.all_answered()
    };
    assert!(c.run_for(1000 * MS, &noted), "it is noted before the answer");
    c.kill(osd(1), 0);
    c.kill(osd(0), 0);
    c.boot(osd(1));
    c.boot(osd(0));
    c.run_clean();
    assert_eq!(c.ask("a1", Request::Read).len(), 8);
    assert!(c.lost.is_empty());
}

#[test]
fn what_no_member_has_is_unfound_and_the_rest_goes_on() {
    let mut c = cluster();
    damage(&mut c, "d0", &[0, 1, 2]);
    let refusals = c.clients.refusals;
    c.ask("d0", Request::Read);
    assert_eq!(c.clients.refusals, refusals + 1);
    append(&mut c, "d0");
    assert_eq!(c.clients.refusals, refusals + 2);
    append(&mut c, "a1");
    assert_eq!(c.clients.refusals, refusals + 2);
    let stats = c.host(osd(0)).pg.stats(5, 0);
    assert_eq!(stats.unfound, 1);
    assert!(stats.state & pg_state::ACTIVE != 0 && stats.state & pg_state::CLEAN == 0);
    // It may be removed, and created again.
    c.ask("d0", Request::Delete);
    append(&mut c, "d0");
    assert_eq!(c.clients.refusals, refusals + 2);
    c.run_clean();
    assert_eq!(c.host(osd(0)).pg.stats(5, 0).unfound, 0);
}

#[test]
fn an_unfound_object_is_found_on_a_member_that_returns() {
    let mut c = cluster();
    damage(&mut c, "a1", &[0, 1]);
    c.kill(osd(2), 0);
    let mark = c.clients.mark();
    let op = c.send("a2", Request::Append(mark));
    assert!(!c.run_for(500 * MS, &|c| c.clients.answer(op).is_some()), "osd.2 is in the set");
    let read = c.send("a1", Request::Read);
    c.run_for(500 * MS, &|_| false);
    c.boot(osd(2));
    c.run_until("an answer", |c| c.clients.answer(read).is_some());
    assert_eq!(c.clients.answer(read).unwrap().len(), 4);
    c.run_clean();
    assert!(c.lost.is_empty());
}

#[test]
fn an_unfound_object_is_found_on_a_member_that_joins() {
    let mut c = cluster();
    c.kill(osd(2), 0);
    c.mon.down(osd(2));
    append(&mut c, "a2");
    damage(&mut c, "d0", &[0, 1]);
    let refusals = c.clients.refusals;
    c.ask("d0", Request::Read);
    assert_eq!(c.clients.refusals, refusals + 1);
    // The log does not name the object: osd.2 has a whole copy.
    c.boot(osd(2));
    c.run_clean();
    assert_eq!(c.ask("d0", Request::Read).len(), 4);
    assert_eq!(c.clients.refusals, refusals + 1);
}

#[test]
fn the_only_member_acknowledges_no_update_that_it_could_not_apply() {
    let mut c = Cluster::new(2, 1, 1, test_settings());
    c.run_clean();
    append(&mut c, "d0");
    damage(&mut c, "d0", &[0]);
    let refusals = c.clients.refusals;
    append(&mut c, "d0");
    assert_eq!(c.clients.refusals, refusals + 1);
    c.ask("d0", Request::Delete);
    append(&mut c, "d0");
    c.run_clean();
    assert_eq!(c.clients.refusals, refusals + 1);
}

#[test]
fn an_object_that_the_primary_cannot_read_holds_up_no_recovery() {
    let mut c = cluster();
    c.kill(osd(2), 0);
    c.mon.down(osd(2));
    for n in 0..4 {
        append(&mut c, &format!("a{n}"));
    }
    damage(&mut c, "a1", &[0]);
    c.boot(osd(2));
    c.run_clean();
    assert!(c.hosts[&osd(0)].store.damaged.is_empty());
}

#[test]
fn an_unfound_object_holds_up_neither_recovery_nor_backfill() {
    for wiped in [false, true] {
        let mut c = cluster();
        c.kill(osd(2), 0);
        c.mon.down(osd(2));
        if wiped {
            c.wipe(osd(2));
        }
        append(&mut c, "d0");
        append(&mut c, "a1");
        damage(&mut c, "d0", &[0, 1]);
        c.boot(osd(2));
        let all = |c: &Cluster| c.in_sync().len() == 3 && c.is_served();
        c.run_until("all members in sync", all);
        c.note_losses();
        c.ask("d0", Request::Delete);
        c.run_clean();
    }
}

#[test]
fn a_member_that_is_filled_learns_of_unfound_objects_that_nobody_has_on_disk() {
    let settings = PgSettings { min_log_entries: 4, max_log_entries: 8, ..test_settings() };
    let mut c = Cluster::new(2, 2, 1, settings);
    c.run_clean();
    append(&mut c, "a1");
    append(&mut c, "d0");
    c.run_clean();
    for _ in 0..20 {
        append(&mut c, "a1");
    }
    damage(&mut c, "d0", &[0, 1]);
    let refusals = c.clients.refusals;
    c.ask("d0", Request::Read);
    // Each is filled by the other: the second one from a disk that has nothing of the object.
    for member in [1, 0] {
        c.kill(osd(member), 0);
        c.mon.down(osd(member));
        c.wipe(osd(member));
        append(&mut c, "a1");
        c.boot(osd(member));
        let all = |c: &Cluster| c.in_sync().len() == 2 && c.is_served();
        c.run_until("all members in sync", all);
    }
    c.note_losses();
    c.ask("d0", Request::Read);
    assert_eq!(c.clients.refusals, refusals + 2, "it is not absent");
    c.ask("d0", Request::Delete);
    c.run_clean();
}

#[test]
fn a_member_that_is_full_lives_and_is_filled_when_there_is_space() {
    let mut c = cluster();
    c.host(osd(3)).full = true;
    c.mon.set_up(&[0, 1, 3]);
    append(&mut c, "a1");
    assert!(!c.run_for(20_000 * MS, &|c| c.in_sync().contains(&3)));
    append(&mut c, "a2");
    c.host(osd(3)).full = false;
    c.run_clean();
    assert!(c.in_sync().contains(&3));
}

#[test]
fn a_rollback_that_the_store_refuses_is_not_done_without_its_removals() {
    let mut c = cluster();
    // Only osd.0 creates an object.
    c.cut(osd(0), osd(1));
    c.cut(osd(0), osd(2));
    let mark = c.clients.mark();
    c.send("fresh", Request::Append(mark));
    c.run_for(20 * MS, &|_| false);
    c.kill(osd(0), 100);
    c.heal();
    c.mon.down(osd(0));
    append(&mut c, "a1");
    c.boot(osd(0));
    let catch_up = |c: &Cluster| {
        let pending = &c.hosts[&osd(0)].pg.pending;
        let caught = pending.iter().position(|(_, durable)| matches!(durable, OnCommit::CaughtLog { .. }));
        caught.and_then(|at| Some(pending.get(at.checked_sub(1)?)?.0))
    };
    c.run_until("a rollback", |c| catch_up(c).is_some());
    let (id, now) = (catch_up(&c).unwrap(), c.now);
    let mut txn = Transaction::new(c.pg);
    txn.push(TxnOp::Remove(c.clients.object("fresh")));
    let pg = &mut c.host(osd(0)).pg;
    assert!(
        !pg.on_store_refused(now, id, txn, StoreRefusal::Full, &mut Vec::new()),
        "the object would be left"
    );
}
