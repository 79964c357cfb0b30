//! The engine that implements Nacre's own protocol.
//!
//! A background thread ([`NetworkThread`]) runs the messenger, the session with the map authority and the timers. Requests are placed, encoded
//! and queued on the calling thread under one lock. The reader of a connection completes them directly, outside the lock. Callers need no
//! runtime.

mod commands;
mod dispatch;
mod linger;
mod mon;
mod network;
mod overlay;
mod state;
mod ticket;

pub use network::NetworkThread;

use crate::throttle::{Throttle, ThrottleShare};
use bytes::Bytes;
use nacre_common::Config;
use nacre_common::auth::{ConfiguredKey, CredentialProvider};
use nacre_engine::engine::{
    CommandReply, CommandTarget, Cursor, Engine, EngineStats, ListPage, LogSubscription, ObjectRequest,
    OnReply,
};
use nacre_engine::{
    Cluster, Completer, Error, OnDone, OpReply, Pending, Result, WatchHandler, block_on,
    is_completion_thread, pg_end,
};
use nacre_objecter::{Answer, Objecter, Sink, Submission};
use nacre_runtime::msgr::Messenger;
use nacre_types::ceph::SessionAddr;
use nacre_types::encoding;
use nacre_types::errno::Errno;
use nacre_types::object::SNAP_HEAD;
use nacre_types::op::{ListReply, Op, OsdOp};
use nacre_types::osdmap::OsdMap;
use nacre_types::{ClientId, Epoch, ObjectId, PgId, PoolId};
use parking_lot::Mutex;
use state::{CompletionBatch, ReplyTarget, RequestToken, State};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot, watch};

/// How long a closing session may take to write its queued messages.
const CLOSE_GRACE: Duration = Duration::from_millis(500);
/// The timer's maximum sleep, so that a request's deadline is met within this time.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// Connects to the cluster of `config` as its entity.
///
/// Fails with [`Error::Configuration`] if the keyring or the monitors are not configured, and with [`Error::Unreachable`] after
/// `client_mount_timeout` without a session, or after one second if the monitors refuse the key.
pub fn connect(config: &Config) -> Pending<Cluster> {
    connected(NetworkThread::start().and_then(|network| start(config, network)))
}

/// Like [`connect`], on a thread that other sessions can share: this makes many sessions of one process much cheaper.
pub fn connect_on(network: &Arc<NetworkThread>, config: &Config) -> Pending<Cluster> {
    connected(start(config, network.clone()))
}

fn connected(engine: Result<Native>) -> Pending<Cluster> {
    match engine {
        Ok(engine) => Pending::from_future(async move {
            engine.shared.established().await?;
            Ok(Cluster::from_engine(Arc::new(engine)))
        }),
        Err(error) => Pending::ready(Err(error)),
    }
}

/// State that the threads of one session share.
pub(crate) struct Shared {
    config: Config,
    state: Mutex<State>,
    throttle: Throttle,
    op_timeout: Option<Duration>,
    mon_op_timeout: Option<Duration>,
    started: Instant,
    /// The newest map's epoch.
    epoch: watch::Sender<Epoch>,
    /// Progress of the session.
    session: watch::Sender<mon::Session>,
    /// The id of the current connection to a monitor, which may be incomplete; 0 before the first one.
    mon_conn: AtomicU64,
    /// The id of the last connection to a monitor that broke, and the error.
    mon_lost: watch::Sender<(u64, nacre_common::Error)>,
    /// Wakes the timer after a request was deferred.
    timer: Notify,
    /// Requests a new ticket from the monitor session.
    renew: Notify,
    /// Notified when a ticket is granted.
    granted: Notify,
    /// When the current ticket is to be renewed.
    renew_at: Mutex<Option<tokio::time::Instant>>,
    /// The notices already given about clocks that differ.
    clock_notices: Mutex<ticket::ClockSkewNotices>,
    stop: watch::Sender<bool>,
}

struct Native {
    shared: Arc<Shared>,
    /// Notified when the session's task has ended; taken by the caller that waits for that.
    ended: Mutex<Option<oneshot::Receiver<()>>>,
    network: Arc<NetworkThread>,
}

fn start(config: &Config, network: Arc<NetworkThread>) -> Result<Native> {
    let key = ConfiguredKey::find(config)
        .map_err(|error| Error::Configuration { errno: error.errno(), detail: error.to_string() })?;
    let key: Arc<dyn CredentialProvider> = Arc::new(key);
    let options = config.snapshot();
    if options.global.mon_host.0.is_empty() {
        let searched = match config.conf_path() {
            Some(path) => format!("{} has no mon_host", path.display()),
            None => "no configuration file was found".to_owned(),
        };
        let detail = format!(
            "{searched}: name the cluster with -c FILE or -m ADDRESS, or run in the directory of its data"
        );
        return Err(Error::Configuration { errno: Errno::ENOENT, detail });
    }
    let timeout = |value: Duration| (!value.is_zero()).then_some(value);
    let shared = Arc::new(Shared {
        config: config.clone(),
        state: Mutex::new(State::new(ClientId(0))),
        throttle: Throttle::new(
            options.client.objecter_inflight_ops,
            options.client.objecter_inflight_op_bytes,
        ),
        op_timeout: timeout(options.client.rados_osd_op_timeout),
        mon_op_timeout: timeout(options.client.rados_mon_op_timeout),
        started: Instant::now(),
        epoch: watch::Sender::new(Epoch(0)),
        session: watch::Sender::new(mon::Session::Connecting),
        mon_conn: AtomicU64::new(0),
        mon_lost: watch::Sender::new((0, nacre_common::Error::Closed)),
        timer: Notify::new(),
        renew: Notify::new(),
        granted: Notify::new(),
        renew_at: Mutex::new(None),
        clock_notices: Mutex::default(),
        stop: watch::Sender::new(false),
    });
    let messenger = Messenger::builder(config)
        .lane(network.handle().clone(), Arc::new(dispatch::Dispatch::new(&shared)))
        .build()
        .map_err(|error| Error::Configuration { errno: error.errno(), detail: error.to_string() })?;
    shared.state.lock().set_messenger(messenger.clone());
    let worker = shared.clone();
    let (end, ended) = oneshot::channel::<()>();
    network.spawn(async move {
        run(&worker, &messenger, key).await;
        drop(end);
    });
    Ok(Native { shared, ended: Mutex::new(Some(ended)), network })
}

/// Runs a session's background work until it is shut down.
async fn run(shared: &Arc<Shared>, messenger: &Messenger, key: Arc<dyn CredentialProvider>) {
    let handle = Handle::current();
    let mon = handle.spawn(mon::run(shared.clone(), messenger.clone(), key));
    let timer = handle.spawn(tick(shared.clone()));
    // `shared` owns the sender, so waiting can't fail.
    let _ = shared.stop.subscribe().wait_for(|stop| *stop).await;
    mon.abort();
    timer.abort();
    messenger.shutdown(CLOSE_GRACE).await;
}

/// Ends holds and fails requests whose deadline has passed.
async fn tick(shared: Arc<Shared>) {
    loop {
        let wake = {
            let state = shared.state.lock();
            state.objecter.next_wake_ms().into_iter().chain(state.watches.next_wake_ms()).min()
        };
        let sleep = wake.map_or(LONGEST_SLEEP, |at| {
            Duration::from_millis(at.saturating_sub(shared.now_ms())).min(LONGEST_SLEEP)
        });
        tokio::select! {
            () = tokio::time::sleep(sleep) => {}
            () = shared.timer.notified() => {}
        }
        let now_ms = shared.now_ms();
        shared.with_objecter(|objecter, sink| objecter.on_tick(now_ms, sink));
        shared.watches_on_tick();
        commands::expire(&shared, now_ms);
    }
}

impl Shared {
    /// Milliseconds on this session's clock; never 0.
    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64 + 1
    }

    /// Runs one step under the lock, and delivers the resulting completions outside it.
    fn with_state<R>(&self, step: impl FnOnce(&mut State, &mut CompletionBatch) -> R) -> R {
        let mut batch = CompletionBatch::default();
        let result = step(&mut self.state.lock(), &mut batch);
        batch.deliver();
        result
    }

    /// Runs one step of the objecter.
    fn with_objecter<R>(
        &self,
        step: impl FnOnce(&mut Objecter<RequestToken>, &mut state::ObjecterSink<'_>) -> R,
    ) -> R {
        self.with_state(|state, batch| {
            let (objecter, mut outside) = state.split(batch);
            step(objecter, &mut outside)
        })
    }

    /// The deadline of an operation that starts now, by `rados_osd_op_timeout`.
    fn deadline_ms(&self, op: &Op) -> Option<u64> {
        self.op_timeout.map(|timeout| {
            // A notify also waits for its watchers.
            let waits_s = match op {
                Op::Notify { timeout_s, .. } => u64::from(*timeout_s),
                _ => 0,
            };
            self.now_ms() + timeout.as_millis() as u64 + waits_s * 1000
        })
    }

    /// Places and queues a request.
    fn start(&self, request: ObjectRequest, token: RequestToken) {
        let deadline_ms = request.ops.first().and_then(|op| self.deadline_ms(&op.op));
        let submission = Submission {
            object: request.object,
            ops: request.ops,
            flags: request.flags,
            snap: request.snap,
            snap_context: request.snap_context,
            mtime_ns: request.mtime_ns.unwrap_or_else(now_ns),
            deadline_ms,
            tier: request.tier,
        };
        self.with_state(|state, batch| self.submit(state, batch, submission, token));
    }

    /// Like [`Shared::start`], under the lock.
    fn submit(
        &self,
        state: &mut State,
        batch: &mut CompletionBatch,
        submission: Submission,
        token: RequestToken,
    ) {
        let (objecter, mut outside) = state.split(batch);
        if *self.stop.borrow() {
            outside.complete(token, Err(Error::ShutDown));
        } else {
            objecter.submit(submission, token, self.now_ms(), &mut outside);
        }
    }

    fn map(&self) -> Option<Arc<OsdMap>> {
        self.state.lock().objecter.map().cloned()
    }

    fn shut_down(&self) {
        if self.stop.send_replace(true) {
            return;
        }
        self.with_objecter(|objecter, sink| objecter.fail_all(&Error::ShutDown, sink));
        let (mon, daemons) = {
            let mut state = self.state.lock();
            state.watches.clear();
            state.take_commands()
        };
        for command in mon.into_iter().chain(daemons) {
            command.done.complete(Err(Error::ShutDown));
        }
        self.session.send_replace(mon::Session::Failed(Error::ShutDown));
    }
}

/// The time of day in nanoseconds since 1970.
pub(crate) fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

fn payload_bytes(ops: &[OsdOp]) -> usize {
    ops.iter()
        .map(|op| match &op.op {
            Op::Write { data, .. } | Op::WriteFull { data } | Op::Append { data } => data.len(),
            Op::WriteSame { data, .. } | Op::CmpExt { data, .. } => data.len(),
            Op::Notify { payload, .. } | Op::NotifyAck { payload, .. } => payload.len(),
            Op::Read { len, .. } | Op::SparseRead { len, .. } => usize::try_from(*len).unwrap_or(usize::MAX),
            _ => 0,
        })
        .fold(0, usize::saturating_add)
}

impl Shared {
    /// Lists the pool's own objects, without those of a cache tier.
    fn list_pool(
        self: &Arc<Self>,
        cursor: ObjectId,
        max: u64,
        namespace: Option<String>,
    ) -> Pending<ListPage> {
        let position = ObjectId::min_at_hash(cursor.pool(), cursor.hash());
        let request = listing(position, Op::PgList { cursor: Some(cursor), max, namespace });
        let answered = self.operate_with(request, |completer| {
            ReplyTarget::Answer(Box::new(move |answer| completer.complete(answer)))
        });
        answered.then(|answer| list_page(answer?))
    }

    /// Starts a request that completes `pending`, when the throttle has room for it.
    fn operate_with<T: Send + 'static>(
        self: &Arc<Self>,
        request: ObjectRequest,
        done: impl FnOnce(Completer<T>) -> ReplyTarget + Send + 'static,
    ) -> Pending<T> {
        let bytes = payload_bytes(&request.ops);
        let (completer, pending) = Pending::channel();
        if let Some(share) = self.throttle.try_acquire(bytes) {
            self.start(request, RequestToken { share, done: done(completer) });
            return pending;
        }
        let shared = Arc::clone(self);
        Pending::from_future(async move {
            let share = shared.throttle.acquire(bytes).await;
            shared.start(request, RequestToken { share, done: done(completer) });
            pending.await
        })
    }
}

impl Engine for Native {
    fn name(&self) -> &'static str {
        "native"
    }

    fn submit(&self, request: ObjectRequest, done: OnReply) {
        let bytes = payload_bytes(&request.ops);
        let share = match self.shared.throttle.try_acquire(bytes) {
            Some(share) => share,
            // A callback that starts the next request has just released its own share. The excess over the bound is limited by the number
            // of running callbacks.
            None if is_completion_thread() => ThrottleShare::default(),
            None => block_on(self.shared.throttle.acquire(bytes)),
        };
        self.shared.start(request, RequestToken { share, done: ReplyTarget::Callback(done) });
    }

    fn operate(&self, request: ObjectRequest) -> Pending<OpReply> {
        self.shared.operate_with(request, ReplyTarget::Channel)
    }

    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.network.handle().spawn(task);
    }

    fn list(&self, cursor: ObjectId, max: u64, namespace: Option<String>) -> Pending<ListPage> {
        match overlay::cache_of(self.shared.map().as_deref(), cursor.pool()) {
            None => self.shared.list_pool(cursor, max, namespace),
            Some(_) => {
                let shared = Arc::clone(&self.shared);
                let (completer, pending) = Pending::channel();
                // May have to sleep, so it runs on a thread that has timers.
                self.network.handle().spawn(async move {
                    completer.complete(overlay::list(&shared, cursor, max, namespace).await);
                });
                pending
            }
        }
    }

    fn watch(
        &self,
        object: ObjectId,
        flags: u32,
        timeout_s: u32,
        handler: Arc<dyn WatchHandler>,
        done: OnDone,
    ) -> u64 {
        self.shared.watch(object, flags, timeout_s, handler, done)
    }

    fn unwatch(&self, cookie: u64, done: OnDone) {
        self.shared.unwatch(cookie, done);
    }

    fn watch_check(&self, cookie: u64) -> Result<Duration> {
        self.shared.watch_check(cookie)
    }

    fn watch_flush(&self) -> Pending<()> {
        let (completer, pending) = Pending::channel();
        // The session's thread runs this after a handler that is under way.
        self.network.handle().spawn(async move { completer.complete(Ok(())) });
        pending
    }

    fn command(&self, target: CommandTarget, command: String, input: Bytes) -> Pending<CommandReply> {
        commands::start(&self.shared, target, command, input)
    }

    fn follow_log(&self, follow: Option<LogSubscription>) {
        let mut state = self.shared.state.lock();
        if let (Some(conn), Some(follow)) = (&state.mon, &follow) {
            mon::follow_log(conn, follow, follow.after);
        }
        state.log = follow.map(|follow| {
            let after = follow.after;
            (follow, after)
        });
    }

    fn refresh_map(&self) -> Pending<()> {
        let status =
            self.command(CommandTarget::Mon, r#"{"prefix":"osd stat","format":"json"}"#.into(), Bytes::new());
        let mut epoch = self.shared.epoch.subscribe();
        let mut stop = self.shared.stop.subscribe();
        let deadline = self.shared.mon_op_timeout.map(|timeout| tokio::time::Instant::now() + timeout);
        let (completer, pending) = Pending::channel();
        // The timeout needs a runtime, which callers do not have.
        self.network.handle().spawn(async move {
            let refreshed = async {
                let reply = status.await?;
                let stat: serde_json::Value = serde_json::from_slice(&reply.output).unwrap_or_default();
                let newest = stat["epoch"].as_u64().and_then(|epoch| u32::try_from(epoch).ok()).map(Epoch);
                let newest = newest.ok_or_else(|| corrupt("osd stat", "it has no epoch"))?;
                epoch.wait_for(|have| *have >= newest).await.map_err(|_| Error::ShutDown)?;
                Ok(())
            };
            let late = async {
                match deadline {
                    Some(deadline) => tokio::time::sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            completer.complete(tokio::select! {
                biased;
                refreshed = refreshed => refreshed,
                // A session that is shut down receives no map.
                _ = stop.wait_for(|stop| *stop) => Err(Error::ShutDown),
                () = late => Err(commands::timeout_error("map", "rados_mon_op_timeout")),
            });
        });
        pending
    }

    fn fsid(&self) -> String {
        self.shared.map().map_or_else(String::new, |map| map.fsid.to_string())
    }

    fn instance_id(&self) -> u64 {
        self.shared.state.lock().objecter.client().0
    }

    fn bind_session(&self) -> u64 {
        self.shared.state.lock().objecter.pin_session().0
    }

    fn address(&self) -> Option<SessionAddr> {
        let state = self.shared.state.lock();
        Some(SessionAddr::client(state.ip?, state.objecter.client()))
    }

    fn pool_id(&self, name: &str) -> Option<PoolId> {
        self.shared.map()?.pool_by_name(name).map(|(id, _)| id)
    }

    fn pool_name(&self, pool: PoolId) -> Option<String> {
        self.shared.map()?.pools.get(&pool).map(|pool| pool.name.clone())
    }

    fn pools(&self) -> Vec<(PoolId, String)> {
        let map = self.shared.map();
        let pools = map.iter().flat_map(|map| &map.pools);
        pools.map(|(id, pool)| (*id, pool.name.clone())).collect()
    }

    fn osdmap(&self) -> Option<Arc<OsdMap>> {
        self.shared.map()
    }

    fn option(&self, name: &str) -> Option<String> {
        self.shared.config.display_value(name).ok()
    }

    fn stats(&self) -> EngineStats {
        let state = self.shared.state.lock();
        EngineStats { in_flight: state.objecter.in_flight(), resends: state.objecter.resends() }
    }

    fn requests(&self) -> Vec<String> {
        let described = self.shared.state.lock().objecter.describe();
        let line = |(tid, osd, what): (u64, Option<nacre_types::OsdId>, String)| match osd {
            Some(osd) => format!("{tid}: {what} at {osd}"),
            None => format!("{tid}: {what}, waits"),
        };
        described.into_iter().map(line).collect()
    }

    fn shut_down(&self) {
        self.shared.shut_down();
        if !is_completion_thread()
            && let Some(ended) = self.ended.lock().take()
        {
            // An error has the same meaning: the task dropped its end.
            let _ = block_on(ended);
        }
    }
}

impl Drop for Native {
    fn drop(&mut self) {
        self.shut_down();
    }
}

fn corrupt(what: &'static str, detail: &str) -> Error {
    Error::Corrupt(encoding::DecodeError::Corrupt { what, detail: detail.to_owned() })
}

/// Returns a request that lists the PG of `position`.
fn listing(position: ObjectId, op: Op) -> ObjectRequest {
    ObjectRequest {
        object: position,
        ops: vec![OsdOp::from(op)],
        flags: nacre_types::op::request_flag::IGNORE_OVERLAY,
        snap: SNAP_HEAD,
        snap_context: None,
        mtime_ns: None,
        tier: None,
    }
}

/// Converts a PG's page to a page of the pool: the end of a PG becomes the start of the next one in the order.
fn list_page(answer: Answer) -> Result<ListPage> {
    let Answer { mut reply, target } = answer;
    let (pg, pg_num) = (target.pg, target.pg_num);
    Errno::from_result(reply.result)?;
    let part = reply.ops.first_mut().ok_or_else(|| corrupt("OsdReply", "a listing without output"))?;
    Errno::from_result(part.code)?;
    let listed: ListReply = encoding::decode(&part.output)?;
    let next = listed.next.or_else(|| pg_end(PgId::new(pg.pool, pg.seed), pg_num));
    Ok(ListPage { objects: listed.objects, next: next.map_or(Cursor::End, Cursor::At) })
}
