use super::*;
use crate::message::NOTIFY_OBJECT;
use crate::shards::shard_of;
use crate::testing::{TestCluster, create_bucket, index_on, index_parts};
use nacre_index::finish::{ChangeOutcome, ResolvedChange};
use nacre_index::prepare::Prepare;
use nacre_index::record::Pending;

/// A change of `key`, which the gateway of that session prepares now or prepared long ago.
fn change(key: &str, tag: &str, session: &str, begun_ns: u64) -> Prepare {
    let pending = Pending { begun_ns, session: session.to_owned(), ..Pending::default() };
    Prepare { key: key.to_owned(), tag: tag.to_owned(), pending, expect_new: false }
}

#[test]
fn a_change_is_pending_until_it_is_finished() {
    let cluster = TestCluster::new();
    let (connection, peers) = cluster.connect();
    cluster.run_on_tokio(async {
        let parts = index_parts(&connection, &peers);
        let bucket = create_bucket(&parts, "b", "alice").await;
        let shards = Arc::clone(&parts.shards);
        let (index, buckets) = index_on(&parts);
        assert_eq!(buckets.get("b").await.unwrap(), *bucket);
        let (shard, tag) = (shard_of(&bucket, "k"), connection.new_tag());
        let prepare = change("k", &tag, connection.session(), crate::time::now_ns());
        index.preparer.prepare(&bucket, &shard, prepare).await.unwrap();
        assert!(shards.is_pending(&bucket, "k", &tag).await.unwrap());
        // The head decides what a listing shows, and there is none.
        assert!(index.is_empty(&bucket).await.unwrap());
        let outcome = ResolvedChange { key: "k".into(), tag: tag.clone(), outcome: ChangeOutcome::Cancelled };
        index.finisher.enqueue((&bucket.name, &shard), outcome.into()).await;
        assert!(index.finisher.drain().await);
        assert!(!shards.is_pending(&bucket, "k", &tag).await.unwrap());
        index.wait_no_pending(&bucket).await.unwrap();
        // A prepare for another index is refused.
        let other = Arc::new(Bucket { generation: 1, ..(*bucket).clone() });
        let prepare = change("k", &connection.new_tag(), connection.session(), crate::time::now_ns());
        let refused = index.preparer.prepare(&other, &shard_of(&other, "k"), prepare).await;
        assert!(matches!(refused, Err(Error::IndexBusy(_))));
    });
}

#[test]
fn a_listing_recovers_the_changes_of_a_gateway_that_ended() {
    let cluster = TestCluster::new();
    let [first, second] = [0, 1].map(|_| cluster.connect());
    cluster.run_on_tokio(async {
        let ended = index_parts(&first.0, &first.1);
        let bucket = create_bucket(&ended, "b", "alice").await;
        let (shard, tag) = (shard_of(&bucket, "k"), first.0.new_tag());
        let leases = Arc::clone(&ended.leases);
        let prepare = change("k", &tag, first.0.session(), 0);
        index_on(&ended).0.preparer.prepare(&bucket, &shard, prepare).await.unwrap();
        leases.release().await.unwrap();
        second.0.pools.control.write_full(NOTIFY_OBJECT, "").await.unwrap();
        let parts = index_parts(&second.0, &second.1);
        let shards = Arc::clone(&parts.shards);
        let index = index_on(&parts).0;
        index.wait_no_pending(&bucket).await.unwrap();
        assert!(!shards.is_pending(&bucket, "k", &tag).await.unwrap());
        // The other gateway was fenced first.
        let late = first.0.pools.data.write_full("late", "").await;
        assert!(matches!(late, Err(nacre_client::Error::Blocklisted)), "{late:?}");
    });
}

#[test]
fn an_index_moves_to_more_shards() {
    let cluster = TestCluster::new();
    let (connection, peers) = cluster.connect();
    cluster.run_on_tokio(async {
        let parts = index_parts(&connection, &peers);
        let bucket = create_bucket(&parts, "b", "alice").await;
        let (shards, uploads) = (Arc::clone(&parts.shards), Arc::clone(&parts.uploads));
        let upload = crate::uploads::Upload::new(crate::stored::Head::default(), "", false);
        let id = uploads.create(&bucket, "k", upload).await.unwrap();
        let (index, buckets) = index_on(&parts);
        let lock_time = Duration::from_secs(60);
        let settings = ReshardSettings { objects_per_shard: 0, dynamic_shards: 7, lock_time };
        let resharder = Resharder::new(&connection, &buckets, &index, settings);
        assert!(matches!(resharder.request(&bucket, 0).await, Err(Error::Invalid(_))));
        resharder.reshard_bucket("b", 5).await.unwrap();
        assert!(resharder.entries().await.unwrap().is_empty());
        let moved = buckets.get("b").await.unwrap();
        assert_eq!((moved.shards, moved.generation), (5, 1));
        assert_eq!(uploads.ids_of(&moved, "k").await.unwrap(), [id]);
        assert!(
            matches!(shards.usage(&bucket).await, Err(Error::IndexBusy(_))),
            "the old shards are removed"
        );
    });
}
