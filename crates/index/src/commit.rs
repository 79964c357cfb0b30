//! Committing changes: the second step, one compare-and-swap of the head.
//!
//! A commit is built on a [`AssumedHead`]: the assumed state of the head. If the head is in another state, the commit is refused,
//! and the gateway reads the head and builds the commit again. So each change knows its predecessor: it takes the next
//! [`Seq`], and if the predecessor may be unfinished, it keeps the predecessor's evidence in the head's omap.
//!
//! A removal removes the head's RADOS object only if no evidence can be lost with it ([`remove`]); otherwise it leaves a
//! tombstone.

use crate::error::{Error, Result};
use crate::head::{self, MAX_EARLIER_COMMITS, ObjectHead};
use crate::key;
use crate::op::{Guard, Step, Write};
use crate::prepare::KeyView;
use crate::record::{self, ChangeEffect, CommitRecord, EventSubject, ListingEntry, Tails};
use crate::seq::{HeadIncarnation, Seq};
use bytes::Bytes;

/// The state of the head that a commit assumes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AssumedHead {
    /// There is no RADOS object.
    Absent,
    /// The sequence of the head's last change, which is finished according to the index.
    Entry(Seq),
    /// The head as it was read.
    Head(Box<ObjectHead>),
}

/// A change that was prepared and is to be committed.
#[derive(Clone, Copy, Debug)]
pub struct PreparedChange<'a> {
    /// The object's key.
    pub key: &'a str,
    /// Its tag.
    pub tag: &'a str,
    /// The index generation, and the shard's version in the reply to the prepare.
    pub prepared: HeadIncarnation,
    /// Whether it holds the key's removal slot.
    pub slot: bool,
    /// What a read of the shard found for the key when the change was prepared, or later.
    pub view: &'a KeyView,
    /// The version that its event is about; `None` if it has no event, or if the pending record contains everything.
    pub subject: Option<&'a EventSubject>,
}

/// The effect of a change on the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListingUpdate<'a> {
    /// The change writes this object, with these tails in addition to the head. Tails of an upload's parts are in the
    /// pending record.
    Object(&'a ListingEntry, Option<&'a Tails>),
    /// The object's listing stays the same.
    Unchanged,
}

/// A commit: a write of the head, and the evidence of the change.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Commit {
    /// The write.
    pub write: Write,
    /// Evidence of the change, valid if the write succeeds.
    pub evidence: CommitRecord,
    /// Evidence of earlier changes that the head contains after the write.
    earlier: Vec<CommitRecord>,
}

/// The next step of a removal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RemovalStep {
    /// There is nothing to remove.
    Nothing,
    /// The head has to be read first.
    ReadHead,
    /// This removes the object.
    Commit(Box<Commit>),
}

impl Commit {
    /// Returns the head on which the next commit of the key may be built without a read, if this commit succeeded with that
    /// RADOS version.
    pub fn resulting_head(self, version: u64) -> AssumedHead {
        match self.evidence.content {
            ChangeEffect::Removed => AssumedHead::Absent,
            ChangeEffect::Object(_) | ChangeEffect::Unchanged | ChangeEffect::Tombstone => {
                let (last, earlier) = (Some(self.evidence), self.earlier);
                AssumedHead::Head(Box::new(ObjectHead { version, last, earlier }))
            }
        }
    }
}

impl AssumedHead {
    /// A head that was read.
    pub fn from_head(head: Option<ObjectHead>) -> AssumedHead {
        head.map_or(AssumedHead::Absent, |head| AssumedHead::Head(Box::new(head)))
    }

    fn guards(&self) -> Vec<Guard> {
        match self {
            AssumedHead::Absent => vec![Guard::Create],
            AssumedHead::Entry(seq) => vec![Guard::Exists, Guard::AttrEquals(head::SEQ, text(*seq))],
            AssumedHead::Head(head) => vec![Guard::Exists, Guard::Version(head.version)],
        }
    }

    /// The sequence of the head's last change; `None` if there is no RADOS object.
    pub fn seq(&self) -> Option<Seq> {
        match self {
            AssumedHead::Absent => None,
            AssumedHead::Entry(seq) => Some(*seq),
            AssumedHead::Head(head) => Some(head.last_seq()),
        }
    }
}

impl KeyView {
    /// The base that a write may assume without a read of the head; `None` if it must read the head first. A wrong
    /// assumption makes the commit fail.
    pub fn assume_for_write(&self) -> Option<AssumedHead> {
        match &self.entry {
            None => Some(AssumedHead::Absent),
            Some(_) => self.assume_for_removal(),
        }
    }

    /// The base that a removal may assume. A missing index entry does not prove that there is nothing to remove.
    pub fn assume_for_removal(&self) -> Option<AssumedHead> {
        let entry = self.entry.as_ref()?;
        // A tombstone must be read, and a head of format 1, which has no sequence to compare.
        (entry.object.is_some() && entry.seq != Seq::LEGACY).then_some(AssumedHead::Entry(entry.seq))
    }
}

fn text(seq: Seq) -> Bytes {
    Bytes::from(seq.to_string())
}

/// Builds a commit that writes `new`. `guards` are the conditions of the request that the base does not decide; `body` is
/// what the request writes. Fails with [`Error::TooManyPending`] if too many changes of the key are unfinished.
///
/// A change that leaves the listing as it is requires an object: the caller has read the head.
pub fn write(
    change: PreparedChange<'_>,
    base: &AssumedHead,
    new: ListingUpdate<'_>,
    guards: Vec<Guard>,
    body: Vec<Step>,
) -> Result<Commit> {
    let (content, tails) = match new {
        ListingUpdate::Object(listed, tails) => (ChangeEffect::Object(listed.clone()), tails.cloned()),
        ListingUpdate::Unchanged => {
            debug_assert!(!matches!(base, AssumedHead::Absent), "there is an object to change");
            (ChangeEffect::Unchanged, None)
        }
    };
    build(change, base, (content, tails), guards, body)
}

/// Builds a commit that removes the object. [`AssumedHead::Absent`] must come from a read of the head here. `bury` turns the head
/// into a tombstone: it empties the data, and removes the attributes and omap entries that make the object and that are
/// present. A tombstone can't be built without a read of the head; the result is [`RemovalStep::ReadHead`] then.
///
/// The removal of the head's RADOS object also removes the evidence in it. This is safe if the change holds the removal
/// slot, and one read of the shard showed that no other change of the key is pending and that the last finished change is
/// the last change of the head. Then the head contains no evidence of an unfinished change, and the slot names the only
/// change that can have removed the head. A change that creates the head again was prepared after that read, so its
/// incarnation is higher.
pub fn remove(
    change: PreparedChange<'_>,
    base: &AssumedHead,
    guards: Vec<Guard>,
    bury: Vec<Step>,
) -> Result<RemovalStep> {
    let Some(seq) = base.seq() else { return Ok(RemovalStep::Nothing) };
    if matches!(base, AssumedHead::Head(head) if head.is_tombstone()) {
        return Ok(RemovalStep::Nothing);
    }
    let shown = change.view.entry.as_ref().filter(|entry| entry.object.is_some());
    if change.slot && change.view.alone && shown.is_some_and(|entry| entry.seq == seq) {
        let mut all = base.guards();
        all.extend(guards);
        let write = Write { guards: all, steps: vec![Step::Remove] };
        let evidence = removal_record(change.tag, seq);
        return Ok(RemovalStep::Commit(Box::new(Commit { write, evidence, earlier: Vec::new() })));
    }
    match base {
        AssumedHead::Head(_) => {
            let commit = build(change, base, (ChangeEffect::Tombstone, None), guards, bury)?;
            Ok(RemovalStep::Commit(Box::new(commit)))
        }
        AssumedHead::Absent | AssumedHead::Entry(_) => Ok(RemovalStep::ReadHead),
    }
}

/// Evidence that a change removed the head whose last change was `last`. It is not stored in a head; the entry and the
/// pending record describe the change's event.
pub(crate) fn removal_record(tag: &str, last: Seq) -> CommitRecord {
    let (seq, tag) = (last.successor(), tag.to_owned());
    CommitRecord { seq, tag, content: ChangeEffect::Removed, subject: None, tails: None, untidy: false }
}

/// Returns the evidence that a change took effect although an attempt to commit it was refused or not answered. An OSD may
/// have executed the attempt and forgotten it before the attempt was resent. `head` was read after the attempt. `removal`
/// is the evidence of the last attempt that removed the head ([`ChangeEffect::Removed`]), if there was one: the slot names the
/// only change that can have removed the head.
///
/// `None` if the head proves nothing. An attempt that was not answered may still take effect then.
pub fn find_commit(
    tag: &str,
    removal: Option<&CommitRecord>,
    head: Option<&ObjectHead>,
) -> Option<CommitRecord> {
    match head {
        Some(head) => head.find(tag).cloned(),
        None => {
            removal.filter(|removal| removal.tag == tag && removal.content == ChangeEffect::Removed).cloned()
        }
    }
}

fn build(
    change: PreparedChange<'_>,
    base: &AssumedHead,
    (content, tails): (ChangeEffect, Option<Tails>),
    conditions: Vec<Guard>,
    body: Vec<Step>,
) -> Result<Commit> {
    if change.prepared.version == 0 {
        return Err(Error::corrupt(change.key, "reply to a prepare", "it has no version"));
    }
    let seq = base.seq().map_or_else(|| Seq::first(change.prepared), Seq::successor);
    let finished = change.view.last_finished();
    let is_finished = |evidence: &&CommitRecord| finished.is_some_and(|finished| evidence.seq <= finished);
    let (mut gone, mut earlier, mut moved) = (Vec::new(), Vec::new(), None);
    if let AssumedHead::Head(head) = base {
        gone.extend(head.earlier.iter().filter(is_finished).map(|old| key::commit_record(old.seq)));
        moved = head.last.as_ref().filter(|last| !is_finished(last));
        let kept = head.earlier.iter().filter(|old| !is_finished(old));
        earlier.extend(kept.chain(moved).cloned());
        if earlier.len() > MAX_EARLIER_COMMITS {
            return Err(Error::TooManyPending(change.key.to_owned()));
        }
    }
    let untidy = !earlier.is_empty() || content == ChangeEffect::Tombstone;
    let subject = change.subject.cloned();
    let evidence = CommitRecord { seq, tag: change.tag.to_owned(), content, subject, tails, untidy };
    let mut guards = base.guards();
    guards.extend(conditions);
    let mut steps = body;
    if !gone.is_empty() {
        steps.push(Step::OmapRemove(gone));
    }
    if let Some(last) = moved {
        steps.push(Step::OmapSet(vec![(key::commit_record(last.seq), record::encode(last))]));
    }
    steps.push(Step::SetAttr(head::SEQ, text(seq)));
    steps.push(Step::SetAttr(head::CHANGE, record::encode(&evidence)));
    Ok(Commit { write: Write { guards, steps }, evidence, earlier })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Entry;

    const AT: HeadIncarnation = HeadIncarnation { generation: 1, version: 9 };

    fn change(view: &KeyView, slot: bool) -> PreparedChange<'_> {
        PreparedChange { key: "k", tag: "t", prepared: AT, slot, view, subject: None }
    }

    fn view(seq: Seq, alone: bool) -> KeyView {
        let object = Some(ListingEntry { size: 7, ..ListingEntry::default() });
        KeyView { entry: Some(Entry { seq, object }), alone }
    }

    fn head(last: Option<CommitRecord>) -> Box<ObjectHead> {
        Box::new(ObjectHead { version: 5, last, earlier: Vec::new() })
    }

    fn evidence(seq: Seq, content: ChangeEffect) -> CommitRecord {
        CommitRecord { seq, tag: "old".into(), content, subject: None, tails: None, untidy: false }
    }

    fn object() -> ChangeEffect {
        ChangeEffect::Object(ListingEntry::default())
    }

    #[test]
    fn a_refused_change_that_took_effect_is_found_in_the_head() {
        let seq = Seq::first(AT);
        let own = CommitRecord { tag: "t".into(), ..evidence(seq.successor(), object()) };
        let made_last = ObjectHead { last: Some(own.clone()), ..*head(None) };
        let overtaken = ObjectHead { earlier: vec![own.clone()], ..*head(Some(evidence(seq, object()))) };
        assert_eq!(find_commit("t", None, Some(&made_last)), Some(own.clone()));
        assert_eq!(find_commit("t", None, Some(&overtaken)), Some(own));
        assert_eq!(find_commit("t", None, Some(&head(Some(evidence(seq, object()))))), None);
    }

    #[test]
    fn a_head_that_is_gone_proves_its_removal_by_the_slot() {
        let view = view(Seq::first(AT), true);
        let RemovalStep::Commit(commit) =
            remove(change(&view, true), &AssumedHead::Entry(Seq::first(AT)), Vec::new(), Vec::new()).unwrap()
        else {
            panic!("the entry tells what is removed");
        };
        let removal = commit.evidence;
        assert_eq!(find_commit("t", Some(&removal), None), Some(removal.clone()));
        assert_eq!(find_commit("t", Some(&removal), Some(&head(None))), None, "it is there");
        assert_eq!(find_commit("t", None, None), None, "it was a tombstone that was to be left");
    }

    fn put(view: &KeyView, base: &AssumedHead) -> Commit {
        let listed = ListingEntry::default();
        write(change(view, false), base, ListingUpdate::Object(&listed, None), Vec::new(), Vec::new())
            .unwrap()
    }

    #[test]
    fn the_first_change_of_a_head_is_named_by_its_prepare() {
        let view = KeyView::default();
        let commit = put(&view, &view.assume_for_write().unwrap());
        assert_eq!(commit.write.guards, [Guard::Create]);
        assert_eq!(commit.evidence.seq, Seq::first(AT));
        assert!(!commit.evidence.untidy);
    }

    #[test]
    fn an_object_that_the_index_knows_is_replaced_without_being_read() {
        let seq = Seq::first(AT).successor();
        let view = view(seq, false);
        let commit = put(&view, &view.assume_for_write().unwrap());
        assert_eq!(commit.write.guards, [Guard::Exists, Guard::AttrEquals(head::SEQ, text(seq))]);
        assert_eq!((commit.evidence.seq, commit.evidence.untidy), (seq.successor(), false));
    }

    #[test]
    fn the_evidence_of_a_change_that_may_not_be_finished_is_kept() {
        let old = evidence(Seq::first(AT), object());
        let base = AssumedHead::Head(head(Some(old.clone())));
        let commit = put(&KeyView::default(), &base);
        let kept = Step::OmapSet(vec![(key::commit_record(old.seq), record::encode(&old))]);
        assert!(commit.write.steps.contains(&kept) && commit.evidence.untidy);
        // It is not kept if the index says that the change is finished.
        let commit = put(&view(old.seq, false), &base);
        assert!(!commit.write.steps.contains(&kept) && !commit.evidence.untidy);
    }

    #[test]
    fn commits_of_a_key_build_on_each_other_without_reads() {
        let view = KeyView::default();
        let first = put(&view, &AssumedHead::Absent);
        let old = first.evidence.clone();
        let second = put(&view, &first.resulting_head(7));
        assert_eq!(second.write.guards, [Guard::Exists, Guard::Version(7)]);
        assert_eq!(second.evidence.seq, old.seq.successor());
        let AssumedHead::Head(head) = second.clone().resulting_head(8) else { panic!("there is a head") };
        assert_eq!((head.version, head.earlier, head.last), (8, vec![old], Some(second.evidence)));
    }

    #[test]
    fn evidence_in_a_head_has_a_bound() {
        let mut full = head(Some(evidence(Seq::first(AT), object())));
        full.earlier = vec![evidence(Seq::LEGACY.successor(), object()); MAX_EARLIER_COMMITS];
        let listed = ListingEntry::default();
        let view = KeyView::default();
        let refused = write(
            change(&view, false),
            &AssumedHead::Head(full),
            ListingUpdate::Object(&listed, None),
            Vec::new(),
            Vec::new(),
        );
        assert_eq!(refused, Err(Error::TooManyPending("k".into())));
    }

    #[test]
    fn a_head_is_removed_only_where_nothing_is_lost_with_it() {
        let seq = Seq::first(AT);
        let remove = |view: &KeyView, slot, base: &AssumedHead| {
            remove(change(view, slot), base, Vec::new(), Vec::new()).unwrap()
        };
        let physical = |removal: &RemovalStep| match removal {
            RemovalStep::Commit(commit) => commit.write.steps == [Step::Remove],
            RemovalStep::Nothing | RemovalStep::ReadHead => false,
        };
        let tombstone = |removal: &RemovalStep| match removal {
            RemovalStep::Commit(commit) => commit.evidence.content == ChangeEffect::Tombstone,
            RemovalStep::Nothing | RemovalStep::ReadHead => false,
        };
        let read = AssumedHead::Head(head(Some(evidence(seq, object()))));
        assert!(physical(&remove(&view(seq, true), true, &AssumedHead::Entry(seq))));
        assert!(physical(&remove(&view(seq, true), true, &read)));
        // Without the slot, with other pending changes, or with unfinished changes.
        assert!(tombstone(&remove(&view(seq, true), false, &read)));
        assert!(tombstone(&remove(&view(seq, false), true, &read)));
        assert!(tombstone(&remove(&KeyView { entry: None, alone: true }, true, &read)));
        let newer = AssumedHead::Head(head(Some(evidence(seq.successor(), object()))));
        assert!(tombstone(&remove(&view(seq, true), true, &newer)));
        assert_eq!(remove(&view(seq, false), true, &AssumedHead::Entry(seq)), RemovalStep::ReadHead);
    }

    #[test]
    fn what_is_not_there_is_not_removed() {
        let view = KeyView { entry: None, alone: true };
        let buried = head(Some(evidence(Seq::first(AT), ChangeEffect::Tombstone)));
        for base in [AssumedHead::Absent, AssumedHead::Head(buried)] {
            let removal = remove(change(&view, true), &base, Vec::new(), Vec::new());
            assert_eq!(removal, Ok(RemovalStep::Nothing));
        }
    }
}
