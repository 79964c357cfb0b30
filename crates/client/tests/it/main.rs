//! The native engine against a small fake cluster that speaks the real protocol over loopback.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod fake;
mod session;
mod transfer;
mod watch;
