//! What the first piece says of a striped object: attributes in libradosstriper's encoding, decimal text, and ours beside
//! them (`docs/format/striper.md`).

use super::layout::Layout;
use crate::error::{Error, Result};
use bytes::Bytes;
use nacre_types::encoding::DecodeError;
use std::collections::BTreeMap;

/// Libradosstriper's attributes.
pub(super) const STRIPE_UNIT: &str = "striper.layout.stripe_unit";
pub(super) const STRIPE_COUNT: &str = "striper.layout.stripe_count";
pub(super) const OBJECT_SIZE: &str = "striper.layout.object_size";
/// The size in bytes.
pub(super) const SIZE: &str = "striper.size";
/// Libradosstriper's lock, which it leaves behind when its client dies. Nothing here takes it.
const LOCK: &str = "lock.striper.lock";

/// Which life of the object this is: it changes with every removal and every truncation.
pub(super) const EPOCH: &str = "striper.epoch";
/// All pieces that may exist have numbers below this one.
pub(super) const PIECES: &str = "striper.pieces";
/// A removal or truncation whose pieces are not all done yet.
pub(super) const UNFINISHED: &str = "striper.unfinished";
/// The value of [`UNFINISHED`] for a removal; for a truncation it is the new size.
pub(super) const REMOVAL: &str = "removed";

/// The attributes that users do not see.
const HIDDEN: &[&str] = &[STRIPE_UNIT, STRIPE_COUNT, OBJECT_SIZE, SIZE, LOCK, EPOCH, PIECES, UNFINISHED];

/// Whether an attribute is the striper's own.
pub(super) fn is_hidden(name: &[u8]) -> bool {
    HIDDEN.iter().any(|hidden| hidden.as_bytes() == name)
}

/// What is to be carried to the end before anything is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unfinished {
    Removal,
    Truncation(u64),
}

/// A striped object as its first piece describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Meta {
    pub(super) layout: Layout,
    pub(super) size: u64,
    pub(super) epoch: u64,
    /// All pieces have numbers below.
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

impl Meta {
    /// Reads the attributes of a first piece; `None` where it is no striped object's.
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
        let layout = Layout::stored(unit, count, object)
            .ok_or_else(|| corrupt("striper.layout", format!("{unit} {count} {object}").as_bytes()))?;
        if i64::try_from(size).is_err() {
            return Err(corrupt(SIZE, size.to_string().as_bytes()));
        }
        let unfinished = match attrs.get(UNFINISHED.as_bytes()) {
            None => None,
            Some(value) if value == REMOVAL => Some(Unfinished::Removal),
            Some(_) => number(attrs, UNFINISHED)?.map(Unfinished::Truncation),
        };
        // Libradosstriper sets the size before it writes and knows nothing of our count.
        let pieces = number(attrs, PIECES)?.unwrap_or(0).max(layout.pieces(size));
        Ok(Some(Meta { layout, size, epoch: number(attrs, EPOCH)?.unwrap_or(0), pieces, unfinished }))
    }
}

/// The name of a piece.
pub(super) fn piece_name(object: &str, piece: u64) -> String {
    format!("{object}.{piece:016x}")
}

/// The striped object whose first piece has this name.
pub(super) fn of_first_piece(name: &str) -> Option<&str> {
    name.strip_suffix(".0000000000000000").filter(|object| !object.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
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
        assert_eq!(meta, Meta { layout, size: 20_000_000, epoch: 0, pieces: 3, unfinished: None });
        assert_eq!(Meta::parse(&attrs(&THEIRS[1..])).unwrap(), None);
    }

    #[test]
    fn damaged_attributes_are_corruption() {
        for damage in [(SIZE, "x"), (SIZE, "-1"), (OBJECT_SIZE, "5"), (STRIPE_UNIT, "0"), (UNFINISHED, "?")] {
            let damaged = attrs(&[THEIRS, &[damage]].concat());
            assert_eq!(Meta::parse(&damaged).unwrap_err().errno(), Errno::EBADMSG, "{damage:?}");
        }
    }

    #[test]
    fn pieces_are_numbered_in_hexadecimal() {
        assert_eq!(piece_name("Full-5409", 0), "Full-5409.0000000000000000");
        assert_eq!(piece_name("a", 0x1f), "a.000000000000001f");
        assert_eq!(of_first_piece("Full-5409.0000000000000000"), Some("Full-5409"));
        assert_eq!(of_first_piece("Full-5409.0000000000000001"), None);
        assert_eq!(of_first_piece(".0000000000000000"), None);
    }
}
