//! What every command that talks to a cluster begins with: who runs it, by which configuration, and the connection.

use nacre_client::{Cluster, Network, native};
use nacre_runtime::config::{Config, Invocation, Program, parse_argv};
use std::ffi::OsString;
use std::io::IsTerminal;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// After so long without an answer a user at a terminal learns what is waited for.
const PATIENCE: Duration = Duration::from_secs(2);

/// Takes a tool's command line apart, `CEPH_ARGS` included.
pub(crate) fn parse(args: Vec<OsString>) -> Result<Invocation, String> {
    let mut texts = Vec::with_capacity(args.len());
    for arg in args {
        texts.push(arg.into_string().map_err(|arg| format!("argument {arg:?} is not UTF-8"))?);
    }
    let ceph_args = std::env::var("CEPH_ARGS").ok();
    parse_argv(Program::Client, &texts, ceph_args.as_deref()).map_err(|e| e.to_string())
}

/// Connects as the command line and the configuration say.
pub(crate) fn connect(invocation: &Invocation) -> Result<Cluster, String> {
    let config = Config::load(invocation).map_err(|e| e.to_string())?;
    let pending = native::connect(&config);
    let (done, waiting) = mpsc::channel::<()>();
    let hint = std::io::stderr().is_terminal().then(|| {
        let mon_host = config.snapshot().global.mon_host.to_string();
        std::thread::spawn(move || {
            if waiting.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
                eprintln!("waiting for the monitor at {mon_host} (is the cluster running? Ctrl-C ends this)");
            }
        })
    });
    let connected = pending.wait().map_err(|e| e.to_string());
    drop(done);
    if let Some(hint) = hint {
        // The thread only prints: whether it panicked is of no interest.
        let _ = hint.join();
    }
    connected
}

/// As [`connect`], on a network thread that is there.
pub(crate) fn connect_on(network: &Arc<Network>, invocation: &Invocation) -> Result<Cluster, String> {
    let config = Config::load(invocation).map_err(|e| e.to_string())?;
    native::connect_on(network, &config).wait().map_err(|e| e.to_string())
}
