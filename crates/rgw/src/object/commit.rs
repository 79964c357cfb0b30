//! Commits of changes. The changes of one key are committed one after the other.
//!
//! Two commits of a key that are built on the same head conflict: only one of them succeeds. So a gateway makes the commits of a
//! key one at a time, and caches what the last one left: the next one builds on that without reading the head. A commit by
//! another gateway, or tidying of the head, only costs a refused commit and a read.

use super::index_op::IndexOp;
use crate::bucket::Bucket;
use crate::error::{Error, Result};
use crate::execute;
use crate::gateway::Gateway;
use crate::stored::{HeadState, head_name};
use nacre_index::commit::{self, AssumedHead, Commit};
use nacre_index::prepare::KeyView;
use nacre_index::record::{ChangeEffect, CommitRecord};
use nacre_types::hash::ceph_str_hash_rjenkins;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::sync::OwnedMutexGuard;

/// How many keys' last commits are cached. Keys that are being committed are never evicted.
const MAX_CACHED_COMMITS: usize = 4096;
/// Entries of a [`RatioEstimator`].
const ESTIMATES: usize = 1024;
/// How many recent changes an estimate covers.
const ESTIMATE_WINDOW: u8 = 16;
/// From this share on, in 256ths, a read in advance costs less than guesses that turn out wrong.
const HIGH_RATIO: u8 = 64;
/// Attempts at a commit that conflicts with commits of other gateways, and by how much the delay between them grows each time.
const ATTEMPTS: u32 = 40;
const CAS_RETRY_DELAY: Duration = Duration::from_millis(1);
/// How often a commit waits for earlier changes of the key to be finished, and how long each time.
const BACKLOG_ATTEMPTS: u32 = 40;
const BACKLOG_DELAY: Duration = Duration::from_millis(50);

/// What the last commit of a key left; `None` if that is not known.
type LastCommit = Arc<tokio::sync::Mutex<Option<AssumedHead>>>;

/// The last commits of this gateway, by the name of the head.
#[derive(Debug, Default)]
pub(crate) struct LastCommits {
    all: Mutex<HashMap<String, LastCommit>>,
    /// The share of writes that replaced an object.
    replacing: RatioEstimator,
    /// The share of removals with an event whose object had metadata or tags.
    attributed: RatioEstimator,
}

/// For each bucket, the share of its recent changes that were of some kind, in 256ths. Buckets whose ids have the same hash share
/// an estimate, which costs only time.
#[derive(Debug)]
struct RatioEstimator(Box<[AtomicU8]>);

impl Default for RatioEstimator {
    fn default() -> RatioEstimator {
        RatioEstimator((0..ESTIMATES).map(|_| AtomicU8::new(0)).collect())
    }
}

impl RatioEstimator {
    fn of(&self, bucket: &Bucket) -> &AtomicU8 {
        &self.0[ceph_str_hash_rjenkins(bucket.id.as_bytes()) as usize % ESTIMATES]
    }

    fn is_small(&self, bucket: &Bucket) -> bool {
        self.of(bucket).load(Relaxed) < HIGH_RATIO
    }

    /// Records whether a change was of this kind.
    fn note(&self, bucket: &Bucket, is_one: bool) {
        let estimate = self.of(bucket);
        let old = estimate.load(Relaxed);
        // An update that another thread overwrites does not matter.
        let new = if is_one {
            old + (u8::MAX - old).div_ceil(ESTIMATE_WINDOW)
        } else {
            old - old.div_ceil(ESTIMATE_WINDOW)
        };
        estimate.store(new, Relaxed);
    }
}

impl LastCommits {
    /// Whether a write to the key may assume that the key is new without asking the index: few recent writes to the bucket
    /// replaced an object, and this gateway has not cached the key.
    pub(super) fn expects_new(&self, bucket: &Bucket, key: &str) -> bool {
        self.replacing.is_small(bucket) && !self.all.lock().contains_key(&head_name(&bucket.id, key))
    }

    /// Records whether a write to the bucket was to a new key.
    pub(super) fn record_is_new(&self, bucket: &Bucket, is_new: bool) {
        self.replacing.note(bucket, !is_new);
    }

    /// Whether a removal with an event may assume that the index has all that the event needs: few recent ones removed an object
    /// with metadata or tags.
    pub(super) fn expects_no_attributes(&self, bucket: &Bucket) -> bool {
        self.attributed.is_small(bucket)
    }

    /// Records whether a removal with an event was of an object without metadata and tags.
    pub(super) fn record_no_attributes(&self, bucket: &Bucket, is_plain: bool) {
        self.attributed.note(bucket, !is_plain);
    }

    fn of(&self, name: &str) -> LastCommit {
        let mut all = self.all.lock();
        if let Some(last) = all.get(name) {
            return Arc::clone(last);
        }
        if all.len() >= MAX_CACHED_COMMITS {
            all.retain(|_, last| Arc::strong_count(last) > 1);
        }
        let last = LastCommit::default();
        all.insert(name.to_owned(), Arc::clone(&last));
        last
    }

    /// Forgets what the last commit of a head left, unless a commit of the head is in progress, which finds the change by itself.
    pub(crate) fn invalidate(&self, name: &str) {
        let last = self.all.lock().get(name).map(Arc::clone);
        if let Some(last) = last
            && let Ok(mut last) = last.try_lock()
        {
            *last = None;
        }
    }
}

/// The right to commit changes of a key in this gateway.
pub(super) struct CommitGuard {
    gateway: Arc<Gateway>,
    name: String,
    last: OwnedMutexGuard<Option<AssumedHead>>,
    /// Evidence of the last attempt to remove the head, which leaves no evidence in it.
    removal: Option<CommitRecord>,
    attempts: u32,
    crowded: u32,
}

/// What a read of a head for a commit found.
pub(super) enum HeadRead {
    /// The change has already taken effect: an OSD executed an attempt, and did not recognize it when it was resent.
    Committed(Box<CommitRecord>),
    /// The state to build the commit on.
    State(Box<HeadState>),
}

impl CommitGuard {
    /// Waits for the right to commit a change of the head `name`.
    pub(super) async fn acquire(gateway: &Arc<Gateway>, name: &str) -> CommitGuard {
        let last = gateway.commits.of(name).lock_owned().await;
        CommitGuard {
            gateway: Arc::clone(gateway),
            name: name.to_owned(),
            last,
            removal: None,
            attempts: 0,
            crowded: 0,
        }
    }

    /// Takes what the previous commit left, unless the index knows of later changes.
    pub(super) fn take_assumed_head(&mut self, view: &KeyView) -> Option<AssumedHead> {
        let base = self.last.take()?;
        (base.seq() >= view.last_finished()).then_some(base)
    }

    /// Whether a head that was read with this RADOS version may still be current: another commit of this gateway may have changed
    /// it since.
    pub(super) fn is_current(&self, version: u64) -> bool {
        match &*self.last {
            Some(AssumedHead::Head(head)) => head.version <= version,
            _ => true,
        }
    }

    /// Reads the head, and looks for evidence of `op` in it.
    pub(super) async fn read_head(&self, op: &IndexOp) -> Result<HeadRead> {
        let state = self.gateway.objects.head_state(&self.name).await?;
        let made = commit::find_commit(op.tag(), self.removal.as_ref(), state.protocol.as_ref());
        Ok(match made {
            Some(evidence) => HeadRead::Committed(Box::new(evidence)),
            None => HeadRead::State(Box::new(state)),
        })
    }

    /// Executes a commit of `op`. Returns `None` if the commit has to be built again: the head is not what it was built on, or
    /// too many changes of the key are not finished. Fails with [`Error::Contended`] after many attempts.
    pub(super) async fn commit(
        &mut self,
        op: &mut IndexOp,
        built: nacre_index::Result<Commit>,
    ) -> Result<Option<CommitRecord>> {
        if matches!(built, Err(nacre_index::Error::TooManyPending(_))) {
            self.wait_backlog().await?;
            op.refresh_view().await?;
            return Ok(None);
        }
        self.execute(op, built?).await
    }

    /// Like [`CommitGuard::commit`], for a commit that could be built.
    async fn execute(&mut self, op: &IndexOp, commit: Commit) -> Result<Option<CommitRecord>> {
        *self.last = None;
        let mut commit = commit;
        let write = std::mem::take(&mut commit.write);
        if commit.evidence.content == ChangeEffect::Removed {
            self.removal = Some(commit.evidence.clone());
        }
        let written = execute::write(&self.gateway.pools.data, &self.name, write).await;
        match written {
            Ok(version) => {
                let evidence = commit.evidence.clone();
                *self.last = Some(commit.resulting_head(version));
                Ok(Some(evidence))
            }
            Err(error) if execute::is_guard_mismatch(&error) => {
                self.back_off().await?;
                Ok(None)
            }
            Err(error) if error.is_outcome_unknown() => match self.read_head(op).await {
                Ok(HeadRead::Committed(evidence)) => Ok(Some(*evidence)),
                Ok(HeadRead::State(_)) | Err(_) => Err(error),
            },
            Err(error) => Err(error),
        }
    }

    /// Counts an attempt that failed because another gateway changed the head. Waits before the next attempt, except after the
    /// first failure. Fails with [`Error::Contended`] after [`ATTEMPTS`] attempts.
    pub(super) async fn back_off(&mut self) -> Result<()> {
        self.attempts += 1;
        if self.attempts >= ATTEMPTS {
            return Err(Error::Contended(self.name.clone()));
        }
        if self.attempts > 1 {
            tokio::time::sleep(CAS_RETRY_DELAY * (self.attempts - 1)).await;
        }
        Ok(())
    }

    /// Waits because too many changes of the key are not finished. Fails with [`Error::Contended`] after [`BACKLOG_ATTEMPTS`]
    /// waits.
    async fn wait_backlog(&mut self) -> Result<()> {
        self.crowded += 1;
        if self.crowded > BACKLOG_ATTEMPTS {
            return Err(Error::Contended(self.name.clone()));
        }
        tokio::time::sleep(BACKLOG_DELAY).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_keys_are_forgotten_and_busy_ones_are_not() {
        let commits = LastCommits::default();
        let busy = commits.of("busy");
        for key in 0..2 * MAX_CACHED_COMMITS {
            drop(commits.of(&key.to_string()));
        }
        assert!(commits.all.lock().len() <= MAX_CACHED_COMMITS);
        assert!(Arc::ptr_eq(&busy, &commits.of("busy")));
    }

    #[test]
    fn the_index_is_asked_where_many_writes_replace_objects() {
        let commits = LastCommits::default();
        let bucket = Bucket { id: "b".into(), ..Bucket::default() };
        assert!(commits.expects_new(&bucket, "k"));
        drop(commits.of(&head_name(&bucket.id, "k")));
        assert!(!commits.expects_new(&bucket, "k"), "it was written here");
        let after = |replaced: usize, of: usize| {
            for at in 0..100 * of {
                commits.record_is_new(&bucket, at % of >= replaced);
            }
            commits.expects_new(&bucket, "new")
        };
        assert!(after(0, 1) && after(1, 20));
        assert!(!after(1, 1) && !after(1, 2));
        assert!(after(0, 1));
    }

    #[test]
    fn a_tidied_head_is_read_again() {
        let commits = LastCommits::default();
        *commits.of("k").try_lock().unwrap() = Some(AssumedHead::Absent);
        commits.invalidate("k");
        assert_eq!(*commits.of("k").try_lock().unwrap(), None);
    }
}
