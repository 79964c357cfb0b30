//! The listening side of a gateway: connections, requests that are refused before S3 sees them, and a shutdown that waits
//! for requests in progress.

mod accept;
mod access_log;
mod connections;
mod host;
mod message;
mod post_form;
mod region;
mod request_body;
mod routes;
mod signed;
mod tls;
mod track;
mod tracked_socket;
mod website;

pub use connections::ConnectionLimits;
pub use host::Hosts;
#[cfg(test)]
pub(crate) use signed::check as check_signed;
pub use tls::Certificate;
pub use track::ServerSettings;

use crate::admin_api::AdminApi;
use crate::cors;
use crate::forms;
use crate::metrics::Metrics;
use crate::ops::{AccessChecker, S3Api, SecretKeyProvider, attributes};
use crate::query_api;
use crate::request::{RequestInfo, RequestOrigin, VirtualHostBucket, content_length};
use crate::response::plain_response;
use accept::{AcceptFailures, AcceptFault};
use connections::{Connection, ConnectionPermit};
use futures::FutureExt;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use nacre_rgw::bucket::Bucket;
use nacre_rgw::error::{Error, Result};
use nacre_rgw::gateway::Gateway;
use nacre_rgw::spawn::spawn_boxed;
use request_body::UnreadBody;
use routes::Routes;
use s3s::Body;
use s3s::config::{S3Config, StaticConfigProvider};
use s3s::dto::{Timestamp, TimestampFormat};
use s3s::service::{S3Service, S3ServiceBuilder};
use signed::SignatureError;
use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::{Instant, SystemTime};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use track::{RequestTracker, TrackedResponseBody};
use tracked_socket::TrackedSocket;

/// The maximum number of bytes of a body that a connection reads at a time.
const READ_BYTES: usize = 256 << 10;
/// The maximum number of headers of a request.
const MAX_HEADERS: usize = 100;
/// The maximum length of a body that is read into memory, for example a list of 10 000 parts with checksums.
const MAX_XML_BYTES: usize = 4 << 20;
/// A port of a gateway.
#[derive(Clone, Debug)]
pub struct Listen {
    /// The address; port 0 is any free port.
    pub addr: SocketAddr,
    /// The certificate for TLS; `None` for plain HTTP.
    pub certificate: Option<Arc<Certificate>>,
}

/// A gateway that listens.
#[derive(Debug)]
pub struct Server {
    gateway: Arc<Gateway>,
    tracker: Arc<RequestTracker>,
    addrs: Vec<(SocketAddr, bool)>,
    stop: oneshot::Sender<()>,
    listening: JoinHandle<()>,
}

impl Server {
    /// Listens on `ports`. Must be called within a runtime.
    pub async fn start(gateway: Arc<Gateway>, ports: &[Listen], settings: ServerSettings) -> Result<Server> {
        let mut listeners = Vec::new();
        let mut addrs = Vec::new();
        for Listen { addr, certificate } in ports {
            let failed = |error: std::io::Error| Error::Invalid(format!("can't listen on {addr}: {error}"));
            let listener = bind(*addr, settings.backlog).map_err(failed)?;
            addrs.push((listener.local_addr().map_err(failed)?, certificate.is_some()));
            listeners.push((listener, certificate.clone()));
        }
        gateway.topics.add_listen_addresses(addrs.iter().map(|(addr, _)| addr.ip()));
        let mut builder = S3ServiceBuilder::new(S3Api { gateway: Arc::clone(&gateway) });
        builder.set_auth(SecretKeyProvider(Arc::clone(&gateway)));
        builder.set_access(AccessChecker(Arc::clone(&gateway)));
        builder.set_route(Routes::new(&gateway));
        builder.set_host(settings.hosts.clone());
        builder.set_config(Arc::new(StaticConfigProvider::new(Arc::new(limits()))));
        let metrics = Arc::new(Metrics::of_gateway(&gateway));
        let (reload, limits) = (settings.reload, settings.connections);
        let tracker =
            Arc::new(RequestTracker::new(settings, Arc::clone(&metrics), gateway.usage.log.clone())?);
        if !reload.is_zero() {
            for certificate in ports.iter().filter_map(|port| port.certificate.as_ref()) {
                tokio::spawn(tls::reload_periodically(Arc::downgrade(certificate), reload));
            }
        }
        tokio::spawn(connections::enforce_timeouts(Arc::downgrade(&tracker.connections), limits));
        let service = builder.build();
        let handler = Handler { gateway: Arc::clone(&gateway), service, tracker: Arc::clone(&tracker) };
        let (stop, stopped) = oneshot::channel();
        let listening = tokio::spawn(listen(listeners, handler, stopped));
        Ok(Server { gateway, tracker, addrs, stop, listening })
    }

    /// Returns the addresses on which it listens, and whether it uses TLS there.
    pub fn addrs(&self) -> &[(SocketAddr, bool)] {
        &self.addrs
    }

    /// Returns its metrics.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.tracker.metrics
    }

    /// Returns the gateway.
    pub fn gateway(&self) -> &Arc<Gateway> {
        &self.gateway
    }

    /// Stops accepting connections, waits for requests in progress, and finishes the gateway's work.
    pub async fn stop(self) {
        self.tracker.draining.store(true, Ordering::Release);
        // The task may have ended by itself.
        _ = self.stop.send(());
        _ = self.listening.await;
        self.gateway.shut_down().await;
    }
}

/// Returns the limits on what is read from requests into memory.
fn limits() -> S3Config {
    let mut limits = S3Config::default();
    limits.xml_max_body_size = MAX_XML_BYTES;
    // Forms do not reach s3s.
    limits.post_object_max_file_size = 0;
    limits.form_max_fields_size = 0;
    limits
}

/// A listening socket and its certificate. The certificate is kept here because it is reloaded only as long as it is in use.
type Listener = (TcpListener, Option<Arc<Certificate>>);

/// Opens a listening socket. The kernel limits the backlog to `net.core.somaxconn`.
fn bind(addr: SocketAddr, backlog: u32) -> std::io::Result<TcpListener> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    socket.listen(backlog)
}

async fn listen(listeners: Vec<Listener>, handler: Handler, mut stopped: oneshot::Receiver<()>) {
    let graceful = GracefulShutdown::new();
    let (connections, settings) = (&handler.tracker.connections, &handler.tracker.settings);
    let mut http = http1::Builder::new();
    // Only HTTP/1 is served: attacks on HTTP/2 do not apply, and the protocol need not be detected. `connections` enforces
    // the timeouts.
    http.timer(TokioTimer::new()).header_read_timeout(None);
    http.max_header_size(settings.max_header_size).max_headers(MAX_HEADERS).max_buf_size(READ_BYTES);
    let mut first = 0;
    let mut failures = AcceptFailures::new();
    loop {
        let accepted = tokio::select! {
            _ = &mut stopped => break,
            accepted = next_connection(&listeners, &mut first) => accepted,
        };
        let (socket, peer, tls) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                let closed = AcceptFault::of(&error) == AcceptFault::Resources && connections.evict_idle();
                let pause = failures.failed(&error, closed, Instant::now());
                if !pause.is_zero() && tokio::time::timeout(pause, &mut stopped).await.is_ok() {
                    break;
                }
                continue;
            }
        };
        failures.accepted();
        let place = tokio::select! {
            _ = &mut stopped => break,
            place = connections.admit(peer.ip(), tls.is_some()) => place,
        };
        let Some(place) = place else {
            tracing::debug!(%peer, "rgw: an address has too many connections");
            continue;
        };
        if let Err(error) = socket.set_nodelay(settings.nodelay) {
            tracing::debug!(%error, "rgw: a connection was gone at once");
            continue;
        }
        let (http, handler, watcher) = (http.clone(), handler.clone(), graceful.watcher());
        tokio::spawn(async move {
            let connection = place.connection();
            tokio::select! {
                biased;
                () = connection.wait_close_requested() => {}
                () = serve(&http, handler, socket, peer, tls, &place, watcher) => {}
            }
        });
    }
    drop(listeners);
    connections.close_unused();
    if tokio::time::timeout(settings.exit_timeout, graceful.shutdown()).await.is_err() {
        tracing::warn!("rgw: requests under way took too long and are given up");
    }
}

/// Serves one connection until it ends.
async fn serve(
    http: &http1::Builder,
    handler: Handler,
    socket: TcpStream,
    peer: SocketAddr,
    tls: Option<TlsAcceptor>,
    place: &ConnectionPermit,
    watcher: Watcher,
) {
    let connection = place.connection();
    let Some(tls) = tls else {
        return serve_http(http, handler, socket, peer, false, connection, watcher).await;
    };
    match tls.accept(socket).await {
        Ok(socket) => {
            connection.handshake_done();
            serve_http(http, handler, socket, peer, true, connection, watcher).await;
        }
        Err(error) => tracing::debug!(%error, %peer, "rgw: no TLS with a client"),
    }
}

async fn serve_http(
    http: &http1::Builder,
    handler: Handler,
    socket: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    peer: SocketAddr,
    secure: bool,
    connection: &Arc<Connection>,
    watcher: Watcher,
) {
    let unread = UnreadBody::default();
    let socket = TokioIo::new(TrackedSocket::new(socket, Arc::clone(connection), unread.clone()));
    let connection = Arc::clone(connection);
    let answer = service_fn(move |mut request: Request<Incoming>| {
        let secure = secure || (handler.tracker.settings.trust_forwarded && was_secure(request.headers()));
        request.extensions_mut().insert(RequestOrigin { address: peer.ip(), secure });
        // The future is large and would be moved several times.
        Box::pin(answer(handler.clone(), peer, request, Arc::clone(&connection), unread.clone()))
    });
    if let Err(error) = watcher.watch(http.serve_connection(socket, answer)).await {
        tracing::debug!(%error, "rgw: a connection ended");
    }
}

/// Returns the next connection to any of the listeners, which take turns.
async fn next_connection(
    listeners: &[Listener],
    first: &mut usize,
) -> std::io::Result<(TcpStream, SocketAddr, Option<TlsAcceptor>)> {
    let (at, accepted) = std::future::poll_fn(|cx| {
        let turns = (0..listeners.len()).map(|turn| (*first + turn) % listeners.len());
        for at in turns {
            if let Poll::Ready(accepted) = listeners[at].0.poll_accept(cx) {
                return Poll::Ready((at, accepted));
            }
        }
        Poll::Pending
    })
    .await;
    *first = at + 1;
    let (socket, peer) = accepted?;
    let tls = listeners[at].1.as_ref().map(|certificate| certificate.acceptor());
    Ok((socket, peer, tls))
}

/// Serves requests.
#[derive(Clone)]
struct Handler {
    gateway: Arc<Gateway>,
    service: S3Service,
    tracker: Arc<RequestTracker>,
}

async fn answer(
    handler: Handler,
    peer: SocketAddr,
    mut request: Request<Incoming>,
    connection: Arc<Connection>,
    unread: UnreadBody,
) -> Result<Response<TrackedResponseBody>, Infallible> {
    if !connection.begin() {
        // The connection is being closed.
        return std::future::pending().await;
    }
    let id = handler.gateway.new_tag();
    let (tracked, refused) = handler.tracker.begin(&mut request, peer, &connection, id);
    let never_continued = expects_continue(request.headers()) && request.body().is_end_stream();
    let request = request.map(|body| Body::http_body(unread.watch(body, Arc::clone(&connection))));
    let is_probe = request.uri().path() == "/healthz";
    let response = if refused && !is_probe {
        refusal(StatusCode::SERVICE_UNAVAILABLE, "SlowDown", "Please reduce your request rate.")
    } else if is_change(&request, &handler) {
        // A change consists of several steps that belong together, including the notification of other gateways. They
        // continue if the client disconnects.
        let responding = spawn_boxed({
            let (handler, active) = (handler.clone(), tracked.active());
            async move {
                let response = caught(respond(&handler, request)).await;
                drop(active);
                response
            }
        });
        responding.await.unwrap_or_else(|error| {
            tracing::error!(%error, "rgw: a request ended in the middle");
            internal_error()
        })
    } else {
        caught(respond(&handler, request)).await
    };
    let response = if connection.has_timed_out() {
        // This replaces whatever response the reader of the body produced.
        refusal(
            StatusCode::BAD_REQUEST,
            "RequestTimeout",
            "Your socket connection to the server was not read from or written to within the timeout period. \
             Idle connections will be closed.",
        )
    } else {
        response
    };
    let mut answered = tracked.answer(response);
    // A request without a body gets a final response without a 100 Continue. botocore does not understand responses that
    // follow it on the same connection, so the connection is closed.
    if unread.is_left() || never_continued {
        answered.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(answered)
}

/// Whether the client waits for 100 Continue before it sends the body.
fn expects_continue(headers: &HeaderMap) -> bool {
    headers.get(header::EXPECT).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

/// Returns the response of `serving`, or InternalError if it panics.
async fn caught(serving: impl Future<Output = Response<Body>>) -> Response<Body> {
    AssertUnwindSafe(serving).catch_unwind().await.unwrap_or_else(|_| {
        // The panic hook has printed what and where.
        tracing::error!("rgw: a request panicked");
        internal_error()
    })
}

async fn respond(handler: &Handler, mut request: Request<Body>) -> Response<Body> {
    let Handler { gateway, service, tracker } = handler;
    if request.uri().path() == "/healthz" && matches!(*request.method(), Method::GET | Method::HEAD) {
        return health(handler).await;
    }
    if let Some(message) = ambiguous(request.headers()) {
        return refusal(StatusCode::BAD_REQUEST, "InvalidRequest", message);
    }
    if is_document(&request, tracker) && content_length(request.headers()) > MAX_XML_BYTES as u64 {
        return refusal(StatusCode::BAD_REQUEST, "MaxMessageLengthExceeded", "Your request was too big.");
    }
    let addressed = tracker.settings.hosts.addressed(request.headers());
    match signed::check(request.headers(), request.uri().query(), SystemTime::now()) {
        Ok(()) => {}
        // Clients of the admin API sign with version 2, which covers none of their parameters.
        Err(SignatureError::NotCovered(_))
            if addressed.bucket.is_empty()
                && AdminApi::is_at(&gateway.config.admin_entry, request.uri().path()) => {}
        Err(unsound) => {
            let (status, code) = unsound.code();
            return refusal(status, code, &unsound.to_string());
        }
    }
    if forms::is_query_request(request.method(), request.uri().path(), request.headers()) {
        return Box::pin(query_api::respond(gateway, request)).await;
    }
    // Boxed, because the future of every request would otherwise contain what few requests need.
    if region::needs_region_rewrite(request.headers()) {
        Box::pin(region::rewrite_signature(gateway, &mut request)).await;
    }
    let origin = request.headers().get(header::ORIGIN).and_then(|value| value.to_str().ok());
    let (origin, method) = (origin.map(str::to_owned), request.method().clone());
    if !addressed.bucket.is_empty() {
        request.extensions_mut().insert(VirtualHostBucket(addressed.bucket.clone()));
    }
    let bucket = match &origin {
        Some(_) => bucket_of(gateway, &addressed.bucket, request.uri().path()).await,
        None => None,
    };
    if method == Method::OPTIONS {
        return cors::preflight(bucket.as_deref(), request.headers());
    }
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        drop_meaningless(request.headers_mut());
    }
    let judged = request.headers().get(header::ACCESS_CONTROL_REQUEST_METHOD);
    let judged = judged.and_then(|method| Method::from_bytes(method.as_bytes()).ok()).unwrap_or(method);
    let mut response = if addressed.website {
        Box::pin(website::serve(handler, &addressed.bucket, request.map(drop))).await
    } else if post_form::is_post_form(&request) {
        Box::pin(post_form::post_object(handler, &addressed.bucket, request)).await
    } else {
        let is_about_attributes = attributes::is_get_object_attributes(&request);
        let date = request.headers().get("x-amz-date").cloned();
        let answered = service.call(request).await;
        let answered = if is_about_attributes { answered.map(attributes::unquote_etag) } else { answered };
        let answered = answered.map(|response| message::complete_error(response, date.as_ref()));
        answered.unwrap_or_else(|error| {
            tracing::error!(?error, "rgw: no answer could be made");
            internal_error()
        })
    };
    if let (Some(bucket), Some(origin)) = (bucket, origin) {
        // As in radosgw, for the method that a browser would ask for.
        cors::add_response_headers(&bucket, &judged, &origin, &mut response);
    }
    response
}

/// Removes headers that S3 ignores (RFC 9110, 13.1 and 14.2): ranges of other units, ranges with several runs or none, and
/// invalid times.
fn drop_meaningless(headers: &mut HeaderMap) {
    let text = |name: &HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or_default().trim());
    let is_range = |text: &str| {
        let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
        let number = |digits: &str| digits.trim().parse::<u64>().ok();
        match (first.trim(), last.trim()) {
            ("", last) => number(last).map(drop),
            (first, "") => number(first).map(drop),
            (first, last) => (number(first)? <= number(last)?).then_some(()),
        }
    };
    let mut gone: Vec<HeaderName> = Vec::new();
    gone.extend(text(&header::RANGE).filter(|text| is_range(text).is_none()).map(|_| header::RANGE));
    for name in [header::IF_MODIFIED_SINCE, header::IF_UNMODIFIED_SINCE] {
        let is_time = |text: &str| Timestamp::parse(TimestampFormat::HttpDate, text).is_ok();
        gone.extend(text(&name).filter(|text| !is_time(text)).map(|_| name.clone()));
    }
    for name in gone {
        headers.remove(name);
    }
}

/// Whether a request changes something other than by writing an object's data.
fn is_change<B>(request: &Request<B>, handler: &Handler) -> bool {
    let is_administration = || AdminApi::is_at(&handler.gateway.config.admin_entry, request.uri().path());
    match *request.method() {
        Method::GET | Method::HEAD | Method::OPTIONS => false,
        Method::DELETE => true,
        _ => is_document(request, &handler.tracker) || is_administration(),
    }
}

/// Whether the body of a request is a document, not an object's data.
fn is_document<B>(request: &Request<B>, tracker: &RequestTracker) -> bool {
    let path = request.uri().path().trim_start_matches('/');
    let in_host = !tracker.settings.hosts.addressed(request.headers()).bucket.is_empty();
    let key = if in_host { path } else { path.split_once('/').map_or("", |(_, key)| key) };
    let query = request.uri().query().unwrap_or_default();
    let of_object = |pair: &str| {
        let name = pair.split('=').next().unwrap_or_default();
        // The protocol accepts percent-encoded names.
        let is_name = |name: &str| ["acl", "tagging", "retention", "legal-hold"].contains(&name);
        urlencoding::decode(name).is_ok_and(|name| is_name(&name))
    };
    match *request.method() {
        Method::POST => !post_form::is_post_form(request),
        Method::PUT => key.is_empty() || query.split('&').any(of_object),
        _ => false,
    }
}

/// Whether a proxy says that a request reached it over TLS (RFC 7239, or the older `x-forwarded-proto`).
fn was_secure(headers: &HeaderMap) -> bool {
    let said = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let mut forwarded = said("forwarded").split([',', ';']).filter_map(|pair| pair.trim().split_once('='));
    let by_standard = forwarded.any(|(name, value)| {
        name.eq_ignore_ascii_case("proto") && value.trim_matches('"').eq_ignore_ascii_case("https")
    });
    by_standard || said("x-forwarded-proto").trim().eq_ignore_ascii_case("https")
}

/// Returns why a proxy between the client and this gateway may have understood a request differently, or `None`.
fn ambiguous(headers: &HeaderMap) -> Option<&'static str> {
    let hosts = headers.get_all(header::HOST).iter().count();
    (hosts > 1).then_some("There is more than one Host.")
}

/// Responds to a health check: whether requests may be sent to this gateway.
async fn health(handler: &Handler) -> Response<Body> {
    let failed = if handler.tracker.draining.load(Ordering::Acquire) {
        "the gateway is about to end\n"
    } else if !handler.gateway.is_cluster_responsive().await {
        "the cluster does not answer\n"
    } else {
        return plain_response(StatusCode::OK, "text/plain", "ok\n".to_owned());
    };
    plain_response(StatusCode::SERVICE_UNAVAILABLE, "text/plain", failed.to_owned())
}

/// Returns an S3 error for a request that is refused before S3 sees it.
fn refusal(status: StatusCode, code: &str, message: &str) -> Response<Body> {
    let message = escaped(message);
    let text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>{code}</Code><Message>{message}</Message></Error>"
    );
    plain_response(status, "application/xml", text)
}

fn internal_error() -> Response<Body> {
    let message = "We encountered an internal error. Please try again.";
    refusal(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message)
}

/// Escapes text, so that neither XML nor a browser interprets it.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '&' => out.push_str("&amp;"),
            other => out.push(other),
        }
    }
    out
}

/// Returns the bucket that a request addresses by its host, or otherwise by the beginning of its path.
async fn bucket_of(gateway: &Gateway, in_host: &str, path: &str) -> Option<Arc<Bucket>> {
    if !in_host.is_empty() {
        return gateway.cached_bucket(in_host).await.ok();
    }
    let name = path.trim_start_matches('/').split('/').next().filter(|name| !name.is_empty())?;
    let name = urlencoding::decode(name).ok()?;
    // Other errors are reported by the request itself.
    gateway.cached_bucket(&name).await.ok()
}

#[cfg(test)]
mod tests;
