//! The I/O of one socket: the reader, the writer and the keepalive of a connection, in one task.

use super::accept::ResumedSocket;
use super::conn::{Conn, ConnInner, ConnState, StopLevel};
use super::frame::Frame;
use super::{Dispatcher, Policy, ResetReason, nanos};
use bytes::BufMut;
use nacre_common::auth::handshake::TransportKeys;
use nacre_common::error::{Error, Result};
use nacre_common::options::kinds::ConnMode;
use nacre_common::throttle::{Permit, Throttle};
use nacre_session::body::FrameBody;
use nacre_session::keepalive::{Activity, Keepalive, KeepaliveAction};
use nacre_session::queue::{SendQueue, WriteBatch};
use nacre_session::receive::{FrameAction, FrameValidator, memory_bytes};
use nacre_session::wire::{FrameHeader, HEADER_BYTES};
use nacre_session::{EndCause, Rules, SocketLoss};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::mpsc;

/// Small frames are read through a buffer of this size, so that one system call reads several.
const READ_BUFFER_BYTES: usize = 64 << 10;
/// The missing rest of a frame is read through the buffer as well, up to this size, together with the following data.
const BUFFERED_REST_BYTES: usize = 32 << 10;
/// The maximum size of a sealed record, and of its plain text.
const SEALED_BYTES: usize = 65_535;
const PLAIN_BYTES: usize = SEALED_BYTES - 16;
/// How long a closing connection may continue to write queued messages.
const CLOSE_GRACE: Duration = Duration::from_secs(2);

/// Why a socket is no longer used.
pub(super) enum DisconnectReason {
    PeerClosed,
    /// Closed on this side. Everything queued was written, or the time was over.
    LocalClosed,
    Stopped,
    Idle,
    /// The peer returned to its session on another socket.
    Replaced(Box<ResumedSocket>),
    Fault(Error),
}

impl DisconnectReason {
    /// The consequence for the session.
    pub(super) fn loss(&self) -> SocketLoss {
        match self {
            DisconnectReason::PeerClosed => SocketLoss::PeerClosed,
            DisconnectReason::LocalClosed | DisconnectReason::Stopped => SocketLoss::LocalClosed,
            DisconnectReason::Idle => SocketLoss::Idle,
            DisconnectReason::Replaced(_) | DisconnectReason::Fault(_) => SocketLoss::Fault,
        }
    }
}

/// The reset to report to the connection's owner. `error` is the last error of the socket.
pub(super) fn reset_from_cause(cause: EndCause, error: Error) -> ResetReason {
    match cause {
        EndCause::PeerClosed => ResetReason::PeerClosed,
        EndCause::PeerRestarted => ResetReason::PeerRestarted,
        EndCause::Failed => ResetReason::Failed(error),
        EndCause::Idle => ResetReason::Idle,
        EndCause::Lapsed => ResetReason::Lapsed,
    }
}

/// The state that the three parts of a link share.
struct Link<'a> {
    conn: &'a Arc<ConnInner>,
    transport: &'a TransportKeys,
    secure: bool,
    /// Whether data arrived since the last check of the keepalive.
    heard: AtomicBool,
    /// Whether a message was sent or received since then.
    used: AtomicBool,
    /// The reader waits for its throttle, so silence does not mean that the peer is dead.
    throttled: AtomicBool,
}

/// Runs the socket until it ends. `replacements` delivers the sockets on which the peer returns to this session.
pub(super) async fn run(
    conn: &Arc<ConnInner>,
    mut stream: TcpStream,
    transport: &TransportKeys,
    replacements: Option<&mut mpsc::Receiver<ResumedSocket>>,
) -> DisconnectReason {
    let secure = transport.mode == ConnMode::Secure;
    let link = Link {
        conn,
        transport,
        secure,
        heard: AtomicBool::new(true),
        used: AtomicBool::new(true),
        throttled: AtomicBool::new(false),
    };
    conn.phase.send_replace(ConnState::Up);
    let end = {
        let (read, write) = stream.split();
        let replaced = async {
            match replacements {
                Some(receiver) => match receiver.recv().await {
                    Some(attach) => DisconnectReason::Replaced(Box::new(attach)),
                    None => std::future::pending().await,
                },
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = conn.stopped(StopLevel::Abort) => DisconnectReason::Stopped,
            end = link.read(read) => end,
            end = link.write(write) => end,
            end = link.keep_alive() => end,
            end = link.expire() => end,
            end = replaced => end,
        }
    };
    if matches!(end, DisconnectReason::Fault(_)) {
        conn.messenger.counters.faults.fetch_add(1, Ordering::Relaxed);
    }
    conn.phase.send_if_modified(|phase| {
        let was_up = matches!(phase, ConnState::Up);
        if was_up {
            *phase = ConnState::Connecting;
        }
        was_up
    });
    end
}

impl Link<'_> {
    fn fault(&self, error: io::Error) -> DisconnectReason {
        let reason = match error.kind() {
            io::ErrorKind::UnexpectedEof => "the connection was closed".to_owned(),
            _ => error.to_string(),
        };
        DisconnectReason::Fault(Error::Unreachable { peer: self.conn.addr, refused: false, reason })
    }

    fn protocol(&self, reason: impl Into<String>) -> DisconnectReason {
        DisconnectReason::Fault(Error::Protocol { peer: self.conn.addr, reason: reason.into() })
    }

    fn wake_writer(&self, ask: impl FnOnce(&mut SendQueue)) {
        let idle = {
            let mut queue = self.conn.queue.lock();
            ask(&mut queue);
            std::mem::take(&mut queue.writer_idle)
        };
        if idle {
            self.conn.wake.notify_one();
        }
    }

    async fn read(&self, half: ReadHalf<'_>) -> DisconnectReason {
        let mut source = Source::new(half, self.secure.then_some(self.transport));
        match self.read_frames(&mut source).await {
            Ok(end) | Err(end) => end,
        }
    }

    async fn read_frames(&self, source: &mut Source<'_>) -> Result<DisconnectReason, DisconnectReason> {
        let conn = self.conn;
        let dispatcher: &dyn Dispatcher = &*conn.messenger.lanes[conn.lane].dispatcher;
        let handle = Conn(conn.clone());
        let kind = conn.peer.load().as_ref().map(|peer| peer.entity.kind);
        let kind = kind.ok_or_else(|| self.protocol("is not authenticated"))?;
        let throttle = conn.messenger.throttle(kind);
        let counters = &conn.messenger.counters;
        let mut reader = FrameValidator::new(conn.policy, conn.messenger.limits.frame, Rules::default());
        loop {
            let header = self.read_header(source).await?;
            if let Some(ack) = reader.new_ack(&header)
                && conn.queue.lock().acknowledge(ack).map_err(|e| self.protocol(e))?
            {
                conn.room.notify_waiters();
            }
            let arrival = reader.classify(&header, &conn.received).map_err(|e| self.protocol(e))?;
            match arrival {
                FrameAction::Nothing => continue,
                FrameAction::Keepalive => {
                    self.wake_writer(|queue| queue.ask_keepalive(true));
                    continue;
                }
                FrameAction::Close => return Ok(DisconnectReason::PeerClosed),
                FrameAction::Next | FrameAction::Duplicate => {}
            }
            let permit = self.permit(throttle, memory_bytes(&header)).await;
            let mut body = FrameBody::new(&header);
            source.read_body(&mut body, &self.heard).await.map_err(|e| self.fault(e))?;
            let (meta, data) = body.finish(&header).map_err(|e| self.protocol(e))?;
            if arrival == FrameAction::Duplicate {
                counters.duplicates.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            reader.mark_handled(&header, &conn.received);
            self.used.store(true, Ordering::Relaxed);
            counters.messages_received.fetch_add(1, Ordering::Relaxed);
            counters.bytes_received.fetch_add(header.wire_bytes(), Ordering::Relaxed);
            if !conn.closed.load(Ordering::Acquire) {
                dispatcher.on_message(&handle, Frame::new(&header, meta, data, Some(permit)));
            }
            if reader.count_handled(&header, &conn.received) {
                self.wake_writer(SendQueue::ask_ack);
            }
        }
    }

    async fn read_header(&self, source: &mut Source<'_>) -> Result<FrameHeader, DisconnectReason> {
        if source.available() < HEADER_BYTES {
            // Messages from handlers are sent before more is read.
            if source.more_expected() {
                tokio::task::yield_now().await;
            }
            while source.available() < HEADER_BYTES {
                source.fill().await.map_err(|e| self.fault(e))?;
                self.heard.store(true, Ordering::Relaxed);
            }
        }
        let header = FrameHeader::decode(source.header()).map_err(|e| self.protocol(e))?;
        source.consume(HEADER_BYTES);
        Ok(header)
    }

    async fn permit(&self, throttle: &Throttle, bytes: u64) -> Permit {
        if let Some(permit) = throttle.try_take(bytes) {
            return permit;
        }
        self.conn.messenger.counters.throttle_waits.fetch_add(1, Ordering::Relaxed);
        self.throttled.store(true, Ordering::Relaxed);
        let permit = throttle.take(bytes).await;
        self.heard.store(true, Ordering::Relaxed);
        self.throttled.store(false, Ordering::Relaxed);
        permit
    }

    async fn write(&self, mut half: WriteHalf<'_>) -> DisconnectReason {
        let conn = self.conn;
        let lossless = conn.policy == Policy::Lossless;
        let mut batch = WriteBatch::default();
        let mut sealer = self.secure.then(|| Sealer::new(self.transport));
        loop {
            let ack = conn.received.last();
            let (any, over) = {
                let mut queue = conn.queue.lock();
                let any = queue.take(&mut batch, lossless, ack);
                queue.writer_idle = !any;
                (any, !any && queue.close_written())
            };
            if over {
                // The peer may be gone already; the connection ends either way.
                let _ = half.shutdown().await;
                return DisconnectReason::LocalClosed;
            }
            if !any {
                conn.wake.notified().await;
                continue;
            }
            conn.received.mark_acked(ack);
            let written = match &mut sealer {
                None => write_plain(&mut half, &mut batch).await,
                Some(sealer) => sealer.write(&mut half, &batch).await,
            };
            if let Err(error) = written {
                return self.fault(error);
            }
            if batch.frames > 0 {
                self.used.store(true, Ordering::Relaxed);
                let counters = &conn.messenger.counters;
                counters.messages_sent.fetch_add(batch.frames as u64, Ordering::Relaxed);
                counters.bytes_sent.fetch_add(batch.bytes as u64, Ordering::Relaxed);
                if !lossless {
                    conn.room.notify_waiters();
                }
            }
        }
    }

    /// Ends the socket when the ticket that opened it expires, because the peer may have lost its rights since.
    async fn expire(&self) -> DisconnectReason {
        let expires = self.conn.peer.load().as_ref().and_then(|peer| peer.expires_unix);
        let Some(expires_unix) = expires else { return std::future::pending().await };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        tokio::time::sleep(Duration::from_secs(expires_unix).saturating_sub(now)).await;
        DisconnectReason::Fault(Error::Expired(format!("the ticket of {} ran out", self.conn.addr)))
    }

    async fn keep_alive(&self) -> DisconnectReason {
        let conn = self.conn;
        let limits = conn.messenger.limits;
        let closing = async {
            conn.stopped(StopLevel::Close).await;
            tokio::time::sleep(CLOSE_GRACE).await;
        };
        tokio::pin!(closing);
        let interval = nanos(limits.keepalive_interval);
        let inner = &conn.messenger;
        let mut keepalive = Keepalive::new(inner.now(), interval, nanos(limits.keepalive_timeout));
        loop {
            tokio::select! {
                () = inner.sleep_until(Some(keepalive.next_wake())) => {}
                () = &mut closing => return DisconnectReason::LocalClosed,
            }
            let lossless = conn.policy == Policy::Lossless;
            let activity = Activity {
                heard: self.heard.swap(false, Ordering::Relaxed),
                used: self.used.swap(false, Ordering::Relaxed),
                throttled: self.throttled.load(Ordering::Relaxed),
                ack_due: lossless && conn.received.is_ack_due(),
            };
            let idle_timeout = (!lossless).then(|| nanos(inner.config.get().ms.ms_connection_idle_timeout));
            match keepalive.turn(inner.now(), activity, idle_timeout) {
                KeepaliveAction::Silent => {
                    let what = format!("a sign of life of {}", conn.addr);
                    return DisconnectReason::Fault(Error::TimedOut(what));
                }
                KeepaliveAction::Idle => return DisconnectReason::Idle,
                KeepaliveAction::Ask { ack: false, keepalive: false } => {}
                KeepaliveAction::Ask { ack, keepalive } => self.wake_writer(|queue| {
                    if ack {
                        queue.ask_ack();
                    }
                    if keepalive {
                        queue.ask_keepalive(false);
                    }
                }),
            }
        }
    }
}

async fn write_plain(half: &mut WriteHalf<'_>, batch: &mut WriteBatch) -> io::Result<()> {
    loop {
        let mut slices = WriteBatch::no_slices();
        let filled = batch.slices(&mut slices);
        if filled == 0 {
            return Ok(());
        }
        let written = half.write_vectored(&slices[..filled]).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        batch.advance(written);
    }
}

/// Divides the outgoing stream into sealed records: `length u16 le | ciphertext`.
struct Sealer<'a> {
    transport: &'a TransportKeys,
    nonce: u64,
    plain: Vec<u8>,
    out: Vec<u8>,
}

/// Record number 0 of each direction belongs to the handshake.
const FIRST_RECORD: u64 = 1;

impl<'a> Sealer<'a> {
    fn new(transport: &'a TransportKeys) -> Sealer<'a> {
        Sealer { transport, nonce: FIRST_RECORD, plain: Vec::with_capacity(PLAIN_BYTES), out: Vec::new() }
    }

    fn seal(&mut self) -> io::Result<()> {
        let at = self.out.len();
        self.out.extend_from_slice(&[0, 0]);
        self.transport.seal(self.nonce, &self.plain, &mut self.out).map_err(io::Error::other)?;
        let length = (self.out.len() - at - 2) as u16;
        self.out[at..at + 2].copy_from_slice(&length.to_le_bytes());
        self.nonce += 1;
        self.plain.clear();
        Ok(())
    }

    async fn write(&mut self, half: &mut WriteHalf<'_>, batch: &WriteBatch) -> io::Result<()> {
        for chunk in batch.chunks(PLAIN_BYTES) {
            let mut rest = chunk;
            while !rest.is_empty() {
                let part = rest.len().min(PLAIN_BYTES - self.plain.len());
                self.plain.extend_from_slice(&rest[..part]);
                rest = &rest[part..];
                if self.plain.len() == PLAIN_BYTES {
                    self.seal()?;
                }
            }
        }
        if !self.plain.is_empty() {
            self.seal()?;
        }
        half.write_all(&self.out).await?;
        self.out.clear();
        Ok(())
    }
}

/// The incoming stream: a fixed buffer, filled from the socket directly or from sealed records.
struct Source<'a> {
    half: ReadHalf<'a>,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Whether the last read filled the buffer.
    filled_up: bool,
    opener: Option<Opener<'a>>,
}

struct Opener<'a> {
    transport: &'a TransportKeys,
    nonce: u64,
    sealed: Vec<u8>,
    start: usize,
    end: usize,
}

impl<'a> Source<'a> {
    fn new(half: ReadHalf<'a>, secure: Option<&'a TransportKeys>) -> Source<'a> {
        let room = if secure.is_some() { READ_BUFFER_BYTES + PLAIN_BYTES } else { READ_BUFFER_BYTES };
        let opener = secure.map(|transport| Opener {
            transport,
            nonce: FIRST_RECORD,
            sealed: vec![0; 2 * SEALED_BYTES],
            start: 0,
            end: 0,
        });
        Source { half, buffer: vec![0; room], start: 0, end: 0, filled_up: false, opener }
    }

    fn available(&self) -> usize {
        self.end - self.start
    }

    fn more_expected(&self) -> bool {
        self.filled_up
    }

    fn header(&self) -> &[u8; HEADER_BYTES] {
        self.buffer[self.start..]
            .first_chunk()
            .expect("invariant: called once a header's bytes are available")
    }

    fn consume(&mut self, bytes: usize) {
        self.start += bytes;
    }

    /// Reads more into the buffer, at least one byte.
    async fn fill(&mut self) -> io::Result<()> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.buffer.len() - self.end < READ_BUFFER_BYTES / 2 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        match &mut self.opener {
            None => {
                let read = self.half.read(&mut self.buffer[self.end..]).await?;
                if read == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                self.end += read;
                self.filled_up = self.end == self.buffer.len();
            }
            Some(opener) => {
                if self.buffer.len() - self.end < PLAIN_BYTES {
                    self.buffer.copy_within(self.start..self.end, 0);
                    (self.start, self.end) = (0, self.end - self.start);
                }
                self.end += opener.open(&mut self.half, &mut self.buffer[self.end..]).await?;
                self.filled_up = opener.end > opener.start;
            }
        }
        Ok(())
    }

    /// Reads a frame's body into its final place.
    async fn read_body(&mut self, body: &mut FrameBody, heard: &AtomicBool) -> io::Result<()> {
        loop {
            self.start += body.fill(&self.buffer[self.start..self.end]);
            let Some((buffer, missing)) = body.next_buffer() else { return Ok(()) };
            if self.opener.is_some() || missing <= BUFFERED_REST_BYTES {
                self.fill().await?;
            } else if self.half.read_buf(&mut buffer.limit(missing)).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            heard.store(true, Ordering::Relaxed);
        }
    }
}

impl Opener<'_> {
    /// Opens the next record into `out`, which must have room for [`PLAIN_BYTES`]. Returns the length of the plain text.
    async fn open(&mut self, half: &mut ReadHalf<'_>, out: &mut [u8]) -> io::Result<usize> {
        loop {
            let available = &self.sealed[self.start..self.end];
            if let Some(length) = available.first_chunk::<2>() {
                let length = usize::from(u16::from_le_bytes(*length));
                if let Some(record) = available[2..].get(..length) {
                    let plain = self.transport.open(self.nonce, record, out).map_err(io::Error::other)?;
                    if plain == 0 {
                        return Err(io::Error::other("empty sealed record"));
                    }
                    self.nonce += 1;
                    self.start += 2 + length;
                    return Ok(plain);
                }
            }
            if self.sealed.len() - self.end < SEALED_BYTES {
                self.sealed.copy_within(self.start..self.end, 0);
                (self.start, self.end) = (0, self.end - self.start);
            }
            let read = half.read(&mut self.sealed[self.end..]).await?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.end += read;
        }
    }
}
