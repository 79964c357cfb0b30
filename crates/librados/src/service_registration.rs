//! The registration of a program as a daemon of a service.
//!
//! A thread of the cluster handle reports to the map authority every few seconds that the program still runs. It ends with the
//! handle.

use crate::guard::ApiResult;
use nacre_client::Cluster;
use nacre_types::errno::Errno;
use parking_lot::{Condvar, Mutex};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Interval between reports. The map authority removes a daemon after a minute without reports.
const PERIOD: Duration = Duration::from_secs(5);

/// Facts that a daemon reports about itself, by name.
pub(crate) type ServiceMetadata = BTreeMap<String, String>;

/// A registered daemon of a service.
pub(crate) struct ServiceRegistration {
    service: String,
    daemon: String,
    metadata: ServiceMetadata,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    status: ServiceMetadata,
    /// Whether there is something new to report.
    is_dirty: bool,
    stopped: bool,
}

impl ServiceRegistration {
    /// Describes a daemon that does not report yet.
    pub(crate) fn new(service: &str, daemon: &str, metadata: ServiceMetadata) -> ServiceRegistration {
        let (service, daemon) = (service.to_owned(), daemon.to_owned());
        ServiceRegistration { service, daemon, metadata, shared: Arc::default(), thread: None }
    }

    /// Starts to report to the cluster.
    pub(crate) fn start(&mut self, cluster: Cluster) -> ApiResult<()> {
        let shared = self.shared.clone();
        let beacon = json!({
            "prefix": "service beacon",
            "service": self.service,
            "daemon": self.daemon,
            "gid": cluster.instance_id(),
            "addr": cluster.address().map(|addr| addr.to_string()).unwrap_or_default(),
            "metadata": json!(self.metadata).to_string(),
        });
        let run = move || run(&shared, &cluster, beacon);
        let thread = std::thread::Builder::new().name("librados-service".into()).spawn(run);
        self.thread = Some(thread.map_err(|_| Errno::EAGAIN)?);
        Ok(())
    }

    /// Sets the current status of the daemon.
    pub(crate) fn set_status(&self, status: ServiceMetadata) {
        let mut state = self.shared.state.lock();
        state.status = status;
        state.is_dirty = true;
        drop(state);
        self.shared.changed.notify_all();
    }
}

impl Drop for ServiceRegistration {
    fn drop(&mut self) {
        self.shared.state.lock().stopped = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that tells of a service's daemon panicked");
        }
    }
}

fn run(shared: &Shared, cluster: &Cluster, mut beacon: serde_json::Value) {
    loop {
        let status = {
            let mut state = shared.state.lock();
            if state.stopped {
                return;
            }
            state.is_dirty = false;
            state.status.clone()
        };
        beacon["status"] = json!(status).to_string().into();
        if let Err(error) = cluster.command(beacon.to_string(), Vec::new()).wait() {
            tracing::warn!(%error, "the cluster could not be told that a service's daemon runs");
        }
        let mut state = shared.state.lock();
        if !state.stopped && !state.is_dirty {
            shared.changed.wait_for(&mut state, PERIOD);
        }
    }
}
