//! Follows the cluster log: `rados_monitor_log` and `rados_monitor_log2`.
//!
//! The caller first gets the last entry of each channel, then each new entry of all channels, as in Ceph. Callbacks run on
//! the cluster handle's finisher. The session subscribes again by itself after a reconnect.

use crate::abi::{BorrowedPtr, CStrPtr, CallbackArg, Handle};
use crate::client::{CLIENTS, Client};
use crate::guard::{ApiResult, exports};
use crate::log_subscription::MonitorLog;
use nacre_client::engine::LogSubscription;
use nacre_client::{Cluster, block_on};
use nacre_types::errno::Errno;
use nacre_types::msg::LogLine;
use nacre_types::time::stamp;
use serde_json::{Value, json};
use std::ffi::{CString, c_int};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// `debug`, `info`, `sec`, `warn` and `error` with Ceph's other spellings.
const LEVELS: &[(&str, &str)] = &[
    ("debug", "debug"),
    ("info", "info"),
    ("sec", "sec"),
    ("warn", "warn"),
    ("warning", "warn"),
    ("error", "error"),
    ("err", "error"),
];
/// The channels, in the order in which Ceph sends their last entries.
const CHANNELS: [&str; 2] = ["audit", "cluster"];
/// Maximum number of entries that wait for the callback. Further ones are dropped.
const MAX_QUEUED: usize = 10_000;

type Callback1 =
    extern "C" fn(CallbackArg, BorrowedPtr, BorrowedPtr, u64, u64, u64, BorrowedPtr, BorrowedPtr);
type Callback2 = extern "C" fn(
    CallbackArg,
    BorrowedPtr,
    BorrowedPtr,
    BorrowedPtr,
    BorrowedPtr,
    u64,
    u64,
    u64,
    BorrowedPtr,
    BorrowedPtr,
);

#[derive(Clone, Copy)]
enum Callback {
    Old(Callback1),
    New(Callback2),
}

/// An entry in the form for C callers.
struct Line {
    seq: u64,
    seconds: u64,
    nanoseconds: u64,
    /// The whole line, the channel, the sender by rank and by name, the level and the text.
    texts: [CString; 6],
}

impl Line {
    fn of(line: &LogLine) -> Line {
        let level = match line.level.as_str() {
            "debug" => "[DBG]",
            "sec" => "[SEC]",
            "warn" => "[WRN]",
            "error" => "[ERR]",
            _ => "[INF]",
        };
        // There is one map authority, of rank 0.
        let who = if line.name.starts_with("mon.") { "mon.0" } else { &line.name };
        let whole = format!("{} {} {level} {}", stamp(line.stamp_ns), line.name, line.text);
        let texts = [whole.as_str(), &line.channel, who, &line.name, level, &line.text];
        Line {
            seq: line.seq,
            seconds: line.stamp_ns / 1_000_000_000,
            nanoseconds: line.stamp_ns % 1_000_000_000,
            texts: texts.map(|text| CString::new(text.replace('\0', " ")).unwrap_or_default()),
        }
    }

    fn tell(&self, callback: Callback, arg: CallbackArg) {
        let [whole, channel, who, name, level, text] =
            self.texts.each_ref().map(|text| BorrowedPtr::text(text));
        let Line { seq, seconds, nanoseconds, .. } = *self;
        match callback {
            Callback::Old(callback) => callback(arg, whole, name, seconds, nanoseconds, seq, level, text),
            Callback::New(callback) => {
                callback(arg, whole, channel, who, name, seconds, nanoseconds, seq, level, text);
            }
        }
    }
}

/// Nanoseconds since 1970 of `2026-11-22T00:59:11.123456+0000`.
fn parse_stamp(stamp: &str) -> Option<u64> {
    let number = |from: usize, to: usize| stamp.get(from..to)?.parse::<i64>().ok();
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let micros = number(20, 26).unwrap_or(0);
    // Howard Hinnant's days_from_civil: years begin in March.
    let shifted = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (shifted.div_euclid(400), shifted.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
    let seconds = days * 86_400 + hour * 3600 + minute * 60 + second;
    u64::try_from(seconds * 1_000_000_000 + micros * 1000).ok()
}

/// The last entry of `channel` (`*` for all) with at least `level`.
fn last_line(cluster: &Cluster, level: &str, channel: &str) -> ApiResult<Option<LogLine>> {
    let command = json!({ "prefix": "log last", "num": 1, "level": level, "channel": channel });
    let listed = block_on(cluster.command_json(command))?;
    let of = |entry: &Value| {
        let field = |name: &str| entry[name].as_str().unwrap_or_default().to_owned();
        let level = match entry["priority"].as_str() {
            Some("[DBG]") => "debug",
            Some("[SEC]") => "sec",
            Some("[WRN]") => "warn",
            Some("[ERR]") => "error",
            _ => "info",
        };
        LogLine {
            stamp_ns: parse_stamp(&field("stamp")).unwrap_or_default(),
            name: field("name"),
            seq: entry["seq"].as_u64().unwrap_or_default(),
            level: level.to_owned(),
            channel: field("channel"),
            text: field("message"),
        }
    };
    Ok(listed.as_array().and_then(|lines| lines.last()).map(of))
}

fn watch(cluster: Handle, level: CStrPtr, callback: Option<Callback>, arg: CallbackArg) -> ApiResult<c_int> {
    let client = CLIENTS.get(cluster)?;
    let session = client.cluster()?;
    let Some(callback) = callback else {
        session.engine().follow_log(None);
        client.set_monitor_log(None);
        return Ok(0);
    };
    let level = level.text()?;
    let (_, level) = LEVELS.iter().find(|(name, _)| *name == level).ok_or(Errno::EINVAL)?;
    client.set_monitor_log(None);
    let (active, queued) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
    let (owner, told) = (Arc::downgrade(&client), active.clone());
    let follower = move |line: &LogLine| {
        let Some(client) = owner.upgrade() else { return };
        post(&client, Line::of(line), (callback, arg), &told, &queued);
    };
    let newest = last_line(&session, "debug", "*")?.map_or(0, |line| line.seq);
    for channel in CHANNELS {
        // Later entries arrive by the subscription.
        let last = last_line(&session, level, channel)?.filter(|line| line.seq <= newest);
        last.iter().for_each(&follower);
    }
    let (level, channel) = ((*level).to_owned(), "*".to_owned());
    let follow = LogSubscription { level, channel, after: Some(newest), follower: Arc::new(follower) };
    session.engine().follow_log(Some(follow));
    client.set_monitor_log(Some(MonitorLog(active)));
    Ok(0)
}

/// Queues a callback with an entry.
fn post(
    client: &Client,
    line: Line,
    (callback, arg): (Callback, CallbackArg),
    active: &Arc<AtomicBool>,
    queued: &Arc<AtomicUsize>,
) {
    if queued.fetch_add(1, Ordering::Relaxed) >= MAX_QUEUED {
        queued.fetch_sub(1, Ordering::Relaxed);
        tracing::warn!(seq = line.seq, "the callback of the cluster log is too slow: entry dropped");
        return;
    }
    let (active, queued) = (active.clone(), queued.clone());
    client.finisher.queue(Box::new(move || {
        if active.load(Ordering::SeqCst) {
            line.tell(callback, arg);
        }
        queued.fetch_sub(1, Ordering::Relaxed);
    }));
}

exports! {
    /// Calls back with the last entry of each channel of the cluster log and then with each new one, of at least this level. A
    /// null callback ends the subscription.
    fn rados_monitor_log(cluster: Handle, level: CStrPtr, cb: Option<Callback1>, arg: CallbackArg) -> c_int {
        watch(cluster, level, cb.map(Callback::Old), arg)
    }

    /// The same, with the entry's channel and the sender's name.
    fn rados_monitor_log2(cluster: Handle, level: CStrPtr, cb: Option<Callback2>, arg: CallbackArg) -> c_int {
        watch(cluster, level, cb.map(Callback::New), arg)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_nanoseconds_since_1970() {
        assert_eq!(parse_stamp("1970-01-01T00:00:00.000001+0000"), Some(1000));
        assert_eq!(parse_stamp("2026-11-22T00:59:11.123456+0000"), Some(1_795_309_151_123_456_000));
        assert_eq!(parse_stamp("2024-02-29T23:59:59.000000+0000"), Some(1_709_251_199_000_000_000));
        assert_eq!(parse_stamp("soon"), None);
    }
}
