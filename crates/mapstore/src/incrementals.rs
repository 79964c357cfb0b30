//! The newest incrementals, encoded, for subscribers to the map.

use bytes::Bytes;
use nacre_types::ids::Epoch;
use std::collections::VecDeque;

/// Maximum number of incrementals that are kept.
const MAX_INCREMENTALS: usize = 1_000;
/// The same limit in bytes.
const MAX_BYTES: usize = 32 << 20;

/// A bounded number of incrementals, the newest ones.
#[derive(Debug)]
pub struct IncrementalCache {
    /// The newest epoch.
    last: Epoch,
    kept: VecDeque<(Epoch, Bytes)>,
    bytes: usize,
}

impl IncrementalCache {
    /// An empty cache of a map at `epoch`.
    pub fn new(epoch: Epoch) -> IncrementalCache {
        IncrementalCache { last: epoch, kept: VecDeque::new(), bytes: 0 }
    }

    /// Adds the incremental that makes the next epoch.
    pub fn push(&mut self, epoch: Epoch, bytes: Bytes) {
        self.last = epoch;
        self.bytes += bytes.len();
        self.kept.push_back((epoch, bytes));
        while self.kept.len() > MAX_INCREMENTALS || self.bytes > MAX_BYTES {
            let Some((_, old)) = self.kept.pop_front() else { return };
            self.bytes -= old.len();
        }
    }

    /// The encoded incrementals from `first` on, at most `bytes` of them but at least one, or `None` if they are no longer
    /// kept.
    pub fn range(&self, first: Epoch, bytes: usize) -> Option<Vec<Bytes>> {
        if first > self.last {
            return Some(Vec::new());
        }
        let start = self.kept.iter().position(|(epoch, _)| *epoch == first)?;
        let mut taken = Vec::new();
        let mut total = 0;
        for (_, blob) in self.kept.range(start..) {
            total += blob.len();
            if total > bytes && !taken.is_empty() {
                break;
            }
            taken.push(blob.clone());
        }
        Some(taken)
    }
}
