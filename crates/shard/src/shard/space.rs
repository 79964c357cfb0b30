//! What the stores of other members may still take, as their messages say (rule R8).
//!
//! A member that can't apply what was ordered must stop, so writes are held back or refused before they are ordered.
//! What one OSD says of itself is only as new as its last message, and other primaries write to it too; the space between
//! the full ratio and the device's end makes up for that.

use nacre_types::id_map::IdMap;
use nacre_types::ids::OsdId;

/// Above this a member is not watched closely: nothing in flight can fill it.
const PLENTY_BYTES: u64 = 4 << 30;

/// Whether a write fits all members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// It does.
    Yes,
    /// It would, but for what is on its way: to be tried again.
    Later,
    /// A member is too full for it.
    No,
}

#[derive(Clone, Copy, Debug, Default)]
struct Member {
    left_bytes: u64,
    /// Written to it and not answered yet.
    in_flight_bytes: u64,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct MemberSpace {
    members: IdMap<OsdId, Member>,
    /// Members that are not above [`PLENTY_BYTES`]; while there are none, nothing is looked at.
    scarce: usize,
}

impl MemberSpace {
    /// A member's message said how much its store may still take.
    pub(super) fn heard(&mut self, osd: OsdId, left_bytes: u64) {
        if self.scarce == 0 && left_bytes >= PLENTY_BYTES {
            return;
        }
        let member = self.members.entry(osd).or_insert(Member { left_bytes: u64::MAX, in_flight_bytes: 0 });
        self.scarce -= usize::from(member.left_bytes < PLENTY_BYTES);
        self.scarce += usize::from(left_bytes < PLENTY_BYTES);
        member.left_bytes = left_bytes;
    }

    /// What a member's store may still take, where that is little.
    pub(super) fn left(&self, osd: OsdId) -> Option<u64> {
        self.members.get(&osd).map(|member| member.left_bytes)
    }

    /// Forgets members that are gone.
    pub(super) fn retain(&mut self, keep: impl Fn(OsdId) -> bool) {
        self.members.retain(|osd, _| keep(*osd));
        self.scarce = self.members.values().filter(|member| member.left_bytes < PLENTY_BYTES).count();
    }

    /// Whether any member has to be watched.
    pub(super) fn is_scarce(&self) -> bool {
        self.scarce > 0
    }

    /// Whether a member's store takes nothing more, as far as is known.
    pub(super) fn is_full(&self, osd: OsdId) -> bool {
        self.scarce > 0 && self.members.get(&osd).is_some_and(|member| member.left_bytes == 0)
    }

    /// Whether `bytes` more fit `members`.
    pub(super) fn fits(&self, members: impl Iterator<Item = OsdId>, bytes: u64) -> Fit {
        let mut fit = Fit::Yes;
        for osd in members {
            let Some(member) = self.members.get(&osd) else { continue };
            if bytes > member.left_bytes {
                return Fit::No;
            }
            if bytes.saturating_add(member.in_flight_bytes) > member.left_bytes {
                fit = Fit::Later;
            }
        }
        fit
    }

    /// `bytes` are on their way to `members`.
    pub(super) fn begin(&mut self, members: impl Iterator<Item = OsdId>, bytes: u64) {
        for osd in members {
            if let Some(member) = self.members.get_mut(&osd) {
                member.in_flight_bytes = member.in_flight_bytes.saturating_add(bytes);
            }
        }
    }

    /// They have arrived, or never will.
    pub(super) fn end(&mut self, members: impl Iterator<Item = OsdId>, bytes: u64) {
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
        space.heard(A, PLENTY_BYTES);
        assert!(!space.is_scarce());
        space.heard(A, 100);
        space.heard(B, PLENTY_BYTES);
        assert!(space.is_scarce());
        let both = || [A, B].into_iter();
        assert_eq!(space.fits(both(), 100), Fit::Yes);
        assert_eq!(space.fits(both(), 101), Fit::No);
        assert_eq!(space.fits([B].into_iter(), 101), Fit::Yes);
        space.begin(both(), 60);
        assert_eq!(space.fits(both(), 40), Fit::Yes);
        assert_eq!(space.fits(both(), 41), Fit::Later);
        space.end(both(), 60);
        assert_eq!(space.fits(both(), 100), Fit::Yes);
        space.heard(A, PLENTY_BYTES);
        assert!(!space.is_scarce());
        space.heard(B, 5);
        assert!(!space.is_full(B));
        space.heard(B, 0);
        assert!(space.is_full(B) && !space.is_full(A));
        space.retain(|osd| osd != B);
        assert!(!space.is_full(B));
        assert!(!space.is_scarce());
    }
}
