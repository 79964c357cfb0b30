//! Faults of single threads: a shard, or the control of an OSD, stalls at a call in the middle of a turn.

use super::FaultEvent;
use crate::bounds::Bound;
use crate::random::Random;
use crate::scenario::Fault;
use crate::schedule::{MICRO, MILLI, Nanos, SECOND};
use crate::stalls::{ACTORS, CONTROL, Call, StallOrder};
use crate::world::{World, WorldEvent};

/// The number of turns in which an actor may reach the call at which it is to stall.
const TURNS: u32 = 40;

/// The duration of a stall: usually that of a lock or a page fault, sometimes that of a lease.
fn duration(random: &mut Random, long: u32) -> Nanos {
    if random.chance(10 * long) {
        return random.range(2 * SECOND, 20 * SECOND);
    }
    match random.range(0, 100) {
        0..55 => random.range(MICRO, MILLI),
        55..85 => random.range(MILLI, 100 * MILLI),
        _ => random.range(100 * MILLI, 2 * SECOND),
    }
}

impl World {
    /// Orders that an actor of the OSD stalls in one of its next turns.
    pub(super) fn schedule_stall(&mut self, osd: u32, random: &mut Random) {
        let actor = random.index(ACTORS);
        let call = *random.pick(Call::ALL).expect("invariant: the list is not empty");
        let skip = random.range(0, 3) as u32;
        let lasts = duration(random, self.scenario.long_stalls);
        let day = 24 * 3_600 * SECOND;
        let jump = random.range(0, 2 * day) as i64 - day as i64;
        let jumps = random.chance(250) && self.scenario.faults.contains(&Fault::WallJump);
        let order = StallOrder { actor, call, skip, turns: TURNS, lasts, jump: jumps.then_some(jump) };
        self.osds[osd as usize].schedule_stall(Some(order));
    }

    /// An actor stalls.
    pub(crate) fn begin_stall(&mut self, osd: u32, order: StallOrder) {
        let StallOrder { actor, call, lasts, .. } = order;
        let name = if actor == CONTROL { "control".to_owned() } else { format!("shard {actor}") };
        self.say(format_args!("osd.{osd}: {name} stalls at {call} for {:.6} s", lasts as f64 / 1e9));
        *self.nemesis.struck.entry(Fault::Stall).or_default() += 1;
        self.reached.add(
            match call {
                Call::Clock => Bound::StallClock,
                Call::Read => Bound::StallRead,
                Call::Write => Bound::StallWrite,
                Call::Send => Bound::StallSend,
            },
            1,
        );
        self.reached.add(Bound::StallControl, u64::from(actor == CONTROL));
        let until = self.schedule.now() + lasts;
        self.nemesis.stalled.insert((osd, actor), until);
        let life = self.osds[osd as usize].life;
        self.schedule.at(until, WorldEvent::FaultEvent(FaultEvent::GoOn(osd, life, actor)));
    }

    /// An actor that stalls continues, unless its whole process is stopped.
    pub(super) fn end_stall(&mut self, osd: u32, life: u32, actor: usize) {
        let now = self.schedule.now();
        let is_due = self.nemesis.stalled.get(&(osd, actor)).is_some_and(|until| *until <= now);
        if !is_due || self.osds[osd as usize].life != life {
            return;
        }
        if let Some(until) = self.stopped_until(osd) {
            self.nemesis.stalled.insert((osd, actor), until);
            return self.schedule.at(until, WorldEvent::FaultEvent(FaultEvent::GoOn(osd, life, actor)));
        }
        self.resume_actor(osd, actor);
    }

    fn resume_actor(&mut self, osd: u32, actor: usize) {
        if self.nemesis.stalled.remove(&(osd, actor)).is_some() {
            self.say(format_args!("osd.{osd}: actor {actor} goes on"));
            let now = self.schedule.now();
            self.with_osd(osd, |osd, out| osd.resume_actor(now, actor, out));
        }
    }

    /// All actors continue, and orders are removed.
    pub(super) fn end_stalls(&mut self) {
        for osd in &mut self.osds {
            osd.schedule_stall(None);
        }
        for (osd, actor) in self.nemesis.stalled.keys().copied().collect::<Vec<_>>() {
            self.resume_actor(osd, actor);
        }
    }

    /// A process ends, so none of its actors stalls any more.
    pub(super) fn forget_stalls(&mut self, osd: u32) {
        self.osds[osd as usize].schedule_stall(None);
        self.nemesis.stalled.retain(|(of, _), _| *of != osd);
    }

    /// Whether an actor of the OSD stalls.
    pub(super) fn is_stalled(&self, osd: u32) -> bool {
        self.nemesis.stalled.keys().any(|(of, _)| *of == osd)
    }

    /// Until when an event has to wait for an actor that stalls. Data that arrives by sockets waits elsewhere: in the inbox
    /// of its shard, or in the socket.
    pub(super) fn waits_for_stalled(&self, happening: &WorldEvent) -> Option<Nanos> {
        match happening {
            WorldEvent::Turn(osd, _, shard) => self.nemesis.stalled.get(&(*osd, *shard)).copied(),
            _ => None,
        }
    }
}
