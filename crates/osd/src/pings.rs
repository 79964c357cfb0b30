//! Connections to other OSDs for heartbeats: a lossy connection for each process that [`Peers`] requests one for.

use crate::ticket::TicketCredentials;
use nacre_common::auth::CredentialProvider;
use nacre_common::error::Error;
use nacre_pg::heartbeat::HbEnvelope;
use nacre_runtime::msgr::{ConnectTarget, Messenger, Policy};
use nacre_shard::peers::{PeerProcess, Peers};
use nacre_types::ids::{EntityName, OsdId};
use nacre_types::osdmap::OsdMap;
use parking_lot::Mutex;
use std::sync::Arc;

/// The peer process of a heartbeat connection: the connection's context.
pub(crate) struct PingPeer {
    pub(crate) osd: OsdId,
    pub(crate) boot_nonce: u64,
}

/// See the module's documentation.
pub(crate) struct PingLinks {
    messenger: Mutex<Option<Messenger>>,
    credentials: Arc<TicketCredentials>,
    peers: Mutex<Peers>,
}

impl PingLinks {
    /// Creates the set without connections. They authenticate with `credentials`.
    pub(crate) fn new(credentials: Arc<TicketCredentials>) -> PingLinks {
        PingLinks { messenger: Mutex::default(), credentials, peers: Mutex::default() }
    }

    /// Sets the messenger. Must be called first.
    pub(crate) fn set_messenger(&self, messenger: Messenger) {
        *self.messenger.lock() = Some(messenger);
    }

    /// Drops the messenger and the connections, which have references to this object.
    pub(crate) fn close(&self) {
        self.messenger.lock().take();
        self.peers.lock().clear();
    }

    /// Sends to the process of `to` that the map shows. Must be called on the control thread.
    pub(crate) fn ping(&self, to: OsdId, message: &HbEnvelope) {
        let conn = self.peers.lock().get(to, |process| {
            let messenger = self.messenger.lock().clone().ok_or(Error::Closed)?;
            let PeerProcess { addr, boot_nonce } = process;
            let credentials = Arc::clone(&self.credentials) as Arc<dyn CredentialProvider>;
            let entity = Some(EntityName::osd(to));
            let conn = messenger.connect(ConnectTarget {
                addr,
                entity,
                policy: Policy::Lossy,
                lane: 0,
                credentials,
            })?;
            conn.set_context(Arc::new(PingPeer { osd: to, boot_nonce }));
            Ok(conn.to_ref())
        });
        let sent = conn.and_then(|conn| conn.map_or(Ok(()), |conn| conn.send(message)));
        if let Err(error) = sent {
            tracing::debug!(%to, %error, "can't ping");
        }
    }

    /// See [`Peers::on_map`].
    pub(crate) fn on_map(&self, map: &OsdMap, whoami: OsdId) {
        self.peers.lock().on_map(map, whoami);
    }
}
