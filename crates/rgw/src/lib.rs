//! The S3 gateway: buckets and objects on generic RADOS operations, and the S3 protocol on top of them.
//!
//! All state is in RADOS (docs/format/rgw.md): a gateway holds nothing that another one, or its successor after a crash,
//! would need. It uses only what any RADOS cluster offers: compound operations with guards, omap, watch and notify. Any
//! number of gateways can serve one cluster.
//!
//! [`Gateway`] implements buckets and objects, [`s3`] the protocol, and [`server`] the listening side.

/// Counts allocations for tests that decode damaged input.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: nacre_fuzz::CountingAllocator = nacre_fuzz::CountingAllocator;

mod acl;
mod admin;
mod admin_api;
mod bucket;
pub mod caps;
mod check;
mod classes;
mod cors;
mod error;
mod evaluation;
mod forms;
#[cfg(test)]
mod fuzz;
mod garbage;
mod gateway;
mod iam;
mod index;
mod lease;
mod lifecycle;
mod log_limit;
mod metrics;
mod notifications;
mod object;
mod policy;
mod pools;
mod post_policy;
mod public_access;
mod quota;
mod ratelimit;
mod record;
mod role;
pub mod s3;
pub mod server;
mod session;
mod signature;
mod usage;
mod user;
mod zone;

pub use acl::{Acl, Grant, Grantee, Permission};
pub use admin::{UserStats, parse_epoch};
pub use bucket::{Bucket, UserBucketEntry, Versioning};
pub use check::{BucketInconsistency, CheckReport};
pub use error::{BodyFault, Error, Result};
pub use garbage::{GarbageRecord, GcResult};
pub use gateway::{Config, Gateway, UsageSettings};
pub use index::{IndexFormat, MAX_SHARDS, ReshardEntry};
pub use lifecycle::{Expired, LifecycleEntry, LifecycleStatus};
pub use metrics::Metrics;
pub use notifications::{DeadLetterAction, DeadLetters, Delivery, EndpointRules};
pub use quota::{Quota, QuotaChange, QuotaTtls, QuotaUsage};
pub use ratelimit::RateLimit;
pub use usage::UsageFilter;
pub use user::{AccessKey, DEFAULT_MAX_BUCKETS, User};
pub use zone::{DEFAULT_PLACEMENT, DEFAULT_STORAGE_CLASS, Zone};
