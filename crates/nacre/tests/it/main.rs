//! Whole clusters of real processes over real sockets and disks, driven through the binary and the client.

#![allow(clippy::unwrap_used)]

mod backup;
mod bluestore_tool;
mod compatibility;
mod crushtool;
mod doc_commands;
mod docs;
mod failures;
mod formats;
mod layers;
mod librados;
mod librados_answers;
mod map_store;
mod notifications;
mod operations;
mod osdmaptool;
mod packages;
mod pages;
mod rados;
mod reference;
mod release;
mod rest_bench;
mod s3;
mod s3_access;
mod s3_admin;
mod s3_bench;
mod s3_check;
mod s3_classes;
mod s3_edges;
mod s3_encryption;
mod s3_faults;
mod s3_index_format;
mod s3_lifecycle;
mod s3_notifications;
mod s3_notifications_endpoints;
mod s3_notifications_faults;
mod s3_notifications_gateways;
mod s3_notifications_queues;
mod s3_notifications_removal;
mod s3_object_store;
mod s3_operation;
mod s3_programs;
mod s3_reshard;
mod s3_versions;
mod s3_zone;
mod security;
mod serve;
// The tests of crates/monitor use the rest of it.
#[allow(dead_code)]
#[path = "../../../monitor/tests/it/etcd_cluster.rs"]
mod etcd_cluster;
// The tests of crates/push use the rest of it.
#[allow(dead_code)]
#[path = "../../../push/tests/it/servers.rs"]
mod servers;
mod stores;
mod striper;
mod support;
mod tiers;
mod watch;
mod words;
