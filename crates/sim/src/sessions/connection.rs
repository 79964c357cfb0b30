//! A session or connection as used by shards and control.

use super::Sessions;
use crate::network::Node;
use crate::schedule::Nanos;
use crate::stalls::{Call, stall_point};
use nacre_common::conn::Connection;
use nacre_common::error::Result;
use nacre_session::Policy;
use nacre_types::OsdId;
use nacre_types::msg::EncodedMessage;
use parking_lot::Mutex;
use std::any::Any;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// See the module's documentation.
pub(crate) struct SessionConnection {
    sessions: Arc<Mutex<Sessions>>,
    id: u64,
    addr: SocketAddr,
    over: Arc<AtomicBool>,
    context: Option<Box<dyn Any + Send + Sync>>,
}

impl SessionConnection {
    /// Opens a session or connection with a peer, on the thread of the actor `lane`.
    pub(crate) fn begin(
        sessions: &Arc<Mutex<Sessions>>,
        now: Nanos,
        (peer, policy): (OsdId, Policy),
        lane: usize,
        addr: SocketAddr,
    ) -> SessionConnection {
        let id = sessions.lock().connect(now, (Node::Osd(peer.0), policy), lane, None);
        SessionConnection::of(sessions, id, addr, None)
    }

    /// The end with this number and its owner's context.
    pub(crate) fn of(
        sessions: &Arc<Mutex<Sessions>>,
        id: u64,
        addr: SocketAddr,
        context: Option<Box<dyn Any + Send + Sync>>,
    ) -> SessionConnection {
        let over = sessions.lock().ends.get(&id).map(|end| Arc::clone(&end.over));
        let over = over.unwrap_or_else(|| Arc::new(AtomicBool::new(true)));
        SessionConnection { sessions: Arc::clone(sessions), id, addr, over, context }
    }
}

impl Connection for SessionConnection {
    fn send_encoded(&self, message: EncodedMessage) -> Result<()> {
        stall_point(Call::Send);
        self.sessions.lock().send(self.id, message)
    }

    fn id(&self) -> u64 {
        self.id
    }

    fn peer_addr(&self) -> SocketAddr {
        self.addr
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn abort(&self) {
        self.sessions.lock().forget(self.id);
    }

    fn context(&self) -> Option<&(dyn Any + Send + Sync)> {
        self.context.as_deref()
    }
}
