//! An engine that passes requests on, and breaks a rule of the protocol on the way if a test asks for it.

use bytes::Bytes;
use nacre_engine::engine::{
    CommandReply, CommandTarget, Engine, EngineStats, ListPage, LogFollow, ObjectRequest, OnReply,
};
use nacre_engine::{Cluster, OnDone, OpReply, Pending, Result, WatchHandler};
use nacre_queues::name::{CLOSED, Kind};
use nacre_queues::record::{HEAD, OWNER};
use nacre_types::ceph::SessionAddr;
use nacre_types::op::Op;
use nacre_types::osdmap::OsdMap;
use nacre_types::{ObjectId, PoolId};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// A rule that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
    None,
    /// Endpoints acknowledge before they have the event: what is settled then may be lost.
    TrimBeforeAck,
    /// Settling compares neither owner nor lease.
    UnfencedTrim,
    /// Batches are not copied when a generation is closed.
    DropAtReshard,
}

pub(crate) struct Mutated {
    inner: Arc<dyn Engine>,
    mutation: Mutation,
}

/// The cluster as a gateway with this mutation uses it.
pub(crate) fn mutated(cluster: &Cluster, mutation: Mutation) -> Cluster {
    Cluster::of(Arc::new(Mutated { inner: Arc::clone(cluster.engine()), mutation }))
}

impl Mutated {
    fn mutate(&self, mut request: ObjectRequest) -> ObjectRequest {
        match self.mutation {
            Mutation::UnfencedTrim if sets(&request, HEAD) && !sets(&request, OWNER) => {
                request.ops.retain(|op| match &op.op {
                    Op::CmpXattr { name, .. } => name != OWNER && name != HEAD,
                    Op::Call { .. } => false,
                    _ => true,
                });
            }
            Mutation::DropAtReshard if request.object.namespace() == CLOSED => {
                for op in &mut request.ops {
                    if let Op::OmapSet { entries } = &mut op.op {
                        entries.retain(|(key, _)| Kind::Batch.sequence(key).is_none());
                    }
                }
            }
            _ => {}
        }
        request
    }
}

fn sets(request: &ObjectRequest, attribute: &str) -> bool {
    request.ops.iter().any(|op| matches!(&op.op, Op::SetXattr { name, .. } if name == attribute))
}

impl Engine for Mutated {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn submit(&self, request: ObjectRequest, done: OnReply) {
        self.inner.submit(self.mutate(request), done);
    }

    fn operate(&self, request: ObjectRequest) -> Pending<OpReply> {
        self.inner.operate(self.mutate(request))
    }

    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.inner.spawn(task);
    }

    fn list(&self, cursor: ObjectId, max: u64, namespace: Option<String>) -> Pending<ListPage> {
        self.inner.list(cursor, max, namespace)
    }

    fn watch(
        &self,
        object: ObjectId,
        flags: u32,
        timeout_s: u32,
        handler: Arc<dyn WatchHandler>,
        done: OnDone,
    ) -> u64 {
        self.inner.watch(object, flags, timeout_s, handler, done)
    }

    fn unwatch(&self, cookie: u64, done: OnDone) {
        self.inner.unwatch(cookie, done);
    }

    fn watch_check(&self, cookie: u64) -> Result<Duration> {
        self.inner.watch_check(cookie)
    }

    fn watch_flush(&self) -> Pending<()> {
        self.inner.watch_flush()
    }

    fn command(&self, target: CommandTarget, command: String, input: Bytes) -> Pending<CommandReply> {
        self.inner.command(target, command, input)
    }

    fn follow_log(&self, follow: Option<LogFollow>) {
        self.inner.follow_log(follow);
    }

    fn refresh_map(&self) -> Pending<()> {
        self.inner.refresh_map()
    }

    fn fsid(&self) -> String {
        self.inner.fsid()
    }

    fn instance_id(&self) -> u64 {
        self.inner.instance_id()
    }

    fn bind_session(&self) -> u64 {
        self.inner.bind_session()
    }

    fn address(&self) -> Option<SessionAddr> {
        self.inner.address()
    }

    fn pool_id(&self, name: &str) -> Option<PoolId> {
        self.inner.pool_id(name)
    }

    fn pool_name(&self, pool: PoolId) -> Option<String> {
        self.inner.pool_name(pool)
    }

    fn pools(&self) -> Vec<(PoolId, String)> {
        self.inner.pools()
    }

    fn osdmap(&self) -> Option<Arc<OsdMap>> {
        self.inner.osdmap()
    }

    fn option(&self, name: &str) -> Option<String> {
        self.inner.option(name)
    }

    fn stats(&self) -> EngineStats {
        self.inner.stats()
    }

    fn requests(&self) -> Vec<String> {
        self.inner.requests()
    }

    fn shut_down(&self) {
        self.inner.shut_down();
    }
}
