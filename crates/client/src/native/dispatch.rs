//! Handles the messages on the session's connections.

use super::state::CompletionBatch;
use super::{Shared, mon};
use nacre_common::auth::AuthTicketReply;
use nacre_engine::command_result;
use nacre_objecter::apply_publish;
use nacre_runtime::log::NOTICE_TARGET;
use nacre_runtime::msgr::{Conn, Dispatcher, Frame, ResetReason};
use nacre_types::Epoch;
use nacre_types::encoding;
use nacre_types::msg::{
    ConfigPublish, DaemonCommandReply, LogPublish, MapPublish, Message, MonCommandReply, OsdBackoff,
    OsdReply, WatchLost, WatchNotify,
};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Instant;

pub(super) struct Dispatch {
    /// Weak: the messenger outlives the session by the time of its shutdown.
    shared: Weak<Shared>,
}

impl Dispatch {
    pub(super) fn new(shared: &Arc<Shared>) -> Dispatch {
        Dispatch { shared: Arc::downgrade(shared) }
    }
}

impl Dispatcher for Dispatch {
    fn on_message(&self, conn: &Conn, frame: Frame) {
        let Some(shared) = self.shared.upgrade() else { return };
        let handled = match frame.kind() {
            OsdReply::KIND => frame.decode().map(|reply| shared.on_reply(reply)),
            OsdBackoff::KIND => frame.decode().map(|backoff| shared.on_backoff(backoff)),
            WatchNotify::KIND => frame.decode().map(|message| shared.on_watch_notify(message)),
            WatchLost::KIND => frame.decode().map(|message| shared.on_watch_lost(conn, message)),
            MapPublish::KIND => frame.decode().map(|maps| shared.on_maps(conn, &maps)),
            MonCommandReply::KIND => frame.decode().map(|reply| shared.on_mon_reply(reply)),
            DaemonCommandReply::KIND => frame.decode().map(|reply| shared.on_daemon_reply(reply)),
            LogPublish::KIND => frame.decode().map(|publish| shared.on_log(&publish)),
            ConfigPublish::KIND => frame.decode().map(|config| shared.on_config(&config)),
            AuthTicketReply::KIND => frame.decode().map(|reply| shared.on_ticket(conn, reply)),
            kind => {
                tracing::debug!(kind, peer = %conn.peer_addr(), "message of an unknown kind ignored");
                Ok(())
            }
        };
        if let Err(error) = handled {
            tracing::error!(peer = %conn.peer_addr(), %error, "bad message; the connection is dropped");
            conn.abort();
            self.on_reset(conn, ResetReason::Failed(error));
        }
    }

    fn on_reset(&self, conn: &Conn, reset: ResetReason) {
        let Some(shared) = self.shared.upgrade() else { return };
        let mut batch = CompletionBatch::default();
        let now_ms = shared.now_ms();
        let osd = shared.state.lock().on_reset(conn, now_ms, &mut batch);
        if let ResetReason::Failed(nacre_common::Error::Expired(why)) = &reset {
            let notice = osd.and_then(|osd| shared.clock_notices.lock().on_refusal(Instant::now(), osd, why));
            if let Some(notice) = notice {
                tracing::warn!(target: NOTICE_TARGET, "{notice}");
            }
            shared.renew.notify_one();
        }
        tracing::debug!(peer = %conn.peer_addr(), ?reset, "connection reset");
        match osd {
            Some(osd) => {
                shared.watches_on_reset(osd);
                shared.timer.notify_one();
            }
            None => shared.on_mon_reset(conn, &reset),
        }
        batch.deliver();
    }
}

impl Shared {
    fn on_reply(&self, reply: OsdReply) {
        self.with_objecter(|objecter, sink| objecter.on_reply(reply, sink));
    }

    fn on_backoff(&self, backoff: OsdBackoff) {
        let now_ms = self.now_ms();
        self.state.lock().objecter.on_backoff(backoff, now_ms);
        self.timer.notify_one();
    }

    fn on_mon_reset(&self, conn: &Conn, reset: &ResetReason) {
        self.state.lock().mon.take_if(|mon| mon == conn);
        let reason = match reset {
            ResetReason::Failed(error) => error.clone(),
            _ => nacre_common::Error::Closed,
        };
        // Others are connections to OSDs that were replaced, or earlier ones to monitors.
        if conn.id() == self.mon_conn.load(Ordering::Relaxed) {
            self.mon_lost.send_replace((conn.id(), reason));
        }
    }

    fn on_mon_reply(&self, reply: MonCommandReply) {
        let command = self.state.lock().mon_commands.remove(&reply.tid);
        if let Some(command) = command {
            command.done.complete(command_result(reply.code, reply.status, reply.output));
        }
    }

    /// Delivers lines of the cluster log. Lines that are repeated on a new session are delivered once.
    fn on_log(&self, publish: &LogPublish) {
        let mut state = self.state.lock();
        let Some((follow, seen)) = &mut state.log else { return };
        let fresh: Vec<_> =
            publish.lines.iter().filter(|line| seen.is_none_or(|seen| line.seq > seen)).collect();
        *seen = publish.lines.iter().map(|line| line.seq).max().max(*seen);
        let follower = follow.follower.clone();
        drop(state);
        fresh.into_iter().for_each(|line| follower(line));
    }

    fn on_daemon_reply(&self, reply: DaemonCommandReply) {
        let command = {
            let mut state = self.state.lock();
            let to_osd = state.osd_commands.remove(&reply.tid).map(|(_, command)| command);
            to_osd.or_else(|| state.mon_commands.remove(&reply.tid))
        };
        if let Some(command) = command {
            command.done.complete(command_result(reply.code, reply.status, reply.output));
        }
    }

    fn on_config(&self, publish: &ConfigPublish) {
        let values = publish.values.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        if let Err(error) = self.config.set_mon_values(values) {
            tracing::warn!(%error, "configuration from the monitor not taken");
        }
    }

    /// Applies published maps in order. If they do not follow the current map, requests a full one.
    fn on_maps(self: &Arc<Self>, conn: &Conn, publish: &MapPublish) {
        let now_ms = self.now_ms();
        let applied: Result<Option<Epoch>, encoding::DecodeError> = self.with_objecter(|objecter, sink| {
            let have = objecter.map().cloned();
            let map = apply_publish(have.as_ref(), publish)?;
            if let Some(map) = map {
                let epoch = map.epoch;
                objecter.on_map(map, now_ms, sink);
                return Ok(Some(epoch));
            }
            Ok(None)
        });
        match applied {
            Ok(Some(epoch)) => {
                self.watches_on_map();
                self.epoch.send_replace(epoch);
                self.timer.notify_one();
                self.session_progress();
            }
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(%error, "published map does not fit; asking for a full one");
                mon::subscribe(conn, Epoch(0));
            }
        }
    }

    /// Marks the session as established once it has a ticket and a map.
    fn session_progress(&self) {
        let established = {
            let state = self.state.lock();
            state.objecter.map().is_some() && state.ticket.lock().is_some()
        };
        if established {
            self.session.send_if_modified(|session| match session {
                mon::Session::Connecting => {
                    *session = mon::Session::Established;
                    true
                }
                _ => false,
            });
        }
    }

    fn on_ticket(self: &Arc<Self>, conn: &Conn, reply: AuthTicketReply) {
        mon::install_ticket(self, conn, reply);
        self.session_progress();
    }
}
