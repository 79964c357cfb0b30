//! Leases between pairs of OSDs (rule R4): what lets a primary answer reads without asking anybody, and tells a
//! would-be primary when the old one has stopped doing so.
//!
//! An OSD *holds* a lease from a peer for one term from the moment it *sent* the request; the peer has *granted* it for
//! one term from the moment it *received* it. The first moment is never later than the second, and both sides correct
//! for the worst drift of CLOCK_BOOTTIME, so the holder's lease always ends before the granter's grant does.
//!
//! With a term `T` and clocks that run fast or slow by at most the fraction `d` each, the holder counts `T - m` and the
//! granter `T + m`, where `m = T·d`: in true time the holder's lease lasts at most `(T - m) / (1 - d) = T`, and the
//! grant at least `(T + m) / (1 + d) = T`.
//!
//! A primary may answer a read while it holds leases from every in-sync member (checked after the store read, before
//! the reply). A member may serve as, or help, another primary from [`LeaseTable::quiet_at`] on. Grants are not
//! persisted: a booted OSD takes it that it granted to everybody just before it went down
//! ([`LeaseTable::boot_wait_until`]).
//!
//! Two fences keep a deposed primary from using new leases: an OSD marked down is granted nothing
//! ([`LeaseTable::stop_granting`]), so that its grants run out; and a grant names the newest epoch that the granter has
//! acted on, and counts only for a PG that has acted on that map too: who was replaced can't go on by its successor's
//! lease, not even in the moment between an OSD's receipt of a map and a PG's.
//!
//! All times are nanoseconds of this OSD's CLOCK_BOOTTIME; those in messages are the holder's and only echoed.

use crate::api::LeaseView;
use nacre_types::{Epoch, OsdId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Epochs per peer whose grants are kept apart; those of the newest are kept.
const MAX_EPOCHS_PER_GRANTER: usize = 8;

/// Processes of one OSD whose grants are remembered apart. The newest are kept apart; the end of an older one's grant
/// is kept in the OSD's common one.
const MAX_PROCESSES_PER_OSD: usize = 4;

/// How long leases last. The same on every OSD of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseSettings {
    /// The term in nanoseconds.
    pub term_ns: u64,
    /// How much an OSD's CLOCK_BOOTTIME may run fast or slow against true time, in parts per million.
    pub drift_ppm: u32,
}

impl Default for LeaseSettings {
    /// 16 s, Ceph's `osd_pool_default_read_lease_ratio` of `osd_heartbeat_grace`; and 1000 ppm, twice the 500 ppm by
    /// which NTP slews at most.
    fn default() -> Self {
        LeaseSettings { term_ns: 16_000_000_000, drift_ppm: 1000 }
    }
}

impl LeaseSettings {
    /// The correction on each side, rounded up; nanoseconds.
    pub fn margin_ns(&self) -> u64 {
        let product = u128::from(self.term_ns) * u128::from(self.drift_ppm);
        u64::try_from(product.div_ceil(1_000_000)).unwrap_or(u64::MAX)
    }

    /// How long a holder counts from its send; nanoseconds.
    pub fn holder_term_ns(&self) -> u64 {
        self.term_ns.saturating_sub(self.margin_ns())
    }

    /// How long a granter counts from the receipt; nanoseconds.
    pub fn granter_term_ns(&self) -> u64 {
        self.term_ns.saturating_add(self.margin_ns())
    }

    /// How long after a request the next one is due: a quarter of the term.
    pub fn renew_ns(&self) -> u64 {
        (self.term_ns / 4).max(1)
    }
}

/// Asks for a lease; travels on a ping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRequest {
    /// The asking process.
    pub boot_nonce: u64,
    /// The newest map that it has.
    pub epoch: Epoch,
    /// When it asked, on its clock.
    pub sent_at_ns: u64,
}

/// Grants the lease that was asked for; travels on the ping's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseGrant {
    /// The granting process.
    pub boot_nonce: u64,
    /// The newest epoch that the granter has acted on: the lease counts for a holder that has it too.
    pub epoch: Epoch,
    /// The process that asked.
    pub for_boot_nonce: u64,
    /// The request's time.
    pub sent_at_ns: u64,
}

#[derive(Clone, Debug, Default)]
struct Held {
    last_sent_ns: u64,
    /// The granter's epoch and the latest end of its grants under it, in order of epochs. A later end under an earlier
    /// epoch makes a later epoch's one superfluous.
    until_ns: Vec<(Epoch, u64)>,
}

impl Held {
    /// Notes a grant.
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

    /// Until when a lease is held by who has acted on `epoch`.
    fn until(&self, epoch: Epoch) -> u64 {
        let known = self.until_ns.iter().filter(|(of, _)| *of <= epoch);
        known.map(|(_, until)| *until).max().unwrap_or(0)
    }
}

#[derive(Clone, Debug, Default)]
struct Granted {
    /// End of the grants by process.
    until_ns: BTreeMap<u64, u64>,
    /// End of the grants to processes that are no longer told apart.
    others_until_ns: u64,
    stopped: bool,
    /// No process of the peer can hold a lease from before this OSD booted.
    fresh: bool,
}

/// The leases that one OSD holds from, and granted to, every other one.
#[derive(Clone, Debug)]
pub struct LeaseTable {
    settings: LeaseSettings,
    boot_nonce: u64,
    boot_wait_until_ns: u64,
    /// The newest map that this OSD has.
    map_epoch: Epoch,
    /// The newest epoch that it has acted on; ahead of its map after an accepted proposal.
    acted_epoch: Epoch,
    held: BTreeMap<OsdId, Held>,
    granted: BTreeMap<OsdId, Granted>,
}

impl LeaseTable {
    /// The table of the process `boot_nonce` that started at `boot_ns`.
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

    /// The terms.
    pub fn settings(&self) -> LeaseSettings {
        self.settings
    }

    /// Notes that this OSD has the map of `epoch` and that its PGs are about to act on it. Returns the peers from which
    /// leases are held from now on by who acts on it, in order.
    pub fn on_map(&mut self, epoch: Epoch, now_ns: u64) -> Vec<OsdId> {
        let before = self.map_epoch;
        self.map_epoch = before.max(epoch);
        self.acts_on(epoch);
        let now = self.map_epoch;
        let gained = |held: &Held| now_ns >= held.until(before) && now_ns < held.until(now);
        self.held.iter().filter_map(|(osd, held)| gained(held).then_some(*osd)).collect()
    }

    /// Notes that this OSD acts on what `epoch` shows though it may not have that map yet: the answer to a proposal.
    /// To be called before it does.
    pub fn acts_on(&mut self, epoch: Epoch) {
        self.acted_epoch = self.acted_epoch.max(epoch);
    }

    /// The request to send to `to` now.
    pub fn request(&mut self, to: OsdId, now_ns: u64) -> LeaseRequest {
        self.held.entry(to).or_default().last_sent_ns = now_ns;
        LeaseRequest { boot_nonce: self.boot_nonce, epoch: self.map_epoch, sent_at_ns: now_ns }
    }

    /// Takes `from`'s grant. Returns whether a lease is held now that was not before. A grant for another process or
    /// for a request that was never sent counts for nothing; late and repeated ones do no harm.
    pub fn granted(&mut self, from: OsdId, grant: &LeaseGrant, now_ns: u64) -> bool {
        let Some(held) = self.held.get_mut(&from) else { return false };
        if grant.for_boot_nonce != self.boot_nonce || grant.sent_at_ns > held.last_sent_ns.min(now_ns) {
            return false;
        }
        let was_held = now_ns < held.until(self.map_epoch);
        held.add(grant.epoch, grant.sent_at_ns.saturating_add(self.settings.holder_term_ns()));
        !was_held && now_ns < held.until(self.map_epoch)
    }

    /// Until when a lease from `from` is held by who acts on the map of `epoch`; 0 for never.
    pub fn held_until_under(&self, from: OsdId, epoch: Epoch) -> u64 {
        self.held.get(&from).map_or(0, |held| held.until(epoch))
    }

    /// Until when a lease from `from` is held by who acts on the newest map; 0 for never.
    pub fn held_until(&self, from: OsdId) -> u64 {
        self.held_until_under(from, self.map_epoch)
    }

    /// Whether a lease from `from` is held at `now_ns` by who acts on the newest map.
    pub fn holds(&self, from: OsdId, now_ns: u64) -> bool {
        now_ns < self.held_until(from)
    }

    /// Whether leases from all of `from_all` are held at `now_ns` by who acts on the newest map.
    pub fn valid(&self, from_all: &[OsdId], now_ns: u64) -> bool {
        from_all.iter().all(|from| self.holds(*from, now_ns))
    }

    /// When the next request to `to` is due.
    pub fn renew_at(&self, to: OsdId) -> u64 {
        self.held.get(&to).map_or(0, |held| held.last_sent_ns.saturating_add(self.settings.renew_ns()))
    }

    /// Answers `to`'s request, received at `received_ns`, and remembers the grant; `None` while granting is stopped.
    /// The caller has checked that the asking process is the one that the map shows.
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

    /// Until when this OSD granted to the process `boot_nonce` of `to`, ended grants included while remembered.
    pub fn granted_until(&self, to: OsdId, boot_nonce: u64) -> Option<u64> {
        self.granted.get(&to)?.until_ns.get(&boot_nonce).copied()
    }

    /// Grants `to` nothing more: the map shows it down. To be called before any PG acts on that map.
    pub fn stop_granting(&mut self, to: OsdId) {
        self.granted.entry(to).or_default().stopped = true;
    }

    /// Grants `to` again: the map shows it up. To be called after [`LeaseTable::on_map`] with that map, so that the
    /// grants count only once `to` knows that it was down.
    pub fn resume_granting(&mut self, to: OsdId) {
        self.granted.entry(to).or_default().stopped = false;
    }

    /// Forgets the grants to a process of `to` that is proven to have ended; silence is no proof.
    pub fn process_gone(&mut self, to: OsdId, boot_nonce: u64) {
        if let Some(granted) = self.granted.get_mut(&to) {
            granted.until_ns.remove(&boot_nonce);
        }
    }

    /// Notes that no process of `to` which started before this one is alive, by proof: it holds no forgotten lease.
    pub fn proved_fresh(&mut self, to: OsdId) {
        self.granted.entry(to).or_default().fresh = true;
    }

    /// From when on no lease can be valid that this OSD granted in an earlier run.
    pub fn boot_wait_until(&self) -> u64 {
        self.boot_wait_until_ns
    }

    /// From when on no lease can be valid that this OSD ever granted to `to`. Rises while granting goes on.
    pub fn quiet_at(&self, to: OsdId) -> u64 {
        let Some(granted) = self.granted.get(&to) else { return self.boot_wait_until_ns };
        let boot_ns = if granted.fresh { 0 } else { self.boot_wait_until_ns };
        let newest_ns = granted.until_ns.values().copied().max().unwrap_or(0);
        boot_ns.max(newest_ns).max(granted.others_until_ns)
    }

    /// The table as a PG sees it at `now_ns`.
    pub fn at(&self, now_ns: u64) -> LeasesAt<'_> {
        LeasesAt { table: self, now_ns }
    }
}

/// A [`LeaseTable`] at one moment.
#[derive(Clone, Copy, Debug)]
pub struct LeasesAt<'a> {
    table: &'a LeaseTable,
    now_ns: u64,
}

impl LeaseView for LeasesAt<'_> {
    fn held_from(&self, from: OsdId, epoch: Epoch) -> bool {
        self.now_ns < self.table.held_until_under(from, epoch)
    }

    fn quiet_at(&self, to: OsdId) -> u64 {
        self.table.quiet_at(to)
    }
}

#[cfg(test)]
mod tests;
