//! Connections to other OSDs for messages about PGs: one lossless session per peer process, made on first use.

use nacre_common::auth::Credentials;
use nacre_common::error::Error;
use nacre_runtime::msgr::{Conn, Messenger, Policy, Target};
use nacre_types::ids::{EntityName, OsdId};
use nacre_types::osdmap::OsdMap;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    addr: SocketAddr,
    boot_nonce: u64,
}

#[derive(Default)]
struct Peer {
    process: Option<Process>,
    conn: Option<Conn>,
}

/// See the module's documentation.
pub(crate) struct PeerLinks {
    messenger: Mutex<Option<Messenger>>,
    credentials: Arc<dyn Credentials>,
    peers: Mutex<HashMap<OsdId, Peer>>,
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
    pub(crate) fn get(&self, osd: OsdId, lane: usize) -> Result<Option<Conn>, Error> {
        let mut peers = self.peers.lock();
        let Some(peer) = peers.get_mut(&osd) else { return Ok(None) };
        if let Some(conn) = peer.conn.as_ref().filter(|conn| !conn.is_over()) {
            return Ok(Some(conn.clone()));
        }
        let messenger = self.messenger.lock().clone();
        let (Some(process), Some(messenger)) = (peer.process, messenger) else { return Ok(None) };
        let conn = messenger.connect(Target {
            addr: process.addr,
            entity: Some(EntityName::osd(osd)),
            policy: Policy::Lossless,
            lane,
            credentials: Arc::clone(&self.credentials),
        })?;
        peer.conn = Some(conn.clone());
        Ok(Some(conn))
    }

    /// Follows the map: connections to processes that it no longer shows are closed. Returns the peers whose process
    /// is another one than before.
    pub(crate) fn on_map(&self, map: &OsdMap, whoami: OsdId) -> Vec<OsdId> {
        let mut peers = self.peers.lock();
        let mut changed = Vec::new();
        let shown: HashMap<OsdId, Process> = map
            .osds
            .iter()
            .filter(|(id, info)| **id != whoami && info.up)
            .filter_map(|(id, info)| Some((*id, Process { addr: info.addr?, boot_nonce: info.boot_nonce })))
            .collect();
        for (id, process) in &shown {
            let peer = peers.entry(*id).or_default();
            if peer.process != Some(*process) {
                if let Some(conn) = peer.conn.take() {
                    conn.abort();
                    changed.push(*id);
                }
                peer.process = Some(*process);
            }
        }
        peers.retain(|id, peer| {
            let keep = shown.contains_key(id);
            if !keep && let Some(conn) = peer.conn.take() {
                conn.abort();
                changed.push(*id);
            }
            keep
        });
        changed
    }

    /// Drops the connection to `osd`: something that was to be sent on it could not be.
    pub(crate) fn drop_conn(&self, osd: OsdId) {
        if let Some(conn) = self.peers.lock().get_mut(&osd).and_then(|peer| peer.conn.take()) {
            conn.abort();
        }
    }
}
