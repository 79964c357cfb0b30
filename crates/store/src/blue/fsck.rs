//! Checks that an unmounted store is consistent: every block has one owner, every record is readable, no record is stray.

use super::allocation::{bits, start};
use super::compression;
use super::db::Family;
use super::keys;
use super::label::FIRST_DATA_BLOCK;
use super::mount::OpenedStore;
use super::onode::{BLOCK_BYTES, Blob, Onode, Run, SharedBlob, decode_sums};
use crate::error::Result;
use crate::{AllocationSource, PoolUsage};
use nacre_types::ids::{PgId, PoolId};
use nacre_types::object::ObjectId;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

/// An inconsistency of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FsckFinding {
    /// The database lost synced data.
    Loss(String),
    /// A record can't be decoded: column family and key.
    Undecodable(&'static str, Vec<u8>),
    /// An object's blob lies outside the allocated part of the store: object, first block, blocks.
    OutOfBounds(ObjectId, u64, u64),
    /// A block has several owners that do not share it.
    OwnedTwice(u64),
    /// The reference count of a shared blob differs from the number of objects that hold it: blob, count, holders.
    WrongReferences(u64, u64, u64),
    /// An object holds a shared blob without a record, or whose record has other blocks.
    NoSharedRecord(ObjectId, u64),
    /// A blob's checksums are missing or undecodable.
    NoChecksums(ObjectId, u64),
    /// Checksums of a blob that no object holds.
    StrayChecksums(u64),
    /// The contents of a block do not match its checksum (deep checks only).
    BadData(ObjectId, u64),
    /// A block could not be read (deep checks only).
    Unreadable(ObjectId, u64),
    /// Omap entries that belong to no object.
    StrayOmap(u64),
    /// Two objects have the same omap.
    OmapOwnedTwice(u64),
    /// An object, log entry or value of a collection that does not exist.
    NoCollection(PgId, &'static str),
    /// The recorded usage of a pool differs from the usage of its objects: pool, recorded, found.
    WrongUsage(PoolId, PoolUsage, PoolUsage),
    /// The recorded number of objects of a collection differs from the number found: collection, recorded, found.
    WrongObjects(PgId, u64, u64),
    /// The notes of allocation differ from what objects own: number of blocks noted as used that no object owns, and number of
    /// blocks noted as free that an object owns.
    WrongAllocation(u64, u64),
    /// A number in use is not below the recorded limit.
    NumberTooHigh(u64),
}

impl fmt::Display for FsckFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FsckFinding::Loss(what) => write!(f, "{what}"),
            FsckFinding::Undecodable(family, key) => {
                write!(f, "{family}: the record under {} can't be decoded", key.escape_ascii())
            }
            FsckFinding::OutOfBounds(oid, start, blocks) => {
                write!(f, "{oid}: blocks {start}..{} lie outside the store", start.saturating_add(*blocks))
            }
            FsckFinding::OwnedTwice(block) => {
                write!(f, "block {block} has several owners that do not share it")
            }
            FsckFinding::WrongReferences(blob, count, holders) => {
                write!(f, "shared blob {blob} counts {count} references, {holders} objects hold it")
            }
            FsckFinding::NoSharedRecord(oid, blob) => {
                write!(f, "{oid}: shared blob {blob} has no fitting record")
            }
            FsckFinding::NoChecksums(oid, blob) => {
                write!(f, "{oid}: blob {blob} has no checksums that can be read")
            }
            FsckFinding::StrayChecksums(blob) => write!(f, "unreferenced checksums of blob {blob}"),
            FsckFinding::BadData(oid, block) => write!(f, "{oid}: block {block} is not what was written"),
            FsckFinding::Unreadable(oid, block) => write!(f, "{oid}: block {block} can't be read"),
            FsckFinding::StrayOmap(omap) => write!(f, "omap {omap} belongs to no object"),
            FsckFinding::OmapOwnedTwice(omap) => write!(f, "omap {omap} belongs to two objects"),
            FsckFinding::NoCollection(pg, what) => {
                write!(f, "{what} of collection {pg}, which does not exist")
            }
            FsckFinding::WrongUsage(pool, noted, found) => {
                write!(f, "pool {}: noted are {noted:?}, found {found:?}", pool.0)
            }
            FsckFinding::WrongObjects(pg, noted, found) => {
                write!(f, "collection {pg}: {noted} objects are noted, it has {found}")
            }
            FsckFinding::WrongAllocation(stray, missing) => write!(
                f,
                "{stray} blocks are noted as used that nothing owns, {missing} as free that an object owns"
            ),
            FsckFinding::NumberTooHigh(number) => {
                write!(f, "number {number} is in use, beyond what was given out")
            }
        }
    }
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FsckReport {
    /// The inconsistencies; empty for a consistent store.
    pub findings: Vec<FsckFinding>,
    /// Objects checked.
    pub objects: u64,
    /// Bytes of data read and verified.
    pub verified_bytes: u64,
    /// Source of the store's notes of allocation. Without notes, a start scans all objects.
    pub allocation: Option<AllocationSource>,
}

struct Check<'a> {
    opened: &'a OpenedStore,
    deep: bool,
    report: FsckReport,
    collections: BTreeSet<PgId>,
    owners: Vec<u64>,
    shared: HashMap<u64, (SharedBlob, u64)>,
    keyed_sums: BTreeSet<u64>,
    omaps: BTreeSet<u64>,
    usage: BTreeMap<PoolId, PoolUsage>,
    objects: BTreeMap<PgId, u64>,
    /// Shared blobs that are already counted in a pool's allocation.
    counted: BTreeSet<u64>,
}

/// Checks an opened store.
pub(super) fn check(opened: &OpenedStore, deep: bool) -> Result<FsckReport> {
    let blocks = opened.label.size / BLOCK_BYTES;
    let mut check = Check {
        opened,
        deep,
        report: FsckReport::default(),
        collections: BTreeSet::new(),
        owners: bits::empty(blocks),
        shared: HashMap::new(),
        keyed_sums: BTreeSet::new(),
        omaps: BTreeSet::new(),
        usage: BTreeMap::new(),
        objects: BTreeMap::new(),
        counted: BTreeSet::new(),
    };
    if let Some(loss) = check.opened.loss.clone() {
        check.found(FsckFinding::Loss(loss));
    }
    check.collections()?;
    check.shared()?;
    check.onodes()?;
    check.shared_counts();
    check.checksums()?;
    check.omaps()?;
    check.notes()?;
    Ok(check.report)
}

impl Check<'_> {
    fn found(&mut self, finding: FsckFinding) {
        self.report.findings.push(finding);
    }

    fn collections(&mut self) -> Result<()> {
        for entry in self.opened.db.scan(Family::Collections) {
            let (key, _) = entry?;
            match keys::split_collection(&key) {
                Some((coll, [keys::COLLECTION_RECORD])) => {
                    self.collections.insert(coll);
                    self.objects.insert(coll, 0);
                }
                Some((coll, [keys::COLLECTION_META, ..])) => {
                    if !self.collections.contains(&coll) {
                        self.found(FsckFinding::NoCollection(coll, "value"));
                    }
                }
                _ => self.found(FsckFinding::Undecodable("collections", key.to_vec())),
            }
        }
        for entry in self.opened.db.scan(Family::PgLog) {
            let (key, _) = entry?;
            match keys::split_log(&key) {
                Some((coll, _)) if self.collections.contains(&coll) => {}
                Some((coll, _)) => self.found(FsckFinding::NoCollection(coll, "log entry")),
                None => self.found(FsckFinding::Undecodable("pglog", key.to_vec())),
            }
        }
        Ok(())
    }

    fn own(&mut self, run: Run) {
        for block in run.start..run.start + run.blocks {
            let (word, bit) = ((block / 64) as usize, 1 << (block % 64));
            if self.owners[word] & bit != 0 {
                self.found(FsckFinding::OwnedTwice(block));
            }
            self.owners[word] |= bit;
        }
    }

    fn in_bounds(&self, run: Run) -> bool {
        let end = run.start.checked_add(run.blocks);
        run.start >= FIRST_DATA_BLOCK && end.is_some_and(|end| end <= self.opened.state.frontier)
    }

    fn shared(&mut self) -> Result<()> {
        for entry in self.opened.db.scan(Family::Shared) {
            let (key, value) = entry?;
            match (key.as_ref().try_into().map(u64::from_be_bytes), SharedBlob::decode(&value)) {
                (Ok(id), Some(blob)) if self.in_bounds(blob.run) => {
                    self.own(blob.run);
                    self.shared.insert(id, (blob, 0));
                }
                _ => self.found(FsckFinding::Undecodable("shared", key.to_vec())),
            }
        }
        Ok(())
    }

    fn onodes(&mut self) -> Result<()> {
        for entry in self.opened.db.scan(Family::Onodes) {
            let (key, value) = entry?;
            let (Some((coll, oid)), Ok(onode)) = (keys::split_onode(&key), Onode::decode(&value)) else {
                self.found(FsckFinding::Undecodable("onodes", key.to_vec()));
                continue;
            };
            self.report.objects += 1;
            if !self.collections.contains(&coll) {
                self.found(FsckFinding::NoCollection(coll, "object"));
            }
            let id_max = self.opened.state.id_max;
            for id in [onode.nid, onode.omap].into_iter().chain(onode.blobs.iter().map(|blob| blob.id)) {
                if id >= id_max {
                    self.found(FsckFinding::NumberTooHigh(id));
                }
            }
            if onode.omap != 0 && !self.omaps.insert(onode.omap) {
                self.found(FsckFinding::OmapOwnedTwice(onode.omap));
            }
            if let Some(objects) = self.objects.get_mut(&coll) {
                *objects += 1;
            }
            let usage = self.usage.entry(coll.pool).or_default();
            usage.objects += 1;
            let (stored, packed) = onode.stored_and_compressed();
            usage.stored_bytes += stored;
            usage.compressed_original_bytes += packed;
            for blob in &onode.blobs {
                self.blob(coll.pool, &oid, blob)?;
            }
        }
        Ok(())
    }

    fn blob(&mut self, pool: PoolId, oid: &ObjectId, blob: &Blob) -> Result<()> {
        // The checksums belong to the blob even if it lies outside the store.
        if !blob.inline_sums {
            self.keyed_sums.insert(blob.id);
        }
        if !self.in_bounds(blob.run) {
            self.found(FsckFinding::OutOfBounds(oid.clone(), blob.run.start, blob.run.blocks));
            return Ok(());
        }
        let first_holder = !blob.shared || self.counted.insert(blob.id);
        if !blob.shared {
            self.own(blob.run);
        } else {
            match self.shared.get_mut(&blob.id) {
                Some((shared, holders)) if shared.run == blob.run => *holders += 1,
                _ => self.found(FsckFinding::NoSharedRecord(oid.clone(), blob.id)),
            }
        }
        if first_holder {
            let usage = self.usage.entry(pool).or_default();
            usage.allocated_bytes += blob.run.blocks * BLOCK_BYTES;
            if let Some(packed) = blob.kind.packed {
                usage.compressed_bytes += u64::from(packed.stored);
                usage.compressed_allocated_bytes += blob.run.blocks * BLOCK_BYTES;
            }
        }
        let sums = if blob.inline_sums {
            Some(blob.sums.clone())
        } else {
            let value = self.opened.db.get(Family::Csum, &keys::id(blob.id))?;
            value.and_then(|value| decode_sums(&value, blob.kind, blob.run.blocks))
        };
        let Some(sums) = sums else {
            self.found(FsckFinding::NoChecksums(oid.clone(), blob.id));
            return Ok(());
        };
        if self.deep && first_holder {
            self.verify(oid, blob, sums.as_slice().unwrap_or_default());
        }
        Ok(())
    }

    fn verify(&mut self, oid: &ObjectId, blob: &Blob, sums: &[u32]) {
        let run = blob.run;
        let mut buffer = super::aligned::AlignedBuffer::zeroed((run.blocks * BLOCK_BYTES) as usize);
        if self.opened.device.read(run.start * BLOCK_BYTES, &mut buffer).is_err() {
            self.found(FsckFinding::Unreadable(oid.clone(), run.start));
            return;
        }
        if let Some(chunk) = blob.kind.first_mismatch(0, &buffer, sums) {
            self.found(FsckFinding::BadData(
                oid.clone(),
                run.start + chunk * blob.kind.checksum_chunk_blocks(),
            ));
        } else if blob.kind.packed.is_some_and(|packed| compression::decompress(packed, &buffer).is_none()) {
            self.found(FsckFinding::BadData(oid.clone(), run.start));
        }
        self.report.verified_bytes += buffer.len() as u64;
    }

    fn shared_counts(&mut self) {
        let wrong: Vec<_> = self
            .shared
            .iter()
            .filter(|(_, (blob, holders))| blob.refs != *holders)
            .map(|(id, (blob, holders))| FsckFinding::WrongReferences(*id, blob.refs, *holders))
            .collect();
        self.report.findings.extend(wrong);
    }

    fn checksums(&mut self) -> Result<()> {
        for entry in self.opened.db.scan(Family::Csum) {
            let (key, _) = entry?;
            match key.as_ref().try_into().map(u64::from_be_bytes) {
                Ok(id) if self.keyed_sums.contains(&id) => {}
                Ok(id) => self.found(FsckFinding::StrayChecksums(id)),
                Err(_) => self.found(FsckFinding::Undecodable("csum", key.to_vec())),
            }
        }
        Ok(())
    }

    fn omaps(&mut self) -> Result<()> {
        let mut stray = BTreeSet::new();
        for entry in self.opened.db.scan(Family::Omap) {
            let (key, _) = entry?;
            match key.split_first_chunk::<8>() {
                Some((id, [keys::OMAP_HEADER] | [keys::OMAP_ENTRY, ..])) => {
                    let id = u64::from_be_bytes(*id);
                    if !self.omaps.contains(&id) {
                        stray.insert(id);
                    }
                }
                _ => self.found(FsckFinding::Undecodable("omap", key.to_vec())),
            }
        }
        self.report.findings.extend(stray.into_iter().map(FsckFinding::StrayOmap));
        Ok(())
    }

    /// Compares the notes of allocation, usage and numbers of objects with what was found.
    fn notes(&mut self) -> Result<()> {
        let noted = match start::load_saved_allocation(self.opened)? {
            Ok(noted) => noted,
            Err(reason) => {
                self.report.allocation = Some(AllocationSource::Scan { reason });
                return Ok(());
            }
        };
        self.report.allocation = Some(noted.source);
        let pairs = noted.accounting.used.iter().zip(&self.owners);
        let count = |blocks: u64| u64::from(blocks.count_ones());
        let (stray, missing) = pairs.fold((0, 0), |(stray, missing), (noted, owned)| {
            (stray + count(noted & !owned), missing + count(owned & !noted))
        });
        if (stray, missing) != (0, 0) {
            self.found(FsckFinding::WrongAllocation(stray, missing));
        }
        let pools: BTreeSet<PoolId> =
            noted.accounting.usage.keys().chain(self.usage.keys()).copied().collect();
        for pool in pools {
            let recorded = noted.accounting.usage.get(&pool).copied().unwrap_or_default();
            let found = self.usage.get(&pool).copied().unwrap_or_default();
            if recorded != found {
                self.found(FsckFinding::WrongUsage(pool, recorded, found));
            }
        }
        let colls: BTreeSet<PgId> =
            noted.accounting.objects.keys().chain(self.objects.keys()).copied().collect();
        for coll in colls {
            let recorded = noted.accounting.objects.get(&coll).copied();
            let found = self.objects.get(&coll).copied();
            if recorded != found {
                self.found(FsckFinding::WrongObjects(coll, recorded.unwrap_or(0), found.unwrap_or(0)));
            }
        }
        Ok(())
    }
}
