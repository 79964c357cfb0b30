//! Owners: the delivery of one shard by the gateway that holds its lease.
//!
//! An owner takes the lease and loads the shard's events. It continues until there is nothing to do, another gateway should
//! deliver the shard, or the endpoint does not answer. Its operations on the shard are sequential; pushes run concurrently,
//! each in a task that ends with the owner.

mod acquire;
mod letters;
mod limits;
mod loading;
mod pushing;
mod settling;

use crate::core::Core;
use crate::endpoints::TopicEndpoint;
use crate::error::{Error, Result};
use crate::generations::GenerationChanges;
use crate::metrics::{add, subtract};
use crate::queue_shard::ShardKey;
use crate::schedule::ShardWaker;
use crate::topic_state::TopicStates;
use crate::topic_store::StoredTopic;
use acquire::LeaseOutcome;
use futures::FutureExt as _;
use limits::DeliveryLimits;
use nacre_queues::layout::Generation;
use nacre_queues::lease::LeaseTerm;
use nacre_queues::retry::{BreakerState, RetryPolicy};
use nacre_queues::settle::LogIndex;
use nacre_queues::shard::{self, Shard};
use nacre_queues::window::{OlderGenerations, Window, WindowTime};
use nacre_topics::topic::TopicId;
use pushing::InflightPushes;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::{AcquireError, SemaphorePermit};

/// The interval at which older generations and expired events are checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// The longest interval at which the owner checks whether other gateways enqueued events.
const LONGEST_POLL: Duration = Duration::from_secs(1);

/// The next step for a shard after it was checked.
pub(crate) enum NextCheck {
    /// Nothing: it is empty or gone. Enqueueing an event wakes it.
    Done,
    /// Another gateway should deliver it.
    Elsewhere,
    /// It is checked again at this time, by the monotonic clock.
    At(u64),
    /// It waits for its endpoint.
    Endpoint(Arc<TopicEndpoint>),
}

fn policy_of(core: &Core, stored: &StoredTopic) -> RetryPolicy {
    core.settings.retry_policy(&stored.record.topic.attributes)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The owners of this gateway.
pub(crate) struct Owners {
    core: Arc<Core>,
    states: Arc<TopicStates>,
    changes: Arc<GenerationChanges>,
    limits: DeliveryLimits,
}

impl Owners {
    pub(crate) fn new(
        core: &Arc<Core>,
        states: &Arc<TopicStates>,
        changes: &Arc<GenerationChanges>,
    ) -> Owners {
        Owners {
            core: Arc::clone(core),
            states: Arc::clone(states),
            changes: Arc::clone(changes),
            limits: DeliveryLimits::new(core.settings.active_shards),
        }
    }

    /// Waits for a slot to deliver a shard of the topic.
    pub(crate) async fn slot(&self, topic: TopicId) -> Result<SemaphorePermit<'_>, AcquireError> {
        let endpoint = self.states.endpoints.peek(topic);
        let is_probe = endpoint.is_some_and(|endpoint| endpoint.breaker() != BreakerState::Closed);
        self.limits.slot(is_probe).await
    }

    /// Delivers a shard as long as this gateway can and should do so.
    pub(crate) async fn deliver(&self, key: ShardKey, waker: &ShardWaker) -> Result<NextCheck> {
        let core = &self.core;
        if core.tasks.is_stopped() {
            return Ok(NextCheck::Done);
        }
        let Some(known) = core.topics.peek(key.topic) else { return Ok(NextCheck::Done) };
        let Some(stored) = core.topics.get(&known.record.topic.arn, key.topic).await? else {
            self.states.forget(key.topic);
            return Ok(NextCheck::Done);
        };
        let layout = &stored.record.layout;
        let Some(generation) = layout.deliverable().find(|one| one.number == key.generation) else {
            return Ok(NextCheck::Done);
        };
        let is_current = layout.current == Some(generation);
        if is_current && layout.next.is_some() {
            // The gateway that changes the generations takes over the shards.
            self.changes.schedule(&stored);
            return Ok(NextCheck::At(core.mono_ns() + nanos(CHECK_INTERVAL)));
        }
        let endpoint = self.states.endpoints.get(&stored);
        let must_spill = waker.must_spill.load(Ordering::Acquire);
        let expires = policy_of(core, &stored).time_to_live_ns.is_some();
        match &endpoint {
            _ if must_spill => {}
            None => return Ok(NextCheck::Done),
            Some(endpoint) if !expires && endpoint.blocked_until_ns().is_some() => {
                return Ok(NextCheck::Endpoint(Arc::clone(endpoint)));
            }
            Some(_) => {}
        }
        let taken = acquire::take_lease(core, key, &stored, generation).await?;
        let (shard, term, has_letters) = match taken {
            LeaseOutcome::Owned(shard, term, has_letters) => (*shard, term, has_letters),
            LeaseOutcome::Empty => return Ok(NextCheck::Done),
            LeaseOutcome::Gone => {
                self.states.closed_generations.retire(&stored, generation, key.shard).await?;
                return Ok(NextCheck::Done);
            }
            LeaseOutcome::Elsewhere => return Ok(NextCheck::Elsewhere),
        };
        add(&core.metrics.leases_taken, 1);
        let mut owner = Ownership::new(self, key, waker, (stored, generation, endpoint), shard, term);
        owner.has_letters = has_letters;
        let ran = owner.run().await;
        if matches!(ran, Err(Error::Changed(_))) {
            add(&core.metrics.leases_lost, 1);
        }
        ran
    }
}

/// The bytes of loaded events, included in the gateway's metric.
struct LoadedBytesGauge<'a> {
    core: &'a Core,
    bytes: u64,
}

impl LoadedBytesGauge<'_> {
    fn set(&mut self, bytes: u64) {
        add(&self.core.metrics.loaded_bytes, bytes);
        subtract(&self.core.metrics.loaded_bytes, self.bytes);
        self.bytes = bytes;
    }
}

impl Drop for LoadedBytesGauge<'_> {
    fn drop(&mut self) {
        subtract(&self.core.metrics.loaded_bytes, self.bytes);
    }
}

/// The state of an owner.
struct Ownership<'a> {
    owners: &'a Owners,
    core: &'a Arc<Core>,
    key: ShardKey,
    waker: &'a ShardWaker,
    stored: Arc<StoredTopic>,
    generation: Generation,
    endpoint: Option<Arc<TopicEndpoint>>,
    shard: Shard,
    log: LogIndex,
    policy: RetryPolicy,
    window: Window,
    term: LeaseTerm,
    older: OlderGenerations,
    pushes: InflightPushes,
    segment: Option<loading::LoadedSegment>,
    loaded: LoadedBytesGauge<'a>,
    /// The average number of events in a batch of the last page.
    batch_events: u64,
    /// The number of outcomes that are not settled.
    unsettled: usize,
    unsettled_since_ns: Option<u64>,
    /// Whether there are dead letters beside the log.
    has_letters: bool,
    taken_at_ns: u64,
    checked_at_ns: Option<u64>,
    poll: Duration,
    poll_at_ns: u64,
    idle_since_ns: Option<u64>,
    unwanted_since_ns: Option<u64>,
    /// Whether the last attempt to settle without an outcome had no effect.
    is_settled_in_vain: bool,
}

impl<'a> Ownership<'a> {
    fn new(
        owners: &'a Owners,
        key: ShardKey,
        waker: &'a ShardWaker,
        (stored, generation, endpoint): (Arc<StoredTopic>, Generation, Option<Arc<TopicEndpoint>>),
        shard: Shard,
        term: LeaseTerm,
    ) -> Ownership<'a> {
        let core = &owners.core;
        let policy = policy_of(core, &stored);
        let window = Window::new(core.settings.window, policy, &shard.head.value);
        let now = core.mono_ns();
        Ownership {
            owners,
            core,
            key,
            waker,
            stored,
            generation,
            endpoint,
            shard,
            log: LogIndex::default(),
            policy,
            window,
            term,
            older: OlderGenerations::default(),
            pushes: InflightPushes::new(term),
            segment: None,
            loaded: LoadedBytesGauge { core, bytes: 0 },
            batch_events: 0,
            unsettled: 0,
            unsettled_since_ns: None,
            has_letters: false,
            taken_at_ns: now,
            checked_at_ns: None,
            poll: core.settings.poll,
            poll_at_ns: now,
            idle_since_ns: None,
            unwanted_since_ns: None,
            is_settled_in_vain: false,
        }
    }

    fn lease_ns(&self) -> u64 {
        nanos(self.core.settings.lease)
    }

    async fn run(&mut self) -> Result<NextCheck> {
        self.load_side_records().await?;
        loop {
            self.apply_outcomes();
            self.follow_topic();
            let now = self.core.window_time();
            if now.mono_ns >= self.term.renew_at_ns() {
                self.renew(now).await?;
            }
            self.check_periodically(now).await?;
            let stop = self.reason_to_stop(now);
            let is_leaving = stop.is_some();
            if let Some(next) = stop {
                if self.window.in_flight() == 0 {
                    return self.end(next).await;
                }
            } else {
                if self.must_spill() && self.spill().await? {
                    continue;
                }
                if self.load(now).await? | self.send(now) {
                    self.idle_since_ns = None;
                    self.is_settled_in_vain = false;
                    continue;
                }
            }
            if self.should_settle(now) && self.settle().await? {
                continue;
            }
            if self.has_letters && self.move_dead_letters().await? {
                continue;
            }
            self.wait(now, is_leaving).await;
        }
    }

    /// Adopts changes of the topic, and of the options that apply if the topic does not set a value.
    fn follow_topic(&mut self) {
        if let Some(now) = self.core.topics.peek(self.key.topic).filter(|now| *now != self.stored) {
            self.endpoint = self.owners.states.endpoints.get(&now);
            self.pushes.set_endpoint(self.endpoint.as_ref());
            self.stored = now;
        }
        let policy = policy_of(self.core, &self.stored);
        if policy != self.policy {
            self.policy = policy;
            self.window.set_policy(policy);
        }
    }

    /// Periodic checks: expired events, older generations, the preferred gateway.
    async fn check_periodically(&mut self, now: WindowTime) -> Result<()> {
        // The first check precedes the first push, because it determines which events older generations block.
        if self.checked_at_ns.is_some_and(|checked_at_ns| now.mono_ns < checked_at_ns + nanos(CHECK_INTERVAL))
        {
            return Ok(());
        }
        self.checked_at_ns = Some(now.mono_ns);
        let expired = self.window.expire(now);
        self.note_outcomes(expired, now);
        let layout = &self.stored.record.layout;
        if layout.before(self.generation.number).next().is_some() {
            let older =
                self.owners.states.closed_generations.older_than(&self.stored, self.generation).await?;
            if older != self.older {
                self.older = older;
                self.window.recheck_held();
            }
        } else if !self.older.generations.is_empty() {
            self.older = OlderGenerations::default();
            self.window.recheck_held();
        }
        let is_wanted = self.core.gateways.is_preferred(&self.key);
        self.unwanted_since_ns = if is_wanted { None } else { self.unwanted_since_ns.or(Some(now.mono_ns)) };
        Ok(())
    }

    fn note_outcomes(&mut self, more: usize, now: WindowTime) {
        if more > 0 {
            self.unsettled += more;
            self.unsettled_since_ns.get_or_insert(now.mono_ns);
            self.is_settled_in_vain = false;
        }
    }

    /// The endpoint, if its breaker does not permit a push now.
    fn blocked_endpoint(&self) -> Option<&Arc<TopicEndpoint>> {
        self.endpoint.as_ref().filter(|endpoint| endpoint.blocked_until_ns().is_some())
    }

    fn must_spill(&self) -> bool {
        let is_slow =
            self.endpoint.as_ref().is_none_or(|endpoint| endpoint.breaker() != BreakerState::Closed);
        let (resident, above) = (self.shard.resident_bytes(), self.core.settings.spill.above_bytes);
        // A shard is also spilled if its consumer is slow for a long time.
        resident > above && (is_slow || self.is_spill_requested() || resident > 2 * above)
    }

    fn is_spill_requested(&self) -> bool {
        self.waker.must_spill.load(Ordering::Acquire)
    }

    /// Whether all known events of the shard are loaded.
    fn is_all_loaded(&self) -> bool {
        self.window.load_range().is_some_and(|(from, _)| from >= self.shard.tail.value.next)
    }

    /// Whether no other event of the log expires before the loaded ones.
    fn has_loaded_next(&self) -> bool {
        self.window.has_loaded_next() || self.is_all_loaded()
    }

    /// The reason why this gateway should stop delivering the shard, if there is one.
    fn reason_to_stop(&mut self, now: WindowTime) -> Option<NextCheck> {
        let later = |wait: Duration| Some(NextCheck::At(now.mono_ns + nanos(wait)));
        if self.core.tasks.is_stopped() {
            return Some(NextCheck::Done);
        }
        if !self.term.may_send(now.mono_ns) && now.mono_ns > self.term.renew_at_ns() + self.lease_ns() {
            return later(Duration::ZERO);
        }
        if self.waker.must_release.load(Ordering::Acquire) {
            return later(CHECK_INTERVAL);
        }
        let layout = &self.stored.record.layout;
        if !layout.deliverable().any(|one| one == self.generation) {
            return Some(NextCheck::Done);
        }
        if layout.current == Some(self.generation) && layout.next.is_some() {
            return later(CHECK_INTERVAL);
        }
        if self.must_spill() {
            return None;
        }
        if self.endpoint.is_none() {
            return Some(NextCheck::Done);
        }
        let is_older = layout.current != Some(self.generation);
        let is_finished = self.shard.is_drained() && self.window.is_empty();
        if is_finished && !self.has_letters && is_older {
            return Some(NextCheck::Done);
        }
        if let Some(endpoint) = self.blocked_endpoint().cloned() {
            let expiry = self.window.time_to_expiry_ns(now);
            // The next expiry is known once expired events are settled and the next ones are loaded.
            let expires = self.policy.time_to_live_ns.is_some();
            let is_known = !expires || (self.unsettled == 0 && self.has_loaded_next());
            let is_done = is_known && expiry.is_none_or(|left| left > nanos(CHECK_INTERVAL));
            if is_done && !is_finished && !self.has_letters {
                if let Some(left) = expiry {
                    self.core.schedule.wake_at(self.key, now.mono_ns.saturating_add(left));
                }
                return Some(NextCheck::Endpoint(endpoint));
            }
        }
        let held_for = now.mono_ns - self.taken_at_ns.min(now.mono_ns);
        if self.owners.limits.has_waiting_tasks() && held_for > nanos(self.core.settings.turn) {
            return later(Duration::ZERO);
        }
        let patience = nanos(self.core.settings.scan + 2 * self.core.settings.watch);
        if self.unwanted_since_ns.is_some_and(|since| now.mono_ns - since > patience) {
            return Some(NextCheck::Elsewhere);
        }
        let is_quiet = self.window.in_flight() == 0
            && self.unsettled == 0
            && !self.window.has_ready(now)
            && !self.window.has_held_events()
            && !self.has_letters
            && self.is_all_loaded();
        if !is_quiet {
            self.idle_since_ns = None;
            return None;
        }
        let since = *self.idle_since_ns.get_or_insert(now.mono_ns);
        // If other shards wait for their turn, a shard that needs nothing now is released immediately.
        let patience =
            if self.owners.limits.has_waiting_tasks() { 0 } else { nanos(self.core.settings.idle) };
        // Events may expire before they are retried.
        let expiry = self
            .window
            .time_to_expiry_ns(now)
            .map(|left| now.mono_ns.saturating_add(left.max(nanos(CHECK_INTERVAL))));
        match self.window.next_due_ns().map(|due| expiry.map_or(due, |expiry| expiry.min(due))) {
            Some(due) if due > now.mono_ns + patience => Some(NextCheck::At(due)),
            None if is_finished && now.mono_ns >= since + patience => Some(NextCheck::Done),
            _ => None,
        }
    }

    /// Settles all outcomes and releases the lease.
    async fn end(&mut self, next: NextCheck) -> Result<NextCheck> {
        while self.settle().await? {}
        let layout = &self.stored.record.layout;
        let is_older = layout.current != Some(self.generation);
        if is_older && self.shard.is_drained() {
            while self.has_letters && self.move_dead_letters().await? {}
            let beside = self.core.rados.read(&shard::read_side_records(&self.shard.object, 1)).await?;
            let is_nothing_left = beside.is_some_and(|beside| shard::has_only_receipts(&beside.page));
            if let Some(op) = self.shard.retire(is_nothing_left)
                && self.core.rados.write(op).await?.is_done()
            {
                let closed = &self.owners.states.closed_generations;
                closed.forget_progress(&self.key);
                closed.retire(&self.stored, self.generation, self.key.shard).await?;
                return Ok(NextCheck::Done);
            }
        }
        // If the lease is already lost, this does nothing.
        self.core.rados.write(self.shard.release_lease()).await?;
        Ok(next)
    }

    /// Waits for an outcome, a notification, or the next time at which there is something to do. An owner that is leaving
    /// neither sends nor loads: it waits for events in flight.
    async fn wait(&mut self, now: WindowTime, is_leaving: bool) {
        let mut at = (now.mono_ns + nanos(CHECK_INTERVAL)).min(self.term.renew_at_ns());
        let settle = self.unsettled_since_ns.map(|since| since + nanos(self.core.settings.settle_linger));
        at = settle.map_or(at, |settle| at.min(settle));
        if !is_leaving {
            // A time in the past could not be used, because memory is short or too many pushes already wait.
            let due = self.window.next_due_ns().filter(|_| self.pushes.may_send(now.mono_ns));
            let blocked = self.endpoint.as_ref().and_then(|endpoint| endpoint.blocked_until_ns());
            let due = due.map(|due| due.max(blocked.unwrap_or(0))).filter(|due| *due > now.mono_ns);
            at = due.map_or(at, |due| at.min(due));
            if self.is_all_loaded() {
                let is_ahead = self.poll_at_ns > now.mono_ns;
                at = at.min(if is_ahead { self.poll_at_ns } else { now.mono_ns + nanos(self.poll) });
            }
        }
        let wait = Duration::from_nanos(at.saturating_sub(now.mono_ns)).max(Duration::from_millis(1));
        let mut sleep = self.core.env.sleep(wait).fuse();
        let notified = self.waker.notify.notified().fuse();
        let mut notified = std::pin::pin!(notified);
        let outcome = futures::select_biased! {
            outcome = self.pushes.outcomes.recv().fuse() => outcome,
            () = notified => {
                self.poll_at_ns = 0;
                self.poll = self.core.settings.poll;
                None
            }
            () = sleep => None,
        };
        if let Some(outcome) = outcome {
            self.apply_outcome(outcome);
        }
    }
}
