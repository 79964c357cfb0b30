//! Payloads that travel beside a message instead of inside it, so that no byte of data is copied.
//!
//! A field marked `#[serde(with = "nacre_types::payload")]` encodes only its length; [`encode`] hands back the
//! `Bytes` handles in field order and [`decode`] cuts the fields out of the data segment by reference. Outside
//! these two functions such a field is encoded inline, so that the same types can be persisted.
//!
//! serde passes no context to field serializers, hence the thread-local that lives for one call.

use crate::encoding::DecodeError;
use bytes::Bytes;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::cell::RefCell;

thread_local! {
    static SINK: RefCell<Option<Vec<Bytes>>> = const { RefCell::new(None) };
    static SOURCE: RefCell<Option<Bytes>> = const { RefCell::new(None) };
}

/// A message split in its encoded description and the data that it refers to.
#[derive(Debug, Clone, Default)]
pub struct Split {
    /// The postcard encoding of everything but payloads.
    pub meta: Vec<u8>,
    /// The payloads in field order; empty ones are left out.
    pub data: Vec<Bytes>,
}

impl Split {
    /// Total payload length in bytes.
    pub fn data_len(&self) -> usize {
        self.data.iter().map(Bytes::len).sum()
    }
}

/// Encodes `value`, collecting its payload fields by reference.
pub fn encode<T: Serialize>(value: &T) -> Split {
    SINK.with_borrow_mut(|sink| *sink = Some(Vec::new()));
    let meta = postcard::to_extend(value, Vec::with_capacity(256));
    let data = SINK.with_borrow_mut(Option::take).unwrap_or_default();
    Split { meta: meta.expect("invariant: messages hold no unsized sequences"), data }
}

/// Decodes a message whose payload fields are slices of `data`. Refuses left-over bytes in either part.
pub fn decode<T: DeserializeOwned>(what: &'static str, meta: &[u8], data: Bytes) -> Result<T, DecodeError> {
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

/// serde's `with` hook: see the module's documentation.
pub fn serialize<S: Serializer>(value: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
    let beside = SINK.with_borrow_mut(|sink| match sink {
        Some(list) => {
            if !value.is_empty() {
                list.push(value.clone());
            }
            true
        }
        None => false,
    });
    if beside { (value.len() as u64).serialize(serializer) } else { value.serialize(serializer) }
}

/// serde's `with` hook: see the module's documentation.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
    if SOURCE.with_borrow(Option::is_none) {
        return Bytes::deserialize(deserializer);
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
    fn payloads_travel_by_reference() {
        let split = encode(&message());
        assert_eq!(split.data, [Bytes::from_static(b"abc"), Bytes::from_static(b"defg")]);
        let data = Bytes::from(split.data.concat());
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
