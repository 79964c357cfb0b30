//! What operators see: every event that is queued, wherever it is, reservations, and breakers.

use crate::mutation::Mutation;
use crate::world::{World, settings};
use nacre_engine::IoCtx;
use nacre_notify::{QueuedEvent, Settings, TopicReport};
use nacre_queues::name::{QUEUE_NAMESPACE, SPILL_NAMESPACE, queue_object};
use nacre_queues::retry::BreakerState;
use nacre_queues::settle::{self, LogIndex};
use nacre_queues::shard::Shard;
use nacre_queues::spill::{self, SpillLimits};
use nacre_queues::window::WindowLimits;
use nacre_sim::gateway::faults::Faults;
use nacre_sim::schedule::{MILLI, SECOND};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// More than dumps read at a time.
const MANY: usize = 150;

/// One topic of one shard, and a gateway.
fn world(attributes: &[(&str, &str)]) -> World {
    let window = WindowLimits { window: 1024, in_flight: 512, parked: 4096 };
    let settings = Settings { window, ..settings() };
    let mut world = World::with_settings(11, Mutation::None, Faults::none(), 1, settings);
    world.refused_rate = 0;
    world.defaults.send_modify(|defaults| defaults.max_retries = 0);
    world.make_topic_with("t", 1, &[&[("persistent", "true")], attributes].concat());
    world
}

fn kill_endpoint(world: &World) {
    world.shared.dead.lock().insert(world.topics[0].id.to_string());
}

fn dump(world: &World, max: usize) -> Vec<QueuedEvent> {
    let (notifier, arn) = (Arc::clone(&world.gateways[0].notifier), world.topics[0].arn.clone());
    world.run(world.gateways[0].process, async move { notifier.dump(&arn, max).await }).unwrap()
}

fn report(world: &World) -> TopicReport {
    let (notifier, arn) = (Arc::clone(&world.gateways[0].notifier), world.topics[0].arn.clone());
    world.run(world.gateways[0].process, async move { notifier.report(&arn).await }).unwrap()
}

fn breaker(world: &World) -> BreakerState {
    world.gateways[0].notifier.breaker(world.topics[0].id)
}

/// All events are in it, each once.
fn is_complete(found: &[QueuedEvent]) -> bool {
    let ids: BTreeSet<String> = found.iter().map(|one| one.event.id()).collect();
    found.len() == MANY && ids.len() == MANY
}

/// Moves the first batch of a queue into a segment of its own, as its owner does; tells whether there was one.
async fn spill_one(log: IoCtx) -> bool {
    let (queues, segments) = (log.with_namespace(QUEUE_NAMESPACE), log.with_namespace(SPILL_NAMESPACE));
    let object = queue_object("", "t", 0);
    let read = settle::read_batches(&object, None, 1);
    let reply = queues.execute_read(&object.name, &read.read()).await.unwrap().unwrap();
    let reply = read.parse_reply(reply).unwrap();
    let shard = Shard::from_reply(&object, &[], &reply).unwrap();
    let mut map = LogIndex::default();
    map.add_batches(&shard, &reply.page).unwrap();
    let plan = spill::plan(&shard, &map, &reply.page, SpillLimits::default().segment_bytes).unwrap();
    let Some(plan) = plan else { return false };
    for (io, op) in [(&segments, plan.write), (&queues, plan.commit)] {
        // The shard may have got another owner, or other events: then the batch stays for the next attempt.
        let _: Result<u64, _> = io.execute(&op.object.name, op.write).await;
    }
    true
}

#[test]
fn a_dump_has_all_parked_events() {
    let mut world = world(&[("retry_sleep_duration", "100000")]);
    world.refused_rate = 1000;
    (0..MANY).for_each(|_| world.produce(100_000));
    world.pass(20 * SECOND);
    let found = dump(&world, 10 * MANY);
    assert!(is_complete(&found), "{} events", found.len());
    let parked = found.iter().filter(|one| one.attempts.is_some()).count();
    assert!(parked > 64, "{parked} are parked");
    assert_eq!(dump(&world, 100).len(), 100);
}

#[test]
fn a_dump_has_all_events_of_segments() {
    let mut world = world(&[]);
    kill_endpoint(&world);
    for _ in 0..MANY {
        world.produce(1000);
        // Each is a batch, unless no gateway was told of it.
        world.pass(100 * MILLI);
    }
    world.pass(10 * SECOND);
    let log = world.log_pool();
    while world.run(world.client(), spill_one(log.clone())) {}
    assert!(world.segments() > 64, "{} segments", world.segments());
    let found = dump(&world, 10 * MANY);
    assert!(is_complete(&found), "{} events", found.len());
    assert!(found.is_sorted_by_key(|one| one.sequence));
    assert_eq!(dump(&world, 100).len(), 100);
}

#[test]
fn reservations_are_the_events_of_changes_that_may_still_be_enqueued() {
    let mut world = world(&[]);
    assert_eq!(report(&world).totals.reservations, 0);
    // More than a page.
    (0..600).for_each(|_| world.prepare());
    assert_eq!(report(&world).totals.reservations, 600);
    world.produce(5);
    world.pass(5 * SECOND);
    assert_eq!(report(&world).totals.reservations, 600, "the one that was finished is delivered");
}

#[test]
fn breakers_are_those_of_owners_or_the_worst_that_is_told() {
    let mut world = world(&[]);
    assert_eq!(breaker(&world), BreakerState::Closed);
    kill_endpoint(&world);
    (0..20).for_each(|_| world.produce(100));
    world.pass(10 * SECOND);
    assert_ne!(breaker(&world), BreakerState::Closed);
    let mut report = report(&world);
    let owner = report.shards[0].owner;
    assert_eq!((owner, report.shards[0].breaker), (world.gateways[0].session, None));
    let told = |owner: u64, other: BreakerState| BTreeMap::from([(owner, BreakerState::Closed), (0, other)]);
    report.set_breakers(&told(owner, BreakerState::Open));
    assert_eq!(report.shards[0].breaker, Some(BreakerState::Closed));
    report.set_breakers(&told(owner + 1, BreakerState::HalfOpen));
    assert_eq!(report.shards[0].breaker, Some(BreakerState::HalfOpen));
    report.set_breakers(&BTreeMap::new());
    assert_eq!(report.shards[0].breaker, None);
}
