//! Power cuts (rule B7): BlueStore runs on a layer under both its device and RocksDB's files that records every change
//! and every fsync. From one recording many crash states are built, each keeping what was fsynced and dropping, tearing
//! or keeping the rest at random. On each state the check must find nothing, every acknowledged transaction must be
//! whole, and what is there must be a prefix of what was queued.
//!
//! The layer is the C library's calls defined anew in this binary, which the linker prefers to the library's; a test
//! proves that it sees everything. `NACRE_CRASH_RUNS` and `NACRE_CRASH_CUTS` raise the numbers of recordings and states.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "crash/calls.rs"]
mod calls;
#[path = "crash/recorder.rs"]
mod recorder;
#[path = "suite/reference.rs"]
mod reference;
#[path = "crash/replay.rs"]
mod replay;

use bytes::Bytes;
use nacre_store::{
    BlueStore, BlueStoreConfig, CommitSink, Completion, IgnoreEvents, ObjectStore, StoreError,
};
use nacre_types::ids::{Eversion, Interval, PgId, PoolId};
use nacre_types::txn::{Transaction, TxnOp};
use parking_lot::{Mutex, MutexGuard};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use recorder::Event;
use reference::{Model, any_op, difference};
use replay::{Keep, Rng};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The recorder and the failpoints are the process' own: one test at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock()
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

fn config() -> BlueStoreConfig {
    BlueStoreConfig {
        cache_bytes: 2 << 20,
        db_cache_bytes: 1 << 20,
        // Small, so that flushes, compactions and recycled logs happen within a recording.
        write_buffer_bytes: 96 << 10,
        grow_bytes: 2 << 20,
        ballast_bytes: 0,
        watermark_interval: Duration::from_millis(2),
        ..BlueStoreConfig::default()
    }
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
    /// The first event after which a crash must leave a store behind.
    made: usize,
}

/// The token of a collection's transaction.
fn token(collection: usize, index: usize) -> u64 {
    (collection << 32 | index) as u64
}

/// The log version that transaction `index` of a collection writes: tells from a store how far it got.
fn log_version(index: usize) -> Eversion {
    Eversion::new(Interval(1000), index as u64 + 1)
}

/// Runs random transactions on a new store in `root`, through a process crash and a clean restart; with a failpoint
/// once the store is made.
fn record(root: &Path, seed: u64, transactions: usize, failpoint: Option<&str>) -> Recording {
    let mut bytes = [7; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let mut random = Rng::new(seed);
    let draw = |runner: &mut TestRunner| any_op().new_tree(runner).unwrap().current();

    recorder::begin(root);
    BlueStore::mkfs(root, 256 << 20, &config()).unwrap();
    let made = recorder::position();
    failpoint.into_iter().for_each(|failpoint| fail::cfg(failpoint, "return").unwrap());
    let mut models = vec![Model::default(); COLLECTIONS];
    let mut queued = vec![Vec::new(); COLLECTIONS];
    for phase in 0..3 {
        let (store, report) = BlueStore::mount(root, config(), Arc::new(IgnoreEvents)).unwrap();
        assert_eq!(report.loss, None);
        for _ in 0..transactions / 3 {
            let at = random.below(COLLECTIONS as u64) as usize;
            let index = queued[at].len();
            let mut txn = Transaction::new(coll(at));
            if index == 0 {
                txn.push(TxnOp::CreateCollection);
            }
            for _ in 0..1 + random.below(3) {
                match draw(&mut runner) {
                    // The log is what the test tells progress by.
                    TxnOp::LogAppend(_) | TxnOp::LogTrim(_) | TxnOp::LogTruncate(_) => {}
                    op => _ = txn.push(op),
                }
            }
            txn.push(TxnOp::LogAppend(vec![(log_version(index), Bytes::from_static(b"entry"))]));
            let Some(next) = models[at].apply(&txn) else { continue };
            models[at] = next;
            let completion = Completion { sink: Arc::new(MarkSink), token: token(at, index) };
            store.queue_transaction(&txn, Some(completion)).unwrap();
            queued[at].push(txn);
            if random.below(4) == 0 {
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
    failpoint.into_iter().for_each(fail::remove);
    Recording { events: recorder::end(), queued, made }
}

/// Checks the store that a crash left in `directory`; says what is wrong.
fn check(directory: &Path, recording: &Recording, cut: usize) -> Result<(), String> {
    let report = BlueStore::fsck(directory, &config(), true).map_err(|error| format!("fsck: {error}"))?;
    if !report.findings.is_empty() {
        return Err(format!("fsck: {:?}", report.findings));
    }
    let mounted = BlueStore::mount(directory, config(), Arc::new(IgnoreEvents));
    let (store, report) = mounted.map_err(|error| format!("mount: {error}"))?;
    if let Some(loss) = report.loss {
        return Err(format!("mount: {loss}"));
    }
    for (at, queued) in recording.queued.iter().enumerate() {
        let acknowledged = recording.events[..cut].iter().filter_map(|event| match event {
            Event::Mark(mark) if (mark >> 32) as usize == at => Some((mark & 0xffff_ffff) as usize + 1),
            _ => None,
        });
        let acknowledged = acknowledged.max().unwrap_or(0);
        let present = match store.read_log(coll(at), Eversion::default(), usize::MAX) {
            Ok(log) => log.len(),
            Err(StoreError::NoCollection(_)) => 0,
            Err(error) => return Err(format!("log: {error}")),
        };
        if present < acknowledged {
            return Err(format!("{} has {present} transactions, {acknowledged} were acknowledged", coll(at)));
        }
        if present > 0 {
            let mut model = Model::default();
            for txn in &queued[..present] {
                model = model.apply(txn).expect("the model took it before");
            }
            if let Some(difference) = difference(&store, coll(at), &model) {
                return Err(format!("{} after {present} transactions: {difference}", coll(at)));
            }
        }
    }
    // It must also be a store that can go on.
    let ops = vec![
        TxnOp::CreateCollection,
        TxnOp::Write {
            oid: nacre_types::object::ObjectId::new(PoolId(3), "", "", "after the crash"),
            offset: 0,
            data: Bytes::from(reference::pattern(cut as u64, 300_000)),
        },
    ];
    let after = Transaction { collection: coll(0), ops };
    store.commit(&after).and_then(|()| store.umount()).map_err(|error| format!("going on: {error}"))?;
    let report = BlueStore::fsck(directory, &config(), true).map_err(|error| format!("fsck: {error}"))?;
    if report.findings.is_empty() {
        Ok(())
    } else {
        Err(format!("fsck after going on: {:?}", report.findings))
    }
}

/// Records a run and checks `cuts` crash states of it; returns the first failure.
fn crash_run(seed: u64, transactions: usize, cuts: u64, failpoint: Option<&str>) -> Result<(), String> {
    let live = tempfile::Builder::new().prefix("nacre-crash-").tempdir().unwrap();
    let recording = record(live.path(), seed, transactions, failpoint);
    let mut random = Rng::new(seed ^ 0x5eed);
    for cut_seed in 0..cuts {
        let span = (recording.events.len() - recording.made) as u64;
        let cut = recording.made + random.below(span + 1) as usize;
        let keep = match cut_seed % 4 {
            0 => Keep::Nothing,
            1 => Keep::Everything,
            _ => Keep::Random,
        };
        let state = tempfile::Builder::new().prefix("nacre-crash-state-").tempdir().unwrap();
        replay::build(&recording.events[..cut], state.path(), keep, &mut Rng::new(seed ^ cut_seed << 32));
        check(state.path(), &recording, cut).map_err(|problem| {
            format!("seed {seed}, state {cut_seed} (cut at {cut}, {keep:?}): {problem}")
        })?;
    }
    Ok(())
}

#[test]
fn power_cuts_lose_nothing_acknowledged() {
    let _alone = alone();
    for seed in 0..number("NACRE_CRASH_RUNS", 4) {
        crash_run(seed, 120, number("NACRE_CRASH_CUTS", 24), None).unwrap();
    }
}

/// The suite must be able to fail: a store that skips one of its two syncs is caught.
#[test]
fn stores_that_skip_a_sync_are_caught() {
    let _alone = alone();
    for failpoint in ["store::skip_data_flush", "store::skip_wal_sync"] {
        let caught = (100..110).find_map(|seed| crash_run(seed, 60, 16, Some(failpoint)).err());
        let problem = caught.unwrap_or_else(|| panic!("{failpoint} went unnoticed"));
        eprintln!("{failpoint}: {problem}");
    }
}

/// The recording must be complete: replayed in full it gives what is in the directory.
#[test]
fn recorder_sees_every_change() {
    let _alone = alone();
    let live = tempfile::Builder::new().prefix("nacre-crash-").tempdir().unwrap();
    let recording = record(live.path(), 1, 90, None);
    assert!(recording.events.iter().any(|event| matches!(event, Event::Mark(_))));
    let state = tempfile::Builder::new().prefix("nacre-crash-state-").tempdir().unwrap();
    replay::build(&recording.events, state.path(), Keep::Everything, &mut Rng::new(1));
    let (have, want) = (replay::contents(state.path()), replay::contents(live.path()));
    assert_eq!(have.keys().collect::<Vec<_>>(), want.keys().collect::<Vec<_>>());
    assert!(want.keys().any(|name| name.ends_with(".log")) && want.len() > 5, "{:?}", want.keys());
    for (name, contents) in &want {
        assert!(have[name] == *contents, "{name} differs");
    }
}
