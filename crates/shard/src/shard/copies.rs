//! Requests with copy-from ops: their sources are read before they are ordered, and what follows on the same object
//! waits.

use super::Shard;
use super::ops::{Admission, Outcome, answer, send_back};
use crate::copy::Fetched;
use crate::session::Arrival;
use nacre_types::errno::Errno;
use nacre_types::object::ObjectId;
use nacre_types::op::Op;
use std::collections::BTreeMap;

/// Requests that may wait for one object's copy; the throttle of clients' requests bounds them all.
const MAX_WAITING: usize = 1024;

/// Objects that are being replaced by copies, with the requests that wait for that, in order.
#[derive(Default)]
pub(super) struct Copies(BTreeMap<ObjectId, Vec<Arrival>>);

impl Copies {
    /// Whether there are any.
    pub(super) fn is_any(&self) -> bool {
        !self.0.is_empty()
    }
}

impl Shard {
    /// Keeps a request that copies, or that waits for a copy of its object; hands back any other.
    pub(super) fn hold_for_copy(&mut self, arrival: Arrival, copies: bool) -> Option<Arrival> {
        let object = &arrival.request.object;
        // Copies of a copied object read what it was: two that copy each other would wait for ever.
        let reads_copy = || arrival.request.ops.iter().any(|op| matches!(op.op, Op::CopyGet { .. }));
        if let Some(waiting) = self.copies.0.get_mut(object) {
            if reads_copy() {
                return Some(arrival);
            }
            if waiting.len() < MAX_WAITING {
                waiting.push(arrival);
            } else {
                send_back(&arrival.conn, &arrival.request, arrival.request.epoch);
            }
            return None;
        }
        if !copies {
            return Some(arrival);
        }
        self.copies.0.insert(object.clone(), Vec::new());
        self.shared.world.fetch(self.index, Box::new(arrival));
        None
    }

    /// The sources of a request are read: it goes on, and so do those that waited for it.
    pub(super) fn on_fetched(&mut self, arrival: Arrival, fetched: Fetched) {
        let waiting = self.copies.0.remove(&arrival.request.object).unwrap_or_default();
        if let Some(map) = self.map.clone() {
            match self.admit(&map, &arrival.request, &arrival.conn) {
                Admission::Pass { passed, .. } => self.start(arrival, passed, fetched),
                Admission::Answer(errno) => refuse(&arrival, errno, map.epoch),
                Admission::Backoff => send_back(&arrival.conn, &arrival.request, map.epoch),
            }
        }
        for arrival in waiting {
            self.on_request(arrival);
        }
    }
}

fn refuse(arrival: &Arrival, errno: Errno, epoch: nacre_types::ids::Epoch) {
    let outcome = Outcome { result: errno.negated(), ..Outcome::default() };
    answer(&arrival.conn, &arrival.request, epoch, outcome);
}
