//! Inputs, outputs and stored values of built-in object classes, in Ceph's encodings: what clients send and OSDs store.

pub mod lock;
pub mod refcount;
pub mod version;
