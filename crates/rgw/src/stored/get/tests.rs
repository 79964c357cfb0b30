use super::*;
use crate::connection::Connection;
use crate::crypt::{SECRET_BYTES, SseKeySource};
use crate::storage_classes::StorageClasses;
use nacre_client::engine::{Engine, ListPage, ObjectRequest, OnReply};
use nacre_client::{Cluster, OpReply, Pending};
use nacre_types::op::{Op, OpResult};
use nacre_types::{ObjectId, PoolId};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Barrier, Semaphore};

/// `objecter_inflight_op_bytes`, in permits of 1 KiB.
const BOUND_KIB: usize = 100 << 10;
/// A test that waits longer than this has failed.
const PATIENCE: Duration = Duration::from_secs(30);

/// A cluster with one head. It limits the bytes in flight as the client does.
struct OneHead {
    /// The size that each read finds; the last one is repeated.
    sizes: Mutex<VecDeque<usize>>,
    /// The bytes that reads asked for.
    asked: Mutex<Vec<u64>>,
    bound: Arc<Semaphore>,
    /// Reads are answered once this many are in flight.
    together: Arc<Barrier>,
}

impl OneHead {
    fn new(sizes: &[usize], together: usize) -> Arc<OneHead> {
        Arc::new(OneHead {
            sizes: Mutex::new(sizes.iter().copied().collect()),
            asked: Mutex::default(),
            bound: Arc::new(Semaphore::new(BOUND_KIB)),
            together: Arc::new(Barrier::new(together)),
        })
    }

    /// What reads have asked for since the last call.
    fn asked(&self) -> Vec<u64> {
        std::mem::take(&mut *self.asked.lock())
    }
}

impl Engine for OneHead {
    fn operate(&self, request: ObjectRequest) -> Pending<OpReply> {
        if request.object.name() == crate::zone::ZONE {
            return Pending::ready(Err(Errno::ENOENT.into()));
        }
        let [Op::GetXattr { .. }, Op::Read { offset, len }] = [&request.ops[0].op, &request.ops[1].op] else {
            panic!("{request:?} is not the read of a head");
        };
        let (offset, len) = (*offset as usize, *len);
        self.asked.lock().push(len);
        let size = {
            let mut sizes = self.sizes.lock();
            if sizes.len() > 1 { sizes.pop_front().unwrap() } else { sizes[0] }
        };
        let head = Head { size: size as u64, ..Head::default() };
        let data = vec![7_u8; size];
        let end = size.min(offset + len as usize);
        let data = Bytes::from(data).slice(offset.min(end)..end);
        let ops = vec![OpResult::output(record::encode(&head)), OpResult::output(data)];
        let (bound, together) = (Arc::clone(&self.bound), Arc::clone(&self.together));
        Pending::from_future(async move {
            let _reserved = bound.acquire_many(len.div_ceil(1024) as u32).await.unwrap();
            together.wait().await;
            Ok(OpReply { result: 0, version: 1, ops })
        })
    }

    fn pool_id(&self, _name: &str) -> Option<PoolId> {
        Some(PoolId(1))
    }

    fn name(&self) -> &'static str {
        "one head"
    }

    fn submit(&self, request: ObjectRequest, _done: OnReply) {
        panic!("{request:?} is not awaited");
    }

    fn spawn(&self, _task: Pin<Box<dyn Future<Output = ()> + Send>>) {}

    fn list(&self, cursor: ObjectId, _max: u64, _namespace: Option<String>) -> Pending<ListPage> {
        panic!("a listing from {cursor:?}");
    }

    fn instance_id(&self) -> u64 {
        1
    }
}

/// The bucket of the objects.
const BUCKET: &str = "0123456789abcdef0123456789abcdef";

async fn open(engine: &Arc<OneHead>) -> Arc<StoredObjects> {
    let cluster = Cluster::from_engine(Arc::clone(engine) as Arc<dyn Engine>);
    let connection = Arc::new(Connection::open(cluster, false).await.unwrap());
    let classes = Arc::new(StorageClasses::new(&connection));
    Arc::new(StoredObjects::new(connection.pools.data.clone(), &classes))
}

#[tokio::test]
async fn hundreds_of_small_gets_are_in_flight_within_the_bound() {
    const GETS: usize = 500;
    let engine = OneHead::new(&[4096], GETS);
    let objects = open(&engine).await;
    let gets = (0..GETS).map(|_| {
        let objects = Arc::clone(&objects);
        tokio::spawn(async move { objects.open_object(BUCKET, "small").await.unwrap() })
    });
    let gets = futures::future::join_all(gets.collect::<Vec<_>>());
    let readers = tokio::time::timeout(PATIENCE, gets).await.expect("the bound lets in too few reads");
    assert!(readers.into_iter().all(|reader| reader.unwrap().inline.len() == 4096));
    assert_eq!(engine.asked().len(), GETS, "none of them needed a second read");
}

#[tokio::test]
async fn a_large_head_is_read_twice_once_and_reserves_what_it_holds() {
    let engine = OneHead::new(&[3 << 20], 1);
    let objects = open(&engine).await;
    for expected in [vec![64 << 10, 3 << 20], vec![4 << 20], vec![4 << 20]] {
        let reader = objects.open_object(BUCKET, "large").await.unwrap();
        assert_eq!(reader.inline.len(), 3 << 20);
        assert_eq!(engine.asked(), expected);
    }
    // A read of a range reserves no more bytes than the range has.
    let range = (1 << 20)..(1 << 20) + 100;
    let reader = objects.open_range(BUCKET, "large", range.clone()).await.unwrap();
    assert_eq!(engine.asked(), [100]);
    assert_eq!(reader.inline_range(range).unwrap().len(), 100);
}

#[tokio::test]
async fn a_range_that_is_longer_than_the_first_read_is_whole() {
    let engine = OneHead::new(&[200 << 10], 1);
    let objects = open(&engine).await;
    let reader = objects.open_range(BUCKET, "k", 1000..u64::MAX).await.unwrap();
    assert_eq!(engine.asked(), [64 << 10, (200 << 10) - 1000]);
    assert_eq!(reader.inline_range(1000..200 << 10).unwrap().len(), (200 << 10) - 1000);
}

#[tokio::test]
async fn an_object_that_is_replaced_between_the_reads_is_read_whole() {
    for grows in [[100 << 10, 2 << 20, 4 << 20], [100 << 10, 4 << 20, 10]] {
        let engine = OneHead::new(&grows, 1);
        let objects = open(&engine).await;
        let reader = objects.open_object(BUCKET, "k").await.unwrap();
        assert_eq!(engine.asked(), [64 << 10, 100 << 10, 4 << 20]);
        assert_eq!(reader.inline.len(), grows[2]);
        assert_eq!(reader.head.size, grows[2] as u64);
        let engine = OneHead::new(&grows, 1);
        let objects = open(&engine).await;
        let reader = objects.open_range(BUCKET, "k", 0..u64::MAX).await.unwrap();
        assert_eq!(engine.asked(), [64 << 10, 100 << 10, 4 << 20]);
        assert_eq!(reader.inline.len(), grows[2]);
    }
}

#[test]
fn a_second_read_asks_for_what_the_first_did_not_bring() {
    let inline = |size| Head { size, ..Head::default() };
    let secret = Secret::new(SseKeySource::Cluster, [1; SECRET_BYTES]);
    let encrypted = |size| Head { encryption: Some(secret.new_encryption().unwrap()), ..inline(size) };
    let (asked, tag) = (64 << 10, 16);
    assert_eq!(inline(100).longer_read(100, asked), None);
    assert_eq!(inline(asked).longer_read(asked, asked), None);
    assert_eq!(inline(asked + 1).longer_read(asked, asked), Some(asked + 1));
    assert_eq!(encrypted(asked).longer_read(asked, asked), Some(asked + tag));
    // Damage: the size differs from that of the data, or is more than a head can hold.
    assert_eq!(inline(asked + 1).longer_read(100, asked), None);
    assert_eq!(inline(u64::MAX).longer_read(asked, asked), Some(MAX_HEAD_BYTES));
    assert_eq!(encrypted(u64::MAX).longer_read(MAX_HEAD_BYTES, MAX_HEAD_BYTES), None);
    let tails = DataLocation::Tails(Tails { name: "t".into(), count: 3 });
    assert_eq!(Head { data: tails, ..inline(9 << 20) }.longer_read(0, asked), None);
    let parts = Head { data: DataLocation::Parts(9000), ..inline(9 << 30) };
    assert_eq!(parts.longer_read(asked, asked), Some(MAX_MANIFEST_BYTES as u64));
    assert_eq!(parts.longer_read(asked - 1, asked), None);
}

#[test]
fn spans_cover_a_range_once() {
    let tails = Tails { name: "t".into(), count: 3 };
    let total = 2 * STRIPE_BYTES + 5;
    for range in [0..total, 0..1, 5..5, STRIPE_BYTES - 1..STRIPE_BYTES + 1, 3..total] {
        let mut at = range.start;
        for span in spans(&tails, range.clone()) {
            assert_eq!(span.object, format!("t_{}", at / STRIPE_BYTES));
            assert_eq!(span.offset, at % STRIPE_BYTES);
            assert!(span.len > 0 && span.offset + span.len <= STRIPE_BYTES);
            at += span.len;
        }
        assert_eq!(at, range.end);
    }
}
