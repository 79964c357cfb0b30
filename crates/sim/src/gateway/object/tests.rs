//! What requests do and what comes back of them: the OSD's rules that gateways rely on.

use super::*;
use nacre_types::ceph::CephEncoding;
use nacre_types::cls::lock::{LockKind, LockOp};
use nacre_types::encoding::decode;
use nacre_types::op::{CmpOp, CmpValue, OmapValsReply, StatReply};
use nacre_types::payload::Payload;

const CONTEXT: Context = Context {
    client: ClientId(4),
    addr: SessionAddr { addr: None, nonce: 4 },
    now_ns: 1_000_000_000,
    last_user_version: 10,
};

/// One object and its PG's highest user version.
struct Stored {
    object: Option<Arc<Object>>,
    last: u64,
}

impl Stored {
    fn absent() -> Stored {
        Stored { object: None, last: 10 }
    }

    fn run_with(&mut self, ops: &[OsdOp], flags: u32) -> Executed {
        let context = Context { last_user_version: self.last, ..CONTEXT };
        let executed = execute(&context, self.object.as_ref(), ops, flags, 77);
        if let Some(after) = &executed.change {
            self.object = after.clone();
        }
        self.last = executed.last_user_version;
        executed
    }

    fn run(&mut self, ops: Vec<Op>) -> Executed {
        let ops: Vec<OsdOp> = ops.into_iter().map(OsdOp::from).collect();
        self.run_with(&ops, 0)
    }

    fn code(&mut self, ops: Vec<Op>) -> i32 {
        self.run(ops).result
    }
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn full(text: &str) -> Op {
    Op::WriteFull { data: Payload::from(bytes(text)) }
}

fn set(keys: &[&str]) -> Op {
    Op::OmapSet { entries: keys.iter().map(|key| (bytes(key), bytes("v"))).collect() }
}

#[test]
fn a_failing_guard_leaves_nothing_of_the_request() {
    let mut stored = Stored::absent();
    assert_eq!(stored.code(vec![Op::Create { exclusive: true }, full("one")]), 0);
    let before = stored.object.clone();
    let guard = Op::OmapCmp { assertions: vec![(bytes("k"), CmpOp::Eq, bytes("x"))] };
    let executed = stored.run(vec![full("two"), set(&["k"]), guard]);
    assert_eq!((executed.result, executed.ops.len()), (Errno::ECANCELED.negated(), 3));
    assert_eq!((stored.object.clone(), executed.change), (before, None));
    assert_eq!(stored.code(vec![Op::Create { exclusive: true }]), Errno::EEXIST.negated());
    // An op sees what those before it did.
    let guard = Op::OmapCmp { assertions: vec![(bytes("k"), CmpOp::Eq, bytes("v"))] };
    assert_eq!(stored.code(vec![set(&["k"]), guard]), 0);
}

#[test]
fn versions_rise_with_visible_changes_and_survive_removal() {
    let mut stored = Stored::absent();
    let made = stored.run(vec![full("a")]).user_version;
    assert_eq!(made, 11);
    assert_eq!(stored.code(vec![Op::AssertVersion { version: made }, full("b")]), 0);
    assert_eq!(stored.code(vec![Op::AssertVersion { version: made }, full("c")]), Errno::ERANGE.negated());
    assert_eq!(stored.code(vec![Op::AssertVersion { version: 99 }]), Errno::EOVERFLOW.negated());
    let watched = stored.run(vec![Op::Watch { cookie: 1, timeout_s: 0 }]);
    assert_eq!((watched.user_version, stored.last), (12, 12));
    // The reply to a removal carries the version before it; what is made again goes on above.
    assert_eq!(stored.run(vec![Op::Remove]).user_version, 12);
    assert!(stored.object.is_none());
    assert_eq!(stored.run(vec![full("d")]).user_version, 14);
    let nothing = stored.run(vec![Op::Remove, Op::Create { exclusive: true }, Op::Remove]);
    assert_eq!((nothing.result, stored.object.is_none()), (0, true));
    let unchanged = stored.run(vec![Op::Create { exclusive: true }, Op::Remove]);
    assert_eq!((unchanged.result, unchanged.change), (0, None));
}

#[test]
fn outputs_of_updates_come_back_only_when_asked_for() {
    let mut stored = Stored::absent();
    stored.run(vec![Op::SetXattr { name: "a".into(), value: bytes("value") }]);
    let read = Op::GetXattr { name: "a".into() };
    let ops: Vec<OsdOp> = vec![read.clone().into(), set(&["k"]).into()];
    assert_eq!(stored.run_with(&ops, 0).ops[0], OpResult::default());
    assert_eq!(stored.run_with(&ops, request_flag::RETURNVEC).ops[0].output, "value");
    let long = Op::SetXattr { name: "a".into(), value: bytes(&"x".repeat(65)) };
    let ops: Vec<OsdOp> = vec![long.into(), read.into()];
    let refused = stored.run_with(&ops, request_flag::RETURNVEC);
    assert_eq!((refused.result, refused.change), (Errno::EOVERFLOW.negated(), None));
}

#[test]
fn reads_of_an_absent_object_fail_as_a_whole() {
    let mut stored = Stored::absent();
    let mut read = OsdOp::from(Op::Stat);
    read.flags = op_flag::FAILOK;
    let executed = stored.run_with(&[read], 0);
    assert_eq!((executed.result, executed.ops.len()), (Errno::ENOENT.negated(), 0));
}

#[test]
fn an_op_that_may_fail_does_not_fail_the_request() {
    let mut stored = Stored::absent();
    stored.run(vec![full("abc")]);
    let mut missing = OsdOp::from(Op::GetXattr { name: "none".into() });
    missing.flags = op_flag::FAILOK;
    let executed = stored.run_with(&[missing, Op::Stat.into()], 0);
    assert_eq!((executed.result, executed.ops[0].code), (0, Errno::ENODATA.negated()));
    let stat: StatReply = decode(&executed.ops[1].output).unwrap();
    assert_eq!(stat, StatReply { size: 3, mtime_ns: 77 });
}

#[test]
fn comparisons_of_attributes_are_cephs() {
    let mut stored = Stored::absent();
    let compare =
        |op, value: &str| Op::CmpXattr { name: "a".into(), op, value: CmpValue::Bytes(bytes(value)) };
    assert_eq!(stored.code(vec![compare(CmpOp::Eq, "")]), Errno::ENOENT.negated());
    stored.run(vec![Op::SetXattr { name: "a".into(), value: bytes("m") }]);
    // One that holds has the code 1.
    assert_eq!(stored.code(vec![compare(CmpOp::Eq, "m")]), 1);
    assert_eq!(stored.code(vec![compare(CmpOp::Gt, "z")]), 1);
    assert_eq!(stored.code(vec![compare(CmpOp::Gt, "a")]), Errno::ECANCELED.negated());
    let number = |op, value| Op::CmpXattr { name: "n".into(), op, value: CmpValue::U64(value) };
    assert_eq!(stored.code(vec![number(CmpOp::Eq, 0)]), 1);
    stored.run(vec![Op::SetXattr { name: "n".into(), value: bytes(" 17x") }]);
    assert_eq!(stored.code(vec![number(CmpOp::Eq, 17)]), 1);
}

#[test]
fn omap_pages_are_cut_and_filtered() {
    let mut stored = Stored::absent();
    stored.run(vec![set(&["a1", "a2", "a3", "b1"])]);
    let page = |stored: &mut Stored, after: &str, prefix: &str, max| {
        let op = Op::OmapGetVals { start_after: bytes(after), filter_prefix: bytes(prefix), max };
        let reply: OmapValsReply = decode(&stored.run(vec![op]).ops[0].output).unwrap();
        let keys: Vec<_> = reply.entries.into_iter().map(|(key, _)| key).collect();
        (keys, reply.more)
    };
    assert_eq!(page(&mut stored, "", "a", 2), (vec![bytes("a1"), bytes("a2")], true));
    assert_eq!(page(&mut stored, "a2", "a", 2), (vec![bytes("a3")], false));
    assert_eq!(page(&mut stored, "a1", "", 9).0.len(), 3);
    stored.run(vec![Op::OmapRmRange { first: bytes("a1"), last: bytes("a3") }]);
    assert_eq!(page(&mut stored, "", "", 9).0, [bytes("a3"), bytes("b1")]);
}

#[test]
fn data_has_holes_of_zeros_and_ends_where_it_is_cut() {
    let mut stored = Stored::absent();
    let write = |offset, text: &str| Op::Write { offset, data: Payload::from(bytes(text)) };
    stored.run(vec![write(4, "abcd"), Op::Append { data: Payload::from(bytes("ef")) }]);
    let read = |stored: &mut Stored| stored.run(vec![Op::Read { offset: 0, len: 0 }]).ops[0].output.clone();
    assert_eq!(read(&mut stored), &b"\0\0\0\0abcdef"[..]);
    stored.run(vec![Op::Zero { offset: 5, len: 2 }, Op::Zero { offset: 8, len: 100 }]);
    assert_eq!(read(&mut stored), &b"\0\0\0\0a\0\0d"[..]);
    let differs = Op::CmpExt { offset: 4, data: bytes("ax") };
    assert_eq!(stored.code(vec![differs]), nacre_types::op::cmpext_mismatch(1));
    assert_eq!(stored.code(vec![write(128 << 20, "x")]), Errno::EFBIG.negated());
    assert_eq!(stored.code(vec![Op::Truncate { size: 0 }]), 0);
    assert_eq!(read(&mut stored), "");
    let mut absent = Stored::absent();
    assert_eq!((absent.code(vec![Op::Truncate { size: 5 }]), absent.object.is_none()), (0, true));
}

#[test]
fn locks_keep_others_out() {
    let mut stored = Stored::absent();
    let lock = |cookie: &str| Op::Call {
        class: "lock".into(),
        method: "lock".into(),
        input: LockOp {
            name: bytes("l"),
            kind: LockKind::Exclusive,
            cookie: bytes(cookie),
            ..LockOp::default()
        }
        .to_bytes(),
    };
    assert_eq!(stored.code(vec![lock("one")]), 0);
    assert_eq!(stored.code(vec![lock("one")]), Errno::EEXIST.negated());
    assert_eq!(stored.code(vec![lock("two")]), Errno::EBUSY.negated());
    assert_eq!(class::writes("lock", "steal"), None);
    let unknown = Op::Call { class: "lock".into(), method: "steal".into(), input: Bytes::new() };
    let oid = ObjectId::new(nacre_types::PoolId(1), "", "", "o");
    assert_eq!(validate(&oid, &[unknown.into()], SNAP_HEAD), Err(Errno::EOPNOTSUPP));
}
