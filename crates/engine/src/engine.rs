//! The engine seam: what `Cluster` and `IoCtx` require of an implementation of the cluster's protocol.
//!
//! `native` implements Nacre's own protocol. Everything above the seam (the gateway, the tools, the C library) uses only this
//! trait's operations, all of which a real librados could implement too.

use crate::completion::Pending;
use crate::error::{Error, Result};
use crate::ops::OpReply;
use bytes::Bytes;
use nacre_types::ceph::SessionAddr;
use nacre_types::errno::Errno;
use nacre_types::msg::LogLine;
use nacre_types::op::OsdOp;
use nacre_types::osdmap::OsdMap;
use nacre_types::tier::TierSender;
use nacre_types::{ObjectId, OsdId, PgId, PoolId};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// Called once with an operation's outcome, on the engine's thread: it must be short and never block.
pub type OnReply = Box<dyn FnOnce(Result<OpReply>) + Send>;

/// One compound operation on one object.
#[derive(Debug)]
pub struct ObjectRequest {
    /// Pool, namespace, locator and name.
    pub object: ObjectId,
    /// The parts, applied in order, all or none.
    pub ops: Vec<OsdOp>,
    /// Bits of [`nacre_types::op::request_flag`].
    pub flags: u32,
    /// Snapshot to read ([`nacre_types::object::SNAP_HEAD`] for the head).
    pub snap: u64,
    /// Snapshot context for writes: the newest snapshot's id and all existing ones, newest first.
    pub snap_context: Option<(u64, Vec<u64>)>,
    /// The modification time for the object, nanoseconds since 1970; `None` means now.
    pub mtime_ns: Option<u64>,
    /// The sender, if it is an OSD for a PG of a cache tier.
    pub tier: Option<Box<TierSender>>,
}

/// A notification for a watcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notification {
    /// The watch.
    pub cookie: u64,
    /// The notify, for the acknowledgement.
    pub notify_id: u64,
    /// The notifier's session.
    pub notifier: u64,
    /// The notifier's payload.
    pub payload: Bytes,
}

/// The handler of a watch. Called on the engine's thread: it must be short and never block on another operation.
/// [`crate::IoCtx::notify_ack`] does not block.
pub trait WatchHandler: Send + Sync {
    /// Called when a client notifies the object's watchers and waits for [`crate::IoCtx::notify_ack`]. After failures it may be
    /// called twice for one notify.
    fn notified(&self, notification: Notification);

    /// Called at most once, when the watch has timed out or can't be reconnected. There are no more notifications, and some may
    /// have been missed already. The watch must still be ended with [`crate::IoCtx::unwatch`].
    fn lost(&self, cookie: u64, error: Error);
}

/// Called once with the outcome of a watch or unwatch, on the engine's thread.
pub type OnDone = Box<dyn FnOnce(Result<()>) + Send>;

/// The destination of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandTarget {
    /// The map authority: a command of the cluster.
    Mon,
    /// The map authority as a daemon (`tell mon.a`).
    MonDaemon,
    /// An OSD.
    Osd(OsdId),
    /// The primary of a PG.
    Pg(PgId),
}

/// Called with each line of the cluster log: it must be short and never block.
pub type OnLogLine = Arc<dyn Fn(&LogLine) + Send + Sync>;

/// A subscription to lines of the cluster log.
#[derive(Clone)]
pub struct LogSubscription {
    /// The minimum level.
    pub level: String,
    /// The channel, `*` for all.
    pub channel: String,
    /// The available lines after this one are delivered first; `None` starts with the next line.
    pub after: Option<u64>,
    /// Called with the lines.
    pub follower: OnLogLine,
}

impl std::fmt::Debug for LogSubscription {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogFollow").field("level", &self.level).field("channel", &self.channel).finish()
    }
}

/// A command's output.
#[derive(Clone, Debug, Default)]
pub struct CommandReply {
    /// Text for people (Ceph's `outs`).
    pub status: String,
    /// Data (Ceph's `outbl`).
    pub output: Bytes,
}

/// A position in a pool's listing: everything before it in hash order is listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cursor {
    /// Continue at this position.
    At(ObjectId),
    /// The end of the listing.
    End,
}

/// One step of a listing.
#[derive(Clone, Debug)]
pub struct ListPage {
    /// Objects in hash order.
    pub objects: Vec<ObjectId>,
    /// Where the next step begins.
    pub next: Cursor,
}

/// Statistics of the engine.
#[derive(Clone, Copy, Debug, Default)]
pub struct EngineStats {
    /// Operations in flight.
    pub in_flight: usize,
    /// Operations sent more than once.
    pub resends: u64,
}

/// A connection to one cluster.
///
/// Methods with a default are not implemented by engines without watches, maps or administration: those that replace a cluster
/// in tests and simulations.
pub trait Engine: Send + Sync + 'static {
    /// The engine's name: `native`.
    fn name(&self) -> &'static str;

    /// Starts an operation and calls `done` with its outcome. Waits for room if too many operations are in flight, except on
    /// the engine's own thread. A write has succeeded when it is durable on all in-sync replicas.
    fn submit(&self, request: ObjectRequest, done: OnReply);

    /// Starts an operation. See [`Pending`] for the bounds on operations in flight.
    fn operate(&self, request: ObjectRequest) -> Pending<OpReply>;

    /// Runs a task on the engine's thread, where it must never block.
    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>);

    /// Lists at most `max` objects from `cursor` on, of one namespace or (`None`) of all.
    fn list(&self, cursor: ObjectId, max: u64, namespace: Option<String>) -> Pending<ListPage>;

    /// Watches an object and returns the watch's cookie. Calls `done` with the outcome. See [`crate::IoCtx::watch`].
    fn watch(
        &self,
        object: ObjectId,
        flags: u32,
        timeout_s: u32,
        handler: Arc<dyn WatchHandler>,
        done: OnDone,
    ) -> u64 {
        let _ = (object, flags, timeout_s, handler);
        done(Err(Errno::EOPNOTSUPP.into()));
        0
    }

    /// Ends a watch.
    fn unwatch(&self, cookie: u64, done: OnDone) {
        let _ = cookie;
        done(Err(Errno::ENOTCONN.into()));
    }

    /// Time since the watch was last known to be registered.
    fn watch_check(&self, cookie: u64) -> Result<Duration> {
        let _ = cookie;
        Err(Errno::ENOTCONN.into())
    }

    /// Returns once all handler calls that started before have returned.
    fn watch_flush(&self) -> Pending<()> {
        Pending::ready(Ok(()))
    }

    /// Runs a command in Ceph's JSON form.
    fn command(&self, target: CommandTarget, command: String, input: Bytes) -> Pending<CommandReply> {
        let _ = (target, command, input);
        Pending::ready(Err(Errno::EOPNOTSUPP.into()))
    }

    /// Calls `follower` with each new line of the cluster log of at least `level` (`debug`, `info`, `sec`, `warn`, `error`) and
    /// of `channel` (`cluster`, `audit`, `*`), on the engine's thread. Replaces the earlier subscription; `None` ends it.
    fn follow_log(&self, follow: Option<LogSubscription>) {
        let _ = follow;
    }

    /// Returns once the engine has the newest cluster map.
    fn refresh_map(&self) -> Pending<()> {
        Pending::ready(Ok(()))
    }

    /// The cluster's id.
    fn fsid(&self) -> String {
        String::new()
    }

    /// This session's number, unique in the cluster (`rados_get_instance_id`).
    fn instance_id(&self) -> u64;

    /// Binds this handle to its current session: if the cluster gives it another number, its operations fail as if it were
    /// blocklisted. Returns the session's number.
    fn bind_session(&self) -> u64 {
        self.instance_id()
    }

    /// This session's address as in blocklists; `None` before its first connection.
    fn address(&self) -> Option<SessionAddr> {
        None
    }

    /// The pool with this name in the current map.
    fn pool_id(&self, name: &str) -> Option<PoolId> {
        let _ = name;
        None
    }

    /// The pool's name in the current map.
    fn pool_name(&self, pool: PoolId) -> Option<String> {
        let _ = pool;
        None
    }

    /// All pools of the current map.
    fn pools(&self) -> Vec<(PoolId, String)> {
        Vec::new()
    }

    /// The cluster map, if the engine has one in Nacre's form.
    fn osdmap(&self) -> Option<Arc<OsdMap>> {
        None
    }

    /// An option's value in this client's configuration.
    fn option(&self, name: &str) -> Option<String> {
        let _ = name;
        None
    }

    /// The engine's statistics.
    fn stats(&self) -> EngineStats {
        EngineStats::default()
    }

    /// Operations in flight, one line each (`objecter_requests`).
    fn requests(&self) -> Vec<String> {
        Vec::new()
    }

    /// Ends the session. Operations in flight fail.
    fn shut_down(&self) {}
}
