//! The sockets on the network: where they break, and whether sessions and connections deliver messages once and in order. (A
//! message that is never delivered is noticed by its pending effects, and by the next message of its session.)

use super::World;
use crate::network::{Channel, Link, Node};
use crate::packet::{Packet, SocketEvent};
use crate::random::{Random, Stream};
use crate::schedule::{MILLI, Nanos};
use crate::sessions::{MessageKey, SessionOutput, SessionTrouble, StreamId};
use bytes::Bytes;
use nacre_session::Policy;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Sockets {
    random: Random,
    /// The processes at their ends; the one that connected is first.
    open: BTreeMap<u64, (Node, Node)>,
    /// Sockets that ever carried heartbeats, with the process that connected.
    pings: BTreeMap<u64, Node>,
    /// Processes whose machine is off, so that it does not answer for them.
    pub(super) switched_off: BTreeSet<Node>,
    /// The messages that each session has queued and not yet delivered.
    sent: BTreeMap<StreamId, VecDeque<MessageKey>>,
    /// The number of each kind of session events.
    pub(super) troubles: BTreeMap<SessionTrouble, u64>,
}

impl Sockets {
    pub(super) fn new(seed: u64) -> Sockets {
        Sockets {
            random: Random::new(seed, Stream::Sockets),
            open: BTreeMap::new(),
            pings: BTreeMap::new(),
            switched_off: BTreeSet::new(),
            sent: BTreeMap::new(),
            troubles: BTreeMap::new(),
        }
    }

    /// Records that a process connects.
    fn connect(&mut self, number: u64, (from, to): (Node, Node), policy: Policy) {
        self.open.insert(number, (from, to));
        if let (Policy::Lossy, Node::Osd(_), Node::Osd(_)) = (policy, from, to) {
            self.pings.insert(number, from);
        }
    }

    /// The sockets between two processes.
    fn between(&self, a: Node, b: Node) -> Vec<u64> {
        let all = self.open.iter().filter(|(_, ends)| **ends == (a, b) || **ends == (b, a));
        all.map(|(number, _)| *number).collect()
    }

    /// Whether the direction leads to the answering end of a lossy connection, where repeated messages use another socket.
    fn may_be_late(&self, link: Link) -> bool {
        let Channel::Socket(number) = link.channel else { return false };
        match self.pings.get(&number) {
            Some(connecting) => link.from == *connecting,
            None => matches!(link.from, Node::Client(_)) || link.to == Node::Mon,
        }
    }
}

impl World {
    /// Sends a packet of a process by a socket. Bytes may arrive in two pieces.
    pub(crate) fn send(&mut self, from: Node, to: Node, packet: Packet) {
        if self.trace {
            self.say(format_args!("{from} > {to} {packet:?}"));
        }
        let Packet { socket: number, event } = packet;
        let link = Link::new(from, to).by(Channel::Socket(number));
        match event {
            SocketEvent::Bytes(bytes) if self.sockets.random.chance(100) => {
                let at = self.sockets.random.index(bytes.len());
                for piece in [bytes.slice(..at), bytes.slice(at..)] {
                    self.put(link, SocketEvent::Bytes(piece));
                }
            }
            event => {
                match &event {
                    SocketEvent::Connect(confirm, _) => {
                        self.sockets.connect(number, (from, to), confirm.policy);
                    }
                    SocketEvent::Closed => {
                        self.sockets.open.remove(&number);
                        self.make_late(link);
                    }
                    _ => {}
                }
                self.put(link, event);
            }
        }
    }

    /// Makes data in transit by a socket that was closed or broke arrive late, after data sent later by other sockets.
    pub(super) fn make_late(&mut self, link: Link) {
        let is_open =
            matches!(link.channel, Channel::Socket(number) if self.sockets.open.contains_key(&number));
        if self.sockets.may_be_late(link)
            && !is_open
            && self.network.is_carrying(link)
            && let Some(wait) = self.nemesis.ghost()
        {
            let due = self.network.delay_in_transit(self.schedule.now(), link, wait);
            self.due(due);
        }
    }

    fn put(&mut self, link: Link, event: SocketEvent) {
        if let Channel::Socket(number) = link.channel {
            let packet = Packet { socket: number, event };
            let waits = self.transmit(link.from, packet.bytes());
            let due = self.network.send_after(self.schedule.now(), waits, link, packet);
            self.due(due);
        }
    }

    /// Whether there is a process to receive a packet. Otherwise its machine answers that there is none.
    pub(super) fn accept_packet(&mut self, link: Link, packet: &Packet) -> bool {
        let is_closed = matches!(packet.event, SocketEvent::Closed | SocketEvent::Refused);
        if is_closed {
            self.sockets.open.remove(&packet.socket);
        }
        let runs = match link.to {
            Node::Osd(osd) => self.osds[osd as usize].is_running(),
            Node::Mon => self.monitor.is_running(),
            Node::Client(_) => true,
        };
        if !runs && !is_closed && !self.sockets.switched_off.contains(&link.to) {
            let connects = matches!(packet.event, SocketEvent::Connect(..));
            self.put(link.back(), if connects { SocketEvent::Refused } else { SocketEvent::Closed });
        }
        runs
    }

    /// Breaks the sockets between two processes; both ends notice it within `within`. Returns whether there are any.
    pub(crate) fn break_sockets(&mut self, a: Node, b: Node, within: Nanos) -> bool {
        let numbers = self.sockets.between(a, b);
        self.break_each(&numbers, (a, b), within)
    }

    /// Like [`World::break_sockets`], but only those for heartbeats between two OSDs.
    pub(crate) fn break_pings(&mut self, a: Node, b: Node, within: Nanos) -> bool {
        let mut numbers = self.sockets.between(a, b);
        numbers.retain(|number| self.sockets.pings.contains_key(number));
        self.break_each(&numbers, (a, b), within)
    }

    fn break_each(&mut self, numbers: &[u64], (a, b): (Node, Node), within: Nanos) -> bool {
        for number in numbers.iter().copied() {
            let link = Link::new(a, b).by(Channel::Socket(number));
            self.break_direction(link, Some(within));
            self.break_direction(link.back(), Some(within));
            self.sockets.open.remove(&number);
        }
        !numbers.is_empty()
    }

    /// A process has ended with its sockets. Its machine informs the peers if `tells`.
    pub(crate) fn lose_sockets(&mut self, node: Node, tells: bool) {
        if !tells {
            self.sockets.switched_off.insert(node);
        }
        let ends = self.sockets.open.iter().filter(|(_, (a, b))| *a == node || *b == node);
        let numbers: Vec<(u64, Node)> =
            ends.map(|(number, (a, b))| (*number, if *a == node { *b } else { *a })).collect();
        for (number, peer) in numbers {
            let link = Link::new(node, peer).by(Channel::Socket(number));
            self.break_direction(link, tells.then_some(20 * MILLI));
            self.sockets.open.remove(&number);
        }
    }

    /// The data in transit is lost from some byte on; data to the answering end of a lossy connection may arrive late. With
    /// `found_out`, the receiver notices the break within that time.
    fn break_direction(&mut self, link: Link, found_out: Option<Nanos>) {
        let under_way = self.network.cut(link);
        let is_late = self.sockets.may_be_late(link) && self.nemesis.has_ghosts();
        let most = if is_late { 0 } else { under_way.len() as u64 };
        let count = self.sockets.random.range(0, most + 1) as usize;
        let mut under_way = under_way.into_iter().peekable();
        let mut arriving: Vec<(Nanos, Packet)> =
            under_way.by_ref().take(count).map(|packet| (0, packet)).collect();
        while is_late
            && under_way.peek().is_some()
            && let Some(wait) = self.nemesis.ghost()
        {
            arriving.extend(under_way.next().map(|packet| (wait, packet)));
        }
        if let Some(Packet { socket, event: SocketEvent::Bytes(bytes) }) = under_way.next() {
            let piece: Bytes = bytes.slice(..self.sockets.random.index(bytes.len().max(1)));
            arriving.push((0, Packet { socket, event: SocketEvent::Bytes(piece) }));
        }
        let now = self.schedule.now();
        for (wait, packet) in arriving {
            let due = self.network.send_after(now, wait, link, packet);
            self.due(due);
        }
        if let Some(within) = found_out {
            self.put(link, SocketEvent::Closed);
            let wait = self.sockets.random.range(MILLI, within.max(2 * MILLI));
            let due = self.network.delay_in_transit(now, link, wait);
            self.due(due);
        }
    }

    /// Executes the actions of sessions and connections, and records their events.
    pub(super) fn session_out(&mut self, node: Node, out: SessionOutput) {
        match out {
            SessionOutput::Send(to, number, event) => {
                let packet = Packet { socket: number, event };
                match node {
                    Node::Osd(osd) => self.send_unless_stopped(osd, to, packet),
                    _ => self.send(node, to, packet),
                }
            }
            SessionOutput::Queued(session, message) => {
                self.sockets.sent.entry(session).or_default().push_back(message);
            }
            SessionOutput::Restarted(session) => {
                self.sockets.sent.remove(&session);
            }
            SessionOutput::Suffered(trouble) => {
                self.say(format_args!("{node}: a session: {trouble:?}"));
                *self.sockets.troubles.entry(trouble).or_default() += 1;
            }
            SessionOutput::Handled(session, message) => {
                let due = self.sockets.sent.entry(session).or_default().pop_front();
                if due != Some(message) {
                    let detail = format!("session {session:?} on {node}: {message:?} where {due:?} was due");
                    self.fail("a session repeats or skips a message", detail);
                }
            }
            // The rest of a handshake that was given up is not sent; its last part may be in transit.
            SessionOutput::GiveUp(number) => {
                if self.sockets.random.chance(800)
                    && let Some((a, b)) = self.sockets.open.remove(&number)
                {
                    self.network.cut(Link::new(a, b).by(Channel::Socket(number)));
                }
            }
            SessionOutput::Said(to, what) => self.say(format_args!("{node} > {to} {what}")),
        }
    }
}
