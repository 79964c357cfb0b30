//! Measures what random overwrites, a full device and metadata cost BlueStore, without anything above it.
//!
//! `cargo run -p nacre-store --example blue-bench -- overwrite|full|metadata|latency|scan|compact [--rounds N] [--seconds S] [--depth N]
//! [--objects N] [--dir DIR]`
//!
//! - `overwrite`: 4 KiB random overwrites of 4 MiB objects, by turns where the data is (deferred) and into fresh blocks
//!   (`bluestore_prefer_deferred_size=0`), on fresh stores; the ratio of the rates, and extents per object after it.
//! - `full`: the same into fresh blocks on a store that is 50 % and one that is 95 % full, and where the data is; the
//!   ratios of the rates.
//! - `metadata`: bytes of sorted files of the database per 4 MiB object after compaction, with a checksum per 4 KiB and per
//!   16 KiB.
//! - `scan`: the scan of all objects of the store in DIR, with one thread and with two by turns; seconds of each.
//! - `compact`: compacts the database of the stopped store in DIR.
//! - `latency`: 4 KiB random overwrites, each round on a fresh store; rate, mean, standard deviation and tail of the
//!   latencies, a line of JSON per round, for `bench/kvstore`.

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use nacre_store::{
    BlueStore, BlueStoreConfig, CommitSink, Completion, DataOptions, IgnoreEvents, KvKind, KvStore,
    ObjectStore, ReadStore, StoreError,
};
use nacre_types::ids::{Eversion, Interval, PgId, PoolId};
use nacre_types::object::ObjectId;
use nacre_types::txn::{Transaction, TxnOp};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// The allocator of the nacre binary.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const POOL: PoolId = PoolId(1);
const OBJECT_BYTES: u64 = 4 << 20;
const BLOCK: u64 = 4096;

struct Plan {
    rounds: usize,
    seconds: f64,
    depth: usize,
    objects: u64,
    directory: PathBuf,
}

/// Hands tokens back to the submitting thread.
struct Back(Mutex<Sender<Vec<u64>>>);

impl CommitSink for Back {
    fn committed(&self, tokens: &[u64]) {
        // At the end of a run the receiver is dropped.
        _ = self.0.lock().unwrap_or_else(PoisonError::into_inner).send(tokens.to_vec());
    }

    fn failed(&self, _tokens: &[u64], error: &StoreError) {
        eprintln!("failed: {error}");
    }
}

fn pg() -> PgId {
    PgId::new(POOL, 0)
}

fn object(at: u64) -> ObjectId {
    ObjectId::new(POOL, "", "", &format!("rbd_data.{at:016x}"))
}

/// Deterministic, cheap and good enough to pick blocks by.
fn next_random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

fn attributes(oid: &ObjectId) -> TxnOp {
    let attrs = vec![
        ("_".to_owned(), Bytes::from_static(&[7; 200])),
        ("snapset".to_owned(), Bytes::from_static(&[3; 30])),
    ];
    TxnOp::SetAttrs { oid: oid.clone(), attrs }
}

/// Writes whole objects, in order.
fn fill(store: &BlueStore, objects: u64) -> Result<()> {
    store.commit(&Transaction { collection: pg(), ops: vec![TxnOp::CreateCollection] })?;
    let mut random = 88_172_645_463_325_252;
    let data: Vec<u8> = (0..OBJECT_BYTES / 8).flat_map(|_| next_random(&mut random).to_le_bytes()).collect();
    let data = Bytes::from(data);
    for at in 0..objects {
        let oid = object(at);
        let ops =
            vec![TxnOp::Write { oid: oid.clone(), offset: 0, data: data.clone().into() }, attributes(&oid)];
        store.queue_transaction(&Transaction { collection: pg(), ops }, None)?;
    }
    store.flush()?;
    Ok(())
}

/// What random overwrites came to.
struct Overwrites {
    per_second: f64,
    /// Seconds, sorted.
    latencies: Vec<f64>,
}

/// Overwrites random blocks of the objects.
fn overwrite(store: &BlueStore, plan: &Plan, objects: u64, version: &mut u64) -> Result<Overwrites> {
    let (sender, done): (_, Receiver<Vec<u64>>) = channel();
    let sink: Arc<dyn CommitSink> = Arc::new(Back(Mutex::new(sender)));
    let mut random = 0x9e37_79b9_7f4a_7c15 ^ *version;
    let mut free: Vec<u64> = (0..plan.depth as u64).collect();
    let at = |version| Eversion::new(Interval(1), version);
    let mut submitted = vec![Instant::now(); plan.depth];
    let (begun, mut latencies) = (Instant::now(), Vec::new());
    while begun.elapsed().as_secs_f64() < plan.seconds {
        for token in free.drain(..) {
            let oid = object(next_random(&mut random) % objects);
            let offset = next_random(&mut random) % (OBJECT_BYTES / BLOCK) * BLOCK;
            *version += 1;
            let data = Bytes::from(vec![*version as u8; BLOCK as usize]);
            let mut ops = vec![
                TxnOp::Write { oid: oid.clone(), offset, data: data.into() },
                attributes(&oid),
                TxnOp::LogAppend(vec![(at(*version), Bytes::from_static(&[9; 180]))]),
            ];
            if *version > 2000 && version.is_multiple_of(64) {
                ops.push(TxnOp::LogTrim(at(*version - 2000)));
            }
            let txn = Transaction { collection: pg(), ops };
            submitted[token as usize] = Instant::now();
            store.queue_transaction(&txn, Some(Completion { sink: sink.clone(), token }))?;
        }
        let mut tokens = done.recv()?;
        while let Ok(more) = done.try_recv() {
            tokens.extend(more);
        }
        latencies.extend(tokens.iter().map(|token| submitted[*token as usize].elapsed().as_secs_f64()));
        free = tokens;
    }
    let per_second = latencies.len() as f64 / begun.elapsed().as_secs_f64();
    store.flush()?;
    latencies.sort_unstable_by(f64::total_cmp);
    Ok(Overwrites { per_second, latencies })
}

fn extents_each(store: &BlueStore, objects: u64) -> Result<f64> {
    let mut extents = 0;
    for at in 0..objects {
        extents += store.extents(pg(), &object(at), 0, u64::MAX)?.len();
    }
    Ok(extents as f64 / objects as f64)
}

/// In the same place, and into fresh blocks.
fn ways() -> [(&'static str, BlueStoreConfig); 2] {
    let usual = BlueStoreConfig::default();
    let fresh = BlueStoreConfig { prefer_deferred_bytes: 0, ..usual.clone() };
    [("deferred", usual), ("fresh blocks", fresh)]
}

fn mount(directory: &Path, config: &BlueStoreConfig) -> Result<BlueStore> {
    Ok(BlueStore::mount(directory, config.clone(), Arc::new(IgnoreEvents))?.0)
}

fn folder(plan: &Plan) -> Result<tempfile::TempDir> {
    Ok(tempfile::Builder::new().prefix("nacre-bench-").tempdir_in(&plan.directory)?)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

fn compare_ways(plan: &Plan) -> Result<()> {
    let mut ratios = Vec::new();
    for round in 0..plan.rounds {
        let mut rates = [0.0; 2];
        for turn in 0..2 {
            let which = (round + turn) % 2;
            let (name, config) = ways()[which].clone();
            let directory = folder(plan)?;
            BlueStore::mkfs(directory.path(), plan.objects * OBJECT_BYTES * 2, &config)?;
            let store = mount(directory.path(), &config)?;
            fill(&store, plan.objects)?;
            let before = extents_each(&store, plan.objects)?;
            rates[which] = overwrite(&store, plan, plan.objects, &mut 1)?.per_second;
            let after = extents_each(&store, plan.objects)?;
            println!(
                "{name:>12} {:>9.0} /s  extents per object {before:.1} before, {after:.1} after",
                rates[which]
            );
            store.umount()?;
        }
        ratios.push(rates[0] / rates[1]);
    }
    println!("deferred to fresh blocks: median {:.3} of {ratios:.3?}", median(ratios.clone()));
    Ok(())
}

fn compare_fullness(plan: &Plan) -> Result<()> {
    let mut ratios = [Vec::new(), Vec::new()];
    for round in 0..plan.rounds {
        for (ratios, (name, config)) in ratios.iter_mut().zip(ways()) {
            let mut rates = [0.0; 2];
            for turn in 0..2 {
                let which = (round + turn) % 2;
                let percent = [50, 95][which];
                let directory = folder(plan)?;
                let size = plan.objects * OBJECT_BYTES;
                BlueStore::mkfs(directory.path(), size, &config)?;
                let store = mount(directory.path(), &config)?;
                let objects = plan.objects * percent / 100;
                fill(&store, objects)?;
                // Until free space is as scattered as it gets.
                let mut version = 1;
                overwrite(&store, plan, objects, &mut version)?;
                rates[which] = overwrite(&store, plan, objects, &mut version)?.per_second;
                println!("{name:>12} {percent} % full {:>9.0} /s", rates[which]);
                store.umount()?;
            }
            ratios.push(rates[1] / rates[0]);
        }
    }
    for ((name, _), ratios) in ways().iter().zip(&ratios) {
        println!("{name:>12} 95 % to 50 % full: median {:.3} of {ratios:.3?}", median(ratios.clone()));
    }
    Ok(())
}

fn metadata(plan: &Plan) -> Result<()> {
    for chunk in [4 << 10, 16 << 10] {
        let directory = folder(plan)?;
        let config = BlueStoreConfig::default();
        BlueStore::mkfs(directory.path(), plan.objects * OBJECT_BYTES * 2, &config)?;
        let store = mount(directory.path(), &config)?;
        let options = DataOptions { min_chunk_bytes: chunk, ..DataOptions::default() };
        store.set_data_options([(POOL, options)].into());
        fill(&store, plan.objects)?;
        store.compact(&mut |_, _, _| ())?;
        let mut bytes = 0;
        for entry in std::fs::read_dir(directory.path().join("db"))? {
            let entry = entry?;
            if entry.path().extension().is_some_and(|extension| extension == "sst") {
                bytes += entry.metadata()?.len();
            }
        }
        println!(
            "a checksum per {:>2} KiB: {} bytes of the database per 4 MiB object",
            chunk >> 10,
            bytes / plan.objects
        );
        store.umount()?;
    }
    Ok(())
}

fn latency(plan: &Plan) -> Result<()> {
    for _ in 0..plan.rounds {
        let directory = folder(plan)?;
        let config = BlueStoreConfig::default();
        BlueStore::mkfs(directory.path(), plan.objects * OBJECT_BYTES * 2, &config)?;
        let store = mount(directory.path(), &config)?;
        fill(&store, plan.objects)?;
        let done = overwrite(&store, plan, plan.objects, &mut 1)?;
        let us = |seconds: f64| seconds * 1e6;
        let mean = done.latencies.iter().sum::<f64>() / done.latencies.len() as f64;
        let square = |latency: &f64| (latency - mean).powi(2);
        let deviation = (done.latencies.iter().map(square).sum::<f64>() / done.latencies.len() as f64).sqrt();
        let at = |share: f64| us(done.latencies[((done.latencies.len() - 1) as f64 * share) as usize]);
        println!(
            "{{\"per_second\": {:.1}, \"mean_us\": {:.1}, \"stddev_us\": {:.1}, \"p50_us\": {:.1}, \"p99_us\": {:.1}, \
             \"p999_us\": {:.1}, \"max_us\": {:.1}}}",
            done.per_second,
            us(mean),
            us(deviation),
            at(0.5),
            at(0.99),
            at(0.999),
            at(1.0)
        );
        store.umount()?;
    }
    Ok(())
}

fn scan(plan: &Plan) -> Result<()> {
    for round in 0..plan.rounds {
        for threads in [1, 2] {
            let config = BlueStoreConfig::default();
            let scanned = BlueStore::scan(&plan.directory, &config, threads, &IgnoreEvents)?;
            let (took, stats) = (scanned.took.as_secs_f64(), &scanned.stats);
            let (onodes, extents) = (stats.onode_count, stats.extent_count);
            println!("round {round}, {threads} threads: {onodes} onodes, {extents} extents in {took:.2} s");
        }
    }
    Ok(())
}

fn compact(plan: &Plan) -> Result<()> {
    Ok(KvStore::open(KvKind::BlueStoreKv, &plan.directory)?.compact(None, (None, None), |_| ())?)
}

fn main() -> Result<()> {
    let mut plan = Plan { rounds: 3, seconds: 5.0, depth: 16, objects: 256, directory: std::env::temp_dir() };
    let mut arguments = std::env::args().skip(1);
    let verb = arguments.next().context("overwrite, full, metadata, latency, scan or compact")?;
    while let Some(name) = arguments.next() {
        let value = arguments.next().with_context(|| format!("{name} needs a value"))?;
        match name.as_str() {
            "--rounds" => plan.rounds = value.parse()?,
            "--seconds" => plan.seconds = value.parse()?,
            "--depth" => plan.depth = value.parse()?,
            "--objects" => plan.objects = value.parse()?,
            "--dir" => plan.directory = value.into(),
            _ => bail!("unknown option {name}"),
        }
    }
    match verb.as_str() {
        "overwrite" => compare_ways(&plan),
        "full" => compare_fullness(&plan),
        "metadata" => metadata(&plan),
        "latency" => latency(&plan),
        "scan" => scan(&plan),
        "compact" => compact(&plan),
        other => bail!("unknown measurement {other}"),
    }
}
