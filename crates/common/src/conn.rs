//! The seam for connections: how code that runs in simulations and tests sends messages.
//!
//! The messenger's connections implement [`Connection`]; a simulation has its own.

use crate::error::Result;
use nacre_types::msg::{EncodedMessage, Message};
use std::any::Any;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

/// One end of a connection, or of a lossless session.
pub trait Connection: Send + Sync {
    /// Queues a message without waiting. Errors: `Full` if the queue has reached its bound, `Closed`, `TooBig`. On a lossy
    /// connection the delivery is unknown; on a lossless one the message is delivered unless a reset is reported.
    fn send_encoded(&self, message: EncodedMessage) -> Result<()>;

    /// An id that no other connection of the process has.
    fn id(&self) -> u64;

    /// The other end's address.
    fn peer_addr(&self) -> SocketAddr;

    /// Whether it was closed or reset, so that nothing more is sent on it.
    fn is_over(&self) -> bool;

    /// Closes it immediately; queued messages are lost.
    fn abort(&self);

    /// The context that the owner attached.
    fn context(&self) -> Option<&(dyn Any + Send + Sync)>;
}

/// Shares a [`Connection`].
#[derive(Clone)]
pub struct ConnRef(Arc<dyn Connection>);

impl ConnRef {
    /// Creates a reference to `connection`.
    pub fn new(connection: Arc<dyn Connection>) -> ConnRef {
        ConnRef(connection)
    }

    /// Encodes and sends a message: see [`Connection::send_encoded`].
    pub fn send<M: Message>(&self, message: &M) -> Result<()> {
        self.0.send_encoded(EncodedMessage::new(message))
    }

    /// See [`Connection::id`].
    pub fn id(&self) -> u64 {
        self.0.id()
    }

    /// See [`Connection::peer_addr`].
    pub fn peer_addr(&self) -> SocketAddr {
        self.0.peer_addr()
    }

    /// See [`Connection::is_over`].
    pub fn is_over(&self) -> bool {
        self.0.is_over()
    }

    /// See [`Connection::abort`].
    pub fn abort(&self) {
        self.0.abort();
    }

    /// The context that the owner attached, if it is a `T`.
    pub fn context<T: Any + Send + Sync>(&self) -> Option<&T> {
        self.0.context()?.downcast_ref()
    }
}

impl fmt::Debug for ConnRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnRef").field("id", &self.id()).field("addr", &self.peer_addr()).finish()
    }
}

impl PartialEq for ConnRef {
    fn eq(&self, other: &ConnRef) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for ConnRef {}
