//! Secrets: entities' keys in Ceph's encoding, and session keys.

use crate::error::{Error, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

/// Ceph's only key type, AES.
const CEPH_CRYPTO_AES: u16 = 1;
/// Length of secrets created by Ceph and Nacre.
const SECRET_BYTES: usize = 16;
/// Type, creation time and length.
const HEADER_BYTES: usize = 12;

/// An entity's secret. Prints as `Key(…)` and is wiped when dropped.
#[derive(Clone, Zeroize, ZeroizeOnDrop, PartialEq, Eq)]
pub struct Key {
    created_secs: u32,
    created_nanos: u32,
    secret: Vec<u8>,
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

/// Fills `out` from the system's random source.
fn random(out: &mut [u8]) -> Result<()> {
    getrandom::fill(out).map_err(|e| Error::Io {
        what: "read the system's random source".to_owned(),
        source: std::sync::Arc::new(std::io::Error::from(e)),
    })
}

impl Key {
    /// Creates a random key, like `ceph-authtool --gen-key`.
    pub fn generate() -> Result<Key> {
        let mut secret = vec![0; SECRET_BYTES];
        random(&mut secret)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Key { created_secs: now.as_secs() as u32, created_nanos: now.subsec_nanos(), secret })
    }

    /// Identifies a key without revealing it: 64 bits of a hash.
    pub fn fingerprint(&self) -> u64 {
        let digest =
            Sha256::new().chain_update(b"nacre key fingerprint").chain_update(&self.secret).finalize();
        digest.iter().take(8).fold(0, |sum, byte| sum << 8 | u64::from(*byte))
    }

    /// Decodes Ceph's form: base64 of type (u16), creation time (u32 seconds, u32 nanoseconds), length (u16) and the secret,
    /// all little endian.
    pub fn from_base64(text: &str) -> Result<Key> {
        let corrupt = |detail: &str| Error::Corrupt { what: "key", detail: detail.to_owned() };
        let bytes = Zeroizing::new(STANDARD.decode(text.trim()).map_err(|_| corrupt("not base64"))?);
        let (header, secret) = bytes.split_at_checked(HEADER_BYTES).ok_or_else(|| corrupt("cut short"))?;
        let u16_at = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        let u32_at =
            |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        if u16_at(0) != CEPH_CRYPTO_AES {
            return Err(corrupt("unknown key type"));
        }
        if usize::from(u16_at(10)) != secret.len() || secret.len() < SECRET_BYTES {
            return Err(corrupt("wrong length"));
        }
        Ok(Key { created_secs: u32_at(2), created_nanos: u32_at(6), secret: secret.to_vec() })
    }

    /// Encodes Ceph's form, for keyring files and `auth get-key`.
    pub fn to_base64(&self) -> Zeroizing<String> {
        let mut bytes = Zeroizing::new(Vec::with_capacity(HEADER_BYTES + self.secret.len()));
        bytes.extend_from_slice(&CEPH_CRYPTO_AES.to_le_bytes());
        bytes.extend_from_slice(&self.created_secs.to_le_bytes());
        bytes.extend_from_slice(&self.created_nanos.to_le_bytes());
        bytes.extend_from_slice(&(self.secret.len() as u16).to_le_bytes());
        bytes.extend_from_slice(&self.secret);
        Zeroizing::new(STANDARD.encode(&*bytes))
    }

    /// Returns the pre-shared key of the handshake: SHA-256 over a label and the secret.
    pub fn handshake_psk(&self) -> SessionKey {
        let mut hash = Sha256::new();
        hash.update(b"nacre keyring psk 1\0");
        hash.update(&self.secret);
        SessionKey(hash.finalize().into())
    }
}

/// 32 bytes that two sides share for the life of a ticket. Prints as `SessionKey(…)` and is wiped when dropped.
#[derive(Clone, Zeroize, ZeroizeOnDrop, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionKey(pub(crate) [u8; 32]);

impl SessionKey {
    /// Creates a random session key.
    pub fn generate() -> Result<SessionKey> {
        let mut bytes = [0; 32];
        random(&mut bytes)?;
        Ok(SessionKey(bytes))
    }
}

impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionKey(…)")
    }
}

/// Returns `N` random bytes.
pub fn random_bytes<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    random(&mut bytes)?;
    Ok(bytes)
}
