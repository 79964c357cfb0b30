//! Messages between clients, OSDs and the map authority. (Those between OSDs about one PG are in `pg`.)
//!
//! A message is sent as its kind and a [`crate::payload`] split. The messenger does the framing, checksums and authentication.
//! Kinds are never reused.

use crate::encoding::DecodeError;
use crate::ids::{Epoch, Incarnation, Interval, OsdId, PgId, ReqId};
use crate::object::ObjectId;
use crate::op::{OpResult, OsdOp};
use crate::osdmap::{MapVersion, Member, PgMembership};
use crate::payload::{self, SplitMessage};
use crate::stats::{OsdStats, PgStats};
use bytes::Bytes;
use serde::de::{DeserializeOwned, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use uuid::Uuid;

/// A type that is sent as a separate message.
pub trait Message: Serialize + DeserializeOwned + Send + 'static {
    /// Its number on the wire.
    const KIND: u16;
    /// Its name in logs and errors.
    const NAME: &'static str;
}

/// An encoded message. It can be sent on several connections.
#[derive(Debug, Clone)]
pub struct EncodedMessage {
    /// Its number on the wire.
    pub kind: u16,
    /// The description, and the payloads by reference.
    pub split: SplitMessage,
}

impl EncodedMessage {
    /// Encodes `message`; its payloads are kept by reference.
    pub fn new<M: Message>(message: &M) -> EncodedMessage {
        EncodedMessage { kind: M::KIND, split: payload::encode(message) }
    }

    /// Decodes the message as its receiver does. Payloads are joined, which copies them if there are several.
    pub fn decode<M: Message>(self) -> Result<M, DecodeError> {
        if self.kind != M::KIND {
            let detail = format!("expected kind {}, got {}", M::KIND, self.kind);
            return Err(DecodeError::Corrupt { what: M::NAME, detail });
        }
        let SplitMessage { meta, mut data } = self.split;
        let data = match data.len() {
            0 | 1 => data.pop().unwrap_or_default().into_bytes(),
            _ => data.iter().flat_map(|part| part.bytes()).copied().collect(),
        };
        payload::decode(M::NAME, &meta, data)
    }
}

macro_rules! messages {
    ($($type:ident = $kind:literal),* $(,)?) => {
        $(impl Message for $type { const KIND: u16 = $kind; const NAME: &'static str = stringify!($type); })*
    };
}

messages! {
    OsdRequest = 1, OsdReply = 2, OsdBackoff = 3, WatchNotify = 4, WatchLost = 5,
    MonCommand = 10, MonCommandReply = 11, MonSubscribe = 12, MapPublish = 13, ConfigPublish = 14, LogAppend = 15,
    LogSubscribe = 16, LogPublish = 17,
    OsdBoot = 20, OsdFailure = 21, OsdBeacon = 22, OsdMarkMeDown = 23, PgCas = 24, PgCasReply = 25, StatsReport = 26,
    ConfigReport = 27,
    DaemonCommand = 30, DaemonCommandReply = 31,
}

/// A client's request on one object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OsdRequest {
    /// Identifies the request across resends.
    pub reqid: ReqId,
    /// The oldest request for which the client still waits: dup records below it may be dropped (rule R6).
    pub oldest_tid: u64,
    /// How often it was sent before.
    pub attempt: u32,
    /// The client's map epoch.
    pub epoch: Epoch,
    /// The PG.
    pub pg: PgId,
    /// The PG's interval in the client's map. The request is dropped if a later one has begun.
    pub interval: Interval,
    /// The object. For listings only its hash counts.
    pub object: ObjectId,
    /// The client's clock, nanoseconds since 1970: becomes the object's mtime.
    pub mtime_ns: u64,
    /// Bits of [`crate::op::request_flag`].
    pub flags: u32,
    /// Snapshot to read ([`crate::object::SNAP_HEAD`] for the current state).
    pub snap: u64,
    /// Snapshot context for writes: the newest snapshot id, then all existing ones, newest first.
    pub snap_context: Option<(u64, Vec<u64>)>,
    /// The operations, applied atomically in order; at most [`MAX_OPS`].
    #[serde(deserialize_with = "limited_ops")]
    pub ops: Vec<OsdOp>,
    /// The sender, if it is the primary of a PG in the other pool of a cache tier.
    pub tier: Option<Box<crate::tier::TierSender>>,
}

/// Maximum number of ops in one request: the maximum count in Ceph's message. An op takes far more memory than its shortest
/// encoding, so requests with more ops do not decode.
pub const MAX_OPS: usize = 65_535;

/// Bytes that a store may need for an attribute or omap entry in addition to its key and value (in a MemStore: two buffers and
/// a tree node).
pub const KV_ENTRY_OVERHEAD_BYTES: usize = 256;

fn limited_ops<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<OsdOp>, D::Error> {
    struct Ops;
    impl<'de> Visitor<'de> for Ops {
        type Value = Vec<OsdOp>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "at most {MAX_OPS} operations")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Vec<OsdOp>, A::Error> {
            // Most requests have only a few ops.
            let mut ops = Vec::with_capacity(from.size_hint().unwrap_or(0).min(8));
            while let Some(op) = from.next_element()? {
                if ops.len() == MAX_OPS {
                    return Err(serde::de::Error::custom("too many operations"));
                }
                ops.push(op);
            }
            Ok(ops)
        }
    }
    from.deserialize_seq(Ops)
}

impl OsdRequest {
    /// Whether any of its ops changes the object, as far as the client knows. Only the OSD has the registry in which classes
    /// declare this; the client declares its assumption with [`crate::op::request_flag::WRITE`].
    pub fn may_write(&self) -> bool {
        self.flags & crate::op::request_flag::WRITE != 0 || self.ops.iter().any(|op| op.op.is_write())
    }

    /// The minimum epoch of the map with which it may be executed.
    pub fn min_epoch(&self) -> Epoch {
        self.tier.as_ref().map_or(self.epoch, |sender| sender.epoch.max(self.epoch))
    }

    /// Whether it is a request of the sender itself between the pools of a cache tier.
    pub fn is_tier_request(&self) -> bool {
        self.tier.as_ref().is_some_and(|sender| sender.client.is_none())
    }

    /// The request id under which it is executed: that of the client that issued it.
    pub fn effective_reqid(&self) -> ReqId {
        let client = self.tier.as_ref().and_then(|sender| sender.client.as_ref());
        client.map_or(self.reqid, |client| client.reqid)
    }

    /// Maximum number of bytes that it writes, for throttles and checks of space: data, attributes, omap and inputs of class
    /// methods. An attribute or omap entry counts [`KV_ENTRY_OVERHEAD_BYTES`] more.
    pub fn payload_bytes(&self) -> usize {
        use crate::op::Op::{Append, Call, OmapSet, OmapSetHeader, SetXattr, Write, WriteFull, WriteSame};
        let entry = |key: usize, value: usize| KV_ENTRY_OVERHEAD_BYTES + key + value;
        self.ops
            .iter()
            .map(|op| match &op.op {
                Write { data, .. } | WriteFull { data } | Append { data } => data.len(),
                WriteSame { len, .. } => usize::try_from(*len).unwrap_or(usize::MAX / 2),
                SetXattr { name, value } => entry(name.len(), value.len()),
                OmapSet { entries } => entries.iter().map(|(key, value)| entry(key.len(), value.len())).sum(),
                OmapSetHeader { header } => entry(0, header.len()),
                Call { input, .. } => entry(0, input.len()),
                _ => 0,
            })
            .fold(0, usize::saturating_add)
    }
}

/// The answer to an [`OsdRequest`]. A successful write is durable on all in-sync replicas.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OsdReply {
    /// The request.
    pub reqid: ReqId,
    /// The answered attempt.
    pub attempt: u32,
    /// The OSD's map epoch.
    pub epoch: Epoch,
    /// 0 or more on success, else a negated errno.
    pub result: i32,
    /// The object's user version after the request.
    pub user_version: u64,
    /// Code and output of each op. Ops after a failed one are missing.
    pub ops: Vec<OpResult>,
}

/// Tells a client that its map is too old or the request misdirected: it must fetch `epoch` or later and resend.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct OsdBackoff {
    /// The request.
    pub reqid: ReqId,
    /// The refused attempt.
    pub attempt: u32,
    /// The minimum epoch for the resend.
    pub epoch: Epoch,
}

/// Notifies a watcher. It answers with [`crate::op::Op::NotifyAck`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WatchNotify {
    /// The watch.
    pub cookie: u64,
    /// The notify's number.
    pub notify_id: u64,
    /// The notifier's session.
    pub notifier: crate::ids::ClientId,
    /// The notifier's payload.
    #[serde(with = "crate::payload")]
    pub payload: Bytes,
}

/// Tells a watcher that its watch has timed out.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct WatchLost {
    /// The watch.
    pub cookie: u64,
}

/// A command in Ceph's JSON form: `{"prefix": "osd pool create", "pool": "p", …}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MonCommand {
    /// Pairs the reply with the command on its connection.
    pub tid: u64,
    /// The JSON text, as librados' callers pass it.
    pub cmd: String,
    /// Input data (`-i FILE`).
    #[serde(with = "crate::payload")]
    pub input: Bytes,
}

/// The answer to a [`MonCommand`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MonCommandReply {
    /// The command's number.
    pub tid: u64,
    /// 0 or a negated errno.
    pub code: i32,
    /// Text for people (Ceph's `outs`, printed to stderr).
    pub status: String,
    /// Output data (Ceph's `outbl`, printed to stdout).
    #[serde(with = "crate::payload")]
    pub output: Bytes,
}

/// Like [`MonCommand`], for an OSD (`ceph tell osd.N`, `ceph daemon`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DaemonCommand {
    /// Pairs the reply with the command on its connection.
    pub tid: u64,
    /// The JSON text.
    pub cmd: String,
    /// Input data.
    #[serde(with = "crate::payload")]
    pub input: Bytes,
}

/// The answer to a [`DaemonCommand`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DaemonCommandReply {
    /// The command's number.
    pub tid: u64,
    /// 0 or a negated errno.
    pub code: i32,
    /// Text for people.
    pub status: String,
    /// Output data.
    #[serde(with = "crate::payload")]
    pub output: Bytes,
}

/// Requests maps from `next_epoch` on from the map authority, now and when they are published.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MonSubscribe {
    /// The first wanted epoch; 0 requests a full map.
    pub next_epoch: Epoch,
    /// Whether to send configuration too.
    pub config: bool,
}

/// Maps, in order: at most one full map, then the incrementals that follow it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MapPublish {
    /// The cluster.
    pub fsid: Uuid,
    /// An encoded [`crate::osdmap::OsdMap`].
    #[serde(with = "crate::payload")]
    pub full: Bytes,
    /// Encoded [`crate::osdmap::Incremental`]s, oldest first.
    pub incrementals: Vec<EncodedIncremental>,
    /// The newest epoch that exists.
    pub newest: Epoch,
}

/// One encoded incremental.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EncodedIncremental(#[serde(with = "crate::payload")] pub Bytes);

/// The configuration that applies to the subscriber: `config set` values by option name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConfigPublish {
    /// Option name to value text.
    pub values: BTreeMap<String, String>,
}

/// A line for the cluster log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LogAppend {
    /// `error`, `warn`, `info` or `debug`.
    pub level: String,
    /// The text.
    pub text: String,
}

/// Requests lines of the cluster log from the map authority as they are written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogSubscribe {
    /// The minimum level: `error`, `warn`, `sec`, `info` or `debug`.
    pub level: String,
    /// `cluster`, `audit` or `*` for all.
    pub channel: String,
    /// The last line received: available later ones are sent at once. `None` starts with the next line.
    pub after: Option<u64>,
}

/// Lines of the cluster log, oldest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogPublish {
    /// The lines.
    pub lines: Vec<LogLine>,
}

/// A line of the cluster log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// The time, nanoseconds since 1970.
    pub stamp_ns: u64,
    /// The writer: `mon.a`, `osd.3`, `client.admin`.
    pub name: String,
    /// The line's number in the log.
    pub seq: u64,
    /// `error`, `warn`, `sec`, `info` or `debug`.
    pub level: String,
    /// `cluster` or `audit`.
    pub channel: String,
    /// The text.
    pub text: String,
}

/// The options of a daemon that are not at their defaults (`config show`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigReport {
    /// By name.
    pub options: Vec<ReportedOption>,
}

/// One option of a [`ConfigReport`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportedOption {
    /// Its name.
    pub name: String,
    /// Its values by source (`mon`, `file`, `env`, `cmdline`, `override`), the effective one last.
    pub values: Vec<(String, String)>,
}

/// Reports that an OSD has started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OsdBoot {
    /// The OSD.
    pub osd: OsdId,
    /// Its disk's uuid.
    pub uuid: Uuid,
    /// Its store's incarnation.
    pub incarnation: Incarnation,
    /// Identifies its process.
    pub boot_nonce: u64,
    /// The address on which it listens.
    pub addr: SocketAddr,
    /// The epoch of its newest map.
    pub epoch: Epoch,
    /// The newest map that its store has a record of, from this process or an earlier one (rule R7).
    pub seen: MapVersion,
    /// Its store's size in bytes: the initial CRUSH weight in TiB.
    pub total_bytes: u64,
    /// `osd metadata`.
    pub metadata: BTreeMap<String, String>,
    /// CRUSH location (`crush_location`), type to name.
    pub location: BTreeMap<String, String>,
    /// CRUSH device class (`ssd`, `hdd`, `mem`, …).
    pub device_class: String,
}

/// Reports that an OSD does not hear from another one, or withdraws such a report.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct OsdFailure {
    /// The silent OSD.
    pub target: OsdId,
    /// The boot nonce of the silent process.
    pub boot_nonce: u64,
    /// Duration of the silence in milliseconds; 0 withdraws the report.
    pub silent_ms: u64,
    /// Whether the connection was refused, so that the process has ended and there is no need to wait.
    pub refused: bool,
    /// The reporter's epoch.
    pub epoch: Epoch,
}

/// An OSD's periodic beacon to the map authority.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct OsdBeacon {
    /// Identifies the OSD's process.
    pub boot_nonce: u64,
    /// Its map.
    pub map: MapVersion,
    /// Whether its store is too full for writes.
    pub full: bool,
}

/// Requests that a stopping OSD be marked down at once.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct OsdMarkMeDown {
    /// Identifies the OSD's process.
    pub boot_nonce: u64,
}

/// Proposes a PG's next membership. It takes effect if the PG is still at `expected`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PgCas {
    /// Pairs the reply with the proposal on its connection.
    pub tid: u64,
    /// The PG.
    pub pg: PgId,
    /// The proposer's store, which must be the OSD's current one.
    pub proposer: Member,
    /// The membership to replace; `None` creates the PG.
    pub expected: Option<PgMembership>,
    /// The next membership; its interval must be the next one.
    pub proposed: PgMembership,
}

/// The outcome of a [`PgCas`]. A missing answer means unknown, not failed (rule R1).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PgCasReply {
    /// The proposal's number.
    pub tid: u64,
    /// The PG.
    pub pg: PgId,
    /// Whether it took effect.
    pub accepted: bool,
    /// The current membership.
    pub current: Option<PgMembership>,
    /// The epoch of the map that contains it.
    pub epoch: Epoch,
}

/// Periodic statistics of an OSD.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatsReport {
    /// Statistics of its store and process.
    pub osd: OsdStats,
    /// The PGs of which it is primary: those that changed since the last report, and periodically all of them.
    pub pgs: Vec<PgStats>,
    /// The OSD is opening its store and is not up: only `osd.health` counts.
    pub starting: bool,
}
