//! Leases between pairs of OSDs (rule R4). With leases, a primary answers reads without asking the members, and a new primary
//! knows when the previous one has stopped doing so.
//!
//! An OSD *holds* a lease from a peer for one term from the time it *sent* the request; the peer has *granted* it for one term
//! from the time it *received* the request. The first time is never later than the second, and both sides correct for the worst
//! drift of CLOCK_BOOTTIME. So the holder's lease always ends before the granter's grant does.
//!
//! With a term `T` and clocks that run fast or slow by at most the fraction `d` each, the holder counts `T - m` and the
//! granter `T + m`, where `m = T·d`: in true time the holder's lease lasts at most `(T - m) / (1 - d) = T`, and the
//! grant at least `(T + m) / (1 + d) = T`.
//!
//! A primary may answer a read while it holds leases from every in-sync member (checked after the store read, before the
//! reply). A member may serve as primary, or take part under another primary, from [`LeaseTable::boot_wait_until`] on. Grants are not
//! persisted: a booted OSD assumes that it granted leases to all OSDs just before it went down
//! ([`LeaseTable::boot_wait_until`]).
//!
//! Two fences keep a deposed primary from using new leases. An OSD that is marked down is granted nothing
//! ([`LeaseTable::stop_granting`]), so its grants expire. And a grant names the newest epoch that the granter has acted on, and
//! counts only for a PG that has acted on that map too. So a replaced primary can't continue with its successor's lease, even
//! between the times at which an OSD and its PG receive a map.
//!
//! All times are nanoseconds of this OSD's CLOCK_BOOTTIME. Times in messages are the holder's, and are only returned.

use crate::api::LeaseView;
use nacre_types::{Epoch, OsdId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The most epochs per peer whose grants are kept separately. The newest are kept.
const MAX_EPOCHS_PER_GRANTER: usize = 8;

/// The most processes of one OSD whose grants are kept separately. The newest are kept; the end of an older process's grant is
/// kept in the OSD's common end.
const MAX_PROCESSES_PER_OSD: usize = 4;

/// The duration of leases. It must be the same on every OSD of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseSettings {
    /// The term in nanoseconds.
    pub term_ns: u64,
    /// The most that an OSD's CLOCK_BOOTTIME may run fast or slow against true time, in parts per million.
    pub drift_ppm: u32,
}

impl Default for LeaseSettings {
    /// 16 s, Ceph's `osd_pool_default_read_lease_ratio` of `osd_heartbeat_grace`; and 1000 ppm, twice the maximum slew of NTP,
    /// 500 ppm.
    fn default() -> Self {
        LeaseSettings { term_ns: 16_000_000_000, drift_ppm: 1000 }
    }
}

impl LeaseSettings {
    /// The correction on each side in nanoseconds, rounded up.
    pub fn margin_ns(&self) -> u64 {
        let product = u128::from(self.term_ns) * u128::from(self.drift_ppm);
        u64::try_from(product.div_ceil(1_000_000)).unwrap_or(u64::MAX)
    }

    /// The holder's term from its send, in nanoseconds.
    pub fn holder_term_ns(&self) -> u64 {
        self.term_ns.saturating_sub(self.margin_ns())
    }

    /// The granter's term from the receipt, in nanoseconds.
    pub fn granter_term_ns(&self) -> u64 {
        self.term_ns.saturating_add(self.margin_ns())
    }

    /// The time from a request to the next one in nanoseconds: a quarter of the term.
    pub fn renew_ns(&self) -> u64 {
        (self.term_ns / 4).max(1)
    }
}

/// A request for a lease, sent in a ping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRequest {
    /// The requesting process.
    pub boot_nonce: u64,
    /// The newest map that it has.
    pub epoch: Epoch,
    /// The time of the request, on the requesting OSD's clock.
    pub sent_at_ns: u64,
}

/// The grant of the requested lease, sent in the answer to a ping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseGrant {
    /// The granting process.
    pub boot_nonce: u64,
    /// The newest epoch that the granter has acted on: the lease counts for a holder that has it too.
    pub epoch: Epoch,
    /// The requesting process.
    pub for_boot_nonce: u64,
    /// The request's time.
    pub sent_at_ns: u64,
}

#[derive(Clone, Debug, Default)]
struct LeaseGrants {
    last_sent_ns: u64,
    /// Pairs of a granter's epoch and the latest end of its grants under it, in order of epochs. An epoch is left out if an
    /// earlier epoch has a later end.
    until_ns: Vec<(Epoch, u64)>,
}

impl LeaseGrants {
    /// Records a grant.
    fn add(&mut self, epoch: Epoch, until_ns: u64) {
        if self.until(epoch) >= until_ns {
            return;
        }
        self.until_ns.retain(|(of, until)| *of < epoch || *until > until_ns);
        let at = self.until_ns.partition_point(|(of, _)| *of < epoch);
        self.until_ns.insert(at, (epoch, until_ns));
        if self.until_ns.len() > MAX_EPOCHS_PER_GRANTER {
            self.until_ns.remove(0);
        }
    }

    /// The end of the lease for a holder that has acted on `epoch`.
    fn until(&self, epoch: Epoch) -> u64 {
        let known = self.until_ns.iter().filter(|(of, _)| *of <= epoch);
        known.map(|(_, until)| *until).max().unwrap_or(0)
    }
}

#[derive(Clone, Debug, Default)]
struct Granted {
    /// The ends of the grants by process.
    until_ns: BTreeMap<u64, u64>,
    /// The end of the grants to processes that are no longer kept separately.
    others_until_ns: u64,
    stopped: bool,
    /// Whether no process of the peer can hold a lease from before this OSD booted.
    fresh: bool,
}

/// The leases that one OSD holds from, and granted to, all others.
#[derive(Clone, Debug)]
pub struct LeaseTable {
    settings: LeaseSettings,
    boot_nonce: u64,
    boot_wait_until_ns: u64,
    /// The newest map that this OSD has.
    map_epoch: Epoch,
    /// The newest epoch that it has acted on; ahead of its map after an accepted proposal.
    acted_epoch: Epoch,
    held: BTreeMap<OsdId, LeaseGrants>,
    granted: BTreeMap<OsdId, Granted>,
}

impl LeaseTable {
    /// Creates the table of the process `boot_nonce` that started at `boot_ns`.
    pub fn new(settings: LeaseSettings, boot_nonce: u64, boot_ns: u64) -> LeaseTable {
        LeaseTable {
            settings,
            boot_nonce,
            boot_wait_until_ns: boot_ns.saturating_add(settings.granter_term_ns()),
            map_epoch: Epoch(0),
            acted_epoch: Epoch(0),
            held: BTreeMap::new(),
            granted: BTreeMap::new(),
        }
    }

    /// The settings.
    pub fn settings(&self) -> LeaseSettings {
        self.settings
    }

    /// Records that this OSD has the map of `epoch` and that its PGs are about to act on it. Returns, in order, the peers whose
    /// leases become valid by acting on it.
    pub fn on_map(&mut self, epoch: Epoch, now_ns: u64) -> Vec<OsdId> {
        let before = self.map_epoch;
        self.map_epoch = before.max(epoch);
        self.advance_acted_epoch(epoch);
        let now = self.map_epoch;
        let gained = |held: &LeaseGrants| now_ns >= held.until(before) && now_ns < held.until(now);
        self.held.iter().filter_map(|(osd, held)| gained(held).then_some(*osd)).collect()
    }

    /// Records that this OSD acts on `epoch` though it may not have that map yet: the answer to a proposal. Must be called
    /// before it acts.
    pub fn advance_acted_epoch(&mut self, epoch: Epoch) {
        self.acted_epoch = self.acted_epoch.max(epoch);
    }

    /// Creates the request to send to `to` now.
    pub fn request(&mut self, to: OsdId, now_ns: u64) -> LeaseRequest {
        self.held.entry(to).or_default().last_sent_ns = now_ns;
        LeaseRequest { boot_nonce: self.boot_nonce, epoch: self.map_epoch, sent_at_ns: now_ns }
    }

    /// Records a grant of `from`. Returns whether a lease is held now that was not held before. A grant for another process or
    /// for a request that was never sent does not count; late and repeated grants are harmless.
    pub fn on_grant(&mut self, from: OsdId, grant: &LeaseGrant, now_ns: u64) -> bool {
        let Some(held) = self.held.get_mut(&from) else { return false };
        if grant.for_boot_nonce != self.boot_nonce || grant.sent_at_ns > held.last_sent_ns.min(now_ns) {
            return false;
        }
        let was_held = now_ns < held.until(self.map_epoch);
        held.add(grant.epoch, grant.sent_at_ns.saturating_add(self.settings.holder_term_ns()));
        !was_held && now_ns < held.until(self.map_epoch)
    }

    /// The end of the lease from `from` for a holder that acts on the map of `epoch`; 0 for never.
    pub fn held_until_in_epoch(&self, from: OsdId, epoch: Epoch) -> u64 {
        self.held.get(&from).map_or(0, |held| held.until(epoch))
    }

    /// The end of the lease from `from` for a holder that acts on the newest map; 0 for never.
    pub fn held_until(&self, from: OsdId) -> u64 {
        self.held_until_in_epoch(from, self.map_epoch)
    }

    /// Whether a lease from `from` is held at `now_ns` by a holder that acts on the newest map.
    pub fn holds(&self, from: OsdId, now_ns: u64) -> bool {
        now_ns < self.held_until(from)
    }

    /// Whether leases from all of `from_all` are held at `now_ns` by a holder that acts on the newest map.
    pub fn holds_all(&self, from_all: &[OsdId], now_ns: u64) -> bool {
        from_all.iter().all(|from| self.holds(*from, now_ns))
    }

    /// When the next request to `to` is due.
    pub fn renew_at(&self, to: OsdId) -> u64 {
        self.held.get(&to).map_or(0, |held| held.last_sent_ns.saturating_add(self.settings.renew_ns()))
    }

    /// Answers the request of `to`, received at `received_ns`, and records the grant; `None` while granting is stopped. The
    /// caller has checked that the requesting process is the one that the map shows.
    pub fn grant(&mut self, to: OsdId, request: &LeaseRequest, received_ns: u64) -> Option<LeaseGrant> {
        let granted = self.granted.entry(to).or_default();
        if granted.stopped {
            return None;
        }
        let until_ns = received_ns.saturating_add(self.settings.granter_term_ns());
        granted.until_ns.retain(|nonce, until| *nonce == request.boot_nonce || received_ns < *until);
        let entry = granted.until_ns.entry(request.boot_nonce).or_default();
        *entry = until_ns.max(*entry);
        while granted.until_ns.len() > MAX_PROCESSES_PER_OSD {
            let first_to_end = granted
                .until_ns
                .iter()
                .filter(|(nonce, _)| **nonce != request.boot_nonce)
                .min_by_key(|(_, until)| **until)
                .map(|(nonce, _)| *nonce);
            let Some(ended) = first_to_end.and_then(|nonce| granted.until_ns.remove(&nonce)) else { break };
            granted.others_until_ns = granted.others_until_ns.max(ended);
        }
        Some(LeaseGrant {
            boot_nonce: self.boot_nonce,
            epoch: self.acted_epoch,
            for_boot_nonce: request.boot_nonce,
            sent_at_ns: request.sent_at_ns,
        })
    }

    /// The end of the grants to the process `boot_nonce` of `to`. Ended grants are included while they are remembered.
    pub fn granted_until(&self, to: OsdId, boot_nonce: u64) -> Option<u64> {
        self.granted.get(&to)?.until_ns.get(&boot_nonce).copied()
    }

    /// Stops grants to `to`: the map shows it down. Must be called before any PG acts on that map.
    pub fn stop_granting(&mut self, to: OsdId) {
        self.granted.entry(to).or_default().stopped = true;
    }

    /// Resumes grants to `to`: the map shows it up. Must be called after [`LeaseTable::on_map`] with that map, so that the
    /// grants count only once `to` knows that it was down.
    pub fn resume_granting(&mut self, to: OsdId) {
        self.granted.entry(to).or_default().stopped = false;
    }

    /// Forgets the grants to a process of `to` that is proven to have ended. Silence is no proof.
    pub fn process_gone(&mut self, to: OsdId, boot_nonce: u64) {
        if let Some(granted) = self.granted.get_mut(&to) {
            granted.until_ns.remove(&boot_nonce);
        }
    }

    /// Records the proof that no process of `to` that started before this one is alive: it holds no forgotten lease.
    pub fn skip_boot_wait(&mut self, to: OsdId) {
        self.granted.entry(to).or_default().fresh = true;
    }

    /// The time from which no lease can be valid that this OSD granted in an earlier run.
    pub fn boot_wait_until(&self) -> u64 {
        self.boot_wait_until_ns
    }

    /// The time from which no lease can be valid that this OSD ever granted to `to`. Rises while granting continues.
    pub fn grants_expire_at(&self, to: OsdId) -> u64 {
        let Some(granted) = self.granted.get(&to) else { return self.boot_wait_until_ns };
        let boot_ns = if granted.fresh { 0 } else { self.boot_wait_until_ns };
        let newest_ns = granted.until_ns.values().copied().max().unwrap_or(0);
        boot_ns.max(newest_ns).max(granted.others_until_ns)
    }

    /// Returns the table as a PG sees it at `now_ns`.
    pub fn at(&self, now_ns: u64) -> LeaseSnapshot<'_> {
        LeaseSnapshot { table: self, now_ns }
    }
}

/// A [`LeaseTable`] at one point in time.
#[derive(Clone, Copy, Debug)]
pub struct LeaseSnapshot<'a> {
    table: &'a LeaseTable,
    now_ns: u64,
}

impl LeaseView for LeaseSnapshot<'_> {
    fn holds_lease(&self, from: OsdId, epoch: Epoch) -> bool {
        self.now_ns < self.table.held_until_in_epoch(from, epoch)
    }

    fn grants_expire_at(&self, to: OsdId) -> u64 {
        self.table.grants_expire_at(to)
    }
}

#[cfg(test)]
mod tests;
