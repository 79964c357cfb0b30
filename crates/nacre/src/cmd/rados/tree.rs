//! Transfers between directories of files and objects: an extension of the `rados` program.
//!
//! `put-tree DIR [PREFIX]` stores each regular file as the object `PREFIX` + its path below `DIR`. `get-tree DIR [PREFIX]`
//! fetches every object whose name starts with `PREFIX` into the file below `DIR` that the rest of its name gives. Other kinds
//! of files are reported and skipped.

use super::args::Format;
use super::transfer::{FetchError, fetch, io_text, read_piece, read_size_and_first_piece};
use super::{Context, RadosFailure, failed, formatting, out, reason};
use crate::progress::{Progress, Unit};
use nacre_client::{Pending, block_on};
use nacre_types::errno::Errno;
use serde_json::json;
use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::path::{Component, Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Pieces in flight, and their bytes.
const PIECES: usize = 64;
const WINDOW_BYTES: u64 = 64 << 20;
/// Objects fetched concurrently.
const FETCHERS: usize = 8;

struct Found {
    path: PathBuf,
    name: String,
    size: u64,
}

/// Regular files below `root` by name. Others are reported on standard error.
fn find_files(root: &Path, prefix: &str) -> Result<Vec<Found>, RadosFailure> {
    let failed = |path: &Path, e: &std::io::Error| {
        RadosFailure::new(format!("error reading {}: {}", path.display(), io_text(e)))
    };
    let mut found = Vec::new();
    let mut dirs = vec![root.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir).map_err(|e| failed(&dir, &e))? {
            let entry = entry.map_err(|e| failed(&dir, &e))?;
            let path = entry.path();
            let kind = entry.file_type().map_err(|e| failed(&path, &e))?;
            if kind.is_dir() {
                dirs.push(path);
                continue;
            }
            let relative = path.strip_prefix(root).ok().and_then(Path::to_str);
            match relative {
                Some(relative) if kind.is_file() => {
                    let size = entry.metadata().map_err(|e| failed(&path, &e))?.len();
                    let name = [prefix, relative].concat();
                    found.push(Found { path, name, size });
                }
                Some(_) => eprintln!("skipped {}: not a regular file", path.display()),
                None => eprintln!("skipped {}: its name is not UTF-8", path.display()),
            }
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

struct Piece {
    file: usize,
    len: u64,
    pending: Pending<()>,
}

pub(super) fn put(context: &Context<'_>, operands: &[&str]) -> Result<(), RadosFailure> {
    let (root, prefix) = (Path::new(operands[0]), operands.get(1).copied().unwrap_or(""));
    let files = find_files(root, prefix)?;
    let limit = context.max_object_size();
    if let Some(large) = files.iter().find(|file| file.size > limit) {
        let (path, size) = (large.path.display(), large.size);
        let errno = Errno::EFBIG;
        return Err(RadosFailure::new(format!(
            "error putting {path}: {errno} ({size} bytes; osd_max_object_size is {limit}); nothing was stored"
        )));
    }
    let total: u64 = files.iter().map(|file| file.size).sum();
    let progress = Progress::start("put-tree", Unit::Bytes, Some(total));
    let mut in_flight: VecDeque<Piece> = VecDeque::new();
    let mut in_flight_bytes = 0;
    let op_size = context.op_size();
    for (at, file) in files.iter().enumerate() {
        let reading = |e: std::io::Error| {
            RadosFailure::new(format!("error reading {}: {}", file.path.display(), io_text(&e)))
        };
        let mut input = File::open(&file.path).map_err(reading)?;
        let mut offset = 0;
        loop {
            let data = read_piece(&mut input, op_size).map_err(reading)?;
            let len = data.len() as u64;
            if offset > 0 && len == 0 {
                break;
            }
            while in_flight.len() >= PIECES || (in_flight_bytes > 0 && in_flight_bytes + len > WINDOW_BYTES) {
                in_flight_bytes -= finish(context, &files, &mut in_flight, &progress)?;
            }
            let pending = match offset {
                0 => context.pool().write_full(&file.name, data),
                offset => context.pool().write(&file.name, offset, data),
            };
            in_flight.push_back(Piece { file: at, len, pending });
            in_flight_bytes += len;
            offset += len;
            if len < op_size {
                break;
            }
        }
    }
    while !in_flight.is_empty() {
        finish(context, &files, &mut in_flight, &progress)?;
    }
    drop(progress);
    out(moved("stored", files.len(), total, context.args.format))
}

/// Waits for the oldest piece. Returns its length.
fn finish(
    context: &Context<'_>,
    files: &[Found],
    in_flight: &mut VecDeque<Piece>,
    progress: &Progress,
) -> Result<u64, RadosFailure> {
    let Some(Piece { file, len, pending }) = in_flight.pop_front() else { return Ok(0) };
    pending.wait().map_err(failed(format_args!("error putting {}", context.name(&files[file].name))))?;
    progress.add(len);
    Ok(len)
}

/// The file for an object's name below `root`. Refuses names that lead outside of it.
fn file_for(root: &Path, relative: &str) -> Option<PathBuf> {
    let path = Path::new(relative);
    let inside = path.components().all(|part| matches!(part, Component::Normal(_)));
    (inside && !relative.is_empty()).then(|| root.join(path))
}

pub(super) fn get(context: &Context<'_>, operands: &[&str]) -> Result<(), RadosFailure> {
    let (root, prefix) = (Path::new(operands[0]), operands.get(1).copied().unwrap_or(""));
    let pool = context.pool();
    let mut names = Vec::new();
    let mut lister = pool.list();
    let listing = format!("error listing pool {}", pool.pool_name());
    while let Some(page) = block_on(lister.next_page()).map_err(failed(listing.as_str()))? {
        let chosen = page.iter().filter(|object| object.locator() == pool.locator());
        names.extend(chosen.map(|object| object.name().to_owned()).filter(|name| name.starts_with(prefix)));
    }
    names.sort();
    let progress = Progress::start("get-tree", Unit::Items("objects"), Some(names.len() as u64));
    let (next, bytes) = (AtomicUsize::new(0), AtomicU64::new(0));
    let failure: Mutex<Option<RadosFailure>> = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..FETCHERS.min(names.len()) {
            scope.spawn(|| {
                while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match get_one(context, root, prefix, name) {
                        Ok(len) => bytes.fetch_add(len, Ordering::Relaxed),
                        Err(error) => {
                            // The other threads stop after their current object. The first error is reported.
                            next.store(names.len(), Ordering::Relaxed);
                            let mut slot = failure.lock().expect("invariant: no holder of the lock panics");
                            slot.get_or_insert(error);
                            return;
                        }
                    };
                    progress.add(1);
                }
            });
        }
    });
    drop(progress);
    if let Some(failure) = failure.into_inner().expect("invariant: no holder of the lock panics") {
        return Err(failure);
    }
    let bytes = bytes.into_inner();
    out(moved("fetched", names.len(), bytes, context.args.format))
}

/// The number of objects and bytes that were stored or fetched.
fn moved(what: &str, objects: usize, bytes: u64, format: Format) -> String {
    match format {
        Format::Plain => format!("{what} {objects} objects, {}\n", formatting::bytes(bytes)),
        format => formatting::json(&json!({ "objects": objects, "bytes": bytes }), format),
    }
}

fn get_one(context: &Context<'_>, root: &Path, prefix: &str, name: &str) -> Result<u64, RadosFailure> {
    let getting = |e: &nacre_client::Error| {
        RadosFailure::new(format!("error getting {}: {}", context.name(name), reason(e)))
    };
    let Some(path) = file_for(root, &name[prefix.len()..]) else {
        let target = root.display();
        return Err(RadosFailure::new(format!(
            "object '{name}' has no place below {target}: choose another prefix"
        )));
    };
    let writing = |e: std::io::Error| {
        RadosFailure::new(format!("error writing to file {}: {}", path.display(), io_text(&e)))
    };
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(writing)?;
    }
    let (size, first) =
        read_size_and_first_piece(context.pool(), name, 0, context.op_size()).map_err(|e| getting(&e))?;
    let mut output = File::create(&path).map_err(writing)?;
    let fetched = fetch(context, name, size, first, &mut |data| output.write_all(data), &mut |_| {});
    match fetched {
        Ok(()) => Ok(size),
        Err(FetchError::Output(e)) => Err(writing(e)),
        Err(FetchError::Object(e)) => Err(getting(&e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_out_of_the_directory_are_refused() {
        let root = Path::new("/tmp/x");
        assert_eq!(file_for(root, "a/b").unwrap(), Path::new("/tmp/x/a/b"));
        for name in ["", "../a", "a/../../b", "/etc/passwd", "a/.."] {
            assert!(file_for(root, name).is_none(), "{name}");
        }
    }

    #[test]
    fn what_was_moved_is_a_line_or_a_document() {
        assert_eq!(moved("stored", 2, 3 << 10, Format::Plain), "stored 2 objects, 3 KiB\n");
        assert_eq!(moved("fetched", 2, 3 << 10, Format::Json), r#"{"objects":2,"bytes":3072}"#);
    }

    #[test]
    fn files_are_found_below_subdirectories_in_order() {
        let dir = std::env::temp_dir().join(format!("nacre-tree-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("b")).unwrap();
        std::fs::write(dir.join("b/two"), "22").unwrap();
        std::fs::write(dir.join("a"), "1").unwrap();
        std::os::unix::fs::symlink("a", dir.join("link")).unwrap();
        let found = find_files(&dir, "p/").unwrap();
        let names: Vec<_> = found.iter().map(|file| (file.name.as_str(), file.size)).collect();
        assert_eq!(names, [("p/a", 1), ("p/b/two", 2)]);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
