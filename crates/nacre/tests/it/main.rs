//! Whole clusters of real processes over real sockets and disks, driven through the binary and the client.

#![allow(clippy::unwrap_used)]

mod backup;
mod bluestore_tool;
mod crushtool;
mod docs;
mod failures;
mod layers;
mod librados;
mod operations;
mod osdmaptool;
mod pages;
mod rados;
mod reference;
mod s3;
mod security;
mod serve;
mod stores;
mod striper;
mod support;
mod watch;
