//! The control thread: drives [`nacre_shard::control`], owns the session with the map authority and receives replies to pings.

mod mon;

use crate::clock;
use crate::pings::PingPeer;
use crate::shared::Shared;
use crate::store_kind::{DATA_OPTIONS, set_data_options};
use mon::MonSession;
use nacre_common::auth::{CredentialProvider, RotatingKeyring};
use nacre_common::error::Error;
use nacre_pg::heartbeat::HbEnvelope;
use nacre_runtime::msgr::{Conn, Dispatcher, Frame, Messenger, ResetReason};
use nacre_shard::control;
use nacre_shard::heartbeats;
use nacre_shard::inbox::ShardMessage;
use nacre_shard::shard::ShardCell;
use nacre_types::msg::Message;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const SECOND_NS: u64 = 1_000_000_000;
/// Delay between a change and its report, so that changes close together are reported together.
const REPORT_DELAY: Duration = Duration::from_millis(100);

/// See the module's documentation.
pub(crate) struct Control {
    pub(crate) shared: Arc<Shared>,
    pub(crate) cells: Arc<Vec<ShardCell>>,
    /// Authenticates this OSD to the map authority.
    pub(crate) key: Arc<dyn CredentialProvider>,
    pub(crate) service_keys: Arc<RotatingKeyring>,
    messenger: Mutex<Option<Messenger>>,
    state: Mutex<State>,
}

struct State {
    machine: control::Control,
    mon: MonSession,
}

impl Control {
    /// `machine` must be of the same OSD.
    pub(crate) fn new(
        shared: Arc<Shared>,
        cells: Arc<Vec<ShardCell>>,
        machine: control::Control,
        key: Arc<dyn CredentialProvider>,
        service_keys: Arc<RotatingKeyring>,
    ) -> Control {
        let state = Mutex::new(State { machine, mon: MonSession::default() });
        Control { shared, cells, key, service_keys, messenger: Mutex::default(), state }
    }

    /// Runs the control thread's task until it is dropped.
    pub(crate) async fn run(self: Arc<Self>) {
        loop {
            let wait = Duration::from_nanos(self.round().saturating_sub(clock::boot_ns()));
            tokio::select! {
                () = self.shared.report.notified() => {
                    // Replies to pings can't wait; statistics can.
                    if !self.shared.heartbeats.lock().has_commands() {
                        tokio::time::sleep(REPORT_DELAY).await;
                    }
                    self.state.lock().machine.request_report();
                }
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Does what is due. Returns when to run again.
    fn round(&self) -> u64 {
        let state = &mut *self.state.lock();
        let now_ns = clock::boot_ns();
        self.maintain_session(state, now_ns);
        state.machine.tick().min(state.mon.next_wake_ns()).max(now_ns + 1_000_000)
    }

    /// Sets the messenger. Must be called first.
    pub(crate) fn set_messenger(&self, messenger: Messenger) {
        self.shared.outside.pings.set_messenger(messenger.clone());
        *self.messenger.lock() = Some(messenger);
    }

    fn messenger(&self) -> Option<Messenger> {
        self.messenger.lock().clone()
    }

    /// Drops the messenger and the connections, which have references to this object.
    pub(crate) fn close(&self) {
        self.messenger.lock().take();
        self.state.lock().mon = MonSession::default();
        self.shared.outside.pings.close();
        self.shared.outside.mon.store(None);
        self.shared.outside.peers.close();
        self.shared.outside.copier.close();
        for cell in self.cells.iter() {
            cell.with(|shard| shard.close());
        }
    }

    /// Whether the map shows this process as up.
    pub(crate) fn is_up(&self) -> bool {
        self.shared.is_shown_up()
    }

    /// Begins to stop: notifies the map authority and waits until the map shows this process as down, or for `osd_mon_shutdown_timeout`.
    pub(crate) async fn go_down(&self) {
        let limit = self.shared.config.get().osd.osd_mon_shutdown_timeout;
        let deadline = tokio::time::Instant::now() + limit;
        if !self.shared.prepare_to_stop() {
            return;
        }
        while self.is_up() && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Records in the store the newest map received.
    pub(crate) fn save_superblock(&self) -> nacre_store::Result<()> {
        self.state.lock().machine.save_superblock()
    }
}

/// The control lane's dispatcher: messages of the map authority and replies to pings.
pub(crate) struct ControlDispatcher(pub(crate) Arc<Control>);

impl Dispatcher for ControlDispatcher {
    fn on_message(&self, conn: &Conn, frame: Frame) {
        let control = &self.0;
        let outcome = if frame.kind() == HbEnvelope::KIND {
            control.on_pong(conn, &frame)
        } else {
            control.on_mon_message(conn, &frame)
        };
        if let Err(error) = outcome {
            tracing::error!(peer = ?conn.peer_entity(), %error, "closing a connection that makes no sense");
            conn.close();
            control.on_mon_lost(conn);
        }
    }

    fn on_connect(&self, conn: &Conn) {
        if conn.context::<PingPeer>().is_none() {
            self.0.on_mon_connected(conn);
        }
    }

    fn on_reset(&self, conn: &Conn, reset: ResetReason) {
        let control = &self.0;
        let Some(PingPeer { osd, boot_nonce }) = conn.context::<PingPeer>() else {
            tracing::info!(?reset, "lost the monitor");
            control.on_mon_lost(conn);
            return;
        };
        let refused = matches!(reset, ResetReason::Failed(Error::Unreachable { refused: true, .. }));
        if refused && control.shared.config.get().osd.osd_fast_fail_on_connection_refused {
            control.state.lock().machine.on_connection_refused(*osd, *boot_nonce);
        }
    }
}

impl Control {
    fn on_pong(&self, conn: &Conn, frame: &Frame) -> Result<(), Error> {
        let envelope: HbEnvelope = frame.decode()?;
        if let Some(from) = conn.peer_entity().and_then(|entity| entity.osd_id()) {
            self.state.lock().machine.on_ping_reply(from, envelope);
        }
        Ok(())
    }

    /// Observes the options that can change while the OSD runs.
    pub(crate) fn observe_options(self: &Arc<Self>) {
        // The configuration is a part of `Shared`, so a strong reference would be a cycle.
        let shared = Arc::downgrade(&self.shared);
        let names = ["osd_heartbeat_interval", "osd_heartbeat_grace", "osd_mon_report_interval"];
        self.shared.config.observe(&names, move |options, _| {
            if let Some(shared) = shared.upgrade() {
                shared.heartbeats.lock().set_settings(heartbeats::heartbeat_settings(options));
            }
        });
        let shared = Arc::downgrade(&self.shared);
        let names = [
            "osd_max_backfills",
            "osd_recovery_max_active",
            "osd_recovery_max_active_ssd",
            "osd_tier_promote_max_objects_sec",
            "osd_tier_promote_max_bytes_sec",
        ];
        self.shared.config.observe(&names, move |options, _| {
            if let Some(shared) = shared.upgrade() {
                shared.apply_recovery_options(options);
            }
        });
        let shared = Arc::downgrade(&self.shared);
        let all: Vec<&str> = nacre_common::options::all().map(|spec| spec.name).collect();
        self.shared.config.observe(&all, move |_, _| {
            if let Some(shared) = shared.upgrade() {
                shared.options_changed.store(true, Ordering::Relaxed);
                shared.report.notify_one();
            }
        });
        let shared = Arc::downgrade(&self.shared);
        self.shared.config.observe(DATA_OPTIONS, move |_, _| {
            if let Some(shared) = shared.upgrade() {
                set_data_options(&shared);
            }
        });
        let shared = Arc::downgrade(&self.shared);
        let names = [
            "osd_op_complaint_time",
            "osd_op_history_size",
            "osd_op_history_duration",
            "osd_op_history_slow_op_size",
            "osd_op_history_slow_op_threshold",
        ];
        self.shared.config.observe(&names, move |options, _| {
            if let Some(shared) = shared.upgrade() {
                // A busy shard applies it later; nothing depends on the time.
                let limits = nacre_shard::shard::tracker_limits(options);
                shared.post_all(|| ShardMessage::TrackerLimits(limits.clone()));
            }
        });
        let shared = Arc::downgrade(&self.shared);
        let names = [
            "osd_max_object_size",
            "osd_max_write_size",
            "osd_max_object_name_len",
            "osd_max_object_namespace_len",
            "osd_max_attr_name_len",
            "osd_max_attr_size",
            "osd_max_omap_entries_per_request",
            "osd_max_omap_bytes_per_request",
            "osd_max_pgls",
            "osd_max_write_op_reply_len",
        ];
        self.shared.config.observe(&names, move |options, _| {
            if let Some(shared) = shared.upgrade() {
                shared.limits.store(Arc::new(nacre_shard::shared::request_limits(options)));
            }
        });
    }
}
