//! Deterministic simulation of whole clusters on a virtual clock.
//!
//! A cluster that keeps data through crashes is easy to build and hard to believe in: what breaks it is a message that
//! is late by a millisecond in the one order that nobody thought of. So the parts of Nacre that decide about data are
//! pure: [`nacre_pg::Pg`] (replication), its leases and heartbeats, and [`nacre_mon::logic::MapState`] (the cluster map)
//! take events and return commands, without a clock, a socket or a disk of their own; [`nacre_exec`] turns a client's request and
//! what is read of a store into results and a transaction. The OSD and the map authority host
//! them in life; this crate hosts the same machines in a world where it decides everything else.
//!
//! # The world
//!
//! [`world`] is one queue of things that happen at virtual times ([`schedule`]). Machines are [`osd`]s with [`disk`]s and
//! clocks of their own, the map authority ([`monitor`]) on a store whose commits may be lost or rolled back, and
//! [`client`]s that resend by rule R6. Between them lies a [`network`] of ordered connections that break, stall, lose
//! suffixes and deliver ghosts. A [`nemesis`] makes trouble of some thirty kinds; which, how often and on what
//! cluster is the seed's [`scenario`], as its [`profile`] bends it. How often that came to [`bounds`] is counted.
//!
//! Nothing is random but by the seed: one 64-bit number names a history, and replays it exactly. Streams of randomness
//! are independent ([`random`]), so that a kind of trouble can be taken out of a failing history without disturbing the
//! rest: that is how [`sweep`] makes failures small.
//!
//! Asynchronous code above the engine has a world of its own ([`gateway`]): an executor whose order and clocks come from
//! the seed, and an engine over objects in memory. It runs on whole clusters, too, in processes that are clients of them
//! ([`program`]).
//!
//! # What is checked
//!
//! After every step ([`invariants`], [`history`]):
//! - every acknowledged write is durable on every in-sync member whose disk is intact;
//! - no interval has two memberships; no earlier interval acts after a later one has;
//! - all updates of an interval are ordered by one process;
//! - at no instant do two OSDs serve one PG;
//! - an object is refused with EIO only where no member in sync has a copy of it that can be read;
//! - versions answered to clients never go back, name one write and one value, and resends get the first answer;
//! - transactions apply, queues are bounded, machines' own assertions hold.
//!
//! And when the trouble has stopped: the cluster becomes whole by itself within bounded time, every request is answered,
//! all copies of a PG are the same, and the history of every object is linearizable ([`linearize`]).
//!
//! # Why to believe it
//!
//! The checker refuses hand-made bad histories, and each rule, and the sessions between OSDs, has [`mutation`]s: breaches built into the
//! machines that a bounded number of seeds must notice. `docs/simulation.md` says how to work with it.

pub mod bounds;
pub mod client;
pub mod contents;
pub mod disk;
pub mod gateway;
pub mod history;
pub mod interpreter;
pub mod invariants;
pub mod linearize;
pub mod listing;
pub mod monitor;
pub mod mutation;
pub mod nemesis;
pub mod network;
pub mod notice;
pub mod osd;
pub mod packet;
pub mod pattern;
pub mod profile;
pub mod program;
pub mod random;
pub mod scenario;
pub mod schedule;
pub mod sessions;
pub mod store;
pub mod sweep;
pub mod watching;
pub mod world;

use bounds::Bounds;
use mutation::Mutation;
use program::Program;
use scenario::{Fault, Scenario};
use schedule::Nanos;
use sessions::SessionTrouble;
use std::collections::BTreeMap;

/// How a run is made.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// A rule to break.
    pub mutation: Option<Mutation>,
    /// Print every event.
    pub trace: bool,
    /// Hash all of every message, and at the end every disk.
    pub thorough: bool,
}

/// Which promise was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// In a few words.
    pub rule: String,
    /// What happened.
    pub detail: String,
    /// When, in true time.
    pub at: Nanos,
}

/// What came of a run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The first promise that was broken, if any.
    pub failure: Option<Failure>,
    /// A hash of everything that happened, in order: the same seed gives the same.
    pub hash: u64,
    /// Events simulated.
    pub events: u64,
    /// Requests answered.
    pub answered: u64,
    /// Virtual nanoseconds.
    pub virtual_ns: u64,
    /// How often each kind of fault had an effect.
    pub struck: BTreeMap<Fault, u64>,
    /// What befell sessions and connections, and how often.
    pub sessions: BTreeMap<SessionTrouble, u64>,
    /// How often bounds were reached.
    pub reached: Bounds,
    /// How often the machines came to where a rule is broken on purpose.
    pub breaches: u64,
}

/// How often the machines came to where a rule is broken on purpose since this was asked last.
fn take_breaches() -> u64 {
    nacre_pg::take_breaches() + nacre_session::take_breaches() + osd::take_breaches()
}

/// Runs a scenario.
///
/// A machine that panics has broken its own invariant: that is a failure like any other, and replays.
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
