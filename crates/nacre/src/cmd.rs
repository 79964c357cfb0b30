//! The commands that `nacre` is called with, one module each.

pub(crate) mod crushtool;
