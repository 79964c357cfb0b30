//! Clients of notification endpoints: HTTP, Kafka and AMQP 0-9-1.
//!
//! They implement the seam of `nacre-notify` ([`nacre_notify::push`]). What may be connected to is decided by
//! [`nacre_topics::endpoint::EndpointPolicy`], at each connection and after host names are resolved.
