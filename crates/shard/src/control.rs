//! The tasks of an OSD besides its PGs: it follows maps in order, keeps its heartbeats, and reports to the map authority.
//!
//! Only this module applies maps, and it passes them on: first the fences to the lease table, then the connections to peers,
//! then the shards. It never accesses a PG, and never waits for a busy shard (`looks`). Its driver has the session with the map
//! authority and calls [`Control::tick`] when it is due.

mod looks;
mod slow;

use crate::inbox::ShardMessage;
use crate::metrics;
use crate::shard::ShardCell;
use crate::shared::{RunState, Shared, is_process_up};
use crate::superblock::{self, OsdRecords, Superblock};
use crate::up_sets::UpSets;
use looks::ShardProbe;
use nacre_pg::KnownOsds;
use nacre_pg::heartbeat::{HbCommand, HbEnvelope, HbEvent, HeartbeatMap};
use nacre_types::encoding::{DecodeError, decode};
use nacre_types::ids::{Epoch, OsdId};
use nacre_types::msg::{MapPublish, MonSubscribe, OsdBeacon, OsdBoot, PgCasReply, StatsReport};
use nacre_types::osdmap::{Incremental, MapVersion, OsdMap};
use nacre_types::stats::{OsdStats, PoolCompression};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const SECOND_NS: u64 = 1_000_000_000;
/// The time after which statistics, fullness and the session are checked when nothing else happens.
const ROUND_NS: u64 = SECOND_NS;
/// The time after which all statistics are sent again, in case the map authority lost some.
const FULL_REPORT_NS: u64 = 60 * SECOND_NS;
/// The maximum age of the recorded map while maps change.
const RECORD_NS: u64 = 60 * SECOND_NS;
/// The full ratio until there is a map: `mon_osd_full_ratio`'s default.
const DEFAULT_FULL_RATIO: f64 = 0.95;
/// The space that an OSD must have left to not count as full: a part of its size, at most this many bytes.
const FULL_MARGIN_BYTES: u64 = 8 << 20;
const FULL_MARGIN_PART: u64 = 64;

/// See the module's documentation.
pub struct Control {
    shared: Arc<Shared>,
    looks: ShardProbe,
    superblock: Superblock,
    known: KnownOsds,
    /// The newest map that the store has a record of.
    recorded: MapVersion,
    /// `osd metadata`.
    metadata: BTreeMap<String, String>,
    /// Whether messages reach the map authority.
    connected: bool,
    up_sets: UpSets,
    /// The newest epoch that was requested because a peer acts on it.
    asked_epoch: Epoch,
    next_round_ns: u64,
    next_record_ns: u64,
    next_report_ns: u64,
    next_full_report_ns: u64,
    next_beacon_ns: u64,
    next_boot_ns: u64,
    told_full: bool,
    told_slow: bool,
}

impl Control {
    /// Creates it for a process that has just loaded its PGs, with the records of its store.
    pub fn new(
        shared: Arc<Shared>,
        cells: Arc<Vec<ShardCell>>,
        records: OsdRecords,
        metadata: BTreeMap<String, String>,
    ) -> Control {
        let OsdRecords { superblock, known, newest_map } = records;
        Control {
            shared,
            looks: ShardProbe::new(cells),
            superblock,
            known,
            recorded: newest_map,
            metadata,
            connected: false,
            up_sets: UpSets::default(),
            asked_epoch: Epoch(0),
            next_round_ns: 0,
            next_record_ns: 0,
            next_report_ns: 0,
            next_full_report_ns: 0,
            next_beacon_ns: 0,
            next_boot_ns: 0,
            told_full: false,
            told_slow: false,
        }
    }

    /// Does what is due. Returns when to call it again.
    pub fn tick(&mut self) -> u64 {
        let now_ns = self.shared.world.boot_ns();
        self.beat();
        if now_ns >= self.next_round_ns {
            self.next_round_ns = now_ns + ROUND_NS;
            self.looks.begin_round();
            if self.connected {
                self.boot();
            }
            self.judge_space();
            if now_ns >= self.next_record_ns {
                self.record_map();
            }
            self.report(now_ns);
        }
        self.next_ns()
    }

    /// The time of the next due task.
    pub fn next_ns(&self) -> u64 {
        let beat_ns = self.shared.heartbeats.lock().next_wake().unwrap_or(u64::MAX);
        beat_ns.min(self.next_round_ns)
    }

    /// Sets how long it waits for a busy shard before it continues with what it knows. In a simulation, the shard makes no
    /// progress in that time.
    pub fn set_turn_timeout(&mut self, patience: Duration) {
        self.looks.set_patience(patience);
    }

    /// Records that statistics or fullness changed: the next round reports.
    pub fn request_report(&mut self) {
        self.next_round_ns = 0;
    }

    /// Records the map in the store if this OSD is up in it and it is newer than the recorded one. A map in which the OSD is not up
    /// may come from a store that has lost what is recorded: the record is the evidence of that.
    fn record_map(&mut self) {
        let Some(map) = self.shared.map.load_full().filter(|_| self.is_up()) else { return };
        self.next_record_ns = self.shared.world.boot_ns() + RECORD_NS;
        // A record that does not fit would end the store.
        if self.shared.is_full() {
            return;
        }
        if (map.generation, map.epoch) <= (self.recorded.generation, self.recorded.epoch) {
            return;
        }
        match superblock::write_newest_map(&map, &*self.shared.store) {
            Ok(()) => self.recorded = map.version(),
            Err(error) => tracing::warn!(%error, "the map can't be recorded; trying again later"),
        }
    }

    /// Records the newest map seen in the store.
    pub fn save_superblock(&mut self) -> nacre_objectstore::Result<()> {
        self.record_map();
        if let Some(map) = self.shared.map.load_full() {
            self.superblock.epoch = self.superblock.epoch.max(map.epoch);
            self.superblock.generation = self.superblock.generation.max(map.generation);
        }
        self.superblock.write(&*self.shared.store)
    }

    fn is_up(&self) -> bool {
        self.shared.is_shown_up()
    }
}

/// The session with the map authority.
impl Control {
    /// Records that messages reach the map authority from now on; it received nothing that was sent before.
    pub fn on_connected(&mut self) {
        self.connected = true;
        // First, so that the map authority sees this OSD's history before this OSD follows another one.
        if self.is_up() {
            self.send_beacon();
        }
        let next_epoch = self.shared.map.load().as_ref().map_or(Epoch(0), |map| map.epoch.next());
        self.shared.to_mon(&MonSubscribe { next_epoch, config: true });
        self.next_boot_ns = 0;
        self.next_full_report_ns = 0;
        self.next_round_ns = 0;
        self.boot();
        let now_ns = self.shared.world.boot_ns();
        self.shared.heartbeats.lock().feed(now_ns, HbEvent::MonReset);
        self.shared.report.notify_one();
    }

    /// Records that the session has ended.
    pub fn on_disconnected(&mut self) {
        self.connected = false;
        self.next_round_ns = 0;
        self.shared.report.notify_one();
    }

    /// Handles the map authority's answer to a proposal.
    pub fn on_cas(&self, reply: PgCasReply) {
        self.shared.heartbeats.lock().advance_acted_epoch(reply.epoch);
        self.shared.inboxes[self.shared.shard_of(reply.pg)].post(ShardMessage::Cas(reply));
    }

    /// Handles maps: a full one, or changes.
    pub fn on_maps(&mut self, publish: &MapPublish) -> Result<(), DecodeError> {
        let known = self.shared.map.load_full();
        let fsid = self.superblock.fsid;
        if known.as_ref().is_some_and(|map| map.fsid != publish.fsid) || publish.fsid != fsid {
            let served = publish.fsid;
            let reason = format!("the monitor serves cluster {served}, this OSD belongs to {fsid}");
            self.shared.fatal(&reason);
            return Ok(());
        }
        let mut map = known.clone();
        if !publish.full.is_empty() {
            let full: OsdMap = decode(&publish.full)?;
            let newer = known
                .as_ref()
                .is_none_or(|known| (full.generation, full.epoch) > (known.generation, known.epoch));
            if newer {
                map = Some(Arc::new(full));
            }
        }
        for blob in &publish.incrementals {
            let incremental: Incremental = decode(&blob.0)?;
            match &map {
                Some(current) if incremental.epoch <= current.epoch => {}
                Some(current) if incremental.epoch == current.epoch.next() => {
                    map = Some(Arc::new(current.apply(&incremental)?));
                }
                _ => break,
            }
        }
        if let Some(map) = &map
            && known.as_ref().is_none_or(|known| !Arc::ptr_eq(known, map))
        {
            self.apply(Arc::clone(map), known.as_ref());
        }
        let behind = map.as_ref().is_none_or(|map| map.epoch < publish.newest);
        let restored = map.as_ref().is_some_and(|map| map.epoch > publish.newest);
        if behind || restored {
            // There is a gap, or the authority's store was restored to an earlier state: its full map decides.
            let next_epoch = if restored { Epoch(0) } else { map.map_or(Epoch(0), |map| map.epoch.next()) };
            self.shared.to_mon(&MonSubscribe { next_epoch, config: false });
        }
        Ok(())
    }

    fn apply(&mut self, map: Arc<OsdMap>, before: Option<&Arc<OsdMap>>) {
        let shared = Arc::clone(&self.shared);
        let now_ns = shared.world.boot_ns();
        let up = self.up_sets.update(&map);
        let whoami = shared.whoami;
        let mut sharing: BTreeSet<OsdId> = BTreeSet::new();
        for (pg, up) in up.iter() {
            let members = map.membership(*pg).map(|m| &m.in_sync[..]).unwrap_or_default();
            if up.contains(&whoami) || members.iter().any(|member| member.osd == whoami) {
                sharing.extend(up.iter().copied().chain(members.iter().map(|member| member.osd)));
            }
        }
        self.looks.pg_peers(&mut sharing);
        sharing.remove(&whoami);
        let min_peers = shared.config.get().osd.osd_heartbeat_min_peers as usize;
        let beat_map = HeartbeatMap::new(&map, whoami, &sharing, min_peers);
        // The OSDs that the map lists are durable before any PG acts on it (rule R7).
        if self.known.on_map(&map)
            && let Err(error) = superblock::write_known_osds(&self.known, &*shared.store)
        {
            shared.fatal(&format!("can't record which OSDs there are: {error}"));
            return;
        }
        let unlisted: Arc<[OsdId]> = self.known.unlisted().collect();
        // The fences are in place before any PG acts on the map.
        shared.heartbeats.lock().feed(now_ns, HbEvent::Map(beat_map));
        let changed = shared.world.follow_map(&map);
        shared.map.store(Some(Arc::clone(&map)));
        if before.is_none_or(|before| before.pools != map.pools) {
            shared.world.pools_changed();
        }
        shared.post_all(|| ShardMessage::Map {
            map: Arc::clone(&map),
            up: Arc::clone(&up),
            unlisted: Arc::clone(&unlisted),
        });
        for osd in changed {
            shared.post_all(|| ShardMessage::PeerReset(osd));
        }
        self.beat();
        let was_up = before.is_some_and(|before| is_process_up(before, &shared));
        let is_up = is_process_up(&map, &shared);
        if is_up != was_up {
            tracing::info!(osd = %whoami, epoch = %map.epoch, up = is_up, "the map shows this OSD");
            self.next_boot_ns = 0;
            self.next_round_ns = 0;
            self.next_full_report_ns = 0;
        }
        if before.is_none_or(|before| {
            before.pools != map.pools || !Arc::ptr_eq(&before.crush, &map.crush) || !was_up
        }) {
            self.record_map();
        }
        if before.is_none_or(|before| before.generation != map.generation)
            && self.superblock.generation < map.generation
        {
            (self.superblock.generation, self.superblock.epoch) = (map.generation, map.epoch);
            if let Err(error) = self.superblock.write(&*shared.store) {
                shared.fatal(&format!("can't record the map's generation: {error}"));
            }
        }
        if !is_up {
            self.boot();
        }
    }

    /// Reports to the map authority that this OSD is up, repeatedly until the map shows it.
    pub fn boot(&mut self) {
        let shared = &self.shared;
        let now_ns = shared.world.boot_ns();
        let running = *shared.state.borrow() == RunState::Running;
        let Some(map) = shared.map.load_full().filter(|_| running) else { return };
        if is_process_up(&map, shared) || now_ns < self.next_boot_ns {
            return;
        }
        let Some(addr) = shared.world.public_addr() else { return };
        self.next_boot_ns = now_ns + SECOND_NS;
        let statfs = shared.store.statfs().unwrap_or_default();
        let options = shared.config.snapshot();
        shared.to_mon(&OsdBoot {
            osd: shared.whoami,
            uuid: self.superblock.uuid,
            incarnation: shared.me.incarnation,
            boot_nonce: shared.boot_nonce,
            addr,
            epoch: map.epoch,
            seen: self.recorded,
            total_bytes: statfs.total_bytes,
            metadata: self.metadata.clone(),
            location: location_of(&options.osd.crush_location, shared.config.host()),
            device_class: match options.osd.osd_device_class.as_str() {
                "" => if shared.store.kind() == "memstore" { "mem" } else { "ssd" }.to_owned(),
                class => class.to_owned(),
            },
        });
    }
}

/// The location in `crush_location` (`root=default host=a`); this host under the default root if it is empty.
fn location_of(text: &str, host: &str) -> BTreeMap<String, String> {
    let given: BTreeMap<String, String> = text
        .split([' ', ',', ';'])
        .filter_map(|pair| pair.split_once('='))
        .map(|(kind, name)| (kind.trim().to_owned(), name.trim().to_owned()))
        .collect();
    if !given.is_empty() {
        return given;
    }
    let host = host.split('.').next().unwrap_or(host);
    [("root".to_owned(), "default".to_owned()), ("host".to_owned(), host.to_owned())].into()
}

/// Heartbeats.
impl Control {
    /// Handles a peer's answer to a ping. Pings are answered on the threads that receive them ([`Shared::on_ping`]).
    pub fn on_ping_reply(&mut self, from: OsdId, envelope: HbEnvelope) {
        let HbEnvelope { space_bytes, msg } = envelope;
        self.shared.post_all(|| ShardMessage::Space { from, space_bytes });
        self.feed(HbEvent::Message { from, msg });
    }

    /// Handles a refused connection: on the machine of `target`, no process listens at the address of its process.
    pub fn on_connection_refused(&mut self, target: OsdId, boot_nonce: u64) {
        self.feed(HbEvent::Refused { target, boot_nonce });
    }

    fn feed(&mut self, event: HbEvent) {
        let now_ns = self.shared.world.boot_ns();
        self.shared.heartbeats.lock().feed(now_ns, event);
        self.beat();
    }

    /// Passes the time to the machine and executes its commands.
    fn beat(&mut self) {
        let now_ns = self.shared.world.boot_ns();
        let said = {
            let mut heartbeats = self.shared.heartbeats.lock();
            if heartbeats.next_wake().is_some_and(|at| at <= now_ns) {
                heartbeats.feed(now_ns, HbEvent::Tick);
            }
            heartbeats.take_commands()
        };
        let mut gained = false;
        for command in said {
            match command {
                HbCommand::SendPing { to, msg } | HbCommand::SendReply { to, msg } => {
                    self.shared.world.ping(to, &self.shared.hb_envelope(msg));
                }
                HbCommand::ReportFailure(report) | HbCommand::CancelFailure(report) => {
                    tracing::info!(target_osd = %report.target, silent_ms = report.silent_ms, refused = report.refused,
                        "reporting a peer");
                    self.shared.to_mon(&report);
                }
                HbCommand::LeaseGained(_) => gained = true,
                HbCommand::NewerMap(epoch) => self.want_map(epoch),
            }
        }
        if gained {
            self.shared.post_all(|| ShardMessage::Leases);
        }
    }

    /// Requests a newer map that a peer acts on. The subscription delivers it, unless a message was lost. Requests each epoch
    /// once.
    fn want_map(&mut self, epoch: Epoch) {
        let next_epoch = self.shared.map.load().as_ref().map_or(Epoch(0), |map| map.epoch.next());
        if epoch >= next_epoch && epoch > self.asked_epoch {
            self.asked_epoch = epoch;
            self.shared.to_mon(&MonSubscribe { next_epoch, config: false });
        }
    }
}

/// Reports.
impl Control {
    /// Determines whether the store is too full for writes (`OSD_FULL`).
    fn judge_space(&self) {
        let shared = &self.shared;
        let Some((left, total)) = measure_space(shared) else { return };
        let margin = (total / FULL_MARGIN_PART).min(FULL_MARGIN_BYTES);
        // A full store counts as usable again only with twice the margin free.
        let wanted = if shared.is_full() { 2 * margin } else { margin };
        let refused = shared.store.reserve(wanted).is_err();
        shared.set_full(refused || left < wanted);
    }

    fn send_beacon(&mut self) {
        let shared = Arc::clone(&self.shared);
        let interval = shared.config.get().osd.osd_beacon_report_interval;
        self.next_beacon_ns = shared.world.boot_ns() + interval.as_nanos() as u64;
        self.told_full = shared.is_full();
        let map = shared.map.load().as_ref().map_or_else(MapVersion::default, |map| map.version());
        shared.to_mon(&OsdBeacon { boot_nonce: shared.boot_nonce, map, full: self.told_full });
    }

    fn report(&mut self, now_ns: u64) {
        let shared = Arc::clone(&self.shared);
        if !self.connected || !self.is_up() {
            return;
        }
        let options = shared.config.get();
        let full = shared.is_full();
        if now_ns >= self.next_beacon_ns || full != self.told_full {
            self.send_beacon();
        }
        let slow = self.watch_slow_ops(now_ns);
        // The first slow op, and the end of the last one, are reported at once.
        let news = (slow.count > 0) != self.told_slow;
        self.told_slow = slow.count > 0;
        let all = now_ns >= self.next_full_report_ns;
        let pgs = self.looks.take_pg_stats(all);
        let news = news || shared.options_changed.load(Ordering::Relaxed);
        if pgs.is_empty() && !all && !news && now_ns < self.next_report_ns {
            return;
        }
        if all {
            self.next_full_report_ns = now_ns + FULL_REPORT_NS;
        }
        if shared.options_changed.swap(false, Ordering::Relaxed) || all {
            shared.to_mon(&shared.config.report());
        }
        self.next_report_ns = now_ns + options.osd.osd_mon_report_interval.as_nanos() as u64;
        drop(options);
        shared.to_mon(&StatsReport { osd: self.osd_stats(), pgs, starting: false });
    }

    fn osd_stats(&self) -> OsdStats {
        let shared = &self.shared;
        let statfs = shared.store.statfs().unwrap_or_default();
        let compressed = statfs.pools.iter().filter(|(_, usage)| usage.compressed_original_bytes > 0);
        let compressed = compressed
            .map(|(pool, usage)| PoolCompression {
                pool: *pool,
                compressed_bytes: usage.compressed_bytes,
                allocated_bytes: usage.compressed_allocated_bytes,
                original_bytes: usage.compressed_original_bytes,
            })
            .collect();
        let metrics = || shared.metrics.iter().map(|m| &**m);
        let heartbeat_peers = shared.heartbeats.lock().peers();
        OsdStats {
            // `Statfs::total_bytes` does not include the database. The database counts as used space.
            total_bytes: statfs.total_bytes + statfs.omap_bytes + statfs.meta_bytes,
            available_bytes: statfs.available_bytes,
            data_bytes: statfs.allocated_bytes,
            omap_bytes: statfs.omap_bytes,
            meta_bytes: statfs.meta_bytes,
            pgs: self.looks.pg_count() as u32,
            commit_latency_ms: metrics::average_ms(metrics(), |m| &m.commit_latency),
            apply_latency_ms: metrics::average_ms(metrics(), |m| &m.apply_latency),
            heartbeat_peers,
            health: shared.world.health(&*shared.store),
            slow_ops: self.looks.slow_ops(),
            compressed,
        }
    }
}

/// Measures the bytes that the store can take before it reaches the full ratio. Returns them and the store's size.
pub fn measure_space(shared: &Shared) -> Option<(u64, u64)> {
    let statfs = shared.store.statfs().ok()?;
    let map = shared.map.load();
    let ratios = map.as_ref().map(|map| (f64::from(map.full_ratio), f64::from(map.backfillfull_ratio)));
    let (full, backfillfull) = ratios.unwrap_or((DEFAULT_FULL_RATIO, DEFAULT_FULL_RATIO));
    let kept = |ratio: f64| (statfs.total_bytes as f64 * (1.0 - ratio).clamp(0.0, 1.0)) as u64;
    let left = statfs.available_bytes.saturating_sub(kept(full));
    shared.set_backfill_full(statfs.available_bytes < kept(backfillfull));
    shared.space_bytes.store(left, Ordering::Relaxed);
    shared.total_bytes.store(statfs.total_bytes, Ordering::Relaxed);
    Some((left, statfs.total_bytes))
}
