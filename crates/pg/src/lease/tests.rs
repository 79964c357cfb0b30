//! Leases under two clocks that drift apart, and the fences.

use super::*;
use proptest::prelude::*;

const A: OsdId = OsdId(1);
const B: OsdId = OsdId(2);
const SECOND: u64 = 1_000_000_000;
const SETTINGS: LeaseSettings = LeaseSettings { term_ns: 5 * SECOND, drift_ppm: 1000 };

fn request(boot_nonce: u64, epoch: u32, sent_at_ns: u64) -> LeaseRequest {
    LeaseRequest { boot_nonce, epoch: Epoch(epoch), sent_at_ns }
}

/// A clock that starts at `offset_ns` and runs fast or slow by `ppm`.
#[derive(Clone, Copy, Debug)]
struct Clock {
    offset_ns: u64,
    ppm: i64,
}

impl Clock {
    fn read(self, true_ns: u64) -> u64 {
        let rate = u128::try_from(1_000_000 + self.ppm).unwrap();
        self.offset_ns + u64::try_from(u128::from(true_ns) * rate / 1_000_000).unwrap()
    }

    /// The first true time at which the clock shows `reading_ns` or more.
    fn shows(self, reading_ns: u64) -> u64 {
        let rate = u128::try_from(1_000_000 + self.ppm).unwrap();
        let ran = u128::from(reading_ns.saturating_sub(self.offset_ns));
        u64::try_from((ran * 1_000_000).div_ceil(rate)).unwrap()
    }
}

/// The true times at which A's lease from B ends, and at which B knows that it has ended.
fn lease_ends(assumed: LeaseSettings, clocks: (Clock, Clock), sent_ns: u64, delay_ns: u64) -> (u64, u64) {
    let (a, b) = clocks;
    let mut holder = LeaseTable::new(assumed, 1, a.read(0));
    let mut granter = LeaseTable::new(assumed, 2, b.read(0));
    granter.skip_boot_wait(A);
    let asked = holder.request(B, a.read(sent_ns));
    let grant = granter.grant(A, &asked, b.read(sent_ns + delay_ns)).unwrap();
    holder.on_grant(B, &grant, a.read(sent_ns + 2 * delay_ns));
    (a.shows(holder.held_until(B)), b.shows(granter.grants_expire_at(A)))
}

#[test]
fn without_the_margin_a_slow_holder_outlives_the_grant() {
    let clocks = (Clock { offset_ns: 7, ppm: -1000 }, Clock { offset_ns: 99 * SECOND, ppm: 1000 });
    let careless = LeaseSettings { drift_ppm: 0, ..SETTINGS };
    let (held, quiet) = lease_ends(careless, clocks, SECOND, 1000);
    assert!(held > quiet, "the model would not notice a missing margin");
    let (held, quiet) = lease_ends(SETTINGS, clocks, SECOND, 1000);
    assert!(held <= quiet);
}

#[test]
fn a_lease_runs_from_the_send() {
    let mut holder = LeaseTable::new(SETTINGS, 1, 0);
    let mut granter = LeaseTable::new(SETTINGS, 2, 0);
    let asked = holder.request(B, SECOND);
    assert!(!holder.holds_all(&[B], SECOND));
    let grant = granter.grant(A, &asked, SECOND).unwrap();
    assert!(holder.on_grant(B, &grant, 3 * SECOND));
    assert!(!holder.on_grant(B, &grant, 3 * SECOND), "nothing new");
    let end = SECOND + 5 * SECOND - 5_000_000;
    assert_eq!(holder.held_until(B), end);
    assert!(holder.holds_all(&[B], end - 1) && !holder.holds_all(&[B], end));
    assert!(!holder.holds_all(&[B, OsdId(3)], 2 * SECOND), "all of them are needed");
    assert!(holder.holds_all(&[], end), "alone, nothing is needed");
    assert_eq!(holder.renew_at(B), SECOND + SETTINGS.renew_ns());
    assert_eq!(granter.granted_until(A, 1), Some(SECOND + 5 * SECOND + 5_000_000));
    let late = holder.request(B, 2 * SECOND);
    let grant = granter.grant(A, &late, 2 * SECOND).unwrap();
    assert!(!holder.on_grant(B, &grant, 20 * SECOND), "over before it came");
}

#[test]
fn grants_for_other_processes_or_unsent_requests_count_for_nothing() {
    let mut holder = LeaseTable::new(SETTINGS, 1, 0);
    let grant = LeaseGrant { boot_nonce: 2, epoch: Epoch(0), for_boot_nonce: 1, sent_at_ns: 10 };
    assert!(!holder.on_grant(B, &grant, 10), "never asked");
    holder.request(B, 10);
    assert!(!holder.on_grant(B, &LeaseGrant { for_boot_nonce: 9, ..grant }, 10));
    assert!(!holder.on_grant(B, &LeaseGrant { sent_at_ns: 11, ..grant }, 12));
    assert!(holder.on_grant(B, &grant, 12));
}

#[test]
fn an_osd_marked_down_gets_no_lease_and_its_grants_run_out() {
    let mut granter = LeaseTable::new(SETTINGS, 2, 0);
    assert!(granter.grant(A, &request(1, 4, 0), 10 * SECOND).is_some());
    granter.stop_granting(A);
    let quiet = granter.grants_expire_at(A);
    assert_eq!(granter.grant(A, &request(1, 9, 0), 11 * SECOND), None);
    assert_eq!(granter.grants_expire_at(A), quiet, "a refusal does not prolong");
    granter.resume_granting(A);
    assert!(granter.grant(A, &request(1, 6, 0), 13 * SECOND).is_some());
}

#[test]
fn a_successors_lease_does_not_count_for_who_does_not_know_that_it_was_replaced() {
    let mut holder = LeaseTable::new(SETTINGS, 1, 0);
    let mut granter = LeaseTable::new(SETTINGS, 2, 0);
    holder.on_map(Epoch(5), 0);
    granter.on_map(Epoch(5), 0);
    granter.advance_acted_epoch(Epoch(6));
    for second in 1..=20 {
        let asked = holder.request(B, second * SECOND);
        let grant = granter.grant(A, &asked, second * SECOND).unwrap();
        assert!(!holder.on_grant(B, &grant, second * SECOND));
        assert!(holder.held[&B].until_ns.len() <= MAX_EPOCHS_PER_GRANTER);
    }
    assert_eq!(holder.on_map(Epoch(5), 20 * SECOND), []);
    assert_eq!(holder.held_until(B), 0);
    assert_eq!(holder.on_map(Epoch(6), 20 * SECOND), [B]);
    assert_eq!(holder.held_until(B), 20 * SECOND + SETTINGS.holder_term_ns());
    assert_eq!(holder.on_map(Epoch(7), 20 * SECOND), [], "held already");
    let leases = holder.at(20 * SECOND);
    assert!(
        leases.holds_lease(B, Epoch(6)) && !leases.holds_lease(B, Epoch(5)),
        "a PG that is behind its OSD's map"
    );
}

#[test]
fn a_booted_osd_waits_for_the_grants_that_it_forgot() {
    let mut granter = LeaseTable::new(SETTINGS, 2, 100 * SECOND);
    assert_eq!(granter.boot_wait_until(), 105 * SECOND + 5_000_000);
    assert_eq!(granter.grants_expire_at(A), granter.boot_wait_until());
    granter.skip_boot_wait(A);
    assert_eq!(granter.grants_expire_at(A), 0);
    assert_eq!(granter.grants_expire_at(B), granter.boot_wait_until());
    granter.grant(A, &request(1, 1, 0), 101 * SECOND);
    assert_eq!(granter.grants_expire_at(A), 106 * SECOND + 5_000_000);
}

#[test]
fn only_proof_of_its_end_shortens_the_wait_for_a_process() {
    let mut granter = LeaseTable::new(SETTINGS, 2, 0);
    granter.grant(A, &request(1, 1, 0), 10 * SECOND);
    granter.grant(A, &request(7, 1, 0), 11 * SECOND);
    granter.process_gone(A, 7);
    assert_eq!(granter.grants_expire_at(A), 15 * SECOND + 5_000_000);
    granter.process_gone(A, 1);
    assert_eq!(granter.grants_expire_at(A), granter.boot_wait_until());
}

#[test]
fn many_processes_of_one_osd_are_bounded_and_none_is_forgotten_early() {
    let mut granter = LeaseTable::new(SETTINGS, 2, 0);
    for nonce in 1..=100 {
        granter.grant(A, &request(nonce, 1, 0), 10 * SECOND + nonce);
        assert!(granter.granted[&A].until_ns.len() <= MAX_PROCESSES_PER_OSD);
    }
    for nonce in 97..=100 {
        granter.process_gone(A, nonce);
    }
    assert_eq!(granter.grants_expire_at(A), 15 * SECOND + 5_000_000 + 96);
}

proptest! {
    #[test]
    fn the_holder_stops_before_the_granter_goes_on(
        term_ns in 1_000..60 * SECOND,
        drift_ppm in 0..20_000u32,
        a_share in -1.0..1.0f64,
        b_share in -1.0..1.0f64,
        a_offset in 0..1000 * SECOND,
        b_offset in 0..1000 * SECOND,
        sent in 0..100 * SECOND,
        delay in 0..10 * SECOND,
    ) {
        let ppm = |share: f64| (share * f64::from(drift_ppm)) as i64;
        let clocks = (
            Clock { offset_ns: a_offset, ppm: ppm(a_share) },
            Clock { offset_ns: b_offset, ppm: ppm(b_share) },
        );
        let (held, quiet) = lease_ends(LeaseSettings { term_ns, drift_ppm }, clocks, sent, delay);
        // Clocks are read in whole nanoseconds: one for each of the two readings.
        prop_assert!(held <= quiet + 2, "held until {held}, quiet at {quiet}");
    }
}
