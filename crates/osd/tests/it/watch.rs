//! Watches and notifies between real clients and OSDs, with failover and unresponsive watchers (rule R9).

use super::cluster::TestCluster;
use bytes::Bytes;
use nacre_client::{Error, IoCtx, Notification, WatchHandler};
use nacre_types::errno::Errno;
use nacre_types::ids::OsdId;
use nacre_types::object::ObjectId;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// Records all notifications, and acknowledges them with `answer` if it is set.
struct Watcher {
    io: IoCtx,
    object: &'static str,
    answer: Option<&'static str>,
    heard: Mutex<Vec<Notification>>,
    lost: Mutex<Vec<(u64, Errno)>>,
}

impl Watcher {
    fn new(io: &IoCtx, object: &'static str, answer: Option<&'static str>) -> Arc<Watcher> {
        let (heard, lost) = (Mutex::default(), Mutex::default());
        Arc::new(Watcher { io: io.clone(), object, answer, heard, lost })
    }

    fn payloads(&self) -> Vec<Bytes> {
        let mut heard = self.heard.lock().clone();
        // After failures a notification may be delivered twice.
        heard.dedup_by_key(|notification| notification.payload.clone());
        heard.into_iter().map(|notification| notification.payload).collect()
    }
}

impl WatchHandler for Watcher {
    fn notified(&self, notification: Notification) {
        if let Some(answer) = self.answer {
            self.io.notify_ack(self.object, notification.notify_id, notification.cookie, answer);
        }
        self.heard.lock().push(notification);
    }

    fn lost(&self, cookie: u64, error: Error) {
        self.lost.lock().push((cookie, error.errno()));
    }
}

const SECONDS: fn(u64) -> Option<Duration> = |seconds| Some(Duration::from_secs(seconds));

fn primary(cluster: &TestCluster, io: &IoCtx, object: &str) -> OsdId {
    let map = cluster.map();
    let pg = map.pools[&io.pool()].pg_of(&ObjectId::new(io.pool(), "", "", object));
    map.membership(pg).unwrap().primary
}

#[test]
fn notifies_reach_all_watchers_and_bring_their_answers() {
    let cluster = TestCluster::start(1, &[("osd_op_num_shards", "2")]);
    cluster.create_pool("data", 1, 1, 4);
    let (ann, bob, eve) = (cluster.io("data"), cluster.io("data"), cluster.io("data"));
    let (at_ann, at_bob) = (Watcher::new(&ann, "o", Some("from ann")), Watcher::new(&bob, "o", Some("")));
    cluster.block_on(async {
        let (_, refused) = ann.watch("o", None, at_ann.clone());
        assert_eq!(refused.await.unwrap_err().errno(), Errno::ENOENT, "there is no such object");
        eve.write_full("o", "x").await.unwrap();
        let nobody = eve.notify("o", "hello?", None).await.unwrap();
        assert!(!nobody.timed_out && nobody.reply.acks.is_empty() && nobody.reply.missed.is_empty());
        let (ann_cookie, watching) = ann.watch("o", None, at_ann.clone());
        watching.await.unwrap();
        let (bob_cookie, watching) = bob.watch("o", SECONDS(20), at_bob.clone());
        watching.await.unwrap();
        let (ann_id, bob_id) = (ann.cluster().instance_id(), bob.cluster().instance_id());
        let listed = eve.list_watchers("o").await.unwrap();
        let listed: Vec<_> = listed.iter().map(|w| (w.client.0, w.cookie, w.timeout_s, &*w.addr)).collect();
        let addr = |id: u64| format!("127.0.0.1:0/{id}");
        let (ann_addr, bob_addr) = (addr(ann_id), addr(bob_id));
        assert_eq!(listed, [(ann_id, ann_cookie, 30, &*ann_addr), (bob_id, bob_cookie, 20, &*bob_addr)]);

        let outcome = eve.notify("o", "news", None).await.unwrap();
        assert!(!outcome.timed_out);
        let answers = [(ann_id, ann_cookie, "from ann".into()), (bob_id, bob_cookie, Bytes::new())];
        assert_eq!((outcome.reply.acks, outcome.reply.missed), (answers.to_vec(), vec![]));
        let heard = at_ann.heard.lock().clone();
        assert_eq!(heard.len(), 1);
        assert_eq!((heard[0].cookie, heard[0].notifier), (ann_cookie, eve.cluster().instance_id()));
        assert!(ann.watch_check(ann_cookie).unwrap() < Duration::from_secs(30));

        bob.unwatch(bob_cookie).await.unwrap();
        assert_eq!(bob.unwatch(bob_cookie).await.unwrap_err().errno(), Errno::ENOTCONN);
        assert_eq!(bob.watch_check(bob_cookie).unwrap_err().errno(), Errno::ENOTCONN);
        assert_eq!(eve.notify("o", "more", None).await.unwrap().reply.acks.len(), 1);
        ann.cluster().watch_flush().await.unwrap();
        assert_eq!(
            (at_ann.payloads(), at_bob.payloads()),
            (vec!["news".into(), "more".into()], vec!["news".into()])
        );
    });
}

#[test]
fn who_does_not_answer_is_missed_and_a_removed_object_loses_its_watches() {
    let cluster = TestCluster::start(1, &[]);
    cluster.create_pool("data", 1, 1, 4);
    let (ann, eve) = (cluster.io("data"), cluster.io("data"));
    let silent = Watcher::new(&ann, "o", None);
    cluster.block_on(async {
        eve.write_full("o", "x").await.unwrap();
        let (cookie, watching) = ann.watch("o", None, silent.clone());
        watching.await.unwrap();
        let outcome = eve.notify("o", "news", SECONDS(1)).await.unwrap();
        assert!(outcome.timed_out);
        assert_eq!(outcome.reply.missed, [(ann.cluster().instance_id(), cookie)]);
        assert_eq!(silent.payloads(), ["news"]);
        eve.remove("o").await.unwrap();
    });
    cluster.wait("the watcher hears that its watch is lost", |_| !silent.lost.lock().is_empty());
    let lost = silent.lost.lock().clone();
    assert_eq!(lost, [(lost[0].0, Errno::ENOTCONN)]);
    assert_eq!(ann.watch_check(lost[0].0).unwrap_err().errno(), Errno::ENOTCONN);
    cluster.block_on(eve.notify("o", "gone", None)).unwrap_err();
}

#[test]
fn watches_survive_failover_and_notifies_wait_for_them() {
    let mut cluster = TestCluster::start(3, &[]);
    let pool = cluster.create_pool("data", 3, 2, 8);
    cluster.wait_clean(pool);
    let (ann, bob, eve) = (cluster.io("data"), cluster.io("data"), cluster.io("data"));
    let (at_ann, at_bob) = (Watcher::new(&ann, "o", Some("a")), Watcher::new(&bob, "o", Some("b")));
    let cookies = cluster.block_on(async {
        eve.write_full("o", "x").await.unwrap();
        let (a, watching) = ann.watch("o", None, at_ann.clone());
        watching.await.unwrap();
        let (b, watching) = bob.watch("o", None, at_bob.clone());
        watching.await.unwrap();
        (a, b)
    });
    for round in 0..2 {
        let old = primary(&cluster, &eve, "o");
        cluster.kill_osd(old);
        // Sent before the failure is detected, so it goes to the dead OSD.
        let outcome = cluster.block_on(eve.notify("o", format!("round {round}"), SECONDS(60))).unwrap();
        assert!(!outcome.timed_out, "{outcome:?}");
        let answers: Vec<_> = outcome.reply.acks.iter().map(|(_, _, answer)| answer.clone()).collect();
        assert_eq!((answers, outcome.reply.missed), (vec!["a".into(), "b".into()], vec![]));
        assert_ne!(primary(&cluster, &eve, "o"), old);
        cluster.start_osd(old);
        cluster.wait("the OSD is up again", |c| c.map().is_up(old));
        cluster.wait_clean(pool);
    }
    assert_eq!(
        (at_ann.payloads(), at_bob.payloads()),
        (vec!["round 0".into(), "round 1".into()], vec!["round 0".into(), "round 1".into()])
    );
    assert!(at_ann.lost.lock().is_empty() && at_bob.lost.lock().is_empty());
    cluster.block_on(async {
        ann.unwatch(cookies.0).await.unwrap();
        bob.unwatch(cookies.1).await.unwrap();
        assert_eq!(eve.list_watchers("o").await.unwrap(), []);
    });
}

#[test]
fn watches_of_the_dead_lapse_and_are_forgotten() {
    let cluster = TestCluster::start(2, &[]);
    cluster.create_pool("data", 2, 1, 4);
    let (ann, bob, eve) = (cluster.io("data"), cluster.io("data"), cluster.io("data"));
    let (at_ann, at_bob) = (Watcher::new(&ann, "o", Some("a")), Watcher::new(&bob, "o", Some("b")));
    cluster.block_on(async {
        eve.write_full("o", "x").await.unwrap();
        ann.watch("o", SECONDS(2), at_ann.clone()).1.await.unwrap();
        bob.watch("o", SECONDS(2), at_bob.clone()).1.await.unwrap();
        ann.cluster().shut_down();
        // The notify waits for the dead client until its watch times out, and no longer.
        let outcome = eve.notify("o", "news", SECONDS(60)).await.unwrap();
        assert!(!outcome.timed_out);
        assert_eq!((outcome.reply.acks.len(), outcome.reply.missed.len()), (1, 0));
    });
    cluster
        .wait("only the living watch is listed", |c| c.block_on(eve.list_watchers("o")).unwrap().len() == 1);
    assert!(at_bob.lost.lock().is_empty(), "signs of life keep its watch");
}
