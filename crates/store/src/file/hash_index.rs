//! The directory tree below `current`: one directory per collection, with subdirectories by digits of the placement hash.
//!
//! A directory that exceeds the limit is split: its files move into `DIR_0` to `DIR_F` by the next hexadecimal digit of their
//! hash, starting with the last digit, as in Ceph. A file is looked up in the deepest existing directory for its hash and
//! then in the directories above, so files stay visible if a crash interrupts a split. Directories are durable before
//! anything is put into them.

use super::names;
use crate::error::{Result, StoreError};
use nacre_objectstore::files::sync_directory;
use nacre_types::ids::PgId;
use nacre_types::object::ObjectId;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Number of digits in a hash.
const MAX_DEPTH: u8 = 8;

/// The cached state of one directory.
#[derive(Clone, Copy, Debug, Default)]
struct Node {
    /// Whether it has subdirectories for the next digit.
    split: bool,
    /// Number of files directly in it.
    files: u64,
}

/// A directory, identified by its depth and as many last digits of the hash.
type Key = (u8, u32);

fn key(hash: u32, depth: u8) -> Key {
    (depth, if depth >= MAX_DEPTH { hash } else { hash & ((1 << (4 * depth)) - 1) })
}

/// The directories of all collections.
pub(super) struct HashIndex {
    root: PathBuf,
    split_above: u64,
    merge_below: u64,
    known: Mutex<HashMap<PgId, HashMap<Key, Node>>>,
}

impl HashIndex {
    /// Directories below `root`. A directory with more than `split_above` files is split. Directories with fewer than
    /// `merge_below` files are merged, unless that is 0.
    pub(super) fn new(root: PathBuf, split_above: u64, merge_below: u64) -> HashIndex {
        HashIndex { root, split_above: split_above.max(1), merge_below, known: Mutex::default() }
    }

    pub(super) fn collection(&self, coll: PgId) -> PathBuf {
        self.root.join(names::collection(coll))
    }

    fn path(&self, coll: PgId, (depth, digits): Key) -> PathBuf {
        let mut path = self.collection(coll);
        for at in 0..depth {
            path.push(format!("DIR_{:X}", digits >> (4 * at) & 0xf));
        }
        path
    }

    fn node<'a>(&self, nodes: &'a mut HashMap<Key, Node>, coll: PgId, key: Key) -> Result<&'a mut Node> {
        match nodes.entry(key) {
            std::collections::hash_map::Entry::Occupied(known) => Ok(known.into_mut()),
            std::collections::hash_map::Entry::Vacant(unknown) => {
                let mut node = Node::default();
                for_each_entry(&self.path(coll, key), |name, is_dir| {
                    node.split |= is_dir && name.starts_with("DIR_");
                    node.files += u64::from(!is_dir);
                })?;
                Ok(unknown.insert(node))
            }
        }
    }

    /// The deepest existing directory for a hash.
    fn leaf(&self, nodes: &mut HashMap<Key, Node>, coll: PgId, hash: u32) -> Result<Key> {
        let mut depth = 0;
        while depth < MAX_DEPTH && self.node(nodes, coll, key(hash, depth))?.split {
            depth += 1;
        }
        Ok(key(hash, depth))
    }

    /// The possible paths of the file, the most likely first.
    fn candidates(&self, coll: PgId, oid: &ObjectId, number: u64) -> Result<Vec<(Key, PathBuf)>> {
        let mut known = self.known.lock();
        let (depth, _) = self.leaf(known.entry(coll).or_default(), coll, oid.hash())?;
        drop(known);
        let (name, _) = names::file_name(oid, number);
        let place = |depth| (key(oid.hash(), depth), self.path(coll, key(oid.hash(), depth)).join(&name));
        Ok((0..=depth).rev().map(place).collect())
    }

    /// The place of the file, or `None` if it does not exist.
    fn find_place(&self, coll: PgId, oid: &ObjectId, number: u64) -> Result<Option<(Key, PathBuf)>> {
        for (key, path) in self.candidates(coll, oid, number)? {
            match fs::symlink_metadata(&path) {
                Ok(_) => return Ok(Some((key, path))),
                Err(error) if is_absent(&error) => {}
                Err(error) => return Err(StoreError::io(format!("stat {}", path.display()), &error)),
            }
        }
        Ok(None)
    }

    /// Opens the file, or returns `None` if it does not exist.
    pub(super) fn open(&self, coll: PgId, oid: &ObjectId, number: u64) -> Result<Option<File>> {
        for (_, path) in self.candidates(coll, oid, number)? {
            match open(&path) {
                Ok(file) => return Ok(Some(file)),
                Err(error) if is_absent(&error) => {}
                Err(error) => return Err(StoreError::io(format!("open {}", path.display()), &error)),
            }
        }
        Ok(None)
    }

    /// Creates the collection's directory.
    pub(super) fn make_collection(&self, coll: PgId) -> Result<()> {
        make_directories(&self.collection(coll))
    }

    /// Removes those directories of the collection that are empty.
    pub(super) fn remove_collection(&self, coll: PgId) -> Result<()> {
        self.known.lock().remove(&coll);
        remove_empty(&self.collection(coll))
    }

    /// Opens the file, and creates it if it does not exist.
    pub(super) fn create(&self, coll: PgId, oid: &ObjectId, number: u64) -> Result<File> {
        if let Some(file) = self.open(coll, oid, number)? {
            return Ok(file);
        }
        let path = self.place(coll, oid, number)?;
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = file.map_err(|e| StoreError::io(format!("create {}", path.display()), &e))?;
        self.added(coll, oid.hash())?;
        Ok(file)
    }

    /// Moves the file at `from` to its place.
    pub(super) fn adopt(&self, coll: PgId, oid: &ObjectId, number: u64, from: &Path) -> Result<()> {
        let path = self.place(coll, oid, number)?;
        rename(from, &path)?;
        self.added(coll, oid.hash())
    }

    /// Moves the file of one object to the name of another.
    pub(super) fn rename(&self, coll: PgId, from: &ObjectId, to: &ObjectId, number: u64) -> Result<()> {
        let Some((key, old)) = self.find_place(coll, from, number)? else { return Ok(()) };
        rename(&old, &self.place(coll, to, number)?)?;
        self.removed(coll, key)?;
        self.added(coll, to.hash())
    }

    /// Removes the file. Succeeds if it does not exist.
    pub(super) fn unlink(&self, coll: PgId, oid: &ObjectId, number: u64) -> Result<()> {
        let Some((key, path)) = self.find_place(coll, oid, number)? else { return Ok(()) };
        fs::remove_file(&path).map_err(|e| StoreError::io(format!("remove {}", path.display()), &e))?;
        self.removed(coll, key)
    }

    /// Calls `each` with the path and name of every file of a collection.
    pub(super) fn for_each_file(&self, coll: PgId, mut each: impl FnMut(&Path, &str)) -> Result<()> {
        let mut directories = vec![self.collection(coll)];
        while let Some(directory) = directories.pop() {
            for_each_entry(&directory, |name, is_dir| {
                let path = directory.join(name);
                if is_dir {
                    directories.push(path);
                } else {
                    each(&path, name);
                }
            })?;
        }
        Ok(())
    }

    /// The path for a new file in the deepest directory, which is created if necessary.
    fn place(&self, coll: PgId, oid: &ObjectId, number: u64) -> Result<PathBuf> {
        let mut known = self.known.lock();
        let leaf = self.leaf(known.entry(coll).or_default(), coll, oid.hash())?;
        drop(known);
        let directory = self.path(coll, leaf);
        make_directories(&directory)?;
        Ok(directory.join(names::file_name(oid, number).0))
    }

    fn added(&self, coll: PgId, hash: u32) -> Result<()> {
        let mut known = self.known.lock();
        let nodes = known.entry(coll).or_default();
        let leaf = self.leaf(nodes, coll, hash)?;
        let node = self.node(nodes, coll, leaf)?;
        node.files += 1;
        if node.files > self.split_above && leaf.0 < MAX_DEPTH {
            self.split(nodes, coll, leaf)
        } else {
            Ok(())
        }
    }

    fn removed(&self, coll: PgId, place: Key) -> Result<()> {
        let mut known = self.known.lock();
        let nodes = known.entry(coll).or_default();
        let node = self.node(nodes, coll, place)?;
        node.files = node.files.saturating_sub(1);
        if self.merge_below > 0 && place.0 > 0 && node.files < self.merge_below && !node.split {
            self.merge(nodes, coll, key(place.1, place.0 - 1))?;
        }
        Ok(())
    }

    /// Moves a directory's files down by one digit.
    fn split(&self, nodes: &mut HashMap<Key, Node>, coll: PgId, (depth, digits): Key) -> Result<()> {
        let directory = self.path(coll, (depth, digits));
        for digit in 0..16 {
            make_directory(&self.path(coll, (depth + 1, digits | digit << (4 * depth))))?;
        }
        sync_directory(&directory)?;
        let mut files = Vec::new();
        for_each_entry(&directory, |name, is_dir| {
            if !is_dir && let Some(hash) = names::hash_of(name) {
                files.push((name.to_owned(), hash));
            }
        })?;
        let mut stay = nodes.get(&(depth, digits)).map_or(0, |node| node.files);
        for (name, hash) in files {
            fail::fail_point!("filestore::split", |_| Err(StoreError::Io {
                what: "rename (failpoint)".into(),
                code: libc::EIO
            }));
            let target = self.path(coll, key(hash, depth + 1));
            rename(&directory.join(&name), &target.join(&name))?;
            stay = stay.saturating_sub(1);
        }
        nodes.insert((depth, digits), Node { split: true, files: stay });
        for digit in 0..16 {
            // Counted when the directory is used next.
            nodes.remove(&(depth + 1, digits | digit << (4 * depth)));
        }
        Ok(())
    }

    /// Moves the files of the sixteen subdirectories up again if they are few in total and none is split.
    fn merge(&self, nodes: &mut HashMap<Key, Node>, coll: PgId, (depth, digits): Key) -> Result<()> {
        let children: Vec<Key> = (0..16).map(|digit| (depth + 1, digits | digit << (4 * depth))).collect();
        let mut total = 0;
        for child in &children {
            let node = self.node(nodes, coll, *child)?;
            total += node.files;
            if node.split || total >= self.merge_below {
                return Ok(());
            }
        }
        let directory = self.path(coll, (depth, digits));
        for child in children {
            let from = self.path(coll, child);
            let mut files = Vec::new();
            for_each_entry(&from, |name, _| files.push(name.to_owned()))?;
            for name in files {
                rename(&from.join(&name), &directory.join(&name))?;
            }
            remove_empty(&from)?;
            nodes.remove(&child);
        }
        nodes.remove(&(depth, digits));
        Ok(())
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// Opens an existing file for reading and writing.
pub(super) fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to)
        .map_err(|e| StoreError::io(format!("rename {} to {}", from.display(), to.display()), &e))
}

/// Calls `each` with the name of each entry in a directory and whether it is a directory. A missing directory has no entries.
pub(super) fn for_each_entry(directory: &Path, mut each: impl FnMut(&str, bool)) -> Result<()> {
    let failed = |error: &io::Error| StoreError::io(format!("list {}", directory.display()), error);
    let entries = match fs::read_dir(directory) {
        Err(error) if is_absent(&error) => return Ok(()),
        other => other.map_err(|e| failed(&e))?,
    };
    for entry in entries {
        let entry = entry.map_err(|e| failed(&e))?;
        let is_dir = entry.file_type().map_err(|e| failed(&e))?.is_dir();
        each(&entry.file_name().to_string_lossy(), is_dir);
    }
    Ok(())
}

/// Creates a directory. Returns whether it was missing.
fn make_directory(path: &Path) -> Result<bool> {
    match fs::create_dir(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(StoreError::io(format!("create {}", path.display()), &error)),
    }
}

/// Creates a directory and its missing parents. Each is durable in its parent.
pub(super) fn make_directories(path: &Path) -> Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let Some(parent) = path.parent() else { return Ok(()) };
    make_directories(parent)?;
    make_directory(path)?;
    sync_directory(parent)
}

/// Removes a directory and its subdirectories, as far as they are empty.
fn remove_empty(path: &Path) -> Result<()> {
    let mut inner = Vec::new();
    for_each_entry(path, |name, is_dir| inner.extend(is_dir.then(|| path.join(name))))?;
    for path in inner {
        remove_empty(&path)?;
    }
    match fs::remove_dir(path) {
        Ok(()) => Ok(()),
        Err(error) if is_absent(&error) || error.kind() == ErrorKind::DirectoryNotEmpty => Ok(()),
        Err(error) => Err(StoreError::io(format!("remove {}", path.display()), &error)),
    }
}
