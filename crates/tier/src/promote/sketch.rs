//! Admission by frequency: TinyLFU (Einziger, Friedman and Manes, 2017) instead of recency.
//!
//! An object is promoted if it was accessed more often than the objects that the agent evicts. So a scan, whose objects are accessed once,
//! displaces no object that is used. Frequencies come from a [`FrequencySketch`] of fixed size. It ages, so that it represents the recent
//! past.
//!
//! A cache library compares a new object with the one that it would displace. The agent of a cache tier evicts independently of promotions,
//! and several objects at once. Therefore [`FrequencyFilter`] compares with a moving average of recently evicted objects.

use crate::key::mix;
use nacre_types::ObjectId;

/// Rows of counters, each with its own hash function.
const ROWS: u64 = 4;
/// The maximum value of a counter.
const MOST: u64 = 15;
/// Counters of 4 bits in a word.
const COUNTERS_PER_WORD: u64 = 16;
/// Counters per row for each object of the capacity: with fewer, frequently accessed objects would make others appear frequent too.
const COUNTERS_PER_OBJECT: u64 = 4;
/// Bits of the doorkeeper for each object of the capacity. It is emptied after ten single accesses per object of the capacity. Up to then
/// it takes one in a hundred objects for one that was accessed before, which may then displace another.
const DOOR_BITS_PER_OBJECT: u64 = 128;
/// Number of accesses per object of the capacity after which all counters are halved.
const SAMPLE_PER_OBJECT: u64 = 10;
/// The minimum capacity.
const MIN_OBJECTS: u64 = 64;
/// The maximum capacity, at 24 bytes per object.
const MAX_OBJECTS: u64 = 1 << 24;

/// Estimates how often keys were recorded, up to 16 times.
///
/// The first access of a key sets bits of a Bloom filter, the doorkeeper. Only further ones reach the count-min counters, which would
/// otherwise fill with rarely recorded keys. An estimate is never below the number of accesses since the last aging, but above it if all
/// counters of a key are shared. Each aging halves the counters and empties the doorkeeper.
#[derive(Clone, Debug)]
pub struct FrequencySketch {
    /// The capacity, a power of two.
    objects: u64,
    counters: Vec<u64>,
    door: Vec<u64>,
    accesses: u64,
    /// Number of accesses after which the sketch ages.
    sample: u64,
}

impl FrequencySketch {
    /// Creates a sketch for a cache of about `objects`. It takes 24 bytes per object, rounded up to a power of two of objects.
    pub fn new(objects: u64) -> FrequencySketch {
        let wanted = FrequencyFilter::capacity_for(objects);
        let objects = wanted.next_power_of_two();
        FrequencySketch {
            sample: wanted * SAMPLE_PER_OBJECT,
            objects,
            counters: vec![0; (objects * COUNTERS_PER_OBJECT * ROWS / COUNTERS_PER_WORD) as usize],
            door: vec![0; (objects * DOOR_BITS_PER_OBJECT / 64) as usize],
            accesses: 0,
        }
    }

    /// The word and the shift of the key's counter in each row.
    fn slots(&self, key: u64) -> [(usize, u64); ROWS as usize] {
        let mixed = mix(key);
        let (first, step) = (mixed >> 32, mixed & 0xffff_ffff | 1);
        let width = self.objects * COUNTERS_PER_OBJECT;
        std::array::from_fn(|row| {
            let row = row as u64;
            let counter = row * width + ((first + row * step) & (width - 1));
            ((counter / COUNTERS_PER_WORD) as usize, counter % COUNTERS_PER_WORD * 4)
        })
    }

    /// The word and the mask of each of the key's bits in the doorkeeper.
    fn door_bits(&self, key: u64) -> [(usize, u64); 3] {
        let bits = self.objects * DOOR_BITS_PER_OBJECT;
        let mixed = mix(!key);
        [mixed, mixed >> 20, mixed >> 40 ^ mixed << 24]
            .map(|hash| (((hash & (bits - 1)) / 64) as usize, 1 << (hash % 64)))
    }

    /// Counts an access.
    pub fn record(&mut self, key: u64) {
        let mut is_known = true;
        for (word, mask) in self.door_bits(key) {
            is_known &= self.door[word] & mask != 0;
            self.door[word] |= mask;
        }
        if is_known {
            self.increment(key);
        }
        self.accesses += 1;
        if self.accesses >= self.sample {
            self.age();
        }
    }

    /// Increments the key's lowest counters: the others are higher because of other keys.
    fn increment(&mut self, key: u64) {
        let slots = self.slots(key);
        let least = self.least(&slots);
        if least == MOST {
            return;
        }
        for (word, shift) in slots {
            if self.counters[word] >> shift & MOST == least {
                self.counters[word] += 1 << shift;
            }
        }
    }

    fn least(&self, slots: &[(usize, u64)]) -> u64 {
        slots.iter().map(|&(word, shift)| self.counters[word] >> shift & MOST).min().unwrap_or(0)
    }

    fn age(&mut self) {
        for word in &mut self.counters {
            // The mask removes the bits shifted in from neighbours.
            *word = *word >> 1 & 0x7777_7777_7777_7777;
        }
        self.door.fill(0);
        self.accesses /= 2;
    }

    /// Estimates how often the key was recorded.
    pub fn estimate(&self, key: u64) -> u64 {
        let is_known = self.door_bits(key).iter().all(|&(word, mask)| self.door[word] & mask != 0);
        self.least(&self.slots(key)) + u64::from(is_known)
    }
}

/// Fraction bits of the moving average.
const AVERAGE_BITS: u32 = 8;
/// The weight of an evicted object in the average is one in `1 << WEIGHT_BITS`.
const WEIGHT_BITS: u32 = 4;

/// Admits objects that were accessed more often than the evicted ones.
#[derive(Clone, Debug)]
pub struct FrequencyFilter {
    sketch: FrequencySketch,
    /// The moving average of the evicted objects' frequencies, with [`AVERAGE_BITS`] fraction bits.
    evicted: u64,
}

impl FrequencyFilter {
    /// Creates a filter for a cache of about `objects`.
    pub fn new(objects: u64) -> FrequencyFilter {
        // Until the first eviction, an object must be accessed twice.
        FrequencyFilter { sketch: FrequencySketch::new(objects), evicted: 1 << AVERAGE_BITS }
    }

    /// Counts an access, including those to objects in the cache.
    pub fn record(&mut self, object: &ObjectId) {
        self.sketch.record(crate::key::object_key(object));
    }

    /// Estimates how often the object was accessed recently.
    pub fn frequency(&self, object: &ObjectId) -> u64 {
        self.sketch.estimate(crate::key::object_key(object))
    }

    /// The object's temperature for the agent, instead of that from hit sets.
    pub fn temperature(&self, object: &ObjectId) -> u32 {
        self.frequency(object) as u32
    }

    /// The capacity in objects, within the limits.
    pub fn capacity(&self) -> u64 {
        self.sketch.sample / SAMPLE_PER_OBJECT
    }

    /// Returns the capacity of a filter for this many objects.
    pub fn capacity_for(objects: u64) -> u64 {
        objects.clamp(MIN_OBJECTS, MAX_OBJECTS)
    }

    /// Records that the agent evicted an object.
    pub fn record_eviction(&mut self, object: &ObjectId) {
        let frequency = self.frequency(object) << AVERAGE_BITS;
        self.evicted = self.evicted - (self.evicted >> WEIGHT_BITS) + (frequency >> WEIGHT_BITS);
    }

    /// Whether the object may displace others. Its own access must be recorded before. An object that was accessed once never may:
    /// evictions of objects without recent accesses must not admit a scan.
    pub fn admits(&self, object: &ObjectId) -> bool {
        self.frequency(object) << AVERAGE_BITS > self.evicted.max(1 << AVERAGE_BITS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::PoolId;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn counters_end_at_their_greatest_value() {
        let mut sketch = FrequencySketch::new(1000);
        for _ in 0..100 {
            sketch.record(7);
        }
        assert_eq!((sketch.estimate(7), sketch.estimate(8)), (16, 0));
    }

    #[test]
    fn the_past_fades() {
        let mut sketch = FrequencySketch::new(64);
        for _ in 0..12 {
            sketch.record(7);
        }
        assert_eq!(sketch.estimate(7), 12);
        let mut at_each_aging = Vec::new();
        let mut accesses = sketch.accesses;
        for other in 0..2000_u64 {
            sketch.record(mix(other) | 1 << 63);
            if sketch.accesses < accesses {
                at_each_aging.push(sketch.estimate(7));
            }
            accesses = sketch.accesses;
        }
        assert!(at_each_aging.is_sorted_by(|a, b| a >= b), "{at_each_aging:?}");
        assert!(at_each_aging[0] <= 6 && at_each_aging.len() > 3, "{at_each_aging:?}");
        assert!(*at_each_aging.last().unwrap() <= 1, "{at_each_aging:?}");
    }

    #[test]
    fn aging_halves_each_counter_by_itself() {
        let mut sketch = FrequencySketch::new(128);
        (0..1200).for_each(|access| sketch.record(access % 300));
        let before: Vec<u64> = (0..300).map(|key| sketch.estimate(key)).collect();
        sketch.age();
        for (key, before) in (0..300).zip(before) {
            // The doorkeeper counted one of them.
            assert_eq!(sketch.estimate(key), (before - 1) / 2, "key {key}");
        }
    }

    proptest! {
        #[test]
        fn estimates_are_never_too_low_and_mostly_right(
            keys in proptest::collection::vec(0..300_u64, 0..2000)
        ) {
            let mut sketch = FrequencySketch::new(1024);
            let mut truth = BTreeMap::<u64, u64>::new();
            for key in keys {
                sketch.record(key);
                *truth.entry(key).or_default() += 1;
            }
            let errors = truth.iter().map(|(key, count)| (sketch.estimate(*key), (*count).min(MOST + 1)));
            let mut wrong = 0;
            for (estimate, truth) in errors {
                prop_assert!(estimate >= truth);
                wrong += usize::from(estimate > truth);
            }
            prop_assert!(wrong * 20 <= truth.len(), "{} of {} are wrong", wrong, truth.len());
        }
    }

    #[test]
    fn newcomers_must_be_warmer_than_what_is_evicted() {
        let mut filter = FrequencyFilter::new(1000);
        let accessed = |filter: &mut FrequencyFilter, n, times: usize| {
            let object = object(n);
            (0..times).for_each(|_| filter.record(&object));
            object
        };
        let (once, twice) = (accessed(&mut filter, 1, 1), accessed(&mut filter, 2, 2));
        assert!(!filter.admits(&once) && filter.admits(&twice), "nothing was evicted yet");
        let warm = accessed(&mut filter, 4, 4);
        (0..100).for_each(|_| filter.record_eviction(&warm));
        let (four, five) = (accessed(&mut filter, 5, 4), accessed(&mut filter, 6, 5));
        assert!(!filter.admits(&twice) && !filter.admits(&four) && filter.admits(&five));
        let unknown = object(9);
        (0..100).for_each(|_| filter.record_eviction(&unknown));
        assert!(!filter.admits(&once) && filter.admits(&twice), "an object that was accessed once never may");
    }

    /// A cache whose agent evicts the least frequent of some objects when it is full.
    struct Cache {
        held: Vec<u32>,
        is_held: BTreeMap<u32, ()>,
        filter: FrequencyFilter,
        turn: u64,
    }

    const CACHE_OBJECTS: usize = 1000;

    fn object(n: u32) -> ObjectId {
        ObjectId::new(PoolId(1), "", "", &format!("object-{n}"))
    }

    impl Cache {
        /// Accesses an object. Returns whether it was a hit. With `filtered` the filter decides on promotions; otherwise all objects are
        /// promoted.
        fn access(&mut self, n: u32, filtered: bool) -> bool {
            let object = object(n);
            self.filter.record(&object);
            if self.is_held.contains_key(&n) {
                return true;
            }
            let has_room = self.held.len() < CACHE_OBJECTS;
            if has_room || !filtered || self.filter.admits(&object) {
                if !has_room {
                    self.evict(filtered);
                }
                self.held.push(n);
                self.is_held.insert(n, ());
            }
            false
        }

        fn evict(&mut self, by_frequency: bool) {
            let candidates: Vec<usize> = (0..if by_frequency { 16 } else { 1 })
                .map(|i| (mix(self.turn * 16 + i) % self.held.len() as u64) as usize)
                .collect();
            self.turn += 1;
            let coldest =
                candidates.into_iter().min_by_key(|at| self.filter.frequency(&object(self.held[*at])));
            let evicted = self.held.swap_remove(coldest.unwrap());
            self.is_held.remove(&evicted);
            self.filter.record_eviction(&object(evicted));
        }
    }

    /// Returns the hit rate of a hot set that fits the cache, before, during and after a scan of ten times the cache.
    fn hit_rates_around_a_scan(filtered: bool) -> [f64; 3] {
        let mut cache = Cache {
            held: Vec::new(),
            is_held: BTreeMap::new(),
            filter: FrequencyFilter::new(CACHE_OBJECTS as u64),
            turn: 0,
        };
        let mut next = 0_u64;
        let mut hot = |cache: &mut Cache| {
            next += 1;
            cache.access((mix(next) % 800) as u32, filtered)
        };
        for _ in 0..20_000 {
            hot(&mut cache);
        }
        let before = (0..4000).filter(|_| hot(&mut cache)).count();
        let mut during = 0;
        for scanned in 0..10_000 {
            cache.access(1_000_000 + scanned, filtered);
            during += usize::from(scanned % 2 == 0 && hot(&mut cache));
        }
        // Too few accesses for the hot set to return by itself.
        let after = (0..400).filter(|_| hot(&mut cache)).count();
        [before as f64 / 4000.0, during as f64 / 5000.0, after as f64 / 400.0]
    }

    #[test]
    fn a_scan_does_not_empty_the_cache() {
        let [before, during, after] = hit_rates_around_a_scan(true);
        assert!(before > 0.99 && during > 0.97 && after > 0.97, "{before} {during} {after}");
        // Without the filter the scan displaces the hot set.
        let [before, _, after] = hit_rates_around_a_scan(false);
        assert!(before > 0.9 && after < 0.7, "{before} {after}");
    }

    #[test]
    fn a_new_hot_set_takes_over() {
        let mut cache = Cache {
            held: Vec::new(),
            is_held: BTreeMap::new(),
            filter: FrequencyFilter::new(CACHE_OBJECTS as u64),
            turn: 0,
        };
        for turn in 0..30_000_u64 {
            cache.access((mix(turn) % 1000) as u32, true);
        }
        for turn in 0..60_000_u64 {
            cache.access(5000 + (mix(turn) % 900) as u32, true);
        }
        let hits = (0..2000_u64).filter(|turn| cache.access(5000 + (mix(*turn) % 900) as u32, true)).count();
        assert!(hits > 1900, "{hits} of 2000");
    }
}
