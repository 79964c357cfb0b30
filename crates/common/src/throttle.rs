//! Bounds on the messages that handlers are processing.

use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A bound on bytes and messages. Cloning shares it.
#[derive(Debug, Clone)]
pub struct Throttle {
    bytes: Arc<Semaphore>,
    limit: u32,
    messages: Option<Arc<Semaphore>>,
}

/// A message's share of a [`Throttle`], released when dropped.
#[derive(Debug)]
pub struct Permit {
    _bytes: OwnedSemaphorePermit,
    _message: Option<OwnedSemaphorePermit>,
}

impl Throttle {
    /// Creates a bound of `bytes`, and of `messages` unless that is 0. A single message larger than `bytes` proceeds when no
    /// other message holds a share.
    pub fn new(bytes: u64, messages: u64) -> Throttle {
        let limit = u32::try_from(bytes.max(1)).unwrap_or(u32::MAX);
        let count = |n: u64| usize::try_from(n).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        Throttle {
            bytes: Arc::new(Semaphore::new(limit as usize)),
            limit,
            messages: (messages > 0).then(|| Arc::new(Semaphore::new(count(messages)))),
        }
    }

    fn share(&self, bytes: u64) -> u32 {
        u32::try_from(bytes).unwrap_or(u32::MAX).min(self.limit)
    }

    /// Returns a share for one message if there is room now.
    pub fn try_take(&self, bytes: u64) -> Option<Permit> {
        let message = match &self.messages {
            Some(messages) => Some(messages.clone().try_acquire_owned().ok()?),
            None => None,
        };
        let bytes = self.bytes.clone().try_acquire_many_owned(self.share(bytes)).ok()?;
        Some(Permit { _bytes: bytes, _message: message })
    }

    /// Returns a share for one message. Waits for room, in order of arrival.
    pub async fn take(&self, bytes: u64) -> Permit {
        const OPEN: &str = "invariant: throttles are never closed";
        let message = match &self.messages {
            Some(messages) => Some(messages.clone().acquire_owned().await.expect(OPEN)),
            None => None,
        };
        let bytes = self.bytes.clone().acquire_many_owned(self.share(bytes)).await.expect(OPEN);
        Permit { _bytes: bytes, _message: message }
    }

    /// The number of free bytes.
    pub fn free_bytes(&self) -> usize {
        self.bytes.available_permits()
    }
}
