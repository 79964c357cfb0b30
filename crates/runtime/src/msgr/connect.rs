//! The connecting side: handshakes over a socket, and reconnects.

use super::conn::{Conn, ConnInner, ConnState, StopLevel};
use super::link::{self, DisconnectReason, reset_from_cause};
use super::{ConnectTarget, MessengerInner, ResetReason, nanos};
use nacre_common::auth::Peer;
use nacre_common::auth::handshake::{
    AuthRefusal, BANNER_BYTES, Initiator, MAX_RECORD_BYTES, TransportKeys, banner, check_banner, decode,
    encode,
};
use nacre_common::error::{Error, Result};
use nacre_session::outgoing::{Backoff, Outgoing, OutgoingEvent, OutgoingStep};
use nacre_session::{ConnectReply, ConnectRequest, EndCause, SocketLoss};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The handshake's records: `type u8 | length u24 le | body`.
pub(super) mod record {
    pub(in crate::msgr) const HELLO: u8 = 1;
    pub(in crate::msgr) const NOISE_1: u8 = 2;
    pub(in crate::msgr) const NOISE_2: u8 = 3;
    pub(in crate::msgr) const CONFIRM: u8 = 4;
    pub(in crate::msgr) const READY: u8 = 5;
    pub(in crate::msgr) const REFUSED: u8 = 15;
}

fn unreachable(peer: SocketAddr) -> impl Fn(io::Error) -> Error {
    move |e| Error::Unreachable {
        peer,
        refused: e.kind() == io::ErrorKind::ConnectionRefused,
        reason: match e.kind() {
            io::ErrorKind::UnexpectedEof => "closed the connection while connecting".to_owned(),
            _ => e.to_string(),
        },
    }
}

/// Writes a record.
pub(super) async fn write_record(stream: &mut TcpStream, kind: u8, body: &[u8]) -> io::Result<()> {
    let length = (body.len() as u32).to_le_bytes();
    let mut out = Vec::with_capacity(4 + body.len());
    out.extend_from_slice(&[kind, length[0], length[1], length[2]]);
    out.extend_from_slice(body);
    stream.write_all(&out).await
}

/// Reads a record of type `expected`. A refusal becomes its error.
pub(super) async fn read_record(stream: &mut TcpStream, expected: u8, peer: SocketAddr) -> Result<Vec<u8>> {
    let mut head = [0; 4];
    stream.read_exact(&mut head).await.map_err(unreachable(peer))?;
    let length = u32::from_le_bytes([head[1], head[2], head[3], 0]) as usize;
    let protocol = |reason: String| Error::Protocol { peer, reason };
    if length > MAX_RECORD_BYTES {
        return Err(protocol(format!("sent a handshake record of {length} bytes")));
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.map_err(unreachable(peer))?;
    match head[0] {
        record::REFUSED => Err(decode::<AuthRefusal>("refusal", &body)?.into_error()),
        kind if kind == expected => Ok(body),
        kind => Err(protocol(format!("sent handshake record {kind} where {expected} was due"))),
    }
}

/// Exchanges banners. Returns the peer's.
pub(super) async fn exchange_banners(stream: &mut TcpStream, peer: SocketAddr) -> Result<[u8; BANNER_BYTES]> {
    stream.write_all(&banner()).await.map_err(unreachable(peer))?;
    let mut theirs = [0; BANNER_BYTES];
    stream.read_exact(&mut theirs).await.map_err(unreachable(peer))?;
    check_banner(&theirs).map_err(|reason| Error::Protocol { peer, reason })?;
    Ok(theirs)
}

/// Sets a socket's options.
pub(super) fn set_socket_options(inner: &MessengerInner, stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(inner.limits.nodelay)?;
    if inner.limits.rcvbuf > 0 {
        socket2::SockRef::from(stream).set_recv_buffer_size(inner.limits.rcvbuf)?;
    }
    Ok(())
}

/// Starts an outgoing connection.
pub(super) fn start(inner: &Arc<MessengerInner>, target: ConnectTarget) -> Conn {
    let lane = target.lane;
    let conn =
        inner.register(|id| ConnInner::new(id, inner.clone(), lane, target.policy, true, target.addr, None));
    inner.lanes[lane].handle.spawn(run(conn.clone(), target));
    Conn(conn)
}

async fn run(conn: Arc<ConnInner>, target: ConnectTarget) {
    let inner = conn.messenger.clone();
    let error = drive(&conn, &target).await.err();
    if let Some((error, reset)) = error {
        conn.phase.send_replace(ConnState::Over(Some(error)));
        inner.unregister(&conn);
        if !conn.closed.load(Ordering::Acquire) {
            inner.lanes[conn.lane].dispatcher.on_reset(&Conn(conn.clone()), reset);
        }
    } else {
        inner.unregister(&conn);
    }
}

/// Connects and reconnects until the connection ends. The error is for `on_reset`.
async fn drive(conn: &Arc<ConnInner>, target: &ConnectTarget) -> Result<(), (Error, ResetReason)> {
    let inner = &conn.messenger;
    let cookie = nacre_common::auth::random_bytes().map_err(|e| (e.clone(), ResetReason::Failed(e)))?;
    let cookie = u64::from_le_bytes(cookie);
    let mut session = Outgoing::new(inner.identity.nonce, target.policy, cookie, backoff(inner));
    let mut turn = |input| {
        if input == OutgoingEvent::Lost(SocketLoss::Fault) {
            session.backoff = backoff(inner);
        }
        let step = session.turn(inner.now(), input, &mut conn.queue.lock(), &conn.received);
        (step, session.next_wake(), session.failures())
    };
    let (mut input, mut error) = (OutgoingEvent::Wake, Error::Closed);
    loop {
        let (step, next_wake, failures) = turn(input);
        if input == OutgoingEvent::Lost(SocketLoss::Fault) && !matches!(step, OutgoingStep::Over(_)) {
            tracing::debug!(peer = %target.addr, %error, failures, "connection lost, will reconnect");
            if conn.closed.load(Ordering::Acquire) {
                return Ok(());
            }
            inner.lanes[conn.lane].dispatcher.on_fault(&Conn(conn.clone()), &error);
        }
        let confirm = match step {
            OutgoingStep::Connect(confirm) => confirm,
            OutgoingStep::Over(None) => return Ok(()),
            OutgoingStep::Over(Some(EndCause::Failed)) => {
                return Err((error.clone(), ResetReason::Failed(error)));
            }
            OutgoingStep::Over(Some(cause)) => return Err((Error::Closed, reset_from_cause(cause, error))),
            OutgoingStep::Wait | OutgoingStep::Run { .. } => {
                tokio::select! {
                    () = conn.stopped(StopLevel::Close) => return Ok(()),
                    () = inner.sleep_until(next_wake) => {}
                }
                input = OutgoingEvent::Wake;
                continue;
            }
        };
        let limit = inner.config.get().ms.ms_connection_ready_timeout;
        let attempt = tokio::select! {
            biased;
            () = conn.stopped(StopLevel::Close) => return Ok(()),
            attempt = tokio::time::timeout(limit, establish(conn, target, &confirm)) => attempt,
        };
        let attempt =
            attempt.unwrap_or_else(|_| Err(Error::TimedOut(format!("connecting to {}", target.addr))));
        input = OutgoingEvent::Lost(SocketLoss::Fault);
        match attempt {
            Ok((stream, transport, ready)) => {
                let restarted = turn(OutgoingEvent::Ready(ready)).0 == OutgoingStep::Run { restarted: true };
                announce(conn, restarted);
                let end = link::run(conn, stream, &transport, None).await;
                input = OutgoingEvent::Lost(end.loss());
                if let DisconnectReason::Fault(fault) = end {
                    error = fault;
                }
            }
            Err(failure) => {
                inner.counters.faults.fetch_add(1, Ordering::Relaxed);
                error = failure;
            }
        }
    }
}

fn backoff(inner: &MessengerInner) -> Backoff {
    let options = inner.config.get();
    Backoff { initial: nanos(options.ms.ms_initial_backoff), max: nanos(options.ms.ms_max_backoff) }
}

/// Notifies the connection's owner that it is up, and before that of a restarted session.
fn announce(conn: &Arc<ConnInner>, restarted: bool) {
    if restarted {
        conn.room.notify_waiters();
    }
    if conn.closed.load(Ordering::Acquire) {
        return;
    }
    let dispatcher = &conn.messenger.lanes[conn.lane].dispatcher;
    if restarted {
        dispatcher.on_reset(&Conn(conn.clone()), ResetReason::PeerRestarted);
    }
    if !conn.closed.load(Ordering::Acquire) {
        dispatcher.on_connect(&Conn(conn.clone()));
    }
}

/// Connects and authenticates.
async fn establish(
    conn: &Arc<ConnInner>,
    target: &ConnectTarget,
    confirm: &ConnectRequest,
) -> Result<(TcpStream, TransportKeys, ConnectReply)> {
    let inner = &conn.messenger;
    let addr = target.addr;
    let credential = target.credentials.credential()?;
    let mut stream = TcpStream::connect(addr).await.map_err(unreachable(addr))?;
    set_socket_options(inner, &stream).map_err(unreachable(addr))?;
    if let Ok(local) = stream.local_addr() {
        conn.local.get_or_init(|| local.ip());
    }
    let theirs = exchange_banners(&mut stream, addr).await?;
    let modes = inner.modes(target.entity.as_ref().map(|entity| entity.kind), true);
    let (initiator, hello, first) =
        Initiator::start(&credential, &modes, target.entity.as_ref(), [&banner(), &theirs])?;
    write_record(&mut stream, record::HELLO, &hello).await.map_err(unreachable(addr))?;
    write_record(&mut stream, record::NOISE_1, &first).await.map_err(unreachable(addr))?;
    let second = read_record(&mut stream, record::NOISE_2, addr).await?;
    let (transport, peer) = initiator.finish(&second)?;
    if let Some(wanted) = &target.entity
        && *wanted != peer.entity
    {
        return Err(Error::Denied(format!("{wanted} was wanted at {addr}, but {} answers", peer.entity)));
    }
    let mut sealed = Vec::new();
    transport.seal(0, &encode(confirm), &mut sealed)?;
    write_record(&mut stream, record::CONFIRM, &sealed).await.map_err(unreachable(addr))?;
    let ready = read_record(&mut stream, record::READY, addr).await?;
    let ready: ConnectReply = decode("handshake", &transport.open_vec(0, &ready)?)?;
    conn.peer.store(Some(Arc::new(Peer { client: None, ..peer })));
    Ok((stream, transport, ready))
}
