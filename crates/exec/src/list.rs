//! Listing of a PG's objects in hash order, resumable at any object.

use crate::{ExecEnv, ExecResult, MAX_OUTPUT_BYTES, is_listed};
use nacre_types::encoding::encode;
use nacre_types::errno::Errno;
use nacre_types::msg::OsdRequest;
use nacre_types::object::ObjectId;
use nacre_types::op::{ListReply, Op, OpResult};

/// Objects read from the store at a time.
const SCAN_CHUNK: usize = 512;
/// Objects scanned per op, listed or not, so that the listing of a small namespace in a large PG yields.
const MAX_SCANNED: usize = 16 * 1024;

/// Executes a request that consists of listings.
pub(super) fn execute(env: &ExecEnv<'_>, request: &OsdRequest) -> ExecResult {
    let mut ops = Vec::with_capacity(request.ops.len());
    let mut result = 0;
    let mut output_bytes = 0;
    for op in &request.ops {
        let outcome = match &op.op {
            Op::PgList { cursor, max, namespace } => list(env, cursor.as_ref(), *max, namespace.as_deref()),
            _ => Err(Errno::EINVAL),
        };
        let outcome = match outcome {
            Ok(_) if output_bytes > MAX_OUTPUT_BYTES => OpResult::error(Errno::EOVERFLOW),
            Ok(reply) => OpResult::output(encode(&reply)),
            Err(errno) => OpResult::error(errno),
        };
        result = outcome.code;
        output_bytes += outcome.output.len();
        ops.push(outcome);
        if result < 0 {
            break;
        }
    }
    ExecResult {
        result,
        ops,
        user_version: env.last_user_version,
        change: None,
        effects: Vec::new(),
        damaged: false,
    }
}

fn list(
    env: &ExecEnv<'_>,
    cursor: Option<&ObjectId>,
    max: u64,
    namespace: Option<&str>,
) -> Result<ListReply, Errno> {
    let max = usize::try_from(max.min(env.limits.max_pgls)).unwrap_or(usize::MAX);
    let mut objects = Vec::new();
    let mut next = cursor.cloned().unwrap_or_else(|| ObjectId::min_at_hash(env.pg.pool, 0));
    let mut scanned = 0;
    loop {
        let mut page = env.store.list_objects(env.pg, &next, None, SCAN_CHUNK).map_err(|error| {
            tracing::error!(pg = %env.pg, %error, "listing objects failed");
            error.errno()
        })?;
        // The last entry of a page that is not the last is the start of the next page.
        let after = if page.more { page.entries.pop() } else { None };
        scanned += page.entries.len();
        let missing = (env.missing)(&next, after.as_ref());
        if !missing.is_empty() {
            page.entries.extend(missing);
            page.entries.sort_unstable();
            page.entries.dedup();
        }
        for oid in page.entries {
            if !is_listed(&oid) || namespace.is_some_and(|wanted| oid.namespace() != wanted) {
                continue;
            }
            if objects.len() >= max {
                return Ok(ListReply { objects, next: Some(oid) });
            }
            objects.push(oid);
        }
        match after {
            Some(after) if scanned < MAX_SCANNED => next = after,
            after => return Ok(ListReply { objects, next: after }),
        }
    }
}
