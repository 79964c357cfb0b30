//! A client of the cluster: the objecter of production, and what it asks.
//!
//! Where requests go, when they go again and when they fail is decided by [`Objecter`] (rule R6). What is asked and answered
//! goes to the [`History`]. A request ends with its answer, with its pool, with its session, or with its client; now and then
//! one has a deadline, and the caller gives up. Everything about the network and time is the caller's.

use crate::history::{Action, Broken, EntryId, History, Outcome, Token as Mark, Value};
use crate::monitor::WALL;
use crate::network::Node;
use crate::random::Random;
use crate::schedule::{MILLI, Nanos, SECOND};
use bytes::Bytes;
use nacre_engine::Error;
use nacre_objecter::{Answer, Attempt, Effect, Objecter, Sent, Sink, Step, Submission, Watches, newest_map};
use nacre_types::errno::Errno;
use nacre_types::msg::{Encoded, MapPublish, OsdBackoff, OsdReply, OsdRequest, WatchLost, WatchNotify};
use nacre_types::object::SNAP_HEAD;
use nacre_types::op::{CmpOp, CmpValue, NotifyReply, OmapValsReply, Op, OpResult, OsdOp, Pairs, op_flag};
use nacre_types::osdmap::OsdMap;
use nacre_types::{ClientId, ObjectId, OsdId, PgId, encoding};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

/// The attribute that holds an object's mark.
pub const MARK: &str = "mark";
/// The omap key that mirrors it.
pub const MARK_KEY: &[u8] = b"mark";

/// One in so many requests finds the connection's queue full.
const FULL_QUEUE: u64 = 200;
/// One in so many requests has a deadline.
const IMPATIENT: u64 = 16;

/// What a client wants done to its connections.
#[derive(Debug)]
pub enum ClientOut {
    /// Sends a request by a connection, which is new where it was not named before.
    Send(OsdId, u64, Box<OsdRequest>),
    /// Closes a connection to an OSD.
    Close(OsdId, u64),
    /// The map authority's publication does not follow the client's map: it needs a whole one.
    NeedsMap,
    /// It goes on under a new session.
    Expired,
    /// A rule does not hold.
    Broken(Broken),
}

/// What a request of the objecter's is.
#[derive(Clone, Debug)]
enum Token {
    /// Asked of an object, by its number.
    Asked(u64),
    /// A step of a watch.
    Step(Attempt),
    /// A notify, by its number.
    Notify(u64),
    /// Whose outcome is of no interest: an answer to a notify, the end of a watch.
    Silent,
}

/// A notify without an answer.
#[derive(Clone, Debug)]
struct Notifying {
    object: ObjectId,
    asked: Nanos,
}

/// A request without an answer.
#[derive(Clone, Debug)]
struct Asked {
    object: ObjectId,
    action: Action,
    entry: EntryId,
}

/// What lies beyond the objecter.
struct Outside<'a> {
    out: &'a mut Vec<ClientOut>,
    done: &'a mut Vec<(Token, Result<Answer, Error>)>,
    random: &'a mut Random,
    connections: &'a mut Connections,
}

/// Connections to OSDs, by numbers of which no two of the client's are equal.
#[derive(Default)]
struct Connections {
    open: BTreeMap<OsdId, u64>,
    last: u64,
}

impl Connections {
    fn to(&mut self, osd: OsdId) -> u64 {
        *self.open.entry(osd).or_insert_with(|| {
            self.last += 1;
            self.last
        })
    }
}

impl Sink<Token> for Outside<'_> {
    fn send(&mut self, osd: OsdId, _: SocketAddr, request: &OsdRequest) -> Sent {
        if self.random.range(0, FULL_QUEUE) == 0 {
            return Sent::Full;
        }
        match Encoded::new(request).decode() {
            Ok(request) => self.out.push(ClientOut::Send(osd, self.connections.to(osd), Box::new(request))),
            Err(error) => {
                let detail = error.to_string();
                self.out.push(ClientOut::Broken(Broken { rule: "a request that can't be decoded", detail }));
            }
        }
        Sent::Queued
    }

    fn close(&mut self, osd: OsdId) {
        if let Some(conn) = self.connections.open.remove(&osd) {
            self.out.push(ClientOut::Close(osd, conn));
        }
    }

    fn complete(&mut self, token: Token, result: Result<Answer, Error>) {
        self.done.push((token, result));
    }
}

/// A client.
pub struct Client {
    /// Its place in the network.
    pub node: Node,
    objecter: Objecter<Token>,
    connections: Connections,
    /// Watches, with their objects and timeouts.
    watches: Watches<(ObjectId, Nanos)>,
    notifying: BTreeMap<u64, Notifying>,
    /// Cookies of watches that were registered and not ended.
    cookies: Vec<u64>,
    /// Full queues and deadlines, watches and notifies.
    random: Random,
    last_number: u64,
    asked: BTreeMap<u64, Asked>,
    done: Vec<(Token, Result<Answer, Error>)>,
    /// Answers of writes by their tids, to compare later answers of the same request with.
    answers: BTreeMap<u64, (i32, u64)>,
    /// The last mark that it saw of each object.
    marks: BTreeMap<ObjectId, Mark>,
    /// Objects that could not be read when it last changed them: it does not change them until they can be.
    unreadable: BTreeSet<ObjectId>,
    /// When it was last said that it has something to do.
    wake: Option<Nanos>,
}

/// A client's clock, in milliseconds, which is never 0.
fn millis(now: Nanos) -> u64 {
    now / MILLI + 1
}

impl Client {
    /// A client without a map.
    pub fn new(node: Node, session: ClientId, random: Random) -> Client {
        Client {
            node,
            objecter: Objecter::new(session),
            connections: Connections::default(),
            watches: Watches::default(),
            notifying: BTreeMap::new(),
            cookies: Vec::new(),
            random,
            last_number: 0,
            asked: BTreeMap::new(),
            done: Vec::new(),
            answers: BTreeMap::new(),
            marks: BTreeMap::new(),
            unreadable: BTreeSet::new(),
            wake: None,
        }
    }

    /// Lets the objecter take a step, and takes in what that completed.
    fn step(
        &mut self,
        now: Nanos,
        history: &mut History,
        out: &mut Vec<ClientOut>,
        step: impl FnOnce(&mut Objecter<Token>, &mut Outside<'_>),
    ) {
        let Client { done, random, connections, .. } = self;
        let mut outside = Outside { out, done, random, connections };
        step(&mut self.objecter, &mut outside);
        // What is done may submit more, which may be done at once.
        while !self.done.is_empty() {
            for (token, result) in std::mem::take(&mut self.done) {
                let taken = match token {
                    Token::Asked(number) => self.on_done(now, history, number, result, out),
                    Token::Step(attempt) => self.on_step(now, history, attempt, &result, out),
                    Token::Notify(number) => self.on_notified(now, history, number, result),
                    Token::Silent => Ok(()),
                };
                if let Err(broken) = taken {
                    out.push(ClientOut::Broken(broken));
                }
            }
        }
    }

    /// Submits an operation of a watcher's or notifier's.
    fn submit(&mut self, now: Nanos, (object, op): (ObjectId, Op), token: Token, out: &mut Vec<ClientOut>) {
        let submission = Submission {
            object,
            ops: vec![OsdOp::from(op)],
            flags: 0,
            snap: SNAP_HEAD,
            snap_context: None,
            mtime_ns: now,
            deadline_ms: None,
        };
        let Client { done, random, connections, .. } = self;
        let mut outside = Outside { out, done, random, connections };
        self.objecter.submit(submission, token, millis(now), &mut outside);
    }

    /// Carries out what the machine of the watches wants.
    fn carry_out(
        &mut self,
        now: Nanos,
        history: &mut History,
        effects: Vec<Effect<(ObjectId, Nanos)>>,
        out: &mut Vec<ClientOut>,
    ) -> Result<(), Broken> {
        for effect in effects {
            match effect {
                Effect::Send { attempt, object, op, .. } => {
                    self.submit(now, (object, op), Token::Step(attempt), out);
                }
                Effect::Lost { cookie, watcher: (object, _), error } => {
                    let pool_is_gone = self.map().is_none_or(|map| !map.pools.contains_key(&object.pool()));
                    let excused = pool_is_gone || error.errno() != Errno::ENOTCONN;
                    history.watching.lost((self.objecter.client(), cookie), now, excused)?;
                    self.end_watch(now, history, cookie, out);
                }
            }
        }
        Ok(())
    }

    /// A watch ends, by its client's will or because it is lost.
    fn end_watch(&mut self, now: Nanos, history: &mut History, cookie: u64, out: &mut Vec<ClientOut>) {
        history.watching.ended((self.objecter.client(), cookie));
        self.cookies.retain(|own| *own != cookie);
        if let Some((object, _)) = self.watches.remove(cookie) {
            self.submit(now, (object, Op::Unwatch { cookie }), Token::Silent, out);
        }
    }

    fn on_step(
        &mut self,
        now: Nanos,
        history: &mut History,
        attempt: Attempt,
        result: &Result<Answer, Error>,
        out: &mut Vec<ClientOut>,
    ) -> Result<(), Broken> {
        let Attempt { cookie, step, sent_ms, .. } = attempt;
        let (id, sent) = ((self.objecter.client(), cookie), (sent_ms - 1) * MILLI);
        let watcher = self.watches.watcher(cookie).cloned();
        let stands = self.watches.age_ms(cookie, millis(now)).is_ok();
        if let (Ok(answer), Some((object, timeout))) = (result, watcher)
            && answer.reply.result >= 0
            && stands
        {
            match step {
                Step::Register => history.watching.registered(id, object, timeout, (sent, now)),
                _ => history.watching.confirmed(id, sent)?,
            }
        }
        let map = self.map().cloned();
        let effects = self.watches.on_step(attempt, result, map.as_deref(), millis(now));
        if self.watches.watcher(cookie).is_none() {
            self.cookies.retain(|own| *own != cookie);
        }
        self.carry_out(now, history, effects, out)
    }

    fn on_notified(
        &mut self,
        now: Nanos,
        history: &mut History,
        number: u64,
        result: Result<Answer, Error>,
    ) -> Result<(), Broken> {
        let Some(Notifying { object, asked }) = self.notifying.remove(&number) else {
            let detail = format!("notify {}:{number}", self.node);
            return Err(Broken { rule: "a request is answered twice", detail });
        };
        let Ok(answer) = result else { return Ok(()) };
        let timed_out = answer.reply.result == Errno::ETIMEDOUT.negated();
        let output = answer.reply.ops.first().map(|part| part.output.clone()).unwrap_or_default();
        let Some((id, _)) = output.split_first_chunk().filter(|_| timed_out || answer.reply.result >= 0)
        else {
            return Ok(());
        };
        let malformed = |detail: String| Broken { rule: "malformed reply", detail };
        let reply = NotifyReply::decode(u64::from_le_bytes(*id), &output.slice(8..))
            .map_err(|error| malformed(error.to_string()))?;
        if timed_out == reply.missed.is_empty() {
            return Err(malformed(format!("notify {number}: {reply:?} with {}", answer.reply.result)));
        }
        history.watching.notified(&object, (asked, now), &reply)
    }

    /// Watches, notifies, or ends a watch of an object, as it falls out.
    pub fn attend(&mut self, now: Nanos, history: &mut History, object: ObjectId, out: &mut Vec<ClientOut>) {
        let ensured = history.objects().any(|(known, _)| *known == object);
        if !ensured {
            return self.ask(now, history, (object, Action::Ensure), true, out);
        }
        match self.random.range(0, 10) {
            0..4 if self.cookies.len() < 3 => {
                let timeout_s = self.random.range(4, 15);
                let watcher = (object.clone(), timeout_s * SECOND);
                let (cookie, effect) =
                    self.watches.register(object, 0, timeout_s as u32, watcher, millis(now));
                self.cookies.push(cookie);
                self.apply(now, history, out, |_, _| vec![effect]);
            }
            0..8 if self.notifying.len() < 4 => {
                self.last_number += 1;
                let number = self.last_number;
                self.notifying.insert(number, Notifying { object: object.clone(), asked: now });
                let payload = Bytes::copy_from_slice(&number.to_le_bytes());
                let timeout_s = self.random.range(2, 7) as u32;
                let op = Op::Notify { timeout_s, payload };
                self.submit(now, (object, op), Token::Notify(number), out);
            }
            8 => {
                if let Some(cookie) = self.cookies.first().copied() {
                    self.end_watch(now, history, cookie, out);
                }
            }
            _ => {}
        }
        self.step(now, history, out, |_, _| {});
    }

    /// Lets the machine of the watches take a step.
    fn apply(
        &mut self,
        now: Nanos,
        history: &mut History,
        out: &mut Vec<ClientOut>,
        step: impl FnOnce(&mut Watches<(ObjectId, Nanos)>, u64) -> Vec<Effect<(ObjectId, Nanos)>>,
    ) {
        let effects = step(&mut self.watches, millis(now));
        if let Err(broken) = self.carry_out(now, history, effects, out) {
            out.push(ClientOut::Broken(broken));
        }
        self.step(now, history, out, |_, _| {});
    }

    /// An OSD tells of a notify. Most are answered.
    pub fn on_notify(
        &mut self,
        now: Nanos,
        history: &mut History,
        (osd, conn): (OsdId, u64),
        message: &WatchNotify,
        out: &mut Vec<ClientOut>,
    ) {
        let WatchNotify { cookie, notify_id, .. } = *message;
        let watcher = self.watches.watcher(cookie).cloned();
        let Some((object, _)) = watcher.filter(|_| self.connection(osd) == Some(conn)) else { return };
        if self.random.range(0, 8) > 0 {
            let payload = Bytes::copy_from_slice(
                &[message.payload.clone(), cookie.to_le_bytes().to_vec().into()].concat(),
            );
            history.watching.acked(notify_id, (self.objecter.client(), cookie), payload.clone());
            self.submit(now, (object, Op::NotifyAck { notify_id, cookie, payload }), Token::Silent, out);
        }
        self.step(now, history, out, |_, _| {});
    }

    /// An OSD tells that a watch has lapsed.
    pub fn on_watch_lost(
        &mut self,
        now: Nanos,
        history: &mut History,
        (osd, conn): (OsdId, u64),
        message: WatchLost,
        out: &mut Vec<ClientOut>,
    ) {
        if self.connection(osd) == Some(conn) {
            self.apply(now, history, out, |watches, _| watches.on_lost(message.cookie).into_iter().collect());
        }
    }

    /// Its map.
    pub fn map(&self) -> Option<&Arc<OsdMap>> {
        self.objecter.map()
    }

    /// Requests without an answer.
    pub fn outstanding(&self) -> usize {
        self.asked.len()
    }

    /// One line per request without an answer, for reports; those on PGs that are lost are left out.
    pub fn describe_pending(&self, lost: &BTreeSet<PgId>) -> Vec<String> {
        let hopeless = |object: &ObjectId| {
            let pool = self.map().and_then(|map| map.pools.get(&object.pool()));
            pool.is_some_and(|pool| lost.contains(&pool.pg_of(object)))
        };
        let asked = self.asked.iter().filter(|(_, asked)| !hopeless(&asked.object));
        let asked = asked
            .map(|(number, asked)| format!("{}:{number} {:?} on {}", self.node, asked.action, asked.object));
        let notifies = self.notifying.iter().filter(|(_, notifying)| !hopeless(&notifying.object));
        let notifies = notifies.map(|(number, notifying)| format!("{}:{number} {notifying:?}", self.node));
        let mut lines: Vec<String> = asked.chain(notifies).collect();
        if !lines.is_empty() {
            lines
                .extend(self.objecter.describe().iter().map(|request| format!("{}: {request:?}", self.node)));
        }
        lines
    }

    /// The mark that it last saw of an object.
    pub fn mark(&self, object: &ObjectId) -> Mark {
        self.marks.get(object).copied().unwrap_or(0)
    }

    /// A token that nobody else writes.
    pub fn next_token(&self) -> Mark {
        let Node::Client(number) = self.node else { unreachable!("invariant: clients are client nodes") };
        (u64::from(number) + 1) << 32 | (self.last_number + 1)
    }

    /// Asks something of an object.
    pub fn ask(
        &mut self,
        now: Nanos,
        history: &mut History,
        (object, action): (ObjectId, Action),
        patient: bool,
        out: &mut Vec<ClientOut>,
    ) {
        let waits = self.unreadable.contains(&object) && action != Action::Remove;
        let action = if waits { Action::Read } else { action };
        self.last_number += 1;
        let number = self.last_number;
        let entry = history.begin(now, self.node, number, &object, action);
        let impatient = !patient && self.random.range(0, IMPATIENT) == 0;
        let deadline_ms = impatient.then(|| millis(now) + self.random.range(1, 5_000));
        let submission = Submission {
            object: object.clone(),
            ops: ops(action),
            flags: 0,
            snap: SNAP_HEAD,
            snap_context: None,
            mtime_ns: now,
            deadline_ms,
        };
        self.asked.insert(number, Asked { object, action, entry });
        self.step(now, history, out, |objecter, sink| {
            objecter.submit(submission, Token::Asked(number), millis(now), sink)
        });
    }

    /// The map authority publishes maps.
    pub fn on_map(
        &mut self,
        now: Nanos,
        history: &mut History,
        publish: &MapPublish,
        out: &mut Vec<ClientOut>,
    ) {
        let have = self.map().cloned();
        match newest_map(have.as_ref(), publish) {
            Ok(Some(map)) => {
                let known = map.clone();
                self.step(now, history, out, |objecter, sink| {
                    objecter.on_map(known, WALL + now, millis(now), sink);
                });
                self.apply(now, history, out, |watches, now_ms| watches.on_map(&map, now_ms));
            }
            Ok(None) => {}
            Err(_) => out.push(ClientOut::NeedsMap),
        }
    }

    /// Its session.
    pub fn session(&self) -> ClientId {
        self.objecter.client()
    }

    /// The connection to an OSD, if there is one.
    pub fn connection(&self, osd: OsdId) -> Option<u64> {
        self.connections.open.get(&osd).copied()
    }

    /// A connection to an OSD broke.
    pub fn on_reset(
        &mut self,
        now: Nanos,
        history: &mut History,
        (osd, conn): (OsdId, u64),
        out: &mut Vec<ClientOut>,
    ) {
        if self.connection(osd) == Some(conn) {
            self.connections.open.remove(&osd);
            self.objecter.on_reset(osd, millis(now));
            self.apply(now, history, out, |watches, now_ms| watches.on_reset(osd, now_ms));
        }
    }

    /// The OSD wants the client to have a newer map first.
    pub fn on_backoff(&mut self, now: Nanos, (osd, conn): (OsdId, u64), backoff: OsdBackoff) {
        if self.connection(osd) == Some(conn) {
            self.objecter.on_backoff(backoff, millis(now));
        }
    }

    /// An answer came. One that comes by a connection that is over is looked at, but the objecter never sees it.
    pub fn on_reply(
        &mut self,
        now: Nanos,
        history: &mut History,
        (osd, conn): (OsdId, u64),
        reply: OsdReply,
        out: &mut Vec<ClientOut>,
    ) {
        if reply.reqid.client == self.objecter.client()
            && let Err(broken) = self.compare_with_earlier(&reply)
        {
            return out.push(ClientOut::Broken(broken));
        }
        if self.connection(osd) == Some(conn) {
            self.step(now, history, out, |objecter, sink| objecter.on_reply(reply, sink));
        }
    }

    fn on_done(
        &mut self,
        now: Nanos,
        history: &mut History,
        number: u64,
        result: Result<Answer, Error>,
        out: &mut Vec<ClientOut>,
    ) -> Result<(), Broken> {
        let Some(Asked { object, action, entry }) = self.asked.remove(&number) else {
            return Err(Broken {
                rule: "a request is answered twice",
                detail: format!("{}:{number}", self.node),
            });
        };
        let reply = match result {
            Ok(answer) => answer.reply,
            // Its outcome is unknown.
            Err(Error::TimedOut(_) | Error::NoSuchPool(_)) => return Ok(()),
            Err(error) => {
                let detail = format!("{}:{number} {action:?} on {object}: {error}", self.node);
                return Err(Broken { rule: "a request failed", detail });
            }
        };
        if reply.result == Errno::EIO.negated() && action.is_write() {
            // It may have taken effect on a member that has the object, which others lack so far.
            self.unreadable.insert(object);
            return Ok(());
        }
        let (outcome, version) = outcome(action, &reply)
            .map_err(|detail| Broken { rule: "malformed reply", detail: format!("{detail}: {reply:?}") })?;
        if let Outcome::Saw(Some(value)) = &outcome {
            self.marks.insert(object.clone(), value.mark);
        }
        if outcome == Outcome::Unknown {
            out.push(ClientOut::Expired);
            return Ok(());
        }
        if outcome != Outcome::Refused {
            self.unreadable.remove(&object);
        }
        history.finish(now, &entry, outcome, version)?;
        if action.is_write() {
            self.answers.insert(reply.reqid.tid, (reply.result, reply.user_version));
        }
        Ok(())
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

    /// Time passed: what had to wait is sent, what waited for too long fails.
    pub fn on_time(&mut self, now: Nanos, history: &mut History, out: &mut Vec<ClientOut>) {
        self.wake = self.wake.filter(|wake| *wake > now);
        self.step(now, history, out, |objecter, sink| objecter.on_tick(millis(now), sink));
        self.apply(now, history, out, |watches, now_ms| watches.on_tick(now_ms, false));
    }

    /// When [`Client::on_time`] has something to do, where that is sooner than what was said before.
    pub fn sooner_wake(&mut self, now: Nanos) -> Option<Nanos> {
        let next = self.objecter.next_wake_ms().into_iter().chain(self.watches.next_wake_ms()).min()?;
        // The clock shows `next` from then on.
        let at = ((next - 1) * MILLI).max(now);
        if self.wake.is_some_and(|wake| wake <= at) {
            return None;
        }
        self.wake = Some(at);
        Some(at)
    }

    /// Goes on under a new session: what has no answer fails.
    pub fn new_session(
        &mut self,
        now: Nanos,
        history: &mut History,
        session: ClientId,
        out: &mut Vec<ClientOut>,
    ) {
        self.answers.clear();
        for cookie in std::mem::take(&mut self.cookies) {
            history.watching.ended((self.objecter.client(), cookie));
        }
        self.watches.clear();
        self.step(now, history, out, |objecter, sink| {
            objecter.set_client(session, sink);
        });
    }
}

fn token_bytes(token: Mark) -> Bytes {
    Bytes::copy_from_slice(&token.to_le_bytes())
}

/// The mark's stored form: nothing where there is none.
fn mark_bytes(mark: Mark) -> Bytes {
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
            bytes.try_into().map(Mark::from_le_bytes).map_err(|_| format!("a mark of {} bytes", bytes.len()))
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
        words.map(|w| Mark::from_le_bytes(w.try_into().expect("invariant: chunks of eight"))).collect();
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
    use nacre_types::{Epoch, Interval, PoolId, ReqId};

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
