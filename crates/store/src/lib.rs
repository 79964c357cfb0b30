//! The ObjectStore trait and its implementations.
