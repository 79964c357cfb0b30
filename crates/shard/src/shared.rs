//! The state that the shards of one OSD and its control share.

use crate::copy::{CopyThrottle, MAX_COPY_BYTES, MAX_TIER_COPY_BYTES};
use crate::heartbeats::{self, Heartbeats};
use crate::host::ShardHost;
use crate::inbox::{Inbox, ShardMessage};
use crate::metrics::Metrics;
use crate::progress::ShardActivity;
use crate::watch::WatchCounts;
use arc_swap::{ArcSwap, ArcSwapOption};
use nacre_common::config::Config;
use nacre_common::options::Options;
use nacre_common::throttle::Throttle;
use nacre_exec::{ClassList, Limits};
use nacre_objectstore::{ObjectStore, StoreError};
use nacre_pg::PgSettings;
use nacre_pg::heartbeat::{HbEnvelope, HbMsg, HeartbeatSettings};
use nacre_pg::lease::LeaseSettings;
use nacre_pg::reserve::{Reserver, SlotGrant};
use nacre_tier::promote::throttle::PromoteThrottle;
use nacre_types::ids::{OsdId, PgId};
use nacre_types::msg::{EncodedMessage, Message, OsdMarkMeDown};
use nacre_types::osdmap::{Member, OsdMap};
use nacre_types::pool::Pool;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use tokio::sync::{Notify, watch};

/// The most bytes that recovery reads or sends at a time, so that requests are handled in between.
const MAX_PUSH_BYTES: u64 = 1 << 20;

/// The priority of recovering a PG of `pool`, adjusted by the pool variable `recovery_priority` (-10 to 10). PGs of the same
/// priority recover in order of arrival.
fn recovery_priority(pool: &Pool, urgency: u8) -> u8 {
    let moved = pool.options.get("recovery_priority").and_then(|text| text.parse::<i8>().ok()).unwrap_or(0);
    urgency.saturating_add_signed(moved)
}

/// The state of an OSD's run.
#[derive(Clone, Debug, PartialEq)]
pub enum RunState {
    /// It is running.
    Running,
    /// It was asked to stop.
    Stopping,
    /// It has stopped because something essential failed; the text says what.
    Failed(String),
}

/// See the module's documentation.
pub struct Shared {
    /// Its configuration.
    pub config: Config,
    /// Its id.
    pub whoami: OsdId,
    /// The OSD with its store incarnation, as a member of PGs.
    pub me: Member,
    /// The identity of the process.
    pub boot_nonce: u64,
    /// The store of its PGs.
    pub store: Arc<dyn ObjectStore>,
    /// Everything outside the OSD.
    pub world: Arc<dyn ShardHost>,
    /// The settings of PGs' machines.
    pub settings: Arc<PgSettings>,
    /// Limits of requests.
    pub limits: ArcSwap<Limits>,
    /// The numbers of watches, on all shards.
    pub(crate) watch_counts: Arc<WatchCounts>,
    /// Heartbeats and leases. Shards lock it while they run: its holder must not wait for a shard.
    pub heartbeats: Mutex<Heartbeats>,
    /// The inboxes, by shard.
    pub inboxes: Vec<Arc<Inbox>>,
    /// The metrics, by shard.
    pub metrics: Vec<Arc<Metrics>>,
    /// The newest map.
    pub map: ArcSwapOption<OsdMap>,
    next_tid: AtomicU64,
    /// Whether the store refused a write for lack of space, or is above the full ratio.
    full: AtomicBool,
    /// The bytes that the store can take before it is full: the last measurement less what was written since.
    pub space_bytes: AtomicU64,
    /// The store's size in bytes at the last measurement.
    pub total_bytes: AtomicU64,
    /// The throttle of promotions into cache tiers.
    pub(crate) promotions: Mutex<PromoteThrottle>,
    /// Whether the store is above the map's backfillfull ratio: no backfill of a copy here starts.
    pub backfill_full: AtomicBool,
    /// The PGs, of those that this OSD is primary of, that may make whole copies now.
    pub local_backfill_reserver: Mutex<Reserver<PgId>>,
    /// The PGs whose copy here other OSDs may fill now.
    pub remote_backfill_reserver: Mutex<Reserver<PgId>>,
    /// The PGs that may recover missing objects now.
    pub recovery_reserver: Mutex<Reserver<PgId>>,
    /// The share of the client throttle for requests that wait for a map.
    pub(crate) early: Throttle,
    /// The limits of requests that copy, with those that wait for them: as many as may wait on one inactive PG.
    pub(crate) copies: CopyThrottle,
    /// The same for flushes of cache tiers, for which sources of copies wait.
    pub(crate) flushes: CopyThrottle,
    /// When a map was last requested from the map authority because of a client's request, CLOCK_BOOTTIME.
    pub(crate) map_asked_ns: AtomicU64,
    /// Whether the options changed since they were last reported to the map authority.
    pub options_changed: AtomicBool,
    /// Wakes the task that reports to the map authority: statistics or fullness changed.
    pub report: Notify,
    /// The state of the run.
    pub state: watch::Sender<RunState>,
    /// The activity of the shards, for the watchdog.
    pub progress: Arc<ShardActivity>,
}

impl Shared {
    /// Creates the shared state of the process `boot_nonce` of the OSD `me`. Its PGs are in `store`.
    pub fn new(
        config: &Config,
        me: Member,
        boot_nonce: u64,
        store: Arc<dyn ObjectStore>,
        world: Arc<dyn ShardHost>,
        settings: &ShardSettings,
    ) -> Arc<Shared> {
        let options = config.snapshot();
        let whoami = me.osd;
        let shards = shard_count(&options);
        let heartbeats =
            Heartbeats::new(whoami, boot_nonce, settings.heartbeat, settings.lease, world.boot_ns());
        Arc::new_cyclic(|weak: &Weak<Shared>| {
            let inboxes = (0..shards).map(|_| {
                let weak = weak.clone();
                Arc::new(Inbox::new(move |error: &StoreError| {
                    if let Some(shared) = weak.upgrade() {
                        shared.store_failed("a commit failed", error);
                    }
                }))
            });
            Shared {
                config: config.clone(),
                whoami,
                me,
                boot_nonce,
                store,
                world,
                copies: CopyThrottle::new(settings.pg.max_waiting_inactive as u64, MAX_COPY_BYTES),
                flushes: CopyThrottle::new(settings.pg.max_waiting_inactive as u64, MAX_TIER_COPY_BYTES),
                early: early_throttle(&options, settings.pg.max_waiting_inactive),
                settings: Arc::new(settings.pg.clone()),
                limits: ArcSwap::from_pointee(request_limits(&options)),
                watch_counts: Arc::default(),
                heartbeats: Mutex::new(heartbeats),
                inboxes: inboxes.collect(),
                metrics: (0..shards).map(|_| Arc::new(Metrics::default())).collect(),
                map: ArcSwapOption::empty(),
                next_tid: AtomicU64::new(1),
                full: AtomicBool::new(false),
                space_bytes: AtomicU64::new(u64::MAX),
                total_bytes: AtomicU64::new(0),
                promotions: Mutex::new(PromoteThrottle::new(
                    options.osd.osd_tier_promote_max_objects_sec,
                    options.osd.osd_tier_promote_max_bytes_sec,
                    0,
                )),
                backfill_full: AtomicBool::new(false),
                map_asked_ns: AtomicU64::new(0),
                local_backfill_reserver: Mutex::new(Reserver::new(options.osd.osd_max_backfills as usize)),
                remote_backfill_reserver: Mutex::new(Reserver::new(options.osd.osd_max_backfills as usize)),
                recovery_reserver: Mutex::new(Reserver::new(max_recoveries(&options))),
                options_changed: AtomicBool::new(true),
                report: Notify::new(),
                state: watch::Sender::new(RunState::Running),
                progress: Arc::new(ShardActivity::new(shards)),
            }
        })
    }

    /// The shard that owns a PG.
    pub fn shard_of(&self, pg: PgId) -> usize {
        (pg.seed as usize).wrapping_add(pg.pool.0 as usize) % self.inboxes.len()
    }

    /// Posts a message to every shard.
    pub fn post_all(&self, message: impl Fn() -> ShardMessage) {
        for inbox in &self.inboxes {
            inbox.post(message());
        }
    }

    /// Requests a slot for `pg`; its shard gets a message when it is granted.
    pub fn reserve_recovery(&self, pg: PgId, backfill: bool, urgency: u8) {
        let slots = if backfill { &self.local_backfill_reserver } else { &self.recovery_reserver };
        if slots.lock().request(pg, self.priority(pg, urgency)) == SlotGrant::Granted {
            self.inboxes[self.shard_of(pg)].post(ShardMessage::Reserved(pg));
        }
    }

    fn priority(&self, pg: PgId, urgency: u8) -> u8 {
        let map = self.map.load();
        let pool = map.as_ref().and_then(|map| map.pools.get(&pg.pool));
        pool.map_or(urgency, |pool| recovery_priority(pool, urgency))
    }

    /// Requests a slot for the copy of `pg` here to be filled; its shard gets a message when it is granted. None is granted
    /// while the store is too full; the PG's primary repeats its request.
    pub fn reserve_remote_backfill(&self, pg: PgId, urgency: u8) {
        if self.backfill_full.load(Ordering::Relaxed) {
            return;
        }
        if self.remote_backfill_reserver.lock().request(pg, self.priority(pg, urgency)) == SlotGrant::Granted
        {
            self.inboxes[self.shard_of(pg)].post(ShardMessage::TargetReserved(pg));
        }
    }

    /// Records whether the store is too full for copies to be filled. When it becomes too full, current backfills must wait.
    pub fn set_backfill_full(&self, full: bool) {
        if full && !self.backfill_full.swap(full, Ordering::Relaxed) {
            for pg in self.remote_backfill_reserver.lock().holders() {
                self.inboxes[self.shard_of(*pg)].post(ShardMessage::TargetTooFull(*pg));
            }
        }
        self.backfill_full.store(full, Ordering::Relaxed);
    }

    /// Releases that slot, or withdraws the request.
    pub fn release_remote_backfill(&self, pg: PgId) {
        for next in self.remote_backfill_reserver.lock().release(&pg) {
            self.inboxes[self.shard_of(next)].post(ShardMessage::TargetReserved(next));
        }
    }

    /// Applies the options for the numbers of slots and the rates of promotions.
    pub fn apply_recovery_options(&self, options: &Options) {
        let osd = &options.osd;
        let rates = (osd.osd_tier_promote_max_objects_sec, osd.osd_tier_promote_max_bytes_sec);
        self.promotions.lock().set_rates(rates.0, rates.1);
        let backfills = options.osd.osd_max_backfills as usize;
        for (slots, count) in
            [(&self.local_backfill_reserver, backfills), (&self.recovery_reserver, max_recoveries(options))]
        {
            for next in slots.lock().set_slots(count) {
                self.inboxes[self.shard_of(next)].post(ShardMessage::Reserved(next));
            }
        }
        for next in self.remote_backfill_reserver.lock().set_slots(backfills) {
            self.inboxes[self.shard_of(next)].post(ShardMessage::TargetReserved(next));
        }
    }

    /// Releases `pg`'s slots, or withdraws its requests.
    pub fn release_recovery(&self, pg: PgId) {
        for slots in [&self.local_backfill_reserver, &self.recovery_reserver] {
            for next in slots.lock().release(&pg) {
                self.inboxes[self.shard_of(next)].post(ShardMessage::Reserved(next));
            }
        }
    }

    /// Whether the newest map here shows this process as up.
    pub fn is_shown_up(&self) -> bool {
        self.map.load().as_ref().is_some_and(|map| is_process_up(map, self))
    }

    /// Begins to stop the OSD: reports it to the map authority if the map shows this process as up. Returns whether it does, so
    /// that the caller can wait for the map that shows it down.
    pub fn prepare_to_stop(&self) -> bool {
        self.state.send_replace(RunState::Stopping);
        let is_up = self.is_shown_up();
        if is_up {
            self.to_mon(&OsdMarkMeDown { boot_nonce: self.boot_nonce });
        }
        is_up
    }

    /// See [`ShardHost::send_to_mon`].
    pub fn to_mon<M: Message>(&self, message: &M) {
        self.world.send_to_mon(EncodedMessage::new(message));
    }

    /// A number for a message to the map authority.
    pub fn next_mon_tid(&self) -> u64 {
        self.next_tid.fetch_add(1, Ordering::Relaxed)
    }

    /// Stops the OSD because something essential failed. Logs the first failure only.
    pub fn fatal(&self, reason: &str) {
        let first = self.state.send_if_modified(|state| {
            let first = !matches!(state, RunState::Failed(_));
            if first {
                *state = RunState::Failed(reason.to_owned());
            }
            first
        });
        if first {
            tracing::error!(osd = %self.whoami, reason, "the OSD stops: it can't go on safely");
        }
    }

    /// Stops the OSD for an error of its store (rule B5: nothing is retried).
    pub fn store_failed(&self, what: &str, error: &StoreError) {
        self.fatal(&format!("{what}: {error}"));
    }

    /// Handles a peer's ping on the thread of the connection on which it arrived. Returns the answer for the same connection.
    /// Control is woken if there is more to do.
    ///
    /// There is no answer while a shard hangs: then the peer reports this OSD, and this OSD grants it no lease.
    pub fn on_ping(&self, from: OsdId, ping: HbEnvelope) -> Option<HbEnvelope> {
        let HbEnvelope { space_bytes, msg } = ping;
        self.post_all(|| ShardMessage::Space { from, space_bytes });
        if self.progress.is_stalled() {
            return None;
        }
        let now_ns = self.world.boot_ns();
        let (answer, has_said) = {
            let mut heartbeats = self.heartbeats.lock();
            (heartbeats.on_message(now_ns, from, msg), heartbeats.has_commands())
        };
        if has_said {
            self.report.notify_one();
        }
        answer.map(|msg| self.hb_envelope(msg))
    }

    /// Creates the envelope of a heartbeat.
    pub fn hb_envelope(&self, msg: HbMsg) -> HbEnvelope {
        HbEnvelope { space_bytes: self.space_bytes.load(Ordering::Relaxed), msg }
    }

    /// Whether the store is full, according to the last check.
    pub fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }

    /// Subtracts a transaction's size from the space that is left, until the next measurement.
    pub fn consume_space(&self, bytes: u64) {
        let take = |left: u64| Some(left.saturating_sub(bytes));
        // It fails only if the closure returns `None`.
        let _ = self.space_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
    }

    /// Records whether the store is full; the map authority receives a change in the next round.
    pub fn set_full(&self, full: bool) {
        if self.full.swap(full, Ordering::Relaxed) != full {
            tracing::warn!(osd = %self.whoami, full, "fullness of the store changed");
        }
    }
}

/// Whether `map` shows this process as up.
pub(crate) fn is_process_up(map: &OsdMap, shared: &Shared) -> bool {
    map.osds.get(&shared.whoami).is_some_and(|info| info.up && info.boot_nonce == shared.boot_nonce)
}

/// The number of shards of an OSD: `osd_op_num_shards`; half of the cores if it is 0.
pub fn shard_count(options: &Options) -> usize {
    match options.osd.osd_op_num_shards as usize {
        0 => (std::thread::available_parallelism().map_or(1, usize::from) / 2).max(1),
        given => given,
    }
}

/// The settings of an OSD's machines.
#[derive(Clone, Debug)]
pub struct ShardSettings {
    /// The PGs.
    pub pg: PgSettings,
    /// Heartbeats.
    pub heartbeat: HeartbeatSettings,
    /// Leases.
    pub lease: LeaseSettings,
}

impl ShardSettings {
    /// The settings from the options.
    pub fn of(options: &Options) -> ShardSettings {
        ShardSettings {
            pg: pg_settings_of(options),
            heartbeat: heartbeats::heartbeat_settings(options),
            lease: heartbeats::lease_settings(options),
        }
    }
}

fn pg_settings_of(options: &Options) -> PgSettings {
    let osd = &options.osd;
    PgSettings {
        min_log_entries: osd.osd_min_pg_log_entries as usize,
        max_log_entries: osd.osd_max_pg_log_entries as usize,
        max_waiting_inactive: match osd.osd_client_message_cap as usize {
            0 => PgSettings::default().max_waiting_inactive,
            cap => (cap / 8).max(1),
        },
        // This many PGs recover at the same time: each gets a part, so that the data in flight to one peer stays bounded.
        max_recoveries: max_recoveries(options).div_ceil(3),
        push_bytes: osd.osd_recovery_max_chunk.min(MAX_PUSH_BYTES) as usize,
        scan_objects: (osd.osd_backfill_scan_max as usize).max(1),
        ..PgSettings::default()
    }
}

/// Bounds requests that wait for a map: an eighth of the bytes that clients may have in flight, and this many requests.
fn early_throttle(options: &Options, requests: usize) -> Throttle {
    Throttle::new(options.osd.osd_client_message_size_cap / 8, requests as u64)
}

/// The number of PGs that may recover at a time.
pub fn max_recoveries(options: &Options) -> usize {
    match options.osd.osd_recovery_max_active as usize {
        0 => options.osd.osd_recovery_max_active_ssd.max(1) as usize,
        given => given,
    }
}

/// Ceph's limits on requests from the options.
pub fn request_limits(options: &Options) -> Limits {
    let osd = &options.osd;
    Limits {
        max_object_size_bytes: osd.osd_max_object_size,
        max_write_size_bytes: osd.osd_max_write_size << 20,
        max_object_name_len: osd.osd_max_object_name_len as usize,
        max_object_namespace_len: osd.osd_max_object_namespace_len as usize,
        max_attr_name_len: osd.osd_max_attr_name_len as usize,
        max_attr_size_bytes: osd.osd_max_attr_size,
        max_omap_entries_per_request: osd.osd_max_omap_entries_per_request,
        max_omap_bytes_per_request: osd.osd_max_omap_bytes_per_request,
        max_pgls: osd.osd_max_pgls,
        max_write_op_reply_len: osd.osd_max_write_op_reply_len as usize,
        max_object_watches: osd.osd_max_object_watches as usize,
        max_client_watches: osd.osd_max_client_watches as usize,
        max_watches: osd.osd_max_watches as usize,
        watch_timeout_s: u32::try_from(osd.osd_client_watch_timeout.as_secs()).unwrap_or(u32::MAX),
        notify_timeout_s: u32::try_from(osd.osd_default_notify_timeout).unwrap_or(u32::MAX),
        classes_offered: ClassList::parse(&osd.osd_class_load_list),
        classes_by_default: ClassList::parse(&osd.osd_class_default_list),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::ids::{Epoch, PoolId};

    #[test]
    fn pools_of_a_higher_recovery_priority_go_first() {
        const URGENCY: u8 = 180;
        let mut pool = Pool::replicated("p", 3, 2, 0, 8, Epoch(1));
        let mut priority = |text: &str| {
            pool.options.insert("recovery_priority".into(), text.into());
            recovery_priority(&pool, URGENCY)
        };
        let (low, high) = (priority("-10"), priority("10"));
        let mut slots = Reserver::new(1);
        let pg = |pool: i64| PgId::new(PoolId(pool), 0);
        for (id, priority) in [(1, URGENCY), (2, low), (3, URGENCY), (4, high)] {
            slots.request(pg(id), priority);
        }
        assert_eq!(slots.queued().copied().collect::<Vec<_>>(), [pg(4), pg(3), pg(2)]);
    }
}
