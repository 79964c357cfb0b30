use super::*;
use crate::hit_set::history::{HitSetConfig, HitSetIndex};
use nacre_types::pool::HitSetKind;
use nacre_types::{Eversion, PgId, PoolId};
use proptest::prelude::*;

const S: u64 = 1_000_000_000;
const MODES: [CacheMode; 7] = [
    CacheMode::None,
    CacheMode::Writeback,
    CacheMode::Forward,
    CacheMode::Readonly,
    CacheMode::Readforward,
    CacheMode::Proxy,
    CacheMode::Readproxy,
];

fn object() -> ObjectId {
    ObjectId::new(PoolId(1), "", "", "a")
}

/// A history in which each of the sealed sets, newest first, contains the object or not.
fn history(sealed: &[bool]) -> HitSetHistory {
    let config = HitSetConfig {
        kind: HitSetKind::ExplicitObject,
        period_s: 60,
        count: 8,
        min_size: 10,
        max_size: 1000,
    };
    let mut history = HitSetHistory::activate(PgId::new(PoolId(1), 0), config, HitSetIndex::default(), S);
    for (turn, contains) in sealed.iter().rev().enumerate() {
        if *contains {
            history.record(&object(), S);
        }
        history.rotate(S * (turn as u64 + 2), Eversion::default()).unwrap();
    }
    history
}

fn recency(history: &HitSetHistory, was_in_current: bool, wanted: u32) -> AdmissionPolicy<'_> {
    AdmissionPolicy::Recency { history, was_in_current, min_read: wanted, min_write: wanted }
}

const READ: RequestTraits = RequestTraits {
    writes: false,
    manages_cache: false,
    write_ordered: false,
    must_promote: false,
    skip_promote: false,
    skip_cache: false,
};
const WRITE: RequestTraits = RequestTraits { writes: true, ..READ };

fn writeback(request: &RequestTraits, admission: AdmissionPolicy<'_>) -> MissDecision {
    decide(CacheMode::Writeback, &object(), request, false, admission, || true)
}

#[test]
fn recency_counts_sets_in_a_row_from_the_current_one() {
    // (In the current set; in the sealed ones, newest first), then the recencies that promote the object.
    let cases: &[(bool, &[bool], &[u32])] = &[
        (false, &[], &[0]),
        (true, &[], &[0, 1]),
        (false, &[true, true], &[0]),
        (true, &[false, true, true], &[0, 1]),
        (true, &[true, false, true], &[0, 1, 2]),
        (true, &[true, true, true], &[0, 1, 2, 3, 4]),
    ];
    for (in_current, sealed, promoted) in cases {
        let history = history(sealed);
        for wanted in 0..6 {
            let admission = recency(&history, *in_current, wanted);
            let promote = promoted.contains(&wanted);
            assert_eq!(
                writeback(&READ, admission),
                MissDecision::ProxyRead { promote },
                "{sealed:?} {wanted}"
            );
            assert_eq!(
                writeback(&WRITE, admission),
                MissDecision::ProxyWrite { promote },
                "{sealed:?} {wanted}"
            );
        }
    }
}

#[test]
fn reads_and_writes_have_a_recency_each() {
    let history = history(&[]);
    let admission =
        AdmissionPolicy::Recency { history: &history, was_in_current: true, min_read: 1, min_write: 2 };
    assert_eq!(writeback(&READ, admission), MissDecision::ProxyRead { promote: true });
    assert_eq!(writeback(&WRITE, admission), MissDecision::ProxyWrite { promote: false });
}

#[test]
fn the_throttle_is_asked_last() {
    let history = history(&[]);
    let throttled = |request: &RequestTraits, admission| {
        let mut asked = false;
        let decision = decide(CacheMode::Writeback, &object(), request, false, admission, || {
            asked = true;
            false
        });
        (decision, asked)
    };
    let no = MissDecision::ProxyRead { promote: false };
    assert_eq!(throttled(&READ, recency(&history, false, 0)), (no, true));
    assert_eq!(throttled(&READ, recency(&history, false, 1)), (no, false));
    let skip = RequestTraits { skip_promote: true, ..READ };
    assert_eq!(throttled(&skip, recency(&history, true, 0)), (no, false));
    let must = RequestTraits { must_promote: true, ..READ };
    assert_eq!(throttled(&must, recency(&history, true, 0)), (MissDecision::Promote, false));
    assert_eq!(throttled(&READ, AdmissionPolicy::Always), (MissDecision::Promote, false));
}

#[test]
fn without_hit_sets_everything_is_promoted_that_does_not_object() {
    assert_eq!(writeback(&READ, AdmissionPolicy::Always), MissDecision::Promote);
    assert_eq!(writeback(&WRITE, AdmissionPolicy::Always), MissDecision::Promote);
    let skip = |request| RequestTraits { skip_promote: true, ..request };
    assert_eq!(writeback(&skip(READ), AdmissionPolicy::Always), MissDecision::ProxyRead { promote: false });
    assert_eq!(writeback(&skip(WRITE), AdmissionPolicy::Always), MissDecision::ProxyWrite { promote: false });
}

#[test]
fn each_mode_treats_reads_writes_and_what_must_be_promoted_as_ceph_does() {
    use MissDecision::*;
    let history = history(&[]);
    let (read, write) = (ProxyRead { promote: false }, ProxyWrite { promote: false });
    // Mode, then a read, a write, a read ordered with writes and a watch: with room and without.
    let table = [
        (CacheMode::None, [Execute; 4], [Execute; 4]),
        (CacheMode::Writeback, [read, write, read, Promote], [read, WaitForRoom, WaitForRoom, WaitForRoom]),
        (CacheMode::Forward, [read, write, write, Promote], [read, write, write, WaitForRoom]),
        (CacheMode::Proxy, [read, write, write, Promote], [read, write, write, WaitForRoom]),
        (
            CacheMode::Readforward,
            [read, Promote, Promote, Promote],
            [read, WaitForRoom, WaitForRoom, WaitForRoom],
        ),
        (
            CacheMode::Readproxy,
            [read, Promote, Promote, Promote],
            [read, WaitForRoom, WaitForRoom, WaitForRoom],
        ),
        (CacheMode::Readonly, [Promote, Redirect, Promote, Redirect], [read, Redirect, read, Redirect]),
    ];
    assert!(MODES.iter().all(|mode| table.iter().any(|row| row.0 == *mode)));
    let ordered = RequestTraits { write_ordered: true, ..READ };
    let watch = RequestTraits { must_promote: true, ..WRITE };
    for (mode, with_room, full) in table {
        for (is_full, expected) in [(false, with_room), (true, full)] {
            let decisions = [READ, WRITE, ordered, watch].map(|request| {
                decide(mode, &object(), &request, is_full, recency(&history, false, 1), || true)
            });
            assert_eq!(decisions, expected, "{mode:?}, full: {is_full}");
        }
    }
}

#[test]
fn by_frequency_writes_are_executed_in_a_cache_that_has_room() {
    let filter = FrequencyFilter::new(100);
    let removal = RequestTraits { skip_promote: true, ..WRITE };
    let decisions = |has_room| {
        [READ, WRITE, removal].map(|request| {
            let admission = AdmissionPolicy::Frequency { filter: &filter, has_room };
            decide(CacheMode::Writeback, &object(), &request, false, admission, || true)
        })
    };
    let proxied = MissDecision::ProxyWrite { promote: false };
    assert_eq!(decisions(true), [MissDecision::ProxyRead { promote: true }, MissDecision::Promote, proxied]);
    // An object without earlier accesses causes no evictions.
    assert_eq!(decisions(false), [MissDecision::ProxyRead { promote: false }, proxied, proxied]);
}

#[test]
fn traits_follow_from_the_operations() {
    let of = |ops: &[(Op, u32)]| {
        let ops: Vec<OsdOp> = ops.iter().map(|(op, flags)| OsdOp { op: op.clone(), flags: *flags }).collect();
        RequestTraits::of(&ops, false)
    };
    let read = || Op::Read { offset: 0, len: 0 };
    let write_full = || Op::WriteFull { data: Default::default() };
    let skip = RequestTraits { skip_promote: true, ..READ };
    assert_eq!(of(&[(read(), 0)]), READ);
    assert_eq!(of(&[(read(), op_flag::FADVISE_DONTNEED)]), skip);
    assert_eq!(of(&[(read(), op_flag::FADVISE_NOCACHE)]), skip);
    assert_eq!(of(&[(read(), op_flag::FADVISE_SEQUENTIAL)]), READ);
    assert_eq!(of(&[(read(), op_flag::FADVISE_NOCACHE), (Op::Stat, 0)]), READ);
    assert_eq!(of(&[(write_full(), op_flag::FADVISE_NOCACHE)]), RequestTraits { writes: true, ..skip });
    // The advice of a partial write does not count.
    let write = Op::Write { offset: 0, data: Default::default() };
    assert_eq!(of(&[(write, op_flag::FADVISE_NOCACHE)]), WRITE);
    assert_eq!(of(&[(Op::Remove, 0)]), RequestTraits { skip_promote: true, ..WRITE });
    assert_eq!(of(&[(Op::Remove, 0), (write_full(), 0)]), WRITE);
    let may_fail = of(&[(Op::Remove, op_flag::FAILOK), (write_full(), 0)]);
    assert_eq!(may_fail, RequestTraits { skip_cache: true, ..WRITE });
    assert_eq!(of(&[(write_full(), 0), (Op::Remove, op_flag::FAILOK)]), WRITE);
    let watch = of(&[(Op::Watch { cookie: 1, timeout_s: 0 }, 0)]);
    assert_eq!(watch, RequestTraits { must_promote: true, ..WRITE });
    let ping = of(&[(Op::WatchPing { cookie: 1 }, 0)]);
    assert_eq!(ping, RequestTraits { must_promote: true, write_ordered: true, ..READ });
    let notify = of(&[(Op::Notify { timeout_s: 0, payload: Default::default() }, 0)]);
    assert_eq!(notify, RequestTraits { must_promote: true, ..READ });
    assert_eq!(RequestTraits::of(&[], true), RequestTraits { write_ordered: true, ..READ });
}

#[test]
fn objects_that_a_pg_could_not_hold_are_not_promoted() {
    assert!(fits(u64::MAX, 0, 800_000), "without a target everything fits");
    assert!(fits(800, 1000, 800_000) && !fits(801, 1000, 800_000));
    assert!(fits(u64::MAX / 2, u64::MAX, 1_000_000), "no overflow");
}

proptest! {
    /// Properties of every decision, for all requests.
    #[test]
    fn decisions_are_safe(
        mode in proptest::sample::select(&MODES[..]),
        bits in 0..32_u8,
        full: bool, in_current: bool, wanted in 0..3_u32, always: bool, throttle: bool,
    ) {
        let request = RequestTraits {
            writes: bits & 1 != 0,
            manages_cache: bits & 2 != 0,
            write_ordered: bits & 4 != 0,
            must_promote: bits & 8 != 0,
            skip_promote: bits & 16 != 0,
            skip_cache: false,
        };
        let history = history(&[true]);
        let admission = if always { AdmissionPolicy::Always } else { recency(&history, in_current, wanted) };
        let decision = decide(mode, &object(), &request, full, admission, || throttle);
        match decision {
            MissDecision::Execute => prop_assert_eq!(mode, CacheMode::None),
            // A full cache promotes nothing.
            MissDecision::Promote => prop_assert!(!full),
            MissDecision::WaitForRoom => prop_assert!(full),
            // A change is never proxied as a read, and a request that can't be proxied never is.
            MissDecision::ProxyRead { promote } => {
                prop_assert!(!request.writes && !request.must_promote);
                prop_assert!(!promote || (!full && throttle && !request.skip_promote));
            }
            MissDecision::ProxyWrite { promote } => {
                prop_assert!(!request.must_promote);
                prop_assert!(!promote || (!full && throttle && !request.skip_promote));
            }
            MissDecision::Redirect => prop_assert!(mode == CacheMode::Readonly && request.writes),
        }
    }
}
