//! Calls that fail: the layer under the store returns errors instead of doing what it is asked.

use crate::recorder;
use std::sync::Mutex;
use std::time::Duration;

/// What fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// One write, after so many, with EIO.
    Write(u64),
    /// One fsync, after so many, with EIO.
    Sync(u64),
    /// After so many writes to the database's files all more of them, with ENOSPC: its file system is full.
    DatabaseFull(u64),
    /// All writes to the database's table files, with ENOSPC: there is space left for its log only. Each takes a second, in
    /// which the memtables become full and writes wait for the flush.
    TablesFull,
    /// Every so many reads one, with EIO.
    Read(u64),
}

/// A call that the layer is about to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Write,
    Sync,
    Read,
}

struct Armed {
    fault: Fault,
    seen: u64,
    struck: u64,
}

static ARMED: Mutex<Option<Armed>> = Mutex::new(None);

/// Lets calls fail from now on.
pub(crate) fn arm(fault: Fault) {
    *ARMED.lock().unwrap() = Some(Armed { fault, seen: 0, struck: 0 });
}

/// Lets all calls do what they are to; returns how many failed.
pub(crate) fn disarm() -> u64 {
    ARMED.lock().unwrap().take().map_or(0, |armed| armed.struck)
}

/// The error that a call on a descriptor is to fail with.
pub(crate) fn strikes(fd: i32, call: Call) -> Option<i32> {
    let mut guard = ARMED.lock().unwrap();
    let armed = guard.as_mut()?;
    recorder::node_of(fd)?;
    let errno = match (armed.fault, call) {
        (Fault::Write(after), Call::Write) | (Fault::Sync(after), Call::Sync) => {
            armed.seen += 1;
            (armed.seen == after).then_some(libc::EIO)
        }
        (Fault::DatabaseFull(after), Call::Write) if recorder::is_database(fd) => {
            armed.seen += 1;
            (armed.seen >= after).then_some(libc::ENOSPC)
        }
        (Fault::TablesFull, Call::Write) if recorder::is_table(fd) => Some(libc::ENOSPC),
        (Fault::Read(every), Call::Read) => {
            armed.seen += 1;
            armed.seen.is_multiple_of(every).then_some(libc::EIO)
        }
        _ => None,
    };
    armed.struck += u64::from(errno.is_some());
    if errno.is_some() && armed.fault == Fault::TablesFull {
        drop(guard);
        std::thread::sleep(Duration::from_secs(1));
    }
    errno
}
