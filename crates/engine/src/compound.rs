//! Execution of compound operations that are described by [`nacre_types::compound`].

use crate::error::Result;
use crate::ioctx::IoCtx;
use crate::ops::{OpReply, ReadOp, WriteOp};
use nacre_types::compound::{Read, ReadReply, Write};

impl IoCtx {
    /// Executes a write. Returns the object's version after it, once it is durable.
    pub async fn execute(&self, name: &str, write: Write) -> Result<u64> {
        let op = WriteOp { ops: write.ops(), ..WriteOp::default() };
        let reply = self.operate(name, op).await.and_then(OpReply::success)?;
        Ok(reply.version)
    }

    /// Executes a read. Returns `None` if the object does not exist.
    pub async fn execute_read(&self, name: &str, read: &Read) -> Result<Option<ReadReply>> {
        let op = ReadOp { ops: read.ops(), ..ReadOp::default() };
        match self.operate_read(name, op).await.and_then(OpReply::success) {
            Err(error) if error.is_not_found() => Ok(None),
            reply => {
                let reply = reply?;
                Ok(Some(read.decode_reply(reply.version, &reply.ops)?))
            }
        }
    }
}
