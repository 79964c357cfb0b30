//! The rate of optional promotions of an OSD (`osd_tier_promote_max_objects_sec`, `osd_tier_promote_max_bytes_sec`).
//!
//! A token bucket each for objects and bytes. Both hold two seconds' worth, the burst that Ceph allows as well. Ceph
//! promotes with a probability that it adapts every few seconds; a bucket keeps to the same rates without a random
//! number and without a delay.
//!
//! The size of an object is known only when it was copied: bytes are charged then, and may put their bucket into debt,
//! which the time that follows pays.

const NS_PER_S: i128 = 1_000_000_000;
/// Seconds' worth that a bucket holds.
const BURST_S: i128 = 2;

/// Tokens in billionths, so that a rate per second is a whole number of them per nanosecond.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// Tokens per second; 0 is no limit.
    rate: u64,
    nano_tokens: i128,
}

impl Bucket {
    fn full(rate: u64) -> Bucket {
        Bucket { rate, nano_tokens: Bucket::most(rate) }
    }

    fn most(rate: u64) -> i128 {
        i128::from(rate) * NS_PER_S * BURST_S
    }

    fn fill(&mut self, elapsed_ns: u64) {
        let more = i128::from(self.rate) * i128::from(elapsed_ns);
        self.nano_tokens = (self.nano_tokens + more).min(Bucket::most(self.rate));
    }

    /// Whether a whole token is there.
    fn has_token(&self) -> bool {
        self.rate == 0 || self.nano_tokens >= NS_PER_S
    }

    fn take(&mut self, tokens: u64) {
        if self.rate != 0 {
            self.nano_tokens -= i128::from(tokens) * NS_PER_S;
        }
    }
}

/// The throttle of an OSD's promotions. Times are nanoseconds of a clock that the caller chooses; one that goes back
/// adds nothing.
#[derive(Clone, Debug)]
pub struct PromoteThrottle {
    objects: Bucket,
    bytes: Bucket,
    filled_ns: u64,
}

impl PromoteThrottle {
    /// A throttle with full buckets. A rate of 0 is no limit.
    pub fn new(max_objects_per_s: u64, max_bytes_per_s: u64, now_ns: u64) -> PromoteThrottle {
        PromoteThrottle {
            objects: Bucket::full(max_objects_per_s),
            bytes: Bucket::full(max_bytes_per_s),
            filled_ns: now_ns,
        }
    }

    /// Takes changed options. Buckets whose rate changes begin full.
    pub fn set_rates(&mut self, max_objects_per_s: u64, max_bytes_per_s: u64) {
        for (bucket, rate) in [(&mut self.objects, max_objects_per_s), (&mut self.bytes, max_bytes_per_s)] {
            if bucket.rate != rate {
                *bucket = Bucket::full(rate);
            }
        }
    }

    /// Whether a promotion may start now; charges it as one object where it may.
    pub fn try_start(&mut self, now_ns: u64) -> bool {
        let elapsed = now_ns.saturating_sub(self.filled_ns);
        self.filled_ns = self.filled_ns.max(now_ns);
        self.objects.fill(elapsed);
        self.bytes.fill(elapsed);
        let may = self.objects.has_token() && self.bytes.has_token();
        if may {
            self.objects.take(1);
        }
        may
    }

    /// Charges further objects, where one that was asked for stands for several.
    pub fn started(&mut self, more_objects: u64) {
        self.objects.take(more_objects);
    }

    /// Charges the bytes of a promotion that was copied, whether or not it had to ask.
    pub fn copied(&mut self, bytes: u64) {
        self.bytes.take(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn bursts_of_two_seconds_worth_pass() {
        let mut throttle = PromoteThrottle::new(25, 0, 0);
        assert_eq!((0..1000).filter(|_| throttle.try_start(0)).count(), 50);
        assert_eq!((0..1000).filter(|_| throttle.try_start(S)).count(), 25);
        // A long silence saves no more than the burst.
        assert_eq!((0..1000).filter(|_| throttle.try_start(1000 * S)).count(), 50);
        assert!(!throttle.try_start(999 * S), "time that goes back adds nothing");
        assert_eq!((0..1000).filter(|_| throttle.try_start(1001 * S)).count(), 25);
    }

    #[test]
    fn debts_of_large_objects_are_paid_by_time() {
        let mut throttle = PromoteThrottle::new(0, 1000, 0);
        assert!(throttle.try_start(0));
        throttle.copied(5000);
        assert!(!throttle.try_start(3 * S));
        assert!(throttle.try_start(3 * S + S / 1000));
    }

    #[test]
    fn zero_is_no_limit_and_changed_rates_count_at_once() {
        let mut throttle = PromoteThrottle::new(0, 0, 0);
        throttle.copied(u64::MAX);
        assert_eq!((0..1000).filter(|_| throttle.try_start(0)).count(), 1000);
        throttle.set_rates(1, 0);
        assert_eq!((0..1000).filter(|_| throttle.try_start(0)).count(), 2);
        throttle.set_rates(1, 0);
        assert!(!throttle.try_start(0), "an unchanged rate gives nothing");
    }

    proptest! {
        #[test]
        fn rates_hold_over_any_stretch(
            steps in proptest::collection::vec((0..500_u64, 1..5_000_u64), 1..300)
        ) {
            let mut throttle = PromoteThrottle::new(20, 10_000, 0);
            let (mut now_ms, mut objects, mut bytes, mut largest) = (0, 0_u64, 0_u64, 0);
            for (passed_ms, size) in steps {
                now_ms += passed_ms;
                if throttle.try_start(now_ms * (S / 1000)) {
                    objects += 1;
                    throttle.copied(size);
                    bytes += size;
                    largest = largest.max(size);
                }
            }
            prop_assert!(objects * 1000 <= 20 * (2000 + now_ms));
            prop_assert!((bytes - largest) * 1000 <= 10_000 * (2000 + now_ms));
        }
    }
}
