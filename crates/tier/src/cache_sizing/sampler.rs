//! Sampling of a PG's accesses.

use crate::promote::RequestTraits;
use std::collections::{BTreeMap, VecDeque};

/// Number of accesses kept per object that may be sampled.
const ACCESSES_PER_OBJECT: usize = 8;
/// Approximate memory in bytes per object that may be sampled.
pub const MEMORY_BYTES_PER_OBJECT: usize = 240;
/// Number of accesses after which the sampler checks whether it samples the right share.
const REVIEW_ACCESSES: u32 = 1 << 16;
/// Minimum number of expected accesses for such a check.
const EXPECTED_AT_LEAST: f64 = 8.0;
/// Eighths of the threshold that remain when too many objects are sampled.
const EIGHTHS_KEPT: u64 = 7;

/// The low bits of keys, which thresholds ignore, hold flags of the request.
const FLAGS: u64 = 0xf;
const HIT: u64 = 1;
const WRITES: u64 = 2;
const MUST_PROMOTE: u64 = 4;
const SKIP_PROMOTE: u64 = 8;

/// An access to an object of the cache.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// The object's [`object_key`](crate::key::object_key).
    pub key: u64,
    /// Time in nanoseconds. The clock may go back.
    pub now_ns: u64,
    /// The request's traits.
    pub request: RequestTraits,
    /// Whether the cache had the object.
    pub is_hit: bool,
    /// The object's size, if known.
    pub bytes: Option<u64>,
}

/// An access in the sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SampledAccess {
    key_and_flags: u64,
    at_ns: u64,
    /// Number of accesses and hits of all objects up to this one, wrapping.
    accesses: u32,
    hits: u32,
}

impl SampledAccess {
    fn key(&self) -> u64 {
        self.key_and_flags & !FLAGS
    }

    fn is(&self, flag: u64) -> bool {
        self.key_and_flags & flag != 0
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct SampledObject {
    kept: u32,
    bytes: Option<u64>,
}

/// Samples the accesses of the objects whose key is below a threshold, as in SHARDS of fixed size. When the kept accesses have
/// more objects than wanted, the threshold is lowered, and the accesses above it are dropped.
#[derive(Clone, Debug)]
pub struct Sampler {
    most_objects: usize,
    threshold: u64,
    accesses: u32,
    hits: u32,
    /// Since the last review: the number of sampled accesses, and the number expected.
    followed: u32,
    expected: f64,
    /// The oldest first.
    kept: VecDeque<SampledAccess>,
    objects: BTreeMap<u64, SampledObject>,
}

impl Sampler {
    /// Creates a sampler of up to `most_objects`, at least 16. It takes at most [`MEMORY_BYTES_PER_OBJECT`] for each.
    pub fn new(most_objects: u32) -> Sampler {
        Sampler {
            most_objects: most_objects.max(16) as usize,
            threshold: u64::MAX,
            accesses: 0,
            hits: 0,
            followed: 0,
            expected: 0.0,
            kept: VecDeque::new(),
            objects: BTreeMap::new(),
        }
    }

    /// Maximum number of sampled objects.
    pub fn max_objects(&self) -> u32 {
        self.most_objects as u32
    }

    /// The share of objects that are sampled.
    pub fn rate(&self) -> f64 {
        rate(self.threshold)
    }

    /// Records an access. For most accesses this is one comparison.
    pub fn record(&mut self, access: &Access) {
        self.accesses = self.accesses.wrapping_add(1);
        self.hits = self.hits.wrapping_add(u32::from(access.is_hit));
        if access.key < self.threshold {
            self.followed += 1;
            self.keep(access);
        }
        if self.accesses.is_multiple_of(REVIEW_ACCESSES) {
            self.review();
        }
    }

    /// Restarts with a higher threshold if far fewer accesses are sampled than expected: then a few unsampled objects have
    /// nearly all accesses.
    fn review(&mut self) {
        self.expected += f64::from(REVIEW_ACCESSES) * self.rate();
        if self.expected < EXPECTED_AT_LEAST {
            return;
        }
        if f64::from(self.followed) < self.expected / 8.0 {
            self.begin_again(self.threshold.saturating_mul(4));
        }
        (self.followed, self.expected) = (0, 0.0);
    }

    fn begin_again(&mut self, threshold: u64) {
        self.threshold = threshold;
        self.kept.clear();
        self.objects.clear();
    }

    fn keep(&mut self, access: &Access) {
        let RequestTraits { writes, must_promote, skip_promote, .. } = access.request;
        let flags = [
            (access.is_hit, HIT),
            (writes, WRITES),
            (must_promote, MUST_PROMOTE),
            (skip_promote, SKIP_PROMOTE),
        ];
        let flags = flags.iter().filter(|(is_set, _)| *is_set).fold(0, |all, (_, flag)| all | flag);
        let key = access.key & !FLAGS;
        if self.kept.len() == self.most_objects * ACCESSES_PER_OBJECT {
            self.drop_oldest();
        }
        let (accesses, hits) = (self.accesses, self.hits);
        self.kept.push_back(SampledAccess {
            key_and_flags: key | flags,
            at_ns: access.now_ns,
            accesses,
            hits,
        });
        let followed = self.objects.entry(key).or_default();
        followed.kept += 1;
        followed.bytes = access.bytes.or(followed.bytes);
        while self.objects.len() > self.most_objects {
            self.lower_threshold();
        }
    }

    fn drop_oldest(&mut self) {
        let Some(oldest) = self.kept.pop_front() else { return };
        if let Some(followed) = self.objects.get_mut(&oldest.key()) {
            followed.kept -= 1;
            if followed.kept == 0 {
                self.objects.remove(&oldest.key());
            }
        }
        // A few objects that are accessed all the time do not represent the others: restarts with more objects.
        if self.threshold < u64::MAX && self.objects.len() < self.most_objects / 8 {
            self.begin_again(self.threshold.saturating_mul(2));
        }
    }

    fn lower_threshold(&mut self) {
        let threshold = self.threshold / 8 * EIGHTHS_KEPT;
        self.threshold = threshold;
        self.objects.split_off(&(threshold & !FLAGS));
        self.kept.retain(|kept| kept.key() < threshold & !FLAGS);
    }

    /// Returns the sample.
    pub fn trace(&self) -> AccessTrace {
        let kept: Vec<SampledAccess> = self.kept.iter().copied().collect();
        let known: Vec<u64> = self.objects.values().filter_map(|followed| followed.bytes).collect();
        let average = known.iter().sum::<u64>().checked_div(known.len() as u64).unwrap_or(0);
        let sizes = self.objects.iter().map(|(key, followed)| (*key, followed.bytes.unwrap_or(average)));
        AccessTrace { threshold: self.threshold, kept, sizes: sizes.collect() }
    }
}

fn rate(threshold: u64) -> f64 {
    threshold as f64 / u64::MAX as f64
}

/// An access to a sampled object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TracedAccess {
    pub(super) key: u64,
    pub(super) at_ns: u64,
    pub(super) request: RequestTraits,
    pub(super) is_hit: bool,
}

/// The sampled accesses, oldest first.
#[derive(Clone, Debug)]
pub struct AccessTrace {
    threshold: u64,
    kept: Vec<SampledAccess>,
    sizes: BTreeMap<u64, u64>,
}

impl AccessTrace {
    /// The share of objects that were sampled.
    pub fn rate(&self) -> f64 {
        rate(self.threshold)
    }

    /// Number of sampled objects.
    pub fn objects(&self) -> usize {
        self.sizes.len()
    }

    /// Number of their accesses in the trace.
    pub fn len(&self) -> usize {
        self.kept.len()
    }

    /// Whether the trace is empty.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Duration of the trace from the access `from` on.
    pub fn duration_ns(&self, from: usize) -> u64 {
        let ends = self.kept.get(from).zip(self.kept.last());
        ends.map_or(0, |(first, last)| last.at_ns.saturating_sub(first.at_ns))
    }

    /// Number of accesses and hits of all objects from the access `from` on.
    pub(super) fn access_and_hit_counts(&self, from: usize) -> (u32, u32) {
        let Some((first, last)) = self.kept.get(from).zip(self.kept.last()) else { return (0, 0) };
        let hits = last.hits.wrapping_sub(first.hits) + u32::from(first.is(HIT));
        (last.accesses.wrapping_sub(first.accesses) + 1, hits)
    }

    /// Returns the access at this position. Times never decrease.
    pub(super) fn access(&self, at: usize) -> TracedAccess {
        let kept = &self.kept[at];
        TracedAccess {
            key: kept.key(),
            at_ns: kept.at_ns,
            request: RequestTraits {
                writes: kept.is(WRITES),
                must_promote: kept.is(MUST_PROMOTE),
                skip_promote: kept.is(SKIP_PROMOTE),
                ..RequestTraits::default()
            },
            is_hit: kept.is(HIT),
        }
    }

    /// The sampled objects and their sizes.
    pub(super) fn sizes(&self) -> &BTreeMap<u64, u64> {
        &self.sizes
    }
}
