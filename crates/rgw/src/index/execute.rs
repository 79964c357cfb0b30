//! Executes operations of the index protocol on RADOS.

use crate::error::{Error, Result};
use nacre_client::{IoCtx, ReadOp, WriteOp};
use nacre_index::op::{Read, ReadReply, Write};

/// Executes a write of the object `name`; returns the object's RADOS version after it, when it is durable.
pub(crate) async fn write(pool: &IoCtx, name: &str, write: Write) -> Result<u64> {
    let mut op = WriteOp::new();
    for part in write.ops() {
        op.push(part.op);
        if part.flags != 0 {
            op.op_flags(part.flags);
        }
    }
    let reply = pool.operate(name, op).await.and_then(|reply| reply.success())?;
    Ok(reply.version)
}

/// Executes a read of the object `name`; `None` where there is no such object.
pub(crate) async fn read(pool: &IoCtx, name: &str, read: &Read) -> Result<Option<ReadReply>> {
    let mut op = ReadOp::new();
    for part in read.ops() {
        op.push(part.op);
    }
    let reply = match pool.operate_read(name, op).await.and_then(|reply| reply.success()) {
        Err(error) if error.is_not_found() => return Ok(None),
        reply => reply?,
    };
    Ok(Some(read.reply(name, reply.version, &reply.ops)?))
}

/// Whether a write was refused because the object is not what its guards say.
pub(crate) fn is_overtaken(error: &Error) -> bool {
    matches!(error, Error::Rados(error) if nacre_index::op::is_overtaken(error.errno()))
}
