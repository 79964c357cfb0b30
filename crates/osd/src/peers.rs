//! Connections to other OSDs for messages about PGs: a lossless session for each process that [`Peers`] wants one with.

use nacre_common::auth::Credentials;
use nacre_common::conn::ConnRef;
use nacre_common::error::Error;
use nacre_runtime::msgr::{Messenger, Policy, Target};
use nacre_shard::peers::Peers;
use nacre_types::ids::{EntityName, OsdId};
use nacre_types::osdmap::OsdMap;
use parking_lot::Mutex;
use std::sync::Arc;

/// See the module's documentation.
pub(crate) struct PeerLinks {
    messenger: Mutex<Option<Messenger>>,
    credentials: Arc<dyn Credentials>,
    peers: Mutex<Peers>,
}

impl PeerLinks {
    /// No connections yet; they authenticate by `credentials`.
    pub(crate) fn new(credentials: Arc<dyn Credentials>) -> PeerLinks {
        PeerLinks { messenger: Mutex::default(), credentials, peers: Mutex::default() }
    }

    /// Gives the messenger to connect with, before anything else.
    pub(crate) fn set_messenger(&self, messenger: Messenger) {
        *self.messenger.lock() = Some(messenger);
    }

    /// Forgets messenger and connections: they hold on to what holds this.
    pub(crate) fn close(&self) {
        self.messenger.lock().take();
        self.peers.lock().clear();
    }

    /// The connection to `osd`, made on `lane` where there is none. `None` while the map shows no process.
    pub(crate) fn get(&self, osd: OsdId, lane: usize) -> Result<Option<ConnRef>, Error> {
        let messenger = self.messenger.lock().clone();
        let Some(messenger) = messenger else { return Ok(None) };
        self.peers.lock().get(osd, |process| {
            let conn = messenger.connect(Target {
                addr: process.addr,
                entity: Some(EntityName::osd(osd)),
                policy: Policy::Lossless,
                lane,
                credentials: Arc::clone(&self.credentials),
            })?;
            Ok(conn.to_ref())
        })
    }

    /// As [`Peers::on_map`].
    pub(crate) fn on_map(&self, map: &OsdMap, whoami: OsdId) -> Vec<OsdId> {
        self.peers.lock().on_map(map, whoami)
    }

    /// As [`Peers::drop_conn`].
    pub(crate) fn drop_conn(&self, osd: OsdId) {
        self.peers.lock().drop_conn(osd);
    }
}
