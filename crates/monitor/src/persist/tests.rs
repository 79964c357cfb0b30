//! Tests that stored state is read back, wherever a crash interrupts a commit.

use super::*;
use crate::mapstore::{LeaseId, LocalStore, MapStoreError, RangePage, StoredEntry, Watch};
use nacre_common::auth::{Caps, Key};
use nacre_crush::CrushMap;
use nacre_fuzz::Target;
use nacre_mon::logic::{LogLevel, MapEvent, MapState, Tuning};
use nacre_mon::testing::{at, boot_of};
use nacre_types::ids::EntityName;
use nacre_types::pool::Pool;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// A store that fails permanently before the transaction after `left` others.
struct Mortal {
    store: Arc<LocalStore>,
    left: AtomicUsize,
}

impl MapStore for Mortal {
    fn transact(&self, txn: &Txn) -> Result<TxnOutcome, MapStoreError> {
        let alive = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        match alive {
            Ok(_) => self.store.transact(txn),
            Err(_) => Err(MapStoreError::Io("crashed".into())),
        }
    }
    fn get(&self, key: &[u8]) -> Result<Option<StoredEntry>, MapStoreError> {
        self.store.get(key)
    }
    fn range(&self, start: &[u8], end: &[u8], limit: usize) -> Result<RangePage, MapStoreError> {
        self.store.range(start, end, limit)
    }
    fn grant_lease(&self, ttl: Duration) -> Result<LeaseId, MapStoreError> {
        self.store.grant_lease(ttl)
    }
    fn keep_alive(&self, lease: LeaseId) -> Result<(), MapStoreError> {
        self.store.keep_alive(lease)
    }
    fn revoke_lease(&self, lease: LeaseId) -> Result<(), MapStoreError> {
        self.store.revoke_lease(lease)
    }
    fn watch(&self, start: &[u8], end: &[u8], revision: u64) -> Result<Box<dyn Watch>, MapStoreError> {
        self.store.watch(start, end, revision)
    }
}

fn made(dir: &Path) -> Arc<LocalStore> {
    let store = Arc::new(LocalStore::open(dir).unwrap());
    let map = OsdMap::new(Uuid::from_u128(7), 1, CrushMap::new_cluster("osd").unwrap());
    let mut keyring = Keyring::new();
    for id in 0..200 {
        let caps = Caps::from([("mon".to_owned(), "allow r".to_owned())]);
        keyring.insert(EntityName::client(format!("c{id}")), Key::generate().unwrap(), caps);
    }
    mkfs(store.as_ref(), &map, &keyring).unwrap();
    store
}

fn open(store: &Arc<LocalStore>) -> (Persistence, MapState) {
    let (persistence, loaded) = Persistence::open(store.clone(), "a").unwrap();
    (persistence, MapState::with_databases(loaded.map, Tuning::default(), at(0), loaded.databases))
}

/// Makes all pending changes durable.
fn commit(persistence: &mut Persistence, state: &mut MapState) -> Result<(), MonError> {
    while let Some(proposal) = state.propose(at(1)) {
        let lines = state.take_unstored_log(MAX_LOG_LINES);
        persistence.commit(&proposal, &lines)?;
        state.on_committed(proposal.number);
    }
    Ok(())
}

#[test]
fn a_cluster_is_made_once_and_comes_back_with_everything() {
    let dir = tempfile::tempdir().unwrap();
    let store = made(dir.path());
    let map = OsdMap::new(Uuid::from_u128(8), 1, CrushMap::default());
    assert!(matches!(mkfs(store.as_ref(), &map, &Keyring::new()), Err(MonError::Fenced)));
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
    let dir = tempfile::tempdir().unwrap();
    let store = made(dir.path());
    let (mut old, mut state) = open(&store);
    let (mut new, mut new_state) = open(&store);
    state.handle(at(0), MapEvent::Boot(boot_of(0, 1)));
    assert!(matches!(commit(&mut old, &mut state), Err(MonError::Fenced)));
    assert!(matches!(old.allocate_client_id(), Err(MonError::Fenced)));
    new_state.handle(at(0), MapEvent::Boot(boot_of(1, 1)));
    commit(&mut new, &mut new_state).unwrap();
    assert_eq!(open(&store).1.map(), new_state.map());
}

#[test]
fn a_crash_anywhere_in_a_large_commit_leaves_the_epoch_before_or_the_new_one() {
    let dir = tempfile::tempdir().unwrap();
    let store = made(dir.path());
    for survives in 0.. {
        let mortal = Arc::new(Mortal { store: store.clone(), left: AtomicUsize::new(1 + survives) });
        let (mut persistence, loaded) = Persistence::open(mortal.clone(), "a").unwrap();
        let mut state = MapState::with_databases(loaded.map, Tuning::default(), at(0), loaded.databases);
        let before = state.map().clone();
        // Metadata of 3 MB, keys of databases and log lines: several transactions.
        for osd in 0..3 {
            let mut boot = boot_of(osd, 2 + survives as u64);
            boot.metadata.insert("large".into(), "x".repeat(1 << 20));
            state.handle(at(0), MapEvent::Boot(boot));
        }
        for n in 0..300 {
            let who = ConfigTarget::parse("global").unwrap();
            state.put_option(&who, &format!("option_{n}"), "1");
        }
        let outcome = commit(&mut persistence, &mut state);
        let (_, after) = open(&store);
        match outcome {
            Ok(()) => {
                assert_eq!(after.map(), state.map());
                assert!(survives > 4, "the commit took {survives} transactions only");
                return;
            }
            Err(MonError::Store(MapStoreError::Io(_))) => assert_eq!(after.map(), &before),
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn full_maps_replace_old_incrementals_and_subscribers_get_what_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let store = made(dir.path());
    let (mut persistence, mut state) = open(&store);
    for n in 1..=750_u64 {
        state.handle(at(0), MapEvent::Boot(boot_of(0, n)));
        commit(&mut persistence, &mut state).unwrap();
        persistence.trim(state.map(), state.log().trim_limit()).unwrap();
    }
    let newest = state.map().epoch;
    assert_eq!(persistence.last(), newest);
    let stored = |prefix: &[u8]| read_prefix(store.as_ref(), prefix).unwrap().len();
    assert!(stored(keys::FULL_MAPS) <= 2, "{} full maps", stored(keys::FULL_MAPS));
    assert!(
        (KEPT_INCREMENTALS as usize..700).contains(&stored(keys::INCREMENTALS)),
        "{}",
        stored(keys::INCREMENTALS)
    );
    let (after, again) = open(&store);
    assert_eq!(again.map(), state.map());
    let last_two = after.incrementals(Epoch(newest.0 - 1), usize::MAX).unwrap();
    assert_eq!(last_two.len(), 2);
    let inc: Incremental = encoding::decode(&last_two[1]).unwrap();
    assert_eq!(inc.epoch, newest);
    assert_eq!(after.incrementals(newest.next(), 1).unwrap().len(), 0);
    assert_eq!(after.incrementals(Epoch(2), 1), None, "too old: a full map is needed");
    assert_eq!(persistence.incrementals(Epoch(newest.0 - 9), 1).unwrap().len(), 1, "bounded in bytes");
}

#[test]
fn many_log_lines_are_deleted_as_fast_as_they_are_stored() {
    let dir = tempfile::tempdir().unwrap();
    let store = made(dir.path());
    let (mut persistence, mut state) = open(&store);
    state.set_tuning(Tuning { log_max_lines: 100, ..Tuning::default() });
    let mut most = 0;
    for second in 0..12 {
        for _ in 0..40 {
            for line in 0..MAX_LOG_LINES {
                state.append_log(at(second * 1_000), LogLevel::Info, format!("line {line}"));
            }
            let lines = state.take_unstored_log(MAX_LOG_LINES);
            persistence.commit(&Proposal::empty(), &lines).unwrap();
        }
        persistence.trim(state.map(), state.log().trim_limit()).unwrap();
        most = most.max(read_prefix(store.as_ref(), keys::LOG).unwrap().len());
    }
    assert!(most <= 100 + OPS_PER_TXN, "{most} lines");
    assert_eq!(state.log().last(1, LogLevel::Info, "*")[0].seq, 12 * 40 * MAX_LOG_LINES as u64);
}

#[test]
fn client_ids_are_unique_across_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let store = made(dir.path());
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..3 {
        let (mut persistence, _) = open(&store);
        for _ in 0..1_500 {
            assert!(seen.insert(persistence.allocate_client_id().unwrap()));
        }
    }
}

#[test]
fn a_restored_store_goes_on_under_a_new_generation_beyond_what_was_seen() {
    let dir = tempfile::tempdir().unwrap();
    let store = made(dir.path());
    let (mut persistence, mut state) = open(&store);
    state.handle(at(0), MapEvent::Boot(boot_of(0, 1)));
    commit(&mut persistence, &mut state).unwrap();
    let now_ns = 1_800_000_000_000_000_000;
    let generation = mint_generation(store.clone(), now_ns, &[]).unwrap();
    assert_eq!(generation, 1_800_000_000);
    let (mut persistence, mut again) = open(&store);
    assert_eq!(again.map().generation, generation);
    assert!(again.map().epoch.0 > state.map().epoch.0 + 500_000);
    assert!(again.map().pool_max > state.map().pool_max);
    assert!(again.map().osds.values().all(|info| !info.up));
    assert_eq!(persistence.incrementals(state.map().epoch, 1), None);
    again.handle(at(0), MapEvent::Boot(boot_of(1, 1)));
    commit(&mut persistence, &mut again).unwrap();
    assert!(
        mint_generation(store.clone(), 5, &[]).unwrap() > generation,
        "a clock that was set back does not repeat one"
    );
}

#[test]
fn a_restored_store_gives_out_no_client_id_of_the_lost_history() {
    let dir = tempfile::tempdir().unwrap();
    let store = made(dir.path());
    let ids = |count: usize| {
        let (mut persistence, _) = open(&store);
        (0..count)
            .map(|_| persistence.allocate_client_id().unwrap())
            .collect::<std::collections::BTreeSet<u64>>()
    };
    let restore = || {
        let copy = Txn::default().put(keys::NEXT_CLIENT, number(FIRST_CLIENT));
        store.transact(&copy).unwrap();
    };
    let mut seen = ids(5_000);
    for second in [1_800_000_000, 1_800_000_001] {
        // The same copy each time.
        restore();
        mint_generation(store.clone(), second * 1_000_000_000, &[]).unwrap();
        let new = ids(5_000);
        assert!(seen.is_disjoint(&new));
        assert!(new.iter().all(|id| *id < 1 << 53));
        seen.extend(new);
    }
    // A clock that was set back.
    mint_generation(store.clone(), 5, &[]).unwrap();
    assert!(seen.is_disjoint(&ids(5_000)));
    store.transact(&Txn::default().put(keys::NEXT_CLIENT, number(u64::MAX - 5_000))).unwrap();
    assert!(matches!(mint_generation(store, 5, &[]), Err(MonError::Invalid(_))));
}

/// Flips a byte in the middle of the used part of the newest log of a map store's database.
fn damage_newest_log(store: &Path) {
    let files = std::fs::read_dir(store.join("db")).unwrap().map(|file| file.unwrap().path());
    let newest = files.filter(|path| path.extension().is_some_and(|e| e == "log")).max().unwrap();
    let mut bytes = std::fs::read(&newest).unwrap();
    let filled = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    bytes[filled / 2] ^= 1;
    std::fs::write(&newest, bytes).unwrap();
}

#[test]
fn a_store_with_a_damaged_log_is_refused_until_a_generation_is_minted() {
    let dir = tempfile::tempdir().unwrap();
    let path = crate::store_dir(dir.path()).unwrap();
    let ids = |store: &Arc<LocalStore>, count: usize| {
        let (mut persistence, _) = open(store);
        (0..count)
            .map(|_| persistence.allocate_client_id().unwrap())
            .collect::<std::collections::BTreeSet<u64>>()
    };
    let store = made(&path);
    drop(store);
    let store = Arc::new(LocalStore::open(&path).unwrap());
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..100 {
        // Two transactions each: one takes over the store, one reserves ids.
        seen.extend(ids(&store, 2));
    }
    drop(store);
    damage_newest_log(&path);
    for _ in 0..2 {
        match LocalStore::open(&path).map(|_| ()) {
            Err(MapStoreError::Corrupt(text)) => assert!(text.contains("mint a generation"), "{text}"),
            other => panic!("{other:?}"),
        }
    }
    // An earlier attempt to mint a generation was interrupted.
    let store = Arc::new(LocalStore::open_allowing_loss(&path).unwrap());
    for _ in 0..200 {
        ids(&store, 1);
    }
    drop(store);
    assert!(matches!(LocalStore::open(&path), Err(MapStoreError::Corrupt(_))));
    crate::mint_generation(dir.path(), &[]).unwrap();
    for _ in 0..2 {
        let store = Arc::new(LocalStore::open(&path).unwrap());
        let new = ids(&store, 2_000);
        assert!(seen.is_disjoint(&new));
        seen.extend(new);
    }
}

#[test]
fn a_restored_store_numbers_service_keys_apart_from_those_of_the_lost_history() {
    let dir = tempfile::tempdir().unwrap();
    let store = made(dir.path());
    let now_unix = 1_800_000_000;
    let copy = RotatingSecrets::generate(now_unix - 10, 3_600).unwrap();
    open(&store).0.put_service_keys(&copy).unwrap();
    mint_generation(store.clone(), now_unix * 1_000_000_000, &[]).unwrap();
    let (_, loaded) = Persistence::open(store, "a").unwrap();
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
    let dir = tempfile::tempdir().unwrap();
    let store = made(dir.path());
    let (mut persistence, mut state) = open(&store);
    state.handle(at(0), MapEvent::Boot(boot_of(0, 1)));
    commit(&mut persistence, &mut state).unwrap();
    let key = head_key(keys::INCREMENTALS, state.map().epoch);
    let mut value = store.get(&key).unwrap().unwrap().value;
    let last = value.len() - 1;
    value[last] ^= 1;
    store.transact(&Txn::default().put(key.clone(), value)).unwrap();
    assert!(matches!(Persistence::open(store.clone(), "a"), Err(MonError::Corrupt { .. })));
    store.transact(&Txn::default().delete(key)).unwrap();
    assert!(matches!(Persistence::open(store, "a"), Err(MonError::Corrupt { .. })));
}

/// A stored map: the length of its head, its head, and the values of its keys in pieces of `PIECE` bytes.
#[test]
fn fuzz_stored_maps() {
    const PIECE: usize = 64;
    let corpus = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"));
    let joined = |head: &MapHead, chunks: &[u8]| {
        let head = encoding::encode(head);
        [&(head.len() as u32).to_le_bytes()[..], &head, chunks].concat()
    };
    let map: Vec<u8> = (0..200).collect();
    let (crc, bytes) = (crc32c(&map), map.len() as u64);
    let seeds = vec![
        joined(&MapHead { chunks: 4, bytes, crc, inline: Vec::new() }, &map),
        joined(&MapHead { chunks: 0, bytes, crc, inline: map.clone() }, &[]),
    ];
    Target::new("stored-map", corpus, seeds).run(|input| {
        let (length, rest) = input.split_first_chunk::<4>()?;
        let (head, chunks) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        let pieces: Vec<&[u8]> = chunks.chunks(PIECE).collect();
        let piece =
            |at: u32| pieces.get(at as usize).map(|piece| piece.to_vec()).ok_or_else(|| missing(b"chunk"));
        let map = join(head, piece).ok()??;
        let inline = MapHead { chunks: 0, bytes: map.len() as u64, crc: crc32c(&map), inline: map };
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
