//! Rules broken on purpose.
//!
//! A simulator that finds nothing proves nothing unless it is known to find existing defects. For each rule of the design (R1
//! to R10) at least one breach is built into the machines; `tests/mutations.rs` runs each and fails if it is not noticed.

use std::str::FromStr;

macro_rules! mutations {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $rule:literal, [$($notices:expr),*];)*) => {
        /// A rule broken on purpose.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Mutation { $($(#[$doc])* $name,)* }

        impl Mutation {
            /// All mutations.
            pub const ALL: &[Mutation] = &[$(Mutation::$name,)*];

            /// The name in options.
            pub fn name(self) -> &'static str {
                match self { $(Mutation::$name => $text,)* }
            }

            /// The rule that it breaks.
            pub fn rule(self) -> &'static str {
                match self { $(Mutation::$name => $rule,)* }
            }

            /// The invariants that notice it, as named by [`crate::Failure::rule`]; empty if another rule compensates for the breach.
            pub fn noticed_by(self) -> &'static [&'static str] {
                match self { $(Mutation::$name => &[$($notices),*],)* }
            }
        }
    };
}

mutations! {
    /// A shrinking proposal counts as accepted before its outcome is known.
    AckBeforeCasOutcome = "ack-before-cas-outcome", "R1", ["an in-sync disk lacks an acknowledged write"];
    /// Members that a proposal would add are ignored until a map confirms it.
    IgnoreProposedMembers = "ignore-proposed-members", "R1", ["an in-sync disk lacks an acknowledged write"];
    /// A wiped member counts as an empty but valid copy.
    TrustWipedMember = "trust-wiped-member", "R2", ["an OSD stops"];
    /// A new primary does not adopt the longest log.
    SkipTailRepair = "skip-tail-repair", "R3", ["an in-sync disk lacks an acknowledged write"];
    /// Operations of the old interval are still accepted after the promotion was proposed.
    AcceptOldIntervalOps = "accept-old-interval-ops", "R3", [];
    /// A restarted primary orders in the map's interval even if its own record has another one.
    ReuseInterval = "reuse-interval", "R3", ["replicas differ at rest", "two processes order in one interval"];
    /// Reads do not wait for earlier writes to commit.
    ReadUncommitted = "read-uncommitted", "R3", ["lost write", "not linearizable"];
    /// Reads are answered without a lease.
    IgnoreLease = "ignore-lease", "R4", ["two primaries serve at one instant"];
    /// A new primary serves before the old one's leases have expired.
    SkipLeaseWait = "skip-lease-wait", "R4", ["two primaries serve at one instant"];
    /// Clocks drift beyond the stated bound.
    WildClocks = "wild-clocks", "R4", ["two primaries serve at one instant"];
    /// Leases are checked with a time from before the store was read.
    JudgeBeforeRead = "judge-before-read", "R4", [];
    /// Leases and deadlines are checked with the time at which the turn began, however long its calls took.
    JudgeByTurn = "judge-by-turn", "R4",
        ["not linearizable", "a watch is lost before its time", "a notify completes without a watcher"];
    /// The in-sync set shrinks below min_size.
    ShrinkBelowMinSize = "shrink-below-min-size", "R5", ["the cluster does not become whole again", "a PG is not active in time"];
    /// Writes are acknowledged below min_size, without the dead members.
    AckBelowMinSize = "ack-below-min-size", "R5", ["an in-sync disk lacks an acknowledged write"];
    /// Dup records are not kept.
    ForgetDups = "forget-dups", "R6", ["a resend was answered differently", "write applied twice", "not linearizable"];
    /// Requests that succeeded without a change are not recorded.
    ForgetUnchanged = "forget-unchanged", "R6", ["a resend was answered differently", "not linearizable"];
    /// Operations sent before the interval began are executed.
    ExecuteStaleOps = "execute-stale-ops", "R6", [];
    /// After a restore the map's record takes precedence over a higher one on disk.
    IgnoreHighestRecord = "ignore-highest-record", "R7", ["an in-sync disk lacks an acknowledged write"];
    /// The old replica is dropped before the target is filled.
    DropBeforeFilled = "drop-before-filled", "R8", [];
    /// Writes past the backfill cursor are applied.
    ApplyPastCursor = "apply-past-cursor", "R8", ["one version, two contents", "an in-sync disk lacks an acknowledged content"];
    /// A member enters the set before its missing objects have arrived.
    JoinWithMissing = "join-with-missing", "R8", ["not linearizable", "the cluster does not become whole again", "an in-sync disk lacks an acknowledged content"];
    /// Nothing is fetched or sent for a damaged object.
    SkipMending = "skip-mending", "R10", ["an object is refused that a member in sync has"];
    /// A refused proposal is ignored, although an earlier copy of it may be in transit.
    ForgetRefused = "forget-refused", "R1", ["an in-sync disk lacks an acknowledged write"];
    /// An OSD that runs with another store counts as the same member.
    IgnoreIncarnation = "ignore-incarnation", "R2", ["the cluster does not become whole again", "a PG is not active in time"];
    /// A new primary treats members that are behind as equal.
    SkipLevelling = "skip-levelling", "R3", ["an in-sync disk lacks an acknowledged write"];
    /// A query is answered before the answer is durable.
    VolatilePromise = "volatile-promise", "R3", ["an in-sync disk lacks an acknowledged write"];
    /// A member acknowledges updates before they are durable.
    AckUndurable = "ack-undurable", "R3", ["an in-sync disk lacks an acknowledged write"];
    /// A primary answers before an update is durable on its own disk.
    ReplyBeforeDurable = "reply-before-durable", "R3", ["an in-sync disk lacks an acknowledged write"];
    /// Resends of forgotten requests are executed.
    ExecuteForgotten = "execute-forgotten", "R6", ["a resend was answered differently", "not linearizable"];
    /// A member is backfilled without the dup records.
    FillWithoutDups = "fill-without-dups", "R6", ["a resend was answered differently", "not linearizable"];
    /// Objects of divergent updates are kept when a member is filled.
    KeepDivergent = "keep-divergent", "R8",
        ["not linearizable", "write applied twice", "replicas differ at rest", "a listing shows an absent object", "an in-sync disk lacks an acknowledged content", "one version, two contents"];
    /// Objects that are damaged on both sides count as equal in a backfill.
    TakeDamagedForEqual = "take-damaged-for-equal", "R10", ["replicas differ at rest", "a PG is not active in time"];
    /// A new primary ignores the watches in objects' infos.
    ForgetWatchers = "forget-watchers", "R9", ["a notify completes without a watcher"];
    /// A notify that was executed in an earlier interval is sent only to the watchers in the current table.
    NotifyUnread = "notify-unread", "R9", ["a notify completes without a watcher"];
    /// A watch lapses before its timeout.
    LapseEarly = "lapse-early", "R9", ["a watch is lost before its time", "a notify completes without a watcher"];
    /// A member records an update in its log, and does not apply it.
    LogWithoutChange = "log-without-change", "R3",
        ["an in-sync disk lacks an acknowledged content", "one version, two contents"];
    /// A member adds any piece to the object that arrives, whether or not it continues it.
    TakeAnyPiece = "take-any-piece", "R3", ["one version, two contents", "an in-sync disk lacks an acknowledged content"];
    /// Sessions expire although their clients are active.
    ExpireEarly = "expire-early", "R6", ["a session ends although its client is heard"];
    /// Requests of sessions on the blocklist are executed.
    IgnoreBlocklist = "ignore-blocklist", "R6",
        ["not linearizable", "a notify completes without a watcher"];
    /// Listings omit objects that the primary lacks.
    ListWithoutMissing = "list-without-missing", "R10", ["a listing misses an object"];
    /// A message counts as received as soon as its header has arrived.
    CountUnread = "count-unread", "sessions", ["a session repeats or skips a message"];
    /// Unacknowledged messages are not sent again after a reconnect.
    ForgetUnacked = "forget-unacked", "sessions", ["the cluster does not become whole again", "a PG is not active in time"];
    /// A reset is not repeated although the connecting side may not have received it.
    ForgetReset = "forget-reset", "sessions", ["a session repeats or skips a message"];
    /// Dirty objects are evicted from a cache.
    EvictDirty = "evict-dirty", "tiers", ["the cluster does not become whole again", "stale read", "not linearizable", "lost write"];
    /// Objects that are removed in a cache leave no whiteouts.
    ForgetWhiteout = "forget-whiteout", "tiers", ["stale read", "a notify completes without a watcher", "not linearizable", "lost write"];
    /// An object counts as clean although it was changed during its flush.
    FlushOutOfOrder = "flush-out-of-order", "tiers", ["stale read", "not linearizable", "lost write"];
    /// The last of the operations that wait for an object of a cache is dropped.
    DropParked = "drop-parked", "tiers", ["the cluster does not become whole again"];
    /// The other pool of a tier does not receive the ids of requests that this one executed.
    LoseRequestIds = "lose-request-ids", "tiers", ["a resend was answered differently", "write applied twice", "not linearizable"];
    /// A PG of a cache that lost all its copies is created again at once: the base's objects are served instead of newer ones.
    ServeLost = "serve-lost", "tiers", ["stale read", "a watch is lost before its time", "not linearizable", "lost write"];
}

impl FromStr for Mutation {
    type Err = String;

    fn from_str(s: &str) -> Result<Mutation, String> {
        let found = Mutation::ALL.iter().copied().find(|m| m.name() == s);
        found.ok_or_else(|| format!("no mutation is called '{s}' (--list names them)"))
    }
}

impl Mutation {
    /// Whether another rule compensates for the breach, so that it is not visible.
    pub fn is_compensated(self) -> bool {
        self.noticed_by().is_empty()
    }

    /// The corresponding mutation of PG machines.
    pub fn of_pg(self) -> nacre_pg::Mutation {
        use nacre_pg::Mutation as Pg;
        match self {
            Mutation::AckBeforeCasOutcome => Pg::AckBeforeCasOutcome,
            Mutation::IgnoreProposedMembers => Pg::IgnoreProposedMembers,
            Mutation::TrustWipedMember => Pg::TrustWipedMember,
            Mutation::SkipTailRepair => Pg::SkipTailRepair,
            Mutation::AcceptOldIntervalOps => Pg::AcceptOldIntervalOps,
            Mutation::ReuseInterval => Pg::ReuseInterval,
            Mutation::ReadUncommitted => Pg::ReadUncommitted,
            Mutation::IgnoreLease => Pg::IgnoreLease,
            Mutation::SkipLeaseWait => Pg::SkipLeaseWait,
            Mutation::WildClocks => Pg::None,
            Mutation::JudgeBeforeRead => Pg::JudgeBeforeRead,
            Mutation::JudgeByTurn => Pg::JudgeByTurn,
            Mutation::ShrinkBelowMinSize => Pg::ShrinkBelowMinSize,
            Mutation::AckBelowMinSize => Pg::AckBelowMinSize,
            Mutation::ForgetDups => Pg::ForgetDups,
            Mutation::ForgetUnchanged => Pg::ForgetUnchanged,
            Mutation::ExecuteStaleOps => Pg::ExecuteStaleOps,
            Mutation::IgnoreHighestRecord => Pg::IgnoreHighestRecord,
            Mutation::DropBeforeFilled => Pg::DropBeforeFilled,
            Mutation::ApplyPastCursor => Pg::ApplyPastCursor,
            Mutation::JoinWithMissing => Pg::JoinWithMissing,
            Mutation::SkipMending => Pg::SkipMending,
            Mutation::ForgetRefused => Pg::ForgetRefused,
            Mutation::IgnoreIncarnation => Pg::IgnoreIncarnation,
            Mutation::SkipLevelling => Pg::SkipLevelling,
            Mutation::VolatilePromise => Pg::VolatilePromise,
            Mutation::AckUndurable => Pg::AckUndurable,
            Mutation::ReplyBeforeDurable => Pg::ReplyBeforeDurable,
            Mutation::ExecuteForgotten => Pg::ExecuteForgotten,
            Mutation::FillWithoutDups => Pg::FillWithoutDups,
            Mutation::KeepDivergent => Pg::KeepDivergent,
            Mutation::TakeDamagedForEqual => Pg::TakeDamagedForEqual,
            Mutation::ForgetWatchers => Pg::ForgetWatchers,
            Mutation::NotifyUnread => Pg::NotifyUnread,
            Mutation::LapseEarly => Pg::LapseEarly,
            Mutation::LogWithoutChange => Pg::LogWithoutChange,
            Mutation::TakeAnyPiece => Pg::TakeAnyPiece,
            Mutation::ExpireEarly => Pg::ExpireEarly,
            Mutation::IgnoreBlocklist => Pg::IgnoreBlocklist,
            Mutation::ListWithoutMissing => Pg::ListWithoutMissing,
            Mutation::CountUnread | Mutation::ForgetUnacked | Mutation::ForgetReset => Pg::None,
            Mutation::EvictDirty => Pg::EvictDirty,
            Mutation::ForgetWhiteout => Pg::ForgetWhiteout,
            Mutation::FlushOutOfOrder => Pg::FlushOutOfOrder,
            Mutation::DropParked => Pg::DropParked,
            Mutation::LoseRequestIds => Pg::LoseRequestIds,
            Mutation::ServeLost => Pg::ServeLost,
        }
    }

    /// The corresponding mutation of sessions between OSDs.
    pub fn of_session(self) -> nacre_session::Mutation {
        match self {
            Mutation::CountUnread => nacre_session::Mutation::CountUnread,
            Mutation::ForgetUnacked => nacre_session::Mutation::ForgetUnacked,
            Mutation::ForgetReset => nacre_session::Mutation::ForgetReset,
            _ => nacre_session::Mutation::None,
        }
    }
}
