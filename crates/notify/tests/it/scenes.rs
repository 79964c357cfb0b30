//! Seeded histories with crashes at any step, and mutations that they must notice.

use crate::check::Scenes;
use crate::engine::Mutation;
use crate::world::World;
use nacre_sim::gateway::faults::Faults;
use nacre_sim::schedule::{MILLI, SECOND};

const KEYS: u64 = 5;
const STEPS: u64 = 120;

/// Seeds without a mutation, and those in which a mutation must be noticed.
fn seeds() -> (u64, u64) {
    match std::env::var("NEXTEST_PROFILE") {
        Ok(profile) if profile == "long" => (10_000, 300),
        _ => (160, 100),
    }
}

fn faults() -> Faults {
    Faults { slow_rate: 20, slow: SECOND, ghost_rate: 500, ghost: 5 * SECOND, ..Faults::none() }
}

/// One history: trouble, then peace.
fn play(seed: u64, mutation: Mutation) -> Result<Scenes, String> {
    let mut world = World::new(seed, mutation, Faults::none(), 3);
    world.make_topic("first", 3);
    world.make_topic("second", 2);
    world.cluster.set_faults(faults());
    let second = world.topics[1].id.to_string();
    for _ in 0..STEPS {
        let wait = world.random.range(5 * MILLI, 120 * MILLI);
        world.pass(wait);
        match world.random.range(0, 100) {
            0..60 => {
                let count = world.random.range(1, 4);
                (0..count).for_each(|_| world.produce(KEYS));
            }
            60..68 => {
                let at = world.random.index(world.gateways.len());
                world.crash(at);
            }
            68..72 => {
                let (at, polls) = (world.random.index(world.gateways.len()), world.random.range(1, 200));
                world.executor.crash_after(world.gateways[at].process, polls);
                world.pass(200 * MILLI);
                world.crash(at);
            }
            72..78 => {
                let (topic, shards) = (world.random.index(2), world.random.range(1, 5) as u32);
                world.reshard(topic, shards);
            }
            78..82 => {
                let mut dead = world.shared.dead.lock();
                if !dead.remove(&second) {
                    dead.insert(second.clone());
                }
            }
            82..85 => {
                let at = world.random.index(world.gateways.len());
                let wait = world.random.range(SECOND, 6 * SECOND);
                world.executor.pause(world.gateways[at].process, wait);
            }
            85..88 => {
                let osd = world.random.range(0, 3) as u32;
                world.cluster.fail_osd(osd, SECOND);
            }
            88..91 => {
                let topic = world.random.index(2);
                world.replay(topic);
            }
            _ => {}
        }
        if let Some(broken) = world.shared.check.lock().broken.clone() {
            return Err(broken);
        }
    }
    world.calm_down(240 * SECOND)?;
    let letters = world.letters();
    let mut check = world.shared.check.lock();
    check.end(&letters);
    match check.broken.clone() {
        Some(broken) => Err(broken),
        None => Ok(check.scenes),
    }
}

/// Plays every second seed, from `first` on.
fn play_all(first: u64) {
    let mut seen = Scenes::default();
    for seed in (first..seeds().0).step_by(2) {
        match play(seed, Mutation::None) {
            Ok(scenes) => seen.add(scenes),
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }
    assert!(seen.has_all(), "some scenes are never played: {seen:?}");
}

#[test]
fn every_event_is_delivered_or_a_dead_letter_whoever_crashes() {
    play_all(0);
}

#[test]
fn every_event_is_delivered_or_a_dead_letter_in_other_histories() {
    play_all(1);
}

/// Fails unless one of the histories notices the mutation, by what it does wrong.
fn noticed(mutation: Mutation, by: &str) {
    let runs = seeds().1;
    let found = (0..runs).find_map(|seed| play(seed, mutation).err().map(|error| (seed, error)));
    let Some((seed, error)) = found else { panic!("{mutation:?} is not noticed in {runs} histories") };
    assert!(error.contains(by), "{mutation:?}, seed {seed}: {error}");
}

#[test]
fn settling_before_the_endpoint_has_the_event_is_noticed() {
    noticed(Mutation::TrimBeforeAck, "is ");
}

#[test]
fn settling_by_a_fenced_owner_is_noticed() {
    noticed(Mutation::UnfencedTrim, "settles what");
}

#[test]
fn batches_that_are_lost_at_a_reshard_are_noticed() {
    noticed(Mutation::DropAtReshard, "does not drain");
}

#[test]
fn one_seed_names_one_history() {
    let hash = |seed| {
        let mut world = World::new(seed, Mutation::None, Faults::none(), 2);
        world.make_topic("first", 3);
        (0..20).for_each(|_| {
            world.produce(KEYS);
            world.pass(30 * MILLI);
        });
        world.calm_down(60 * SECOND).unwrap();
        world.executor.hash()
    };
    assert_eq!(hash(5), hash(5));
    assert_ne!(hash(5), hash(6));
}

#[test]
fn queues_have_the_names_of_the_documentation_whatever_became_of_them() {
    let mut world = World::new(1, Mutation::None, Faults::none(), 1);
    world.make_topic("fishtopic", 11);
    let eleven: std::collections::BTreeSet<String> =
        std::iter::once(":fishtopic".to_owned()).chain((1..11).map(|n| format!(":fishtopic.{n}"))).collect();
    assert_eq!(world.visible(), eleven);
    for shards in [101, 11] {
        (0..40).for_each(|_| world.produce(50));
        let (notifier, arn) = (world.gateways[0].notifier.clone(), world.topics[0].arn.clone());
        let changed =
            world.run(world.gateways[0].process, async move { notifier.reshard_topic(&arn, shards).await });
        changed.unwrap();
    }
    assert_eq!(world.visible(), eleven);
    world.calm_down(120 * SECOND).unwrap();
    assert_eq!(world.visible(), eleven);
    assert!(world.shared.check.lock().broken.is_none());
}

#[test]
fn a_deleted_topic_leaves_nothing_and_its_name_can_be_used_at_once() {
    let mut world = World::new(2, Mutation::None, Faults::none(), 2);
    world.make_topic("t", 4);
    let old = world.topics[0].id.to_string();
    world.shared.dead.lock().insert(old);
    (0..30).for_each(|_| world.produce(KEYS));
    world.pass(2 * SECOND);
    let (notifier, arn) = (world.gateways[1].notifier.clone(), world.topics[0].arn.clone());
    let deleted = world.run(world.gateways[1].process, async move { notifier.delete_topic(&arn).await });
    assert!(deleted.unwrap());
    assert!(world.visible().is_empty(), "{:?}", world.visible());
    world.topics.clear();
    world.shared.check.lock().produced.clear();
    world.make_topic("t", 2);
    (0..10).for_each(|_| world.produce(KEYS));
    world.calm_down(120 * SECOND).unwrap();
    let letters = world.letters();
    let mut check = world.shared.check.lock();
    check.end(&letters);
    assert_eq!(check.broken, None);
}
