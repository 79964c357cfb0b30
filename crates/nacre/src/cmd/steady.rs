//! Detects when a benchmark's rate is steady, so that the measurement can start.

use anyhow::{Context, Result};
use std::time::Duration;

/// Number of slices that are compared.
const SLICES: usize = 3;
/// Maximum difference between their rates, as a share of their mean.
const TOLERANCE: f64 = 0.1;
/// The default length of a slice in seconds.
pub(crate) const SLICE_SECONDS: u64 = 5;

/// A warm-up. It ends when the rates of three successive slices differ by at most a tenth of their mean, or at its limit.
#[derive(Debug)]
pub(crate) struct WarmUp {
    limit: Duration,
    rates: Vec<f64>,
}

impl WarmUp {
    /// A warm-up of at most `limit`, or none if that is zero.
    pub(crate) fn new(limit: Duration) -> WarmUp {
        WarmUp { limit, rates: Vec::new() }
    }

    /// Adds a slice's rate. `elapsed` is the time since the start of the load. Returns whether the warm-up is over.
    pub(crate) fn add(&mut self, rate: f64, elapsed: Duration) -> bool {
        self.rates.push(rate);
        self.is_steady() || elapsed >= self.limit
    }

    /// Whether the last slices had about the same rate.
    pub(crate) fn is_steady(&self) -> bool {
        let Some(last) = self.rates.last_chunk::<SLICES>() else { return false };
        let mean = last.iter().sum::<f64>() / SLICES as f64;
        let most = last.iter().copied().fold(f64::MIN, f64::max);
        let least = last.iter().copied().fold(f64::MAX, f64::min);
        mean > 0.0 && most - least <= TOLERANCE * mean
    }
}

/// Parses a number of whole seconds, for `--warm-up` and `--slice`.
pub(crate) fn seconds(flag: &str, text: &str, least: u64) -> Result<u64> {
    let seconds =
        text.trim_end_matches('s').parse().ok().filter(|seconds| (least..=86_400).contains(seconds));
    seconds.with_context(|| format!("{flag}: '{text}' is not a number of seconds from {least} to 86400"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warm_up_ends_with_three_slices_of_about_the_same_rate_or_at_its_limit() {
        let mut warm_up = WarmUp::new(Duration::from_secs(60));
        let ended: Vec<bool> = [9000.0, 8000.0, 7000.0, 6000.0, 5200.0, 5000.0, 5100.0]
            .into_iter()
            .zip((5..).step_by(5))
            .map(|(rate, second)| warm_up.add(rate, Duration::from_secs(second)))
            .collect();
        assert_eq!(ended, [false, false, false, false, false, false, true]);
        assert!(warm_up.is_steady());

        let mut warm_up = WarmUp::new(Duration::from_secs(10));
        assert!(!warm_up.add(0.0, Duration::from_secs(5)));
        assert!(warm_up.add(50.0, Duration::from_secs(10)) && !warm_up.is_steady());
        let mut idle = WarmUp::new(Duration::from_secs(60));
        assert!(!(0..5).any(|second| idle.add(0.0, Duration::from_secs(second))), "nothing is not steady");
    }

    #[test]
    fn seconds_are_bounded() {
        assert_eq!(seconds("--slice", "5s", 1).unwrap(), 5);
        assert!(seconds("--slice", "0", 1).is_err() && seconds("--warm-up", "-1", 0).is_err());
    }
}
