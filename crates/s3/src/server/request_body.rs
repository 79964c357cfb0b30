//! Bodies of requests: their time limit, and bodies that were not read to their end when the request is answered.
//!
//! Reading a body that does not arrive in time, or arrives too slowly, fails with [`BodyTimeout`].
//!
//! The unread rest of a body precedes the next request on the connection. The connection is therefore closed after the
//! answer, and the answer says so. It is not closed at once: closing a socket with unread bytes resets the connection, and
//! a client that is still sending would see the reset instead of the answer.

use super::connections::Connection;
use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use tokio::time::Sleep;

/// Whether the latest request of a connection has a body that was not read to its end.
#[derive(Clone, Debug, Default)]
pub(super) struct UnreadBody(Arc<AtomicBool>);

impl UnreadBody {
    /// Returns whether part of the body was not read.
    pub(super) fn is_left(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    fn set(&self, left: bool) {
        self.0.store(left, Ordering::Release);
    }

    /// Wraps the body of the connection's next request.
    pub(super) fn watch(&self, body: Incoming, connection: Arc<Connection>) -> TrackedRequestBody {
        self.set(!body.is_end_stream());
        TrackedRequestBody { body, unread: self.clone(), connection, timer: None }
    }
}

/// The client has not sent the body in time.
#[derive(Debug, thiserror::Error)]
#[error("the body of the request did not come in time")]
pub(super) struct BodyTimeout;

/// A body that records when it was read to its end, and fails when it does not arrive in time.
#[derive(Debug)]
pub(super) struct TrackedRequestBody {
    body: Incoming,
    unread: UnreadBody,
    connection: Arc<Connection>,
    /// Expires no later than the client's time limit.
    timer: Option<Pin<Box<Sleep>>>,
}

impl TrackedRequestBody {
    /// Becomes ready when the client's time limit has passed. Bytes that arrive extend the limit.
    fn poll_stalled(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let TrackedRequestBody { connection, timer, .. } = self;
        let timer = timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(connection.body_time_left())));
        while timer.as_mut().poll(cx).is_ready() {
            let patience = connection.body_time_left();
            if patience.is_zero() {
                return Poll::Ready(());
            }
            timer.as_mut().reset(tokio::time::Instant::now() + patience);
        }
        Poll::Pending
    }
}

impl Body for TrackedRequestBody {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(frame) => {
                let bytes = match &frame {
                    Some(Ok(frame)) => frame.data_ref().map_or(0, Bytes::len),
                    _ => 0,
                };
                self.connection.body_progress(bytes);
                if frame.is_none() || self.body.is_end_stream() {
                    self.unread.set(false);
                }
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
            Poll::Pending => {
                self.connection.begin_body_wait();
                std::task::ready!(self.poll_stalled(cx));
                self.connection.time_out();
                Poll::Ready(Some(Err(BodyTimeout.into())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
