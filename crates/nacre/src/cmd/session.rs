//! The start of every command that uses a cluster: the user, the configuration, and the connection.

use nacre_client::{Cluster, NetworkThread, native};
use nacre_common::config::{Config, Invocation, ProgramKind, parse_argv};
use std::ffi::OsString;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// How long a command waits for the cluster before it prints that it waits.
const PATIENCE: Duration = Duration::from_secs(3);

/// Parses a tool's command line, including `CEPH_ARGS`.
pub(crate) fn parse(args: Vec<OsString>) -> Result<Invocation, String> {
    let mut texts = Vec::with_capacity(args.len());
    for arg in args {
        texts.push(arg.into_string().map_err(|arg| format!("argument {arg:?} is not UTF-8"))?);
    }
    let ceph_args = std::env::var("CEPH_ARGS").ok();
    parse_argv(ProgramKind::Client, &texts, ceph_args.as_deref()).map_err(|e| e.to_string())
}

/// Connects according to the command line and the configuration.
pub(crate) fn connect(invocation: &Invocation) -> anyhow::Result<Cluster> {
    let config = Config::load(invocation)?;
    check_named(&config).map_err(anyhow::Error::msg)?;
    nacre_runtime::log::print_notices_to_stderr();
    let pending = native::connect(&config);
    let (done, waiting) = mpsc::channel::<()>();
    let options = config.snapshot();
    let (mon_host, timeout) = (options.global.mon_host.to_string(), options.client.client_mount_timeout);
    let hint = std::thread::spawn(move || {
        if waiting.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
            eprintln!(
                "no answer from the monitor at {mon_host}; retrying for {} s (is the cluster running? Ctrl-C stops this)",
                timeout.as_secs()
            );
        }
    });
    let connected = pending.wait();
    drop(done);
    // The thread only prints, so a panic in it does not affect the command.
    let _ = hint.join();
    Ok(connected?)
}

/// Fails if no configuration names a cluster. Checked before errors about its keyring.
fn check_named(config: &Config) -> Result<(), String> {
    if config.conf_path().is_some() || !config.snapshot().global.mon_host.0.is_empty() {
        return Ok(());
    }
    Err("no configuration file was found: run the command in the folder of the cluster's data, or specify the cluster \
         with -c FILE, CEPH_CONF or -m ADDRESS"
        .to_owned())
}

/// Like [`connect`], on an existing network thread.
pub(crate) fn connect_on(network: &Arc<NetworkThread>, invocation: &Invocation) -> Result<Cluster, String> {
    let config = Config::load(invocation).map_err(|e| e.to_string())?;
    native::connect_on(network, &config).wait().map_err(|e| e.to_string())
}
