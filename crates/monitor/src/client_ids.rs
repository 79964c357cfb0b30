//! Client ids that are reserved in the map store and not assigned yet.

use std::ops::Range;

/// Blocks of client ids. A second block is requested before the first one ends, so that new clients need not wait for
/// the store.
pub(super) struct ClientIds {
    current: Range<u64>,
    next: Option<Range<u64>>,
    is_requested: bool,
}

impl ClientIds {
    pub(super) fn new(current: Range<u64>) -> ClientIds {
        ClientIds { current, next: None, is_requested: false }
    }

    /// An id that was never assigned before, unless all are assigned.
    pub(super) fn allocate(&mut self) -> Option<u64> {
        if self.current.is_empty() {
            self.current = self.next.take()?;
        }
        self.current.next()
    }

    /// Whether another block must be requested. The caller does so.
    pub(super) fn take_request(&mut self) -> bool {
        let is_due = self.next.is_none() && !self.is_requested;
        self.is_requested |= is_due;
        is_due
    }

    /// Adds the requested block.
    pub(super) fn add(&mut self, block: Range<u64>) {
        self.is_requested = false;
        self.next = Some(block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_requested_ahead_and_ids_are_assigned_once() {
        let mut ids = ClientIds::new(10..12);
        assert!(ids.take_request() && !ids.take_request());
        assert_eq!([ids.allocate(), ids.allocate(), ids.allocate()], [Some(10), Some(11), None]);
        ids.add(20..21);
        assert!(!ids.take_request(), "no id of the block is assigned yet");
        assert_eq!(ids.allocate(), Some(20));
        assert!(ids.take_request());
        assert_eq!(ids.allocate(), None);
    }
}
