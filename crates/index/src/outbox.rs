//! The outbox of a shard: events of finished changes, until they are in the queues of their topics.
//!
//! A gateway that delivers events reads a page, enqueues the events that the configurations select, in the order of the
//! page, and removes the records. All steps may be repeated, also by two gateways at once: a queue refuses an event whose
//! (tag, topic) it already had. A page has the events of a key in the order of its changes.

use crate::error::{Error, Result};
use crate::key::{self, IndexRecordKind};
use crate::op::{Fetch, Guard, Page, Read, Step, Write};
use crate::record::{self, OutboxRecord};
use crate::state;
use bytes::Bytes;

/// An event in a shard.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OutboxEntry {
    /// Its omap key.
    pub name: Bytes,
    /// The object's key.
    pub key: String,
    /// The event.
    pub record: OutboxRecord,
}

/// Reads the events after `after`. Also tells whether a bucket that is being removed still has events.
pub fn read(after: Bytes, max: u64) -> Read {
    Read::of(vec![Fetch::Page { prefix: IndexRecordKind::Outbox.prefix(), after, max }])
}

/// The events of a page of [`read`].
pub fn parse(shard: &str, page: &Page) -> Result<Vec<OutboxEntry>> {
    let event = |(name, value): &(Bytes, Bytes)| {
        let Some(parsed) = key::parse(name) else {
            return Err(Error::corrupt(shard, "outbox record", "the key is none of an outbox record"));
        };
        Ok(OutboxEntry { name: name.clone(), key: parsed.key, record: record::decode(shard, value)? })
    };
    page.entries.iter().map(event).collect()
}

/// Removes events that are in their queues. Refused with ECANCELED while the shard's records are being moved: the events
/// are in the new shards afterwards.
pub fn remove(names: Vec<Bytes>) -> Write {
    Write { guards: vec![Guard::Exists, state::guard_not_frozen()], steps: vec![Step::OmapRemove(names)] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::EventSubject;
    use crate::seq::{HeadIncarnation, Seq};

    fn event(seq: Seq) -> OutboxRecord {
        let (fixed, candidates, subject) =
            (Bytes::from_static(b"f"), vec!["c".into()], EventSubject::default());
        OutboxRecord { tag: "t".into(), seq, prepared_ns: 1, fixed, candidates, subject }
    }

    #[test]
    fn events_of_a_key_come_in_the_order_of_its_changes() {
        let seq = |version, number| Seq { incarnation: HeadIncarnation { generation: 0, version }, number };
        let order = [seq(9, 1), seq(9, 2), seq(9, 10), seq(10, 1)];
        let mut entries: Vec<_> =
            order.iter().rev().map(|seq| (key::outbox("k", *seq), record::encode(&event(*seq)))).collect();
        entries.sort();
        let events = parse("shard", &Page { entries, more: false }).unwrap();
        let found: Vec<Seq> = events.iter().map(|queued| queued.record.seq).collect();
        assert_eq!(found, order);
        assert!(events.iter().all(|queued| queued.key == "k"));
    }

    #[test]
    fn damaged_events_are_reported() {
        let name = key::outbox("k", Seq::LEGACY);
        let page = Page { entries: vec![(name, Bytes::from_static(b"rubbish"))], more: false };
        assert!(matches!(parse("shard", &page), Err(Error::Corrupt { .. })));
    }
}
