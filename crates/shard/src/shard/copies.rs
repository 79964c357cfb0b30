//! Requests with a copy-from op: the source is read before the request is ordered, and later requests on the same object wait.
//!
//! The duration depends on the source's PG, so the number of such requests is bounded for the whole OSD (`Shared::copies`);
//! others are sent back. Sources are read only for PGs that execute operations. The data that was read holds a share of the
//! memory for reading until the PG has the request, so that copies that can't be executed do not keep others from being read.
//! Then it holds a share of a second memory of that size until the request is answered. Requests that find no room there are
//! sent back.
//!
//! The source may be in a cache that must flush it first, and the flush may come to this OSD: so flushes have their own room
//! (`Shared::flushes`). For the same reason, reads of sources do not wait until requests that were sent back arrive again
//! (`session::is_ordered`).

use super::Shard;
use super::ops::{AdmittedRequest, OpOutcome, RequestAdmission, answer, backoff_in_order};
use crate::copy::{AdmittedCopy, CopyThrottle, FetchedSource, is_copy_read};
use crate::host::Observation;
use crate::session::IncomingRequest;
use nacre_common::throttle::Permit;
use nacre_types::errno::Errno;
use nacre_types::msg::OsdRequest;
use nacre_types::object::ObjectId;
use std::collections::BTreeMap;

/// A copy in progress.
struct Copying {
    _share: Permit,
    /// Requests that wait for it, in order.
    waiting: Vec<(IncomingRequest, Permit)>,
}

/// Objects that are being replaced by copies.
#[derive(Default)]
pub(super) struct PendingCopies(BTreeMap<ObjectId, Copying>);

impl PendingCopies {
    /// Whether there are any.
    pub(super) fn is_any(&self) -> bool {
        !self.0.is_empty()
    }
}

impl Shard {
    /// Holds a request that copies, or that waits for a copy of its object; returns any other.
    pub(super) fn wait_for_copy(
        &mut self,
        arrival: IncomingRequest,
        passed: AdmittedRequest,
        copies: bool,
    ) -> Option<IncomingRequest> {
        let object = &arrival.request.object;
        // A copy of an object that is being copied reads the previous contents: otherwise two objects that copy each other
        // would wait forever.
        let is_copying = self.copies.0.contains_key(object);
        if is_copying && is_copy_read(&arrival.request) || !is_copying && !copies {
            return Some(arrival);
        }
        let room = self.copy_room(&arrival.request, copies);
        let Some(share) = room.requests.try_take(0) else {
            self.shared.world.observe(Observation::SentBack);
            self.send_back_copy(&arrival);
            return None;
        };
        if let Some(copying) = self.copies.0.get_mut(object) {
            copying.waiting.push((arrival, share));
        } else if self.executes(passed.slot) {
            self.copies.0.insert(object.clone(), Copying { _share: share, waiting: Vec::new() });
            self.shared.world.fetch(self.index, Box::new(arrival));
        } else {
            self.send_back_copy(&arrival);
        }
        None
    }

    /// Handles the source of a request's copy: the request continues, and so do those that waited for it.
    pub(super) fn on_fetched(&mut self, arrival: IncomingRequest, fetched: FetchedSource) {
        let copying = self.copies.0.remove(&arrival.request.object);
        if let Some(map) = self.map.clone() {
            match self.admit(&map, &arrival.request, &arrival.conn) {
                RequestAdmission::Pass { passed, .. } if self.executes(passed.slot) => {
                    let room = self.copy_room(&arrival.request, true);
                    match AdmittedCopy::new(fetched.copy, &room.bytes) {
                        Some(copy) => self.start_request(arrival, passed, Some(copy)),
                        None => {
                            self.shared.world.observe(Observation::SentBack);
                            self.send_back_copy(&arrival);
                        }
                    }
                }
                RequestAdmission::Answer(errno) => refuse(&arrival, errno, map.epoch),
                RequestAdmission::Pass { .. } | RequestAdmission::Backoff => self.send_back_copy(&arrival),
            }
        }
        for (arrival, share) in copying.map(|copying| copying.waiting).unwrap_or_default() {
            drop(share);
            self.on_request(arrival);
        }
    }

    /// The room for a request that copies (`copies`), or that waits for a copy of its object.
    fn copy_room(&self, request: &OsdRequest, copies: bool) -> &CopyThrottle {
        if copies && request.is_tier_request() { &self.shared.flushes } else { &self.shared.copies }
    }

    fn executes(&self, slot: u32) -> bool {
        let hosted = self.slots.get(slot as usize).and_then(Option::as_ref);
        hosted.is_some_and(|hosted| hosted.machine.can_execute())
    }

    fn send_back_copy(&self, arrival: &IncomingRequest) {
        self.metrics.op_backoffs.inc();
        let epoch = self.map.as_ref().map_or(arrival.request.epoch, |map| map.epoch);
        backoff_in_order(&arrival.conn, &arrival.request, epoch);
    }
}

fn refuse(arrival: &IncomingRequest, errno: Errno, epoch: nacre_types::ids::Epoch) {
    let outcome = OpOutcome { result: errno.negated(), ..OpOutcome::default() };
    answer(&arrival.conn, &arrival.request, epoch, outcome);
}
