//! Hosts, links between them, a toy map authority and clients; every step is one of the possible actions.

use super::authority::Authority;
use super::clients::Clients;
use super::host::{Host, MS, Output};
use super::store::Store;
use crate::api::{PeerMsg, PgEvent};
use crate::heartbeat::{HbEvent, HbMsg};
use crate::settings::PgSettings;
use nacre_types::errno::Errno;
use nacre_types::ids::{Incarnation, Interval, OsdId, PgId, PoolId};
use nacre_types::msg::{PgCas, PgCasReply};
use nacre_types::object::ObjectId;
use nacre_types::osdmap::{Member, PgMembership};
use nacre_types::stats::pg_state;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use uuid::Uuid;

/// A small random number generator; the seed identifies the test.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) % limit.max(1) as u64) as usize
    }

    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        (!from.is_empty()).then(|| from[self.below(from.len())])
    }
}

/// A message in flight on a link.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all are the large one")]
pub enum Wire {
    Peer {
        to_nonce: u64,
        msg: PeerMsg,
    },
    /// The session ended; the sender's current process is this one.
    Reset {
        nonce: u64,
    },
}

/// One possible next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Deliver(OsdId, OsdId),
    Beat(OsdId, OsdId),
    Map(OsdId),
    ToMon(OsdId),
    FromMon(OsdId),
    Flush(OsdId),
    Answer(OsdId),
    Client(OsdId),
    Wake(OsdId),
    Removed(OsdId),
}

pub struct Cluster {
    pub now: u64,
    pub pg: PgId,
    pub settings: Arc<PgSettings>,
    pub mon: Authority,
    pub hosts: BTreeMap<OsdId, Host>,
    pub disks: BTreeMap<OsdId, (Incarnation, Store)>,
    pub clients: Clients,
    pub links: BTreeMap<(OsdId, OsdId), VecDeque<Wire>>,
    pub beats: BTreeMap<(OsdId, OsdId), VecDeque<HbMsg>>,
    known: BTreeMap<(OsdId, OsdId), u64>,
    pub to_mon: BTreeMap<OsdId, VecDeque<PgCas>>,
    pub from_mon: BTreeMap<OsdId, VecDeque<PgCasReply>>,
    /// Pairs that can't communicate; the map authority is `None`.
    pub cut: BTreeSet<(Option<OsdId>, OsdId)>,
    pub removing: BTreeSet<OsdId>,
    /// The process that ordered in each interval: a version identifies one update only if there is one process.
    orderers: BTreeMap<Interval, u64>,
    /// Objects of which no in-sync member had a whole copy at some time.
    pub lost: BTreeSet<ObjectId>,
    /// Whether failure reports mark OSDs down.
    pub believes_reports: bool,
    next_nonce: u64,
    traced: bool,
}

pub fn osd(n: u32) -> OsdId {
    OsdId(n)
}

pub fn test_settings() -> PgSettings {
    PgSettings {
        min_log_entries: 1000,
        max_log_entries: 2000,
        push_bytes: 6,
        scan_objects: 3,
        cas_retry_ns: 50 * MS,
        retry_ns: 100 * MS,
        ..PgSettings::default()
    }
}

impl Cluster {
    /// Creates a cluster of `osds` OSDs, all up, and one PG that CRUSH wants on the first `size` of them.
    pub fn new(osds: u32, size: u32, min_size: u32, settings: PgSettings) -> Cluster {
        let pg = PgId::new(PoolId(1), 0);
        let up = (0..size).map(OsdId).collect();
        let mut cluster = Cluster {
            now: 1_000_000 * MS,
            pg,
            settings: Arc::new(settings),
            mon: Authority::new(pg, size, min_size, up),
            hosts: BTreeMap::new(),
            disks: BTreeMap::new(),
            clients: Clients::new(pg),
            links: BTreeMap::new(),
            beats: BTreeMap::new(),
            known: BTreeMap::new(),
            to_mon: BTreeMap::new(),
            from_mon: BTreeMap::new(),
            cut: BTreeSet::new(),
            removing: BTreeSet::new(),
            orderers: BTreeMap::new(),
            lost: BTreeSet::new(),
            believes_reports: false,
            next_nonce: 100,
            traced: std::env::var_os("PG_TRACE").is_some(),
        };
        for id in 0..osds {
            let incarnation = cluster.incarnation();
            cluster.disks.insert(OsdId(id), (incarnation, Store::default()));
            cluster.boot(OsdId(id));
        }
        cluster
    }

    pub fn note(&mut self, what: impl FnOnce() -> String) {
        if self.traced {
            let line = format!("{:>9} {}", (self.now - 1_000_000 * MS) / 1000, what());
            eprintln!("{line}");
        }
    }

    fn incarnation(&mut self) -> Incarnation {
        self.next_nonce += 1;
        Incarnation(Uuid::from_u128(u128::from(self.next_nonce)))
    }

    // Faults and the operator.

    pub fn boot(&mut self, id: OsdId) {
        let (incarnation, store) = self.disks.remove(&id).expect("only a dead OSD boots");
        self.next_nonce += 1;
        let nonce = self.next_nonce;
        self.note(|| format!("boot {id} as {nonce}"));
        let member = Member { osd: id, incarnation };
        let host = Host::boot(member, nonce, self.pg, self.settings.clone(), store, self.now);
        for (other, peer) in &self.hosts {
            self.links.entry((id, *other)).or_default().push_back(Wire::Reset { nonce });
            self.links.remove(&(*other, id));
            self.known.insert((id, *other), peer.nonce);
        }
        self.hosts.insert(id, host);
        self.to_mon.remove(&id);
        self.from_mon.remove(&id);
        self.mon.boot(member, nonce);
    }

    /// Kills the process; `surviving` of its unflushed writes are on the disk nevertheless.
    pub fn kill(&mut self, id: OsdId, surviving: usize) {
        self.note(|| format!("kill {id}, {surviving} writes survive"));
        let mut host = self.hosts.remove(&id).expect("only a living OSD dies");
        host.store.crash(surviving);
        self.disks.insert(id, (host.member.incarnation, host.store));
        self.links.retain(|(_, to), _| *to != id);
        self.beats.retain(|(_, to), _| *to != id);
        self.from_mon.remove(&id);
        self.removing.remove(&id);
        self.clients.lost(id);
    }

    pub fn wipe(&mut self, id: OsdId) {
        self.note(|| format!("wipe {id}"));
        let incarnation = self.incarnation();
        self.disks.insert(id, (incarnation, Store::default()));
    }

    /// Loses a session between two hosts with all messages in flight.
    pub fn reset_session(&mut self, a: OsdId, b: OsdId) {
        self.note(|| format!("session {a} {b} is lost"));
        for (from, to) in [(a, b), (b, a)] {
            let nonce = self.hosts[&from].nonce;
            let link = self.links.entry((from, to)).or_default();
            link.clear();
            link.push_back(Wire::Reset { nonce });
        }
    }

    pub fn cut(&mut self, a: OsdId, b: OsdId) {
        self.cut.insert((Some(a), b));
        self.cut.insert((Some(b), a));
    }

    pub fn cut_from_mon(&mut self, id: OsdId) {
        self.cut.insert((None, id));
    }

    pub fn heal(&mut self) {
        self.cut.clear();
    }

    // Actions.

    pub fn actions(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        let hears = |a: &OsdId, b: &OsdId| !self.cut.contains(&(Some(*a), *b));
        let reaches_mon = |id: &OsdId| !self.cut.contains(&(None, *id));
        for ((from, to), link) in &self.links {
            if !link.is_empty() && self.hosts.contains_key(to) && hears(from, to) {
                actions.push(Action::Deliver(*from, *to));
            }
        }
        for ((from, to), link) in &self.beats {
            if !link.is_empty() && self.hosts.contains_key(to) && hears(from, to) {
                actions.push(Action::Beat(*from, *to));
            }
        }
        for (id, queue) in &self.to_mon {
            if !queue.is_empty() && reaches_mon(id) {
                actions.push(Action::ToMon(*id));
            }
        }
        for (id, host) in &self.hosts {
            if self.from_mon.get(id).is_some_and(|q| !q.is_empty()) && reaches_mon(id) {
                actions.push(Action::FromMon(*id));
            }
            if reaches_mon(id) && host.map.as_ref().is_none_or(|map| map.epoch < self.mon.map.epoch) {
                actions.push(Action::Map(*id));
            }
            if !host.store.unflushed.is_empty() {
                actions.push(Action::Flush(*id));
            }
            if !host.answers.is_empty() {
                actions.push(Action::Answer(*id));
            }
            if self.clients.has_for(*id) {
                actions.push(Action::Client(*id));
            }
            if host.next_wake().is_some_and(|at| at <= self.now) {
                actions.push(Action::Wake(*id));
            }
            if self.removing.contains(id) {
                actions.push(Action::Removed(*id));
            }
        }
        actions
    }

    pub fn act(&mut self, action: Action) {
        let now = self.now;
        let host = match action {
            Action::Deliver(from, to) => {
                self.deliver(from, to);
                to
            }
            Action::Beat(from, to) => {
                let msg = self.beats.get_mut(&(from, to)).unwrap().pop_front().unwrap();
                self.host(to).heartbeat(now, HbEvent::Message { from, msg });
                to
            }
            Action::Map(id) => {
                let (map, up) = (self.mon.map.clone(), self.mon.up.clone());
                self.note(|| format!("{id} gets map {} up {up:?} {:?}", map.epoch, map.pgs));
                self.host(id).take_map(now, &map, &up);
                id
            }
            Action::ToMon(id) => {
                let cas = self.to_mon.get_mut(&id).unwrap().pop_front().unwrap();
                let reply = self.mon.cas(&cas);
                self.note(|| {
                    format!("{id} proposes {:?} -> {:?}: {}", cas.expected, cas.proposed, reply.accepted)
                });
                self.from_mon.entry(id).or_default().push_back(reply);
                return;
            }
            Action::FromMon(id) => {
                let reply = self.from_mon.get_mut(&id).unwrap().pop_front().unwrap();
                self.note(|| format!("{id} hears {reply:?}"));
                let host = self.host(id);
                host.leases.advance_acted_epoch(reply.epoch);
                host.feed(now, PgEvent::Cas(reply));
                id
            }
            Action::Flush(id) => {
                let persist = self.host(id).store.flush(1);
                if let Some(persist) = persist {
                    self.host(id).feed(now, PgEvent::Committed { persist });
                }
                id
            }
            Action::Answer(id) => {
                let event = self.host(id).answers.pop_front().unwrap();
                self.host(id).feed(now, event);
                id
            }
            Action::Client(id) => {
                let (op, request) = self.clients.next_for(id);
                self.note(|| format!("{id} <- {:?} {request:?}", op));
                self.host(id).client(now, op, request);
                id
            }
            Action::Wake(id) => {
                self.host(id).heartbeat(now, HbEvent::Tick);
                self.host(id).feed(now, PgEvent::Tick);
                id
            }
            Action::Removed(id) => {
                self.removing.remove(&id);
                self.host(id).forget_pg(now);
                id
            }
        };
        self.collect(host);
    }

    pub fn host(&mut self, id: OsdId) -> &mut Host {
        self.hosts.get_mut(&id).unwrap_or_else(|| panic!("{id} is not running"))
    }

    fn deliver(&mut self, from: OsdId, to: OsdId) {
        let now = self.now;
        match self.links.get_mut(&(from, to)).unwrap().pop_front().unwrap() {
            Wire::Reset { nonce } => {
                self.known.insert((to, from), nonce);
                self.note(|| format!("{to} sees a reset by {from}"));
                self.host(to).feed(now, PgEvent::PeerReset(from));
            }
            Wire::Peer { to_nonce, msg } => {
                if self.host(to).nonce != to_nonce {
                    return;
                }
                self.note(|| format!("{from} -> {to} {}", brief(&msg)));
                self.host(to).feed(now, PgEvent::Peer { from, msg });
            }
        }
    }

    /// The highest membership that the map or any disk shows: a restored map may show an earlier one.
    pub fn latest_membership(&self) -> Option<PgMembership> {
        let running = self.hosts.values().filter_map(|host| host.pg.highest_recorded().cloned());
        let on_disks = self.disks.values().filter_map(|(_, store)| store.copy()?.record.highest);
        running.chain(on_disks).chain(self.mon.membership().cloned()).max_by_key(|m| m.interval)
    }

    /// Records the objects of which no in-sync member has a whole copy.
    pub fn note_losses(&mut self) {
        let Some(membership) = self.mon.membership() else { return };
        let of_disk = |store: &Store| store.copy().map_or_else(Default::default, |copy| copy.missing);
        let mut without = Vec::new();
        for member in &membership.in_sync {
            let (store, missing) = match (self.hosts.get(&member.osd), self.disks.get(&member.osd)) {
                (Some(host), _) if host.member == *member => (&host.store, host.pg.missing.clone()),
                (_, Some((incarnation, store))) if *incarnation == member.incarnation => {
                    (store, of_disk(store))
                }
                _ => continue,
            };
            let lacked: BTreeSet<_> = missing.into_keys().chain(store.damaged.iter().cloned()).collect();
            without.push(lacked);
        }
        let Some(mut lost) = without.pop() else { return };
        lost.retain(|object| without.iter().all(|lacked| lacked.contains(object)));
        for object in lost.difference(&self.lost).cloned().collect::<Vec<_>>() {
            self.note(|| format!("{object} is lost"));
            self.lost.insert(object);
        }
    }

    /// Delivers the output of a host.
    pub fn collect(&mut self, id: OsdId) {
        let Some(host) = self.hosts.get_mut(&id) else { return };
        let nonce = host.nonce;
        for output in std::mem::take(&mut host.output) {
            match output {
                Output::Peer(to, msg) => {
                    let Some(peer) = self.hosts.get(&to) else { continue };
                    let to_nonce = self.known.get(&(id, to)).copied().unwrap_or(peer.nonce);
                    self.links.entry((id, to)).or_default().push_back(Wire::Peer { to_nonce, msg });
                }
                Output::Heartbeat(to, msg) => {
                    let lost = self.cut.contains(&(Some(id), to)) || !self.hosts.contains_key(&to);
                    if !lost {
                        self.beats.entry((id, to)).or_default().push_back(msg);
                    }
                }
                Output::Propose(cas) => self.to_mon.entry(id).or_default().push_back(cas),
                Output::Failure(failure) => {
                    let hears = !self.cut.contains(&(None, id));
                    if self.believes_reports
                        && hears
                        && self.mon.is_process(failure.target, failure.boot_nonce)
                    {
                        self.note(|| format!("{id} reports {}", failure.target));
                        self.mon.down(failure.target);
                    }
                }
                Output::Reply { token, result } => {
                    self.note(|| format!("{id} answers {token}: {result:?}"));
                    self.clients.reply(token, &result);
                }
                Output::Refuse { token, errno } => {
                    self.note(|| format!("{id} refuses {token}: {errno:?}"));
                    if errno == Errno::EIO {
                        self.note_losses();
                        let object = self.clients.object_of(token);
                        assert!(self.lost.contains(&object), "{object} is refused, and there is a copy");
                    }
                    self.clients.refused(token);
                }
                Output::Drop { token } => {
                    self.note(|| format!("{id} drops {token}"));
                    self.clients.dropped(token);
                }
                Output::Ordered { token, version } => {
                    self.note(|| format!("{id} orders {token} as {version}"));
                    let first = *self.orderers.entry(version.interval).or_insert(nonce);
                    assert_eq!(first, nonce, "two processes order in interval {}", version.interval);
                    self.clients.ordered(token, version);
                }
                Output::RemovePg => {
                    self.note(|| format!("{id} removes its copy"));
                    self.removing.insert(id);
                }
            }
        }
    }

    // Running.

    /// Advances time to the next time that something waits for.
    pub fn advance_time(&mut self, limit: u64) -> bool {
        let next = self.hosts.values().filter_map(Host::next_wake).min();
        match next {
            Some(at) if at <= limit => {
                self.now = self.now.max(at);
                true
            }
            _ => false,
        }
    }

    /// Runs in a fixed order until `done`; clients periodically resend their unanswered requests.
    pub fn run_until(&mut self, what: &str, done: impl Fn(&Cluster) -> bool) {
        assert!(self.run_for(20_000 * MS, &done), "not reached: {what}\n{}", self.describe());
    }

    /// Runs for `span_ns`, or until `done`. Returns whether `done` was reached.
    pub fn run_for(&mut self, span_ns: u64, done: &dyn Fn(&Cluster) -> bool) -> bool {
        let limit = self.now + span_ns;
        let mut resend = self.now + 150 * MS;
        let mut steps = 0_u64;
        loop {
            if done(self) {
                return true;
            }
            let actions = self.actions();
            if actions.is_empty() && !self.advance_time(limit) {
                self.now = limit;
                return done(self);
            }
            for action in actions {
                if self.is_possible(action) {
                    self.act(action);
                }
                steps += 1;
                assert!(steps < 3_000_000, "no end\n{}", self.describe());
            }
            if self.now >= resend {
                resend = self.now + 150 * MS;
                self.clients.resend(&self.mon.map, self.pg);
            }
        }
    }

    pub fn is_possible(&self, action: Action) -> bool {
        self.actions().contains(&action)
    }

    /// Sends a request without running the cluster.
    pub fn send(&mut self, object: &str, request: super::host::Request) -> (usize, u64) {
        self.clients.issue(0, object, request, &self.mon.map, self.pg)
    }

    /// Sends a request and returns its answer.
    pub fn ask(&mut self, object: &str, request: super::host::Request) -> bytes::Bytes {
        let op = self.send(object, request);
        self.run_until("an answer", |c| c.clients.answer(op).is_some());
        self.clients.answer(op).unwrap()
    }

    pub fn run_clean(&mut self) {
        self.run_until("clean", Cluster::is_clean);
        self.check();
    }

    /// Whether clients are served, and members are where CRUSH wants them.
    pub fn is_served(&self) -> bool {
        let Some(membership) = self.mon.membership() else { return false };
        let members: BTreeSet<OsdId> = membership.in_sync.iter().map(|m| m.osd).collect();
        let primary = self.hosts.get(&membership.primary);
        primary.is_some_and(|host| host.pg.is_active() && host.pg.membership() == Some(membership))
            && members == self.mon.up.iter().copied().collect()
    }

    pub fn is_clean(&self) -> bool {
        let Some(membership) = self.mon.membership() else { return false };
        let Some(primary) = self.hosts.get(&membership.primary) else { return false };
        let members = membership.in_sync.iter().map(|m| m.osd).collect::<BTreeSet<_>>();
        primary.pg.state() & pg_state::CLEAN != 0
            && primary.pg.membership() == Some(membership)
            && Some(&membership.primary) == self.mon.up.first()
            && self.clients.all_answered()
            && self
                .hosts
                .values()
                .all(|h| h.store.unflushed.is_empty() && h.pg.has_copy() == members.contains(&h.member.osd))
    }

    pub fn primary(&self) -> OsdId {
        self.mon.membership().expect("the PG exists").primary
    }

    pub fn in_sync(&self) -> BTreeSet<u32> {
        self.mon.membership().map_or_else(BTreeSet::new, |m| m.in_sync.iter().map(|m| m.osd.0).collect())
    }

    /// Checks that the members are equal, and hold all acknowledged updates.
    pub fn check(&self) {
        let membership = self.mon.membership().expect("the PG exists");
        let first = &self.hosts[&membership.primary];
        for member in &membership.in_sync {
            let host = &self.hosts[&member.osd];
            assert_eq!(host.member, *member);
            assert!(host.pg.is_whole(), "{} is not whole", member.osd);
            assert_eq!(host.pg.head(), first.pg.head(), "{} has another head", member.osd);
            let log: Vec<_> = host.store.durable.log.keys().copied().collect();
            assert_eq!(log, host.pg.log().versions(), "{} stores another log", member.osd);
            assert_eq!(host.store.durable.objects, first.store.durable.objects, "{} differs", member.osd);
        }
        self.clients.check(&first.store.durable, &self.lost);
    }

    pub fn describe(&self) -> String {
        let mut text = format!(
            "epoch {} membership {:?} up {:?}\n",
            self.mon.map.epoch,
            self.mon.membership(),
            self.mon.up
        );
        for (id, host) in &self.hosts {
            text += &format!(
                "{id}: {} interval {} {:?} head {} committed {} missing {} wakes {:?} at {}\n   primary {:?}\n   session {:?} own_proposal {:?} pending {} restoring {:?}\n",
                if self.mon.map.is_up(*id) { "up" } else { "DOWN" },
                host.pg.interval(),
                host.pg.membership(),
                host.pg.head(),
                host.pg.committed_to,
                host.pg.missing.len(),
                host.pg.next_wake(),
                self.now,
                host.pg.primary,
                host.pg.replica.session,
                host.pg.own_proposal,
                host.pg.pending.len(),
                host.pg.restoring,
            );
        }
        text + &self.clients.describe()
    }
}

fn brief(msg: &PeerMsg) -> String {
    let mut text = format!("{msg:?}");
    if text.len() > 260 {
        let cut = (0..=260).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(cut);
    }
    text
}
