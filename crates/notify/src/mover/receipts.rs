//! Receipts: which of them stand for outbox records that are gone, and the removal of records that a closed generation has.

use super::page::{self, Read};
use super::{PAGE, Removal};
use crate::core::Core;
use crate::error::{Error, Result};
use crate::lane::{Lane, Ticket};
use bytes::Bytes;
use nacre_queues::name::SourceId;
use nacre_queues::record::EventId;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Calls `visit` with each page of a bucket's outbox; `false` where it could not be read as a whole.
async fn each_page<F>(core: &Core, bucket: &str, mut visit: F) -> Result<bool>
where
    F: AsyncFnMut(&page::IndexPage) -> Result<bool>,
{
    let Some(found) = core.outboxes.find(bucket).await? else { return Ok(true) };
    for shard in found.shards {
        let mut after = Bytes::new();
        loop {
            let Read::Page(page) = page::read(core, &shard, after, PAGE).await? else { return Ok(false) };
            if !visit(&page).await? {
                return Ok(false);
            }
            if !page.more {
                break;
            }
            after = page.last;
        }
    }
    Ok(true)
}

/// Finds out which receipts of a source stand for records that are gone, so that these lanes drop them.
pub(super) async fn clean(core: &Core, bucket: &str, source: &SourceId, lanes: &[Arc<Lane>]) -> Result<()> {
    let mut had: Vec<(&Arc<Lane>, Ticket, BTreeSet<EventId>)> = Vec::new();
    for lane in lanes {
        if let Some((ticket, receipts)) = lane.receipts(source).await {
            had.push((lane, ticket, receipts));
        }
    }
    let mut present = BTreeSet::new();
    let is_whole = each_page(core, bucket, async |page| {
        let events = page.records.iter().flat_map(|record| &record.events);
        let ids = events.map(|event| &event.id).filter(|id| had.iter().any(|(_, _, ids)| ids.contains(*id)));
        present.extend(ids.cloned());
        // What is not understood may be anything.
        Ok(page.records.iter().all(|record| record.is_whole))
    })
    .await?;
    if is_whole {
        for (lane, _, receipts) in had {
            lane.forget(source, receipts.into_iter().filter(|id| !present.contains(id))).await;
        }
    }
    Ok(())
}

/// Takes events that a closed generation has out of the outbox of a bucket. Fails with [`Error::Contended`] where the
/// index is being resharded.
pub(crate) async fn forget_receipts(core: &Core, source: &SourceId, ids: &[EventId]) -> Result<()> {
    let ids: BTreeSet<&EventId> = ids.iter().collect();
    if ids.is_empty() {
        return Ok(());
    }
    let bucket = source.as_str();
    let is_done = each_page(core, bucket, async |page| {
        let removal = Removal::of(page, |id| ids.contains(id));
        removal.write(core, &page.shard).await
    })
    .await?;
    if is_done { Ok(()) } else { Err(Error::Contended(format!("the index of bucket {bucket}"))) }
}
