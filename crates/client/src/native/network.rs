//! The thread that runs the connections and timers of sessions. Sessions may share one.
//!
//! It ends when its [`NetworkThread`] is dropped and every session on it has closed its connections.

use nacre_engine::{Error, Result, is_completion_thread, mark_completion_thread};
use nacre_types::errno::Errno;
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::runtime::{Builder, Handle};
use tokio::sync::mpsc;

/// A thread for the network of any number of sessions.
///
/// Callbacks run on it: one that blocks delays all sessions on the thread.
#[derive(Debug)]
pub struct NetworkThread {
    handle: Handle,
    /// Keeps the thread running; each session's task holds a copy. `None` while this is dropped, and if the thread is the caller's.
    alive: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl NetworkThread {
    /// Starts a thread. Fails with [`Error::Configuration`] if the system has no threads or descriptors left.
    pub fn start() -> Result<Arc<NetworkThread>> {
        let system = |error: std::io::Error| Error::Configuration {
            errno: Errno(error.raw_os_error().unwrap_or(Errno::EAGAIN.0)),
            detail: format!("the client's thread can't be started: {error}"),
        };
        let runtime = Builder::new_current_thread().enable_all().build().map_err(system)?;
        let handle = runtime.handle().clone();
        let (alive, mut ended) = mpsc::channel(1);
        let run = move || {
            mark_completion_thread();
            // Nothing is ever sent: this returns when the last sender is dropped.
            runtime.block_on(ended.recv());
        };
        let thread = std::thread::Builder::new().name("nacre-client".into()).spawn(run).map_err(system)?;
        Ok(Arc::new(NetworkThread { handle, alive: Some(alive), thread: Some(thread) }))
    }

    /// The calling thread, which must be inside a single-threaded Tokio runtime. Operations that it starts complete without a thread
    /// switch. It becomes a completion thread ([`is_completion_thread`]), which never blocks on an operation. When the runtime is dropped, its
    /// sessions end.
    pub fn of_this_thread() -> Arc<NetworkThread> {
        mark_completion_thread();
        Arc::new(NetworkThread { handle: Handle::current(), alive: None, thread: None })
    }

    /// The thread's runtime.
    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Runs a session. The thread stays until the session ends.
    pub(super) fn spawn(&self, session: impl Future<Output = ()> + Send + 'static) {
        let alive = self.alive.clone();
        self.handle.spawn(async move {
            session.await;
            drop(alive);
        });
    }
}

impl Drop for NetworkThread {
    fn drop(&mut self) {
        self.alive = None;
        if let Some(thread) = self.thread.take().filter(|_| !is_completion_thread())
            && thread.join().is_err()
        {
            tracing::error!("the client's thread panicked");
        }
    }
}
