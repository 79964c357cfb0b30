//! Clients of an OSD: the permissions of their connections, and requests before they reach a PG.

use crate::copy::is_copy_read;
use nacre_common::auth::Peer;
use nacre_common::{conn::ConnRef, throttle::Permit};
use nacre_types::caps::osd::OsdCaps;
use nacre_types::ceph::SessionAddr;
use nacre_types::ids::{ClientId, EntityName, Interval, PgId};
use nacre_types::msg::OsdRequest;
use nacre_types::osdmap::OsdMap;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The properties of a connection's other side, attached to the connection.
#[derive(Debug)]
pub struct Session {
    /// Its entity name.
    pub entity: EntityName,
    /// Its session id; requests must carry it.
    pub client: Option<ClientId>,
    /// Its capabilities.
    pub caps: OsdCaps,
    /// Its names on the blocklist: `client.ID`, the session's address (port 0, the session as nonce), the connection's
    /// address with and without port.
    names: [String; 4],
    /// The address from which it connects, for ranges of the blocklist.
    ip: IpAddr,
    /// Whether it watches objects.
    watching: AtomicBool,
    /// Whether heartbeats arrive on it.
    beating: AtomicBool,
    /// Requests that wait for a map, on all shards.
    pub waiting_for_map: AtomicUsize,
    /// For each PG, the oldest request that was sent back and has not arrived again.
    sent_back: Mutex<BTreeMap<PgId, PgBackoff>>,
    /// Whether there are any.
    has_sent_back: AtomicBool,
}

/// A request that was sent back.
#[derive(Debug)]
struct PgBackoff {
    tid: u64,
    interval: Interval,
    /// Requests of the PG that were sent back since then, so that they do not overtake it: their tids and attempts.
    later: BTreeMap<u64, u32>,
}

/// The most PGs in [`Session::note_backoff`]'s table, far more than the PGs of an OSD that one client uses. The bound is
/// necessary because clients choose the PGs of requests that wait for a map.
pub(crate) const MAX_BACKOFF_PGS: usize = 512;

/// The most requests in [`PgBackoff::later`], those with the highest tids: one of them that arrives again is enough.
const MAX_LATER: usize = 64;

impl Session {
    /// Creates the session of an authenticated peer that connects from `addr`. Capabilities that do not parse grant nothing,
    /// and are logged.
    pub fn new(peer: &Peer, addr: SocketAddr) -> Session {
        let caps = peer.caps.get("osd").map_or_else(OsdCaps::default, |text| {
            OsdCaps::parse(text).unwrap_or_else(|error| {
                tracing::warn!(entity = %peer.entity, %error, "capabilities grant nothing");
                OsdCaps::default()
            })
        });
        Session {
            entity: peer.entity.clone(),
            client: peer.client,
            caps,
            names: names(peer.client, addr),
            ip: addr.ip(),
            watching: AtomicBool::new(false),
            beating: AtomicBool::new(false),
            waiting_for_map: AtomicUsize::new(0),
            sent_back: Mutex::default(),
            has_sent_back: AtomicBool::new(false),
        }
    }

    /// Records that the client watches an object over the connection.
    pub fn set_watching(&self) {
        self.watching.store(true, Ordering::Relaxed);
    }

    /// Whether the client ever watched an object over the connection.
    pub fn is_watching(&self) -> bool {
        self.watching.load(Ordering::Relaxed)
    }

    /// Records that a peer's heartbeats arrive on the connection.
    pub fn set_heartbeat(&self) {
        self.beating.store(true, Ordering::Relaxed);
    }

    /// Whether a peer's heartbeats arrive on the connection.
    pub fn is_heartbeat(&self) -> bool {
        self.beating.load(Ordering::Relaxed)
    }

    /// Records that a request of the current interval was sent back. Until it arrives again, later requests of its PG must not
    /// be executed, because clients rely on the order of their operations. Returns whether there was room to record it; if not,
    /// the connection must end.
    #[must_use]
    pub fn note_backoff(&self, request: &OsdRequest) -> bool {
        let mut sent_back = self.sent_back.lock();
        let (tid, interval) = (request.reqid.tid, request.interval);
        let is_older =
            |known: &PgBackoff| interval > known.interval || interval == known.interval && tid < known.tid;
        if sent_back.len() >= MAX_BACKOFF_PGS && !sent_back.contains_key(&request.pg) {
            return false;
        }
        if sent_back.get(&request.pg).is_none_or(is_older) {
            sent_back.insert(request.pg, PgBackoff { tid, interval, later: BTreeMap::new() });
        }
        self.has_sent_back.store(true, Ordering::Relaxed);
        true
    }

    /// Whether a request must be sent back because an earlier one of its PG was, and has not arrived again. This is not
    /// necessary if the client no longer waits for the earlier one, or if a later interval started, in which the client resends
    /// everything.
    ///
    /// The client has given up the earlier request if a later one that was sent back arrives again: a client resends the
    /// requests of a PG in order. (It skips those that a full or paused pool delays; they may be overtaken.)
    pub fn is_out_of_order(&self, request: &OsdRequest) -> bool {
        if !self.has_sent_back.load(Ordering::Relaxed) {
            return false;
        }
        let mut sent_back = self.sent_back.lock();
        let Some(earlier) = sent_back.get_mut(&request.pg) else { return false };
        let (tid, interval) = (request.reqid.tid, request.interval);
        if interval < earlier.interval || interval == earlier.interval && tid < earlier.tid {
            return false;
        }
        let comes_again = earlier.later.get(&tid).is_some_and(|attempt| request.attempt > *attempt);
        let is_settled = interval > earlier.interval
            || tid == earlier.tid
            || request.oldest_tid > earlier.tid
            || comes_again;
        if is_settled {
            sent_back.remove(&request.pg);
            self.has_sent_back.store(!sent_back.is_empty(), Ordering::Relaxed);
        } else {
            earlier.later.insert(tid, request.attempt);
            if earlier.later.len() > MAX_LATER {
                earlier.later.pop_first();
            }
        }
        !is_settled
    }

    /// Whether the client is on the blocklist and may not do I/O.
    pub fn is_blocklisted(&self, map: &OsdMap) -> bool {
        !map.blocklist.is_empty()
            && (self.names.iter().any(|name| map.is_blocklisted(name)) || map.is_range_blocklisted(self.ip))
    }
}

impl Session {
    /// Whether the client with that session id, which connects from `addr`, is on the blocklist.
    pub(crate) fn is_client_blocklisted(map: &OsdMap, client: ClientId, addr: SocketAddr) -> bool {
        if map.blocklist.is_empty() {
            return false;
        }
        names(Some(client), addr).iter().any(|name| map.is_blocklisted(name))
            || map.is_range_blocklisted(addr.ip())
    }
}

/// Whether a request has an order among those of its session. Requests between OSDs for tiers have none, nor have reads of the
/// sources of copies: requests that were sent back may wait for exactly these, and would be sent back without end.
pub(crate) fn is_ordered(request: &OsdRequest) -> bool {
    !request.is_tier_request() && !is_copy_read(request)
}

/// The client's names on the blocklist: see [`Session::names`].
fn names(client: Option<ClientId>, addr: SocketAddr) -> [String; 4] {
    let id = client.map(|id| format!("client.{id}")).unwrap_or_default();
    let own = client.map(|id| SessionAddr::client(addr.ip(), id).to_string()).unwrap_or_default();
    [id, own, addr.to_string(), addr.ip().to_string()]
}

/// A request with its connection.
#[derive(Debug)]
pub struct IncomingRequest {
    /// The request.
    pub request: OsdRequest,
    /// The connection for the answer.
    pub conn: ConnRef,
    /// Its share of the throttles.
    pub permit: Option<Permit>,
    /// The arrival time, CLOCK_BOOTTIME.
    pub arrived_ns: u64,
}
