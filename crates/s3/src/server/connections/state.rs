//! The state of a connection: what it waits for, and since when.

use super::ConnectionLimits;
use crate::server::RequestInfo;
use parking_lot::Mutex;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// The phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The TLS handshake is in progress.
    Handshake,
    /// No byte of a request has arrived yet.
    Silent,
    /// The head of a request is arriving.
    Head,
    /// A request was answered, and no other one has arrived.
    Between,
    /// A request is being served.
    Busy,
    /// The connection was told to close.
    Closing,
}

const PHASES: [Phase; 6] =
    [Phase::Handshake, Phase::Silent, Phase::Head, Phase::Between, Phase::Busy, Phase::Closing];

/// A connection. Times are milliseconds since the server started.
#[derive(Debug)]
pub(in crate::server) struct Connection {
    pub(super) id: u64,
    pub(super) address: IpAddr,
    began: Instant,
    idle: Duration,
    /// The phase in the lowest 3 bits, and above them the time at which it began.
    state: AtomicU64,
    body: Stall,
    answer: Stall,
    /// Whether the answer is complete. It may not be sent yet.
    answered: AtomicBool,
    /// Whether the body did not arrive in time.
    timed_out: AtomicBool,
    request: Mutex<Option<Arc<RequestInfo>>>,
    given_up: Notify,
}

/// The time spent waiting for a client. Waiting adds to a debt and transferred bytes reduce it, so that neither silence nor
/// a trickle can last long. The debt never becomes negative: earlier transfers earn no credit.
#[derive(Debug)]
struct Stall {
    /// When the wait began, plus one; 0 if the gateway does not wait.
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
        // This fails if a wait is already in progress.
        _ = self.since.compare_exchange(0, now + 1, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Records that `bytes` were transferred, and ends a wait.
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
    pub(super) fn new(
        id: u64,
        address: IpAddr,
        began: Instant,
        limits: &ConnectionLimits,
        tls: bool,
    ) -> Connection {
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

    /// Returns the phase, and when it began.
    pub(super) fn phase(&self) -> (Phase, Duration) {
        unpack(self.state.load(Ordering::Acquire))
    }

    /// Changes the phase from one of `from` to `to`; returns false if it is none of `from`.
    fn change(&self, from: &[Phase], to: Phase) -> bool {
        let next = pack(to, self.now());
        let changed = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| {
            from.contains(&unpack(state).0).then_some(next)
        });
        changed.is_ok()
    }

    /// Records that the TLS handshake is complete.
    pub(in crate::server) fn handshake_done(&self) {
        self.change(&[Phase::Handshake], Phase::Silent);
    }

    /// Records that bytes have arrived.
    pub(in crate::server) fn received(&self) {
        match self.phase().0 {
            Phase::Silent | Phase::Between => {
                self.change(&[Phase::Silent, Phase::Between], Phase::Head);
            }
            // The number of body bytes is known only when their frames are read.
            Phase::Busy => self.body.progress(self.now(), 0),
            _ => {}
        }
    }

    /// Begins a request; returns false if the connection was told to close.
    pub(in crate::server) fn begin(&self) -> bool {
        self.body.reset();
        self.answer.reset();
        self.answered.store(false, Ordering::Release);
        self.timed_out.store(false, Ordering::Release);
        *self.request.lock() = None;
        self.change(&[Phase::Silent, Phase::Head, Phase::Between, Phase::Busy], Phase::Busy)
    }

    /// Sets the information about the request.
    pub(in crate::server) fn set_request(&self, info: Arc<RequestInfo>) {
        *self.request.lock() = Some(info);
    }

    /// Returns whether the request is from a user whose signature is valid.
    pub(super) fn is_authenticated(&self) -> bool {
        self.request.lock().as_ref().is_some_and(|info| info.is_authenticated())
    }

    /// Records that the answer is complete. It is sent as fast as the client takes it.
    pub(in crate::server) fn answered(&self) {
        self.answered.store(true, Ordering::Release);
    }

    /// Records that everything was sent. If the answer is complete, the request ends.
    pub(in crate::server) fn flushed(&self) {
        if self.answered.load(Ordering::Acquire) && self.answered.swap(false, Ordering::AcqRel) {
            *self.request.lock() = None;
            self.change(&[Phase::Busy], Phase::Between);
        }
    }

    /// Records that the gateway waits for bytes of the body.
    pub(in crate::server) fn begin_body_wait(&self) {
        self.body.wait(self.now());
    }

    /// Records that `bytes` of the body were read.
    pub(in crate::server) fn body_progress(&self, bytes: usize) {
        self.body.progress(self.now(), bytes);
    }

    /// Returns how long the gateway waits for more of the body; zero once it has waited long enough.
    pub(in crate::server) fn body_time_left(&self) -> Duration {
        self.idle.saturating_sub(self.body_stall_time())
    }

    pub(super) fn body_stall_time(&self) -> Duration {
        self.body.owed(self.now())
    }

    /// Records that the body did not arrive in time.
    pub(in crate::server) fn time_out(&self) {
        self.timed_out.store(true, Ordering::Release);
    }

    /// Returns whether the body did not arrive in time.
    pub(in crate::server) fn has_timed_out(&self) -> bool {
        self.timed_out.load(Ordering::Acquire)
    }

    /// Records that the gateway waits for the client to take bytes of the answer.
    pub(in crate::server) fn begin_answer_wait(&self) {
        self.answer.wait(self.now());
    }

    /// Records that the client took `bytes` of the answer.
    pub(in crate::server) fn answer_progress(&self, bytes: usize) {
        self.answer.progress(self.now(), bytes);
    }

    pub(super) fn answer_stall_time(&self) -> Duration {
        self.answer.owed(self.now())
    }

    /// Returns since when the gateway has waited for the client during a request; `None` if it does not wait.
    pub(super) fn stalled_since(&self) -> Option<Duration> {
        self.body.since().or(self.answer.since()).map(Duration::from_millis)
    }

    /// Tells the connection to close; returns false if it was told before.
    pub(super) fn request_close(&self) -> bool {
        let told = self.change(&PHASES[..5], Phase::Closing);
        if told {
            self.given_up.notify_one();
        }
        told
    }

    /// Tells the connection to close if it is still in the phase `seen` ([`Connection::phase`]): another thread may have
    /// started a request meanwhile. Returns false if the phase has changed, or if the connection was told before.
    pub(super) fn request_close_if(&self, seen: (Phase, Duration)) -> bool {
        let state = pack(seen.0, u64::try_from(seen.1.as_millis()).unwrap_or(u64::MAX >> 3));
        let next = pack(Phase::Closing, self.now());
        let told = seen.0 != Phase::Closing
            && self.state.compare_exchange(state, next, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if told {
            self.given_up.notify_one();
        }
        told
    }

    /// Waits until the connection is told to close.
    pub(in crate::server) async fn wait_close_requested(&self) {
        self.given_up.notified().await;
    }
}

fn pack(phase: Phase, at: u64) -> u64 {
    at << 3 | phase as u64
}

fn unpack(state: u64) -> (Phase, Duration) {
    let phase = PHASES.get((state & 7) as usize).copied().unwrap_or(Phase::Closing);
    (phase, Duration::from_millis(state >> 3))
}
