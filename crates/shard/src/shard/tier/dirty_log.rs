//! Names of dirty objects, recorded in the base pool (`cache_dirty_log`): they show what is lost with all copies of a cache's
//! PG.
//!
//! Each PG of the cache has an object in the base pool. Its omap has the name of every object that clients made dirty, and
//! possibly of some clean ones. A write on an object whose name is not recorded yet waits for that. At most one request per PG
//! is in flight; names that arrive in the meantime go into the next one together.

use super::super::Shard;
use super::super::ops::InflightOp;
use super::objects::{ObjectWork, TierRequest};
use super::role::TierRole;
use bytes::Bytes;
use nacre_types::encoding::decode;
use nacre_types::errno::Errno;
use nacre_types::ids::{Interval, PoolId};
use nacre_types::msg::OsdReply;
use nacre_types::object::ObjectId;
use nacre_types::op::{OmapValsReply, Op, OsdOp};
use nacre_types::tier::{dirty_key, dirty_log_object, dirty_object};
use std::collections::BTreeSet;

/// The most names that one request records, removes or reads.
const MAX_NAMES: usize = 256;

/// A primary's state of its PG's log.
#[derive(Default)]
pub(super) struct DirtyLog {
    /// The names in the log.
    names: BTreeSet<ObjectId>,
    /// The names whose objects may be clean.
    to_check: BTreeSet<ObjectId>,
    /// Names for the next request.
    to_record: BTreeSet<ObjectId>,
    /// The names in flight.
    on_way: Vec<ObjectId>,
    /// Whether a request is in flight.
    is_asking: bool,
    /// The position at which reading the records of earlier primaries continues.
    reads_from: Option<Bytes>,
    /// Whether all of these records were read.
    is_read: bool,
}

impl DirtyLog {
    /// Records that an object became dirty or clean.
    pub(super) fn note(&mut self, object: &ObjectId, is_dirty: bool) {
        if is_dirty {
            self.to_check.remove(object);
        } else if self.names.contains(object) {
            self.to_check.insert(object.clone());
        }
    }

    /// The state for another overlay in the same interval: the recorded names and the waiting operations remain, while dirty
    /// objects are determined again.
    pub(super) fn reset_for_overlay(mut self) -> DirtyLog {
        self.to_check = self.names.clone();
        self
    }

    fn is_empty(&self) -> bool {
        self.names.is_empty() && self.to_record.is_empty() && self.on_way.is_empty()
    }
}

/// The purpose of a request on a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DirtyLogRequest {
    /// Records and removes names.
    Change,
    /// Reads names.
    Read,
    /// Removes the log.
    Remove,
}

impl Shard {
    /// Whether the base has recorded the object's name, or need not record it.
    pub(super) fn is_logged(&self, slot: u32, role: &TierRole, object: &ObjectId) -> bool {
        let hosted = self.slots.get(slot as usize).and_then(Option::as_ref);
        let cache = hosted.and_then(|hosted| hosted.cache.as_ref());
        !role.logs_dirty || cache.is_none_or(|cache| cache.dirty_log.names.contains(object))
    }

    /// Records the object's name in the base; `op` waits for that.
    pub(super) fn log_dirty(&mut self, slot: u32, role: &TierRole, object: &ObjectId, op: Box<InflightOp>) {
        self.begin(slot, object, ObjectWork::Log, Some(op));
        if let Some(log) = self.log_of(slot) {
            log.to_record.insert(object.clone());
        }
        self.send_log_changes(slot, role.other, Vec::new());
    }

    fn log_of(&mut self, slot: u32) -> Option<&mut DirtyLog> {
        let hosted = self.slots.get_mut(slot as usize)?.as_mut()?;
        Some(&mut hosted.cache.as_mut()?.dirty_log)
    }

    /// The agent's part: reads the records of earlier primaries, removes names of clean objects, records those of objects that
    /// became dirty before the pool had a log, and removes the log of a pool that no longer has one.
    pub(super) fn maintain_dirty_log(&mut self, slot: u32, role: &TierRole) {
        let hosted = self.slots.get(slot as usize).and_then(Option::as_ref);
        let Some(cache) = hosted.and_then(|hosted| hosted.cache.as_ref()) else { return };
        let log = &cache.dirty_log;
        if log.is_asking {
            return;
        }
        if !role.logs_dirty {
            if log.is_read || !log.is_empty() {
                self.ask_log(slot, role.other, DirtyLogRequest::Remove, vec![OsdOp::from(Op::Remove)]);
            }
            return;
        }
        if !log.is_read {
            let start_after = log.reads_from.clone().unwrap_or_default();
            let read = Op::OmapGetVals { start_after, filter_prefix: Bytes::new(), max: MAX_NAMES as u64 };
            return self.ask_log(slot, role.other, DirtyLogRequest::Read, vec![OsdOp::from(read)]);
        }
        // Names that must stay for now, and names to remove.
        let (mut dirty, mut clean) = (Vec::new(), Vec::new());
        for object in log.to_check.iter().take(MAX_NAMES) {
            if cache.is_dirty(object) {
                dirty.push(object.clone());
            } else if !self.tiers.is_busy(object) && !self.tiers.flushes.contains_key(object) {
                clean.push(object.clone());
            }
        }
        let known = log.names.len().saturating_sub(log.to_check.len()) + dirty.len();
        let unknown: Vec<_> = match cache.dirty_count() > known {
            true => {
                let unknown = cache.dirty_objects().filter(|object| !log.names.contains(*object));
                unknown.take(MAX_NAMES).cloned().collect()
            }
            false => Vec::new(),
        };
        if let Some(log) = self.log_of(slot) {
            log.to_record.extend(unknown);
            dirty.iter().for_each(|object| _ = log.to_check.remove(object));
        }
        self.send_log_changes(slot, role.other, clean);
    }

    /// Sends the names to record, with names to remove, unless a request is in flight.
    fn send_log_changes(&mut self, slot: u32, base: PoolId, remove: Vec<ObjectId>) {
        let Some(log) = self.log_of(slot) else { return };
        if log.is_asking || remove.is_empty() && log.to_record.is_empty() {
            return;
        }
        while log.on_way.len() < MAX_NAMES
            && let Some(object) = log.to_record.pop_first()
        {
            log.on_way.push(object);
        }
        let mut ops = Vec::new();
        if !remove.is_empty() {
            // A write that arrives from now on records the name again, after this request.
            for object in &remove {
                log.names.remove(object);
                log.to_check.remove(object);
            }
            ops.push(OsdOp::from(Op::OmapRmKeys { keys: remove.iter().map(dirty_key).collect() }));
        }
        if !log.on_way.is_empty() {
            let entries = log.on_way.iter().map(|object| (dirty_key(object), Bytes::new())).collect();
            ops.push(OsdOp::from(Op::OmapSet { entries }));
        }
        self.ask_log(slot, base, DirtyLogRequest::Change, ops);
    }

    fn ask_log(&mut self, slot: u32, base: PoolId, what: DirtyLogRequest, ops: Vec<OsdOp>) {
        let Some(pg) = self.slots.get(slot as usize).and_then(Option::as_ref).map(|hosted| hosted.pg) else {
            return;
        };
        let Some(request) = self.request_to_other(slot, base, &dirty_log_object(base, pg), ops, None) else {
            // The map does not show this interval yet: waiting and new operations are sent back until it does.
            return self.fail_dirty_log(slot);
        };
        let interval = request.interval;
        if let Some(log) = self.log_of(slot) {
            log.is_asking = true;
        }
        let ticket = self.tiers.add_request(TierRequest::Log { slot, interval, what });
        self.shared.world.request_other_pool(self.index, ticket, request);
    }

    /// Handles the base's answer to a request on the log.
    pub(super) fn on_dirty_log_reply(
        &mut self,
        slot: u32,
        interval: Interval,
        what: DirtyLogRequest,
        reply: Result<OsdReply, Errno>,
    ) {
        if !self.is_in(slot, interval) {
            return;
        }
        let Some(log) = self.log_of(slot) else { return };
        log.is_asking = false;
        let result = reply.as_ref().map_or_else(|errno| errno.negated(), |reply| reply.result);
        match what {
            DirtyLogRequest::Change if result >= 0 => {
                let recorded = std::mem::take(&mut log.on_way);
                // The objects are clean until the waiting write is executed.
                log.to_check.extend(recorded.iter().cloned());
                log.names.extend(recorded.iter().cloned());
                for object in recorded {
                    if self.tiers.waits_for_dirty_log(&object) {
                        self.release(&object, |_| {});
                    }
                }
            }
            DirtyLogRequest::Change => self.fail_dirty_log(slot),
            DirtyLogRequest::Read => {
                let output = reply.ok().and_then(|reply| reply.ops.into_iter().next()).map(|op| op.output);
                let read = output.and_then(|output| decode::<OmapValsReply>(&output).ok());
                match read {
                    Some(read) if result >= 0 => self.on_log_read(slot, read),
                    _ if result == Errno::ENOENT.negated() => log.is_read = true,
                    // The agent tries again.
                    _ => {}
                }
            }
            DirtyLogRequest::Remove if result >= 0 || result == Errno::ENOENT.negated() => {
                *log = DirtyLog { to_record: std::mem::take(&mut log.to_record), ..DirtyLog::default() };
            }
            DirtyLogRequest::Remove => {}
        }
        if let Some(role) = self.tier_role(slot) {
            self.send_log_changes(slot, role.other, Vec::new());
        }
    }

    fn on_log_read(&mut self, slot: u32, read: OmapValsReply) {
        let Some(log) = self.log_of(slot) else { return };
        log.reads_from = read.entries.last().map(|(key, _)| key.clone());
        log.is_read = !read.more;
        let found: Vec<_> = read.entries.iter().filter_map(|(key, _)| dirty_object(key)).collect();
        // The agent excludes the dirty ones later.
        log.to_check.extend(found.iter().cloned());
        log.names.extend(found);
    }

    /// Sends back the waiting writes, because names could not be recorded, or the PG no longer has a cache.
    pub(super) fn fail_dirty_log(&mut self, slot: u32) {
        let Some(log) = self.log_of(slot) else { return };
        let mut failed = std::mem::take(&mut log.on_way);
        failed.extend(std::mem::take(&mut log.to_record));
        for object in failed {
            if self.tiers.waits_for_dirty_log(&object) {
                self.send_waiting_back(&object);
            }
        }
    }
}
