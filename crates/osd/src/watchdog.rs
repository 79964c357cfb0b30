//! The watchdog: checks whether the shards and the store make progress, as Ceph's `HeartbeatMap` does for its threads.
//!
//! A shard records when its turn began, and since when its oldest change has been waiting to become durable. A dedicated thread reads both.
//! While a turn takes longer than `osd_op_thread_timeout`, the OSD answers no pings, so that its peers report it and other OSDs take over.
//! If a turn or a commit takes longer than `osd_op_thread_suicide_timeout`, the process is aborted: nothing else ends a thread that hangs
//! in a system call.

use nacre_common::config::Config;
use nacre_shard::progress::ShardActivity;
use nacre_types::ids::OsdId;
use std::io;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Interval between two looks.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum time that counts between two looks: a process that was suspended is not stuck.
const MAX_CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// A turn or commit that a look found under way, and for how long looks have found the same one.
#[derive(Clone, Copy, Default)]
struct ActivityTimer {
    since_ns: u64,
    lasts: Duration,
}

impl ActivityTimer {
    fn look(&mut self, since_ns: u64, passed: Duration) -> Duration {
        if since_ns == 0 || since_ns != self.since_ns {
            *self = ActivityTimer { since_ns, lasts: Duration::ZERO };
        } else {
            self.lasts += passed;
        }
        self.lasts
    }
}

/// What earlier looks found: turns and commits by shard.
#[derive(Default)]
struct StallWatch {
    turns: Vec<ActivityTimer>,
    commits: Vec<ActivityTimer>,
}

/// The longest turn and commit that are under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Longest {
    turn: Duration,
    commit: Duration,
}

impl StallWatch {
    /// Looks at all shards. `passed` is the time since the look before.
    fn look(&mut self, progress: &ShardActivity, passed: Duration) -> Longest {
        let passed = passed.min(MAX_CHECK_INTERVAL);
        let under_way = progress.busy_since_ns();
        self.turns.resize(under_way.len(), ActivityTimer::default());
        self.commits.resize(under_way.len(), ActivityTimer::default());
        let mut longest = Longest::default();
        for (((turn_ns, commit_ns), turn), commit) in under_way.zip(&mut self.turns).zip(&mut self.commits) {
            let turn = turn.look(turn_ns, passed);
            let commit = commit.look(commit_ns, passed);
            longest = Longest { turn: longest.turn.max(turn), commit: longest.commit.max(commit) };
        }
        longest
    }
}

/// Starts the watchdog of an OSD. It ends when `progress` is dropped.
pub(crate) fn start(progress: &Arc<ShardActivity>, config: &Config, whoami: OsdId) -> io::Result<()> {
    let (progress, config) = (Arc::downgrade(progress), config.clone());
    std::thread::Builder::new()
        .name(format!("{whoami}-watch"))
        .spawn(move || watch(&progress, &config, whoami))
        .map(drop)
}

fn watch(progress: &Weak<ShardActivity>, config: &Config, whoami: OsdId) {
    let mut watch = StallWatch::default();
    let mut looked = Instant::now();
    loop {
        std::thread::sleep(CHECK_INTERVAL);
        let Some(progress) = progress.upgrade() else { return };
        let now = Instant::now();
        let longest = watch.look(&progress, now - looked);
        looked = now;
        let options = config.snapshot();
        let (patience, limit) =
            (options.osd.osd_op_thread_timeout, options.osd.osd_op_thread_suicide_timeout);
        let stalls = !patience.is_zero() && longest.turn > patience;
        if progress.set_stalled(stalls) != stalls {
            if stalls {
                tracing::warn!(osd = %whoami, ?patience, "a shard hangs: pings are not answered");
            } else {
                tracing::info!(osd = %whoami, "the shards go on: pings are answered again");
            }
        }
        if !limit.is_zero() && longest.turn.max(longest.commit) > limit {
            tracing::error!(osd = %whoami, turn = ?longest.turn, commit = ?longest.commit,
                "a shard or the store hangs for longer than osd_op_thread_suicide_timeout: the OSD is aborted");
            // Gives the log's own thread time to write the message.
            std::thread::sleep(Duration::from_millis(200));
            std::process::abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn only_what_stays_the_same_counts() {
        let (progress, mut watch) = (ShardActivity::new(2), StallWatch::default());
        for turn in 1..=20 {
            progress.begin_turn(0, turn);
            assert_eq!(watch.look(&progress, SECOND).turn, Duration::ZERO);
            progress.end_turn(0, Some(turn));
            assert_eq!(watch.look(&progress, SECOND), Longest::default());
        }
        progress.begin_turn(1, 7);
        watch.look(&progress, SECOND);
        for seconds in 1..=5 {
            assert_eq!(watch.look(&progress, SECOND).turn, seconds * SECOND);
        }
        progress.end_turn(1, Some(3));
        let longest = (0..3).map(|_| watch.look(&progress, SECOND)).last().unwrap();
        assert!(longest.turn.is_zero() && longest.commit >= 2 * SECOND, "{longest:?}");
        progress.end_turn(0, None);
        progress.end_turn(1, None);
        assert_eq!(watch.look(&progress, SECOND), Longest::default());
    }

    #[test]
    fn a_process_that_was_suspended_is_not_stuck() {
        let (progress, mut watch) = (ShardActivity::new(1), StallWatch::default());
        progress.begin_turn(0, 1);
        watch.look(&progress, SECOND);
        assert_eq!(watch.look(&progress, 3600 * SECOND).turn, MAX_CHECK_INTERVAL);
    }
}
