//! The cluster log, which operators read with `log last`.

use super::Now;
use nacre_types::msg::LogLine;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// Longest line; the rest is cut.
const MAX_TEXT: usize = 4_096;

/// The level of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LogLevel {
    /// For developers.
    Debug,
    /// State changes.
    Info,
    /// Security.
    Sec,
    /// Degraded.
    Warn,
    /// An operator must act.
    Error,
}

impl LogLevel {
    /// Parses `error`, `warn`, `sec`, `info` or `debug`; anything else is `info`.
    pub fn parse(text: &str) -> LogLevel {
        match text {
            "error" => LogLevel::Error,
            "warn" => LogLevel::Warn,
            "sec" => LogLevel::Sec,
            "debug" => LogLevel::Debug,
            _ => LogLevel::Info,
        }
    }

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            LogLevel::Debug => "debug",
            LogLevel::Info => "info",
            LogLevel::Sec => "sec",
            LogLevel::Warn => "warn",
            LogLevel::Error => "error",
        }
    }

    /// As Ceph prints it: `[WRN]`.
    pub fn tag(self) -> &'static str {
        match self {
            LogLevel::Debug => "[DBG]",
            LogLevel::Info => "[INF]",
            LogLevel::Sec => "[SEC]",
            LogLevel::Warn => "[WRN]",
            LogLevel::Error => "[ERR]",
        }
    }
}

/// The channel of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LogChannel {
    /// Events in the cluster.
    #[default]
    Cluster,
    /// Commands that changed something, with their senders.
    Audit,
}

impl LogChannel {
    /// Ceph's name.
    pub fn as_str(self) -> &'static str {
        match self {
            LogChannel::Cluster => "cluster",
            LogChannel::Audit => "audit",
        }
    }

    /// Whether `text` selects this channel: by name, or `*`.
    pub fn matches(self, text: &str) -> bool {
        text == "*" || text == self.as_str()
    }
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterLogEntry {
    /// The time, in nanoseconds since 1970.
    pub stamp_ns: u64,
    /// The sender: `mon.a`, `osd.3`, `client.admin`.
    pub name: String,
    /// The number of the line in this log.
    pub seq: u64,
    /// Its level.
    pub level: LogLevel,
    /// The text.
    pub text: String,
    /// Its channel. It is the last field: lines that an earlier release stored end before it, which reads as `Cluster`.
    pub channel: LogChannel,
}

impl ClusterLogEntry {
    /// Reads a stored line.
    pub fn decode(bytes: &[u8]) -> Result<ClusterLogEntry, postcard::Error> {
        postcard::from_bytes(&[bytes, &[0]].concat())
    }

    /// The line in the form that is sent to subscribers of the log.
    pub fn to_line(&self) -> LogLine {
        LogLine {
            stamp_ns: self.stamp_ns,
            name: self.name.clone(),
            seq: self.seq,
            level: self.level.as_str().to_owned(),
            channel: self.channel.as_str().to_owned(),
            text: self.text.clone(),
        }
    }
}

/// The newest lines.
#[derive(Clone, Debug)]
pub struct ClusterLog {
    /// The number of lines kept.
    kept: usize,
    entries: VecDeque<ClusterLogEntry>,
    next_seq: u64,
    /// Lines with a lower number are stored.
    stored_below: u64,
    /// Texts that repeat while a condition lasts, and when each was last logged.
    throttled: BTreeMap<String, u64>,
}

impl ClusterLog {
    /// Continues after `entries`, which are stored, and keeps the newest of them.
    pub(crate) fn restore(mut entries: Vec<ClusterLogEntry>, kept: usize) -> ClusterLog {
        // The first line has number 1: a subscriber that has none requests those after 0.
        let next_seq = entries.last().map_or(1, |e| e.seq + 1);
        entries.drain(..entries.len().saturating_sub(kept));
        ClusterLog {
            kept,
            entries: entries.into(),
            next_seq,
            stored_below: next_seq,
            throttled: BTreeMap::new(),
        }
    }

    pub(crate) fn append(&mut self, now: Now, name: &str, level: LogLevel, text: String) {
        self.append_to(LogChannel::Cluster, now, name, level, text);
    }

    pub(crate) fn append_to(
        &mut self,
        channel: LogChannel,
        now: Now,
        name: &str,
        level: LogLevel,
        mut text: String,
    ) {
        if text.len() > MAX_TEXT {
            let cut = (0..=MAX_TEXT).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
            text.truncate(cut);
        }
        let text = text.replace(['\n', '\r'], " ");
        let name = if name == "mon" { "mon.a" } else { name };
        let entry = ClusterLogEntry {
            stamp_ns: now.wall_ns,
            name: name.to_owned(),
            seq: self.next_seq,
            level,
            text,
            channel,
        };
        self.next_seq += 1;
        self.entries.push_back(entry);
        while self.entries.len() > self.kept {
            self.entries.pop_front();
        }
    }

    /// Appends a line about a condition that lasts, at most once a minute.
    pub(super) fn append_once_a_minute(&mut self, now: Now, name: &str, level: LogLevel, text: String) {
        self.throttled.retain(|_, at| now.mono_ms.saturating_sub(*at) < 60_000);
        if !self.throttled.contains_key(&text) {
            self.throttled.insert(text.clone(), now.mono_ms);
            self.append(now, name, level, text);
        }
    }

    /// Sets the number of lines kept.
    pub(crate) fn set_kept_lines(&mut self, lines: usize) {
        self.kept = lines;
    }

    /// The newest `count` lines of at least `level` and of the channel that `channel` names (`*` for all), oldest first.
    pub fn last(&self, count: usize, level: LogLevel, channel: &str) -> Vec<&ClusterLogEntry> {
        let wanted = |e: &&ClusterLogEntry| e.level >= level && e.channel.matches(channel);
        let mut lines: Vec<_> = self.entries.iter().rev().filter(wanted).take(count).collect();
        lines.reverse();
        lines
    }

    /// Stored lines after `seq`, oldest first.
    pub fn stored_after(&self, seq: u64) -> impl Iterator<Item = &ClusterLogEntry> {
        let stored_below = self.stored_below;
        self.entries.iter().filter(move |e| e.seq > seq && e.seq < stored_below)
    }

    /// Lines that are not stored yet, at most `count`. They count as stored from then on.
    pub(crate) fn take_unstored(&mut self, count: usize) -> Vec<ClusterLogEntry> {
        let first = self.stored_below;
        let taken: Vec<ClusterLogEntry> =
            self.entries.iter().filter(|e| e.seq >= first).take(count).cloned().collect();
        self.stored_below = taken.last().map_or(first, |e| e.seq + 1);
        taken
    }

    /// The number below which stored lines are no longer needed.
    pub fn trim_limit(&self) -> u64 {
        self.next_seq.saturating_sub(self.kept as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_comes_after_none() {
        let mut log = ClusterLog::restore(Vec::new(), 10);
        log.append(Now { wall_ns: 1, mono_ms: 1 }, "mon", LogLevel::Info, "first".to_owned());
        assert_eq!(log.stored_after(0).count(), 0, "it is not stored yet");
        assert_eq!(log.take_unstored(10).len(), 1);
        assert_eq!(log.stored_after(0).count(), 1);
        assert_eq!(log.stored_after(1).count(), 0);
    }

    #[test]
    fn a_start_keeps_no_more_lines_than_are_to_be_kept() {
        let mut log = ClusterLog::restore(Vec::new(), 100);
        for n in 0..100 {
            log.append(Now { wall_ns: n, mono_ms: n }, "mon", LogLevel::Info, n.to_string());
        }
        let log = ClusterLog::restore(log.take_unstored(100), 10);
        let kept: Vec<u64> = log.stored_after(0).map(|line| line.seq).collect();
        assert_eq!(kept, (91..=100).collect::<Vec<u64>>());
        assert_eq!(log.trim_limit(), 91);
        assert_eq!(ClusterLog::restore(Vec::new(), 10).stored_after(0).count(), 0);
    }
}
