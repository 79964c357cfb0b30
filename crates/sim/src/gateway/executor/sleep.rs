//! Timers of tasks.

use super::Scheduler;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// The executor's record of a timer.
#[derive(Default)]
pub(super) struct Timer {
    fired: bool,
    waker: Option<Waker>,
}

impl Timer {
    /// Fires the timer. Returns the waker of the task that waits for it.
    pub(super) fn fire(&mut self) -> Option<Waker> {
        self.fired = true;
        self.waker.take()
    }
}

/// Completes when its timer has fired.
pub(super) struct Sleep {
    scheduler: Scheduler,
    timer: u64,
}

impl Sleep {
    pub(super) fn new(scheduler: Scheduler, timer: u64) -> Sleep {
        Sleep { scheduler, timer }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let waker = cx.waker().clone();
        let (fired, replaced) = {
            let mut state = self.scheduler.shared.state.lock();
            match state.timers.get_mut(&self.timer) {
                Some(timer) if timer.fired => (true, Some(waker)),
                Some(timer) => (false, timer.waker.replace(waker)),
                None => (false, Some(waker)),
            }
        };
        // Wakers of combinators may own futures, so they are dropped without the lock.
        drop(replaced);
        if fired { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        let timer = self.scheduler.shared.state.lock().timers.remove(&self.timer);
        drop(timer);
    }
}
