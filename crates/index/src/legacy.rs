//! Conversion of shards of format 1, whose keys are not escaped and begin with a lower-case letter.
//!
//! A bucket is converted while its index is closed and no live gateway has a pending change. There are two phases, so that
//! each shard is complete in the format that the bucket's record names. First, the records of format 2 are written in
//! addition to the old ones ([`clear_converted`], [`convert_page`]). Then the compare-and-swap of the bucket's record that ends the closing
//! sets format 2; older gateways can't read that record. From then on the old records are not used: the shard is opened
//! ([`crate::reshard::open`]), and they are removed ([`drop_old`]). An attempt that dies before the record changes leaves a
//! shard that is complete in format 1.

use crate::error::{Error, Result};
use crate::key;
use crate::op::{Guard, Step, Write};
use crate::record::{self, Entry, EntryTails, ListingEntry, Stats, Tails, VersionKind};
use crate::reshard;
use crate::seq::Seq;
use crate::state;
use bytes::Bytes;
use nacre_types::encoding::Versioned;
use serde::{Deserialize, Serialize};

/// The first bytes of the keys of format 1: entries, tails, pending changes, uploads and sums.
pub const LEGACY_PREFIXES: [&str; 5] = ["o", "t", "p", "m", "s"];
/// Bytes of an upload's id.
const ID_BYTES: usize = 32;

/// An entry of format 1.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct OldEntry {
    version: u64,
    tag: String,
    removed: bool,
    size: u64,
    mtime_ns: u64,
    etag: String,
    owner: String,
    marker: bool,
    held: Option<Stats>,
}

/// A pending change of format 1.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OldPending {
    /// When it was prepared, in nanoseconds since 1970.
    pub begun_ns: u64,
    /// The RADOS session of the gateway, as blocklists name it.
    pub session: String,
    /// Tails that it may have written.
    pub tails: Option<Tails>,
    /// Tails of a version that it removes.
    pub replaced: Vec<Tails>,
    /// Tails of the parts that the object gets from the upload that it completes.
    pub parts: Vec<Tails>,
}

impl Versioned for OldEntry {
    const NAME: &'static str = "index entry";
}

impl Versioned for OldPending {
    const NAME: &'static str = "pending index entry";
}

/// Decodes a pending change of format 1: key, tag and record; `None` if the name is not that of a pending change.
pub fn pending(shard: &str, name: &[u8], value: &[u8]) -> Result<Option<(String, String, OldPending)>> {
    let Some(rest) = name.strip_prefix(b"p") else { return Ok(None) };
    let at = rest.len().checked_sub(ID_BYTES + 1).filter(|at| rest[*at] == 0);
    let Some((key, tag)) = at.map(|at| (rest[..at].to_vec(), rest[at + 1..].to_vec())) else {
        return Ok(None);
    };
    let (Ok(key), Ok(tag)) = (String::from_utf8(key), String::from_utf8(tag)) else { return Ok(None) };
    Ok(Some((key, tag, record::decode(shard, value)?)))
}

/// Replaces what [`convert_page`] wrote for a key whose head was read because a change of it was pending: with `object` and its
/// tails, or with nothing.
pub fn replace_converted(tag: &str, key: &str, object: Option<(ListingEntry, Vec<Tails>)>) -> Write {
    let mut steps = vec![Step::OmapRemove(vec![key::entry(key), key::tails(key)])];
    if let Some((listed, tails)) = object {
        let mut set =
            vec![(key::entry(key), record::encode(&Entry { seq: Seq::LEGACY, object: Some(listed) }))];
        if !tails.is_empty() {
            set.push((key::tails(key), record::encode(&EntryTails { tails })));
        }
        steps.push(Step::OmapSet(set));
    }
    Write { guards: vec![Guard::Exists, state::guard_equals(&state::closed(tag))], steps }
}

/// Converts a record of format 1 to format 2; `None` if it has no successor. Fails with [`Error::TooManyPending`] for a pending
/// change, which must be finished first.
pub fn convert(shard: &str, name: &[u8], value: &Bytes) -> Result<Option<(Bytes, Bytes)>> {
    let corrupt = |detail| Error::corrupt(shard, "record of format 1", detail);
    let text =
        |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|_| corrupt("the key is not valid UTF-8"));
    let Some((kind, rest)) = name.split_first() else { return Err(corrupt("the key is empty")) };
    Ok(match kind {
        b'o' => {
            let old = record::decode::<OldEntry>(shard, value)?;
            let key = key::entry(&text(rest)?);
            (!old.removed).then(|| (key, record::encode(&old.converted())))
        }
        b't' => Some((key::tails(&text(rest)?), value.clone())),
        b'm' => {
            let at = rest.len().checked_sub(ID_BYTES + 1).filter(|at| rest[*at] == 0);
            let at = at.ok_or_else(|| corrupt("the key is none of an upload"))?;
            Some((key::upload(&text(&rest[..at])?, &text(&rest[at + 1..])?), value.clone()))
        }
        b's' if rest.is_empty() => Some((Bytes::from_static(key::STATS), value.clone())),
        b'p' => return Err(Error::TooManyPending(String::from_utf8_lossy(rest).into_owned())),
        _ => return Err(corrupt("the key is of no known kind")),
    })
}

impl OldEntry {
    fn converted(self) -> Entry {
        let OldEntry { tag, size, mtime_ns, etag, owner, marker, held, .. } = self;
        let kind = if marker { VersionKind::DeleteMarker } else { VersionKind::Object };
        Entry {
            seq: Seq::LEGACY,
            object: Some(ListingEntry { tag, size, mtime_ns, etag, owner, kind, held, class: String::new() }),
        }
    }
}

/// Removes the records of format 2 that an earlier attempt wrote. The attempt `tag` closed the shard.
pub fn clear_converted(tag: &str) -> Write {
    // The range of all capital letters.
    let (first, end) = (Bytes::from_static(b"A"), Bytes::from_static(b"["));
    Write {
        guards: vec![Guard::Exists, state::guard_equals(&state::closed(tag))],
        steps: vec![Step::OmapRemoveRange { first, end }],
    }
}

/// Writes the records of a page of format 1 in format 2, in addition to the old ones, into a shard that the attempt `tag`
/// closed.
pub fn convert_page(shard: &str, tag: &str, page: &[(Bytes, Bytes)]) -> Result<Write> {
    let converted = page.iter().map(|(name, value)| convert(shard, name, value));
    let records = converted.filter_map(Result::transpose).collect::<Result<Vec<_>>>()?;
    Ok(reshard::add(tag, records))
}

/// Removes records of format 1. The bucket's record already names format 2.
pub fn drop_old(names: Vec<Bytes>) -> Write {
    Write { guards: vec![Guard::Exists, state::guard_not_frozen()], steps: vec![Step::OmapRemove(names)] }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAG: &str = "0123456789abcdef0123456789abcdef";

    fn converted(name: &[u8], value: &Bytes) -> (Bytes, Bytes) {
        convert("shard", name, value).unwrap().unwrap()
    }

    #[test]
    fn entries_keep_what_listings_show() {
        let held = Some(Stats { objects: 2, bytes: 9 });
        let old =
            OldEntry { version: 8, tag: TAG.into(), size: 5, etag: "e".into(), held, ..OldEntry::default() };
        let (name, value) = converted(b"oa\0b", &record::encode(&old));
        assert_eq!(name, key::entry("a\0b"));
        let entry = record::decode::<Entry>("shard", &value).unwrap();
        let object = entry.object.as_ref().unwrap();
        assert_eq!((entry.seq, object.size, object.etag.as_str(), object.held), (Seq::LEGACY, 5, "e", held));
        let removed = record::encode(&OldEntry { removed: true, ..old });
        assert_eq!(convert("shard", b"oa", &removed), Ok(None));
    }

    #[test]
    fn other_records_only_change_their_keys() {
        let tails = record::encode(&EntryTails { tails: vec![Tails { name: "n".into(), count: 2 }] });
        assert_eq!(converted(b"ta", &tails), (key::tails("a"), tails));
        let value = Bytes::from_static(b"anything");
        let upload = [b"ma\0b\0", TAG.as_bytes()].concat();
        assert_eq!(converted(&upload, &value), (key::upload("a\0b", TAG), value.clone()));
        assert_eq!(converted(b"s", &value), (Bytes::from_static(b"S"), value.clone()));
        for wrong in [&b""[..], b"ma", b"sx", b"q"] {
            assert!(matches!(convert("shard", wrong, &value), Err(Error::Corrupt { .. })), "{wrong:?}");
        }
    }

    #[test]
    fn shards_with_pending_changes_are_not_converted() {
        let page = [(Bytes::from_static(b"pk\0tag"), Bytes::from_static(b"pending"))];
        assert!(matches!(convert_page("shard", "t", &page), Err(Error::TooManyPending(_))));
    }

    #[test]
    fn pending_changes_are_read_with_their_keys_and_tags() {
        let old = OldPending { session: "client.7".into(), ..OldPending::default() };
        let name = [b"pa\0b\0", TAG.as_bytes()].concat();
        let found = pending("shard", &name, &record::encode(&old)).unwrap().unwrap();
        assert_eq!(found, ("a\0b".to_owned(), TAG.to_owned(), old));
        assert_eq!(pending("shard", b"pk", b""), Ok(None));
        assert_eq!(pending("shard", b"oa", b""), Ok(None));
    }

    #[test]
    fn a_key_whose_head_was_read_is_what_its_head_says() {
        let run = Tails { name: "n".into(), count: 2 };
        let write = replace_converted(
            "t",
            "k",
            Some((ListingEntry { size: 5, ..ListingEntry::default() }, vec![run.clone()])),
        );
        let [Step::OmapRemove(_), Step::OmapSet(set)] = &write.steps[..] else { panic!("{write:?}") };
        let entry = record::decode::<Entry>("k", &set[0].1).unwrap();
        assert_eq!((entry.seq, entry.object.unwrap().size), (Seq::LEGACY, 5));
        assert_eq!(record::decode::<EntryTails>("k", &set[1].1).unwrap().tails, [run]);
        assert_eq!(replace_converted("t", "k", None).steps.len(), 1);
    }

    #[test]
    fn the_formats_share_no_key() {
        let Step::OmapRemoveRange { first, end } = clear_converted("t").steps.remove(0) else {
            panic!("another step")
        };
        let is_new = |name: &[u8]| name >= &first[..] && name < &end[..];
        assert!(key::IndexRecordKind::ALL.iter().all(|kind| is_new(&kind.prefix())) && is_new(key::STATS));
        assert!(LEGACY_PREFIXES.iter().all(|kind| !is_new(kind.as_bytes())));
    }
}
