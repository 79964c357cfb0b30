//! Lifecycle: a bucket's rules of what is to go when, and the worker that has it go.
//!
//! Rules are pure: they say what is due at a time. [`work`] lists buckets with rules and does what is due, through the same
//! operations that clients use; it changes nothing that was written since it looked.

mod work;

pub use work::{Expired, LifecycleEntry, LifecycleStatus};
pub(crate) use work::{Schedule, work};

use crate::object::Head;
use s3s::dto::{BucketLifecycleConfiguration, ExpirationStatus, LifecycleRule, Timestamp};
use std::time::Duration;

/// The most rules of a bucket.
pub(crate) const MAX_RULES: usize = 1000;
/// The longest id of a rule.
const MAX_ID_CHARS: usize = 255;
/// What a day is, where nothing else is said.
pub(crate) const DAY: Duration = Duration::from_secs(24 * 3600);

/// When a current version goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    /// So many days after it was made.
    Days(u64),
    /// From that time on, in nanoseconds since 1970.
    Date(u64),
}

/// A rule that is in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) id: String,
    prefix: String,
    tags: Vec<(String, String)>,
    larger: Option<u64>,
    smaller: Option<u64>,
    due: Option<Due>,
    /// Delete markers that hide nothing go.
    marker: bool,
    noncurrent_days: Option<u64>,
    /// So many noncurrent versions stay however old they are.
    newer_noncurrent: u64,
    abort_days: Option<u64>,
}

/// A bucket's rules, and how long their days are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rules(Vec<Rule>);

fn nanoseconds(date: &Timestamp) -> Option<u64> {
    let date = time::OffsetDateTime::from(date.clone());
    u64::try_from(date.unix_timestamp_nanos()).ok()
}

fn positive(days: Option<i32>, what: &str) -> Result<Option<u64>, String> {
    match days {
        None => Ok(None),
        Some(days) => match u64::try_from(days).ok().filter(|days| *days > 0) {
            Some(days) => Ok(Some(days)),
            None => Err(format!("'{what}' must be a positive integer")),
        },
    }
}

impl Rule {
    /// Reads a rule; fails with what is wrong with it.
    fn read(rule: &LifecycleRule) -> Result<Rule, String> {
        let mut read = Rule { id: rule.id.clone().unwrap_or_default(), ..Rule::default() };
        if read.id.chars().count() > MAX_ID_CHARS {
            return Err(format!("ID length should not exceed allowed limit of {MAX_ID_CHARS}"));
        }
        if rule.transitions.is_some() || rule.noncurrent_version_transitions.is_some() {
            return Err("there is one storage class only: objects can't move to another".into());
        }
        if rule.filter.is_some() && rule.prefix.is_some() {
            return Err("either Filter or Prefix".into());
        }
        read.prefix = rule.prefix.clone().unwrap_or_default();
        if let Some(filter) = &rule.filter {
            let size = |size: Option<i64>| size.and_then(|size| u64::try_from(size).ok());
            let tag = |tag: &s3s::dto::Tag| {
                (tag.key.clone().unwrap_or_default(), tag.value.clone().unwrap_or_default())
            };
            let and = filter.and.as_ref();
            read.prefix.clone_from(
                filter.prefix.as_ref().or(and.and_then(|and| and.prefix.as_ref())).unwrap_or(&String::new()),
            );
            read.tags.extend(filter.tag.iter().map(tag));
            read.tags.extend(and.and_then(|and| and.tags.as_ref()).into_iter().flatten().map(tag));
            read.larger =
                size(filter.object_size_greater_than.or(and.and_then(|and| and.object_size_greater_than)));
            read.smaller =
                size(filter.object_size_less_than.or(and.and_then(|and| and.object_size_less_than)));
        }
        if let Some(expiration) = &rule.expiration {
            let days = positive(expiration.days, "Days")?;
            read.marker = expiration.expired_object_delete_marker.unwrap_or(false);
            read.due = match (days, &expiration.date) {
                (Some(_), Some(_)) => return Err("either Days or Date".into()),
                (Some(days), None) => Some(Due::Days(days)),
                (None, Some(date)) => {
                    let at = nanoseconds(date).ok_or("'Date' lies before 1970")?;
                    if at % DAY.as_nanos() as u64 != 0 {
                        return Err("'Date' must be at midnight GMT".into());
                    }
                    Some(Due::Date(at))
                }
                (None, None) => None,
            };
            if read.marker && read.due.is_some() {
                return Err("ExpiredObjectDeleteMarker goes with neither Days nor Date".into());
            }
            if read.marker && !read.tags.is_empty() {
                return Err("delete markers have no tags".into());
            }
        }
        if let Some(noncurrent) = &rule.noncurrent_version_expiration {
            read.noncurrent_days = positive(noncurrent.noncurrent_days, "NoncurrentDays")?;
            if read.noncurrent_days.is_none() {
                return Err("NoncurrentVersionExpiration needs NoncurrentDays".into());
            }
            let newer = positive(noncurrent.newer_noncurrent_versions, "NewerNoncurrentVersions")?;
            read.newer_noncurrent = newer.unwrap_or(0);
        }
        if let Some(abort) = &rule.abort_incomplete_multipart_upload {
            read.abort_days = positive(abort.days_after_initiation, "DaysAfterInitiation")?;
            if !read.tags.is_empty() || read.larger.is_some() || read.smaller.is_some() {
                return Err("uploads have neither tags nor a size".into());
            }
        }
        let acts =
            read.due.is_some() || read.marker || read.noncurrent_days.is_some() || read.abort_days.is_some();
        if acts { Ok(read) } else { Err("At least one action needs to be specified in a rule".into()) }
    }

    fn matches(&self, key: &str, head: &Head) -> bool {
        key.starts_with(&self.prefix)
            && self.larger.is_none_or(|larger| head.size > larger)
            && self.smaller.is_none_or(|smaller| head.size < smaller)
            && self.tags.iter().all(|tag| head.tags.contains(tag))
    }

    /// Whether it can concern anything of that key that is not a matter of its tags.
    fn may_match(&self, key: &str, size: u64) -> bool {
        let untagged = Rule { tags: Vec::new(), ..self.clone() };
        untagged.matches(key, &Head { size, ..Head::default() })
    }

    /// When the current version goes.
    fn expires_ns(&self, mtime_ns: u64, day: Duration) -> Option<u64> {
        Some(match self.due? {
            Due::Date(at) => at,
            Due::Days(days) => after(mtime_ns, days, day),
        })
    }
}

/// So many days after a time; whole ones end at midnight, as S3 has it.
fn after(ns: u64, days: u64, day: Duration) -> u64 {
    let day_ns = day.as_nanos() as u64;
    let at = ns.saturating_add(days.saturating_mul(day_ns));
    if day == DAY { at.div_ceil(day_ns).saturating_mul(day_ns) } else { at }
}

impl Rules {
    /// Reads what a client sent; fails with what is wrong with it.
    pub(crate) fn read(configuration: &BucketLifecycleConfiguration) -> Result<Rules, String> {
        let mut rules = Vec::new();
        let mut ids: Vec<&str> = Vec::new();
        for rule in &configuration.rules {
            let read = Rule::read(rule)?;
            if let Some(id) = rule.id.as_deref().filter(|id| !id.is_empty()) {
                if ids.contains(&id) {
                    return Err(format!(
                        "Rule ID must be unique. Found same ID for more than one rule: {id}"
                    ));
                }
                ids.push(id);
            }
            match rule.status.as_str() {
                ExpirationStatus::ENABLED => rules.push(read),
                ExpirationStatus::DISABLED => {}
                other => return Err(format!("a rule is Enabled or Disabled, not {other}")),
            }
        }
        Ok(Rules(rules))
    }

    /// When an object goes as things are, in nanoseconds since 1970, and by which rule: the first that is due.
    pub(crate) fn expiration(&self, key: &str, head: &Head, day: Duration) -> Option<(u64, &str)> {
        let due = |rule: &Rule| rule.expires_ns(head.mtime_ns, day);
        let matching = self.0.iter().filter(|rule| rule.matches(key, head));
        matching.filter_map(|rule| Some((due(rule)?, rule.id.as_str()))).min()
    }

    /// Whether anything of a key without versions can be due now; its tags are not known yet.
    fn may_expire(&self, key: &str, size: u64, mtime_ns: u64, now_ns: u64, day: Duration) -> bool {
        let due = |rule: &Rule| rule.expires_ns(mtime_ns, day).is_some_and(|due| due <= now_ns);
        self.0.iter().any(|rule| due(rule) && rule.may_match(key, size))
    }

    /// Whether a delete marker that hides nothing goes.
    fn removes_marker(&self, key: &str, head: &Head, now_ns: u64, day: Duration) -> bool {
        let due = |rule: &Rule| rule.expires_ns(head.mtime_ns, day).is_some_and(|due| due <= now_ns);
        self.0
            .iter()
            .any(|rule| key.starts_with(&rule.prefix) && rule.tags.is_empty() && (rule.marker || due(rule)))
    }

    /// Whether a version goes that was followed by another one at `since_ns`, and by `newer` noncurrent ones.
    fn removes_noncurrent(
        &self,
        (key, head): (&str, &Head),
        (since_ns, newer): (u64, u64),
        now_ns: u64,
        day: Duration,
    ) -> bool {
        self.0.iter().any(|rule| {
            let due = rule.noncurrent_days.is_some_and(|days| after(since_ns, days, day) <= now_ns);
            due && newer >= rule.newer_noncurrent && rule.matches(key, head)
        })
    }

    /// Whether an upload that was initiated at `begun_ns` is aborted.
    fn aborts(&self, key: &str, begun_ns: u64, now_ns: u64, day: Duration) -> bool {
        let due = |days| after(begun_ns, days, day) <= now_ns;
        self.0.iter().any(|rule| rule.abort_days.is_some_and(due) && key.starts_with(&rule.prefix))
    }

    /// Whether any rule ends uploads.
    fn has_aborts(&self) -> bool {
        self.0.iter().any(|rule| rule.abort_days.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_NS: u64 = 3600 * 1_000_000_000;
    const DAY_NS: u64 = 24 * HOUR_NS;

    fn rules(json: serde_json::Value) -> Result<Rules, String> {
        let mut rule = json;
        let fields = [
            "abort_incomplete_multipart_upload",
            "expiration",
            "filter",
            "id",
            "noncurrent_version_expiration",
            "noncurrent_version_transitions",
            "prefix",
            "transitions",
        ];
        let object = rule.as_object_mut().unwrap();
        for field in fields {
            object.entry(field).or_insert(serde_json::Value::Null);
        }
        object.entry("status").or_insert("Enabled".into());
        Rules::read(&serde_json::from_value(serde_json::json!({"rules": [rule]})).unwrap())
    }

    #[test]
    fn days_end_at_midnight() {
        let head = Head { mtime_ns: DAY_NS + 5 * HOUR_NS, ..Head::default() };
        let rules = rules(serde_json::json!({
            "id": "r", "prefix": "logs/", "expiration": {"date": null, "days": 2, "expired_object_delete_marker": null},
        }))
        .unwrap();
        assert_eq!(rules.expiration("logs/a", &head, DAY), Some((4 * DAY_NS, "r")));
        assert_eq!(rules.expiration("other", &head, DAY), None);
        // A shorter day is for trying.
        let second = Duration::from_secs(1);
        assert_eq!(rules.expiration("logs/a", &head, second), Some((head.mtime_ns + 2_000_000_000, "r")));
        assert!(rules.may_expire("logs/a", 0, head.mtime_ns, 4 * DAY_NS, DAY));
        assert!(!rules.may_expire("logs/a", 0, head.mtime_ns, 4 * DAY_NS - 1, DAY));
    }

    #[test]
    fn noncurrent_versions_go_by_age_and_number() {
        let rules = rules(serde_json::json!({
            "noncurrent_version_expiration": {"noncurrent_days": 1, "newer_noncurrent_versions": 2},
        }))
        .unwrap();
        let head = Head::default();
        let goes = |since, newer, now| rules.removes_noncurrent(("k", &head), (since, newer), now, DAY);
        assert!(goes(0, 2, DAY_NS));
        assert!(!goes(0, 1, DAY_NS));
        assert!(!goes(1, 2, DAY_NS));
        assert!(goes(1, 2, 2 * DAY_NS));
    }

    #[test]
    fn rules_that_say_nothing_or_too_much_are_refused() {
        for wrong in [
            serde_json::json!({}),
            serde_json::json!({"expiration": {"date": null, "days": 0, "expired_object_delete_marker": null}}),
            serde_json::json!({"expiration": {"date": null, "days": -1, "expired_object_delete_marker": null}}),
            serde_json::json!({"expiration": {"date": "2026-01-01T01:00:00Z", "days": null, "expired_object_delete_marker": null}}),
            serde_json::json!({"expiration": {"date": null, "days": 1, "expired_object_delete_marker": true}}),
            serde_json::json!({"status": "On", "expiration": {"date": null, "days": 1, "expired_object_delete_marker": null}}),
        ] {
            assert!(rules(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
