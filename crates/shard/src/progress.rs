//! The activity of the shards, for the watchdog.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The activity of the shards of an OSD.
#[derive(Debug)]
pub struct ShardActivity {
    shards: Vec<ShardProgress>,
    is_stalled: AtomicBool,
}

/// Times by CLOCK_BOOTTIME, 0 for none.
#[derive(Debug, Default)]
struct ShardProgress {
    turn_since_ns: AtomicU64,
    commit_since_ns: AtomicU64,
}

impl ShardActivity {
    /// Creates it for this many idle shards.
    pub fn new(shards: usize) -> ShardActivity {
        let shards = (0..shards).map(|_| ShardProgress::default()).collect();
        ShardActivity { shards, is_stalled: AtomicBool::new(false) }
    }

    /// Records that a shard begins a turn.
    pub fn begin_turn(&self, shard: usize, now_ns: u64) {
        self.shards[shard].turn_since_ns.store(now_ns, Ordering::Relaxed);
    }

    /// Records that a shard ended its turn. `commit_since_ns` is when its oldest change that is not durable was queued in the
    /// store.
    pub fn end_turn(&self, shard: usize, commit_since_ns: Option<u64>) {
        self.shards[shard].turn_since_ns.store(0, Ordering::Relaxed);
        self.shards[shard].commit_since_ns.store(commit_since_ns.unwrap_or(0), Ordering::Relaxed);
    }

    /// When the current turn of a shard began; `None` if it is in none.
    pub fn turn_since_ns(&self, shard: usize) -> Option<u64> {
        let since_ns = self.shards.get(shard)?.turn_since_ns.load(Ordering::Relaxed);
        (since_ns != 0).then_some(since_ns)
    }

    /// Whether a shard hangs, according to the watchdog. The OSD then does not report itself as healthy.
    pub fn is_stalled(&self) -> bool {
        self.is_stalled.load(Ordering::Relaxed)
    }

    /// Sets whether a shard hangs. Returns the previous value.
    pub fn set_stalled(&self, is_stalled: bool) -> bool {
        self.is_stalled.swap(is_stalled, Ordering::Relaxed)
    }

    /// For each shard: when its turn began, and when its oldest change that is not durable was queued in the store; 0 for none.
    pub fn busy_since_ns(&self) -> impl ExactSizeIterator<Item = (u64, u64)> {
        let times = |shard: &ShardProgress| {
            (shard.turn_since_ns.load(Ordering::Relaxed), shard.commit_since_ns.load(Ordering::Relaxed))
        };
        self.shards.iter().map(times)
    }
}
