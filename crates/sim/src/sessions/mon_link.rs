//! The connection of an OSD or a client to the map authority: lossy, and made again after increasing waits, as in production.

use super::Sessions;
use crate::network::Node;
use crate::schedule::Nanos;
use nacre_common::error::{Error, Result};
use nacre_session::Policy;
use nacre_types::msg::{EncodedMessage, Message};

/// The waits between attempts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waits {
    /// After a connection that was established.
    pub(crate) least: Nanos,
    /// After the first failed attempt; doubled with each further one.
    pub(crate) first: Nanos,
    /// The maximum.
    pub(crate) longest: Nanos,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct MonLink {
    waits: Waits,
    conn: Option<u64>,
    is_up: bool,
    wait: Nanos,
    retry_at: Nanos,
}

impl MonLink {
    /// A link that first connects at `start`.
    pub(crate) fn new(waits: Waits, start: Nanos) -> MonLink {
        MonLink { waits, conn: None, is_up: false, wait: 0, retry_at: start }
    }

    /// When [`MonLink::connect_if_due`] has to run.
    pub(crate) fn next_wake(&self) -> Option<Nanos> {
        self.conn.is_none().then_some(self.retry_at)
    }

    /// Connects if there is no connection and the wait is over.
    pub(crate) fn connect_if_due(&mut self, now: Nanos, sessions: &mut Sessions) {
        if self.conn.is_none() && now >= self.retry_at {
            self.wait = (self.wait * 2).clamp(self.waits.first, self.waits.longest);
            self.conn = Some(sessions.connect(now, (Node::Mon, Policy::Lossy), 0, None));
        }
    }

    /// Handles an established connection. Returns whether it is this one.
    pub(crate) fn on_connected(&mut self, conn: u64) -> bool {
        let is_own = self.conn == Some(conn);
        if is_own {
            (self.is_up, self.wait) = (true, 0);
        }
        is_own
    }

    /// Handles a lost connection. Returns whether it is this one.
    pub(crate) fn on_reset(&mut self, now: Nanos, conn: u64) -> bool {
        let is_own = self.conn == Some(conn);
        if is_own {
            (self.conn, self.is_up) = (None, false);
            self.retry_at = now + self.wait.max(self.waits.least);
        }
        is_own
    }

    /// Whether `conn` is the current connection.
    pub(crate) fn is_current(&self, conn: u64) -> bool {
        self.conn == Some(conn)
    }

    /// Sends a message if the connection is up; otherwise the message is lost.
    pub(crate) fn send<M: Message>(&self, sessions: &mut Sessions, message: &M) -> Result<()> {
        self.send_encoded(sessions, EncodedMessage::new(message))
    }

    /// Like [`MonLink::send`].
    pub(crate) fn send_encoded(&self, sessions: &mut Sessions, message: EncodedMessage) -> Result<()> {
        match self.conn.filter(|_| self.is_up) {
            Some(conn) => sessions.send(conn, message),
            None => Err(Error::Closed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;

    const WAITS: Waits = Waits { least: 5, first: 10, longest: 15 };

    #[test]
    fn attempts_are_spaced_until_one_comes_up() {
        let mut sessions = Sessions::new(Scenario::of(1).mon_sessions(None), 1, 1);
        let mut link = MonLink::new(WAITS, 100);
        link.connect_if_due(99, &mut sessions);
        assert_eq!(link.next_wake(), Some(100));
        for (now, next) in [(100, 110), (110, 125), (125, 140)] {
            link.connect_if_due(now, &mut sessions);
            assert_eq!(link.next_wake(), None, "an attempt is under way");
            let conn = link.conn.unwrap();
            assert!(!link.on_reset(now, conn + 1) && link.on_reset(now, conn));
            assert_eq!(link.next_wake(), Some(next));
        }
        link.connect_if_due(140, &mut sessions);
        let conn = link.conn.unwrap();
        assert!(link.on_connected(conn) && link.is_current(conn));
        assert!(link.on_reset(200, conn) && !link.is_current(conn));
        assert_eq!(link.next_wake(), Some(205));
    }
}
