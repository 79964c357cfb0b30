//! A full store refuses writes, damages nothing, and takes deletes.

use crate::stores::{oid, on_every_store, pattern, pg, txn, version, write};
use bytes::Bytes;
use nacre_store::StoreError;
use nacre_types::txn::TxnOp;

const ROOM: u64 = 48 << 20;

/// Writes until nothing more fits; returns the names that were taken.
fn fill(store: &crate::stores::Fixture, round: u64) -> Vec<String> {
    let mut taken = Vec::new();
    let mut len = 1 << 20;
    while len >= 4096 {
        let name = format!("fill {round} {}", taken.len());
        let seed = name.len() as u64 + taken.len() as u64;
        let ops = vec![
            write(&name, 0, pattern(seed, len)),
            TxnOp::LogAppend(vec![(version(round, taken.len() as u64), Bytes::from_static(b"entry"))]),
        ];
        match store.queue_transaction(&txn(pg(0), ops), None) {
            Ok(()) => taken.push(name),
            Err(StoreError::NoSpace { .. }) => {
                // Space given back is usable once its commit is durable.
                store.flush().unwrap();
                len /= 2;
            }
            Err(error) => panic!("{error}"),
        }
        assert!(taken.len() < 100_000, "the store never fills");
    }
    taken
}

#[test]
fn full_store_refuses_writes_and_takes_deletes() {
    on_every_store(ROOM, |store| {
        store.commit(&txn(pg(0), vec![TxnOp::CreateCollection])).unwrap();
        store.commit(&txn(pg(0), vec![write("keep", 0, pattern(77, 1 << 20))])).unwrap();
        let mut capacity = 0;
        for round in 1..4 {
            let names = fill(store, round);
            let stored = store.statfs().unwrap().stored_bytes;
            assert!(stored > ROOM * 3 / 4, "full at {stored} bytes");
            // What was given back comes back: later rounds fit as much, within what logs and metadata take.
            capacity = capacity.max(stored);
            assert!(stored > capacity - (2 << 20), "{stored} of {capacity} in round {round}");
            let big = store.queue_transaction(&txn(pg(0), vec![write("keep", 0, pattern(1, 1 << 20))]), None);
            // What members can't do without, with the info of an object that has many watchers.
            let info = vec![("_".to_owned(), Bytes::from(vec![7; 32 << 10]))];
            let kept = || oid("keep");
            let ops = vec![
                TxnOp::Touch(kept()),
                TxnOp::SetAttrs { oid: kept(), attrs: info },
                TxnOp::LogAppend(vec![(version(round, 1 << 20), Bytes::from_static(b"entry"))]),
            ];
            store.commit(&txn(pg(0), ops)).unwrap();
            assert!(matches!(big, Err(StoreError::NoSpace { .. })), "{big:?}");
            assert!(matches!(store.reserve(1 << 20), Err(StoreError::NoSpace { .. })));
            assert!(store.read(pg(0), &oid("keep"), 0, u64::MAX).unwrap() == pattern(77, 1 << 20));
            if round == 2 {
                store.remount();
            }
            for (at, name) in names.iter().enumerate() {
                let data = store.read(pg(0), &oid(name), 0, u64::MAX).unwrap();
                assert!(data == pattern(name.len() as u64 + at as u64, data.len()), "{name}");
                let ops = vec![
                    TxnOp::Remove(oid(name)),
                    TxnOp::LogAppend(vec![(
                        version(round, 1_000_000 + at as u64),
                        Bytes::from_static(b"delete"),
                    )]),
                    TxnOp::MetaSet(vec![("info".into(), Bytes::from_static(b"updated"))]),
                ];
                store.queue_transaction(&txn(pg(0), ops), None).unwrap();
            }
            store.commit(&txn(pg(0), vec![TxnOp::LogTrim(version(round, u64::MAX))])).unwrap();
            let reservation = store.reserve(1 << 20).unwrap();
            assert_eq!(reservation.bytes(), 1 << 20);
        }
    });
}

#[test]
fn reservations_count_until_dropped() {
    on_every_store(ROOM, |store| {
        let mut held = Vec::new();
        while let Ok(reservation) = store.reserve(1 << 20) {
            held.push(reservation);
        }
        assert!(held.len() > 30 && held.len() < 49, "{} MiB of {ROOM}", held.len());
        held.pop();
        held.push(store.reserve(1 << 20).unwrap());
        drop(held);
        assert!(store.reserve(30 << 20).is_ok());
    });
}
