//! One connection to an S3 server: requests signed by SigV4 in their headers, answers taken whole.

use anyhow::{Context, Result, bail};
use bytes::{Bytes, BytesMut};
use hmac::{Hmac, Mac};
use http::{Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use sha2::{Digest, Sha256};
use std::time::Duration;
use time::OffsetDateTime;
use tokio::net::TcpStream;

/// What stands for the digest of a payload that is not signed.
const UNSIGNED: &str = "UNSIGNED-PAYLOAD";
/// Longer than any answer that is not a failure takes.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Bytes of an answer that are kept where it is looked at: a page of a listing, an error's text.
const MAX_KEPT: usize = 4 << 20;

/// A server, and who asks.
#[derive(Debug)]
pub(super) struct Target {
    /// As the header `Host` has it.
    pub(super) host: String,
    connect: String,
    region: String,
    access_key: String,
    secret_key: String,
    session_token: Option<String>,
}

/// Data to be sent, and its digest where it is signed.
#[derive(Clone, Debug)]
pub(super) struct Payload {
    pub(super) data: Bytes,
    digest: String,
}

/// An answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    /// Bytes of its body.
    pub(super) len: u64,
    /// Its body, where that was asked for or is an error's.
    pub(super) text: String,
}

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask<'a> {
    pub(super) method: &'a Method,
    /// Encoded.
    pub(super) path: &'a str,
    /// Encoded, its fields in order; empty for none.
    pub(super) query: &'a str,
    /// Whether the answer's body is wanted.
    pub(super) keep: bool,
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
    /// Data whose digest goes into the signature, or does not.
    pub(super) fn new(data: Bytes, signed: bool) -> Payload {
        let digest = if signed { hex(&Sha256::digest(&data)) } else { UNSIGNED.to_owned() };
        Payload { data, digest }
    }

    /// No data.
    pub(super) fn empty() -> Payload {
        Payload::new(Bytes::new(), true)
    }
}

impl Target {
    /// The server at `endpoint`, with the keys and region of the environment.
    pub(super) fn of_environment(endpoint: &str) -> Result<Target> {
        let uri: Uri = endpoint.parse().with_context(|| format!("'{endpoint}' is no URL"))?;
        if uri.scheme_str() != Some("http") {
            bail!("'{endpoint}': only http:// is spoken; measure a TLS server behind a proxy on its host");
        }
        let authority = uri.authority().context("the endpoint names no host")?;
        if !matches!(uri.path(), "" | "/") {
            bail!("'{endpoint}': an endpoint has no path");
        }
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let needed = |name: &str| variable(name).with_context(|| format!("{name} is not set"));
        let region = variable("AWS_REGION").or_else(|| variable("AWS_DEFAULT_REGION"));
        Ok(Target {
            host: authority.as_str().to_owned(),
            connect: format!("{}:{}", authority.host(), authority.port_u16().unwrap_or(80)),
            region: region.unwrap_or_else(|| "us-east-1".to_owned()),
            access_key: needed("AWS_ACCESS_KEY_ID")?,
            secret_key: needed("AWS_SECRET_ACCESS_KEY")?,
            session_token: variable("AWS_SESSION_TOKEN"),
        })
    }

    /// The header `Authorization` of a request made at `stamp` (`20260131T235959Z`): Signature Version 4.
    fn authorization(&self, ask: &Ask<'_>, digest: &str, stamp: &str) -> String {
        let (mut headers, mut signed) = (
            format!("host:{}\nx-amz-content-sha256:{digest}\nx-amz-date:{stamp}\n", self.host),
            "host;x-amz-content-sha256;x-amz-date".to_owned(),
        );
        if let Some(token) = &self.session_token {
            headers += &format!("x-amz-security-token:{token}\n");
            signed += ";x-amz-security-token";
        }
        let Ask { method, path, query, .. } = ask;
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

/// A connection, made anew when it has ended.
#[derive(Debug)]
pub(super) struct Connection<'a> {
    target: &'a Target,
    sender: Option<SendRequest<Full<Bytes>>>,
}

impl<'a> Connection<'a> {
    /// Not connected yet.
    pub(super) fn new(target: &'a Target) -> Connection<'a> {
        Connection { target, sender: None }
    }

    /// Sends a request and takes its answer.
    pub(super) async fn ask(&mut self, ask: Ask<'_>, payload: &Payload) -> Result<Answer> {
        let answered = match tokio::time::timeout(TIMEOUT, self.exchange(ask, payload)).await {
            Ok(answered) => answered,
            Err(_) => Err(anyhow::anyhow!("no answer within {} s", TIMEOUT.as_secs())),
        };
        if answered.is_err() {
            self.sender = None;
        }
        answered
    }

    async fn exchange(&mut self, ask: Ask<'_>, payload: &Payload) -> Result<Answer> {
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
        let request = request.body(Full::new(payload.data.clone()))?;
        let mut response = self.sender().await?.send_request(request).await?;
        let status = response.status();
        let keep = ask.keep || !status.is_success();
        let (mut len, mut kept) = (0, BytesMut::new());
        while let Some(frame) = response.body_mut().frame().await {
            let Ok(data) = frame?.into_data() else { continue };
            len += data.len() as u64;
            if keep && kept.len() + data.len() <= MAX_KEPT {
                kept.extend_from_slice(&data);
            }
        }
        Ok(Answer { status, len, text: String::from_utf8_lossy(&kept).into_owned() })
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
            let (sender, connection) = http1::handshake(TokioIo::new(socket)).await?;
            // Its end shows in the next request.
            tokio::spawn(connection);
            self.sender = Some(sender);
        }
        self.sender.as_mut().context("the connection ended")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of AWS' documentation ("Signature Calculations for the Authorization Header", GET Bucket lifecycle).
    #[test]
    fn signatures_are_those_of_the_documentation() {
        let target = Target {
            host: "examplebucket.s3.amazonaws.com".into(),
            connect: String::new(),
            region: "us-east-1".into(),
            access_key: "AKIAIOSFODNN7EXAMPLE".into(),
            secret_key: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into(),
            session_token: None,
        };
        let ask = Ask { method: &Method::GET, path: "/", query: "lifecycle=", keep: false };
        let header = target.authorization(&ask, &Payload::empty().digest, "20130524T000000Z");
        assert_eq!(
            header,
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, \
             SignedHeaders=host;x-amz-content-sha256;x-amz-date, \
             Signature=fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"
        );
    }
}
