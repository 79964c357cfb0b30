//! `nacre mon`, `nacre osd` and `nacre gateway`: one daemon per process, until a signal.

mod gateway;

pub(crate) use gateway::{
    Frontends, GatewayRuntime, gateway, passive_delivery, rgw_config, server_urls, start_gateway,
};

use crate::cluster_dir;
use anyhow::{Context, Result, bail, ensure};
use nacre_common::auth::Keyring;
use nacre_common::config::{Config, Invocation, ProgramKind, parse_argv};
use nacre_common::metrics::PerfCounters;
use nacre_monitor::MonServer;
use nacre_runtime::exporter::{self, Exporter, PageHandler};
use nacre_runtime::service_manager;
use nacre_runtime::signal::{self, ShutdownSignal};
use nacre_types::command::mon_commands;
use nacre_types::ids::{EntityKind, EntityName, OsdId};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const MON_USAGE: &str = "\
Run the map authority in the foreground until SIGINT or SIGTERM.

usage: nacre mon [--id a] [-c FILE] [--mkfs | --mint-generation [osd.N]...] [--option-name VALUE]...

  -i, --id a         id of the map authority; a is the only one
  -c, --conf FILE    configuration file (else CEPH_CONF, /etc/nacre/ceph.conf, /var/lib/nacre/ceph.conf,
                     /etc/ceph/ceph.conf, ./ceph.conf, ./data/ceph.conf)
  --mkfs             create an empty store in mon_data, with the keys of the file in option keyring, and exit
  --mint-generation  begin a new generation of the MapStore, and exit: for a MapStore that was restored from a copy, or
                     that is refused because it lacks changes. List the OSDs that may be missing in it; PGs wait until
                     each OSD has reported what it has or is declared lost (docs/replication.md, rule R7). Stop the
                     monitor first
  --mon_data DIR     directory of the MapStore
";

const OSD_USAGE: &str = "\
Run an object storage daemon in the foreground until SIGINT or SIGTERM.

usage: nacre osd --id N [-c FILE] [--mkfs [--force]] [--option-name VALUE]...

  -i, --id N         id of the OSD
  -c, --conf FILE    configuration file (else CEPH_CONF, /etc/nacre/ceph.conf, /var/lib/nacre/ceph.conf,
                     /etc/ceph/ceph.conf, ./ceph.conf, ./data/ceph.conf)
  --mkfs             create an empty store in osd_data and exit; fails if there is a store
  --force            with --mkfs: replace an existing store; its data is lost, and the OSD returns as a new member
  --osd_objectstore bluestore|filestore|memstore
  --osd_data DIR     directory of the store
";

/// Whether `nacre osd ARGS` starts a daemon, and not a cluster command such as `osd tree`.
pub(crate) fn is_osd_daemon(args: &[String]) -> bool {
    let flags = ["--id", "-i", "--mkfs", "--help", "-h", "-n", "--name"];
    let first = args.iter().find(|arg| !arg.starts_with('-'));
    let named = args.iter().any(|arg| flags.contains(&arg.as_str()) || arg.starts_with("--id="));
    let follows_flag = |word: &String| {
        let at = args.iter().position(|arg| arg == word).unwrap_or(0);
        at > 0 && args[at - 1].starts_with('-')
    };
    named && first.is_none_or(follows_flag)
}

/// Whether `nacre mon ARGS` starts the daemon, and not a cluster command such as `mon dump`.
pub(crate) fn is_mon_daemon(args: &[String]) -> bool {
    let commands = mon_commands().signatures().iter();
    let words: Vec<&str> =
        commands.filter_map(|signature| signature.prefix.strip_prefix("mon ")?.split(' ').next()).collect();
    !args.iter().any(|arg| words.contains(&arg.as_str()))
}

/// `nacre mon`.
pub(crate) fn mon(args: &[String]) -> Result<()> {
    let Some((config, verbs)) = configure(EntityKind::Mon, args, MON_USAGE)? else { return Ok(()) };
    if verbs.mkfs {
        return mon_mkfs(&config);
    }
    if verbs.mint_generation {
        let options = &config.snapshot().mon;
        let place = if options.mon_map_store == "local" { &options.mon_data } else { &options.mon_map_store };
        let generation =
            nacre_monitor::mint_generation(&config, Path::new(&options.mon_data), &verbs.osds)
                .with_context(|| format!("can't begin a new generation of the MapStore in {place}"))?;
        println!("the MapStore in {place} has generation {generation} now");
        return Ok(());
    }
    run(config, |config, _| async move {
        let mon = start_mon(&config).await?;
        if let Daemon::Mon(mon) = &mon {
            tracing::info!(addr = %mon.addr(), "map authority is ready");
        }
        Ok(mon)
    })
}

/// `nacre osd --id N`.
pub(crate) fn osd(args: &[String]) -> Result<()> {
    let Some((config, verbs)) = configure(EntityKind::Osd, args, OSD_USAGE)? else { return Ok(()) };
    let id = cluster_dir::osd_id(&config)?;
    if verbs.mkfs {
        return nacre_osd::mkfs(&config, verbs.force)
            .with_context(|| format!("can't create the store of {id}"));
    }
    run(config, move |config, stop| async move {
        let osd =
            nacre_osd::Osd::start(&config, &stop).await.with_context(|| format!("{id} did not start"))?;
        tracing::info!(osd = %id, "OSD is running");
        Ok(Daemon::Osd(osd))
    })
}

/// Starts the map authority of `config`: its store is `mon_data`, and it listens on the first address in `mon_host`.
pub(crate) async fn start_mon(config: &Config) -> Result<Daemon> {
    let config = config.clone();
    let started = tokio::task::spawn_blocking(move || {
        let options = config.snapshot();
        let listen = options.global.mon_host.resolve()?.first().copied();
        let listen = listen.context("mon_host has no address to listen on")?;
        let data = PathBuf::from(&options.mon.mon_data);
        anyhow::Ok(MonServer::start(&config, &data, listen)?)
    });
    Ok(Daemon::Mon(started.await?.context("the map authority did not start")?))
}

/// Creates an empty MapStore in `mon_data` with the keys of the first keyring file that exists.
fn mon_mkfs(config: &Config) -> Result<()> {
    let options = config.snapshot();
    let fsid = options.global.fsid.context("fsid is not set")?;
    let listed = options.global.keyring.split([',', ';', ' ']).filter(|path| !path.is_empty()).map(Path::new);
    let path =
        listed.into_iter().find(|path| path.exists()).context("no file of the keyring option exists")?;
    let keys = Keyring::read(path)?;
    nacre_monitor::mkfs(config, Path::new(&options.mon.mon_data), fsid, &keys)
        .context("can't create the store of the map authority")
}

#[derive(Default)]
struct DaemonArgs {
    mkfs: bool,
    force: bool,
    mint_generation: bool,
    /// OSDs given with `mint_generation`.
    osds: Vec<OsdId>,
}

fn configure(kind: EntityKind, args: &[String], usage: &str) -> Result<Option<(Config, DaemonArgs)>> {
    if args.iter().any(|arg| arg == "--help" || arg == "-h") {
        print!("{usage}");
        return Ok(None);
    }
    let mut invocation: Invocation =
        parse_argv(ProgramKind::Daemon(kind), args, std::env::var("CEPH_ARGS").ok().as_deref())?;
    if kind == EntityKind::Mon {
        let id = &invocation.entity.id;
        ensure!(id.is_empty() || id == "a", "there is no mon.{id}: the only map authority is mon.a");
        invocation.entity = EntityName::mon();
    }
    let mut verbs = DaemonArgs::default();
    for word in &invocation.rest {
        match word.as_str() {
            "--mkfs" => verbs.mkfs = true,
            "--mint-generation" if kind == EntityKind::Mon => verbs.mint_generation = true,
            "--force" => verbs.force = true,
            // Options of Ceph's daemons. Nacre's always run in the foreground as the calling user.
            "-f" | "-d" | "--foreground" => {}
            other => match other.parse::<EntityName>().ok().and_then(|name| name.osd_id()) {
                Some(osd) if kind == EntityKind::Mon => verbs.osds.push(osd),
                _ => bail!("unknown argument '{other}'\n{usage}"),
            },
        }
    }
    ensure!(
        !(verbs.mkfs && verbs.mint_generation),
        "--mkfs and --mint-generation can't be used together\n{usage}"
    );
    ensure!(
        verbs.osds.is_empty() || verbs.mint_generation,
        "OSDs may be listed only with --mint-generation\n{usage}"
    );
    Ok(Some((Config::load(&invocation)?, verbs)))
}

/// A running daemon.
pub(crate) enum Daemon {
    /// The map authority.
    Mon(MonServer),
    /// An OSD.
    Osd(nacre_osd::Osd),
    /// An S3 gateway, its connection to the cluster, and its threads.
    Gateway(nacre_s3::server::Server, nacre_client::Cluster, GatewayRuntime),
}

impl Daemon {
    /// Its counters, if it has any.
    fn perf(&self) -> Option<PerfCounters> {
        match self {
            Daemon::Mon(mon) => Some(mon.perf()),
            Daemon::Osd(osd) => Some(osd.perf()),
            Daemon::Gateway(..) => None,
        }
    }

    /// Stops the daemon in order: afterwards everything acknowledged is durable.
    pub(crate) async fn stop(self) -> Result<()> {
        match self {
            Daemon::Mon(mon) => Ok(tokio::task::spawn_blocking(move || mon.stop()).await?),
            Daemon::Osd(osd) => osd.stop().await.context("the OSD did not stop cleanly"),
            Daemon::Gateway(server, cluster, threads) => {
                server.stop().await;
                cluster.shut_down();
                drop(threads);
                Ok(())
            }
        }
    }

    /// Waits until the daemon has stopped on its own, for example because of a failed store. Returns the reason.
    pub(crate) async fn wait_failed(&self) -> String {
        match self {
            Daemon::Mon(mon) => {
                let mut failure = mon.failure();
                let failed = failure.wait_for(Option::is_some).await.map(|error| error.clone());
                match failed {
                    Ok(Some(error)) => format!("the map authority failed: {error}"),
                    _ => "the map authority ended".to_owned(),
                }
            }
            Daemon::Osd(osd) => osd.wait_for_failure().await,
            Daemon::Gateway(server, ..) => {
                server.gateway().wait_blocklisted().await;
                "the cluster has blocklisted the gateway".to_owned()
            }
        }
    }
}

/// Raises the soft limit of open files to the hard one: every connection needs a file, and the soft limit is often 1024.
pub(crate) fn raise_nofile_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })
    {
        tracing::warn!(%error, "the limit of open files can't be raised");
    }
}

/// Starts logging, the runtime and the daemon. Stops the daemon at a signal or when it fails.
fn run<F>(config: Config, start: impl FnOnce(Config, ShutdownSignal) -> F) -> Result<()>
where
    F: Future<Output = Result<Daemon>>,
{
    nacre_runtime::log::start(&config, true)?;
    raise_nofile_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(async move {
        let stop = install_signals()?;
        let _pid_file = PidFile::write(&config)?;
        let endpoint = Exporter::bind(&config).await?;
        let daemons = vec![start(config, stop.clone()).await?];
        if let Some(endpoint) = endpoint {
            endpoint.serve(exporter_pages(&daemons));
        }
        if !stop.is_requested() {
            service_manager::ready("running");
        }
        run_until_stopped(&stop, daemons).await
    })
}

/// The pages of the metrics endpoint of a process with these daemons.
pub(crate) fn exporter_pages(daemons: &[Daemon]) -> PageHandler {
    let mon = daemons.iter().find_map(|daemon| match daemon {
        Daemon::Mon(mon) => Some(mon.metrics()),
        Daemon::Osd(_) | Daemon::Gateway(..) => None,
    });
    // The metrics of the cluster include the map authority's own counters.
    let osds = daemons.iter().filter(|daemon| matches!(daemon, Daemon::Osd(_)));
    let perfs: Vec<PerfCounters> = osds.filter_map(Daemon::perf).collect();
    let gateways = daemons.iter().filter_map(|daemon| match daemon {
        Daemon::Gateway(server, ..) => Some((gateway::metrics_name(server), Arc::clone(server.metrics()))),
        Daemon::Mon(_) | Daemon::Osd(_) => None,
    });
    let gateways: Vec<_> = gateways.collect();
    Arc::new(move |path| match path {
        "/metrics" => {
            let mut out = mon.as_ref().map(|mon| mon.collect().0).unwrap_or_default();
            perfs.iter().for_each(|perf| perf.expose(&mut out));
            gateways.iter().for_each(|(name, metrics)| metrics.expose(name, &mut out));
            Some((exporter::METRICS_CONTENT_TYPE, out.render()))
        }
        "/sd" => mon.as_ref().map(|mon| {
            let targets = mon.collect().1;
            let groups = serde_json::json!([{ "targets": targets, "labels": { "job": "nacre" } }]);
            ("application/json", format!("{groups}\n"))
        }),
        _ => None,
    })
}

/// The file with this process's id. Removed when dropped.
pub(crate) struct PidFile(Option<PathBuf>);

impl PidFile {
    /// Writes the file in the option `pid_file`, if that is set.
    pub(crate) fn write(config: &Config) -> Result<PidFile> {
        let path = config.get().global.pid_file.trim().to_owned();
        if path.is_empty() {
            return Ok(PidFile(None));
        }
        std::fs::write(&path, format!("{}\n", std::process::id()))
            .with_context(|| format!("can't write the pid file {path}"))?;
        Ok(PidFile(Some(path.into())))
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        if let Some(path) = &self.0
            && let Err(error) = std::fs::remove_file(path)
        {
            tracing::debug!(path = %path.display(), %error, "can't remove the pid file");
        }
    }
}

/// SIGHUP reopens the logs; the first SIGINT or SIGTERM stops in order, the second at once.
pub(crate) fn install_signals() -> Result<ShutdownSignal> {
    Ok(signal::install(nacre_runtime::log::reopen)?)
}

/// Waits until one of the daemons has stopped on its own. Returns the reason.
pub(crate) async fn wait_first_failure(daemons: &[Daemon]) -> String {
    let watches = daemons.iter().map(|daemon| Box::pin(daemon.wait_failed()));
    futures::future::select_all(watches).await.0
}

/// Waits for a signal or a failed daemon, then stops all daemons in reverse order of their start.
pub(crate) async fn run_until_stopped(stop: &ShutdownSignal, mut daemons: Vec<Daemon>) -> Result<()> {
    let failed = tokio::select! {
        () = stop.wait() => None,
        why = wait_first_failure(&daemons) => Some(why),
    };
    service_manager::stopping();
    let mut outcome = Ok(());
    while let Some(daemon) = daemons.pop() {
        if let Err(error) = daemon.stop().await {
            tracing::error!("{error:#}");
            outcome = Err(error);
        }
    }
    match failed {
        Some(why) => bail!("stopped: {why}"),
        None => outcome,
    }
}
