//! The verb `fill`: fills a store with generated objects, for benchmarks of starts and scans.

use super::ToolContext;
use anyhow::Result;
use clap::Args;
use nacre_common::options;
use nacre_store::{BlueStore, FillPlan};
use serde_json::json;
use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

#[derive(Debug, Args)]
pub(super) struct FillArgs {
    /// Number of objects
    #[arg(long, default_value_t = 100_000)]
    onodes: u64,
    /// Total number of extents of all objects; no two extents are adjacent on the device
    #[arg(long, default_value_t = 100_000)]
    extents: u64,
    /// Length of an extent, in blocks of 4 KiB
    #[arg(long, default_value_t = 2)]
    extent_blocks: u64,
    /// Percentage of objects with a blob whose checksums are in a separate record
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(0..=100))]
    keyed_percent: u64,
    /// Number of PGs of the objects
    #[arg(long, default_value_t = 128)]
    pgs: u32,
    /// Pool of the objects
    #[arg(long, default_value_t = 1)]
    pool: i64,
    /// Create the store first, with a sparse data file of this size, such as 5Ti
    #[arg(long, value_name = "SIZE")]
    mkfs: Option<String>,
}

/// Fills the store.
pub(super) fn fill(place: &ToolContext<'_>, args: &FillArgs) -> Result<ExitCode> {
    if let Some(size) = &args.mkfs {
        let size = options::validate("bluestore_block_size", size)?.parse()?;
        BlueStore::mkfs(place.path, size, &place.config)?;
    }
    let plan = FillPlan {
        onodes: args.onodes,
        extents: args.extents,
        extent_blocks: args.extent_blocks,
        keyed_percent: args.keyed_percent,
        pgs: args.pgs,
        pool: args.pool,
    };
    let started = Instant::now();
    let mut out = place.text();
    BlueStore::fill(place.path, &place.config, plan, &mut |made| {
        // Progress is for users. An error of its output is ignored.
        let _ = writeln!(out, "{made} of {} objects", plan.onodes);
    })?;
    let seconds = started.elapsed().as_secs_f64();
    place.answer(&json!({ "objects": args.onodes, "extents": args.extents, "seconds": seconds }))?;
    writeln!(out, "filled: {} objects, {} extents in {seconds:.1} seconds", args.onodes, args.extents)?;
    Ok(ExitCode::SUCCESS)
}
