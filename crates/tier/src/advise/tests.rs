//! Estimates against exact simulations of LRU caches.

use super::*;
use crate::key::mix;

/// An LRU cache of a given size; objects of one size are counted by size 1.
struct Lru {
    size: u64,
    used: u64,
    /// The last access of each object that is held, and its bytes.
    held: BTreeMap<u64, (u64, u64)>,
    by_access: BTreeMap<u64, u64>,
    hits: u64,
}

impl Lru {
    fn new(size: u64) -> Lru {
        Lru { size, used: 0, held: BTreeMap::new(), by_access: BTreeMap::new(), hits: 0 }
    }

    fn access(&mut self, turn: u64, object: u64, bytes: u64) {
        if let Some((last, bytes)) = self.held.remove(&object) {
            self.hits += 1;
            self.by_access.remove(&last);
            self.used -= bytes;
        }
        if bytes > self.size {
            return;
        }
        self.used += bytes;
        self.held.insert(object, (turn, bytes));
        self.by_access.insert(turn, object);
        while self.used > self.size {
            let (_, oldest) = self.by_access.pop_first().unwrap();
            self.used -= self.held.remove(&oldest).unwrap().1;
        }
    }
}

/// Numbers between 0 and 1 of a seed.
struct Uniform(u64);

impl Uniform {
    fn next(&mut self) -> f64 {
        self.0 += 1;
        (mix(self.0) >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn below(&mut self, bound: u64) -> u64 {
        (self.next() * bound as f64) as u64
    }
}

/// Objects by rank, the most popular first.
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(objects: u64, exponent: f64) -> Zipf {
        let mut sum = 0.0;
        let cumulated = (1..=objects).map(|rank| {
            sum += (rank as f64).powf(-exponent);
            sum
        });
        Zipf(cumulated.collect())
    }

    fn draw(&self, uniform: &mut Uniform) -> u64 {
        let at = uniform.next() * self.0.last().unwrap();
        self.0.partition_point(|sum| *sum <= at) as u64
    }
}

const SAMPLES: u32 = 8192;
const POINTS: f64 = 0.03;

/// Compares the curves of a stream of objects with caches of these shares of all objects.
fn compare(name: &str, stream: &[u64], objects: u64, shares: &[f64], bytes_of: fn(u64) -> u64) {
    let mut sampler = Sampler::new(SAMPLES);
    for &object in stream {
        sampler.record(mix(object), bytes_of(object));
    }
    assert!(sampler.samples.len() <= SAMPLES as usize);
    assert!(objects <= SAMPLES.into() || sampler.rate() < 1.0);
    let all_bytes: u64 = (0..objects).map(bytes_of).sum();
    for (what, all, curve, size_of) in [
        ("objects", objects, sampler.curve_by_objects(), (|_| 1) as fn(u64) -> u64),
        ("bytes", all_bytes, sampler.curve_by_bytes(), bytes_of),
    ] {
        for share in shares {
            let size = (all as f64 * share) as u64;
            let mut cache = Lru::new(size);
            for (turn, &object) in stream.iter().enumerate() {
                cache.access(turn as u64, object, size_of(object));
            }
            let exact = cache.hits as f64 / stream.len() as f64;
            let estimate = curve.hit_rate(size);
            let told = format!("{name}, {what} {size}: exact {exact:.4}, estimated {estimate:.4}");
            println!("{told}");
            assert!((exact - estimate).abs() <= POINTS, "{told}");
        }
    }
}

/// 4 KiB to 4 MiB, most of them small.
fn mixed_sizes(object: u64) -> u64 {
    4096 << (mix(object ^ 0x5a5a) % 1024).leading_zeros().saturating_sub(54).min(10)
}

const SHARES: &[f64] = &[0.01, 0.03, 0.1, 0.3, 0.6, 0.9];

#[test]
fn zipf_is_estimated_within_three_points() {
    let (zipf, mut uniform) = (Zipf::new(60_000, 0.99), Uniform(1));
    let stream: Vec<u64> = (0..250_000).map(|_| zipf.draw(&mut uniform)).collect();
    compare("zipf", &stream, 60_000, SHARES, mixed_sizes);
}

#[test]
fn a_loop_is_estimated_within_three_points() {
    let stream: Vec<u64> = (0..250_000).map(|turn| turn % 50_000).collect();
    // At its length the curve is a cliff, whose place is known to 1 %.
    let shares = &[0.1, 0.5, 0.9, 0.95, 1.05, 1.2];
    compare("loop", &stream, 50_000, shares, mixed_sizes);
}

#[test]
fn a_scan_with_a_hot_set_is_estimated_within_three_points() {
    let (zipf, mut uniform) = (Zipf::new(5000, 0.6), Uniform(2));
    let mut scanned = 5000;
    let stream: Vec<u64> = (0..250_000)
        .map(|_| {
            if uniform.next() < 0.7 {
                zipf.draw(&mut uniform)
            } else {
                scanned = if scanned < 85_000 { scanned + 1 } else { 5001 };
                scanned
            }
        })
        .collect();
    compare("scan", &stream, 85_001, &[0.005, 0.02, 0.05, 0.08, 0.2, 0.5], mixed_sizes);
}

#[test]
fn a_pool_is_estimated_from_its_pgs() {
    const PGS: u64 = 8;
    let pg_of = |object: u64| mix(!object) % PGS;
    let (zipf, mut uniform) = (Zipf::new(60_000, 0.99), Uniform(4));
    let stream: Vec<u64> = (0..250_000).map(|_| zipf.draw(&mut uniform)).collect();
    let mut samplers = vec![Sampler::new(SAMPLES / PGS as u32); PGS as usize];
    for &object in &stream {
        samplers[pg_of(object) as usize].record(mix(object), 1);
    }
    let curves: Vec<MissRatioCurve> = samplers.iter().map(Sampler::curve_by_objects).collect();
    let pool = MissRatioCurve::of_pool(&curves).unwrap();
    let pool = MissRatioCurve::decode(&pool.encode()).unwrap();
    for size in [800, 4000, 16_000, 40_000] {
        let mut caches: Vec<Lru> = (0..PGS).map(|_| Lru::new(size / PGS)).collect();
        for (turn, &object) in stream.iter().enumerate() {
            caches[pg_of(object) as usize].access(turn as u64, object, 1);
        }
        let exact = caches.iter().map(|cache| cache.hits).sum::<u64>() as f64 / stream.len() as f64;
        let estimate = pool.hit_rate(size);
        println!("{size}: exact {exact:.4}, estimated {estimate:.4}");
        assert!((exact - estimate).abs() <= POINTS, "{size}: exact {exact}, estimated {estimate}");
    }
}

#[test]
fn everything_is_followed_while_it_fits() {
    let mut uniform = Uniform(3);
    let stream: Vec<u64> = (0..20_000).map(|_| uniform.below(1000)).collect();
    let mut sampler = Sampler::new(1000);
    stream.iter().for_each(|object| sampler.record(mix(*object), 1));
    assert_eq!(sampler.rate(), 1.0);
    for size in [1, 50, 100, 500, 999] {
        let mut cache = Lru::new(size);
        for (turn, object) in stream.iter().enumerate() {
            cache.access(turn as u64, *object, 1);
        }
        let exact = cache.hits as f64 / stream.len() as f64;
        let estimate = sampler.curve_by_objects().hit_rate(size);
        assert!((exact - estimate).abs() < 0.005, "{size}: exact {exact}, estimated {estimate}");
    }
}

#[test]
fn memory_is_bounded_and_the_rate_falls_with_the_objects() {
    let mut sampler = Sampler::new(100);
    for object in 0..100_000 {
        sampler.record(mix(object), 4096);
    }
    assert_eq!(sampler.samples.len(), 100);
    let expected = 100.0 / 100_000.0;
    assert!((0.7..1.4).contains(&(sampler.rate() / expected)), "{}", sampler.rate());
    assert_eq!(sampler.curve_by_objects().hit_rate(u64::MAX), 0.0, "nothing was accessed twice");
}

#[test]
fn removed_objects_are_new_ones_when_they_come_back() {
    let mut sampler = Sampler::new(100);
    for round in 0..10 {
        for object in 0..10 {
            sampler.record(mix(object), 1);
            sampler.forget(mix(object));
        }
        assert_eq!(sampler.curve_by_objects().hit_rate(100), 0.0, "round {round}");
    }
    sampler.forget(mix(99));
}

#[test]
fn decayed_accesses_give_way_to_new_ones() {
    let mut sampler = Sampler::new(1000);
    for turn in 0..10_000 {
        sampler.record(mix(turn % 500), 1);
    }
    assert!(sampler.curve_by_objects().hit_rate(100) < 0.01);
    for turn in 0..10_000 {
        if turn % 1000 == 0 {
            sampler.decay();
        }
        sampler.record(mix(turn % 50), 1);
    }
    assert!(sampler.curve_by_objects().hit_rate(100) > 0.95);
    assert!(sampler.curve_by_objects().accesses() < 3000.0);
}
