//! Quotas: how many objects and bytes a bucket, or all buckets of a user, may hold.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A quota. A negative limit means no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    /// Whether it is enforced.
    pub enabled: bool,
    /// The maximum number of bytes.
    pub max_size: i64,
    /// The maximum number of objects.
    pub max_objects: i64,
}

impl Default for Quota {
    fn default() -> Quota {
        Quota { enabled: false, max_size: -1, max_objects: -1 }
    }
}

/// A change of a quota. `None` leaves a property as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaChange {
    /// Whether it is enforced.
    pub enabled: Option<bool>,
    /// The maximum number of bytes; negative for no limit.
    pub max_size: Option<i64>,
    /// The maximum number of objects; negative for no limit.
    pub max_objects: Option<i64>,
}

impl QuotaChange {
    /// Returns the quota after the change.
    pub fn apply(&self, quota: Quota) -> Quota {
        let limit = |limit: i64| limit.max(-1);
        Quota {
            enabled: self.enabled.unwrap_or(quota.enabled),
            max_size: self.max_size.map_or(quota.max_size, limit),
            max_objects: self.max_objects.map_or(quota.max_objects, limit),
        }
    }
}

impl Quota {
    /// Returns radosgw-admin's output for the quota.
    pub fn describe(&self) -> serde_json::Value {
        let kb = if self.max_size > 0 { (self.max_size + 1023) / 1024 } else { 0 };
        serde_json::json!({
            "enabled": self.enabled, "check_on_raw": false, "max_size": self.max_size, "max_size_kb": kb,
            "max_objects": self.max_objects,
        })
    }

    pub(crate) fn is_effective(&self) -> bool {
        self.enabled && (self.max_size >= 0 || self.max_objects >= 0)
    }

    /// Whether the quota allows this usage.
    pub(crate) fn has_room(&self, usage: QuotaUsage) -> bool {
        let below = |sum: u64, max: i64| u64::try_from(max).map_or(true, |max| sum <= max);
        !self.enabled || (below(usage.objects, self.max_objects) && below(usage.bytes, self.max_size))
    }
}

/// An amount of objects and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaUsage {
    /// Objects.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl std::ops::Add for QuotaUsage {
    type Output = QuotaUsage;

    fn add(self, other: QuotaUsage) -> QuotaUsage {
        let objects = self.objects.saturating_add(other.objects);
        QuotaUsage { objects, bytes: self.bytes.saturating_add(other.bytes) }
    }
}

impl QuotaUsage {
    /// The difference, at least 0.
    pub(crate) fn saturating_sub(self, other: QuotaUsage) -> QuotaUsage {
        QuotaUsage {
            objects: self.objects.saturating_sub(other.objects),
            bytes: self.bytes.saturating_sub(other.bytes),
        }
    }
}

/// The effect of a change of the index on the usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UsageDelta {
    pub(crate) objects: i64,
    pub(crate) bytes: i64,
}

impl UsageDelta {
    /// What it adds.
    pub(crate) fn increase(self) -> QuotaUsage {
        QuotaUsage { objects: self.objects.max(0).unsigned_abs(), bytes: self.bytes.max(0).unsigned_abs() }
    }
}

/// The maximum ages of cached usage.
#[derive(Clone, Copy, Debug)]
pub struct QuotaTtls {
    /// `rgw_bucket_quota_ttl`: for a bucket. Reservations that are neither finished nor released, such as those of parts of
    /// an upload that was not completed, also count for this time.
    pub bucket: Duration,
    /// `rgw_user_quota_bucket_sync_interval`: for a user.
    pub user: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_inclusive_and_below_zero_none() {
        let quota = |max_size, max_objects| Quota { enabled: true, max_size, max_objects };
        let usage = |objects, bytes| QuotaUsage { objects, bytes };
        assert!(quota(100, -1).has_room(usage(1000, 100)));
        assert!(!quota(100, -1).has_room(usage(0, 101)));
        assert!(quota(-1, 2).has_room(usage(2, u64::MAX)));
        assert!(!quota(-1, 2).has_room(usage(3, 0)));
        assert!(!quota(0, 0).has_room(usage(1, 0)));
        assert!(Quota { enabled: false, max_size: 0, max_objects: 0 }.has_room(usage(9, 9)));
        assert!(!quota(-1, -1).is_effective() && quota(-1, 0).is_effective());
    }

    #[test]
    fn a_change_leaves_what_it_does_not_name() {
        let change = QuotaChange { max_size: Some(-7), enabled: Some(true), max_objects: None };
        let quota = change.apply(Quota { enabled: false, max_size: 4, max_objects: 9 });
        assert_eq!(quota, Quota { enabled: true, max_size: -1, max_objects: 9 });
        assert_eq!(quota.describe()["max_size_kb"], 0);
        assert_eq!(Quota { max_size: 1025, ..quota }.describe()["max_size_kb"], 2);
    }
}
