//! OSDs over real sockets and stores, against the real map logic.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod it {
    mod admin;
    pub(crate) mod authority;
    mod bounds;
    pub(crate) mod cluster;
    mod copy;
    mod failures;
    mod io;
    mod resend;
    mod watch;
}
