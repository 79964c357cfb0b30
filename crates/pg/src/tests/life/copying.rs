//! Missing objects, backfills and moves.

use super::super::cluster::{Action, Cluster, Wire, osd, test_settings};
use super::super::host::{MS, Request};
use super::{append, cluster, set, write_some};
use crate::api::{ObjectPiece, PeerMsg, PgEvent, PieceCursor};
use crate::settings::PgSettings;
use bytes::Bytes;
use nacre_types::ids::Eversion;
use nacre_types::osdmap::flag;
use nacre_types::stats::pg_state;

/// Whether object `a{n}` is sent to a member in pieces.
fn is_copied(c: &Cluster, n: u32) -> bool {
    c.hosts[&osd(0)].pg.is_pushed_in_pieces(&c.clients.object(&format!("a{n}")))
}

/// Creates a cluster that sends `count` of the objects `a0` to `a7` to osd.2 in pieces.
fn copying_in_pieces(count: usize) -> Cluster {
    let mut c = cluster(3, 3, 2);
    // Longer than a piece.
    for _ in 0..3 {
        write_some(&mut c, 8);
    }
    c.kill(osd(2), 0);
    c.mon.down(osd(2));
    for _ in 0..2 {
        write_some(&mut c, 8);
    }
    c.boot(osd(2));
    c.run_until("objects in pieces", |c| (0..8).filter(|n| is_copied(c, *n)).count() >= count);
    c
}

#[test]
fn a_piece_whose_answer_is_lost_is_sent_again_though_others_are_written() {
    let mut c = copying_in_pieces(1);
    let copied = (0..8).find(|n| is_copied(&c, *n)).unwrap();
    let is_done = |wire: &Wire| matches!(wire, Wire::Peer { msg: PeerMsg::PieceDone { .. }, .. });
    c.run_until("an answer to a piece", |c| c.links.values().any(|wires| wires.iter().any(is_done)));
    let mark = c.clients.mark();
    let held = c.send(&format!("a{copied}"), Request::Append(mark));
    c.links.values_mut().for_each(|wires| wires.retain(|wire| !is_done(wire)));
    // The member acknowledges writes continuously.
    for _ in 0..40 {
        append(&mut c, "b0");
        c.run_for(c.settings.retry_ns / 3, &|_| false);
    }
    assert!(c.clients.answer(held).is_some(), "the write waits for a copy that does not go on");
    c.run_clean();
}

#[test]
fn a_member_that_does_not_take_pieces_any_more_starts_over() {
    let mut c = copying_in_pieces(2);
    let copied = (0..8).find(|n| is_copied(&c, *n)).unwrap();
    // Only the member notices that its connection to the primary was lost, after it answered one of the pieces.
    let now = c.now;
    c.host(osd(2)).feed(now, PgEvent::PeerReset(osd(0)));
    c.collect(osd(2));
    c.run_for(c.settings.retry_ns / 3, &|_| false);
    let interval = c.latest_membership().unwrap().interval;
    let object = c.clients.object(&format!("a{copied}"));
    let msg = PeerMsg::PieceDone { interval, object };
    let now = c.now;
    c.host(osd(0)).feed(now, PgEvent::Peer { from: osd(2), msg });
    c.collect(osd(0));
    // So they are sent again at different times, each while the other one is outstanding.
    c.run_clean();
}

#[test]
fn a_copy_that_is_replaced_in_pieces_is_missing_until_the_last_one_came() {
    let mut c = cluster(3, 3, 2);
    append(&mut c, "a0");
    c.run_clean();
    // Such a push is sent for an object that was missing, and was removed and created again in the meantime.
    let interval = c.latest_membership().unwrap().interval;
    let (object, version) = (c.clients.object("a0"), Eversion::new(interval, 1));
    let piece = ObjectPiece {
        start: PieceCursor::default(),
        version,
        size: 8,
        data: Bytes::from_static(b"half"),
        attrs: Vec::new(),
        omap_header: Bytes::new(),
        omap: Vec::new(),
        next: Some(PieceCursor { offset: 4, omap_after: None }),
    };
    let msg = PeerMsg::Push { interval, object: object.clone(), version, piece: Some(piece.clone()) };
    let now = c.now;
    c.host(osd(2)).feed(now, PgEvent::Peer { from: osd(0), msg });
    c.collect(osd(2));
    assert!(c.hosts[&osd(2)].pg.lacks(&object));
    // The second piece was lost with a session: the third one does not complete the object.
    let last = ObjectPiece {
        start: PieceCursor { offset: 6, omap_after: None },
        data: Bytes::from_static(b"le"),
        next: None,
        ..piece
    };
    let msg = PeerMsg::Push { interval, object: object.clone(), version, piece: Some(last) };
    c.host(osd(2)).feed(now, PgEvent::Peer { from: osd(0), msg });
    c.collect(osd(2));
    assert!(c.hosts[&osd(2)].pg.lacks(&object));
    // The other pieces never arrive.
    c.reset_session(osd(0), osd(2));
    c.run_clean();
    assert!(!c.hosts[&osd(2)].pg.lacks(&object));
}

#[test]
fn a_write_that_waits_for_a_copy_holds_up_its_object_alone() {
    let mut c = copying_in_pieces(1);
    let name = |n: u32| format!("a{n}");
    // The copy continues when the member has stored a piece.
    let is_done = |wire: &Wire| matches!(wire, Wire::Peer { msg: PeerMsg::PieceDone { .. }, .. });
    let copied = (0..8).find(|n| is_copied(&c, *n)).unwrap();
    let other = (0..8).find(|n| !is_copied(&c, *n)).unwrap();
    let mark = c.clients.mark();
    let held = c.send(&name(copied), Request::Append(mark));
    let after = c.send(&name(copied), Request::Read);
    let free = c.send(&name(other), Request::Read);
    for _ in 0..200 {
        if c.clients.answer(free).is_some() {
            break;
        }
        c.links.values_mut().for_each(|wires| wires.retain(|wire| !is_done(wire)));
        let action = c.actions().first().copied();
        match action {
            Some(action) => c.act(action),
            None => break,
        }
    }
    assert!(c.clients.answer(free).is_some(), "a read of another object waits");
    assert!(c.clients.answer(held).is_none() && c.clients.answer(after).is_none());
    c.run_until("answers", |c| c.clients.answer(held).is_some() && c.clients.answer(after).is_some());
    c.run_clean();
}

#[test]
fn a_new_member_is_backfilled_while_writes_go_on() {
    let settings = PgSettings { min_log_entries: 3, max_log_entries: 5, ..test_settings() };
    let mut c = Cluster::new(4, 3, 2, settings);
    c.run_clean();
    write_some(&mut c, 20);
    for n in 0..6 {
        append(&mut c, &format!("d{n}"));
    }
    for n in 0..8 {
        append(&mut c, &format!("a{n}"));
    }
    c.kill(osd(2), 0);
    c.mon.down(osd(2));
    c.ask("d3", Request::Delete);
    c.mon.set_up(&[0, 1, 3]);
    for _ in 0..3 {
        write_some(&mut c, 20);
    }
    c.ask("d5", Request::Delete);
    append(&mut c, "d3");
    c.run_clean();
    assert_eq!(c.in_sync(), set(&[0, 1, 3]));
    // And back to a member whose log no longer overlaps.
    c.boot(osd(2));
    c.mon.set_up(&[0, 1, 2]);
    for _ in 0..3 {
        write_some(&mut c, 20);
    }
    c.run_clean();
    assert_eq!(c.in_sync(), set(&[0, 1, 2]));
}

/// Creates a cluster in which osd.3 replaces osd.2 and needs a backfill.
fn with_a_new_member(min_size: u32) -> Cluster {
    let settings = PgSettings { min_log_entries: 3, max_log_entries: 5, ..test_settings() };
    let mut c = Cluster::new(4, 3, min_size, settings);
    c.run_clean();
    write_some(&mut c, 20);
    c.kill(osd(2), 0);
    c.mon.down(osd(2));
    c.mon.set_up(&[0, 1, 3]);
    c
}

fn is_backfilling(c: &Cluster) -> bool {
    c.hosts[&c.primary()].pg.catching_up().iter().any(|row| row.backfill_position.is_some())
}

/// Whether such a message is in flight.
fn is_under_way(c: &Cluster, is_meant: impl Fn(&PeerMsg) -> bool) -> bool {
    let is_one = |wire: &Wire| matches!(wire, Wire::Peer { msg, .. } if is_meant(msg));
    c.links.values().any(|wires| wires.iter().any(is_one))
}

#[test]
fn a_scan_is_answered_by_a_member_that_knows_a_later_interval_than_its_primary() {
    let mut c = with_a_new_member(1);
    c.run_until("a scan", |c| is_under_way(c, |msg| matches!(msg, PeerMsg::Scan { .. })));
    assert_eq!((c.primary(), c.in_sync()), (osd(0), set(&[0, 1])));
    c.kill(osd(1), 0);
    c.mon.down(osd(1));
    let interval = c.hosts[&osd(0)].pg.interval();
    for action in [Action::Map(osd(0)), Action::ToMon(osd(0)), Action::Map(osd(3))] {
        c.act(action);
    }
    assert!(c.hosts[&osd(3)].pg.interval() > interval);
    while !is_under_way(&c, |msg| matches!(msg, PeerMsg::ScanReply { .. })) {
        let next = [Action::Deliver(osd(0), osd(3)), Action::Answer(osd(3)), Action::Flush(osd(3))];
        c.act(next.into_iter().find(|action| c.actions().contains(action)).unwrap());
    }
    while c.actions().contains(&Action::Deliver(osd(3), osd(0))) {
        c.act(Action::Deliver(osd(3), osd(0)));
    }
    assert_eq!(c.hosts[&osd(0)].pg.interval(), interval, "the primary does not know it yet");
    // The member acknowledges writes continuously.
    let is_filled = (0..40).any(|_| {
        append(&mut c, "b0");
        c.run_for(c.settings.retry_ns / 3, &|_| false);
        c.in_sync().contains(&3)
    });
    assert!(is_filled, "the backfill does not go on while clients write");
}

#[test]
fn nobackfill_holds_backfills_back_and_lets_missing_objects_through() {
    let set_flags = |c: &mut Cluster, flags: u32| c.mon.change(|map| map.flags = flags);
    // A member whose log does not overlap: its backfill stops where it is, and does not start again.
    let mut c = with_a_new_member(2);
    c.run_until("a backfill", is_backfilling);
    set_flags(&mut c, flag::NOBACKFILL);
    c.run_until("no backfill", |c| !is_backfilling(c));
    assert!(!c.run_for(3000 * MS, &|c| c.in_sync().contains(&3) || is_backfilling(c)));
    let state = c.hosts[&c.primary()].pg.state();
    assert!(state & pg_state::BACKFILL_WAIT != 0 && state & pg_state::BACKFILLING == 0, "{state:x}");
    // A member whose log overlaps returns nevertheless.
    c.boot(osd(2));
    c.mon.set_up(&[0, 1, 2]);
    write_some(&mut c, 1);
    set_flags(&mut c, 0);
    c.run_clean();
    c.kill(osd(2), 0);
    c.mon.down(osd(2));
    set_flags(&mut c, flag::NOBACKFILL);
    append(&mut c, "a0");
    c.boot(osd(2));
    c.run_clean();
    assert_eq!(c.in_sync(), set(&[0, 1, 2]));
}

#[test]
fn a_store_that_becomes_too_full_for_a_backfill_gets_the_rest_when_it_has_room() {
    let mut c = with_a_new_member(2);
    c.run_until("a backfill", is_backfilling);
    let now = c.now;
    let target = c.hosts.get_mut(&osd(3)).unwrap();
    target.backfill_full = true;
    target.feed(now, PgEvent::RemoteBackfillTooFull);
    c.collect(osd(3));
    c.run_until("no backfill", |c| !is_backfilling(c));
    assert!(!c.run_for(3000 * MS, &|c| c.in_sync().contains(&3) || is_backfilling(c)));
    let state = c.hosts[&c.primary()].pg.state();
    assert!(state & pg_state::BACKFILL_TOOFULL != 0, "{state:x}");
    c.hosts.get_mut(&osd(3)).unwrap().backfill_full = false;
    c.run_clean();
    assert_eq!(c.in_sync(), set(&[0, 1, 3]));
}

#[test]
fn missing_objects_are_not_copied_to_a_store_that_takes_nothing() {
    let mut c = cluster(3, 3, 2);
    write_some(&mut c, 8);
    c.kill(osd(2), 0);
    c.mon.down(osd(2));
    write_some(&mut c, 8);
    c.boot(osd(2));
    c.run_until("a recovery", |c| !c.hosts[&osd(0)].pg.catching_up().is_empty());
    let set_full = |c: &mut Cluster, full: bool| c.hosts.get_mut(&osd(0)).unwrap().pg.set_too_full(|_| full);
    set_full(&mut c, true);
    assert!(!c.run_for(3000 * MS, &|c| c.in_sync().contains(&2)));
    let state = c.hosts[&osd(0)].pg.state();
    assert!(state & pg_state::RECOVERY_TOOFULL != 0, "{state:x}");
    set_full(&mut c, false);
    c.run_clean();
    assert_eq!(c.in_sync(), set(&[0, 1, 2]));
}

#[test]
fn norebalance_forbids_moves_only_and_norecover_all_copying() {
    let mut c = cluster(6, 3, 2);
    write_some(&mut c, 12);
    let set_flags = |c: &mut Cluster, flags: u32| c.mon.change(|map| map.flags = flags);
    set_flags(&mut c, flag::NOREBALANCE);
    c.mon.set_up(&[3, 1, 2]);
    assert!(!c.run_for(3000 * MS, &|c| c.in_sync().contains(&3)), "it moved");
    // When the PG is degraded, it is filled.
    c.kill(osd(0), 0);
    c.mon.down(osd(0));
    c.run_until("a third member", |c| c.in_sync() == set(&[1, 2, 3]));
    set_flags(&mut c, flag::NORECOVER);
    c.kill(osd(3), 0);
    c.mon.down(osd(3));
    append(&mut c, "a0");
    c.boot(osd(3));
    assert!(!c.run_for(3000 * MS, &|c| c.in_sync().len() == 3), "it recovered");
    set_flags(&mut c, 0);
    c.run_clean();
}

#[test]
fn a_move_fills_the_target_before_the_source_goes() {
    let mut c = cluster(6, 3, 2);
    write_some(&mut c, 12);
    c.mon.set_up(&[3, 4, 5]);
    let seen = c.mon.history.len();
    for _ in 0..3 {
        write_some(&mut c, 12);
    }
    c.run_clean();
    assert_eq!((c.primary(), c.in_sync()), (osd(3), set(&[3, 4, 5])));
    assert!(c.mon.history[seen..].iter().all(|m| m.in_sync.len() >= 3), "{:?}", c.mon.history);
    assert!((0..3).all(|n| c.hosts[&osd(n)].removals == 1));
}

/// Its disk flushes one change while the others flush twenty, and clients always have eight updates in flight.
#[test]
fn a_member_with_a_slow_disk_joins_while_clients_write() {
    let mut c = Cluster::new(4, 3, 2, test_settings());
    c.run_clean();
    let slow = osd(2);
    c.kill(slow, 0);
    c.mon.down(slow);
    let append = |c: &mut Cluster| {
        let mark = c.clients.mark();
        c.send("a", Request::Append(mark))
    };
    let write = append(&mut c);
    c.run_until("an answer without it", |c| c.clients.answer(write).is_some());
    c.boot(slow);
    let (mut writes, mut answered, mut resend) = (Vec::new(), 0, c.now);
    for step in 0.. {
        if c.in_sync().contains(&slow.0) {
            break;
        }
        assert!(step < 20_000, "{answered} writes were answered\n{}", c.describe());
        let before = writes.len();
        writes.retain(|write| c.clients.answer(*write).is_none());
        answered += before - writes.len();
        while writes.len() < 8 {
            writes.push(append(&mut c));
        }
        for action in c.actions() {
            if (action != Action::Flush(slow) || step % 20 == 0) && c.is_possible(action) {
                c.act(action);
            }
        }
        c.now += MS;
        if c.now >= resend {
            resend = c.now + 150 * MS;
            c.clients.resend(&c.mon.map, c.pg);
        }
    }
    assert!(answered > 50, "{answered} writes");
    c.run_clean();
}
