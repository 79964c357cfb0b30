//! Requests with a copy-from op: its source is read before they are ordered, and what follows on the same object
//! waits.
//!
//! How long that takes is up to the source's PG, so the requests in hand are bounded for the whole OSD (`Shared::copies`);
//! others are sent back. Sources are read only for PGs that execute operations. What was read holds its share of the memory
//! for reading until the PG has the request, so that copies that can't be carried out do not keep others from being read; then
//! it holds a share of as much memory again until the request is answered. Requests that find no room there are sent back.
//!
//! The source may be in a cache that has to flush it first, and the flush may come here: flushes have room of their own
//! (`Shared::flushes`). Nor do reads of sources wait until requests that were sent back come again (`session::is_ordered`).

use super::Shard;
use super::ops::{Admission, Outcome, Passed, answer, send_back};
use crate::copy::{CopyRoom, Fetched, HeldCopy, is_copy_read};
use crate::session::Arrival;
use crate::world::Observation;
use nacre_common::throttle::Permit;
use nacre_types::errno::Errno;
use nacre_types::msg::OsdRequest;
use nacre_types::object::ObjectId;
use std::collections::BTreeMap;

/// A copy on its way.
struct Copying {
    _share: Permit,
    /// Requests that wait for it, in order.
    waiting: Vec<(Arrival, Permit)>,
}

/// Objects that are being replaced by copies.
#[derive(Default)]
pub(super) struct Copies(BTreeMap<ObjectId, Copying>);

impl Copies {
    /// Whether there are any.
    pub(super) fn is_any(&self) -> bool {
        !self.0.is_empty()
    }
}

impl Shard {
    /// Keeps a request that copies, or that waits for a copy of its object; hands back any other.
    pub(super) fn hold_for_copy(
        &mut self,
        arrival: Arrival,
        passed: Passed,
        copies: bool,
    ) -> Option<Arrival> {
        let object = &arrival.request.object;
        // Copies of a copied object read what it was: two that copy each other would wait for ever.
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

    /// The source of a request's copy is read: the request goes on, and so do those that waited for it.
    pub(super) fn on_fetched(&mut self, arrival: Arrival, fetched: Fetched) {
        let copying = self.copies.0.remove(&arrival.request.object);
        if let Some(map) = self.map.clone() {
            match self.admit(&map, &arrival.request, &arrival.conn) {
                Admission::Pass { passed, .. } if self.executes(passed.slot) => {
                    let room = self.copy_room(&arrival.request, true);
                    match HeldCopy::new(fetched.copy, &room.bytes) {
                        Some(copy) => self.start(arrival, passed, Some(copy)),
                        None => {
                            self.shared.world.observe(Observation::SentBack);
                            self.send_back_copy(&arrival);
                        }
                    }
                }
                Admission::Answer(errno) => refuse(&arrival, errno, map.epoch),
                Admission::Pass { .. } | Admission::Backoff => self.send_back_copy(&arrival),
            }
        }
        for (arrival, share) in copying.map(|copying| copying.waiting).unwrap_or_default() {
            drop(share);
            self.on_request(arrival);
        }
    }

    /// The room of a request that `copies`, or waits for a copy of its object.
    fn copy_room(&self, request: &OsdRequest, copies: bool) -> &CopyRoom {
        if copies && request.is_of_tier() { &self.shared.flushes } else { &self.shared.copies }
    }

    fn executes(&self, slot: u32) -> bool {
        let hosted = self.slots.get(slot as usize).and_then(Option::as_ref);
        hosted.is_some_and(|hosted| hosted.machine.executes())
    }

    fn send_back_copy(&self, arrival: &Arrival) {
        self.metrics.op_backoffs.inc();
        let epoch = self.map.as_ref().map_or(arrival.request.epoch, |map| map.epoch);
        send_back(&arrival.conn, &arrival.request, epoch);
    }
}

fn refuse(arrival: &Arrival, errno: Errno, epoch: nacre_types::ids::Epoch) {
    let outcome = Outcome { result: errno.negated(), ..Outcome::default() };
    answer(&arrival.conn, &arrival.request, epoch, outcome);
}
