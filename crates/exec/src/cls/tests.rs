//! Every method of every class, through requests on a MemStore.

use super::*;
use crate::ExecResult;
use crate::tests::{Bench, NOW_NS, bytes, full, oid};
use nacre_types::ceph::Encoder;
use nacre_types::cls::lock::*;
use nacre_types::cls::refcount::{ReadOp, RefList, RefOp};
use nacre_types::cls::version::{Condition, ConditionsOp, ObjVersion, VersionOp};
use nacre_types::ids::ClientId;
use nacre_types::op::{Op, OsdOp, request_flag};

fn op(class: &str, method: &str, input: impl Into<Bytes>) -> Op {
    Op::Call { class: class.into(), method: method.into(), input: input.into() }
}

fn call(b: &mut Bench, object: &str, method: (&str, &str), input: impl Into<Bytes>) -> ExecResult {
    b.run(object, vec![op(method.0, method.1, input)])
}

fn code(b: &mut Bench, object: &str, method: (&str, &str), input: &impl CephEncoding) -> i32 {
    call(b, object, method, input.to_bytes()).result
}

fn output(b: &mut Bench, object: &str, method: (&str, &str), input: impl Into<Bytes>) -> Bytes {
    let executed = call(b, object, method, input);
    assert!(executed.result >= 0, "{method:?}: {executed:?}");
    executed.ops[0].output.clone()
}

const BUSY: i32 = -Errno::EBUSY.0;
const NOENT: i32 = -Errno::ENOENT.0;
const EXIST: i32 = -Errno::EEXIST.0;
const INVAL: i32 = -Errno::EINVAL.0;
const CANCELED: i32 = -Errno::ECANCELED.0;

fn lock_op(kind: LockKind, cookie: &str, tag: &str) -> LockOp {
    LockOp { name: bytes("l"), kind, cookie: bytes(cookie), tag: bytes(tag), ..LockOp::default() }
}

const LOCK: (&str, &str) = ("lock", "lock");
const UNLOCK: (&str, &str) = ("lock", "unlock");

fn info(b: &mut Bench, object: &str) -> LockInfo {
    let input = GetInfoOp { name: bytes("l") }.to_bytes();
    LockInfo::from_bytes(&output(b, object, ("lock", "get_info"), input)).unwrap()
}

#[test]
fn unknown_classes_and_methods_are_refused() {
    let mut b = Bench::new();
    b.fails("o", vec![full("x"), op("none", "m", "")], Errno::EOPNOTSUPP);
    b.fails("o", vec![op("hello", "none", "")], Errno::EOPNOTSUPP);
    let mut known: Vec<_> = names().collect();
    known.sort_unstable();
    assert_eq!(known, ["hello", "lock", "numops", "refcount", "version"]);
}

#[test]
fn hello_greets_records_and_amplifies() {
    let mut b = Bench::new();
    let hello = |method| ("hello", method);
    b.ok("o", vec![full("")]);
    assert_eq!(output(&mut b, "o", hello("say_hello"), ""), "Hello, world!");
    assert_eq!(call(&mut b, "o", hello("say_hello"), "x".repeat(101)).result, INVAL);
    assert_eq!(call(&mut b, "r", hello("record_hello"), "Tester").result, 0);
    assert_eq!(output(&mut b, "r", hello("replay"), ""), "Hello, Tester!");
    assert_eq!(call(&mut b, "r", hello("record_hello"), "").result, EXIST);
    assert_eq!(call(&mut b, "r", hello("turn_it_to_11"), "").result, 0);
    assert_eq!(output(&mut b, "r", hello("replay"), ""), "HELLO, TESTER!");
    let attrs = ["said_by", "amplified_by"]
        .map(|name| b.ok("r", vec![Op::GetXattr { name: name.into() }]).ops[0].output.clone());
    assert_eq!(attrs, ["client.4 127.0.0.1:0/4"; 2]);
    assert_eq!(call(&mut b, "none", hello("replay"), "").result, NOENT);
}

#[test]
fn methods_that_do_what_they_did_not_declare_change_nothing() {
    let mut b = Bench::new();
    b.ok("o", vec![full("kept")]);
    b.fails("o", vec![op("hello", "bad_reader", "")], Errno::EIO);
    b.fails("o", vec![op("hello", "bad_writer", "new")], Errno::EIO);
    b.fails("o", vec![full("other"), op("hello", "bad_writer", "new")], Errno::EIO);
    assert_eq!(b.read("o"), "kept");
}

#[test]
fn outputs_of_writing_methods_are_returned_on_demand_and_on_failure() {
    let mut b = Bench::new();
    let run = |b: &mut Bench, method, input: &'static str, flags| {
        b.execute(&oid("o"), vec![OsdOp::from(op("hello", method, input))], flags)
    };
    let silent = run(&mut b, "write_return_data", "", 0);
    assert_eq!((silent.result, silent.ops[0].code, silent.ops[0].output.len()), (0, 0, 0));
    let told = run(&mut b, "writes_dont_return_data", "", request_flag::RETURNVEC);
    assert_eq!((told.ops[0].code, &told.ops[0].output[..]), (42, &b"you might see this"[..]));
    assert!(told.change.is_some());
    let long = run(&mut b, "write_too_much_return_data", "", request_flag::RETURNVEC);
    assert_eq!(long.result, Errno::EOVERFLOW.negated());
    for flags in [0, request_flag::RETURNVEC] {
        let failed = run(&mut b, "write_return_data", "input", flags);
        assert_eq!((failed.result, &failed.ops[0].output[..]), (INVAL, &b"too much input data!"[..]));
        assert!(failed.change.is_none());
    }
}

#[test]
fn exclusive_locks_keep_others_out_until_they_are_given_back() {
    let mut b = Bench::new();
    let mine = lock_op(LockKind::Exclusive, "c", "");
    assert_eq!(code(&mut b, "o", LOCK, &mine), 0);
    assert_eq!(b.size("o"), 0, "the lock makes the object");
    assert_eq!(code(&mut b, "o", LOCK, &mine), EXIST);
    assert_eq!(code(&mut b, "o", LOCK, &lock_op(LockKind::Exclusive, "other", "")), BUSY);
    assert_eq!(code(&mut b, "o", LOCK, &lock_op(LockKind::Shared, "other", "")), BUSY);
    b.client = ClientId(5);
    assert_eq!(code(&mut b, "o", LOCK, &mine), BUSY);
    assert_eq!(code(&mut b, "o", UNLOCK, &UnlockOp { name: bytes("l"), cookie: bytes("c") }), NOENT);
    let held = info(&mut b, "o");
    assert_eq!((held.kind, held.lockers.len()), (LockKind::Exclusive, 1));
    let ((name, cookie), locker) = held.lockers.first_key_value().unwrap();
    assert_eq!((name.to_string(), cookie), ("client.4".to_owned(), &bytes("c")));
    assert_eq!(locker.addr.to_string(), "127.0.0.1:0/4");
    b.client = ClientId(4);
    assert_eq!(code(&mut b, "o", UNLOCK, &UnlockOp { name: bytes("l"), cookie: bytes("wrong") }), NOENT);
    assert_eq!(code(&mut b, "o", UNLOCK, &UnlockOp { name: bytes("l"), cookie: bytes("c") }), 0);
    assert_eq!(code(&mut b, "o", UNLOCK, &UnlockOp { name: bytes("l"), cookie: bytes("c") }), NOENT);
    assert_eq!(info(&mut b, "o").lockers.len(), 0);
    b.client = ClientId(5);
    assert_eq!(code(&mut b, "o", LOCK, &mine), 0);
    let names = output(&mut b, "o", ("lock", "list_locks"), "");
    assert_eq!(ListReply::from_bytes(&names).unwrap().locks, ["l"]);
}

#[test]
fn bad_locks_are_refused() {
    let mut b = Bench::new();
    let nameless = LockOp { name: Bytes::new(), ..lock_op(LockKind::Shared, "", "") };
    assert_eq!(code(&mut b, "o", LOCK, &nameless), INVAL);
    assert_eq!(code(&mut b, "o", LOCK, &lock_op(LockKind::None, "", "")), INVAL);
    assert_eq!(code(&mut b, "o", LOCK, &lock_op(LockKind::Unknown(7), "", "")), INVAL);
    let both = LockOp { flags: MAY_RENEW | MUST_RENEW, ..lock_op(LockKind::Shared, "", "") };
    assert_eq!(code(&mut b, "o", LOCK, &both), INVAL);
    for method in ["lock", "unlock", "break_lock", "get_info", "assert_locked", "set_cookie"] {
        b.ok("there", vec![full("")]);
        assert_eq!(call(&mut b, "there", ("lock", method), "rubbish").result, INVAL, "{method}");
    }
    assert_eq!(code(&mut b, "none", UNLOCK, &UnlockOp::default()), NOENT);
    assert_eq!(call(&mut b, "none", ("lock", "list_locks"), "").result, NOENT);
    b.ok("bad", vec![Op::SetXattr { name: "lock.l".into(), value: bytes("rubbish") }]);
    assert_eq!(code(&mut b, "bad", LOCK, &lock_op(LockKind::Shared, "", "")), -Errno::EIO.0);
}

#[test]
fn shared_locks_are_shared_by_tag() {
    let mut b = Bench::new();
    assert_eq!(code(&mut b, "o", LOCK, &lock_op(LockKind::Shared, "a", "t")), 0);
    assert_eq!(code(&mut b, "o", LOCK, &lock_op(LockKind::Shared, "b", "t")), 0);
    assert_eq!(code(&mut b, "o", LOCK, &lock_op(LockKind::Shared, "c", "other")), BUSY);
    assert_eq!(code(&mut b, "o", LOCK, &lock_op(LockKind::Exclusive, "c", "t")), BUSY);
    b.client = ClientId(5);
    assert_eq!(code(&mut b, "o", LOCK, &lock_op(LockKind::Shared, "a", "t")), 0);
    assert_eq!(info(&mut b, "o").lockers.len(), 3);
    let breaks = BreakOp { name: bytes("l"), locker: SessionName::client(ClientId(4)), cookie: bytes("b") };
    assert_eq!(code(&mut b, "o", ("lock", "break_lock"), &breaks), 0);
    assert_eq!(code(&mut b, "o", ("lock", "break_lock"), &breaks), NOENT);
    assert_eq!(info(&mut b, "o").lockers.len(), 2);
}

#[test]
fn holds_are_renewed_and_lapse() {
    let mut b = Bench::new();
    let start = NOW_NS.get();
    let duration = UTime { seconds: 10, nanoseconds: 0 };
    let timed = LockOp { duration, ..lock_op(LockKind::Exclusive, "c", "") };
    let must = LockOp { flags: MUST_RENEW, ..timed.clone() };
    let may = LockOp { flags: MAY_RENEW, ..timed.clone() };
    assert_eq!(code(&mut b, "o", LOCK, &must), NOENT);
    assert_eq!(code(&mut b, "o", LOCK, &timed), 0);
    let expiration = |b: &mut Bench| info(b, "o").lockers.values().next().unwrap().expiration.as_ns();
    assert_eq!(expiration(&mut b), start + 10_000_000_000);
    NOW_NS.set(start + 5_000_000_000);
    assert_eq!(code(&mut b, "o", LOCK, &timed), EXIST);
    assert_eq!(code(&mut b, "o", LOCK, &may), 0);
    assert_eq!(code(&mut b, "o", LOCK, &must), 0);
    assert_eq!(expiration(&mut b), start + 15_000_000_000);
    NOW_NS.set(start + 15_000_000_001);
    assert_eq!(info(&mut b, "o").lockers.len(), 0);
    assert_eq!(code(&mut b, "o", LOCK, &must), NOENT);
    b.client = ClientId(5);
    assert_eq!(code(&mut b, "o", LOCK, &timed), 0);
    NOW_NS.set(start);
}

#[test]
fn ephemeral_locks_take_their_object_along() {
    let mut b = Bench::new();
    let lock = lock_op(LockKind::ExclusiveEphemeral, "c", "");
    assert_eq!(code(&mut b, "o", LOCK, &lock), 0);
    b.ok("o", vec![full("data")]);
    assert_eq!(code(&mut b, "o", LOCK, &lock_op(LockKind::Exclusive, "d", "")), BUSY);
    assert_eq!(code(&mut b, "o", UNLOCK, &UnlockOp { name: bytes("l"), cookie: bytes("c") }), 0);
    b.fails("o", vec![Op::Stat], Errno::ENOENT);
    assert_eq!(code(&mut b, "o", LOCK, &lock), 0);
    b.client = ClientId(9);
    let breaks = BreakOp { name: bytes("l"), locker: SessionName::client(ClientId(4)), cookie: bytes("c") };
    assert_eq!(code(&mut b, "o", ("lock", "break_lock"), &breaks), 0);
    b.fails("o", vec![Op::Stat], Errno::ENOENT);
}

#[test]
fn locks_are_asserted_and_renamed_by_their_holder_only() {
    let mut b = Bench::new();
    let assertion = |kind, cookie: &str, tag: &str| AssertOp {
        name: bytes("l"),
        kind,
        cookie: bytes(cookie),
        tag: bytes(tag),
    };
    let asserted = ("lock", "assert_locked");
    assert_eq!(code(&mut b, "o", asserted, &assertion(LockKind::Exclusive, "c", "t")), NOENT);
    assert_eq!(code(&mut b, "o", LOCK, &lock_op(LockKind::Exclusive, "c", "t")), 0);
    assert_eq!(code(&mut b, "o", asserted, &assertion(LockKind::Exclusive, "c", "t")), 0);
    assert_eq!(code(&mut b, "o", asserted, &assertion(LockKind::None, "c", "t")), INVAL);
    for wrong in [
        assertion(LockKind::Shared, "c", "t"),
        assertion(LockKind::Exclusive, "d", "t"),
        assertion(LockKind::Exclusive, "c", "u"),
        AssertOp { name: bytes("free"), ..assertion(LockKind::Exclusive, "c", "t") },
    ] {
        assert_eq!(code(&mut b, "o", asserted, &wrong), BUSY, "{wrong:?}");
    }
    let rename = |from: &str, to: &str| SetCookieOp {
        name: bytes("l"),
        kind: LockKind::Exclusive,
        cookie: bytes(from),
        tag: bytes("t"),
        new_cookie: bytes(to),
    };
    let set_cookie = ("lock", "set_cookie");
    assert_eq!(code(&mut b, "o", set_cookie, &rename("d", "e")), BUSY);
    assert_eq!(code(&mut b, "o", set_cookie, &rename("c", "c")), BUSY, "the cookie is in use");
    assert_eq!(code(&mut b, "o", set_cookie, &rename("c", "d")), 0);
    assert_eq!(code(&mut b, "o", asserted, &assertion(LockKind::Exclusive, "d", "t")), 0);
    b.client = ClientId(5);
    assert_eq!(code(&mut b, "o", set_cookie, &rename("d", "c")), BUSY);
    // A failed assertion prevents the rest of its request.
    let guard = op("lock", "assert_locked", assertion(LockKind::Exclusive, "d", "t").to_bytes());
    b.fails("o", vec![guard, full("stolen")], Errno::EBUSY);
}

#[test]
fn versions_are_set_raised_and_checked() {
    let mut b = Bench::new();
    let version = |method| ("version", method);
    let read = |b: &mut Bench| VersionOp::from_bytes(&output(b, "o", version("read"), "")).unwrap().version;
    let check = |b: &mut Bench, method, given: &ObjVersion, condition| {
        let op = ConditionsOp { conditions: vec![(given.clone(), condition)], ..ConditionsOp::default() };
        code(b, "o", version(method), &op)
    };
    b.ok("o", vec![full("")]);
    assert_eq!(read(&mut b), ObjVersion::default());
    assert_eq!(code(&mut b, "o", version("inc"), &ConditionsOp::default()), 0);
    let first = read(&mut b);
    assert_eq!((first.version, first.tag.len()), (2, 24));
    let given = ObjVersion { version: 5, tag: bytes("tag") };
    assert_eq!(code(&mut b, "o", version("set"), &VersionOp { version: given.clone() }), 0);
    let other = |version, tag: &str| ObjVersion { version, tag: bytes(tag) };
    for (condition, compared, holds) in [
        (Condition::None, other(9, "x"), true),
        (Condition::Eq, other(5, "tag"), true),
        (Condition::Eq, other(5, "x"), false),
        (Condition::Gt, other(4, ""), true),
        (Condition::Gt, other(5, ""), false),
        (Condition::Ge, other(5, ""), true),
        (Condition::Lt, other(6, ""), true),
        (Condition::Lt, other(5, ""), false),
        (Condition::Le, other(5, ""), true),
        (Condition::TagEq, other(0, "tag"), true),
        (Condition::TagEq, other(0, "x"), false),
        (Condition::TagNe, other(0, "x"), true),
        (Condition::TagNe, other(0, "tag"), false),
    ] {
        let expected = if holds { 0 } else { CANCELED };
        assert_eq!(
            check(&mut b, "check_conds", &compared, condition),
            expected,
            "{condition:?} {compared:?}"
        );
    }
    assert_eq!(check(&mut b, "inc_conds", &other(6, ""), Condition::Ge), CANCELED);
    assert_eq!(read(&mut b), given);
    assert_eq!(check(&mut b, "inc_conds", &given, Condition::Eq), 0);
    assert_eq!(read(&mut b), other(6, "tag"));
    assert_eq!(code(&mut b, "new", version("inc"), &ConditionsOp::default()), 0);
    assert_eq!(call(&mut b, "o", version("set"), "rubbish").result, INVAL);
}

#[test]
fn the_last_reference_takes_its_object_along() {
    let mut b = Bench::new();
    let refcount = |method| ("refcount", method);
    let change = |b: &mut Bench, method, tag: &str, implicit| {
        code(b, "o", refcount(method), &RefOp { tag: bytes(tag), implicit })
    };
    let read = |b: &mut Bench, implicit| {
        RefList::from_bytes(&output(b, "o", refcount("read"), ReadOp { implicit }.to_bytes())).unwrap().refs
    };
    assert_eq!(change(&mut b, "get", "a", false), NOENT);
    b.ok("o", vec![full("data")]);
    assert_eq!((read(&mut b, false), read(&mut b, true)), (vec![], vec![Bytes::new()]));
    assert_eq!(change(&mut b, "put", "a", false), INVAL, "there are no references");
    assert_eq!(change(&mut b, "get", "a", true), 0);
    assert_eq!(change(&mut b, "get", "b", true), 0);
    assert_eq!(read(&mut b, true), ["", "a", "b"]);
    assert_eq!(change(&mut b, "put", "unknown", false), 0);
    assert_eq!(change(&mut b, "put", "a", true), 0);
    assert_eq!(change(&mut b, "put", "a", true), 0, "given back once only");
    assert_eq!(read(&mut b, true), ["", "b"]);
    assert_eq!(change(&mut b, "put", "implicit", true), 0);
    assert_eq!(read(&mut b, true), ["b"]);
    assert_eq!(change(&mut b, "put", "b", true), 0);
    b.fails("o", vec![Op::Stat], Errno::ENOENT);
    b.ok("o", vec![full("data")]);
    let refs = |tags: &[&str]| RefList { refs: tags.iter().map(|tag| bytes(tag)).collect() };
    assert_eq!(code(&mut b, "o", refcount("set"), &refs(&["x", "y"])), 0);
    assert_eq!(read(&mut b, false), ["x", "y"]);
    assert_eq!(code(&mut b, "o", refcount("set"), &refs(&[])), 0);
    b.fails("o", vec![Op::Stat], Errno::ENOENT);
}

#[test]
fn numbers_in_the_omap_are_added_to_and_multiplied() {
    let mut b = Bench::new();
    let run = |b: &mut Bench, method: &str, by: &str| {
        let mut input = Encoder::default();
        input.bytes(b"key");
        input.bytes(by.as_bytes());
        call(b, "o", ("numops", method), input.finish()).result
    };
    let value = |b: &mut Bench| {
        let reply = b.ok("o", vec![Op::OmapGetValsByKeys { keys: vec![bytes("key")] }]);
        let pairs: nacre_types::op::Pairs = nacre_types::encoding::decode(&reply.ops[0].output).unwrap();
        pairs.0[0].1.clone()
    };
    assert_eq!(run(&mut b, "add", "10.5"), 0);
    assert_eq!(value(&mut b), "10.5");
    assert_eq!(run(&mut b, "mul", "-2"), 0);
    assert_eq!(value(&mut b), "-21");
    assert_eq!(run(&mut b, "add", "not a number"), INVAL);
    assert_eq!(run(&mut b, "add", "1e20"), 0);
    assert_eq!(value(&mut b), "1e+20");
    assert_eq!(call(&mut b, "o", ("numops", "add"), "rubbish").result, INVAL);
    b.ok("o", vec![Op::OmapSet { entries: vec![(bytes("key"), bytes("text"))] }]);
    assert_eq!(run(&mut b, "mul", "2"), -Errno::EBADMSG.0);
    assert_eq!(value(&mut b), "text");
}
