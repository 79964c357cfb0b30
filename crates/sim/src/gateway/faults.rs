//! The faults that clients of a cluster see, and how often each occurred.

use crate::random::{Random, Stream};
use crate::schedule::{MILLI, Nanos, SECOND};

/// The kinds of faults and their frequencies; rates are per mille.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// The mean time of one way between a process and the cluster.
    pub latency: Nanos,
    /// Requests that are delayed by up to [`Faults::slow`], so that others overtake them.
    pub slow_rate: u32,
    /// The longest such delay.
    pub slow: Nanos,
    /// When clients give up a request (`rados_osd_op_timeout`); 0 for never. A request that was given up may have taken effect.
    pub op_timeout: Nanos,
    /// Requests that are lost; the client gives them up. Only with an [`Faults::op_timeout`].
    pub lost_request_rate: u32,
    /// Requests that take effect but whose reply is lost; the client gives them up. Only with an [`Faults::op_timeout`].
    pub lost_reply_rate: u32,
    /// Requests that take effect after the client gave them up. Only with an [`Faults::op_timeout`].
    pub late_rate: u32,
    /// Requests in flight of a crashed process that still arrive; the others are lost with it.
    pub ghost_rate: u32,
    /// The longest time until those arrive, and until a request that was given up takes effect.
    pub ghost: Nanos,
    /// Notifications that are delivered twice.
    pub repeated_notify_rate: u32,
    /// The longest time until a PG or a session learns of a new cluster map by itself.
    pub map_spread: Nanos,
}

impl Faults {
    /// Only latency; requests of crashed processes are lost with them.
    pub fn none() -> Faults {
        Faults {
            latency: MILLI,
            slow_rate: 0,
            slow: 0,
            op_timeout: 0,
            lost_request_rate: 0,
            lost_reply_rate: 0,
            late_rate: 0,
            ghost_rate: 0,
            ghost: 0,
            repeated_notify_rate: 0,
            map_spread: 100 * MILLI,
        }
    }

    /// All kinds of faults.
    pub fn all() -> Faults {
        Faults {
            latency: MILLI,
            slow_rate: 50,
            slow: 3 * SECOND,
            op_timeout: 10 * SECOND,
            lost_request_rate: 5,
            lost_reply_rate: 5,
            late_rate: 5,
            ghost_rate: 500,
            ghost: 20 * SECOND,
            repeated_notify_rate: 100,
            map_spread: 2 * SECOND,
        }
    }
}

/// How often each kind of fault occurred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Requests executed.
    pub executed: u64,
    /// Requests that were made slow.
    pub slow: u64,
    /// Requests that arrived after one that their session sent later.
    pub overtaken: u64,
    /// Requests that were lost.
    pub lost_requests: u64,
    /// Replies that were lost.
    pub lost_replies: u64,
    /// Requests that were executed after they were given up.
    pub late: u64,
    /// Requests that arrived after the crash of their process.
    pub ghosts: u64,
    /// Requests that were lost with their process.
    pub lost_with_process: u64,
    /// Requests of blocklisted sessions that were refused.
    pub refused: u64,
    /// Requests that waited for a PG whose OSD was gone.
    pub waited: u64,
    /// Notifications that were delivered twice.
    pub repeated_notifies: u64,
    /// Watches that lapsed.
    pub lapsed: u64,
}

/// The outcome of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fate {
    /// When it arrives; `None` if it never does.
    pub(super) out: Option<Nanos>,
    /// The delay of the reply; `None` if it is lost.
    pub(super) back: Option<Nanos>,
    /// It arrives after it was given up, so it need not keep its order among the requests of its PG.
    pub(super) late: bool,
}

/// Draws faults; each kind from its own stream.
pub(super) struct FaultDraws {
    faults: Faults,
    network: Random,
    slow: Random,
    lost: Random,
    ghosts: Random,
    notifies: Random,
    maps: Random,
}

impl FaultDraws {
    pub(super) fn new(seed: u64, faults: Faults) -> FaultDraws {
        let stream = |kind| Random::new(seed, Stream::Fault(kind));
        FaultDraws {
            faults,
            network: Random::new(seed, Stream::Network),
            slow: stream(100),
            lost: stream(101),
            ghosts: stream(102),
            notifies: stream(103),
            maps: stream(104),
        }
    }

    pub(super) fn faults(&self) -> Faults {
        self.faults
    }

    pub(super) fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
    }

    /// The latency of one way.
    pub(super) fn latency(&mut self) -> Nanos {
        self.network.exponential(self.faults.latency)
    }

    /// Draws the outcome of a request.
    pub(super) fn fate(&mut self, figures: &mut FaultCounts) -> Fate {
        let faults = self.faults;
        let (mut out, back) = (self.latency(), self.latency());
        let more = self.slow.range(0, faults.slow + 1);
        if self.slow.chance(faults.slow_rate) {
            figures.slow += 1;
            out += more;
        }
        let (roll, after) = (self.lost.range(0, 1000) as u32, self.lost.range(0, faults.ghost + 1));
        let mut fate = Fate { out: Some(out), back: Some(back), late: false };
        if faults.op_timeout == 0 {
            return fate;
        }
        let lost_replies = faults.lost_request_rate + faults.lost_reply_rate;
        if roll < faults.lost_request_rate {
            figures.lost_requests += 1;
            fate.out = None;
        } else if roll < lost_replies {
            figures.lost_replies += 1;
            fate.back = None;
        } else if roll < lost_replies + faults.late_rate {
            figures.late += 1;
            fate = Fate { out: Some(faults.op_timeout + after), back: None, late: true };
        }
        fate
    }

    /// The delay after which a request of a crashed process arrives, if it does.
    pub(super) fn ghost(&mut self) -> Option<Nanos> {
        let after = self.ghosts.range(0, self.faults.ghost + 1);
        self.ghosts.chance(self.faults.ghost_rate).then_some(after)
    }

    /// Whether a notification is delivered twice.
    pub(super) fn repeats(&mut self) -> bool {
        self.notifies.chance(self.faults.repeated_notify_rate)
    }

    /// The delay until a receiver learns of a new map.
    pub(super) fn map_delay(&mut self) -> Nanos {
        self.maps.range(0, self.faults.map_spread + 1)
    }
}
