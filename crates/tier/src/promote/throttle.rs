//! Limits the rate of optional promotions of an OSD (`osd_tier_promote_max_objects_sec`, `osd_tier_promote_max_bytes_sec`).
//!
//! There is a token bucket each for objects and bytes. Both hold tokens for two seconds, the burst that Ceph allows as well. Ceph promotes
//! with a probability that it adapts every few seconds. A bucket keeps to the same rates without a random number and without a delay.
//!
//! The size of an object is known only after it was copied. Its bytes are charged then. They may make the bucket negative, until it has
//! been refilled.

const NS_PER_S: i128 = 1_000_000_000;
/// Capacity of a bucket in seconds.
const BURST_S: i128 = 2;

/// Tokens in billionths, so that each nanosecond adds a whole number of them.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// Tokens per second; 0 means no limit.
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

    /// Whether the bucket has a whole token.
    fn has_token(&self) -> bool {
        self.rate == 0 || self.nano_tokens >= NS_PER_S
    }

    fn take(&mut self, tokens: u64) {
        if self.rate != 0 {
            self.nano_tokens -= i128::from(tokens) * NS_PER_S;
        }
    }
}

/// The throttle of an OSD's promotions. Times are nanoseconds of the caller's clock; one that goes back adds no tokens.
#[derive(Clone, Debug)]
pub struct PromoteThrottle {
    objects: Bucket,
    bytes: Bucket,
    filled_ns: u64,
}

impl PromoteThrottle {
    /// Creates a throttle with full buckets. A rate of 0 means no limit.
    pub fn new(max_objects_per_s: u64, max_bytes_per_s: u64, now_ns: u64) -> PromoteThrottle {
        PromoteThrottle {
            objects: Bucket::full(max_objects_per_s),
            bytes: Bucket::full(max_bytes_per_s),
            filled_ns: now_ns,
        }
    }

    /// Applies changed options. A bucket whose rate changes is filled.
    pub fn set_rates(&mut self, max_objects_per_s: u64, max_bytes_per_s: u64) {
        for (bucket, rate) in [(&mut self.objects, max_objects_per_s), (&mut self.bytes, max_bytes_per_s)] {
            if bucket.rate != rate {
                *bucket = Bucket::full(rate);
            }
        }
    }

    /// Returns whether a promotion may start now. If so, charges one object.
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

    /// Charges further objects that one promotion stands for.
    pub fn charge_objects(&mut self, more_objects: u64) {
        self.objects.take(more_objects);
    }

    /// Charges the bytes of a copied promotion, even if it did not need [`PromoteThrottle::try_start`].
    pub fn charge_bytes(&mut self, bytes: u64) {
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
        // A long pause saves no more than the burst.
        assert_eq!((0..1000).filter(|_| throttle.try_start(1000 * S)).count(), 50);
        assert!(!throttle.try_start(999 * S), "time that goes back adds nothing");
        assert_eq!((0..1000).filter(|_| throttle.try_start(1001 * S)).count(), 25);
    }

    #[test]
    fn debts_of_large_objects_are_paid_by_time() {
        let mut throttle = PromoteThrottle::new(0, 1000, 0);
        assert!(throttle.try_start(0));
        throttle.charge_bytes(5000);
        assert!(!throttle.try_start(3 * S));
        assert!(throttle.try_start(3 * S + S / 1000));
    }

    #[test]
    fn zero_is_no_limit_and_changed_rates_count_at_once() {
        let mut throttle = PromoteThrottle::new(0, 0, 0);
        throttle.charge_bytes(u64::MAX);
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
                    throttle.charge_bytes(size);
                    bytes += size;
                    largest = largest.max(size);
                }
            }
            prop_assert!(objects * 1000 <= 20 * (2000 + now_ms));
            prop_assert!((bytes - largest) * 1000 <= 10_000 * (2000 + now_ms));
        }
    }
}
