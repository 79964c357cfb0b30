//! Bounds on the requests that a client has in flight: `objecter_inflight_ops` and `objecter_inflight_op_bytes`.
//!
//! Callers wait in order of arrival. A request larger than the whole bound proceeds when it has the whole bound.

use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bounds on the number of operations and on their payload bytes; 0 means no bound.
pub(crate) struct Throttle {
    ops: Option<Arc<Semaphore>>,
    bytes: Option<(Arc<Semaphore>, u32)>,
}

/// A request's share of the bounds, released when dropped.
#[derive(Debug, Default)]
pub(crate) struct ThrottleShare {
    _ops: Option<OwnedSemaphorePermit>,
    _bytes: Option<OwnedSemaphorePermit>,
}

impl Throttle {
    pub(crate) fn new(max_ops: u64, max_bytes: u64) -> Throttle {
        let clamp = |bound: u64| u32::try_from(bound).unwrap_or(u32::MAX).min(Semaphore::MAX_PERMITS as u32);
        let semaphore = |bound: u64| Arc::new(Semaphore::new(clamp(bound) as usize));
        Throttle {
            ops: (max_ops > 0).then(|| semaphore(max_ops)),
            bytes: (max_bytes > 0).then(|| (semaphore(max_bytes), clamp(max_bytes))),
        }
    }

    /// Returns a share at once, or `None` if the caller would have to wait.
    pub(crate) fn try_acquire(&self, bytes: usize) -> Option<ThrottleShare> {
        let ops = match &self.ops {
            Some(semaphore) => Some(semaphore.clone().try_acquire_owned().ok()?),
            None => None,
        };
        let bytes = match &self.bytes {
            Some((semaphore, max)) if bytes > 0 => {
                Some(semaphore.clone().try_acquire_many_owned(at_most(bytes, *max)).ok()?)
            }
            _ => None,
        };
        Some(ThrottleShare { _ops: ops, _bytes: bytes })
    }

    /// Returns a share once there is room.
    pub(crate) async fn acquire(&self, bytes: usize) -> ThrottleShare {
        let never_closed = "invariant: the throttle's semaphores are never closed";
        let ops = match &self.ops {
            Some(semaphore) => Some(semaphore.clone().acquire_owned().await.expect(never_closed)),
            None => None,
        };
        let bytes = match &self.bytes {
            Some((semaphore, max)) if bytes > 0 => {
                let permits = at_most(bytes, *max);
                Some(semaphore.clone().acquire_many_owned(permits).await.expect(never_closed))
            }
            _ => None,
        };
        ThrottleShare { _ops: ops, _bytes: bytes }
    }
}

fn at_most(bytes: usize, max: u32) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX).min(max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_engine::block_on;

    #[test]
    fn both_bounds_hold_and_are_given_back() {
        let throttle = Throttle::new(2, 100);
        let first = throttle.try_acquire(60).unwrap();
        assert!(throttle.try_acquire(60).is_none());
        let second = throttle.try_acquire(0).unwrap();
        assert!(throttle.try_acquire(0).is_none());
        drop((first, second));
        assert!(throttle.try_acquire(100).is_some());
    }

    #[test]
    fn a_request_beyond_the_bound_passes_alone() {
        let throttle = Throttle::new(0, 100);
        let whole = block_on(throttle.acquire(1_000_000));
        assert!(throttle.try_acquire(1).is_none());
        drop(whole);
        assert!(throttle.try_acquire(1).is_some());
    }
}
