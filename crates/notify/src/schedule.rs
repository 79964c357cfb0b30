//! The schedule of checks of queue shards: which shards have a task, which are watched because another gateway delivers them,
//! and when shards and endpoints are checked next.
//!
//! The schedule has no tasks itself. The module of the tasks (`shard_tasks`) takes the checks that are due, so the parts that
//! request checks know nothing of the tasks.

use crate::queue_shard::ShardKey;
use nacre_queues::record::Owner;
use nacre_topics::topic::TopicId;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// The most shards of other gateways that are watched; the scan finds the others.
const MAX_WATCHED: usize = 16_384;

/// The notifications for the task of a shard.
#[derive(Default)]
pub(crate) struct ShardWaker {
    pub(crate) notify: Notify,
    /// Whether it was woken since its last check started.
    is_woken: AtomicBool,
    /// The shard's object is full, so batches must be spilled.
    pub(crate) must_spill: AtomicBool,
    /// The shard must be released.
    pub(crate) must_release: AtomicBool,
}

impl ShardWaker {
    fn wake(&self) {
        self.is_woken.store(true, Ordering::Release);
        self.notify.notify_one();
    }

    /// A check of the shard starts.
    pub(crate) fn begin_check(&self) {
        self.is_woken.store(false, Ordering::Release);
    }
}

/// A watched shard, which another gateway delivers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WatchedShard {
    pub(crate) owner: Owner,
    /// The number of checks in which no gateway had the lease.
    pub(crate) unowned_checks: u32,
}

/// What a timer checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CheckTarget {
    /// A shard.
    Shard(ShardKey),
    /// The endpoint of a topic, for which shards wait.
    Endpoint(TopicId),
}

#[derive(Default)]
struct Timers {
    at: BTreeSet<(u64, CheckTarget)>,
    of: BTreeMap<CheckTarget, u64>,
}

impl Timers {
    /// Sets a timer, unless it is already set for an earlier time.
    fn set(&mut self, target: CheckTarget, at_ns: u64) {
        if let Some(set) = self.of.get(&target).copied() {
            if set <= at_ns {
                return;
            }
            self.at.remove(&(set, target));
        }
        self.of.insert(target, at_ns);
        self.at.insert((at_ns, target));
    }

    fn pop_due(&mut self, now_ns: u64) -> Option<CheckTarget> {
        let (at, target) = *self.at.first().filter(|(at, _)| *at <= now_ns)?;
        self.at.remove(&(at, target));
        self.of.remove(&target);
        Some(target)
    }
}

/// The schedule of a gateway. Times are those of the monotonic clock.
#[derive(Default)]
pub(crate) struct ShardSchedule {
    running: Mutex<BTreeMap<ShardKey, Arc<ShardWaker>>>,
    watched: Mutex<BTreeMap<ShardKey, WatchedShard>>,
    timers: Mutex<Timers>,
    timers_changed: Notify,
}

impl ShardSchedule {
    /// Schedules a check of a shard at that time.
    pub(crate) fn wake_at(&self, key: ShardKey, at_ns: u64) {
        self.timers.lock().set(CheckTarget::Shard(key), at_ns);
        self.timers_changed.notify_one();
    }

    /// Schedules an immediate check of shards by the timer task.
    pub(crate) fn schedule_checks(&self, keys: BTreeSet<ShardKey>) {
        let mut timers = self.timers.lock();
        keys.into_iter().for_each(|key| timers.set(CheckTarget::Shard(key), 0));
        drop(timers);
        self.timers_changed.notify_one();
    }

    /// Schedules a probe of a topic's endpoint at that time.
    pub(crate) fn probe_at(&self, topic: TopicId, at_ns: u64) {
        self.timers.lock().set(CheckTarget::Endpoint(topic), at_ns);
        self.timers_changed.notify_one();
    }

    /// Removes and returns the checks that are due, in the order of their times.
    pub(crate) fn take_due(&self, now_ns: u64) -> Vec<CheckTarget> {
        let mut timers = self.timers.lock();
        std::iter::from_fn(|| timers.pop_due(now_ns)).collect()
    }

    /// The time of the next check.
    pub(crate) fn next_at_ns(&self) -> Option<u64> {
        self.timers.lock().at.first().map(|(at, _)| *at)
    }

    /// Completes when a timer is set, or all shards are woken.
    pub(crate) fn changed(&self) -> Notified<'_> {
        self.timers_changed.notified()
    }

    /// Wakes the tasks of all shards, and the timer task.
    pub(crate) fn wake_all(&self) {
        self.running.lock().values().for_each(|waker| waker.wake());
        self.timers_changed.notify_one();
    }

    /// Whether a task of this gateway processes the shard.
    pub(crate) fn is_running(&self, key: &ShardKey) -> bool {
        self.running.lock().contains_key(key)
    }

    /// Wakes the task of a shard. If it has none, this adds one, which the caller must start, and returns its waker.
    pub(crate) fn wake_or_add(&self, key: ShardKey, must_spill: bool) -> Option<Arc<ShardWaker>> {
        let mut running = self.running.lock();
        if let Some(waker) = running.get(&key) {
            waker.must_spill.fetch_or(must_spill, Ordering::AcqRel);
            waker.wake();
            return None;
        }
        let waker = Arc::new(ShardWaker::default());
        waker.must_spill.store(must_spill, Ordering::Release);
        running.insert(key, Arc::clone(&waker));
        Some(waker)
    }

    /// Removes the task of a shard after a check. If the shard was woken since the check started and `repeats` is set, the task
    /// remains and must check again: then this returns `false`.
    pub(crate) fn end_task(&self, key: &ShardKey, waker: &ShardWaker, repeats: bool) -> bool {
        let mut running = self.running.lock();
        let is_woken = waker.is_woken.swap(false, Ordering::AcqRel);
        waker.must_release.store(false, Ordering::Release);
        if is_woken && repeats {
            return false;
        }
        running.remove(key);
        true
    }

    /// Removes the task of a shard, which panicked.
    pub(crate) fn remove_task(&self, key: &ShardKey) {
        self.running.lock().remove(key);
    }

    /// Requests the task of a shard to release it, if there is one.
    pub(crate) fn release(&self, key: &ShardKey) {
        if let Some(waker) = self.running.lock().get(key) {
            waker.must_release.store(true, Ordering::Release);
            waker.wake();
        }
    }

    /// Watches a shard that has events and that another gateway delivers.
    pub(crate) fn watch_remote_shard(&self, key: ShardKey) {
        let mut watched = self.watched.lock();
        if watched.len() < MAX_WATCHED {
            watched.entry(key).or_default();
        }
    }

    pub(crate) fn watched(&self) -> BTreeMap<ShardKey, WatchedShard> {
        self.watched.lock().clone()
    }

    pub(crate) fn update_watched(&self, key: ShardKey, watched: Option<WatchedShard>) {
        match watched {
            Some(now) => drop(self.watched.lock().insert(key, now)),
            None => drop(self.watched.lock().remove(&key)),
        }
    }

    pub(crate) fn is_watched(&self, key: &ShardKey) -> bool {
        self.watched.lock().contains_key(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(shard: u32) -> ShardKey {
        ShardKey { topic: TopicId::from_random([1; 16]), generation: 1, shard }
    }

    #[test]
    fn the_earliest_time_of_a_check_counts() {
        let schedule = ShardSchedule::default();
        schedule.wake_at(key(1), 20);
        schedule.wake_at(key(1), 10);
        schedule.wake_at(key(1), 30);
        schedule.probe_at(key(1).topic, 15);
        schedule.schedule_checks(BTreeSet::from([key(2)]));
        assert_eq!(schedule.next_at_ns(), Some(0));
        assert_eq!(
            schedule.take_due(15),
            [CheckTarget::Shard(key(2)), CheckTarget::Shard(key(1)), CheckTarget::Endpoint(key(1).topic)]
        );
        assert_eq!((schedule.take_due(u64::MAX), schedule.next_at_ns()), (vec![], None));
    }

    #[test]
    fn a_shard_that_is_woken_during_a_check_is_checked_again() {
        let schedule = ShardSchedule::default();
        let waker = schedule.wake_or_add(key(1), false).unwrap();
        waker.begin_check();
        assert!(schedule.wake_or_add(key(1), true).is_none());
        assert!(waker.must_spill.load(Ordering::Acquire));
        assert!(!schedule.end_task(&key(1), &waker, true));
        assert!(schedule.is_running(&key(1)));
        waker.begin_check();
        assert!(schedule.end_task(&key(1), &waker, true));
        assert!(!schedule.is_running(&key(1)));
        // A request to release is for the current task only.
        let waker = schedule.wake_or_add(key(1), false).unwrap();
        schedule.release(&key(1));
        assert!(waker.must_release.load(Ordering::Acquire));
        assert!(schedule.end_task(&key(1), &waker, false));
        assert!(!waker.must_release.load(Ordering::Acquire));
    }

    #[test]
    fn the_number_of_watched_shards_is_bounded() {
        let schedule = ShardSchedule::default();
        (0..=MAX_WATCHED as u32).for_each(|shard| schedule.watch_remote_shard(key(shard)));
        assert_eq!(schedule.watched().len(), MAX_WATCHED);
        assert!(!schedule.is_watched(&key(MAX_WATCHED as u32)));
        schedule.update_watched(key(0), None);
        schedule.watch_remote_shard(key(MAX_WATCHED as u32));
        assert!(schedule.is_watched(&key(MAX_WATCHED as u32)));
    }
}
