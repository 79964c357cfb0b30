//! URIs of push endpoints: `SCHEME://[USER:PASSWORD@]HOST[:PORT][PATH][?QUERY]`.
//!
//! A Kafka URI may have several hosts separated by commas, or none.

use crate::error::{Error, Result};
use crate::secret::{MASK, Secret};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::Ipv6Addr;

/// The longest URI, in bytes.
const MAX_URI_BYTES: usize = 2048;
/// The longest host name, in bytes: the limit of DNS.
const MAX_HOST_BYTES: usize = 253;
/// The most hosts of one URI.
const MAX_HOSTS: usize = 32;
/// Kafka's port if none is given.
pub const KAFKA_PORT: u16 = 9092;
const SCHEMES: [&str; 5] = ["http", "https", "kafka", "amqp", "amqps"];

/// A user and a password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The user.
    pub user: String,
    /// The password.
    pub password: Secret,
}

/// A server: a host name or address, and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HostPort {
    /// The host's name or address; an IPv6 address has no brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl HostPort {
    /// Parses `HOST` or `HOST:PORT`, with IPv6 addresses in brackets; `None` if the text is malformed.
    pub(crate) fn parse(text: &str, default_port: u16) -> Option<HostPort> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (address, rest) = rest.split_once(']')?;
                address.parse::<Ipv6Addr>().ok()?;
                (address, if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) })
            }
            None => match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        let is_name = host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
        if host.is_empty() || host.len() > MAX_HOST_BYTES || !(is_name || text.starts_with('[')) {
            return None;
        }
        let port = match port {
            None => default_port,
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse().ok()?,
            Some(_) => return None,
        };
        (port != 0).then(|| HostPort { host: host.to_owned(), port })
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            return write!(f, "[{}]:{}", self.host, self.port);
        }
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// The URI of an endpoint as its owner wrote it, with its credentials. `Debug` and `Display` mask the password; replies
/// show the text of `Display`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PushEndpoint(String);

/// A URI, split into parts.
#[derive(Debug)]
pub(crate) struct Uri<'a> {
    /// One of [`SCHEMES`].
    pub(crate) scheme: &'a str,
    /// User and password.
    pub(crate) credentials: Option<Credentials>,
    /// The hosts and ports.
    hosts: &'a str,
    /// Path and query.
    pub(crate) target: &'a str,
}

impl PushEndpoint {
    /// Parses a URI. Errors do not quote it, because it may contain a password.
    pub fn parse(text: &str) -> Result<PushEndpoint> {
        if text.len() > MAX_URI_BYTES {
            return Err(wrong(&format!("longer than {MAX_URI_BYTES} bytes")));
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&byte)) {
            return Err(wrong("a URI has no spaces and no characters that are not encoded"));
        }
        let endpoint = PushEndpoint(text.to_owned());
        endpoint.uri()?.check()?;
        Ok(endpoint)
    }

    /// The URI with its credentials, for storing it.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Whether the URI has a user and a password.
    pub fn has_credentials(&self) -> bool {
        self.split().is_some_and(|(_, userinfo, _)| userinfo.is_some())
    }

    /// Splits the URI into three parts: up to `://`, the user information before `@`, and the rest.
    fn split(&self) -> Option<(&str, Option<&str>, &str)> {
        let at = self.0.find("://")? + 3;
        let (scheme, rest) = self.0.split_at(at);
        let authority = rest.split(['/', '?']).next().unwrap_or(rest);
        match authority.rfind('@') {
            Some(at) => Some((scheme, Some(&rest[..at]), &rest[at + 1..])),
            None => Some((scheme, None, rest)),
        }
    }

    pub(crate) fn uri(&self) -> Result<Uri<'_>> {
        let (scheme, userinfo, rest) = self.split().ok_or_else(|| wrong("not a URI: it has no '://'"))?;
        let scheme = scheme.trim_end_matches("://");
        if !SCHEMES.contains(&scheme) {
            return Err(wrong(&format!("the scheme is not one of {}", SCHEMES.join(", "))));
        }
        if rest.contains('#') {
            return Err(wrong("a '#' has no meaning here; encode it as %23"));
        }
        let (hosts, target) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        Ok(Uri { scheme, credentials: userinfo.map(credentials).transpose()?, hosts, target })
    }
}

impl fmt::Display for PushEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.split() {
            Some((scheme, Some(userinfo), rest)) => {
                let user = userinfo.split(':').next().unwrap_or_default();
                write!(f, "{scheme}{user}:{MASK}@{rest}")
            }
            Some((_, None, _)) => f.write_str(&self.0),
            // `parse` does not accept such a URI.
            None => f.write_str(MASK),
        }
    }
}

/// Omits path and query, which may contain a token.
impl fmt::Debug for PushEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.to_string();
        let host = shown.find("://").map_or(0, |at| at + 3);
        let end = shown[host..].find(['/', '?']).map_or(shown.len(), |at| host + at);
        write!(f, "\"{}\"", &shown[..end])
    }
}

impl Uri<'_> {
    fn check(&self) -> Result<()> {
        if self.credentials.as_ref().is_some_and(|known| known.password.reveal() == MASK) {
            return Err(wrong("the password is the mask that answers show in its place"));
        }
        // The default port is irrelevant here.
        let servers = self.servers(1)?;
        if self.scheme != "kafka" && servers.len() != 1 {
            return Err(wrong("names no host, or more than one"));
        }
        Ok(())
    }

    /// All servers in the URI.
    pub(crate) fn servers(&self, default_port: u16) -> Result<Vec<HostPort>> {
        if self.hosts.is_empty() {
            return Ok(Vec::new());
        }
        if self.hosts.split(',').count() > MAX_HOSTS {
            return Err(Error::TooLarge { what: "the number of hosts in push-endpoint", limit: MAX_HOSTS });
        }
        let servers: Option<Vec<_>> =
            self.hosts.split(',').map(|host| HostPort::parse(host, default_port)).collect();
        servers.ok_or_else(|| wrong("the host or the port is malformed"))
    }

    /// The only server in the URI.
    pub(crate) fn single_server(&self, default_port: u16) -> Result<HostPort> {
        let mut servers = self.servers(default_port)?;
        match (servers.pop(), servers.is_empty()) {
            (Some(server), true) => Ok(server),
            _ => Err(wrong("names no host, or more than one")),
        }
    }
}

fn credentials(userinfo: &str) -> Result<Credentials> {
    let malformed = || wrong("what is before '@' is not USER:PASSWORD");
    let (user, password) = userinfo.split_once(':').ok_or_else(malformed)?;
    let (user, password) =
        (percent_decode(user).ok_or_else(malformed)?, percent_decode(password).ok_or_else(malformed)?);
    if user.is_empty() || password.is_empty() {
        return Err(malformed());
    }
    Ok(Credentials { user, password: Secret::new(password) })
}

/// Decodes a part of a URI; `None` if the result is not UTF-8 or has control characters.
pub(crate) fn percent_decode(text: &str) -> Option<String> {
    let decoded = urlencoding::decode(text).ok()?.into_owned();
    decoded.chars().all(|letter| !letter.is_control()).then_some(decoded)
}

fn wrong(reason: &str) -> Error {
    Error::invalid("push-endpoint", reason)
}
