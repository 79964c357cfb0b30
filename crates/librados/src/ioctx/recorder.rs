//! An engine for tests that records and refuses all requests.

use super::IoCtxState;
use crate::abi::Handle;
use crate::client::{CLIENTS, Client};
use crate::settings::ClientSettings;
use nacre_client::engine::{Engine, ListPage, ObjectRequest, OnReply};
use nacre_client::{IoCtx, OpReply, Pending};
use nacre_types::errno::Errno;
use nacre_types::ids::EntityName;
use nacre_types::op::request_flag;
use nacre_types::{ObjectId, PoolId};
use parking_lot::Mutex;
use std::pin::Pin;
use std::sync::Arc;

#[derive(Default)]
pub(crate) struct RecordingEngine {
    writes: Mutex<Vec<bool>>,
}

impl RecordingEngine {
    /// An I/O context on a new recorder.
    pub(crate) fn io() -> (Handle, Arc<RecordingEngine>) {
        let recorder = Arc::new(RecordingEngine::default());
        let client = Client::create(ClientSettings::new(EntityName::client("test"), ""));
        let client = CLIENTS.get(client).expect("it was created just now");
        (IoCtxState::create(client, IoCtx::new(recorder.clone(), PoolId(1), "p")), recorder)
    }

    /// For each request since the last call, whether it waits as writes do.
    pub(crate) fn take_writes(&self) -> Vec<bool> {
        std::mem::take(&mut *self.writes.lock())
    }

    fn record(&self, request: &ObjectRequest) {
        let flagged = request.flags & request_flag::WRITE != 0;
        self.writes.lock().push(flagged || request.ops.iter().any(|op| op.op.is_write()));
    }
}

impl Engine for RecordingEngine {
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
    fn instance_id(&self) -> u64 {
        1
    }
}
