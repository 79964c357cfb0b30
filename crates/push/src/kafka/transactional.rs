//! Transactions: a push is one transaction of the producer of the queue's owner.
//!
//! The first push of a connection initialises the producer. This fences every other producer with the queue's
//! `transactional.id` and ends its open transaction. A fenced connection stays fenced: its owner lost the queue.
//!
//! If Kafka refuses an event, the transaction is aborted, and the other events are sent again without it. If the outcome of
//! a commit is unknown, the next push determines it first, and omits those of its events that turn out to be committed. One
//! case remains: if a gateway ends after the commit and before it removes the events from the queue, the next owner sends
//! them again.

use super::native::{Producer, TransactionError};
use super::{config_of, send, start, topic_name};
use crate::{Context, timed_out, unavailable};
use futures::future::BoxFuture;
use nacre_notify::push::{Connection, PushFailure, PushMessage};
use nacre_topics::endpoint::KafkaEndpoint;
use rdkafka::ClientConfig;
use rdkafka::error::RDKafkaErrorCode;
use std::collections::HashSet;
use std::ffi::CString;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout_at};

/// The least time for a step of a transaction, even if the push is late.
const MIN_STEP_TIMEOUT: Duration = Duration::from_secs(1);
/// With more remembered events of commits than this, all are forgotten. They may be sent again then.
const MAX_COMMITTED: usize = 8192;
/// The delay before a step is retried.
const RETRY_DELAY: Duration = Duration::from_millis(50);
/// The broker's timeout for a transaction exceeds the timeout of a push by this much.
const TIMEOUT_MARGIN: Duration = Duration::from_secs(20);

/// A connection to a Kafka topic that uses transactions.
pub(crate) struct TransactionalConnection(Arc<Queue>);

struct Queue {
    context: Arc<Context>,
    config: ClientConfig,
    topic: CString,
    state: Mutex<State>,
}

/// The state of the transactions; one push at a time locks it.
#[derive(Default)]
struct State {
    /// The initialised producer. `None` before the first push, and after a fatal error.
    producer: Option<Arc<Producer>>,
    is_fenced: bool,
    phase: Phase,
    /// Events of commits whose outcome was determined by a later push. They are kept until a push has reported them.
    committed: HashSet<String>,
}

/// The state of the transaction.
#[derive(Default)]
enum Phase {
    /// No transaction is open.
    #[default]
    Idle,
    /// A transaction was started, and must be aborted.
    Open,
    /// A commit of these events was requested, and its outcome is unknown.
    InDoubt(Vec<String>),
}

impl TransactionalConnection {
    pub(crate) fn new(
        context: &Arc<Context>,
        endpoint: &KafkaEndpoint,
        queue: &str,
    ) -> Result<TransactionalConnection, PushFailure> {
        let mut config = config_of(context, endpoint)?;
        let timeout = context.limits.kafka.push.max(MIN_STEP_TIMEOUT) + TIMEOUT_MARGIN;
        config.set("transactional.id", queue).set("transaction.timeout.ms", timeout.as_millis().to_string());
        let (topic, state) = (topic_name(&endpoint.topic)?, Mutex::default());
        Ok(TransactionalConnection(Arc::new(Queue { context: context.clone(), config, topic, state })))
    }
}

impl Connection for TransactionalConnection {
    fn push(&self, messages: Vec<PushMessage>) -> BoxFuture<'static, Vec<Result<(), PushFailure>>> {
        let queue = self.0.clone();
        Box::pin(async move {
            let count = messages.len();
            // A separate task, so that an abandoned push still ends its transaction.
            let pushed = tokio::spawn(async move { queue.push(&messages).await });
            pushed.await.unwrap_or_else(|_| vec![Err(unavailable("the runtime ends")); count])
        })
    }
}

impl Queue {
    async fn push(&self, messages: &[PushMessage]) -> Vec<Result<(), PushFailure>> {
        let deadline = Instant::now() + self.context.limits.kafka.push;
        let Ok(mut state) = timeout_at(deadline, self.state.lock()).await else {
            return vec![Err(timed_out(&self.context.limits.kafka)); messages.len()];
        };
        let outcomes = self.transact(&mut state, messages, deadline).await;
        let outcomes = outcomes.unwrap_or_else(|failure| vec![Err(failure); messages.len()]);
        if let Some(code) = state.producer.as_ref().and_then(|producer| producer.fatal_error()) {
            // Another producer would fence the queue's new owner.
            state.is_fenced |= is_fencing(code);
            // The broker ends the open transaction when the next producer is initialised.
            (state.producer, state.phase) = (None, Phase::Idle);
        }
        outcomes
    }

    async fn transact(
        &self,
        state: &mut State,
        messages: &[PushMessage],
        deadline: Instant,
    ) -> Result<Vec<Result<(), PushFailure>>, PushFailure> {
        if state.is_fenced {
            return Err(fenced());
        }
        let producer = self.initialise(state, deadline).await?;
        self.resolve(state, &producer, deadline).await?;
        let mut outcomes: Vec<Result<(), PushFailure>> = messages.iter().map(|_| Ok(())).collect();
        let ids: Vec<String> = messages.iter().map(|message| message.event.id()).collect();
        let mut left: Vec<usize> =
            (0..messages.len()).filter(|at| !state.committed.contains(&ids[*at])).collect();
        while !left.is_empty() {
            if Instant::now() >= deadline {
                return Err(timed_out(&self.context.limits.kafka));
            }
            let beginning = producer.clone();
            self.step(state, "begin", deadline, move |_| beginning.begin()).await?;
            state.phase = Phase::Open;
            let batch: Vec<PushMessage> = left.iter().map(|at| messages[*at].clone()).collect();
            let sent = send(&producer, &self.topic, &batch, &self.context).await;
            let outage = sent.iter().find_map(|outcome| match outcome {
                Err(PushFailure::Unavailable(reason)) => Some(unavailable(reason.clone())),
                _ => None,
            });
            if sent.iter().all(Result::is_ok) {
                state.phase = Phase::InDoubt(left.iter().map(|at| ids[*at].clone()).collect());
                self.commit(state, &producer, deadline).await?;
                break;
            }
            self.abort(state, &producer, deadline).await?;
            if let Some(outage) = outage {
                return Err(outage);
            }
            let mut accepted = Vec::with_capacity(left.len());
            for (at, outcome) in left.into_iter().zip(sent) {
                match outcome {
                    Ok(()) => accepted.push(at),
                    Err(_) => outcomes[at] = outcome,
                }
            }
            left = accepted;
        }
        state.committed.retain(|id| !ids.contains(id));
        Ok(outcomes)
    }

    /// The producer. Creating it fences all other producers of the queue.
    async fn initialise(&self, state: &mut State, deadline: Instant) -> Result<Arc<Producer>, PushFailure> {
        if let Some(producer) = &state.producer {
            return Ok(producer.clone());
        }
        let producer = start(&self.context, self.config.clone()).await?;
        let initialised = producer.clone();
        self.step(state, "initialise", deadline, move |timeout| initialised.init_transactions(timeout))
            .await?;
        state.phase = Phase::Idle;
        state.producer = Some(producer.clone());
        Ok(producer)
    }

    /// Ends the transaction that an earlier push left.
    async fn resolve(
        &self,
        state: &mut State,
        producer: &Arc<Producer>,
        deadline: Instant,
    ) -> Result<(), PushFailure> {
        match std::mem::take(&mut state.phase) {
            Phase::Idle => Ok(()),
            Phase::Open => {
                state.phase = Phase::Open;
                self.abort(state, producer, deadline).await
            }
            Phase::InDoubt(ids) => {
                state.phase = Phase::InDoubt(ids.clone());
                match self.commit(state, producer, deadline).await {
                    Ok(()) => {
                        // Events that were not pushed again expired in their queue.
                        if state.committed.len() > MAX_COMMITTED {
                            state.committed.clear();
                        }
                        state.committed.extend(ids);
                    }
                    // The transaction was aborted, so its events are sent again.
                    Err(_) if matches!(state.phase, Phase::Idle) => {}
                    Err(failure) => return Err(failure),
                }
                Ok(())
            }
        }
    }

    /// Commits, or aborts if a commit is impossible. The phase tells what remains to be done.
    async fn commit(
        &self,
        state: &mut State,
        producer: &Arc<Producer>,
        deadline: Instant,
    ) -> Result<(), PushFailure> {
        let committed = producer.clone();
        match self.attempt(deadline, move |timeout| committed.commit(timeout)).await {
            Ok(()) => {
                state.phase = Phase::Idle;
                Ok(())
            }
            Err(error) if error.requires_abort => {
                state.phase = Phase::Open;
                self.abort(state, producer, deadline).await?;
                Err(failure_of("commit", &error))
            }
            Err(error) => Err(self.failed(state, "commit", &error)),
        }
    }

    async fn abort(
        &self,
        state: &mut State,
        producer: &Arc<Producer>,
        deadline: Instant,
    ) -> Result<(), PushFailure> {
        let aborted = producer.clone();
        self.step(state, "abort", deadline, move |timeout| aborted.abort(timeout)).await?;
        state.phase = Phase::Idle;
        Ok(())
    }

    async fn step(
        &self,
        state: &mut State,
        name: &str,
        deadline: Instant,
        step: impl Fn(Duration) -> Result<(), TransactionError> + Send + Sync + 'static,
    ) -> Result<(), PushFailure> {
        self.attempt(deadline, step).await.map_err(|error| self.failed(state, name, &error))
    }

    /// Executes a blocking step until it succeeds, fails permanently, or times out.
    async fn attempt(
        &self,
        deadline: Instant,
        step: impl Fn(Duration) -> Result<(), TransactionError> + Send + Sync + 'static,
    ) -> Result<(), TransactionError> {
        let deadline = deadline.max(Instant::now() + MIN_STEP_TIMEOUT);
        let step = Arc::new(step);
        loop {
            let timeout = deadline.saturating_duration_since(Instant::now()).max(RETRY_DELAY);
            let taken = step.clone();
            let result = spawn_blocking(move || taken(timeout)).await.unwrap_or_else(|_| {
                let reason = "the runtime ends".to_owned();
                let code = RDKafkaErrorCode::Fail;
                Err(TransactionError { code, reason, is_retriable: false, requires_abort: false })
            });
            match result {
                Err(error) if error.is_retriable && Instant::now() + RETRY_DELAY < deadline => {
                    sleep(RETRY_DELAY).await;
                }
                result => return result,
            }
        }
    }

    fn failed(&self, state: &mut State, step: &str, error: &TransactionError) -> PushFailure {
        if is_fencing(error.code) {
            state.is_fenced = true;
            return fenced();
        }
        failure_of(step, error)
    }
}

fn is_fencing(code: RDKafkaErrorCode) -> bool {
    matches!(code, RDKafkaErrorCode::Fenced | RDKafkaErrorCode::ProducerFenced)
}

fn fenced() -> PushFailure {
    unavailable("another owner of the queue fenced this connection")
}

fn failure_of(step: &str, error: &TransactionError) -> PushFailure {
    unavailable(format!("{step} of a transaction: {}", error.reason))
}
