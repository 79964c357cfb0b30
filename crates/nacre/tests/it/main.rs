//! Whole clusters of real processes over real sockets and disks, driven through the binary and the client.

#![allow(clippy::unwrap_used)]

mod crushtool;
mod layers;
mod support;
