//! Deterministic simulation of whole clusters on a virtual clock.

pub mod client;
pub mod disk;
pub mod execute;
pub mod history;
pub mod invariants;
pub mod linearize;
pub mod monitor;
pub mod mutation;
pub mod nemesis;
pub mod network;
pub mod osd;
pub mod packet;
pub mod random;
pub mod scenario;
pub mod schedule;
pub mod sweep;
pub mod world;

use mutation::Mutation;
use scenario::Scenario;
use schedule::Nanos;

/// How a run is made.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// A rule to break.
    pub mutation: Option<Mutation>,
    /// Print every event.
    pub trace: bool,
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
}

/// Runs a scenario.
///
/// A machine that panics has broken its own invariant: that is a failure like any other, and replays.
pub fn run(scenario: &Scenario, options: &Options) -> Report {
    let run = || world::World::new(scenario, options).run();
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).unwrap_or_else(|cause| {
        let text = cause.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| cause.downcast_ref::<&str>().copied()).unwrap_or("no text");
        let failure = Failure { rule: format!("panic: {text}"), detail: String::new(), at: 0 };
        Report { failure: Some(failure), ..Report::default() }
    })
}
