//! The public handle of a connection.

use super::{MessengerInner, Policy};
use arc_swap::ArcSwapOption;
use nacre_common::auth::Peer;
use nacre_common::conn::{ConnRef, Connection};
use nacre_common::error::{Error, Result};
use nacre_session::queue::{OutFrame, SendQueue, header_of};
use nacre_session::receive::{FrameTooLong, ReceiveState};
use nacre_types::ids::{ClientId, EntityName};
use nacre_types::msg::{EncodedMessage, Message};
use nacre_types::payload::{self, Payload};
use parking_lot::Mutex;
use std::any::Any;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::sync::{Notify, watch};

/// How a connection is being ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StopLevel {
    /// It is not being ended.
    Run,
    /// Write what is queued, then close.
    Close,
    /// At once.
    Abort,
    /// At once, because the peer's next process has come.
    Superseded,
}

/// The state of a connection.
#[derive(Debug, Clone)]
pub(super) enum ConnState {
    Connecting,
    Up,
    /// Ended permanently, with the failure if there was one.
    Over(Option<Error>),
}

pub(crate) struct ConnInner {
    pub(super) id: u64,
    pub(super) messenger: Arc<MessengerInner>,
    pub(super) lane: usize,
    pub(super) policy: Policy,
    pub(super) outgoing: bool,
    pub(super) addr: SocketAddr,
    /// This side's address, once an outgoing connection has one.
    pub(super) local: OnceLock<IpAddr>,
    pub(super) peer: ArcSwapOption<Peer>,
    pub(super) queue: Mutex<SendQueue>,
    /// Wakes the writer.
    pub(super) wake: Notify,
    /// Wakes senders that wait for room.
    pub(super) room: Notify,
    /// The messages dispatched.
    pub(super) received: ReceiveState,
    /// Closed on this side: nothing is dispatched any more.
    pub(super) closed: AtomicBool,
    pub(super) stop: watch::Sender<StopLevel>,
    pub(super) phase: watch::Sender<ConnState>,
    context: OnceLock<Arc<dyn Any + Send + Sync>>,
}

impl ConnInner {
    pub(super) fn new(
        id: u64,
        messenger: Arc<MessengerInner>,
        lane: usize,
        policy: Policy,
        outgoing: bool,
        addr: SocketAddr,
        peer: Option<Peer>,
    ) -> ConnInner {
        // Daemons have few sessions, and never with strangers.
        let queue = match policy {
            Policy::Lossy => SendQueue::with_total(Arc::clone(&messenger.out_bytes)),
            Policy::Lossless => SendQueue::default(),
        };
        ConnInner {
            id,
            messenger,
            lane,
            policy,
            outgoing,
            addr,
            local: OnceLock::new(),
            peer: ArcSwapOption::from_pointee(peer),
            queue: Mutex::new(queue),
            wake: Notify::new(),
            room: Notify::new(),
            received: ReceiveState::default(),
            closed: AtomicBool::new(false),
            stop: watch::Sender::new(StopLevel::Run),
            phase: watch::Sender::new(ConnState::Connecting),
            context: OnceLock::new(),
        }
    }

    /// Returns when the connection is to stop, at level `level` or above.
    pub(super) async fn stopped(&self, level: StopLevel) {
        // The sender is in `self`, so waiting can't fail.
        let _ = self.stop.subscribe().wait_for(|stop| *stop >= level).await;
    }

    fn stop_at(&self, level: StopLevel) {
        self.closed.store(true, Ordering::Release);
        self.stop.send_if_modified(|stop| {
            let rises = *stop < level;
            *stop = level.max(*stop);
            rises
        });
        self.room.notify_waiters();
    }

    pub(crate) fn close(&self) {
        {
            let mut queue = self.queue.lock();
            queue.closing = true;
            queue.writer_idle = false;
        }
        self.wake.notify_one();
        self.stop_at(StopLevel::Close);
    }

    pub(crate) fn abort(&self) {
        self.queue.lock().closing = true;
        self.stop_at(StopLevel::Abort);
    }

    pub(super) fn supersede(&self) {
        self.queue.lock().closing = true;
        self.stop.send_replace(StopLevel::Superseded);
        self.room.notify_waiters();
    }

    /// Marks the connection as ended permanently.
    pub(super) fn finish(&self) {
        let mut queue = self.queue.lock();
        queue.reset();
        queue.closing = true;
        drop(queue);
        self.phase.send_if_modified(|phase| {
            let first = !matches!(phase, ConnState::Over(_));
            if first {
                *phase = ConnState::Over(None);
            }
            first
        });
        self.room.notify_waiters();
    }

    pub(crate) fn is_over(&self) -> bool {
        matches!(*self.phase.borrow(), ConnState::Over(_))
    }

    /// Returns when the connection has ended.
    pub(crate) async fn wait_over(&self) {
        let _ = self.phase.subscribe().wait_for(|phase| matches!(phase, ConnState::Over(_))).await;
    }

    /// Queues a frame, or returns it if there is no room.
    fn enqueue(&self, frame: OutFrame) -> Result<Option<OutFrame>> {
        let wake = {
            let mut queue = self.queue.lock();
            if queue.closing {
                return Err(Error::Closed);
            }
            let limits = &self.messenger.limits;
            if let Some(frame) = queue.push(frame, limits.queue_bytes, limits.total_queue_bytes) {
                return Ok(Some(frame));
            }
            std::mem::take(&mut queue.writer_idle)
        };
        if wake {
            self.wake.notify_one();
        }
        Ok(None)
    }

    fn try_enqueue(&self, frame: OutFrame) -> Result<()> {
        if self.enqueue(frame)?.is_some() { Err(Error::Full) } else { Ok(()) }
    }

    fn frame(&self, kind: u16, meta: Vec<u8>, data: Vec<Payload>) -> Result<OutFrame> {
        let data_bytes: u64 = data.iter().map(|part| part.len() as u64).sum();
        let checked = self.messenger.limits.frame.check(meta.len() as u64, data_bytes);
        checked.map_err(|FrameTooLong { bytes, limit }| Error::TooBig { bytes, limit })?;
        let crc = self.messenger.crc_data.load(Ordering::Relaxed);
        Ok(OutFrame { header: header_of(kind, &meta, &data, crc), meta, data })
    }
}

impl Connection for ConnInner {
    fn send_encoded(&self, message: EncodedMessage) -> Result<()> {
        let frame = self.frame(message.kind, message.split.meta, message.split.data)?;
        self.try_enqueue(frame)
    }

    fn id(&self) -> u64 {
        self.id
    }

    fn peer_addr(&self) -> SocketAddr {
        self.addr
    }

    fn is_over(&self) -> bool {
        ConnInner::is_over(self)
    }

    fn abort(&self) {
        ConnInner::abort(self);
    }

    fn context(&self) -> Option<&(dyn Any + Send + Sync)> {
        self.context.get().map(|context| &**context)
    }
}

/// A connection, or a lossless session. Cloning shares it. It exists until closed or reset, independently of its handles.
#[derive(Clone)]
pub struct Conn(pub(super) Arc<ConnInner>);

impl fmt::Debug for Conn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Conn")
            .field("id", &self.0.id)
            .field("peer", &self.peer_entity().map(|entity| entity.to_string()))
            .field("addr", &self.0.addr)
            .finish_non_exhaustive()
    }
}

impl PartialEq for Conn {
    fn eq(&self, other: &Conn) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Conn {}

impl Conn {
    /// Queues a message, from any thread, without waiting. Errors: `Full` if the queue's bound is reached, `Closed`, `TooBig`.
    /// On a lossy connection delivery is not known; on a lossless one the message is delivered unless a reset is reported.
    pub fn send<M: Message>(&self, message: &M) -> Result<()> {
        self.0.send_encoded(EncodedMessage::new(message))
    }

    /// Like [`Conn::send`], for a message that is already encoded.
    pub fn send_encoded(&self, message: &EncodedMessage) -> Result<()> {
        self.0.send_encoded(message.clone())
    }

    /// The connection for code that does not know the messenger.
    pub fn to_ref(&self) -> ConnRef {
        ConnRef::new(self.0.clone())
    }

    /// Like [`Conn::send`], but waits for room. The order of messages of several waiting senders is undefined.
    pub async fn send_with_backpressure<M: Message>(&self, message: &M) -> Result<()> {
        let split = payload::encode(message);
        let mut frame = self.0.frame(M::KIND, split.meta, split.data)?;
        loop {
            let room = self.0.room.notified();
            tokio::pin!(room);
            // Registered before the attempt, so that it does not miss room that becomes free in between.
            room.as_mut().enable();
            match self.0.enqueue(frame)? {
                None => return Ok(()),
                Some(refused) => frame = refused,
            }
            room.await;
        }
    }

    /// Returns when the connection is up. Fails if it ended before. A lossless connection keeps trying until closed.
    pub async fn ready(&self) -> Result<()> {
        let mut phase = self.0.phase.subscribe();
        let reached = phase.wait_for(|phase| !matches!(phase, ConnState::Connecting)).await;
        match reached.as_deref() {
            Ok(ConnState::Over(Some(error))) => Err(error.clone()),
            Ok(ConnState::Up) => Ok(()),
            _ => Err(Error::Closed),
        }
    }

    /// Whether a socket is connected now.
    pub fn is_up(&self) -> bool {
        matches!(*self.0.phase.borrow(), ConnState::Up)
    }

    /// Whether it has been closed or reset permanently.
    pub fn is_over(&self) -> bool {
        self.0.is_over()
    }

    /// Identifies the connection within the messenger. Never reused.
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// The lane that it lives on.
    pub fn lane(&self) -> usize {
        self.0.lane
    }

    /// The behaviour on faults.
    pub fn policy(&self) -> Policy {
        self.0.policy
    }

    /// Whether this side connected.
    pub fn is_outgoing(&self) -> bool {
        self.0.outgoing
    }

    /// The peer's address: the target of an outgoing connection, or the address of the peer's socket.
    pub fn peer_addr(&self) -> SocketAddr {
        self.0.addr
    }

    /// The address that this side connected from; `None` before an outgoing connection is up.
    pub fn local_ip(&self) -> Option<IpAddr> {
        self.0.local.get().copied()
    }

    /// The authenticated peer; `None` before an outgoing connection is up.
    pub fn peer(&self) -> Option<Arc<Peer>> {
        self.0.peer.load_full()
    }

    /// The peer's name.
    pub fn peer_entity(&self) -> Option<EntityName> {
        self.0.peer.load().as_ref().map(|peer| peer.entity.clone())
    }

    /// The peer's session id, if it connected with a ticket.
    pub fn client_id(&self) -> Option<ClientId> {
        self.0.peer.load().as_ref().and_then(|peer| peer.client)
    }

    /// Bytes that wait to be written or, on a lossless connection, to be acknowledged.
    pub fn queued_bytes(&self) -> usize {
        self.0.queue.lock().bytes()
    }

    /// Attaches the owner's state for this connection, once. Later calls return `false` and change nothing.
    pub fn set_context(&self, context: Arc<dyn Any + Send + Sync>) -> bool {
        self.0.context.set(context).is_ok()
    }

    /// The attached state, if it is a `T`.
    pub fn context<T: Any + Send + Sync>(&self) -> Option<&T> {
        self.0.context.get().and_then(|context| context.downcast_ref())
    }

    /// Ends the connection: queued messages are still written if it is up, no more messages are dispatched, and no reset is
    /// reported on this side. The peer is notified.
    pub fn close(&self) {
        self.0.close();
    }

    /// Ends the connection at once and drops queued messages.
    pub fn abort(&self) {
        self.0.abort();
    }
}
