//! Any changed bit in any file of a BlueStore: the start refuses, or every read gives what was written or an error.

use crate::reference::{Model, difference};
use crate::stores::{POOL, blue_config, oid, pattern, pg, soft, write};
use bytes::Bytes;
use nacre_store::{BlueStore, CompressionMode, DataOptions, IgnoreEvents, ObjectStore, StoreError};
use nacre_types::txn::{Transaction, TxnOp};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Changed bits tried.
const FLIPS: u64 = 120;

fn files(root: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(root).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files(&path, found) } else { found.push(path) }
    }
}

pub(crate) fn copy(from: &Path, to: &Path) {
    let mut all = Vec::new();
    files(from, &mut all);
    for file in all {
        let target = to.join(file.strip_prefix(from).unwrap());
        std::fs::create_dir_all(target.parent().unwrap()).unwrap();
        // Keeps the device sparse.
        let done = std::process::Command::new("cp").arg("--sparse=always").arg(&file).arg(&target).status();
        assert!(done.unwrap().success());
    }
}

/// Writes objects of all sorts; returns what they are.
fn fill(directory: &Path) -> Model {
    let (store, _) = BlueStore::mount(directory, blue_config(), Arc::new(IgnoreEvents)).unwrap();
    let options = DataOptions { mode: CompressionMode::Force, ..DataOptions::default() };
    store.set_data_options([(POOL, options)].into());
    let mut model = Model::default();
    for at in 0..60_u64 {
        let name = format!("object {at}");
        let data = if at % 3 == 0 { soft(at, 50_000) } else { pattern(at, 9000 + at as usize * 300) };
        let entries = (0..4).map(|key| (Bytes::from(format!("key {key}")), Bytes::from(pattern(key, 80))));
        let mut ops = vec![
            write(&name, 0, data),
            TxnOp::OmapSet { oid: oid(&name), entries: entries.collect() },
            TxnOp::SetAttrs { oid: oid(&name), attrs: vec![("_".into(), pattern(at, 100).into())] },
        ];
        if at == 0 {
            ops.insert(0, TxnOp::CreateCollection);
        }
        if at % 7 == 3 {
            ops.push(TxnOp::Clone { from: oid(&name), to: oid(&format!("clone {at}")) });
        }
        let txn = Transaction { collection: pg(0), ops };
        model = model.apply(&txn).unwrap();
        store.commit(&txn).unwrap();
        if at == 40 {
            // Some of it in sorted files, some in the log.
            store.compact(&mut |_, _, _| ()).unwrap();
        }
    }
    store.umount().unwrap();
    model
}

/// What became of a store with a changed bit.
fn outcome(directory: &Path, model: &Model) -> Result<&'static str, String> {
    let (store, report) = match BlueStore::mount(directory, blue_config(), Arc::new(IgnoreEvents)) {
        Ok(mounted) => mounted,
        Err(StoreError::Corrupt { .. } | StoreError::WrongStore { .. } | StoreError::Database { .. }) => {
            return Ok("refused");
        }
        Err(error) => return Err(format!("refused without saying that it is damaged: {error}")),
    };
    if report.loss.is_some() {
        return Ok("loss told");
    }
    match difference(&store, pg(0), model) {
        None => Ok("no difference"),
        // Whatever is not as it was must be an error that says so.
        Some(text) if text.contains("corrupt") || text.contains("Corrupt") || text.contains("damaged") => {
            Ok("an error")
        }
        Some(text) => Err(text),
    }
}

#[test]
fn a_changed_bit_is_never_served() {
    let made = tempfile::Builder::new().prefix("nacre-store-").tempdir().unwrap();
    BlueStore::mkfs(made.path(), 32 << 20, &blue_config()).unwrap();
    let model = fill(made.path());
    let mut all = Vec::new();
    files(made.path(), &mut all);
    all.retain(|path| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        // Text for people, locks, and the space that is given up when it runs out.
        !name.starts_with("LOG") && name != "LOCK" && name != "lock" && name != "ballast"
    });
    all.sort();
    let mut random = 0x1234_5678_9abc_def1_u64;
    let mut below = |limit: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % limit.max(1)
    };
    let mut outcomes: BTreeMap<&str, u64> = BTreeMap::new();
    for round in 0..FLIPS {
        // Each file in turn; of the device what is written.
        let file = &all[round as usize % all.len()];
        let relative = file.strip_prefix(made.path()).unwrap();
        let directory = tempfile::Builder::new().prefix("nacre-store-").tempdir().unwrap();
        copy(made.path(), directory.path());
        let target = directory.path().join(relative);
        let mut contents = std::fs::read(&target).unwrap();
        let end = contents.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1);
        if end == 0 {
            continue;
        }
        let (at, bit) = (below(end) as usize, below(8));
        contents[at] ^= 1 << bit;
        std::fs::write(&target, contents).unwrap();
        match outcome(directory.path(), &model) {
            Ok(outcome) => *outcomes.entry(outcome).or_default() += 1,
            Err(problem) => panic!("bit {bit} of byte {at} of {}: {problem}", relative.display()),
        }
    }
    eprintln!("{outcomes:?}");
    assert!(outcomes.contains_key("refused") && outcomes.contains_key("an error"), "{outcomes:?}");
}

/// A label that says something else than it did is not believed: its copy is read, and where that is changed too, nothing is.
#[test]
fn a_changed_label_is_refused() {
    /// Where the copy is (docs/format/bluestore.md).
    const COPY: usize = 3 * 4096;
    let made = tempfile::Builder::new().prefix("nacre-store-").tempdir().unwrap();
    BlueStore::mkfs(made.path(), 32 << 20, &blue_config()).unwrap();
    fill(made.path());
    let path = made.path().join("block");
    let sound = std::fs::read(&path).unwrap();
    let mount = || BlueStore::mount(made.path(), blue_config(), Arc::new(IgnoreEvents));
    for at in [0, 15, 17, 21, 30, 44, 100, 4090, 4093] {
        let mut contents = sound.clone();
        contents[COPY + at] ^= 4;
        contents[at] ^= 4;
        std::fs::write(&path, &contents).unwrap();
        let error = mount().unwrap_err();
        let known = matches!(error, StoreError::Corrupt { .. } | StoreError::WrongStore { .. });
        assert!(known, "byte {at}: {error}");
    }
    let mut contents = sound;
    contents[100] ^= 4;
    std::fs::write(&path, contents).unwrap();
    mount().unwrap();
}
