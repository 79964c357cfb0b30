//! The sessions of the messenger, without I/O: the delivery of messages between two processes over successive sockets
//! (docs/format/messenger.md).
//!
//! - [`wire`], [`body`]: frames as bytes.
//! - [`queue`]: messages that wait to be written or acknowledged, and the batches in which they are written.
//! - [`receive`]: what to do with a received header, and when to acknowledge.
//! - [`keepalive`]: when a keepalive is sent on a silent socket, and when the socket is dropped.
//! - [`outgoing`]: the session of the connecting side; [`incoming`]: the sessions of the answering side and their table.
//!
//! The machines take an input and the time, and return the next action of their owner; `next_wake` returns when they need a turn without an
//! input. The owner has the sockets, timers and threads: tokio's in `nacre-runtime`, simulated ones in `nacre-sim`.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod body;
pub mod incoming;
pub mod keepalive;
pub mod outgoing;
pub mod queue;
pub mod receive;
pub mod wire;

use serde::{Deserialize, Serialize};

/// Nanoseconds of a monotonic clock.
pub type Nanos = u64;

/// The effect of a fault on messages in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Policy {
    /// The connection ends; the side that made it must start over.
    Lossy,
    /// The session continues over the next socket.
    Lossless,
}

/// The connecting side's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectRequest {
    /// Identifies its process.
    pub nonce: u64,
    /// What happens on faults.
    pub policy: Policy,
    /// Identifies its lossless session.
    pub cookie: u64,
    /// Whether it was told earlier that the session exists.
    pub established: bool,
    /// The last message that it has received.
    pub in_seq: u64,
}

/// The answer about the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectReply {
    /// Whether the session continues.
    pub outcome: SessionOutcome,
    /// The last message that the answering side has received.
    pub in_seq: u64,
}

/// See [`ConnectReply`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SessionOutcome {
    /// There was none, as the connecting side expected.
    New,
    /// The session continues.
    Resumed,
    /// It is unknown here: both sides start over.
    Reset,
}

/// Why a socket is no longer used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketLoss {
    /// The other side closed the session.
    PeerClosed,
    /// Closed on this side, after everything queued was written or its time was over.
    LocalClosed,
    /// Nothing was sent or received for a long time on a lossy connection.
    Idle,
    /// The socket broke, or an invalid frame was received.
    Fault,
}

/// Why a session ended, as reported to its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndCause {
    /// The other side closed it.
    PeerClosed,
    /// The other side's process has changed, or it has dropped the session.
    PeerRestarted,
    /// A lossy connection failed.
    Failed,
    /// Nothing was sent or received for a long time on a lossy connection.
    Idle,
    /// The other side did not return in time.
    Lapsed,
}

/// A rule broken on purpose, to prove that the simulator notices. Only with the feature `mutations`, which the simulator enables, can a
/// rule be broken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mutation {
    /// All rules hold.
    #[default]
    None,
    /// A message counts as received when only its header has been read.
    CountUnread,
    /// Unacknowledged messages are not sent again after a reconnect.
    ForgetUnacked,
    /// A reset that the connecting side may not know of is not repeated.
    ForgetReset,
}

#[cfg(feature = "mutations")]
thread_local! {
    static BREACHES: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Returns how often this thread reached a broken rule since the last call.
#[cfg(feature = "mutations")]
pub fn take_breaches() -> u64 {
    BREACHES.take()
}

/// The rules. All of them hold except in the simulator.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    /// The broken rule.
    #[cfg(feature = "mutations")]
    pub mutation: Mutation,
}

impl Rules {
    /// Whether the simulator breaks this rule. Without the feature `mutations` no rule can be broken.
    #[cfg(feature = "mutations")]
    pub fn breaks(self, rule: Mutation) -> bool {
        let breaks = self.mutation == rule;
        if breaks {
            BREACHES.set(BREACHES.get() + 1);
        }
        breaks
    }

    /// Whether the simulator breaks this rule. Without the feature `mutations` no rule can be broken.
    #[cfg(not(feature = "mutations"))]
    pub const fn breaks(self, _rule: Mutation) -> bool {
        false
    }
}
