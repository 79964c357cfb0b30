//! Objects go from any store to any other by a file; a damaged file changes nothing.

use crate::stores::{Fixture, kinds, oid, pattern, pg, txn, version, write};
use bytes::Bytes;
use nacre_store::archive::{ArchiveStats, ExportSelection, export, import};
use nacre_store::{ObjectStore, StoreError};
use nacre_types::txn::TxnOp;

/// Two collections: data with holes, attributes, omaps with headers, logs and values.
fn fill(store: &dyn ObjectStore) {
    for collection in 0..2 {
        let at = pg(collection);
        let meta = vec![("info".to_owned(), Bytes::from(vec![collection as u8; 40]))];
        let log = (1..=1500).map(|number| (version(2, number), pattern(number, 20).into())).collect();
        let ops = vec![TxnOp::CreateCollection, TxnOp::MetaSet(meta), TxnOp::LogAppend(log)];
        store.commit(&txn(at, ops)).unwrap();
        for number in 0..30_u64 {
            let name = format!("object {number}");
            let mut ops = vec![
                write(&name, number * 10_000, pattern(number, 5_000)),
                TxnOp::SetAttrs { oid: oid(&name), attrs: vec![("_".into(), pattern(number, 70).into())] },
            ];
            if number % 3 == 0 {
                let entries =
                    (0..50).map(|key| (format!("key {key}").into(), pattern(key, 9).into())).collect();
                ops.push(TxnOp::OmapSet { oid: oid(&name), entries });
                ops.push(TxnOp::OmapSetHeader { oid: oid(&name), header: "header".into() });
            }
            store.commit(&txn(at, ops)).unwrap();
        }
        store.commit(&txn(at, vec![write("large", 0, pattern(9, 3_000_000))])).unwrap();
        store.commit(&txn(at, vec![TxnOp::Touch(oid("empty"))])).unwrap();
    }
}

fn assert_same(a: &dyn ObjectStore, b: &dyn ObjectStore) {
    assert_eq!(a.list_collections().unwrap(), b.list_collections().unwrap());
    for at in a.list_collections().unwrap() {
        assert_eq!(a.collection_meta(at).unwrap(), b.collection_meta(at).unwrap());
        let log = |store: &dyn ObjectStore| store.read_log(at, Default::default(), usize::MAX).unwrap();
        assert!(log(a) == log(b));
        let first = nacre_types::object::ObjectId::min_at_hash(at.pool, 0);
        let list = |store: &dyn ObjectStore| store.list_objects(at, &first, None, 10_000).unwrap().entries;
        assert_eq!(list(a), list(b));
        for oid in list(a) {
            let data = |store: &dyn ObjectStore| store.read(at, &oid, 0, u64::MAX).unwrap();
            assert!(data(a) == data(b), "{oid}");
            assert_eq!(a.get_attrs(at, &oid).unwrap(), b.get_attrs(at, &oid).unwrap());
            assert_eq!(a.omap_get_header(at, &oid).unwrap(), b.omap_get_header(at, &oid).unwrap());
            let omap = |store: &dyn ObjectStore| {
                store.omap_iterate(at, &oid, None, b"", usize::MAX, usize::MAX).unwrap().entries
            };
            assert_eq!(omap(a), omap(b));
        }
    }
}

fn archive(store: &dyn ObjectStore, selection: &ExportSelection) -> (Vec<u8>, ArchiveStats) {
    let mut file = Vec::new();
    let done = export(store, selection, &mut file).unwrap();
    (file, done)
}

#[test]
fn whole_stores_go_from_any_kind_to_any() {
    for from in kinds(64 << 20) {
        let source = Fixture::new(from);
        fill(&*source);
        let (file, exported) = archive(&*source, &ExportSelection::default());
        assert_eq!((exported.collections, exported.objects), (2, 64));
        for to in kinds(64 << 20) {
            let target = Fixture::new(to);
            let imported = import(&*target, || Ok(&file[..]), false).unwrap();
            assert_eq!(imported, exported);
            assert_same(&*source, &*target);
            let again = import(&*target, || Ok(&file[..]), true).unwrap_err();
            assert!(matches!(again, StoreError::WrongStore { .. }), "{again}");
        }
    }
}

#[test]
fn single_objects_replace_only_when_told() {
    for kind in kinds(64 << 20) {
        let store = Fixture::new(kind);
        fill(&*store);
        let objects = vec!["object 3".to_owned(), "large".to_owned()];
        let selection = ExportSelection { pgs: vec![pg(0)], objects };
        let (file, exported) = archive(&*store, &selection);
        assert_eq!((exported.collections, exported.objects), (0, 2));
        store
            .commit(&txn(pg(0), vec![write("large", 0, "changed"), TxnOp::Remove(oid("object 3"))]))
            .unwrap();
        assert!(import(&*store, || Ok(&file[..]), false).is_err());
        assert!(!store.exists(pg(0), &oid("object 3")).unwrap(), "nothing is changed by a refused import");
        import(&*store, || Ok(&file[..]), true).unwrap();
        assert!(store.read(pg(0), &oid("large"), 0, u64::MAX).unwrap() == pattern(9, 3_000_000));
        assert!(store.exists(pg(0), &oid("object 3")).unwrap());
        // An object of one PG can be taken to a store that has no other.
        let only = ExportSelection { pgs: Vec::new(), objects: vec!["only".into()] };
        store.commit(&txn(pg(1), vec![write("only", 0, "here")])).unwrap();
        let (file, _) = archive(&*store, &only);
        store.commit(&txn(pg(2), vec![TxnOp::CreateCollection])).unwrap();
        let mut rest = vec![TxnOp::Remove(oid("only"))];
        rest.extend((0..30).map(|number| TxnOp::Remove(oid(&format!("object {number}")))));
        rest.extend([TxnOp::Remove(oid("large")), TxnOp::Remove(oid("empty"))]);
        store.commit(&txn(pg(0), [&rest[..], &[TxnOp::RemoveCollection]].concat())).unwrap();
        store.commit(&txn(pg(1), vec![TxnOp::Remove(oid("only"))])).unwrap();
        import(&*store, || Ok(&file[..]), false).unwrap();
        assert_eq!(store.read(pg(1), &oid("only"), 0, 10).unwrap(), "here");
        let unknown = ExportSelection { pgs: Vec::new(), objects: vec!["nonesuch".into()] };
        assert!(export(&*store, &unknown, &mut Vec::new()).is_err());
        let unknown = ExportSelection { pgs: vec![pg(77)], objects: Vec::new() };
        assert!(matches!(export(&*store, &unknown, &mut Vec::new()), Err(StoreError::NoCollection(_))));
    }
}

#[test]
fn damaged_files_change_nothing() {
    let source = Fixture::new(kinds(64 << 20).swap_remove(0));
    fill(&*source);
    let (file, _) = archive(&*source, &ExportSelection::default());
    let target = Fixture::new(kinds(64 << 20).swap_remove(0));
    let refused = |bytes: &[u8]| {
        let error = import(&*target, || Ok(bytes), false).unwrap_err();
        assert!(matches!(error, StoreError::Corrupt { .. } | StoreError::Decode(_)), "{error}");
        assert!(target.list_collections().unwrap().is_empty());
    };
    for cut in [0, 10, 16, 20, file.len() / 2, file.len() - 1] {
        refused(&file[..cut]);
    }
    for at in (0..file.len()).step_by(file.len() / 40) {
        let mut flipped = file.clone();
        flipped[at] ^= 0x20;
        refused(&flipped);
    }
    let mut huge = file[..16].to_vec();
    huge.extend_from_slice(&[0xff; 8]);
    refused(&huge);
}
