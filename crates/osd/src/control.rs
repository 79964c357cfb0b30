//! The control thread: the session with the map authority, maps, heartbeats, reports.
//!
//! It alone applies maps, in order, and tells everybody else: first the lease table's fences, then the connections to
//! peers, then the shards. It never touches a PG.

mod mon;
mod slow;

use crate::clock;
use crate::shared::Shared;
use crate::store_kind::{DATA_OPTIONS, data_options};
use crate::superblock::{self, Superblock};
use crate::up_sets::UpSets;
use arc_swap::ArcSwapOption;
use mon::MonSession;
use nacre_common::auth::{Credential, Credentials, ServiceKeys, Ticket};
use nacre_common::error::Error;
use nacre_pg::KnownOsds;
use nacre_pg::heartbeat::{HbCommand, HbEnvelope, HbEvent, HbMsg, HeartbeatMap};
use nacre_runtime::msgr::{Conn, Dispatcher, Frame, Messenger, Policy, Reset, Target};
use nacre_shard::heartbeats;
use nacre_shard::inbox::ShardMessage;
use nacre_shard::metrics;
use nacre_shard::shard::ShardCell;
use nacre_shard::shared::RunState;
use nacre_types::encoding::{DecodeError, decode};
use nacre_types::ids::{EntityName, Epoch, OsdId};
use nacre_types::msg::{MapPublish, MonSubscribe, OsdAlive, OsdBoot, OsdMarkMeDown, StatsReport};
use nacre_types::osdmap::{Incremental, OsdMap};
use nacre_types::stats::{OsdStats, PoolCompression};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

const SECOND_NS: u64 = 1_000_000_000;
/// How often statistics, fullness and the session are looked at when nothing else happens.
const ROUND_NS: u64 = SECOND_NS;
/// Reports follow a change after this long, so that changes close together go together.
const SETTLE: Duration = Duration::from_millis(100);
/// All statistics are sent again this often, in case the map authority lost some.
const FULL_REPORT_NS: u64 = 60 * SECOND_NS;
/// Until there is a map: `mon_osd_full_ratio`'s default.
const DEFAULT_FULL_RATIO: f64 = 0.95;
/// Space that must be left for an OSD not to count as full: a part of its size, at most so many bytes.
const FULL_MARGIN_BYTES: u64 = 8 << 20;
const FULL_MARGIN_PART: u64 = 64;

/// What does not change while the OSD runs.
pub(crate) struct Identity {
    /// The disk's id.
    pub(crate) superblock: Superblock,
    /// Which OSDs this one had heard of when it started.
    pub(crate) known: KnownOsds,
    /// Where the OSD listens.
    pub(crate) addr: OnceLock<std::net::SocketAddr>,
    /// `osd metadata`.
    pub(crate) metadata: std::collections::BTreeMap<String, String>,
}

/// See the module's documentation.
pub(crate) struct Control {
    pub(crate) shared: Arc<Shared>,
    pub(crate) cells: Arc<Vec<ShardCell>>,
    pub(crate) identity: Identity,
    /// Proves who this OSD is to the map authority.
    pub(crate) key: Arc<dyn Credentials>,
    /// Proves who this OSD is to its peers, once the map authority has given it.
    pub(crate) ticket: Arc<ArcSwapOption<Ticket>>,
    pub(crate) service_keys: Arc<ServiceKeys>,
    messenger: Mutex<Option<Messenger>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    mon: MonSession,
    up_sets: UpSets,
    pings: HashMap<OsdId, (u64, Conn)>,
    superblock: Option<Superblock>,
    known: KnownOsds,
    next_round_ns: u64,
    next_report_ns: u64,
    next_full_report_ns: u64,
    next_beacon_ns: u64,
    next_boot_ns: u64,
    told_full: bool,
    told_slow: bool,
}

impl Control {
    pub(crate) fn new(
        shared: Arc<Shared>,
        cells: Arc<Vec<ShardCell>>,
        identity: Identity,
        key: Arc<dyn Credentials>,
        ticket: Arc<ArcSwapOption<Ticket>>,
        service_keys: Arc<ServiceKeys>,
    ) -> Control {
        let state = State {
            superblock: Some(identity.superblock.clone()),
            known: identity.known.clone(),
            ..State::default()
        };
        Control {
            shared,
            cells,
            identity,
            key,
            ticket,
            service_keys,
            messenger: Mutex::default(),
            state: Mutex::new(state),
        }
    }

    /// The control thread's task, until dropped.
    pub(crate) async fn run(self: Arc<Self>) {
        loop {
            let now_ns = clock::boot_ns();
            let next_ns = self.round(now_ns);
            let wait = Duration::from_nanos(next_ns.saturating_sub(now_ns));
            tokio::select! {
                () = self.shared.report.notified() => {
                    // Pings' answers can't wait; statistics can.
                    if !self.shared.heartbeats.lock().has_said() {
                        tokio::time::sleep(SETTLE).await;
                    }
                    self.state.lock().next_round_ns = 0;
                }
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Does what is due; returns when to come again.
    fn round(&self, now_ns: u64) -> u64 {
        let state = &mut *self.state.lock();
        self.beat(state, now_ns);
        if now_ns >= state.next_round_ns {
            state.next_round_ns = now_ns + ROUND_NS;
            self.keep_session(state, now_ns);
            self.judge_space();
            self.report(state, now_ns);
        }
        let beat_ns = self.shared.heartbeats.lock().next_wake().unwrap_or(u64::MAX);
        beat_ns.min(state.next_round_ns).min(state.mon.next_ns()).max(now_ns + 1_000_000)
    }

    /// Gives the messenger to connect with, before anything else.
    pub(crate) fn set_messenger(&self, messenger: Messenger) {
        *self.messenger.lock() = Some(messenger);
    }

    fn messenger(&self) -> Option<Messenger> {
        self.messenger.lock().clone()
    }

    /// Forgets messenger and connections: they hold on to what holds this.
    pub(crate) fn close(&self) {
        self.messenger.lock().take();
        let state = &mut *self.state.lock();
        state.pings.clear();
        state.mon = MonSession::default();
        self.shared.outside.mon.store(None);
        self.shared.outside.peers.close();
        self.shared.outside.copier.close();
        for cell in self.cells.iter() {
            cell.with(|shard| shard.close());
        }
    }

    /// Whether the map shows this very process as up.
    pub(crate) fn is_up(&self) -> bool {
        self.shared.map.load().as_ref().is_some_and(|map| shows_up(map, &self.shared))
    }

    /// Tells the map authority that this OSD stops, and waits until the map says so or the time is over.
    pub(crate) async fn go_down(&self) {
        let limit = self.shared.config.get().osd.osd_mon_shutdown_timeout;
        let deadline = tokio::time::Instant::now() + limit;
        if !self.is_up() {
            return;
        }
        self.shared.to_mon(&OsdMarkMeDown { boot_nonce: self.shared.boot_nonce });
        while self.is_up() && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Records the newest map seen in the store.
    pub(crate) fn save_superblock(&self) -> Result<(), crate::error::OsdError> {
        let state = &mut *self.state.lock();
        let map = self.shared.map.load_full();
        let Some(superblock) = state.superblock.as_mut() else { return Ok(()) };
        if let Some(map) = map {
            superblock.epoch = superblock.epoch.max(map.epoch);
            superblock.generation = superblock.generation.max(map.generation);
        }
        superblock.write(&*self.shared.store)
    }
}

fn shows_up(map: &OsdMap, shared: &Shared) -> bool {
    map.osds.get(&shared.whoami).is_some_and(|info| info.up && info.boot_nonce == shared.boot_nonce)
}

/// Maps.
impl Control {
    fn on_maps(&self, state: &mut State, publish: &MapPublish) -> Result<(), DecodeError> {
        let known = self.shared.map.load_full();
        if known.as_ref().is_some_and(|map| map.fsid != publish.fsid)
            || publish.fsid != self.identity.superblock.fsid
        {
            self.shared.fatal(&format!(
                "the monitor serves cluster {}, this OSD belongs to {}",
                publish.fsid, self.identity.superblock.fsid
            ));
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
            self.apply(state, Arc::clone(map), known.as_ref());
        }
        let behind = map.as_ref().is_none_or(|map| map.epoch < publish.newest);
        let restored = map.as_ref().is_some_and(|map| map.epoch > publish.newest);
        if behind || restored {
            // A gap, or the authority's store went back in time: its full map decides.
            let next_epoch = if restored { Epoch(0) } else { map.map_or(Epoch(0), |map| map.epoch.next()) };
            self.shared.to_mon(&MonSubscribe { next_epoch, config: false });
        }
        Ok(())
    }

    fn apply(&self, state: &mut State, map: Arc<OsdMap>, before: Option<&Arc<OsdMap>>) {
        let shared = &self.shared;
        let now_ns = clock::boot_ns();
        let up = state.up_sets.update(&map);
        let whoami = shared.whoami;
        let mut sharing: BTreeSet<OsdId> = BTreeSet::new();
        for (pg, up) in up.iter() {
            let members = map.membership(*pg).map(|m| &m.in_sync[..]).unwrap_or_default();
            if up.contains(&whoami) || members.iter().any(|member| member.osd == whoami) {
                sharing.extend(up.iter().copied().chain(members.iter().map(|member| member.osd)));
            }
        }
        for cell in self.cells.iter() {
            cell.inspect(|shard| shard.neighbours(&mut sharing));
        }
        sharing.remove(&whoami);
        let min_peers = shared.config.get().osd.osd_heartbeat_min_peers as usize;
        let beat_map = HeartbeatMap::new(&map, whoami, &sharing, min_peers);
        // What the map tells of OSDs is durable before any PG acts on it (rule R7).
        if state.known.on_map(&map)
            && let Err(error) = superblock::write_known(&state.known, &*shared.store)
        {
            shared.fatal(&format!("can't record which OSDs there are: {error}"));
            return;
        }
        let unlisted: Arc<[OsdId]> = state.known.unlisted().collect();
        // The fences stand before any PG acts on the map.
        shared.heartbeats.lock().feed(now_ns, HbEvent::Map(beat_map));
        let changed = shared.outside.peers.on_map(&map, whoami);
        shared.map.store(Some(Arc::clone(&map)));
        if before.is_none_or(|before| before.pools != map.pools) {
            set_data_options(shared);
        }
        shared.post_all(|| ShardMessage::Map {
            map: Arc::clone(&map),
            up: Arc::clone(&up),
            unlisted: Arc::clone(&unlisted),
        });
        for osd in changed {
            shared.post_all(|| ShardMessage::PeerReset(osd));
        }
        state.pings.retain(|osd, (nonce, conn)| {
            let keep = map.osds.get(osd).is_some_and(|info| info.up && info.boot_nonce == *nonce);
            if !keep {
                conn.abort();
            }
            keep
        });
        self.beat(state, now_ns);
        let was_up = before.is_some_and(|before| shows_up(before, shared));
        let is_up = shows_up(&map, shared);
        if is_up != was_up {
            tracing::info!(osd = %whoami, epoch = %map.epoch, up = is_up, "the map shows this OSD");
            state.next_boot_ns = 0;
            state.next_round_ns = 0;
            state.next_full_report_ns = 0;
        }
        if before.is_none_or(|before| before.generation != map.generation)
            && state.superblock.as_ref().is_some_and(|sb| sb.generation < map.generation)
            && let Some(superblock) = state.superblock.as_mut()
        {
            (superblock.generation, superblock.epoch) = (map.generation, map.epoch);
            if let Err(error) = superblock.write(&*shared.store) {
                shared.fatal(&format!("can't record the map's generation: {error}"));
            }
        }
        if !is_up {
            self.boot(state, now_ns);
        }
    }

    /// Tells the map authority that this OSD is up, again and again until the map shows it.
    fn boot(&self, state: &mut State, now_ns: u64) {
        let shared = &self.shared;
        let running = *shared.state.borrow() == RunState::Running;
        let Some(map) = shared.map.load_full().filter(|_| running) else { return };
        if shows_up(&map, shared) || now_ns < state.next_boot_ns || self.ticket.load().is_none() {
            return;
        }
        let Some(addr) = self.identity.addr.get() else { return };
        state.next_boot_ns = now_ns + SECOND_NS;
        let statfs = shared.store.statfs().unwrap_or_default();
        let options = shared.config.snapshot();
        let location = location_of(&options.osd.crush_location, shared.config.host());
        let superblock = state.superblock.as_ref().unwrap_or(&self.identity.superblock);
        shared.to_mon(&OsdBoot {
            osd: shared.whoami,
            uuid: superblock.uuid,
            incarnation: shared.me.incarnation,
            boot_nonce: shared.boot_nonce,
            addr: *addr,
            epoch: map.epoch,
            generation: superblock.generation,
            total_bytes: statfs.total_bytes,
            metadata: self.identity.metadata.clone(),
            location,
            device_class: match options.osd.osd_device_class.as_str() {
                "" => if shared.store.kind() == "memstore" { "mem" } else { "ssd" }.to_owned(),
                class => class.to_owned(),
            },
        });
    }
}

/// `crush_location` (`root=default host=a`); this host under the default root where it is empty.
fn location_of(text: &str, host: &str) -> std::collections::BTreeMap<String, String> {
    let given: std::collections::BTreeMap<String, String> = text
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
    /// Lets the machines look at the clock and carries out what they said.
    fn beat(&self, state: &mut State, now_ns: u64) {
        let said = {
            let mut heartbeats = self.shared.heartbeats.lock();
            if heartbeats.next_wake().is_some_and(|at| at <= now_ns) {
                heartbeats.feed(now_ns, HbEvent::Tick);
            }
            heartbeats.take_said()
        };
        let mut gained = false;
        for command in said {
            match command {
                HbCommand::SendPing { to, msg } | HbCommand::SendReply { to, msg } => {
                    self.ping(state, to, &msg);
                }
                HbCommand::ReportFailure(report) | HbCommand::CancelFailure(report) => {
                    tracing::info!(target_osd = %report.target, silent_ms = report.silent_ms, refused = report.refused,
                        "reporting a peer");
                    self.shared.to_mon(&report);
                }
                HbCommand::LeaseGained(_) => gained = true,
                HbCommand::NewerMap(epoch) => self.want_map(state, epoch),
            }
        }
        if gained {
            self.shared.post_all(|| ShardMessage::Leases);
        }
    }

    /// Somebody acts by a newer map; the subscription brings it, unless something got lost.
    fn want_map(&self, state: &mut State, epoch: Epoch) {
        let next_epoch = self.shared.map.load().as_ref().map_or(Epoch(0), |map| map.epoch.next());
        if epoch >= next_epoch && state.mon.may_ask(epoch) {
            self.shared.to_mon(&MonSubscribe { next_epoch, config: false });
        }
    }

    fn ping(&self, state: &mut State, to: OsdId, msg: &HbMsg) {
        let Some((nonce, addr)) = self.shared.map.load().as_ref().and_then(|map| {
            map.osds.get(&to).filter(|info| info.up).and_then(|info| Some((info.boot_nonce, info.addr?)))
        }) else {
            return;
        };
        let usable = state.pings.get(&to).filter(|(of, conn)| *of == nonce && !conn.is_over());
        let conn = match usable {
            Some((_, conn)) => conn.clone(),
            None => {
                let Some(messenger) = self.messenger() else { return };
                let credentials: Arc<dyn Credentials> = Arc::new(TicketCredentials(Arc::clone(&self.ticket)));
                let target = Target {
                    addr,
                    entity: Some(EntityName::osd(to)),
                    policy: Policy::Lossy,
                    lane: 0,
                    credentials,
                };
                match messenger.connect(target) {
                    Ok(conn) => {
                        conn.set_context(Arc::new(Pinged { osd: to, boot_nonce: nonce }));
                        state.pings.insert(to, (nonce, conn.clone()));
                        conn
                    }
                    Err(error) => {
                        tracing::debug!(%to, %error, "can't ping");
                        return;
                    }
                }
            }
        };
        if let Err(error) = conn.send(&self.shared.heartbeat(*msg)) {
            tracing::debug!(%to, %error, "can't ping");
        }
    }
}

/// Whom a heartbeat connection is to.
struct Pinged {
    osd: OsdId,
    boot_nonce: u64,
}

/// The ticket that the map authority gave.
pub(crate) struct TicketCredentials(pub(crate) Arc<ArcSwapOption<Ticket>>);

impl Credentials for TicketCredentials {
    fn credential(&self) -> Result<Credential, Error> {
        match self.0.load_full() {
            Some(ticket) => Ok(Credential::Ticket((*ticket).clone())),
            None => Err(Error::Expired("no ticket from the monitor yet".into())),
        }
    }
}

/// Reports.
impl Control {
    /// Whether the store is too full for writes (`OSD_FULL`).
    fn judge_space(&self) {
        let shared = &self.shared;
        let Some((left, total)) = measure_space(shared) else { return };
        let margin = (total / FULL_MARGIN_PART).min(FULL_MARGIN_BYTES);
        // Twice the margin must be free before a full store counts as usable again.
        let wanted = if shared.is_full() { 2 * margin } else { margin };
        let refused = shared.store.reserve(wanted).is_err();
        shared.set_full(refused || left < wanted);
    }

    fn report(&self, state: &mut State, now_ns: u64) {
        let shared = &self.shared;
        if !state.mon.is_up() || !self.is_up() {
            return;
        }
        let options = shared.config.get();
        let full = shared.is_full();
        if now_ns >= state.next_beacon_ns || full != state.told_full {
            state.next_beacon_ns = now_ns + options.osd.osd_beacon_report_interval.as_nanos() as u64;
            state.told_full = full;
            let epoch = shared.map.load().as_ref().map_or(Epoch(0), |map| map.epoch);
            shared.to_mon(&OsdAlive { boot_nonce: shared.boot_nonce, epoch, full });
        }
        let slow = self.watch_slow_ops(now_ns);
        // The first slow op, and the end of the last one, are told at once.
        let news = (slow.count > 0) != state.told_slow;
        state.told_slow = slow.count > 0;
        let all = now_ns >= state.next_full_report_ns;
        let pgs: Vec<_> = self.cells.iter().flat_map(|cell| cell.with(|shard| shard.report(all))).collect();
        let news = news || shared.options_changed.load(Ordering::Relaxed);
        if pgs.is_empty() && !all && !news && now_ns < state.next_report_ns {
            return;
        }
        if all {
            state.next_full_report_ns = now_ns + FULL_REPORT_NS;
        }
        if shared.options_changed.swap(false, Ordering::Relaxed) || all {
            shared.to_mon(&shared.config.report());
        }
        state.next_report_ns = now_ns + options.osd.osd_mon_report_interval.as_nanos() as u64;
        drop(options);
        shared.to_mon(&StatsReport { osd: self.osd_stats(now_ns), pgs, starting: false });
    }

    /// What the store complains of, and of what it was built with.
    fn health(&self) -> Vec<(String, String)> {
        let store = &self.shared.store;
        let uses_database = store.kind() != "memstore";
        let build = if uses_database { nacre_store::build_complaints() } else { &[] };
        let build = build.iter().map(|text| ("KVSTORE_UNOPTIMIZED".to_owned(), text.clone()));
        store.health().into_iter().chain(build).collect()
    }

    fn osd_stats(&self, now_ns: u64) -> OsdStats {
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
        // Not within the expression below: its lock would last until the shards are asked, and they take it too.
        let heartbeat_peers = shared.heartbeats.lock().peers();
        OsdStats {
            // `Statfs::total_bytes` does not include the database. What the database takes counts as used.
            total_bytes: statfs.total_bytes + statfs.omap_bytes + statfs.meta_bytes,
            available_bytes: statfs.available_bytes,
            data_bytes: statfs.allocated_bytes,
            omap_bytes: statfs.omap_bytes,
            meta_bytes: statfs.meta_bytes,
            pgs: self.cells.iter().map(|cell| cell.inspect(|shard| shard.pg_count())).sum::<usize>() as u32,
            commit_latency_ms: metrics::average_ms(metrics(), |m| &m.commit_latency),
            apply_latency_ms: metrics::average_ms(metrics(), |m| &m.apply_latency),
            heartbeat_peers,
            health: self.health(),
            slow_ops: self.slow_ops(now_ns),
            compressed,
        }
    }
}

/// Tells the store how each pool's data is to be kept: as the pool says, else as the configuration does.
fn set_data_options(shared: &Shared) {
    if let Some(map) = &*shared.map.load() {
        let options = shared.config.snapshot();
        let pools = map.pools.iter().map(|(id, pool)| (*id, data_options(&options, &pool.options)));
        shared.store.set_data_options(pools.collect());
    }
}

/// Measures what the store may still take before it reaches the full ratio; returns that and the store's size.
pub(crate) fn measure_space(shared: &Shared) -> Option<(u64, u64)> {
    let statfs = shared.store.statfs().ok()?;
    let map = shared.map.load();
    let ratios = map.as_ref().map(|map| (f64::from(map.full_ratio), f64::from(map.backfillfull_ratio)));
    let (full, backfillfull) = ratios.unwrap_or((DEFAULT_FULL_RATIO, DEFAULT_FULL_RATIO));
    let kept = |ratio: f64| (statfs.total_bytes as f64 * (1.0 - ratio).clamp(0.0, 1.0)) as u64;
    let left = statfs.available_bytes.saturating_sub(kept(full));
    shared.backfill_full.store(statfs.available_bytes < kept(backfillfull), Ordering::Relaxed);
    shared.space_bytes.store(left, Ordering::Relaxed);
    Some((left, statfs.total_bytes))
}

/// The control lane's dispatcher: the map authority's messages and pings' answers.
pub(crate) struct ControlDispatcher(pub(crate) Arc<Control>);

impl Dispatcher for ControlDispatcher {
    fn on_message(&self, conn: &Conn, frame: Frame) {
        let control = &self.0;
        let outcome = if frame.kind() == <HbEnvelope as nacre_types::msg::Message>::KIND {
            control.on_pong(conn, &frame)
        } else {
            control.on_mon_message(conn, &frame)
        };
        if let Err(error) = outcome {
            tracing::error!(peer = ?conn.peer_entity(), %error, "closing a connection that makes no sense");
            conn.close();
            control.mon_lost(conn);
        }
    }

    fn on_connect(&self, conn: &Conn) {
        if conn.context::<Pinged>().is_none() {
            self.0.on_mon_connected(conn);
        }
    }

    fn on_reset(&self, conn: &Conn, reset: Reset) {
        let control = &self.0;
        let Some(Pinged { osd, boot_nonce }) = conn.context::<Pinged>() else {
            tracing::info!(?reset, "lost the monitor");
            control.mon_lost(conn);
            return;
        };
        let refused = matches!(reset, Reset::Failed(Error::Unreachable { refused: true, .. }));
        let state = &mut *control.state.lock();
        if state.pings.get(osd).is_some_and(|(_, of)| of == conn) {
            state.pings.remove(osd);
        }
        if refused && control.shared.config.get().osd.osd_fast_fail_on_connection_refused {
            let event = HbEvent::Refused { target: *osd, boot_nonce: *boot_nonce };
            control.shared.heartbeats.lock().feed(clock::boot_ns(), event);
            control.beat(state, clock::boot_ns());
        }
    }
}

impl Control {
    fn on_pong(&self, conn: &Conn, frame: &Frame) -> Result<(), Error> {
        let HbEnvelope { space_bytes, msg } = frame.decode()?;
        let Some(from) = conn.peer_entity().and_then(|entity| entity.osd_id()) else { return Ok(()) };
        self.shared.post_all(|| ShardMessage::Space { from, space_bytes });
        let now_ns = clock::boot_ns();
        self.shared.heartbeats.lock().feed(now_ns, HbEvent::Message { from, msg });
        self.beat(&mut self.state.lock(), now_ns);
        Ok(())
    }

    /// Follows the options that can change while the OSD runs.
    pub(crate) fn observe_options(self: &Arc<Self>) {
        // The configuration is part of what it would hold on to.
        let shared = Arc::downgrade(&self.shared);
        let names = ["osd_heartbeat_interval", "osd_heartbeat_grace", "osd_mon_report_interval"];
        self.shared.config.observe(&names, move |options, _| {
            if let Some(shared) = shared.upgrade() {
                shared.heartbeats.lock().set_settings(heartbeats::settings_of(options));
            }
        });
        let shared = Arc::downgrade(&self.shared);
        let names = ["osd_max_backfills", "osd_recovery_max_active", "osd_recovery_max_active_ssd"];
        self.shared.config.observe(&names, move |options, _| {
            if let Some(shared) = shared.upgrade() {
                shared.set_slots(options);
            }
        });
        let shared = Arc::downgrade(&self.shared);
        let all: Vec<&str> = nacre_common::options::all().map(|spec| spec.name).collect();
        self.shared.config.observe(&all, move |_, _| {
            if let Some(shared) = shared.upgrade() {
                shared.options_changed.store(true, Ordering::Relaxed);
                shared.report.notify_one();
            }
        });
        let shared = Arc::downgrade(&self.shared);
        self.shared.config.observe(DATA_OPTIONS, move |_, _| {
            if let Some(shared) = shared.upgrade() {
                set_data_options(&shared);
            }
        });
        let cells = Arc::downgrade(&self.cells);
        let names = [
            "osd_op_complaint_time",
            "osd_op_history_size",
            "osd_op_history_duration",
            "osd_op_history_slow_op_size",
            "osd_op_history_slow_op_threshold",
        ];
        self.shared.config.observe(&names, move |options, _| {
            let limits = nacre_shard::shard::tracker_limits(options);
            for cell in cells.upgrade().iter().flat_map(|cells| cells.iter()) {
                cell.with(|shard| shard.tracker_mut().set_limits(limits.clone()));
            }
        });
        let shared = Arc::downgrade(&self.shared);
        let names = [
            "osd_max_object_size",
            "osd_max_write_size",
            "osd_max_object_name_len",
            "osd_max_object_namespace_len",
            "osd_max_attr_name_len",
            "osd_max_attr_size",
            "osd_max_omap_entries_per_request",
            "osd_max_omap_bytes_per_request",
            "osd_max_pgls",
            "osd_max_write_op_reply_len",
        ];
        self.shared.config.observe(&names, move |options, _| {
            if let Some(shared) = shared.upgrade() {
                shared.limits.store(Arc::new(nacre_shard::shared::limits_of(options)));
            }
        });
    }
}
