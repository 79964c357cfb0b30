//! The end of a run: faults stop, the cluster must become whole by itself, every object is read once more, and copies are compared.

use super::nemesis::TROUBLE_BEGINS;
use super::workload::BATCHES_POOL;
use super::{World, describe_map};
use crate::client::Client;
use crate::client::batches::object;
use crate::history::{Action, is_batch_object};
use crate::invariants::{Violation, left_over};
use crate::network::Node;
use crate::osd::Osd;
use crate::scenario::Fault;
use crate::schedule::{MILLI, Nanos, SECOND};
use crate::world::WorldEvent;
use nacre_pg::Pg;
use nacre_types::stats::pg_state;
use nacre_types::{ObjectId, PgId};
use std::collections::BTreeSet;

/// The longest allowed queue of a direction of a connection.
const MAX_QUEUE: usize = 20_000;
/// The time after the last fault within which each PG must be active.
const ACTIVE_WITHIN: Nanos = 30 * SECOND;
/// How often the cluster is checked.
const LOOK: Nanos = 500 * MILLI;

/// The phase of the run.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RunPhase {
    /// Faults occur.
    Trouble,
    /// Faults have stopped; the cluster heals.
    Healing,
    /// All is clean; every object is read once more.
    LastReads,
    /// Done.
    Over,
}

impl World {
    /// Faults end: everything is repaired, and the cluster has to become whole by itself.
    pub(super) fn end_faults(&mut self) {
        self.ending = RunPhase::Healing;
        self.end_all_faults();
        self.whole_by = self.schedule.now() + self.patience();
        self.schedule.after(LOOK, WorldEvent::Look);
    }

    /// The time after the last fault within which the cluster must be whole: a minute, and twice the time for sending everything.
    fn patience(&self) -> Nanos {
        let bytes: u64 = self.osds.iter().map(|osd| osd.disk().used()).sum();
        let sending = (bytes * SECOND).checked_div(self.scenario.bandwidth).unwrap_or(0);
        60 * SECOND + 2 * sending
    }

    pub(super) fn check_progress(&mut self) {
        let now = self.schedule.now();
        // Watches of clients that are gone lapse by updates that no client requested.
        let busy = |osd: &Osd| osd.waiting_requests() > 0;
        let is_idle = self.ending != RunPhase::LastReads || !self.osds.iter().any(busy);
        let unclean = self.unclean();
        let left_over = self.left_over();
        let whole = is_idle
            && unclean.is_empty()
            && left_over.is_empty()
            && self.not_shown().is_empty()
            && self.unanswered().is_empty()
            && self.watchers_are_told().is_ok();
        let began = TROUBLE_BEGINS + self.scenario.trouble;
        let inactive = unclean.iter().find(|(_, state)| !state.starts_with("active"));
        if let Some((pg, state)) = inactive.filter(|_| now > began + ACTIVE_WITHIN) {
            let detail = format!("{pg} is {state}: {}", self.describe_unfinished());
            return self.fail("a PG is not active in time", detail);
        }
        // It must become clean while clients continue.
        self.busy &= !unclean.is_empty();
        self.finish_processes();
        if !whole || !self.processes_are_done() {
            if now > self.whole_by && unclean.is_empty() && !left_over.is_empty() {
                self.fail("data of deleted pools is left", left_over.join(", "));
            }
            if now > self.whole_by {
                if unclean.is_empty() && self.unanswered().is_empty() {
                    let told = self.watchers_are_told();
                    self.check(told);
                }
                let unfinished = self.describe_unfinished();
                self.fail("the cluster does not become whole again", unfinished);
            }
            self.schedule.after(LOOK, WorldEvent::Look);
            return;
        }
        match self.ending {
            RunPhase::Healing => {
                self.ending = RunPhase::LastReads;
                self.last_reads();
                self.start_final_check();
                self.schedule.after(LOOK, WorldEvent::Look);
            }
            _ => {
                self.ending = RunPhase::Over;
                self.say_of_program();
                let lost = self.lost_pgs();
                let checked = self.invariants.check_at_rest(&self.osds, self.monitor.view(), &lost);
                self.check(checked);
                let checked = self.watchers_are_told();
                self.check(checked);
                if self.network.longest_queue() > MAX_QUEUE {
                    let detail = format!("{} messages on one direction", self.network.longest_queue());
                    self.fail("a queue without bound", detail);
                }
            }
        }
    }

    /// Checks that watchers which missed a notify learned of it. A client that was paused learns of it after it continues.
    fn watchers_are_told(&self) -> Result<(), Violation> {
        let lost = self.lost_pgs();
        self.history.watching.check_at_rest(self.schedule.now(), |session, object| {
            let owner = self.clients.iter().find(|client| client.session() == session);
            let silent =
                |client: &Client| matches!(client.node, Node::Client(n) if self.nemesis.is_silent(n));
            let map = &self.monitor.view().map;
            owner.is_none_or(silent)
                || map.pools.get(&object.pool()).is_none_or(|pool| lost.contains(&pool.pg_of(object)))
        })
    }

    /// One client reads every object that was ever used.
    fn last_reads(&mut self) {
        let now = self.schedule.now();
        let Some(number) = (0..self.clients.len() as u32).find(|n| !self.nemesis.is_silent(*n)) else {
            return;
        };
        let lost = self.lost_pgs();
        let Some(map) = self.clients[number as usize].map().cloned() else { return };
        let objects: Vec<ObjectId> = self
            .history
            .objects()
            .map(|(object, _)| object.clone())
            .filter(|o| !is_batch_object(o))
            .filter(|o| map.pools.get(&o.pool()).is_some_and(|pool| !lost.contains(&pool.pg_of(o))))
            .collect();
        for object in objects {
            self.with_client(number, |client, history, out| {
                client.ask(now, history, (object, Action::Read), true, out);
            });
        }
        if self.has_batches(&map) && !lost.contains(&map.pools[&BATCHES_POOL].pg_of(&object(BATCHES_POOL))) {
            let batches = (BATCHES_POOL, self.scenario.batches);
            self.with_client(number, |client, history, out| {
                client.list_batches(now, history, batches, true, out);
            });
        }
    }

    /// PGs that lost all in-sync copies, so that no requests on them can be answered.
    pub(crate) fn lost_pgs(&self) -> BTreeSet<PgId> {
        let map = &self.monitor.view().map;
        let survives = |pg: &PgId| {
            map.membership(*pg).is_none_or(|membership| {
                membership.in_sync.iter().any(|m| self.osds.iter().any(|osd| osd.member() == *m))
            })
        };
        map.pg_ids().filter(|pg| self.deleted.contains(&pg.pool) || !survives(pg)).collect()
    }

    /// PGs that are not active and clean on a primary, with their states.
    fn unclean(&self) -> Vec<(PgId, String)> {
        let view = self.monitor.view();
        let map = &view.map;
        let lost = self.lost_pgs();
        let mut unclean = Vec::new();
        for pg in map.pg_ids().filter(|pg| !lost.contains(pg)) {
            let primary = map.membership(pg).map(|m| m.primary);
            // A PG with an unfound object is never clean, although its members are in sync and its primary knows them.
            let may_lack = self.scenario.faults.contains(&Fault::Damage);
            let look = |machine: &Pg| {
                let state = machine.state();
                let has_unfound = machine.unfound().is_some_and(|mut unfound| unfound.next().is_some());
                let is_current = map.membership(pg).is_some_and(|m| m.interval == machine.interval());
                let is_whole = state & (pg_state::UNDERSIZED | pg_state::REMAPPED) == 0;
                (state, may_lack && has_unfound && is_current && is_whole, is_current)
            };
            let primary = primary.and_then(|osd| self.osds.get(osd.0 as usize));
            let (state, is_settled, is_current) =
                primary.and_then(|osd| osd.with_machine(pg, look)).unwrap_or((0, false, true));
            // If weights differ much, CRUSH may find fewer OSDs than the pool's size; more members are impossible then.
            let up = view.up.get(&pg).map_or(&[][..], Vec::as_slice);
            let has_all = map
                .membership(pg)
                .is_some_and(|m| up.iter().all(|osd| m.in_sync.iter().any(|m| m.osd == *osd)));
            let is_short = map.pools.get(&pg.pool).is_some_and(|pool| up.len() < pool.size as usize);
            let wanted = match has_all && is_short && !up.is_empty() {
                true => pg_state::ACTIVE,
                false => pg_state::ACTIVE | pg_state::CLEAN,
            };
            if is_settled {
                continue;
            }
            if state & wanted != wanted {
                unclean.push((pg, pg_state::to_text(state)));
            } else if !is_current {
                // It does not have the restored or changed map yet.
                unclean
                    .push((pg, format!("{} in another interval than the map's", pg_state::to_text(state))));
            }
        }
        unclean
    }

    /// Copies of deleted pools, on disks whose OSDs run.
    fn left_over(&self) -> Vec<String> {
        if self.scenario.faults.contains(&Fault::Restore) {
            // A map from an older copy may lack more than the deleted pools, so nothing is removed because of it.
            return Vec::new();
        }
        let map = &self.monitor.view().map;
        let mut copies = Vec::new();
        for osd in self.osds.iter().filter(|osd| osd.is_running()) {
            copies.extend(left_over(osd.disk().visible(), map).map(|pg| format!("{pg} on {}", osd.id)));
        }
        copies
    }

    /// OSDs that run with another store than the one that the map shows as up. Until the process on that one counts as dead,
    /// the monitor refuses their boot, and the PGs seem to be clean.
    fn not_shown(&self) -> Vec<String> {
        let map = &self.monitor.view().map;
        let is_other = |osd: &&Osd| map.up_member(osd.id).is_some_and(|shown| shown != osd.member());
        let running = self.osds.iter().filter(|osd| osd.is_running());
        running.filter(is_other).map(|osd| osd.id.to_string()).collect()
    }

    fn unanswered(&self) -> Vec<String> {
        let lost = self.lost_pgs();
        let silent = |client: &Client| matches!(client.node, Node::Client(n) if self.nemesis.is_silent(n));
        let stuck = self.clients.iter().flat_map(|client| client.stuck_copies(&lost)).collect();
        self.clients.iter().filter(|c| !silent(c)).flat_map(|c| c.describe_pending(&lost, &stuck)).collect()
    }

    pub(super) fn describe_unfinished(&mut self) -> String {
        let mut text = format!("map: {}", describe_map(self.monitor.view()));
        for (pg, state) in self.unclean() {
            text += &format!("\n  {pg} is {state}");
            for osd in &self.osds {
                if let Some(said) = osd.describe(pg) {
                    text += &format!("\n    {}: {said}", osd.id);
                }
            }
        }
        for osd in self.not_shown() {
            text += &format!("\n  {osd} runs on a store that the map does not show");
        }
        for line in self.unanswered() {
            text += &format!("\n  unanswered: {line}");
        }
        for line in self.describe_processes() {
            text += &format!("\n  {line}");
        }
        text
    }
}
