//! Shows how the cost of small writes develops: new objects of 4 KiB, as an OSD writes them, until BlueStore's caches are full and
//! its database compacts, slice by slice.
//!
//! `cargo run --release -p nacre-store --example steady-bench -- [--slices N] [--slice-ops N] [--depth N] [--size BYTES]
//! [--cache BYTES] [--dir DIR]`
//!
//! Prints a line of JSON per slice: rate, CPU time per write (user and system), page faults per write, resident memory, bytes that went
//! to the disk per byte of data. CPU time, faults and bytes are comparable on a machine that does other work too.

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use nacre_store::{
    BlueStore, BlueStoreConfig, CommitSink, Completion, IgnoreEvents, ObjectStore, StoreError,
};
use nacre_types::ids::{Eversion, Interval, PgId, PoolId};
use nacre_types::object::ObjectId;
use nacre_types::txn::{Transaction, TxnOp};
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// The allocator of the nacre binary.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const POOL: PoolId = PoolId(1);
const PGS: u64 = 64;
/// Log entries that each PG keeps.
const LOG_ENTRIES: u64 = 2000;

struct Plan {
    slices: u64,
    slice_ops: u64,
    depth: u64,
    size: usize,
    cache_bytes: u64,
    directory: PathBuf,
}

/// Hands tokens back to the submitting thread.
struct Back(Mutex<Sender<Vec<u64>>>);

impl CommitSink for Back {
    fn committed(&self, tokens: &[u64]) {
        // At the end of a run the receiver is gone.
        _ = self.0.lock().unwrap_or_else(PoisonError::into_inner).send(tokens.to_vec());
    }

    fn failed(&self, _tokens: &[u64], error: &StoreError) {
        eprintln!("failed: {error}");
    }
}

/// What this process has used so far.
struct Used {
    user_us: u64,
    system_us: u64,
    faults: u64,
    written_bytes: u64,
    at: Instant,
}

/// The number after `name` in a file of /proc.
fn number_in(path: &str, name: &str) -> Result<u64> {
    let text = std::fs::read_to_string(path)?;
    let line = text.lines().find(|line| line.starts_with(name)).context("an unknown /proc")?;
    Ok(line.split_whitespace().nth(1).context("an unknown /proc")?.parse()?)
}

fn used() -> Result<Used> {
    let text = std::fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<u64> = text
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .map(|field| field.parse().unwrap_or(0))
        .collect();
    let tick_us = 1_000_000 / rustix::param::clock_ticks_per_second();
    Ok(Used {
        user_us: fields[11] * tick_us,
        system_us: fields[12] * tick_us,
        faults: fields[7] + fields[9],
        written_bytes: number_in("/proc/self/io", "write_bytes:")?,
        at: Instant::now(),
    })
}

/// A write of a new object, with what an OSD writes beside it.
fn transaction(number: u64, size: usize) -> Transaction {
    let seed = number % PGS;
    let version = number / PGS + 1;
    let at = |version| Eversion::new(Interval(1), version);
    let oid = ObjectId::new(POOL, "", "", &format!("benchmark_data_host_{}_object{number}", 4711));
    let mut txn = Transaction::new(PgId::new(POOL, seed as u32));
    let data = Bytes::from(vec![number as u8; size]);
    txn.push(TxnOp::Write { oid: oid.clone(), offset: 0, data: data.into() });
    let attrs = vec![
        ("_".to_owned(), Bytes::from_static(&[7; 200])),
        ("snapset".to_owned(), Bytes::from_static(&[3; 30])),
    ];
    txn.push(TxnOp::SetAttrs { oid, attrs });
    txn.push(TxnOp::LogAppend(vec![(at(version), Bytes::from_static(&[9; 180]))]));
    txn.push(TxnOp::MetaSet(vec![("info".to_owned(), Bytes::from_static(&[1; 150]))]));
    if version > LOG_ENTRIES && version.is_multiple_of(32) {
        txn.push(TxnOp::LogTrim(at(version - LOG_ENTRIES)));
    }
    txn
}

fn run(plan: &Plan) -> Result<()> {
    let directory = tempfile::Builder::new().prefix("nacre-steady-").tempdir_in(&plan.directory)?;
    let config = BlueStoreConfig { cache_bytes: plan.cache_bytes, ..BlueStoreConfig::default() };
    let ops = plan.slices * plan.slice_ops;
    BlueStore::mkfs(directory.path(), (ops * plan.size as u64 * 2).max(1 << 30), &config)?;
    let store = BlueStore::mount(directory.path(), config, Arc::new(IgnoreEvents))?.0;
    for seed in 0..PGS {
        let collection = PgId::new(POOL, seed as u32);
        store.commit(&Transaction { collection, ops: vec![TxnOp::CreateCollection] })?;
    }
    let (sender, done) = channel();
    let sink: Arc<dyn CommitSink> = Arc::new(Back(Mutex::new(sender)));
    let (mut submitted, mut finished) = (0, 0);
    let mut before = used()?;
    for slice in 0..plan.slices {
        let end = (slice + 1) * plan.slice_ops;
        while finished < end {
            while submitted < ops && submitted - finished < plan.depth {
                let txn = transaction(submitted, plan.size);
                let completion = Completion { sink: sink.clone(), token: submitted };
                store.queue_transaction(&txn, Some(completion))?;
                submitted += 1;
            }
            finished += done.recv()?.len() as u64;
            while let Ok(more) = done.try_recv() {
                finished += more.len() as u64;
            }
        }
        let now = used()?;
        let each = |count: u64| count as f64 / plan.slice_ops as f64;
        println!(
            "{{\"slice\": {slice}, \"per_second\": {:.0}, \"user_us\": {:.1}, \"system_us\": {:.1}, \"faults\": {:.2}, \
             \"resident_mb\": {}, \"write_amplification\": {:.2}}}",
            plan.slice_ops as f64 / (now.at - before.at).as_secs_f64(),
            each(now.user_us - before.user_us),
            each(now.system_us - before.system_us),
            each(now.faults - before.faults),
            number_in("/proc/self/status", "VmRSS:")? / 1024,
            each(now.written_bytes - before.written_bytes) / plan.size as f64,
        );
        before = now;
    }
    store.umount()?;
    Ok(())
}

fn main() -> Result<()> {
    let mut plan = Plan {
        slices: 12,
        slice_ops: 50_000,
        depth: 16,
        size: 4096,
        cache_bytes: 256 << 20,
        directory: std::env::temp_dir(),
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().with_context(|| format!("{name} needs a value"))?;
        match name.as_str() {
            "--slices" => plan.slices = value.parse()?,
            "--slice-ops" => plan.slice_ops = value.parse()?,
            "--depth" => plan.depth = value.parse()?,
            "--size" => plan.size = value.parse()?,
            "--cache" => plan.cache_bytes = value.parse()?,
            "--dir" => plan.directory = value.into(),
            _ => bail!("unknown option {name}"),
        }
    }
    run(&plan)
}
