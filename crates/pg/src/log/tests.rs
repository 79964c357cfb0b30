//! The log against a naive model, and individual rules.

use super::*;
use nacre_types::{Interval, PoolId};
use proptest::prelude::*;
use std::collections::BTreeMap;

const SMALL: DupLimits = DupLimits { per_client: 2, total: 3, total_bytes: 700, clients: 2, all_clients: 4 };

fn object(n: u8) -> ObjectId {
    ObjectId::new(PoolId(1), "", "", &format!("object{n}"))
}

fn request(client: u64, tid: u64) -> ReqId {
    ReqId { client: ClientId(client), tid }
}

fn at(interval: u64, version: u64) -> Eversion {
    Eversion::new(Interval(interval), version)
}

fn entry(version: Eversion, object_number: u8, reqid: ReqId) -> LogEntry {
    LogEntry {
        version,
        prior: Eversion::default(),
        object: object(object_number),
        kind: EntryKind::Modify,
        reqid,
        user_version: version.version,
        mtime_ns: 5,
        result: Bytes::from(format!("result of {reqid} at {version}")),
    }
}

fn log_of(count: u64, limits: DupLimits) -> PgLog {
    let mut log = PgLog::new(Eversion::default(), limits);
    for n in 1..=count {
        log.append(entry(at(1, n), n as u8, request(1, n)));
    }
    log
}

/// Applies updates to a stored copy of the dup records.
fn store(meta: &mut BTreeMap<String, Bytes>, updates: Vec<(String, Option<Bytes>)>) {
    for (key, value) in updates {
        match value {
            Some(value) => meta.insert(key, value),
            None => meta.remove(&key),
        };
    }
}

#[test]
fn trimmed_requests_are_still_answered_until_their_client_moves_on() {
    let mut log = log_of(4, DupLimits::default());
    assert_eq!(log.trim_to(at(1, 3)), [at(1, 1), at(1, 2), at(1, 3)]);
    assert_eq!((log.tail(), log.len()), (at(1, 3), 1));
    let dup = log.lookup(request(1, 2)).unwrap();
    assert_eq!((dup.version, dup.result), (at(1, 2), entry(at(1, 2), 2, request(1, 2)).result));

    log.update_oldest_tid(ClientId(1), 3, 0);
    assert_eq!(log.admit(request(1, 2), 0), DupCheck::Refused);
    assert!(matches!(log.admit(request(1, 3), 1), DupCheck::Duplicate(_)));
    assert!(matches!(log.admit(request(1, 4), 1), DupCheck::Duplicate(_)));
    assert_eq!(log.admit(request(1, 5), 1), DupCheck::Execute);
}

#[test]
fn divergent_entries_take_their_dup_records_along() {
    let mut log = log_of(2, DupLimits::default());
    log.append(entry(at(2, 3), 1, request(2, 9)));
    log.append(entry(at(2, 4), 1, request(1, 3)));
    let removed = log.truncate_after(at(1, 2));
    assert_eq!(removed.iter().map(|e| e.version).collect::<Vec<_>>(), [at(2, 4), at(2, 3)]);
    assert_eq!(log.latest_for_object(&object(1)).unwrap().version, at(1, 1));
    for gone in [request(2, 9), request(1, 3)] {
        assert_eq!(log.admit(gone, 3), DupCheck::Execute);
    }
    log.append(entry(at(3, 3), 1, request(2, 9)));
    assert_eq!(log.lookup(request(2, 9)).unwrap().version, at(3, 3));
}

#[test]
fn expired_sessions_are_refused_never_executed_again() {
    let mut log = log_of(4, DupLimits::default());
    log.trim_to(at(1, 2));
    assert_eq!(log.expire_sessions(1000, 100), [], "the term begins when a session is first looked at");
    log.update_oldest_tid(ClientId(1), 1, 1050);
    assert_eq!(log.expire_sessions(1149, 100), []);
    assert_eq!(log.expire_sessions(1150, 100), [ClientId(1)]);
    assert_eq!(log.expire_sessions(9999, 100), [], "expired once");
    assert_eq!(log.retained_dups(), (0, 0));
    assert!(log.is_refused(request(1, 2), 1));
    assert!(matches!(log.admit(request(1, 4), 1), DupCheck::Duplicate(_)), "the log still knows");
    log.trim_to(at(1, 4));
    assert!(log.is_refused(request(1, 4), 1));
    assert_eq!(log.admit(request(1, 5), 0), DupCheck::Execute);
}

#[test]
fn a_term_that_begins_anew_is_a_whole_one() {
    let mut log = log_of(4, DupLimits::default());
    log.update_oldest_tid(ClientId(1), 1, 1000);
    assert_eq!(log.expire_sessions(1010, 100), []);
    // The client may have been in contact with another OSD in the meantime.
    log.restart_session_terms(5000);
    assert_eq!(log.expire_sessions(5000, 100), []);
    assert_eq!(log.expire_sessions(5099, 100), []);
    log.update_oldest_tid(ClientId(1), 1, 5050);
    assert_eq!(log.expire_sessions(5149, 100), [], "it was heard since");
    assert_eq!(log.expire_sessions(5150, 100), [ClientId(1)]);
}

#[test]
fn sessions_expire_as_if_all_were_looked_at_each_time() {
    const TERM: u64 = 100;
    let mut log = PgLog::new(Eversion::default(), DupLimits::default());
    // By client: its last contact, if that is known, and whether it has expired.
    let mut model: BTreeMap<u64, (Option<u64>, bool)> = BTreeMap::new();
    let (mut dice, mut expired_so_far, mut terms_from) = (7_u64, 0, 0);
    let mut below = |limit: u64| {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (dice >> 33) % limit
    };
    for step in 1..4000 {
        let (now, client) = (step * 7, 1 + below(12));
        if below(3) == 0 {
            log.append(entry(at(1, log.head().version + 1), 1, request(client, step)));
            let known = model.entry(client).or_default();
            if known.1 {
                *known = (None, false);
            }
        } else if below(2) == 0
            && let Some(known) = model.get_mut(&client)
        {
            log.update_oldest_tid(ClientId(client), 0, now);
            *known = (Some(now), false);
        }
        if below(200) == 0 {
            log.restart_session_terms(now);
            terms_from = now;
        }
        if below(40) == 0 {
            let expiring: Vec<ClientId> = model
                .iter_mut()
                .filter_map(|(client, (contact, expired))| {
                    let contact = terms_from.max(*contact.get_or_insert(now));
                    let expires = !*expired && now - contact >= TERM;
                    *expired |= expires;
                    expires.then_some(ClientId(*client))
                })
                .collect();
            assert_eq!(log.expire_sessions(now, TERM), expiring, "step {step}");
            expired_so_far += expiring.len();
        }
    }
    assert!(expired_so_far > 50, "{expired_so_far} sessions expired");
}

#[test]
fn bounds_drop_the_oldest_dups_and_refuse_their_resends() {
    let mut log = log_of(10, DupLimits { per_client: 3, ..DupLimits::default() });
    log.trim_to(at(1, 10));
    assert_eq!(log.retained_dups().0, 3);
    assert!(log.is_refused(request(1, 7), 1) && !log.is_refused(request(1, 8), 1));

    let bytes = 5 * (96 + 30);
    let mut log = log_of(10, DupLimits { total_bytes: bytes, ..DupLimits::default() });
    log.trim_to(at(1, 10));
    let (count, size) = log.retained_dups();
    assert!((1..10).contains(&count) && size <= bytes, "{count} dups of {size} bytes");
}

#[test]
fn idle_clients_are_forgotten_before_others() {
    let mut log = PgLog::new(Eversion::default(), DupLimits { total: 0, ..SMALL });
    for client in 1..=4 {
        log.append(entry(at(1, client), 1, request(client, 1)));
    }
    log.trim_to(at(1, 4));
    log.update_oldest_tid(ClientId(1), 2, 0);
    assert_eq!(log.expire_sessions(0, 100), []);
    log.update_oldest_tid(ClientId(1), 2, 150);
    assert_eq!(log.expire_sessions(150, 100), [ClientId(2), ClientId(3), ClientId(4)]);
    for (client, admission) in
        [(1, DupCheck::Execute), (2, DupCheck::Refused), (3, DupCheck::Refused), (4, DupCheck::Execute)]
    {
        assert_eq!(log.admit(request(client, 2), 1), admission, "client {client}");
    }
}

#[test]
fn forgotten_clients_may_send_anew_but_not_resend() {
    let mut log = PgLog::new(Eversion::default(), DupLimits { all_clients: 2, ..SMALL });
    for client in 1..=8 {
        log.append(entry(at(1, client), 1, request(client, 1)));
    }
    log.trim_to(at(1, 8));
    // 3 retained, 2 floors, 3 forgotten.
    for client in 1..=5 {
        assert!(log.is_refused(request(client, 1), 1), "client {client}");
    }
    assert_eq!(log.admit(request(2, 2), 0), DupCheck::Execute);
    assert_eq!(log.admit(request(2, 2), 1), DupCheck::Refused, "nobody knows whether it took effect");
    assert_eq!(log.admit(request(9, 2), 1), DupCheck::Execute, "never seen here");
    log.append(entry(at(1, 9), 1, request(2, 2)));
    assert!(log.is_refused(request(2, 1), 1), "what came before stays refused");
    assert_eq!(log.retained_dups().0, 3);
}

#[test]
fn trimming_keeps_the_minimum_and_what_is_not_committed() {
    let log = log_of(10, DupLimits::default());
    assert_eq!(log.trim_point(3, 10, at(1, 10)), None);
    assert_eq!(log.trim_point(3, 9, at(1, 10)), Some(at(1, 7)));
    assert_eq!(log.trim_point(3, 9, at(1, 4)), Some(at(1, 4)));
    assert_eq!(log.trim_point(3, 9, Eversion::default()), None);
    assert_eq!(log.trim_point(0, 0, at(1, 10)), Some(at(1, 10)));
}

#[test]
fn common_ground_is_found_in_entries_and_tails() {
    let mut log = log_of(6, DupLimits::default());
    log.trim_to(at(1, 3));
    let versions = |vs: &[(u64, u64)]| vs.iter().map(|(i, v)| at(*i, *v)).collect::<Vec<_>>();
    assert_eq!(log.last_common(at(1, 1), &versions(&[(1, 2), (1, 3), (1, 4), (2, 5)])), Some(at(1, 4)));
    assert_eq!(log.last_common(at(1, 1), &versions(&[(1, 2), (1, 3)])), Some(at(1, 3)), "my tail");
    assert_eq!(log.last_common(at(1, 5), &versions(&[(2, 6)])), Some(at(1, 5)), "its tail");
    assert_eq!(log.last_common(at(1, 1), &versions(&[(1, 2)])), None);
    assert_eq!(log.last_common(at(1, 9), &[]), None);
}

#[test]
fn damaged_logs_are_refused() {
    let good: Vec<(Eversion, Bytes)> =
        log_of(3, DupLimits::default()).entries().map(|e| (e.version, e.encode())).collect();
    let load = |entries: Vec<(Eversion, Bytes)>| {
        PgLog::load(Eversion::default(), entries, &[], DupLimits::default()).map(|log| log.len())
    };
    assert_eq!(load(good.clone()), Ok(3));
    let mut gap = good.clone();
    gap.remove(1);
    assert_eq!(load(gap), Err(LogError::Gap { found: at(1, 3), after: at(1, 1) }));
    let mut swapped = good.clone();
    swapped[1].0 = at(1, 9);
    assert!(matches!(load(swapped), Err(LogError::Misplaced { .. })));
    let bytes = &good[1].1;
    for cut in 0..bytes.len() {
        let mut corrupt = good.clone();
        corrupt[1].1 = bytes.slice(..cut);
        assert!(matches!(load(corrupt), Err(LogError::Record { .. })), "cut at {cut}");
    }
    for key in ["dup.r.1.1", "dup.q", "dup.f.000000000000000g"] {
        let meta = [(key.to_owned(), Bytes::new())];
        let loaded = PgLog::load(Eversion::default(), Vec::new(), &meta, DupLimits::default());
        assert!(matches!(loaded, Err(LogError::Misplaced { .. })), "{key}");
    }
}

#[test]
fn results_beyond_the_limit_do_not_decode() {
    let mut large = entry(at(1, 1), 1, request(1, 1));
    large.result = vec![0; MAX_DUP_RESULT_BYTES].into();
    assert_eq!(LogEntry::decode(&large.encode()), Ok(large.clone()));
    large.result = vec![0; MAX_DUP_RESULT_BYTES + 1].into();
    assert!(matches!(LogEntry::decode(&large.encode()), Err(DecodeError::Corrupt { .. })));
    let installed = log_of(2, SMALL).install(Eversion::default(), vec![large], &DupSnapshot::default());
    assert!(matches!(installed, Err(LogError::Record { .. })));
}

#[test]
fn the_documented_bytes_are_what_is_written() {
    let entry = LogEntry {
        version: at(2, 300),
        prior: at(1, 7),
        object: ObjectId::new(PoolId(3), "", "", "foo"),
        kind: EntryKind::Delete,
        reqid: request(4, 5),
        user_version: 6,
        mtime_ns: 8,
        result: Bytes::from_static(b"ok"),
    };
    let hash = entry.object.hash();
    let mut expected = vec![1, 1, 0, 0, 0, 0, 2, 0xac, 0x02, 1, 7, 6];
    let mut rest = hash;
    while rest >= 0x80 {
        expected.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    expected.push(rest as u8);
    expected.extend([1, 0, 0, 3, b'f', b'o', b'o', 1, 4, 5, 6, 8, 2, b'o', b'k']);
    let body = (expected.len() - 6) as u8;
    expected[2] = body;
    assert_eq!(&entry.encode()[..], expected);
}

#[derive(Clone, Debug)]
enum Step {
    Write { object: u8, client: u64, skip: u64, later_interval: bool },
    Resend { client: u64, back: u64 },
    Truncate(usize),
    Trim(usize),
    NoteOldest { client: u64, back: u64 },
    Expire,
    Restart,
    Backfill,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        10 => (0..4u8, 1..6u64, 0..2u64, prop::bool::weighted(0.1))
            .prop_map(|(object, client, skip, later_interval)| Step::Write { object, client, skip, later_interval }),
        4 => (1..6u64, 1..8u64).prop_map(|(client, back)| Step::Resend { client, back }),
        2 => (0..5usize).prop_map(Step::Truncate),
        3 => (0..6usize).prop_map(Step::Trim),
        3 => (1..6u64, 0..6u64).prop_map(|(client, back)| Step::NoteOldest { client, back }),
        1 => Just(Step::Expire),
        1 => Just(Step::Restart),
        1 => Just(Step::Backfill),
    ];
    prop::collection::vec(step, 1..120)
}

/// The model of a log, without any index, and its durable copy.
struct Model {
    log: PgLog,
    limits: DupLimits,
    entries: Vec<LogEntry>,
    tail: Eversion,
    interval: u64,
    /// Every request that took effect and was not removed as divergent.
    effective: BTreeMap<ReqId, Eversion>,
    next_tid: BTreeMap<u64, u64>,
    oldest: BTreeMap<u64, u64>,
    meta: BTreeMap<String, Bytes>,
    now_ns: u64,
    expired: bool,
}

impl Model {
    fn new(limits: DupLimits) -> Model {
        Model {
            log: PgLog::new(Eversion::default(), limits),
            limits,
            entries: Vec::new(),
            tail: Eversion::default(),
            interval: 1,
            effective: BTreeMap::new(),
            next_tid: BTreeMap::new(),
            oldest: BTreeMap::new(),
            meta: BTreeMap::new(),
            now_ns: 1,
            expired: false,
        }
    }

    fn head(&self) -> Eversion {
        self.entries.last().map_or(self.tail, |e| e.version)
    }

    fn send(&mut self, object: u8, reqid: ReqId, attempt: u32) {
        match self.log.admit(reqid, attempt) {
            DupCheck::Execute => {
                assert!(!self.effective.contains_key(&reqid), "{reqid} is executed twice");
                let made = entry(at(self.interval, self.head().version + 1), object, reqid);
                self.effective.insert(reqid, made.version);
                self.entries.push(made.clone());
                self.log.append(made);
            }
            DupCheck::Duplicate(dup) => {
                assert_eq!(Some(&dup.version), self.effective.get(&reqid));
                assert_eq!(dup.result, entry(dup.version, 0, reqid).result);
            }
            DupCheck::Refused => {}
        }
    }

    fn step(&mut self, step: &Step) {
        self.now_ns += 10;
        match *step {
            Step::Write { object, client, skip, later_interval } => {
                self.interval += u64::from(later_interval);
                let tid = self.next_tid.get(&client).copied().unwrap_or(1) + skip;
                self.next_tid.insert(client, tid + 1);
                self.send(object, request(client, tid), 0);
            }
            Step::Resend { client, back } => {
                let next = self.next_tid.get(&client).copied().unwrap_or(1);
                if let Some(tid) = next.checked_sub(back).filter(|tid| *tid > 0) {
                    self.send(0, request(client, tid), 1);
                }
            }
            Step::Truncate(count) => {
                let keep = self.entries.len().saturating_sub(count);
                let mut gone = self.entries.split_off(keep);
                gone.reverse();
                for entry in &gone {
                    self.effective.remove(&entry.reqid);
                }
                self.interval += 1;
                let head = self.head();
                assert_eq!(self.log.truncate_after(head), gone);
            }
            Step::Trim(count) => {
                let gone: Vec<LogEntry> = self.entries.drain(..count.min(self.entries.len())).collect();
                self.tail = gone.last().map_or(self.tail, |e| e.version);
                let versions: Vec<Eversion> = gone.iter().map(|e| e.version).collect();
                assert_eq!(self.log.trim_to(self.tail), versions);
                store(&mut self.meta, self.log.dup_meta_updates());
            }
            Step::NoteOldest { client, back } => {
                let oldest = self.next_tid.get(&client).copied().unwrap_or(1).saturating_sub(back);
                let entry = self.oldest.entry(client).or_default();
                *entry = oldest.max(*entry);
                self.log.update_oldest_tid(ClientId(client), oldest, self.now_ns);
            }
            Step::Expire => {
                self.expired |= !self.log.expire_sessions(self.now_ns, 40).is_empty();
            }
            Step::Restart => {
                let stored = self.entries.iter().map(|e| (e.version, e.encode())).collect();
                let meta: Vec<(String, Bytes)> =
                    self.meta.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
                self.log = PgLog::load(self.tail, stored, &meta, self.limits).unwrap();
            }
            Step::Backfill => {
                let mut target = log_of(5, self.limits);
                target.trim_to(at(1, 4));
                let mut stored = BTreeMap::new();
                store(&mut stored, target.dup_meta_updates());
                let dups = DupSnapshot::from_meta(&self.log.dup_meta()).unwrap();
                assert_eq!(dups, self.log.dup_snapshot());
                target.install(self.tail, self.entries.clone(), &dups).unwrap();
                store(&mut stored, target.dup_meta_updates());
                assert_eq!(stored, target.dup_meta().into_iter().collect());
                (self.log, self.meta) = (target, stored);
            }
        }
    }

    fn check(&self) {
        let log = &self.log;
        assert_eq!((log.tail(), log.head(), log.len()), (self.tail, self.head(), self.entries.len()));
        assert!(log.entries().eq(self.entries.iter()));
        for (n, entry) in self.entries.iter().enumerate() {
            assert_eq!(log.find(entry.version), Some(entry));
            assert!(log.entries_after(entry.version).eq(self.entries[n + 1..].iter()));
            assert_eq!(log.find(at(entry.version.interval.0 + 1, entry.version.version)), None);
            assert_eq!(log.lookup(entry.reqid).unwrap().version, entry.version);
        }
        for n in 0..6 {
            let naive = self.entries.iter().rev().find(|e| e.object == object(n));
            assert_eq!(log.latest_for_object(&object(n)), naive);
        }
        let objects: std::collections::HashSet<&ObjectId> = self.entries.iter().map(|e| &e.object).collect();
        assert_eq!(log.latest.len(), objects.len(), "the index holds nothing beyond the log");
        for (reqid, version) in &self.effective {
            match log.admit(*reqid, 1) {
                DupCheck::Execute => panic!("a resend of {reqid} would be executed again"),
                DupCheck::Duplicate(dup) => assert_eq!(dup.version, *version),
                DupCheck::Refused => {
                    let passed = self.oldest.get(&reqid.client.0).is_some_and(|oldest| reqid.tid < *oldest);
                    assert!(
                        passed || self.expired || self.limits == SMALL,
                        "{reqid} was refused without need"
                    );
                }
            }
        }
        for (client, next) in &self.next_tid {
            assert_eq!(log.admit(request(*client, *next), 0), DupCheck::Execute, "new requests always go");
        }
        let (count, bytes) = log.retained_dups();
        assert!(count <= self.limits.total && bytes <= self.limits.total_bytes);
        let snapshot = log.dup_snapshot();
        assert_eq!(snapshot.records.len(), count);
        let with_records = self.entries.len() + count;
        assert!(snapshot.floors.len() <= self.limits.all_clients + with_records);
    }
}

proptest! {
    #[test]
    fn behaves_as_the_naive_model(steps in steps(), small in any::<bool>()) {
        let mut model = Model::new(if small { SMALL } else { DupLimits::default() });
        for step in &steps {
            model.step(step);
            model.check();
        }
    }

    #[test]
    fn common_ground_is_the_longest_shared_prefix(
        shared in 0..12u64, mine in 0..6u64, its in 0..6u64, my_trim in 0..14u64, its_trim in 0..14u64,
    ) {
        let build = |own: u64, interval: u64, trim: u64| {
            let mut log = log_of(shared, DupLimits::default());
            for n in shared + 1..=shared + own {
                log.append(entry(at(interval, n), 1, request(2, n)));
            }
            let to = log.versions().into_iter().take_while(|v| v.version <= trim).last();
            log.trim_to(to.unwrap_or_default());
            log
        };
        let (a, b) = (build(mine, 2, my_trim), build(its, 3, its_trim));
        let known = |log: &PgLog| [vec![log.tail()], log.versions()].concat();
        let naive = known(&a).into_iter().filter(|v| known(&b).contains(v)).max();
        prop_assert_eq!(a.last_common(b.tail(), &b.versions()), naive);
        prop_assert_eq!(b.last_common(a.tail(), &a.versions()), naive);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut framed = vec![1, 1];
        framed.extend((bytes.len() as u32).to_le_bytes());
        framed.extend(&bytes);
        for input in [&bytes, &framed] {
            if let Ok(entry) = LogEntry::decode(input) {
                prop_assert!(entry.result.len() <= MAX_DUP_RESULT_BYTES);
            }
        }
    }
}
