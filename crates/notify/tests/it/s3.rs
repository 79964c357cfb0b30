//! The S3 half of a simulated gateway: it changes objects by the index protocol, as crates/rgw does, with the gateway's
//! delivery beside it. What it does in the index of a bucket, and in heads, are the functions of nacre-index.

mod reshard;

use crate::bucket::{BUCKETS, Buckets, id, is_overtaken};
use crate::check::names;
use crate::mutation::Mutation;
use crate::scene::Scene;
use crate::world::Shared;
use bytes::Bytes;
use nacre_engine::{Cluster, IoCtx, Result};
use nacre_index::commit::{self, AssumedHead, ListingUpdate, RemovalStep};
use nacre_index::finish::{ChangeOutcome, FinishBatch, FinishStep, ResolvedChange};
use nacre_index::key::IndexRecordKind;
use nacre_index::op::{Fetch, Guard, Read, Step};
use nacre_index::prepare::{KeyView, Prepare, PrepareBatch, PrepareRefusal};
use nacre_index::record::{Event, EventSubject, ListingEntry, Pending};
use nacre_index::seq::HeadIncarnation;
use nacre_index::state::{self, OPEN, STATE};
use nacre_index::tidy::{self, TidyWork};
use nacre_index::{head, recovery};
use nacre_notify::{Notifier, QueueReservation};
use nacre_task::Env;
use nacre_topics::pending::PendingEvents;
use nacre_topics::record::ObjectInfo;
use nacre_types::encoding;
use nacre_types::errno::Errno;
use nacre_types::op::{Op, OsdOp};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// The attribute that makes a head an object.
pub(crate) const OBJECT: &str = "object";
/// What the key of the omap entry begins with whose absence a commit demands, so that whoever sees it knows the change.
const BY: &str = "by ";
/// Between two looks at a bucket whose index moves, and how many of them a change waits.
const LOOK: Duration = Duration::from_millis(50);
const LOOKS: usize = 400;
/// Before another attempt where somebody else was faster.
const RETRY: Duration = Duration::from_millis(5);
/// How often indexes are looked at for what gateways that ended have left; up to as long again is added.
const MAINTENANCE: Duration = Duration::from_secs(1);
/// Records of a kind that are read at a time.
const PAGE: u64 = 100;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Put,
    PutIfAbsent,
    Delete,
}

/// A request on an object.
pub(crate) struct Change {
    pub(crate) request: Request,
    pub(crate) bucket: String,
    pub(crate) key: String,
    /// Never used before.
    pub(crate) tag: String,
    pub(crate) events: PendingEvents,
}

/// Called with what a gateway could not do.
pub(crate) type OnError = Arc<dyn Fn(String, &nacre_engine::Error) + Send + Sync>;

/// A change that is prepared.
struct Prepared {
    at: HeadIncarnation,
    slot: bool,
    view: KeyView,
}

/// A change that is to be finished.
enum Ending {
    Own(ResolvedChange),
    /// Of a gateway that is fenced.
    Orphan(String),
}

pub(crate) struct S3 {
    pub(crate) env: Env,
    pub(crate) cluster: Cluster,
    pub(crate) index: IoCtx,
    pub(crate) data: IoCtx,
    pub(crate) buckets: Buckets,
    pub(crate) session: u64,
    pub(crate) notifier: Arc<Notifier>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) mutation: Mutation,
    pub(crate) on_error: OnError,
    /// Sessions that this gateway has blocklisted.
    pub(crate) fenced: Mutex<BTreeSet<u64>>,
}

/// The change that a commit belongs to; `None` for what is no commit.
pub(crate) fn tag_of(ops: &[OsdOp]) -> Option<String> {
    let assertions = ops.iter().find_map(|op| match &op.op {
        Op::OmapCmp { assertions } => Some(assertions),
        _ => None,
    });
    let keys = assertions?.iter().filter_map(|(key, ..)| std::str::from_utf8(key).ok()?.strip_prefix(BY));
    keys.map(str::to_owned).next()
}

impl S3 {
    /// Carries out a request, and finishes what it changed; tells whether it changed something, if that is known.
    pub(crate) async fn carry_out(self: Arc<S3>, change: &Change) -> Option<bool> {
        let done = self.try_to(change).await;
        done.inspect_err(|error| self.failed(&format!("{:?} of {}", change.request, change.key), error)).ok()
    }

    /// Something could not be done.
    pub(crate) fn failed(&self, what: &str, error: &nacre_engine::Error) {
        (self.on_error)(format!("client.{}: {what}", self.session), error);
    }

    async fn try_to(&self, change: &Change) -> Result<bool> {
        let Some(admitted) = self.admit(change).await else {
            self.shared.note(Scene::Refused, 1);
            return Ok(false);
        };
        let events = change.events.complete(&change.tag, &change.key, &ObjectInfo::default());
        self.shared.check.lock().begin(&change.tag, names(&events));
        let Some(prepared) = self.prepare(change).await? else { return Ok(false) };
        let outcome = self.commit(change, &prepared).await?;
        let is_committed = matches!(outcome, ChangeOutcome::Committed(_));
        self.shared.check.lock().decided(&change.tag, is_committed);
        if is_committed {
            for (ordinal, admitted) in admitted {
                if let Some(one) = events.iter().find(|one| one.event.ordinal == ordinal) {
                    admitted.commit(&change.tag, ordinal, encoding::encode(&one.event).len() as u64);
                }
            }
        }
        self.settle(change, outcome).await.map(|()| is_committed)
    }

    /// Asks topics that may refuse; `None` for SlowDown.
    async fn admit(&self, change: &Change) -> Option<Vec<(u16, QueueReservation)>> {
        let largest = ObjectInfo { size: u64::MAX, sequencer: "0".repeat(40), ..ObjectInfo::default() };
        let mut admitted = Vec::new();
        for event in change.events.complete(&change.tag, &change.key, &largest) {
            let bytes = encoding::encode(&event.event).len() as u64;
            match self.notifier.admit(&event.topic, event.topic_id, bytes).await {
                Ok(one) => admitted.push((event.event.ordinal, one?)),
                Err(nacre_notify::Error::Rados(error)) => {
                    self.failed("an admission", &error);
                    return None;
                }
                Err(error) => {
                    self.shared.check.lock().broken(format!("an admission fails: {error}"));
                    return None;
                }
            }
        }
        Some(admitted)
    }

    /// `None` where the bucket's index moves for too long.
    async fn prepare(&self, change: &Change) -> Result<Option<Prepared>> {
        let event = Event {
            fixed: encoding::encode(&change.events).into(),
            candidates: change.events.candidates.iter().map(|one| one.configuration.clone()).collect(),
            subject: EventSubject::default(),
        };
        let pending = Pending {
            session: self.session.to_string(),
            slot: change.request == Request::Delete,
            event: Some(event),
            ..Pending::default()
        };
        // Every other PUT takes its key for new without a look.
        let expect_new = change.request == Request::Put && change.tag.ends_with(['1', '3', '5', '7', '9']);
        let prepare = Prepare { key: change.key.clone(), tag: change.tag.clone(), pending, expect_new };
        let mut batch = PrepareBatch::new(OPEN, vec![prepare]);
        for _ in 0..LOOKS {
            let bucket = self.buckets.get(&change.bucket).await?;
            let shard = bucket.shard_of(&change.key);
            match self.index.execute(&shard, batch.write()).await {
                Ok(version) => {
                    let at = HeadIncarnation { generation: bucket.generation, version };
                    let reply = match batch.read() {
                        Some(read) => self.index.execute_read(&shard, &read).await?,
                        None => None,
                    };
                    let view = reply.map(|reply| batch.views(&reply).unwrap().remove(0).unwrap());
                    let view = view.unwrap_or_default();
                    return Ok(Some(Prepared { at, slot: batch.changes()[0].pending.slot, view }));
                }
                Err(error) if error.errno() == Errno::ECANCELED => {
                    let reply = self.index.execute_read(&shard, &batch.refusal_read()).await?;
                    match reply.map(|reply| batch.clone().refusal(&reply).unwrap()) {
                        Some(PrepareRefusal::Slots(fewer)) => {
                            batch = fewer;
                            continue;
                        }
                        Some(PrepareRefusal::State(_)) => self.buckets.open_left(&bucket, &shard).await?,
                        None => {}
                    }
                }
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
            self.env.sleep(LOOK).await;
        }
        Ok(None)
    }

    async fn commit(&self, change: &Change, prepared: &Prepared) -> Result<ChangeOutcome> {
        let name = head_name(&change.bucket, &change.key);
        let mut base = match change.request {
            Request::Put => prepared.view.assume_for_write(),
            Request::PutIfAbsent => {
                prepared.view.assume_for_write().filter(|base| *base == AssumedHead::Absent)
            }
            Request::Delete => prepared.view.assume_for_removal(),
        };
        let listed = ListingEntry { tag: change.tag.clone(), size: 5, ..ListingEntry::default() };
        let subject = EventSubject { size: listed.size, ..EventSubject::default() };
        loop {
            let (base, is_there) = match base.take() {
                Some(base) => (base, false),
                None => {
                    let found = self.head(&change.bucket, &change.key).await?;
                    let is_there = found.as_ref().is_some_and(|head| !head.is_tombstone());
                    (AssumedHead::from_head(found), is_there)
                }
            };
            let of = commit::PreparedChange {
                key: &change.key,
                tag: &change.tag,
                prepared: prepared.at,
                slot: prepared.slot,
                view: &prepared.view,
                subject: Some(&subject).filter(|_| change.request != Request::Delete),
            };
            let by = vec![Guard::OmapAbsent([BY, change.tag.as_str()].concat().into())];
            let built = match change.request {
                Request::PutIfAbsent if is_there => return Ok(ChangeOutcome::Cancelled),
                Request::Put | Request::PutIfAbsent => {
                    let data = Bytes::from(change.tag.clone());
                    let body = vec![Step::WriteFull(data.clone()), Step::SetAttr(OBJECT, data)];
                    commit::write(of, &base, ListingUpdate::Object(&listed, None), by, body)
                }
                Request::Delete => {
                    let bury = vec![Step::Truncate(0), Step::RemoveAttr(OBJECT)];
                    match commit::remove(of, &base, by, bury) {
                        Ok(RemovalStep::Nothing) => return Ok(ChangeOutcome::Cancelled),
                        Ok(RemovalStep::ReadHead) => continue,
                        Ok(RemovalStep::Commit(commit)) => Ok(*commit),
                        Err(error) => Err(error),
                    }
                }
            };
            let commit = match built {
                Err(nacre_index::Error::TooManyPending(_)) => {
                    self.env.sleep(LOOK).await;
                    continue;
                }
                built => built.unwrap(),
            };
            if self.mutation == Mutation::EnqueueBeforeCommit {
                self.shared.strike();
                self.settle(change, ChangeOutcome::Committed(Box::new(commit.evidence.clone()))).await?;
            }
            let written = self.data.execute(&name, commit.write).await;
            if !is_overtaken(&written) {
                return written.map(|_| ChangeOutcome::Committed(Box::new(commit.evidence)));
            }
        }
    }

    /// The head of a key, as the index protocol sees it.
    async fn head(&self, bucket: &str, key: &str) -> Result<Option<head::ObjectHead>> {
        let name = head_name(bucket, key);
        let reply = self.data.execute_read(&name, &head::read()).await?;
        Ok(head::parse(&name, reply.as_ref()).unwrap())
    }

    async fn settle(&self, change: &Change, outcome: ChangeOutcome) -> Result<()> {
        let settled = ResolvedChange { key: change.key.clone(), tag: change.tag.clone(), outcome };
        self.finish(&change.bucket, &change.key, &Ending::Own(settled)).await
    }

    /// Finishes a change, wherever its records are.
    async fn finish(&self, bucket: &str, key: &str, ending: &Ending) -> Result<()> {
        loop {
            let shard = self.buckets.get(bucket).await?.shard_of(key);
            if self.finish_in(bucket, &shard, key, ending).await? {
                return Ok(());
            }
            self.env.sleep(LOOK).await;
        }
    }

    /// `false` where the records of the shard are being moved, or were.
    async fn finish_in(&self, bucket: &str, shard: &str, key: &str, ending: &Ending) -> Result<bool> {
        let mut finish = FinishBatch::default();
        match ending {
            Ending::Own(settled) => finish = FinishBatch::new([settled.clone()]),
            Ending::Orphan(tag) => finish.add_orphan(key, tag),
        }
        loop {
            let mut ask = finish.read();
            ask.fetches.push(Fetch::Attrs);
            let Some(reply) = self.index.execute_read(shard, &ask).await? else { return Ok(false) };
            let state = reply.pairs(1).unwrap().get(STATE.as_bytes());
            if state.is_some_and(|state| state::is_frozen(state)) {
                return Ok(false);
            }
            match finish.decide(&reply).unwrap() {
                FinishStep::Done => return Ok(true),
                FinishStep::ReadHeads(keys) => {
                    for key in keys {
                        let head = self.head(bucket, &key).await?;
                        finish.add_head(&key, head);
                    }
                }
                FinishStep::Execute(plan) => match self.index.execute(shard, plan.write.clone()).await {
                    Err(error) if error.errno() == Errno::ECANCELED => self.env.sleep(RETRY).await,
                    Err(error) if error.is_not_found() => return Ok(false),
                    Err(error) => return Err(error),
                    Ok(_) => {
                        // Sometimes no mover is told: then the scan finds the events.
                        if plan.events > 0 && self.env.jitter(Duration::from_nanos(10)) > Duration::ZERO {
                            self.notifier.outbox_written(bucket, shard, &plan.event_keys);
                        }
                        for key in &plan.untidy {
                            self.tidy(bucket, shard, key).await?;
                        }
                        return Ok(true);
                    }
                },
            }
        }
    }

    /// Tidies a key, if that can be done now.
    async fn tidy(&self, bucket: &str, shard: &str, key: &str) -> Result<()> {
        let Some(reply) = self.index.execute_read(shard, &tidy::read(key)).await? else { return Ok(()) };
        let TidyWork::Remove { head, shard: records } = tidy::plan(key, &reply).unwrap() else {
            return Ok(());
        };
        match self.data.execute(&head_name(bucket, key), head).await {
            Err(error) if error.errno() == Errno::ECANCELED => return Ok(()),
            Err(error) if !error.is_not_found() => return Err(error),
            _ => {}
        }
        let written = self.index.execute(shard, records).await;
        if is_overtaken(&written) { Ok(()) } else { written.map(drop) }
    }

    /// Takes up what gateways that ended have left, as long as the gateway is there.
    pub(crate) async fn maintain(self: Arc<S3>) {
        loop {
            self.env.sleep(MAINTENANCE + self.env.jitter(MAINTENANCE)).await;
            for bucket in (0..BUCKETS).map(id) {
                if let Err(error) = self.recover(&bucket).await {
                    self.failed("recovery", &error);
                }
                if let Err(error) = self.reshard(&bucket).await {
                    self.failed("a reshard", &error);
                }
            }
        }
    }

    /// Finishes or cancels pending changes of gateways that ended, and tidies.
    async fn recover(&self, bucket: &str) -> Result<()> {
        for shard in self.buckets.get(bucket).await?.shard_names() {
            let page =
                |kind: IndexRecordKind| Fetch::Page { prefix: kind.prefix(), after: Bytes::new(), max: PAGE };
            let scan = Read::of(vec![page(IndexRecordKind::Pending), page(IndexRecordKind::Tidy)]);
            // The index moves.
            let Some(reply) = self.index.execute_read(&shard, &scan).await? else { return Ok(()) };
            for orphan in recovery::parse(&shard, reply.page(0).unwrap()).unwrap() {
                let session = orphan.pending.session.parse::<u64>().unwrap();
                if session == self.session || self.shared.running.lock().contains(&session) {
                    continue;
                }
                self.fence(session).await?;
                self.shared.note(Scene::Recovered, 1);
                if !self.finish_in(bucket, &shard, &orphan.key, &Ending::Orphan(orphan.tag)).await? {
                    // Whoever moves the index may have ended, too: that is looked at next.
                    return Ok(());
                }
            }
            for key in tidy::keys(reply.page(1).unwrap()) {
                self.tidy(bucket, &shard, &key).await?;
            }
        }
        Ok(())
    }

    /// Has OSDs refuse whatever a session may still have in flight.
    async fn fence(&self, session: u64) -> Result<()> {
        if self.fenced.lock().contains(&session) {
            return Ok(());
        }
        let addr = format!("client.{session}");
        let command =
            format!(r#"{{"prefix":"osd blocklist","blocklistop":"add","addr":"{addr}","expire":86400.0}}"#);
        self.cluster.command(command, "").await?;
        // What is read from here on is read by OSDs that know of it.
        self.cluster.refresh_map().await?;
        self.fenced.lock().insert(session);
        Ok(())
    }

    /// A tag that was never used before.
    fn new_tag(&self) -> String {
        let mut bits = [0; 16];
        self.env.fill_random(&mut bits).unwrap();
        format!("{:032x}", u128::from_le_bytes(bits))
    }
}

/// The RADOS object of the head of a key.
pub(crate) fn head_name(bucket: &str, key: &str) -> String {
    format!("{bucket}_{key}")
}
