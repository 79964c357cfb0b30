//! Fills an empty store with synthetic objects at full speed, for benchmarks of starts and scans.
//!
//! Records are written as sorted files that the database ingests. Data is never written: the holes of a sparse device
//! read as zeros, and the checksums are those of zeros, so all objects can be read. The blocks are divided into as many slots
//! as there are extents. Each slot is a little longer than an extent, and the extents of an object get slots that are far
//! apart.

use super::allocation::{SpaceAccounting, bits, start};
use super::blob_kind::BlobFormat;
use super::db::{Family, RawBatch};
use super::keys;
use super::label::FIRST_DATA_BLOCK;
use super::mount::{self, OpenedStore};
use super::onode::{BLOCK_BYTES, Blob, Checksums, Extent, MAX_INLINE_SUMS, Onode, Run, encode_sums};
use super::state;
use super::{BlueStore, BlueStoreConfig};
use crate::PoolUsage;
use crate::error::{Result, StoreError};
use bytes::Bytes;
use nacre_types::crc32c::crc32c;
use nacre_types::hash::pg_of_hash;
use nacre_types::ids::{PgId, PoolId};
use nacre_types::object::ObjectId;
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Number of objects in one file.
const FILE_ONODES: usize = 100_000;
/// Usual size of an object, in bytes.
const OBJECT_BYTES: u64 = 4 << 20;
/// Names and sizes in bytes of an object's attributes, similar to those that OSDs write.
const ATTRIBUTES: [(&str, usize); 2] = [("_", 120), ("snapset", 31)];

/// The contents to fill a store with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FillPlan {
    /// Number of objects.
    pub onodes: u64,
    /// Number of extents of all objects together.
    pub extents: u64,
    /// Number of blocks in an extent.
    pub extent_blocks: u64,
    /// Percentage of objects that have a blob whose checksums are in a separate record.
    pub keyed_percent: u64,
    /// Number of placement groups.
    pub pgs: u32,
    /// The pool of the placement groups.
    pub pool: i64,
}

impl FillPlan {
    /// The name of an object that [`BlueStore::fill`] makes.
    pub fn object(&self, index: u64) -> ObjectId {
        ObjectId::new(PoolId(self.pool), "", "", &format!("fill_{index:010}"))
    }

    /// The placement group of an object.
    pub fn pg(&self, object: &ObjectId) -> PgId {
        PgId::new(PoolId(self.pool), pg_of_hash(object.hash(), self.pgs))
    }
}

/// A file of objects' records and, if there are any, one of checksums.
type Files = (PathBuf, Option<PathBuf>);

/// The placement of all records and extents.
struct StoreFiller {
    plan: FillPlan,
    /// (PG, sort hash, index) of each object, in key order.
    order: Vec<(u32, u32, u32)>,
    slot_blocks: u64,
    stride: u64,
    first_id: u64,
    sum: u32,
}

impl BlueStore {
    /// Fills an empty store that is not mounted. Calls `progress` from time to time with the number of objects written.
    pub fn fill(
        directory: &Path,
        config: &BlueStoreConfig,
        plan: FillPlan,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let opened = mount::open(directory, config)?;
        if opened.db.first_key(Family::Collections)?.is_some() {
            return Err(StoreError::Invalid("only an empty store can be filled"));
        }
        let filling = StoreFiller::new(&opened, plan)?;
        let files = filling.write(&opened, progress)?;
        let (onodes, sums): (Vec<_>, Vec<_>) = files.into_iter().unzip();
        opened.db.ingest(Family::Onodes, onodes)?;
        opened.db.ingest(Family::Csum, sums.into_iter().flatten().collect())?;
        filling.finish(&opened, config)
    }
}

impl StoreFiller {
    fn new(opened: &OpenedStore, plan: FillPlan) -> Result<StoreFiller> {
        let blocks = opened.label.size / BLOCK_BYTES - FIRST_DATA_BLOCK;
        let wrong = |what| Err(StoreError::Invalid(what));
        if plan.onodes == 0
            || plan.onodes > u64::from(u32::MAX)
            || plan.pgs == 0
            || plan.extents < plan.onodes
        {
            return wrong("objects, extents and placement groups are needed, no fewer extents than objects");
        }
        let slot_blocks = blocks / plan.extents;
        if plan.extent_blocks == 0 || slot_blocks <= plan.extent_blocks {
            return wrong("so many extents do not fit");
        }
        if plan.extents.div_ceil(plan.onodes) * plan.extent_blocks > MAX_INLINE_SUMS {
            return wrong("an object's checksums would not fit into its record");
        }
        let mut order: Vec<(u32, u32, u32)> = (0..plan.onodes)
            .map(|index| {
                let object = plan.object(index);
                (plan.pg(&object).seed, object.sort_hash(), index as u32)
            })
            .collect();
        // All names have the same number of digits, so they sort like their numbers.
        order.sort_unstable();
        // A stride of about the golden ratio that is coprime to the number of slots visits every slot once, far from the
        // previous ones.
        let mut stride = (plan.extents as f64 * 0.618_033_988_75) as u64 | 1;
        while gcd(stride, plan.extents) != 1 {
            stride += 2;
        }
        let sum = crc32c(&[0; BLOCK_BYTES as usize]);
        Ok(StoreFiller { plan, order, slot_blocks, stride, first_id: opened.state.id_max, sum })
    }

    /// Number of extents of the object at a position in the order, and of all objects before it.
    fn extents_of(&self, at: u64) -> (u64, u64) {
        let (each, more) = (self.plan.extents / self.plan.onodes, self.plan.extents % self.plan.onodes);
        (each + u64::from(at < more), at * each + at.min(more))
    }

    fn run(&self, slot: u64) -> Run {
        Run { start: FIRST_DATA_BLOCK + slot * self.slot_blocks, blocks: self.plan.extent_blocks }
    }

    fn is_keyed(&self, at: u64) -> bool {
        at * 61 % 100 < self.plan.keyed_percent
    }

    fn onode(&self, at: u64) -> Onode {
        let (count, before) = self.extents_of(at);
        let len = self.plan.extent_blocks * BLOCK_BYTES;
        let step = (OBJECT_BYTES / count / BLOCK_BYTES * BLOCK_BYTES).max(len);
        let nid = self.first_id + before + at;
        let sums = vec![self.sum; self.plan.extent_blocks as usize];
        let mut onode = Onode { nid, size: (step * count).max(OBJECT_BYTES), ..Onode::default() };
        for j in 0..count {
            let slot =
                ((u128::from(before + j) * u128::from(self.stride)) % u128::from(self.plan.extents)) as u64;
            let inline_sums = j > 0 || !self.is_keyed(at);
            let sums = if inline_sums { Checksums::from_slice(&sums) } else { Checksums::Stored };
            onode.blobs.push(Blob {
                id: nid + 1 + j,
                run: self.run(slot),
                shared: false,
                inline_sums,
                kind: BlobFormat::default(),
                sums,
                cached: Vec::new(),
            });
            onode.extents.push(Extent { logical: j * step, len, blob: j as u32, offset: 0 });
        }
        for (name, len) in ATTRIBUTES {
            // Different for each object, so that compression does not shrink the records too much.
            let mut word = nid.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let value: Vec<u8> = (0..len)
                .map(|_| {
                    word ^= word << 13;
                    word ^= word >> 7;
                    word ^= word << 17;
                    word as u8
                })
                .collect();
            onode.attrs.push((Arc::from(name), Bytes::from(value)));
        }
        onode
    }

    /// Writes the files with objects' records and, if there are any, checksums.
    fn write(&self, opened: &OpenedStore, progress: &mut dyn FnMut(u64)) -> Result<Vec<Files>> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let parts = self.order.len().div_ceil(FILE_ONODES);
        let next = AtomicUsize::new(0);
        let files: Mutex<Vec<(usize, Files)>> = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            let (done, made) = std::sync::mpsc::channel();
            for _ in 0..threads {
                let (done, next, files) = (done.clone(), &next, &files);
                scope.spawn(move || {
                    loop {
                        let part = next.fetch_add(1, Ordering::Relaxed);
                        if part >= parts {
                            return;
                        }
                        let written = self.write_part(opened, part);
                        let failed = written.is_err();
                        if let Ok(file) = &written {
                            files.lock().push((part, file.clone()));
                        }
                        // The receiver exists until all senders are dropped, except after an error.
                        if done.send(written.map(drop)).is_err() || failed {
                            return;
                        }
                    }
                });
            }
            drop(done);
            let mut parts_made = 0;
            for outcome in made {
                outcome?;
                parts_made += 1;
                progress((parts_made * FILE_ONODES).min(self.order.len()) as u64);
            }
            Ok::<(), StoreError>(())
        })?;
        let mut files = files.into_inner();
        files.sort_unstable_by_key(|(part, _)| *part);
        Ok(files.into_iter().map(|(_, file)| file).collect())
    }

    fn write_part(&self, opened: &OpenedStore, part: usize) -> Result<Files> {
        let path = |what: &str| opened.directory.join(format!("db/fill-{what}-{part:06}.new"));
        let (first, last) = (part * FILE_ONODES, ((part + 1) * FILE_ONODES).min(self.order.len()));
        let mut value = Vec::new();
        let onodes = opened.db.write_sst(Family::Onodes, &path("onodes"), |put| {
            for at in first..last {
                let (seed, _, index) = self.order[at];
                let object = self.plan.object(u64::from(index));
                value.clear();
                self.onode(at as u64).encode_into(&mut value);
                put(&keys::onode(PgId::new(PoolId(self.plan.pool), seed), &object), &value)?;
            }
            Ok(())
        })?;
        let record = encode_sums(BlobFormat::default(), &vec![self.sum; self.plan.extent_blocks as usize]);
        let sums = opened.db.write_sst(Family::Csum, &path("csum"), |put| {
            for at in (first as u64..last as u64).filter(|at| self.is_keyed(*at)) {
                let (_, before) = self.extents_of(at);
                put(&keys::id(self.first_id + before + at + 1), &record)?;
            }
            Ok(())
        })?;
        onodes.map(|onodes| (onodes, sums)).ok_or(StoreError::Invalid("a part without objects"))
    }

    /// Writes everything that belongs to the records: collections, numbers, allocation.
    fn finish(&self, opened: &OpenedStore, config: &BlueStoreConfig) -> Result<()> {
        let (ids, plan) = (opened.db.ids(), self.plan);
        let device_blocks = opened.label.size / BLOCK_BYTES;
        let mut accounting = SpaceAccounting::empty(device_blocks);
        for slot in 0..plan.extents {
            if !bits::set_range(&mut accounting.used, self.run(slot), true) {
                return Err(StoreError::Invalid("extents overlap"));
            }
        }
        let bytes = plan.extents * plan.extent_blocks * BLOCK_BYTES;
        let (stored_bytes, allocated_bytes) = (bytes, bytes);
        let usage = PoolUsage { stored_bytes, allocated_bytes, objects: plan.onodes, ..PoolUsage::default() };
        accounting.usage.insert(PoolId(plan.pool), usage);
        let mut batch = RawBatch::default();
        for seed in 0..plan.pgs {
            let id = PgId::new(PoolId(plan.pool), seed);
            batch.put(ids, Family::Collections, &keys::collection_record(id), &[1, 1]);
            accounting.objects.insert(id, 0);
        }
        for (seed, ..) in &self.order {
            *accounting.objects.entry(PgId::new(PoolId(plan.pool), *seed)).or_default() += 1;
        }
        let id_max = self.first_id + plan.extents + plan.onodes + 1;
        batch.put(ids, Family::Super, state::ID_MAX, &id_max.to_le_bytes());
        batch.put(ids, Family::Super, state::FRONTIER, &device_blocks.to_le_bytes());
        start::record_filled(opened, config, accounting, device_blocks, &mut batch)?;
        batch.finish();
        opened.db.write(&batch)
    }
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
