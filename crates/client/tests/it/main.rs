//! The native engine against a small fake cluster that speaks the real protocol over loopback.

mod fake;
mod session;
mod transfer;
