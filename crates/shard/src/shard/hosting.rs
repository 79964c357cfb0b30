//! The PGs that a shard hosts: maps, loading from the store, peers' first messages, removal.

use super::background::BackgroundWork;
use super::sums::SumsTracker;
use super::tier::TierRole;
use super::{Hosted, LOG_PAGE, REMOVING_KEY, Shard};
use crate::error::LoadError;
use crate::inbox::PgUpSets;
use bytes::Bytes;
use nacre_objectstore::StoreError;
use nacre_pg::{Pg, PgEnvelope, PgEvent};
use nacre_types::ids::{Epoch, Eversion, Interval, OsdId, PgId};
use nacre_types::osdmap::OsdMap;
use nacre_types::stats::IoCounters;
use nacre_types::txn::{Transaction, TxnOp};
use std::sync::Arc;

impl Shard {
    pub(super) fn on_map(&mut self, map: Arc<OsdMap>, up: PgUpSets, unlisted: Arc<[OsdId]>) {
        self.metrics.map_message_epochs.inc();
        self.links.retain(|_, conn| !conn.is_over());
        self.space.retain(|osd| map.is_up(osd));
        (self.map, self.up, self.unlisted) = (Some(Arc::clone(&map)), Arc::clone(&up), unlisted);
        for slot in 0..self.slots.len() as u32 {
            if self.slots[slot as usize].is_some() {
                self.advance_map(slot, &map, &up);
            }
        }
        let whoami = self.shared.whoami;
        let wanted: Vec<PgId> = map
            .pg_ids()
            .filter(|pg| self.shared.shard_of(*pg) == self.index && !self.by_pg.contains_key(pg))
            .filter(|pg| {
                up.get(pg).is_some_and(|up| up.contains(&whoami))
                    || map.membership(*pg).is_some_and(|m| m.in_sync.iter().any(|m| m.osd == whoami))
            })
            .collect();
        for pg in wanted {
            self.host_pg(pg);
        }
        self.lapse_blocklisted_watches(&map);
        self.resume_waiting_for_map(map.epoch);
    }

    pub(super) fn advance_map(&mut self, slot: u32, map: &Arc<OsdMap>, up: &PgUpSets) {
        let Some(hosted) = self.slots[slot as usize].as_mut() else { return };
        let interval = map.interval(hosted.pg);
        let overlay_before = hosted.role.as_ref().map(|role| role.overlay_epoch);
        hosted.role = TierRole::of(map, hosted.pg.pool);
        if hosted.role.is_some() {
            self.shared.report.notify_one();
        }
        let overlay_changed = overlay_before != hosted.role.as_ref().map(|role| role.overlay_epoch);
        if overlay_changed && interval == hosted.interval {
            // The pool to which clients are sent now takes over the watches.
            hosted.generation = self.next_generation;
            self.next_generation += 1;
            self.drop_watches(slot);
        }
        let Some(hosted) = self.slots[slot as usize].as_mut() else { return };
        if interval != hosted.interval {
            hosted.interval = interval;
            hosted.generation = self.next_generation;
            self.next_generation += 1;
            self.drop_watches(slot);
            self.drop_tier_work(slot);
        }
        let Some(hosted) = self.slots[slot as usize].as_ref() else { return };
        let up = up.get(&hosted.pg).cloned().unwrap_or_default();
        self.feed(slot, PgEvent::Map { map: Arc::clone(map), up, unlisted: Arc::clone(&self.unlisted) });
        self.update_cache_state(slot);
    }

    /// Starts to host a PG that the store does not have; `None` while its old copy is being removed.
    pub(super) fn host_pg(&mut self, pg: PgId) -> Option<u32> {
        if self.removing.contains_key(&pg) {
            return None;
        }
        let shared = &self.shared;
        let machine = Pg::new(pg, shared.me, shared.boot_nonce, Arc::clone(&shared.settings));
        Some(self.register_pg(pg, machine))
    }

    /// Loads and hosts a PG that the store has.
    pub fn load(&mut self, pg: PgId) -> Result<(), LoadError> {
        let shared = Arc::clone(&self.shared);
        let meta = shared.store.collection_meta(pg)?;
        if meta.iter().any(|(name, _)| name == REMOVING_KEY) {
            self.removing.insert(pg, ());
            self.background.push_back(BackgroundWork::Remove { pg });
            return Ok(());
        }
        let mut log = Vec::new();
        let mut after = Eversion::default();
        loop {
            let page = shared.store.read_log(pg, after, LOG_PAGE)?;
            let full = page.len() == LOG_PAGE;
            match page.last() {
                Some((version, _)) => after = *version,
                None => break,
            }
            log.extend(page);
            if !full {
                break;
            }
        }
        let machine = Pg::load(pg, shared.me, shared.boot_nonce, Arc::clone(&shared.settings), &meta, log)?;
        self.register_pg(pg, machine);
        Ok(())
    }

    pub(super) fn register_pg(&mut self, pg: PgId, machine: Pg) -> u32 {
        let slot = self.slots.len() as u32;
        let generation = self.next_generation;
        self.next_generation += 1;
        self.slots.push(Some(Box::new(Hosted {
            pg,
            machine,
            generation,
            interval: Interval(0),
            tick_ns: u64::MAX,
            active: false,
            committed: None,
            sums: SumsTracker::default(),
            io: IoCounters::default(),
            reported: None,
            report_seq: 0,
            reported_at: Epoch(0),
            role: None,
            cache: None,
        })));
        self.by_pg.insert(pg, slot);
        if let Some(map) = self.map.clone() {
            let up = Arc::clone(&self.up);
            self.advance_map(slot, &map, &up);
        }
        slot
    }

    /// Handles a peer's message about a PG.
    pub fn on_peer(&mut self, from: OsdId, envelope: PgEnvelope) {
        self.metrics.subop.inc();
        let PgEnvelope { pg, space_bytes, msg } = envelope;
        self.space.set_available(from, space_bytes);
        tracing::trace!(%pg, %from, ?msg, "from a peer");
        let slot = match self.by_pg.get(&pg) {
            Some(slot) => *slot,
            None => {
                // Without its pool in the map, the PG can't be hosted; the peer asks again.
                let known = self
                    .map
                    .as_ref()
                    .is_some_and(|map| map.pools.get(&pg.pool).is_some_and(|pool| pg.seed < pool.pg_num));
                match known.then(|| self.host_pg(pg)).flatten() {
                    Some(slot) => slot,
                    None => return,
                }
            }
        };
        self.feed(slot, PgEvent::Peer { from, msg });
    }

    pub(super) fn invalidate_contexts(&mut self, slot: u32, object: Option<&nacre_types::ObjectId>) {
        match object {
            Some(object) => {
                self.contexts.forget(object);
                self.note_replaced(slot, object);
            }
            None => {
                if let Some(hosted) = self.slots[slot as usize].as_mut() {
                    hosted.generation = self.next_generation;
                    self.next_generation += 1;
                }
            }
        }
    }

    /// Stops hosting a PG and removes its collection in the background.
    pub(super) fn remove_pg(&mut self, slot: u32) {
        let Some(hosted) = self.slots[slot as usize].take() else { return };
        tracing::info!(pg = %hosted.pg, "removing the PG's copy");
        self.by_pg.remove(&hosted.pg);
        self.backoff_requests_of(slot);
        self.drop_watches(slot);
        self.drop_tier_work(slot);
        self.shared.release_recovery(hosted.pg);
        self.shared.release_remote_backfill(hosted.pg);
        let mut txn = Transaction::new(hosted.pg);
        txn.push(TxnOp::MetaSet(vec![(REMOVING_KEY.to_owned(), Bytes::from_static(b"1"))]));
        match self.shared.store.queue_transaction(&txn, None) {
            Ok(()) | Err(StoreError::NoCollection(_)) => {}
            Err(error) => self.shared.store_failed(&format!("{}: beginning its removal", hosted.pg), &error),
        }
        self.removing.insert(hosted.pg, ());
        self.background.push_back(BackgroundWork::Remove { pg: hosted.pg });
        self.inbox.wake_task();
        self.shared.report.notify_one();
    }

    /// Handles the completed removal of a collection. Hosts its PG again if the map places it here.
    pub(super) fn on_collection_removed(&mut self, pg: PgId) {
        self.removing.remove(&pg);
        let whoami = self.shared.whoami;
        let wanted = self.up.get(&pg).is_some_and(|up| up.contains(&whoami));
        if wanted && !self.by_pg.contains_key(&pg) {
            self.host_pg(pg);
        }
    }
}
