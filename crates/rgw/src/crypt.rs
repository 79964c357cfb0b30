//! Encryption of objects' data (docs/format/rgw.md): AES-256-GCM in chunks, with the number of the chunk as nonce. The key is
//! derived for each object and part, from a secret and a salt of its own. The secret is the client's (SSE-C), which is never
//! stored, or the cluster's (SSE-S3). A chunk that was changed, moved or truncated can't be decrypted.

use crate::error::{Error, Result};
use bytes::{Bytes, BytesMut};
use futures::stream::{self, Stream, StreamExt};
use nacre_types::encoding::DecodeError;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::hkdf;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Bytes of data in a chunk.
pub(crate) const CHUNK_BYTES: usize = 64 << 10;
/// Bytes of the authentication tag, which is stored after each chunk.
const TAG_BYTES: usize = 16;
/// Bytes of a secret, and of a salt.
pub const SECRET_BYTES: usize = 32;
/// The purposes that keys are derived for.
const FOR_DATA: &[u8] = b"nacre sse data";
const FOR_CHECK: &[u8] = b"nacre sse check";

/// A random salt that a key is derived with.
pub type Salt = [u8; SECRET_BYTES];

/// Whose secret it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SseKeySource {
    /// The client's.
    Customer,
    /// The cluster's.
    Cluster,
}

/// The encryption of an object, as its head records it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Encryption {
    /// Where the secret comes from.
    pub holder: SseKeySource,
    salt: Salt,
    /// Derived from the secret, to detect a wrong one.
    check: Salt,
}

/// A secret that keys are derived from.
#[derive(Clone)]
pub struct Secret {
    holder: SseKeySource,
    bytes: [u8; SECRET_BYTES],
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Secret").field("holder", &self.holder).finish_non_exhaustive()
    }
}

/// A key to the data of one object or part.
#[derive(Clone)]
pub struct Cipher(LessSafeKey);

struct Length;

impl hkdf::KeyType for Length {
    fn len(&self) -> usize {
        SECRET_BYTES
    }
}

/// How many bytes `len` bytes of data take when they are stored.
pub(crate) fn stored_len(len: u64) -> u64 {
    len + len.div_ceil(CHUNK_BYTES as u64) * TAG_BYTES as u64
}

/// The stored bytes of the chunks that `range` overlaps, in data of `size` bytes, and the number of the first chunk.
pub(crate) fn stored_range(range: &Range<u64>, size: u64) -> (Range<u64>, u64) {
    let (chunk, stored) = (CHUNK_BYTES as u64, (CHUNK_BYTES + TAG_BYTES) as u64);
    let first = range.start / chunk;
    let end = (range.end.div_ceil(chunk) * stored).min(stored_len(size));
    (first * stored..end.max(first * stored), first)
}

/// Random bytes.
pub fn random_salt() -> Result<Salt> {
    let mut salt = Salt::default();
    getrandom::fill(&mut salt).map_err(Error::no_random_numbers)?;
    Ok(salt)
}

impl Secret {
    /// Returns a secret from that source.
    pub fn new(holder: SseKeySource, bytes: [u8; SECRET_BYTES]) -> Secret {
        Secret { holder, bytes }
    }

    /// Returns where the secret comes from.
    pub fn holder(&self) -> &SseKeySource {
        &self.holder
    }

    /// Derives a key by HKDF-SHA256 (RFC 5869).
    fn derive(&self, salt: &Salt, purpose: &[u8]) -> Salt {
        let extracted = hkdf::Salt::new(hkdf::HKDF_SHA256, salt).extract(&self.bytes);
        let mut derived = Salt::default();
        let info = [purpose];
        let expanded = extracted.expand(&info, Length).and_then(|key| key.fill(&mut derived));
        expanded.expect("invariant: 32 bytes are what is derived");
        derived
    }

    /// Returns the record of an object that is to be encrypted under this secret, with a new salt.
    pub fn new_encryption(&self) -> Result<Encryption> {
        let salt = random_salt()?;
        Ok(Encryption { holder: self.holder.clone(), check: self.derive(&salt, FOR_CHECK), salt })
    }

    /// Fails with [`Error::WrongKey`] if the object is encrypted under another secret.
    pub fn check(&self, encryption: &Encryption) -> Result<()> {
        let check = self.derive(&encryption.salt, FOR_CHECK);
        let same = self.holder == encryption.holder
            && check.iter().zip(&encryption.check).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0;
        if same { Ok(()) } else { Err(Error::WrongKey) }
    }

    /// The key to an object's data.
    pub fn cipher(&self, encryption: &Encryption) -> Cipher {
        self.part_cipher(&encryption.salt)
    }

    /// The key to a part's data.
    pub fn part_cipher(&self, salt: &Salt) -> Cipher {
        let key = UnboundKey::new(&AES_256_GCM, &self.derive(salt, FOR_DATA));
        Cipher(LessSafeKey::new(key.expect("invariant: the key has the length of AES-256's")))
    }
}

impl Cipher {
    fn nonce(chunk: u64) -> Nonce {
        let mut nonce = [0; ring::aead::NONCE_LEN];
        nonce[4..].copy_from_slice(&chunk.to_be_bytes());
        Nonce::assume_unique_for_key(nonce)
    }

    /// Encrypts a chunk in place and appends its tag.
    fn encrypt(&self, chunk: u64, data: &mut BytesMut) {
        let tag = self.0.seal_in_place_separate_tag(Cipher::nonce(chunk), Aad::empty(), data);
        data.extend_from_slice(tag.expect("invariant: a chunk is short enough").as_ref());
    }

    /// Decrypts a chunk.
    fn decrypt(&self, chunk: u64, mut data: BytesMut) -> Result<Bytes> {
        let plain = self.0.open_in_place(Cipher::nonce(chunk), Aad::empty(), &mut data);
        let len = plain.map_err(|_| damaged("a chunk is not what was encrypted"))?.len();
        data.truncate(len);
        Ok(data.freeze())
    }
}

fn damaged(detail: &str) -> Error {
    let source = DecodeError::Corrupt { what: "encrypted data", detail: detail.to_owned() };
    Error::Corrupt { name: "an object".into(), source }
}

/// Encrypts data on its way into an object.
pub(crate) struct Encryptor {
    cipher: Cipher,
    chunk: u64,
    ready: BytesMut,
}

impl Encryptor {
    pub(crate) fn new(cipher: Cipher) -> Encryptor {
        Encryptor { cipher, chunk: 0, ready: BytesMut::new() }
    }

    /// Bytes that are ready to be stored.
    pub(crate) fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Encrypts the next chunk. All chunks but the last must be whole.
    pub(crate) fn push(&mut self, chunk: &Bytes) {
        let mut data = BytesMut::with_capacity(chunk.len() + TAG_BYTES);
        data.extend_from_slice(chunk);
        self.cipher.encrypt(self.chunk, &mut data);
        self.chunk += 1;
        self.ready.extend_from_slice(&data);
    }

    /// Takes at most `len` bytes of those that are ready.
    pub(crate) fn take(&mut self, len: usize) -> Bytes {
        self.ready.split_to(len.min(self.ready.len())).freeze()
    }
}

/// Decrypts data on its way out of an object.
struct Decryptor<S> {
    stored: S,
    cipher: Cipher,
    chunk: u64,
    gathered: BytesMut,
    ended: bool,
    /// Bytes of the first chunk that precede the requested range.
    skip: usize,
    /// Requested bytes that are not returned yet.
    left: u64,
}

impl<S: Stream<Item = Result<Bytes>> + Unpin> Decryptor<S> {
    async fn next(&mut self) -> Result<Bytes> {
        let whole = CHUNK_BYTES + TAG_BYTES;
        while self.gathered.len() < whole && !self.ended {
            match self.stored.next().await {
                Some(piece) => self.gathered.extend_from_slice(&piece?),
                None => self.ended = true,
            }
        }
        if self.gathered.len() <= TAG_BYTES {
            return Err(damaged("chunks are missing"));
        }
        let chunk = self.gathered.split_to(whole.min(self.gathered.len()));
        let mut plain = self.cipher.decrypt(self.chunk, chunk)?;
        self.chunk += 1;
        if plain.len() <= self.skip {
            return Err(damaged("a chunk is too short"));
        }
        let mut plain = plain.split_off(std::mem::take(&mut self.skip));
        plain.truncate(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.left -= plain.len() as u64;
        Ok(plain)
    }
}

/// Decrypts the bytes of `range`. `stored` are the chunks that contain them, and `chunk` is the number of the first one.
pub(crate) fn decrypt(
    cipher: Cipher,
    stored: impl Stream<Item = Result<Bytes>> + Send + Unpin + 'static,
    range: &Range<u64>,
    chunk: u64,
) -> impl Stream<Item = Result<Bytes>> + Send + 'static {
    let skip = (range.start % CHUNK_BYTES as u64) as usize;
    let left = range.end - range.start;
    let state = Decryptor { stored, cipher, chunk, gathered: BytesMut::new(), ended: false, skip, left };
    stream::unfold(state, |mut state| async move {
        if state.left == 0 {
            return None;
        }
        let piece = state.next().await;
        if piece.is_err() {
            // The stream ends after an error.
            state.left = 0;
        }
        Some((piece, state))
    })
    .boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(byte: u8) -> Secret {
        Secret::new(SseKeySource::Customer, [byte; SECRET_BYTES])
    }

    fn encrypted(cipher: Cipher, data: &Bytes) -> Bytes {
        let mut encryptor = Encryptor::new(cipher);
        for at in (0..data.len()).step_by(CHUNK_BYTES) {
            encryptor.push(&data.slice(at..(at + CHUNK_BYTES).min(data.len())));
        }
        encryptor.take(usize::MAX)
    }

    async fn read(cipher: Cipher, stored: &Bytes, range: Range<u64>, size: u64) -> Result<Vec<u8>> {
        let (bytes, chunk) = stored_range(&range, size);
        let part = stored.slice(bytes.start as usize..bytes.end as usize);
        // The pieces are not aligned to chunks.
        let pieces: Vec<Result<Bytes>> = (0..part.len())
            .step_by(50_000)
            .map(|at| Ok(part.slice(at..(at + 50_000).min(part.len()))))
            .collect();
        let mut all = Vec::new();
        let mut plain = decrypt(cipher, stream::iter(pieces), &range, chunk);
        while let Some(piece) = plain.next().await {
            all.extend_from_slice(&piece?);
        }
        Ok(all)
    }

    #[tokio::test]
    async fn any_range_is_decrypted() {
        let key = secret(7);
        let encryption = key.new_encryption().unwrap();
        for size in [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES + 5] {
            let data: Bytes = (0..size).map(|at| ((at * 31) >> 3) as u8).collect::<Vec<_>>().into();
            let stored = encrypted(key.cipher(&encryption), &data);
            assert_eq!(stored.len() as u64, stored_len(size as u64));
            for range in
                [0..size, 0..size.min(1), size / 2..size, size.saturating_sub(1)..size, size / 3..size / 2]
            {
                let wanted = &data[range.clone()];
                let range = range.start as u64..range.end as u64;
                let got = read(key.cipher(&encryption), &stored, range.clone(), size as u64).await.unwrap();
                assert!(got == wanted, "{size} {range:?}");
            }
        }
    }

    #[tokio::test]
    async fn what_was_changed_is_not_decrypted() {
        let key = secret(7);
        let encryption = key.new_encryption().unwrap();
        let size = 2 * CHUNK_BYTES + 100;
        let data = Bytes::from(vec![5; size]);
        let stored = encrypted(key.cipher(&encryption), &data);
        let whole = 0..size as u64;
        for at in [0, CHUNK_BYTES, stored.len() - 1] {
            let mut changed = stored.to_vec();
            changed[at] ^= 1;
            assert!(
                read(key.cipher(&encryption), &changed.into(), whole.clone(), size as u64).await.is_err(),
                "{at}"
            );
        }
        // Chunks in another order.
        let chunk = CHUNK_BYTES + TAG_BYTES;
        let moved = [&stored[chunk..2 * chunk], &stored[..chunk], &stored[2 * chunk..]].concat();
        assert!(read(key.cipher(&encryption), &moved.into(), whole.clone(), size as u64).await.is_err());
        // Another object's key, under the same secret.
        let other = key.new_encryption().unwrap();
        assert!(read(key.cipher(&other), &stored, whole, size as u64).await.is_err());
        assert!(key.check(&encryption).is_ok());
        assert!(matches!(secret(8).check(&encryption), Err(Error::WrongKey)));
    }
}
