//! What every store does, call by call.

use crate::stores::{Collect, oid, on_every_store, pattern, pg, txn, version, write};
use bytes::Bytes;
use nacre_store::{Completion, MAX_OBJECT_BYTES, ObjectStat, StoreError};
use nacre_types::errno::Errno;
use nacre_types::object::{ObjectId, SNAP_HEAD};
use nacre_types::txn::TxnOp;
use std::sync::Arc;

const ROOM: u64 = 256 << 20;

fn create() -> TxnOp {
    TxnOp::CreateCollection
}

fn b(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn pairs(list: &[(&str, &str)]) -> Vec<(Bytes, Bytes)> {
    list.iter().map(|(key, value)| (b(key), b(value))).collect()
}

fn attrs(list: &[(&str, &str)]) -> Vec<(String, Bytes)> {
    list.iter().map(|(name, value)| ((*name).to_owned(), b(value))).collect()
}

#[test]
fn written_data_is_read_at_once_and_after_remount() {
    on_every_store(ROOM, |store| {
        let data = pattern(1, 300_000);
        store.queue_transaction(&txn(pg(0), vec![create(), write("a", 10, data.clone())]), None).unwrap();
        for _ in 0..2 {
            assert_eq!(store.stat(pg(0), &oid("a")).unwrap(), ObjectStat { size: 300_010, has_omap: false });
            assert!(store.read(pg(0), &oid("a"), 10, u64::MAX).unwrap() == data);
            assert_eq!(store.read(pg(0), &oid("a"), 0, 10).unwrap(), vec![0; 10]);
            assert!(store.read(pg(0), &oid("a"), 4_000, 9_000).unwrap() == data[3_990..12_990]);
            assert!(store.read(pg(0), &oid("a"), 300_000, 100).unwrap() == data[299_990..]);
            assert!(store.read(pg(0), &oid("a"), 300_010, 5).unwrap().is_empty());
            assert!(store.read(pg(0), &oid("a"), u64::MAX, 5).unwrap().is_empty());
            store.remount();
        }
    });
}

#[test]
fn overwrites_zero_and_truncate_change_just_their_range() {
    on_every_store(ROOM, |store| {
        let mut flat = pattern(1, 200_000);
        store.commit(&txn(pg(0), vec![create(), write("a", 0, flat.clone())])).unwrap();
        let patches = [(0, 1), (4095, 2), (4096, 4096), (50_001, 70_000), (199_999, 5_000), (131_072, 4096)];
        for (seed, (offset, len)) in patches.into_iter().enumerate() {
            let data = pattern(seed as u64 + 2, len);
            flat.resize(flat.len().max(offset + len), 0);
            flat[offset..offset + len].copy_from_slice(&data);
            store.queue_transaction(&txn(pg(0), vec![write("a", offset as u64, data)]), None).unwrap();
            assert!(store.read(pg(0), &oid("a"), 0, u64::MAX).unwrap() == flat, "after write at {offset}");
        }
        for (offset, len) in [(100, 50), (8_190, 8_200), (0, 4096), (204_000, 3_000)] {
            flat.resize(flat.len().max(offset + len), 0);
            flat[offset..offset + len].fill(0);
            let zero = TxnOp::Zero { oid: oid("a"), offset: offset as u64, len: len as u64 };
            store.queue_transaction(&txn(pg(0), vec![zero]), None).unwrap();
            assert!(store.read(pg(0), &oid("a"), 0, u64::MAX).unwrap() == flat, "after zero at {offset}");
        }
        for size in [150_001, 160_000, 4096, 5, 0, 70_000] {
            flat.resize(size, 0);
            let truncate = TxnOp::Truncate { oid: oid("a"), size: size as u64 };
            store.queue_transaction(&txn(pg(0), vec![truncate]), None).unwrap();
            assert!(store.read(pg(0), &oid("a"), 0, u64::MAX).unwrap() == flat, "after truncate to {size}");
        }
        store.remount();
        assert!(store.read(pg(0), &oid("a"), 0, u64::MAX).unwrap() == flat);
    });
}

#[test]
fn extents_cover_what_was_written_and_no_holes() {
    on_every_store(ROOM, |store| {
        let parts = [(0, 70_000), (1 << 20, 10_000), (4 << 20, 4096)];
        let mut steps = vec![create()];
        steps.extend(parts.iter().map(|(at, len)| write("a", *at, pattern(*at, *len))));
        steps.push(TxnOp::Truncate { oid: oid("a"), size: 8 << 20 });
        store.commit(&txn(pg(0), steps)).unwrap();
        for _ in 0..2 {
            let found = store.extents(pg(0), &oid("a"), 0, u64::MAX).unwrap();
            let covers = |at: u64| found.iter().any(|(start, len)| *start <= at && at < start + len);
            for (at, len) in parts {
                assert!((at..at + len as u64).step_by(100).all(covers), "{at}: {found:?}");
            }
            assert!(!covers(600_000) && !covers(3 << 20) && !covers(6 << 20), "{found:?}");
            assert!(found.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0), "{found:?}");
            assert_eq!(store.extents(pg(0), &oid("a"), 1000, 50).unwrap(), [(1000, 50)]);
            assert_eq!(store.extents(pg(0), &oid("a"), 6 << 20, 50).unwrap(), []);
            assert_eq!(store.extents(pg(0), &oid("a"), 9 << 20, 50).unwrap(), []);
            assert!(matches!(store.extents(pg(0), &oid("b"), 0, 1), Err(StoreError::NotFound(_))));
            store.remount();
        }
    });
}

#[test]
fn absent_things_are_reported_by_kind() {
    on_every_store(ROOM, |store| {
        assert_eq!(store.read(pg(0), &oid("a"), 0, 1).unwrap_err(), StoreError::NoCollection(pg(0)));
        let refused = store.queue_transaction(&txn(pg(0), vec![write("a", 0, "x")]), None);
        assert_eq!(refused.unwrap_err(), StoreError::NoCollection(pg(0)));
        assert!(!store.exists(pg(0), &oid("a")).unwrap() && !store.collection_exists(pg(0)).unwrap());
        store.commit(&txn(pg(0), vec![create()])).unwrap();
        let error = store.stat(pg(0), &oid("a")).unwrap_err();
        assert_eq!((error.errno(), &error), (Errno::ENOENT, &StoreError::NotFound(oid("a"))));
        assert!(
            store.get_attr(pg(0), &oid("a"), "x").is_err()
                && store.omap_get_header(pg(0), &oid("a")).is_err()
        );
        store.commit(&txn(pg(0), vec![TxnOp::Touch(oid("a"))])).unwrap();
        assert_eq!(store.get_attr(pg(0), &oid("a"), "x").unwrap(), None);
        assert!(store.omap_get_header(pg(0), &oid("a")).unwrap().is_empty());
        assert!(store.exists(pg(0), &oid("a")).unwrap());
    });
}

#[test]
fn refused_transactions_change_nothing() {
    on_every_store(ROOM, |store| {
        store.commit(&txn(pg(0), vec![create(), write("a", 0, "old")])).unwrap();
        let before = store.statfs().unwrap().pools;
        let ghost = oid("ghost");
        let failing = [
            (TxnOp::Clone { from: ghost.clone(), to: oid("b") }, Errno::ENOENT),
            (TxnOp::Rename { from: ghost.clone(), to: oid("b") }, Errno::ENOENT),
            (
                TxnOp::CloneRange { from: ghost, to: oid("b"), from_offset: 0, len: 1, to_offset: 0 },
                Errno::ENOENT,
            ),
            (TxnOp::RemoveCollection, Errno::ENOTEMPTY),
            (TxnOp::Truncate { oid: oid("a"), size: MAX_OBJECT_BYTES + 1 }, Errno::EFBIG),
            (write("a", MAX_OBJECT_BYTES, "x"), Errno::EFBIG),
        ];
        for (op, errno) in failing {
            let sink = Arc::new(Collect::default());
            let ops = vec![
                write("a", 0, "new"),
                write("c", 0, pattern(1, 100_000)),
                TxnOp::SetAttrs { oid: oid("a"), attrs: attrs(&[("k", "v")]) },
                TxnOp::OmapSet { oid: oid("a"), entries: pairs(&[("k", "v")]) },
                TxnOp::MetaSet(attrs(&[("m", "v")])),
                TxnOp::LogAppend(vec![(version(1, 1), b("e"))]),
                op.clone(),
            ];
            let completion = Completion { sink: sink.clone(), token: 1 };
            let error = store.queue_transaction(&txn(pg(0), ops), Some(completion)).unwrap_err();
            assert_eq!(error.errno(), errno, "{op:?}");
            assert_eq!(store.read(pg(0), &oid("a"), 0, 10).unwrap(), "old");
            assert!(!store.exists(pg(0), &oid("c")).unwrap());
            assert!(store.get_attrs(pg(0), &oid("a")).unwrap().is_empty());
            assert_eq!(store.omap_get(pg(0), &oid("a"), &[b("k")]).unwrap(), []);
            assert!(store.collection_meta(pg(0)).unwrap().is_empty());
            assert!(store.read_log(pg(0), version(0, 0), 10).unwrap().is_empty());
            store.flush().unwrap();
            assert!(sink.groups.lock().is_empty());
        }
        assert_eq!(store.statfs().unwrap().pools, before);
    });
}

#[test]
fn attributes_are_kept_sorted_and_removable() {
    on_every_store(ROOM, |store| {
        let set = |list: &[(&str, &str)]| TxnOp::SetAttrs { oid: oid("a"), attrs: attrs(list) };
        store.commit(&txn(pg(0), vec![create(), set(&[("z", "1"), ("_", "2"), ("m", "")])])).unwrap();
        store.commit(&txn(pg(0), vec![set(&[("m", "3"), ("b", "4")])])).unwrap();
        let rm = TxnOp::RmAttr { oid: oid("a"), name: "z".into() };
        store.queue_transaction(&txn(pg(0), vec![rm.clone(), rm]), None).unwrap();
        for _ in 0..2 {
            assert_eq!(
                store.get_attrs(pg(0), &oid("a")).unwrap(),
                attrs(&[("_", "2"), ("b", "4"), ("m", "3")])
            );
            assert_eq!(store.get_attr(pg(0), &oid("a"), "m").unwrap(), Some(b("3")));
            assert_eq!(store.get_attr(pg(0), &oid("a"), "z").unwrap(), None);
            store.remount();
        }
        let big = TxnOp::SetAttrs { oid: oid("a"), attrs: vec![("big".into(), pattern(9, 65_536).into())] };
        store.commit(&txn(pg(0), vec![TxnOp::RmAttrs(oid("a")), big])).unwrap();
        store.remount();
        assert_eq!(store.get_attrs(pg(0), &oid("a")).unwrap().len(), 1);
        assert!(store.get_attr(pg(0), &oid("a"), "big").unwrap().unwrap() == pattern(9, 65_536));
        // Removing from an absent object neither fails nor creates it.
        let nothing = vec![TxnOp::RmAttrs(oid("n")), TxnOp::OmapClear(oid("n")), TxnOp::Remove(oid("n"))];
        store.commit(&txn(pg(0), nothing)).unwrap();
        assert!(!store.exists(pg(0), &oid("n")).unwrap());
    });
}

#[test]
fn omap_pages_respect_start_prefix_and_limits() {
    on_every_store(ROOM, |store| {
        let entries: Vec<_> = (0..50).map(|i| (b(&format!("k{i:02}")), b(&format!("value {i}")))).collect();
        let ops = vec![
            create(),
            TxnOp::OmapSet { oid: oid("a"), entries: entries.clone() },
            TxnOp::OmapSet { oid: oid("a"), entries: pairs(&[("j", "x"), ("l", "y"), ("", "empty")]) },
            TxnOp::OmapSetHeader { oid: oid("a"), header: b("head") },
        ];
        // Pages must be right both before the commit and from what is stored.
        store.queue_transaction(&txn(pg(0), ops), None).unwrap();
        for round in 0..3 {
            if round == 1 {
                store.flush().unwrap();
            }
            let page = |after: Option<&str>, prefix: &str, max, bytes| {
                let after = after.map(str::as_bytes);
                store.omap_iterate(pg(0), &oid("a"), after, prefix.as_bytes(), max, bytes).unwrap()
            };
            assert_eq!(page(None, "", 1, 1000).entries, pairs(&[("", "empty")]));
            assert_eq!(page(Some(""), "", 1, 1000).entries, pairs(&[("j", "x")]));
            let all = page(None, "k", 1000, 1 << 20);
            assert!(all.entries == entries && !all.more);
            let some = page(Some("k09"), "k", 5, 1 << 20);
            assert!(some.entries == entries[10..15] && some.more);
            let tight = page(Some("a"), "k", 100, 25);
            assert_eq!((tight.entries.as_slice(), tight.more), (&entries[..2], true));
            assert_eq!(page(None, "k", 100, 1).entries.len(), 1);
            assert!(page(Some("k49"), "k", 10, 1000).entries.is_empty());
            let last = page(Some("k48"), "k", 1, 1000);
            assert_eq!((last.entries.as_slice(), last.more), (&entries[49..], false));
            let keys = store.omap_get_keys(pg(0), &oid("a"), Some(b"k47"), b"", 10, 1000).unwrap();
            assert_eq!((keys.entries, keys.more), (vec![b("k48"), b("k49"), b("l")], false));
            let got = store.omap_get(pg(0), &oid("a"), &[b("k03"), b("nope"), b("l")]).unwrap();
            assert_eq!(got, pairs(&[("k03", "value 3"), ("l", "y")]));
            assert_eq!(store.omap_get_header(pg(0), &oid("a")).unwrap(), "head");
            assert!(store.stat(pg(0), &oid("a")).unwrap().has_omap);
            if round == 1 {
                store.remount();
            }
        }
    });
}

#[test]
fn omap_removals_apply_in_order() {
    on_every_store(ROOM, |store| {
        let set = |list: &[(&str, &str)]| TxnOp::OmapSet { oid: oid("a"), entries: pairs(list) };
        let all = |store: &crate::stores::Fixture| {
            store.omap_iterate(pg(0), &oid("a"), None, b"", 100, 10_000).unwrap().entries
        };
        store
            .commit(&txn(pg(0), vec![create(), set(&[("a", "1"), ("b", "2"), ("c", "3"), ("d", "4")])]))
            .unwrap();
        let range =
            |first: &str, last: &str| TxnOp::OmapRmRange { oid: oid("a"), first: b(first), last: b(last) };
        let rm =
            |keys: &[&str]| TxnOp::OmapRm { oid: oid("a"), keys: keys.iter().map(|key| b(key)).collect() };
        store
            .queue_transaction(
                &txn(pg(0), vec![set(&[("bb", "5")]), range("b", "d"), set(&[("c", "6")])]),
                None,
            )
            .unwrap();
        assert_eq!(all(store), pairs(&[("a", "1"), ("c", "6"), ("d", "4")]));
        store
            .queue_transaction(&txn(pg(0), vec![rm(&["a", "zz"]), set(&[("e", "7")]), range("x", "a")]), None)
            .unwrap();
        assert_eq!(all(store), pairs(&[("c", "6"), ("d", "4"), ("e", "7")]));
        assert_eq!(
            store.omap_get(pg(0), &oid("a"), &[b("a"), b("b"), b("bb"), b("c")]).unwrap(),
            pairs(&[("c", "6")])
        );
        store.remount();
        assert_eq!(all(store), pairs(&[("c", "6"), ("d", "4"), ("e", "7")]));
        store
            .queue_transaction(&txn(pg(0), vec![TxnOp::OmapClear(oid("a")), set(&[("new", "8")])]), None)
            .unwrap();
        assert_eq!(all(store), pairs(&[("new", "8")]));
        assert!(store.omap_get_header(pg(0), &oid("a")).unwrap().is_empty());
        // A removed and recreated object must not see its predecessor's entries.
        store
            .queue_transaction(&txn(pg(0), vec![TxnOp::Remove(oid("a")), TxnOp::Touch(oid("a"))]), None)
            .unwrap();
        assert_eq!(all(store), []);
        store.remount();
        assert_eq!(all(store), []);
    });
}

#[test]
fn clones_are_independent_of_their_source() {
    on_every_store(ROOM, |store| {
        let data = pattern(1, 150_000);
        let head = oid("a");
        let snap = head.with_snap(4);
        let clone = TxnOp::Clone { from: head.clone(), to: snap.clone() };
        let ops = vec![
            create(),
            write("a", 0, data.clone()),
            TxnOp::SetAttrs { oid: head.clone(), attrs: attrs(&[("k", "old")]) },
            TxnOp::OmapSet { oid: head.clone(), entries: pairs(&[("o", "old"), ("p", "old")]) },
            TxnOp::OmapSetHeader { oid: head.clone(), header: b("old") },
            clone,
            write("a", 5_000, "changed"),
            TxnOp::SetAttrs { oid: head.clone(), attrs: attrs(&[("k", "new")]) },
            TxnOp::OmapSet { oid: head.clone(), entries: pairs(&[("o", "new")]) },
            TxnOp::OmapSetHeader { oid: head.clone(), header: b("new") },
        ];
        store.queue_transaction(&txn(pg(0), ops), None).unwrap();
        for round in 0..3 {
            assert!(store.read(pg(0), &snap, 0, u64::MAX).unwrap() == data, "round {round}");
            assert_eq!(store.read(pg(0), &head, 5_000, 7).unwrap(), "changed");
            assert_eq!(store.get_attr(pg(0), &snap, "k").unwrap(), Some(b("old")));
            assert_eq!(store.get_attr(pg(0), &head, "k").unwrap(), Some(b("new")));
            assert_eq!(
                store.omap_get(pg(0), &snap, &[b("o"), b("p")]).unwrap(),
                pairs(&[("o", "old"), ("p", "old")])
            );
            assert_eq!(
                store.omap_get(pg(0), &head, &[b("o"), b("p")]).unwrap(),
                pairs(&[("o", "new"), ("p", "old")])
            );
            assert_eq!(store.omap_get_header(pg(0), &snap).unwrap(), "old");
            store.remount();
        }
        store.commit(&txn(pg(0), vec![TxnOp::Remove(head.clone())])).unwrap();
        store.remount();
        assert!(store.read(pg(0), &snap, 0, u64::MAX).unwrap() == data);
        // A clone of a clone, over an object that has data of its own, then everything goes.
        let ops = vec![
            write("b", 0, pattern(2, 10_000)),
            TxnOp::Clone { from: snap.clone(), to: oid("b") },
            TxnOp::Remove(snap.clone()),
        ];
        store.commit(&txn(pg(0), ops)).unwrap();
        assert!(store.read(pg(0), &oid("b"), 0, u64::MAX).unwrap() == data);
        store.commit(&txn(pg(0), vec![TxnOp::Remove(oid("b"))])).unwrap();
        store.flush().unwrap();
        let statfs = store.statfs().unwrap();
        assert!(statfs.pools.values().all(|pool| (pool.objects, pool.stored_bytes) == (0, 0)), "{statfs:?}");
    });
}

#[test]
fn clone_range_copies_at_any_alignment() {
    on_every_store(ROOM, |store| {
        let (source, mut target) = (pattern(1, 100_000), pattern(2, 60_000));
        let ops = vec![create(), write("s", 0, source.clone()), write("t", 0, target.clone())];
        store.commit(&txn(pg(0), ops)).unwrap();
        for (from, len, to) in
            [(0, 8192, 4096), (4096, 10_000, 40_960), (1, 5_000, 20_002), (90_000, 20_000, 70_000)]
        {
            let taken = &source[from..source.len().min(from + len)];
            target.resize(target.len().max(to + taken.len()), 0);
            target[to..to + taken.len()].copy_from_slice(taken);
            let op = TxnOp::CloneRange {
                from: oid("s"),
                to: oid("t"),
                from_offset: from as u64,
                len: len as u64,
                to_offset: to as u64,
            };
            store.queue_transaction(&txn(pg(0), vec![op]), None).unwrap();
            assert!(store.read(pg(0), &oid("t"), 0, u64::MAX).unwrap() == target, "from {from} to {to}");
        }
        store.remount();
        assert!(store.read(pg(0), &oid("t"), 0, u64::MAX).unwrap() == target);
        assert!(store.read(pg(0), &oid("s"), 0, u64::MAX).unwrap() == source);
    });
}

#[test]
fn rename_moves_everything_and_replaces_the_target() {
    on_every_store(ROOM, |store| {
        let data = pattern(1, 70_000);
        let ops = vec![
            create(),
            write("a", 0, data.clone()),
            TxnOp::OmapSet { oid: oid("a"), entries: pairs(&[("k", "v")]) },
            write("b", 0, pattern(2, 90_000)),
            TxnOp::OmapSet { oid: oid("b"), entries: pairs(&[("gone", "v")]) },
        ];
        store.commit(&txn(pg(0), ops)).unwrap();
        store
            .queue_transaction(&txn(pg(0), vec![TxnOp::Rename { from: oid("a"), to: oid("b") }]), None)
            .unwrap();
        for _ in 0..2 {
            assert!(!store.exists(pg(0), &oid("a")).unwrap());
            assert!(store.read(pg(0), &oid("b"), 0, u64::MAX).unwrap() == data);
            let entries = store.omap_iterate(pg(0), &oid("b"), None, b"", 10, 1000).unwrap().entries;
            assert_eq!(entries, pairs(&[("k", "v")]));
            store.remount();
        }
    });
}

#[test]
fn objects_are_listed_in_hash_order_page_by_page() {
    on_every_store(ROOM, |store| {
        let mut names: Vec<ObjectId> = (0..300).map(|i| oid(&format!("object {i}"))).collect();
        names.push(ObjectId::new(oid("x").pool(), "ns", "", "object 1"));
        names.push(ObjectId::new(oid("x").pool(), "ns", "loc", "object 1"));
        names.push(ObjectId::new(oid("x").pool(), "", "zz", "a"));
        names.push(ObjectId::new(oid("x").pool(), "", "zz", "zz"));
        names.push(ObjectId::new(oid("x").pool(), "", "zz", "zzz"));
        names.push(ObjectId::new(oid("x").pool(), "", "", "zz"));
        names.push(ObjectId::new(oid("x").pool(), "", "", "with\0zero\u{1}and more"));
        names.push(oid("object 7").with_snap(3));
        names.push(ObjectId::new(nacre_types::ids::PoolId(1), "", "", "foreign"));
        names.push(ObjectId::new(nacre_types::ids::PoolId(-7), "", "", "temporary"));
        let mut ops = vec![create()];
        ops.extend(names.iter().cloned().map(TxnOp::Touch));
        store.queue_transaction(&txn(pg(0), ops), None).unwrap();
        store.commit(&txn(pg(1), vec![create(), TxnOp::Touch(oid("elsewhere"))])).unwrap();
        names.sort();
        for _ in 0..2 {
            let start = ObjectId::with_hash(nacre_types::ids::PoolId(i64::MIN), "", "", "", 0, 0);
            let (mut seen, mut from) = (Vec::new(), start.clone());
            loop {
                let page = store.list_objects(pg(0), &from, None, 37).unwrap();
                assert!(page.entries.len() <= 37 && (page.entries.len() == 37 || !page.more));
                let last = page.entries.last().cloned();
                seen.extend(page.entries);
                if !page.more {
                    break;
                }
                // The next page begins with the entry after the last: the same object at the next snapshot id.
                let last = last.unwrap();
                from = last.with_snap(last.snap() + 1);
            }
            assert_eq!(seen, names);
            let (low, high) = (names[50].clone(), names[90].clone());
            let slice = store.list_objects(pg(0), &low, Some(&high), 1000).unwrap();
            assert!(slice.entries == names[50..90] && !slice.more);
            assert!(store.list_objects(pg(0), &high, Some(&low), 10).unwrap().entries.is_empty());
            store.remount();
        }
        // Uncommitted creations and removals show at once.
        let ops = vec![TxnOp::Remove(names[0].clone()), TxnOp::Touch(oid("brand new"))];
        store.queue_transaction(&txn(pg(0), ops), None).unwrap();
        names.remove(0);
        names.push(oid("brand new"));
        names.sort();
        let start = ObjectId::with_hash(nacre_types::ids::PoolId(i64::MIN), "", "", "", 0, 0);
        assert_eq!(store.list_objects(pg(0), &start, None, 1000).unwrap().entries, names);
        assert!(names.iter().all(|oid| oid.snap() == SNAP_HEAD || oid.snap() == 3));
    });
}

#[test]
fn collections_come_and_go_with_all_they_hold() {
    on_every_store(ROOM, |store| {
        for seed in [5, 1, 3] {
            let ops = vec![
                create(),
                create(),
                TxnOp::MetaSet(attrs(&[("info", "1")])),
                TxnOp::LogAppend(vec![(version(1, 1), b("entry"))]),
                write("a", 0, "data"),
            ];
            store.queue_transaction(&txn(pg(seed), ops), None).unwrap();
        }
        assert_eq!(store.list_collections().unwrap(), [pg(1), pg(3), pg(5)]);
        store.remount();
        assert_eq!(store.list_collections().unwrap(), [pg(1), pg(3), pg(5)]);
        let ops = vec![TxnOp::Remove(oid("a")), TxnOp::RemoveCollection];
        store.queue_transaction(&txn(pg(3), ops), None).unwrap();
        assert!(!store.collection_exists(pg(3)).unwrap());
        assert_eq!(store.collection_meta(pg(3)).unwrap_err(), StoreError::NoCollection(pg(3)));
        // A new one must be empty.
        store.queue_transaction(&txn(pg(3), vec![create()]), None).unwrap();
        for _ in 0..2 {
            assert!(store.collection_meta(pg(3)).unwrap().is_empty());
            assert!(store.read_log(pg(3), version(0, 0), 10).unwrap().is_empty());
            assert!(!store.exists(pg(3), &oid("a")).unwrap());
            assert_eq!(store.collection_meta(pg(5)).unwrap(), attrs(&[("info", "1")]));
            store.remount();
        }
        store.commit(&txn(pg(5), vec![TxnOp::Remove(oid("a")), TxnOp::RemoveCollection])).unwrap();
        store.remount();
        assert_eq!(store.list_collections().unwrap(), [pg(1), pg(3)]);
    });
}

#[test]
fn logs_append_trim_and_truncate() {
    on_every_store(ROOM, |store| {
        let entry = |i: u64, v: u64| (version(i, v), b(&format!("entry {i}'{v}")));
        let mut expected: Vec<_> = (1..=40).map(|v| entry(1 + v / 20, v)).collect();
        store.commit(&txn(pg(0), vec![create(), TxnOp::LogAppend(expected[..20].to_vec())])).unwrap();
        store.queue_transaction(&txn(pg(0), vec![TxnOp::LogAppend(expected[20..].to_vec())]), None).unwrap();
        let read = |store: &crate::stores::Fixture, after, max| store.read_log(pg(0), after, max).unwrap();
        assert_eq!(read(store, version(0, 0), 100), expected);
        assert_eq!(read(store, version(1, 10), 5), expected[10..15]);
        store.queue_transaction(&txn(pg(0), vec![TxnOp::LogTrim(version(1, 7))]), None).unwrap();
        store.queue_transaction(&txn(pg(0), vec![TxnOp::LogTruncate(version(2, 30))]), None).unwrap();
        expected.truncate(30);
        expected.drain(..7);
        assert_eq!(read(store, version(0, 0), 100), expected);
        // A truncated version can come again, and an entry can be replaced.
        let again = (version(2, 31), b("again"));
        let replaced = (version(2, 30), b("replaced"));
        store
            .queue_transaction(
                &txn(pg(0), vec![TxnOp::LogAppend(vec![again.clone(), replaced.clone()])]),
                None,
            )
            .unwrap();
        expected.pop();
        expected.extend([replaced, again]);
        for _ in 0..3 {
            assert_eq!(read(store, version(0, 0), 100), expected);
            store.remount();
        }
        store.commit(&txn(pg(0), vec![TxnOp::LogTrim(version(9, 99))])).unwrap();
        assert!(read(store, version(0, 0), 100).is_empty());
    });
}

#[test]
fn metadata_is_set_and_removed() {
    on_every_store(ROOM, |store| {
        let meta = attrs(&[("info", "1"), ("biginfo", "2"), ("x", "")]);
        store.commit(&txn(pg(0), vec![create(), TxnOp::MetaSet(meta)])).unwrap();
        let ops =
            vec![TxnOp::MetaSet(attrs(&[("info", "3")])), TxnOp::MetaRm(vec!["x".into(), "none".into()])];
        store.queue_transaction(&txn(pg(0), ops), None).unwrap();
        for _ in 0..2 {
            assert_eq!(store.collection_meta(pg(0)).unwrap(), attrs(&[("biginfo", "2"), ("info", "3")]));
            store.remount();
        }
    });
}

#[test]
fn own_values_of_the_store_are_durable() {
    on_every_store(ROOM, |store| {
        let set: Vec<(&str, Option<Bytes>)> =
            vec![("whoami", Some(b("2"))), ("map/1", Some(b("m1"))), ("map/2", Some(b("m2")))];
        store.super_set(&set).unwrap();
        store.super_set(&[("map/1", None), ("map/3", Some(b("m3")))]).unwrap();
        let incarnation = store.incarnation();
        for _ in 0..2 {
            assert_eq!(store.super_get("whoami").unwrap(), Some(b("2")));
            assert_eq!(store.super_get("map/1").unwrap(), None);
            assert_eq!(store.super_list("map/").unwrap(), attrs(&[("map/2", "m2"), ("map/3", "m3")]));
            store.remount();
            assert_eq!((store.incarnation(), store.report.incarnation), (incarnation, incarnation));
            assert!(store.report.clean && store.report.loss.is_none());
        }
    });
}

#[test]
fn completions_arrive_once_and_in_order() {
    on_every_store(ROOM, |store| {
        store.commit(&txn(pg(0), vec![create()])).unwrap();
        let sinks = [Arc::new(Collect::default()), Arc::new(Collect::default())];
        for token in 0..500 {
            let data = pattern(token, 4096);
            let completion = Completion { sink: sinks[(token % 2) as usize].clone(), token };
            store
                .queue_transaction(
                    &txn(pg(0), vec![write(&format!("o{}", token % 50), 0, data)]),
                    Some(completion),
                )
                .unwrap();
        }
        for (parity, sink) in sinks.iter().enumerate() {
            let tokens = sink.wait(|tokens| tokens.len() >= 250);
            assert_eq!(tokens, (0..500).filter(|token| token % 2 == parity as u64).collect::<Vec<_>>());
        }
        store.flush().unwrap();
        for token in 450..500 {
            let data = store.read(pg(0), &oid(&format!("o{}", token % 50)), 0, u64::MAX).unwrap();
            assert!(data == pattern(token, 4096));
        }
    });
}

#[test]
fn usage_follows_what_is_stored() {
    on_every_store(ROOM, |store| {
        store
            .commit(&txn(pg(0), vec![create(), write("a", 0, pattern(1, 100_000)), TxnOp::Touch(oid("b"))]))
            .unwrap();
        for _ in 0..2 {
            let statfs = store.statfs().unwrap();
            let pool = statfs.pools[&crate::stores::POOL];
            assert_eq!((pool.objects, pool.stored_bytes), (2, 100_000));
            assert!(pool.allocated_bytes >= 100_000 && pool.allocated_bytes < 110_000, "{pool:?}");
            assert!(statfs.total_bytes > 0 && statfs.available_bytes < statfs.total_bytes);
            store.remount();
        }
        store
            .commit(&txn(pg(0), vec![TxnOp::Truncate { oid: oid("a"), size: 10 }, TxnOp::Remove(oid("b"))]))
            .unwrap();
        let pool = store.statfs().unwrap().pools[&crate::stores::POOL];
        assert_eq!((pool.objects, pool.stored_bytes), (1, 10));
        assert!(pool.allocated_bytes <= 4096, "{pool:?}");
    });
}

#[test]
fn unmounted_stores_refuse_everything() {
    for kind in crate::stores::kinds(ROOM) {
        let directory = tempfile::tempdir().unwrap();
        kind.mkfs(directory.path());
        let (store, _) = kind.mount(directory.path());
        store.commit(&txn(pg(0), vec![create()])).unwrap();
        store.umount().unwrap();
        assert_eq!(store.umount().unwrap_err(), StoreError::NotMounted);
        assert_eq!(
            store.queue_transaction(&txn(pg(0), vec![write("a", 0, "x")]), None).unwrap_err(),
            StoreError::NotMounted
        );
        assert_eq!(store.stat(pg(0), &oid("a")).unwrap_err(), StoreError::NotMounted);
        assert_eq!(store.super_set(&[("a", None)]).unwrap_err(), StoreError::NotMounted);
        assert!(store.list_collections().is_err() && store.flush().is_err() && store.statfs().is_err());
        // The directory is free again at once, although the handle still exists.
        let (again, report) = kind.mount(directory.path());
        assert!(report.clean);
        again.umount().unwrap();
    }
}
