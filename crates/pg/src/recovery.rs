//! Filling members that catch up, from the primary.
//!
//! The primary asks a member that CRUSH wants and that is not in sync for its log. If the log meets the primary's, the member
//! is rolled back to the common part and sent the rest, and the objects that either part names are copied. Otherwise it is
//! backfilled: both sides list their objects in order, range by range, and the primary copies what differs. Once the member has
//! the log, it is sent every update, and applies those of objects that it has. When nothing is missing, it is proposed as a
//! member.
//!
//! The map's flags restrict this, as in Ceph. With `norecover`, nothing is copied. With `nobackfill`, and with `norebalance`
//! while the PG has all its copies, no backfill starts or continues, but missing objects are copied.

mod listing;
mod pushing;

use crate::api::{CatchUpStatus, MemberInfo, PeerMsg, PgCommand, PieceCursor};
use crate::log::EntryKind;
use crate::pg::{ListPurpose, Pg};
use crate::primary::{Primary, PrimaryPhase};
use crate::settings::Mutation;
use listing::compare;
use nacre_types::ids::{Eversion, Interval, OsdId};
use nacre_types::object::ObjectId;
use nacre_types::osdmap::{Member, OsdMap, flag};
use nacre_types::stats::pg_state;
use pushing::{InflightPush, PushStep};
use std::collections::{BTreeMap, BTreeSet};

/// Priorities of slots (`osd_types.h`): for a PG that has fewer copies than its pool's min_size, for copying missing objects,
/// for a backfill of a PG without all its copies, and for a backfill that only moves copies.
const PRIORITY_INACTIVE: u8 = 220;
const PRIORITY_RECOVERY: u8 = 180;
const PRIORITY_DEGRADED_BACKFILL: u8 = 140;
const PRIORITY_BACKFILL: u8 = 100;

/// The retry intervals without an answer after which a piece is sent again, and after which catching up with a member starts
/// over.
const SILENT_RETRIES: u64 = 3;

/// The progress of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It was asked for its log.
    Asked,
    /// It was asked for a slot for its backfill.
    Reserving,
    /// It was sent the log, and has not reported yet what is missing.
    Log,
    /// Objects are being copied.
    Filling,
    /// It was told that its backfill is complete.
    Finishing,
    /// Nothing is missing.
    Ready,
}

impl Stage {
    fn name(self) -> &'static str {
        match self {
            Stage::Asked => "asked for its log",
            Stage::Reserving => "waiting for a backfill slot",
            Stage::Log => "taking the log",
            Stage::Filling => "taking objects",
            Stage::Finishing => "completing its backfill",
            Stage::Ready => "waiting to become a member",
        }
    }
}

/// One range of a backfill.
#[derive(Debug, Default)]
struct Backfill {
    /// Everything up to this object is in place.
    cursor: Option<ObjectId>,
    /// The current scan.
    scan: Option<u64>,
    mine: Option<(Vec<(ObjectId, Eversion)>, bool)>,
    theirs: Option<(Vec<(ObjectId, Eversion)>, bool)>,
    /// The range's last object, and whether it is the last range; `None` between ranges.
    range: Option<(Option<ObjectId>, bool)>,
    /// Objects of the range that are to be copied.
    work: BTreeSet<ObjectId>,
    /// Objects of the range that were copied or equal and are sent updates since.
    done: BTreeSet<ObjectId>,
    /// Objects beyond the cursor that were changed during the scan.
    dirty: BTreeSet<ObjectId>,
}

/// A member that is catching up.
#[derive(Debug)]
pub(crate) struct CatchUp {
    pub(crate) member: Member,
    stage: Stage,
    /// The number of the query for its log.
    round: u64,
    /// When the last message from it arrived, or it was queried, or an object for it was read.
    pub(crate) heard_at: u64,
    missing: BTreeMap<ObjectId, Eversion>,
    pub(crate) acked: Eversion,
    /// Objects in transfer.
    pushing: BTreeMap<ObjectId, InflightPush>,
    /// Objects that were sent completely and whose arrival is not confirmed.
    unconfirmed: BTreeSet<ObjectId>,
    /// Objects that can't be read here.
    unreadable: BTreeSet<ObjectId>,
    /// Whether it was filled without objects that no in-sync member had at that time.
    pub(crate) lacks_objects: bool,
    backfill: Option<Backfill>,
    /// Since when it has everything, except what its disk has not written yet.
    ready_at: u64,
}

impl CatchUp {
    fn new(member: Member, round: u64, now: u64) -> CatchUp {
        CatchUp {
            member,
            stage: Stage::Asked,
            round,
            heard_at: now,
            missing: BTreeMap::new(),
            acked: Eversion::default(),
            pushing: BTreeMap::new(),
            unconfirmed: BTreeSet::new(),
            unreadable: BTreeSet::new(),
            lacks_objects: false,
            backfill: None,
            ready_at: now,
        }
    }

    /// A member that has all objects, with its log durable up to `head`.
    pub(crate) fn caught_up(member: Member, head: Eversion, now: u64) -> CatchUp {
        CatchUp { stage: Stage::Ready, acked: head, ..CatchUp::new(member, 0, now) }
    }

    /// Records that it has all objects.
    fn set_ready(&mut self, now: u64) {
        (self.stage, self.ready_at) = (Stage::Ready, now);
    }

    /// Whether updates are acknowledged only once they are durable on it too, though it is no member yet: it has had all
    /// objects for a while, and clients write faster than its disk.
    pub(crate) fn delays_acks(&self, now: u64, patience: u64) -> bool {
        self.stage == Stage::Ready && now >= self.ready_at + patience
    }

    /// Whether it continues only with an answer. What it is sent must become durable on it up to `target`.
    fn is_awaited(&self, target: Eversion) -> bool {
        let scanned = |b: &Backfill| b.scan.is_some() && b.theirs.is_none();
        match self.stage {
            Stage::Asked | Stage::Reserving | Stage::Log | Stage::Finishing => true,
            Stage::Filling => {
                !self.unconfirmed.is_empty()
                    || self.pushing.values().any(InflightPush::is_awaited)
                    || self.backfill.as_ref().is_some_and(scanned)
            }
            Stage::Ready => self.acked < target,
        }
    }

    /// Whether it is sent updates.
    pub(crate) fn receives_updates(&self) -> bool {
        !matches!(self.stage, Stage::Asked | Stage::Reserving)
    }

    /// Whether it applies an update of `object`, or only logs it; records the consequences.
    pub(crate) fn should_send_op(&mut self, object: &ObjectId, version: Eversion, kind: EntryKind) -> bool {
        if kind == EntryKind::Error {
            return true;
        }
        if let Some(backfill) = &mut self.backfill {
            let below =
                self.stage != Stage::Log && backfill.cursor.as_ref().is_some_and(|cursor| object <= cursor);
            if below
                || backfill.done.contains(object)
                || matches!(self.stage, Stage::Finishing | Stage::Ready)
            {
                return true;
            }
            match &backfill.range {
                Some((bound, end)) if *end || bound.as_ref().is_some_and(|bound| object <= bound) => {
                    backfill.work.insert(object.clone());
                }
                _ => {
                    backfill.dirty.insert(object.clone());
                }
            }
            return false;
        }
        if kind == EntryKind::Delete {
            self.missing.remove(object);
            return true;
        }
        match self.missing.get_mut(object) {
            Some(needed) => {
                *needed = version;
                false
            }
            None => true,
        }
    }

    pub(crate) fn is_pushing_pieces(&self, object: &ObjectId) -> bool {
        self.pushing.get(object).is_some_and(InflightPush::is_in_pieces)
    }
}

impl Pg {
    /// Starts, continues and ends the filling of members.
    pub(crate) fn step_recovery(&mut self, out: &mut Vec<PgCommand>) {
        let Some(map) = self.map.clone() else { return };
        let in_sync: BTreeSet<Member> = self.in_sync().iter().copied().collect();
        let proposed: BTreeSet<OsdId> =
            self.outstanding_proposals().flat_map(|m| m.in_sync.iter().map(|m| m.osd)).collect();
        let wanted: Vec<Member> = self.up.iter().filter_map(|osd| map.up_member(*osd)).collect();
        let now = self.now;
        let live = self.in_sync().iter().filter(|m| m.osd == self.me.osd || self.is_member_up(**m)).count();
        let (size, min_size) = (self.size(), self.min_size());
        let priority = |backfill: bool| match backfill {
            _ if live < min_size => PRIORITY_INACTIVE,
            false => PRIORITY_RECOVERY,
            true if live < size => PRIORITY_DEGRADED_BACKFILL,
            true => PRIORITY_BACKFILL,
        };
        let Some(primary) = &mut self.primary else { return };
        primary.wait_backfill.retain(|member| map.is_member_up(*member) && wanted.contains(member));
        primary.catching_up.retain(|osd, c| {
            map.is_member_up(c.member) && (wanted.contains(&c.member) || proposed.contains(osd))
        });
        if primary.phase == PrimaryPhase::Peering || self.restoring.is_some() {
            return;
        }
        let paused = map.has_flag(flag::NORECOVER);
        let no_backfill = self.backfill_is_forbidden(&map);
        let Some(primary) = &mut self.primary else { return };
        for to in primary.defer_backfills(no_backfill, &wanted, &proposed) {
            let interval = self.membership.as_ref().map_or(Interval(0), |m| m.interval);
            out.push(PgCommand::Send { to, msg: PeerMsg::ReleaseBackfill { interval } });
        }
        if primary.slot_held {
            self.trim_oversized_log(out);
        }
        let Some(primary) = &mut self.primary else { return };
        // Peering brings members that a proposal with unknown outcome would add up to date, without removing anything.
        for member in wanted.iter().filter(|m| !in_sync.contains(m) && !proposed.contains(&m.osd)) {
            let waits = primary.deferred.contains(member) || primary.wait_backfill.contains(member);
            let known = primary.catching_up.contains_key(&member.osd) || waits;
            if !paused && !known && primary.slot_held {
                let round = self.next_read;
                self.next_read += 1;
                primary.catching_up.insert(member.osd, CatchUp::new(*member, round, now));
                let msg = PeerMsg::Query {
                    round,
                    interval: self.membership.as_ref().map_or(Interval(0), |m| m.interval),
                    versions_after: Some(self.log.tail()),
                    boot_nonce: self.boot_nonce,
                };
                out.push(PgCommand::Send { to: member.osd, msg });
            }
        }
        let lacks = |m: &&Member| !in_sync.contains(m) && !primary.deferred.contains(m);
        let needed = wanted.iter().any(|m| lacks(&m)) && !paused;
        // Filled members may have to wait for the others, to be proposed together.
        let are_filled = primary.catching_up.values().all(|c| c.stage == Stage::Ready);
        let must_change = !primary.wait_backfill.is_empty() && !primary.slot_backfill && are_filled;
        if primary.slot_asked && (must_change || !needed && primary.catching_up.is_empty()) {
            primary.slot_asked = false;
            primary.slot_held = false;
            primary.slot_backfill = false;
            out.push(PgCommand::Release);
        }
        let backfill = primary.slot_backfill || must_change;
        let priority = priority(backfill);
        let is_raised = !primary.slot_held && primary.slot_priority != priority;
        if needed && (!primary.slot_asked || is_raised) {
            if !primary.slot_asked {
                primary.slot_backfill = backfill;
                primary.wait_backfill.clear();
            }
            primary.slot_asked = true;
            primary.slot_priority = priority;
            out.push(PgCommand::Reserve { backfill: primary.slot_backfill, priority });
        }
        let members: Vec<OsdId> = primary.catching_up.keys().copied().collect();
        for osd in members {
            self.fill(osd, out);
        }
    }

    /// Whether the map's flags forbid backfills of this PG.
    fn backfill_is_forbidden(&self, map: &OsdMap) -> bool {
        let live = self.in_sync().iter().filter(|m| m.osd == self.me.osd || self.is_member_up(**m)).count();
        map.has_flag(flag::NOBACKFILL) || map.has_flag(flag::NOREBALANCE) && live >= self.size()
    }

    pub(crate) fn on_reserved(&mut self) {
        // Otherwise the slot was released before this event.
        if let Some(primary) = self.primary.as_mut().filter(|p| p.slot_asked) {
            primary.slot_held = true;
        }
    }

    /// Decides how a member whose log is known is made equal to this one.
    pub(crate) fn on_catch_up_info(
        &mut self,
        from: OsdId,
        round: u64,
        info: &MemberInfo,
        versions: &[Eversion],
        out: &mut Vec<PgCommand>,
    ) {
        let interval = self.interval();
        // Equal versions mean equal histories up to them; below this log's tail nothing can be compared.
        let newest_first = versions.iter().rev().chain(std::iter::once(&info.tail));
        let common = newest_first.copied().find(|v| self.log.contains(*v));
        let common = common.filter(|_| info.exists && info.complete);
        let forbidden = self.map.as_ref().is_some_and(|map| self.backfill_is_forbidden(map));
        let Some(primary) = &mut self.primary else { return };
        let Some(catching_up) = primary.catching_up.get_mut(&from) else { return };
        if catching_up.stage != Stage::Asked || catching_up.round != round {
            return;
        }
        if common.is_none() && forbidden {
            primary.deferred.insert(catching_up.member);
            primary.catching_up.remove(&from);
            return;
        }
        if common.is_none() && !primary.slot_backfill {
            // It is queried again with a slot for backfills, once the members that need no backfill are filled.
            primary.wait_backfill.insert(catching_up.member);
            primary.catching_up.remove(&from);
            return;
        }
        catching_up.heard_at = self.now;
        if common.is_none() {
            catching_up.stage = Stage::Reserving;
            let msg = PeerMsg::ReserveBackfill { interval, priority: primary.slot_priority };
            out.push(PgCommand::Send { to: from, msg });
            return;
        }
        self.send_catch_up(from, common, out);
    }

    /// Handles a member's report that it has a slot for its backfill, or waits for one.
    pub(crate) fn on_backfill_reserved(
        &mut self,
        from: OsdId,
        interval: Interval,
        granted: bool,
        out: &mut Vec<PgCommand>,
    ) {
        let known = self.reign_includes(interval);
        let is_proposed = self.is_proposed(from);
        let Some(primary) = &mut self.primary else { return };
        let Some(catching_up) = primary.catching_up.get_mut(&from).filter(|_| known) else { return };
        match catching_up.stage {
            Stage::Reserving => {
                catching_up.heard_at = self.now;
                if granted {
                    primary.backfill_full.remove(&from);
                    self.send_catch_up(from, None, out);
                }
            }
            // It took its slot back. It is queried again, and the backfill skips the objects that it has.
            Stage::Log | Stage::Filling if !granted && catching_up.backfill.is_some() && !is_proposed => {
                primary.backfill_full.insert(from);
                primary.catching_up.remove(&from);
            }
            _ => {}
        }
    }

    /// Sets the members whose stores accept no more objects, according to their reports to the host. Copying to them is
    /// suspended, including objects without data.
    pub fn set_too_full(&mut self, is_full: impl Fn(OsdId) -> bool) {
        if let Some(primary) = &mut self.primary {
            primary.too_full = primary.catching_up.keys().copied().filter(|osd| is_full(*osd)).collect();
        }
    }

    /// Sends a member this log: its own log up to `common` remains. Without `common`, the member is backfilled.
    fn send_catch_up(&mut self, to: OsdId, common: Option<Eversion>, out: &mut Vec<PgCommand>) {
        let (now, interval, tail) = (self.now, self.interval(), self.log.tail());
        let Some(catching_up) = self.primary.as_mut().and_then(|p| p.catching_up.get_mut(&to)) else {
            return;
        };
        catching_up.stage = Stage::Log;
        catching_up.heard_at = now;
        catching_up.backfill = common.is_none().then(Backfill::default);
        let kept = common.unwrap_or_default();
        let entries = self.log.entries_after(kept).map(|entry| entry.encode()).collect();
        let backfill = common.is_none();
        let dups = if backfill { self.log.dup_snapshot() } else { Default::default() };
        let msg = PeerMsg::CatchUp { interval, common: kept, tail, entries, dups, backfill };
        out.push(PgCommand::Send { to, msg });
    }

    pub(crate) fn on_log_caught_up(
        &mut self,
        from: OsdId,
        interval: Interval,
        missing: Vec<(ObjectId, Eversion)>,
    ) {
        let known = self.reign_includes(interval);
        let Some(primary) = &mut self.primary else { return };
        let Some(catching_up) = primary.catching_up.get_mut(&from).filter(|_| known) else { return };
        catching_up.heard_at = self.now;
        match catching_up.stage {
            Stage::Log => {
                catching_up.stage = Stage::Filling;
                catching_up.missing.extend(missing);
            }
            Stage::Finishing => catching_up.set_ready(self.now),
            _ => {}
        }
    }

    fn reign_includes(&self, interval: Interval) -> bool {
        self.primary.as_ref().is_some_and(|p| interval >= p.since && interval <= self.interval())
    }

    /// Members that may be proposed: nothing is missing, and all acknowledged updates are durable on them.
    pub(crate) fn ready_to_join(&self, primary: &Primary) -> Vec<Member> {
        let early = self.settings.breaks(Mutation::JoinWithMissing);
        let ready = |c: &&CatchUp| {
            c.acked >= self.committed_to
                && (c.stage == Stage::Ready || early && matches!(c.stage, Stage::Filling | Stage::Finishing))
        };
        primary.catching_up.values().filter(ready).map(|c| c.member).collect()
    }

    fn fill(&mut self, osd: OsdId, out: &mut Vec<PgCommand>) {
        let (interval, scan) = (self.interval(), self.settings.scan_objects.max(2));
        let max = self.settings.max_recoveries.max(1);
        let paused = self.map.as_ref().is_some_and(|map| map.has_flag(flag::NORECOVER));
        let no_backfill = self.map.as_ref().is_some_and(|map| self.backfill_is_forbidden(map));
        let (now, next_scan) = (self.now, self.next_read);
        let Some(primary) = &mut self.primary else { return };
        let too_full = primary.too_full.contains(&osd);
        let Some(catching_up) = primary.catching_up.get_mut(&osd) else { return };
        if catching_up.stage != Stage::Filling {
            return;
        }
        let mut scan_from = None;
        let trusts_damaged = self.settings.breaks(Mutation::TakeDamagedForEqual);
        // Objects that no in-sync member has (R10).
        let mut unfound: Vec<(ObjectId, Eversion)> = Vec::new();
        let mut start: Vec<ObjectId> = Vec::new();
        let busy = catching_up.pushing.len() + catching_up.unconfirmed.len();
        let halted = paused || too_full || no_backfill && catching_up.backfill.is_some();
        let room = if halted { 0 } else { max.saturating_sub(busy) };
        match &mut catching_up.backfill {
            Some(backfill) => {
                if let (None, Some(mine), Some(theirs)) = (&backfill.range, &backfill.mine, &backfill.theirs)
                {
                    let (range, mut work) = compare(backfill.cursor.as_ref(), mine, theirs);
                    if trusts_damaged {
                        let of = |side: &(Vec<(ObjectId, Eversion)>, bool), object: &ObjectId| {
                            side.0.iter().find(|(one, _)| one == object).map(|(_, version)| *version)
                        };
                        work.retain(|object| of(mine, object) != of(theirs, object));
                    }
                    backfill.work.extend(work);
                    let inside = |o: &ObjectId| range.1 || range.0.as_ref().is_some_and(|bound| o <= bound);
                    let dirty = std::mem::take(&mut backfill.dirty);
                    let (here, later) = dirty.into_iter().partition::<BTreeSet<_>, _>(inside);
                    backfill.work.extend(here);
                    backfill.dirty = later;
                    backfill.range = Some(range);
                    (backfill.mine, backfill.theirs, backfill.scan) = (None, None, None);
                }
                if backfill.range.is_none() && backfill.scan.is_none() && !halted {
                    backfill.scan = Some(next_scan);
                    catching_up.heard_at = now;
                    scan_from = Some(backfill.cursor.clone());
                }
                let lost = self.missing.iter().filter(|(object, _)| backfill.work.contains(*object));
                unfound.extend(lost.take(room).map(|(object, version)| (object.clone(), *version)));
                catching_up.lacks_objects |= !unfound.is_empty();
                for (object, _) in &unfound {
                    backfill.work.remove(object);
                    backfill.done.insert(object.clone());
                    catching_up.unconfirmed.insert(object.clone());
                }
                let readable =
                    |o: &&ObjectId| !catching_up.unreadable.contains(*o) && !self.missing.contains_key(*o);
                start.extend(backfill.work.iter().filter(readable).take(room).cloned());
                for object in &start {
                    backfill.work.remove(object);
                }
                if let Some((bound, end)) = &backfill.range
                    && busy == 0
                    && start.is_empty()
                    && unfound.is_empty()
                    && backfill.work.is_empty()
                {
                    let end = *end;
                    backfill.cursor = bound.clone();
                    backfill.range = None;
                    backfill.done.clear();
                    if end {
                        catching_up.stage = Stage::Finishing;
                        catching_up.heard_at = now;
                        let msg = PeerMsg::BackfillCursor { interval, cursor: None };
                        out.push(PgCommand::Send { to: osd, msg });
                        return;
                    }
                    return self.fill(osd, out);
                }
            }
            None => {
                // The member already knows that it lacks them.
                let known = catching_up.missing.len();
                catching_up.missing.retain(|object, _| !self.missing.contains_key(object));
                catching_up.lacks_objects |= catching_up.missing.len() < known;
                let idle = |o: &&ObjectId| {
                    !catching_up.pushing.contains_key(*o) && !catching_up.unreadable.contains(*o)
                };
                start.extend(catching_up.missing.keys().filter(idle).take(room).cloned());
                if catching_up.missing.is_empty() && busy == 0 {
                    catching_up.set_ready(now);
                }
            }
        }
        if let Some(from) = scan_from {
            self.list_objects(ListPurpose::Backfill { osd, scan: next_scan }, from.clone(), scan, out);
            let msg = PeerMsg::Scan { interval, scan: next_scan, from, max: scan as u64 };
            out.push(PgCommand::Send { to: osd, msg });
        }
        for (object, version) in unfound {
            out.push(PgCommand::Send { to: osd, msg: PeerMsg::Unfound { interval, object, version } });
        }
        for object in start {
            self.read_push(osd, object, (PieceCursor::default(), PushStep::First), out);
        }
    }

    /// Repeats requests that were not answered. A member that stays silent starts over.
    pub(crate) fn retry_recovery(&mut self, out: &mut Vec<PgCommand>) {
        let (now, retry, interval) = (self.now, self.settings.retry_ns, self.interval());
        let (committed_to, head) = (self.committed_to, self.log.head());
        let target = |c: &CatchUp| if c.delays_acks(now, retry) { head } else { committed_to };
        let Some(primary) = &mut self.primary else { return };
        for (osd, _) in primary.catching_up.iter().filter(|(_, c)| c.stage == Stage::Reserving) {
            let msg = PeerMsg::ReserveBackfill { interval, priority: primary.slot_priority };
            out.push(PgCommand::Send { to: *osd, msg });
        }
        let mut lost = Vec::new();
        for (osd, catching_up) in &mut primary.catching_up {
            // A piece that arrives twice is stored twice, with the same result.
            let pieces = catching_up.pushing.iter().filter(|(_, pushing)| pushing.is_lost(now, retry));
            lost.extend(pieces.map(|(object, pushing)| (*osd, object.clone(), pushing.at.clone())));
            // Unreadable objects are tried again: the device may have recovered, or a scrub may have repaired them.
            catching_up.unreadable.clear();
            if !catching_up.is_awaited(target(catching_up)) {
                catching_up.heard_at = now;
            }
        }
        let silent: Vec<OsdId> = primary
            .catching_up
            .iter()
            .filter(|(_, c)| c.is_awaited(target(c)) && now >= c.heard_at + SILENT_RETRIES * retry)
            .map(|(osd, _)| *osd)
            .collect();
        for osd in silent {
            if !self.is_proposed(osd)
                && let Some(primary) = &mut self.primary
            {
                primary.catching_up.remove(&osd);
            }
        }
        for (osd, object, at) in lost {
            if self.primary.as_ref().is_some_and(|p| p.catching_up.contains_key(&osd)) {
                self.read_push(osd, object, (at, PushStep::Again), out);
            }
        }
        self.step_recovery(out);
    }

    pub(crate) fn recovery_state(&self, primary: &Primary) -> u64 {
        let mut state = 0;
        for (osd, catching_up) in &primary.catching_up {
            let too_full = primary.too_full.contains(osd);
            state |= match catching_up.stage {
                Stage::Reserving if primary.backfill_full.contains(osd) => pg_state::BACKFILL_TOOFULL,
                Stage::Reserving => pg_state::BACKFILL_WAIT,
                Stage::Filling if too_full && catching_up.backfill.is_some() => pg_state::BACKFILL_TOOFULL,
                Stage::Filling if too_full => pg_state::RECOVERY_TOOFULL,
                _ if catching_up.backfill.is_some() => pg_state::BACKFILLING,
                _ => pg_state::RECOVERING,
            };
        }
        let waits = primary.slot_asked && !primary.slot_held;
        if waits && !primary.slot_backfill {
            state |= pg_state::RECOVERY_WAIT;
        }
        if waits && primary.slot_backfill || !primary.wait_backfill.is_empty() || !primary.deferred.is_empty()
        {
            state |= pg_state::BACKFILL_WAIT;
        }
        state
    }

    /// The degraded and misplaced object copies, and the targets of backfill.
    pub(crate) fn recovery_counts(&self, objects: u64) -> (u64, u64, Vec<OsdId>) {
        let Some(primary) = &self.primary else { return (0, 0, Vec::new()) };
        let live = self.in_sync().iter().filter(|m| m.osd == self.me.osd || self.is_member_up(**m)).count();
        let lacking = self.size().saturating_sub(live) as u64;
        let mut absent = lacking * objects;
        let mut targets = Vec::new();
        for (osd, catching_up) in &primary.catching_up {
            if catching_up.backfill.is_some() {
                targets.push(*osd);
            } else if lacking > 0 {
                absent = absent.saturating_sub(objects).saturating_add(catching_up.missing.len() as u64);
            }
        }
        let misplaced = self.in_sync().iter().filter(|m| !self.up.contains(&m.osd)).count() as u64 * objects;
        (absent, misplaced, targets)
    }

    pub(crate) fn catching_up(&self) -> Vec<CatchUpStatus> {
        let Some(primary) = &self.primary else { return Vec::new() };
        let row = |(osd, c): (&OsdId, &CatchUp)| CatchUpStatus {
            osd: *osd,
            stage: c.stage.name(),
            missing: c.missing.len() as u64,
            backfill_position: c
                .backfill
                .as_ref()
                .map(|b| b.cursor.as_ref().map_or("start".into(), ToString::to_string)),
            pushing: c.pushing.len() as u64,
            unconfirmed: c.unconfirmed.len() as u64,
            acked: c.acked,
        };
        primary.catching_up.iter().map(row).collect()
    }
}

impl Primary {
    /// Ends backfills without objects in flight while backfills are forbidden, so that their slot is free for other PGs. They
    /// start over when backfills are allowed again, and skip objects that are equal. Returns the members whose backfills ended.
    fn defer_backfills(
        &mut self,
        forbidden: bool,
        wanted: &[Member],
        proposed: &BTreeSet<OsdId>,
    ) -> Vec<OsdId> {
        if !forbidden {
            self.deferred.clear();
            return Vec::new();
        }
        self.deferred.retain(|member| wanted.contains(member));
        let rests = |osd: &OsdId, c: &CatchUp| {
            let idle = c.pushing.is_empty() && c.unconfirmed.is_empty();
            let fills = c.backfill.is_some() && c.stage == Stage::Filling && idle;
            (fills || c.stage == Stage::Reserving) && !proposed.contains(osd)
        };
        let resting: Vec<OsdId> =
            self.catching_up.iter().filter(|(osd, c)| rests(osd, c)).map(|(osd, _)| *osd).collect();
        for osd in &resting {
            self.deferred.extend(self.catching_up.remove(osd).map(|c| c.member));
        }
        resting
    }
}
