//! The pure map logic: how events in the cluster change the cluster map.
//!
//! [`MapState::handle`] takes an [`MapEvent`] with its time and changes the *working* map. Changes are collected until
//! [`MapState::propose`] turns them into one [`Proposal`] (an incremental and other keys to store). The caller makes the
//! proposal durable and calls [`MapState::on_committed`]. Only then are the answers that depend on it returned, and only then
//! may the incremental be published. Events in between are collected for the next proposal.
//!
//! Invariants: no I/O, no clock, no randomness; an answer shows only what is durable; intervals only grow; pool
//! ids are never reused; `committed + incremental == working`.

mod blocklist;
mod boot;
mod changes;
mod failure;
mod fullness;
mod history;
mod log;
mod membership;
mod mutes;
mod operator;
mod pools;
mod reports;
pub(crate) mod services;
mod tiers;
mod tuning;

#[cfg(test)]
pub(crate) mod tests;

pub use boot::BootRefusal;
pub(crate) use failure::location_text;
pub use fullness::Fullness;
pub use history::EpochHistories;
pub use log::{ClusterLog, ClusterLogEntry, LogChannel, LogLevel};
pub(crate) use membership::has_lost_copy;
pub use membership::{CasRefusal, check_cas};
pub use mutes::{Mute, Mutes};
pub use operator::new_generation;
pub use reports::{PoolIoRates, StatsState};
pub(crate) use tiers::UnverifiedReason;
pub use tiers::{DirtySums, LastReportedDirty};
pub use tuning::{TierDefaults, Tuning};

use crate::auth_db::AuthDb;
use crate::config_db::ConfigDb;
use changes::MapChanges;
use failure::FailureReports;
use nacre_common::auth::Key;
use nacre_types::caps::mon::MonCaps;
use nacre_types::ids::{EntityName, Epoch, OsdId};
use nacre_types::msg::{
    ConfigReport, LogAppend, MonCommand, MonCommandReply, OsdBeacon, OsdBoot, OsdFailure, OsdMarkMeDown,
    PgCas, PgCasReply, ReportedOption, StatsReport,
};
use nacre_types::osdmap::{Incremental, OsdMap};
use services::ServiceMap;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// The time of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Now {
    /// Milliseconds on a monotonic clock, for measuring intervals.
    pub mono_ms: u64,
    /// Nanoseconds since 1970, for timestamps that people read. A wrong clock must never cause anything to happen early.
    pub wall_ns: u64,
}

/// The destination of an answer: a token that the caller chose for a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnToken(pub u64);

/// A command with its context.
#[derive(Clone, Debug)]
pub struct CommandRequest {
    /// Where the answer goes.
    pub origin: ConnToken,
    /// The authenticated entity that sent it.
    pub entity: EntityName,
    /// The address that it came from.
    pub peer: IpAddr,
    /// The sender's capabilities.
    pub caps: Arc<MonCaps>,
    /// The command.
    pub command: MonCommand,
    /// A new random key, for commands that create an entity.
    pub fresh_key: Key,
}

/// An event.
#[derive(Clone, Debug)]
pub enum MapEvent {
    /// An OSD came up.
    Boot(OsdBoot),
    /// An OSD reports a failure of another one, or withdraws the report.
    Failure {
        /// The reporter.
        reporter: OsdId,
        /// The report.
        report: OsdFailure,
    },
    /// An OSD's beacon.
    Alive {
        /// The OSD.
        osd: OsdId,
        /// The beacon.
        alive: OsdBeacon,
    },
    /// An OSD is shutting down.
    MarkMeDown {
        /// The OSD.
        osd: OsdId,
        /// The request.
        request: OsdMarkMeDown,
    },
    /// An OSD proposes a PG's next membership.
    Cas {
        /// Where the answer goes.
        origin: ConnToken,
        /// The OSD that sent it, as authenticated.
        osd: OsdId,
        /// The proposal.
        cas: PgCas,
    },
    /// An OSD's statistics.
    Stats {
        /// The OSD.
        osd: OsdId,
        /// The report.
        report: StatsReport,
    },
    /// A daemon's options.
    Config {
        /// The daemon.
        entity: EntityName,
        /// Its options that are not at their defaults.
        report: ConfigReport,
    },
    /// A line for the cluster log.
    Log {
        /// The entity that sent it.
        entity: EntityName,
        /// The line.
        line: LogAppend,
    },
    /// A command of an operator or a client.
    Command(Box<CommandRequest>),
    /// Time passed. Must be sent about once a second: after more than 5 s without a tick, this map authority is assumed to have
    /// been suspended.
    Tick,
}

/// An action for the caller.
#[derive(Clone, Debug, PartialEq)]
pub enum MapEffect {
    /// Send the outcome of a membership proposal.
    CasReply {
        /// The destination.
        to: ConnToken,
        /// The outcome.
        reply: PgCasReply,
    },
    /// Send a command's answer.
    CommandReply {
        /// The destination.
        to: ConnToken,
        /// The answer.
        reply: MonCommandReply,
    },
}

/// Changes to be made durable together, followed by [`MapState::on_committed`].
#[derive(Clone, Debug, PartialEq)]
pub struct Proposal {
    /// The number of the proposal.
    pub number: u64,
    /// The next epoch, if the map changes.
    pub incremental: Option<Incremental>,
    /// Other keys to set (`Some`) or remove.
    pub keys: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
}

impl Proposal {
    /// A proposal that changes nothing, for storing log lines.
    pub fn empty() -> Proposal {
        Proposal { number: 0, incremental: None, keys: BTreeMap::new() }
    }
}

/// The state of the map authority.
pub struct MapState {
    /// The durable map, which may be shown.
    pub(crate) committed: OsdMap,
    /// `committed` with all later changes.
    pub(crate) working: OsdMap,
    pub(crate) changes: MapChanges,
    pub(crate) keys: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    /// The proposal that is being made durable, and the map that it makes.
    in_flight: Option<(u64, OsdMap)>,
    last_proposal: u64,
    /// The versions of the configuration database and the CRUSH map that are durable, and those of the proposal.
    durable_versions: (u64, u64),
    in_flight_versions: (u64, u64),
    /// The proposal in flight changes keys besides the map.
    in_flight_keys: bool,
    /// Answers that wait for a proposal.
    waiting: Vec<(u64, MapEffect)>,
    out: Vec<MapEffect>,
    pub(crate) tuning: Tuning,
    failures: FailureReports,
    /// The time of the last tick, in milliseconds of the monotonic clock; `None` before the first one.
    last_tick_ms: Option<u64>,
    /// The last sign of life of each OSD that is up, in milliseconds of the monotonic clock.
    pub(crate) last_beacon: BTreeMap<OsdId, u64>,
    /// When each OSD that is in and down went down, likewise.
    pub(crate) down_since: BTreeMap<OsdId, u64>,
    blocklist_deadlines: blocklist::BlocklistDeadlines,
    pub(crate) stats: StatsState,
    pub(crate) last_dirty: LastReportedDirty,
    pub(crate) services: ServiceMap,
    pub(crate) log: ClusterLog,
    /// The histories of the newest durable epochs.
    histories: EpochHistories,
    /// Daemons that have seen a map that the store does not hold, with a description (rule R7).
    pub(crate) rolled_back: BTreeMap<EntityName, String>,
    pub(crate) config: ConfigDb,
    /// Increases with each change of `config`.
    pub(crate) config_version: u64,
    pub(crate) auth: AuthDb,
    pub(crate) crush_version: u64,
    pub(crate) mutes: Mutes,
    /// `config-key …`.
    pub(crate) config_keys: BTreeMap<String, Vec<u8>>,
    /// Options of running daemons that are not at their defaults, as they reported.
    pub(crate) running: BTreeMap<EntityName, Vec<ReportedOption>>,
    /// The number of connected clients, as the caller reported it.
    pub(crate) client_sessions: usize,
    pub(crate) map_store: StoreHealth,
    /// Since when the map store does not answer, in milliseconds of the monotonic clock.
    map_store_unavailable_ms: Option<u64>,
    /// `mon metadata`.
    pub(crate) mon_metadata: BTreeMap<String, String>,
    pub(crate) mon_name: String,
    pub(crate) mon_addr: Option<SocketAddr>,
    /// When this map authority started, nanoseconds since 1970; likewise the next two.
    pub(crate) started_ns: u64,
    pub(crate) last_up_change_ns: u64,
    pub(crate) last_in_change_ns: u64,
}

/// The condition of the map store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreHealth {
    /// Why the last request failed, if it did.
    pub unavailable: Option<String>,
    /// The size of the database in bytes, and the limit at which it refuses writes, if it has one.
    pub usage: Option<(u64, u64)>,
    /// The store refuses writes because the limit was reached.
    pub no_space: bool,
}

/// The durable state of a map authority besides the map.
#[derive(Clone, Debug, Default)]
pub struct Databases {
    /// `config …`.
    pub config: ConfigDb,
    /// `auth …`.
    pub auth: AuthDb,
    /// The cluster log's stored lines, oldest first.
    pub log: Vec<ClusterLogEntry>,
    /// The number of changes of the CRUSH map.
    pub crush_version: u64,
    /// `health mute`.
    pub mutes: Mutes,
    /// The dirty objects of PGs of cache tiers at their last report.
    pub last_dirty: LastReportedDirty,
    /// `config-key …`.
    pub config_keys: BTreeMap<String, Vec<u8>>,
    /// `mon metadata`.
    pub mon_metadata: BTreeMap<String, String>,
    /// The X of `mon.X`.
    pub mon_name: String,
    /// The address that it listens on.
    pub mon_addr: Option<SocketAddr>,
    /// The histories of the newest epochs before the map.
    pub histories: EpochHistories,
}

impl MapState {
    /// Starts from a durable map at `now`. The timeouts of all OSDs that are up start again.
    pub fn new(map: OsdMap, tuning: Tuning, now: Now) -> MapState {
        MapState::with_databases(map, tuning, now, Databases { mon_name: "a".into(), ..Databases::default() })
    }

    /// Like [`MapState::new`], with all other stored state.
    pub fn with_databases(map: OsdMap, tuning: Tuning, now: Now, databases: Databases) -> MapState {
        let up = map.osds.iter().filter(|(_, info)| info.up);
        let last_beacon = up.map(|(id, _)| (*id, now.mono_ms)).collect();
        let down = map.osds.iter().filter(|(_, info)| !info.up && info.is_in());
        let down_since = down.map(|(id, _)| (*id, now.mono_ms)).collect();
        let mut histories = databases.histories;
        histories.add(map.epoch, map.history);
        MapState {
            histories,
            last_up_change_ns: map.modified_ns,
            last_in_change_ns: map.modified_ns,
            started_ns: now.wall_ns,
            blocklist_deadlines: blocklist::BlocklistDeadlines::of(&map.blocklist, now),
            working: map.clone(),
            committed: map,
            changes: MapChanges::default(),
            keys: BTreeMap::new(),
            in_flight: None,
            last_proposal: 0,
            durable_versions: (1, databases.crush_version),
            in_flight_versions: (1, databases.crush_version),
            in_flight_keys: false,
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
            map_store: StoreHealth::default(),
            map_store_unavailable_ms: None,
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

    /// Replaces the options.
    pub fn set_tuning(&mut self, tuning: Tuning) {
        self.log.set_kept_lines(tuning.log_max_lines);
        self.tuning = tuning;
    }

    /// The latest reports of OSDs.
    pub fn stats(&self) -> &StatsState {
        &self.stats
    }

    /// Sets the condition of the map store.
    pub fn set_map_store_health(&mut self, now: Now, health: StoreHealth) {
        self.map_store_unavailable_ms = match &health.unavailable {
            Some(_) => self.map_store_unavailable_ms.or(Some(now.mono_ms)),
            None => None,
        };
        self.map_store = health;
    }

    /// Milliseconds for which tickets are still renewed although the map store does not answer (`mon_ticket_grace`). `None` if it
    /// answers.
    pub fn ticket_grace_left_ms(&self, now: Now) -> Option<u64> {
        let since = self.map_store_unavailable_ms?;
        Some((since + self.tuning.ticket_grace_ms).saturating_sub(now.mono_ms))
    }

    /// Keys and caps.
    pub fn auth(&self) -> &AuthDb {
        &self.auth
    }

    /// Increases with each change of the configuration database.
    pub fn config_version(&self) -> u64 {
        self.config_version
    }

    /// Increases with each change of the CRUSH map.
    pub fn crush_version(&self) -> u64 {
        self.crush_version
    }

    /// Sets the number of connected clients.
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
    pub fn take_unstored_log(&mut self, count: usize) -> Vec<ClusterLogEntry> {
        self.log.take_unstored(count)
    }

    /// Adds a line of the map authority itself.
    pub fn append_log(&mut self, now: Now, level: LogLevel, text: String) {
        self.log.append(now, "mon", level, text);
    }

    /// Handles an event. Returns the effects to be executed at once.
    pub fn handle(&mut self, now: Now, event: MapEvent) -> Vec<MapEffect> {
        match event {
            MapEvent::Boot(boot) => self.boot(now, &boot),
            MapEvent::Failure { reporter, report } => self.failure(now, reporter, &report),
            MapEvent::Alive { osd, alive } => self.alive(now, osd, &alive),
            MapEvent::MarkMeDown { osd, request } => self.mark_me_down(now, osd, &request),
            // Nothing is accepted that will never be durable. The OSD repeats its proposal to the next map authority.
            MapEvent::Cas { .. } if self.is_rolled_back() => {}
            MapEvent::Cas { origin, osd, cas } => self.cas(origin, osd, cas),
            MapEvent::Stats { osd, report } => self.report(now, osd, report),
            MapEvent::Config { entity, report } => {
                self.running.insert(entity, report.options);
            }
            MapEvent::Log { entity, line } => {
                self.log.append(now, &entity.to_string(), LogLevel::parse(&line.level), line.text);
            }
            MapEvent::Command(request) => self.command(now, *request),
            MapEvent::Tick => self.tick(now),
        }
        std::mem::take(&mut self.out)
    }

    /// Whether there are changes that are not in a proposal.
    pub(crate) fn has_changes(&self) -> bool {
        self.changes.any() || !self.keys.is_empty()
    }

    /// Whether there is something to propose.
    pub fn can_propose(&self) -> bool {
        self.in_flight.is_none() && self.has_changes() && !self.is_rolled_back()
    }

    /// Whether what daemons' configuration depends on is durable: the configuration database and the CRUSH map.
    pub fn is_config_durable(&self) -> bool {
        let is_settled = self.in_flight.is_none() && !self.has_changes();
        is_settled || self.durable_versions == self.config_versions()
    }

    /// Whether a proposal in flight changes keys besides the map.
    pub(crate) fn has_keys_in_flight(&self) -> bool {
        self.in_flight.is_some() && self.in_flight_keys
    }

    /// The versions of the configuration database and of the CRUSH map.
    fn config_versions(&self) -> (u64, u64) {
        (self.config_version, self.crush_version)
    }

    /// Turns the collected changes into a proposal. `None` if there are none or while a proposal is in flight.
    pub fn propose(&mut self, now: Now) -> Option<Proposal> {
        if !self.can_propose() {
            return None;
        }
        let incremental = self.changes.any().then(|| {
            self.working.epoch = self.working.epoch.next();
            self.working.modified_ns = now.wall_ns.max(self.committed.modified_ns);
            let incremental = std::mem::take(&mut self.changes).incremental(&self.committed, &self.working);
            self.working.history = incremental.history;
            incremental
        });
        self.last_proposal += 1;
        self.in_flight_versions = self.config_versions();
        self.in_flight_keys = !self.keys.is_empty();
        self.in_flight = Some((self.last_proposal, self.working.clone()));
        Some(Proposal { number: self.last_proposal, incremental, keys: std::mem::take(&mut self.keys) })
    }

    /// Installs the map of a proposal that is durable. Returns the answers that waited for it.
    ///
    /// # Panics
    /// If `number` is not the one in flight. A proposal that failed can't be withdrawn: its outcome is unknown, so the caller
    /// must drop this state and load the contents of the store.
    pub fn on_committed(&mut self, number: u64) -> Vec<MapEffect> {
        let (in_flight, map) = self.in_flight.take().expect("invariant: a proposal is in flight");
        assert_eq!(in_flight, number, "invariant: proposals commit in order");
        self.committed = map;
        self.histories.add(self.committed.epoch, self.committed.history);
        self.durable_versions = self.in_flight_versions;
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

    /// The epoch that will contain the current changes.
    pub fn next_epoch(&self) -> Epoch {
        self.working.epoch.next()
    }

    /// The first epoch that contains all changes so far.
    fn showing_epoch(&self) -> Epoch {
        if self.changes.any() { self.next_epoch() } else { self.working.epoch }
    }

    /// Sends an answer as soon as everything that it may depend on is durable.
    pub(crate) fn answer_when_durable(&mut self, effect: MapEffect) {
        if self.is_rolled_back() {
            // No change will ever be durable. Only answers come here that show something or refuse a change.
            self.out.push(effect);
        } else if self.has_changes() {
            let number = self.last_proposal + 1;
            self.waiting.push((number, effect));
        } else if let Some((number, _)) = self.in_flight {
            self.waiting.push((number, effect));
        } else {
            self.out.push(effect);
        }
    }

    fn tick(&mut self, now: Now) {
        self.discount_suspension(now);
        self.check_beacons(now);
        self.check_failures(now);
        self.check_down_out(now);
        self.update_fullness(now);
        self.stats.sample_io(now);
        self.persist_dirty_sums(now);
        self.expire_blocklist(now);
        self.services.expire(now);
    }
}
