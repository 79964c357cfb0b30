//! The messenger: authenticated, checksummed, framed messages over TCP.
//!
//! A [`Messenger`] belongs to one entity. It runs on one or more *lanes*, each a tokio runtime handle with the [`Dispatcher`]
//! that is called there. Every connection lives on one lane, in one task that reads, writes and sends keepalives. Handlers run
//! synchronously in the reader. The messages that they send are collected and written with one vectored write when the reader
//! has nothing left.
//!
//! There are two policies. *Lossy*: the first fault ends the connection and is reported with `on_reset`; the owner connects
//! again and resends. *Lossless*: a session outlives its sockets; each message has a sequence number, is kept until
//! acknowledged, sent again after a reconnect, and dispatched exactly once, in order. It is reset only if the other side lost
//! its memory: another process answers, or it closed the session.
//!
//! Bounds: bytes per frame, bytes queued per connection ([`Conn::send`] refuses with `Full`), bytes and messages held by
//! handlers ([`Throttle`], per class of peer: at the bound, reading stops), concurrent handshakes. Formats:
//! docs/format/messenger.md.

mod accept;
mod conn;
mod connect;
mod frame;
mod link;
pub mod metrics;

pub use conn::Conn;
pub use frame::Frame;
pub use nacre_common::throttle::{Permit, Throttle};
pub use nacre_session::Policy;
pub use nacre_session::body::{ALIGN_DATA_FROM_BYTES, DATA_ALIGNMENT};
pub use nacre_types::msg::EncodedMessage;

pub(crate) use accept::{HandshakeLimiter, HandshakeSlot};

use conn::ConnInner;
use nacre_common::auth::handshake::ServerIdentity;
use nacre_common::auth::{Caps, CredentialProvider, Verifier};
use nacre_common::config::Config;
use nacre_common::error::{Error, Result};
use nacre_common::options::kinds::ConnMode;
use nacre_session::Nanos;
use nacre_session::incoming::SessionTable;
use nacre_session::receive::FrameLimits;
use nacre_types::ids::{EntityKind, EntityName};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

/// Why a connection or session has ended.
#[derive(Debug, Clone)]
pub enum ResetReason {
    /// The other side closed it.
    PeerClosed,
    /// Another process answers at the address, or the other side has lost the session: messages in flight may or may not have
    /// been handled. An outgoing lossless connection continues with a new session.
    PeerRestarted,
    /// A lossy connection failed.
    Failed(Error),
    /// Nothing was sent or received for `ms_connection_idle_timeout` on a lossy connection.
    Idle,
    /// The other side did not return to its lossless session within `ms_session_timeout`.
    Lapsed,
}

/// Receives the events of a lane's connections. Called on the lane's runtime, one call at a time per connection; must not block.
/// On a current-thread runtime all calls of a lane are on one thread.
pub trait Dispatcher: Send + Sync + 'static {
    /// A message arrived.
    fn on_message(&self, conn: &Conn, frame: Frame);

    /// A peer connected and authenticated; messages may follow. Not called again when a lossless session resumes.
    fn on_accept(&self, _conn: &Conn) {}

    /// An outgoing connection is up; called again each time a lossless one is re-established.
    fn on_connect(&self, _conn: &Conn) {}

    /// A connection has ended, or a lossless session restarts (see [`ResetReason::PeerRestarted`]). Not called after [`Conn::close`]
    /// on this side.
    fn on_reset(&self, conn: &Conn, reset: ResetReason);

    /// A lossless connection lost its socket, or could not connect, and will try again.
    fn on_fault(&self, _conn: &Conn, _error: &Error) {}
}

/// The target of an outgoing connection.
#[derive(Clone)]
pub struct ConnectTarget {
    /// The address.
    pub addr: SocketAddr,
    /// The entity that must answer there. With `None`, any entity that can prove the credential's secret.
    pub entity: Option<EntityName>,
    /// The behaviour on faults.
    pub policy: Policy,
    /// The lane that the connection lives on.
    pub lane: usize,
    /// How to authenticate.
    pub credentials: Arc<dyn CredentialProvider>,
}

/// Counters of a messenger since its start.
#[derive(Debug, Default)]
pub struct MessengerCounters {
    /// Messages handed to dispatchers.
    pub messages_received: AtomicU64,
    /// Bytes of these messages, headers included.
    pub bytes_received: AtomicU64,
    /// Messages written to sockets, including repetitions.
    pub messages_sent: AtomicU64,
    /// Bytes of these messages, headers included.
    pub bytes_sent: AtomicU64,
    /// Sockets lost.
    pub faults: AtomicU64,
    /// Peers refused during authentication.
    pub refusals: AtomicU64,
    /// Messages received again after a reconnect and dropped.
    pub duplicates: AtomicU64,
    /// How often readers waited for a throttle.
    pub throttle_waits: AtomicU64,
}

pub(crate) struct Lane {
    pub(crate) handle: Handle,
    pub(crate) dispatcher: Arc<dyn Dispatcher>,
}

/// Bounds and times that are fixed for the messenger's life.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MessengerLimits {
    pub(crate) frame: FrameLimits,
    pub(crate) queue_bytes: usize,
    /// Bytes in the queues of all lossy connections together.
    pub(crate) total_queue_bytes: usize,
    /// Maximum number of connections from peers that are not daemons.
    pub(crate) connections: usize,
    pub(crate) keepalive_interval: Duration,
    pub(crate) keepalive_timeout: Duration,
    pub(crate) session_timeout: Duration,
    pub(crate) nodelay: bool,
    pub(crate) rcvbuf: usize,
    pub(crate) backlog: i32,
}

pub(crate) struct MessengerInner {
    pub(crate) identity: ServerIdentity,
    pub(crate) config: Config,
    pub(crate) lanes: Vec<Lane>,
    pub(crate) verifier: Verifier,
    pub(crate) limits: MessengerLimits,
    pub(crate) client_throttle: Throttle,
    pub(crate) cluster_throttle: Throttle,
    pub(crate) handshakes: Arc<HandshakeLimiter>,
    pub(crate) crc_data: Arc<AtomicBool>,
    pub(crate) counters: MessengerCounters,
    pub(crate) next_lane: AtomicUsize,
    pub(crate) next_conn: AtomicU64,
    /// Bytes in lossy connections' queues.
    pub(crate) out_bytes: Arc<AtomicUsize>,
    pub(crate) conns: Mutex<HashMap<u64, Weak<ConnInner>>>,
    pub(crate) sessions: Mutex<SessionTable<Arc<accept::IncomingSession>, Caps>>,
    pub(crate) refusals: Mutex<accept::RefusalLogLimiter>,
    pub(crate) listeners: Mutex<Vec<tokio::task::JoinHandle<()>>>,
    pub(crate) stopping: tokio::sync::watch::Sender<bool>,
    /// When the messenger was created. The time of sessions counts from here.
    pub(crate) started_at: Instant,
}

pub(crate) fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(Nanos::MAX)
}

/// How long aborted connections may take to end.
const ABORT_GRACE: Duration = Duration::from_secs(2);

/// One entity's messenger. Cloning is cheap; dropping the last clone stops nothing, see [`Messenger::shutdown`].
#[derive(Clone)]
pub struct Messenger(Arc<MessengerInner>);

/// Builds a [`Messenger`].
pub struct MessengerBuilder {
    config: Config,
    entity: EntityName,
    nonce: Option<u64>,
    lanes: Vec<Lane>,
    verifier: Verifier,
    client_throttle: Option<Throttle>,
    cluster_throttle: Option<Throttle>,
}

impl MessengerBuilder {
    /// Adds a lane. Connections are distributed over the lanes in turn, or placed by [`ConnectTarget::lane`].
    pub fn lane(mut self, handle: Handle, dispatcher: Arc<dyn Dispatcher>) -> Self {
        self.lanes.push(Lane { handle, dispatcher });
        self
    }

    /// Sets the verifier for connecting peers. Without it, no peer may connect.
    pub fn verifier(mut self, verifier: Verifier) -> Self {
        self.verifier = verifier;
        self
    }

    /// Sets the number that identifies this run of the process. Random by default.
    pub fn nonce(mut self, nonce: u64) -> Self {
        self.nonce = Some(nonce);
        self
    }

    /// Sets the bound on clients' messages that handlers hold.
    pub fn client_throttle(mut self, throttle: Throttle) -> Self {
        self.client_throttle = Some(throttle);
        self
    }

    /// Sets the bound on daemons' messages that handlers hold.
    pub fn cluster_throttle(mut self, throttle: Throttle) -> Self {
        self.cluster_throttle = Some(throttle);
        self
    }

    /// Builds the messenger. Requires at least one lane.
    pub fn build(self) -> Result<Messenger> {
        if self.lanes.is_empty() {
            return Err(Error::Usage("a messenger needs a lane to run on".into()));
        }
        let nonce = match self.nonce {
            Some(nonce) => nonce,
            None => u64::from_le_bytes(nacre_common::auth::random_bytes()?),
        };
        let options = self.config.snapshot();
        let (ms, osd) = (&options.ms, &options.osd);
        let crc_data = Arc::new(AtomicBool::new(ms.ms_crc_data));
        let observed = crc_data.clone();
        self.config.observe(&["ms_crc_data"], move |options, _| {
            observed.store(options.ms.ms_crc_data, Ordering::Relaxed);
        });
        let limits = MessengerLimits {
            frame: FrameLimits {
                meta_bytes: ms.ms_max_frame_meta_bytes,
                data_bytes: ms.ms_max_frame_data_bytes,
            },
            queue_bytes: ms.ms_out_queue_bytes as usize,
            total_queue_bytes: ms.ms_out_queues_bytes as usize,
            connections: ms.ms_max_connections as usize,
            keepalive_interval: ms.ms_keepalive_interval,
            keepalive_timeout: ms.ms_keepalive_timeout,
            session_timeout: ms.ms_session_timeout,
            nodelay: ms.ms_tcp_nodelay,
            rcvbuf: ms.ms_tcp_rcvbuf as usize,
            backlog: ms.ms_tcp_listen_backlog as i32,
        };
        let client_throttle = self.client_throttle.unwrap_or_else(|| {
            if self.entity.kind == EntityKind::Osd {
                Throttle::new(osd.osd_client_message_size_cap, osd.osd_client_message_cap)
            } else {
                Throttle::new(ms.ms_dispatch_throttle_bytes, 0)
            }
        });
        let cluster_throttle =
            self.cluster_throttle.unwrap_or_else(|| Throttle::new(ms.ms_dispatch_throttle_bytes, 0));
        Ok(Messenger(Arc::new(MessengerInner {
            identity: ServerIdentity { entity: self.entity, nonce },
            lanes: self.lanes,
            verifier: self.verifier,
            limits,
            client_throttle,
            cluster_throttle,
            handshakes: Arc::new(HandshakeLimiter::new(ms.ms_max_handshakes as usize)),
            crc_data,
            counters: MessengerCounters::default(),
            next_lane: AtomicUsize::new(0),
            out_bytes: Arc::default(),
            next_conn: AtomicU64::new(1),
            conns: Mutex::default(),
            sessions: Mutex::default(),
            refusals: Mutex::default(),
            listeners: Mutex::default(),
            stopping: tokio::sync::watch::Sender::new(false),
            started_at: Instant::now(),
            config: self.config,
        })))
    }
}

impl Messenger {
    /// Returns a builder for the messenger of `config`'s entity.
    pub fn builder(config: &Config) -> MessengerBuilder {
        MessengerBuilder {
            entity: config.entity().clone(),
            config: config.clone(),
            nonce: None,
            lanes: Vec::new(),
            verifier: Verifier::new(),
            client_throttle: None,
            cluster_throttle: None,
        }
    }

    /// Listens on `addr` (port 0 for any free one) and returns the address. Connections are accepted at once.
    pub fn bind(&self, addr: SocketAddr) -> Result<SocketAddr> {
        accept::bind(&self.0, addr)
    }

    /// Listens on the first free port from `ms_bind_port_min` to `ms_bind_port_max`.
    pub fn bind_in_range(&self, ip: IpAddr) -> Result<SocketAddr> {
        let options = self.0.config.snapshot();
        let (least, greatest) = (options.ms.ms_bind_port_min as u16, options.ms.ms_bind_port_max as u16);
        for port in least..=greatest {
            match self.bind(SocketAddr::new(ip, port)) {
                Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::AddrInUse => {}
                other => return other,
            }
        }
        Err(Error::Busy(format!(
            "no port from {least} to {greatest} is free on {ip} (ms_bind_port_min, ms_bind_port_max)"
        )))
    }

    /// Connects. Returns at once: messages are queued until the connection is up ([`Conn::ready`] waits for that), and failures
    /// are reported to the lane's dispatcher.
    pub fn connect(&self, target: ConnectTarget) -> Result<Conn> {
        if target.lane >= self.0.lanes.len() {
            return Err(Error::Usage(format!("no lane {}", target.lane)));
        }
        if *self.0.stopping.borrow() {
            return Err(Error::Closed);
        }
        Ok(connect::start(&self.0, target))
    }

    /// The messenger's entity.
    pub fn entity(&self) -> &EntityName {
        &self.0.identity.entity
    }

    /// The number of this run of the process.
    pub fn nonce(&self) -> u64 {
        self.0.identity.nonce
    }

    /// Its counters.
    pub fn counters(&self) -> &MessengerCounters {
        &self.0.counters
    }

    /// Drops listeners and connections without notifying anybody, as the end of the process would. For owners whose lanes'
    /// runtimes have ended already: nothing else frees the connections' resources then.
    pub fn abandon(&self) {
        self.0.stopping.send_replace(true);
        self.0.listeners.lock().clear();
        self.0.sessions.lock().clear();
        self.0.conns.lock().clear();
    }

    /// Stops listening, lets connections write queued data for at most `grace`, then ends them all. Returns when every
    /// connection has ended. Reports no resets.
    pub async fn shutdown(&self, grace: Duration) {
        self.0.stopping.send_replace(true);
        let listeners = std::mem::take(&mut *self.0.listeners.lock());
        for listener in listeners {
            // Fails only if its runtime has ended, and then the listener has, too.
            let _ = listener.await;
        }
        let live = || -> Vec<Arc<ConnInner>> {
            self.0.conns.lock().values().filter_map(Weak::upgrade).filter(|c| !c.is_over()).collect()
        };
        for conn in live() {
            conn.close();
        }
        let deadline = Instant::now() + grace;
        while let Some(conn) = live().first() {
            let left = deadline.saturating_duration_since(Instant::now());
            if tokio::time::timeout(left, conn.wait_over()).await.is_err() {
                break;
            }
        }
        for conn in live() {
            conn.abort();
        }
        // If a lane's runtime has ended, its connections end without a notification, because no task waits for them.
        let all_over = async {
            while let Some(conn) = live().first() {
                conn.wait_over().await;
            }
        };
        let _ = tokio::time::timeout(ABORT_GRACE, all_over).await;
    }
}

impl MessengerInner {
    pub(crate) fn throttle(&self, kind: EntityKind) -> &Throttle {
        if kind == EntityKind::Client { &self.client_throttle } else { &self.cluster_throttle }
    }

    /// The current time of sessions.
    pub(crate) fn now(&self) -> Nanos {
        nanos(self.started_at.elapsed())
    }

    /// Sleeps until a time of [`MessengerInner::now`], or for ever if there is none.
    pub(crate) async fn sleep_until(&self, at: Option<Nanos>) {
        match at {
            Some(at) => tokio::time::sleep(Duration::from_nanos(at.saturating_sub(self.now()))).await,
            None => std::future::pending().await,
        }
    }

    /// The modes for connections with a peer, from the kinds of both sides.
    pub(crate) fn modes(&self, peer: Option<EntityKind>, connecting: bool) -> Vec<ConnMode> {
        let options = self.config.get();
        if self.identity.entity.kind == EntityKind::Client {
            options.ms.ms_client_mode.clone()
        } else if !connecting && peer == Some(EntityKind::Client) {
            options.ms.ms_service_mode.clone()
        } else {
            options.ms.ms_cluster_mode.clone()
        }
    }

    /// Registers a new connection.
    pub(crate) fn register(self: &Arc<Self>, make: impl FnOnce(u64) -> ConnInner) -> Arc<ConnInner> {
        let id = self.next_conn.fetch_add(1, Ordering::Relaxed);
        let conn = Arc::new(make(id));
        self.conns.lock().insert(id, Arc::downgrade(&conn));
        // Shutdown examines registered connections and may have done so already.
        if *self.stopping.borrow() {
            conn.abort();
        }
        conn
    }

    /// Removes a connection that has ended.
    pub(crate) fn unregister(&self, conn: &ConnInner) {
        self.conns.lock().remove(&conn.id);
        conn.finish();
    }
}

#[cfg(test)]
mod tests;
