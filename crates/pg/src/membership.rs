//! Memberships: taking part in an interval, and proposing the next one.
//!
//! Each proposal is a compare-and-swap on the membership in effect:
//! - *Creation*: the first OSD of the up set, with all OSDs of the up set that are up. In this first interval the members
//!   create their copies and nothing is ordered; the primary ends it once all members that are up have a copy (R2).
//! - *Repeated creation*, if all copies are lost: the map authority, by an operator's command, with an interval above all that
//!   the PG had ([`Interval::recreation`]) and members as in a creation. A member that has an old copy of the PG removes it
//!   first.
//! - *Promotion*: if the primary is down, the first in-sync member that is up. From the time it sends the proposal, it takes
//!   part in nothing of the old interval (R3).
//! - *The primary*: drops dead members as far as min_size allows (R5), adds members that have caught up, drops those that CRUSH
//!   does not want once all that it wants are in sync and have shown that they are alive (R8), and passes its role to the first
//!   OSD of the up set.
//! - *A primary that restarted* proposes the same set in the next interval before it orders anything, so that all versions
//!   of an interval come from one process (R3).
//! - *After a MapStore restore*: the first member of the highest record that any OSD remembers ([`crate::restore`], R7).
//!
//! The outcome of a proposal is unknown until an answer or a map shows it: the proposal is repeated, never forgotten (R1).

use crate::api::{DropReason, MemberInfo, PeerMsg, PgCommand};
use crate::pg::{OnCommit, Pg};
use crate::primary::{Primary, PrimaryPhase};
use crate::settings::Mutation;
use nacre_types::ids::{Incarnation, Interval, OsdId};
use nacre_types::msg::{PgCas, PgCasReply};
use nacre_types::osdmap::{Member, OsdMap, PgMembership};
use nacre_types::txn::Transaction;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The query to the members that would stay, before a proposal drops members that are up.
#[derive(Debug)]
pub(crate) struct ShrinkCheck {
    in_sync: Vec<Member>,
    pub(crate) round: u64,
    pub(crate) asked_at: u64,
    heard: BTreeSet<OsdId>,
}

/// Answers to a [`ShrinkCheck`]'s query count for this many times `retry_ns`; then the query is sent again. The answers wait for
/// the member's outstanding writes to its disk.
pub(crate) const SHRINK_CHECK_RETRIES: u64 = 3;
/// The wait before a promotion proposal, in retry intervals, for each live member that precedes this one.
const PROMOTION_RETRIES: u64 = 5;

/// A proposal of a member that is not primary yet.
#[derive(Debug)]
pub(crate) struct PromotionProposal {
    pub(crate) cas: PgCas,
    pub(crate) sent_at: u64,
    /// Whether it was refused: after a while, another proposal may be right.
    refused: bool,
}

/// Whether this interval creates the PG, with `me` among its first members.
fn begins_with(membership: &PgMembership, me: Member) -> bool {
    membership.interval.is_creation() && membership.in_sync.contains(&me)
}

impl Pg {
    pub(crate) fn on_map(
        &mut self,
        map: Arc<OsdMap>,
        up: Vec<OsdId>,
        unlisted: Arc<[OsdId]>,
        out: &mut Vec<PgCommand>,
    ) {
        if map.generation > self.generation {
            self.leave_generation(map.generation, out);
        }
        self.unlisted = unlisted;
        let shown = map.osds.get(&self.me.osd);
        if shown.is_none_or(|i| i.boot_nonce != self.boot_nonce || i.incarnation != Some(self.me.incarnation))
        {
            // A proposal of the process before this one may have taken effect in the meantime.
            return;
        }
        self.up = up;
        let before = self.map.replace(map.clone());
        if !map.pools.contains_key(&self.id.pool) {
            // A pool that this generation never had may have been created after the copy of the MapStore was made. An old map
            // must not destroy its contents.
            let had =
                before.is_some_and(|b| b.generation == map.generation && b.pools.contains_key(&self.id.pool));
            if had || !self.exists || self.copy.generation == map.generation {
                self.remove(out);
            }
            return;
        }
        if self.has_stale_record(&map) {
            self.await_records();
            return;
        }
        self.restoring = None;
        if let Some(membership) = map.membership(self.id) {
            self.enter_interval(membership.clone(), out);
        }
        self.note_replaced_members();
        self.restart_peering_for_returned(out);
    }

    /// Takes part in `next` if it is newer than the membership in effect.
    pub(crate) fn enter_interval(&mut self, next: PgMembership, out: &mut Vec<PgCommand>) {
        let remembered = self.copy.highest.as_ref().map_or(Interval(0), |h| h.interval);
        if next.interval <= self.interval() || next.interval < remembered {
            return;
        }
        if self.exists && remembered < next.interval && begins_with(&next, self.me) {
            // The operator gave up all copies of the in-sync members, and this copy is older than theirs. The PG is hosted
            // again, without a copy, once this copy is removed.
            return self.remove(out);
        }
        let first_sight = self.membership.is_none();
        let recorded = first_sight && self.copy.highest.as_ref() == Some(&next);
        let continuous = self.primary.is_some()
            && next.primary == self.me.osd
            && next.interval == self.interval().next()
            && next.in_sync.contains(&self.me);
        let store = next.in_sync.iter().find(|m| m.osd == next.primary).map(|m| m.incarnation);
        self.note_lease_holder(next.primary, store);
        if self.replica.session.is_some_and(|s| s.primary != next.primary) {
            self.replica.session = None;
        }
        self.promised = self.promised.max(next.interval);
        self.own_proposal.take_if(|own_proposal| own_proposal.cas.proposed.interval <= next.interval);
        if self.copy.activated == self.interval() && continuous {
            // No other OSD was primary in between.
            self.copy.activated = next.interval;
        }
        let mine = next.primary == self.me.osd && next.in_sync.contains(&self.me);
        self.membership = Some(next.clone());
        if self.exists && !recorded {
            self.copy.highest = Some(next.clone());
            self.copy.generation = self.generation;
            self.record_persist = self.next_persist;
            self.persist_record(OnCommit::Record, out);
        } else if begins_with(&next, self.me) {
            self.create_initial_copy(out);
        }
        if continuous {
            self.continue_primary(&next, out);
        } else {
            self.depose(out);
            if mine {
                // An earlier process may have ordered updates in this interval and proposed the next one. This copy may have
                // lost the updates and even the record of the interval, while other members hold the updates. So their versions
                // must not be used again, and the proposals must become void.
                let succeeds = first_sight && self.exists && !next.interval.is_creation();
                let must_bump = succeeds && (recorded || !self.settings.breaks(Mutation::ReuseInterval));
                self.primary = Some(Primary::new(next.interval, must_bump));
                self.start_peering(out);
            }
        }
        self.replica.announced_at = 0;
    }

    /// R2: creates the copy, empty. Only in the interval that creates the PG: nothing is ordered in it, so nothing can have
    /// been lost. A member that lacks a copy in a later interval has lost it.
    pub(crate) fn create_initial_copy(&mut self, out: &mut Vec<PgCommand>) {
        if self.exists {
            return;
        }
        self.copy.complete = true;
        let mut txn = Transaction::new(self.id);
        self.create_copy(&mut txn);
        self.put_record(&mut txn);
        self.record_persist = self.next_persist;
        self.persist(txn, OnCommit::Record, out);
    }

    /// Records an OSD that may hold leases as this PG's primary, and its store if that is known.
    pub(crate) fn note_lease_holder(&mut self, osd: OsdId, store: Option<Incarnation>) {
        if !self.copy.lease_holders.contains(&osd) {
            self.copy.lease_holders.push(osd);
        }
        if let Some(store) = store {
            self.holder_stores.entry(osd).or_default().insert(store);
        }
    }

    /// Whether the map shows `osd` with the store with which it was primary. A process on another store proves nothing about
    /// the earlier primary, which may still run.
    pub(crate) fn is_same_lease_holder(&self, osd: OsdId) -> bool {
        let Some(shown) = self.map.as_ref().and_then(|map| map.up_member(osd)) else { return false };
        match self.holder_stores.get(&osd) {
            Some(stores) => stores.iter().all(|store| *store == shown.incarnation),
            // This process has not seen it as primary. A store enters the set only through a primary that is later than those
            // on the OSD's earlier stores, and that has waited for their leases.
            None => self.in_sync().contains(&shown),
        }
    }

    /// Stops being primary. Clients resend every request that waits here.
    pub(crate) fn depose(&mut self, out: &mut Vec<PgCommand>) {
        let Some(primary) = self.primary.take() else { return };
        for token in primary.all_tokens() {
            out.push(PgCommand::Drop { token, reason: DropReason::StaleInterval });
        }
        if primary.slot_asked {
            out.push(PgCommand::Release);
        }
        self.tail_senders.clear();
        self.reads.clear();
        self.staged = None;
        out.push(PgCommand::Invalidate { object: None });
    }

    /// Removes the copy: the pool was removed, or other OSDs hold the PG.
    fn remove(&mut self, out: &mut Vec<PgCommand>) {
        self.depose(out);
        self.removing = true;
        out.push(PgCommand::RemovePg);
    }

    /// Proposals of this member whose outcome is unknown.
    pub(crate) fn outstanding_proposals(&self) -> impl Iterator<Item = &PgMembership> {
        let own_proposal = self.own_proposal.iter().map(|own_proposal| &own_proposal.cas.proposed);
        own_proposal.chain(self.primary.iter().flat_map(Primary::proposals))
    }

    // Creation and promotion.

    pub(crate) fn consider_promotion(&mut self, out: &mut Vec<PgCommand>) {
        self.note_vacancy();
        if self.own_proposal.is_some() || self.primary.is_some() || self.restoring.is_some() {
            return;
        }
        let Some(map) = self.map.clone() else { return };
        let proposed = match &self.membership {
            None if map.membership(self.id).is_none() => self.creation_proposal(&map),
            None => None,
            Some(current) => self.promotion(current),
        };
        let Some(proposed) = proposed else { return };
        if !self.settings.breaks(Mutation::AcceptOldIntervalOps) {
            self.promised = self.promised.max(proposed.interval);
            self.replica.session = None;
        }
        let cas = self.cas(self.membership.clone(), proposed);
        self.propose_promotion(cas, out);
    }

    pub(crate) fn propose_promotion(&mut self, cas: PgCas, out: &mut Vec<PgCommand>) {
        out.push(PgCommand::Propose(cas.clone()));
        self.own_proposal = Some(PromotionProposal { cas, sent_at: self.now, refused: false });
    }

    pub(crate) fn creation_proposal(&self, map: &OsdMap) -> Option<PgMembership> {
        if self.exists || self.up.first() != Some(&self.me.osd) {
            return None;
        }
        let in_sync: Vec<Member> = self.up.iter().filter_map(|osd| map.up_member(*osd)).collect();
        let enough = in_sync.len() >= self.min_size() && in_sync.first() == Some(&self.me);
        let interval = Interval::creation(map.generation);
        enough.then_some(PgMembership { interval, primary: self.me.osd, in_sync })
    }

    fn promotion(&self, current: &PgMembership) -> Option<PgMembership> {
        let outbid = current.interval.next() < self.promised;
        // The next interval relies on the existence of a copy (R2).
        let begun = !current.interval.is_creation() || self.pending.is_empty();
        // A member that lacks objects fetches them from the others (R10).
        let complete = self.exists && self.copy.complete;
        if !complete || !begun || !current.in_sync.contains(&self.me) || outbid {
            return None;
        }
        let primary = current.in_sync.iter().find(|m| m.osd == current.primary);
        if primary.is_some_and(|m| self.is_member_up(*m)) {
            return None;
        }
        let live: Vec<Member> = current.in_sync.iter().copied().filter(|m| self.is_member_up(*m)).collect();
        if self.promotion_due_at().is_none_or(|at| self.now < at) {
            return None;
        }
        let below = self.settings.breaks(Mutation::ShrinkBelowMinSize);
        let in_sync = if live.len() >= self.min_size() || below { live } else { current.in_sync.clone() };
        Some(PgMembership { interval: current.interval.next(), primary: self.me.osd, in_sync })
    }

    /// Records since when the interval has no primary that is up.
    fn note_vacancy(&mut self) {
        let lacks_primary = |membership: &&PgMembership| {
            let primary = membership.in_sync.iter().find(|m| m.osd == membership.primary);
            membership.in_sync.contains(&self.me) && !primary.is_some_and(|m| self.is_member_up(*m))
        };
        let vacant = self.membership.as_ref().filter(lacks_primary).map(|membership| membership.interval);
        let known = self.vacant.filter(|(interval, _)| vacant == Some(*interval));
        self.vacant = known.or(vacant.map(|interval| (interval, self.now)));
    }

    /// When this member may propose its promotion. The first member that is up may do so at once. Others wait: the first one
    /// may have no copy, if it was down while the PG was created and the MapStore was restored, or may have promised a later
    /// interval to an OSD that is gone.
    pub(crate) fn promotion_due_at(&self) -> Option<u64> {
        let (membership, (_, since)) = (self.membership.as_ref()?, self.vacant?);
        let mut live: Vec<Member> =
            membership.in_sync.iter().copied().filter(|m| self.is_member_up(*m)).collect();
        live.sort_by_key(|m| self.up_position(m.osd));
        let before = live.iter().position(|m| *m == self.me)? as u64;
        Some(since + before * PROMOTION_RETRIES * self.settings.retry_ns)
    }

    /// The OSD's position in the up set; `usize::MAX` for an OSD that is not in it.
    pub(crate) fn up_position(&self, osd: OsdId) -> usize {
        self.up.iter().position(|wanted| *wanted == osd).unwrap_or(usize::MAX)
    }

    pub(crate) fn cas(&self, expected: Option<PgMembership>, proposed: PgMembership) -> PgCas {
        PgCas { tid: 0, pg: self.id, proposer: self.me, expected, proposed }
    }

    pub(crate) fn retry_promotion(&mut self, out: &mut Vec<PgCommand>) {
        let (now, retry) = (self.now, self.settings.cas_retry_ns);
        let Some(own_proposal) =
            self.own_proposal.as_mut().filter(|own_proposal| now >= own_proposal.sent_at + retry)
        else {
            return;
        };
        if own_proposal.refused {
            self.own_proposal = None;
        } else {
            own_proposal.sent_at = now;
            out.push(PgCommand::Propose(own_proposal.cas.clone()));
        }
    }

    /// Handles an answer of the map authority. An accepted proposal takes effect when the map shows it, which also separates
    /// the leases granted since. So only refusals are taken from here.
    pub(crate) fn on_cas(&mut self, reply: &PgCasReply) {
        if reply.accepted {
            return;
        }
        if let Some(own_proposal) = &mut self.own_proposal
            && own_proposal.cas.expected == reply.current
        {
            own_proposal.refused = true;
        }
        if let Some(primary) = &mut self.primary
            && let Some((cas, _)) = primary.proposal.take_if(|(cas, _)| cas.expected == reply.current)
        {
            // An earlier copy of it may still reach the map authority and be accepted then: its set counts until the record has
            // changed.
            if !primary.refused.contains(&cas.proposed) && !self.settings.breaks(Mutation::ForgetRefused) {
                primary.refused.push(cas.proposed);
            }
            primary.refused_at = self.now;
        }
    }

    /// A member promised a later interval to an OSD whose proposal failed: it takes part again only in a new interval.
    pub(crate) fn on_promised(&mut self, from: OsdId, interval: Interval, promised: Interval) {
        let current = self.interval();
        if let Some(primary) = self.primary.as_mut().filter(|_| interval == current) {
            primary.highest_promised = primary.highest_promised.max(promised);
            primary.promised_elsewhere.insert(from);
        }
    }

    // The primary's own proposals.

    pub(crate) fn consider_proposals(&mut self, out: &mut Vec<PgCommand>) {
        let Some(current) = self.membership.clone() else { return };
        // It is kept only as long as no other proposal is due.
        let Some(primary) = &mut self.primary else { return };
        let departure = primary.departure.take();
        let Some(primary) = &self.primary else { return };
        // The copies are created in the first interval (R2): it ends only when all members that are up have theirs. A member
        // that proposed itself for the next interval has its copy, but does not answer queries of this interval, so peering
        // can't end.
        let equal = matches!(primary.phase, PrimaryPhase::Peered | PrimaryPhase::Active);
        let has_copy = |m: &Member| {
            let exists = primary.peering.infos.get(&m.osd).is_some_and(|info| info.exists);
            *m == self.me || exists || primary.promised_elsewhere.contains(&m.osd) || !self.is_member_up(*m)
        };
        let all_have =
            equal || primary.highest_promised > current.interval && current.in_sync.iter().all(has_copy);
        let copies_exist = self.pending.is_empty() && all_have;
        let created = self.exists && (!current.interval.is_creation() || copies_exist);
        if primary.proposal.is_some() || self.restoring.is_some() || !created {
            return;
        }
        if self.now < primary.refused_at + self.settings.cas_retry_ns {
            return;
        }
        let Some((next_primary, in_sync)) = self.next_set(&current, primary) else { return };
        // A member that lacks required data holds no copy that could be the last one.
        let lives = |m: &Member| self.is_member_up(*m) && !primary.lost_copies.contains(&m.osd);
        let leaves = |m: &Member| !in_sync.contains(m) && (*m == self.me || lives(m));
        if current.in_sync.iter().any(leaves) && !self.stayers_answer(&in_sync, departure, out) {
            return;
        }
        let proposed = PgMembership { interval: current.interval.next(), primary: next_primary, in_sync };
        let cas = self.cas(Some(current), proposed);
        out.push(PgCommand::Propose(cas.clone()));
        let now = self.now;
        if let Some(primary) = &mut self.primary {
            primary.handing_over |= next_primary != self.me.osd;
            primary.proposal = Some((cas, now));
        }
    }

    /// Whether all of `in_sync` have reported that they have the PG, in answer to a recent query; sends the query if not. The
    /// map may still show OSDs as up that died with their disks: a member that is dropped may hold the last copy (R8).
    fn stayers_answer(
        &mut self,
        in_sync: &[Member],
        departure: Option<ShrinkCheck>,
        out: &mut Vec<PgCommand>,
    ) -> bool {
        let me = self.me.osd;
        if in_sync.iter().all(|m| m.osd == me) {
            return true;
        }
        let (now, patience) = (self.now, SHRINK_CHECK_RETRIES * self.settings.retry_ns);
        let (interval, boot_nonce) = (self.interval(), self.boot_nonce);
        let stayers = || in_sync.iter().map(|m| m.osd).filter(|osd| *osd != me);
        let Some(primary) = &mut self.primary else { return false };
        if let Some(departure) = departure.filter(|d| d.in_sync == in_sync && now < d.asked_at + patience) {
            let answered = stayers().all(|osd| departure.heard.contains(&osd));
            primary.departure = Some(departure);
            return answered;
        }
        let round = self.next_read;
        self.next_read += 1;
        for to in stayers() {
            let msg = PeerMsg::Query { interval, round, versions_after: None, boot_nonce };
            out.push(PgCommand::Send { to, msg });
        }
        let in_sync = in_sync.to_vec();
        primary.departure = Some(ShrinkCheck { in_sync, round, asked_at: now, heard: BTreeSet::new() });
        false
    }

    /// Handles a member's answer to the query before others are dropped.
    pub(crate) fn on_shrink_check_reply(&mut self, from: OsdId, round: u64, info: &MemberInfo) {
        // Objects that are unfound here are unfound there too (R10).
        let unfound = self.missing.len() as u64;
        let departure = self.primary.as_mut().and_then(|p| p.departure.as_mut());
        if let Some(departure) = departure.filter(|d| d.round == round)
            && info.exists
            && info.complete
            && info.missing <= unfound
        {
            departure.heard.insert(from);
        }
    }

    /// The membership to propose, as (primary, in-sync set); `None` while the current one is right.
    fn next_set(&self, current: &PgMembership, primary: &Primary) -> Option<(OsdId, Vec<Member>)> {
        let lives = |m: &&Member| {
            m.osd == self.me.osd || self.is_member_up(**m) && !primary.lost_copies.contains(&m.osd)
        };
        let live: Vec<Member> = current.in_sync.iter().filter(lives).copied().collect();
        let equal = matches!(primary.phase, PrimaryPhase::Peered | PrimaryPhase::Active);
        let joiners: Vec<Member> = if equal { self.ready_to_join(primary) } else { Vec::new() };
        let enough = |set: &[Member]| {
            set.len() >= self.min_size() || self.settings.breaks(Mutation::ShrinkBelowMinSize)
        };
        let with = |base: &[Member]| [base, &joiners].concat();
        if live.len() < current.in_sync.len() && enough(&with(&live)) {
            return Some((self.me.osd, with(&live)));
        }
        if !joiners.is_empty() {
            // A new incarnation of a member replaces the dead one only if the dead one may be dropped.
            let fresh = |m: &Member| !current.in_sync.iter().any(|old| old.osd == m.osd);
            let joiners: Vec<Member> = joiners.into_iter().filter(fresh).collect();
            if !joiners.is_empty() {
                return Some((self.me.osd, [current.in_sync.as_slice(), &joiners].concat()));
            }
        }
        let void = primary.needs_new_interval
            || primary.highest_promised > current.interval
            || !primary.refused.is_empty();
        if void || current.interval.is_creation() {
            // The same set in a new interval makes earlier proposals and promises void, and ends the creation.
            return Some((self.me.osd, current.in_sync.clone()));
        }
        let settled = primary.phase == PrimaryPhase::Active && live.len() == current.in_sync.len();
        let all_wanted_in = self.up.iter().all(|osd| live.iter().any(|m| m.osd == *osd));
        if !settled
            || self.up.is_empty()
            || !(all_wanted_in || self.settings.breaks(Mutation::DropBeforeFilled))
        {
            return None;
        }
        let (wanted, extra): (Vec<Member>, Vec<Member>) =
            current.in_sync.iter().partition(|m| self.up.contains(&m.osd));
        let keep = self.size().saturating_sub(wanted.len()).min(extra.len());
        let next: Vec<Member> = if self.settings.breaks(Mutation::DropBeforeFilled) {
            wanted.clone()
        } else {
            [&wanted[..], &extra[..keep]].concat()
        };
        let first = self.up.iter().find(|osd| wanted.iter().any(|m| m.osd == **osd)).copied();
        let heir = if next.contains(&self.me) { self.me.osd } else { first.unwrap_or(self.me.osd) };
        if next.len() < current.in_sync.len()
            && next.len() >= self.min_size()
            && next.iter().any(|m| m.osd == heir)
        {
            return Some((heir, next));
        }
        // The role moves to the OSD that CRUSH wants once there is nothing else to do.
        let heir = first.filter(|osd| *osd != self.me.osd && self.up.first() == Some(osd))?;
        primary.catching_up.is_empty().then(|| (heir, current.in_sync.clone()))
    }

    // Copies outside the membership.

    pub(crate) fn is_stray(&self) -> bool {
        let Some(membership) = &self.membership else { return false };
        self.exists
            && !self.removing
            && !membership.in_sync.contains(&self.me)
            && !self.up.contains(&self.me.osd)
            && self.restoring.is_none()
    }

    pub(crate) fn announce_stray(&mut self, out: &mut Vec<PgCommand>) {
        if !self.is_stray() || self.now < self.replica.announced_at + self.settings.retry_ns {
            return;
        }
        self.replica.announced_at = self.now;
        let Some(membership) = &self.membership else { return };
        if membership.primary != self.me.osd {
            let msg = PeerMsg::Stray { interval: membership.interval };
            out.push(PgCommand::Send { to: membership.primary, msg });
        }
    }

    pub(crate) fn on_stray(&mut self, from: OsdId, interval: Interval, out: &mut Vec<PgCommand>) {
        let outside = !self.in_sync().iter().any(|m| m.osd == from) && !self.up.contains(&from);
        if interval == self.interval() && outside && !self.is_proposed(from) && self.is_clean() {
            out.push(PgCommand::Send { to: from, msg: PeerMsg::RemoveStray { interval } });
        }
    }

    pub(crate) fn on_remove_stray(&mut self, from: OsdId, interval: Interval, out: &mut Vec<PgCommand>) {
        let primary = self.membership.as_ref().map(|m| m.primary);
        if self.is_stray() && interval == self.interval() && primary == Some(from) {
            self.remove(out);
        }
    }
}
