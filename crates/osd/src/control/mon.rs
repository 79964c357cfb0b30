//! The session with the map authority: connecting, reconnecting and tickets.

use super::{Control, SECOND_NS, State};
use crate::clock;
use nacre_common::auth::{AuthTicketReply, AuthTicketRequest, RotatingKeys, Ticket};
use nacre_common::error::Error;
use nacre_runtime::msgr::{Conn, ConnectTarget, Frame, Policy};
use nacre_types::ids::EntityName;
use nacre_types::msg::{ConfigPublish, MapPublish, Message, PgCasReply};
use std::sync::Arc;

/// The first and the longest wait before the next attempt to connect to a monitor.
const BACKOFF_NS: (u64, u64) = (SECOND_NS / 10, 2 * SECOND_NS);
/// Time after which an unanswered request for a ticket is repeated.
const TICKET_RETRY_NS: u64 = 5 * SECOND_NS;

/// State of the session.
#[derive(Default)]
pub(super) struct MonSession {
    conn: Option<Conn>,
    up: bool,
    /// Index of the next monitor address to try.
    turn: usize,
    backoff_ns: u64,
    retry_ns: u64,
    next_ticket_ns: u64,
}

impl MonSession {
    /// When the session next has work to do.
    pub(super) fn next_wake_ns(&self) -> u64 {
        if self.conn.is_none() { self.retry_ns } else { u64::MAX }
    }
}

impl Control {
    /// Connects if there is no connection, and renews the ticket before it expires.
    pub(super) fn maintain_session(&self, state: &mut State, now_ns: u64) {
        if state.mon.conn.is_none() && now_ns >= state.mon.retry_ns {
            self.connect(state, now_ns);
        }
        if state.mon.up && now_ns >= state.mon.next_ticket_ns {
            self.ask_ticket(state, now_ns);
        }
    }

    fn connect(&self, state: &mut State, now_ns: u64) {
        let session = &mut state.mon;
        session.backoff_ns = (session.backoff_ns * 2).clamp(BACKOFF_NS.0, BACKOFF_NS.1);
        session.retry_ns = now_ns + session.backoff_ns;
        let addrs = match self.shared.config.get().global.mon_host.resolve() {
            Ok(addrs) if !addrs.is_empty() => addrs,
            Ok(_) => {
                self.shared.fatal("mon_host is not set: no monitor to go to");
                return;
            }
            Err(error) => {
                tracing::warn!(%error, "can't resolve mon_host");
                return;
            }
        };
        let Some(messenger) = self.messenger() else { return };
        let addr = addrs[session.turn % addrs.len()];
        session.turn = session.turn.wrapping_add(1);
        let target = ConnectTarget {
            addr,
            entity: None,
            policy: Policy::Lossy,
            lane: 0,
            credentials: Arc::clone(&self.key),
        };
        match messenger.connect(target) {
            Ok(conn) => session.conn = Some(conn),
            Err(error) => tracing::warn!(%addr, %error, "can't connect to the monitor"),
        }
    }

    pub(super) fn on_mon_connected(&self, conn: &Conn) {
        let now_ns = clock::boot_ns();
        let state = &mut *self.state.lock();
        if state.mon.conn.as_ref() != Some(conn) {
            return;
        }
        tracing::info!(addr = %conn.peer_addr(), "connected to the monitor");
        state.mon.up = true;
        state.mon.backoff_ns = 0;
        self.shared.outside.mon.store(Some(Arc::new(conn.clone())));
        self.ask_ticket(state, now_ns);
        state.machine.on_connected();
    }

    /// Handles the end of the connection and schedules the next one.
    pub(super) fn on_mon_lost(&self, conn: &Conn) {
        let state = &mut *self.state.lock();
        if state.mon.conn.as_ref() != Some(conn) {
            return;
        }
        self.shared.outside.mon.store(None);
        state.mon.conn = None;
        state.mon.up = false;
        state.mon.retry_ns = clock::boot_ns() + state.mon.backoff_ns;
        state.machine.on_disconnected();
    }

    fn ask_ticket(&self, state: &mut State, now_ns: u64) {
        state.mon.next_ticket_ns = now_ns + TICKET_RETRY_NS;
        let renew = self.shared.outside.ticket.load().as_ref().map(|ticket| ticket.blob.clone());
        self.shared.to_mon(&AuthTicketRequest { tid: self.shared.next_mon_tid(), renew });
    }

    pub(super) fn on_mon_message(&self, conn: &Conn, frame: &Frame) -> Result<(), Error> {
        let state = &mut *self.state.lock();
        if state.mon.conn.as_ref() != Some(conn) {
            return Ok(());
        }
        match frame.kind() {
            MapPublish::KIND => {
                let publish: MapPublish = frame.decode()?;
                state
                    .machine
                    .on_maps(&publish)
                    .map_err(|error| Error::Corrupt { what: "map", detail: error.to_string() })?;
            }
            PgCasReply::KIND => {
                state.machine.on_cas(frame.decode()?);
            }
            AuthTicketReply::KIND => self.on_ticket(state, frame.decode()?),
            RotatingKeys::KIND => {
                let keys: RotatingKeys = frame.decode()?;
                self.service_keys.update(keys.keys);
            }
            ConfigPublish::KIND => {
                let publish: ConfigPublish = frame.decode()?;
                let values = publish.values.iter().map(|(name, value)| (name.as_str(), value.as_str()));
                if let Err(error) = self.shared.config.set_mon_values(values) {
                    tracing::warn!(%error, "the monitor's configuration is not taken");
                }
            }
            kind => tracing::debug!(kind, "message of an unknown kind from the monitor"),
        }
        Ok(())
    }

    fn on_ticket(&self, state: &mut State, reply: AuthTicketReply) {
        if reply.code < 0 {
            tracing::error!(code = reply.code, status = %reply.status, "the monitor gives no ticket");
            return;
        }
        if !reply.keys.is_empty() {
            self.service_keys.update(reply.keys);
        }
        let Some(grant) = reply.ticket else { return };
        let now_ns = clock::boot_ns();
        let wall_s = clock::wall_s();
        let life_s = match self.service_keys.open_ignoring_time(&grant.blob) {
            Ok(ticket) => {
                if let Some(difference) = self.service_keys.excess_clock_skew(&ticket, wall_s) {
                    tracing::warn!(
                        "the clock of this OSD is {difference} the monitor's, more than auth_clock_skew allows: tickets \
                         of clients and OSDs are refused or end early; set the clocks"
                    );
                }
                // The lifetime is independent of this machine's clock, which may be wrong.
                ticket.expires_unix.saturating_sub(ticket.issued_unix)
            }
            Err(_) => grant.expires_unix.saturating_sub(wall_s),
        };
        // Renewed when three quarters of its lifetime have passed.
        state.mon.next_ticket_ns = now_ns + (life_s * SECOND_NS / 4 * 3).max(SECOND_NS);
        self.shared.outside.ticket.store(Some(Arc::new(Ticket {
            entity: EntityName::osd(self.shared.whoami),
            blob: grant.blob,
            session_key: grant.session_key,
            expires_unix: grant.expires_unix,
        })));
        state.machine.boot();
    }
}
