//! Copies in pieces, and objects replaced by them.

use super::*;

/// Reads a copy in pieces of at most `max_bytes`.
fn fetch(b: &mut Bench, name: &str, max_bytes: u64) -> (CopiedObject, usize) {
    let (mut copied, mut cursor, mut pieces) = (CopiedObject::default(), CopyCursor::default(), 0);
    while !cursor.complete {
        let output = b.ok(name, vec![Op::CopyGet { cursor, max_bytes }]).ops[0].output.clone();
        let piece: CopyGetReply = decode(&output).unwrap();
        assert!(piece.data.len() as u64 <= max_bytes);
        cursor = piece.cursor.clone();
        pieces += 1;
        assert_eq!(piece.version, load_context(&b.store, PG, &oid(name)).unwrap().info.version);
        copied.add(piece, 1 << 20).unwrap();
    }
    (copied, pieces)
}

fn copy_from(flags: u32) -> Op {
    let source = ObjectId::new(PoolId(9), "", "", "source");
    Op::CopyFrom { source, version: 0, flags, truncate: (7, 100) }
}

#[test]
fn copies_replace_all_but_watches_and_keep_versions_and_requests() {
    let mut b = Bench::new();
    b.ok("source", vec![full("0123456789"), set("a", "1"), omap(&[("k1", "v1"), ("k2", "v2")])]);
    b.ok("source", vec![Op::OmapSetHeader { header: bytes("header") }, Op::Truncate { size: 12 }]);
    let source_version = b.ok("source", vec![Op::Stat]).user_version;
    for max_bytes in [1, 4, 1 << 20] {
        let (copied, pieces) = fetch(&mut b, "source", max_bytes);
        assert!(pieces > 1 || max_bytes > 100);
        assert_eq!(copied.head.reqids, [(ReqId { client: ClientId(77), tid: 5 }, 3)]);
        for _ in 0..4 {
            b.ok(
                "target",
                vec![full("much longer than the source is"), set("old", "x"), omap(&[("old", "x")])],
            );
        }
        b.ok("target", vec![Op::Watch { cookie: 1, timeout_s: 0 }]);
        b.copied = Some(Ok(copied));
        let done = b.ok("target", vec![copy_from(0)]);
        assert_eq!(done.user_version, source_version);
        assert_eq!(b.read("target"), "0123456789\0\0");
        let outputs =
            b.ok("target", vec![Op::GetXattrs, vals("", "", 9), Op::OmapGetHeader, Op::ListWatchers]).ops;
        assert_eq!(decode::<Pairs>(&outputs[0].output).unwrap().0, [(bytes("a"), bytes("1"))]);
        assert_eq!(page_of(&outputs[1].output).0, "k1=v1 k2=v2");
        assert_eq!(outputs[2].output, "header");
        assert_eq!(decode::<WatchersReply>(&outputs[3].output).unwrap().watchers.len(), 1);
        b.ok("target", vec![Op::AssertVersion { version: source_version }]);
    }
    b.client = ClientId(77);
    let mut late = request(&oid("target"), vec![full("late").into()], 0);
    late.reqid = ReqId { client: ClientId(77), tid: 5 };
    let context = load_context(&b.store, PG, &oid("target")).unwrap();
    let resent = copied_before(&late, &context).unwrap();
    assert_eq!((resent.result, resent.user_version), (0, 3), "it took effect at the source");
    let version = b.ok("target", vec![full("changed")]).user_version;
    assert!(version > source_version);
}

#[test]
fn later_ops_of_a_copying_request_see_the_copy() {
    let mut b = Bench::new();
    b.ok("source", vec![full("data"), set("a", "1")]);
    let (copied, _) = fetch(&mut b, "source", 100);
    b.ok("target", vec![full("old contents"), set("b", "2")]);
    b.copied = Some(Ok(copied));
    let ops =
        vec![copy_from(0), get("a"), Op::Append { data: bytes("+").into() }, Op::Read { offset: 0, len: 0 }];
    let executed =
        b.execute(&oid("target"), ops.into_iter().map(OsdOp::from).collect(), request_flag::RETURNVEC);
    assert_eq!((&executed.ops[1].output[..], &executed.ops[3].output[..]), (&b"1"[..], &b"data+"[..]));
    b.fails("target", vec![get("b")], Errno::ENODATA);
}

#[test]
fn truncation_is_the_sources_or_the_requests() {
    let mut b = Bench::new();
    b.ok("source", vec![full("data")]);
    let (copied, _) = fetch(&mut b, "source", 100);
    b.copied = Some(Ok(copied));
    let truncation = |b: &Bench| {
        let info = load_context(&b.store, PG, &oid("target")).unwrap().info;
        (info.truncate_seq, info.truncate_size)
    };
    b.ok("target", vec![copy_from(copy_from_flag::TRUNCATE_SEQ)]);
    assert_eq!(truncation(&b), (7, 100));
    b.ok("target", vec![copy_from(0)]);
    assert_eq!(truncation(&b), (0, 0));
}

#[test]
fn copies_that_can_not_be_made_change_nothing() {
    let mut b = Bench::new();
    b.ok("target", vec![full("kept")]);
    b.fails("target", vec![copy_from(0)], Errno::EINVAL);
    b.copied = Some(Err(Errno::ENOENT));
    b.fails("target", vec![full("x"), copy_from(0)], Errno::ENOENT);
    b.ok("source", vec![full("data")]);
    let (copied, _) = fetch(&mut b, "source", 100);
    b.copied = Some(Ok(copied));
    b.fails("target", vec![copy_from(0x4000)], Errno::EINVAL);
    b.limits.max_object_size_bytes = 3;
    b.fails("target", vec![copy_from(0)], Errno::EFBIG);
    let itself = Op::CopyFrom { source: oid("target"), version: 0, flags: 0, truncate: (0, 0) };
    b.fails("target", vec![itself], Errno::EINVAL);
    b.fails("absent", vec![Op::CopyGet { cursor: CopyCursor::default(), max_bytes: 9 }], Errno::ENOENT);
    assert_eq!(b.read("target"), "kept");
}

#[test]
fn versions_rise_when_an_object_of_a_tier_is_replaced_by_an_older_one() {
    for is_tiered in [false, true] {
        let mut b = Bench::new();
        b.pool.tiering.tier_of = is_tiered.then_some(PoolId(9));
        b.ok("source", vec![full("source")]);
        let (copied, _) = fetch(&mut b, "source", 1 << 20);
        let before = (0..3).map(|_| b.ok("target", vec![full("target")]).user_version).last().unwrap();
        b.copied = Some(Ok(copied.clone()));
        let after = b.ok("target", vec![copy_from(0)]).user_version;
        assert_eq!(after > before, is_tiered, "{before}, {after}");
        assert!(is_tiered || after == copied.head.user_version);
    }
}
