//! Restrictions on endpoints: secrets in cleartext, addresses of the cluster itself, and files.
//!
//! A user who can create a topic makes the gateway connect to a server and read a file. Without restrictions this reaches
//! services that trust the gateway's network position: metadata services at link-local addresses, the cluster's daemons,
//! and programs on the gateway's host that listen on loopback only.

use super::Endpoint;
use crate::error::{Error, Result, quoted};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Component, Path, PathBuf};

/// The option that allows credentials over connections without TLS. It is Ceph's option.
pub const CLEARTEXT_OPTION: &str = "rgw_allow_notification_secrets_in_cleartext";
/// The option that allows endpoints at link-local addresses, the cluster's own, and loopback.
pub const LOCAL_OPTION: &str = "rgw_allow_notification_local_endpoints";
/// The option that names the folder of CA files.
pub const CA_FOLDER_OPTION: &str = "rgw_notification_ca_folder";

/// Addresses at which clouds provide credentials to their hosts, in addition to link-local addresses: those of Amazon and
/// Google for IPv6, and those of Alibaba, Azure and Oracle.
const METADATA_SERVICE_ADDRESSES: [IpAddr; 5] = [
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0x00ce, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
];

/// The gateway's options and network position, as far as they restrict endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointPolicy {
    /// [`CLEARTEXT_OPTION`].
    pub allow_cleartext_secrets: bool,
    /// [`LOCAL_OPTION`].
    pub allow_local: bool,
    /// Addresses of the cluster's daemons and gateways.
    pub own_addresses: Vec<IpAddr>,
    /// Whether a gateway of the cluster listens on addresses other than loopback. If so, users on other hosts could reach
    /// services on the gateway's loopback through a topic.
    pub listens_beyond_loopback: bool,
    /// [`CA_FOLDER_OPTION`]: `ca-location` must be a file in it. `None` allows no `ca-location`.
    pub ca_folder: Option<PathBuf>,
}

impl EndpointPolicy {
    /// Refuses an endpoint whose credentials are sent or were received in cleartext, or whose CA file is not in the folder.
    /// `came_by_tls` tells whether the request came over TLS or contains no credentials itself
    /// ([`Request::contains_secret`](crate::sns::Request::contains_secret)).
    pub fn check(&self, endpoint: &Endpoint, came_by_tls: bool) -> Result<()> {
        if endpoint.secret_credentials().is_some() && !self.allow_cleartext_secrets {
            let forbidden =
                |what: &str| Err(Error::NotAllowed { what: what.to_owned(), option: CLEARTEXT_OPTION });
            if !came_by_tls {
                return forbidden("credentials of an endpoint in a request without TLS");
            }
            if !endpoint.is_tls() {
                return forbidden("credentials for an endpoint without TLS");
            }
        }
        endpoint.ca_location().map_or(Ok(()), |path| self.check_ca_location(Path::new(path)))
    }

    /// Refuses a CA file outside of the folder. This checks the path as written. The caller that opens the file resolves
    /// its symbolic links first, and checks the resulting path again.
    pub fn check_ca_location(&self, path: &Path) -> Result<()> {
        let is_plain =
            path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
        if !path.is_absolute() || !is_plain {
            return Err(Error::invalid("ca-location", "not an absolute path without '..'"));
        }
        let is_within = |folder: &PathBuf| path.starts_with(folder) && path != folder.as_path();
        if self.ca_folder.as_ref().is_some_and(is_within) {
            return Ok(());
        }
        Err(Error::NotAllowed {
            what: format!("the ca-location {}", quoted(&path.to_string_lossy())),
            option: CA_FOLDER_OPTION,
        })
    }

    /// Refuses an address that an endpoint's host resolved to. Must be called for each address at each connection, because
    /// the resolution of a name may change.
    pub fn check_address(&self, address: IpAddr) -> Result<()> {
        let address = embedded(address);
        if !is_host(address) {
            return Err(Error::invalid("push-endpoint", format!("{address} is not the address of a host")));
        }
        if self.allow_local {
            return Ok(());
        }
        let forbidden = |what: &str| {
            Err(Error::NotAllowed {
                what: format!("the endpoint's address {address}, {what}"),
                option: LOCAL_OPTION,
            })
        };
        if address.is_loopback() {
            let gateway = "which is loopback while a gateway listens on other addresses";
            return if self.listens_beyond_loopback { forbidden(gateway) } else { Ok(()) };
        }
        let is_link_local = match address {
            IpAddr::V4(address) => address.is_link_local(),
            IpAddr::V6(address) => address.is_unicast_link_local(),
        };
        if is_link_local {
            return forbidden("which is link-local");
        }
        if METADATA_SERVICE_ADDRESSES.contains(&address) {
            return forbidden("at which a cloud tells its hosts credentials");
        }
        if self.own_addresses.iter().any(|own| embedded(*own) == address) {
            return forbidden("which is one of the cluster's own");
        }
        Ok(())
    }
}

/// The IPv4 address in an IPv6 address that is mapped (`::ffff:0:0/96`), compatible (`::/96`), translated
/// (`::ffff:0:0:0/96`), from NAT64 (`64:ff9b::/96`, and `64:ff9b:1::/48` with prefixes of 96 bits) or from 6to4
/// (`2002::/16`); otherwise the address itself.
fn embedded(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else { return address };
    if v6 == Ipv6Addr::LOCALHOST || v6.is_unspecified() {
        return address;
    }
    let [a, b, c, d, e, f, high, low] = v6.segments();
    let v4 = |high: u16, low: u16| IpAddr::V4(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)));
    match [a, b, c, d, e, f] {
        [0, 0, 0, 0, 0, 0 | 0xffff]
        | [0, 0, 0, 0, 0xffff, 0]
        | [0x64, 0xff9b, 0, 0, 0, 0]
        | [0x64, 0xff9b, 1, ..] => v4(high, low),
        [0x2002, high, low, ..] => v4(high, low),
        _ => address,
    }
}

/// Whether the address can belong to a single host.
fn is_host(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.octets()[0] != 0 && !v4.is_multicast() && !v4.is_broadcast(),
        IpAddr::V6(v6) => !v6.is_unspecified() && !v6.is_multicast(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attributes::Attributes;

    fn endpoint(list: &[(&str, &str)]) -> Endpoint {
        let pairs: Vec<_> =
            list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Attributes::from_pairs(&pairs).unwrap().endpoint("t").unwrap().unwrap()
    }

    fn option_of(result: Result<()>) -> Option<&'static str> {
        match result {
            Ok(()) => None,
            Err(Error::NotAllowed { option, .. }) => Some(option),
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn credentials_go_over_tls_only_unless_the_option_allows_it() {
        let secret = [
            vec![("push-endpoint", "http://u:p@sink")],
            vec![("push-endpoint", "kafka://u:p@k")],
            vec![("push-endpoint", "kafka://k"), ("user-name", "u"), ("password", "p")],
            vec![("push-endpoint", "amqp://u:p@mq"), ("amqp-exchange", "e")],
        ];
        let strict = EndpointPolicy::default();
        let loose = EndpointPolicy { allow_cleartext_secrets: true, ..EndpointPolicy::default() };
        for list in &secret {
            let endpoint = endpoint(list);
            assert_eq!(option_of(strict.check(&endpoint, true)), Some(CLEARTEXT_OPTION), "{endpoint}");
            assert_eq!(option_of(loose.check(&endpoint, false)), None, "{endpoint}");
        }
        let by_tls = [
            vec![("push-endpoint", "https://u:p@sink")],
            vec![("push-endpoint", "kafka://u:p@k"), ("use-ssl", "true")],
            vec![("push-endpoint", "amqps://u:p@mq"), ("amqp-exchange", "e")],
        ];
        for list in &by_tls {
            let endpoint = endpoint(list);
            assert_eq!(option_of(strict.check(&endpoint, true)), None, "{endpoint}");
            assert_eq!(option_of(strict.check(&endpoint, false)), Some(CLEARTEXT_OPTION), "{endpoint}");
        }
    }

    #[test]
    fn endpoints_without_credentials_need_no_tls() {
        let policy = EndpointPolicy::default();
        let amqp = endpoint(&[("push-endpoint", "amqp://mq"), ("amqp-exchange", "e")]);
        for endpoint in
            [endpoint(&[("push-endpoint", "http://sink")]), endpoint(&[("push-endpoint", "kafka://")]), amqp]
        {
            assert_eq!(option_of(policy.check(&endpoint, false)), None, "{endpoint}");
        }
    }

    #[test]
    fn ca_files_are_in_the_allowed_folder() {
        let policy = EndpointPolicy { ca_folder: Some("/etc/nacre/ca".into()), ..EndpointPolicy::default() };
        let none = EndpointPolicy::default();
        for (path, allowed) in [
            ("/etc/nacre/ca/kafka.pem", true),
            ("/etc/nacre/ca/sub/kafka.pem", true),
            ("/etc/nacre/ca", false),
            ("/etc/nacre/cax/kafka.pem", false),
            ("/etc/shadow", false),
        ] {
            let wanted = (!allowed).then_some(CA_FOLDER_OPTION);
            let endpoint = endpoint(&[("push-endpoint", "https://sink"), ("ca-location", path)]);
            assert_eq!(option_of(policy.check(&endpoint, true)), wanted, "{path}");
            assert_eq!(option_of(none.check(&endpoint, true)), Some(CA_FOLDER_OPTION), "{path}");
        }
        for path in ["/etc/nacre/ca/../shadow", "kafka.pem", "./kafka.pem", ""] {
            assert!(
                matches!(policy.check_ca_location(Path::new(path)), Err(Error::Invalid { .. })),
                "{path}"
            );
        }
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_near_the_gateway_are_refused_unless_the_option_allows_them() {
        let outside = EndpointPolicy {
            listens_beyond_loopback: true,
            own_addresses: vec![address("10.0.0.7"), address("fd00::7")],
            ..EndpointPolicy::default()
        };
        let allowing = EndpointPolicy { allow_local: true, ..outside.clone() };
        for text in [
            "127.0.0.1",
            "127.9.9.9",
            "::1",
            "::ffff:127.0.0.1",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b:1::a9fe:a9fe",
            "::ffff:0:127.0.0.1",
            "2002:7f00:1::1",
            "169.254.169.254",
            "::ffff:169.254.169.254",
            "fd00:ec2::254",
            "100.100.100.200",
            "::ffff:168.63.129.16",
            "fe80::1",
            "10.0.0.7",
            "::ffff:10.0.0.7",
            "fd00::7",
        ] {
            assert_eq!(option_of(outside.check_address(address(text))), Some(LOCAL_OPTION), "{text}");
            assert_eq!(option_of(allowing.check_address(address(text))), None, "{text}");
        }
        for text in ["10.0.0.8", "192.0.2.1", "2001:db8::1", "fd00::8", "2002:c000:201::1"] {
            assert_eq!(option_of(outside.check_address(address(text))), None, "{text}");
        }
    }

    #[test]
    fn a_gateway_on_loopback_may_push_to_loopback() {
        let policy =
            EndpointPolicy { own_addresses: vec![address("127.0.0.1")], ..EndpointPolicy::default() };
        for text in ["127.0.0.1", "::1", "127.0.0.2"] {
            assert_eq!(option_of(policy.check_address(address(text))), None, "{text}");
        }
        assert_eq!(option_of(policy.check_address(address("169.254.0.1"))), Some(LOCAL_OPTION));
    }

    #[test]
    fn addresses_of_no_host_are_refused_always() {
        let policy = EndpointPolicy { allow_local: true, ..EndpointPolicy::default() };
        for text in ["0.0.0.0", "0.1.2.3", "::", "224.0.0.1", "255.255.255.255", "ff02::1", "::ffff:0.0.0.0"]
        {
            assert!(matches!(policy.check_address(address(text)), Err(Error::Invalid { .. })), "{text}");
        }
    }
}
