//! The protocol against crashes: movers, deliverers, resharders and an operator work on one topic, and die at
//! any step. What they last asked for arrives late or never, leases end at any moment, the endpoint fails,
//! the topic is resharded over and over, made non-persistent and persistent again. Then everything calms
//! down, and all must have arrived.
//!
//! Each mutation breaks one rule of the protocol, and must be noticed.

mod actors;
mod check;
mod rados;
mod room;

use actors::{NAME, buckets, deliverer, mover, operator, resharder, topic};
use bytes::Bytes;
use check::Scenes;
use nacre_queues::enqueue::OutboxEvent;
use nacre_queues::layout::{BeginResult, LayoutTarget, QueueLayout};
use nacre_queues::name::{self, KeyHash, QueueRecordKind};
use nacre_queues::op::{ObjectKey, ObjectRead};
use nacre_queues::record::{self, DeadLetter, Event, EventId, ID};
use nacre_queues::shard::Shard;
use rados::Rados;
use room::{Mutation, Random, Room, Start, World};
use std::collections::BTreeMap;

/// Keys of objects; their hashes are their numbers.
const KEYS: u64 = 7;
const CHAOS_STEPS: u64 = 3000;
const CALM_STEPS: u64 = 60_000;

/// Seeds without a mutation, and those in which a mutation must be noticed.
fn seeds() -> (u64, u64) {
    match std::env::var("NEXTEST_PROFILE") {
        Ok(profile) if profile == "long" => (10_000, 200),
        _ => (400, 200),
    }
}

fn run(seed: u64, mutation: Mutation) -> Result<Scenes, String> {
    let mut layout = QueueLayout::default();
    assert_eq!(layout.begin(LayoutTarget::Shards(2)), Ok(BeginResult::Started));
    let world = World {
        rados: Rados::default(),
        outboxes: buckets().into_iter().map(|bucket| (bucket, Vec::new())).collect(),
        layout,
        random: Random(seed),
        now_ns: 1_000_000,
        is_endpoint_alive: true,
        refused: Vec::new(),
        mutation,
        check: check::Check::default(),
    };
    let starts: [Start; 7] = [mover, mover, deliverer, deliverer, resharder, resharder, operator];
    let mut room = Room::new(world, &starts);
    let mut random = Random(seed ^ 0x5eed);
    let mut numbers = BTreeMap::new();
    for _ in 0..CHAOS_STEPS {
        room.world.borrow_mut().now_ns += 1;
        let gateway = random.below(room.gateways() as u64) as usize;
        match random.below(200) {
            0..6 => produce(&mut room, &mut random, &mut numbers)?,
            6..8 => room.crash(gateway, random.below(2) == 0)?,
            8..12 => room.arrive(random.next())?,
            12..14 => room.expire_leases(Some(random.next())),
            14 => {
                let mut world = room.world.borrow_mut();
                world.is_endpoint_alive = !world.is_endpoint_alive;
            }
            15 if random.below(3) == 0 => begin_change(&room, &mut random),
            _ => room.step(gateway)?,
        }
    }
    calm_down(&mut room, &mut random)?;
    end(&room)
}

/// An operation on an object takes effect: its event is in the outbox of its bucket.
fn produce(room: &mut Room, random: &mut Random, numbers: &mut BTreeMap<u64, u64>) -> Result<(), String> {
    let key = random.below(KEYS);
    let number = numbers.entry(key).or_default();
    *number += 1;
    let payload = Bytes::from(format!("key{key}/{number}"));
    let mut world = room.world.borrow_mut();
    let event =
        Event { key: KeyHash(key as u32), time_ns: world.now_ns, replayed: false, payload: payload.clone() };
    if random.below(12) == 0 {
        world.refused.push(event.clone());
    }
    world.check.produced.push(event.clone());
    let [a, b] = buckets();
    let bucket = if key.is_multiple_of(2) { a } else { b };
    let id = EventId::new(payload).map_err(|error| error.to_string())?;
    world.outboxes.entry(bucket).or_default().push(OutboxEvent { id, event });
    Ok(())
}

/// An operator changes the topic, unless a change is under way.
fn begin_change(room: &Room, random: &mut Random) {
    let target = match random.below(4) {
        0 => LayoutTarget::NotPersistent,
        shards => LayoutTarget::Shards(shards as u32),
    };
    room.world.borrow_mut().layout.begin(target).expect("a valid number of shards");
}

/// No more crashes: everything must be delivered, or a dead letter, and all older generations gone.
fn calm_down(room: &mut Room, random: &mut Random) -> Result<(), String> {
    room.world.borrow_mut().is_endpoint_alive = true;
    for step in 0..CALM_STEPS {
        room.world.borrow_mut().now_ns += 1;
        if step % 64 == 0 {
            room.arrive(random.next())?;
            room.expire_leases(None);
            // A gateway that holds a lease which it does not work on lets it lapse.
            room.expire_leases(Some(random.next()));
            if is_drained(&room.world.borrow()) {
                return Ok(());
            }
        }
        let gateway = random.below(room.gateways() as u64) as usize;
        room.step(gateway)?;
    }
    let world = room.world.borrow();
    Err(format!("it does not drain: {:?} {:?}", world.layout, world.outboxes))
}

fn is_drained(world: &World) -> bool {
    let is_on_its_way = |key: &Bytes| {
        QueueRecordKind::Dead.sequence(key).is_some() || QueueRecordKind::Replay.sequence(key).is_some()
    };
    let mut objects = world.rados.objects.iter();
    world.layout.next.is_none()
        && world.layout.older.is_empty()
        && world.outboxes.values().all(Vec::is_empty)
        && objects.all(|(name, object)| {
            let is_empty = shard_of(world, name).is_none_or(|shard| shard.is_empty());
            is_empty && !object.omap.keys().any(is_on_its_way)
        })
}

fn shard_of(world: &World, object: &ObjectKey) -> Option<Shard> {
    let reply = world.rados.read(&ObjectRead::attributes(object)).ok()?;
    reply.xattrs.contains_key(ID).then(|| Shard::from_reply(object, &[], &reply).expect("sound"))
}

fn end(room: &Room) -> Result<Scenes, String> {
    let mut world = room.world.borrow_mut();
    let shards =
        world.layout.current.filter(|current| current.is_visible).map_or(0, |current| current.shards);
    let mut expected: Vec<_> = (0..shards).map(|shard| name::queue_object("", NAME, shard)).collect();
    expected.sort();
    let is_shard = |object: &&ObjectKey| shard_of(&world, object).is_some();
    let visible = world.rados.objects.keys().filter(|object| object.namespace == name::QUEUE_NAMESPACE);
    let visible: Vec<_> = visible.filter(is_shard).cloned().collect();
    if visible != expected {
        return Err(format!("rados ls shows {visible:?}, not {expected:?}"));
    }
    let dead = world.rados.objects.get(&name::dead_letter_object(&topic()));
    let letters = dead.into_iter().flat_map(|dead| &dead.omap);
    let letters = letters.filter(|(key, _)| QueueRecordKind::Letter.sequence(key).is_some());
    let letters: Vec<DeadLetter> =
        letters.map(|(_, value)| record::decode(&"letters", value).expect("sound")).collect();
    world.check.end(&letters, actors::LIMITS.window)?;
    Ok(world.check.scenes)
}

#[test]
fn every_event_arrives_in_the_order_of_its_key_whatever_dies() {
    let mut seen = Scenes::default();
    for seed in 0..seeds().0 {
        match run(seed, Mutation::None) {
            Ok(scenes) => seen.add(scenes),
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }
    assert!(seen.has_all(), "some scenes are never played: {seen:?}");
}

/// Fails unless one of the runs notices the mutation, by what it does wrong.
fn noticed(mutation: Mutation, by: &str) {
    let runs = seeds().1;
    let found = (0..runs).find_map(|seed| run(seed, mutation).err().map(|error| (seed, error)));
    let Some((seed, error)) = found else { panic!("{mutation:?} is not noticed in {runs} runs") };
    assert!(error.contains(by), "{mutation:?}, seed {seed}: {error}");
}

#[test]
fn batches_that_are_dropped_at_a_reshard_are_noticed() {
    noticed(Mutation::DropAtReshard, "but says");
}

#[test]
fn settling_before_the_acknowledgement_is_noticed() {
    noticed(Mutation::TrimBeforeAck, "are lost");
}

#[test]
fn settling_by_a_fenced_owner_is_noticed() {
    noticed(Mutation::UnfencedTrim, "which Owner");
}

#[test]
fn moving_without_receipts_is_noticed() {
    noticed(Mutation::NoDedup, "enqueued twice");
}

#[test]
fn outboxes_that_are_read_before_the_shard_are_noticed() {
    noticed(Mutation::StalePages, "enqueued twice");
}

#[test]
fn generations_that_do_not_wait_for_each_other_are_noticed() {
    noticed(Mutation::IgnoreOlder, "is delivered after");
}

#[test]
fn outbox_records_that_outlive_their_receipts_are_noticed() {
    noticed(Mutation::KeepReceiptsRecords, "enqueued twice");
}

#[test]
fn parked_events_that_the_next_owner_forgets_are_noticed() {
    noticed(Mutation::ForgetParked, "does not drain");
}
