//! The settings of a [`crate::Pg`], and the rules that the simulator may break.

use crate::log::DupLimits;
use serde::{Deserialize, Serialize};

/// A rule that is broken on purpose, to prove that the simulator notices. A rule can be broken only with the feature
/// `mutations`, which the simulator enables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Mutation {
    /// All rules hold.
    #[default]
    None,
    /// R1: a shrinking proposal counts as accepted before its outcome is known.
    AckBeforeCasOutcome,
    /// R1: acknowledgements do not wait for members that a proposal would add until a map confirms it.
    IgnoreProposedMembers,
    /// R2: a wiped member that lacks the PG counts as an empty but valid copy, also while the map shows the member before it.
    TrustWipedMember,
    /// R3: a new primary does not adopt the longest log.
    SkipTailRepair,
    /// R3: operations of the old interval are still accepted after the promotion was proposed.
    AcceptOldIntervalOps,
    /// R3: a restarted primary orders in the interval that the map shows, unless its own record names it too.
    ReuseInterval,
    /// R3: reads do not wait for earlier writes to commit.
    ReadUncommitted,
    /// R4: reads are answered without a lease.
    IgnoreLease,
    /// R4: a new primary serves before the old one's leases have expired.
    SkipLeaseWait,
    /// R5: the in-sync set shrinks below min_size.
    ShrinkBelowMinSize,
    /// R5: writes are accepted below min_size and acknowledged without the dead.
    AckBelowMinSize,
    /// R6: dup records are not kept.
    ForgetDups,
    /// R6: requests that succeeded without a change are not recorded.
    ForgetUnchanged,
    /// R6: operations sent before the reign began are executed.
    ExecuteStaleOps,
    /// R7: after a restore, the map's record takes precedence over a higher one on disk.
    IgnoreHighestRecord,
    /// R8: the old replica is dropped before the target is filled.
    DropBeforeFilled,
    /// R8: writes past the backfill cursor are applied.
    ApplyPastCursor,
    /// R8: a member enters the set before its missing objects have arrived.
    JoinWithMissing,
    /// R10: damaged objects are neither fetched nor sent.
    SkipMending,
    /// R1: a refused proposal is forgotten, although an earlier copy of it may still be accepted.
    ForgetRefused,
    /// R2: an OSD that runs another store counts as the member that it was.
    IgnoreIncarnation,
    /// R3: a new primary treats members that are behind as equal.
    SkipLevelling,
    /// R3: a query is answered before the answer is durable.
    VolatilePromise,
    /// R3: a member acknowledges updates before they are durable.
    AckUndurable,
    /// R3: a primary answers before an update is durable on its own disk.
    ReplyBeforeDurable,
    /// R6: resends of requests that are forgotten are executed.
    ExecuteForgotten,
    /// R6: a member is backfilled without the dup records.
    FillWithoutDups,
    /// R8: objects of divergent updates are kept when a member is filled.
    KeepDivergent,
    /// R10: objects that are damaged on both sides count as equal in a backfill.
    TakeDamagedForEqual,
    /// R9: a new primary does not know the watches in objects' infos.
    ForgetWatchers,
    /// R9: a notify that was executed in an earlier interval is sent to the watchers that are currently in the table.
    NotifyUnread,
    /// R9: a watch lapses before its timeout.
    LapseEarly,
    /// R3: a member records an update in its log, and does not apply it.
    LogWithoutChange,
    /// R3: a member adds any piece to the object that arrives.
    TakeAnyPiece,
    /// R6: sessions expire although their clients are in contact.
    ExpireEarly,
    /// R6: requests of sessions on the blocklist are executed.
    IgnoreBlocklist,
    /// R10: listings omit the objects that the primary lacks.
    ListWithoutMissing,
    /// R4: a lease is judged by a clock reading from before the store was read.
    JudgeBeforeRead,
    /// R4: leases and deadlines are judged by the time at which the turn began, regardless of the duration of its calls.
    JudgeByTurn,
    /// Tiers: dirty objects are evicted.
    EvictDirty,
    /// Tiers: removals of objects in a cache leave no whiteouts.
    ForgetWhiteout,
    /// Tiers: an object counts as clean although it was changed while it was flushed.
    FlushOutOfOrder,
    /// Tiers: the last of the operations that wait for an object is dropped.
    DropParked,
    /// Tiers: the other pool does not know the ids of requests.
    LoseRequestIds,
    /// Tiers: a PG of a cache that lost all its copies is created again without an operator's consent.
    ServeLost,
}

#[cfg(feature = "mutations")]
thread_local! {
    static BREACHES: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// How often this thread reached a rule that is broken since the last call.
#[cfg(feature = "mutations")]
pub fn take_breaches() -> u64 {
    BREACHES.take()
}

/// The settings of a [`crate::Pg`], from options.
#[derive(Clone, Debug)]
pub struct PgSettings {
    /// `osd_min_pg_log_entries`.
    pub min_log_entries: usize,
    /// `osd_max_pg_log_entries`.
    pub max_log_entries: usize,
    /// Client operations that may wait on one PG (for activation, recovery, earlier writes); more are refused with
    /// [`crate::PgCommand::Drop`] and resent by the client.
    pub max_waiting_ops: usize,
    /// The same while the PG is not active, or can't answer: it must not use up the resources of the OSD's other PGs.
    pub max_waiting_inactive: usize,
    /// Writes that are ordered but not committed; further ones wait.
    pub max_inflight_writes: usize,
    /// Objects that are recovered to one member at once (`osd_recovery_max_active`).
    pub max_recoveries: usize,
    /// Bytes of one recovery message.
    pub push_bytes: usize,
    /// Objects per backfill scan.
    pub scan_objects: usize,
    /// The nanoseconds after which an unanswered proposal is sent again; its outcome stays unknown (R1).
    pub cas_retry_ns: u64,
    /// The nanoseconds after which unanswered peering and recovery messages are sent again.
    pub retry_ns: u64,
    /// Client sessions without contact for this many nanoseconds are forgotten and their resends refused (R6). The primary
    /// counts this time only while it is active, from when it became active.
    pub session_expiry_ns: u64,
    /// Dup records and sessions that are kept (R6).
    pub dups: DupLimits,
    /// A rule to break.
    #[cfg(feature = "mutations")]
    pub mutation: Mutation,
}

impl PgSettings {
    /// Whether the simulator breaks this rule; impossible without the feature `mutations`.
    #[cfg(feature = "mutations")]
    pub fn breaks(&self, rule: Mutation) -> bool {
        let breaks = self.mutation == rule;
        if breaks {
            BREACHES.set(BREACHES.get() + 1);
        }
        breaks
    }

    /// Whether the simulator breaks this rule; impossible without the feature `mutations`.
    #[cfg(not(feature = "mutations"))]
    pub const fn breaks(&self, _rule: Mutation) -> bool {
        false
    }
}

impl Default for PgSettings {
    fn default() -> Self {
        const SECOND: u64 = 1_000_000_000;
        PgSettings {
            min_log_entries: 250,
            max_log_entries: 10_000,
            max_waiting_ops: 4096,
            max_waiting_inactive: 32,
            max_inflight_writes: 1024,
            max_recoveries: 3,
            push_bytes: 8 << 20,
            scan_objects: 256,
            cas_retry_ns: SECOND,
            retry_ns: 2 * SECOND,
            session_expiry_ns: 3600 * SECOND,
            dups: DupLimits::default(),
            #[cfg(feature = "mutations")]
            mutation: Mutation::None,
        }
    }
}
