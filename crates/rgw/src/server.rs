//! The listening side of a gateway: connections, what is refused before S3 sees it, and an end that waits for what is
//! under way.

use crate::bucket::Bucket;
use crate::cors;
use crate::error::{Error, Result};
use crate::gateway::Gateway;
use crate::s3::{Access, Keys, Peer, Protocol};
use http::{HeaderMap, Method, Response, StatusCode};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use s3s::Body;
use s3s::service::{S3Service, S3ServiceBuilder};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;

/// The longest head of a request.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// How long a client may take to send the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// The most connections at a time; more wait to be accepted.
const MAX_CONNECTIONS: usize = 4096;
/// How long requests under way may take to end.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);

/// A gateway that listens.
#[derive(Debug)]
pub struct Server {
    gateway: Arc<Gateway>,
    addr: SocketAddr,
    stop: oneshot::Sender<()>,
    listening: JoinHandle<()>,
}

impl Server {
    /// Listens on `addr`. Must be called within a runtime.
    pub async fn start(gateway: Arc<Gateway>, addr: SocketAddr) -> Result<Server> {
        let failed = |error: std::io::Error| Error::Invalid(format!("can't listen on {addr}: {error}"));
        let listener = TcpListener::bind(addr).await.map_err(failed)?;
        let addr = listener.local_addr().map_err(failed)?;
        let mut builder = S3ServiceBuilder::new(Protocol { gateway: Arc::clone(&gateway) });
        builder.set_auth(Keys(Arc::clone(&gateway)));
        builder.set_access(Access(Arc::clone(&gateway)));
        let (stop, stopped) = oneshot::channel();
        let listening = tokio::spawn(listen(listener, Arc::clone(&gateway), builder.build(), stopped));
        Ok(Server { gateway, addr, stop, listening })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The gateway.
    pub fn gateway(&self) -> &Arc<Gateway> {
        &self.gateway
    }

    /// Accepts nothing more, waits for what is under way and finishes it.
    pub async fn stop(self) {
        // It may have ended by itself.
        _ = self.stop.send(());
        _ = self.listening.await;
        self.gateway.finish().await;
    }
}

async fn listen(
    listener: TcpListener,
    gateway: Arc<Gateway>,
    service: S3Service,
    mut stopped: oneshot::Receiver<()>,
) {
    let gateway = &gateway;
    let graceful = GracefulShutdown::new();
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut http = auto::Builder::new(TokioExecutor::new());
    http.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(MAX_HEAD_BYTES * 4);
    loop {
        let (socket, from, permit) = tokio::select! {
            _ = &mut stopped => break,
            accepted = accept(&listener, &room) => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Out of file descriptors, for one: others will be closed.
                    tracing::warn!(%error, "rgw: can't accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            },
        };
        if let Err(error) = socket.set_nodelay(true) {
            tracing::debug!(%error, "rgw: a connection was gone at once");
            continue;
        }
        let (service, gateway) = (service.clone(), Arc::clone(gateway));
        let answer = service_fn(move |mut request: http::Request<Incoming>| {
            request.extensions_mut().insert(Peer(from.ip()));
            answer(service.clone(), Arc::clone(&gateway), request)
        });
        let connection = http.serve_connection(TokioIo::new(socket), answer).into_owned();
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "rgw: a connection ended");
            }
            drop(permit);
        });
    }
    drop(listener);
    if tokio::time::timeout(DRAIN_TIMEOUT, graceful.shutdown()).await.is_err() {
        tracing::warn!("rgw: requests under way took too long and are given up");
    }
}

async fn accept(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
) -> std::io::Result<(tokio::net::TcpStream, SocketAddr, tokio::sync::OwnedSemaphorePermit)> {
    let permit = Arc::clone(room).acquire_owned().await.map_err(std::io::Error::other)?;
    let (socket, from) = listener.accept().await?;
    Ok((socket, from, permit))
}

async fn answer(
    service: S3Service,
    gateway: Arc<Gateway>,
    request: http::Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    if request.uri().path() == "/healthz" && matches!(*request.method(), Method::GET | Method::HEAD) {
        return Ok(Response::new(Body::from("ok\n".to_owned())));
    }
    if let Err(name) = check_signed(request.headers(), request.uri().query()) {
        let text = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>AccessDenied</Code><Message>There were headers \
             present in the request which were not signed</Message><HeadersNotSigned>{name}</HeadersNotSigned></Error>"
        );
        return Ok(plain(StatusCode::FORBIDDEN, "application/xml", text));
    }
    let origin = request.headers().get(http::header::ORIGIN).and_then(|value| value.to_str().ok());
    let (origin, method) = (origin.map(str::to_owned), request.method().clone());
    let bucket = match &origin {
        Some(_) => bucket_of(&gateway, request.uri().path()).await,
        None => None,
    };
    if method == Method::OPTIONS {
        return Ok(cors::preflight(bucket.as_deref(), request.headers()));
    }
    let answered = service.call(request.map(Body::from)).await;
    let mut response = answered.unwrap_or_else(|error| {
        tracing::error!(?error, "rgw: no answer could be made");
        plain(StatusCode::INTERNAL_SERVER_ERROR, "text/plain", "internal error\n".into())
    });
    if let (Some(bucket), Some(origin)) = (bucket, origin) {
        cors::grant(&bucket, &method, &origin, &mut response);
    }
    Ok(response)
}

/// The bucket that a path begins with, where there is one.
async fn bucket_of(gateway: &Gateway, path: &str) -> Option<Arc<Bucket>> {
    let name = path.trim_start_matches('/').split('/').next().filter(|name| !name.is_empty())?;
    let name = urlencoding::decode(name).ok()?;
    // Whatever else is wrong with it, the request itself will say.
    gateway.known_bucket(&name).await.ok()
}

pub(crate) fn plain(status: StatusCode, kind: &'static str, text: String) -> Response<Body> {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static(kind));
    response
}

/// Refuses a signed request with `x-amz-` headers that its signature does not cover: what they say could be anybody's.
/// Fails with the header's name.
fn check_signed(headers: &HeaderMap, query: Option<&str>) -> std::result::Result<(), String> {
    let authorization = headers.get(http::header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let in_header = authorization.filter(|value| value.starts_with("AWS4-")).map(|value| {
        let listed = value.split([',', ' ']).find_map(|part| part.trim().strip_prefix("SignedHeaders="));
        listed.unwrap_or_default().to_owned()
    });
    let in_query = query.and_then(|query| {
        let listed = query.split('&').find_map(|part| part.strip_prefix("X-Amz-SignedHeaders="))?;
        Some(urlencoding::decode(listed).map_or_else(|_| String::new(), |listed| listed.into_owned()))
    });
    let Some(signed) = in_header.or(in_query) else { return Ok(()) };
    let is_signed = |name: &str| signed.split(';').any(|listed| listed.eq_ignore_ascii_case(name));
    let loose = headers
        .keys()
        .map(http::HeaderName::as_str)
        .find(|name| name.starts_with("x-amz-") && !is_signed(name));
    loose.map_or(Ok(()), |name| Err(name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (http::HeaderName::from_static(name), value.parse().unwrap()))
            .collect()
    }

    #[test]
    fn headers_that_are_not_signed_are_found() {
        let signed = "AWS4-HMAC-SHA256 Credential=k/20260101/default/s3/aws4_request, \
                      SignedHeaders=host;x-amz-date, Signature=00";
        let date = ("x-amz-date", "20260101T000000Z");
        assert_eq!(check_signed(&headers(&[("authorization", signed), date]), None), Ok(()));
        let more = headers(&[("authorization", signed), date, ("x-amz-acl", "public-read")]);
        assert_eq!(check_signed(&more, None), Err("x-amz-acl".into()));
        let query = Some("X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-SignedHeaders=host%3Bx-amz-acl");
        assert_eq!(check_signed(&headers(&[("x-amz-acl", "private")]), query), Ok(()));
        assert_eq!(check_signed(&headers(&[date]), query), Err("x-amz-date".into()));
        assert_eq!(check_signed(&headers(&[date]), None), Ok(()));
    }
}
