//! The conformance suite for implementations of [`MapStore`].
//!
//! Panics at the first violation.

use crate::{
    Compare, LeaseId, MAX_TXN_BYTES, MAX_TXN_OPS, MapStore, MapStoreError, Op, Txn, TxnOutcome, prefix_end,
    read_prefix,
};
use std::any::Any;
use std::pin::Pin;
use std::time::Duration;

/// Maximum wait for an expected event.
const PATIENCE: Duration = Duration::from_secs(20);

/// A part of the suite.
type Part = for<'a> fn(&'a dyn MapStore) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// Creates an empty store and everything that must live as long as it.
pub type StoreFactory<'a> = &'a dyn Fn() -> (Box<dyn MapStore>, Box<dyn Any>);

/// Runs the whole suite, each part on its own store.
pub async fn run(make: StoreFactory<'_>) {
    let parts: [(&str, Part); 8] = [
        ("puts and deletes", |store| Box::pin(puts_and_deletes(store))),
        ("conditions", |store| Box::pin(conditions(store))),
        ("atomicity", |store| Box::pin(a_failed_condition_changes_nothing(store))),
        ("limits", |store| Box::pin(limits(store))),
        ("paging", |store| Box::pin(paging(store))),
        ("leases", |store| Box::pin(leases(store))),
        ("watches", |store| Box::pin(watches(store))),
        ("prefixes", |store| Box::pin(prefixes(store))),
    ];
    for (name, part) in parts {
        let (store, _keep) = make();
        tracing::debug!(part = name, "map store conformance");
        part(store.as_ref()).await;
    }
}

fn revision_of(outcome: TxnOutcome) -> u64 {
    match outcome {
        TxnOutcome::Committed { revision } => revision,
        TxnOutcome::Conflict { .. } => panic!("transaction without failing conditions was refused"),
    }
}

async fn commit(store: &dyn MapStore, txn: Txn) -> u64 {
    revision_of(store.transact(&txn).await.expect("transaction"))
}

async fn value(store: &dyn MapStore, key: &str) -> Option<Vec<u8>> {
    store.get(key.as_bytes()).await.expect("get").map(|e| e.value)
}

async fn puts_and_deletes(store: &dyn MapStore) {
    let first = commit(store, Txn::default().put("a", "1").put("b", "2")).await;
    let second = commit(store, Txn::default().put("a", "3").delete("b").delete("never")).await;
    assert_eq!(second, first + 1, "one revision per transaction");
    let a = store.get(b"a").await.expect("get").expect("a exists");
    assert_eq!((a.create_revision, a.mod_revision, a.value.as_slice()), (first, second, &b"3"[..]));
    assert_eq!(value(store, "b").await, None);
    assert_eq!(commit(store, Txn::default().delete("never")).await, second, "no change, no revision");
}

async fn conditions(store: &dyn MapStore) {
    let at = commit(store, Txn::default().put("k", "v")).await;
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
            store.transact(&Txn::default().when(compare.clone()).put("seen", "x")).await.expect("transact");
        assert_eq!(matches!(outcome, TxnOutcome::Committed { .. }), expected, "{compare:?}");
    }
}

async fn a_failed_condition_changes_nothing(store: &dyn MapStore) {
    let at = commit(store, Txn::default().put("k", "v")).await;
    let txn = Txn::default()
        .when(Compare::Value { key: b"k".to_vec(), value: b"v".to_vec() })
        .when(Compare::Absent { key: b"k".to_vec() })
        .put("k", "changed")
        .put("other", "x");
    assert_eq!(store.transact(&txn).await, Ok(TxnOutcome::Conflict { revision: at }));
    assert_eq!((value(store, "k").await, value(store, "other").await), (Some(b"v".to_vec()), None));
}

async fn limits(store: &dyn MapStore) {
    let many = |n: usize| (0..n).fold(Txn::default(), |t, i| t.put(format!("k{i:04}"), "v"));
    commit(store, many(MAX_TXN_OPS)).await;
    assert!(matches!(store.transact(&many(MAX_TXN_OPS + 1)).await, Err(MapStoreError::TooLarge { .. })));
    let sized = |n: usize| Txn::default().put("x", vec![7_u8; n]);
    commit(store, sized(MAX_TXN_BYTES - 1)).await;
    assert!(matches!(store.transact(&sized(MAX_TXN_BYTES)).await, Err(MapStoreError::TooLarge { .. })));
    assert!(matches!(
        store.transact(&Txn::default().put("a", "1").delete("a")).await,
        Err(MapStoreError::Malformed(_))
    ));
    assert!(matches!(store.transact(&Txn::default().put("", "1")).await, Err(MapStoreError::Malformed(_))));
}

async fn paging(store: &dyn MapStore) {
    for start in (0..250).step_by(50) {
        let txn = (start..start + 50).fold(Txn::default(), |t, i| t.put(format!("p/{i:04}"), format!("{i}")));
        commit(store, txn).await;
    }
    commit(store, Txn::default().put("q", "outside").put("o", "outside")).await;
    let page = store.range(b"p/", b"p0", 100, None).await.expect("range");
    assert_eq!((page.entries.len(), page.more), (100, true));
    assert_eq!(page.entries[99].key, b"p/0099");
    let rest = store.range(b"p/0100", b"p0", 1000, None).await.expect("range");
    assert_eq!((rest.entries.len(), rest.more), (150, false));
    assert!(rest.entries.is_sorted_by(|a, b| a.key < b.key));
    let again = store.range(b"p/", b"p0", 100, Some(page.revision)).await.expect("range");
    assert_eq!(again, page, "at the given revision");
    let big = vec![1_u8; 400_000];
    for i in 0..6 {
        commit(store, Txn::default().put(format!("z/{i}"), big.clone())).await;
    }
    assert!(store.range(b"z/", b"z0", 100, None).await.expect("range").more, "pages are bounded in bytes");
    assert_eq!(read_prefix(store, b"z/").await.expect("read").len(), 6);
}

async fn leases(store: &dyn MapStore) {
    let put = |lease: LeaseId| Txn {
        compares: Vec::new(),
        ops: vec![Op::Put { key: b"held".to_vec(), value: b"x".to_vec(), lease: Some(lease) }],
    };
    assert!(matches!(store.transact(&put(LeaseId(999_999))).await, Err(MapStoreError::NoLease(_))));
    let lease = store.grant_lease(Duration::from_secs(1)).await.expect("grant");
    let at = commit(store, put(lease)).await;
    let mut watch = store.watch(b"held", b"hele", at + 1).await.expect("watch");
    let change = watch.next(PATIENCE).await.expect("watch").expect("the key goes with its lease");
    assert_eq!((change.key.as_slice(), change.value), (&b"held"[..], None));
    assert_eq!(store.keep_alive(lease).await, Err(MapStoreError::NoLease(lease.0)));

    let lease = store.grant_lease(Duration::from_secs(3600)).await.expect("grant");
    commit(store, put(lease)).await;
    store.keep_alive(lease).await.expect("keep alive");
    commit(store, Txn::default().put("held", "for good")).await;
    store.revoke_lease(lease).await.expect("revoke");
    assert_eq!(value(store, "held").await, Some(b"for good".to_vec()), "a later put without lease lasts");
}

async fn watches(store: &dyn MapStore) {
    let first = commit(store, Txn::default().put("w/1", "a").put("x", "no").put("w/2", "b")).await;
    commit(store, Txn::default().put("x", "no")).await;
    commit(store, Txn::default().delete("w/1")).await;
    let mut watch = store.watch(b"w/", b"w0", first).await.expect("watch");
    let mut next = async || watch.next(PATIENCE).await.expect("watch").map(|event| (event.key, event.value));
    assert_eq!(next().await, Some((b"w/1".to_vec(), Some(b"a".to_vec()))));
    assert_eq!(next().await, Some((b"w/2".to_vec(), Some(b"b".to_vec()))));
    assert_eq!(next().await, Some((b"w/1".to_vec(), None)));
    let at = commit(store, Txn::default().put("w/3", "c")).await;
    assert_eq!(next().await, Some((b"w/3".to_vec(), Some(b"c".to_vec()))));
    let mut late = store.watch(b"w/", b"w0", at + 1).await.expect("watch");
    assert_eq!(late.next(Duration::from_millis(1)).await.expect("watch"), None, "nothing from the past");
}

async fn prefixes(store: &dyn MapStore) {
    commit(
        store,
        Txn::default().put("c/", "0").put("c/a", "1").put("c/\u{ff}", "2").put("c0", "no").put("b", "no"),
    )
    .await;
    assert_eq!(read_prefix(store, b"c/").await.expect("read").len(), 3);
    assert_eq!(prefix_end(b"c/"), b"c0");
    assert_eq!(prefix_end(&[1, 0xff]), [2]);
}
