//! Records changes to the files of one directory tree, in the order in which the calls completed.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};

/// A change, an fsync, or a mark of the test.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    Mkdir(String),
    /// A new, empty file of this number under a path.
    Create(String, u32),
    Rename(String, String),
    Unlink(String),
    Write {
        file: u32,
        offset: u64,
        data: Vec<u8>,
    },
    Truncate {
        file: u32,
        size: u64,
    },
    /// An extended attribute was set or, without a value, removed.
    Attribute {
        file: u32,
        name: String,
        value: Option<Vec<u8>>,
    },
    /// An fsync of a file or directory began; what completed before it is covered.
    SyncBegin {
        node: u32,
        sync: u32,
    },
    /// That fsync returned.
    SyncEnd {
        sync: u32,
    },
    Mark(u64),
}

/// Files and directories by number; paths are relative to the root, the root itself is "".
#[derive(Default)]
struct Recorder {
    root: Vec<u8>,
    nodes: HashMap<String, u32>,
    events: Vec<Event>,
    next: u32,
    syncs: u32,
}

static RECORDER: Mutex<Option<Recorder>> = Mutex::new(None);
const MAX_FDS: usize = 1 << 16;
/// What each descriptor refers to: the node's number plus one, or 0.
static DESCRIPTORS: [AtomicU32; MAX_FDS] = [const { AtomicU32::new(0) }; MAX_FDS];

/// Whether each descriptor is of a file of the database.
static DATABASE: [AtomicBool; MAX_FDS] = [const { AtomicBool::new(false) }; MAX_FDS];
/// Whether each descriptor is of a table file of the database.
static TABLES: [AtomicBool; MAX_FDS] = [const { AtomicBool::new(false) }; MAX_FDS];

fn locked() -> MutexGuard<'static, Option<Recorder>> {
    RECORDER.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Begins recording changes below `root`, an existing empty directory.
pub(crate) fn begin(root: &Path) {
    let mut recorder = Recorder { root: root.as_os_str().as_bytes().to_vec(), ..Recorder::default() };
    recorder.nodes.insert(String::new(), 0);
    recorder.next = 1;
    *locked() = Some(recorder);
}

/// Number of events so far.
pub(crate) fn position() -> usize {
    locked().as_ref().map_or(0, |recorder| recorder.events.len())
}

/// Ends recording.
pub(crate) fn end() -> Vec<Event> {
    DESCRIPTORS.iter().for_each(|descriptor| descriptor.store(0, Ordering::Relaxed));
    locked().take().map(|recorder| recorder.events).unwrap_or_default()
}

/// Records a mark.
pub(crate) fn mark(mark: u64) {
    with(|recorder| recorder.events.push(Event::Mark(mark)));
}

fn with<R>(f: impl FnOnce(&mut Recorder) -> R) -> Option<R> {
    locked().as_mut().map(f)
}

/// The node behind a descriptor, if it is recorded.
pub(crate) fn node_of(fd: i32) -> Option<u32> {
    DESCRIPTORS.get(usize::try_from(fd).ok()?)?.load(Ordering::Acquire).checked_sub(1)
}

/// Whether a descriptor is of a file of the database.
pub(crate) fn is_database(fd: i32) -> bool {
    is_set(&DATABASE, fd)
}

/// Whether a descriptor is of a table file of the database.
pub(crate) fn is_table(fd: i32) -> bool {
    is_set(&TABLES, fd)
}

fn is_set(flags: &[AtomicBool], fd: i32) -> bool {
    usize::try_from(fd).ok().and_then(|fd| flags.get(fd)).is_some_and(|flag| flag.load(Ordering::Acquire))
}

impl Recorder {
    fn relative(&self, path: &[u8]) -> Option<String> {
        let rest = path.strip_prefix(&self.root[..])?;
        let rest = if rest.is_empty() { rest } else { rest.strip_prefix(b"/")? };
        let text = String::from_utf8(rest.to_vec()).ok()?;
        let name = text.rsplit('/').next().unwrap_or_default();
        // RocksDB writes its text logs with stdio, past this layer; they mean nothing. Locks hold nothing.
        let ignored = name.starts_with("LOG") || name == "LOCK" || name == "lock";
        (!ignored).then(|| text.trim_end_matches('/').replace("//", "/"))
    }

    fn new_node(&mut self, path: String) -> u32 {
        let node = self.next;
        self.next += 1;
        self.nodes.insert(path, node);
        node
    }
}

/// A descriptor was opened; `truncated` and `created` are what the flags asked for.
pub(crate) fn opened(fd: i32, path: &[u8], created: bool, truncated: bool) {
    with(|recorder| {
        let Some(path) = recorder.relative(path) else { return };
        DATABASE[fd as usize].store(path.starts_with("db/"), Ordering::Release);
        TABLES[fd as usize].store(path.ends_with(".sst"), Ordering::Release);
        let node = match recorder.nodes.get(&path) {
            Some(&node) => {
                if truncated {
                    recorder.events.push(Event::Truncate { file: node, size: 0 });
                }
                node
            }
            None if created => {
                let node = recorder.new_node(path.clone());
                recorder.events.push(Event::Create(path, node));
                node
            }
            None => return,
        };
        DESCRIPTORS[fd as usize].store(node + 1, Ordering::Release);
    });
}

pub(crate) fn closing(fd: i32) {
    if let Some(descriptor) = usize::try_from(fd).ok().and_then(|fd| DESCRIPTORS.get(fd)) {
        descriptor.store(0, Ordering::Release);
    }
}

pub(crate) fn written(file: u32, offset: u64, data: Vec<u8>) {
    with(|recorder| recorder.events.push(Event::Write { file, offset, data }));
}

pub(crate) fn truncated(file: u32, size: u64) {
    with(|recorder| recorder.events.push(Event::Truncate { file, size }));
}

pub(crate) fn sync_begins(node: u32) -> Option<u32> {
    with(|recorder| {
        recorder.syncs += 1;
        recorder.events.push(Event::SyncBegin { node, sync: recorder.syncs });
        recorder.syncs
    })
}

pub(crate) fn sync_ends(sync: u32) {
    with(|recorder| recorder.events.push(Event::SyncEnd { sync }));
}

pub(crate) fn made_directory(path: &[u8]) {
    with(|recorder| {
        if let Some(path) = recorder.relative(path) {
            recorder.new_node(path.clone());
            recorder.events.push(Event::Mkdir(path));
        }
    });
}

pub(crate) fn renamed(from: &[u8], to: &[u8]) {
    with(|recorder| {
        let (Some(from), Some(to)) = (recorder.relative(from), recorder.relative(to)) else { return };
        if let Some(node) = recorder.nodes.remove(&from) {
            recorder.nodes.insert(to.clone(), node);
            recorder.events.push(Event::Rename(from, to));
        }
    });
}

pub(crate) fn unlinked(path: &[u8]) {
    with(|recorder| {
        let Some(path) = recorder.relative(path) else { return };
        if recorder.nodes.remove(&path).is_some() {
            recorder.events.push(Event::Unlink(path));
        }
    });
}

/// Everything that was done before is durable.
pub(crate) fn synced_everything() {
    with(|recorder| {
        let nodes: Vec<u32> = recorder.nodes.values().copied().collect();
        for node in nodes {
            recorder.syncs += 1;
            let sync = recorder.syncs;
            recorder.events.extend([Event::SyncBegin { node, sync }, Event::SyncEnd { sync }]);
        }
    });
}

pub(crate) fn set_attribute(file: u32, name: &[u8], value: Option<Vec<u8>>) {
    let name = String::from_utf8_lossy(name).into_owned();
    with(|recorder| recorder.events.push(Event::Attribute { file, name, value }));
}
