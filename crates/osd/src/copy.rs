//! Requests of an OSD, as a client of its own cluster, to other PGs: reads of the sources of copies, and requests to the other pool of a
//! cache tier.
//!
//! A copy is read in pieces of at most [`PIECE_BYTES`], all of the same version, before its request is ordered. The memory for all copies
//! of the OSD is bounded. Each shard has its own session, on its own thread, created at its first request.

use nacre_client::engine::ObjectRequest;
use nacre_client::{Cluster, NetworkThread, OpReply};
use nacre_common::config::Config;
use nacre_exec::CopiedObject;
use nacre_shard::copy::{CopyReader, FetchedSource, MAX_COPY_BYTES, MAX_TIER_COPY_BYTES};
use nacre_types::errno::Errno;
use nacre_types::msg::{OsdReply, OsdRequest};
use nacre_types::object::{ObjectId, SNAP_HEAD};
use nacre_types::op::{OsdOp, copy_from_flag, request_flag};
use nacre_types::tier::TierSender;
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore, oneshot};

/// Maximum data and omap bytes of one piece (Ceph's `osd_copyfrom_max_chunk`).
const PIECE_BYTES: u64 = 8 << 20;
/// Maximum number of pieces read at a time. A copy holds one piece for which it has not acquired room; the shards bound the number of
/// copies.
const MAX_READS: usize = 16;

/// See the module's documentation.
pub(crate) struct InternalClient {
    config: Config,
    /// Limits of copies for clients.
    copies: CopyLane,
    /// Limits of promotions and flushes, which sources of copies wait for.
    tiers: CopyLane,
    /// One for each shard.
    sessions: Vec<Session>,
}

/// Limits of copies while they are read.
struct CopyLane {
    /// Pieces read at a time.
    reads: Semaphore,
    /// Room for the pieces after the first one, in KiB.
    room: Arc<Semaphore>,
    room_kib: u32,
}

impl CopyLane {
    fn new(room_bytes: u64) -> CopyLane {
        let room_kib = u32::try_from(room_bytes >> 10).unwrap_or(u32::MAX);
        CopyLane {
            reads: Semaphore::new(MAX_READS),
            room: Arc::new(Semaphore::new(room_kib as usize)),
            room_kib,
        }
    }

    fn close(&self) {
        self.reads.close();
        self.room.close();
    }
}

/// A shard's session with the cluster, on the shard's own thread.
#[derive(Default)]
struct Session {
    cluster: OnceCell<Cluster>,
    /// Requests that arrive while the session is being created, in order. Shards bound their number.
    waiting: Mutex<Option<Vec<Waiting>>>,
}

/// A request and the callback for its reply.
type Waiting = (Box<OsdRequest>, OnAnswer);

/// Called with the reply to a request, on the shard's thread.
pub(crate) type OnAnswer = Box<dyn FnOnce(Result<OsdReply, Errno>) + Send>;

impl InternalClient {
    /// `shards` is the number of the OSD's shards.
    pub(crate) fn new(config: Config, shards: usize) -> InternalClient {
        InternalClient {
            config,
            copies: CopyLane::new(MAX_COPY_BYTES),
            tiers: CopyLane::new(MAX_TIER_COPY_BYTES),
            sessions: (0..shards).map(|_| Session::default()).collect(),
        }
    }

    /// Ends the sessions.
    pub(crate) fn close(&self) {
        self.copies.close();
        self.tiers.close();
        for cluster in self.sessions.iter().filter_map(|session| session.cluster.get()) {
            cluster.shut_down();
        }
    }

    /// Reads the source of the request's copy-from op, of at most `max_bytes`. Must be called on the shard's thread.
    pub(crate) async fn fetch(&self, shard: usize, request: &OsdRequest, max_bytes: u64) -> FetchedSource {
        let Some(mut reader) =
            request.ops.iter().find_map(|op| CopyReader::new(&op.op, max_bytes, PIECE_BYTES))
        else {
            return FetchedSource { copy: Err(Errno::EINVAL), share: None };
        };
        let mut share = None;
        let copy = self.read(shard, request, &mut reader, &mut share).await;
        FetchedSource { copy: copy.map(Box::new), share }
    }

    async fn read(
        &self,
        shard: usize,
        request: &OsdRequest,
        reader: &mut CopyReader,
        room: &mut Option<OwnedSemaphorePermit>,
    ) -> Result<CopiedObject, Errno> {
        let cluster = self.cluster(shard).await?;
        let source = reader.source()?.clone();
        let (mut flags, mut tier) = (0, None);
        if reader.flags & copy_from_flag::IGNORE_OVERLAY != 0 {
            flags |= request_flag::IGNORE_OVERLAY;
        }
        let mut lane = &self.copies;
        // The source is the same object in the other pool of a tier.
        if reader.flags & copy_from_flag::IGNORE_CACHE != 0 && source.name() == request.object.name() {
            flags |= request_flag::IGNORE_CACHE;
            tier.clone_from(&request.tier);
            if request.is_tier_request() {
                lane = &self.tiers;
            }
        }
        loop {
            let ops: Vec<OsdOp> = reader.request().into_iter().map(OsdOp::from).collect();
            let last = ops.len() - 1;
            let read = object_request(source.clone(), ops, flags, None, tier.clone());
            // Not held while the copy waits for room: copies that have room must be able to read on.
            let turn = lane.reads.acquire().await.map_err(|_| Errno::ESHUTDOWN)?;
            let (answered, reply) = oneshot::channel();
            // Submitted separately from the session's other requests, which may wait for this one.
            cluster.engine().submit(read, Box::new(move |reply| _ = answered.send(reply)));
            let reply = reply.await.map_err(|_| Errno::ESHUTDOWN)?;
            drop(turn);
            let piece = reply.and_then(|reply| reply.success()?.output(last)).map_err(|e| e.errno());
            if let Some(copied) = reader.on_piece(piece) {
                return copied;
            }
            let left = reader.remaining_bytes();
            if left > 0 && room.is_none() {
                let kib = u32::try_from(left.div_ceil(1024)).unwrap_or(lane.room_kib).min(lane.room_kib);
                let acquired = lane.room.clone().acquire_many_owned(kib).await;
                *room = Some(acquired.map_err(|_| Errno::ESHUTDOWN)?);
            }
        }
    }

    /// Sends a request of a shard to another pool. Requests keep the order of the calls, which are made on the shard's thread. `done` gets
    /// the reply.
    pub(crate) fn send_request(self: &Arc<Self>, shard: usize, request: Box<OsdRequest>, done: OnAnswer) {
        let session = &self.sessions[shard];
        let mut waiting = session.waiting.lock();
        match (&mut *waiting, session.cluster.get()) {
            (Some(waiting), _) => waiting.push((request, done)),
            (None, Some(cluster)) => {
                drop(waiting);
                send(cluster, *request, done);
            }
            (None, None) => {
                *waiting = Some(vec![(request, done)]);
                let copier = Arc::clone(self);
                tokio::spawn(async move { copier.send_waiting(shard).await });
            }
        }
    }

    /// Creates a shard's session and sends the waiting requests.
    async fn send_waiting(&self, shard: usize) {
        let cluster = self.cluster(shard).await;
        let waiting = self.sessions[shard].waiting.lock().take();
        // All of this runs on the shard's thread, so that no other request is sent in between.
        for (request, done) in waiting.into_iter().flatten() {
            match &cluster {
                Ok(cluster) => send(cluster, *request, done),
                Err(errno) => done(Err(*errno)),
            }
        }
    }

    /// Returns the session of a shard. Must be called on the shard's thread.
    async fn cluster(&self, shard: usize) -> Result<&Cluster, Errno> {
        let connect =
            || async { nacre_client::connect_on(&NetworkThread::of_this_thread(), &self.config).await };
        self.sessions[shard].cluster.get_or_try_init(connect).await.map_err(|error| {
            tracing::error!(%error, "no session for requests to other pools");
            error.errno()
        })
    }
}

fn send(cluster: &Cluster, request: OsdRequest, done: OnAnswer) {
    let OsdRequest { reqid, attempt, epoch, object, ops, flags, mtime_ns, tier, snap, snap_context, .. } =
        request;
    let mtime_ns = (mtime_ns != 0).then_some(mtime_ns);
    let sent = ObjectRequest { snap, snap_context, ..object_request(object, ops, flags, mtime_ns, tier) };
    let on_reply = move |reply: nacre_client::Result<OpReply>| {
        let answer = |OpReply { result, version, ops }| OsdReply {
            reqid,
            attempt,
            epoch,
            result,
            user_version: version,
            ops,
        };
        done(reply.map(answer).map_err(|error| error.errno()));
    };
    cluster.engine().submit(sent, Box::new(on_reply));
}

fn object_request(
    object: ObjectId,
    ops: Vec<OsdOp>,
    flags: u32,
    mtime_ns: Option<u64>,
    tier: Option<Box<TierSender>>,
) -> ObjectRequest {
    ObjectRequest { object, ops, flags, snap: SNAP_HEAD, snap_context: None, mtime_ns, tier }
}
