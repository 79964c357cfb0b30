//! From reuse distances to hit rates by cache size.

use nacre_types::encoding::{self, DecodeError, Versioned};
use serde::{Deserialize, Serialize};

/// Buckets for each power of two: a distance is known to 1.6 %.
const PER_DOUBLING: u64 = 64;
const PER_DOUBLING_BITS: u32 = PER_DOUBLING.trailing_zeros();

/// The bucket of a distance: exact below twice [`PER_DOUBLING`], then by the highest bits.
fn bucket(distance: u64) -> usize {
    let shift = (u64::BITS - distance.leading_zeros()).saturating_sub(PER_DOUBLING_BITS + 1);
    (u64::from(shift) * PER_DOUBLING + (distance >> shift)) as usize
}

/// The greatest distance of a bucket.
fn greatest_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let shift = (bucket / PER_DOUBLING).saturating_sub(1);
    let next = u128::from(bucket - shift * PER_DOUBLING + 1) << shift;
    u64::try_from(next - 1).unwrap_or(u64::MAX)
}

/// How much weight accesses of which distance have.
#[derive(Clone, Debug, Default)]
pub(super) struct DistanceHistogram {
    weights: Vec<f64>,
}

impl DistanceHistogram {
    pub(super) fn add(&mut self, distance: u64, weight: f64) {
        let bucket = bucket(distance);
        if self.weights.len() <= bucket {
            self.weights.resize(bucket + 1, 0.0);
        }
        self.weights[bucket] += weight;
    }

    pub(super) fn scale(&mut self, factor: f64) {
        self.weights.iter_mut().for_each(|weight| *weight *= factor);
    }

    /// The curve of `accesses`, for which those that were sampled stand as if they were `represented`. The difference
    /// goes to the shortest distance.
    pub(super) fn curve(&self, accesses: f64, represented: f64) -> MissRatioCurve {
        let mut points = vec![Point { size: 0, hit_rate: 0.0 }];
        let mut hits = accesses - represented;
        let mut last = 0.0;
        for (bucket, weight) in self.weights.iter().enumerate().filter(|(_, weight)| **weight > 0.0) {
            let before = bucket.checked_sub(1).map_or(0, greatest_of);
            if points.last().is_some_and(|point| point.size < before) {
                points.push(Point { size: before, hit_rate: last });
            }
            hits += weight;
            // A negative difference can be greater than the first buckets.
            last = (hits / accesses).clamp(last, 1.0);
            points.push(Point { size: greatest_of(bucket), hit_rate: last });
        }
        points.dedup_by_key(|point| point.size);
        MissRatioCurve { accesses, points }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Point {
    size: u64,
    hit_rate: f64,
}

/// The hit rate of an LRU cache by its size, in objects or bytes, as estimated for a stream of accesses.
///
/// It is encoded in an envelope (docs/format/encoding.md) named `MissRatioCurve`, version 1: the accesses as f64, then
/// the points as a sequence of size (varint u64) and hit rate (f64). The first point is the size 0; sizes ascend strictly
/// and rates do not fall.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MissRatioCurve {
    accesses: f64,
    points: Vec<Point>,
}

impl Versioned for MissRatioCurve {
    const NAME: &'static str = "MissRatioCurve";
}

impl MissRatioCurve {
    /// The accesses that the curve is of, decayed ones in part.
    pub fn accesses(&self) -> f64 {
        self.accesses
    }

    /// The share of accesses, 0 to 1, that a cache of this size answers. First accesses of an object count as misses.
    pub fn hit_rate(&self, size: u64) -> f64 {
        // The first point has the size 0.
        let above = self.points.partition_point(|point| point.size <= size).max(1);
        let below = self.points[above - 1];
        let Some(above) = self.points.get(above) else { return below.hit_rate };
        let part = (size - below.size) as f64 / (above.size - below.size) as f64;
        below.hit_rate + (above.hit_rate - below.hit_rate) * part
    }

    /// One less the hit rate.
    pub fn miss_ratio(&self, size: u64) -> f64 {
        1.0 - self.hit_rate(size)
    }

    /// The smallest known size with at least this hit rate; `None` where no size has.
    pub fn size_for(&self, hit_rate: f64) -> Option<u64> {
        let at = self.points.partition_point(|point| point.hit_rate < hit_rate);
        self.points.get(at).map(|point| point.size)
    }

    /// The size beyond which nothing is gained.
    pub fn greatest_size(&self) -> u64 {
        self.points.last().map_or(0, |point| point.size)
    }

    /// The curve of a pool from those of its PGs, each of which has an equal share of the pool's size, as the agent
    /// divides its target. `None` of none.
    pub fn of_pool(pgs: &[MissRatioCurve]) -> Option<MissRatioCurve> {
        let count = pgs.len() as u64;
        let accesses: f64 = pgs.iter().map(|pg| pg.accesses).sum();
        let greatest = pgs.iter().map(MissRatioCurve::greatest_size).max()?;
        let hit_rate = |pg_size| {
            let hits = pgs.iter().map(|pg| pg.hit_rate(pg_size) * pg.accesses).sum::<f64>();
            if accesses > 0.0 { hits / accesses } else { 0.0 }
        };
        // The buckets of distances again: the union of all points could be many times as large.
        let mut points = vec![Point { size: 0, hit_rate: 0.0 }];
        for pg_size in (0..=bucket(greatest)).map(greatest_of).filter(|size| *size > 0) {
            let size = pg_size.saturating_mul(count);
            let last = points.last().map_or(0.0, |point| point.hit_rate);
            let rate = hit_rate(pg_size).max(last);
            if points.last().is_some_and(|point| point.size < size) {
                points.push(Point { size, hit_rate: rate });
            }
        }
        Some(MissRatioCurve { accesses, points })
    }

    /// The curve as it is sent.
    pub fn encode(&self) -> Vec<u8> {
        encoding::encode(self)
    }

    /// Reads an encoded curve.
    ///
    /// # Errors
    /// Where the bytes are no curve, or one of a newer release.
    pub fn decode(bytes: &[u8]) -> Result<MissRatioCurve, DecodeError> {
        let curve = encoding::decode::<MissRatioCurve>(bytes)?;
        let rates_fit = curve.points.iter().all(|point| (0.0..=1.0).contains(&point.hit_rate));
        let ascend = curve.points.is_sorted_by(|a, b| a.size < b.size && a.hit_rate <= b.hit_rate);
        let begins = curve.points.first().is_some_and(|point| point.size == 0);
        if begins && rates_fit && ascend && curve.accesses.is_finite() && curve.accesses >= 0.0 {
            Ok(curve)
        } else {
            let detail = "points out of order or range".to_owned();
            Err(DecodeError::Corrupt { what: MissRatioCurve::NAME, detail })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn distances_are_in_narrow_buckets(distance: u64, shift in 0..64_u32) {
            let distance = distance >> shift;
            let bucket = bucket(distance);
            let least = bucket.checked_sub(1).map_or(0, |before| greatest_of(before).saturating_add(1));
            prop_assert!(least <= distance && distance <= greatest_of(bucket), "{} {}", bucket, least);
            prop_assert!((greatest_of(bucket) - least) as f64 <= distance as f64 / 64.0);
        }
    }

    fn curve(distances: &[(u64, f64)], accesses: f64, represented: f64) -> MissRatioCurve {
        let mut histogram = DistanceHistogram::default();
        distances.iter().for_each(|&(distance, weight)| histogram.add(distance, weight));
        histogram.curve(accesses, represented)
    }

    #[test]
    fn curves_rise_at_the_distances() {
        let curve = curve(&[(3, 20.0), (10, 30.0)], 100.0, 100.0);
        let rates = [0, 2, 3, 9, 10, 11, u64::MAX].map(|size| curve.hit_rate(size));
        assert_eq!(rates, [0.0, 0.0, 0.2, 0.2, 0.5, 0.5, 0.5]);
        assert_eq!(curve.miss_ratio(3), 0.8);
        assert_eq!(
            [0.0, 0.1, 0.2, 0.5].map(|rate| curve.size_for(rate)),
            [Some(0), Some(3), Some(3), Some(10)]
        );
        assert_eq!(curve.size_for(0.6), None);
        // Within a bucket the rate rises evenly.
        let coarse = self::curve(&[(1000, 100.0)], 100.0, 100.0);
        assert_eq!([999, 1003, 1007].map(|size| coarse.hit_rate(size)), [0.0, 0.5, 1.0]);
    }

    #[test]
    fn differences_go_to_the_shortest_distance() {
        let missing = curve(&[(3, 20.0), (10, 30.0)], 100.0, 90.0);
        assert_eq!([2, 3, 10].map(|size| missing.hit_rate(size)), [0.0, 0.3, 0.6]);
        let too_many = curve(&[(3, 20.0), (10, 60.0)], 100.0, 130.0);
        assert_eq!([2, 3, 10].map(|size| too_many.hit_rate(size)), [0.0, 0.0, 0.5]);
        assert_eq!(curve(&[], 100.0, 90.0).hit_rate(1000), 0.0);
    }

    #[test]
    fn a_pools_curve_is_that_of_equal_shares() {
        let pgs = [curve(&[(3, 50.0)], 100.0, 100.0), curve(&[(10, 300.0)], 300.0, 300.0)];
        let pool = MissRatioCurve::of_pool(&pgs).unwrap();
        let rates = [4, 6, 18, 20, 100].map(|size| pool.hit_rate(size));
        assert_eq!(rates, [0.0, 0.125, 0.125, 0.875, 0.875]);
        assert_eq!(pool.accesses(), 400.0);
        assert_eq!(MissRatioCurve::of_pool(&[]), None);
        let unused = curve(&[], 0.0, 0.0);
        assert_eq!(MissRatioCurve::of_pool(&[unused]).unwrap().hit_rate(5), 0.0);
    }

    #[test]
    fn curves_survive_encoding_and_corrupt_ones_are_refused() {
        let good = curve(&[(3, 20.0), (100_000, 30.0)], 100.0, 100.0);
        assert_eq!(MissRatioCurve::decode(&good.encode()).unwrap(), good);
        let point = |size, hit_rate| Point { size, hit_rate };
        for points in [
            vec![],
            vec![point(1, 0.0)],
            vec![point(0, 0.0), point(0, 0.1)],
            vec![point(0, 0.2), point(1, 0.1)],
            vec![point(0, 0.0), point(1, 1.1)],
            vec![point(0, 0.0), point(1, f64::NAN)],
        ] {
            let bad = MissRatioCurve { accesses: 1.0, points };
            assert!(MissRatioCurve::decode(&bad.encode()).is_err(), "{bad:?}");
        }
        let bad = MissRatioCurve { accesses: f64::INFINITY, ..good };
        assert!(MissRatioCurve::decode(&bad.encode()).is_err());
    }
}
