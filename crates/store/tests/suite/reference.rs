//! A store of a few lines that says what a collection must hold, random transactions for it, and the comparison.

use bytes::Bytes;
use nacre_store::ReadStore;
use nacre_types::ids::{Eversion, Interval, PgId, PoolId};
use nacre_types::object::ObjectId;
use nacre_types::payload::Payload;
use nacre_types::txn::{Transaction, TxnOp};
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Object {
    data: Vec<u8>,
    attrs: BTreeMap<String, Bytes>,
    omap: BTreeMap<Bytes, Bytes>,
    header: Bytes,
}

/// What a collection should hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Model {
    pub(crate) objects: BTreeMap<ObjectId, Object>,
    meta: BTreeMap<String, Bytes>,
    pub(crate) log: BTreeMap<Eversion, Bytes>,
}

impl Model {
    /// Applies `txn`, or returns `None` where it must be refused.
    pub(crate) fn apply(&self, txn: &Transaction) -> Option<Model> {
        let mut next = self.clone();
        let objects = &mut next.objects;
        for op in &txn.ops {
            match op.clone() {
                TxnOp::Touch(oid) | TxnOp::AllocHint { oid, .. } => _ = objects.entry(oid).or_default(),
                TxnOp::Write { oid, offset, data } => {
                    let object = objects.entry(oid).or_default();
                    if !data.is_empty() {
                        let end = offset as usize + data.len();
                        object.data.resize(object.data.len().max(end), 0);
                        object.data[offset as usize..end].copy_from_slice(&data);
                    }
                }
                TxnOp::Zero { oid, offset, len } => {
                    let object = objects.entry(oid).or_default();
                    if len > 0 {
                        let end = (offset + len) as usize;
                        object.data.resize(object.data.len().max(end), 0);
                        object.data[offset as usize..end].fill(0);
                    }
                }
                TxnOp::Truncate { oid, size } => {
                    objects.entry(oid).or_default().data.resize(size as usize, 0)
                }
                TxnOp::Remove(oid) => _ = objects.remove(&oid),
                TxnOp::SetAttrs { oid, attrs } => objects.entry(oid).or_default().attrs.extend(attrs),
                TxnOp::RmAttr { oid, name } => _ = objects.get_mut(&oid).map(|o| o.attrs.remove(&name)),
                TxnOp::RmAttrs(oid) => _ = objects.get_mut(&oid).map(|o| o.attrs.clear()),
                TxnOp::OmapSet { oid, entries } => objects.entry(oid).or_default().omap.extend(entries),
                TxnOp::OmapRm { oid, keys } => {
                    if let Some(object) = objects.get_mut(&oid) {
                        object.omap.retain(|key, _| !keys.contains(key));
                    }
                }
                TxnOp::OmapRmRange { oid, first, last } => {
                    if let Some(object) = objects.get_mut(&oid) {
                        object.omap.retain(|key, _| *key < first || *key >= last);
                    }
                }
                TxnOp::OmapClear(oid) => {
                    if let Some(object) = objects.get_mut(&oid) {
                        object.omap.clear();
                        object.header = Bytes::new();
                    }
                }
                TxnOp::OmapSetHeader { oid, header } => objects.entry(oid).or_default().header = header,
                TxnOp::Clone { from, to } => {
                    let copy = objects.get(&from)?.clone();
                    objects.insert(to, copy);
                }
                TxnOp::CloneRange { from, to, from_offset, len, to_offset } => {
                    let source = &objects.get(&from)?.data;
                    let end = source.len().min((from_offset + len) as usize);
                    let taken = source.get(from_offset as usize..end).unwrap_or_default().to_vec();
                    let target = &mut objects.entry(to).or_default().data;
                    let at = to_offset as usize;
                    if !taken.is_empty() {
                        target.resize(target.len().max(at + taken.len()), 0);
                        target[at..at + taken.len()].copy_from_slice(&taken);
                    }
                }
                TxnOp::Rename { from, to } => {
                    let object = objects.remove(&from)?;
                    objects.insert(to, object);
                }
                TxnOp::MetaSet(values) => next.meta.extend(values),
                TxnOp::MetaRm(names) => next.meta.retain(|name, _| !names.contains(name)),
                TxnOp::LogAppend(entries) => next.log.extend(entries),
                TxnOp::LogTrim(to) => next.log.retain(|version, _| *version > to),
                TxnOp::LogTruncate(to) => next.log.retain(|version, _| *version <= to),
                TxnOp::CreateCollection | TxnOp::RemoveCollection => {}
            }
        }
        Some(next)
    }
}

fn any_oid() -> impl Strategy<Value = ObjectId> {
    (0..6_u32, prop_oneof![4 => Just(None), 1 => (1..3_u64).prop_map(Some)]).prop_map(|(name, snap)| {
        let namespace = if name % 3 == 0 { "ns" } else { "" };
        let oid = ObjectId::new(PoolId(3), namespace, "", &format!("obj{name}"));
        snap.map_or(oid.clone(), |snap| oid.with_snap(snap))
    })
}

fn any_bytes(max: usize) -> impl Strategy<Value = Bytes> {
    proptest::collection::vec(any::<u8>(), 0..max).prop_map(Bytes::from)
}

fn any_key() -> impl Strategy<Value = Bytes> {
    (0..30_u32).prop_map(|key| Bytes::from(format!("key{key}")))
}

fn any_offset() -> impl Strategy<Value = u64> {
    prop_oneof![0..20_000_u64, (0..60_u64).prop_map(|block| block * 4096), 0..600_000_u64]
}

fn any_len() -> impl Strategy<Value = u64> {
    prop_oneof![1..5_000_u64, (1..20_u64).prop_map(|block| block * 4096), 1..300_000_u64]
}

/// Any step on the objects, metadata and log of a collection.
pub(crate) fn any_op() -> impl Strategy<Value = TxnOp> {
    let version = || (1..4_u64, 1..60_u64).prop_map(|(i, v)| Eversion::new(Interval(i), v));
    let name = || (0..4_u32).prop_map(|n| format!("name{n}"));
    let named = || proptest::collection::vec((name(), any_bytes(200)), 1..3);
    prop_oneof![
        8 => (any_oid(), any_offset(), any_len(), any::<u64>()).prop_map(|(oid, offset, len, seed)| {
            let bytes = Bytes::from(contents(seed, len as usize));
            // As it comes from a socket, or from this host.
            let data = if seed % 2 == 0 { Payload::with_checksums(bytes) } else { Payload::from(bytes) };
            TxnOp::Write { oid, offset, data }
        }),
        2 => (any_oid(), any_offset(), any_len()).prop_map(|(oid, offset, len)| TxnOp::Zero { oid, offset, len }),
        2 => (any_oid(), any_offset()).prop_map(|(oid, size)| TxnOp::Truncate { oid, size }),
        1 => any_oid().prop_map(TxnOp::Touch),
        2 => any_oid().prop_map(TxnOp::Remove),
        2 => (any_oid(), named()).prop_map(|(oid, attrs)| TxnOp::SetAttrs { oid, attrs }),
        1 => (any_oid(), name()).prop_map(|(oid, name)| TxnOp::RmAttr { oid, name }),
        1 => any_oid().prop_map(TxnOp::RmAttrs),
        3 => (any_oid(), proptest::collection::vec((any_key(), any_bytes(50)), 1..8))
            .prop_map(|(oid, entries)| TxnOp::OmapSet { oid, entries }),
        1 => (any_oid(), proptest::collection::vec(any_key(), 1..5)).prop_map(|(oid, keys)| TxnOp::OmapRm { oid, keys }),
        1 => (any_oid(), any_key(), any_key()).prop_map(|(oid, first, last)| TxnOp::OmapRmRange { oid, first, last }),
        1 => any_oid().prop_map(TxnOp::OmapClear),
        1 => (any_oid(), any_bytes(50)).prop_map(|(oid, header)| TxnOp::OmapSetHeader { oid, header }),
        3 => (any_oid(), any_oid()).prop_map(|(from, to)| TxnOp::Clone { from, to }),
        2 => (any_oid(), any_oid(), any_offset(), any_len(), any_offset()).prop_map(
            |(from, to, from_offset, len, to_offset)| TxnOp::CloneRange { from, to, from_offset, len, to_offset }
        ),
        1 => (any_oid(), any_oid()).prop_map(|(from, to)| TxnOp::Rename { from, to }),
        1 => named().prop_map(TxnOp::MetaSet),
        1 => proptest::collection::vec(name(), 1..3).prop_map(TxnOp::MetaRm),
        2 => proptest::collection::vec((version(), any_bytes(100)), 1..4).prop_map(TxnOp::LogAppend),
        1 => version().prop_map(TxnOp::LogTrim),
        1 => version().prop_map(TxnOp::LogTruncate),
    ]
}

/// Bytes that differ by seed; of every other one they can be compressed.
pub(crate) fn contents(seed: u64, len: usize) -> Vec<u8> {
    if seed.is_multiple_of(2) { pattern(seed, len) } else { soft(seed, len) }
}

/// Bytes that differ by seed and take about a twentieth of their size compressed.
pub(crate) fn soft(seed: u64, len: usize) -> Vec<u8> {
    let row = pattern(seed, 97);
    let numbered = (0..len.div_ceil(100)).flat_map(|at| {
        let number = [at as u8, (at >> 8) as u8, (at >> 16) as u8];
        row.iter().copied().chain(number).collect::<Vec<u8>>()
    });
    numbered.take(len).collect()
}

/// Bytes that differ at every position and by seed.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(len);
    out
}

/// Compares what is read of an object in parts.
fn parts(store: &dyn ReadStore, coll: PgId, oid: &ObjectId, object: &Object) -> Result<(), String> {
    let text = |error: nacre_store::StoreError| error.to_string();
    let same = |is_same: bool, what: &str| if is_same { Ok(()) } else { Err(format!("{what} of {oid}")) };
    let size = object.data.len();
    let (from, to) = (size / 3, size / 3 + size / 2);
    let middle = store.read(coll, oid, from as u64, (to - from) as u64).map_err(text)?;
    same(middle == object.data[from..to], "a part of the data")?;
    same(store.read(coll, oid, size as u64 + 1, 10).map_err(text)?.is_empty(), "data past the end")?;
    for (offset, len) in store.extents(coll, oid, 0, u64::MAX).map_err(text)? {
        same(offset + len <= size as u64, "an extent past the end")?;
    }
    for name in ["name0", "name3"] {
        let value = store.get_attr(coll, oid, name).map_err(text)?;
        same(value.as_ref() == object.attrs.get(name), "an attribute")?;
    }
    let wanted: Vec<Bytes> =
        ["key1", "absent", "key20"].map(|key| Bytes::from_static(key.as_bytes())).to_vec();
    let found = store.omap_get(coll, oid, &wanted).map_err(text)?;
    let expected = wanted.iter().filter_map(|key| Some((key.clone(), object.omap.get(key)?.clone())));
    same(found.into_iter().eq(expected), "omap entries by key")?;
    let after = Bytes::from_static(b"key12");
    let behind = object.omap.keys().filter(|key| **key > after && key.starts_with(b"key1"));
    let page = store.omap_get_keys(coll, oid, Some(&after), b"key1", 2, usize::MAX).map_err(text)?;
    same(page.more == (behind.clone().count() > 2), "whether a page of omap keys is the last")?;
    same(page.entries.iter().eq(behind.take(2)), "a page of omap keys")
}

/// How the store's collection differs from the model, if it does.
pub(crate) fn difference(store: &dyn ReadStore, coll: PgId, model: &Model) -> Option<String> {
    let differs = |what: String| Err::<(), String>(what);
    let compare = || -> Result<(), String> {
        let text = |error: nacre_store::StoreError| error.to_string();
        let start = ObjectId::min_at_hash(PoolId(i64::MIN), 0);
        let listed = store.list_objects(coll, &start, None, 1000).map_err(text)?.entries;
        if !listed.iter().eq(model.objects.keys()) {
            return differs(format!("objects {listed:?}, wanted {:?}", model.objects.keys()));
        }
        for (oid, object) in &model.objects {
            let size = store.stat(coll, oid).map_err(text)?.size;
            let data = store.read(coll, oid, 0, u64::MAX).map_err(text)?;
            if size != object.data.len() as u64 || data != object.data {
                let at = data.iter().zip(&object.data).position(|(have, want)| have != want);
                return differs(format!("data of {oid} ({size} bytes) differs at {at:?}"));
            }
            if !store.get_attrs(coll, oid).map_err(text)?.into_iter().eq(object.attrs.clone()) {
                return differs(format!("attributes of {oid}"));
            }
            let page = store.omap_iterate(coll, oid, None, b"", usize::MAX, usize::MAX).map_err(text)?;
            if !page.entries.into_iter().eq(object.omap.clone()) {
                return differs(format!("omap of {oid}"));
            }
            if store.omap_get_header(coll, oid).map_err(text)? != object.header {
                return differs(format!("omap header of {oid}"));
            }
            parts(store, coll, oid, object)?;
        }
        if !store.collection_meta(coll).map_err(text)?.into_iter().eq(model.meta.clone()) {
            return differs("metadata".into());
        }
        let log = store.read_log(coll, Eversion::default(), usize::MAX).map_err(text)?;
        if !log.into_iter().eq(model.log.clone()) {
            return differs("log".into());
        }
        Ok(())
    };
    compare().err()
}
