//! Requests of a process that uses the cluster through this client ([`crate::gateway::cluster_engine`]).

use super::{Client, ClientOutput, Token, millis};
use crate::history::History;
use crate::schedule::Nanos;
use nacre_engine::engine::ObjectRequest;
use nacre_objecter::Submission;

impl Client {
    /// Sends a request of its process, which is given up after its timeout. The answer is reported with this number.
    pub fn send_process_request(
        &mut self,
        now: Nanos,
        history: &mut History,
        (number, request, timeout): (u64, ObjectRequest, Option<Nanos>),
        out: &mut Vec<ClientOutput>,
    ) {
        let ObjectRequest { object, ops, flags, snap, snap_context, mtime_ns, tier } = request;
        let mtime_ns = mtime_ns.unwrap_or(now);
        let deadline_ms = timeout.map(|timeout| millis(now + timeout));
        let submission = Submission { object, ops, flags, snap, snap_context, mtime_ns, deadline_ms, tier };
        self.step(now, history, out, |objecter, sink| {
            objecter.submit(submission, Token::Process(number), millis(now), sink);
        });
    }

    /// Its requests without an answer, one line each.
    pub fn describe_requests(&self) -> impl Iterator<Item = String> {
        let node = self.node;
        self.objecter.describe().into_iter().map(move |request| format!("{node}: {request:?}"))
    }
}
