//! The samples that samplers keep.

use super::*;
use crate::key::mix;
use crate::promote::RequestTraits;

impl Sampler {
    /// Records an access that is a miss.
    fn see(&mut self, key: u64, bytes: u64) {
        let request = RequestTraits::default();
        self.record(&Access { key, now_ns: 0, request, is_hit: false, bytes: Some(bytes) });
    }
}

/// Pseudo-random numbers between 0 and 1.
pub(super) struct Uniform(pub(super) u64);

impl Uniform {
    pub(super) fn next(&mut self) -> f64 {
        self.0 += 1;
        (mix(self.0) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Object ranks with a Zipf distribution, the most popular first.
pub(super) struct Zipf(Vec<f64>);

impl Zipf {
    pub(super) fn new(objects: u64, exponent: f64) -> Zipf {
        let mut sum = 0.0;
        let cumulated = (1..=objects).map(|rank| {
            sum += (rank as f64).powf(-exponent);
            sum
        });
        Zipf(cumulated.collect())
    }

    pub(super) fn draw(&self, uniform: &mut Uniform) -> u64 {
        let at = uniform.next() * self.0.last().unwrap();
        self.0.partition_point(|sum| *sum <= at) as u64
    }
}

#[test]
fn memory_is_bounded_and_the_rate_falls_with_the_objects() {
    let mut sampler = Sampler::new(100);
    for object in 0..100_000 {
        sampler.see(mix(object), 4096);
    }
    let trace = sampler.trace();
    // The kept accesses are the last 800: each is to another object, and at most 100 are sampled.
    assert!(
        (50..=100).contains(&trace.objects()) && trace.len() <= 800,
        "{} {}",
        trace.objects(),
        trace.len()
    );
    let expected = 100.0 / 100_000.0;
    assert!((0.7..1.4).contains(&(trace.rate() / expected)), "{}", trace.rate());
    // Possibly none of these is sampled at first.
    for turn in 0..1_000_000 {
        sampler.see(mix(turn % 50), 4096);
    }
    let trace = sampler.trace();
    assert_eq!(trace.len(), 800, "old accesses go");
    assert!((12..=50).contains(&trace.objects()), "{} of 50 are followed", trace.objects());
}

#[test]
fn a_few_busy_objects_let_more_be_followed() {
    let mut sampler = Sampler::new(128);
    (0..100_000).for_each(|object| sampler.see(mix(object), 1));
    let low = sampler.rate();
    // One of the sampled objects is accessed all the time, and a thousand others.
    let busy = (0..).find(|object| mix(*object) < u64::MAX / 2000).unwrap();
    for turn in 0..200_000_u64 {
        sampler.see(mix(if turn % 2 == 0 { busy } else { 200_000 + turn % 1000 }), 1);
    }
    assert!(sampler.rate() > 8.0 * low, "{low} {}", sampler.rate());
    assert!(sampler.trace().objects() >= 16, "{}", sampler.trace().objects());
}

#[test]
fn traces_tell_what_was_recorded() {
    let mut sampler = Sampler::new(16);
    let request = RequestTraits { writes: true, skip_promote: true, ..RequestTraits::default() };
    let access = |key, now_ns, request, is_hit, bytes| Access { key, now_ns, request, is_hit, bytes };
    sampler.record(&access(0x100, 5, request, false, None));
    sampler.record(&access(0x200, 6, RequestTraits::default(), true, Some(4000)));
    sampler.record(&access(
        0x100,
        9,
        RequestTraits { must_promote: true, ..RequestTraits::default() },
        true,
        None,
    ));
    let trace = sampler.trace();
    assert_eq!((trace.objects(), trace.len(), trace.duration_ns(0)), (2, 3, 4));
    let traced = trace.access(0);
    assert_eq!((traced.key, traced.at_ns, traced.request, traced.is_hit), (0x100, 5, request, false));
    assert!(trace.access(2).request.must_promote && trace.access(2).is_hit);
    assert_eq!(trace.sizes().get(&0x100), Some(&4000), "unknown sizes count with the average");
    assert_eq!(
        (trace.access_and_hit_counts(0), trace.access_and_hit_counts(1), trace.access_and_hit_counts(3)),
        ((3, 2), (2, 2), (0, 0))
    );
}
