//! The S3 gateway: buckets and objects on generic RADOS operations, and S3's protocol over them.
//!
//! Everything is in RADOS (docs/format/rgw.md); a gateway holds nothing that another one, or the next one after a crash,
//! would need. It uses nothing but what any RADOS cluster offers: compound operations with guards, omap, watch and
//! notify. Any number of gateways serve one cluster side by side.
//!
//! [`Gateway`] is the buckets and objects; [`s3`] the protocol; [`server`] the listening side.

mod acl;
mod bucket;
mod cors;
mod error;
mod garbage;
mod gateway;
mod index;
mod object;
mod policy;
mod pools;
mod record;
pub mod s3;
pub mod server;
mod user;

pub use acl::{Acl, Grant, Grantee, Permission};
pub use bucket::{Bucket, OwnBucket, Versioning};
pub use error::{Error, Result};
pub use garbage::GarbageRecord;
pub use gateway::{Config, Gateway};
pub use user::{AccessKey, DEFAULT_MAX_BUCKETS, User};
