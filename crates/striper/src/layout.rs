//! Maps the bytes of a striped object to pieces with Ceph's file layout, which is RAID 0 over sets of objects.
//!
//! `stripe_count` pieces make up an object set. Within a set, units of `stripe_unit` bytes go to its pieces in turn until each
//! piece holds `object_size` bytes; then the next set begins. The module is pure arithmetic.

use nacre_engine::{Error, Result};
use nacre_types::errno::Errno;

/// Stripe units and object sizes are multiples of this many bytes (`CEPH_MIN_STRIPE_UNIT`).
pub const MIN_STRIPE_UNIT: u32 = 1 << 16;

/// The layout of a striped object. Sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub(super) stripe_unit: u64,
    pub(super) stripe_count: u64,
    pub(super) object_size: u64,
}

impl Default for Layout {
    /// Libradosstriper's default: pieces of 4 MiB, one after another.
    fn default() -> Layout {
        Layout { stripe_unit: 4 << 20, stripe_count: 1, object_size: 4 << 20 }
    }
}

/// The part of a range that lies in one piece: contiguous in the piece, and in `parts` of the caller's buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PieceExtent {
    /// The piece's number.
    pub piece: u64,
    /// Offset of the part in the piece.
    pub offset: u64,
    /// Its length.
    pub len: u64,
    /// Positions and lengths in the buffer, in the piece's order.
    pub parts: Vec<(usize, usize)>,
}

fn invalid(detail: String) -> Error {
    Error::Invalid { errno: Errno::EINVAL, detail }
}

fn check_size(what: &str, size: u32) -> Result<()> {
    if size == 0 || !size.is_multiple_of(MIN_STRIPE_UNIT) {
        return Err(invalid(format!("a {what} of {size} bytes is not a multiple of {MIN_STRIPE_UNIT}")));
    }
    Ok(())
}

impl Layout {
    /// Creates a layout for new objects. Fails with EINVAL unless unit and object size are multiples of [`MIN_STRIPE_UNIT`],
    /// the object size is a multiple of the unit, and the stripe count is not 0.
    pub fn new(stripe_unit: u32, stripe_count: u32, object_size: u32) -> Result<Layout> {
        let mut layout = Layout::default();
        layout.set_stripe_unit(stripe_unit)?;
        layout.set_stripe_count(stripe_count)?;
        layout.set_object_size(object_size)?;
        Ok(layout)
    }

    /// The layout stored in an object, or `None` if it is invalid.
    pub(super) fn from_stored(stripe_unit: u32, stripe_count: u32, object_size: u32) -> Option<Layout> {
        let (stripe_unit, stripe_count) = (u64::from(stripe_unit), u64::from(stripe_count));
        let layout = Layout { stripe_unit, stripe_count, object_size: object_size.into() };
        (layout.check().is_ok() && stripe_count > 0).then_some(layout)
    }

    /// Sets the number of bytes that go to one piece before the next one. Whether the object size fits is checked when an object
    /// is created, as in libradosstriper, because callers set one after the other.
    pub fn set_stripe_unit(&mut self, stripe_unit: u32) -> Result<()> {
        check_size("stripe unit", stripe_unit)?;
        self.stripe_unit = stripe_unit.into();
        Ok(())
    }

    /// Sets the number of pieces that are written in turn.
    pub fn set_stripe_count(&mut self, stripe_count: u32) -> Result<()> {
        if stripe_count == 0 {
            return Err(invalid("there must be a stripe".to_owned()));
        }
        self.stripe_count = stripe_count.into();
        Ok(())
    }

    /// Sets the size of a full piece, which must be a multiple of the current stripe unit.
    pub fn set_object_size(&mut self, object_size: u32) -> Result<()> {
        check_size("object size", object_size)?;
        let changed = Layout { object_size: object_size.into(), ..*self };
        changed.check()?;
        *self = changed;
        Ok(())
    }

    /// Bytes that go to one piece before the next one.
    pub fn stripe_unit(&self) -> u64 {
        self.stripe_unit
    }

    /// Number of pieces that are written in turn.
    pub fn stripe_count(&self) -> u64 {
        self.stripe_count
    }

    /// Bytes of a full piece.
    pub fn object_size(&self) -> u64 {
        self.object_size
    }

    /// Fails with EINVAL unless a piece holds a whole number of units.
    pub fn check(&self) -> Result<()> {
        let Layout { stripe_unit, object_size, .. } = *self;
        if stripe_unit == 0 || object_size == 0 || !object_size.is_multiple_of(stripe_unit) {
            return Err(invalid(format!(
                "an object size of {object_size} bytes is not a multiple of the stripe unit of {stripe_unit}"
            )));
        }
        Ok(())
    }

    fn set_size(&self) -> u64 {
        // Neither factor exceeds 32 bits.
        self.object_size * self.stripe_count
    }

    /// Number of pieces that an object of `size` bytes may have; their numbers are below it. The first piece always exists.
    pub fn piece_count(&self, size: u64) -> u64 {
        let Some(last) = size.checked_sub(1) else { return 1 };
        let set = last / self.set_size();
        let in_set = (last % self.set_size() / self.stripe_unit + 1).min(self.stripe_count);
        set * self.stripe_count + in_set
    }

    /// Length of piece `piece` of an object of `size` bytes without holes.
    pub fn piece_len(&self, piece: u64, size: u64) -> u64 {
        let (set, position) = (piece / self.stripe_count, piece % self.stripe_count);
        let begin = set.saturating_mul(self.set_size());
        let in_set = size.saturating_sub(begin).min(self.set_size());
        let stripe = self.stripe_unit * self.stripe_count;
        let tail = (in_set % stripe).saturating_sub(position * self.stripe_unit).min(self.stripe_unit);
        in_set / stripe * self.stripe_unit + tail
    }

    /// The parts of a range by piece, in order of piece numbers.
    pub fn extents(&self, offset: u64, len: u64) -> Vec<PieceExtent> {
        let mut extents: Vec<PieceExtent> = Vec::new();
        let (mut at, end) = (offset, offset + len);
        let units_in_piece = self.object_size / self.stripe_unit;
        while at < end {
            let (unit, in_unit) = (at / self.stripe_unit, at % self.stripe_unit);
            let (stripe, position) = (unit / self.stripe_count, unit % self.stripe_count);
            let piece = stripe / units_in_piece * self.stripe_count + position;
            let in_piece = stripe % units_in_piece * self.stripe_unit + in_unit;
            let part = (self.stripe_unit - in_unit).min(end - at);
            let place = ((at - offset) as usize, part as usize);
            // The parts of a range in one piece are contiguous there, and at most a stripe apart in the range.
            let recent = extents.len().saturating_sub(self.stripe_count as usize);
            match extents[recent..].iter_mut().find(|known| known.piece == piece) {
                Some(known) => {
                    known.len += part;
                    match known.parts.last_mut() {
                        Some(last) if last.0 + last.1 == place.0 => last.1 += place.1,
                        _ => known.parts.push(place),
                    }
                }
                None => extents.push(PieceExtent { piece, offset: in_piece, len: part, parts: vec![place] }),
            }
            at += part;
        }
        extents.sort_by_key(|extent| extent.piece);
        extents
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const MIB: u64 = 1 << 20;

    fn lengths(layout: &Layout, size: u64) -> BTreeMap<u64, u64> {
        layout.extents(0, size).into_iter().map(|extent| (extent.piece, extent.offset + extent.len)).collect()
    }

    #[test]
    fn the_published_example_makes_four_full_and_four_partial_pieces() {
        let layout = Layout::new(8 << 20, 4, 24 << 20).unwrap();
        let made = lengths(&layout, 128 * MIB);
        let wanted = [24, 24, 24, 24, 8, 8, 8, 8].map(|mib| mib * MIB);
        assert_eq!(made.into_values().collect::<Vec<_>>(), wanted);
        // MiB 0x20 is the first of the second stripe, in the first piece's second unit; 0x60 begins the second set.
        let at = |mib: u64| layout.extents(mib * MIB, MIB)[0].clone();
        assert_eq!((at(0x08).piece, at(0x08).offset), (1, 0));
        assert_eq!((at(0x20).piece, at(0x20).offset), (0, 8 * MIB));
        assert_eq!((at(0x5f).piece, at(0x5f).offset), (3, 23 * MIB));
        assert_eq!((at(0x60).piece, at(0x60).offset), (4, 0));
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused() {
        let errno = |result: Result<Layout>| result.unwrap_err().errno();
        assert_eq!(errno(Layout::new(0, 1, 4 << 20)), Errno::EINVAL);
        assert_eq!(errno(Layout::new(65535, 1, 4 << 20)), Errno::EINVAL);
        assert_eq!(errno(Layout::new(4 << 20, 0, 4 << 20)), Errno::EINVAL);
        assert_eq!(errno(Layout::new(4 << 20, 1, 6 << 20)), Errno::EINVAL);
        assert_eq!(errno(Layout::new(4 << 20, 1, 2 << 20)), Errno::EINVAL);
        assert!(Layout::new(4 << 20, 1, 4 << 20).is_ok());
        let mut unfit = Layout::default();
        unfit.set_stripe_unit(8 << 20).unwrap();
        assert_eq!(unfit.check().unwrap_err().errno(), Errno::EINVAL);
    }

    #[test]
    fn every_byte_has_one_place_and_lengths_agree() {
        let unit = u64::from(MIN_STRIPE_UNIT);
        for (units, count) in [(1, 1), (1, 3), (2, 1), (3, 4)] {
            let layout = Layout { stripe_unit: unit, stripe_count: count, object_size: units * unit };
            let mut seen: BTreeMap<u64, u64> = BTreeMap::new();
            let total = 2 * layout.set_size() + unit + 7;
            let mut at = 0;
            // In steps that do not end at boundaries, some of them longer than a stripe.
            for step in [unit / 3 + 1, layout.set_size() - 5, 1, unit * count + 11].into_iter().cycle() {
                if at >= total {
                    break;
                }
                let step = step.min(total - at);
                let mut covered = 0;
                for extent in layout.extents(at, step) {
                    let end = seen.entry(extent.piece).or_default();
                    assert_eq!(*end, extent.offset, "piece {} of {layout:?} at {at}", extent.piece);
                    *end += extent.len;
                    assert!(*end <= layout.object_size);
                    assert_eq!(extent.len, extent.parts.iter().map(|part| part.1 as u64).sum::<u64>());
                    covered += extent.len;
                }
                assert_eq!(covered, step);
                at += step;
                assert_eq!(seen.len() as u64, seen.keys().last().unwrap() + 1);
                assert_eq!(layout.piece_count(at), seen.len() as u64, "{layout:?} at {at}");
                for (piece, len) in &seen {
                    assert_eq!(layout.piece_len(*piece, at), *len, "piece {piece} of {layout:?} at {at}");
                }
                assert_eq!(layout.piece_len(seen.len() as u64, at), 0);
            }
        }
    }

    #[test]
    fn huge_offsets_do_not_overflow() {
        let layout = Layout::new(!0xffff, u32::MAX, !0xffff).unwrap();
        let end = i64::MAX as u64;
        assert_eq!(layout.extents(end - 10, 10).iter().map(|extent| extent.len).sum::<u64>(), 10);
        assert!(layout.piece_count(end) > 0 && layout.piece_len(0, end) > 0);
        assert_eq!(Layout::default().piece_count(end), (end - 1) / (4 << 20) + 1);
    }
}
