//! Records: RADOS objects whose data is one structure in its envelope, changed by compare-and-swap.

use crate::error::{Error, Result};
use bytes::Bytes;
use nacre_client::{IoCtx, ReadOp, WriteOp};
use nacre_types::encoding::{self, Versioned};
use nacre_types::errno::Errno;

/// The maximum size of a record; a larger one is damaged.
const MAX_BYTES: u64 = 4 << 20;
/// The size of the first read, which is enough for most records. A read reserves the bytes that it asks for in the client's
/// limit on bytes in flight.
pub(crate) const FIRST_READ_BYTES: u64 = 64 << 10;
/// Attempts at a change of a record that others change concurrently.
const CHANGE_ATTEMPTS: usize = 16;

/// Decodes the content of the RADOS object `name`.
pub(crate) fn decode<T: Versioned>(name: &str, bytes: &[u8]) -> Result<T> {
    encoding::decode(bytes).map_err(|source| Error::Corrupt { name: name.to_owned(), source })
}

/// Encodes a structure in its envelope.
pub(crate) fn encode<T: Versioned>(value: &T) -> Bytes {
    Bytes::from(encoding::encode(value))
}

/// Encodes the structure of a record in its envelope. Fails if it would be too large to be read back.
fn encode_bounded<T: Versioned>(value: &T) -> Result<Bytes> {
    let bytes = encode(value);
    if bytes.len() as u64 > MAX_BYTES { Err(Error::TooLarge) } else { Ok(bytes) }
}

/// Reads a record and the version of its object; `None` where it is absent.
pub(crate) async fn read<T: Versioned>(pool: &IoCtx, name: &str) -> Result<Option<(T, u64)>> {
    let mut asked = FIRST_READ_BYTES;
    loop {
        let mut op = ReadOp::new();
        op.read(0, asked);
        let reply = pool.operate_read(name, op).await.and_then(|reply| reply.success());
        let mut reply = match reply {
            Err(error) if error.is_not_found() => return Ok(None),
            reply => reply?,
        };
        let bytes = reply.output(0)?;
        if (bytes.len() as u64) < asked || asked == MAX_BYTES {
            return Ok(Some((decode(name, &bytes)?, reply.version)));
        }
        asked = MAX_BYTES;
    }
}

/// Creates a record; returns whether it did not exist.
pub(crate) async fn create<T: Versioned>(pool: &IoCtx, name: &str, value: &T) -> Result<bool> {
    let mut op = WriteOp::new();
    op.create(true).write_full(encode_bounded(value)?);
    match pool.operate(name, op).await.and_then(|reply| reply.success()).map_err(Error::from) {
        Err(error) if error.is_already_exists() => Ok(false),
        made => made.map(|_| true),
    }
}

/// Replaces a record whose object still has that version; returns whether it had.
pub(crate) async fn replace<T: Versioned>(pool: &IoCtx, name: &str, version: u64, value: &T) -> Result<bool> {
    let mut op = WriteOp::new();
    op.assert_version(version).write_full(encode_bounded(value)?);
    match pool.operate(name, op).await.and_then(|reply| reply.success()) {
        Err(error) if is_cas_conflict(&error) => Ok(false),
        replaced => Ok(replaced.map(|_| true)?),
    }
}

/// Changes a record by `change`, which may refuse. Returns the changed record, or `None` if it is absent.
pub(crate) async fn update<T: Versioned>(
    pool: &IoCtx,
    name: &str,
    mut change: impl FnMut(&mut T) -> Result<()>,
) -> Result<Option<T>> {
    for _ in 0..CHANGE_ATTEMPTS {
        let Some((mut value, version)) = read::<T>(pool, name).await? else { return Ok(None) };
        change(&mut value)?;
        match replace(pool, name, version, &value).await {
            Ok(true) => return Ok(Some(value)),
            Ok(false) => {}
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Err(Error::Contended(name.to_owned()))
}

/// Removes a record if it is still as `may` saw it, unless `may` refuses. Returns the removed record, or `None` if it is
/// absent.
pub(crate) async fn remove_if<T: Versioned>(
    pool: &IoCtx,
    name: &str,
    may: impl Fn(&T) -> Result<()>,
) -> Result<Option<T>> {
    for _ in 0..CHANGE_ATTEMPTS {
        let Some((value, version)) = read::<T>(pool, name).await? else { return Ok(None) };
        may(&value)?;
        let mut op = WriteOp::new();
        op.assert_version(version).remove();
        match pool.operate(name, op).await.and_then(|reply| reply.success()) {
            Ok(_) => return Ok(Some(value)),
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) if is_cas_conflict(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Error::Contended(name.to_owned()))
}

/// Whether a record was changed since it was read.
pub(crate) fn is_cas_conflict(error: &nacre_client::Error) -> bool {
    matches!(error.errno(), Errno::ERANGE | Errno::EOVERFLOW)
}

/// Removes a record; returns whether it existed.
pub(crate) async fn remove(pool: &IoCtx, name: &str) -> Result<bool> {
    match pool.remove(name).await {
        Err(error) if error.is_not_found() => Ok(false),
        removed => Ok(removed.map(|()| true)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bucket::Bucket;

    #[test]
    fn records_that_could_not_be_read_again_are_not_made() {
        let bucket = |len: usize| Bucket { name: "x".repeat(len), ..Bucket::default() };
        let most = MAX_BYTES as usize - encode(&bucket(0)).len() - 16;
        assert!(encode_bounded(&bucket(most)).is_ok());
        assert!(matches!(encode_bounded(&bucket(MAX_BYTES as usize)), Err(Error::TooLarge)));
    }
}
