//! Requests that ask for more than there is.

use super::*;
use bytes::Bytes;

/// The result of a request once the other member has what was ordered.
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
