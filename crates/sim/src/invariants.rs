//! Invariants that are checked after every step, whatever faults occurred before.
//!
//! The simulator has a view that no machine has: all disks, clocks and memberships at one time.

mod contents;

use crate::disk::{Collection, Image, Object};
use crate::osd::Osd;
use crate::packet::MapView;
use crate::schedule::Nanos;
use contents::{DurableContents, lacking};
use nacre_types::osdmap::{OsdMap, PgMembership};
use nacre_types::{Eversion, Interval, ObjectId, OsdId, PgId, PoolId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The number of a PG's last acknowledged writes that are checked on each disk.
const LAST_ACKNOWLEDGED: usize = 6;

/// The broken rule, and details.
pub type Violation = (&'static str, String);

/// When an interval answered, by the true times at which leases were checked.
#[derive(Clone, Copy, Debug)]
struct Acted {
    osd: OsdId,
    first: Nanos,
    last: Nanos,
}

/// The state for the checks.
#[derive(Debug, Default)]
pub struct Invariants {
    /// The intervals that answered reads or acknowledged writes.
    acted: BTreeMap<PgId, BTreeMap<Interval, Acted>>,
    /// The process, as OSD and life, that ordered updates in an interval.
    orderers: BTreeMap<(PgId, Interval), (OsdId, u32)>,
    /// Acknowledged writes.
    acknowledged: BTreeMap<PgId, BTreeSet<Eversion>>,
    /// The highest interval that was ever durable.
    highest: BTreeMap<PgId, PgMembership>,
    /// Memberships that were proposed and may still take effect.
    proposed: BTreeMap<PgId, Vec<PgMembership>>,
    /// Pools whose data an operator destroyed.
    given_up: BTreeSet<PoolId>,
    contents: DurableContents,
}

impl Invariants {
    /// The highest record of every PG that was ever durable, regardless of restores.
    pub fn highest(&self) -> impl Iterator<Item = (&PgId, &PgMembership)> {
        self.highest.iter()
    }

    /// Proposed memberships that may still take effect, whatever happened to the proposer.
    pub fn proposals(&self) -> impl Iterator<Item = (&PgId, &PgMembership)> {
        self.proposed.iter().flat_map(|(pg, all)| all.iter().map(move |membership| (pg, membership)))
    }

    /// Records a proposed membership.
    pub fn propose(&mut self, pg: PgId, membership: &PgMembership) {
        let proposed = self.proposed.entry(pg).or_default();
        if !proposed.contains(membership) {
            proposed.push(membership.clone());
        }
    }

    /// An operator deletes the pool. Its copies are removed, and a restored map that contains the pool again does not restore them.
    pub fn ignore_pool(&mut self, pool: PoolId) {
        self.given_up.insert(pool);
        self.contents.ignore_pool(pool);
    }

    /// Checks changes that have become durable on an OSD.
    pub fn flushed(&mut self, osd: &Osd) -> Result<(), Violation> {
        let mut disk = osd.disk();
        for (pg, oid) in disk.take_newly_durable() {
            let stored = disk.durable().object_of(pg, &oid);
            if let Some(object) =
                stored.filter(|_| !nacre_pg::is_temp(&oid) && !self.given_up.contains(&pg.pool))
            {
                self.contents.durable(osd.id, pg, &oid, object)?;
            }
        }
        Ok(())
    }

    /// A process ordered an update in `interval`. A version identifies one update only if one process orders all updates of an interval.
    pub fn check_orderer(&mut self, osd: &Osd, pg: PgId, interval: Interval) -> Result<(), Violation> {
        let me = (osd.id, osd.life);
        let known = *self.orderers.entry((pg, interval)).or_insert(me);
        if known == me {
            return Ok(());
        }
        let process = |(osd, life): (OsdId, u32)| format!("{osd} in its life {life}");
        let detail = format!("{pg}, interval {interval}: {} after {}", process(me), process(known));
        Err(("two processes order in one interval", detail))
    }

    /// Checks an answer of `osd` to a client under `interval`, with leases that were checked at `judged`. It does not matter
    /// how much later the answer is sent: it could be in transit for that time as well.
    pub fn answered(
        &mut self,
        osds: &[Osd],
        view: &MapView,
        osd: u32,
        pg: PgId,
        interval: Interval,
        (wrote, judged): (Option<Eversion>, Nanos),
    ) -> Result<(), Violation> {
        self.in_order(OsdId(osd), pg, interval, judged)?;
        let Some(version) = wrote else { return Ok(()) };
        self.acknowledged.entry(pg).or_default().insert(version);
        match view.map.membership(pg) {
            // After a restore the map may be older than the records of its OSDs.
            Some(membership) if self.is_newest(pg, membership) => self.are_held(osds, pg, membership),
            _ => Ok(()),
        }
    }

    /// Checks that no earlier interval acts after a later one, and that one OSD acts in each.
    fn in_order(&mut self, osd: OsdId, pg: PgId, interval: Interval, judged: Nanos) -> Result<(), Violation> {
        let of_pg = self.acted.entry(pg).or_default();
        let new = Acted { osd, first: judged, last: judged };
        let own = of_pg.entry(interval).or_insert(new);
        own.first = own.first.min(judged);
        own.last = own.last.max(judged);
        let other = (own.osd != osd).then_some((interval, *own));
        let later = || of_pg.range(interval..).skip(1).find(|(_, acted)| acted.first <= judged);
        let earlier = || of_pg.range(..interval).find(|(_, acted)| acted.last > judged);
        let found = other.or_else(|| later().or_else(earlier).map(|(interval, acted)| (*interval, *acted)));
        match found {
            None => Ok(()),
            Some((against, acted)) => {
                let detail =
                    format!("{pg}: {osd} in interval {interval}, {} in interval {against}", acted.osd);
                Err(("an earlier interval acts after a later one", detail))
            }
        }
    }

    /// Checks an answer of `osd` to a client that an object is unreadable: no other in-sync member may have a copy of it. The
    /// primary's own copy is checked when it answers, because later requests may create the object again.
    pub fn check_unreadable(
        &self,
        osds: &[Osd],
        osd: u32,
        pg: PgId,
        object: &ObjectId,
        interval: Interval,
    ) -> Result<(), Violation> {
        let Some(membership) = self.highest.get(&pg).filter(|newest| newest.interval == interval) else {
            return Ok(());
        };
        let members = membership.in_sync.iter().filter_map(|m| osds.iter().find(|osd| osd.member() == *m));
        let mut others = members.filter(|member| member.id.0 != osd);
        match others.find(|osd| osd.has_current_copy(pg, object)) {
            Some(osd) => Err((
                "an object is refused that a member in sync has",
                format!("{object} of {pg}: {}", osd.id),
            )),
            None => Ok(()),
        }
    }

    /// Checks a map that became durable.
    pub fn published(&mut self, osds: &[Osd], view: &MapView) -> Result<(), Violation> {
        for pg in view.up.keys() {
            let Some(membership) = view.map.membership(*pg) else { continue };
            if !self.is_newest(*pg, membership) {
                continue;
            }
            if let Some(proposed) = self.proposed.get_mut(pg) {
                proposed.retain(|proposed| proposed.interval > membership.interval);
            }
            let known = self.highest.insert(*pg, membership.clone());
            if known.as_ref() != Some(membership) {
                if let Some(known) = known.filter(|known| known.interval == membership.interval) {
                    let detail = format!("{pg}: {known:?} and {membership:?}");
                    return Err(("one interval, two memberships", detail));
                }
                self.are_held(osds, *pg, membership)?;
            }
        }
        Ok(())
    }

    fn is_newest(&self, pg: PgId, membership: &PgMembership) -> bool {
        self.highest.get(&pg).is_none_or(|known| known.interval <= membership.interval)
    }

    /// Checks that the last acknowledged writes are durable on every in-sync member whose disk is intact.
    fn are_held(&self, osds: &[Osd], pg: PgId, membership: &PgMembership) -> Result<(), Violation> {
        let Some(acknowledged) = self.acknowledged.get(&pg).filter(|_| !self.given_up.contains(&pg.pool))
        else {
            return Ok(());
        };
        for member in &membership.in_sync {
            let Some(osd) = osds.iter().find(|osd| osd.member() == *member) else { continue };
            let absent = acknowledged.iter().rev().take(LAST_ACKNOWLEDGED).find(|v| !holds(osd, pg, **v));
            if let Some(version) = absent {
                let disk = osd.disk();
                let head = disk.durable().collections.get(&pg).and_then(|c| c.log.keys().next_back());
                let detail = format!(
                    "{pg}: {} is in sync in interval {} but lacks {version}; its durable log ends at {head:?}",
                    member.osd, membership.interval
                );
                return Err(("an in-sync disk lacks an acknowledged write", detail));
            }
            let latest = acknowledged.iter().rev().take(LAST_ACKNOWLEDGED);
            for (version, (object, has)) in
                latest.filter_map(|v| Some((v, lacking(osd.disk().durable(), pg, *v)?)))
            {
                if !osd.durably_lacks(pg, &object) {
                    let detail = format!("{object} of {pg} at {version} on {}: {has}", member.osd);
                    return Err(("an in-sync disk lacks an acknowledged content", detail));
                }
            }
        }
        Ok(())
    }

    /// Checks that no two OSDs serve the same PG at one time. `changed` is the only OSD whose state has changed.
    pub fn check_single_server(&self, osds: &[Osd], changed: u32, now: Nanos) -> Result<(), Violation> {
        let me = &osds[changed as usize];
        for pg in me.serving(now) {
            if let Some(other) = osds.iter().find(|osd| osd.id != me.id && osd.serves(pg, now)) {
                let intervals: Vec<_> = [me, other]
                    .iter()
                    .map(|osd| osd.with_machine(pg, |machine| machine.interval()))
                    .collect();
                let detail = format!("{pg}: {} and {} in intervals {intervals:?}", me.id, other.id);
                return Err(("two primaries serve at one instant", detail));
            }
        }
        Ok(())
    }

    /// Checks, at rest, that acknowledged writes are durable and that all copies of a PG are the same.
    pub fn check_at_rest(
        &self,
        osds: &[Osd],
        view: &MapView,
        lost: &BTreeSet<PgId>,
    ) -> Result<(), Violation> {
        for pg in view.up.keys().filter(|pg| !lost.contains(*pg)) {
            let Some(membership) = view.map.membership(*pg) else { continue };
            self.are_held(osds, *pg, membership)?;
            let copies: Vec<(&Osd, Collection)> = membership
                .in_sync
                .iter()
                .filter_map(|m| osds.iter().find(|osd| osd.member() == *m))
                .filter_map(|osd| Some((osd, osd.disk().collection(*pg)?.clone())))
                .collect();
            if copies.len() != membership.in_sync.len() {
                let detail = format!("{pg}: {} of {} copies", copies.len(), membership.in_sync.len());
                return Err(("an in-sync member has no copy", detail));
            }
            // The members may have different versions of an unfound object.
            let is_unfound = |object: &ObjectId| copies.iter().all(|(osd, _)| osd.lacks(*pg, object));
            for pair in copies.windows(2) {
                let ((a, first), (b, second)) = (&pair[0], &pair[1]);
                if let Some(difference) = difference(first, second, is_unfound) {
                    let detail = format!("{pg} on {} and {}: {difference}", a.id, b.id);
                    return Err(("replicas differ at rest", detail));
                }
            }
        }
        Ok(())
    }
}

/// PGs with a copy on the disk whose pools are not in the map: the copies are to be removed.
pub fn left_over(image: &Image, map: &OsdMap) -> impl Iterator<Item = PgId> {
    image.collections.keys().copied().filter(|pg| !map.pools.contains_key(&pg.pool))
}

/// Whether the write is durable on the disk: it is in the log, or older than the log's start.
fn holds(osd: &Osd, pg: PgId, version: Eversion) -> bool {
    let in_log = |collection: &Collection| {
        collection.log.contains_key(&version)
            || version <= collection.trimmed
            || collection.log.keys().next().is_some_and(|first| version < *first)
    };
    let Some(held) = osd.disk().durable().collections.get(&pg).map(in_log) else { return false };
    held
        // A copy that was filled from one with an empty log has an empty log too.
        || osd.durable_tail(pg).is_some_and(|tail| version <= tail)
}

fn difference(a: &Collection, b: &Collection, is_unfound: impl Fn(&ObjectId) -> bool) -> Option<String> {
    let names: BTreeSet<&ObjectId> = a.objects.keys().chain(b.objects.keys()).collect();
    let show = |object: Option<&Arc<Object>>| object.map_or("absent".to_owned(), |o| format!("{o:?}"));
    let differs = |name: &&ObjectId| a.objects.get(*name) != b.objects.get(*name);
    let object = names.into_iter().filter(differs).find(|name| !is_unfound(name));
    if let Some(name) = object {
        return Some(format!("{name}: {} and {}", show(a.objects.get(name)), show(b.objects.get(name))));
    }
    let (heads, versions) = ((a.log.keys().next_back(), b.log.keys().next_back()), |c: &Collection| {
        c.log.keys().copied().collect::<BTreeSet<_>>()
    });
    if heads.0 != heads.1 {
        return Some(format!("logs end at {:?} and {:?}", heads.0, heads.1));
    }
    let (mine, theirs) = (versions(a), versions(b));
    let from = mine.first().max(theirs.first()).copied()?;
    let shared = |set: &BTreeSet<Eversion>| set.range(from..).copied().collect::<Vec<_>>();
    let entry =
        a.log.iter().find(|(version, entry)| b.log.get(*version).is_some_and(|other| other != *entry));
    if shared(&mine) != shared(&theirs) {
        return Some(format!("logs differ from {from} on: {:?} and {:?}", shared(&mine), shared(&theirs)));
    }
    entry.map(|(version, _)| format!("log entries {version} differ"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;
    use bytes::Bytes;

    fn collection(versions: &[u64], data: &[u8]) -> Collection {
        let mut collection = Collection::default();
        for version in versions {
            collection.log.insert(Eversion::new(Interval(1), *version), Bytes::new());
        }
        let object = Object { data: data.into(), ..Object::default() };
        collection.objects.insert(ObjectId::new(PoolId(1), "", "", "o"), Arc::new(object));
        collection
    }

    #[test]
    fn what_is_left_of_deleted_pools_is_found() {
        let map = Scenario::of(1).first_map();
        let [kept, deleted] = [1, 77].map(|pool| PgId::new(PoolId(pool), 0));
        let mut image = Image::default();
        image.collections.insert(kept, Collection::default());
        assert_eq!(left_over(&image, &map).next(), None);
        image.collections.insert(deleted, Collection::default());
        assert!(left_over(&image, &map).eq([deleted]));
    }

    #[test]
    fn copies_may_differ_only_in_how_far_their_logs_reach_back() {
        let difference = |a: &Collection, b: &Collection| difference(a, b, |_| false);
        assert_eq!(difference(&collection(&[1, 2, 3], b"x"), &collection(&[2, 3], b"x")), None);
        for other in [
            collection(&[2, 3], b"y"),
            collection(&[2, 4], b"x"),
            collection(&[2], b"x"),
            collection(&[1, 3], b"x"),
        ] {
            assert!(difference(&collection(&[1, 2, 3], b"x"), &other).is_some(), "{other:?}");
        }
    }
}
