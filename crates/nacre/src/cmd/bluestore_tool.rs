//! `nacre bluestore-tool`: the commonly used functions of Ceph's `ceph-bluestore-tool`, on the folder of a stopped OSD.
//!
//! Options of the configuration (`--bluestore_allocation_recovery_threads=12`) may precede or follow the verb. A store that an
//! OSD has open is refused.

mod allocation;
mod archive;
mod check;
mod fill;
mod startup_bench;

use super::output::Format;
use anyhow::{Context, Result, bail};
use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use nacre_common::config::ConfigBuilder;
use nacre_common::options;
use nacre_store::BlueStoreConfig;
use nacre_types::support_level::SupportLevel;
use serde_json::Value;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The tool's name in its messages.
const ME: &str = "bluestore-tool";

const NO_BLUEFS: SupportLevel =
    SupportLevel::Refused("there is no BlueFS: the database is in files of the OSD's folder");
const ONE_DEVICE: SupportLevel = SupportLevel::Refused("a store has one device");
const NO_KEYS: SupportLevel = SupportLevel::Refused("a label has a fixed set of keys");
const NO_SHARDING: SupportLevel = SupportLevel::Refused("the format defines the column families");
const LATER: SupportLevel = SupportLevel::Partial("Ceph 16.2 does not have it, later releases do");
const OWN: SupportLevel = SupportLevel::Partial("Nacre's own");

/// The commands of Ceph's tool, and those that only this one has.
pub(super) const COMMANDS: &[(&str, SupportLevel)] = &[
    ("fsck", SupportLevel::Full),
    ("repair", SupportLevel::Full),
    ("quick-fix", SupportLevel::Refused("repair includes all repairs of quick-fix")),
    ("bluefs-export", NO_BLUEFS),
    ("bluefs-import", NO_BLUEFS),
    ("bluefs-bdev-sizes", SupportLevel::Refused("a store has one device, whose size show-label prints")),
    ("bluefs-bdev-expand", SupportLevel::Full),
    ("bluefs-bdev-new-db", ONE_DEVICE),
    ("bluefs-bdev-new-wal", ONE_DEVICE),
    ("bluefs-bdev-migrate", ONE_DEVICE),
    ("show-label", SupportLevel::Partial("the keys osd_uuid, size, btime, description and whoami only")),
    ("set-label-key", NO_KEYS),
    ("rm-label-key", NO_KEYS),
    ("prime-osd-dir", SupportLevel::Refused("a label does not contain the contents of an OSD's folder")),
    ("bluefs-log-dump", NO_BLUEFS),
    ("free-dump", SupportLevel::Partial("only the allocator block; there is no other")),
    ("free-score", SupportLevel::Partial("only the allocator block; there is no other")),
    ("bluefs-stats", SupportLevel::Partial("space used by the database, per column family")),
    ("reshard", NO_SHARDING),
    ("show-sharding", NO_SHARDING),
    ("qfsck", LATER),
    ("allocmap", LATER),
    ("recovery-compare", SupportLevel::Partial("Ceph 16.2 does not have it")),
    ("export", OWN),
    ("import", OWN),
    ("fill", OWN),
    ("bench-start", OWN),
];

/// Check, repair and copy the BlueStore of a stopped OSD.
#[derive(Debug, Parser)]
#[command(name = "bluestore-tool", disable_version_flag = true)]
#[command(after_help = "Configuration options may be given before or after the command: \
    --bluestore_allocation_recovery_threads=12.")]
struct Args {
    /// Data directory of the OSD
    #[arg(long, global = true, value_name = "DIR")]
    path: Option<PathBuf>,
    /// Output format: text, or one JSON document at the end [default: plain]
    #[arg(short = 'f', long, global = true, value_enum, value_name = "FORMAT")]
    format: Option<Format>,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Check that every block has one owner and every record is readable; with --deep, verify all data
    Fsck(check::FsckArgs),
    /// Check as fsck does, repair counters and allocation, and remove unreferenced records
    Repair(check::FsckArgs),
    /// Compare the store's allocation records with the blocks that its objects own
    Qfsck,
    /// Print the label of the store's device
    ShowLabel,
    /// Extend the store after its device has grown
    BluefsBdevExpand,
    /// Print the space used by the database, per column family
    BluefsStats,
    /// Export PGs or single objects to a file
    Export(archive::ExportArgs),
    /// Import PGs or single objects from a file
    Import(archive::ImportArgs),
    /// Compare the parallel scan of all objects with the simple one: time, counts, usage, allocators
    RecoveryCompare(allocation::RecoveryCompareArgs),
    /// Build the allocation map from all objects and compare it with the store's allocation records
    Allocmap,
    /// Print the free extents
    FreeDump(allocation::FreeArgs),
    /// Print the fragmentation score of free space, from 0 (none) to 1 (complete)
    FreeScore(allocation::FreeArgs),
    /// Fill an empty store with generated objects, for benchmarks
    Fill(fill::FillArgs),
    /// Measure the time from start to the first read; can write and crash
    BenchStart(startup_bench::StartArgs),
}

/// Options of the configuration with their values.
type ConfigOverrides = Vec<(String, String)>;

/// The store, and where the output goes.
struct ToolContext<'a> {
    path: &'a Path,
    config: BlueStoreConfig,
    format: Format,
}

impl ToolContext<'_> {
    /// The writer of text for users.
    fn text(&self) -> Box<dyn Write> {
        self.format.text_writer()
    }

    /// Prints the answer as a document, if that format was requested.
    fn answer(&self, document: &Value) -> io::Result<()> {
        self.format.write_json(&mut io::stdout().lock(), document)
    }
}

/// The help text.
pub(crate) fn help() -> String {
    <Args as clap::CommandFactory>::command().render_long_help().to_string()
}

/// Runs the command with the words after `bluestore-tool`.
pub(crate) fn main(words: Vec<OsString>) -> ExitCode {
    let outcome = split_options(words).and_then(|(words, given)| {
        let refused = refusal(&words);
        let args = match Args::try_parse_from(std::iter::once(ME.into()).chain(words)) {
            Ok(args) => args,
            Err(error) => {
                if let Some(why) = refused.filter(|_| error.kind() == ErrorKind::InvalidSubcommand) {
                    bail!(why);
                }
                // Messages of clap are for users. An error of the output does not matter.
                let _ = error.print();
                return Ok(ExitCode::from(error.exit_code() as u8));
            }
        };
        run(&args, given)
    });
    outcome.unwrap_or_else(|error| {
        let _ = io::stdout().flush();
        eprintln!("{ME}: {error:#}");
        ExitCode::FAILURE
    })
}

/// The reason if the words contain a command of Ceph's that is refused.
fn refusal(words: &[OsString]) -> Option<String> {
    let words = words.iter().filter_map(|word| word.to_str());
    let mut commands = words.filter_map(|word| COMMANDS.iter().find(|(name, _)| *name == word));
    let (name, support) = commands.find(|(_, support)| support.is_refused())?;
    Some(format!("{name} is refused: {}", support.note()))
}

fn run(args: &Args, given: ConfigOverrides) -> Result<ExitCode> {
    let path = args.path.as_deref().context("must specify --path")?;
    let builder = ConfigBuilder::new("osd.0".parse().context("an entity")?);
    let config =
        given.into_iter().fold(builder, |builder, (name, value)| builder.set(&name, value)).build()?;
    let mut config = nacre_osd::bluestore_config(&config.snapshot());
    // The tool must not prefill the log for an OSD.
    config.wal_prefill = false;
    let place = ToolContext { path, config, format: args.format.unwrap_or_default() };
    match &args.verb {
        Verb::RecoveryCompare(args) => allocation::compare_recovery_scans(&place, args),
        Verb::Fsck(args) => check::fsck(&place, args),
        Verb::Repair(args) => check::repair(&place, args),
        Verb::Qfsck => allocation::allocmap(&place, "qfsck"),
        Verb::ShowLabel => check::show_label(&place),
        Verb::BluefsBdevExpand => check::expand(&place),
        Verb::BluefsStats => check::bluefs_stats(&place),
        Verb::Export(args) => archive::export(&place, args),
        Verb::Import(args) => archive::import(&place, args),
        Verb::Allocmap => allocation::allocmap(&place, "allocmap"),
        Verb::FreeDump(args) => allocation::free_dump(&place, args),
        Verb::FreeScore(args) => allocation::free_score(&place, args),
        Verb::Fill(args) => fill::fill(&place, args),
        Verb::BenchStart(args) => startup_bench::bench_start(&place, args),
    }
}

/// Separates the configuration's options from the other words of the command line.
fn split_options(words: Vec<OsString>) -> Result<(Vec<OsString>, ConfigOverrides)> {
    let (mut rest, mut given) = (Vec::new(), Vec::new());
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let text = word.to_str().unwrap_or_default();
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (text, None),
        };
        match name
            .strip_prefix("--")
            .map(options::normalize_name)
            .filter(|name| options::find(name).is_some())
        {
            None => rest.push(word),
            Some(name) => {
                let value = match value {
                    Some(value) => value,
                    None => match words.next().and_then(|word| word.into_string().ok()) {
                        Some(value) => value,
                        None => bail!("option --{name} needs a value"),
                    },
                };
                given.push((name, value));
            }
        }
    }
    Ok((rest, given))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_carried_out_or_refused_as_the_table_says() {
        let command = <Args as clap::CommandFactory>::command();
        let mut verbs: Vec<&str> = command.get_subcommands().map(|verb| verb.get_name()).collect();
        let (refused, carried_out): (Vec<_>, Vec<_>) = COMMANDS.iter().partition(|(_, s)| s.is_refused());
        let mut carried_out: Vec<&str> = carried_out.iter().map(|(name, _)| *name).collect();
        verbs.sort_unstable();
        carried_out.sort_unstable();
        assert_eq!(verbs, carried_out);
        for (name, support) in refused {
            let words = [ME, "--path", "x", name].map(OsString::from);
            assert_eq!(refusal(&words), Some(format!("{name} is refused: {}", support.note())));
            assert_eq!(Args::try_parse_from(words).unwrap_err().kind(), ErrorKind::InvalidSubcommand);
        }
    }

    #[test]
    fn options_stand_before_or_after_the_verb() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        for line in [
            "--path x --bluestore_allocation_recovery_threads=12 recovery-compare",
            "recovery-compare --bluestore-allocation-recovery-threads 12 --path x --format json",
        ] {
            let (rest, given) = split_options(words(line)).unwrap();
            assert_eq!(given, [("bluestore_allocation_recovery_threads".to_owned(), "12".to_owned())]);
            let args = Args::try_parse_from(std::iter::once(OsString::from(ME)).chain(rest)).unwrap();
            assert_eq!(args.path.as_deref(), Some(Path::new("x")));
            assert!(matches!(args.verb, Verb::RecoveryCompare(_)));
            assert_eq!(args.format, line.contains("--format").then_some(Format::Json));
        }
        assert!(split_options(words("--bluestore_allocation_from_file")).is_err());
    }
}
