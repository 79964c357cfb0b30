//! The interface of a [`crate::Pg`]: events, commands, messages between members.

use crate::log::DupSnapshot;
use bytes::Bytes;
use nacre_types::ids::{Epoch, Eversion, Interval, OsdId, PgId, ReqId};
use nacre_types::msg::{Message, PgCas, PgCasReply};
use nacre_types::object::ObjectId;
use nacre_types::osdmap::{OsdMap, PgMembership};
use nacre_types::stats::PgStats;
use nacre_types::txn::Transaction;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;

/// How often limits of a [`crate::Pg`] were reached since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitHits {
    /// Client sessions that expired ([`crate::PgSettings::session_expiry_ns`]).
    pub sessions_expired: u64,
    /// Operations that found [`crate::PgSettings::max_inflight_writes`] writes in flight.
    pub writes_held: u64,
}

/// The host's lease table as a PG needs it (rule R4).
pub trait LeaseView {
    /// Whether this OSD holds a lease from `from` now that counts for a PG that has acted on the map of `epoch`.
    fn holds_lease(&self, from: OsdId, epoch: Epoch) -> bool;

    /// The time (CLOCK_BOOTTIME, ns) from which no lease that this OSD ever granted to `to` can be valid.
    fn grants_expire_at(&self, to: OsdId) -> u64;
}

/// The parts of a client's request that replication needs. The host keeps the request itself under `token`.
#[derive(Clone, Debug)]
pub struct ClientOp {
    /// The host's handle.
    pub token: u64,
    /// Identifies the request across resends.
    pub reqid: ReqId,
    /// The client's oldest outstanding tid.
    pub oldest_tid: u64,
    /// How often it was sent before.
    pub attempt: u32,
    /// The PG's interval in the client's map.
    pub interval: Interval,
    /// The object.
    pub object: ObjectId,
    /// Whether it may change the object.
    pub write: bool,
    /// Whether it lists the PG instead of reading one object: it is executed as soon as the PG is active, and answered
    /// when the updates that it may show are committed.
    pub listing: bool,
    /// The host determines by other means whether it was executed, if this PG has forgotten its client.
    pub dup_check_by_host: bool,
    /// The host received it before and withdrew it ([`ExecuteReply::Withdrawn`]): it precedes the requests that wait for
    /// the same object here.
    pub requeued: bool,
}

/// The result of executing an operation ([`PgEvent::Executed`]).
#[derive(Clone, Debug)]
pub enum ExecuteReply {
    /// Nothing changed: a read. The reply waits for earlier writes to the object and for the lease.
    Read,
    /// The host withdrew the operation before it had any effect: it is forgotten.
    Withdrawn,
    /// A request that may write failed. The failure is recorded like an update, so that a late copy of the request
    /// can't succeed after its client was told that it failed.
    Failed {
        /// The encoded reply, kept for resends (R6).
        result: Bytes,
    },
    /// A request that may change an object succeeded without a change. This is recorded like an update, so that a late
    /// copy of the request can't change the object in a later state.
    Unchanged {
        /// The encoded reply, kept for resends (R6).
        result: Bytes,
    },
    /// The object, or the part of it that the request needs, can't be read, or the copy lacks it
    /// ([`crate::Pg::lacks`]). Nothing was changed.
    Damaged {
        /// For a request that only removes the object: the encoded reply to its removal.
        removal: Option<Bytes>,
    },
    /// The object changes.
    Write {
        /// The change, without log steps. Must be applicable: the host has checked it against the state of its store.
        txn: Transaction,
        /// Whether the object does not exist afterwards.
        delete: bool,
        /// The object's version before the change; the default if it did not exist.
        prior: Eversion,
        /// The user version after the change.
        user_version: u64,
        /// mtime, nanoseconds since 1970.
        mtime_ns: u64,
        /// The encoded reply, kept for resends (R6).
        result: Bytes,
    },
}

/// Why the store refused a transaction ([`crate::Pg::on_store_refused`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreRefusal {
    /// It needs a part of an object that can't be read.
    Damaged,
    /// The store has no space for it.
    Full,
}

/// The input of a [`crate::Pg`].
#[derive(Clone, Debug)]
pub enum PgEvent {
    /// A new map. `up` is the PG's up set in it.
    Map {
        /// The map.
        map: Arc<OsdMap>,
        /// CRUSH's up set without holes.
        up: Vec<OsdId>,
        /// OSDs of earlier generations that the map does not list ([`crate::KnownOsds`]).
        unlisted: Arc<[OsdId]>,
    },
    /// A client's request.
    Client(ClientOp),
    /// The answer to [`PgCommand::Execute`]; passed immediately, before any other event.
    Executed {
        /// The request.
        token: u64,
        /// The result.
        outcome: ExecuteReply,
    },
    /// A message from another member.
    Peer {
        /// The sender.
        from: OsdId,
        /// The message.
        msg: PeerMsg,
    },
    /// The connection to a peer was lost with messages possibly undelivered, or the peer restarted.
    PeerReset(OsdId),
    /// A [`PgCommand::Persist`] is durable. Ids become durable in ascending order.
    Committed {
        /// The highest durable id.
        persist: u64,
    },
    /// The map authority's answer to a proposal.
    Cas(PgCasReply),
    /// The answer to [`PgCommand::ReadObject`]: the object from `offset` on in its current state in the store.
    ObjectRead {
        /// The command's handle.
        read: u64,
        /// What was read; `None` if the object does not exist; EIO if it is damaged; another error if it can't be read
        /// now.
        piece: Result<Option<ObjectPiece>, nacre_types::errno::Errno>,
    },
    /// The answer to [`PgCommand::ListObjects`]: objects with their versions, in order.
    Listed {
        /// The command's handle.
        list: u64,
        /// The objects.
        objects: Vec<(ObjectId, Eversion)>,
        /// Whether the collection ends here.
        end: bool,
    },
    /// The answer to [`PgCommand::Reserve`]: recovery may start.
    Reserved,
    /// The answer to [`PgCommand::ReserveRemoteBackfill`]: this copy may be filled.
    RemoteBackfillReserved,
    /// The store has become too full to be filled by backfill: a backfill of this copy must wait.
    RemoteBackfillTooFull,
    /// The lease table gained a lease or a shorter wait, or a peer restarted.
    Leases,
    /// Time has passed. Passed at the latest at the time that [`crate::Pg::next_wake`] returns.
    Tick,
}

/// A part of an object that is sent to another member. The first piece has the attributes; the omap follows the data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ObjectPiece {
    /// Where the piece begins: [`ObjectPiece::next`] of the previous piece, the default in the first one. A receiver accepts
    /// only the piece that continues what it has: pieces that were sent before and after a reset may arrive out of order.
    pub start: PieceCursor,
    /// The object's version.
    pub version: Eversion,
    /// The size of the whole data in bytes.
    pub size: u64,
    /// Data, at the offset of `start`.
    #[serde(with = "nacre_types::payload")]
    pub data: Bytes,
    /// Attributes; in the first piece.
    pub attrs: Vec<(String, Bytes)>,
    /// The omap header; in the first piece.
    pub omap_header: Bytes,
    /// Omap entries.
    pub omap: Vec<(Bytes, Bytes)>,
    /// The start of the next piece: data offset and last omap key sent; `None` in the last piece.
    pub next: Option<PieceCursor>,
}

impl ObjectPiece {
    /// Whether it is the object's first piece: the receiver discards what it had before.
    pub fn is_first(&self) -> bool {
        self.start == PieceCursor::default()
    }
}

/// The start of an [`ObjectPiece`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PieceCursor {
    /// Data offset in bytes.
    pub offset: u64,
    /// The last omap key that was sent, once all data is sent.
    pub omap_after: Option<Bytes>,
}

/// The reason why a client's request is dropped without an answer. The client sends it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// This OSD is not the PG's primary, or the request was sent before its reign began, or its update was rolled back (R10).
    StaleInterval,
    /// Too many requests are waiting.
    Full,
}

/// The output of a [`crate::Pg`]; to be executed in order.
#[derive(Clone, Debug)]
pub enum PgCommand {
    /// Execute the request against the current state of the store and pass [`PgEvent::Executed`] immediately.
    Execute {
        /// The request.
        token: u64,
        /// The version that it gets if it changes the object.
        version: Eversion,
    },
    /// Queue a transaction; pass [`PgEvent::Committed`] when it is durable.
    Persist {
        /// Ascending.
        id: u64,
        /// The transaction.
        txn: Transaction,
    },
    /// Send a message to another member; in order per member.
    Send {
        /// The receiver.
        to: OsdId,
        /// The message.
        msg: PeerMsg,
    },
    /// The request took effect and is durable, or its reply may be sent: send the reply that `Execute` produced.
    Reply {
        /// The request.
        token: u64,
    },
    /// The request was executed before: answer with this recorded reply.
    ReplyDup {
        /// The request.
        token: u64,
        /// The version it has.
        version: Eversion,
        /// The encoded reply.
        result: Bytes,
    },
    /// Tell the client to fetch a newer map and send again; forget the request.
    Drop {
        /// The request.
        token: u64,
        /// The reason.
        reason: DropReason,
    },
    /// Refuse the request permanently: its outcome was forgotten (R6).
    Refuse {
        /// The request.
        token: u64,
        /// The error to answer with.
        errno: nacre_types::errno::Errno,
    },
    /// Forget a request without an answer: a resend of it has replaced it.
    Forget {
        /// The superseded request.
        token: u64,
    },
    /// Send a proposal to the map authority. The host fills in `tid` and routes the answer back.
    Propose(PgCas),
    /// Read an object for recovery, from `cursor` on, about `max_bytes`.
    ReadObject {
        /// The handle for the answer.
        read: u64,
        /// The object.
        object: ObjectId,
        /// The start.
        cursor: PieceCursor,
        /// The approximate number of bytes.
        max_bytes: usize,
    },
    /// List objects with their versions for backfill.
    ListObjects {
        /// The handle for the answer.
        list: u64,
        /// The first candidate; `None` for the start of the collection.
        from: Option<ObjectId>,
        /// The maximum number of objects.
        max: usize,
    },
    /// Request one of the OSD's recovery slots; answered by [`PgEvent::Reserved`], released by [`PgCommand::Release`]. A
    /// repeated request that still waits changes the priority.
    Reserve {
        /// Whether whole copies are made (`osd_max_backfills`), or only missing objects are copied.
        backfill: bool,
        /// The priority, before the pool's `recovery_priority` is added: Ceph's `OSD_RECOVERY_*` and `OSD_BACKFILL_*`.
        priority: u8,
    },
    /// Release the slot, or withdraw the request.
    Release,
    /// Request one of the OSD's slots for copies that other OSDs fill by backfill; answered by
    /// [`PgEvent::RemoteBackfillReserved`], released by [`PgCommand::ReleaseRemoteBackfill`]. A repeated request that still waits changes
    /// the priority.
    ReserveRemoteBackfill {
        /// As in [`PgCommand::Reserve`].
        priority: u8,
    },
    /// Release that slot, or withdraw the request.
    ReleaseRemoteBackfill,
    /// Recovery or backfill changed an object's contents without the executor: drop what is cached of it.
    Invalidate {
        /// The object; `None` means all objects of the PG.
        object: Option<ObjectId>,
    },
    /// The OSD no longer needs its copy of the PG: remove it in the background, then forget the PG.
    RemovePg,
}

/// A member's report of its copy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemberInfo {
    /// Whether it has the PG at all; if not, the other fields do not count (R2).
    pub exists: bool,
    /// The highest membership that it has seen (R7).
    pub highest: Option<PgMembership>,
    /// Its log's head.
    pub head: Eversion,
    /// Its log's tail.
    pub tail: Eversion,
    /// The highest update that it knows to be acknowledged.
    pub committed_to: Eversion,
    /// Whether every object is present up to the log's head, except `missing`.
    pub complete: bool,
    /// The number of objects that the log names but that have not arrived, or that are damaged.
    pub missing: u64,
    /// The first of them.
    pub lacks: BTreeSet<ObjectId>,
    /// The process, so that the leases of a restarted primary are known to have ended.
    pub boot_nonce: u64,
}

/// Messages between members of one PG.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum PeerMsg {
    /// The primary asks a member for its info in this interval. With `versions_after`, it also asks for the versions in
    /// the member's log above that version.
    Query {
        /// The primary's interval.
        interval: Interval,
        /// Matches the answer to the query: answers to earlier queries do not count.
        round: u64,
        /// The version above which the member lists its log; `None` for no list.
        versions_after: Option<Eversion>,
        /// The primary's process: the member accepts updates from no other process.
        boot_nonce: u64,
    },
    /// The answer to [`PeerMsg::Query`].
    Info {
        /// The interval of the query.
        interval: Interval,
        /// The query that it answers.
        round: u64,
        /// The copy, as durable as it was when the query arrived.
        info: MemberInfo,
        /// The requested versions of the log, in order: the one named in the query, if the log holds it, and all above.
        versions: Option<Vec<Eversion>>,
    },
    /// The answer to a query of an interval below the one that the member promised to another OSD: it can't take part
    /// until the interval has risen.
    Promised {
        /// The interval of the query.
        interval: Interval,
        /// The lowest interval in which it takes part.
        promised: Interval,
    },
    /// From the primary to an in-sync member that is ahead: send what follows `after` (R3: the longest log is adopted).
    GetTail {
        /// The interval.
        interval: Interval,
        /// The primary's head, or the member's head if that is lower and only objects are requested.
        after: Eversion,
        /// Objects that the primary lacks in addition (R10).
        objects: Vec<ObjectId>,
    },
    /// The entries above `after`: of an in-sync member, or of the primary for an in-sync member that is behind. The
    /// objects that they name and those that the receiver lacks follow as [`PeerMsg::TailObject`]. All of it takes
    /// effect at once.
    Tail {
        /// The interval.
        interval: Interval,
        /// The receiver's head.
        after: Eversion,
        /// Encoded entries, oldest first.
        entries: Vec<Bytes>,
        /// The number of objects that follow.
        objects: u64,
    },
    /// One piece of an object that a [`PeerMsg::Tail`] names.
    TailObject {
        /// The interval.
        interval: Interval,
        /// The object.
        object: ObjectId,
        /// The piece; `None` if the object does not exist.
        piece: Option<ObjectPiece>,
    },
    /// The tail is durable on the receiver.
    TailDone {
        /// The interval.
        interval: Interval,
        /// The receiver's head now.
        head: Eversion,
    },
    /// From the primary to a member that catches up: make your log equal to mine. The receiver removes its entries
    /// above `common`, which are divergent, and appends `entries`. Objects of both become missing. With `backfill`, no
    /// object of the copy is considered known, and it is filled in object order.
    CatchUp {
        /// The interval.
        interval: Interval,
        /// The last version that both logs have.
        common: Eversion,
        /// The new log's tail if the whole log is replaced (backfill).
        tail: Eversion,
        /// Encoded entries above `common`.
        entries: Vec<Bytes>,
        /// Retained dup records, if the whole log is replaced.
        dups: DupSnapshot,
        /// Whether the copy is filled by backfill.
        backfill: bool,
    },
    /// The catch-up log is durable; these objects are missing.
    CaughtLog {
        /// The interval.
        interval: Interval,
        /// Objects with the version that is needed. Deletions are already done and not listed.
        missing: Vec<(ObjectId, Eversion)>,
    },
    /// A write, to in-sync and catching-up members.
    RepOp {
        /// The interval.
        interval: Interval,
        /// Encoded [`crate::log::LogEntry`].
        entry: Bytes,
        /// The change; without operations if the receiver only logs it (R8).
        txn: Arc<Transaction>,
        /// Everything up to this version is acknowledged.
        committed_to: Eversion,
        /// The receiver trims the log up to this version.
        trim_to: Eversion,
        /// The client's oldest outstanding tid: its dup records below may be removed.
        oldest_tid: u64,
        /// The primary's process. Updates of an earlier process may arrive late; the current process orders other
        /// updates in their place.
        boot_nonce: u64,
    },
    /// Everything up to `head` is durable on the member.
    RepAck {
        /// The interval.
        interval: Interval,
        /// The durable log head.
        head: Eversion,
    },
    /// One piece of an object for a member that catches up.
    Push {
        /// The interval.
        interval: Interval,
        /// The object.
        object: ObjectId,
        /// The version of the whole object; the default deletes the object.
        version: Eversion,
        /// The piece; `None` deletes the object.
        piece: Option<ObjectPiece>,
    },
    /// The object is durable on the member.
    PushDone {
        /// The interval.
        interval: Interval,
        /// The object.
        object: ObjectId,
        /// The version.
        version: Eversion,
    },
    /// The primary asks a member that is backfilled for its objects from `from` on.
    Scan {
        /// The interval.
        interval: Interval,
        /// Matches the answer to the request.
        scan: u64,
        /// The first candidate; `None` for the start of the collection.
        from: Option<ObjectId>,
        /// The maximum number of objects.
        max: u64,
    },
    /// The answer to [`PeerMsg::Scan`].
    ScanReply {
        /// The interval.
        interval: Interval,
        /// The request that it answers.
        scan: u64,
        /// Objects with versions, in order.
        objects: Vec<(ObjectId, Eversion)>,
        /// Whether the collection ends here.
        end: bool,
    },
    /// Everything below the cursor is in place; `None` if everything is.
    BackfillCursor {
        /// The interval.
        interval: Interval,
        /// The cursor.
        cursor: Option<ObjectId>,
    },
    /// A copy outside the membership announces itself.
    Stray {
        /// The interval that it knows.
        interval: Interval,
    },
    /// The primary, clean in this interval, allows a stray to remove itself.
    RemoveStray {
        /// The interval.
        interval: Interval,
    },
    /// Asks every possible member for its highest record after a MapStore restore (R7). A member that answers has
    /// adopted the new generation and no longer acts on older records.
    HighestQuery {
        /// The new generation.
        generation: u64,
    },
    /// The answer to [`PeerMsg::HighestQuery`], under the new generation's map.
    HighestReply {
        /// The generation of the query.
        generation: u64,
        /// The answer.
        answer: RestoreInfo,
    },
    /// From the primary to an in-sync member, before anything else under this record: the current membership (R7).
    Record {
        /// The record.
        record: PgMembership,
    },
    /// From the primary to a member that needs a backfill: reply when you have a slot for it. Repeated until the member
    /// has one.
    ReserveBackfill {
        /// The interval.
        interval: Interval,
        /// As in [`PgCommand::Reserve`].
        priority: u8,
    },
    /// The answer, sent again when the slot is granted.
    BackfillReserved {
        /// The interval of the request.
        interval: Interval,
        /// Whether the member has a slot for the backfill; otherwise it waits for one.
        granted: bool,
    },
    /// The primary does not backfill the member for now.
    ReleaseBackfill {
        /// The interval.
        interval: Interval,
    },
    /// A member, in sync or not, could not apply an update and now lacks the object (R10).
    Lacks {
        /// The interval.
        interval: Interval,
    },
    /// In place of [`PeerMsg::TailObject`]: the sender lacks the object (R10).
    TailUnreadable {
        /// The interval.
        interval: Interval,
        /// The object.
        object: ObjectId,
    },
    /// In place of [`PeerMsg::Push`]: no in-sync member has the object (R10). Answered by [`PeerMsg::PushDone`].
    Unfound {
        /// The interval.
        interval: Interval,
        /// The object.
        object: ObjectId,
        /// The version that is lost.
        version: Eversion,
    },
    /// A piece of an object, of a [`PeerMsg::Push`] or a [`PeerMsg::TailObject`], is durable on the receiver and no
    /// longer in flight.
    PieceDone {
        /// The interval of the piece.
        interval: Interval,
        /// The object.
        object: ObjectId,
    },
}

/// An OSD's record of a PG across MapStore generations (R7).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RestoreInfo {
    /// The process that answers.
    pub boot_nonce: u64,
    /// Whether it has a copy.
    pub exists: bool,
    /// Whether the copy is complete, except for objects that it knows it lacks.
    pub whole: bool,
    /// The highest record that the copy remembers.
    pub highest: Option<PgMembership>,
    /// OSDs of earlier generations that the map does not list.
    pub unlisted: Vec<OsdId>,
}

/// [`PeerMsg`] on the wire.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PgEnvelope {
    /// The PG.
    pub pg: PgId,
    /// The bytes that the sender's store can take before it is full. The primary needs this of all members before it
    /// orders writes (rule R8).
    pub space_bytes: u64,
    /// The message.
    pub msg: PeerMsg,
}

impl Message for PgEnvelope {
    const KIND: u16 = 50;
    const NAME: &'static str = "PgEnvelope";
}

/// The progress of a member that is being filled.
#[derive(Clone, Debug, Serialize)]
pub struct CatchUpStatus {
    /// The member's OSD.
    pub osd: OsdId,
    /// The current stage, in words.
    pub stage: &'static str,
    /// Objects that it lacks according to its log; 0 while it is backfilled.
    pub missing: u64,
    /// Everything up to this object is backfilled; `None` if the log suffices.
    pub backfill_position: Option<String>,
    /// Objects that are being read or sent to it.
    pub pushing: u64,
    /// Objects that were sent completely and whose arrival is not confirmed.
    pub unconfirmed: u64,
    /// The version up to which its log is durable.
    pub acked: Eversion,
}

/// The answer to `pg query`: the state of a PG.
#[derive(Clone, Debug, Serialize)]
pub struct PgQuery {
    /// Statistics and state.
    pub stats: PgStats,
    /// This OSD's copy.
    pub info: MemberInfo,
    /// The membership in effect.
    pub membership: Option<PgMembership>,
    /// Proposals whose outcome is unknown.
    pub proposals: Vec<PgMembership>,
    /// The machine's phase, in words.
    pub phase: String,
    /// Members that are being filled.
    pub catching_up: Vec<CatchUpStatus>,
    /// What prevents the PG from being active, in words; empty if nothing does.
    pub blocked_by: Vec<String>,
}
