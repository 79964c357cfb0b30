//! The sessions and connections of a simulated process: [`nacre_session`]'s machines over simulated sockets.
//!
//! A socket carries the bytes that production writes, above TCP and encryption. A socket breaks in each direction at any
//! byte. Between OSDs a new one is made and the session resumes ([`Policy::Lossless`]); other connections, including those
//! for heartbeats, end with their socket ([`Policy::Lossy`]), and their owner connects again. The owner decides which
//! processes it has sessions and connections with.

mod connection;
mod end;
mod mon_link;
mod reading;
#[cfg(test)]
mod tests;

pub(crate) use connection::SessionConnection;
pub(crate) use mon_link::{MonLink, Waits};

use crate::network::Node;
use crate::packet::{SocketEvent, describe};
use crate::schedule::{MILLI, Nanos, SECOND};
use crate::stalls::ACTORS;
use bytes::{Bytes, BytesMut};
use end::{End, Side, Socket};
use nacre_common::error::{Error, Result};
use nacre_common::throttle::Permit;
use nacre_session::incoming::{self, Incoming, SessionAdmission, SessionStatus, SessionTable};
use nacre_session::keepalive::{Activity, Keepalive, KeepaliveAction};
use nacre_session::outgoing::{self, Backoff, Outgoing};
use nacre_session::queue::{OutFrame, SendQueue, WriteBatch, header_of};
use nacre_session::receive::{FrameLimits, FrameTooLong, FrameValidator, ReceiveState};
use nacre_session::wire::FrameHeader;
use nacre_session::{ConnectReply, ConnectRequest, EndCause, Policy, Rules, SessionOutcome, SocketLoss};
use nacre_types::encoding::DecodeError;
use nacre_types::ids::EntityName;
use nacre_types::msg::{EncodedMessage, Message};
use nacre_types::payload::{self, Payload};
use nacre_types::{ClientId, OsdId};
use reading::Throttles;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const BACKOFF: Backoff = Backoff { initial: 200 * MILLI, max: 2 * SECOND };
/// How often a socket is checked, and the silence after which it is given up: for sessions, and for the more numerous lossy connections.
const KEEPALIVE: (Nanos, Nanos) = (2 * SECOND, 6 * SECOND);
const LOSSY_KEEPALIVE: (Nanos, Nanos) = (4 * SECOND, 12 * SECOND);
/// A lossy connection that is unused for this time ends.
const IDLE_TIMEOUT: Nanos = 12 * SECOND;
/// A socket on which the peer does not answer for this time is given up.
const READY_TIMEOUT: Nanos = 3 * SECOND;

/// Settings of sessions.
#[derive(Clone, Copy, Debug)]
pub struct SessionSettings {
    /// Bytes that may wait for one process.
    pub queue_bytes: usize,
    /// The longest frames that are accepted.
    pub limits: FrameLimits,
    /// One in so many messages finds its queue full, whatever the queue contains; 0 for none.
    pub full_one_in: u64,
    /// Bytes and messages of peers that may be processed at a time.
    pub throttle: (u64, u64),
    /// The same for clients.
    pub client_throttle: (u64, u64),
    /// How long a session waits for its peer.
    pub timeout: Nanos,
    /// The rules, one of which may be broken on purpose.
    pub rules: Rules,
    /// Whether to trace sent messages.
    pub trace: bool,
}

/// Events of sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SessionTrouble {
    /// A message found the queue full.
    Full,
    /// A message waited for the throttle.
    Throttled,
    /// A socket ended in the middle of a frame.
    Torn,
    /// A socket was silent for too long.
    Silent,
    /// The peer did not answer on a socket.
    Unanswered,
    /// A peer came back to its session.
    Resumed,
    /// A session was unknown to the peer.
    Restarted,
    /// A session was ended by the next one of the peer.
    Superseded,
    /// The peer ended the session.
    PeerClosed,
    /// A peer did not come back.
    Lapsed,
    /// A lossy connection broke.
    Failed,
    /// A lossy connection was unused for long.
    Idle,
}

impl SessionTrouble {
    /// All kinds.
    pub const ALL: &[SessionTrouble] = &[
        SessionTrouble::Full,
        SessionTrouble::Throttled,
        SessionTrouble::Torn,
        SessionTrouble::Silent,
        SessionTrouble::Unanswered,
        SessionTrouble::Resumed,
        SessionTrouble::Restarted,
        SessionTrouble::Superseded,
        SessionTrouble::PeerClosed,
        SessionTrouble::Lapsed,
        SessionTrouble::Failed,
        SessionTrouble::Idle,
    ];
}

/// Identifies the messages of a session or connection in one direction: the process that connected, its number there, and
/// whether they come from there.
pub type StreamId = (u64, u64, bool);

/// Identifies a message within a session: sequence number, kind, checksums.
pub type MessageKey = (u64, u16, u32, u32);

/// A received message.
pub(crate) struct Delivery {
    /// The session or connection.
    pub(crate) id: u64,
    /// The sender.
    pub(crate) from: Node,
    /// The actor whose thread received it.
    pub(crate) lane: usize,
    /// Its number on the wire.
    pub(crate) kind: u16,
    meta: Bytes,
    data: Payload,
    /// Its share of the throttle.
    pub(crate) permit: Option<Permit>,
}

impl Delivery {
    /// Decodes the message.
    pub(crate) fn decode<M: Message>(&self) -> Result<M, DecodeError> {
        if self.kind != M::KIND {
            let detail = format!("expected kind {}, got {}", M::KIND, self.kind);
            return Err(DecodeError::Corrupt { what: M::NAME, detail });
        }
        payload::decode(M::NAME, &self.meta, self.data.clone())
    }
}

/// Events of sessions for the process.
pub(crate) enum Event {
    /// A lossy connection was accepted, of a client with this session if any.
    Accepted(u64, Option<ClientId>, Node),
    /// A connection that this side made is established, for the first time or again.
    Connected(u64),
    /// A message.
    Message(Delivery),
    /// The session or connection with the process is over or starts again.
    Reset {
        /// Its number.
        id: u64,
        /// The peer.
        peer: Node,
        /// Whether it ends with its socket.
        policy: Policy,
        /// The actor whose thread owned it.
        lane: usize,
        /// This side had connected, and it is over.
        is_lost: bool,
        /// The cause, as far as owners need it.
        cause: ResetCause,
    },
}

/// The cause for which a session or connection is over or starts again, as far as owners need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResetCause {
    /// No process listens where this side connected to.
    Refused,
    /// It was unused for long.
    Idle,
    /// Another cause.
    Other,
}

/// Actions that sessions request, and events that they report.
#[derive(Debug)]
pub enum SessionOutput {
    /// Send an event by a socket.
    Send(Node, u64, SocketEvent),
    /// A message was queued.
    Queued(StreamId, MessageKey),
    /// A message was delivered at the other end.
    Handled(StreamId, MessageKey),
    /// A session starts again: its queued messages are dropped.
    Restarted(StreamId),
    /// An event occurred that simulations must cover.
    Suffered(SessionTrouble),
    /// No answer came on a socket.
    GiveUp(u64),
    /// The text of a message to a node, for traces.
    Said(Node, String),
}

/// See the module's documentation.
pub(crate) struct Sessions {
    settings: SessionSettings,
    nonce: u64,
    shards: usize,
    out: Vec<SessionOutput>,
    ends: BTreeMap<u64, End>,
    sockets: BTreeMap<u64, u64>,
    table: SessionTable<u64, ()>,
    throttles: Throttles,
    accepted: usize,
    sent: u64,
    next_end: u64,
    next_socket: u64,
    events: VecDeque<Event>,
    /// Actors that are stalled in the middle of a turn: sessions and connections on their threads are not read, written or
    /// maintained, and control takes no messages of the map authority.
    stalled: [bool; ACTORS],
    /// Ends whose sockets may have data to read, and ends with data to write.
    readable: BTreeSet<u64>,
    writable: BTreeSet<u64>,
    /// The last result of [`Sessions::next_wake`]; `None` if that may have changed.
    wake: Option<Option<Nanos>>,
}

impl Sessions {
    /// The sessions of the process `nonce` with this many shards.
    pub(crate) fn new(settings: SessionSettings, nonce: u64, shards: usize) -> Sessions {
        Sessions {
            settings,
            nonce,
            shards,
            out: Vec::new(),
            ends: BTreeMap::new(),
            sockets: BTreeMap::new(),
            table: SessionTable::new(settings.rules),
            throttles: Throttles::new(&settings),
            accepted: 0,
            sent: 0,
            next_end: 1,
            next_socket: nonce << 24,
            events: VecDeque::new(),
            stalled: [false; ACTORS],
            readable: BTreeSet::new(),
            writable: BTreeSet::new(),
            wake: None,
        }
    }

    /// An actor's thread stalls or continues.
    pub(crate) fn set_stalled(&mut self, actor: usize, stalls: bool) {
        self.stalled[actor] = stalls;
        self.wake = None;
    }

    /// Whether the thread of an end stalls. The end to the map authority is on none of the actors' threads.
    fn waits(&self, end: &End) -> bool {
        end.peer != Node::Mon && self.stalled[end.lane]
    }

    /// Takes the requested actions and events since the last call.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = SessionOutput> {
        self.out.drain(..)
    }

    fn suffer(&mut self, trouble: SessionTrouble) {
        self.out.push(SessionOutput::Suffered(trouble));
    }

    fn say(&mut self, to: Node, socket: u64, event: SocketEvent) {
        self.out.push(SessionOutput::Send(to, socket, event));
    }

    fn socket(&self, now: Nanos, policy: Policy, number: u64, up: bool) -> Socket {
        Socket {
            number,
            up,
            deadline: now + READY_TIMEOUT,
            reader: FrameValidator::new(policy, self.settings.limits, self.settings.rules),
            keepalive: keepalive(policy, now),
            bytes: BytesMut::new(),
            pending: None,
            heard: true,
            used: true,
            throttled: false,
            ended: false,
        }
    }

    fn new_end(
        &mut self,
        (peer, policy): (Node, Policy),
        lane: usize,
        key: (u64, u64),
        client: Option<ClientId>,
        side: Side,
    ) -> u64 {
        let id = self.next_end;
        self.next_end += 1;
        let end = End {
            peer,
            policy,
            lane,
            key,
            client,
            side,
            queue: SendQueue::with_rules(self.settings.rules),
            received: ReceiveState::default(),
            socket: None,
            refused: false,
            over: Arc::default(),
        };
        self.ends.insert(id, end);
        id
    }

    /// Connects to the process, as this client if any. The thread of the actor `lane` owns the session or connection.
    pub(crate) fn connect(
        &mut self,
        now: Nanos,
        (peer, policy): (Node, Policy),
        lane: usize,
        client: Option<ClientId>,
    ) -> u64 {
        let cookie = self.next_end;
        let session = Outgoing::new(self.nonce, policy, cookie, BACKOFF);
        let side = Side::Outgoing(session);
        let id = self.new_end((peer, policy), lane, (self.nonce, cookie), client, side);
        self.turn_outgoing(now, id, outgoing::OutgoingEvent::Wake);
        id
    }

    fn turn_outgoing(&mut self, now: Nanos, id: u64, input: outgoing::OutgoingEvent) {
        self.wake = None;
        let Some(end) = self.ends.get_mut(&id) else { return };
        let Side::Outgoing(session) = &mut end.side else { return };
        let step = session.turn(now, input, &mut end.queue, &end.received);
        let End { peer, policy, lane, client, refused, .. } = *end;
        let sent_key = end.outgoing_stream();
        match step {
            outgoing::OutgoingStep::Connect(confirm) => {
                let number = self.next_socket;
                self.next_socket += 1;
                let socket = self.socket(now, policy, number, false);
                if let Some(end) = self.ends.get_mut(&id) {
                    (end.socket, end.refused) = (Some(socket), false);
                }
                self.sockets.insert(number, id);
                self.say(peer, number, SocketEvent::Connect(confirm, client));
            }
            outgoing::OutgoingStep::Run { restarted } => {
                if restarted {
                    self.suffer(SessionTrouble::Restarted);
                    self.out.push(SessionOutput::Restarted(sent_key));
                    let (is_lost, cause) = (false, ResetCause::Other);
                    self.events.push_back(Event::Reset { id, peer, policy, lane, is_lost, cause });
                }
                self.come_up(now, id);
                self.events.push_back(Event::Connected(id));
            }
            outgoing::OutgoingStep::Wait => {}
            outgoing::OutgoingStep::Over(cause) => {
                self.forget(id);
                if cause == Some(EndCause::Failed) {
                    self.suffer(SessionTrouble::Failed);
                }
                if let Some(cause) = cause {
                    let cause = match cause {
                        EndCause::Failed if refused => ResetCause::Refused,
                        EndCause::Idle => ResetCause::Idle,
                        _ => ResetCause::Other,
                    };
                    self.events.push_back(Event::Reset { id, peer, policy, lane, is_lost: true, cause });
                }
            }
        }
    }

    fn turn_incoming(&mut self, now: Nanos, id: u64, input: incoming::IncomingEvent) {
        self.wake = None;
        let Some(end) = self.ends.get_mut(&id) else { return };
        let Side::Incoming(session, confirm) = &mut end.side else { return };
        let (peer, policy, lane, cookie) = (end.peer, end.policy, end.lane, confirm.cookie);
        match session.turn(now, input, &mut end.queue, &end.received) {
            incoming::IncomingStep::Run { ready, first } => {
                let number = end.socket.as_ref().map(|socket| socket.number);
                if !first {
                    self.suffer(SessionTrouble::Resumed);
                }
                if let Some(number) = number {
                    self.say(peer, number, SocketEvent::Ready(ready));
                }
                self.come_up(now, id);
            }
            incoming::IncomingStep::Wait => {}
            incoming::IncomingStep::Over(cause) => {
                self.forget(id);
                if let Node::Osd(osd) = peer {
                    self.table.remove(&EntityName::osd(OsdId(osd)), cookie, |own| *own == id);
                }
                match cause {
                    Some(EndCause::Lapsed) => self.suffer(SessionTrouble::Lapsed),
                    Some(EndCause::PeerRestarted) => self.suffer(SessionTrouble::Superseded),
                    Some(EndCause::PeerClosed) => self.suffer(SessionTrouble::PeerClosed),
                    _ => {}
                }
                if cause.is_some() {
                    let (is_lost, cause) = (false, ResetCause::Other);
                    self.events.push_back(Event::Reset { id, peer, policy, lane, is_lost, cause });
                }
            }
        }
    }

    fn come_up(&mut self, now: Nanos, id: u64) {
        self.wake = None;
        let Some(end) = self.ends.get_mut(&id) else { return };
        if let Some(socket) = &mut end.socket {
            socket.up = true;
            socket.keepalive = keepalive(end.policy, now);
            self.writable.insert(id);
            self.readable.insert(id);
        }
    }

    /// Gives the socket up, and informs the peer unless the peer has closed it.
    fn close_socket(&mut self, id: u64) {
        self.wake = None;
        let Some(end) = self.ends.get_mut(&id) else { return };
        let Some(socket) = end.socket.take() else { return };
        let peer = end.peer;
        self.sockets.remove(&socket.number);
        if !socket.ended {
            self.say(peer, socket.number, SocketEvent::Closed);
        }
    }

    fn lose(&mut self, now: Nanos, id: u64, loss: SocketLoss) {
        self.close_socket(id);
        let Some(end) = self.ends.get(&id) else { return };
        match end.side {
            Side::Outgoing(_) => self.turn_outgoing(now, id, outgoing::OutgoingEvent::Lost(loss)),
            Side::Incoming(..) => self.turn_incoming(now, id, incoming::IncomingEvent::Lost(loss)),
            Side::Accepted => {
                let (peer, policy, lane) = (end.peer, end.policy, end.lane);
                let cause = if loss == SocketLoss::Idle { ResetCause::Idle } else { ResetCause::Other };
                self.forget(id);
                self.events.push_back(Event::Reset { id, peer, policy, lane, is_lost: false, cause });
            }
        }
    }

    /// Ends the session or connection on this side, without an event for its owner.
    pub(crate) fn forget(&mut self, id: u64) {
        self.close_socket(id);
        if let Some(end) = self.ends.remove(&id) {
            end.over.store(true, Ordering::Relaxed);
        }
    }

    /// Handles an event of a socket.
    pub(crate) fn on_socket(&mut self, now: Nanos, from: Node, number: u64, event: SocketEvent) {
        if let SocketEvent::Connect(confirm, client) = event {
            return match (confirm.policy, from) {
                (Policy::Lossless, Node::Osd(osd)) => self.admit(now, OsdId(osd), number, confirm),
                _ => self.accept(now, from, number, confirm, client),
            };
        }
        let Some(id) = self.sockets.get(&number).copied() else {
            if !matches!(event, SocketEvent::Closed | SocketEvent::Refused) {
                self.say(from, number, SocketEvent::Closed);
            }
            return;
        };
        let Some(end) = self.ends.get_mut(&id) else { return };
        let Some(socket) = &mut end.socket else { return };
        match event {
            SocketEvent::Ready(ready) => self.on_ready(now, id, ready),
            SocketEvent::Bytes(bytes) => {
                socket.heard = true;
                socket.bytes.extend_from_slice(&bytes);
                self.readable.insert(id);
            }
            SocketEvent::Closed | SocketEvent::Refused => {
                socket.ended = true;
                end.refused = matches!(event, SocketEvent::Refused);
                self.readable.insert(id);
            }
            SocketEvent::Connect(..) => {}
        }
    }

    fn on_ready(&mut self, now: Nanos, id: u64, ready: ConnectReply) {
        self.turn_outgoing(now, id, outgoing::OutgoingEvent::Ready(ready));
    }

    fn next_lane(&mut self) -> usize {
        self.accepted += 1;
        self.accepted % self.shards
    }

    /// Accepts a lossy connection.
    fn accept(
        &mut self,
        now: Nanos,
        from: Node,
        number: u64,
        confirm: ConnectRequest,
        client: Option<ClientId>,
    ) {
        let lane = self.next_lane();
        let key = (confirm.nonce, confirm.cookie);
        let id = self.new_end((from, Policy::Lossy), lane, key, None, Side::Accepted);
        let socket = self.socket(now, Policy::Lossy, number, true);
        if let Some(end) = self.ends.get_mut(&id) {
            end.socket = Some(socket);
            self.sockets.insert(number, id);
        }
        self.say(from, number, SocketEvent::Ready(ConnectReply { outcome: SessionOutcome::New, in_seq: 0 }));
        self.events.push_back(Event::Accepted(id, client, from));
        self.come_up(now, id);
    }

    /// Accepts a peer's connection for its session.
    ///
    /// Production admits a session after the end of its predecessor was handled. Here the new session's messages may be
    /// handled earlier, so that no machine can rely on that order.
    fn admit(&mut self, now: Nanos, from: OsdId, number: u64, confirm: ConnectRequest) {
        let entity = EntityName::osd(from);
        let id = loop {
            let standing = |id: &u64| {
                let end = self.ends.get(id);
                SessionStatus {
                    is_over: end.is_none(),
                    has_heard: end.is_some_and(|end| end.received.has_heard()),
                }
            };
            match self.table.admit(&entity, &(), &confirm, standing) {
                SessionAdmission::Resume(id) => break id,
                SessionAdmission::Begin => {
                    let lane = self.next_lane();
                    let side = Side::Incoming(Incoming::new(self.settings.timeout), confirm);
                    let (peer, key) = (Node::Osd(from.0), (confirm.nonce, confirm.cookie));
                    let id = self.new_end((peer, Policy::Lossless), lane, key, None, side);
                    self.table.insert(entity.clone(), (), &confirm, id);
                    break id;
                }
                SessionAdmission::Supersede(earlier) => {
                    for id in earlier {
                        self.turn_incoming(now, id, incoming::IncomingEvent::Stopped { superseded: true });
                    }
                }
            }
        };
        self.close_socket(id);
        let socket = self.socket(now, Policy::Lossless, number, false);
        if let Some(end) = self.ends.get_mut(&id) {
            end.socket = Some(socket);
            self.sockets.insert(number, id);
        }
        self.turn_incoming(now, id, incoming::IncomingEvent::Attached(confirm));
    }

    /// Writes everything that is due.
    pub(crate) fn flush(&mut self) {
        let mut batch = WriteBatch::default();
        for id in std::mem::take(&mut self.writable) {
            if self.ends.get(&id).is_some_and(|end| self.waits(end)) {
                self.writable.insert(id);
                continue;
            }
            let Some(end) = self.ends.get_mut(&id) else { continue };
            let Some(socket) = end.socket.as_mut().filter(|socket| socket.up && !socket.ended) else {
                continue;
            };
            let ack = end.received.last();
            while end.queue.take(&mut batch, end.policy == Policy::Lossless, ack) {
                end.received.mark_acked(ack);
                socket.used |= batch.frames > 0;
                let mut bytes = BytesMut::with_capacity(batch.bytes);
                batch.chunks(usize::MAX).for_each(|chunk| bytes.extend_from_slice(chunk));
                let bytes = SocketEvent::Bytes(bytes.freeze());
                self.out.push(SessionOutput::Send(end.peer, socket.number, bytes));
            }
        }
    }

    /// When [`Sessions::on_time`] has to run.
    pub(crate) fn next_wake(&mut self) -> Option<Nanos> {
        if self.wake.is_none() {
            let free = self.ends.values().filter(|end| !self.waits(end));
            self.wake = Some(free.filter_map(End::next_wake).min());
        }
        self.wake.flatten()
    }

    /// Handles the time.
    pub(crate) fn on_time(&mut self, now: Nanos) {
        self.wake = None;
        let due = |end: &End| !self.waits(end) && end.next_wake().is_some_and(|at| at <= now);
        let ids: Vec<u64> = self.ends.iter().filter(|(_, end)| due(end)).map(|(id, _)| *id).collect();
        for id in ids {
            let Some(end) = self.ends.get_mut(&id) else { continue };
            let Some(socket) = end.socket.as_mut() else {
                match end.side {
                    Side::Outgoing(_) => self.turn_outgoing(now, id, outgoing::OutgoingEvent::Wake),
                    Side::Incoming(..) => self.turn_incoming(now, id, incoming::IncomingEvent::Wake),
                    Side::Accepted => {}
                }
                continue;
            };
            if !socket.up {
                let number = socket.number;
                self.suffer(SessionTrouble::Unanswered);
                self.out.push(SessionOutput::GiveUp(number));
                self.lose(now, id, SocketLoss::Fault);
                continue;
            }
            let activity = Activity {
                heard: std::mem::take(&mut socket.heard),
                used: std::mem::take(&mut socket.used),
                throttled: socket.throttled,
                ack_due: end.policy == Policy::Lossless && end.received.is_ack_due(),
            };
            let idle_timeout = (end.policy == Policy::Lossy).then_some(IDLE_TIMEOUT);
            match socket.keepalive.turn(now, activity, idle_timeout) {
                KeepaliveAction::Silent => {
                    self.suffer(SessionTrouble::Silent);
                    self.lose(now, id, SocketLoss::Fault);
                }
                KeepaliveAction::Idle => {
                    self.suffer(SessionTrouble::Idle);
                    self.lose(now, id, SocketLoss::Idle);
                }
                KeepaliveAction::Ask { ack, keepalive } => {
                    if ack {
                        end.queue.ask_ack();
                    }
                    if keepalive {
                        end.queue.ask_keepalive(false);
                    }
                    self.writable.insert(id);
                }
            }
        }
    }

    /// The process ends in order: queued messages are written, then peers are informed.
    pub(crate) fn close(&mut self) {
        for (id, end) in &mut self.ends {
            end.queue.closing = true;
            self.writable.insert(*id);
        }
        self.flush();
    }

    /// Whether the next message is to find its queue full.
    fn is_unlucky(&mut self) -> bool {
        self.sent += 1;
        let mixed = (self.nonce ^ self.sent << 20).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        self.settings.full_one_in > 0 && mixed.is_multiple_of(self.settings.full_one_in)
    }

    /// Queues a message.
    pub(crate) fn send(&mut self, id: u64, message: EncodedMessage) -> Result<()> {
        // Messages to the map authority always find room, because they are not repeated.
        let to_mon = self.ends.get(&id).is_some_and(|end| end.peer == Node::Mon);
        let chance = !to_mon && self.is_unlucky();
        let Some(end) = self.ends.get_mut(&id) else { return Err(Error::Closed) };
        let said = self.settings.trace.then(|| describe(&message));
        let (kind, split) = (message.kind, message.split);
        let header = header_of(kind, &split.meta, &split.data, true);
        let checked = self.settings.limits.check(header.meta_len.into(), header.data_len.into());
        checked.map_err(|FrameTooLong { bytes, limit }| Error::TooBig { bytes, limit })?;
        let frame = OutFrame { header, meta: split.meta, data: split.data };
        if chance || end.queue.push(frame, self.settings.queue_bytes, usize::MAX).is_some() {
            self.suffer(SessionTrouble::Full);
            return Err(Error::Full);
        }
        self.writable.insert(id);
        if let Some(said) = said {
            self.out.push(SessionOutput::Said(end.peer, said));
        }
        self.out.push(SessionOutput::Queued(end.outgoing_stream(), key_of(&header, end.queue.last_seq())));
        Ok(())
    }
}

fn keepalive(policy: Policy, now: Nanos) -> Keepalive {
    let (interval, timeout) = if policy == Policy::Lossy { LOSSY_KEEPALIVE } else { KEEPALIVE };
    Keepalive::new(now, interval, timeout)
}

fn key_of(header: &FrameHeader, seq: u64) -> MessageKey {
    (seq, header.kind, header.meta_crc, header.data_crc)
}
