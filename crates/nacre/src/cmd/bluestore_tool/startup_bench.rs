//! The verb `bench-start`: measures the time that a store takes to its first read, after a clean stop or a crash.

use super::ToolContext;
use anyhow::Result;
use bytes::Bytes;
use clap::Args;
use nacre_store::{BlueStore, IgnoreEvents, ObjectStore, ReadStore};
use nacre_types::ids::PgId;
use nacre_types::object::ObjectId;
use nacre_types::txn::{Transaction, TxnOp};
use rustix::process::{Signal, getpid, kill_process};
use serde_json::json;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

/// Writes in flight. Few, so that they go through the log as those of clients do.
const DEPTH: u64 = 16;

#[derive(Debug, Args)]
pub(super) struct StartArgs {
    /// Number of blocks of 4 KiB to write, half of them to existing objects
    #[arg(long, default_value_t = 0)]
    writes: u64,
    /// Kill this process at the end, without closing the store
    #[arg(long)]
    crash: bool,
}

/// Opens the store, reads an object, writes.
pub(super) fn bench_start(place: &ToolContext<'_>, args: &StartArgs) -> Result<ExitCode> {
    let mut out = place.text();
    let started = Instant::now();
    let (store, report) = BlueStore::mount(place.path, place.config.clone(), Arc::new(IgnoreEvents))?;
    let mounted = started.elapsed().as_secs_f64();
    let mut answer = json!({ "mounted_seconds": mounted });
    writeln!(out, "mounted after {mounted:.6} seconds: {report:?}")?;
    let collections = store.list_collections()?;
    let mut objects: Vec<(PgId, ObjectId)> = Vec::new();
    for collection in collections.iter().rev() {
        let first = ObjectId::min_at_hash(collection.pool, 0);
        let page = store.list_objects(*collection, &first, None, 16)?;
        if let Some(object) = page.entries.first()
            && objects.is_empty()
        {
            let data = store.read(*collection, object, 0, 4096)?;
            let took = started.elapsed().as_secs_f64();
            answer["first_read"] = json!({ "bytes": data.len(), "seconds": took });
            writeln!(out, "first read of {} bytes after {took:.6} seconds", data.len())?;
            if args.writes == 0 {
                break;
            }
        }
        objects.extend(page.entries.into_iter().map(|object| (*collection, object)));
    }
    out.flush()?;
    if args.writes > 0 && !objects.is_empty() {
        let writing = Instant::now();
        let data = Bytes::from(vec![0x5a; 4096]);
        for i in 0..args.writes {
            let (collection, object) = &objects[i as usize % objects.len()];
            let oid = match i % 2 {
                0 => object.clone(),
                _ => ObjectId::new(collection.pool, "", "", &format!("start_{i:010}")),
            };
            let op = TxnOp::Write { oid, offset: i / 2 % 512 * 8192, data: data.clone().into() };
            let txn = Transaction { collection: *collection, ops: vec![op] };
            if i % DEPTH == DEPTH - 1 {
                store.commit(&txn)?;
            } else {
                store.queue_transaction(&txn, None)?;
            }
        }
        let (collection, object) = &objects[0];
        store.commit(&Transaction { collection: *collection, ops: vec![TxnOp::Touch(object.clone())] })?;
        let took = writing.elapsed().as_secs_f64();
        answer["writes"] = json!({ "blocks": args.writes, "seconds": took });
        writeln!(out, "wrote {} blocks in {took:.3} seconds", args.writes)?;
    }
    if args.crash {
        place.answer(&answer)?;
        writeln!(out, "crashing")?;
        out.flush()?;
        kill_process(getpid(), Signal::KILL)?;
    }
    let closing = Instant::now();
    store.umount()?;
    let took = closing.elapsed().as_secs_f64();
    answer["closed_seconds"] = took.into();
    place.answer(&answer)?;
    writeln!(out, "closed in {took:.3} seconds")?;
    Ok(ExitCode::SUCCESS)
}
