//! Records the durable revision of the local store outside of its database (docs/format/mapstore.md).
//!
//! After a crash the database ends at the last transaction that it can read. It can't distinguish a torn tail, which was
//! never acknowledged, from damage that hides acknowledged transactions. The watermark can: a database that ends below it
//! has lost transactions. A separate thread writes it while the next transaction is being synced, and a transaction is
//! acknowledged only when the watermark has reached the one before. So it costs hardly any time, and only the newest
//! transaction is not covered.
//!
//! Writes alternate between two slots in different blocks, so a torn write leaves the other slot intact.

use nacre_mapstore::MapStoreError;
use nacre_types::crc32c::crc32c;
use parking_lot::{Condvar, Mutex};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

/// The file's name, in the directory of the store.
pub(super) const FILE_NAME: &str = "watermark";
const MAGIC: &[u8; 8] = b"NcrWmrk1";
/// Distance between the slots, so that they never share a block of a device.
const SLOT_BYTES: u64 = 4096;
const RECORD_BYTES: usize = 28;
/// The revision of a store that has lost transactions, or whose file can't be read, until a new generation.
const LOST: u64 = u64::MAX;

/// The contents of a file.
struct WatermarkFile {
    file: File,
    /// Number of writes. The slot with the highest number is valid.
    number: u64,
    revision: u64,
}

impl WatermarkFile {
    /// Opens the file in `dir`. A missing or empty file, as in stores of earlier releases, means revision 0.
    fn open(dir: &Path) -> Result<WatermarkFile, MapStoreError> {
        let path = dir.join(FILE_NAME);
        let mut options = OpenOptions::new();
        let file =
            options.read(true).write(true).create(true).truncate(false).open(&path).map_err(|e| io(&e))?;
        let bytes = std::fs::read(&path).map_err(|e| io(&e))?;
        if bytes.iter().all(|byte| *byte == 0) {
            file.write_all_at(&[0; 2 * SLOT_BYTES as usize], 0).map_err(|e| io(&e))?;
            file.sync_all().map_err(|e| io(&e))?;
            File::open(dir).and_then(|dir| dir.sync_all()).map_err(|e| io(&e))?;
            return Ok(WatermarkFile { file, number: 0, revision: 0 });
        }
        let slots = [0, SLOT_BYTES as usize].map(|at| bytes.get(at..).and_then(decode));
        let (number, revision) = slots.into_iter().flatten().max().unwrap_or((0, LOST));
        Ok(WatermarkFile { file, number, revision })
    }

    /// Writes `revision`. Durable on return.
    fn write(&mut self, revision: u64) -> Result<(), MapStoreError> {
        let number = self.number + 1;
        let at = number % 2 * SLOT_BYTES;
        self.file.write_all_at(&encode(number, revision), at).map_err(|e| io(&e))?;
        self.file.sync_data().map_err(|e| io(&e))?;
        (self.number, self.revision) = (number, revision);
        Ok(())
    }
}

fn encode(number: u64, revision: u64) -> [u8; RECORD_BYTES] {
    let mut record = [0; RECORD_BYTES];
    record[..8].copy_from_slice(MAGIC);
    record[8..16].copy_from_slice(&number.to_be_bytes());
    record[16..24].copy_from_slice(&revision.to_be_bytes());
    let crc = crc32c(&record[..24]);
    record[24..].copy_from_slice(&crc.to_be_bytes());
    record
}

/// The number and the revision of a slot, or `None` if it is empty or torn.
fn decode(slot: &[u8]) -> Option<(u64, u64)> {
    let record: &[u8; RECORD_BYTES] = slot.first_chunk()?;
    let number = |at: usize| record[at..].first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
    let (count, revision) = (number(8)?, number(16)?);
    (*record == encode(count, revision)).then_some((count, revision))
}

/// See the module's documentation.
pub(super) struct Watermark {
    shared: Arc<Shared>,
    writer: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    wanted: u64,
    durable: u64,
    /// The store has lost transactions: the file is unchanged until [`Watermark::accept_loss`].
    is_lost: bool,
    closing: bool,
    failed: Option<MapStoreError>,
    /// Taken by the writer while it writes.
    slots: Option<WatermarkFile>,
}

impl Watermark {
    /// Opens the watermark in `dir` of a store that ends at `revision`. Refuses a store that has lost transactions unless
    /// `accept_loss` is set. With it the store is marked, and later opens are refused until [`Watermark::accept_loss`] has
    /// returned.
    pub(super) fn open(dir: &Path, revision: u64, accept_loss: bool) -> Result<Watermark, MapStoreError> {
        let mut slots = WatermarkFile::open(dir)?;
        let is_lost = revision < slots.revision;
        if is_lost && !accept_loss {
            let reached = match slots.revision {
                LOST => format!("and the file {FILE_NAME} tells of a loss or is damaged"),
                reached => format!("but had reached revision {reached}"),
            };
            return Err(MapStoreError::Corrupt(format!(
                "changes are missing: the store ends at revision {revision}, {reached}; mint a generation (nacre mon --mint-generation)"
            )));
        }
        if is_lost {
            slots.write(LOST)?;
        } else if revision > slots.revision || slots.number == 0 {
            slots.write(revision)?;
        }
        let state = State {
            wanted: revision,
            durable: revision,
            is_lost,
            closing: false,
            failed: None,
            slots: Some(slots),
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let writer = std::thread::Builder::new()
            .name("mapstore-mark".into())
            .spawn({
                let shared = shared.clone();
                move || shared.write_marks()
            })
            .map_err(|e| io(&e))?;
        Ok(Watermark { shared, writer: Some(writer) })
    }

    /// Reports that `revision` is durable in the database. Returns when everything before it is covered.
    pub(super) fn advance(&self, revision: u64) -> Result<(), MapStoreError> {
        let mut state = self.shared.state.lock();
        while !state.is_lost && state.durable < state.wanted && state.failed.is_none() {
            self.shared.changed.wait(&mut state);
        }
        state.wanted = revision;
        self.shared.changed.notify_all();
        state.failed.clone().map_or(Ok(()), Err)
    }

    /// Marks the store as complete from here on. Called when a new generation has compensated for the loss.
    pub(super) fn accept_loss(&self) -> Result<(), MapStoreError> {
        let mut state = self.shared.state.lock();
        state.is_lost = false;
        self.shared.changed.notify_all();
        // The file still marks the loss, so it is written even if nothing has changed since.
        state.durable = 0;
        while state.durable < state.wanted && state.failed.is_none() {
            self.shared.changed.wait(&mut state);
        }
        state.failed.clone().map_or(Ok(()), Err)
    }
}

impl Drop for Watermark {
    fn drop(&mut self) {
        self.shared.state.lock().closing = true;
        self.shared.changed.notify_all();
        if let Some(writer) = self.writer.take() {
            // A panic of the thread has been printed already.
            let _ = writer.join();
        }
    }
}

impl Shared {
    fn write_marks(&self) {
        let mut state = self.state.lock();
        loop {
            if state.is_lost || state.durable >= state.wanted {
                if state.closing {
                    return;
                }
                self.changed.wait(&mut state);
                continue;
            }
            let wanted = state.wanted;
            let Some(mut slots) = state.slots.take() else { return };
            drop(state);
            let written = slots.write(wanted);
            state = self.state.lock();
            state.slots = Some(slots);
            match written {
                Ok(()) => state.durable = wanted,
                Err(error) => state.failed = Some(error),
            }
            self.changed.notify_all();
            if state.failed.is_some() {
                return;
            }
        }
    }
}

fn io(error: &std::io::Error) -> MapStoreError {
    MapStoreError::Io(format!("{FILE_NAME}: {error}"))
}
