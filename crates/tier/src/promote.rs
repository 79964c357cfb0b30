//! Decides what happens to a request on an object that is not in the cache pool.
//!
//! [`decide`] follows `PrimaryLogPG::maybe_handle_cache_detail` and `maybe_promote` of Ceph's Reef release. By cache mode:
//!
//! | mode | reads | writes |
//! |---|---|---|
//! | none | executed in the pool | executed in the pool |
//! | writeback | proxied, and promoted at the same time by recency | proxied, and promoted afterwards by recency |
//! | readproxy, readforward | proxied | promoted, then executed in the cache |
//! | proxy, forward | proxied | proxied |
//! | readonly | promoted | redirected to the base pool |
//!
//! A request that can't be proxied ([`RequestTraits::must_promote`]) is promoted instead. While the cache is full, reads are proxied, and
//! requests that need room wait.
//!
//! # Recency
//!
//! In writeback mode `min_read_recency_for_promote` and `min_write_recency_for_promote` are the number of consecutive hit sets that must
//! contain the object, counted backwards from the current one as it was *before* this access:
//!
//! - 0: every access promotes.
//! - 1: the current set must contain the object.
//! - n: so must the n-1 sealed sets before it. If fewer than n-1 sealed sets exist, nothing is promoted.
//!
//! Without hit sets every access promotes at once, bypassing the throttle, unless the request asks not to promote
//! ([`RequestTraits::skip_promote`]).
//!
//! # Differences from Ceph
//!
//! - The promotion for a write happens after the base has acknowledged the write, never at the same time.
//! - In readonly mode reads are proxied while the cache is full. Ceph promotes them.
//! - [`AdmissionPolicy::Frequency`] can replace recency (see [`sketch`]). Writes are then executed in the cache while it has room.

pub mod sketch;
pub mod throttle;

use crate::hit_set::history::HitSetHistory;
use nacre_types::ObjectId;
use nacre_types::op::{Op, OsdOp, op_flag};
use nacre_types::pool::CacheMode;
use sketch::FrequencyFilter;

/// The traits of a request that determine the decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestTraits {
    /// An operation changes the object.
    pub writes: bool,
    /// An operation manages the cache: flushes, evicts or pins.
    pub manages_cache: bool,
    /// It is ordered with writes, although it may change nothing (`CEPH_OSD_FLAG_RWORDERED`).
    pub write_ordered: bool,
    /// An operation can't be proxied: it needs the object in the cache.
    pub must_promote: bool,
    /// It asks not to promote the object.
    pub skip_promote: bool,
    /// It is executed in the cache even if the object is absent.
    pub skip_cache: bool,
}

impl RequestTraits {
    /// Returns the traits that follow from the ops themselves. `write_ordered` is the request's flag. For calls of object classes the
    /// caller adds `writes` and `must_promote`, since it knows the methods.
    ///
    /// As in Ceph, `FADVISE_DONTNEED` and `FADVISE_NOCACHE` count on a request that consists of one whole-object write, read or checksum; a
    /// single removal does not promote; a removal that may fail (`FAILOK`) does not need the object.
    pub fn of(ops: &[OsdOp], write_ordered: bool) -> RequestTraits {
        let mut request = RequestTraits { write_ordered, ..RequestTraits::default() };
        for (at, OsdOp { op, flags }) in ops.iter().enumerate() {
            request.writes |= op.is_write();
            match op {
                // Watches are invisible writes of the object's own metadata, and stay where the watchers are connected.
                Op::Watch { .. } | Op::WatchReconnect { .. } | Op::Unwatch { .. } | Op::Notify { .. } => {
                    request.must_promote = true;
                }
                Op::WatchPing { .. } => (request.must_promote, request.write_ordered) = (true, true),
                Op::NotifyAck { .. } => request.must_promote = true,
                Op::Remove => {
                    request.skip_cache |= at == 0 && *flags == op_flag::FAILOK;
                    request.skip_promote |= ops.len() == 1;
                }
                Op::Read { .. } | Op::SparseRead { .. } | Op::Checksum { .. } | Op::WriteFull { .. } => {
                    let passing = flags & (op_flag::FADVISE_NOCACHE | op_flag::FADVISE_DONTNEED) != 0;
                    request.skip_promote |= ops.len() == 1 && passing;
                }
                _ => {}
            }
        }
        request
    }

    fn is_plain_read(&self) -> bool {
        !self.writes && !self.manages_cache && !self.write_ordered
    }
}

/// The rule that admits objects to the cache in writeback mode.
#[derive(Clone, Copy, Debug)]
pub enum AdmissionPolicy<'a> {
    /// Everything: the pool has no hit sets.
    Always,
    /// Recency: the pool's default.
    Recency {
        /// The PG's hit sets.
        history: &'a HitSetHistory,
        /// Whether the current set contained the object before this access
        /// ([`AccessRecord::was_in_current`](crate::hit_set::history::AccessRecord)).
        was_in_current: bool,
        /// `min_read_recency_for_promote`.
        min_read: u32,
        /// `min_write_recency_for_promote`.
        min_write: u32,
    },
    /// Frequency: the object has more accesses than the objects that are being evicted. While the cache has room, changes are executed in
    /// the cache, so that it absorbs bursts of writes.
    Frequency {
        /// The filter, which has already recorded this access.
        filter: &'a FrequencyFilter,
        /// Whether the cache has room, so that a promotion evicts nothing: the agent's evict mode is idle.
        has_room: bool,
    },
}

impl AdmissionPolicy<'_> {
    fn admits(&self, object: &ObjectId, writes: bool) -> bool {
        match *self {
            AdmissionPolicy::Always => true,
            AdmissionPolicy::Recency { history, was_in_current, min_read, min_write } => {
                is_recent(history, was_in_current, object, if writes { min_write } else { min_read })
            }
            AdmissionPolicy::Frequency { filter, has_room } => has_room || filter.admits(object),
        }
    }
}

/// Whether the last `wanted` hit sets, from the current one backwards, all contain the object.
fn is_recent(history: &HitSetHistory, was_in_current: bool, object: &ObjectId, wanted: u32) -> bool {
    if wanted == 0 || !was_in_current {
        return wanted == 0;
    }
    let wanted_of_sealed = wanted as usize - 1;
    let mut newest = history.sealed().take(wanted_of_sealed);
    newest.len() == wanted_of_sealed && newest.all(|set| set.contains(object))
}

/// What to do with a request on an object that is not in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissDecision {
    /// Execute it in the cache pool, where the object is absent.
    Execute,
    /// Park it, copy the object from the base pool, then execute it in the cache.
    Promote,
    /// Read from the base pool on the client's behalf.
    ProxyRead {
        /// Whether to promote the object at the same time.
        promote: bool,
    },
    /// Write to the base pool on the client's behalf.
    ProxyWrite {
        /// Whether to promote the object once the base has acknowledged the write.
        promote: bool,
    },
    /// Have the base pool execute it as if the client had sent it there.
    Redirect,
    /// Park it until the agent has made room, then decide again.
    WaitForRoom,
}

/// Decides on a request on `object`, of which the cache pool has neither data nor a whiteout nor a promotion under way. `is_full` is set if
/// the agent's evict mode is full. `throttle` is called at most once, only if a promotion is optional and all other conditions hold; it
/// returns whether the promotion may start ([`throttle::PromoteThrottle::try_start`]).
pub fn decide(
    mode: CacheMode,
    object: &ObjectId,
    request: &RequestTraits,
    is_full: bool,
    admission: AdmissionPolicy<'_>,
    throttle: impl FnOnce() -> bool,
) -> MissDecision {
    if mode == CacheMode::None || request.skip_cache {
        return MissDecision::Execute;
    }
    let needs_room = if is_full { MissDecision::WaitForRoom } else { MissDecision::Promote };
    let changes = request.writes || request.manages_cache;
    match mode {
        CacheMode::None => MissDecision::Execute,
        CacheMode::Writeback if is_full => {
            if request.is_plain_read() && !request.must_promote {
                MissDecision::ProxyRead { promote: false }
            } else {
                MissDecision::WaitForRoom
            }
        }
        CacheMode::Writeback => {
            let is_free = match admission {
                AdmissionPolicy::Always => true,
                AdmissionPolicy::Recency { .. } => false,
                AdmissionPolicy::Frequency { has_room, .. } => has_room && changes,
            };
            if request.must_promote || is_free && !request.skip_promote {
                return MissDecision::Promote;
            }
            let promote = !request.skip_promote && admission.admits(object, changes) && throttle();
            if changes { MissDecision::ProxyWrite { promote } } else { MissDecision::ProxyRead { promote } }
        }
        CacheMode::Readproxy | CacheMode::Readforward => {
            if request.writes || request.write_ordered || request.must_promote {
                needs_room
            } else {
                MissDecision::ProxyRead { promote: false }
            }
        }
        CacheMode::Proxy | CacheMode::Forward => {
            if request.must_promote {
                needs_room
            } else if request.is_plain_read() {
                MissDecision::ProxyRead { promote: false }
            } else {
                MissDecision::ProxyWrite { promote: false }
            }
        }
        CacheMode::Readonly => {
            if request.writes {
                MissDecision::Redirect
            } else if is_full && !request.must_promote {
                MissDecision::ProxyRead { promote: false }
            } else {
                needs_room
            }
        }
    }
}

/// Whether an object is small enough to be promoted: a PG whose share of the target is `pg_target_bytes` could not hold a larger one
/// without evicting everything else. 0 means no target.
pub fn fits(object_bytes: u64, pg_target_bytes: u64, full_ratio_micro: u32) -> bool {
    let share = u128::from(pg_target_bytes) * u128::from(full_ratio_micro) / u128::from(crate::MICRO);
    pg_target_bytes == 0 || u128::from(object_bytes) <= share
}

#[cfg(test)]
mod tests;
