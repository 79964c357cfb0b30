//! The service map: services that run beside the cluster, with their daemons.

use super::Now;
use std::collections::BTreeMap;

/// A daemon is removed after this much silence, in milliseconds (the default of Ceph's `mgr_service_beacon_grace`).
pub(crate) const BEACON_GRACE_MS: u64 = 60_000;

/// Metadata or status of a daemon, by name.
pub(crate) type DaemonAttrs = BTreeMap<String, String>;

/// A registered daemon.
#[derive(Clone, Debug, Default)]
pub(crate) struct Daemon {
    pub(crate) gid: u64,
    pub(crate) addr: String,
    pub(crate) metadata: DaemonAttrs,
    pub(crate) status: DaemonAttrs,
    pub(crate) start_epoch: u64,
    pub(crate) start_ns: u64,
    pub(crate) status_ns: u64,
    pub(crate) beacon_ns: u64,
    pub(crate) beacon_ms: u64,
}

/// The services with their daemons.
#[derive(Clone, Debug)]
pub(crate) struct ServiceMap {
    /// Increases with each daemon that is added or removed.
    pub(crate) epoch: u64,
    pub(crate) modified_ns: u64,
    pub(crate) services: BTreeMap<String, BTreeMap<String, Daemon>>,
}

impl ServiceMap {
    /// An empty map.
    pub(crate) fn new(now: Now) -> ServiceMap {
        ServiceMap { epoch: 1, modified_ns: now.wall_ns, services: BTreeMap::new() }
    }

    /// Records that a daemon was added or removed.
    pub(crate) fn bump_epoch(&mut self, now: Now) {
        self.epoch += 1;
        self.modified_ns = now.wall_ns;
    }

    /// Removes daemons that have been silent for too long.
    pub(crate) fn expire(&mut self, now: Now) {
        let before = self.daemon_count();
        for daemons in self.services.values_mut() {
            daemons.retain(|_, daemon| now.mono_ms.saturating_sub(daemon.beacon_ms) < BEACON_GRACE_MS);
        }
        self.services.retain(|_, daemons| !daemons.is_empty());
        if self.daemon_count() != before {
            self.bump_epoch(now);
        }
    }

    /// The number of daemons.
    pub(crate) fn daemon_count(&self) -> usize {
        self.services.values().map(BTreeMap::len).sum()
    }
}
