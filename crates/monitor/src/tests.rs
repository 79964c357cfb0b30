//! Tests of a damaged embedded store.

use crate::stores::store_dir;
use crate::{LocalStore, mint_generation};
use futures::executor::block_on;
use nacre_common::auth::Keyring;
use nacre_common::config::ConfigBuilder;
use nacre_crush::CrushMap;
use nacre_mapstore::{MapStoreError, Persistence, mkfs};
use nacre_types::ids::{EntityKind, EntityName};
use nacre_types::osdmap::OsdMap;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use uuid::Uuid;

/// Flips a byte in the middle of the used part of the newest log of a map store's database.
fn damage_newest_log(store: &Path) {
    let files = std::fs::read_dir(store.join("db")).unwrap().map(|file| file.unwrap().path());
    let newest = files.filter(|path| path.extension().is_some_and(|e| e == "log")).max().unwrap();
    let mut bytes = std::fs::read(&newest).unwrap();
    let filled = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    bytes[filled / 2] ^= 1;
    std::fs::write(&newest, bytes).unwrap();
}

#[test]
fn a_store_with_a_damaged_log_is_refused_until_a_generation_is_minted() {
    let dir = tempfile::tempdir().unwrap();
    let path = store_dir(dir.path()).unwrap();
    let ids = |store: &Arc<LocalStore>, count: usize| {
        let (mut persistence, _) = block_on(Persistence::open(store.clone(), "a")).unwrap();
        (0..count)
            .flat_map(|_| block_on(persistence.reserve_client_ids()).unwrap())
            .collect::<BTreeSet<u64>>()
    };
    let store = Arc::new(LocalStore::open(&path).unwrap());
    let map = OsdMap::new(Uuid::from_u128(7), 1, CrushMap::new_cluster("osd").unwrap());
    block_on(mkfs(store.as_ref(), &map, &Keyring::new())).unwrap();
    let mut seen = BTreeSet::new();
    for _ in 0..100 {
        // Two transactions each: one takes over the store, one reserves ids.
        seen.extend(ids(&store, 1));
    }
    drop(store);
    damage_newest_log(&path);
    for _ in 0..2 {
        match LocalStore::open(&path).map(|_| ()) {
            Err(MapStoreError::Corrupt(text)) => assert!(text.contains("mint a generation"), "{text}"),
            other => panic!("{other:?}"),
        }
    }
    // An earlier attempt to mint a generation was interrupted.
    let store = Arc::new(LocalStore::open_allowing_loss(&path).unwrap());
    for _ in 0..200 {
        ids(&store, 1);
    }
    drop(store);
    assert!(matches!(LocalStore::open(&path), Err(MapStoreError::Corrupt(_))));
    let config = ConfigBuilder::new(EntityName::new(EntityKind::Mon, "a")).build().unwrap();
    mint_generation(&config, dir.path(), &[]).unwrap();
    for _ in 0..2 {
        let store = Arc::new(LocalStore::open(&path).unwrap());
        let new = ids(&store, 2);
        assert!(seen.is_disjoint(&new));
        seen.extend(new);
    }
}
