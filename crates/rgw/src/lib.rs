//! The model of the S3 gateway: users, buckets and objects on generic RADOS operations. `nacre-s3` is the protocol on top.
//!
//! All state is in RADOS (docs/format/rgw.md): a gateway holds nothing that another one, or its successor after a crash,
//! would need. It uses only what any RADOS cluster offers: compound operations with guards, omap, watch and notify. Any
//! number of gateways can serve one cluster.
//!
//! Each part of a gateway owns the state that it needs, and its tests build it alone. [`Gateway`] creates the parts, and has the
//! operations that concern several of them.

/// Counts allocations for tests that decode damaged input.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: nacre_fuzz::CountingAllocator = nacre_fuzz::CountingAllocator;

pub mod acl;
pub mod admin;
pub mod bucket;
mod bucket_ops;
pub mod caps;
mod check;
mod connection;
mod crypt;
pub mod error;
mod execute;
#[cfg(test)]
mod fuzz;
pub mod garbage;
pub mod gateway;
pub mod index;
mod last_commits;
mod lease;
pub mod lifecycle;
pub mod lifecycle_worker;
mod message;
pub mod notifications;
mod notifying_buckets;
pub mod object;
mod peers;
pub mod policy;
mod pool_creation;
mod pools;
pub mod public_access;
pub mod quota;
mod quota_cache;
mod quota_enforcer;
pub mod ratelimit;
mod record;
pub mod role;
pub mod session;
pub mod shards;
pub mod spawn;
pub mod sse_secret;
pub mod storage_classes;
pub mod stored;
#[cfg(test)]
mod testing;
pub mod time;
pub mod topics;
pub mod uploads;
pub mod usage;
pub mod user;
mod user_buckets;
pub mod zone;

pub use acl::{Acl, Grant, Grantee, Permission};
pub use admin::{UserStats, parse_epoch};
pub use bucket::{Bucket, Buckets, IndexFormat, Versioning};
pub use check::{BucketChecker, BucketInconsistency, CheckReport};
pub use error::{BodyFault, Error, Result};
pub use garbage::{GarbageRecord, GcResult};
pub use gateway::{Config, Gateway, UsageSettings};
pub use index::{MAX_SHARDS, ReshardEntry};
pub use lifecycle_worker::{LifecycleCounts, LifecycleEntry, LifecycleStatus};
pub use notifications::DeliveryConfig;
pub use quota::{Quota, QuotaChange, QuotaTtls, QuotaUsage};
pub use ratelimit::RateLimit;
pub use topics::{DeadLetterAction, DeadLetterSelection, EndpointRules, Topics};
pub use usage::UsageFilter;
pub use user::{AccessKey, DEFAULT_MAX_BUCKETS, User};
pub use user_buckets::{UserBucketEntry, UserBuckets};
pub use zone::{DEFAULT_PLACEMENT, DEFAULT_STORAGE_CLASS, Zone};
