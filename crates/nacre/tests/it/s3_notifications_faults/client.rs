//! A small S3 client: sends signed requests over its own connection, from an address that identifies the operation.

use bytes::Bytes;
use hmac::{Hmac, Mac};
use http::{HeaderMap, Method, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use sha2::{Digest, Sha256};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, SystemTime};
use time::OffsetDateTime;
use tokio::net::TcpSocket;

/// Timeout for connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Credentials.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    pub(crate) access: String,
    pub(crate) secret: String,
}

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    method: Method,
    /// `/BUCKET/KEY`, with characters that need no encoding.
    path: String,
    /// Names and values.
    query: Vec<(&'static str, String)>,
    /// Names in lower case.
    headers: Vec<(&'static str, String)>,
    body: Bytes,
}

impl Request {
    pub(crate) fn new(method: Method, bucket: &str, key: &str) -> Request {
        let path = if key.is_empty() { format!("/{bucket}") } else { format!("/{bucket}/{key}") };
        Request { method, path, query: Vec::new(), headers: Vec::new(), body: Bytes::new() }
    }

    pub(crate) fn query(mut self, name: &'static str, value: impl Into<String>) -> Request {
        self.query.push((name, value.into()));
        self
    }

    pub(crate) fn header(mut self, name: &'static str, value: impl Into<String>) -> Request {
        self.headers.push((name, value.into()));
        self
    }

    pub(crate) fn body(mut self, body: impl Into<Bytes>) -> Request {
        self.body = body.into();
        self
    }

    /// Sets a body with the checksum that S3 requires for documents.
    pub(crate) fn document(self, body: String) -> Request {
        let digest = base64_of(&Sha256::digest(body.as_bytes()));
        self.header("x-amz-checksum-sha256", digest).body(body)
    }

    fn query_text(&self) -> String {
        let mut fields: Vec<_> =
            self.query.iter().map(|(name, value)| format!("{name}={}", urlencoding::encode(value))).collect();
        fields.sort_unstable();
        fields.join("&")
    }

    /// The HTTP request, with all its headers signed by Signature Version 4.
    fn signed(&self, keys: &Keys, host: &str) -> http::Request<Full<Bytes>> {
        let now = OffsetDateTime::from(SystemTime::now());
        let (date, time) = (now.date(), now.time());
        let day = format!("{:04}{:02}{:02}", date.year(), u8::from(date.month()), date.day());
        let stamp = format!("{day}T{:02}{:02}{:02}Z", time.hour(), time.minute(), time.second());
        let digest = hex(&Sha256::digest(&self.body));
        let mut headers = self.headers.clone();
        headers.extend([
            ("host", host.to_owned()),
            ("x-amz-content-sha256", digest.clone()),
            ("x-amz-date", stamp.clone()),
        ]);
        headers.sort_unstable();
        let listed: String = headers.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
        let names = headers.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(";");
        let (method, path, query) = (&self.method, &self.path, self.query_text());
        let canonical = format!("{method}\n{path}\n{query}\n{listed}\n{names}\n{digest}");
        let scope = format!("{day}/us-east-1/s3/aws4_request");
        let to_sign =
            format!("AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{}", hex(&Sha256::digest(canonical.as_bytes())));
        let first = format!("AWS4{}", keys.secret).into_bytes();
        let key = [&*day, "us-east-1", "s3", "aws4_request"].iter().fold(first, |key, part| mac(&key, part));
        let signature = hex(&mac(&key, &to_sign));
        let credential = format!("Credential={}/{scope}", keys.access);
        let authorization =
            format!("AWS4-HMAC-SHA256 {credential}, SignedHeaders={names}, Signature={signature}");
        let uri = if query.is_empty() { path.clone() } else { format!("{path}?{query}") };
        let request = http::Request::builder().method(method).uri(uri);
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, value));
        let request = request.header(http::header::AUTHORIZATION, authorization);
        request.body(Full::new(self.body.clone())).unwrap()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn base64_of(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

/// An answer.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<String> {
        Some(self.headers.get(name)?.to_str().ok()?.to_owned())
    }

    /// The code of an error. An answer of 200 may contain one if the server started to answer too early.
    pub(crate) fn error(&self) -> Option<&str> {
        let has_error = !self.status.is_success() || self.body.contains("<Error>");
        has_error.then(|| text_of(&self.body, "Code").unwrap_or_default())
    }

    /// Whether it reports that nothing was done because of an error of the client.
    pub(crate) fn is_refusal(&self) -> bool {
        let is_the_servers = |code| matches!(code, "InternalError" | "SlowDown" | "ServiceUnavailable");
        match self.error() {
            Some(code) if self.status.is_success() => !is_the_servers(code),
            _ => self.status.is_client_error(),
        }
    }
}

/// The text of the first element with that name.
pub(crate) fn text_of<'a>(xml: &'a str, name: &str) -> Option<&'a str> {
    elements_of(xml, name).next()
}

/// The contents of the elements with that name.
pub(crate) fn elements_of<'a>(xml: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let mut rest = xml;
    std::iter::from_fn(move || {
        let (_, after) = rest.split_once(&open)?;
        let (inside, after) = after.split_once(&close)?;
        rest = after;
        Some(inside)
    })
}

/// The outcome of a request.
#[derive(Debug)]
pub(crate) enum Reply {
    /// No server accepted the connection.
    NotSent,
    /// It may have been executed.
    Lost,
    Answered(Answer),
}

/// A connection to a server, established when needed.
pub(crate) struct Connection {
    from: Ipv4Addr,
    to: SocketAddr,
    sender: Option<SendRequest<Full<Bytes>>>,
}

impl Connection {
    pub(crate) fn new(from: Ipv4Addr, to: SocketAddr) -> Connection {
        Connection { from, to, sender: None }
    }

    /// Sends a request once.
    pub(crate) async fn send(&mut self, keys: &Keys, request: &Request) -> Reply {
        let mut sender = match self.sender.take() {
            Some(sender) => sender,
            None => match tokio::time::timeout(CONNECT_TIMEOUT, self.connect()).await {
                Ok(Ok(sender)) => sender,
                Ok(Err(_)) | Err(_) => return Reply::NotSent,
            },
        };
        let signed = request.signed(keys, &self.to.to_string());
        match tokio::time::timeout(ANSWER_TIMEOUT, exchange(&mut sender, signed)).await {
            Ok(Ok(answer)) => {
                self.sender = Some(sender);
                Reply::Answered(answer)
            }
            Ok(Err(_)) | Err(_) => Reply::Lost,
        }
    }

    async fn connect(&self) -> std::io::Result<SendRequest<Full<Bytes>>> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((self.from, 0).into())?;
        let stream = socket.connect(self.to).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(std::io::Error::other)?;
        // The next request notices its end.
        tokio::spawn(connection);
        Ok(sender)
    }
}

async fn exchange(
    sender: &mut SendRequest<Full<Bytes>>,
    request: http::Request<Full<Bytes>>,
) -> hyper::Result<Answer> {
    // The connection may be about to process the end of the previous answer.
    sender.ready().await?;
    let (head, body) = sender.send_request(request).await?.into_parts();
    let body = body.collect().await?.to_bytes();
    let body = String::from_utf8_lossy(&body).into_owned();
    Ok(Answer { status: head.status, headers: head.headers, body })
}
