//! A session: the engine of a process.

use super::{Afterwards, Inner, address, carry_out};
use crate::gateway::executor::ProcessId;
use bytes::Bytes;
use nacre_engine::engine::{
    CommandReply, CommandTarget, Cursor, Engine, EngineStats, ListPage, LogSubscription, ObjectRequest,
    OnReply,
};
use nacre_engine::{Error, OnDone, OpReply, Pending, Result, WatchHandler, pg_end};
use nacre_types::ceph::SessionAddr;
use nacre_types::encoding::decode;
use nacre_types::errno::Errno;
use nacre_types::hash::pg_of_hash;
use nacre_types::object::SNAP_HEAD;
use nacre_types::op::{ListReply, Op, OsdOp, request_flag};
use nacre_types::osdmap::OsdMap;
use nacre_types::{ObjectId, PgId, PoolId};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// The cluster's id.
const FSID: &str = "00000000-0000-4000-8000-000000000000";

/// Changes a request before it leaves.
type Change = Box<dyn Fn(ObjectRequest) -> ObjectRequest + Send + Sync>;

/// See the module's documentation. Dropping it shuts it down.
pub(super) struct Session {
    inner: Arc<Inner>,
    number: u64,
    process: ProcessId,
    change: Change,
}

impl Session {
    pub(super) fn new(inner: Arc<Inner>, number: u64, process: ProcessId, change: Change) -> Session {
        Session { inner, number, process, change }
    }

    fn id(&self) -> (u64, ProcessId) {
        (self.number, self.process)
    }

    /// Runs `work` at the map authority after one latency, and calls `hear` with its outcome after another one.
    fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Arc<Inner>) -> T + Send + 'static,
        hear: impl FnOnce(&Arc<Inner>, T) + Send + 'static,
    ) {
        let (inner, process, now) = (self.inner.clone(), self.process, self.inner.scheduler.now());
        let wait = {
            let mut world = self.inner.world.lock();
            world.reachable_at(process, now) - now + world.draws.latency()
        };
        self.inner.scheduler.call_after(wait, move || {
            let outcome = work(&inner);
            let now = inner.scheduler.now();
            let wait = {
                let mut world = inner.world.lock();
                world.reachable_at(process, now) - now + world.draws.latency()
            };
            let scheduler = inner.scheduler.clone();
            scheduler.deliver_after(process, wait, move || hear(&inner, outcome));
        });
    }
}

impl Engine for Session {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn submit(&self, request: ObjectRequest, done: OnReply) {
        self.inner.start(self.number, self.process, (self.change)(request), done);
    }

    fn operate(&self, request: ObjectRequest) -> Pending<OpReply> {
        let (completer, pending) = Pending::channel();
        self.submit(request, Box::new(move |outcome| completer.complete(outcome)));
        pending
    }

    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.inner.scheduler.spawn(self.process, task);
    }

    fn list(&self, cursor: ObjectId, max: u64, namespace: Option<String>) -> Pending<ListPage> {
        let (pool, hash) = (cursor.pool(), cursor.hash());
        let pg_num = self.inner.world.lock().pools.get(&pool).map_or(1, |pool| pool.settings.pg_num);
        let pg = PgId::new(pool, pg_of_hash(hash, pg_num));
        let request = ObjectRequest {
            object: ObjectId::min_at_hash(pool, hash),
            ops: vec![OsdOp::from(Op::PgList { cursor: Some(cursor), max, namespace })],
            flags: request_flag::IGNORE_OVERLAY,
            snap: SNAP_HEAD,
            snap_context: None,
            mtime_ns: None,
            tier: None,
        };
        self.operate(request).then(move |reply| {
            let output = reply?.success()?.output(0)?;
            let listed: ListReply = decode(&output)?;
            let next = listed.next.or_else(|| pg_end(pg, pg_num));
            Ok(ListPage { objects: listed.objects, next: next.map_or(Cursor::End, Cursor::At) })
        })
    }

    fn watch(
        &self,
        object: ObjectId,
        flags: u32,
        timeout_s: u32,
        handler: Arc<dyn WatchHandler>,
        done: OnDone,
    ) -> u64 {
        self.inner.watch(self.id(), (object, flags), timeout_s, handler, done)
    }

    fn unwatch(&self, cookie: u64, done: OnDone) {
        self.inner.unwatch(self.id(), cookie, done);
    }

    fn watch_check(&self, cookie: u64) -> Result<Duration> {
        self.inner.watch_check(self.number, cookie)
    }

    fn watch_flush(&self) -> Pending<()> {
        let (completer, pending) = Pending::channel();
        self.inner.scheduler.deliver_after(self.process, 0, move || completer.complete(Ok(())));
        pending
    }

    fn command(&self, target: CommandTarget, command: String, _input: Bytes) -> Pending<CommandReply> {
        if target != CommandTarget::Mon {
            let status = "commands to daemons are not simulated".to_owned();
            return Pending::ready(Err(Error::Command { errno: Errno::EOPNOTSUPP, status }));
        }
        let (completer, pending) = Pending::channel();
        self.ask(move |inner| inner.command(&command), |_, outcome| completer.complete(outcome));
        pending
    }

    fn follow_log(&self, _follow: Option<LogSubscription>) {}

    fn refresh_map(&self) -> Pending<()> {
        let (completer, pending) = Pending::channel();
        let number = self.number;
        self.ask(
            |inner| inner.world.lock().epoch,
            move |inner, epoch| {
                inner.learn(number, epoch);
                completer.complete(Ok(()));
            },
        );
        pending
    }

    fn fsid(&self) -> String {
        FSID.to_owned()
    }

    fn instance_id(&self) -> u64 {
        self.number
    }

    fn bind_session(&self) -> u64 {
        self.number
    }

    fn address(&self) -> Option<SessionAddr> {
        Some(address(self.number))
    }

    fn pool_id(&self, name: &str) -> Option<PoolId> {
        self.inner.world.lock().pool_id(name)
    }

    fn pool_name(&self, pool: PoolId) -> Option<String> {
        self.inner.world.lock().pools.get(&pool).map(|pool| pool.name.clone())
    }

    fn pools(&self) -> Vec<(PoolId, String)> {
        let world = self.inner.world.lock();
        world.pools.iter().map(|(id, pool)| (*id, pool.name.clone())).collect()
    }

    fn osdmap(&self) -> Option<Arc<OsdMap>> {
        None
    }

    fn option(&self, name: &str) -> Option<String> {
        self.inner.world.lock().options.get(name).cloned()
    }

    fn stats(&self) -> EngineStats {
        let world = self.inner.world.lock();
        let in_flight = world.sessions.get(&self.number).map_or(0, |state| state.in_flight.len());
        EngineStats { in_flight, resends: 0 }
    }

    fn requests(&self) -> Vec<String> {
        let world = self.inner.world.lock();
        let state = world.sessions.get(&self.number);
        state.into_iter().flat_map(|state| state.in_flight.values()).map(|one| one.text.clone()).collect()
    }

    fn shut_down(&self) {
        let mut afterwards = Afterwards::new();
        let watches = {
            let mut world = self.inner.world.lock();
            let Some(state) = world.sessions.get_mut(&self.number) else { return };
            state.shut_down = true;
            for in_flight in std::mem::take(&mut state.in_flight).into_values() {
                afterwards.push(Box::new(move || (in_flight.done)(Err(Error::ShutDown))));
            }
            self.inner.on_session_silent(self.number, state, None);
            std::mem::take(&mut state.watches)
        };
        carry_out(afterwards);
        drop(watches);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.shut_down();
    }
}
