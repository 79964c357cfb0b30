//! The cluster log outside of the map authority's store: the file `mon_cluster_log_file`, or the systemd journal if the
//! daemon logs there (`mon_cluster_log_to_journald`).

use nacre_common::options::Options;
use nacre_mon::logic::{ClusterLogEntry, LogLevel};
use nacre_types::time::stamp;
use std::fs::{File, OpenOptions};
use std::io::Write as _;

/// Appends lines to the file that the options name. If the file can't be written, warns once, and tries again when the
/// options name another file.
#[derive(Default)]
pub(super) struct ClusterLogFile {
    path: String,
    file: Option<File>,
    /// When it was opened, as a value of [`nacre_runtime::log::reopen_count`].
    opened: u64,
}

impl ClusterLogFile {
    pub(super) fn append(&mut self, options: &Options, lines: &[ClusterLogEntry]) {
        if options.mon.mon_cluster_log_to_journald && nacre_runtime::log::logs_to_journal() {
            lines.iter().for_each(to_journal);
            return;
        }
        if !options.mon.mon_cluster_log_to_file || lines.is_empty() {
            return;
        }
        let path = &options.mon.mon_cluster_log_file;
        let reopened = nacre_runtime::log::reopen_count();
        if *path != self.path || self.opened != reopened {
            self.path.clone_from(path);
            self.opened = reopened;
            self.file = match OpenOptions::new().create(true).append(true).open(path) {
                Ok(file) => Some(file),
                Err(error) => {
                    tracing::warn!(%path, %error, "the cluster log can't be written to its file");
                    None
                }
            };
        }
        let Some(file) = &mut self.file else { return };
        let least = LogLevel::parse(&options.mon.mon_cluster_log_file_level);
        let shown: String = lines
            .iter()
            .filter(|line| line.level >= least)
            .map(|l| {
                let channel = l.channel.as_str();
                format!(
                    "{} {} {} : {channel} {} {}\n",
                    stamp(l.stamp_ns),
                    l.name,
                    l.seq,
                    l.level.tag(),
                    l.text
                )
            })
            .collect();
        if let Err(error) = file.write_all(shown.as_bytes()) {
            tracing::warn!(path = %self.path, %error, "the cluster log is not written any more");
            self.file = None;
        }
    }
}

/// Logs a line of the cluster log as a line of the daemon's log, with the target `cluster`.
fn to_journal(line: &ClusterLogEntry) {
    let ClusterLogEntry { name, text, .. } = line;
    let channel = line.channel.as_str();
    match line.level {
        LogLevel::Debug => tracing::debug!(target: "cluster", "{name} {channel}: {text}"),
        LogLevel::Info => tracing::info!(target: "cluster", "{name} {channel}: {text}"),
        LogLevel::Sec | LogLevel::Warn => tracing::warn!(target: "cluster", "{name} {channel}: {text}"),
        LogLevel::Error => tracing::error!(target: "cluster", "{name} {channel}: {text}"),
    }
}
