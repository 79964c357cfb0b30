//! Watches and notifies.

use super::*;
use nacre_engine::{Notification, WatchHandler};

/// Records notifications, and answers them if it has a context.
#[derive(Default)]
struct RecordingHandler {
    heard: Mutex<Vec<(u64, Bytes)>>,
    lost: Mutex<Vec<Errno>>,
    answers: Option<IoCtx>,
}

impl WatchHandler for RecordingHandler {
    fn notified(&self, notification: Notification) {
        let Notification { cookie, notify_id, payload, .. } = notification;
        self.heard.lock().push((notify_id, payload));
        if let Some(pool) = &self.answers {
            pool.notify_ack("o", notify_id, cookie, "yes");
        }
    }

    fn lost(&self, _cookie: u64, error: Error) {
        self.lost.lock().push(error.errno());
    }
}

/// A client that watches object `o`, with a timeout of ten seconds.
fn watcher(world: &World, answers: bool) -> (Client, Arc<RecordingHandler>, u64) {
    let client = world.client();
    world.wait(&client, client.pool.create("o", false)).unwrap();
    let ear = Arc::new(RecordingHandler {
        answers: answers.then(|| client.pool.clone()),
        ..RecordingHandler::default()
    });
    let (cookie, stands) = client.pool.watch("o", Some(Duration::from_secs(10)), ear.clone());
    world.wait(&client, stands).unwrap();
    (client, ear, cookie)
}

fn watchers(world: &World, client: &Client) -> usize {
    world.wait(client, client.pool.list_watchers("o")).unwrap().len()
}

#[test]
fn a_notify_returns_when_all_watchers_have_answered() {
    let world = World::new(1, Faults::none());
    let (first, second) = (watcher(&world, true), watcher(&world, true));
    let notifier = world.client();
    let outcome = world.wait(&notifier, notifier.pool.notify("o", "news", None)).unwrap();
    assert!(!outcome.timed_out && outcome.reply.missed.is_empty());
    let answers: Vec<_> =
        outcome.reply.acks.iter().map(|(client, _, answer)| (*client, answer.clone())).collect();
    let expected = [&first, &second].map(|(client, ..)| (client.cluster.instance_id(), bytes("yes")));
    assert_eq!(answers, expected);
    assert_eq!(first.1.heard.lock().len(), 1);
    assert_eq!(second.1.heard.lock()[0].1, "news");
}

#[test]
fn a_notify_nobody_watches_returns_at_once_and_one_unanswered_times_out() {
    let world = World::new(2, Faults::none());
    let notifier = world.client();
    assert!(world.wait(&notifier, notifier.pool.notify("o", "", None)).unwrap_err().is_not_found());
    world.wait(&notifier, notifier.pool.create("o", true)).unwrap();
    let outcome = world.wait(&notifier, notifier.pool.notify("o", "", None)).unwrap();
    assert!(!outcome.timed_out && outcome.reply.acks.is_empty());
    let (silent, ear, cookie) = watcher(&world, false);
    let before = world.executor.now();
    let limit = Some(Duration::from_secs(3));
    let outcome = world.wait(&notifier, notifier.pool.notify("o", "", limit)).unwrap();
    assert!(outcome.timed_out && world.executor.now() - before >= 3 * SECOND);
    assert_eq!(outcome.reply.missed, [(silent.cluster.instance_id(), cookie)]);
    assert_eq!(ear.heard.lock().len(), 1);
}

#[test]
fn a_watch_of_a_crashed_process_lapses_after_its_timeout() {
    let world = World::new(3, Faults::none());
    let (doomed, ..) = watcher(&world, true);
    let other = world.client();
    world.executor.crash(doomed.process);
    assert_eq!(watchers(&world, &other), 1);
    // A notify waits for the watch until it lapses, and then does not report it as missed.
    let limit = Some(Duration::from_secs(30));
    let before = world.executor.now();
    let outcome = world.wait(&other, other.pool.notify("o", "", limit)).unwrap();
    assert!(!outcome.timed_out && outcome.reply.missed.is_empty());
    assert!(world.executor.now() - before <= 11 * SECOND);
    assert_eq!((watchers(&world, &other), world.cluster.figures().lapsed), (0, 1));
}

#[test]
fn a_watch_survives_a_short_cut_and_not_a_long_one() {
    let world = World::new(4, Faults::none());
    let (client, ear, cookie) = watcher(&world, true);
    let other = world.client();
    world.cluster.cut(client.process, 2 * SECOND);
    world.executor.run_for(3 * SECOND);
    assert!(client.pool.watch_check(cookie).unwrap() < Duration::from_secs(5));
    assert_eq!(watchers(&world, &other), 1);
    world.cluster.cut(client.process, 40 * SECOND);
    world.executor.run_for(20 * SECOND);
    assert_eq!(watchers(&world, &other), 0);
    // It can't know of the lapse yet, but it knows how long it has received nothing.
    assert!(client.pool.watch_check(cookie).unwrap() >= Duration::from_secs(19));
    assert!(ear.lost.lock().is_empty());
    world.executor.run_for(30 * SECOND);
    assert_eq!(*ear.lost.lock(), [Errno::ENOTCONN]);
    assert!(client.pool.watch_check(cookie).is_err());
    world.wait(&client, client.pool.unwatch(cookie)).unwrap();
    assert_eq!(client.pool.watch_check(cookie).unwrap_err().errno(), Errno::ENOTCONN);
}

#[test]
fn a_process_that_is_paused_for_long_loses_its_watch() {
    let world = World::new(8, Faults::none());
    let (client, ear, _) = watcher(&world, true);
    let other = world.client();
    world.executor.pause(client.process, 20 * SECOND);
    world.executor.run_for(15 * SECOND);
    assert_eq!((watchers(&world, &other), ear.lost.lock().len()), (0, 0));
    world.executor.run_for(10 * SECOND);
    assert_eq!(*ear.lost.lock(), [Errno::ENOTCONN]);
}

#[test]
fn a_removed_object_and_a_blocklisted_session_lose_their_watches() {
    let world = World::new(5, Faults { map_spread: SECOND, ..Faults::none() });
    let (client, ear, _) = watcher(&world, true);
    let other = world.client();
    world.wait(&other, other.pool.remove("o")).unwrap();
    world.executor.run_for(SECOND);
    assert_eq!(*ear.lost.lock(), [Errno::ENOTCONN]);
    let (victim, ear, _) = watcher(&world, true);
    let command = serde_json::json!({
        "prefix": "osd blocklist", "blocklistop": "add", "addr": format!("client.{}", victim.cluster.instance_id()),
    });
    world.wait(&other, other.cluster.command(command.to_string(), "")).unwrap();
    world.wait(&other, other.cluster.refresh_map()).unwrap();
    assert_eq!(watchers(&world, &other), 0);
    world.executor.run_for(3 * SECOND);
    assert_eq!(ear.lost.lock().len(), 1);
    drop(client);
}

#[test]
fn a_notification_may_come_twice() {
    let world = World::new(6, Faults { repeated_notify_rate: 1000, ..Faults::none() });
    let (_client, ear, _) = watcher(&world, true);
    let notifier = world.client();
    let outcome = world.wait(&notifier, notifier.pool.notify("o", "x", None)).unwrap();
    world.executor.run_for(SECOND);
    let heard = ear.heard.lock().clone();
    assert_eq!((outcome.reply.acks.len(), heard.len()), (1, 2));
    assert_eq!((heard[0].0, world.cluster.figures().repeated_notifies), (heard[1].0, 1));
}

#[test]
fn a_failed_osd_tells_watchers_again() {
    let world = World::new(7, Faults { latency: 10 * MILLI, ..Faults::none() });
    let (_client, ear, _) = watcher(&world, false);
    let notifier = world.client();
    let pending = notifier.pool.notify("o", "x", Some(Duration::from_secs(20)));
    world.executor.run_for(SECOND);
    assert_eq!(ear.heard.lock().len(), 1);
    for osd in 0..OSDS {
        world.cluster.fail_osd(osd, 5 * SECOND);
    }
    world.executor.run_for(6 * SECOND);
    let heard = ear.heard.lock().clone();
    assert_eq!((heard.len(), heard[0].0), (2, heard[1].0));
    assert!(world.wait(&notifier, pending).unwrap().timed_out);
}
