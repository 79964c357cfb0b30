//! Omap keys of index shards and heads: escaped, so that no key contains NUL, and in the order of the objects' keys.
//!
//! The C interface of librados takes omap cursors and prefixes as C strings. An object's key may contain any byte, so the
//! bytes 00, 01 and 02 are written as two bytes each; 01 separates the key from what follows. The codes are prefix-free and
//! keep the order: escaped prefixes are prefixes of escaped keys, and pages are in the order of the objects.

use crate::seq::Seq;
use bytes::Bytes;

/// The key of a shard's sums.
pub const STATS: &[u8] = b"S";
/// The prefix of the keys of commit records in a head's omap.
pub const COMMIT_RECORD_PREFIX: &[u8] = b"e";
/// Ends the escaped key of an object if a suffix follows.
const SEPARATOR: u8 = 0x01;
/// The first of the two bytes of an escaped byte.
const ESCAPE: u8 = 0x02;

/// The kind of a shard's record; each kind has its own first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IndexRecordKind {
    /// `O` KEY: what a listing shows.
    Entry,
    /// `T` KEY: the tails of that entry's object.
    Tails,
    /// `P` KEY 01 TAG: a change that is not finished.
    Pending,
    /// `R` KEY: the only pending change that may remove the head.
    Slot,
    /// `X` KEY 01 SEQ: an event to be delivered.
    Outbox,
    /// `Y` KEY: the head holds evidence or a tombstone that may be removed.
    Tidy,
    /// `M` KEY 01 UPLOAD: a multipart upload.
    Upload,
}

impl IndexRecordKind {
    /// All kinds.
    pub const ALL: [IndexRecordKind; 7] = [
        IndexRecordKind::Entry,
        IndexRecordKind::Tails,
        IndexRecordKind::Pending,
        IndexRecordKind::Slot,
        IndexRecordKind::Outbox,
        IndexRecordKind::Tidy,
        IndexRecordKind::Upload,
    ];

    /// The first byte of the kind's keys.
    pub const fn byte(self) -> u8 {
        match self {
            IndexRecordKind::Entry => b'O',
            IndexRecordKind::Tails => b'T',
            IndexRecordKind::Pending => b'P',
            IndexRecordKind::Slot => b'R',
            IndexRecordKind::Outbox => b'X',
            IndexRecordKind::Tidy => b'Y',
            IndexRecordKind::Upload => b'M',
        }
    }

    /// The prefix of all keys of this kind.
    pub fn prefix(self) -> Bytes {
        Bytes::copy_from_slice(&[self.byte()])
    }

    /// Whether a suffix follows the object's key.
    fn has_suffix(self) -> bool {
        matches!(self, IndexRecordKind::Pending | IndexRecordKind::Outbox | IndexRecordKind::Upload)
    }
}

/// A key of a shard, split into its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexKey {
    /// The kind of the record.
    pub kind: IndexRecordKind,
    /// The object's key.
    pub key: String,
    /// The tag, sequence or upload; empty if the kind has no suffix.
    pub suffix: String,
}

/// Appends `bytes` in escaped form.
fn escape_into(bytes: &[u8], out: &mut Vec<u8>) {
    for &byte in bytes {
        match byte {
            0x00..=0x02 => out.extend_from_slice(&[ESCAPE, byte + 2]),
            _ => out.push(byte),
        }
    }
}

/// Reads the escaped form.
fn unescape(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes.iter();
    while let Some(&byte) = rest.next() {
        match byte {
            ESCAPE => match rest.next() {
                Some(code @ 0x02..=0x04) => out.push(code - 2),
                _ => return None,
            },
            0x00 | SEPARATOR => return None,
            _ => out.push(byte),
        }
    }
    Some(out)
}

/// The key of an object's record that has no suffix. It is also the position in the kind's order where keys with the prefix
/// `bytes` begin: a cursor or prefix for listings.
pub fn position(kind: IndexRecordKind, bytes: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(bytes.len() + 1);
    out.push(kind.byte());
    escape_into(bytes, &mut out);
    out.into()
}

/// The prefix of the keys of an object's records of a kind with suffix.
pub fn prefix(kind: IndexRecordKind, key: &str) -> Bytes {
    with_suffix(kind, key, "")
}

fn with_suffix(kind: IndexRecordKind, key: &str, suffix: &str) -> Bytes {
    let mut out = Vec::with_capacity(key.len() + suffix.len() + 2);
    out.push(kind.byte());
    escape_into(key.as_bytes(), &mut out);
    out.push(SEPARATOR);
    out.extend_from_slice(suffix.as_bytes());
    out.into()
}

/// The key of an object's entry.
pub fn entry(key: &str) -> Bytes {
    position(IndexRecordKind::Entry, key.as_bytes())
}

/// The key of an entry's tails.
pub fn tails(key: &str) -> Bytes {
    position(IndexRecordKind::Tails, key.as_bytes())
}

/// The key of an object's removal slot.
pub fn removal_slot(key: &str) -> Bytes {
    position(IndexRecordKind::Slot, key.as_bytes())
}

/// The key of an object's tidy record.
pub fn tidy(key: &str) -> Bytes {
    position(IndexRecordKind::Tidy, key.as_bytes())
}

/// The key of a pending change.
pub fn pending(key: &str, tag: &str) -> Bytes {
    with_suffix(IndexRecordKind::Pending, key, tag)
}

/// The key of an upload's entry.
pub fn upload(key: &str, id: &str) -> Bytes {
    with_suffix(IndexRecordKind::Upload, key, id)
}

/// The key of an outbox record: by object, in the order of its changes.
pub fn outbox(key: &str, seq: Seq) -> Bytes {
    with_suffix(IndexRecordKind::Outbox, key, &seq.to_string())
}

/// The key of a change's commit record in the head's omap.
pub fn commit_record(seq: Seq) -> Bytes {
    [COMMIT_RECORD_PREFIX, seq.to_string().as_bytes()].concat().into()
}

/// The first key after the commit records of all changes up to `up_to`.
pub fn commit_record_end(up_to: Seq) -> Bytes {
    // A longer key sorts after its prefix, and before the record of the next change.
    [COMMIT_RECORD_PREFIX, up_to.to_string().as_bytes(), b"0"].concat().into()
}

/// Splits a shard's key into its parts; `None` for the sums and for keys that do not belong to this format.
pub fn parse(bytes: &[u8]) -> Option<IndexKey> {
    let (&first, rest) = bytes.split_first()?;
    let kind = IndexRecordKind::ALL.into_iter().find(|kind| kind.byte() == first)?;
    let (key, suffix) = if kind.has_suffix() {
        let at = rest.iter().position(|byte| *byte == SEPARATOR)?;
        (&rest[..at], &rest[at + 1..])
    } else {
        (rest, &rest[rest.len()..])
    };
    let key = String::from_utf8(unescape(key)?).ok()?;
    let suffix = std::str::from_utf8(suffix).ok().filter(|text| !text.contains('\0'))?.to_owned();
    Some(IndexKey { kind, key, suffix })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAG: &str = "0123456789abcdef0123456789abcdef";

    fn keys() -> Vec<String> {
        let parts = ["\0", "\u{1}", "\u{2}", "\u{3}", "\u{4}", "a", "/", "ü", "\u{10ffff}"];
        let mut all = vec![String::new()];
        for a in parts {
            all.push(a.to_owned());
            for b in parts {
                all.push([a, b].concat());
                all.extend(parts.iter().map(|c| [a, b, c].concat()));
            }
        }
        all.sort_unstable();
        all
    }

    #[test]
    fn keys_are_free_of_nul_and_are_read_back() {
        let seq = Seq::LEGACY.to_string();
        for key in keys() {
            for (kind, name, suffix) in [
                (IndexRecordKind::Entry, entry(&key), ""),
                (IndexRecordKind::Tails, tails(&key), ""),
                (IndexRecordKind::Slot, removal_slot(&key), ""),
                (IndexRecordKind::Tidy, tidy(&key), ""),
                (IndexRecordKind::Pending, pending(&key, TAG), TAG),
                (IndexRecordKind::Upload, upload(&key, TAG), TAG),
                (IndexRecordKind::Outbox, outbox(&key, Seq::LEGACY), seq.as_str()),
            ] {
                assert!(!name.contains(&0), "{name:?}");
                let parsed = IndexKey { kind, key: key.clone(), suffix: suffix.to_owned() };
                assert_eq!(parse(&name), Some(parsed));
            }
        }
    }

    #[test]
    fn keys_sort_as_the_objects_do() {
        for pair in keys().windows(2) {
            assert!(entry(&pair[0]) < entry(&pair[1]), "{pair:?}");
            // All records of an object precede those of the next object, whatever the suffix.
            assert!(pending(&pair[0], "~") < pending(&pair[1], ""), "{pair:?}");
        }
    }

    #[test]
    fn escaped_prefixes_are_prefixes_of_exactly_the_keys_that_begin_so() {
        let keys = keys();
        for start in &keys {
            let position = position(IndexRecordKind::Entry, start.as_bytes());
            for key in &keys {
                assert_eq!(entry(key).starts_with(&position), key.starts_with(start.as_str()));
            }
        }
    }

    #[test]
    fn what_is_no_key_is_refused() {
        for wrong in [&b""[..], b"S", b"Q", b"o", b"P", b"Pkey", b"O\x02", b"O\x02\x05", b"O\x01", b"O\0"] {
            assert_eq!(parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn evidence_up_to_a_change_ends_before_the_next_one() {
        let seq = Seq::LEGACY.successor();
        assert!(commit_record(seq) < commit_record_end(seq));
        assert!(commit_record_end(seq) < commit_record(seq.successor()));
    }
}
