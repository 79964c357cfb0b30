//! Threads that connections and shards run on.

use crate::error::OsdError;
use std::thread::JoinHandle;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// A thread with its own runtime.
pub(crate) struct RuntimeThread {
    pub(crate) handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl RuntimeThread {
    /// Starts a thread, which ends when the returned value is dropped.
    pub(crate) fn start(name: String) -> Result<RuntimeThread, OsdError> {
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|source| OsdError::Io { what: "make a runtime", source })?;
        let handle = runtime.handle().clone();
        let thread = std::thread::Builder::new()
            .name(name)
            .spawn(move || {
                // The thread ends whether the sender is used or dropped.
                let _ = runtime.block_on(stopped);
            })
            .map_err(|source| OsdError::Io { what: "start a thread", source })?;
        Ok(RuntimeThread { handle, stop: Some(stop), thread: Some(thread) })
    }

    /// Stops the thread and waits for its end.
    pub(crate) fn end(&mut self) {
        if let Some(stop) = self.stop.take() {
            // Fails only if the thread has ended already.
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("a thread of the OSD panicked");
        }
    }
}

impl Drop for RuntimeThread {
    fn drop(&mut self) {
        self.end();
    }
}
