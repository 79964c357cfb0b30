//! Watches and notifies in progress (rule R9): watchers, their connections, and the outstanding answers to notifies.
//!
//! The watches themselves are in the objects' infos, which replicate; this table holds what only the current primary knows. It
//! is empty for an object until the object is read for the first time in an interval. It is then filled from the object's info
//! with watchers that are not connected: each may reconnect within its timeout. Notifies wait for these watchers too.
//!
//! It is pure: it takes times, connections (`C`) and notifiers (`N`), and returns [`WatchAction`]s. It is bounded by
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

/// The least time for which a watch whose PG does not answer is extended, whatever its timeout, so that time advances.
const MIN_EXTENSION_NS: u64 = 1_000_000_000;

/// The time after which the removal of a lapsed watch is retried.
const REMOVE_AGAIN_NS: u64 = 1_000_000_000;
/// The longest time between two attempts if the removal fails repeatedly.
const REMOVE_FAILED_NS: u64 = 30_000_000_000;

/// The longest timeout of a watch or notify, in seconds; clients choose any timeout. A longer one is reduced to this.
pub(crate) const MAX_TIMEOUT_S: u32 = 24 * 60 * 60;

/// A number of timers that is always accepted.
const FEW_TIMERS: usize = 1024;

/// A watch within an object: session and cookie.
pub(crate) type WatchId = (ClientId, u64);

/// Bounds on watches and notifies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WatchLimits {
    /// Notifies in progress.
    pub(crate) notifies: usize,
    /// Bytes of their payloads and of the answers to them.
    pub(crate) bytes: usize,
}

/// The result of an event; to be executed in order.
#[derive(Debug)]
pub(crate) enum WatchAction<C, N> {
    /// Send a notify to a watcher.
    Tell(C, WatchNotify),
    /// Report to a watcher that its watch has lapsed.
    TellLost(C, u64),
    /// A notify is complete: answer its notifier. With `timed_out`, some watchers did not answer.
    Complete { notifier: N, reply: NotifyReply, timed_out: bool },
    /// A watch has lapsed: remove it from its object's info.
    Lapse { slot: u32, object: ObjectId, watch: WatchId },
}

struct LiveWatch<C> {
    conn: Option<C>,
    timeout_ns: u64,
    /// The time at which the watch lapses unless its client shows that it is alive.
    deadline_ns: u64,
    /// Whether it has lapsed, and its removal is in progress.
    lapsed: bool,
    /// How often its removal has failed.
    failures: u32,
}

struct Notify<N> {
    id: u64,
    reqid: ReqId,
    /// The attempt number of the request from this notifier.
    attempt: u32,
    notifier: N,
    payload: Bytes,
    /// The time at which it ends, even with outstanding answers.
    deadline_ns: u64,
    waiting: Vec<WatchId>,
    acks: Vec<(WatchId, Bytes)>,
}

struct Watched<C, N> {
    slot: u32,
    watches: BTreeMap<WatchId, LiveWatch<C>>,
    notifies: Vec<Notify<N>>,
}

impl<C, N> Watched<C, N> {
    fn is_idle(&self) -> bool {
        self.watches.is_empty() && self.notifies.is_empty()
    }
}

/// The purpose of a timer. Whether it still applies is checked when it fires.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Watch(ObjectId, WatchId),
    Notify(ObjectId, u64),
}

/// The numbers of an OSD's watches, and the number of its last notify, shared by the tables of all its shards. The pools of a
/// tier each have an object of the same name, and notifies on the two need different numbers.
#[derive(Debug, Default)]
pub(crate) struct WatchCounts(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    of_client: BTreeMap<ClientId, usize>,
    all: usize,
    last_notify: u64,
}

impl WatchCounts {
    /// Makes notifies be numbered from above `id`.
    fn number_from(&self, id: u64) {
        let mut counts = self.0.lock();
        counts.last_notify = counts.last_notify.max(id);
    }

    fn next_notify(&self) -> u64 {
        let mut counts = self.0.lock();
        counts.last_notify += 1;
        counts.last_notify
    }

    /// The numbers of a client's watches, and of all watches.
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
    /// If there are more timers, the obsolete ones are removed.
    most_timers: usize,
    notifies: usize,
    bytes: usize,
}

/// The error for a notify that exceeds the limits.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NotifyLimitReached<N>(pub N);

impl<C: Clone, N> Watches<C, N> {
    /// Creates an empty table. Its watches are also counted in `counts`; notifies are numbered from above `first_id`.
    pub(crate) fn new(limits: WatchLimits, counts: Arc<WatchCounts>, first_id: u64) -> Watches<C, N> {
        let (objects, timers) = (BTreeMap::new(), BinaryHeap::new());
        let most_timers = FEW_TIMERS;
        counts.number_from(first_id);
        Watches { limits, counts, objects, timers, most_timers, notifies: 0, bytes: 0 }
    }

    /// When [`Watches::on_tick`] is due next, if ever.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.timers.peek().map(|Reverse((at, _))| *at)
    }

    /// The watches as `dump_watchers` lists them; `addr` formats a connection.
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

    /// The numbers of watches and of notifies in progress.
    #[cfg(test)]
    fn len(&self) -> (usize, usize) {
        (self.objects.values().map(|watched| watched.watches.len()).sum(), self.notifies)
    }

    /// Sets a timer. Obsolete timers stay until they fire, at times that clients choose; if they outnumber the others, they are
    /// removed now.
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

    /// Adopts the watches in the info of an object that was read: those that are unknown here may connect within their timeout.
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
                .insert(watch, LiveWatch { conn: None, timeout_ns, deadline_ns, lapsed: false, failures: 0 });
            self.counts.add(watch.0);
            self.set_timer(deadline_ns, Due::Watch(object.clone(), watch));
        }
    }

    /// Connects a watch that is in its object's info to `conn`, which is sent the notifies that wait for the watch.
    pub(crate) fn connect(
        &mut self,
        (slot, object): (u32, &ObjectId),
        watch: WatchId,
        timeout_s: u32,
        conn: C,
        now_ns: u64,
        out: &mut Vec<WatchAction<C, N>>,
    ) {
        let timeout_ns = timeout_ns(timeout_s);
        let deadline_ns = now_ns + timeout_ns;
        let live =
            LiveWatch { conn: Some(conn.clone()), timeout_ns, deadline_ns, lapsed: false, failures: 0 };
        let watched = self.watched(slot, object);
        // A lapsed watch no longer has a timer.
        let before = watched.watches.insert(watch, live);
        let (new, known) = (before.is_none(), before.is_some_and(|before| !before.lapsed));
        for notify in watched.notifies.iter().filter(|notify| notify.waiting.contains(&watch)) {
            out.push(WatchAction::Tell(conn.clone(), notify.message(watch)));
        }
        if new {
            self.counts.add(watch.0);
        }
        if !known {
            self.set_timer(deadline_ns, Due::Watch(object.clone(), watch));
        }
    }

    /// Handles a ping on a connection that `is_own` matches. Returns whether the watch is connected to it.
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

    /// Removes a watch that is no longer in its object's info. `tell`: its watcher must be informed.
    pub(crate) fn remove(
        &mut self,
        object: &ObjectId,
        watch: WatchId,
        tell: bool,
        out: &mut Vec<WatchAction<C, N>>,
    ) {
        let Some(watched) = self.objects.get_mut(object) else { return };
        if let Some(live) = watched.watches.remove(&watch) {
            self.counts.remove(watch.0);
            if let Some(conn) = live.conn.filter(|_| tell) {
                out.push(WatchAction::TellLost(conn, watch.1));
            }
        }
        self.give_up(object, watch, out);
        self.forget_idle(object);
    }

    /// Removes all watches of a removed object.
    pub(crate) fn remove_all(&mut self, object: &ObjectId, out: &mut Vec<WatchAction<C, N>>) {
        let watches: Vec<WatchId> =
            self.objects.get(object).map(|w| w.watches.keys().copied().collect()).unwrap_or_default();
        for watch in watches {
            self.remove(object, watch, true, out);
        }
    }

    /// Handles the replacement of the object by one with other watches: watches that it does not have are lost.
    pub(crate) fn retain(
        &mut self,
        object: &ObjectId,
        infos: &[WatchInfo],
        out: &mut Vec<WatchAction<C, N>>,
    ) {
        let is_kept = |watch: &WatchId| infos.iter().any(|info| (info.client, info.cookie) == *watch);
        let watches = self.objects.get(object).map(|watched| &watched.watches);
        let lost: Vec<WatchId> =
            watches.into_iter().flat_map(BTreeMap::keys).copied().filter(|watch| !is_kept(watch)).collect();
        for watch in lost {
            self.remove(object, watch, true, out);
        }
    }

    /// Starts a notify of all watches in the object's info. A later attempt of one in progress replaces its notifier; an
    /// earlier attempt that arrives late does not, because its connection is gone.
    pub(crate) fn notify(
        &mut self,
        (slot, object): (u32, &ObjectId),
        (reqid, attempt): (ReqId, u32),
        notifier: N,
        payload: Bytes,
        (now_ns, timeout_ns): (u64, u64),
        out: &mut Vec<WatchAction<C, N>>,
    ) -> Result<(), NotifyLimitReached<N>> {
        if let Some(watched) = self.objects.get_mut(object)
            && let Some(running) = watched.notifies.iter_mut().find(|notify| notify.reqid == reqid)
        {
            if attempt > running.attempt {
                (running.attempt, running.notifier) = (attempt, notifier);
            }
            return Ok(());
        }
        if self.notifies >= self.limits.notifies || self.bytes + payload.len() > self.limits.bytes {
            return Err(NotifyLimitReached(notifier));
        }
        let id = self.counts.next_notify();
        let watched = self.watched(slot, object);
        let waiting = watched.watches.keys().copied().collect();
        let deadline_ns = now_ns + timeout_ns;
        let notify = Notify { id, reqid, attempt, notifier, payload, deadline_ns, waiting, acks: Vec::new() };
        for watch in &notify.waiting {
            if let Some(conn) = watched.watches[watch].conn.clone() {
                out.push(WatchAction::Tell(conn, notify.message(*watch)));
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

    /// Handles a watcher's answer.
    pub(crate) fn ack(
        &mut self,
        object: &ObjectId,
        id: u64,
        watch: WatchId,
        answer: Bytes,
        out: &mut Vec<WatchAction<C, N>>,
    ) {
        let room = self.limits.bytes.saturating_sub(self.bytes);
        let Some(watched) = self.objects.get_mut(object) else { return };
        let Some(notify) = watched.notifies.iter_mut().find(|notify| notify.id == id) else { return };
        let Some(at) = notify.waiting.iter().position(|waiting| *waiting == watch) else { return };
        notify.waiting.swap_remove(at);
        // An answer without room counts, but its payload is dropped.
        let answer = if answer.len() <= room { answer } else { Bytes::new() };
        self.bytes += answer.len();
        notify.acks.push((watch, answer));
        self.complete_answered(object, out);
    }

    /// Handles the end of connections that `is_lost` matches: their watches may reconnect within their timeout.
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

    /// Makes watches of sessions that `is_over` matches lapse at once.
    pub(crate) fn end_sessions(
        &mut self,
        is_over: impl Fn(ClientId, Option<&C>) -> bool,
        out: &mut Vec<WatchAction<C, N>>,
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

    /// Handles a lapsed watch that could not be removed: it lapses again after a while. Notifies wait for that. If the removal
    /// `failed`, the object can't be read, possibly for long: then the retries become less and less frequent.
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

    /// Handles timeouts. `answers` returns whether the PG in a slot answers its clients. While it does not, a watcher can
    /// neither connect nor get answers to its pings, so its watch does not lapse but gets its timeout again.
    pub(crate) fn on_tick(
        &mut self,
        now_ns: u64,
        answers: impl Fn(u32) -> bool,
        out: &mut Vec<WatchAction<C, N>>,
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

    /// Handles an interval change or removal of the PG in `slot`. Returns the notifiers that waited, which must send their
    /// requests again.
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
        // Obsolete timers are recognised when they fire.
        notifiers
    }

    fn lapse(&mut self, object: &ObjectId, watch: WatchId, out: &mut Vec<WatchAction<C, N>>) {
        let Some(watched) = self.objects.get_mut(object) else { return };
        let Some(live) = watched.watches.get_mut(&watch).filter(|live| !live.lapsed) else { return };
        live.lapsed = true;
        if let Some(conn) = live.conn.take() {
            out.push(WatchAction::TellLost(conn, watch.1));
        }
        out.push(WatchAction::Lapse { slot: watched.slot, object: object.clone(), watch });
        // Notifies wait for it until it is removed: if the removal is lost with this primary, the watcher can reconnect, and
        // has missed nothing.
    }

    /// Makes notifies no longer wait for a watch. As in Ceph, its watcher counts neither as answering nor as missing.
    fn give_up(&mut self, object: &ObjectId, watch: WatchId, out: &mut Vec<WatchAction<C, N>>) {
        if let Some(watched) = self.objects.get_mut(object) {
            for notify in &mut watched.notifies {
                notify.waiting.retain(|waiting| *waiting != watch);
            }
        }
        self.complete_answered(object, out);
    }

    fn complete_answered(&mut self, object: &ObjectId, out: &mut Vec<WatchAction<C, N>>) {
        self.complete(object, out, |notify| notify.waiting.is_empty());
    }

    fn complete(
        &mut self,
        object: &ObjectId,
        out: &mut Vec<WatchAction<C, N>>,
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
            out.push(WatchAction::Complete { notifier: notify.notifier, reply, timed_out });
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
