//! A whole cluster in this process: a map authority, OSDs and clients.

use super::authority::Authority;
use nacre_client::{Cluster, IoCtx, native};
use nacre_common::auth::{Key, Keyring};
use nacre_common::config::{Config, ConfigBuilder};
use nacre_mon::logic::Tuning;
use nacre_osd::Osd;
use nacre_types::ids::{EntityName, Epoch, OsdId, PoolId};
use nacre_types::osdmap::OsdMap;
use nacre_types::pool::Pool;
use nacre_types::stats::pg_state;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use uuid::Uuid;

/// Maximum time that anything may take before a test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct TestCluster {
    pub(crate) authority: Authority,
    runtime: tokio::runtime::Runtime,
    osds: BTreeMap<OsdId, Osd>,
    directory: TempDir,
    fsid: Uuid,
    options: Vec<(&'static str, String)>,
}

impl TestCluster {
    /// A map authority and `count` OSDs, all up.
    pub(crate) fn start(count: u32, options: &[(&'static str, &str)]) -> TestCluster {
        init_logs();
        let directory = tempfile::Builder::new().prefix("osd-it-").tempdir().unwrap();
        let fsid = Uuid::new_v4();
        let mut keyring = Keyring::new();
        let mut add = |entity: EntityName, caps: &[(&str, &str)]| {
            let caps = caps.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
            keyring.insert(entity, Key::generate().unwrap(), caps);
        };
        add(EntityName::mon(), &[("mon", "allow *")]);
        add(EntityName::client("admin"), &[("mon", "allow *"), ("osd", "allow *")]);
        add(EntityName::client("reader"), &[("mon", "allow r"), ("osd", "allow r pool=data")]);
        add(EntityName::client("caller"), &[("mon", "allow r"), ("osd", "allow class-read pool=data")]);
        for osd in 0..count + 1 {
            add(EntityName::osd(OsdId(osd)), &[("mon", "allow profile osd"), ("osd", "allow *")]);
        }
        keyring.write(&directory.path().join("keyring")).unwrap();
        let tuning = Tuning {
            min_down_reporters: 1,
            reporter_subtree_level: "osd".into(),
            heartbeat_grace_ms: 2_000,
            down_out_interval_ms: 0,
            min_up_ratio: 0.0,
            ..Tuning::default()
        };
        let mut cluster = TestCluster {
            authority: Authority::new(fsid, keyring, tuning),
            runtime: tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()
                .unwrap(),
            osds: BTreeMap::new(),
            directory,
            fsid,
            options: options.iter().map(|(name, value)| (*name, (*value).to_owned())).collect(),
        };
        cluster.start_authority();
        for osd in (0..count).map(OsdId) {
            cluster.add_osd(osd);
        }
        cluster.wait("all OSDs are up", |c| (0..count).all(|osd| c.map().is_up(OsdId(osd))));
        cluster
    }

    pub(crate) fn start_authority(&mut self) {
        let config = self.config(EntityName::mon());
        self.authority.start(&config);
    }

    pub(crate) fn config(&self, entity: EntityName) -> Config {
        let data = self.osd_data(entity.osd_id().unwrap_or_default());
        let mut builder = ConfigBuilder::new(entity)
            .set("fsid", self.fsid.to_string())
            .set("mon_host", self.authority.addr.to_string())
            .set("keyring", self.directory.path().join("keyring").display().to_string())
            .set("osd_data", data.display().to_string())
            .set("run_dir", self.directory.path().display().to_string())
            .set("osd_objectstore", "memstore")
            .set("ms_bind_port_min", "40000")
            .set("ms_bind_port_max", "60000")
            .set("osd_heartbeat_interval", "1")
            .set("osd_heartbeat_grace", "2")
            .set("osd_mon_report_interval", "1");
        for (name, value) in &self.options {
            builder = builder.set(name, value);
        }
        builder.build().unwrap()
    }

    pub(crate) fn osd_data(&self, osd: OsdId) -> PathBuf {
        self.directory.path().join(format!("osd{}", osd.0))
    }

    /// Creates and starts an OSD. There is a key for one more OSD than the cluster started with.
    pub(crate) fn add_osd(&mut self, osd: OsdId) {
        nacre_osd::mkfs(&self.config(EntityName::osd(osd)), false).unwrap();
        self.start_osd(osd);
    }

    pub(crate) fn start_osd(&mut self, osd: OsdId) {
        let config = self.config(EntityName::osd(osd));
        let started = self
            .runtime
            .block_on(Osd::start(&config, &nacre_runtime::signal::ShutdownSignal::new()))
            .unwrap();
        self.osds.insert(osd, started);
    }

    /// Stops an OSD as a crash of its process does.
    pub(crate) fn kill_osd(&mut self, osd: OsdId) {
        let _guard = self.runtime.enter();
        drop(self.osds.remove(&osd).unwrap());
    }

    pub(crate) fn stop_osd(&mut self, osd: OsdId) {
        let stopping = self.osds.remove(&osd).unwrap();
        self.runtime.block_on(stopping.stop()).unwrap();
    }

    /// Discards an OSD's data. The OSD must not be running.
    pub(crate) fn wipe_osd(&self, osd: OsdId) {
        nacre_osd::mkfs(&self.config(EntityName::osd(osd)), true).unwrap();
    }

    pub(crate) fn osd(&self, osd: OsdId) -> &Osd {
        &self.osds[&osd]
    }

    pub(crate) fn map(&self) -> OsdMap {
        self.authority.map()
    }

    /// Creates a pool of `pg_num` PGs and waits until it is active.
    pub(crate) fn create_pool(&self, name: &str, size: u32, min_size: u32, pg_num: u32) -> PoolId {
        let pool = self.authority.add_pool(Pool::replicated(name, size, min_size, 0, pg_num, Epoch(0)));
        self.wait_active(pool);
        pool
    }

    pub(crate) fn wait_active(&self, pool: PoolId) {
        self.wait_state(pool, "active", |state| state & pg_state::ACTIVE != 0);
    }

    pub(crate) fn wait_clean(&self, pool: PoolId) {
        let clean = pg_state::ACTIVE | pg_state::CLEAN;
        self.wait_state(pool, "active+clean", |state| state == clean);
    }

    fn wait_state(&self, pool: PoolId, what: &str, holds: impl Fn(u64) -> bool) {
        self.wait(what, |c| {
            let stats = c.authority.pg_stats();
            let map = c.map();
            map.pg_ids().filter(|pg| pg.pool == pool).all(|pg| {
                // Reports from before the last change of membership do not count.
                stats.get(&pg).is_some_and(|s| {
                    holds(s.state) && map.membership(pg).is_some_and(|m| m.interval == s.interval)
                })
            })
        });
    }

    /// Waits until `holds`, or fails after [`PATIENCE`].
    pub(crate) fn wait(&self, what: &str, holds: impl Fn(&TestCluster) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !holds(self) {
            if Instant::now() > deadline {
                for (pg, stats) in self.authority.pg_stats() {
                    eprintln!(
                        "{pg}: {} up {:?} acting {:?} {:?} epoch {} membership {:?}",
                        pg_state::to_text(stats.state),
                        stats.up,
                        stats.acting,
                        stats.sums,
                        stats.reported_epoch,
                        self.map().membership(pg)
                    );
                    for (id, osd) in &self.osds {
                        let reply = osd.command(&format!(r#"{{"prefix": "query", "pgid": "{pg}"}}"#));
                        let query = String::from_utf8_lossy(&reply.output).replace(['\n', ' '], "");
                        eprintln!("   {id}: {} {query}", reply.status);
                    }
                }
                panic!("not in time: {what}");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn client(&self, name: &str) -> Cluster {
        let config = self.config(EntityName::client(name));
        self.block_on(async { native::connect(&config).await.unwrap() })
    }

    pub(crate) fn io(&self, pool: &str) -> IoCtx {
        let cluster = self.client("admin");
        self.block_on(async { cluster.open_pool(pool).await.unwrap() })
    }

    /// Runs a future, for at most [`PATIENCE`].
    pub(crate) fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(async { tokio::time::timeout(PATIENCE, future).await.expect("in time") })
    }
}

fn init_logs() {
    if let Ok(filter) = std::env::var("NACRE_TEST_LOG") {
        let _ = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
    }
}
