//! A RocksDB database whose writes do not wait forever for files that can't be written.

use rocksdb::DB;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::{Result, StoreError};

/// Interval between two samples of the database's state.
const INTERVAL: Duration = Duration::from_secs(1);

/// The number of samples of one stall that find nothing running, after which the database counts as failed.
const IDLE_SAMPLES: u32 = 5;

/// An open database and the thread that watches it.
///
/// When a flush or compaction fails because the file system is full, RocksDB itself waits for free space and then retries.
/// Meanwhile, writes that need the flush neither fail nor return. The watchdog ends this after a few seconds: it cancels the
/// database's background work, after which all writes fail until the database is opened again. Reads still work.
pub(crate) struct WatchdogDb {
    db: Arc<DB>,
    failed: Arc<AtomicBool>,
    /// Ends the thread when it is dropped.
    end: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl WatchdogDb {
    /// Starts to watch `db`.
    pub(crate) fn new(db: DB) -> Result<WatchdogDb> {
        let db = Arc::new(db);
        let failed = Arc::new(AtomicBool::new(false));
        let (end, ended) = sync_channel(0);
        let thread = std::thread::Builder::new()
            .name("db_watch".into())
            .spawn({
                let (db, failed) = (Arc::clone(&db), Arc::clone(&failed));
                move || watch(&db, &failed, &ended)
            })
            .map_err(|e| StoreError::io("start a thread", &e))?;
        Ok(WatchdogDb { db, failed, end: Some(end), thread: Some(thread) })
    }

    /// The error of a call that changes the database.
    pub(crate) fn write_error(&self, what: &'static str, error: &rocksdb::Error) -> StoreError {
        if self.failed.load(Ordering::Acquire) {
            let detail = format!("{error}: a flush or compaction failed, see the database's LOG file");
            return StoreError::Database { what, detail };
        }
        crate::error::database(what, error)
    }
}

impl Deref for WatchdogDb {
    type Target = DB;

    fn deref(&self) -> &DB {
        &self.db
    }
}

impl Drop for WatchdogDb {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed already.
            let _ = thread.join();
        }
    }
}

/// Samples `db` until it has failed or `ended` is closed.
fn watch(db: &DB, failed: &AtomicBool, ended: &Receiver<()>) {
    let mut idle = 0;
    while ended.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
        if !is_stopped(db) {
            idle = 0;
        } else if is_idle(db) {
            // RocksDB's own attempts to recover, in between, do not end the stall.
            idle += 1;
        }
        if idle == IDLE_SAMPLES {
            tracing::error!(path = %db.path().display(), "the database can't write its files: its writes fail from now on");
            failed.store(true, Ordering::Release);
            db.cancel_all_background_work(false);
            return;
        }
    }
}

fn property(db: &DB, name: &str) -> u64 {
    db.property_int_value(name).ok().flatten().unwrap_or(0)
}

/// Whether writes are stopped, and there were errors of flushes or compactions.
fn is_stopped(db: &DB) -> bool {
    property(db, "rocksdb.is-write-stopped") > 0 && property(db, "rocksdb.background-errors") > 0
}

/// Whether no flush or compaction runs that could release stopped writes.
fn is_idle(db: &DB) -> bool {
    property(db, "rocksdb.num-running-flushes") + property(db, "rocksdb.num-running-compactions") == 0
}
