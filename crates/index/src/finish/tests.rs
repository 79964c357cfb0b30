//! Tests of finishing alone: entries, tails, sums, uploads and events of single shards. The model test covers the order of
//! changes among gateways.

use super::*;
use crate::op::{Fetched, Guard, Step, Write};
use crate::record::{
    ChangeEffect, Event, EventSubject, ListingEntry, OutboxRecord, Tails, Tidy, VersionKind,
};
use crate::seq::{HeadIncarnation, Seq};

const FIRST: Seq = Seq { incarnation: HeadIncarnation { generation: 0, version: 3 }, number: 1 };

fn run(name: &str) -> Tails {
    Tails { name: name.to_owned(), count: 1 }
}

fn listed(tag: &str, size: u64) -> ListingEntry {
    ListingEntry { tag: tag.into(), size, etag: format!("etag-{tag}"), ..ListingEntry::default() }
}

fn put(tag: &str, seq: Seq) -> CommitRecord {
    let content = ChangeEffect::Object(ListingEntry { kind: VersionKind::Plain, ..listed(tag, 7) });
    CommitRecord { seq, tag: tag.into(), content, subject: None, tails: Some(run(tag)), untidy: false }
}

fn of(seq: Seq, tag: &str, content: ChangeEffect) -> CommitRecord {
    let untidy = content == ChangeEffect::Tombstone;
    CommitRecord { seq, tag: tag.into(), content, subject: None, tails: None, untidy }
}

fn settled(evidence: &CommitRecord) -> ResolvedChange {
    let (key, tag) = ("k".into(), evidence.tag.clone());
    ResolvedChange { key, tag, outcome: ChangeOutcome::Committed(Box::new(evidence.clone())) }
}

fn cancelled(tag: &str) -> ResolvedChange {
    ResolvedChange { key: "k".into(), tag: tag.into(), outcome: ChangeOutcome::Cancelled }
}

fn with_event() -> Pending {
    let subject = EventSubject { version_id: "v".into(), ..EventSubject::default() };
    let event = Event { fixed: Bytes::from_static(b"fixed"), candidates: vec!["c".into()], subject };
    Pending { begun_ns: 5, event: Some(event), ..Pending::default() }
}

/// The omap of a shard, to which plans are applied as an OSD applies them.
#[derive(Clone, Default)]
struct Shard(BTreeMap<Bytes, Bytes>);

impl Shard {
    fn prepare(&mut self, tag: &str, pending: &Pending) {
        self.0.insert(key::pending("k", tag), record::encode(pending));
        if pending.slot {
            self.0.insert(key::removal_slot("k"), Bytes::copy_from_slice(tag.as_bytes()));
        }
    }

    fn reply(&self, read: &Read) -> ReadReply {
        let [Fetch::Keys(keys)] = &read.fetches[..] else { panic!("{read:?}") };
        let found = keys.iter().filter_map(|key| Some((key.clone(), self.0.get(key)?.clone())));
        ReadReply { version: 1, parts: vec![Fetched::Pairs(found.collect())] }
    }

    fn decide(&self, finish: &mut FinishBatch) -> FinishStep {
        let reply = self.reply(&finish.read());
        finish.decide(&reply).unwrap()
    }

    /// Applies a write; returns whether its guards held.
    fn apply(&mut self, write: &Write) -> bool {
        let holds = write.guards.iter().all(|guard| match guard {
            Guard::OmapEquals(key, value) => self.0.get(key) == Some(value),
            Guard::OmapPresent(key) => self.0.contains_key(key),
            Guard::OmapAbsent(key) => !self.0.contains_key(key),
            Guard::Exists | Guard::AttrBelow(..) => true,
            other => panic!("{other:?} in a finish"),
        });
        if holds {
            for step in &write.steps {
                match step {
                    Step::OmapSet(entries) => self.0.extend(entries.iter().cloned()),
                    Step::OmapRemove(keys) => keys.iter().for_each(|key| drop(self.0.remove(key))),
                    other => panic!("{other:?} in a finish"),
                }
            }
        }
        holds
    }

    fn finish(&mut self, settled: impl IntoIterator<Item = ResolvedChange>) -> FinishPlan {
        let mut finish = FinishBatch::new(settled);
        let next = self.decide(&mut finish);
        let FinishStep::Execute(plan) = next else { panic!("{next:?}") };
        assert!(self.apply(&plan.write));
        *plan
    }

    fn entry(&self) -> Option<Entry> {
        self.0.get(&key::entry("k")).map(|value| record::decode("entry", value).unwrap())
    }

    fn stats(&self) -> Stats {
        stats_of(self.0.get(key::STATS)).unwrap()
    }

    fn events(&self) -> Vec<OutboxRecord> {
        let of_kind = self.0.iter().filter(|(name, _)| name.starts_with(b"X"));
        of_kind.map(|(_, value)| record::decode("event", value).unwrap()).collect()
    }
}

#[test]
fn a_change_is_finished_once() {
    let mut shard = Shard::default();
    shard.prepare("a", &with_event());
    let first = put("a", FIRST);
    // This read precedes the finish by another gateway.
    let mut late = FinishBatch::new([settled(&first)]);
    let planned = shard.decide(&mut late);
    let plan = shard.finish([settled(&first)]);
    assert_eq!((plan.events, shard.stats()), (1, Stats { objects: 1, bytes: 7 }));
    let FinishStep::Execute(planned) = planned else { panic!("{planned:?}") };
    assert!(!shard.apply(&planned.write));
    assert_eq!(shard.decide(&mut late), FinishStep::Done);
    assert_eq!(shard.events().len(), 1);
}

#[test]
fn an_event_has_what_the_commit_proves() {
    let mut shard = Shard::default();
    shard.prepare("a", &with_event());
    let subject = EventSubject { version_id: "v1".into(), size: 7, etag: "e".into(), attributes: None };
    shard.finish([settled(&CommitRecord { subject: Some(subject.clone()), ..put("a", FIRST) })]);
    let [event] = &shard.events()[..] else { panic!("one event") };
    assert_eq!((event.seq, event.tag.as_str(), event.prepared_ns), (FIRST, "a", 5));
    assert_eq!((&event.subject, &event.fixed[..]), (&subject, &b"fixed"[..]));
}

#[test]
fn changes_of_a_key_are_finished_together_in_their_order() {
    let mut shard = Shard::default();
    let (a, b) = (put("a", FIRST), put("b", FIRST.successor()));
    shard.prepare("a", &with_event());
    shard.prepare("b", &with_event());
    let plan = shard.finish([settled(&b), settled(&a)]);
    let order: Vec<String> = shard.events().into_iter().map(|event| event.tag).collect();
    assert_eq!(order, ["a", "b"]);
    assert_eq!(plan.garbage, [run("a")]);
    assert_eq!(shard.entry().unwrap().seq, b.seq);
    assert_eq!(shard.stats(), Stats { objects: 1, bytes: 7 });
}

#[test]
fn a_predecessor_of_another_gateway_is_finished_first() {
    let mut shard = Shard::default();
    let (a, b) = (put("a", FIRST), CommitRecord { untidy: true, ..put("b", FIRST.successor()) });
    shard.prepare("a", &with_event());
    shard.prepare("b", &with_event());
    let mut finish = FinishBatch::new([settled(&b)]);
    assert_eq!(shard.decide(&mut finish), FinishStep::ReadHeads(vec!["k".into()]));
    finish.add_head("k", Some(ObjectHead { version: 2, last: Some(b.clone()), earlier: vec![a] }));
    let next = shard.decide(&mut finish);
    let FinishStep::Execute(plan) = next else { panic!("{next:?}") };
    assert_eq!((plan.events, &plan.untidy), (2, &vec!["k".to_owned()]));
    assert!(shard.apply(&plan.write));
    let tidy: Tidy = record::decode("tidy", &shard.0[&key::tidy("k")]).unwrap();
    assert_eq!(tidy.up_to, b.seq);
}

#[test]
fn a_lost_entry_does_not_stop_later_changes() {
    let mut shard = Shard::default();
    let late = put("b", FIRST.successor().successor());
    shard.prepare("b", &with_event());
    let mut finish = FinishBatch::new([settled(&late)]);
    assert_eq!(shard.decide(&mut finish), FinishStep::ReadHeads(vec!["k".into()]));
    finish.add_head("k", Some(ObjectHead { version: 2, last: Some(late.clone()), earlier: Vec::new() }));
    assert!(matches!(shard.decide(&mut finish), FinishStep::Execute(_)));
}

#[test]
fn a_head_is_read_again_where_the_shard_changed_meanwhile() {
    let mut shard = Shard::default();
    shard.prepare("d", &Pending { slot: true, ..with_event() });
    let mut finish = FinishBatch::default();
    finish.add_orphan("k", "d");
    assert_eq!(shard.decide(&mut finish), FinishStep::ReadHeads(vec!["k".into()]));
    finish.add_head("k", None);
    // The entry was written after the head was read, so the absence of the head proves nothing about this object.
    let object = Some(listed("a", 7));
    shard.0.insert(key::entry("k"), record::encode(&Entry { seq: FIRST, object }));
    assert_eq!(shard.decide(&mut finish), FinishStep::ReadHeads(vec!["k".into()]));
    finish.add_head("k", None);
    let next = shard.decide(&mut finish);
    let FinishStep::Execute(plan) = next else { panic!("{next:?}") };
    assert_eq!(plan.events, 1);
}

#[test]
fn the_removal_of_a_head_is_deduced_from_its_slot() {
    let mut shard = Shard::default();
    shard.prepare("a", &with_event());
    shard.finish([settled(&put("a", FIRST))]);
    shard.prepare("d", &Pending { slot: true, ..with_event() });
    shard.prepare("b", &with_event());
    // Another gateway created the object again.
    let again = Seq { incarnation: HeadIncarnation { generation: 0, version: 9 }, number: 1 };
    let b = put("b", again);
    let mut finish = FinishBatch::new([settled(&b)]);
    assert_eq!(shard.decide(&mut finish), FinishStep::ReadHeads(vec!["k".into()]));
    finish.add_head("k", Some(ObjectHead { version: 2, last: Some(b.clone()), earlier: Vec::new() }));
    let next = shard.decide(&mut finish);
    let FinishStep::Execute(plan) = next else { panic!("{next:?}") };
    assert!(shard.apply(&plan.write));
    let tags: Vec<String> = shard.events().into_iter().map(|event| event.tag).collect();
    assert_eq!(tags, ["a", "d", "b"]);
    let removal = &shard.events()[1];
    assert_eq!((removal.seq, removal.subject.size), (FIRST.successor(), 7));
    assert_eq!(removal.subject.version_id, "v");
    assert_eq!(plan.garbage, [run("a")]);
    assert!(!shard.0.contains_key(&key::removal_slot("k")));
    assert_eq!(shard.stats(), Stats { objects: 1, bytes: 7 });
}

#[test]
fn tails_are_beside_their_entry_and_go_with_it() {
    let mut shard = Shard::default();
    shard.prepare("a", &Pending { tails: Some(Tails { count: 9, ..run("a") }), ..Pending::default() });
    shard.finish([settled(&put("a", FIRST))]);
    let tails: EntryTails = record::decode("tails", &shard.0[&key::tails("k")]).unwrap();
    assert_eq!(tails.tails, [run("a")]);
    let next = FIRST.successor();
    shard.prepare("d", &Pending { slot: true, ..Pending::default() });
    let plan = shard.finish([settled(&of(next, "d", ChangeEffect::Removed))]);
    assert_eq!(plan.garbage, [run("a")]);
    assert_eq!((shard.entry(), shard.stats()), (None, Stats::default()));
    assert_eq!(shard.0.len(), 1, "something but the sums stays: {:?}", shard.0);
}

#[test]
fn a_tombstone_keeps_its_entry_and_is_tidied() {
    let mut shard = Shard::default();
    shard.prepare("a", &Pending::default());
    shard.finish([settled(&put("a", FIRST))]);
    shard.prepare("d", &with_event());
    shard.prepare("b", &Pending::default());
    let removal = of(FIRST.successor(), "d", ChangeEffect::Tombstone);
    let plan = shard.finish([settled(&removal)]);
    assert_eq!(shard.entry(), Some(Entry { seq: removal.seq, object: None }));
    assert_eq!((plan.untidy, plan.after), (vec!["k".to_owned()], Stats::default()));
    // The change that the tombstone waited for is cancelled.
    assert_eq!(shard.finish([cancelled("b")]).untidy, ["k"]);
}

#[test]
fn a_cancelled_change_leaves_garbage_only() {
    let mut shard = Shard::default();
    shard.prepare("a", &Pending { tails: Some(run("a")), replaced: vec![run("r")], ..with_event() });
    let plan = shard.finish([cancelled("a")]);
    assert_eq!((plan.garbage, plan.events), (vec![run("a")], 0));
    assert!(shard.0.is_empty(), "{:?}", shard.0);
}

#[test]
fn parts_are_garbage_where_their_change_wrote_them_and_is_cancelled() {
    for upload in [None, Some("upload".to_owned())] {
        let mut shard = Shard::default();
        let wrote = upload.is_none();
        shard.prepare("a", &Pending { parts: vec![run("p"), run("q")], upload, ..Pending::default() });
        let plan = shard.finish([cancelled("a")]);
        assert_eq!(plan.garbage, if wrote { vec![run("p"), run("q")] } else { Vec::new() });
        let mut shard = Shard::default();
        shard.prepare("a", &Pending { parts: vec![run("p")], ..Pending::default() });
        let listed = ListingEntry { class: "COLD".into(), ..listed("a", 7) };
        let plan = shard.finish([settled(&of(FIRST, "a", ChangeEffect::Object(listed.clone())))]);
        assert!(plan.garbage.is_empty());
        assert_eq!(shard.entry().unwrap().object, Some(listed));
        let tails: EntryTails = record::decode("tails", &shard.0[&key::tails("k")]).unwrap();
        assert_eq!(tails.tails, [run("p")]);
    }
}

#[test]
fn an_orphan_without_evidence_is_cancelled() {
    let mut shard = Shard::default();
    shard.prepare("a", &Pending { tails: Some(run("a")), ..with_event() });
    let mut finish = FinishBatch::default();
    finish.add_orphan("k", "a");
    assert_eq!(shard.decide(&mut finish), FinishStep::ReadHeads(vec!["k".into()]));
    finish
        .add_head("k", Some(ObjectHead { version: 2, last: Some(put("other", FIRST)), earlier: Vec::new() }));
    let next = shard.decide(&mut finish);
    let FinishStep::Execute(plan) = next else { panic!("{next:?}") };
    assert_eq!((plan.events, &plan.garbage), (0, &vec![run("a")]));
}

#[test]
fn uploads_of_others_are_settled_before_the_write() {
    let mut shard = Shard::default();
    let upload = || Pending { upload: Some("u".into()), parts: vec![run("part")], ..with_event() };
    for tag in ["a", "b"] {
        shard.prepare(tag, &upload());
    }
    let own = CommitRecord { tails: None, ..put("a", FIRST) };
    // The change's own gateway settled the upload.
    let plan = shard.finish([settled(&own)]);
    assert!(plan.uploads.is_empty());
    let mut finish = FinishBatch::default();
    finish.add_orphan("k", "b");
    assert!(matches!(shard.decide(&mut finish), FinishStep::ReadHeads(_)));
    finish.add_head("k", Some(ObjectHead { version: 2, last: Some(own), earlier: Vec::new() }));
    let next = shard.decide(&mut finish);
    let FinishStep::Execute(plan) = next else { panic!("{next:?}") };
    let (key, tag) = ("k".into(), "b".into());
    assert_eq!(plan.uploads, [UploadResolution { key, upload: "u".into(), tag, completed: false }]);
    // The parts belong to the upload again, or to the object.
    assert!(plan.garbage.is_empty());
}

#[test]
fn parts_that_the_object_still_has_are_no_garbage() {
    let mut shard = Shard::default();
    let parts = || Pending { parts: vec![run("part")], ..Pending::default() };
    shard.prepare("a", &parts());
    shard.prepare("b", &parts());
    let of = |tag, seq| CommitRecord { tails: None, ..put(tag, seq) };
    let plan = shard.finish([settled(&of("a", FIRST)), settled(&of("b", FIRST.successor()))]);
    assert!(plan.garbage.is_empty());
    let tails: EntryTails = record::decode("tails", &shard.0[&key::tails("k")]).unwrap();
    assert_eq!(tails.tails, [run("part")]);
}

#[test]
fn what_is_replaced_in_an_object_with_versions_is_no_garbage() {
    let mut shard = Shard::default();
    shard.prepare("a", &Pending::default());
    shard.finish([settled(&put("a", FIRST))]);
    shard.prepare("b", &Pending { replaced: vec![run("null")], ..Pending::default() });
    let held = Some(Stats { objects: 2, bytes: 14 });
    let content = ChangeEffect::Object(ListingEntry { held, ..listed("b", 7) });
    let plan = shard.finish([settled(&of(FIRST.successor(), "b", content))]);
    assert_eq!(plan.garbage, [run("null")]);
    assert!(!shard.0.contains_key(&key::tails("k")));
    assert_eq!(shard.stats(), Stats { objects: 2, bytes: 14 });
}

#[test]
fn a_change_of_attributes_moves_only_the_sequence() {
    let mut shard = Shard::default();
    shard.prepare("a", &Pending::default());
    shard.finish([settled(&put("a", FIRST))]);
    shard.prepare("m", &with_event());
    let plan = shard.finish([settled(&of(FIRST.successor(), "m", ChangeEffect::Unchanged))]);
    assert_eq!((plan.garbage, plan.before), (Vec::new(), plan.after));
    let entry = shard.entry().unwrap();
    let object = entry.object.unwrap();
    assert_eq!((entry.seq, object.tag.as_str()), (FIRST.successor(), "a"));
    assert_eq!(object.kind, VersionKind::Object, "it may have tags now");
    assert!(shard.0.contains_key(&key::tails("k")));
}
