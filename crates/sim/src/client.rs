//! A client of the cluster: the objecter of production, and what it asks.
//!
//! Clients change and read objects ([`requests`]), watch and notify ([`watches`]), and list pools. The session by which an OSD
//! reads the sources of copies is a client too ([`reading`]).
//!
//! Where requests go, when they go again and when they fail is decided by [`Objecter`] (rule R6). What is asked and answered
//! goes to the [`History`]. A request ends with its answer, with its pool, with its session, or with its client; now and then
//! one has a deadline, and the caller gives up. Everything about the network and time is the caller's.

pub mod batches;
mod processes;
mod reading;
pub mod requests;
mod watches;

use crate::bounds::{Bound, Bounds};
use crate::history::{
    Action, Asker, Broken, EntryId, History, Outcome, Source, Stamp, Token as Mark, Value, is_copy,
};
use crate::listing::Listing;
use crate::network::Node;
use crate::packet::SocketEvent;
use crate::random::Random;
use crate::schedule::{MILLI, Nanos, SECOND};
use crate::sessions::{Delivery, Event, MonLink, SessionOut, SessionSettings, Sessions, Waits};
use batches::BatchListing;
use nacre_common::error::Error as SendError;
use nacre_engine::Error;
use nacre_exec::{Copied, Limits};
use nacre_objecter::{Answer, Attempt, Objecter, Sent, Sink, Submission, Watches, newest_map};
use nacre_session::Policy;
use nacre_shard::copy::CopyReader;
use nacre_types::encoding::DecodeError;
use nacre_types::errno::Errno;
use nacre_types::msg::{
    Encoded, MapPublish, Message, MonSubscribe, OsdBackoff, OsdReply, OsdRequest, WatchLost, WatchNotify,
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

/// Waits between attempts to reach the map authority, as the native engine has them.
const MON_WAITS: Waits = Waits { least: 50 * MILLI, first: 50 * MILLI, longest: 2 * SECOND };
/// One in so many requests has a deadline.
const IMPATIENT: u64 = 16;
/// One in so many requests has a flag that need not change what it does.
const FLAGGED: u64 = 6;
/// One in so many objects that are read is copied.
const COPIED: u64 = 10;

/// What a client wants done to its connections.
#[derive(Debug)]
pub enum ClientOut {
    /// What its connections want.
    Session(SessionOut),
    /// A bound was reached.
    Reached(Bound),
    /// It goes on under a new session.
    Expired,
    /// It was told that its session is over, of a request that was asked at this time (ESTALE).
    Stale(Nanos),
    /// It was told that there is no space for an object (ENOSPC), of a request that was asked at this time.
    NoSpace(ObjectId, Nanos),
    /// The source of a copy is read, or can't be.
    Copied(u64, Box<Result<Copied, Errno>>),
    /// The answer to what its OSD asked another pool.
    Other(u64, Box<Result<Answer, Error>>),
    /// The outcome of a request of its process, by the number that it was given.
    Answered(u64, Box<Result<Answer, Error>>),
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
    /// A page of the listing.
    Page,
    /// A page of the listing of an omap.
    Batches,
    /// A piece of a copy, by its number.
    Piece(u64),
    /// Asked by its OSD, by its number.
    Other(u64),
    /// Asked by its process, by its number.
    Process(u64),
    /// Whose outcome is of no interest: an answer to a notify, the end of a watch.
    Silent,
}

/// A request without an answer.
#[derive(Clone, Debug)]
struct Asked {
    object: ObjectId,
    action: Action,
    entry: EntryId,
    /// Asked at the end of the run, where nothing more comes of it.
    patient: bool,
}

/// What lies beyond the objecter.
struct Outside<'a> {
    now: Nanos,
    done: &'a mut Vec<(Token, Result<Answer, Error>)>,
    connections: &'a mut Connections,
}

/// Connections to OSDs.
struct Connections {
    open: BTreeMap<OsdId, u64>,
    /// As which client they are made.
    client: ClientId,
    sessions: Sessions,
}

impl Sink<Token> for Outside<'_> {
    fn send(&mut self, osd: OsdId, _: SocketAddr, request: &OsdRequest) -> Sent {
        let Connections { open, client, sessions } = &mut *self.connections;
        let conn = *open.entry(osd).or_insert_with(|| {
            sessions.connect(self.now, (Node::Osd(osd.0), Policy::Lossy), 0, Some(*client))
        });
        match sessions.send(conn, Encoded::new(request)) {
            // A connection that is over has its reset reported.
            Ok(()) | Err(SendError::Closed) => Sent::Queued,
            Err(_) => Sent::Full,
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
    /// Cookies of watches that were registered and not ended.
    cookies: Vec<u64>,
    /// Full queues and deadlines, watches and notifies.
    random: Random,
    last_number: u64,
    asked: BTreeMap<u64, Asked>,
    done: Vec<(Token, Result<Answer, Error>)>,
    /// Answers of writes by their tids, to compare later answers of the same request with.
    answers: BTreeMap<u64, (i32, u64)>,
    /// What it saw of each object last, with the version.
    seen: BTreeMap<ObjectId, (u64, Value)>,
    /// The listing that is under way.
    listing: Option<Listing>,
    /// The listing of an omap that is under way.
    batches: Option<BatchListing>,
    /// Bytes of the data of a token.
    token_bytes: usize,
    /// Sources that are read for copies.
    reading: BTreeMap<u64, (CopyReader, Option<Box<TierSender>>)>,
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
    /// A client without a map; `nonce` is of its process.
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

    /// The same, with so many bytes of data for each token.
    pub fn with_token_bytes(self, token_bytes: usize) -> Client {
        Client { token_bytes, ..self }
    }

    /// Lets the objecter take a step, and takes in what that completed.
    fn step(
        &mut self,
        now: Nanos,
        history: &mut History,
        out: &mut Vec<ClientOut>,
        step: impl FnOnce(&mut Objecter<Token>, &mut Outside<'_>),
    ) {
        let Client { done, connections, .. } = self;
        let mut outside = Outside { now, done, connections };
        step(&mut self.objecter, &mut outside);
        // What is done may submit more, which may be done at once.
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
                        out.push(ClientOut::Other(number, Box::new(result)));
                        Ok(())
                    }
                    Token::Process(number) => {
                        out.push(ClientOut::Answered(number, Box::new(result)));
                        Ok(())
                    }
                    Token::Silent => Ok(()),
                };
                if let Err(broken) = taken {
                    out.push(ClientOut::Broken(broken));
                }
            }
        }
    }

    /// Submits an operation other than those on objects that the history knows.
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

    /// Whether requests on the object can't be answered since its PG is lost.
    fn is_lost(&self, lost: &BTreeSet<PgId>, object: &ObjectId) -> bool {
        let pool = self.map().and_then(|map| map.pools.get(&object.pool()));
        pool.is_some_and(|pool| lost.contains(&pool.pg_of(object)))
    }

    /// Targets of copies that wait for sources in PGs that are lost: what is asked of them waits too.
    pub fn stuck_copies(&self, lost: &BTreeSet<PgId>) -> impl Iterator<Item = ObjectId> {
        let copies = self.asked.values().filter(|asked| match &asked.action {
            Action::Copy(source) => self.is_lost(lost, &source.object),
            _ => false,
        });
        copies.map(|asked| asked.object.clone())
    }

    /// One line per request without an answer, for reports; those on PGs that are lost, and on `stuck` objects, are left out.
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

    /// What it saw of an object last, and of which version that was; nothing where there was none.
    pub fn last_seen(&self, object: &ObjectId) -> (u64, Value) {
        self.seen.get(object).cloned().unwrap_or_default()
    }

    /// Its map's generation and epoch.
    pub fn stamp(&self) -> Stamp {
        self.map().map_or((0, Epoch(0)), |map| (map.generation, map.epoch))
    }

    /// Who asks, and what it knows.
    fn asker(&self) -> Asker {
        Asker { client: self.node, session: self.session(), map: self.stamp() }
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

    /// The flags of a request: those that it needs, and now and then one that must not matter.
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

    /// Lists a pool in pages of `page` names, where no listing is under way.
    pub fn list(
        &mut self,
        now: Nanos,
        history: &mut History,
        pool: PoolId,
        page: u64,
        out: &mut Vec<ClientOut>,
    ) {
        let pg_num = self.map().and_then(|map| map.pools.get(&pool)).map(|pool| pool.pg_num);
        if let (None, Some(pg_num)) = (&self.listing, pg_num) {
            self.listing = Some(Listing::new(now, pool, pg_num, page));
            self.next_page(now);
            self.step(now, history, out, |_, _| {});
        }
    }

    /// Asks for the listing's next page. Returns whether there is one.
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
        out: &mut Vec<ClientOut>,
    ) -> Result<(), Broken> {
        // It ends with its pool, with the session, and where the listing is refused.
        let answer = result.ok().filter(|answer| answer.reply.result >= 0);
        let Some(answer) = answer else {
            self.listing = None;
            return Ok(());
        };
        let page = answer.reply.ops.first().map(|part| encoding::decode::<ListReply>(&part.output));
        let Some(Ok(page)) = page else {
            return Err(Broken {
                rule: "malformed reply",
                detail: format!("of a listing: {:?}", answer.reply),
            });
        };
        if page.next.is_some() && page.objects.len() as u64 == Limits::default().max_pgls {
            out.push(ClientOut::Reached(Bound::LongPage));
        }
        if let Some(listing) = &mut self.listing {
            listing.add(page)?;
        }
        if !self.next_page(now)
            && let Some(listing) = self.listing.take()
        {
            history.listed(now, &listing)?;
        }
        Ok(())
    }

    /// The map authority publishes maps.
    fn on_map(&mut self, now: Nanos, history: &mut History, publish: &MapPublish, out: &mut Vec<ClientOut>) {
        let have = self.map().cloned();
        match newest_map(have.as_ref(), publish) {
            Ok(Some(map)) => {
                let known = map.clone();
                self.step(now, history, out, |objecter, sink| {
                    objecter.on_map(known, millis(now), sink);
                });
                self.apply(now, history, out, |watches, now_ms| watches.on_map(&map, now_ms));
            }
            Ok(None) => {}
            Err(_) => {
                out.push(ClientOut::Reached(Bound::MapGap));
                self.subscribe(Epoch(0));
            }
        }
    }

    /// Asks for maps from an epoch on; 0 for a whole one.
    fn subscribe(&mut self, next_epoch: Epoch) {
        let wanted = MonSubscribe { next_epoch, config: true };
        // The connection's end is reported on its own.
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

    /// Something came by a socket.
    pub fn on_socket(&mut self, now: Nanos, from: Node, number: u64, event: SocketEvent) {
        self.connections.sessions.on_socket(now, from, number, event);
    }

    /// Does what connections have for it, and takes what it has for them: last in every step.
    pub fn settle(&mut self, now: Nanos, history: &mut History, out: &mut Vec<ClientOut>) {
        while let Some(event) = self.connections.sessions.next_event(now) {
            match event {
                Event::Message(delivery) => {
                    if let Err(error) = self.on_message(now, history, &delivery, out) {
                        let detail = error.to_string();
                        out.push(ClientOut::Broken(Broken {
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
        out.extend(self.connections.sessions.take().map(ClientOut::Session));
    }

    fn on_message(
        &mut self,
        now: Nanos,
        history: &mut History,
        delivery: &Delivery,
        out: &mut Vec<ClientOut>,
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
                out.push(ClientOut::Reached(Bound::Backoff));
                self.on_backoff(now, conn, delivery.decode()?);
            }
            WatchNotify::KIND => self.on_notify(now, history, conn, &delivery.decode()?, out),
            WatchLost::KIND => {
                out.push(ClientOut::Reached(Bound::WatchLapsed));
                self.on_watch_lost(now, history, conn, delivery.decode()?, out);
            }
            _ => {
                let reply: OsdReply = delivery.decode()?;
                out.extend(Bounds::of_reply(&reply).map(ClientOut::Reached));
                self.on_reply(now, history, conn, reply, out);
            }
        }
        Ok(())
    }

    /// A connection to an OSD broke.
    fn on_reset(
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
    fn on_backoff(&mut self, now: Nanos, (osd, conn): (OsdId, u64), backoff: OsdBackoff) {
        if self.connection(osd) == Some(conn) {
            self.objecter.on_backoff(backoff, millis(now));
        }
    }

    /// An answer came.
    fn on_reply(
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
        let Some(Asked { object, action, entry, patient }) = self.asked.remove(&number) else {
            return Err(Broken {
                rule: "a request is answered twice",
                detail: format!("{}:{number}", self.node),
            });
        };
        let reply = match result {
            Ok(answer) => answer.reply,
            // Its outcome is unknown.
            Err(Error::TimedOut(_) | Error::NoSuchPool(_)) => return Ok(()),
            Err(Error::Blocklisted) => {
                out.push(ClientOut::Expired);
                return Ok(());
            }
            Err(error) => {
                let detail = format!("{}:{number} {action:?} on {object}: {error}", self.node);
                return Err(Broken { rule: "a request failed", detail });
            }
        };
        if reply.result == Errno::ESTALE.negated() {
            let asked = history.asked(&entry);
            out.push(ClientOut::Stale(asked));
        }
        if reply.result == Errno::ENOSPC.negated() {
            out.push(ClientOut::NoSpace(object.clone(), history.asked(&entry)));
        }
        if reply.result == Errno::EIO.negated() && action.is_write() {
            // It may have taken effect on a member that has the object, which others lack so far.
            self.unreadable.insert(object);
            return Ok(());
        }
        let (outcome, version) = requests::outcome(&action, &reply, self.token_bytes)
            .map_err(|detail| Broken { rule: "malformed reply", detail: format!("{detail}: {reply:?}") })?;
        if let (Outcome::Saw(Some(value)), Some(version)) = (&outcome, version) {
            self.seen.insert(object.clone(), (version, value.clone()));
            if !patient && !is_copy(&object) && self.random.range(0, COPIED) == 0 {
                let source = Source { object: object.clone(), version, value: value.clone() };
                let target = format!("c{}", self.random.range(0, 2));
                let target = ObjectId::new(object.pool(), "", "", &target);
                self.ask(now, history, (target, Action::Copy(Arc::new(source))), false, out);
            }
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
        self.connections.sessions.on_time(now);
        self.mon.keep(now, &mut self.connections.sessions);
        self.step(now, history, out, |objecter, sink| objecter.on_tick(millis(now), sink));
        self.apply(now, history, out, |watches, now_ms| watches.on_tick(now_ms, false));
    }

    /// When [`Client::on_time`] has something to do, where that is sooner than what was said before.
    pub fn sooner_wake(&mut self, now: Nanos) -> Option<Nanos> {
        let next_ms = self.objecter.next_wake_ms().into_iter().chain(self.watches.next_wake_ms());
        // The clock shows `next` from then on.
        let next = next_ms.map(|next| (next - 1) * MILLI);
        let next = next.chain(self.connections.sessions.next_wake()).chain(self.mon.next_wake());
        let at = next.min()?.max(now);
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
