//! Seeded histories with crashes at any step, and mutations that they must notice.

use crate::mutation::Mutation;
use crate::scene::Scenes;
use crate::world::{World, settings};
use nacre_notify::Settings;
use nacre_queues::spill::SpillLimits;
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

/// What the third topic of a history is like. Its endpoint refuses nothing, but often does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Third {
    Spills,
    Refuses,
    DropsOldest,
    Expires,
}

impl Third {
    fn of(seed: u64) -> Third {
        // Each test plays every second seed.
        match seed / 2 % 4 {
            0 => Third::Spills,
            1 => Third::Refuses,
            2 => Third::DropsOldest,
            _ => Third::Expires,
        }
    }

    /// An event has some 130 bytes.
    fn attributes(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Third::Spills => &[("persistent", "true"), ("max_retries", "0")],
            Third::Refuses => &[
                ("persistent", "true"),
                ("max_retries", "0"),
                ("queue-full-policy", "refuse"),
                ("queue-max-bytes", "2000"),
            ],
            Third::DropsOldest => &[
                ("persistent", "true"),
                ("max_retries", "0"),
                ("queue-full-policy", "drop-oldest"),
                ("queue-max-bytes", "2400"),
            ],
            Third::Expires => &[("persistent", "true"), ("max_retries", "1000"), ("time_to_live", "2")],
        }
    }
}

/// Shards are spilled beyond some five events, into segments of some three.
fn tiny() -> Settings {
    let spill = SpillLimits { segment_bytes: 400, above_bytes: 600, resident_bytes: 1200 };
    Settings { spill, allowance_bytes: 400, ..settings() }
}

/// What came of a history.
struct Played {
    outcome: Result<(), String>,
    scenes: Scenes,
    /// How often the mutation broke its rule.
    struck: u64,
}

fn play(seed: u64, mutation: Mutation) -> Played {
    let third = Third::of(seed);
    let mut world = World::with_settings(seed, mutation, Faults::none(), 3, tiny());
    world.are_bounds_kept = true;
    world.make_topic("first", 3);
    world.make_topic("second", 2);
    world.make_topic_with("third", 2, third.attributes());
    let outcome = live(&mut world, third);
    let scenes = world.shared.check.lock().scenes.clone();
    Played { outcome, scenes, struck: world.shared.struck() }
}

/// One history: trouble, then peace.
fn live(world: &mut World, third: Third) -> Result<(), String> {
    world.cluster.set_faults(faults());
    let flaky = [world.topics[1].id.to_string(), world.topics[2].id.to_string()];
    world.shared.patient.lock().insert(flaky[1].clone());
    world.shared.dead.lock().insert(flaky[1].clone());
    for _ in 0..STEPS {
        let wait = world.random.range(5 * MILLI, 120 * MILLI);
        world.pass(wait);
        let at = world.random.index(world.gateways.len());
        match world.random.range(0, 100) {
            0..50 => {
                let count = world.random.range(1, 3);
                (0..count).for_each(|_| world.change(KEYS));
            }
            // The more gateways there were, the more may a queue that refuses exceed its limit.
            50..64 if third == Third::Refuses && world.crashes >= 4 => {}
            50..56 => world.crash(at),
            56..60 => crash_soon(world, at, 4),
            60..64 => {
                let (bucket, shards) = (world.random.range(0, 2), world.random.range(1, 5) as u32);
                world.reshard_bucket(at, bucket, shards);
                crash_soon(world, at, 6);
            }
            64..68 => {
                let (bucket, shards) = (world.random.range(0, 2), world.random.range(1, 5) as u32);
                world.reshard_bucket(at, bucket, shards);
            }
            68..73 => {
                let (topic, shards) = (world.random.index(3), world.random.range(1, 5) as u32);
                world.reshard(topic, shards);
            }
            73..79 => {
                let topic = &flaky[world.random.index(2)];
                let mut dead = world.shared.dead.lock();
                if !dead.remove(topic) {
                    dead.insert(topic.clone());
                }
            }
            79..82 => {
                let wait = world.random.range(SECOND, 6 * SECOND);
                world.executor.pause(world.gateways[at].process, wait);
            }
            82..85 => {
                let osd = world.random.range(0, 3) as u32;
                world.cluster.fail_osd(osd, SECOND);
            }
            85..88 => {
                let topic = world.random.index(2);
                world.replay(topic);
            }
            88..91 => {
                let forward = world.random.chance(500);
                world.jump(at, forward);
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
    check.broken.clone().map_or(Ok(()), Err)
}

/// A gateway ends at one of the next steps of its tasks, while changes go on.
fn crash_soon(world: &mut World, at: usize, changes: u64) {
    let polls = world.random.range(1, 300);
    world.executor.crash_after(world.gateways[at].process, polls);
    for _ in 0..changes {
        world.change(KEYS);
        world.pass(50 * MILLI);
    }
    world.crash(at);
}

/// Plays every second seed, from `first` on; or the one that the environment variable `SEED` names.
fn play_all(first: u64) {
    if let Ok(seed) = std::env::var("SEED") {
        let seed = seed.parse().expect("SEED is a number");
        assert_eq!(play(seed, Mutation::None).outcome, Ok(()), "seed {seed}");
        return;
    }
    let mut seen = Scenes::default();
    for seed in (first..seeds().0).step_by(2) {
        let played = play(seed, Mutation::None);
        if let Err(error) = played.outcome {
            panic!("seed {seed}: {error}");
        }
        seen.add(&played.scenes);
    }
    assert!(seen.missing().is_empty(), "{:?} are never played: {seen:?}", seen.missing());
}

#[test]
fn every_event_is_delivered_or_a_dead_letter_whoever_crashes() {
    play_all(0);
}

#[test]
fn every_event_is_delivered_or_a_dead_letter_in_other_histories() {
    play_all(1);
}

/// Fails unless the mutation breaks its rule and one of the histories notices that, by what it does wrong. Without the
/// mutation no history has an error.
fn noticed(mutation: Mutation, by: &str) {
    let (mut struck, mut others, runs) = (0, Vec::new(), seeds().1);
    for seed in 0..runs {
        let played = play(seed, mutation);
        struck += played.struck;
        match played.outcome {
            Err(error) if error.contains(by) => {
                assert!(played.struck > 0, "{mutation:?}, seed {seed}: nothing was broken: {error}");
                return;
            }
            Err(error) => others.push(error),
            Ok(()) => {}
        }
    }
    assert!(struck > 0, "{mutation:?} breaks nothing in {runs} histories");
    panic!("{mutation:?} breaks its rule {struck} times in {runs} histories, but they say: {others:?}");
}

#[test]
fn events_that_are_enqueued_before_the_commit_are_noticed() {
    noticed(Mutation::EnqueueBeforeCommit, "before its change takes effect");
}

#[test]
fn finishing_without_an_outbox_record_is_noticed() {
    noticed(Mutation::FinishWithoutOutbox, "is lost");
}

#[test]
fn outbox_records_that_are_lost_when_an_index_moves_are_noticed() {
    noticed(Mutation::DropAtBucketReshard, "is lost");
}

#[test]
fn settling_before_the_endpoint_has_the_event_is_noticed() {
    noticed(Mutation::TrimBeforeAck, "is settled before it is delivered");
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
fn events_in_an_index_that_a_reshard_left_frozen_are_delivered() {
    let mut world = World::new(3, Mutation::None, Faults::none(), 1);
    world.make_topic("t", 2);
    // Outbox records that no mover has seen yet.
    (0..10).for_each(|_| world.produce(KEYS));
    (0..2).for_each(|bucket| world.freeze_index(bucket));
    world.calm_down(60 * SECOND).unwrap();
    let letters = world.letters();
    let mut check = world.shared.check.lock();
    check.end(&letters);
    assert_eq!(check.broken, None);
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
