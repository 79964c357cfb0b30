//! The engine of processes that are clients of the simulated cluster.
//!
//! A [`Session`] records the requests of its process ([`RequestPort`]). After each step of the executor, the world takes them and
//! passes them to the process's [`crate::client::Client`], which sends them by the objecter of production. Answers reach the
//! process as deliveries of the executor: a paused process receives them late, a process that has ended never.
//!
//! No lock is held while a completion is called.

use crate::gateway::executor::{ProcessId, Scheduler};
use bytes::Bytes;
use nacre_engine::engine::{
    CommandReply, CommandTarget, Cursor, Engine, EngineStats, ListPage, LogSubscription, ObjectRequest,
    OnReply,
};
use nacre_engine::{Completer, Error, OnDone, OpReply, Pending, Result, WatchHandler, pg_end};
use nacre_objecter::Answer;
use nacre_types::ceph::SessionAddr;
use nacre_types::encoding;
use nacre_types::errno::Errno;
use nacre_types::object::SNAP_HEAD;
use nacre_types::op::{ListReply, Op, OsdOp, request_flag};
use nacre_types::osdmap::OsdMap;
use nacre_types::{ObjectId, PgId, PoolId};
use parking_lot::Mutex;
use serde_json::Value;
use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// Called once with the outcome of a request.
pub type OnAnswer = Box<dyn FnOnce(Result<Answer>) + Send>;

/// A request of a process that the world has not taken yet.
pub struct QueuedRequest {
    /// The client by which the process uses the cluster.
    pub client: u32,
    /// The process.
    pub process: ProcessId,
    /// The request.
    pub want: ProcessRequest,
}

/// The kinds of requests of a process, with their completions.
pub enum ProcessRequest {
    /// An operation on an object.
    Request(ObjectRequest, OnAnswer),
    /// Put a session on the blocklist (`osd blocklist add`).
    Fence(u64, Completer<CommandReply>),
    /// The newest map.
    NewestMap(Completer<()>),
}

#[derive(Default)]
struct State {
    wanted: VecDeque<QueuedRequest>,
    /// The map that each client has.
    maps: BTreeMap<u32, Arc<OsdMap>>,
}

/// The interface between processes and the world. Cheap to clone.
#[derive(Clone, Default)]
pub struct RequestPort {
    state: Arc<Mutex<State>>,
}

impl RequestPort {
    /// The engine of a process that uses a client with the id `session`.
    pub fn session(
        &self,
        scheduler: &Scheduler,
        (client, process): (u32, ProcessId),
        session: u64,
    ) -> Session {
        Session { port: self.clone(), scheduler: scheduler.clone(), client, process, session }
    }

    /// Takes the next request of a process.
    pub fn take(&self) -> Option<QueuedRequest> {
        self.state.lock().wanted.pop_front()
    }

    /// Sets a client's current map.
    pub fn set_map(&self, client: u32, map: &Arc<OsdMap>) {
        self.state.lock().maps.insert(client, map.clone());
    }
}

/// Converts an answer into the form of the engine's interface.
fn op_reply(answer: Answer) -> OpReply {
    let reply = answer.reply;
    OpReply { result: reply.result, version: reply.user_version, ops: reply.ops }
}

/// Converts a page of a listing. The next page starts after a PG's last object at the PG that follows in hash order.
fn list_page(answer: Answer) -> Result<ListPage> {
    let (target, reply) = (answer.target, op_reply(answer));
    let listed: ListReply = encoding::decode(&reply.success()?.output(0)?)?;
    let next = listed.next.or_else(|| pg_end(PgId::new(target.pg.pool, target.pg.seed), target.pg_num));
    Ok(ListPage { objects: listed.objects, next: next.map_or(Cursor::End, Cursor::At) })
}

/// See the module's documentation.
pub struct Session {
    port: RequestPort,
    scheduler: Scheduler,
    client: u32,
    process: ProcessId,
    session: u64,
}

impl Session {
    fn want(&self, want: ProcessRequest) {
        // Messages that destructors of an ended process send are dropped.
        if self.scheduler.is_alive(self.process) {
            let wanted = QueuedRequest { client: self.client, process: self.process, want };
            self.port.state.lock().wanted.push_back(wanted);
        }
    }

    fn request(&self, request: ObjectRequest, done: impl FnOnce(Result<Answer>) + Send + 'static) {
        self.want(ProcessRequest::Request(request, Box::new(done)));
    }
}

impl Engine for Session {
    fn name(&self) -> &'static str {
        "simulated"
    }

    fn submit(&self, request: ObjectRequest, done: OnReply) {
        self.request(request, move |answer| done(answer.map(op_reply)));
    }

    fn operate(&self, request: ObjectRequest) -> Pending<OpReply> {
        let (completer, pending) = Pending::channel();
        self.request(request, move |answer| completer.complete(answer.map(op_reply)));
        pending
    }

    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.scheduler.spawn(self.process, task);
    }

    fn list(&self, cursor: ObjectId, max: u64, namespace: Option<String>) -> Pending<ListPage> {
        let request = ObjectRequest {
            object: ObjectId::min_at_hash(cursor.pool(), cursor.hash()),
            ops: vec![OsdOp::from(Op::PgList { cursor: Some(cursor), max, namespace })],
            flags: request_flag::IGNORE_OVERLAY,
            snap: SNAP_HEAD,
            snap_context: None,
            mtime_ns: None,
            tier: None,
        };
        let (completer, pending) = Pending::channel();
        self.request(request, move |answer| completer.complete(answer.and_then(list_page)));
        pending
    }

    fn watch(&self, _: ObjectId, _: u32, _: u32, _: Arc<dyn WatchHandler>, done: OnDone) -> u64 {
        // Watches of the cluster's ordinary clients are simulated; these have none.
        done(Err(Errno::EOPNOTSUPP.into()));
        0
    }

    fn unwatch(&self, _: u64, done: OnDone) {
        done(Err(Errno::ENOTCONN.into()));
    }

    fn watch_check(&self, _: u64) -> Result<Duration> {
        Err(Errno::ENOTCONN.into())
    }

    fn watch_flush(&self) -> Pending<()> {
        Pending::ready(Ok(()))
    }

    fn command(&self, _: CommandTarget, command: String, _: Bytes) -> Pending<CommandReply> {
        let command: Value = serde_json::from_str(&command).unwrap_or_default();
        let is_fence = command["prefix"] == "osd blocklist" && command["blocklistop"] == "add";
        let session = command["addr"].as_str().and_then(|addr| addr.strip_prefix("client.")?.parse().ok());
        match session.filter(|_| is_fence) {
            Some(session) => {
                let (completer, pending) = Pending::channel();
                self.want(ProcessRequest::Fence(session, completer));
                pending
            }
            None => {
                let status = format!("the command {} is not simulated", command["prefix"]);
                Pending::ready(Err(Error::Command { errno: Errno::EOPNOTSUPP, status }))
            }
        }
    }

    fn follow_log(&self, _: Option<LogSubscription>) {}

    fn refresh_map(&self) -> Pending<()> {
        let (completer, pending) = Pending::channel();
        self.want(ProcessRequest::NewestMap(completer));
        pending
    }

    fn fsid(&self) -> String {
        self.osdmap().map_or_else(String::new, |map| map.fsid.to_string())
    }

    fn instance_id(&self) -> u64 {
        self.session
    }

    fn bind_session(&self) -> u64 {
        self.session
    }

    fn address(&self) -> Option<SessionAddr> {
        None
    }

    fn pool_id(&self, name: &str) -> Option<PoolId> {
        self.osdmap()?.pool_by_name(name).map(|(id, _)| id)
    }

    fn pool_name(&self, pool: PoolId) -> Option<String> {
        self.osdmap()?.pools.get(&pool).map(|pool| pool.name.clone())
    }

    fn pools(&self) -> Vec<(PoolId, String)> {
        let map = self.osdmap();
        let pools = map.iter().flat_map(|map| &map.pools);
        pools.map(|(id, pool)| (*id, pool.name.clone())).collect()
    }

    fn osdmap(&self) -> Option<Arc<OsdMap>> {
        self.port.state.lock().maps.get(&self.client).cloned()
    }

    fn option(&self, _: &str) -> Option<String> {
        None
    }

    fn stats(&self) -> EngineStats {
        EngineStats::default()
    }

    fn requests(&self) -> Vec<String> {
        Vec::new()
    }

    /// The session ends with its process.
    fn shut_down(&self) {}
}
