//! The accepting side: listener, handshake, sessions that wait for their peers.

use super::conn::{Conn, ConnInner, StopLevel};
use super::connect::{exchange_banners, read_record, record, set_socket_options, write_record};
use super::link::{self, DisconnectReason, reset_from_cause};
use super::{MessengerInner, Policy, nanos};
use nacre_common::auth::Peer;
use nacre_common::auth::handshake::{AuthRefusal, TransportKeys, banner, decode, encode, respond};
use nacre_common::error::{Error, Result};
use nacre_session::incoming::{Incoming, IncomingEvent, IncomingStep, SessionAdmission, SessionStatus};
use nacre_session::{ConnectReply, ConnectRequest, EndCause, SessionOutcome, SocketLoss};
use nacre_types::ids::EntityKind;
use parking_lot::Mutex;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

/// How long a new session waits for the end of the entity's earlier ones.
const SUPERSEDE_PATIENCE: Duration = Duration::from_secs(10);
/// Maximum number of peers whose refusal is remembered.
const MAX_REFUSALS: usize = 1024;
/// How long to wait if no connection can be accepted because descriptors are exhausted.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// A socket on which a peer returns to its session, to be passed to the session's lane.
pub(super) struct ResumedSocket {
    stream: std::net::TcpStream,
    transport: TransportKeys,
    confirm: ConnectRequest,
    /// The peer with its current rights.
    peer: Peer,
}

/// An incoming lossless session.
pub(crate) struct IncomingSession {
    conn: Arc<ConnInner>,
    attach: mpsc::Sender<ResumedSocket>,
}

impl IncomingSession {
    fn standing(&self) -> SessionStatus {
        SessionStatus { is_over: self.attach.is_closed(), has_heard: self.conn.received.has_heard() }
    }
}

/// Remembers which refusals were logged.
#[derive(Default)]
pub(crate) struct RefusalLogLimiter(HashMap<(IpAddr, String), Instant>);

impl RefusalLogLimiter {
    /// Whether this is the peer's first refusal in `window`.
    pub(super) fn should_log(&mut self, ip: IpAddr, who: String, window: Duration) -> bool {
        let now = Instant::now();
        self.0.retain(|_, at| now.duration_since(*at) < window);
        if self.0.len() >= MAX_REFUSALS {
            return false;
        }
        let mut news = false;
        self.0.entry((ip, who)).or_insert_with(|| {
            news = true;
            now
        });
        news
    }
}

#[cfg(test)]
impl RefusalLogLimiter {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Connections that are authenticating, with a bound. If there is no room for a new connection, another one is dropped, so that
/// silent connections do not delay others.
pub(crate) struct HandshakeLimiter {
    room: Arc<Semaphore>,
    under_way: Mutex<ActiveHandshakes>,
}

#[derive(Default)]
struct ActiveHandshakes {
    next_id: u64,
    /// Ordered by age.
    by_id: BTreeMap<u64, Handshake>,
}

struct Handshake {
    ip: IpAddr,
    /// Whether the peer has proved that it knows the secret of the entity that it claims to be.
    known: bool,
    /// Dropped to end the handshake.
    _give_up: oneshot::Sender<()>,
}

/// A place among the connections that are authenticating, until dropped.
pub(crate) struct HandshakeSlot {
    id: u64,
    handshakes: Arc<HandshakeLimiter>,
    _room: OwnedSemaphorePermit,
}

impl HandshakeLimiter {
    /// Creates a limit of `most` concurrent handshakes.
    pub(crate) fn new(most: usize) -> HandshakeLimiter {
        HandshakeLimiter { room: Arc::new(Semaphore::new(most)), under_way: Mutex::default() }
    }

    /// A place for a connection from `ip`, and a receiver that ends to drop it. `None` if the messenger is gone.
    pub(crate) async fn begin(self: Arc<Self>, ip: IpAddr) -> Option<(HandshakeSlot, oneshot::Receiver<()>)> {
        let room = match self.room.clone().try_acquire_owned() {
            Ok(room) => room,
            Err(_) => {
                self.evict_one();
                self.room.clone().acquire_owned().await.ok()?
            }
        };
        let (give_up, given_up) = oneshot::channel();
        let id = {
            let mut under_way = self.under_way.lock();
            under_way.next_id += 1;
            let id = under_way.next_id;
            under_way.by_id.insert(id, Handshake { ip, known: false, _give_up: give_up });
            id
        };
        Some((HandshakeSlot { id, handshakes: self, _room: room }, given_up))
    }

    /// Drops the oldest of the address that has the most. Considers only those without a proved secret, if there are any.
    fn evict_one(&self) {
        let mut under_way = self.under_way.lock();
        let all_known = under_way.by_id.values().all(|handshake| handshake.known);
        let eligible = |handshake: &Handshake| all_known || !handshake.known;
        let mut of_address: HashMap<IpAddr, (usize, Reverse<u64>)> = HashMap::new();
        for (id, handshake) in under_way.by_id.iter().filter(|(_, handshake)| eligible(handshake)) {
            of_address.entry(handshake.ip).or_insert((0, Reverse(*id))).0 += 1;
        }
        if let Some((_, Reverse(id))) = of_address.into_values().max() {
            under_way.by_id.remove(&id);
        }
    }

    /// Number of connections that are authenticating.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.under_way.lock().by_id.len()
    }
}

impl HandshakeSlot {
    /// Records that the peer has proved a secret: connections that have not are dropped before it.
    pub(crate) fn set_authenticated(&self) {
        if let Some(handshake) = self.handshakes.under_way.lock().by_id.get_mut(&self.id) {
            handshake.known = true;
        }
    }
}

impl Drop for HandshakeSlot {
    fn drop(&mut self) {
        self.handshakes.under_way.lock().by_id.remove(&self.id);
    }
}

/// Listens on `addr`.
pub(super) fn bind(inner: &Arc<MessengerInner>, addr: SocketAddr) -> Result<SocketAddr> {
    let failed = |e: std::io::Error| Error::Io { what: format!("listen on {addr}"), source: Arc::new(e) };
    let listen = || -> std::io::Result<std::net::TcpListener> {
        let socket = socket2::Socket::new(socket2::Domain::for_address(addr), socket2::Type::STREAM, None)?;
        // A restarted daemon can bind its port while old connections are still in TIME_WAIT.
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&addr.into())?;
        socket.listen(inner.limits.backlog)?;
        Ok(socket.into())
    };
    let listener = listen().map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    let lane = &inner.lanes[0];
    let listener = {
        let _in_runtime = lane.handle.enter();
        TcpListener::from_std(listener).map_err(failed)?
    };
    let task = lane.handle.spawn(accept_all(inner.clone(), listener));
    inner.listeners.lock().push(task);
    Ok(bound)
}

async fn accept_all(inner: Arc<MessengerInner>, listener: TcpListener) {
    let mut stopping = inner.stopping.subscribe();
    loop {
        let accepted = tokio::select! {
            _ = stopping.wait_for(|stop| *stop) => return,
            accepted = listener.accept() => accepted,
        };
        match accepted.and_then(|(stream, addr)| Ok((stream.into_std()?, addr))) {
            Ok((stream, addr)) => {
                let Some(slot) = inner.handshakes.clone().begin(addr.ip()).await else { return };
                let lane = inner.next_lane.fetch_add(1, Ordering::Relaxed) % inner.lanes.len();
                let served = inner.clone();
                inner.lanes[lane].handle.spawn(async move {
                    serve(served, lane, stream, addr, slot).await;
                });
            }
            Err(error) => {
                tracing::warn!(%error, "can't accept connections");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

async fn serve(
    inner: Arc<MessengerInner>,
    lane: usize,
    stream: std::net::TcpStream,
    addr: SocketAddr,
    (slot, given_up): (HandshakeSlot, oneshot::Receiver<()>),
) {
    let limit = inner.config.get().ms.ms_connection_ready_timeout;
    let mut who = String::new();
    let authenticated = tokio::select! {
        biased;
        authenticated = tokio::time::timeout(limit, authenticate(&inner, stream, addr, &mut who, &slot)) => {
            authenticated.unwrap_or_else(|_| Err(Error::TimedOut(format!("authentication of {addr}"))))
        }
        _ = given_up => Err(Error::Busy("too many connections are authenticating".into())),
    };
    drop(slot);
    match authenticated {
        Ok((stream, transport, peer, confirm)) => {
            if let Err(error) = admit(&inner, lane, addr, stream, transport, peer, confirm).await {
                tracing::debug!(peer = %addr, %error, "connection lost while connecting");
            }
        }
        Err(error) => log_refusal(&inner, addr, who, &error),
    }
}

fn log_refusal(inner: &MessengerInner, addr: SocketAddr, who: String, error: &Error) {
    if matches!(error, Error::Unreachable { .. }) {
        tracing::debug!(peer = %addr, %error, "connection lost while authenticating");
        return;
    }
    inner.counters.refusals.fetch_add(1, Ordering::Relaxed);
    let window = inner.config.get().global.auth_refusal_log_interval;
    if inner.refusals.lock().should_log(addr.ip(), who.clone(), window) {
        tracing::warn!(peer = %addr, entity = %who, %error, "peer refused");
    }
}

/// Runs the handshake up to the peer's sealed Confirm. `who` receives the name that the peer claims.
async fn authenticate(
    inner: &Arc<MessengerInner>,
    stream: std::net::TcpStream,
    addr: SocketAddr,
    who: &mut String,
    slot: &HandshakeSlot,
) -> Result<(TcpStream, TransportKeys, Peer, ConnectRequest)> {
    let broken = |e: std::io::Error| Error::Unreachable { peer: addr, refused: false, reason: e.to_string() };
    let mut stream = TcpStream::from_std(stream).map_err(broken)?;
    set_socket_options(inner, &stream).map_err(broken)?;
    let theirs = exchange_banners(&mut stream, addr).await?;
    let hello = read_record(&mut stream, record::HELLO, addr).await?;
    *who = nacre_common::auth::handshake::claimed_name(&hello);
    let first = read_record(&mut stream, record::NOISE_1, addr).await?;
    let now_unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let answer = respond(
        &inner.verifier,
        &inner.identity,
        |peer| inner.modes(Some(peer.kind), false),
        [&theirs, &banner()],
        &hello,
        &first,
        now_unix,
    );
    let (transport, peer, second) = match answer {
        Ok(answer) => answer,
        Err(error) => {
            // The refusal is only a courtesy; a peer that does not read it is refused as well.
            let _ = write_record(&mut stream, record::REFUSED, &encode(&AuthRefusal::of(&error))).await;
            let _ = stream.shutdown().await;
            return Err(error);
        }
    };
    slot.set_authenticated();
    write_record(&mut stream, record::NOISE_2, &second).await.map_err(broken)?;
    let sealed = read_record(&mut stream, record::CONFIRM, addr).await?;
    let confirm: ConnectRequest = decode("handshake", &transport.open_vec(0, &sealed)?)?;
    let peer = Peer { nonce: confirm.nonce, ..peer };
    Ok((stream, transport, peer, confirm))
}

/// Creates or finds the connection or session of an authenticated peer, and runs it.
async fn admit(
    inner: &Arc<MessengerInner>,
    lane: usize,
    addr: SocketAddr,
    mut stream: TcpStream,
    transport: TransportKeys,
    peer: Peer,
    confirm: ConnectRequest,
) -> Result<()> {
    if *inner.stopping.borrow() {
        return Err(Error::Closed);
    }
    let entity = peer.entity.clone();
    if entity.kind == EntityKind::Client && inner.conns.lock().len() >= inner.limits.connections {
        return Err(Error::Busy(format!("no more than {} connections are taken", inner.limits.connections)));
    }
    let make = |peer| {
        inner.register(|id| ConnInner::new(id, inner.clone(), lane, confirm.policy, false, addr, Some(peer)))
    };
    if confirm.policy == Policy::Lossy {
        send_ready(&mut stream, &transport, ConnectReply { outcome: SessionOutcome::New, in_seq: 0 }).await?;
        let conn = make(peer);
        run_lossy(&conn, stream, &transport).await;
        inner.unregister(&conn);
        return Ok(());
    }
    let broken = |e: std::io::Error| Error::Unreachable { peer: addr, refused: false, reason: e.to_string() };
    let stream = stream.into_std().map_err(broken)?;
    let attach = ResumedSocket { stream, transport, confirm, peer: peer.clone() };
    let (session, receiver) = loop {
        let earlier: Vec<Arc<IncomingSession>> = {
            let mut sessions = inner.sessions.lock();
            match sessions.admit(&entity, &peer.caps, &confirm, |session| session.standing()) {
                // The session has not yet taken the last socket: this one is dropped, and the peer tries again.
                SessionAdmission::Resume(session) => {
                    return session
                        .attach
                        .try_send(attach)
                        .map_err(|_| Error::Busy("session is being resumed".into()));
                }
                SessionAdmission::Begin => {
                    let (sender, receiver) = mpsc::channel(1);
                    let rights = peer.caps.clone();
                    let session = Arc::new(IncomingSession { conn: make(peer), attach: sender });
                    sessions.insert(entity.clone(), rights, &confirm, Arc::clone(&session));
                    break (session, receiver);
                }
                SessionAdmission::Supersede(earlier) => earlier,
            }
        };
        earlier.iter().for_each(|session| session.conn.supersede());
        for session in earlier {
            let over = tokio::time::timeout(SUPERSEDE_PATIENCE, session.conn.wait_over()).await;
            over.map_err(|_| Error::Busy(format!("an earlier session of {entity} is not over")))?;
        }
    };
    run_session(&session.conn, attach, receiver).await;
    let is_own = |other: &Arc<IncomingSession>| Arc::ptr_eq(other, &session);
    inner.sessions.lock().remove(&entity, confirm.cookie, is_own);
    inner.unregister(&session.conn);
    Ok(())
}

async fn send_ready(stream: &mut TcpStream, transport: &TransportKeys, ready: ConnectReply) -> Result<()> {
    let mut sealed = Vec::new();
    transport.seal(0, &encode(&ready), &mut sealed)?;
    write_record(stream, record::READY, &sealed)
        .await
        .map_err(|e| Error::Io { what: "answer a connecting peer".into(), source: Arc::new(e) })
}

async fn run_lossy(conn: &Arc<ConnInner>, stream: TcpStream, transport: &TransportKeys) {
    let dispatcher = &conn.messenger.lanes[conn.lane].dispatcher;
    let handle = Conn(conn.clone());
    dispatcher.on_accept(&handle);
    let (cause, error) = match link::run(conn, stream, transport, None).await {
        DisconnectReason::LocalClosed | DisconnectReason::Stopped | DisconnectReason::Replaced(_) => return,
        DisconnectReason::PeerClosed => (EndCause::PeerClosed, Error::Closed),
        DisconnectReason::Idle => (EndCause::Idle, Error::Closed),
        DisconnectReason::Fault(error) => (EndCause::Failed, error),
    };
    conn.queue.lock().closing = true;
    if !conn.closed.load(Ordering::Acquire) {
        dispatcher.on_reset(&handle, reset_from_cause(cause, error));
    }
}

/// Runs a lossless session over successive sockets until it ends.
async fn run_session(
    conn: &Arc<ConnInner>,
    first: ResumedSocket,
    mut sockets: mpsc::Receiver<ResumedSocket>,
) {
    let inner = &conn.messenger;
    let dispatcher = &inner.lanes[conn.lane].dispatcher;
    let handle = Conn(conn.clone());
    let mut session = Incoming::new(nanos(inner.limits.session_timeout));
    let (mut input, mut next) = (IncomingEvent::Attached(first.confirm), Some(first));
    let cause = loop {
        let step = session.turn(inner.now(), input, &mut conn.queue.lock(), &conn.received);
        let (ready, first) = match step {
            IncomingStep::Run { ready, first } => (ready, first),
            IncomingStep::Over(cause) => break cause,
            IncomingStep::Wait => {
                input = tokio::select! {
                    biased;
                    () = conn.stopped(StopLevel::Close) => stopped(conn),
                    Some(attach) = sockets.recv() => IncomingEvent::Attached(next.insert(attach).confirm),
                    () = inner.sleep_until(session.next_wake()) => IncomingEvent::Wake,
                };
                continue;
            }
        };
        let Some(attach) = next.take() else { break None };
        conn.peer.store(Some(Arc::new(attach.peer)));
        if first {
            dispatcher.on_accept(&handle);
        }
        input = match answer(inner, attach.stream, &attach.transport, ready).await {
            None => IncomingEvent::Lost(SocketLoss::Fault),
            Some(stream) => match link::run(conn, stream, &attach.transport, Some(&mut sockets)).await {
                DisconnectReason::Stopped => stopped(conn),
                DisconnectReason::Replaced(attach) => IncomingEvent::Attached(next.insert(*attach).confirm),
                end => {
                    if let DisconnectReason::Fault(error) = &end
                        && !conn.closed.load(Ordering::Acquire)
                    {
                        dispatcher.on_fault(&handle, error);
                    }
                    IncomingEvent::Lost(end.loss())
                }
            },
        };
    };
    sockets.close();
    conn.queue.lock().closing = true;
    if let Some(cause) = cause
        && !conn.closed.load(Ordering::Acquire)
    {
        dispatcher.on_reset(&handle, reset_from_cause(cause, Error::Closed));
    }
}

/// Answers a peer. Returns the socket if that succeeded.
async fn answer(
    inner: &MessengerInner,
    stream: std::net::TcpStream,
    transport: &TransportKeys,
    ready: ConnectReply,
) -> Option<TcpStream> {
    let mut stream = TcpStream::from_std(stream).ok()?;
    let limit = inner.config.get().ms.ms_connection_ready_timeout;
    let sent = tokio::time::timeout(limit, send_ready(&mut stream, transport, ready)).await;
    matches!(sent, Ok(Ok(()))).then_some(stream)
}

fn stopped(conn: &ConnInner) -> IncomingEvent {
    IncomingEvent::Stopped { superseded: *conn.stop.borrow() == StopLevel::Superseded }
}
