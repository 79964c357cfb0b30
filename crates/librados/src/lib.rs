//! `librados.so.2` and `libradosstriper.so.1`, one library by two names: Ceph's C interfaces to a cluster and to its
//! striped objects, on Nacre's client.
//!
//! Every function of Ceph 16.2's libraries for C is exported under its name and symbol version, so that programs that are
//! linked with it (python3-rados and with it the `ceph` program, fio) run unchanged. What Nacre can't do yet is listed in
//! one table ([`unsupported`]) and fails with EOPNOTSUPP.
//!
//! An entry point does three things: it checks its arguments ([`abi`]), turns its handles into what they stand for
//! ([`handles`]), and calls the client. No panic leaves it ([`guard`]). Unsafe code is in [`abi`] alone; elsewhere only
//! the exported names are unsafe attributes.
//!
//! Errors are negated error numbers, as `librados.h` documents them. Buffers that are handed out come from `malloc`.

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
mod monitor_log;
mod ops;
mod pools;
mod read_op;
mod service;
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
