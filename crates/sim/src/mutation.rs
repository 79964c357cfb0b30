//! Rules broken on purpose, and the scenarios in which breaking them shows soon.
//!
//! A simulator that finds nothing proves nothing unless it is known to find what is there. For each rule of the design
//! (R1 to R8) at least one breach is built into the machines; `tests/mutations.rs` runs each and fails if it goes
//! unnoticed.

use crate::scenario::{Fault, PoolSpec, Scenario};
use crate::schedule::{MILLI, SECOND};
use std::str::FromStr;

macro_rules! mutations {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $rule:literal;)*) => {
        /// A rule broken on purpose.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Mutation { $($(#[$doc])* $name,)* }

        impl Mutation {
            /// All of them.
            pub const ALL: &[Mutation] = &[$(Mutation::$name,)*];

            /// The name in options.
            pub fn name(self) -> &'static str {
                match self { $(Mutation::$name => $text,)* }
            }

            /// The rule that it breaks.
            pub fn rule(self) -> &'static str {
                match self { $(Mutation::$name => $rule,)* }
            }
        }
    };
}

mutations! {
    /// A shrinking proposal counts as accepted before its outcome is known.
    AckBeforeCasOutcome = "ack-before-cas-outcome", "R1";
    /// Members that a proposal would add are not waited for until a map confirms it.
    IgnoreProposedMembers = "ignore-proposed-members", "R1";
    /// A wiped member is taken for an empty but valid copy.
    TrustWipedMember = "trust-wiped-member", "R2";
    /// A new primary does not adopt the longest log.
    SkipTailRepair = "skip-tail-repair", "R3";
    /// Operations of the old interval are still accepted after the promotion was proposed.
    AcceptOldIntervalOps = "accept-old-interval-ops", "R3";
    /// A restarted primary orders in the interval that the map shows, unless its own record names it too.
    ReuseInterval = "reuse-interval", "R3";
    /// Reads do not wait for earlier writes to commit.
    ReadUncommitted = "read-uncommitted", "R3";
    /// Reads are answered without a lease.
    IgnoreLease = "ignore-lease", "R4";
    /// A new primary serves before the old one's leases have run out.
    SkipLeaseWait = "skip-lease-wait", "R4";
    /// Clocks drift beyond the stated bound.
    WildClocks = "wild-clocks", "R4";
    /// The in-sync set shrinks below min_size.
    ShrinkBelowMinSize = "shrink-below-min-size", "R5";
    /// Writes are acknowledged below min_size, without the dead.
    AckBelowMinSize = "ack-below-min-size", "R5";
    /// Dup records are not kept.
    ForgetDups = "forget-dups", "R6";
    /// Requests that succeeded without a change are not recorded.
    ForgetUnchanged = "forget-unchanged", "R6";
    /// Operations sent before the interval began are executed.
    ExecuteStaleOps = "execute-stale-ops", "R6";
    /// After a restore the map's record is trusted over a higher one on disk.
    IgnoreHighestRecord = "ignore-highest-record", "R7";
    /// The old replica is dropped before the target is filled.
    DropBeforeFilled = "drop-before-filled", "R8";
    /// Writes past the backfill cursor are applied.
    ApplyPastCursor = "apply-past-cursor", "R8";
    /// A member enters the set before its missing objects have arrived.
    JoinWithMissing = "join-with-missing", "R8";
    /// Nothing is fetched or sent for a damaged object.
    SkipMending = "skip-mending", "R10";
}

impl FromStr for Mutation {
    type Err = String;

    fn from_str(s: &str) -> Result<Mutation, String> {
        let found = Mutation::ALL.iter().copied().find(|m| m.name() == s);
        found.ok_or_else(|| format!("no mutation is called '{s}' (--list names them)"))
    }
}

impl Mutation {
    /// What the PG machines break.
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
        }
    }

    /// Bends a seed's scenario so that the breach shows soon: the faults that bring it out, often, on a small cluster.
    pub fn shape(self, scenario: Scenario) -> Scenario {
        use Fault::{
            Blackout, Crash, Damage, Delay, Drift, Ghost, MonCrash, MonPartition, OneWay, OutIn, Partition,
            Reset, Restore, SlowCas, SlowDisk, Wipe,
        };
        let faults: &[Fault] = match self {
            Mutation::AckBeforeCasOutcome => &[Crash, Partition, SlowCas, MonCrash],
            Mutation::IgnoreProposedMembers => &[Crash, OutIn, SlowCas, MonCrash, Partition],
            Mutation::TrustWipedMember => &[Wipe, Crash],
            Mutation::SkipTailRepair | Mutation::AcceptOldIntervalOps => &[Crash, Partition, SlowDisk, Delay],
            // The record of an interval that has just begun is lost; no OSD is left to report the primary's failure.
            Mutation::ReuseInterval => &[Blackout, Crash, OutIn, SlowDisk],
            Mutation::ReadUncommitted => &[Crash, SlowDisk, Partition, Delay],
            Mutation::IgnoreLease | Mutation::SkipLeaseWait => &[Partition, OneWay, MonPartition],
            Mutation::WildClocks => &[Partition, OneWay, MonPartition, Drift],
            Mutation::ShrinkBelowMinSize | Mutation::AckBelowMinSize => &[Crash, Partition, OneWay, Wipe],
            Mutation::ForgetDups => &[Reset, Crash, Partition],
            Mutation::ForgetUnchanged => &[Ghost, Reset, Partition],
            Mutation::ExecuteStaleOps => &[Ghost, Reset, Crash, Partition],
            Mutation::IgnoreHighestRecord => &[Restore, Crash, Partition],
            Mutation::DropBeforeFilled => &[OutIn, Crash],
            Mutation::ApplyPastCursor | Mutation::JoinWithMissing => &[OutIn, Wipe, Crash],
            Mutation::SkipMending => &[Damage, Crash],
        };
        let mut shaped = scenario.with_only(faults);
        // Nearly all OSDs must die at once, and again soon after.
        shaped.fault_rate = if self == Mutation::ReuseInterval { 600 } else { 300 };
        shaped.think = 30 * MILLI;
        shaped.trouble = 40 * SECOND;
        shaped.requests = 900;
        shaped.objects = shaped.objects.min(4);
        shaped.clients = shaped.clients.max(2);
        shaped.outstanding = shaped.outstanding.max(3);
        let (size, min_size) = match self {
            Mutation::ShrinkBelowMinSize | Mutation::AckBelowMinSize => (3, 2),
            _ if shaped.seed.is_multiple_of(2) => (2, 1),
            _ => (3, 1),
        };
        shaped.pools = vec![PoolSpec { size, min_size, pg_num: 2 }];
        if self == Mutation::WildClocks {
            shaped.drift_ppm = 200_000;
        }
        shaped
    }
}
