//! The clients against real servers.

mod amqp;
mod events;
mod http;
mod kafka;
mod servers;
