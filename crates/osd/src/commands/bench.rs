//! `tell osd.N bench`: measures how fast the OSD's store writes, below replication (`OSD::do_command`, `bench`).
//!
//! The objects are in a collection of pool 0, which never exists. The collection is marked as being removed from the start, so that an OSD
//! that ends during a bench removes it at its next start.

use super::RunningGuard;
use crate::shared::Shared;
use bytes::Bytes;
use nacre_common::options::OsdOptions;
use nacre_runtime::admin::{CommandFailure, CommandResult};
use nacre_shard::shard::REMOVING_KEY;
use nacre_store::{ObjectStore, StoreError};
use nacre_types::command::Call;
use nacre_types::errno::Errno;
use nacre_types::ids::{PgId, PoolId};
use nacre_types::object::ObjectId;
use nacre_types::txn::{Transaction, TxnOp};
use serde_json::json;
use std::time::Instant;

const DEFAULT_COUNT: u64 = 1 << 30;
const DEFAULT_SIZE: u64 = 4 << 20;
/// Maximum number of objects that one transaction removes.
const REMOVED_AT_ONCE: usize = 256;

/// What is written: `count` bytes in blocks of `block` bytes, each to its own object or spread over `objects`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plan {
    count: u64,
    block: u64,
    /// Number and size of the objects over which the blocks are spread. They are written before the measurement.
    objects: Option<(u64, u64)>,
}

/// The collection of the bench's objects.
fn collection() -> PgId {
    PgId::new(PoolId(0), 0)
}

pub(super) fn run(shared: &Shared, call: &Call<'_>) -> CommandResult {
    let refused = |error: StoreError| CommandFailure(error.errno(), error.to_string());
    let plan = Plan::of(call, &shared.config.snapshot().osd)?;
    plan.check_room(&*shared.store).map_err(refused)?;
    let running = RunningGuard::begin(&shared.benching, "a bench is under way")?;
    let measured = plan.write(&*shared.store);
    let removed = remove_all(&*shared.store);
    drop(running);
    let elapsed = measured.and_then(|elapsed| removed.map(|()| elapsed)).map_err(refused)?;
    let rate = plan.count as f64 / elapsed;
    Ok(json!({
        "bytes_written": plan.count,
        "blocksize": plan.block,
        "elapsed_sec": elapsed,
        "bytes_per_sec": rate,
        "iops": rate / plan.block as f64,
    })
    .into())
}

impl Plan {
    /// Checks the arguments against Ceph's limits: a typing error must not occupy an OSD for hours.
    fn of(call: &Call<'_>, options: &OsdOptions) -> Result<Plan, CommandFailure> {
        let refused = |text: String| CommandFailure(Errno::EINVAL, text);
        let number = |name: &str, default: u64| match call.int(name) {
            None => Ok(default),
            Some(n) => u64::try_from(n).map_err(|_| refused(format!("'{name}' can't be negative"))),
        };
        let (count, size) = (number("count", DEFAULT_COUNT)?, number("size", DEFAULT_SIZE)?);
        let (object_size, object_num) = (number("object_size", 0)?, number("object_num", 0)?);
        let most = options.osd_bench_max_block_size;
        if size > most {
            return Err(refused(format!(
                "block 'size' values are capped at {}. If you wish to use a higher value, please adjust \
                 'osd_bench_max_block_size'",
                iec(most)
            )));
        }
        let (iops, seconds) = (options.osd_bench_small_size_max_iops, options.osd_bench_duration);
        let throughput = options.osd_bench_large_size_max_throughput;
        let small = size < 1 << 20;
        let per_second = if small { size.saturating_mul(iops) } else { throughput };
        let limit = per_second.saturating_mul(seconds);
        if count > limit || size == 0 {
            let (assumed, option) = if small {
                (format!("{iops} IOPS"), "osd_bench_small_size_max_iops")
            } else {
                (format!("{}/s", iec(throughput)), "osd_bench_large_size_max_throughput")
            };
            return Err(refused(format!(
                "'count' values greater than {limit} for a block size of {}, assuming {assumed}, for {seconds} seconds, \
                 can cause ill effects on osd.  Please adjust '{option}' with a higher value if you wish to use a higher \
                 'count'.",
                iec(size)
            )));
        }
        let block = if object_size > 0 { size.min(object_size) } else { size };
        let objects = (object_size > 0 && object_num > 0).then_some((object_num, object_size));
        Ok(Plan { count, block, objects })
    }

    /// Fails if the objects do not fit below the store's full ratio: a full store refuses the writes of clients.
    fn check_room(self, store: &dyn ObjectStore) -> Result<(), StoreError> {
        let (objects, size) = self.objects.unwrap_or((self.count.div_ceil(self.block), self.block));
        store.reserve(objects.saturating_mul(size)).map(drop)
    }

    /// Returns the seconds from the first block to the commit of the last one.
    fn write(self, store: &dyn ObjectStore) -> Result<f64, StoreError> {
        let coll = collection();
        let object = |number: u64| ObjectId::new(coll.pool, "", "", &format!("disk_bw_test_{number}"));
        let data = |len: u64| Bytes::from(vec![0x5a; len as usize]);
        let mut txn = Transaction::new(coll);
        txn.push(TxnOp::CreateCollection);
        txn.push(TxnOp::MetaSet(vec![(REMOVING_KEY.to_owned(), Bytes::from_static(b"1"))]));
        store.queue_transaction(&txn, None)?;
        let write = |oid: ObjectId, offset: u64, data: Bytes| {
            let mut txn = Transaction::new(coll);
            txn.push(TxnOp::Write { oid, offset, data: data.into() });
            // Blocks while the store's queue is full.
            store.queue_transaction(&txn, None)
        };
        if let Some((objects, size)) = self.objects {
            for number in 0..objects {
                (0..size).step_by(self.block as usize).try_for_each(|offset| {
                    write(object(number), offset, data(self.block.min(size - offset)))
                })?;
            }
        }
        store.flush()?;
        let block = data(self.block);
        let started = Instant::now();
        for number in 0..self.count.div_ceil(self.block) {
            match self.objects {
                Some((objects, size)) => {
                    let at = scattered(number);
                    let slots = (size / self.block).max(1);
                    write(object(at % objects), at / objects % slots * self.block, block.clone())?;
                }
                None => write(object(number), 0, block.clone())?,
            }
        }
        store.flush()?;
        Ok(started.elapsed().as_secs_f64())
    }
}

/// A pseudo-random number for each number (SplitMix64).
fn scattered(number: u64) -> u64 {
    let mut z = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Removes all objects of a bench, also of an unfinished one.
fn remove_all(store: &dyn ObjectStore) -> Result<(), StoreError> {
    let coll = collection();
    while store.collection_exists(coll)? {
        let first = ObjectId::min_at_hash(coll.pool, 0);
        let page = store.list_objects(coll, &first, None, REMOVED_AT_ONCE)?;
        let mut txn = Transaction::new(coll);
        if page.entries.is_empty() {
            txn.push(TxnOp::RemoveCollection);
        }
        txn.ops.extend(page.entries.into_iter().map(TxnOp::Remove));
        store.queue_transaction(&txn, None)?;
    }
    store.flush()
}

/// Formats bytes with a binary unit, as Ceph does: `4 KiB`.
fn iec(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut at = 0;
    let mut rest = bytes as f64;
    while rest >= 1024.0 && at + 1 < UNITS.len() {
        (rest, at) = (rest / 1024.0, at + 1);
    }
    let shown = format!("{rest:.1}");
    format!("{} {}", shown.strip_suffix(".0").unwrap_or(&shown), UNITS[at])
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_common::config::ConfigBuilder;
    use nacre_store::{MemStore, MemStoreConfig, ReadStore};
    use nacre_types::command::osd_commands;

    fn plan(json: &str) -> Result<Plan, CommandFailure> {
        let config = ConfigBuilder::new("osd.0".parse().unwrap()).build().unwrap();
        Plan::of(&osd_commands().parse_json(json).unwrap(), &config.snapshot().osd)
    }

    #[test]
    fn sizes_are_bounded_as_in_ceph() {
        let defaults = Plan { count: 1 << 30, block: 4 << 20, objects: None };
        assert_eq!(plan(r#"{"prefix":"bench"}"#), Ok(defaults));
        let small = plan(r#"{"prefix":"bench","count":100000000000,"size":4096}"#).unwrap_err();
        assert_eq!(
            small,
            CommandFailure(
                Errno::EINVAL,
                "'count' values greater than 12288000 for a block size of 4 KiB, assuming 100 IOPS, for 30 seconds, can \
                 cause ill effects on osd.  Please adjust 'osd_bench_small_size_max_iops' with a higher value if you wish \
                 to use a higher 'count'."
                    .into()
            )
        );
        assert!(plan(r#"{"prefix":"bench","size":0}"#).is_err());
        assert!(plan(r#"{"prefix":"bench","size":100000000}"#).is_err());
        assert!(plan(r#"{"prefix":"bench","count":4000000000}"#).is_err());
        let spread =
            plan(r#"{"prefix":"bench","count":65536,"size":8192,"object_size":4096,"object_num":3}"#);
        assert_eq!(spread, Ok(Plan { count: 65_536, block: 4096, objects: Some((3, 4096)) }));
    }

    #[test]
    fn objects_that_do_not_fit_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        MemStore::mkfs(folder.path()).unwrap();
        let config = MemStoreConfig { device_bytes: 16 << 20, ..MemStoreConfig::default() };
        let (store, _) = MemStore::mount(folder.path(), config).unwrap();
        let fits = |count: u64, objects: Option<(u64, u64)>| {
            Plan { count, block: 4096, objects }.check_room(&store).map_err(|error| error.errno())
        };
        assert_eq!(fits(1 << 20, None), Ok(()));
        assert_eq!(fits(1 << 20, Some((3, 65_536))), Ok(()));
        assert_eq!(fits(1 << 30, None), Err(Errno::ENOSPC));
        assert_eq!(fits(4096, Some((u64::MAX, 65_536))), Err(Errno::ENOSPC));
    }

    #[test]
    fn blocks_are_written_and_removed_again() {
        let folder = tempfile::tempdir().unwrap();
        MemStore::mkfs(folder.path()).unwrap();
        let (store, _) = MemStore::mount(folder.path(), MemStoreConfig::default()).unwrap();
        for objects in [None, Some((3, 65_536))] {
            let plan = Plan { count: 1 << 20, block: 4096, objects };
            assert!(plan.write(&store).unwrap() > 0.0);
            let page =
                store.list_objects(collection(), &ObjectId::min_at_hash(PoolId(0), 0), None, 1000).unwrap();
            assert_eq!(page.entries.len(), objects.map_or(256, |(objects, _)| objects as usize));
            remove_all(&store).unwrap();
            assert!(!store.collection_exists(collection()).unwrap());
        }
    }
}
