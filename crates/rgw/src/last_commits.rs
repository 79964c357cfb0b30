//! What this gateway knows of the last commits of keys, and of what recent changes of a bucket were.
//!
//! A gateway commits the changes of a key one after the other, and caches what the last commit left: the next one builds on that
//! without reading the head.

use crate::bucket::Bucket;
use crate::stored::head_name;
use nacre_index::commit::AssumedHead;
use nacre_types::hash::ceph_str_hash_rjenkins;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;
use tokio::sync::OwnedMutexGuard;

/// How many keys' last commits are cached. Keys that are being committed are never evicted.
const MAX_CACHED_COMMITS: usize = 4096;
/// Entries of a [`RatioEstimator`].
const ESTIMATES: usize = 1024;
/// How many recent changes an estimate covers.
const ESTIMATE_WINDOW: u8 = 16;
/// From this share on, in 256ths, a read in advance costs less than guesses that turn out wrong.
const HIGH_RATIO: u8 = 64;

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
    pub(crate) fn expects_new(&self, bucket: &Bucket, key: &str) -> bool {
        self.replacing.is_small(bucket) && !self.all.lock().contains_key(&head_name(&bucket.id, key))
    }

    /// Records whether a write to the bucket was to a new key.
    pub(crate) fn record_is_new(&self, bucket: &Bucket, is_new: bool) {
        self.replacing.note(bucket, !is_new);
    }

    /// Whether a removal with an event may assume that the index has all that the event needs: few recent ones removed an object
    /// with metadata or tags.
    pub(crate) fn expects_no_attributes(&self, bucket: &Bucket) -> bool {
        self.attributed.is_small(bucket)
    }

    /// Records whether a removal with an event was of an object without metadata and tags.
    pub(crate) fn record_no_attributes(&self, bucket: &Bucket, is_plain: bool) {
        self.attributed.note(bucket, !is_plain);
    }

    /// Waits for the right to commit a change of the head `name`. Returns what the last commit left.
    pub(crate) async fn lock(&self, name: &str) -> OwnedMutexGuard<Option<AssumedHead>> {
        self.of(name).lock_owned().await
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
