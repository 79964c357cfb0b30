//! Locks, threads and wakeups of code whose interleavings are tested: the usual ones, or with `cfg(shuttle)` those of shuttle,
//! which runs a test under thousands of schedules and reports deadlocks (`scripts/shuttle`).

#[cfg(shuttle)]
mod explored;

#[cfg(shuttle)]
pub use {
    explored::{Condvar, Mutex, MutexGuard, Notify},
    shuttle::sync::{atomic, mpsc},
    shuttle::{thread, thread_local},
};
#[cfg(not(shuttle))]
pub use {
    parking_lot::{Condvar, Mutex},
    std::sync::{atomic, mpsc},
    std::{thread, thread_local},
    tokio::sync::Notify,
};
