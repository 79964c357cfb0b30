//! A cluster in memory, for tests of the gateway's parts. It executes operations as OSDs do and has no faults; its time is
//! virtual.

use crate::connection::Connection;
use crate::peers::Peers;
use nacre_sim::gateway::executor::{Executor, ProcessId};
use nacre_sim::gateway::faults::Faults;
use nacre_sim::gateway::mem_engine::MemCluster;
use std::sync::Arc;
use std::time::Duration;

/// The virtual time within which an operation must end.
const LIMIT: Duration = Duration::from_secs(60);

/// A cluster, and a process for all its clients.
pub(crate) struct TestCluster {
    executor: Executor,
    cluster: MemCluster,
    process: ProcessId,
}

impl TestCluster {
    /// An empty cluster.
    pub(crate) fn new() -> TestCluster {
        let executor = Executor::new(1, Default::default());
        let cluster = MemCluster::new(&executor, 1, Faults::none());
        let process = executor.start_process();
        TestCluster { executor, cluster, process }
    }

    /// The connection of another gateway, with a session of its own. The gateway does not watch, so it caches nothing.
    pub(crate) fn connect(&self) -> (Arc<Connection>, Arc<Peers>) {
        let cluster = self.cluster.connect(self.process);
        let connection = self.run(async { Connection::open(cluster, true).await.unwrap() });
        let connection = Arc::new(connection);
        let peers = Peers::new(&connection);
        (connection, peers)
    }

    /// Runs a future to its end.
    pub(crate) fn run<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> T {
        self.executor.run(self.process, LIMIT.as_nanos() as u64, future).expect("it must end in time")
    }

    /// Sets an option of the monitors.
    pub(crate) fn set_option(&self, name: &str, value: &str) {
        self.cluster.set_option(name, value);
    }

    /// Lets time pass.
    pub(crate) fn pass(&self, time: Duration) {
        self.executor.run_for(time.as_nanos() as u64);
    }
}
