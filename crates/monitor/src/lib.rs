//! The map authority as a daemon: sessions over the messenger around the pure map logic.
//!
//! One thread owns the map state ([`authority`]), another one the map store ([`store_thread`]). The first takes all messages
//! that have arrived, applies them and has the changes made durable in one commit, then answers and publishes. Messages that
//! arrive during a commit share the next one, so an idle authority commits at once and a busy one in batches. Requests hold
//! their share of the messenger's throttle until then, which bounds the queue.
//!
//! The store is embedded ([`LocalStore`]) or etcd ([`EtcdStore`]), as `mon_map_store` says. If another authority takes over the
//! store, or the embedded store fails, the threads and the authority end, because their state may be stale.

mod admin;
mod authority;
mod client_ids;
mod cluster_log;
mod deferred;
pub mod error;
mod etcd;
mod input;
mod local;
mod seen_map;
mod sessions;
mod store_thread;
mod stores;
#[cfg(test)]
mod tests;
mod watermark;

use admin::MonAdmin;
pub use admin::MonMetrics;
use authority::Authority;
pub use error::MonError;
pub use etcd::{EtcdAccess, EtcdStore, EtcdUrl};
use input::Input;
pub use local::LocalStore;
use nacre_common::auth::{KeyRecord, KeyServer, RotatingSecrets, Verifier};
use nacre_common::clock::{Clock, SystemClock};
use nacre_common::config::Config;
use nacre_common::metrics::PerfCounters;
use nacre_mapstore::MapStore;
use nacre_mon::logic::{MapState, Now, Tuning};
use nacre_runtime::admin::socket::AdminSocket;
use nacre_runtime::msgr::{self, Conn, Dispatcher, Frame, Messenger, ResetReason};
use nacre_types::ids::{EntityKind, EntityName};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use store_thread::{OpenedStore, StoreThread};
pub use stores::{
    abort_migration, export_map_store, import_map_store, migrate_map_store, mint_generation, mkfs,
    rebuild_map_store, stored_fsid,
};
use tokio::sync::watch;
use uuid::Uuid;

/// How long connections may continue to write queued data when the authority stops.
const GRACE: Duration = Duration::from_secs(2);

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
    /// Opens the cluster in the map store, whose directory is in `data_dir` if it is embedded, and listens on `listen` (port 0 for any). Returns when it accepts connections.
    pub fn start(config: &Config, data_dir: &Path, listen: SocketAddr) -> Result<MonServer, MonError> {
        Self::start_on(config, data_dir, stores::open(config, data_dir)?, listen)
    }

    /// Like [`MonServer::start`], on an open map store.
    pub fn start_on(
        config: &Config,
        data_dir: &Path,
        store: Arc<dyn MapStore>,
        listen: SocketAddr,
    ) -> Result<MonServer, MonError> {
        let name = match config.entity().id.as_str() {
            "" => "a".to_owned(),
            id => id.to_owned(),
        };
        // Before the store is taken over: a second authority on the same address must not end the first one.
        drop(std::net::TcpListener::bind(listen).map_err(|e| MonError::Network(format!("{listen}: {e}")))?);
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let now = now(clock.as_ref());
        let ttl = config.snapshot().global.auth_service_ticket_ttl.as_secs().max(1);
        let new_keys = move || {
            RotatingSecrets::generate(now.wall_ns / 1_000_000_000, ttl)
                .map_err(|e| MonError::Invalid(e.to_string()))
        };
        let (inputs, received) = channel();
        let (store_thread, opened) =
            StoreThread::start(store.clone(), data_dir, name.clone(), new_keys, inputs.clone())?;
        let OpenedStore { map, mut databases, initial, seen } = opened;
        let fsid = map.fsid;
        let keys = Arc::new(EntityKeys::default());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("mon-net")
            .enable_all()
            .build()
            .map_err(|e| MonError::Network(e.to_string()))?;
        let door = Arc::new(MonDispatcher { inputs: inputs.clone() });
        let messenger = Messenger::builder(config)
            .lane(runtime.handle().clone(), door)
            .verifier(Verifier::new().with_keys(keys.clone()))
            .build()
            .map_err(|e| MonError::Network(e.to_string()))?;
        // Before the port is bound, so that handshakes find every stored key.
        keys.replace(&databases.auth);
        let _inside = runtime.enter();
        let addr = messenger.bind(listen).map_err(|e| MonError::Network(e.to_string()))?;
        databases.mon_addr = Some(addr);
        databases.mon_metadata = nacre_runtime::host::metadata(config);
        let perf = PerfCounters::new(format!("mon.{name}"));
        perf.add_source(msgr::metrics::collector(std::slice::from_ref(&messenger)));
        let admin = MonAdmin::new(config.clone(), perf.clone());
        let mut state =
            MapState::with_databases(map, Tuning::from_options(&config.snapshot()), now, databases);
        if !state.check_history(now, &EntityName::new(EntityKind::Mon, name.clone()), seen) {
            tracing::error!("the map store was restored from an old copy: nothing is committed");
        }
        let (failed, failure) = watch::channel(None);
        let mut authority =
            Authority::new(config.clone(), state, store, store_thread, initial, keys, clock, received, admin);
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
