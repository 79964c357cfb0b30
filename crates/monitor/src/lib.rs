//! The map authority as a daemon: sessions over the messenger around the pure map logic.
//!
//! One thread owns the map state and the map store. It takes all messages that have arrived, applies them, makes the
//! changes durable in one transaction, then answers and publishes. Messages that arrive during a sync share the next
//! transaction, so an idle authority commits at once and a busy one in batches. Messages hold their share of the
//! messenger's throttle until then, which bounds the queue.
//!
//! If the authority is fenced off or the store fails, the thread and the authority end, because their state may be stale.

mod admin;
mod authority;
mod cluster_log;
pub mod error;
mod input;
pub mod mapstore;
mod persist;
mod sessions;

use crate::mapstore::{LocalStore, MapStore};
use crate::persist::Persistence;
use admin::MonAdmin;
pub use admin::MonMetrics;
use authority::Authority;
pub use error::MonError;
use input::Input;
use nacre_common::auth::{KeyRecord, KeyServer, Keyring, RotatingSecrets, Verifier};
use nacre_common::clock::{Clock, SystemClock};
use nacre_common::config::Config;
use nacre_common::metrics::PerfCounters;
use nacre_crush::CrushMap;
use nacre_mon::logic::{MapState, Now, Tuning};
use nacre_runtime::admin::socket::AdminSocket;
use nacre_runtime::msgr::{self, Conn, Dispatcher, Frame, Messenger, ResetReason};
use nacre_types::ids::{EntityName, OsdId};
use nacre_types::osdmap::OsdMap;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::watch;
use uuid::Uuid;

/// How long connections may continue to write queued data when the authority stops.
const GRACE: Duration = Duration::from_secs(2);

/// Creates a cluster in `data_dir`: an empty map with the options' CRUSH failure domain and full ratios, and the entities
/// of `keyring`. Durable on return. Refuses a directory that contains a cluster.
pub fn mkfs(config: &Config, data_dir: &Path, fsid: Uuid, keyring: &Keyring) -> Result<(), MonError> {
    let store = open_store(data_dir)?;
    let options = config.snapshot();
    let types = CrushMap::new_cluster("osd").map_err(|e| MonError::Invalid(e.to_string()))?;
    let domain = types.type_name(options.mon.osd_crush_chooseleaf_type as i32).unwrap_or("host").to_owned();
    let crush = CrushMap::new_cluster(&domain).map_err(|e| MonError::Invalid(e.to_string()))?;
    let mut map = OsdMap::new(fsid, SystemClock.wall_ns(), crush);
    map.full_ratio = options.mon.mon_osd_full_ratio as f32;
    map.backfillfull_ratio = options.mon.mon_osd_backfillfull_ratio as f32;
    map.nearfull_ratio = options.mon.mon_osd_nearfull_ratio as f32;
    persist::mkfs(&store, &map, keyring).map_err(|error| match error {
        MonError::Fenced => MonError::AlreadyInitialised(data_dir.display().to_string()),
        other => other,
    })
}

/// The id of the cluster in `data_dir`, if there is one.
pub fn stored_fsid(data_dir: &Path) -> Result<Option<Uuid>, MonError> {
    if !data_dir.join(STORE_DIR).exists() {
        return Ok(None);
    }
    let store = open_store(data_dir)?;
    let Some(entry) = store.get(nacre_mon::keys::CLUSTER)? else { return Ok(None) };
    Ok(Some(nacre_types::encoding::decode::<persist::ClusterRecord>(&entry.value)?.fsid))
}

/// Declares that the map store in `data_dir` was restored from an old copy (rule R7): its history continues in a new
/// generation. Also used if the store is refused because it lacks acknowledged changes. The authority must not run. `osds`
/// are the OSDs that the cluster has besides those in the copy, as far as the operator knows: PGs wait until each of them
/// has reported its contents or was declared lost. Returns the generation.
pub fn mint_generation(data_dir: &Path, osds: &[OsdId]) -> Result<u64, MonError> {
    if !data_dir.join(STORE_DIR).is_dir() {
        return Err(MonError::NotInitialised(data_dir.display().to_string()));
    }
    let store = Arc::new(LocalStore::open_allowing_loss(&store_dir(data_dir)?)?);
    let generation = persist::mint_generation(store.clone(), SystemClock.wall_ns(), osds)?;
    store.accept_loss()?;
    Ok(generation)
}

/// The directory of the map store within the data directory.
const STORE_DIR: &str = "store.db";

fn open_store(data_dir: &Path) -> Result<LocalStore, MonError> {
    Ok(LocalStore::open(&store_dir(data_dir)?)?)
}

/// The directory of the map store. Created if it does not exist.
fn store_dir(data_dir: &Path) -> Result<PathBuf, MonError> {
    use std::os::unix::fs::DirBuilderExt;
    // The store contains the keys of all entities.
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o700);
    let dir = data_dir.join(STORE_DIR);
    builder.create(&dir).map_err(|e| MonError::Invalid(format!("{}: {e}", data_dir.display())))?;
    Ok(dir)
}

/// A running map authority. Dropping it stops it; [`MonServer::stop`] does an orderly stop.
pub struct MonServer {
    addr: SocketAddr,
    fsid: Uuid,
    perf: PerfCounters,
    admin_socket: Option<AdminSocket>,
    inputs: Sender<Input>,
    thread: Option<JoinHandle<()>>,
    failure: watch::Receiver<Option<Arc<MonError>>>,
    // Declared last: connections end after the authority has.
    runtime: Option<tokio::runtime::Runtime>,
    messenger: Messenger,
}

impl MonServer {
    /// Opens the cluster in `data_dir` and listens on `listen` (port 0 for any). Returns when it accepts connections.
    pub fn start(config: &Config, data_dir: &Path, listen: SocketAddr) -> Result<MonServer, MonError> {
        Self::start_on(config, Arc::new(open_store(data_dir)?), listen)
    }

    /// Like [`MonServer::start`], on an open map store.
    pub fn start_on(
        config: &Config,
        store: Arc<dyn MapStore>,
        listen: SocketAddr,
    ) -> Result<MonServer, MonError> {
        let name = match config.entity().id.as_str() {
            "" => "a".to_owned(),
            id => id.to_owned(),
        };
        let (persistence, loaded) = Persistence::open(store, &name)?;
        let fsid = loaded.map.fsid;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let now = now(clock.as_ref());
        let keys = Arc::new(EntityKeys::default());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("mon-net")
            .enable_all()
            .build()
            .map_err(|e| MonError::Network(e.to_string()))?;
        let (inputs, received) = channel();
        let door = Arc::new(MonDispatcher { inputs: inputs.clone() });
        let messenger = Messenger::builder(config)
            .lane(runtime.handle().clone(), door)
            .verifier(Verifier::new().with_keys(keys.clone()))
            .build()
            .map_err(|e| MonError::Network(e.to_string()))?;
        let service_keys = match loaded.service_keys {
            Some(keys) => keys,
            None => {
                let ttl = config.snapshot().global.auth_service_ticket_ttl.as_secs().max(1);
                let fresh = RotatingSecrets::generate(now.wall_ns / 1_000_000_000, ttl)
                    .map_err(|e| MonError::Invalid(e.to_string()))?;
                persistence.put_service_keys(&fresh)?;
                fresh
            }
        };
        let mut databases = loaded.databases;
        // Before the port is bound, so that handshakes find every stored key.
        keys.replace(&databases.auth);
        let _inside = runtime.enter();
        let addr = messenger.bind(listen).map_err(|e| MonError::Network(e.to_string()))?;
        databases.mon_addr = Some(addr);
        databases.mon_metadata = nacre_runtime::host::metadata(config);
        let perf = PerfCounters::new(format!("mon.{name}"));
        perf.add_source(msgr::metrics::collector(std::slice::from_ref(&messenger)));
        let admin = MonAdmin::new(config.clone(), perf.clone());
        let state =
            MapState::with_databases(loaded.map, Tuning::from_options(&config.snapshot()), now, databases);
        let (failed, failure) = watch::channel(None);
        let mut authority =
            Authority::new(config.clone(), state, persistence, service_keys, keys, clock, received, admin);
        let thread = std::thread::Builder::new()
            .name("mon-map".into())
            .spawn(move || {
                if let Err(error) = authority.run() {
                    tracing::error!(%error, "the map authority stops");
                    failed.send_replace(Some(Arc::new(error)));
                }
            })
            .map_err(|e| MonError::Invalid(e.to_string()))?;
        let admin_socket = AdminSocket::start(config, admin::socket_handler(&inputs));
        // From here on, options that apply at start keep their values.
        config.freeze_startup_options();
        tracing::info!(%addr, %fsid, "map authority serves");
        Ok(MonServer {
            addr,
            fsid,
            perf,
            admin_socket,
            inputs,
            thread: Some(thread),
            failure,
            runtime: Some(runtime),
            messenger,
        })
    }

    /// The address that it listens on.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The id of the cluster.
    pub fn fsid(&self) -> Uuid {
        self.fsid
    }

    /// Its counters.
    pub fn perf(&self) -> PerfCounters {
        self.perf.clone()
    }

    /// A handle to request the cluster's metrics, as Ceph's manager exposes them.
    pub fn metrics(&self) -> MonMetrics {
        MonMetrics(self.inputs.clone())
    }

    /// Changes to an error when the authority had to end: fenced off, or its store failed. The process should end too.
    pub fn failure(&self) -> watch::Receiver<Option<Arc<MonError>>> {
        self.failure.clone()
    }

    /// Stops after everything accepted is durable and answered.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.admin_socket = None;
        self.perf.remove_sources();
        // The receiver is gone if the authority has ended on its own.
        let _ = self.inputs.send(Input::Stop);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the map authority's thread panicked");
        }
        if let Some(runtime) = self.runtime.take() {
            let messenger = self.messenger.clone();
            let (done, wait) = channel();
            runtime.spawn(async move {
                messenger.shutdown(GRACE).await;
                // The receiver is gone if the timeout has passed.
                let _ = done.send(());
            });
            let _ = wait.recv_timeout(GRACE * 2);
            runtime.shutdown_background();
        }
    }
}

impl Drop for MonServer {
    fn drop(&mut self) {
        self.end();
    }
}

/// The current time.
fn now(clock: &dyn Clock) -> Now {
    Now { mono_ms: clock.monotonic().as_millis() as u64, wall_ns: clock.wall_ns() }
}

/// Forwards all connection events to the authority's thread.
struct MonDispatcher {
    inputs: Sender<Input>,
}

impl Dispatcher for MonDispatcher {
    fn on_message(&self, conn: &Conn, frame: Frame) {
        // The authority has ended, so the connection will end too.
        let _ = self.inputs.send(Input::Message(conn.clone(), frame));
    }

    fn on_reset(&self, conn: &Conn, _reset: ResetReason) {
        let _ = self.inputs.send(Input::Disconnected(conn.id()));
    }
}

/// The entities' keys, for lookups by handshakes.
#[derive(Default)]
struct EntityKeys {
    records: RwLock<BTreeMap<EntityName, KeyRecord>>,
}

impl EntityKeys {
    fn replace(&self, auth: &nacre_mon::auth_db::AuthDb) {
        let records = auth.iter().map(|(entity, record)| (entity.clone(), record.clone())).collect();
        *self.records.write() = records;
    }
}

impl KeyServer for EntityKeys {
    fn lookup(&self, entity: &EntityName) -> Option<KeyRecord> {
        self.records.read().get(entity).cloned()
    }
}
