//! Sessions of the map authority: peers, pending answers, subscribers to maps, configuration, service keys and the log.

use bytes::Bytes;
use nacre_common::auth::RotatingKeys;
use nacre_mapstore::IncrementalCache;
use nacre_mon::health::{Health, Severity};
use nacre_mon::logic::{ClusterLogEntry, ConnToken, LogLevel, MapState};
use nacre_runtime::msgr::{Conn, EncodedMessage};
use nacre_types::encoding;
use nacre_types::ids::{EntityKind, EntityName, Epoch};
use nacre_types::msg::{
    ConfigPublish, EncodedIncremental, LogPublish, LogSubscribe, MapPublish, Message, MonSubscribe,
};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Approximate maximum size of the incrementals in one message, in bytes.
const PUBLISH_BYTES: usize = 4 << 20;

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Sessions {
    waiting: HashMap<u64, Conn>,
    subscribers: HashMap<u64, Subscriber>,
    keyholders: HashMap<u64, Conn>,
    followers: HashMap<u64, (Conn, LogSubscribe)>,
    /// The encoded full map and its epoch.
    full: Option<(Epoch, Bytes)>,
    /// Versions from which the sent configuration was derived. Always durable.
    config_basis: (u64, u64),
    /// A subscriber waits for its configuration until the changes it depends on are durable.
    config_is_due: bool,
    /// Current health checks by code, with the severity and summary that were last reported.
    health: BTreeMap<String, (Severity, String)>,
}

/// What is sent on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnUsage {
    /// Answers to what its peer sent.
    Answers,
    /// Maps and configuration.
    Maps,
    /// Service keys, sent at each rotation.
    ServiceKeys,
    /// Lines of the cluster log.
    Log,
}

/// Marks connections that this side has ended.
struct LocallyEnded;

struct Subscriber {
    conn: Conn,
    entity: EntityName,
    /// The epoch to send next; 0 for a full map.
    next: Epoch,
    /// The last configuration sent, if the peer subscribed to it.
    config: Option<Option<BTreeMap<String, String>>>,
}

impl Subscriber {
    /// Sends its configuration unless it has it. Returns false if its connection must be ended.
    fn send_config_if_changed(&mut self, state: &MapState) -> bool {
        let values = Some(state.config_of(&self.entity));
        if self.config.as_ref() == Some(&values) {
            return true;
        }
        let message = ConfigPublish { values: values.clone().unwrap_or_default() };
        let sent = self.conn.send(&message);
        match &sent {
            Ok(()) => self.config = Some(values),
            Err(error) => tracing::debug!(entity = %self.entity, %error, "configuration not sent"),
        }
        sent.is_ok()
    }
}

impl Sessions {
    /// Ends a connection and removes its sessions. The messenger reports no reset for connections that this side ends.
    pub(super) fn end(&mut self, conn: &Conn) {
        conn.set_context(Arc::new(LocallyEnded));
        conn.abort();
        self.remove(conn.id());
    }

    /// Whether this side has ended a connection. Messages that were received before may still arrive.
    pub(super) fn is_ended(conn: &Conn) -> bool {
        conn.context::<LocallyEnded>().is_some()
    }

    /// Removes a connection that has ended.
    pub(super) fn remove(&mut self, id: u64) {
        self.waiting.remove(&id);
        self.subscribers.remove(&id);
        self.keyholders.remove(&id);
        self.followers.remove(&id);
    }

    /// Number of subscribed connections.
    pub(super) fn subscriber_count(&self) -> usize {
        self.subscribers.len()
    }

    /// Number of connected clients.
    pub(super) fn client_count(&self) -> usize {
        self.subscribers.values().filter(|s| s.entity.kind == EntityKind::Client).count()
    }

    /// `tell mon.a sessions`.
    pub(super) fn dump(&self) -> Value {
        let entry = |subscriber: &Subscriber| {
            let addr = json!({ "type": "v2", "addr": subscriber.conn.peer_addr().to_string(), "nonce": 0 });
            json!({
                "name": subscriber.entity.to_string(),
                "entity_name": subscriber.entity.to_string(),
                "addrs": { "addrvec": [addr] },
                "socket_addr": addr,
                "con_type": subscriber.entity.kind.as_str(),
                "open": true,
                "authenticated": true,
                "osd_epoch": subscriber.next.0.saturating_sub(1),
            })
        };
        self.subscribers.values().map(entry).collect()
    }

    /// Sends a message to a peer. Ends the connection if its queue is full or it is gone: the message can't be delivered
    /// on it any more, and the peer asks again on its next connection.
    pub(super) fn send<M: Message>(&mut self, conn: &Conn, message: &M) {
        if let Err(error) = conn.send(message) {
            tracing::debug!(peer = %conn.peer_addr(), message = M::NAME, %error, "not sent");
            self.end(conn);
        }
    }

    /// Sends lines of the log that the follower missed, and subscribes it to later ones.
    pub(super) fn subscribe_log(&mut self, conn: &Conn, wanted: LogSubscribe, state: &MapState) {
        if let Some(after) = wanted.after {
            let missed: Vec<ClusterLogEntry> = state.log().stored_after(after).cloned().collect();
            if !send_log_lines(conn, &wanted, &missed) {
                self.end(conn);
                return;
            }
        }
        self.followers.insert(conn.id(), (conn.clone(), wanted));
    }

    /// Sends lines that are now durable to the followers of the log.
    pub(super) fn publish_log(&mut self, lines: &[ClusterLogEntry]) {
        let missed =
            |(_, (conn, wanted)): &(&u64, &(Conn, LogSubscribe))| !send_log_lines(conn, wanted, lines);
        let gone: Vec<Conn> =
            self.followers.iter().filter(missed).map(|(_, (conn, _))| conn.clone()).collect();
        gone.iter().for_each(|conn| self.end(conn));
    }

    /// All connections, once for each use.
    pub(super) fn connections(&self) -> impl Iterator<Item = (&Conn, ConnUsage)> {
        let waiting = self.waiting.values().map(|conn| (conn, ConnUsage::Answers));
        let subscribers = self.subscribers.values().map(|subscriber| (&subscriber.conn, ConnUsage::Maps));
        let keyholders = self.keyholders.values().map(|conn| (conn, ConnUsage::ServiceKeys));
        let followers = self.followers.values().map(|(conn, _)| (conn, ConnUsage::Log));
        waiting.chain(subscribers).chain(keyholders).chain(followers)
    }

    /// Registers a connection for an answer.
    pub(super) fn register_waiter(&mut self, conn: &Conn) {
        self.waiting.entry(conn.id()).or_insert_with(|| conn.clone());
    }

    pub(super) fn answer<M: Message>(&mut self, to: ConnToken, reply: &M) {
        if let Some(conn) = self.waiting.get(&to.0).cloned() {
            self.send(&conn, reply);
        }
    }

    pub(super) fn subscribe_service_keys(&mut self, conn: &Conn) {
        self.keyholders.insert(conn.id(), conn.clone());
    }

    pub(super) fn publish_service_keys(&mut self, keys: &RotatingKeys) {
        let holders: Vec<Conn> = self.keyholders.values().cloned().collect();
        holders.iter().for_each(|conn| self.send(conn, keys));
    }

    pub(super) fn subscribe_maps(&mut self, conn: &Conn, entity: &EntityName, wanted: MonSubscribe) {
        let known = self.subscribers.remove(&conn.id());
        let config = match (wanted.config, known.and_then(|s| s.config)) {
            (true, Some(sent)) => Some(sent),
            (true, None) => Some(None),
            (false, sent) => sent,
        };
        let next = wanted.next_epoch;
        self.subscribers
            .insert(conn.id(), Subscriber { conn: conn.clone(), entity: entity.clone(), next, config });
    }

    /// Sends each subscriber the epochs that it does not have yet.
    pub(super) fn publish_maps(&mut self, state: &MapState, incrementals: &IncrementalCache) {
        let newest = state.map().epoch;
        let mut encoded: HashMap<Epoch, (EncodedMessage, Epoch)> = HashMap::new();
        let mut gone = Vec::new();
        let full = &mut self.full;
        for subscriber in self.subscribers.values_mut() {
            while subscriber.next <= newest {
                let (message, next) = encoded
                    .entry(subscriber.next)
                    .or_insert_with(|| maps_from(subscriber.next, state, incrementals, full));
                if subscriber.conn.send_encoded(message).is_err() {
                    gone.push(subscriber.conn.clone());
                    break;
                }
                subscriber.next = *next;
            }
        }
        gone.iter().for_each(|conn| self.end(conn));
    }

    /// Sends a new subscriber its configuration, if it wants that: now, or with the commit of the pending changes.
    pub(super) fn send_config(&mut self, conn: &Conn, state: &MapState) {
        let Some(subscriber) = self.subscribers.get_mut(&conn.id()) else { return };
        if subscriber.config != Some(None) {
            return;
        }
        if !state.is_config_durable() {
            self.config_is_due = true;
        } else if !subscriber.send_config_if_changed(state) {
            self.end(conn);
        }
    }

    /// Sends each subscriber its configuration if it changed and is durable.
    pub(super) fn publish_config(&mut self, state: &MapState) {
        if !state.is_config_durable() {
            return;
        }
        let basis = config_basis(state);
        let is_due = std::mem::take(&mut self.config_is_due);
        let has_changed = std::mem::replace(&mut self.config_basis, basis) != basis;
        if !is_due && !has_changed {
            return;
        }
        let mut gone = Vec::new();
        for subscriber in self.subscribers.values_mut() {
            let Some(sent) = &subscriber.config else { continue };
            if (has_changed || sent.is_none()) && !subscriber.send_config_if_changed(state) {
                gone.push(subscriber.conn.clone());
            }
        }
        gone.iter().for_each(|conn| self.end(conn));
    }

    /// Lines for the cluster log about checks that are new, changed or cleared, in Ceph's words.
    pub(super) fn take_health_log(&mut self, health: &Health) -> Vec<(LogLevel, String)> {
        let level = |severity: Severity| match severity {
            Severity::Warn => LogLevel::Warn,
            Severity::Error => LogLevel::Error,
        };
        let mut lines = Vec::new();
        let now: BTreeMap<String, (Severity, String)> =
            health.checks.iter().map(|c| (c.code.clone(), (c.severity, c.summary.clone()))).collect();
        for (code, (severity, summary)) in &now {
            match self.health.get(code) {
                None => lines.push((level(*severity), format!("Health check failed: {summary} ({code})"))),
                Some((_, before)) if before != summary => {
                    lines.push((level(*severity), format!("Health check update: {summary} ({code})")));
                }
                Some(_) => {}
            }
        }
        for (code, (_, before)) in self.health.iter().filter(|(code, _)| !now.contains_key(*code)) {
            lines.push((LogLevel::Info, format!("Health check cleared: {code} (was: {before})")));
        }
        if now.is_empty() && !self.health.is_empty() {
            lines.push((LogLevel::Info, "Cluster is now healthy".into()));
        }
        self.health = now;
        lines
    }
}

/// Sends the part of `lines` that a follower subscribed to. Returns false if its connection must be ended; it asks for the
/// missed lines on its next one.
fn send_log_lines(conn: &Conn, wanted: &LogSubscribe, lines: &[ClusterLogEntry]) -> bool {
    let least = LogLevel::parse(&wanted.level);
    let fits = |line: &&ClusterLogEntry| line.level >= least && line.channel.matches(&wanted.channel);
    let lines: Vec<_> = lines.iter().filter(fits).map(ClusterLogEntry::to_line).collect();
    if lines.is_empty() {
        return true;
    }
    let sent = conn.send(&LogPublish { lines });
    if let Err(error) = &sent {
        tracing::debug!(peer = %conn.peer_addr(), %error, "log lines not sent");
    }
    sent.is_ok()
}

/// The versions that configurations depend on: of the database and, because of masks, of CRUSH.
fn config_basis(state: &MapState) -> (u64, u64) {
    (state.config_version(), state.crush_version())
}

/// The message with the epochs from `next` on, and the epoch that follows it.
fn maps_from(
    next: Epoch,
    state: &MapState,
    incrementals: &IncrementalCache,
    full: &mut Option<(Epoch, Bytes)>,
) -> (EncodedMessage, Epoch) {
    let map = state.map();
    let wants_full = next == Epoch(0);
    let incrementals = if wants_full { None } else { incrementals.range(next, PUBLISH_BYTES) };
    let mut message =
        MapPublish { fsid: map.fsid, full: Bytes::new(), incrementals: Vec::new(), newest: map.epoch };
    match incrementals {
        Some(blobs) if !blobs.is_empty() => {
            let following = Epoch(next.0 + blobs.len() as u32);
            message.incrementals = blobs.into_iter().map(EncodedIncremental).collect();
            (EncodedMessage::new(&message), following)
        }
        _ => {
            if full.as_ref().is_none_or(|(epoch, _)| *epoch != map.epoch) {
                *full = Some((map.epoch, Bytes::from(encoding::encode(map))));
            }
            message.full = full.as_ref().map(|(_, bytes)| bytes.clone()).unwrap_or_default();
            (EncodedMessage::new(&message), map.epoch.next())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_common::auth::{Credential, Key};
    use nacre_common::config::ConfigBuilder;
    use nacre_crush::CrushMap;
    use nacre_mon::ConfigTarget;
    use nacre_mon::logic::{MapEvent, Tuning};
    use nacre_mon::testing::{at, boot_of};
    use nacre_runtime::msgr::{ConnectTarget, Dispatcher, Frame, Messenger, Policy, ResetReason};
    use nacre_types::msg::DaemonCommandReply;
    use nacre_types::osdmap::OsdMap;
    use uuid::Uuid;

    struct NullDispatcher;

    impl Dispatcher for NullDispatcher {
        fn on_message(&self, _conn: &Conn, _frame: Frame) {}
        fn on_reset(&self, _conn: &Conn, _reset: ResetReason) {}
    }

    /// Connections on which queued messages are never sent, because the runtime does not run.
    fn idle_connections<const N: usize>() -> (tokio::runtime::Runtime, Messenger, [Conn; N]) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let entity = EntityName::mon();
        let config = ConfigBuilder::new(entity.clone()).set("ms_out_queue_bytes", "64Ki").build().unwrap();
        let lane = Messenger::builder(&config).lane(runtime.handle().clone(), Arc::new(NullDispatcher));
        let messenger = lane.build().unwrap();
        let guard = runtime.enter();
        let conns = std::array::from_fn(|at| {
            let key = Key::generate().unwrap();
            messenger
                .connect(ConnectTarget {
                    addr: format!("127.0.0.1:{}", at + 1).parse().unwrap(),
                    entity: None,
                    policy: Policy::Lossy,
                    lane: 0,
                    credentials: Arc::new(Credential::Key { entity: entity.clone(), key }),
                })
                .unwrap()
        });
        drop(guard);
        (runtime, messenger, conns)
    }

    #[test]
    fn a_peer_that_reads_nothing_is_forgotten_and_what_it_sent_is_ignored() {
        let (_runtime, _messenger, [conn]) = idle_connections();
        let mut sessions = Sessions::default();
        sessions.register_waiter(&conn);
        sessions.subscribe_service_keys(&conn);
        let output = Bytes::from(vec![0; 40 << 10]);
        let reply = DaemonCommandReply { tid: 1, code: 0, status: String::new(), output };
        sessions.send(&conn, &reply);
        assert_eq!(sessions.connections().count(), 2);
        assert!(!Sessions::is_ended(&conn));
        sessions.send(&conn, &reply);
        assert_eq!(sessions.connections().count(), 0);
        assert!(Sessions::is_ended(&conn));
    }

    fn subscribe(sessions: &mut Sessions, conn: &Conn, osd: u32, state: &MapState) {
        let wanted = MonSubscribe { next_epoch: Epoch(0), config: true };
        sessions.subscribe_maps(conn, &format!("osd.{osd}").parse().unwrap(), wanted);
        sessions.send_config(conn, state);
    }

    fn commit(state: &mut MapState) {
        while let Some(proposal) = state.propose(at(0)) {
            state.on_committed(proposal.number);
        }
    }

    #[test]
    fn a_change_of_crush_reaches_subscribers_although_another_comes_before_its_commit() {
        let (_runtime, _messenger, [first, second, third]) = idle_connections();
        let map = OsdMap::new(Uuid::from_u128(7), 1, CrushMap::new_cluster("osd").unwrap());
        let mut state = MapState::new(map, Tuning::default(), at(0));
        state.put_option(&ConfigTarget::parse("osd/class:nvme").unwrap(), "osd_max_backfills", "3");
        commit(&mut state);
        let mut sessions = Sessions::default();
        sessions.publish_config(&state);
        subscribe(&mut sessions, &first, 0, &state);
        let config = |sessions: &Sessions, conn: &Conn| -> Option<Vec<String>> {
            let sent = sessions.subscribers[&conn.id()].config.clone().expect("it is wanted");
            sent.map(|values| values.into_iter().map(|(name, value)| format!("{name}={value}")).collect())
        };
        let nothing: Vec<String> = Vec::new();
        let masked = vec!["osd_max_backfills=3".to_owned()];
        assert_eq!(config(&sessions, &first), Some(nothing.clone()), "it has no class yet");
        let mut boot = boot_of(0, 1);
        boot.device_class = "nvme".into();
        state.handle(at(0), MapEvent::Boot(boot));
        subscribe(&mut sessions, &second, 1, &state);
        assert_eq!(config(&sessions, &second), None, "what it rests on is not durable");
        commit(&mut state);
        sessions.publish_config(&state);
        assert_eq!(config(&sessions, &first), Some(masked.clone()));
        assert_eq!(config(&sessions, &second), Some(nothing.clone()));

        // A new subscriber causes no messages to others: this one would be sent its configuration again.
        sessions.subscribers.get_mut(&first.id()).unwrap().config = Some(Some(BTreeMap::new()));
        subscribe(&mut sessions, &third, 2, &state);
        assert_eq!(config(&sessions, &third), Some(nothing.clone()));
        assert_eq!(config(&sessions, &first), Some(nothing), "it was not computed");
        sessions.config_basis = (0, 0);
        sessions.publish_config(&state);
        assert_eq!(config(&sessions, &first), Some(masked));
    }
}
