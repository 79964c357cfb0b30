//! Requests that exceed the limits.

use super::*;
use bytes::Bytes;

/// The result of a request once the other member has the ordered updates.
fn answer_of(bench: &Bench, request: OsdRequest) -> Option<i32> {
    let (conn, heard) = connect_and_hear();
    let tid = request.reqid.tid;
    bench.gain_lease();
    bench.arrive(request, &conn, None);
    bench.acknowledge();
    heard.lock().result(tid)
}

#[test]
fn a_write_that_repeats_its_data_beyond_all_limits_is_refused() {
    let bench = Bench::new();
    let max = bench.shared.limits.load().max_object_size_bytes;
    let repeat = |len: u64| OsdOp::from(Op::WriteSame { offset: 0, len, data: Bytes::from_static(b"x") });
    let ops = [vec![repeat(u64::MAX)], vec![repeat(max), repeat(u64::MAX)], vec![repeat(max / 2 + 1); 2]];
    for (tid, ops) in (1..).zip(ops) {
        let request = OsdRequest { ops, ..bench.request(tid, Op::Stat) };
        assert_eq!(answer_of(&bench, request), Some(Errno::EFBIG.negated()));
    }
    let request = OsdRequest { ops: vec![repeat(1 << 20); 2], ..bench.request(9, Op::Stat) };
    assert_eq!(answer_of(&bench, request), Some(0));
    assert!(bench.cell.enter(|_| ()).is_some(), "the shard is broken");
}

/// A write of omap entries of `bytes` each.
fn entries(count: u32, bytes: usize) -> Op {
    let value = Bytes::from(vec![b'v'; bytes]);
    let entries = (0..count).map(|n| (Bytes::copy_from_slice(&n.to_be_bytes()), value.clone()));
    Op::OmapSet { entries: entries.collect() }
}

#[test]
fn what_is_no_data_needs_space_too() {
    let size = MemStoreConfig { device_bytes: 64 << 20, ..MemStoreConfig::default() };
    let bench = Bench::on(size, &[]);
    let data = Bytes::from(vec![b'd'; 50 << 20]).into();
    assert_eq!(answer_of(&bench, bench.request(1, Op::WriteFull { data })), Some(0));
    let large = Bytes::from(vec![b'a'; 20 << 20]);
    let too_large = [
        entries(200, 100 << 10),
        // Small entries take more memory than their contents.
        entries(80_000, 1),
        Op::OmapSetHeader { header: large.clone() },
        Op::SetXattr { name: "a".into(), value: large },
    ];
    for (tid, op) in (2..).zip(too_large) {
        let name = op.name();
        assert_eq!(answer_of(&bench, bench.request(tid, op)), Some(Errno::ENOSPC.negated()), "{name}");
        assert!(bench.cell.enter(|_| ()).is_some(), "the store refused what was ordered: {name}");
    }
    assert_eq!(answer_of(&bench, bench.request(9, entries(10, 100 << 10))), Some(0));
}

#[test]
fn omap_on_its_way_to_a_member_counts_against_its_space() {
    let bench = Bench::new();
    let (conn, heard) = connect_and_hear();
    bench.cell.with(|shard| shard.space.set_available(OTHER, 10 << 20));
    bench.gain_lease();
    bench.arrive(bench.request(1, entries(60, 100 << 10)), &conn, None);
    bench.arrive(bench.request(2, entries(60, 100 << 10)), &conn, None);
    assert_eq!(heard.lock().backoffs, [2], "both do not fit");
    bench.acknowledge();
    assert_eq!(heard.lock().result(1), Some(0));
}

#[test]
fn a_client_that_names_pgs_without_end_loses_its_connection() {
    let bench = Bench::with(&[("osd_client_message_cap", "8")]);
    let (conn, heard) = connect_and_hear();
    let session = conn.context::<Session>().unwrap();
    let send = |tid: u64, pool: u64, epoch: Epoch| {
        let pg = PgId { pool: PoolId(pool as i64), seed: 0 };
        let request = OsdRequest { pg, epoch, oldest_tid: 1, ..bench.request(tid, Op::Stat) };
        bench.arrive(request.clone(), &conn, None);
        request
    };
    // The client's map is not newer: the pool no longer exists.
    let gone = send(1, 9, bench.map.epoch);
    assert_eq!(heard.lock().backoffs, [1]);
    assert!(!session.is_out_of_order(&OsdRequest { reqid: ReqId { client: CLIENT, tid: 2 }, ..gone }));
    let most = crate::session::MAX_BACKOFF_PGS as u64;
    // Any pool may exist in a future map.
    let sent = (2..2 * most).find(|tid| {
        send(*tid, 10 + tid, Epoch(u32::MAX));
        conn.is_over()
    });
    assert!(sent.is_some_and(|sent| (most..most + 10).contains(&sent)), "{sent:?}");
}
