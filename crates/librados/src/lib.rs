//! `librados.so.2` and `libradosstriper.so.1`, one library with two names: Ceph's C interfaces to a cluster and to its striped
//! objects, on Nacre's client.
//!
//! Every function of Ceph 16.2's libraries for C is exported with its name and symbol version, so that programs that are linked
//! with them (python3-rados and with it the `ceph` program, fio) run unchanged. Functions that Nacre does not support yet are
//! listed in one table ([`unsupported`]) and fail with EOPNOTSUPP.
//!
//! An entry point checks its arguments ([`abi`]), looks up the objects of its handles ([`handles`]), and calls the client. No
//! panic leaves it ([`guard`]). Unsafe code is in [`abi`] alone; elsewhere only the exported names are unsafe attributes.
//!
//! Errors are negated error numbers, as `librados.h` documents them. Buffers that are returned to callers come from `malloc`.

#![allow(unsafe_code, reason = "a C interface reads and writes its callers' memory and exports their names")]
#![deny(clippy::undocumented_unsafe_blocks)]

mod abi;
mod aio;
mod application;
mod client;
mod commands;
#[cfg(test)]
mod compatibility;
mod completion;
mod configure;
mod connect;
mod finisher;
mod guard;
mod handles;
mod ioctx;
mod iterators;
mod listing;
mod locks;
mod log;
mod log_subscription;
mod monitor_log;
mod ops;
mod pools;
mod read_op;
mod service;
mod service_registration;
mod settings;
mod slices;
mod snapshots;
mod striper;
mod sync_io;
mod unsupported;
mod versioned;
mod watch;
mod write_op;
mod xattrs;
