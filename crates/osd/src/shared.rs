//! What all threads of one OSD share.

use crate::copy::Copier;
use crate::heartbeats::Heartbeats;
use crate::inbox::{Inbox, ShardMessage};
use crate::metrics::Metrics;
use crate::peers::PeerLinks;
use crate::watch::WatchCounts;
use crate::watchdog::Progress;
use arc_swap::{ArcSwap, ArcSwapOption};
use nacre_common::config::Config;
use nacre_common::metrics::Perf;
use nacre_common::options::Options;
use nacre_exec::{ClassList, Limits};
use nacre_pg::Settings;
use nacre_pg::heartbeat::{HbEnvelope, HbMsg};
use nacre_pg::reserve::{Reservation, Reserver};
use nacre_runtime::msgr::{Conn, Throttle};
use nacre_store::{ObjectStore, StoreError};
use nacre_types::ids::{OsdId, PgId};
use nacre_types::msg::Message;
use nacre_types::osdmap::{Member, OsdMap};
use nacre_types::pool::Pool;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::{Notify, watch};

/// The priority of recovering a PG of `pool`, which the pool variable `recovery_priority` (-10 to 10) moves. PGs of one priority
/// recover in order of arrival.
fn recovery_priority(pool: &Pool, urgency: u8) -> u8 {
    let moved = pool.options.get("recovery_priority").and_then(|text| text.parse::<i8>().ok()).unwrap_or(0);
    urgency.saturating_add_signed(moved)
}

/// How an OSD's run ended, or that it has not.
#[derive(Clone, Debug, PartialEq)]
pub enum RunState {
    /// It runs.
    Running,
    /// It was asked to stop.
    Stopping,
    /// It has stopped because something that it can't go on without failed; the text says what.
    Failed(String),
}

/// See the module's documentation.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) whoami: OsdId,
    pub(crate) me: Member,
    pub(crate) boot_nonce: u64,
    /// The disk's id.
    pub(crate) uuid: uuid::Uuid,
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) limits: ArcSwap<Limits>,
    /// What clients watch, on all shards.
    pub(crate) watch_counts: Arc<WatchCounts>,
    /// Heartbeats and leases. Shards take it while they work: whoever holds it asks no shard.
    pub(crate) heartbeats: Mutex<Heartbeats>,
    pub(crate) inboxes: Vec<Arc<Inbox>>,
    pub(crate) metrics: Vec<Arc<Metrics>>,
    pub(crate) map: ArcSwapOption<OsdMap>,
    pub(crate) peers: PeerLinks,
    pub(crate) copier: Copier,
    /// The connection to the map authority, while there is one.
    pub(crate) mon: ArcSwapOption<Conn>,
    pub(crate) next_tid: AtomicU64,
    /// The store refused for lack of space, or is above the full ratio.
    pub(crate) full: AtomicBool,
    /// Bytes that the store may still take before it is full: as measured last, less what was written since.
    pub(crate) space_bytes: AtomicU64,
    /// Whether the store is above the map's backfillfull ratio: no copy here begins to be filled.
    pub(crate) backfill_full: AtomicBool,
    /// PGs that may make whole copies now, of those that this OSD is primary of.
    pub(crate) backfills: Mutex<Reserver<PgId>>,
    /// PGs of which other OSDs may fill the copy here now.
    pub(crate) targets: Mutex<Reserver<PgId>>,
    /// PGs that may recover missing objects now.
    pub(crate) recoveries: Mutex<Reserver<PgId>>,
    /// What requests that wait for a map may take of the client throttle.
    pub(crate) early: Throttle,
    /// When the map authority was last asked for a map because of a request, CLOCK_BOOTTIME.
    pub(crate) map_asked_ns: AtomicU64,
    /// Whether the store's database is being compacted by a command.
    pub(crate) compacting: AtomicBool,
    /// Whether a command measures the store.
    pub(crate) benching: AtomicBool,
    /// All counters of this OSD, its store's and its messengers' among them.
    pub(crate) perf: Perf,
    /// The options changed since the map authority was told of them.
    pub(crate) options_changed: AtomicBool,
    /// Wakes the control task: statistics or fullness changed.
    pub(crate) report: Notify,
    pub(crate) state: watch::Sender<RunState>,
    /// What the watchdog looks at.
    pub(crate) progress: Arc<Progress>,
}

impl Shared {
    /// The shard that owns a PG.
    pub(crate) fn shard_of(&self, pg: PgId) -> usize {
        (pg.seed as usize).wrapping_add(pg.pool.0 as usize) % self.inboxes.len()
    }

    /// Posts a message to every shard.
    pub(crate) fn post_all(&self, message: impl Fn() -> ShardMessage) {
        for inbox in &self.inboxes {
            inbox.post(message());
        }
    }

    /// Asks for a slot for `pg`; its shard hears when it has one.
    pub(crate) fn reserve(&self, pg: PgId, backfill: bool, urgency: u8) {
        let slots = if backfill { &self.backfills } else { &self.recoveries };
        if slots.lock().request(pg, self.priority(pg, urgency)) == Reservation::Granted {
            self.inboxes[self.shard_of(pg)].post(ShardMessage::Reserved(pg));
        }
    }

    fn priority(&self, pg: PgId, urgency: u8) -> u8 {
        let map = self.map.load();
        let pool = map.as_ref().and_then(|map| map.pools.get(&pg.pool));
        pool.map_or(urgency, |pool| recovery_priority(pool, urgency))
    }

    /// Asks for a slot for the copy of `pg` here to be filled; its shard hears when it has one.
    /// While the store is too full it gets none; the PG's primary repeats its question.
    pub(crate) fn reserve_target(&self, pg: PgId, urgency: u8) {
        if self.backfill_full.load(Ordering::Relaxed) {
            return;
        }
        if self.targets.lock().request(pg, self.priority(pg, urgency)) == Reservation::Granted {
            self.inboxes[self.shard_of(pg)].post(ShardMessage::TargetReserved(pg));
        }
    }

    /// Gives that slot back, or withdraws the request.
    pub(crate) fn release_target(&self, pg: PgId) {
        for next in self.targets.lock().release(&pg) {
            self.inboxes[self.shard_of(next)].post(ShardMessage::TargetReserved(next));
        }
    }

    /// Follows the options that say how many slots there are.
    pub(crate) fn set_slots(&self, options: &Options) {
        let backfills = options.osd.osd_max_backfills as usize;
        for (slots, count) in [(&self.backfills, backfills), (&self.recoveries, recoveries_of(options))] {
            for next in slots.lock().set_slots(count) {
                self.inboxes[self.shard_of(next)].post(ShardMessage::Reserved(next));
            }
        }
        for next in self.targets.lock().set_slots(backfills) {
            self.inboxes[self.shard_of(next)].post(ShardMessage::TargetReserved(next));
        }
    }

    /// Gives `pg`'s slots back, or withdraws its requests.
    pub(crate) fn release(&self, pg: PgId) {
        for slots in [&self.backfills, &self.recoveries] {
            for next in slots.lock().release(&pg) {
                self.inboxes[self.shard_of(next)].post(ShardMessage::Reserved(next));
            }
        }
    }

    /// Sends to the map authority; without a connection nothing is sent, and who asked asks again.
    pub(crate) fn to_mon<M: Message>(&self, message: &M) {
        if let Some(mon) = self.mon.load().as_ref()
            && let Err(error) = mon.send(message)
        {
            tracing::debug!(%error, message = M::NAME, "could not send to the monitor");
        }
    }

    /// A number for a message to the map authority.
    pub(crate) fn next_tid(&self) -> u64 {
        self.next_tid.fetch_add(1, Ordering::Relaxed)
    }

    /// Stops the OSD: what it stands on is gone. Says so once, loudly.
    pub(crate) fn fatal(&self, reason: &str) {
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
    pub(crate) fn store_failed(&self, what: &str, error: &StoreError) {
        self.fatal(&format!("{what}: {error}"));
    }

    /// A heartbeat as it is sent.
    pub(crate) fn heartbeat(&self, msg: HbMsg) -> HbEnvelope {
        HbEnvelope { space_bytes: self.space_bytes.load(Ordering::Relaxed), msg }
    }

    /// Whether the store is full, as last judged.
    pub(crate) fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }

    /// Counts what a transaction takes off the space that is left, until it is measured again.
    pub(crate) fn take_space(&self, bytes: u64) {
        let take = |left: u64| Some(left.saturating_sub(bytes));
        // It only fails where the closure returns nothing.
        let _ = self.space_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
    }

    /// Notes that the store is full, or no longer; the map authority hears of a change at once.
    pub(crate) fn set_full(&self, full: bool) {
        if self.full.swap(full, Ordering::Relaxed) != full {
            tracing::warn!(osd = %self.whoami, full, "fullness of the store changed");
        }
    }
}

/// PGs that may recover at a time.
pub(crate) fn recoveries_of(options: &Options) -> usize {
    match options.osd.osd_recovery_max_active as usize {
        0 => options.osd.osd_recovery_max_active_ssd.max(1) as usize,
        given => given,
    }
}

/// Ceph's limits on requests as the options have them.
pub(crate) fn limits_of(options: &Options) -> Limits {
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
