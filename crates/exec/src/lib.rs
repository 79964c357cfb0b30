//! Execution of client requests: an [`OsdRequest`]'s ops on one object, atomically.
//!
//! [`execute`] reads the store, determines every op's result and returns one transaction with all changes; it changes nothing itself. An op
//! sees the changes of earlier ops of the same request. The first failing op fails the request, which then changes nothing. Semantics,
//! limits and errnos are Ceph's (`PrimaryLogPG::do_osd_ops`).
//!
//! The caller supplies versions and persists the transaction. [`pg_scan`] reads a PG's copies for recovery; it knows only the piece types of
//! the replication machine.

pub mod cls;

mod context;
mod copied_object;
mod copy;
mod data;
mod effect;
mod limits;
mod list;
mod omap;
mod op_context;
mod ops;
pub mod pg_scan;
#[cfg(any(test, feature = "testing"))]
#[allow(missing_docs)]
pub mod testing;
#[cfg(test)]
mod tests;
pub mod tier;
mod watch;
mod xattr;

pub use context::{ContextCache, ObjectContext, load_context};
pub use copied_object::CopiedObject;
pub use copy::MAX_COPIED_REQIDS;
pub use effect::WatchNotifyEffect;
pub use limits::{ClassList, Limits};
pub use nacre_types::tier::INTERNAL_NAMESPACE;
pub(crate) use op_context::OpContext;

use bytes::Bytes;
use nacre_objectstore::ReadStore;
use nacre_types::errno::Errno;
use nacre_types::ids::{ClientId, Eversion, PgId, ReqId};
use nacre_types::msg::OsdRequest;
use nacre_types::object::ObjectId;
use nacre_types::op::{OI_ATTR, Op, OpResult, OsdOp, copy_from_flag, op_flag, request_flag};
use nacre_types::pool::{self, Pool};
use nacre_types::txn::{Transaction, TxnOp};
use std::net::IpAddr;
use uuid::Uuid;

/// Maximum output of one request in bytes: more does not fit a message, and nothing else bounds the output of many reads in one request.
/// Beyond it, the request fails with EOVERFLOW.
pub(crate) const MAX_OUTPUT_BYTES: usize = 192 << 20;

/// The environment in which a request is executed.
pub struct ExecEnv<'a> {
    /// The store with the PG's objects.
    pub store: &'a dyn ReadStore,
    /// The PG. It identifies the collection.
    pub pg: PgId,
    /// Its pool.
    pub pool: &'a Pool,
    /// Ceph's limits, as configured.
    pub limits: &'a Limits,
    /// Whether writes that need space are refused because the store of a member or the cluster is full.
    pub full: bool,
    /// Whether the store has no space at all, so that forced writes that need space are refused too.
    pub no_space: bool,
    /// Whether the pool is a cache tier: removed objects then leave whiteouts, which record that the base's object is deleted.
    pub whiteouts: bool,
    /// Whether flushes copy watches, because clients are sent to the pool's cache.
    pub takes_watches: bool,
    /// The version of the request if it changes anything.
    pub at: Eversion,
    /// The highest user version ever assigned in the PG. Objects that are created again continue from there.
    pub last_user_version: u64,
    /// The requesting client.
    pub origin: Origin,
    /// The time of day, nanoseconds since 1970, for object classes.
    pub wall_ns: &'a dyn Fn() -> u64,
    /// Creates unique identifiers for object classes.
    pub fresh_uuid: &'a dyn Fn() -> Uuid,
    /// The number of watches on the OSD: those of the client, and all.
    pub watches: &'a dyn Fn(ClientId) -> (usize, usize),
    /// The source of the request's copy-from op, or the error in reading it; `None` if the request has no such op.
    pub copied: Option<Result<&'a CopiedObject, Errno>>,
    /// The clients' requests that recently changed an object, newest first, each with the resulting user version.
    pub recent_requests: &'a dyn Fn(&ObjectId) -> Vec<(ReqId, u64)>,
    /// Returns the existing objects in a range (start included, end excluded) of which the store has no readable copy, as far as known.
    /// Listings include them.
    pub missing: &'a dyn Fn(&ObjectId, Option<&ObjectId>) -> Vec<ObjectId>,
}

/// The client of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The session.
    pub client: ClientId,
    /// Its address.
    pub ip: IpAddr,
}

/// The outcome of a request.
#[derive(Debug)]
pub struct ExecResult {
    /// 0 or more on success, else a negated errno.
    pub result: i32,
    /// Code and output of each op, up to the failing one.
    pub ops: Vec<OpResult>,
    /// The object's user version after the request.
    pub user_version: u64,
    /// The change; `None` for reads, failures and writes that change nothing.
    pub change: Option<ObjectChange>,
    /// Further actions for the host once the request has succeeded.
    pub effects: Vec<WatchNotifyEffect>,
    /// Whether a part of the object could not be read. The outcome then counts only if no other member has that part.
    pub damaged: bool,
}

/// The change by a successful write.
#[derive(Debug)]
pub struct ObjectChange {
    /// The steps.
    pub transaction: Transaction,
    /// The object's context afterwards, for the context cache.
    pub context: ObjectContext,
    /// The object's version before; `0'0` if it did not exist.
    pub prior_version: Eversion,
    /// The change of the PG's sums.
    pub delta: SumsDelta,
    /// Payload bytes written, for metrics.
    pub written_bytes: u64,
}

impl ObjectChange {
    /// The version for the reply: the object's, or `before` if it was removed.
    fn reply_version(&self, before: u64) -> u64 {
        if self.context.exists_for_users() { self.context.info.user_version } else { before }
    }
}

/// A change of [`nacre_types::stats::ObjectSums`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SumsDelta {
    /// Bytes of data.
    pub bytes: i64,
    /// Head objects.
    pub objects: i64,
    /// Dirty objects.
    pub dirty: i64,
    /// Whiteouts.
    pub whiteouts: i64,
    /// Objects with omap data.
    pub omap_objects: i64,
    /// Bytes of dirty objects.
    pub dirty_bytes: i64,
}

impl ExecResult {
    /// The outcome of a request that failed as a whole.
    pub fn failed(errno: Errno, user_version: u64) -> ExecResult {
        let (ops, effects) = (Vec::new(), Vec::new());
        ExecResult { result: errno.negated(), ops, user_version, change: None, effects, damaged: false }
    }
}

/// Whether the request is ordered like a change of its object: it has a writing op, or calls a class method registered as writing.
pub fn may_write(request: &OsdRequest) -> bool {
    request.ops.iter().any(|op| writes(&op.op))
}

/// Whether the request may change its object. A request that only reconnects watches never does: it finds the watch or fails.
pub fn may_change(request: &OsdRequest) -> bool {
    request.ops.iter().any(|op| writes(&op.op) && !matches!(op.op, Op::WatchReconnect { .. }))
}

fn writes(op: &Op) -> bool {
    match op {
        Op::Call { class, method, .. } => {
            cls::method_access(class, method).is_some_and(|access| access & cls::access::WRITE != 0)
        }
        other => other.is_write(),
    }
}

/// Whether the request only removes its object, which needs none of the contents.
pub fn only_deletes(request: &OsdRequest) -> bool {
    !request.ops.is_empty() && request.ops.iter().all(|op| matches!(op.op, Op::Remove))
}

/// Checks everything that can be refused before the request is ordered (`PrimaryLogPG::do_op`): names, sizes, snapshots, classes.
pub fn validate(request: &OsdRequest, limits: &Limits) -> Result<(), Errno> {
    let object = &request.object;
    if object.name().len() > limits.max_object_name_len
        || object.locator().len() > limits.max_object_name_len
        || object.namespace().len() > limits.max_object_namespace_len
    {
        return Err(Errno::ENAMETOOLONG);
    }
    let listing = request.ops.iter().any(|op| op.op.is_pg_listing());
    if listing {
        let all = request.ops.iter().all(|op| op.op.is_pg_listing());
        return if all { Ok(()) } else { Err(Errno::EINVAL) };
    }
    if object.name().is_empty() || nacre_pg::is_temp(object) {
        return Err(Errno::EINVAL);
    }
    let withheld = |op: &Op| matches!(op, Op::Call { class, .. } if !limits.classes_offered.contains(class));
    if request.ops.iter().any(|op| withheld(&op.op)) {
        return Err(Errno::EPERM);
    }
    let unknown =
        |op: &Op| matches!(op, Op::Call { class, method, .. } if cls::method_access(class, method).is_none());
    if request.ops.iter().any(|op| unknown(&op.op)) {
        return Err(Errno::EOPNOTSUPP);
    }
    let of_itself = |op: &OsdOp| matches!(&op.op, Op::CopyFrom { source, .. } if source == object);
    if request.ops.iter().any(of_itself) {
        return Err(Errno::EINVAL);
    }
    // Clients of Ceph send only one. A second source would wait for memory that the first one holds.
    if request.ops.iter().filter(|op| matches!(op.op, Op::CopyFrom { .. })).count() > 1 {
        return Err(Errno::EINVAL);
    }
    // It is answered only after its watchers have acknowledged it.
    if request.ops.len() > 1 && request.ops.iter().any(|op| matches!(op.op, Op::Notify { .. })) {
        return Err(Errno::EINVAL);
    }
    // A watch is counted only when its request is done.
    let watches = |op: &&OsdOp| matches!(op.op, Op::Watch { .. } | Op::WatchReconnect { .. });
    if request.ops.iter().filter(watches).count() > 1 {
        return Err(Errno::EINVAL);
    }
    let writes = may_write(request);
    if writes || request.ops.iter().any(|op| matches!(op.op, Op::Notify { .. } | Op::NotifyAck { .. })) {
        if request.snap != nacre_types::object::SNAP_HEAD {
            return Err(Errno::EINVAL);
        }
        let payload: usize = request.ops.iter().map(|op| input_bytes(&op.op)).sum();
        if limits.max_write_size_bytes != 0 && payload as u64 > limits.max_write_size_bytes {
            return Err(Errno::EMSGSIZE);
        }
        // Repeated data is expanded in memory, and sent to the members, for the whole request at once.
        let repeated = request.ops.iter().map(|op| repeated_bytes(&op.op)).fold(0, u64::saturating_add);
        if repeated > limits.max_object_size_bytes {
            return Err(Errno::EFBIG);
        }
    }
    Ok(())
}

/// Executes `request` on the object whose state is `context`.
pub fn execute(env: &ExecEnv<'_>, request: &OsdRequest, context: &ObjectContext) -> ExecResult {
    if request.ops.first().is_some_and(|op| op.op.is_pg_listing()) {
        return list::execute(env, request);
    }
    let writes = may_write(request);
    if !writes && !context.exists_for_users() && !tier::is_tier_read(request) {
        return ExecResult::failed(Errno::ENOENT, env.last_user_version);
    }
    if writes && let Some(executed) = copied_before(request, context) {
        return executed;
    }
    let mut pending = OpContext::new(env, &request.object, context, request.ops.len());
    if tier::is_tier_read(request) {
        pending.set_from_tier_pool();
    }
    let mut results = Vec::with_capacity(request.ops.len());
    let mut result = 0;
    let mut output_bytes = 0;
    for op in &request.ops {
        let mut outcome = run(&mut pending, op);
        output_bytes += outcome.output.len();
        if output_bytes > MAX_OUTPUT_BYTES {
            outcome = OpResult::error(Errno::EOVERFLOW);
            result = outcome.code;
            results.clear();
            results.push(outcome);
            break;
        }
        result = outcome.code;
        results.push(outcome);
        if result < 0 {
            if op.flags & op_flag::FAILOK == 0 {
                break;
            }
            result = 0;
        }
    }
    let user_version = context.user_version(env.last_user_version);
    if pending.is_damaged() {
        return ExecResult { damaged: true, ..ExecResult::failed(Errno::EIO, user_version) };
    }
    let effects = if result < 0 { Vec::new() } else { pending.take_effects() };
    if result < 0 || !pending.changed() {
        return ExecResult { result, ops: results, user_version, change: None, effects, damaged: false };
    }
    if let Err(errno) = check_full(env, request, &pending) {
        return ExecResult::failed(errno, user_version);
    }
    if request.flags & request_flag::RETURNVEC == 0 {
        // Ceph returns the outputs and codes of a successful update only on request.
        result = 0;
        for outcome in &mut results {
            *outcome = OpResult::default();
        }
    } else if let Some(long) =
        results.iter_mut().find(|outcome| outcome.output.len() > env.limits.max_write_op_reply_len)
    {
        *long = OpResult::error(Errno::EOVERFLOW);
        return ExecResult { ops: results, ..ExecResult::failed(Errno::EOVERFLOW, user_version) };
    }
    let change = finish(env, request, context, pending);
    ExecResult {
        result,
        ops: results,
        user_version: change.reply_version(user_version),
        change: Some(change),
        effects,
        damaged: false,
    }
}

/// The outcome of a request that took effect on the source before this copy was made.
fn copied_before(request: &OsdRequest, context: &ObjectContext) -> Option<ExecResult> {
    let (_, user_version) =
        *context.info.copied_requests.iter().find(|(reqid, _)| *reqid == request.effective_reqid())?;
    let ops = vec![OpResult::default(); request.ops.len()];
    Some(ExecResult { result: 0, ops, user_version, change: None, effects: Vec::new(), damaged: false })
}

fn run(pending: &mut OpContext<'_>, op: &OsdOp) -> OpResult {
    match ops::run(pending, op) {
        Ok(outcome) => outcome,
        Err(errno) => OpResult::error(errno),
    }
}

/// Payload bytes of one op that count for `osd_max_write_size`.
fn input_bytes(op: &Op) -> usize {
    match op {
        Op::Write { data, .. } | Op::WriteFull { data } | Op::Append { data } => data.len(),
        Op::WriteSame { data, .. } | Op::CmpExt { data, .. } => data.len(),
        Op::Notify { payload, .. } | Op::NotifyAck { payload, .. } => payload.len(),
        Op::SetXattr { name, value } => name.len() + value.len(),
        Op::OmapSet { entries } => entries.iter().map(|(k, v)| k.len() + v.len()).sum(),
        Op::OmapSetHeader { header } => header.len(),
        Op::OmapRmKeys { keys } => keys.iter().map(Bytes::len).sum(),
        Op::Call { input, .. } => input.len(),
        _ => 0,
    }
}

/// Bytes that one op writes by repeating its payload.
fn repeated_bytes(op: &Op) -> u64 {
    if let Op::WriteSame { len, .. } = op { *len } else { 0 }
}

/// Refuses requests that need space while the pool or store is full. Removals always pass.
fn check_full(env: &ExecEnv<'_>, request: &OsdRequest, pending: &OpContext<'_>) -> Result<(), Errno> {
    let pool_full = env.pool.has_flag(pool::flag::FULL);
    let is_forced = request.flags & request_flag::FULL_FORCE != 0 && !env.no_space;
    if !(env.full || env.no_space || pool_full) || is_forced || !pending.needs_space() {
        return Ok(());
    }
    let quota = pool_full && !env.full && !env.no_space && env.pool.has_flag(pool::flag::FULL_QUOTA);
    Err(if quota { Errno::EDQUOT } else { Errno::ENOSPC })
}

/// Completes the transaction with the object's info and its new versions.
fn finish(
    env: &ExecEnv<'_>,
    request: &OsdRequest,
    before: &ObjectContext,
    pending: OpContext<'_>,
) -> ObjectChange {
    let written_bytes = pending.written_bytes();
    let invisible = pending.changes_only_watches();
    let copied_version = pending.copied_version();
    let promoted_at = pending.promoted_epoch();
    let has_watches_to_flush = pending.has_watches_to_flush();
    let (mut steps, mut after) = pending.into_parts();
    let prior_version = if before.exists { before.info.version } else { Eversion::default() };
    let user_version = env.last_user_version.max(before.info.user_version) + 1;
    if !invisible {
        after.info.user_version = user_version.max(env.at.version);
        // The cluster's internal objects are never flushed.
        if request.object.namespace() != INTERNAL_NAMESPACE {
            after.info.flags |= nacre_types::op::object_flag::DIRTY;
        }
    }
    if has_watches_to_flush {
        after.info.flags |= nacre_types::op::object_flag::DIRTY;
    }
    if let Some(version) = copied_version
        && request.ops.iter().all(|op| matches!(op.op, Op::CopyFrom { .. }) || !op.op.is_write())
    {
        // Clients' copies have the version of their source. But in pools of a tier the version of a name never decreases.
        let is_client_copy =
            |op: &OsdOp| matches!(op.op, Op::CopyFrom { flags, .. } if flags & copy_from_flag::FLUSH == 0);
        let tiering = &env.pool.tiering;
        let is_tiered = tiering.tier_of.is_some() || !tiering.tiers.is_empty();
        let rises = is_tiered && request.ops.iter().any(is_client_copy);
        after.info.user_version = if rises { after.info.user_version.max(version) } else { version };
    }
    if let Some(epoch) = promoted_at {
        after.info.flags &= !(nacre_types::op::object_flag::DIRTY | nacre_types::op::object_flag::OBSOLETE);
        after.info.tier_epoch = epoch;
    }
    if after.exists {
        after.info.prior_version = prior_version;
        after.info.version = env.at;
        after.info.last_reqid = request.effective_reqid();
        if request.mtime_ns != 0 {
            after.info.mtime_ns = request.mtime_ns;
        }
        let encoded = Bytes::from(nacre_types::encoding::encode(&after.info));
        match steps.last_mut() {
            // User attributes that were set last share the step.
            Some(TxnOp::SetAttrs { attrs, .. }) => attrs.push((OI_ATTR.to_owned(), encoded)),
            _ => steps.push(TxnOp::SetAttrs {
                oid: request.object.clone(),
                attrs: vec![(OI_ATTR.to_owned(), encoded)],
            }),
        }
    }
    let delta = match request.object.namespace() {
        // The cluster's internal objects do not count as users' objects.
        INTERNAL_NAMESPACE => SumsDelta::default(),
        _ => SumsDelta::between(before, &after),
    };
    let transaction = Transaction { collection: env.pg, ops: steps };
    ObjectChange { transaction, context: after, prior_version, delta, written_bytes }
}

impl SumsDelta {
    /// Returns the difference between two states of an object.
    pub fn between(before: &ObjectContext, after: &ObjectContext) -> SumsDelta {
        use nacre_types::op::object_flag::{DIRTY, OMAP, WHITEOUT};
        let difference = |f: &dyn Fn(&ObjectContext) -> u64| f(after) as i64 - f(before) as i64;
        let flag = |bit: u32| difference(&|c: &ObjectContext| u64::from(c.exists && c.info.flags & bit != 0));
        SumsDelta {
            bytes: difference(&|c| if c.exists { c.size } else { 0 }),
            objects: difference(&|c| u64::from(c.exists)),
            dirty: flag(DIRTY),
            whiteouts: flag(WHITEOUT),
            omap_objects: flag(OMAP),
            dirty_bytes: difference(&|c| if c.exists && c.info.flags & DIRTY != 0 { c.size } else { 0 }),
        }
    }
}

impl std::ops::AddAssign for SumsDelta {
    fn add_assign(&mut self, other: SumsDelta) {
        self.bytes += other.bytes;
        self.objects += other.objects;
        self.dirty += other.dirty;
        self.whiteouts += other.whiteouts;
        self.omap_objects += other.omap_objects;
        self.dirty_bytes += other.dirty_bytes;
    }
}

/// Whether listings include the object: heads that are not internal.
pub(crate) fn is_listed(object: &ObjectId) -> bool {
    object.snap() == nacre_types::object::SNAP_HEAD
        && object.namespace() != INTERNAL_NAMESPACE
        && !nacre_pg::is_temp(object)
}
