//! The connecting side: one session, or one lossy connection, over successive sockets.

use crate::queue::SendQueue;
use crate::receive::ReceiveState;
use crate::{ConnectReply, ConnectRequest, EndCause, Nanos, Policy, SessionOutcome, SocketLoss};

/// A socket that lasted this long is replaced at once when it is lost, others after a growing delay. Two processes that use the same name,
/// or a peer that fails on a message, must not make both sides loop.
const STEADY_NS: Nanos = 1_000_000_000;

/// Delays between attempts: doubled with each failure.
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    /// The first delay.
    pub initial: Nanos,
    /// The longest delay.
    pub max: Nanos,
}

/// An input of the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutgoingEvent {
    /// Only time has passed.
    Wake,
    /// The peer has answered on a new socket.
    Ready(ConnectReply),
    /// The socket is lost, or there was none: the peer could not be reached, or did not answer in time.
    Lost(SocketLoss),
}

/// The next action of the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutgoingStep {
    /// Connect and send this.
    Connect(ConnectRequest),
    /// The socket carries frames. If the session restarts, its owner is notified first.
    Run {
        /// Messages that were in flight may or may not have been handled.
        restarted: bool,
    },
    /// Wait until [`Outgoing::next_wake`].
    Wait,
    /// The session has ended. The owner is notified of the cause.
    Over(Option<EndCause>),
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Outgoing {
    nonce: u64,
    policy: Policy,
    cookie: u64,
    established: bool,
    failures: u32,
    up_since: Option<Nanos>,
    retry_at: Option<Nanos>,
    /// The delays from now on.
    pub backoff: Backoff,
}

impl Outgoing {
    /// Creates a session of the process `nonce`, identified by the random `cookie`.
    pub fn new(nonce: u64, policy: Policy, cookie: u64, backoff: Backoff) -> Outgoing {
        let (established, failures, up_since, retry_at) = (false, 0, None, None);
        Outgoing { nonce, policy, cookie, established, failures, up_since, retry_at, backoff }
    }

    /// When the session needs [`OutgoingEvent::Wake`], while it waits.
    pub fn next_wake(&self) -> Option<Nanos> {
        self.retry_at
    }

    /// Number of failed attempts since a socket lasted.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Handles an input. `queue` and `received` are the session's.
    pub fn turn(
        &mut self,
        now: Nanos,
        input: OutgoingEvent,
        queue: &mut SendQueue,
        received: &ReceiveState,
    ) -> OutgoingStep {
        match input {
            OutgoingEvent::Wake if self.retry_at.is_some_and(|at| at > now) => OutgoingStep::Wait,
            OutgoingEvent::Wake => self.connect(received),
            OutgoingEvent::Ready(ready) => {
                self.up_since = Some(now);
                let restarted = self.policy == Policy::Lossless && !self.adopt(&ready, queue, received);
                OutgoingStep::Run { restarted }
            }
            OutgoingEvent::Lost(SocketLoss::LocalClosed) => OutgoingStep::Over(None),
            OutgoingEvent::Lost(SocketLoss::PeerClosed) => OutgoingStep::Over(Some(EndCause::PeerClosed)),
            OutgoingEvent::Lost(SocketLoss::Idle) => OutgoingStep::Over(Some(EndCause::Idle)),
            OutgoingEvent::Lost(SocketLoss::Fault) => self.lost(now, received),
        }
    }

    fn connect(&mut self, received: &ReceiveState) -> OutgoingStep {
        self.retry_at = None;
        OutgoingStep::Connect(ConnectRequest {
            nonce: self.nonce,
            policy: self.policy,
            cookie: self.cookie,
            established: self.established,
            in_seq: received.last(),
        })
    }

    /// Adopts the other side's state of the session. Returns whether the session continues.
    fn adopt(&mut self, ready: &ConnectReply, queue: &mut SendQueue, received: &ReceiveState) -> bool {
        let resumed = ready.outcome != SessionOutcome::Reset && queue.resume(ready.in_seq).is_ok();
        self.established = true;
        if !resumed {
            queue.reset();
            received.reset();
            // The acknowledgement tells the other side that the reset is known.
            queue.ask_ack();
        }
        resumed
    }

    fn lost(&mut self, now: Nanos, received: &ReceiveState) -> OutgoingStep {
        let steady = self.up_since.take().is_some_and(|since| now.saturating_sub(since) >= STEADY_NS);
        self.failures = if steady { 0 } else { self.failures.saturating_add(1) };
        if self.policy == Policy::Lossy {
            return OutgoingStep::Over(Some(EndCause::Failed));
        }
        if self.failures == 0 {
            return self.connect(received);
        }
        let Backoff { initial, max } = self.backoff;
        let wait = initial.saturating_mul(1 << (self.failures - 1).min(16)).min(max);
        self.retry_at = Some(now.saturating_add(wait));
        OutgoingStep::Wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Backoff = Backoff { initial: 100, max: 350 };

    #[test]
    fn attempts_are_spaced_until_a_socket_lasts() {
        let (mut queue, received) = (SendQueue::default(), ReceiveState::default());
        let mut session = Outgoing::new(1, Policy::Lossless, 9, BACKOFF);
        let mut turn = |now, input| {
            let step = session.turn(now, input, &mut queue, &received);
            (step, session.next_wake())
        };
        let confirm =
            ConnectRequest { nonce: 1, policy: Policy::Lossless, cookie: 9, established: false, in_seq: 0 };
        assert_eq!(turn(0, OutgoingEvent::Wake), (OutgoingStep::Connect(confirm), None));
        for (now, at) in [(1000, 1100), (2000, 2200), (3000, 3350), (4000, 4350)] {
            assert_eq!(turn(now, OutgoingEvent::Lost(SocketLoss::Fault)), (OutgoingStep::Wait, Some(at)));
            assert_eq!(turn(at - 1, OutgoingEvent::Wake), (OutgoingStep::Wait, Some(at)));
            assert_eq!(turn(at, OutgoingEvent::Wake), (OutgoingStep::Connect(confirm), None));
        }
        let ready = ConnectReply { outcome: SessionOutcome::New, in_seq: 0 };
        assert_eq!(turn(5000, OutgoingEvent::Ready(ready)).0, OutgoingStep::Run { restarted: false });
        let again = ConnectRequest { established: true, ..confirm };
        assert_eq!(
            turn(5000 + STEADY_NS, OutgoingEvent::Lost(SocketLoss::Fault)),
            (OutgoingStep::Connect(again), None)
        );
        let reset = ConnectReply { outcome: SessionOutcome::Reset, in_seq: 0 };
        assert_eq!(
            turn(5000 + STEADY_NS, OutgoingEvent::Ready(reset)).0,
            OutgoingStep::Run { restarted: true }
        );
        assert_eq!(
            turn(6000 + STEADY_NS, OutgoingEvent::Lost(SocketLoss::PeerClosed)).0,
            OutgoingStep::Over(Some(EndCause::PeerClosed))
        );
    }

    #[test]
    fn a_lossy_connection_ends_with_its_socket() {
        let (mut queue, received) = (SendQueue::default(), ReceiveState::default());
        let mut session = Outgoing::new(1, Policy::Lossy, 9, BACKOFF);
        assert!(matches!(
            session.turn(0, OutgoingEvent::Wake, &mut queue, &received),
            OutgoingStep::Connect(_)
        ));
        let step = session.turn(1, OutgoingEvent::Lost(SocketLoss::Fault), &mut queue, &received);
        assert_eq!(step, OutgoingStep::Over(Some(EndCause::Failed)));
    }
}
