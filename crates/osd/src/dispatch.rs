//! Handles the messages on a shard's lane: requests, peers' messages, pings, commands.

use crate::clock;
use crate::commands;
use crate::shared::Shared;
use nacre_common::error::Error;
use nacre_pg::PgEnvelope;
use nacre_pg::heartbeat::HbEnvelope;
use nacre_runtime::msgr::{Conn, Dispatcher, Frame, Policy, ResetReason};
use nacre_shard::inbox::ShardMessage;
use nacre_shard::session::{IncomingRequest, Session};
use nacre_shard::shard::ShardCell;
use nacre_types::ids::OsdId;
use nacre_types::msg::{DaemonCommand, Message, OsdRequest};
use std::sync::Arc;

/// One shard's dispatcher.
pub(crate) struct ShardDispatcher {
    pub(crate) shared: Arc<Shared>,
    /// All shards. This dispatcher's shard is at `index`.
    pub(crate) cells: Arc<Vec<ShardCell>>,
    pub(crate) index: usize,
}

impl Dispatcher for ShardDispatcher {
    fn on_message(&self, conn: &Conn, frame: Frame) {
        let outcome = match frame.kind() {
            OsdRequest::KIND => self.on_request(conn, frame),
            PgEnvelope::KIND => self.on_envelope(conn, frame),
            HbEnvelope::KIND => self.on_heartbeat(conn, &frame),
            DaemonCommand::KIND => self.on_command(conn, &frame),
            kind => {
                tracing::warn!(peer = ?conn.peer_entity(), kind, "message of an unknown kind");
                Ok(())
            }
        };
        if let Err(error) = outcome {
            // The frame's checksum was right, so the peer sent exactly this: a resend would fail as well.
            tracing::error!(peer = ?conn.peer_entity(), %error, "closing a connection that makes no sense");
            conn.close();
        }
    }

    fn on_accept(&self, conn: &Conn) {
        if let Some(peer) = conn.peer() {
            conn.set_context(Arc::new(Session::new(&peer, conn.peer_addr())));
        }
    }

    fn on_reset(&self, conn: &Conn, reset: ResetReason) {
        let session = conn.context::<Session>();
        if session.is_some_and(Session::is_watching) {
            let id = conn.id();
            self.shared.post_all(|| ShardMessage::WatchConnClosed(id));
        }
        // An OSD is also a client of other OSDs. The end of such a connection says nothing about it as a peer.
        let is_client = conn.policy() == Policy::Lossy && !session.is_some_and(Session::is_heartbeat);
        if is_client && !conn.is_outgoing() {
            return;
        }
        // The connection ended because its ticket expired or it was idle. The peer pings over another one.
        let is_renewed = matches!(reset, ResetReason::Failed(Error::Expired(_)) | ResetReason::Idle);
        if conn.policy() == Policy::Lossy && is_renewed {
            return;
        }
        let Some(osd) = conn.peer_entity().and_then(|entity| entity.osd_id()) else { return };
        tracing::info!(peer = %osd, ?reset, "session with a peer is over");
        if conn.is_outgoing() && conn.is_over() {
            self.shared.outside.peers.drop_conn(osd);
        }
        self.shared.post_all(|| ShardMessage::PeerReset(osd));
    }
}

impl ShardDispatcher {
    fn on_request(&self, conn: &Conn, frame: Frame) -> Result<(), Error> {
        let request: OsdRequest = frame.decode()?;
        let arrival = IncomingRequest {
            conn: conn.to_ref(),
            permit: frame.into_permit(),
            arrived_ns: clock::boot_ns(),
            request,
        };
        let owner = self.shared.shard_of(arrival.request.pg);
        if owner == self.index {
            self.cells[owner].enter(|shard| shard.on_request(arrival));
        } else {
            self.shared.inboxes[owner].post(ShardMessage::Client(Box::new(arrival)));
        }
        Ok(())
    }

    fn on_envelope(&self, conn: &Conn, frame: Frame) -> Result<(), Error> {
        let Some(from) = self.peer_of(conn) else { return Ok(()) };
        let envelope: PgEnvelope = frame.decode()?;
        let owner = self.shared.shard_of(envelope.pg);
        if owner == self.index {
            self.cells[owner].enter(|shard| shard.on_peer(from, envelope));
        } else {
            let envelope = Box::new(envelope);
            self.shared.inboxes[owner].post(ShardMessage::Peer {
                from,
                envelope,
                permit: frame.into_permit(),
            });
        }
        Ok(())
    }

    fn on_heartbeat(&self, conn: &Conn, frame: &Frame) -> Result<(), Error> {
        let Some(from) = self.peer_of(conn) else { return Ok(()) };
        if let Some(session) = conn.context::<Session>() {
            session.set_heartbeat();
        }
        if let Some(answer) = self.shared.on_ping(from, frame.decode()?)
            && let Err(error) = conn.send(&answer)
        {
            tracing::debug!(peer = %from, %error, "could not answer a ping");
        }
        Ok(())
    }

    fn on_command(&self, conn: &Conn, frame: &Frame) -> Result<(), Error> {
        let command: DaemonCommand = frame.decode()?;
        let allowed =
            conn.context::<Session>().is_some_and(|session| session.caps.is_allow_all(conn.peer_addr().ip()));
        let (shared, cells, conn) = (self.shared.clone(), self.cells.clone(), conn.clone());
        let long = allowed && commands::is_long_running(&command);
        let answer = move || {
            let reply = commands::run(&shared, &cells, &command, allowed);
            if let Err(error) = conn.send(&reply) {
                tracing::debug!(%error, "could not answer a command");
                // Its client would wait for the reply as long as the connection lives.
                if matches!(error, Error::Full) {
                    conn.abort();
                }
            }
        };
        if !long {
            answer();
        } else if let Err(error) = std::thread::Builder::new().name("osd-command".into()).spawn(answer) {
            return Err(Error::Io { what: "start a thread for a command".into(), source: Arc::new(error) });
        }
        Ok(())
    }

    /// The OSD at the other end, if it has an OSD's rights.
    fn peer_of(&self, conn: &Conn) -> Option<OsdId> {
        // For an outgoing connection the messenger has verified the peer's identity.
        let osd = conn.peer_entity()?.osd_id()?;
        let trusted = conn.is_outgoing()
            || conn
                .context::<Session>()
                .is_some_and(|session| session.caps.is_allow_all(conn.peer_addr().ip()));
        if !trusted {
            tracing::warn!(peer = %osd, "an OSD without an OSD's capabilities");
        }
        trusted.then_some(osd)
    }
}
