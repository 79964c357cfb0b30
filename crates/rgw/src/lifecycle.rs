//! Lifecycle: a bucket's rules for expirations, transitions and aborted uploads. They say what is due at a given time; the worker
//! ([`crate::lifecycle_worker`]) does it.

use crate::stored::Head;
use crate::zone::DEFAULT_STORAGE_CLASS;
use s3s::dto::{BucketLifecycleConfiguration, ExpirationStatus, LifecycleRule, Timestamp};
use std::time::Duration;

/// The maximum number of rules of a bucket.
pub const MAX_RULES: usize = 1000;
/// The maximum length of a rule's id.
const MAX_ID_CHARS: usize = 255;
/// The length of a day, unless another one is configured.
pub const DAY: Duration = Duration::from_secs(24 * 3600);

/// When a version expires or moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    /// This many days after it was created.
    Days(u64),
    /// From this time on, in nanoseconds since 1970.
    Date(u64),
}

/// An enabled rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) id: String,
    prefix: String,
    tags: Vec<(String, String)>,
    larger: Option<u64>,
    smaller: Option<u64>,
    due: Option<Due>,
    /// Whether delete markers that hide nothing are removed.
    marker: bool,
    noncurrent_days: Option<u64>,
    /// The number of noncurrent versions that are kept however old they are.
    newer_noncurrent: u64,
    abort_days: Option<u64>,
    /// When current versions move to a storage class, and the name of the class, which is empty for STANDARD.
    transitions: Vec<(Due, String)>,
    /// The same for noncurrent versions: the days, the number of versions that do not move however old they are, and the
    /// class.
    noncurrent_transitions: Vec<(u64, u64, String)>,
}

/// A bucket's enabled rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LifecycleConfig(Vec<Rule>);

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

fn not_negative(days: Option<i32>, what: &str) -> Result<Option<u64>, String> {
    let read = days.map(u64::try_from).transpose();
    read.map_err(|_| format!("'{what}' must not be negative"))
}

/// Converts the date of a rule to nanoseconds since 1970. Fails if it is not at midnight.
fn midnight(date: &Timestamp) -> Result<u64, String> {
    let at = nanoseconds(date).ok_or("'Date' lies before 1970")?;
    if at % DAY.as_nanos() as u64 == 0 { Ok(at) } else { Err("'Date' must be at midnight GMT".into()) }
}

/// Returns the storage class of a transition; empty for STANDARD.
fn class_named(class: Option<&str>) -> Result<String, String> {
    let class = class.filter(|class| !class.is_empty()).ok_or("a transition needs StorageClass")?;
    Ok(if class == DEFAULT_STORAGE_CLASS { "" } else { class }.to_owned())
}

impl Due {
    /// Returns the due time for a version with that modification time, in nanoseconds since 1970.
    fn at_ns(self, mtime_ns: u64, day: Duration) -> u64 {
        match self {
            Due::Date(at) => at,
            Due::Days(days) => after(mtime_ns, days, day),
        }
    }
}

impl Rule {
    /// Parses a rule; the error says what is wrong with it.
    fn read(rule: &LifecycleRule) -> Result<Rule, String> {
        let mut read = Rule { id: rule.id.clone().unwrap_or_default(), ..Rule::default() };
        if read.id.chars().count() > MAX_ID_CHARS {
            return Err(format!("ID length should not exceed allowed limit of {MAX_ID_CHARS}"));
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
                (None, Some(date)) => Some(Due::Date(midnight(date)?)),
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
        for transition in rule.transitions.iter().flatten() {
            let class = class_named(transition.storage_class.as_ref().map(|class| class.as_str()))?;
            let due = match (not_negative(transition.days, "Days")?, &transition.date) {
                (Some(days), None) => Due::Days(days),
                (None, Some(date)) => Due::Date(midnight(date)?),
                _ => return Err("a transition has either Days or Date".into()),
            };
            if let (Due::Days(moves), Some(Due::Days(goes))) = (due, read.due)
                && goes <= moves
            {
                return Err(
                    "'Days' in the Expiration action must be greater than 'Days' in the Transition action"
                        .into(),
                );
            }
            read.transitions.push((due, class));
        }
        for transition in rule.noncurrent_version_transitions.iter().flatten() {
            let class = class_named(transition.storage_class.as_ref().map(|class| class.as_str()))?;
            let days = not_negative(transition.noncurrent_days, "NoncurrentDays")?;
            let days = days.ok_or("NoncurrentVersionTransition needs NoncurrentDays")?;
            let newer = positive(transition.newer_noncurrent_versions, "NewerNoncurrentVersions")?;
            if read.noncurrent_days.is_some_and(|goes| goes <= days) {
                return Err("'NoncurrentDays' in NoncurrentVersionExpiration must be greater than in NoncurrentVersionTransition".into());
            }
            read.noncurrent_transitions.push((days, newer.unwrap_or(0), class));
        }
        let classes = |mut all: Vec<&String>| {
            let count = all.len();
            all.sort_unstable();
            all.dedup();
            all.len() == count
        };
        if !classes(read.transitions.iter().map(|(_, class)| class).collect())
            || !classes(read.noncurrent_transitions.iter().map(|(_, _, class)| class).collect())
        {
            return Err("a rule names a storage class once".into());
        }
        let acts = read.due.is_some()
            || read.marker
            || read.noncurrent_days.is_some()
            || read.abort_days.is_some()
            || !read.transitions.is_empty()
            || !read.noncurrent_transitions.is_empty();
        if acts { Ok(read) } else { Err("At least one action needs to be specified in a rule".into()) }
    }

    fn matches(&self, key: &str, head: &Head) -> bool {
        key.starts_with(&self.prefix)
            && self.larger.is_none_or(|larger| head.size > larger)
            && self.smaller.is_none_or(|smaller| head.size < smaller)
            && self.tags.iter().all(|tag| head.tags.contains(tag))
    }

    /// Whether the rule may match an object of that key and size, whatever its tags are.
    fn may_match(&self, key: &str, size: u64) -> bool {
        let untagged = Rule { tags: Vec::new(), ..self.clone() };
        untagged.matches(key, &Head { size, ..Head::default() })
    }

    /// Returns when the current version expires, in nanoseconds since 1970.
    fn expires_ns(&self, mtime_ns: u64, day: Duration) -> Option<u64> {
        Some(self.due?.at_ns(mtime_ns, day))
    }
}

/// Returns the time `days` days after `ns`. Days of 24 hours end at midnight, as in S3.
fn after(ns: u64, days: u64, day: Duration) -> u64 {
    let day_ns = day.as_nanos() as u64;
    let at = ns.saturating_add(days.saturating_mul(day_ns));
    if day == DAY { at.div_ceil(day_ns).saturating_mul(day_ns) } else { at }
}

impl LifecycleConfig {
    /// Parses the rules that a client sent; the error says what is wrong with them.
    pub fn read(configuration: &BucketLifecycleConfiguration) -> Result<LifecycleConfig, String> {
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
        Ok(LifecycleConfig(rules))
    }

    /// Returns when an object expires under these rules, in nanoseconds since 1970, and the id of the rule: the first that
    /// is due.
    pub fn expiration(&self, key: &str, head: &Head, day: Duration) -> Option<(u64, &str)> {
        let due = |rule: &Rule| rule.expires_ns(head.mtime_ns, day);
        let matching = self.0.iter().filter(|rule| rule.matches(key, head));
        matching.filter_map(|rule| Some((due(rule)?, rule.id.as_str()))).min()
    }

    /// Whether an object without versions may have expired. Its tags are not known yet.
    pub(crate) fn may_expire(&self, key: &str, size: u64, mtime_ns: u64, now_ns: u64, day: Duration) -> bool {
        let due = |rule: &Rule| rule.expires_ns(mtime_ns, day).is_some_and(|due| due <= now_ns);
        self.0.iter().any(|rule| due(rule) && rule.may_match(key, size))
    }

    /// Returns the storage classes to which objects move.
    pub fn transition_classes(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flat_map(|rule| {
            let current = rule.transitions.iter().map(|(_, class)| class.as_str());
            current.chain(rule.noncurrent_transitions.iter().map(|(_, _, class)| class.as_str()))
        })
    }

    /// Returns the storage class in which a current version should be now: that of the latest transition that is due.
    /// Returns `None` if none is due, or if the version is already there.
    pub(crate) fn transition(&self, key: &str, head: &Head, now_ns: u64, day: Duration) -> Option<&str> {
        let matching = self.0.iter().filter(|rule| rule.matches(key, head));
        let due = matching
            .flat_map(|rule| &rule.transitions)
            .map(|(due, class)| (due.at_ns(head.mtime_ns, day), class));
        let (_, class) = due.filter(|(at, _)| *at <= now_ns).max()?;
        (*class != head.class).then_some(class)
    }

    /// Whether an object without versions may have to move now. Its tags are not known yet.
    pub(crate) fn may_transition(&self, key: &str, entry: &Head, now_ns: u64, day: Duration) -> bool {
        let due = |rule: &Rule| {
            let mut transitions = rule.transitions.iter();
            transitions.any(|(due, class)| *class != entry.class && due.at_ns(entry.mtime_ns, day) <= now_ns)
        };
        self.0.iter().any(|rule| due(rule) && rule.may_match(key, entry.size))
    }

    /// Like [`LifecycleConfig::transition`], for a noncurrent version that was replaced at `since_ns` and is followed by `newer`
    /// noncurrent versions.
    pub(crate) fn noncurrent_transition(
        &self,
        (key, head): (&str, &Head),
        (since_ns, newer): (u64, u64),
        now_ns: u64,
        day: Duration,
    ) -> Option<&str> {
        let matching = self.0.iter().filter(|rule| rule.matches(key, head));
        let all = matching.flat_map(|rule| &rule.noncurrent_transitions);
        let due = all
            .filter(|(_, stay, _)| newer >= *stay)
            .map(|(days, _, class)| (after(since_ns, *days, day), class));
        let (_, class) = due.filter(|(at, _)| *at <= now_ns).max()?;
        (*class != head.class).then_some(class)
    }

    /// Whether a delete marker that hides nothing is removed.
    pub(crate) fn removes_marker(&self, key: &str, head: &Head, now_ns: u64, day: Duration) -> bool {
        let due = |rule: &Rule| rule.expires_ns(head.mtime_ns, day).is_some_and(|due| due <= now_ns);
        self.0
            .iter()
            .any(|rule| key.starts_with(&rule.prefix) && rule.tags.is_empty() && (rule.marker || due(rule)))
    }

    /// Whether a noncurrent version is removed that was replaced at `since_ns` and is followed by `newer` noncurrent
    /// versions.
    pub(crate) fn removes_noncurrent(
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
    pub(crate) fn aborts(&self, key: &str, begun_ns: u64, now_ns: u64, day: Duration) -> bool {
        let due = |days| after(begun_ns, days, day) <= now_ns;
        self.0.iter().any(|rule| rule.abort_days.is_some_and(due) && key.starts_with(&rule.prefix))
    }

    /// Whether any rule aborts uploads.
    pub(crate) fn has_aborts(&self) -> bool {
        self.0.iter().any(|rule| rule.abort_days.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_NS: u64 = 3600 * 1_000_000_000;
    const DAY_NS: u64 = 24 * HOUR_NS;

    fn rules(json: serde_json::Value) -> Result<LifecycleConfig, String> {
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
        LifecycleConfig::read(&serde_json::from_value(serde_json::json!({"rules": [rule]})).unwrap())
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
        // A shorter day is for tests.
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
    fn versions_move_to_the_class_that_was_due_last() {
        let rules = rules(serde_json::json!({
            "prefix": "logs/",
            "transitions": [
                {"date": null, "days": 3, "storage_class": "COLD"}, {"date": null, "days": 1, "storage_class": "WARM"},
            ],
            "noncurrent_version_transitions": [
                {"noncurrent_days": 0, "newer_noncurrent_versions": 1, "storage_class": "COLD"},
            ],
        }))
        .unwrap();
        let head = |class: &str| Head { class: class.into(), ..Head::default() };
        let at = |class: &str, days| {
            rules.transition("logs/k", &head(class), days * DAY_NS, DAY).map(str::to_owned)
        };
        assert_eq!(at("", 0), None);
        assert_eq!(at("", 1).as_deref(), Some("WARM"));
        assert_eq!(at("WARM", 1), None);
        assert_eq!(at("", 3).as_deref(), Some("COLD"));
        assert_eq!(at("WARM", 4).as_deref(), Some("COLD"));
        assert_eq!(at("COLD", 4), None);
        assert_eq!(rules.transition("other", &head(""), 9 * DAY_NS, DAY), None);
        assert!(rules.may_transition("logs/k", &head(""), DAY_NS, DAY));
        assert!(!rules.may_transition("logs/k", &head("WARM"), DAY_NS, DAY));
        let noncurrent = |newer| rules.noncurrent_transition(("logs/k", &head("")), (5, newer), DAY_NS, DAY);
        assert_eq!((noncurrent(0), noncurrent(1)), (None, Some("COLD")));
        let mut classes: Vec<&str> = rules.transition_classes().collect();
        classes.sort_unstable();
        assert_eq!(classes, ["COLD", "COLD", "WARM"]);
    }

    #[test]
    fn rules_that_say_nothing_or_too_much_are_refused() {
        for wrong in [
            serde_json::json!({}),
            serde_json::json!({"expiration": {"date": null, "days": 0, "expired_object_delete_marker": null}}),
            serde_json::json!({"expiration": {"date": null, "days": -1, "expired_object_delete_marker": null}}),
            serde_json::json!({"expiration": {"date": "2026-01-01T01:00:00Z", "days": null, "expired_object_delete_marker": null}}),
            serde_json::json!({"expiration": {"date": null, "days": 1, "expired_object_delete_marker": true}}),
            serde_json::json!({"transitions": [{"date": null, "days": 1, "storage_class": null}]}),
            serde_json::json!({"transitions": [{"date": null, "days": null, "storage_class": "COLD"}]}),
            serde_json::json!({"transitions": [{"date": null, "days": -1, "storage_class": "COLD"}]}),
            serde_json::json!({"transitions": [{"date": null, "days": 2, "storage_class": "COLD"}],
                "expiration": {"date": null, "days": 2, "expired_object_delete_marker": null}}),
            serde_json::json!({"transitions": [
                {"date": null, "days": 2, "storage_class": "COLD"}, {"date": null, "days": 3, "storage_class": "COLD"}]}),
            serde_json::json!({"noncurrent_version_transitions": [
                {"noncurrent_days": null, "newer_noncurrent_versions": null, "storage_class": "COLD"}]}),
            serde_json::json!({"status": "On", "expiration": {"date": null, "days": 1, "expired_object_delete_marker": null}}),
        ] {
            assert!(rules(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
