//! Bodies of requests: whether they come in time, and those that are answered before they were read to their end.
//!
//! Reading a body that does not come in time, or comes too slowly, fails with [`Stalled`].
//!
//! What was not read stands between such a request and the next one on its connection, so the connection ends with the
//! answer, and says so. And it ends gently: a socket that is closed with bytes unread resets the connection, and a client
//! that is still sending would find the reset where it looks for the answer.

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
pub(super) struct Unread(Arc<AtomicBool>);

impl Unread {
    /// Whether there is something that was not read.
    pub(super) fn is_left(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    fn set(&self, left: bool) {
        self.0.store(left, Ordering::Release);
    }

    /// The body of the connection's next request, watched.
    pub(super) fn watch(&self, body: Incoming, connection: Arc<Connection>) -> Watched {
        self.set(!body.is_end_stream());
        Watched { body, unread: self.clone(), connection, timer: None }
    }
}

/// The client has not sent the body in time.
#[derive(Debug, thiserror::Error)]
#[error("the body of the request did not come in time")]
pub(super) struct Stalled;

/// A body that tells when it was read to its end, and fails when it does not come in time.
#[derive(Debug)]
pub(super) struct Watched {
    body: Incoming,
    unread: Unread,
    connection: Arc<Connection>,
    /// Runs out no later than the client's time.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Watched {
    /// Whether the client has had its time, of which more is allowed as bytes come.
    fn poll_stalled(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Watched { connection, timer, .. } = self;
        let timer = timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(connection.body_patience())));
        while timer.as_mut().poll(cx).is_ready() {
            let patience = connection.body_patience();
            if patience.is_zero() {
                return Poll::Ready(());
            }
            timer.as_mut().reset(tokio::time::Instant::now() + patience);
        }
        Poll::Pending
    }
}

impl Body for Watched {
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
                self.connection.body_came(bytes);
                if frame.is_none() || self.body.is_end_stream() {
                    self.unread.set(false);
                }
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
            Poll::Pending => {
                self.connection.body_awaited();
                std::task::ready!(self.poll_stalled(cx));
                self.connection.time_out();
                Poll::Ready(Some(Err(Stalled.into())))
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
