//! Payloads that are sent beside a message instead of inside it, so that their data is not copied.
//!
//! A [`Payload`], and a field of `Bytes` marked `#[serde(with = "nacre_types::payload")]`, encodes only its length. [`encode`]
//! returns the `Bytes` handles in field order, and [`decode`] slices the fields from the data segment by reference. Outside
//! these two functions such a field is encoded inline, so that the same types can be persisted.
//!
//! serde passes no context to field serializers, so a thread-local is used during each call.

use crate::crc32c::{self, BLOCK_BYTES};
use crate::encoding::DecodeError;
use bytes::Bytes;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::cell::RefCell;
use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

thread_local! {
    static SINK: RefCell<Option<Vec<Payload>>> = const { RefCell::new(None) };
    static SOURCE: RefCell<Option<Payload>> = const { RefCell::new(None) };
}

/// Bytes with optional checksums of their blocks ([`crc32c::blocks`]). So the data on its way from a socket to other sockets
/// and a store is read only once for checksums: those of frames and of a store's blocks are derived from these. Encoding and
/// comparison use only the bytes.
#[derive(Clone, Default)]
pub struct Payload {
    bytes: Bytes,
    sums: Sums,
}

#[derive(Clone, Default)]
enum Sums {
    #[default]
    Unknown,
    /// For at most one block.
    One([u32; 1]),
    /// The block checksums, starting at index `first`. The last block may be short.
    Many { all: Arc<[u32]>, first: usize },
}

impl Payload {
    /// Computes the checksums of `bytes`.
    pub fn with_checksums(bytes: Bytes) -> Payload {
        let sums = match bytes.len() {
            0 => Sums::Unknown,
            1..=BLOCK_BYTES => Sums::One([crc32c::crc32c(&bytes)]),
            _ => Sums::Many { all: crc32c::blocks(&bytes).into(), first: 0 },
        };
        Payload { bytes, sums }
    }

    /// The bytes without checksums.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The bytes without checksums.
    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }

    /// The crc32c of each block from the first byte on, if known; the last block may be short.
    pub fn checksums(&self) -> Option<&[u32]> {
        match &self.sums {
            Sums::Unknown => None,
            Sums::One(sum) => Some(sum),
            Sums::Many { all, first } => Some(&all[*first..][..self.len().div_ceil(BLOCK_BYTES)]),
        }
    }

    /// Attaches these checksums to a complete copy of the bytes.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn with_copied_bytes(&self, copy: Bytes) -> Payload {
        assert_eq!(copy.len(), self.len());
        Payload { bytes: copy, sums: self.sums.clone() }
    }

    /// Extends the checksum `crc` by these bytes.
    pub fn extend_crc(&self, crc: u32) -> u32 {
        let Some(sums) = self.checksums() else { return crc32c::append(crc, self) };
        let (whole, short) = self.as_chunks::<BLOCK_BYTES>();
        let crc = sums[..whole.len()].iter().fold(crc, |crc, sum| crc32c::append_block_crc(crc, *sum));
        if short.is_empty() { crc } else { crc32c::append(crc, short) }
    }

    /// Returns a part by reference. Keeps the checksums if it consists of the same blocks.
    ///
    /// # Panics
    /// If `range` is out of bounds.
    pub fn slice(&self, range: Range<usize>) -> Payload {
        let blocks = range.start.is_multiple_of(BLOCK_BYTES)
            && (range.end.is_multiple_of(BLOCK_BYTES) || range.end == self.len());
        let sums = match &self.sums {
            Sums::One(sum) if range == (0..self.len()) => Sums::One(*sum),
            Sums::Many { all, first } if blocks && !range.is_empty() => {
                Sums::Many { all: Arc::clone(all), first: first + range.start / BLOCK_BYTES }
            }
            _ => Sums::Unknown,
        };
        Payload { bytes: self.bytes.slice(range), sums }
    }

    /// Removes and returns the first `len` bytes.
    fn split_to(&mut self, len: usize) -> Payload {
        let first = self.slice(0..len);
        *self = self.slice(len..self.len());
        first
    }
}

impl<T: Into<Bytes>> From<T> for Payload {
    /// Creates a payload without checksums.
    fn from(bytes: T) -> Payload {
        Payload { bytes: bytes.into(), sums: Sums::Unknown }
    }
}

impl Deref for Payload {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl PartialEq for Payload {
    fn eq(&self, other: &Payload) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for Payload {}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes.fmt(f)
    }
}

impl Serialize for Payload {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        put(self, serializer)
    }
}

impl<'de> Deserialize<'de> for Payload {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Payload, D::Error> {
        take(deserializer)
    }
}

/// A message, split into its encoded description and the data that it refers to.
#[derive(Debug, Clone, Default)]
pub struct SplitMessage {
    /// The postcard encoding of everything but payloads.
    pub meta: Vec<u8>,
    /// The payloads in field order, without empty ones.
    pub data: Vec<Payload>,
}

impl SplitMessage {
    /// Total payload length in bytes.
    pub fn data_len(&self) -> usize {
        self.data.iter().map(|part| part.len()).sum()
    }
}

/// Encodes `value`. Its payload fields are collected by reference.
pub fn encode<T: Serialize>(value: &T) -> SplitMessage {
    SINK.with_borrow_mut(|sink| *sink = Some(Vec::new()));
    let meta = postcard::to_extend(value, Vec::with_capacity(256));
    let data = SINK.with_borrow_mut(Option::take).unwrap_or_default();
    SplitMessage { meta: meta.expect("invariant: messages hold no unsized sequences"), data }
}

/// Decodes a message whose payload fields are slices of `data`. Fails if bytes remain in either part.
pub fn decode<T: DeserializeOwned>(
    what: &'static str,
    meta: &[u8],
    data: impl Into<Payload>,
) -> Result<T, DecodeError> {
    let data = data.into();
    SOURCE.with_borrow_mut(|source| *source = Some(data));
    let decoded = postcard::take_from_bytes::<T>(meta);
    let rest = SOURCE.with_borrow_mut(Option::take).unwrap_or_default();
    let corrupt = |detail: String| DecodeError::Corrupt { what, detail };
    let (value, unread) = decoded.map_err(|e| corrupt(e.to_string()))?;
    if !unread.is_empty() || !rest.is_empty() {
        return Err(corrupt(format!(
            "{} bytes of description and {} of data left over",
            unread.len(),
            rest.len()
        )));
    }
    Ok(value)
}

/// serde's `with` hook for a field of `Bytes`: see the module's documentation.
pub fn serialize<S: Serializer>(value: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
    put(&Payload::from(value.clone()), serializer)
}

/// serde's `with` hook for a field of `Bytes`: see the module's documentation.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
    take(deserializer).map(Payload::into_bytes)
}

fn put<S: Serializer>(value: &Payload, serializer: S) -> Result<S::Ok, S::Error> {
    let beside = SINK.with_borrow_mut(|sink| match sink {
        Some(list) => {
            if !value.is_empty() {
                list.push(value.clone());
            }
            true
        }
        None => false,
    });
    if beside { (value.len() as u64).serialize(serializer) } else { value.bytes.serialize(serializer) }
}

fn take<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Payload, D::Error> {
    if SOURCE.with_borrow(Option::is_none) {
        return Bytes::deserialize(deserializer).map(Payload::from);
    }
    let length = u64::deserialize(deserializer)?;
    SOURCE.with_borrow_mut(|source| match source {
        Some(data) if length <= data.len() as u64 => Ok(data.split_to(length as usize)),
        _ => Err(D::Error::custom("payload is longer than the data segment")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Message {
        before: u32,
        #[serde(with = "crate::payload")]
        one: Bytes,
        list: Vec<Item>,
    }
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Item(#[serde(with = "crate::payload")] Bytes);

    fn message() -> Message {
        Message {
            before: 5,
            one: Bytes::from_static(b"abc"),
            list: vec![Item(Bytes::new()), Item(Bytes::from_static(b"defg"))],
        }
    }

    #[test]
    fn checksums_travel_with_blocks() {
        let bytes: Bytes = (0..5 * BLOCK_BYTES + 100).map(|at| (at * 31 / 7) as u8).collect();
        let of = |payload: &Payload| payload.checksums().map(<[u32]>::to_vec);
        let whole = Payload::with_checksums(bytes.clone());
        assert_eq!(of(&whole), Some(crc32c::blocks(&bytes)));
        assert_eq!(whole.extend_crc(7), crc32c::append(7, &bytes));
        for (from, to, known) in [(0, 2, true), (2, 5, true), (1, 1, false), (4, 5, true)] {
            let part = whole.slice(from * BLOCK_BYTES..to * BLOCK_BYTES);
            assert_eq!(of(&part), known.then(|| crc32c::blocks(&part)), "{from} {to}");
            assert_eq!(part.extend_crc(9), crc32c::append(9, &part));
        }
        let last = whole.slice(4 * BLOCK_BYTES..bytes.len());
        assert_eq!(of(&last), Some(crc32c::blocks(&last)));
        assert_eq!(last.extend_crc(9), crc32c::append(9, &last));
        assert_eq!(of(&last.slice(0..10)), None);
        assert_eq!(of(&whole.slice(1..BLOCK_BYTES)), None);
        assert_eq!(
            of(&whole.slice(BLOCK_BYTES..bytes.len()).slice(BLOCK_BYTES..2 * BLOCK_BYTES)),
            Some(crc32c::blocks(&bytes[2 * BLOCK_BYTES..3 * BLOCK_BYTES]))
        );
        let one = Payload::with_checksums(bytes.slice(..300));
        assert_eq!((of(&one), of(&one.slice(0..299))), (Some(vec![crc32c::crc32c(&bytes[..300])]), None));
        // After decoding, each has its own checksums.
        let pair = [whole.slice(0..BLOCK_BYTES), Payload::from(bytes.slice(..2 * BLOCK_BYTES))];
        let split = encode(&pair);
        let data = Payload::with_checksums(
            split.data.iter().flat_map(|part| part.to_vec()).collect::<Vec<u8>>().into(),
        );
        let decoded: [Payload; 2] = decode("pair", &split.meta, data).unwrap();
        assert_eq!(decoded, pair);
        decoded.iter().for_each(|part| assert_eq!(of(part), Some(crc32c::blocks(part))));
    }

    #[test]
    fn payloads_travel_by_reference() {
        let split = encode(&message());
        assert_eq!(split.data, [Payload::from(&b"abc"[..]), Payload::from(&b"defg"[..])]);
        let data: Bytes = split.data.iter().flat_map(|part| part.to_vec()).collect();
        let decoded: Message = decode("Message", &split.meta, data.clone()).unwrap();
        assert_eq!(decoded, message());
        assert_eq!(decoded.one.as_ptr(), data.as_ptr());
    }

    #[test]
    fn lengths_that_do_not_match_are_corrupt() {
        let split = encode(&message());
        for data in [&b"abcdef"[..], b"abcdefgh", b""] {
            assert!(decode::<Message>("Message", &split.meta, Bytes::copy_from_slice(data)).is_err());
        }
    }

    #[test]
    fn the_same_type_persists_inline() {
        let inline = postcard::to_extend(&message(), Vec::new()).unwrap();
        assert_eq!(postcard::from_bytes::<Message>(&inline).unwrap(), message());
    }
}
