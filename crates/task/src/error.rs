//! Errors of timeouts, tasks and random numbers.

/// An error of this crate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The allowed time passed before the future completed. Operations that it started may continue or have taken effect.
    #[error("the time allowed has passed")]
    Elapsed,
    /// The task was aborted, panicked, or its environment ended: it has no result.
    #[error("the task ended without an outcome")]
    TaskLost,
    /// The system provided no random numbers, for this reason.
    #[error("no random numbers: {0}")]
    NoRandomNumbers(String),
}

/// The crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;
