//! Pushing: events that may be sent go to the endpoint in separate tasks, which return the outcomes.

use super::Ownership;
use crate::core::Core;
use crate::endpoints::{self, TopicEndpoint};
use crate::metrics::{add, subtract};
use crate::push::{Connection, PushFailure, PushMessage};
use nacre_queues::lease::LeaseTerm;
use nacre_queues::retry::BreakerState;
use nacre_queues::window::{ReadyEvent, WindowTime};
use nacre_task::AbortOnDrop;
use nacre_topics::record::Event;
use nacre_types::encoding;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::mpsc;

/// The number of pushes of a shard that may wait for their turn.
const MAX_WAITING_PUSHES: usize = 4;
/// If this many pushes of all shards are in flight or wait, a shard starts no push beyond [`MAX_WAITING_PUSHES`]: each push needs some
/// kilobytes.
const BUSY_PUSHES: u64 = 1024;

/// The outcome of pushed events.
pub(super) struct PushOutcomes {
    task: u64,
    of_events: Vec<(u64, PushFate)>,
}

enum PushFate {
    Delivered,
    Refused(String),
    Unavailable(String),
    /// It was not pushed, because the lease may have ended or the breaker has opened.
    NotSent,
}

/// The pushes in flight. Dropping this aborts them; events that they already sent may still arrive.
pub(super) struct InflightPushes {
    pub(super) outcomes: mpsc::UnboundedReceiver<PushOutcomes>,
    sender: mpsc::UnboundedSender<PushOutcomes>,
    tasks: BTreeMap<u64, AbortOnDrop<()>>,
    next_task: u64,
    term: Arc<SharedTerm>,
    /// The connection that only this queue uses, if it has one, and its endpoint.
    connection: Option<(Arc<TopicEndpoint>, Arc<dyn Connection>)>,
    opaque_data: Option<Arc<str>>,
}

/// The time until which events may be sent.
struct SharedTerm {
    until_ns: AtomicU64,
}

impl SharedTerm {
    fn set(&self, term: LeaseTerm) {
        // The time at which the term no longer permits sending.
        self.until_ns.store(term.send_until_ns(), Ordering::Release);
    }

    fn may_send(&self, now_ns: u64) -> bool {
        now_ns < self.until_ns.load(Ordering::Acquire)
    }
}

impl InflightPushes {
    pub(super) fn new(term: LeaseTerm) -> InflightPushes {
        let (sender, outcomes) = mpsc::unbounded_channel();
        let until_ns = AtomicU64::new(term.send_until_ns());
        InflightPushes {
            outcomes,
            sender,
            tasks: BTreeMap::new(),
            next_task: 0,
            term: Arc::new(SharedTerm { until_ns }),
            connection: None,
            opaque_data: None,
        }
    }

    pub(super) fn set_term(&self, term: LeaseTerm) {
        self.term.set(term);
    }

    pub(super) fn may_send(&self, now_ns: u64) -> bool {
        self.term.may_send(now_ns)
    }

    /// Called when the topic has changed. Drops the connection if the endpoint has changed. A connection to the same
    /// endpoint is kept: a new one would fence it, and events in flight would be sent again.
    pub(super) fn set_endpoint(&mut self, endpoint: Option<&Arc<TopicEndpoint>>) {
        if let Some((of, _)) = &self.connection
            && endpoint.is_none_or(|now| !Arc::ptr_eq(now, of))
        {
            self.connection = None;
        }
        self.opaque_data = None;
    }
}

impl Ownership<'_> {
    /// Applies the available outcomes.
    pub(super) fn apply_outcomes(&mut self) {
        while let Ok(outcome) = self.pushes.outcomes.try_recv() {
            self.apply_outcome(outcome);
        }
    }

    pub(super) fn apply_outcome(&mut self, outcome: PushOutcomes) {
        let core = self.core;
        self.pushes.tasks.remove(&outcome.task);
        let now = core.window_time();
        let has_attempts = self.stored_retries();
        let mut settled = 0;
        for (sequence, fate) in outcome.of_events {
            match fate {
                PushFate::Delivered => {
                    add(&core.metrics.delivered, 1);
                    self.window.delivered(sequence);
                    settled += 1;
                }
                PushFate::Refused(detail) => {
                    add(&core.metrics.failed, 1);
                    self.window.failed(sequence, &detail, core.env.wall_ns(), now, core.random());
                    settled += 1;
                }
                // If attempts are limited, they are counted durably.
                PushFate::Unavailable(detail) if has_attempts => {
                    add(&core.metrics.failed, 1);
                    self.window.failed(sequence, &detail, core.env.wall_ns(), now, core.random());
                    settled += 1;
                }
                PushFate::Unavailable(detail) => {
                    add(&core.metrics.failed, 1);
                    self.window.unreachable(sequence, &detail, now, core.random());
                    self.is_settled_in_vain = false;
                }
                PushFate::NotSent => self.window.not_sent(sequence),
            }
        }
        self.note_outcomes(settled, now);
    }

    fn stored_retries(&self) -> bool {
        super::policy_of(self.core, &self.stored).max_retries.is_some()
    }

    /// Sends the events that may be sent. Returns whether there were any.
    pub(super) fn send(&mut self, now: WindowTime) -> bool {
        let Some(endpoint) = self.endpoint.clone() else { return false };
        // Waiting pushes need memory, but each shard may have some, so that it gets its share of the turns.
        let queued = MAX_WAITING_PUSHES.saturating_sub(self.pushes.tasks.len());
        let is_busy = self.core.metrics.pushes.load(Ordering::Relaxed) >= BUSY_PUSHES;
        let permits = if is_busy { 0 } else { endpoint.pushes.available_permits() };
        let room = permits.max(queued) * endpoint.max_batch_size();
        if room == 0 {
            return false;
        }
        if !self.pushes.may_send(now.mono_ns) || !self.window.has_ready(now) {
            return false;
        }
        if endpoint.blocked_until_ns().is_some() {
            return false;
        }
        let first = match endpoint.breaker() {
            BreakerState::Closed => self.window.next(now, &self.older, 1).pop(),
            _ => self.window.next_probe(now, &self.older, self.core.random()),
        };
        let Some(first) = first else { return false };
        let permits = endpoint.permits();
        if permits == 0 {
            self.window.not_sent(first.sequence);
            return false;
        }
        let mut sent = vec![first];
        if permits > 1 {
            sent.extend(self.window.next(now, &self.older, (permits - 1).min(room - 1)));
        }
        let connection = match self.connection(&endpoint) {
            Ok(connection) => connection,
            Err(failure) => {
                let fate = |one: ReadyEvent| (one.sequence, PushFate::Unavailable(failure.to_string()));
                endpoint.failed(&failure.to_string());
                let outcome =
                    PushOutcomes { task: u64::MAX, of_events: sent.into_iter().map(fate).collect() };
                self.apply_outcome(outcome);
                return true;
            }
        };
        let is_probe = permits == 1;
        for part in sent.chunks(endpoint.max_batch_size()) {
            self.begin_push(&endpoint, Arc::clone(&connection), part, is_probe);
        }
        true
    }

    fn connection(&mut self, endpoint: &Arc<TopicEndpoint>) -> Result<Arc<dyn Connection>, PushFailure> {
        if !endpoint.is_transactional() {
            return endpoint.connection();
        }
        if let Some((_, connection)) = &self.pushes.connection {
            return Ok(Arc::clone(connection));
        }
        let arn = &self.stored.record.topic.arn;
        let (generation, shard) = (self.key.generation, self.key.shard);
        let queue = format!("{}:{}.{generation}.{shard}", arn.tenant, arn.name);
        let made = endpoint.connection_of_queue(queue)?;
        self.pushes.connection = Some((Arc::clone(endpoint), Arc::clone(&made)));
        Ok(made)
    }

    fn begin_push(
        &mut self,
        endpoint: &Arc<TopicEndpoint>,
        connection: Arc<dyn Connection>,
        events: &[ReadyEvent],
        is_probe: bool,
    ) {
        let opaque_data = &self.stored.record.topic.attributes.opaque_data;
        let opaque_data = self.pushes.opaque_data.get_or_insert_with(|| Arc::from(opaque_data.as_str()));
        let mut outcomes = Vec::new();
        let mut messages = Vec::with_capacity(events.len());
        let mut sequences = Vec::with_capacity(events.len());
        for one in events {
            match encoding::decode::<Event>(&one.event.payload) {
                Ok(event) => {
                    let (event, opaque_data) = (Arc::new(event), Arc::clone(opaque_data));
                    messages.push(PushMessage { event, opaque_data, is_replayed: one.event.replayed });
                    sequences.push(one.sequence);
                }
                Err(error) => {
                    tracing::error!(shard = %self.shard.object, %error, "notifications: an event in a queue can't be understood");
                    outcomes.push((one.sequence, PushFate::Refused(error.to_string())));
                }
            }
        }
        let task = self.pushes.next_task;
        self.pushes.next_task += 1;
        let (core, endpoint, term) =
            (Arc::clone(self.core), Arc::clone(endpoint), Arc::clone(&self.pushes.term));
        let sender = self.pushes.sender.clone();
        let counted = Counted::new(Arc::clone(self.core));
        let push = async move {
            let _counted = counted;
            let pushed = push(&core, &endpoint, connection, &term, messages, is_probe).await;
            outcomes.extend(sequences.into_iter().zip(pushed));
            // If the owner no longer exists, these events are not settled.
            let _ = sender.send(PushOutcomes { task, of_events: outcomes });
        };
        self.pushes.tasks.insert(task, self.core.env.spawn(push).abort_on_drop());
    }
}

/// Counts a push as long as its task exists.
struct Counted(Arc<Core>);

impl Counted {
    fn new(core: Arc<Core>) -> Counted {
        add(&core.metrics.pushes, 1);
        Counted(core)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        subtract(&self.0.metrics.pushes, 1);
    }
}

/// Pushes the messages of one task.
async fn push(
    core: &Core,
    endpoint: &TopicEndpoint,
    connection: Arc<dyn Connection>,
    term: &SharedTerm,
    messages: Vec<PushMessage>,
    is_probe: bool,
) -> Vec<PushFate> {
    let not_sent = |count: usize| (0..count).map(|_| PushFate::NotSent).collect();
    let count = messages.len();
    if count == 0 {
        return Vec::new();
    }
    let Ok(_permit) = endpoint.pushes.acquire().await else { return not_sent(count) };
    let is_left_alone = !is_probe && endpoint.breaker() != BreakerState::Closed;
    if is_left_alone || !term.may_send(core.mono_ns()) {
        return not_sent(count);
    }
    let oldest_ns = messages.iter().map(|message| message.event.request.time_ns).min().unwrap_or_default();
    let outcomes = endpoints::push(connection, messages).await;
    // An endpoint that answered some of the events is alive.
    let is_alive = outcomes.iter().any(|outcome| !matches!(outcome, Err(PushFailure::Unavailable(_))));
    match outcomes.first() {
        Some(Err(PushFailure::Unavailable(detail))) if !is_alive => endpoint.failed(detail),
        _ => endpoint.succeeded(),
    }
    if outcomes.iter().any(Result::is_ok) {
        let lag_ms = core.env.wall_ns().saturating_sub(oldest_ns) / 1_000_000;
        core.metrics.lag_ms.store(lag_ms, Ordering::Relaxed);
    }
    let fate = |outcome| match outcome {
        Ok(()) => PushFate::Delivered,
        Err(PushFailure::Refused(detail)) => PushFate::Refused(detail),
        Err(PushFailure::Unavailable(detail)) => PushFate::Unavailable(detail),
    };
    outcomes.into_iter().map(fate).collect()
}
