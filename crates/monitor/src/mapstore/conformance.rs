//! The conformance suite for implementations of [`MapStore`].
//!
//! Panics at the first violation.

use super::{
    Compare, LeaseId, MAX_TXN_BYTES, MAX_TXN_OPS, MapStore, MapStoreError, Op, Txn, TxnOutcome, prefix_end,
    read_prefix,
};
use std::any::Any;
use std::time::Duration;

/// Maximum wait for an expected event.
const PATIENCE: Duration = Duration::from_secs(20);

type Part = fn(&dyn MapStore);

/// Creates an empty store and everything that must live as long as it.
pub type StoreFactory<'a> = &'a dyn Fn() -> (Box<dyn MapStore>, Box<dyn Any>);

/// Runs the whole suite, each part on its own store.
pub fn run(make: StoreFactory<'_>) {
    let parts: [(&str, Part); 8] = [
        ("puts and deletes", puts_and_deletes),
        ("conditions", conditions),
        ("atomicity", a_failed_condition_changes_nothing),
        ("limits", limits),
        ("paging", paging),
        ("leases", leases),
        ("watches", watches),
        ("prefixes", prefixes),
    ];
    for (name, part) in parts {
        let (store, _keep) = make();
        tracing::debug!(part = name, "map store conformance");
        part(store.as_ref());
    }
}

fn revision_of(outcome: TxnOutcome) -> u64 {
    match outcome {
        TxnOutcome::Committed { revision } => revision,
        TxnOutcome::Conflict { .. } => panic!("transaction without failing conditions was refused"),
    }
}

fn commit(store: &dyn MapStore, txn: Txn) -> u64 {
    revision_of(store.transact(&txn).expect("transaction"))
}

fn value(store: &dyn MapStore, key: &str) -> Option<Vec<u8>> {
    store.get(key.as_bytes()).expect("get").map(|e| e.value)
}

fn puts_and_deletes(store: &dyn MapStore) {
    let first = commit(store, Txn::default().put("a", "1").put("b", "2"));
    let second = commit(store, Txn::default().put("a", "3").delete("b").delete("never"));
    assert_eq!(second, first + 1, "one revision per transaction");
    let a = store.get(b"a").expect("get").expect("a exists");
    assert_eq!((a.create_revision, a.mod_revision, a.value.as_slice()), (first, second, &b"3"[..]));
    assert_eq!(value(store, "b"), None);
    assert_eq!(commit(store, Txn::default().delete("never")), second, "no change, no revision");
}

fn conditions(store: &dyn MapStore) {
    let at = commit(store, Txn::default().put("k", "v"));
    let key = || b"k".to_vec();
    let cases = [
        (Compare::Value { key: key(), value: b"v".to_vec() }, true),
        (Compare::Value { key: key(), value: b"w".to_vec() }, false),
        (Compare::Value { key: b"none".to_vec(), value: Vec::new() }, false),
        (Compare::ModRevision { key: key(), revision: at }, true),
        (Compare::ModRevision { key: key(), revision: at + 1 }, false),
        (Compare::ModRevision { key: b"none".to_vec(), revision: 0 }, true),
        (Compare::Absent { key: key() }, false),
        (Compare::Absent { key: b"none".to_vec() }, true),
    ];
    for (compare, expected) in cases {
        let outcome =
            store.transact(&Txn::default().when(compare.clone()).put("seen", "x")).expect("transact");
        assert_eq!(matches!(outcome, TxnOutcome::Committed { .. }), expected, "{compare:?}");
    }
}

fn a_failed_condition_changes_nothing(store: &dyn MapStore) {
    let at = commit(store, Txn::default().put("k", "v"));
    let txn = Txn::default()
        .when(Compare::Value { key: b"k".to_vec(), value: b"v".to_vec() })
        .when(Compare::Absent { key: b"k".to_vec() })
        .put("k", "changed")
        .put("other", "x");
    assert_eq!(store.transact(&txn), Ok(TxnOutcome::Conflict { revision: at }));
    assert_eq!((value(store, "k"), value(store, "other")), (Some(b"v".to_vec()), None));
}

fn limits(store: &dyn MapStore) {
    let many = |n: usize| (0..n).fold(Txn::default(), |t, i| t.put(format!("k{i:04}"), "v"));
    commit(store, many(MAX_TXN_OPS));
    assert!(matches!(store.transact(&many(MAX_TXN_OPS + 1)), Err(MapStoreError::TooLarge { .. })));
    let sized = |n: usize| Txn::default().put("x", vec![7_u8; n]);
    commit(store, sized(MAX_TXN_BYTES - 1));
    assert!(matches!(store.transact(&sized(MAX_TXN_BYTES)), Err(MapStoreError::TooLarge { .. })));
    assert!(matches!(
        store.transact(&Txn::default().put("a", "1").delete("a")),
        Err(MapStoreError::Malformed(_))
    ));
    assert!(matches!(store.transact(&Txn::default().put("", "1")), Err(MapStoreError::Malformed(_))));
}

fn paging(store: &dyn MapStore) {
    for start in (0..250).step_by(50) {
        let txn = (start..start + 50).fold(Txn::default(), |t, i| t.put(format!("p/{i:04}"), format!("{i}")));
        commit(store, txn);
    }
    commit(store, Txn::default().put("q", "outside").put("o", "outside"));
    let page = store.range(b"p/", b"p0", 100).expect("range");
    assert_eq!((page.entries.len(), page.more), (100, true));
    assert_eq!(page.entries[99].key, b"p/0099");
    let rest = store.range(b"p/0100", b"p0", 1000).expect("range");
    assert_eq!((rest.entries.len(), rest.more), (150, false));
    assert!(rest.entries.is_sorted_by(|a, b| a.key < b.key));
    let big = vec![1_u8; 400_000];
    for i in 0..6 {
        commit(store, Txn::default().put(format!("z/{i}"), big.clone()));
    }
    assert!(store.range(b"z/", b"z0", 100).expect("range").more, "pages are bounded in bytes");
    assert_eq!(read_prefix(store, b"z/").expect("read").len(), 6);
}

fn leases(store: &dyn MapStore) {
    let put = |lease: LeaseId| Txn {
        compares: Vec::new(),
        ops: vec![Op::Put { key: b"held".to_vec(), value: b"x".to_vec(), lease: Some(lease) }],
    };
    assert!(matches!(store.transact(&put(LeaseId(999_999))), Err(MapStoreError::NoLease(_))));
    let lease = store.grant_lease(Duration::from_secs(1)).expect("grant");
    let at = commit(store, put(lease));
    let mut watch = store.watch(b"held", b"hele", at + 1).expect("watch");
    let change = watch.next(PATIENCE).expect("watch").expect("the key goes with its lease");
    assert_eq!((change.key.as_slice(), change.value), (&b"held"[..], None));
    assert_eq!(store.keep_alive(lease), Err(MapStoreError::NoLease(lease.0)));

    let lease = store.grant_lease(Duration::from_secs(3600)).expect("grant");
    commit(store, put(lease));
    store.keep_alive(lease).expect("keep alive");
    commit(store, Txn::default().put("held", "for good"));
    store.revoke_lease(lease).expect("revoke");
    assert_eq!(value(store, "held"), Some(b"for good".to_vec()), "a later put without lease lasts");
}

fn watches(store: &dyn MapStore) {
    let first = commit(store, Txn::default().put("w/1", "a").put("x", "no").put("w/2", "b"));
    commit(store, Txn::default().put("x", "no"));
    commit(store, Txn::default().delete("w/1"));
    let mut watch = store.watch(b"w/", b"w0", first).expect("watch");
    let mut next = || watch.next(PATIENCE).expect("watch").map(|c| (c.key, c.value));
    assert_eq!(next(), Some((b"w/1".to_vec(), Some(b"a".to_vec()))));
    assert_eq!(next(), Some((b"w/2".to_vec(), Some(b"b".to_vec()))));
    assert_eq!(next(), Some((b"w/1".to_vec(), None)));
    let at = commit(store, Txn::default().put("w/3", "c"));
    assert_eq!(next(), Some((b"w/3".to_vec(), Some(b"c".to_vec()))));
    let mut late = store.watch(b"w/", b"w0", at + 1).expect("watch");
    assert_eq!(late.next(Duration::from_millis(1)).expect("watch"), None, "nothing from the past");
}

fn prefixes(store: &dyn MapStore) {
    commit(
        store,
        Txn::default().put("c/", "0").put("c/a", "1").put("c/\u{ff}", "2").put("c0", "no").put("b", "no"),
    );
    assert_eq!(read_prefix(store, b"c/").expect("read").len(), 3);
    assert_eq!(prefix_end(b"c/"), b"c0");
    assert_eq!(prefix_end(&[1, 0xff]), [2]);
}
