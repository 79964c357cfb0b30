//! Recovers the pending changes of dead gateways (docs/format/index.md, step 5).
//!
//! A session that has no watch on the gateways' object and whose lease has expired ([`crate::lease`]) is blocklisted first:
//! from then on, OSDs refuse its operations in flight. Then its pending changes are finished or cancelled as orphans.
//!
//! A listing or a check recovers old pending changes that it meets. In addition, each gateway runs [`recover_periodically`], which checks
//! every second which sessions watch. If a session has stopped watching and has pending changes in a bucket with a
//! notification configuration, it is fenced as soon as its lease has expired, and those changes are recovered, because their
//! events must not wait for a listing. The lease's object is the durable record of that work: it is removed when the work is
//! done, and all leases are checked once a minute.

use super::finish::FinishTask;
use super::{Finisher, IndexParts};
use crate::bucket::Bucket;
use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::execute;
use crate::lease::Leases;
use crate::notifying_buckets::NotifyingBuckets;
use crate::peers::Peers;
use crate::shards::{shard_name, shard_of};
use crate::time::now_ns;
use crate::topics::Topics;
use bytes::Bytes;
use nacre_index::key::{self, IndexRecordKind};
use nacre_index::op::Fetched;
use nacre_index::record::Pending;
use nacre_index::recovery::{self, PendingChange};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The minimum time for which a session is blocklisted, in seconds and in lifetimes of a ticket: after that time, it can't
/// come back under its old number.
const FENCE_S: f64 = 24.0 * 3600.0;
const FENCE_TICKETS: f64 = 6.0;
/// The lifetime of a ticket if the option can't be read, in seconds.
const TICKET_S: f64 = 3600.0;
/// Pending changes per page.
const PAGE: u64 = 1000;
/// How often a gateway checks which sessions watch. Up to half of this is added, so that gateways differ.
const SESSION_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The number of these checks between two checks of all leases, which find gateways that died before this one started.
const POLLS_PER_LEASE_SCAN: u32 = 60;
/// How often to check whether changes are finished, and the interval between the checks.
const FINISH_POLLS: u32 = 100;
const FINISH_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The maximum number of sessions that are followed. Others are found by their leases.
const MAX_SESSIONS: usize = 10_000;

/// A pending change whose gateway may be dead.
#[derive(Clone, Debug)]
pub(crate) struct StaleIntent {
    pub(crate) key: String,
    pub(crate) tag: String,
    pub(crate) pending: Pending,
}

impl StaleIntent {
    /// Whether it is older than `than`, which is longer than a successful change takes. Younger changes are left to their
    /// gateways.
    pub(crate) fn is_older(&self, than: Duration) -> bool {
        now_ns().saturating_sub(self.pending.begun_ns) > than.as_nanos() as u64
    }
}

impl From<PendingChange> for StaleIntent {
    fn from(PendingChange { key, tag, pending, .. }: PendingChange) -> StaleIntent {
        StaleIntent { key, tag, pending }
    }
}

/// Recovers the pending changes of gateways that ended.
pub(crate) struct ChangeRecovery {
    connection: Arc<Connection>,
    peers: Arc<Peers>,
    leases: Arc<Leases>,
    notifying: Arc<NotifyingBuckets>,
    topics: Arc<Topics>,
    finisher: Arc<Finisher>,
    pending_expiration: Duration,
}

impl ChangeRecovery {
    pub(super) fn new(
        parts: &IndexParts,
        finisher: &Arc<Finisher>,
        pending_expiration: Duration,
    ) -> ChangeRecovery {
        ChangeRecovery {
            connection: Arc::clone(&parts.connection),
            peers: Arc::clone(&parts.peers),
            leases: Arc::clone(&parts.leases),
            notifying: Arc::clone(&parts.notifying),
            topics: Arc::clone(&parts.topics),
            finisher: Arc::clone(finisher),
            pending_expiration,
        }
    }

    /// Queues those of `intents` whose gateways are dead to be finished or cancelled; returns their number.
    pub(crate) async fn recover_stale(&self, bucket: &Bucket, intents: Vec<StaleIntent>) -> Result<usize> {
        let alive: BTreeSet<String> = self.peers.live_gateways().await?;
        let mut fenced = BTreeMap::new();
        let mut recovered = 0;
        for StaleIntent { key, tag, pending } in intents {
            let session = &pending.session;
            if session.is_empty() || alive.contains(session) || session == self.connection.session() {
                continue;
            }
            let is_fenced = match fenced.get(session) {
                Some(is_fenced) => *is_fenced,
                None => {
                    let is_fenced = self.fence_if_lease_expired(session).await?;
                    if is_fenced {
                        let buckets = self.buckets_with_pending(session).await?;
                        self.recover_orphans(&buckets, session).await?;
                        self.leases.remove(session).await?;
                    }
                    fenced.insert(session.clone(), is_fenced);
                    is_fenced
                }
            };
            if !is_fenced {
                continue;
            }
            let shard = shard_of(bucket, &key);
            self.finisher.enqueue((&bucket.name, &shard), FinishTask::Orphan { key, tag }).await;
            recovered += 1;
        }
        Ok(recovered)
    }

    /// Recovers a change that a request waits for, if its gateway is dead.
    pub(crate) async fn recover_change(&self, bucket: &Bucket, key: &str, tag: &str) -> Result<()> {
        let (shard, name) = (shard_of(bucket, key), key::pending(key, tag));
        let found = self.connection.pools.index.omap_get_vals_by_keys(&shard, vec![name.clone()]).await?;
        let Some(value) = found.get(&name) else { return Ok(()) };
        let pending = crate::record::decode::<Pending>(&shard, value)?;
        let intent = StaleIntent { key: key.to_owned(), tag: tag.to_owned(), pending };
        if intent.is_older(self.pending_expiration) {
            self.recover_stale(bucket, vec![intent]).await?;
        }
        Ok(())
    }

    /// Fences a gateway without a watch, if its lease has expired; returns whether it is fenced.
    async fn fence_if_lease_expired(&self, session: &str) -> Result<bool> {
        let is_gone = self.leases.claim_if_dead(session).await?;
        if is_gone {
            self.fence(session).await?;
        }
        Ok(is_gone)
    }

    /// Makes OSDs refuse all operations that a session may have in flight, for as long as it may resend them.
    pub(super) async fn fence(&self, session: &str) -> Result<()> {
        tracing::warn!(
            session,
            "rgw: a gateway is gone and is blocklisted; its pending changes are recovered"
        );
        let ticket = self
            .connection
            .cluster
            .option("auth_service_ticket_ttl")
            .and_then(|life| life.parse::<f64>().ok());
        let expire = FENCE_S.max(FENCE_TICKETS * ticket.unwrap_or(TICKET_S));
        let command = serde_json::json!({
            "prefix": "osd blocklist", "blocklistop": "add", "addr": session, "expire": expire,
        });
        self.connection.cluster.command(command.to_string(), "").await?;
        // Reads from here on are executed by OSDs that know the blocklist.
        self.connection.cluster.refresh_map().await?;
        self.topics.gateway_ended(session);
        Ok(())
    }

    /// Returns the buckets that have, or had, notification configurations and have pending changes of a session.
    async fn buckets_with_pending(&self, session: &str) -> Result<Vec<Bucket>> {
        let mut found = Vec::new();
        for bucket in self.notifying.all().await? {
            if !self.orphans(&bucket, session).await?.is_empty() {
                found.push(bucket);
            }
        }
        Ok(found)
    }

    /// Returns the pending changes of a session in a bucket, each with its shard.
    async fn orphans(&self, bucket: &Bucket, session: &str) -> Result<Vec<(String, FinishTask)>> {
        let mut found = Vec::new();
        for number in 0..bucket.shards.max(1) {
            let shard = shard_name(bucket, number);
            let mut after = Bytes::new();
            loop {
                let scan = recovery::scan(IndexRecordKind::Pending.prefix(), after, PAGE);
                let reply = execute::read(&self.connection.pools.index, &shard, &scan).await?;
                // The shard is absent if the bucket was removed or its index has moved.
                let Some(Fetched::Page(page)) = reply.and_then(|reply| reply.parts.into_iter().next()) else {
                    break;
                };
                for PendingChange { key, tag, pending, .. } in recovery::parse(&shard, &page)? {
                    if pending.session == session {
                        found.push((shard.clone(), FinishTask::Orphan { key, tag }));
                    }
                }
                match page.entries.last() {
                    Some((last, _)) if page.more => after = last.clone(),
                    _ => break,
                }
            }
        }
        Ok(found)
    }

    /// Finishes or cancels the changes of a fenced session in these buckets, and waits until this is done.
    async fn recover_orphans(&self, buckets: &[Bucket], session: &str) -> Result<()> {
        for bucket in buckets {
            for (shard, orphan) in self.orphans(bucket, session).await? {
                self.finisher.enqueue((&bucket.name, &shard), orphan).await;
            }
        }
        for bucket in buckets {
            let mut looks = 0;
            while !self.orphans(bucket, session).await?.is_empty() {
                looks += 1;
                if looks > FINISH_POLLS {
                    return Err(Error::Contended(bucket.name.clone()));
                }
                tokio::time::sleep(FINISH_POLL_INTERVAL).await;
            }
        }
        Ok(())
    }

    /// Recovers the changes that a session without a watch left in buckets with notifications. Returns `false` if this is
    /// not possible yet.
    async fn recover_session(&self, session: &str) -> Result<bool> {
        if !self.leases.exists(session).await? {
            // The session has ended, or another gateway has recovered its changes.
            return Ok(true);
        }
        let buckets = self.buckets_with_pending(session).await?;
        if buckets.is_empty() {
            // The session may come back. Its later changes are found by its lease.
            return Ok(true);
        }
        if !self.fence_if_lease_expired(session).await? {
            return Ok(false);
        }
        self.recover_orphans(&buckets, session).await?;
        self.leases.remove(session).await?;
        Ok(true)
    }

    /// Removes leases of gateways that ended without releasing them. A lease stays while its gateway has pending changes in
    /// buckets with notifications: it is the record by which these changes are recovered.
    pub(crate) async fn sweep_leases(&self) -> Result<()> {
        for session in self.leases.unwatched_sessions().await? {
            // Checked before the claim, which would block the gateways that recover the changes, and again after it, when no
            // further changes are made.
            let has_pending = !self.buckets_with_pending(&session).await?.is_empty();
            if has_pending || !self.leases.claim_if_dead(&session).await? {
                continue;
            }
            if self.buckets_with_pending(&session).await?.is_empty() {
                self.leases.remove(&session).await?;
            }
        }
        Ok(())
    }

    /// Recovers the changes of sessions that no longer watch. With `scan`, looks for them among all leases, too.
    async fn recover_lost_sessions(&self, sessions: &mut SessionTracker, scan: bool) -> Result<()> {
        let now = match self.peers.live_gateways().await {
            // No gateway ever watched.
            Err(error) if error.is_not_found() => return Ok(()),
            now => now?,
        };
        sessions.update(now, self.connection.session());
        if scan {
            let leases = self.leases.sessions().await?;
            sessions.add_lost(leases, self.connection.session());
        }
        let mut failure = None;
        for session in sessions.lost.clone() {
            match self.recover_session(&session).await {
                Ok(true) => drop(sessions.lost.remove(&session)),
                Ok(false) => {}
                // An error must not prevent the recovery of the other sessions.
                Err(error) => failure = Some(error),
            }
        }
        failure.map_or(Ok(()), Err)
    }
}

/// Sessions that a gateway follows.
#[derive(Debug, Default)]
struct SessionTracker {
    watching: BTreeSet<String>,
    /// Sessions that no longer watch and are not recovered.
    lost: BTreeSet<String>,
}

impl SessionTracker {
    /// Notes which sessions watch now.
    fn update(&mut self, now: BTreeSet<String>, own: &str) {
        self.lost.retain(|session| !now.contains(session));
        let before = std::mem::replace(&mut self.watching, now);
        self.add_lost(before, own);
    }

    /// Adds sessions that do not watch, as many as may be followed.
    fn add_lost(&mut self, sessions: impl IntoIterator<Item = String>, own: &str) {
        for session in sessions {
            if self.lost.len() >= MAX_SESSIONS {
                return;
            }
            if session != own && !self.watching.contains(&session) {
                self.lost.insert(session);
            }
        }
    }
}

/// Recovers the changes of other gateways that died, while this gateway exists.
pub(crate) async fn recover_periodically(recovery: Weak<ChangeRecovery>) {
    let mut sessions = SessionTracker::default();
    let mut looks = 0;
    loop {
        let jitter = SESSION_POLL_INTERVAL / 2 * (now_ns() % 1000) as u32 / 1000;
        tokio::time::sleep(SESSION_POLL_INTERVAL + jitter).await;
        let Some(recovery) = recovery.upgrade() else { return };
        let scan = looks % POLLS_PER_LEASE_SCAN == 0;
        if let Err(error) = recovery.recover_lost_sessions(&mut sessions, scan).await {
            if matches!(error, Error::Rados(nacre_client::Error::ShutDown | nacre_client::Error::Blocklisted))
            {
                return;
            }
            tracing::debug!(%error, "rgw: gateways that are gone are looked for again");
        }
        looks += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn sessions_that_stop_watching_are_lost_until_they_watch_again() {
        let mut sessions = SessionTracker::default();
        sessions.update(set(&["own", "a", "b"]), "own");
        assert!(sessions.lost.is_empty());
        sessions.update(set(&["b"]), "own");
        assert_eq!(sessions.lost, set(&["a"]));
        sessions.update(set(&["own", "b", "a"]), "own");
        assert!(sessions.lost.is_empty());
    }
}
