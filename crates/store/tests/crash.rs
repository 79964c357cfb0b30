//! Power cuts (rule B7): BlueStore and FileStore run on a layer under all their files, RocksDB's included, that records
//! every change and every fsync. From one recording many crash states are built, each keeping what was fsynced and dropping, tearing
//! or keeping the rest at random. On each state the check must find nothing, every acknowledged transaction must be
//! whole, and what is there must be a prefix of what was queued, over all collections: what the disk of the simulator keeps of
//! a crash. The start after a cut is recorded too, and cut again.
//!
//! The layer is the C library's calls, redefined in this binary, which the linker prefers to the library's; a test
//! proves that it sees everything. `NACRE_CRASH_RUNS` and `NACRE_CRASH_CUTS` raise the numbers of recordings and states.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "crash/calls.rs"]
mod calls;
#[path = "crash/faults.rs"]
mod faults;
#[path = "crash/recorder.rs"]
mod recorder;
#[path = "suite/reference.rs"]
mod reference;
#[path = "crash/replay.rs"]
mod replay;

use bytes::Bytes;
use faults::Fault;
use nacre_store::{
    AllocationSource, BlueStore, BlueStoreConfig, ChecksumType, CommitSink, Completion, CompressionMode,
    DataOptions, FileStore, FileStoreConfig, IgnoreEvents, MountReport, ObjectStore, StoreError,
};
use nacre_types::ids::{Eversion, Interval, PgId, PoolId};
use nacre_types::object::ObjectId;
use nacre_types::txn::{Transaction, TxnOp};
use parking_lot::{Mutex, MutexGuard};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use recorder::Event;
use reference::{Model, any_op, difference};
use replay::{Keep, Rng};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The recorder and the failpoints are the process' own: one test at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock()
}

/// A count from the environment, else the one for long test runs or the usual one.
fn number(variable: &str, usual: u64, long: u64) -> u64 {
    let given = std::env::var(variable).ok().and_then(|value| value.parse().ok());
    let is_long = std::env::var("NEXTEST_PROFILE").is_ok_and(|profile| profile == "long");
    given.unwrap_or(if is_long { long } else { usual })
}

/// A store under test and how it is set up.
#[derive(Clone)]
enum Store {
    Blue(BlueStoreConfig, u64),
    File(FileStoreConfig),
}

impl Store {
    fn new(load: Load, seed: u64) -> Store {
        match load {
            Load::Files | Load::AnyOnFiles => Store::File(file_config(seed)),
            Load::Any => Store::Blue(config(seed), 256 << 20),
            Load::OwnSettings => Store::Blue(own_settings(), 256 << 20),
            Load::Tight => Store::Blue(config(seed), 8 << 20),
        }
    }

    fn mkfs(&self, root: &Path) {
        match self {
            Store::Blue(config, size) => _ = BlueStore::mkfs(root, *size, config).unwrap(),
            Store::File(config) => _ = FileStore::mkfs(root, config).unwrap(),
        }
    }

    fn mount(&self, root: &Path) -> Result<(Box<dyn ObjectStore>, MountReport), StoreError> {
        Ok(match self {
            Store::Blue(config, _) => {
                let (store, report) = BlueStore::mount(root, config.clone(), Arc::new(IgnoreEvents))?;
                store.set_data_options(data_options(config));
                (Box::new(store), report)
            }
            Store::File(config) => {
                let (store, report) = FileStore::mount(root, config.clone(), Arc::new(IgnoreEvents))?;
                (Box::new(store), report)
            }
        })
    }

    /// What a deep check finds wrong.
    fn fsck(&self, root: &Path, may_scan: bool) -> Result<(), String> {
        let failed = |error: StoreError| format!("fsck: {error}");
        let findings = match self {
            Store::Blue(config, _) => {
                let report = BlueStore::fsck(root, config, true).map_err(failed)?;
                if !may_scan && matches!(report.allocation, None | Some(AllocationSource::Scan { .. })) {
                    return Err(format!("a scan would be needed: {:?}", report.allocation));
                }
                (!report.findings.is_empty()).then(|| format!("{:?}", report.findings))
            }
            Store::File(config) => {
                let findings = FileStore::fsck(root, config, true).map_err(failed)?.findings;
                (!findings.is_empty()).then(|| format!("{findings:?}"))
            }
        };
        findings.map_or(Ok(()), |findings| {
            Err(format!("fsck: {}", findings.chars().take(2000).collect::<String>()))
        })
    }
}

fn file_config(seed: u64) -> FileStoreConfig {
    FileStoreConfig {
        // Small, so that the ring wraps and is trimmed within a recording.
        journal_bytes: 4 << 20,
        // Some runs sync all the time, some now and then, some only when the journal is full.
        max_sync_interval: [Duration::from_millis(1), Duration::from_millis(30), Duration::from_secs(60)]
            [(seed % 3) as usize],
        min_sync_interval: Duration::from_millis(1),
        split_multiple: 1,
        merge_threshold: if seed.is_multiple_of(2) { 1 } else { -1 },
        open_files: 6,
        cached_objects: 64,
        device_bytes: 1 << 30,
        min_free_bytes: 0,
        db_cache_bytes: 1 << 20,
        write_buffer_bytes: 96 << 10,
        ..FileStoreConfig::default()
    }
}

fn config(seed: u64) -> BlueStoreConfig {
    BlueStoreConfig {
        // Some runs defer most writes, some the small ones, some none.
        prefer_deferred_bytes: [1 << 20, 32 << 10, 0][(seed / 2 % 3) as usize],
        cache_bytes: 2 << 20,
        db_cache_bytes: 1 << 20,
        // Small, so that flushes, compactions and recycled logs happen within a recording.
        write_buffer_bytes: 96 << 10,
        // Little at a time, so that blocks are soon used again.
        grow_bytes: 256 << 10,
        ballast_bytes: 0,
        watermark_interval: Duration::from_millis(2),
        // Little, so that there are many checkpoints. Some runs keep allocation in the database.
        checkpoint_bytes: 1 << 10,
        allocation_from_file: seed % 5 != 4,
        // Some runs allocate in larger units, and some tell the device of freed space.
        min_alloc_bytes: if seed % 7 == 3 { 16_384 } else { 4096 },
        discard: seed % 3 == 1,
        ..BlueStoreConfig::default()
    }
}

/// An OSD's own, but for the sizes of what it fills ahead: each state is written in full.
fn own_settings() -> BlueStoreConfig {
    BlueStoreConfig {
        wal_prefill: true,
        write_buffer_bytes: 1 << 20,
        ballast_bytes: 1 << 20,
        ..BlueStoreConfig::default()
    }
}

/// Runs with discards also compress what can be compressed, and check it in their own way.
fn data_options(config: &BlueStoreConfig) -> BTreeMap<PoolId, DataOptions> {
    let options = DataOptions {
        mode: CompressionMode::Force,
        checksum: ChecksumType::Xxhash64,
        min_chunk_bytes: 16 << 10,
        ..DataOptions::default()
    };
    config.discard.then_some((PoolId(3), options)).into_iter().collect()
}

const COLLECTIONS: usize = 3;

fn coll(index: usize) -> PgId {
    PgId::new(PoolId(3), index as u32)
}

/// Marks acknowledgements in the recording.
struct MarkSink;

impl CommitSink for MarkSink {
    fn committed(&self, tokens: &[u64]) {
        tokens.iter().for_each(|token| recorder::mark(*token));
    }

    fn failed(&self, _tokens: &[u64], error: &StoreError) {
        panic!("{error}");
    }
}

/// A recorded run.
struct Recording {
    events: Vec<Event>,
    /// Per collection, the transactions in the order in which they were queued.
    queued: Vec<Vec<Transaction>>,
    /// The collections of all transactions, in the order in which they were queued.
    order: Vec<usize>,
    store: Store,
    /// The first event after which a crash must leave a store behind.
    made: usize,
    /// Calls failed, a checkpoint's perhaps: a start may have to scan.
    failing: bool,
}

/// The token of a collection's transaction.
fn token(collection: usize, index: usize) -> u64 {
    (collection << 32 | index) as u64
}

/// The log version that transaction `index` of a collection writes: tells from a store how far it got.
fn log_version(index: usize) -> Eversion {
    Eversion::new(Interval(1000), index as u64 + 1)
}

/// What a recorded run does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    /// Any operations on BlueStore, with room.
    Any,
    /// The same, with the settings of an OSD.
    OwnSettings,
    /// Small overwrites on a BlueStore so full that blocks are reused as soon as they may be.
    Tight,
    /// Any operations on FileStore.
    AnyOnFiles,
    /// Many objects that come, go, are renamed and cloned, so that FileStore's directories split and merge.
    Files,
}

/// A step on one of many objects.
fn file_op(random: &mut Rng) -> TxnOp {
    let name = |random: &mut Rng| {
        // Long names are kept apart by their numbers only.
        let long = if random.below(4) == 0 { "x".repeat(300) } else { String::new() };
        ObjectId::new(PoolId(3), "", "", &format!("{}{long}", random.below(70)))
    };
    let (oid, other) = (name(random), name(random));
    match random.below(9) {
        0 => TxnOp::Remove(oid),
        1 => TxnOp::Rename { from: oid, to: other },
        2 => TxnOp::Clone { from: oid, to: other },
        3 => TxnOp::SetAttrs {
            oid,
            attrs: (0..3)
                .map(|at| {
                    (format!("a{at}"), reference::pattern(random.below(99), 1 << random.below(12)).into())
                })
                .collect(),
        },
        4 => TxnOp::Truncate { oid, size: random.below(200_000) },
        _ => {
            let (offset, len) = (random.below(100_000), 1 + random.below(120_000) as usize);
            TxnOp::Write { oid, offset, data: reference::pattern(random.below(1 << 40), len).into() }
        }
    }
}

fn write(name: &str, seed: u64, len: u64) -> TxnOp {
    let oid = ObjectId::new(PoolId(3), "", "", name);
    TxnOp::Write { oid, offset: 0, data: Bytes::from(reference::pattern(seed, len as usize)).into() }
}

/// Runs random transactions on a new store in `root`, through a process crash and clean restarts; with a failpoint once
/// the store is made.
fn record(root: &Path, seed: u64, load: Load, transactions: usize, failpoint: Option<&str>) -> Recording {
    let mut bytes = [7; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let mut random = Rng::new(seed);
    let draw = |runner: &mut TestRunner| any_op().new_tree(runner).unwrap().current();

    let under_test = Store::new(load, seed);
    recorder::begin(root);
    under_test.mkfs(root);
    let made = recorder::position();
    failpoint.into_iter().for_each(|failpoint| fail::cfg(failpoint, "return").unwrap());
    let mut models = vec![Model::default(); COLLECTIONS];
    let (mut queued, mut order) = (vec![Vec::new(); COLLECTIONS], Vec::new());
    for phase in 0..3 {
        let (store, report) = under_test.mount(root).unwrap();
        assert_eq!(report.loss, None);
        for step in 0..transactions / 3 {
            let at = if matches!(load, Load::Tight | Load::Files) {
                0
            } else {
                random.below(COLLECTIONS as u64) as usize
            };
            let index = queued[at].len();
            let mut txn = Transaction::new(coll(at));
            if index == 0 {
                txn.push(TxnOp::CreateCollection);
            }
            if load == Load::Tight && phase == 0 && step < 8 {
                // 1984 of the 2032 blocks.
                txn.push(write(&format!("filler {step}"), step as u64, 248 * 4096));
            }
            for _ in 0..1 + random.below(3) {
                let op = match load {
                    Load::Any | Load::OwnSettings | Load::AnyOnFiles => draw(&mut runner),
                    Load::Files => file_op(&mut random),
                    Load::Tight => write(
                        &format!("small {}", random.below(5)),
                        random.below(1 << 40),
                        4096 << random.below(2),
                    ),
                };
                match op {
                    // The log is what the test tells progress by.
                    TxnOp::LogAppend(_) | TxnOp::LogTrim(_) | TxnOp::LogTruncate(_) => {}
                    op => _ = txn.push(op),
                }
            }
            txn.push(TxnOp::LogAppend(vec![(log_version(index), Bytes::from_static(b"entry"))]));
            let Some(next) = models[at].apply(&txn) else { continue };
            models[at] = next;
            let completion = Completion { sink: Arc::new(MarkSink), token: token(at, index) };
            let mut tries = 0;
            while let Err(error) = store.queue_transaction(&txn, Some(completion.clone())) {
                // What was freed is free once that is durable, and copies of deferred writes are.
                assert!(matches!(error, StoreError::NoSpace { .. }) && tries < 200, "{error}");
                tries += 1;
                store.flush().unwrap();
                std::thread::sleep(Duration::from_millis(5));
            }
            queued[at].push(txn);
            order.push(at);
            if random.below(10) == 0 {
                store.flush().unwrap();
            }
        }
        if phase == 0 {
            store.flush().unwrap();
            drop(store);
        } else {
            store.umount().unwrap();
        }
    }
    Recording { events: recorder::end(), queued, order, store: under_test, made, failing: false }
}

/// How many transactions of each collection were acknowledged among the first `cut` events.
fn acknowledged(events: &[Event]) -> [usize; COLLECTIONS] {
    let mut counts = [0; COLLECTIONS];
    for event in events {
        if let Event::Mark(mark) = event {
            let count = &mut counts[(mark >> 32) as usize];
            *count = (*count).max((mark & 0xffff_ffff) as usize + 1);
        }
    }
    counts
}

/// How many transactions of each collection a store has.
fn transactions_of(store: &dyn ObjectStore) -> Result<[usize; COLLECTIONS], String> {
    let mut counts = [0; COLLECTIONS];
    for (at, count) in counts.iter_mut().enumerate() {
        *count = match store.read_log(coll(at), Eversion::default(), usize::MAX) {
            Ok(log) => log.len(),
            Err(StoreError::NoCollection(_)) => 0,
            Err(error) => return Err(format!("log: {error}")),
        };
    }
    Ok(counts)
}

/// Checks the store that a crash left in `directory`, with at least so many transactions of each collection; says what is
/// wrong.
fn check(directory: &Path, recording: &Recording, at_least: [usize; COLLECTIONS]) -> Result<(), String> {
    recording.store.fsck(directory, recording.failing)?;
    let (store, report) = recording.store.mount(directory).map_err(|error| format!("mount: {error}"))?;
    if let Some(loss) = report.loss {
        return Err(format!("mount: {loss}"));
    }
    let present = transactions_of(&*store)?;
    // A crash keeps the first of all transactions, whatever collections they are of.
    let kept = &recording.order[..present.iter().sum()];
    for (at, queued) in recording.queued.iter().enumerate() {
        let (present, at_least) = (present[at], at_least[at]);
        if present < at_least {
            return Err(format!("{} has {present} transactions, {at_least} were there", coll(at)));
        }
        let in_order = kept.iter().filter(|collection| **collection == at).count();
        if present != in_order {
            return Err(format!("{} has {present} transactions, of the first of all {in_order}", coll(at)));
        }
        if present > 0 {
            let mut model = Model::default();
            for txn in &queued[..present] {
                model = model.apply(txn).expect("the model took it before");
            }
            if let Some(difference) = difference(&*store, coll(at), &model) {
                return Err(format!("{} after {present} transactions: {difference}", coll(at)));
            }
        }
    }
    // It must also be a store that can go on.
    let ops = vec![TxnOp::CreateCollection, write("after the crash", at_least[0] as u64, 30_000)];
    let after = Transaction { collection: coll(0), ops };
    store.commit(&after).and_then(|()| store.umount()).map_err(|error| format!("going on: {error}"))?;
    recording.store.fsck(directory, recording.failing).map_err(|error| format!("after going on: {error}"))
}

/// Removes a failpoint when dropped.
struct Broken<'a>(&'a str);

impl Drop for Broken<'_> {
    fn drop(&mut self) {
        fail::remove(self.0);
    }
}

/// A power cut of a recorded run.
fn a_cut(events: &[Event], after: usize, number: u64, random: &mut Rng) -> (usize, Keep) {
    let cut = after + random.below((events.len() - after) as u64 + 1) as usize;
    let keep = match number % 4 {
        0 => Keep::Nothing,
        1 => Keep::Everything,
        _ => Keep::Random,
    };
    (cut, keep)
}

/// Records a run and checks `cuts` crash states of it; returns the first failure.
fn crash_run(
    seed: u64,
    load: Load,
    transactions: usize,
    cuts: u64,
    failpoint: Option<&str>,
) -> Result<(), String> {
    // What is broken is so during recovery too.
    let _failpoint = failpoint.map(Broken);
    let live = tempfile::Builder::new().prefix("nacre-crash-").tempdir().unwrap();
    let recording = record(live.path(), seed, load, transactions, failpoint);
    let mut random = Rng::new(seed ^ 0x5eed);
    for number in 0..cuts {
        let (cut, keep) = a_cut(&recording.events, recording.made, number, &mut random);
        let state = tempfile::Builder::new().prefix("nacre-crash-state-").tempdir().unwrap();
        replay::build(&recording.events[..cut], state.path(), keep, &mut Rng::new(seed ^ number << 32));
        let at_least = acknowledged(&recording.events[..cut]);
        check(state.path(), &recording, at_least)
            .map_err(|problem| format!("seed {seed}, state {number} (cut at {cut}, {keep:?}): {problem}"))?;
    }
    Ok(())
}

/// Records a run, cuts it, records the start after it, and checks `cuts` crash states of that start; returns the first failure.
/// What a start has shown stays.
fn recovery_crash_run(seed: u64, load: Load, transactions: usize, cuts: u64) -> Result<(), String> {
    const MOUNTED: u64 = u64::MAX;
    let live = tempfile::Builder::new().prefix("nacre-crash-").tempdir().unwrap();
    let recording = record(live.path(), seed, load, transactions, None);
    let mut random = Rng::new(seed ^ 0x2c07);
    let (cut, keep) = a_cut(&recording.events, recording.made, 2 + seed % 2, &mut random);
    let at_least = acknowledged(&recording.events[..cut]);
    let state = tempfile::Builder::new().prefix("nacre-crash-state-").tempdir().unwrap();
    recorder::begin(state.path());
    replay::build(&recording.events[..cut], state.path(), keep, &mut Rng::new(seed));
    // What a crash left is what the disk has.
    recorder::synced_everything();
    let left = recorder::position();
    let (store, report) = recording.store.mount(state.path()).map_err(|error| format!("mount: {error}"))?;
    assert_eq!(report.loss, None);
    let shown = transactions_of(&*store)?;
    recorder::mark(MOUNTED);
    drop(store);
    let events = recorder::end();
    for number in 0..cuts {
        let (again, keep_again) = a_cut(&events, left, number, &mut random);
        let is_mounted = events[..again].iter().any(|event| matches!(event, Event::Mark(MOUNTED)));
        let state = tempfile::Builder::new().prefix("nacre-crash-again-").tempdir().unwrap();
        replay::build(&events[..again], state.path(), keep_again, &mut Rng::new(seed ^ number << 32));
        check(state.path(), &recording, if is_mounted { shown } else { at_least }).map_err(|problem| {
            format!(
                "seed {seed} (cut at {cut}, {keep:?}), state {number} (start cut at {again} of {}, {keep_again:?}): {problem}",
                events.len()
            )
        })?;
    }
    Ok(())
}

#[test]
fn power_cuts_lose_nothing_acknowledged() {
    let _alone = alone();
    for seed in 0..number("NACRE_CRASH_RUNS", 6, 100) {
        let load = if seed % 3 == 2 { Load::Tight } else { Load::Any };
        crash_run(seed, load, 120, number("NACRE_CRASH_CUTS", 20, 50), None).unwrap();
    }
}

#[test]
fn power_cuts_lose_nothing_acknowledged_with_the_settings_of_an_osd() {
    let _alone = alone();
    for seed in 0..number("NACRE_CRASH_RUNS", 2, 20) {
        crash_run(seed, Load::OwnSettings, 120, number("NACRE_CRASH_CUTS", 8, 20), None).unwrap();
    }
}

#[test]
fn power_cuts_during_a_start_lose_nothing() {
    let _alone = alone();
    for seed in 0..number("NACRE_CRASH_RUNS", 10, 100) {
        let loads = [Load::Any, Load::Tight, Load::AnyOnFiles, Load::Files, Load::OwnSettings];
        let load = loads[seed as usize % loads.len()];
        recovery_crash_run(seed, load, 60, number("NACRE_CRASH_CUTS", 8, 20)).unwrap();
    }
}

#[test]
fn power_cuts_lose_nothing_acknowledged_on_files() {
    let _alone = alone();
    for seed in 0..number("NACRE_CRASH_RUNS", 8, 100) {
        let load = if seed % 2 == 1 { Load::Files } else { Load::AnyOnFiles };
        crash_run(seed, load, 150, number("NACRE_CRASH_CUTS", 20, 50), None).unwrap();
    }
}

/// Marks acknowledgements; a store may fail.
struct AnySink;

impl CommitSink for AnySink {
    fn committed(&self, tokens: &[u64]) {
        tokens.iter().for_each(|token| recorder::mark(*token));
    }

    fn failed(&self, _tokens: &[u64], _error: &StoreError) {}
}

/// Runs random transactions while calls fail, until the store stops; returns what was done and how many calls failed.
fn run_failing(root: &Path, seed: u64, load: Load, fault: Fault) -> (Recording, u64) {
    let under_test = Store::new(load, seed);
    let mut random = Rng::new(seed);
    let mut runner = TestRunner::new_with_rng(
        Config::default(),
        TestRng::from_seed(RngAlgorithm::ChaCha, &[(seed as u8).wrapping_add(1); 32]),
    );
    recorder::begin(root);
    under_test.mkfs(root);
    let made = recorder::position();
    let mut models = vec![Model::default(); COLLECTIONS];
    let (mut queued, mut order) = (vec![Vec::new(); COLLECTIONS], Vec::new());
    let (store, _) = under_test.mount(root).unwrap();
    faults::arm(fault);
    for _ in 0..400 {
        let at = random.below(COLLECTIONS as u64) as usize;
        let index = queued[at].len();
        let mut txn = Transaction::new(coll(at));
        if index == 0 {
            txn.push(TxnOp::CreateCollection);
        }
        for _ in 0..1 + random.below(3) {
            match any_op().new_tree(&mut runner).unwrap().current() {
                TxnOp::LogAppend(_) | TxnOp::LogTrim(_) | TxnOp::LogTruncate(_) => {}
                op => _ = txn.push(op),
            }
        }
        txn.push(TxnOp::LogAppend(vec![(log_version(index), Bytes::from_static(b"entry"))]));
        let Some(next) = models[at].apply(&txn) else { continue };
        let completion = Completion { sink: Arc::new(AnySink), token: token(at, index) };
        match store.queue_transaction(&txn, Some(completion)) {
            Ok(()) => {
                models[at] = next;
                queued[at].push(txn);
                order.push(at);
            }
            // Refused and not done, for a read that failed or for space; the store may go on.
            Err(_) if store.stopped().is_none() => {}
            Err(_) => break,
        }
        if random.below(10) == 0 && store.flush().is_err() {
            break;
        }
    }
    // A store that was not struck down ends cleanly, or not, in turn.
    if seed.is_multiple_of(2) && store.umount().is_err() {
        eprintln!("seed {seed}: not unmounted");
    }
    drop(store);
    let struck = faults::disarm();
    (Recording { events: recorder::end(), queued, order, store: under_test, made, failing: true }, struck)
}

/// Errors of writes, of fsyncs, of reads and a full file system under the database: what was acknowledged is there when
/// the fault is gone, and the store is sound.
#[test]
fn failing_calls_lose_nothing_acknowledged() {
    let _alone = alone();
    let mut struck_in_all = 0;
    for seed in 0..number("NACRE_FAULT_RUNS", 32, 400) {
        let mut random = Rng::new(seed ^ 0xfa17);
        let after = 1 + random.below(300);
        // Shows the seed of a run that hangs.
        eprintln!("seed {seed}");
        let fault = match seed % 4 {
            0 => Fault::Write(after),
            1 => Fault::Sync(1 + after / 4),
            2 => Fault::DatabaseFull(after),
            _ => Fault::Read(1 + after / 30),
        };
        let load = if seed / 4 % 3 == 2 { Load::AnyOnFiles } else { Load::Any };
        let live = tempfile::Builder::new().prefix("nacre-fault-").tempdir().unwrap();
        let (recording, struck) = run_failing(live.path(), seed, load, fault);
        struck_in_all += struck;
        let checked = check(live.path(), &recording, acknowledged(&recording.events));
        checked.unwrap_or_else(|problem| panic!("seed {seed}, {fault:?} ({struck} struck): {problem}"));
    }
    assert!(struck_in_all > 25, "{struck_in_all} calls failed");
}

/// A store whose database can write its log but no table files stops with an error, and keeps what it acknowledged.
#[test]
fn a_database_without_space_for_tables_stops_the_store() {
    let _alone = alone();
    for load in [Load::Any, Load::AnyOnFiles] {
        let directory = tempfile::Builder::new().prefix("nacre-fault-").tempdir().unwrap();
        let root = directory.path();
        let under_test = Store::new(load, 0);
        recorder::begin(root);
        under_test.mkfs(root);
        let (store, _) = under_test.mount(root).unwrap();
        store.commit(&Transaction { collection: coll(0), ops: vec![TxnOp::CreateCollection] }).unwrap();
        let oid = |number: u32| ObjectId::new(PoolId(3), "", "", &format!("{number}"));
        let value = Bytes::from(vec![7; 4000]);
        faults::arm(Fault::TablesFull);
        let mut acknowledged = 0;
        let error = loop {
            let entries = vec![(Bytes::from_static(b"key"), value.clone())];
            let ops = vec![TxnOp::OmapSet { oid: oid(acknowledged), entries }];
            match store.commit(&Transaction { collection: coll(0), ops }) {
                Ok(()) => acknowledged += 1,
                Err(error) => break error,
            }
            assert!(acknowledged < 10_000, "{load:?}: the database goes on without tables");
        };
        assert!(store.stopped().is_some(), "{load:?}: {error}");
        drop(store);
        assert!(faults::disarm() > 0, "{load:?}");
        recorder::end();
        let (store, _) = under_test.mount(root).unwrap();
        for number in 0..acknowledged {
            let found = store.omap_get(coll(0), &oid(number), &[Bytes::from_static(b"key")]).unwrap();
            assert_eq!(found.len(), 1, "{load:?}: object {number} of {acknowledged}");
        }
        store.umount().unwrap();
        under_test.fsck(root, true).unwrap();
    }
}

/// The suite must be able to fail: a store that skips one of its two syncs, or reuses blocks before
/// the transaction that frees them is durable, is caught.
#[test]
fn stores_that_break_a_rule_are_caught() {
    let _alone = alone();
    let broken = [
        ("store::skip_data_flush", Load::Any),
        ("store::skip_wal_sync", Load::Any),
        ("store::reuse_at_once", Load::Tight),
        ("filestore::skip_journal_sync", Load::AnyOnFiles),
        ("filestore::skip_syncfs", Load::AnyOnFiles),
        ("filestore::skip_database_sync", Load::AnyOnFiles),
        ("filestore::skip_clone_sync", Load::Files),
        ("filestore::forget_names", Load::Files),
    ];
    for (failpoint, load) in broken {
        let caught = (99..119).find_map(|seed| crash_run(seed, load, 120, 12, Some(failpoint)).err());
        let problem = caught.unwrap_or_else(|| panic!("{failpoint} went unnoticed"));
        eprintln!("{failpoint}: {problem}");
    }
}

/// The recording must be complete: replayed in full it gives what is in the directory.
#[test]
fn recorder_sees_every_change() {
    let _alone = alone();
    for load in [Load::Any, Load::Files] {
        recorder_sees_every_change_of(load);
    }
}

fn recorder_sees_every_change_of(load: Load) {
    let live = tempfile::Builder::new().prefix("nacre-crash-").tempdir().unwrap();
    let recording = record(live.path(), 1, load, 90, None);
    assert!(recording.events.iter().any(|event| matches!(event, Event::Mark(_))));
    let state = tempfile::Builder::new().prefix("nacre-crash-state-").tempdir().unwrap();
    // A start after a cut is recorded from the state that the replay builds.
    recorder::begin(state.path());
    replay::build(&recording.events, state.path(), Keep::Everything, &mut Rng::new(1));
    let built = recorder::end();
    let again = tempfile::Builder::new().prefix("nacre-crash-again-").tempdir().unwrap();
    replay::build(&built, again.path(), Keep::Everything, &mut Rng::new(1));
    let want = replay::contents(live.path());
    assert!(want.keys().any(|name| name.ends_with(".log")) && want.len() > 5, "{:?}", want.keys());
    assert_eq!(load == Load::Files, want.values().any(|(_, attributes)| !attributes.is_empty()));
    for directory in [&state, &again] {
        let have = replay::contents(directory.path());
        assert_eq!(have.keys().collect::<Vec<_>>(), want.keys().collect::<Vec<_>>());
        for (name, contents) in &want {
            assert!(have[name].0 == contents.0, "{name} differs");
            assert!(have[name].1 == contents.1, "the attributes of {name} differ");
        }
    }
}
