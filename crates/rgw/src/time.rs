//! The clock, and how times are written.

use std::time::{SystemTime, UNIX_EPOCH};
use time::OffsetDateTime;

/// Returns the current time, in nanoseconds since 1970.
pub fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn date_time(ns: u64) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(ns)).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

/// Formats a time as radosgw-admin does: `2026-01-31T12:00:00.000000Z`.
pub(crate) fn format_time(ns: u64) -> String {
    let at = date_time(ns);
    let (date, time) = (at.date(), at.time());
    format!("{date}T{:02}:{:02}:{:02}.{:06}Z", time.hour(), time.minute(), time.second(), time.microsecond())
}

/// Formats a time, in seconds since 1970, as in the usage log: `2026-01-31 12:00:00.000000Z`.
pub(crate) fn format_usage_time(epoch: u64) -> String {
    format_time(epoch.saturating_mul(1_000_000_000)).replace('T', " ")
}
