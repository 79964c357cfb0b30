//! Faults of single processes and of what they depend on: stops in the middle of a turn, orderly shutdowns, disks that hang
//! or are replaced, wall clocks that jump; and maps that do not arrive.

use super::FaultEvent;
use crate::network::Node;
use crate::packet::Packet;
use crate::random::{Random, Stream};
use crate::scenario::Fault;
use crate::schedule::{MILLI, Nanos, SECOND};
use crate::world::{World, WorldEvent};
use std::collections::BTreeSet;

/// How long an OSD that shuts down waits for a map that shows it down (`osd_mon_shutdown_timeout`).
const STOP_TIMEOUT: Nanos = 5 * SECOND;
/// How often it checks the map.
const STOP_LOOK: Nanos = 10 * MILLI;

/// A process that is to be stopped.
#[derive(Clone, Copy, Debug)]
pub(super) struct StopOrder {
    /// The number of messages after which it is stopped.
    after: u64,
    /// The duration of the stop.
    lasts: Nanos,
}

/// A process that is stopped.
#[derive(Debug)]
pub(super) struct Stopped {
    until: Nanos,
    /// The messages of the interrupted turn that are not sent yet.
    unsent: Vec<(Node, Packet)>,
}

impl World {
    /// Orders that the OSD's process is stopped after it has sent some more messages.
    pub(super) fn schedule_stop(&mut self, osd: u32, random: &mut Random) {
        let long = if random.chance(300) { 15 } else { 4 };
        let order = StopOrder { after: random.range(0, 8), lasts: random.range(50 * MILLI, long * SECOND) };
        let may = self.osds[osd as usize].is_running() && !self.nemesis.stopped_osds.contains_key(&osd);
        if may {
            self.nemesis.stop_orders.insert(osd, order);
        }
    }

    /// Sends a message of an OSD; the messages of a stopped one wait until it continues.
    pub(crate) fn send_unless_stopped(&mut self, osd: u32, to: Node, packet: Packet) {
        if self.nemesis.stop_orders.is_empty() && self.nemesis.stopped_osds.is_empty() {
            return self.send(Node::Osd(osd), to, packet);
        }
        if let Some(order) = self.nemesis.stop_orders.get_mut(&osd) {
            if order.after > 0 {
                order.after -= 1;
            } else {
                let until = self.schedule.now() + order.lasts;
                self.say(format_args!("osd.{osd} is stopped in the middle of a turn"));
                *self.nemesis.struck.entry(Fault::Pause).or_default() += 1;
                self.nemesis.stop_orders.remove(&osd);
                self.nemesis.stopped_osds.insert(osd, Stopped { until, unsent: Vec::new() });
                let life = self.osds[osd as usize].life;
                self.schedule.at(until, WorldEvent::FaultEvent(FaultEvent::Continue(osd, life)));
            }
        }
        match self.nemesis.stopped_osds.get_mut(&osd) {
            Some(stopped) => stopped.unsent.push((to, packet)),
            None => self.send(Node::Osd(osd), to, packet),
        }
    }

    /// A stopped process continues.
    pub(super) fn resume_osd(&mut self, osd: u32) {
        let Some(stopped) = self.nemesis.stopped_osds.remove(&osd) else { return };
        self.say(format_args!("osd.{osd} goes on"));
        for (to, packet) in stopped.unsent {
            self.send(Node::Osd(osd), to, packet);
        }
    }

    /// A process ends, so its stop has no effect any more.
    pub(super) fn forget_stop(&mut self, osd: u32) {
        self.nemesis.stop_orders.remove(&osd);
        self.nemesis.stopped_osds.remove(&osd);
        self.forget_stalls(osd);
    }

    /// Whether the OSD's process is stopped.
    pub(super) fn is_osd_stopped(&self, osd: u32) -> bool {
        self.nemesis.stopped_osds.contains_key(&osd)
    }

    /// Until when the OSD's process is stopped.
    pub(super) fn stopped_until(&self, osd: u32) -> Option<Nanos> {
        self.nemesis.stopped_osds.get(&osd).map(|stopped| stopped.until)
    }

    /// Until when an event has to wait for a stopped process, or for an actor that stalls.
    pub(crate) fn waits_for_stopped(&self, happening: &WorldEvent) -> Option<Nanos> {
        if self.nemesis.stopped_osds.is_empty() && self.nemesis.stalled.is_empty() {
            return None;
        }
        self.waits_for_process(happening).max(self.waits_for_stalled(happening))
    }

    fn waits_for_process(&self, happening: &WorldEvent) -> Option<Nanos> {
        let of = |node: Node| match node {
            Node::Osd(osd) => self.stopped_until(osd),
            _ => None,
        };
        match happening {
            WorldEvent::Deliver(link) => of(link.to),
            WorldEvent::Flushed(osd, ..)
            | WorldEvent::Turn(osd, ..)
            | WorldEvent::OsdTick(osd, _)
            | WorldEvent::SessionTime(osd, _) => of(Node::Osd(*osd)),
            _ => None,
        }
    }

    /// An OSD starts an orderly shutdown.
    pub(super) fn begin_to_stop(&mut self, osd: u32, random: &mut Random) -> bool {
        let wait = random.range(200 * MILLI, 5 * SECOND);
        if !self.osds[osd as usize].is_running() || self.is_osd_stopped(osd) {
            self.schedule.after(wait, WorldEvent::OsdStart(osd));
            return false;
        }
        let now = self.schedule.now();
        self.with_osd(osd, |osd, out| osd.begin_to_stop(now, out));
        let life = self.osds[osd as usize].life;
        self.later(0, FaultEvent::Stop { osd, life, deadline: now + STOP_TIMEOUT, wait });
        true
    }

    /// An OSD that shuts down ends once the map shows it down.
    pub(super) fn finish_shutdown(&mut self, osd: u32, life: u32, deadline: Nanos, wait: Nanos) {
        let now = self.schedule.now();
        let ending = &self.osds[osd as usize];
        if ending.life != life {
            return self.schedule.after(wait, WorldEvent::OsdStart(osd));
        }
        let is_awaited = ending.is_up_in_map() && now < deadline;
        // The store is flushed before the process ends.
        let waits = self.is_osd_stopped(osd) || self.is_stalled(osd);
        if is_awaited || waits || self.nemesis.disk_hung_until(osd) > now {
            return self.later(STOP_LOOK, FaultEvent::Stop { osd, life, deadline, wait });
        }
        self.say(format_args!("osd.{osd} stops"));
        self.forget_stop(osd);
        self.with_osd(osd, |osd, out| osd.close_sessions(now, out));
        self.with_osd(osd, |osd, out| osd.stop(now, out));
        self.check_contents(osd);
        self.lose_sockets(Node::Osd(osd), true);
        self.schedule.after(wait, WorldEvent::OsdStart(osd));
    }

    /// A disk hangs; if that lasts, its OSD's watchdog ends the OSD.
    pub(super) fn hang_disk(&mut self, osd: u32, random: &mut Random) -> bool {
        let lasts = random.range(2 * SECOND, 20 * SECOND);
        let ends = random.chance(400).then(|| random.range(SECOND, lasts));
        if !self.osds[osd as usize].is_running() {
            return false;
        }
        self.nemesis.hung_disks.insert(osd, self.schedule.now() + lasts);
        if let Some(wait) = ends {
            let life = self.osds[osd as usize].life;
            self.later(wait, FaultEvent::Watchdog(osd, life));
            self.schedule.after(lasts, WorldEvent::OsdStart(osd));
        }
        true
    }

    /// The watchdog ends an OSD whose disk hangs.
    pub(super) fn end_by_watchdog(&mut self, osd: u32, life: u32) {
        if !self.nemesis.calm && self.osds[osd as usize].life == life {
            let kind = Fault::StuckDisk as u8;
            let mut random = Random::new(self.disk_random.bits(), Stream::Fault(kind));
            self.kill(osd, &mut random);
        }
    }

    /// A wall clock jumps.
    pub(super) fn jump_wall_clock(&mut self, random: &mut Random) {
        let hour = 3_600 * SECOND;
        let ahead = random.range(0, 48 * hour) as i64 - 24 * hour as i64;
        let who = random.index(self.osds.len() + 1);
        match self.osds.get_mut(who) {
            Some(osd) => osd.wall_ahead = ahead,
            None => self.monitor.wall_ahead = ahead,
        }
    }

    /// Maps of some nodes are late or lost for a while.
    pub(super) fn withhold_maps(&mut self, random: &mut Random) {
        let osds = (0..self.osds.len() as u32).map(Node::Osd);
        let nodes = osds.chain((0..self.clients.len() as u32).map(Node::Client));
        let hit: BTreeSet<Node> = nodes.filter(|_| random.chance(400)).collect();
        if random.chance(500) {
            self.monitor.trouble.late.extend(&hit);
        } else {
            let counts: Vec<u32> = hit.iter().map(|_| random.range(1, 4) as u32).collect();
            self.monitor.trouble.losing.extend(hit.iter().copied().zip(counts));
        }
        self.later(random.range(SECOND, 8 * SECOND), FaultEvent::MapsAgain(hit));
    }

    /// Maps reach these nodes again; a connection that lost the last one breaks.
    pub(super) fn send_maps_again(&mut self, nodes: &BTreeSet<Node>) {
        let missed = self.monitor.take_missed_maps(nodes);
        *self.nemesis.struck.entry(Fault::MapGap).or_default() += missed;
        let mut broken = Vec::new();
        self.with_monitor(|monitor, out| broken = monitor.resume_publishing(nodes, out));
        for node in broken {
            self.lose(node, Node::Mon);
        }
    }
}
