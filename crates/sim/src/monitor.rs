//! A simulated map authority: the real map logic over a store whose commits take time, get lost in crashes, and can be
//! rolled back to an older copy.
//!
//! What is committed is a list of maps; the newest is what a restarted authority begins with. A crash with a commit under
//! way leaves it done or not done.

use crate::network::Node;
use crate::packet::{MapView, Packet};
use crate::schedule::{MILLI, Nanos};
use nacre_mon::logic::{Effect, Event, MapState, Now, Origin, Tuning, new_generation};
use nacre_types::OsdId;
use nacre_types::osdmap::OsdMap;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Wall clock at the start of the run, nanoseconds since 1970.
pub const WALL: u64 = 1_700_000_000_000_000_000;
/// Copies of the store kept for restores.
const KEPT: usize = 64;

/// The map authority.
pub struct Monitor {
    /// Counts processes; events made for an earlier one are not for this one.
    pub life: u32,
    state: Option<MapState>,
    tuning: Tuning,
    /// Committed maps, the newest last.
    stored: Vec<Arc<MapView>>,
    /// The map that the commit under way makes.
    committing: Option<(u64, Option<Arc<MapView>>)>,
    /// Who gets maps as they come, and the newest that each has: (generation, epoch).
    subscribers: BTreeMap<Node, (u64, u32)>,
    /// Who waits for which answer.
    origins: BTreeMap<Origin, Node>,
    next_origin: u64,
}

/// What the map authority wants done.
#[derive(Debug)]
pub enum MonOut {
    /// Send.
    Send(Node, Packet),
    /// A commit began: call [`Monitor::committed`] when the store has it.
    Commit,
    /// These memberships took effect: this map is durable.
    Published(Arc<MapView>),
}

impl Monitor {
    /// A map authority with its first map.
    pub fn new(now: Nanos, map: OsdMap, tuning: Tuning) -> Monitor {
        let view = Arc::new(MapView::new(map, None));
        let mut monitor = Monitor {
            life: 0,
            state: None,
            tuning,
            stored: vec![view],
            committing: None,
            subscribers: BTreeMap::new(),
            origins: BTreeMap::new(),
            next_origin: 1,
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

    /// Starts a process from what is stored.
    pub fn start(&mut self, now: Nanos) {
        self.life += 1;
        self.state = Some(MapState::new((*self.view().map).clone(), self.tuning.clone(), time(now)));
    }

    /// The process dies; a commit under way was done if `done`.
    pub fn crash(&mut self, done: bool, out: &mut Vec<MonOut>) {
        self.life += 1;
        self.state = None;
        self.subscribers.clear();
        self.origins.clear();
        if let Some((_, Some(view))) = self.committing.take().filter(|_| done) {
            self.store(view, out);
        }
    }

    /// The store is replaced by its copy of `age` commits ago, by an operator who names these OSDs. Only while the process
    /// is down.
    pub fn restore(&mut self, now: Nanos, age: usize, osds: &[OsdId], out: &mut Vec<MonOut>) {
        assert!(self.state.is_none(), "invariant: stores are restored while nobody uses them");
        let at = self.stored.len() - 1 - age.min(self.stored.len() - 1);
        let generation = self.view().map.generation + 1;
        let restored = new_generation(&self.stored[at].map, generation, time(now), osds);
        self.stored.truncate(at + 1);
        self.store(Arc::new(MapView::new(restored, None)), out);
    }

    fn store(&mut self, view: Arc<MapView>, out: &mut Vec<MonOut>) {
        self.stored.push(view.clone());
        if self.stored.len() > KEPT {
            self.stored.remove(0);
        }
        out.push(MonOut::Published(view));
    }

    /// A packet arrived.
    pub fn on_packet(&mut self, now: Nanos, from: Node, packet: Packet, out: &mut Vec<MonOut>) {
        match packet {
            Packet::ToMon(mut event) => {
                if let Event::Cas { origin, .. } = &mut *event {
                    *origin = Origin(self.next_origin);
                    self.next_origin += 1;
                    self.origins.insert(*origin, from);
                }
                self.handle(now, *event, out);
            }
            Packet::Subscribe(generation, epoch) if self.state.is_some() => {
                self.subscribers.insert(from, (generation, epoch));
                self.publish(out);
            }
            _ => {}
        }
    }

    /// The connection to a node is lost: answers to what came over it go nowhere.
    pub fn on_reset(&mut self, node: Node) {
        self.subscribers.remove(&node);
        self.origins.retain(|_, to| *to != node);
    }

    /// Something happened, or an operator wants something.
    pub fn handle(&mut self, now: Nanos, event: Event, out: &mut Vec<MonOut>) {
        let Some(state) = &mut self.state else { return };
        let effects = state.handle(time(now), event);
        self.carry_out(effects, out);
        self.propose(now, out);
    }

    /// Changes the map as an operator's command does.
    pub fn operate(&mut self, now: Nanos, out: &mut Vec<MonOut>, change: impl FnOnce(&mut MapState, Now)) {
        if let Some(state) = &mut self.state {
            change(state, time(now));
            self.propose(now, out);
        }
    }

    fn propose(&mut self, now: Nanos, out: &mut Vec<MonOut>) {
        let Some(state) = &mut self.state else { return };
        let Some(proposal) = state.propose(time(now)) else { return };
        let view = proposal.incremental.map(|incremental| {
            let next = self.stored.last().expect("invariant: there is always a map").map.apply(&incremental);
            let next = next.expect("invariant: the incremental follows the committed map");
            Arc::new(MapView::new(next, Some(&incremental)))
        });
        self.committing = Some((proposal.number, view));
        out.push(MonOut::Commit);
    }

    /// The store has made the commit under way durable.
    pub fn committed(&mut self, now: Nanos, out: &mut Vec<MonOut>) {
        let Some((number, view)) = self.committing.take() else { return };
        if let Some(view) = view {
            self.store(view, out);
        }
        let Some(state) = &mut self.state else { return };
        let effects = state.committed(number);
        // Answers and maps race to the proposers; answers go first here, maps first where a link is slow.
        self.carry_out(effects, out);
        self.publish(out);
        self.propose(now, out);
    }

    fn carry_out(&mut self, effects: Vec<Effect>, out: &mut Vec<MonOut>) {
        for effect in effects {
            let Effect::CasReply { to, reply } = effect else { continue };
            if let Some(node) = self.origins.remove(&to) {
                out.push(MonOut::Send(node, Packet::Cas(reply)));
            }
        }
    }

    fn publish(&mut self, out: &mut Vec<MonOut>) {
        let view = self.view().clone();
        let stamp = (view.map.generation, view.map.epoch.0);
        for (node, has) in &mut self.subscribers {
            if *has < stamp {
                *has = stamp;
                out.push(MonOut::Send(*node, Packet::Map(view.clone())));
            }
        }
    }

    /// The map logic, while the process runs.
    pub fn state(&self) -> Option<&MapState> {
        self.state.as_ref()
    }

    /// How often time is told to the map logic.
    pub const TICK: Nanos = 250 * MILLI;
}

fn time(now: Nanos) -> Now {
    Now { mono_ms: now / MILLI, wall_ns: WALL + now }
}
