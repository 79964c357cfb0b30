//! Seeing through what a gateway that is gone has begun.
//!
//! A pending entry may only be removed when its change can't happen any more. A session that has no watch on the gateways'
//! object and whose lease is over ([`crate::lease`]) is blocklisted first: from then on OSDs refuse its operations in flight.
//! Then the head says whether the change happened.

use super::{Finished, Outcome, Pending, shard_of};
use crate::bucket::Bucket;
use crate::error::Result;
use crate::gateway::{Gateway, now_ns};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// The shortest time that a session is shut out, in seconds, and how many lives of a ticket at least: it can't come back
/// under its old number after that.
const FENCE_S: f64 = 24.0 * 3600.0;
const FENCE_TICKETS: f64 = 6.0;
/// The life of a ticket where the option can't be read, in seconds.
const TICKET_S: f64 = 3600.0;

/// A pending entry of a key that may have to be seen through.
#[derive(Clone, Debug)]
pub(crate) struct Suspect {
    pub(crate) key: String,
    pub(crate) tag: String,
    pub(crate) pending: Pending,
}

impl Suspect {
    /// Whether it is older than any change that goes well; younger ones are left to those who began them.
    pub(crate) fn is_older(&self, than: Duration) -> bool {
        now_ns().saturating_sub(self.pending.begun_ns) > than.as_nanos() as u64
    }
}

impl Gateway {
    /// Sees through those of `suspects` whose gateway is gone; returns how many.
    pub(crate) async fn heal(self: &Arc<Gateway>, bucket: &Bucket, suspects: Vec<Suspect>) -> Result<usize> {
        let alive: BTreeSet<String> = self.gateways().await?;
        let mut gone = BTreeMap::new();
        let mut healed = 0;
        for Suspect { key, tag, pending } in suspects {
            let session = &pending.session;
            if session.is_empty() || alive.contains(session) || session == self.session() {
                continue;
            }
            let is_gone = match gone.get(session) {
                Some(is_gone) => *is_gone,
                None => {
                    let is_gone = self.claim_lease(session).await?;
                    if is_gone {
                        self.fence(session).await?;
                        self.forget_lease(session).await?;
                    }
                    gone.insert(session.clone(), is_gone);
                    is_gone
                }
            };
            if !is_gone {
                continue;
            }
            // While the change is pending: then nobody takes its upload for one that became an object.
            self.settle_upload(bucket, &key, &tag).await?;
            // What it wrote, what it was to remove, and parts that it took from its upload, as far as neither the head nor
            // an upload names them now: whatever became of it.
            // Uploads first: parts move from them to the head.
            let mut named = Vec::new();
            if !pending.parts.is_empty() {
                for id in self.uploads_of(bucket, &key).await? {
                    named.extend(self.tails_of_upload(bucket, &key, &id).await?.unwrap_or_default());
                }
            }
            // Before the head: what is put after that has a higher version.
            let shown = self.shown_version(bucket, &key).await?;
            let head = self.head_with_tails(bucket, &key).await?;
            // What the head names is what it named when it was asked for the outcome: a change that came to its head and is
            // replaced the next moment would be finished as nothing, and its data be nobody's.
            match &head {
                Some(entry) if entry.held.is_none() => named.extend(entry.tails.iter().cloned()),
                Some(_) => named.extend(self.named_tails(bucket, &key).await?),
                None => {}
            }
            let own = pending.tails.into_iter().chain(pending.replaced).chain(pending.parts);
            let garbage = own.filter(|tails| named.iter().all(|named| named.name != tails.name)).collect();
            let outcome = match head {
                Some(entry) if entry.tag == tag || entry.held.is_some() => Outcome::Put(entry),
                // A write that did not come to its head, or whose object is replaced again.
                Some(_) => Outcome::Nothing,
                // Removed by this change, or never there: the entry goes in either case. What it removed at which version
                // nobody knows; nothing that is older can come any more.
                None => shown.map_or(Outcome::Nothing, |version| Outcome::Removed(version + 1)),
            };
            let shard = shard_of(bucket, &key);
            let change = Finished { key, tag, outcome, garbage };
            self.finisher.add(self, (&bucket.name, &shard), change).await;
            healed += 1;
        }
        Ok(healed)
    }

    /// Sees a change through that somebody waits for, if its gateway is gone.
    pub(crate) async fn see_through(
        self: &Arc<Gateway>,
        bucket: &Bucket,
        key: &str,
        tag: &str,
    ) -> Result<()> {
        let (shard, name) = (shard_of(bucket, key), super::pending_key(key, tag));
        let found = self.pools.index.omap_get_vals_by_keys(&shard, vec![name.clone()]).await?;
        let Some(value) = found.get(&name) else { return Ok(()) };
        let pending = crate::record::decode::<Pending>(&shard, value)?;
        let suspect = Suspect { key: key.to_owned(), tag: tag.to_owned(), pending };
        if suspect.is_older(self.config.pending_expiration) {
            self.heal(bucket, vec![suspect]).await?;
        }
        Ok(())
    }

    /// The version of a key's entry; `None` where there is none, or that of a removal.
    async fn shown_version(&self, bucket: &Bucket, key: &str) -> Result<Option<u64>> {
        let shard = shard_of(bucket, key);
        let name = super::entry_key(key);
        let found = self.pools.index.omap_get_vals_by_keys(&shard, vec![name.clone()]).await?;
        let Some(value) = found.get(&name) else { return Ok(None) };
        let entry = crate::record::decode::<super::Entry>(&shard, value)?;
        Ok((!entry.removed).then_some(entry.version))
    }

    /// Has OSDs refuse whatever a session may still have on its way, for as long as it may send it again.
    async fn fence(&self, session: &str) -> Result<()> {
        tracing::warn!(
            session,
            "rgw: a gateway is gone and is blocklisted; what it had begun is seen through"
        );
        let ticket = self.cluster.option("auth_service_ticket_ttl").and_then(|life| life.parse::<f64>().ok());
        let expire = FENCE_S.max(FENCE_TICKETS * ticket.unwrap_or(TICKET_S));
        let command = serde_json::json!({
            "prefix": "osd blocklist", "blocklistop": "add", "addr": session, "expire": expire,
        });
        self.cluster.command(command.to_string(), "").await?;
        // What is read from here on is read by OSDs that know of it.
        self.cluster.refresh_map().await?;
        Ok(())
    }
}
