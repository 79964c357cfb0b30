//! Sockets between OSDs, as the network has them: where they break, and whether sessions hand messages on once and in order. (One that
//! never comes shows in what waits for it, and in the next of its session.)

use super::World;
use crate::network::{Channel, Link, Node};
use crate::osd::{MessageKey, Out, SessionKey, SessionTrouble};
use crate::packet::{Packet, SocketEvent};
use crate::random::{Random, Stream};
use crate::schedule::{MILLI, Nanos};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Sockets {
    random: Random,
    /// The OSDs at their ends: who connected first.
    open: BTreeMap<u64, (u32, u32)>,
    /// OSDs whose machine is off: nobody answers for them.
    pub(super) switched_off: BTreeSet<u32>,
    /// What each session has taken and not yet handed on.
    sent: BTreeMap<SessionKey, VecDeque<MessageKey>>,
    /// What befell sessions, and how often.
    pub(super) troubles: BTreeMap<SessionTrouble, u64>,
}

impl Sockets {
    pub(super) fn new(seed: u64) -> Sockets {
        Sockets {
            random: Random::new(seed, Stream::Sockets),
            open: BTreeMap::new(),
            switched_off: BTreeSet::new(),
            sent: BTreeMap::new(),
            troubles: BTreeMap::new(),
        }
    }
}

impl World {
    /// An OSD sends by a socket. Bytes may arrive in two pieces.
    pub(super) fn send_by_socket(&mut self, from: Node, to: Node, number: u64, event: SocketEvent) {
        let link = Link::new(from, to).by(Channel::Socket(number));
        if let (SocketEvent::Connect(_), Node::Osd(a), Node::Osd(b)) = (&event, from, to) {
            self.sockets.open.insert(number, (a, b));
        }
        match event {
            SocketEvent::Bytes(bytes) if self.sockets.random.chance(100) => {
                let at = self.sockets.random.index(bytes.len());
                for piece in [bytes.slice(..at), bytes.slice(at..)] {
                    self.put(link, SocketEvent::Bytes(piece));
                }
            }
            event => self.put(link, event),
        }
    }

    fn put(&mut self, link: Link, event: SocketEvent) {
        if let Channel::Socket(number) = link.channel {
            let packet = Packet::Socket(number, event);
            let waits = self.transmit(link.from, packet.bytes());
            let due = self.network.send_after(self.schedule.now(), waits, link, packet);
            self.due(due);
        }
    }

    /// Whether there is a process for what comes by a socket. The machine of one that is gone says so.
    pub(super) fn arrives_by_socket(&mut self, link: Link, number: u64, packet: &Packet) -> bool {
        let Node::Osd(osd) = link.to else { return false };
        let is_closed = matches!(packet, Packet::Socket(_, SocketEvent::Closed));
        if is_closed {
            self.sockets.open.remove(&number);
        }
        let runs = self.osds[osd as usize].is_running();
        if !runs && !is_closed && !self.sockets.switched_off.contains(&osd) {
            self.put(link.back(), SocketEvent::Closed);
        }
        runs
    }

    /// The sockets between two OSDs break; both ends find out within `within`. Returns whether there are any.
    pub(crate) fn break_sockets(&mut self, a: u32, b: u32, within: Nanos) -> bool {
        let between = |ends: &(u32, u32)| *ends == (a, b) || *ends == (b, a);
        let numbers: Vec<u64> =
            self.sockets.open.iter().filter(|(_, ends)| between(ends)).map(|(number, _)| *number).collect();
        for number in numbers.iter().copied() {
            let link = Link::new(Node::Osd(a), Node::Osd(b)).by(Channel::Socket(number));
            self.break_direction(link, Some(within));
            self.break_direction(link.back(), Some(within));
            self.sockets.open.remove(&number);
        }
        !numbers.is_empty()
    }

    /// A process is gone, and its sockets with it. Its machine tells the peers unless it is gone too.
    pub(crate) fn lose_sockets(&mut self, osd: u32, tells: bool) {
        if !tells {
            self.sockets.switched_off.insert(osd);
        }
        let ends = self.sockets.open.iter().filter(|(_, (a, b))| *a == osd || *b == osd);
        let numbers: Vec<(u64, u32)> =
            ends.map(|(number, (a, b))| (*number, if *a == osd { *b } else { *a })).collect();
        for (number, peer) in numbers {
            let link = Link::new(Node::Osd(osd), Node::Osd(peer)).by(Channel::Socket(number));
            self.break_direction(link, tells.then_some(20 * MILLI));
            self.sockets.open.remove(&number);
        }
    }

    /// What is under way is lost from some byte on. Where the receiver finds out, it does so within that time.
    fn break_direction(&mut self, link: Link, found_out: Option<Nanos>) {
        let under_way = self.network.cut(link);
        let count = self.sockets.random.range(0, under_way.len() as u64 + 1) as usize;
        let mut under_way = under_way.into_iter();
        let mut arriving: Vec<Packet> = under_way.by_ref().take(count).collect();
        if let Some(Packet::Socket(number, SocketEvent::Bytes(bytes))) = under_way.next() {
            let piece: Bytes = bytes.slice(..self.sockets.random.index(bytes.len().max(1)));
            arriving.push(Packet::Socket(number, SocketEvent::Bytes(piece)));
        }
        let now = self.schedule.now();
        for packet in arriving {
            let due = self.network.send(now, link, packet);
            self.due(due);
        }
        if let Some(within) = found_out {
            self.put(link, SocketEvent::Closed);
            let wait = self.sockets.random.range(MILLI, within.max(2 * MILLI));
            let due = self.network.hold_up(now, link, wait);
            self.due(due);
        }
    }

    /// What sessions want known.
    pub(super) fn session_out(&mut self, osd: u32, out: Out) {
        match out {
            Out::Queued(session, message) => {
                self.sockets.sent.entry(session).or_default().push_back(message);
            }
            Out::SessionRestarted(session) => {
                self.sockets.sent.remove(&session);
            }
            Out::Session(trouble) => {
                self.say(format_args!("osd.{osd}: a session: {trouble:?}"));
                *self.sockets.troubles.entry(trouble).or_default() += 1;
            }
            Out::Handled(session, message) => {
                let due = self.sockets.sent.entry(session).or_default().pop_front();
                if due != Some(message) {
                    let detail =
                        format!("session {session:?} on osd.{osd}: {message:?} where {due:?} was due");
                    self.fail("a session repeats or skips a message", detail);
                }
            }
            // Nobody sends the rest of a handshake that was given up; the last of it may be under way.
            Out::GiveUp(number) if self.sockets.random.chance(800) => {
                if let Some((a, b)) = self.sockets.open.remove(&number) {
                    self.network.cut(Link::new(Node::Osd(a), Node::Osd(b)).by(Channel::Socket(number)));
                }
            }
            _ => {}
        }
    }
}
