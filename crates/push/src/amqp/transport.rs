//! Passes our connection to lapin: TLS is done by rustls, and the address was checked.

use crate::dial::Stream;
use async_rs::traits::Reactor;
use async_rs::util::RuntimeParts;
use async_rs::{Runtime, Tokio};
use futures::future::{BoxFuture, FutureExt as _};
use lapin::tcp::AsyncTcpStream;
use lapin::uri::AMQPUri;
use parking_lot::Mutex;
use rustix::net::{Shutdown, shutdown};
use std::future::Future;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};
use tokio::runtime::Handle;

/// The time that an unused connection has for an orderly close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

type LapinRuntime = RuntimeParts<Tokio, LapinReactor>;

/// A second handle of a connection's socket, used to end the connection.
pub(super) struct SocketCloser(Arc<OwnedFd>);

impl SocketCloser {
    /// Ends the connection.
    pub(super) fn close_now(&self) {
        // Fails if the connection has already ended.
        _ = shutdown(&*self.0, Shutdown::Both);
    }

    /// Ends the connection after the time for an orderly close.
    pub(super) fn close_gracefully(&self) {
        let socket = SocketCloser(self.0.clone());
        match Handle::try_current() {
            Ok(runtime) => {
                runtime.spawn(async move {
                    tokio::time::sleep(CLOSE_TIMEOUT).await;
                    socket.close_now();
                });
            }
            Err(_) => socket.close_now(),
        }
    }
}

/// Prepares lapin to run on `stream`.
#[expect(clippy::type_complexity, reason = "the closure's type can't be named")]
pub(super) fn prepare(
    stream: Stream,
) -> io::Result<(
    SocketCloser,
    Runtime<LapinRuntime>,
    impl AsyncFn(AMQPUri, Runtime<LapinRuntime>) -> lapin::Result<AsyncTcpStream<FuturesStream>>
    + Send
    + Sync
    + 'static,
)> {
    let socket = SocketCloser(Arc::new(stream.tcp().as_fd().try_clone_to_owned()?));
    let runtime = Runtime::new(RuntimeParts::new(Tokio::current(), LapinReactor(Tokio::current())));
    // lapin would call this again to reconnect; pushes do that instead.
    let stream = Mutex::new(Some(FuturesStream(stream)));
    let connect = async move |_: AMQPUri, _: Runtime<LapinRuntime>| match stream.lock().take() {
        Some(stream) => Ok(AsyncTcpStream::Plain(stream)),
        None => Err(io::Error::from(io::ErrorKind::NotConnected).into()),
    };
    Ok((socket, runtime, connect))
}

/// Tokio's timers, with connections of our own type.
#[derive(Clone, Debug)]
pub(super) struct LapinReactor(Tokio);

impl Reactor for LapinReactor {
    type TcpStream = FuturesStream;
    type Sleep = <Tokio as Reactor>::Sleep;

    fn register<H: Read + Write + AsFd + AsRawFd + Send + 'static>(
        &self,
        socket: H,
    ) -> io::Result<impl futures::io::AsyncRead + futures::io::AsyncWrite + Send + Unpin + 'static> {
        self.0.register(socket)
    }

    fn sleep(&self, duration: Duration) -> Self::Sleep {
        self.0.sleep(duration)
    }

    fn interval(&self, duration: Duration) -> impl futures::Stream<Item = Instant> + Send + 'static {
        self.0.interval(duration)
    }

    fn tcp_connect_addr(
        &self,
        _: SocketAddr,
    ) -> impl Future<Output = io::Result<FuturesStream>> + Send + 'static {
        let refused: BoxFuture<'static, _> =
            std::future::ready(Err(io::Error::from(io::ErrorKind::Unsupported))).boxed();
        refused
    }
}

/// A connection that implements the traits of the crate `futures`.
pub(super) struct FuturesStream(Stream);

impl futures::io::AsyncRead for FuturesStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut task::Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(buffer);
        let polled = Pin::new(&mut self.0).poll_read(context, &mut buffer);
        polled.map_ok(|()| buffer.filled().len())
    }
}

impl futures::io::AsyncWrite for FuturesStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut task::Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut task::Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_close(mut self: Pin<&mut Self>, context: &mut task::Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
