//! `export` and `import`: copies collections or single objects of the store to and from a file.

use super::ToolContext;
use crate::progress::{Progress, Unit};
use anyhow::{Context, Result};
use clap::Args;
use nacre_store::archive::{self, ArchiveStats, ExportSelection};
use nacre_store::{BlueStore, IgnoreEvents, ObjectStore};
use nacre_types::PgId;
use serde_json::json;
use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

#[derive(Debug, Args)]
pub(super) struct ExportArgs {
    /// File to write; it must not exist
    #[arg(long, value_name = "FILE")]
    dest_file: PathBuf,
    /// Export only this PG; may be given several times
    #[arg(long, value_name = "PGID")]
    pgid: Vec<PgId>,
    /// Export only objects with this name, without the logs of their PGs; may be given several times
    #[arg(long, value_name = "NAME")]
    object: Vec<String>,
}

#[derive(Debug, Args)]
pub(super) struct ImportArgs {
    /// File to read
    #[arg(long, value_name = "FILE")]
    input_file: PathBuf,
    /// Replace single objects that exist in the store
    #[arg(long)]
    force: bool,
}

fn mount(place: &ToolContext<'_>) -> Result<BlueStore> {
    let (store, report) = BlueStore::mount(place.path, place.config.clone(), Arc::new(IgnoreEvents))?;
    if let Some(loss) = report.loss {
        eprintln!("warning: {loss}");
    }
    Ok(store)
}

fn tell(place: &ToolContext<'_>, verb: &str, done: &ArchiveStats) -> Result<()> {
    let ArchiveStats { collections, objects, data_bytes } = done;
    place.answer(&json!({ "pgs": collections, "objects": objects, "data_bytes": data_bytes }))?;
    let mut out = place.text();
    Ok(writeln!(out, "{verb} {collections} PGs, {objects} objects, {data_bytes} bytes of data")?)
}

pub(super) fn export(place: &ToolContext<'_>, args: &ExportArgs) -> Result<ExitCode> {
    let name = || args.dest_file.display().to_string();
    let store = mount(place)?;
    let file = File::options().write(true).create_new(true).open(&args.dest_file).with_context(name)?;
    let mut out = BufWriter::new(file);
    let selection = ExportSelection { pgs: args.pgid.clone(), objects: args.object.clone() };
    let progress = Progress::start("export", Unit::Time, None);
    let outcome =
        archive::export(&store, &selection, &mut out).map_err(anyhow::Error::from).and_then(|done| {
            out.into_inner().map_err(|error| error.into_error())?.sync_all().with_context(name)?;
            Ok(done)
        });
    drop(progress);
    store.umount()?;
    match outcome {
        Ok(done) => tell(place, "exported", &done)?,
        Err(error) => {
            // Every import would refuse an incomplete file.
            let _ = std::fs::remove_file(&args.dest_file);
            return Err(error);
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn import(place: &ToolContext<'_>, args: &ImportArgs) -> Result<ExitCode> {
    let store = mount(place)?;
    let open = || File::open(&args.input_file).map(BufReader::new);
    let progress = Progress::start("import", Unit::Time, None);
    let outcome = archive::import(&store, open, args.force);
    drop(progress);
    store.umount()?;
    tell(place, "imported", &outcome.with_context(|| args.input_file.display().to_string())?)?;
    Ok(ExitCode::SUCCESS)
}
