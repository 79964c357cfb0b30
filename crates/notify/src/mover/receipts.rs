//! Receipts: determining which of them belong to outbox records that are gone.

use crate::core::Core;
use crate::error::Result;
use crate::outbox::{NextPage, OutboxReader};
use crate::producer::ShardProducer;
use nacre_queues::name::SourceId;
use nacre_queues::record::EventId;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Determines which receipts of a source belong to records that are gone, and lets these producers drop them.
pub(super) async fn drop_gone_receipts(
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
    let mut outbox = OutboxReader::open(core, bucket).await?;
    loop {
        let page = match outbox.next().await? {
            NextPage::Page(page) => page,
            NextPage::End => break,
            NextPage::Moving => return Ok(()),
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
