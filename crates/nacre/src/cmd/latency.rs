//! A histogram of the times of operations, for benchmarks. The width of its steps grows with the time, so its size does not
//! depend on the number of operations.

use std::time::Duration;

/// Counts of operations by time, in steps of at most 1/16 of the time.
#[derive(Debug, Default)]
pub(crate) struct LatencyHistogram {
    counts: Vec<u64>,
    total: u64,
}

/// Steps between two powers of two.
const TIME_STEPS: u64 = 16;

impl LatencyHistogram {
    /// Adds one operation.
    pub(crate) fn add(&mut self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(TIME_STEPS);
        // The leading bit gives the power of two, the next four bits the step.
        let bits = u64::from(us.ilog2());
        let step = (us >> (bits - 4)) - TIME_STEPS;
        let index = usize::try_from((bits - 4) * TIME_STEPS + step).unwrap_or(usize::MAX);
        if self.counts.len() <= index {
            self.counts.resize(index + 1, 0);
        }
        self.counts[index] += 1;
        self.total += 1;
    }

    /// The time in seconds that `share` (0 to 1) of the operations did not exceed, or 0 without operations.
    pub(crate) fn quantile(&self, share: f64) -> f64 {
        let wanted = (self.total as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if *count > 0 && seen >= wanted {
                let (power, step) = (index as u64 / TIME_STEPS, index as u64 % TIME_STEPS);
                let end = u128::from(TIME_STEPS + step + 1) << power;
                return end as f64 / 1e6;
            }
        }
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_right_to_a_sixteenth() {
        let mut times = LatencyHistogram::default();
        assert_eq!(times.quantile(0.5), 0.0);
        (1..=1000).for_each(|ms| times.add(Duration::from_millis(ms)));
        for (share, seconds) in [(0.001, 0.001), (0.5, 0.5), (0.99, 0.99), (1.0, 1.0)] {
            let found = times.quantile(share);
            assert!((seconds..=seconds * 1.07).contains(&found), "{share}: {found}");
        }
        times.add(Duration::ZERO);
        times.add(Duration::MAX);
        assert!(times.quantile(0.0001) < 20e-6 && times.quantile(1.0) > 1e9);
    }
}
