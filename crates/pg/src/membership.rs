//! Memberships: taking part in an interval, and proposing the next one.
//!
//! Who proposes what, always by compare-and-swap on the membership in effect:
//! - *Creation*: the first OSD of the up set, with all of the up set that is up.
//! - *Promotion*: where the primary is down, the first in-sync member that is up. From the moment it sends the proposal
//!   it takes part in nothing of the old interval (R3).
//! - *The primary*: drops the dead as far as min_size allows (R5), takes in members that have caught up, drops those that
//!   CRUSH does not want once all that it wants are in (R8), and hands its role to the first of the up set.
//! - *After a MapStore restore* the first member of the highest record that any OSD remembers (R7).
//!
//! A proposal's outcome stays unknown until an answer or a map tells it: it is repeated, never forgotten (R1).

use crate::api::{Command, DropReason, Mutation, PeerMsg};
use crate::pg::{Durable, Pg};
use crate::primary::{Phase, Primary};
use nacre_types::ids::{Interval, OsdId};
use nacre_types::msg::{PgCas, PgCasReply};
use nacre_types::osdmap::{Member, OsdMap, PgMembership};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Asking everybody for the highest record after a MapStore restore (R7).
#[derive(Debug)]
pub(crate) struct Restoring {
    generation: u64,
    replies: BTreeMap<OsdId, Option<PgMembership>>,
    pub(crate) asked_at: u64,
}

impl Pg {
    pub(crate) fn on_map(&mut self, map: Arc<OsdMap>, up: Vec<OsdId>, out: &mut Vec<Command>) {
        if !map.pools.contains_key(&self.id.pool) {
            self.map = Some(map);
            self.remove(out);
            return;
        }
        self.up = up;
        let generation = map.generation;
        let membership = map.membership(self.id).cloned();
        self.map = Some(map);
        let trusts = self.settings.mutation == Mutation::IgnoreHighestRecord;
        if self.exists && generation > self.copy.generation && self.copy.generation > 0 && !trusts {
            if self.restoring.as_ref().is_none_or(|r| r.generation != generation) {
                self.restoring = Some(Restoring { generation, replies: BTreeMap::new(), asked_at: 0 });
            }
            self.depose(out);
        }
        if let Some(membership) = membership {
            if trusts && self.copy.highest.as_ref().is_some_and(|h| h.interval > membership.interval) {
                self.copy.highest = None;
                self.promised = Interval(0);
                self.membership = None;
            }
            self.enter(membership, out);
        }
        self.restart_peering_for_returned(out);
    }

    /// Takes part in `next` if it is newer than what is in effect.
    pub(crate) fn enter(&mut self, next: PgMembership, out: &mut Vec<Command>) {
        let known = self.interval().max(self.copy.highest.as_ref().map_or(Interval(0), |h| h.interval));
        let first_sight = self.membership.is_none() && self.copy.highest.as_ref() == Some(&next);
        if next.interval <= known && !first_sight {
            return;
        }
        let continuous = self.primary.is_some()
            && next.primary == self.me.osd
            && next.interval == self.interval().next()
            && next.in_sync.contains(&self.me);
        if !self.copy.lease_holders.contains(&next.primary) {
            self.copy.lease_holders.push(next.primary);
        }
        if self.replica.session.is_some_and(|s| s.primary != next.primary) {
            self.replica.session = None;
        }
        self.promised = self.promised.max(next.interval);
        if self.bid.as_ref().is_some_and(|(cas, _)| cas.proposed.interval <= next.interval) {
            self.bid = None;
        }
        let mine = next.primary == self.me.osd && next.in_sync.contains(&self.me);
        self.membership = Some(next.clone());
        if self.exists && !first_sight {
            self.copy.highest = Some(next.clone());
            if self.restoring.is_none() {
                self.copy.generation = self.map.as_ref().map_or(0, |m| m.generation);
            }
            self.persist_record(Durable::Nothing, out);
        }
        if continuous {
            self.continue_primary(&next, out);
        } else {
            self.depose(out);
            if mine {
                self.primary = Some(Primary::new(next.interval));
                self.start_peering(out);
            }
        }
        self.replica.announced_at = 0;
    }

    /// Stops being primary: every request waiting here is sent again by its client.
    fn depose(&mut self, out: &mut Vec<Command>) {
        let Some(primary) = self.primary.take() else { return };
        for token in primary.all_tokens() {
            out.push(Command::Drop { token, reason: DropReason::StaleInterval });
        }
        if primary.slot_asked {
            out.push(Command::Release);
        }
        self.senders.clear();
        self.reads.clear();
        out.push(Command::Invalidate { object: None });
    }

    /// The copy is not wanted: the pool is gone, or others hold the PG.
    fn remove(&mut self, out: &mut Vec<Command>) {
        self.depose(out);
        self.removing = true;
        out.push(Command::RemovePg);
    }

    /// Proposals of this member whose outcome is unknown.
    pub(crate) fn outstanding(&self) -> impl Iterator<Item = &PgMembership> {
        let bid = self.bid.iter().map(|(cas, _)| &cas.proposed);
        bid.chain(self.primary.iter().flat_map(Primary::proposals))
    }

    // Creation and promotion.

    pub(crate) fn consider_bid(&mut self, out: &mut Vec<Command>) {
        if self.bid.is_some() || self.primary.is_some() || self.restoring.is_some() {
            return;
        }
        let Some(map) = self.map.clone() else { return };
        let proposed = match &self.membership {
            None => self.creation(&map),
            Some(current) => self.promotion(current),
        };
        let Some(proposed) = proposed else { return };
        if self.settings.mutation != Mutation::AcceptOldIntervalOps {
            self.promised = self.promised.max(proposed.interval);
            self.replica.session = None;
        }
        let cas = self.cas(self.membership.clone(), proposed);
        out.push(Command::Propose(cas.clone()));
        self.bid = Some((cas, self.now));
    }

    fn creation(&self, map: &OsdMap) -> Option<PgMembership> {
        if self.exists || self.up.first() != Some(&self.me.osd) || map.membership(self.id).is_some() {
            return None;
        }
        let in_sync: Vec<Member> = self.up.iter().filter_map(|osd| map.member(*osd)).collect();
        let enough = in_sync.len() >= self.min_size() && in_sync.first() == Some(&self.me);
        enough.then(|| PgMembership { interval: Interval(1), primary: self.me.osd, in_sync })
    }

    fn promotion(&self, current: &PgMembership) -> Option<PgMembership> {
        if !self.exists || !current.in_sync.contains(&self.me) || current.interval < self.promised {
            return None;
        }
        let primary = current.in_sync.iter().find(|m| m.osd == current.primary);
        if primary.is_some_and(|m| self.member_up(*m)) {
            return None;
        }
        let live: Vec<Member> = current.in_sync.iter().copied().filter(|m| self.member_up(*m)).collect();
        let place = |m: &Member| self.up.iter().position(|osd| *osd == m.osd).unwrap_or(usize::MAX);
        if live.iter().min_by_key(|m| place(m)) != Some(&self.me) {
            return None;
        }
        let below = self.settings.mutation == Mutation::ShrinkBelowMinSize;
        let in_sync = if live.len() >= self.min_size() || below { live } else { current.in_sync.clone() };
        Some(PgMembership { interval: current.interval.next(), primary: self.me.osd, in_sync })
    }

    fn cas(&self, expected: Option<PgMembership>, proposed: PgMembership) -> PgCas {
        PgCas { tid: 0, pg: self.id, proposer: self.me, expected, proposed }
    }

    pub(crate) fn retry_bid(&mut self, out: &mut Vec<Command>) {
        let now = self.now;
        if let Some((cas, sent)) = &mut self.bid
            && now >= *sent + self.settings.cas_retry_ns
        {
            *sent = now;
            out.push(Command::Propose(cas.clone()));
        }
    }

    pub(crate) fn on_cas(&mut self, reply: PgCasReply, out: &mut Vec<Command>) {
        let Some(current) = reply.current else {
            self.bid = None;
            return;
        };
        if let Some((cas, _)) = &self.bid
            && (current.interval >= cas.proposed.interval
                || !reply.accepted && cas.expected.as_ref() == Some(&current))
        {
            // Accepted, lost to somebody else, or refused as it stands: the outcome is known either way.
            self.bid = None;
        }
        if let Some(primary) = &mut self.primary
            && let Some((cas, _)) = &primary.proposal
            && !reply.accepted
            && cas.expected.as_ref() == Some(&current)
        {
            // An earlier copy of it may still reach the map authority and be accepted then: its set counts until the
            // record has changed.
            primary.refused.extend(primary.proposal.take().map(|(cas, _)| cas.proposed));
            primary.refused_at = self.now;
        }
        if self.restoring.is_none() || current.interval > self.interval() {
            self.enter(current, out);
        }
    }

    // The primary's own proposals.

    pub(crate) fn consider_proposals(&mut self, out: &mut Vec<Command>) {
        let Some(current) = self.membership.clone() else { return };
        let Some(primary) = &self.primary else { return };
        if primary.proposal.is_some() || self.restoring.is_some() {
            return;
        }
        let wait = primary.refused_at > 0 && self.now < primary.refused_at + self.settings.cas_retry_ns;
        if wait {
            return;
        }
        let Some((next_primary, in_sync)) = self.next_set(&current, primary) else { return };
        let proposed = PgMembership { interval: current.interval.next(), primary: next_primary, in_sync };
        let cas = self.cas(Some(current), proposed);
        out.push(Command::Propose(cas.clone()));
        let now = self.now;
        if let Some(primary) = &mut self.primary {
            primary.handing_over |= next_primary != self.me.osd;
            primary.proposal = Some((cas, now));
        }
    }

    /// The membership to propose, as (primary, in-sync set); `None` while the present one is right.
    fn next_set(&self, current: &PgMembership, primary: &Primary) -> Option<(OsdId, Vec<Member>)> {
        let mutation = self.settings.mutation;
        let lives =
            |m: &&Member| m.osd == self.me.osd || self.member_up(**m) && !primary.lacking.contains(&m.osd);
        let live: Vec<Member> = current.in_sync.iter().filter(lives).copied().collect();
        let equal = matches!(primary.phase, Phase::Peered | Phase::Active);
        let joiners: Vec<Member> = if equal { self.ready_to_join(primary) } else { Vec::new() };
        let enough =
            |set: &[Member]| set.len() >= self.min_size() || mutation == Mutation::ShrinkBelowMinSize;
        let with = |base: &[Member]| [base, &joiners].concat();
        if live.len() < current.in_sync.len() && enough(&with(&live)) {
            return Some((self.me.osd, with(&live)));
        }
        if !joiners.is_empty() {
            // A new incarnation of a member takes the dead one's place only where the dead may be dropped.
            let fresh = |m: &Member| !current.in_sync.iter().any(|old| old.osd == m.osd);
            let joiners: Vec<Member> = joiners.into_iter().filter(fresh).collect();
            if !joiners.is_empty() {
                return Some((self.me.osd, [current.in_sync.as_slice(), &joiners].concat()));
            }
        }
        if !primary.refused.is_empty() && enough(&live) {
            // The same set in a new interval: refused proposals can't take effect any more.
            return Some((self.me.osd, live));
        }
        let settled = primary.phase == Phase::Active && live.len() == current.in_sync.len();
        let all_wanted_in = self.up.iter().all(|osd| live.iter().any(|m| m.osd == *osd));
        if !settled || self.up.is_empty() || !(all_wanted_in || mutation == Mutation::DropBeforeFilled) {
            return None;
        }
        let (wanted, extra): (Vec<Member>, Vec<Member>) =
            current.in_sync.iter().partition(|m| self.up.contains(&m.osd));
        let keep = self.size().saturating_sub(wanted.len()).min(extra.len());
        let next: Vec<Member> = if mutation == Mutation::DropBeforeFilled {
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
        // The role goes where CRUSH wants it, once nothing else is to be done.
        let heir = first.filter(|osd| *osd != self.me.osd && self.up.first() == Some(osd))?;
        primary.idle().then(|| (heir, current.in_sync.clone()))
    }

    // After a MapStore restore (R7).

    pub(crate) fn consider_restore(&mut self, out: &mut Vec<Command>) {
        let Some(map) = self.map.clone() else { return };
        let Some(restoring) = &mut self.restoring else { return };
        let Some(own) = self.copy.highest.clone() else {
            self.restoring = None;
            return;
        };
        let others: Vec<OsdId> = map.osds.keys().copied().filter(|osd| *osd != self.me.osd).collect();
        if restoring.asked_at == 0 || self.now >= restoring.asked_at + self.settings.retry_ns {
            restoring.asked_at = self.now.max(1);
            for to in others.iter().filter(|osd| !restoring.replies.contains_key(osd)) {
                out.push(Command::Send {
                    to: *to,
                    msg: PeerMsg::HighestQuery { generation: restoring.generation },
                });
            }
        }
        if others.iter().any(|osd| !restoring.replies.contains_key(osd)) || self.bid.is_some() {
            return;
        }
        let highest = restoring.replies.values().flatten().map(|m| m.interval).max().unwrap_or(Interval(0));
        let published = map.membership(self.id).cloned();
        let at = published.as_ref().map_or(Interval(0), |m| m.interval);
        if at >= own.interval.max(highest) {
            // Nothing was lost, or the highest record has been put back.
            self.restoring = None;
            self.copy.generation = map.generation;
            self.membership = None;
            if let Some(published) = published {
                if published.interval > own.interval {
                    self.enter(published, out);
                } else if published == own {
                    self.persist_record(Durable::Nothing, out);
                    self.enter(published, out);
                }
            }
            return;
        }
        let candidates = own.in_sync.iter().filter(|m| map.is_member_up(**m));
        let first = candidates.min_by_key(|m| self.up.iter().position(|o| *o == m.osd).unwrap_or(usize::MAX));
        if own.interval < highest || first != Some(&self.me) {
            return;
        }
        let proposed = PgMembership {
            interval: own.interval.next(),
            primary: self.me.osd,
            in_sync: own.in_sync.clone(),
        };
        self.promised = self.promised.max(proposed.interval);
        let cas = self.cas(published, proposed);
        out.push(Command::Propose(cas.clone()));
        self.bid = Some((cas, self.now));
    }

    pub(crate) fn on_highest(&mut self, from: OsdId, generation: u64, highest: Option<PgMembership>) {
        if let Some(restoring) = &mut self.restoring
            && restoring.generation == generation
        {
            restoring.replies.insert(from, highest);
        }
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

    pub(crate) fn announce_stray(&mut self, out: &mut Vec<Command>) {
        if !self.is_stray() || self.now < self.replica.announced_at + self.settings.retry_ns {
            return;
        }
        self.replica.announced_at = self.now;
        let Some(membership) = &self.membership else { return };
        if membership.primary != self.me.osd {
            let msg = PeerMsg::Stray { interval: membership.interval };
            out.push(Command::Send { to: membership.primary, msg });
        }
    }

    pub(crate) fn on_stray(&mut self, from: OsdId, interval: Interval, out: &mut Vec<Command>) {
        let outside = !self.in_sync().iter().any(|m| m.osd == from) && !self.up.contains(&from);
        if interval == self.interval() && outside && self.is_clean() {
            out.push(Command::Send { to: from, msg: PeerMsg::RemoveStray { interval } });
        }
    }

    pub(crate) fn on_remove_stray(&mut self, from: OsdId, interval: Interval, out: &mut Vec<Command>) {
        let primary = self.membership.as_ref().map(|m| m.primary);
        if self.is_stray() && interval == self.interval() && primary == Some(from) {
            self.remove(out);
        }
    }
}
