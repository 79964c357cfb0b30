//! The map authority over real connections, on its own store and on a real etcd.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod etcd;
mod etcd_cluster;
mod server;
mod site;
mod slow_store;
