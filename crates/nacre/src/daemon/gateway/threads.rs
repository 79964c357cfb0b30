//! The threads of a gateway.
//!
//! A gateway has its own runtime, whose threads share all its connections: each free thread takes the next connection that is
//! ready. Waiting requests occupy no thread, so one thread per core is enough. The process's other runtime serves signals and
//! the metrics endpoint, even while all of these threads are busy.

use anyhow::{Context, Result};
use std::future::poll_fn;
use std::num::NonZeroUsize;
use std::pin::pin;
use std::thread::available_parallelism;
use tokio::runtime::{Builder, Runtime};

/// The runtime of a gateway. Its tasks end when this is dropped.
pub(crate) struct GatewayRuntime {
    /// `None` only while this is being dropped.
    runtime: Option<Runtime>,
}

impl GatewayRuntime {
    /// Starts `wanted` threads (`rgw_thread_pool_size`), but no more than there are cores; 0 means one per core.
    pub(super) fn start(wanted: u64) -> Result<GatewayRuntime> {
        let cores = available_parallelism().map_or(1, NonZeroUsize::get);
        let count = thread_count(wanted, cores);
        tracing::info!(threads = count, "rgw: starting");
        GatewayRuntime::with(count)
    }

    fn with(count: usize) -> Result<GatewayRuntime> {
        let runtime =
            Builder::new_multi_thread().worker_threads(count).thread_name("rgw").enable_all().build();
        Ok(GatewayRuntime { runtime: Some(runtime.context("the gateway's threads can't be started")?) })
    }

    /// Runs `work` in the caller's task. The tasks that it spawns run on these threads, which also serve its sockets.
    pub(super) async fn enter<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        poll_fn(|context| {
            let _entered = self.runtime.as_ref().map(Runtime::enter);
            work.as_mut().poll(context)
        })
        .await
    }
}

impl Drop for GatewayRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Waiting for the threads would block a thread of the other runtime.
            runtime.shutdown_background();
        }
    }
}

/// Number of threads to start on a machine with this number of cores.
fn thread_count(wanted: u64, cores: usize) -> usize {
    match usize::try_from(wanted) {
        Ok(0) | Err(_) => cores,
        Ok(wanted) => wanted.min(cores),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Barrier};

    #[test]
    fn there_is_a_thread_per_core_and_never_more() {
        assert_eq!([0, 1, 3, 8, 512, u64::MAX].map(|wanted| thread_count(wanted, 8)), [8, 1, 3, 8, 8, 8]);
        assert_eq!(thread_count(0, 1), 1);
    }

    #[tokio::test]
    async fn tasks_that_are_spawned_within_share_the_threads() {
        const THREADS: usize = 3;
        let threads = GatewayRuntime::with(THREADS).unwrap();
        // Each task blocks its thread until all have one.
        let all = Arc::new(Barrier::new(THREADS));
        let spawned = threads.enter(async {
            let task = || {
                let all = Arc::clone(&all);
                tokio::spawn(async move {
                    all.wait();
                    std::thread::current().name().map(str::to_owned)
                })
            };
            [(); THREADS].map(|()| task())
        });
        for task in spawned.await {
            assert_eq!(task.await.unwrap().as_deref(), Some("rgw"));
        }
    }

    #[tokio::test]
    async fn tasks_end_with_their_threads() {
        let threads = GatewayRuntime::with(1).unwrap();
        let [task] = threads.enter(async { [tokio::spawn(std::future::pending::<()>())] }).await;
        drop(threads);
        assert!(task.await.unwrap_err().is_cancelled());
    }
}
