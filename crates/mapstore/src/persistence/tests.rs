//! Tests that stored state is read back, wherever a crash interrupts a commit, and whatever happens to a transaction.

use super::*;
use crate::faulty::{Fate, FaultyStore};
use crate::generation::mint_generation;
use crate::values::{ValueHead, head_key, join};
use crate::{MapStoreError, MemoryStore};
use futures::executor::block_on;
use nacre_common::auth::{Caps, Key, ServiceKey};
use nacre_crush::CrushMap;
use nacre_fuzz::Target;
use nacre_mon::logic::{LogLevel, MapEvent, MapState, Tuning};
use nacre_mon::testing::{at, boot_of};
use nacre_types::crc32c::crc32c;
use nacre_types::ids::EntityName;
use nacre_types::pool::Pool;
use std::path::Path;
use std::result::Result;

pub(crate) fn made() -> MemoryStore {
    let store = MemoryStore::default();
    let map = OsdMap::new(Uuid::from_u128(7), 1, CrushMap::new_cluster("osd").unwrap());
    let mut keyring = Keyring::new();
    for id in 0..200 {
        let caps = Caps::from([("mon".to_owned(), "allow r".to_owned())]);
        keyring.insert(EntityName::client(format!("c{id}")), Key::generate().unwrap(), caps);
    }
    block_on(mkfs(&store, &map, &keyring)).unwrap();
    store
}

fn try_open(store: Arc<dyn MapStore>) -> Result<(Persistence, LoadedState), PersistError> {
    block_on(Persistence::open(store, "a"))
}

fn state_of(loaded: LoadedState) -> MapState {
    MapState::with_databases(loaded.map, Tuning::default(), at(0), loaded.databases)
}

pub(crate) fn open(store: &MemoryStore) -> (Persistence, MapState) {
    let (persistence, loaded) = try_open(Arc::new(store.clone())).unwrap();
    (persistence, state_of(loaded))
}

/// Makes all pending changes durable.
pub(crate) fn commit(persistence: &mut Persistence, state: &mut MapState) -> Result<(), PersistError> {
    while let Some(proposal) = state.propose(at(1)) {
        let lines = state.take_unstored_log(MAX_COMMIT_LOG_LINES);
        block_on(persistence.commit(&proposal, &lines))?;
        state.on_committed(proposal.number);
    }
    Ok(())
}

/// Trims as the map authority does.
fn trim(persistence: &mut Persistence, state: &MapState) {
    let due = Persistence::is_full_map_due(persistence.last_full(), state.map().epoch);
    block_on(persistence.trim(due.then(|| state.map()), state.log().trim_limit())).unwrap();
}

/// All keys with their values, except those of who owns the store.
pub(crate) fn contents(store: &MemoryStore) -> Vec<(Vec<u8>, Vec<u8>)> {
    let entries = block_on(read_prefix(store, b"")).unwrap();
    let of_owner = [keys::FENCE, keys::SEQUENCE];
    entries
        .into_iter()
        .filter(|entry| !of_owner.contains(&entry.key.as_slice()))
        .map(|entry| (entry.key, entry.value))
        .collect()
}

/// Metadata of 3 MB, keys of databases and log lines: several transactions.
pub(crate) fn make_large_changes(state: &mut MapState, nonce: u64) {
    for osd in 0..3 {
        let mut boot = boot_of(osd, nonce);
        boot.metadata.insert("large".into(), "x".repeat(1 << 20));
        state.handle(at(0), MapEvent::Boot(boot));
    }
    for n in 0..300 {
        let who = ConfigTarget::parse("global").unwrap();
        state.put_option(&who, &format!("option_{n}"), &nonce.to_string());
    }
}

#[test]
fn a_cluster_is_made_once_and_comes_back_with_everything() {
    let store = made();
    let map = OsdMap::new(Uuid::from_u128(8), 1, CrushMap::default());
    assert!(matches!(block_on(mkfs(&store, &map, &Keyring::new())), Err(PersistError::AlreadyInitialised)));
    let (mut persistence, mut state) = open(&store);
    assert_eq!(state.auth().iter().count(), 200);
    state.handle(at(0), MapEvent::Boot(boot_of(0, 1)));
    state.add_pool(Pool::replicated("p", 3, 2, 0, 8, Epoch(0)));
    state.put_option(&ConfigTarget::parse("osd/class:ssd").unwrap(), "osd_max_backfills", "3");
    commit(&mut persistence, &mut state).unwrap();
    let (_, again) = open(&store);
    assert_eq!(again.map(), state.map());
    assert_eq!(
        again.config().iter().map(|(w, n, v)| format!("{w} {n} {v}")).collect::<Vec<_>>(),
        ["osd/class:ssd osd_max_backfills 3"]
    );
    assert!(
        again
            .log()
            .last(9, LogLevel::Info, "*")
            .iter()
            .any(|line| line.text.contains("osd.0 127.0.0.1:41000 boot"))
    );
    assert_eq!(again.crush_version(), state.crush_version());
}

#[test]
fn a_newcomer_fences_off_who_was_there() {
    let store = made();
    let (mut old, mut state) = open(&store);
    let (mut new, mut new_state) = open(&store);
    state.handle(at(0), MapEvent::Boot(boot_of(0, 1)));
    assert!(matches!(commit(&mut old, &mut state), Err(PersistError::Fenced)));
    assert!(matches!(block_on(old.reserve_client_ids()), Err(PersistError::Fenced)));
    new_state.handle(at(0), MapEvent::Boot(boot_of(1, 1)));
    commit(&mut new, &mut new_state).unwrap();
    assert_eq!(open(&store).1.map(), new_state.map());
}

#[test]
fn a_crash_anywhere_in_a_large_commit_leaves_all_of_it_or_nothing() {
    let made = made();
    let (mut persistence, mut state) = open(&made);
    make_large_changes(&mut state, 1);
    commit(&mut persistence, &mut state).unwrap();
    let options = |state: &MapState| {
        state.config().iter().map(|(_, name, value)| (name.to_owned(), value.to_owned())).collect::<Vec<_>>()
    };
    let mut completed_by_next_owner = 0;
    for survives in 0.. {
        let store = made.snapshot();
        let fates = std::iter::repeat_n(Fate::Answered, 1 + survives).chain([Fate::Crash]);
        let (mut persistence, loaded) = try_open(FaultyStore::new(&store, fates)).unwrap();
        let mut state = state_of(loaded);
        let before = (state.map().clone(), options(&state));
        make_large_changes(&mut state, 2);
        let outcome = commit(&mut persistence, &mut state);
        let (_, after) = open(&store);
        let after = (after.map().clone(), options(&after));
        if outcome.is_ok() {
            assert_eq!(after, (state.map().clone(), options(&state)));
            assert!(survives > 4, "the commit took {survives} transactions only");
            assert!(completed_by_next_owner > 1, "{completed_by_next_owner}");
            return;
        }
        assert!(matches!(outcome, Err(PersistError::Store(MapStoreError::Io(_)))), "{outcome:?}");
        if after != before {
            let whole = vec!["2".to_owned(); 300];
            assert_eq!(after.1.iter().map(|(_, value)| value.clone()).collect::<Vec<_>>(), whole);
            assert_eq!(after.0.epoch, before.0.epoch.next());
            assert!(block_on(read_prefix(&store, keys::STAGED)).unwrap().is_empty());
            completed_by_next_owner += 1;
        }
    }
}

#[test]
fn a_transaction_whose_outcome_is_unknown_takes_effect_once() {
    let made = made();
    let run = |fates: Vec<Fate>| {
        let store = made.snapshot();
        let faulty = FaultyStore::losing_reads(&store, fates);
        let (mut persistence, loaded) = try_open(faulty.clone()).unwrap();
        let mut state = state_of(loaded);
        make_large_changes(&mut state, 1);
        commit(&mut persistence, &mut state).unwrap();
        state.handle(at(0), MapEvent::Boot(boot_of(0, 2)));
        commit(&mut persistence, &mut state).unwrap();
        let ids = block_on(persistence.reserve_client_ids()).unwrap();
        assert_eq!(open(&store).1.map(), state.map());
        (contents(&store), ids, *faulty.count.lock())
    };
    let (expected, ids, count) = run(vec![Fate::Answered]);
    assert!(count > 9, "{count} transactions");
    for fate in [Fate::RequestLost, Fate::AnswerLost, Fate::Late] {
        for at in 0..count {
            // The transaction that takes over the store is one of them.
            let fates = std::iter::repeat_n(Fate::Answered, at).chain([fate, Fate::Answered]).collect();
            let (found, found_ids, _) = run(fates);
            assert!(found == expected && found_ids == ids, "{fate:?} of transaction {at}");
        }
        let fates = std::iter::repeat_n([fate, Fate::Answered], 2 * count).flatten().collect();
        assert!(run(fates).0 == expected, "{fate:?} of every second attempt");
    }
}

#[test]
fn a_late_transaction_of_a_fenced_owner_changes_nothing() {
    let store = made();
    let faulty = FaultyStore::new(&store, [Fate::Answered, Fate::Late, Fate::Crash]);
    let (mut old, loaded) = try_open(faulty.clone()).unwrap();
    let mut old_state = state_of(loaded);
    old_state.handle(at(0), MapEvent::Boot(boot_of(0, 1)));
    assert!(commit(&mut old, &mut old_state).is_err());
    let late = faulty.late.lock().pop().expect("its first attempt is on its way");
    let (mut new, mut new_state) = open(&store);
    new_state.handle(at(0), MapEvent::Boot(boot_of(1, 1)));
    commit(&mut new, &mut new_state).unwrap();
    assert!(matches!(block_on(store.transact(&late)), Ok(TxnOutcome::Conflict { .. })));
    assert_eq!(open(&store).1.map(), new_state.map());
}

#[test]
fn full_maps_replace_old_incrementals_and_subscribers_get_what_is_kept() {
    let store = made();
    let (mut persistence, mut state) = open(&store);
    for n in 1..=750_u64 {
        state.handle(at(0), MapEvent::Boot(boot_of(0, n)));
        commit(&mut persistence, &mut state).unwrap();
        trim(&mut persistence, &state);
    }
    let newest = state.map().epoch;
    assert_eq!(persistence.last, newest);
    let stored = |prefix: &[u8]| block_on(read_prefix(&store, prefix)).unwrap().len();
    assert!(stored(keys::FULL_MAPS) <= 2, "{} full maps", stored(keys::FULL_MAPS));
    assert!(
        (KEPT_INCREMENTALS as usize..700).contains(&stored(keys::INCREMENTALS)),
        "{}",
        stored(keys::INCREMENTALS)
    );
    let (_, loaded) = try_open(Arc::new(store)).unwrap();
    let after = loaded.incrementals;
    assert_eq!(&loaded.map, state.map());
    let last_two = after.range(Epoch(newest.0 - 1), usize::MAX).unwrap();
    assert_eq!(last_two.len(), 2);
    let inc: Incremental = encoding::decode(&last_two[1]).unwrap();
    assert_eq!(inc.epoch, newest);
    assert_eq!(after.range(newest.next(), 1).unwrap().len(), 0);
    assert_eq!(after.range(Epoch(2), 1), None, "too old: a full map is needed");
    assert_eq!(after.range(Epoch(newest.0 - 9), 1).unwrap().len(), 1, "bounded in bytes");
}

#[test]
fn many_log_lines_are_deleted_as_fast_as_they_are_stored() {
    let store = made();
    let (mut persistence, mut state) = open(&store);
    state.set_tuning(Tuning { log_max_lines: 100, ..Tuning::default() });
    let mut most = 0;
    for second in 0..12 {
        for _ in 0..40 {
            for line in 0..MAX_COMMIT_LOG_LINES {
                state.append_log(at(second * 1_000), LogLevel::Info, format!("line {line}"));
            }
            let lines = state.take_unstored_log(MAX_COMMIT_LOG_LINES);
            block_on(persistence.commit(&Proposal::empty(), &lines)).unwrap();
        }
        trim(&mut persistence, &state);
        most = most.max(block_on(read_prefix(&store, keys::LOG)).unwrap().len());
    }
    assert!(most <= 100 + OPS_PER_TXN, "{most} lines");
    assert_eq!(state.log().last(1, LogLevel::Info, "*")[0].seq, 12 * 40 * MAX_COMMIT_LOG_LINES as u64);
}

#[test]
fn client_ids_are_unique_across_restarts() {
    let store = made();
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..3 {
        let (mut persistence, _) = open(&store);
        for _ in 0..2 {
            assert!(block_on(persistence.reserve_client_ids()).unwrap().all(|id| seen.insert(id)));
        }
    }
}

#[test]
fn a_restored_store_goes_on_under_a_new_generation_beyond_what_was_seen() {
    let store = made();
    let (mut persistence, mut state) = open(&store);
    state.handle(at(0), MapEvent::Boot(boot_of(0, 1)));
    commit(&mut persistence, &mut state).unwrap();
    let now_ns = 1_800_000_000_000_000_000;
    let generation = block_on(mint_generation(Arc::new(store.clone()), now_ns, &[])).unwrap();
    assert_eq!(generation, 1_800_000_000);
    let (mut persistence, loaded) = try_open(Arc::new(store.clone())).unwrap();
    assert_eq!(loaded.incrementals.range(state.map().epoch, 1), None);
    let mut again = state_of(loaded);
    assert_eq!(again.map().generation, generation);
    assert!(again.map().epoch.0 > state.map().epoch.0 + 500_000);
    assert!(again.map().pool_max > state.map().pool_max);
    assert!(again.map().osds.values().all(|info| !info.up));
    again.handle(at(0), MapEvent::Boot(boot_of(1, 1)));
    commit(&mut persistence, &mut again).unwrap();
    assert!(
        block_on(mint_generation(Arc::new(store.clone()), 5, &[])).unwrap() > generation,
        "a clock that was set back does not repeat one"
    );
}

#[test]
fn a_restored_store_gives_out_no_client_id_of_the_lost_history() {
    let store = made();
    let ids = |count: u64| {
        let (mut persistence, _) = open(&store);
        (0..count / CLIENT_BLOCK)
            .flat_map(|_| block_on(persistence.reserve_client_ids()).unwrap())
            .collect::<std::collections::BTreeSet<u64>>()
    };
    let restore = || {
        let copy = Txn::default().put(keys::NEXT_CLIENT, number(FIRST_CLIENT));
        block_on(store.transact(&copy)).unwrap();
    };
    let mut seen = ids(5_000);
    for second in [1_800_000_000, 1_800_000_001] {
        // The same copy each time.
        restore();
        block_on(mint_generation(Arc::new(store.clone()), second * 1_000_000_000, &[])).unwrap();
        let new = ids(5_000);
        assert!(seen.is_disjoint(&new));
        assert!(new.iter().all(|id| *id < 1 << 53));
        seen.extend(new);
    }
    // A clock that was set back.
    block_on(mint_generation(Arc::new(store.clone()), 5, &[])).unwrap();
    assert!(seen.is_disjoint(&ids(5_000)));
    block_on(store.transact(&Txn::default().put(keys::NEXT_CLIENT, number(u64::MAX - 5_000)))).unwrap();
    assert!(matches!(block_on(mint_generation(Arc::new(store), 5, &[])), Err(PersistError::Invalid(_))));
}

#[test]
fn a_restored_store_numbers_service_keys_apart_from_those_of_the_lost_history() {
    let store = made();
    let now_unix = 1_800_000_000;
    let copy = RotatingSecrets::generate(now_unix - 10, 3_600).unwrap();
    block_on(open(&store).0.put_service_keys(&copy)).unwrap();
    block_on(mint_generation(Arc::new(store.clone()), now_unix * 1_000_000_000, &[])).unwrap();
    let (_, loaded) = try_open(Arc::new(store)).unwrap();
    let mut restored = loaded.service_keys.unwrap();
    let secrets =
        |keys: &[ServiceKey]| keys.iter().map(|key| (key.id, key.secret.clone())).collect::<Vec<_>>();
    assert_eq!(secrets(&restored.keys()[..2]), secrets(&copy.keys()[1..]), "tickets can still be renewed");
    assert!(restored.keys()[2].id > 1 << 50);
    let mut lost = copy;
    for hour in 1..5 {
        let later = now_unix + hour * 3_700;
        assert!(lost.rotate(later, 3_600).unwrap() && restored.rotate(later, 3_600).unwrap());
        assert!(lost.keys()[2].id < restored.keys()[2].id);
    }
}

#[test]
fn damaged_maps_are_noticed() {
    let store = made();
    let (mut persistence, mut state) = open(&store);
    state.handle(at(0), MapEvent::Boot(boot_of(0, 1)));
    commit(&mut persistence, &mut state).unwrap();
    let key = head_key(keys::INCREMENTALS, state.map().epoch);
    let mut value = block_on(store.get(&key)).unwrap().unwrap().value;
    let last = value.len() - 1;
    value[last] ^= 1;
    block_on(store.transact(&Txn::default().put(key.clone(), value))).unwrap();
    assert!(matches!(try_open(Arc::new(store.clone())), Err(PersistError::Corrupt { .. })));
    block_on(store.transact(&Txn::default().delete(key))).unwrap();
    assert!(matches!(try_open(Arc::new(store)), Err(PersistError::Corrupt { .. })));
}

/// A stored map: the length of its head, its head, and the values of its keys in pieces of `PIECE` bytes.
#[test]
fn fuzz_stored_maps() {
    const PIECE: usize = 64;
    let corpus = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"));
    let joined = |head: &ValueHead, chunks: &[u8]| {
        let head = encoding::encode(head);
        [&(head.len() as u32).to_le_bytes()[..], &head, chunks].concat()
    };
    let map: Vec<u8> = (0..200).collect();
    let (crc, bytes) = (crc32c(&map), map.len() as u64);
    let seeds = vec![
        joined(&ValueHead { chunks: 4, bytes, crc, inline: Vec::new() }, &map),
        joined(&ValueHead { chunks: 0, bytes, crc, inline: map.clone() }, &[]),
    ];
    Target::new("stored-map", corpus, seeds).run(|input| {
        let (length, rest) = input.split_first_chunk::<4>()?;
        let (head, chunks) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        let pieces: Vec<&[u8]> = chunks.chunks(PIECE).collect();
        let head: ValueHead = encoding::decode(head).ok()?;
        let pieces = pieces.get(..head.chunks as usize)?;
        let map = join(head, &pieces.iter().map(|piece| piece.to_vec()).collect::<Vec<_>>())?;
        let inline = ValueHead { chunks: 0, bytes: map.len() as u64, crc: crc32c(&map), inline: map };
        Some(joined(&inline, &[]))
    });
}

#[test]
fn fuzz_other_records() {
    let corpus = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"));
    let cluster = ClusterRecord { fsid: Uuid::from_u128(1), store_id: Uuid::from_u128(2), created_ns: 3 };
    Target::new("cluster", corpus, vec![encoding::encode(&cluster)])
        .run(|input| Some(encoding::encode(&encoding::decode::<ClusterRecord>(input).ok()?)));
    let line = ClusterLogEntry {
        stamp_ns: 4,
        name: "mon.a".into(),
        seq: 5,
        level: LogLevel::Info,
        text: "line".into(),
        channel: nacre_mon::logic::LogChannel::Cluster,
    };
    let encoded = |line: &ClusterLogEntry| postcard::to_extend(line, Vec::new()).unwrap();
    Target::new("log-line", corpus, vec![encoded(&line)])
        .run(|input| ClusterLogEntry::decode(input).ok().map(|line| encoded(&line)));
}
