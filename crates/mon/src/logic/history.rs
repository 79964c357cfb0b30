//! Notices that the map store was restored from an old copy without a new generation (rule R7).
//!
//! Every map has a hash over all incrementals before it. OSDs report the newest map that they have seen, and the monitor
//! remembers it too. If the store lacks that map or holds another one for its epoch, then acknowledged changes are lost. From
//! then on nothing is committed, because the store would assign the same ids and epochs a second time.

use super::{LogLevel, MapState, Now};
use nacre_types::ids::{EntityName, Epoch};
use nacre_types::osdmap::{HistoryHash, MapVersion, OsdMap};
use std::collections::BTreeMap;

/// Number of epochs whose histories are remembered.
const MAX_EPOCHS: usize = 4_096;

/// The histories of the newest epochs.
#[derive(Clone, Debug, Default)]
pub struct EpochHistories(BTreeMap<Epoch, HistoryHash>);

impl EpochHistories {
    /// Adds the history of an epoch, and forgets the oldest if there are too many.
    pub fn add(&mut self, epoch: Epoch, history: HistoryHash) {
        self.0.insert(epoch, history);
        while self.0.len() > MAX_EPOCHS {
            self.0.pop_first();
        }
    }

    /// Whether `map`, at the end of these histories, continues the history of another map of its cluster, as far as it is known.
    pub fn contains(&self, map: &OsdMap, seen: MapVersion) -> bool {
        if seen.generation != map.generation {
            return seen.generation < map.generation;
        }
        let known = self.0.get(&seen.epoch).copied().unwrap_or_default();
        seen.epoch <= map.epoch && !known.contradicts(seen.history)
    }
}

impl MapState {
    /// Compares the newest map that a daemon has seen with the history in the store. Returns false, and commits nothing from then
    /// on, if the store lacks it.
    pub fn check_history(&mut self, now: Now, who: &EntityName, seen: MapVersion) -> bool {
        if self.histories.contains(&self.committed, seen) {
            return true;
        }
        let MapVersion { generation, epoch, history } = seen;
        let text = format!(
            "{who} has seen epoch {epoch} of generation {generation} with history {history}, which this map store does not hold: \
             the store was restored from an old copy; mint a new generation"
        );
        if self.rolled_back.insert(who.clone(), text.clone()).is_none() {
            self.log.append(now, "mon", LogLevel::Error, text);
        }
        false
    }

    /// Whether the map store was restored from an old copy. Nothing may be committed then, and nothing assigned.
    pub fn is_rolled_back(&self) -> bool {
        !self.rolled_back.is_empty()
    }
}
