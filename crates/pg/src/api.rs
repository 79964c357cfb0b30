//! What goes in and out of a [`crate::Pg`]: events, commands, messages between members.

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

/// How often bounds of a [`crate::Pg`] were reached since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// Client sessions that expired ([`Settings::session_expiry_ns`]).
    pub sessions_expired: u64,
    /// Operations that found [`Settings::max_inflight_writes`] writes in flight.
    pub writes_held: u64,
}

/// The host's lease table as a PG needs it (rule R4).
pub trait LeaseView {
    /// Whether this OSD holds a lease from `from` now that a PG may count which has acted on the map of `epoch`.
    fn held_from(&self, from: OsdId, epoch: Epoch) -> bool;

    /// The time (CLOCK_BOOTTIME, ns) from which no lease that this OSD ever granted to `to` can be valid.
    fn quiet_at(&self, to: OsdId) -> u64;
}

/// A client's request as far as replication cares. The host keeps the request itself under `token`.
#[derive(Clone, Debug)]
pub struct ClientOp {
    /// The host's handle.
    pub token: u64,
    /// Names the request across resends.
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
    /// Whether it does not look at one object but lists the PG: is executed as soon as the PG is active, and answered when the
    /// updates that it may show are committed.
    pub listing: bool,
    /// The host finds out elsewhere whether it was executed, should this PG have forgotten its client.
    pub vouched: bool,
    /// The host had it before and withdrew it ([`Executed::Withdrawn`]): it goes on before what waits for the same object here.
    pub resumed: bool,
}

/// What executing an operation brought ([`Event::Executed`]).
#[derive(Clone, Debug)]
pub enum Executed {
    /// Nothing changed: a read. The reply waits for earlier writes to the object and for the lease.
    Read,
    /// The host took the operation back before it had any effect: it is forgotten.
    Withdrawn,
    /// A request that may write failed. The failure is recorded like an update, so that a late copy of the request can't
    /// succeed once its client was told.
    Failed {
        /// The encoded reply, kept for resends (R6).
        result: Bytes,
    },
    /// A request succeeded that might change an object, but changed nothing of this one as it is. That is recorded like an
    /// update, so that a late copy of the request can't change what the object has become since.
    Unchanged {
        /// The encoded reply, kept for resends (R6).
        result: Bytes,
    },
    /// The object, or what the request needs of it, can't be read, or the copy lacks it ([`crate::Pg::lacks`]). Nothing was
    /// changed.
    Damaged {
        /// For a request that does nothing but remove the object: the encoded reply to its removal.
        removal: Option<Bytes>,
    },
    /// The object changes.
    Write {
        /// The change, without log steps. Must be applicable: the host has checked it against its store's state.
        txn: Transaction,
        /// Whether the object is gone afterwards.
        delete: bool,
        /// The object's version before; the default where it did not exist.
        prior: Eversion,
        /// The user's version after.
        user_version: u64,
        /// mtime, nanoseconds since 1970.
        mtime_ns: u64,
        /// The encoded reply, kept for resends (R6).
        result: Bytes,
    },
}

/// Why the store refused a transaction ([`crate::Pg::refused`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It needs a part of an object that can't be read.
    Damaged,
    /// There is no space for it.
    Full,
}

/// Into a [`crate::Pg`].
#[derive(Clone, Debug)]
pub enum Event {
    /// A new map. `up` is where CRUSH wants the PG under it.
    Map {
        /// The map.
        map: Arc<OsdMap>,
        /// CRUSH's up set, holes left out.
        up: Vec<OsdId>,
        /// OSDs of earlier generations that the map does not list ([`crate::KnownOsds`]).
        unlisted: Arc<[OsdId]>,
    },
    /// A client's request.
    Client(ClientOp),
    /// The answer to [`Command::Execute`]; fed at once, before any other event.
    Executed {
        /// The request.
        token: u64,
        /// What it did.
        outcome: Executed,
    },
    /// A message from another member.
    Peer {
        /// Who sent it.
        from: OsdId,
        /// What.
        msg: PeerMsg,
    },
    /// The connection to a peer was lost with messages possibly undelivered, or the peer restarted.
    PeerReset(OsdId),
    /// A [`Command::Persist`] is durable. Ids become durable in rising order.
    Committed {
        /// The highest durable id.
        persist: u64,
    },
    /// The map authority's answer to a proposal.
    Cas(PgCasReply),
    /// The answer to [`Command::ReadObject`]: the object from `offset` on as the store has it now.
    ObjectRead {
        /// The command's handle.
        read: u64,
        /// What was read; `None` where the object does not exist; EIO where it is damaged, another error where it can't be read
        /// now.
        piece: Result<Option<ObjectPiece>, nacre_types::errno::Errno>,
    },
    /// The answer to [`Command::ListObjects`]: objects with their versions, in order.
    Listed {
        /// The command's handle.
        list: u64,
        /// The objects.
        objects: Vec<(ObjectId, Eversion)>,
        /// Whether the collection ends here.
        end: bool,
    },
    /// The answer to [`Command::Reserve`]: recovery may start.
    Reserved,
    /// The answer to [`Command::ReserveTarget`]: this copy may be filled.
    TargetReserved,
    /// The store has become too full for copies to be filled: a backfill of this one is to wait.
    TargetTooFull,
    /// The lease table changed for the better, or a peer restarted.
    Leases,
    /// Time has passed; at least as often as [`crate::Pg::next_wake`] asks for.
    Tick,
}

/// Part of an object on its way to another member. The first piece carries attributes; omap follows the data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ObjectPiece {
    /// Whether it is the object's first piece: what the receiver had before goes.
    pub first: bool,
    /// The object's version.
    pub version: Eversion,
    /// Whole size of the data in bytes.
    pub size: u64,
    /// Where `data` belongs.
    pub offset: u64,
    /// Data.
    #[serde(with = "nacre_types::payload")]
    pub data: Bytes,
    /// Attributes; in the first piece.
    pub attrs: Vec<(String, Bytes)>,
    /// The omap header; in the first piece.
    pub omap_header: Bytes,
    /// Omap entries.
    pub omap: Vec<(Bytes, Bytes)>,
    /// Where to go on: data offset and last omap key sent; `None` when this is the last piece.
    pub next: Option<PieceCursor>,
}

/// Where the next [`ObjectPiece`] begins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PieceCursor {
    /// Data offset in bytes.
    pub offset: u64,
    /// The last omap key that was sent, once the data is through.
    pub omap_after: Option<Bytes>,
}

/// Why a client's request is dropped without an answer: the client sends it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// This OSD is not the PG's primary, or the request was sent before the interval began.
    StaleInterval,
    /// Too many requests wait.
    Full,
}

/// Out of a [`crate::Pg`]; to be carried out in order.
#[derive(Clone, Debug)]
pub enum Command {
    /// Run the request against the store's present state and feed [`Event::Executed`] at once.
    Execute {
        /// The request.
        token: u64,
        /// The version that it gets if it changes the object.
        version: Eversion,
    },
    /// Queue a transaction; report [`Event::Committed`] when durable.
    Persist {
        /// Rising.
        id: u64,
        /// What.
        txn: Transaction,
    },
    /// Send to another member; in order per member.
    Send {
        /// Whom.
        to: OsdId,
        /// What.
        msg: PeerMsg,
    },
    /// The request took effect and is durable, or its reply may go out: send what `Execute` produced.
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
        /// Why.
        reason: DropReason,
    },
    /// Refuse the request permanently: its outcome was forgotten (R6).
    Refuse {
        /// The request.
        token: u64,
        /// The error to answer with.
        errno: nacre_types::errno::Errno,
    },
    /// Forget a request without answering: a resend of it has taken its place.
    Forget {
        /// The superseded request.
        token: u64,
    },
    /// Send a proposal to the map authority; the host fills in `tid` and routes the answer back.
    Propose(PgCas),
    /// Read an object for recovery, from `cursor` on, about `max_bytes`.
    ReadObject {
        /// Handle for the answer.
        read: u64,
        /// Which.
        object: ObjectId,
        /// From where.
        cursor: PieceCursor,
        /// How much.
        max_bytes: usize,
    },
    /// List objects with their versions for backfill.
    ListObjects {
        /// Handle for the answer.
        list: u64,
        /// The first candidate; `None` begins.
        from: Option<ObjectId>,
        /// At most so many.
        max: usize,
    },
    /// Ask for one of the OSD's recovery slots; answered by [`Event::Reserved`], given back by [`Command::Release`]. Asked again
    /// while it waits, it changes the priority.
    Reserve {
        /// Whether whole copies are to be made (`osd_max_backfills`), or only missing objects.
        backfill: bool,
        /// How urgent it is, before the pool's `recovery_priority` is added: Ceph's `OSD_RECOVERY_*` and `OSD_BACKFILL_*`.
        priority: u8,
    },
    /// Give the slot back, or withdraw the request.
    Release,
    /// Ask for one of the OSD's slots for copies that other OSDs fill by backfill; answered by [`Event::TargetReserved`], given
    /// back by [`Command::ReleaseTarget`]. Asked again while it waits, it changes the priority.
    ReserveTarget {
        /// As in [`Command::Reserve`].
        priority: u8,
    },
    /// Give that slot back, or withdraw the request.
    ReleaseTarget,
    /// An object's contents changed behind the executor's back (recovery, backfill): drop what is cached of it.
    Invalidate {
        /// The object; `None` means all of the PG's.
        object: Option<ObjectId>,
    },
    /// The OSD no longer needs its copy of the PG: remove it in the background, then forget the PG.
    RemovePg,
}

/// What a member knows of its copy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemberInfo {
    /// Whether it has the PG at all; if not, nothing else counts (R2).
    pub exists: bool,
    /// The highest membership that it has seen (R7).
    pub highest: Option<PgMembership>,
    /// Its log's head.
    pub head: Eversion,
    /// Its log's tail.
    pub tail: Eversion,
    /// The highest update that it knows to be acknowledged.
    pub committed_to: Eversion,
    /// Whether every object is there up to the log's head, apart from `missing`.
    pub complete: bool,
    /// Number of objects that the log names but that have not arrived, or that are damaged.
    pub missing: u64,
    /// The first of them.
    pub lacks: BTreeSet<ObjectId>,
    /// The process, so that a restarted primary's leases are known to be gone.
    pub boot_nonce: u64,
}

/// Between members of one PG.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum PeerMsg {
    /// Primary asks a member for its info, under this interval. With `versions` also for its log's versions above
    /// `tail`.
    Query {
        /// The primary's interval.
        interval: Interval,
        /// Pairs the answer with the question: what was told before does not count.
        round: u64,
        /// Above which version the member should list its log; `None` for none.
        versions_after: Option<Eversion>,
        /// The primary's process: the member takes updates from no other.
        boot_nonce: u64,
    },
    /// The answer.
    Info {
        /// The interval of the query.
        interval: Interval,
        /// The question that it answers.
        round: u64,
        /// The copy, as durable as it was when the question came.
        info: MemberInfo,
        /// The log's versions asked for, in order: the one named in the query, if the log holds it, and all above.
        versions: Option<Vec<Eversion>>,
    },
    /// The answer to a query of an interval below what was promised to somebody else: this member can't take part
    /// before the interval has risen.
    Promised {
        /// The interval of the query.
        interval: Interval,
        /// The least interval in which it takes part.
        promised: Interval,
    },
    /// Primary to an in-sync member that is ahead: send what follows `after` (R3: the longest log is adopted).
    GetTail {
        /// The interval.
        interval: Interval,
        /// The primary's head, or the member's where that is lower and nothing but objects is wanted.
        after: Eversion,
        /// Objects that the primary lacks besides (R10).
        objects: Vec<ObjectId>,
    },
    /// In-sync member's entries above `after`; and primary's to an in-sync member that is behind. The objects they name, and
    /// those that the receiver lacks, follow as [`PeerMsg::TailObject`]; all of it takes effect at once.
    Tail {
        /// The interval.
        interval: Interval,
        /// The receiver's head.
        after: Eversion,
        /// Encoded entries, oldest first.
        entries: Vec<Bytes>,
        /// Number of objects that follow.
        objects: u64,
    },
    /// One piece of an object that a [`PeerMsg::Tail`] names.
    TailObject {
        /// The interval.
        interval: Interval,
        /// Which.
        object: ObjectId,
        /// The piece; `None`: the object does not exist.
        piece: Option<ObjectPiece>,
    },
    /// The tail is durable: the receiver's head.
    TailDone {
        /// The interval.
        interval: Interval,
        /// Its head now.
        head: Eversion,
    },
    /// Primary to a member to catch up: your log is to become mine. Entries above `common` of the receiver's log are
    /// divergent and go; `entries` follow. Objects of both become missing. With `backfill` the copy starts from nothing
    /// known and is filled in object order.
    CatchUp {
        /// The interval.
        interval: Interval,
        /// The last version that both logs have.
        common: Eversion,
        /// The new log's tail where it is replaced whole (backfill).
        tail: Eversion,
        /// Encoded entries above `common`.
        entries: Vec<Bytes>,
        /// Retained dup records, where the log is replaced whole.
        dups: DupSnapshot,
        /// Whether the copy is filled by backfill.
        backfill: bool,
    },
    /// The catch-up log is durable; these objects are missing.
    CaughtLog {
        /// The interval.
        interval: Interval,
        /// Objects with the version needed (`None`: to be deleted is done already, not listed).
        missing: Vec<(ObjectId, Eversion)>,
    },
    /// A write, to in-sync and catching-up members.
    RepOp {
        /// The interval.
        interval: Interval,
        /// Encoded [`crate::log::LogEntry`].
        entry: Bytes,
        /// The change; empty ops where the receiver only logs it (R8).
        txn: Arc<Transaction>,
        /// Everything up to here is acknowledged.
        committed_to: Eversion,
        /// Trim the log up to here.
        trim_to: Eversion,
        /// Client's oldest outstanding tid: its dup records below may go.
        oldest_tid: u64,
        /// The primary's process. What a former one sent may come late; the present one orders other updates in its place.
        boot_nonce: u64,
    },
    /// Everything up to `head` is durable here.
    RepAck {
        /// The interval.
        interval: Interval,
        /// The durable log head.
        head: Eversion,
    },
    /// One piece of an object for a catching-up member.
    Push {
        /// The interval.
        interval: Interval,
        /// Which.
        object: ObjectId,
        /// The version that the pieces make up; the default deletes the object.
        version: Eversion,
        /// The piece; `None` deletes.
        piece: Option<ObjectPiece>,
    },
    /// The object is durable there.
    PushDone {
        /// The interval.
        interval: Interval,
        /// Which.
        object: ObjectId,
        /// Which version.
        version: Eversion,
    },
    /// Primary asks a member being backfilled for its objects from `from` on.
    Scan {
        /// The interval.
        interval: Interval,
        /// Pairs the answer with the question.
        scan: u64,
        /// The first candidate; `None` begins.
        from: Option<ObjectId>,
        /// At most so many.
        max: u64,
    },
    /// The answer.
    ScanReply {
        /// The interval.
        interval: Interval,
        /// The question that it answers.
        scan: u64,
        /// Objects with versions, in order.
        objects: Vec<(ObjectId, Eversion)>,
        /// Whether the collection ends here.
        end: bool,
    },
    /// Everything below the cursor is in place; `None`: everything is.
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
    /// The primary, clean in this interval, lets a stray remove itself.
    RemoveStray {
        /// The interval.
        interval: Interval,
    },
    /// Asks any possible member for its highest record after a MapStore restore (R7). Who answers has taken the new
    /// generation, and stopped acting by older records.
    HighestQuery {
        /// The new generation.
        generation: u64,
    },
    /// The answer to [`PeerMsg::HighestQuery`], under the new generation's map.
    HighestReply {
        /// The generation of the query.
        generation: u64,
        /// The answer.
        answer: Remembered,
    },
    /// Primary to an in-sync member, before anything under this record: it is the membership now (R7).
    Record {
        /// The record.
        record: PgMembership,
    },
    /// Primary to a member that needs a backfill: tell when you have a slot for it. Repeated until it has one.
    ReserveBackfill {
        /// The interval.
        interval: Interval,
        /// As in [`Command::Reserve`].
        priority: u8,
    },
    /// The answer, and another one when the slot is there.
    BackfillReserved {
        /// The interval of the question.
        interval: Interval,
        /// Whether the member has a slot for the backfill; else it waits for one.
        granted: bool,
    },
    /// The primary does not backfill the member for now.
    ReleaseBackfill {
        /// The interval.
        interval: Interval,
    },
    /// A member, in sync or not, could not apply an update, and lacks the object now (R10).
    Lacks {
        /// The interval.
        interval: Interval,
    },
    /// In place of [`PeerMsg::TailObject`]: the sender lacks the object (R10).
    TailUnreadable {
        /// The interval.
        interval: Interval,
        /// Which.
        object: ObjectId,
    },
    /// In place of [`PeerMsg::Push`]: no member in sync has the object (R10). Answered by [`PeerMsg::PushDone`].
    Unfound {
        /// The interval.
        interval: Interval,
        /// Which.
        object: ObjectId,
        /// The version that is lost.
        version: Eversion,
    },
    /// One piece of an object, of a [`PeerMsg::Push`] or a [`PeerMsg::TailObject`], is durable there: so much fewer are under way.
    PieceDone {
        /// The interval of the piece.
        interval: Interval,
        /// Of which object.
        object: ObjectId,
    },
}

/// What an OSD knows of a PG across MapStore generations (R7).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Remembered {
    /// The process that answers.
    pub boot_nonce: u64,
    /// Whether it has a copy.
    pub exists: bool,
    /// Whether the copy is whole, but for objects that it knows it lacks.
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
    /// Bytes that the sender's store may still take before it is full, so that who orders writes knows it of all
    /// members (rule R8).
    pub space_bytes: u64,
    /// The message.
    pub msg: PeerMsg,
}

impl Message for PgEnvelope {
    const KIND: u16 = 50;
    const NAME: &'static str = "PgEnvelope";
}

/// How far a member that is filled has come.
#[derive(Clone, Debug, Serialize)]
pub struct CatchUpStatus {
    /// The member's OSD.
    pub osd: OsdId,
    /// What happens to it, in words.
    pub stage: &'static str,
    /// Objects that it lacks by its log; 0 while it is backfilled.
    pub missing: u64,
    /// Everything up to this object is backfilled; `None` where the log suffices.
    pub backfill_position: Option<String>,
    /// Objects that are read or sent to it.
    pub pushing: u64,
    /// Objects that were sent whole and whose arrival is not confirmed.
    pub unconfirmed: u64,
    /// Up to which version its log is durable.
    pub acked: Eversion,
}

/// `pg query`: what a PG knows of itself.
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
    /// What the machine is doing, in words.
    pub phase: String,
    /// Members that are being filled.
    pub catching_up: Vec<CatchUpStatus>,
    /// What blocks activity, in words; empty when nothing does.
    pub blocked_by: Vec<String>,
}
