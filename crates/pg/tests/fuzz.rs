//! Damaged inputs for messages between OSDs and stored records of PGs: see `nacre_fuzz`.

#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use nacre_fuzz::{CountingAllocator, Target};
use nacre_pg::heartbeat::{HbEnvelope, HbMsg};
use nacre_pg::lease::{LeaseGrant, LeaseRequest};
use nacre_pg::log::{DupRecord, EntryKind, LogEntry};
use nacre_pg::{KnownOsds, PeerMsg, PgEnvelope};
use nacre_types::encoding::{self, Versioned};
use nacre_types::ids::{ClientId, Epoch, Eversion, Interval, PgId, PoolId, ReqId};
use nacre_types::object::ObjectId;
use nacre_types::payload;
use std::path::Path;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn corpus() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"))
}

/// A message as one input: the description's length, the description, the data.
fn joined(message: &PgEnvelope) -> Vec<u8> {
    let split = payload::encode(message);
    let mut out = (split.meta.len() as u32).to_le_bytes().to_vec();
    out.extend_from_slice(&split.meta);
    split.data.iter().for_each(|data| out.extend_from_slice(data));
    out
}

fn split(input: &[u8]) -> Option<PgEnvelope> {
    let (length, rest) = input.split_first_chunk::<4>()?;
    let (meta, data) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    payload::decode("message", meta, Bytes::copy_from_slice(data)).ok()
}

fn entry() -> LogEntry {
    LogEntry {
        version: Eversion::new(Interval(4), 12),
        prior: Eversion::new(Interval(3), 9),
        object: ObjectId::new(PoolId(3), "ns", "", "name"),
        kind: EntryKind::Modify,
        reqid: ReqId { client: ClientId(4), tid: 8 },
        user_version: 5,
        mtime_ns: 1_700_000_000_000_000_000,
        result: Bytes::from_static(b"reply"),
    }
}

fn versioned<T: Versioned>(name: &str, seeds: &[T]) {
    let seeds = seeds.iter().map(encoding::encode).collect();
    Target::new(name, corpus(), seeds)
        .run(|input| encoding::decode::<T>(input).ok().map(|value| encoding::encode(&value)));
}

#[test]
fn peers_messages() {
    let (interval, at) = (Interval(4), Eversion::new(Interval(4), 12));
    let messages = [
        PeerMsg::Query { interval, round: 1, versions_after: Some(at), boot_nonce: 5 },
        PeerMsg::Promised { interval, promised: Interval(9) },
        PeerMsg::GetTail { interval, after: at, objects: vec![entry().object] },
        PeerMsg::Tail { interval, after: at, entries: vec![entry().encode(), Bytes::new()], objects: 2 },
        PeerMsg::TailObject { interval, object: entry().object, piece: None },
    ];
    let pg = PgId { pool: PoolId(3), seed: 1 };
    let seeds = messages.map(|msg| joined(&PgEnvelope { pg, space_bytes: 1 << 40, msg }));
    Target::new("PgEnvelope", corpus(), seeds.to_vec())
        .run(|input| split(input).map(|message| joined(&message)));
}

#[test]
fn heartbeats() {
    let epoch = Epoch(300);
    let lease = LeaseRequest { boot_nonce: 5, epoch, sent_at_ns: 77 };
    let grant = LeaseGrant { boot_nonce: 6, epoch, for_boot_nonce: 5, sent_at_ns: 77 };
    let messages = [
        HbMsg::Ping { to_boot_nonce: 6, lease },
        HbMsg::Pong { boot_nonce: 6, epoch, for_boot_nonce: 5, sent_at_ns: 77, lease: None },
        HbMsg::Pong { boot_nonce: 6, epoch, for_boot_nonce: 5, sent_at_ns: 77, lease: Some(grant) },
    ];
    let encoded = |message: &HbEnvelope| payload::encode(message).meta.to_vec();
    let seeds = messages.map(|msg| encoded(&HbEnvelope { space_bytes: 1 << 40, msg })).to_vec();
    Target::new("HbEnvelope", corpus(), seeds).run(|input| {
        let message: HbEnvelope = payload::decode("heartbeat", input, Bytes::new()).ok()?;
        Some(encoded(&message))
    });
}

#[test]
fn records_of_logs() {
    Target::new("LogEntry", corpus(), vec![entry().encode().to_vec()])
        .run(|input| LogEntry::decode(input).ok().map(|entry| entry.encode().to_vec()));
    let record = DupRecord { reqid: entry().reqid, version: entry().version, result: entry().result };
    versioned("DupRecord", &[record]);
    versioned("KnownOsds", &[KnownOsds::default()]);
}
