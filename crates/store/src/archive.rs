//! Export of collections and objects of a store to a file, and import into another store, for manual rescue.
//!
//! A file is a sequence of frames, each `length u32 le | crc32c u32 le | record` with the record in its versioned
//! envelope. The last record contains the number of objects. An import reads and checks the whole file before it changes anything
//! (docs/format/archive.md).

use crate::ObjectStore;
use crate::error::{Result, StoreError};
use bytes::Bytes;
use nacre_types::crc32c::crc32c;
use nacre_types::encoding::{self, Versioned};
use nacre_types::ids::{Eversion, PgId};
use nacre_types::object::ObjectId;
use nacre_types::txn::{Transaction, TxnOp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};

/// First bytes of a file.
const MAGIC: &[u8; 16] = b"nacre objects 1\n";
/// Maximum size of the data or omap entries of one record, in bytes. A single omap entry may exceed it.
const CHUNK_BYTES: u64 = 1 << 20;
/// Maximum number of log or omap entries in one record, and of objects in one page of a listing.
const PAGE: usize = 1000;
/// Maximum length of a record; a greater length is damage. It is above the size of the largest omap entry or attributes.
const MAX_RECORD_BYTES: u32 = 256 << 20;

/// A record of a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Record {
    /// A whole collection with its values begins. The objects up to the next collection belong to it.
    Collection { pg: PgId, meta: Vec<(String, Bytes)> },
    /// Entries of the collection's log, in order.
    Log(Vec<(Eversion, Bytes)>),
    /// Single objects of a collection that is not exported as a whole follow.
    PartialCollection(PgId),
    /// An object begins.
    Object { oid: ObjectId, size: u64, attrs: Vec<(String, Bytes)>, omap_header: Bytes },
    /// A part of the object's data. Ranges that no part covers read as zeros.
    Data { offset: u64, bytes: Bytes },
    /// Entries of the object's omap.
    Omap(Vec<(Bytes, Bytes)>),
    /// The end of a complete file.
    End { objects: u64 },
}

impl Versioned for Record {
    const NAME: &'static str = "archive record";
}

/// What an export contains.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExportSelection {
    /// Collections; empty means all.
    pub pgs: Vec<PgId>,
    /// Names of single objects, exported without the logs and values of their collections; empty means whole collections.
    pub objects: Vec<String>,
}

/// The amount of data exported or imported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArchiveStats {
    /// Whole collections.
    pub collections: u64,
    /// Objects.
    pub objects: u64,
    /// Bytes of object data.
    pub data_bytes: u64,
}

fn io(what: &'static str) -> impl Fn(std::io::Error) -> StoreError {
    move |error| StoreError::io(what, &error)
}

fn put(out: &mut dyn Write, record: &Record) -> Result<()> {
    let body = encoding::encode(record);
    let length = u32::try_from(body.len()).ok().filter(|length| *length <= MAX_RECORD_BYTES);
    let length = length
        .ok_or_else(|| StoreError::corrupt("archive", "an object's attributes are too large for it"))?;
    for part in [&length.to_le_bytes()[..], &crc32c(&body).to_le_bytes(), &body] {
        out.write_all(part).map_err(io("write an archive"))?;
    }
    Ok(())
}

/// Exports what `selection` names. Fails with [`StoreError::WrongStore`] if an object does not exist, with
/// [`StoreError::NoCollection`] if a collection does not exist, and with [`StoreError::Corrupt`] if something can't be read.
pub fn export(
    store: &dyn ObjectStore,
    selection: &ExportSelection,
    out: &mut dyn Write,
) -> Result<ArchiveStats> {
    out.write_all(MAGIC).map_err(io("write an archive"))?;
    let mut done = ArchiveStats::default();
    let mut missing: BTreeSet<&str> = selection.objects.iter().map(String::as_str).collect();
    let pgs = if selection.pgs.is_empty() { store.list_collections()? } else { selection.pgs.clone() };
    for pg in pgs {
        let whole = selection.objects.is_empty();
        if whole {
            put(out, &Record::Collection { pg, meta: store.collection_meta(pg)? })?;
            done.collections += 1;
            export_log(store, pg, out)?;
        }
        let mut told = whole;
        let mut from = ObjectId::min_at_hash(nacre_types::PoolId(i64::MIN), 0);
        loop {
            let page = store.list_objects(pg, &from, None, PAGE)?;
            for oid in &page.entries {
                if whole || selection.objects.iter().any(|name| name == oid.name()) {
                    missing.remove(oid.name());
                    if !std::mem::replace(&mut told, true) {
                        put(out, &Record::PartialCollection(pg))?;
                    }
                    done.data_bytes += export_object(store, pg, oid, out)?;
                    done.objects += 1;
                }
            }
            match page.entries.last() {
                // The next page begins after the last object of this page.
                Some(last) if page.more => from = just_after(last),
                _ => break,
            }
        }
    }
    if let Some(name) = missing.first() {
        return Err(StoreError::WrongStore {
            path: (*name).to_owned(),
            reason: "no such object here".into(),
        });
    }
    put(out, &Record::End { objects: done.objects })?;
    Ok(done)
}

/// A lower bound for the objects after `oid`. The snapshot is the last part of the sort key.
fn just_after(oid: &ObjectId) -> ObjectId {
    match oid.snap().checked_add(1) {
        Some(snap) => oid.with_snap(snap),
        None => ObjectId::with_hash(
            oid.pool(),
            oid.namespace(),
            oid.locator(),
            &format!("{}\0", oid.name()),
            0,
            oid.hash(),
        ),
    }
}

fn export_log(store: &dyn ObjectStore, pg: PgId, out: &mut dyn Write) -> Result<()> {
    let mut after = Eversion::default();
    loop {
        let entries = store.read_log(pg, after, PAGE)?;
        let Some((last, _)) = entries.last() else { return Ok(()) };
        after = *last;
        put(out, &Record::Log(entries))?;
    }
}

fn export_object(store: &dyn ObjectStore, pg: PgId, oid: &ObjectId, out: &mut dyn Write) -> Result<u64> {
    let stat = store.stat(pg, oid)?;
    let (attrs, omap_header) = (store.get_attrs(pg, oid)?, store.omap_get_header(pg, oid)?);
    put(out, &Record::Object { oid: oid.clone(), size: stat.size, attrs, omap_header })?;
    let mut written = 0;
    for (offset, len) in store.extents(pg, oid, 0, u64::MAX)? {
        let end = offset + len;
        let mut at = offset;
        while at < end {
            let bytes = store.read(pg, oid, at, CHUNK_BYTES.min(end - at))?;
            if bytes.is_empty() {
                break;
            }
            let offset = at;
            at += bytes.len() as u64;
            written += bytes.len() as u64;
            put(out, &Record::Data { offset, bytes })?;
        }
    }
    let mut after: Option<Bytes> = None;
    loop {
        let page = store.omap_iterate(pg, oid, after.as_deref(), b"", PAGE, CHUNK_BYTES as usize)?;
        let Some((last, _)) = page.entries.last() else { break };
        after = Some(last.clone());
        let more = page.more;
        put(out, &Record::Omap(page.entries))?;
        if !more {
            break;
        }
    }
    Ok(written)
}

/// Reads and checks the records of a file.
struct Records<R>(R);

impl<R: Read> Records<R> {
    fn open(mut file: R) -> Result<Records<R>> {
        let mut magic = [0; MAGIC.len()];
        file.read_exact(&mut magic).map_err(cut_short)?;
        if &magic != MAGIC {
            return Err(damaged("it is no archive of objects"));
        }
        Ok(Records(file))
    }

    fn next(&mut self) -> Result<Record> {
        let mut head = [0; 8];
        self.0.read_exact(&mut head).map_err(cut_short)?;
        let (length, crc) = head.split_at(4);
        let number = |bytes: &[u8]| bytes.try_into().map_or(0, u32::from_le_bytes);
        let (length, crc) = (number(length), number(crc));
        if length > MAX_RECORD_BYTES {
            return Err(damaged("a record's length makes no sense"));
        }
        // The buffer grows as data is read, so a wrong length does not allocate a large buffer.
        let mut body = Vec::new();
        let read = self.0.by_ref().take(u64::from(length)).read_to_end(&mut body);
        if read.map_err(io("read an archive"))? < length as usize {
            return Err(damaged("it is cut short"));
        }
        if crc32c(&body) != crc {
            return Err(damaged("a record's checksum differs"));
        }
        Ok(encoding::decode(&body)?)
    }
}

fn damaged(detail: &str) -> StoreError {
    StoreError::corrupt("archive", detail)
}

fn cut_short(error: std::io::Error) -> StoreError {
    match error.kind() {
        ErrorKind::UnexpectedEof => damaged("it is cut short"),
        _ => StoreError::io("read an archive", &error),
    }
}

/// Checks a whole file against the contents of `store`. Whole collections must not exist, collections of single objects must
/// exist, and these objects must not exist unless `replace` is set.
fn check(store: &dyn ObjectStore, file: impl Read, replace: bool) -> Result<()> {
    let mut records = Records::open(file)?;
    let (mut objects, mut at, mut whole, mut in_object) = (0, None, false, false);
    loop {
        match records.next()? {
            Record::Collection { pg, .. } if store.collection_exists(pg)? => {
                return Err(StoreError::WrongStore {
                    path: pg.to_string(),
                    reason: "is in this store already".into(),
                });
            }
            Record::PartialCollection(pg) if !store.collection_exists(pg)? => {
                return Err(StoreError::NoCollection(pg));
            }
            Record::Collection { pg, .. } => (at, whole, in_object) = (Some(pg), true, false),
            Record::PartialCollection(pg) => (at, whole, in_object) = (Some(pg), false, false),
            Record::Log(_) if whole && !in_object => {}
            Record::Object { oid, .. } => {
                let pg = at.ok_or_else(|| damaged("an object of no collection"))?;
                if !whole && !replace && store.exists(pg, &oid)? {
                    return Err(StoreError::WrongStore {
                        path: oid.to_string(),
                        reason: "is in this store already".into(),
                    });
                }
                (objects, in_object) = (objects + 1, true);
            }
            Record::Data { .. } | Record::Omap(_) if in_object => {}
            Record::End { objects: told } if told == objects => return Ok(()),
            _ => return Err(damaged("its records are not in order")),
        }
    }
}

/// Imports a file, which is read twice: nothing is changed if a part of it is damaged or does not fit. With `replace`, existing
/// single objects are replaced. If the import is interrupted, the part already done remains.
pub fn import<R: Read>(
    store: &dyn ObjectStore,
    open: impl Fn() -> std::io::Result<R>,
    replace: bool,
) -> Result<ArchiveStats> {
    let again = || open().map_err(io("open an archive"));
    check(store, again()?, replace)?;
    let mut records = Records::open(again()?)?;
    let mut done = ArchiveStats::default();
    let mut at: Option<(PgId, Option<ObjectId>)> = None;
    loop {
        let record = records.next()?;
        let (pg, ops) = match (record, &mut at) {
            (Record::End { .. }, _) => break,
            (Record::Collection { pg, meta }, _) => {
                at = Some((pg, None));
                done.collections += 1;
                (pg, vec![TxnOp::CreateCollection, TxnOp::MetaSet(meta)])
            }
            (Record::PartialCollection(pg), _) => {
                at = Some((pg, None));
                continue;
            }
            (Record::Log(entries), Some((pg, _))) => (*pg, vec![TxnOp::LogAppend(entries)]),
            (Record::Object { oid, size, attrs, omap_header }, Some((pg, current))) => {
                *current = Some(oid.clone());
                done.objects += 1;
                let mut ops = vec![TxnOp::Remove(oid.clone()), TxnOp::Touch(oid.clone())];
                ops.push(TxnOp::Truncate { oid: oid.clone(), size });
                ops.push(TxnOp::SetAttrs { oid: oid.clone(), attrs });
                if !omap_header.is_empty() {
                    ops.push(TxnOp::OmapSetHeader { oid, header: omap_header });
                }
                (*pg, ops)
            }
            (Record::Data { offset, bytes }, Some((pg, Some(oid)))) => {
                done.data_bytes += bytes.len() as u64;
                (*pg, vec![TxnOp::Write { oid: oid.clone(), offset, data: bytes.into() }])
            }
            (Record::Omap(entries), Some((pg, Some(oid)))) => {
                (*pg, vec![TxnOp::OmapSet { oid: oid.clone(), entries }])
            }
            _ => return Err(damaged("its records are not in order")),
        };
        let mut txn = Transaction::new(pg);
        for op in ops {
            txn.push(op);
        }
        store.queue_transaction(&txn, None)?;
    }
    store.flush()?;
    Ok(done)
}
