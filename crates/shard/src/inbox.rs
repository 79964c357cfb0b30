//! How other threads reach a shard: messages and the store's completions, gathered in one place, one wake per batch.
//!
//! The shard's own thread posts here too (a store that commits at once calls back from within its shard); then nothing
//! is woken, since the shard looks into its inbox before it rests, and wakes its task where it leaves something there.

use crate::copy::Fetched;
use crate::session::Arrival;
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

/// Where CRUSH wants every PG.
pub type UpMap = Arc<IdMap<PgId, Vec<OsdId>>>;

/// Something for a shard to do.
pub enum ShardMessage {
    /// A newer map.
    Map {
        /// The map.
        map: Arc<OsdMap>,
        /// Where it wants every PG.
        up: UpMap,
        /// OSDs that it does not list, and earlier generations did.
        unlisted: Arc<[OsdId]>,
    },
    /// A client's request for a PG of this shard that came in on another one.
    Client(Box<Arrival>),
    /// A peer's message about a PG of this shard that came in on another one.
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
        arrival: Box<Arrival>,
        /// The source.
        fetched: Fetched,
    },
    /// The object that is to be promoted was read from the base.
    ReadOther {
        /// Which question it was.
        ticket: u64,
        /// The object.
        fetched: Fetched,
    },
    /// The other pool of a tier answered.
    Answered {
        /// Which question it was.
        ticket: u64,
        /// The answer, or why there is none.
        reply: Result<OsdReply, Errno>,
    },
    /// The connection of that id, by which a client watched objects, is gone.
    WatchersGone(u64),
    /// A PG has a recovery slot now.
    Reserved(PgId),
    /// A slot for a copy that another OSD fills.
    TargetReserved(PgId),
    /// The store has become too full for copies to be filled here.
    TargetTooFull(PgId),
    /// What a peer's store may still take.
    Space {
        /// The peer.
        from: OsdId,
        /// In bytes.
        space_bytes: u64,
    },
    /// The lease table changed for the better.
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
    /// The inbox whose shard is at work on this thread.
    static AT_WORK: Cell<u64> = const { Cell::new(0) };
}

/// See the module's documentation.
pub struct Inbox {
    id: u64,
    contents: Mutex<Contents>,
    notify: Notify,
    failed: AtomicBool,
    on_failure: Box<dyn Fn(&StoreError) + Send + Sync>,
}

/// While it lives, the shard of `Inbox` is at work on this thread.
pub struct AtWork(u64);

impl Drop for AtWork {
    fn drop(&mut self) {
        AT_WORK.set(self.0);
    }
}

impl Inbox {
    /// An empty inbox; `on_failure` hears of a store that stopped.
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

    /// Marks this thread as at work on the inbox's shard.
    pub fn at_work(&self) -> AtWork {
        AtWork(AT_WORK.replace(self.id))
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

    /// Moves up to `max` messages, oldest first, and all completions into the caller's buffers, which must be empty.
    /// Returns whether there was anything.
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

    /// Returns when somebody has posted.
    pub async fn wait(&self) {
        self.notify.notified().await;
    }

    /// Wakes the shard's task, which then looks at its timers.
    pub fn nudge(&self) {
        self.notify.notify_one();
    }

    fn wake(&self, first: bool) {
        if first && AT_WORK.get() != self.id {
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
