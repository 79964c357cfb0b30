//! Rate limits of users and buckets, per minute and gateway: token buckets that are refilled continuously.
//!
//! As in Ceph, operations above the limit are refused, and so are operations after more bytes were transferred than the
//! limit allows. A transfer in progress is never cut off; its bytes become a debt. Gateways do not coordinate: each grants
//! the whole limit.

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// The maximum number of accounts of users and buckets. Beyond it, accounts that are full again are dropped.
const COUNTED: usize = 10_000;
/// The interval that limits apply to.
const INTERVAL_SECS: f64 = 60.0;

/// Limits per minute and gateway; 0 means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RateLimit {
    /// Whether the limits are enforced.
    pub enabled: bool,
    /// Requests that read.
    pub max_read_ops: u64,
    /// Requests that write.
    pub max_write_ops: u64,
    /// Bytes that are read.
    pub max_read_bytes: u64,
    /// Bytes that are written.
    pub max_write_bytes: u64,
}

impl RateLimit {
    /// Returns radosgw-admin's output for the limits.
    pub fn describe(&self) -> serde_json::Value {
        serde_json::json!({
            "max_read_ops": self.max_read_ops,
            "max_write_ops": self.max_write_ops,
            "max_read_bytes": self.max_read_bytes,
            "max_write_bytes": self.max_write_bytes,
            "enabled": self.enabled,
        })
    }
}

/// What a limit applies to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RateLimitScope {
    /// A user, by its id.
    User(String),
    /// A bucket, by its id.
    Bucket(String),
}

/// The remaining tokens of a user or a bucket.
#[derive(Debug)]
pub struct RateLimiterEntry(Mutex<Tokens>);

#[derive(Debug)]
struct Tokens {
    limit: RateLimit,
    filled: Instant,
    read_ops: f64,
    write_ops: f64,
    read_bytes: f64,
    write_bytes: f64,
}

impl Tokens {
    fn full(limit: RateLimit, now: Instant) -> Tokens {
        Tokens {
            limit,
            filled: now,
            read_ops: limit.max_read_ops as f64,
            write_ops: limit.max_write_ops as f64,
            read_bytes: limit.max_read_bytes as f64,
            write_bytes: limit.max_write_bytes as f64,
        }
    }

    fn fill(&mut self, now: Instant) {
        let share = now.saturating_duration_since(self.filled).as_secs_f64() / INTERVAL_SECS;
        self.filled = now;
        for (tokens, max) in [
            (&mut self.read_ops, self.limit.max_read_ops),
            (&mut self.write_ops, self.limit.max_write_ops),
            (&mut self.read_bytes, self.limit.max_read_bytes),
            (&mut self.write_bytes, self.limit.max_write_bytes),
        ] {
            *tokens = (*tokens + share * max as f64).min(max as f64);
        }
    }

    fn is_full(&self) -> bool {
        let all = [
            (self.read_ops, self.limit.max_read_ops),
            (self.write_ops, self.limit.max_write_ops),
            (self.read_bytes, self.limit.max_read_bytes),
            (self.write_bytes, self.limit.max_write_bytes),
        ];
        all.into_iter().all(|(tokens, max)| tokens >= max as f64)
    }

    fn take(&mut self, limit: RateLimit, writes: bool, now: Instant) -> bool {
        if self.limit != limit {
            *self = Tokens::full(limit, now);
        }
        self.fill(now);
        let (ops, max_ops, bytes, max_bytes) = if writes {
            (&mut self.write_ops, limit.max_write_ops, self.write_bytes, limit.max_write_bytes)
        } else {
            (&mut self.read_ops, limit.max_read_ops, self.read_bytes, limit.max_read_bytes)
        };
        if (max_ops > 0 && *ops < 1.0) || (max_bytes > 0 && bytes <= 0.0) {
            return false;
        }
        if max_ops > 0 {
            *ops -= 1.0;
        }
        true
    }
}

impl RateLimiterEntry {
    /// Subtracts the bytes of a transfer.
    pub fn charge_bytes(&self, read: u64, written: u64) {
        let mut tokens = self.0.lock();
        if tokens.limit.max_read_bytes > 0 {
            tokens.read_bytes -= read as f64;
        }
        if tokens.limit.max_write_bytes > 0 {
            tokens.write_bytes -= written as f64;
        }
    }
}

/// All accounts of a gateway.
#[derive(Debug, Default)]
pub struct RateLimiter(Mutex<HashMap<RateLimitScope, Arc<RateLimiterEntry>>>);

impl RateLimiter {
    /// Counts an operation. Returns `None` if it exceeds the limit. The bytes that it transfers must be subtracted from the
    /// returned account.
    pub fn take(
        &self,
        scope: RateLimitScope,
        limit: RateLimit,
        writes: bool,
        now: Instant,
    ) -> Option<Arc<RateLimiterEntry>> {
        let account = {
            let mut accounts = self.0.lock();
            if accounts.len() >= COUNTED && !accounts.contains_key(&scope) {
                accounts.retain(|_, account| {
                    let mut tokens = account.0.lock();
                    tokens.fill(now);
                    !tokens.is_full()
                });
                // There are too many accounts in debt to keep count of: all of them are reset.
                if accounts.len() >= COUNTED {
                    accounts.clear();
                }
            }
            let begin = || Arc::new(RateLimiterEntry(Mutex::new(Tokens::full(limit, now))));
            Arc::clone(accounts.entry(scope).or_insert_with(begin))
        };
        let taken = account.0.lock().take(limit, writes, now);
        taken.then_some(account)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn user(name: &str) -> RateLimitScope {
        RateLimitScope::User(name.to_owned())
    }

    #[test]
    fn operations_above_the_limit_are_refused_until_a_share_of_the_minute_went_by() {
        let limit = RateLimit { enabled: true, max_read_ops: 6, max_write_ops: 60, ..RateLimit::default() };
        let (limits, begin) = (RateLimiter::default(), Instant::now());
        let take =
            |writes, secs| limits.take(user("a"), limit, writes, begin + Duration::from_secs(secs)).is_some();
        assert_eq!((0..10).filter(|_| take(false, 0)).count(), 6);
        assert_eq!((0..100).filter(|_| take(true, 0)).count(), 60);
        assert_eq!((0..100).filter(|_| take(false, 20)).count(), 2);
        assert_eq!((0..100).filter(|_| take(false, 600)).count(), 6, "no more than a minute's");
        let other = limits.take(user("b"), limit, false, begin);
        assert!(other.is_some(), "each has its own");
        assert_eq!((0..100).filter(|_| take(false, 600)).count(), 0);
        let more = RateLimit { max_read_ops: 7, ..limit };
        let again = limits.take(user("a"), more, false, begin + Duration::from_secs(600));
        assert!(again.is_some(), "a limit that was changed starts again");
    }

    #[test]
    fn bytes_are_owed_and_paid_back() {
        let limit = RateLimit { enabled: true, max_write_bytes: 600, ..RateLimit::default() };
        let (limits, begin) = (RateLimiter::default(), Instant::now());
        let take = |writes, secs| limits.take(user("a"), limit, writes, begin + Duration::from_secs(secs));
        take(true, 0).unwrap().charge_bytes(5000, 1200);
        assert!(take(true, 0).is_none() && take(true, 59).is_none(), "600 are owed");
        assert!(take(false, 0).is_some(), "reads have no limit");
        assert!(take(true, 61).is_some());
    }

    #[test]
    fn no_more_than_so_many_are_counted() {
        let limit = RateLimit { enabled: true, max_read_ops: 10, ..RateLimit::default() };
        let (limits, begin) = (RateLimiter::default(), Instant::now());
        for n in 0..3 * COUNTED {
            assert!(limits.take(user(&n.to_string()), limit, false, begin).is_some());
            assert!(limits.0.lock().len() <= COUNTED);
        }
        // Accounts without a debt are dropped; accounts with a debt stay.
        let later = begin + Duration::from_secs(120);
        for _ in 0..10 {
            assert!(limits.take(user("busy"), limit, false, later).is_some());
        }
        for n in 0..COUNTED - 2 {
            assert!(limits.take(user(&format!("next {n}")), limit, false, later).is_some());
        }
        assert!(limits.take(user("busy"), limit, false, later).is_none());
    }
}
