use super::*;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

fn targets() -> CacheTargets {
    // A PG's share is 1000 MiB.
    CacheTargets::new(&Tiering::default(), 8000 * MIB, 8)
}

/// Sums of objects of 1 MiB.
fn sums(objects: u64, dirty: u64) -> CacheSums {
    CacheSums { objects, bytes: objects * MIB, dirty, ..CacheSums::default() }
}

fn idle() -> AgentMode {
    AgentMode::default()
}

fn choose_after(before: &AgentMode, sums: &CacheSums) -> AgentMode {
    choose_agent_mode(before, sums, &targets(), &AgentOptions::default(), false)
}

#[test]
fn evictions_end_where_no_room_begins() {
    let options = AgentOptions::default();
    let surplus = |objects| surplus_objects(&sums(objects, 0), &targets(), &options);
    // Evictions end at 0.8 minus 2 % of it: 784 of 1000 objects.
    assert_eq!([0, 784, 785, 800, 1000, 2000].map(surplus), [0, 0, 1, 16, 216, 1216]);
    let room = |objects| room_objects(&sums(objects, 0), &targets(), &options);
    assert_eq!([0, 750, 752, 784, 2000].map(room), [STEP_CHECKS as u64, 2, 0, 0, 0]);
    let without = CacheTargets { max_bytes: 0, max_objects: 0, ..targets() };
    assert_eq!(room_objects(&sums(1_000_000, 0), &without, &options), u64::MAX, "nothing is evicted");
    assert_eq!(surplus_objects(&sums(1_000_000, 0), &without, &options), 0);
}

#[test]
fn the_capacity_is_that_of_the_closer_target() {
    let capacity = |max_bytes, max_objects| {
        capacity_objects(&sums(500, 0), &CacheTargets { max_bytes, max_objects, ..targets() })
    };
    assert_eq!(capacity(8000 * MIB, 0), 1000);
    assert_eq!(capacity(8000 * MIB, 4000), 500);
    assert_eq!(capacity(0, 4000), 500);
    assert_eq!(capacity(0, 0), 500, "what it holds");
    assert_eq!(capacity_objects(&CacheSums::default(), &targets()), 0, "nothing is known of sizes");
}

#[test]
fn flushing_begins_above_the_slop_and_ends_below_it() {
    let flush = |before, dirty| {
        let before = AgentMode { flush: before, ..idle() };
        choose_after(&before, &sums(700, dirty)).flush
    };
    use FlushMode::*;
    // The slop is 2 % of 0.4: 8 of 1000 objects, also for the high ratio of 0.6.
    assert_eq!([0, 400, 408, 409].map(|dirty| flush(Idle, dirty)), [Idle, Idle, Idle, Low]);
    assert_eq!([608, 609].map(|dirty| flush(Idle, dirty)), [Low, High]);
    assert_eq!([409, 393, 392].map(|dirty| flush(Low, dirty)), [Low, Low, Idle]);
    assert_eq!([592, 593].map(|dirty| flush(Low, dirty)), [Low, High]);
    assert_eq!([593, 592].map(|dirty| flush(High, dirty)), [High, Low]);
}

#[test]
fn a_dirty_ratio_of_zero_flushes_everything() {
    let targets = CacheTargets { dirty_ratio_micro: 0, ..targets() };
    let flush = |sums| choose_agent_mode(&idle(), &sums, &targets, &AgentOptions::default(), false).flush;
    assert_eq!(flush(sums(100, 0)), FlushMode::Idle);
    assert_eq!(flush(sums(100, 1)), FlushMode::Low);
    // Even if one object is less than a millionth, or has no bytes.
    let small = CacheSums { objects: 1, dirty: 1, ..CacheSums::default() };
    assert_eq!(flush(small), FlushMode::Low);
}

#[test]
fn the_effort_rises_from_the_full_ratio_to_the_target() {
    let evict = |objects| {
        let mode = choose_after(&idle(), &sums(objects, 0));
        (mode.evict, mode.evict_effort_micro)
    };
    use EvictMode::*;
    assert_eq!([0, 800, 816].map(evict), [(Idle, 0); 3]);
    // From 0.816 on: the minimum effort, then a tenth for each 0.0184.
    assert_eq!(evict(817), (Some, 100_000));
    assert_eq!(evict(852), (Some, 100_000));
    assert_eq!(evict(853), (Some, 200_000));
    assert_eq!(evict(908), (Some, 500_000));
    assert_eq!(evict(1000), (Some, 1_000_000));
    assert_eq!(evict(1001), (Full, 1_000_000));
    // An agent that evicts already continues to 0.784.
    let some = AgentMode { evict: Some, ..idle() };
    assert_eq!(choose_after(&some, &sums(785, 0)).evict, Some);
    assert_eq!(choose_after(&some, &sums(784, 0)).evict, Idle);
    let restarts = choose_agent_mode(&some, &sums(785, 0), &targets(), &AgentOptions::default(), true);
    assert_eq!(restarts.evict, Idle);
}

#[test]
fn bytes_or_objects_count_whichever_is_closer_to_its_target() {
    let level = |max_bytes, max_objects| {
        let targets = CacheTargets { max_bytes, max_objects, divisor: 1, ..targets() };
        CacheLevel::new(&sums(100, 50), &targets)
    };
    assert_eq!(level(200 * MIB, 0), CacheLevel { dirty_micro: 250_000, full_micro: 500_000 });
    assert_eq!(level(0, 400), CacheLevel { dirty_micro: 125_000, full_micro: 250_000 });
    assert_eq!(level(200 * MIB, 400), level(200 * MIB, 0));
    assert_eq!(level(1000 * MIB, 400), level(0, 400));
    assert_eq!(level(0, 0), CacheLevel::default());
}

#[test]
fn archived_hit_sets_do_not_count_and_overhead_does() {
    let targets = CacheTargets { max_bytes: 100 * MIB, divisor: 1, ..targets() };
    let with_archives =
        CacheSums { objects: 54, bytes: 90 * MIB, archives: 4, archive_bytes: 40 * MIB, ..sums(0, 25) };
    let level = CacheLevel { dirty_micro: 250_000, full_micro: 500_000 };
    assert_eq!(CacheLevel::new(&with_archives, &targets), level);
    let with_overhead = CacheSums { object_overhead_bytes: MIB, ..sums(25, 12) };
    let level = CacheLevel { dirty_micro: 240_000, full_micro: 500_000 };
    assert_eq!(CacheLevel::new(&with_overhead, &targets), level);
    let archives_only = CacheSums { objects: 4, bytes: MIB, archives: 4, archive_bytes: MIB, ..sums(0, 0) };
    assert_eq!(choose_after(&idle(), &archives_only), idle());
}

#[test]
fn shares_follow_the_sizes_of_pgs() {
    assert_eq!([1, 2, 8].map(|pg_num| pg_divisor(pg_num, 0)), [1, 2, 8]);
    // Of 6 PGs, 0 and 1 were split into 0, 1, 4 and 5; 2 and 3 hold a quarter each.
    assert_eq!([0, 1, 2, 3, 4, 5].map(|seed| pg_divisor(6, seed)), [8, 8, 4, 4, 8, 8]);
    for pg_num in 1..200 {
        let total: f64 = (0..pg_num).map(|seed| 1.0 / f64::from(pg_divisor(pg_num, seed))).sum();
        assert!((total - 1.0).abs() < 1e-9, "shares of {pg_num} PGs make {total}");
    }
}

const GIB: u64 = 1 << 30;

fn osd(free: u64, total: u64, pgs: u32) -> CacheOsd {
    CacheOsd { free_bytes: free, total_bytes: total, pgs }
}

#[test]
fn a_target_beyond_the_osds_is_lowered_to_what_the_fullest_takes() {
    // Three copies on five OSDs of 4 GiB, a tenth of which stays free; the second has the most PGs, the third the least space.
    let osds = [
        osd(4 * GIB, 4 * GIB, 64),
        osd(4 * GIB, 4 * GIB, 80),
        osd(2 * GIB, 4 * GIB, 64),
        osd(4 * GIB, 4 * GIB, 88),
        osd(4 * GIB, 4 * GIB, 88),
    ];
    let reserve = 100_000;
    let of_third = ((2 * GIB - 4 * GIB / 10) as u128 * 128 / 64) as u64;
    assert_eq!(effective_target(1 << 40, 0, 128, &osds, reserve), of_third);
    assert_eq!(effective_target(0, 0, 128, &osds, reserve), of_third, "no target is not without limit");
    assert_eq!(effective_target(GIB, 0, 128, &osds, reserve), GIB, "a low target stays");
}

#[test]
fn the_target_stays_while_the_pool_fills() {
    // One of two equal OSDs with 3 of 4 PGs: it gets 3/4 of each byte.
    let at = |stored: u64| {
        effective_target(0, stored, 4, &[osd(900 - stored * 3 / 4, 1000, 3), osd(900, 1000, 1)], 100_000)
    };
    assert_eq!([0, 400, 800].map(at), [1066; 3]);
}

#[test]
fn a_full_osd_means_to_evict_everything() {
    let full = [osd(50, 1000, 4)];
    assert_eq!(effective_target(1 << 40, 10, 4, &full, 100_000), 1);
    assert_eq!(effective_target(1 << 40, 500, 4, &full, 100_000), 450);
    // OSDs without PGs of the pool do not matter.
    assert_eq!(effective_target(77, 500, 4, &[osd(0, 1000, 0)], 100_000), 77);
    assert_eq!(effective_target(0, 500, 4, &[], 100_000), 0);
}

proptest! {
    #[test]
    fn modes_rise_with_what_is_held(
        objects in 0..3000_u64, dirty_share in 0..101_u64, more in 0..500_u64,
        low in 0..1_000_001_u32, high in 0..1_000_001_u32, full in 0..1_000_001_u32,
        slop in 0..200_000_u32, step in 0..1_000_001_u32, least in 0..1_000_001_u32,
        evicting: bool, restarts: bool,
    ) {
        let targets = CacheTargets {
            dirty_ratio_micro: low, dirty_high_ratio_micro: high, full_ratio_micro: full, ..targets()
        };
        let options = AgentOptions {
            slop_micro: slop, min_evict_effort_micro: least, quantize_effort_micro: step,
        };
        let before = AgentMode { evict: if evicting { EvictMode::Some } else { EvictMode::Idle }, ..idle() };
        let dirty = objects * dirty_share / 100;
        let mode = choose_agent_mode(&before, &sums(objects, dirty), &targets, &options, restarts);
        let fuller = choose_agent_mode(&before, &sums(objects + more, dirty + more), &targets, &options, restarts);
        prop_assert!(fuller.flush >= mode.flush && fuller.evict >= mode.evict);
        prop_assert!(fuller.evict_effort_micro >= mode.evict_effort_micro);
        prop_assert_eq!(mode.evict == EvictMode::Idle, mode.evict_effort_micro == 0);
        prop_assert!(mode.evict_effort_micro <= 1_000_000);
        prop_assert_eq!(mode.evict == EvictMode::Full, objects > 1000);
    }

    #[test]
    fn levels_do_not_overflow(
        objects: u64, bytes: u64, dirty: u64, archives: u64, overhead: u64, max_bytes: u64, max_objects: u64,
    ) {
        let sums = CacheSums {
            objects, bytes, dirty, archives, archive_bytes: archives, object_overhead_bytes: overhead,
        };
        let targets = CacheTargets { max_bytes, max_objects, divisor: 3, ..targets() };
        choose_agent_mode(&idle(), &sums, &targets, &AgentOptions::default(), false);
    }

    /// An OSD that fills up to the effective target still has its reserve.
    #[test]
    fn the_effective_target_keeps_the_reserve(
        total in 1000..1_000_000_u64, used_share in 0..80_u64, pgs in 1..128_u32, stored in 0..100_000_u64,
    ) {
        let free = total - total * used_share / 100;
        let target = effective_target(0, stored, 128, &[osd(free, total, pgs)], 100_000);
        let growth = target.saturating_sub(stored);
        let taken = growth * u64::from(pgs) / 128;
        prop_assert!(free - taken.min(free) >= total / 10, "{taken} of {free}");
        // At most one byte and the rounding in each PG remain unused.
        prop_assert!(free - taken <= total / 10 + 130);
    }
}
