//! The seam for connections: what code that runs in simulations and tests sends messages by.
//!
//! The messenger's connections implement [`Connection`]; a simulation has its own.

use crate::error::Result;
use nacre_types::msg::{Encoded, Message};
use std::any::Any;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

/// One end of a connection, or of a lossless session.
pub trait Connection: Send + Sync {
    /// Queues a message without waiting. Errors: `Full` where the queue's bound is reached, `Closed`, `TooBig`. On a lossy
    /// connection nothing is known of delivery; on a lossless one the message is delivered unless a reset is reported.
    fn send_encoded(&self, message: Encoded) -> Result<()>;

    /// A number that no other connection of the process has.
    fn id(&self) -> u64;

    /// The other end's address.
    fn peer_addr(&self) -> SocketAddr;

    /// Whether it was closed or reset: nothing is sent by it any more.
    fn is_over(&self) -> bool;

    /// Ends it now; what is queued is lost.
    fn abort(&self);

    /// What the owner attached to it.
    fn context(&self) -> Option<&(dyn Any + Send + Sync)>;
}

/// Shares a [`Connection`].
#[derive(Clone)]
pub struct ConnRef(Arc<dyn Connection>);

impl ConnRef {
    /// A reference to `connection`.
    pub fn new(connection: Arc<dyn Connection>) -> ConnRef {
        ConnRef(connection)
    }

    /// As [`Connection::send_encoded`].
    pub fn send<M: Message>(&self, message: &M) -> Result<()> {
        self.0.send_encoded(Encoded::new(message))
    }

    /// As [`Connection::id`].
    pub fn id(&self) -> u64 {
        self.0.id()
    }

    /// As [`Connection::peer_addr`].
    pub fn peer_addr(&self) -> SocketAddr {
        self.0.peer_addr()
    }

    /// As [`Connection::is_over`].
    pub fn is_over(&self) -> bool {
        self.0.is_over()
    }

    /// As [`Connection::abort`].
    pub fn abort(&self) {
        self.0.abort();
    }

    /// What the owner attached to it, if it is a `T`.
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
