//! The environment of asynchronous code above the engine: time, tasks and random numbers.
//!
//! Code that takes an [`Env`] runs on a tokio runtime in production (the client crate makes such an environment) and on
//! the simulator's seeded executor with a virtual clock. The crate itself has no clock, no timers, no threads and no
//! source of randomness.
//!
//! Rules for code that is to be simulated:
//! - Time, tasks, timers and random numbers come only from the [`Env`]: no `std::time`, no `tokio::time`, no `tokio::spawn`, no
//!   threads, no other random number generator.
//! - Channels, locks and semaphores of `tokio::sync` or `futures` are allowed: they need no runtime.
//! - `select!` is `biased`, and no result depends on the order of a `HashMap` with a random state: both use a generator that
//!   the seed does not control.
//! - Nothing blocks its thread on another operation.

mod env;
mod error;
mod instant;
mod join;

pub use env::{BoxedFuture, Env, Environment};
pub use error::{Error, Result};
pub use instant::Instant;
pub use join::{AbortHandle, AbortOnDrop, JoinHandle};
