//! Whole clusters of real processes over real sockets and disks, driven through the binary and the client.

mod layers;
mod support;
