//! The map authority as a daemon: its admin socket, `tell mon.a`, and its metrics.

use crate::input::Input;
use crate::sessions::Sessions;
use nacre_common::config::Config;
use nacre_common::metrics::{Exposition, Metric, PerfCounters};
use nacre_mon::logic::{MapState, Now};
use nacre_runtime::admin::socket::CommandHandler;
use nacre_runtime::admin::{self, AdminReply, CommandFailure};
use nacre_types::command::mon_daemon_commands;
use nacre_types::errno::Errno;
use parking_lot::Mutex;
use serde_json::json;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

/// The authority's thread answers quickly, or has ended.
const PATIENCE: Duration = Duration::from_secs(10);

/// Executes commands of the admin socket on the authority's thread.
pub(super) fn socket_handler(inputs: &Sender<Input>) -> CommandHandler {
    let inputs = inputs.clone();
    Arc::new(move |json| {
        let (answer, answered) = channel();
        let sent = inputs.send(Input::Admin(json.to_owned(), answer)).is_ok();
        let reply = if sent { answered.recv_timeout(PATIENCE).ok() } else { None };
        reply.unwrap_or_else(|| CommandFailure(Errno::ESHUTDOWN, "the daemon is going".into()).into())
    })
}

/// A handle to request the cluster's metrics from a map authority. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct MonMetrics(pub(super) Sender<Input>);

impl MonMetrics {
    /// Returns the current metrics and the addresses of the endpoints of all daemons. Blocks until the authority has
    /// answered. Returns empty results if it has ended.
    pub fn collect(&self) -> (Exposition, Vec<String>) {
        let (answer, answered) = channel();
        let sent = self.0.send(Input::Metrics(answer)).is_ok();
        let answer = if sent { answered.recv_timeout(PATIENCE).ok() } else { None };
        answer.unwrap_or_default()
    }
}

/// The daemon's own commands and counters.
pub(super) struct MonAdmin {
    pub(super) common: admin::DaemonCommands,
    /// Counters of the map, as of the last command.
    counters: Arc<Mutex<Vec<Metric>>>,
}

impl MonAdmin {
    pub(super) fn new(config: Config, perf: PerfCounters) -> MonAdmin {
        let counters: Arc<Mutex<Vec<Metric>>> = Arc::default();
        let shown = Arc::clone(&counters);
        perf.add_source(move |out| out.extend(shown.lock().iter().copied()));
        MonAdmin { common: admin::DaemonCommands { config, perf, table: mon_daemon_commands() }, counters }
    }

    /// Executes a command.
    pub(super) fn run(&self, state: &MapState, sessions: &Sessions, now: Now, json: &str) -> AdminReply {
        self.refresh(state, sessions);
        self.common.run(json, |call| match call.prefix() {
            "mon_status" => Ok(state.mon_status_at(now).into()),
            "quorum_status" => Ok(state.quorum_status_at(now).into()),
            "sessions" => Ok(sessions.dump().into()),
            // Requests are executed as they are read, so none is ever waiting.
            "ops" => Ok(json!({ "ops": [], "num_ops": 0 }).into()),
            other => Err(CommandFailure(Errno::EINVAL, format!("command not known: {other}"))),
        })
    }

    /// All metrics: those of the cluster and of the daemon itself.
    pub(super) fn expose(&self, state: &MapState, sessions: &Sessions, now: Now) -> Exposition {
        self.refresh(state, sessions);
        let mut out = Exposition::default();
        state.expose(now, &mut out);
        self.common.perf.expose(&mut out);
        out
    }

    fn refresh(&self, state: &MapState, sessions: &Sessions) {
        let mut counters = state.cluster_counters();
        counters.push(Metric::gauge(
            "mon",
            "num_sessions",
            "Open sessions",
            sessions.subscriber_count() as u64,
        ));
        *self.counters.lock() = counters;
    }
}
