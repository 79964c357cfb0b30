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
use nacre_types::ids::{Epoch, Interval, OsdId};
use nacre_types::msg::{PgCas, PgCasReply};
use nacre_types::osdmap::{Member, OsdInfo, OsdMap, PgMembership};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A proposal of a member that is not primary yet.
#[derive(Debug)]
pub(crate) struct Bid {
    pub(crate) cas: PgCas,
    pub(crate) sent_at: u64,
    /// It was refused as things stood: after a while another one may be right.
    refused: bool,
}

/// Asking everybody for the highest record after a MapStore restore (R7).
#[derive(Debug)]
pub(crate) struct Restoring {
    generation: u64,
    replies: BTreeMap<OsdId, Option<PgMembership>>,
    pub(crate) asked_at: u64,
}

impl Pg {
    pub(crate) fn on_map(&mut self, map: Arc<OsdMap>, up: Vec<OsdId>, out: &mut Vec<Command>) {
        let shown = map.osds.get(&self.me.osd);
        if shown.is_none_or(|i| i.boot_nonce != self.boot_nonce || i.incarnation != Some(self.me.incarnation))
        {
            // A proposal of the process before this one may have taken effect since.
            return;
        }
        let Some(pool) = map.pools.get(&self.id.pool).cloned() else {
            self.map = Some(map);
            self.remove(out);
            return;
        };
        self.up = up;
        let membership = map.membership(self.id).cloned();
        let trusts = self.settings.mutation == Mutation::IgnoreHighestRecord;
        if self.is_unconfirmed(&map, pool.created, membership.as_ref()) && !trusts {
            if self.restoring.as_ref().is_none_or(|r| r.generation != map.generation) {
                let generation = map.generation;
                self.restoring = Some(Restoring { generation, replies: BTreeMap::new(), asked_at: 0 });
                self.bid = None;
            }
            self.depose(out);
            self.bid.take_if(|bid| bid.cas.expected != membership);
            self.map = Some(map);
            return;
        }
        self.restoring = None;
        self.map = Some(map);
        if let Some(membership) = membership {
            if trusts && self.copy.highest.as_ref().is_some_and(|h| h.interval > membership.interval) {
                self.copy.highest = None;
                self.promised = Interval(0);
                self.membership = None;
            }
            self.enter(membership, out);
        }
        self.note_replaced();
        self.restart_peering_for_returned(out);
    }

    /// Whether the map's record may be older than what somebody remembers (R7): the MapStore was restored since this
    /// copy's record was confirmed, or since the pool was created while this member is about to begin from nothing.
    fn is_unconfirmed(&self, map: &OsdMap, pool_created: Epoch, published: Option<&PgMembership>) -> bool {
        if map.generation <= self.copy.generation {
            return false;
        }
        if self.exists {
            return self.copy.generation > 0;
        }
        let begins = match published {
            None => self.up.first() == Some(&self.me.osd),
            Some(membership) => membership.primary == self.me.osd,
        };
        map.generation > 1 && pool_created < map.generation_from && begins
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
        self.note_lease_holder(next.primary);
        if self.replica.session.is_some_and(|s| s.primary != next.primary) {
            self.replica.session = None;
        }
        self.promised = self.promised.max(next.interval);
        self.bid.take_if(|bid| bid.cas.proposed.interval <= next.interval);
        if self.copy.activated == self.interval() && continuous {
            // Nobody else was primary in between.
            self.copy.activated = next.interval;
        }
        let mine = next.primary == self.me.osd && next.in_sync.contains(&self.me);
        self.membership = Some(next.clone());
        if self.exists && !first_sight {
            self.copy.highest = Some(next.clone());
            self.copy.generation = self.map.as_ref().map_or(0, |m| m.generation);
            self.record_persist = self.next_persist;
            self.persist_record(Durable::Record, out);
        }
        if continuous {
            self.continue_primary(&next, out);
        } else {
            self.depose(out);
            if mine {
                // A process before this one may have ordered updates in this interval that are lost here and not
                // elsewhere: their versions must not be given away again.
                self.primary = Some(Primary::new(next.interval, first_sight && self.exists));
                self.start_peering(out);
            }
        }
        self.replica.announced_at = 0;
    }

    /// Somebody who may be granted leases as this PG's primary.
    pub(crate) fn note_lease_holder(&mut self, osd: OsdId) {
        if !self.copy.lease_holders.contains(&osd) {
            self.copy.lease_holders.push(osd);
        }
    }

    /// Stops being primary: every request waiting here is sent again by its client.
    pub(crate) fn depose(&mut self, out: &mut Vec<Command>) {
        let Some(primary) = self.primary.take() else { return };
        for token in primary.all_tokens() {
            out.push(Command::Drop { token, reason: DropReason::StaleInterval });
        }
        if primary.slot_asked {
            out.push(Command::Release);
        }
        self.senders.clear();
        self.reads.clear();
        self.staged = None;
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
        let bid = self.bid.iter().map(|bid| &bid.cas.proposed);
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
        self.propose_bid(cas, out);
    }

    fn propose_bid(&mut self, cas: PgCas, out: &mut Vec<Command>) {
        out.push(Command::Propose(cas.clone()));
        self.bid = Some(Bid { cas, sent_at: self.now, refused: false });
    }

    fn creation(&self, map: &OsdMap) -> Option<PgMembership> {
        if self.exists || self.up.first() != Some(&self.me.osd) || map.membership(self.id).is_some() {
            return None;
        }
        let in_sync: Vec<Member> = self.up.iter().filter_map(|osd| map.member(*osd)).collect();
        let enough = in_sync.len() >= self.min_size() && in_sync.first() == Some(&self.me);
        enough.then_some(PgMembership { interval: Interval(1), primary: self.me.osd, in_sync })
    }

    fn promotion(&self, current: &PgMembership) -> Option<PgMembership> {
        let outbid = current.interval.next() < self.promised;
        if !self.is_whole() || !current.in_sync.contains(&self.me) || outbid {
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
        let (now, retry) = (self.now, self.settings.cas_retry_ns);
        let Some(bid) = self.bid.as_mut().filter(|bid| now >= bid.sent_at + retry) else { return };
        if bid.refused {
            self.bid = None;
        } else {
            bid.sent_at = now;
            out.push(Command::Propose(bid.cas.clone()));
        }
    }

    /// An answer of the map authority. What took effect counts when the map shows it, by which the leases granted since
    /// are told apart too; only that a proposal was refused is learnt from here.
    pub(crate) fn on_cas(&mut self, reply: &PgCasReply) {
        if reply.accepted {
            return;
        }
        if let Some(bid) = &mut self.bid
            && bid.cas.expected == reply.current
        {
            bid.refused = true;
        }
        if let Some(primary) = &mut self.primary
            && let Some((cas, _)) = primary.proposal.take_if(|(cas, _)| cas.expected == reply.current)
        {
            // An earlier copy of it may still reach the map authority and be accepted then: its set counts until the
            // record has changed.
            if !primary.refused.contains(&cas.proposed) {
                primary.refused.push(cas.proposed);
            }
            primary.refused_at = self.now;
        }
    }

    /// A member has promised a later interval to somebody whose proposal came to nothing: only a change of the interval
    /// lets it take part again.
    pub(crate) fn on_promised(&mut self, interval: Interval, promised: Interval) {
        let current = self.interval();
        if let Some(primary) = self.primary.as_mut().filter(|_| interval == current) {
            primary.outbid = primary.outbid.max(promised);
        }
    }

    // The primary's own proposals.

    pub(crate) fn consider_proposals(&mut self, out: &mut Vec<Command>) {
        let Some(current) = self.membership.clone() else { return };
        let Some(primary) = &self.primary else { return };
        // The first copy comes into being in interval 1 (R2): nothing may follow before it is durable.
        let created = self.exists && (current.interval > Interval(1) || self.pending.is_empty());
        if primary.proposal.is_some() || self.restoring.is_some() || !created {
            return;
        }
        if self.now < primary.refused_at + self.settings.cas_retry_ns {
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
        if primary.must_bump || primary.outbid > current.interval || !primary.refused.is_empty() {
            // The same set in a new interval: what was proposed or promised before is void then.
            return Some((self.me.osd, current.in_sync.clone()));
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
        primary.catching_up.is_empty().then(|| (heir, current.in_sync.clone()))
    }

    // After a MapStore restore (R7).

    pub(crate) fn consider_restore(&mut self, out: &mut Vec<Command>) {
        let Some(map) = self.map.clone() else { return };
        let Some(restoring) = &mut self.restoring else { return };
        let given_up = |info: &OsdInfo| !info.up && info.lost_at > info.up_from;
        let others = map.osds.iter().filter(|(osd, info)| **osd != self.me.osd && !given_up(info));
        let unheard: Vec<OsdId> =
            others.map(|(osd, _)| *osd).filter(|osd| !restoring.replies.contains_key(osd)).collect();
        if !unheard.is_empty() {
            if restoring.asked_at == 0 || self.now >= restoring.asked_at + self.settings.retry_ns {
                restoring.asked_at = self.now.max(1);
                let generation = restoring.generation;
                let query = |to| Command::Send { to, msg: PeerMsg::HighestQuery { generation } };
                out.extend(unheard.into_iter().map(query));
            }
            return;
        }
        if self.now >= restoring.asked_at + self.settings.retry_ns {
            // Nothing to ask: look again after the same time.
            restoring.asked_at = self.now;
        }
        let highest =
            restoring.replies.values().flatten().chain(&self.copy.highest).max_by_key(|m| m.interval);
        let highest = highest.cloned();
        let known = highest.as_ref().map_or(Interval(0), |m| m.interval);
        let published = map.membership(self.id).cloned();
        if published.as_ref().map_or(Interval(0), |m| m.interval) >= known {
            // Nothing was lost, or the highest record has been put back.
            self.restoring = None;
            self.bid = None;
            self.membership = None;
            self.copy.generation = map.generation;
            self.persist_record(Durable::Nothing, out);
            if let Some(published) = published {
                self.enter(published, out);
            }
            return;
        }
        let Some(highest) = highest else { return };
        let candidates = highest.in_sync.iter().filter(|m| map.is_member_up(**m));
        let first = candidates.min_by_key(|m| self.up.iter().position(|o| *o == m.osd).unwrap_or(usize::MAX));
        if first != Some(&self.me) || !self.is_whole() || self.bid.is_some() {
            return;
        }
        let proposed = PgMembership {
            interval: highest.interval.next(),
            primary: self.me.osd,
            in_sync: highest.in_sync.clone(),
        };
        self.promised = self.promised.max(proposed.interval);
        self.replica.session = None;
        let cas = self.cas(published, proposed);
        self.propose_bid(cas, out);
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
        if interval == self.interval() && outside && !self.proposed(from) && self.is_clean() {
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
