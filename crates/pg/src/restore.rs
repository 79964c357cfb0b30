//! After a MapStore restore (R7): determines the membership that counts if the map has lost changes.
//!
//! A restored map begins a new generation, and no record of an earlier one has any effect in it: with the first map of a
//! generation, a machine stops what it did. Each older PG is then put back once: one of its members asks every OSD that may
//! have a copy for the highest record that it remembers, and proposes that record's in-sync set in the generation's own
//! intervals. It asks all OSDs that the map lists, and all from earlier generations that any OSD remembers, except those that
//! an operator declared lost. An OSD that answers has adopted the new generation. So no OSD acts on an older record once all
//! have answered.
//!
//! The highest remembered record is the right one: a primary acknowledges nothing before the record is durable on itself and on
//! all in-sync members, which confirm it ([`PeerMsg::Record`]). So a member that has an acknowledged update remembers the
//! record under which it was acknowledged, or a later one.

use crate::api::{PeerMsg, PgCommand, RestoreInfo};
use crate::pg::{OnCommit, Pg};
use crate::settings::Mutation;
use nacre_types::ids::{Interval, OsdId};
use nacre_types::osdmap::{Member, OsdInfo, OsdMap, PgMembership};
use std::collections::{BTreeMap, BTreeSet};

/// The query of all OSDs for the highest record.
#[derive(Debug, Default)]
pub(crate) struct RestoreQuery {
    answers: BTreeMap<OsdId, RestoreInfo>,
    /// When the OSDs that did not answer were last asked; 0 for never.
    pub(crate) asked_at: u64,
}

/// Whether an operator declared the OSD's data lost.
fn is_given_up(info: &OsdInfo) -> bool {
    !info.up && info.lost_at > info.up_from
}

impl Pg {
    /// Ends everything that was done in an earlier generation: its records have no effect any more, and messages of its
    /// primaries are refused.
    pub(crate) fn leave_generation(&mut self, generation: u64, out: &mut Vec<PgCommand>) {
        self.generation = generation;
        self.restoring = None;
        self.own_proposal = None;
        self.depose(out);
        self.membership = None;
        self.replica.session = None;
        self.staged = None;
        self.promised = self.promised.max(Interval::creation(generation));
    }

    /// Whether the record that `map` shows is older than its generation, so that it may not be the newest.
    pub(crate) fn has_stale_record(&self, map: &OsdMap) -> bool {
        if map.generation <= 1 {
            return false;
        }
        match map.membership(self.id) {
            Some(membership) => !membership.interval.is_since(map.generation),
            None => map.pools.get(&self.id.pool).is_some_and(|pool| pool.created < map.generation_from),
        }
    }

    /// Continues to wait under a newer map. It asks again for answers of processes that have been replaced since, because a
    /// copy that was not durable may be gone.
    pub(crate) fn await_records(&mut self) {
        let Some(map) = self.map.clone() else { return };
        let published = map.membership(self.id);
        self.own_proposal.take_if(|own_proposal| own_proposal.cas.expected.as_ref() != published);
        let restoring = self.restoring.get_or_insert_default();
        restoring.answers.retain(|osd, answer| {
            map.osds.get(osd).is_none_or(|info| !info.up || info.boot_nonce == answer.boot_nonce)
        });
    }

    /// Whether this member may put the PG back.
    pub(crate) fn may_restore(&self) -> bool {
        self.restoring.is_some()
            && if self.exists { self.copy.complete } else { self.up.first() == Some(&self.me.osd) }
    }

    /// The OSDs that have not answered yet.
    pub(crate) fn unanswered_members(&self) -> Vec<OsdId> {
        let (Some(map), Some(restoring)) = (&self.map, &self.restoring) else { return Vec::new() };
        let told = restoring.answers.values().flat_map(|answer| &answer.unlisted);
        let all: BTreeSet<OsdId> = map.osds.keys().chain(self.unlisted.iter()).chain(told).copied().collect();
        let counts = |osd: &OsdId| {
            *osd != self.me.osd
                && !restoring.answers.contains_key(osd)
                && !map.osds.get(osd).is_some_and(is_given_up)
        };
        all.into_iter().filter(counts).collect()
    }

    pub(crate) fn consider_restore(&mut self, out: &mut Vec<PgCommand>) {
        if !self.may_restore() {
            return;
        }
        let unheard = self.unanswered_members();
        let (now, retry, generation) = (self.now, self.settings.retry_ns, self.generation);
        let (Some(map), Some(restoring)) = (self.map.clone(), &mut self.restoring) else { return };
        if restoring.asked_at == 0 || now >= restoring.asked_at + retry {
            restoring.asked_at = now.max(1);
            let query = |to| PgCommand::Send { to, msg: PeerMsg::HighestQuery { generation } };
            out.extend(unheard.iter().copied().filter(|osd| map.is_up(*osd)).map(query));
        }
        let trusts = self.settings.breaks(Mutation::IgnoreHighestRecord);
        if self.own_proposal.is_some() || !self.pending.is_empty() || !(unheard.is_empty() || trusts) {
            return;
        }
        let Some(proposed) = self.put_back(&map) else { return };
        self.promised = self.promised.max(proposed.interval);
        let cas = self.cas(map.membership(self.id).cloned(), proposed);
        self.propose_promotion(cas, out);
    }

    /// The PG's first membership in this generation, if this member must propose it.
    fn put_back(&self, map: &OsdMap) -> Option<PgMembership> {
        let answers = &self.restoring.as_ref()?.answers;
        let trusts = self.settings.breaks(Mutation::IgnoreHighestRecord);
        let published = map.membership(self.id);
        if !self.exists && !answers.values().any(|answer| answer.exists) {
            // Nothing was ever ordered, unless every copy is lost: in that case, the record remains as it is.
            return if published.is_none_or(|m| m.interval.is_creation()) {
                self.creation_proposal(map)
            } else {
                None
            };
        }
        let remembered =
            answers.values().filter_map(|answer| answer.highest.as_ref()).chain(&self.copy.highest);
        let highest =
            published.into_iter().chain(remembered.filter(|_| !trusts)).max_by_key(|m| m.interval)?;
        if highest.interval.is_since(map.generation) {
            // Another OSD has put it back: a newer map shows it.
            return None;
        }
        let whole = |osd: &OsdId| {
            if *osd == self.me.osd {
                self.exists && self.copy.complete
            } else {
                answers.get(osd).is_some_and(|a| a.whole)
            }
        };
        let able = highest.in_sync.iter().filter(|m| map.is_member_up(**m) && whole(&m.osd));
        if able.min_by_key(|m| self.up_position(m.osd)) != Some(&self.me) {
            return None;
        }
        // A member without a copy was dropped under a later record that no OSD remembers. Nothing was acknowledged under that
        // record alone, but the member is not in sync (R2). In a first interval, some members may not have created their copies
        // yet.
        let runs =
            |m: &Member| map.osds.get(&m.osd).is_some_and(|info| info.incarnation == Some(m.incarnation));
        let let_go = |m: &Member| runs(m) && answers.get(&m.osd).is_some_and(|answer| !answer.exists);
        let mut in_sync = highest.in_sync.clone();
        in_sync.retain(|m| highest.interval.is_creation() || !let_go(m));
        let interval = Interval::after_restore(map.generation);
        Some(PgMembership { interval, primary: self.me.osd, in_sync })
    }

    pub(crate) fn on_restore_query(&self, from: OsdId, generation: u64, out: &mut Vec<PgCommand>) {
        if generation != self.generation {
            // The OSD asks again when this OSD has the map.
            return;
        }
        let answer = RestoreInfo {
            boot_nonce: self.boot_nonce,
            exists: self.exists,
            whole: self.exists && self.copy.complete,
            highest: self.copy.highest.clone().filter(|_| self.exists),
            unlisted: self.unlisted.to_vec(),
        };
        out.push(PgCommand::Send { to: from, msg: PeerMsg::HighestReply { generation, answer } });
    }

    pub(crate) fn on_restore_info(&mut self, from: OsdId, generation: u64, answer: RestoreInfo) {
        let current = generation == self.generation;
        if let Some(restoring) = self.restoring.as_mut().filter(|_| current) {
            restoring.answers.insert(from, answer);
            self.await_records();
        }
    }

    /// Handles the primary's record, possibly before its map arrives: acknowledged updates must not be durable without the
    /// record.
    pub(crate) fn on_membership_record(
        &mut self,
        from: OsdId,
        record: PgMembership,
        out: &mut Vec<PgCommand>,
    ) {
        let newer = self.copy.highest.as_ref().is_none_or(|known| known.interval < record.interval);
        if newer && record.primary == from && record.interval >= self.promised && self.restoring.is_none() {
            self.copy.highest = Some(record);
            self.persist_record(OnCommit::Nothing, out);
        }
    }
}
