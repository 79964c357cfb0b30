//! One connection to an S3 server: requests are signed by SigV4 in their headers, answers are received completely.
//!
//! A TLS server's certificate is verified against the system's certificates, or those of `SSL_CERT_FILE`.

use anyhow::{Context, Result, bail};
use bytes::{Bytes, BytesMut};
use hmac::{Hmac, Mac};
use http::{Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use sha2::{Digest, Sha256};
use std::sync::Arc;
use std::time::Duration;
use time::OffsetDateTime;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// The placeholder for the digest of an unsigned payload.
const UNSIGNED: &str = "UNSIGNED-PAYLOAD";
/// Longer than any successful answer takes.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Maximum bytes kept of an answer that is parsed: a page of a listing, an error's text.
pub(super) const MAX_PARSED_BODY: usize = 4 << 20;

/// A server and the credentials.
pub(super) struct S3Endpoint {
    /// The value of the header `Host`.
    pub(super) host: String,
    /// Host and port to connect to.
    pub(super) connect: String,
    pub(super) region: String,
    pub(super) access_key: String,
    pub(super) secret_key: String,
    pub(super) session_token: Option<String>,
    /// The header `User-Agent`, if any.
    pub(super) agent: Option<String>,
    /// For TLS.
    pub(super) tls: Option<Tls>,
}

/// The TLS configuration for a server.
pub(super) struct Tls {
    connector: TlsConnector,
    name: ServerName<'static>,
}

/// Data to be sent, and its digest if it is signed.
#[derive(Clone, Debug)]
pub(super) struct Payload {
    pub(super) data: Bytes,
    digest: String,
}

/// An answer.
#[derive(Debug)]
pub(super) struct S3Response {
    pub(super) status: StatusCode,
    /// Size of its body in bytes.
    pub(super) len: u64,
    /// The start of its body, if requested or if it is an error.
    pub(super) body: Bytes,
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub(super) struct S3Request<'a> {
    pub(super) method: &'a Method,
    /// Encoded.
    pub(super) path: &'a str,
    /// Encoded, its fields in order; empty for none.
    pub(super) query: &'a str,
    /// Number of bytes of the answer's body to keep.
    pub(super) keep: usize,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("invariant: any length of key will do");
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

impl Payload {
    /// Data with or without a digest in the signature.
    pub(super) fn new(data: Bytes, signed: bool) -> Payload {
        let digest = if signed { hex(&Sha256::digest(&data)) } else { UNSIGNED.to_owned() };
        Payload { data, digest }
    }

    /// No data.
    pub(super) fn empty() -> Payload {
        Payload::new(Bytes::new(), true)
    }
}

impl S3Response {
    /// The body as text.
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// A description of an unsuccessful answer: status, and S3's code.
    pub(super) fn failure(&self) -> String {
        let text = self.text();
        let code = text.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>"));
        match code {
            Some((code, _)) => format!("{} ({code})", self.status),
            None => self.status.to_string(),
        }
    }
}

impl Tls {
    /// TLS with the server of this name.
    pub(super) fn new(host: &str) -> Result<Tls> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(host.to_owned())
            .with_context(|| format!("'{host}' is not a valid server name for TLS"))?;
        Ok(Tls { connector: TlsConnector::from(Arc::new(config)), name })
    }
}

/// A credential from the environment.
pub(super) fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The region from the environment, or Amazon's first one.
pub(super) fn region() -> String {
    let region = environment("AWS_REGION").or_else(|| environment("AWS_DEFAULT_REGION"));
    region.unwrap_or_else(|| "us-east-1".to_owned())
}

impl S3Endpoint {
    /// The server at `endpoint`, with the keys and region from the environment.
    pub(super) fn from_env(endpoint: &str) -> Result<S3Endpoint> {
        let uri: Uri = endpoint.parse().with_context(|| format!("'{endpoint}' is not a URL"))?;
        if uri.scheme_str() != Some("http") {
            bail!("'{endpoint}': only http:// is supported; use a proxy on the server's host for TLS");
        }
        let authority = uri.authority().context("the endpoint has no host")?;
        if !matches!(uri.path(), "" | "/") {
            bail!("'{endpoint}': an endpoint must not have a path");
        }
        let needed = |name: &str| environment(name).with_context(|| format!("{name} is not set"));
        Ok(S3Endpoint {
            host: authority.as_str().to_owned(),
            connect: format!("{}:{}", authority.host(), authority.port_u16().unwrap_or(80)),
            region: region(),
            access_key: needed("AWS_ACCESS_KEY_ID")?,
            secret_key: needed("AWS_SECRET_ACCESS_KEY")?,
            session_token: environment("AWS_SESSION_TOKEN"),
            agent: None,
            tls: None,
        })
    }

    /// The header `Authorization` of a request made at `stamp` (`20260131T235959Z`): Signature Version 4.
    fn authorization(&self, ask: &S3Request<'_>, digest: &str, stamp: &str) -> String {
        let (mut headers, mut signed) = (
            format!("host:{}\nx-amz-content-sha256:{digest}\nx-amz-date:{stamp}\n", self.host),
            "host;x-amz-content-sha256;x-amz-date".to_owned(),
        );
        if let Some(token) = &self.session_token {
            headers += &format!("x-amz-security-token:{token}\n");
            signed += ";x-amz-security-token";
        }
        let S3Request { method, path, query, .. } = ask;
        let canonical = format!("{method}\n{path}\n{query}\n{headers}\n{signed}\n{digest}");
        let day = &stamp[..8];
        let scope = format!("{day}/{}/s3/aws4_request", self.region);
        let to_sign =
            format!("AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{}", hex(&Sha256::digest(canonical.as_bytes())));
        let first = format!("AWS4{}", self.secret_key).into_bytes();
        let key = [day, &self.region, "s3", "aws4_request"].iter().fold(first, |key, part| mac(&key, part));
        let signature = hex(&mac(&key, &to_sign));
        format!(
            "AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={signed}, Signature={signature}",
            self.access_key
        )
    }
}

/// A connection, which is re-established when it has ended.
pub(super) struct Connection<'a> {
    target: &'a S3Endpoint,
    sender: Option<SendRequest<Full<Bytes>>>,
}

impl<'a> Connection<'a> {
    /// Not connected yet.
    pub(super) fn new(target: &'a S3Endpoint) -> Connection<'a> {
        Connection { target, sender: None }
    }

    /// Creates a bucket at this path. Returns whether it did not exist.
    pub(super) async fn make_bucket(&mut self, path: &str) -> Result<bool> {
        let ask = S3Request { method: &Method::HEAD, path, query: "", keep: 0 };
        if self.send(ask, &Payload::empty()).await?.status.is_success() {
            return Ok(false);
        }
        let made = self.send(S3Request { method: &Method::PUT, ..ask }, &Payload::empty()).await?;
        if !made.status.is_success() {
            bail!("can't create bucket {}: {}", path.trim_matches('/'), made.failure());
        }
        Ok(true)
    }

    /// Sends a request and receives its answer.
    pub(super) async fn send(&mut self, ask: S3Request<'_>, payload: &Payload) -> Result<S3Response> {
        let answered = match tokio::time::timeout(TIMEOUT, self.exchange(ask, payload)).await {
            Ok(answered) => answered,
            Err(_) => Err(anyhow::anyhow!("no answer within {} s", TIMEOUT.as_secs())),
        };
        if answered.is_err() {
            self.sender = None;
        }
        answered
    }

    async fn exchange(&mut self, ask: S3Request<'_>, payload: &Payload) -> Result<S3Response> {
        let now = OffsetDateTime::from(std::time::SystemTime::now());
        let stamp = format!(
            "{:04}{:02}{:02}T{:02}{:02}{:02}Z",
            now.year(),
            u8::from(now.month()),
            now.day(),
            now.hour(),
            now.minute(),
            now.second()
        );
        let target =
            if ask.query.is_empty() { ask.path.to_owned() } else { format!("{}?{}", ask.path, ask.query) };
        let mut request = Request::builder()
            .method(ask.method)
            .uri(target)
            .header(http::header::HOST, &self.target.host)
            .header("x-amz-content-sha256", &payload.digest)
            .header("x-amz-date", &stamp)
            .header(http::header::AUTHORIZATION, self.target.authorization(&ask, &payload.digest, &stamp));
        if let Some(token) = &self.target.session_token {
            request = request.header("x-amz-security-token", token);
        }
        if let Some(agent) = &self.target.agent {
            request = request.header(http::header::USER_AGENT, agent);
        }
        let request = request.body(Full::new(payload.data.clone()))?;
        let mut response = self.sender().await?.send_request(request).await?;
        let status = response.status();
        let keep = if status.is_success() { ask.keep } else { MAX_PARSED_BODY };
        let (mut len, mut kept) = (0, BytesMut::new());
        while let Some(frame) = response.body_mut().frame().await {
            let Ok(data) = frame?.into_data() else { continue };
            len += data.len() as u64;
            kept.extend_from_slice(&data[..data.len().min(keep - kept.len())]);
        }
        Ok(S3Response { status, len, body: kept.freeze() })
    }

    /// The connection, ready to send.
    async fn sender(&mut self) -> Result<&mut SendRequest<Full<Bytes>>> {
        if let Some(sender) = &mut self.sender
            && sender.ready().await.is_err()
        {
            self.sender = None;
        }
        if self.sender.is_none() {
            let connect = &self.target.connect;
            let socket =
                TcpStream::connect(connect).await.with_context(|| format!("can't connect to {connect}"))?;
            socket.set_nodelay(true)?;
            self.sender = Some(match &self.target.tls {
                None => handshake(socket).await?,
                Some(Tls { connector, name }) => {
                    let stream = connector.connect(name.clone(), socket).await;
                    handshake(stream.with_context(|| format!("TLS handshake with {connect} failed"))?).await?
                }
            });
        }
        self.sender.as_mut().context("the connection ended")
    }
}

async fn handshake(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<SendRequest<Full<Bytes>>> {
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // The next request notices its end.
    tokio::spawn(connection);
    Ok(sender)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of AWS' documentation ("Signature Calculations for the Authorization Header", GET Bucket lifecycle).
    #[test]
    fn signatures_are_those_of_the_documentation() {
        let target = S3Endpoint {
            host: "examplebucket.s3.amazonaws.com".into(),
            connect: String::new(),
            region: "us-east-1".into(),
            access_key: "AKIAIOSFODNN7EXAMPLE".into(),
            secret_key: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into(),
            session_token: None,
            agent: None,
            tls: None,
        };
        let ask = S3Request { method: &Method::GET, path: "/", query: "lifecycle=", keep: 0 };
        let header = target.authorization(&ask, &Payload::empty().digest, "20130524T000000Z");
        assert_eq!(
            header,
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, \
             SignedHeaders=host;x-amz-content-sha256;x-amz-date, \
             Signature=fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"
        );
    }
}
