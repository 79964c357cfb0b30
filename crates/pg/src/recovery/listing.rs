//! Listings for backfill: the objects of both sides with their versions, and their differences.

use super::Backfill;
use crate::api::{PeerMsg, PgCommand};
use crate::damage::UNKNOWN_VERSION;
use crate::pg::{ListPurpose, Pg};
use crate::pg_info::is_temp;
use nacre_types::ids::{Eversion, Interval, OsdId};
use nacre_types::object::ObjectId;
use std::collections::{BTreeMap, BTreeSet};

impl Pg {
    pub(crate) fn on_listed(
        &mut self,
        list: u64,
        mut objects: Vec<(ObjectId, Eversion)>,
        end: bool,
        out: &mut Vec<PgCommand>,
    ) {
        let last = objects.last().map(|(o, _)| o.clone());
        objects.retain(|(object, _)| !is_temp(object));
        if objects.is_empty() && !end {
            // The list has only temporary objects: their position still advances the listing.
            objects.extend(last.map(|o| (o, Eversion::default())));
        }
        match self.listings.remove(&list) {
            Some(ListPurpose::Scan { to, interval, scan }) if self.accepts_primary(to, interval) => {
                // The interval of the request: the primary may learn of a later one after this member.
                out.push(PgCommand::Send { to, msg: PeerMsg::ScanReply { interval, scan, objects, end } });
            }
            Some(ListPurpose::Backfill { osd, scan }) => {
                self.list_missing(&mut objects, end);
                if let Some(backfill) = self.backfill_of(osd, scan) {
                    backfill.mine = Some((objects, end));
                }
            }
            Some(ListPurpose::Scan { .. }) | None => {}
        }
    }

    /// Adds the versions of objects that this copy lacks to a listing. So a member's version of them does not count as equal,
    /// and a member without them does not consider them absent. If the version is not known, the version on disk remains.
    fn list_missing(&self, objects: &mut Vec<(ObjectId, Eversion)>, end: bool) {
        let last = objects.last().map(|(object, _)| object.clone()).filter(|_| !end);
        for (object, needed) in &self.missing {
            match objects.binary_search_by(|(listed, _)| listed.cmp(object)) {
                Ok(at) if *needed > UNKNOWN_VERSION => objects[at].1 = *needed,
                Ok(_) => {}
                Err(at) if end || last.as_ref().is_some_and(|last| object < last) => {
                    objects.insert(at, (object.clone(), *needed));
                }
                Err(_) => {}
            }
        }
    }

    pub(crate) fn on_scan_reply(
        &mut self,
        from: OsdId,
        interval: Interval,
        scan: u64,
        objects: Vec<(ObjectId, Eversion)>,
        end: bool,
    ) {
        if !self.reign_includes(interval) {
            return;
        }
        let now = self.now;
        let Some(backfill) = self.backfill_of(from, scan) else { return };
        backfill.theirs = Some((objects, end));
        // A long range without differences needs no objects, but is progress.
        if let Some(catching_up) = self.primary.as_mut().and_then(|p| p.catching_up.get_mut(&from)) {
            catching_up.heard_at = now;
        }
    }

    /// The backfill that waits for the answers to this scan; answers to earlier scans are ignored.
    fn backfill_of(&mut self, osd: OsdId, scan: u64) -> Option<&mut Backfill> {
        let catching_up = self.primary.as_mut()?.catching_up.get_mut(&osd)?;
        catching_up.backfill.as_mut().filter(|b| b.scan == Some(scan))
    }
}

/// Compares two listings from `cursor` on. Returns the range that both cover, as (last object, whether all is covered), and the
/// objects in it that differ.
pub(super) fn compare(
    cursor: Option<&ObjectId>,
    (mine, my_end): &(Vec<(ObjectId, Eversion)>, bool),
    (theirs, their_end): &(Vec<(ObjectId, Eversion)>, bool),
) -> ((Option<ObjectId>, bool), BTreeSet<ObjectId>) {
    let last = |list: &[(ObjectId, Eversion)], end: bool| {
        if end { None } else { list.last().map(|(object, _)| object.clone()) }
    };
    let bound = [last(mine, *my_end), last(theirs, *their_end)].into_iter().flatten().min();
    let inside = |o: &ObjectId| cursor.is_none_or(|c| o > c) && bound.as_ref().is_none_or(|b| o <= b);
    let select = |list: &[(ObjectId, Eversion)]| -> BTreeMap<ObjectId, Eversion> {
        list.iter().filter(|(o, _)| inside(o) && !is_temp(o)).cloned().collect()
    };
    let (mine, theirs) = (select(mine), select(theirs));
    // Damaged objects have no version: two of them are not equal.
    let equal = |o: &ObjectId, v: &Eversion| theirs.get(o) == Some(v) && *v != Eversion::default();
    let differing = mine.iter().filter(|(o, v)| !equal(o, v)).map(|(o, _)| o.clone());
    let surplus = theirs.keys().filter(|o| !mine.contains_key(*o)).cloned();
    let work = differing.chain(surplus).collect();
    let whole = bound.is_none();
    ((bound, whole), work)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::ids::PoolId;

    #[test]
    fn what_is_damaged_on_both_sides_is_not_alike() {
        let object = |name: &str| ObjectId::new(PoolId(1), "", "", name);
        let version = |version| Eversion::new(Interval(1), version);
        let listing = |damaged: &[&str]| {
            let versions = ["a", "b", "c"].map(|name| (name, if damaged.contains(&name) { 0 } else { 7 }));
            let entry = |(name, of): (&str, u64)| {
                (object(name), if of == 0 { Eversion::default() } else { version(of) })
            };
            let mut objects: Vec<_> = versions.into_iter().map(entry).collect();
            objects.sort();
            (objects, true)
        };
        let work = |mine: &[&str], theirs: &[&str]| compare(None, &listing(mine), &listing(theirs)).1;
        assert_eq!(work(&[], &[]), BTreeSet::new());
        assert_eq!(work(&[], &["b"]), [object("b")].into());
        assert_eq!(work(&["b"], &[]), [object("b")].into());
        assert_eq!(work(&["b"], &["b"]), [object("b")].into());
    }
}
