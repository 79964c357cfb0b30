//! Tracks requests from their arrival to the last byte of their answers: their ids, what is known about them, their limits,
//! and their metrics and log entries once they have ended.

use super::access_log::AccessLog;
use super::connections::{Connection, ConnectionLimits, Connections};
use super::host::Hosts;
use crate::metrics::{ActiveRequest, Metrics, RequestSummary};
use crate::request::RequestInfo;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use nacre_rgw::usage::{UsageBuffer, UsageCounts};
use parking_lot::Mutex;
use s3s::Body;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime};

/// The header with a request's id.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-amz-request-id");
/// The `Retry-After` of answers with status 503, in seconds.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

/// The settings of a gateway's server.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// Bounds on connections.
    pub connections: ConnectionLimits,
    /// `max_connection_backlog` of `rgw_frontends`: the most connections that wait to be accepted.
    pub backlog: u32,
    /// `max_header_size` of `rgw_frontends`: the most bytes of a request's head.
    pub max_header_size: usize,
    /// `tcp_nodelay` of `rgw_frontends`: whether answers are sent without waiting for full packets.
    pub nodelay: bool,
    /// `rgw_max_concurrent_requests`: the most concurrent requests; further requests are answered with SlowDown.
    pub max_requests: u64,
    /// `rgw_max_request_rate`: the most requests per second; 0 for no limit.
    pub max_rate: u64,
    /// `rgw_op_complaint_time`: requests that take longer are logged.
    pub complaint_time: Duration,
    /// `rgw_exit_timeout_secs`: how long active requests may take to end when the gateway shuts down.
    pub exit_timeout: Duration,
    /// `rgw_trust_forwarded_https`: whether to trust a proxy that says that a request came to it over TLS.
    pub trust_forwarded: bool,
    /// `ssl_reload` of `rgw_frontends`: how often certificate files are checked for changes; 0 for never.
    pub reload: Duration,
    /// `rgw_dns_name` and `rgw_dns_s3website_name`: the gateway's host names.
    pub hosts: Hosts,
    /// `rgw_ops_log_file_path`: the access log; `None` for none.
    pub access_log: Option<PathBuf>,
}

/// The record of a request that is being served or has ended.
#[derive(Debug)]
pub(super) struct RequestRecord {
    pub(super) id: String,
    pub(super) info: Arc<RequestInfo>,
    pub(super) method: Method,
    pub(super) uri: Uri,
    /// Empty without an access log, and so is `bucket`.
    pub(super) headers: HeaderMap,
    /// The bucket that the host names.
    pub(super) bucket: String,
    pub(super) peer: SocketAddr,
    pub(super) began_at: SystemTime,
    pub(super) status: u16,
    /// S3's error code.
    pub(super) error: String,
    /// Bytes of the request's body, as declared, and of the answer's body, as sent.
    pub(super) received: u64,
    pub(super) sent: u64,
    /// The time until the answer began, and until it ended.
    pub(super) took: Duration,
    pub(super) total: Duration,
}

impl RequestRecord {
    pub(super) fn operation(&self) -> &str {
        self.info.asked.get().map_or("", |(operation, _)| operation)
    }

    pub(super) fn requester(&self) -> &str {
        self.info.asked.get().map_or("", |(_, requester)| requester)
    }

    pub(super) fn owner(&self) -> &str {
        self.info.owner.get().map_or("", |owner| owner)
    }
}

/// The state that all requests of a server share.
#[derive(Debug)]
pub(super) struct RequestTracker {
    pub(super) settings: ServerSettings,
    pub(super) metrics: Arc<Metrics>,
    pub(super) connections: Arc<Connections>,
    /// Whether the gateway is shutting down.
    pub(super) draining: AtomicBool,
    log: Option<AccessLog>,
    usage: Option<Arc<UsageBuffer>>,
    rate: Mutex<TokenBucket>,
}

/// A token bucket that is refilled continuously and holds the tokens of one second.
#[derive(Debug)]
struct TokenBucket {
    tokens: f64,
    filled: Instant,
}

impl TokenBucket {
    fn take(&mut self, now: Instant, per_second: u64) -> bool {
        let since = now.saturating_duration_since(self.filled).as_secs_f64();
        let full = per_second as f64;
        self.tokens = (self.tokens + since * full).min(full);
        self.filled = now;
        let there = self.tokens >= 1.0;
        if there {
            self.tokens -= 1.0;
        }
        there
    }
}

impl RequestTracker {
    pub(super) fn new(
        settings: ServerSettings,
        metrics: Arc<Metrics>,
        usage: Option<Arc<UsageBuffer>>,
    ) -> nacre_rgw::Result<RequestTracker> {
        let log = settings.access_log.as_ref().map(|path| AccessLog::open(path, Arc::clone(&metrics)));
        let rate = Mutex::new(TokenBucket { tokens: settings.max_rate as f64, filled: Instant::now() });
        let connections = Arc::new(Connections::new(settings.connections, Arc::clone(&metrics)));
        Ok(RequestTracker {
            log: log.transpose()?,
            usage,
            metrics,
            connections,
            rate,
            settings,
            draining: AtomicBool::new(false),
        })
    }

    /// Starts to track a request under the id `id`. The second value is whether the request must be answered with SlowDown.
    pub(super) fn begin<B>(
        self: &Arc<RequestTracker>,
        request: &mut Request<B>,
        peer: SocketAddr,
        connection: &Arc<Connection>,
        id: String,
    ) -> (TrackedRequest, bool) {
        let (active, under_way) = self.metrics.request_started();
        let rate = self.settings.max_rate;
        // The rate first: a request that waits for its client is closed only to make room for one that is served.
        let refused = (rate > 0 && !self.rate.lock().take(Instant::now(), rate))
            || (under_way > self.settings.max_requests && !self.connections.evict_stalled());
        if refused {
            self.metrics.request_slowed();
        }
        let info = Arc::new(RequestInfo::of(&id));
        connection.set_request(Arc::clone(&info));
        request.extensions_mut().insert(Arc::clone(&info));
        let length =
            request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        let (headers, bucket) = match self.log {
            Some(_) => (request.headers().clone(), self.settings.hosts.addressed(request.headers()).bucket),
            None => (HeaderMap::new(), String::new()),
        };
        let record = RequestRecord {
            id,
            info,
            method: request.method().clone(),
            uri: request.uri().clone(),
            headers,
            bucket,
            peer,
            began_at: SystemTime::now(),
            status: 0,
            error: String::new(),
            received: length.unwrap_or(0),
            sent: 0,
            took: Duration::ZERO,
            total: Duration::ZERO,
        };
        let (tracker, connection, active) = (Arc::clone(self), Arc::clone(connection), Arc::new(active));
        (TrackedRequest { tracker, connection, record, began: Instant::now(), active }, refused)
    }
}

/// An active request, which ends when this is dropped.
pub(super) struct TrackedRequest {
    tracker: Arc<RequestTracker>,
    connection: Arc<Connection>,
    record: RequestRecord,
    began: Instant,
    active: Arc<ActiveRequest>,
}

impl TrackedRequest {
    /// Returns the guard that counts the request as active. Work for the request that may outlive its connection also holds
    /// it.
    pub(super) fn active(&self) -> Arc<ActiveRequest> {
        Arc::clone(&self.active)
    }

    /// Adds the request's id to the headers of the answer, and to its body if it is an error. The request ends with the
    /// body.
    pub(super) fn answer(mut self, response: Response<Body>) -> Response<TrackedResponseBody> {
        let (mut head, mut body) = response.into_parts();
        self.record.took = self.began.elapsed();
        self.record.status = head.status.as_u16();
        if let Ok(id) = HeaderValue::from_str(&self.record.id) {
            head.headers.insert(REQUEST_ID, id);
        }
        if head.status == StatusCode::SERVICE_UNAVAILABLE {
            head.headers.entry(header::RETRY_AFTER).or_insert(RETRY_AFTER);
        }
        let is_error = head.status.is_client_error() || head.status.is_server_error();
        if is_error && let Some(text) = body.bytes() {
            let text = String::from_utf8_lossy(&text);
            if let Some((code, whole)) = with_id(&text, &self.record.id) {
                self.record.error = code;
                if head.headers.contains_key(header::CONTENT_LENGTH) {
                    head.headers.insert(header::CONTENT_LENGTH, whole.len().into());
                }
                body = Body::from(whole);
            }
        }
        Response::from_parts(head, TrackedResponseBody { body, tracked: self })
    }
}

/// Returns S3's code in an error document, and the document with the request's id; `None` for other text.
fn with_id(text: &str, id: &str) -> Option<(String, String)> {
    let (_, rest) = text.split_once("<Code>")?;
    let (code, _) = rest.split_once("</Code>")?;
    let whole = match text.rsplit_once("</Error>") {
        Some((before, after)) if !text.contains("<RequestId>") => {
            format!("{before}<RequestId>{id}</RequestId></Error>{after}")
        }
        _ => text.to_owned(),
    };
    Some((code.to_owned(), whole))
}

impl Drop for TrackedRequest {
    fn drop(&mut self) {
        let TrackedRequest { tracker, connection, record, began, .. } = self;
        connection.answered();
        record.total = began.elapsed();
        if record.status == 0 {
            // The client disconnected first. S3's logs show this status.
            record.took = record.total;
            record.status = 499;
        }
        let slow = record.took > tracker.settings.complaint_time;
        if slow {
            tracing::warn!(
                request = record.id,
                operation = record.operation(),
                requester = record.requester(),
                path = record.uri.path(),
                status = record.status,
                took_ms = u64::try_from(record.took.as_millis()).unwrap_or(u64::MAX),
                "rgw: slow request"
            );
        }
        record
            .info
            .accounts
            .lock()
            .iter()
            .for_each(|account| account.charge_bytes(record.sent, record.received));
        tracker.metrics.request_ended(&RequestSummary {
            operation: record.operation(),
            status: record.status,
            received: record.received,
            sent: record.sent,
            took: record.took,
            slow,
        });
        if let Some(usage) = &tracker.usage {
            count(usage, record);
        }
        if let Some(log) = &tracker.log {
            log.add(record);
        }
    }
}

/// Counts a request in the usage log: for the bucket's owner, or for the requester if there is no bucket.
fn count(usage: &UsageBuffer, record: &RequestRecord) {
    let (user, bucket) = match (record.owner(), record.info.bucket.get()) {
        ("", Some(_)) => (record.requester(), "-"),
        ("", None) => (record.requester(), ""),
        (owner, bucket) => (owner, bucket.map_or("", |bucket| bucket)),
    };
    if record.operation().is_empty() || user.is_empty() {
        return;
    }
    let counts = UsageCounts {
        bytes_sent: record.sent,
        bytes_received: record.received,
        ops: 1,
        successful_ops: u64::from(record.status < 400),
    };
    usage.count(user, bucket, record.operation(), counts);
}

/// The body of an answer.
pub(super) struct TrackedResponseBody {
    body: Body,
    tracked: TrackedRequest,
}

impl HttpBody for TrackedResponseBody {
    type Data = Bytes;
    type Error = <Body as HttpBody>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(data) = frame.data_ref()
        {
            self.tracked.record.sent += data.len() as u64;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_carry_the_requests_id() {
        let text = "<?xml version=\"1.0\"?><Error><Code>NoSuchKey</Code><Message>no</Message></Error>";
        let (code, whole) = with_id(text, "42").unwrap();
        assert_eq!(code, "NoSuchKey");
        assert!(whole.ends_with("<Message>no</Message><RequestId>42</RequestId></Error>"), "{whole}");
        assert_eq!(with_id(&whole, "43").unwrap().1, whole);
        assert_eq!(with_id("not found", "42"), None);
    }

    #[test]
    fn a_rate_lets_through_so_many_in_a_second() {
        let begin = Instant::now();
        let mut rate = TokenBucket { tokens: 10.0, filled: begin };
        let mut passed = 0;
        for ms in 0..3000 {
            passed += u32::from(rate.take(begin + Duration::from_millis(ms), 10));
        }
        assert!((38..=40).contains(&passed), "{passed}");
    }
}
