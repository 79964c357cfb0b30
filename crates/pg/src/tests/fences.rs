//! Scenarios of fences: a record or a lease of an earlier membership must have no effect.

use super::cluster::{Action, Cluster, Wire, osd};
use super::host::{MS, Request, TERM};
use super::life::{cluster, write_some};
use crate::api::PeerMsg;

#[test]
fn an_acknowledgement_of_an_earlier_record_counts_once_the_next_one_is_durable() {
    let mut c = cluster(3, 3, 2);
    write_some(&mut c, 3);
    let old = c.mon.membership().cloned();
    // osd.1 acknowledges an update under the record of three members, and receives nothing more.
    c.kill(osd(2), 0);
    let mark = c.clients.mark();
    let op = c.send("a1", Request::Append(mark));
    c.act(Action::Client(osd(0)));
    let version = c.hosts[&osd(0)].pg.head();
    let has_acked =
        |c: &Cluster| c.hosts[&osd(0)].pg.primary.as_ref().unwrap().heads.get(&osd(1)) == Some(&version);
    c.run_until("an acknowledgement", has_acked);
    c.cut(osd(0), osd(1));
    c.cut_from_mon(osd(1));
    c.mon.down(osd(2));
    c.run_until("the set without osd.2", |c| c.hosts[&osd(0)].pg.membership().unwrap().in_sync.len() == 2);
    assert!(!c.run_for(TERM / 2, &|c| c.clients.answer(op).is_some()), "osd.1 does not remember the record");
    c.heal();
    c.run_until("an answer", |c| c.clients.answer(op).is_some());
    // The primary's disk and the map's newer records are lost. Only osd.1 has the update, and is away for a while.
    c.kill(osd(0), 0);
    c.wipe(osd(0));
    c.mon.down(osd(0));
    c.mon.restore(old);
    c.boot(osd(2));
    c.boot(osd(0));
    c.run_for(100 * MS, &|_| false);
    c.kill(osd(1), 0);
    c.mon.down(osd(1));
    c.run_for(1000 * MS, &|_| false);
    c.boot(osd(1));
    assert_eq!(c.ask("a1", Request::Read).len(), 8, "an acknowledged append is lost");
    c.run_clean();
}

#[test]
fn a_lost_question_for_the_record_holds_answers_up_for_a_while_only() {
    let mut c = cluster(3, 3, 2);
    write_some(&mut c, 3);
    c.kill(osd(2), 0);
    c.mon.down(osd(2));
    let link = (osd(0), osd(1));
    let is_record = |wire: &Wire| matches!(wire, Wire::Peer { msg: PeerMsg::Record { .. }, .. });
    c.run_until("the record", |c| c.links.get(&link).is_some_and(|wires| wires.iter().any(is_record)));
    let mark = c.clients.mark();
    let op = c.send("a1", Request::Append(mark));
    let is_question = |wire: &Wire| matches!(wire, Wire::Peer { msg: PeerMsg::Query { .. }, .. });
    c.links.get_mut(&link).unwrap().retain(|wire| !is_record(wire) && !is_question(wire));
    assert!(c.run_for(4 * c.settings.retry_ns, &|c| c.clients.answer(op).is_some()));
    c.boot(osd(2));
    c.run_clean();
}

#[test]
fn a_new_store_under_the_old_primarys_id_does_not_end_the_wait_for_its_leases() {
    let mut c = cluster(3, 3, 2);
    write_some(&mut c, 1);
    // As far as the others know, the process on the old store is cut off and holds their leases.
    c.kill(osd(0), 0);
    c.mon.down(osd(0));
    let before = c.now;
    c.wipe(osd(0));
    c.boot(osd(0));
    let mark = c.clients.mark();
    c.ask("a0", Request::Append(mark));
    assert!(c.now - before >= TERM * 3 / 4, "they waited only {} ms", (c.now - before) / MS);
    c.run_clean();
}
