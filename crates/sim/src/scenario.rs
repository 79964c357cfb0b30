//! The scenario of a seed: the size of the cluster, the faults and their frequency.
//!
//! A scenario is plain data, drawn from the seed, so that a failing one can be reduced: [`Scenario::without`] removes a kind
//! of fault and leaves everything else unchanged.

mod breach;
pub mod profile;

use crate::client::batches::{ENTRIES, KEY_BYTES};
use crate::client::requests::TOKEN_BYTES;
use crate::monitor::{FSID, Publishing};
use crate::mutation::Mutation;
use crate::osd::OsdSettings;
use crate::random::{Random, Stream};
use crate::schedule::{MICRO, MILLI, Nanos, SECOND};
use crate::sessions::SessionSettings;
use crate::stalls::SHARDS;
use nacre_common::config::ConfigBuilder;
use nacre_crush::CrushMap;
use nacre_mon::logic::Tuning;
use nacre_pg::PgSettings;
use nacre_pg::heartbeat::HeartbeatSettings;
use nacre_pg::lease::LeaseSettings;
use nacre_pg::log::DupLimits;
use nacre_session::Rules;
use nacre_session::receive::FrameLimits;
use nacre_shard::shared::ShardSettings;
use nacre_types::PoolId;
use nacre_types::ids::{EntityName, OsdId};
use nacre_types::msg::KV_ENTRY_OVERHEAD_BYTES;
use nacre_types::osdmap::OsdMap;
use nacre_types::pool::{CacheMode, HitSetKind, Pool, flag};
use profile::Profile;
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The pool with huge contents, in runs with real sizes.
pub const HUGE_POOL: PoolId = PoolId(1);

macro_rules! faults {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $mean:expr;)*) => {
        /// Kinds of faults.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Fault { $($(#[$doc])* $name,)* }

        impl Fault {
            /// All kinds.
            pub const ALL: &[Fault] = &[$(Fault::$name,)*];

            /// The name in reports and options.
            pub fn name(self) -> &'static str {
                match self { $(Fault::$name => $text,)* }
            }

            /// The usual time between two faults of the kind.
            fn usual_interval(self) -> Nanos {
                match self { $(Fault::$name => $mean,)* }
            }
        }
    };
}

faults! {
    /// A connection breaks; lossy sessions lose the messages in transit, lossless ones continue.
    Reset = "reset", 2 * SECOND;
    /// Messages of a broken lossy session arrive late.
    Ghost = "ghost", 5 * SECOND;
    /// Some messages are delayed for a long time.
    Delay = "delay", 10 * SECOND;
    /// Two sides receive nothing from each other.
    Partition = "partition", 20 * SECOND;
    /// One direction is interrupted.
    OneWay = "one-way", 20 * SECOND;
    /// OSDs lose contact with the map authority, but not with one another.
    MonPartition = "mon-partition", 20 * SECOND;
    /// Clocks drift at the bound and change direction.
    Drift = "drift", 15 * SECOND;
    /// An OSD dies and comes back; unflushed writes may be gone.
    Crash = "crash", 15 * SECOND;
    /// Every OSD dies at once.
    Blackout = "blackout", 60 * SECOND;
    /// An OSD shuts down in order and starts again.
    Restart = "restart", 30 * SECOND;
    /// An OSD dies and comes back with an empty disk.
    Wipe = "wipe", 25 * SECOND;
    /// A disk takes a long time to flush.
    SlowDisk = "slow-disk", 10 * SECOND;
    /// The map authority dies; a commit in progress may or may not be done.
    MonCrash = "mon-crash", 15 * SECOND;
    /// A commit of the map authority takes so long that its proposers give up.
    SlowCas = "slow-cas", 5 * SECOND;
    /// The MapStore is restored from an older copy.
    Restore = "restore", 40 * SECOND;
    /// OSDs are marked out and in.
    OutIn = "out-in", 15 * SECOND;
    /// OSDs are reweighted.
    Reweight = "reweight", 15 * SECOND;
    /// Weights in the CRUSH map change.
    Crush = "crush", 20 * SECOND;
    /// A pool's size or min_size changes.
    PoolSize = "pool-size", 20 * SECOND;
    /// Pools are created.
    PoolCreate = "pool-create", 25 * SECOND;
    /// Pools are deleted.
    PoolDelete = "pool-delete", 40 * SECOND;
    /// A client sends and receives nothing for a long time, and then continues.
    ClientPause = "client-pause", 15 * SECOND;
    /// A client dies.
    ClientStop = "client-stop", 30 * SECOND;
    /// A store fills up.
    Full = "full", 20 * SECOND;
    /// An object becomes unreadable in one copy.
    Damage = "damage", 3 * SECOND;
    /// An operator, or another client, puts a client's session on the blocklist.
    Fence = "fence", 10 * SECOND;
    /// Maps are late for some receivers, or are lost.
    MapGap = "map-gap", 12 * SECOND;
    /// An OSD's process stops in the middle of a turn (SIGSTOP), and continues.
    Pause = "pause", 15 * SECOND;
    /// A wall clock jumps.
    WallJump = "wall-jump", 15 * SECOND;
    /// A disk hangs; if that lasts, its OSD ends itself.
    StuckDisk = "stuck-disk", 20 * SECOND;
    /// An OSD dies, and another disk comes back under its id.
    Replace = "replace", 40 * SECOND;
    /// The thread of a shard, or of control, stalls at a call in the middle of a turn; the rest of its OSD continues.
    Stall = "stall", 500 * MILLI;
    /// The mode of a cache tier changes, its overlay is removed or set.
    Tier = "tier", 8 * SECOND;
    /// A cache loses all copies of PGs; the operator accepts that eventually.
    CacheLoss = "cache-loss", 20 * SECOND;
}

impl Fault {
    /// The kinds that every scenario can have.
    pub const USUAL: &[Fault] = Fault::ALL.split_at(Fault::Tier as usize).0;
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(s: &str) -> Result<Fault, String> {
        Fault::ALL
            .iter()
            .copied()
            .find(|f| f.name() == s)
            .ok_or_else(|| format!("no kind of fault is called '{s}'"))
    }
}

/// A pool that exists from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSpec {
    /// The number of copies.
    pub size: u32,
    /// The minimum number of copies for I/O.
    pub min_size: u32,
    /// The number of PGs.
    pub pg_num: u32,
}

/// One run's parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// The seed that it was drawn from.
    pub seed: u64,
    /// The kind of run.
    pub profile: Profile,
    /// The number of OSDs, each on a host of its own.
    pub osds: u32,
    /// The pools.
    pub pools: Vec<PoolSpec>,
    /// A cache tier of the first pool.
    pub cache: Option<PoolSpec>,
    /// The number of clients.
    pub clients: u32,
    /// Distinct objects per pool.
    pub objects: u32,
    /// The maximum number of outstanding requests of a client.
    pub outstanding: usize,
    /// Mean time between a client's requests.
    pub think: Nanos,
    /// Requests of all clients while faults occur.
    pub requests: u32,
    /// The time in which faults occur.
    pub trouble: Nanos,
    /// The kinds of faults.
    pub faults: BTreeSet<Fault>,
    /// The frequency of faults, in percent of the usual one.
    pub fault_rate: u32,
    /// The longest duration of a flush.
    pub flush: Nanos,
    /// The longest duration of a map commit.
    pub commit: Nanos,
    /// Clocks drift by at most this.
    pub drift_ppm: u64,
    /// A restored MapStore is at most this many commits old.
    pub restore_depth: usize,
    /// The minimum number of log entries that a PG keeps: few, so that backfill happens too.
    pub log_entries: usize,
    /// Sessions without contact expire after this time.
    pub session_expiry: Nanos,
    /// Whether clients continue while the cluster heals.
    pub busy: bool,
    /// Bytes that may wait for a peer or client of an OSD.
    pub peer_queue_bytes: usize,
    /// One in so many messages of OSDs finds its queue full, if `peer_queue_bytes` are few.
    pub full_one_in: u64,
    /// Bytes of decoded messages of peers that an OSD may process at a time.
    pub peer_throttle_bytes: u64,
    /// How long sessions between OSDs wait for a peer that is away.
    pub peer_timeout: Nanos,
    /// Limits of a PG's dup records.
    pub dups: DupLimits,
    /// The maximum number of operations that wait on a PG.
    pub max_waiting: usize,
    /// The maximum number of writes of a PG in flight.
    pub max_inflight_writes: usize,
    /// Bytes of an object in one message: few, so that objects are sent in several pieces.
    pub push_bytes: usize,
    /// Objects that a backfill scans in one step.
    pub scan_objects: usize,
    /// Incremental maps in one message.
    pub map_batch: usize,
    /// Available incremental maps: a receiver that is further behind gets a full map.
    pub map_at_hand: u32,
    /// Bytes that a machine can send in a second; 0 for no limit.
    pub bandwidth: u64,
    /// Bytes of the data of a token.
    pub token_bytes: usize,
    /// Batches of omap entries for one object ([`crate::client::batches`]).
    pub batches: u32,
    /// Whether messages, pieces and scans have production's bounds.
    pub real_bounds: bool,
    /// The number of processes that are clients, with the profile's program.
    pub processes: u32,
    /// The number of stalls in a hundred that last at least as long as leases.
    pub long_stalls: u32,
}

/// The first of the kinds that are drawn separately, so that earlier seeds keep their scenarios.
const LATER: Fault = Fault::MapGap;
/// The number of seeds in a thousand that have each of them.
const LATER_SHARE: u32 = 250;
/// Bytes that may wait for a peer if the queue is not meant to fill.
const WIDE_QUEUE: usize = 1 << 20;
/// The maximum size of a log entry in a message, if requests' answers are short.
const LOG_ENTRY: usize = 64;
/// The longest frames between OSDs.
const LIMITS: FrameLimits = FrameLimits { meta_bytes: 1 << 20, data_bytes: 1 << 20 };
/// The same as in production (`ms_max_frame_meta_bytes`, `ms_max_frame_data_bytes`).
const REAL_LIMITS: FrameLimits = FrameLimits { meta_bytes: 32 << 20, data_bytes: 256 << 20 };
/// Bytes of messages that may be processed if the throttle is not meant to fill.
const WIDE_THROTTLE: u64 = 8 << 20;
/// Bytes that may wait for a peer if messages have real sizes.
const REAL_QUEUE: usize = 256 << 20;
/// Bytes that an OSD reserves for a write in addition to the request's data.
const WRITE_OVERHEAD: u64 = 64 << 10;
/// The usual time between two creations, or deletions, of pools if sizes are real: these runs are short.
const HUGE_POOLS: Nanos = 12 * SECOND;
/// One in so many messages of a client finds its queue full.
const FULL_QUEUE: u64 = 200;

fn rules_of(mutation: Option<Mutation>) -> Rules {
    Rules { mutation: mutation.map_or(nacre_session::Mutation::None, Mutation::of_session) }
}

impl Scenario {
    /// The scenario of a seed in the common profile.
    pub fn of(seed: u64) -> Scenario {
        let mut random = Random::new(seed, Stream::Scenario);
        let osds = random.range(3, 7) as u32;
        let pools = (0..random.range(1, 3))
            .map(|_| {
                let size = *random.pick(&[1, 2, 2, 3, 3, 3, 3]).expect("invariant: the list is not empty");
                let min_size = if size == 1 { 1 } else { random.range(1, u64::from(size) + 1) as u32 };
                PoolSpec { size, min_size, pg_num: 1 << random.range(0, 3) }
            })
            .collect();
        // Few kinds at a time reach deeper states than all at once; some runs have all.
        let share = *random.pick(&[100, 250, 400, 700]).expect("invariant: the list is not empty");
        let (earlier, later) = Fault::USUAL.split_at(LATER as usize);
        let mut faults: BTreeSet<Fault> = earlier.iter().copied().filter(|_| random.chance(share)).collect();
        let mut chooser = Random::new(seed, Stream::LaterFaults);
        faults.extend(later.iter().copied().filter(|_| chooser.chance(LATER_SHARE)));
        Scenario {
            seed,
            profile: Profile::Common,
            osds,
            pools,
            cache: None,
            clients: random.range(1, 5) as u32,
            objects: random.range(2, 9) as u32,
            outstanding: random.range(1, 6) as usize,
            think: random.range(20, 200) * MILLI,
            requests: 300,
            trouble: random.range(20, 60) * SECOND,
            faults,
            fault_rate: random.range(50, 250) as u32,
            flush: random.range(200, 8_000) * MICRO,
            commit: random.range(200, 10_000) * MICRO,
            drift_ppm: 200,
            restore_depth: 40,
            log_entries: random.range(3, 60) as usize,
            session_expiry: random.range(25, 200) * SECOND,
            busy: random.chance(500),
            peer_queue_bytes: if random.chance(300) { 8 << 10 } else { WIDE_QUEUE },
            full_one_in: 400,
            peer_throttle_bytes: if random.chance(300) { 16 << 10 } else { 1 << 20 },
            peer_timeout: random.range(10, 60) * SECOND,
            dups: DupLimits::default(),
            max_waiting: 200,
            max_inflight_writes: 16,
            push_bytes: 24,
            scan_objects: 3,
            map_batch: 3,
            map_at_hand: 30,
            bandwidth: 0,
            token_bytes: TOKEN_BYTES,
            batches: 0,
            real_bounds: false,
            processes: 0,
            long_stalls: 7,
        }
    }

    /// The settings of an OSD's machines.
    pub fn settings(&self, osd: OsdId, mutation: Option<Mutation>) -> OsdSettings {
        let config = ConfigBuilder::new(EntityName::osd(osd))
            .set("osd_op_num_shards", SHARDS.to_string())
            .set("osd_max_backfills", "2")
            .set("osd_recovery_max_active", "2")
            .set("osd_beacon_report_interval", "2")
            .set("osd_heartbeat_min_peers", "3")
            .set("crush_location", format!("root=default host=host{}", osd.0))
            .build();
        let config = config.expect("invariant: these options have these values");
        let mut pg = PgSettings {
            min_log_entries: self.log_entries,
            max_log_entries: 4 * self.log_entries,
            max_waiting_ops: self.max_waiting,
            max_waiting_inactive: 4,
            max_inflight_writes: self.max_inflight_writes,
            max_recoveries: 2,
            push_bytes: self.push_bytes,
            scan_objects: self.scan_objects,
            cas_retry_ns: SECOND,
            retry_ns: SECOND,
            session_expiry_ns: self.session_expiry,
            dups: self.dups,
            mutation: mutation.map_or(nacre_pg::Mutation::None, Mutation::of_pg),
        };
        if self.real_bounds {
            let real = ShardSettings::of(&config.snapshot()).pg;
            pg = PgSettings {
                push_bytes: real.push_bytes,
                scan_objects: real.scan_objects,
                max_waiting_ops: real.max_waiting_ops,
                max_waiting_inactive: real.max_waiting_inactive,
                max_inflight_writes: real.max_inflight_writes,
                ..pg
            };
        }
        let pg_log_bytes = pg.max_log_entries * LOG_ENTRY;
        let shards = ShardSettings {
            pg,
            heartbeat: HeartbeatSettings {
                interval_ns: SECOND,
                grace_ns: 3 * SECOND,
                report_interval_ns: SECOND,
            },
            lease: LeaseSettings { term_ns: 2 * SECOND, drift_ppm: 500 },
        };
        let sessions = SessionSettings {
            // As in production, a whole log fits: it is sent in one message, and a primary that can't send it never fills the member.
            queue_bytes: self.peer_queue_bytes.max(pg_log_bytes),
            limits: if self.real_bounds { REAL_LIMITS } else { LIMITS },
            full_one_in: if self.peer_queue_bytes < WIDE_QUEUE { self.full_one_in } else { 0 },
            throttle: (self.peer_throttle_bytes, 0),
            client_throttle: (self.wide_throttle(), 0),
            timeout: self.peer_timeout,
            rules: rules_of(mutation),
            trace: false,
        };
        let osd_sessions = self.clients..self.clients + self.osds;
        OsdSettings { shards, sessions, config, osd_sessions, real_bounds: self.real_bounds }
    }

    /// Bytes of messages that may be processed if the throttle is not meant to fill.
    fn wide_throttle(&self) -> u64 {
        if self.real_bounds { 256 << 20 } else { WIDE_THROTTLE }
    }

    /// The settings of clients' connections.
    pub fn client_sessions(&self, mutation: Option<Mutation>) -> SessionSettings {
        SessionSettings {
            queue_bytes: if self.real_bounds { REAL_QUEUE } else { WIDE_QUEUE },
            limits: if self.real_bounds { REAL_LIMITS } else { LIMITS },
            full_one_in: FULL_QUEUE,
            throttle: (self.wide_throttle(), 0),
            client_throttle: (self.wide_throttle(), 0),
            timeout: self.peer_timeout,
            rules: rules_of(mutation),
            trace: false,
        }
    }

    /// The settings of the map authority's connections.
    pub fn mon_sessions(&self, mutation: Option<Mutation>) -> SessionSettings {
        SessionSettings { full_one_in: 0, ..self.client_sessions(mutation) }
    }

    /// The options of the map authority.
    pub fn tuning(&self) -> Tuning {
        Tuning {
            heartbeat_grace_ms: 3_000,
            report_timeout_ms: 20_000,
            down_out_interval_ms: 15_000,
            crush_initial_weight: 1.0,
            min_down_reporters: 2,
            ..Tuning::default()
        }
    }

    /// How the map authority publishes.
    pub fn publishing(&self) -> Publishing {
        Publishing { batch: self.map_batch, at_hand: self.map_at_hand }
    }

    /// Makes shards of a small cluster stall for longer than their leases last, while clients continue to send requests.
    fn outlast_leases(&mut self) {
        (self.osds, self.clients, self.objects) = (self.osds.min(4), self.clients.max(3), 8);
        (self.think, self.outstanding) = (500 * MILLI, 16);
        self.long_stalls = 30;
    }

    /// The maximum number of events of the run; more mean that something loops.
    pub fn max_events(&self) -> u64 {
        3_000_000 + self.trouble / SECOND * 50_000
    }

    /// The map before any OSD has booted.
    pub fn first_map(&self) -> OsdMap {
        let crush = CrushMap::new_cluster("host").expect("invariant: 'host' is a type of new maps");
        let mut map = OsdMap::new(FSID, 0, crush);
        for (number, spec) in self.pools.iter().enumerate() {
            let id = PoolId(number as i64 + 1);
            let name = format!("pool{}", id.0);
            let pool = Pool::replicated(&name, spec.size, spec.min_size, 0, spec.pg_num, map.epoch);
            map.pgs.insert(id, Arc::new(vec![None; spec.pg_num as usize]));
            map.pools.insert(id, Arc::new(pool));
            map.pool_max = id;
        }
        if let Some(spec) = &self.cache {
            self.add_cache(&mut map, spec);
        }
        map
    }

    /// Adds a cache of the first pool, as its overlay.
    fn add_cache(&self, map: &mut OsdMap, spec: &PoolSpec) {
        let mut random = Random::new(self.seed, Stream::Cache);
        let (base, cache) = (PoolId(1), PoolId(map.pool_max.0 + 1));
        let mut pool = Pool::replicated("cache", spec.size, spec.min_size, 0, spec.pg_num, map.epoch);
        let modes = [CacheMode::Writeback, CacheMode::Writeback, CacheMode::Readproxy, CacheMode::Proxy];
        let tiering = &mut pool.tiering;
        tiering.tier_of = Some(base);
        tiering.cache_mode = *random.pick(&modes).expect("invariant: the list is not empty");
        tiering.target_max_objects = random.range(1, 12);
        tiering.dirty_ratio_micro =
            *random.pick(&[0, 300_000, 900_000]).expect("invariant: the list is not empty");
        if random.chance(500) {
            tiering.hit_set = HitSetKind::ExplicitObject;
            (tiering.hit_set_period_s, tiering.hit_set_count) = (random.range(1, 10) as u32, 3);
            tiering.min_read_recency_for_promote = random.range(0, 3) as u32;
            tiering.min_write_recency_for_promote = random.range(0, 3) as u32;
        }
        tiering.overlay_epoch = map.epoch;
        if random.chance(400) {
            pool.flags |= flag::CACHE_WRITE_THROUGH;
        }
        if random.chance(400) {
            pool.flags |= flag::CACHE_DIRTY_LOG;
        }
        map.pgs.insert(cache, Arc::new(vec![None; spec.pg_num as usize]));
        map.pools.insert(cache, Arc::new(pool));
        map.pool_max = cache;
        if let Some(pool) = map.pools.get_mut(&base).map(Arc::make_mut) {
            pool.tiering.tiers = vec![cache];
            (pool.tiering.read_tier, pool.tiering.write_tier) = (Some(cache), Some(cache));
            pool.tiering.overlay_epoch = map.epoch;
        }
    }

    /// The same without one kind of fault.
    pub fn without(&self, fault: Fault) -> Scenario {
        let mut less = self.clone();
        less.faults.remove(&fault);
        less
    }

    /// The same with only these kinds of faults.
    pub fn with_only(&self, faults: &[Fault]) -> Scenario {
        Scenario { faults: faults.iter().copied().collect(), ..self.clone() }
    }

    /// The mean time between two faults of a kind; `None` if the kind does not occur.
    pub fn interval(&self, fault: Fault) -> Option<Nanos> {
        let usual = match fault {
            Fault::PoolCreate | Fault::PoolDelete if self.real_bounds => HUGE_POOLS,
            _ => fault.usual_interval(),
        };
        self.faults.contains(&fault).then(|| usual * 100 / u64::from(self.fault_rate.max(1)))
    }

    /// The maximum free bytes of a disk that fills up, if it contains `used` bytes. OSDs keep an amount free that grows with
    /// the disk's size; the rest is used up by a few requests.
    pub fn max_free_bytes(&self, used: u64) -> u64 {
        if !self.real_bounds {
            return 200;
        }
        let entry = KV_ENTRY_OVERHEAD_BYTES + KEY_BYTES + size_of::<u64>() * 2;
        let request = self.token_bytes.max(if self.batches > 0 { ENTRIES as usize * entry } else { 0 });
        used / 8 + 3 * (request as u64 + WRITE_OVERHEAD)
    }

    /// The kinds of faults as a value of an option.
    pub fn fault_list(&self) -> String {
        let names: Vec<_> = self.faults.iter().map(|f| f.name()).collect();
        names.join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::BACKFILL_SCAN_OBJECTS;

    #[test]
    fn huge_runs_have_the_bounds_of_production() {
        let huge: Vec<_> = (0..200).map(|seed| Profile::Huge.adjust_scenario(Scenario::of(seed))).collect();
        for scenario in &huge {
            let settings = scenario.settings(OsdId(0), None);
            let pg = settings.shards.pg;
            assert_eq!((pg.push_bytes, pg.scan_objects), (1 << 20, BACKFILL_SCAN_OBJECTS));
            let ms = &settings.config.snapshot().ms;
            let limits = settings.sessions.limits;
            assert_eq!(limits.meta_bytes, ms.ms_max_frame_meta_bytes);
            assert_eq!(limits.data_bytes, ms.ms_max_frame_data_bytes);
            assert_eq!(settings.sessions.queue_bytes as u64, ms.ms_out_queue_bytes);
            assert_eq!(settings.sessions.throttle.0, ms.ms_dispatch_throttle_bytes);
            for used in [0, 300 << 20] {
                let (room, total) = (scenario.max_free_bytes(used), used + scenario.max_free_bytes(used));
                assert!(room > total / 20 + total / 64, "seed {}: every disk is full at once", scenario.seed);
            }
        }
        let count = |is: &dyn Fn(&Scenario) -> bool| huge.iter().filter(|scenario| is(scenario)).count();
        assert!(count(&|scenario| scenario.token_bytes > TOKEN_BYTES) > 40);
        assert!(count(&|scenario| scenario.batches > 0) > 40);
        assert!(count(&|scenario| scenario.objects > 1_000) > 40);
    }

    #[test]
    fn a_log_fits_into_a_queue() {
        let mut filled_easily = 0;
        for scenario in (0..500).map(Scenario::of) {
            let settings = scenario.settings(OsdId(0), None);
            let (log, queue) = (settings.shards.pg.max_log_entries, settings.sessions.queue_bytes);
            assert!(
                queue >= log * LOG_ENTRY,
                "seed {}: {log} entries, a queue of {queue} bytes",
                scenario.seed
            );
            filled_easily += usize::from(queue <= 16 << 10);
        }
        assert!(filled_easily > 100);
    }

    #[test]
    fn seeds_vary_sizes_and_faults() {
        let scenarios: Vec<_> = (0..200).map(Scenario::of).collect();
        assert_eq!(scenarios[7], Scenario::of(7));
        for osds in 3..7 {
            assert!(scenarios.iter().any(|s| s.osds == osds));
        }
        for fault in Fault::USUAL {
            let with = scenarios.iter().filter(|s| s.faults.contains(fault)).count();
            assert!((20..180).contains(&with), "{fault} in {with} of 200 seeds");
            assert_eq!(fault.name().parse(), Ok(*fault));
        }
        assert!(scenarios.iter().any(|s| s.pools.iter().any(|p| (p.size, p.min_size) == (2, 1))));
        assert!("nothing".parse::<Fault>().is_err());
    }
}
