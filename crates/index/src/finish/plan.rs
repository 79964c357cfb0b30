//! The plan of a finish: the shard's records afterwards, and the actions that precede the write.

use super::resolve::ResolvedKey;
use super::{KeyRecords, stats_of};
use crate::error::Result;
use crate::key;
use crate::op::{Guard, Step, Write};
use crate::record::{
    self, ChangeEffect, CommitRecord, Entry, EntryTails, EventSubject, OutboxRecord, Pending, Stats, Tails,
    Tidy, VersionKind,
};
use crate::seq::Seq;
use crate::state;
use bytes::Bytes;
use std::collections::BTreeSet;

/// An upload whose completion is finished on behalf of another gateway.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UploadResolution {
    /// The object's key.
    pub key: String,
    /// The upload's id.
    pub upload: String,
    /// The tag of the completion.
    pub tag: String,
    /// Whether the completion took effect. If so, the upload is cleared up except for the parts that the object has;
    /// otherwise the completion's mark is removed.
    pub completed: bool,
}

/// The actions of a finish, in this order: settle uploads, record garbage, write the shard, tidy keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FinishPlan {
    /// Uploads to be settled while their completions are pending.
    pub uploads: Vec<UploadResolution>,
    /// Tails that are unreferenced, whether the write succeeds or not.
    pub garbage: Vec<Tails>,
    /// The compare-and-swap of the shard.
    pub write: Write,
    /// The shard's sums before.
    pub before: Stats,
    /// The shard's sums after.
    pub after: Stats,
    /// Outbox records that the write adds.
    pub events: usize,
    /// The keys of the objects that these records are about.
    pub event_keys: Vec<String>,
    /// Keys to be tidied ([`crate::tidy`]) once the write has succeeded.
    pub untidy: Vec<String>,
}

/// Other parts of the plan under construction.
#[derive(Default)]
struct Parts {
    guards: Vec<Guard>,
    set: Vec<(Bytes, Bytes)>,
    gone: Vec<Bytes>,
    /// The names of tails that objects have after the write.
    referenced: BTreeSet<String>,
}

/// Makes the plan for keys that were found and resolved; `None` if nothing is left to do. `own` tells which changes belong
/// to this gateway: their uploads are already settled.
pub(super) fn make(
    found: Vec<(&str, KeyRecords, ResolvedKey)>,
    stats: Option<Bytes>,
    own: impl Fn(&str, &str) -> bool,
) -> Result<Option<FinishPlan>> {
    let before = stats_of(stats.as_ref())?;
    let mut plan = FinishPlan { before, after: before, ..FinishPlan::default() };
    let mut parts = Parts::default();
    for (key, found, resolved) in found {
        plan.take(&mut parts, key, found, resolved, &own);
    }
    if parts.gone.is_empty() {
        return Ok(None);
    }
    // Two completions of one upload created two objects from the same parts.
    plan.garbage.retain(|tails| !parts.referenced.contains(&tails.name));
    if plan.after != before {
        let name = Bytes::from_static(key::STATS);
        parts.guards.push(is(name.clone(), stats));
        parts.set.push((name, record::encode(&plan.after)));
    }
    plan.write.guards = vec![Guard::Exists, state::guard_not_frozen()];
    plan.write.guards.append(&mut parts.guards);
    if !parts.set.is_empty() {
        plan.write.steps.push(Step::OmapSet(parts.set));
    }
    plan.write.steps.push(Step::OmapRemove(parts.gone));
    Ok(Some(plan))
}

/// Asserts that the omap entry has this value, or is absent.
fn is(name: Bytes, value: Option<Bytes>) -> Guard {
    match value {
        Some(value) => Guard::OmapEquals(name, value),
        None => Guard::OmapAbsent(name),
    }
}

impl FinishPlan {
    fn take(
        &mut self,
        parts: &mut Parts,
        key: &str,
        found: KeyRecords,
        resolved: ResolvedKey,
        own: &impl Fn(&str, &str) -> bool,
    ) {
        let KeyRecords { place, entry: old, tails: EntryTails { mut tails }, has_tails, pending, .. } = found;
        let mut entry = old.clone();
        let mut untidy = None;
        let events_before = self.events;
        for (seq, evidence) in &resolved.committed {
            let Some(pending) = pending.get(&evidence.tag) else { continue };
            self.garbage.extend(pending.replaced.iter().cloned());
            if let Some(event) = &pending.event {
                let record = OutboxRecord {
                    tag: evidence.tag.clone(),
                    seq: *seq,
                    prepared_ns: pending.begun_ns,
                    fixed: event.fixed.clone(),
                    candidates: event.candidates.clone(),
                    subject: subject(evidence, &event.subject, entry.as_ref()),
                };
                parts.set.push((key::outbox(key, *seq), record::encode(&record)));
                self.events += 1;
            }
            if evidence.untidy {
                untidy = Some(*seq);
            }
            self.apply(evidence, *seq, pending, &mut entry, &mut tails);
            self.end(parts, key, evidence.tag.as_str(), pending, (true, own));
        }
        if self.events > events_before {
            self.event_keys.push(key.to_owned());
        }
        for tag in &resolved.cancelled {
            let Some(pending) = pending.get(tag) else { continue };
            self.garbage.extend(pending.tails.iter().cloned());
            // Parts of an upload still belong to the upload.
            if pending.upload.is_none() {
                self.garbage.extend(pending.parts.iter().cloned());
            }
            self.end(parts, key, tag, pending, (false, own));
        }
        let is_buried = |entry: &Option<Entry>| entry.as_ref().is_some_and(|entry| entry.object.is_none());
        if let Some(seq) = untidy {
            let up_to = entry.as_ref().map_or(seq, |entry| entry.seq.max(seq));
            parts.set.push((key::tidy(key), record::encode(&Tidy { up_to })));
        }
        // If a tombstone waited for these changes, the gateway that finishes the last one tidies the key.
        if untidy.is_some() || is_buried(&old) || is_buried(&entry) {
            self.untidy.push(key.to_owned());
        }
        parts.referenced.extend(tails.iter().map(|tails| tails.name.clone()));
        if resolved.committed.is_empty() {
            return;
        }
        self.after.subtract(old.as_ref().map_or_else(Stats::default, Entry::counted));
        self.after.add(entry.as_ref().map_or_else(Stats::default, Entry::counted));
        // The entry is asserted even if it does not change: the conclusions from it must still hold.
        let name = key::entry(key);
        match &entry {
            Some(new) if old.as_ref() != Some(new) => parts.set.push((name.clone(), record::encode(new))),
            None if old.is_some() => parts.gone.push(name.clone()),
            _ => {}
        }
        parts.guards.push(is(name, place.entry));
        if !tails.is_empty() {
            parts.set.push((key::tails(key), record::encode(&EntryTails { tails })));
        } else if has_tails {
            parts.gone.push(key::tails(key));
        }
    }

    /// Updates an entry and its tails for a committed change.
    fn apply(
        &mut self,
        evidence: &CommitRecord,
        seq: Seq,
        pending: &Pending,
        entry: &mut Option<Entry>,
        tails: &mut Vec<Tails>,
    ) {
        let own = || evidence.tails.iter().chain(&pending.parts).cloned();
        if entry.as_ref().is_some_and(|entry| entry.seq >= seq) {
            // Later changes of the key are already finished: the entry describes another object by now.
            if matches!(&evidence.content, ChangeEffect::Object(listed) if listed.held.is_none()) {
                self.garbage.extend(own());
            }
            return;
        }
        match &evidence.content {
            ChangeEffect::Object(listed) => {
                // If an object has versions, the head knows what belongs to it, and a replaced version is kept.
                let (kept, new) = match listed.held {
                    None => (std::mem::take(tails), own().collect()),
                    Some(_) => (Vec::new(), Vec::new()),
                };
                self.garbage.extend(kept);
                *tails = new;
                *entry = Some(Entry { seq, object: Some(listed.clone()) });
            }
            ChangeEffect::Unchanged => {
                if let Some(entry) = entry {
                    entry.seq = seq;
                    // The change may have set tags.
                    if let Some(object) =
                        entry.object.as_mut().filter(|object| object.kind == VersionKind::Plain)
                    {
                        object.kind = VersionKind::Object;
                    }
                }
            }
            ChangeEffect::Tombstone => {
                self.garbage.append(tails);
                *entry = Some(Entry { seq, object: None });
            }
            ChangeEffect::Removed => {
                self.garbage.append(tails);
                *entry = None;
            }
        }
    }

    /// Adds the removal of a change's pending record and slot, and the settling of its upload.
    fn end(
        &mut self,
        parts: &mut Parts,
        key: &str,
        tag: &str,
        pending: &Pending,
        (completed, own): (bool, &impl Fn(&str, &str) -> bool),
    ) {
        if let Some(upload) = pending.upload.as_ref().filter(|_| !own(key, tag)) {
            let (key, tag, upload) = (key.to_owned(), tag.to_owned(), upload.clone());
            self.uploads.push(UploadResolution { key, upload, tag, completed });
        }
        let name = key::pending(key, tag);
        parts.guards.push(Guard::OmapPresent(name.clone()));
        parts.gone.push(name);
        if pending.slot {
            parts.gone.push(key::removal_slot(key));
        }
    }
}

/// The version that a change's event is about.
fn subject(evidence: &CommitRecord, prepared: &EventSubject, entry: Option<&Entry>) -> EventSubject {
    let attributes = || prepared.attributes.clone();
    if let Some(subject) = &evidence.subject {
        let attributes = subject.attributes.clone().or_else(attributes);
        return EventSubject { attributes, ..subject.clone() };
    }
    match (&evidence.content, entry.and_then(|entry| entry.object.as_ref())) {
        // The commit did not have to read what it removed.
        (ChangeEffect::Removed, Some(object)) => {
            EventSubject { size: object.size, etag: object.etag.clone(), ..prepared.clone() }
        }
        _ => prepared.clone(),
    }
}
