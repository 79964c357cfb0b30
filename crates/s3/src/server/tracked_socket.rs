//! The socket of a connection, which reports reads and writes to the connection's state. A socket is not closed before its
//! client has received its answer.

use super::connections::Connection;
use super::request_body::UnreadBody;
use std::future::Future;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// How long a client may continue to send data, which is discarded, after the gateway has closed its sending side.
const LINGER: Duration = Duration::from_secs(5);

/// A socket whose reads and writes are reported.
pub(super) struct TrackedSocket<S> {
    socket: S,
    connection: Arc<Connection>,
    unread: UnreadBody,
    /// Set when the sending side was closed while part of a body was unread.
    lingering: Option<Pin<Box<Sleep>>>,
}

impl<S> TrackedSocket<S> {
    pub(super) fn new(socket: S, connection: Arc<Connection>, unread: UnreadBody) -> TrackedSocket<S> {
        TrackedSocket { socket, connection, unread, lingering: None }
    }

    fn note_write(&self, polled: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match &polled {
            Poll::Ready(Ok(written)) => self.connection.answer_progress(*written),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => self.connection.begin_answer_wait(),
        }
        polled
    }

    fn note_flush(&self, polled: Poll<io::Result<()>>) -> Poll<io::Result<()>> {
        if polled.is_pending() {
            self.connection.begin_answer_wait();
        }
        polled
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TrackedSocket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.socket).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.connection.received();
        }
        polled
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for TrackedSocket<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.socket).poll_write(cx, buf);
        self.note_write(polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.socket).poll_write_vectored(cx, bufs);
        self.note_write(polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.socket).poll_flush(cx);
        if let Poll::Ready(Ok(())) = &polled {
            self.connection.answer_progress(0);
            self.connection.flushed();
        }
        self.note_flush(polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.lingering.is_none() {
            let polled = Pin::new(&mut self.socket).poll_shutdown(cx);
            ready!(self.note_flush(polled))?;
            if !self.unread.is_left() {
                return Poll::Ready(Ok(()));
            }
        }
        self.poll_linger(cx)
    }
}

impl<S: AsyncRead + Unpin> TrackedSocket<S> {
    /// Reads and discards what the client still sends, until the client closes the connection or [`LINGER`] has passed.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let TrackedSocket { socket, lingering, .. } = self;
        let lingering = lingering.get_or_insert_with(|| Box::pin(tokio::time::sleep(LINGER)));
        let mut space = [MaybeUninit::uninit(); 8 << 10];
        while lingering.as_mut().poll(cx).is_pending() {
            let mut buf = ReadBuf::uninit(&mut space);
            match ready!(Pin::new(&mut *socket).poll_read(cx, &mut buf)) {
                Ok(()) if !buf.filled().is_empty() => {}
                _ => break,
            }
        }
        Poll::Ready(Ok(()))
    }
}
