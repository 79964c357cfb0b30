//! What topics say of their queues: limits, time to live, retries, and topics without queues; and dead endpoints.

use crate::engine::Mutation;
use crate::world::World;
use nacre_notify::{Letters, TopicReport};
use nacre_sim::gateway::faults::Faults;
use nacre_sim::schedule::SECOND;
use nacre_topics::config::AttributeFilter;
use nacre_topics::event::EventType;
use nacre_topics::pending::{PendingEvent, PendingEvents};
use std::sync::Arc;
use std::sync::atomic::Ordering;

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
    let replay = async move { notifier.replay_letters(&arn, Letters::All).await };
    assert_eq!(world.run(world.gateways[0].process, replay).unwrap(), 30);
    world.calm_down(60 * SECOND).unwrap();
    assert_eq!(world.shared.check.lock().delivered.len(), 30);
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
        filter: AttributeFilter::default(),
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
