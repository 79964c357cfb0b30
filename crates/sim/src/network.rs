//! The network between machines: connections that deliver in order, late, or not at all.
//!
//! A connection joins two nodes; each of its directions is a queue. Order is preserved within a direction, but not across
//! connections. There are two kinds of faults:
//!
//! - *Breaks* of a socket: a suffix of each direction, from any byte on, is lost, and both ends notice it independently.
//!   Messages to the answering end of a lossy connection may also arrive late, after messages sent later by other sockets: a
//!   *ghost*.
//! - *Partitions* hold back the messages of all connections from one node to another while they last.
//!
//! The network does not interpret its messages.

use crate::random::Random;
use crate::schedule::{MICRO, MILLI, Nanos};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

/// A sender or receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Node {
    /// The map authority.
    Mon,
    /// An OSD, by its id.
    Osd(u32),
    /// A client, by its index.
    Client(u32),
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Node::Mon => f.write_str("mon"),
            Node::Osd(id) => write!(f, "osd.{id}"),
            Node::Client(id) => write!(f, "client.{id}"),
        }
    }
}

/// One direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Link {
    /// The sender.
    pub from: Node,
    /// The receiver.
    pub to: Node,
    /// The connection between the two.
    pub channel: Channel,
}

/// A connection between two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Channel {
    /// Represents all of them.
    Usual,
    /// A socket of a session or connection, by its number.
    Socket(u64),
}

impl Link {
    /// From `from` to `to`.
    pub fn new(from: Node, to: Node) -> Link {
        Link { from, to, channel: Channel::Usual }
    }

    /// The same direction of another connection.
    pub fn by(self, channel: Channel) -> Link {
        Link { channel, ..self }
    }

    /// The other direction.
    pub fn back(self) -> Link {
        Link { from: self.to, to: self.from, ..self }
    }
}

/// How long messages take.
#[derive(Clone, Copy, Debug)]
pub struct Delays {
    /// The usual one-way delay is up to this.
    pub usual: Nanos,
    /// The number of messages in a thousand that are delayed.
    pub slow_per_mille: u32,
    /// The longest such delay.
    pub slow: Nanos,
}

impl Default for Delays {
    fn default() -> Self {
        Delays { usual: 500 * MICRO, slow_per_mille: 0, slow: 200 * MILLI }
    }
}

#[derive(Debug)]
struct Direction<M> {
    queue: VecDeque<(Nanos, M)>,
    /// No later message arrives before this time.
    last: Nanos,
    /// Whether a delivery is scheduled for the head of the queue.
    armed: bool,
}

impl<M> Default for Direction<M> {
    fn default() -> Self {
        Direction { queue: VecDeque::new(), last: 0, armed: false }
    }
}

/// All connections.
#[derive(Debug)]
pub struct Network<M> {
    directions: BTreeMap<Link, Direction<M>>,
    blocked: BTreeSet<Link>,
    /// When each node's queued messages have left it.
    busy: BTreeMap<Node, Nanos>,
    delays: Delays,
    random: Random,
    longest: usize,
}

/// When the caller has to call [`Network::deliver`], and for which link.
pub type Due = Option<(Nanos, Link)>;

impl<M> Network<M> {
    /// A network without messages.
    pub fn new(random: Random, delays: Delays) -> Network<M> {
        Network {
            directions: BTreeMap::new(),
            blocked: BTreeSet::new(),
            busy: BTreeMap::new(),
            delays,
            random,
            longest: 0,
        }
    }

    /// Sends a message. Returns when a delivery on the link is due that was not due before.
    pub fn send(&mut self, now: Nanos, link: Link, message: M) -> Due {
        self.send_after(now, 0, link, message)
    }

    /// A message takes this long to leave a node, and others wait for it. Returns the time until it has left, from now.
    pub fn occupy(&mut self, now: Nanos, from: Node, transmit: Nanos) -> Nanos {
        if transmit == 0 {
            return 0;
        }
        let busy = self.busy.entry(from).or_default();
        *busy = (*busy).max(now) + transmit;
        *busy - now
    }

    /// Sends a message after a wait.
    pub fn send_after(&mut self, now: Nanos, wait: Nanos, link: Link, message: M) -> Due {
        let mut delay = wait + 20 * MICRO + self.random.range(0, self.delays.usual);
        if self.delays.slow_per_mille > 0 && self.random.chance(self.delays.slow_per_mille) {
            delay += self.random.range(0, self.delays.slow);
        }
        let direction = self.directions.entry(link).or_default();
        direction.last = direction.last.max(now + delay);
        direction.queue.push_back((direction.last, message));
        self.longest = self.longest.max(direction.queue.len());
        self.arm(link)
    }

    /// Takes the message at the head of the link, if it has arrived, and returns when the next is due.
    pub fn deliver(&mut self, now: Nanos, link: Link) -> (Option<M>, Due) {
        let blocked = !self.is_open(link);
        let Some(direction) = self.directions.get_mut(&link) else { return (None, None) };
        direction.armed = false;
        let arrived = !blocked && direction.queue.front().is_some_and(|(at, _)| *at <= now);
        let message = arrived.then(|| direction.queue.pop_front()).flatten().map(|(_, message)| message);
        // A socket is not used again once it is closed.
        if matches!(link.channel, Channel::Socket(_)) && direction.queue.is_empty() {
            self.directions.remove(&link);
            return (message, None);
        }
        (message, self.arm(link))
    }

    /// Whether messages pass from `link.from` to `link.to`.
    pub fn is_open(&self, link: Link) -> bool {
        !self.blocked.contains(&link.by(Channel::Usual))
    }

    /// Holds back the messages of all connections in the direction from now on.
    pub fn block(&mut self, link: Link) {
        self.blocked.insert(link.by(Channel::Usual));
    }

    /// Lets messages in the direction pass again; those held back arrive now.
    pub fn unblock(&mut self, now: Nanos, link: Link) -> Vec<(Nanos, Link)> {
        if !self.blocked.remove(&link.by(Channel::Usual)) {
            return Vec::new();
        }
        let links = self.connections(link);
        links.into_iter().filter_map(|link| self.delay_in_transit(now, link, 0)).collect()
    }

    /// The existing connections in a direction.
    pub fn connections(&self, link: Link) -> Vec<Link> {
        let all = link.by(Channel::Usual)..=link.by(Channel::Socket(u64::MAX));
        self.directions.range(all).map(|(link, _)| *link).collect()
    }

    /// Delays all messages in transit in a direction by `by`.
    pub fn delay_in_transit(&mut self, now: Nanos, link: Link, by: Nanos) -> Due {
        let direction = self.directions.get_mut(&link)?;
        for (at, _) in &mut direction.queue {
            *at = (*at).max(now) + by;
        }
        direction.last = direction.last.max(now) + by;
        self.arm(link)
    }

    /// Whether any message is in transit in a direction.
    pub fn is_carrying(&self, link: Link) -> bool {
        self.directions.get(&link).is_some_and(|direction| !direction.queue.is_empty())
    }

    /// Ends a connection in one direction: messages that have not arrived are lost. Returns them, in order.
    pub fn cut(&mut self, link: Link) -> Vec<M> {
        let Some(direction) = self.directions.get_mut(&link) else { return Vec::new() };
        direction.last = 0;
        direction.queue.drain(..).map(|(_, message)| message).collect()
    }

    /// Changes the delays of messages sent from now on.
    pub fn set_delays(&mut self, delays: Delays) {
        self.delays = delays;
    }

    /// The number of messages in transit.
    pub fn under_way(&self) -> usize {
        self.directions.values().map(|d| d.queue.len()).sum()
    }

    /// The longest queue that any direction ever had.
    pub fn longest_queue(&self) -> usize {
        self.longest
    }

    fn arm(&mut self, link: Link) -> Due {
        if !self.is_open(link) {
            return None;
        }
        let direction = self.directions.get_mut(&link)?;
        let (at, _) = direction.queue.front()?;
        if direction.armed {
            return None;
        }
        direction.armed = true;
        Some((*at, link))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Stream;

    const LINK: Link = Link { from: Node::Osd(0), to: Node::Osd(1), channel: Channel::Usual };

    fn network() -> Network<u32> {
        let delays = Delays { slow_per_mille: 300, ..Delays::default() };
        Network::new(Random::new(1, Stream::Network), delays)
    }

    /// Delivers on `LINK` until nothing is due, and returns the messages.
    fn drain(network: &mut Network<u32>, mut due: Due) -> Vec<u32> {
        let mut came = Vec::new();
        while let Some((at, link)) = due {
            let (message, next) = network.deliver(at, link);
            came.extend(message);
            due = next;
        }
        came
    }

    #[test]
    fn order_holds_within_a_connection() {
        let mut network = network();
        let due = network.send(0, LINK, 0);
        for n in 1..50 {
            assert_eq!(network.send(n, LINK, n as u32), None, "one delivery is due already");
        }
        assert_eq!(drain(&mut network, due), (0..50).collect::<Vec<_>>());
        assert_eq!((network.under_way(), network.longest_queue()), (0, 50));
    }

    #[test]
    fn messages_leave_a_node_one_after_another() {
        let mut network = network();
        assert_eq!(network.occupy(10, Node::Mon, 0), 0);
        assert_eq!(network.occupy(10, Node::Mon, 100), 100);
        assert_eq!(network.occupy(50, Node::Mon, 100), 160);
        assert_eq!(network.occupy(50, Node::Osd(1), 100), 100);
        let due = network.send_after(0, 5_000_000, LINK, 7);
        assert!(due.unwrap().0 > 5_000_000);
    }

    #[test]
    fn a_reset_loses_a_suffix_and_a_blip_nothing() {
        let mut network = network();
        let due = network.send(0, LINK, 0).unwrap();
        for n in 1..10 {
            network.send(0, LINK, n);
        }
        let (first, due) = network.deliver(due.0, due.1);
        assert_eq!(first, Some(0));
        network.delay_in_transit(due.unwrap().0, LINK, 1_000_000_000);
        assert_eq!(network.cut(LINK), (1..10).collect::<Vec<_>>());
        assert!(network.cut(LINK.back()).is_empty());
        let due = due.map(|(_, link)| (5_000_000_000, link));
        assert!(drain(&mut network, due).is_empty());
    }

    #[test]
    fn a_partition_holds_messages_until_it_heals() {
        let mut network = network();
        network.block(LINK);
        assert_eq!(network.send(0, LINK, 1), None);
        assert_eq!(network.send(0, LINK, 2), None);
        assert!(network.is_open(LINK.back()) && !network.is_open(LINK));
        let due = network.unblock(7_000_000_000, LINK);
        assert!(due[0].0 >= 7_000_000_000);
        assert_eq!(drain(&mut network, Some(due[0])), [1, 2]);
    }

    #[test]
    fn blocking_with_a_delivery_due_holds_the_message_too() {
        let mut network = network();
        let due = network.send(0, LINK, 1).unwrap();
        network.block(LINK);
        assert_eq!(network.deliver(due.0, LINK), (None, None));
        let due = network.unblock(9_000_000_000, LINK);
        assert_eq!(drain(&mut network, due.first().copied()), [1]);
    }
}
