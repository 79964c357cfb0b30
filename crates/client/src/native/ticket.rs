//! The life of a ticket by this machine's clock, and notices about clocks that differ.

use nacre_types::OsdId;
use std::time::{Duration, Instant};

/// A ticket that is refused within this time after its grant has not expired by the monitor's clock.
const FRESH_TICKET_AGE: Duration = Duration::from_secs(3);
/// The minimum time between two notices.
const BETWEEN_NOTICES: Duration = Duration::from_secs(60);

/// Returns the remaining life of a ticket that was just granted, and, if it has expired by this machine's clock, by how many seconds. An
/// expired ticket lives for `ttl`, the configured lifetime: the clock is wrong, and an immediate renewal does not help.
pub(super) fn ticket_lifetime(expires_unix: u64, now_unix: u64, ttl: Duration) -> (Duration, Option<u64>) {
    match expires_unix.checked_sub(now_unix) {
        Some(secs) => (Duration::from_secs(secs), None),
        None => (ttl, Some(now_unix - expires_unix)),
    }
}

/// Notices about clocks, for people who wait: at most one per [`BETWEEN_NOTICES`].
#[derive(Debug, Default)]
pub(super) struct ClockSkewNotices {
    granted: Option<Instant>,
    told: Option<Instant>,
}

impl ClockSkewNotices {
    /// Records the grant of a ticket. `expired_secs` is set if it has already expired by this machine's clock.
    pub(super) fn on_grant(&mut self, now: Instant, expired_secs: Option<u64>) -> Option<String> {
        self.granted = Some(now);
        let secs = expired_secs.filter(|_| self.may_tell(now))?;
        Some(format!(
            "the clocks differ: the monitor has just granted a ticket that expired {secs} s ago by the clock of this \
             machine; set the clocks"
        ))
    }

    /// Returns the notice about an OSD that refuses a ticket as expired because of `why`. Only fresh tickets count: older ones may have
    /// expired.
    pub(super) fn on_refusal(&mut self, now: Instant, osd: OsdId, why: &str) -> Option<String> {
        let age = now.saturating_duration_since(self.granted?);
        let fresh = age < FRESH_TICKET_AGE && self.may_tell(now);
        fresh.then(|| {
            let age = age.as_secs_f64();
            format!("{osd} refuses the ticket that the monitor granted {age:.1} s ago, trying again: {why}")
        })
    }

    fn may_tell(&mut self, now: Instant) -> bool {
        let may = self.told.is_none_or(|told| now.saturating_duration_since(told) >= BETWEEN_NOTICES);
        if may {
            self.told = Some(now);
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(3600);

    #[test]
    fn a_wrong_clock_does_not_shorten_a_tickets_life_to_nothing() {
        assert_eq!(ticket_lifetime(1000, 400, TTL), (Duration::from_secs(600), None));
        assert_eq!(ticket_lifetime(1000, 1000, TTL), (Duration::ZERO, None));
        assert_eq!(ticket_lifetime(1000, 8200, TTL), (TTL, Some(7200)));
    }

    #[test]
    fn differing_clocks_are_told_with_the_difference_once_a_minute() {
        let mut notices = ClockSkewNotices::default();
        let start = Instant::now();
        assert_eq!(notices.on_refusal(start, OsdId(3), "no ticket"), None, "nothing was granted yet");
        assert_eq!(notices.on_grant(start, None), None);
        assert_eq!(
            notices.on_refusal(start + FRESH_TICKET_AGE, OsdId(3), "expired"),
            None,
            "it may have run out"
        );
        let told = notices.on_refusal(start + Duration::from_millis(200), OsdId(3), "expired 7200 s ago");
        let expected =
            "osd.3 refuses the ticket that the monitor granted 0.2 s ago, trying again: expired 7200 s ago";
        assert_eq!(told.as_deref(), Some(expected));
        let later = start + Duration::from_secs(30);
        assert_eq!(notices.on_grant(later, Some(7200)), None);
        assert_eq!(notices.on_refusal(later, OsdId(4), "expired"), None);
        let told = notices.on_grant(start + 2 * BETWEEN_NOTICES, Some(7200)).unwrap();
        assert!(told.contains("the clocks differ") && told.contains("7200 s ago"), "{told}");
    }
}
