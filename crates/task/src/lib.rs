//! The environment of asynchronous code above the engine: time, tasks and random numbers.
//!
//! Code that takes an [`Env`] runs on a tokio runtime in production (the client crate makes such an environment) and on
//! the simulator's seeded executor with a virtual clock. The crate itself has no clock, no timers, no threads and no
//! source of randomness.
//!
//! Rules for code that is to be simulated:
//! - Time, tasks, timers and random numbers come from the [`Env`] alone: no `std::time`, no `tokio::time`, no
//!   `tokio::spawn`, no thread, no random number generator of its own.
//! - Channels, locks and semaphores of `tokio::sync` or `futures` may be used: they need no runtime.
//! - `select!` is written `biased`, and no result depends on the order of a `HashMap` with a random state: both draw from a
//!   generator that the seed does not cover.
//! - Nothing blocks its thread on another operation.

mod env;
mod error;
mod instant;
mod join;

pub use env::{BoxedTask, Env, Environment};
pub use error::{Error, Result};
pub use instant::Instant;
pub use join::{AbortHandle, AbortOnDrop, JoinHandle};
