//! The file that a clean unmount writes and the next mount reads, and the label that tells whether the file is valid.
//!
//! `label` holds the store's identity and whether the save is complete. A mount marks it as in use, so that after a crash
//! the outdated save is not taken for the contents. Formats: docs/format/memstore.md.

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

/// First bytes of a save file.
const MAGIC: &[u8; 16] = b"nacre memstore 1";
/// Bytes of a record that are read at a time. A claimed length is not allocated before the data has been read.
const READ_STEP_BYTES: usize = 1 << 20;

/// The store's identity and state, in the file `label`.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Label {
    incarnation: Incarnation,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum State {
    /// Created and never used: nothing to load.
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

/// The result of loading a store.
pub(super) struct LoadedStore {
    pub(super) incarnation: Incarnation,
    pub(super) clean: bool,
    pub(super) loss: Option<String>,
    pub(super) collections: Vec<Collection>,
}

/// Loads the contents and marks the store as in use. Fails with [`StoreError::NoSpace`] and changes nothing if the save file is
/// larger than `room` bytes.
pub(super) fn load(directory: &Path, room: u64) -> Result<LoadedStore> {
    let mut label = Label::read(directory)?;
    let save = directory.join("save");
    if label.state == State::Saved {
        let wanted_bytes = std::fs::metadata(&save).map_or(0, |metadata| metadata.len());
        if wanted_bytes > room {
            return Err(StoreError::NoSpace { wanted_bytes, available_bytes: room });
        }
    }
    let (collections, loss) = match label.state {
        State::Empty => (Vec::new(), None),
        State::InUse => (
            Vec::new(),
            Some(
                "contents lost: the store was not unmounted cleanly, and memory does not outlive the process"
                    .into(),
            ),
        ),
        State::Saved => match open_save(&save) {
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
    Ok(LoadedStore { incarnation: label.incarnation, clean, loss, collections })
}

/// Saves the contents and marks the store as clean. Durable on return.
pub(super) fn save<'a>(
    directory: &Path,
    incarnation: Incarnation,
    collections: impl Iterator<Item = &'a Arc<Mutex<Collection>>>,
) -> Result<()> {
    replace_atomically(&directory.join("save"), |file| {
        fail::fail_point!("memstore::save", |_| Err(std::io::Error::from_raw_os_error(libc::ENOSPC)));
        let mut out = BufWriter::with_capacity(1 << 20, file);
        let locked = collections.map(|collection| collection.lock());
        write_save(&mut out, locked)?;
        out.flush()
    })?;
    fail::fail_point!("memstore::label", |_| Err(StoreError::Io {
        what: "write the label (failpoint)".into(),
        code: libc::EIO
    }));
    Label { incarnation, state: State::Saved }.write(directory)
}

fn write_save(
    out: &mut impl Write,
    collections: impl Iterator<Item = impl std::ops::Deref<Target = Collection>>,
) -> std::io::Result<()> {
    let mut out = Writer { file: out, buffer: Vec::new() };
    out.file.write_all(MAGIC)?;
    let mut count = 0_u64;
    for collection in collections {
        out.record(&Some(collection.save_header()))?;
        for object in collection.save_objects() {
            out.record(&object)?;
        }
        count += 1;
    }
    // The end mark: a file that is cut between two records must not be taken for a whole one.
    out.record(&None::<()>)?;
    out.record(&count)
}

/// Records of `length u32 | crc32c u32 | postcard`.
struct Writer<W> {
    file: W,
    buffer: Vec<u8>,
}

impl<W: Write> Writer<W> {
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

struct Reader<R> {
    file: R,
    what: String,
    buffer: Vec<u8>,
}

impl<R: Read> Reader<R> {
    fn read_exact(&mut self, buffer: &mut [u8]) -> Result<()> {
        self.file.read_exact(buffer).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => StoreError::corrupt(&self.what, "cut short"),
            _ => StoreError::io(format!("read {}", self.what), &error),
        })
    }

    /// Reads `length` bytes into the buffer, which grows only as data is read.
    fn fill(&mut self, length: usize) -> Result<()> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        while buffer.len() < length {
            let from = buffer.len();
            buffer.resize(length.min(from + READ_STEP_BYTES), 0);
            self.read_exact(&mut buffer[from..])?;
        }
        self.buffer = buffer;
        Ok(())
    }

    fn record<T: serde::de::DeserializeOwned>(&mut self) -> Result<T> {
        let mut header = [0; 8];
        self.read_exact(&mut header)?;
        let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
        let crc = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
        self.fill(length as usize)?;
        if crc32c(&self.buffer) != crc {
            return Err(StoreError::corrupt(&self.what, "checksum mismatch"));
        }
        postcard::from_bytes(&self.buffer).map_err(|error| StoreError::corrupt(&self.what, error.to_string()))
    }
}

type Header = (PgId, BTreeMap<String, Bytes>, BTreeMap<Eversion, Bytes>, u64);

fn open_save(path: &Path) -> Result<Vec<Collection>> {
    fail::fail_point!("memstore::load", |_| Err(StoreError::corrupt("save", "failpoint")));
    let what = path.display().to_string();
    let file = File::open(path).map_err(|e| StoreError::io(format!("open {what}"), &e))?;
    read_save(BufReader::with_capacity(1 << 20, file), what)
}

fn read_save(file: impl Read, what: String) -> Result<Vec<Collection>> {
    let mut input = Reader { file, what, buffer: Vec::new() };
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
            let object = input.record::<SavedObject>()?;
            if !object.is_sound() {
                return Err(StoreError::corrupt(&input.what, "an object's parts do not fit it"));
            }
            collection.load_object(object);
        }
        collections.push(collection);
    }
    let count: u64 = input.record()?;
    if count != collections.len() as u64 {
        return Err(StoreError::corrupt(&input.what, "collections are missing"));
    }
    Ok(collections)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_fuzz::Target;
    use nacre_types::ids::{Interval, PoolId};
    use nacre_types::object::ObjectId;
    use nacre_types::txn::{Transaction, TxnOp};

    fn saved(collections: &[Collection]) -> Vec<u8> {
        let mut out = Vec::new();
        write_save(&mut out, collections.iter()).unwrap();
        out
    }

    fn example() -> Collection {
        let id = PgId::new(PoolId(3), 1);
        let oid = ObjectId::new(PoolId(3), "ns", "", "object");
        let bytes = |text: &'static str| Bytes::from_static(text.as_bytes());
        let ops = vec![
            TxnOp::CreateCollection,
            TxnOp::Write { oid: oid.clone(), offset: 20_000, data: bytes("some data").into() },
            TxnOp::Write { oid: oid.clone(), offset: 3, data: bytes("more").into() },
            TxnOp::SetAttrs { oid: oid.clone(), attrs: vec![("_".into(), bytes("info"))] },
            TxnOp::OmapSet { oid: oid.clone(), entries: vec![(bytes("k"), bytes("v"))] },
            TxnOp::OmapSetHeader { oid: oid.clone(), header: bytes("head") },
            TxnOp::Touch(oid.with_snap(7)),
            TxnOp::MetaSet(vec![("info".into(), bytes("1"))]),
            TxnOp::LogAppend(vec![(Eversion::new(Interval(1), 1), bytes("entry"))]),
        ];
        let mut collection = Collection::new(id);
        collection.apply(&Transaction { collection: id, ops }, false);
        collection
    }

    /// Corrects the checksum of every record that the lengths lead to.
    fn reseal(input: &mut [u8]) {
        let mut rest = input.get_mut(MAGIC.len()..).unwrap_or_default();
        while let Some((header, after)) = rest.split_at_mut_checked(8) {
            let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
            let Some((body, after)) = after.split_at_mut_checked(length) else { return };
            header[4..].copy_from_slice(&crc32c(body).to_le_bytes());
            rest = after;
        }
    }

    #[test]
    fn fuzz_saves() {
        let corpus = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"));
        let seeds = vec![
            saved(&[]),
            saved(&[example()]),
            saved(&[Collection::new(PgId::new(PoolId(1), 0)), example()]),
        ];
        let target = Target {
            repair: reseal,
            max_alloc_per_input_byte: 1024,
            ..Target::new("memstore-save", corpus, seeds)
        };
        target.run(|input| {
            let mut rest = input;
            let collections = read_save(&mut rest, "fuzzed".into()).ok()?;
            Some(saved(&collections))
        });
    }

    #[test]
    fn claimed_lengths_take_no_memory() {
        let mut claims = MAGIC.to_vec();
        claims.extend_from_slice(&u32::MAX.to_le_bytes());
        claims.extend_from_slice(&[0; 100]);
        let error = read_save(&claims[..], "claims".into()).unwrap_err();
        assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
    }
}
