//! The sessions of a simulated OSD process with its peers: [`nacre_session`]'s machines over simulated sockets.
//!
//! What a socket carries are the bytes that production writes, above TCP and encryption. A socket breaks in each direction at
//! any byte; a new one is made, and the session resumes. Which sessions there are decides [`nacre_shard::peers`].

use super::stalls::{Call, pass};
use super::{Out, SHARDS};
use crate::network::Node;
use crate::packet::{Packet, SocketEvent};
use crate::schedule::{MILLI, Nanos, SECOND};
use bytes::{Buf, BytesMut};
use nacre_common::conn::Connection;
use nacre_common::error::{Error, Result};
use nacre_common::throttle::{Permit, Throttle};
use nacre_pg::PgEnvelope;
use nacre_session::body::Body;
use nacre_session::incoming::{self, Admission, Incoming, Standing, Table};
use nacre_session::keepalive::{Activity, Beat, Keepalive};
use nacre_session::outgoing::{self, Backoff, Outgoing};
use nacre_session::queue::{Batch, OutFrame, Queue, header_of};
use nacre_session::receive::{Arrival, FrameLimits, Reader, Received, TooLong, memory_bytes};
use nacre_session::wire::{HEADER_BYTES, Header};
use nacre_session::{Cause, Confirm, Loss, Policy, Ready, Rules};
use nacre_types::OsdId;
use nacre_types::ids::EntityName;
use nacre_types::msg::{Encoded, Message};
use nacre_types::payload;
use parking_lot::Mutex;
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const BACKOFF: Backoff = Backoff { initial: 200 * MILLI, max: 2 * SECOND };
const KEEPALIVE_INTERVAL: Nanos = 2 * SECOND;
const KEEPALIVE_TIMEOUT: Nanos = 6 * SECOND;
/// A socket on which the peer does not answer for so long is given up.
const READY_TIMEOUT: Nanos = 3 * SECOND;

/// What sessions obey.
#[derive(Clone, Copy, Debug)]
pub struct SessionSettings {
    /// Bytes that may wait for one peer.
    pub queue_bytes: usize,
    /// The longest frames that are taken.
    pub limits: FrameLimits,
    /// One message of so many finds its queue full whatever is in it; 0 for none.
    pub full_one_in: u64,
    /// Bytes and messages of peers that may be worked on at a time.
    pub throttle: (u64, u64),
    /// A session waits so long for its peer.
    pub timeout: Nanos,
    /// A rule to break.
    pub rules: Rules,
    /// Say what is sent.
    pub trace: bool,
}

/// What befalls sessions.
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
    /// Nobody answered on a socket.
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
    ];
}

/// The session of a message: the process that connected, and its number there.
pub type SessionKey = (u64, u64);

/// What tells a session's messages apart: sequence number, kind, checksums.
pub type MessageKey = (u64, u16, u32, u32);

/// What the process hears of its sessions.
pub(super) enum Event {
    /// A message: on which shard's thread, and its share of the throttle.
    Message(OsdId, usize, Box<PgEnvelope>, Option<Permit>),
    /// The session with the peer is over or starts afresh; whether this side connected and it is over.
    Reset(OsdId, bool),
}

enum Side {
    Outgoing(Outgoing),
    Incoming(Incoming, Confirm),
}

struct Socket {
    number: u64,
    /// Frames pass; before, the peer's answer is waited for.
    up: bool,
    /// Given up then, while it is not up.
    deadline: Nanos,
    reader: Reader,
    keepalive: Keepalive,
    bytes: BytesMut,
    /// A frame whose body is not all there or waits for the throttle.
    pending: Option<(Header, Arrival, Option<Permit>)>,
    heard: bool,
    used: bool,
    throttled: bool,
    /// The peer's end is gone: nothing comes after what is in `bytes`.
    ended: bool,
}

impl Socket {
    /// The next header and what follows from it; `None` where its bytes are not there yet.
    fn read_header(
        &mut self,
        queue: &mut Queue,
        received: &Received,
    ) -> Result<Option<(Header, Arrival)>, Loss> {
        let Some(head) = self.bytes.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let header = Header::decode(head).map_err(|_| Loss::Fault)?;
        self.bytes.advance(HEADER_BYTES);
        if let Some(ack) = self.reader.new_ack(&header) {
            queue.acknowledge(ack).map_err(|_| Loss::Fault)?;
        }
        let arrival = self.reader.judge(&header, received).map_err(|_| Loss::Fault)?;
        Ok(Some((header, arrival)))
    }
}

/// One end of a session.
struct End {
    peer: OsdId,
    /// The shard on whose thread it lives.
    lane: usize,
    key: SessionKey,
    side: Side,
    queue: Queue,
    received: Received,
    socket: Option<Socket>,
    over: Arc<AtomicBool>,
}

impl End {
    fn next_wake(&self) -> Option<Nanos> {
        match (&self.socket, &self.side) {
            (Some(socket), _) if socket.up => Some(socket.keepalive.next_wake()),
            (Some(socket), _) => Some(socket.deadline),
            (None, Side::Outgoing(session)) => session.next_wake(),
            (None, Side::Incoming(session, _)) => session.next_wake(),
        }
    }
}

/// See the module's documentation.
pub(super) struct Sessions {
    settings: SessionSettings,
    nonce: u64,
    shards: usize,
    out: Arc<Mutex<Vec<Out>>>,
    ends: BTreeMap<u64, End>,
    sockets: BTreeMap<u64, u64>,
    table: Table<u64, ()>,
    throttle: Throttle,
    accepted: usize,
    sent: u64,
    next_end: u64,
    next_socket: u64,
    events: VecDeque<Event>,
    /// Shards that are in the middle of a turn: of the sessions on their threads nothing is read, written or looked after.
    stalled: [bool; SHARDS],
    /// Ends from whose sockets something may be read, and to whose sockets something is to be written.
    readable: BTreeSet<u64>,
    writable: BTreeSet<u64>,
}

impl Sessions {
    /// Of the process `nonce` with so many shards.
    pub(super) fn new(
        settings: SessionSettings,
        nonce: u64,
        shards: usize,
        out: Arc<Mutex<Vec<Out>>>,
    ) -> Sessions {
        Sessions {
            settings,
            nonce,
            shards,
            out,
            ends: BTreeMap::new(),
            sockets: BTreeMap::new(),
            table: Table::new(settings.rules),
            throttle: Throttle::new(settings.throttle.0, settings.throttle.1),
            accepted: 0,
            sent: 0,
            next_end: 1,
            next_socket: nonce << 24,
            events: VecDeque::new(),
            stalled: [false; SHARDS],
            readable: BTreeSet::new(),
            writable: BTreeSet::new(),
        }
    }

    /// A shard's thread stalls, or goes on.
    pub(super) fn set_stalled(&mut self, shard: usize, stalls: bool) {
        self.stalled[shard] = stalls;
    }

    fn tell(&self, out: Out) {
        self.out.lock().push(out);
    }

    fn suffer(&self, trouble: SessionTrouble) {
        self.tell(Out::Session(trouble));
    }

    fn say(&self, to: OsdId, socket: u64, event: SocketEvent) {
        self.tell(Out::Send(Node::Osd(to.0), Packet::Socket(socket, event)));
    }

    fn socket(&self, now: Nanos, number: u64, up: bool) -> Socket {
        Socket {
            number,
            up,
            deadline: now + READY_TIMEOUT,
            reader: Reader::new(Policy::Lossless, self.settings.limits, self.settings.rules),
            keepalive: Keepalive::new(now, KEEPALIVE_INTERVAL, KEEPALIVE_TIMEOUT),
            bytes: BytesMut::new(),
            pending: None,
            heard: true,
            used: true,
            throttled: false,
            ended: false,
        }
    }

    fn new_end(&mut self, peer: OsdId, lane: usize, key: SessionKey, side: Side) -> u64 {
        let id = self.next_end;
        self.next_end += 1;
        let end = End {
            peer,
            lane,
            key,
            side,
            queue: Queue::ruled(self.settings.rules),
            received: Received::default(),
            socket: None,
            over: Arc::default(),
        };
        self.ends.insert(id, end);
        id
    }

    /// Begins a session with the peer, which lives on the thread of the shard `lane`.
    fn connect(&mut self, now: Nanos, peer: OsdId, lane: usize) -> u64 {
        let cookie = self.next_end;
        let session = Outgoing::new(self.nonce, Policy::Lossless, cookie, BACKOFF);
        let id = self.new_end(peer, lane, (self.nonce, cookie), Side::Outgoing(session));
        self.turn_outgoing(now, id, outgoing::Input::Wake);
        id
    }

    fn turn_outgoing(&mut self, now: Nanos, id: u64, input: outgoing::Input) {
        let Some(end) = self.ends.get_mut(&id) else { return };
        let Side::Outgoing(session) = &mut end.side else { return };
        let (peer, key) = (end.peer, end.key);
        match session.turn(now, input, &mut end.queue, &end.received) {
            outgoing::Step::Connect(confirm) => {
                let number = self.next_socket;
                self.next_socket += 1;
                let socket = self.socket(now, number, false);
                if let Some(end) = self.ends.get_mut(&id) {
                    end.socket = Some(socket);
                }
                self.sockets.insert(number, id);
                self.say(peer, number, SocketEvent::Connect(confirm));
            }
            outgoing::Step::Run { restarted } => {
                if restarted {
                    self.suffer(SessionTrouble::Restarted);
                    self.tell(Out::SessionRestarted(key));
                    self.events.push_back(Event::Reset(peer, false));
                }
                self.come_up(now, id);
            }
            outgoing::Step::Wait => {}
            outgoing::Step::Over(cause) => {
                self.forget(id);
                if cause.is_some() {
                    self.events.push_back(Event::Reset(peer, true));
                }
            }
        }
    }

    fn turn_incoming(&mut self, now: Nanos, id: u64, input: incoming::Input) {
        let Some(end) = self.ends.get_mut(&id) else { return };
        let Side::Incoming(session, confirm) = &mut end.side else { return };
        let (peer, cookie) = (end.peer, confirm.cookie);
        match session.turn(now, input, &mut end.queue, &end.received) {
            incoming::Step::Run { ready, first } => {
                if !first {
                    self.out.lock().push(Out::Session(SessionTrouble::Resumed));
                }
                if let Some(socket) = &end.socket {
                    let number = socket.number;
                    self.say(peer, number, SocketEvent::Ready(ready));
                }
                self.come_up(now, id);
            }
            incoming::Step::Wait => {}
            incoming::Step::Over(cause) => {
                self.forget(id);
                self.table.remove(&EntityName::osd(peer), cookie, |own| *own == id);
                match cause {
                    Some(Cause::Lapsed) => self.suffer(SessionTrouble::Lapsed),
                    Some(Cause::PeerRestarted) => self.suffer(SessionTrouble::Superseded),
                    Some(Cause::PeerClosed) => self.suffer(SessionTrouble::PeerClosed),
                    _ => {}
                }
                if cause.is_some() {
                    self.events.push_back(Event::Reset(peer, false));
                }
            }
        }
    }

    fn come_up(&mut self, now: Nanos, id: u64) {
        if let Some(socket) = self.ends.get_mut(&id).and_then(|end| end.socket.as_mut()) {
            socket.up = true;
            socket.keepalive = Keepalive::new(now, KEEPALIVE_INTERVAL, KEEPALIVE_TIMEOUT);
            self.writable.insert(id);
            self.readable.insert(id);
        }
    }

    /// Gives the socket up; the peer is told where it has not gone itself.
    fn close_socket(&mut self, id: u64) {
        let Some(end) = self.ends.get_mut(&id) else { return };
        let Some(socket) = end.socket.take() else { return };
        let peer = end.peer;
        self.sockets.remove(&socket.number);
        if !socket.ended {
            self.say(peer, socket.number, SocketEvent::Closed);
        }
    }

    fn lose(&mut self, now: Nanos, id: u64, loss: Loss) {
        self.close_socket(id);
        match self.ends.get(&id).map(|end| &end.side) {
            Some(Side::Outgoing(_)) => self.turn_outgoing(now, id, outgoing::Input::Lost(loss)),
            Some(Side::Incoming(..)) => self.turn_incoming(now, id, incoming::Input::Lost(loss)),
            None => {}
        }
    }

    fn forget(&mut self, id: u64) {
        self.close_socket(id);
        if let Some(end) = self.ends.remove(&id) {
            end.over.store(true, Ordering::Relaxed);
        }
    }

    /// Something came by a socket.
    pub(super) fn on_socket(&mut self, now: Nanos, from: OsdId, number: u64, event: SocketEvent) {
        if let SocketEvent::Connect(confirm) = event {
            return self.accept(now, from, number, confirm);
        }
        let Some(id) = self.sockets.get(&number).copied() else {
            if !matches!(event, SocketEvent::Closed) {
                self.say(from, number, SocketEvent::Closed);
            }
            return;
        };
        let Some(socket) = self.ends.get_mut(&id).and_then(|end| end.socket.as_mut()) else { return };
        match event {
            SocketEvent::Ready(ready) => self.on_ready(now, id, ready),
            SocketEvent::Bytes(bytes) => {
                socket.heard = true;
                socket.bytes.extend_from_slice(&bytes);
                self.readable.insert(id);
            }
            SocketEvent::Closed => {
                socket.ended = true;
                self.readable.insert(id);
            }
            SocketEvent::Connect(_) => {}
        }
    }

    fn on_ready(&mut self, now: Nanos, id: u64, ready: Ready) {
        self.turn_outgoing(now, id, outgoing::Input::Ready(ready));
    }

    fn accept(&mut self, now: Nanos, from: OsdId, number: u64, confirm: Confirm) {
        let entity = EntityName::osd(from);
        let id = loop {
            let standing = |id: &u64| {
                let end = self.ends.get(id);
                Standing {
                    is_over: end.is_none(),
                    has_heard: end.is_some_and(|end| end.received.has_heard()),
                }
            };
            match self.table.admit(&entity, &(), &confirm, standing) {
                Admission::Resume(id) => break id,
                Admission::Begin => {
                    self.accepted += 1;
                    let lane = self.accepted % self.shards;
                    let session = Incoming::new(self.settings.timeout);
                    let side = Side::Incoming(session, confirm);
                    let id = self.new_end(from, lane, (confirm.nonce, confirm.cookie), side);
                    self.table.insert(entity.clone(), (), &confirm, id);
                    break id;
                }
                Admission::Supersede(earlier) => {
                    for id in earlier {
                        self.turn_incoming(now, id, incoming::Input::Stopped { superseded: true });
                    }
                }
            }
        };
        self.close_socket(id);
        let socket = self.socket(now, number, false);
        if let Some(end) = self.ends.get_mut(&id) {
            end.socket = Some(socket);
            self.sockets.insert(number, id);
        }
        self.turn_incoming(now, id, incoming::Input::Attached(confirm));
    }

    /// What the process hears next.
    pub(super) fn next_event(&mut self, now: Nanos) -> Option<Event> {
        while self.events.is_empty() {
            let id = self.readable.iter().copied().find(|id| self.is_ready(*id))?;
            match self.read(id) {
                Ok(Some(event)) => self.events.push_back(event),
                Ok(None) => {
                    if !self.ends.get(&id).and_then(|end| end.socket.as_ref()).is_some_and(|s| s.throttled) {
                        self.readable.remove(&id);
                    }
                }
                Err(loss) => {
                    self.readable.remove(&id);
                    self.lose(now, id, loss);
                }
            }
        }
        self.events.pop_front()
    }

    /// Whether reading gets on: a frame that waits for the throttle does not before there is room, and nothing does on a thread that stalls.
    fn is_ready(&self, id: u64) -> bool {
        let Some(end) = self.ends.get(&id) else { return true };
        if self.stalled[end.lane] {
            return false;
        }
        let Some(socket) = end.socket.as_ref().filter(|socket| socket.throttled) else { return true };
        let Some((header, ..)) = &socket.pending else { return true };
        self.throttle.try_take(memory_bytes(header)).is_some()
    }

    /// Reads frames up to the next message; `None` where the bytes or the throttle end.
    fn read(&mut self, id: u64) -> Result<Option<Event>, Loss> {
        let Some(end) = self.ends.get_mut(&id) else { return Ok(None) };
        let (queue, received) = (&mut end.queue, &end.received);
        let Some(socket) = end.socket.as_mut().filter(|socket| socket.up || socket.ended) else {
            return Ok(None);
        };
        let starved = |ended: bool| if ended { Err(Loss::Fault) } else { Ok(None) };
        let suffer = |trouble| self.out.lock().push(Out::Session(trouble));
        loop {
            let (header, arrival, permit) = match socket.pending.take() {
                Some(pending) => pending,
                None => match socket.read_header(queue, received)? {
                    Some((header, arrival)) => (header, arrival, None),
                    None => {
                        if socket.ended && !socket.bytes.is_empty() {
                            suffer(SessionTrouble::Torn);
                        }
                        return starved(socket.ended);
                    }
                },
            };
            match arrival {
                Arrival::Nothing => continue,
                Arrival::Keepalive => {
                    queue.ask_keepalive(true);
                    self.writable.insert(id);
                    continue;
                }
                Arrival::Close => return Err(Loss::PeerClosed),
                Arrival::Next | Arrival::Duplicate => {}
            }
            let Some(permit) = permit.or_else(|| self.throttle.try_take(memory_bytes(&header))) else {
                if !std::mem::replace(&mut socket.throttled, true) {
                    suffer(SessionTrouble::Throttled);
                }
                socket.pending = Some((header, arrival, None));
                return Ok(None);
            };
            socket.throttled = false;
            if (socket.bytes.len() as u64) < header.body_len() {
                socket.pending = Some((header, arrival, Some(permit)));
                if socket.ended {
                    suffer(SessionTrouble::Torn);
                }
                return starved(socket.ended);
            }
            let mut body = Body::new(&header);
            let taken = body.fill(&socket.bytes);
            socket.bytes.advance(taken);
            let (meta, data) = body.finish(&header).map_err(|_| Loss::Fault)?;
            if arrival == Arrival::Duplicate {
                continue;
            }
            socket.reader.handled(&header, received);
            socket.used = true;
            if socket.reader.is_ack_due(&header, received) {
                queue.ask_ack();
                self.writable.insert(id);
            }
            let (peer, lane, key) = (end.peer, end.lane, end.key);
            let mut out = self.out.lock();
            out.push(Out::Handled(key, key_of(&header, header.seq)));
            return match payload::decode::<PgEnvelope>(PgEnvelope::NAME, &meta, data) {
                Ok(envelope) if header.kind == PgEnvelope::KIND => {
                    Ok(Some(Event::Message(peer, lane, Box::new(envelope), Some(permit))))
                }
                Ok(_) => Err(Loss::Fault),
                Err(error) => {
                    out.push(Out::Broken("a message that can't be decoded", error.to_string()));
                    Err(Loss::Fault)
                }
            };
        }
    }

    /// Writes what is due.
    pub(super) fn flush(&mut self) {
        let mut batch = Batch::default();
        for id in std::mem::take(&mut self.writable) {
            let Some(end) = self.ends.get_mut(&id) else { continue };
            if self.stalled[end.lane] {
                self.writable.insert(id);
                continue;
            }
            let Some(socket) = end.socket.as_mut().filter(|socket| socket.up && !socket.ended) else {
                continue;
            };
            let ack = end.received.last();
            while end.queue.take(&mut batch, true, ack) {
                end.received.tell(ack);
                socket.used |= batch.frames > 0;
                let mut bytes = BytesMut::with_capacity(batch.bytes);
                batch.chunks(usize::MAX).for_each(|chunk| bytes.extend_from_slice(chunk));
                let packet = Packet::Socket(socket.number, SocketEvent::Bytes(bytes.freeze()));
                self.out.lock().push(Out::Send(Node::Osd(end.peer.0), packet));
            }
        }
    }

    /// When [`Sessions::on_time`] has something to do.
    pub(super) fn next_wake(&self) -> Option<Nanos> {
        self.ends.values().filter(|end| !self.stalled[end.lane]).filter_map(End::next_wake).min()
    }

    /// Time has passed.
    pub(super) fn on_time(&mut self, now: Nanos) {
        let due = |end: &End| !self.stalled[end.lane] && end.next_wake().is_some_and(|at| at <= now);
        let ids: Vec<u64> = self.ends.iter().filter(|(_, end)| due(end)).map(|(id, _)| *id).collect();
        for id in ids {
            let Some(end) = self.ends.get_mut(&id) else { continue };
            let Some(socket) = end.socket.as_mut() else {
                match end.side {
                    Side::Outgoing(_) => self.turn_outgoing(now, id, outgoing::Input::Wake),
                    Side::Incoming(..) => self.turn_incoming(now, id, incoming::Input::Wake),
                }
                continue;
            };
            if !socket.up {
                let number = socket.number;
                self.suffer(SessionTrouble::Unanswered);
                self.tell(Out::GiveUp(number));
                self.lose(now, id, Loss::Fault);
                continue;
            }
            let activity = Activity {
                heard: std::mem::take(&mut socket.heard),
                used: std::mem::take(&mut socket.used),
                throttled: socket.throttled,
                ack_due: end.received.is_ack_due(),
            };
            match socket.keepalive.turn(now, activity, None) {
                Beat::Silent | Beat::Idle => {
                    self.suffer(SessionTrouble::Silent);
                    self.lose(now, id, Loss::Fault);
                }
                Beat::Ask { ack, keepalive } => {
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

    /// The process ends in order: peers are told, and what is queued is written before.
    pub(super) fn close(&mut self) {
        for (id, end) in &mut self.ends {
            end.queue.closing = true;
            self.writable.insert(*id);
        }
        self.flush();
    }

    /// Whether the next message finds its queue full.
    fn is_unlucky(&mut self) -> bool {
        self.sent += 1;
        let mixed = (self.nonce ^ self.sent << 20).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        self.settings.full_one_in > 0 && mixed.is_multiple_of(self.settings.full_one_in)
    }

    fn send(&mut self, id: u64, message: Encoded) -> Result<()> {
        let chance = self.is_unlucky();
        let Some(end) = self.ends.get_mut(&id) else { return Err(Error::Closed) };
        let said = self.settings.trace.then(|| message.clone().decode::<PgEnvelope>());
        let (kind, split) = (message.kind, message.split);
        let header = header_of(kind, &split.meta, &split.data, true);
        let checked = LIMITS.check(header.meta_len.into(), header.data_len.into());
        checked.map_err(|TooLong { bytes, limit }| Error::TooBig { bytes, limit })?;
        let frame = OutFrame { header, meta: split.meta, data: split.data };
        if chance || end.queue.push(frame, self.settings.queue_bytes, usize::MAX).is_some() {
            self.suffer(SessionTrouble::Full);
            return Err(Error::Full);
        }
        self.writable.insert(id);
        let mut out = self.out.lock();
        if let Some(said) = said {
            out.push(Out::Said(Node::Osd(end.peer.0), format!("{said:?}")));
        }
        out.push(Out::Queued(end.key, key_of(&header, end.queue.last_seq())));
        Ok(())
    }
}

fn key_of(header: &Header, seq: u64) -> MessageKey {
    (seq, header.kind, header.meta_crc, header.data_crc)
}

/// A session with a peer as shards have it.
pub(super) struct SessionConnection {
    sessions: Arc<Mutex<Sessions>>,
    id: u64,
    addr: SocketAddr,
    over: Arc<AtomicBool>,
}

impl SessionConnection {
    /// Begins a session.
    pub(super) fn new(
        sessions: &Arc<Mutex<Sessions>>,
        now: Nanos,
        peer: OsdId,
        lane: usize,
        addr: SocketAddr,
    ) -> SessionConnection {
        let mut locked = sessions.lock();
        let id = locked.connect(now, peer, lane);
        let over = locked.ends.get(&id).map(|end| Arc::clone(&end.over)).unwrap_or_default();
        SessionConnection { sessions: Arc::clone(sessions), id, addr, over }
    }
}

impl Connection for SessionConnection {
    fn send_encoded(&self, message: Encoded) -> Result<()> {
        pass(Call::Send);
        self.sessions.lock().send(self.id, message)
    }

    fn id(&self) -> u64 {
        self.id
    }

    fn peer_addr(&self) -> SocketAddr {
        self.addr
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn abort(&self) {
        self.sessions.lock().forget(self.id);
    }

    fn context(&self) -> Option<&(dyn Any + Send + Sync)> {
        None
    }
}
