//! The clients against real servers.

#![allow(clippy::unwrap_used)]

mod amqp;
mod events;
mod http;
mod kafka;
mod servers;
