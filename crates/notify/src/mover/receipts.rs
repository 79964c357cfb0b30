//! Receipts: determining which of them belong to outbox records that are gone, and removing records whose events a closed
//! generation has.

use super::page::{self, PageRead};
use super::{MAX_PAGE_RECORDS, MAX_READ_BYTES, OutboxTrim};
use crate::core::Core;
use crate::error::{Error, Result};
use crate::producer::ShardProducer;
use bytes::Bytes;
use nacre_queues::name::SourceId;
use nacre_queues::record::EventId;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A cursor over the outbox of a bucket.
struct Outbox {
    shards: std::vec::IntoIter<String>,
    shard: Option<String>,
    after: Bytes,
}

/// The next part of an [`Outbox`].
enum Part {
    Page(page::OutboxRecordPage),
    /// There are no more pages.
    End,
    /// The outbox can't be read completely now.
    Moving,
}

impl Outbox {
    async fn of(core: &Core, bucket: &str) -> Result<Outbox> {
        let found = core.outboxes.find(bucket).await?;
        let shards = found.map(|found| found.shards).unwrap_or_default().into_iter();
        Ok(Outbox { shards, shard: None, after: Bytes::new() })
    }

    async fn next(&mut self, core: &Core) -> Result<Part> {
        let Some(shard) = self.shard.take().or_else(|| self.shards.next()) else { return Ok(Part::End) };
        let after = std::mem::take(&mut self.after);
        let PageRead::Page(page) = page::read(
            core,
            &shard,
            page::PageRange { keys: None, after, max: MAX_PAGE_RECORDS, max_bytes: MAX_READ_BYTES },
        )
        .await?
        else {
            return Ok(Part::Moving);
        };
        if page.more {
            (self.shard, self.after) = (Some(shard), page.last.clone());
        }
        Ok(Part::Page(page))
    }
}

/// Determines which receipts of a source belong to records that are gone, and lets these producers drop them.
pub(super) async fn clean(
    core: &Core,
    bucket: &str,
    source: &SourceId,
    producers: &[Arc<ShardProducer>],
) -> Result<()> {
    let mut had: Vec<(&Arc<ShardProducer>, BTreeSet<EventId>)> = Vec::new();
    for producer in producers {
        if let Some(receipts) = producer.receipts(source).await {
            had.push((producer, receipts));
        }
    }
    let mut present = BTreeSet::new();
    let mut outbox = Outbox::of(core, bucket).await?;
    loop {
        let page = match outbox.next(core).await? {
            Part::Page(page) => page,
            Part::End => break,
            Part::Moving => return Ok(()),
        };
        // A record that could not be decoded may have any of the events.
        if page.records.iter().any(|record| !record.is_whole) {
            return Ok(());
        }
        for event in page.records.iter().flat_map(|record| &record.events) {
            if had.iter().any(|(_, receipts)| receipts.contains(&event.id)) {
                present.insert(event.id.clone());
            }
        }
    }
    for (producer, receipts) in had {
        producer.drop_receipts(source, receipts.into_iter().filter(|id| !present.contains(id))).await;
    }
    Ok(())
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
    let mut outbox = Outbox::of(core, bucket).await?;
    loop {
        let page = match outbox.next(core).await? {
            Part::Page(page) => page,
            Part::End => return Ok(()),
            Part::Moving => return Err(moving()),
        };
        let removal = OutboxTrim::of(&page, |id| ids.contains(id));
        if !removal.write(core, &page.shard).await? {
            return Err(moving());
        }
    }
}
