//! Networks, `10.0.0.0/8`: in grants with a network, and in ranges of the blocklist.

use std::net::IpAddr;

/// A network. An invalid one is accepted, as in Ceph, and contains no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Network(Option<(IpAddr, u8)>);

impl Network {
    pub(crate) fn parse(text: &str) -> Network {
        let parsed = text.split_once('/').and_then(|(addr, bits)| {
            let addr: IpAddr = addr.parse().ok()?;
            let most = if addr.is_ipv4() { 32 } else { 128 };
            let bits: u8 = bits.parse().ok().filter(|bits| *bits <= most)?;
            Some((addr, bits))
        });
        Network(parsed)
    }

    pub(crate) fn contains(self, peer: IpAddr) -> bool {
        match (self.0, peer.to_canonical()) {
            (Some((IpAddr::V4(net), bits)), IpAddr::V4(peer)) => {
                let differ = u32::from(net) ^ u32::from(peer);
                differ.checked_shr(32 - u32::from(bits)).unwrap_or(0) == 0
            }
            (Some((IpAddr::V6(net), bits)), IpAddr::V6(peer)) => {
                let differ = u128::from(net) ^ u128::from(peer);
                differ.checked_shr(128 - u32::from(bits)).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_contain_their_hosts_only() {
        for (network, peer, expected) in [
            ("10.0.0.0/8", "10.1.2.3", true),
            ("10.0.0.0/8", "11.0.0.0", false),
            ("10.0.0.0/8", "::ffff:10.1.2.3", true),
            ("0.0.0.0/0", "1.2.3.4", true),
            ("0.0.0.0/0", "::1", false),
            ("127.0.0.1/32", "127.0.0.1", true),
            ("127.0.0.1/32", "127.0.0.2", false),
            ("fd00::/8", "fd12::1", true),
            ("fd00::/8", "fe80::1", false),
            ("::1/128", "::1", true),
            ("127.0.0.1", "127.0.0.1", false),
            ("10.0.0.0/33", "10.0.0.1", false),
            ("dead", "10.0.0.1", false),
        ] {
            assert_eq!(
                Network::parse(network).contains(peer.parse().unwrap()),
                expected,
                "{peer} in {network}"
            );
        }
    }
}
