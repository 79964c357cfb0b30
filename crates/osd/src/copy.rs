//! Copies of other objects for copy-from: read by the OSD itself, as a client of the cluster that it belongs to.
//!
//! A copy is read in pieces of at most [`PIECE_BYTES`], all of the same version, before its request is ordered; what is
//! in memory is bounded over all copies of the OSD. The session is made with the first copy.

use nacre_client::{Cluster, IoCtx, ReadOp};
use nacre_common::config::Config;
use nacre_exec::Copied;
use nacre_shard::copy::{COPIES_BYTES, CopyReader, Fetched};
use nacre_types::errno::Errno;
use nacre_types::op::{OsdOp, copy_from_flag, request_flag};
use std::sync::Arc;
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore};

/// Data and omap of one piece (Ceph's `osd_copyfrom_max_chunk`).
const PIECE_BYTES: u64 = 8 << 20;
/// Pieces that are read at a time. A copy holds one for which no room was asked; how many copies there are is bounded by the
/// shards.
const MAX_READS: usize = 16;
/// Room for what follows the first pieces, in KiB.
const ROOM_KIB: u32 = (COPIES_BYTES >> 10) as u32;

/// See the module's documentation.
pub(crate) struct Copier {
    config: Config,
    cluster: OnceCell<Cluster>,
    reads: Arc<Semaphore>,
    room: Arc<Semaphore>,
}

impl Copier {
    /// For an OSD of this configuration.
    pub(crate) fn new(config: Config) -> Copier {
        let reads = Arc::new(Semaphore::new(MAX_READS));
        Copier { config, cluster: OnceCell::new(), reads, room: Arc::new(Semaphore::new(ROOM_KIB as usize)) }
    }

    /// Ends the session, if there is one.
    pub(crate) fn close(&self) {
        self.reads.close();
        self.room.close();
        if let Some(cluster) = self.cluster.get() {
            cluster.shut_down();
        }
    }

    /// Reads the source of the copy-from op among `ops`, of at most `max_bytes`.
    pub(crate) async fn fetch(&self, ops: &[OsdOp], max_bytes: u64) -> Fetched {
        let Some(mut reader) = ops.iter().find_map(|op| CopyReader::new(&op.op, max_bytes, PIECE_BYTES))
        else {
            return Fetched { copy: Err(Errno::EINVAL), share: None };
        };
        let mut share = None;
        let copy = self.read(&mut reader, &mut share).await;
        Fetched { copy: copy.map(Box::new), share }
    }

    async fn read(
        &self,
        reader: &mut CopyReader,
        room: &mut Option<OwnedSemaphorePermit>,
    ) -> Result<Copied, Errno> {
        let io = self.open(reader).await?;
        loop {
            let mut read = ReadOp::new();
            for op in reader.request() {
                read.push(op);
            }
            let last = read.len() - 1;
            // Not held while the copy waits for room: who has room must be able to read on.
            let turn = self.reads.acquire().await.map_err(|_| Errno::ESHUTDOWN)?;
            let reply = io.operate_read(reader.source()?.name(), read).await;
            drop(turn);
            let piece = reply.and_then(|reply| reply.success()?.output(last)).map_err(|e| e.errno());
            if let Some(copied) = reader.on_piece(piece) {
                return copied;
            }
            let left = reader.left();
            if left > 0 && room.is_none() {
                let kib = u32::try_from(left.div_ceil(1024)).unwrap_or(ROOM_KIB).min(ROOM_KIB);
                let acquired = self.room.clone().acquire_many_owned(kib).await;
                *room = Some(acquired.map_err(|_| Errno::ESHUTDOWN)?);
            }
        }
    }

    async fn open(&self, reader: &CopyReader) -> Result<IoCtx, Errno> {
        let source = reader.source()?;
        let connect = || async { nacre_client::connect(&self.config).await };
        let cluster = self.cluster.get_or_try_init(connect).await.map_err(|error| {
            tracing::error!(%error, "no session to copy objects with");
            error.errno()
        })?;
        let io = cluster.open_pool_id(source.pool()).await.map_err(|error| error.errno())?;
        let io = io.with_namespace(source.namespace()).with_locator(source.locator());
        let ignore = reader.flags & copy_from_flag::IGNORE_OVERLAY != 0;
        Ok(if ignore { io.with_flags(request_flag::IGNORE_OVERLAY) } else { io })
    }
}
