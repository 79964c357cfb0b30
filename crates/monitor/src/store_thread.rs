//! The thread that writes to the map store, so that the authority goes on while a transaction is on its way.
//!
//! Requests are executed in order. The authority sends one of each kind at a time, so the queue is bounded.

use crate::error::MonError;
use crate::input::{Input, StoreReply};
use crate::seen_map::SeenMapFile;
use nacre_common::auth::RotatingSecrets;
use nacre_mapstore::{IncrementalCache, LoadedState, MapStore, PersistError, Persistence};
use nacre_mon::logic::{ClusterLogEntry, Databases, Proposal};
use nacre_types::ids::Epoch;
use nacre_types::osdmap::{MapVersion, OsdMap};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::runtime::Builder;
use tokio::sync::{mpsc, oneshot};

/// Interval of calls of [`MapStore::maintain`].
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(1);

/// What the authority asks for.
pub(super) enum StoreRequest {
    /// To make a proposal and log lines durable.
    Commit(Box<Proposal>, Vec<ClusterLogEntry>),
    /// To write a full map, if one is given, and to delete what is obsolete.
    Trim {
        /// The map.
        full: Option<Box<OsdMap>>,
        /// The first log line that is kept.
        log_from: u64,
        /// The newest map, which is recorded outside of the store.
        newest: MapVersion,
    },
    /// To store new service keys.
    PutServiceKeys(RotatingSecrets),
    /// To reserve client ids.
    ReserveClientIds,
}

/// What a store holds when an authority has taken it over.
pub(super) struct OpenedStore {
    pub(super) map: OsdMap,
    pub(super) databases: Databases,
    pub(super) initial: InitialState,
    /// The newest map that this monitor has recorded outside of the store.
    pub(super) seen: MapVersion,
}

/// What the authority begins with besides the state of the map.
pub(super) struct InitialState {
    /// The stored service keys, or new ones.
    pub(super) service_keys: RotatingSecrets,
    /// Client ids that were never assigned before.
    pub(super) client_ids: Range<u64>,
    pub(super) incrementals: IncrementalCache,
    /// The epoch of the newest full map.
    pub(super) last_full: Epoch,
}

/// Tells the authority when the thread ends, even by a panic.
struct EndGuard(Sender<Input>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        let text = "the thread of the map store has ended".to_owned();
        // The authority may have ended first.
        let _ = self.0.send(Input::Store(StoreReply::Failed(PersistError::Invalid(text))));
    }
}

/// The running thread. Dropping it ends it, without waiting for an unavailable store.
pub(super) struct StoreThread {
    requests: Option<mpsc::UnboundedSender<StoreRequest>>,
    cancel: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl StoreThread {
    /// Starts the thread, which takes over the store and reads it. `new_keys` makes service keys for a store without any.
    pub(super) fn start(
        store: Arc<dyn MapStore>,
        data_dir: &Path,
        mon_name: String,
        new_keys: impl FnOnce() -> Result<RotatingSecrets, MonError> + Send + 'static,
        inputs: Sender<Input>,
    ) -> Result<(StoreThread, OpenedStore), MonError> {
        let (requests, mut received) = mpsc::unbounded_channel();
        let (cancel, cancelled) = oneshot::channel::<()>();
        let (opened, when_opened) = channel();
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| MonError::Invalid(format!("map store: {e}")))?;
        let ended = EndGuard(inputs.clone());
        let data_dir = data_dir.to_owned();
        let serve = async move {
            let (mut persistence, mut seen_map) =
                match open(store.clone(), &data_dir, &mon_name, new_keys).await {
                    Ok((persistence, seen_map, contents)) => {
                        // The receiver is gone if the start was given up.
                        let _ = opened.send(Ok(contents));
                        (persistence, seen_map)
                    }
                    Err(error) => {
                        let _ = opened.send(Err(error));
                        return;
                    }
                };
            let ownership = persistence.ownership();
            let maintenance = async {
                while ownership.is_kept().await {
                    store.maintain().await;
                    tokio::time::sleep(MAINTENANCE_INTERVAL).await;
                }
                // There is no receiver if the authority has ended on its own.
                let _ = inputs.send(Input::Store(StoreReply::Failed(PersistError::Fenced)));
            };
            let requests = async {
                while let Some(request) = received.recv().await {
                    let reply = execute(&mut persistence, &mut seen_map, request)
                        .await
                        .unwrap_or_else(StoreReply::Failed);
                    let is_end = matches!(reply, StoreReply::Failed(_));
                    if inputs.send(Input::Store(reply)).is_err() || is_end {
                        break;
                    }
                }
            };
            tokio::select! {
                () = requests => {}
                () = maintenance => {}
            }
        };
        let thread = std::thread::Builder::new()
            .name("mon-store".into())
            .spawn(move || {
                let _ended = ended;
                runtime.block_on(async {
                    tokio::select! {
                        biased;
                        _ = cancelled => {}
                        () = serve => {}
                    }
                });
                // A name lookup may hang.
                runtime.shutdown_background();
            })
            .map_err(|e| MonError::Invalid(format!("map store: {e}")))?;
        let started = StoreThread { requests: Some(requests), cancel: Some(cancel), thread: Some(thread) };
        let contents =
            when_opened.recv().map_err(|_| MonError::Invalid("the map store's thread ended".into()))?;
        Ok((started, contents?))
    }

    /// Queues a request. Its reply comes as an input of the authority.
    pub(super) fn send(&self, request: StoreRequest) {
        if let Some(requests) = &self.requests {
            // A thread that has ended has sent its failure.
            let _ = requests.send(request);
        }
    }
}

impl Drop for StoreThread {
    fn drop(&mut self) {
        self.requests = None;
        // The thread ends at its next wait, even if the store does not answer.
        drop(self.cancel.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the map store's thread panicked");
        }
    }
}

async fn open(
    store: Arc<dyn MapStore>,
    data_dir: &Path,
    mon_name: &str,
    new_keys: impl FnOnce() -> Result<RotatingSecrets, MonError>,
) -> Result<(Persistence, SeenMapFile, OpenedStore), MonError> {
    let (mut persistence, loaded) = Persistence::open(store, mon_name).await?;
    let LoadedState { map, databases, service_keys, incrementals } = loaded;
    let seen_map = SeenMapFile::open(data_dir, map.fsid)?;
    // A store that was restored from an old copy assigns nothing: it may have been assigned before.
    let is_rolled_back = !databases.histories.contains(&map, seen_map.newest());
    let service_keys = match service_keys {
        Some(keys) => keys,
        None if is_rolled_back => new_keys()?,
        None => {
            let keys = new_keys()?;
            persistence.put_service_keys(&keys).await?;
            keys
        }
    };
    let client_ids = if is_rolled_back { 0..0 } else { persistence.reserve_client_ids().await? };
    let last_full = persistence.last_full();
    let initial = InitialState { service_keys, client_ids, incrementals, last_full };
    let seen = seen_map.newest();
    Ok((persistence, seen_map, OpenedStore { map, databases, initial, seen }))
}

async fn execute(
    persistence: &mut Persistence,
    seen_map: &mut SeenMapFile,
    request: StoreRequest,
) -> Result<StoreReply, PersistError> {
    Ok(match request {
        StoreRequest::Commit(proposal, log) => {
            let incremental = persistence.commit(&proposal, &log).await?;
            StoreReply::Committed(proposal, log, incremental)
        }
        StoreRequest::Trim { full, log_from, newest } => {
            if let Err(error) = seen_map.write(newest) {
                tracing::warn!(%error, "the newest map can't be recorded in the monitor's data directory");
            }
            persistence.trim(full.as_deref(), log_from).await?;
            StoreReply::Trimmed
        }
        StoreRequest::PutServiceKeys(keys) => {
            persistence.put_service_keys(&keys).await?;
            StoreReply::ServiceKeysStored(keys)
        }
        StoreRequest::ReserveClientIds => {
            StoreReply::ClientIdsReserved(persistence.reserve_client_ids().await?)
        }
    })
}
