//! Programs that run on a simulated cluster: asynchronous code above the engine, in processes that end and are paused.
//!
//! A [`Program`] has a few processes. Each speaks to the cluster by a client of its own, whose objecter is production's, so that
//! all that befalls the cluster befalls the program. The world starts processes, ends them at any step, pauses them and puts their
//! sessions on the blocklist ([`crate::world`]); the program says what they do, keeps the history of it, and judges it.

pub mod striper;

use crate::gateway::executor::{ProcessId, Scheduler};
use crate::history::Broken;
use crate::profile::Profile;
use crate::scenario::Scenario;
use crate::schedule::Nanos;
use nacre_engine::Cluster;
use nacre_engine::engine::ObjectRequest;
use nacre_task::{BoxedTask, Env};

/// What a process has when it starts.
pub struct Start {
    /// Its place among the program's processes.
    pub place: usize,
    /// The process, for who ends it.
    pub process: ProcessId,
    /// Its clocks, tasks and random numbers.
    pub env: Env,
    /// True time, for histories.
    pub scheduler: Scheduler,
    /// The cluster, by a session of its own.
    pub cluster: Cluster,
}

/// What processes do, and what must hold of it.
pub trait Program {
    /// What a process does, until it is asked to finish.
    fn start(&mut self, start: Start) -> BoxedTask;

    /// Changes a request before it leaves: a rule that processes break on purpose.
    fn change(&self, request: ObjectRequest) -> ObjectRequest {
        request
    }

    /// After what time processes give a request up (`rados_osd_op_timeout`).
    fn op_timeout(&self) -> Option<Nanos> {
        None
    }

    /// The process at this place has ended where it was, or its session is over.
    fn ended(&mut self, place: usize);

    /// Processes are to end what they are at, and to begin nothing more.
    fn finish(&mut self);

    /// What one more process does when all is quiet: it looks at everything once more.
    fn last_looks(&mut self, start: Start) -> BoxedTask;

    /// The first promise that was broken, if any.
    fn broken(&self) -> Option<Broken>;

    /// What it came to, for reports.
    fn describe(&self) -> String;
}

/// The program of a scenario, if it has one.
pub fn of(scenario: &Scenario) -> Option<Box<dyn Program>> {
    match scenario.profile {
        Profile::Striper => Some(Box::new(striper::StriperProgram::new(scenario))),
        _ => None,
    }
}
