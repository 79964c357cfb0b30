//! What is particular to FileStore: plain files that people can read, and what happens when somebody else changes them.

use crate::stores::{Collect, Files, Fixture, file_config, oid, pattern, pg, txn, version, write};
use bytes::Bytes;
use nacre_store::{
    Completion, FileFinding, FileStore, FileStoreConfig, IgnoreEvents, MountReport, ObjectStore, ReadStore,
    StoreError, StoreEvents,
};
use nacre_types::errno::Errno;
use nacre_types::txn::TxnOp;
use parking_lot::Mutex;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

fn config() -> FileStoreConfig {
    file_config(1 << 30)
}

fn new_store() -> TempDir {
    let directory = tempfile::Builder::new().prefix("nacre-store-").tempdir().unwrap();
    FileStore::mkfs(directory.path(), &config()).unwrap();
    directory
}

fn mount(directory: &Path) -> (FileStore, MountReport) {
    FileStore::mount(directory, config(), Arc::new(IgnoreEvents)).unwrap()
}

fn fsck(directory: &Path) -> Vec<FileFinding> {
    FileStore::fsck(directory, &config(), true).unwrap().findings
}

/// All files below `directory` whose name begins so, with their directories.
fn files(directory: &Path, prefix: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut directories = vec![directory.join("current")];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                directories.push(entry.path());
            } else if entry.file_name().to_str().unwrap().starts_with(prefix) {
                found.push(entry.path());
            }
        }
    }
    found
}

fn the_file(directory: &Path, name: &str) -> PathBuf {
    let found = files(directory, &format!("{name}_"));
    assert_eq!(found.len(), 1, "{name}: {found:?}");
    found[0].clone()
}

fn xattr(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 8192];
    let len = rustix::fs::getxattr(path, name, &mut value[..]).ok()?;
    value.truncate(len);
    Some(value)
}

fn set_xattr(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::setxattr(path, name, value, rustix::fs::XattrFlags::empty()).unwrap();
}

fn flip(path: &Path, at: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
}

fn attr(name: &str, len: usize) -> (String, Bytes) {
    (name.to_owned(), pattern(len as u64, len).into())
}

#[test]
fn an_object_that_is_cut_and_replaced_leaves_no_checksums() {
    let mut store = Fixture::new(Box::new(Files(512 << 20)));
    let ops = vec![TxnOp::CreateCollection, write("a", 0, pattern(1, 300_000)), write("b", 0, "x")];
    store.commit(&txn(pg(0), ops)).unwrap();
    let cut = TxnOp::Truncate { oid: oid("a"), size: 10_000 };
    store.commit(&txn(pg(0), vec![cut, TxnOp::Clone { from: oid("b"), to: oid("a") }])).unwrap();
    // Checks that nothing is left over.
    store.remount();
    assert_eq!(store.read(pg(0), &oid("a"), 0, u64::MAX).unwrap(), "x");
}

#[test]
fn objects_are_files_that_anybody_can_read() {
    let directory = new_store();
    let (store, _) = mount(directory.path());
    let long = "long ".repeat(100);
    let attrs = vec![attr("_", 300), attr("a", 10), attr("b", 20), attr("large", 5000)];
    let ops = vec![
        TxnOp::CreateCollection,
        write("greeting", 0, "hello, files"),
        TxnOp::SetAttrs { oid: oid("greeting"), attrs: attrs.clone() },
        write(&long, 0, "long"),
        write("sparse/name", 1 << 20, "end"),
    ];
    store.commit(&txn(pg(0), ops)).unwrap();
    store.umount().unwrap();
    let greeting = the_file(directory.path(), "greeting");
    assert_eq!(fs::read(&greeting).unwrap(), b"hello, files");
    assert!(
        greeting.parent().unwrap().starts_with(directory.path().join("current").join("3.0_head")),
        "{greeting:?}"
    );
    let name = greeting.file_name().unwrap().to_str().unwrap();
    assert!(name.starts_with(&format!("greeting__head_{:08X}__3_", oid("greeting").hash())), "{name}");
    // Two attributes fit, on the file systems that tests run on; the others are in the database.
    assert_eq!(xattr(&greeting, "user.ceph._").unwrap(), attrs[0].1);
    assert!(xattr(&greeting, "user.ceph.large").is_none());
    let of_long = files(directory.path(), &long[..150]).remove(0);
    assert!(of_long.file_name().unwrap().len() < 256);
    let whole = String::from_utf8(xattr(&of_long, "user.cephos.lfn3").unwrap()).unwrap();
    assert!(whole.starts_with(&format!("{long}__head_")), "{whole}");
    let sparse = the_file(directory.path(), "sparse\\sname");
    assert_eq!(fs::metadata(&sparse).unwrap().len(), (1 << 20) + 3);
    let (store, report) = mount(directory.path());
    assert_eq!((report.objects, report.clean), (3, true));
    assert_eq!(store.get_attrs(pg(0), &oid("greeting")).unwrap(), attrs);
    assert_eq!(store.read(pg(0), &oid(&long), 0, 9).unwrap(), "long");
    assert_eq!(store.read(pg(0), &oid("sparse/name"), (1 << 20) - 2, 9).unwrap(), "\0\0end");
    // Attributes move between file and database as they grow, shrink and go.
    let changed = vec![attr("_", 900), attr("large", 5)];
    store.commit(&txn(pg(0), vec![TxnOp::SetAttrs { oid: oid("greeting"), attrs: changed }])).unwrap();
    store.commit(&txn(pg(0), vec![TxnOp::RmAttr { oid: oid("greeting"), name: "a".into() }])).unwrap();
    store.umount().unwrap();
    let (store, _) = mount(directory.path());
    let now = vec![attr("_", 900), attr("b", 20), attr("large", 5)];
    assert_eq!(store.get_attrs(pg(0), &oid("greeting")).unwrap(), now);
    store.umount().unwrap();
    assert_eq!(fsck(directory.path()), []);
}

#[test]
fn attributes_are_kept_whatever_their_names() {
    let directory = new_store();
    let (store, _) = mount(directory.path());
    let (longest, too_long) = ("n".repeat(245), "o".repeat(246));
    for (name, attribute) in [("a", "with\0nul"), ("b", &*longest), ("c", &*too_long)] {
        let attrs = vec![attr(attribute, 30)];
        let ops = vec![
            TxnOp::CreateCollection,
            write(name, 0, "data"),
            TxnOp::SetAttrs { oid: oid(name), attrs: attrs.clone() },
            TxnOp::Clone { from: oid(name), to: oid(&format!("clone of {name}")) },
            write(&format!("{name} without"), 0, "data"),
            TxnOp::SetAttrs { oid: oid(&format!("{name} without")), attrs },
        ];
        store.commit(&txn(pg(0), ops)).unwrap();
        let remove = TxnOp::RmAttr { oid: oid(&format!("{name} without")), name: attribute.to_owned() };
        store.commit(&txn(pg(0), vec![remove])).unwrap();
    }
    store.umount().unwrap();
    // The longest name that files take is with the file.
    assert_eq!(xattr(&the_file(directory.path(), "b"), &format!("user.ceph.{longest}")).unwrap().len(), 30);
    assert_eq!(fsck(directory.path()), []);
    let (store, _) = mount(directory.path());
    for (name, attribute) in [("a", "with\0nul"), ("b", &*longest), ("c", &*too_long)] {
        for name in [name, &format!("clone of {name}")] {
            assert_eq!(store.get_attrs(pg(0), &oid(name)).unwrap(), [attr(attribute, 30)]);
        }
        assert_eq!(store.get_attrs(pg(0), &oid(&format!("{name} without"))).unwrap(), []);
    }
    store.umount().unwrap();
}

#[test]
fn directories_split_as_they_grow_and_merge_as_they_shrink() {
    let directory = new_store();
    let (store, _) = mount(directory.path());
    store.commit(&txn(pg(0), vec![TxnOp::CreateCollection])).unwrap();
    let names: Vec<String> = (0..600).map(|i| format!("object {i}")).collect();
    for name in &names {
        store.queue_transaction(&txn(pg(0), vec![write(name, 0, name.clone())]), None).unwrap();
    }
    store.umount().unwrap();
    // 32 files are the most that a directory keeps with this configuration.
    let found = files(directory.path(), "object ");
    assert_eq!(found.len(), 600);
    assert!(
        found.iter().all(|path| path
            .parent()
            .unwrap()
            .file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .starts_with("DIR_"))
    );
    for path in &found {
        // DIR_A/DIR_3 holds hashes that end in 3A.
        let name = path.file_name().unwrap().to_str().unwrap();
        let hash = name.rsplit('_').nth(4).unwrap();
        let digits: String =
            path.ancestors().filter_map(|path| path.file_name()?.to_str()?.strip_prefix("DIR_")).collect();
        assert!(hash.ends_with(&digits), "{path:?}");
    }
    let (store, _) = mount(directory.path());
    for name in &names {
        assert_eq!(store.read(pg(0), &oid(name), 0, 100).unwrap(), name.as_bytes());
    }
    for name in &names[1..] {
        store.queue_transaction(&txn(pg(0), vec![TxnOp::Remove(oid(name))]), None).unwrap();
    }
    store.umount().unwrap();
    let (store, _) = mount(directory.path());
    assert_eq!(store.read(pg(0), &oid(&names[0]), 0, 100).unwrap(), names[0].as_bytes());
    store.commit(&txn(pg(0), vec![TxnOp::Remove(oid(&names[0])), TxnOp::RemoveCollection])).unwrap();
    store.umount().unwrap();
    assert!(!directory.path().join("current/3.0_head").exists());
    assert_eq!(fsck(directory.path()), []);
}

#[test]
fn changed_file_is_an_io_error_and_spares_the_rest() {
    let directory = new_store();
    let data = pattern(5, 200_000);
    let (store, _) = mount(directory.path());
    let ops = vec![TxnOp::CreateCollection, write("a", 0, data.clone()), write("b", 0, "fine")];
    store.commit(&txn(pg(0), ops)).unwrap();
    store.umount().unwrap();
    flip(&the_file(directory.path(), "a"), 8200);
    assert_eq!(fsck(directory.path()), [FileFinding::BadData(oid("a"), 2)]);
    let (store, _) = mount(directory.path());
    for _ in 0..2 {
        let error = store.read(pg(0), &oid("a"), 8000, 1000).unwrap_err();
        assert!(matches!(error, StoreError::Corrupt { .. }) && error.errno() == Errno::EIO, "{error}");
        assert!(store.read(pg(0), &oid("a"), 0, u64::MAX).is_err());
    }
    assert!(store.read(pg(0), &oid("a"), 12_288, 50_000).unwrap() == data[12_288..62_288]);
    assert_eq!(store.read(pg(0), &oid("b"), 0, 10).unwrap(), "fine");
    assert!(store.health().iter().any(|(code, _)| code == "FILESTORE_DAMAGED"));
    // A clone must not launder it, nor may a partial overwrite; a full one repairs.
    let clone = TxnOp::Clone { from: oid("a"), to: oid("c") };
    assert!(matches!(
        store.queue_transaction(&txn(pg(0), vec![clone]), None),
        Err(StoreError::Corrupt { .. })
    ));
    assert!(store.queue_transaction(&txn(pg(0), vec![write("a", 8200, "x")]), None).is_err());
    store.commit(&txn(pg(0), vec![write("a", 8192, data[8192..12_288].to_vec())])).unwrap();
    assert!(store.read(pg(0), &oid("a"), 0, u64::MAX).unwrap() == data);
    store.umount().unwrap();
    assert_eq!(fsck(directory.path()), []);
}

#[test]
fn missing_cut_and_stray_files_are_noticed() {
    let directory = new_store();
    let (store, _) = mount(directory.path());
    let mut ops = vec![TxnOp::CreateCollection];
    for name in ["gone", "cut", "grown", "fine"] {
        ops.push(write(name, 0, pattern(1, 10_000)));
        ops.push(TxnOp::SetAttrs { oid: oid(name), attrs: vec![attr("_", 50)] });
    }
    store.commit(&txn(pg(0), ops)).unwrap();
    store.umount().unwrap();
    let at = |name: &str| the_file(directory.path(), name);
    fs::remove_file(at("gone")).unwrap();
    let resize =
        |name: &str, len| OpenOptions::new().write(true).open(at(name)).unwrap().set_len(len).unwrap();
    resize("cut", 5000);
    resize("grown", 20_000);
    let stray = at("fine").with_file_name("notes.txt");
    fs::write(&stray, "mine").unwrap();
    let findings = fsck(directory.path());
    let expected = |wanted: &FileFinding| findings.contains(wanted);
    assert!(expected(&FileFinding::NoFile(oid("gone"))), "{findings:?}");
    assert!(expected(&FileFinding::WrongSize(oid("cut"), 10_000, 5000)), "{findings:?}");
    assert!(expected(&FileFinding::WrongSize(oid("grown"), 10_000, 20_000)), "{findings:?}");
    assert!(expected(&FileFinding::StrayFile(stray.display().to_string())), "{findings:?}");
    let (store, _) = mount(directory.path());
    for (name, sound) in [("gone", false), ("cut", false), ("grown", true), ("fine", true)] {
        assert_eq!(store.stat(pg(0), &oid(name)).unwrap().size, 10_000);
        let read = store.read(pg(0), &oid(name), 0, u64::MAX);
        assert_eq!(read.as_ref().is_ok_and(|data| data[..] == pattern(1, 10_000)), sound, "{name}: {read:?}");
        assert!(sound || read.unwrap_err().errno() == Errno::EIO);
    }
    assert!(matches!(store.get_attr(pg(0), &oid("gone"), "_"), Err(StoreError::Corrupt { .. })));
    // What is repaired from elsewhere is removed and written again.
    let ops = ["gone", "cut"].map(|name| [TxnOp::Remove(oid(name)), write(name, 0, "repaired")]).concat();
    store.commit(&txn(pg(0), ops)).unwrap();
    assert_eq!(store.read(pg(0), &oid("gone"), 0, 99).unwrap(), "repaired");
    store.umount().unwrap();
}

#[test]
fn changed_attributes_are_noticed() {
    let directory = new_store();
    let (store, _) = mount(directory.path());
    let attrs = || vec![attr("_", 50), attr("snapset", 20)];
    let ops = vec![
        TxnOp::CreateCollection,
        write("a", 0, "data"),
        TxnOp::SetAttrs { oid: oid("a"), attrs: attrs() },
        write("b", 0, "data"),
        TxnOp::SetAttrs { oid: oid("b"), attrs: attrs() },
    ];
    store.commit(&txn(pg(0), ops)).unwrap();
    store.umount().unwrap();
    set_xattr(&the_file(directory.path(), "a"), "user.ceph._", b"not what was set");
    rustix::fs::removexattr(the_file(directory.path(), "b"), "user.ceph.snapset").unwrap();
    let findings = fsck(directory.path());
    assert!(
        matches!(&findings[..], [FileFinding::BadAttribute(..), FileFinding::BadAttribute(..)]),
        "{findings:?}"
    );
    let (store, _) = mount(directory.path());
    assert!(matches!(store.get_attr(pg(0), &oid("a"), "_"), Err(StoreError::Corrupt { .. })));
    assert_eq!(store.get_attr(pg(0), &oid("a"), "snapset").unwrap(), Some(attr("snapset", 20).1));
    assert!(matches!(store.get_attrs(pg(0), &oid("b")), Err(StoreError::Corrupt { .. })));
    let clone = TxnOp::Clone { from: oid("a"), to: oid("c") };
    assert!(matches!(
        store.queue_transaction(&txn(pg(0), vec![clone]), None),
        Err(StoreError::Corrupt { .. })
    ));
    for name in ["a", "b"] {
        store.commit(&txn(pg(0), vec![TxnOp::SetAttrs { oid: oid(name), attrs: attrs() }])).unwrap();
        assert_eq!(store.get_attrs(pg(0), &oid(name)).unwrap(), attrs());
    }
    store.umount().unwrap();
    assert_eq!(fsck(directory.path()), []);
}

#[test]
fn garbage_record_is_an_error_and_can_be_removed() {
    let directory = new_store();
    let (store, _) = mount(directory.path());
    let ops = vec![TxnOp::CreateCollection, write("good", 0, "good"), write("garbage", 0, "bad")];
    store.commit(&txn(pg(0), ops)).unwrap();
    store.umount().unwrap();
    change_database(directory.path(), "objects", b"garbage");
    let findings = fsck(directory.path());
    assert!(
        findings.iter().any(|finding| matches!(finding, FileFinding::Undecodable("objects", _))),
        "{findings:?}"
    );
    let (store, _) = mount(directory.path());
    assert!(matches!(store.read(pg(0), &oid("garbage"), 0, 10), Err(StoreError::Corrupt { .. })));
    let over = store.queue_transaction(&txn(pg(0), vec![write("garbage", 0, "x")]), None);
    assert!(matches!(over, Err(StoreError::Corrupt { .. })), "{over:?}");
    assert_eq!(store.read(pg(0), &oid("good"), 0, 10).unwrap(), "good");
    store.commit(&txn(pg(0), vec![TxnOp::Remove(oid("garbage")), write("garbage", 0, "new")])).unwrap();
    assert_eq!(store.read(pg(0), &oid("garbage"), 0, 10).unwrap(), "new");
    store.umount().unwrap();
    let (store, _) = mount(directory.path());
    assert_eq!(store.read(pg(0), &oid("garbage"), 0, 10).unwrap(), "new");
    store.umount().unwrap();
}

/// Changes a bit in the values of the entries whose key holds `part`.
fn change_database(directory: &Path, family: &str, part: &[u8]) {
    let path = directory.join("current/omap");
    let options = rocksdb::Options::default();
    let families = rocksdb::DB::list_cf(&options, &path).unwrap();
    let db = rocksdb::DB::open_cf(&options, &path, families).unwrap();
    let handle = db.cf_handle(family).unwrap();
    let entries: Vec<_> = db.iterator_cf(handle, rocksdb::IteratorMode::Start).map(Result::unwrap).collect();
    let mut changed = 0;
    let holds = |key: &[u8]| part.is_empty() || key.windows(part.len()).any(|window| window == part);
    for (key, value) in entries.iter().filter(|(key, _)| holds(key)) {
        let mut value = value.to_vec();
        value[1] ^= 1;
        db.put_cf(handle, key, value).unwrap();
        changed += 1;
    }
    assert!(changed > 0);
}

#[test]
fn damaged_checksums_are_noticed() {
    let directory = new_store();
    let (store, _) = mount(directory.path());
    store.commit(&txn(pg(0), vec![TxnOp::CreateCollection, write("a", 0, "data")])).unwrap();
    store.umount().unwrap();
    change_database(directory.path(), "csum", b"");
    assert!(
        fsck(directory.path()).iter().any(|finding| matches!(finding, FileFinding::Undecodable("csum", _)))
    );
    let (store, _) = mount(directory.path());
    assert!(matches!(store.read(pg(0), &oid("a"), 0, 10), Err(StoreError::Corrupt { .. })));
    store.umount().unwrap();
}

/// A crash that leaves everything in the journal and nothing in the files.
fn crashed_with_a_full_journal(records: u64) -> TempDir {
    let directory = new_store();
    let config = FileStoreConfig { max_sync_interval: Duration::from_secs(600), ..config() };
    let (store, _) = FileStore::mount(directory.path(), config, Arc::new(IgnoreEvents)).unwrap();
    for i in 0..records {
        let ops = vec![
            TxnOp::CreateCollection,
            write("a", i * 4096, pattern(i, 4096)),
            TxnOp::LogAppend(vec![(version(1, i + 1), format!("entry {i}").into())]),
        ];
        store.commit(&txn(pg(0), ops)).unwrap();
    }
    drop(store);
    directory
}

#[test]
fn crash_of_the_process_loses_nothing() {
    let directory = new_store();
    for round in 0..3_u64 {
        let (store, report) = mount(directory.path());
        assert_eq!(
            (report.loss.clone(), report.clean, report.objects),
            (None, round == 0, round * 20),
            "{report:?}"
        );
        for i in 0..20 {
            let name = format!("{round} {i}");
            let ops = vec![TxnOp::CreateCollection, write(&name, 0, pattern(i, 10_000))];
            store.commit(&txn(pg(0), ops)).unwrap();
        }
        drop(store);
    }
    assert_eq!(fsck(directory.path()), []);
}

#[test]
fn damaged_journal_is_a_loss() {
    let directory = crashed_with_a_full_journal(40);
    let journal = directory.path().join("journal");
    let bytes = fs::read(&journal).unwrap();
    let at = bytes.windows(8).position(|window| window == b"entry 20").unwrap();
    flip(&journal, at as u64);
    let (store, report) = mount(directory.path());
    assert!(report.loss.as_ref().is_some_and(|loss| loss.contains("journal is damaged")), "{report:?}");
    store.umount().unwrap();
    // Said once: the store now is what it is, under its new identity.
    let (store, again) = mount(directory.path());
    assert_eq!((again.loss, again.incarnation), (None, report.incarnation));
    store.umount().unwrap();
}

#[test]
fn a_check_does_not_hide_a_loss() {
    let directory = crashed_with_a_full_journal(40);
    let whole = tempfile::tempdir().unwrap();
    let copied = std::process::Command::new("cp").arg("-rT").args([directory.path(), whole.path()]).status();
    assert!(copied.unwrap().success());
    let journal = directory.path().join("journal");
    let bytes = fs::read(&journal).unwrap();
    flip(&journal, bytes.windows(8).position(|window| window == b"entry 20").unwrap() as u64);
    assert!(!fsck(directory.path()).is_empty());
    let (before, after) = (mount(whole.path()).1.incarnation, mount(directory.path()).1.incarnation);
    assert_ne!(before, after, "the OSD would be taken for one that has everything");
}

#[test]
fn torn_end_of_the_journal_is_not_a_loss() {
    let directory = crashed_with_a_full_journal(5);
    let journal = directory.path().join("journal");
    // What a write that never completed leaves behind the last entry.
    let bytes = fs::read(&journal).unwrap();
    let last = bytes.chunks(4096).rposition(|block| block.starts_with(b"nacrefse")).unwrap();
    let file = OpenOptions::new().write(true).open(&journal).unwrap();
    let behind =
        bytes[last * 4096..].chunks(4096).position(|block| block.iter().all(|byte| *byte == 0)).unwrap();
    file.write_all_at(b"nacrefse torn", ((last + behind) * 4096) as u64).unwrap();
    let (store, report) = mount(directory.path());
    assert_eq!((report.loss, report.clean), (None, false));
    assert_eq!(store.read_log(pg(0), version(0, 0), 100).unwrap().len(), 5);
    store.umount().unwrap();
    assert_eq!(fsck(directory.path()), []);
}

#[test]
fn lost_commit_op_seq_costs_time_only() {
    let directory = crashed_with_a_full_journal(10);
    let path = directory.path().join("current/commit_op_seq");
    assert!(fs::read_to_string(&path).unwrap().starts_with(|c: char| c.is_ascii_digit()));
    fs::write(&path, "7 nonsense\n").unwrap();
    let (store, report) = mount(directory.path());
    assert_eq!((report.loss, report.objects), (None, 1));
    assert!(store.read(pg(0), &oid("a"), 9 * 4096, 4096).unwrap() == pattern(9, 4096));
    store.umount().unwrap();
}

#[test]
fn missing_parts_are_refused_by_name() {
    for part in ["journal", "label", "current/omap"] {
        let directory = crashed_with_a_full_journal(3);
        let path = directory.path().join(part);
        fs::rename(&path, directory.path().join("elsewhere")).unwrap();
        let refused = FileStore::mount(directory.path(), config(), Arc::new(IgnoreEvents)).unwrap_err();
        assert!(!refused.to_string().is_empty());
        // Nothing was made in its place: put back, all is well.
        fs::rename(directory.path().join("elsewhere"), &path).unwrap();
        let (store, report) = mount(directory.path());
        assert_eq!((report.loss, report.objects), (None, 1), "{part}");
        store.umount().unwrap();
    }
}

#[test]
fn foreign_and_busy_stores_are_refused() {
    let (one, two) = (new_store(), new_store());
    let (store, _) = mount(one.path());
    let again = FileStore::mount(one.path(), config(), Arc::new(IgnoreEvents));
    assert!(matches!(again, Err(StoreError::InUse(_))));
    assert!(matches!(FileStore::fsck(one.path(), &config(), false), Err(StoreError::InUse(_))));
    assert!(matches!(FileStore::mkfs(one.path(), &config()), Err(StoreError::InUse(_))));
    store.umount().unwrap();
    assert!(matches!(FileStore::mkfs(one.path(), &config()), Err(StoreError::WrongStore { .. })));
    fs::rename(one.path().join("journal"), two.path().join("journal")).unwrap();
    let refused = FileStore::mount(two.path(), config(), Arc::new(IgnoreEvents)).unwrap_err();
    assert!(matches!(refused, StoreError::Corrupt { .. }), "{refused}");
}

#[test]
fn journal_may_lie_elsewhere_and_be_used_again() {
    let (directory, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = elsewhere.path().join("journal.0");
    let config = FileStoreConfig { journal_path: Some(path.clone()), ..config() };
    for round in 0..2 {
        let store = directory.path().join(round.to_string());
        FileStore::mkfs(&store, &config).unwrap();
        assert_eq!(fs::read_link(store.join("journal")).unwrap(), path);
        let (store, report) = FileStore::mount(&store, config.clone(), Arc::new(IgnoreEvents)).unwrap();
        assert_eq!((report.loss, report.objects), (None, 0));
        store.commit(&txn(pg(0), vec![TxnOp::CreateCollection, write("a", 0, "data")])).unwrap();
    }
    // The first store's journal is gone: it is refused, not taken for an empty one.
    let first = FileStore::mount(&directory.path().join("0"), config, Arc::new(IgnoreEvents)).unwrap_err();
    assert!(matches!(first, StoreError::Corrupt { .. }), "{first}");
}

#[test]
fn large_clones_survive_crashes_and_leave_nothing() {
    let directory = new_store();
    let data = pattern(7, 3 << 20);
    let snap = oid("a").with_snap(3);
    let (store, _) = mount(directory.path());
    let ops = vec![
        TxnOp::CreateCollection,
        write("a", 0, data.clone()),
        TxnOp::OmapSet { oid: oid("a"), entries: vec![("k".into(), "old".into())] },
    ];
    store.commit(&txn(pg(0), ops)).unwrap();
    let ops = vec![
        TxnOp::Clone { from: oid("a"), to: snap.clone() },
        write("a", 100, "changed"),
        TxnOp::OmapSet { oid: oid("a"), entries: vec![("k".into(), "new".into())] },
    ];
    store.commit(&txn(pg(0), ops)).unwrap();
    let refused = vec![TxnOp::Clone { from: oid("a"), to: oid("b") }, TxnOp::RemoveCollection];
    assert!(store.queue_transaction(&txn(pg(0), refused), None).is_err());
    assert!(store.read(pg(0), &snap, 0, u64::MAX).unwrap() == data);
    drop(store);
    let (store, _) = mount(directory.path());
    assert!(store.read(pg(0), &snap, 0, u64::MAX).unwrap() == data);
    assert_eq!(store.read(pg(0), &oid("a"), 100, 7).unwrap(), "changed");
    let of = |oid| store.omap_get(pg(0), oid, &["k".into()]).unwrap().remove(0).1;
    assert_eq!((of(&snap), of(&oid("a"))), ("old".into(), "new".into()));
    store.umount().unwrap();
    assert_eq!(fs::read_dir(directory.path().join("current/clones")).unwrap().count(), 0);
    assert_eq!(fsck(directory.path()), []);
}

#[test]
fn transactions_beyond_half_the_journal_are_refused() {
    let directory = new_store();
    let (store, _) = mount(directory.path());
    store.commit(&txn(pg(0), vec![TxnOp::CreateCollection])).unwrap();
    let large = store.queue_transaction(&txn(pg(0), vec![write("a", 0, vec![1; 33 << 20])]), None);
    assert_eq!(large.unwrap_err().errno(), Errno::EINVAL);
    assert!(!store.exists(pg(0), &oid("a")).unwrap());
    // Smaller ones go through, many times the journal's size.
    for i in 0..20 {
        store.queue_transaction(&txn(pg(0), vec![write("a", 0, vec![i; 16 << 20])]), None).unwrap();
    }
    assert!(store.read(pg(0), &oid("a"), 5, 1).unwrap() == [19][..]);
    store.umount().unwrap();
    assert_eq!(fsck(directory.path()), []);
}

#[test]
fn a_small_journal_takes_many_transactions_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let config = FileStoreConfig { journal_bytes: 2 << 20, ..config() };
    FileStore::mkfs(directory.path(), &config).unwrap();
    let (store, _) = FileStore::mount(directory.path(), config, Arc::new(IgnoreEvents)).unwrap();
    store.commit(&txn(pg(0), vec![TxnOp::CreateCollection])).unwrap();
    // Together they are larger than the journal, and than what it writes at once.
    for i in 0..40 {
        store.queue_transaction(&txn(pg(0), vec![write("a", 0, vec![i; 700 << 10])]), None).unwrap();
    }
    store.flush().unwrap();
    assert!(store.read(pg(0), &oid("a"), 5, 1).unwrap() == [39][..]);
    store.umount().unwrap();
}

#[test]
fn full_file_system_refuses_writes_and_takes_deletes() {
    let directory = new_store();
    let (store, _) = mount(directory.path());
    store.commit(&txn(pg(0), vec![TxnOp::CreateCollection, write("a", 0, "data")])).unwrap();
    store.umount().unwrap();
    // No file system has this much: this one looks full.
    let config = FileStoreConfig { min_free_bytes: u64::MAX / 2, ..config() };
    let (store, _) = FileStore::mount(directory.path(), config, Arc::new(IgnoreEvents)).unwrap();
    let refused = store.queue_transaction(&txn(pg(0), vec![write("b", 0, "x")]), None).unwrap_err();
    assert_eq!(refused.errno(), Errno::ENOSPC);
    let attrs = |name: &str| TxnOp::SetAttrs { oid: oid("a"), attrs: vec![(name.into(), "x".into())] };
    assert!(store.queue_transaction(&txn(pg(0), vec![attrs("_user")]), None).is_err());
    // What a member of a PG can't do without: that it exists, that the object exists, and its info.
    store.commit(&txn(pg(1), vec![TxnOp::CreateCollection])).unwrap();
    store.commit(&txn(pg(0), vec![TxnOp::Touch(oid("a")), attrs("_")])).unwrap();
    assert!(store.reserve(4096).is_err() && store.health().iter().any(|(code, _)| code == "FILESTORE_FULL"));
    assert_eq!(store.read(pg(0), &oid("a"), 0, 9).unwrap(), "data");
    store.commit(&txn(pg(0), vec![TxnOp::Remove(oid("a"))])).unwrap();
    store.umount().unwrap();
}

#[derive(Default)]
struct Fatal(Mutex<Vec<StoreError>>);

impl StoreEvents for Fatal {
    fn fatal(&self, error: &StoreError) {
        self.0.lock().push(error.clone());
    }
}

/// Set in the child process whose store fails: failpoints are the process'.
const FAILPOINT: &str = "NACRE_TEST_FAILPOINT";

#[test]
fn failed_calls_stop_the_store_for_good() {
    if let Ok(failpoint) = std::env::var(FAILPOINT) {
        return stop_by(&failpoint);
    }
    for failpoint in ["journal_write", "journal_sync", "apply", "db_write", "sync", "trim"] {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "file::failed_calls_stop_the_store_for_good", "--nocapture"])
            .env(FAILPOINT, format!("filestore::{failpoint}"))
            .output()
            .unwrap();
        assert!(child.status.success(), "{failpoint}: {}", String::from_utf8_lossy(&child.stderr));
    }
}

fn stop_by(failpoint: &str) {
    let directory = new_store();
    let events = Arc::new(Fatal::default());
    let config = FileStoreConfig { max_sync_interval: Duration::from_millis(20), ..config() };
    let (store, _) = FileStore::mount(directory.path(), config, events.clone()).unwrap();
    store.commit(&txn(pg(0), vec![TxnOp::CreateCollection, write("a", 0, pattern(1, 5000))])).unwrap();
    // When its log can be read, all of it is in the files.
    assert!(store.read_log(pg(0), version(0, 0), 1).unwrap().is_empty());
    // Once only: a retry would succeed, and must not happen.
    fail::cfg(failpoint, "1*return").unwrap();
    let sink = Arc::new(Collect::default());
    let completion = Completion { sink: sink.clone(), token: 9 };
    store.queue_transaction(&txn(pg(0), vec![write("a", 0, pattern(2, 100_000))]), Some(completion)).unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    while store.stopped().is_none() {
        assert!(Instant::now() < deadline, "{failpoint}: never stopped");
        std::thread::yield_now();
    }
    fail::remove(failpoint);
    assert!(matches!(store.flush(), Err(StoreError::Stopped(_))));
    assert!(matches!(store.commit(&txn(pg(0), vec![write("b", 0, "x")])), Err(StoreError::Stopped(_))));
    assert!(matches!(store.read(pg(0), &oid("a"), 0, 1), Err(StoreError::Stopped(_))));
    assert!(matches!(store.super_set(&[("k", None)]), Err(StoreError::Stopped(_))));
    assert!(store.health().iter().any(|(code, _)| code == "FILESTORE_STOPPED"));
    assert!(store.umount().is_err());
    assert_eq!(events.0.lock().len(), 1);
    let acknowledged = sink.groups.lock().concat() == [9];
    let in_journal = !failpoint.contains("journal");
    assert_eq!(acknowledged, in_journal, "{failpoint}");
    assert_eq!(sink.failures.lock().len(), usize::from(!acknowledged));
    // What was acknowledged is there after a restart.
    let (store, report) = mount(directory.path());
    assert_eq!(report.loss, None);
    let data = store.read(pg(0), &oid("a"), 0, u64::MAX).unwrap();
    if acknowledged {
        assert!(data == pattern(2, 100_000));
    } else {
        assert!(data == pattern(1, 5000) || data == pattern(2, 100_000));
    }
    store.umount().unwrap();
    assert_eq!(fsck(directory.path()), []);
}

/// Set in the child process that dies: failpoint, which time it is passed, and the store's directory.
const KILL: &str = "NACRE_TEST_KILL";
const ROUNDS: u64 = 150;

fn kill_config() -> FileStoreConfig {
    FileStoreConfig { max_sync_interval: Duration::from_millis(5), split_multiple: 1, ..config() }
}

/// The transaction of a round: what every object holds afterwards follows from the number of rounds.
fn round(i: u64) -> Vec<TxnOp> {
    let name = format!("object {}", i % 60);
    let mut ops = vec![TxnOp::CreateCollection];
    match i % 7 {
        3 => ops.push(TxnOp::Clone { from: oid(&format!("object {}", (i - 3) % 60)), to: oid(&name) }),
        5 => ops.push(TxnOp::Rename { from: oid(&format!("object {}", (i - 1) % 60)), to: oid(&name) }),
        _ => {
            ops.push(TxnOp::Truncate { oid: oid(&name), size: 0 });
            ops.push(write(&name, 0, pattern(i, if i.is_multiple_of(4) { 100_000 } else { 3000 })));
            ops.push(TxnOp::SetAttrs { oid: oid(&name), attrs: vec![attr("_", 100 + i as usize)] });
        }
    }
    ops.push(TxnOp::LogAppend(vec![(version(1, i + 1), "round".into())]));
    ops
}

#[test]
fn killed_at_any_point_loses_nothing() {
    if let Ok(kill) = std::env::var(KILL) {
        return run_until_killed(&kill);
    }
    let points = ["journal_write", "journal_sync", "apply", "db_write", "sync", "trim", "split"];
    for (at, point) in points.into_iter().enumerate() {
        let directory = new_store();
        let acknowledged = directory.path().join("acknowledged");
        let run = |point: &str, time: usize| {
            let child = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "file::killed_at_any_point_loses_nothing", "--nocapture"])
                .env(KILL, format!("filestore::{point} {time} {}", directory.path().display()))
                .output()
                .unwrap();
            assert!(!child.status.success(), "{point} was not passed {time} times");
        };
        run(point, [30, 25, 200, 4, 3, 2, 10][at]);
        // A second death, while recovering from the first.
        if ["apply", "db_write", "split"].contains(&point) {
            run("replay", 1);
        }
        let wanted = fs::read_to_string(&acknowledged).unwrap().lines().count();
        assert!(wanted > 0, "{point}");
        assert_eq!(fsck(directory.path()), [], "{point}");
        let (store, report) = mount(directory.path());
        assert_eq!(report.loss, None);
        let present = store.read_log(pg(0), version(0, 0), usize::MAX).unwrap().len();
        assert!(present >= wanted, "{point}: {present} of {wanted}");
        let mut model = crate::reference::Model::default();
        for i in 0..present as u64 {
            model = model.apply(&txn(pg(0), round(i))).unwrap();
        }
        assert_eq!(crate::reference::difference(&store, pg(0), &model), None, "{point} after {present}");
        store.umount().unwrap();
    }
}

fn run_until_killed(kill: &str) {
    let mut parts = kill.split(' ');
    let (point, time) = (parts.next().unwrap(), parts.next().unwrap().parse::<usize>().unwrap());
    let directory = PathBuf::from(parts.next().unwrap());
    let passed = std::sync::atomic::AtomicUsize::new(0);
    fail::cfg_callback(point, move || {
        if passed.fetch_add(1, std::sync::atomic::Ordering::SeqCst) + 1 == time {
            std::process::abort();
        }
    })
    .unwrap();
    let (store, _) = FileStore::mount(&directory, kill_config(), Arc::new(IgnoreEvents)).unwrap();
    let mut file = OpenOptions::new().append(true).create(true).open(directory.join("acknowledged")).unwrap();
    let from = store.read_log(pg(0), version(0, 0), usize::MAX).map_or(0, |log| log.len()) as u64;
    for i in from..ROUNDS {
        store.commit(&txn(pg(0), round(i))).unwrap();
        std::io::Write::write_all(&mut file, b"one more\n").unwrap();
    }
    store.umount().unwrap();
}
