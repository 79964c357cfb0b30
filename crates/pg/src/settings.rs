//! What a host lets a [`crate::Pg`] do, and the rules that the simulator may break.

use crate::log::DupLimits;
use serde::{Deserialize, Serialize};

/// A rule broken on purpose, to prove that the simulator notices. Only the feature `mutations`, which the simulator turns
/// on, lets a rule be broken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Mutation {
    /// All rules hold.
    #[default]
    None,
    /// R1: a shrinking proposal counts as accepted before its outcome is known.
    AckBeforeCasOutcome,
    /// R1: members that a proposal would add are not waited for until it is confirmed by a map.
    IgnoreProposedMembers,
    /// R2: a wiped member that lacks the PG is taken for an empty but valid copy, also while the map shows the member before it.
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
    /// R4: a new primary serves before the old one's leases have run out.
    SkipLeaseWait,
    /// R5: the in-sync set shrinks below min_size.
    ShrinkBelowMinSize,
    /// R5: writes are accepted below min_size and acknowledged without the dead.
    AckBelowMinSize,
    /// R6: dup records are not kept.
    ForgetDups,
    /// R6: requests that succeeded without a change are not recorded.
    ForgetUnchanged,
    /// R6: operations sent before the interval began are executed.
    ExecuteStaleOps,
    /// R7: after a restore the map's record is trusted over a higher one on disk.
    IgnoreHighestRecord,
    /// R8: the old replica is dropped before the target is filled.
    DropBeforeFilled,
    /// R8: writes past the backfill cursor are applied.
    ApplyPastCursor,
    /// R8: a member enters the set before its missing objects have arrived.
    JoinWithMissing,
    /// R10: nothing is fetched or sent for a damaged object.
    SkipMending,
    /// R1: a refused proposal is forgotten, although an earlier copy of it may still be accepted.
    ForgetRefused,
    /// R2: an OSD that runs another store counts as the member that it was.
    IgnoreIncarnation,
    /// R3: a new primary takes members that are behind for equal.
    SkipLevelling,
    /// R3: a question is answered before the answer is durable.
    VolatilePromise,
    /// R3: a member acknowledges updates before they are durable.
    AckUndurable,
    /// R3: a primary answers before an update is durable on its own disk.
    ReplyBeforeDurable,
    /// R6: resends of requests that are forgotten are executed.
    ExecuteForgotten,
    /// R6: a member is backfilled without the dup records.
    FillWithoutDups,
    /// R8: objects of divergent updates are kept where a member is filled.
    KeepDivergent,
    /// R10: what is damaged on both sides counts as equal in a backfill.
    TakeDamagedForEqual,
    /// R9: a new primary does not know the watches in objects' infos.
    ForgetWatchers,
    /// R9: a notify that was executed in an earlier interval goes to the watchers that the table happens to have.
    NotifyUnread,
    /// R9: a watch lapses before its timeout.
    LapseEarly,
    /// R3: a member records an update in its log, and does not apply it.
    LogWithoutChange,
    /// R6: sessions expire although their clients are heard.
    ExpireEarly,
    /// R6: requests of sessions on the blocklist are executed.
    IgnoreBlocklist,
    /// R10: listings leave out what the primary lacks.
    ListWithoutMissing,
    /// R4: a lease is judged by a time from before the store was read.
    JudgeBeforeRead,
    /// R4: leases and deadlines are judged by the time at which the turn began, however long its calls took.
    JudgeByTurn,
    /// Tiers: dirty objects are evicted.
    EvictDirty,
    /// Tiers: objects that are removed in a cache leave no whiteouts.
    ForgetWhiteout,
    /// Tiers: an object counts as clean although it was changed while it was flushed.
    FlushOutOfOrder,
    /// Tiers: of the operations that wait for an object the last one is dropped.
    DropParked,
    /// Tiers: requests are not known in the other pool.
    LoseRequestIds,
    /// Tiers: a PG of a cache that lost all its copies is made again without anybody's consent.
    ServeLost,
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

/// What a host lets a [`crate::Pg`] do; from options.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `osd_min_pg_log_entries`.
    pub min_log_entries: usize,
    /// `osd_max_pg_log_entries`.
    pub max_log_entries: usize,
    /// Client operations that may wait on one PG (for activation, recovery, earlier writes); further ones are refused
    /// with [`crate::Command::Drop`] and resent by the client.
    pub max_waiting_ops: usize,
    /// The same while the PG is not active, or can't answer: it must not hold what other PGs of the OSD need.
    pub max_waiting_inactive: usize,
    /// Writes ordered but not committed; further ones wait.
    pub max_inflight_writes: usize,
    /// Objects being recovered to one member at once (`osd_recovery_max_active`).
    pub max_recoveries: usize,
    /// Bytes of one recovery message.
    pub push_bytes: usize,
    /// Objects per backfill scan.
    pub scan_objects: usize,
    /// An unanswered proposal is sent again after so many nanoseconds; its outcome stays unknown (R1).
    pub cas_retry_ns: u64,
    /// Unanswered peering and recovery messages are sent again after so many nanoseconds.
    pub retry_ns: u64,
    /// Client sessions without contact for so long are forgotten and their resends refused (R6). The primary counts only while it is
    /// active, from then on.
    pub session_expiry_ns: u64,
    /// Dup records and sessions that are kept (R6).
    pub dups: DupLimits,
    /// A rule to break.
    #[cfg(feature = "mutations")]
    pub mutation: Mutation,
}

impl Settings {
    /// Whether the simulator has this rule broken; without the feature `mutations` no rule can be.
    #[cfg(feature = "mutations")]
    pub fn breaks(&self, rule: Mutation) -> bool {
        let breaks = self.mutation == rule;
        if breaks {
            BREACHES.set(BREACHES.get() + 1);
        }
        breaks
    }

    /// Whether the simulator has this rule broken; without the feature `mutations` no rule can be.
    #[cfg(not(feature = "mutations"))]
    pub const fn breaks(&self, _rule: Mutation) -> bool {
        false
    }
}

impl Default for Settings {
    fn default() -> Self {
        const SECOND: u64 = 1_000_000_000;
        Settings {
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
