//! A toy store: the state that the OSD sees at once, and the state that a crash leaves.

use crate::api::{ObjectPiece, PieceCursor};
use bytes::Bytes;
use nacre_types::ids::{Eversion, Interval};
use nacre_types::object::ObjectId;
use nacre_types::txn::{Transaction, TxnOp};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The attribute with an object's version.
pub const VERSION_ATTR: &str = "v";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Object {
    pub data: Vec<u8>,
    pub attrs: BTreeMap<String, Bytes>,
    pub omap: BTreeMap<Bytes, Bytes>,
    pub header: Bytes,
}

impl Object {
    pub fn version(&self) -> Eversion {
        self.attrs.get(VERSION_ATTR).map_or(Eversion::default(), |v| decode_version(v))
    }
}

pub fn encode_version(version: Eversion) -> Bytes {
    let bytes = [version.interval.0.to_le_bytes(), version.version.to_le_bytes()].concat();
    bytes.into()
}

fn decode_version(bytes: &[u8]) -> Eversion {
    let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    Eversion::new(Interval(number(0)), number(8))
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    pub exists: bool,
    pub objects: BTreeMap<ObjectId, Object>,
    pub meta: BTreeMap<String, Bytes>,
    pub log: BTreeMap<Eversion, Bytes>,
}

impl Contents {
    fn apply(&mut self, txn: &Transaction) {
        for op in &txn.ops {
            if !matches!(op, TxnOp::CreateCollection) {
                assert!(self.exists, "{op:?} on an absent collection");
            }
            self.step(op);
        }
    }

    fn object(&mut self, oid: &ObjectId) -> &mut Object {
        self.objects.entry(oid.clone()).or_default()
    }

    fn step(&mut self, op: &TxnOp) {
        match op {
            TxnOp::CreateCollection => self.exists = true,
            TxnOp::Touch(oid) => drop(self.object(oid)),
            TxnOp::Write { oid, offset, data } => {
                let (object, from) = (self.object(oid), *offset as usize);
                let to = from + data.len();
                if object.data.len() < to {
                    object.data.resize(to, 0);
                }
                object.data[from..to].copy_from_slice(data);
            }
            TxnOp::Truncate { oid, size } => self.object(oid).data.resize(*size as usize, 0),
            TxnOp::Remove(oid) => drop(self.objects.remove(oid)),
            TxnOp::SetAttrs { oid, attrs } => self.object(oid).attrs.extend(attrs.iter().cloned()),
            TxnOp::OmapSet { oid, entries } => self.object(oid).omap.extend(entries.iter().cloned()),
            TxnOp::OmapSetHeader { oid, header } => self.object(oid).header = header.clone(),
            TxnOp::Rename { from, to } => {
                let object = self.objects.remove(from).unwrap_or_else(|| panic!("rename of absent {from}"));
                self.objects.insert(to.clone(), object);
            }
            TxnOp::MetaSet(pairs) => self.meta.extend(pairs.iter().cloned()),
            TxnOp::MetaRm(keys) => keys.iter().for_each(|key| drop(self.meta.remove(key))),
            TxnOp::LogAppend(entries) => {
                for (version, entry) in entries {
                    let last = self.log.last_key_value().map(|(v, _)| v.version);
                    assert!(last.is_none_or(|last| last + 1 == version.version), "log gap at {version}");
                    self.log.insert(*version, entry.clone());
                }
            }
            TxnOp::LogTrim(to) => self.log.retain(|version, _| version > to),
            TxnOp::LogTruncate(to) => self.log.retain(|version, _| version <= to),
            other => panic!("not used by a PG or by the toy executor: {other:?}"),
        }
    }

    /// Executes [`crate::Command::ReadObject`] with small pieces, so that a few bytes make many of them.
    pub fn read(&self, object: &ObjectId, cursor: &PieceCursor, max_bytes: usize) -> Option<ObjectPiece> {
        let found = self.objects.get(object)?;
        let from = cursor.offset as usize;
        let first = *cursor == PieceCursor::default();
        let mut piece = ObjectPiece {
            start: cursor.clone(),
            version: found.version(),
            size: found.data.len() as u64,
            data: Bytes::new(),
            attrs: Vec::new(),
            omap_header: Bytes::new(),
            omap: Vec::new(),
            next: None,
        };
        if first {
            piece.attrs = found.attrs.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
            piece.omap_header = found.header.clone();
        }
        if cursor.omap_after.is_none() && from < found.data.len() {
            let to = found.data.len().min(from + max_bytes);
            piece.data = Bytes::copy_from_slice(&found.data[from..to]);
            if to < found.data.len() || !found.omap.is_empty() {
                let omap_after = (to == found.data.len()).then(Bytes::new);
                piece.next = Some(PieceCursor { offset: to as u64, omap_after });
            }
            return Some(piece);
        }
        let after = cursor.omap_after.clone().unwrap_or_default();
        let mut rest = found.omap.iter().filter(|(key, _)| **key > after);
        piece.omap = rest.by_ref().take(2).map(|(k, v)| (k.clone(), v.clone())).collect();
        if rest.next().is_some() {
            let omap_after = piece.omap.last().map(|(key, _)| key.clone());
            piece.next = Some(PieceCursor { offset: found.data.len() as u64, omap_after });
        }
        Some(piece)
    }

    pub fn list(&self, from: Option<&ObjectId>, max: usize) -> (Vec<(ObjectId, Eversion)>, bool) {
        let mut rest = self.objects.iter().filter(|(oid, _)| from.is_none_or(|from| *oid >= from));
        let listed = rest.by_ref().take(max).map(|(oid, object)| (oid.clone(), object.version())).collect();
        (listed, rest.next().is_none())
    }
}

#[derive(Clone, Debug, Default)]
pub struct Store {
    pub seen: Contents,
    pub durable: Contents,
    pub unflushed: VecDeque<(u64, Transaction)>,
    /// Objects that can't be read.
    pub damaged: BTreeSet<ObjectId>,
}

impl Store {
    pub fn queue(&mut self, id: u64, txn: Transaction) {
        self.seen.apply(&txn);
        self.unflushed.push_back((id, txn));
    }

    /// The durable records of a copy; `None` if there is no copy.
    pub fn copy(&self) -> Option<crate::pg_info::LoadedCopy> {
        let meta: Vec<_> = self.durable.meta.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
        crate::pg_info::load(&meta).ok()
    }

    /// Makes the oldest `count` transactions durable. Returns the last one's id.
    pub fn flush(&mut self, count: usize) -> Option<u64> {
        let mut last = None;
        for (id, txn) in self.unflushed.drain(..count.min(self.unflushed.len())) {
            self.durable.apply(&txn);
            last = Some(id);
        }
        last
    }

    /// A power failure that `surviving` of the unflushed transactions survive.
    pub fn crash(&mut self, surviving: usize) {
        self.flush(surviving);
        self.unflushed.clear();
        self.seen = self.durable.clone();
    }
}
