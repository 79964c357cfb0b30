//! The commands that are not daemons. Each has the argument syntax of Ceph's program of the same name.

pub(crate) mod backup;
pub(crate) mod bench;
pub(crate) mod bluestore_tool;
pub(crate) mod ceph;
pub(crate) mod compatibility;
pub(crate) mod crushtool;
pub(crate) mod doctor;
pub(crate) mod dplcompat;
mod formatter;
mod hexdump;
pub(crate) mod kvstore_tool;
mod latency;
pub(crate) mod map_store;
mod obj_bencher;
pub(crate) mod osdmaptool;
mod output;
pub(crate) mod pages;
pub(crate) mod rados;
pub(crate) mod radosgw_admin;
pub(crate) mod rest_bench;
mod s3_client;
mod session;
mod steady;
mod tool_options;
pub(crate) mod vstart;
