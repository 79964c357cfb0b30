//! Keepalives of a socket.

use crate::Nanos;

/// Activity on the socket since the last turn.
#[derive(Debug, Clone, Copy, Default)]
pub struct Activity {
    /// Something was received.
    pub heard: bool,
    /// A message was sent or received.
    pub used: bool,
    /// The reader waits for its throttle, so silence does not indicate that the peer is dead.
    pub throttled: bool,
    /// Messages were received that are not acknowledged yet.
    pub ack_due: bool,
}

/// The next action of the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepaliveAction {
    /// The peer has been silent for too long.
    Silent,
    /// The connection was unused for too long.
    Idle,
    /// The socket stays in use.
    Ask {
        /// Send an acknowledgement.
        ack: bool,
        /// Send a keepalive.
        keepalive: bool,
    },
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Keepalive {
    interval: Nanos,
    timeout: Nanos,
    silent: Nanos,
    idle: Nanos,
    next: Nanos,
}

impl Keepalive {
    /// Creates the state of a socket opened at `now`. It is checked every `interval` and dropped after `timeout` without a message.
    pub fn new(now: Nanos, interval: Nanos, timeout: Nanos) -> Keepalive {
        Keepalive { interval, timeout, silent: 0, idle: 0, next: now.saturating_add(interval) }
    }

    /// When the next turn is due.
    pub fn next_wake(&self) -> Nanos {
        self.next
    }

    /// Runs after each interval. Only lossy connections have an `idle_timeout`.
    pub fn turn(&mut self, now: Nanos, activity: Activity, idle_timeout: Option<Nanos>) -> KeepaliveAction {
        self.next = now.saturating_add(self.interval);
        if activity.heard {
            self.silent = 0;
        } else if !activity.throttled {
            self.silent += self.interval;
            if self.silent >= self.timeout {
                return KeepaliveAction::Silent;
            }
        }
        if activity.used {
            self.idle = 0;
        } else {
            self.idle += self.interval;
            if idle_timeout.is_some_and(|most| self.idle >= most) {
                return KeepaliveAction::Idle;
            }
        }
        KeepaliveAction::Ask { ack: activity.ack_due, keepalive: self.silent > 0 || activity.throttled }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: Activity = Activity { heard: false, used: false, throttled: false, ack_due: false };

    #[test]
    fn silence_is_asked_about_and_ends_the_socket() {
        let mut keepalive = Keepalive::new(5, 10, 30);
        assert_eq!(keepalive.next_wake(), 15);
        let ask = |keepalive| KeepaliveAction::Ask { ack: false, keepalive };
        assert_eq!(keepalive.turn(15, QUIET, None), ask(true));
        assert_eq!(keepalive.turn(25, Activity { heard: true, ..QUIET }, None), ask(false));
        for now in [35, 45] {
            assert_eq!(keepalive.turn(now, QUIET, None), ask(true));
        }
        assert_eq!(keepalive.turn(55, Activity { throttled: true, ..QUIET }, None), ask(true));
        assert_eq!(keepalive.turn(65, QUIET, None), KeepaliveAction::Silent);
    }

    #[test]
    fn unused_lossy_connections_end() {
        let mut keepalive = Keepalive::new(0, 10, 1000);
        assert!(matches!(keepalive.turn(10, QUIET, Some(20)), KeepaliveAction::Ask { .. }));
        assert_eq!(keepalive.turn(20, QUIET, Some(20)), KeepaliveAction::Idle);
    }
}
