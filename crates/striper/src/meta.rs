//! The attributes of the first piece that describe a striped object: libradosstriper's, as decimal text, and Nacre's own
//! (`docs/format/striper.md`).

use super::layout::Layout;
use bytes::Bytes;
use nacre_engine::{Error, Result};
use nacre_types::encoding::DecodeError;
use std::collections::BTreeMap;

/// Libradosstriper's attributes.
pub(super) const STRIPE_UNIT: &str = "striper.layout.stripe_unit";
pub(super) const STRIPE_COUNT: &str = "striper.layout.stripe_count";
pub(super) const OBJECT_SIZE: &str = "striper.layout.object_size";
/// The size in bytes.
pub(super) const SIZE: &str = "striper.size";
/// Libradosstriper's lock, which remains when its client dies. Nothing here takes it.
const LOCK: &str = "lock.striper.lock";

/// The epoch of the object. It changes with every removal, and with every truncation that shrinks the object.
pub(super) const EPOCH: &str = "striper.epoch";
/// A random number that distinguishes an object from earlier and later objects of its name, on the first piece and on others. The
/// epochs of two objects are ordered only as far as clients' clocks are. Objects of earlier releases have the epoch in which the
/// object was created instead.
pub(super) const INSTANCE: &str = "striper.born";
/// On a piece other than the first: 2^64 - 1 - [`INSTANCE`]. With it, two guards distinguish pieces of other objects from pieces
/// without these attributes.
pub(super) const INSTANCE_INVERSE: &str = "striper.born_inverse";
/// On the first piece, of the last truncation: the number of pieces that it left, and the epoch from which on later pieces were
/// created.
pub(super) const LAST_TRUNCATION: &str = "striper.cut";
/// On a piece: 2^64 - 1 - its epoch. An absent value counts as 0, as for the latest possible epoch, so one guard distinguishes
/// pieces of earlier epochs from absent ones.
pub(super) const EPOCH_INVERSE: &str = "striper.age";
/// All pieces that may exist have numbers below this value.
pub(super) const PIECE_BOUND: &str = "striper.pieces";
/// A removal or truncation that is not yet completed on all pieces.
pub(super) const UNFINISHED: &str = "striper.unfinished";
/// The value of [`UNFINISHED`] for a removal; for a truncation it is the new size.
pub(super) const REMOVAL: &str = "removed";

/// The attributes that are hidden from users.
const HIDDEN: &[&str] = &[
    STRIPE_UNIT,
    STRIPE_COUNT,
    OBJECT_SIZE,
    SIZE,
    LOCK,
    EPOCH,
    INSTANCE,
    LAST_TRUNCATION,
    PIECE_BOUND,
    UNFINISHED,
];

/// Whether an attribute is the striper's own.
pub(super) fn is_hidden(name: &[u8]) -> bool {
    HIDDEN.iter().any(|hidden| hidden.as_bytes() == name)
}

/// An operation that must be completed before anything is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unfinished {
    Removal,
    Truncation(u64),
}

/// The identity that a piece carries, or will carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PieceIdentity {
    pub(super) born: u64,
    pub(super) epoch: u64,
    /// The earliest epoch that the piece may carry.
    pub(super) floor: u64,
}

/// The result of the last truncation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LastTruncation {
    /// Number of pieces that it left.
    pub(super) pieces: u64,
    /// The epoch after it. Pieces from number `pieces` on were created in this epoch or later.
    pub(super) epoch: u64,
}

/// A striped object as its first piece describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Meta {
    pub(super) layout: Layout,
    pub(super) size: u64,
    pub(super) epoch: u64,
    /// Distinguishes the object from earlier and later objects of its name. 0 if libradosstriper created it.
    pub(super) born: u64,
    pub(super) cut: Option<LastTruncation>,
    /// All pieces have numbers below this one.
    pub(super) pieces: u64,
    pub(super) unfinished: Option<Unfinished>,
}

fn corrupt(name: &str, value: &[u8]) -> Error {
    let detail = format!("attribute {name} is '{}'", String::from_utf8_lossy(value));
    Error::Corrupt(DecodeError::Corrupt { what: "striped object", detail })
}

fn number(attrs: &BTreeMap<Bytes, Bytes>, name: &str) -> Result<Option<u64>> {
    let Some(value) = attrs.get(name.as_bytes()) else { return Ok(None) };
    let text = std::str::from_utf8(value).map_err(|_| corrupt(name, value))?;
    text.parse().map(Some).map_err(|_| corrupt(name, value))
}

impl LastTruncation {
    /// The attribute's value.
    pub(super) fn text(&self) -> String {
        format!("{} {}", self.pieces, self.epoch)
    }

    fn parse(value: &[u8]) -> Result<LastTruncation> {
        let text = std::str::from_utf8(value).map_err(|_| corrupt(LAST_TRUNCATION, value))?;
        let parts = text
            .split_once(' ')
            .and_then(|(pieces, epoch)| Some((pieces.parse().ok()?, epoch.parse().ok()?)));
        parts
            .map(|(pieces, epoch)| LastTruncation { pieces, epoch })
            .ok_or_else(|| corrupt(LAST_TRUNCATION, value))
    }
}

impl Meta {
    /// Whether the object is the same one as `before`: neither removed since nor being removed.
    pub(super) fn is_same_object(&self, before: &Meta) -> bool {
        self.born == before.born && self.unfinished != Some(Unfinished::Removal)
    }

    /// The earliest epoch that a piece of the object may carry. A piece of an earlier epoch is a stray, and so is a piece of
    /// another object of this name: a delayed request created it when the object, or this part of it, no longer existed.
    pub(super) fn min_epoch(&self, piece: u64) -> u64 {
        self.cut.filter(|cut| piece >= cut.pieces).map_or(0, |cut| cut.epoch)
    }

    /// The identity that a piece of the object must carry.
    pub(super) fn piece_identity(&self, piece: u64) -> PieceIdentity {
        PieceIdentity { born: self.born, epoch: self.epoch, floor: self.min_epoch(piece) }
    }

    /// Parses the attributes of a first piece. `None` if they are not those of a striped object.
    pub(super) fn parse(attrs: &BTreeMap<Bytes, Bytes>) -> Result<Option<Meta>> {
        let part = |name: &str| -> Result<Option<u32>> {
            let Some(value) = number(attrs, name)? else { return Ok(None) };
            u32::try_from(value).map(Some).map_err(|_| corrupt(name, value.to_string().as_bytes()))
        };
        let (Some(unit), Some(count), Some(object), Some(size)) =
            (part(STRIPE_UNIT)?, part(STRIPE_COUNT)?, part(OBJECT_SIZE)?, number(attrs, SIZE)?)
        else {
            return Ok(None);
        };
        let layout = Layout::from_stored(unit, count, object)
            .ok_or_else(|| corrupt("striper.layout", format!("{unit} {count} {object}").as_bytes()))?;
        if i64::try_from(size).is_err() {
            return Err(corrupt(SIZE, size.to_string().as_bytes()));
        }
        let unfinished = match attrs.get(UNFINISHED.as_bytes()) {
            None => None,
            Some(value) if value == REMOVAL => Some(Unfinished::Removal),
            Some(_) => number(attrs, UNFINISHED)?.map(Unfinished::Truncation),
        };
        // Libradosstriper sets the size before it writes and does not maintain the number of pieces.
        let pieces = number(attrs, PIECE_BOUND)?.unwrap_or(0).max(layout.piece_count(size));
        let (epoch, born) = (number(attrs, EPOCH)?.unwrap_or(0), number(attrs, INSTANCE)?.unwrap_or(0));
        let cut =
            attrs.get(LAST_TRUNCATION.as_bytes()).map(|value| LastTruncation::parse(value)).transpose()?;
        Ok(Some(Meta { layout, size, epoch, born, cut, pieces, unfinished }))
    }
}

/// The object ([`INSTANCE`]) and the epoch that the attributes of a piece other than the first name. 0 is unknown.
pub(super) fn piece_origin(attrs: &BTreeMap<Bytes, Bytes>) -> Result<(u64, u64)> {
    Ok((number(attrs, INSTANCE)?.unwrap_or(0), number(attrs, EPOCH)?.unwrap_or(0)))
}

/// The name of a piece.
pub(super) fn piece_name(object: &str, piece: u64) -> String {
    format!("{object}.{piece:016x}")
}

/// The striped object whose first piece has this name.
pub(super) fn striped_name(name: &str) -> Option<&str> {
    name.strip_suffix(".0000000000000000").filter(|object| !object.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_fuzz::Target;
    use nacre_types::errno::Errno;

    fn attrs(pairs: &[(&'static str, &'static str)]) -> BTreeMap<Bytes, Bytes> {
        let bytes = |text: &'static str| Bytes::from_static(text.as_bytes());
        pairs.iter().map(|(name, value)| (bytes(name), bytes(value))).collect()
    }

    const THEIRS: &[(&str, &str)] =
        &[(STRIPE_UNIT, "4194304"), (STRIPE_COUNT, "2"), (OBJECT_SIZE, "8388608"), (SIZE, "20000000")];

    #[test]
    fn what_libradosstriper_wrote_is_understood() {
        let meta = Meta::parse(&attrs(THEIRS)).unwrap().unwrap();
        let layout = Layout::new(4 << 20, 2, 8 << 20).unwrap();
        assert_eq!(
            meta,
            Meta { layout, size: 20_000_000, epoch: 0, born: 0, cut: None, pieces: 3, unfinished: None }
        );
        assert_eq!(Meta::parse(&attrs(&THEIRS[1..])).unwrap(), None);
    }

    #[test]
    fn damaged_attributes_are_corruption() {
        for damage in [
            (SIZE, "x"),
            (SIZE, "-1"),
            (OBJECT_SIZE, "5"),
            (STRIPE_UNIT, "0"),
            (UNFINISHED, "?"),
            (LAST_TRUNCATION, "2"),
        ] {
            let damaged = attrs(&[THEIRS, &[damage]].concat());
            assert_eq!(Meta::parse(&damaged).unwrap_err().errno(), Errno::EBADMSG, "{damage:?}");
        }
    }

    /// Encodes the attributes as lines of name and value.
    fn written(meta: &Meta) -> Vec<u8> {
        let Meta { layout, size, epoch, born, cut, pieces, unfinished } = *meta;
        let numbers = [
            (STRIPE_UNIT, layout.stripe_unit()),
            (STRIPE_COUNT, layout.stripe_count()),
            (OBJECT_SIZE, layout.object_size()),
            (SIZE, size),
            (EPOCH, epoch),
            (INSTANCE, born),
            (PIECE_BOUND, pieces),
        ];
        let mut text: String = numbers.iter().map(|(name, number)| format!("{name} {number}\n")).collect();
        if let Some(cut) = cut {
            text += &format!("{LAST_TRUNCATION} {}\n", cut.text());
        }
        match unfinished {
            None => {}
            Some(Unfinished::Removal) => text += &format!("{UNFINISHED} {REMOVAL}\n"),
            Some(Unfinished::Truncation(size)) => text += &format!("{UNFINISHED} {size}\n"),
        }
        text.into_bytes()
    }

    #[test]
    fn fuzz_attributes_of_first_pieces() {
        let meta = Meta::parse(&attrs(THEIRS)).unwrap().unwrap();
        let seeds = [None, Some(Unfinished::Removal), Some(Unfinished::Truncation(77))].map(|unfinished| {
            let cut = unfinished.map(|_| LastTruncation { pieces: 2, epoch: 1_650_000_000_000_000 });
            written(&Meta {
                unfinished,
                cut,
                epoch: 1_700_000_000_000_000,
                born: 1_600_000_000_000_000,
                ..meta
            })
        });
        let corpus = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"));
        let words = [SIZE, PIECE_BOUND, UNFINISHED, REMOVAL, "18446744073709551615", "4294967295", "-", "\n"];
        let target = Target { dictionary: &words, ..Target::new("striper-meta", corpus, seeds.to_vec()) };
        target.run(|input| {
            let mut attrs = BTreeMap::new();
            for line in input.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                let space = line.iter().position(|byte| *byte == b' ')?;
                let part = |part: &[u8]| Bytes::copy_from_slice(part);
                attrs.insert(part(&line[..space]), part(&line[space + 1..]));
            }
            let meta = Meta::parse(&attrs).ok()??;
            // Computations that are done with every accepted object.
            let extents = meta.layout.extents(meta.size, 1);
            assert!(extents.len() == 1 && extents[0].len == 1);
            assert!(meta.pieces >= meta.layout.piece_count(meta.size));
            assert!(meta.layout.piece_len(meta.pieces - 1, meta.size) <= meta.layout.object_size());
            Some(written(&meta))
        });
    }

    #[test]
    fn pieces_are_numbered_in_hexadecimal() {
        assert_eq!(piece_name("Full-5409", 0), "Full-5409.0000000000000000");
        assert_eq!(piece_name("a", 0x1f), "a.000000000000001f");
        assert_eq!(striped_name("Full-5409.0000000000000000"), Some("Full-5409"));
        assert_eq!(striped_name("Full-5409.0000000000000001"), None);
        assert_eq!(striped_name(".0000000000000000"), None);
    }
}
