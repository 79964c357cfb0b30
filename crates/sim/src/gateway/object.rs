//! Objects in memory and the execution of compound requests on them, with the OSD's semantics.
//!
//! [`execute`] decides every op's result and the object's state afterwards; it changes nothing itself. An op sees what
//! earlier ops of the request did; the first failing op fails the request and then nothing changes. Order of checks, codes
//! and what comes back of a successful update are those of the OSD's own interpreter (`exec` in the osd crate), which works
//! on a store; the rules of comparisons and of class `lock` are the same code.
//!
//! Not here: snapshots, copies between objects and checksums (EOPNOTSUPP), full pools, whiteouts.

mod ops;
#[cfg(test)]
mod tests;

use crate::gateway::class;
use bytes::Bytes;
use nacre_types::ceph::SessionAddr;
use nacre_types::errno::Errno;
use nacre_types::object::{MAX_NAMESPACE_BYTES, MAX_OBJECT_NAME_BYTES, SNAP_HEAD};
use nacre_types::op::{Op, OpResult, OsdOp, WatchInfo, op_flag, request_flag};
use nacre_types::{ClientId, ObjectId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// `osd_max_object_size`: no object grows beyond so many bytes (EFBIG).
const MAX_OBJECT_BYTES: u64 = 128 << 20;
/// `osd_max_write_op_reply_len`: output per op of an update (EOVERFLOW).
const MAX_WRITE_REPLY_BYTES: usize = 64;

/// An object as it is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Object {
    /// Its data.
    pub data: Vec<u8>,
    /// Its attributes by users' names.
    pub attrs: BTreeMap<String, Bytes>,
    /// The omap header.
    pub omap_header: Bytes,
    /// The omap.
    pub omap: BTreeMap<Bytes, Bytes>,
    /// The version that users see.
    pub user_version: u64,
    /// The modification time, nanoseconds since 1970.
    pub mtime_ns: u64,
    /// The watches on it, by client and cookie.
    pub watchers: Vec<WatchInfo>,
}

/// What a request is executed in.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    /// The session.
    pub client: ClientId,
    /// Its address.
    pub addr: SessionAddr,
    /// The OSD's time of day, nanoseconds since 1970.
    pub now_ns: u64,
    /// The highest user version ever given in the PG: objects that are created again go on from there.
    pub last_user_version: u64,
}

/// What is to be done beside a request's change, once it has succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The session watches by this cookie.
    Connect {
        /// The watch.
        cookie: u64,
    },
    /// The session's watch of this cookie is over.
    Disconnect {
        /// The watch.
        cookie: u64,
    },
    /// All watches are over, since the object is.
    DisconnectAll(Vec<WatchInfo>),
    /// Tell the watchers and answer when they have answered.
    Notify {
        /// Seconds to wait; 0 for the default.
        timeout_s: u32,
        /// What they get.
        payload: Bytes,
    },
    /// A watcher answers.
    Ack {
        /// The notify.
        notify_id: u64,
        /// The watch.
        cookie: u64,
        /// What the notifier gets.
        payload: Bytes,
    },
}

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Executed {
    /// 0 or more on success, else a negated errno.
    pub result: i32,
    /// Per op: code and output, up to the failing one.
    pub ops: Vec<OpResult>,
    /// The object's version for the user after the request.
    pub user_version: u64,
    /// The object afterwards (`None`: it is absent), where the request changes it.
    pub change: Option<Option<Arc<Object>>>,
    /// The highest user version in the PG afterwards.
    pub last_user_version: u64,
    /// What is to be done beside the change.
    pub effects: Vec<Effect>,
}

/// Whether a request may change its object: any writing op, or a class method that writes.
pub fn may_write(ops: &[OsdOp]) -> bool {
    ops.iter().any(|op| match &op.op {
        Op::Call { class, method, .. } => class::writes(class, method) == Some(true),
        other => other.is_write(),
    })
}

/// Checks what is refused before a request is ordered: names, snapshots, classes, combinations.
pub fn validate(object: &ObjectId, ops: &[OsdOp], snap: u64) -> Result<(), Errno> {
    if object.name().len() > MAX_OBJECT_NAME_BYTES
        || object.locator().len() > MAX_OBJECT_NAME_BYTES
        || object.namespace().len() > MAX_NAMESPACE_BYTES
    {
        return Err(Errno::ENAMETOOLONG);
    }
    if object.name().is_empty() {
        return Err(Errno::EINVAL);
    }
    let unknown =
        |op: &Op| matches!(op, Op::Call { class, method, .. } if class::writes(class, method).is_none());
    if ops.iter().any(|op| unknown(&op.op)) {
        return Err(Errno::EOPNOTSUPP);
    }
    if ops.len() > 1 && ops.iter().any(|op| matches!(op.op, Op::Notify { .. })) {
        return Err(Errno::EINVAL);
    }
    let watches = |op: &&OsdOp| matches!(op.op, Op::Watch { .. } | Op::WatchReconnect { .. });
    if ops.iter().filter(watches).count() > 1 {
        return Err(Errno::EINVAL);
    }
    if may_write(ops) && snap != SNAP_HEAD { Err(Errno::EINVAL) } else { Ok(()) }
}

/// Executes a request on the object as it is.
pub fn execute(
    context: &Context,
    object: Option<&Arc<Object>>,
    ops: &[OsdOp],
    flags: u32,
    mtime_ns: u64,
) -> Executed {
    let before = object.map_or(context.last_user_version, |object| object.user_version);
    let failed = |result: i32, ops: Vec<OpResult>| Executed {
        result,
        ops,
        user_version: before,
        change: None,
        last_user_version: context.last_user_version,
        effects: Vec::new(),
    };
    if !may_write(ops) && object.is_none() {
        return failed(Errno::ENOENT.negated(), Vec::new());
    }
    let mut working = Working::new(context, object);
    let mut results = Vec::with_capacity(ops.len());
    let mut result = 0;
    for op in ops {
        let outcome = ops::run(&mut working, op).unwrap_or_else(OpResult::error);
        result = outcome.code;
        results.push(outcome);
        if result < 0 {
            if op.flags & op_flag::FAILOK == 0 {
                return failed(result, results);
            }
            result = 0;
        }
    }
    if !working.changed && !working.watches_changed {
        return Executed { effects: working.effects, ..failed(result, results) };
    }
    if flags & request_flag::RETURNVEC == 0 {
        // Neither outputs nor codes of a successful update come back unless they are asked for.
        result = 0;
        results.fill(OpResult::default());
    } else if let Some(long) = results.iter_mut().find(|outcome| outcome.output.len() > MAX_WRITE_REPLY_BYTES)
    {
        *long = OpResult::error(Errno::EOVERFLOW);
        return failed(Errno::EOVERFLOW.negated(), results);
    }
    let visible = working.changed;
    let next = context.last_user_version.max(before) + 1;
    let last_user_version = if visible { next } else { context.last_user_version };
    let mut after = working.now;
    if let Some(object) = &mut after {
        let object = Arc::make_mut(object);
        if visible {
            object.user_version = next;
        }
        if mtime_ns != 0 {
            object.mtime_ns = mtime_ns;
        }
    }
    let user_version = after.as_ref().map_or(before, |object| object.user_version);
    let effects = working.effects;
    Executed { result, ops: results, user_version, change: Some(after), last_user_version, effects }
}

/// An object in the middle of a request.
pub(super) struct Working<'a> {
    context: &'a Context,
    /// The object was there before the request.
    existed: bool,
    now: Option<Arc<Object>>,
    /// What [`Op::AssertVersion`] compares with: stays what it was when the object is removed.
    version: u64,
    /// Users see a change.
    changed: bool,
    watches_changed: bool,
    effects: Vec<Effect>,
}

impl<'a> Working<'a> {
    fn new(context: &'a Context, object: Option<&Arc<Object>>) -> Working<'a> {
        Working {
            context,
            existed: object.is_some(),
            now: object.cloned(),
            version: object.map_or(0, |object| object.user_version),
            changed: false,
            watches_changed: false,
            effects: Vec::new(),
        }
    }

    /// What the request is executed in.
    pub(super) fn context(&self) -> &'a Context {
        self.context
    }

    /// The object; ENOENT where it is absent.
    pub(super) fn present(&self) -> Result<&Object, Errno> {
        self.now.as_deref().ok_or(Errno::ENOENT)
    }

    /// The object to change; ENOENT where it is absent.
    fn present_mut(&mut self) -> Result<&mut Object, Errno> {
        let object = self.now.as_mut().ok_or(Errno::ENOENT)?;
        self.changed = true;
        Ok(Arc::make_mut(object))
    }

    /// The object to change, which is made where it is absent.
    fn create(&mut self) -> &mut Object {
        self.changed = true;
        if self.now.is_none() {
            self.version = 0;
        }
        Arc::make_mut(self.now.get_or_insert_default())
    }

    fn size(&self) -> u64 {
        self.now.as_ref().map_or(0, |object| object.data.len() as u64)
    }

    /// A user's attribute; ENOENT where the object is absent.
    pub(super) fn attr(&self, name: &str) -> Result<Option<Bytes>, Errno> {
        Ok(self.present()?.attrs.get(name).cloned())
    }

    /// Sets a user's attribute within its limits, creating the object as needed.
    pub(super) fn set_attr(&mut self, name: &str, value: Bytes) -> Result<(), Errno> {
        if name.len() > ops::MAX_ATTR_NAME_BYTES {
            return Err(Errno::ENAMETOOLONG);
        }
        self.create().attrs.insert(name.to_owned(), value);
        Ok(())
    }

    /// Removes the object; ENOENT where it is absent.
    pub(super) fn remove(&mut self) -> Result<(), Errno> {
        let object = self.now.take().ok_or(Errno::ENOENT)?;
        if !object.watchers.is_empty() {
            self.effects.push(Effect::DisconnectAll(object.watchers.clone()));
        }
        // Making and removing an object in one request leaves nothing.
        self.changed = self.existed;
        self.watches_changed = false;
        Ok(())
    }
}
