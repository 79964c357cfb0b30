//! A simulated map authority: the real map logic over a store whose commits take time, can be lost in crashes, and can be
//! rolled back to an older copy.
//!
//! The committed state is a list of maps; a restarted authority starts with the newest. After a crash, a commit in progress
//! may or may not have been done.

use crate::bounds::Bound;
use crate::network::Node;
use crate::packet::{MapView, SocketEvent};
use crate::schedule::{MILLI, Nanos};
use crate::sessions::{Delivery, SessionOutput, SessionSettings, Sessions};
use bytes::Bytes;
use nacre_mon::logic::{ConnToken, MapEffect, MapEvent, MapState, Now, Tuning, new_generation};
use nacre_types::OsdId;
use nacre_types::encoding::DecodeError;
use nacre_types::msg::{
    EncodedIncremental, EncodedMessage, MapPublish, Message, MonSubscribe, OsdBeacon, OsdBoot, OsdFailure,
    OsdMarkMeDown, PgCas, StatsReport,
};
use nacre_types::osdmap::OsdMap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use uuid::Uuid;

/// The cluster's id.
pub const FSID: Uuid = Uuid::from_u128(0xf51d);
/// Wall clock at the start of the run, nanoseconds since 1970.
pub const START_WALL_NS: u64 = 1_700_000_000_000_000_000;
/// Distinguishes its processes from those of OSDs and clients.
const NONCE: u64 = 100;
/// The number of old maps kept for restores.
const KEPT: usize = 64;
/// One in so many maps is also stored in full.
const FULL_EVERY: u32 = 10;

/// The map authority.
pub struct Monitor {
    /// The number of the process; events for an earlier one are ignored.
    pub life: u32,
    state: Option<MapState>,
    tuning: Tuning,
    /// Committed maps, the newest last.
    stored: Vec<Arc<MapView>>,
    /// The map of the commit in progress.
    committing: Option<(u64, Option<Arc<MapView>>)>,
    /// Connections of OSDs and clients, while the process runs.
    sessions: Option<Sessions>,
    session_settings: SessionSettings,
    /// The connections to which maps are published, with the next epoch of each; 0 requests a full map.
    subscribers: BTreeMap<u64, (Node, u32)>,
    /// The first epoch whose incremental is available.
    at_hand_from: u32,
    /// How maps are published.
    publishing: Publishing,
    /// Faults of publications.
    pub trouble: PublishTrouble,
    /// How far its wall clock is ahead of the others', in nanoseconds.
    pub wall_ahead: i64,
    /// Answers that are pending, by connection.
    waiting: BTreeMap<u64, u64>,
}

/// How maps are published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Publishing {
    /// Incrementals in one message.
    pub batch: usize,
    /// Available incrementals: a receiver that is further behind gets a full map.
    pub at_hand: u32,
}

/// Receivers that publications of the map authority do not reach.
#[derive(Clone, Debug, Default)]
pub struct PublishTrouble {
    /// Receivers whose publications are late: nothing is sent to them.
    pub late: BTreeSet<Node>,
    /// The number of publications that each receiver will lose; the following ones show the gap.
    pub losing: BTreeMap<Node, u32>,
    /// Receivers whose last publication was lost.
    pub lost: BTreeSet<Node>,
    /// The number of publications lost since the last [`Monitor::take_missed_maps`].
    missed: u64,
}

/// A message with maps.
struct Publication {
    message: EncodedMessage,
    /// The next epoch after it.
    following: u32,
    is_whole: bool,
    /// It contains several incrementals.
    is_batch: bool,
}

/// Actions that the map authority requests, and events that it reports.
#[derive(Debug)]
pub enum MonOutput {
    /// An action for connections.
    Session(SessionOutput),
    /// A commit started: [`Monitor::committed`] must be called when the store has it.
    Commit,
    /// This map is durable, with its memberships in effect.
    Published(Arc<MapView>),
    /// A bound was reached, with the number of times.
    Reached(Bound, u64),
    /// A rule was broken.
    Broken(&'static str, String),
}

impl Monitor {
    /// A map authority with its first map.
    pub fn new(
        now: Nanos,
        map: OsdMap,
        tuning: Tuning,
        publishing: Publishing,
        session_settings: SessionSettings,
    ) -> Monitor {
        let view = Arc::new(MapView::new(map, None));
        let mut monitor = Monitor {
            life: 0,
            state: None,
            tuning,
            stored: vec![view],
            committing: None,
            sessions: None,
            session_settings,
            subscribers: BTreeMap::new(),
            at_hand_from: 0,
            publishing,
            trouble: PublishTrouble::default(),
            wall_ahead: 0,
            waiting: BTreeMap::new(),
        };
        monitor.start(now);
        monitor
    }

    /// The newest durable map.
    pub fn view(&self) -> &Arc<MapView> {
        self.stored.last().expect("invariant: there is always a map")
    }

    /// Whether its process runs.
    pub fn is_running(&self) -> bool {
        self.state.is_some()
    }

    /// Starts a process with the stored state.
    pub fn start(&mut self, now: Nanos) {
        self.life += 1;
        let nonce = NONCE << 32 | u64::from(self.life);
        self.sessions = Some(Sessions::new(self.session_settings, nonce, 1));
        self.state = Some(MapState::new((*self.view().map).clone(), self.tuning.clone(), self.time(now)));
        // It reads the last full map that is stored, and the incrementals that follow it.
        let is_whole = |view: &&Arc<MapView>| {
            view.incremental().is_none() || view.map.epoch.0.is_multiple_of(FULL_EVERY)
        };
        self.at_hand_from = self.stored.iter().rfind(is_whole).map_or(0, |view| view.map.epoch.0 + 1);
    }

    /// The process dies; a commit in progress was done if `done`.
    pub fn crash(&mut self, done: bool, out: &mut Vec<MonOutput>) {
        self.life += 1;
        self.state = None;
        self.sessions = None;
        self.subscribers.clear();
        let lost = std::mem::take(&mut self.waiting).into_values().sum();
        out.push(MonOutput::Reached(Bound::CasUnknown, lost));
        if let Some((_, Some(view))) = self.committing.take().filter(|_| done) {
            self.store(view, out);
        }
    }

    /// An operator, who names these OSDs, replaces the store by its copy of `age` commits ago. Only while the process is down.
    pub fn restore(&mut self, now: Nanos, age: usize, osds: &[OsdId], out: &mut Vec<MonOutput>) {
        assert!(self.state.is_none(), "invariant: stores are restored while nobody uses them");
        let at = self.stored.len() - 1 - age.min(self.stored.len() - 1);
        let generation = self.view().map.generation + 1;
        let restored = new_generation(&self.stored[at].map, generation, self.time(now), osds);
        self.stored.truncate(at + 1);
        self.store(Arc::new(MapView::new(restored, None)), out);
    }

    fn store(&mut self, view: Arc<MapView>, out: &mut Vec<MonOutput>) {
        self.stored.push(view.clone());
        if self.stored.len() > KEPT {
            self.stored.remove(0);
        }
        let oldest = view.map.epoch.0.saturating_sub(self.publishing.at_hand);
        self.at_hand_from = self.at_hand_from.max(oldest);
        out.push(MonOutput::Published(view));
    }

    /// Handles an event of a socket.
    pub fn on_socket(&mut self, now: Nanos, from: Node, number: u64, event: SocketEvent) {
        if let Some(sessions) = &mut self.sessions {
            sessions.on_socket(now, from, number, event);
        }
    }

    /// Handles the time.
    pub fn on_tick(&mut self, now: Nanos, out: &mut Vec<MonOutput>) {
        if let Some(sessions) = &mut self.sessions
            && sessions.next_wake().is_some_and(|at| at <= now)
        {
            sessions.on_time(now);
        }
        self.handle(now, MapEvent::Tick, out);
    }

    /// Exchanges pending work with the connections. Must be the last part of every step.
    pub fn pump_connections(&mut self, now: Nanos, out: &mut Vec<MonOutput>) {
        while let Some(event) = self.sessions.as_mut().and_then(|sessions| sessions.next_event(now)) {
            match event {
                crate::sessions::Event::Message(delivery) => {
                    if let Err(error) = self.on_message(now, &delivery, out) {
                        out.push(MonOutput::Broken("a message that can't be decoded", error.to_string()));
                    }
                }
                crate::sessions::Event::Reset { id, .. } => self.on_reset(id, out),
                crate::sessions::Event::Accepted(..) | crate::sessions::Event::Connected(_) => {}
            }
        }
        if let Some(sessions) = &mut self.sessions {
            sessions.flush();
            out.extend(sessions.take().map(MonOutput::Session));
        }
    }

    fn on_message(
        &mut self,
        now: Nanos,
        delivery: &Delivery,
        out: &mut Vec<MonOutput>,
    ) -> Result<(), DecodeError> {
        if delivery.kind == MonSubscribe::KIND {
            let wanted: MonSubscribe = delivery.decode()?;
            self.subscribers.insert(delivery.id, (delivery.from, wanted.next_epoch.0));
            self.publish(out);
            return Ok(());
        }
        let Node::Osd(osd) = delivery.from else { return Ok(()) };
        let osd = OsdId(osd);
        let event = match delivery.kind {
            OsdBoot::KIND => MapEvent::Boot(delivery.decode()?),
            OsdFailure::KIND => MapEvent::Failure { reporter: osd, report: delivery.decode()? },
            OsdBeacon::KIND => MapEvent::Alive { osd, alive: delivery.decode()? },
            OsdMarkMeDown::KIND => MapEvent::MarkMeDown { osd, request: delivery.decode()? },
            StatsReport::KIND => MapEvent::Stats { osd, report: delivery.decode()? },
            PgCas::KIND => {
                *self.waiting.entry(delivery.id).or_default() += 1;
                MapEvent::Cas { origin: ConnToken(delivery.id), osd, cas: delivery.decode()? }
            }
            // Neither options nor the cluster log are simulated.
            _ => return Ok(()),
        };
        self.handle(now, event, out);
        Ok(())
    }

    /// Handles a lost connection: answers to its requests are dropped.
    fn on_reset(&mut self, conn: u64, out: &mut Vec<MonOutput>) {
        self.subscribers.remove(&conn);
        let lost = self.waiting.remove(&conn).unwrap_or(0);
        out.push(MonOutput::Reached(Bound::CasUnknown, lost));
    }

    /// Handles an event or an operator's request.
    pub fn handle(&mut self, now: Nanos, event: MapEvent, out: &mut Vec<MonOutput>) {
        let now_there = self.time(now);
        let Some(state) = &mut self.state else { return };
        let effects = state.handle(now_there, event);
        self.carry_out(effects, out);
        self.propose(now, out);
    }

    /// Changes the map like an operator's command.
    pub fn apply_operator_change(
        &mut self,
        now: Nanos,
        out: &mut Vec<MonOutput>,
        change: impl FnOnce(&mut MapState, Now),
    ) {
        let now_there = self.time(now);
        if let Some(state) = &mut self.state {
            change(state, now_there);
            self.propose(now, out);
        }
    }

    fn propose(&mut self, now: Nanos, out: &mut Vec<MonOutput>) {
        let now_there = self.time(now);
        let Some(state) = &mut self.state else { return };
        let Some(proposal) = state.propose(now_there) else { return };
        let view = proposal.incremental.map(|incremental| {
            let next = self.stored.last().expect("invariant: there is always a map").map.apply(&incremental);
            let next = next.expect("invariant: the incremental follows the committed map");
            Arc::new(MapView::new(next, Some(&incremental)))
        });
        self.committing = Some((proposal.number, view));
        out.push(MonOutput::Commit);
    }

    /// The store has made the commit in progress durable.
    pub fn committed(&mut self, now: Nanos, out: &mut Vec<MonOutput>) {
        let Some((number, view)) = self.committing.take() else { return };
        if let Some(view) = view {
            self.store(view, out);
        }
        let Some(state) = &mut self.state else { return };
        let effects = state.on_committed(number);
        // Answers and maps race to the proposers. Here answers are sent first; on a slow link maps arrive first.
        self.carry_out(effects, out);
        self.publish(out);
        self.propose(now, out);
    }

    fn carry_out(&mut self, effects: Vec<MapEffect>, out: &mut Vec<MonOutput>) {
        for effect in effects {
            let MapEffect::CasReply { to, reply } = effect else { continue };
            let Some(waiting) = self.waiting.get_mut(&to.0).filter(|waiting| **waiting > 0) else { continue };
            *waiting -= 1;
            out.push(MonOutput::Reached(Bound::CasRefused, u64::from(!reply.accepted)));
            if let Some(sessions) = &mut self.sessions {
                // If it can't be sent, the connection is over, which is reported separately.
                let _ = sessions.send(to.0, EncodedMessage::new(&reply));
            }
        }
    }

    fn publish(&mut self, out: &mut Vec<MonOutput>) {
        let newest = self.view().map.epoch.0;
        let mut made: BTreeMap<u32, Publication> = BTreeMap::new();
        let mut subscribers = std::mem::take(&mut self.subscribers);
        for (conn, (node, next)) in &mut subscribers {
            while *next <= newest && !self.trouble.late.contains(node) {
                let publication = made.entry(*next).or_insert_with(|| self.maps_from(*next));
                let is_behind = *next > 0 && publication.is_whole;
                *next = publication.following;
                out.push(MonOutput::Reached(Bound::MapWhole, u64::from(is_behind)));
                let losing = self.trouble.losing.get_mut(node).filter(|left| **left > 0);
                if let Some(left) = losing {
                    *left -= 1;
                    self.trouble.missed += 1;
                    self.trouble.lost.insert(*node);
                    continue;
                }
                self.trouble.lost.remove(node);
                out.push(MonOutput::Reached(Bound::MapBatch, u64::from(publication.is_batch)));
                if let Some(sessions) = &mut self.sessions {
                    let _ = sessions.send(*conn, publication.message.clone());
                }
            }
        }
        self.subscribers = subscribers;
    }

    /// The publication that continues from epoch `next`.
    fn maps_from(&self, next: u32) -> Publication {
        let newest = self.view();
        let (fsid, epoch) = (newest.map.fsid, newest.map.epoch);
        let from = self.stored.iter().rposition(|view| view.map.epoch.0 == next);
        let following =
            from.filter(|_| next >= self.at_hand_from).map_or(&[][..], |from| &self.stored[from..]);
        let incrementals: Vec<EncodedIncremental> = following
            .iter()
            .map_while(|view| view.incremental().cloned().map(EncodedIncremental))
            .take(self.publishing.batch)
            .collect();
        let (full, following) = match incrementals.len() as u32 {
            0 => (newest.full().clone(), epoch.0 + 1),
            count => (Bytes::new(), next + count),
        };
        let (is_whole, is_batch) = (!full.is_empty(), incrementals.len() > 1);
        let message = EncodedMessage::new(&MapPublish { fsid, full, incrementals, newest: epoch });
        Publication { message, following, is_whole, is_batch }
    }

    /// The number of late nodes among `nodes`, plus the publications lost since the last call.
    pub fn take_missed_maps(&mut self, nodes: &BTreeSet<Node>) -> u64 {
        let newest = self.view().map.epoch.0;
        let is_late = |node: &&Node| {
            let mut of_node = self.subscribers.values().filter(|(of, _)| of == *node);
            self.trouble.late.contains(node) && of_node.any(|(_, next)| *next <= newest)
        };
        let late = nodes.iter().filter(is_late).count() as u64;
        late + std::mem::take(&mut self.trouble.missed)
    }

    /// Publishes maps to the nodes again. Returns the nodes that lost the last publication; they learn of it when their
    /// connection is replaced.
    pub fn resume_publishing(&mut self, nodes: &BTreeSet<Node>, out: &mut Vec<MonOutput>) -> Vec<Node> {
        self.trouble.late.retain(|node| !nodes.contains(node));
        self.trouble.losing.retain(|node, _| !nodes.contains(node));
        let broken = self.trouble.lost.iter().filter(|node| nodes.contains(node)).copied().collect();
        self.trouble.lost.retain(|node| !nodes.contains(node));
        if self.state.is_some() {
            self.publish(out);
        }
        broken
    }

    /// The map logic, while the process runs.
    pub fn state(&self) -> Option<&MapState> {
        self.state.as_ref()
    }

    fn time(&self, now: Nanos) -> Now {
        Now { mono_ms: now / MILLI, wall_ns: (START_WALL_NS + now).saturating_add_signed(self.wall_ahead) }
    }

    /// How often the time is passed to the map logic.
    pub const TICK: Nanos = 250 * MILLI;
}
