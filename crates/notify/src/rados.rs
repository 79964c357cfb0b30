//! Executes the operations that `nacre-queues` and `nacre-index` build.
//!
//! A conflict with another gateway is a result, not an error: its meaning depends on the operation.

use crate::error::{Error, Result};
use nacre_engine::IoCtx;
use nacre_index::op::{Read, ReadReply, Write};
use nacre_queues::name::{CLOSED_NAMESPACE, DEAD_LETTER_NAMESPACE, QUEUE_NAMESPACE, SPILL_NAMESPACE};
use nacre_queues::op::{ObjectKey, ObjectOp, ObjectRead, ObjectReply};
use nacre_types::errno::Errno;

/// The result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteOutcome {
    /// It was applied and is durable.
    Done,
    /// A guard did not hold, because the object was changed.
    Changed,
    /// The object does not exist.
    Absent,
    /// The object already exists.
    Exists,
    /// Another session holds the lock.
    Busy,
}

impl WriteOutcome {
    /// Whether it was applied.
    pub(crate) fn is_done(self) -> bool {
        self == WriteOutcome::Done
    }
}

/// The objects of queues and of bucket indexes.
pub(crate) struct ObjectIo {
    queues: IoCtx,
    closed: IoCtx,
    spill: IoCtx,
    dead: IoCtx,
    index: IoCtx,
}

impl ObjectIo {
    /// `log` is the pool of queues, `index` is the pool of bucket indexes.
    pub(crate) fn new(log: &IoCtx, index: &IoCtx) -> ObjectIo {
        ObjectIo {
            queues: log.with_namespace(QUEUE_NAMESPACE),
            closed: log.with_namespace(CLOSED_NAMESPACE),
            spill: log.with_namespace(SPILL_NAMESPACE),
            dead: log.with_namespace(DEAD_LETTER_NAMESPACE),
            index: index.clone(),
        }
    }

    /// The context of a namespace of queues.
    pub(crate) fn namespace(&self, namespace: &str) -> &IoCtx {
        match namespace {
            QUEUE_NAMESPACE => &self.queues,
            CLOSED_NAMESPACE => &self.closed,
            SPILL_NAMESPACE => &self.spill,
            _ => &self.dead,
        }
    }

    fn of(&self, object: &ObjectKey) -> &IoCtx {
        self.namespace(object.namespace)
    }

    /// Executes a write.
    pub(crate) async fn write(&self, op: ObjectOp) -> Result<WriteOutcome> {
        let ObjectOp { object, write } = op;
        written(self.of(&object).execute(&object.name, write).await)
    }

    /// Executes a write that only a change by another gateway can prevent, which is an error here.
    pub(crate) async fn write_or_fail(&self, op: ObjectOp) -> Result<()> {
        let object = op.object.to_string();
        if self.write(op).await?.is_done() { Ok(()) } else { Err(Error::Changed(object)) }
    }

    /// Executes a read; `None` if the object does not exist.
    pub(crate) async fn read(&self, read: &ObjectRead) -> Result<Option<ObjectReply>> {
        let reply = self.of(&read.object).execute_read(&read.object.name, &read.read()).await?;
        Ok(reply.map(|reply| read.parse_reply(reply)).transpose()?)
    }

    /// Executes a write on a shard of a bucket index.
    pub(crate) async fn write_index(&self, object: &str, write: Write) -> Result<WriteOutcome> {
        written(self.index.execute(object, write).await)
    }

    /// Reads a shard of a bucket index; `None` if it does not exist.
    pub(crate) async fn read_index(&self, object: &str, read: &Read) -> Result<Option<ReadReply>> {
        Ok(self.index.execute_read(object, read).await?)
    }
}

fn written(done: nacre_engine::Result<u64>) -> Result<WriteOutcome> {
    match done {
        Ok(_) => Ok(WriteOutcome::Done),
        Err(error) => match error.errno() {
            Errno::ECANCELED => Ok(WriteOutcome::Changed),
            Errno::ENOENT => Ok(WriteOutcome::Absent),
            Errno::EEXIST => Ok(WriteOutcome::Exists),
            Errno::EBUSY => Ok(WriteOutcome::Busy),
            _ => Err(error.into()),
        },
    }
}
