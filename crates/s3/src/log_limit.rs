//! A limit on how often a message is logged, for messages that clients or a lasting fault can cause at any rate.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Subjects whose messages are counted at a time. Messages about more subjects than that are not logged.
const SUBJECTS: usize = 1000;
/// Characters of a subject that tell it from others.
const SUBJECT_CHARS: usize = 256;

/// Passes a message about each subject once in a period.
#[derive(Debug)]
pub(crate) struct LogLimit {
    period: Duration,
    subjects: Mutex<BTreeMap<String, Logged>>,
}

/// When a message was logged, and how many about the same subject were not logged since.
#[derive(Debug)]
struct Logged {
    at: Instant,
    omitted: u64,
}

impl LogLimit {
    /// A limit of one message per subject in `period`.
    pub(crate) const fn new(period: Duration) -> LogLimit {
        LogLimit { period, subjects: Mutex::new(BTreeMap::new()) }
    }

    /// Whether a message about `subject` may be logged at `now`: if so, how many were omitted since the last one.
    pub(crate) fn should_log(&self, subject: &str, now: Instant) -> Option<u64> {
        let subject: String = subject.chars().take(SUBJECT_CHARS).collect();
        let is_due = |logged: &Logged| now.saturating_duration_since(logged.at) >= self.period;
        let mut subjects = self.subjects.lock();
        if let Some(logged) = subjects.get_mut(&subject) {
            if !is_due(logged) {
                logged.omitted += 1;
                return None;
            }
            logged.at = now;
            return Some(std::mem::take(&mut logged.omitted));
        }
        if subjects.len() >= SUBJECTS {
            subjects.retain(|_, logged| !is_due(logged));
        }
        if subjects.len() >= SUBJECTS {
            return None;
        }
        subjects.insert(subject, Logged { at: now, omitted: 0 });
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_secs(60);

    #[test]
    fn a_subject_is_logged_once_in_a_period() {
        let (limit, start) = (LogLimit::new(PERIOD), Instant::now());
        let mut passed = Vec::new();
        for second in 0..150 {
            let now = start + Duration::from_secs(second);
            passed.extend(limit.should_log("a", now).map(|omitted| (second, omitted)));
        }
        assert_eq!(passed, [(0, 0), (60, 59), (120, 59)]);
        assert_eq!(limit.should_log("b", start), Some(0), "subjects have limits of their own");
    }

    #[test]
    fn subjects_are_bounded_in_number_and_length() {
        let (limit, start) = (LogLimit::new(PERIOD), Instant::now());
        let passed = (0..2 * SUBJECTS).filter(|n| limit.should_log(&n.to_string(), start).is_some()).count();
        assert_eq!((passed, limit.subjects.lock().len()), (SUBJECTS, SUBJECTS));
        assert_eq!(
            limit.should_log(&"x".repeat(100_000), start + PERIOD),
            Some(0),
            "the others have had their period"
        );
        let subjects = limit.subjects.lock();
        assert_eq!(subjects.keys().map(String::len).collect::<Vec<_>>(), [SUBJECT_CHARS]);
    }
}
