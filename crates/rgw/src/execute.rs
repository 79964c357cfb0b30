//! Executes operations of the index protocol on RADOS.

use crate::error::{Error, Result};
use nacre_client::IoCtx;
use nacre_index::op::{Read, ReadReply, Write};

/// Executes a write of the object `name`. Returns the object's RADOS version after the write, once it is durable.
pub(crate) async fn write(pool: &IoCtx, name: &str, write: Write) -> Result<u64> {
    Ok(pool.execute(name, write).await?)
}

/// Executes a read of the object `name`; returns `None` if there is no such object.
pub(crate) async fn read(pool: &IoCtx, name: &str, read: &Read) -> Result<Option<ReadReply>> {
    match pool.execute_read(name, read).await {
        Err(nacre_client::Error::Corrupt(source)) => Err(Error::Corrupt { name: name.to_owned(), source }),
        reply => Ok(reply?),
    }
}

/// Whether a write was refused because the object does not match its guards.
pub(crate) fn is_guard_mismatch(error: &Error) -> bool {
    matches!(error, Error::Rados(error) if nacre_index::op::is_write_conflict(error.errno()))
}
