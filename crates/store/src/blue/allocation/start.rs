//! The start of a store: determines what is allocated from the cheapest sound source, and begins recording.

use super::checkpoint::{BitmapPrefetch, Checkpoint, apply_totals, each_delta};
use super::delta::{self, Delta, decode_key};
use super::file::{self, Expected};
use super::image_header::ImageKind;
use super::ledger::FreelistMode;
use super::{DIRECTORY, FILE, SpaceAccounting, bits, freelist};
use crate::AllocationSource;
use crate::StoreEvents;
use crate::blue::BlueStoreConfig;
use crate::blue::db::{Db, Family, RawBatch};
use crate::blue::label::FIRST_DATA_BLOCK;
use crate::blue::mount::OpenedStore;
use crate::blue::onode::{BLOCK_BYTES, Run};
use crate::blue::recovery::{self, ScanFindings};
use crate::blue::state;
use crate::error::{Result, StoreError};
use std::path::{Path, PathBuf};

/// Limit for deltas before a checkpoint, in bytes, if the scheme is needed although the option turns deltas off.
const FALLBACK_LIMIT_BYTES: u64 = 8 << 20;
/// Assumed size of a delta, in bytes, if deltas were not counted.
const TYPICAL_DELTA_BYTES: u64 = 64;

/// The allocation state that a start has determined.
pub(in crate::blue) struct AllocationState {
    pub(in crate::blue) accounting: SpaceAccounting,
    pub(in crate::blue) source: AllocationSource,
    /// The findings of a scan.
    pub(in crate::blue) findings: ScanFindings,
    /// The database's limits, or higher ones if a scan found higher values in use.
    pub(in crate::blue) id_max: u64,
    pub(in crate::blue) frontier: u64,
    checkpoint: Option<Checkpoint>,
    /// Bytes of deltas since the checkpoint.
    delta_bytes: u64,
    /// Position of the last delta.
    last: u64,
    /// Whether the last delta is void.
    void: bool,
}

/// The way in which a mounted store records its allocation.
pub(in crate::blue) struct FreelistState {
    pub(in crate::blue) scheme: FreelistMode,
    pub(in crate::blue) position: u64,
    pub(in crate::blue) delta_bytes: u64,
    pub(in crate::blue) checkpoint: Option<Checkpoint>,
    pub(in crate::blue) limit_bytes: u64,
}

/// Starts reading the bitmap that a start after a crash needs.
pub(in crate::blue) fn prefetch_bitmap(
    store: &Path,
    uuid: uuid::Uuid,
    device_blocks: u64,
) -> Option<BitmapPrefetch> {
    let folder = allocation_directory(store);
    if folder.join(FILE).exists() { None } else { BitmapPrefetch::begin(&folder, uuid, device_blocks) }
}

/// The directory of the allocation file and the checkpoints.
pub(in crate::blue) fn allocation_directory(store: &Path) -> PathBuf {
    store.join(DIRECTORY)
}

/// The last delta: its position, and its contents if it can be decoded.
pub(in crate::blue) fn last_delta(db: &Db) -> Result<Option<(u64, Option<Delta>)>> {
    db.find_last(Family::AllocDelta, |key, value| Some((decode_key(key)?, Delta::decode(value))))
}

/// Creates the first checkpoint of a store without objects. Adds its delta to the batch that creates the store.
pub(in crate::blue) fn create_first_checkpoint(
    store: &Path,
    uuid: uuid::Uuid,
    device_blocks: u64,
    db: &Db,
    batch: &mut RawBatch,
) -> Result<()> {
    let accounting = SpaceAccounting::empty(device_blocks);
    let head = accounting.head(ImageKind::Checkpoint, uuid, 0, FIRST_DATA_BLOCK, device_blocks);
    Checkpoint::replace(&allocation_directory(store), None, head, &accounting.used)?;
    batch.put(db.ids(), Family::AllocDelta, &delta::key(0), &delta::empty(false));
    Ok(())
}

/// Checks whether the database lost deltas that a checkpoint includes. A checkpoint includes only durable deltas, except for the
/// first checkpoint, which is written just before the delta of its position.
pub(in crate::blue) fn lost_deltas(store: &Path, db: &Db, uuid: uuid::Uuid) -> Result<Option<String>> {
    let Some((last, _)) = last_delta(db)? else { return Ok(None) };
    let newest = Checkpoint::newest_position(&allocation_directory(store), uuid)?;
    Ok(newest.filter(|newest| *newest > last + 1).map(|newest| {
        format!("the database ends at allocation delta {last}, but a checkpoint includes delta {newest}")
    }))
}

/// The allocation state according to the store's notes, without a scan. The text says why the notes are not valid.
pub(in crate::blue) fn load_saved_allocation(
    opened: &OpenedStore,
) -> Result<std::result::Result<AllocationState, String>> {
    if opened.loss.is_some() {
        return Ok(Err("the database has lost what was durable".into()));
    }
    let (last, delta) = match last_delta(&opened.db)? {
        None => {
            return Ok(Err(
                "nothing is noted: the store was made by an earlier release, or changed by hand".into()
            ));
        }
        Some((_, None)) => return Ok(Err("the last allocation delta can't be decoded".into())),
        Some((last, Some(delta))) => (last, delta),
    };
    let notes =
        SavedAllocation { opened, folder: allocation_directory(&opened.directory), last, void: delta.void };
    let by_file = notes.by_file()?;
    match by_file {
        Ok(known) => Ok(Ok(known)),
        Err(problem) => {
            if opened.state.clean && !opened.state.records {
                tracing::warn!("bluestore: {problem}");
            }
            notes.by_checkpoint()
        }
    }
}

struct SavedAllocation<'a> {
    opened: &'a OpenedStore,
    folder: PathBuf,
    last: u64,
    void: bool,
}

impl SavedAllocation<'_> {
    fn device_blocks(&self) -> u64 {
        self.opened.label.size / BLOCK_BYTES
    }

    fn checkpoint(&self) -> Result<std::result::Result<Checkpoint, String>> {
        let is_known = |position: u64| {
            Ok(position <= self.last
                && self.opened.db.get(Family::AllocDelta, &delta::key(position))?.is_some())
        };
        let kind = if self.opened.state.records { ImageKind::Totals } else { ImageKind::Checkpoint };
        Checkpoint::open(&self.folder, self.opened.label.uuid, self.device_blocks(), kind, is_known)
    }

    fn by_file(&self) -> Result<std::result::Result<AllocationState, String>> {
        let OpenedStore { state, label, .. } = self.opened;
        if !state.clean || state.records {
            return Ok(Err("no allocation file counts here".into()));
        }
        let expected = Expected {
            uuid: label.uuid,
            position: self.last,
            frontier: state.frontier,
            device_blocks: self.device_blocks(),
        };
        let accounting = match file::read(&self.folder, expected)? {
            Ok(accounting) => accounting,
            Err(problem) => return Ok(Err(problem)),
        };
        let checkpoint = if self.void { None } else { self.checkpoint()?.ok() };
        let deltas = checkpoint.as_ref().map_or(0, |checkpoint| self.last - checkpoint.head().position);
        Ok(Ok(AllocationState {
            accounting,
            source: AllocationSource::File,
            findings: ScanFindings::default(),
            id_max: state.id_max,
            frontier: state.frontier,
            checkpoint,
            delta_bytes: deltas * TYPICAL_DELTA_BYTES,
            last: self.last,
            void: self.void,
        }))
    }

    fn by_checkpoint(&self) -> Result<std::result::Result<AllocationState, String>> {
        if self.void {
            return Ok(Err("allocations were not recorded".into()));
        }
        fail::fail_point!("store::checkpoint_read", |_| Ok(Err("it can't be read (failpoint)".into())));
        let checkpoint = match self.checkpoint()? {
            Ok(checkpoint) => checkpoint,
            Err(problem) => return Ok(Err(problem)),
        };
        let (db, state) = (&self.opened.db, &self.opened.state);
        let mut accounting = SpaceAccounting::empty(self.device_blocks());
        let ahead = self.opened.ahead.lock().take();
        let loaded = if state.records {
            freelist::load(db, &mut accounting.used)?
        } else if let Some(words) = ahead.and_then(|ahead| ahead.take(&checkpoint)) {
            accounting.used = words;
            Ok(())
        } else {
            checkpoint.load(&mut accounting.used)?
        };
        if let Err(problem) = loaded {
            return Ok(Err(problem));
        }
        let head = checkpoint.head();
        if head.frontier > state.frontier {
            return Ok(Err("the checkpoint's frontier is above the store's".into()));
        }
        (accounting.usage, accounting.objects) = (head.usage.clone(), head.objects.clone());
        let data = FIRST_DATA_BLOCK..state.frontier;
        let applied = each_delta(db, head.position, self.last, |delta| {
            for change in &delta.changes {
                let Run { start, blocks } = change.run;
                let inside = data.contains(&start) && start + blocks <= data.end && !state.records;
                if !inside || !bits::set_range(&mut accounting.used, change.run, change.used) {
                    return Err(StoreError::corrupt("allocation delta", "it contradicts what is allocated"));
                }
            }
            apply_totals(&delta, &mut accounting.usage, &mut accounting.objects);
            Ok(())
        });
        let delta_bytes = match applied {
            Ok(bytes) => bytes,
            Err(error @ StoreError::Corrupt { .. }) => return Ok(Err(error.to_string())),
            Err(error) => return Err(error),
        };
        let source = match state.records {
            true => AllocationSource::Records,
            false => AllocationSource::Checkpoint { deltas: self.last - head.position },
        };
        Ok(Ok(AllocationState {
            accounting,
            source,
            findings: ScanFindings::default(),
            id_max: state.id_max,
            frontier: state.frontier,
            checkpoint: Some(checkpoint),
            delta_bytes,
            last: self.last,
            void: false,
        }))
    }
}

/// Determines what is allocated from the store's notes, or otherwise by a scan.
pub(in crate::blue) fn load_allocation(
    opened: &OpenedStore,
    config: &BlueStoreConfig,
    events: &dyn StoreEvents,
) -> Result<AllocationState> {
    let reason = match load_saved_allocation(opened)? {
        Ok(known) => return Ok(known),
        Err(reason) => reason,
    };
    tracing::warn!(directory = %opened.directory.display(), %reason, "bluestore: scanning all objects for what is allocated");
    let scanned = recovery::scan(opened, config.recovery_threads, events)?;
    let (last, void) = last_position(opened)?;
    Ok(AllocationState {
        accounting: scanned.accounting,
        source: AllocationSource::Scan { reason },
        findings: scanned.findings,
        id_max: scanned.id_max,
        frontier: scanned.frontier,
        checkpoint: None,
        delta_bytes: 0,
        last,
        void,
    })
}

/// The highest position of a delta or checkpoint, and whether the last delta is void. New notes get positions above it.
fn last_position(opened: &OpenedStore) -> Result<(u64, bool)> {
    let newest = Checkpoint::newest_position(&allocation_directory(&opened.directory), opened.label.uuid)?;
    let (last, void) = match last_delta(&opened.db)? {
        None => (0, true),
        Some((last, delta)) => (last, delta.is_none_or(|delta| delta.void)),
    };
    Ok((last.max(newest.unwrap_or_default()), void))
}

/// Prepares the notes so that recording can begin, and adds the related changes to the batch that marks the store as
/// mounted. Nothing may be allocated before that batch is durable.
pub(in crate::blue) fn start_recording(
    opened: &OpenedStore,
    config: &BlueStoreConfig,
    frontier: u64,
    known: &mut AllocationState,
    batch: &mut RawBatch,
) -> Result<FreelistState> {
    let (db, ids, folder) = (&opened.db, opened.db.ids(), allocation_directory(&opened.directory));
    let scheme = if !known.findings.is_empty() {
        FreelistMode::Off
    } else if !config.allocation_from_file {
        FreelistMode::Records
    } else if config.checkpoint_bytes == 0 {
        FreelistMode::Off
    } else {
        FreelistMode::Deltas
    };
    let limit_bytes =
        if config.checkpoint_bytes == 0 { FALLBACK_LIMIT_BYTES } else { config.checkpoint_bytes };
    let kind = if scheme == FreelistMode::Records { ImageKind::Totals } else { ImageKind::Checkpoint };
    for key in std::mem::take(&mut known.findings.unreferenced) {
        batch.delete(ids, Family::Shared, &key);
    }
    let mut checkpoint = known.checkpoint.take();
    if scheme != FreelistMode::Off
        && !matches!(known.source, AllocationSource::Scan { .. })
        && let Some(checkpoint) = checkpoint.take_if(|checkpoint| checkpoint.head().kind == kind)
    {
        file::invalidate(&folder)?;
        let (position, delta_bytes) = (known.last, known.delta_bytes);
        return Ok(FreelistState {
            scheme,
            position,
            delta_bytes,
            checkpoint: Some(checkpoint),
            limit_bytes,
        });
    }
    let is_ahead = known.last > last_delta(db)?.map_or(0, |(last, _)| last);
    let replaces = opened.state.records || (scheme != FreelistMode::Off && checkpoint.is_none());
    if is_ahead || (replaces && !known.void) {
        // Until the new notes are complete, a start must not use records that are being rewritten. It must not take the
        // checkpoint, which is written first, for one that is newer than the database. And it must not continue from an older
        // checkpoint that could not be read now, because its own deltas would get the new checkpoint's position.
        known.last += 1;
        let mut void = RawBatch::default();
        void.put(ids, Family::AllocDelta, &delta::key(known.last), &delta::empty(true));
        void.finish();
        db.write(&void)?;
    }
    let position = known.last + 1;
    let mut made = None;
    match scheme {
        FreelistMode::Records => freelist::rewrite(db, &known.accounting.used)?,
        FreelistMode::Deltas | FreelistMode::Off => freelist::clear(ids, batch),
    }
    if scheme != FreelistMode::Off {
        let blocks = opened.label.size / BLOCK_BYTES;
        let head = known.accounting.head(kind, opened.label.uuid, position, frontier, blocks);
        made = Some(Checkpoint::replace(&folder, checkpoint.as_ref(), head, &known.accounting.used)?);
    }
    file::invalidate(&folder)?;
    batch.delete_range(ids, Family::AllocDelta, &delta::key(0), &delta::key(position));
    batch.put(ids, Family::AllocDelta, &delta::key(position), &delta::empty(scheme == FreelistMode::Off));
    batch.put(ids, Family::Super, state::ALLOCATION_RECORDED, &[u8::from(scheme == FreelistMode::Records)]);
    Ok(FreelistState { scheme, position, delta_bytes: 0, checkpoint: made, limit_bytes })
}

/// Records the allocation of an unmounted store that was filled by other means, with the batch that fills it.
pub(in crate::blue) fn record_filled(
    opened: &OpenedStore,
    config: &BlueStoreConfig,
    accounting: SpaceAccounting,
    frontier: u64,
    batch: &mut RawBatch,
) -> Result<()> {
    let (last, void) = last_position(opened)?;
    let mut known = AllocationState {
        accounting,
        source: AllocationSource::Scan { reason: "filled".into() },
        findings: ScanFindings::default(),
        id_max: opened.state.id_max,
        frontier,
        checkpoint: None,
        delta_bytes: 0,
        last,
        void,
    };
    start_recording(opened, config, frontier, &mut known, batch).map(drop)
}

/// Makes the next start of a store that is being closed scan, because its notes do not contain all free blocks.
pub(in crate::blue) fn mark_invalid(db: &Db, batch: &mut RawBatch) -> Result<()> {
    let position = last_delta(db)?.map_or(0, |(position, _)| position + 1);
    batch.put(db.ids(), Family::AllocDelta, &delta::key(position), &delta::empty(true));
    Ok(())
}

/// Writes the allocation file of a store that is being closed and has committed everything.
pub(in crate::blue) fn save(
    store: &Path,
    db: &Db,
    accounting: &SpaceAccounting,
    expected: Expected,
) -> Result<()> {
    let position = last_delta(db)?.map_or(0, |(position, _)| position);
    file::write(&allocation_directory(store), accounting, Expected { position, ..expected })
}
