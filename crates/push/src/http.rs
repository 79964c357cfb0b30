//! HTTP endpoints: events are sent as POST requests over persistent connections.
//!
//! A request has up to `batch-size` events, and never two of the same key: a key's next event is sent after the previous
//! one was answered. A 2xx status means that the events were delivered. Redirects are not followed, because they could lead
//! anywhere. Bodies of responses are read up to a bound, so that the connection can be reused, and are ignored.

use crate::dial::{Dialer, Stream};
use crate::{Context, body, delivery, timed_out, unavailable, with_causes};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue};
use http::{Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::{Connected, Connection as PooledConnection};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use nacre_notify::push::{Connection, PushFailure, PushMessage};
use nacre_topics::endpoint::HttpEndpoint;
use nacre_topics::record;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::task::{self, Poll};
use std::time::Duration;
use tokio::sync::{AcquireError, Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep, timeout_at};
use tower_service::Service;

/// The most bytes of a response's body that are read. A connection with a longer body is closed.
const MAX_BODY_BYTES: usize = 64 << 10;
/// The most bytes of a response's head.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// The time that a request waits for one of the first connections before it uses an additional one.
const FURTHER_CONNECTION_WAIT: Duration = Duration::from_millis(10);
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// An endpoint with its connection pool.
pub(crate) struct HttpClient {
    context: Arc<Context>,
    uri: Uri,
    authorization: Option<HeaderValue>,
    cloudevents: bool,
    batch_size: usize,
    pool: Pool<Connector, Full<Bytes>>,
    /// One permit for each request on the first connections.
    requests: Semaphore,
    /// One permit for each request on additional connections.
    more_requests: Semaphore,
}

/// A connection to an HTTP endpoint.
pub(crate) struct HttpConnection(pub(crate) Arc<HttpClient>);

impl Connection for HttpConnection {
    fn push(&self, messages: Vec<PushMessage>) -> BoxFuture<'static, Vec<Result<(), PushFailure>>> {
        let client = self.0.clone();
        Box::pin(async move { client.push(&messages).await })
    }
}

impl HttpClient {
    pub(crate) fn new(context: &Arc<Context>, endpoint: &HttpEndpoint) -> Result<HttpClient, PushFailure> {
        let limits = context.limits;
        let tls = endpoint.tls.then_some((endpoint.verify_ssl, endpoint.ca_location.as_deref()));
        let dialer = Dialer::new(context, &endpoint.server, tls, &context.limits.http)?;
        // Neither message quotes the value, because the path may be a secret.
        let uri = Uri::try_from(endpoint.url()).map_err(|_| unavailable("push-endpoint: not a URL"))?;
        let authorization = endpoint.credentials.as_ref().map(|credentials| {
            let pair = format!("{}:{}", credentials.user, credentials.password.reveal());
            HeaderValue::try_from(format!("Basic {}", STANDARD.encode(pair)))
                .map(|mut value| {
                    value.set_sensitive(true);
                    value
                })
                .map_err(|_| unavailable("the credentials can't be sent"))
        });
        let most = limits.http_connections.max(1);
        let first = limits.http_first_connections.clamp(1, most);
        let pool = Pool::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(limits.http_idle_timeout)
            .pool_max_idle_per_host(most)
            .http1_max_buf_size(MAX_HEAD_BYTES)
            .build(Connector(dialer));
        Ok(HttpClient {
            context: context.clone(),
            uri,
            authorization: authorization.transpose()?,
            cloudevents: endpoint.cloudevents,
            batch_size: endpoint.batch_size.max(1) as usize,
            pool,
            requests: Semaphore::new(first),
            more_requests: Semaphore::new(most - first),
        })
    }

    async fn push(&self, messages: &[PushMessage]) -> Vec<Result<(), PushFailure>> {
        let deadline = Instant::now() + self.context.limits.http.push;
        // A failure that all other events would have as well.
        let outage = Mutex::new(None);
        let mut outcomes: Vec<Result<(), PushFailure>> = messages.iter().map(|_| Ok(())).collect();
        let mut refused = HashMap::new();
        for round in rounds(messages) {
            let mut ready = Vec::with_capacity(round.len());
            for at in round {
                // After a failed event, later events of its key would be out of order.
                match refused.get(&key_of(&messages[at])) {
                    Some(failure) => outcomes[at] = Err(PushFailure::clone(failure)),
                    None => ready.push(at),
                }
            }
            let batches = ready.chunks(self.batch_size).map(<[usize]>::to_vec);
            let sent =
                batches.map(|batch| self.send_split(messages, batch, deadline, &outage)).collect::<Vec<_>>();
            let mut sent = futures::stream::iter(sent).buffer_unordered(self.context.limits.http_connections);
            while let Some(answered) = sent.next().await {
                for (at, outcome) in answered {
                    if let Err(failure) = &outcome {
                        refused.insert(key_of(&messages[at]), failure.clone());
                    }
                    outcomes[at] = outcome;
                }
            }
        }
        outcomes
    }

    /// Sends events in one request. If it is refused, sends them in smaller requests, so that a bad event fails alone.
    /// Sends nothing more once the endpoint is unavailable.
    async fn send_split(
        &self,
        messages: &[PushMessage],
        batch: Vec<usize>,
        deadline: Instant,
        outage: &Mutex<Option<PushFailure>>,
    ) -> Vec<(usize, Result<(), PushFailure>)> {
        let mut outcomes = Vec::with_capacity(batch.len());
        let mut parts = vec![batch];
        while let Some(part) = parts.pop() {
            let known = outage.lock().clone();
            let outcome = match known {
                Some(failure) => Err(failure),
                None => self.send(messages, &part, deadline).await,
            };
            match &outcome {
                Err(PushFailure::Refused(_)) if part.len() > 1 => {
                    let (first, second) = part.split_at(part.len() / 2);
                    parts.push(second.to_vec());
                    parts.push(first.to_vec());
                    continue;
                }
                Err(failure @ PushFailure::Unavailable(_)) => *outage.lock() = Some(failure.clone()),
                _ => {}
            }
            outcomes.extend(part.into_iter().map(|at| (at, outcome.clone())));
        }
        outcomes
    }

    /// Sends one request.
    async fn send(
        &self,
        messages: &[PushMessage],
        part: &[usize],
        deadline: Instant,
    ) -> Result<(), PushFailure> {
        let request = self.request(messages, part)?;
        let answer = timeout_at(deadline, async {
            let _permit = self.permit().await.map_err(|_| unavailable("the client is closed"))?;
            let response = self.pool.request(request).await.map_err(|error| reason_of(&error))?;
            let status = response.status();
            // The body does not affect the outcome.
            _ = timeout_at(deadline, discard(response.into_body())).await;
            Ok(status)
        });
        let status = answer.await.map_err(|_| timed_out(&self.context.limits.http))??;
        match status {
            status if status.is_success() => Ok(()),
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => Err(unavailable(answered(status))),
            status if status.is_client_error() => Err(PushFailure::Refused(answered(status))),
            status => Err(unavailable(answered(status))),
        }
    }

    /// Waits until another request may be sent. If requests do not have to wait long, only the first connections are used.
    async fn permit(&self) -> Result<SemaphorePermit<'_>, AcquireError> {
        if let Ok(permit) = self.requests.try_acquire() {
            return Ok(permit);
        }
        let further = async {
            sleep(FURTHER_CONNECTION_WAIT).await;
            self.more_requests.acquire().await
        };
        tokio::select! {
            permit = self.requests.acquire() => permit,
            permit = further => permit,
        }
    }

    fn request(&self, messages: &[PushMessage], part: &[usize]) -> Result<Request<Full<Bytes>>, PushFailure> {
        let deliveries: Vec<_> = part.iter().map(|at| delivery(&messages[*at])).collect();
        let text = body(part.iter().map(|at| &messages[*at]));
        let mut request = Request::new(Full::new(Bytes::from(text)));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.uri.clone();
        let headers = request.headers_mut();
        let refused = |name: &str| PushFailure::Refused(format!("the header {name} can't be sent"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let key = HeaderValue::try_from(record::idempotency_key(&deliveries));
        headers.insert(IDEMPOTENCY_KEY, key.map_err(|_| refused("Idempotency-Key"))?);
        if let Some(authorization) = &self.authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        if let (true, [only]) = (self.cloudevents, deliveries.as_slice()) {
            for (name, value) in record::cloudevents_headers(only.event) {
                let value = HeaderValue::try_from(value).map_err(|_| refused(name))?;
                headers.insert(HeaderName::from_static(name), value);
            }
        }
        Ok(request)
    }
}

/// Divides the events into rounds, none of which has two events of one key.
fn rounds(messages: &[PushMessage]) -> Vec<Vec<usize>> {
    let mut rounds: Vec<Vec<usize>> = Vec::new();
    let mut next_round = HashMap::new();
    for (at, message) in messages.iter().enumerate() {
        let round = next_round.entry(key_of(message)).or_insert(0_usize);
        if *round == rounds.len() {
            rounds.push(Vec::new());
        }
        rounds[*round].push(at);
        *round += 1;
    }
    rounds
}

fn key_of(message: &PushMessage) -> (&str, &str) {
    (&message.event.bucket.id, &message.event.key)
}

fn answered(status: StatusCode) -> String {
    format!("the endpoint answered {status}")
}

/// The reason why a request was not answered. Only the causes of the client's own errors are useful to users.
fn reason_of(error: &hyper_util::client::legacy::Error) -> PushFailure {
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        if let Some(failure) = error.downcast_ref::<PushFailure>() {
            return failure.clone();
        }
        cause = error.source();
    }
    unavailable(with_causes(error))
}

/// Reads a body up to its end or to the bound. A connection with an unread body is not reused.
async fn discard(mut body: Incoming) {
    let mut read = 0;
    while let Some(Ok(frame)) = body.frame().await {
        read += frame.data_ref().map_or(0, Bytes::len);
        if read > MAX_BODY_BYTES {
            return;
        }
    }
}

/// Opens the pool's connections.
#[derive(Clone)]
pub(crate) struct Connector(Dialer);

impl Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = PushFailure;
    type Future = BoxFuture<'static, Result<TokioIo<Stream>, PushFailure>>;

    fn poll_ready(&mut self, _: &mut task::Context<'_>) -> Poll<Result<(), PushFailure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let dialer = self.0.clone();
        Box::pin(async move { dialer.connect().await.map(TokioIo::new) })
    }
}

impl PooledConnection for Stream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}
