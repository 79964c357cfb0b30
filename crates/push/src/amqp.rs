//! AMQP 0-9-1 endpoints.
//!
//! Topics with the same broker, virtual host and user share a connection. Each exchange has its own channel, because a
//! broker closes the channel in which an error occurs. As in Ceph, the exchange must exist, which a passive declaration
//! checks, and messages are persistent. With the ack level `broker`, an event is delivered when the broker confirms it;
//! with `routable`, the broker must also not return it; with `none`, it is delivered when it was sent.
//!
//! After a failure, the next push connects again. A push that times out while it publishes ends the connection: otherwise
//! messages that the broker does not take would accumulate in the client's buffers.

mod transport;

use crate::dial::Dialer;
use crate::{Context, body, timed_out, unavailable};
use futures::future::{BoxFuture, join_all};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions};
use lapin::types::FieldTable;
use lapin::uri::{AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo};
use lapin::{BasicProperties, Channel, Confirmation, ConnectionProperties, ExchangeKind};
use nacre_notify::push::{Connection, PushFailure, PushMessage};
use nacre_topics::attributes::AmqpAckLevel;
use nacre_topics::endpoint::AmqpEndpoint;
use std::sync::Arc;
use tokio::sync::{Mutex, Semaphore};
use tokio::time::{Instant, timeout_at};
use transport::SocketCloser;

/// The frame size in bytes, which determines the size of the client's buffers.
const FRAME_BYTES: u32 = 16 << 10;
/// The most seconds between two heartbeats of the broker.
const HEARTBEAT_SECONDS: u16 = 10;
/// The delivery mode of messages that survive a restart of the broker.
const PERSISTENT: u8 = 2;

/// A broker with one virtual host and user.
pub(crate) struct Broker {
    context: Arc<Context>,
    uri: AMQPUri,
    dialer: Dialer,
    current: Mutex<Option<Arc<Session>>>,
    /// One permit for each event.
    in_flight: Semaphore,
}

/// An open connection.
struct Session {
    connection: lapin::Connection,
    socket: SocketCloser,
}

/// An exchange of a broker, with the routing key of a topic.
pub(crate) struct Exchange {
    broker: Arc<Broker>,
    name: String,
    routing_key: String,
    ack_level: AmqpAckLevel,
    current: Mutex<Option<Arc<OpenChannel>>>,
}

/// An open channel. It is dropped before its session.
struct OpenChannel {
    channel: Channel,
    session: Arc<Session>,
}

/// A connection to an AMQP endpoint.
pub(crate) struct AmqpConnection(pub(crate) Arc<Exchange>);

/// The endpoint without the properties that topics of one broker do not share.
pub(crate) fn broker_key(endpoint: &AmqpEndpoint) -> AmqpEndpoint {
    AmqpEndpoint {
        exchange: String::new(),
        routing_key: String::new(),
        ack_level: AmqpAckLevel::default(),
        ..endpoint.clone()
    }
}

impl Connection for AmqpConnection {
    fn push(&self, messages: Vec<PushMessage>) -> BoxFuture<'static, Vec<Result<(), PushFailure>>> {
        let exchange = self.0.clone();
        Box::pin(async move {
            let count = messages.len();
            // A separate task, so that confirmations are still received after the push was abandoned.
            let pushed = tokio::spawn(async move { exchange.push(&messages).await });
            pushed.await.unwrap_or_else(|_| vec![Err(unavailable("the runtime ends")); count])
        })
    }
}

impl Broker {
    pub(crate) fn new(context: &Arc<Context>, endpoint: &AmqpEndpoint) -> Result<Broker, PushFailure> {
        let tls = endpoint.tls.then_some((endpoint.verify_ssl, endpoint.ca_location.as_deref()));
        let dialer = Dialer::new(context, &endpoint.server, tls, &context.limits.amqp)?;
        let userinfo = AMQPUserInfo {
            username: endpoint.credentials.user.clone(),
            password: endpoint.credentials.password.reveal().to_owned(),
        };
        let (host, port) = (endpoint.server.host.clone(), endpoint.server.port);
        Ok(Broker {
            context: context.clone(),
            uri: AMQPUri {
                // The transport implements TLS.
                scheme: AMQPScheme::AMQP,
                authority: AMQPAuthority { userinfo, host, port },
                vhost: endpoint.vhost.clone(),
                query: AMQPQueryString {
                    frame_max: Some(FRAME_BYTES),
                    heartbeat: Some(HEARTBEAT_SECONDS),
                    ..AMQPQueryString::default()
                },
            },
            dialer,
            current: Mutex::new(None),
            in_flight: Semaphore::new(context.limits.events_in_flight.clamp(1, u32::MAX as usize)),
        })
    }

    /// The open connection, or a new one if there is none.
    async fn session(&self) -> Result<Arc<Session>, PushFailure> {
        let mut current = self.current.lock().await;
        if let Some(session) = current.as_ref().filter(|session| session.connection.status().connected()) {
            return Ok(session.clone());
        }
        *current = None;
        let stream = self.dialer.connect().await?;
        let (socket, runtime, connect) =
            transport::prepare(stream).map_err(|error| unavailable(error.to_string()))?;
        let properties = ConnectionProperties::default().with_connection_name("nacre".into());
        let connection = lapin::Connection::connector(self.uri.clone(), runtime, connect, properties)
            .await
            .map_err(|error| failure_of(&error))?;
        Ok(current.insert(Arc::new(Session { connection, socket })).clone())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.socket.close_gracefully();
    }
}

impl Exchange {
    pub(crate) fn new(broker: Arc<Broker>, endpoint: &AmqpEndpoint) -> Exchange {
        Exchange {
            broker,
            name: endpoint.exchange.clone(),
            routing_key: endpoint.routing_key.clone(),
            ack_level: endpoint.ack_level,
            current: Mutex::new(None),
        }
    }

    async fn push(&self, messages: &[PushMessage]) -> Vec<Result<(), PushFailure>> {
        let limits = &self.broker.context.limits;
        let deadline = Instant::now() + limits.amqp.push;
        let same = |failure: PushFailure| messages.iter().map(|_| Err(failure.clone())).collect();
        // A push that exceeds the bound is sent alone.
        let most = limits.events_in_flight.clamp(1, u32::MAX as usize);
        let count = u32::try_from(messages.len().min(most)).unwrap_or(u32::MAX);
        // Other exchanges of the same broker may have used up the permits.
        let Ok(Ok(_permits)) = timeout_at(deadline, self.broker.in_flight.acquire_many(count)).await else {
            return same(unavailable(format!(
                "{} events wait for the broker already",
                limits.events_in_flight
            )));
        };
        let link = match timeout_at(deadline, self.link()).await {
            Ok(Ok(link)) => link,
            Ok(Err(failure)) => return same(failure),
            Err(_) => return same(timed_out(&limits.amqp)),
        };
        match timeout_at(deadline, self.publish(&link.channel, messages)).await {
            Ok(outcomes) => outcomes,
            Err(_) => {
                link.session.socket.close_now();
                same(timed_out(&limits.amqp))
            }
        }
    }

    /// The open channel, or a new one if there is none.
    async fn link(&self) -> Result<Arc<OpenChannel>, PushFailure> {
        let mut current = self.current.lock().await;
        let is_open = |link: &&Arc<OpenChannel>| {
            link.channel.status().connected() && link.session.connection.status().connected()
        };
        if let Some(link) = current.as_ref().filter(is_open) {
            return Ok(link.clone());
        }
        *current = None;
        let session = self.broker.session().await?;
        let channel = session.connection.create_channel().await.map_err(|error| failure_of(&error))?;
        let passive =
            ExchangeDeclareOptions { passive: true, durable: true, ..ExchangeDeclareOptions::default() };
        let (name, kind) = (self.name.as_str().into(), ExchangeKind::Topic);
        channel
            .exchange_declare(name, kind, passive, FieldTable::default())
            .await
            .map_err(|e| failure_of(&e))?;
        if self.ack_level != AmqpAckLevel::None {
            channel
                .confirm_select(ConfirmSelectOptions::default())
                .await
                .map_err(|error| failure_of(&error))?;
        }
        Ok(current.insert(Arc::new(OpenChannel { channel, session })).clone())
    }

    /// Publishes events in order and waits for the confirmation of each one.
    async fn publish(&self, channel: &Channel, messages: &[PushMessage]) -> Vec<Result<(), PushFailure>> {
        let mut published = Vec::with_capacity(messages.len());
        for message in messages {
            let properties = BasicProperties::default()
                .with_content_type("application/json".into())
                .with_delivery_mode(PERSISTENT)
                .with_message_id(message.event.id().into());
            let options =
                BasicPublishOptions { mandatory: self.ack_level == AmqpAckLevel::Routable, immediate: false };
            let (exchange, routing_key) = (self.name.as_str().into(), self.routing_key.as_str().into());
            let text = body(std::iter::once(message));
            published.push(channel.basic_publish(exchange, routing_key, options, &text, properties).await);
        }
        join_all(published.into_iter().map(|published| async {
            match published.map_err(|error| failure_of(&error))?.await.map_err(|error| failure_of(&error))? {
                Confirmation::Ack(None) | Confirmation::NotRequested => Ok(()),
                Confirmation::Ack(Some(_)) | Confirmation::Nack(Some(_)) => {
                    Err(unavailable("no queue is bound to the exchange for the topic"))
                }
                Confirmation::Nack(None) => Err(unavailable("the broker did not take the message")),
            }
        }))
        .await
    }
}

/// Errors of the broker concern all events of a topic, so the endpoint counts as unavailable.
fn failure_of(error: &lapin::Error) -> PushFailure {
    unavailable(crate::with_causes(error))
}
