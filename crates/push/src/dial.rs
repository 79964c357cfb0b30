//! TCP and TLS connections to the servers of HTTP and AMQP endpoints.

use crate::tls::TlsParams;
use crate::{Context, Timeouts, unavailable};
use nacre_notify::push::PushFailure;
use nacre_topics::endpoint::HostPort;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;

/// Connects to one server.
#[derive(Clone)]
pub(crate) struct Dialer {
    context: Arc<Context>,
    server: HostPort,
    tls: Option<TlsParams>,
    /// The connect timeout.
    limit: Duration,
}

/// A connection with or without TLS.
pub(crate) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Dialer {
    /// Creates a dialer for `server`. `tls` tells whether the server's certificate is verified, and with which CA file;
    /// `None` means no TLS.
    pub(crate) fn new(
        context: &Arc<Context>,
        server: &HostPort,
        tls: Option<(bool, Option<&str>)>,
        timeouts: &Timeouts,
    ) -> Result<Dialer, PushFailure> {
        let tls = tls
            .map(|(verify, ca_location)| TlsParams::new(context, server, verify, ca_location))
            .transpose()?;
        Ok(Dialer { context: context.clone(), server: server.clone(), tls, limit: timeouts.connect })
    }

    /// Resolves the host name, checks each address against the policy, and connects to the first address that answers.
    pub(crate) async fn connect(&self) -> Result<Stream, PushFailure> {
        let limit = self.limit;
        match timeout(limit, self.connect_any()).await {
            Ok(stream) => stream,
            Err(_) => Err(unavailable(format!("{} does not answer within {limit:?}", self.server))),
        }
    }

    async fn connect_any(&self) -> Result<Stream, PushFailure> {
        let failed = |error: io::Error| unavailable(format!("{}: {error}", self.server));
        let addresses = lookup_host((self.server.host.as_str(), self.server.port)).await.map_err(failed)?;
        let addresses: Vec<SocketAddr> = addresses.collect();
        let mut failure = unavailable(format!("{}: the name has no address", self.server));
        for address in &addresses {
            if let Err(error) = self.context.policy().check_address(address.ip()) {
                failure = unavailable(error.to_string());
                continue;
            }
            // An address that does not answer must leave time for the others.
            let share = self.limit / u32::try_from(addresses.len()).unwrap_or(u32::MAX);
            let connected = timeout(share, TcpStream::connect(address)).await;
            match connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
                Ok(stream) => return self.secure(stream).await,
                Err(error) => failure = unavailable(format!("{} ({address}): {error}", self.server)),
            }
        }
        Err(failure)
    }

    async fn secure(&self, stream: TcpStream) -> Result<Stream, PushFailure> {
        let failed = |error: io::Error| unavailable(format!("{}: {error}", self.server));
        stream.set_nodelay(true).map_err(failed)?;
        let Some(tls) = &self.tls else { return Ok(Stream::Plain(stream)) };
        let stream = tls.connector.connect(tls.name.clone(), stream).await.map_err(failed)?;
        Ok(Stream::Tls(Box::new(stream)))
    }
}

impl Stream {
    /// The TCP connection below TLS.
    pub(crate) fn tcp(&self) -> &TcpStream {
        match self {
            Stream::Plain(stream) => stream,
            Stream::Tls(stream) => stream.get_ref().0,
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut task::Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Stream::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut task::Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_write(context, data),
            Stream::Tls(stream) => Pin::new(stream).poll_write(context, data),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut task::Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(context),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut task::Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut task::Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_write_vectored(context, data),
            Stream::Tls(stream) => Pin::new(stream).poll_write_vectored(context, data),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
        }
    }
}
