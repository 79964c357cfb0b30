//! The bounds of concurrent deliveries.

use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{AcquireError, Semaphore, SemaphorePermit};

/// The number of concurrent spills: each holds a segment in memory.
const SPILLS: usize = 2;
/// The number of concurrent reads of segments.
const SEGMENT_READS: usize = 4;

/// The bounds of concurrent deliveries in a gateway.
pub(super) struct DeliveryLimits {
    slots: Semaphore,
    /// Slots of shards that probe their endpoint, so that endpoints that never answer do not use the slots of others.
    probes: Semaphore,
    /// The number of tasks that wait for a slot.
    waiting: AtomicUsize,
    pub(super) spills: Semaphore,
    pub(super) segment_reads: Semaphore,
}

impl DeliveryLimits {
    /// `slots` is the number of shards that are delivered concurrently.
    pub(super) fn new(slots: usize) -> DeliveryLimits {
        DeliveryLimits {
            slots: Semaphore::new(slots.max(1)),
            probes: Semaphore::new(slots.max(1)),
            waiting: AtomicUsize::new(0),
            spills: Semaphore::new(SPILLS),
            segment_reads: Semaphore::new(SEGMENT_READS),
        }
    }

    /// Waits for a slot.
    pub(super) async fn slot(&self, is_probe: bool) -> Result<SemaphorePermit<'_>, AcquireError> {
        if is_probe {
            return self.probes.acquire().await;
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let slot = self.slots.acquire().await;
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        slot
    }

    /// Whether tasks wait for a slot.
    pub(super) fn has_waiting_tasks(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    #[test]
    fn probes_do_not_use_the_slots_of_other_shards() {
        let limits = DeliveryLimits::new(1);
        let probe = limits.slot(true).now_or_never();
        assert!(limits.slot(true).now_or_never().is_none());
        let slot = limits.slot(false).now_or_never();
        assert!(probe.is_some() && slot.is_some() && !limits.has_waiting_tasks());
        let mut next = Box::pin(limits.slot(false));
        assert!((&mut next).now_or_never().is_none() && limits.has_waiting_tasks());
        drop(slot);
        assert!(next.now_or_never().is_some() && !limits.has_waiting_tasks());
    }
}
