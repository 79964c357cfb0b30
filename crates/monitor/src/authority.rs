//! The thread that owns the map: applies inputs, commits the changes, answers and publishes.

use crate::admin::MonAdmin;
use crate::cluster_log::ClusterLogFile;
use crate::error::MonError;
use crate::input::Input;
use crate::persist::Persistence;
use crate::sessions::{ConnUsage, Sessions};
use crate::{EntityKeys, now};
use nacre_common::auth::{
    AuthTicketReply, AuthTicketRequest, Key, Peer, RotatingKeys, RotatingSecrets, SessionKey, TicketBody,
    TicketGrant,
};
use nacre_common::clock::Clock;
use nacre_common::config::Config;
use nacre_mon::CommandRequest;
use nacre_mon::logic::{ConnToken, LogLevel, MapEffect, MapEvent, MapState, Now, Tuning};
use nacre_runtime::admin::{AdminReply, CommandFailure};
use nacre_runtime::msgr::{Conn, Frame};
use nacre_types::caps::mon::{MonAccess, MonCaps, Perm};
use nacre_types::errno::Errno;
use nacre_types::ids::{ClientId, EntityName};
use nacre_types::msg::{
    ConfigReport, DaemonCommand, DaemonCommandReply, LogAppend, LogSubscribe, Message, MonCommand,
    MonSubscribe, OsdBeacon, OsdBoot, OsdFailure, OsdMarkMeDown, PgCas, StatsReport,
};
use std::collections::BTreeMap;
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

pub(super) struct Authority {
    config: Config,
    state: MapState,
    persistence: Persistence,
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
    uncommitted_frames: Vec<Frame>,
    admin: MonAdmin,
}

impl Authority {
    #[allow(clippy::too_many_arguments, reason = "what one thread is made of")]
    pub(super) fn new(
        config: Config,
        state: MapState,
        persistence: Persistence,
        service_keys: RotatingSecrets,
        shared_keys: Arc<EntityKeys>,
        clock: Arc<dyn Clock>,
        inputs: Receiver<Input>,
        admin: MonAdmin,
    ) -> Authority {
        let sessions = Sessions::default();
        Authority {
            config,
            state,
            persistence,
            service_keys,
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
        loop {
            let mut stop = false;
            match self.inputs.recv_timeout(self.due().saturating_sub(self.clock.monotonic())) {
                Ok(input) => stop |= self.take(input)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            while self.uncommitted_frames.len() < BATCH && !stop {
                match self.inputs.try_recv() {
                    Ok(input) => stop |= self.take(input)?,
                    Err(_) => break,
                }
            }
            if self.clock.monotonic() >= self.next_tick {
                self.tick()?;
            }
            if stop || self.uncommitted_frames.len() >= BATCH || self.clock.monotonic() >= self.next_commit {
                self.commit()?;
                // The messages release their share of the throttle only now.
                self.uncommitted_frames.clear();
            }
            if stop {
                return self.flush_log();
            }
        }
    }

    /// The time of the next work if nothing arrives.
    fn due(&self) -> Duration {
        if self.state.has_changes() || !self.uncommitted_frames.is_empty() {
            self.next_tick.min(self.next_commit)
        } else {
            self.next_tick
        }
    }

    fn now(&self) -> Now {
        now(self.clock.as_ref())
    }

    fn take(&mut self, input: Input) -> Result<bool, MonError> {
        match input {
            Input::Stop => return Ok(true),
            Input::Disconnected(id) => self.sessions.remove(id),
            Input::Admin(json, answer) => {
                let reply = self.admin.run(&self.state, &self.sessions, self.now(), &json);
                // The requester may have given up waiting; likewise below.
                let _ = answer.send(reply);
            }
            Input::Metrics(answer) => {
                let metrics = self.admin.expose(&self.state, &self.sessions, self.now());
                let _ = answer.send((metrics, self.state.metrics_targets()));
            }
            // Nothing would remove the state of such a message: no reset follows when this side ends a connection.
            Input::Message(conn, _) if Sessions::is_ended(&conn) => {}
            Input::Message(conn, frame) => {
                if let Err(error) = self.message(&conn, &frame)? {
                    tracing::warn!(peer = %conn.peer_addr(), kind = frame.kind(), %error, "message can't be read");
                    self.sessions.end(&conn);
                }
                self.uncommitted_frames.push(frame);
            }
        }
        Ok(false)
    }

    /// Handles a message. The outer error ends the authority, the inner one the connection.
    #[allow(clippy::type_complexity)]
    fn message(&mut self, conn: &Conn, frame: &Frame) -> Result<Result<(), nacre_common::Error>, MonError> {
        let Some(peer) = conn.peer() else { return Ok(Ok(())) };
        let entity = &peer.entity;
        // The current key and caps, not those at the time of the connection.
        if !self.is_current(&peer) {
            return Ok(Err(nacre_common::Error::Denied(format!("{entity} has lost its key"))));
        }
        let caps = self.state.auth().caps(entity).unwrap_or_default();
        let addr = conn.peer_addr().ip();
        macro_rules! decode {
            () => {
                match frame.decode() {
                    Ok(message) => message,
                    Err(error) => return Ok(Err(error)),
                }
            };
        }
        match frame.kind() {
            MonCommand::KIND => self.command(conn, entity, caps, decode!()),
            MonSubscribe::KIND => self.subscribe(conn, entity, &caps, decode!()),
            AuthTicketRequest::KIND => self.ticket(conn, entity, &caps, decode!())?,
            LogAppend::KIND if !caps.allows_service(entity, addr, "log", Perm::WRITE) => {
                tracing::debug!(%entity, "a line for the log refused: no capability to write it");
            }
            LogAppend::KIND => {
                let mut line: LogAppend = decode!();
                line.text.truncate(line.text.floor_char_boundary(MAX_LOG_LINE_BYTES));
                line.level.truncate(line.level.floor_char_boundary(MAX_LOG_LINE_BYTES));
                self.apply(MapEvent::Log { entity: entity.clone(), line });
            }
            LogSubscribe::KIND => self.subscribe_log(conn, entity, &caps, decode!()),
            DaemonCommand::KIND => self.daemon_command(conn, entity, &caps, &decode!()),
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
                    return Ok(Err(nacre_common::Error::Denied(what)));
                };
                let event = match frame.kind() {
                    OsdBoot::KIND => {
                        let boot: OsdBoot = decode!();
                        if boot.osd != osd {
                            let what = format!("{entity} may not boot as {}", boot.osd);
                            return Ok(Err(nacre_common::Error::Denied(what)));
                        }
                        MapEvent::Boot(boot)
                    }
                    OsdFailure::KIND => MapEvent::Failure { reporter: osd, report: decode!() },
                    ConfigReport::KIND => MapEvent::Config { entity: entity.clone(), report: decode!() },
                    OsdBeacon::KIND => MapEvent::Alive { osd, alive: decode!() },
                    OsdMarkMeDown::KIND => MapEvent::MarkMeDown { osd, request: decode!() },
                    PgCas::KIND => {
                        self.sessions.register_waiter(conn);
                        MapEvent::Cas { origin: ConnToken(conn.id()), osd, cas: decode!() }
                    }
                    _ => MapEvent::Stats { osd, report: decode!() },
                };
                self.apply(event);
            }
            other => tracing::debug!(kind = other, %entity, "message of an unknown kind is ignored"),
        }
        Ok(Ok(()))
    }

    fn apply(&mut self, event: MapEvent) {
        let now = self.now();
        let effects = self.state.handle(now, event);
        self.carry_out(effects);
    }

    fn command(&mut self, conn: &Conn, entity: &EntityName, caps: Arc<MonCaps>, command: MonCommand) {
        let fresh_key = match Key::generate() {
            Ok(key) => key,
            Err(error) => {
                tracing::error!(%error, "no random key for a command");
                return;
            }
        };
        self.sessions.register_waiter(conn);
        let request = CommandRequest {
            origin: ConnToken(conn.id()),
            entity: entity.clone(),
            peer: conn.peer_addr().ip(),
            caps,
            command,
            fresh_key,
        };
        self.apply(MapEvent::Command(Box::new(request)));
    }

    fn subscribe(&mut self, conn: &Conn, entity: &EntityName, caps: &MonCaps, wanted: MonSubscribe) {
        if !may_subscribe(caps, entity, conn.peer_addr().ip()) {
            tracing::warn!(%entity, "subscription refused: no capability to read");
            return;
        }
        self.sessions.subscribe_maps(conn, entity, wanted);
        self.sessions.publish_maps(&self.state, &self.persistence);
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

    fn ticket(
        &mut self,
        conn: &Conn,
        entity: &EntityName,
        caps: &MonCaps,
        request: AuthTicketRequest,
    ) -> Result<(), MonError> {
        let addr = conn.peer_addr().ip();
        let now_unix = self.clock.wall_ns() / 1_000_000_000;
        let ttl = self.config.snapshot().global.auth_service_ticket_ttl.as_secs().max(1);
        let renewed = request
            .renew
            .and_then(|blob| self.service_keys.open_expired(&blob).ok())
            .filter(|body| body.entity == *entity)
            .and_then(|body| body.client);
        let client = match renewed {
            Some(client) => client,
            None => ClientId(self.persistence.allocate_client_id()?),
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
                keys: if speaks_as_osd(caps, entity, addr) {
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
        if speaks_as_osd(caps, entity, addr) {
            self.sessions.subscribe_service_keys(conn);
        }
        self.sessions.send(conn, &reply);
        Ok(())
    }

    /// Makes pending changes durable, then answers and publishes.
    fn commit(&mut self) -> Result<(), MonError> {
        while let Some(proposal) = self.state.propose(self.now()) {
            let lines = self.state.take_unstored_log(Persistence::MAX_COMMIT_LOG_LINES);
            self.persistence.commit(&proposal, &lines)?;
            self.log_file.append(&self.config.snapshot(), &lines);
            self.next_commit = self.clock.monotonic() + self.config.snapshot().mon.mon_propose_interval;
            if proposal.keys.keys().any(|key| key.starts_with(nacre_mon::keys::AUTH)) {
                self.shared_keys.replace(self.state.auth());
                self.end_unauthorized();
            }
            self.sessions.publish_log(&lines);
            let effects = self.state.on_committed(proposal.number);
            if proposal.incremental.is_some() {
                self.sessions.publish_maps(&self.state, &self.persistence);
            }
            self.carry_out(effects);
            if self.state.config_version() != self.config_version {
                self.apply_own_config();
            }
        }
        self.sessions.publish_config(&self.state);
        Ok(())
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

    fn flush_log(&mut self) -> Result<(), MonError> {
        let lines = self.state.take_unstored_log(Persistence::MAX_COMMIT_LOG_LINES);
        if !lines.is_empty() {
            self.persistence.commit(&nacre_mon::logic::Proposal::empty(), &lines)?;
            self.log_file.append(&self.config.snapshot(), &lines);
            self.sessions.publish_log(&lines);
        }
        Ok(())
    }

    fn carry_out(&mut self, effects: Vec<MapEffect>) {
        for effect in effects {
            match effect {
                MapEffect::CasReply { to, reply } => self.sessions.answer(to, &reply),
                MapEffect::CommandReply { to, reply } => self.sessions.answer(to, &reply),
            }
        }
    }

    fn tick(&mut self) -> Result<(), MonError> {
        self.next_tick = self.clock.monotonic() + TICK;
        self.state.set_tuning(Tuning::from_options(&self.config.snapshot()));
        self.apply(MapEvent::Tick);
        let now = self.now();
        self.state.set_client_sessions(self.sessions.client_count());
        self.state.update_mutes(now);
        let tick_s = self.config.get().mon.mon_tick_interval.as_secs().max(1);
        if self.ticks.is_multiple_of(tick_s) {
            self.log_health();
        }
        self.ticks += 1;
        self.flush_log()?;
        let log_from = self.state.log().trim_limit();
        self.persistence.trim(self.state.map(), log_from)?;
        self.rotate_keys()
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

    fn rotate_keys(&mut self) -> Result<(), MonError> {
        let now_unix = self.clock.wall_ns() / 1_000_000_000;
        let ttl = self.config.snapshot().global.auth_service_ticket_ttl.as_secs().max(1);
        let mut next = self.service_keys.clone();
        match next.rotate(now_unix, ttl) {
            Ok(false) => Ok(()),
            Ok(true) => {
                self.persistence.put_service_keys(&next)?;
                self.service_keys = next;
                self.sessions.publish_service_keys(&RotatingKeys { keys: self.service_keys.keys().to_vec() });
                Ok(())
            }
            Err(error) => {
                tracing::error!(%error, "service keys could not be rotated; trying again");
                Ok(())
            }
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
