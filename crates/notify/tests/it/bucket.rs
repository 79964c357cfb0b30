//! Buckets as simulated gateways have them: a record in RADOS, and an index whose shards its generation names.

use crate::world::Shared;
use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use nacre_engine::{IoCtx, OpReply, Result, WriteOp};
use nacre_index::state::{OPEN, STATE};
use nacre_notify::{BucketOutbox, Outboxes};
use nacre_types::encoding::{self, Versioned};
use nacre_types::errno::Errno;
use nacre_types::hash::ceph_str_hash_rjenkins;
use nacre_types::op::CmpOp;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Buckets that there are.
pub(crate) const BUCKETS: u64 = 2;
/// The namespace of their records, and the attribute that is the record.
const RECORDS: &str = "buckets";
const RECORD: &str = "record";
/// Index shards of a new bucket.
const SHARDS: u32 = 2;

/// A bucket's record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Bucket {
    pub(crate) id: String,
    /// The generation of its index.
    pub(crate) generation: u32,
    pub(crate) shards: u32,
    /// The shards that its index shall have.
    pub(crate) wanted: Option<u32>,
    /// A generation that is being made, and its shards.
    pub(crate) next: Option<(u32, u32)>,
    /// A generation that is to be removed, or was, and its shards.
    pub(crate) left: Option<(u32, u32)>,
    /// The tag of the attempt that keeps the index closed.
    pub(crate) closed_by: Option<String>,
}

impl Versioned for Bucket {
    const NAME: &'static str = "simulated bucket";
}

impl Bucket {
    fn new(number: u64) -> Bucket {
        Bucket {
            id: id(number),
            generation: 1,
            shards: SHARDS,
            wanted: None,
            next: None,
            left: None,
            closed_by: None,
        }
    }

    /// The same bucket with another generation of its index.
    pub(crate) fn of(&self, (generation, shards): (u32, u32)) -> Bucket {
        Bucket { generation, shards, ..self.clone() }
    }

    pub(crate) fn shard_names(&self) -> Vec<String> {
        (0..self.shards).map(|shard| self.shard_name(shard)).collect()
    }

    pub(crate) fn shard_name(&self, shard: u32) -> String {
        format!(".dir.{}.{}.{shard}", self.id, self.generation)
    }

    /// The number of the shard that has the records of a key.
    pub(crate) fn shard_number(&self, key: &str) -> u32 {
        ceph_str_hash_rjenkins(key.as_bytes()) % self.shards.max(1)
    }

    /// The shard that has the records of a key.
    pub(crate) fn shard_of(&self, key: &str) -> String {
        self.shard_name(self.shard_number(key))
    }

    /// Whether its index does not move, and shall not.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.wanted.is_none() && self.next.is_none() && self.closed_by.is_none()
    }

    fn outbox(&self) -> BucketOutbox {
        BucketOutbox { bucket: self.id.clone(), shards: self.shard_names() }
    }
}

/// The id of a bucket.
pub(crate) fn id(number: u64) -> String {
    format!("bucket{number}")
}

/// The records of buckets.
#[derive(Clone)]
pub(crate) struct Buckets {
    pub(crate) records: IoCtx,
    index: IoCtx,
    shared: Arc<Shared>,
}

impl Buckets {
    pub(crate) fn new(meta: &IoCtx, index: &IoCtx, shared: &Arc<Shared>) -> Buckets {
        let records = meta.with_namespace(RECORDS);
        Buckets { records, index: index.clone(), shared: Arc::clone(shared) }
    }

    /// Opens a shard that was closed by an attempt that the bucket's record does not name.
    pub(crate) async fn open_left(&self, bucket: &Bucket, shard: &str) -> Result<()> {
        // Before the record: an attempt is named there before it closes anything, and never again once it is not.
        let found = match self.index.get_xattr(shard, STATE).await {
            Err(error) if error.is_not_found() => return Ok(()),
            found => found?,
        };
        let now = self.get(&bucket.id).await?;
        if now.generation != bucket.generation || now.closed_by.is_some() || *found == *OPEN.as_bytes() {
            return Ok(());
        }
        self.change_state(shard, found, OPEN).await.map(drop)
    }

    /// Changes the state of a shard; `false` where it is another one, or the shard is gone.
    pub(crate) async fn change_state(&self, shard: &str, from: impl Into<Bytes>, to: &str) -> Result<bool> {
        let mut op = WriteOp::new();
        op.cmp_xattr(STATE, CmpOp::Eq, from).set_xattr(STATE, to.to_owned());
        match self.index.operate(shard, op).await.and_then(OpReply::success) {
            Err(error) if matches!(error.errno(), Errno::ECANCELED | Errno::ENOENT) => Ok(false),
            done => done.map(|_| true),
        }
    }

    /// Makes all buckets, with their indexes.
    pub(crate) async fn make(&self, index: &IoCtx) -> Result<()> {
        for bucket in (0..BUCKETS).map(Bucket::new) {
            for shard in bucket.shard_names() {
                index.set_xattr(&shard, STATE, OPEN).await?;
            }
            self.records.set_xattr(&bucket.id, RECORD, encoding::encode(&bucket)).await?;
        }
        Ok(())
    }

    pub(crate) async fn get(&self, id: &str) -> Result<Bucket> {
        decode(&self.records.get_xattr(id, RECORD).await?)
    }

    /// Changes a record and returns it, unless `change` says no.
    pub(crate) async fn modify(
        &self,
        id: &str,
        change: impl Fn(&mut Bucket) -> bool,
    ) -> Result<Option<Bucket>> {
        loop {
            let stored = self.records.get_xattr(id, RECORD).await?;
            let mut bucket = decode(&stored)?;
            if !change(&mut bucket) {
                return Ok(None);
            }
            let mut op = WriteOp::new();
            op.cmp_xattr(RECORD, CmpOp::Eq, stored).set_xattr(RECORD, encoding::encode(&bucket));
            match self.records.operate(id, op).await.and_then(OpReply::success) {
                Err(error) if error.errno() == Errno::ECANCELED => {}
                done => return done.map(|_| Some(bucket)),
            }
        }
    }
}

/// The record of a bucket, by its object's attributes.
pub(crate) fn decode(record: &[u8]) -> Result<Bucket> {
    Ok(encoding::decode(record)?)
}

/// The attribute of a bucket's object that is its record.
pub(crate) fn record_of(object: &nacre_sim::disk::Object) -> Bucket {
    decode(object.user_attr(RECORD).unwrap()).unwrap()
}

impl Outboxes for Buckets {
    fn list(&self) -> BoxFuture<'static, Result<Vec<BucketOutbox>>> {
        let buckets = self.clone();
        let list = async move {
            let mut all = Vec::new();
            for number in 0..BUCKETS {
                all.push(buckets.get(&id(number)).await?.outbox());
            }
            Ok(all)
        };
        list.boxed()
    }

    fn find(&self, id: &str) -> BoxFuture<'static, Result<Option<BucketOutbox>>> {
        let (buckets, id) = (self.clone(), id.to_owned());
        async move { Ok(Some(buckets.get(&id).await?.outbox())) }.boxed()
    }

    fn open_left(&self, id: &str, shard: &str) -> BoxFuture<'static, Result<()>> {
        let (buckets, id, shard) = (self.clone(), id.to_owned(), shard.to_owned());
        let opened = async move {
            let bucket = buckets.get(&id).await?;
            // One of another generation is frozen for good.
            if bucket.shard_names().contains(&shard) {
                Buckets::open_left(&buckets, &bucket, &shard).await?;
            }
            Ok(())
        };
        opened.boxed()
    }

    fn gateways(&self) -> BoxFuture<'static, Result<Vec<u64>>> {
        let running = self.shared.running.lock().clone();
        async { Ok(running) }.boxed()
    }
}

/// Whether a write failed because the object is gone, or not what its guards say.
pub(crate) fn is_overtaken<T>(done: &Result<T>) -> bool {
    done.as_ref().is_err_and(|error| nacre_index::op::is_write_conflict(error.errno()))
}

/// The attribute that a write sets, if it does.
pub(crate) fn attribute<'a>(ops: &'a [nacre_types::op::OsdOp], wanted: &str) -> Option<&'a Bytes> {
    ops.iter().find_map(|op| match &op.op {
        nacre_types::op::Op::SetXattr { name, value } if name == wanted => Some(value),
        _ => None,
    })
}
