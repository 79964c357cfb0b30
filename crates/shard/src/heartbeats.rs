//! Heartbeats and leases of one OSD: pg's pure machines behind one lock, and their commands until control executes them.
//!
//! Pings arrive on any lane and are answered there; control executes all other commands of the machines.

use nacre_common::options::Options;
use nacre_pg::heartbeat::{HbCommand, HbEvent, HbMsg, Heartbeat, HeartbeatSettings};
use nacre_pg::lease::{LeaseSettings, LeaseSnapshot, LeaseTable};
use nacre_types::ids::{Epoch, OsdId};

/// The longest lease term in nanoseconds, regardless of the heartbeat grace.
const MAX_TERM_NS: u64 = 5_000_000_000;

/// See the module's documentation.
pub struct Heartbeats {
    heartbeat: Heartbeat,
    leases: LeaseTable,
    /// Commands that control has not executed yet.
    said: Vec<HbCommand>,
}

/// The heartbeat settings from the options.
pub fn heartbeat_settings(options: &Options) -> HeartbeatSettings {
    let osd = &options.osd;
    HeartbeatSettings {
        interval_ns: osd.osd_heartbeat_interval.as_nanos() as u64,
        grace_ns: osd.osd_heartbeat_grace.as_nanos() as u64,
        report_interval_ns: osd.osd_mon_report_interval.as_nanos() as u64,
    }
}

/// The lease settings: Ceph's share of the heartbeat grace (`osd_pool_default_read_lease_ratio`), at most 5 s.
pub(crate) fn lease_settings(options: &Options) -> LeaseSettings {
    let share = options.osd.osd_heartbeat_grace.mul_f64(options.mon.osd_pool_default_read_lease_ratio);
    let term_ns = (share.as_nanos() as u64).clamp(1, MAX_TERM_NS);
    LeaseSettings { term_ns, ..LeaseSettings::default() }
}

impl Heartbeats {
    /// Creates the machines of a process that starts now.
    pub fn new(
        me: OsdId,
        boot_nonce: u64,
        settings: HeartbeatSettings,
        lease: LeaseSettings,
        now_ns: u64,
    ) -> Heartbeats {
        Heartbeats {
            heartbeat: Heartbeat::new(me, boot_nonce, settings),
            leases: LeaseTable::new(lease, boot_nonce, now_ns),
            said: Vec::new(),
        }
    }

    /// The leases as a PG sees them.
    pub fn lease_snapshot(&self, now_ns: u64) -> LeaseSnapshot<'_> {
        self.leases.at(now_ns)
    }

    /// Adds a lease from `from`, requested at `now_ns`, that counts under every map.
    #[cfg(test)]
    pub fn hold_lease(&mut self, from: OsdId, now_ns: u64) {
        let request = self.leases.request(from, now_ns);
        let grant = nacre_pg::lease::LeaseGrant {
            boot_nonce: 0,
            epoch: Epoch(0),
            for_boot_nonce: request.boot_nonce,
            sent_at_ns: request.sent_at_ns,
        };
        self.leases.on_grant(from, &grant, now_ns);
    }

    /// Passes an event; the commands wait for [`Heartbeats::take_commands`].
    pub fn feed(&mut self, now_ns: u64, event: HbEvent) {
        self.heartbeat.handle(now_ns, &mut self.leases, event, &mut self.said);
    }

    /// Handles a peer's message. Returns the answer for the connection on which it arrived.
    pub fn on_message(&mut self, now_ns: u64, from: OsdId, msg: HbMsg) -> Option<HbMsg> {
        self.feed(now_ns, HbEvent::Message { from, msg });
        let at = self
            .said
            .iter()
            .position(|said| matches!(said, HbCommand::SendReply { to, .. } if *to == from))?;
        match self.said.remove(at) {
            HbCommand::SendReply { msg, .. } => Some(msg),
            _ => None,
        }
    }

    /// Records that PGs are about to act on `epoch`, though its map is not here yet.
    pub fn advance_acted_epoch(&mut self, epoch: Epoch) {
        self.leases.advance_acted_epoch(epoch);
    }

    /// Removes and returns the commands of the machines.
    pub fn take_commands(&mut self) -> Vec<HbCommand> {
        std::mem::take(&mut self.said)
    }

    /// Whether there are commands for control.
    pub fn has_commands(&self) -> bool {
        !self.said.is_empty()
    }

    /// When to pass [`HbEvent::Tick`] at the latest.
    pub fn next_wake(&self) -> Option<u64> {
        self.heartbeat.next_wake(&self.leases)
    }

    /// The OSDs that this OSD pings.
    pub fn peers(&self) -> Vec<OsdId> {
        self.heartbeat.peers().collect()
    }

    /// Changes the settings.
    pub fn set_settings(&mut self, settings: HeartbeatSettings) {
        self.heartbeat.set_settings(settings);
    }
}
