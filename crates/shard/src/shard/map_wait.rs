//! Requests with an epoch that this OSD does not have yet.
//!
//! They are held for a short time, because the map usually follows. Clients choose the epoch, so the held requests are bounded:
//! by a share of the client throttle for the whole OSD, by a smaller one for each connection, and in time. Requests beyond
//! these bounds are sent back.

use super::Shard;
use super::ops::backoff_in_order;
use crate::host::Observation;
use crate::session::{IncomingRequest, Session};
use nacre_common::{conn::ConnRef, throttle::Permit};
use nacre_types::ids::Epoch;
use nacre_types::msg::MonSubscribe;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

/// How long a request waits for its map before it is sent back.
const MAX_WAIT_NS: u64 = 2_000_000_000;
/// The OSD requests a newer map at most once in this time because of client requests.
const ASK_INTERVAL_NS: u64 = 1_000_000_000;
/// One connection may use one part in this many of the OSD's share.
const CONNECTIONS: usize = 4;

/// The requests of one shard that wait for a map, oldest first.
#[derive(Default)]
pub(super) struct WaitingForMap(VecDeque<HeldRequest>);

struct HeldRequest {
    arrival: IncomingRequest,
    until_ns: u64,
    share: Share,
}

/// A request's share of the limits of its OSD and its connection; released when dropped.
struct Share {
    conn: ConnRef,
    _permit: Permit,
}

impl Drop for Share {
    fn drop(&mut self) {
        if let Some(session) = self.conn.context::<Session>() {
            session.waiting_for_map.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl WaitingForMap {
    /// The number of waiting requests.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// When the oldest request is sent back.
    pub(super) fn next_expiry_ns(&self) -> Option<u64> {
        self.0.front().map(|held| held.until_ns)
    }

    /// Drops requests whose connections have ended: the clients resend over their next connection.
    fn drop_over(&mut self) {
        self.0.retain(|held| !held.arrival.conn.is_over());
    }
}

impl Shard {
    /// Holds a request until this OSD has its map, or sends it back.
    pub(super) fn wait_for_map(&mut self, arrival: IncomingRequest) {
        self.ask_for_map(arrival.request.epoch);
        let mut share = self.share_for(&arrival);
        if share.is_none() {
            self.early.drop_over();
            share = self.share_for(&arrival);
        }
        let Some(share) = share else {
            self.metrics.op_backoffs.inc();
            self.shared.world.observe(Observation::SentBack);
            return backoff_in_order(&arrival.conn, &arrival.request, arrival.request.epoch);
        };
        if self.early.0.is_empty() {
            // The shard's task must learn the new deadline.
            self.inbox.wake_task();
        }
        self.early.0.push_back(HeldRequest { arrival, until_ns: self.now_ns + MAX_WAIT_NS, share });
    }

    fn share_for(&self, arrival: &IncomingRequest) -> Option<Share> {
        let session = arrival.conn.context::<Session>()?;
        let most = (self.shared.settings.max_waiting_inactive / CONNECTIONS).max(1);
        let increment = |count: usize| (count < most).then_some(count + 1);
        session.waiting_for_map.fetch_update(Ordering::Relaxed, Ordering::Relaxed, increment).ok()?;
        match self.shared.early.try_take(arrival.request.payload_bytes() as u64) {
            Some(permit) => Some(Share { conn: arrival.conn.clone(), _permit: permit }),
            None => {
                session.waiting_for_map.fetch_sub(1, Ordering::Relaxed);
                None
            }
        }
    }

    /// Requests the maps after this OSD's own, not the client's epoch, which may be any number. The control thread requests the
    /// first map.
    fn ask_for_map(&self, epoch: Epoch) {
        let next_epoch = self.shared.map.load().as_ref().map(|map| map.epoch.next());
        let Some(next_epoch) = next_epoch.filter(|next| epoch >= *next) else { return };
        let asked_ns = self.shared.map_asked_ns.load(Ordering::Relaxed);
        if self.now_ns >= asked_ns + ASK_INTERVAL_NS {
            self.shared.map_asked_ns.store(self.now_ns, Ordering::Relaxed);
            self.shared.to_mon(&MonSubscribe { next_epoch, config: false });
        }
    }

    /// Continues with the requests that waited for the map of `epoch` or an earlier one.
    pub(super) fn resume_waiting_for_map(&mut self, epoch: Epoch) {
        self.early.drop_over();
        for held in std::mem::take(&mut self.early.0) {
            if held.arrival.request.epoch > epoch {
                self.early.0.push_back(held);
            } else {
                drop(held.share);
                self.on_request(held.arrival);
            }
        }
    }

    /// Sends back the requests that have reached their time limit.
    pub(super) fn expire_waiting_for_map(&mut self) {
        while let Some(held) = self.early.0.pop_front_if(|held| held.until_ns <= self.now_ns) {
            if !held.arrival.conn.is_over() {
                self.metrics.op_backoffs.inc();
                backoff_in_order(&held.arrival.conn, &held.arrival.request, held.arrival.request.epoch);
            }
        }
    }
}
