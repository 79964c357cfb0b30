//! Calls that take time: the thread of an actor stalls in the middle of a turn, while everything else continues.
//!
//! A shard and the control of an OSD access the world by a few calls: they read the clock, read the store, write to it, and
//! send. A turn of an actor with a [`StallOrder`] runs on its own thread. At the call that the order names, the thread waits
//! until the simulation, which continues meanwhile, lets it continue: it then reads the clock and shared state as they are at
//! that time. Only one of the threads runs at any time, so that a run is a function of its seed.

use crate::schedule::Nanos;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

/// Shards of an OSD, as in its options.
pub const SHARDS: usize = 2;
/// The index of an OSD's control among its actors; lower indices are its shards.
pub const CONTROL: usize = SHARDS;
/// The number of actors of an OSD.
pub const ACTORS: usize = CONTROL + 1;

/// A kind of call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// A clock is read.
    Clock,
    /// The store is read.
    Read,
    /// The store is written to.
    Write,
    /// Something is sent.
    Send,
}

impl Call {
    /// All kinds.
    pub const ALL: &[Call] = &[Call::Clock, Call::Read, Call::Write, Call::Send];
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Call::Clock => "reading the clock",
            Call::Read => "reading the store",
            Call::Write => "writing to the store",
            Call::Send => "sending",
        })
    }
}

/// An order that an actor stalls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StallOrder {
    /// The actor.
    pub actor: usize,
    /// The kind of call at which it stalls.
    pub call: Call,
    /// The number of such calls in the turn that are skipped.
    pub skip: u32,
    /// The order expires after this number of turns without the call.
    pub turns: u32,
    /// The duration of the stall.
    pub lasts: Nanos,
    /// If the wall clock jumps during the stall: its lead over the others' afterwards.
    pub jump: Option<i64>,
}

impl StallOrder {
    /// The order after a turn without the call; `None` if it has expired.
    pub(crate) fn after_a_turn(self) -> Option<StallOrder> {
        let turns = self.turns.saturating_sub(1);
        (turns > 0).then_some(StallOrder { turns, ..self })
    }
}

/// A report of a turn's thread.
enum Told {
    /// It stalls.
    Stalls,
    /// The turn is over, with the number of rules that were broken on purpose.
    Over(u64),
}

/// The call at which the turn on this thread will stall.
struct Ahead {
    actor: usize,
    call: Call,
    skip: u32,
    told: SyncSender<Told>,
    go_on: Receiver<()>,
}

/// The cause for unwinding a thread: its process has died.
struct Died;

thread_local! {
    static AHEAD: RefCell<Option<Ahead>> = const { RefCell::new(None) };
    /// When the turn on this thread began: on the machine's clock, and in true time.
    static BEGAN: Cell<Option<(Nanos, Nanos)>> = const { Cell::new(None) };
    /// Rules broken on purpose by turns that ran on their own threads.
    static BREACHES: Cell<u64> = const { Cell::new(0) };
}

/// Called when an actor makes a call. The caller must hold no lock that others need to continue.
pub fn stall_point(call: Call) {
    pass_if(call, |_| true);
}

/// Called when a shard reads the wall clock. Exempts control, which reads it while it inspects shards that would have to wait.
pub(crate) fn wall_clock_stall_point() {
    pass_if(Call::Clock, |actor| actor != CONTROL);
}

fn pass_if(call: Call, may: impl FnOnce(usize) -> bool) {
    let here = AHEAD.with_borrow_mut(|place| {
        let ahead = place.as_mut().filter(|ahead| ahead.call == call && may(ahead.actor))?;
        if ahead.skip > 0 {
            ahead.skip -= 1;
            return None;
        }
        place.take()
    });
    if let Some(Ahead { told, go_on, .. }) = here
        && (told.send(Told::Stalls).is_err() || go_on.recv().is_err())
    {
        std::panic::resume_unwind(Box::new(Died));
    }
}

/// The true time of the clock reading `local`, which the actor on this thread has read in its turn; `now` if it has read it after a stall.
pub(crate) fn true_time(local: Nanos, now: Nanos) -> Nanos {
    match BEGAN.get() {
        Some((then, began)) if local <= then => began,
        _ => now,
    }
}

/// The number of rules broken on purpose by turns that ran on their own threads, since the last call.
pub fn take_breaches() -> u64 {
    BREACHES.take()
}

/// A turn that stalls at a call.
pub(crate) struct Stalled {
    /// The order that caused the stall.
    pub(crate) order: StallOrder,
    thread: JoinHandle<()>,
    told: Receiver<Told>,
    go_on: SyncSender<()>,
}

impl Stalled {
    /// Runs a turn that began at these times on the machine's clock and in true time; `None` if it ends without the call.
    pub(crate) fn run(
        order: StallOrder,
        began: (Nanos, Nanos),
        turn: impl FnOnce() + Send + 'static,
    ) -> Option<Stalled> {
        let (tell, told) = sync_channel(1);
        let (go_on, wait) = sync_channel(1);
        let ahead =
            Ahead { actor: order.actor, call: order.call, skip: order.skip, told: tell.clone(), go_on: wait };
        let thread = thread::Builder::new().spawn(move || {
            AHEAD.set(Some(ahead));
            BEGAN.set(Some(began));
            turn();
            AHEAD.set(None);
            // There is no receiver if the process has died.
            let _ = tell.send(Told::Over(nacre_pg::take_breaches()));
        });
        let thread = thread.expect("invariant: a thread more can be had");
        Stalled { order, thread, told, go_on }.proceed()
    }

    /// Lets the thread continue to the end of its turn.
    pub(crate) fn go_on(self) {
        // If the thread has ended, `proceed` notices that.
        let _ = self.go_on.send(());
        assert!(self.proceed().is_none(), "invariant: a turn stalls once");
    }

    fn proceed(self) -> Option<Stalled> {
        match self.told.recv() {
            Ok(Told::Stalls) => return Some(self),
            Ok(Told::Over(breaches)) => BREACHES.set(BREACHES.get() + breaches),
            Err(_) => {}
        }
        // A panic in a turn is a failure of the run.
        self.thread.join().unwrap_or_else(|cause| std::panic::resume_unwind(cause));
        None
    }

    /// The process dies in the middle of the turn.
    pub(crate) fn die(self) {
        drop(self.go_on);
        // It unwinds with `Died`.
        let _ = self.thread.join();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn order(call: Call, skip: u32) -> StallOrder {
        StallOrder { actor: 0, call, skip, turns: 2, lasts: 1, jump: None }
    }

    /// Reads the clock, then sends twice; counts its steps.
    fn turn(steps: &Arc<AtomicU64>) -> impl FnOnce() + Send + 'static {
        let steps = Arc::clone(steps);
        move || {
            for call in [Call::Clock, Call::Send, Call::Send] {
                stall_point(call);
                steps.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    #[test]
    fn a_turn_waits_at_the_call_that_its_order_names() {
        for (call, skip, before) in [(Call::Clock, 0, 0), (Call::Send, 0, 1), (Call::Send, 1, 2)] {
            let steps = Arc::default();
            let stalled = Stalled::run(order(call, skip), (0, 0), turn(&steps));
            assert_eq!(steps.load(Ordering::Relaxed), before, "{call}");
            stalled.expect("invariant: the turn makes this call").go_on();
            assert_eq!(steps.load(Ordering::Relaxed), 3);
        }
    }

    #[test]
    fn a_turn_without_the_call_ends_and_orders_become_void() {
        let steps = Arc::default();
        assert!(Stalled::run(order(Call::Read, 0), (0, 0), turn(&steps)).is_none());
        assert!(Stalled::run(order(Call::Send, 2), (0, 0), turn(&steps)).is_none());
        assert_eq!(steps.load(Ordering::Relaxed), 6);
        let left = order(Call::Read, 0).after_a_turn();
        assert_eq!(left.map(|left| left.turns), Some(1));
        assert_eq!(left.and_then(StallOrder::after_a_turn), None);
    }

    #[test]
    fn a_turn_whose_process_dies_goes_no_further() {
        let steps = Arc::default();
        let stalled = Stalled::run(order(Call::Send, 0), (0, 0), turn(&steps));
        stalled.expect("invariant: the turn sends").die();
        assert_eq!(steps.load(Ordering::Relaxed), 1);
        // Without an order no call takes time.
        turn(&steps)();
        assert_eq!(steps.load(Ordering::Relaxed), 4);
    }

    #[test]
    fn a_time_read_before_the_stall_is_the_beginning_of_the_turn() {
        BEGAN.set(Some((1_000, 7)));
        assert_eq!((true_time(1_000, 90), true_time(1_083, 90)), (7, 90));
        BEGAN.set(None);
        assert_eq!(true_time(1_000, 90), 90);
    }
}
