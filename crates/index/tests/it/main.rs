//! The protocol, explored: see `model`.

#![allow(clippy::unwrap_used)]

mod gateway;
mod model;
mod rados;
