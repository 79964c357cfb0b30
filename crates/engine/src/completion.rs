//! Handles of operations in flight: futures that any executor can poll and any thread can wait for.
//!
//! An operation has started when its handle exists; dropping the handle does not cancel it. The exception is an operation that
//! exceeds the client's bounds on operations in flight: it starts once it is polled (or waited for) and there is room.

use crate::error::{Error, Result};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use tokio::sync::oneshot;

/// An operation in flight: a future, or [`Pending::wait`] for callers without an executor.
#[must_use = "the operation's outcome is only known by awaiting or waiting"]
pub struct Pending<T> {
    state: State<T>,
}

enum State<T> {
    Ready(Option<Result<T>>),
    Receiving(oneshot::Receiver<Result<T>>),
    Boxed(Pin<Box<dyn Future<Output = Result<T>> + Send>>),
}

/// The sender for the outcome of a [`Pending`]. Dropping it fails the operation with [`Error::ShutDown`].
pub struct Completer<T>(oneshot::Sender<Result<T>>);

impl<T> Completer<T> {
    /// Delivers the outcome. Has no effect if the handle was dropped.
    pub fn complete(self, outcome: Result<T>) {
        // Fails if the receiver was dropped.
        let _ = self.0.send(outcome);
    }
}

impl<T: Send + 'static> Pending<T> {
    /// Creates a handle and its completer.
    pub fn channel() -> (Completer<T>, Pending<T>) {
        let (sender, receiver) = oneshot::channel();
        (Completer(sender), Pending { state: State::Receiving(receiver) })
    }

    /// Creates a handle with a known outcome.
    pub fn ready(result: Result<T>) -> Pending<T> {
        Pending { state: State::Ready(Some(result)) }
    }

    /// Creates a handle on a future.
    pub fn from_future(future: impl Future<Output = Result<T>> + Send + 'static) -> Pending<T> {
        Pending { state: State::Boxed(Box::pin(future)) }
    }

    /// Returns a handle on the outcome as converted by `convert`.
    pub fn then<U: Send + 'static>(
        self,
        convert: impl FnOnce(Result<T>) -> Result<U> + Send + 'static,
    ) -> Pending<U> {
        match self.state {
            State::Ready(result) => Pending { state: State::Ready(result.map(convert)) },
            state => Pending::from_future(async move { convert(Pending { state }.await) }),
        }
    }

    /// Blocks the calling thread until the outcome is available.
    ///
    /// # Panics
    /// On the engine's own thread, where the outcome could never arrive.
    pub fn wait(self) -> Result<T> {
        block_on(self)
    }
}

impl<T> Future for Pending<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        match &mut self.state {
            State::Ready(result) => {
                Poll::Ready(result.take().expect("invariant: a future is not polled after it is ready"))
            }
            State::Receiving(receiver) => {
                Pin::new(receiver).poll(cx).map(|outcome| outcome.unwrap_or(Err(Error::ShutDown)))
            }
            State::Boxed(future) => future.as_mut().poll(cx),
        }
    }
}

impl<T> Unpin for Pending<T> {}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

thread_local! {
    static ON_ENGINE_THREAD: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Marks the calling thread as the one that completes operations.
pub fn mark_completion_thread() {
    ON_ENGINE_THREAD.set(true);
}

/// Whether the calling thread completes operations, and so must never block on one.
pub fn is_completion_thread() -> bool {
    ON_ENGINE_THREAD.get()
}

/// Runs a future on the calling thread, which is parked while the future is pending.
pub fn block_on<F: Future>(future: F) -> F::Output {
    assert!(!is_completion_thread(), "a completion callback must not block on another operation");
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut cx = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut cx) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_reaches_a_waiting_thread() {
        let (completer, pending) = Pending::channel();
        let waiter = std::thread::spawn(move || pending.then(|r| r.map(|n: u32| n + 1)).wait());
        completer.complete(Ok(41));
        assert_eq!(waiter.join().unwrap().unwrap(), 42);
    }

    #[test]
    fn a_lost_operation_is_an_error_not_a_hang() {
        let (completer, pending) = Pending::<u32>::channel();
        drop(completer);
        assert!(matches!(pending.wait(), Err(Error::ShutDown)));
    }
}
