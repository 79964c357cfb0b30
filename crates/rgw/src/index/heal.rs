//! Seeing through what a gateway that is gone has begun.
//!
//! A pending entry may only be taken away when its change can't happen any more. Where the session that began it has
//! no watch on the gateways' object any more, that session is blocklisted first: from then on OSDs refuse what it may still
//! have on its way. Then the head says what became of the change.

use super::{Finished, Outcome, Pending, shard_of};
use crate::bucket::Bucket;
use crate::error::Result;
use crate::gateway::{Gateway, now_ns};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// A pending entry of a key that may have to be seen through.
#[derive(Clone, Debug)]
pub(super) struct Suspect {
    pub(super) key: String,
    pub(super) tag: String,
    pub(super) pending: Pending,
}

impl Suspect {
    /// Whether it is older than any change that goes well; younger ones are left to those who began them.
    pub(super) fn is_older(&self, than: Duration) -> bool {
        now_ns().saturating_sub(self.pending.begun_ns) > than.as_nanos() as u64
    }
}

impl Gateway {
    /// Sees through those of `suspects` whose gateway is gone; returns how many.
    pub(super) async fn heal(self: &Arc<Gateway>, bucket: &Bucket, suspects: Vec<Suspect>) -> Result<usize> {
        let alive: BTreeSet<String> = self.gateways().await?;
        let mut fenced = BTreeSet::new();
        let mut healed = 0;
        for Suspect { key, tag, pending } in suspects {
            let session = &pending.session;
            if session.is_empty() || alive.contains(session) || session == self.session() {
                continue;
            }
            if fenced.insert(session.clone()) {
                self.fence(session).await?;
            }
            let outcome = match self.head_with_tails(bucket, &key).await? {
                Some(entry) if entry.tag == tag => Outcome::Put(entry),
                Some(_) => Outcome::Nothing(pending.tails),
                // Removed by this change, or never there: the entry goes in either case. What it removed at which version
                // nobody knows; nothing that is older can come any more.
                None => match self.removed_version(bucket, &key).await? {
                    Some(version) => Outcome::Removed(version),
                    None => Outcome::Nothing(pending.tails),
                },
            };
            let shard = shard_of(bucket, &key);
            self.finisher.add(self, shard, Finished { key, tag, outcome }).await;
            healed += 1;
        }
        Ok(healed)
    }

    /// The version of the entry of a key that has no head: a removal of what it stands for was not finished.
    async fn removed_version(&self, bucket: &Bucket, key: &str) -> Result<Option<u64>> {
        let shard = shard_of(bucket, key);
        let name = super::entry_key(key);
        let found = self.pools.index.omap_get_vals_by_keys(&shard, vec![name.clone()]).await?;
        let Some(value) = found.get(&name) else { return Ok(None) };
        let entry = crate::record::decode::<super::Entry>(&shard, value)?;
        // Above what is there, below what comes: versions of a RADOS object never go back.
        Ok((!entry.removed).then_some(entry.version + 1))
    }

    /// Has OSDs refuse whatever a session may still have on its way.
    async fn fence(&self, session: &str) -> Result<()> {
        tracing::warn!(
            session,
            "rgw: a gateway is gone and is blocklisted; what it had begun is seen through"
        );
        let command = serde_json::json!({
            "prefix": "osd blocklist", "blocklistop": "add", "addr": session,
        });
        self.cluster.command(command.to_string(), "").await?;
        // What is read from here on is read by OSDs that know of it.
        self.cluster.refresh_map().await?;
        Ok(())
    }
}
