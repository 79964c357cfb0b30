//! The verbs that check and describe a store: `fsck`, `repair`, `show-label`, `bluefs-stats`.

use super::ToolContext;
use crate::cmd::output::Format;
use crate::progress::{Progress, Unit};
use anyhow::Result;
use clap::Args;
use nacre_store::{BlueStore, FsckReport, KvKind, KvStore};
use nacre_types::time::stamp;
use serde_json::{Value, json};
use std::io::{self, Write};
use std::process::ExitCode;

#[derive(Debug, Args)]
pub(super) struct FsckArgs {
    /// Also read and verify all data
    #[arg(long, num_args = 0..=1, default_missing_value = "true", default_value = "false",
        value_parser = clap::builder::BoolishValueParser::new())]
    deep: bool,
}

/// `fsck`: prints the findings, one per line. The exit code is 1 if there are any.
pub(super) fn fsck(place: &ToolContext<'_>, args: &FsckArgs) -> Result<ExitCode> {
    let progress = Progress::start("fsck", Unit::Time, None);
    let report = BlueStore::fsck(place.path, &place.config, args.deep)?;
    drop(progress);
    conclude(place, "fsck", &report, &[], args.deep)
}

/// `repair`: like `fsck`, and repairs what can be repaired.
pub(super) fn repair(place: &ToolContext<'_>, args: &FsckArgs) -> Result<ExitCode> {
    let progress = Progress::start("repair", Unit::Time, None);
    let report = BlueStore::repair(place.path, &place.config, args.deep)?;
    drop(progress);
    let repaired: Vec<String> = report.repaired.iter().map(ToString::to_string).collect();
    conclude(place, "repair", &report.remaining, &repaired, args.deep)
}

fn conclude(
    place: &ToolContext<'_>,
    verb: &str,
    report: &FsckReport,
    repaired: &[String],
    deep: bool,
) -> Result<ExitCode> {
    place.answer(&described(verb, report, repaired, deep))?;
    let mut out = place.text();
    for finding in repaired {
        writeln!(out, "{verb} repaired: {finding}")?;
    }
    for finding in &report.findings {
        writeln!(out, "{verb} error: {finding}")?;
    }
    let verified =
        if deep { format!(", {} bytes of data verified", report.verified_bytes) } else { String::new() };
    writeln!(out, "{verb} {} objects checked{verified}", report.objects)?;
    if report.findings.is_empty() && repaired.is_empty() {
        writeln!(out, "{verb} success")?;
        return Ok(ExitCode::SUCCESS);
    }
    let (errors, repaired) = (report.findings.len(), repaired.len());
    writeln!(out, "{verb} status: remaining {errors} error(s) and {repaired} repaired error(s)")?;
    Ok(if errors == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The result for scripts. Data is counted only if all of it was read.
fn described(verb: &str, report: &FsckReport, repaired: &[String], deep: bool) -> Value {
    let errors: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    json!({
        "verb": verb,
        "success": errors.is_empty(),
        "objects": report.objects,
        "verified_bytes": deep.then_some(report.verified_bytes),
        "errors": errors,
        "repaired": repaired,
    })
}

/// `show-label`: JSON by the device's path, as in Ceph. Works on a store in use, too.
pub(super) fn show_label(place: &ToolContext<'_>) -> Result<ExitCode> {
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
    if let Some(made) = label.created_ns {
        fields["btime"] = stamp(made).into();
    }
    if !whoami.trim().is_empty() {
        fields["whoami"] = whoami.trim().into();
    }
    let shown = json!({ block.display().to_string(): fields });
    // Ceph's tool has no other format for it.
    let format = if place.format == Format::Json { Format::Json } else { Format::JsonPretty };
    format.write_json(&mut io::stdout().lock(), &shown)?;
    Ok(ExitCode::SUCCESS)
}

/// `bluefs-bdev-expand`: extends the store to the size of its device.
pub(super) fn expand(place: &ToolContext<'_>) -> Result<ExitCode> {
    let (before, after) = BlueStore::expand(place.path, &place.config)?;
    place.answer(&json!({ "before_bytes": before, "after_bytes": after }))?;
    let mut out = place.text();
    if after == before {
        writeln!(out, "1 : nothing to do, skipped: the store has all {before} bytes of its device")?;
    } else {
        writeln!(out, "1 : expanding  from {before:#x} to {after:#x}")?;
        writeln!(out, "1 : size label updated to {after}")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// `bluefs-stats`: the space of the database besides the device, in total and by column family.
pub(super) fn bluefs_stats(place: &ToolContext<'_>) -> Result<ExitCode> {
    let label = BlueStore::label(place.path)?;
    let store = KvStore::open(KvKind::BlueStoreKv, place.path)?;
    let (size, usage) = (store.size()?, store.usage()?);
    let families = usage.iter().map(|usage| {
        json!({
            "name": usage.prefix,
            "keys": usage.keys,
            "table_bytes": usage.table_bytes,
            "memtable_bytes": usage.memtable_bytes,
        })
    });
    place.answer(&json!({
        "block_bytes": label.size_bytes,
        "db": {
            "total_bytes": size.total(),
            "log_bytes": size.log,
            "table_bytes": size.sst,
            "other_bytes": size.misc,
        },
        "families": families.collect::<Vec<_>>(),
    }))?;
    let mut out = place.text();
    writeln!(out, "block : size {:#x} ({} bytes)", label.size_bytes, label.size_bytes)?;
    writeln!(out, "db    : using {:#x} ({} bytes)", size.total(), size.total())?;
    writeln!(out, "        log {} bytes, tables {} bytes, other {} bytes", size.log, size.sst, size.misc)?;
    writeln!(out, "{:<12} {:>14} {:>14} {:>14}", "FAMILY", "KEYS", "TABLES", "MEMTABLES")?;
    for usage in usage {
        writeln!(
            out,
            "{:<12} {:>14} {:>14} {:>14}",
            usage.prefix, usage.keys, usage.table_bytes, usage.memtable_bytes
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_described_for_scripts() {
        let report = FsckReport { objects: 5, verified_bytes: 4096, ..FsckReport::default() };
        let sound = described("fsck", &report, &[], false);
        assert_eq!((&sound["success"], &sound["objects"]), (&json!(true), &json!(5)));
        assert_eq!((&sound["verified_bytes"], &sound["errors"]), (&Value::Null, &json!([])));
        let mended = described("repair", &report, &["omap x".to_owned()], true);
        assert_eq!((&mended["verified_bytes"], &mended["repaired"]), (&json!(4096), &json!(["omap x"])));
    }
}
