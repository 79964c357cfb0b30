//! Pages of outbox records, and the events in them.

use super::event_id;
use crate::error::Result;
use crate::rados::ObjectIo;
use bytes::Bytes;
use nacre_index::op::{Fetch, Fetched, Guard, Read as IndexRead};
use nacre_index::record::OutboxRecord;
use nacre_index::{key, outbox, state};
use nacre_queues::name::KeyHash;
use nacre_queues::record::{Event, EventId};
use nacre_topics::arn::TopicArn;
use nacre_topics::pending::PendingEvents;
use nacre_topics::record::ObjectInfo;
use nacre_topics::topic::TopicId;
use nacre_types::encoding;
use std::collections::BTreeSet;

/// The most records of one object that are read at once, if the read names objects.
const RECORDS_OF_A_KEY: u64 = 64;

/// The result of reading a shard of an index.
pub(crate) enum PageRead {
    /// Its records.
    Page(OutboxRecordPage),
    /// Its records are being moved, or were moved, to other shards.
    Frozen,
    /// It does not exist.
    Absent,
}

/// A page of the outbox of one shard.
pub(crate) struct OutboxRecordPage {
    /// The shard.
    pub(crate) shard: String,
    /// The records, in their order.
    pub(crate) records: Vec<FoundRecord>,
    /// The name of the last record that was read; empty if there was none.
    pub(crate) last: Bytes,
    /// The object's key of the records at the start of the page that [`OutboxRecordPage::skip_key`] left out.
    pub(crate) passed: Option<String>,
    /// Whether the shard has more records.
    pub(crate) more: bool,
    /// Whether the page was limited to the records of some objects.
    is_partial: bool,
}

impl OutboxRecordPage {
    /// Leaves out records of the key at the start of the page, because earlier records of the key are not moved.
    pub(crate) fn skip_key(&mut self, key: &str) {
        let count = self.records.iter().take_while(|record| record.key == key).count();
        self.records.drain(..count);
        self.passed = (count > 0).then(|| key.to_owned());
    }

    /// The cursor after the page; `None` for an empty page, and for a page of some objects, which has no continuation.
    pub(crate) fn end(&self) -> Option<OutboxCursor> {
        if self.is_partial {
            return None;
        }
        let key = self.records.last().map(|record| &record.key).or(self.passed.as_ref())?;
        Some(OutboxCursor { name: self.last.clone(), key: key.clone() })
    }
}

/// A place in the outbox of a shard.
pub(crate) struct OutboxCursor {
    /// The record before it.
    pub(crate) name: Bytes,
    /// That record's key: later records of the key must not overtake the ones that are left.
    pub(crate) key: String,
}

/// An outbox record.
pub(crate) struct FoundRecord {
    /// The object's key.
    pub(crate) key: String,
    /// Its name in the omap.
    pub(crate) name: Bytes,
    /// Its value.
    pub(crate) raw: Bytes,
    /// The decoded record.
    pub(crate) record: OutboxRecord,
    /// Its events that are not known to be in queues.
    pub(crate) events: Vec<FoundEvent>,
    /// Whether it could be decoded completely. Otherwise it is not removed.
    pub(crate) is_whole: bool,
}

/// An event of an outbox record.
pub(crate) struct FoundEvent {
    /// Its id within the bucket.
    pub(crate) id: EventId,
    /// The topic's id.
    pub(crate) topic_id: TopicId,
    /// The topic's ARN.
    pub(crate) topic: TopicArn,
    /// The id of the configuration.
    pub(crate) configuration: String,
    /// The event in the form that queues store.
    pub(crate) event: Event,
}

/// The range of a page.
pub(crate) struct PageRange<'a> {
    /// The objects whose records are read; `None` for all records.
    pub(crate) keys: Option<&'a BTreeSet<String>>,
    /// The record before the first one, if all records are read.
    pub(crate) after: Bytes,
    /// The most records.
    pub(crate) max: u64,
    /// The page ends with the record that brings its events to this number of bytes.
    pub(crate) max_bytes: u64,
}

/// Reads a page. It is valid only if the same read shows that the shard is not frozen: then the records can't be in another
/// shard.
pub(crate) async fn read(rados: &ObjectIo, shard: &str, range: PageRange<'_>) -> Result<PageRead> {
    let PageRange { keys, after, max, max_bytes } = range;
    let mut fetches = vec![Fetch::Attrs];
    match keys {
        None => fetches.push(Fetch::Page { prefix: key::IndexRecordKind::Outbox.prefix(), after, max }),
        Some(keys) => fetches.extend(keys.iter().map(|key| {
            let prefix = key::prefix(key::IndexRecordKind::Outbox, key);
            Fetch::Page { prefix, after: Bytes::new(), max: RECORDS_OF_A_KEY }
        })),
    }
    let read = IndexRead::of(fetches);
    let Some(reply) = rados.read_index(shard, &read).await? else { return Ok(PageRead::Absent) };
    let Some((Fetched::Pairs(attributes), parts)) = reply.parts.split_first() else {
        return Ok(PageRead::Absent);
    };
    // The guard for removing records determines the states in which the page is not valid.
    if let Guard::AttrBelow(name, limit) = state::guard_not_frozen()
        && attributes.get(name.as_bytes()).is_some_and(|state| *state >= limit)
    {
        return Ok(PageRead::Frozen);
    }
    let (mut records, mut bytes, mut more) = (Vec::new(), 0, false);
    for part in parts {
        let Fetched::Page(page) = part else { return Ok(PageRead::Absent) };
        more |= page.more;
        for (queued, (_, raw)) in outbox::parse(shard, page)?.into_iter().zip(&page.entries) {
            let is_full = bytes >= max_bytes || records.len() as u64 >= max;
            if is_full && !records.is_empty() {
                more = true;
                break;
            }
            let record = record(shard, queued, raw);
            bytes += record.events.iter().map(|one| one.event.size_bytes()).sum::<u64>();
            records.push(record);
        }
    }
    Ok(PageRead::Page(OutboxRecordPage {
        shard: shard.to_owned(),
        last: records.last().map(|record| record.name.clone()).unwrap_or_default(),
        passed: None,
        more,
        is_partial: keys.is_some(),
        records,
    }))
}

fn record(shard: &str, queued: outbox::OutboxEntry, raw: &Bytes) -> FoundRecord {
    let outbox::OutboxEntry { name, key, record } = queued;
    let (events, is_whole) = match events(&key, &record) {
        Ok(events) => (events, true),
        Err(error) => {
            tracing::error!(shard, key, %error, "notifications: the events of a change can't be understood and stay in the index");
            (Vec::new(), false)
        }
    };
    FoundRecord { key, name, raw: raw.clone(), record, events, is_whole }
}

/// The events of the configurations that the record still names. If it names none, these are all events.
fn events(key: &str, record: &OutboxRecord) -> Result<Vec<FoundEvent>> {
    let corrupt = |source| nacre_index::Error::Corrupt { name: "the outbox record".to_owned(), source };
    let pending: PendingEvents = encoding::decode(&record.fixed).map_err(corrupt)?;
    let subject = &record.subject;
    let attributes = subject.attributes.clone().unwrap_or_default();
    let object = ObjectInfo {
        size: subject.size,
        etag: subject.etag.clone(),
        version_id: subject.version_id.clone(),
        sequencer: record.seq.to_string(),
        metadata: attributes.metadata,
        tags: attributes.tags,
    };
    let is_wanted = |id: &String| record.candidates.is_empty() || record.candidates.contains(id);
    let mut found = Vec::new();
    for one in pending.complete(&record.tag, key, &object) {
        if !is_wanted(&one.event.configuration) {
            continue;
        }
        let event = Event {
            key: KeyHash::new(&one.event.bucket.name, key),
            time_ns: one.event.request.time_ns,
            replayed: false,
            payload: encoding::encode(&one.event).into(),
        };
        found.push(FoundEvent {
            id: event_id(&record.tag, one.event.ordinal)?,
            topic_id: one.topic_id,
            topic: one.topic,
            configuration: one.event.configuration,
            event,
        });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_index::record::EventSubject;
    use nacre_index::seq::{HeadIncarnation, Seq};

    fn page(keys: &[&str]) -> OutboxRecordPage {
        let record = |key: &&str| FoundRecord {
            key: (*key).to_owned(),
            name: Bytes::copy_from_slice(key.as_bytes()),
            raw: Bytes::new(),
            record: OutboxRecord {
                tag: "tag".to_owned(),
                seq: Seq { incarnation: HeadIncarnation { generation: 1, version: 7 }, number: 1 },
                prepared_ns: 0,
                fixed: Bytes::new(),
                candidates: Vec::new(),
                subject: EventSubject::default(),
            },
            events: Vec::new(),
            is_whole: true,
        };
        OutboxRecordPage {
            shard: "shard".to_owned(),
            records: keys.iter().map(record).collect(),
            last: Bytes::from_static(b"last"),
            passed: None,
            is_partial: false,
            more: true,
        }
    }

    #[test]
    fn later_records_of_a_key_do_not_pass_earlier_ones_that_are_left() {
        let mut next = page(&["a", "a", "b"]);
        next.skip_key("a");
        let keys: Vec<&str> = next.records.iter().map(|record| record.key.as_str()).collect();
        assert_eq!((keys, next.passed.as_deref()), (vec!["b"], Some("a")));
        assert_eq!(next.end().map(|cursor| cursor.key), Some("b".to_owned()));
        let mut all = page(&["a", "a"]);
        all.skip_key("a");
        assert_eq!(
            all.end().map(|cursor| (cursor.key, cursor.name)),
            Some(("a".to_owned(), Bytes::from_static(b"last")))
        );
        let mut other = page(&["b", "a"]);
        other.skip_key("a");
        assert_eq!((other.records.len(), other.passed), (2, None));
        assert!(page(&[]).end().is_none());
    }
}
