//! Preparing changes: the first step, one write of a shard for many changes.
//!
//! The write adds a [`Pending`] record for each change, guarded by the state of the shard. Together with it, the gateway
//! sends one read of the shard. Its result ([`KeyView`]) tells on which base each commit may be built. The read may be
//! executed before or after the write. A write whose key is expected to be new is left out of the read: it assumes that the
//! head is absent, and its commit is refused if it is not. A change that may remove an object requests the key's *removal
//! slot* in the same write; only one pending change holds the slot at a time.

use crate::error::Result;
use crate::key;
use crate::op::{Fetch, Guard, Read, ReadReply, Step, Write};
use crate::record::{self, Entry, Pending};
use crate::seq::Seq;
use crate::state;
use bytes::Bytes;
use std::collections::BTreeSet;

/// The most changes in one prepare.
pub const MAX_BATCH: usize = 128;
/// The most pending changes of a key that are read: the change itself and another one.
const MAX_PENDING_READ: u64 = 2;

/// A change to be prepared.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Prepare {
    /// The object's key.
    pub key: String,
    /// The change's tag, never used before.
    pub tag: String,
    /// The pending record. `slot` requests the removal slot.
    pub pending: Pending,
    /// The key is expected to be new, and its records in the shard are not read. Not for a change that requests the slot.
    pub expect_new: bool,
}

/// Changes of one shard that are prepared together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PrepareBatch {
    state: &'static str,
    changes: Vec<Prepare>,
}

/// What a shard had for a key when its change was prepared. The default stands for a shard that was not read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct KeyView {
    /// The key's entry.
    pub entry: Option<Entry>,
    /// The change held the removal slot, and no other change of the key was pending.
    pub alone: bool,
}

/// Why a prepare was refused with ECANCELED.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PrepareRefusal {
    /// The shard is closed, or in another state than the caller assumed; its state.
    State(Bytes),
    /// Removal slots were taken: this batch does not request them. It is sent together with its read.
    Slots(PrepareBatch),
}

impl PrepareBatch {
    /// Builds a batch of changes of a shard that is [`state::OPEN`] or [`state::VERSIONED`]. If several changes request the
    /// slot of one key, the first one gets it.
    pub fn new(state: &'static str, mut changes: Vec<Prepare>) -> PrepareBatch {
        let mut asked = BTreeSet::new();
        for change in &mut changes {
            if change.pending.slot {
                change.pending.slot = asked.insert(change.key.clone());
            }
        }
        PrepareBatch { state, changes }
    }

    /// The changes. Which of them hold the slot is known once the write has succeeded.
    pub fn changes(&self) -> &[Prepare] {
        &self.changes
    }

    /// The write. The RADOS version in its reply is the version of [`crate::seq::HeadIncarnation`] for every change of the
    /// batch.
    pub fn write(&self) -> Write {
        let mut guards = vec![Guard::Exists, state::guard_equals(self.state)];
        let mut set = Vec::with_capacity(self.changes.len());
        for Prepare { key, tag, pending, .. } in &self.changes {
            set.push((key::pending(key, tag), record::encode(pending)));
            if pending.slot {
                guards.push(Guard::OmapAbsent(key::removal_slot(key)));
                set.push((key::removal_slot(key), Bytes::copy_from_slice(tag.as_bytes())));
            }
        }
        Write { guards, steps: vec![Step::OmapSet(set)] }
    }

    /// The read that is sent with the write; `None` if all keys are expected to be new.
    pub fn read(&self) -> Option<Read> {
        let known = self.changes.iter().filter(|change| !change.expect_new);
        let entries: Vec<Bytes> = known.map(|change| key::entry(&change.key)).collect();
        if entries.is_empty() {
            return None;
        }
        let mut fetches = vec![Fetch::Keys(entries)];
        for change in self.changes.iter().filter(|change| change.pending.slot) {
            let prefix = key::prefix(key::IndexRecordKind::Pending, &change.key);
            fetches.push(Fetch::Page { prefix, after: Bytes::new(), max: MAX_PENDING_READ });
        }
        Some(Read::of(fetches))
    }

    /// The views of a batch that was not read.
    pub fn default_views(&self) -> Vec<Result<KeyView>> {
        self.changes.iter().map(|_| Ok(KeyView::default())).collect()
    }

    /// Interprets `reply` to [`PrepareBatch::read`], for each change. A damaged entry fails only the changes of its key.
    pub fn views(&self, reply: &ReadReply) -> Result<Vec<Result<KeyView>>> {
        let entries = reply.pairs(0)?;
        let mut pages = 1;
        let mut views = Vec::with_capacity(self.changes.len());
        for Prepare { key, tag, pending, expect_new } in &self.changes {
            // The entry may have been read for another change of the key. This change is treated as if it had not been
            // read.
            let entry = if *expect_new { None } else { entries.get(&key::entry(key)) };
            let entry = entry.map(|value| record::decode::<Entry>(key, value)).transpose();
            let mut alone = false;
            if pending.slot {
                let own = key::pending(key, tag);
                alone = reply.page(pages)?.entries.iter().all(|(name, _)| *name == own);
                pages += 1;
            }
            views.push(entry.map(|entry| KeyView { entry, alone }));
        }
        Ok(views)
    }

    /// A read that tells why the write was refused.
    pub fn refusal_read(&self) -> Read {
        let slots = self.changes.iter().filter(|change| change.pending.slot);
        Read::of(vec![
            Fetch::Attrs,
            Fetch::Keys(slots.map(|change| key::removal_slot(&change.key)).collect()),
        ])
    }

    /// Interprets `reply` to [`PrepareBatch::refusal_read`]. The batch in the result needs a read of its own.
    pub fn refusal(mut self, reply: &ReadReply) -> Result<PrepareRefusal> {
        let found = reply.pairs(0)?.get(state::STATE.as_bytes()).cloned().unwrap_or_default();
        if *found != *self.state.as_bytes() {
            return Ok(PrepareRefusal::State(found));
        }
        let taken = reply.pairs(1)?;
        for change in &mut self.changes {
            change.pending.slot &= !taken.contains_key(&key::removal_slot(&change.key));
        }
        Ok(PrepareRefusal::Slots(self))
    }
}

/// Replaces the record of a pending change if what the change replaces, or the subject of its event, turned out to be
/// different. No commit of the change may be in flight; the slot must be unchanged.
pub fn amend(change: &Prepare) -> Write {
    let name = key::pending(&change.key, &change.tag);
    Write {
        guards: vec![Guard::Exists, state::guard_not_frozen(), Guard::OmapPresent(name.clone())],
        steps: vec![Step::OmapSet(vec![(name, record::encode(&change.pending))])],
    }
}

impl KeyView {
    /// The last change of the key that is known to be finished.
    pub fn last_finished(&self) -> Option<Seq> {
        self.entry.as_ref().map(|entry| entry.seq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commit::AssumedHead;
    use crate::op::{Fetched, Page};
    use std::collections::BTreeMap;

    fn change(key: &str, tag: &str, slot: bool) -> Prepare {
        let pending = Pending { slot, ..Pending::default() };
        Prepare { key: key.into(), tag: tag.into(), pending, expect_new: false }
    }

    #[test]
    fn many_changes_are_prepared_by_one_write() {
        let batch = PrepareBatch::new(state::OPEN, vec![change("a", "1", false), change("b", "2", true)]);
        let write = batch.write();
        let slot = Guard::OmapAbsent(key::removal_slot("b"));
        assert_eq!(write.guards, [Guard::Exists, state::guard_equals(state::OPEN), slot]);
        let [Step::OmapSet(set)] = &write.steps[..] else { panic!("{write:?}") };
        let keys: Vec<_> = set.iter().map(|(key, _)| key.clone()).collect();
        assert_eq!(keys, [key::pending("a", "1"), key::pending("b", "2"), key::removal_slot("b")]);
    }

    #[test]
    fn keys_that_are_expected_to_be_new_are_not_read() {
        let mut batch = PrepareBatch::new(state::OPEN, vec![change("a", "1", false), change("b", "2", true)]);
        batch.changes[0].expect_new = true;
        let page = Fetch::Page {
            prefix: key::prefix(key::IndexRecordKind::Pending, "b"),
            after: Bytes::new(),
            max: MAX_PENDING_READ,
        };
        assert_eq!(batch.read(), Some(Read::of(vec![Fetch::Keys(vec![key::entry("b")]), page])));
        batch.changes.truncate(1);
        assert_eq!(batch.read(), None);
        let views = batch.default_views();
        assert_eq!(views, [Ok(KeyView::default())]);
        assert_eq!(views[0].as_ref().unwrap().assume_for_write(), Some(AssumedHead::Absent));
    }

    #[test]
    fn one_change_of_a_batch_asks_for_the_slot_of_a_key() {
        let changes = vec![change("a", "1", false), change("a", "2", true), change("a", "3", true)];
        let batch = PrepareBatch::new(state::OPEN, changes);
        let slots: Vec<bool> = batch.changes().iter().map(|change| change.pending.slot).collect();
        assert_eq!(slots, [false, true, false]);
    }

    #[test]
    fn a_batch_gives_up_the_slots_that_are_taken() {
        let batch = PrepareBatch::new(state::OPEN, vec![change("a", "1", true), change("b", "2", true)]);
        let found = |text: &'static str| {
            let attrs = [(Bytes::from_static(state::STATE.as_bytes()), Bytes::from_static(text.as_bytes()))];
            Fetched::Pairs(BTreeMap::from(attrs))
        };
        let taken = Fetched::Pairs(BTreeMap::from([(key::removal_slot("a"), Bytes::from_static(b"9"))]));
        let reply = |found| ReadReply { version: 1, parts: vec![found, taken.clone()] };
        let closed = batch.clone().refusal(&reply(found("closed by x"))).unwrap();
        assert_eq!(closed, PrepareRefusal::State(Bytes::from_static(b"closed by x")));
        let refusal = batch.refusal(&reply(found(state::OPEN))).unwrap();
        let PrepareRefusal::Slots(batch) = refusal else { panic!("{refusal:?}") };
        let slots: Vec<bool> = batch.changes().iter().map(|change| change.pending.slot).collect();
        assert_eq!(slots, [false, true]);
    }

    #[test]
    fn a_removal_is_alone_where_nothing_else_of_the_key_is_pending() {
        let batch = PrepareBatch::new(state::OPEN, vec![change("a", "1", true), change("a", "2", false)]);
        let page = |tags: &[&str]| {
            let entries = tags.iter().map(|tag| (key::pending("a", tag), Bytes::new())).collect();
            Fetched::Page(Page { entries, more: false })
        };
        let alone = |tags: &[&str]| {
            let reply = ReadReply { version: 1, parts: vec![Fetched::Pairs(BTreeMap::new()), page(tags)] };
            batch.views(&reply).unwrap().into_iter().map(|view| view.unwrap().alone).collect::<Vec<_>>()
        };
        assert_eq!(alone(&["1"]), [true, false]);
        assert_eq!(alone(&["1", "2"]), [false, false]);
        // The read may have been executed before the write.
        assert_eq!(alone(&[]), [true, false]);
    }
}
