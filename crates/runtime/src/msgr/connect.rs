//! The connecting side: handshake over a socket, reconnects.

use super::conn::{Conn, ConnInner, Phase, Stop};
use super::link::{self, End};
use super::{Inner, Policy, Reset, Target};
use nacre_common::auth::Peer;
use nacre_common::auth::handshake::{
    BANNER_BYTES, Initiator, MAX_RECORD_BYTES, Refusal, Transport, banner, check_banner, decode, encode,
};
use nacre_common::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
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

/// A connection that lasted so long is tried again at once when it is lost; others after a growing wait.
const STEADY_AFTER: Duration = Duration::from_secs(1);

/// What the connecting side wants, sealed.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Confirm {
    /// This run of its process.
    pub(super) nonce: u64,
    pub(super) policy: Policy,
    /// Names its lossless session.
    pub(super) cookie: u64,
    /// It has been told before that the session exists.
    pub(super) established: bool,
    /// The last message that it has.
    pub(super) in_seq: u64,
}

/// What became of the session, sealed.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Ready {
    pub(super) outcome: Outcome,
    /// The last message that the answering side has.
    pub(super) in_seq: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Outcome {
    /// There was none, as the connecting side expected.
    New,
    /// It goes on.
    Resumed,
    /// It is unknown here: both start afresh.
    Reset,
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

/// Reads a record of type `expected`; a refusal becomes its error.
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
        record::REFUSED => Err(decode::<Refusal>("refusal", &body)?.into_error()),
        kind if kind == expected => Ok(body),
        kind => Err(protocol(format!("sent handshake record {kind} where {expected} was due"))),
    }
}

/// Exchanges banners; returns the peer's.
pub(super) async fn exchange_banners(stream: &mut TcpStream, peer: SocketAddr) -> Result<[u8; BANNER_BYTES]> {
    stream.write_all(&banner()).await.map_err(unreachable(peer))?;
    let mut theirs = [0; BANNER_BYTES];
    stream.read_exact(&mut theirs).await.map_err(unreachable(peer))?;
    check_banner(&theirs).map_err(|reason| Error::Protocol { peer, reason })?;
    Ok(theirs)
}

/// Sets a socket's options.
pub(super) fn prepare(inner: &Inner, stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(inner.limits.nodelay)?;
    if inner.limits.rcvbuf > 0 {
        socket2::SockRef::from(stream).set_recv_buffer_size(inner.limits.rcvbuf)?;
    }
    Ok(())
}

/// Starts an outgoing connection.
pub(super) fn start(inner: &Arc<Inner>, target: Target) -> Conn {
    let lane = target.lane;
    let conn =
        inner.register(|id| ConnInner::new(id, inner.clone(), lane, target.policy, true, target.addr, None));
    inner.lanes[lane].handle.spawn(run(conn.clone(), target));
    Conn(conn)
}

/// An outgoing session's memory across sockets.
struct Session {
    cookie: u64,
    established: bool,
}

async fn run(conn: Arc<ConnInner>, target: Target) {
    let inner = conn.messenger.clone();
    let error = drive(&conn, &target).await.err();
    if let Some((error, reset)) = error {
        conn.phase.send_replace(Phase::Over(Some(error)));
        inner.unregister(&conn);
        if !conn.closed.load(Ordering::Acquire) {
            inner.lanes[conn.lane].dispatcher.on_reset(&Conn(conn.clone()), reset);
        }
    } else {
        inner.unregister(&conn);
    }
}

/// Connects and reconnects until the connection is over; the error is what `on_reset` is to be told.
async fn drive(conn: &Arc<ConnInner>, target: &Target) -> Result<(), (Error, Reset)> {
    let inner = &conn.messenger;
    let dispatcher = &inner.lanes[conn.lane].dispatcher;
    let lossless = target.policy == Policy::Lossless;
    let failed = |error: Error| (error.clone(), Reset::Failed(error));
    let cookie = nacre_common::auth::random_bytes().map_err(failed)?;
    let mut session = Session { cookie: u64::from_le_bytes(cookie), established: false };
    let mut failures = 0u32;
    loop {
        let limit = inner.config.get().ms.ms_connection_ready_timeout;
        let attempt = tokio::select! {
            biased;
            () = conn.stopped(Stop::Close) => return Ok(()),
            attempt = tokio::time::timeout(limit, establish(conn, target, &session)) => attempt,
        };
        let attempt =
            attempt.unwrap_or_else(|_| Err(Error::TimedOut(format!("connecting to {}", target.addr))));
        let error = match attempt {
            Ok((stream, transport, ready)) => {
                let up_since = Instant::now();
                if lossless {
                    adopt(conn, &mut session, &ready);
                }
                if !conn.closed.load(Ordering::Acquire) {
                    dispatcher.on_connect(&Conn(conn.clone()));
                }
                let end = link::run(conn, stream, &transport, None).await;
                // Lost soon after it came up counts as not having come up: two processes that claim one name, or a
                // peer that fails on what it is sent, must not make both sides spin.
                failures = if up_since.elapsed() < STEADY_AFTER { failures.saturating_add(1) } else { 0 };
                match end {
                    End::LocalClosed | End::Stopped | End::Replaced(_) => return Ok(()),
                    End::PeerClosed => return Err((Error::Closed, Reset::PeerClosed)),
                    End::Idle => return Err((Error::Closed, Reset::Idle)),
                    End::Fault(error) => error,
                }
            }
            Err(error) => {
                failures = failures.saturating_add(1);
                inner.counters.faults.fetch_add(1, Ordering::Relaxed);
                error
            }
        };
        if !lossless {
            return Err(failed(error));
        }
        tracing::debug!(peer = %target.addr, %error, failures, "connection lost, will reconnect");
        if conn.closed.load(Ordering::Acquire) {
            return Ok(());
        }
        dispatcher.on_fault(&Conn(conn.clone()), &error);
        if failures > 0 {
            let (initial, max) = {
                let options = inner.config.get();
                (options.ms.ms_initial_backoff, options.ms.ms_max_backoff)
            };
            let wait = initial.saturating_mul(1 << (failures - 1).min(16)).min(max);
            tokio::select! {
                () = conn.stopped(Stop::Close) => return Ok(()),
                () = tokio::time::sleep(wait) => {}
            }
        }
    }
}

/// Brings the session in line with what the other side knows of it.
fn adopt(conn: &Arc<ConnInner>, session: &mut Session, ready: &Ready) {
    let resumed = ready.outcome != Outcome::Reset && conn.queue.lock().resume(ready.in_seq).is_ok();
    session.established = true;
    if resumed {
        return;
    }
    conn.queue.lock().reset();
    conn.in_seq.store(0, Ordering::Relaxed);
    conn.acked_out.store(0, Ordering::Relaxed);
    conn.room.notify_waiters();
    if !conn.closed.load(Ordering::Acquire) {
        let dispatcher = &conn.messenger.lanes[conn.lane].dispatcher;
        dispatcher.on_reset(&Conn(conn.clone()), Reset::PeerRestarted);
    }
}

/// Connects and authenticates.
async fn establish(
    conn: &Arc<ConnInner>,
    target: &Target,
    session: &Session,
) -> Result<(TcpStream, Transport, Ready)> {
    let inner = &conn.messenger;
    let addr = target.addr;
    let credential = target.credentials.credential()?;
    let mut stream = TcpStream::connect(addr).await.map_err(unreachable(addr))?;
    prepare(inner, &stream).map_err(unreachable(addr))?;
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
    let confirm = encode(&Confirm {
        nonce: inner.identity.nonce,
        policy: target.policy,
        cookie: session.cookie,
        established: session.established,
        in_seq: conn.in_seq.load(Ordering::Relaxed),
    });
    let mut sealed = Vec::new();
    transport.seal(0, &confirm, &mut sealed)?;
    write_record(&mut stream, record::CONFIRM, &sealed).await.map_err(unreachable(addr))?;
    let ready = read_record(&mut stream, record::READY, addr).await?;
    let ready: Ready = decode("handshake", &transport.open_vec(0, &ready)?)?;
    conn.peer.store(Some(Arc::new(Peer { client: None, ..peer })));
    Ok((stream, transport, ready))
}
