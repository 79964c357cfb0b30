//! The answering side: which session a connecting peer resumes, and when sessions end.

use crate::queue::SendQueue;
use crate::receive::ReceiveState;
use crate::{ConnectReply, ConnectRequest, EndCause, Mutation, Nanos, Rules, SessionOutcome, SocketLoss};
use nacre_types::ids::EntityName;
use std::collections::{BTreeMap, HashMap};

/// Lossless sessions of peers, by entity and cookie. `S` is the owner's handle on a session, `R` the rights with which the peer was
/// admitted.
#[derive(Debug)]
pub struct SessionTable<S, R> {
    of: HashMap<EntityName, BTreeMap<u64, Entry<S, R>>>,
    rules: Rules,
}

#[derive(Debug)]
struct Entry<S, R> {
    nonce: u64,
    /// It replaced a session that the peer knew.
    is_reset: bool,
    rights: R,
    session: S,
}

/// The admission of a connecting peer.
#[derive(Debug, PartialEq, Eq)]
pub enum SessionAdmission<S> {
    /// The peer resumes this session.
    Resume(S),
    /// A new session, which the owner must insert before it admits another peer.
    Begin,
    /// A new session once these have ended. An entity has one session: messages on the new one must not overtake those of the old one that
    /// its owner has not handled yet, or be overtaken by them.
    Supersede(Vec<S>),
}

/// The state of a session that the table needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionStatus {
    /// The session has ended.
    pub is_over: bool,
    /// See [`ReceiveState::has_heard`].
    pub has_heard: bool,
}

impl<S, R> Default for SessionTable<S, R> {
    fn default() -> Self {
        SessionTable::new(Rules::default())
    }
}

impl<S, R> SessionTable<S, R> {
    /// A table without sessions.
    pub fn new(rules: Rules) -> SessionTable<S, R> {
        SessionTable { of: HashMap::new(), rules }
    }
}

impl<S: Clone, R: PartialEq> SessionTable<S, R> {
    /// Decides the admission of a peer. A process with other rights than those the session was admitted with does not resume it.
    pub fn admit(
        &self,
        entity: &EntityName,
        rights: &R,
        confirm: &ConnectRequest,
        standing: impl Fn(&S) -> SessionStatus,
    ) -> SessionAdmission<S> {
        let Some(of_entity) = self.of.get(entity).filter(|of_entity| !of_entity.is_empty()) else {
            return SessionAdmission::Begin;
        };
        match of_entity.get(&confirm.cookie) {
            Some(entry) if self.is_same(entry, rights, confirm, standing(&entry.session)) => {
                SessionAdmission::Resume(entry.session.clone())
            }
            _ => SessionAdmission::Supersede(of_entity.values().map(|entry| entry.session.clone()).collect()),
        }
    }

    fn is_same(
        &self,
        entry: &Entry<S, R>,
        rights: &R,
        confirm: &ConnectRequest,
        standing: SessionStatus,
    ) -> bool {
        // A peer from which nothing was received may not know of the reset: it sent its earlier messages in another session.
        let knows_reset = !entry.is_reset || standing.has_heard || self.rules.breaks(Mutation::ForgetReset);
        entry.nonce == confirm.nonce && entry.rights == *rights && !standing.is_over && knows_reset
    }

    /// Inserts the session that [`SessionAdmission::Begin`] required.
    pub fn insert(&mut self, entity: EntityName, rights: R, confirm: &ConnectRequest, session: S) {
        let entry = Entry { nonce: confirm.nonce, is_reset: confirm.established, rights, session };
        self.of.entry(entity).or_default().insert(confirm.cookie, entry);
    }

    /// Removes the session if `is_meant` accepts it: a successor may have the same cookie.
    pub fn remove(&mut self, entity: &EntityName, cookie: u64, is_meant: impl Fn(&S) -> bool) {
        if let Some(of_entity) = self.of.get_mut(entity) {
            if of_entity.get(&cookie).is_some_and(|entry| is_meant(&entry.session)) {
                of_entity.remove(&cookie);
            }
            if of_entity.is_empty() {
                self.of.remove(entity);
            }
        }
    }

    /// Removes all sessions.
    pub fn clear(&mut self) {
        self.of.clear();
    }
}

/// An input of the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IncomingEvent {
    /// Only time has passed.
    Wake,
    /// The peer connected or reconnected. An earlier socket is dropped.
    Attached(ConnectRequest),
    /// The socket is lost.
    Lost(SocketLoss),
    /// This side ends the session.
    Stopped {
        /// Because the peer has another session.
        superseded: bool,
    },
}

/// The next action of the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IncomingStep {
    /// Send this answer; then the socket carries frames.
    Run {
        /// The answer.
        ready: ConnectReply,
        /// Whether it is the session's first socket: its owner is then notified.
        first: bool,
    },
    /// Wait for the peer, until [`Incoming::next_wake`].
    Wait,
    /// The session has ended. The owner is notified of the cause.
    Over(Option<EndCause>),
}

/// A lossless session.
#[derive(Debug)]
pub struct Incoming {
    timeout: Nanos,
    accepted: bool,
    lapses_at: Option<Nanos>,
}

impl Incoming {
    /// Creates a session that ends when its peer is disconnected for `timeout`.
    pub fn new(timeout: Nanos) -> Incoming {
        Incoming { timeout, accepted: false, lapses_at: None }
    }

    /// When the session needs [`IncomingEvent::Wake`], while it waits.
    pub fn next_wake(&self) -> Option<Nanos> {
        self.lapses_at
    }

    /// Handles an input. `queue` and `received` are the session's.
    pub fn turn(
        &mut self,
        now: Nanos,
        input: IncomingEvent,
        queue: &mut SendQueue,
        received: &ReceiveState,
    ) -> IncomingStep {
        let step = match input {
            IncomingEvent::Wake if self.lapses_at.is_none_or(|at| at > now) => IncomingStep::Wait,
            IncomingEvent::Wake => IncomingStep::Over(Some(EndCause::Lapsed)),
            IncomingEvent::Attached(confirm) => self.attach(&confirm, queue, received),
            IncomingEvent::Lost(SocketLoss::Fault) => {
                self.lapses_at = Some(now.saturating_add(self.timeout));
                IncomingStep::Wait
            }
            IncomingEvent::Lost(SocketLoss::LocalClosed) => IncomingStep::Over(None),
            IncomingEvent::Lost(SocketLoss::PeerClosed) => IncomingStep::Over(Some(EndCause::PeerClosed)),
            IncomingEvent::Lost(SocketLoss::Idle) => IncomingStep::Over(Some(EndCause::Idle)),
            IncomingEvent::Stopped { superseded } => {
                IncomingStep::Over(superseded.then_some(EndCause::PeerRestarted))
            }
        };
        match step {
            // The owner was never notified of the session.
            IncomingStep::Over(_) if !self.accepted => IncomingStep::Over(None),
            step => step,
        }
    }

    fn attach(
        &mut self,
        confirm: &ConnectRequest,
        queue: &mut SendQueue,
        received: &ReceiveState,
    ) -> IncomingStep {
        let first = !self.accepted;
        let outcome = match (first, confirm.established) {
            (true, true) => SessionOutcome::Reset,
            (true, false) => SessionOutcome::New,
            (false, _) => SessionOutcome::Resumed,
        };
        let peer_has = if first { 0 } else { confirm.in_seq };
        if queue.resume(peer_has).is_err() {
            return IncomingStep::Over(Some(EndCause::PeerRestarted));
        }
        self.accepted = true;
        self.lapses_at = None;
        let in_seq = received.last();
        received.mark_acked(in_seq);
        IncomingStep::Run { ready: ConnectReply { outcome, in_seq }, first }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Policy;
    use nacre_types::OsdId;

    const FRESH: ConnectRequest =
        ConnectRequest { nonce: 3, policy: Policy::Lossless, cookie: 9, established: false, in_seq: 0 };
    const KNOWN: ConnectRequest = ConnectRequest { established: true, ..FRESH };

    fn entity() -> EntityName {
        EntityName::osd(OsdId(4))
    }

    fn standing(has_heard: bool) -> impl Fn(&u32) -> SessionStatus {
        move |_| SessionStatus { is_over: false, has_heard }
    }

    #[test]
    fn a_peer_returns_to_its_session_and_another_process_ends_it() {
        let mut table = SessionTable::default();
        assert_eq!(table.admit(&entity(), &"rw", &FRESH, standing(false)), SessionAdmission::Begin);
        table.insert(entity(), "rw", &FRESH, 1);
        assert_eq!(table.admit(&entity(), &"rw", &KNOWN, standing(false)), SessionAdmission::Resume(1));
        // The answer to the peer was lost.
        assert_eq!(table.admit(&entity(), &"rw", &FRESH, standing(false)), SessionAdmission::Resume(1));
        let over = |_: &u32| SessionStatus { is_over: true, has_heard: true };
        assert_eq!(table.admit(&entity(), &"rw", &KNOWN, over), SessionAdmission::Supersede(vec![1]));
        for (rights, confirm) in [
            ("r", KNOWN),
            ("rw", ConnectRequest { nonce: 4, ..KNOWN }),
            ("rw", ConnectRequest { cookie: 10, ..FRESH }),
        ] {
            let admission = table.admit(&entity(), &rights, &confirm, standing(true));
            assert_eq!(admission, SessionAdmission::Supersede(vec![1]));
        }
        table.remove(&entity(), FRESH.cookie, |session| *session == 2);
        assert_eq!(table.admit(&entity(), &"rw", &KNOWN, standing(true)), SessionAdmission::Resume(1));
        table.remove(&entity(), FRESH.cookie, |session| *session == 1);
        assert_eq!(table.admit(&entity(), &"rw", &KNOWN, standing(true)), SessionAdmission::Begin);
    }

    #[test]
    fn a_reset_is_said_again_until_the_peer_has_heard_of_it() {
        let mut table = SessionTable::default();
        table.insert(entity(), "rw", &KNOWN, 1);
        let admission = table.admit(&entity(), &"rw", &KNOWN, standing(false));
        assert_eq!(admission, SessionAdmission::Supersede(vec![1]), "the answer may have been lost");
        assert_eq!(table.admit(&entity(), &"rw", &KNOWN, standing(true)), SessionAdmission::Resume(1));
    }

    #[test]
    fn sessions_outlive_sockets_and_lapse() {
        let (mut queue, received) = (SendQueue::default(), ReceiveState::default());
        let mut session = Incoming::new(100);
        let mut turn = |now, input| {
            let step = session.turn(now, input, &mut queue, &received);
            (step, session.next_wake())
        };
        let ready = |outcome| ConnectReply { outcome, in_seq: 0 };
        let first = IncomingStep::Run { ready: ready(SessionOutcome::Reset), first: true };
        assert_eq!(turn(0, IncomingEvent::Attached(KNOWN)), (first, None));
        assert_eq!(turn(10, IncomingEvent::Lost(SocketLoss::Fault)), (IncomingStep::Wait, Some(110)));
        let again = IncomingStep::Run { ready: ready(SessionOutcome::Resumed), first: false };
        assert_eq!(turn(20, IncomingEvent::Attached(KNOWN)), (again, None));
        assert_eq!(turn(30, IncomingEvent::Lost(SocketLoss::Fault)), (IncomingStep::Wait, Some(130)));
        assert_eq!(turn(129, IncomingEvent::Wake).0, IncomingStep::Wait);
        assert_eq!(turn(130, IncomingEvent::Wake).0, IncomingStep::Over(Some(EndCause::Lapsed)));
        let mut unheard = Incoming::new(100);
        let step = unheard.turn(0, IncomingEvent::Stopped { superseded: true }, &mut queue, &received);
        assert_eq!(step, IncomingStep::Over(None), "its owner knows nothing of it");
    }
}
