//! Who is connected, who waits for an answer, and who wants maps, configuration and service keys.

use crate::persist::Persistence;
use bytes::Bytes;
use nacre_common::auth::RotatingKeys;
use nacre_mon::health::{Health, Severity};
use nacre_mon::logic::{LogEntry, LogLevel, MapState, Origin};
use nacre_runtime::msgr::{Conn, Encoded};
use nacre_types::encoding;
use nacre_types::ids::{EntityKind, EntityName, Epoch};
use nacre_types::msg::{ConfigPublish, LogPublish, LogSubscribe, MapBlob, MapPublish, Message, MonSubscribe};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Bytes of incrementals in one message, some.
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
    /// What the configuration that was sent rested on.
    config_basis: (u64, u64),
    /// Checks that hold, by code: what was last said of them.
    health: BTreeMap<String, (Severity, String)>,
}

/// What is sent on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// Answers to what its peer sent.
    Answers,
    /// Maps and configuration.
    Maps,
    /// Service keys as they are rotated.
    ServiceKeys,
    /// Lines of the cluster log.
    Log,
}

/// Marks connections that this side has ended.
struct Ended;

struct Subscriber {
    conn: Conn,
    entity: EntityName,
    /// The epoch to send next; 0 for a full map.
    next: Epoch,
    /// What was sent of the configuration, if that is wanted.
    config: Option<Option<BTreeMap<String, String>>>,
}

impl Sessions {
    /// Ends a connection and forgets it: no reset is reported of what this side ends.
    pub(super) fn end(&mut self, conn: &Conn) {
        conn.set_context(Arc::new(Ended));
        conn.abort();
        self.remove(conn.id());
    }

    /// Whether this side has ended a connection. Messages that it brought before may still come.
    pub(super) fn was_ended(conn: &Conn) -> bool {
        conn.context::<Ended>().is_some()
    }

    /// Forgets a connection that is over.
    pub(super) fn remove(&mut self, id: u64) {
        self.waiting.remove(&id);
        self.subscribers.remove(&id);
        self.keyholders.remove(&id);
        self.followers.remove(&id);
    }

    /// How many are connected.
    pub(super) fn count(&self) -> usize {
        self.subscribers.len()
    }

    /// How many of them are clients.
    pub(super) fn clients(&self) -> usize {
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

    /// Sends to a peer. One that takes too little, or has gone, loses its connection: what it misses can't be made good on
    /// this one. It asks again by its next.
    pub(super) fn send<M: Message>(&mut self, conn: &Conn, message: &M) {
        if let Err(error) = conn.send(message) {
            tracing::debug!(peer = %conn.peer_addr(), message = M::NAME, %error, "not sent");
            self.end(conn);
        }
    }

    /// Sends lines of the log that were missed, and those to come.
    pub(super) fn follow_log(&mut self, conn: &Conn, wanted: LogSubscribe, state: &MapState) {
        if let Some(after) = wanted.after {
            let missed: Vec<LogEntry> = state.log().stored_after(after).cloned().collect();
            if !tell_log(conn, &wanted, &missed) {
                self.end(conn);
                return;
            }
        }
        self.followers.insert(conn.id(), (conn.clone(), wanted));
    }

    /// Sends lines that are durable now to those who follow the log.
    pub(super) fn publish_log(&mut self, lines: &[LogEntry]) {
        let missed = |(_, (conn, wanted)): &(&u64, &(Conn, LogSubscribe))| !tell_log(conn, wanted, lines);
        let gone: Vec<Conn> =
            self.followers.iter().filter(missed).map(|(_, (conn, _))| conn.clone()).collect();
        gone.iter().for_each(|conn| self.end(conn));
    }

    /// All that are known, once for each use.
    pub(super) fn connections(&self) -> impl Iterator<Item = (&Conn, Use)> {
        let waiting = self.waiting.values().map(|conn| (conn, Use::Answers));
        let subscribers = self.subscribers.values().map(|subscriber| (&subscriber.conn, Use::Maps));
        let keyholders = self.keyholders.values().map(|conn| (conn, Use::ServiceKeys));
        let followers = self.followers.values().map(|(conn, _)| (conn, Use::Log));
        waiting.chain(subscribers).chain(keyholders).chain(followers)
    }

    /// Remembers where an answer will go.
    pub(super) fn expect_answer(&mut self, conn: &Conn) {
        self.waiting.entry(conn.id()).or_insert_with(|| conn.clone());
    }

    pub(super) fn answer<M: Message>(&mut self, to: Origin, reply: &M) {
        if let Some(conn) = self.waiting.get(&to.0).cloned() {
            self.send(&conn, reply);
        }
    }

    pub(super) fn keep_keys_fresh(&mut self, conn: &Conn) {
        self.keyholders.insert(conn.id(), conn.clone());
    }

    pub(super) fn send_keys(&mut self, keys: &RotatingKeys) {
        let holders: Vec<Conn> = self.keyholders.values().cloned().collect();
        holders.iter().for_each(|conn| self.send(conn, keys));
    }

    pub(super) fn subscribe(&mut self, conn: &Conn, entity: &EntityName, wanted: MonSubscribe) {
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

    /// Sends everybody what they do not have yet.
    pub(super) fn publish(&mut self, state: &MapState, persistence: &Persistence) {
        let newest = state.map().epoch;
        let mut encoded: HashMap<Epoch, (Encoded, Epoch)> = HashMap::new();
        let mut gone = Vec::new();
        let full = &mut self.full;
        for subscriber in self.subscribers.values_mut() {
            while subscriber.next <= newest {
                let (message, next) = encoded
                    .entry(subscriber.next)
                    .or_insert_with(|| maps_from(subscriber.next, state, persistence, full));
                if subscriber.conn.send_encoded(message).is_err() {
                    gone.push(subscriber.conn.clone());
                    break;
                }
                subscriber.next = *next;
            }
        }
        gone.iter().for_each(|conn| self.end(conn));
        if self.config_basis != config_basis(state) {
            self.publish_config(state);
        }
    }

    /// Sends everybody whose configuration changed what applies to them.
    pub(super) fn publish_config(&mut self, state: &MapState) {
        self.config_basis = config_basis(state);
        let mut gone = Vec::new();
        for subscriber in self.subscribers.values_mut() {
            let Some(sent) = &mut subscriber.config else { continue };
            let values = state.config_of(&subscriber.entity);
            if sent.as_ref() != Some(&values) {
                let message = ConfigPublish { values: values.clone() };
                if let Err(error) = subscriber.conn.send(&message) {
                    tracing::debug!(entity = %subscriber.entity, %error, "configuration not sent");
                    gone.push(subscriber.conn.clone());
                    continue;
                }
                *sent = Some(values);
            }
        }
        gone.iter().for_each(|conn| self.end(conn));
    }

    /// Lines for the cluster log: checks that came, changed or went, in Ceph's words.
    pub(super) fn health_changes(&mut self, health: &Health) -> Vec<(LogLevel, String)> {
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

/// Sends what a follower wants of `lines`. Where that fails, its connection is to be ended: by its next one it asks for what it
/// missed.
fn tell_log(conn: &Conn, wanted: &LogSubscribe, lines: &[LogEntry]) -> bool {
    let least = LogLevel::parse(&wanted.level);
    let fits = |line: &&LogEntry| line.level >= least && line.channel.matches(&wanted.channel);
    let lines: Vec<_> = lines.iter().filter(fits).map(LogEntry::to_line).collect();
    if lines.is_empty() {
        return true;
    }
    let sent = conn.send(&LogPublish { lines });
    if let Err(error) = &sent {
        tracing::debug!(peer = %conn.peer_addr(), %error, "log lines not sent");
    }
    sent.is_ok()
}

/// Configuration depends on the database and, by masks, on CRUSH.
fn config_basis(state: &MapState) -> (u64, u64) {
    (state.config_version(), state.crush_version())
}

/// The message that leads on from `next`, and the epoch that follows it.
fn maps_from(
    next: Epoch,
    state: &MapState,
    persistence: &Persistence,
    full: &mut Option<(Epoch, Bytes)>,
) -> (Encoded, Epoch) {
    let map = state.map();
    let wants_full = next == Epoch(0);
    let incrementals = if wants_full { None } else { persistence.incrementals(next, PUBLISH_BYTES) };
    let mut message =
        MapPublish { fsid: map.fsid, full: Bytes::new(), incrementals: Vec::new(), newest: map.epoch };
    match incrementals {
        Some(blobs) if !blobs.is_empty() => {
            let following = Epoch(next.0 + blobs.len() as u32);
            message.incrementals = blobs.into_iter().map(MapBlob).collect();
            (Encoded::new(&message), following)
        }
        _ => {
            if full.as_ref().is_none_or(|(epoch, _)| *epoch != map.epoch) {
                *full = Some((map.epoch, Bytes::from(encoding::encode(map))));
            }
            message.full = full.as_ref().map(|(_, bytes)| bytes.clone()).unwrap_or_default();
            (Encoded::new(&message), map.epoch.next())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_common::auth::{Credential, Key};
    use nacre_common::config::ConfigBuilder;
    use nacre_runtime::msgr::{Dispatcher, Frame, Messenger, Policy, Reset, Target};
    use nacre_types::msg::DaemonCommandReply;

    struct Deaf;

    impl Dispatcher for Deaf {
        fn on_message(&self, _conn: &Conn, _frame: Frame) {}
        fn on_reset(&self, _conn: &Conn, _reset: Reset) {}
    }

    #[test]
    fn a_peer_that_reads_nothing_is_forgotten_and_what_it_sent_is_ignored() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let entity = EntityName::mon();
        let config = ConfigBuilder::new(entity.clone()).set("ms_out_queue_bytes", "64Ki").build().unwrap();
        let lane = Messenger::builder(&config).lane(runtime.handle().clone(), Arc::new(Deaf));
        let messenger = lane.build().unwrap();
        // The runtime does not run: nothing that is queued is ever sent.
        let guard = runtime.enter();
        let conn = messenger
            .connect(Target {
                addr: "127.0.0.1:1".parse().unwrap(),
                entity: None,
                policy: Policy::Lossy,
                lane: 0,
                credentials: Arc::new(Credential::Key { entity, key: Key::generate().unwrap() }),
            })
            .unwrap();
        drop(guard);
        let mut sessions = Sessions::default();
        sessions.expect_answer(&conn);
        sessions.keep_keys_fresh(&conn);
        let output = Bytes::from(vec![0; 40 << 10]);
        let reply = DaemonCommandReply { tid: 1, code: 0, status: String::new(), output };
        sessions.send(&conn, &reply);
        assert_eq!(sessions.connections().count(), 2);
        assert!(!Sessions::was_ended(&conn));
        sessions.send(&conn, &reply);
        assert_eq!(sessions.connections().count(), 0);
        assert!(Sessions::was_ended(&conn));
    }
}
