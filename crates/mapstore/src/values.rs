//! How values are stored: numbers, and values that may be longer than a key can hold.
//!
//! A long value (a map, an incremental, a staged record) has a number within its prefix. Its head contains the value itself, or
//! the number of its chunks, which are written before the head. The head is the first key of the value.

use crate::error::PersistError;
use crate::{MAX_TXN_BYTES, MAX_TXN_OPS, MapStore, Op};
use nacre_mon::keys;
use nacre_types::crc32c::crc32c;
use nacre_types::encoding::{self, Versioned};
use nacre_types::ids::Epoch;
use serde::{Deserialize, Serialize};

/// Maximum number of operations for chunks and keys in a transaction, besides the fixed ones.
pub(crate) const OPS_PER_TXN: usize = MAX_TXN_OPS - 8;
/// The same limit in bytes.
pub(crate) const BYTES_PER_TXN: usize = MAX_TXN_BYTES - (64 << 10);
/// Bytes per chunk. A transaction holds at most two chunks.
const CHUNK_BYTES: usize = 512 << 10;

/// A key with its value.
pub(crate) type KeyValue = (Vec<u8>, Vec<u8>);

/// The head of a value: the value itself if it is short, otherwise the number of its chunks.
#[derive(Serialize, Deserialize)]
pub(crate) struct ValueHead {
    pub(crate) chunks: u32,
    pub(crate) bytes: u64,
    pub(crate) crc: u32,
    pub(crate) inline: Vec<u8>,
}

impl Versioned for ValueHead {
    const NAME: &'static str = "mon::Head";
}

/// The key of the head of a value.
pub(crate) fn head_key(prefix: &[u8], epoch: Epoch) -> Vec<u8> {
    [prefix, &epoch.0.to_be_bytes()].concat()
}

/// The head of a value and, if the value is too long for that, its chunks.
pub(crate) fn split(prefix: &[u8], epoch: Epoch, bytes: &[u8]) -> (Vec<u8>, Vec<KeyValue>) {
    let crc = crc32c(bytes);
    let length = bytes.len() as u64;
    if bytes.len() <= CHUNK_BYTES {
        let head = ValueHead { chunks: 0, bytes: length, crc, inline: bytes.to_vec() };
        return (encoding::encode(&head), Vec::new());
    }
    let chunks: Vec<_> = bytes
        .chunks(CHUNK_BYTES)
        .enumerate()
        .map(|(at, chunk)| (keys::chunk(prefix, epoch, at as u32), chunk.to_vec()))
        .collect();
    let head = ValueHead { chunks: chunks.len() as u32, bytes: length, crc, inline: Vec::new() };
    (encoding::encode(&head), chunks)
}

/// Reverses [`split`]. Returns `None` if the data is damaged.
pub(crate) fn join(head: ValueHead, chunks: &[Vec<u8>]) -> Option<Vec<u8>> {
    let mut bytes = head.inline;
    chunks.iter().for_each(|chunk| bytes.extend(chunk));
    (chunks.len() == head.chunks as usize && bytes.len() as u64 == head.bytes && crc32c(&bytes) == head.crc)
        .then_some(bytes)
}

/// Reads a value.
pub(crate) async fn read(store: &dyn MapStore, prefix: &[u8], epoch: Epoch) -> Result<Vec<u8>, PersistError> {
    let key = head_key(prefix, epoch);
    let head = store.get(&key).await?.ok_or_else(|| PersistError::missing(&key))?;
    let head: ValueHead = encoding::decode(&head.value)?;
    let mut chunks = Vec::new();
    let mut length = head.inline.len() as u64;
    for at in 0..head.chunks {
        let key = keys::chunk(prefix, epoch, at);
        let chunk = store.get(&key).await?.ok_or_else(|| PersistError::missing(&key))?.value;
        length += chunk.len() as u64;
        if length > head.bytes {
            break;
        }
        chunks.push(chunk);
    }
    join(head, &chunks).ok_or_else(|| PersistError::corrupt(&key, "its checksum does not match"))
}

/// Divides operations into batches that each fit into a transaction.
pub(crate) fn batch(ops: Vec<Op>) -> Vec<Vec<Op>> {
    let mut batches: Vec<Vec<Op>> = Vec::new();
    let mut bytes = 0;
    for op in ops {
        let size = op.bytes();
        match batches.last_mut() {
            Some(last) if last.len() < OPS_PER_TXN && bytes + size <= BYTES_PER_TXN => last.push(op),
            _ => {
                batches.push(vec![op]);
                bytes = 0;
            }
        }
        bytes += size;
    }
    batches
}

pub(crate) fn put(key: Vec<u8>, value: Vec<u8>) -> Op {
    Op::Put { key, value, lease: None }
}

/// Encodes a number.
pub(crate) fn number(value: u64) -> Vec<u8> {
    value.to_be_bytes().to_vec()
}

/// Reads a number, if the key exists.
pub(crate) async fn read_number(store: &dyn MapStore, key: &[u8]) -> Result<Option<u64>, PersistError> {
    let Some(entry) = store.get(key).await? else { return Ok(None) };
    let bytes: [u8; 8] = entry.value.try_into().map_err(|_| PersistError::corrupt(key, "not a number"))?;
    Ok(Some(u64::from_be_bytes(bytes)))
}
