//! Versioned envelopes for everything that is persisted or sent as a whole.
//!
//! An envelope is `version u8 | compat u8 | length u32 le | body`, where the body is postcard (docs/format/encoding.md).
//! `version` is the writer's version, `compat` that of the oldest reader that can read it. A reader refuses an envelope whose
//! `compat` is above its own version, and skips data appended by a newer, compatible writer. This corresponds to Ceph's
//! ENCODE_START / DECODE_START.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Why bytes could not be decoded. Never retried: the bytes are corrupt or too new.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Written by a newer release in a format that this one can't read.
    #[error(
        "{what}: written in format {compat}, this release reads up to {supported}: upgrade before reading it"
    )]
    TooNew {
        /// The structure's name.
        what: &'static str,
        /// The oldest reader version that the writer allows.
        compat: u8,
        /// The version that this build understands.
        supported: u8,
    },
    /// Older than any format that this release reads.
    #[error("{what}: format {version} is older than any that this release reads")]
    TooOld {
        /// The structure's name.
        what: &'static str,
        /// The version found.
        version: u8,
    },
    /// Truncated, with trailing bytes, or with values out of range.
    #[error("{what}: corrupt encoding ({detail})")]
    Corrupt {
        /// The structure's name.
        what: &'static str,
        /// The defect.
        detail: String,
    },
}

/// A structure with a versioned encoding.
pub trait Versioned: Serialize + DeserializeOwned {
    /// Name for error texts.
    const NAME: &'static str;
    /// The version that this build writes.
    const VERSION: u8 = 1;
    /// The oldest reader version that can read what this build writes.
    const COMPAT: u8 = 1;

    /// The version and oldest reader of this value. They may be lower than [`Versioned::VERSION`] and [`Versioned::COMPAT`] if
    /// the value contains nothing that older readers do not know, so that those can run together with this release. Such a
    /// value must be encoded as [`Versioned::decode_old`] expects it.
    fn envelope(&self) -> (u8, u8) {
        (Self::VERSION, Self::COMPAT)
    }

    /// Decodes the body of an older version. Refuses by default.
    fn decode_old(version: u8, _body: &[u8]) -> Result<Self, DecodeError> {
        Err(DecodeError::TooOld { what: Self::NAME, version })
    }
}

/// Number of bytes before the body.
pub const ENVELOPE_HEADER_BYTES: usize = 6;

/// Encodes `value` in its envelope.
pub fn encode<T: Versioned>(value: &T) -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    encode_into(value, &mut out);
    out
}

/// Appends `value` in its envelope to `out`.
pub fn encode_into<T: Versioned>(value: &T, out: &mut Vec<u8>) {
    let start = out.len();
    let (version, compat) = value.envelope();
    out.extend_from_slice(&[version, compat, 0, 0, 0, 0]);
    let mut taken = postcard::to_extend(value, std::mem::take(out))
        .expect("invariant: postcard serialization into a Vec only fails for unsized sequences, which no type here has");
    let body = (taken.len() - start - ENVELOPE_HEADER_BYTES) as u32;
    taken[start + 2..start + ENVELOPE_HEADER_BYTES].copy_from_slice(&body.to_le_bytes());
    *out = taken;
}

/// Decodes one envelope that must fill `buf` exactly.
pub fn decode<T: Versioned>(buf: &[u8]) -> Result<T, DecodeError> {
    let (value, rest) = decode_prefix(buf)?;
    if rest.is_empty() {
        Ok(value)
    } else {
        Err(DecodeError::Corrupt { what: T::NAME, detail: format!("{} bytes after the end", rest.len()) })
    }
}

/// Decodes one envelope from the start of `buf`. Returns the value and the rest.
pub fn decode_prefix<T: Versioned>(buf: &[u8]) -> Result<(T, &[u8]), DecodeError> {
    let short = || DecodeError::Corrupt { what: T::NAME, detail: "cut short".into() };
    let (header, rest) = buf.split_at_checked(ENVELOPE_HEADER_BYTES).ok_or_else(short)?;
    let (version, compat) = (header[0], header[1]);
    if compat > T::VERSION {
        return Err(DecodeError::TooNew { what: T::NAME, compat, supported: T::VERSION });
    }
    let length = u32::from_le_bytes([header[2], header[3], header[4], header[5]]) as usize;
    let (body, after) = rest.split_at_checked(length).ok_or_else(short)?;
    if version < T::VERSION {
        return Ok((T::decode_old(version, body)?, after));
    }
    let (value, unread) = postcard::take_from_bytes::<T>(body)
        .map_err(|e| DecodeError::Corrupt { what: T::NAME, detail: e.to_string() })?;
    if version == T::VERSION && !unread.is_empty() {
        return Err(DecodeError::Corrupt { what: T::NAME, detail: format!("{} bytes unread", unread.len()) });
    }
    Ok((value, after))
}

/// Decodes a body without an envelope: that of an older version, for [`Versioned::decode_old`]. `what` is the record's name.
pub fn decode_body<T: DeserializeOwned>(what: &'static str, body: &[u8]) -> Result<T, DecodeError> {
    postcard::from_bytes(body).map_err(|e| DecodeError::Corrupt { what, detail: e.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Now {
        a: u32,
    }
    impl Versioned for Now {
        const NAME: &'static str = "Now";
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Newer {
        a: u32,
        b: String,
    }
    impl Versioned for Newer {
        const NAME: &'static str = "Newer";
        const VERSION: u8 = 2;
        fn decode_old(_version: u8, body: &[u8]) -> Result<Self, DecodeError> {
            let old: Now = decode_body(Self::NAME, body)?;
            Ok(Self { a: old.a, b: String::new() })
        }
    }

    #[test]
    fn compatible_newer_writer_is_read_and_its_additions_skipped() {
        let bytes = encode(&Newer { a: 7, b: "x".into() });
        assert_eq!(decode::<Now>(&bytes).unwrap(), Now { a: 7 });
        let old = encode(&Now { a: 9 });
        assert_eq!(decode::<Newer>(&old).unwrap(), Newer { a: 9, b: String::new() });
    }

    #[test]
    fn incompatible_newer_format_is_refused_by_name() {
        let mut bytes = encode(&Now { a: 7 });
        (bytes[0], bytes[1]) = (9, 9);
        let error = decode::<Now>(&bytes).unwrap_err();
        assert_eq!(error, DecodeError::TooNew { what: "Now", compat: 9, supported: 1 });
        assert!(error.to_string().contains("upgrade"));
    }

    #[test]
    fn every_truncation_is_corrupt() {
        let bytes = encode(&Newer { a: 300, b: "hello".into() });
        for cut in 0..bytes.len() {
            assert!(
                matches!(decode::<Newer>(&bytes[..cut]), Err(DecodeError::Corrupt { .. })),
                "cut at {cut}"
            );
        }
    }
}
