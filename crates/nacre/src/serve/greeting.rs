//! What `nacre serve` prints when the cluster is ready, and when it has stopped.

use super::gateway::FIRST_USER;
use crate::cluster_dir::ClusterDir;
use crate::daemon::Daemon;
use nacre_common::config::search_conf;
use nacre_rgw::User;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The URLs of S3, and the first user.
pub(super) type S3Access = (Vec<String>, User);

/// Prints the cluster's addresses and keys, and the next steps as commands that work unchanged.
pub(super) fn print_banner(
    layout: &ClusterDir,
    daemons: &[Daemon],
    metrics: Option<SocketAddr>,
    s3: Option<&S3Access>,
    took: Duration,
) {
    let osds = daemons.iter().filter(|daemon| matches!(daemon, Daemon::Osd(_))).count();
    println!("cluster is ready: {osds} OSDs up after {:.1} s", took.as_secs_f64());
    if let Some(Daemon::Mon(mon)) = daemons.first() {
        println!("  mon       {}", mon.addr());
    }
    if let Some(addr) = metrics {
        println!("  metrics   http://{addr}/metrics");
    }
    println!("  conf      {}", layout.conf().display());
    let key = s3.and_then(|(_, user)| user.keys.first());
    if let Some((urls, _)) = s3 {
        println!("  S3        {}, path style", urls.join(", "));
    }
    if let Some(key) = key {
        println!("            AWS_ACCESS_KEY_ID={}", key.access_key);
        println!("            AWS_SECRET_ACCESS_KEY={}", key.secret_key);
    }
    println!("In another terminal:");
    for line in environment(layout) {
        println!("  {line}");
    }
    println!("  nacre status");
    println!("  nacre osd pool create mypool 32");
    println!("  echo hello | nacre rados -p mypool put greeting -");
    println!("  nacre rados -p mypool get greeting -");
    if let (Some(key), Some(url)) = (key, s3.and_then(|(urls, _)| urls.first())) {
        println!("  export AWS_ACCESS_KEY_ID={} AWS_SECRET_ACCESS_KEY={}", key.access_key, key.secret_key);
        println!("  aws --endpoint-url {url} s3 mb s3://mybucket");
    }
    println!("Ctrl-C stops the cluster and keeps its data.");
}

/// Logs the start of a service in the journal, without the keys, because others than their owner read the journal.
pub(super) fn log_ready(daemons: &[Daemon], s3: Option<&S3Access>, took: Duration) {
    tracing::info!("cluster is ready after {:.1} s: {}", took.as_secs_f64(), status_line(daemons, s3));
    if s3.is_some() {
        tracing::info!("`nacre user info --uid {FIRST_USER}` prints the keys of the first S3 user");
    }
}

/// The cluster in one line: `3 OSDs up, mon on 127.0.0.1:3300, S3 on http://127.0.0.1:8000`.
pub(super) fn status_line(daemons: &[Daemon], s3: Option<&S3Access>) -> String {
    let osds = daemons.iter().filter(|daemon| matches!(daemon, Daemon::Osd(_))).count();
    let mut text = format!("{osds} OSDs up");
    if let Some(Daemon::Mon(mon)) = daemons.first() {
        text += &format!(", mon on {}", mon.addr());
    }
    if let Some((urls, _)) = s3 {
        text += &format!(", S3 on {}", urls.join(" and "));
    }
    text
}

/// Prints where the data is and how to restart the cluster.
pub(super) fn print_stopped(data: &Path) {
    println!("stopped; the data is in {0}. To start it again: nacre serve --data {0}", data.display());
}

/// The environment in which a shell finds this program and this cluster. Empty if it finds them anyway.
fn environment(layout: &ClusterDir) -> Vec<String> {
    let mut lines = Vec::new();
    let same =
        |a: PathBuf, b: PathBuf| a.canonicalize().ok().is_some_and(|a| b.canonicalize().ok() == Some(a));
    if let Ok(program) = std::env::current_exe() {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let found = std::env::split_paths(&path).map(|folder| folder.join("nacre")).find(|at| at.is_file());
        if let Some(folder) = program.parent()
            && !found.is_some_and(|found| same(found, program.clone()))
        {
            lines.push(format!("export PATH={}:$PATH", folder.display()));
        }
    }
    let found = search_conf("ceph").ok().flatten();
    if !found.is_some_and(|found| same(found, layout.conf())) {
        lines.push(format!("export CEPH_CONF={}", layout.conf().display()));
    }
    lines
}
