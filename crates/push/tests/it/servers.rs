//! Servers that tests push events to: a sink for HTTP, a Kafka broker, RabbitMQ. Each has ports and folders of its own and
//! ends with its value. Nothing here knows this crate, so that tests of programs can include the file too.

#[path = "servers/certificates.rs"]
pub(crate) mod certificates;
#[path = "servers/kafka.rs"]
pub(crate) mod kafka;
#[path = "servers/ports.rs"]
pub(crate) mod ports;
#[path = "servers/process.rs"]
pub(crate) mod process;
#[path = "servers/rabbitmq.rs"]
pub(crate) mod rabbitmq;
#[path = "servers/sink.rs"]
pub(crate) mod sink;
