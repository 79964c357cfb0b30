//! The verbs that look whether a store is sound, and say what it is: `fsck`, `repair`, `show-label`, `bluefs-stats`.

use super::Place;
use crate::progress::{Progress, Unit};
use anyhow::Result;
use clap::Args;
use nacre_store::{BlueStore, FsckReport, KvKind, KvStore};
use nacre_types::time::stamp;
use serde_json::json;
use std::io::{self, Write};
use std::process::ExitCode;

#[derive(Debug, Args)]
pub(super) struct FsckArgs {
    /// Read and verify all data too
    #[arg(long, num_args = 0..=1, default_missing_value = "true", default_value = "false",
        value_parser = clap::builder::BoolishValueParser::new())]
    deep: bool,
}

/// `fsck`: prints what is wrong, a line each; exit code 1 where anything is.
pub(super) fn fsck(place: &Place<'_>, args: &FsckArgs) -> Result<ExitCode> {
    let progress = Progress::start("fsck", Unit::Time, None);
    let report = BlueStore::fsck(place.path, &place.config, args.deep)?;
    drop(progress);
    conclude("fsck", &report, 0, args.deep)
}

/// `repair`: as `fsck`, and mends what can be mended.
pub(super) fn repair(place: &Place<'_>, args: &FsckArgs) -> Result<ExitCode> {
    let progress = Progress::start("repair", Unit::Time, None);
    let report = BlueStore::repair(place.path, &place.config, args.deep)?;
    drop(progress);
    let mut out = io::stdout().lock();
    for finding in &report.repaired {
        writeln!(out, "repair repaired: {finding}")?;
    }
    drop(out);
    conclude("repair", &report.remaining, report.repaired.len(), args.deep)
}

fn conclude(verb: &str, report: &FsckReport, repaired: usize, deep: bool) -> Result<ExitCode> {
    let mut out = io::stdout().lock();
    for finding in &report.findings {
        writeln!(out, "{verb} error: {finding}")?;
    }
    let verified =
        if deep { format!(", {} bytes of data verified", report.verified_bytes) } else { String::new() };
    writeln!(out, "{verb} {} objects checked{verified}", report.objects)?;
    if report.findings.is_empty() && repaired == 0 {
        writeln!(out, "{verb} success")?;
        return Ok(ExitCode::SUCCESS);
    }
    let errors = report.findings.len();
    writeln!(out, "{verb} status: remaining {errors} error(s) and {repaired} repaired error(s)")?;
    Ok(if errors == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// `show-label`: JSON by the device's path, as Ceph's. A store in use may be asked.
pub(super) fn show_label(place: &Place<'_>) -> Result<ExitCode> {
    let label = BlueStore::label(place.path)?;
    let block = place.path.join("block");
    let whoami = std::fs::read_to_string(place.path.join("whoami")).unwrap_or_default();
    let mut fields = json!({
        "osd_uuid": label.uuid.to_string(),
        "size": label.size_bytes,
        "description": "main",
        "block_size": label.block_bytes,
        "device": std::fs::canonicalize(&block).unwrap_or_else(|_| block.clone()),
    });
    if let Some(made) = label.made_ns {
        fields["btime"] = stamp(made).into();
    }
    if !whoami.trim().is_empty() {
        fields["whoami"] = whoami.trim().into();
    }
    let mut out = io::stdout().lock();
    let shown = json!({ block.display().to_string(): fields });
    out.write_all(&nacre_runtime::admin::render(&shown, None))?;
    Ok(ExitCode::SUCCESS)
}

/// `bluefs-bdev-expand`: makes the store as large as its device.
pub(super) fn expand(place: &Place<'_>) -> Result<ExitCode> {
    let (before, after) = BlueStore::expand(place.path, &place.config)?;
    let mut out = io::stdout().lock();
    if after == before {
        writeln!(out, "1 : nothing to do, skipped: the store has all {before} bytes of its device")?;
    } else {
        writeln!(out, "1 : expanding  from {before:#x} to {after:#x}")?;
        writeln!(out, "1 : size label updated to {after}")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// `bluefs-stats`: what the database takes beside the device, in all and by column family.
pub(super) fn bluefs_stats(place: &Place<'_>) -> Result<ExitCode> {
    let label = BlueStore::label(place.path)?;
    let store = KvStore::open(KvKind::BlueStoreKv, place.path)?;
    let size = store.size()?;
    let mut out = io::stdout().lock();
    writeln!(out, "block : size {:#x} ({} bytes)", label.size_bytes, label.size_bytes)?;
    writeln!(out, "db    : using {:#x} ({} bytes)", size.total(), size.total())?;
    writeln!(out, "        log {} bytes, tables {} bytes, other {} bytes", size.log, size.sst, size.misc)?;
    writeln!(out, "{:<12} {:>14} {:>14} {:>14}", "FAMILY", "KEYS", "TABLES", "MEMTABLES")?;
    for usage in store.usage()? {
        writeln!(
            out,
            "{:<12} {:>14} {:>14} {:>14}",
            usage.prefix, usage.keys, usage.table_bytes, usage.memtable_bytes
        )?;
    }
    Ok(ExitCode::SUCCESS)
}
