//! How many bytes of a head's data a GET asks for before it knows how many there are.
//!
//! A read reserves the bytes that it asks for in the client's bound on bytes in flight (`objecter_inflight_op_bytes`, 100 MiB)
//! until its reply has come. If every GET asked for the longest data that a head can have, 25 GETs would use up the bound,
//! however small their objects are. So the first read asks for [`MIN_READ_BYTES`] bytes, or for what recent GETs of the same bucket
//! needed. If the head has more data, a second read asks for all of it: it is one operation again, so it can't mix two writes.
//!
//! The table has a fixed size. Buckets whose ids share an entry share an estimate, which costs them second reads and nothing
//! else.

use super::MAX_HEAD_BYTES;
use nacre_types::hash::ceph_str_hash_rjenkins;
use std::sync::atomic::{AtomicU64, Ordering};

/// The fewest bytes that a first read asks for.
pub(crate) const MIN_READ_BYTES: u64 = 64 << 10;
/// Size classes: class `c` contains sizes up to `SMALLEST << c` bytes; the last class contains all sizes that a head can have.
const CLASSES: u32 = 7;
const _: () = assert!(MIN_READ_BYTES << (CLASSES - 1) == MAX_HEAD_BYTES);
/// Entries of the table.
const ENTRIES: usize = 256;
/// When an entry has counted this many reads, its counters are halved.
const COUNTED: u64 = 64;
/// At most one in this many reads may need a second read.
const ONE_IN: u64 = 8;
/// Bits of a class's counter in an entry.
const BITS: u32 = 8;
const _: () = assert!(CLASSES * BITS <= u64::BITS && COUNTED < 1 << BITS);

/// Recent reads of heads by size, for each entry: a counter of [`BITS`] bits per class.
#[derive(Debug)]
pub(crate) struct ReadSizeEstimator([AtomicU64; ENTRIES]);

impl Default for ReadSizeEstimator {
    fn default() -> ReadSizeEstimator {
        ReadSizeEstimator(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl ReadSizeEstimator {
    /// How many bytes the first read of a head in this bucket asks for: enough for most of the bucket's recent reads.
    pub(crate) fn first_read_len(&self, bucket_id: &str) -> u64 {
        let counters = self.entry(bucket_id).load(Ordering::Relaxed);
        let total: u64 = (0..CLASSES).map(|class| count(counters, class)).sum();
        let mut larger = total;
        for class in 0..CLASSES {
            larger -= count(counters, class);
            if larger * ONE_IN <= total {
                return MIN_READ_BYTES << class;
            }
        }
        MAX_HEAD_BYTES
    }

    /// Records that a read of a head in this bucket needed `needed` bytes.
    pub(crate) fn record_read(&self, bucket_id: &str, needed: u64) {
        let class = (0..CLASSES - 1).find(|class| needed <= MIN_READ_BYTES << class).unwrap_or(CLASSES - 1);
        let note = |counters: u64| {
            let counters = counters + (1_u64 << (class * BITS));
            let total: u64 = (0..CLASSES).map(|class| count(counters, class)).sum();
            let halved = |counters: u64| {
                (0..CLASSES).map(|class| (count(counters, class) / 2) << (class * BITS)).sum::<u64>()
            };
            Some(if total < COUNTED { counters } else { halved(counters) })
        };
        // The closure always returns a value, so the update can't fail.
        _ = self.entry(bucket_id).fetch_update(Ordering::Relaxed, Ordering::Relaxed, note);
    }

    fn entry(&self, bucket_id: &str) -> &AtomicU64 {
        &self.0[ceph_str_hash_rjenkins(bucket_id.as_bytes()) as usize % ENTRIES]
    }
}

/// The counter of a class.
fn count(counters: u64, class: u32) -> u64 {
    counters >> (class * BITS) & ((1 << BITS) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_read_asks_for_what_recent_reads_needed() {
        let sizes = ReadSizeEstimator::default();
        assert_eq!(sizes.first_read_len("b"), MIN_READ_BYTES, "nothing is known yet");
        sizes.record_read("b", 4 << 20);
        assert_eq!(sizes.first_read_len("b"), 4 << 20, "one read is enough to learn from");
        for _ in 0..COUNTED {
            sizes.record_read("b", 100);
        }
        assert_eq!(sizes.first_read_len("b"), MIN_READ_BYTES);
        // One large object in sixteen is read twice, so that the others reserve little.
        for _ in 0..200 {
            (0..15).for_each(|_| sizes.record_read("b", MIN_READ_BYTES));
            sizes.record_read("b", MIN_READ_BYTES + 1);
            assert_eq!(sizes.first_read_len("b"), MIN_READ_BYTES);
        }
        // If every second object is large, a second read for each of them is not worth it.
        for _ in 0..COUNTED {
            sizes.record_read("b", 10);
            sizes.record_read("b", 1 << 20);
        }
        assert_eq!(sizes.first_read_len("b"), 1 << 20);
    }

    #[test]
    fn every_size_has_a_class_that_holds_it() {
        for needed in [
            0,
            1,
            MIN_READ_BYTES,
            MIN_READ_BYTES + 1,
            (1 << 20) - 1,
            1 << 20,
            (2 << 20) + 1,
            MAX_HEAD_BYTES,
            u64::MAX,
        ] {
            let sizes = ReadSizeEstimator::default();
            sizes.record_read("b", needed);
            let first = sizes.first_read_len("b");
            assert!(first >= needed.min(MAX_HEAD_BYTES) && first <= MAX_HEAD_BYTES, "{needed}: {first}");
            assert!(
                first == MIN_READ_BYTES || first / 2 < needed,
                "{needed}: {first} is more than it must be"
            );
        }
    }

    #[test]
    fn counters_never_run_into_one_another() {
        let sizes = ReadSizeEstimator::default();
        for class in 0..CLASSES {
            for _ in 0..10 * COUNTED {
                sizes.record_read("b", MIN_READ_BYTES << class);
                let counters = sizes.entry("b").load(Ordering::Relaxed);
                let total: u64 = (0..CLASSES).map(|class| count(counters, class)).sum();
                assert!(total < COUNTED && counters >> (CLASSES * BITS) == 0);
            }
            assert_eq!(sizes.first_read_len("b"), MIN_READ_BYTES << class);
        }
    }
}
