//! The inbox of a shard: messages of other threads and the store's completions in one place, with one wake per batch.
//!
//! The shard's own thread posts here too (a store that commits at once calls back from within its shard). Nothing is woken
//! then, because the shard checks its inbox before it rests, and wakes its task if it leaves messages there.

use crate::copy::FetchedSource;
use crate::session::IncomingRequest;
use crate::tracker::TrackerLimits;
use nacre_common::sync::atomic::{AtomicBool, Ordering};
use nacre_common::sync::{Mutex, Notify, thread_local};
use nacre_common::throttle::Permit;
use nacre_objectstore::{CommitSink, StoreError};
use nacre_pg::PgEnvelope;
use nacre_types::errno::Errno;
use nacre_types::id_map::IdMap;
use nacre_types::ids::{OsdId, PgId};
use nacre_types::msg::{OsdReply, PgCasReply};
use nacre_types::osdmap::OsdMap;
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// The up set of every PG.
pub type PgUpSets = Arc<IdMap<PgId, Vec<OsdId>>>;

/// A message to a shard.
pub enum ShardMessage {
    /// A newer map.
    Map {
        /// The map.
        map: Arc<OsdMap>,
        /// The up set of every PG in it.
        up: PgUpSets,
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
        CURRENT_INBOX.with(|current| current.set(self.0));
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
        TurnGuard(CURRENT_INBOX.with(|current| current.replace(self.id)))
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
        if first && CURRENT_INBOX.with(Cell::get) != self.id {
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

#[cfg(all(test, shuttle))]
mod interleavings {
    use super::*;
    use nacre_common::sync::thread;

    /// The shard takes one message at a time and posts one itself, as a store that commits at once does. A wake that is lost
    /// ends as a deadlock.
    #[test]
    fn a_shard_that_waits_is_woken_by_the_first_message_and_the_first_completion() {
        shuttle::check_random(
            || {
                let inbox = Arc::new(Inbox::new(|_| {}));
                let (poster, store) = (inbox.clone(), inbox.clone());
                let threads = [
                    thread::spawn(move || (0..3).for_each(|_| poster.post(ShardMessage::Leases))),
                    thread::spawn(move || {
                        [vec![1], vec![2, 3]].iter().for_each(|tokens| store.committed(tokens))
                    }),
                ];
                shuttle::future::block_on(async {
                    let (mut messages, mut committed) = (Vec::new(), Vec::new());
                    let (mut seen, mut done) = (0, Vec::new());
                    while seen < 4 || done.len() < 3 {
                        let turn = inbox.enter_turn();
                        while inbox.take(1, &mut messages, &mut committed) {
                            if seen == 0 && !messages.is_empty() {
                                inbox.post(ShardMessage::Leases);
                            }
                            seen += messages.drain(..).count();
                            done.append(&mut committed);
                        }
                        drop(turn);
                        if seen < 4 || done.len() < 3 {
                            inbox.wait().await;
                        }
                    }
                    assert_eq!((seen, done), (4, vec![1, 2, 3]));
                });
                threads.into_iter().for_each(|thread| thread.join().unwrap());
                assert!(inbox.is_empty());
            },
            20_000,
        );
    }
}
