//! shuttle's types with the methods of those that they stand for.

use shuttle::sync;
use std::future::poll_fn;
use std::ops::{Deref, DerefMut};
use std::task::{Poll, Waker};

/// What a lock says that is never poisoned: shuttle ends a test at the first panic.
const POISONED: &str = "invariant: a panic ends the test";

/// Like parking_lot's.
#[derive(Debug, Default)]
pub struct Mutex<T>(sync::Mutex<T>);

impl<T> Mutex<T> {
    /// Creates an unlocked mutex.
    pub fn new(value: T) -> Mutex<T> {
        Mutex(sync::Mutex::new(value))
    }

    /// Locks the mutex.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(Some(self.0.lock().expect(POISONED)))
    }
}

/// A locked [`Mutex`]. Empty only while [`Condvar::wait`] waits.
#[derive(Debug)]
pub struct MutexGuard<'a, T>(Option<sync::MutexGuard<'a, T>>);

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("invariant: not waiting")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("invariant: not waiting")
    }
}

/// Like parking_lot's.
#[derive(Debug, Default)]
pub struct Condvar(sync::Condvar);

impl Condvar {
    /// Creates a condition variable without waiting threads.
    pub fn new() -> Condvar {
        Condvar::default()
    }

    /// Unlocks the mutex until the condition variable is notified.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let locked = guard.0.take().expect("invariant: not waiting");
        guard.0 = Some(self.0.wait(locked).expect(POISONED));
    }

    /// Wakes all threads that wait.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// Like tokio's, for one task that waits.
#[derive(Debug, Default)]
pub struct Notify(Mutex<NotifyState>);

#[derive(Debug, Default)]
struct NotifyState {
    permit: bool,
    waiting: Option<Waker>,
}

impl Notify {
    /// Creates a state without a permit.
    pub fn new() -> Notify {
        Notify::default()
    }

    /// Wakes the task that waits, or gives a permit to the next one.
    pub fn notify_one(&self) {
        let waker = {
            let mut state = self.0.lock();
            state.permit = true;
            state.waiting.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Returns when there is a permit, and takes it.
    pub async fn notified(&self) {
        poll_fn(|context| {
            let mut state = self.0.lock();
            if std::mem::take(&mut state.permit) {
                return Poll::Ready(());
            }
            state.waiting = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}
