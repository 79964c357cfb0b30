//! The outcome of a key's changes: which are to be finished, in which order, and which are cancelled.

use super::{ChangeOutcome, KeyRecords, ReadHead, Work};
use crate::commit;
use crate::record::{ChangeEffect, CommitRecord, Entry};
use crate::seq::Seq;
use std::collections::BTreeMap;

/// Pending changes of a key whose outcome is known.
#[derive(Debug, Default)]
pub(super) struct ResolvedKey {
    /// The committed changes, in order. No unfinished change precedes any of them.
    pub(super) committed: BTreeMap<Seq, CommitRecord>,
    /// The tags of the cancelled changes.
    pub(super) cancelled: Vec<String>,
}

/// Resolves the changes of `work`; `None` if the key's head must be read after the shard was in the state `found`.
pub(super) fn resolve(work: &Work, found: &KeyRecords) -> Option<ResolvedKey> {
    let mut resolved = ResolvedKey::default();
    for (tag, outcome) in &work.own {
        match outcome {
            // Another gateway finished the change, with the same outcome.
            _ if !found.pending.contains_key(tag) => {}
            ChangeOutcome::Committed(evidence) => resolved.commit(CommitRecord::clone(evidence)),
            ChangeOutcome::Cancelled => resolved.cancelled.push(tag.clone()),
        }
    }
    let looked = work.looked.as_ref().filter(|looked| looked.place == found.place);
    for tag in work.orphans.iter().filter(|tag| found.pending.contains_key(*tag)) {
        match looked?.outcome(tag, found) {
            Some(evidence) => resolved.commit(evidence),
            None => resolved.cancelled.push(tag.clone()),
        }
    }
    if has_gap(found.entry.as_ref(), &resolved.committed) {
        looked?.fill(&mut resolved, found);
    }
    Some(resolved)
}

impl ResolvedKey {
    fn commit(&mut self, evidence: CommitRecord) {
        self.committed.insert(evidence.seq, evidence);
    }
}

impl ReadHead {
    /// The evidence of a change of a fenced gateway; `None` if it did not take effect.
    fn outcome(&self, tag: &str, found: &KeyRecords) -> Option<CommitRecord> {
        let evidence = self.head.as_ref().and_then(|head| head.find(tag));
        evidence.cloned().or_else(|| self.removal(found).filter(|removal| removal.tag == tag))
    }

    /// The removal of the head's RADOS object, if the incarnation of the entry's object is gone: only the change that holds
    /// the slot can have removed it.
    fn removal(&self, found: &KeyRecords) -> Option<CommitRecord> {
        let entry = found.entry.as_ref().filter(|entry| entry.object.is_some())?;
        let is_gone = self.head.as_ref().is_none_or(|head| head.incarnation() != entry.seq.incarnation);
        let slot = found.slot.as_ref().filter(|slot| is_gone && found.pending.contains_key(*slot))?;
        Some(commit::removal_record(slot, entry.seq))
    }

    /// Adds the pending changes that precede the resolved ones. A predecessor without evidence is finished: its entry was
    /// lost.
    fn fill(&self, resolved: &mut ResolvedKey, found: &KeyRecords) {
        let Some(last) = resolved.committed.keys().next_back().copied() else { return };
        let proven = self.head.iter().flat_map(|head| head.commit_records().cloned());
        for evidence in proven.chain(self.removal(found)) {
            let is_open =
                found.pending.contains_key(&evidence.tag) && !resolved.cancelled.contains(&evidence.tag);
            if evidence.seq < last && is_open {
                resolved.commit(evidence);
            }
        }
    }
}

/// Whether an unfinished change may precede one of `committed`. `entry` is the key's entry.
fn has_gap(entry: Option<&Entry>, committed: &BTreeMap<Seq, CommitRecord>) -> bool {
    let finished = entry.map(|entry| entry.seq);
    let mut last = finished;
    let mut has_head = entry.is_some_and(|entry| entry.object.is_some());
    for (seq, evidence) in committed.iter().filter(|(seq, _)| Some(**seq) > finished) {
        let follows = match seq.predecessor() {
            Some(before) => last == Some(before),
            // The change created the head, so the previous head was removed; that removal must be finished.
            None => !has_head,
        };
        if !follows {
            return true;
        }
        last = Some(*seq);
        has_head = match evidence.content {
            ChangeEffect::Object(_) | ChangeEffect::Unchanged => true,
            ChangeEffect::Tombstone | ChangeEffect::Removed => false,
        };
    }
    false
}
