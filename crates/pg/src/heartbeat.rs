//! Heartbeats between OSDs: failure detection, and the leases that pings carry (rule R4).
//!
//! There is one machine per OSD. It is pure: it takes maps, messages and times, and returns messages and reports. It pings the
//! OSDs that share a PG with this one and some neighbours. The same pings renew leases (every quarter of a term, or more often,
//! according to `osd_heartbeat_interval`). It reports a peer to the map authority when its connection is refused or when a ping
//! stays unanswered for `osd_heartbeat_grace`. It also updates the [`LeaseTable`] from maps: which OSDs are granted nothing,
//! and which processes have ended.
//!
//! Invariants: a lease is granted only to the process that the map shows up; a peer's answer counts only for the process that
//! was pinged; only a later process on the same store proves that the previous one has ended; a pause of this OSD is no
//! evidence against its peers.
//!
//! It must not know connections or PGs. It is bounded: one record per OSD of the map, one output per peer and event.

use crate::lease::{LeaseGrant, LeaseRequest, LeaseTable};
use nacre_types::ids::Incarnation;
use nacre_types::msg::{Message, OsdFailure};
use nacre_types::osdmap::OsdMap;
use nacre_types::{Epoch, OsdId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Settings from options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeartbeatSettings {
    /// `osd_heartbeat_interval`, nanoseconds.
    pub interval_ns: u64,
    /// `osd_heartbeat_grace`, nanoseconds.
    pub grace_ns: u64,
    /// `osd_mon_report_interval`, nanoseconds: the time after which a failure is reported again.
    pub report_interval_ns: u64,
}

impl Default for HeartbeatSettings {
    /// Ceph's values: 6 s, 20 s, 5 s.
    fn default() -> Self {
        const SECOND: u64 = 1_000_000_000;
        HeartbeatSettings { interval_ns: 6 * SECOND, grace_ns: 20 * SECOND, report_interval_ns: 5 * SECOND }
    }
}

/// A message between OSDs that shows that the sender is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HbMsg {
    /// Asks for an answer and a lease.
    Ping {
        /// The process that is pinged; the answer of another process does not count.
        to_boot_nonce: u64,
        /// The sender, its map and the time, which the answer repeats.
        lease: LeaseRequest,
    },
    /// The answer to a ping.
    Pong {
        /// The answering process.
        boot_nonce: u64,
        /// Its map.
        epoch: Epoch,
        /// The process that asked.
        for_boot_nonce: u64,
        /// The ping's time.
        sent_at_ns: u64,
        /// The lease, unless it is refused.
        lease: Option<LeaseGrant>,
    },
}

/// [`HbMsg`] on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HbEnvelope {
    /// The bytes that the sender's store can take before it is full; see [`crate::PgEnvelope`]. Informs members to which no PG
    /// sends messages.
    pub space_bytes: u64,
    /// The message.
    pub msg: HbMsg,
}

impl Message for HbEnvelope {
    const KIND: u16 = 51;
    const NAME: &'static str = "HbEnvelope";
}

/// An OSD that the map shows up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpOsd {
    /// Its process.
    pub boot_nonce: u64,
    /// Its store.
    pub incarnation: Option<Incarnation>,
    /// The epoch of its last boot.
    pub up_from: Epoch,
}

/// The parts of a map that heartbeats need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeartbeatMap {
    /// The map's epoch.
    pub epoch: Epoch,
    /// Every OSD that is up, including this one.
    pub up: BTreeMap<OsdId, UpOsd>,
    /// The OSDs to ping.
    pub peers: BTreeSet<OsdId>,
}

impl HeartbeatMap {
    /// Selects from `map` for `me`: the OSDs of `sharing` (those with which it shares a PG) that are up, its neighbours by id,
    /// and more of them up to `min_peers` (`osd_heartbeat_min_peers`).
    pub fn new(map: &OsdMap, me: OsdId, sharing: &BTreeSet<OsdId>, min_peers: usize) -> HeartbeatMap {
        let up: BTreeMap<OsdId, UpOsd> = map
            .osds
            .iter()
            .filter(|(_, info)| info.up)
            .map(|(osd, info)| {
                let (boot_nonce, incarnation) = (info.boot_nonce, info.incarnation);
                (*osd, UpOsd { boot_nonce, incarnation, up_from: info.up_from })
            })
            .collect();
        let after = up.keys().filter(|osd| **osd > me);
        let before = up.keys().filter(|osd| **osd < me);
        let ring: Vec<OsdId> = after.chain(before).copied().collect();
        let mut peers: BTreeSet<OsdId> = ring.iter().filter(|osd| sharing.contains(osd)).copied().collect();
        peers.extend(ring.first().into_iter().chain(ring.last()));
        for osd in &ring {
            if peers.len() >= min_peers {
                break;
            }
            peers.insert(*osd);
        }
        HeartbeatMap { epoch: map.epoch, up, peers }
    }
}

/// The input of a [`Heartbeat`].
#[derive(Clone, Debug)]
pub enum HbEvent {
    /// A newer map; passed before any PG acts on it, so that the fences are in place.
    Map(HeartbeatMap),
    /// A message from another OSD.
    Message {
        /// The sender.
        from: OsdId,
        /// The message.
        msg: HbMsg,
    },
    /// The connection to the map authority was lost: it may not have received reports, or may have forgotten them.
    MonReset,
    /// A connection to the address of this process was refused: no process listens there.
    Refused {
        /// The OSD.
        target: OsdId,
        /// The process that the map shows at that address.
        boot_nonce: u64,
    },
    /// Time has passed. Passed at the latest at the time that [`Heartbeat::next_wake`] returns.
    Tick,
}

/// The output of a [`Heartbeat`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum HbCommand {
    /// Send a ping, on a connection on which no other message delays it.
    SendPing {
        /// The receiver.
        to: OsdId,
        /// The ping.
        msg: HbMsg,
    },
    /// Answer a ping.
    SendReply {
        /// The receiver.
        to: OsdId,
        /// The answer.
        msg: HbMsg,
    },
    /// Report to the map authority that a peer does not answer.
    ReportFailure(OsdFailure),
    /// Withdraw a report (`silent_ms` is 0).
    CancelFailure(OsdFailure),
    /// A lease is held that was not held before: PGs that wait for it may continue.
    LeaseGained(OsdId),
    /// A peer acts on a newer map than this OSD's.
    NewerMap(Epoch),
}

/// The time to the second ping of a peer that has not granted a lease; it doubles up to the usual interval. Two OSDs that learn
/// of each other from the same map refuse each other until both have it, and should have leases soon after.
const FIRST_RETRY_NS: u64 = 50_000_000;

#[derive(Clone, Debug)]
struct Peer {
    boot_nonce: u64,
    last_ping_ns: Option<u64>,
    /// When the oldest unanswered ping was sent.
    unanswered_since_ns: Option<u64>,
    refused: bool,
    reported_at_ns: Option<u64>,
    /// Whether its last answer granted a lease.
    grants: bool,
    /// The time to the next ping while it grants no lease.
    retry_ns: u64,
}

impl Peer {
    fn new(boot_nonce: u64) -> Peer {
        Peer {
            boot_nonce,
            last_ping_ns: None,
            unanswered_since_ns: None,
            refused: false,
            reported_at_ns: None,
            grants: false,
            retry_ns: FIRST_RETRY_NS,
        }
    }

    /// The time between two pings: `every_ns` if the peer grants leases.
    fn ping_every_ns(&self, every_ns: u64) -> u64 {
        if self.grants { every_ns } else { every_ns.min(self.retry_ns) }
    }
}

/// The last process of an OSD that a map showed.
#[derive(Clone, Copy, Debug)]
struct Shown {
    boot_nonce: u64,
    incarnation: Option<Incarnation>,
    /// The newest map that showed it.
    epoch: Epoch,
    /// Whether another store ran under the OSD's id before.
    is_replaced: bool,
}

/// The heartbeats of one OSD.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    me: OsdId,
    boot_nonce: u64,
    settings: HeartbeatSettings,
    epoch: Epoch,
    up: BTreeMap<OsdId, UpOsd>,
    peers: BTreeMap<OsdId, Peer>,
    /// The last process of each OSD that a map showed.
    seen: BTreeMap<OsdId, Shown>,
    last_tick_ns: Option<u64>,
}

impl Heartbeat {
    /// Creates the machine of process `boot_nonce` of `me`. It sends nothing before the first map.
    pub fn new(me: OsdId, boot_nonce: u64, settings: HeartbeatSettings) -> Heartbeat {
        Heartbeat {
            me,
            boot_nonce,
            settings,
            epoch: Epoch(0),
            up: BTreeMap::new(),
            peers: BTreeMap::new(),
            seen: BTreeMap::new(),
            last_tick_ns: None,
        }
    }

    /// Changes the settings.
    pub fn set_settings(&mut self, settings: HeartbeatSettings) {
        self.settings = settings;
    }

    /// The OSDs that this OSD pings.
    pub fn peers(&self) -> impl Iterator<Item = OsdId> {
        self.peers.keys().copied()
    }

    /// Handles an event and appends the resulting commands to `out`. `now_ns` is CLOCK_BOOTTIME, read before the call.
    pub fn handle(&mut self, now_ns: u64, leases: &mut LeaseTable, event: HbEvent, out: &mut Vec<HbCommand>) {
        match event {
            HbEvent::Map(map) => self.on_map(now_ns, leases, map, out),
            HbEvent::Message { from, msg: HbMsg::Ping { to_boot_nonce, lease } } => {
                self.on_ping(now_ns, leases, from, to_boot_nonce, &lease, out);
            }
            HbEvent::Message {
                from,
                msg: HbMsg::Pong { boot_nonce, epoch, for_boot_nonce, sent_at_ns, lease },
            } => {
                if for_boot_nonce != self.boot_nonce {
                    return;
                }
                self.note_epoch(epoch, out);
                self.on_pong(from, boot_nonce, sent_at_ns, lease.is_some(), out);
                if let Some(grant) = lease
                    && leases.on_grant(from, &grant, now_ns)
                {
                    out.push(HbCommand::LeaseGained(from));
                }
            }
            HbEvent::Refused { target, boot_nonce } => self.on_refused(now_ns, target, boot_nonce, out),
            HbEvent::MonReset => {
                let reported = self.peers.iter().filter(|(_, peer)| peer.reported_at_ns.is_some());
                for osd in reported.map(|(osd, _)| *osd).collect::<Vec<_>>() {
                    self.report(now_ns, osd, out);
                }
            }
            HbEvent::Tick => self.tick(now_ns, leases, out),
        }
    }

    /// When to send [`HbEvent::Tick`] at the latest; `None` while there is no peer to ping.
    pub fn next_wake(&self, leases: &LeaseTable) -> Option<u64> {
        let every_ns = self.ping_every_ns(leases);
        self.peers
            .values()
            .map(|peer| {
                let every_ns = peer.ping_every_ns(every_ns);
                let ping_ns = peer.last_ping_ns.map_or(0, |last| last.saturating_add(every_ns));
                self.report_due_ns(peer).map_or(ping_ns, |due| due.min(ping_ns))
            })
            .min()
    }

    fn ping_every_ns(&self, leases: &LeaseTable) -> u64 {
        self.settings.interval_ns.min(leases.settings().renew_ns()).max(1)
    }

    fn report_due_ns(&self, peer: &Peer) -> Option<u64> {
        match (peer.reported_at_ns, peer.unanswered_since_ns) {
            (Some(reported), _) => Some(reported.saturating_add(self.settings.report_interval_ns)),
            (None, Some(since)) => Some(since.saturating_add(self.settings.grace_ns)),
            (None, None) => None,
        }
    }

    fn on_map(&mut self, now_ns: u64, leases: &mut LeaseTable, map: HeartbeatMap, out: &mut Vec<HbCommand>) {
        if map.epoch < self.epoch {
            return;
        }
        let gained = leases.on_map(map.epoch, now_ns);
        out.extend(gained.into_iter().map(HbCommand::LeaseGained));
        let my_boot = map.up.get(&self.me).filter(|me| me.boot_nonce == self.boot_nonce).copied();
        for osd in self.up.keys().filter(|osd| !map.up.contains_key(osd)) {
            leases.stop_granting(*osd);
        }
        for (osd, now_up) in &map.up {
            if *osd == self.me {
                continue;
            }
            leases.resume_granting(*osd);
            let before = self.seen.get(osd).copied();
            // A new store may have been deployed on another host while the process on the old one still runs.
            let is_other_store = |old: &Shown| old.incarnation != now_up.incarnation;
            let is_replaced = before.is_some_and(|old| old.is_replaced || is_other_store(&old));
            if let Some(old) =
                before.filter(|old| old.boot_nonce != now_up.boot_nonce && !is_other_store(old))
            {
                // A process boots only with its store's lock, so the one before it has ended.
                leases.process_gone(*osd, old.boot_nonce);
                // A map made after this OSD booted showed the old process as the current one. So no earlier run of this OSD
                // granted the new process anything.
                if !is_replaced && my_boot.is_some_and(|me| old.epoch >= me.up_from) {
                    leases.skip_boot_wait(*osd);
                }
            }
            let (boot_nonce, incarnation) = (now_up.boot_nonce, now_up.incarnation);
            self.seen.insert(*osd, Shown { boot_nonce, incarnation, epoch: map.epoch, is_replaced });
        }
        (self.epoch, self.up) = (map.epoch, map.up);

        let mut before = std::mem::take(&mut self.peers);
        // An OSD that is not shown up pings no OSD: no OSD would grant it a lease or accept its reports.
        let wanted = if my_boot.is_some() { map.peers } else { BTreeSet::new() };
        for osd in wanted {
            let Some(up) = self.up.get(&osd).filter(|_| osd != self.me) else { continue };
            let peer = before.remove(&osd).filter(|peer| peer.boot_nonce == up.boot_nonce);
            self.peers.insert(osd, peer.unwrap_or_else(|| Peer::new(up.boot_nonce)));
        }
        for (osd, peer) in before {
            let still_up = self.up.get(&osd).is_some_and(|up| up.boot_nonce == peer.boot_nonce);
            if peer.reported_at_ns.is_some() && still_up && my_boot.is_some() {
                out.push(self.cancel(osd, peer.boot_nonce));
            }
        }
        self.send_pings(now_ns, leases, out);
    }

    fn on_ping(
        &mut self,
        now_ns: u64,
        leases: &mut LeaseTable,
        from: OsdId,
        to_boot_nonce: u64,
        request: &LeaseRequest,
        out: &mut Vec<HbCommand>,
    ) {
        self.note_epoch(request.epoch, out);
        let is_current = self.up.get(&from).is_some_and(|up| up.boot_nonce == request.boot_nonce);
        let may_grant = is_current && to_boot_nonce == self.boot_nonce && from != self.me;
        let lease = if may_grant { leases.grant(from, request, now_ns) } else { None };
        let msg = HbMsg::Pong {
            boot_nonce: self.boot_nonce,
            epoch: self.epoch,
            for_boot_nonce: request.boot_nonce,
            sent_at_ns: request.sent_at_ns,
            lease,
        };
        out.push(HbCommand::SendReply { to: from, msg });
    }

    fn on_pong(
        &mut self,
        from: OsdId,
        boot_nonce: u64,
        sent_at_ns: u64,
        grants: bool,
        out: &mut Vec<HbCommand>,
    ) {
        let Some(peer) = self.peers.get_mut(&from).filter(|peer| peer.boot_nonce == boot_nonce) else {
            return;
        };
        let Some(last_ping_ns) = peer.last_ping_ns.filter(|last| sent_at_ns <= *last) else { return };
        if peer.unanswered_since_ns.is_some_and(|since| sent_at_ns >= since) {
            peer.unanswered_since_ns = (sent_at_ns < last_ping_ns).then_some(last_ping_ns);
        }
        peer.refused = false;
        if std::mem::replace(&mut peer.grants, grants) && !grants {
            peer.retry_ns = FIRST_RETRY_NS;
        }
        if peer.reported_at_ns.take().is_some() {
            out.push(self.cancel(from, boot_nonce));
        }
    }

    fn on_refused(&mut self, now_ns: u64, target: OsdId, boot_nonce: u64, out: &mut Vec<HbCommand>) {
        let settings = self.settings;
        let Some(peer) = self.peers.get_mut(&target).filter(|peer| peer.boot_nonce == boot_nonce) else {
            return;
        };
        let recently = |at: u64| now_ns < at.saturating_add(settings.report_interval_ns);
        if peer.refused && peer.reported_at_ns.is_some_and(recently) {
            return;
        }
        peer.refused = true;
        self.report(now_ns, target, out);
    }

    fn tick(&mut self, now_ns: u64, leases: &mut LeaseTable, out: &mut Vec<HbCommand>) {
        let last_tick_ns = self.last_tick_ns.replace(now_ns).unwrap_or(now_ns);
        if now_ns.saturating_sub(last_tick_ns) > self.settings.grace_ns / 2 {
            // This OSD did not run, and answers may wait unread. So silence is counted from now on.
            for peer in self.peers.values_mut() {
                peer.unanswered_since_ns = peer.unanswered_since_ns.map(|_| now_ns);
            }
        }
        let due: Vec<OsdId> = self
            .peers
            .iter()
            .filter(|(_, peer)| self.report_due_ns(peer).is_some_and(|due| now_ns >= due))
            .map(|(osd, _)| *osd)
            .collect();
        for osd in due {
            self.report(now_ns, osd, out);
        }
        self.send_pings(now_ns, leases, out);
    }

    fn send_pings(&mut self, now_ns: u64, leases: &mut LeaseTable, out: &mut Vec<HbCommand>) {
        let every_ns = self.ping_every_ns(leases);
        for (osd, peer) in &mut self.peers {
            let due_ns = |last: u64| last.saturating_add(peer.ping_every_ns(every_ns));
            if peer.last_ping_ns.is_some_and(|last| now_ns < due_ns(last)) {
                continue;
            }
            if peer.last_ping_ns.is_some() && !peer.grants {
                peer.retry_ns = peer.retry_ns.saturating_mul(2).min(every_ns);
            }
            peer.last_ping_ns = Some(now_ns);
            peer.unanswered_since_ns.get_or_insert(now_ns);
            let lease = leases.request(*osd, now_ns);
            let msg = HbMsg::Ping { to_boot_nonce: peer.boot_nonce, lease };
            out.push(HbCommand::SendPing { to: *osd, msg });
        }
    }

    fn report(&mut self, now_ns: u64, target: OsdId, out: &mut Vec<HbCommand>) {
        let Some(peer) = self.peers.get_mut(&target) else { return };
        peer.reported_at_ns = Some(now_ns);
        let silent_ns = now_ns.saturating_sub(peer.unanswered_since_ns.unwrap_or(now_ns));
        out.push(HbCommand::ReportFailure(OsdFailure {
            target,
            boot_nonce: peer.boot_nonce,
            // 0 would withdraw the report.
            silent_ms: (silent_ns / 1_000_000).max(1),
            refused: peer.refused,
            epoch: self.epoch,
        }));
    }

    fn cancel(&self, target: OsdId, boot_nonce: u64) -> HbCommand {
        HbCommand::CancelFailure(OsdFailure {
            target,
            boot_nonce,
            silent_ms: 0,
            refused: false,
            epoch: self.epoch,
        })
    }

    fn note_epoch(&self, epoch: Epoch, out: &mut Vec<HbCommand>) {
        if epoch > self.epoch {
            out.push(HbCommand::NewerMap(epoch));
        }
    }
}

#[cfg(test)]
mod tests;
