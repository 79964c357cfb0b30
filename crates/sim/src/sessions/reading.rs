//! Turns frames into messages.

use super::end::End;
use super::{Delivery, Event, SessionOutput, SessionSettings, SessionTrouble, Sessions, key_of};
use crate::network::Node;
use crate::schedule::Nanos;
use crate::stalls::CONTROL;
use bytes::Buf;
use nacre_common::error::Result;
use nacre_common::throttle::Throttle;
use nacre_session::SocketLoss;
use nacre_session::body::FrameBody;
use nacre_session::receive::{FrameAction, memory_bytes};

/// Limits on the messages that a process handles at a time.
pub(super) struct Throttles {
    peers: Throttle,
    clients: Throttle,
    /// For the connections that control made, which have their own messenger.
    control: Throttle,
}

impl Throttles {
    pub(super) fn new(settings: &SessionSettings) -> Throttles {
        let throttle = |(bytes, messages)| Throttle::new(bytes, messages);
        let (peers, control) = (throttle(settings.throttle), throttle(settings.throttle));
        Throttles { peers, clients: throttle(settings.client_throttle), control }
    }

    fn of(&self, end: &End) -> &Throttle {
        match end.peer {
            Node::Client(_) => &self.clients,
            peer if is_of_control(peer, end.lane) => &self.control,
            _ => &self.peers,
        }
    }
}

impl Sessions {
    /// The next event for the process.
    pub(crate) fn next_event(&mut self, now: Nanos) -> Option<Event> {
        loop {
            let is_free = |event: &Event| !self.waits_for_control(event);
            if let Some(at) = self.events.iter().position(is_free) {
                return self.events.remove(at);
            }
            let id = self.readable.iter().copied().find(|id| self.is_ready(*id))?;
            match self.read(id) {
                Ok(Some(event)) => self.events.push_back(event),
                Ok(None) => {
                    if !self.ends.get(&id).and_then(|end| end.socket.as_ref()).is_some_and(|s| s.throttled) {
                        self.readable.remove(&id);
                    }
                }
                Err(loss) => {
                    self.readable.remove(&id);
                    self.lose(now, id, loss);
                }
            }
        }
    }

    /// Whether an event is for control while its thread stalls.
    fn waits_for_control(&self, event: &Event) -> bool {
        // An end that was removed may have been the one to the map authority.
        let of_mon = |id: &u64| self.ends.get(id).is_none_or(|end| end.peer == Node::Mon);
        self.stalled[CONTROL]
            && match event {
                Event::Connected(id) => of_mon(id),
                Event::Reset { peer, lane, .. } => is_of_control(*peer, *lane),
                Event::Message(delivery) => is_of_control(delivery.from, delivery.lane),
                Event::Accepted(..) => false,
            }
    }

    /// Whether reading can continue: not while a frame waits for the throttle, and not on a thread that stalls.
    fn is_ready(&self, id: u64) -> bool {
        let Some(end) = self.ends.get(&id) else { return true };
        if self.waits(end) || end.peer == Node::Mon && self.stalled[CONTROL] {
            return false;
        }
        let Some(socket) = end.socket.as_ref().filter(|socket| socket.throttled) else { return true };
        let Some((header, ..)) = &socket.pending else { return true };
        self.throttles.of(end).try_take(memory_bytes(header)).is_some()
    }

    /// Reads frames up to the next message; `None` if the bytes or the throttle run out.
    fn read(&mut self, id: u64) -> Result<Option<Event>, SocketLoss> {
        let Sessions { ends, out, writable, throttles, .. } = self;
        let Some(end) = ends.get_mut(&id) else { return Ok(None) };
        let throttle = throttles.of(end);
        let (queue, received) = (&mut end.queue, &end.received);
        let Some(socket) = end.socket.as_mut().filter(|socket| socket.up || socket.ended) else {
            return Ok(None);
        };
        let starved = |ended: bool| if ended { Err(SocketLoss::Fault) } else { Ok(None) };
        let mut suffer = |trouble| out.push(SessionOutput::Suffered(trouble));
        loop {
            let (header, arrival, permit) = match socket.pending.take() {
                Some(pending) => pending,
                None => match socket.read_header(queue, received)? {
                    Some((header, arrival)) => (header, arrival, None),
                    None => {
                        if socket.ended && !socket.bytes.is_empty() {
                            suffer(SessionTrouble::Torn);
                        }
                        return starved(socket.ended);
                    }
                },
            };
            match arrival {
                FrameAction::Nothing => continue,
                FrameAction::Keepalive => {
                    queue.ask_keepalive(true);
                    writable.insert(id);
                    continue;
                }
                FrameAction::Close => return Err(SocketLoss::PeerClosed),
                FrameAction::Next | FrameAction::Duplicate => {}
            }
            let Some(permit) = permit.or_else(|| throttle.try_take(memory_bytes(&header))) else {
                if !std::mem::replace(&mut socket.throttled, true) {
                    suffer(SessionTrouble::Throttled);
                }
                socket.pending = Some((header, arrival, None));
                return Ok(None);
            };
            socket.throttled = false;
            if (socket.bytes.len() as u64) < header.body_len() {
                socket.pending = Some((header, arrival, Some(permit)));
                if socket.ended {
                    suffer(SessionTrouble::Torn);
                }
                return starved(socket.ended);
            }
            let mut body = FrameBody::new(&header);
            let taken = body.fill(&socket.bytes);
            socket.bytes.advance(taken);
            let (meta, data) = body.finish(&header).map_err(|_| SocketLoss::Fault)?;
            if arrival == FrameAction::Duplicate {
                continue;
            }
            socket.reader.mark_handled(&header, received);
            socket.used = true;
            if socket.reader.count_handled(&header, received) {
                queue.ask_ack();
                writable.insert(id);
            }
            let (from, lane, kind) = (end.peer, end.lane, header.kind);
            out.push(SessionOutput::Handled(end.incoming_stream(), key_of(&header, header.seq)));
            return Ok(Some(Event::Message(Delivery {
                id,
                from,
                lane,
                kind,
                meta,
                data,
                permit: Some(permit),
            })));
        }
    }
}

/// Whether control handles messages of a process on a connection that the thread of the actor `lane` owns.
fn is_of_control(peer: Node, lane: usize) -> bool {
    peer == Node::Mon || lane == CONTROL
}
