//! What a request's copy-from ops need of other objects.

use nacre_exec::Copied;
use nacre_types::errno::Errno;
use tokio::sync::OwnedSemaphorePermit;

/// The sources of a request's copy-from ops, with their share of the memory.
#[derive(Default)]
pub struct Fetched {
    /// By op: the copy, or why there is none.
    pub copies: Vec<Result<Copied, Errno>>,
    /// Shares of the memory; given back when dropped.
    pub rooms: Vec<OwnedSemaphorePermit>,
}

impl Fetched {
    /// Bytes that the copies write.
    pub fn bytes(&self) -> u64 {
        self.copies.iter().flatten().map(Copied::bytes).sum()
    }
}
