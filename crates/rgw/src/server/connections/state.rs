//! What one connection waits for, and since when.

use super::Limits;
use crate::server::RequestInfo;
use parking_lot::Mutex;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// What a connection is in the middle of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// TLS is being agreed on.
    Handshake,
    /// Nothing has come yet.
    Silent,
    /// The head of a request is coming.
    Head,
    /// A request was answered, and no other one has come.
    Between,
    /// A request is served.
    Busy,
    /// It is told to end.
    GivenUp,
}

const PHASES: [Phase; 6] =
    [Phase::Handshake, Phase::Silent, Phase::Head, Phase::Between, Phase::Busy, Phase::GivenUp];

/// A connection. Times are milliseconds since the server began.
#[derive(Debug)]
pub(in crate::server) struct Connection {
    pub(super) id: u64,
    pub(super) address: IpAddr,
    began: Instant,
    idle: Duration,
    /// The phase in the lowest 3 bits, above them the time at which it began.
    state: AtomicU64,
    body: Stall,
    answer: Stall,
    /// The request has its answer, which may be on its way.
    answered: AtomicBool,
    /// The body did not come in time.
    timed_out: AtomicBool,
    request: Mutex<Option<Arc<RequestInfo>>>,
    given_up: Notify,
}

/// Waiting for a client. Time waited is a debt that bytes pay off, so that neither silence nor a trickle goes on for long,
/// and no credit is kept.
#[derive(Debug)]
struct Stall {
    /// When the waiting began, plus one; 0 where nothing is waited for.
    since: AtomicU64,
    debt_ms: AtomicU64,
    min_rate: u64,
}

impl Stall {
    fn new(min_rate: u64) -> Stall {
        Stall { since: AtomicU64::new(0), debt_ms: AtomicU64::new(0), min_rate }
    }

    fn reset(&self) {
        self.since.store(0, Ordering::Relaxed);
        self.debt_ms.store(0, Ordering::Relaxed);
    }

    fn wait(&self, now: u64) {
        // It fails if the connection waits already.
        _ = self.since.compare_exchange(0, now + 1, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Something came or went.
    fn progress(&self, now: u64, bytes: usize) {
        let since = self.since.swap(0, Ordering::Relaxed);
        let waited = if since == 0 { 0 } else { (now + 1).saturating_sub(since) };
        let paid = match self.min_rate {
            0 => u64::MAX,
            rate => (bytes as u64).saturating_mul(1000) / rate,
        };
        let debt = self.debt_ms.load(Ordering::Relaxed);
        if debt > 0 || waited > 0 {
            self.debt_ms.store((debt + waited).saturating_sub(paid), Ordering::Relaxed);
        }
    }

    fn since(&self) -> Option<u64> {
        self.since.load(Ordering::Relaxed).checked_sub(1)
    }

    fn owed(&self, now: u64) -> Duration {
        let waited = self.since().map_or(0, |since| now.saturating_sub(since));
        Duration::from_millis(self.debt_ms.load(Ordering::Relaxed) + waited)
    }
}

impl Connection {
    pub(super) fn new(id: u64, address: IpAddr, began: Instant, limits: &Limits, tls: bool) -> Connection {
        let connection = Connection {
            id,
            address,
            began,
            idle: limits.idle,
            state: AtomicU64::new(0),
            body: Stall::new(limits.min_rate),
            answer: Stall::new(limits.min_rate),
            answered: AtomicBool::new(false),
            timed_out: AtomicBool::new(false),
            request: Mutex::new(None),
            given_up: Notify::new(),
        };
        let phase = if tls { Phase::Handshake } else { Phase::Silent };
        connection.state.store(pack(phase, connection.now()), Ordering::Release);
        connection
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX >> 3)
    }

    /// The phase, and when it began.
    pub(super) fn phase(&self) -> (Phase, Duration) {
        unpack(self.state.load(Ordering::Acquire))
    }

    /// Changes from one of `from` to `to`; false where it is in another phase.
    fn change(&self, from: &[Phase], to: Phase) -> bool {
        let next = pack(to, self.now());
        let changed = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| {
            from.contains(&unpack(state).0).then_some(next)
        });
        changed.is_ok()
    }

    /// TLS is agreed on.
    pub(in crate::server) fn shook_hands(&self) {
        self.change(&[Phase::Handshake], Phase::Silent);
    }

    /// Bytes have come.
    pub(in crate::server) fn received(&self) {
        match self.phase().0 {
            Phase::Silent | Phase::Between => {
                self.change(&[Phase::Silent, Phase::Between], Phase::Head);
            }
            // How many count is known when their frames are read.
            Phase::Busy => self.body.progress(self.now(), 0),
            _ => {}
        }
    }

    /// A request begins; false where the connection is told to end.
    pub(in crate::server) fn begin(&self) -> bool {
        self.body.reset();
        self.answer.reset();
        self.answered.store(false, Ordering::Release);
        self.timed_out.store(false, Ordering::Release);
        *self.request.lock() = None;
        self.change(&[Phase::Silent, Phase::Head, Phase::Between, Phase::Busy], Phase::Busy)
    }

    /// What is known of the request.
    pub(in crate::server) fn set_request(&self, info: Arc<RequestInfo>) {
        *self.request.lock() = Some(info);
    }

    /// Whether the request is that of a user whose signature was right.
    pub(super) fn is_known(&self) -> bool {
        self.request.lock().as_ref().is_some_and(|info| info.is_known())
    }

    /// The answer is complete, and is sent as fast as the client takes it.
    pub(in crate::server) fn answered(&self) {
        self.answered.store(true, Ordering::Release);
    }

    /// Everything was sent.
    pub(in crate::server) fn flushed(&self) {
        if self.answered.load(Ordering::Acquire) && self.answered.swap(false, Ordering::AcqRel) {
            *self.request.lock() = None;
            self.change(&[Phase::Busy], Phase::Between);
        }
    }

    /// The gateway waits for bytes of the body.
    pub(in crate::server) fn body_awaited(&self) {
        self.body.wait(self.now());
    }

    /// So many bytes of the body were read.
    pub(in crate::server) fn body_came(&self, bytes: usize) {
        self.body.progress(self.now(), bytes);
    }

    /// How long the gateway waits for more of the body; zero where it has waited long enough.
    pub(in crate::server) fn body_patience(&self) -> Duration {
        self.idle.saturating_sub(self.body_owed())
    }

    pub(super) fn body_owed(&self) -> Duration {
        self.body.owed(self.now())
    }

    /// The body did not come in time.
    pub(in crate::server) fn time_out(&self) {
        self.timed_out.store(true, Ordering::Release);
    }

    /// Whether the body did not come in time.
    pub(in crate::server) fn has_timed_out(&self) -> bool {
        self.timed_out.load(Ordering::Acquire)
    }

    /// The client takes nothing of the answer.
    pub(in crate::server) fn answer_waits(&self) {
        self.answer.wait(self.now());
    }

    /// The client took so many bytes.
    pub(in crate::server) fn answer_taken(&self, bytes: usize) {
        self.answer.progress(self.now(), bytes);
    }

    pub(super) fn answer_owed(&self) -> Duration {
        self.answer.owed(self.now())
    }

    /// Since when the gateway waits for the client in the middle of a request.
    pub(super) fn stalled_since(&self) -> Option<Duration> {
        self.body.since().or(self.answer.since()).map(Duration::from_millis)
    }

    /// Tells it to end; false where it was told before.
    pub(super) fn give_up(&self) -> bool {
        let told = self.change(&PHASES[..5], Phase::GivenUp);
        if told {
            self.given_up.notify_one();
        }
        told
    }

    /// Tells it to end, unless it has left the phase that `seen` ([`Connection::phase`]) says: its thread may have started a
    /// request meanwhile. False where it has, and where it was told before.
    pub(super) fn give_up_if_still(&self, seen: (Phase, Duration)) -> bool {
        let state = pack(seen.0, u64::try_from(seen.1.as_millis()).unwrap_or(u64::MAX >> 3));
        let next = pack(Phase::GivenUp, self.now());
        let told = seen.0 != Phase::GivenUp
            && self.state.compare_exchange(state, next, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if told {
            self.given_up.notify_one();
        }
        told
    }

    /// Waits until it is told to end.
    pub(in crate::server) async fn given_up(&self) {
        self.given_up.notified().await;
    }
}

fn pack(phase: Phase, at: u64) -> u64 {
    at << 3 | phase as u64
}

fn unpack(state: u64) -> (Phase, Duration) {
    let phase = PHASES.get((state & 7) as usize).copied().unwrap_or(Phase::GivenUp);
    (phase, Duration::from_millis(state >> 3))
}
