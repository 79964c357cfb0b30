//! Work that can take long: reads for recovery, listings for backfill, counting, removal of collections.
//!
//! It is done in pieces of bounded size, one per turn of the shard's task, so that clients' requests are handled in between.

use super::{Shard, SumsTracker};
use nacre_exec::{ObjectContext, pg_scan};
use nacre_objectstore::StoreError;
use nacre_pg::{PgEvent, PieceCursor};
use nacre_types::ids::PgId;
use nacre_types::object::ObjectId;

/// A piece of work, or the rest of one.
pub(super) enum BackgroundWork {
    /// Read part of an object for recovery.
    Read { slot: u32, read: u64, object: ObjectId, cursor: PieceCursor, max_bytes: usize },
    /// List objects with their versions.
    List { slot: u32, list: u64, from: Option<ObjectId>, max: usize },
    /// Count a PG's objects.
    Sums { slot: u32 },
    /// Remove a PG's collection.
    Remove { pg: PgId },
}

impl Shard {
    /// Does the next piece of work.
    pub(super) fn run_background(&mut self) {
        match self.background.pop_front() {
            None => {}
            Some(BackgroundWork::Read { slot, read, object, cursor, max_bytes }) => {
                let Some(hosted) = self.slots[slot as usize].as_ref() else { return };
                let piece = pg_scan::read_piece(&*self.shared.store, hosted.pg, &object, &cursor, max_bytes);
                if let Ok(Some(piece)) = &piece {
                    self.metrics.recovery_bytes.add(piece.data.len() as u64);
                    self.metrics.recovery_ops.add(u64::from(piece.next.is_none()));
                }
                let piece = piece.map_err(|error| {
                    tracing::error!(%object, %error, "can't read an object for recovery");
                    pg_scan::recovery_errno(&error)
                });
                self.feed(slot, PgEvent::ObjectRead { read, piece });
            }
            Some(BackgroundWork::List { slot, list, from, max }) => {
                let Some(hosted) = self.slots[slot as usize].as_ref() else { return };
                match pg_scan::list_versions(&*self.shared.store, hosted.pg, from.as_ref(), max) {
                    Ok((objects, end)) => self.feed(slot, PgEvent::Listed { list, objects, end }),
                    Err(error) => {
                        self.shared.store_failed(&format!("{}: listing objects", hosted.pg), &error);
                    }
                }
            }
            Some(BackgroundWork::Sums { slot }) => self.count_some(slot),
            Some(BackgroundWork::Remove { pg }) => self.remove_some(pg),
        }
    }

    fn count_some(&mut self, slot: u32) {
        let Some(hosted) = self.slots[slot as usize].as_mut() else { return };
        if !hosted.active || hosted.sums.is_complete() {
            return;
        }
        let pg = hosted.pg;
        let cache = &mut hosted.cache;
        let mut note = |object: &ObjectId, context: &ObjectContext| {
            if let Some(cache) = cache {
                cache.note(object, context);
            }
        };
        match pg_scan::sum_objects(&*self.shared.store, pg, hosted.sums.position(), &mut note) {
            Ok((delta, position)) => {
                let more = position.is_some();
                hosted.sums.add_counted(&delta, position);
                if more {
                    self.background.push_back(BackgroundWork::Sums { slot });
                } else {
                    self.shared.report.notify_one();
                }
            }
            Err(error) => {
                tracing::error!(%pg, %error, "counting objects failed");
                hosted.sums = SumsTracker::default();
            }
        }
    }

    fn remove_some(&mut self, pg: PgId) {
        match self.remove_step(pg) {
            Ok(false) => self.background.push_back(BackgroundWork::Remove { pg }),
            Ok(true) => {
                tracing::info!(%pg, "the PG's copy is removed");
                self.on_collection_removed(pg);
            }
            Err(error) => self.shared.store_failed(&format!("{pg}: removing the collection"), &error),
        }
    }

    /// Removes some objects, or finally the collection. Returns whether the removal is complete.
    fn remove_step(&self, pg: PgId) -> Result<bool, StoreError> {
        let store = &*self.shared.store;
        let Some(txn) = pg_scan::removal_step(store, pg)? else { return Ok(true) };
        store.queue_transaction(&txn, None)?;
        Ok(!store.collection_exists(pg)?)
    }
}
