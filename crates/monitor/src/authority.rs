//! The thread that owns the map: applies inputs, commits the changes, answers and publishes.
//!
//! One commit is in flight at a time. Meanwhile the thread serves maps, configuration and tickets, and takes beacons and reports.
//! Messages that change the map or the databases wait for the end of the commit ([`deferred`](crate::deferred)). So the
//! configuration and the entities are always durable when a commit ends.

use crate::admin::MonAdmin;
use crate::client_ids::ClientIds;
use crate::cluster_log::ClusterLogFile;
use crate::deferred::DeferredMessages;
use crate::error::MonError;
use crate::input::{Input, StoreReply};
use crate::sessions::{ConnUsage, Sessions};
use crate::store_thread::{InitialState, StoreRequest, StoreThread};
use crate::{EntityKeys, now};
use nacre_common::auth::{
    AuthTicketReply, AuthTicketRequest, Key, Peer, RotatingKeys, RotatingSecrets, SessionKey, TicketBody,
    TicketGrant,
};
use nacre_common::clock::Clock;
use nacre_common::config::Config;
use nacre_mapstore::{IncrementalCache, MAX_COMMIT_LOG_LINES, MapStore, Persistence};
use nacre_mon::CommandRequest;
use nacre_mon::logic::{
    ClusterLogEntry, ConnToken, LogLevel, MapEffect, MapEvent, MapState, Now, Proposal, Tuning,
};
use nacre_runtime::admin::{AdminReply, CommandFailure};
use nacre_runtime::msgr::{Conn, Frame};
use nacre_types::caps::mon::{MonAccess, MonCaps, Perm};
use nacre_types::errno::Errno;
use nacre_types::ids::{ClientId, EntityName, Epoch};
use nacre_types::msg::{
    ConfigReport, DaemonCommand, DaemonCommandReply, LogAppend, LogSubscribe, Message, MonCommand,
    MonCommandReply, MonSubscribe, OsdBeacon, OsdBoot, OsdFailure, OsdMarkMeDown, PgCas, StatsReport,
};
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// Maximum number of messages applied before one commit.
const BATCH: usize = 1_024;
/// Longer lines for the cluster log are truncated, because the log keeps many.
const MAX_LOG_LINE_BYTES: usize = 8 << 10;
/// Time between ticks.
const TICK: Duration = Duration::from_secs(1);
/// A commit that takes longer, while the store does not answer, stops commands that only show something from waiting for it.
const STALL: Duration = Duration::from_secs(3);
/// Maximum number of ticket requests that wait for the map store.
const MAX_WAITING_TICKETS: usize = 10_000;
/// How long a stop waits for the map store.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) struct Authority {
    config: Config,
    state: MapState,
    store: Arc<dyn MapStore>,
    store_thread: StoreThread,
    /// The commit in flight.
    commit: Option<CommitInFlight>,
    /// Log lines are to be stored with the next commit, even if nothing else is.
    is_log_due: bool,
    /// Obsolete entries are being deleted.
    is_trimming: bool,
    /// New service keys are being stored.
    is_rotating: bool,
    incrementals: IncrementalCache,
    /// The epoch of the newest full map in the store.
    last_full: Epoch,
    client_ids: ClientIds,
    /// Requests that wait for client ids, or for changed entities to be durable.
    waiting_tickets: VecDeque<(Conn, AuthTicketRequest)>,
    deferred: DeferredMessages,
    /// When to stop at the latest, once a stop was requested.
    stop_by: Option<Duration>,
    service_keys: RotatingSecrets,
    shared_keys: Arc<EntityKeys>,
    clock: Arc<dyn Clock>,
    inputs: Receiver<Input>,
    sessions: Sessions,
    config_version: u64,
    next_tick: Duration,
    /// Earliest time of the next commit (`mon_propose_interval` after the last one).
    next_commit: Duration,
    ticks: u64,
    log_file: ClusterLogFile,
    /// Requests whose answers wait for the next commit. They release their share of the messenger's throttle with it.
    uncommitted_frames: Vec<Frame>,
    admin: MonAdmin,
}

/// A commit that the map store has not answered yet.
struct CommitInFlight {
    started: Duration,
    /// It changes keys or capabilities of entities.
    changes_entities: bool,
    /// Requests whose answers wait for it. They release their share of the messenger's throttle with it.
    _frames: Vec<Frame>,
}

impl Authority {
    #[allow(clippy::too_many_arguments, reason = "what one thread is made of")]
    pub(super) fn new(
        config: Config,
        state: MapState,
        store: Arc<dyn MapStore>,
        store_thread: StoreThread,
        initial: InitialState,
        shared_keys: Arc<EntityKeys>,
        clock: Arc<dyn Clock>,
        inputs: Receiver<Input>,
        admin: MonAdmin,
    ) -> Authority {
        let sessions = Sessions::default();
        Authority {
            config,
            store,
            store_thread,
            commit: None,
            is_log_due: false,
            is_trimming: false,
            is_rotating: false,
            incrementals: initial.incrementals,
            last_full: initial.last_full,
            client_ids: ClientIds::new(initial.client_ids),
            waiting_tickets: VecDeque::new(),
            deferred: DeferredMessages::default(),
            stop_by: None,
            state,
            service_keys: initial.service_keys,
            shared_keys,
            clock,
            inputs,
            sessions,
            config_version: 0,
            next_tick: Duration::ZERO,
            next_commit: Duration::ZERO,
            ticks: 0,
            log_file: ClusterLogFile::default(),
            uncommitted_frames: Vec::new(),
            admin,
        }
    }

    /// Serves until it is stopped.
    pub(super) fn run(&mut self) -> Result<(), MonError> {
        self.apply_own_config();
        self.reserve_client_ids();
        loop {
            match self.inputs.recv_timeout(self.due().saturating_sub(self.clock.monotonic())) {
                Ok(input) => self.take(input)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            for _ in 1..BATCH {
                match self.inputs.try_recv() {
                    Ok(input) => self.take(input)?,
                    Err(_) => break,
                }
            }
            let now = self.clock.monotonic();
            if now >= self.next_tick {
                self.tick();
            }
            if now >= self.next_commit || self.stop_by.is_some() {
                self.start_commit();
            }
            if let Some(deadline) = self.stop_by
                && (self.commit.is_none() || now >= deadline)
            {
                return Ok(());
            }
        }
    }

    /// The time of the next work if nothing arrives.
    fn due(&self) -> Duration {
        let next = self.stop_by.map_or(self.next_tick, |deadline| deadline.min(self.next_tick));
        let is_commit_due =
            self.state.can_propose() || self.is_log_due || !self.uncommitted_frames.is_empty();
        if is_commit_due && self.commit.is_none() { next.min(self.next_commit) } else { next }
    }

    fn now(&self) -> Now {
        now(self.clock.as_ref())
    }

    fn take(&mut self, input: Input) -> Result<(), MonError> {
        match input {
            Input::Stop => {
                self.stop_by = Some(self.clock.monotonic() + STOP_TIMEOUT);
                self.is_log_due = true;
            }
            Input::Disconnected(id) => {
                self.sessions.remove(id);
                self.deferred.remove(id);
                self.waiting_tickets.retain(|(conn, _)| conn.id() != id);
            }
            Input::Admin(json, answer) => {
                let reply = self.admin.run(&self.state, &self.sessions, self.now(), &json);
                // The requester may have given up waiting; likewise below.
                let _ = answer.send(reply);
            }
            Input::Metrics(answer) => {
                let metrics = self.admin.expose(&self.state, &self.sessions, self.now());
                let _ = answer.send((metrics, self.state.metrics_targets()));
            }
            Input::Store(reply) => return self.on_stored(reply),
            // Nothing would remove the state of such a message: no reset follows when this side ends a connection.
            Input::Message(conn, _) if Sessions::is_ended(&conn) => {}
            Input::Message(conn, frame)
                if self.commit.is_some() && DeferredMessages::is_deferred(frame.kind()) =>
            {
                self.defer(conn, frame);
            }
            Input::Message(conn, frame) => self.on_message(&conn, frame),
        }
        Ok(())
    }

    fn on_message(&mut self, conn: &Conn, frame: Frame) {
        if let Err(error) = self.message(conn, &frame) {
            tracing::warn!(peer = %conn.peer_addr(), kind = frame.kind(), %error, "message can't be read");
            self.sessions.end(conn);
        } else if matches!(frame.kind(), MonCommand::KIND | PgCas::KIND) {
            self.uncommitted_frames.push(frame);
        }
    }

    /// Keeps a message until the commit in flight has ended.
    fn defer(&mut self, conn: Conn, frame: Frame) {
        let command = match frame.kind() {
            MonCommand::KIND => frame.decode::<MonCommand>().ok(),
            _ => None,
        };
        let reply = command.as_ref().and_then(|command| self.answer_at_once(&conn, command));
        if let Some(reply) = reply {
            self.sessions.send(&conn, &reply);
        } else if let (Err(full), Some(command)) = (self.deferred.push(conn.clone(), frame), command) {
            let reply = MonCommandReply {
                tid: command.tid,
                code: Errno::EAGAIN.negated(),
                status: full.to_string(),
                output: Vec::new().into(),
            };
            self.sessions.send(&conn, &reply);
        }
    }

    /// The answer of a command that only shows something, if the map store does not answer.
    fn answer_at_once(&mut self, conn: &Conn, command: &MonCommand) -> Option<MonCommandReply> {
        let since = self.commit.as_ref()?.started;
        let is_stalled = self.store.health().unavailable.is_some() && self.clock.monotonic() >= since + STALL;
        let peer = conn.peer().filter(|peer| is_stalled && self.is_current(peer))?;
        let now = self.now();
        self.state.answer_at_once(now, self.command_request(conn, &peer.entity, command.clone())?)
    }

    /// Answers deferred commands that only show something, if the map store does not answer.
    fn answer_deferred(&mut self) {
        if self.commit.is_none() {
            return;
        }
        let mut deferred = std::mem::take(&mut self.deferred);
        deferred.answer_commands(|conn, command| {
            let reply = self.answer_at_once(conn, &command);
            reply.inspect(|reply| self.sessions.send(conn, reply)).is_some()
        });
        self.deferred = deferred;
    }

    fn on_stored(&mut self, reply: StoreReply) -> Result<(), MonError> {
        match reply {
            StoreReply::Committed(proposal, lines, incremental) => {
                if let Some((epoch, bytes)) = incremental {
                    self.incrementals.push(epoch, bytes);
                }
                self.finish_commit(&proposal, &lines);
            }
            StoreReply::Trimmed => self.is_trimming = false,
            StoreReply::ServiceKeysStored(keys) => {
                self.is_rotating = false;
                self.service_keys = keys;
                self.sessions.publish_service_keys(&RotatingKeys { keys: self.service_keys.keys().to_vec() });
            }
            StoreReply::ClientIdsReserved(ids) => {
                self.client_ids.add(ids);
                self.grant_waiting_tickets();
            }
            StoreReply::Failed(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Handles a message. An error ends the connection.
    fn message(&mut self, conn: &Conn, frame: &Frame) -> Result<(), nacre_common::Error> {
        let Some(peer) = conn.peer() else { return Ok(()) };
        let entity = &peer.entity;
        // The current key and caps, not those at the time of the connection.
        if !self.is_current(&peer) {
            return Err(nacre_common::Error::Denied(format!("{entity} has lost its key")));
        }
        let caps = self.state.auth().caps(entity).unwrap_or_default();
        let addr = conn.peer_addr().ip();
        match frame.kind() {
            MonCommand::KIND => self.command(conn, entity, frame.decode()?),
            MonSubscribe::KIND => self.subscribe(conn, entity, &caps, frame.decode()?),
            AuthTicketRequest::KIND => self.grant_ticket(conn, frame.decode()?),
            LogAppend::KIND if !caps.allows_service(entity, addr, "log", Perm::WRITE) => {
                tracing::debug!(%entity, "a line for the log refused: no capability to write it");
            }
            LogAppend::KIND => {
                let mut line: LogAppend = frame.decode()?;
                line.text.truncate(line.text.floor_char_boundary(MAX_LOG_LINE_BYTES));
                line.level.truncate(line.level.floor_char_boundary(MAX_LOG_LINE_BYTES));
                self.apply(MapEvent::Log { entity: entity.clone(), line });
            }
            LogSubscribe::KIND => self.subscribe_log(conn, entity, &caps, frame.decode()?),
            DaemonCommand::KIND => self.daemon_command(conn, entity, &caps, &frame.decode()?),
            OsdBoot::KIND
            | OsdFailure::KIND
            | OsdBeacon::KIND
            | OsdMarkMeDown::KIND
            | PgCas::KIND
            | ConfigReport::KIND
            | StatsReport::KIND => {
                let osd = entity.osd_id().filter(|_| speaks_as_osd(&caps, entity, addr));
                let Some(osd) = osd else {
                    let what = format!("{entity} may not speak as an osd");
                    return Err(nacre_common::Error::Denied(what));
                };
                let event = match frame.kind() {
                    OsdBoot::KIND => {
                        let boot: OsdBoot = frame.decode()?;
                        if boot.osd != osd {
                            let what = format!("{entity} may not boot as {}", boot.osd);
                            return Err(nacre_common::Error::Denied(what));
                        }
                        MapEvent::Boot(boot)
                    }
                    OsdFailure::KIND => MapEvent::Failure { reporter: osd, report: frame.decode()? },
                    ConfigReport::KIND => {
                        MapEvent::Config { entity: entity.clone(), report: frame.decode()? }
                    }
                    OsdBeacon::KIND => MapEvent::Alive { osd, alive: frame.decode()? },
                    OsdMarkMeDown::KIND => MapEvent::MarkMeDown { osd, request: frame.decode()? },
                    PgCas::KIND => {
                        self.sessions.register_waiter(conn);
                        MapEvent::Cas { origin: ConnToken(conn.id()), osd, cas: frame.decode()? }
                    }
                    _ => MapEvent::Stats { osd, report: frame.decode()? },
                };
                self.apply(event);
            }
            other => tracing::debug!(kind = other, %entity, "message of an unknown kind is ignored"),
        }
        Ok(())
    }

    fn apply(&mut self, event: MapEvent) {
        let now = self.now();
        let effects = self.state.handle(now, event);
        self.carry_out(effects);
    }

    fn command(&mut self, conn: &Conn, entity: &EntityName, command: MonCommand) {
        if let Some(request) = self.command_request(conn, entity, command) {
            self.sessions.register_waiter(conn);
            self.apply(MapEvent::Command(Box::new(request)));
        }
    }

    /// A command with its context.
    fn command_request(
        &self,
        conn: &Conn,
        entity: &EntityName,
        command: MonCommand,
    ) -> Option<CommandRequest> {
        let fresh_key = match Key::generate() {
            Ok(key) => key,
            Err(error) => {
                tracing::error!(%error, "no random key for a command");
                return None;
            }
        };
        Some(CommandRequest {
            origin: ConnToken(conn.id()),
            entity: entity.clone(),
            peer: conn.peer_addr().ip(),
            caps: self.state.auth().caps(entity).unwrap_or_default(),
            command,
            fresh_key,
        })
    }

    fn subscribe(&mut self, conn: &Conn, entity: &EntityName, caps: &MonCaps, wanted: MonSubscribe) {
        if !may_subscribe(caps, entity, conn.peer_addr().ip()) {
            tracing::warn!(%entity, "subscription refused: no capability to read");
            return;
        }
        self.sessions.subscribe_maps(conn, entity, wanted);
        self.sessions.publish_maps(&self.state, &self.incrementals);
        self.sessions.send_config(conn, &self.state);
    }

    /// Subscribes a peer to lines of the cluster log, if its caps allow that.
    fn subscribe_log(&mut self, conn: &Conn, entity: &EntityName, caps: &MonCaps, wanted: LogSubscribe) {
        if !may_follow_log(caps, entity, conn.peer_addr().ip()) {
            tracing::warn!(%entity, "the cluster log is refused: no capability to read");
            return;
        }
        self.sessions.subscribe_log(conn, wanted, &self.state);
    }

    /// `tell mon.a …`: requires the caps for everything.
    fn daemon_command(&mut self, conn: &Conn, entity: &EntityName, caps: &MonCaps, command: &DaemonCommand) {
        let wanted = MonAccess {
            service: "mon",
            command: "tell",
            args: &BTreeMap::new(),
            perm: Perm::ALL,
            entity,
            peer: conn.peer_addr().ip(),
        };
        let reply = if caps.allows(&wanted) {
            self.admin.run(&self.state, &self.sessions, self.now(), &command.cmd)
        } else {
            CommandFailure(Errno::EACCES, "access denied".into()).into()
        };
        let AdminReply { code, status, output } = reply;
        self.sessions
            .send(conn, &DaemonCommandReply { tid: command.tid, code, status, output: output.into() });
    }

    /// Requests a block of client ids if one is due.
    fn reserve_client_ids(&mut self) {
        if !self.state.is_rolled_back() && self.client_ids.take_request() {
            self.store_thread.send(StoreRequest::ReserveClientIds);
        }
    }

    fn grant_waiting_tickets(&mut self) {
        for (conn, request) in std::mem::take(&mut self.waiting_tickets) {
            self.grant_ticket(&conn, request);
        }
    }

    /// Answers a request for a ticket, or keeps it until there are client ids and all capabilities are durable.
    fn grant_ticket(&mut self, conn: &Conn, request: AuthTicketRequest) {
        let Some(peer) = conn.peer().filter(|peer| self.is_current(peer)) else { return };
        let entity = &peer.entity;
        let caps = self.state.auth().caps(entity).unwrap_or_default();
        let addr = conn.peer_addr().ip();
        let now_unix = self.clock.wall_ns() / 1_000_000_000;
        let ttl = self.config.snapshot().global.auth_service_ticket_ttl.as_secs().max(1);
        let renewed = request
            .renew
            .as_ref()
            .and_then(|blob| self.service_keys.open_expired(blob).ok())
            .filter(|body| body.entity == *entity)
            .and_then(|body| body.client);
        let is_durable = !self.commit.as_ref().is_some_and(|commit| commit.changes_entities);
        let is_in_grace = self.state.ticket_grace_left_ms(self.now()) != Some(0);
        let assigned = match is_durable && is_in_grace && !self.state.is_rolled_back() {
            true => renewed.or_else(|| self.client_ids.allocate().map(ClientId)),
            false => None,
        };
        self.reserve_client_ids();
        let Some(client) = assigned else {
            if self.waiting_tickets.len() < MAX_WAITING_TICKETS {
                self.waiting_tickets.push_back((conn.clone(), request));
            } else {
                self.sessions.end(conn);
            }
            return;
        };
        let record = self.state.auth().get(entity);
        let caps_of = record.map(|r| r.caps.clone()).unwrap_or_default();
        let sealed = SessionKey::generate().and_then(|session_key| {
            self.service_keys.seal(TicketBody {
                entity: entity.clone(),
                client: Some(client),
                caps: caps_of,
                issued_unix: now_unix,
                expires_unix: now_unix + ttl,
                session_key,
            })
        });
        let reply = match sealed {
            Ok(ticket) => AuthTicketReply {
                tid: request.tid,
                code: 0,
                status: String::new(),
                client,
                ticket: Some(TicketGrant {
                    blob: ticket.blob,
                    session_key: ticket.session_key,
                    expires_unix: ticket.expires_unix,
                }),
                keys: if speaks_as_osd(&caps, entity, addr) {
                    self.service_keys.keys().to_vec()
                } else {
                    Vec::new()
                },
            },
            Err(error) => AuthTicketReply {
                tid: request.tid,
                code: error.errno().negated(),
                status: error.to_string(),
                client,
                ticket: None,
                keys: Vec::new(),
            },
        };
        if speaks_as_osd(&caps, entity, addr) {
            self.sessions.subscribe_service_keys(conn);
        }
        self.sessions.send(conn, &reply);
    }

    /// Sends pending changes to the map store, unless a commit is in flight.
    fn start_commit(&mut self) {
        if self.commit.is_some() {
            return;
        }
        let proposal = self.state.propose(self.now());
        let is_log_due = std::mem::take(&mut self.is_log_due) && !self.state.is_rolled_back();
        let stores_log = is_log_due || proposal.is_some();
        let lines = if stores_log { self.state.take_unstored_log(MAX_COMMIT_LOG_LINES) } else { Vec::new() };
        let frames = std::mem::take(&mut self.uncommitted_frames);
        if proposal.is_none() && lines.is_empty() {
            self.sessions.publish_config(&self.state);
            return;
        }
        let proposal = proposal.unwrap_or_else(Proposal::empty);
        let changes_entities = proposal.keys.keys().any(|key| key.starts_with(nacre_mon::keys::AUTH));
        self.commit =
            Some(CommitInFlight { started: self.clock.monotonic(), changes_entities, _frames: frames });
        self.store_thread.send(StoreRequest::Commit(Box::new(proposal), lines));
    }

    /// Answers and publishes what is durable now.
    fn finish_commit(&mut self, proposal: &Proposal, lines: &[ClusterLogEntry]) {
        let changes_entities = self.commit.take().is_some_and(|commit| commit.changes_entities);
        self.next_commit = self.clock.monotonic() + self.config.snapshot().mon.mon_propose_interval;
        self.log_file.append(&self.config.snapshot(), lines);
        if changes_entities {
            self.shared_keys.replace(self.state.auth());
            self.end_unauthorized();
            self.grant_waiting_tickets();
        }
        self.sessions.publish_log(lines);
        if proposal.number != Proposal::empty().number {
            let effects = self.state.on_committed(proposal.number);
            if proposal.incremental.is_some() {
                self.sessions.publish_maps(&self.state, &self.incrementals);
            }
            self.carry_out(effects);
            if self.state.config_version() != self.config_version {
                self.apply_own_config();
            }
            self.sessions.publish_config(&self.state);
        }
        for (conn, frame) in self.deferred.take() {
            if !Sessions::is_ended(&conn) {
                self.on_message(&conn, frame);
            }
        }
    }

    /// Whether the key that the peer connected with is still its entity's key.
    fn is_current(&self, peer: &Peer) -> bool {
        let record = self.state.auth().get(&peer.entity);
        record.is_some_and(|record| record.key.fingerprint() == peer.key_fingerprint)
    }

    /// Ends the connections of entities that were removed or got another key, and of subscribers whose capabilities no
    /// longer allow what they receive. Needed because they only receive: requests are checked one by one.
    fn end_unauthorized(&mut self) {
        let denied = |(conn, usage): &(&Conn, ConnUsage)| {
            conn.peer().is_some_and(|peer| !self.is_current(&peer) || !self.may(&peer.entity, conn, *usage))
        };
        let gone: Vec<Conn> =
            self.sessions.connections().filter(denied).map(|(conn, _)| conn.clone()).collect();
        for conn in gone {
            tracing::info!(peer = ?conn.peer_entity(), "connection ended: its key or what it may do has changed");
            self.sessions.end(&conn);
        }
    }

    /// Whether an entity's capabilities allow this use of its connection.
    fn may(&self, entity: &EntityName, conn: &Conn, usage: ConnUsage) -> bool {
        let addr = conn.peer_addr().ip();
        let caps = self.state.auth().caps(entity).unwrap_or_default();
        match usage {
            ConnUsage::Answers => true,
            ConnUsage::Maps => may_subscribe(&caps, entity, addr),
            ConnUsage::ServiceKeys => speaks_as_osd(&caps, entity, addr),
            ConnUsage::Log => may_follow_log(&caps, entity, addr),
        }
    }

    fn carry_out(&mut self, effects: Vec<MapEffect>) {
        for effect in effects {
            match effect {
                MapEffect::CasReply { to, reply } => self.sessions.answer(to, &reply),
                MapEffect::CommandReply { to, reply } => self.sessions.answer(to, &reply),
            }
        }
    }

    fn tick(&mut self) {
        self.next_tick = self.clock.monotonic() + TICK;
        self.state.set_tuning(Tuning::from_options(&self.config.snapshot()));
        self.apply(MapEvent::Tick);
        let now = self.now();
        self.state.set_client_sessions(self.sessions.client_count());
        self.state.set_map_store_health(now, self.store.health());
        self.state.update_mutes(now);
        self.answer_deferred();
        self.grant_waiting_tickets();
        let tick_s = self.config.get().mon.mon_tick_interval.as_secs().max(1);
        if self.ticks.is_multiple_of(tick_s) {
            self.log_health();
        }
        self.ticks += 1;
        self.is_log_due = true;
        self.start_trim();
        self.rotate_keys();
    }

    fn start_trim(&mut self) {
        if self.state.is_rolled_back() || std::mem::replace(&mut self.is_trimming, true) {
            return;
        }
        let map = self.state.map();
        let full = Persistence::is_full_map_due(self.last_full, map.epoch).then(|| Box::new(map.clone()));
        if let Some(map) = &full {
            self.last_full = map.epoch;
        }
        self.store_thread.send(StoreRequest::Trim {
            full,
            log_from: self.state.log().trim_limit(),
            newest: map.version(),
        });
    }

    /// Reports changes of health in the cluster log.
    fn log_health(&mut self) {
        let now = self.now();
        let health = self.state.health(now);
        for (level, text) in self.sessions.take_health_log(&health) {
            if level >= LogLevel::Warn {
                tracing::warn!("{text}");
            } else {
                tracing::info!("{text}");
            }
            self.state.append_log(now, level, text);
        }
    }

    fn rotate_keys(&mut self) {
        if self.is_rotating || self.state.is_rolled_back() {
            return;
        }
        let now_unix = self.clock.wall_ns() / 1_000_000_000;
        let ttl = self.config.snapshot().global.auth_service_ticket_ttl.as_secs().max(1);
        let mut next = self.service_keys.clone();
        match next.rotate(now_unix, ttl) {
            Ok(false) => {}
            Ok(true) => {
                self.is_rotating = true;
                self.store_thread.send(StoreRequest::PutServiceKeys(next));
            }
            Err(error) => tracing::error!(%error, "service keys could not be rotated; trying again"),
        }
    }

    /// Applies the configuration database to the authority itself.
    fn apply_own_config(&mut self) {
        self.config_version = self.state.config_version();
        let own = self.state.config_of(self.config.entity());
        let values = own.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        if let Err(error) = self.config.set_mon_values(values) {
            tracing::error!(%error, "the configuration database does not apply");
        }
        self.state.set_tuning(Tuning::from_options(&self.config.snapshot()));
        let report = self.config.report();
        self.apply(MapEvent::Config { entity: EntityName::mon(), report });
    }
}

/// Whether `entity` may receive maps and its configuration.
fn may_subscribe(caps: &MonCaps, entity: &EntityName, peer: IpAddr) -> bool {
    caps.allows_service(entity, peer, "osd", Perm::READ)
}

/// Whether `entity` may receive the cluster log.
fn may_follow_log(caps: &MonCaps, entity: &EntityName, peer: IpAddr) -> bool {
    caps.allows_service(entity, peer, "mon", Perm::READ)
}

/// Whether `entity` may boot, report and change membership: an OSD by name with all rights in service `osd`.
fn speaks_as_osd(caps: &MonCaps, entity: &EntityName, peer: IpAddr) -> bool {
    entity.osd_id().is_some() && caps.allows_service(entity, peer, "osd", Perm::ALL)
}
