//! Host names of a gateway. Under these names `BUCKET.NAME` addresses a bucket; under all other names the path does.

use http::{HeaderMap, header};
use nacre_rgw::error::{Error, Result};
use s3s::S3Result;
use s3s::host::{S3Host, VirtualHost};

/// The names of `rgw_dns_name` and of `rgw_dns_s3website_name`.
#[derive(Clone, Debug, Default)]
pub struct Hosts {
    names: Vec<String>,
    website: Vec<String>,
}

/// What a `Host` header addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HostTarget {
    /// The bucket; empty if the path names it.
    pub(super) bucket: String,
    /// Whether the host addresses websites instead of S3.
    pub(super) website: bool,
}

impl Hosts {
    /// Parses both options, which are comma-separated lists. Fails if a name is not a valid host name.
    pub fn new(names: &str, website: &str) -> Result<Hosts> {
        Ok(Hosts { names: list(names)?, website: list(website)? })
    }

    /// Returns what a host addresses. An unknown host addresses nothing: the path names the bucket.
    fn look(&self, host: &str) -> HostTarget {
        let host = name_of(host);
        let of = |names: &[String]| -> Option<(usize, String)> {
            // The longest name wins, because one name may end with another.
            let matching = names.iter().filter_map(|name| {
                let before = host.strip_suffix(name.as_str())?;
                let bucket = if before.is_empty() { before } else { before.strip_suffix('.')? };
                Some((name.len(), bucket.to_owned()))
            });
            matching.max()
        };
        match (of(&self.names), of(&self.website)) {
            (Some((longer, bucket)), Some((shorter, _))) if longer > shorter => {
                HostTarget { bucket, website: false }
            }
            (_, Some((_, bucket))) => HostTarget { bucket, website: true },
            (Some((_, bucket)), None) => HostTarget { bucket, website: false },
            (None, None) => HostTarget::default(),
        }
    }

    /// Returns what a request's `Host` header addresses.
    pub(super) fn addressed(&self, headers: &HeaderMap) -> HostTarget {
        if self.names.is_empty() && self.website.is_empty() {
            return HostTarget::default();
        }
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
        host.map(|host| self.look(host)).unwrap_or_default()
    }
}

impl S3Host for Hosts {
    fn parse_host_header<'a>(&'a self, host: &'a str) -> S3Result<VirtualHost<'a>> {
        let addressed = self.look(host);
        let domain = VirtualHost::new(host);
        Ok(if addressed.bucket.is_empty() { domain } else { domain.with_bucket(addressed.bucket) })
    }
}

/// Returns a host without its port and trailing dot, in lower case.
fn name_of(host: &str) -> String {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

fn list(names: &str) -> Result<Vec<String>> {
    let names = names.split(',').map(|name| name_of(name.trim())).filter(|name| !name.is_empty());
    names
        .map(|name| {
            let is_label = |label: &str| {
                !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            };
            let sound = name.split('.').all(is_label) && name.parse::<std::net::IpAddr>().is_err();
            if sound { Ok(name) } else { Err(Error::Invalid(format!("'{name}' is not a host's name"))) }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_address_buckets() {
        let hosts =
            Hosts::new("s3.example.com, S3.Example.Org.,deep.s3.example.com", "web.s3.example.com").unwrap();
        let look = |host| hosts.look(host);
        let bucket = |name: &str, website| HostTarget { bucket: name.into(), website };
        assert_eq!(look("s3.example.com"), bucket("", false));
        assert_eq!(look("photos.s3.example.com:8000"), bucket("photos", false));
        assert_eq!(look("PHOTOS.s3.EXAMPLE.org."), bucket("photos", false));
        assert_eq!(look("a.b.s3.example.com"), bucket("a.b", false));
        assert_eq!(look("a.deep.s3.example.com"), bucket("a", false));
        assert_eq!(look("photos.web.s3.example.com"), bucket("photos", true));
        assert_eq!(look("web.s3.example.com"), bucket("", true));
        for other in ["photoss3.example.com", "127.0.0.1:8000", "[::1]:8000", "example.com", ""] {
            assert_eq!(look(other), HostTarget::default(), "{other}");
        }
    }

    #[test]
    fn names_that_can_not_be_hosts_are_refused() {
        assert!(Hosts::new("", "").unwrap().names.is_empty());
        for name in ["a..b", "127.0.0.1", "s3.example.com/", "*.s3.example.com"] {
            assert!(Hosts::new(name, "").is_err() && Hosts::new("", name).is_err(), "{name}");
        }
    }
}
