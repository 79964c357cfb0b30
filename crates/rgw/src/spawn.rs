//! Tasks.

use tokio::task::JoinHandle;

/// Spawns a task for a large future. The future is boxed, because it would be moved several times before it runs.
pub fn spawn_boxed<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    tokio::spawn(Box::pin(future))
}
