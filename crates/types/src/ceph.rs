//! Ceph's own encodings (`encode`/`decode` of its `bufferlist`), for data that unmodified programs send to object classes.
//!
//! Integers are little-endian; strings and byte strings have a u32 length; containers a u32 count; structures an envelope of
//! version u8, oldest reader's version u8 and u32 length (`ENCODE_START`).

use crate::encoding::DecodeError;
use bytes::Bytes;
use std::net::{IpAddr, SocketAddr};

/// Writes an encoding.
#[derive(Debug, Default)]
pub struct Encoder(Vec<u8>);

/// Reads an encoding.
#[derive(Clone, Copy, Debug)]
pub struct Decoder<'a>(&'a [u8]);

/// A type with a Ceph encoding.
pub trait CephEncoding: Sized {
    /// Appends the value to `out`.
    fn encode_to(&self, out: &mut Encoder);
    /// Reads a value.
    fn decode_from(from: &mut Decoder<'_>) -> Result<Self, DecodeError>;

    /// Returns the encoded value.
    fn to_bytes(&self) -> Bytes {
        let mut out = Encoder::default();
        self.encode_to(&mut out);
        out.finish()
    }

    /// Reads a value from the start of `bytes`. The rest is ignored, as in Ceph.
    fn from_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
        Self::decode_from(&mut Decoder::new(bytes))
    }
}

fn corrupt(detail: &str) -> DecodeError {
    DecodeError::Corrupt { what: "Ceph encoding", detail: detail.to_owned() }
}

impl Encoder {
    /// Returns the encoding.
    pub fn finish(self) -> Bytes {
        self.0.into()
    }

    /// Writes a structure: `body` in an envelope of this version, readable from version `compat` on.
    pub fn structure(&mut self, version: u8, compat: u8, body: impl FnOnce(&mut Encoder)) {
        self.0.extend_from_slice(&[version, compat, 0, 0, 0, 0]);
        let start = self.0.len();
        body(self);
        let length = u32::try_from(self.0.len() - start).unwrap_or(u32::MAX);
        self.0[start - 4..start].copy_from_slice(&length.to_le_bytes());
    }

    /// Writes one byte.
    pub fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    /// Writes two bytes.
    pub fn u16(&mut self, value: u16) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Writes four bytes.
    pub fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Writes eight bytes.
    pub fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Writes a number of elements.
    pub fn count(&mut self, count: usize) {
        self.u32(u32::try_from(count).unwrap_or(u32::MAX));
    }

    /// Writes a byte string.
    pub fn bytes(&mut self, value: &[u8]) {
        self.count(value.len());
        self.0.extend_from_slice(value);
    }

    /// Writes bytes without a length.
    pub fn raw(&mut self, value: &[u8]) {
        self.0.extend_from_slice(value);
    }
}

impl<'a> Decoder<'a> {
    /// Creates a decoder of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Decoder<'a> {
        Decoder(bytes)
    }

    /// The number of remaining bytes.
    pub fn remaining(&self) -> usize {
        self.0.len()
    }

    /// Reads `len` bytes.
    pub fn raw(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let (part, rest) = self.0.split_at_checked(len).ok_or_else(|| corrupt("cut short"))?;
        self.0 = rest;
        Ok(part)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (part, rest) = self.0.split_first_chunk().ok_or_else(|| corrupt("cut short"))?;
        self.0 = rest;
        Ok(*part)
    }

    /// Reads a structure of which this release knows versions up to `version`. Passes its version to `body` and skips what
    /// `body` does not read.
    pub fn structure<T>(
        &mut self,
        version: u8,
        body: impl FnOnce(u8, &mut Decoder<'a>) -> Result<T, DecodeError>,
    ) -> Result<T, DecodeError> {
        let [written, compat] = self.array()?;
        if compat > version {
            return Err(DecodeError::TooNew { what: "Ceph encoding", compat, supported: version });
        }
        let length = self.u32()? as usize;
        let mut inside = Decoder(self.raw(length)?);
        body(written, &mut inside)
    }

    /// Reads one byte.
    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    /// Reads one byte as a boolean: any value but 0 is true.
    pub fn bool(&mut self) -> Result<bool, DecodeError> {
        Ok(self.u8()? != 0)
    }

    /// Reads two bytes.
    pub fn u16(&mut self) -> Result<u16, DecodeError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// Reads four bytes.
    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Reads eight bytes.
    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Reads a number of elements, which can't exceed the number of remaining bytes.
    pub fn count(&mut self) -> Result<usize, DecodeError> {
        let count = self.u32()? as usize;
        if count > self.0.len() { Err(corrupt("a count beyond the end")) } else { Ok(count) }
    }

    /// Reads a byte string.
    pub fn bytes(&mut self) -> Result<Bytes, DecodeError> {
        let len = self.count()?;
        Ok(Bytes::copy_from_slice(self.raw(len)?))
    }

    /// Reads a list.
    pub fn list<T>(
        &mut self,
        mut element: impl FnMut(&mut Decoder<'a>) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        (0..self.count()?).map(|_| element(self)).collect()
    }
}

/// A point in time or a duration (`utime_t`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct UTime {
    /// Seconds.
    pub seconds: u32,
    /// Nanoseconds.
    pub nanoseconds: u32,
}

impl UTime {
    /// Whether it is 0, which means none.
    pub fn is_zero(self) -> bool {
        self == UTime::default()
    }

    /// Converts from nanoseconds. Times beyond Ceph's range saturate.
    pub fn from_ns(ns: u64) -> UTime {
        let seconds = u32::try_from(ns / 1_000_000_000).unwrap_or(u32::MAX);
        UTime { seconds, nanoseconds: (ns % 1_000_000_000) as u32 }
    }

    /// Converts to nanoseconds.
    pub fn as_ns(self) -> u64 {
        u64::from(self.seconds) * 1_000_000_000 + u64::from(self.nanoseconds)
    }
}

impl CephEncoding for UTime {
    fn encode_to(&self, out: &mut Encoder) {
        out.u32(self.seconds);
        out.u32(self.nanoseconds);
    }

    fn decode_from(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(UTime { seconds: from.u32()?, nanoseconds: from.u32()? })
    }
}

/// A session by kind and number (`entity_name_t`): `client.4123`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionName {
    /// `CEPH_ENTITY_TYPE_*`; 8 for clients.
    pub kind: u8,
    /// The session.
    pub number: i64,
}

/// `CEPH_ENTITY_TYPE_CLIENT`.
pub const ENTITY_TYPE_CLIENT: u8 = 8;

impl SessionName {
    /// Returns the name of a client's session.
    pub fn client(client: crate::ids::ClientId) -> SessionName {
        SessionName { kind: ENTITY_TYPE_CLIENT, number: client.0 as i64 }
    }

    /// Parses `client.4123`.
    pub fn parse(text: &str) -> Option<SessionName> {
        let (kind, number) = text.split_once('.')?;
        let kind = KINDS.iter().find(|(_, name)| *name == kind)?.0;
        Some(SessionName { kind, number: number.parse().ok()? })
    }
}

const KINDS: &[(u8, &str)] = &[(1, "mon"), (2, "mds"), (4, "osd"), (8, "client"), (16, "mgr")];

impl std::fmt::Display for SessionName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = KINDS.iter().find(|(kind, _)| *kind == self.kind).map_or("???", |(_, name)| *name);
        if self.number < 0 { write!(f, "{kind}.?") } else { write!(f, "{kind}.{}", self.number) }
    }
}

impl CephEncoding for SessionName {
    fn encode_to(&self, out: &mut Encoder) {
        out.u8(self.kind);
        out.u64(self.number as u64);
    }

    fn decode_from(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(SessionName { kind: from.u8()?, number: from.u64()? as i64 })
    }
}

/// A session's address (`entity_addr_t`). A client's has port 0 and the session's number as nonce: it identifies the session
/// independently of its sockets, for listings and for the blocklist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionAddr {
    /// Address and port; `None` for none.
    pub addr: Option<SocketAddr>,
    /// Distinguishes sessions at one address.
    pub nonce: u32,
}

/// `entity_addr_t::TYPE_NONE`, `TYPE_LEGACY`.
const TYPE_NONE: u32 = 0;
const TYPE_LEGACY: u32 = 1;
/// Linux's AF_INET and AF_INET6.
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

impl SessionAddr {
    /// Returns the address of a client's session.
    pub fn client(ip: IpAddr, client: crate::ids::ClientId) -> SessionAddr {
        SessionAddr { addr: Some(SocketAddr::new(ip, 0)), nonce: client.0 as u32 }
    }
}

impl std::fmt::Display for SessionAddr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.addr {
            Some(addr) => write!(f, "{addr}/{}", self.nonce),
            None => f.write_str("-"),
        }
    }
}

impl CephEncoding for SessionAddr {
    /// Writes the form of clients since msgr2 (`CEPH_FEATURE_MSG_ADDR2`).
    fn encode_to(&self, out: &mut Encoder) {
        out.u8(1);
        out.structure(1, 1, |out| {
            out.u32(if self.addr.is_some() { TYPE_LEGACY } else { TYPE_NONE });
            out.u32(self.nonce);
            let mut socket = Encoder::default();
            match self.addr {
                None => {}
                Some(SocketAddr::V4(addr)) => {
                    socket.u16(AF_INET);
                    socket.raw(&addr.port().to_be_bytes());
                    socket.raw(&addr.ip().octets());
                    socket.raw(&[0; 8]);
                }
                Some(SocketAddr::V6(addr)) => {
                    socket.u16(AF_INET6);
                    socket.raw(&addr.port().to_be_bytes());
                    socket.raw(&addr.flowinfo().to_be_bytes());
                    socket.raw(&addr.ip().octets());
                    socket.u32(addr.scope_id());
                }
            }
            out.bytes(&socket.0);
        });
    }

    fn decode_from(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        match from.u8()? {
            // The form before msgr2: three more zero bytes, nonce, and a complete sockaddr_storage with its family in
            // big-endian.
            0 => {
                from.raw(3)?;
                let nonce = from.u32()?;
                let storage = from.raw(128)?;
                let family = u16::from_be_bytes([storage[0], storage[1]]);
                Ok(SessionAddr { addr: socket_addr(family, &storage[2..]), nonce })
            }
            1 => from.structure(1, |_, from| {
                let _kind = from.u32()?;
                let nonce = from.u32()?;
                let len = from.count()?;
                let addr = match from.raw(len)? {
                    [low, high, rest @ ..] => socket_addr(u16::from_le_bytes([*low, *high]), rest),
                    _ => None,
                };
                Ok(SessionAddr { addr, nonce })
            }),
            _ => Err(corrupt("an address of an unknown form")),
        }
    }
}

/// Parses the bytes after the family in a `sockaddr_in` or `sockaddr_in6`.
fn socket_addr(family: u16, rest: &[u8]) -> Option<SocketAddr> {
    let port = u16::from_be_bytes(*rest.first_chunk()?);
    match family {
        AF_INET => Some(SocketAddr::new(IpAddr::from(*rest.get(2..)?.first_chunk::<4>()?), port)),
        AF_INET6 => Some(SocketAddr::new(IpAddr::from(*rest.get(6..)?.first_chunk::<16>()?), port)),
        _ => None,
    }
}

/// The version that daemons report: `ceph_version` of their metadata, `version`.
pub fn nacre_version() -> String {
    format!("nacre version {} (compatible with ceph 16.2 pacific)", env!("CARGO_PKG_VERSION"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_encoded_as_since_msgr2() {
        let addr = SessionAddr { addr: Some("127.0.0.1:6800".parse().unwrap()), nonce: 77 };
        let bytes = addr.to_bytes();
        let expected: Vec<u8> = [
            &[1, 1, 1, 28, 0, 0, 0][..],
            &[1, 0, 0, 0],
            &[77, 0, 0, 0],
            &[16, 0, 0, 0],
            &[2, 0, 0x1a, 0x90, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0],
        ]
        .concat();
        assert_eq!(bytes, expected);
        assert_eq!(SessionAddr::from_bytes(&bytes).unwrap(), addr);
        assert_eq!(addr.to_string(), "127.0.0.1:6800/77");
        let six = SessionAddr { addr: Some("[::1]:0".parse().unwrap()), nonce: 1 };
        assert_eq!(SessionAddr::from_bytes(&six.to_bytes()).unwrap(), six);
        let none = SessionAddr::default();
        assert_eq!(SessionAddr::from_bytes(&none.to_bytes()).unwrap(), none);
        let mut legacy = vec![0, 0, 0, 0, 77, 0, 0, 0, 0, 2, 0x1a, 0x90, 127, 0, 0, 1];
        legacy.resize(8 + 128, 0);
        assert_eq!(SessionAddr::from_bytes(&legacy).unwrap(), addr);
    }

    #[test]
    fn what_is_cut_short_or_lies_about_its_size_is_refused() {
        let addr = SessionAddr { addr: Some("127.0.0.1:6800".parse().unwrap()), nonce: 77 };
        let bytes = addr.to_bytes();
        for cut in 0..bytes.len() {
            assert!(SessionAddr::from_bytes(&bytes[..cut]).is_err(), "{cut}");
        }
        assert!(Decoder::new(&[255, 255, 255, 255, 1]).bytes().is_err());
        assert!(Decoder::new(&[255, 255, 255, 255, 1]).list(|from| from.u8()).is_err());
        assert!(Decoder::new(&[2, 2, 0, 0, 0, 0]).structure(1, |_, _| Ok(())).is_err());
        let newer = Decoder::new(&[9, 1, 2, 0, 0, 0, 5, 6, 7]).structure(1, |_, from| from.u8());
        assert_eq!(newer.unwrap(), 5);
    }

    #[test]
    fn names_are_read_as_they_are_printed() {
        let name = SessionName::client(crate::ids::ClientId(4123));
        assert_eq!(name.to_string(), "client.4123");
        assert_eq!(SessionName::parse("client.4123"), Some(name));
        assert_eq!(SessionName::from_bytes(&name.to_bytes()).unwrap(), name);
        assert_eq!((SessionName::parse("client"), SessionName::parse("nobody.1")), (None, None));
    }
}
