//! Watches and notifies in progress (rule R9): who watches, over which connection, who has yet to answer which notify.
//!
//! The watches themselves are in the objects' infos, which replicate; this table holds what only the primary of the
//! moment knows. It is empty for an object until the object is looked at for the first time in an interval, and is then
//! filled from the object's info with watchers that are not connected: each has its timeout to come back. A notify waits
//! for those too.
//!
//! Pure: time, connections (`C`) and notifiers (`N`) are given to it, what follows comes out as [`Action`]s. Bounded by
//! [`WatchLimits`].

#[cfg(test)]
mod tests;

use bytes::Bytes;
use nacre_types::ids::{ClientId, ReqId};
use nacre_types::msg::WatchNotify;
use nacre_types::object::ObjectId;
use nacre_types::op::{NotifyReply, WatchInfo};
use parking_lot::Mutex;
use std::cmp::Reverse;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

/// A watch whose PG does not answer lives at least so much longer, whatever its timeout: time must pass.
const MIN_EXTENSION_NS: u64 = 1_000_000_000;

/// The removal of a watch that has lapsed is tried again after this.
const REMOVE_AGAIN_NS: u64 = 1_000_000_000;
/// The longest time between two attempts where it failed again and again.
const REMOVE_FAILED_NS: u64 = 30_000_000_000;

/// The longest timeout of a watch or notify, in seconds; clients choose any. A longer one counts as this.
pub(crate) const MAX_TIMEOUT_S: u32 = 24 * 60 * 60;

/// So many timers are never too many.
const FEW_TIMERS: usize = 1024;

/// A watch within an object: session and cookie.
pub(crate) type WatchId = (ClientId, u64);

/// Bounds on what is in progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WatchLimits {
    /// Notifies in progress.
    pub(crate) notifies: usize,
    /// Bytes of their payloads and of the answers to them.
    pub(crate) bytes: usize,
}

/// What follows from an event; to be carried out in order.
#[derive(Debug)]
pub(crate) enum Action<C, N> {
    /// Tell a watcher of a notify.
    Tell(C, WatchNotify),
    /// Tell a watcher that its watch has lapsed.
    TellLost(C, u64),
    /// A notify is over: tell its notifier, who waited in vain for some watchers where `timed_out`.
    Complete { notifier: N, reply: NotifyReply, timed_out: bool },
    /// A watch has lapsed: remove it from its object's info.
    Lapse { slot: u32, object: ObjectId, watch: WatchId },
}

struct Live<C> {
    conn: Option<C>,
    timeout_ns: u64,
    /// Without a sign of life until then the watch lapses.
    deadline_ns: u64,
    /// It has lapsed, and its removal is on its way.
    lapsed: bool,
    /// How often its removal has failed.
    failures: u32,
}

struct Notify<N> {
    id: u64,
    reqid: ReqId,
    /// How often the request had been sent before when it came from this notifier.
    attempt: u32,
    notifier: N,
    payload: Bytes,
    /// When it is over, whoever has answered.
    deadline_ns: u64,
    waiting: Vec<WatchId>,
    acks: Vec<(WatchId, Bytes)>,
}

struct Watched<C, N> {
    slot: u32,
    watches: BTreeMap<WatchId, Live<C>>,
    notifies: Vec<Notify<N>>,
}

impl<C, N> Watched<C, N> {
    fn is_idle(&self) -> bool {
        self.watches.is_empty() && self.notifies.is_empty()
    }
}

/// What a timer was set for; whether it still holds is looked up when it fires.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Watch(ObjectId, WatchId),
    Notify(ObjectId, u64),
}

/// How many watches an OSD has, and the number of its last notify: the tables of all its shards count here. Pools of a tier have an
/// object of the same name each, whose notifies have different numbers.
#[derive(Debug, Default)]
pub(crate) struct WatchCounts(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    of_client: BTreeMap<ClientId, usize>,
    all: usize,
    last_notify: u64,
}

impl WatchCounts {
    /// Notifies are numbered from above `id`.
    fn number_from(&self, id: u64) {
        let mut counts = self.0.lock();
        counts.last_notify = counts.last_notify.max(id);
    }

    fn next_notify(&self) -> u64 {
        let mut counts = self.0.lock();
        counts.last_notify += 1;
        counts.last_notify
    }

    /// Those of a client, and all.
    pub(crate) fn of(&self, client: ClientId) -> (usize, usize) {
        let counts = self.0.lock();
        (counts.of_client.get(&client).copied().unwrap_or(0), counts.all)
    }

    fn add(&self, client: ClientId) {
        let mut counts = self.0.lock();
        *counts.of_client.entry(client).or_default() += 1;
        counts.all += 1;
    }

    fn remove(&self, client: ClientId) {
        let mut counts = self.0.lock();
        counts.all -= 1;
        if let Entry::Occupied(mut own) = counts.of_client.entry(client) {
            *own.get_mut() -= 1;
            if *own.get() == 0 {
                own.remove();
            }
        }
    }
}

/// See the module's documentation.
pub(crate) struct Watches<C, N> {
    limits: WatchLimits,
    counts: Arc<WatchCounts>,
    objects: BTreeMap<ObjectId, Watched<C, N>>,
    timers: BinaryHeap<Reverse<(u64, Due)>>,
    /// With more timers those that hold are looked for.
    most_timers: usize,
    notifies: usize,
    bytes: usize,
}

/// Why a notify was not begun.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooMany<N>(pub N);

impl<C: Clone, N> Watches<C, N> {
    /// Nothing watched yet. What is watched is counted in `counts` too; notifies are numbered from above `first_id`.
    pub(crate) fn new(limits: WatchLimits, counts: Arc<WatchCounts>, first_id: u64) -> Watches<C, N> {
        let (objects, timers) = (BTreeMap::new(), BinaryHeap::new());
        let most_timers = FEW_TIMERS;
        counts.number_from(first_id);
        Watches { limits, counts, objects, timers, most_timers, notifies: 0, bytes: 0 }
    }

    /// When [`Watches::on_time`] has something to do, if ever.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.timers.peek().map(|Reverse((at, _))| *at)
    }

    /// Who watches what, as `dump_watchers` lists it; `addr` shows a connection.
    pub(crate) fn dump(&self, addr: impl Fn(&C) -> String) -> Vec<serde_json::Value> {
        let watches = self.objects.iter().flat_map(|(object, watched)| {
            watched.watches.iter().map(move |(watch, live)| (object, watch, live))
        });
        watches
            .map(|(object, (client, cookie), live)| {
                let addr = live.conn.as_ref().map_or_else(|| "-".to_owned(), &addr);
                serde_json::json!({
                    "namespace": object.namespace(),
                    "object": object.name(),
                    "entity_name": { "type": "client", "num": client.0 },
                    "cookie": cookie,
                    "timeout": live.timeout_ns / 1_000_000_000,
                    "entity_addr": { "type": "v2", "addr": addr, "nonce": 0 },
                })
            })
            .collect()
    }

    /// Whether there are no watches and no notifies.
    pub(crate) fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// Watches and notifies in progress.
    #[cfg(test)]
    fn len(&self) -> (usize, usize) {
        (self.objects.values().map(|watched| watched.watches.len()).sum(), self.notifies)
    }

    /// Sets a timer. Those of what is gone stay until they fire, and clients choose when that is: where they are more than those
    /// that hold, they go now.
    fn set_timer(&mut self, at_ns: u64, due: Due) {
        self.timers.push(Reverse((at_ns, due)));
        if self.timers.len() <= self.most_timers {
            return;
        }
        let mut timers = Vec::new();
        for (object, watched) in &self.objects {
            let watches = watched.watches.iter().filter(|(_, live)| !live.lapsed);
            let due = |watch: &WatchId| Due::Watch(object.clone(), *watch);
            timers.extend(watches.map(|(watch, live)| Reverse((live.deadline_ns, due(watch)))));
            let due = |id: u64| Due::Notify(object.clone(), id);
            timers
                .extend(watched.notifies.iter().map(|notify| Reverse((notify.deadline_ns, due(notify.id)))));
        }
        self.timers = timers.into();
        self.most_timers = 2 * self.timers.len().max(FEW_TIMERS / 2);
    }

    fn watched(&mut self, slot: u32, object: &ObjectId) -> &mut Watched<C, N> {
        let none = || Watched { slot, watches: BTreeMap::new(), notifies: Vec::new() };
        self.objects.entry(object.clone()).or_insert_with(none)
    }

    /// The object was read: watches in its info that are unknown here have their timeout to connect.
    pub(crate) fn adopt(&mut self, slot: u32, object: &ObjectId, infos: &[WatchInfo], now_ns: u64) {
        for info in infos {
            let (watch, timeout_ns) = ((info.client, info.cookie), timeout_ns(info.timeout_s));
            let watched = self.watched(slot, object);
            if watched.watches.contains_key(&watch) {
                continue;
            }
            let deadline_ns = now_ns + timeout_ns;
            watched
                .watches
                .insert(watch, Live { conn: None, timeout_ns, deadline_ns, lapsed: false, failures: 0 });
            self.counts.add(watch.0);
            self.set_timer(deadline_ns, Due::Watch(object.clone(), watch));
        }
    }

    /// A watch that is in its object's info is connected by `conn`, which hears of the notifies that wait for it.
    pub(crate) fn connect(
        &mut self,
        (slot, object): (u32, &ObjectId),
        watch: WatchId,
        timeout_s: u32,
        conn: C,
        now_ns: u64,
        out: &mut Vec<Action<C, N>>,
    ) {
        let timeout_ns = timeout_ns(timeout_s);
        let deadline_ns = now_ns + timeout_ns;
        let live = Live { conn: Some(conn.clone()), timeout_ns, deadline_ns, lapsed: false, failures: 0 };
        let watched = self.watched(slot, object);
        // What has lapsed has no timer any more.
        let before = watched.watches.insert(watch, live);
        let (new, known) = (before.is_none(), before.is_some_and(|before| !before.lapsed));
        for notify in watched.notifies.iter().filter(|notify| notify.waiting.contains(&watch)) {
            out.push(Action::Tell(conn.clone(), notify.message(watch)));
        }
        if new {
            self.counts.add(watch.0);
        }
        if !known {
            self.set_timer(deadline_ns, Due::Watch(object.clone(), watch));
        }
    }

    /// A sign of life came by a connection that `is_own` recognises; whether the watch is connected by it.
    pub(crate) fn ping(
        &mut self,
        object: &ObjectId,
        watch: WatchId,
        now_ns: u64,
        is_own: impl Fn(&C) -> bool,
    ) -> bool {
        let live = self.objects.get_mut(object).and_then(|watched| watched.watches.get_mut(&watch));
        match live.filter(|live| !live.lapsed && live.conn.as_ref().is_some_and(is_own)) {
            Some(live) => {
                live.deadline_ns = now_ns + live.timeout_ns;
                true
            }
            None => false,
        }
    }

    /// A watch is no more in its object's info. `tell` says whether its watcher does not know yet.
    pub(crate) fn remove(
        &mut self,
        object: &ObjectId,
        watch: WatchId,
        tell: bool,
        out: &mut Vec<Action<C, N>>,
    ) {
        let Some(watched) = self.objects.get_mut(object) else { return };
        if let Some(live) = watched.watches.remove(&watch) {
            self.counts.remove(watch.0);
            if let Some(conn) = live.conn.filter(|_| tell) {
                out.push(Action::TellLost(conn, watch.1));
            }
        }
        self.give_up(object, watch, out);
        self.forget_idle(object);
    }

    /// The object is removed, and all its watches with it.
    pub(crate) fn remove_all(&mut self, object: &ObjectId, out: &mut Vec<Action<C, N>>) {
        let watches: Vec<WatchId> =
            self.objects.get(object).map(|w| w.watches.keys().copied().collect()).unwrap_or_default();
        for watch in watches {
            self.remove(object, watch, true, out);
        }
    }

    /// The object is replaced by one with other watches: those that it has no more are lost.
    pub(crate) fn retain(&mut self, object: &ObjectId, infos: &[WatchInfo], out: &mut Vec<Action<C, N>>) {
        let is_kept = |watch: &WatchId| infos.iter().any(|info| (info.client, info.cookie) == *watch);
        let watches = self.objects.get(object).map(|watched| &watched.watches);
        let lost: Vec<WatchId> =
            watches.into_iter().flat_map(BTreeMap::keys).copied().filter(|watch| !is_kept(watch)).collect();
        for watch in lost {
            self.remove(object, watch, true, out);
        }
    }

    /// Begins a notify of all watches in the object's info. A later attempt of one in progress takes its notifier's place;
    /// an earlier attempt that comes late does not, since its connection is gone.
    pub(crate) fn notify(
        &mut self,
        (slot, object): (u32, &ObjectId),
        (reqid, attempt): (ReqId, u32),
        notifier: N,
        payload: Bytes,
        (now_ns, timeout_ns): (u64, u64),
        out: &mut Vec<Action<C, N>>,
    ) -> Result<(), TooMany<N>> {
        if let Some(watched) = self.objects.get_mut(object)
            && let Some(running) = watched.notifies.iter_mut().find(|notify| notify.reqid == reqid)
        {
            if attempt > running.attempt {
                (running.attempt, running.notifier) = (attempt, notifier);
            }
            return Ok(());
        }
        if self.notifies >= self.limits.notifies || self.bytes + payload.len() > self.limits.bytes {
            return Err(TooMany(notifier));
        }
        let id = self.counts.next_notify();
        let watched = self.watched(slot, object);
        let waiting = watched.watches.keys().copied().collect();
        let deadline_ns = now_ns + timeout_ns;
        let notify = Notify { id, reqid, attempt, notifier, payload, deadline_ns, waiting, acks: Vec::new() };
        for watch in &notify.waiting {
            if let Some(conn) = watched.watches[watch].conn.clone() {
                out.push(Action::Tell(conn, notify.message(*watch)));
            }
        }
        let bytes = notify.payload.len();
        watched.notifies.push(notify);
        self.notifies += 1;
        self.bytes += bytes;
        self.set_timer(deadline_ns, Due::Notify(object.clone(), id));
        self.complete_answered(object, out);
        Ok(())
    }

    /// A watcher answered.
    pub(crate) fn ack(
        &mut self,
        object: &ObjectId,
        id: u64,
        watch: WatchId,
        answer: Bytes,
        out: &mut Vec<Action<C, N>>,
    ) {
        let room = self.limits.bytes.saturating_sub(self.bytes);
        let Some(watched) = self.objects.get_mut(object) else { return };
        let Some(notify) = watched.notifies.iter_mut().find(|notify| notify.id == id) else { return };
        let Some(at) = notify.waiting.iter().position(|waiting| *waiting == watch) else { return };
        notify.waiting.swap_remove(at);
        // An answer for which there is no room counts, without what it says.
        let answer = if answer.len() <= room { answer } else { Bytes::new() };
        self.bytes += answer.len();
        notify.acks.push((watch, answer));
        self.complete_answered(object, out);
    }

    /// Connections that `is_lost` recognises are gone: their watches have their timeout to come back.
    pub(crate) fn disconnect(&mut self, now_ns: u64, is_lost: impl Fn(&C) -> bool) {
        for watched in self.objects.values_mut() {
            for live in watched.watches.values_mut() {
                if live.conn.as_ref().is_some_and(&is_lost) {
                    live.conn = None;
                    live.deadline_ns = now_ns + live.timeout_ns;
                }
            }
        }
    }

    /// Watches of sessions that `is_over` recognises lapse at once.
    pub(crate) fn end_sessions(
        &mut self,
        is_over: impl Fn(ClientId, Option<&C>) -> bool,
        out: &mut Vec<Action<C, N>>,
    ) {
        let mut over: Vec<(ObjectId, WatchId)> = Vec::new();
        for (object, watched) in &self.objects {
            let ended = watched.watches.iter().filter(|((c, _), live)| is_over(*c, live.conn.as_ref()));
            over.extend(ended.map(|(watch, _)| (object.clone(), *watch)));
        }
        for (object, watch) in over {
            self.lapse(&object, watch, out);
        }
    }

    /// A watch that has lapsed could not be removed: it lapses again in a while. Notifies wait for that. Where its removal `failed`
    /// the object can't be read, which may last: then it is tried less and less often.
    pub(crate) fn lapse_again(&mut self, object: &ObjectId, watch: WatchId, now_ns: u64, failed: bool) {
        let live = self.objects.get_mut(object).and_then(|watched| watched.watches.get_mut(&watch));
        if let Some(live) = live.filter(|live| live.lapsed) {
            live.failures = if failed { live.failures.saturating_add(1) } else { 0 };
            let delay_ns = (REMOVE_AGAIN_NS << live.failures.saturating_sub(1).min(6)).min(REMOVE_FAILED_NS);
            (live.lapsed, live.deadline_ns) = (false, now_ns + delay_ns);
            let deadline_ns = live.deadline_ns;
            self.set_timer(deadline_ns, Due::Watch(object.clone(), watch));
        }
    }

    /// Time has passed. `answers` tells whether the PG in a slot answers its clients: while it does not, a watcher can
    /// neither connect nor see its pings answered, so its watch does not lapse but gets its timeout again.
    pub(crate) fn on_time(
        &mut self,
        now_ns: u64,
        answers: impl Fn(u32) -> bool,
        out: &mut Vec<Action<C, N>>,
    ) {
        while let Some(Reverse((at, _))) = self.timers.peek()
            && *at <= now_ns
            && let Some(Reverse((_, due))) = self.timers.pop()
        {
            match due {
                Due::Watch(object, watch) => {
                    let Some(watched) = self.objects.get_mut(&object) else { continue };
                    let live = watched.watches.get_mut(&watch).filter(|live| !live.lapsed);
                    let Some(live) = live else { continue };
                    if live.deadline_ns <= now_ns && !answers(watched.slot) {
                        live.deadline_ns = now_ns + live.timeout_ns.max(MIN_EXTENSION_NS);
                    }
                    if live.deadline_ns > now_ns {
                        self.timers.push(Reverse((live.deadline_ns, Due::Watch(object, watch))));
                    } else {
                        self.lapse(&object, watch, out);
                    }
                }
                Due::Notify(object, id) => self.complete(&object, out, |notify| notify.id == id),
            }
        }
    }

    /// The PG in `slot` is in another interval, or here no more: returns the notifiers that waited, who have to ask anew.
    pub(crate) fn drop_slot(&mut self, slot: u32) -> Vec<N> {
        let mut notifiers = Vec::new();
        let (notifies, bytes, counts) = (&mut self.notifies, &mut self.bytes, &self.counts);
        self.objects.retain(|_, watched| {
            if watched.slot != slot {
                return true;
            }
            watched.watches.keys().for_each(|(client, _)| counts.remove(*client));
            for notify in watched.notifies.drain(..) {
                *notifies -= 1;
                *bytes -= notify.bytes();
                notifiers.push(notify.notifier);
            }
            false
        });
        // Timers of what is gone are found to be so when they fire.
        notifiers
    }

    fn lapse(&mut self, object: &ObjectId, watch: WatchId, out: &mut Vec<Action<C, N>>) {
        let Some(watched) = self.objects.get_mut(object) else { return };
        let Some(live) = watched.watches.get_mut(&watch).filter(|live| !live.lapsed) else { return };
        live.lapsed = true;
        if let Some(conn) = live.conn.take() {
            out.push(Action::TellLost(conn, watch.1));
        }
        out.push(Action::Lapse { slot: watched.slot, object: object.clone(), watch });
        // Notifies go on waiting for it until it is removed: a removal that is lost with this primary lets the watcher come back,
        // which then has missed nothing.
    }

    /// Notifies no longer wait for a watch. As in Ceph, its watcher counts neither as answering nor as missing.
    fn give_up(&mut self, object: &ObjectId, watch: WatchId, out: &mut Vec<Action<C, N>>) {
        if let Some(watched) = self.objects.get_mut(object) {
            for notify in &mut watched.notifies {
                notify.waiting.retain(|waiting| *waiting != watch);
            }
        }
        self.complete_answered(object, out);
    }

    fn complete_answered(&mut self, object: &ObjectId, out: &mut Vec<Action<C, N>>) {
        self.complete(object, out, |notify| notify.waiting.is_empty());
    }

    fn complete(
        &mut self,
        object: &ObjectId,
        out: &mut Vec<Action<C, N>>,
        is_over: impl Fn(&Notify<N>) -> bool,
    ) {
        let Some(watched) = self.objects.get_mut(object) else { return };
        for notify in watched.notifies.extract_if(.., |notify| is_over(notify)) {
            self.notifies -= 1;
            self.bytes -= notify.bytes();
            let timed_out = !notify.waiting.is_empty();
            let mut reply = NotifyReply { notify_id: notify.id, ..NotifyReply::default() };
            reply.acks = notify.acks.into_iter().map(|((c, cookie), answer)| (c.0, cookie, answer)).collect();
            reply.acks.sort_by_key(|(client, cookie, _)| (*client, *cookie));
            reply.missed = notify.waiting.into_iter().map(|(client, cookie)| (client.0, cookie)).collect();
            reply.missed.sort_unstable();
            out.push(Action::Complete { notifier: notify.notifier, reply, timed_out });
        }
        self.forget_idle(object);
    }

    fn forget_idle(&mut self, object: &ObjectId) {
        if self.objects.get(object).is_some_and(Watched::is_idle) {
            self.objects.remove(object);
        }
    }
}

impl<C, N> Drop for Watches<C, N> {
    fn drop(&mut self) {
        let watches = self.objects.values().flat_map(|watched| watched.watches.keys());
        watches.for_each(|(client, _)| self.counts.remove(*client));
    }
}

impl<N> Notify<N> {
    fn message(&self, watch: WatchId) -> WatchNotify {
        let (notifier, payload) = (self.reqid.client, self.payload.clone());
        WatchNotify { cookie: watch.1, notify_id: self.id, notifier, payload }
    }

    fn bytes(&self) -> usize {
        self.payload.len() + self.acks.iter().map(|(_, answer)| answer.len()).sum::<usize>()
    }
}

/// A timeout in nanoseconds, of at most [`MAX_TIMEOUT_S`].
pub(crate) fn timeout_ns(timeout_s: u32) -> u64 {
    u64::from(timeout_s.min(MAX_TIMEOUT_S)) * 1_000_000_000
}
