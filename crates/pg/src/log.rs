//! The log of one PG: its updates in order, with their requests.
//!
//! Owns the entries in memory, the index by object, and the dup records with which a resent request is answered instead of
//! executed again (rule R6; in [`dups`]). The caller owns the durable copy: it writes an entry's [`LogEntry::encode`] and the
//! pairs of [`PgLog::dup_meta_updates`] in the transaction that has the effect (docs/format/pglog.md), and restores them with
//! [`PgLog::load`].
//!
//! Invariants: the entries are those in `(tail, head]`. `version.version` rises by exactly one from entry to entry and
//! `version.interval` never falls, so an entry's index is a difference. Every update up to `tail` is in the objects. Every
//! request that was ever executed is in the log, or retained, or below its client's floor.
//!
//! It must not know stores, messages or which OSD is primary.

mod dups;

use bytes::Bytes;
use dups::Dups;
pub use dups::{
    DUP_META_PREFIX, DupLimits, DupRecord, DupSnapshot, FLOOR_PREFIX, FORGOTTEN_CLIENT_KEY, RECORD_PREFIX,
};
use nacre_types::encoding::{self, DecodeError, Versioned};
use nacre_types::{ClientId, Eversion, ObjectId, ReqId};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, VecDeque};

/// The longest encoded reply kept for resends, in bytes.
pub const MAX_DUP_RESULT_BYTES: usize = 64 << 10;

/// The effect of an update on its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryKind {
    /// Created or changed the object.
    Modify,
    /// Removed the object.
    Delete,
    /// None: the request failed, or succeeded without a change. Recorded so that it is never executed again.
    Error,
}

/// One update.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEntry {
    /// Its version.
    pub version: Eversion,
    /// The object's version before the update; the default if it did not exist.
    pub prior: Eversion,
    /// The object.
    pub object: ObjectId,
    /// The effect on the object.
    pub kind: EntryKind,
    /// The request. Client 0 is the OSD itself and has no dup record.
    pub reqid: ReqId,
    /// The object's user version after the update.
    pub user_version: u64,
    /// The object's mtime, nanoseconds since 1970.
    pub mtime_ns: u64,
    /// The encoded reply, kept for resends; at most [`MAX_DUP_RESULT_BYTES`].
    pub result: Bytes,
}

impl Versioned for LogEntry {
    const NAME: &'static str = "PG log entry";
}

impl LogEntry {
    /// The entry's durable form (docs/format/pglog.md).
    pub fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(96 + self.object.name().len() + self.result.len());
        encoding::encode_into(self, &mut out);
        out.into()
    }

    /// The approximate size in a message, in bytes.
    pub fn size(&self) -> usize {
        let object = &self.object;
        96 + object.name().len() + object.namespace().len() + object.locator().len() + self.result.len()
    }

    /// Decodes the bytes of [`LogEntry::encode`].
    pub fn decode(bytes: &[u8]) -> Result<LogEntry, DecodeError> {
        let entry: LogEntry = encoding::decode(bytes)?;
        if entry.result.len() > MAX_DUP_RESULT_BYTES {
            let detail = format!("result of {} bytes", entry.result.len());
            return Err(DecodeError::Corrupt { what: Self::NAME, detail });
        }
        Ok(entry)
    }
}

/// The record of a request that took effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dup {
    /// The update that it made. The reply must wait until this version is committed.
    pub version: Eversion,
    /// The encoded reply.
    pub result: Bytes,
}

/// The decision about an arriving request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DupCheck {
    /// It was not executed before.
    Execute,
    /// It was executed: answer with this record.
    Duplicate(Dup),
    /// It may have been executed, and its outcome was forgotten: refuse it.
    Refused,
}

/// The reason why a stored log can't be used. Corruption: never retried, never hidden.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// A record does not decode.
    #[error("PG log record '{key}': {source}")]
    Record {
        /// The record's key or version.
        key: String,
        /// The cause.
        source: DecodeError,
    },
    /// A record is stored under the key of another record, or under an unknown key.
    #[error("PG log record '{key}' does not belong there: {detail}")]
    Misplaced {
        /// The key or version.
        key: String,
        /// What was found.
        detail: String,
    },
    /// An entry does not follow the one before it.
    #[error("PG log entry {found} does not follow {after}")]
    Gap {
        /// The entry.
        found: Eversion,
        /// The version before it.
        after: Eversion,
    },
}

impl From<LogError> for DecodeError {
    fn from(error: LogError) -> DecodeError {
        match error {
            LogError::Record {
                source: source @ (DecodeError::TooNew { .. } | DecodeError::TooOld { .. }),
                ..
            } => source,
            other => DecodeError::Corrupt { what: "PG log", detail: other.to_string() },
        }
    }
}

/// An entry with the previous state of the indices, for its removal. Links are update counters, 0 for none.
#[derive(Clone, Debug)]
struct Slot {
    entry: LogEntry,
    previous_of_object: u64,
    previous_of_request: u64,
}

/// The log of one PG.
#[derive(Clone, Debug)]
pub struct PgLog {
    tail: Eversion,
    slots: VecDeque<Slot>,
    /// The approximate size of the entries in a message, in bytes.
    bytes: usize,
    latest: HashMap<ObjectId, u64>,
    dups: Dups,
}

impl PgLog {
    /// Creates an empty log of a PG whose objects are at `tail` (the default for a new PG).
    pub fn new(tail: Eversion, limits: DupLimits) -> PgLog {
        PgLog { tail, slots: VecDeque::new(), bytes: 0, latest: HashMap::new(), dups: Dups::new(limits) }
    }

    /// Restores a log from its stored entries, oldest first, each with the version it was stored under, and the
    /// pairs whose keys begin with [`DUP_META_PREFIX`]. Any record that is corrupt, misplaced or missing is an error.
    pub fn load(
        tail: Eversion,
        entries: Vec<(Eversion, Bytes)>,
        dup_meta: &[(String, Bytes)],
        limits: DupLimits,
    ) -> Result<PgLog, LogError> {
        let mut log = PgLog::new(tail, limits);
        log.dups.load(dup_meta)?;
        for (stored_as, bytes) in entries {
            let key = || stored_as.to_string();
            let entry = LogEntry::decode(&bytes).map_err(|source| LogError::Record { key: key(), source })?;
            if entry.version != stored_as {
                return Err(LogError::Misplaced { key: key(), detail: format!("it is {}", entry.version) });
            }
            if !log.accepts(stored_as) {
                return Err(LogError::Gap { found: stored_as, after: log.head() });
            }
            log.append(entry);
        }
        log.dups.finish_load();
        Ok(log)
    }

    /// The newest entry's version; the tail if there is none.
    pub fn head(&self) -> Eversion {
        self.slots.back().map_or(self.tail, |slot| slot.entry.version)
    }

    /// The version just before the first entry.
    pub fn tail(&self) -> Eversion {
        self.tail
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The approximate size of the entries in a message, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether an entry of `version` may be appended: the next counter, in the head's interval or a later one.
    pub fn accepts(&self, version: Eversion) -> bool {
        let head = self.head();
        version.version == head.version + 1 && version.interval >= head.interval
    }

    /// Appends an entry and records its request.
    ///
    /// # Panics
    /// If [`PgLog::accepts`] refuses its version, or its result is too long: check the messages of peers first.
    pub fn append(&mut self, entry: LogEntry) {
        assert!(
            self.accepts(entry.version),
            "PG log entry {} does not follow {}",
            entry.version,
            self.head()
        );
        assert!(entry.result.len() <= MAX_DUP_RESULT_BYTES, "result of {} bytes", entry.result.len());
        let counter = entry.version.version;
        let previous_of_object = match entry.kind {
            EntryKind::Error => 0,
            _ => self.latest.insert(entry.object.clone(), counter).unwrap_or(0),
        };
        let previous_of_request = self.dups.on_entry_appended(entry.reqid, counter);
        if entry.user_version > counter {
            self.dups.raise_user_version(entry.user_version);
        }
        self.bytes += entry.size();
        self.slots.push_back(Slot { entry, previous_of_object, previous_of_request });
    }

    /// All entries, oldest first.
    pub fn entries(&self) -> impl DoubleEndedIterator<Item = &LogEntry> + ExactSizeIterator {
        self.slots.iter().map(|slot| &slot.entry)
    }

    /// The entries above `version`, oldest first. Complete only if `version` is not below the tail.
    pub fn entries_after(
        &self,
        version: Eversion,
    ) -> impl DoubleEndedIterator<Item = &LogEntry> + ExactSizeIterator {
        let start = self.slots.partition_point(|slot| slot.entry.version <= version);
        self.slots.range(start..).map(|slot| &slot.entry)
    }

    /// The versions of all entries, oldest first.
    pub fn versions(&self) -> Vec<Eversion> {
        self.entries().map(|entry| entry.version).collect()
    }

    /// The entry of exactly this version.
    pub fn find(&self, version: Eversion) -> Option<&LogEntry> {
        self.at(version.version).filter(|entry| entry.version == version)
    }

    /// Whether `version` is part of this history according to the log: the tail or an entry.
    pub fn contains(&self, version: Eversion) -> bool {
        version == self.tail || self.find(version).is_some()
    }

    fn at(&self, counter: u64) -> Option<&LogEntry> {
        let index = counter.checked_sub(self.tail.version)?.checked_sub(1)?;
        self.slots.get(usize::try_from(index).ok()?).map(|slot| &slot.entry)
    }

    /// The newest entry that changed `object`.
    pub fn latest_for_object(&self, object: &ObjectId) -> Option<&LogEntry> {
        self.at(*self.latest.get(object)?)
    }

    /// The clients' requests that changed `object`, each with the resulting user version: newest first, at most `max`, as far
    /// as the log reaches.
    pub fn object_reqids(&self, object: &ObjectId, max: usize) -> Vec<(ReqId, u64)> {
        let mut found = Vec::new();
        let mut entry = self.latest_for_object(object);
        while let Some(change) = entry.filter(|_| found.len() < max) {
            if change.kind != EntryKind::Error && change.reqid.client != ClientId(0) {
                found.push((change.reqid, change.user_version));
            }
            entry = self.find(change.prior);
        }
        found
    }

    /// The newest version that this log and another one both hold, including the tails; `None` if they do not overlap, so that
    /// backfill is necessary. `other` are the other log's versions, oldest first.
    ///
    /// Equal versions mean equal histories up to them, because one primary orders each interval.
    pub fn last_common(&self, other_tail: Eversion, other: &[Eversion]) -> Option<Eversion> {
        other.iter().rev().chain(std::iter::once(&other_tail)).copied().find(|v| self.contains(*v))
    }

    /// Removes every entry above `version`, with its dup record, and returns them newest first: the divergent entries, whose
    /// objects must be fetched (rule R3).
    ///
    /// # Panics
    /// If the log does not [contain](PgLog::contains) `version`.
    pub fn truncate_after(&mut self, version: Eversion) -> Vec<LogEntry> {
        assert!(self.contains(version), "{version} is not in the PG log");
        let mut removed = Vec::new();
        while let Some(slot) = self.slots.pop_back_if(|slot| slot.entry.version > version) {
            let Slot { entry, previous_of_object, previous_of_request } = slot;
            self.bytes -= entry.size();
            if entry.kind == EntryKind::Error {
                // It was never its object's latest entry.
            } else if previous_of_object > self.tail.version {
                self.latest.insert(entry.object.clone(), previous_of_object);
            } else {
                self.latest.remove(&entry.object);
            }
            let previous = (previous_of_request > self.tail.version).then_some(previous_of_request);
            self.dups.on_entry_removed(entry.reqid, previous);
            removed.push(entry);
        }
        removed
    }

    /// The version to trim to if there are more than `max_entries` entries: it leaves `min_entries`, but is not above
    /// `committed_to`, because later entries may have to be sent or removed.
    pub fn trim_point(
        &self,
        min_entries: usize,
        max_entries: usize,
        committed_to: Eversion,
    ) -> Option<Eversion> {
        if self.len() <= max_entries.max(min_entries) {
            return None;
        }
        let target = self.slots[self.len() - min_entries - 1].entry.version.min(committed_to);
        let kept = self.slots.partition_point(|slot| slot.entry.version <= target);
        kept.checked_sub(1).map(|last| self.slots[last].entry.version)
    }

    /// The version to trim to so that the entries take at most `max_bytes`, but none above `committed_to`. `None` if they take
    /// no more, or if nothing can be trimmed.
    pub fn trim_point_for_size(&self, max_bytes: usize, committed_to: Eversion) -> Option<Eversion> {
        let mut excess = self.bytes.saturating_sub(max_bytes);
        let mut target = None;
        for slot in &self.slots {
            if excess == 0 || slot.entry.version > committed_to {
                break;
            }
            excess = excess.saturating_sub(slot.entry.size());
            target = Some(slot.entry.version);
        }
        target
    }

    /// Moves the tail up to `version`, retains the trimmed entries' dups, and returns the trimmed versions, oldest first. The
    /// caller deletes their records in the transaction that writes [`PgLog::dup_meta_updates`].
    ///
    /// # Panics
    /// If the log does not [contain](PgLog::contains) `version`.
    pub fn trim_to(&mut self, version: Eversion) -> Vec<Eversion> {
        assert!(self.contains(version), "{version} is not in the PG log");
        let mut trimmed = Vec::new();
        while let Some(slot) = self.slots.pop_front_if(|slot| slot.entry.version <= version) {
            let entry = slot.entry;
            self.bytes -= entry.size();
            if self.latest.get(&entry.object) == Some(&entry.version.version) {
                self.latest.remove(&entry.object);
            }
            self.tail = entry.version;
            trimmed.push(entry.version);
            self.dups.on_entry_trimmed(entry.reqid, entry.version, entry.result);
        }
        trimmed
    }

    /// Replaces the whole log by another member's log, at the start of a backfill. The next [`PgLog::dup_meta_updates`]
    /// replaces the stored dup records.
    ///
    /// # Errors
    /// [`LogError::Gap`] if the entries are not consecutive, [`LogError::Record`] if a result is too long. The log is unchanged
    /// then.
    pub fn install(
        &mut self,
        tail: Eversion,
        entries: Vec<LogEntry>,
        dups: &DupSnapshot,
    ) -> Result<(), LogError> {
        let mut log =
            PgLog { dups: self.dups.replacement_from(dups), ..PgLog::new(tail, self.dups.limits()) };
        for entry in entries {
            if !log.accepts(entry.version) {
                return Err(LogError::Gap { found: entry.version, after: log.head() });
            }
            if entry.result.len() > MAX_DUP_RESULT_BYTES {
                let detail = format!("result of {} bytes", entry.result.len());
                let source = DecodeError::Corrupt { what: LogEntry::NAME, detail };
                return Err(LogError::Record { key: entry.version.to_string(), source });
            }
            log.append(entry);
        }
        log.dups.enforce_session_limit();
        *self = log;
        Ok(())
    }

    /// The record of `reqid`, from the log or the retained dups.
    pub fn lookup(&self, reqid: ReqId) -> Option<Dup> {
        if let Some(counter) = self.dups.logged_at(reqid) {
            let entry = self.at(counter).expect("invariant: the dup index holds only counters of entries");
            return Some(Dup { version: entry.version, result: entry.result.clone() });
        }
        self.dups.retained(reqid).map(|(version, result)| Dup { version, result: result.clone() })
    }

    /// Whether a request without a dup record must not be executed, because it may have been executed before: it is below its
    /// client's floor (any attempt), or a resend (`attempt` above 0) of a client that was forgotten completely.
    pub fn is_refused(&self, reqid: ReqId, attempt: u32) -> bool {
        self.lookup(reqid).is_none() && self.dups.is_refused(reqid, attempt)
    }

    /// Decides about an arriving request that may write. `attempt` is how often it was sent before.
    pub fn admit(&self, reqid: ReqId, attempt: u32) -> DupCheck {
        match self.lookup(reqid) {
            Some(dup) => DupCheck::Duplicate(dup),
            None if self.dups.is_refused(reqid, attempt) => DupCheck::Refused,
            None => DupCheck::Execute,
        }
    }

    /// The highest user version of any update so far. Objects that are created again continue above it.
    pub fn user_version(&self) -> u64 {
        self.head().version.max(self.dups.user_version())
    }

    /// Records that `client` sent a request at `now_ns` (CLOCK_BOOTTIME) and no longer waits for requests below `oldest_tid`:
    /// their retained dups are dropped, and they are refused from then on.
    pub fn update_oldest_tid(&mut self, client: ClientId, oldest_tid: u64, now_ns: u64) {
        self.dups.update_oldest_tid(client, oldest_tid, now_ns);
    }

    /// Restarts the terms of all sessions: until `now_ns` (CLOCK_BOOTTIME) their clients may have been in contact with other
    /// OSDs, or their requests have waited without being recorded.
    pub fn restart_session_terms(&mut self, now_ns: u64) {
        self.dups.restart_session_terms(now_ns);
    }

    /// Expires the sessions without contact for `term_ns` and returns them. Their retained dups are dropped; a resend that the
    /// log does not answer is refused. A session that is known only from log entries starts its term with this call.
    pub fn expire_sessions(&mut self, now_ns: u64, term_ns: u64) -> Vec<ClientId> {
        self.dups.expire_sessions(now_ns, term_ns)
    }

    /// The changes to the stored dup records since the last call, in key order: `None` deletes the key. Must be called, and its
    /// result written, with every trim. Between trims nothing must be written, because the stored records still suffice.
    pub fn dup_meta_updates(&mut self) -> Vec<(String, Option<Bytes>)> {
        self.dups.meta_updates()
    }

    /// All stored dup records as [`PgLog::dup_meta_updates`] would write them into an empty collection, in key order.
    pub fn dup_meta(&self) -> Vec<(String, Bytes)> {
        self.dups.meta()
    }

    /// The retained dups and floors, for a backfill target or the children of a split. The dups of the log's entries are not
    /// included.
    pub fn dup_snapshot(&self) -> DupSnapshot {
        self.dups.snapshot()
    }

    /// The number of retained dups, and their size in bytes.
    pub fn retained_dups(&self) -> (usize, usize) {
        self.dups.retained_size()
    }
}

#[cfg(test)]
mod tests;
