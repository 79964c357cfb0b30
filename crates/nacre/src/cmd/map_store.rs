//! `nacre map-store`: moves, saves, restores and rebuilds the map store of a cluster.
//!
//! The commands work on the store itself, with the options of the map authority (`mon_map_store` and others).

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};
use nacre_common::auth::{Keyring, KeyringEntry};
use nacre_common::config::{Config, ProgramKind, parse_argv};
use nacre_mapstore::MapBackup;
use nacre_types::ids::{EntityKind, EntityName, OsdId};
use nacre_types::osdmap::OsdMap;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The tool's name in its messages.
const ME: &str = "map-store";

/// Move, save, restore and rebuild the map store of a cluster.
#[derive(Debug, Parser)]
#[command(name = ME, disable_version_flag = true)]
struct Args {
    /// Configuration file of the map authority [default: as for other commands]
    #[arg(short = 'c', long, global = true, value_name = "FILE")]
    conf: Option<String>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Move the cluster's map to another store; stop the monitor first. The OSDs' data is not touched
    ///
    /// The store that mon_map_store names is copied to the given one, which must be empty, and is sealed: no monitor opens
    /// it again. Set mon_map_store to the new store afterwards. Repeat the command if it was interrupted.
    Migrate {
        /// The new store: local, or etcd://HOST:PORT,HOST:PORT…/PREFIX
        #[arg(value_name = "STORE")]
        to: String,
        /// Give up a migration that was interrupted: empty the new store, and make the old one usable again
        #[arg(long)]
        abort: bool,
        /// With --abort: also if the new store is empty, because what it held was lost for good
        #[arg(long, requires = "abort")]
        yes_i_really_mean_it: bool,
    },
    /// Write a backup of the map store to a new file. It contains the keys of all entities
    Export {
        /// The file
        file: PathBuf,
    },
    /// Put a backup into the empty map store that mon_map_store names, and begin a new generation
    ///
    /// List the OSDs that may have been added since the backup; PGs wait until each OSD has reported what it has or is declared
    /// lost (docs/replication.md, rule R7).
    Import {
        /// The file
        file: PathBuf,
        /// OSDs that the backup may lack
        #[arg(value_name = "osd.N")]
        osds: Vec<EntityName>,
    },
    /// Create the cluster again in the empty map store that mon_map_store names, after its store and all backups were lost
    ///
    /// The map is the newest one that the given OSDs have recorded, at most a minute older than the last one. Give all OSDs that are
    /// left, stopped: an OSD that the map lacks is added. Entities come from the keyrings of the OSDs and of the monitor, and from
    /// --keyring. Everything else that the store held is lost: options set by 'config set', config-key, other entities, mutes and
    /// the cluster log. A new generation begins, as after 'import'.
    Rebuild {
        /// Directories of stopped OSDs (osd_data)
        #[arg(long, required = true, num_args = 1.., value_name = "DIRECTORY")]
        from_osds: Vec<PathBuf>,
        /// Keyrings with further entities, such as that of client.admin
        #[arg(long, num_args = 1.., value_name = "FILE")]
        keyring: Vec<PathBuf>,
    },
}

/// The help text.
pub(crate) fn help() -> String {
    <Args as clap::CommandFactory>::command().render_long_help().to_string()
}

/// Runs the command with the words after `map-store`.
pub(crate) fn main(words: Vec<OsString>) -> ExitCode {
    let args = match Args::try_parse_from(std::iter::once(ME.into()).chain(words)) {
        Ok(args) => args,
        Err(error) => {
            // Messages of clap are for users. An error of the output does not matter.
            let _ = error.print();
            return ExitCode::from(error.exit_code() as u8);
        }
    };
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{ME}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let config = mon_config(args.conf.as_deref())?;
    let data_dir = PathBuf::from(&config.snapshot().mon.mon_data);
    let name = config.snapshot().mon.mon_map_store.clone();
    match &args.command {
        Command::Migrate { to, abort: true, yes_i_really_mean_it } => {
            nacre_monitor::abort_migration(&config, &data_dir, to, *yes_i_really_mean_it)
                .with_context(|| format!("can't abort the migration to {to}"))?;
            writeln!(io::stdout(), "the cluster's map stays in {name}")?;
        }
        Command::Migrate { to, abort: false, .. } => {
            let moved = nacre_monitor::migrate_map_store(&config, &data_dir, to)
                .with_context(|| format!("can't move the cluster's map from {name} to {to}"))?;
            writeln!(
                io::stdout(),
                "the map of cluster {} ({} keys, {} bytes) has moved to {to}\nset mon_map_store = {to} in the \
                 configuration file, then start the monitor",
                moved.fsid,
                moved.keys,
                moved.bytes
            )?;
        }
        Command::Export { file } => export(&config, &data_dir, file)?,
        Command::Import { file, osds } => {
            let bytes = fs::read(file).with_context(|| format!("can't read {}", file.display()))?;
            let backup =
                MapBackup::decode(&bytes).with_context(|| format!("{} is no backup", file.display()))?;
            let osds = osds
                .iter()
                .map(|name| name.osd_id().with_context(|| format!("{name} is no OSD")))
                .collect::<Result<Vec<OsdId>>>()?;
            let generation = nacre_monitor::import_map_store(&config, &data_dir, &backup, &osds)
                .with_context(|| format!("can't import into {name}"))?;
            writeln!(io::stdout(), "the map of cluster {} has generation {generation} now", backup.fsid())?;
        }
        Command::Rebuild { from_osds, keyring } => rebuild(&config, &data_dir, from_osds, keyring)?,
    }
    Ok(())
}

/// Creates the cluster again from what OSDs have recorded.
fn rebuild(config: &Config, data_dir: &Path, directories: &[PathBuf], keyrings: &[PathBuf]) -> Result<()> {
    let mut newest: Option<OsdMap> = None;
    let mut fsid = None;
    let mut osds = Vec::new();
    let mut keyring = Keyring::new();
    for directory in directories {
        let what = || format!("can't read the OSD in {}", directory.display());
        let recorded = nacre_osd::read_recorded_map(config, directory).with_context(what)?;
        let cluster = *fsid.get_or_insert(recorded.fsid);
        ensure!(cluster == recorded.fsid, "{} belongs to another cluster: {}", recorded.osd, recorded.fsid);
        osds.push(recorded.osd);
        let file = directory.join("keyring");
        if file.exists() {
            add_keyring(&mut keyring, &file)?;
        }
        let Some(map) = recorded.map else { continue };
        let position = |map: &OsdMap| (map.generation, map.epoch);
        match &newest {
            Some(other) if position(other) > position(&map) => {}
            Some(other) if position(other) == position(&map) => ensure!(
                !other.history.contradicts(map.history),
                "{} has another history of epoch {} than the OSDs before it: give the OSDs of one history only",
                recorded.osd,
                map.epoch
            ),
            _ => newest = Some(map),
        }
    }
    let map = newest.context("no OSD has recorded a map")?;
    let own = data_dir.join("keyring");
    for file in keyrings.iter().chain(own.exists().then_some(&own)) {
        add_keyring(&mut keyring, file)?;
    }
    let administers =
        |entry: &KeyringEntry| entry.caps.get("mon").is_some_and(|caps| caps.contains("allow *"));
    ensure!(
        keyring.iter().any(|(entity, entry)| entity.kind == EntityKind::Client && administers(entry)),
        "no keyring has a client with the capability mon 'allow *': add that of client.admin by --keyring"
    );
    let generation = nacre_monitor::rebuild_map_store(config, data_dir, &map, &keyring, &osds)
        .context("can't create the cluster")?;
    let mut out = io::stdout();
    writeln!(
        out,
        "the map of cluster {} was rebuilt from epoch {} and has generation {generation} now",
        map.fsid, map.epoch
    )?;
    let names = |names: Vec<EntityName>| names.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    writeln!(out, "entities: {}", names(keyring.iter().map(|(entity, _)| entity.clone()).collect()))?;
    let all = map.osds.keys().chain(&osds).copied().collect::<BTreeSet<OsdId>>();
    let without_key: Vec<EntityName> =
        all.into_iter().map(EntityName::osd).filter(|osd| keyring.get(osd).is_none()).collect();
    if !without_key.is_empty() {
        writeln!(out, "without a key (add them by 'ceph auth import'): {}", names(without_key))?;
    }
    writeln!(
        out,
        "lost: other entities, all options set by 'ceph config set', all values of 'ceph config-key', mutes of health, \
         the cluster log"
    )?;
    Ok(())
}

/// Adds the entities of a keyring file. OSDs without capabilities get those of an OSD.
fn add_keyring(all: &mut Keyring, file: &Path) -> Result<()> {
    for (entity, entry) in Keyring::read(file)?.iter() {
        let mut caps = entry.caps.clone();
        if caps.is_empty() && entity.kind == EntityKind::Osd {
            let of_osd = [("mon", "allow profile osd"), ("osd", "allow *"), ("mgr", "allow profile osd")];
            caps.extend(of_osd.map(|(service, cap)| (service.to_owned(), cap.to_owned())));
        }
        all.insert(entity.clone(), entry.key.clone(), caps);
    }
    Ok(())
}

/// The configuration of the map authority, from a file or from where other commands find it.
fn mon_config(file: Option<&str>) -> Result<Config> {
    let words: Vec<String> = file.map(|file| vec!["-c".to_owned(), file.to_owned()]).unwrap_or_default();
    let from_environment = std::env::var("CEPH_ARGS").ok();
    let mut invocation =
        parse_argv(ProgramKind::Daemon(EntityKind::Mon), &words, from_environment.as_deref())?;
    invocation.entity = EntityName::mon();
    Ok(Config::load(&invocation)?)
}

/// Writes a backup to a new file, durably.
fn export(config: &Config, data_dir: &Path, file: &Path) -> Result<()> {
    let backup = nacre_monitor::export_map_store(config, data_dir).context("can't read the map store")?;
    let what = || format!("can't write {}", file.display());
    let mut out =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(file).with_context(what)?;
    if let Err(error) = out.write_all(&backup.encode()).and_then(|()| out.sync_all()) {
        // An incomplete backup would be in the way of the next attempt.
        let _ = fs::remove_file(file);
        return Err(error).with_context(what);
    }
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder).and_then(|folder| folder.sync_all()).with_context(what)?;
    writeln!(io::stdout(), "{} keys of cluster {} are in {}", backup.keys(), backup.fsid(), file.display())?;
    Ok(())
}
