//! Heartbeats of a simulated OSD. As in production, control makes a lossy connection only for heartbeats to each peer process
//! that it pings; the peer answers on the thread of the shard that accepted the connection.

use super::Process;
use crate::schedule::Nanos;
use crate::sessions::{Delivery, ResetCause, SessionConnection, Sessions};
use crate::stalls::CONTROL;
use nacre_common::conn::ConnRef;
use nacre_common::error::Result;
use nacre_pg::heartbeat::HbEnvelope;
use nacre_session::Policy;
use nacre_shard::inbox::ShardMessage;
use nacre_shard::peers::Peers;
use nacre_shard::session::Session;
use nacre_types::OsdId;
use nacre_types::encoding::DecodeError;
use nacre_types::osdmap::OsdMap;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The connections that control made for heartbeats.
#[derive(Debug, Default)]
pub(super) struct HeartbeatConnections {
    peers: Peers,
    /// The OSD and process that each connection leads to, by the connections' numbers.
    targets: BTreeMap<u64, (OsdId, u64)>,
}

impl HeartbeatConnections {
    /// The connection to the process of `osd` that is in the map; made if there is none.
    pub(super) fn get(
        &mut self,
        now: Nanos,
        osd: OsdId,
        sessions: &Arc<Mutex<Sessions>>,
    ) -> Result<Option<ConnRef>> {
        let HeartbeatConnections { peers, targets } = self;
        peers.get(osd, |process| {
            let peer = (osd, Policy::Lossy);
            let conn = SessionConnection::begin(sessions, now, peer, CONTROL, process.addr);
            let conn = ConnRef::new(Arc::new(conn));
            targets.insert(conn.id(), (osd, process.boot_nonce));
            Ok(conn)
        })
    }

    /// Removes connections to processes that are no longer in the map.
    pub(super) fn on_map(&mut self, map: &OsdMap, me: OsdId) {
        self.peers.on_map(map, me);
        let shows =
            |osd, boot_nonce| map.osds.get(&osd).is_some_and(|info| info.up && info.boot_nonce == boot_nonce);
        self.targets.retain(|_, (osd, boot_nonce)| shows(*osd, *boot_nonce));
    }

    /// Removes a connection that is over. Returns the OSD and process that it led to.
    pub(super) fn lose(&mut self, id: u64) -> Option<(OsdId, u64)> {
        self.targets.remove(&id)
    }
}

impl Process {
    /// Handles a heartbeat: a ping on an accepted connection, or an answer on one that control made.
    pub(super) fn on_heartbeat(&mut self, from: OsdId, delivery: &Delivery) -> Result<(), DecodeError> {
        let envelope: HbEnvelope = delivery.decode()?;
        if delivery.lane == CONTROL {
            self.control_turn(move |control| control.on_ping_reply(from, envelope));
            return Ok(());
        }
        let Some(conn) = self.host.accepted(delivery.id) else { return Ok(()) };
        if let Some(session) = conn.context::<Session>() {
            session.set_heartbeat();
        }
        let shared = Arc::clone(&self.shared);
        self.turn(delivery.lane, move || {
            if let Some(answer) = shared.on_ping(from, envelope) {
                // An answer that can't be sent is lost.
                let _ = conn.send(&answer);
            }
        });
        Ok(())
    }

    /// Handles the end of a heartbeat connection that control made or that was accepted.
    pub(super) fn lose_pings(&mut self, osd: OsdId, id: u64, is_lost: bool, cause: ResetCause) {
        if is_lost {
            let target = self.host.pings().lose(id).filter(|_| cause == ResetCause::Refused);
            if let Some((osd, boot_nonce)) = target {
                self.control_turn(move |control| control.on_connection_refused(osd, boot_nonce));
            }
        } else if self.host.lose_accepted(id, Session::is_heartbeat) && cause != ResetCause::Idle {
            self.shared.post_all(|| ShardMessage::PeerReset(osd));
        }
    }
}
