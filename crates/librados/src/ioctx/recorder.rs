//! An engine that records the requests that reach it and refuses them.

use super::PoolIo;
use crate::abi::Handle;
use crate::client::{CLIENTS, Client};
use crate::settings::Settings;
use bytes::Bytes;
use nacre_client::engine::{
    CommandReply, CommandTarget, Engine, EngineStats, ListPage, LogFollow, ObjectRequest, OnReply,
};
use nacre_client::{IoCtx, OnDone, OpReply, Pending, Result, WatchHandler};
use nacre_types::ceph::SessionAddr;
use nacre_types::errno::Errno;
use nacre_types::ids::EntityName;
use nacre_types::op::request_flag;
use nacre_types::osdmap::OsdMap;
use nacre_types::{ObjectId, PoolId};
use parking_lot::Mutex;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

#[derive(Default)]
pub(crate) struct Recorder {
    writes: Mutex<Vec<bool>>,
}

impl Recorder {
    /// An I/O context on a new recorder.
    pub(crate) fn io() -> (Handle, Arc<Recorder>) {
        let recorder = Arc::new(Recorder::default());
        let client = Client::create(Settings::new(EntityName::client("test"), ""));
        let client = CLIENTS.get(client).expect("it was created just now");
        (PoolIo::create(client, IoCtx::new(recorder.clone(), PoolId(1), "p")), recorder)
    }

    /// For each request since the last call, whether it waits where writes wait.
    pub(crate) fn take_writes(&self) -> Vec<bool> {
        std::mem::take(&mut *self.writes.lock())
    }

    fn record(&self, request: &ObjectRequest) {
        let flagged = request.flags & request_flag::WRITE != 0;
        self.writes.lock().push(flagged || request.ops.iter().any(|op| op.op.is_write()));
    }
}

impl Engine for Recorder {
    fn name(&self) -> &'static str {
        "recorder"
    }
    fn submit(&self, request: ObjectRequest, done: OnReply) {
        self.record(&request);
        done(Err(Errno::EIO.into()));
    }
    fn operate(&self, request: ObjectRequest) -> Pending<OpReply> {
        self.record(&request);
        Pending::ready(Err(Errno::EIO.into()))
    }
    fn spawn(&self, _: Pin<Box<dyn Future<Output = ()> + Send>>) {
        unreachable!()
    }
    fn list(&self, _: ObjectId, _: u64, _: Option<String>) -> Pending<ListPage> {
        unreachable!()
    }
    fn watch(&self, _: ObjectId, _: u32, _: u32, _: Arc<dyn WatchHandler>, _: OnDone) -> u64 {
        unreachable!()
    }
    fn unwatch(&self, _: u64, _: OnDone) {
        unreachable!()
    }
    fn watch_check(&self, _: u64) -> Result<Duration> {
        unreachable!()
    }
    fn watch_flush(&self) -> Pending<()> {
        unreachable!()
    }
    fn command(&self, _: CommandTarget, _: String, _: Bytes) -> Pending<CommandReply> {
        unreachable!()
    }
    fn follow_log(&self, _: Option<LogFollow>) {
        unreachable!()
    }
    fn refresh_map(&self) -> Pending<()> {
        unreachable!()
    }
    fn fsid(&self) -> String {
        String::new()
    }
    fn instance_id(&self) -> u64 {
        1
    }
    fn bind_session(&self) -> u64 {
        1
    }
    fn address(&self) -> Option<SessionAddr> {
        None
    }
    fn pool_id(&self, _: &str) -> Option<PoolId> {
        None
    }
    fn pool_name(&self, _: PoolId) -> Option<String> {
        None
    }
    fn pools(&self) -> Vec<(PoolId, String)> {
        Vec::new()
    }
    fn osdmap(&self) -> Option<Arc<OsdMap>> {
        None
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
    fn shut_down(&self) {}
}
