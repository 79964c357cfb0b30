//! Copies of other objects for copy-from: read by the OSD itself, as a client of the cluster that it belongs to.
//!
//! A copy is read in pieces of at most [`PIECE_BYTES`], all of the same version, before its request is ordered; what is
//! in memory is bounded over all copies of the OSD. The session is made with the first copy.

use nacre_client::{Cluster, IoCtx, ReadOp};
use nacre_common::config::Config;
use nacre_exec::Copied;
use nacre_shard::copy::Fetched;
use nacre_types::encoding::decode;
use nacre_types::errno::Errno;
use nacre_types::object::{ObjectId, SNAP_HEAD};
use nacre_types::op::{CopyCursor, CopyGetReply, Op, OsdOp, copy_from_flag, request_flag};
use std::sync::Arc;
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore};

/// Data and omap of one piece (Ceph's `osd_copyfrom_max_chunk`).
const PIECE_BYTES: u64 = 8 << 20;
/// Copies that are read at a time: each may hold one piece for which no room was asked.
const MAX_COPIES: usize = 16;
/// Room for what follows the first pieces, in KiB.
const ROOM_KIB: u32 = 256 << 10;
/// How often a copy starts over because its source changed, where no version was asked for.
const MAX_RESTARTS: usize = 4;

/// See the module's documentation.
pub(crate) struct Copier {
    config: Config,
    cluster: OnceCell<Cluster>,
    copies: Arc<Semaphore>,
    room: Arc<Semaphore>,
}

/// What is to be copied: the fields of [`Op::CopyFrom`].
struct Wanted<'a> {
    source: &'a ObjectId,
    version: u64,
    flags: u32,
    max_bytes: u64,
}

impl Copier {
    /// For an OSD of this configuration.
    pub(crate) fn new(config: Config) -> Copier {
        let copies = Arc::new(Semaphore::new(MAX_COPIES));
        Copier { config, cluster: OnceCell::new(), copies, room: Arc::new(Semaphore::new(ROOM_KIB as usize)) }
    }

    /// Ends the session, if there is one.
    pub(crate) fn close(&self) {
        self.copies.close();
        if let Some(cluster) = self.cluster.get() {
            cluster.shut_down();
        }
    }

    /// Reads the sources of the copy-from ops among `ops`, each of at most `max_bytes`.
    pub(crate) async fn fetch(&self, ops: &[OsdOp], max_bytes: u64) -> Fetched {
        let mut fetched = Fetched::default();
        for op in ops {
            let Op::CopyFrom { source, version, flags, .. } = &op.op else { continue };
            let wanted = Wanted { source, version: *version, flags: *flags, max_bytes };
            let mut restarts = 0;
            let (copied, room) = loop {
                let mut room = None;
                let copied = self.read(&wanted, &mut room).await;
                let changed = matches!(copied, Err(Errno::ERANGE | Errno::EOVERFLOW));
                if !changed || *version != 0 || restarts == MAX_RESTARTS {
                    break (copied, room);
                }
                restarts += 1;
            };
            fetched.copies.push(copied);
            fetched.rooms.extend(room);
        }
        fetched
    }

    async fn read(
        &self,
        wanted: &Wanted<'_>,
        room: &mut Option<OwnedSemaphorePermit>,
    ) -> Result<Copied, Errno> {
        let _turn = self.copies.acquire().await.map_err(|_| Errno::ESHUTDOWN)?;
        let io = self.open(wanted).await?;
        let mut version = wanted.version;
        let mut copied = Copied::default();
        let mut cursor = CopyCursor::default();
        while !cursor.complete {
            let mut read = ReadOp::new();
            if version != 0 {
                read.assert_version(version);
            }
            let at = read.len();
            read.push(Op::CopyGet { cursor, max_bytes: PIECE_BYTES });
            let reply = io.operate_read(wanted.source.name(), read).await;
            let output = reply.and_then(|reply| reply.success()?.output(at)).map_err(|e| e.errno())?;
            let piece: CopyGetReply = decode(&output).map_err(|error| {
                tracing::error!(source = %wanted.source, %error, "a piece of a copy is corrupt");
                Errno::EIO
            })?;
            if piece.size > wanted.max_bytes {
                return Err(Errno::EFBIG);
            }
            version = piece.user_version;
            cursor = piece.cursor.clone();
            let left = piece.size.saturating_sub(cursor.offset);
            if left > 0 && room.is_none() {
                let kib = u32::try_from(left.div_ceil(1024)).unwrap_or(ROOM_KIB).min(ROOM_KIB);
                let acquired = self.room.clone().acquire_many_owned(kib).await;
                *room = Some(acquired.map_err(|_| Errno::ESHUTDOWN)?);
            }
            copied.add(piece, wanted.max_bytes)?;
        }
        Ok(copied)
    }

    async fn open(&self, wanted: &Wanted<'_>) -> Result<IoCtx, Errno> {
        let connect = || async { nacre_client::connect(&self.config).await };
        let cluster = self.cluster.get_or_try_init(connect).await.map_err(|error| {
            tracing::error!(%error, "no session to copy objects with");
            error.errno()
        })?;
        let source = wanted.source;
        if source.snap() != SNAP_HEAD {
            return Err(Errno::EINVAL);
        }
        let io = cluster.open_pool_id(source.pool()).await.map_err(|error| error.errno())?;
        let io = io.with_namespace(source.namespace()).with_locator(source.locator());
        let ignore = wanted.flags & copy_from_flag::IGNORE_OVERLAY != 0;
        Ok(if ignore { io.with_flags(request_flag::IGNORE_OVERLAY) } else { io })
    }
}
