//! Rules of the protocol that gateways break if a test asks for it.

use crate::world::Shared;
use bytes::Bytes;
use nacre_engine::engine::ObjectRequest;
use nacre_index::key::{self as index_key, IndexRecordKind as IndexKind};
use nacre_queues::name::{CLOSED_NAMESPACE, QueueRecordKind};
use nacre_queues::record::{HEAD, OWNER};
use nacre_types::op::{Op, OsdOp};

/// A rule that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
    None,
    /// A change is finished, and its event is in the outbox, before it is committed.
    EnqueueBeforeCommit,
    /// Finishing a change drops its event.
    FinishWithoutOutbox,
    /// Outbox records are not copied when a bucket's index moves.
    DropAtBucketReshard,
    /// Endpoints acknowledge before they have the event: what is settled then may be lost.
    TrimBeforeAck,
    /// Settling compares neither owner nor lease.
    UnfencedTrim,
    /// Batches are not copied when a generation is closed.
    DropAtReshard,
}

/// Takes away of a request what the mutation says, and notes whether that was something.
pub(crate) fn mutate(mutation: Mutation, shared: &Shared, mut request: ObjectRequest) -> ObjectRequest {
    let before = parts(&request);
    match mutation {
        Mutation::FinishWithoutOutbox if removes(&request, |key| is_index(key, IndexKind::Pending)) => {
            retain_entries(&mut request, |key| !is_index(key, IndexKind::Outbox));
        }
        // Movers that rewrite a record remove others at the same time, or nothing.
        Mutation::DropAtBucketReshard if !removes_keys(&request) => {
            retain_entries(&mut request, |key| !is_index(key, IndexKind::Outbox));
        }
        // What drops the oldest events renews no lease.
        Mutation::UnfencedTrim if sets(&request, HEAD) && !sets(&request, OWNER) && calls_class(&request) => {
            request.ops.retain(|op| match &op.op {
                Op::CmpXattr { name, .. } => name != OWNER && name != HEAD,
                Op::Call { .. } => false,
                _ => true,
            });
        }
        Mutation::DropAtReshard if request.object.namespace() == CLOSED_NAMESPACE => {
            retain_entries(&mut request, |key| QueueRecordKind::Batch.sequence(key).is_none());
        }
        _ => {}
    }
    if parts(&request) != before {
        shared.strike();
    }
    request
}

/// Operations, and omap entries that they set.
fn parts(request: &ObjectRequest) -> usize {
    let entries = |op: &OsdOp| match &op.op {
        Op::OmapSet { entries } => entries.len(),
        _ => 0,
    };
    request.ops.iter().map(|op| 1 + entries(op)).sum()
}

fn sets(request: &ObjectRequest, attribute: &str) -> bool {
    request.ops.iter().any(|op| matches!(&op.op, Op::SetXattr { name, .. } if name == attribute))
}

fn calls_class(request: &ObjectRequest) -> bool {
    request.ops.iter().any(|op| matches!(op.op, Op::Call { .. }))
}

fn removes_keys(request: &ObjectRequest) -> bool {
    request.ops.iter().any(|op| matches!(op.op, Op::OmapRmKeys { .. }))
}

fn removes(request: &ObjectRequest, wanted: impl Fn(&Bytes) -> bool) -> bool {
    request.ops.iter().any(|op| matches!(&op.op, Op::OmapRmKeys { keys } if keys.iter().any(&wanted)))
}

fn is_index(key: &Bytes, kind: IndexKind) -> bool {
    index_key::parse(key).is_some_and(|parsed| parsed.kind == kind)
}

fn retain_entries(request: &mut ObjectRequest, wanted: impl Fn(&Bytes) -> bool) {
    for op in &mut request.ops {
        if let Op::OmapSet { entries } = &mut op.op {
            entries.retain(|(key, _)| wanted(key));
        }
    }
}
