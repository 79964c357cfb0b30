//! Causes faults and ends them.
//!
//! Each kind of fault has its own random stream, which determines when the next one occurs, its target and its duration. Most
//! faults are two events: one that breaks and one that repairs. Except for those of caches (`losses.rs`), faults never
//! destroy the last intact copy of a PG's in-sync set, because losing data then would not be a defect. They leave at least one client.

mod losses;
mod processes;
mod stalls;

use crate::disk::Damage;
use crate::network::{Delays, Link, Node};
use crate::osd::Osd;
use crate::random::{Random, Stream};
use crate::scenario::{Fault, HUGE_POOL, PoolSpec, Scenario};
use crate::schedule::{Clock, MICRO, MILLI, Nanos, SECOND};
use crate::world::{World, WorldEvent};
use nacre_mon::logic::{MapState, Now};
use nacre_pg::PgSettings;
use nacre_types::osdmap::{PgMembership, WEIGHT_ONE};
use nacre_types::pool::{CacheMode, Pool};
use nacre_types::{ClientId, Epoch, ObjectId, OsdId, PgId, PoolId};
use processes::{StopOrder, Stopped};
use std::collections::{BTreeMap, BTreeSet};

/// The start or the end of a fault.
#[derive(Clone, Debug)]
pub enum FaultEvent {
    /// The next fault of a kind.
    Next(Fault),
    /// These directions work again.
    Heal(Vec<Link>),
    /// Delays are normal again.
    Prompt,
    /// The OSD's disk has its normal speed again.
    FastDisk(u32),
    /// Commits have their normal speed again.
    FastCommit,
    /// The OSD is in again, with full weight.
    In(u32),
    /// The pool has these (size, min_size) again.
    Size(PoolId, u32, u32),
    /// The client continues.
    Resume(u32),
    /// The OSD's disk has free space again.
    Room(u32),
    /// Breaks a lossy connection that was held by a partition for too long.
    TimeOut(Link),
    /// The OSD's process with this life is no longer stopped.
    Continue(u32, u32),
    /// An actor of the OSD's process with this life continues.
    GoOn(u32, u32, usize),
    /// The OSD's process ends once the map shows it down.
    Stop {
        /// The OSD.
        osd: u32,
        /// The process.
        life: u32,
        /// The time until which it waits for the map.
        deadline: Nanos,
        /// The time from its end to the next start.
        wait: Nanos,
    },
    /// The OSD's watchdog ends its process with this life.
    Watchdog(u32, u32),
    /// Maps reach these nodes again.
    MapsAgain(BTreeSet<Node>),
    /// A PG that lost all its copies is created again.
    MakeAgain(PgId),
}

/// When faults begin.
pub(crate) const TROUBLE_BEGINS: Nanos = 3 * SECOND;

/// The minimum time between two damages of an object on one OSD.
const DAMAGE_INTERVAL: Nanos = 3 * SECOND;

/// The state of the faults.
pub struct Nemesis {
    random: BTreeMap<Fault, Random>,
    seed: u64,
    slow_disks: BTreeSet<u32>,
    /// Until when disks hang.
    hung_disks: BTreeMap<u32, Nanos>,
    stop_orders: BTreeMap<u32, StopOrder>,
    stopped_osds: BTreeMap<u32, Stopped>,
    /// Actors of OSDs that stall, and until when.
    stalled: BTreeMap<(u32, usize), Nanos>,
    slow_commit: Nanos,
    /// OSDs that must not start: their disk is full beyond the store's limit.
    stuck: BTreeSet<u32>,
    paused: BTreeSet<u32>,
    stopped: BTreeSet<u32>,
    ghosts: Option<Random>,
    pools_made: u32,
    /// When objects were last damaged, by OSD.
    damaged: BTreeMap<(u32, ObjectId), Nanos>,
    /// When a full disk last got free space, or a map that shows it as full may have come back.
    last_full: Option<Nanos>,
    calm: bool,
    struck: BTreeMap<Fault, u64>,
    /// Determine which rule is broken on purpose.
    settings: PgSettings,
}

impl Nemesis {
    /// The faults of a scenario, for OSDs with these settings.
    pub fn new(scenario: &Scenario, settings: PgSettings) -> Nemesis {
        let stream = |fault: Fault| Random::new(scenario.seed, Stream::Fault(fault as u8));
        Nemesis {
            random: scenario.faults.iter().map(|fault| (*fault, stream(*fault))).collect(),
            seed: scenario.seed,
            slow_disks: BTreeSet::new(),
            hung_disks: BTreeMap::new(),
            stop_orders: BTreeMap::new(),
            stopped_osds: BTreeMap::new(),
            stalled: BTreeMap::new(),
            slow_commit: 0,
            stuck: BTreeSet::new(),
            paused: BTreeSet::new(),
            stopped: BTreeSet::new(),
            ghosts: scenario
                .faults
                .contains(&Fault::Ghost)
                .then(|| Random::new(scenario.seed, Stream::Fault(200))),
            pools_made: 0,
            damaged: BTreeMap::new(),
            last_full: None,
            calm: false,
            struck: BTreeMap::new(),
            settings,
        }
    }

    /// When each kind occurs first.
    pub fn first(&mut self) -> Vec<(Nanos, FaultEvent)> {
        self.random
            .iter_mut()
            .map(|(fault, random)| {
                (TROUBLE_BEGINS + random.exponential(3 * SECOND), FaultEvent::Next(*fault))
            })
            .collect()
    }

    /// The current factor by which the OSD's disk is slower.
    pub fn flush_factor(&self, osd: u32) -> u64 {
        if self.slow_disks.contains(&osd) { 60 } else { 1 }
    }

    /// Until when the OSD's disk hangs.
    pub fn disk_hung_until(&self, osd: u32) -> Nanos {
        self.hung_disks.get(&osd).copied().unwrap_or(0)
    }

    /// The additional time of a map commit.
    pub fn commit_delay(&self) -> Nanos {
        self.slow_commit
    }

    /// Whether the OSD can't start now.
    pub fn keeps_down(&self, osd: u32) -> bool {
        self.stuck.contains(&osd)
    }

    /// Whether the client is paused or dead.
    pub fn is_silent(&self, client: u32) -> bool {
        self.paused.contains(&client) || self.stopped.contains(&client)
    }

    /// Whether the client is dead.
    pub fn is_stopped(&self, client: u32) -> bool {
        self.stopped.contains(&client)
    }

    /// Whether lost messages may arrive late, as ghosts.
    pub fn has_ghosts(&self) -> bool {
        self.ghosts.is_some()
    }

    /// If a lost message arrives late: by how much after the previous one.
    pub fn ghost(&mut self) -> Option<Nanos> {
        let random = self.ghosts.as_mut()?;
        let long = if random.chance(100) { 20 * SECOND } else { 800 * MILLI };
        let later = random.chance(700).then(|| random.range(MICRO, long));
        if later.is_some() {
            *self.struck.entry(Fault::Ghost).or_default() += 1;
        }
        later
    }

    /// When a full disk last got free space.
    pub fn last_full(&self) -> Option<Nanos> {
        self.last_full
    }

    /// How often each kind had an effect.
    pub fn struck(&self) -> &BTreeMap<Fault, u64> {
        &self.struck
    }
}

impl World {
    /// Starts or ends a fault.
    pub(crate) fn apply_fault(&mut self, fault_event: FaultEvent) {
        match fault_event {
            FaultEvent::Next(fault) => {
                if self.nemesis.calm {
                    return;
                }
                let Some(mut random) = self.nemesis.random.remove(&fault) else { return };
                // Draws for one event come from a separate stream, however the state affects them.
                let mut draws = Random::new(self.nemesis.seed ^ random.bits(), Stream::Fault(fault as u8));
                let wait = self.scenario.interval(fault).map_or(SECOND, |mean| random.exponential(mean));
                self.nemesis.random.insert(fault, random);
                self.schedule.after(wait.max(10 * MILLI), WorldEvent::FaultEvent(FaultEvent::Next(fault)));
                if self.inflict(fault, &mut draws) {
                    *self.nemesis.struck.entry(fault).or_default() += 1;
                }
            }
            FaultEvent::Heal(links) => self.heal(&links),
            FaultEvent::Prompt => self.network.set_delays(Delays::default()),
            FaultEvent::FastDisk(osd) => {
                self.nemesis.slow_disks.remove(&osd);
            }
            FaultEvent::FastCommit => self.nemesis.slow_commit = 0,
            FaultEvent::In(osd) => self.reweight(osd, WEIGHT_ONE),
            FaultEvent::Size(pool, size, min_size) => self.set_size(pool, size, min_size),
            FaultEvent::Resume(client) => self.resume(client),
            FaultEvent::Room(osd) => self.make_room(osd),
            FaultEvent::Continue(osd, life) => {
                if self.osds[osd as usize].life == life {
                    self.resume_osd(osd);
                }
            }
            FaultEvent::GoOn(osd, life, actor) => self.end_stall(osd, life, actor),
            FaultEvent::Stop { osd, life, deadline, wait } => self.finish_shutdown(osd, life, deadline, wait),
            FaultEvent::Watchdog(osd, life) => self.end_by_watchdog(osd, life),
            FaultEvent::MapsAgain(nodes) => self.send_maps_again(&nodes),
            FaultEvent::MakeAgain(pg) => self.recreate_pg(pg),
            FaultEvent::TimeOut(link) => {
                if self.partitioned.contains(&link) {
                    self.lose(link.from, link.to);
                }
            }
        }
    }

    fn later(&mut self, wait: Nanos, fault_event: FaultEvent) {
        self.schedule.after(wait, WorldEvent::FaultEvent(fault_event));
    }

    fn any_osd(&self, random: &mut Random) -> u32 {
        random.index(self.osds.len()) as u32
    }

    /// Causes a fault; returns whether that had an effect.
    fn inflict(&mut self, fault: Fault, random: &mut Random) -> bool {
        let osd = self.any_osd(random);
        match fault {
            Fault::Reset => return self.break_a_session(random),
            // Ghosts occur with resets and restarts of other kinds; this kind only permits them.
            Fault::Ghost => return false,
            Fault::Delay => {
                let delays = Delays {
                    usual: random.range(MILLI, 40 * MILLI),
                    slow_per_mille: random.range(5, 200) as u32,
                    slow: random.range(50, 1500) * MILLI,
                };
                self.network.set_delays(delays);
                self.later(random.range(SECOND, 8 * SECOND), FaultEvent::Prompt);
            }
            Fault::Partition => return self.partition(random, false),
            Fault::OneWay => return self.partition(random, true),
            Fault::MonPartition => {
                let hit: Vec<Node> =
                    (0..self.osds.len() as u32).filter(|_| random.chance(500)).map(Node::Osd).collect();
                let links =
                    hit.iter().flat_map(|n| [Link::new(*n, Node::Mon), Link::new(Node::Mon, *n)]).collect();
                return self.cut(random, links);
            }
            Fault::Drift => {
                let bound = self.scenario.drift_ppm as i64;
                let drift = if random.chance(500) { bound } else { -bound };
                let now = self.schedule.now();
                self.osds[osd as usize].clock.set_drift(now, drift);
                // The true time of the OSD's next wake-up has changed.
                self.with_osd(osd, |_, _| {});
            }
            Fault::Crash => {
                let is_running = self.osds[osd as usize].is_running();
                self.kill(osd, random);
                self.schedule.after(random.range(200 * MILLI, 20 * SECOND), WorldEvent::OsdStart(osd));
                return is_running;
            }
            Fault::Blackout => {
                for osd in 0..self.osds.len() as u32 {
                    self.kill(osd, random);
                    self.schedule.after(random.range(SECOND, 6 * SECOND), WorldEvent::OsdStart(osd));
                }
            }
            Fault::Restart => return self.begin_to_stop(osd, random),
            Fault::Wipe | Fault::Replace => {
                if !self.last_copies(osd).is_empty() {
                    return false;
                }
                self.kill(osd, random);
                self.say(format_args!("osd.{osd} loses its disk: {fault}"));
                match fault {
                    Fault::Wipe => self.osds[osd as usize].wipe(),
                    _ => self.osds[osd as usize].replace_disk(),
                }
                self.schedule.after(random.range(SECOND, 15 * SECOND), WorldEvent::OsdStart(osd));
            }
            Fault::SlowDisk => {
                self.nemesis.slow_disks.insert(osd);
                self.later(random.range(SECOND, 8 * SECOND), FaultEvent::FastDisk(osd));
            }
            Fault::MonCrash => {
                self.crash_monitor(random);
                self.schedule.after(random.range(100 * MILLI, 8 * SECOND), WorldEvent::MonStart);
            }
            Fault::SlowCas => {
                self.nemesis.slow_commit = random.range(500 * MILLI, 4 * SECOND);
                self.later(random.range(200 * MILLI, 3 * SECOND), FaultEvent::FastCommit);
            }
            Fault::Restore => {
                self.crash_monitor(random);
                let (now, age) = (self.schedule.now(), random.index(self.scenario.restore_depth + 1));
                self.say(format_args!("the map store is restored from {age} commits ago"));
                // OSDs remember one another. If disks may be lost too, the operator has to know the cluster's OSDs.
                let loses = [Fault::Wipe, Fault::Replace];
                let forgetful = loses.iter().any(|fault| self.scenario.faults.contains(fault));
                let named = if forgetful { self.osds.iter().map(|osd| osd.id).collect() } else { Vec::new() };
                self.with_monitor(|monitor, out| monitor.restore(now, age, &named, out));
                // The older map may show pools and OSDs as full.
                self.nemesis.last_full = self.nemesis.last_full.map(|_| now);
                self.schedule.after(random.range(100 * MILLI, 3 * SECOND), WorldEvent::MonStart);
            }
            Fault::OutIn => {
                self.reweight(osd, 0);
                self.later(random.range(2 * SECOND, 30 * SECOND), FaultEvent::In(osd));
            }
            Fault::Reweight => self.reweight(osd, random.range(1, u64::from(WEIGHT_ONE) + 1) as u32),
            Fault::Crush => self.crush_weight(osd, random.range(1, 8) as u32),
            Fault::PoolSize => return self.resize_pool(random),
            Fault::Tier => return self.change_tier(random),
            Fault::PoolCreate => return self.make_pool(random),
            Fault::PoolDelete => {
                let map = self.monitor.view().map.clone();
                let pools: Vec<PoolId> = map.pools.keys().copied().collect();
                return match random.pick(&pools) {
                    Some(pool) if pools.len() > 1 && self.may_delete(*pool) => self.delete_pool(*pool),
                    _ => false,
                };
            }
            Fault::ClientPause => {
                let client = random.index(self.scenario.clients as usize) as u32;
                if self.nemesis.is_silent(client) {
                    return false;
                }
                let long = if random.chance(300) { 60 } else { 8 };
                self.pause_client(client, random.range(SECOND, long * SECOND));
            }
            Fault::ClientStop => {
                let client = random.index(self.scenario.clients as usize) as u32;
                let alive = (0..self.scenario.clients).filter(|c| !self.nemesis.is_stopped(*c)).count();
                if alive <= 1 || self.nemesis.is_stopped(client) {
                    return false;
                }
                {
                    // Its last messages are still in transit; the answers are lost.
                    self.nemesis.stopped.insert(client);
                    for link in self.links_of(Node::Client(client)) {
                        if link.to == Node::Client(client) {
                            self.block_link(link);
                        }
                    }
                }
            }
            Fault::Damage => return self.damage(osd, random),
            Fault::Fence => {
                let client = random.index(self.scenario.clients as usize);
                self.blocklist_session(self.clients[client].session());
                return self.monitor.is_running();
            }
            // These are counted when they have an effect.
            Fault::MapGap => {
                self.withhold_maps(random);
                return false;
            }
            Fault::Pause => {
                self.schedule_stop(osd, random);
                return false;
            }
            Fault::Stall => {
                self.schedule_stall(osd, random);
                return false;
            }
            Fault::WallJump => self.jump_wall_clock(random),
            Fault::CacheLoss => return self.lose_cache(random),
            Fault::StuckDisk => return self.hang_disk(osd, random),
            Fault::Full => {
                let mut disk = self.osds[osd as usize].disk();
                let used = disk.used();
                let room = used + random.range(0, self.scenario.max_free_bytes(used));
                disk.set_capacity(room.max(1));
                drop(disk);
                self.later(random.range(2 * SECOND, 12 * SECOND), FaultEvent::Room(osd));
            }
        }
        true
    }

    /// Stops all messages of a client in both directions for a while.
    pub(crate) fn pause_client(&mut self, client: u32, wait: Nanos) {
        self.nemesis.paused.insert(client);
        for link in self.links_of(Node::Client(client)) {
            self.block_link(link);
        }
        self.later(wait, FaultEvent::Resume(client));
    }

    /// Puts a session on the blocklist.
    pub(crate) fn blocklist_session(&mut self, session: ClientId) {
        self.operate(|state, now| {
            state.add_to_blocklist(now, format!("client.{session}"), now.wall_ns + 3_600 * SECOND);
        });
    }

    fn links_of(&self, node: Node) -> Vec<Link> {
        let osds = (0..self.osds.len() as u32).map(Node::Osd);
        osds.chain([Node::Mon]).flat_map(|other| [Link::new(node, other), Link::new(other, node)]).collect()
    }

    /// Breaks a connection; returns whether there is one.
    fn break_a_session(&mut self, random: &mut Random) -> bool {
        let osd = self.any_osd(random);
        match random.range(0, 10) {
            0..3 => {
                let other = self.any_osd(random);
                let by = random.range(MILLI, 400 * MILLI);
                let (a, b) = (Node::Osd(osd), Node::Osd(other));
                match random.chance(300) {
                    _ if other == osd => false,
                    true => self.break_pings(a, b, by),
                    false => self.break_sockets(a, b, by),
                }
            }
            3 => {
                // A session between OSDs is given up although both are alive: messages in transit are lost, and both sides are informed.
                let (other, now) = (self.any_osd(random), self.schedule.now());
                let may = other != osd && self.osds[osd as usize].is_running();
                if may {
                    self.with_osd(osd, |osd, out| osd.drop_peer(now, OsdId(other), out));
                }
                may
            }
            4..6 => self.lose(Node::Osd(osd), Node::Mon),
            6 => {
                let client = random.index(self.clients.len()) as u32;
                self.lose(Node::Client(client), Node::Mon)
            }
            _ => {
                let client = random.index(self.clients.len()) as u32;
                self.lose(Node::Client(client), Node::Osd(osd))
            }
        }
    }

    /// Breaks connections. Returns whether there are any.
    fn lose(&mut self, a: Node, b: Node) -> bool {
        self.break_sockets(a, b, 300 * MILLI)
    }

    fn partition(&mut self, random: &mut Random, one_way: bool) -> bool {
        let osds = (0..self.osds.len() as u32).map(Node::Osd);
        let clients = (0..self.scenario.clients).chain(self.process_clients()).map(Node::Client);
        let nodes: Vec<Node> = osds.chain(clients).chain([Node::Mon]).collect();
        let side: BTreeSet<Node> = nodes.iter().copied().filter(|_| random.chance(350)).collect();
        let links = nodes
            .iter()
            .flat_map(|a| nodes.iter().map(|b| Link::new(*a, *b)))
            .filter(|l| side.contains(&l.from) != side.contains(&l.to))
            .filter(|l| !one_way || side.contains(&l.from))
            .collect();
        self.cut(random, links)
    }

    /// Cuts directions for a while; returns whether one of them was open.
    fn cut(&mut self, random: &mut Random, links: Vec<Link>) -> bool {
        let links: Vec<Link> = links.into_iter().filter(|link| !self.partitioned.contains(link)).collect();
        if links.is_empty() {
            return false;
        }
        self.say(format_args!("cut: {}", list(&links)));
        for link in &links {
            self.block_link(*link);
            let lossy = !matches!((link.from, link.to), (Node::Osd(_), Node::Osd(_)));
            if lossy {
                self.later(random.range(500 * MILLI, 6 * SECOND), FaultEvent::TimeOut(*link));
            }
        }
        let long = if random.chance(400) { 25 } else { 5 };
        self.later(random.range(300 * MILLI, long * SECOND), FaultEvent::Heal(links));
        true
    }

    fn heal(&mut self, links: &[Link]) {
        self.say(format_args!("heal: {}", list(links)));
        for link in links {
            if self.partitioned.remove(link) {
                self.release(*link);
            }
        }
        // Some of the lossy connections that were cut break, others continue.
        let lossy: BTreeSet<(Node, Node)> = links
            .iter()
            .filter(|l| !matches!((l.from, l.to), (Node::Osd(_), Node::Osd(_))))
            .map(|l| (l.from.max(l.to), l.from.min(l.to)))
            .filter(|(a, b)| self.both_alive(*a, *b))
            .collect();
        for (a, b) in lossy {
            if self.disk_random.chance(500) {
                self.lose(a, b);
            }
        }
    }

    fn both_alive(&self, a: Node, b: Node) -> bool {
        let alive = |node| match node {
            Node::Client(client) => !self.nemesis.is_silent(client),
            Node::Osd(osd) => self.osds[osd as usize].is_running(),
            Node::Mon => self.monitor.is_running(),
        };
        alive(a) && alive(b)
    }

    fn kill(&mut self, osd: u32, random: &mut Random) {
        self.forget_stop(osd);
        self.nemesis.hung_disks.remove(&osd);
        if self.osds[osd as usize].is_running() {
            let surviving = random.index(self.osds[osd as usize].disk().unflushed() + 1);
            self.say(format_args!("osd.{osd} dies; {surviving} unflushed changes survive"));
            self.osds[osd as usize].crash(surviving);
            self.check_contents(osd);
        }
        // If only the process has ended, its machine refuses connections, and peers notice with their next pings.
        let refuses = !random.chance(400);
        self.lose_sockets(Node::Osd(osd), refuses);
        if !refuses {
            // The machine fails too, and its clock starts again.
            let now = self.schedule.now();
            let bound = self.scenario.drift_ppm;
            self.osds[osd as usize].clock = Clock::new(&mut self.clock_random, now, bound);
        }
    }

    /// Changes the map like an operator.
    fn operate(&mut self, change: impl FnOnce(&mut MapState, Now)) {
        let now = self.schedule.now();
        self.with_monitor(|monitor, out| monitor.apply_operator_change(now, out, change));
    }

    fn reweight(&mut self, osd: u32, weight: u32) {
        self.operate(|state, now| {
            state.set_reweight(now, OsdId(osd), weight);
        });
    }

    fn crush_weight(&mut self, osd: u32, weight: u32) {
        self.operate(|state, _| {
            // An OSD that never booted is not in the hierarchy yet.
            state.set_crush_weight(OsdId(osd), weight * (WEIGHT_ONE / 4));
        });
    }

    fn set_size(&mut self, pool: PoolId, size: u32, min_size: u32) {
        if self.deleted.contains(&pool) {
            return;
        }
        self.operate(|state, _| {
            if state.map().pools.contains_key(&pool) {
                state.change_pool(pool, |pool| (pool.size, pool.min_size) = (size, min_size));
            }
        });
    }

    fn resize_pool(&mut self, random: &mut Random) -> bool {
        let map = self.monitor.view().map.clone();
        let pools: Vec<PoolId> = map.pools.keys().copied().collect();
        let Some(id) = random.pick(&pools) else { return false };
        let (size, min_size) = (map.pools[id].size, map.pools[id].min_size);
        let new_size = random.range(1, 4) as u32;
        let new_min = random.range(1, u64::from(new_size) + 1) as u32;
        self.set_size(*id, new_size, new_min);
        self.later(random.range(2 * SECOND, 25 * SECOND), FaultEvent::Size(*id, size, min_size));
        self.monitor.is_running()
    }

    /// Changes the mode of the cache, or removes or sets the overlay, as operators can.
    fn change_tier(&mut self, random: &mut Random) -> bool {
        let map = self.monitor.view().map.clone();
        let Some((&cache, pool)) = map.pools.iter().find(|(_, pool)| pool.tiering.tier_of.is_some()) else {
            return false;
        };
        let Some(base) = pool.tiering.tier_of else { return false };
        let modes = [CacheMode::Writeback, CacheMode::Readproxy, CacheMode::Proxy, CacheMode::Proxy];
        let mode = random.pick(&modes).copied().unwrap_or_default();
        self.operate(move |state, _| {
            let next = state.next_epoch();
            // Pending changes count already, whether they are durable or not.
            let mut has_overlay = false;
            state.change_pool(base, |pool| has_overlay = pool.tiering.read_tier.is_some());
            if !has_overlay {
                state.change_pool(base, |pool| {
                    (pool.tiering.read_tier, pool.tiering.write_tier) = (Some(cache), Some(cache));
                    pool.tiering.overlay_epoch = next;
                });
                state.change_pool(cache, |pool| pool.tiering.overlay_epoch = next);
            } else if state.is_flushed(cache) {
                state.change_pool(base, |pool| {
                    (pool.tiering.read_tier, pool.tiering.write_tier) = (None, None);
                    pool.tiering.overlay_epoch = next;
                });
                state.change_pool(cache, |pool| pool.tiering.overlay_epoch = next);
            } else {
                state.change_pool(cache, |pool| {
                    (pool.tiering.cache_mode, pool.tiering.mode_epoch) = (mode, next);
                });
            }
        });
        self.monitor.is_running()
    }

    fn make_pool(&mut self, random: &mut Random) -> bool {
        if self.nemesis.pools_made >= 3 {
            return false;
        }
        self.nemesis.pools_made += 1;
        let size = random.range(2, 4) as u32;
        let spec = PoolSpec { size, min_size: size - 1, pg_num: random.range(1, 4) as u32 };
        let name = format!("extra{}", self.nemesis.pools_made);
        self.operate(|state, _| {
            state.add_pool(Pool::replicated(&name, spec.size, spec.min_size, 0, spec.pg_num, Epoch(0)));
        });
        self.monitor.is_running()
    }

    /// Whether an operator may delete the pool now. The pool with huge contents exists for two thirds of the faults' time.
    fn may_delete(&self, pool: PoolId) -> bool {
        let lasts_until = TROUBLE_BEGINS + self.scenario.trouble * 2 / 3;
        !self.scenario.real_bounds || pool != HUGE_POOL || self.schedule.now() > lasts_until
    }

    fn delete_pool(&mut self, pool: PoolId) -> bool {
        if !self.monitor.is_running() {
            return false;
        }
        self.deleted.insert(pool);
        self.history.ignore_pool(pool);
        self.invariants.ignore_pool(pool);
        self.operate(|state, _| {
            if state.map().pools.contains_key(&pool) {
                state.remove_pool(pool);
            }
        });
        true
    }

    /// Makes an object of the OSD unreadable, if another in-sync member has a complete copy.
    fn damage(&mut self, osd: u32, random: &mut Random) -> bool {
        let disk = self.osds[osd as usize].disk();
        let objects: Vec<(PgId, ObjectId)> = disk
            .durable()
            .collections
            .iter()
            .flat_map(|(pg, collection)| collection.objects.keys().map(|object| (*pg, object.clone())))
            .filter(|(_, object)| !nacre_pg::is_temp(object))
            .collect();
        drop(disk);
        if objects.is_empty() {
            return false;
        }
        let (pg, object) = objects[random.index(objects.len())].clone();
        let kind = if random.chance(500) { Damage::Data } else { Damage::Record };
        let has_other = |membership: &PgMembership| {
            let others = || membership.in_sync.iter().filter(|m| m.osd.0 != osd);
            others().any(|m| self.osds.iter().any(|o| o.member() == *m && o.has_whole_copy(pg)))
        };
        let memberships: Vec<PgMembership> =
            self.last_memberships(None).into_iter().filter(|(of, _)| *of == pg).map(|(_, m)| m).collect();
        // A member repairs an object at most five times in 10 s.
        let now = self.schedule.now();
        let last = self.nemesis.damaged.get(&(osd, object.clone()));
        let is_recent = last.is_some_and(|at| now < at + DAMAGE_INTERVAL);
        let spares = is_recent || memberships.is_empty() || !memberships.iter().all(has_other);
        if !spares {
            self.say(format_args!("{object} of {pg} is damaged on osd.{osd}: {kind:?}"));
            self.osds[osd as usize].disk().damage(pg, &object, kind);
            self.nemesis.damaged.insert((osd, object), now);
        }
        !spares
    }

    /// The highest record of every PG that ever existed, whatever a restored map contains, and the proposed ones; if restores
    /// happen, also the highest record that OSDs (other than `but`) remember.
    fn last_memberships(&self, but: Option<u32>) -> Vec<(PgId, PgMembership)> {
        let remembered = |pg: &PgId| {
            let restores = self.scenario.faults.contains(&Fault::Restore);
            let others = self.osds.iter().filter(|o| Some(o.id.0) != but && restores);
            others.filter_map(|o| o.durable_membership(*pg)).max_by_key(|m| m.interval)
        };
        let published = self.invariants.highest().map(|(pg, membership)| (*pg, membership.clone()));
        let known = self.invariants.highest().filter_map(|(pg, _)| Some((*pg, remembered(pg)?)));
        let proposed = self.invariants.proposals().map(|(pg, membership)| (*pg, membership.clone()));
        published.chain(known).chain(proposed).collect()
    }

    /// PGs whose in-sync set has no other intact copy than this OSD's, for any of [`World::last_memberships`]. In the
    /// interval in which a PG is created there is nothing to lose.
    fn last_copies(&self, osd: u32) -> BTreeSet<PgId> {
        let damages = self.scenario.faults.contains(&Fault::Damage);
        let is_last = |pg: PgId, membership: &PgMembership| {
            let holds = |o: &Osd| o.has_copy(pg);
            let intact = |o: &Osd| if damages { o.has_whole_copy(pg) } else { holds(o) };
            let mine =
                membership.in_sync.iter().any(|m| m.osd.0 == osd && self.osds[osd as usize].member() == *m);
            let others = || membership.in_sync.iter().filter(|m| m.osd.0 != osd);
            !membership.interval.is_creation()
                && mine
                && holds(&self.osds[osd as usize])
                && !others().any(|m| self.osds.iter().any(|o| o.member() == *m && intact(o)))
        };
        let last = self.last_memberships(Some(osd)).into_iter();
        last.filter(|(pg, membership)| is_last(*pg, membership)).map(|(pg, _)| pg).collect()
    }

    fn crash_monitor(&mut self, random: &mut Random) {
        let done = random.chance(500);
        self.say(format_args!("the mon dies; a commit under way is {}done", if done { "" } else { "not " }));
        self.with_monitor(|monitor, out| monitor.crash(done, out));
        let refuses = !random.chance(300);
        self.lose_sockets(Node::Mon, refuses);
    }

    fn resume(&mut self, client: u32) {
        if !self.nemesis.paused.remove(&client) {
            return;
        }
        let links = self.links_of(Node::Client(client));
        for link in &links {
            if self.nemesis.is_stopped(client) && link.to == Node::Client(client) {
                continue;
            }
            self.partitioned.remove(link);
            self.release(*link);
        }
        for osd in 0..self.osds.len() as u32 {
            self.lose(Node::Client(client), Node::Osd(osd));
        }
        self.lose(Node::Client(client), Node::Mon);
    }

    fn make_room(&mut self, osd: u32) {
        let mut disk = self.osds[osd as usize].disk();
        if disk.capacity().is_some() {
            self.nemesis.last_full = Some(self.schedule.now());
        }
        disk.set_capacity(0);
        drop(disk);
        if self.nemesis.stuck.remove(&osd) {
            self.schedule.after(100 * MILLI, WorldEvent::OsdStart(osd));
        }
    }

    /// Ends all faults.
    pub(crate) fn end_all_faults(&mut self) {
        self.nemesis.calm = true;
        self.accept_losses();
        self.nemesis.slow_disks.clear();
        self.nemesis.hung_disks.clear();
        self.nemesis.stop_orders.clear();
        for osd in 0..self.osds.len() as u32 {
            self.resume_osd(osd);
        }
        self.end_stalls();
        self.nemesis.slow_commit = 0;
        self.network.set_delays(Delays::default());
        let stopped = |link: &Link| matches!(link.to, Node::Client(n) if self.nemesis.is_stopped(n));
        let links: Vec<Link> = self.partitioned.iter().copied().filter(|link| !stopped(link)).collect();
        self.heal(&links);
        for client in self.nemesis.paused.clone() {
            self.resume(client);
        }
        if !self.monitor.is_running() {
            self.schedule.after(0, WorldEvent::MonStart);
        }
        let osds = (0..self.osds.len() as u32).map(Node::Osd);
        let all: BTreeSet<Node> = osds.chain((0..self.clients.len() as u32).map(Node::Client)).collect();
        self.send_maps_again(&all);
        for osd in 0..self.osds.len() as u32 {
            self.make_room(osd);
            self.schedule.after(10 * MILLI, WorldEvent::OsdStart(osd));
            // The map authority may be down or about to lose the change; repeating it is harmless.
            self.later(2 * SECOND, FaultEvent::In(osd));
            self.later(10 * SECOND, FaultEvent::In(osd));
        }
    }
}

fn list(links: &[Link]) -> String {
    let texts: Vec<String> = links.iter().map(|l| format!("{}>{}", l.from, l.to)).collect();
    texts.join(" ")
}
