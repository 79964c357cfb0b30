//! Creating a store, and opening one: checks that its parts belong together, detects losses and recovers from the journal.

use super::FileStoreConfig;
use super::apply::{self, Applier};
use super::backend::{Backend, CLONES};
use super::db::DbState;
use super::journal::Journal;
use crate::error::{Result, StoreError};
use nacre_objectstore::files::{StoreLock, read_if_present, sync_directory, write_atomically};
use nacre_types::encoding::{self, Versioned};
use nacre_types::ids::Incarnation;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// Contents of the file `type`, which identifies a store directory, as in Ceph.
const TYPE: &str = "filestore\n";

/// The store's identity and state, in the file `label`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Label {
    /// The uuid that the journal and the database contain.
    pub(super) uuid: Uuid,
    /// Identity of the contents.
    pub(super) incarnation: Incarnation,
    /// Whether the store was unmounted cleanly.
    pub(super) clean: bool,
}

impl Versioned for Label {
    const NAME: &'static str = "filestore label";
}

impl Label {
    pub(super) fn write(&self, directory: &Path) -> Result<()> {
        write_atomically(&directory.join("label"), &[&encoding::encode(self)])
    }
}

/// Creates an empty store in `directory`.
pub(super) fn mkfs(directory: &Path, config: &FileStoreConfig) -> Result<Incarnation> {
    let failed =
        |path: &Path, error: &std::io::Error| StoreError::io(format!("create {}", path.display()), error);
    std::fs::create_dir_all(directory).map_err(|e| failed(directory, &e))?;
    let _lock = StoreLock::take(directory)?;
    let current = directory.join("current");
    if directory.join("type").exists() || current.exists() {
        return Err(StoreError::WrongStore {
            path: directory.display().to_string(),
            reason: "already holds a store".into(),
        });
    }
    for path in [&current, &current.join(CLONES)] {
        std::fs::create_dir(path).map_err(|e| failed(path, &e))?;
    }
    let label = Label { uuid: Uuid::new_v4(), incarnation: Incarnation(Uuid::new_v4()), clean: true };
    let journal = config.journal_path.clone().unwrap_or_else(|| directory.join("journal"));
    Journal::create(&journal, label.uuid, config.journal_bytes, config.journal_path.is_some())?;
    if let Some(elsewhere) = &config.journal_path {
        std::os::unix::fs::symlink(elsewhere, directory.join("journal"))
            .map_err(|e| failed(elsewhere, &e))?;
    }
    let backend = Backend::open(&current, config, true)?;
    backend.db.set_uuid(label.uuid)?;
    drop(backend);
    apply::write_commit_seq(&current, 0)?;
    label.write(directory)?;
    sync_directory(&current)?;
    // Written last: this file makes the directory a store.
    write_atomically(&directory.join("type"), &[TYPE.as_bytes()])?;
    Ok(label.incarnation)
}

/// The parts of a store, opened, checked to belong together and recovered.
pub(super) struct Opened {
    pub(super) lock: StoreLock,
    pub(super) label: Label,
    pub(super) current: PathBuf,
    pub(super) backend: Backend,
    pub(super) journal: Journal,
    pub(super) state: DbState,
    /// The number of the last record.
    pub(super) last_seq: u64,
    /// Number of records that were replayed.
    pub(super) replayed: u64,
    /// Description of durable data that was lost (rule B3).
    pub(super) loss: Option<String>,
}

/// Opens the store in `directory` and replays the journal's records since the last sync. A store that lost data gets a new
/// identity immediately, because opening it removes the evidence of the loss.
pub(super) fn open(directory: &Path, config: &FileStoreConfig) -> Result<Opened> {
    let path = directory.display().to_string();
    let wrong = |reason: &str| StoreError::WrongStore { path: path.clone(), reason: reason.into() };
    if read_if_present(&directory.join("type"))?.as_deref() != Some(TYPE.as_bytes()) {
        return Err(wrong("holds no filestore"));
    }
    let lock = StoreLock::take(directory)?;
    let label = read_if_present(&directory.join("label"))?.ok_or_else(|| wrong("the label is missing"))?;
    let mut label: Label = encoding::decode(&label)?;
    let current = directory.join("current");
    let backend = Backend::open(&current, config, false)?;
    if backend.db.uuid()? != Some(label.uuid) {
        return Err(wrong("the metadata database belongs to another store"));
    }
    let state = backend.db.state()?;
    let committed = match apply::read_commit_seq(&current)? {
        Some(seq) if seq >= state.position.seq => {
            // Objects and logs would be of an earlier time, and it could not be determined which.
            let detail = format!("it ends before record {}, but was durable up to {seq}", state.position.seq);
            return Err(StoreError::corrupt("metadata database", detail));
        }
        Some(seq) => Some(seq),
        None => {
            tracing::warn!(
                path,
                "filestore: commit_op_seq can't be read; the whole journal is carried out again"
            );
            None
        }
    };
    let journal = Journal::open(&directory.join("journal"), label.uuid)?;
    let mut applier = Applier::new(&state);
    let mut replayed = 0;
    // In two passes: later names of files must be known before the first record is executed.
    let end = journal.replay(|_, records| {
        records.iter().for_each(|record| applier.register_aliases(record));
        Ok(())
    })?;
    let is_new = |seq: u64| committed.is_none_or(|committed| seq > committed);
    journal.replay(|first, records| {
        for (at, record) in records.iter().enumerate() {
            let seq = first + at as u64;
            if is_new(seq) {
                fail::fail_point!("filestore::replay", |_| Err(StoreError::Io {
                    what: "replay (failpoint)".into(),
                    code: libc::EIO
                }));
                applier.apply_record(&backend, seq, record)?;
                replayed += 1;
            }
        }
        applier.finish(&backend)
    })?;
    applier.clear_aliases();
    let in_database = state.position.seq - 1;
    let reached = end.last_seq.max(committed.unwrap_or(in_database));
    let loss = end.loss.or_else(|| {
        let wanted = end.watermark.max(in_database);
        (reached < wanted).then(|| {
            format!("the journal is damaged: it ends at record {reached}, but was durable up to {wanted}")
        })
    });
    let last_seq = reached.max(end.watermark).max(in_database);
    if let Some(loss) = &loss {
        label.incarnation = Incarnation(Uuid::new_v4());
        label.write(directory)?;
        tracing::error!(path, incarnation = %label.incarnation, "filestore: {loss}");
    }
    if replayed > 0 || loss.is_some() || end.last_seq > 0 {
        applier.skip_to(last_seq + 1);
        applier.finish(&backend)?;
        backend.sync()?;
        apply::write_commit_seq(&current, last_seq)?;
        journal.reset(last_seq)?;
    }
    backend.clear_clones()?;
    Ok(Opened { lock, label, current, backend, journal, state: applier.state(), last_seq, replayed, loss })
}
