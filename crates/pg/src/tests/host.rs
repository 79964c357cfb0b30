//! One OSD of the toy cluster: a machine, a store, an executor, heartbeats with leases.

use super::store::{Store, VERSION_ATTR, encode_version};
use crate::api::{ClientOp, ExecuteReply, PeerMsg, PgCommand, PgEvent, StoreRefusal};
use crate::heartbeat::{HbCommand, HbEvent, HbMsg, Heartbeat, HeartbeatMap, HeartbeatSettings};
use crate::lease::{LeaseSettings, LeaseTable};
use crate::pg::Pg;
use crate::settings::PgSettings;
use bytes::Bytes;
use nacre_types::errno::Errno;
use nacre_types::ids::{Eversion, OsdId, PgId};
use nacre_types::msg::{OsdFailure, PgCas};
use nacre_types::osdmap::{Member, OsdMap};
use nacre_types::stats::pg_state;
use nacre_types::txn::{Transaction, TxnOp};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

pub const MS: u64 = 1_000_000;
pub const TERM: u64 = 400 * MS;

/// A client's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Adds a mark to the object's data, and to its omap.
    Append(u32),
    Read,
    Delete,
    /// Creates the object, empty, if it does not exist.
    Ensure,
    /// Fails with an answer of 60 KiB.
    Fail,
    List,
}

#[derive(Clone, Debug)]
pub struct HostOp {
    pub op: ClientOp,
    pub request: Request,
    pub result: Option<Bytes>,
}

/// The output of a host.
#[derive(Clone, Debug)]
pub enum Output {
    Peer(OsdId, PeerMsg),
    Heartbeat(OsdId, HbMsg),
    Propose(PgCas),
    Failure(OsdFailure),
    Reply {
        token: u64,
        result: Bytes,
    },
    Refuse {
        token: u64,
        errno: Errno,
    },
    Drop {
        token: u64,
    },
    /// An update was ordered: for the checks with full knowledge.
    Ordered {
        token: u64,
        version: Eversion,
    },
    RemovePg,
}

pub struct Host {
    pub member: Member,
    pub nonce: u64,
    pub pg_id: PgId,
    pub settings: Arc<PgSettings>,
    pub pg: Pg,
    pub store: Store,
    pub leases: LeaseTable,
    pub heartbeat: Heartbeat,
    pub map: Option<Arc<OsdMap>>,
    pub up: Vec<OsdId>,
    pub ops: BTreeMap<u64, HostOp>,
    /// The slot that it holds: whether it is one for backfills.
    pub reserved: Option<bool>,
    /// Whether it holds, or waits for, the slot of a copy that is filled.
    pub target: bool,
    /// Whether it grants no slots for copies that other OSDs fill.
    pub backfill_full: bool,
    /// Whether it has no space for objects.
    pub full: bool,
    pub output: Vec<Output>,
    now: u64,
    /// Answers of the store that have not arrived yet.
    pub answers: VecDeque<PgEvent>,
    pub removals: u32,
}

pub fn lease_settings() -> LeaseSettings {
    LeaseSettings { term_ns: TERM, drift_ppm: 1000 }
}

impl Host {
    pub fn boot(
        member: Member,
        nonce: u64,
        pg_id: PgId,
        settings: Arc<PgSettings>,
        store: Store,
        now: u64,
    ) -> Host {
        let pg = if store.seen.exists {
            let meta: Vec<_> = store.seen.meta.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
            let log = store.seen.log.iter().map(|(k, v)| (*k, v.clone())).collect();
            Pg::load(pg_id, member, nonce, settings.clone(), &meta, log).unwrap()
        } else {
            Pg::new(pg_id, member, nonce, settings.clone())
        };
        let heartbeats =
            HeartbeatSettings { interval_ns: TERM / 4, grace_ns: 300 * MS, report_interval_ns: 100 * MS };
        Host {
            member,
            nonce,
            pg_id,
            settings,
            pg,
            store,
            leases: LeaseTable::new(lease_settings(), nonce, now),
            heartbeat: Heartbeat::new(member.osd, nonce, heartbeats),
            map: None,
            up: Vec::new(),
            ops: BTreeMap::new(),
            reserved: None,
            target: false,
            backfill_full: false,
            full: false,
            output: Vec::new(),
            now,
            answers: VecDeque::new(),
            removals: 0,
        }
    }

    pub fn client(&mut self, now: u64, op: ClientOp, request: Request) {
        self.ops.insert(op.token, HostOp { op: op.clone(), request, result: None });
        self.feed(now, PgEvent::Client(op));
    }

    pub fn take_map(&mut self, now: u64, map: &Arc<OsdMap>, up: &[OsdId]) {
        if self.map.as_ref().is_some_and(|old| old.epoch >= map.epoch) {
            return;
        }
        let sharing = map.osds.keys().copied().collect();
        let peers = HeartbeatMap::new(map, self.member.osd, &sharing, 10);
        self.heartbeat(now, HbEvent::Map(peers));
        (self.map, self.up) = (Some(map.clone()), up.to_vec());
        let running = map.osds.get(&self.member.osd).is_some_and(|info| info.boot_nonce == self.nonce);
        if running {
            self.feed(now, PgEvent::Map { map: map.clone(), up: up.to_vec(), unlisted: Arc::from([]) });
        }
    }

    pub fn heartbeat(&mut self, now: u64, event: HbEvent) {
        let mut out = Vec::new();
        self.heartbeat.handle(now, &mut self.leases, event, &mut out);
        let mut gained = false;
        for command in out {
            match command {
                HbCommand::SendPing { to, msg } | HbCommand::SendReply { to, msg } => {
                    self.output.push(Output::Heartbeat(to, msg));
                }
                HbCommand::ReportFailure(failure) => self.output.push(Output::Failure(failure)),
                HbCommand::LeaseGained(_) => gained = true,
                HbCommand::CancelFailure(_) | HbCommand::NewerMap(_) => {}
            }
        }
        if gained {
            self.feed(now, PgEvent::Leases);
        }
    }

    pub fn next_wake(&self) -> Option<u64> {
        let beat = self.heartbeat.next_wake(&self.leases);
        [self.pg.next_wake(), beat].into_iter().flatten().min()
    }

    pub fn feed(&mut self, now: u64, event: PgEvent) {
        self.now = now;
        let mut out = Vec::new();
        self.pg.handle(now, &self.leases.at(now), event, &mut out);
        let mut execution = None;
        for command in out {
            assert!(execution.is_none() || !matches!(command, PgCommand::Execute { .. }), "two executions");
            self.carry_out(command, &mut execution);
        }
        if let Some(event) = execution {
            self.feed(now, event);
        }
        let backfills = self.pg.state() & pg_state::BACKFILLING != 0;
        assert!(!backfills || self.reserved == Some(true), "a backfill without a slot for backfills");
    }

    fn carry_out(&mut self, command: PgCommand, execution: &mut Option<PgEvent>) {
        match command {
            PgCommand::Execute { token, version } => {
                let outcome = self.execute(token, version);
                if !matches!(outcome, ExecuteReply::Read) {
                    self.output.push(Output::Ordered { token, version });
                }
                *execution = Some(PgEvent::Executed { token, outcome });
            }
            PgCommand::Persist { id, txn } => self.persist(id, txn, execution),
            PgCommand::Send { to, msg } => {
                assert!(to != self.member.osd, "a message to itself: {msg:?}");
                self.output.push(Output::Peer(to, msg));
            }
            PgCommand::Reply { token } => {
                let op = self.ops.remove(&token).expect("a reply to an unknown token");
                let result = op.result.expect("a reply before the execution");
                self.output.push(Output::Reply { token, result });
            }
            PgCommand::ReplyDup { token, result, .. } => {
                self.ops.remove(&token).expect("a reply to an unknown token");
                self.output.push(Output::Reply { token, result });
            }
            PgCommand::Drop { token, .. } => {
                self.ops.remove(&token).expect("dropped an unknown token");
                self.output.push(Output::Drop { token });
            }
            PgCommand::Refuse { token, errno } => {
                self.ops.remove(&token).expect("refused an unknown token");
                self.output.push(Output::Refuse { token, errno });
            }
            PgCommand::Forget { token } => drop(self.ops.remove(&token)),
            PgCommand::Propose(cas) => self.output.push(Output::Propose(cas)),
            PgCommand::ReadObject { read, object, cursor, max_bytes } => {
                let piece = if self.store.damaged.contains(&object) {
                    Err(Errno::EIO)
                } else {
                    Ok(self.store.seen.read(&object, &cursor, max_bytes))
                };
                self.answers.push_back(PgEvent::ObjectRead { read, piece });
            }
            PgCommand::ListObjects { list, from, max } => {
                let (objects, end) = self.store.seen.list(from.as_ref(), max);
                self.answers.push_back(PgEvent::Listed { list, objects, end });
            }
            PgCommand::Reserve { backfill, .. } => match self.reserved {
                None => {
                    self.reserved = Some(backfill);
                    self.answers.push_back(PgEvent::Reserved);
                }
                // The priority has changed.
                Some(asked) => assert_eq!(asked, backfill, "asked for another slot besides"),
            },
            PgCommand::Release => {
                assert!(self.reserved.is_some(), "gave back a slot that it does not have");
                self.reserved = None;
            }
            PgCommand::ReserveRemoteBackfill { .. } => {
                if !self.target && !self.backfill_full {
                    self.target = true;
                    self.answers.push_back(PgEvent::RemoteBackfillReserved);
                }
            }
            PgCommand::ReleaseRemoteBackfill => {
                // A request that was not granted is withdrawn.
                self.target = false;
            }
            PgCommand::Invalidate { .. } => {}
            PgCommand::RemovePg => self.output.push(Output::RemovePg),
        }
    }

    fn persist(&mut self, id: u64, txn: Transaction, execution: &mut Option<PgEvent>) {
        let mut replaced = BTreeSet::new();
        let mut is_refused = false;
        for op in &txn.ops {
            match op {
                TxnOp::Remove(oid) => drop(replaced.insert(oid.clone())),
                TxnOp::Write { oid, .. } | TxnOp::Rename { to: oid, .. } => {
                    is_refused |= self.store.damaged.contains(oid) && !replaced.contains(oid);
                }
                _ => {}
            }
        }
        let is_full = self.full && txn.ops.iter().any(|op| matches!(op, TxnOp::Write { .. }));
        if !is_refused && !is_full {
            self.store.damaged.retain(|oid| !replaced.contains(oid));
            return self.store.queue(id, txn);
        }
        let mut out = Vec::new();
        let why = if is_refused { StoreRefusal::Damaged } else { StoreRefusal::Full };
        assert!(self.pg.on_store_refused(self.now, id, txn, why, &mut out), "the OSD would end");
        for command in out {
            self.carry_out(command, execution);
        }
    }

    /// Forgets the machine after the removal of the collection.
    pub fn forget_pg(&mut self, now: u64) {
        self.store = Store::default();
        self.reserved = None;
        self.answers.clear();
        self.removals += 1;
        assert!(self.ops.is_empty(), "requests are left: {:?}", self.ops);
        self.pg = Pg::new(self.pg_id, self.member, self.nonce, self.settings.clone());
        if let Some(map) = self.map.clone() {
            let up = self.up.clone();
            self.feed(now, PgEvent::Map { map, up, unlisted: Arc::from([]) });
        }
    }

    fn execute(&mut self, token: u64, version: Eversion) -> ExecuteReply {
        let op = self.ops.get_mut(&token).expect("execution of an unknown token");
        let object = &op.op.object;
        // Only the store needs the rest of the block that is appended to.
        let needs =
            matches!(op.request, Request::Read | Request::Delete) && self.store.damaged.contains(object);
        if op.request != Request::List && (needs || self.pg.lacks(object)) {
            let removal = (op.request == Request::Delete).then(Bytes::new);
            op.result.clone_from(&removal);
            return ExecuteReply::Damaged { removal };
        }
        let object = self.store.seen.objects.get(&op.op.object);
        let prior = object.map_or(Eversion::default(), |o| o.version());
        let data = object.map_or(&[][..], |o| &o.data);
        let oid = op.op.object.clone();
        let mut txn = Transaction::new(self.pg_id);
        let (result, delete) = match op.request {
            Request::Read => {
                op.result = Some(Bytes::copy_from_slice(data));
                return ExecuteReply::Read;
            }
            Request::List => {
                op.result = Some(Bytes::new());
                return ExecuteReply::Read;
            }
            Request::Delete => {
                if object.is_none() {
                    let result = Bytes::from_static(b"absent");
                    op.result = Some(result.clone());
                    return ExecuteReply::Failed { result };
                }
                txn.push(TxnOp::Remove(oid));
                (Bytes::new(), true)
            }
            Request::Fail => {
                let result = Bytes::from(vec![b'x'; 60 << 10]);
                op.result = Some(result.clone());
                return ExecuteReply::Failed { result };
            }
            Request::Ensure => {
                if object.is_some() {
                    let result = Bytes::from_static(b"there");
                    op.result = Some(result.clone());
                    return ExecuteReply::Unchanged { result };
                }
                let attrs = vec![(VERSION_ATTR.to_owned(), encode_version(version))];
                txn.push(TxnOp::Touch(oid.clone()));
                txn.push(TxnOp::SetAttrs { oid, attrs });
                (Bytes::from_static(b"made"), false)
            }
            Request::Append(mark) => {
                let bytes = mark.to_le_bytes();
                let offset = data.len() as u64;
                let position = Bytes::copy_from_slice(&offset.to_le_bytes());
                txn.push(TxnOp::Write {
                    oid: oid.clone(),
                    offset,
                    data: Bytes::copy_from_slice(&bytes).into(),
                });
                let key = Bytes::copy_from_slice(&mark.to_be_bytes());
                txn.push(TxnOp::OmapSet { oid: oid.clone(), entries: vec![(key, position.clone())] });
                let attrs = vec![(VERSION_ATTR.to_owned(), encode_version(version))];
                txn.push(TxnOp::SetAttrs { oid, attrs });
                (position, false)
            }
        };
        op.result = Some(result.clone());
        ExecuteReply::Write { txn, delete, prior, user_version: version.version, mtime_ns: 0, result }
    }
}
