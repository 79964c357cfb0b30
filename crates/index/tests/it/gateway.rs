//! Gateways as state machines that are made of the crate's functions: each step is one RADOS operation.

use crate::model::{Mutation, Truth};
use crate::rados::Stored;
use bytes::Bytes;
use nacre_index::commit::{self, AssumedHead, ListingUpdate, PreparedChange, RemovalStep};
use nacre_index::finish::{ChangeOutcome, FinishBatch, FinishPlan, FinishStep, ResolvedChange};
use nacre_index::head;
use nacre_index::key::{self, IndexRecordKind as KeyKind};
use nacre_index::op::{self, Guard, Step, Write};
use nacre_index::prepare::{KeyView, Prepare, PrepareBatch, PrepareRefusal};
use nacre_index::record::{self, CommitRecord, Event, EventSubject, ListingEntry, Pending, Stats};
use nacre_index::recovery;
use nacre_index::reshard;
use nacre_index::seq::HeadIncarnation;
use nacre_index::state;
use nacre_index::tidy::{self, TidyWork};
use nacre_types::errno::Errno;

/// The key that everybody changes.
pub(crate) const KEY: &str = "k\0";
/// The attribute that makes a head an object: tag and size.
pub(crate) const OBJECT: &str = "rgw.head";
/// An attribute that changes without the object.
const TAGS: &str = "rgw.tags";

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Request {
    Put,
    /// A PUT to a key that is expected to be new.
    PutUnread,
    /// As a PUT, of an object whose attributes are known beforehand.
    Copy,
    PutIfAbsent,
    Delete,
    Tagging,
}

/// The RADOS objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Cluster {
    pub(crate) shard: Stored,
    /// Of the index.
    generation: u32,
    pub(crate) head: Stored,
}

impl Cluster {
    /// Moves the index to a new shard, whose versions start at the lowest.
    pub(crate) fn move_index(&mut self) {
        let old = self.shard.object.take().unwrap();
        let mut sums = Stats::default();
        let mut records = Vec::new();
        for (name, value) in old.omap {
            if reshard::routing_key(&name).is_some() {
                sums.add(reshard::record_stats("shard", &name, &value).unwrap());
                records.push((name, value));
            }
        }
        records.push((Bytes::from_static(key::STATS), record::encode(&sums)));
        let closed = Step::SetAttr(state::STATE, Bytes::from(state::closed("move")));
        self.shard = Stored::default();
        self.shard.write(&Write { guards: vec![Guard::Create], steps: vec![closed] }).unwrap();
        self.shard.write(&reshard::add("move", records)).unwrap();
        self.shard.write(&reshard::open("move", state::OPEN)).unwrap();
        self.generation += 1;
    }
}

/// A gateway that carries out one request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Actor {
    request: Request,
    pub(crate) tag: &'static str,
    size: u64,
    prepared: HeadIncarnation,
    view: KeyView,
    /// What the shard has of the key was not read.
    unread: bool,
    slot: bool,
    pub(crate) phase: Phase,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    Prepare(PrepareBatch),
    Inquire(PrepareBatch),
    View(PrepareBatch),
    ReadHead,
    /// With the object that the head showed, where it was read.
    Commit(AssumedHead, Option<(String, u64)>),
    Finish(Finishing),
    Tidy(Tidying),
    Done,
    Dead,
}

/// Finishing, by who carried out the change or by who recovers it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Finishing {
    Read(FinishBatch),
    Look(FinishBatch),
    Execute(FinishBatch, Box<FinishPlan>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Tidying {
    Read,
    Head(Write, Write),
    Shard(Write),
}

/// The gateway that recovers what dead ones left.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Recovery {
    Idle,
    Finish(Finishing),
    Tidy(Tidying),
}

/// The object that a head shows: its tag and size.
pub(crate) fn shown(head: &Stored) -> Option<(String, u64)> {
    let value = head.object.as_ref()?.attrs.get(OBJECT)?;
    let (tag, size) = std::str::from_utf8(value).unwrap().split_once(':').unwrap();
    Some((tag.to_owned(), size.parse().unwrap()))
}

pub(crate) fn object_attr(tag: &str, size: u64) -> Bytes {
    Bytes::from(format!("{tag}:{size}"))
}

pub(crate) fn listed(tag: &str, size: u64) -> ListingEntry {
    ListingEntry { tag: tag.into(), size, etag: format!("etag of {tag}"), ..ListingEntry::default() }
}

fn subject(tag: &str, size: u64) -> EventSubject {
    EventSubject { size, etag: listed(tag, size).etag, ..EventSubject::default() }
}

fn batch(tag: &'static str, slot: bool, expect_new: bool) -> PrepareBatch {
    let event = Event { fixed: Bytes::from_static(tag.as_bytes()), ..Event::default() };
    let pending = Pending { session: tag.into(), slot, event: Some(event), ..Pending::default() };
    PrepareBatch::new(state::OPEN, vec![Prepare { key: KEY.into(), tag: tag.into(), pending, expect_new }])
}

impl Actor {
    pub(crate) fn new(request: Request, tag: &'static str, size: u64) -> Actor {
        let (slot, unread) = (request == Request::Delete, request == Request::PutUnread);
        let phase = Phase::Prepare(batch(tag, slot, unread));
        let (prepared, view) = (HeadIncarnation::default(), KeyView::default());
        Actor { request, tag, size, prepared, view, unread, slot, phase }
    }

    /// Ends it. What it knew does not matter any more: states that differ in nothing else are the same.
    pub(crate) fn end(&mut self, phase: Phase) {
        (self.prepared, self.view, self.slot) = (HeadIncarnation::default(), KeyView::default(), false);
        self.unread = false;
        self.phase = phase;
    }

    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::Done | Phase::Dead)
    }

    /// Whether the next step writes.
    pub(crate) fn writes_next(&self) -> bool {
        match &self.phase {
            Phase::Prepare(_) | Phase::Commit(..) => true,
            Phase::Finish(finishing) => finishing.writes_next(),
            Phase::Tidy(tidying) => tidying.writes_next(),
            Phase::Inquire(_) | Phase::View(_) | Phase::ReadHead => false,
            Phase::Done | Phase::Dead => true,
        }
    }

    /// Executes one operation.
    pub(crate) fn step(&mut self, cluster: &mut Cluster, truth: &mut Vec<Truth>, mutation: Mutation) {
        let phase = std::mem::replace(&mut self.phase, Phase::Dead);
        self.phase = match phase {
            Phase::Prepare(batch) => {
                let mut write = batch.write();
                if mutation == Mutation::SharedSlot {
                    write.guards.retain(|guard| !matches!(guard, Guard::OmapAbsent(_)));
                }
                match cluster.shard.write(&write) {
                    Ok(version) => {
                        self.prepared = HeadIncarnation { generation: cluster.generation, version };
                        match batch.read() {
                            Some(_) => Phase::View(batch),
                            None => Phase::Commit(AssumedHead::Absent, None),
                        }
                    }
                    Err(errno) => {
                        assert_eq!(errno, Errno::ECANCELED);
                        Phase::Inquire(batch)
                    }
                }
            }
            Phase::Inquire(batch) => {
                let reply = cluster.shard.read(&batch.refusal_read()).unwrap();
                match batch.refusal(&reply).unwrap() {
                    PrepareRefusal::Slots(batch) => Phase::Prepare(batch),
                    PrepareRefusal::State(state) => panic!("the shard is {state:?}"),
                }
            }
            Phase::View(batch) => {
                let read = batch.read().expect("the key is not expected to be new");
                let reply = cluster.shard.read(&read).unwrap();
                self.view = batch.views(&reply).unwrap().remove(0).unwrap();
                self.slot = batch.changes()[0].pending.slot;
                if mutation == Mutation::NeverATombstone {
                    self.view.alone = true;
                }
                let guess = match self.request {
                    Request::Put | Request::Copy => self.view.assume_for_write(),
                    // Its guess that the key is new was wrong.
                    Request::PutUnread => self.view.assume_for_removal(),
                    Request::PutIfAbsent => {
                        self.view.assume_for_write().filter(|base| *base == AssumedHead::Absent)
                    }
                    Request::Delete => self.view.assume_for_removal(),
                    Request::Tagging => None,
                };
                guess.map_or(Phase::ReadHead, |base| Phase::Commit(base, None))
            }
            Phase::ReadHead => {
                let reply = cluster.head.read(&head::read());
                let base = AssumedHead::from_head(head::parse(KEY, reply.as_ref()).unwrap());
                Phase::Commit(base, shown(&cluster.head))
            }
            Phase::Commit(base, shown) => self.commit((&base, shown), cluster, truth, mutation),
            Phase::Finish(finishing) => match finishing.step(cluster, mutation) {
                Ok(finishing) => Phase::Finish(finishing),
                Err(true) => Phase::Tidy(Tidying::Read),
                Err(false) => Phase::Done,
            },
            Phase::Tidy(tidying) => tidying.step(cluster, mutation).map_or(Phase::Done, Phase::Tidy),
            Phase::Done | Phase::Dead => panic!("nothing is left to be done"),
        };
        if self.phase == Phase::Done {
            self.end(Phase::Done);
        }
    }

    fn commit(
        &mut self,
        (base, shown): (&AssumedHead, Option<(String, u64)>),
        cluster: &mut Cluster,
        truth: &mut Vec<Truth>,
        mutation: Mutation,
    ) -> Phase {
        let about = match self.request {
            Request::Put | Request::PutUnread | Request::PutIfAbsent | Request::Copy => {
                Some(subject(self.tag, self.size))
            }
            Request::Delete | Request::Tagging => shown.as_ref().map(|(tag, size)| subject(tag, *size)),
        };
        let change = PreparedChange {
            key: KEY,
            tag: self.tag,
            prepared: self.prepared,
            slot: self.slot,
            view: &self.view,
            subject: about.as_ref(),
        };
        let own = listed(self.tag, self.size);
        let object = vec![
            Step::WriteFull(Bytes::from_static(self.tag.as_bytes())),
            Step::SetAttr(OBJECT, object_attr(self.tag, self.size)),
        ];
        let commit = match self.request {
            Request::PutIfAbsent if shown.is_some() => None,
            Request::Put | Request::PutUnread | Request::PutIfAbsent | Request::Copy => Some(
                commit::write(change, base, ListingUpdate::Object(&own, None), Vec::new(), object).unwrap(),
            ),
            Request::Tagging if shown.is_none() => None,
            Request::Tagging => {
                let tags = vec![Step::SetAttr(TAGS, Bytes::from_static(self.tag.as_bytes()))];
                Some(commit::write(change, base, ListingUpdate::Unchanged, Vec::new(), tags).unwrap())
            }
            Request::Delete => {
                let bury = vec![Step::Truncate(0), Step::RemoveAttr(OBJECT)];
                match commit::remove(change, base, Vec::new(), bury).unwrap() {
                    RemovalStep::Nothing => None,
                    RemovalStep::ReadHead => return Phase::ReadHead,
                    RemovalStep::Commit(commit) => Some(*commit),
                }
            }
        };
        let Some(mut commit) = commit else { return self.finish(ChangeOutcome::Cancelled) };
        if mutation == Mutation::NoEvidence {
            commit.write.steps.retain(|step| !matches!(step, Step::OmapSet(_)));
        }
        let before = self::shown(&cluster.head);
        match cluster.head.write(&commit.write) {
            Ok(_) => {
                let (tag, size) = match self.request {
                    Request::Put | Request::PutUnread | Request::PutIfAbsent | Request::Copy => {
                        (self.tag.to_owned(), self.size)
                    }
                    Request::Delete | Request::Tagging => before.expect("it changed an object"),
                };
                truth.push(Truth { tag: self.tag.to_owned(), subject: subject(&tag, size) });
                self.finish(ChangeOutcome::Committed(Box::new(commit.evidence)))
            }
            Err(errno) => {
                assert!(op::is_write_conflict(errno), "{errno:?}");
                if std::mem::take(&mut self.unread) {
                    Phase::View(batch(self.tag, self.slot, false))
                } else {
                    Phase::ReadHead
                }
            }
        }
    }

    fn finish(&self, outcome: ChangeOutcome) -> Phase {
        let settled = ResolvedChange { key: KEY.into(), tag: self.tag.into(), outcome };
        Phase::Finish(Finishing::Read(FinishBatch::new([settled])))
    }
}

impl Finishing {
    fn writes_next(&self) -> bool {
        matches!(self, Finishing::Execute(..))
    }

    /// Executes one operation; where that was the last one, returns whether there is something to tidy.
    fn step(self, cluster: &mut Cluster, mutation: Mutation) -> Result<Finishing, bool> {
        match self {
            Finishing::Read(mut finish) => {
                let reply = cluster.shard.read(&finish.read()).unwrap();
                match finish.decide(&reply).unwrap() {
                    FinishStep::Done => Err(false),
                    FinishStep::ReadHeads(keys) => {
                        assert_eq!(keys, [KEY]);
                        Ok(Finishing::Look(finish))
                    }
                    FinishStep::Execute(mut plan) => {
                        if mutation == Mutation::NoOutbox {
                            without_outbox(&mut plan.write);
                        }
                        Ok(Finishing::Execute(finish, plan))
                    }
                }
            }
            Finishing::Look(mut finish) => {
                let reply = cluster.head.read(&head::read());
                finish.add_head(KEY, head::parse(KEY, reply.as_ref()).unwrap());
                Ok(Finishing::Read(finish))
            }
            Finishing::Execute(finish, plan) => match cluster.shard.write(&plan.write) {
                Ok(_) => Err(!plan.untidy.is_empty()),
                Err(errno) => {
                    assert_eq!(errno, Errno::ECANCELED);
                    Ok(Finishing::Read(finish))
                }
            },
        }
    }
}

fn without_outbox(write: &mut Write) {
    for step in &mut write.steps {
        if let Step::OmapSet(entries) = step {
            entries.retain(|(name, _)| name.first() != Some(&KeyKind::Outbox.byte()));
        }
    }
}

impl Tidying {
    fn writes_next(&self) -> bool {
        !matches!(self, Tidying::Read)
    }

    /// Executes one operation; `None` where that was the last one.
    fn step(self, cluster: &mut Cluster, mutation: Mutation) -> Option<Tidying> {
        match self {
            Tidying::Read => {
                let reply = cluster.shard.read(&tidy::read(KEY)).unwrap();
                match tidy::plan(KEY, &reply).unwrap() {
                    TidyWork::Nothing | TidyWork::Wait => None,
                    TidyWork::Remove { mut head, shard } => {
                        if mutation == Mutation::UnguardedTidy {
                            head.guards.retain(|guard| *guard == Guard::Exists);
                        }
                        Some(Tidying::Head(head, shard))
                    }
                }
            }
            Tidying::Head(head, shard) => match cluster.head.write(&head) {
                Ok(_) | Err(Errno::ENOENT) => Some(Tidying::Shard(shard)),
                Err(errno) => {
                    assert_eq!(errno, Errno::ECANCELED);
                    None
                }
            },
            Tidying::Shard(shard) => {
                let result = cluster.shard.write(&shard);
                assert!(matches!(result, Ok(_) | Err(Errno::ECANCELED)), "{result:?}");
                None
            }
        }
    }
}

impl Recovery {
    /// Whether the next step writes.
    pub(crate) fn writes_next(&self) -> bool {
        match self {
            Recovery::Idle => true,
            Recovery::Finish(finishing) => finishing.writes_next(),
            Recovery::Tidy(tidying) => tidying.writes_next(),
        }
    }

    /// What there is to recover: changes of the gateways that are `dead`, and if nothing else goes on, what is untidy.
    fn work(cluster: &Cluster, dead: &[&str], quiet: bool) -> Option<Recovery> {
        let scan = recovery::scan(KeyKind::Pending.prefix(), Bytes::new(), 100);
        let reply = cluster.shard.read(&scan).unwrap();
        let [op::Fetched::Page(page)] = &reply.parts[..] else { panic!("{reply:?}") };
        let mut finish = FinishBatch::default();
        let mut found = false;
        for change in recovery::parse("shard", page).unwrap() {
            if dead.contains(&change.pending.session.as_str()) {
                finish.add_orphan(&change.key, &change.tag);
                found = true;
            }
        }
        if found {
            return Some(Recovery::Finish(Finishing::Read(finish)));
        }
        let reply = cluster.shard.read(&tidy::scan(Bytes::new(), 100)).unwrap();
        let [op::Fetched::Page(page)] = &reply.parts[..] else { panic!("{reply:?}") };
        (quiet && tidy::keys(page) == [KEY]).then_some(Recovery::Tidy(Tidying::Read))
    }

    pub(crate) fn is_enabled(&self, cluster: &Cluster, dead: &[&str], quiet: bool) -> bool {
        *self != Recovery::Idle || Recovery::work(cluster, dead, quiet).is_some()
    }

    /// Executes one operation.
    pub(crate) fn step(
        self,
        cluster: &mut Cluster,
        (dead, quiet): (&[&str], bool),
        mutation: Mutation,
    ) -> Recovery {
        match self {
            Recovery::Idle => Recovery::work(cluster, dead, quiet).unwrap_or(Recovery::Idle),
            Recovery::Finish(finishing) => match finishing.step(cluster, mutation) {
                Ok(finishing) => Recovery::Finish(finishing),
                Err(true) => Recovery::Tidy(Tidying::Read),
                Err(false) => Recovery::Idle,
            },
            Recovery::Tidy(tidying) => tidying.step(cluster, mutation).map_or(Recovery::Idle, Recovery::Tidy),
        }
    }
}

/// The evidence that a head has of its last change.
pub(crate) fn last_change(head: &Stored) -> Option<CommitRecord> {
    let reply = head.read(&head::read());
    head::parse(KEY, reply.as_ref()).unwrap().and_then(|head| head.last)
}

/// Whether a head has evidence of earlier changes.
pub(crate) fn has_earlier_evidence(head: &Stored) -> bool {
    let is_evidence = |name: &Bytes| name.starts_with(key::COMMIT_RECORD_PREFIX);
    head.object.as_ref().is_some_and(|object| object.omap.keys().any(is_evidence))
}
