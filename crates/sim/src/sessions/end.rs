//! One end of a session or connection, and its socket.

use super::StreamId;
use crate::network::Node;
use crate::schedule::Nanos;
use bytes::{Buf, BytesMut};
use nacre_common::error::Result;
use nacre_common::throttle::Permit;
use nacre_session::incoming::Incoming;
use nacre_session::keepalive::Keepalive;
use nacre_session::outgoing::Outgoing;
use nacre_session::queue::SendQueue;
use nacre_session::receive::{FrameAction, FrameValidator, ReceiveState};
use nacre_session::wire::{FrameHeader, HEADER_BYTES};
use nacre_session::{ConnectRequest, Policy, SocketLoss};
use nacre_types::ClientId;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

pub(super) enum Side {
    Outgoing(Outgoing),
    Incoming(Incoming, ConnectRequest),
    /// The answering side of a lossy connection.
    Accepted,
}

pub(super) struct Socket {
    pub(super) number: u64,
    /// Whether frames may pass; before, the peer's answer is pending.
    pub(super) up: bool,
    /// When it is given up, unless it is up by then.
    pub(super) deadline: Nanos,
    pub(super) reader: FrameValidator,
    pub(super) keepalive: Keepalive,
    pub(super) bytes: BytesMut,
    /// A frame whose body is incomplete or waits for the throttle.
    pub(super) pending: Option<(FrameHeader, FrameAction, Option<Permit>)>,
    pub(super) heard: bool,
    pub(super) used: bool,
    pub(super) throttled: bool,
    /// The peer has closed its end: nothing follows the contents of `bytes`.
    pub(super) ended: bool,
}

impl Socket {
    /// The next header and what follows from it; `None` if it is incomplete.
    pub(super) fn read_header(
        &mut self,
        queue: &mut SendQueue,
        received: &ReceiveState,
    ) -> Result<Option<(FrameHeader, FrameAction)>, SocketLoss> {
        let Some(head) = self.bytes.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let header = FrameHeader::decode(head).map_err(|_| SocketLoss::Fault)?;
        self.bytes.advance(HEADER_BYTES);
        if let Some(ack) = self.reader.new_ack(&header) {
            queue.acknowledge(ack).map_err(|_| SocketLoss::Fault)?;
        }
        let arrival = self.reader.classify(&header, received).map_err(|_| SocketLoss::Fault)?;
        Ok(Some((header, arrival)))
    }
}

/// One end of a session or connection.
pub(super) struct End {
    pub(super) peer: Node,
    pub(super) policy: Policy,
    /// The actor whose thread owns it.
    pub(super) lane: usize,
    /// The process that connected, and its number there.
    pub(super) key: (u64, u64),
    /// The client as which this side connects.
    pub(super) client: Option<ClientId>,
    pub(super) side: Side,
    pub(super) queue: SendQueue,
    pub(super) received: ReceiveState,
    pub(super) socket: Option<Socket>,
    /// No process listened at the destination of its last socket.
    pub(super) refused: bool,
    pub(super) over: Arc<AtomicBool>,
}

impl End {
    pub(super) fn next_wake(&self) -> Option<Nanos> {
        match (&self.socket, &self.side) {
            (Some(socket), _) if socket.up => Some(socket.keepalive.next_wake()),
            (Some(socket), _) => Some(socket.deadline),
            (None, Side::Outgoing(session)) => session.next_wake(),
            (None, Side::Incoming(session, _)) => session.next_wake(),
            (None, Side::Accepted) => None,
        }
    }

    pub(super) fn is_outgoing(&self) -> bool {
        matches!(self.side, Side::Outgoing(_))
    }

    /// Identifies the stream of messages that this side sends.
    pub(super) fn outgoing_stream(&self) -> StreamId {
        (self.key.0, self.key.1, self.is_outgoing())
    }

    /// Identifies the stream of messages that this side receives.
    pub(super) fn incoming_stream(&self) -> StreamId {
        (self.key.0, self.key.1, !self.is_outgoing())
    }
}
