//! The blocklist: clients that may not do I/O, until when.
//!
//! OSDs and clients apply an entry for as long as the map has it. An entry fences its client: others rely on none of the
//! client's operations being executed any more. A clock that jumps ahead must not end that, so an entry is removed only when
//! both its wall-clock time and its time on the monotonic clock have passed. At a start, the monotonic deadlines are derived
//! from the wall clock.

use super::{MapState, Now};
use std::collections::BTreeMap;

const NS_PER_MS: u64 = 1_000_000;

/// The earliest removal times of entries, in milliseconds of the monotonic clock.
#[derive(Debug, Default)]
pub(super) struct BlocklistDeadlines(BTreeMap<String, u64>);

impl BlocklistDeadlines {
    /// The deadlines of a map's entries at a start.
    pub(super) fn of(blocklist: &BTreeMap<String, u64>, now: Now) -> BlocklistDeadlines {
        BlocklistDeadlines(
            blocklist.iter().map(|(who, until_ns)| (who.clone(), deadline_ms(*until_ns, now))).collect(),
        )
    }
}

/// The monotonic time that corresponds to the wall-clock time `until_ns`. Rounded up, so that no entry is removed early.
fn deadline_ms(until_ns: u64, now: Now) -> u64 {
    now.mono_ms.saturating_add(until_ns.saturating_sub(now.wall_ns).div_ceil(NS_PER_MS))
}

impl MapState {
    /// Blocks the I/O of a client until the wall-clock time `until_ns`, and for at least the same time on the monotonic clock.
    /// `who` is a session (`client.4123`), an address, or a range of addresses.
    pub fn add_to_blocklist(&mut self, now: Now, who: String, until_ns: u64) {
        self.blocklist_deadlines.0.insert(who.clone(), deadline_ms(until_ns, now));
        self.working.blocklist.insert(who.clone(), until_ns);
        self.changes.blocklist.insert(who);
    }

    /// Removes the entries that have expired on both clocks.
    pub(super) fn expire_blocklist(&mut self, now: Now) {
        let deadlines = &mut self.blocklist_deadlines.0;
        deadlines.retain(|who, _| self.working.blocklist.contains_key(who));
        let is_over = |who: &str, until_ns: u64| {
            until_ns <= now.wall_ns && deadlines.get(who).is_some_and(|at| *at <= now.mono_ms)
        };
        let entries = self.working.blocklist.iter();
        let expired: Vec<String> =
            entries.filter(|(who, until)| is_over(who, **until)).map(|(who, _)| who.clone()).collect();
        for who in expired {
            self.working.blocklist.remove(&who);
            self.changes.blocklist.insert(who);
        }
    }
}
