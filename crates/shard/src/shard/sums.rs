//! Sums over a PG's objects, as its primary reports them.
//!
//! They are not persisted. When a PG becomes active here, the objects are counted in the background in object order. Changes
//! behind the position of the count are added immediately; changes ahead of it are counted later.

use nacre_exec::SumsDelta;
use nacre_types::object::ObjectId;
use nacre_types::stats::ObjectSums;

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub(super) struct SumsTracker {
    counted: ObjectSums,
    /// The position at which counting continues; `None` before it starts.
    position: Option<ObjectId>,
    complete: bool,
}

impl SumsTracker {
    /// The sums so far.
    pub(super) fn current(&self) -> ObjectSums {
        self.counted
    }

    /// Whether all objects have been counted.
    pub(super) fn is_complete(&self) -> bool {
        self.complete
    }

    /// The position at which counting continues.
    pub(super) fn position(&self) -> Option<&ObjectId> {
        self.position.as_ref()
    }

    /// Records that the objects up to `position` (`None`: all) have been counted, with the sums `delta`.
    pub(super) fn add_counted(&mut self, delta: &SumsDelta, position: Option<ObjectId>) {
        self.add(delta);
        self.complete = position.is_none();
        self.position = position;
    }

    /// Records the change of an object.
    pub(super) fn apply_change(&mut self, object: &ObjectId, delta: &SumsDelta) {
        let behind = self.complete || self.position.as_ref().is_some_and(|position| object < position);
        if behind {
            self.add(delta);
        }
    }

    fn add(&mut self, delta: &SumsDelta) {
        let sums = &mut self.counted;
        for (sum, delta) in [
            (&mut sums.bytes, delta.bytes),
            (&mut sums.objects, delta.objects),
            (&mut sums.dirty, delta.dirty),
            (&mut sums.whiteouts, delta.whiteouts),
            (&mut sums.omap_objects, delta.omap_objects),
            (&mut sums.dirty_bytes, delta.dirty_bytes),
        ] {
            *sum = sum.saturating_add_signed(delta);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::ids::PoolId;

    #[test]
    fn changes_count_once_whichever_side_of_the_position_they_are_on() {
        let mut objects: Vec<_> =
            ["a", "b", "c"].into_iter().map(|name| ObjectId::new(PoolId(1), "", "", name)).collect();
        objects.sort();
        let one = SumsDelta { bytes: 10, objects: 1, ..SumsDelta::default() };
        let mut sums = SumsTracker::default();
        sums.apply_change(&objects[0], &one);
        assert_eq!(sums.current().objects, 0, "counting will find it");
        sums.add_counted(&one, Some(objects[1].clone()));
        sums.apply_change(&objects[0], &SumsDelta { bytes: 5, ..SumsDelta::default() });
        sums.apply_change(&objects[1], &one);
        assert_eq!((sums.current().objects, sums.current().bytes), (1, 15));
        sums.add_counted(&one, None);
        sums.apply_change(&objects[2], &one);
        assert_eq!((sums.current().objects, sums.current().bytes, sums.is_complete()), (3, 35, true));
    }
}
