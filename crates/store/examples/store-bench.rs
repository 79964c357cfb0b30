//! Measures a store without anything above it: small writes as an OSD makes them, at a queue depth.
//!
//! `cargo run -p nacre-store --example store-bench -- [--store memstore|bluestore] [--depth N] [--size BYTES]
//! [--seconds S] [--objects N] [--dir DIR] [--compare-allocation ROUNDS]`
//!
//! Each write replaces an object's data (or writes at the object's start) with two attributes, one log entry and a
//! metadata value, trimming the log beyond 2000 entries. Prints transactions per second, CPU per transaction of the
//! submitting thread and of the whole process, syncs per transaction, and then random reads. `--compare-allocation` writes
//! to BlueStore by turns with deltas of allocation, without, and with records of it in the database, and prints the
//! medians of the rounds' ratios to the rate without.

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use nacre_store::{
    BlueStore, BlueStoreConfig, CommitSink, Completion, IgnoreEvents, MemStore, MemStoreConfig, ObjectStore,
    StoreError,
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
    objects: u64,
    directory: PathBuf,
    /// Rounds of the comparison; 0 for none.
    compare: usize,
}

fn plan() -> Result<Plan> {
    let mut plan = Plan {
        stores: vec!["memstore".into(), "bluestore".into()],
        depth: 16,
        size: 4096,
        seconds: 5.0,
        objects: 10_000,
        directory: std::env::temp_dir(),
        compare: 0,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().with_context(|| format!("{name} needs a value"))?;
        match name.as_str() {
            "--store" => plan.stores = vec![value],
            "--depth" => plan.depth = value.parse()?,
            "--size" => plan.size = value.parse()?,
            "--seconds" => plan.seconds = value.parse()?,
            "--objects" => plan.objects = value.parse()?,
            "--dir" => plan.directory = value.into(),
            "--compare-allocation" => plan.compare = value.parse()?,
            _ => bail!("unknown option {name}"),
        }
    }
    Ok(plan)
}

/// Hands tokens back to the submitting thread, once per group commit.
struct Back(Mutex<Sender<Vec<u64>>>);

impl CommitSink for Back {
    fn committed(&self, tokens: &[u64]) {
        // The receiver outlives the run; at its end nobody listens any more.
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
        txn.push(TxnOp::Write { oid: oid.clone(), offset: 0, data: self.payload.clone() });
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

fn writes(store: &dyn ObjectStore, load: &mut Load<'_>) -> Result<u64> {
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
    let begun = Instant::now();
    let cpu = [rustix::time::ClockId::ThreadCPUTime, rustix::time::ClockId::ProcessCPUTime];
    let before = cpu.map(cpu_of);
    let deadline = Duration::from_secs_f64(load.plan.seconds);
    let mut count = 0_u64;
    while begun.elapsed() < deadline {
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
    store.flush()?;
    latencies.sort_unstable();
    let percentile =
        |share: f64| latencies[((latencies.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6;
    println!(
        "{:>10} write {:>7} B qd {:<3} {:>9.0} txn/s  latency {:>6.0} µs p50 {:>6.0} p99  CPU/txn {:>5.1} µs submitting, {:>5.1} process",
        store.kind(),
        load.plan.size,
        load.plan.depth,
        count as f64 / elapsed,
        percentile(0.5),
        percentile(0.99),
        used[0],
        used[1],
    );
    Ok(count)
}

fn reads(store: &dyn ObjectStore, load: &Load<'_>) -> Result<()> {
    let mut random = 88_172_645_463_325_252;
    let (begun, mut count) = (Instant::now(), 0_u64);
    while begun.elapsed().as_secs_f64() < load.plan.seconds / 5.0 {
        let object = (next_random(&mut random) % load.plan.objects) as usize;
        match store.read(PgId::new(PoolId(1), object as u32 % PGS), &load.objects[object], 0, u64::MAX) {
            Ok(data) => assert_eq!(data.len(), load.plan.size),
            Err(StoreError::NotFound(_)) => continue,
            Err(error) => return Err(error.into()),
        }
        count += 1;
    }
    let elapsed = begun.elapsed().as_secs_f64();
    println!("{:>10} read  {:>7} B      {:>9.0} /s", store.kind(), load.plan.size, count as f64 / elapsed);
    Ok(())
}

fn run(name: &str, plan: &Plan, directory: &Path) -> Result<()> {
    let mut load = Load::new(plan);
    match name {
        "memstore" => {
            MemStore::mkfs(directory)?;
            let config = MemStoreConfig { device_bytes: 4 << 30, ..MemStoreConfig::default() };
            let (store, _) = MemStore::mount(directory, config)?;
            writes(&store, &mut load)?;
            reads(&store, &load)
        }
        "bluestore" => {
            let config = BlueStoreConfig::default();
            BlueStore::mkfs(directory, 20 << 30, &config)?;
            let (store, _) = BlueStore::mount(directory, config.clone(), Arc::new(IgnoreEvents))?;
            let before = store.counters()?;
            let count = writes(&store, &mut load)?;
            let after = store.counters()?;
            println!(
                "{:>10} syncs/txn {:.3} (database {:.3}, device {:.3}), {:.1} txn per batch",
                "",
                (after.batches - before.batches + after.device_flushes - before.device_flushes) as f64
                    / count as f64,
                (after.batches - before.batches) as f64 / count as f64,
                (after.device_flushes - before.device_flushes) as f64 / count as f64,
                count as f64 / (after.batches - before.batches) as f64,
            );
            reads(&store, &load)?;
            store.umount()?;
            let begun = Instant::now();
            let (store, report) = BlueStore::mount(directory, config, Arc::new(IgnoreEvents))?;
            println!("{:>10} remount of {} objects in {:?}", "", report.objects, begun.elapsed());
            reads(&store, &load)?;
            store.umount().map_err(Into::into)
        }
        other => bail!("unknown store {other}"),
    }
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
            let count = writes(&store, &mut Load::new(plan))?;
            rates[which] = count as f64 / plan.seconds;
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
