//! The cost of an op for the store does not depend on the other contents of the PG.

use super::*;

/// Runs every op on one object. Returns the store's calls and the steps of its transaction.
fn costs(b: &mut Bench) -> Vec<(&'static str, u64, usize)> {
    let call = |method: &str| Op::Call { class: "hello".into(), method: method.into(), input: Bytes::new() };
    let ops = vec![
        full("0123456789"),
        write(2, "xy"),
        Op::Append { data: bytes("more").into() },
        Op::WriteSame { offset: 0, len: 4, data: bytes("ab") },
        Op::Zero { offset: 1, len: 2 },
        Op::Truncate { size: 9 },
        set("a", "1"),
        omap(&[("k1", "v"), ("k2", "v"), ("k3", "v")]),
        Op::OmapSetHeader { header: bytes("h") },
        Op::SetAllocHint { expected_object_size: 1, expected_write_size: 1, flags: 0 },
        Op::Watch { cookie: 1, timeout_s: 0 },
        Op::Read { offset: 0, len: 0 },
        Op::SparseRead { offset: 0, len: 100 },
        Op::MapExt { offset: 0, len: 0 },
        Op::CmpExt { offset: 0, data: bytes("a") },
        Op::Checksum { kind: ChecksumKind::Crc32c, init: 0, offset: 0, len: 0, chunk: 0 },
        Op::Stat,
        get("a"),
        Op::GetXattrs,
        cmp("a", CmpOp::Eq, "1"),
        vals("", "", 9),
        vals("k1", "k", 1),
        Op::OmapGetKeys { start_after: bytes("k2"), max: 9 },
        Op::OmapGetValsByKeys { keys: vec![bytes("k2")] },
        Op::OmapGetHeader,
        Op::OmapCmp { assertions: vec![(bytes("k1"), CmpOp::Eq, bytes("v"))] },
        Op::ListWatchers,
        Op::WatchPing { cookie: 1 },
        Op::Notify { timeout_s: 1, payload: Bytes::new() },
        Op::NotifyAck { notify_id: 1, cookie: 1, payload: Bytes::new() },
        Op::CopyGet { cursor: CopyCursor::default(), max_bytes: 1000 },
        call("replay"),
        call("turn_it_to_11"),
        Op::OmapRmRange { first: bytes("k1"), last: bytes("k2") },
        Op::OmapRmKeys { keys: vec![bytes("k2")] },
        Op::OmapClear,
        Op::RmXattr { name: "a".into() },
        Op::Unwatch { cookie: 1 },
        Op::Remove,
        Op::Create { exclusive: true },
    ];
    ops.into_iter()
        .map(|op| {
            let name = op.name();
            b.cache.forget(&oid("o"));
            let before = b.store.calls();
            let request = request(&oid("o"), vec![op.into()], 0);
            let (executed, calls) = b.execute_counted(&request, |store| store.calls());
            assert!(executed.result >= 0, "{name}: {executed:?}");
            (name, calls - before, executed.change.map_or(0, |change| change.transaction.ops.len()))
        })
        .collect()
}

#[test]
fn an_ops_cost_does_not_depend_on_the_rest_of_the_pool() {
    let mut alone = Bench::new();
    let small = costs(&mut alone);
    let mut crowded = Bench::new();
    for i in 0..3000 {
        crowded.ok(&format!("other{i}"), vec![full("data"), set("a", "1"), omap(&[("k", "v")])]);
    }
    assert_eq!(small, costs(&mut crowded));
    for (name, calls, steps) in small {
        // A context takes two calls. Reads take one more, or several if there are several parts.
        let expected = if name == "copy-get" { 6 } else { 4 };
        assert!(calls <= expected && steps <= 5, "{name}: {calls} calls, {steps} steps");
    }
}
