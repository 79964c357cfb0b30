//! Connections to other OSDs for messages about PGs: a lossless session for each process that [`Peers`] requests one for.

use nacre_common::auth::CredentialProvider;
use nacre_common::conn::ConnRef;
use nacre_common::error::Error;
use nacre_runtime::msgr::{ConnectTarget, Messenger, Policy};
use nacre_shard::peers::Peers;
use nacre_types::ids::{EntityName, OsdId};
use nacre_types::osdmap::OsdMap;
use parking_lot::Mutex;
use std::sync::Arc;

/// See the module's documentation.
pub(crate) struct PeerLinks {
    messenger: Mutex<Option<Messenger>>,
    credentials: Arc<dyn CredentialProvider>,
    peers: Mutex<Peers>,
}

impl PeerLinks {
    /// Creates the set without connections. They authenticate with `credentials`.
    pub(crate) fn new(credentials: Arc<dyn CredentialProvider>) -> PeerLinks {
        PeerLinks { messenger: Mutex::default(), credentials, peers: Mutex::default() }
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

    /// Returns the connection to `osd`, and creates it on `lane` if there is none. `None` while the map shows no process.
    pub(crate) fn get(&self, osd: OsdId, lane: usize) -> Result<Option<ConnRef>, Error> {
        let messenger = self.messenger.lock().clone();
        let Some(messenger) = messenger else { return Ok(None) };
        self.peers.lock().get(osd, |process| {
            let conn = messenger.connect(ConnectTarget {
                addr: process.addr,
                entity: Some(EntityName::osd(osd)),
                policy: Policy::Lossless,
                lane,
                credentials: Arc::clone(&self.credentials),
            })?;
            Ok(conn.to_ref())
        })
    }

    /// See [`Peers::on_map`].
    pub(crate) fn on_map(&self, map: &OsdMap, whoami: OsdId) -> Vec<OsdId> {
        self.peers.lock().on_map(map, whoami)
    }

    /// See [`Peers::drop_conn`].
    pub(crate) fn drop_conn(&self, osd: OsdId) {
        self.peers.lock().drop_conn(osd);
    }
}
