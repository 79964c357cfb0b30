//! `nacre serve`: a whole cluster in one process.

mod devices;
mod gateway;
mod greeting;
mod place;
mod ports;

use crate::cluster_dir::{ClusterDir, ClusterSpec};
use crate::daemon::{self, Daemon, Frontends};
use crate::progress::{Progress, Unit};
use anyhow::{Context, Result, anyhow, ensure};
use clap::{CommandFactory, Parser};
use nacre_common::config::ConfigSource;
use nacre_common::options;
use nacre_runtime::exporter::Exporter;
use nacre_runtime::signal::ShutdownSignal;
use nacre_runtime::{log, service_manager};
use nacre_types::ids::EntityName;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Maximum time for the OSDs to come up before the start fails.
const START_PATIENCE: Duration = Duration::from_secs(60);

/// Run a whole cluster in one process: the map authority, OSDs and an S3 gateway. The first start creates the cluster.
#[derive(Debug, Parser)]
#[command(name = "nacre serve")]
struct Args {
    /// Data directory of the cluster.
    #[arg(long, value_name = "DIR", default_value = "./data")]
    data: PathBuf,
    /// Number of OSDs of a new cluster [default: 3].
    #[arg(long, value_name = "N")]
    osds: Option<u32>,
    /// Object store of the OSDs of a new cluster: bluestore, filestore or memstore, either one for all OSDs or a list
    /// with one for each OSD [default: bluestore].
    #[arg(long, value_name = "KIND[,KIND...]", value_delimiter = ',')]
    objectstore: Vec<String>,
    /// Address of the map authority; the OSDs listen on other ports of the same IP address [default: 127.0.0.1:3300, or
    /// the next free port for a new cluster].
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<SocketAddr>,
    /// Add an option to section [global] of a new cluster's ceph.conf; may be given several times.
    #[arg(short = 'o', long = "option", value_name = "NAME=VALUE")]
    options: Vec<String>,
    /// Block devices, or files, for the data of the first OSDs of a new cluster, which must use BlueStore. Devices that
    /// contain a file system, partitions or a store are refused.
    #[arg(long, value_name = "DEVICE[,DEVICE...]", value_delimiter = ',')]
    bluestore_devs: Vec<PathBuf>,
    /// Overwrite the devices of --bluestore-devs even if they contain a file system or a store; their data is lost.
    #[arg(long, requires = "bluestore_devs")]
    wipe_devs: bool,
    /// Address of the S3 gateway, or `none` to disable it [default: 127.0.0.1:8000, or the next free port].
    #[arg(long, value_name = "ADDR:PORT", value_parser = s3_address)]
    s3: Option<S3Address>,
    /// Address of the S3 gateway for TLS; requires --s3-tls-cert.
    #[arg(long, value_name = "ADDR:PORT", requires = "s3_tls_cert")]
    s3_tls: Option<SocketAddr>,
    /// Certificate chain for --s3-tls, in PEM. It is reloaded when the file changes, and at SIGHUP.
    #[arg(long, value_name = "FILE", requires = "s3_tls")]
    s3_tls_cert: Option<PathBuf>,
    /// Private key of --s3-tls-cert [default: in the same file].
    #[arg(long, value_name = "FILE", requires = "s3_tls")]
    s3_tls_key: Option<PathBuf>,
    /// Endpoints and settings of the S3 gateway, in the syntax of the option rgw_frontends, such as 'port=8080
    /// request_timeout_ms=5000' [default: rgw_frontends in the cluster's ceph.conf; --s3 and --s3-tls replace its
    /// endpoints].
    #[arg(long = "rgw_frontends", alias = "rgw-frontends", value_name = "WORDS",
        conflicts_with_all = ["s3", "s3_tls"])]
    rgw_frontends: Option<String>,
    /// Client name of the S3 gateway, as in `config set client.rgw.8000 ...`; a key is created if the client has none
    /// [default: client.admin].
    #[arg(long, value_name = "CLIENT", value_parser = gateway::client_name)]
    s3_name: Option<EntityName>,
    /// Create the cluster and exit, to run the daemons as separate processes.
    #[arg(long)]
    mkfs_only: bool,
}

impl Args {
    /// The endpoints and settings of S3. Without endpoints it is not served. --s3 and --s3-tls replace the endpoints of
    /// `rgw_frontends`, and keep its other words.
    fn frontends(&self, layout: &ClusterDir) -> Result<Frontends> {
        let words = match &self.rgw_frontends {
            Some(words) => Some(words.clone()),
            None => self.configured_frontends(layout)?,
        };
        let mut found = Frontends::parse_words(&words.unwrap_or_default())?;
        if self.s3.is_some() || self.s3_tls.is_some() {
            found.plain.clear();
            found.tls = self.s3_tls.into_iter().collect();
            found.certificate = self.s3_tls_cert.clone();
            found.key = self.s3_tls_key.clone();
        }
        match self.s3 {
            Some(S3Address(addr)) => found.plain.extend(addr),
            None if self.s3_tls.is_some() || (found.plain.is_empty() && found.tls.is_empty()) => {
                found.plain.push(ports::s3_addr()?);
            }
            None => {}
        }
        if found.plain.is_empty() && found.tls.is_empty() {
            return Ok(found);
        }
        found.check().context("rgw_frontends")?;
        for addr in found.plain.iter().chain(&found.tls) {
            ports::check_s3_port(*addr)?;
        }
        Ok(found)
    }

    /// `rgw_frontends`, if it is set: by --option for a new cluster, otherwise in its ceph.conf.
    fn configured_frontends(&self, layout: &ClusterDir) -> Result<Option<String>> {
        const NAME: &str = "rgw_frontends";
        if layout.exists() {
            let mut shown = layout.config(EntityName::client("admin"))?.show().into_iter();
            let option = shown.find(|option| option.name == NAME);
            let set = option.filter(|option| option.source != ConfigSource::Default);
            return Ok(set.map(|option| option.value));
        }
        let given = self.options.iter().rev().filter_map(|text| text.split_once('='));
        let mut of_name = given.filter(|(name, _)| options::normalize_name(name) == NAME);
        Ok(of_name.next().map(|(_, value)| value.to_owned()))
    }
}

/// The address of S3, if it is served.
#[derive(Clone, Copy, Debug)]
struct S3Address(Option<SocketAddr>);

fn s3_address(text: &str) -> Result<S3Address> {
    if text == "none" {
        return Ok(S3Address(None));
    }
    Ok(S3Address(Some(text.parse().context("not ADDRESS:PORT or none")?)))
}

/// What `nacre serve --help` prints.
pub(crate) fn help() -> String {
    Args::command().term_width(100).render_long_help().to_string()
}

/// `nacre serve ARGS`.
pub(crate) fn main(args: &[String]) -> Result<()> {
    let args = match Args::try_parse_from(std::iter::once(&"nacre serve".to_owned()).chain(args)) {
        Ok(args) => args,
        Err(error) => error.exit(),
    };
    let began = Instant::now();
    let layout = ClusterDir::open(&args.data)?;
    if layout.exists() && !args.mkfs_only {
        place::check_rights(&layout)?;
        ports::check_not_running(&layout, &args.data)?;
    }
    let frontends = if args.mkfs_only { Frontends::default() } else { args.frontends(&layout)? };
    prepare(&layout, &args)?;
    if args.mkfs_only {
        println!("created a cluster in {}", args.data.display());
        return Ok(());
    }
    ports::check_mon_port(&layout)?;
    let admin = layout.config(EntityName::client("admin"))?;
    let mon = layout.config(EntityName::mon())?;
    log::start(&mon, true)?;
    daemon::raise_nofile_limit();
    // The daemons have their own threads.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let outcome = runtime.block_on(async move {
        let stop = daemon::install_signals()?;
        let _pid_file = daemon::PidFile::write(&mon)?;
        let endpoint = Exporter::bind(&mon).await?;
        let mut daemons = Vec::new();
        let started = start(&layout, &stop, &mut daemons).await;
        let ready = match started {
            Ok(()) => tokio::select! {
                ready = wait_until_up(&admin, daemons.len() - 1) => ready,
                why = daemon::wait_first_failure(&daemons) => Err(anyhow!("the start failed: {why}")),
                () = stop.wait() => Ok(()),
            },
            Err(error) => Err(error),
        };
        if let Err(error) = ready {
            for daemon in daemons.into_iter().rev() {
                if let Err(error) = daemon.stop().await {
                    tracing::error!("{error:#}");
                }
            }
            return Err(error);
        }
        let is_served = !frontends.plain.is_empty() || !frontends.tls.is_empty();
        let mut s3 = None;
        if is_served && !stop.is_requested() {
            let started = tokio::select! {
                started = gateway::start(&layout, args.s3_name.as_ref(), &frontends, &mut daemons) => started.map(Some),
                () = stop.wait() => Ok(None),
            };
            match started {
                Ok(found) => s3 = found,
                // The cluster works without it.
                Err(error) => eprintln!(
                    "the S3 gateway did not start: {error:#}\nThe cluster runs without it. To retry: nacre gateway -c {}",
                    layout.conf().display()
                ),
            }
        }
        let metrics = endpoint.as_ref().map(Exporter::addr);
        if let Some(endpoint) = endpoint {
            endpoint.serve(daemon::exporter_pages(&daemons));
        }
        if !stop.is_requested() {
            if log::logs_to_journal() {
                greeting::log_ready(&daemons, s3.as_ref(), began.elapsed());
            } else {
                greeting::print_banner(&layout, &daemons, metrics, s3.as_ref(), began.elapsed());
            }
            service_manager::ready(&greeting::status_line(&daemons, s3.as_ref()));
        }
        daemon::run_until_stopped(&stop, daemons).await
    });
    if outcome.is_ok() && !log::logs_to_journal() {
        greeting::print_stopped(&args.data);
    }
    outcome
}

/// Creates the cluster if there is none, and checks the arguments against an existing one.
fn prepare(layout: &ClusterDir, args: &Args) -> Result<()> {
    // Clients find the cluster by the port in ceph.conf.
    ensure!(args.listen.is_none_or(|addr| addr.port() != 0), "--listen needs a port other than 0");
    if !layout.exists() {
        let given = args.objectstore.len();
        let osds = args.osds.unwrap_or(if given > 1 { given as u32 } else { 3 });
        let objectstores = objectstores(&args.objectstore, args.osds)?;
        let listen = ports::mon_addr(args.listen)?;
        let options = args.options.iter().map(|text| checked_option(text)).collect::<Result<_>>()?;
        check_devices(args.bluestore_devs.len(), osds, &objectstores)?;
        // Last, because everything else must be valid before devices are cleared.
        let devices = devices::prepare_devices(&args.bluestore_devs, args.wipe_devs)?;
        let plan = ClusterSpec { osds, objectstores, listen, options, devices };
        place::check_space(&args.data, &plan)?;
        println!("creating a cluster of {} OSDs in {}", plan.osds, args.data.display());
        let progress = Progress::start("creating stores", Unit::Items("OSDs"), Some(plan.osds.into()));
        return layout.create(&plan, &progress);
    }
    ensure!(
        args.bluestore_devs.is_empty(),
        "{} contains a cluster: --bluestore-devs is only for a new one",
        args.data.display()
    );
    ensure!(args.options.is_empty(), "--option is only for a new cluster: edit {}", layout.conf().display());
    let count = layout.osds()?.len() as u32;
    ensure!(
        args.osds.is_none_or(|osds| osds == count),
        "{} contains a cluster of {count} OSDs: --osds is only for a new one",
        args.data.display()
    );
    if let Some(listen) = args.listen {
        layout.set_listen(listen)?;
    }
    Ok(())
}

/// The stores of a new cluster's OSDs: one kind for all or one for each.
fn objectstores(given: &[String], osds: Option<u32>) -> Result<Vec<String>> {
    if given.is_empty() {
        return Ok(vec!["bluestore".into()]);
    }
    ensure!(
        given.len() == 1 || osds.is_none_or(|osds| osds as usize == given.len()),
        "--objectstore lists {} stores for {} OSDs: give one, or one for each OSD",
        given.len(),
        osds.unwrap_or_default()
    );
    given.iter().map(|kind| Ok(options::validate("osd_objectstore", kind)?)).collect()
}

/// Refuses devices that no BlueStore of the cluster would use.
fn check_devices(devices: usize, osds: u32, objectstores: &[String]) -> Result<()> {
    ensure!(devices <= osds as usize, "--bluestore-devs lists {devices} devices for {osds} OSDs");
    let kind = |osd: usize| objectstores.get(osd).or_else(|| objectstores.first());
    for osd in 0..devices {
        ensure!(
            kind(osd).is_none_or(|kind| kind == "bluestore"),
            "--bluestore-devs has a device for osd.{osd}, which does not use BlueStore"
        );
    }
    Ok(())
}

/// Parses `NAME=VALUE` and checks both against the option table. Options that only Ceph needs may be in ceph.conf.
fn checked_option(text: &str) -> Result<(String, String)> {
    let (name, value) = text.split_once('=').with_context(|| format!("'{text}' is not NAME=VALUE"))?;
    if options::ceph_only_option(name).is_some() {
        eprintln!("{name} is an option of Ceph that has no effect here");
        return Ok((options::normalize_name(name), value.to_owned()));
    }
    let value = options::validate(name, value)?;
    Ok((options::normalize_name(name), value))
}

async fn start(layout: &ClusterDir, stop: &ShutdownSignal, daemons: &mut Vec<Daemon>) -> Result<()> {
    let config = layout.config(EntityName::mon())?;
    let osds = layout.osds()?;
    println!("starting the map authority and {} OSDs", osds.len());
    daemons.push(daemon::start_mon(&config).await?);
    let progress = Progress::start("starting", Unit::Items("OSDs"), Some(osds.len() as u64));
    let progress = &progress;
    let starts = osds.into_iter().map(|id| async move {
        let config = layout.config(EntityName::osd(id))?;
        let osd =
            nacre_osd::Osd::start(&config, stop).await.with_context(|| format!("{id} did not start"))?;
        progress.add(1);
        anyhow::Ok(Daemon::Osd(osd))
    });
    for started in futures::future::join_all(starts).await {
        daemons.push(started?);
    }
    Ok(())
}

/// Waits until clients see all OSDs up.
async fn wait_until_up(admin: &nacre_common::Config, osds: usize) -> Result<()> {
    let deadline = Instant::now() + START_PATIENCE;
    let cluster = nacre_client::native::connect(admin)
        .await
        .context("can't reach the cluster that was just started")?;
    let progress = Progress::start("OSDs up", Unit::Items("OSDs"), Some(osds as u64));
    loop {
        let up = cluster.osdmap().map_or(0, |map| map.osds.values().filter(|osd| osd.up).count());
        progress.set(up as u64);
        if up >= osds {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "only {up} of {osds} OSDs came up: see the messages above");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::path::Path;

    fn frontends(data: &Path, words: &[&str]) -> Result<Frontends> {
        let args = Args::try_parse_from(std::iter::once("nacre serve").chain(words.iter().copied()))?;
        args.frontends(&ClusterDir::open(data)?)
    }

    /// An address that no program listens on.
    fn free() -> SocketAddr {
        TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
    }

    #[test]
    fn s3_is_served_as_rgw_frontends_says() {
        let folder = tempfile::tempdir().unwrap();
        let (new, old) = (folder.path().join("new"), folder.path().join("old"));
        let (addr, other) = (free(), free());
        let words = format!("endpoint={addr} request_timeout_ms=5000");
        let expected = Frontends {
            plain: vec![addr],
            request_timeout: Some(Duration::from_secs(5)),
            ..Frontends::default()
        };
        assert_eq!(frontends(&new, &["--rgw_frontends", &words]).unwrap(), expected);
        assert_eq!(frontends(&new, &["-o", &format!("rgw frontends={words}")]).unwrap(), expected);
        std::fs::create_dir_all(&old).unwrap();
        std::fs::write(old.join("ceph.conf"), format!("[client]\nrgw_frontends = {words}\n")).unwrap();
        assert_eq!(frontends(&old, &[]).unwrap(), expected);
        // The endpoint is from the command line, the other settings are from the file.
        let moved = frontends(&old, &["--s3", &other.to_string()]).unwrap();
        assert_eq!((moved.plain, moved.request_timeout), (vec![other], expected.request_timeout));
        let none = frontends(&old, &["--s3", "none"]).unwrap();
        assert!(none.plain.is_empty() && none.tls.is_empty());
        let timed = frontends(&new, &["--rgw_frontends", "tcp_nodelay=0"]).unwrap();
        assert_eq!((timed.plain.len(), timed.nodelay), (1, Some(false)), "the first free port");
    }

    #[test]
    fn words_that_make_no_sense_are_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let addr = free();
        for (words, why) in [
            (format!("endpoint={addr} colour=green"), "'colour=green' is not known"),
            (format!("ssl_endpoint={addr}"), "TLS needs a certificate"),
            ("ssl_certificate=/a.crt".to_owned(), "the certificate has no TLS endpoint"),
        ] {
            let option = format!("rgw_frontends={words}");
            for args in [["--rgw_frontends", words.as_str()], ["-o", option.as_str()]] {
                let error = format!("{:#}", frontends(folder.path(), &args).unwrap_err());
                assert!(error.contains("rgw_frontends") && error.contains(why), "{args:?}: {error}");
            }
        }
        let both = ["--rgw_frontends", "port=8000", "--s3", "none"];
        assert!(Args::try_parse_from(std::iter::once("nacre serve").chain(both)).is_err());
    }
}
