//! The space that the stores of other members have left, according to their messages (rule R8).
//!
//! A member that can't apply an ordered update must stop, so writes are delayed or refused before they are ordered. An OSD's
//! report is only as recent as its last message, and other primaries write to it too; the space between the full ratio and the
//! end of the device compensates for that.

use nacre_types::id_map::IdMap;
use nacre_types::ids::OsdId;

/// A member with more space is not watched: nothing in flight can fill it.
const PLENTY_BYTES: u64 = 4 << 30;

/// Whether a write fits all members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpaceCheck {
    /// It does.
    Yes,
    /// It would fit without the writes in flight: to be tried again.
    Later,
    /// A member is too full for it.
    No,
}

#[derive(Clone, Copy, Debug, Default)]
struct Member {
    left_bytes: u64,
    /// The bytes that were written to it and not answered yet.
    in_flight_bytes: u64,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct MemberSpace {
    members: IdMap<OsdId, Member>,
    /// The number of members with less than [`PLENTY_BYTES`]; while there are none, nothing is checked.
    scarce: usize,
}

impl MemberSpace {
    /// Records the space that a member's message reports.
    pub(super) fn set_available(&mut self, osd: OsdId, left_bytes: u64) {
        if self.scarce == 0 && left_bytes >= PLENTY_BYTES {
            return;
        }
        let member = self.members.entry(osd).or_insert(Member { left_bytes: u64::MAX, in_flight_bytes: 0 });
        self.scarce -= usize::from(member.left_bytes < PLENTY_BYTES);
        self.scarce += usize::from(left_bytes < PLENTY_BYTES);
        member.left_bytes = left_bytes;
    }

    /// The space that a member's store has left, if it is scarce.
    pub(super) fn left(&self, osd: OsdId) -> Option<u64> {
        self.members.get(&osd).map(|member| member.left_bytes)
    }

    /// Forgets members that are gone.
    pub(super) fn retain(&mut self, keep: impl Fn(OsdId) -> bool) {
        self.members.retain(|osd, _| keep(*osd));
        self.scarce = self.members.values().filter(|member| member.left_bytes < PLENTY_BYTES).count();
    }

    /// Whether any member must be watched.
    pub(super) fn is_scarce(&self) -> bool {
        self.scarce > 0
    }

    /// Whether a member's store accepts nothing more, as far as is known.
    pub(super) fn is_full(&self, osd: OsdId) -> bool {
        self.scarce > 0 && self.members.get(&osd).is_some_and(|member| member.left_bytes == 0)
    }

    /// Whether `bytes` more fit `members`.
    pub(super) fn fits(&self, members: impl Iterator<Item = OsdId>, bytes: u64) -> SpaceCheck {
        let mut fit = SpaceCheck::Yes;
        for osd in members {
            let Some(member) = self.members.get(&osd) else { continue };
            if bytes > member.left_bytes {
                return SpaceCheck::No;
            }
            if bytes.saturating_add(member.in_flight_bytes) > member.left_bytes {
                fit = SpaceCheck::Later;
            }
        }
        fit
    }

    /// Records that `bytes` are in flight to `members`.
    pub(super) fn add_inflight(&mut self, members: impl Iterator<Item = OsdId>, bytes: u64) {
        for osd in members {
            if let Some(member) = self.members.get_mut(&osd) {
                member.in_flight_bytes = member.in_flight_bytes.saturating_add(bytes);
            }
        }
    }

    /// Records that `bytes` to `members` have arrived, or never will.
    pub(super) fn remove_inflight(&mut self, members: impl Iterator<Item = OsdId>, bytes: u64) {
        for osd in members {
            if let Some(member) = self.members.get_mut(&osd) {
                member.in_flight_bytes = member.in_flight_bytes.saturating_sub(bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: OsdId = OsdId(1);
    const B: OsdId = OsdId(2);

    #[test]
    fn the_fullest_member_decides() {
        let mut space = MemberSpace::default();
        space.set_available(A, PLENTY_BYTES);
        assert!(!space.is_scarce());
        space.set_available(A, 100);
        space.set_available(B, PLENTY_BYTES);
        assert!(space.is_scarce());
        let both = || [A, B].into_iter();
        assert_eq!(space.fits(both(), 100), SpaceCheck::Yes);
        assert_eq!(space.fits(both(), 101), SpaceCheck::No);
        assert_eq!(space.fits([B].into_iter(), 101), SpaceCheck::Yes);
        space.add_inflight(both(), 60);
        assert_eq!(space.fits(both(), 40), SpaceCheck::Yes);
        assert_eq!(space.fits(both(), 41), SpaceCheck::Later);
        space.remove_inflight(both(), 60);
        assert_eq!(space.fits(both(), 100), SpaceCheck::Yes);
        space.set_available(A, PLENTY_BYTES);
        assert!(!space.is_scarce());
        space.set_available(B, 5);
        assert!(!space.is_full(B));
        space.set_available(B, 0);
        assert!(space.is_full(B) && !space.is_full(A));
        space.retain(|osd| osd != B);
        assert!(!space.is_full(B));
        assert!(!space.is_scarce());
    }
}
