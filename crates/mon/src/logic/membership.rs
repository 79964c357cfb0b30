//! PG memberships: which compare-and-swaps are allowed (rules R1, R2 and R5).

use super::{ConnToken, MapEffect, MapState};
use nacre_types::ids::{Interval, OsdId, PgId};
use nacre_types::msg::{PgCas, PgCasReply};
use nacre_types::osdmap::{Member, OsdMap, PgMembership};
use nacre_types::placement::PgMapper;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The most members of an in-sync set: twice a pool's largest size, for a move of all copies.
const MAX_MEMBERS: usize = 32;

/// The reason why a membership proposal is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CasRefusal {
    /// The current record is not the expected one.
    #[error("the membership has changed")]
    Lost,
    /// The PG does not exist.
    #[error("the pg does not exist")]
    NoSuchPg,
    /// The proposer is not the OSD of the connection, or not up with that incarnation.
    #[error("the proposer is not a running OSD with that incarnation")]
    NotRunning,
    /// The proposer may not change this PG (R5).
    #[error("the proposer is not in sync")]
    NotInSync,
    /// The proposer may not create this PG (R2).
    #[error("the proposer is not in the up set")]
    NotUpSet,
    /// The next interval must be the current one plus one, or the first of its kind in the map's generation.
    #[error("the interval is not the next one")]
    WrongInterval,
    /// The set is empty or too large, contains an OSD twice, or lacks its primary.
    #[error("malformed in-sync set")]
    Malformed,
    /// A member to be added is not up with that incarnation (R2).
    #[error("a new member is not up with that incarnation")]
    MemberNotUp,
    /// The in-sync set would shrink below min_size (R5).
    #[error("the in-sync set may not shrink below min_size")]
    BelowMinSize,
    /// No member that is in sync now would stay.
    #[error("no member of the in-sync set stays")]
    NoneStays,
    /// A proposer that is not the primary may promote only itself and may not add members.
    #[error("a replica may only promote itself, and add nobody")]
    ForeignPromotion,
}

/// Whether `cas` from `osd` may take effect on `map`.
pub fn check_cas(map: &OsdMap, osd: OsdId, cas: &PgCas) -> Result<(), CasRefusal> {
    let pool = map.pools.get(&cas.pg.pool).filter(|pool| cas.pg.seed < pool.pg_num);
    let pool = pool.ok_or(CasRefusal::NoSuchPg)?;
    if cas.proposer.osd != osd || !map.is_member_up(cas.proposer) {
        return Err(CasRefusal::NotRunning);
    }
    let current = map.membership(cas.pg);
    if current != cas.expected.as_ref() {
        return Err(CasRefusal::Lost);
    }
    let next = &cas.proposed;
    check_form(next)?;
    let generation = map.generation;
    match current.filter(|c| c.interval.is_since(generation)) {
        Some(current) if next.interval == current.interval.next() => {
            check_change(map, current, cas, pool.min_size as usize)
        }
        Some(_) => Err(CasRefusal::WrongInterval),
        // If the record of an earlier generation is that of the creation, the creation may not have been executed.
        None if next.interval == Interval::creation(generation)
            && current.is_none_or(|c| c.interval.is_creation()) =>
        {
            check_creation(map, cas)
        }
        None if next.interval == Interval::after_restore(generation) && generation > 1 => check_restored(cas),
        None => Err(CasRefusal::WrongInterval),
    }
}

/// After a MapStore restore (R7) the record may be older than those of the PG's members. The first member of the highest record
/// among all OSDs proposes that record again, in the new generation's first interval for it. The map authority can't verify the
/// record and accepts it.
fn check_restored(cas: &PgCas) -> Result<(), CasRefusal> {
    let next = &cas.proposed;
    if !next.is_in_sync(cas.proposer) {
        return Err(CasRefusal::NotInSync);
    }
    if next.primary == cas.proposer.osd { Ok(()) } else { Err(CasRefusal::ForeignPromotion) }
}

fn check_form(next: &PgMembership) -> Result<(), CasRefusal> {
    let osds: BTreeSet<OsdId> = next.in_sync.iter().map(|m| m.osd).collect();
    let well_formed = !osds.is_empty()
        && osds.len() == next.in_sync.len()
        && osds.len() <= MAX_MEMBERS
        && osds.contains(&next.primary);
    if well_formed { Ok(()) } else { Err(CasRefusal::Malformed) }
}

fn check_creation(map: &OsdMap, cas: &PgCas) -> Result<(), CasRefusal> {
    let up = PgMapper::new(map).up(cas.pg);
    if !up.contains(&cas.proposer.osd) || !cas.proposed.in_sync.iter().all(|m| up.contains(&m.osd)) {
        return Err(CasRefusal::NotUpSet);
    }
    if !cas.proposed.in_sync.iter().all(|m| map.is_member_up(*m)) {
        return Err(CasRefusal::MemberNotUp);
    }
    Ok(())
}

fn check_change(
    map: &OsdMap,
    current: &PgMembership,
    cas: &PgCas,
    min_size: usize,
) -> Result<(), CasRefusal> {
    let next = &cas.proposed;
    if !current.is_in_sync(cas.proposer) {
        return Err(CasRefusal::NotInSync);
    }
    let added = |m: &&Member| !current.is_in_sync(**m);
    if !next.in_sync.iter().filter(added).all(|m| map.is_member_up(*m)) {
        return Err(CasRefusal::MemberNotUp);
    }
    if !next.in_sync.iter().any(|m| current.is_in_sync(*m)) {
        return Err(CasRefusal::NoneStays);
    }
    let promotes = cas.proposer.osd != current.primary;
    if promotes && (next.primary != cas.proposer.osd || next.in_sync.iter().any(|m| added(&m))) {
        return Err(CasRefusal::ForeignPromotion);
    }
    // A member that the operator declared lost does not count: dropping it is the operator's decision.
    let given_up = |m: &&Member| is_lost(map, m.osd);
    let kept_back = current.in_sync.iter().filter(|m| !given_up(m)).count();
    if next.in_sync.len() < kept_back && next.in_sync.len() < min_size {
        return Err(CasRefusal::BelowMinSize);
    }
    Ok(())
}

/// Whether a member's copy can't come back: the OSD has lost its contents since, was declared lost, or was removed.
pub(crate) fn has_lost_copy(map: &OsdMap, member: Member) -> bool {
    let now = map.osds.get(&member.osd).and_then(|info| info.incarnation);
    now.is_some_and(|now| now != member.incarnation) || is_lost(map, member.osd)
}

/// Whether the operator declared the OSD's data lost, or removed the OSD.
fn is_lost(map: &OsdMap, osd: OsdId) -> bool {
    map.osds.get(&osd).is_none_or(|info| !info.up && info.lost_at > info.up_from)
}

impl MapState {
    pub(super) fn cas(&mut self, origin: ConnToken, osd: OsdId, cas: PgCas) {
        let (tid, pg) = (cas.tid, cas.pg);
        let outcome = check_cas(&self.working, osd, &cas);
        if outcome.is_ok() {
            self.set_membership(pg, cas.proposed);
        }
        let reply = PgCasReply {
            tid,
            pg,
            accepted: outcome.is_ok(),
            current: self.working.membership(pg).cloned(),
            epoch: self.showing_epoch(),
        };
        self.answer_when_durable(MapEffect::CasReply { to: origin, reply });
    }

    pub(crate) fn set_membership(&mut self, pg: PgId, membership: PgMembership) {
        let pgs = self.working.pgs.get_mut(&pg.pool).map(Arc::make_mut);
        let slot = pgs.and_then(|pgs| pgs.get_mut(pg.seed as usize));
        *slot.expect("invariant: the PG's existence was checked") = Some(membership);
        self.changes.pgs.insert(pg);
    }
}
