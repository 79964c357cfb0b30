//! Limits that apply to clients with every right, over real sockets.

use super::cluster::TestCluster;
use bytes::Bytes;
use nacre_client::{Error, IoCtx, Notification, ReadOp, WatchHandler};
use nacre_types::errno::Errno;
use std::sync::Arc;

struct Deaf;

impl WatchHandler for Deaf {
    fn notified(&self, _notification: Notification) {}
    fn lost(&self, _cookie: u64, _error: Error) {}
}

/// Watches the objects one after the other. Returns the cookies of the watches, and the errors of those that were refused.
async fn watch_all(io: &IoCtx, names: &[String]) -> (Vec<u64>, Vec<Errno>) {
    let (mut cookies, mut refused) = (Vec::new(), Vec::new());
    for name in names {
        let (cookie, watching) = io.watch(name, None, Arc::new(Deaf));
        match watching.await {
            Ok(()) => cookies.push(cookie),
            Err(error) => refused.push(error.errno()),
        }
    }
    (cookies, refused)
}

#[test]
fn watches_of_many_objects_are_bounded() {
    let options = [("osd_op_num_shards", "2"), ("osd_max_client_watches", "20"), ("osd_max_watches", "30")];
    let cluster = TestCluster::start(1, &options);
    cluster.create_pool("data", 1, 1, 4);
    let (greedy, modest) = (cluster.io("data"), cluster.io("data"));
    let names: Vec<String> = (0..40).map(|n| format!("o{n}")).collect();
    cluster.block_on(async {
        for name in &names {
            greedy.write_full(name, "x").await.unwrap();
        }
        let (cookies, refused) = watch_all(&greedy, &names).await;
        assert_eq!((cookies.len(), refused), (20, vec![Errno::ENOSPC; 20]));
        // Other clients still have their own limit, up to the limit for all.
        let (others, refused) = watch_all(&modest, &names).await;
        assert_eq!((others.len(), refused), (10, vec![Errno::ENOSPC; 30]));
        // Each watch that ends makes room for another one.
        for cookie in &cookies[..5] {
            greedy.unwatch(*cookie).await.unwrap();
        }
        let (again, refused) = watch_all(&greedy, &names[20..30]).await;
        assert_eq!((again.len(), refused), (5, vec![Errno::ENOSPC; 5]));
        // So does the removal of the object.
        for name in &names {
            greedy.remove(name).await.unwrap();
            greedy.write_full(name, "again").await.unwrap();
        }
        let (all, refused) = watch_all(&modest, &names[..20]).await;
        assert_eq!((all.len(), refused), (20, vec![]));
        assert_eq!(greedy.read("o39", 0, 9).await.unwrap(), "again");
    });
}

#[test]
fn watches_that_a_new_interval_takes_over_count_too() {
    let options = [("osd_max_client_watches", "10")];
    let mut cluster = TestCluster::start(3, &options);
    cluster.create_pool("data", 3, 2, 1);
    let io = cluster.io("data");
    let names: Vec<String> = (0..11).map(|n| format!("o{n}")).collect();
    cluster.block_on(async {
        for name in &names {
            io.write_full(name, "x").await.unwrap();
        }
        let (cookies, refused) = watch_all(&io, &names).await;
        assert_eq!((cookies.len(), refused), (10, vec![Errno::ENOSPC]));
    });
    let map = cluster.map();
    let pg = map.pools[&io.pool()].pg_of(&nacre_types::object::ObjectId::new(io.pool(), "", "", "o0"));
    let primary = map.membership(pg).unwrap().primary;
    cluster.kill_osd(primary);
    cluster.wait("another primary", |c| c.map().membership(pg).is_some_and(|m| m.primary != primary));
    cluster.block_on(async {
        // Its watches reconnect automatically, each before the next request on its object is answered.
        for name in &names[..10] {
            assert_eq!(io.list_watchers(name).await.unwrap().len(), 1, "{name}");
        }
        let (_, watching) = io.watch(&names[10], None, Arc::new(Deaf));
        assert_eq!(watching.await.unwrap_err().errno(), Errno::ENOSPC);
    });
}

#[test]
fn a_giant_omap_comes_in_pages() {
    const ENTRIES: usize = 200;
    const PAGE_BYTES: usize = 64 << 20;
    let cluster = TestCluster::start(1, &[("osd_max_omap_entries_per_request", "100000")]);
    cluster.create_pool("data", 1, 1, 1);
    let (io, other) = (cluster.io("data"), cluster.io("data"));
    let value = Bytes::from(vec![7; 1 << 20]);
    let key = |n: usize| Bytes::from(format!("{n:04}"));
    cluster.block_on(async {
        for first in (0..ENTRIES).step_by(25) {
            let entries = (first..first + 25).map(|n| (key(n), value.clone())).collect();
            io.omap_set("o", entries).await.unwrap();
        }
        let page = io.omap_get_vals("o", "", "", u64::MAX).await.unwrap();
        let bytes: usize = page.entries.iter().map(|(key, value)| key.len() + value.len()).sum();
        assert!(page.more && (PAGE_BYTES..=PAGE_BYTES + (2 << 20)).contains(&bytes), "{bytes}");
        let (mut read, mut after) = (0, Bytes::new());
        loop {
            let page = io.omap_get_vals("o", after, "", u64::MAX).await.unwrap();
            assert!(page.entries.iter().enumerate().all(|(at, (k, v))| *k == key(read + at) && *v == value));
            read += page.entries.len();
            after = key(read - 1);
            if !page.more {
                break;
            }
        }
        assert_eq!(read, ENTRIES);
        // An op without pages is refused as a whole, and so are many pages in one request.
        let keys: Vec<Bytes> = (0..ENTRIES).map(key).collect();
        let all = io.omap_get_vals_by_keys("o", keys).await;
        assert_eq!(all.unwrap_err().errno(), Errno::EOVERFLOW);
        let mut pages = ReadOp::new();
        for _ in 0..1000 {
            pages.omap_get_vals("", "", u64::MAX);
        }
        let refused = io.operate_read("o", pages).await.unwrap().success();
        assert_eq!(refused.unwrap_err().errno(), Errno::EOVERFLOW);
        // The OSD still works.
        other.write_full("p", "x").await.unwrap();
        assert_eq!(other.read("p", 0, 9).await.unwrap(), "x");
    });
}
