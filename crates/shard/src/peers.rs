//! Sessions with other OSDs for messages about PGs, and connections to them for heartbeats: one per peer process that the map
//! shows, created on first use.

use nacre_common::conn::ConnRef;
use nacre_common::error::Error;
use nacre_types::ids::OsdId;
use nacre_types::osdmap::OsdMap;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// A process of an OSD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerProcess {
    /// The address on which it listens.
    pub addr: SocketAddr,
    /// Distinguishes it from other processes of the OSD.
    pub boot_nonce: u64,
}

#[derive(Debug)]
struct Peer {
    process: PeerProcess,
    conn: Option<ConnRef>,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Peers(BTreeMap<OsdId, Peer>);

impl Peers {
    /// The session with `osd`, created by `connect` if there is none. `None` while the map shows no process.
    pub fn get(
        &mut self,
        osd: OsdId,
        connect: impl FnOnce(PeerProcess) -> Result<ConnRef, Error>,
    ) -> Result<Option<ConnRef>, Error> {
        let Some(peer) = self.0.get_mut(&osd) else { return Ok(None) };
        if let Some(conn) = peer.conn.as_ref().filter(|conn| !conn.is_over()) {
            return Ok(Some(conn.clone()));
        }
        let conn = connect(peer.process)?;
        peer.conn = Some(conn.clone());
        Ok(Some(conn))
    }

    /// Follows the map: ends sessions with processes that it no longer shows. Returns the peers whose sessions ended.
    pub fn on_map(&mut self, map: &OsdMap, whoami: OsdId) -> Vec<OsdId> {
        let mut changed = Vec::new();
        let mut end = |id: OsdId, peer: Peer| {
            if let Some(conn) = peer.conn {
                conn.abort();
                changed.push(id);
            }
        };
        let shown: BTreeMap<OsdId, PeerProcess> = map
            .osds
            .iter()
            .filter(|(id, info)| **id != whoami && info.up)
            .filter_map(|(id, info)| {
                Some((*id, PeerProcess { addr: info.addr?, boot_nonce: info.boot_nonce }))
            })
            .collect();
        let gone: Vec<OsdId> = self
            .0
            .iter()
            .filter(|(id, peer)| shown.get(id) != Some(&peer.process))
            .map(|(id, _)| *id)
            .collect();
        for id in gone {
            if let Some(peer) = self.0.remove(&id) {
                end(id, peer);
            }
        }
        for (id, process) in shown {
            self.0.entry(id).or_insert(Peer { process, conn: None });
        }
        changed
    }

    /// Ends the session with `osd`, because a message could not be sent on it.
    pub fn drop_conn(&mut self, osd: OsdId) {
        if let Some(conn) = self.0.get_mut(&osd).and_then(|peer| peer.conn.take()) {
            conn.abort();
        }
    }

    /// Forgets all peers and sessions.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}
