//! A client that resends by rule R6: in tid order, after every reset and every new interval, with the same request id.
//!
//! It has its own copy of the map and never gives up: a request ends with its answer, or with the client. What it asks
//! and is told goes to the [`History`]; everything about the network and time is the caller's.

use crate::history::{Action, Broken, EntryId, History, Outcome, Token, Value};
use crate::network::Node;
use crate::schedule::{MILLI, Nanos};
use bytes::Bytes;
use nacre_types::errno::Errno;
use nacre_types::msg::{OsdBackoff, OsdReply, OsdRequest};
use nacre_types::object::SNAP_HEAD;
use nacre_types::op::{CmpOp, CmpValue, OmapValsReply, Op, OpResult, OsdOp, Pairs, op_flag};
use nacre_types::osdmap::OsdMap;
use nacre_types::{ClientId, Epoch, Interval, ObjectId, OsdId, PgId, ReqId, encoding};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The attribute that holds an object's mark.
pub const MARK: &str = "mark";
/// The omap key that mirrors it.
pub const MARK_KEY: &[u8] = b"mark";

/// What a client sends.
pub type Sent = Vec<(OsdId, OsdRequest)>;

/// What an answer meant to its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A request is done.
    New,
    /// It was done before.
    Known,
    /// The session has expired: go on with [`Client::new_session`].
    Expired,
}

#[derive(Clone, Debug)]
struct Pending {
    object: ObjectId,
    action: Action,
    entry: EntryId,
    attempt: u32,
    /// Where it was sent, in which interval; `None` while it must be sent (again).
    sent: Option<(OsdId, Interval)>,
    /// The map that it waits for.
    epoch: Epoch,
    /// Not sent again before this.
    not_before: Nanos,
}

/// How long a client waits before it sends a request again that was refused although its map was new enough.
const RETRY: Nanos = 300 * MILLI;

/// A client.
#[derive(Debug)]
pub struct Client {
    /// Its place in the network.
    pub node: Node,
    /// Its session.
    pub session: ClientId,
    map: Option<Arc<OsdMap>>,
    next_tid: u64,
    pending: BTreeMap<u64, Pending>,
    /// Answers of writes, to compare later answers of the same request with.
    answers: BTreeMap<u64, (i32, u64)>,
    /// The last mark that it saw of each object.
    marks: BTreeMap<ObjectId, Token>,
    /// Objects that could not be read when it last changed them: it does not change them until they can be.
    unreadable: BTreeSet<ObjectId>,
}

impl Client {
    /// A client without a map.
    pub fn new(node: Node, session: ClientId) -> Client {
        Client {
            node,
            session,
            map: None,
            next_tid: 1,
            pending: BTreeMap::new(),
            answers: BTreeMap::new(),
            marks: BTreeMap::new(),
            unreadable: BTreeSet::new(),
        }
    }

    /// Its map's epoch; 0 without a map.
    pub fn epoch(&self) -> Epoch {
        self.map.as_ref().map_or(Epoch(0), |map| map.epoch)
    }

    /// Its map.
    pub fn map(&self) -> Option<&Arc<OsdMap>> {
        self.map.as_ref()
    }

    /// Requests without an answer.
    pub fn outstanding(&self) -> usize {
        self.pending.len()
    }

    /// One line per request without an answer, for reports; those on PGs that are lost are left out.
    pub fn describe_pending(&self, lost: &BTreeSet<PgId>) -> Vec<String> {
        let hopeless = |p: &Pending| {
            let pool = self.map.as_ref().and_then(|map| map.pools.get(&p.object.pool()));
            pool.is_some_and(|pool| lost.contains(&pool.pg_of(&p.object)))
        };
        let line = |(tid, p): (&u64, &Pending)| {
            format!(
                "{}:{tid} {:?} on {} attempt {} sent {:?} needs epoch {}",
                self.node, p.action, p.object, p.attempt, p.sent, p.epoch
            )
        };
        self.pending.iter().filter(|(_, p)| !hopeless(p)).map(line).collect()
    }

    /// The map that its requests wait for, if it is newer than its own.
    pub fn wants_epoch(&self) -> Option<Epoch> {
        self.pending.values().map(|p| p.epoch).max().filter(|epoch| *epoch > self.epoch())
    }

    /// The mark that it last saw of an object.
    pub fn mark(&self, object: &ObjectId) -> Token {
        self.marks.get(object).copied().unwrap_or(0)
    }

    /// A token that nobody else writes.
    pub fn next_token(&self) -> Token {
        let Node::Client(number) = self.node else { unreachable!("invariant: clients are client nodes") };
        (u64::from(number) + 1) << 32 | self.next_tid
    }

    /// Asks something of an object.
    pub fn ask(&mut self, now: Nanos, history: &mut History, object: ObjectId, action: Action) -> Sent {
        let waits = self.unreadable.contains(&object) && action != Action::Remove;
        let action = if waits { Action::Read } else { action };
        let tid = self.next_tid;
        self.next_tid += 1;
        let entry = history.begin(now, self.node, tid, &object, action);
        let pending =
            Pending { object, action, entry, attempt: 0, sent: None, epoch: Epoch(0), not_before: 0 };
        self.pending.insert(tid, pending);
        self.send_waiting(now)
    }

    /// A newer map came: requests whose PG has another primary or interval go again. Requests of pools that are gone end
    /// without an outcome.
    pub fn on_map(&mut self, now: Nanos, map: &Arc<OsdMap>) -> Sent {
        let stamp = |map: &OsdMap| (map.generation, map.epoch);
        if self.map.as_ref().is_some_and(|known| stamp(known) >= stamp(map)) {
            return Vec::new();
        }
        self.map = Some(map.clone());
        self.pending
            .retain(|_, p| map.pools.contains_key(&p.object.pool()) || map.pool_max < p.object.pool());
        for pending in self.pending.values_mut() {
            let target = target(map, &pending.object).map(|(_, osd, interval)| (osd, interval));
            if pending.sent.is_some() && pending.sent != target {
                pending.sent = None;
            }
        }
        self.send_waiting(now)
    }

    /// The connection to an OSD broke: what was sent there goes again, in tid order.
    pub fn on_reset(&mut self, now: Nanos, osd: OsdId) -> Sent {
        for pending in self.pending.values_mut() {
            if pending.sent.is_some_and(|(to, _)| to == osd) {
                pending.sent = None;
            }
        }
        self.send_waiting(now)
    }

    /// The OSD wants the client to have a newer map first. Later requests on the same PG go again too, to keep their
    /// order.
    pub fn on_backoff(&mut self, now: Nanos, backoff: &OsdBackoff) -> Sent {
        let tid = backoff.reqid.tid;
        let Some(pending) = self.pending.get_mut(&tid).filter(|p| p.attempt == backoff.attempt + 1) else {
            return Vec::new();
        };
        (pending.sent, pending.epoch) = (None, backoff.epoch);
        if self.map.as_ref().is_some_and(|map| map.epoch >= backoff.epoch) {
            pending.not_before = now + RETRY;
        }
        self.send_waiting(now)
    }

    /// An answer came. Late answers of earlier attempts count: the request was executed then.
    pub fn on_reply(
        &mut self,
        now: Nanos,
        history: &mut History,
        reply: &OsdReply,
    ) -> Result<Answer, Broken> {
        let tid = reply.reqid.tid;
        if reply.reqid.client != self.session {
            return Ok(Answer::Known);
        }
        let Some(pending) = self.pending.get(&tid) else {
            return self.compare_with_earlier(reply).map(|()| Answer::Known);
        };
        if reply.result == Errno::EIO.negated() && pending.action.is_write() {
            // It may have taken effect on a member that has the object, which others lack so far.
            self.unreadable.insert(pending.object.clone());
            self.pending.remove(&tid);
            return Ok(Answer::New);
        }
        let (outcome, version) = outcome(pending.action, reply)
            .map_err(|detail| Broken { rule: "malformed reply", detail: format!("{detail}: {reply:?}") })?;
        if let Outcome::Saw(Some(value)) = &outcome {
            self.marks.insert(pending.object.clone(), value.mark);
        }
        if outcome == Outcome::Unknown {
            return Ok(Answer::Expired);
        }
        if outcome != Outcome::Refused {
            self.unreadable.remove(&pending.object);
        }
        history.finish(now, &pending.entry, outcome, version)?;
        if pending.action.is_write() {
            self.answers.insert(tid, (reply.result, reply.user_version));
        }
        self.pending.remove(&tid);
        Ok(Answer::New)
    }

    /// The answers to two attempts of one write must be the same (rule R6). A session that has expired is told so instead.
    fn compare_with_earlier(&self, reply: &OsdReply) -> Result<(), Broken> {
        let Some(earlier) = self.answers.get(&reply.reqid.tid) else { return Ok(()) };
        let refused = [Errno::ENOSPC, Errno::EIO, Errno::ESTALE, Errno::EBLOCKLISTED].map(Errno::negated);
        // What version a failure shows is nobody's promise.
        if earlier.0 == reply.result && (reply.result < 0 || earlier.1 == reply.user_version)
            || [reply.result, earlier.0].iter().any(|r| refused.contains(r))
        {
            return Ok(());
        }
        Err(Broken {
            rule: "a resend was answered differently",
            detail: format!(
                "{}: first {earlier:?}, then {:?}",
                reply.reqid,
                (reply.result, reply.user_version)
            ),
        })
    }

    /// When [`Client::on_time`] has something to send.
    pub fn next_retry(&self, now: Nanos) -> Option<Nanos> {
        self.pending.values().filter(|p| p.sent.is_none() && p.not_before > now).map(|p| p.not_before).min()
    }

    /// Time passed: what had to wait is sent.
    pub fn on_time(&mut self, now: Nanos) -> Sent {
        self.send_waiting(now)
    }

    /// Forgets everything that has no answer and goes on under a new session.
    pub fn new_session(&mut self, session: ClientId) {
        self.session = session;
        self.pending.clear();
        self.answers.clear();
    }

    /// Sends, in tid order, what must be sent and can be. A request that waits holds back later ones on its PG.
    fn send_waiting(&mut self, now: Nanos) -> Sent {
        let Some(map) = &self.map else { return Vec::new() };
        let oldest_tid = self.pending.keys().next().copied().unwrap_or(self.next_tid);
        let mut held: Vec<PgId> = Vec::new();
        let mut sent = Vec::new();
        for (tid, pending) in &mut self.pending {
            let Some((pg, osd, interval)) = target(map, &pending.object) else { continue };
            if held.contains(&pg) || pending.sent.is_some() {
                continue;
            }
            if pending.epoch > map.epoch || pending.not_before > now {
                held.push(pg);
                continue;
            }
            let request = OsdRequest {
                reqid: ReqId { client: self.session, tid: *tid },
                oldest_tid,
                attempt: pending.attempt,
                epoch: map.epoch,
                pg,
                interval,
                object: pending.object.clone(),
                mtime_ns: now,
                flags: 0,
                snap: SNAP_HEAD,
                snap_context: None,
                ops: ops(pending.action),
            };
            pending.attempt += 1;
            pending.sent = Some((osd, interval));
            sent.push((osd, request));
        }
        sent
    }
}

/// Where a request on the object goes: the PG, its primary, its interval. `None` while the PG has no living primary.
fn target(map: &OsdMap, object: &ObjectId) -> Option<(PgId, OsdId, Interval)> {
    let pg = map.pools.get(&object.pool())?.pg_of(object);
    let membership = map.membership(pg)?;
    map.is_up(membership.primary).then_some((pg, membership.primary, membership.interval))
}

fn token_bytes(token: Token) -> Bytes {
    Bytes::copy_from_slice(&token.to_le_bytes())
}

/// The mark's stored form: nothing where there is none.
fn mark_bytes(mark: Token) -> Bytes {
    if mark == 0 { Bytes::new() } else { token_bytes(mark) }
}

/// The request that does `action`.
pub fn ops(action: Action) -> Vec<OsdOp> {
    let ops = match action {
        Action::Read => vec![
            Op::Read { offset: 0, len: 0 },
            Op::GetXattrs,
            Op::OmapGetVals { start_after: Bytes::new(), filter_prefix: Bytes::new(), max: 16 },
        ],
        Action::WriteFull(token) => vec![Op::WriteFull { data: token_bytes(token).into() }],
        Action::Append(token) => vec![Op::Append { data: token_bytes(token).into() }],
        Action::WriteAt(at, token) => {
            vec![Op::Write { offset: 8 * u64::from(at), data: token_bytes(token).into() }]
        }
        Action::Truncate(len) => vec![Op::Truncate { size: 8 * u64::from(len) }],
        Action::Remove => vec![Op::Remove],
        Action::Ensure => {
            return vec![OsdOp { op: Op::Create { exclusive: true }, flags: op_flag::FAILOK }];
        }
        Action::Swap { expect, set } => vec![
            Op::AssertExists,
            Op::CmpXattr { name: MARK.into(), op: CmpOp::Eq, value: CmpValue::Bytes(mark_bytes(expect)) },
            Op::SetXattr { name: MARK.into(), value: mark_bytes(set) },
            Op::OmapSet { entries: vec![(Bytes::from_static(MARK_KEY), mark_bytes(set))] },
        ],
    };
    ops.into_iter().map(OsdOp::from).collect()
}

/// What an answer means, and its version where that means something.
fn outcome(action: Action, reply: &OsdReply) -> Result<(Outcome, Option<u64>), String> {
    let version = Some(reply.user_version);
    if reply.result >= 0 {
        return Ok(match action {
            Action::Read => (Outcome::Saw(Some(value(&reply.ops)?)), version),
            // A removal's is the version before; where the others changed nothing, it is that of another write.
            Action::Ensure | Action::Truncate(_) | Action::Remove => (Outcome::Done, None),
            _ => (Outcome::Done, version),
        });
    }
    match Errno(-reply.result) {
        Errno::ENOENT if action == Action::Read => Ok((Outcome::Saw(None), None)),
        Errno::ENOENT => Ok((Outcome::Absent, None)),
        Errno::ECANCELED => Ok((Outcome::Mismatch, None)),
        // Whether it may is judged where the OSD refuses.
        Errno::ENOSPC | Errno::EIO => Ok((Outcome::Refused, None)),
        // The session has expired: whether an earlier attempt was executed is not known any more.
        Errno::ESTALE | Errno::EBLOCKLISTED => Ok((Outcome::Unknown, None)),
        other => Err(format!("unexpected result {other:?} of {action:?}")),
    }
}

/// What a read returned.
fn value(results: &[OpResult]) -> Result<Value, String> {
    let [data, attrs, omap] = results else { return Err(format!("{} results of a read", results.len())) };
    let token = |bytes: &[u8]| match bytes {
        [] => Ok(0),
        _ => {
            bytes.try_into().map(Token::from_le_bytes).map_err(|_| format!("a mark of {} bytes", bytes.len()))
        }
    };
    let pairs: Pairs = encoding::decode(&attrs.output).map_err(|e| e.to_string())?;
    let entries: OmapValsReply = encoding::decode(&omap.output).map_err(|e| e.to_string())?;
    let find = |list: &[(Bytes, Bytes)], name: &[u8]| {
        list.iter().find(|(key, _)| key == name).map_or(Ok(0), |(_, bytes)| token(bytes))
    };
    let mark = find(&pairs.0, MARK.as_bytes())?;
    if find(&entries.entries, MARK_KEY)? != mark {
        return Err(format!("torn object: attribute {mark:x} and omap {:?} disagree", entries.entries));
    }
    let words = data.output.chunks_exact(8);
    if !words.remainder().is_empty() {
        return Err(format!("torn data of {} bytes", data.output.len()));
    }
    let tokens =
        words.map(|w| Token::from_le_bytes(w.try_into().expect("invariant: chunks of eight"))).collect();
    Ok(Value { tokens, mark })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Disk;
    use crate::interpreter::{self, Setting};
    use crate::random::{Random, Stream};
    use nacre_exec::{Change, Limits};
    use nacre_types::Eversion;
    use nacre_types::pool::Pool;
    use nacre_types::txn::{Transaction, TxnOp};
    use nacre_types::{PoolId, ReqId};

    const PG: PgId = PgId { pool: PoolId(1), seed: 0 };

    /// Executes a request as an OSD does: the answer, and what changes.
    fn execute(disk: &Disk, request: &OsdRequest, version: u64) -> (OsdReply, Option<Change>) {
        let pool = Pool::replicated("p", 3, 2, 0, 1, Epoch(1));
        let setting = Setting {
            pool: &pool,
            limits: &Limits::default(),
            full: false,
            at: Eversion::new(Interval(1), version),
            wall_ns: 0,
            recent_requests: &|_| Vec::new(),
        };
        let done = interpreter::execute(disk.seen(), &setting, request);
        let reply = OsdReply {
            reqid: request.reqid,
            attempt: request.attempt,
            epoch: request.epoch,
            result: done.result,
            user_version: done.user_version,
            ops: done.ops,
        };
        (reply, done.change)
    }

    #[test]
    fn requests_do_to_a_disk_what_the_model_says() {
        let object = ObjectId::new(PoolId(1), "", "", "o");
        let mut disk = Disk::default();
        let mut create = Transaction::new(PG);
        create.push(TxnOp::CreateCollection);
        disk.apply(create).unwrap();
        let mut random = Random::new(5, Stream::Workload);
        let mut model = None;
        for token in 1..400 {
            let action = match random.range(0, 9) {
                0..2 => Action::Append(token),
                2 => Action::WriteFull(token),
                3 => Action::WriteAt(random.range(0, 5) as u8, token),
                4 => Action::Truncate(random.range(0, 5) as u8),
                5 => Action::Remove,
                6 => Action::Ensure,
                _ => Action::Swap { expect: random.range(0, 2) * token.saturating_sub(1), set: token },
            };
            let request = |ops| OsdRequest {
                reqid: ReqId { client: ClientId(4), tid: token },
                oldest_tid: token,
                attempt: 0,
                epoch: Epoch(1),
                pg: PG,
                interval: Interval(1),
                object: object.clone(),
                mtime_ns: 0,
                flags: 0,
                snap: SNAP_HEAD,
                snap_context: None,
                ops,
            };
            let (reply, change) = execute(&disk, &request(ops(action)), token);
            let (next, expected) = action.apply(&model);
            model = next;
            assert_eq!(outcome(action, &reply).unwrap().0, expected, "{action:?}");
            if let Some(change) = change {
                assert_eq!(change.context.exists, model.is_some(), "{action:?}");
                disk.apply(change.transaction).unwrap();
            }
            let (reply, _) = execute(&disk, &request(ops(Action::Read)), token);
            let saw = outcome(Action::Read, &reply).unwrap().0;
            assert_eq!(saw, Outcome::Saw(model.clone()), "{action:?}");
        }
    }
}
