//! Deterministic simulation of whole clusters on a virtual clock.
//!
//! A cluster that keeps data through crashes is easy to build and hard to trust: it fails because of a message that is late
//! by a millisecond, in an order that was not considered. So the parts of Nacre that decide about data are pure:
//! [`nacre_pg::Pg`] (replication), its leases and heartbeats, and [`nacre_mon::logic::MapState`] (the cluster map) take
//! events and return commands, without a clock, a socket or a disk of their own; [`nacre_exec`] turns a client's request and
//! the data read from a store into results and a transaction. In production the OSD and the map authority run them; this
//! crate runs the same machines in a world that controls everything else.
//!
//! # The world
//!
//! [`world`] is one queue of events at virtual times ([`schedule`]). Machines are [`osd`]s with their own [`disk`]s and
//! clocks, the map authority ([`monitor`]) on a store whose commits may be lost or rolled back, and [`client`]s that resend
//! according to rule R6. They are connected by a [`network`] of ordered connections that break, stall, lose suffixes and
//! deliver ghosts. A [nemesis](world::nemesis) causes faults of some thirty kinds. The seed's [`scenario`], modified by its
//! [profile](scenario::profile), determines which faults occur, how often and on what cluster. [`bounds`] counts how often bounds
//! were reached.
//!
//! The seed is the only source of randomness: one 64-bit number determines a history, and replays it exactly. Streams of
//! randomness are independent ([`random`]), so that removing a kind of fault from a failing history does not change the rest;
//! [`sweep`] minimises failures in this way.
//!
//! Asynchronous code above the engine has its own world ([`gateway`]): an executor whose order and clocks are derived from
//! the seed, and an engine over objects in memory. It also runs on whole clusters, in processes that are clients of them ([`program`]).
//!
//! # What is checked
//!
//! After every step ([`invariants`], [`history`]):
//! - every acknowledged write is durable on every in-sync member whose disk is intact;
//! - no interval has two memberships; no earlier interval acts after a later one has;
//! - all updates of an interval are ordered by one process;
//! - at no instant do two OSDs serve one PG;
//! - an object is refused with EIO only if no in-sync member has a readable copy of it;
//! - versions answered to clients never decrease, identify one write and one value, and resends get the first answer;
//! - transactions apply, queues are bounded, machines' own assertions hold.
//!
//! After the faults have stopped: the cluster becomes whole by itself within bounded time, every request is answered, all
//! copies of a PG are the same, and the history of every object is linearizable ([`linearize`]).
//!
//! # Why to trust it
//!
//! The checker refuses hand-made bad histories. Each rule, and the sessions between OSDs, has [`mutation`]s: breaches built
//! into the machines that must be noticed within a bounded number of seeds. `docs/simulation.md` describes how to use it.

pub mod bounds;
pub mod client;
pub mod disk;
pub mod gateway;
pub mod history;
pub mod interpreter;
pub mod invariants;
pub mod linearize;
pub mod monitor;
pub mod mutation;
pub mod mutation_test;
pub mod network;
pub mod osd;
pub mod packet;
pub mod pattern;
pub mod program;
pub mod random;
pub mod scenario;
pub mod schedule;
pub mod sessions;
pub mod stalls;
pub mod store;
pub mod sweep;
pub mod world;

use bounds::BoundCounts;
use mutation::Mutation;
use program::Program;
use scenario::{Fault, Scenario};
use schedule::Nanos;
use sessions::SessionTrouble;
use std::collections::BTreeMap;

/// Options of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// A rule to break.
    pub mutation: Option<Mutation>,
    /// Whether to print every event.
    pub trace: bool,
    /// Whether to hash the full contents of every message, and at the end every disk.
    pub thorough: bool,
}

/// A broken guarantee.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The rule, in a few words.
    pub rule: String,
    /// Details.
    pub detail: String,
    /// When, in true time.
    pub at: Nanos,
}

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The first broken guarantee, if any.
    pub failure: Option<Failure>,
    /// A hash of all events in order; it is the same for the same seed.
    pub hash: u64,
    /// The number of simulated events.
    pub events: u64,
    /// The number of answered requests.
    pub answered: u64,
    /// Virtual nanoseconds.
    pub virtual_ns: u64,
    /// How often each kind of fault had an effect.
    pub struck: BTreeMap<Fault, u64>,
    /// How often each event of sessions and connections occurred.
    pub sessions: BTreeMap<SessionTrouble, u64>,
    /// How often bounds were reached.
    pub reached: BoundCounts,
    /// How often the machines reached a point where a rule is broken on purpose.
    pub breaches: u64,
}

/// How often the machines reached a point where a rule is broken on purpose, since the last call.
fn take_breaches() -> u64 {
    nacre_pg::take_breaches() + nacre_session::take_breaches() + stalls::take_breaches()
}

/// Runs a scenario.
///
/// A panic means that a machine's own invariant is broken: it is a failure like any other, and is replayable.
pub fn run(scenario: &Scenario, options: &Options) -> Report {
    run_program(scenario, options, program::of(scenario))
}

/// Runs a scenario with this program in its processes.
pub fn run_program(scenario: &Scenario, options: &Options, program: Option<Box<dyn Program>>) -> Report {
    let run = || world::World::new(scenario, options, program).run();
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).unwrap_or_else(|cause| {
        let text = cause.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| cause.downcast_ref::<&str>().copied()).unwrap_or("no text");
        let failure = Failure { rule: format!("panic: {text}"), detail: String::new(), at: 0 };
        Report { failure: Some(failure), breaches: take_breaches(), ..Report::default() }
    })
}
