//! The S3 protocol on a [`Gateway`](nacre_rgw::Gateway): what clients send, who they are, what they may do, and how results
//! are expressed to them.
//!
//! [`ops`] implements S3's operations, `iam`, `topics` and `admin_api` the APIs beside it, and [`server`] the listening
//! side. Buckets, objects and users are in `nacre-rgw`, which knows neither HTTP requests nor XML.

/// Counts allocations for tests that decode damaged input.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: nacre_fuzz::CountingAllocator = nacre_fuzz::CountingAllocator;

mod admin_api;
mod caller;
mod conditions;
mod cors;
mod evaluation;
mod forms;
#[cfg(test)]
mod fuzz;
mod iam;
mod log_limit;
mod metrics;
mod notification_config;
pub mod ops;
mod post_policy;
mod query_api;
mod request;
mod response;
pub mod server;
mod signature;
mod tags;
mod topics;

pub use metrics::Metrics;
