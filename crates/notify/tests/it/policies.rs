//! What topics say of their queues: limits, time to live, retries, and topics without queues; and dead endpoints.

use crate::mutation::Mutation;
use crate::world::{World, settings};
use nacre_notify::{LetterSelection, Settings, TopicReport};
use nacre_sim::gateway::faults::Faults;
use nacre_sim::schedule::SECOND;
use nacre_topics::arn::TopicArn;
use nacre_topics::event::EventType;
use nacre_topics::notification_config::MetadataTagFilter;
use nacre_topics::pending::{PendingEvent, PendingEvents};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

fn world(topics: &[&[(&str, &str)]]) -> World {
    let mut world = World::new(7, Mutation::None, Faults::none(), 1);
    world.refused_rate = 0;
    for (at, attributes) in topics.iter().enumerate() {
        world.make_topic_with(&format!("t{at}"), 1, attributes);
    }
    world
}

fn kill_endpoints(world: &World) {
    let ids = world.topics.iter().map(|topic| topic.id.to_string());
    world.shared.dead.lock().extend(ids);
}

fn report(world: &World, topic: usize) -> TopicReport {
    let (notifier, arn) = (Arc::clone(&world.gateways[0].notifier), world.topics[topic].arn.clone());
    world.run(world.gateways[0].process, async move { notifier.report(&arn).await }).unwrap()
}

fn is_admitted(world: &World, bytes: u64) -> bool {
    let (notifier, topic) = (Arc::clone(&world.gateways[0].notifier), world.topics[0].clone());
    let admit = async move { notifier.admit(&topic.arn, topic.id, bytes).await.map(|one| one.is_some()) };
    world.run(world.gateways[0].process, admit).unwrap()
}

const REFUSE: &[(&str, &str)] = &[
    ("persistent", "true"),
    ("max_retries", "0"),
    ("queue-full-policy", "refuse"),
    ("queue-max-bytes", "8000"),
];
const DROP: &[(&str, &str)] = &[
    ("persistent", "true"),
    ("max_retries", "0"),
    ("queue-full-policy", "drop-oldest"),
    ("queue-max-bytes", "3000"),
];

#[test]
fn a_topic_that_refuses_admits_nothing_while_its_queue_is_full() {
    let mut world = world(&[REFUSE]);
    assert!(is_admitted(&world, 1000));
    kill_endpoints(&world);
    (0..80).for_each(|_| world.produce(5));
    world.pass(5 * SECOND);
    assert!(report(&world, 0).totals.size_bytes > 7000);
    assert!(!is_admitted(&world, 1000));
    world.calm_down(120 * SECOND).unwrap();
    world.pass(2 * SECOND);
    assert!(is_admitted(&world, 1000));
}

#[test]
fn room_of_events_that_others_moved_or_that_do_not_exist_is_free_again() {
    let mut world = world(&[REFUSE]);
    let (notifier, topic) = (Arc::clone(&world.gateways[0].notifier), world.topics[0].clone());
    let admit = async move {
        // Two events of one change, and one of a change that a filter leaves out.
        for (change, event) in [("one", Some((0, 600))), ("one", Some((1, 700))), ("other", None)] {
            let Some(admitted) = notifier.admit(&topic.arn, topic.id, 500).await? else { return Ok(false) };
            if let Some((ordinal, bytes)) = event {
                admitted.commit(change, ordinal, bytes);
            }
        }
        Ok::<bool, nacre_notify::Error>(true)
    };
    assert!(world.run(world.gateways[0].process, admit).unwrap());
    // A fourth of the limit may be on its way.
    assert!(!is_admitted(&world, 800) && is_admitted(&world, 700));
    world.pass(40 * SECOND);
    assert!(is_admitted(&world, 2000));
}

#[test]
fn events_of_a_busy_bucket_are_moved_together() {
    let world = |busy_linger| {
        let settings = Settings { busy_turn: 4, busy_linger, ..settings() };
        let mut world = World::with_settings(7, Mutation::None, Faults::none(), 1, settings);
        world.refused_rate = 0;
        world.make_topic("t", 1);
        world
    };
    let delivered_after = |world: &mut World, events: usize, wait| {
        (0..events).for_each(|_| world.produce(50));
        world.tell_of_outboxes();
        world.pass(wait);
        world.shared.check.lock().delivered.len()
    };
    let mut eager = world(settings().linger);
    assert_eq!(delivered_after(&mut eager, 40, 2 * SECOND), 40);
    let mut patient = world(Duration::from_secs(5));
    // Few do not wait for others.
    assert_eq!(delivered_after(&mut patient, 2, 2 * SECOND), 2);
    // Of many the first ones show that there are many, and the others wait as long as more come.
    for _ in 0..40 {
        delivered_after(&mut patient, 1, settings().linger.as_nanos() as u64 / 2);
    }
    let first = delivered_after(&mut patient, 0, 0);
    assert!((4..42).contains(&first), "{first}");
    assert_eq!(delivered_after(&mut patient, 0, 2 * SECOND), 42);
    assert_eq!(delivered_after(&mut patient, 1, 2 * SECOND), 43);
}

#[test]
fn a_topic_that_drops_the_oldest_keeps_to_its_limit_and_counts() {
    let mut world = world(&[DROP]);
    kill_endpoints(&world);
    (0..60).for_each(|_| world.produce(5));
    world.pass(10 * SECOND);
    let totals = report(&world, 0).totals;
    assert!(totals.size_bytes <= 3000 && totals.entries > 5 && totals.dropped > 5, "{totals:?}");
    assert_eq!(totals.entries + totals.dropped, 60);
    world.calm_down(120 * SECOND).unwrap();
    let delivered = world.shared.check.lock().delivered.len() as u64;
    let letters = world.letters().len() as u64;
    assert!(delivered + letters + report(&world, 0).totals.dropped >= 60);
}

#[test]
fn events_that_live_too_long_behind_a_dead_endpoint_become_dead_letters() {
    let mut world = world(&[&[("persistent", "true"), ("time_to_live", "3"), ("max_retries", "1000")]]);
    kill_endpoints(&world);
    (0..30).for_each(|_| world.produce(5));
    world.pass(20 * SECOND);
    assert_eq!(world.letters().len(), 30);
    let report = report(&world, 0);
    assert_eq!((report.totals.entries, report.letters.entries), (0, 30));
    let (notifier, arn) = (Arc::clone(&world.gateways[0].notifier), world.topics[0].arn.clone());
    world.shared.dead.lock().clear();
    let replay = async move { notifier.replay_letters(&arn, LetterSelection::All).await };
    assert_eq!(world.run(world.gateways[0].process, replay).unwrap(), 30);
    world.calm_down(60 * SECOND).unwrap();
    assert_eq!(world.shared.check.lock().delivered.len(), 30);
}

#[test]
fn events_of_all_shards_expire_behind_a_dead_endpoint() {
    let mut world = world(&[]);
    let attributes = [("persistent", "true"), ("time_to_live", "3"), ("max_retries", "0")];
    world.make_topic_with("t", 3, &attributes);
    kill_endpoints(&world);
    (0..30).for_each(|_| world.produce(20));
    world.pass(20 * SECOND);
    assert_eq!(world.letters().len(), 30);
    assert_eq!(report(&world, 0).totals.entries, 0);
}

#[test]
fn a_topic_is_found_whatever_zone_group_is_named() {
    let world = world(&[&[]]);
    let topic = &world.topics[0];
    let arn = TopicArn { zonegroup: "elsewhere".into(), ..topic.arn.clone() };
    let store = world.gateways[0].notifier.topics().clone();
    let found = world.run(world.gateways[0].process, async move { store.get(&arn).await }).unwrap();
    assert_eq!(found.map(|stored| stored.record.topic.id), Some(topic.id));
}

#[test]
fn changed_options_hold_at_once_for_topics_without_attributes() {
    let mut world = world(&[&[("persistent", "true"), ("queue-full-policy", "refuse")]]);
    world.defaults.send_modify(|defaults| defaults.max_retries = 0);
    kill_endpoints(&world);
    assert!(is_admitted(&world, 1000));
    (0..10).for_each(|_| world.produce(5));
    world.pass(20 * SECOND);
    assert_eq!((world.letters().len(), report(&world, 0).totals.entries), (0, 10));
    // Nothing was parked: the events are loaded to expire although the endpoint is left alone.
    world.defaults.send_modify(|defaults| defaults.time_to_live_s = 3);
    world.pass(10 * SECOND);
    assert_eq!((world.letters().len(), report(&world, 0).totals.entries), (10, 0));
    world.defaults.send_modify(|defaults| defaults.queue_max_bytes = Some(100));
    assert!(!is_admitted(&world, 1000));
}

#[test]
fn a_backlog_of_many_topics_takes_no_memory_and_drains_in_time() {
    const ALIVE: &[(&str, &str)] = &[("persistent", "true"), ("max_retries", "0")];
    let mut world = world(&[ALIVE; 20]);
    kill_endpoints(&world);
    (0..200).for_each(|_| world.produce(40));
    world.pass(30 * SECOND);
    let loaded = world.gateways[0].notifier.metrics().loaded_bytes.load(Ordering::Relaxed);
    assert!(loaded < 200_000, "{loaded} bytes");
    assert!(world.shared.check.lock().delivered.is_empty());
    world.calm_down(60 * SECOND).unwrap();
    let letters = world.letters();
    let mut check = world.shared.check.lock();
    check.end(&letters);
    assert_eq!(check.broken, None);
}

#[test]
fn a_dead_endpoint_holds_up_its_own_topic_only() {
    let mut world = world(&[&[("persistent", "true")], &[("persistent", "true"), ("max_retries", "0")]]);
    let (alive, dead) = (world.topics[0].id.to_string(), world.topics[1].id.to_string());
    world.shared.dead.lock().insert(dead.clone());
    (0..40).for_each(|_| world.produce(5));
    world.pass(15 * SECOND);
    let letters = world.letters();
    let of = |topic: &String| {
        let check = world.shared.check.lock();
        check.delivered.iter().chain(&letters).filter(|(of, _)| of == topic).count()
    };
    assert_eq!((of(&alive), of(&dead)), (40, 0));
}

#[test]
fn events_of_a_topic_without_queues_are_pushed_at_once_or_lost_in_time() {
    let world = world(&[&[]]);
    let topic = &world.topics[0];
    let candidate = PendingEvent {
        topic_id: topic.id,
        topic: topic.arn.clone(),
        configuration: "c".into(),
        event: EventType::ObjectCreatedPut,
        filter: MetadataTagFilter::default(),
    };
    let pending = PendingEvents { candidates: vec![candidate], ..PendingEvents::default() };
    let events = pending.complete("tag", "key", &Default::default());
    let which = (topic.id.to_string(), events[0].event.id());
    world.shared.check.lock().produced.insert(which);
    let push = |events| {
        let notifier = Arc::clone(&world.gateways[0].notifier);
        world.run(world.gateways[0].process, async move { notifier.push_now(events).await })
    };
    let pushed = push(events.clone());
    assert_eq!((pushed.delivered, pushed.failed), (1, 0));
    kill_endpoints(&world);
    let began = world.executor.now();
    let pushed = push(events);
    assert_eq!((pushed.delivered, pushed.failed), (0, 1));
    assert!(world.executor.now() - began < 6 * SECOND);
}

#[test]
fn a_topic_is_found_by_tenant_and_name_whatever_the_zone_group() {
    let world = world(&[&[("persistent", "true")]]);
    let topic = &world.topics[0];
    let find = |zonegroup: &str, tenant: &str| {
        let (zonegroup, tenant) = (zonegroup.to_owned(), tenant.to_owned());
        let arn = TopicArn { zonegroup, tenant, name: topic.arn.name.clone() };
        let notifier = Arc::clone(&world.gateways[0].notifier);
        let found = world.run(world.gateways[0].process, async move { notifier.topics().get(&arn).await });
        found.unwrap().map(|stored| stored.record.topic.id)
    };
    assert_eq!(find("default", ""), Some(topic.id));
    assert_eq!(find("elsewhere", ""), Some(topic.id));
    assert_eq!(find("default", "acme"), None);
}

#[test]
fn a_gateway_that_stops_gives_its_shards_back() {
    let mut world = world(&[&[("persistent", "true")]]);
    world.start_gateway();
    (0..10).for_each(|_| world.produce(5));
    let notifier = Arc::clone(&world.gateways[0].notifier);
    world.run(world.gateways[0].process, async move { notifier.stop().await });
    (0..10).for_each(|_| world.produce(5));
    world.calm_down(60 * SECOND).unwrap();
    let letters = world.letters();
    let mut check = world.shared.check.lock();
    check.end(&letters);
    assert_eq!(check.broken, None);
}
