//! Scenarios in which a rule that is broken on purpose is soon noticed.

use super::profile::Profile;
use super::{Fault, PoolSpec, Scenario};
use crate::mutation::Mutation;
use crate::schedule::{MILLI, SECOND};

impl Mutation {
    /// Modifies a seed's scenario so that the breach becomes visible soon: frequent faults of the relevant kinds on a small cluster.
    pub fn adjust_scenario(self, scenario: Scenario) -> Scenario {
        use Fault::{
            Blackout, CacheLoss, Crash, Damage, Delay, Drift, Fence, Ghost, MapGap, MonCrash, MonPartition,
            OneWay, OutIn, Partition, Reset, Restart, Restore, SlowCas, SlowDisk, Stall, Tier, Wipe,
        };
        let faults: &[Fault] = match self {
            Mutation::AckBeforeCasOutcome => &[Crash, Partition, SlowCas, MonCrash],
            Mutation::IgnoreProposedMembers => &[Crash, OutIn, SlowCas, MonCrash, Partition],
            Mutation::TrustWipedMember => &[Wipe, Crash],
            Mutation::SkipTailRepair | Mutation::AcceptOldIntervalOps => &[Crash, Partition, SlowDisk, Delay],
            // The record of an interval that has just begun is lost; no OSD is left to report the primary's failure.
            Mutation::ReuseInterval => &[Blackout, Crash, Restart, SlowDisk, MonPartition, SlowCas],
            Mutation::ReadUncommitted => &[Crash, SlowDisk, Partition, Delay],
            Mutation::IgnoreLease | Mutation::SkipLeaseWait => &[Partition, OneWay, MonPartition],
            Mutation::WildClocks => &[Partition, OneWay, MonPartition, Drift],
            // A client must not have the map with the new primary, and send a request to the old one, whose shard stalls.
            Mutation::JudgeBeforeRead | Mutation::JudgeByTurn => &[Partition, OneWay, MapGap, Stall],
            Mutation::ShrinkBelowMinSize | Mutation::AckBelowMinSize => &[Crash, Partition, OneWay, Wipe],
            Mutation::ForgetDups => &[Reset, Crash, Partition],
            Mutation::ForgetUnchanged => &[Ghost, Reset, Partition],
            Mutation::ExecuteStaleOps => &[Ghost, Reset, Crash, Partition],
            Mutation::IgnoreHighestRecord => &[Restore, Crash, Partition],
            Mutation::DropBeforeFilled => &[OutIn, Crash],
            Mutation::ApplyPastCursor | Mutation::JoinWithMissing => &[OutIn, Wipe, Crash],
            Mutation::SkipMending => &[Damage, Crash],
            Mutation::ForgetRefused => &[Crash, OutIn, SlowCas, MonPartition, Ghost, Stall],
            Mutation::IgnoreIncarnation => &[Wipe, Crash],
            Mutation::SkipLevelling => &[Crash, Partition, SlowDisk, Delay],
            Mutation::VolatilePromise => &[Crash, SlowDisk, Partition, SlowCas],
            Mutation::AckUndurable | Mutation::ReplyBeforeDurable => &[Crash, SlowDisk],
            Mutation::ExecuteForgotten => &[Ghost, Reset, Partition, Delay],
            Mutation::FillWithoutDups => &[OutIn, Reset, Crash, Partition],
            Mutation::KeepDivergent => &[Crash, Partition, SlowDisk, Delay],
            Mutation::TakeDamagedForEqual => &[Damage, OutIn, Crash],
            Mutation::ForgetWatchers | Mutation::NotifyUnread => &[Crash, Partition, OneWay],
            Mutation::LapseEarly => &[Reset, Partition, Delay],
            Mutation::LogWithoutChange => &[Crash],
            // A session ends between two pieces of a tail, and a piece of the next session is handled before the last one of it.
            Mutation::TakeAnyPiece => &[Blackout, Delay, SlowDisk],
            Mutation::ExpireEarly => &[Ghost, Reset, Partition, Delay],
            Mutation::IgnoreBlocklist => &[Fence, Delay, Partition, OneWay],
            Mutation::ListWithoutMissing => &[Damage, Crash, OutIn],
            Mutation::CountUnread | Mutation::ForgetUnacked => &[Reset, Partition, Delay],
            // The peer must not learn of the new process from the map.
            Mutation::ForgetReset => &[Crash, OneWay, Partition, MonPartition, MonCrash, Reset],
            Mutation::EvictDirty
            | Mutation::ForgetWhiteout
            | Mutation::FlushOutOfOrder
            | Mutation::DropParked => &[Tier, Delay],
            Mutation::LoseRequestIds => &[Tier, Reset, Crash],
            Mutation::ServeLost => &[CacheLoss, Delay],
        };
        let scenario =
            if self.rule() == "tiers" { Profile::Tier.adjust_scenario(scenario) } else { scenario };
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
        // Nearly all objects of a tail arrive in pieces, and messages often find their queue full.
        if self == Mutation::TakeAnyPiece {
            shaped.fault_rate = 500;
            shaped.think = 15 * MILLI;
            shaped.objects = 20;
            shaped.outstanding = 8;
            shaped.push_bytes = 2;
            shaped.peer_queue_bytes = 8 << 10;
            shaped.full_one_in = 100;
        }
        if self == Mutation::ServeLost {
            shaped.cache = Some(PoolSpec { size: 1, min_size: 1, pg_num: 2 });
        }
        if self == Mutation::WildClocks {
            shaped.drift_ppm = 200_000;
        }
        if matches!(self, Mutation::JudgeBeforeRead | Mutation::JudgeByTurn) {
            shaped.outlast_leases();
        }
        shaped
    }
}
