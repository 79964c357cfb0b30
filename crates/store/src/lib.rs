//! The on-disk stores, BlueStore and FileStore, with their metadata in RocksDB, and the tools for them.
//!
//! [`ObjectStore`] in `nacre-objectstore`, which also contains MemStore, defines what a store is and guarantees. This crate
//! re-exports its names for code that opens stores.

/// Counts allocations for the tests that damage records.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: nacre_fuzz::CountingAllocator = nacre_fuzz::CountingAllocator;

pub mod archive;
mod blue;
mod build_check;
mod error;
mod file;
mod kv;
mod watched;

pub use blue::{
    BlueStore, BlueStoreConfig, BlueStoreCounters, FillPlan, FsckFinding, FsckReport, LabelInfo,
    RecoveredAllocation, RepairReport, ScanStats,
};
pub use build_check::{BuildCheck, SLOW_ITERATOR_STEP, build_warnings};
pub use file::{FileFinding, FileFsckReport, FileStore, FileStoreConfig, FileStoreCounters};
pub use kv::{KvCopyStats, KvKind, KvSize, KvStore, KvUsage};
pub use nacre_common::options::{ChecksumType, CompressionAlgorithm, CompressionMode};
pub use nacre_objectstore::{
    AllocationSource, CommitSink, CommitWaiter, Completion, DataOptions, FreeSpace, IgnoreEvents,
    MAX_OBJECT_BYTES, MemStore, MemStoreConfig, MountReport, ObjectStat, ObjectStore, Page, PoolUsage,
    ReadStore, Result, ScanProgress, SpaceReservation, Statfs, StoreError, StoreEvents, available_memory,
};
