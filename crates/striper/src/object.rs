//! The state of a striped object that a handle caches, and the operations that use the object.
//!
//! Cached state is never trusted without a guard: every request that relies on it names the epoch, and fails if the epoch
//! has passed. The cache only saves the round trip that would read the state first.

use super::clock::Clock;
use super::lane::WriteQueue;
use super::meta::Meta;
use nacre_engine::{Error, Result};
use nacre_types::errno::Errno;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// A write reads the object's state again if it was last confirmed longer ago than this. A write that relies on
/// outdated state may leave a piece that has to be removed.
const STATE_TTL: Duration = Duration::from_secs(1);
/// Number of pieces remembered as marked with the epoch. Forgotten pieces are marked again.
const MAX_MARKED_PIECES: usize = 4096;
/// Number of pieces remembered as having unanswered requests. A forgotten piece may be left behind if the object is removed
/// before its request is executed.
const MAX_UNANSWERED_PIECES: usize = 4096;

/// A striped object in use by one handle.
pub(super) struct Object {
    pub(super) name: String,
    clock: Arc<dyn Clock>,
    users: Mutex<UseCounts>,
    /// Orders the starts of writes. A write does not wait for the completion of earlier ones.
    pub(super) order: tokio::sync::Mutex<()>,
    /// Held from the decision what to send to a piece until the request has been sent.
    pub(super) sending: Mutex<()>,
    pub(super) state: Mutex<State>,
}

#[derive(Debug, Default)]
struct UseCounts {
    writing: u32,
    exclusive: bool,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) known: Option<CachedState>,
    /// Confirmations of size and epoch in flight, and the writes that wait for the next one.
    pub(super) confirming: u32,
    pub(super) next: Option<Batch>,
    /// Writes in flight by the position of their pieces in a stripe. The first piece has no lane.
    pub(super) lanes: BTreeMap<u64, WriteQueue>,
    /// Pieces that were created in an epoch that may have passed before their data arrived.
    unconfirmed: Vec<UnconfirmedPiece>,
    /// By epoch and piece: the time at which a request that may create the piece ended without an answer. The request may
    /// still be executed, until a request that was sent to the piece after that time is answered.
    unanswered: BTreeMap<(u64, u64), Duration>,
}

/// A piece that a write created.
#[derive(Debug)]
struct UnconfirmedPiece {
    /// The object as the write knew it.
    meta: Meta,
    piece: u64,
    written: Duration,
}

/// Writes that share one confirmation.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) epoch: u64,
    pub(super) end: u64,
    pub(super) waiters: Vec<oneshot::Sender<Result<bool>>>,
}

/// The known state of an object in one epoch.
#[derive(Clone, Debug)]
pub(super) struct CachedState {
    /// Size and number of pieces are lower bounds: within an epoch they only grow.
    pub(super) meta: Meta,
    /// The largest size that was requested, possibly still in flight.
    pub(super) asked: u64,
    /// The offset of the next append, if no other client appends.
    pub(super) tail: Option<u64>,
    /// Whether an announcement of more pieces is in flight.
    pub(super) announcing: bool,
    confirmed: Duration,
    marked: BTreeSet<u64>,
}

impl Object {
    pub(super) fn new(name: &str, clock: Arc<dyn Clock>) -> Object {
        Object {
            name: name.to_owned(),
            clock,
            users: Mutex::default(),
            order: tokio::sync::Mutex::default(),
            sending: Mutex::default(),
            state: Mutex::default(),
        }
    }

    /// The known state, if it was confirmed within [`STATE_TTL`] and no removal or truncation is unfinished.
    pub(super) fn fresh_state(&self) -> Option<CachedState> {
        let now = self.clock.now();
        let is_recent = |known: &CachedState| now.saturating_sub(known.confirmed) < STATE_TTL;
        let writable = |known: &&CachedState| known.meta.unfinished.is_none() && is_recent(known);
        self.state.lock().known.as_ref().filter(writable).cloned()
    }

    /// The known state, however old it is.
    pub(super) fn known(&self) -> Option<Meta> {
        self.state.lock().known.as_ref().map(|known| known.meta)
    }

    /// Merges the object's state as read by a request that was sent at `asked_at`.
    pub(super) fn merge_state(&self, meta: Meta, asked_at: Duration) {
        let mut state = self.state.lock();
        match &mut state.known {
            Some(known) if known.meta.epoch == meta.epoch && known.meta.layout == meta.layout => {
                known.meta.size = known.meta.size.max(meta.size);
                known.meta.pieces = known.meta.pieces.max(meta.pieces);
                known.asked = known.asked.max(meta.size);
                known.confirmed = known.confirmed.max(asked_at);
            }
            // A newer answer has been merged already.
            Some(known) if known.meta.epoch != meta.epoch && known.confirmed > asked_at => {}
            known => {
                *known = Some(CachedState {
                    meta,
                    asked: meta.size,
                    tail: None,
                    announcing: false,
                    confirmed: asked_at,
                    marked: BTreeSet::new(),
                });
            }
        }
    }

    /// Drops the known state if it is of `epoch`, which has passed.
    pub(super) fn forget(&self, epoch: u64) {
        let mut state = self.state.lock();
        if state.known.as_ref().is_some_and(|known| known.meta.epoch == epoch) {
            state.known = None;
        }
    }

    /// Changes the known state if it is of `epoch`.
    pub(super) fn update(&self, epoch: u64, change: impl FnOnce(&mut CachedState)) {
        if let Some(known) = &mut self.state.lock().known
            && known.meta.epoch == epoch
        {
            change(known);
        }
    }

    /// Records that `pieces` were created as part of `meta`, whose epoch held before.
    pub(super) fn record_created(&self, meta: Meta, pieces: &[u64]) {
        let written = self.clock.now();
        let made = pieces.iter().map(|piece| UnconfirmedPiece { meta, piece: *piece, written });
        let mut state = self.state.lock();
        // A piece that fails repeatedly is recorded once.
        state.unconfirmed.retain(|known| known.meta.epoch != meta.epoch || !pieces.contains(&known.piece));
        state.unconfirmed.extend(made);
    }

    /// Records that a request that may create `piece` in `epoch` ended without an answer.
    pub(super) fn record_unanswered(&self, epoch: u64, piece: u64) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        state.unanswered.insert((epoch, piece), now);
        if state.unanswered.len() > MAX_UNANSWERED_PIECES {
            state.unanswered.pop_first();
        }
    }

    /// Records the answer to a request that was sent to `piece` at `sent_at` in `epoch`. Requests sent before it can't be
    /// executed any more.
    pub(super) fn record_answered(&self, epoch: u64, piece: u64, sent_at: Duration) {
        let mut state = self.state.lock();
        if state.unanswered.get(&(epoch, piece)).is_some_and(|ended| *ended <= sent_at) {
            state.unanswered.remove(&(epoch, piece));
        }
    }

    /// Records that `epoch` still held when it was checked by a request sent at `asked_at`. A client that ends the epoch
    /// therefore finds the pieces created before that. Pieces of unanswered requests may still be created later.
    pub(super) fn record_epoch_held(&self, epoch: u64, asked_at: Duration) {
        let State { unconfirmed, unanswered, .. } = &mut *self.state.lock();
        unconfirmed.retain(|made| {
            made.meta.epoch != epoch
                || made.written > asked_at
                || unanswered.contains_key(&(epoch, made.piece))
        });
    }

    /// Takes the pieces that were created in epochs that have passed, each with the object that it was part of. `epoch` is the
    /// current epoch.
    pub(super) fn take_unconfirmed(&self, epoch: u64) -> Vec<(Meta, u64)> {
        let mut state = self.state.lock();
        state.unanswered.retain(|(of, _), _| *of == epoch);
        let passed = state.unconfirmed.extract_if(.., |unconfirmed| unconfirmed.meta.epoch != epoch);
        passed.map(|unconfirmed| (unconfirmed.meta, unconfirmed.piece)).collect()
    }

    /// Whether `piece` is known to carry `epoch`.
    pub(super) fn carries_epoch(&self, epoch: u64, piece: u64) -> bool {
        let state = self.state.lock();
        state.known.as_ref().is_some_and(|known| known.meta.epoch == epoch && known.is_marked(piece))
    }

    /// Registers a write. Fails with EBUSY while the object is removed or truncated through the same handle.
    pub(super) fn register_write(self: &Arc<Self>) -> Result<WriteUse> {
        let mut users = self.users.lock();
        if users.exclusive {
            return Err(Errno::EBUSY.into());
        }
        users.writing += 1;
        Ok(WriteUse(self.clone()))
    }

    /// Registers an exclusive use. Fails with EBUSY while the object is written, removed or truncated through the same handle.
    pub(super) fn register_exclusive(self: &Arc<Self>) -> Result<ExclusiveUse> {
        let mut users = self.users.lock();
        if users.exclusive || users.writing > 0 {
            return Err(Error::from(Errno::EBUSY));
        }
        users.exclusive = true;
        Ok(ExclusiveUse(self.clone()))
    }
}

impl CachedState {
    /// Records that size and epoch held when they were checked by a request sent at `asked_at`.
    pub(super) fn confirm(&mut self, size: u64, asked_at: Duration) {
        self.meta.size = self.meta.size.max(size);
        self.confirmed = self.confirmed.max(asked_at);
    }

    /// Whether `piece` is known to carry the epoch.
    pub(super) fn is_marked(&self, piece: u64) -> bool {
        self.marked.contains(&piece)
    }

    /// Records that `piece` carries the epoch.
    pub(super) fn mark(&mut self, piece: u64) {
        self.marked.insert(piece);
        if self.marked.len() > MAX_MARKED_PIECES {
            self.marked.pop_first();
        }
    }
}

/// A write that uses an object.
pub(super) struct WriteUse(pub(super) Arc<Object>);

impl Drop for WriteUse {
    fn drop(&mut self) {
        self.0.users.lock().writing -= 1;
    }
}

/// A removal or truncation that uses an object exclusively.
pub(super) struct ExclusiveUse(pub(super) Arc<Object>);

impl Drop for ExclusiveUse {
    fn drop(&mut self) {
        self.0.users.lock().exclusive = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Layout;
    use crate::tests::Looks;

    #[test]
    fn pieces_of_requests_without_an_answer_stay_unconfirmed_until_a_later_one_is_answered() {
        let object = Object::new("o", Arc::new(Looks::default()));
        let layout = Layout::default();
        let meta = Meta { layout, size: 0, epoch: 2, born: 1, cut: None, pieces: 9, unfinished: None };
        let unconfirmed =
            || object.state.lock().unconfirmed.iter().map(|made| made.piece).collect::<Vec<_>>();
        let before = object.clock.now();
        object.record_unanswered(2, 3);
        object.record_created(meta, &[3, 4]);
        object.record_epoch_held(2, object.clock.now());
        assert_eq!(unconfirmed(), [3]);
        object.record_answered(2, 3, before);
        object.record_epoch_held(2, object.clock.now());
        assert_eq!(unconfirmed(), [3], "that was sent before");
        object.record_answered(2, 3, object.clock.now());
        object.record_epoch_held(2, object.clock.now());
        assert!(unconfirmed().is_empty());
    }

    #[test]
    fn requests_without_an_answer_are_bounded() {
        let object = Object::new("o", Arc::new(Looks::default()));
        (0..2 * MAX_UNANSWERED_PIECES as u64).for_each(|piece| object.record_unanswered(2, piece));
        assert_eq!(object.state.lock().unanswered.len(), MAX_UNANSWERED_PIECES);
        assert!(object.take_unconfirmed(4).is_empty());
        assert!(object.state.lock().unanswered.is_empty());
    }
}
