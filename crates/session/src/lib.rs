//! The sessions of the messenger, without I/O: what two processes owe each other over the sockets that they have one after the
//! other (docs/format/messenger.md).
//!
//! - [`wire`], [`body`]: frames as bytes.
//! - [`queue`]: messages that wait to be written or acknowledged, and the batches in which they are written.
//! - [`receive`]: what to do with a received header, and when to acknowledge.
//! - [`keepalive`]: when a silent socket is asked for a sign of life, and when it is given up.
//! - [`outgoing`]: the session of the connecting side; [`incoming`]: sessions of the answering side, and who has which.
//!
//! The machines take an input and the time, and return what their owner is to do next; `next_wake` says when they want a turn
//! without an input. The owner has the sockets, timers and threads: `nacre-runtime` tokio's, `nacre-sim` simulated ones.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod body;
pub mod incoming;
pub mod keepalive;
pub mod outgoing;
pub mod queue;
pub mod receive;
pub mod wire;

use serde::{Deserialize, Serialize};

/// Nanoseconds of a clock that never goes back.
pub type Nanos = u64;

/// What a fault means for messages in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Policy {
    /// The connection ends; whoever made it starts over.
    Lossy,
    /// The session goes on over the next socket.
    Lossless,
}

/// What the connecting side wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confirm {
    /// This run of its process.
    pub nonce: u64,
    /// What happens on faults.
    pub policy: Policy,
    /// Names its lossless session.
    pub cookie: u64,
    /// It has been told before that the session exists.
    pub established: bool,
    /// The last message that it has.
    pub in_seq: u64,
}

/// What became of the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// Whether it goes on.
    pub outcome: Outcome,
    /// The last message that the answering side has.
    pub in_seq: u64,
}

/// See [`Ready`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// There was none, as the connecting side expected.
    New,
    /// It goes on.
    Resumed,
    /// It is unknown here: both start afresh.
    Reset,
}

/// Why a socket is no longer used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// The other side closed the session.
    PeerClosed,
    /// Closed on this side; everything queued was written, or there was no time.
    LocalClosed,
    /// Nothing was sent or received for long on a lossy connection.
    Idle,
    /// It broke, or what came by it made no sense.
    Fault,
}

/// Why a session is over, as its owner is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The other side closed it.
    PeerClosed,
    /// The other side has another process now, or has forgotten the session.
    PeerRestarted,
    /// A lossy connection failed.
    Failed,
    /// Nothing was sent or received for long on a lossy connection.
    Idle,
    /// The other side did not return in time.
    Lapsed,
}

/// A rule broken on purpose, to prove that the simulator notices. Only the feature `mutations`, which the simulator turns on,
/// lets a rule be broken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mutation {
    /// All rules hold.
    #[default]
    None,
    /// A message counts as received as soon as its header is there.
    CountUnread,
    /// What was not acknowledged is not sent again after a reconnect.
    ForgetUnacked,
    /// A reset that the connecting side may not have heard of is not said again.
    ForgetReset,
}

#[cfg(feature = "mutations")]
thread_local! {
    static BREACHES: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// How often this thread came to where a rule is broken since it was asked last.
#[cfg(feature = "mutations")]
pub fn take_breaches() -> u64 {
    BREACHES.take()
}

/// The rules, all of which hold but for the simulator.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    /// The one that is broken.
    #[cfg(feature = "mutations")]
    pub mutation: Mutation,
}

impl Rules {
    /// Whether the simulator has this rule broken; without the feature `mutations` no rule can be.
    #[cfg(feature = "mutations")]
    pub fn breaks(self, rule: Mutation) -> bool {
        let breaks = self.mutation == rule;
        if breaks {
            BREACHES.set(BREACHES.get() + 1);
        }
        breaks
    }

    /// Whether the simulator has this rule broken; without the feature `mutations` no rule can be.
    #[cfg(not(feature = "mutations"))]
    pub const fn breaks(self, _rule: Mutation) -> bool {
        false
    }
}
