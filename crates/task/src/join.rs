//! Handles of spawned tasks.

use crate::error::{Error, Result};
use futures::channel::oneshot;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A handle of a spawned task: a future of its result. Dropping it detaches the task, which continues.
///
/// The result is [`Error::TaskLost`] if the task was aborted, panicked, or its environment ended.
#[derive(Debug)]
pub struct JoinHandle<T> {
    outcome: oneshot::Receiver<T>,
    abort: AbortHandle,
}

impl<T> JoinHandle<T> {
    pub(crate) fn new(outcome: oneshot::Receiver<T>, abort: futures::future::AbortHandle) -> JoinHandle<T> {
        JoinHandle { outcome, abort: AbortHandle(abort) }
    }

    /// Aborts the task at its next suspension point and drops what it owns. Has no effect on a task that has ended.
    pub fn abort(&self) {
        self.abort.abort();
    }

    /// Returns a handle that can abort the task without waiting for it.
    pub fn abort_handle(&self) -> AbortHandle {
        self.abort.clone()
    }

    /// Converts the handle to one that aborts the task when it is dropped.
    pub fn abort_on_drop(self) -> AbortOnDrop<T> {
        AbortOnDrop(self)
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        let outcome = Pin::new(&mut self.outcome).poll(cx);
        outcome.map(|outcome| outcome.map_err(|_| Error::TaskLost))
    }
}

/// Aborts a task. Cheap to clone.
#[derive(Clone, Debug)]
pub struct AbortHandle(futures::future::AbortHandle);

impl AbortHandle {
    /// See [`JoinHandle::abort`].
    pub fn abort(&self) {
        self.0.abort();
    }
}

/// A [`JoinHandle`] that aborts its task when it is dropped.
#[derive(Debug)]
#[must_use = "dropping it aborts the task"]
pub struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> Future for AbortOnDrop<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
