//! Every op, its limits and its errors, over a MemStore.

mod copy;
mod cost;
mod data;
mod watch;

use super::*;
use crate::testing::{CountingStore, request};
use nacre_objectstore::ObjectStore;
use nacre_types::encoding::decode;
use nacre_types::ids::{ClientId, Epoch, Interval, PoolId, ReqId};
use nacre_types::op::*;

/// One PG on a MemStore, without replication.
pub(crate) struct Bench {
    _directory: tempfile::TempDir,
    store: CountingStore,
    pool: Pool,
    limits: Limits,
    full: bool,
    no_space: bool,
    version: u64,
    last_user_version: u64,
    cache: ContextCache,
    pub(crate) client: ClientId,
    /// Watches on the OSD: the client's, and all.
    pub(crate) watches: (usize, usize),
    copied: Option<Result<CopiedObject, Errno>>,
    /// Objects of which the store has no copy, or no readable one.
    pub(crate) missing: Vec<ObjectId>,
}

thread_local! {
    /// The time of day for object classes.
    pub(crate) static NOW_NS: std::cell::Cell<u64> = const { std::cell::Cell::new(1_000_000_000_000) };
}

pub(crate) fn now() -> u64 {
    NOW_NS.get()
}

const PG: PgId = PgId { pool: PoolId(1), seed: 0 };

pub(crate) fn oid(name: &str) -> ObjectId {
    ObjectId::new(PoolId(1), "", "", name)
}

pub(crate) fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

impl Bench {
    pub(crate) fn new() -> Bench {
        let directory = tempfile::tempdir().unwrap();
        nacre_objectstore::MemStore::mkfs(directory.path()).unwrap();
        let (store, _) = nacre_objectstore::MemStore::mount(directory.path(), Default::default()).unwrap();
        let mut create = Transaction::new(PG);
        create.push(TxnOp::CreateCollection);
        store.queue_transaction(&create, None).unwrap();
        Bench {
            _directory: directory,
            store: CountingStore::new(store),
            pool: Pool::replicated("p", 1, 1, 0, 1, Epoch(1)),
            limits: Limits::default(),
            full: false,
            no_space: false,
            version: 0,
            last_user_version: 0,
            cache: ContextCache::new(4),
            client: ClientId(4),
            watches: (0, 0),
            copied: None,
            missing: Vec::new(),
        }
    }

    pub(crate) fn execute(&mut self, object: &ObjectId, ops: Vec<OsdOp>, flags: u32) -> ExecResult {
        let mut request = request(object, ops, flags);
        request.reqid.client = self.client;
        self.execute_counted(&request, |_| 0).0
    }

    /// Executes a request. `count` is evaluated before the change is applied.
    fn execute_counted(
        &mut self,
        request: &OsdRequest,
        count: impl Fn(&CountingStore) -> u64,
    ) -> (ExecResult, u64) {
        let object = &request.object;
        if let Err(errno) = validate(request, &self.limits) {
            return (ExecResult::failed(errno, 0), 0);
        }
        let context = match self.cache.get(object, 1) {
            Some(context) => context.clone(),
            None => load_context(&self.store, PG, object).unwrap(),
        };
        let env = ExecEnv {
            store: &self.store,
            pg: PG,
            pool: &self.pool,
            limits: &self.limits,
            full: self.full,
            no_space: self.no_space,
            at: Eversion::new(Interval(1), self.version + 1),
            whiteouts: false,
            takes_watches: false,
            last_user_version: self.last_user_version,
            origin: Origin { client: self.client, ip: IpAddr::from([127, 0, 0, 1]) },
            wall_ns: &now,
            fresh_uuid: &Uuid::new_v4,
            watches: &|_| self.watches,
            copied: self.copied.as_ref().map(|copy| copy.as_ref().map_err(|errno| *errno)),
            recent_requests: &|_| vec![(ReqId { client: ClientId(77), tid: 5 }, 3)],
            missing: &|first, end| {
                let within = |object: &&ObjectId| *object >= first && end.is_none_or(|end| *object < end);
                self.missing.iter().filter(within).cloned().collect()
            },
        };
        let mut executed = execute(&env, request, &context);
        let counted = count(&self.store);
        if let Some(change) = &mut executed.change {
            self.version += 1;
            self.last_user_version = change.context.info.user_version;
            self.store.queue_transaction(&change.transaction, None).unwrap();
            self.cache.put(object, 1, change.context.clone());
            assert_eq!(load_context(&self.store, PG, object).unwrap().size, change.context.size);
            if change.context.exists {
                assert_eq!(load_context(&self.store, PG, object).unwrap(), change.context);
            }
        }
        (executed, counted)
    }

    pub(crate) fn run(&mut self, name: &str, ops: Vec<Op>) -> ExecResult {
        self.execute(&oid(name), ops.into_iter().map(OsdOp::from).collect(), 0)
    }

    pub(crate) fn ok(&mut self, name: &str, ops: Vec<Op>) -> ExecResult {
        let executed = self.run(name, ops);
        assert!(executed.result >= 0, "failed: {executed:?}");
        executed
    }

    #[track_caller]
    pub(crate) fn fails(&mut self, name: &str, ops: Vec<Op>, errno: Errno) {
        let before = self.version;
        let executed = self.run(name, ops);
        assert_eq!(Errno(-executed.result), errno, "{executed:?}");
        assert!(executed.change.is_none() && self.version == before, "a failed request changed something");
    }

    pub(crate) fn read(&mut self, name: &str) -> Bytes {
        self.ok(name, vec![Op::Read { offset: 0, len: 0 }]).ops[0].output.clone()
    }

    pub(crate) fn size(&mut self, name: &str) -> u64 {
        let reply = self.ok(name, vec![Op::Stat]).ops[0].output.clone();
        decode::<StatReply>(&reply).unwrap().size
    }
}

fn write(offset: u64, data: &str) -> Op {
    Op::Write { offset, data: bytes(data).into() }
}

pub(crate) fn full(data: &str) -> Op {
    Op::WriteFull { data: bytes(data).into() }
}

fn set(name: &str, value: &str) -> Op {
    Op::SetXattr { name: name.into(), value: bytes(value) }
}

fn get(name: &str) -> Op {
    Op::GetXattr { name: name.into() }
}

fn cmp(name: &str, op: CmpOp, value: &str) -> Op {
    Op::CmpXattr { name: name.into(), op, value: CmpValue::Bytes(bytes(value)) }
}

fn cmp_u64(name: &str, op: CmpOp, value: u64) -> Op {
    Op::CmpXattr { name: name.into(), op, value: CmpValue::U64(value) }
}

fn omap(entries: &[(&str, &str)]) -> Op {
    Op::OmapSet { entries: entries.iter().map(|(k, v)| (bytes(k), bytes(v))).collect() }
}

fn vals(after: &str, prefix: &str, max: u64) -> Op {
    Op::OmapGetVals { start_after: bytes(after), filter_prefix: bytes(prefix), max }
}

/// The entries of an `OmapGetVals` reply as text, and whether there are more.
fn page_of(output: &Bytes) -> (String, bool) {
    let reply: OmapValsReply = decode(output).unwrap();
    let text = |b: &Bytes| String::from_utf8(b.to_vec()).unwrap();
    let entries: Vec<_> = reply.entries.iter().map(|(k, v)| format!("{}={}", text(k), text(v))).collect();
    (entries.join(" "), reply.more)
}

#[test]
fn writes_extend_append_truncate_and_zero_as_ceph_does() {
    let mut b = Bench::new();
    b.ok("o", vec![write(4, "data")]);
    assert_eq!(b.read("o"), "\0\0\0\0data");
    b.ok("o", vec![Op::Append { data: bytes("more").into() }]);
    assert_eq!(b.read("o"), "\0\0\0\0datamore");
    b.ok("o", vec![Op::Truncate { size: 6 }]);
    assert_eq!(b.read("o"), "\0\0\0\0da");
    b.ok("o", vec![Op::Truncate { size: 8 }]);
    assert_eq!(b.read("o"), "\0\0\0\0da\0\0");
    b.ok("o", vec![full("0123456789")]);
    b.ok("o", vec![Op::Zero { offset: 2, len: 3 }]);
    assert_eq!(b.read("o"), "01\0\0\x0056789");
    b.ok("o", vec![Op::Zero { offset: 8, len: 100 }]);
    assert_eq!(b.size("o"), 8, "zeroing to the end truncates");
    let version = b.version;
    b.ok("o", vec![Op::Zero { offset: 8, len: 5 }]);
    assert_eq!((b.size("o"), b.version), (8, version), "zeroing beyond the end is nothing");
    b.ok("o", vec![full("xy")]);
    assert_eq!(b.read("o"), "xy");
    b.ok("o", vec![full("")]);
    assert_eq!((b.read("o"), b.size("o")), (Bytes::new(), 0));
}

#[test]
fn writes_of_nothing_create_and_extend() {
    let mut b = Bench::new();
    b.ok("o", vec![write(0, "")]);
    assert_eq!(b.size("o"), 0);
    b.ok("o", vec![write(5, "")]);
    assert_eq!(b.size("o"), 5);
    let version = b.version;
    b.ok("o", vec![write(2, "")]);
    assert_eq!((b.size("o"), b.version), (5, version + 1), "nothing is written, yet the version rises");
    b.ok("empty", vec![full("")]);
    assert_eq!(b.size("empty"), 0);
    b.ok("appended", vec![Op::Append { data: Bytes::new().into() }]);
    assert_eq!(b.size("appended"), 0);
    b.ok("hinted", vec![Op::SetAllocHint { expected_object_size: 9, expected_write_size: 3, flags: 1 }]);
    assert_eq!(b.size("hinted"), 0);
}

#[test]
fn reads_are_short_at_the_end_and_never_fail_for_offsets() {
    let mut b = Bench::new();
    b.ok("o", vec![full("0123456789")]);
    let mut at = |offset, len| b.ok("o", vec![Op::Read { offset, len }]).ops[0].output.clone();
    assert_eq!(at(3, 4), "3456");
    assert_eq!(at(8, 100), "89");
    assert_eq!(at(4, 0), "456789");
    assert_eq!(at(10, 5), "");
    assert_eq!(at(u64::MAX, u64::MAX), "");
    assert_eq!(at(2, u64::MAX), "23456789");
}

#[test]
fn absent_objects_fail_reads_and_some_writes() {
    let mut b = Bench::new();
    for op in [
        Op::Read { offset: 0, len: 1 },
        Op::Stat,
        get("a"),
        Op::GetXattrs,
        cmp("a", CmpOp::Ne, "x"),
        Op::OmapGetHeader,
        vals("", "", 1),
        Op::AssertExists,
        Op::AssertVersion { version: 1 },
        Op::Remove,
        Op::RmXattr { name: "a".into() },
        Op::OmapClear,
        Op::OmapRmKeys { keys: vec![bytes("k")] },
        Op::OmapRmRange { first: bytes("a"), last: bytes("b") },
        Op::OmapCmp { assertions: vec![] },
    ] {
        b.fails("absent", vec![op], Errno::ENOENT);
    }
    for op in [Op::Truncate { size: 5 }, Op::Zero { offset: 0, len: 5 }] {
        b.ok("absent", vec![op]);
        b.fails("absent", vec![Op::Stat], Errno::ENOENT);
    }
    assert_eq!(b.version, 0);
    b.fails("absent", vec![Op::AssertExists, full("x")], Errno::ENOENT);
    b.fails("absent", vec![get("a"), full("x")], Errno::ENOENT);
    b.fails("absent", vec![Op::AssertVersion { version: 3 }, full("x")], Errno::EOVERFLOW);
}

#[test]
fn exclusive_creation_fails_where_the_object_exists() {
    let mut b = Bench::new();
    b.ok("o", vec![Op::Create { exclusive: true }]);
    b.fails("o", vec![Op::Create { exclusive: true }], Errno::EEXIST);
    let flagged = OsdOp { op: Op::Create { exclusive: false }, flags: op_flag::EXCL };
    assert_eq!(b.execute(&oid("o"), vec![flagged], 0).result, Errno::EEXIST.negated());
    b.ok("o", vec![full("kept")]);
    b.ok("o", vec![Op::Create { exclusive: false }]);
    assert_eq!(b.read("o"), "kept");
}

#[test]
fn removal_takes_everything_and_user_versions_go_on() {
    let mut b = Bench::new();
    b.ok("o", vec![full("data"), set("a", "1"), omap(&[("k", "v")])]);
    b.ok("o", vec![full("data2")]);
    let before = b.last_user_version;
    let removed = b.ok("o", vec![Op::Remove]);
    let delta = removed.change.unwrap().delta;
    assert_eq!((delta.bytes, delta.objects, delta.omap_objects, delta.dirty), (-5, -1, -1, -1));
    b.fails("o", vec![Op::Stat], Errno::ENOENT);
    let created = b.ok("o", vec![full("new")]);
    assert!(created.user_version > before + 1, "user version restarted");
    b.fails("o", vec![get("a")], Errno::ENODATA);
    let page = b.ok("o", vec![vals("", "", 9)]).ops[0].output.clone();
    assert_eq!(page_of(&page), (String::new(), false));
}

#[test]
fn sizes_beyond_the_limits_are_refused() {
    let mut b = Bench::new();
    b.limits.max_object_size_bytes = 100;
    b.ok("o", vec![write(90, "0123456789")]);
    b.fails("o", vec![write(91, "0123456789")], Errno::EFBIG);
    b.fails("o", vec![write(100, "")], Errno::EFBIG);
    b.fails("o", vec![write(u64::MAX - 3, "0123456789")], Errno::EFBIG);
    b.fails("o", vec![Op::Append { data: bytes("x").into() }], Errno::EFBIG);
    b.fails("o", vec![Op::Truncate { size: 100 }], Errno::EFBIG);
    b.fails("o", vec![Op::Truncate { size: u64::MAX }], Errno::EFBIG);
    b.fails("o", vec![Op::Zero { offset: 100, len: 1 }], Errno::EFBIG);
    b.fails("o", vec![Op::Zero { offset: 0, len: 101 }], Errno::EFBIG);
    b.fails("o", vec![Op::Zero { offset: u64::MAX, len: u64::MAX }], Errno::EFBIG);
    b.fails("o", vec![full(&"x".repeat(101))], Errno::EFBIG);
    b.ok("o", vec![full(&"x".repeat(100))]);
    b.limits.max_write_size_bytes = 50;
    b.fails("o", vec![full(&"x".repeat(51))], Errno::EMSGSIZE);
    b.fails("o", vec![write(0, &"x".repeat(30)), write(30, &"x".repeat(21))], Errno::EMSGSIZE);
    b.ok("o", vec![full(&"x".repeat(50))]);
}

#[test]
fn names_beyond_the_limits_are_refused() {
    let mut b = Bench::new();
    let touch = || vec![OsdOp::from(Op::Create { exclusive: false })];
    let mut create = |namespace: &str, locator: &str, name: &str| {
        b.execute(&ObjectId::new(PoolId(1), namespace, locator, name), touch(), 0).result
    };
    let long = "n".repeat(2049);
    assert_eq!(create("", "", &long[..2048]), 0);
    assert_eq!(create("", "", &long), Errno::ENAMETOOLONG.negated());
    assert_eq!(create("", &long, "o"), Errno::ENAMETOOLONG.negated());
    assert_eq!(create(&long[..256], "", "o"), 0);
    assert_eq!(create(&long[..257], "", "o"), Errno::ENAMETOOLONG.negated());
    assert_eq!(create("ns", "", ""), Errno::EINVAL.negated());
}

#[test]
fn attributes_are_set_read_listed_and_removed() {
    let mut b = Bench::new();
    b.ok("o", vec![set("b", "2"), set("a", "1")]);
    let unnamed = [set("", "x"), get(""), Op::RmXattr { name: String::new() }, cmp("", CmpOp::Ne, "x")];
    for op in unnamed {
        b.fails("o", vec![op], Errno::EINVAL);
    }
    assert_eq!(b.ok("o", vec![get("a")]).ops[0].output, "1");
    let list = b.ok("o", vec![Op::GetXattrs]).ops[0].output.clone();
    let expected = [("a", "1"), ("b", "2")].map(|(k, v)| (bytes(k), bytes(v)));
    assert_eq!(decode::<Pairs>(&list).unwrap().0, expected, "the object's own info is hidden");
    b.ok("o", vec![Op::RmXattr { name: "a".into() }]);
    b.fails("o", vec![get("a")], Errno::ENODATA);
    b.ok("o", vec![Op::RmXattr { name: "never there".into() }]);
    b.fails("o", vec![set(&"n".repeat(101), "x")], Errno::ENAMETOOLONG);
    b.ok("o", vec![set(&"n".repeat(100), "x")]);
    b.limits.max_attr_size_bytes = 10;
    b.fails("o", vec![set("big", "0123456789a")], Errno::EFBIG);
    b.ok("o", vec![set("big", "0123456789")]);
}

#[test]
fn attribute_comparisons_compare_given_with_stored() {
    let mut b = Bench::new();
    b.ok("o", vec![set("s", "m"), set("n", "10"), set("odd", "7up")]);
    use CmpOp::*;
    for (op, given, holds) in [
        (Eq, "m", true),
        (Eq, "x", false),
        (Ne, "x", true),
        (Ne, "m", false),
        (Gt, "z", true),
        (Gt, "m", false),
        (Gte, "m", true),
        (Gte, "a", false),
        (Lt, "a", true),
        (Lt, "m", false),
        (Lte, "m", true),
        (Lte, "z", false),
    ] {
        let executed = b.run("o", vec![cmp("s", op, given)]);
        let expected = if holds { 1 } else { Errno::ECANCELED.negated() };
        assert_eq!(executed.result, expected, "{given} {op:?} m");
    }
    for (name, op, given, holds) in [
        ("n", Eq, 10, true),
        ("n", Gt, 9, false),
        ("n", Gt, 11, true),
        ("n", Lte, 10, true),
        ("n", Ne, 10, false),
        ("odd", Eq, 7, true),
        ("s", Eq, 0, true),
        ("absent", Eq, 0, true),
    ] {
        let executed = b.run("o", vec![cmp_u64(name, op, given)]);
        let expected = if holds { 1 } else { Errno::ECANCELED.negated() };
        assert_eq!(executed.result, expected, "{given} {op:?} {name}");
    }
    assert_eq!(b.run("o", vec![cmp("absent", Eq, "")]).result, 1);
    b.fails("o", vec![cmp("s", Eq, "other"), full("not written")], Errno::ECANCELED);
    assert_eq!(b.size("o"), 0);
}

#[test]
fn omap_is_set_paged_filtered_and_removed() {
    let mut b = Bench::new();
    b.ok("o", vec![omap(&[("a1", "1"), ("a2", "2"), ("b1", "3"), ("c", "4")])]);
    let mut page = |after, prefix, max| {
        let output = b.ok("o", vec![vals(after, prefix, max)]).ops[0].output.clone();
        let (text, more) = page_of(&output);
        format!("{text}{}", if more { " …" } else { "" })
    };
    assert_eq!(page("", "", 9), "a1=1 a2=2 b1=3 c=4");
    assert_eq!(page("", "", 2), "a1=1 a2=2 …");
    assert_eq!(page("a2", "", 2), "b1=3 c=4");
    assert_eq!(page("", "a", 1), "a1=1 …");
    assert_eq!(page("", "a", 2), "a1=1 a2=2");
    assert_eq!(page("a1", "a", 2), "a2=2");
    assert_eq!(page("b", "a", 2), "");
    assert_eq!(page("", "", 0), " …");
    let keys = b.ok("o", vec![Op::OmapGetKeys { start_after: bytes("a2"), max: 1 }]).ops[0].output.clone();
    assert_eq!(
        decode::<OmapKeysReply>(&keys).unwrap(),
        OmapKeysReply { keys: vec![bytes("b1")], more: true }
    );
    let some = Op::OmapGetValsByKeys { keys: vec![bytes("c"), bytes("zz"), bytes("a1")] };
    let some = b.ok("o", vec![some]).ops[0].output.clone();
    assert_eq!(decode::<Pairs>(&some).unwrap().0, [(bytes("c"), bytes("4")), (bytes("a1"), bytes("1"))]);
    b.ok("o", vec![Op::OmapRmKeys { keys: vec![bytes("c"), bytes("zz")] }]);
    b.ok("o", vec![Op::OmapRmRange { first: bytes("a2"), last: bytes("b1") }]);
    b.ok("o", vec![Op::OmapSetHeader { header: bytes("head") }]);
    let outputs = b.ok("o", vec![vals("", "", 9), Op::OmapGetHeader]).ops;
    assert_eq!((page_of(&outputs[0].output).0.as_str(), &outputs[1].output[..]), ("a1=1 b1=3", &b"head"[..]));
    let cleared = b.ok("o", vec![Op::OmapClear]).change.unwrap();
    assert_eq!(cleared.delta.omap_objects, -1);
    let outputs = b.ok("o", vec![vals("", "", 9), Op::OmapGetHeader]).ops;
    assert_eq!((page_of(&outputs[0].output).0.as_str(), outputs[1].output.len()), ("", 0));
}

#[test]
fn omap_replies_are_cut_at_the_configured_limits() {
    let mut b = Bench::new();
    let entries: Vec<_> =
        (0..50).map(|i| (Bytes::from(format!("k{i:02}")), Bytes::from(vec![b'v'; 100]))).collect();
    b.ok("o", vec![Op::OmapSet { entries }]);
    b.limits.max_omap_entries_per_request = 20;
    let page = |b: &mut Bench| {
        let output = b.ok("o", vec![vals("", "", u64::MAX)]).ops[0].output.clone();
        let reply: OmapValsReply = decode(&output).unwrap();
        (reply.entries.len(), reply.more)
    };
    assert_eq!(page(&mut b), (20, true));
    b.limits.max_omap_bytes_per_request = 500;
    assert_eq!(page(&mut b), (5, true));
}

#[test]
fn omap_comparisons_compare_stored_with_given() {
    let mut b = Bench::new();
    b.ok("o", vec![omap(&[("k", "m")])]);
    let mut check = |key: &str, op, given: &str| {
        b.run("o", vec![Op::OmapCmp { assertions: vec![(bytes(key), op, bytes(given))] }]).result
    };
    let canceled = Errno::ECANCELED.negated();
    assert_eq!((check("k", CmpOp::Eq, "m"), check("k", CmpOp::Eq, "x")), (0, canceled));
    assert_eq!((check("k", CmpOp::Lt, "z"), check("k", CmpOp::Lt, "a")), (0, canceled));
    assert_eq!((check("k", CmpOp::Gt, "a"), check("k", CmpOp::Gt, "z")), (0, canceled));
    assert_eq!((check("none", CmpOp::Eq, ""), check("none", CmpOp::Eq, "x")), (0, canceled));
    for op in [CmpOp::Ne, CmpOp::Gte, CmpOp::Lte] {
        assert_eq!(check("k", op, "m"), Errno::EINVAL.negated());
    }
}

#[test]
fn versions_are_asserted_against_the_user_version() {
    let mut b = Bench::new();
    let version = b.ok("o", vec![full("1")]).user_version;
    b.ok("o", vec![Op::AssertVersion { version }, full("2")]);
    b.fails("o", vec![Op::AssertVersion { version }, full("3")], Errno::ERANGE);
    b.fails("o", vec![Op::AssertVersion { version: version + 2 }, full("3")], Errno::EOVERFLOW);
    b.fails("o", vec![Op::AssertVersion { version: 0 }], Errno::EINVAL);
    assert_eq!(b.ok("o", vec![Op::Stat]).user_version, version + 1);
}

#[test]
fn ops_see_what_earlier_ops_of_the_request_did() {
    let mut b = Bench::new();
    b.ok("o", vec![full("0123456789"), set("a", "old"), omap(&[("k1", "1"), ("k3", "3")])]);
    let ops = vec![
        write(2, "AB"),
        Op::Zero { offset: 5, len: 2 },
        Op::Append { data: bytes("xyz").into() },
        Op::Read { offset: 1, len: 11 },
        set("a", "new"),
        get("a"),
        omap(&[("k2", "2"), ("k3", "three")]),
        Op::OmapRmKeys { keys: vec![bytes("k1")] },
        vals("", "", 9),
        Op::OmapGetValsByKeys { keys: vec![bytes("k1"), bytes("k3")] },
        Op::Truncate { size: 4 },
        Op::Read { offset: 0, len: 0 },
        Op::Stat,
        Op::RmXattr { name: "a".into() },
        Op::GetXattrs,
    ];
    let ops = ops.into_iter().map(OsdOp::from).collect::<Vec<_>>();
    b.limits.max_write_op_reply_len = 1000;
    let executed = b.execute(&oid("o"), ops, request_flag::RETURNVEC);
    assert_eq!(executed.result, 0, "{executed:?}");
    let output = |at: usize| executed.ops[at].output.clone();
    assert_eq!(output(3), "1AB4\0\x00789xy");
    assert_eq!(output(5), "new");
    assert_eq!(page_of(&output(8)).0, "k2=2 k3=three");
    assert_eq!(decode::<Pairs>(&output(9)).unwrap().0, [(bytes("k3"), bytes("three"))]);
    assert_eq!(output(11), "01AB");
    assert_eq!(decode::<StatReply>(&output(12)).unwrap().size, 4);
    assert_eq!(decode::<Pairs>(&output(14)).unwrap().0, []);
    assert_eq!(b.read("o"), "01AB");
}

#[test]
fn removal_and_recreation_in_one_request_leave_only_the_new() {
    let mut b = Bench::new();
    b.ok("o", vec![full("0123456789"), set("a", "old"), omap(&[("k1", "1")])]);
    b.limits.max_write_op_reply_len = 1000;
    let ops: Vec<Op> = vec![
        Op::Remove,
        write(3, "n"),
        Op::Read { offset: 0, len: 0 },
        Op::GetXattrs,
        omap(&[("k2", "2")]),
        vals("", "", 9),
    ];
    let executed = b.execute(&oid("o"), ops.into_iter().map(OsdOp::from).collect(), request_flag::RETURNVEC);
    assert_eq!(executed.ops[2].output, "\0\0\0n");
    assert_eq!(decode::<Pairs>(&executed.ops[3].output).unwrap().0, []);
    assert_eq!(page_of(&executed.ops[5].output).0, "k2=2");
    assert_eq!(b.read("o"), "\0\0\0n");
    b.fails("o", vec![get("a")], Errno::ENODATA);
    let executed = b.ok("new", vec![full("x"), Op::Remove]);
    assert!(executed.change.is_none(), "made and removed at once: nothing to commit");
    let executed = b.ok("o", vec![full("x"), Op::Remove]);
    assert!(executed.change.is_some());
    b.fails("o", vec![Op::Stat], Errno::ENOENT);
}

#[test]
fn first_failure_fails_the_request_unless_it_is_allowed_to() {
    let mut b = Bench::new();
    b.ok("o", vec![full("old")]);
    b.fails("o", vec![full("new"), get("absent"), set("a", "1")], Errno::ENODATA);
    assert_eq!(b.read("o"), "old");
    let failing = b.run("o", vec![Op::Stat, get("absent"), Op::Stat]);
    assert_eq!((failing.ops.len(), failing.ops[1].code), (2, Errno::ENODATA.negated()));
    let failok = OsdOp { op: get("absent"), flags: op_flag::FAILOK };
    let executed = b.execute(&oid("o"), vec![failok, Op::Stat.into()], 0);
    assert_eq!((executed.result, executed.ops[0].code), (0, Errno::ENODATA.negated()));
    assert_eq!(executed.ops.len(), 2);
}

#[test]
fn outputs_of_updates_are_returned_only_on_demand_and_bounded() {
    let mut b = Bench::new();
    b.ok("o", vec![full(&"x".repeat(100))]);
    let ops = |len| vec![OsdOp::from(Op::Read { offset: 0, len }), OsdOp::from(full("new"))];
    let silent = b.execute(&oid("o"), ops(5), 0);
    assert_eq!((silent.result, silent.ops[0].output.len()), (0, 0));
    b.ok("o", vec![full(&"x".repeat(100))]);
    assert_eq!(b.execute(&oid("o"), ops(5), request_flag::RETURNVEC).ops[0].output, "xxxxx");
    b.ok("o", vec![full(&"x".repeat(100))]);
    let long = b.execute(&oid("o"), ops(65), request_flag::RETURNVEC);
    assert_eq!(long.result, Errno::EOVERFLOW.negated());
    assert_eq!(b.size("o"), 100);
}

#[test]
fn full_stores_refuse_growth_and_allow_removal() {
    let mut b = Bench::new();
    b.ok("o", vec![full("data"), set("a", "1"), omap(&[("k", "v")])]);
    b.full = true;
    for op in
        [full("x"), write(0, "x"), set("b", "2"), omap(&[("l", "v")]), Op::Append { data: bytes("x").into() }]
    {
        b.fails("o", vec![op.clone()], Errno::ENOSPC);
        b.fails("other", vec![op], Errno::ENOSPC);
    }
    b.fails("other", vec![Op::Create { exclusive: true }], Errno::ENOSPC);
    b.ok("o", vec![Op::Truncate { size: 1 }]);
    b.ok("o", vec![Op::RmXattr { name: "a".into() }]);
    b.ok("o", vec![Op::OmapRmKeys { keys: vec![bytes("k")] }]);
    assert_eq!(b.read("o"), "d");
    let forced = b.execute(&oid("o"), vec![full("forced").into()], request_flag::FULL_FORCE);
    assert_eq!(forced.result, 0);
    b.no_space = true;
    let forced = b.execute(&oid("o"), vec![full("more").into()], request_flag::FULL_FORCE);
    assert_eq!(forced.result, Errno::ENOSPC.negated());
    b.ok("o", vec![Op::Remove]);
    (b.full, b.no_space) = (false, false);
    b.pool.flags |= pool::flag::FULL | pool::flag::FULL_QUOTA;
    b.fails("o", vec![full("x")], Errno::EDQUOT);
}

#[test]
fn listing_resumes_in_hash_order_and_hides_internal_objects() {
    let mut b = Bench::new();
    let mut all = Vec::new();
    for i in 0..40 {
        let namespace = ["", "ns", INTERNAL_NAMESPACE][i % 3];
        let object = ObjectId::new(PoolId(1), namespace, "", &format!("o{i}"));
        assert_eq!(b.execute(&object, vec![Op::Create { exclusive: true }.into()], 0).result, 0);
        if namespace != INTERNAL_NAMESPACE {
            all.push(object);
        }
    }
    // The store has lost its copies of these, or can't read them.
    b.missing = vec![ObjectId::new(PoolId(1), "ns", "", "missing"), all[3].clone(), all[4].clone()];
    let mut lose = Transaction::new(PG);
    lose.push(TxnOp::Remove(all[3].clone()));
    b.store.queue_transaction(&lose, None).unwrap();
    all.push(b.missing[0].clone());
    all.sort();
    let mut list = |namespace: Option<&str>, max| {
        let (mut found, mut cursor) = (Vec::new(), None);
        loop {
            let op = Op::PgList { cursor, max, namespace: namespace.map(str::to_owned) };
            let executed = b.execute(&oid(""), vec![op.into()], 0);
            let reply: ListReply = decode(&executed.ops[0].output).unwrap();
            assert!(reply.objects.len() as u64 <= max);
            found.extend(reply.objects);
            cursor = reply.next;
            if cursor.is_none() {
                return found;
            }
        }
    };
    assert_eq!(list(None, 1000), all);
    assert_eq!(list(None, 7), all);
    let in_ns: Vec<_> = all.iter().filter(|o| o.namespace() == "ns").cloned().collect();
    assert_eq!(list(Some("ns"), 3), in_ns);
    let default: Vec<_> = all.iter().filter(|o| o.namespace().is_empty()).cloned().collect();
    assert_eq!(list(Some(""), 1), default);
    let mixed = vec![Op::PgList { cursor: None, max: 1, namespace: None }.into(), Op::Stat.into()];
    assert_eq!(b.execute(&oid("x"), mixed, 0).result, Errno::EINVAL.negated());
}

#[test]
fn object_info_records_versions_request_and_time() {
    let mut b = Bench::new();
    b.ok("o", vec![full("1")]);
    b.ok("o", vec![omap(&[("k", "v")])]);
    let info = load_context(&b.store, PG, &oid("o")).unwrap().info;
    assert_eq!(
        (info.version, info.prior_version),
        (Eversion::new(Interval(1), 2), Eversion::new(Interval(1), 1))
    );
    assert_eq!((info.mtime_ns, info.last_reqid.client), (1_000, ClientId(4)));
    assert_eq!(info.flags, object_flag::DIRTY | object_flag::OMAP);
}

#[test]
fn small_overwrite_takes_two_steps() {
    let mut b = Bench::new();
    b.ok("o", vec![full("0123456789")]);
    let change = b.ok("o", vec![write(2, "xx")]).change.unwrap();
    assert!(
        matches!(&change.transaction.ops[..], [TxnOp::Write { .. }, TxnOp::SetAttrs { .. }]),
        "{:?}",
        change.transaction.ops
    );
}

#[test]
fn an_object_without_valid_info_is_corrupt_not_empty() {
    let b = Bench::new();
    let mut txn = Transaction::new(PG);
    txn.push(TxnOp::SetAttrs { oid: oid("bad"), attrs: vec![(OI_ATTR.into(), bytes("garbage"))] });
    txn.push(TxnOp::Touch(oid("none")));
    b.store.queue_transaction(&txn, None).unwrap();
    for name in ["bad", "none"] {
        let error = load_context(&b.store, PG, &oid(name)).unwrap_err();
        assert!(matches!(error, nacre_objectstore::StoreError::Corrupt { .. }), "{name}: {error}");
    }
}

#[test]
fn context_cache_is_bounded_and_forgets_earlier_intervals() {
    let mut cache = ContextCache::new(8);
    let context = |size| ObjectContext { exists: true, size, ..ObjectContext::default() };
    for i in 0..1000 {
        cache.put(&oid(&format!("o{i}")), 1, context(i));
        assert!(cache.get(&oid("o0"), 1).is_some(), "what is in use stays");
    }
    assert_eq!(cache.len(), 8);
    assert_eq!(cache.get(&oid("o999"), 1), Some(&context(999)));
    assert_eq!(cache.get(&oid("o999"), 2), None);
    cache.forget(&oid("o999"));
    assert_eq!(cache.get(&oid("o999"), 1), None);
}

#[test]
fn what_a_request_answers_with_is_bounded() {
    let mut bench = Bench::new();
    let data = Bytes::from(vec![7_u8; 4 << 20]);
    bench.ok("o", vec![Op::WriteFull { data: data.into() }]);
    let reads = |count: usize| vec![Op::Read { offset: 0, len: 0 }; count];
    let fits = bench.run("o", reads(MAX_OUTPUT_BYTES >> 22));
    assert_eq!((fits.result, fits.ops.len()), (0, MAX_OUTPUT_BYTES >> 22));
    let more = bench.run("o", reads((MAX_OUTPUT_BYTES >> 22) + 1));
    assert_eq!(more.result, Errno::EOVERFLOW.negated());
    assert!(more.ops.iter().all(|op| op.output.is_empty()), "what was read before is let go");
    let checksums = Op::Checksum { kind: ChecksumKind::XxHash64, init: 0, offset: 0, len: 4 << 20, chunk: 1 };
    assert_eq!(bench.run("o", vec![checksums; 6]).result, Errno::EOVERFLOW.negated());
}

#[test]
fn a_key_that_is_asked_for_many_times_is_answered_once() {
    let mut bench = Bench::new();
    let value = Bytes::from(vec![1_u8; 1 << 20]);
    bench.ok("o", vec![Op::OmapSet { entries: vec![(Bytes::from_static(b"k"), value)] }]);
    let keys = vec![Bytes::from_static(b"k"); 100_000];
    let found = bench.ok("o", vec![Op::OmapGetValsByKeys { keys }]);
    assert!(found.ops[0].output.len() < 2 << 20);
}

#[test]
fn classes_that_are_not_offered_are_withheld() {
    let mut bench = Bench::new();
    bench.ok("o", vec![Op::Create { exclusive: false }]);
    let call = |class: &str, method: &str| Op::Call {
        class: class.into(),
        method: method.into(),
        input: Bytes::new(),
    };
    bench.limits.classes_offered = ClassList::parse("lock version,refcount");
    assert_eq!(bench.run("o", vec![call("hello", "say_hello")]).result, Errno::EPERM.negated());
    assert_eq!(bench.run("o", vec![call("version", "read")]).result, 0);
    assert_eq!(bench.run("o", vec![call("version", "nope")]).result, Errno::EOPNOTSUPP.negated());
    bench.limits.classes_offered = ClassList::parse("*");
    assert_eq!(bench.run("o", vec![call("hello", "say_hello")]).result, 0);
}
