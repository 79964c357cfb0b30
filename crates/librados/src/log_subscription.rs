//! What a cluster handle keeps of its subscription to the cluster log.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A subscription of a caller to the log. After it is dropped, no callback starts.
pub(crate) struct MonitorLog(pub(crate) Arc<AtomicBool>);

impl Drop for MonitorLog {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}
