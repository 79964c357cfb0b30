//! The Prometheus endpoint of a process: `GET /metrics`, and on the map authority's `GET /sd` (targets for
//! `http_sd_configs`).
//!
//! One endpoint serves all daemons of the process. It listens on loopback unless `exporter_addr` is set, and answers without
//! authentication: the metrics are counts, never contents or keys. Bounded: the number of connections, of which the oldest
//! without a request is closed for a new one; small requests; one answer per connection.

use crate::msgr::{HandshakeLimiter, HandshakeSlot};
use nacre_common::config::Config;
use nacre_common::error::{Error, Result};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;

/// Ports tried from `exporter_http_port` on, one for each daemon of a machine.
const PORTS: u16 = 100;
/// Maximum number of connections.
const CONNECTIONS: usize = 64;
/// Number of pages generated at a time.
const ANSWERS: usize = 8;
/// Maximum number of connections that wait to be accepted.
const BACKLOG: u32 = 512;
/// The longest request.
const MAX_REQUEST: usize = 8 << 10;
/// Maximum time to receive a request and send its answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// A page's content type and text.
pub type Page = (&'static str, String);
/// Generates the page of a path. Called on a thread that may block.
pub type PageHandler = Arc<dyn Fn(&str) -> Option<Page> + Send + Sync>;

/// The content type of `/metrics`.
pub const METRICS_CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

static ADDRESS: OnceLock<SocketAddr> = OnceLock::new();

/// The address of this process's endpoint, once it listens. Daemons report it in their metadata.
pub fn listen_addr() -> Option<SocketAddr> {
    ADDRESS.get().copied()
}

/// A bound endpoint that does not answer yet.
#[derive(Debug)]
pub struct Exporter {
    listener: TcpListener,
    addr: SocketAddr,
}

impl Exporter {
    /// Binds by `exporter_addr` and `exporter_http_port`, on the current tokio runtime. `None` if the port is -1. If no port is
    /// free, the process runs without an endpoint and logs that.
    pub async fn bind(config: &Config) -> Result<Option<Exporter>> {
        let options = config.snapshot();
        let port = options.global.exporter_http_port;
        let Ok(first) = u16::try_from(port) else { return Ok(None) };
        let text = options.global.exporter_addr.trim();
        let ip: IpAddr = text
            .parse()
            .map_err(|_| Error::bad_value("exporter_addr", format!("'{text}' is no IP address")))?;
        let last = if first == 0 { 0 } else { first.saturating_add(PORTS - 1) };
        let mut failure = None;
        for port in first..=last {
            match bind(SocketAddr::new(ip, port)) {
                Ok(listener) => {
                    let addr = listener
                        .local_addr()
                        .map_err(|error| Error::Io { what: "exporter".into(), source: Arc::new(error) })?;
                    // One endpoint per process: a second one would belong to another program.
                    let _ = ADDRESS.set(addr);
                    tracing::info!(%addr, "metrics are served");
                    return Ok(Some(Exporter { listener, addr }));
                }
                Err(error) => failure = Some(error),
            }
        }
        if let Some(error) = failure {
            tracing::warn!(%ip, port = first, %error, "no metrics endpoint: no port is free");
        }
        Ok(None)
    }

    /// The address that it listens on.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Answers with `pages` from now on, until the runtime ends.
    pub fn serve(self, pages: PageHandler) {
        tokio::spawn(async move {
            let places = Arc::new(HandshakeLimiter::new(CONNECTIONS));
            let answers = Arc::new(Semaphore::new(ANSWERS));
            loop {
                match self.listener.accept().await {
                    Ok((stream, peer)) => {
                        let Some((place, given_up)) = Arc::clone(&places).begin(peer.ip()).await else {
                            return;
                        };
                        let (pages, answers) = (Arc::clone(&pages), Arc::clone(&answers));
                        tokio::spawn(async move {
                            let answering =
                                tokio::time::timeout(PATIENCE, answer(stream, pages, &place, &answers));
                            tokio::select! {
                                answered = answering => match answered {
                                    Ok(Ok(())) => {}
                                    Ok(Err(error)) => tracing::debug!(%peer, %error, "metrics request"),
                                    Err(_) => tracing::debug!(%peer, "metrics request took too long"),
                                },
                                _ = given_up => tracing::debug!(%peer, "a metrics request makes way for another"),
                            }
                            drop(place);
                        });
                    }
                    Err(error) => {
                        // For instance out of descriptors. Without a pause the loop would spin.
                        tracing::warn!(%error, "metrics endpoint");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                }
            }
        });
    }
}

fn bind(addr: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    socket.listen(BACKLOG)
}

async fn answer(
    mut stream: TcpStream,
    pages: PageHandler,
    place: &HandshakeSlot,
    answers: &Semaphore,
) -> std::io::Result<()> {
    let mut request = Vec::new();
    let mut buffer = [0_u8; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let read = stream.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        request.extend_from_slice(&buffer[..read]);
        if request.len() > MAX_REQUEST {
            return respond(&mut stream, "431 Request Header Fields Too Large", None).await;
        }
    }
    let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line).into_owned();
    let mut words = line.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    if !matches!(method, "GET" | "HEAD") {
        return respond(&mut stream, "405 Method Not Allowed", None).await;
    }
    let path = target.split('?').next().unwrap_or_default().to_owned();
    // Connections with a request are closed after those without.
    place.set_authenticated();
    // The semaphore is never closed.
    let Ok(turn) = answers.acquire().await else { return Ok(()) };
    let page = tokio::task::spawn_blocking(move || pages(&path)).await.unwrap_or(None);
    drop(turn);
    match page {
        Some((content_type, text)) => {
            let text = if method == "HEAD" { String::new() } else { text };
            respond(&mut stream, "200 OK", Some((content_type, text))).await
        }
        None => respond(&mut stream, "404 Not Found", None).await,
    }
}

async fn respond(stream: &mut TcpStream, status: &str, page: Option<Page>) -> std::io::Result<()> {
    let (content_type, text) = page.unwrap_or_else(|| ("text/plain; charset=utf-8", format!("{status}\n")));
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        text.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(text.as_bytes()).await?;
    stream.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_common::config::ConfigBuilder;
    use nacre_types::ids::EntityName;

    async fn ask(addr: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        // The connection may be closed before everything is written.
        let _ = stream.write_all(request.as_bytes()).await;
        let mut text = String::new();
        let _ = stream.read_to_string(&mut text).await;
        text
    }

    #[tokio::test]
    async fn pages_are_served_and_nothing_else() {
        let config = ConfigBuilder::new(EntityName::mon()).set("exporter_http_port", "0").build().unwrap();
        let exporter = Exporter::bind(&config).await.unwrap().unwrap();
        let addr = exporter.addr();
        assert!(addr.ip().is_loopback());
        exporter
            .serve(Arc::new(|path| (path == "/metrics").then(|| (METRICS_CONTENT_TYPE, "a 1\n".to_owned()))));
        let got = ask(addr, "GET /metrics?x=1 HTTP/1.1\r\nHost: x\r\n\r\n").await;
        assert!(got.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4"), "{got}");
        assert!(got.ends_with("Content-Length: 4\r\nConnection: close\r\n\r\na 1\n"), "{got}");
        assert!(ask(addr, "GET / HTTP/1.1\r\n\r\n").await.starts_with("HTTP/1.1 404 "));
        assert!(ask(addr, "POST /metrics HTTP/1.1\r\n\r\n").await.starts_with("HTTP/1.1 405 "));
        let long = format!("GET /metrics HTTP/1.1\r\nX: {}", "x".repeat(MAX_REQUEST));
        assert!(ask(addr, &long).await.starts_with("HTTP/1.1 431 "));
        // The first free port, starting at the given one.
        let port = addr.port().to_string();
        let config = ConfigBuilder::new(EntityName::mon()).set("exporter_http_port", port).build().unwrap();
        let second = Exporter::bind(&config).await.unwrap().unwrap();
        assert!(second.addr().port() > addr.port());
        let config = ConfigBuilder::new(EntityName::mon()).set("exporter_http_port", "-1").build().unwrap();
        assert!(Exporter::bind(&config).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn silent_connections_keep_nobody_waiting() {
        let config = ConfigBuilder::new(EntityName::mon()).set("exporter_http_port", "0").build().unwrap();
        let exporter = Exporter::bind(&config).await.unwrap().unwrap();
        let addr = exporter.addr();
        exporter.serve(Arc::new(|_| Some((METRICS_CONTENT_TYPE, "a 1\n".to_owned()))));
        let mut silent = Vec::new();
        for _ in 0..CONNECTIONS * 3 {
            silent.push(TcpStream::connect(addr).await.unwrap());
        }
        let asked = tokio::time::timeout(PATIENCE / 2, ask(addr, "GET /metrics HTTP/1.1\r\n\r\n")).await;
        assert!(asked.unwrap().ends_with("\r\n\r\na 1\n"));
        // The oldest connection was closed.
        let mut byte = [0];
        assert_eq!(silent[0].read(&mut byte).await.unwrap(), 0);
    }
}
