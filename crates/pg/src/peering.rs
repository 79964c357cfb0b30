//! Peering: before it serves, a primary brings every in-sync member to the longest of their logs (R3).
//!
//! The logs of in-sync members are prefixes of one another: within an interval, one primary sends every update to all of them
//! in order, and no interval orders an update before all its in-sync members were brought to one log. So the longest log holds
//! every update that any of them has, acknowledged or not, and adopting it loses nothing. A member that is behind takes the
//! tail, including objects, in one transaction ([`crate::tail`]).
//!
//! Activation then waits until no earlier primary can hold a lease of this OSD (R4).

use crate::api::{LeaseView, MemberInfo, PeerMsg, PgCommand};
use crate::damage::MAX_REPORTED_MISSING;
use crate::pg::{OnCommit, Pg};
use crate::primary::PrimaryPhase;
use crate::recovery::CatchUp;
use crate::settings::Mutation;
use nacre_types::ids::{Eversion, Interval, OsdId};
use nacre_types::object::ObjectId;
use nacre_types::osdmap::{Member, PgMembership};
use std::collections::{BTreeMap, BTreeSet};

/// Progress of one round of peering.
#[derive(Debug, Default)]
pub(crate) struct Peering {
    /// The required members that take part: those that were up when the round started.
    pub(crate) peers: Vec<Member>,
    /// The number of this round's queries.
    round: u64,
    pub(crate) infos: BTreeMap<OsdId, MemberInfo>,
    pub(crate) asked_at: u64,
    /// The member from which the tail was requested.
    pub(crate) adopting: Option<OsdId>,
    /// Objects that were requested from a member.
    pub(crate) tried: BTreeSet<(OsdId, ObjectId)>,
    /// The members that were sent a tail and have not confirmed it.
    behind: BTreeSet<OsdId>,
    tails_sent: bool,
}

/// The timeout of a tail in retry intervals: it may end with one large commit.
const TAIL_TIMEOUT_RETRIES: u64 = 3;

impl Peering {
    /// Whether a tail is received from this member, or sent to it.
    pub(crate) fn is_transferring_tail(&self, osd: OsdId) -> bool {
        self.adopting == Some(osd) || self.behind.contains(&osd)
    }

    /// When the outstanding requests are repeated, unless there is progress.
    pub(crate) fn retry_at(&self, retry_ns: u64) -> u64 {
        let has_tail = self.adopting.is_some() || !self.behind.is_empty();
        self.asked_at + if has_tail { TAIL_TIMEOUT_RETRIES * retry_ns } else { retry_ns }
    }
}

impl Pg {
    /// Starts a round of peering in the interval in effect. Members that a proposal with unknown outcome would add take part
    /// like in-sync members: they have been filled.
    pub(crate) fn start_peering(&mut self, out: &mut Vec<PgCommand>) {
        let peers = self.live_required();
        self.tail_senders.clear();
        self.staged = None;
        self.note_replaced_members();
        let round = self.next_read;
        self.next_read += 1;
        let Some(primary) = &mut self.primary else { return };
        primary.phase = PrimaryPhase::Peering;
        primary.departure = None;
        primary.quiet_at = None;
        primary.lost_copies.clear();
        primary.peering = Peering { peers, round, asked_at: self.now.max(1), ..Peering::default() };
        self.ask_peers(out);
    }

    /// Starts peering again when a member that was down takes part again: its answer is required.
    pub(crate) fn restart_peering_for_returned(&mut self, out: &mut Vec<PgCommand>) {
        let live = self.live_required();
        let Some(primary) = &self.primary else { return };
        let heard = &primary.peering.peers;
        let gone = primary.phase == PrimaryPhase::Peering && heard.iter().any(|m| !live.contains(m));
        let known = |m: &Member| heard.contains(m) || primary.catching_up.contains_key(&m.osd);
        // A pool's min_size may have been lowered.
        let enough = self.in_sync().len() >= self.min_size() && primary.lost_copies.is_empty();
        let all_heard = self.in_sync().iter().all(|m| m.osd == self.me.osd || heard.contains(m));
        let may_serve =
            primary.phase == PrimaryPhase::Peered && !self.interval().is_creation() && enough && all_heard;
        if gone || may_serve || !live.iter().all(known) {
            self.start_peering(out);
        }
    }

    fn ask_peers(&self, out: &mut Vec<PgCommand>) {
        let Some(primary) = self.primary.as_ref().filter(|p| !p.needs_new_interval) else { return };
        let interval = self.interval();
        let unheard = |osd: &OsdId| !primary.peering.infos.contains_key(osd);
        let up = |osd: &OsdId| self.map.as_ref().is_some_and(|map| map.is_up(*osd));
        let holders = self.copy.lease_holders.iter().copied().filter(|osd| *osd != self.me.osd && up(osd));
        let asked: BTreeSet<OsdId> = primary.peering.peers.iter().map(|m| m.osd).chain(holders).collect();
        for to in asked.into_iter().filter(unheard) {
            if let Some(record) =
                self.membership.clone().filter(|_| self.required_members().any(|m| m.osd == to))
            {
                out.push(PgCommand::Send { to, msg: PeerMsg::Record { record } });
            }
            let (round, boot_nonce) = (primary.peering.round, self.boot_nonce);
            let msg = PeerMsg::Query { interval, round, versions_after: None, boot_nonce };
            out.push(PgCommand::Send { to, msg });
        }
    }

    /// Repeats the requests that peering still waits for.
    pub(crate) fn retry_peering(&mut self, out: &mut Vec<PgCommand>) {
        let now = self.now;
        let Some(primary) =
            self.primary.as_mut().filter(|p| p.phase == PrimaryPhase::Peering && !p.needs_new_interval)
        else {
            return;
        };
        if now < primary.peering.retry_at(self.settings.retry_ns) {
            return;
        }
        primary.peering.asked_at = now;
        if primary.peering.adopting.is_some() || !primary.peering.behind.is_empty() {
            // Part of a tail may have been lost with the connection: peering starts over.
            self.start_peering(out);
        } else {
            self.ask_peers(out);
        }
    }

    pub(crate) fn on_info(
        &mut self,
        from: OsdId,
        interval: Interval,
        round: u64,
        info: MemberInfo,
        versions: Option<Vec<Eversion>>,
        out: &mut Vec<PgCommand>,
    ) {
        if interval != self.interval() || self.primary.is_none() || !self.is_shown(from, info.boot_nonce) {
            return;
        }
        if let Some(versions) = versions {
            return self.on_catch_up_info(from, round, &info, &versions, out);
        }
        self.on_shrink_check_reply(from, round, &info);
        if let Some(primary) = self.primary.as_mut().filter(|p| p.record_round == round && info.exists) {
            primary.record_unconfirmed.remove(&from);
        }
        if let Some(primary) = self.primary.as_mut().filter(|p| p.peering.round == round) {
            primary.peering.infos.insert(from, info);
        }
    }

    /// Whether the map shows this process of `osd`. Another process may run a different store than the queried member, and the
    /// map shows the store only with the process (R2).
    fn is_shown(&self, osd: OsdId, boot_nonce: u64) -> bool {
        let shown = self.map.as_ref().and_then(|map| map.osds.get(&osd));
        shown.is_some_and(|info| info.boot_nonce == boot_nonce)
            || self.settings.breaks(Mutation::TrustWipedMember)
    }

    pub(crate) fn on_tail_done(&mut self, from: OsdId, interval: Interval, head: Eversion) {
        if interval != self.interval() || head != self.log.head() {
            return;
        }
        if let Some(primary) = &mut self.primary
            && primary.peering.behind.remove(&from)
        {
            primary.heads.insert(from, head);
        }
    }

    /// Takes the next step that is possible.
    pub(crate) fn advance_peering(&mut self, leases: &dyn LeaseView, out: &mut Vec<PgCommand>) {
        let Some(primary) = &self.primary else { return };
        if primary.phase != PrimaryPhase::Peering || primary.needs_new_interval || self.restoring.is_some() {
            return;
        }
        let peers = primary.peering.peers.clone();
        if peers.iter().any(|m| !primary.peering.infos.contains_key(&m.osd)) {
            return;
        }
        if !self.exists {
            // R2: the copy is lost, and with it the PG's data, unless other members return with it.
            if self.settings.breaks(Mutation::TrustWipedMember) {
                self.create_initial_copy(out);
            }
            return;
        }
        if self.judge(&peers) {
            return;
        }
        if !self.settings.breaks(Mutation::SkipTailRepair) {
            if self.adopt_longest(&peers, out) {
                return;
            }
            if self.durable_head != self.log.head() || !self.pending.is_empty() {
                return;
            }
            if self.fetch_missing(&peers, out) {
                return;
            }
            if self.level_peers(&peers, out) {
                return;
            }
        } else {
            // The mutation treats members with other logs as equal.
            let head = self.log.head();
            if let Some(primary) = &mut self.primary {
                primary.heads.extend(peers.iter().map(|m| (m.osd, head)));
            }
        }
        self.finish_peering(leases, &peers, out);
    }

    /// Records members that lack required data. Returns whether a new one was found.
    fn judge(&mut self, peers: &[Member]) -> bool {
        let known = peers.iter().filter_map(|m| self.primary.as_ref()?.peering.infos.get(&m.osd));
        let acknowledged = known.map(|i| i.committed_to).max().unwrap_or_default().max(self.committed_to);
        let fresh_pg = self.log.head() == Eversion::default();
        let log = &self.log;
        let trusted = self.settings.breaks(Mutation::TrustWipedMember);
        let Some(primary) = &mut self.primary else { return false };
        let mut found = false;
        for member in peers {
            let Some(info) = primary.peering.infos.get(&member.osd) else { continue };
            let absent = !info.exists && !fresh_pg;
            // Missing objects that it names are sent to it.
            let unnamed = info.missing > info.lacks.len() as u64 && info.missing > self.missing.len() as u64;
            let short = info.exists && (info.head < acknowledged || !info.complete || unnamed);
            let other = info.exists && info.head <= log.head() && !log.contains(info.head);
            if (absent || short || other) && !trusted {
                found |= primary.lost_copies.insert(member.osd);
            }
        }
        found
    }

    /// Fetches the tail of the longest log. Returns whether an answer is outstanding.
    fn adopt_longest(&mut self, peers: &[Member], out: &mut Vec<PgCommand>) -> bool {
        let (head, interval) = (self.log.head(), self.interval());
        let Some(primary) = &mut self.primary else { return true };
        let heads = peers.iter().filter(|m| !primary.lost_copies.contains(&m.osd));
        let longest = heads.filter_map(|m| Some((primary.peering.infos.get(&m.osd)?.head, m.osd))).max();
        let Some((longest, from)) = longest.filter(|(longest, _)| *longest > head) else { return false };
        if primary.peering.adopting.is_none() {
            primary.peering.adopting = Some(from);
            primary.peering.asked_at = self.now;
            // Members that are being filled follow another log now.
            primary.catching_up.clear();
            debug_assert!(longest > head);
            let objects = self.missing.keys().take(MAX_REPORTED_MISSING).cloned().collect();
            out.push(PgCommand::Send { to: from, msg: PeerMsg::GetTail { interval, after: head, objects } });
        }
        true
    }

    /// Sends the tail to members that lack it. Returns whether an answer is outstanding.
    fn level_peers(&mut self, peers: &[Member], out: &mut Vec<PgCommand>) -> bool {
        let head = self.log.head();
        let skips = self.settings.breaks(Mutation::SkipLevelling);
        let Some(primary) = &mut self.primary else { return true };
        if !primary.peering.tails_sent {
            primary.peering.tails_sent = true;
            primary.peering.asked_at = self.now;
            let mut behind = Vec::new();
            for member in peers.iter().filter(|m| !primary.lost_copies.contains(&m.osd)) {
                let Some(info) = primary.peering.infos.get(&member.osd) else { continue };
                let lacked = info.lacks.iter().filter(|object| !self.missing.contains_key(*object));
                let lacked: Vec<ObjectId> = lacked.cloned().collect();
                if skips || info.exists && info.head == head && lacked.is_empty() {
                    primary.heads.insert(member.osd, head);
                } else {
                    behind.push((member.osd, info.head, lacked));
                }
            }
            primary.peering.behind = behind.iter().map(|(osd, ..)| *osd).collect();
            for (osd, after, lacked) in behind {
                self.send_tail(osd, after, &lacked, out);
            }
        }
        self.primary.as_ref().is_some_and(|p| !p.peering.behind.is_empty())
    }

    /// Ends the round, with all participants equal: serves if all in-sync members take part and leases allow it.
    fn finish_peering(&mut self, leases: &dyn LeaseView, peers: &[Member], out: &mut Vec<PgCommand>) {
        if !self.is_quiet(leases, out) {
            return;
        }
        self.staged = None;
        if !self.temps.is_empty() {
            // These are left over from a tail that was given up.
            self.persist_record(OnCommit::Nothing, out);
        }
        let me = self.me.osd;
        let whole = self.in_sync().iter().all(|m| m.osd == me || peers.contains(m));
        let enough = self.in_sync().len() >= self.min_size() && !self.interval().is_creation();
        let below = self.settings.breaks(Mutation::AckBelowMinSize) && !self.interval().is_creation();
        let proposed: Vec<Member> = peers.iter().copied().filter(|m| !self.in_sync().contains(m)).collect();
        let (now, head) = (self.now, self.log.head());
        let Some(primary) = &mut self.primary else { return };
        primary.phase = PrimaryPhase::Peered;
        for member in proposed.into_iter().filter(|m| !primary.lost_copies.contains(&m.osd)) {
            // It is still sent every update while the outcome is unknown.
            primary.catching_up.insert(member.osd, CatchUp::caught_up(member, head, now));
        }
        if (!whole || !primary.lost_copies.is_empty() || !enough) && !below {
            return;
        }
        primary.phase = PrimaryPhase::Active;
        // R6: other OSDs may have been in contact with clients since this OSD served before, and waiting requests were not
        // recorded.
        self.log.restart_session_terms(now);
        // Each answer was sent after the record was durable.
        primary.record_unconfirmed.clear();
        primary.retried_at = now;
        self.fail_unfound(out);
        // Every in-sync member has all of it durable; a member that a proposal would add may not have it yet.
        self.ack_durable_writes(leases, out);
        // Leases may have been regained during peering.
        self.release_lease_waiters(leases, out);
    }

    /// Whether no earlier primary can hold a lease of this OSD (R4). The result is recorded for the whole reign, and durable
    /// before the next step.
    fn is_quiet(&mut self, leases: &dyn LeaseView, out: &mut Vec<PgCommand>) -> bool {
        let interval = self.interval();
        if self.copy.activated == interval || self.settings.breaks(Mutation::SkipLeaseWait) {
            return true;
        }
        let Some(primary) = &self.primary else { return false };
        let told = |osd: &OsdId| primary.peering.infos.contains_key(osd) && self.is_same_lease_holder(*osd);
        let holders = self.copy.lease_holders.iter().copied();
        let holders: Vec<OsdId> = holders.filter(|osd| *osd != self.me.osd && !told(osd)).collect();
        let Some(primary) = &mut self.primary else { return false };
        // Leases granted since this interval began do not count for a primary that lacks its map. If the first result were not
        // kept, an earlier primary that is alive would delay this one forever.
        let quiet = &mut primary.quiet;
        let quiet_at = holders
            .into_iter()
            .map(|osd| *quiet.entry(osd).or_insert_with(|| leases.grants_expire_at(osd)))
            .max();
        primary.quiet_at = quiet_at.filter(|at| self.now < *at);
        if primary.quiet_at.is_some() {
            return false;
        }
        self.copy.activated = interval;
        self.copy.lease_holders = vec![self.me.osd];
        self.holder_stores.clear();
        self.persist_record(OnCommit::Nothing, out);
        true
    }

    /// Continues as primary in the next interval, in which only the in-sync set changes: no peering is needed.
    pub(crate) fn continue_primary(&mut self, next: &PgMembership, out: &mut Vec<PgCommand>) {
        let Some(primary) = &mut self.primary else { return };
        // All proposals for this interval are void, except the one that took effect.
        primary.proposal = None;
        primary.refused.clear();
        primary.refused_at = 0;
        primary.handing_over = false;
        primary.departure = None;
        primary.needs_new_interval = false;
        let members: BTreeSet<OsdId> = next.in_sync.iter().map(|m| m.osd).collect();
        let joins = primary.catching_up.values().filter(|c| next.in_sync.contains(&c.member));
        // Unfound objects may have been found in the meantime.
        let may_mend = |c: &CatchUp| c.lacks_objects || !self.missing.is_empty();
        self.repair_pending |= joins.into_iter().any(may_mend);
        primary.catching_up.retain(|_, c| !next.in_sync.contains(&c.member));
        primary.heads.retain(|osd, _| members.contains(osd) || primary.catching_up.contains_key(osd));
        primary.lost_copies.retain(|osd| members.contains(osd));
        let me = self.me.osd;
        primary.peering.peers = next.in_sync.iter().copied().filter(|m| m.osd != me).collect();
        self.note_replaced_members();
        let enough = next.in_sync.len() >= self.min_size();
        self.tell_record(next, out);
        let Some(primary) = &mut self.primary else { return };
        if primary.phase != PrimaryPhase::Active {
            // Without dead members or with new ones, it may be able to serve.
            self.start_peering(out);
        } else if !enough {
            primary.phase = PrimaryPhase::Peered;
        }
    }

    /// Sends the record to the members of an active PG, and asks whether it is durable: updates that they acknowledged under an
    /// earlier record are answered only when it is (R7). If peering starts, its queries do the same.
    fn tell_record(&mut self, record: &PgMembership, out: &mut Vec<PgCommand>) {
        let (me, boot_nonce, interval, round) =
            (self.me.osd, self.boot_nonce, record.interval, self.next_read);
        let Some(primary) = self.primary.as_mut().filter(|p| p.phase == PrimaryPhase::Active) else { return };
        self.next_read += 1;
        primary.record_round = round;
        primary.record_unconfirmed = record.in_sync.iter().map(|m| m.osd).filter(|osd| *osd != me).collect();
        for to in primary.record_unconfirmed.iter().copied() {
            out.push(PgCommand::Send { to, msg: PeerMsg::Record { record: record.clone() } });
            let msg = PeerMsg::Query { interval, round, versions_after: None, boot_nonce };
            out.push(PgCommand::Send { to, msg });
        }
    }

    pub(crate) fn on_peer_reset(&mut self, osd: OsdId, out: &mut Vec<PgCommand>) {
        if self.replica.session.is_some_and(|s| s.primary == osd) {
            // Updates may be lost between those that arrived and later ones.
            self.replica.session = None;
        }
        if self.staged.as_ref().is_some_and(|s| s.from == osd) {
            self.staged = None;
        }
        self.tail_senders.remove(&osd);
        let required = self.required_members().any(|m| m.osd == osd);
        let Some(primary) = &mut self.primary else { return };
        primary.peering.infos.remove(&osd);
        primary.catching_up.remove(&osd);
        primary.heads.remove(&osd);
        primary.departure = None;
        if required {
            self.start_peering(out);
        }
    }
}
