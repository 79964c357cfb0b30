//! Random transactions on a store and on a model of a few lines; both must agree at every step, across remounts, and
//! the store's check must find nothing.

use crate::stores::{Fixture, kinds, on_every_store, pattern, pg, version};
use bytes::Bytes;
use nacre_types::ids::{Eversion, PoolId};
use nacre_types::object::ObjectId;
use nacre_types::txn::{Transaction, TxnOp};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default, PartialEq)]
struct Object {
    data: Vec<u8>,
    attrs: BTreeMap<String, Bytes>,
    omap: BTreeMap<Bytes, Bytes>,
    header: Bytes,
}

/// What a collection should hold.
#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    objects: BTreeMap<ObjectId, Object>,
    meta: BTreeMap<String, Bytes>,
    log: BTreeMap<Eversion, Bytes>,
}

impl Model {
    /// Applies `txn`, or returns `None` where it must be refused.
    fn apply(&self, txn: &Transaction) -> Option<Model> {
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

fn any_op() -> impl Strategy<Value = TxnOp> {
    let version = || (1..4_u64, 1..60_u64).prop_map(|(i, v)| version(i, v));
    let name = || (0..4_u32).prop_map(|n| format!("name{n}"));
    let named = || proptest::collection::vec((name(), any_bytes(200)), 1..3);
    prop_oneof![
        8 => (any_oid(), any_offset(), any_len(), any::<u64>()).prop_map(|(oid, offset, len, seed)| TxnOp::Write {
            oid, offset, data: Bytes::from(pattern(seed, len as usize))
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

#[derive(Clone, Debug)]
enum Step {
    Apply(Vec<TxnOp>),
    Flush,
    Remount,
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => proptest::collection::vec(any_op(), 1..5).prop_map(Step::Apply),
        1 => Just(Step::Flush),
        1 => Just(Step::Remount),
    ]
}

fn check(store: &Fixture, model: &Model) {
    let coll = pg(0);
    let start = ObjectId::min_at_hash(PoolId(i64::MIN), 0);
    let listed = store.list_objects(coll, &start, None, 1000).unwrap().entries;
    assert_eq!(listed, model.objects.keys().cloned().collect::<Vec<_>>());
    for (oid, object) in &model.objects {
        assert_eq!(store.stat(coll, oid).unwrap().size, object.data.len() as u64, "size of {oid}");
        let data = store.read(coll, oid, 0, u64::MAX).unwrap();
        if data != object.data {
            let at = data.iter().zip(&object.data).position(|(have, want)| have != want);
            panic!("data of {oid} ({} bytes) differs at {at:?}", data.len());
        }
        let attrs: Vec<_> = object.attrs.clone().into_iter().collect();
        assert_eq!(store.get_attrs(coll, oid).unwrap(), attrs, "attributes of {oid}");
        let omap: Vec<_> = object.omap.clone().into_iter().collect();
        let page = store.omap_iterate(coll, oid, None, b"", usize::MAX, usize::MAX).unwrap();
        assert_eq!(page.entries, omap, "omap of {oid}");
        assert_eq!(store.omap_get_header(coll, oid).unwrap(), object.header, "omap header of {oid}");
    }
    assert_eq!(store.collection_meta(coll).unwrap(), model.meta.clone().into_iter().collect::<Vec<_>>());
    let log = store.read_log(coll, Eversion::default(), usize::MAX).unwrap();
    assert_eq!(log, model.log.clone().into_iter().collect::<Vec<_>>());
    let objects = store.statfs().unwrap().pools.get(&PoolId(3)).map_or(0, |pool| pool.objects);
    assert_eq!(objects, model.objects.len() as u64);
}

fn run(store: &mut Fixture, steps: &[Step]) {
    store.commit(&Transaction { collection: pg(0), ops: vec![TxnOp::CreateCollection] }).unwrap();
    let mut model = Model::default();
    for step in steps {
        match step {
            Step::Apply(ops) => {
                let txn = Transaction { collection: pg(0), ops: ops.clone() };
                match (model.apply(&txn), store.queue_transaction(&txn, None)) {
                    (Some(next), Ok(())) => model = next,
                    (None, Err(_)) => {}
                    (wanted, got) => panic!("model took it: {}, store: {got:?}", wanted.is_some()),
                }
            }
            Step::Flush => store.flush().unwrap(),
            Step::Remount => store.remount(),
        }
        check(store, &model);
    }
    store.remount();
    check(store, &model);
}

/// `PROPTEST_CASES` raises the number of cases for long runs.
#[test]
fn random_transactions_do_what_the_model_does() {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(48);
    for kind in 0..kinds(1).len() {
        let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
        runner
            .run(&proptest::collection::vec(any_step(), 1..25), |steps| {
                let mut store = Fixture::new(kinds(512 << 20).swap_remove(kind));
                run(&mut store, &steps);
                Ok(())
            })
            .unwrap();
    }
}

/// A concurrent reader sees each transaction whole.
#[test]
fn readers_never_see_half_a_transaction() {
    on_every_store(256 << 20, |store| {
        let names: Vec<_> = (0..3).map(|i| ObjectId::new(PoolId(3), "", "", &format!("o{i}"))).collect();
        let write = |round: u64| {
            let data = Bytes::from(vec![round as u8; 100_000]);
            let ops =
                names.iter().map(|oid| TxnOp::Write { oid: oid.clone(), offset: 0, data: data.clone() });
            Transaction { collection: pg(0), ops: ops.collect() }
        };
        let mut first = write(0);
        first.ops.insert(0, TxnOp::CreateCollection);
        store.commit(&first).unwrap();
        let done = std::sync::atomic::AtomicBool::new(false);
        let store = &*store;
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut reads = 0;
                loop {
                    let last = done.load(std::sync::atomic::Ordering::Relaxed);
                    for oid in &names {
                        let data = store.read(pg(0), oid, 0, u64::MAX).unwrap();
                        assert!(data.len() == 100_000 && data.iter().all(|byte| *byte == data[0]));
                        reads += 1;
                    }
                    if last {
                        return reads;
                    }
                }
            });
            for round in 1..200 {
                store.queue_transaction(&write(round), None).unwrap();
            }
            store.flush().unwrap();
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(reader.join().unwrap() > 0);
        });
    });
}
