//! CRUSH: the placement of replicas for a seed, and the data that describes it.
//!
//! Owns the map's model ([`CrushMap`]), the placement function ([`CrushMap::do_rule`], in [`mapper`]), Ceph's binary format
//! ([`codec`], byte tables in `docs/format/crushmap.md`), which serde uses too, and the edits of the map authority and
//! `crushtool` ([`edit`], [`classes`], [`rules`]).
//!
//! Invariants: placement is bit-exact with Ceph 16.2; `buckets[i]` holds the bucket of id `-1 - i` or nothing; a map that was
//! decoded or built here has no cycles and no item that names a missing bucket; choose_args fit their buckets.
//!
//! The crate is pure: no I/O, no clock, no threads, no randomness. It does not know OSDs' states, pools and PGs: weights, seeds
//! and ids are arguments.

pub mod bucket_body;
pub mod classes;
pub mod codec;
pub mod dump;
pub mod edit;
mod ln_table;
pub mod mapper;
mod model;
mod reclassify;
pub mod remap;
pub mod rjenkins;
pub mod rules;
pub mod text;

pub use codec::CrushDecodeError;
pub use dump::TreeItem;
pub use edit::{CrushError, Location, is_valid_name, weight_from_f32};
pub use mapper::Workspace;
pub use model::{
    Bucket, BucketAlg, BucketBody, ChooseArg, ChooseArgs, CrushMap, DEFAULT_CHOOSE_ARGS, ITEM_NONE,
    LEGACY_ALLOWED_BUCKET_ALGS, MAX_BUCKETS, MAX_DEVICES, Rule, RuleType, Step, StepOp, Tunables,
    TunablesProfile, WEIGHT_ONE,
};
pub use reclassify::BucketMatch;
pub use rjenkins::{hash32_1, hash32_2, hash32_3, hash32_4, hash32_5};
pub use text::CompileError;

#[cfg(test)]
mod tests;
