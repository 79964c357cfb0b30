//! Counts how often bounds were reached: a bound that no run reaches is not tested.
//!
//! Each [`Bound`] is counted where the world observes it: in messages, in events of an OSD, and on disks at the end of a run.

use nacre_pg::PeerMsg;
use nacre_types::errno::Errno;
use nacre_types::msg::OsdReply;
use std::collections::BTreeMap;
use std::fmt;

/// Bytes of the data of a large object.
const LONG_DATA: u64 = 64 << 20;
/// Entries of a large omap.
pub const LONG_OMAP: usize = 900_000;
/// Omap entries of one piece of an object (`OMAP_STEP_ENTRIES` of `nacre-exec`).
const OMAP_PIECE: usize = 4_096;
/// Objects that a backfill lists in one step (`osd_backfill_scan_max`).
pub const BACKFILL_SCAN_OBJECTS: usize = 512;

macro_rules! bounds {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $often:literal;)*) => {
        /// Bounds, and the effects of reaching them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Bound { $($(#[$doc])* $name,)* }

        impl Bound {
            /// All bounds.
            pub const ALL: &[Bound] = &[$(Bound::$name,)*];

            /// The name in reports.
            pub fn name(self) -> &'static str {
                match self { $(Bound::$name => $text,)* }
            }

            /// Whether the usual profiles reach it; the long ones reach all.
            pub fn is_usual(self) -> bool {
                match self { $(Bound::$name => $often,)* }
            }
        }
    };
}

bounds! {
    /// A PG's log was trimmed (copies at the end).
    LogTrimmed = "log-trimmed", true;
    /// Dup records of requests that left the log are kept (copies at the end).
    DupRetained = "dup-retained", true;
    /// Dup records were dropped permanently and replaced by a floor (copies at the end).
    DupDropped = "dup-dropped", true;
    /// Sessions were removed completely (copies at the end).
    ClientsForgotten = "clients-forgotten", true;
    /// A client's session expired in a PG.
    SessionExpired = "session-expired", true;
    /// A request was refused because its outcome is no longer known (ESTALE).
    Forgotten = "estale", true;
    /// A client continued with a new session.
    NewSession = "new-session", true;
    /// An operation waited for the writes in flight.
    WritesInFlight = "writes-in-flight", true;
    /// A request was sent back because the maximum number of requests was waiting.
    RequestsHeld = "requests-held", true;
    /// A request was sent back for any reason.
    Backoff = "backoff", true;
    /// A write was refused by a full store or pool (ENOSPC).
    NoSpace = "no-space", true;
    /// An object can't be read anywhere (EIO).
    Unfound = "unfound", true;
    /// A watch lapsed.
    WatchLapsed = "watch-lapsed", true;
    /// A notify ended before all watchers had answered.
    NotifyTimeout = "notify-timeout", true;
    /// A message contained several incremental maps.
    MapBatch = "map-batch", true;
    /// A receiver was so far behind that it got a full map.
    MapWhole = "map-whole", true;
    /// A client got incremental maps that do not follow its own.
    MapGap = "map-gap", true;
    /// An OSD requested maps that it had not received.
    MapAsked = "map-asked", true;
    /// The map authority refused a proposal.
    CasRefused = "cas-refused", true;
    /// A proposal's answer was lost.
    CasUnknown = "cas-unknown", true;
    /// A member was filled by a backfill.
    Backfill = "backfill", true;
    /// A backfill listed a collection in several steps.
    ScanGoesOn = "scan-goes-on", true;
    /// An object was sent in several pieces.
    Pieces = "pieces", true;
    /// An actor stalled when it read the clock.
    StallClock = "stall-clock", true;
    /// An actor stalled when it read the store.
    StallRead = "stall-read", true;
    /// An actor stalled when it wrote to the store.
    StallWrite = "stall-write", true;
    /// An actor stalled when it sent something.
    StallSend = "stall-send", true;
    /// The control actor stalled; no heartbeats are sent meanwhile.
    StallControl = "stall-control", true;
    /// A message waited for others to leave its machine.
    Bandwidth = "bandwidth", false;
    /// An object of 64 MiB or more was sent to a member whole, in pieces.
    LongPush = "long-push", false;
    /// A piece of an object contained the maximum number of omap entries.
    OmapPiece = "omap-piece", false;
    /// A page of an omap listing had the maximum number of entries, and others followed.
    OmapPage = "omap-page", false;
    /// An omap has 900 000 entries or more (copies at the end).
    LongOmap = "long-omap", false;
    /// A member that is backfilled listed as many objects in one step as in production.
    LongScan = "long-scan", false;
    /// A page of a pool listing had the maximum number of names.
    LongPage = "long-page", false;
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Counts of bounds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BoundCounts(BTreeMap<Bound, u64>);

impl BoundCounts {
    /// Adds `times` to the count of a bound.
    pub fn add(&mut self, bound: Bound, times: u64) {
        if times > 0 {
            *self.0.entry(bound).or_default() += times;
        }
    }

    /// Adds another's counts.
    pub fn merge(&mut self, other: &BoundCounts) {
        other.0.iter().for_each(|(bound, times)| self.add(*bound, *times));
    }

    /// How often the bound was reached.
    pub fn of(&self, bound: Bound) -> u64 {
        self.0.get(&bound).copied().unwrap_or_default()
    }

    /// The bound that an answer indicates.
    pub fn of_reply(reply: &OsdReply) -> Option<Bound> {
        match Errno(-reply.result) {
            Errno::ESTALE => Some(Bound::Forgotten),
            Errno::ENOSPC => Some(Bound::NoSpace),
            Errno::ETIMEDOUT => Some(Bound::NotifyTimeout),
            _ => None,
        }
    }

    /// The bound that a message between OSDs indicates.
    pub fn of_peer(message: &PeerMsg) -> Option<Bound> {
        match message {
            PeerMsg::CatchUp { backfill: true, .. } => Some(Bound::Backfill),
            PeerMsg::Scan { from: Some(_), .. } => Some(Bound::ScanGoesOn),
            PeerMsg::ScanReply { objects, end: false, .. } if objects.len() >= BACKFILL_SCAN_OBJECTS => {
                Some(Bound::LongScan)
            }
            PeerMsg::Push { piece: Some(piece), .. } if piece.next.is_none() && piece.size >= LONG_DATA => {
                Some(Bound::LongPush)
            }
            PeerMsg::Push { piece: Some(piece), .. } if piece.omap.len() >= OMAP_PIECE => {
                Some(Bound::OmapPiece)
            }
            PeerMsg::Push { piece: Some(piece), .. } | PeerMsg::TailObject { piece: Some(piece), .. } => {
                (!piece.is_first()).then_some(Bound::Pieces)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_add_up() {
        let (mut some, mut more) = (BoundCounts::default(), BoundCounts::default());
        some.add(Bound::NoSpace, 2);
        more.add(Bound::NoSpace, 3);
        more.add(Bound::Pieces, 0);
        some.merge(&more);
        assert_eq!((some.of(Bound::NoSpace), some.of(Bound::Pieces)), (5, 0));
        let names: std::collections::BTreeSet<_> = Bound::ALL.iter().map(|bound| bound.name()).collect();
        assert_eq!(names.len(), Bound::ALL.len());
    }
}
