//! Moving records into the shards of another generation, and the states that go with it.
//!
//! First, the old shards are closed: no change is prepared in them, but pending changes may be finished. Then they are
//! frozen: no change is finished in them, no record is removed, and all records are copied: entries, uploads, outbox, tidy
//! records, and pending changes with their slots. The sums are computed from the copied records. Gateways that hold pending
//! changes find their shard frozen or gone, read the bucket's record, and finish in the new shards.
//!
//! Pending changes may move although the old shard names their incarnation. Its generation is lower, and later removals see
//! these changes as pending, so no head is removed before they are finished.

use crate::error::Result;
use crate::key::{self, IndexRecordKind};
use crate::op::{Guard, Step, Write};
use crate::record::{self, Entry, Stats};
use crate::state;
use bytes::Bytes;

/// The object's key that decides the shard of a record; `None` for the sums and for records that do not move.
pub fn routing_key(name: &[u8]) -> Option<String> {
    key::parse(name).map(|parsed| parsed.key)
}

/// What a record adds to the sums of its shard.
pub fn record_stats(shard: &str, name: &[u8], value: &[u8]) -> Result<Stats> {
    match key::parse(name) {
        Some(parsed) if parsed.kind == IndexRecordKind::Entry => {
            Ok(record::decode::<Entry>(shard, value)?.counted())
        }
        _ => Ok(Stats::default()),
    }
}

/// Freezes a shard that the attempt `tag` closed: no change is finished in it.
pub fn freeze(tag: &str) -> Write {
    set_state(&state::closed(tag), &state::frozen(tag))
}

/// Opens a new shard that has all its records and that the attempt `tag` keeps closed.
pub fn open(tag: &str, open: &'static str) -> Write {
    set_state(&state::closed(tag), open)
}

/// Adds records to a new shard that the attempt `tag` keeps closed.
pub fn add(tag: &str, records: Vec<(Bytes, Bytes)>) -> Write {
    Write {
        guards: vec![Guard::Exists, state::guard_equals(&state::closed(tag))],
        steps: vec![Step::OmapSet(records)],
    }
}

/// Removes records from a new shard that the attempt `tag` keeps closed.
pub fn remove(tag: &str, names: Vec<Bytes>) -> Write {
    let guards = vec![Guard::Exists, state::guard_equals(&state::closed(tag))];
    Write { guards, steps: vec![Step::OmapRemove(names)] }
}

fn set_state(from: &str, to: &str) -> Write {
    let to = Bytes::copy_from_slice(to.as_bytes());
    Write {
        guards: vec![Guard::Exists, state::guard_equals(from)],
        steps: vec![Step::SetAttr(state::STATE, to)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::ListingEntry;
    use crate::seq::Seq;

    #[test]
    fn every_record_of_an_object_moves_with_it() {
        let tag = "0123456789abcdef0123456789abcdef";
        for name in [
            key::entry("a\0"),
            key::tails("a\0"),
            key::pending("a\0", tag),
            key::removal_slot("a\0"),
            key::outbox("a\0", Seq::LEGACY),
            key::tidy("a\0"),
            key::upload("a\0", tag),
        ] {
            assert_eq!(routing_key(&name).as_deref(), Some("a\0"), "{name:?}");
        }
        assert_eq!(routing_key(key::STATS), None);
        assert_eq!(routing_key(b"olegacy"), None);
    }

    #[test]
    fn new_shards_are_changed_by_their_attempt_only() {
        let own = [Guard::Exists, state::guard_equals(&state::closed("t"))];
        let records = vec![(key::entry("a"), Bytes::from_static(b"entry"))];
        assert_eq!(add("t", records).guards, own);
        assert_eq!(remove("t", vec![key::entry("a")]).guards, own);
    }

    #[test]
    fn sums_come_from_the_entries() {
        let object = Some(ListingEntry { size: 5, ..ListingEntry::default() });
        let entry = record::encode(&Entry { seq: Seq::LEGACY, object });
        let one = Stats { objects: 1, bytes: 5 };
        assert_eq!(record_stats("s", &key::entry("a"), &entry), Ok(one));
        assert_eq!(record_stats("s", &key::removal_slot("a"), b"tag"), Ok(Stats::default()));
        assert!(record_stats("s", &key::entry("a"), b"rubbish").is_err());
    }
}
