//! Ids, OSDMap, op and transaction encodings: the types that all other crates share.
//!
//! Pure data and pure functions: no I/O, no clock, no randomness. Everything that is sent or persisted is defined here or in
//! `pg`, and has a version (see [`encoding`]); CRUSH maps, in Ceph's format, are defined in `crush`.

pub mod caps;
pub mod ceph;
pub mod cls;
pub mod command;
pub mod compound;
pub mod crc32c;
pub mod encoding;
pub mod errno;
pub mod hash;
pub mod id_map;
pub mod ids;
pub mod msg;
pub mod object;
pub mod op;
pub mod osdmap;
pub mod payload;
pub mod placement;
pub mod pool;
pub mod stats;
pub mod support_level;
pub mod tier;
pub mod time;
pub mod txn;
pub mod upmap;

pub use ids::{ClientId, EntityName, Epoch, Eversion, Incarnation, Interval, OsdId, PgId, PoolId, ReqId};
pub use object::ObjectId;
