//! Why time, a task or a random number was not to be had.

/// An error of this crate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The time allowed passed before the future completed. What it had started may go on or have taken effect.
    #[error("the time allowed has passed")]
    Elapsed,
    /// The task was aborted, panicked, or its environment ended: it has no outcome.
    #[error("the task ended without an outcome")]
    TaskLost,
    /// The system gave no random numbers; it says why.
    #[error("no random numbers: {0}")]
    NoRandomNumbers(String),
}

/// The crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;
