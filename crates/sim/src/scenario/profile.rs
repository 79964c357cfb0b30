//! The kinds of runs, of which each seed has one.
//!
//! One kind of run can't cover everything: many short ones find common defects, few long ones reach distant bounds. Each
//! seed's profile is drawn from the seed, and modifies the scenario that the seed has without it ([`Scenario::of`]).

use super::{Fault, PoolSpec, Scenario};
use crate::random::{Random, Stream};
use crate::schedule::{MILLI, SECOND};
use nacre_pg::log::DupLimits;
use std::fmt;
use std::str::FromStr;

macro_rules! profiles {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $usual:literal, $long:literal;)*) => {
        /// Kinds of run.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Profile { $($(#[$doc])* $name,)* }

        impl Profile {
            /// All profiles.
            pub const ALL: &[Profile] = &[$(Profile::$name,)*];

            /// The name in reports and options.
            pub fn name(self) -> &'static str {
                match self { $(Profile::$name => $text,)* }
            }

            /// The number of seeds in 100 that have it: usually, or in long tests.
            fn share(self, long: bool) -> u64 {
                match self { $(Profile::$name => if long { $long } else { $usual },)* }
            }
        }
    };
}

profiles! {
    /// Any scenario of [`Scenario::of`].
    Common = "common", 55, 0;
    /// Clients use a pool through a cache tier, whose mode and overlay change.
    Tier = "tier", 6, 6;
    /// Few kinds of fault for a short time.
    Quick = "quick", 24, 0;
    /// Many requests on very few objects, with small logs and few dup records.
    Hot = "hot", 12, 15;
    /// More OSDs, pools and PGs.
    Wide = "wide", 3, 15;
    /// Faults for minutes.
    Long = "long", 0, 28;
    /// Many objects in many pieces, on a slow network.
    Large = "large", 0, 18;
    /// Objects, omaps or pools of real sizes, under production's bounds.
    Huge = "huge", 0, 9;
    /// Processes with striped objects ([`crate::program::striper`]).
    Striper = "striper", 0, 9;
    /// Processes of the caller's program, such as gateways: requests of usual sizes. The simulator alone has none.
    Gateway = "gateway", 0, 0;
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Profile {
    type Err = String;

    fn from_str(s: &str) -> Result<Profile, String> {
        let found = Profile::ALL.iter().copied().find(|profile| profile.name() == s);
        found.ok_or_else(|| format!("no profile is called '{s}' (--list names them)"))
    }
}

impl Profile {
    /// The seed's profile, from those of long tests or from the usual ones.
    pub fn of(seed: u64, long: bool) -> Profile {
        let mut at = Random::new(seed, Stream::Profile).range(0, 100);
        let found = Profile::ALL.iter().copied().find(|profile| {
            let share = profile.share(long);
            let is_here = at < share;
            at = at.wrapping_sub(share);
            is_here
        });
        found.unwrap_or(Profile::Common)
    }

    /// Whether it can be drawn, in long tests or usually.
    pub fn is_drawn(self, long: bool) -> bool {
        self.share(long) > 0
    }

    /// Modifies a scenario.
    pub fn adjust_scenario(self, scenario: Scenario) -> Scenario {
        let mut random = Random::new(scenario.seed, Stream::Profile);
        // Skips the bits that determined the profile.
        random.bits();
        let mut shaped = Scenario { profile: self, ..scenario };
        match self {
            Profile::Common => {}
            Profile::Quick => quick(&mut shaped, &mut random),
            Profile::Hot => hot(&mut shaped, &mut random),
            Profile::Wide => wide(&mut shaped, &mut random),
            Profile::Long => long(&mut shaped, &mut random),
            Profile::Large => large(&mut shaped, &mut random),
            Profile::Huge => huge(&mut shaped, &mut random),
            Profile::Striper => striper(&mut shaped, &mut random),
            Profile::Tier => tier(&mut shaped, &mut random),
            Profile::Gateway => gateway(&mut shaped, &mut random),
        }
        shaped
    }
}

fn quick(scenario: &mut Scenario, random: &mut Random) {
    let count = random.range(1, 4);
    scenario.faults = (0..count).filter_map(|_| random.pick(Fault::USUAL).copied()).collect();
    scenario.trouble = random.range(6, 16) * SECOND;
    scenario.requests = 120;
    scenario.think = random.range(20, 80) * MILLI;
    scenario.fault_rate = random.range(150, 500) as u32;
}

fn hot(scenario: &mut Scenario, random: &mut Random) {
    scenario.osds = scenario.osds.min(5);
    // The search for an order of requests can't handle more concurrent requests on one object.
    scenario.clients = random.range(3, 5) as u32;
    scenario.objects = random.range(3, 6) as u32;
    scenario.pools = vec![PoolSpec { pg_num: random.range(1, 3) as u32, ..scenario.pools[0] }];
    scenario.outstanding = random.range(3, 6) as usize;
    scenario.think = random.range(15, 60) * MILLI;
    scenario.requests = 600;
    scenario.trouble = random.range(15, 30) * SECOND;
    scenario.log_entries = random.range(2, 8) as usize;
    scenario.session_expiry = random.range(4, 20) * SECOND;
    scenario.dups = few_dups(random);
    scenario.max_inflight_writes = random.range(1, 6) as usize;
    scenario.max_waiting = random.range(3, 12) as usize;
}

fn few_dups(random: &mut Random) -> DupLimits {
    DupLimits {
        per_client: random.range(2, 16) as usize,
        total: random.range(4, 40) as usize,
        clients: random.range(1, 4) as usize,
        ..DupLimits::default()
    }
}

fn wide(scenario: &mut Scenario, random: &mut Random) {
    scenario.osds = random.range(7, 11) as u32;
    scenario.pools = (0..random.range(2, 4))
        .map(|_| {
            let size = random.range(2, 5) as u32;
            PoolSpec { size, min_size: size / 2 + size % 2, pg_num: random.range(3, 10) as u32 }
        })
        .collect();
    scenario.objects = random.range(8, 40) as u32;
    scenario.trouble = random.range(8, 20) * SECOND;
}

fn long(scenario: &mut Scenario, random: &mut Random) {
    scenario.trouble = random.range(200, 500) * SECOND;
    scenario.requests = 3_000;
    scenario.objects = random.range(10, 30) as u32;
    scenario.think = random.range(100, 400) * MILLI;
    scenario.session_expiry = random.range(10, 60) * SECOND;
    scenario.log_entries = random.range(3, 40) as usize;
    scenario.map_at_hand = random.range(5, 60) as u32;
    scenario.dups = few_dups(random);
}

fn large(scenario: &mut Scenario, random: &mut Random) {
    scenario.pools.truncate(1);
    scenario.objects = random.range(200, 800) as u32;
    scenario.requests = 4_000;
    scenario.clients = random.range(2, 5) as u32;
    scenario.outstanding = random.range(8, 30) as usize;
    scenario.think = random.range(10, 40) * MILLI;
    scenario.trouble = random.range(60, 120) * SECOND;
    scenario.log_entries = random.range(5, 60) as usize;
    scenario.push_bytes = random.range(8, 20) as usize;
    scenario.scan_objects = random.range(2, 20) as usize;
    scenario.bandwidth = random.range(50, 400) * 1_000;
}

/// Copies are made in full and in pieces: disks are lost, processes die, and transfers are interrupted.
fn huge(scenario: &mut Scenario, random: &mut Random) {
    let size = random.range(2, 4) as u32;
    scenario.osds = scenario.osds.clamp(size + 1, 5);
    scenario.pools =
        vec![PoolSpec { size, min_size: random.range(1, 3) as u32, pg_num: random.range(1, 3) as u32 }];
    if scenario.faults.contains(&Fault::PoolDelete) {
        // The last pool is kept.
        scenario.faults.insert(Fault::PoolCreate);
    }
    scenario.faults.extend([Fault::Crash, Fault::Partition, Fault::Reset]);
    scenario.faults.extend(random.pick(&[Fault::Wipe, Fault::Replace]));
    scenario.faults.extend(random.pick(&[Fault::Blackout, Fault::Restart, Fault::Pause]));
    scenario.fault_rate = random.range(60, 150) as u32;
    scenario.real_bounds = true;
    scenario.peer_queue_bytes = 256 << 20;
    scenario.peer_throttle_bytes = 100 << 20;
    scenario.bandwidth = random.range(200, 2_000) * 1_000_000;
    scenario.log_entries = random.range(20, 250) as usize;
    scenario.trouble = random.range(30, 50) * SECOND;
    match random.range(0, 3) {
        0 => huge_data(scenario, random),
        1 => huge_omap(scenario, random),
        _ => huge_pool(scenario, random),
    }
}

/// Objects of 64 MiB and more.
fn huge_data(scenario: &mut Scenario, random: &mut Random) {
    scenario.token_bytes = random.range(1 << 20, 3 << 19) as usize * 8;
    scenario.clients = 2;
    scenario.objects = 2;
    scenario.outstanding = 2;
    scenario.requests = 140;
    scenario.think = random.range(200, 600) * MILLI;
}

/// An omap of a million entries.
fn huge_omap(scenario: &mut Scenario, random: &mut Random) {
    scenario.batches = 220;
    scenario.clients = random.range(2, 4) as u32;
    scenario.outstanding = random.range(3, 7) as usize;
    scenario.requests = 360;
    scenario.think = random.range(40, 90) * MILLI;
}

/// Many thousand objects.
fn huge_pool(scenario: &mut Scenario, random: &mut Random) {
    scenario.objects = random.range(6_000, 8_000) as u32;
    scenario.clients = random.range(3, 5) as u32;
    scenario.outstanding = random.range(8, 30) as usize;
    scenario.requests = 11_000;
    scenario.think = random.range(3, 8) * MILLI;
}

/// Processes that are clients, beside a few requests of others. Faults that end, delay or refuse processes are frequent.
/// Faults by which an operator deletes acknowledged data, or that exceed the fault model, are excluded.
fn processes(scenario: &mut Scenario, random: &mut Random) {
    scenario.processes = random.range(2, 4) as u32;
    scenario.clients = random.range(1, 3) as u32;
    scenario.requests = 60;
    for pool in &mut scenario.pools {
        pool.pg_num = random.range(2, 9) as u32;
    }
    for left_out in [Fault::Damage, Fault::PoolDelete] {
        scenario.faults.remove(&left_out);
    }
    let own = [Fault::ClientStop, Fault::ClientPause, Fault::Fence, Fault::Ghost];
    scenario.faults.extend(own.into_iter().filter(|_| random.chance(600)));
}

/// Kinds of faults that destroy the last copy of something, or that concern single pools.
const NOT_TIER: &[Fault] = &[
    Fault::Damage,
    Fault::PoolDelete,
    Fault::PoolCreate,
    Fault::Restore,
    Fault::Full,
    Fault::Wipe,
    Fault::Replace,
];

fn tier(scenario: &mut Scenario, random: &mut Random) {
    scenario.pools.truncate(1);
    scenario.faults.retain(|fault| !NOT_TIER.contains(fault));
    scenario.faults.insert(Fault::Tier);
    let size = random.range(1, 4) as u32;
    let min_size = if size == 1 { 1 } else { random.range(1, u64::from(size) + 1) as u32 };
    scenario.cache = Some(PoolSpec { size, min_size, pg_num: 1 << random.range(0, 3) });
    scenario.objects = random.range(2, 12) as u32;
    if size == 1 && random.chance(400) {
        scenario.faults.insert(Fault::CacheLoss);
    }
}

fn gateway(scenario: &mut Scenario, random: &mut Random) {
    processes(scenario, random);
    // A restored map store forgets the blocklist; restoring that is the operator's task.
    scenario.faults.remove(&Fault::Restore);
    scenario.push_bytes = random.range(1, 17) as usize * 1024;
    scenario.peer_throttle_bytes = 1 << 20;
}

fn striper(scenario: &mut Scenario, random: &mut Random) {
    processes(scenario, random);
    // Pieces have real sizes.
    scenario.push_bytes = random.range(16, 65) as usize * 1024;
    scenario.peer_queue_bytes = if random.chance(300) { 512 << 10 } else { 4 << 20 };
    scenario.peer_throttle_bytes = 1 << 20;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_have_each_profile_as_often_as_it_is_meant() {
        for long in [false, true] {
            assert_eq!(Profile::ALL.iter().map(|profile| profile.share(long)).sum::<u64>(), 100);
            for profile in Profile::ALL {
                let count = (1..=2000).filter(|seed| Profile::of(*seed, long) == *profile).count() as u64;
                assert_eq!(count > 0, profile.is_drawn(long));
                assert!(count.abs_diff(20 * profile.share(long)) < 100, "{profile}: {count} of 2000");
            }
        }
    }

    #[test]
    fn the_common_profile_changes_nothing() {
        let scenario = Scenario::of(7);
        assert_eq!(Profile::Common.adjust_scenario(scenario.clone()), scenario);
        assert_ne!(Profile::Hot.adjust_scenario(scenario.clone()), scenario);
        assert_eq!("hot".parse(), Ok(Profile::Hot));
        assert!("nothing".parse::<Profile>().is_err());
    }
}
