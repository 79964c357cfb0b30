//! Tests of the handle, with an environment that runs tasks by hand.

use super::*;
use std::sync::Mutex;
use std::task::{Context, Waker};

#[derive(Default)]
struct World {
    now: Duration,
    tasks: Vec<BoxedFuture>,
}

#[derive(Clone, Default)]
struct Manual(Arc<Mutex<World>>);

impl Environment for Manual {
    fn now(&self) -> Instant {
        Instant::from_origin(self.0.lock().unwrap().now)
    }

    fn wall(&self) -> SystemTime {
        UNIX_EPOCH + self.now().since_origin()
    }

    fn sleep_until(&self, at: Instant) -> BoxedFuture {
        let world = self.clone();
        Box::pin(poll_fn(move |_| if world.now() >= at { Poll::Ready(()) } else { Poll::Pending }))
    }

    fn spawn(&self, task: BoxedFuture) {
        self.0.lock().unwrap().tasks.push(task);
    }

    fn fill_random(&self, out: &mut [u8]) -> Result<()> {
        out.fill(7);
        Ok(())
    }
}

impl Manual {
    fn env(&self) -> Env {
        Env::new(self.clone())
    }

    fn advance(&self, by: Duration) {
        self.0.lock().unwrap().now += by;
    }

    /// Polls every task once.
    fn turn(&self) {
        let tasks = std::mem::take(&mut self.0.lock().unwrap().tasks);
        for mut task in tasks {
            if task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
                self.0.lock().unwrap().tasks.push(task);
            }
        }
    }

    fn tasks(&self) -> usize {
        self.0.lock().unwrap().tasks.len()
    }
}

fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Records that it was dropped.
struct Guard(Arc<Mutex<bool>>);

impl Drop for Guard {
    fn drop(&mut self) {
        *self.0.lock().unwrap() = true;
    }
}

#[test]
fn a_task_hands_its_outcome_to_who_joins_it() {
    let world = Manual::default();
    let mut handle = world.env().spawn(async { 42 });
    assert_eq!(poll(&mut handle), Poll::Pending);
    world.turn();
    assert_eq!(poll(&mut handle), Poll::Ready(Ok(42)));
}

#[test]
fn an_aborted_task_is_dropped_and_has_no_outcome() {
    let (world, dropped) = (Manual::default(), Arc::new(Mutex::new(false)));
    let guard = Guard(dropped.clone());
    let mut handle = world.env().spawn(async move {
        let _guard = guard;
        std::future::pending::<()>().await;
    });
    world.turn();
    assert!(!*dropped.lock().unwrap());
    handle.abort_handle().abort();
    world.turn();
    assert!(*dropped.lock().unwrap() && world.tasks() == 0);
    assert_eq!(poll(&mut handle), Poll::Ready(Err(Error::TaskLost)));
}

#[test]
fn a_dropped_handle_detaches_and_a_guarding_one_aborts() {
    let world = Manual::default();
    drop(world.env().spawn(std::future::pending::<()>()));
    drop(world.env().spawn(std::future::pending::<()>()).abort_on_drop());
    world.turn();
    assert_eq!(world.tasks(), 1);
}

#[test]
fn a_timeout_passes_after_its_limit_and_not_before() {
    let world = Manual::default();
    let env = world.env();
    let mut limited = env.spawn(env.timeout(Duration::from_secs(5), std::future::pending::<()>()));
    world.advance(Duration::from_millis(4_999));
    world.turn();
    assert_eq!(poll(&mut limited), Poll::Pending);
    world.advance(Duration::from_millis(1));
    world.turn();
    assert_eq!(poll(&mut limited), Poll::Ready(Ok(Err(Error::Elapsed))));
}

#[test]
fn a_future_that_is_ready_wins_over_a_limit_of_nothing() {
    let world = Manual::default();
    let env = world.env();
    let mut handle = world.env().spawn(async move { env.timeout(Duration::ZERO, async { 1 }).await });
    world.turn();
    assert_eq!(poll(&mut handle), Poll::Ready(Ok(Ok(1))));
}

#[test]
fn yielding_suspends_once() {
    let world = Manual::default();
    let env = world.env();
    let mut handle = world.env().spawn(async move { env.yield_now().await });
    world.turn();
    assert_eq!(poll(&mut handle), Poll::Pending);
    world.turn();
    assert_eq!(poll(&mut handle), Poll::Ready(Ok(())));
}

#[test]
fn jitter_is_below_its_limit() {
    let env = Manual::default().env();
    assert!(env.jitter(Duration::from_millis(3)) < Duration::from_millis(3));
    assert_eq!(env.jitter(Duration::ZERO), Duration::ZERO);
}
