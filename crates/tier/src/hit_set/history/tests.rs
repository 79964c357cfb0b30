use super::*;
use nacre_types::encoding;
use nacre_types::{Interval, PoolId};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// 2026-11-21T20:57:43.602914Z.
const NOW: u64 = 1_795_294_663_602_914_000;

fn pg() -> PgId {
    PgId::new(PoolId(2), 0x1f)
}

fn object(n: u32) -> ObjectId {
    ObjectId::new(PoolId(2), "", "", &format!("object-{n}"))
}

fn version(n: u64) -> Eversion {
    Eversion::new(Interval(1), n)
}

const CONFIG: HitSetConfig = HitSetConfig {
    kind: HitSetKind::Bloom { fpp: 0.05 },
    period_s: 60,
    count: 4,
    min_size: 1000,
    max_size: 100_000,
};

fn history(config: HitSetConfig) -> HitSetHistory {
    HitSetHistory::activate(pg(), config, HitSetIndex::default(), NOW)
}

#[test]
fn archives_have_cephs_names_and_the_hash_of_their_pg() {
    let archive = HitSetArchive { begin_ns: NOW, end_ns: NOW + 60 * NS_PER_S };
    let object = archive.object(pg());
    assert_eq!(object.namespace(), ".ceph-internal");
    assert_eq!(object.name(), "hit_set_2.1f_archive_2026-11-21 20:57:43.602914Z_2026-11-21 20:58:43.602914Z");
    assert_eq!((object.hash(), object.pool()), (0x1f, PoolId(2)));
    let early = HitSetArchive { begin_ns: 5 * NS_PER_S, end_ns: 7 * NS_PER_S + NS_PER_US };
    assert_eq!(early.object(pg()).name(), "hit_set_2.1f_archive_5.000000_7.000001");
}

#[test]
fn a_set_ends_with_its_period() {
    let mut history = history(CONFIG);
    let end = NOW + 60 * NS_PER_S;
    assert_eq!(
        history.record(&object(1), end - 1),
        AccessRecord { was_in_current: false, rotation_due: false }
    );
    assert_eq!(history.record(&object(1), end), AccessRecord { was_in_current: true, rotation_due: true });
    let rotation = history.rotate(end, version(9)).unwrap();
    assert_eq!(rotation.object, HitSetArchive { begin_ns: NOW, end_ns: end }.object(pg()));
    assert!(SealedHitSet::decode(&rotation.data).unwrap().contains(&object(1)));
    assert_eq!(rotation.remove, []);
    assert_eq!(history.index().covered, version(9));
    assert!(!history.is_in_current(&object(1)) && !history.is_rotation_due(end));
}

#[test]
fn a_set_ends_when_it_is_full() {
    for kind in [HitSetKind::ExplicitHash, HitSetKind::ExplicitObject, HitSetKind::Bloom { fpp: 0.0001 }] {
        let mut history = history(HitSetConfig { kind, min_size: 100, max_size: 100, ..CONFIG });
        let due = (0..200).find(|&n| history.record(&object(n), NOW).rotation_due).unwrap();
        assert!((99..=101).contains(&due), "{kind:?}: full after {due}");
    }
}

#[test]
fn archives_and_memory_are_bounded_by_the_count() {
    let mut history = history(CONFIG);
    let mut stored = BTreeMap::new();
    for turn in 0..10 {
        history.record(&object(turn), NOW);
        let rotation = history.rotate(NOW + u64::from(turn + 1) * NS_PER_S, version(turn.into())).unwrap();
        assert!(stored.insert(rotation.object, rotation.data).is_none());
        for removed in rotation.remove {
            assert!(stored.remove(&removed).is_some(), "{removed} is not stored");
        }
        assert_eq!(history.sealed().count(), (turn as usize + 1).min(3));
        assert_eq!(history.index().archives.len(), (turn as usize + 1).min(4));
    }
    let names: Vec<ObjectId> = history.index().archives.iter().map(|a| a.object(pg())).collect();
    assert_eq!(names, stored.into_keys().collect::<Vec<_>>());
    let newest_first: Vec<bool> = history.sealed().map(|set| set.contains(&object(9))).collect();
    assert_eq!(newest_first, [true, false, false]);
}

#[test]
fn a_new_primary_reads_the_archives_that_it_needs() {
    let mut old = history(CONFIG);
    let mut stored = BTreeMap::new();
    for turn in 0..6 {
        old.record(&object(turn), NOW);
        let rotation = old.rotate(NOW + u64::from(turn + 1) * NS_PER_S, version(turn.into())).unwrap();
        stored.insert(rotation.object, rotation.data);
    }
    let index = encoding::decode::<HitSetIndex>(&encoding::encode(old.index())).unwrap();
    let mut new = HitSetHistory::activate(pg(), CONFIG, index, NOW + 100 * NS_PER_S);
    let wanted = new.unread();
    assert_eq!(wanted.len(), 3);
    // The order of reads does not matter, and a second read is ignored.
    for archive in [wanted[1], wanted[2], wanted[0], wanted[1]] {
        new.load(&archive, &stored[&archive.object(pg())]).unwrap();
    }
    assert_eq!(new.unread(), []);
    assert!(new.sealed().eq(old.sealed()));
    new.replay(&object(77));
    assert!(new.is_in_current(&object(77)));
}

#[test]
fn an_unreadable_archive_is_an_error_and_the_history_goes_on() {
    let mut old = history(CONFIG);
    let rotation = old.rotate(NOW + NS_PER_S, version(1)).unwrap();
    let mut new = HitSetHistory::activate(pg(), CONFIG, old.index().clone(), NOW + 2 * NS_PER_S);
    let archive = new.unread()[0];
    let error = new.load(&archive, &rotation.data[1..]).unwrap_err();
    assert!(matches!(error, DecodeError::Corrupt { .. } | DecodeError::TooNew { .. }), "{error}");
    assert_eq!(new.sealed().count(), 0);
    assert!(new.rotate(NOW + 3 * NS_PER_S, version(2)).is_some());
}

#[test]
fn names_stay_unique_when_the_clock_stops_or_goes_back() {
    let mut history = history(HitSetConfig { count: 100, ..CONFIG });
    let mut names = std::collections::BTreeSet::new();
    for now in [NOW, NOW, NOW - 5 * NS_PER_S, NOW + 10] {
        assert!(names.insert(history.rotate(now, version(1)).unwrap().object));
    }
    let index = history.index().clone();
    let mut next = HitSetHistory::activate(pg(), CONFIG, index, NOW - 60 * NS_PER_S);
    assert!(names.insert(next.rotate(NOW - 59 * NS_PER_S, version(2)).unwrap().object));
}

#[test]
fn filters_are_made_for_what_the_period_before_saw() {
    // 3000 objects in 15 of 60 seconds: 12 000 in a period.
    let mut history = history(HitSetConfig { min_size: 4000, ..CONFIG });
    for n in 0..3000 {
        history.record(&object(n), NOW);
    }
    history.rotate(NOW + 15 * NS_PER_S, version(1)).unwrap();
    let due = (0..20_000).find(|&n| history.record(&object(n), NOW + 15 * NS_PER_S).rotation_due).unwrap();
    assert!((11_500..12_500).contains(&due), "full after {due}");
    // The size is limited by the options.
    history.rotate(NOW + 15 * NS_PER_S + 1, version(2)).unwrap();
    let CurrentSet { set, .. } = history.current.as_ref().unwrap();
    assert_eq!(set.limit, 100_000);
}

#[test]
fn probabilities_are_shared_by_the_sets_in_whole_millionths() {
    assert_eq!(CONFIG.fpp_per_set(0.05), 0.0125);
    assert_eq!(CONFIG.fpp_per_set(0.000_001), FALLBACK_FPP);
    assert_eq!(CONFIG.fpp_per_set(0.0), FALLBACK_FPP);
}

#[test]
fn what_is_switched_off_removes_its_archives() {
    let mut history = history(CONFIG);
    let stored: Vec<ObjectId> =
        (1..4).map(|n| history.rotate(NOW + n * NS_PER_S, version(n)).unwrap().object).collect();
    for off in [
        HitSetConfig { kind: HitSetKind::None, ..CONFIG },
        HitSetConfig { period_s: 0, ..CONFIG },
        HitSetConfig { count: 0, ..CONFIG },
    ] {
        let mut history = history.clone();
        history.reconfigure(off, NOW + 5 * NS_PER_S);
        assert_eq!(history.trim(), stored);
        assert_eq!((history.sealed().count(), history.trim().len()), (0, 0));
        let nothing = AccessRecord { was_in_current: false, rotation_due: false };
        assert_eq!(history.record(&object(1), NOW + 500 * NS_PER_S), nothing);
        assert_eq!(history.rotate(NOW + 500 * NS_PER_S, version(9)), None);
    }
}

#[test]
fn only_another_kind_of_set_drops_the_current_one() {
    let mut history = history(CONFIG);
    history.record(&object(1), NOW);
    history.reconfigure(HitSetConfig { period_s: 10, count: 2, ..CONFIG }, NOW);
    assert!(history.is_in_current(&object(1)) && history.is_rotation_due(NOW + 10 * NS_PER_S));
    history.reconfigure(HitSetConfig { kind: HitSetKind::ExplicitHash, ..CONFIG }, NOW);
    assert!(!history.is_in_current(&object(1)) && history.is_enabled());
}

proptest! {
    /// After any events the index names exactly the objects that the rotations left in the store.
    #[test]
    fn the_index_is_what_is_stored(
        steps in proptest::collection::vec((0..200_u32, 0..3_u32, 0..6_u32), 0..60)
    ) {
        let mut history = history(HitSetConfig { max_size: 20, min_size: 5, ..CONFIG });
        let mut stored = std::collections::BTreeSet::new();
        let mut now = NOW;
        for (n, passed, count) in steps {
            now += u64::from(passed) * 30 * NS_PER_S;
            if n % 10 == 0 {
                let config = HitSetConfig { count, max_size: 20, min_size: 5, ..CONFIG };
                history.reconfigure(config, now);
                for object in history.trim() {
                    prop_assert!(stored.remove(&object));
                }
            }
            if history.record(&object(n), now).rotation_due {
                let rotation = history.rotate(now, version(n.into())).unwrap();
                prop_assert!(stored.insert(rotation.object));
                for object in rotation.remove {
                    prop_assert!(stored.remove(&object));
                }
                prop_assert!(!history.is_rotation_due(now));
            }
            let named = history.index().archives.iter().map(|archive| archive.object(pg()));
            prop_assert_eq!(named.collect::<std::collections::BTreeSet<_>>(), stored.clone());
            prop_assert!(history.sealed().count() < history.config.count.max(1) as usize);
        }
    }
}
