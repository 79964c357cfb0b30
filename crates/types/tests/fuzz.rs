//! Fuzz targets with damaged inputs for every decoder of this crate: see `nacre_fuzz`.

#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use nacre_crush::CrushMap;
use nacre_fuzz::{CountingAllocator, Target};
use nacre_types::caps::{self, mon, osd};
use nacre_types::ceph::CephEncoding;
use nacre_types::cls::{lock, refcount, version};
use nacre_types::command::{mon_commands, osd_commands};
use nacre_types::encoding::{self, Versioned};
use nacre_types::ids::{ClientId, EntityName, Epoch, Incarnation, Interval, OsdId, PgId, PoolId, ReqId};
use nacre_types::msg::*;
use nacre_types::object::ObjectId;
use nacre_types::op::*;
use nacre_types::osdmap::{Incremental, Member, OsdMap, PgChange, PgMembership};
use nacre_types::payload;
use nacre_types::pool::Pool;
use nacre_types::txn::{Transaction, TxnOp};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::Path;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn corpus() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"))
}

/// A message as one input: the description's length, the description and the data.
fn joined<M: Serialize>(message: &M) -> Vec<u8> {
    let split = payload::encode(message);
    let mut out = (split.meta.len() as u32).to_le_bytes().to_vec();
    out.extend_from_slice(&split.meta);
    split.data.iter().for_each(|data| out.extend_from_slice(data));
    out
}

fn split<M: Serialize + DeserializeOwned>(input: &[u8]) -> Option<M> {
    let (length, rest) = input.split_first_chunk::<4>()?;
    let (meta, data) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    payload::decode("message", meta, Bytes::copy_from_slice(data)).ok()
}

fn message<M: Message>(seeds: &[M]) {
    let seeds = seeds.iter().map(joined).collect();
    Target::new(M::NAME, corpus(), seeds).run(|input| split::<M>(input).map(|message| joined(&message)));
}

fn versioned<T: Versioned>(name: &str, seeds: &[T]) {
    let seeds = seeds.iter().map(encoding::encode).collect();
    Target::new(name, corpus(), seeds)
        .run(|input| encoding::decode::<T>(input).ok().map(|value| encoding::encode(&value)));
}

fn pg() -> PgId {
    PgId { pool: PoolId(3), seed: 0x1f }
}

fn object() -> ObjectId {
    ObjectId::new(PoolId(3), "ns", "locator", "name")
}

fn reqid() -> ReqId {
    ReqId { client: ClientId(4123), tid: 77 }
}

fn bytes(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

/// One of almost every op.
fn ops() -> Vec<Op> {
    vec![
        Op::Create { exclusive: true },
        Op::Read { offset: 4096, len: 65536 },
        Op::Write { offset: 300, data: bytes("written").into() },
        Op::WriteFull { data: bytes("whole").into() },
        Op::Append { data: Bytes::new().into() },
        Op::Truncate { size: 1 << 30 },
        Op::Zero { offset: 1, len: 2 },
        Op::Remove,
        Op::Stat,
        Op::GetXattr { name: "a".into() },
        Op::GetXattrs,
        Op::SetXattr { name: "b".into(), value: bytes("value") },
        Op::RmXattr { name: "c".into() },
        Op::CmpXattr { name: "d".into(), op: CmpOp::Gte, value: CmpValue::U64(9) },
        Op::CmpXattr { name: "d".into(), op: CmpOp::Ne, value: CmpValue::Bytes(bytes("x")) },
        Op::OmapGetKeys { start_after: bytes("k"), max: 10 },
        Op::OmapGetVals { start_after: Bytes::new(), filter_prefix: bytes("p"), max: u64::MAX },
        Op::OmapGetValsByKeys { keys: vec![bytes("k1"), bytes("k2")] },
        Op::OmapGetHeader,
        Op::OmapSet { entries: vec![(bytes("k"), bytes("v")), (bytes("k2"), Bytes::new())] },
        Op::OmapSetHeader { header: bytes("head") },
        Op::OmapRmKeys { keys: vec![bytes("k")] },
        Op::OmapRmRange { first: bytes("a"), last: bytes("z") },
        Op::OmapClear,
        Op::OmapCmp { assertions: vec![(bytes("k"), CmpOp::Eq, bytes("v"))] },
        Op::AssertExists,
        Op::AssertVersion { version: 7 },
        Op::PgList { cursor: Some(object()), max: 100, namespace: Some("ns".into()) },
        Op::ListDirty { cursor: object(), max: 100, namespace: None },
        Op::Call { class: "lock".into(), method: "lock".into(), input: bytes("input") },
        Op::SetAllocHint { expected_object_size: 1 << 22, expected_write_size: 4096, flags: 1 },
        Op::SparseRead { offset: 0, len: 0 },
        Op::CmpExt { offset: 5, data: bytes("compared") },
        Op::WriteSame { offset: 0, len: 12, data: bytes("abc") },
        Op::Checksum { kind: ChecksumKind::XxHash64, init: 1, offset: 0, len: 10, chunk: 5 },
        Op::Watch { cookie: 1, timeout_s: 30 },
        Op::Notify { timeout_s: 3, payload: bytes("hear") },
        Op::NotifyAck { notify_id: 1, cookie: 2, payload: bytes("heard") },
        Op::CopyGet { cursor: CopyCursor::default(), max_bytes: 8 << 20 },
        Op::CopyFrom { source: object(), version: 3, flags: 0x20, truncate: (1, 2) },
    ]
}

fn request(ops: Vec<Op>) -> OsdRequest {
    OsdRequest {
        reqid: reqid(),
        oldest_tid: 70,
        attempt: 1,
        epoch: Epoch(300),
        pg: pg(),
        interval: Interval(12),
        object: object(),
        mtime_ns: 1_700_000_000_000_000_000,
        flags: request_flag::RETURNVEC,
        snap: nacre_types::object::SNAP_HEAD,
        snap_context: Some((4, vec![4, 2])),
        ops: ops.into_iter().map(|op| OsdOp { op, flags: op_flag::FAILOK }).collect(),
        tier: None,
    }
}

#[test]
fn requests() {
    message(&[request(ops()), request(vec![Op::Stat])]);
}

#[test]
fn replies() {
    message(&[OsdReply {
        reqid: reqid(),
        attempt: 0,
        epoch: Epoch(9),
        result: -2,
        user_version: 8,
        ops: vec![OpResult::output(bytes("read")), OpResult { code: -5, output: Bytes::new() }],
    }]);
    message(&[OsdBackoff { reqid: reqid(), attempt: 2, epoch: Epoch(4) }]);
    message(&[WatchNotify { cookie: 1, notify_id: 2, notifier: ClientId(3), payload: bytes("news") }]);
    message(&[WatchLost { cookie: 300 }]);
}

#[test]
fn monitors_messages() {
    message(&[MonCommand { tid: 1, cmd: "{\"prefix\":\"status\"}".into(), input: bytes("input") }]);
    message(&[MonCommandReply { tid: 1, code: -22, status: "no".into(), output: bytes("out") }]);
    message(&[MonSubscribe { next_epoch: Epoch(8), config: true }]);
    message(&[MapPublish {
        fsid: Default::default(),
        full: bytes("map"),
        incrementals: vec![EncodedIncremental(bytes("one")), EncodedIncremental(bytes("two"))],
        newest: Epoch(10),
    }]);
    message(&[ConfigPublish { values: [("osd_max_backfills".into(), "1".into())].into() }]);
    message(&[LogAppend { level: "info".into(), text: "line".into() }]);
    message(&[DaemonCommand { tid: 4, cmd: "{}".into(), input: Bytes::new() }]);
    message(&[DaemonCommandReply { tid: 4, code: 0, status: String::new(), output: bytes("{}") }]);
}

#[test]
fn osds_messages_to_monitors() {
    let member = Member { osd: OsdId(1), incarnation: Incarnation(Default::default()) };
    let membership = PgMembership { interval: Interval(5), primary: OsdId(1), in_sync: vec![member] };
    message(&[OsdBoot {
        osd: OsdId(1),
        uuid: Default::default(),
        incarnation: Incarnation(Default::default()),
        boot_nonce: 9,
        addr: "127.0.0.1:6800".parse().unwrap(),
        epoch: Epoch(3),
        seen: map().version(),
        total_bytes: 1 << 40,
        metadata: [("hostname".into(), "vm".into())].into(),
        location: [("host".into(), "vm".into())].into(),
        device_class: "ssd".into(),
    }]);
    message(&[OsdFailure {
        target: OsdId(2),
        boot_nonce: 3,
        silent_ms: 20_000,
        refused: false,
        epoch: Epoch(5),
    }]);
    message(&[OsdBeacon { boot_nonce: 3, map: map().version(), full: true }]);
    message(&[OsdMarkMeDown { boot_nonce: 3 }]);
    message(&[PgCas {
        tid: 3,
        pg: pg(),
        proposer: member,
        expected: Some(membership.clone()),
        proposed: membership.clone(),
    }]);
    message(&[PgCasReply { tid: 3, pg: pg(), accepted: true, current: Some(membership), epoch: Epoch(7) }]);
    message(&[StatsReport {
        osd: Default::default(),
        pgs: vec![Default::default(), Default::default()],
        starting: false,
    }]);
}

/// A map with all features.
fn map() -> OsdMap {
    let mut map = OsdMap::new(Default::default(), 5, CrushMap::new_cluster("host").unwrap());
    let mut pool = Pool::replicated("p", 3, 2, 0, 8, Epoch(1));
    pool.tiering.tiers = vec![PoolId(4)];
    (pool.tiering.overlay_epoch, pool.tiering.mode_epoch) = (Epoch(3), Epoch(300));
    map.pools.insert(PoolId(3), pool.into());
    let member = Member { osd: OsdId(1), incarnation: Incarnation(Default::default()) };
    let membership = PgMembership { interval: Interval(5), primary: OsdId(1), in_sync: vec![member] };
    map.pgs.insert(PoolId(3), vec![Some(membership), None].into());
    map.pg_upmap.insert(pg(), vec![OsdId(1)]);
    map.pg_upmap_items.insert(pg(), vec![(OsdId(1), OsdId(2))]);
    map.blocklist.insert("client.4".into(), 99);
    map
}

#[test]
fn maps() {
    versioned("OsdMap", &[map()]);
    let member = Member { osd: OsdId(1), incarnation: Incarnation(Default::default()) };
    let membership = PgMembership { interval: Interval(5), primary: OsdId(1), in_sync: vec![member] };
    versioned(
        "Incremental",
        &[Incremental {
            epoch: Epoch(2),
            generation: Some(2),
            flags: Some(1),
            pools: map().pools,
            removed_pools: vec![PoolId(1)],
            max_osd: Some(4),
            crush: Some(map().crush),
            pgs: vec![PgChange { pg: pg(), membership }],
            pg_upmap: [(pg(), None)].into(),
            blocklist: [("client.4".into(), Some(4))].into(),
            ratios: Some((0.95, 0.9, 0.85)),
            ..Incremental::default()
        }],
    );
}

/// Applies damaged incrementals to a map.
#[test]
fn incrementals_apply_or_are_refused() {
    let step =
        Incremental { epoch: Epoch(2), max_osd: Some(4), crush: Some(map().crush), ..Incremental::default() };
    let before = map();
    Target::new("apply", corpus(), vec![encoding::encode(&step)]).run(|input| {
        let step: Incremental = encoding::decode(input).ok()?;
        before.apply(&step).ok()?;
        Some(encoding::encode(&step))
    });
}

#[test]
fn objects_records_and_outputs() {
    versioned(
        "ObjectInfo",
        &[ObjectInfo {
            watchers: vec![WatchInfo {
                client: ClientId(4),
                cookie: 1,
                timeout_s: 30,
                addr: "127.0.0.1:0/4".into(),
            }],
            copied_requests: vec![(reqid(), 4)],
            ..ObjectInfo::default()
        }],
    );
    versioned("OmapValsReply", &[OmapValsReply { entries: vec![(bytes("k"), bytes("v"))], more: true }]);
    versioned("ListReply", &[ListReply { objects: vec![object()], next: Some(object()) }]);
    versioned("SparseReadReply", &[SparseReadReply { extents: vec![(0, 4)], data: bytes("data") }]);
    versioned("Pairs", &[Pairs(vec![(bytes("k"), bytes("v"))])]);
    versioned(
        "CopyGetReply",
        &[CopyGetReply { attrs: vec![(bytes("a"), bytes("b"))], ..Default::default() }],
    );
    let reply = NotifyReply { notify_id: 0, acks: vec![(4, 1, bytes("yes"))], missed: vec![(5, 2)] };
    Target::new("NotifyReply", corpus(), vec![reply.encode().to_vec()]).run(|input| {
        let reply = NotifyReply::decode(0, &Bytes::copy_from_slice(input)).ok()?;
        Some(reply.encode().to_vec())
    });
}

#[test]
fn transactions() {
    let ops = vec![
        TxnOp::CreateCollection,
        TxnOp::Touch(object()),
        TxnOp::Write { oid: object(), offset: 4096, data: bytes("data").into() },
        TxnOp::Zero { oid: object(), offset: 1, len: 2 },
        TxnOp::Truncate { oid: object(), size: 9 },
        TxnOp::SetAttrs { oid: object(), attrs: vec![("_".into(), bytes("info"))] },
        TxnOp::Remove(object()),
    ];
    let transaction = Transaction { collection: pg(), ops };
    Target::new("Transaction", corpus(), vec![joined(&transaction)])
        .run(|input| split::<Transaction>(input).map(|transaction| joined(&transaction)));
    versioned("Transaction-inline", &[transaction]);
}

#[test]
fn capability_texts() {
    let words = [
        "allow",
        " ",
        "*",
        "all",
        "r",
        "rwx",
        "class-read",
        "class",
        "pool",
        "=",
        "namespace",
        "object_prefix",
        "tag",
        "profile",
        "rbd",
        "osd",
        "network",
        "10.0.0.0/8",
        "::1/128",
        "service",
        "command",
        "with",
        "prefix",
        "regex",
        "\"^(a+)+$\"",
        "'",
        "\"",
        ",",
        ";",
        "read-only",
        "module",
        "path=/",
        "uid=4294967296",
        "gids=1,2",
        "\u{1}",
        "é",
    ];
    let recorded = include_str!("recordings/caps-parse.json");
    let rows: Vec<(String, String, String, String)> = serde_json::from_str(recorded).unwrap();
    let pool = Pool::replicated("x", 3, 2, 0, 8, Epoch(1));
    let peer = std::net::Ipv4Addr::LOCALHOST.into();
    let entity: EntityName = "client.a".parse().unwrap();
    for service in ["osd", "mon", "mgr", "mds"] {
        let valid = rows.iter().filter(|row| row.0 == service && row.2 == "OK");
        let seeds = valid.map(|row| row.1.clone().into_bytes()).collect();
        let name = format!("caps-{service}");
        let target = Target {
            dictionary: &words,
            max_alloc_per_input_byte: 2048,
            ..Target::new(&name, corpus(), seeds)
        };
        target.run(|input| {
            let text = std::str::from_utf8(input).ok()?;
            caps::validate(service, text).ok()?;
            // Accepted capabilities must be usable for decisions.
            match service {
                "osd" => {
                    let calls = [osd::ClassCall {
                        class: "c",
                        method: "m",
                        reads: true,
                        writes: true,
                        by_default: true,
                    }];
                    osd::OsdCaps::parse(text).ok()?.allows(&osd::OsdAccess {
                        pool: &pool,
                        namespace: "ns",
                        object: "o",
                        reads: true,
                        writes: true,
                        calls: &calls,
                        peer,
                    });
                }
                "mon" => {
                    let args = [("pool".to_owned(), "aaaaaaaaaaaaaaaaaaaaaaaa!".to_owned())].into();
                    mon::MonCaps::parse(text).ok()?.allows(&mon::MonAccess {
                        service: "osd",
                        command: "osd pool create",
                        args: &args,
                        perm: mon::Perm::ALL,
                        entity: &entity,
                        peer,
                    });
                }
                _ => {}
            }
            Some(input.to_vec())
        });
    }
}

#[test]
fn commands() {
    let seeds = [
        r#"{"prefix":"osd pool create","pool":"p","pg_num":8}"#,
        r#"{"prefix":"auth add","entity":"client.a","caps":["mon","allow r"],"format":"json"}"#,
        r#"{"prefix":"osd out","ids":["0","osd.1"]}"#,
        r#"{"prefix":"osd reweight","id":"osd.0","weight":0.5}"#,
        r#"{"prefix":"config get","var":"osd_max_backfills"}"#,
        r#"{"prefix":"pg map","pgid":"1.f"}"#,
    ];
    let words = [
        "\"prefix\"",
        ":",
        "[",
        "]",
        "{",
        "}",
        "[[[[[[[[",
        "null",
        "1e999",
        "-1",
        "99999999999999999999",
        "\"\\u0000\"",
        "\"ids\"",
        "\"pool\"",
        "\"caps\"",
        "\"weight\"",
        "\"id\"",
        ",",
    ];
    let seeds = seeds.map(|text| text.as_bytes().to_vec()).to_vec();
    let target = Target {
        dictionary: &words,
        max_alloc_per_input_byte: 1024,
        ..Target::new("command", corpus(), seeds)
    };
    target.run(|input| {
        let text = std::str::from_utf8(input).ok()?;
        let known = mon_commands().parse_json(text).or_else(|_| osd_commands().parse_json(text)).ok()?;
        mon::constraint_args(&known);
        Some(input.to_vec())
    });
}

fn ceph<T: CephEncoding>(name: &str, seeds: &[T]) {
    let seeds = seeds.iter().map(|seed| seed.to_bytes().to_vec()).collect();
    Target::new(name, corpus(), seeds).run(|input| Some(T::from_bytes(input).ok()?.to_bytes().to_vec()));
}

#[test]
fn inputs_of_object_classes() {
    ceph("lock-unlock", &[lock::UnlockOp { name: bytes("l"), cookie: bytes("c") }]);
    ceph("lock-info", &[lock::LockInfo::default()]);
    ceph("lock-list", &[lock::ListReply::default()]);
    ceph("version", &[version::ObjVersion::default()]);
    ceph("refcount", &[refcount::Refcount::default()]);
}

#[test]
fn names_in_texts() {
    let seeds = ["client.admin", "osd.3", "1.1f", "mon.a", "127.0.0.1:0/4123"];
    let words = [".", ":", "/", "-1", "4294967296", "client", "osd", "é", " "];
    let seeds = seeds.map(|text| text.as_bytes().to_vec()).to_vec();
    let target = Target { dictionary: &words, ..Target::new("names", corpus(), seeds) };
    target.run(|input| {
        let text = std::str::from_utf8(input).ok()?;
        if let Ok(entity) = text.parse::<EntityName>() {
            assert_eq!(entity.to_string().parse::<EntityName>().as_ref(), Ok(&entity));
        }
        if let Ok(pg) = text.parse::<PgId>() {
            assert_eq!(pg.to_string().parse::<PgId>().as_ref(), Ok(&pg));
        }
        Some(input.to_vec())
    });
}
