//! The pure map logic: what happens to the cluster map when something happens in the cluster.
//!
//! [`MapState::handle`] takes an [`Event`] with the time at which it happened and changes the *working* map. Its
//! changes gather until [`MapState::propose`] makes them one [`Proposal`] (an incremental and other keys to store).
//! The caller makes the proposal durable and calls [`MapState::committed`]; only then do the answers that depend on
//! it come out, and only then may the incremental be published. Between the two, further events gather for the next.
//!
//! Invariants: no I/O, no clock, no randomness; an answer never shows what is not durable; intervals only grow; pool
//! ids are never reused; `committed + incremental == working`.

mod blocklist;
mod boot;
mod changes;
mod failure;
mod fullness;
mod log;
mod membership;
mod mutes;
mod operator;
mod pools;
mod reports;
mod tiers;
mod tuning;

#[cfg(test)]
pub(crate) mod tests;

pub use boot::BootRefusal;
pub(crate) use failure::location_text;
pub use fullness::Fullness;
pub use log::{ClusterLog, LogChannel, LogEntry, LogLevel};
pub(crate) use membership::lost_its_copy;
pub use membership::{CasRefusal, check_cas};
pub use mutes::{Mute, Mutes};
pub use operator::new_generation;
pub use reports::{PoolIo, StatsState};
pub(crate) use tiers::Doubt;
pub use tiers::{DirtySums, LastDirty};
pub use tuning::{TierDefaults, Tuning};

use crate::auth_db::AuthDb;
use crate::commands::{CommandRequest, ServiceMap};
use crate::config_db::ConfigDb;
use changes::Changes;
use failure::FailureReports;
use nacre_types::ids::{EntityName, Epoch, OsdId};
use nacre_types::msg::{
    ConfigReport, LogAppend, MonCommandReply, OsdAlive, OsdBoot, OsdFailure, OsdMarkMeDown, PgCas,
    PgCasReply, ReportedOption, StatsReport,
};
use nacre_types::osdmap::{Incremental, OsdMap};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// When something happens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Now {
    /// Milliseconds on a clock that never goes back; intervals are measured with it.
    pub mono_ms: u64,
    /// Nanoseconds since 1970; for stamps that people see. A clock that is wrong must never make anything happen early.
    pub wall_ns: u64,
}

/// Who waits for an answer: a token that the caller chose for a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin(pub u64);

/// Something that happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// An OSD came up.
    Boot(OsdBoot),
    /// An OSD reports another one, or takes that back.
    Failure {
        /// Who reports.
        reporter: OsdId,
        /// What.
        report: OsdFailure,
    },
    /// An OSD's beacon.
    Alive {
        /// Whose.
        osd: OsdId,
        /// The beacon.
        alive: OsdAlive,
    },
    /// An OSD stops in order.
    MarkMeDown {
        /// Which.
        osd: OsdId,
        /// The request.
        request: OsdMarkMeDown,
    },
    /// An OSD proposes a PG's next membership.
    Cas {
        /// Where the answer goes.
        origin: Origin,
        /// The OSD that sent it, as authenticated.
        osd: OsdId,
        /// The proposal.
        cas: PgCas,
    },
    /// An OSD's statistics.
    Stats {
        /// Whose.
        osd: OsdId,
        /// The report.
        report: StatsReport,
    },
    /// A daemon's options.
    Config {
        /// Whose.
        entity: EntityName,
        /// Those that are not at their defaults.
        report: ConfigReport,
    },
    /// A line for the cluster log.
    Log {
        /// Who says it.
        entity: EntityName,
        /// The line.
        line: LogAppend,
    },
    /// A command of an operator or a client.
    Command(Box<CommandRequest>),
    /// Time passed; send one every second or so: after more than 5 s without, this map authority counts as having been
    /// suspended.
    Tick,
}

/// What the caller has to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Send the outcome of a membership proposal.
    CasReply {
        /// To whom.
        to: Origin,
        /// The outcome.
        reply: PgCasReply,
    },
    /// Send a command's answer.
    CommandReply {
        /// To whom.
        to: Origin,
        /// The answer.
        reply: MonCommandReply,
    },
}

/// Changes that belong together: to be made durable, then [`MapState::committed`].
#[derive(Clone, Debug, PartialEq)]
pub struct Proposal {
    /// Counts proposals.
    pub number: u64,
    /// The next epoch, if the map changes.
    pub incremental: Option<Incremental>,
    /// Other keys to set (`Some`) or remove.
    pub keys: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
}

impl Proposal {
    /// One that changes nothing, to store log lines with.
    pub fn empty() -> Proposal {
        Proposal { number: 0, incremental: None, keys: BTreeMap::new() }
    }
}

/// Everything that the map authority knows.
pub struct MapState {
    /// What is durable and may be shown.
    pub(crate) committed: OsdMap,
    /// `committed` with everything that happened since.
    pub(crate) working: OsdMap,
    pub(crate) changes: Changes,
    pub(crate) keys: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    /// The proposal that is being made durable, and the map that it makes.
    in_flight: Option<(u64, OsdMap)>,
    last_proposal: u64,
    /// Answers that wait for a proposal.
    waiting: Vec<(u64, Effect)>,
    out: Vec<Effect>,
    pub(crate) tuning: Tuning,
    failures: FailureReports,
    /// When the last tick came, in milliseconds of the monotonic clock; `None` before the first one.
    last_tick_ms: Option<u64>,
    /// Last sign of life of OSDs that are up, in milliseconds of the monotonic clock.
    pub(crate) last_beacon: BTreeMap<OsdId, u64>,
    /// Since when OSDs that are in have been down, likewise.
    pub(crate) down_since: BTreeMap<OsdId, u64>,
    blocklist_deadlines: blocklist::Deadlines,
    pub(crate) stats: StatsState,
    pub(crate) last_dirty: LastDirty,
    pub(crate) services: ServiceMap,
    pub(crate) log: ClusterLog,
    /// OSDs that have seen a later history than the store holds, and what they said (rule R7).
    pub(crate) rolled_back: BTreeMap<OsdId, String>,
    pub(crate) config: ConfigDb,
    /// Grows with each change of `config`.
    pub(crate) config_version: u64,
    pub(crate) auth: AuthDb,
    pub(crate) crush_version: u64,
    pub(crate) mutes: Mutes,
    /// `config-key …`.
    pub(crate) config_keys: BTreeMap<String, Vec<u8>>,
    /// Options of running daemons that are not at their defaults, as they reported.
    pub(crate) running: BTreeMap<EntityName, Vec<ReportedOption>>,
    /// Clients that are connected, as the caller says.
    pub(crate) client_sessions: usize,
    /// `mon metadata`.
    pub(crate) mon_metadata: BTreeMap<String, String>,
    pub(crate) mon_name: String,
    pub(crate) mon_addr: Option<SocketAddr>,
    /// When this map authority started, nanoseconds since 1970; likewise the next two.
    pub(crate) started_ns: u64,
    pub(crate) last_up_change_ns: u64,
    pub(crate) last_in_change_ns: u64,
}

/// What a map authority has besides the map and what OSDs tell it.
#[derive(Clone, Debug, Default)]
pub struct Databases {
    /// `config …`.
    pub config: ConfigDb,
    /// `auth …`.
    pub auth: AuthDb,
    /// The cluster log's stored lines, oldest first.
    pub log: Vec<LogEntry>,
    /// How often the CRUSH map changed.
    pub crush_version: u64,
    /// `health mute`.
    pub mutes: Mutes,
    /// What PGs of cache tiers had dirty when they last reported.
    pub last_dirty: LastDirty,
    /// `config-key …`.
    pub config_keys: BTreeMap<String, Vec<u8>>,
    /// `mon metadata`.
    pub mon_metadata: BTreeMap<String, String>,
    /// The X of `mon.X`.
    pub mon_name: String,
    /// Where it listens.
    pub mon_addr: Option<SocketAddr>,
}

impl MapState {
    /// Starts from a durable map at `now`. All OSDs that are up get their time to report anew.
    pub fn new(map: OsdMap, tuning: Tuning, now: Now) -> MapState {
        MapState::with_databases(map, tuning, now, Databases { mon_name: "a".into(), ..Databases::default() })
    }

    /// As [`MapState::new`], with everything else that was stored.
    pub fn with_databases(map: OsdMap, tuning: Tuning, now: Now, databases: Databases) -> MapState {
        let up = map.osds.iter().filter(|(_, info)| info.up);
        let last_beacon = up.map(|(id, _)| (*id, now.mono_ms)).collect();
        let down = map.osds.iter().filter(|(_, info)| !info.up && info.is_in());
        let down_since = down.map(|(id, _)| (*id, now.mono_ms)).collect();
        MapState {
            last_up_change_ns: map.modified_ns,
            last_in_change_ns: map.modified_ns,
            started_ns: now.wall_ns,
            blocklist_deadlines: blocklist::Deadlines::of(&map.blocklist, now),
            working: map.clone(),
            committed: map,
            changes: Changes::default(),
            keys: BTreeMap::new(),
            in_flight: None,
            last_proposal: 0,
            waiting: Vec::new(),
            out: Vec::new(),
            failures: FailureReports::default(),
            last_tick_ms: None,
            last_beacon,
            down_since,
            stats: StatsState::default(),
            last_dirty: databases.last_dirty,
            services: ServiceMap::new(now),
            log: ClusterLog::restore(databases.log, tuning.log_max_lines),
            tuning,
            rolled_back: BTreeMap::new(),
            config: databases.config,
            config_version: 1,
            auth: databases.auth,
            crush_version: databases.crush_version,
            mutes: databases.mutes,
            config_keys: databases.config_keys,
            running: BTreeMap::new(),
            client_sessions: 0,
            mon_metadata: databases.mon_metadata,
            mon_name: databases.mon_name,
            mon_addr: databases.mon_addr,
        }
    }

    /// The durable map: what may be published and what commands show.
    pub fn map(&self) -> &OsdMap {
        &self.committed
    }

    /// The options in use.
    pub fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    /// Takes new options.
    pub fn set_tuning(&mut self, tuning: Tuning) {
        self.log.keep(tuning.log_max_lines);
        self.tuning = tuning;
    }

    /// The latest reports of OSDs.
    pub fn stats(&self) -> &StatsState {
        &self.stats
    }

    /// Keys and caps.
    pub fn auth(&self) -> &AuthDb {
        &self.auth
    }

    /// Grows with each change of the configuration database.
    pub fn config_version(&self) -> u64 {
        self.config_version
    }

    /// Grows with each change of the CRUSH map.
    pub fn crush_version(&self) -> u64 {
        self.crush_version
    }

    /// Tells how many clients are connected.
    pub fn set_client_sessions(&mut self, count: usize) {
        self.client_sessions = count;
    }

    /// The configuration.
    pub fn config(&self) -> &ConfigDb {
        &self.config
    }

    /// The cluster log's newest lines.
    pub fn log(&self) -> &ClusterLog {
        &self.log
    }

    /// Log lines that are not stored yet, at most `count`; the caller stores them.
    pub fn take_unstored_log(&mut self, count: usize) -> Vec<LogEntry> {
        self.log.take_unstored(count)
    }

    /// Adds a line of the map authority's own.
    pub fn append_log(&mut self, now: Now, level: LogLevel, text: String) {
        self.log.append(now, "mon", level, text);
    }

    /// Takes note of an event. Returns what is to be done at once.
    pub fn handle(&mut self, now: Now, event: Event) -> Vec<Effect> {
        match event {
            Event::Boot(boot) => self.boot(now, &boot),
            Event::Failure { reporter, report } => self.failure(now, reporter, &report),
            Event::Alive { osd, alive } => self.alive(now, osd, &alive),
            Event::MarkMeDown { osd, request } => self.mark_me_down(now, osd, &request),
            Event::Cas { origin, osd, cas } => self.cas(origin, osd, cas),
            Event::Stats { osd, report } => self.report(now, osd, report),
            Event::Config { entity, report } => {
                self.running.insert(entity, report.options);
            }
            Event::Log { entity, line } => {
                self.log.append(now, &entity.to_string(), LogLevel::parse(&line.level), line.text);
            }
            Event::Command(request) => self.command(now, *request),
            Event::Tick => self.tick(now),
        }
        std::mem::take(&mut self.out)
    }

    /// Whether there is something to propose.
    pub fn has_changes(&self) -> bool {
        self.changes.any() || !self.keys.is_empty()
    }

    /// Makes what gathered one proposal. `None` while nothing gathered or while one is in flight.
    pub fn propose(&mut self, now: Now) -> Option<Proposal> {
        if self.in_flight.is_some() || !self.has_changes() {
            return None;
        }
        let incremental = self.changes.any().then(|| {
            self.working.epoch = self.working.epoch.next();
            self.working.modified_ns = now.wall_ns.max(self.committed.modified_ns);
            std::mem::take(&mut self.changes).incremental(&self.committed, &self.working)
        });
        self.last_proposal += 1;
        self.in_flight = Some((self.last_proposal, self.working.clone()));
        Some(Proposal { number: self.last_proposal, incremental, keys: std::mem::take(&mut self.keys) })
    }

    /// The proposal is durable: its map is the map now. Returns the answers that waited for it.
    ///
    /// # Panics
    /// If `number` is not the one in flight. A proposal that could not be made durable can't be taken back: its
    /// outcome is unknown, so the caller must drop this state and load what the store holds.
    pub fn committed(&mut self, number: u64) -> Vec<Effect> {
        let (in_flight, map) = self.in_flight.take().expect("invariant: a proposal is in flight");
        assert_eq!(in_flight, number, "invariant: proposals commit in order");
        self.committed = map;
        let (ready, waiting): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.waiting).into_iter().partition(|(at, _)| *at <= number);
        self.waiting = waiting;
        ready.into_iter().map(|(_, effect)| effect).collect()
    }

    /// Sets bits of [`nacre_types::osdmap::flag`].
    pub(crate) fn set_flags(&mut self, bits: u32) {
        self.changes.flags |= self.working.flags & bits != bits;
        self.working.flags |= bits;
    }

    /// Clears bits of [`nacre_types::osdmap::flag`].
    pub(crate) fn clear_flags(&mut self, bits: u32) {
        self.changes.flags |= self.working.flags & bits != 0;
        self.working.flags &= !bits;
    }

    /// The epoch that will show what is being changed now.
    pub fn next_epoch(&self) -> Epoch {
        self.working.epoch.next()
    }

    /// The first epoch that shows everything that happened up to now.
    fn showing_epoch(&self) -> Epoch {
        if self.changes.any() { self.next_epoch() } else { self.working.epoch }
    }

    /// Sends an answer as soon as everything that it may rest on is durable.
    pub(crate) fn answer(&mut self, effect: Effect) {
        if self.has_changes() {
            let number = self.last_proposal + 1;
            self.waiting.push((number, effect));
        } else if let Some((number, _)) = self.in_flight {
            self.waiting.push((number, effect));
        } else {
            self.out.push(effect);
        }
    }

    fn tick(&mut self, now: Now) {
        self.leave_out_pause(now);
        self.check_beacons(now);
        self.check_failures(now);
        self.check_down_out(now);
        self.update_fullness(now);
        self.stats.sample(now);
        self.store_dirty(now);
        self.expire_blocklist(now);
        self.services.expire(now);
    }
}
