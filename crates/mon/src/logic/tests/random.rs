//! The map stays valid under random sequences of events.

use super::*;
use nacre_types::stats::OsdStats;
use proptest::prelude::*;
use std::collections::BTreeSet;

const OSDS: u32 = 5;

#[derive(Clone, Debug)]
enum Step {
    Boot { osd: u32, wipe: bool },
    Failure { reporter: u32, target: u32, silent_s: u64, refused: bool },
    Down(u32),
    Lost(u32),
    Out(u32),
    Cas { by: u32, seed: u32, members: Vec<u32>, primary: u32, skip: u64, stale: bool },
    Full { osd: u32, full: bool },
    Pool { create: bool },
    Flag { bit: u32, on: bool },
    Wait(u64),
    Suspend(u64),
    Propose,
    Commit,
}

fn step() -> impl Strategy<Value = Step> {
    let osd = 0..OSDS;
    prop_oneof![
        3 => (osd.clone(), any::<bool>()).prop_map(|(osd, wipe)| Step::Boot { osd, wipe }),
        2 => (osd.clone(), osd.clone(), 0_u64..60, any::<bool>())
            .prop_map(|(reporter, target, silent_s, refused)| Step::Failure { reporter, target, silent_s, refused }),
        1 => osd.clone().prop_map(Step::Down),
        1 => osd.clone().prop_map(Step::Lost),
        1 => osd.clone().prop_map(Step::Out),
        12 => (osd.clone(), 0_u32..4, proptest::collection::vec(0..OSDS, 0..5), osd.clone(), 0_u64..3, any::<bool>())
            .prop_map(|(by, seed, members, primary, skip, stale)| Step::Cas { by, seed, members, primary, skip, stale }),
        1 => (osd, any::<bool>()).prop_map(|(osd, full)| Step::Full { osd, full }),
        1 => any::<bool>().prop_map(|create| Step::Pool { create }),
        1 => (5_u32..9, any::<bool>()).prop_map(|(bit, on)| Step::Flag { bit, on }),
        2 => (0_u64..700).prop_map(Step::Wait),
        1 => (0_u64..700).prop_map(Step::Suspend),
        3 => Just(Step::Propose),
        4 => Just(Step::Commit),
    ]
}

struct World {
    state: MapState,
    now: Now,
    /// The incarnation of each OSD's store.
    stores: Vec<Incarnation>,
    boots: u64,
    in_flight: Option<u64>,
    /// All incarnations that ever existed.
    known: BTreeSet<Incarnation>,
    pools: BTreeSet<PoolId>,
}

impl World {
    fn new() -> World {
        let state = cluster(OSDS);
        let stores: Vec<Incarnation> = (0..OSDS).map(|osd| boot_of(osd, 0).incarnation).collect();
        let known = stores.iter().copied().collect();
        World { state, now: at(0), stores, boots: 100, in_flight: None, known, pools: [POOL].into() }
    }

    fn take(&mut self, step: Step) {
        let now = self.now;
        match step {
            Step::Boot { osd, wipe } => {
                self.boots += 1;
                if wipe {
                    self.stores[osd as usize] = Incarnation(Uuid::from_u128(0x1000 + u128::from(self.boots)));
                    self.known.insert(self.stores[osd as usize]);
                }
                let incarnation = self.stores[osd as usize];
                self.state.handle(now, MapEvent::Boot(OsdBoot { incarnation, ..boot_of(osd, self.boots) }));
            }
            Step::Failure { reporter, target, silent_s, refused } => {
                let nonce = self.state.working.osds.get(&OsdId(target)).map_or(0, |info| info.boot_nonce);
                let report = OsdFailure { boot_nonce: nonce, ..failure(target, silent_s * 1000, refused) };
                self.state.handle(now, MapEvent::Failure { reporter: OsdId(reporter), report });
            }
            Step::Down(osd) => self.state.mark_down(now, OsdId(osd)),
            Step::Lost(osd) => {
                let epoch = self.state.next_epoch();
                if let Some(info) = self.state.working.osds.get_mut(&OsdId(osd)).filter(|info| !info.up) {
                    info.lost_at = epoch;
                    self.state.changes.osds.insert(OsdId(osd));
                }
            }
            Step::Out(osd) => {
                if let Some(info) = self.state.working.osds.get_mut(&OsdId(osd)) {
                    info.weight = 0;
                    self.state.changes.osds.insert(OsdId(osd));
                }
            }
            Step::Cas { by, seed, members, primary, skip, stale } => {
                self.swap(by, seed, &members, primary, skip, stale)
            }
            Step::Full { osd, full } => {
                let available_bytes = if full { 1 } else { 90 };
                let stats = OsdStats { total_bytes: 100, available_bytes, ..OsdStats::default() };
                let report = StatsReport { osd: stats, pgs: Vec::new(), starting: false };
                self.state.handle(now, MapEvent::Stats { osd: OsdId(osd), report });
            }
            Step::Pool { create: true } => {
                let name = format!("pool{}", self.pools.len());
                let id = self.state.add_pool(Pool::replicated(&name, 2, 1, 0, 4, Epoch(0)));
                assert!(self.pools.insert(id), "{id} was used before");
            }
            Step::Pool { create: false } => {
                let last = self.state.working.pools.keys().next_back().copied().filter(|id| *id != POOL);
                if let Some(id) = last {
                    self.state.remove_pool(id);
                }
            }
            Step::Flag { bit, on: true } => self.state.set_flags(1 << bit),
            Step::Flag { bit, on: false } => self.state.clear_flags(1 << bit),
            Step::Wait(seconds) => {
                let from = self.now.mono_ms;
                self.now = at(from + seconds * 1000);
                pass(&mut self.state, from, self.now.mono_ms);
            }
            Step::Suspend(seconds) => {
                self.now = at(now.mono_ms + seconds * 1000);
                self.state.handle(self.now, MapEvent::Tick);
            }
            Step::Propose => {
                if let Some(proposal) = self.state.propose(now) {
                    if let Some(inc) = &proposal.incremental {
                        let made = self.state.map().apply(inc).unwrap();
                        assert_eq!(&made, &self.state.in_flight.as_ref().unwrap().1);
                    }
                    self.in_flight = Some(proposal.number);
                }
            }
            Step::Commit => {
                if let Some(number) = self.in_flight.take() {
                    self.state.on_committed(number);
                }
            }
        }
    }

    fn swap(&mut self, by: u32, seed: u32, members: &[u32], primary: u32, skip: u64, stale: bool) {
        let pg = PgId::new(POOL, seed);
        let member = |osd: u32| Member { osd: OsdId(osd), incarnation: self.stores[osd as usize] };
        let seen = if stale { &self.state.committed } else { &self.state.working };
        let expected = seen.membership(pg).cloned();
        let interval = Interval(expected.as_ref().map_or(0, |e| e.interval.0) + skip);
        let proposed = PgMembership {
            interval,
            primary: OsdId(primary),
            in_sync: members.iter().map(|osd| member(*osd)).collect(),
        };
        let cas = PgCas { tid: 1, pg, proposer: member(by), expected, proposed };
        self.state.handle(self.now, MapEvent::Cas { origin: ConnToken(0), osd: OsdId(by), cas });
    }
}

/// Checks every map, and each pair of consecutive maps.
fn check(before: &OsdMap, after: &OsdMap, known: &BTreeSet<Incarnation>) {
    assert!(after.epoch >= before.epoch && after.pool_max >= before.pool_max);
    assert!(after.pools.keys().all(|id| *id <= after.pool_max));
    let min_size = after.pools[&POOL].min_size as usize;
    for seed in 0..8 {
        let pg = PgId::new(POOL, seed);
        let (old, new) = (before.membership(pg), after.membership(pg));
        assert!(old.is_none() || new.is_some(), "a pg does not come undone");
        let Some(new) = new else { continue };
        assert!(!new.in_sync.is_empty() && new.in_sync.iter().any(|m| m.osd == new.primary), "{new:?}");
        let osds: BTreeSet<OsdId> = new.in_sync.iter().map(|m| m.osd).collect();
        assert_eq!(osds.len(), new.in_sync.len());
        assert!(new.in_sync.iter().all(|m| known.contains(&m.incarnation)));
        let Some(old) = old else {
            assert_eq!(new.interval, Interval(1));
            continue;
        };
        if old == new {
            continue;
        }
        assert_eq!(new.interval, old.interval.next(), "one swap at a time, upwards");
        assert!(new.in_sync.iter().any(|m| old.is_in_sync(*m)), "somebody who knows everything stays");
        let given_up =
            old.in_sync.iter().any(|m| after.osds.get(&m.osd).is_none_or(|info| info.lost_at > Epoch(0)));
        assert!(
            new.in_sync.len() >= old.in_sync.len().min(min_size) || given_up,
            "{old:?} shrank to {new:?} with min_size {min_size}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_order_of_events_breaks_the_map(steps in proptest::collection::vec(step(), 1..120)) {
        let mut world = World::new();
        for step in steps {
            let (before, shown) = (world.state.working.clone(), world.state.map().clone());
            world.take(step);
            check(&before, &world.state.working, &world.known);
            prop_assert!(world.state.map().epoch.0 - shown.epoch.0 <= 1);
        }
    }
}

#[test]
fn random_swaps_do_get_through() {
    // Guards the property above against runs in which every step is refused.
    let mut world = World::new();
    let up = up(&world.state, 0);
    world.take(Step::Cas { by: up[0], seed: 0, members: up.clone(), primary: up[0], skip: 1, stale: false });
    world.take(Step::Cas {
        by: up[0],
        seed: 0,
        members: up[..2].to_vec(),
        primary: up[0],
        skip: 1,
        stale: false,
    });
    assert_eq!(world.state.working.interval(PgId::new(POOL, 0)), Interval(2));
}
