//! An OSD from start to stop: store, threads, messengers.

use crate::clock;
use crate::commands;
use crate::control::{Control, ControlDispatcher};
use crate::dispatch::ShardDispatcher;
use crate::error::OsdError;
use crate::shared::Shared;
use crate::starting::StartupReporter;
use crate::store_kind;
use crate::watchdog;
use crate::worker::RuntimeThread;
use bytes::Bytes;
use nacre_common::auth::{ConfiguredKey, RotatingKeyring, Verifier};
use nacre_common::config::Config;
use nacre_common::metrics::PerfCounters;
use nacre_common::options::Options;
use nacre_runtime::admin::socket::AdminSocket;
use nacre_runtime::msgr::{self, Messenger, Throttle};
use nacre_runtime::signal::ShutdownSignal;
use nacre_shard::control::{self, measure_space};
use nacre_shard::metrics::Gauges;
use nacre_shard::shard::{ShardCell, Turn};
use nacre_shard::shared::RunState;
use nacre_shard::superblock::{OsdRecords, Superblock, read_newest_map};
use nacre_store::{MountReport, ObjectStore, StoreEvents};
use nacre_types::ids::{Epoch, OsdId};
use nacre_types::msg::{DaemonCommand, DaemonCommandReply};
use nacre_types::osdmap::{Member, OsdMap};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// Maximum time for which an idle shard sleeps.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);
/// How long connections may write their queued messages when the OSD stops.
const STOP_GRACE: Duration = Duration::from_millis(500);
/// Creates the store of the OSD that `config` names (`osd.N`), in `osd_data`. Needs `fsid`. Fails if there is a store already, unless
/// `force` permits losing it.
pub fn mkfs(config: &Config, force: bool) -> Result<(), OsdError> {
    let options = config.snapshot();
    let osd = osd_of(config)?;
    let fsid = options.global.fsid.ok_or_else(|| OsdError::Invalid("fsid is not set".into()))?;
    let directory = store_kind::directory_of(&options);
    store_kind::make(&directory, &options, force)?;
    let (store, _) = store_kind::mount(&directory, &options, Arc::new(nacre_store::IgnoreEvents))?;
    let superblock = Superblock {
        fsid,
        osd,
        uuid: options.osd.osd_uuid.unwrap_or_else(Uuid::new_v4),
        epoch: Epoch(0),
        generation: 0,
    };
    superblock.write(&*store)?;
    store.umount()?;
    Ok(())
}

/// What a stopped OSD has recorded about its cluster.
#[derive(Debug)]
pub struct RecordedMap {
    /// The cluster.
    pub fsid: Uuid,
    /// The OSD.
    pub osd: OsdId,
    /// The newest map, at most a minute older than the last one that the OSD received; `None` if it was never up.
    pub map: Option<OsdMap>,
}

/// Reads what the OSD with data in `directory` has recorded about its cluster. Fails if the OSD runs.
pub fn read_recorded_map(config: &Config, directory: &Path) -> Result<RecordedMap, OsdError> {
    let events = Arc::new(nacre_store::IgnoreEvents);
    let (store, _) = store_kind::mount(directory, &config.snapshot(), events)?;
    let records = Superblock::read(&*store).and_then(|found| Ok((found, read_newest_map(&*store)?)));
    store.umount()?;
    let (superblock, map) = records?;
    let Superblock { fsid, osd, .. } = superblock.ok_or(OsdError::NoSuperblock)?;
    Ok(RecordedMap { fsid, osd, map })
}

fn osd_of(config: &Config) -> Result<OsdId, OsdError> {
    let entity = config.entity();
    entity.osd_id().ok_or_else(|| OsdError::Invalid(format!("{entity} is not an OSD")))
}

/// A running OSD. If it is dropped without [`Osd::stop`], it ends as in a crash: nothing is flushed.
pub struct Osd {
    shared: Arc<Shared>,
    control: Arc<Control>,
    messengers: Vec<Messenger>,
    shard_threads: Vec<RuntimeThread>,
    control_thread: RuntimeThread,
    admin_socket: Option<AdminSocket>,
    addr: SocketAddr,
}

impl Osd {
    /// Starts the OSD that `config` names: mounts its store, loads its PGs, listens, and connects to the map authority. Returns when it
    /// listens; the OSD is up when the map says so. A `stop` that is requested while the store is being opened ends a long start with an
    /// error.
    pub async fn start(config: &Config, stop: &ShutdownSignal) -> Result<Osd, OsdError> {
        let (config, stop) = (config.clone(), stop.clone());
        let prepared = tokio::task::spawn_blocking(move || PreparedOsd::new(&config, stop)).await;
        prepared.map_err(|error| OsdError::Invalid(format!("the OSD's start failed: {error}")))??.launch()
    }

    /// The OSD's id.
    pub fn id(&self) -> OsdId {
        self.shared.whoami
    }

    /// The address on which it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Whether the map shows it as up.
    pub fn is_up(&self) -> bool {
        self.control.is_up()
    }

    /// Its counters.
    pub fn perf(&self) -> PerfCounters {
        self.shared.perf.clone()
    }

    /// Returns the reason when the OSD can't continue.
    pub async fn wait_for_failure(&self) -> String {
        let mut state = self.shared.state.subscribe();
        let failed = state.wait_for(|state| matches!(state, RunState::Failed(_))).await;
        match failed.as_deref() {
            Ok(RunState::Failed(reason)) => reason.clone(),
            _ => "the OSD is gone".to_owned(),
        }
    }

    /// Stops in order: notifies the map authority, lets connections finish, flushes and closes the store.
    pub async fn stop(mut self) -> Result<(), OsdError> {
        let failed = matches!(&*self.shared.state.borrow(), RunState::Failed(_));
        if !failed {
            self.control.go_down().await;
        }
        for messenger in &self.messengers {
            messenger.shutdown(STOP_GRACE).await;
        }
        let ended = tokio::task::spawn_blocking(move || {
            self.end_threads();
            if failed {
                return Ok(());
            }
            self.control.save_superblock()?;
            self.shared.store.flush()?;
            self.shared.store.umount()?;
            Ok(())
        });
        ended.await.map_err(|error| OsdError::Invalid(format!("stopping failed: {error}")))?
    }

    /// Executes a command in the JSON of `ceph tell`, with every right. For callers in the same process.
    pub fn command(&self, json: &str) -> DaemonCommandReply {
        let command = DaemonCommand { tid: 0, cmd: json.to_owned(), input: Bytes::new() };
        commands::run(&self.shared, &self.control.cells, &command, true)
    }

    fn end_threads(&mut self) {
        self.admin_socket = None;
        self.shared.perf.remove_sources();
        for worker in &mut self.shard_threads {
            worker.end();
        }
        self.control_thread.end();
        self.control.close();
        for messenger in &self.messengers {
            messenger.abandon();
        }
    }
}

impl Drop for Osd {
    fn drop(&mut self) {
        self.end_threads();
    }
}

impl std::fmt::Debug for Osd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Osd")
            .field("id", &self.shared.whoami)
            .field("addr", &self.addr)
            .finish_non_exhaustive()
    }
}

/// Runs a shard's messages, completions, timers and background work until dropped.
async fn run_shard(cell: &ShardCell) {
    while let Some(Turn { next_ns, busy }) = cell.turn() {
        if busy {
            // Connections' readers run between two pieces of background work, and between two turns.
            tokio::task::yield_now().await;
            continue;
        }
        let wait =
            next_ns.map_or(LONGEST_SLEEP, |at| Duration::from_nanos(at.saturating_sub(clock::boot_ns())));
        tokio::select! {
            () = cell.inbox().wait() => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// An OSD without running threads and listening sockets.
struct PreparedOsd {
    shared: Arc<Shared>,
    cells: Arc<Vec<ShardCell>>,
    records: OsdRecords,
    shard_threads: Vec<RuntimeThread>,
    control_thread: RuntimeThread,
}

impl PreparedOsd {
    fn new(config: &Config, stop: ShutdownSignal) -> Result<PreparedOsd, OsdError> {
        let options = config.snapshot();
        let whoami = osd_of(config)?;
        let events = Arc::new(StartupReporter::new(config, stop));
        let directory = store_kind::directory_of(&options);
        let (store, report) =
            store_kind::mount(&directory, &options, Arc::clone(&events) as Arc<dyn StoreEvents>)?;
        let records = check_owner(&*store, &options, whoami)?;
        tell_mount(whoami, &*store, &report);
        let me = Member { osd: whoami, incarnation: report.incarnation };
        let shared = Shared::new(config, me, records.superblock.uuid, store);
        let shards = shared.inboxes.len();
        events.attach(Arc::downgrade(&shared));
        let cells: Arc<Vec<ShardCell>> =
            Arc::new((0..shards).map(|index| ShardCell::new(&shared.core, index)).collect());
        measure_space(&shared);
        load_pgs(&shared, &cells)?;
        let mut shard_threads = Vec::with_capacity(shards);
        for index in 0..shards {
            shard_threads.push(RuntimeThread::start(format!("{whoami}-shard{index}"))?);
        }
        let control_thread = RuntimeThread::start(format!("{whoami}-control"))?;
        Ok(PreparedOsd { shared, cells, records, shard_threads, control_thread })
    }

    fn launch(self) -> Result<Osd, OsdError> {
        let PreparedOsd { shared, cells, records, shard_threads, control_thread } = self;
        let config = shared.config.clone();
        let options = config.snapshot();
        let service_keys = Arc::new(RotatingKeyring::new(options.global.auth_clock_skew.as_secs()));
        let machine = control::Control::new(
            Arc::clone(&shared.core),
            Arc::clone(&cells),
            records,
            metadata_of(&shared),
        );
        let key = Arc::new(ConfiguredKey::find(&config)?);
        let control = Arc::new(Control::new(
            Arc::clone(&shared),
            Arc::clone(&cells),
            machine,
            key,
            Arc::clone(&service_keys),
        ));

        let osd = &options.osd;
        let mut lanes = Messenger::builder(&config)
            .nonce(shared.boot_nonce)
            .verifier(Verifier::new().with_tickets(service_keys))
            .client_throttle(Throttle::new(osd.osd_client_message_size_cap, osd.osd_client_message_cap));
        for (index, worker) in shard_threads.iter().enumerate() {
            let dispatcher =
                ShardDispatcher { shared: Arc::clone(&shared), cells: Arc::clone(&cells), index };
            lanes = lanes.lane(worker.handle.clone(), Arc::new(dispatcher));
        }
        let messenger = lanes.build()?;
        shared.outside.peers.set_messenger(messenger.clone());
        let addr = bind(&messenger, options.global.public_addr)?;
        if shared.outside.addr.set(addr).is_err() {
            tracing::error!("the OSD's address was given twice");
        }

        let outward = Messenger::builder(&config)
            .nonce(shared.boot_nonce)
            .lane(control_thread.handle.clone(), Arc::new(ControlDispatcher(Arc::clone(&control))))
            .build()?;
        control.set_messenger(outward.clone());
        control.observe_options();

        for (index, worker) in shard_threads.iter().enumerate() {
            let cells = Arc::clone(&cells);
            worker.handle.spawn(async move { run_shard(&cells[index]).await });
        }
        control_thread.handle.spawn(Arc::clone(&control).run());
        watchdog::start(&shared.progress, &config, shared.whoami)
            .map_err(|source| OsdError::Io { what: "start a thread", source })?;
        add_sources(&shared, &cells);
        let messengers = vec![messenger, outward];
        shared.perf.add_source(msgr::metrics::collector(&messengers));
        let admin_socket = AdminSocket::start(&config, commands::socket_handler(&shared, &cells));
        // From here on options that only take effect at start keep their values.
        config.freeze_startup_options();
        tracing::info!(osd = %shared.whoami, %addr, store = shared.store.kind(), "OSD started");
        Ok(Osd { shared, control, messengers, shard_threads, control_thread, admin_socket, addr })
    }
}

/// Registers what this OSD counts and measures. The sources use weak references: the OSD owns them.
fn add_sources(shared: &Arc<Shared>, cells: &Arc<Vec<ShardCell>>) {
    let metrics = shared.metrics.clone();
    shared
        .perf
        .add_source(move |out| out.extend(nacre_shard::metrics::collect(metrics.iter().map(|m| &**m))));
    let (weak, cells) = (Arc::downgrade(shared), Arc::downgrade(cells));
    shared.perf.add_source(move |out| {
        let (Some(shared), Some(cells)) = (weak.upgrade(), cells.upgrade()) else { return };
        let usage = shared.store.statfs().unwrap_or_default();
        let heartbeat_peers = shared.heartbeats.lock().peers().len() as u64;
        let mut gauges = Gauges {
            heartbeat_peers,
            space: [
                usage.total_bytes,
                usage.total_bytes.saturating_sub(usage.available_bytes),
                usage.available_bytes,
            ],
            map_epoch: shared.map.load().as_ref().map_or(0, |map| u64::from(map.epoch.0)),
            ..Gauges::default()
        };
        for cell in cells.iter() {
            cell.inspect(|shard| {
                gauges.op_wip += shard.tracker().in_flight() as u64;
                gauges.pgs.iter_mut().zip(shard.pg_roles()).for_each(|(sum, n)| *sum += n);
            });
        }
        gauges.collect(out);
        shared.store.metrics(out);
    });
}

fn check_owner(store: &dyn ObjectStore, options: &Options, whoami: OsdId) -> Result<OsdRecords, OsdError> {
    let records = OsdRecords::read(store)?.ok_or(OsdError::NoSuperblock)?;
    let superblock = &records.superblock;
    let fsid = options.global.fsid.unwrap_or(superblock.fsid);
    if superblock.osd != whoami || superblock.fsid != fsid {
        return Err(OsdError::WrongOwner {
            found: superblock.osd,
            found_fsid: superblock.fsid,
            wanted: whoami,
            wanted_fsid: fsid,
        });
    }
    Ok(records)
}

fn tell_mount(osd: OsdId, store: &dyn ObjectStore, report: &MountReport) {
    let MountReport { incarnation, clean, collections, objects, took, .. } = report;
    tracing::info!(%osd, store = store.kind(), %incarnation, clean, collections, objects, ?took, "store mounted");
    if let Some(loss) = &report.loss {
        tracing::error!(%osd, %loss, "the store has lost its contents: the OSD starts empty");
    }
    if report.quarantined_bytes > 0 {
        tracing::error!(%osd, bytes = report.quarantined_bytes, "space is withheld: records can't be trusted");
    }
}

/// Loads the store's PGs into their shards. One that can't be read stops the start: an OSD must not act as if it did not have the PG.
fn load_pgs(shared: &Arc<Shared>, cells: &[ShardCell]) -> Result<(), OsdError> {
    for pg in shared.store.list_collections()? {
        let cell = &cells[shared.shard_of(pg)];
        cell.with(|shard| shard.load(pg)).map_err(|error| OsdError::Pg { pg, detail: error.to_string() })?;
    }
    Ok(())
}

fn bind(messenger: &Messenger, public_addr: Option<SocketAddr>) -> Result<SocketAddr, OsdError> {
    Ok(match public_addr {
        Some(addr) if addr.port() != 0 => messenger.bind(addr)?,
        Some(addr) => messenger.bind_in_range(addr.ip())?,
        None => messenger.bind_in_range(IpAddr::V4(Ipv4Addr::LOCALHOST))?,
    })
}

/// `osd metadata`.
fn metadata_of(shared: &Shared) -> BTreeMap<String, String> {
    let options = shared.config.snapshot();
    let mut metadata = nacre_runtime::host::metadata(&shared.config);
    metadata.insert("osd_objectstore".to_owned(), shared.store.kind().to_owned());
    metadata.insert("osd_data".to_owned(), options.osd.osd_data.clone());
    metadata
}
