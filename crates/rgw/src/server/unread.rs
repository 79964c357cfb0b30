//! Bodies of requests that are answered before they were read to their end.
//!
//! What was not read stands between such a request and the next one on its connection, so the connection ends with the
//! answer, and says so. And it ends gently: a socket that is closed with bytes unread resets the connection, and a client
//! that is still sending would find the reset where it looks for the answer.

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

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
    pub(super) fn watch(&self, body: Incoming) -> Watched {
        self.set(!body.is_end_stream());
        Watched { body, unread: self.clone() }
    }
}

/// A body that tells when it was read to its end.
#[derive(Debug)]
pub(super) struct Watched {
    body: Incoming,
    unread: Unread,
}

impl Body for Watched {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(frame) = &polled
            && (frame.is_none() || self.body.is_end_stream())
        {
            self.unread.set(false);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
