//! Fuzz targets with damaged inputs for data from the store or from peers: see `nacre_fuzz`.

use crate::hit_set::history::{HitSetArchive, HitSetIndex};
use crate::hit_set::{HitSet, SealedHitSet};
use nacre_fuzz::{CountingAllocator, Target};
use nacre_types::encoding;
use nacre_types::{Eversion, Interval, ObjectId, PoolId};
use std::path::Path;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn corpus() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"))
}

#[test]
fn fuzz_hit_sets() {
    let sets = [HitSet::explicit_hash(100), HitSet::explicit_object(100), HitSet::bloom(100, 0.01, 7)];
    let seeds = sets.into_iter().map(|mut set| {
        for n in 0..12 {
            set.insert(&ObjectId::new(PoolId(1), "namespace", "", &format!("object-{n}")));
        }
        set.seal().encode()
    });
    Target::new("HitSet", corpus(), seeds.collect())
        .run(|input| SealedHitSet::decode(input).ok().map(|set| set.encode()));
}

#[test]
fn fuzz_indexes_of_hit_sets() {
    let archive = |n: u64| HitSetArchive { begin_ns: n * 1_000_000_000, end_ns: (n + 60) * 1_000_000_000 };
    let index = HitSetIndex {
        covered: Eversion::new(Interval(3), 77),
        archives: [archive(1_800_000_000), archive(1_800_000_060)].into(),
    };
    let seeds = vec![encoding::encode(&HitSetIndex::default()), encoding::encode(&index)];
    Target::new("HitSetIndex", corpus(), seeds)
        .run(|input| encoding::decode::<HitSetIndex>(input).ok().map(|index| encoding::encode(&index)));
}
