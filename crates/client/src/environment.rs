//! The production environment of code above the engine: a tokio runtime for asynchronous work, and the system's clocks.

use crate::native::now_ns;
use nacre_engine::IoCtx;
use nacre_striper::{Clock, Striper};
use nacre_task::{BoxedFuture, Env, Environment, Instant};
use nacre_types::errno::Errno;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::runtime::Handle;

/// How long a timer sleeps if the clock can't represent its time.
const FAR: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

struct TokioEnvironment {
    handle: Handle,
    origin: tokio::time::Instant,
}

/// The environment of a tokio runtime: its timers and tasks, the system's clocks and random numbers.
///
/// The runtime must have its timers enabled.
pub fn tokio_environment(handle: Handle) -> Env {
    Env::new(TokioEnvironment { handle, origin: tokio::time::Instant::now() })
}

impl Environment for TokioEnvironment {
    fn now(&self) -> Instant {
        Instant::from_origin(self.origin.elapsed())
    }

    fn wall(&self) -> SystemTime {
        SystemTime::now()
    }

    fn sleep_until(&self, at: Instant) -> BoxedFuture {
        let deadline = self.origin.checked_add(at.since_origin());
        let deadline = deadline.unwrap_or_else(|| self.origin + FAR);
        // The timer belongs to this runtime, on whichever thread it is polled.
        let _runtime = self.handle.enter();
        Box::pin(tokio::time::sleep_until(deadline))
    }

    fn spawn(&self, task: BoxedFuture) {
        self.handle.spawn(task);
    }

    fn fill_random(&self, out: &mut [u8]) -> nacre_task::Result<()> {
        getrandom::fill(out).map_err(|error| nacre_task::Error::NoRandomNumbers(error.to_string()))
    }
}

/// Returns a handle on the striped objects of a pool, in the context's namespace, with the system's clocks and random numbers.
pub fn striper(pool: IoCtx) -> Striper {
    Striper::new(pool, Arc::new(SystemClock { origin: std::time::Instant::now() }))
}

struct SystemClock {
    origin: std::time::Instant,
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    fn wall_ns(&self) -> u64 {
        now_ns()
    }

    fn random_u64(&self) -> nacre_engine::Result<u64> {
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes).map_err(|_| Errno::EIO)?;
        Ok(u64::from_le_bytes(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_engine::block_on;
    use nacre_task::Error;
    use tokio::runtime::Builder;

    #[test]
    fn tasks_timers_and_random_numbers_are_the_runtimes() {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let env = tokio_environment(runtime.handle().clone());
        let begun = env.now();
        // Joined and awaited on a thread outside the runtime.
        assert_eq!(block_on(env.spawn(async { 42 })), Ok(42));
        let limited = env.timeout(Duration::from_millis(20), std::future::pending::<()>());
        assert_eq!(block_on(limited), Err(Error::Elapsed));
        assert!(env.elapsed(begun) >= Duration::from_millis(20));
        assert_ne!(env.random_u64().unwrap(), env.random_u64().unwrap());
    }

    #[test]
    fn an_aborted_task_has_no_outcome() {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let env = tokio_environment(runtime.handle().clone());
        let task = env.spawn(std::future::pending::<()>());
        task.abort();
        assert_eq!(block_on(task), Err(Error::TaskLost));
    }

    #[test]
    fn a_deadline_beyond_all_time_does_not_overflow() {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let env = tokio_environment(runtime.handle().clone());
        let forever = env.sleep(Duration::MAX);
        assert_eq!(block_on(env.timeout(Duration::from_millis(1), forever)), Err(Error::Elapsed));
    }
}
