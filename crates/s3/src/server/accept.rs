//! Failures to accept a connection: their classification, what is logged, and how long the listener pauses.
//!
//! A failure never ends the listener, which always pauses before it retries. The exception is a connection that failed
//! before it was accepted: the kernel has removed it from the queue, so the next call concerns another one.

use crate::log_limit::LogLimit;
use rustix::io::Errno;
use std::io;
use std::time::{Duration, Instant};

/// The pause after the first failure; it doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How many failures in a row the listener tolerates before it also pauses for connections that failed before they were
/// accepted.
const IN_A_ROW: u32 = 128;
/// Each kind of failure is logged once in this time.
const LOG_PERIOD: Duration = Duration::from_secs(60);

/// What failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AcceptFault {
    /// The connection: its client or the network ended it before it was accepted.
    Connection,
    /// The process or the system is out of file descriptors or memory.
    Resources,
    /// Something else, which may last.
    Listener,
}

impl AcceptFault {
    /// Classifies an error of accept(2). Linux also reports network errors that are pending on the new socket.
    pub(super) fn of(error: &io::Error) -> AcceptFault {
        match Errno::from_io_error(error) {
            Some(
                Errno::CONNABORTED
                | Errno::CONNRESET
                | Errno::HOSTDOWN
                | Errno::HOSTUNREACH
                | Errno::INTR
                | Errno::NETDOWN
                | Errno::NETUNREACH
                | Errno::NONET
                | Errno::NOPROTOOPT
                | Errno::OPNOTSUPP
                | Errno::PERM
                | Errno::PROTO
                | Errno::TIMEDOUT,
            ) => AcceptFault::Connection,
            Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => AcceptFault::Resources,
            _ => AcceptFault::Listener,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            AcceptFault::Connection => "connection",
            AcceptFault::Resources => "resources",
            AcceptFault::Listener => "listener",
        }
    }
}

/// The failures of a listener since it last accepted a connection.
#[derive(Debug)]
pub(super) struct AcceptFailures {
    in_a_row: u32,
    log: LogLimit,
    /// Whether the log reports a failure and not yet its end.
    told: bool,
}

impl AcceptFailures {
    pub(super) fn new() -> AcceptFailures {
        AcceptFailures { in_a_row: 0, log: LogLimit::new(LOG_PERIOD), told: false }
    }

    /// Logs a failure, unless one of its kind was logged recently, and returns how long the listener pauses. `closed` is
    /// whether an idle connection was closed for it, which frees resources soon.
    pub(super) fn failed(&mut self, error: &io::Error, closed: bool, now: Instant) -> Duration {
        let fault = AcceptFault::of(error);
        self.in_a_row = self.in_a_row.saturating_add(1);
        match (fault, self.log.should_log(fault.as_str(), now)) {
            (AcceptFault::Connection, _) => {
                tracing::debug!(%error, "rgw: a connection ended before it was accepted")
            }
            (_, None) => {}
            (AcceptFault::Resources, Some(omitted)) => {
                self.told = true;
                tracing::warn!(
                    %error, closed, omitted,
                    "rgw: no more connections can be accepted until others end; raise the limit of open files, or lower \
                     rgw_max_connections"
                );
            }
            (AcceptFault::Listener, Some(omitted)) => {
                self.told = true;
                tracing::error!(%error, omitted, "rgw: connections can't be accepted; it is tried again");
            }
        }
        match fault {
            AcceptFault::Connection if self.in_a_row <= IN_A_ROW => Duration::ZERO,
            _ if closed => FIRST_PAUSE,
            _ => {
                let doublings = self.in_a_row.saturating_sub(1).min(16);
                (FIRST_PAUSE * (1 << doublings)).min(LONGEST_PAUSE)
            }
        }
    }

    /// Records that a connection was accepted.
    pub(super) fn accepted(&mut self) {
        self.in_a_row = 0;
        if std::mem::take(&mut self.told) {
            tracing::info!("rgw: connections are accepted again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(errno: Errno) -> io::Error {
        errno.into()
    }

    #[test]
    fn failures_are_told_apart() {
        for (errno, fault) in [
            (Errno::CONNABORTED, AcceptFault::Connection),
            (Errno::PROTO, AcceptFault::Connection),
            (Errno::MFILE, AcceptFault::Resources),
            (Errno::NFILE, AcceptFault::Resources),
            (Errno::NOBUFS, AcceptFault::Resources),
            (Errno::NOMEM, AcceptFault::Resources),
            (Errno::INVAL, AcceptFault::Listener),
            (Errno::BADF, AcceptFault::Listener),
        ] {
            assert_eq!(AcceptFault::of(&error(errno)), fault, "{errno:?}");
        }
        assert_eq!(AcceptFault::of(&io::Error::other("not from the system")), AcceptFault::Listener);
    }

    #[test]
    fn the_listener_pauses_longer_with_each_failure_and_goes_on() {
        let (mut failures, now) = (AcceptFailures::new(), Instant::now());
        for errno in [Errno::MFILE, Errno::INVAL] {
            let pauses: Vec<u64> =
                (0..8).map(|_| failures.failed(&error(errno), false, now).as_millis() as u64).collect();
            assert_eq!(pauses, [20, 40, 80, 160, 320, 640, 1000, 1000]);
            failures.accepted();
        }
        (0..u8::MAX).for_each(|_| _ = failures.failed(&error(Errno::NFILE), false, now));
        assert_eq!(failures.failed(&error(Errno::NFILE), false, now), LONGEST_PAUSE);
        assert_eq!(failures.failed(&error(Errno::NFILE), true, now), FIRST_PAUSE, "one makes way");
    }

    #[test]
    fn connections_that_end_too_early_delay_others_only_when_all_do() {
        let (mut failures, now) = (AcceptFailures::new(), Instant::now());
        let aborted = error(Errno::CONNABORTED);
        for _ in 0..3 {
            for _ in 0..IN_A_ROW {
                assert_eq!(failures.failed(&aborted, false, now), Duration::ZERO);
            }
            assert!(!failures.failed(&aborted, false, now).is_zero());
            failures.accepted();
        }
    }

    #[test]
    fn an_operator_is_told_once_of_a_failure_that_lasts_and_of_its_end() {
        let (mut failures, now) = (AcceptFailures::new(), Instant::now());
        _ = failures.failed(&error(Errno::MFILE), false, now);
        assert!(failures.told);
        failures.accepted();
        assert!(!failures.told);
        // Every second call succeeds.
        for second in 1..60 {
            _ = failures.failed(&error(Errno::MFILE), true, now + Duration::from_secs(second));
            assert!(!failures.told, "{second}");
            failures.accepted();
        }
        _ = failures.failed(&error(Errno::MFILE), true, now + LOG_PERIOD);
        assert!(failures.told);
    }
}
