//! The cluster log as it is written: `rados_monitor_log`.
//!
//! A thread of the cluster handle asks the map authority for the newest lines once a second and calls back with those it
//! has not seen. It ends with the handle, or when the caller asks for no lines any more.

use crate::abi::{CArg, CText, Handle, Lent};
use crate::client::CLIENTS;
use crate::guard::{Failure, Outcome, exports};
use nacre_client::{Cluster, Error, block_on};
use nacre_types::errno::Errno;
use serde_json::{Value, json};
use std::ffi::{CString, c_int};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often the map authority is asked.
const PERIOD: Duration = Duration::from_secs(1);
/// Lines asked for at a time: more of them in one period are skipped.
const LINES: u32 = 10_000;
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

type Callback1 = extern "C" fn(CArg, Lent, Lent, u64, u64, u64, Lent, Lent);
type Callback2 = extern "C" fn(CArg, Lent, Lent, Lent, Lent, u64, u64, u64, Lent, Lent);

#[derive(Clone, Copy)]
enum Callback {
    Old(Callback1),
    New(Callback2),
}

/// A caller that wants the log's lines.
pub(crate) struct LogWatch {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for LogWatch {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take()
            // A caller may end its watch from its callback.
            && thread.thread().id() != std::thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("the thread that follows the cluster log panicked");
        }
    }
}

/// A line of the log.
struct Line {
    seq: u64,
    seconds: u64,
    nanoseconds: u64,
    /// The whole line, channel, rank, name, level and text.
    texts: [CString; 6],
}

impl Line {
    fn of(entry: &Value) -> Line {
        let field = |name: &str| entry[name].as_str().unwrap_or_default();
        let whole =
            format!("{} {} {} {}", field("stamp"), field("name"), field("priority"), field("message"));
        let texts = [
            whole.as_str(),
            field("channel"),
            field("rank"),
            field("name"),
            field("priority"),
            field("message"),
        ];
        let (seconds, nanoseconds) = parse_stamp(field("stamp")).unwrap_or_default();
        Line {
            seq: entry["seq"].as_u64().unwrap_or(0),
            seconds,
            nanoseconds,
            texts: texts.map(|text| CString::new(text.replace('\0', " ")).unwrap_or_default()),
        }
    }

    fn tell(&self, callback: Callback, arg: CArg) {
        let [whole, channel, rank, name, level, text] = &self.texts;
        let lent = |text: &CString| Lent::text(text);
        let Line { seq, seconds, nanoseconds, .. } = *self;
        match callback {
            Callback::Old(callback) => {
                callback(arg, lent(whole), lent(name), seconds, nanoseconds, seq, lent(level), lent(text));
            }
            Callback::New(callback) => callback(
                arg,
                lent(whole),
                lent(channel),
                lent(rank),
                lent(name),
                seconds,
                nanoseconds,
                seq,
                lent(level),
                lent(text),
            ),
        }
    }
}

/// Seconds since 1970 and nanoseconds of `2026-11-22T00:59:11.123456+0000`.
fn parse_stamp(stamp: &str) -> Option<(u64, u64)> {
    let number = |from: usize, to: usize| stamp.get(from..to)?.parse::<i64>().ok();
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let micros = number(20, 26).unwrap_or(0);
    // Howard Hinnant's days_from_civil: years begin in March.
    let shifted = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (shifted.div_euclid(400), shifted.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
    let seconds = u64::try_from(days * 86_400 + hour * 3600 + minute * 60 + second).ok()?;
    Some((seconds, u64::try_from(micros).ok()? * 1000))
}

fn newest(cluster: &Cluster, level: &str) -> Result<Vec<Line>, Error> {
    let listed =
        block_on(cluster.command_json(json!({ "prefix": "log last", "num": LINES, "level": level })))?;
    Ok(listed.as_array().map(Vec::as_slice).unwrap_or_default().iter().map(Line::of).collect())
}

fn follow(
    cluster: &Cluster,
    level: &str,
    mut seen: Option<u64>,
    stop: &mpsc::Receiver<()>,
    tell: impl Fn(&Line),
) {
    while stop.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
        match newest(cluster, level) {
            Ok(lines) => {
                for line in lines.iter().filter(|line| seen.is_none_or(|seen| line.seq > seen)) {
                    tell(line);
                }
                seen = lines.last().map(|line| line.seq).max(seen);
            }
            Err(Error::ShutDown) => return,
            Err(error) => tracing::warn!(%error, "the cluster log can't be read; trying again"),
        }
    }
}

fn watch(cluster: Handle, level: CText, callback: Option<Callback>, arg: CArg) -> Outcome<c_int> {
    let client = CLIENTS.get(cluster)?;
    let session = client.cluster()?;
    let Some(callback) = callback else {
        client.set_log_watch(None);
        return Ok(0);
    };
    let level = level.text()?;
    let (_, level) = LEVELS.iter().find(|(name, _)| *name == level).ok_or(Errno::EINVAL)?;
    // From now on: what is there already is not new.
    let seen = newest(&session, level)?.last().map(|line| line.seq);
    let (stop, stopped) = mpsc::channel();
    let run = move || follow(&session, level, seen, &stopped, move |line| line.tell(callback, arg));
    let thread = std::thread::Builder::new()
        .name("librados-log".into())
        .spawn(run)
        .map_err(|_| Failure(Errno::EAGAIN))?;
    client.set_log_watch(Some(LogWatch { stop: Some(stop), thread: Some(thread) }));
    Ok(0)
}

exports! {
    /// Calls back with each new line of the cluster log of at least this level; a null callback ends that.
    fn rados_monitor_log(cluster: Handle, level: CText, cb: Option<Callback1>, arg: CArg) -> c_int {
        watch(cluster, level, cb.map(Callback::Old), arg)
    }

    /// The same, with the line's channel and the teller's name.
    fn rados_monitor_log2(cluster: Handle, level: CText, cb: Option<Callback2>, arg: CArg) -> c_int {
        watch(cluster, level, cb.map(Callback::New), arg)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_seconds_since_1970() {
        assert_eq!(parse_stamp("1970-01-01T00:00:00.000001+0000"), Some((0, 1000)));
        assert_eq!(parse_stamp("2026-11-22T00:59:11.123456+0000"), Some((1_795_309_151, 123_456_000)));
        assert_eq!(parse_stamp("2024-02-29T23:59:59.000000+0000"), Some((1_709_251_199, 0)));
        assert_eq!(parse_stamp("soon"), None);
    }
}
