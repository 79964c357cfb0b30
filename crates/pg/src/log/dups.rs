//! Executed requests: the index of the log's requests, the dups retained from trimmed entries, and the floors below which a
//! request is refused (rule R6).
//!
//! Invariant: the tid of every request ever executed is in its session's `in_log` or `retained`, or below the
//! session's `floor`, or the session was forgotten and its client is at or below `forgotten`. All maps are bounded:
//! `retained` by [`DupLimits`], `in_log` by the log, sessions without records by [`DupLimits::clients`].
//!
//! Resends of a forgotten client are refused, and so are resends of unknown clients with a smaller id. So sessions of idle
//! clients are forgotten first.

use super::{LogError, MAX_DUP_RESULT_BYTES};
use bytes::Bytes;
use nacre_types::encoding::{self, DecodeError, Versioned};
use nacre_types::{ClientId, Eversion, ReqId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The prefix of the keys of all stored data about dups.
pub const DUP_META_PREFIX: &str = "dup.";
/// The prefix of the keys of dup records.
pub const RECORD_PREFIX: &str = "dup.r.";
/// The prefix of the keys of floors: dup records of tids below a floor were dropped.
pub const FLOOR_PREFIX: &str = "dup.f.";
/// The key of the newest client whose session was forgotten.
pub const FORGOTTEN_CLIENT_KEY: &str = "dup.z";
/// The key of the highest user version of an update that exceeds the update's counter.
pub(super) const USER_VERSION_KEY: &str = "dup.v";

/// The time under which a session is listed whose term has not started.
const NO_CONTACT: u64 = 0;

/// The cost of a retained dup in addition to its result, in bytes.
const DUP_OVERHEAD_BYTES: usize = 96;

/// Bounds on the records of trimmed requests. A request whose record was dropped at a bound is refused, never executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DupLimits {
    /// Retained dups per client.
    pub per_client: usize,
    /// Retained dups of all clients.
    pub total: usize,
    /// Bytes of all retained dups.
    pub total_bytes: usize,
    /// Sessions with only a floor. Beyond this number, only those of clients that are not idle are kept.
    pub clients: usize,
    /// Sessions with only a floor, whether their clients are idle or not.
    pub all_clients: usize,
}

impl Default for DupLimits {
    /// One client's `objecter_inflight_ops`, Ceph's 3000 tracked dups, 4 MiB, 4096 idle clients (about 1 MiB), 65536 in total.
    fn default() -> Self {
        let (clients, all_clients) = (4096, 65_536);
        DupLimits { per_client: 1024, total: 3000, total_bytes: 4 << 20, clients, all_clients }
    }
}

/// A dup retained after its entry was trimmed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DupRecord {
    /// The request.
    pub reqid: ReqId,
    /// The update that it made.
    pub version: Eversion,
    /// The encoded reply.
    pub result: Bytes,
}

impl Versioned for DupRecord {
    const NAME: &'static str = "dup record";
}

/// A stored floor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Floor {
    tid: u64,
}

impl Versioned for Floor {
    const NAME: &'static str = "dup floor";
}

/// The newest client that was forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Forgotten {
    client: ClientId,
}

impl Versioned for Forgotten {
    const NAME: &'static str = "forgotten clients";
}

/// The highest user version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct UserVersion {
    version: u64,
}

impl Versioned for UserVersion {
    const NAME: &'static str = "user version";
}

/// All records of trimmed requests, for a backfill target or the children of a split.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DupSnapshot {
    /// Retained dups by version.
    pub records: Vec<DupRecord>,
    /// The tid per client below which requests without a record are refused.
    pub floors: Vec<(ClientId, u64)>,
    /// Resends of unknown clients up to this one are refused; client 0 for none.
    pub forgotten: ClientId,
    /// The highest user version of an update that exceeded its counter.
    pub user_version: u64,
}

impl Versioned for DupSnapshot {
    const NAME: &'static str = "dup snapshot";
    const VERSION: u8 = 2;

    fn decode_old(_version: u8, body: &[u8]) -> Result<Self, DecodeError> {
        // Version 1 ended before the user version. A zero is encoded as one byte.
        encoding::decode_body(Self::NAME, &[body, &[0]].concat())
    }
}

impl DupSnapshot {
    /// Decodes the pairs that [`super::PgLog::dup_meta`] returns, or a collection's stored ones.
    pub fn from_meta(meta: &[(String, Bytes)]) -> Result<DupSnapshot, LogError> {
        let mut snapshot = DupSnapshot::default();
        for (key, value) in meta {
            let corrupt = |source: DecodeError| LogError::Record { key: key.clone(), source };
            let misplaced = |detail: String| LogError::Misplaced { key: key.clone(), detail };
            match MetaKey::parse(key).ok_or_else(|| misplaced("unknown key".into()))? {
                MetaKey::Floor(client) => {
                    snapshot.floors.push((client, encoding::decode::<Floor>(value).map_err(corrupt)?.tid));
                }
                MetaKey::Record(reqid) => {
                    let record: DupRecord = encoding::decode(value).map_err(corrupt)?;
                    if record.reqid != reqid {
                        return Err(misplaced(format!("it is of {}", record.reqid)));
                    }
                    if record.result.len() > MAX_DUP_RESULT_BYTES {
                        return Err(misplaced(format!("result of {} bytes", record.result.len())));
                    }
                    snapshot.records.push(record);
                }
                MetaKey::Forgotten => {
                    snapshot.forgotten = encoding::decode::<Forgotten>(value).map_err(corrupt)?.client;
                }
                MetaKey::UserVersion => {
                    snapshot.user_version = encoding::decode::<UserVersion>(value).map_err(corrupt)?.version;
                }
            }
        }
        snapshot.records.sort_by_key(|record| record.version);
        Ok(snapshot)
    }
}

#[derive(Clone, Debug)]
struct Retained {
    version: Eversion,
    result: Bytes,
}

#[derive(Clone, Debug, Default)]
struct Session {
    /// Requests below it without a record are refused.
    floor: u64,
    /// The client waits for no request below this tid: their dups are not retained.
    oldest: u64,
    /// From tid to update counter, for the entries in the log.
    in_log: BTreeMap<u64, u64>,
    retained: BTreeMap<u64, Retained>,
    contact_ns: Option<u64>,
    /// Its time in [`Dups::by_contact`].
    listed_ns: Option<u64>,
    expired: bool,
}

impl Session {
    fn is_bare(&self) -> bool {
        self.in_log.is_empty() && self.retained.is_empty()
    }

    fn raise_floor_above(&mut self, tid: u64) {
        self.floor = self.floor.max(tid.saturating_add(1));
    }

    /// Makes resends refused of all executed requests that have no record in the log.
    fn expire(&mut self) {
        self.expired = true;
        let in_log = self.in_log.last_key_value().map(|(tid, _)| *tid);
        let retained = self.retained.last_key_value().map(|(tid, _)| *tid);
        if let Some(newest) = in_log.max(retained) {
            self.raise_floor_above(newest);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum MetaKey {
    Floor(ClientId),
    Record(ReqId),
    Forgotten,
    UserVersion,
}

impl MetaKey {
    fn text(self) -> String {
        match self {
            MetaKey::Floor(client) => format!("{FLOOR_PREFIX}{:016x}", client.0),
            MetaKey::Record(r) => format!("{RECORD_PREFIX}{:016x}.{:016x}", r.client.0, r.tid),
            MetaKey::Forgotten => FORGOTTEN_CLIENT_KEY.to_owned(),
            MetaKey::UserVersion => USER_VERSION_KEY.to_owned(),
        }
    }

    fn parse(text: &str) -> Option<MetaKey> {
        let hex = |s: &str| u64::from_str_radix(s, 16).ok();
        let key = if let Some(rest) = text.strip_prefix(RECORD_PREFIX) {
            let (client, tid) = rest.split_once('.')?;
            MetaKey::Record(ReqId { client: ClientId(hex(client)?), tid: hex(tid)? })
        } else if let Some(rest) = text.strip_prefix(FLOOR_PREFIX) {
            MetaKey::Floor(ClientId(hex(rest)?))
        } else if text == USER_VERSION_KEY {
            MetaKey::UserVersion
        } else {
            MetaKey::Forgotten
        };
        (key.text() == text).then_some(key)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Dups {
    limits: DupLimits,
    clients: BTreeMap<ClientId, Session>,
    /// The sessions that have not expired, by a time of contact that may be outdated, or [`NO_CONTACT`].
    by_contact: BTreeSet<(u64, ClientId)>,
    /// No session's term started before this time: until then, clients may have been in contact with other OSDs.
    terms_from_ns: u64,
    /// Retained dups by update counter, oldest first.
    by_age: BTreeMap<u64, ReqId>,
    retained_bytes: usize,
    /// Clients without any record, with only a floor.
    bare: BTreeSet<ClientId>,
    /// Those of them whose sessions have expired.
    idle: BTreeSet<ClientId>,
    forgotten: ClientId,
    user_version: u64,
    dirty: BTreeSet<MetaKey>,
}

/// Whether an update is the OSD's own: no client waits for its reply.
fn is_internal(reqid: ReqId) -> bool {
    reqid.client == ClientId(0)
}

fn cost_bytes(result: &Bytes) -> usize {
    DUP_OVERHEAD_BYTES + result.len()
}

impl Dups {
    pub(super) fn new(limits: DupLimits) -> Dups {
        Dups {
            limits,
            clients: BTreeMap::new(),
            by_contact: BTreeSet::new(),
            terms_from_ns: 0,
            by_age: BTreeMap::new(),
            retained_bytes: 0,
            bare: BTreeSet::new(),
            idle: BTreeSet::new(),
            forgotten: ClientId(0),
            user_version: 0,
            dirty: BTreeSet::new(),
        }
    }

    pub(super) fn user_version(&self) -> u64 {
        self.user_version
    }

    /// Records the user version of an update that exceeds its counter.
    pub(super) fn raise_user_version(&mut self, version: u64) {
        if version > self.user_version {
            self.user_version = version;
            self.dirty.insert(MetaKey::UserVersion);
        }
    }

    pub(super) fn limits(&self) -> DupLimits {
        self.limits
    }

    pub(super) fn retained_size(&self) -> (usize, usize) {
        (self.by_age.len(), self.retained_bytes)
    }

    pub(super) fn logged_at(&self, reqid: ReqId) -> Option<u64> {
        self.clients.get(&reqid.client)?.in_log.get(&reqid.tid).copied()
    }

    pub(super) fn retained(&self, reqid: ReqId) -> Option<(Eversion, &Bytes)> {
        let found = self.clients.get(&reqid.client)?.retained.get(&reqid.tid)?;
        Some((found.version, &found.result))
    }

    pub(super) fn is_refused(&self, reqid: ReqId, attempt: u32) -> bool {
        match self.clients.get(&reqid.client) {
            Some(session) => reqid.tid < session.floor,
            None => attempt > 0 && !is_internal(reqid) && reqid.client <= self.forgotten,
        }
    }

    /// Records that an entry was appended. Returns the counter of an earlier entry of the same request, 0 for none.
    pub(super) fn on_entry_appended(&mut self, reqid: ReqId, counter: u64) -> u64 {
        if is_internal(reqid) {
            return 0;
        }
        self.not_bare(reqid.client);
        let session = self.session(reqid);
        let previous = session.in_log.insert(reqid.tid, counter).unwrap_or(0);
        if std::mem::take(&mut session.expired) {
            session.contact_ns = None;
            self.list(reqid.client, NO_CONTACT);
        }
        previous
    }

    /// The session of a request that took effect. Earlier requests of a forgotten client are refused.
    fn session(&mut self, reqid: ReqId) -> &mut Session {
        let floor = if reqid.client <= self.forgotten { reqid.tid } else { 0 };
        self.clients.entry(reqid.client).or_insert_with(|| {
            if floor > 0 {
                self.dirty.insert(MetaKey::Floor(reqid.client));
            }
            self.by_contact.insert((NO_CONTACT, reqid.client));
            Session { floor, listed_ns: Some(NO_CONTACT), ..Session::default() }
        })
    }

    /// Adds a session that is not listed to `by_contact`.
    fn list(&mut self, client: ClientId, contact_ns: u64) {
        if let Some(session) = self.clients.get_mut(&client) {
            session.listed_ns = Some(contact_ns);
            self.by_contact.insert((contact_ns, client));
        }
    }

    fn remove_session(&mut self, client: ClientId) {
        if let Some(listed_ns) = self.clients.remove(&client).and_then(|session| session.listed_ns) {
            self.by_contact.remove(&(listed_ns, client));
        }
    }

    /// Records that the newest entry of `reqid` was removed as divergent; `previous` is an earlier one that is still in the
    /// log.
    pub(super) fn on_entry_removed(&mut self, reqid: ReqId, previous: Option<u64>) {
        let Some(session) = self.clients.get_mut(&reqid.client) else { return };
        match previous {
            Some(counter) => session.in_log.insert(reqid.tid, counter),
            None => session.in_log.remove(&reqid.tid),
        };
        self.settle(reqid.client);
    }

    /// Records that the oldest entry was trimmed from the log.
    pub(super) fn on_entry_trimmed(&mut self, reqid: ReqId, version: Eversion, result: Bytes) {
        let Some(session) = self.clients.get_mut(&reqid.client) else { return };
        if session.in_log.get(&reqid.tid) != Some(&version.version) {
            return;
        }
        session.in_log.remove(&reqid.tid);
        if session.expired || reqid.tid < session.oldest {
            session.raise_floor_above(reqid.tid);
            self.dirty.insert(MetaKey::Floor(reqid.client));
            self.settle(reqid.client);
        } else {
            self.retain(DupRecord { reqid, version, result });
        }
    }

    fn retain(&mut self, record: DupRecord) {
        let DupRecord { reqid, version, result } = record;
        self.drop_retained(reqid);
        self.retained_bytes += cost_bytes(&result);
        self.by_age.insert(version.version, reqid);
        self.dirty.insert(MetaKey::Record(reqid));
        let per_client = self.limits.per_client;
        let session = self.session(reqid);
        session.retained.insert(reqid.tid, Retained { version, result });
        if session.retained.len() > per_client
            && let Some((&tid, _)) = session.retained.first_key_value()
        {
            self.forget_retained(ReqId { client: reqid.client, tid });
        }
        while self.by_age.len() > self.limits.total || self.retained_bytes > self.limits.total_bytes {
            let Some((_, &oldest)) = self.by_age.first_key_value() else { break };
            self.forget_retained(oldest);
        }
    }

    /// Drops a retained dup because another record replaces it.
    fn drop_retained(&mut self, reqid: ReqId) {
        let Some(session) = self.clients.get_mut(&reqid.client) else { return };
        let Some(gone) = session.retained.remove(&reqid.tid) else { return };
        self.retained_bytes -= cost_bytes(&gone.result);
        self.by_age.remove(&gone.version.version);
        self.dirty.insert(MetaKey::Record(reqid));
    }

    /// Drops a retained dup permanently: the floor replaces it.
    fn forget_retained(&mut self, reqid: ReqId) {
        self.drop_retained(reqid);
        if let Some(session) = self.clients.get_mut(&reqid.client) {
            session.raise_floor_above(reqid.tid);
            self.dirty.insert(MetaKey::Floor(reqid.client));
        }
        self.settle(reqid.client);
    }

    /// Updates the sets of sessions without records. At the bounds, forgets the idle client, or any client, with the lowest id.
    fn settle(&mut self, client: ClientId) {
        let Some(session) = self.clients.get(&client) else { return };
        if !session.is_bare() {
            return self.not_bare(client);
        }
        if session.floor == 0 {
            self.remove_session(client);
            return self.not_bare(client);
        }
        self.bare.insert(client);
        if session.expired {
            self.idle.insert(client);
        }
        while self.bare.len() > self.limits.clients {
            let overfull = self.bare.len() > self.limits.all_clients;
            let least = self.idle.first().or(if overfull { self.bare.first() } else { None });
            let Some(least) = least.copied() else { break };
            self.remove_session(least);
            self.not_bare(least);
            self.forgotten = self.forgotten.max(least);
            self.dirty.extend([MetaKey::Floor(least), MetaKey::Forgotten]);
        }
    }

    fn not_bare(&mut self, client: ClientId) {
        // Only clients without records are idle.
        if self.bare.remove(&client) {
            self.idle.remove(&client);
        }
    }

    pub(super) fn update_oldest_tid(&mut self, client: ClientId, oldest_tid: u64, now_ns: u64) {
        let Some(session) = self.clients.get_mut(&client) else { return };
        session.contact_ns = Some(now_ns);
        let was_expired = std::mem::take(&mut session.expired);
        let may_drop = oldest_tid > session.oldest;
        if may_drop {
            session.oldest = oldest_tid;
            session.floor = session.floor.max(oldest_tid);
        }
        if was_expired {
            self.idle.remove(&client);
            self.list(client, now_ns);
        }
        if !may_drop {
            return;
        }
        while let Some((&tid, _)) =
            self.clients.get(&client).and_then(|s| s.retained.range(..oldest_tid).next())
        {
            self.forget_retained(ReqId { client, tid });
        }
    }

    /// Removes the sessions whose term may be over, or has not started, from `by_contact`, and returns them.
    fn take_due(&mut self, now_ns: u64, term_ns: u64) -> Vec<ClientId> {
        let horizon = now_ns.checked_sub(term_ns);
        let is_due = |listed_ns| listed_ns == NO_CONTACT || horizon.is_some_and(|ns| listed_ns <= ns);
        let mut due = Vec::new();
        while let Some((listed_ns, client)) = self.by_contact.first().copied()
            && is_due(listed_ns)
        {
            self.by_contact.pop_first();
            due.push(client);
        }
        due.sort_unstable();
        due
    }

    /// See [`super::PgLog::restart_session_terms`].
    pub(super) fn restart_session_terms(&mut self, now_ns: u64) {
        self.terms_from_ns = now_ns;
    }

    /// See [`super::PgLog::expire_sessions`]. Examines each session once in a term.
    pub(super) fn expire_sessions(&mut self, now_ns: u64, term_ns: u64) -> Vec<ClientId> {
        let mut expired = Vec::new();
        for client in self.take_due(now_ns, term_ns) {
            let Some(session) = self.clients.get_mut(&client) else { continue };
            session.listed_ns = None;
            let contact_ns = self.terms_from_ns.max(*session.contact_ns.get_or_insert(now_ns));
            if now_ns.saturating_sub(contact_ns) >= term_ns {
                session.expire();
                expired.push(client);
            } else {
                self.list(client, contact_ns);
            }
        }
        for &client in &expired {
            while let Some((&tid, _)) = self.clients.get(&client).and_then(|s| s.retained.first_key_value()) {
                self.forget_retained(ReqId { client, tid });
            }
            self.settle(client);
        }
        expired
    }

    pub(super) fn meta_updates(&mut self) -> Vec<(String, Option<Bytes>)> {
        let dirty = std::mem::take(&mut self.dirty);
        dirty.into_iter().map(|key| (key.text(), self.meta_value(key))).collect()
    }

    fn meta_value(&self, key: MetaKey) -> Option<Bytes> {
        match key {
            MetaKey::Floor(client) => {
                let floor = self.clients.get(&client)?.floor;
                (floor > 0).then(|| encoding::encode(&Floor { tid: floor }).into())
            }
            MetaKey::Record(reqid) => {
                let (version, result) = self.retained(reqid)?;
                Some(encoding::encode(&DupRecord { reqid, version, result: result.clone() }).into())
            }
            MetaKey::Forgotten => (self.forgotten > ClientId(0))
                .then(|| encoding::encode(&Forgotten { client: self.forgotten }).into()),
            MetaKey::UserVersion => (self.user_version > 0)
                .then(|| encoding::encode(&UserVersion { version: self.user_version }).into()),
        }
    }

    pub(super) fn meta(&self) -> Vec<(String, Bytes)> {
        let floors = self.clients.keys().map(|client| MetaKey::Floor(*client));
        let records = self.clients.iter().flat_map(|(client, session)| {
            session.retained.keys().map(|tid| MetaKey::Record(ReqId { client: *client, tid: *tid }))
        });
        let keys = floors.chain(records).chain([MetaKey::Forgotten, MetaKey::UserVersion]);
        keys.filter_map(|key| Some((key.text(), self.meta_value(key)?))).collect()
    }

    /// Restores the records that [`Dups::meta_updates`] had stored. The log's entries follow, then [`Dups::finish_load`].
    pub(super) fn load(&mut self, meta: &[(String, Bytes)]) -> Result<(), LogError> {
        self.restore(&DupSnapshot::from_meta(meta)?);
        Ok(())
    }

    /// Ends a load: nothing differs from the stored records except what the current limits dropped.
    pub(super) fn finish_load(&mut self) {
        let dirty = std::mem::take(&mut self.dirty);
        self.dirty = dirty
            .into_iter()
            .filter(|key| !matches!(key, MetaKey::Record(reqid) if self.retained(*reqid).is_some()))
            .collect();
        self.enforce_session_limit();
    }

    /// Applies the bound on sessions once all entries are known.
    pub(super) fn enforce_session_limit(&mut self) {
        let clients: Vec<ClientId> = self.clients.keys().copied().collect();
        for client in clients {
            self.settle(client);
        }
    }

    pub(super) fn snapshot(&self) -> DupSnapshot {
        let record = |reqid: &ReqId| {
            let (version, result) = self.retained(*reqid)?;
            Some(DupRecord { reqid: *reqid, version, result: result.clone() })
        };
        DupSnapshot {
            records: self.by_age.values().filter_map(record).collect(),
            floors: self.clients.iter().filter(|(_, s)| s.floor > 0).map(|(c, s)| (*c, s.floor)).collect(),
            forgotten: self.forgotten,
            user_version: self.user_version,
        }
    }

    fn restore(&mut self, snapshot: &DupSnapshot) {
        self.forgotten = self.forgotten.max(snapshot.forgotten);
        self.user_version = self.user_version.max(snapshot.user_version);
        for (client, floor) in &snapshot.floors {
            let session = self.session(ReqId { client: *client, tid: 0 });
            session.floor = session.floor.max(*floor);
        }
        for record in &snapshot.records {
            self.retain(record.clone());
        }
    }

    /// Creates a set with the contents of `snapshot`. Its next [`Dups::meta_updates`] replaces the stored records of this one.
    pub(super) fn replacement_from(&self, snapshot: &DupSnapshot) -> Dups {
        let mut new = Dups::new(self.limits);
        new.restore(snapshot);
        for dups in [self, &new.clone()] {
            new.dirty.extend(dups.clients.keys().map(|client| MetaKey::Floor(*client)));
            new.dirty.extend(dups.by_age.values().map(|reqid| MetaKey::Record(*reqid)));
        }
        new.dirty.extend(self.dirty.iter().copied());
        new.dirty.extend([MetaKey::Forgotten, MetaKey::UserVersion]);
        new
    }
}
