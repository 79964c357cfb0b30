//! The file that a clean unmount writes and the next mount reads, and the label that tells whether to trust it.
//!
//! `label` holds the store's identity and whether the save is complete. It is marked in use at mount, so that after a
//! crash the save (by then outdated) is not taken for the contents. Formats: docs/format/memstore.md.

use super::collection::{Collection, SavedObject};
use crate::error::{Result, StoreError};
use crate::files::{read_if_present, replace_atomically, write_atomically};
use bytes::Bytes;
use nacre_types::crc32c::crc32c;
use nacre_types::encoding::{self, Versioned};
use nacre_types::ids::{Eversion, Incarnation, PgId};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, BufWriter, ErrorKind, Read, Write};
use std::path::Path;
use std::sync::Arc;
use uuid::Uuid;

/// First bytes of a save.
const MAGIC: &[u8; 16] = b"nacre memstore 1";
/// The largest record that a reader accepts, in bytes.
const MAX_RECORD_BYTES: u32 = u32::MAX - 4096;

/// The store's identity and state, in the file `label`.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Label {
    incarnation: Incarnation,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum State {
    /// Made and never used: nothing to load.
    Empty,
    /// Mounted, or crashed while mounted.
    InUse,
    /// Unmounted cleanly; `save` holds everything.
    Saved,
}

impl Versioned for Label {
    const NAME: &'static str = "memstore label";
}

impl Label {
    pub(super) fn create(directory: &Path) -> Result<Incarnation> {
        if directory.join("label").exists() {
            return Err(StoreError::WrongStore {
                path: directory.display().to_string(),
                reason: "already holds a store".into(),
            });
        }
        let label = Label { incarnation: Incarnation(Uuid::new_v4()), state: State::Empty };
        label.write(directory)?;
        Ok(label.incarnation)
    }

    fn read(directory: &Path) -> Result<Label> {
        let Some(bytes) = read_if_present(&directory.join("label"))? else {
            return Err(StoreError::WrongStore {
                path: directory.display().to_string(),
                reason: "holds no memstore (no label)".into(),
            });
        };
        Ok(encoding::decode(&bytes)?)
    }

    fn write(&self, directory: &Path) -> Result<()> {
        write_atomically(&directory.join("label"), &[&encoding::encode(self)])
    }
}

/// What a mount starts from.
pub(super) struct Loaded {
    pub(super) incarnation: Incarnation,
    pub(super) clean: bool,
    pub(super) loss: Option<String>,
    pub(super) collections: Vec<Collection>,
}

/// Loads the contents and marks the store in use.
pub(super) fn load(directory: &Path) -> Result<Loaded> {
    let mut label = Label::read(directory)?;
    let (collections, loss) = match label.state {
        State::Empty => (Vec::new(), None),
        State::InUse => (
            Vec::new(),
            Some(
                "contents lost: the store was not unmounted cleanly, and memory does not outlive the process"
                    .into(),
            ),
        ),
        State::Saved => match read_save(&directory.join("save")) {
            Ok(collections) => (collections, None),
            Err(error) => {
                (Vec::new(), Some(format!("contents lost: the saved contents can't be read: {error}")))
            }
        },
    };
    let clean = label.state != State::InUse;
    if loss.is_some() {
        label.incarnation = Incarnation(Uuid::new_v4());
    }
    label.state = State::InUse;
    label.write(directory)?;
    Ok(Loaded { incarnation: label.incarnation, clean, loss, collections })
}

/// Saves the contents and marks the store clean. Durable on return.
pub(super) fn save<'a>(
    directory: &Path,
    incarnation: Incarnation,
    collections: impl Iterator<Item = &'a Arc<Mutex<Collection>>>,
) -> Result<()> {
    replace_atomically(&directory.join("save"), |file| {
        let mut out = Writer { file: BufWriter::with_capacity(1 << 20, file), buffer: Vec::new() };
        out.file.write_all(MAGIC)?;
        let mut count = 0_u64;
        for collection in collections {
            let collection = collection.lock();
            out.record(&Some(collection.save_header()))?;
            for object in collection.save_objects() {
                out.record(&object)?;
            }
            count += 1;
        }
        // The end mark: a file cut short between two records must not pass for a whole one.
        out.record(&None::<()>)?;
        out.record(&count)?;
        out.file.flush()
    })?;
    Label { incarnation, state: State::Saved }.write(directory)
}

/// Records of `length u32 | crc32c u32 | postcard`.
struct Writer<'a> {
    file: BufWriter<&'a mut File>,
    buffer: Vec<u8>,
}

impl Writer<'_> {
    fn record(&mut self, value: &impl Serialize) -> std::io::Result<()> {
        self.buffer.clear();
        self.buffer = postcard::to_extend(value, std::mem::take(&mut self.buffer))
            .map_err(|error| std::io::Error::new(ErrorKind::InvalidData, error))?;
        let length = u32::try_from(self.buffer.len())
            .map_err(|_| std::io::Error::new(ErrorKind::InvalidData, "object too large to save"))?;
        self.file.write_all(&length.to_le_bytes())?;
        self.file.write_all(&crc32c(&self.buffer).to_le_bytes())?;
        self.file.write_all(&self.buffer)
    }
}

struct Reader {
    file: BufReader<File>,
    what: String,
    buffer: Vec<u8>,
}

impl Reader {
    fn read_exact(&mut self, buffer: &mut [u8]) -> Result<()> {
        self.file.read_exact(buffer).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => StoreError::corrupt(&self.what, "cut short"),
            _ => StoreError::io(format!("read {}", self.what), &error),
        })
    }

    fn record<T: serde::de::DeserializeOwned>(&mut self) -> Result<T> {
        let mut header = [0; 8];
        self.read_exact(&mut header)?;
        let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
        let crc = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
        if length > MAX_RECORD_BYTES {
            return Err(StoreError::corrupt(&self.what, format!("record of {length} bytes")));
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(length as usize, 0);
        let read = self.read_exact(&mut buffer);
        self.buffer = buffer;
        read?;
        if crc32c(&self.buffer) != crc {
            return Err(StoreError::corrupt(&self.what, "checksum mismatch"));
        }
        postcard::from_bytes(&self.buffer).map_err(|error| StoreError::corrupt(&self.what, error.to_string()))
    }
}

type Header = (PgId, BTreeMap<String, Bytes>, BTreeMap<Eversion, Bytes>, u64);

fn read_save(path: &Path) -> Result<Vec<Collection>> {
    let what = path.display().to_string();
    let file = File::open(path).map_err(|e| StoreError::io(format!("open {what}"), &e))?;
    let mut input = Reader { file: BufReader::with_capacity(1 << 20, file), what, buffer: Vec::new() };
    let mut magic = [0; MAGIC.len()];
    input.read_exact(&mut magic)?;
    if &magic != MAGIC {
        return Err(StoreError::corrupt(&input.what, "not a memstore save"));
    }
    let mut collections = Vec::new();
    while let Some((id, meta, log, objects)) = input.record::<Option<Header>>()? {
        let mut collection = Collection::new(id);
        collection.load_header(meta, log);
        for _ in 0..objects {
            collection.load_object(input.record::<SavedObject>()?);
        }
        collections.push(collection);
    }
    let count: u64 = input.record()?;
    if count != collections.len() as u64 {
        return Err(StoreError::corrupt(&input.what, "collections are missing"));
    }
    Ok(collections)
}
