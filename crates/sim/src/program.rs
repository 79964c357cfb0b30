//! Programs on a simulated cluster: asynchronous code above the engine, in processes that end and are paused.
//!
//! A [`Program`] has a few processes. Each uses the cluster by a client of its own, whose objecter is production's, so that
//! all faults of the cluster affect the program. The world starts processes, ends them at any step, pauses them and puts
//! their sessions on the blocklist ([`crate::world`]). The program defines their actions, records their history, and checks it.

pub mod striper;

use crate::gateway::executor::{ProcessId, Scheduler};
use crate::history::GuaranteeViolation;
use crate::scenario::Scenario;
use crate::scenario::profile::Profile;
use crate::schedule::Nanos;
use nacre_engine::Cluster;
use nacre_engine::engine::ObjectRequest;
use nacre_task::{BoxedFuture, Env};

/// The environment of a process at its start.
pub struct ProcessContext {
    /// Its place among the program's processes.
    pub place: usize,
    /// The process, for ending it.
    pub process: ProcessId,
    /// Its clocks, tasks and random numbers.
    pub env: Env,
    /// True time, for histories.
    pub scheduler: Scheduler,
    /// The cluster, with a separate session.
    pub cluster: Cluster,
}

/// The actions of processes, and the checks of their results.
pub trait Program {
    /// The actions of a process, until it is requested to finish.
    fn start(&mut self, start: ProcessContext) -> BoxedFuture;

    /// Changes a request before it is sent: a rule that processes break on purpose.
    fn change(&self, request: ObjectRequest) -> ObjectRequest {
        request
    }

    /// The timeout of processes' requests (`rados_osd_op_timeout`).
    fn op_timeout(&self) -> Option<Nanos> {
        None
    }

    /// The process at this place has ended abruptly, or its session is over.
    fn ended(&mut self, place: usize);

    /// Processes are to complete their current operations and start no more.
    fn finish(&mut self);

    /// The actions of one more process after all others have finished: it checks everything once more.
    fn last_looks(&mut self, start: ProcessContext) -> BoxedFuture;

    /// The first broken guarantee, if any.
    fn broken(&self) -> Option<GuaranteeViolation>;

    /// A summary for reports.
    fn describe(&self) -> String;
}

/// The program of a scenario, if it has one.
pub fn of(scenario: &Scenario) -> Option<Box<dyn Program>> {
    match scenario.profile {
        Profile::Striper => Some(Box::new(striper::StriperProgram::new(scenario))),
        _ => None,
    }
}
