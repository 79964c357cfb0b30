//! Measures a store without anything above it: small writes as an OSD makes them, at a queue depth.
//!
//! `cargo run -p nacre-store --example store-bench -- [--store memstore|filestore|bluestore] [--depth N] [--size BYTES]
//! [--seconds S] [--warm-up S] [--objects N] [--dir DIR] [--json yes]
//! [--compare-allocation ROUNDS]`
//!
//! Each write replaces an object's data (or writes at the object's start) with two attributes, one log entry and a
//! metadata value, trimming the log beyond 2000 entries. Prints transactions per second, CPU per transaction of the
//! submitting thread and of the whole process, syncs per transaction, and then random reads: what was just written, and
//! after a remount with the page cache warm. With `--json yes` a line of JSON per store instead, for `bench/stores`.
//! Before it measures it writes until the rates of three slices of 2 s differ by at most a tenth, for at most `--warm-up` seconds.
//! `--compare-allocation` writes to BlueStore by turns with deltas of allocation, without, and with records of it in the
//! database, and prints the medians of the rounds' ratios to the rate without.

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use nacre_store::{
    BlueStore, BlueStoreConfig, CommitSink, Completion, FileStore, FileStoreConfig, IgnoreEvents, MemStore,
    MemStoreConfig, ObjectStore, StoreError,
};
use nacre_types::ids::{Eversion, Interval, PgId, PoolId};
use nacre_types::object::ObjectId;
use nacre_types::txn::{Transaction, TxnOp};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What to run.
struct Plan {
    stores: Vec<String>,
    depth: usize,
    size: usize,
    seconds: f64,
    warm_up: f64,
    objects: u64,
    directory: PathBuf,
    /// Rounds of the comparison; 0 for none.
    compare: usize,
    json: bool,
}

/// What was measured of writes or reads.
struct Figures {
    count: u64,
    per_second: f64,
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
    /// Bytes written to the disk for each.
    disk_bytes: f64,
    submitting_us: f64,
    process_us: f64,
}

fn plan() -> Result<Plan> {
    let mut plan = Plan {
        stores: vec!["memstore".into(), "filestore".into(), "bluestore".into()],
        depth: 16,
        size: 4096,
        seconds: 5.0,
        warm_up: 0.0,
        objects: 10_000,
        directory: std::env::temp_dir(),
        compare: 0,
        json: false,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().with_context(|| format!("{name} needs a value"))?;
        match name.as_str() {
            "--store" => plan.stores = vec![value],
            "--depth" => plan.depth = value.parse()?,
            "--size" => plan.size = value.parse()?,
            "--seconds" => plan.seconds = value.parse()?,
            "--warm-up" => plan.warm_up = value.parse()?,
            "--objects" => plan.objects = value.parse()?,
            "--dir" => plan.directory = value.into(),
            "--compare-allocation" => plan.compare = value.parse()?,
            "--json" => plan.json = value == "yes",
            _ => bail!("unknown option {name}"),
        }
    }
    Ok(plan)
}

/// Hands tokens back to the submitting thread, once per group commit.
struct Back(Mutex<Sender<Vec<u64>>>);

impl CommitSink for Back {
    fn committed(&self, tokens: &[u64]) {
        // The receiver outlives the run and is dropped at its end.
        _ = self.0.lock().unwrap_or_else(PoisonError::into_inner).send(tokens.to_vec());
    }

    fn failed(&self, _tokens: &[u64], error: &StoreError) {
        eprintln!("failed: {error}");
    }
}

fn cpu_of(clock: rustix::time::ClockId) -> Duration {
    let time = rustix::time::clock_gettime(clock);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Deterministic, cheap and good enough to pick objects by.
fn next_random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// The allocator of the nacre binary.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Length of a slice of the warm-up.
const SLICE: Duration = Duration::from_secs(2);

const PGS: u32 = 32;

struct Load<'a> {
    plan: &'a Plan,
    objects: Vec<ObjectId>,
    payload: Bytes,
    versions: Vec<u64>,
}

impl<'a> Load<'a> {
    fn new(plan: &'a Plan) -> Load<'a> {
        let object = |i| ObjectId::new(PoolId(1), "", "", &format!("bench_{i}"));
        Load {
            plan,
            objects: (0..plan.objects).map(object).collect(),
            payload: Bytes::from(vec![0x5a; plan.size]),
            versions: vec![0; PGS as usize],
        }
    }

    fn transaction(&mut self, object: usize) -> Transaction {
        let seed = object as u32 % PGS;
        let version = &mut self.versions[seed as usize];
        *version += 1;
        let at = |version| Eversion::new(Interval(1), version);
        let oid = self.objects[object].clone();
        let mut txn = Transaction::new(PgId::new(PoolId(1), seed));
        txn.push(TxnOp::Write { oid: oid.clone(), offset: 0, data: self.payload.clone().into() });
        let attrs = vec![
            ("_".to_owned(), Bytes::from_static(&[7; 200])),
            ("snapset".to_owned(), Bytes::from_static(&[3; 30])),
        ];
        txn.push(TxnOp::SetAttrs { oid, attrs });
        txn.push(TxnOp::LogAppend(vec![(at(*version), Bytes::from_static(&[9; 180]))]));
        txn.push(TxnOp::MetaSet(vec![("info".to_owned(), Bytes::from_static(&[1; 150]))]));
        if *version > 2000 && version.is_multiple_of(64) {
            txn.push(TxnOp::LogTrim(at(*version - 2000)));
        }
        txn
    }
}

/// Bytes that this process has written to the disk.
fn written_bytes() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/self/io")?;
    let line = text.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    Ok(line.context("an unknown /proc/self/io")?.parse()?)
}

/// Whether the last three slices had about as many writes.
fn is_steady(slices: &[u64]) -> bool {
    let Some(last) = slices.last_chunk::<3>() else { return false };
    let (least, most) = (last.iter().min().unwrap_or(&0), last.iter().max().unwrap_or(&0));
    (most - least) * 30 <= last.iter().sum::<u64>()
}

fn writes(store: &dyn ObjectStore, load: &mut Load<'_>) -> Result<Figures> {
    let (sender, done): (_, Receiver<Vec<u64>>) = channel();
    let sink: Arc<dyn CommitSink> = Arc::new(Back(Mutex::new(sender)));
    for seed in 0..PGS {
        store.commit(&Transaction {
            collection: PgId::new(PoolId(1), seed),
            ops: vec![TxnOp::CreateCollection],
        })?;
    }
    let mut random = 88_172_645_463_325_252;
    let mut submitted = vec![Instant::now(); load.plan.depth];
    let mut free: Vec<u64> = (0..load.plan.depth as u64).collect();
    let mut latencies = Vec::new();
    let mut begun = Instant::now();
    let cpu = [rustix::time::ClockId::ThreadCPUTime, rustix::time::ClockId::ProcessCPUTime];
    let mut before = cpu.map(cpu_of);
    let mut disk = written_bytes()?;
    let deadline = Duration::from_secs_f64(load.plan.seconds);
    let mut count = 0_u64;
    let warm_up = Duration::from_secs_f64(load.plan.warm_up);
    let (mut warming, mut slices, mut sliced) = (!warm_up.is_zero(), Vec::new(), begun);
    while warming || begun.elapsed() < deadline {
        if warming && sliced.elapsed() >= SLICE {
            slices.push(count);
            (sliced, count) = (Instant::now(), 0);
            if is_steady(&slices) || begun.elapsed() >= warm_up {
                latencies.clear();
                (warming, begun, before, disk) = (false, sliced, cpu.map(cpu_of), written_bytes()?);
            }
        }
        for token in free.drain(..) {
            let object = next_random(&mut random) % load.plan.objects;
            let txn = load.transaction(object as usize);
            submitted[token as usize] = Instant::now();
            store.queue_transaction(&txn, Some(Completion { sink: sink.clone(), token }))?;
        }
        let mut tokens = done.recv()?;
        while let Ok(more) = done.try_recv() {
            tokens.extend(more);
        }
        count += tokens.len() as u64;
        latencies.extend(tokens.iter().map(|token| submitted[*token as usize].elapsed()));
        free = tokens;
    }
    let elapsed = begun.elapsed().as_secs_f64();
    let used = [0, 1].map(|at| (cpu_of(cpu[at]) - before[at]).as_secs_f64() / count as f64 * 1e6);
    let disk_bytes = (written_bytes()? - disk) as f64 / count as f64;
    store.flush()?;
    latencies.sort_unstable();
    let percentile =
        |share: f64| latencies[((latencies.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6;
    Ok(Figures {
        count,
        per_second: count as f64 / elapsed,
        p50_us: percentile(0.5),
        p99_us: percentile(0.99),
        p999_us: percentile(0.999),
        disk_bytes,
        submitting_us: used[0],
        process_us: used[1],
    })
}

fn reads(store: &dyn ObjectStore, load: &Load<'_>) -> Result<Figures> {
    let mut random = 88_172_645_463_325_252;
    let (begun, mut count) = (Instant::now(), 0_u64);
    let before = cpu_of(rustix::time::ClockId::ProcessCPUTime);
    let mut latencies = Vec::new();
    while begun.elapsed().as_secs_f64() < load.plan.seconds / 5.0 {
        let object = (next_random(&mut random) % load.plan.objects) as usize;
        let started = Instant::now();
        match store.read(PgId::new(PoolId(1), object as u32 % PGS), &load.objects[object], 0, u64::MAX) {
            Ok(data) => assert_eq!(data.len(), load.plan.size),
            Err(StoreError::NotFound(_)) => continue,
            Err(error) => return Err(error.into()),
        }
        latencies.push(started.elapsed());
        count += 1;
    }
    let elapsed = begun.elapsed().as_secs_f64();
    let used = cpu_of(rustix::time::ClockId::ProcessCPUTime) - before;
    latencies.sort_unstable();
    let percentile =
        |share: f64| latencies[((latencies.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6;
    let process_us = used.as_secs_f64() / count as f64 * 1e6;
    Ok(Figures {
        count,
        per_second: count as f64 / elapsed,
        p50_us: percentile(0.5),
        p99_us: percentile(0.99),
        p999_us: percentile(0.999),
        disk_bytes: 0.0,
        submitting_us: process_us,
        process_us,
    })
}

/// Mounts a store that was made; gives it with a function that counts its syncs.
type Mounted = (Arc<dyn ObjectStore>, Box<dyn Fn() -> Result<u64>>);

fn mount(name: &str, directory: &Path) -> Result<Mounted> {
    Ok(match name {
        "memstore" => {
            let config = MemStoreConfig { device_bytes: 4 << 30, ..MemStoreConfig::default() };
            (Arc::new(MemStore::mount(directory, config)?.0), Box::new(|| Ok(0)))
        }
        "filestore" => {
            let (store, _) = FileStore::mount(directory, FileStoreConfig::default(), Arc::new(IgnoreEvents))?;
            let store = Arc::new(store);
            (store.clone(), Box::new(move || Ok(store.counters()?.syncs)))
        }
        "bluestore" => {
            let (store, _) = BlueStore::mount(directory, BlueStoreConfig::default(), Arc::new(IgnoreEvents))?;
            let store = Arc::new(store);
            let syncs = move |store: &BlueStore| -> Result<u64> {
                let counters = store.counters()?;
                Ok(counters.batches + counters.device_flushes)
            };
            (store.clone(), Box::new(move || syncs(&store)))
        }
        other => bail!("unknown store {other}"),
    })
}

fn run(name: &str, plan: &Plan, directory: &Path) -> Result<()> {
    let mut load = Load::new(plan);
    match name {
        "memstore" => _ = MemStore::mkfs(directory)?,
        "filestore" => _ = FileStore::mkfs(directory, &FileStoreConfig::default())?,
        "bluestore" => _ = BlueStore::mkfs(directory, 20 << 30, &BlueStoreConfig::default())?,
        other => bail!("unknown store {other}"),
    }
    let (store, syncs) = mount(name, directory)?;
    let before = syncs()?;
    let written = writes(&*store, &mut load)?;
    let syncs_each = (syncs()? - before) as f64 / written.count as f64;
    let read = reads(&*store, &load)?;
    store.umount()?;
    drop((store, syncs));
    let begun = Instant::now();
    let (store, _) = mount(name, directory)?;
    let mounted = begun.elapsed();
    let again = reads(&*store, &load)?;
    store.umount()?;
    if plan.json {
        println!(
            "{{\"store\": \"{name}\", \"size\": {}, \"write\": {:.1}, \"write_p50_us\": {:.1}, \"write_p99_us\": {:.1}, \"write_p999_us\": {:.1}, \"write_amplification\": {:.2}, \
             \"write_submitting_us\": {:.2}, \"write_cpu_us\": {:.2}, \"syncs\": {syncs_each:.4}, \"read\": {:.1}, \
             \"read_cpu_us\": {:.2}, \"read_again\": {:.1}, \"mount_ms\": {:.1}}}",
            plan.size,
            written.per_second,
            written.p50_us,
            written.p99_us,
            written.p999_us,
            written.disk_bytes / plan.size as f64,
            written.submitting_us,
            written.process_us,
            read.per_second,
            read.process_us,
            again.per_second,
            mounted.as_secs_f64() * 1e3,
        );
        return Ok(());
    }
    println!(
        "{name:>10} write {:>7} B qd {:<3} {:>9.0} txn/s  latency {:>6.0} µs p50 {:>6.0} p99  CPU/txn {:>5.1} µs submitting, \
         {:>5.1} process  {syncs_each:.3} syncs/txn",
        plan.size,
        plan.depth,
        written.per_second,
        written.p50_us,
        written.p99_us,
        written.submitting_us,
        written.process_us,
    );
    for (when, read) in [("", read), ("remounted", again)] {
        println!(
            "{name:>10} read  {:>7} B {when:<10} {:>9.0} /s  latency {:>6.0} µs p50 {:>6.0} p99  CPU {:>5.1} µs",
            plan.size, read.per_second, read.p50_us, read.p99_us, read.process_us,
        );
    }
    println!("{name:>10} mounted again in {mounted:?}");
    Ok(())
}

/// Ways to record allocation: name, and configuration.
fn schemes() -> [(&'static str, BlueStoreConfig); 3] {
    let usual = BlueStoreConfig::default();
    [
        ("off", BlueStoreConfig { checkpoint_bytes: 0, ..usual.clone() }),
        ("deltas", usual.clone()),
        ("records", BlueStoreConfig { allocation_from_file: false, ..usual }),
    ]
}

/// Writes by turns with each way to record allocation; each round begins with another one.
fn compare(plan: &Plan) -> Result<()> {
    let mut ratios = [Vec::new(), Vec::new()];
    for round in 0..plan.compare {
        let mut rates = [0.0; 3];
        for turn in 0..3 {
            let which = (round + turn) % 3;
            let (name, config) = schemes()[which].clone();
            let directory = tempfile::Builder::new().prefix("nacre-bench-").tempdir_in(&plan.directory)?;
            BlueStore::mkfs(directory.path(), 20 << 30, &config)?;
            let (store, _) = BlueStore::mount(directory.path(), config, Arc::new(IgnoreEvents))?;
            print!("{name:>8}");
            let written = writes(&store, &mut Load::new(plan))?;
            println!(
                " {:>9.0} txn/s  latency {:>6.0} µs p50 {:>6.0} p99",
                written.per_second, written.p50_us, written.p99_us
            );
            rates[which] = written.per_second;
            store.umount()?;
        }
        for (ratios, rate) in ratios.iter_mut().zip(&rates[1..]) {
            ratios.push(rate / rates[0]);
        }
    }
    for ((name, _), ratios) in schemes()[1..].iter().zip(&mut ratios) {
        ratios.sort_unstable_by(f64::total_cmp);
        println!("{name:>8} to off: median {:.3} of {ratios:.3?}", ratios[ratios.len() / 2]);
    }
    Ok(())
}

fn main() -> Result<()> {
    let plan = plan()?;
    if plan.compare > 0 {
        return compare(&plan);
    }
    for name in &plan.stores {
        let directory = tempfile::Builder::new().prefix("nacre-bench-").tempdir_in(&plan.directory)?;
        run(name, &plan, directory.path())?;
    }
    Ok(())
}
