//! Options, messenger, authentication, logs, metrics, and the seams for clock and disk.
