//! What is particular to MemStore: its memory is what it says, and a crash is loud.

use crate::stores::{oid, pattern, pg, txn, write};
use bytes::Bytes;
use nacre_store::{MemStore, MemStoreConfig, ObjectStore, ReadStore, StoreError};
use nacre_types::txn::TxnOp;
use std::process::Command;

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Set in the child process that measures itself.
const LOAD: &str = "NACRE_TEST_MEMORY_LOAD";

/// Each load runs in a process of its own: other tests would blur the figures.
#[test]
fn counted_memory_is_what_the_process_takes() {
    if let Ok(load) = std::env::var(LOAD) {
        return measure(&load);
    }
    for load in ["small objects", "large payloads", "tiny overwrites", "omap", "attrs and log"] {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "mem::counted_memory_is_what_the_process_takes", "--nocapture"])
            .env(LOAD, load)
            .output()
            .unwrap();
        assert!(child.status.success(), "{load}: {}", String::from_utf8_lossy(&child.stderr));
    }
}

fn measure(load: &str) {
    let directory = tempfile::tempdir().unwrap();
    MemStore::mkfs(directory.path()).unwrap();
    let config = MemStoreConfig { device_bytes: 256 << 20, ..MemStoreConfig::default() };
    let (store, _) = MemStore::mount(directory.path(), config).unwrap();
    store.commit(&txn(pg(0), vec![TxnOp::CreateCollection])).unwrap();
    let before = resident_bytes();
    let counted_before = store.used_bytes();
    let mut refused = None;
    // A receive buffer of which each payload is a small slice: keeping slices would pin all of it.
    for i in 0..400_000_u64 {
        let name = format!("object {}", i % 200_000);
        let buffer = |len: usize| Bytes::from(vec![(i % 251) as u8; len]);
        let op = match load {
            "small objects" => {
                TxnOp::Write { oid: oid(&name), offset: 0, data: buffer(65_536).slice(100..4196).into() }
            }
            "large payloads" => write(&name, 0, buffer(1 << 20)),
            "tiny overwrites" => write(&format!("object {}", i % 2_000), (i * 7919) % 100_000, buffer(100)),
            "omap" => TxnOp::OmapSet {
                oid: oid(&format!("object {}", i % 100)),
                entries: vec![(Bytes::from(format!("key {i}")), buffer(4000).slice(0..200))],
            },
            _ => TxnOp::SetAttrs {
                oid: oid(&name),
                attrs: vec![
                    ("_".into(), buffer(4000).slice(0..250)),
                    (format!("user.{}", i % 3), buffer(30)),
                ],
            },
        };
        let log = TxnOp::LogAppend(vec![(crate::stores::version(1, i), buffer(4000).slice(0..150))]);
        let ops = if load == "attrs and log" { vec![op, log] } else { vec![op] };
        if let Err(error) = store.queue_transaction(&txn(pg(0), ops), None) {
            assert!(matches!(error, StoreError::NoSpace { .. }), "{error}");
            refused = Some(i);
            break;
        }
    }
    let counted = store.used_bytes() - counted_before;
    let grown = resident_bytes() - before;
    eprintln!("{load}: counted {counted}, process grew by {grown}, refused {refused:?}");
    assert!(counted > 100 << 20, "{load}: too little for a measurement: {counted}");
    let ratio = grown as f64 / counted as f64;
    assert!((0.75..1.20).contains(&ratio), "{load}: counted {counted}, process grew by {grown}");
}

#[test]
fn writes_are_refused_before_the_host_runs_out() {
    let directory = tempfile::tempdir().unwrap();
    MemStore::mkfs(directory.path()).unwrap();
    let (store, _) = MemStore::mount(directory.path(), MemStoreConfig::default()).unwrap();
    store
        .commit(&txn(pg(0), vec![TxnOp::CreateCollection, write("a", 0, "data"), write("b", 0, "data")]))
        .unwrap();
    assert!(store.health().is_empty() && store.reserve(1 << 20).is_ok());
    store.umount().unwrap();
    // No host has this much: to the store it looks as good as full.
    let config = MemStoreConfig { min_free_bytes: u64::MAX / 2, ..MemStoreConfig::default() };
    let refused = MemStore::mount(directory.path(), config).unwrap_err();
    assert!(matches!(refused, StoreError::NoSpace { .. }), "{refused}");
    // Refused, not lost.
    let (store, report) = MemStore::mount(directory.path(), MemStoreConfig::default()).unwrap();
    assert_eq!((report.loss, report.objects), (None, 2));
    store
        .commit(&txn(pg(0), vec![TxnOp::Remove(oid("a")), TxnOp::Remove(oid("b")), TxnOp::RemoveCollection]))
        .unwrap();
    drop(store);
    let (store, _) = MemStore::mount(directory.path(), config).unwrap();
    let ops = vec![TxnOp::CreateCollection, write("a", 0, "data")];
    let made = store.queue_transaction(&txn(pg(0), ops), None);
    assert!(matches!(made, Err(StoreError::NoSpace { .. })), "{made:?}");
    assert!(matches!(store.reserve(0), Err(StoreError::NoSpace { .. })));
    assert_eq!(store.statfs().unwrap().available_bytes, 0);
    assert!(store.health().iter().any(|(code, _)| code == "MEMSTORE_HOST_MEMORY"));
}

#[test]
fn a_host_low_on_memory_is_told_before_writes_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    MemStore::mkfs(directory.path()).unwrap();
    let available = nacre_store::available_memory().unwrap();
    let config = MemStoreConfig { min_free_bytes: 2 * available, ..MemStoreConfig::default() };
    let (store, _) = MemStore::mount(directory.path(), config).unwrap();
    assert_eq!(store.statfs().unwrap().available_bytes, 0);
    assert!(matches!(store.reserve(0), Err(StoreError::NoSpace { .. })));
    assert!(store.health().iter().any(|(code, _)| code == "MEMSTORE_HOST_MEMORY"));
    // What was ordered before the others heard of it.
    store.commit(&txn(pg(0), vec![TxnOp::CreateCollection, write("ordered", 0, "data")])).unwrap();
    store.commit(&txn(pg(0), vec![write("ordered", 4, "more")])).unwrap();
    assert_eq!(store.read(pg(0), &oid("ordered"), 0, 10).unwrap(), "datamore");
}

#[test]
fn crash_is_reported_with_a_new_incarnation() {
    let directory = tempfile::tempdir().unwrap();
    let config = MemStoreConfig::default();
    let made = MemStore::mkfs(directory.path()).unwrap();
    let (store, report) = MemStore::mount(directory.path(), config).unwrap();
    assert_eq!((report.incarnation, report.loss), (made, None));
    store.commit(&txn(pg(0), vec![TxnOp::CreateCollection, write("a", 0, "x")])).unwrap();
    store.super_set(&[("whoami", Some("5".into()))]).unwrap();
    drop(store);
    let (store, report) = MemStore::mount(directory.path(), config).unwrap();
    assert!(!report.clean && report.loss.is_some() && report.incarnation != made, "{report:?}");
    assert!(store.list_collections().unwrap().is_empty());
    assert_eq!(store.super_get("whoami").unwrap(), Some("5".into()));
    let second = store.incarnation();
    store.umount().unwrap();
    let (store, report) = MemStore::mount(directory.path(), config).unwrap();
    assert_eq!((report.clean, report.loss, report.incarnation), (true, None, second));
    drop(store);
}

#[test]
fn damaged_save_is_a_loss_and_not_served() {
    let directory = tempfile::tempdir().unwrap();
    MemStore::mkfs(directory.path()).unwrap();
    let saved = |flip: Option<usize>| {
        let (store, _) = MemStore::mount(directory.path(), MemStoreConfig::default()).unwrap();
        let ops = vec![TxnOp::CreateCollection, write("a", 0, pattern(1, 10_000))];
        store.commit(&txn(pg(0), ops)).unwrap();
        let incarnation = store.incarnation();
        store.umount().unwrap();
        if let Some(at) = flip {
            let path = directory.path().join("save");
            let mut bytes = std::fs::read(&path).unwrap();
            let at = at % bytes.len();
            bytes[at] ^= 4;
            std::fs::write(&path, bytes).unwrap();
        }
        let (store, report) = MemStore::mount(directory.path(), MemStoreConfig::default()).unwrap();
        let lost = report.loss.is_some();
        assert_eq!(lost, store.list_collections().unwrap().is_empty());
        assert_eq!(lost, store.incarnation() != incarnation);
        store.umount().unwrap();
        lost
    };
    assert!(!saved(None));
    for at in [0, 17, 25, 5_000, usize::MAX / 2] {
        assert!(saved(Some(at)), "flipped bit at {at} was not noticed");
    }
}

#[test]
fn store_in_use_and_foreign_directories_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let mount = || MemStore::mount(directory.path(), MemStoreConfig::default());
    assert!(matches!(mount(), Err(StoreError::WrongStore { .. })));
    MemStore::mkfs(directory.path()).unwrap();
    assert!(matches!(MemStore::mkfs(directory.path()), Err(StoreError::WrongStore { .. })));
    let (store, _) = mount().unwrap();
    assert!(matches!(mount(), Err(StoreError::InUse(_))));
    store.umount().unwrap();
    assert!(mount().is_ok());
}

/// Set in the child process whose store fails: failpoints are the process'.
const FAILPOINT: &str = "NACRE_TEST_FAILPOINT";

#[test]
fn failed_saves_and_loads_are_losses_and_older_saves_stay_unused() {
    if let Ok(failpoint) = std::env::var(FAILPOINT) {
        return lose_by(&failpoint);
    }
    for failpoint in ["memstore::save", "memstore::label", "memstore::load"] {
        let child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "mem::failed_saves_and_loads_are_losses_and_older_saves_stay_unused",
                "--nocapture",
            ])
            .env(FAILPOINT, failpoint)
            .output()
            .unwrap();
        assert!(child.status.success(), "{failpoint}: {}", String::from_utf8_lossy(&child.stderr));
    }
}

fn lose_by(failpoint: &str) {
    let directory = tempfile::tempdir().unwrap();
    MemStore::mkfs(directory.path()).unwrap();
    let mount = || MemStore::mount(directory.path(), MemStoreConfig::default()).unwrap();
    let (store, _) = mount();
    store.commit(&txn(pg(0), vec![TxnOp::CreateCollection, write("a", 0, "old")])).unwrap();
    store.umount().unwrap();
    let (store, before) = mount();
    assert_eq!((before.loss, before.objects), (None, 1));
    store.commit(&txn(pg(0), vec![write("a", 0, "new")])).unwrap();
    fail::cfg(failpoint, "return").unwrap();
    assert_eq!(store.umount().is_err(), failpoint != "memstore::load");
    drop(store);
    let (store, report) = mount();
    fail::remove(failpoint);
    // Neither the old contents nor nothing at all may pass for what was acknowledged.
    assert!(report.loss.is_some() && report.incarnation != before.incarnation, "{report:?}");
    assert!(store.list_collections().unwrap().is_empty());
}
