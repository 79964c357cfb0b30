//! A connection that is given up when its client takes nothing for too long: an answer that nobody reads holds room and
//! a request's place. And one that is not closed before its client has had its answer.

use super::unread::Unread;
use std::future::Future;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// How long a client may still send what nobody reads, after it was told that the connection ends.
const LINGER: Duration = Duration::from_secs(5);

/// A connection whose writes must get on.
pub(super) struct Patient<S> {
    socket: S,
    patience: Duration,
    /// Since nothing could be written.
    stalled: Option<Pin<Box<Sleep>>>,
    unread: Unread,
    /// Since the sending side was closed, when there is something unread.
    lingering: Option<Pin<Box<Sleep>>>,
}

impl<S> Patient<S> {
    /// Fails writes when the other side takes nothing for `patience`.
    pub(super) fn new(socket: S, patience: Duration, unread: Unread) -> Patient<S> {
        Patient { socket, patience, stalled: None, unread, lingering: None }
    }

    fn judge<T>(&mut self, polled: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.stalled = None;
            return polled;
        }
        let patience = self.patience;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        match stalled.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.socket).poll_write(cx, buf);
        self.judge(polled, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.socket).poll_write_vectored(cx, bufs);
        self.judge(polled, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.socket).poll_flush(cx);
        self.judge(polled, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.lingering.is_none() {
            let polled = Pin::new(&mut self.socket).poll_shutdown(cx);
            ready!(self.judge(polled, cx))?;
            if !self.unread.is_left() {
                return Poll::Ready(Ok(()));
            }
        }
        self.poll_linger(cx)
    }
}

impl<S: AsyncRead + Unpin> Patient<S> {
    /// Takes what the other side still sends, and drops it, until it ends or has had its time.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Patient { socket, lingering, .. } = self;
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

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn who_takes_nothing_is_given_up_and_who_is_slow_is_not() {
        let patience = Duration::from_millis(200);
        let (ours, mut theirs) = tokio::io::duplex(64);
        let writing = tokio::spawn(async move {
            Patient::new(ours, patience, Unread::default()).write_all(&[0; 1024]).await
        });
        let mut taken = 0;
        // Four times the patience in all.
        while taken < 1024 {
            tokio::time::sleep(patience / 4).await;
            taken += theirs.read(&mut [0; 64]).await.unwrap();
        }
        writing.await.unwrap().unwrap();

        let (ours, _theirs) = tokio::io::duplex(64);
        let error = Patient::new(ours, patience, Unread::default()).write_all(&[0; 1024]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
