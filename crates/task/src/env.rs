//! The environment: the trait that production and the simulator implement, and the handle that code uses.

use crate::error::{Error, Result};
use crate::instant::Instant;
use crate::join::JoinHandle;
use futures::channel::oneshot;
use futures::future::abortable;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A future without a result, as environments run and return them.
pub type BoxedFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The interface that production and the simulator implement. Code uses it through [`Env`].
pub trait Environment: Send + Sync + 'static {
    /// The monotonic clock.
    fn now(&self) -> Instant;

    /// The time of day, which may jump in both directions.
    fn wall(&self) -> SystemTime;

    /// Completes at `at` or slightly later, or at once if that has passed.
    fn sleep_until(&self, at: Instant) -> BoxedFuture;

    /// Runs a task. An environment that has ended drops it.
    fn spawn(&self, task: BoxedFuture);

    /// Fills `out` with random bytes. In production they are suitable for keys.
    fn fill_random(&self, out: &mut [u8]) -> Result<()>;
}

/// The environment that code runs in. Cheap to clone.
#[derive(Clone)]
pub struct Env(Arc<dyn Environment>);

impl std::fmt::Debug for Env {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Env")
    }
}

impl Env {
    /// Creates a handle on an environment.
    pub fn new(environment: impl Environment) -> Env {
        Env(Arc::new(environment))
    }

    /// The monotonic clock.
    pub fn now(&self) -> Instant {
        self.0.now()
    }

    /// The time since `earlier`.
    pub fn elapsed(&self, earlier: Instant) -> Duration {
        self.now() - earlier
    }

    /// The time of day, which may jump in both directions.
    pub fn wall(&self) -> SystemTime {
        self.0.wall()
    }

    /// The time of day in nanoseconds since 1970; 0 before that.
    pub fn wall_ns(&self) -> u64 {
        let since = self.wall().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Completes after `wait`, counted from this call.
    pub fn sleep(&self, wait: Duration) -> BoxedFuture {
        self.0.sleep_until(self.now() + wait)
    }

    /// Completes at `at`.
    pub fn sleep_until(&self, at: Instant) -> BoxedFuture {
        self.0.sleep_until(at)
    }

    /// Returns the result of `future`, or [`Error::Elapsed`] after `limit`, counted from this call. The future is then dropped.
    pub fn timeout<F: Future>(
        &self,
        limit: Duration,
        future: F,
    ) -> impl Future<Output = Result<F::Output>> + use<F> {
        let mut sleep = self.sleep(limit);
        async move {
            let mut future = pin!(future);
            poll_fn(|cx| {
                if let Poll::Ready(outcome) = future.as_mut().poll(cx) {
                    return Poll::Ready(Ok(outcome));
                }
                sleep.as_mut().poll(cx).map(|()| Err(Error::Elapsed))
            })
            .await
        }
    }

    /// Runs a future as a separate task. See [`JoinHandle`].
    pub fn spawn<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        let (sender, outcome) = oneshot::channel();
        let (future, abort) = abortable(future);
        self.0.spawn(Box::pin(async move {
            if let Ok(value) = future.await {
                // Fails if the handle was dropped.
                let _ = sender.send(value);
            }
        }));
        JoinHandle::new(outcome, abort)
    }

    /// Lets other tasks run.
    pub async fn yield_now(&self) {
        let mut yielded = false;
        poll_fn(|cx| {
            if yielded {
                return Poll::Ready(());
            }
            yielded = true;
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    /// Fills `out` with random bytes. In production they are suitable for keys.
    pub fn fill_random(&self, out: &mut [u8]) -> Result<()> {
        self.0.fill_random(out)
    }

    /// Returns 64 random bits.
    pub fn random_u64(&self) -> Result<u64> {
        let mut bytes = [0; 8];
        self.fill_random(&mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Returns a random time below `longest`, to spread the actions of several tasks; half of it if there are no random
    /// numbers.
    pub fn jitter(&self, longest: Duration) -> Duration {
        let longest_ns = u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX);
        match self.random_u64() {
            Ok(bits) if longest_ns > 0 => Duration::from_nanos(bits % longest_ns),
            _ => longest / 2,
        }
    }
}

#[cfg(test)]
mod tests;
