//! The outboxes of bucket indexes: reading pages of their records, and removing records whose events are in queues.

pub(crate) mod page;

use crate::core::Core;
use crate::error::{Error, Result};
use crate::rados::{ObjectIo, WriteOutcome};
use bytes::Bytes;
use nacre_index::op::{Guard, Step, Write};
use nacre_index::record::{self, OutboxRecord};
use nacre_index::state;
use nacre_queues::name::SourceId;
use nacre_queues::record::EventId;
use page::{OutboxRecordPage, PageRange, PageRead};
use std::collections::BTreeSet;

/// The most records in a page.
pub(crate) const MAX_PAGE_RECORDS: u64 = 512;
/// The most bytes of events that a page, or all pages of the current turns of movers together, have.
pub(crate) const MAX_READ_BYTES: u64 = 16 << 20;

/// The id of an event within its bucket: the change, and the event's number among the events of the change.
pub(crate) fn event_id(change: &str, ordinal: u16) -> Result<EventId> {
    let id: Vec<u8> = [change.as_bytes(), b".", &ordinal.to_be_bytes()].concat();
    EventId::new(id).map_err(Error::from)
}

/// Reads the whole outbox of a bucket in pages.
pub(crate) struct OutboxReader<'a> {
    rados: &'a ObjectIo,
    shards: std::vec::IntoIter<String>,
    /// The shard that has more records, and the record before them.
    more: Option<(String, Bytes)>,
}

/// The next page of an [`OutboxReader`].
pub(crate) enum NextPage {
    Page(OutboxRecordPage),
    /// There are no more pages.
    End,
    /// The outbox can't be read completely now, because the index is being resharded.
    Moving,
}

impl OutboxReader<'_> {
    /// Reads the outbox according to the bucket's current record.
    pub(crate) async fn open<'a>(core: &'a Core, bucket: &str) -> Result<OutboxReader<'a>> {
        let found = core.outboxes.find(bucket).await?;
        let shards = found.map(|found| found.shards).unwrap_or_default().into_iter();
        Ok(OutboxReader { rados: &core.rados, shards, more: None })
    }

    /// Reads the next page.
    pub(crate) async fn next(&mut self) -> Result<NextPage> {
        let next = self.more.take().or_else(|| Some((self.shards.next()?, Bytes::new())));
        let Some((shard, after)) = next else { return Ok(NextPage::End) };
        let range = PageRange { keys: None, after, max: MAX_PAGE_RECORDS, max_bytes: MAX_READ_BYTES };
        let PageRead::Page(page) = page::read(self.rados, &shard, range).await? else {
            return Ok(NextPage::Moving);
        };
        if page.more {
            self.more = Some((shard, page.last.clone()));
        }
        Ok(NextPage::Page(page))
    }
}

/// The changes to the records of a page.
#[derive(Default)]
pub(crate) struct OutboxTrim {
    /// Records to be removed.
    pub(crate) names: Vec<Bytes>,
    /// Records of which some events are in queues: name, old value, new value.
    pub(crate) updates: Vec<(Bytes, Bytes, Bytes)>,
    /// Events that are no longer in the outbox afterwards.
    pub(crate) gone: BTreeSet<EventId>,
}

impl OutboxTrim {
    /// Computes the changes from the events that are in queues.
    pub(crate) fn of(page: &OutboxRecordPage, is_moved: impl Fn(&EventId) -> bool) -> OutboxTrim {
        let mut trim = OutboxTrim::default();
        for record in &page.records {
            let left: Vec<_> = record.events.iter().filter(|event| !is_moved(&event.id)).collect();
            if left.is_empty() && record.is_whole {
                trim.names.push(record.name.clone());
                trim.gone.extend(record.events.iter().map(|event| event.id.clone()));
                continue;
            }
            // A configuration is removed from the record when all its events are moved.
            let stays =
                |configuration: &String| left.iter().any(|event| event.configuration == *configuration);
            let staying: Vec<String> =
                record.record.candidates.iter().filter(|one| stays(one)).cloned().collect();
            if record.is_whole && !staying.is_empty() && staying.len() < record.record.candidates.len() {
                let changed = OutboxRecord { candidates: staying.clone(), ..record.record.clone() };
                let changed = record::encode(&changed);
                trim.updates.push((record.name.clone(), record.raw.clone(), changed));
                let leaves = record.events.iter().filter(|event| !staying.contains(&event.configuration));
                trim.gone.extend(leaves.map(|event| event.id.clone()));
            }
        }
        trim
    }

    /// Makes the changes in one operation. Returns `false` if the records are being moved to other shards, or if another
    /// mover changed them.
    pub(crate) async fn write(&self, rados: &ObjectIo, shard: &str) -> Result<bool> {
        if self.names.is_empty() && self.updates.is_empty() {
            return Ok(true);
        }
        let mut guards = vec![Guard::Exists, state::guard_not_frozen()];
        let mut steps = vec![Step::OmapRemove(self.names.clone())];
        for (name, old, _) in &self.updates {
            guards.push(Guard::OmapEquals(name.clone(), old.clone()));
        }
        let set: Vec<_> = self.updates.iter().map(|(name, _, new)| (name.clone(), new.clone())).collect();
        if !set.is_empty() {
            steps.push(Step::OmapSet(set));
        }
        Ok(rados.write_index(shard, Write { guards, steps }).await? == WriteOutcome::Done)
    }
}

/// Removes events that a closed generation has from the outbox of a bucket. Fails with [`Error::Contended`] if the index is
/// being resharded.
pub(crate) async fn remove_enqueued_records(core: &Core, source: &SourceId, ids: &[EventId]) -> Result<()> {
    let ids: BTreeSet<&EventId> = ids.iter().collect();
    if ids.is_empty() {
        return Ok(());
    }
    let bucket = source.as_str();
    let moving = || Error::Contended(format!("the index of bucket {bucket}"));
    let mut outbox = OutboxReader::open(core, bucket).await?;
    loop {
        let page = match outbox.next().await? {
            NextPage::Page(page) => page,
            NextPage::End => return Ok(()),
            NextPage::Moving => return Err(moving()),
        };
        let trim = OutboxTrim::of(&page, |id| ids.contains(id));
        if !trim.write(&core.rados, &page.shard).await? {
            return Err(moving());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;
    use crate::testing::{self, BUCKET, INDEX_SHARD};

    #[test]
    fn records_whose_events_are_in_queues_are_removed() {
        testing::run(Settings::default(), |core| async move {
            let topic = testing::topic_record(1, &[]).topic;
            let source = SourceId::new(BUCKET).unwrap();
            let ids = ["one", "two"].map(|change| event_id(change, 0).unwrap());
            // The index has no such shard.
            let moving = remove_enqueued_records(&core, &source, &ids).await;
            assert!(matches!(moving, Err(Error::Contended(_))));
            for (number, change) in (1..).zip(["one", "two", "three"]) {
                testing::write_outbox_record(&core, &topic, change, number).await;
            }
            remove_enqueued_records(&core, &source, &ids).await.unwrap();
            let mut outbox = OutboxReader::open(&core, BUCKET).await.unwrap();
            let NextPage::Page(page) = outbox.next().await.unwrap() else { panic!("a shard has a page") };
            let left: Vec<&str> = page.records.iter().map(|record| record.record.tag.as_str()).collect();
            assert_eq!((page.shard.as_str(), left), (INDEX_SHARD, vec!["three"]));
            assert!(matches!(outbox.next().await, Ok(NextPage::End)));
        });
    }
}
