//! Builds the directory that a power cut would have left.
//!
//! Per file, changes that completed before an fsync of it began, if that fsync returned, are there. Of later ones those
//! within the file are each there, missing or, for writes, there in some of their sectors; of what was appended a prefix
//! is there, and zeros behind it where the file system recorded the new size before all data. Not so in RocksDB's files: its
//! manifest does not survive that. Names in a directory are durable by an fsync of the
//! directory only; of later changes to names a random prefix is there.
//!
//! The directory itself may be recorded: every change is made by the calls of [`crate::calls`], none by rustix, which makes
//! system calls past them.

use crate::calls;
use crate::recorder::Event;
use std::collections::{BTreeMap, HashMap};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// What happens to changes that were not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    Nothing,
    Everything,
    Random,
}

/// A small random number generator; the same seed gives the same crash.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % bound.max(1)
    }
}

/// The unit in which a write may be torn, in bytes.
const SECTOR: usize = 512;

fn directory_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(directory, _)| directory)
}

/// Builds the state after `events` in the empty directory `target`.
pub(crate) fn build(events: &[Event], target: &Path, keep: Keep, rng: &mut Rng) {
    // Which node an fsync was for, and from where on its changes are not covered.
    let mut pending = HashMap::new();
    let mut synced: HashMap<u32, usize> = HashMap::new();
    for (at, event) in events.iter().enumerate() {
        match event {
            Event::SyncBegin { node, sync } => _ = pending.insert(*sync, (*node, at)),
            Event::SyncEnd { sync } => {
                let (node, begun) = pending.remove(sync).expect("a sync begins before it ends");
                synced.insert(node, begun.max(synced.get(&node).copied().unwrap_or(0)));
            }
            _ => {}
        }
    }
    let names = names(events, keep, rng, |node| synced.get(&node).copied().unwrap_or(0));
    for (path, node) in &names {
        if node.is_none() {
            std::fs::create_dir_all(target.join(path)).unwrap();
        }
    }
    for (path, node) in &names {
        let Some(node) = node else { continue };
        // A name may be durable whose directory's own name is not: then nobody finds it.
        if !target.join(directory_of(path)).is_dir() {
            continue;
        }
        write_file(events, *node, &target.join(path), synced.get(node).copied().unwrap_or(0), keep, rng);
    }
}

/// The names that are there: to a file's number, or `None` for directories.
fn names(
    events: &[Event],
    keep: Keep,
    rng: &mut Rng,
    synced: impl Fn(u32) -> usize,
) -> BTreeMap<String, Option<u32>> {
    let mut names = BTreeMap::new();
    let mut lost: HashMap<u32, bool> = HashMap::new();
    // A path may stand for one directory after the other. They are numbered as the recorder did it: with files, in order.
    let mut directories = HashMap::from([(String::new(), 0_u32)]);
    let mut next = 1;
    for (at, event) in events.iter().enumerate() {
        match event {
            Event::Mkdir(path) => {
                directories.insert(path.clone(), next);
                next += 1;
            }
            Event::Create(..) => next += 1,
            _ => {}
        }
        let path = match event {
            Event::Mkdir(path) | Event::Create(path, _) | Event::Unlink(path) | Event::Rename(_, path) => {
                path
            }
            _ => continue,
        };
        let directory = directories.get(directory_of(path)).copied().unwrap_or(u32::MAX);
        if at >= synced(directory) {
            let lost = lost.entry(directory).or_insert(keep == Keep::Nothing);
            // Once one change of a directory is lost, so are all after it.
            *lost |= keep == Keep::Random && rng.below(4) == 0;
            if *lost {
                continue;
            }
        }
        match event {
            Event::Mkdir(path) => _ = names.insert(path.clone(), None),
            Event::Create(path, node) => _ = names.insert(path.clone(), Some(*node)),
            Event::Unlink(path) => _ = names.remove(path),
            Event::Rename(from, to) => {
                if let Some(node) = names.remove(from) {
                    names.insert(to.clone(), node);
                }
            }
            _ => {}
        }
    }
    names
}

fn write_file(events: &[Event], node: u32, path: &Path, synced: usize, keep: Keep, rng: &mut Rng) {
    let file = OpenOptions::new().write(true).create_new(true).open(path).unwrap();
    let mut size = 0;
    let mut appends_lost = false;
    let may_end_in_zeros =
        !path.components().any(|part| ["db", "omap"].iter().any(|db| part.as_os_str() == *db));
    let mut attributes = BTreeMap::new();
    for (at, event) in events.iter().enumerate() {
        let sure = at < synced || keep == Keep::Everything;
        match event {
            Event::Write { file: number, offset, data } if *number == node => {
                if sure {
                    file.write_all_at(data, *offset).unwrap();
                    size = size.max(offset + data.len() as u64);
                } else if keep == Keep::Random {
                    let inside = size.saturating_sub(*offset).min(data.len() as u64) as usize;
                    torn_write(&file, *offset, &data[..inside], rng);
                    let mut appended = &data[inside..];
                    if !appended.is_empty() && !appends_lost {
                        let mut zeros = 0;
                        if rng.below(3) == 0 {
                            let there = rng.below(appended.len() as u64) as usize;
                            if may_end_in_zeros && rng.below(2) == 0 {
                                zeros = appended.len() - there;
                            }
                            appended = &appended[..there];
                            appends_lost = true;
                        }
                        file.write_all_at(appended, offset + inside as u64).unwrap();
                        size = size.max(offset + (inside + appended.len() + zeros) as u64);
                    }
                }
            }
            Event::Truncate { file: number, size: to }
                if *number == node && (sure || (keep == Keep::Random && rng.below(2) == 0)) =>
            {
                file.set_len(*to).unwrap();
                size = *to;
            }
            Event::Attribute { file: number, name, value }
                if *number == node && (sure || (keep == Keep::Random && rng.below(2) == 0)) =>
            {
                attributes.insert(name, value);
            }
            _ => {}
        }
    }
    // A hole may precede an append of nothing.
    file.set_len(size).unwrap();
    for (name, value) in attributes {
        if let Some(value) = value {
            calls::set_attribute(&file, name, value);
        }
    }
}

/// Writes all, nothing or some sectors.
fn torn_write(file: &std::fs::File, offset: u64, data: &[u8], rng: &mut Rng) {
    let fate = rng.below(4);
    let mut at = 0;
    while at < data.len() {
        // Sectors end where the device's do.
        let to = (at + SECTOR - (offset as usize + at) % SECTOR).min(data.len());
        if fate == 0 || (fate == 1 && rng.below(2) == 0) {
            file.write_all_at(&data[at..to], offset + at as u64).unwrap();
        }
        at = to;
    }
}

/// What is in a file: its data and its extended attributes.
pub(crate) type Contents = (Vec<u8>, BTreeMap<String, Vec<u8>>);

/// All files below `root` that matter, by relative path.
pub(crate) fn contents(root: &Path) -> BTreeMap<String, Contents> {
    let mut found = BTreeMap::new();
    let mut directories = vec![String::new()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(root.join(&directory)).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            let path = if directory.is_empty() { name.clone() } else { format!("{directory}/{name}") };
            if entry.file_type().unwrap().is_dir() {
                directories.push(path);
            } else if !name.starts_with("LOG") && name != "LOCK" && name != "lock" {
                let data = std::fs::read(entry.path()).unwrap();
                found.insert(path, (data, attributes(&entry.path())));
            }
        }
    }
    found
}

/// The extended attributes of a file in the namespace `user`.
fn attributes(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut list = vec![0; 64 << 10];
    let len = rustix::fs::listxattr(path, &mut list[..]).unwrap();
    let names = list[..len].split(|byte| *byte == 0).filter(|name| name.starts_with(b"user."));
    let read = |name: &[u8]| {
        let name = String::from_utf8(name.to_vec()).unwrap();
        let mut value = vec![0; 64 << 10];
        let len = rustix::fs::getxattr(path, name.as_str(), &mut value[..]).unwrap();
        value.truncate(len);
        (name, value)
    };
    names.map(read).collect()
}
