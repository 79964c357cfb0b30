//! A client of the cluster: the objecter of production, and its requests.
//!
//! Clients change and read objects ([`requests`]), watch and notify ([`watches`]), and list pools. The session by which an
//! OSD reads the sources of copies is a client too ([`reading`]).
//!
//! [`Objecter`] decides where requests are sent, when they are sent again and when they fail (rule R6). Requests and answers
//! are recorded in the [`History`]. A request ends with its answer, with its pool, with its session, or with its client; some
//! requests have a deadline, after which the caller gives up. The caller handles the network and time.

pub mod batches;
mod processes;
mod reading;
pub mod requests;
mod watches;

use crate::bounds::{Bound, BoundCounts};
use crate::history::listing::Listing;
use crate::history::{
    Action, Asker, EntryId, GuaranteeViolation, History, MapVersion, Outcome, Source, Token as Mark, Value,
    is_copy_target,
};
use crate::network::Node;
use crate::packet::SocketEvent;
use crate::random::Random;
use crate::schedule::{MILLI, Nanos, SECOND};
use crate::sessions::{Delivery, Event, MonLink, SessionOutput, SessionSettings, Sessions, Waits};
use batches::BatchListing;
use nacre_common::error::Error as SendError;
use nacre_engine::Error;
use nacre_exec::{CopiedObject, Limits};
use nacre_objecter::{Answer, Objecter, SendOutcome, Sink, Submission, WatchAttempt, Watches, apply_publish};
use nacre_session::Policy;
use nacre_shard::copy::CopyReader;
use nacre_types::encoding::DecodeError;
use nacre_types::errno::Errno;
use nacre_types::msg::{
    EncodedMessage, MapPublish, Message, MonSubscribe, OsdBackoff, OsdReply, OsdRequest, WatchLost,
    WatchNotify,
};
use nacre_types::object::SNAP_HEAD;
use nacre_types::op::{ListReply, Op, OsdOp, request_flag};
use nacre_types::osdmap::OsdMap;
use nacre_types::tier::TierSender;
use nacre_types::{ClientId, Epoch, ObjectId, OsdId, PgId, PoolId, encoding};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use watches::Notifying;

/// Waits between connection attempts to the map authority, as in the native engine.
const MON_WAITS: Waits = Waits { least: 50 * MILLI, first: 50 * MILLI, longest: 2 * SECOND };
/// One in so many requests has a deadline.
const IMPATIENT: u64 = 16;
/// One in so many requests has a flag that need not change what it does.
const FLAGGED: u64 = 6;
/// One in so many reads of an object is a copy.
const COPIED: u64 = 10;

/// Actions that a client requests, and events that it reports.
#[derive(Debug)]
pub enum ClientOutput {
    /// An action for its connections.
    Session(SessionOutput),
    /// A bound was reached.
    Reached(Bound),
    /// It continues with a new session.
    Expired,
    /// It learned that its session is over, from a request that was sent at this time (ESTALE).
    Stale(Nanos),
    /// It learned that there is no space for an object (ENOSPC), from a request that was sent at this time.
    NoSpace(ObjectId, Nanos),
    /// The source of a copy was read, or could not be.
    Copied(u64, Box<Result<CopiedObject, Errno>>),
    /// The answer to its OSD's request to another pool.
    Other(u64, Box<Result<Answer, Error>>),
    /// The outcome of a request of its process, by the request's number.
    Answered(u64, Box<Result<Answer, Error>>),
    /// A rule was broken.
    Broken(GuaranteeViolation),
}

/// The purpose of a request of the objecter.
#[derive(Clone, Debug)]
enum Token {
    /// A request on an object, by its number.
    Asked(u64),
    /// A step of a watch.
    Step(WatchAttempt),
    /// A notify, by its number.
    Notify(u64),
    /// A page of the listing.
    Page,
    /// A page of the listing of an omap.
    Batches,
    /// A piece of a copy, by its number.
    Piece(u64),
    /// A request of its OSD, by its number.
    Other(u64),
    /// A request of its process, by its number.
    Process(u64),
    /// A request whose outcome is ignored: an answer to a notify, the end of a watch.
    Silent,
}

/// A request without an answer.
#[derive(Clone, Debug)]
struct Asked {
    object: ObjectId,
    action: Action,
    entry: EntryId,
    /// Sent at the end of the run, after which no requests follow.
    patient: bool,
}

/// The client's interfaces outside the objecter.
struct Outside<'a> {
    now: Nanos,
    done: &'a mut Vec<(Token, Result<Answer, Error>)>,
    connections: &'a mut Connections,
}

/// Connections to OSDs.
struct Connections {
    open: BTreeMap<OsdId, u64>,
    /// The client that opens them.
    client: ClientId,
    sessions: Sessions,
}

impl Sink<Token> for Outside<'_> {
    fn send(&mut self, osd: OsdId, _: SocketAddr, request: &OsdRequest) -> SendOutcome {
        let Connections { open, client, sessions } = &mut *self.connections;
        let conn = *open.entry(osd).or_insert_with(|| {
            sessions.connect(self.now, (Node::Osd(osd.0), Policy::Lossy), 0, Some(*client))
        });
        match sessions.send(conn, EncodedMessage::new(request)) {
            // If a connection is over, its reset is reported.
            Ok(()) | Err(SendError::Closed) => SendOutcome::Queued,
            Err(_) => SendOutcome::Full,
        }
    }

    fn close(&mut self, osd: OsdId) {
        if let Some(conn) = self.connections.open.remove(&osd) {
            self.connections.sessions.forget(conn);
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
    mon: MonLink,
    /// Watches, with their objects and timeouts.
    watches: Watches<(ObjectId, Nanos)>,
    notifying: BTreeMap<u64, Notifying>,
    /// Cookies of watches that were registered and have not ended.
    cookies: Vec<u64>,
    /// Full queues and deadlines, watches and notifies.
    random: Random,
    last_number: u64,
    asked: BTreeMap<u64, Asked>,
    done: Vec<(Token, Result<Answer, Error>)>,
    /// Answers to writes by their tids, for comparison with later answers to the same request.
    answers: BTreeMap<u64, (i32, u64)>,
    /// The last value that it read of each object, with the version.
    seen: BTreeMap<ObjectId, (u64, Value)>,
    /// The current listing.
    listing: Option<Listing>,
    /// The current listing of an omap.
    batches: Option<BatchListing>,
    /// Bytes of the data of a token.
    token_bytes: usize,
    /// Sources that are being read for copies.
    reading: BTreeMap<u64, (CopyReader, Option<Box<TierSender>>)>,
    /// Objects that were unreadable at the last change; it does not change them until they are readable.
    unreadable: BTreeSet<ObjectId>,
    /// The last reported wake-up time.
    wake: Option<Nanos>,
}

/// A client's clock, in milliseconds, which is never 0.
fn millis(now: Nanos) -> u64 {
    now / MILLI + 1
}

impl Client {
    /// A client without a map; `nonce` identifies its process.
    pub fn new(
        node: Node,
        session: ClientId,
        nonce: u64,
        settings: SessionSettings,
        random: Random,
    ) -> Client {
        let sessions = Sessions::new(settings, nonce, 1);
        Client {
            node,
            objecter: Objecter::new(session),
            connections: Connections { open: BTreeMap::new(), client: session, sessions },
            mon: MonLink::new(MON_WAITS, SECOND),
            watches: Watches::default(),
            notifying: BTreeMap::new(),
            cookies: Vec::new(),
            random,
            last_number: 0,
            asked: BTreeMap::new(),
            done: Vec::new(),
            answers: BTreeMap::new(),
            seen: BTreeMap::new(),
            listing: None,
            batches: None,
            token_bytes: requests::TOKEN_BYTES,
            reading: BTreeMap::new(),
            unreadable: BTreeSet::new(),
            wake: None,
        }
    }

    /// Sets the number of bytes of data for each token.
    pub fn with_token_bytes(self, token_bytes: usize) -> Client {
        Client { token_bytes, ..self }
    }

    /// Runs a step of the objecter, and handles the requests that it completed.
    fn step(
        &mut self,
        now: Nanos,
        history: &mut History,
        out: &mut Vec<ClientOutput>,
        step: impl FnOnce(&mut Objecter<Token>, &mut Outside<'_>),
    ) {
        let Client { done, connections, .. } = self;
        let mut outside = Outside { now, done, connections };
        step(&mut self.objecter, &mut outside);
        // Handling an answer may submit further requests, which may complete at once.
        while !self.done.is_empty() {
            for (token, result) in std::mem::take(&mut self.done) {
                let taken = match token {
                    Token::Asked(number) => self.on_done(now, history, number, result, out),
                    Token::Step(attempt) => self.on_step(now, history, attempt, &result),
                    Token::Notify(number) => self.on_notified(now, history, number, result),
                    Token::Page => self.on_page(now, history, result, out),
                    Token::Batches => self.on_batches(now, history, result, out),
                    Token::Piece(number) => {
                        self.on_piece(now, number, result, out);
                        Ok(())
                    }
                    Token::Other(number) => {
                        out.push(ClientOutput::Other(number, Box::new(result)));
                        Ok(())
                    }
                    Token::Process(number) => {
                        out.push(ClientOutput::Answered(number, Box::new(result)));
                        Ok(())
                    }
                    Token::Silent => Ok(()),
                };
                if let Err(broken) = taken {
                    out.push(ClientOutput::Broken(broken));
                }
            }
        }
    }

    /// Submits an operation that is not on an object of the history.
    fn submit(&mut self, now: Nanos, (object, ops): (ObjectId, Vec<Op>), token: Token) {
        let ops = ops.into_iter().map(OsdOp::from).collect();
        let submission = submission(now, object, ops, 0, None);
        let Client { done, connections, .. } = self;
        let mut outside = Outside { now, done, connections };
        self.objecter.submit(submission, token, millis(now), &mut outside);
    }

    /// Its map.
    pub fn map(&self) -> Option<&Arc<OsdMap>> {
        self.objecter.map()
    }

    /// Requests without an answer.
    pub fn outstanding(&self) -> usize {
        self.asked.len()
    }

    /// Whether requests on the object can't be answered because its PG is lost.
    fn is_lost(&self, lost: &BTreeSet<PgId>, object: &ObjectId) -> bool {
        let pool = self.map().and_then(|map| map.pools.get(&object.pool()));
        pool.is_some_and(|pool| lost.contains(&pool.pg_of(object)))
    }

    /// Targets of copies that wait for sources in lost PGs: requests on them wait too.
    pub fn stuck_copies(&self, lost: &BTreeSet<PgId>) -> impl Iterator<Item = ObjectId> {
        let copies = self.asked.values().filter(|asked| match &asked.action {
            Action::Copy(source) => self.is_lost(lost, &source.object),
            _ => false,
        });
        copies.map(|asked| asked.object.clone())
    }

    /// One line per request without an answer, for reports; without those on lost PGs and on `stuck` objects.
    pub fn describe_pending(&self, lost: &BTreeSet<PgId>, stuck: &BTreeSet<ObjectId>) -> Vec<String> {
        let hopeless = |object: &ObjectId| self.is_lost(lost, object) || stuck.contains(object);
        let asked = self.asked.iter().filter(|(_, asked)| !hopeless(&asked.object));
        let asked = asked
            .map(|(number, asked)| format!("{}:{number} {:?} on {}", self.node, asked.action, asked.object));
        let notifies = self.notifying.iter().filter(|(_, notifying)| !hopeless(&notifying.object));
        let notifies = notifies.map(|(number, notifying)| format!("{}:{number} {notifying:?}", self.node));
        let batches = self.batches.iter().filter(|listing| listing.patient);
        let batches = batches.map(|listing| format!("{}: {listing:?}", self.node));
        let mut lines: Vec<String> = asked.chain(notifies).chain(batches).collect();
        if !lines.is_empty() {
            lines
                .extend(self.objecter.describe().iter().map(|request| format!("{}: {request:?}", self.node)));
        }
        lines
    }

    /// The last value that it read of an object, with its version; version 0 if there is none.
    pub fn last_seen(&self, object: &ObjectId) -> (u64, Value) {
        self.seen.get(object).cloned().unwrap_or_default()
    }

    /// Its map's generation and epoch.
    pub fn map_version(&self) -> MapVersion {
        self.map().map_or((0, Epoch(0)), |map| (map.generation, map.epoch))
    }

    /// The client, with its session and map.
    fn asker(&self) -> Asker {
        Asker { client: self.node, session: self.session(), map: self.map_version() }
    }

    /// A token that no other client writes.
    pub fn next_token(&self) -> Mark {
        let Node::Client(number) = self.node else { unreachable!("invariant: clients are client nodes") };
        (u64::from(number) + 1) << 32 | (self.last_number + 1)
    }

    /// Sends a request on an object.
    pub fn ask(
        &mut self,
        now: Nanos,
        history: &mut History,
        (object, action): (ObjectId, Action),
        patient: bool,
        out: &mut Vec<ClientOutput>,
    ) {
        let waits = self.unreadable.contains(&object) && action != Action::Remove;
        let action = if waits { Action::Read } else { action };
        let flags = self.flags(&action);
        let ops = requests::ops(&action, self.token_bytes);
        self.last_number += 1;
        let number = self.last_number;
        let entry = history.begin(now, self.asker(), number, &object, action.clone());
        let impatient = !patient && self.random.range(0, IMPATIENT) == 0;
        let deadline_ms = impatient.then(|| millis(now) + self.random.range(1, 5_000));
        let submission = submission(now, object.clone(), ops, flags, deadline_ms);
        self.asked.insert(number, Asked { object, action, entry, patient });
        self.step(now, history, out, |objecter, sink| {
            objecter.submit(submission, Token::Asked(number), millis(now), sink)
        });
    }

    /// The flags of a request: those that it needs, and in some requests one that must have no effect.
    fn flags(&mut self, action: &Action) -> u32 {
        let harmless = match self.random.range(0, FLAGGED) {
            0 if action.is_write() => request_flag::FULL_TRY,
            0 => *self
                .random
                .pick(&[
                    request_flag::BALANCE_READS,
                    request_flag::LOCALIZE_READS,
                    request_flag::ORDER_READS_WRITES,
                ])
                .unwrap_or(&0),
            _ => 0,
        };
        requests::flags(action) | harmless
    }

    /// Starts a listing of a pool in pages of `page` names, unless a listing is running.
    pub fn list(
        &mut self,
        now: Nanos,
        history: &mut History,
        pool: PoolId,
        page: u64,
        out: &mut Vec<ClientOutput>,
    ) {
        let pg_num = self.map().and_then(|map| map.pools.get(&pool)).map(|pool| pool.pg_num);
        if let (None, Some(pg_num)) = (&self.listing, pg_num) {
            self.listing = Some(Listing::new(now, pool, pg_num, page));
            self.next_page(now);
            self.step(now, history, out, |_, _| {});
        }
    }

    /// Requests the listing's next page. Returns whether there is one.
    fn next_page(&mut self, now: Nanos) -> bool {
        let begin = |pg: PgId| ObjectId::min_at_hash(pg.pool, pg.seed);
        let Some((position, op)) = self.listing.as_ref().and_then(|listing| listing.next(begin)) else {
            return false;
        };
        self.submit(now, (position, vec![op]), Token::Page);
        true
    }

    fn on_page(
        &mut self,
        now: Nanos,
        history: &mut History,
        result: Result<Answer, Error>,
        out: &mut Vec<ClientOutput>,
    ) -> Result<(), GuaranteeViolation> {
        // The listing ends with its pool, with the session, or when it is refused.
        let answer = result.ok().filter(|answer| answer.reply.result >= 0);
        let Some(answer) = answer else {
            self.listing = None;
            return Ok(());
        };
        let page = answer.reply.ops.first().map(|part| encoding::decode::<ListReply>(&part.output));
        let Some(Ok(page)) = page else {
            return Err(GuaranteeViolation {
                rule: "malformed reply",
                detail: format!("of a listing: {:?}", answer.reply),
            });
        };
        if page.next.is_some() && page.objects.len() as u64 == Limits::default().max_pgls {
            out.push(ClientOutput::Reached(Bound::LongPage));
        }
        if let Some(listing) = &mut self.listing {
            listing.add(page)?;
        }
        if !self.next_page(now)
            && let Some(listing) = self.listing.take()
        {
            history.check_listing(now, &listing)?;
        }
        Ok(())
    }

    /// Handles maps from the map authority.
    fn on_map(
        &mut self,
        now: Nanos,
        history: &mut History,
        publish: &MapPublish,
        out: &mut Vec<ClientOutput>,
    ) {
        let have = self.map().cloned();
        match apply_publish(have.as_ref(), publish) {
            Ok(Some(map)) => {
                let known = map.clone();
                self.step(now, history, out, |objecter, sink| {
                    objecter.on_map(known, millis(now), sink);
                });
                self.apply(now, history, out, |watches, now_ms| watches.on_map(&map, now_ms));
            }
            Ok(None) => {}
            Err(_) => {
                out.push(ClientOutput::Reached(Bound::MapGap));
                self.subscribe(Epoch(0));
            }
        }
    }

    /// Subscribes to maps from an epoch on; 0 requests a full map.
    fn subscribe(&mut self, next_epoch: Epoch) {
        let wanted = MonSubscribe { next_epoch, config: true };
        // The end of the connection is reported separately.
        let _ = self.mon.send(&mut self.connections.sessions, &wanted);
    }

    /// Its session.
    pub fn session(&self) -> ClientId {
        self.objecter.client()
    }

    /// The connection to an OSD, if there is one.
    pub fn connection(&self, osd: OsdId) -> Option<u64> {
        self.connections.open.get(&osd).copied()
    }

    /// Handles an event of a socket.
    pub fn on_socket(&mut self, now: Nanos, from: Node, number: u64, event: SocketEvent) {
        self.connections.sessions.on_socket(now, from, number, event);
    }

    /// Exchanges pending work with the connections. Must be the last part of every step.
    pub fn pump_connections(&mut self, now: Nanos, history: &mut History, out: &mut Vec<ClientOutput>) {
        while let Some(event) = self.connections.sessions.next_event(now) {
            match event {
                Event::Message(delivery) => {
                    if let Err(error) = self.on_message(now, history, &delivery, out) {
                        let detail = error.to_string();
                        out.push(ClientOutput::Broken(GuaranteeViolation {
                            rule: "a message that can't be decoded",
                            detail,
                        }));
                    }
                }
                Event::Reset { id, peer: Node::Osd(osd), .. } => {
                    self.on_reset(now, history, (OsdId(osd), id), out);
                }
                Event::Connected(conn) => {
                    if self.mon.on_connected(conn) {
                        let next = self.map().map_or(Epoch(0), |map| map.epoch.next());
                        self.subscribe(next);
                    }
                }
                Event::Reset { id, .. } => {
                    self.mon.on_reset(now, id);
                }
                Event::Accepted(..) => {}
            }
        }
        self.connections.sessions.flush();
        out.extend(self.connections.sessions.take().map(ClientOutput::Session));
    }

    fn on_message(
        &mut self,
        now: Nanos,
        history: &mut History,
        delivery: &Delivery,
        out: &mut Vec<ClientOutput>,
    ) -> Result<(), DecodeError> {
        let Node::Osd(osd) = delivery.from else {
            if self.mon.is_current(delivery.id) && delivery.kind == MapPublish::KIND {
                self.on_map(now, history, &delivery.decode()?, out);
            }
            return Ok(());
        };
        let conn = (OsdId(osd), delivery.id);
        match delivery.kind {
            OsdBackoff::KIND => {
                out.push(ClientOutput::Reached(Bound::Backoff));
                self.on_backoff(now, conn, delivery.decode()?);
            }
            WatchNotify::KIND => self.on_notify(now, history, conn, &delivery.decode()?, out),
            WatchLost::KIND => {
                out.push(ClientOutput::Reached(Bound::WatchLapsed));
                self.on_watch_lost(now, history, conn, delivery.decode()?, out);
            }
            _ => {
                let reply: OsdReply = delivery.decode()?;
                out.extend(BoundCounts::of_reply(&reply).map(ClientOutput::Reached));
                self.on_reply(now, history, conn, reply, out);
            }
        }
        Ok(())
    }

    /// Handles a broken connection to an OSD.
    fn on_reset(
        &mut self,
        now: Nanos,
        history: &mut History,
        (osd, conn): (OsdId, u64),
        out: &mut Vec<ClientOutput>,
    ) {
        if self.connection(osd) == Some(conn) {
            self.connections.open.remove(&osd);
            self.objecter.on_reset(osd, millis(now));
            self.apply(now, history, out, |watches, now_ms| watches.on_reset(osd, now_ms));
        }
    }

    /// Handles a backoff: the client needs a newer map first.
    fn on_backoff(&mut self, now: Nanos, (osd, conn): (OsdId, u64), backoff: OsdBackoff) {
        if self.connection(osd) == Some(conn) {
            self.objecter.on_backoff(backoff, millis(now));
        }
    }

    /// Handles an answer.
    fn on_reply(
        &mut self,
        now: Nanos,
        history: &mut History,
        (osd, conn): (OsdId, u64),
        reply: OsdReply,
        out: &mut Vec<ClientOutput>,
    ) {
        if reply.reqid.client == self.objecter.client()
            && let Err(broken) = self.compare_with_earlier(&reply)
        {
            return out.push(ClientOutput::Broken(broken));
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
        out: &mut Vec<ClientOutput>,
    ) -> Result<(), GuaranteeViolation> {
        let Some(Asked { object, action, entry, patient }) = self.asked.remove(&number) else {
            return Err(GuaranteeViolation {
                rule: "a request is answered twice",
                detail: format!("{}:{number}", self.node),
            });
        };
        let reply = match result {
            Ok(answer) => answer.reply,
            // Its outcome is unknown.
            Err(Error::TimedOut(_) | Error::NoSuchPool(_)) => return Ok(()),
            Err(Error::Blocklisted) => {
                out.push(ClientOutput::Expired);
                return Ok(());
            }
            Err(error) => {
                let detail = format!("{}:{number} {action:?} on {object}: {error}", self.node);
                return Err(GuaranteeViolation { rule: "a request failed", detail });
            }
        };
        if reply.result == Errno::ESTALE.negated() {
            let asked = history.asked(&entry);
            out.push(ClientOutput::Stale(asked));
        }
        if reply.result == Errno::ENOSPC.negated() {
            out.push(ClientOutput::NoSpace(object.clone(), history.asked(&entry)));
        }
        if reply.result == Errno::EIO.negated() && action.is_write() {
            // It may have taken effect on a member that has the object, while others still lack it.
            self.unreadable.insert(object);
            return Ok(());
        }
        let (outcome, version) = requests::outcome(&action, &reply, self.token_bytes).map_err(|detail| {
            GuaranteeViolation { rule: "malformed reply", detail: format!("{detail}: {reply:?}") }
        })?;
        if let (Outcome::Saw(Some(value)), Some(version)) = (&outcome, version) {
            self.seen.insert(object.clone(), (version, value.clone()));
            if !patient && !is_copy_target(&object) && self.random.range(0, COPIED) == 0 {
                let source = Source { object: object.clone(), version, value: value.clone() };
                let target = format!("c{}", self.random.range(0, 2));
                let target = ObjectId::new(object.pool(), "", "", &target);
                self.ask(now, history, (target, Action::Copy(Arc::new(source))), false, out);
            }
        }
        if outcome == Outcome::Unknown {
            out.push(ClientOutput::Expired);
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

    /// Checks that two attempts of one write got the same answer (rule R6). An expired session gets ESTALE instead.
    fn compare_with_earlier(&self, reply: &OsdReply) -> Result<(), GuaranteeViolation> {
        let Some(earlier) = self.answers.get(&reply.reqid.tid) else { return Ok(()) };
        let refused = [Errno::ENOSPC, Errno::EIO, Errno::ESTALE, Errno::EBLOCKLISTED].map(Errno::negated);
        // The version in a failure is not guaranteed.
        if earlier.0 == reply.result && (reply.result < 0 || earlier.1 == reply.user_version)
            || [reply.result, earlier.0].iter().any(|r| refused.contains(r))
        {
            return Ok(());
        }
        Err(GuaranteeViolation {
            rule: "a resend was answered differently",
            detail: format!(
                "{}: first {earlier:?}, then {:?}",
                reply.reqid,
                (reply.result, reply.user_version)
            ),
        })
    }

    /// Handles the time: sends requests whose wait is over, and fails those that waited for too long.
    pub fn on_time(&mut self, now: Nanos, history: &mut History, out: &mut Vec<ClientOutput>) {
        self.wake = self.wake.filter(|wake| *wake > now);
        self.connections.sessions.on_time(now);
        self.mon.connect_if_due(now, &mut self.connections.sessions);
        self.step(now, history, out, |objecter, sink| objecter.on_tick(millis(now), sink));
        self.apply(now, history, out, |watches, now_ms| watches.on_tick(now_ms, false));
    }

    /// When [`Client::on_time`] has to run, if that is sooner than the last reported time.
    pub fn sooner_wake(&mut self, now: Nanos) -> Option<Nanos> {
        let next_ms = self.objecter.next_wake_ms().into_iter().chain(self.watches.next_wake_ms());
        // From this time on the clock shows `next`.
        let next = next_ms.map(|next| (next - 1) * MILLI);
        let next = next.chain(self.connections.sessions.next_wake()).chain(self.mon.next_wake());
        let at = next.min()?.max(now);
        if self.wake.is_some_and(|wake| wake <= at) {
            return None;
        }
        self.wake = Some(at);
        Some(at)
    }

    /// Continues with a new session; requests without an answer fail.
    pub fn restart_session(
        &mut self,
        now: Nanos,
        history: &mut History,
        session: ClientId,
        out: &mut Vec<ClientOutput>,
    ) {
        self.answers.clear();
        self.listing = None;
        self.batches = None;
        self.reading.clear();
        for cookie in std::mem::take(&mut self.cookies) {
            history.watching.ended((self.objecter.client(), cookie));
        }
        self.watches.clear();
        self.connections.client = session;
        self.step(now, history, out, |objecter, sink| {
            objecter.set_client(session, sink);
        });
    }
}

fn submission(
    now: Nanos,
    object: ObjectId,
    ops: Vec<OsdOp>,
    flags: u32,
    deadline_ms: Option<u64>,
) -> Submission {
    Submission {
        object,
        ops,
        flags,
        snap: SNAP_HEAD,
        snap_context: None,
        mtime_ns: now,
        deadline_ms,
        tier: None,
    }
}
