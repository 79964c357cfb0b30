//! A cluster's folder as `nacre serve` lays it out: `ceph.conf`, keyrings and one folder per daemon.
//!
//! ```text
//! DIR/ceph.conf                     what every command and daemon reads
//! DIR/ceph.client.admin.keyring     the administrator's key, mode 0600
//! DIR/mon/                          the map authority's MapStore
//! DIR/mon.keyring                   the map authority's own key
//! DIR/osd/N/                        osd.N: its store and its keyring
//! DIR/log/                          each daemon's log (all of them in mon.a.log under `serve`), the cluster log
//! DIR/run/                          admin sockets
//! ```

use crate::progress::Progress;
use anyhow::{Context, Result, bail, ensure};
use nacre_common::auth::{Key, Keyring};
use nacre_common::config::{Config, ConfigBuilder};
use nacre_types::ids::{EntityKind, EntityName, OsdId};
use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// The parameters of a new cluster.
#[derive(Debug, Clone)]
pub(crate) struct ClusterSpec {
    /// Number of OSDs.
    pub(crate) osds: u32,
    /// `osd_objectstore`: one for all OSDs, or one for each.
    pub(crate) objectstores: Vec<String>,
    /// Address of the map authority. OSDs listen on other ports of the same address.
    pub(crate) listen: SocketAddr,
    /// Further options for `[global]`, already checked.
    pub(crate) options: Vec<(String, String)>,
    /// Devices for the data of the first OSDs, in order. The data of the other OSDs is in files.
    pub(crate) devices: Vec<BlockDevice>,
}

/// A device for an OSD's data, or a file instead of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BlockDevice {
    /// Absolute.
    pub(crate) path: PathBuf,
    pub(crate) size_bytes: u64,
}

/// A cluster's folder.
#[derive(Debug, Clone)]
pub(crate) struct ClusterDir {
    root: PathBuf,
}

impl ClusterDir {
    /// The folder `root`, which must exist or be creatable.
    pub(crate) fn open(root: &Path) -> Result<ClusterDir> {
        fs::create_dir_all(root).with_context(|| format!("can't create {}", root.display()))?;
        let root = root.canonicalize().with_context(|| format!("can't resolve {}", root.display()))?;
        Ok(ClusterDir { root })
    }

    /// The configuration file.
    pub(crate) fn conf(&self) -> PathBuf {
        self.root.join("ceph.conf")
    }

    fn mon_data(&self) -> PathBuf {
        self.root.join("mon")
    }

    fn osd_data(&self, osd: OsdId) -> PathBuf {
        self.root.join("osd").join(osd.0.to_string())
    }

    /// The keyring of a client of the cluster.
    pub(crate) fn keyring(&self, client: &EntityName) -> PathBuf {
        self.root.join(format!("ceph.{client}.keyring"))
    }

    /// Whether the folder contains a cluster.
    pub(crate) fn exists(&self) -> bool {
        self.conf().exists()
    }

    /// Whether the cluster's map authority is running.
    pub(crate) fn is_running(&self) -> Result<bool> {
        let config = self.config(EntityName::mon())?;
        Ok(UnixStream::connect(&config.snapshot().global.admin_socket).is_ok())
    }

    /// The OSDs that have a folder, in order.
    pub(crate) fn osds(&self) -> Result<Vec<OsdId>> {
        let folder = self.root.join("osd");
        let mut found = Vec::new();
        for entry in fs::read_dir(&folder).with_context(|| format!("can't list {}", folder.display()))? {
            let name = entry?.file_name();
            found.extend(name.to_str().and_then(|name| name.parse().ok()).map(OsdId));
        }
        found.sort_unstable();
        Ok(found)
    }

    /// The folders of all daemons.
    pub(crate) fn stores(&self) -> Result<Vec<PathBuf>> {
        let osds = self.osds()?;
        Ok(std::iter::once(self.mon_data()).chain(osds.into_iter().map(|osd| self.osd_data(osd))).collect())
    }

    /// Configuration of one of the cluster's daemons.
    pub(crate) fn config(&self, entity: EntityName) -> Result<Config> {
        Ok(ConfigBuilder::new(entity).conf(self.conf()).build()?)
    }

    /// Creates a cluster: configuration, keys and empty stores. Writes the configuration file last, so that an interrupted
    /// attempt is not taken for a cluster and can be repeated. `progress` counts stores.
    pub(crate) fn create(&self, plan: &ClusterSpec, progress: &Progress) -> Result<()> {
        ensure!(!self.exists(), "{} already contains a cluster", self.root.display());
        ensure!(plan.osds > 0, "a cluster needs at least one OSD");
        for folder in [self.mon_data(), self.root.join("osd"), self.root.join("log"), self.root.join("run")] {
            if folder != self.root.join("log") && folder != self.root.join("run") && folder.exists() {
                fs::remove_dir_all(&folder).with_context(|| format!("can't clear {}", folder.display()))?;
            }
            fs::create_dir_all(&folder).with_context(|| format!("can't create {}", folder.display()))?;
        }
        let fsid = Uuid::new_v4();
        let keys = self.create_keys(plan.osds)?;
        let text = self.conf_text(fsid, plan);
        let draft = self.root.join("ceph.conf.new");
        fs::write(&draft, &text).with_context(|| format!("can't write {}", draft.display()))?;
        let mon = ConfigBuilder::new(EntityName::mon()).conf(&draft).build()?;
        nacre_monitor::mkfs(&mon, &self.mon_data(), fsid, &keys)
            .context("can't create the store of the map authority")?;
        for osd in (0..plan.osds).map(OsdId) {
            let config = ConfigBuilder::new(EntityName::osd(osd)).conf(&draft).build()?;
            nacre_osd::mkfs(&config, false).with_context(|| format!("can't create the store of {osd}"))?;
            progress.add(1);
        }
        fs::File::open(&draft)?.sync_all()?;
        fs::rename(&draft, self.conf())?;
        fs::File::open(&self.root)?.sync_all()?;
        Ok(())
    }

    fn create_keys(&self, osds: u32) -> Result<Keyring> {
        let mut all = Keyring::new();
        let mut add = |entity: EntityName, caps: &[(&str, &str)], path: PathBuf| -> Result<()> {
            let caps: std::collections::BTreeMap<String, String> =
                caps.iter().map(|(service, cap)| ((*service).to_owned(), (*cap).to_owned())).collect();
            let key = Key::generate()?;
            let mut own = Keyring::new();
            own.insert(entity.clone(), key.clone(), caps.clone());
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            own.write(&path)?;
            all.insert(entity, key, caps);
            Ok(())
        };
        add(EntityName::mon(), &[("mon", "allow *")], self.root.join("mon.keyring"))?;
        let admin = [("mon", "allow *"), ("osd", "allow *"), ("mgr", "allow *"), ("mds", "allow *")];
        let client = EntityName::client("admin");
        add(client.clone(), &admin, self.keyring(&client))?;
        for osd in (0..osds).map(OsdId) {
            let caps = [("mon", "allow profile osd"), ("osd", "allow *"), ("mgr", "allow profile osd")];
            add(EntityName::osd(osd), &caps, self.osd_data(osd).join("keyring"))?;
        }
        Ok(all)
    }

    fn conf_text(&self, fsid: Uuid, plan: &ClusterSpec) -> String {
        let Self { root } = self;
        let (root, size) = (root.display(), plan.osds.min(3));
        let min_size = size - size / 2;
        // A request for one OSD implies that one copy suffices.
        let alone = if size == 1 { "mon_allow_pool_size_one = true\n" } else { "" };
        let ClusterSpec { objectstores, listen, .. } = plan;
        let first = objectstores.first().map_or("bluestore", String::as_str);
        let own: String = (0..plan.osds as usize).map(|osd| own_section(plan, osd)).collect();
        let ip = listen.ip();
        let more: String = plan.options.iter().map(|(name, value)| format!("{name} = {value}\n")).collect();
        format!(
            "[global]\n\
             fsid = {fsid}\n\
             mon_host = {listen}\n\
             public_addr = {ip}\n\
             keyring = {root}/ceph.$name.keyring\n\
             run_dir = {root}/run\n\
             log_file = {root}/log/$name.log\n\
             mon_cluster_log_file = {root}/log/ceph.log\n\
             osd_pool_default_size = {size}\n\
             osd_pool_default_min_size = {min_size}\n\
             {alone}\
             # All OSDs share this host: copies go to different OSDs, not hosts.\n\
             osd_crush_chooseleaf_type = 0\n\
             {more}\
             \n\
             [mon]\n\
             mon_data = {root}/mon\n\
             keyring = {root}/mon.keyring\n\
             \n\
             [osd]\n\
             osd_objectstore = {first}\n\
             osd_data = {root}/osd/$id\n\
             keyring = {root}/osd/$id/keyring\n\
             {own}"
        )
    }

    /// Changes the map authority's address. Takes effect at its next start.
    pub(crate) fn set_listen(&self, listen: SocketAddr) -> Result<()> {
        let text = fs::read_to_string(self.conf())?;
        let mut found = false;
        let lines: Vec<String> = text
            .lines()
            .map(|line| match line.split_once('=') {
                Some((name, _)) if name.trim() == "mon_host" => {
                    found = true;
                    format!("mon_host = {listen}")
                }
                _ => line.to_owned(),
            })
            .collect();
        if !found {
            bail!("{} has no line 'mon_host = …' to change", self.conf().display());
        }
        let draft = self.root.join("ceph.conf.new");
        let mut file = fs::File::create(&draft)?;
        file.write_all((lines.join("\n") + "\n").as_bytes())?;
        file.sync_all()?;
        fs::rename(&draft, self.conf())?;
        Ok(())
    }
}

/// The section of an OSD with its own options.
fn own_section(plan: &ClusterSpec, osd: usize) -> String {
    let mut lines = String::new();
    if let Some(kind) = plan.objectstores.get(osd).filter(|kind| Some(*kind) != plan.objectstores.first()) {
        lines += &format!("osd_objectstore = {kind}\n");
    }
    if let Some(BlockDevice { path, size_bytes }) = plan.devices.get(osd) {
        lines += &format!("bluestore_block_path = {}\n", path.display());
        // Otherwise a store would use no more than the size of new files.
        if plan.options.iter().all(|(name, _)| name != "bluestore_block_size") {
            lines += &format!("bluestore_block_size = {size_bytes}\n");
        }
    }
    if lines.is_empty() { lines } else { format!("\n[osd.{osd}]\n{lines}") }
}

/// The OSD that a configuration is for.
pub(crate) fn osd_id(config: &Config) -> Result<OsdId> {
    match config.entity() {
        entity if entity.kind == EntityKind::Osd => {
            entity.osd_id().with_context(|| format!("'{entity}' is not an OSD: use --id N"))
        }
        entity => bail!("'{entity}' is not an OSD: use --id N"),
    }
}
