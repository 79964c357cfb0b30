//! The verbs about allocation: `recovery-compare`, `allocmap`, `free-dump`, `free-score`.

use super::ToolContext;
use crate::cmd::output::Format;
use anyhow::{Context, Result};
use clap::Args;
use nacre_store::{
    AllocationSource, BlueStore, IgnoreEvents, PoolUsage, RecoveredAllocation, ScanStats, StoreError,
};
use nacre_types::PoolId;
use serde_json::{Map, Value, json};
use std::io::{self, Write};
use std::process::ExitCode;

/// Line before and after the counts of a scan.
const RULE: &str = "==========================================================";

#[derive(Debug, Args)]
pub(super) struct RecoveryCompareArgs {
    /// Drop the kernel's cache before the first scan of each order, so that it reads the database from disk
    #[arg(long)]
    cold: bool,
    /// Also scan in reverse order, and print a table of all times at the end
    #[arg(long)]
    both_orders: bool,
}

#[derive(Debug, Args)]
pub(super) struct FreeArgs {
    /// Allocator; block is the only one
    #[arg(long, value_name = "NAME", value_parser = ["block"])]
    allocator: Option<String>,
}

/// The two scans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    New,
    Legacy,
}

impl Which {
    fn name(self) -> &'static str {
        match self {
            Which::New => "New",
            Which::Legacy => "Legacy",
        }
    }
}

/// `recovery-compare`, with Ceph's output.
pub(super) fn compare_recovery_scans(
    place: &ToolContext<'_>,
    args: &RecoveryCompareArgs,
) -> Result<ExitCode> {
    let mut out = place.text();
    let threads = place.config.recovery_threads;
    writeln!(out, "recovery-compare bluestore compare new and legacy onode recovery")?;
    let first = match threads {
        0 => vec![Which::Legacy],
        _ => vec![Which::New, Which::Legacy],
    };
    let mut orders = vec![first.clone()];
    if args.both_orders && threads > 0 {
        orders.push(first.into_iter().rev().collect());
    }
    let mut same = true;
    let (mut times, mut scans) = (Vec::new(), Vec::new());
    for order in orders {
        if args.cold {
            BlueStore::drop_page_cache(place.path)?;
        }
        let mut results = Vec::new();
        for (at, which) in order.into_iter().enumerate() {
            let result = scan(place, which, &mut out)?;
            let cache = if args.cold && at == 0 { "cold" } else { "as it was" };
            let cache = if at == 0 { cache } else { "warm" };
            let mut entry = described(&result);
            entry["recovery"] = which.name().into();
            entry["cache"] = cache.into();
            scans.push(entry);
            times.push((which, cache, result.took));
            results.push(result);
        }
        match &results[..] {
            [one, other] => same &= compare(one, other, &mut out)?,
            _ => {
                writeln!(out, "bluestore_allocation_recovery_threads = {threads}")?;
                writeln!(out, "No multithread recovery to compare.")?;
            }
        }
    }
    if args.both_orders {
        writeln!(out, "{:<10} {:<10} {:>12}", "recovery", "cache", "seconds")?;
        for (which, cache, took) in times {
            writeln!(out, "{:<10} {:<10} {:>12.6}", which.name(), cache, took.as_secs_f64())?;
        }
    }
    place.answer(&json!({ "success": same, "threads": threads, "scans": scans }))?;
    writeln!(out, "recovery-compare {}", if same { "success" } else { "failure" })?;
    Ok(if same { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn scan(place: &ToolContext<'_>, which: Which, out: &mut impl Write) -> Result<RecoveredAllocation> {
    let name = which.name();
    writeln!(out, "{name} recovery start")?;
    out.flush()?;
    let threads = if which == Which::New { place.config.recovery_threads } else { 0 };
    let scanned = BlueStore::scan(place.path, &place.config, threads, &IgnoreEvents);
    let result = scanned.as_ref().map_or_else(|error| -error.errno().0, |_| 0);
    let seconds = scanned.as_ref().map_or(0.0, |scanned| scanned.took.as_secs_f64());
    if let Err(error @ (StoreError::InUse(_) | StoreError::WrongStore { .. })) = scanned {
        return Err(error.into());
    }
    writeln!(out, "{name} recovery result={result} took {seconds:.6} seconds")?;
    let recovery = scanned.with_context(|| format!("the {} scan failed", name.to_lowercase()))?;
    writeln!(out, "{name} recovery stats=\n{RULE}")?;
    let stats = &recovery.stats;
    for (name, count) in counts(stats) {
        writeln!(out, "{name:<24}={count:>11}")?;
    }
    writeln!(out, "store {}", statfs(&PoolUsage::default()))?;
    for (pool, usage) in &recovery.pools {
        // Ceph prints pools as unsigned numbers, and the number of the internal pool is -1.
        writeln!(out, "pool {} {}", pool.0 as u64, statfs(usage))?;
    }
    writeln!(out, "{RULE}\n")?;
    for (code, text) in &recovery.health {
        eprintln!("{code}: {text}");
    }
    Ok(recovery)
}

fn counts(stats: &ScanStats) -> [(&'static str, u64); 8] {
    [
        ("onode_count", stats.onode_count),
        ("shard_count", stats.shard_count),
        ("shared_blob_count", stats.shared_blob_count),
        ("compressed_blob_count", stats.compressed_blob_count),
        ("spanning_blob_count", stats.spanning_blob_count),
        ("skipped_illegal_extent", stats.skipped_illegal_extent),
        ("extent_count", stats.extent_count),
        ("insert_count", stats.insert_count),
    ]
}

/// The results of a scan for scripts: counts, also by pool, and findings.
fn described(recovery: &RecoveredAllocation) -> Value {
    let stats = counts(&recovery.stats).map(|(name, count)| (name.to_owned(), Value::from(count)));
    let stats: Map<String, Value> = stats.into_iter().collect();
    let pool = |(pool, usage): (&PoolId, &PoolUsage)| {
        let shown = json!({
            "objects": usage.objects,
            "stored_bytes": usage.stored_bytes,
            "allocated_bytes": usage.allocated_bytes,
            "compressed_bytes": usage.compressed_bytes,
            "compressed_allocated_bytes": usage.compressed_allocated_bytes,
            "compressed_original_bytes": usage.compressed_original_bytes,
        });
        (pool.0.to_string(), shown)
    };
    let pools: Map<String, Value> = recovery.pools.iter().map(pool).collect();
    let health = recovery.health.iter().map(|(code, text)| json!({ "code": code, "text": text }));
    json!({
        "seconds": recovery.took.as_secs_f64(),
        "allocated_blocks": recovery.used_blocks(),
        "stats": stats,
        "pools": pools,
        "health": health.collect::<Vec<_>>(),
    })
}

fn statfs(usage: &PoolUsage) -> String {
    format!(
        "store_statfs(0x0/0x0/0x0, data {:#x}/{:#x}, compress {:#x}/{:#x}/{:#x}, omap 0x0, meta 0x0)",
        usage.stored_bytes,
        usage.allocated_bytes,
        usage.compressed_bytes,
        usage.compressed_allocated_bytes,
        usage.compressed_original_bytes
    )
}

fn compare(one: &RecoveredAllocation, other: &RecoveredAllocation, out: &mut impl Write) -> io::Result<bool> {
    let (usage, allocator) = (one.same_usage(other), one.same_allocator(other));
    writeln!(out, "FSstats {}", if usage { "the same." } else { "differ!" })?;
    if allocator {
        writeln!(out, "Allocators the same.")?;
    } else {
        let (more, less) = one.differences(other);
        writeln!(out, "Allocators differ! {more} blocks only in the first, {less} only in the second")?;
    }
    Ok(usage && allocator)
}

fn source(recovery: &RecoveredAllocation) -> String {
    match &recovery.source {
        AllocationSource::File => "the allocation file".into(),
        AllocationSource::Checkpoint { deltas } => format!("a checkpoint and {deltas} deltas"),
        AllocationSource::Records => "records in RocksDB".into(),
        AllocationSource::Scan { reason } => format!("a scan ({reason})"),
    }
}

/// `allocmap`: compares the allocations of all objects with the store's records.
pub(super) fn allocmap(place: &ToolContext<'_>, verb: &str) -> Result<ExitCode> {
    let mut out = place.text();
    let config = &place.config;
    let scanned = BlueStore::scan(place.path, config, config.recovery_threads, &IgnoreEvents)?;
    let stats = &scanned.stats;
    writeln!(
        out,
        "{verb}: {} onodes, {} extents, {} blocks allocated, built in {:.6} seconds",
        stats.onode_count,
        stats.extent_count,
        scanned.used_blocks(),
        scanned.took.as_secs_f64()
    )?;
    for (code, text) in &scanned.health {
        writeln!(out, "{verb}: {code}: {text}")?;
    }
    let noted = match BlueStore::saved_allocation(place.path, config)? {
        Ok(noted) => noted,
        Err(reason) => {
            place.answer(&json!({ "success": true, "scan": described(&scanned), "reason": reason }))?;
            writeln!(out, "{verb}: no allocation records to compare with: {reason}")?;
            return Ok(ExitCode::SUCCESS);
        }
    };
    writeln!(
        out,
        "{verb}: {} blocks allocated by {}, read in {:.6} seconds",
        noted.used_blocks(),
        source(&noted),
        noted.took.as_secs_f64()
    )?;
    let same = compare(&scanned, &noted, &mut out)?;
    let mut read = described(&noted);
    read["source"] = source(&noted).into();
    place.answer(&json!({ "success": same, "scan": described(&scanned), "noted": read }))?;
    writeln!(out, "{verb} {}", if same { "success" } else { "failure" })?;
    Ok(if same { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The free space, from the store's records or otherwise from a scan.
fn known(place: &ToolContext<'_>) -> Result<RecoveredAllocation> {
    let config = &place.config;
    match BlueStore::saved_allocation(place.path, config)? {
        Ok(noted) => Ok(noted),
        Err(_) => Ok(BlueStore::scan(place.path, config, config.recovery_threads, &IgnoreEvents)?),
    }
}

/// `free-dump`.
pub(super) fn free_dump(place: &ToolContext<'_>, _args: &FreeArgs) -> Result<ExitCode> {
    let space = known(place)?.free_space(usize::MAX);
    let dump = nacre_osd::dump_free_space(&space);
    let mut out = io::BufWriter::new(io::stdout().lock());
    match place.format {
        Format::Plain => writeln!(out, "block:\n{dump:#}")?,
        format => format.write_json(&mut out, &json!({ "block": dump }))?,
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// `free-score`.
pub(super) fn free_score(place: &ToolContext<'_>, _args: &FreeArgs) -> Result<ExitCode> {
    let space = known(place)?.free_space(usize::MAX);
    let lengths = space.extents.iter().map(|(_, len)| *len);
    let rating = fragmentation_score(lengths, space.unit_bytes);
    let shown = json!({ "fragmentation_rating": rating });
    writeln!(place.text(), "block:\n{shown:#}")?;
    place.answer(&json!({ "block": shown }))?;
    Ok(ExitCode::SUCCESS)
}

/// Ceph's fragmentation score: 0 if all free space is one extent, 1 if no two free units are adjacent. An extent is worth 1.1
/// times as much as two of half its length; in between, the worth is linear in the length.
fn fragmentation_score(lengths: impl Iterator<Item = u64>, unit: u64) -> f64 {
    const DOUBLE_WORTH: f64 = 1.1;
    let worth = |len: u64| {
        let grade = len.ilog2();
        let base = (1_u64 << grade) as f64;
        let above = (len as f64 - base) / base;
        let scale = DOUBLE_WORTH.powi(grade as i32);
        base * scale * (1.0 - above) + 2.0 * base * scale * DOUBLE_WORTH * above
    };
    let (mut total, mut sum) = (0, 0.0);
    for len in lengths.filter(|len| *len > 0) {
        total += len;
        sum += worth(len);
    }
    if total <= unit {
        return 0.0;
    }
    let best = worth(total);
    let worst = (total / unit) as f64 * worth(unit);
    ((best - sum) / (best - worst)).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_go_from_one_extent_to_single_units() {
        let score = |lengths: &[u64]| fragmentation_score(lengths.iter().copied(), 4096);
        assert_eq!(score(&[1 << 30]), 0.0);
        assert_eq!(score(&[]), 0.0);
        assert!((score(&[4096; 1000]) - 1.0).abs() < 1e-9);
        let (two, many) = (score(&[1 << 29, 1 << 29]), score(&[1 << 20; 1024]));
        assert!(0.0 < two && two < many && many < 1.0, "{two} {many}");
    }
}
