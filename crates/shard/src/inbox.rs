//! The inbox of a shard: messages of other threads and the store's completions in one place, with one wake per batch.
//!
//! The shard's own thread posts here too (a store that commits at once calls back from within its shard). Nothing is woken
//! then, because the shard checks its inbox before it rests, and wakes its task if it leaves messages there.

use crate::copy::FetchedSource;
use crate::session::IncomingRequest;
use crate::tracker::TrackerLimits;
use nacre_common::throttle::Permit;
use nacre_objectstore::{CommitSink, StoreError};
use nacre_pg::PgEnvelope;
use nacre_types::errno::Errno;
use nacre_types::id_map::IdMap;
use nacre_types::ids::{OsdId, PgId};
use nacre_types::msg::{OsdReply, PgCasReply};
use nacre_types::osdmap::OsdMap;
use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::Notify;

/// The up set of every PG.
pub type UpMap = Arc<IdMap<PgId, Vec<OsdId>>>;

/// A message to a shard.
pub enum ShardMessage {
    /// A newer map.
    Map {
        /// The map.
        map: Arc<OsdMap>,
        /// The up set of every PG in it.
        up: UpMap,
        /// OSDs that earlier generations listed and that it does not list.
        unlisted: Arc<[OsdId]>,
    },
    /// A client's request for a PG of this shard that arrived on another shard.
    Client(Box<IncomingRequest>),
    /// A peer's message about a PG of this shard that arrived on another shard.
    Peer {
        /// The peer.
        from: OsdId,
        /// The message.
        envelope: Box<PgEnvelope>,
        /// Its share of the throttle.
        permit: Option<Permit>,
    },
    /// The map authority's answer to a proposal.
    Cas(PgCasReply),
    /// A peer was reset.
    PeerReset(OsdId),
    /// The source of a request's copy-from op was read.
    Fetched {
        /// The request.
        arrival: Box<IncomingRequest>,
        /// The source.
        fetched: FetchedSource,
    },
    /// The object to be promoted was read from the base pool.
    PromotionRead {
        /// The number of the request.
        ticket: u64,
        /// The object.
        fetched: FetchedSource,
    },
    /// The other pool of a tier answered a request.
    TierReply {
        /// The number of the request.
        ticket: u64,
        /// The answer, or the error.
        reply: Result<OsdReply, Errno>,
    },
    /// The connection with this id, over which a client watched objects, has ended.
    WatchConnClosed(u64),
    /// A PG was granted a recovery slot.
    Reserved(PgId),
    /// A PG was granted a slot for a copy that another OSD fills.
    TargetReserved(PgId),
    /// The store has become too full for copies to be filled here.
    TargetTooFull(PgId),
    /// The space that a peer's store has left.
    Space {
        /// The peer.
        from: OsdId,
        /// The space in bytes.
        space_bytes: u64,
    },
    /// The lease table gained a lease.
    Leases,
    /// New limits of the op tracker.
    TrackerLimits(TrackerLimits),
    /// An operator gives up the unfound objects of a PG.
    RemoveUnfound(PgId),
}

#[derive(Default)]
struct Contents {
    messages: VecDeque<ShardMessage>,
    committed: Vec<u64>,
}

thread_local! {
    /// The inbox whose shard is running on this thread.
    static CURRENT_INBOX: Cell<u64> = const { Cell::new(0) };
}

/// See the module's documentation.
pub struct Inbox {
    id: u64,
    contents: Mutex<Contents>,
    notify: Notify,
    failed: AtomicBool,
    on_failure: Box<dyn Fn(&StoreError) + Send + Sync>,
}

/// Marks the shard of `Inbox` as running on this thread while it exists.
pub struct TurnGuard(u64);

impl Drop for TurnGuard {
    fn drop(&mut self) {
        CURRENT_INBOX.set(self.0);
    }
}

impl Inbox {
    /// Creates an empty inbox; `on_failure` is called when the store stopped.
    pub fn new(on_failure: impl Fn(&StoreError) + Send + Sync + 'static) -> Inbox {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Inbox {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            contents: Mutex::default(),
            notify: Notify::new(),
            failed: AtomicBool::new(false),
            on_failure: Box::new(on_failure),
        }
    }

    /// Marks the inbox's shard as running on this thread.
    pub fn enter_turn(&self) -> TurnGuard {
        TurnGuard(CURRENT_INBOX.replace(self.id))
    }

    /// Adds a message; the first one wakes the shard.
    pub fn post(&self, message: ShardMessage) {
        let first = {
            let mut contents = self.contents.lock();
            contents.messages.push_back(message);
            contents.messages.len() == 1 && contents.committed.is_empty()
        };
        self.wake(first);
    }

    /// Moves up to `max` messages, oldest first, and all completions into the caller's buffers, which must be empty. Returns
    /// whether there were any.
    pub fn take(&self, max: usize, messages: &mut Vec<ShardMessage>, committed: &mut Vec<u64>) -> bool {
        let mut contents = self.contents.lock();
        let count = contents.messages.len().min(max);
        messages.extend(contents.messages.drain(..count));
        std::mem::swap(&mut contents.committed, committed);
        !(messages.is_empty() && committed.is_empty())
    }

    /// Whether there is nothing to take.
    pub fn is_empty(&self) -> bool {
        let contents = self.contents.lock();
        contents.messages.is_empty() && contents.committed.is_empty()
    }

    /// Returns when something was posted.
    pub async fn wait(&self) {
        self.notify.notified().await;
    }

    /// Wakes the shard's task, which then checks its timers.
    pub fn wake_task(&self) {
        self.notify.notify_one();
    }

    fn wake(&self, first: bool) {
        if first && CURRENT_INBOX.get() != self.id {
            self.notify.notify_one();
        }
    }
}

impl CommitSink for Inbox {
    fn committed(&self, tokens: &[u64]) {
        let first = {
            let mut contents = self.contents.lock();
            let first = contents.messages.is_empty() && contents.committed.is_empty();
            contents.committed.extend_from_slice(tokens);
            first
        };
        self.wake(first);
    }

    fn failed(&self, _tokens: &[u64], error: &StoreError) {
        if !self.failed.swap(true, Ordering::Relaxed) {
            (self.on_failure)(error);
        }
    }
}
