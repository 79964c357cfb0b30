//! All interleavings of requests on one key, with gateways that die after any step and others that recover.
//!
//! A scene is what was there before and the requests, each of a gateway of its own. From every state each gateway may
//! execute its next RADOS operation or die, and so may a gateway that recovers what dead ones left. After each step events
//! must be a beginning of the list of changes that took effect, in the order in which they did; when nothing goes on, all of
//! it, and the index must agree with the head with nothing left behind. Mutations break the protocol on purpose, and must
//! be noticed.

use crate::gateway::{self, Actor, Cluster, KEY, OBJECT, Phase, Recovery, Request};
use Request::{Copy, Delete, Put, PutIfAbsent, PutUnread, Tagging};
use bytes::Bytes;
use nacre_index::key::{self, IndexRecordKind};
use nacre_index::op::{Fetched, Guard, Step, Write};
use nacre_index::outbox;
use nacre_index::record::{self, Entry, EventSubject, Stats};
use nacre_index::seq::Seq;
use nacre_index::state;
use std::collections::HashSet;
use std::hash::{Hash, Hasher};

/// What the protocol is broken by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Mutation {
    None,
    /// Finishing drops events.
    NoOutbox,
    /// A commit does not keep the evidence of the one before it.
    NoEvidence,
    /// A tombstone is removed whatever the head is by then.
    UnguardedTidy,
    /// A removal removes the head although other changes are pending.
    NeverATombstone,
    /// A removal slot is given to several changes.
    SharedSlot,
}

/// A change that took effect: its tag, and the object that its event is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Truth {
    pub(crate) tag: String,
    pub(crate) subject: EventSubject,
}

/// What there was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    Nothing,
    Object,
    /// An object and an entry that were converted from format 1.
    Legacy,
}

/// How far a scene is explored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Bounds {
    /// Gateways that may die.
    crashes: u8,
    /// Times that the recovering gateway dies and another one begins again.
    restarts: u8,
    /// Times that the index moves to another shard.
    moves: u8,
    /// A step ends before the next write instead of after one operation.
    coarse: bool,
}

const FINE: Bounds = Bounds { crashes: 2, restarts: 1, moves: 0, coarse: false };
const COARSE: Bounds = Bounds { crashes: 2, restarts: 0, moves: 0, coarse: true };
/// Operations that recovery takes at most.
const LONGEST_RECOVERY: usize = 100;
const TAGS: [&str; 4] = ["tag-a", "tag-b", "tag-c", "tag-d"];
const STARTS: [Start; 3] = [Start::Nothing, Start::Object, Start::Legacy];

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    cluster: Cluster,
    actors: Vec<Actor>,
    recovery: Recovery,
    truth: Vec<Truth>,
    /// What may still happen.
    bounds: Bounds,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Step(usize),
    Crash(usize),
    Recover,
    Restart,
    Move,
}

impl World {
    fn new(start: Start, requests: &[Request], bounds: Bounds) -> World {
        let mut cluster = Cluster::default();
        let open = Bytes::from_static(state::OPEN.as_bytes());
        let create = Write { guards: vec![Guard::Create], steps: vec![Step::SetAttr(state::STATE, open)] };
        cluster.shard.write(&create).unwrap();
        let (actors, truth) = (Vec::new(), Vec::new());
        let mut world = World { cluster, actors, recovery: Recovery::Idle, truth, bounds };
        match start {
            Start::Nothing => {}
            Start::Object => {
                let mut actor = Actor::new(Put, "before", 5);
                while !actor.has_ended() {
                    actor.step(&mut world.cluster, &mut world.truth, Mutation::None);
                }
            }
            Start::Legacy => world.begin_with_format_1(),
        }
        let request = |(at, request): (usize, &Request)| Actor::new(*request, TAGS[at], 10 + at as u64);
        world.actors = requests.iter().enumerate().map(request).collect();
        world
    }

    fn begin_with_format_1(&mut self) {
        let object = vec![Step::SetAttr(OBJECT, gateway::object_attr("before", 5))];
        self.cluster.head.write(&Write { guards: vec![Guard::Create], steps: object }).unwrap();
        let entry = Entry { seq: Seq::LEGACY, object: Some(gateway::listed("before", 5)) };
        let records = vec![
            (key::entry(KEY), record::encode(&entry)),
            (Bytes::from_static(key::STATS), record::encode(&Stats { objects: 1, bytes: 5 })),
        ];
        let records = Write { guards: Vec::new(), steps: vec![Step::OmapSet(records)] };
        self.cluster.shard.write(&records).unwrap();
    }

    fn dead(&self) -> Vec<&'static str> {
        let dead = self.actors.iter().filter(|actor| actor.phase == Phase::Dead);
        dead.map(|actor| actor.tag).collect()
    }

    fn is_quiet(&self) -> bool {
        self.actors.iter().all(Actor::has_ended)
    }

    fn may_recover(&self) -> bool {
        let (dead, quiet) = (self.dead(), self.is_quiet());
        // Asked only where it can be so: it costs reads.
        let may_be = self.recovery != Recovery::Idle || !dead.is_empty() || quiet;
        may_be && self.recovery.is_enabled(&self.cluster, &dead, quiet)
    }

    fn actions(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        for at in (0..self.actors.len()).filter(|at| !self.actors[*at].has_ended()) {
            actions.push(Action::Step(at));
            if self.bounds.crashes > 0 {
                actions.push(Action::Crash(at));
            }
        }
        if self.may_recover() {
            actions.push(Action::Recover);
        }
        if self.bounds.restarts > 0 && self.recovery != Recovery::Idle {
            actions.push(Action::Restart);
        }
        if self.bounds.moves > 0 && !actions.is_empty() {
            actions.push(Action::Move);
        }
        actions
    }

    fn act(&mut self, action: Action, mutation: Mutation) {
        let coarse = self.bounds.coarse;
        match action {
            Action::Step(at) => loop {
                let actor = &mut self.actors[at];
                actor.step(&mut self.cluster, &mut self.truth, mutation);
                if !coarse || actor.writes_next() {
                    break;
                }
            },
            Action::Crash(at) => {
                self.actors[at].end(Phase::Dead);
                self.bounds.crashes -= 1;
            }
            Action::Recover => loop {
                let (dead, quiet) = (self.dead(), self.is_quiet());
                let recovery = std::mem::replace(&mut self.recovery, Recovery::Idle);
                self.recovery = recovery.step(&mut self.cluster, (&dead, quiet), mutation);
                if !coarse || self.recovery.writes_next() {
                    break;
                }
            },
            Action::Restart => {
                self.recovery = Recovery::Idle;
                self.bounds.restarts -= 1;
            }
            Action::Move => {
                self.cluster.move_index();
                self.bounds.moves -= 1;
            }
        }
    }

    /// Events are those of the first changes that took effect, in their order.
    fn check_events(&self) -> Result<usize, String> {
        let reply = self.cluster.shard.read(&outbox::read(Bytes::new(), 100)).unwrap();
        let [Fetched::Page(page)] = &reply.parts[..] else { panic!("{reply:?}") };
        let events = outbox::parse("shard", page).unwrap();
        for (at, event) in events.iter().enumerate() {
            let found = Truth { tag: event.record.tag.clone(), subject: event.record.subject.clone() };
            if self.truth.get(at) != Some(&found) {
                return Err(format!("event {at} is {found:?}, and what took effect {:?}", self.truth));
            }
        }
        Ok(events.len())
    }

    /// All requests have ended: what is left to recover comes to an end, too.
    fn check_quiet(&self, mutation: Mutation) -> Result<(), String> {
        let mut world = self.clone();
        for _ in 0..LONGEST_RECOVERY {
            if !world.may_recover() {
                return world.check_end();
            }
            world.act(Action::Recover, mutation);
        }
        Err("recovery does not come to an end".into())
    }

    /// Nothing goes on any more.
    fn check_end(&self) -> Result<(), String> {
        let events = self.check_events()?;
        if events != self.truth.len() {
            return Err(format!("{events} events of {:?}", self.truth));
        }
        let shard = self.cluster.shard.object.as_ref().unwrap();
        for kind in [IndexRecordKind::Pending, IndexRecordKind::Slot, IndexRecordKind::Tidy] {
            if shard.omap.keys().any(|name| name.first() == Some(&kind.byte())) {
                return Err(format!("a record of kind {kind:?} is left"));
            }
        }
        let shown = gateway::shown(&self.cluster.head);
        if self.cluster.head.object.is_some() != shown.is_some() {
            return Err("a tombstone is left".into());
        }
        if gateway::has_earlier_evidence(&self.cluster.head) {
            return Err("evidence is left".into());
        }
        let entry = shard.omap.get(&key::entry(KEY));
        let entry = entry.map(|value| record::decode::<Entry>("entry", value).unwrap());
        let seq = gateway::last_change(&self.cluster.head).map_or(Seq::LEGACY, |change| change.seq);
        let object = shown.as_ref().map(|(tag, size)| gateway::listed(tag, *size));
        let expected = object.map(|object| Entry { seq, object: Some(object) });
        if entry != expected {
            return Err(format!("the entry is {entry:?} and the head {expected:?}"));
        }
        let stats = shard.omap.get(key::STATS);
        let stats = stats.map_or_else(Stats::default, |value| record::decode("sums", value).unwrap());
        let expected = expected.as_ref().map_or_else(Stats::default, Entry::counted);
        if stats != expected { Err(format!("the sums are {stats:?}")) } else { Ok(()) }
    }
}

/// A hash of 128 bits, wide enough to stand for a state.
struct Print(u64, u64);

impl Hasher for Print {
    fn write(&mut self, bytes: &[u8]) {
        for word in bytes.chunks(8) {
            let mut padded = [0; 8];
            padded[..word.len()].copy_from_slice(word);
            let word = u64::from_le_bytes(padded) ^ (word.len() as u64) << 59;
            self.0 = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
            self.1 = (self.1.rotate_left(23) ^ word).wrapping_mul(0xd6e8_feb8_6659_fd93);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

fn print(world: &World) -> (u64, u64) {
    let mut print = Print(1, 2);
    world.hash(&mut print);
    (print.0, print.1)
}

/// Explores all that can happen; returns how many states there are, or what went wrong and how it came to that.
fn explore(start: Start, requests: &[Request], bounds: Bounds, mutation: Mutation) -> Result<usize, String> {
    let first = World::new(start, requests, bounds);
    let mut seen = HashSet::from([print(&first)]);
    let mut open = vec![(first, Vec::new())];
    while let Some((world, path)) = open.pop() {
        let wrong = |what: String, path: &[Action]| format!("{start:?} {requests:?} {path:?}: {what}");
        let actions = world.actions();
        if world.is_quiet() {
            world.check_quiet(mutation).map_err(|what| wrong(what, &path))?;
        }
        for action in actions {
            let mut next = world.clone();
            next.act(action, mutation);
            if seen.insert(print(&next)) {
                let mut path = path.clone();
                path.push(action);
                next.check_events().map_err(|what| wrong(what, &path))?;
                open.push((next, path));
            }
        }
    }
    Ok(seen.len())
}

/// Explores every choice of `count` out of `requests`, with repetition.
fn explore_all(starts: &[Start], requests: &[Request], count: usize, bounds: Bounds) -> usize {
    let mut choices: Vec<Vec<usize>> = vec![Vec::new()];
    for _ in 0..count {
        let longer = |choice: &Vec<usize>| {
            let least = choice.last().copied().unwrap_or(0);
            let choice = choice.clone();
            (least..requests.len()).map(move |next| [&choice[..], &[next]].concat()).collect::<Vec<_>>()
        };
        choices = choices.iter().flat_map(longer).collect();
    }
    let mut states = 0;
    for choice in choices {
        let chosen: Vec<Request> = choice.iter().map(|at| requests[*at]).collect();
        for start in starts {
            states += explore(*start, &chosen, bounds, Mutation::None).unwrap();
        }
    }
    states
}

fn is_noticed(start: Start, requests: &[Request], bounds: Bounds, mutation: Mutation) {
    explore(start, requests, bounds, Mutation::None).unwrap();
    let noticed = explore(start, requests, bounds, mutation);
    assert!(noticed.is_err(), "{mutation:?} is not noticed in {} states", noticed.unwrap());
}

#[test]
fn pairs_of_requests_have_exactly_their_events() {
    let states = explore_all(&STARTS, &[Put, Delete, Tagging], 2, FINE);
    assert!(states > 10_000, "only {states} states");
}

#[test]
fn copies_and_conditional_writes_have_exactly_their_events() {
    for pair in
        [[Copy, Put], [Copy, Delete], [PutIfAbsent, Put], [PutIfAbsent, PutIfAbsent], [PutIfAbsent, Delete]]
    {
        for start in [Start::Nothing, Start::Object] {
            explore(start, &pair, FINE, Mutation::None).unwrap();
        }
    }
}

#[test]
fn writes_to_keys_that_are_expected_to_be_new_have_exactly_their_events() {
    for pair in [[PutUnread, PutUnread], [PutUnread, Put], [PutUnread, Delete], [PutUnread, Tagging]] {
        for start in STARTS {
            explore(start, &pair, FINE, Mutation::None).unwrap();
        }
    }
    for triple in [[PutUnread, PutUnread, Delete], [PutUnread, Delete, Delete], [PutUnread, Put, Delete]] {
        for start in [Start::Nothing, Start::Object] {
            explore(start, &triple, COARSE, Mutation::None).unwrap();
        }
    }
}

#[test]
fn pairs_have_exactly_their_events_while_the_index_moves() {
    let bounds = Bounds { crashes: 2, restarts: 0, moves: 1, coarse: false };
    let states = explore_all(&STARTS, &[Put, Delete, Tagging], 2, bounds);
    assert!(states > 10_000, "only {states} states");
}

#[test]
fn triples_of_requests_have_exactly_their_events() {
    let states = explore_all(&[Start::Nothing, Start::Object], &[Put, Delete, Tagging], 3, COARSE);
    assert!(states > 10_000, "only {states} states");
}

#[test]
fn triples_have_exactly_their_events_at_every_operation() {
    let bounds = Bounds { crashes: 0, restarts: 0, moves: 0, coarse: false };
    for triple in [[Put, Put, Delete], [Put, Delete, Delete]] {
        explore(Start::Object, &triple, bounds, Mutation::None).unwrap();
    }
}

/// Longer scenes, each of them played once as its number says.
#[test]
fn random_scenes_of_four_requests_have_exactly_their_events() {
    for seed in 0..2_000_u64 {
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut choose = |below: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random % below as u64) as usize
        };
        let all = [Put, PutUnread, Copy, PutIfAbsent, Delete, Delete, Tagging];
        let requests: Vec<Request> = (0..4).map(|_| all[choose(all.len())]).collect();
        let bounds = Bounds { crashes: 3, restarts: 2, moves: 1, coarse: false };
        let mut world = World::new(STARTS[choose(STARTS.len())], &requests, bounds);
        let mut path = Vec::new();
        loop {
            let actions = world.actions();
            if actions.is_empty() {
                break;
            }
            let action = actions[choose(actions.len())];
            path.push(action);
            world.act(action, Mutation::None);
            world.check_events().unwrap_or_else(|what| panic!("seed {seed} {requests:?} {path:?}: {what}"));
        }
        world.check_end().unwrap_or_else(|what| panic!("seed {seed} {requests:?} {path:?}: {what}"));
    }
}

#[test]
fn a_finish_without_outbox_is_noticed() {
    is_noticed(Start::Nothing, &[Put], FINE, Mutation::NoOutbox);
}

#[test]
fn a_commit_that_drops_evidence_is_noticed() {
    is_noticed(Start::Nothing, &[Put, Put], FINE, Mutation::NoEvidence);
    is_noticed(Start::Object, &[Put, Delete], FINE, Mutation::NoEvidence);
}

#[test]
fn tidying_without_guard_is_noticed() {
    is_noticed(Start::Object, &[Delete, Delete, Put], COARSE, Mutation::UnguardedTidy);
}

#[test]
fn a_removal_that_never_leaves_a_tombstone_is_noticed() {
    let bounds = Bounds { crashes: 0, restarts: 0, moves: 0, coarse: false };
    is_noticed(Start::Nothing, &[Put, Put, Delete], bounds, Mutation::NeverATombstone);
}

#[test]
fn a_slot_that_several_removals_hold_is_noticed() {
    is_noticed(Start::Object, &[Delete, Delete], FINE, Mutation::SharedSlot);
}
