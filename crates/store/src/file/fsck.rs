//! Checks that an unmounted store is consistent: every object has its file, attributes and checksums, and there are no
//! stray files or records.

use super::backend::Backend;
use super::db::verify_checksum;
use super::inner::load_attrs;
use super::mount::Opened;
use super::names;
use super::object::{BLOCK_BYTES, Object};
use super::read::read_up_to;
use super::step::Family;
use crate::PoolUsage;
use crate::blue::keys;
use crate::error::Result;
use nacre_types::crc32c::crc32c;
use nacre_types::ids::{PgId, PoolId};
use nacre_types::object::ObjectId;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Number of bytes read from a file at a time.
const STEP_BYTES: u64 = 1 << 20;

/// An inconsistency of a [`super::FileStore`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileFinding {
    /// Durable data was lost from the journal.
    Loss(String),
    /// A record can't be decoded: column family and key.
    Undecodable(&'static str, Vec<u8>),
    /// An object, log entry or value of a collection that does not exist.
    NoCollection(PgId, &'static str),
    /// An object's file is missing.
    NoFile(ObjectId),
    /// The file does not have the size of the object: object, its size, the file's size.
    WrongSize(ObjectId, u64, u64),
    /// An attribute is missing or does not have the value that was set.
    BadAttribute(ObjectId, String),
    /// The contents of a block do not match its checksum (deep checks only): object and block.
    BadData(ObjectId, u64),
    /// The file can't be read (deep checks only).
    Unreadable(ObjectId),
    /// Two objects have the same number.
    NumberTwice(u64),
    /// A number in use is not below the recorded next number.
    NumberTooHigh(u64),
    /// Checksums, attributes or an omap that belong to no object: column family and number.
    Stray(&'static str, u64),
    /// A file that belongs to no object.
    StrayFile(String),
    /// The recorded usage of a pool differs from the usage of its objects: pool, recorded, found.
    WrongUsage(PoolId, PoolUsage, PoolUsage),
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileFsckReport {
    /// The inconsistencies; empty for a consistent store.
    pub findings: Vec<FileFinding>,
    /// Objects checked.
    pub objects: u64,
    /// Bytes of data read and verified.
    pub verified_bytes: u64,
}

struct Check<'a> {
    backend: &'a Backend,
    next_number: u64,
    deep: bool,
    report: FileFsckReport,
    collections: BTreeSet<PgId>,
    /// Numbers in use, and whether their objects have an omap.
    numbers: HashMap<u64, bool>,
    usage: BTreeMap<PoolId, PoolUsage>,
}

/// Checks an opened store.
pub(super) fn check(opened: Opened, deep: bool) -> Result<FileFsckReport> {
    let mut check = Check {
        backend: &opened.backend,
        next_number: opened.state.next_number,
        deep,
        report: FileFsckReport::default(),
        collections: BTreeSet::new(),
        numbers: HashMap::new(),
        usage: BTreeMap::new(),
    };
    check.report.findings.extend(opened.loss.clone().map(FileFinding::Loss));
    check.collections()?;
    check.objects()?;
    check.numbered(Family::Sums, "csum")?;
    check.numbered(Family::Attrs, "attrs")?;
    check.numbered(Family::Omap, "omap")?;
    check.files()?;
    let pools: BTreeSet<_> = opened.state.usage.keys().chain(check.usage.keys()).copied().collect();
    for pool in pools {
        let recorded = opened.state.usage.get(&pool).copied().unwrap_or_default();
        let found = check.usage.get(&pool).copied().unwrap_or_default();
        if recorded != found {
            check.report.findings.push(FileFinding::WrongUsage(pool, recorded, found));
        }
    }
    Ok(check.report)
}

impl Check<'_> {
    fn add(&mut self, finding: FileFinding) {
        self.report.findings.push(finding);
    }

    fn collections(&mut self) -> Result<()> {
        let (backend, mut values) = (self.backend, BTreeSet::new());
        backend.db.scan(Family::Collections, &[], &[], |key, _| {
            match keys::split_collection(key) {
                Some((coll, [keys::COLLECTION_RECORD])) => _ = self.collections.insert(coll),
                Some((coll, _)) => _ = values.insert((coll, "value")),
                None => self.add(FileFinding::Undecodable("collections", key.to_vec())),
            }
            Ok(true)
        })?;
        backend.db.scan(Family::Log, &[], &[], |key, _| {
            match keys::split_log(key) {
                Some((coll, _)) => _ = values.insert((coll, "log entry")),
                None => self.add(FileFinding::Undecodable("pglog", key.to_vec())),
            }
            Ok(true)
        })?;
        for (coll, what) in values {
            if !self.collections.contains(&coll) {
                self.add(FileFinding::NoCollection(coll, what));
            }
        }
        Ok(())
    }

    fn objects(&mut self) -> Result<()> {
        let backend = self.backend;
        backend.db.scan(Family::Objects, &[], &[], |key, value| {
            let Some((coll, oid)) = keys::split_onode(key) else {
                self.add(FileFinding::Undecodable("objects", key.to_vec()));
                return Ok(true);
            };
            if !self.collections.contains(&coll) {
                self.add(FileFinding::NoCollection(coll, "object"));
            }
            match Object::decode(&oid, value) {
                Ok(object) => self.object(coll, &oid, object)?,
                Err(_) => self.add(FileFinding::Undecodable("objects", key.to_vec())),
            }
            Ok(true)
        })
    }

    fn object(&mut self, coll: PgId, oid: &ObjectId, mut object: Object) -> Result<()> {
        self.report.objects += 1;
        let usage = self.usage.entry(coll.pool).or_default();
        usage.stored_bytes += object.stored_bytes;
        usage.allocated_bytes += object.allocated_bytes();
        usage.objects += 1;
        if self.numbers.insert(object.number, object.has_omap).is_some() {
            self.add(FileFinding::NumberTwice(object.number));
        }
        if object.number >= self.next_number {
            self.add(FileFinding::NumberTooHigh(object.number));
        }
        if let Err(detail) = load_attrs(self.backend, coll, oid, &mut object)? {
            self.add(FileFinding::BadAttribute(oid.clone(), detail));
        }
        let Some(file) = self.backend.open_existing(coll, &[oid], object.number)? else {
            self.add(FileFinding::NoFile(oid.clone()));
            return Ok(());
        };
        let size = file.metadata().map_or(0, |metadata| metadata.len());
        let size_of_data = object.size;
        if object.load_sums(&self.backend.db, oid, 0, size_of_data).is_err() {
            self.add(FileFinding::Undecodable("csum", keys::id(object.number).to_vec()));
            return Ok(());
        }
        let parts = object.extents(0, size_of_data);
        // A file may end early after the last block that was written.
        let written_to = parts.last().map_or(0, |(at, len)| at + len);
        if size > size_of_data || size < written_to {
            self.add(FileFinding::WrongSize(oid.clone(), size_of_data, size));
        }
        if !self.deep {
            return Ok(());
        }
        for (start, len) in parts {
            let mut at = start;
            while at < start + len {
                let end = (start + len).min(at + STEP_BYTES);
                let mut data = vec![0; (end.next_multiple_of(BLOCK_BYTES) - at) as usize];
                if read_up_to(&file, &mut data, at).is_err() {
                    self.add(FileFinding::Unreadable(oid.clone()));
                    return Ok(());
                }
                for (index, block) in data.chunks(BLOCK_BYTES as usize).enumerate() {
                    let number = at / BLOCK_BYTES + index as u64;
                    if object.sum(number) != Some(crc32c(block)) {
                        self.add(FileFinding::BadData(oid.clone(), number));
                    }
                }
                self.report.verified_bytes += end - at;
                at = end;
            }
        }
        Ok(())
    }

    /// Checks entries whose key begins with a number: it must be the number of an object.
    fn numbered(&mut self, family: Family, name: &'static str) -> Result<()> {
        let backend = self.backend;
        let mut stray = BTreeSet::new();
        backend.db.scan(family, &[], &[], |key, value| {
            let Some((number, _)) = key.split_first_chunk::<8>() else {
                self.add(FileFinding::Undecodable(name, key.to_vec()));
                return Ok(true);
            };
            let number = u64::from_be_bytes(*number);
            let wanted = match self.numbers.get(&number) {
                Some(has_omap) => family != Family::Omap || *has_omap,
                None => false,
            };
            if !wanted {
                stray.insert(number);
            } else if family == Family::Sums && verify_checksum(value).is_none() {
                self.add(FileFinding::Undecodable(name, key.to_vec()));
            }
            Ok(true)
        })?;
        stray.into_iter().for_each(|number| self.add(FileFinding::Stray(name, number)));
        Ok(())
    }

    /// Checks the files in collections: each must belong to an object.
    fn files(&mut self) -> Result<()> {
        let mut stray = Vec::new();
        for coll in &self.collections {
            self.backend.dirs.for_each_file(*coll, |path, name| {
                if !names::number_of(name).is_some_and(|number| self.numbers.contains_key(&number)) {
                    stray.push(FileFinding::StrayFile(path.display().to_string()));
                }
            })?;
        }
        self.report.findings.extend(stray);
        Ok(())
    }
}
