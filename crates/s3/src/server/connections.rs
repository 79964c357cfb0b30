//! The connections of a gateway: limits on their number, in total and per address, their time limits, and the choice of the
//! connection that is closed to make room for another.
//!
//! A connection is *waiting* (for TLS, for the head of a request, between two requests) or *busy* with a request. A busy
//! connection is *stalled* while the gateway waits for its client: for bytes of the request's body, or until the client
//! takes bytes of the answer. When a limit on the number is reached, a waiting or stalled connection is closed: of the
//! address that has most of them, the one that has waited longest. A stalled request of a known user is closed only after
//! [`ConnectionLimits::stalled_after`]. A request that makes progress is never closed to make room.
//!
//! An IPv4 address is counted by itself. IPv6 addresses are counted by their /64 network, because one host can use all of
//! its addresses.

mod state;

pub(super) use state::Connection;
use state::Phase;

use crate::metrics::{Metrics, OpenConnection};
use parking_lot::Mutex;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// How many connections are tried when a chosen one can't be closed because its phase has changed.
const CHOICES: usize = 16;
/// How often the accept loop checks for room when every connection is busy.
const RETRY: Duration = Duration::from_millis(100);
/// How long after its time limit the connection of a stalled body is closed, if the request has not ended with an answer.
const BODY_GRACE: Duration = Duration::from_secs(5);

/// Bounds on connections.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// `rgw_max_connections`: the most connections at a time.
    pub most: usize,
    /// `rgw_max_connections_per_address`: the most connections of one address; 0 for no limit.
    pub per_address: usize,
    /// `rgw_tls_handshake_timeout`: how long a TLS handshake may take.
    pub handshake: Duration,
    /// `rgw_header_timeout`: how long the head of a request may take from its first byte, and how long a new connection may
    /// send nothing.
    pub head: Duration,
    /// `request_timeout_ms` of `rgw_frontends`: how long the gateway waits for a byte of a body, for a client to take a byte
    /// of an answer, and for another request.
    pub idle: Duration,
    /// `rgw_stalled_request_time`: how long a known user's request must be stalled before it may be closed to make room.
    pub stalled_after: Duration,
    /// `rgw_min_transfer_rate`: bytes per second below which waiting adds up towards `idle`; 0 for no minimum.
    pub min_rate: u64,
}

/// All connections of a server.
#[derive(Debug)]
pub(super) struct Connections {
    limits: ConnectionLimits,
    began: Instant,
    metrics: Arc<Metrics>,
    table: Mutex<Table>,
    /// Signalled when a connection has ended.
    ended: Notify,
}

#[derive(Debug, Default)]
struct Table {
    next_id: u64,
    /// All connections that have a socket, including those that were told to close.
    by_id: BTreeMap<u64, Arc<Connection>>,
    /// The number of connections that were not told to close: by address, and in total.
    of_address: HashMap<IpAddr, usize>,
    active: usize,
}

/// The phase of a connection when it was examined, and when the phase began.
type Observed = (Phase, Duration);

/// Which connections may be closed to make room.
#[derive(Clone, Copy)]
enum EvictionScope {
    /// Waiting and stalled connections, of one address or of any.
    Idle(Option<IpAddr>),
    /// Stalled connections.
    Stalled,
}

impl Connections {
    pub(super) fn new(limits: ConnectionLimits, metrics: Arc<Metrics>) -> Connections {
        let limits = ConnectionLimits { most: limits.most.max(1), ..limits };
        Connections { limits, began: Instant::now(), metrics, table: Mutex::default(), ended: Notify::new() }
    }

    /// Admits a connection from `ip`, closing another one if necessary. Waits while every connection is busy. Returns
    /// `None` if the address has reached its limit and none of its connections can be closed.
    pub(super) async fn admit(self: &Arc<Self>, ip: IpAddr, tls: bool) -> Option<ConnectionPermit> {
        let address = counted(ip);
        {
            let mut table = self.table.lock();
            let of_address = table.of_address.get(&address).copied().unwrap_or(0);
            if self.limits.per_address > 0
                && of_address >= self.limits.per_address
                && !self.evict_one(&mut table, EvictionScope::Idle(Some(address)))
            {
                self.metrics.connection_refused();
                return None;
            }
        }
        loop {
            let ended = self.ended.notified();
            {
                let mut table = self.table.lock();
                if table.active >= self.limits.most {
                    self.evict_one(&mut table, EvictionScope::Idle(None));
                }
                if table.by_id.len() < self.limits.most {
                    return Some(self.insert(&mut table, address, tls));
                }
            }
            // There is no signal when a connection becomes idle.
            _ = tokio::time::timeout(RETRY, ended).await;
        }
    }

    fn insert(self: &Arc<Self>, table: &mut Table, address: IpAddr, tls: bool) -> ConnectionPermit {
        table.next_id += 1;
        let connection = Arc::new(Connection::new(table.next_id, address, self.began, &self.limits, tls));
        table.by_id.insert(connection.id, Arc::clone(&connection));
        table.active += 1;
        *table.of_address.entry(address).or_insert(0) += 1;
        ConnectionPermit {
            connection,
            connections: Arc::clone(self),
            _open: self.metrics.connection_opened(),
        }
    }

    /// Closes the connection of a stalled request, if there is one.
    pub(super) fn evict_stalled(&self) -> bool {
        self.evict_one(&mut self.table.lock(), EvictionScope::Stalled)
    }

    /// Closes an idle connection, if there is one, when the process has run out of file descriptors.
    pub(super) fn evict_idle(&self) -> bool {
        self.evict_one(&mut self.table.lock(), EvictionScope::Idle(None))
    }

    fn evict_one(&self, table: &mut Table, eligible: EvictionScope) -> bool {
        for _ in 0..CHOICES {
            let Some((id, seen)) = self.oldest(table, eligible) else { return false };
            let Some(connection) = table.by_id.get(&id).cloned() else { return false };
            if self.close(table, &connection, seen) {
                tracing::debug!(address = %connection.address, "rgw: an idle connection makes way for another");
                return true;
            }
        }
        false
    }

    /// Returns the connection to close, and its phase. Prefers the address with the most eligible connections, then waiting
    /// connections and unknown users over known users, then the longest wait.
    fn oldest(&self, table: &Table, eligible: EvictionScope) -> Option<(u64, Observed)> {
        let now = self.began.elapsed();
        let mut candidates = Vec::new();
        let mut of_address: HashMap<IpAddr, usize> = HashMap::new();
        for connection in table.by_id.values() {
            if let EvictionScope::Idle(Some(address)) = eligible
                && connection.address != address
            {
                continue;
            }
            let seen = connection.phase();
            let (expendable, since) = match seen {
                (Phase::Closing, _) => continue,
                (Phase::Busy, _) => {
                    let Some(since) = connection.stalled_since() else { continue };
                    let expendable = !connection.is_authenticated();
                    if !expendable && now.saturating_sub(since) < self.limits.stalled_after {
                        continue;
                    }
                    (expendable, since)
                }
                (..) if matches!(eligible, EvictionScope::Stalled) => continue,
                (_, since) => (true, since),
            };
            *of_address.entry(connection.address).or_insert(0) += 1;
            candidates.push((connection.address, expendable, Reverse(since), connection.id, seen));
        }
        let best = candidates.into_iter().max_by_key(|(address, expendable, since, id, _)| {
            (of_address.get(address).copied(), *expendable, *since, Reverse(*id))
        });
        best.map(|(.., id, seen)| (id, seen))
    }

    /// Closes a connection if it is still in the phase `seen`; returns whether it was.
    fn close(&self, table: &mut Table, connection: &Connection, seen: Observed) -> bool {
        let closed = connection.request_close_if(seen);
        if closed {
            table.forget(connection.address);
            self.metrics.connection_evicted();
        }
        closed
    }

    /// Closes the connections that have exceeded their time limit.
    fn close_timed_out(&self) {
        let now = self.began.elapsed();
        let mut table = self.table.lock();
        let all = table.by_id.values().map(|connection| (connection.phase(), connection));
        let late = all.filter(|(seen, connection)| self.is_timed_out(connection, *seen, now));
        let late: Vec<(Observed, Arc<Connection>)> =
            late.map(|(seen, connection)| (seen, Arc::clone(connection))).collect();
        for (seen, connection) in late {
            if self.close(&mut table, &connection, seen) {
                tracing::debug!(address = %connection.address, phase = ?seen.0, "rgw: a connection timed out");
            }
        }
    }

    fn is_timed_out(&self, connection: &Connection, (phase, since): Observed, now: Duration) -> bool {
        let ConnectionLimits { handshake, head, idle, .. } = self.limits;
        let waited = now.saturating_sub(since);
        match phase {
            Phase::Handshake => waited > handshake,
            Phase::Silent | Phase::Head => waited > head,
            Phase::Between => waited > idle,
            Phase::Busy => {
                connection.answer_stall_time() > idle || connection.body_stall_time() > idle + BODY_GRACE
            }
            Phase::Closing => false,
        }
    }

    /// Closes connections on which no byte of a request has arrived, when the gateway shuts down.
    pub(super) fn close_unused(&self) {
        let mut table = self.table.lock();
        let all = table.by_id.values().map(|connection| (connection.phase(), Arc::clone(connection)));
        let silent: Vec<(Observed, Arc<Connection>)> =
            all.filter(|((phase, _), _)| matches!(phase, Phase::Handshake | Phase::Silent)).collect();
        silent.iter().for_each(|(seen, connection)| _ = self.close(&mut table, connection, *seen));
    }

    fn remove(&self, connection: &Connection) {
        let mut table = self.table.lock();
        table.by_id.remove(&connection.id);
        if connection.request_close() {
            table.forget(connection.address);
        }
        drop(table);
        self.ended.notify_waiters();
    }
}

impl Table {
    fn forget(&mut self, address: IpAddr) {
        self.active -= 1;
        if let Some(count) = self.of_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                self.of_address.remove(&address);
            }
        }
    }
}

/// The place of an admitted connection, which is released on drop.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    connection: Arc<Connection>,
    connections: Arc<Connections>,
    _open: OpenConnection,
}

impl ConnectionPermit {
    /// Returns the connection's state.
    pub(super) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.connections.remove(&self.connection);
    }
}

/// Closes connections that have exceeded their time limit, as long as the server exists.
pub(super) async fn enforce_timeouts(connections: Weak<Connections>, limits: ConnectionLimits) {
    let shortest = limits.handshake.min(limits.head).min(limits.idle);
    let period = (shortest / 4).clamp(Duration::from_millis(10), Duration::from_secs(1));
    loop {
        tokio::time::sleep(period).await;
        let Some(connections) = connections.upgrade() else { return };
        connections.close_timed_out();
    }
}

/// Returns the address under which an address is counted.
fn counted(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from(u128::from(ip) & !u128::from(u64::MAX))),
        ip => ip,
    }
}

#[cfg(test)]
mod tests;
