//! Tests of the striper against in-memory OSDs that execute requests in any order that real OSDs may choose, with clients
//! that die in between.

mod races;

use super::meta::{EPOCH, PIECE_BOUND, SIZE, UNFINISHED};
use super::*;
use nacre_engine::engine::{Cursor, Engine, ListPage, ObjectRequest, OnReply};
use nacre_engine::{Completer, OpReply, block_on};
use nacre_types::op::{CmpValue, Op, OpResult, Pairs, StatReply};
use nacre_types::{PoolId, encoding};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const UNIT: u64 = MIN_STRIPE_UNIT as u64;

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

#[derive(Clone, Default, Debug, PartialEq)]
struct Stored {
    data: Vec<u8>,
    attrs: BTreeMap<String, Bytes>,
}

struct Queued {
    client: usize,
    request: ObjectRequest,
    reply: Completer<OpReply>,
}

impl Queued {
    /// Lets the client give up the request, which still arrives.
    fn give_up(self) -> Queued {
        let Queued { client, request, reply } = self;
        reply.complete(Err(Error::TimedOut("late".into())));
        Queued { client, request, reply: Pending::channel().0 }
    }

    /// Drops the request. It never arrives.
    fn time_out(self) {
        self.reply.complete(Err(Error::TimedOut("lost".into())));
    }
}

/// A clock that advances by a microsecond at each read.
#[derive(Default)]
pub(crate) struct Looks(AtomicU64);

impl Looks {
    fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }
}

impl Clock for Looks {
    fn now(&self) -> Duration {
        Duration::from_micros(self.next())
    }

    fn wall_ns(&self) -> u64 {
        1_700_000_000_000_000_000 + self.next() * 1_000
    }

    fn random_u64(&self) -> Result<u64> {
        Ok(self.next().wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}

#[derive(Default)]
struct World {
    clock: Arc<Looks>,
    objects: BTreeMap<String, Stored>,
    /// Requests in flight. With `held`, they stay queued until a test executes them.
    queue: Vec<Queued>,
    held: bool,
    tasks: Vec<(usize, Task)>,
    dead: Vec<usize>,
    executed: usize,
}

#[derive(Clone, Default)]
struct Cluster(Arc<Mutex<World>>);

struct Client {
    cluster: Cluster,
    id: usize,
}

/// Executes the ops that the striper uses, as an OSD does.
fn execute(objects: &mut BTreeMap<String, Stored>, request: &ObjectRequest) -> OpReply {
    let name = request.object.name().to_owned();
    let before = objects.get(&name).cloned();
    let writes = request.ops.iter().any(|op| op.op.is_write());
    if !writes && before.is_none() {
        return OpReply { result: -Errno::ENOENT.0, ..OpReply::default() };
    }
    let mut now = before;
    let mut ops = Vec::new();
    for op in &request.ops {
        let outcome = apply(&mut now, &op.op);
        let failed = outcome.is_err();
        ops.push(outcome.unwrap_or_else(OpResult::error));
        if failed {
            return OpReply { result: ops[ops.len() - 1].code, version: 0, ops };
        }
    }
    match now {
        Some(stored) => objects.insert(name, stored),
        None => objects.remove(&name),
    };
    OpReply { result: 0, version: 1, ops }
}

fn apply(now: &mut Option<Stored>, op: &Op) -> Result<OpResult, Errno> {
    if let Op::Create { exclusive } = op {
        if *exclusive && now.is_some() {
            return Err(Errno::EEXIST);
        }
        now.get_or_insert_default();
        return Ok(OpResult::default());
    }
    if let Op::Write { .. } | Op::SetXattr { .. } = op {
        now.get_or_insert_default();
    }
    let stored = now.as_mut().ok_or(Errno::ENOENT)?;
    let mut output = Bytes::new();
    match op {
        Op::CmpXattr { name, op, value } => {
            let have = stored.attrs.get(name).cloned().unwrap_or_default();
            let holds = match value {
                CmpValue::Bytes(given) => op.holds(&given[..], &have[..]),
                CmpValue::U64(given) => {
                    op.holds(given, &std::str::from_utf8(&have).unwrap().parse().unwrap_or(0))
                }
            };
            if !holds {
                return Err(Errno::ECANCELED);
            }
        }
        Op::SetXattr { name, value } => drop(stored.attrs.insert(name.clone(), value.clone())),
        Op::RmXattr { name } => drop(stored.attrs.remove(name)),
        Op::GetXattrs => {
            let pair = |(name, value): (&String, &Bytes)| (Bytes::from(name.clone()), value.clone());
            output = encoding::encode(&Pairs(stored.attrs.iter().map(pair).collect())).into();
        }
        Op::Stat => {
            output = encoding::encode(&StatReply { size: stored.data.len() as u64, mtime_ns: 7 }).into();
        }
        Op::Read { offset, len } => {
            let end = stored.data.len();
            let from = (*offset as usize).min(end);
            output = Bytes::copy_from_slice(&stored.data[from..(from + *len as usize).min(end)]);
        }
        Op::Write { offset, data } => {
            let (from, to) = (*offset as usize, *offset as usize + data.len());
            stored.data.resize(stored.data.len().max(to), 0);
            stored.data[from..to].copy_from_slice(data);
        }
        Op::Truncate { size } => stored.data.resize(*size as usize, 0),
        Op::AssertExists => {}
        Op::Remove => *now = None,
        other => unreachable!("the striper does not use {other:?}"),
    }
    Ok(OpResult::output(output))
}

impl Engine for Client {
    fn name(&self) -> &'static str {
        "test"
    }

    fn operate(&self, request: ObjectRequest) -> Pending<OpReply> {
        let (reply, pending) = Pending::channel();
        let mut world = self.cluster.0.lock();
        world.queue.push(Queued { client: self.id, request, reply });
        if !world.held {
            world.carry_out(0);
        }
        pending
    }

    fn spawn(&self, task: Task) {
        self.cluster.0.lock().tasks.push((self.id, task));
    }

    fn submit(&self, _: ObjectRequest, _: OnReply) {
        unreachable!()
    }
    fn list(&self, _: ObjectId, _: u64, _: Option<String>) -> Pending<ListPage> {
        let world = self.cluster.0.lock();
        let object = |name: &String| ObjectId::new(PoolId(1), "", "", name);
        let objects = world.objects.keys().map(object).collect();
        Pending::ready(Ok(ListPage { objects, next: Cursor::End }))
    }
    fn instance_id(&self) -> u64 {
        self.id as u64
    }
    fn pool_id(&self, _: &str) -> Option<PoolId> {
        Some(PoolId(1))
    }
    fn pool_name(&self, _: PoolId) -> Option<String> {
        Some("p".into())
    }
    fn pools(&self) -> Vec<(PoolId, String)> {
        vec![(PoolId(1), "p".into())]
    }
}

impl World {
    fn carry_out(&mut self, at: usize) {
        let Queued { client, request, reply } = self.queue.remove(at);
        let answer = execute(&mut self.objects, &request);
        self.executed += 1;
        if !self.dead.contains(&client) {
            reply.complete(Ok(answer));
        }
    }

    /// Requests that may be executed next: of each client, only the first one to an object.
    fn eligible(&self) -> Vec<usize> {
        let same = |a: &Queued, b: &Queued| a.client == b.client && a.request.object == b.request.object;
        let is_first = |at: &usize| !self.queue[..*at].iter().any(|before| same(before, &self.queue[*at]));
        (0..self.queue.len()).filter(is_first).collect()
    }
}

impl Cluster {
    fn striper(&self, id: usize) -> Striper {
        let engine = Arc::new(Client { cluster: self.clone(), id });
        let striper = Striper::new(IoCtx::new(engine, PoolId(1), "p"), self.0.lock().clock.clone());
        striper.set_layout(Layout::new(UNIT as u32, 2, 2 * UNIT as u32).unwrap());
        striper
    }

    /// Runs every task as far as it can get.
    fn run_tasks(&self) {
        loop {
            let tasks = std::mem::take(&mut self.0.lock().tasks);
            let before = (tasks.len(), self.0.lock().queue.len());
            let mut left = Vec::new();
            for (client, mut task) in tasks {
                let dead = self.0.lock().dead.contains(&client);
                if !dead && task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
                    left.push((client, task));
                }
            }
            let mut world = self.0.lock();
            world.tasks.splice(0..0, left);
            if (world.tasks.len(), world.queue.len()) == before {
                return;
            }
        }
    }

    /// Executes requests in the order that `choose` picks, until `pending` is ready.
    fn drive<T: Send + 'static>(
        &self,
        mut pending: Pending<T>,
        mut choose: impl FnMut(usize) -> usize,
    ) -> Result<T> {
        for _ in 0..100_000 {
            self.run_tasks();
            if let Poll::Ready(result) = Pin::new(&mut pending).poll(&mut Context::from_waker(Waker::noop()))
            {
                return result;
            }
            let mut world = self.0.lock();
            let eligible = world.eligible();
            if !eligible.is_empty() {
                let at = eligible[choose(eligible.len())];
                world.carry_out(at);
            }
        }
        panic!("an operation does not end");
    }

    fn wait<T: Send + 'static>(&self, pending: Pending<T>) -> Result<T> {
        self.drive(pending, |_| 0)
    }

    fn names(&self) -> Vec<String> {
        self.0.lock().objects.keys().cloned().collect()
    }
}

/// Reproducible pseudorandom numbers.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }

    fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }
}

fn pattern(seed: usize, len: usize) -> Bytes {
    (0..len).map(|at| (at.wrapping_mul(31).wrapping_add(seed.wrapping_mul(101)) % 251 + 1) as u8).collect()
}

#[test]
fn contents_agree_with_a_plain_array() {
    let cluster = Cluster::default();
    let mut model: Option<Vec<u8>> = None;
    let mut dice = Dice::new(1);
    let mut striper = cluster.striper(0);
    for step in 0..2000 {
        if dice.below(20) == 0 {
            // Another handle with another layout: existing objects keep theirs.
            striper = cluster.striper(step);
            striper.set_layout(Layout::new(UNIT as u32 * 2, 1, UNIT as u32 * 2).unwrap());
        }
        let (at, len) = (dice.below(9 * UNIT as usize), dice.below(5 * UNIT as usize));
        let data = pattern(step, len);
        match dice.below(12) {
            0..3 => {
                cluster.wait(striper.write("o", at as u64, data.clone())).unwrap();
                let model = model.get_or_insert_default();
                model.resize(model.len().max(at + len), 0);
                model[at..at + len].copy_from_slice(&data);
            }
            3..5 => {
                cluster.wait(striper.append("o", data.clone())).unwrap();
                model.get_or_insert_default().extend_from_slice(&data);
                if model.as_ref().unwrap().len() > 40 * UNIT as usize {
                    cluster.wait(striper.truncate("o", at as u64)).unwrap();
                    model.as_mut().unwrap().truncate(at);
                }
            }
            5 => {
                let result = cluster.wait(striper.truncate("o", at as u64));
                match &mut model {
                    Some(model) => {
                        result.unwrap();
                        model.resize(at, 0);
                    }
                    None => assert_eq!(result.unwrap_err().errno(), Errno::ENOENT),
                }
            }
            6 => {
                cluster.wait(striper.write_full("o", data.clone())).unwrap();
                model = Some(data.to_vec());
            }
            7 if dice.below(3) == 0 => {
                let result = cluster.wait(striper.remove("o"));
                match model.take() {
                    Some(_) => result.unwrap(),
                    None => assert_eq!(result.unwrap_err().errno(), Errno::ENOENT),
                }
                assert_eq!(cluster.names(), Vec::<String>::new(), "step {step}");
            }
            _ => {
                let read = cluster.wait(striper.read("o", at as u64, len as u64));
                match &model {
                    Some(model) => {
                        let from = at.min(model.len());
                        let wanted = &model[from..(at + len).min(model.len()).max(from)];
                        assert!(read.unwrap() == wanted, "step {step}: {at}~{len}");
                        let stat = cluster.wait(striper.stat("o")).unwrap();
                        assert_eq!(stat.size, model.len() as u64);
                    }
                    None => assert_eq!(read.unwrap_err().errno(), Errno::ENOENT),
                }
            }
        }
    }
}

#[test]
fn a_write_in_the_steady_state_is_one_round_trip_of_two_requests() {
    let cluster = Cluster::default();
    let striper = cluster.striper(0);
    for unit in 0..16 {
        cluster.wait(striper.write("o", unit * UNIT, pattern(1, UNIT as usize))).unwrap();
    }
    cluster.run_tasks();
    cluster.0.lock().held = true;
    let mut announced = 0;
    for unit in 16..48 {
        let before = cluster.0.lock().executed;
        let write = striper.write("o", unit * UNIT, pattern(2, UNIT as usize));
        // All requests that it needs are sent at once.
        assert_eq!(cluster.0.lock().queue.len(), 2, "requests at unit {unit}");
        for _ in 0..2 {
            cluster.0.lock().carry_out(0);
        }
        cluster.run_tasks();
        assert!(write.wait().is_ok());
        assert_eq!(cluster.0.lock().executed, before + 2);
        // Now and then more pieces are announced. No write waits for that.
        announced += cluster.0.lock().queue.len();
        while !cluster.0.lock().queue.is_empty() {
            cluster.0.lock().carry_out(0);
        }
        cluster.run_tasks();
    }
    assert!((1..=4).contains(&announced), "{announced} announcements");
    // A write inside the object only checks the epoch, and a write to the first piece carries its own guard.
    let inside = striper.write("o", UNIT, pattern(3, 10));
    assert_eq!(cluster.0.lock().queue.len(), 2);
    assert!(!cluster.0.lock().queue[1].request.ops.iter().any(|op| op.op.is_write()));
    cluster.wait(inside).unwrap();
    let first = striper.write("o", 0, pattern(3, 10));
    assert_eq!(cluster.0.lock().queue.len(), 1);
    cluster.wait(first).unwrap();
    // A read of a known object also is one round trip.
    let read = striper.read("o", 5 * UNIT, UNIT);
    assert_eq!(cluster.0.lock().queue.len(), 2);
    for _ in 0..2 {
        cluster.0.lock().carry_out(0);
    }
    cluster.run_tasks();
    assert_eq!(read.wait().unwrap(), pattern(1, UNIT as usize));
}

#[test]
fn a_large_write_goes_in_parts_where_nothing_else_does() {
    const MIB: usize = 1 << 20;
    let cluster = Cluster::default();
    let striper = cluster.striper(0);
    striper.set_layout(Layout::default());
    for n in 0..8 {
        cluster.wait(striper.write("o", n * 4 * MIB as u64, pattern(1, 4 * MIB))).unwrap();
    }
    cluster.run_tasks();
    cluster.0.lock().held = true;
    let lengths = |cluster: &Cluster| -> Vec<usize> {
        let length = |queued: &Queued| match queued.request.ops.last().map(|op| &op.op) {
            Some(Op::Write { data, .. }) => Some(data.len()),
            _ => None,
        };
        cluster.0.lock().queue.iter().filter_map(length).collect()
    };
    // Still one round trip: all parts and the size are sent at once.
    let alone = striper.write("o", 32 * MIB as u64, pattern(2, 4 * MIB));
    assert_eq!((lengths(&cluster), cluster.0.lock().queue.len()), (vec![MIB; 4], 5));
    let second = striper.write("o", 36 * MIB as u64, pattern(3, 3 * MIB + 5));
    assert_eq!(lengths(&cluster), [MIB, MIB, MIB, MIB, 3 * MIB + 5]);
    cluster.wait(alone).unwrap();
    cluster.wait(second).unwrap();
    let read = cluster.wait(striper.read("o", 32 * MIB as u64, 1 << 30)).unwrap();
    assert!(read == [pattern(2, 4 * MIB), pattern(3, 3 * MIB + 5)].concat());
}

#[test]
fn many_small_writes_in_flight_share_requests() {
    let cluster = Cluster::default();
    let striper = cluster.striper(0);
    cluster.wait(striper.write("o", 0, pattern(1, 60 * UNIT as usize))).unwrap();
    cluster.run_tasks();
    cluster.0.lock().held = true;
    let writes: Vec<_> = (0..40).map(|n| striper.write("o", 61 * UNIT + n * 100, pattern(2, 100))).collect();
    // Two for the size, two for the piece, at most one to announce more; then a few of each for all other writes.
    assert!((4..=5).contains(&cluster.0.lock().queue.len()));
    let before = cluster.0.lock().executed;
    for write in writes {
        cluster.wait(write).unwrap();
    }
    assert!(cluster.0.lock().executed <= before + 13);
    let data = cluster.wait(striper.read("o", 61 * UNIT, UNIT)).unwrap();
    assert_eq!(data, pattern(2, 100).repeat(40));
    // Overlapping writes take effect in order.
    let writes: Vec<_> =
        (0..9).map(|n| striper.write("o", 61 * UNIT + n % 3 * 50, vec![n as u8 + 1; 100])).collect();
    for write in writes {
        cluster.wait(write).unwrap();
    }
    let data = cluster.wait(striper.read("o", 61 * UNIT, 200)).unwrap();
    assert_eq!(data, [vec![7; 50], vec![8; 50], vec![9; 100]].concat());
}

#[test]
fn what_libradosstriper_wrote_is_read_grown_and_removed() {
    let cluster = Cluster::default();
    let piece = |data: &[u8], attrs: &[(&str, String)]| Stored {
        data: data.to_vec(),
        attrs: attrs.iter().map(|(name, value)| ((*name).to_owned(), value.clone().into())).collect(),
    };
    let unit = UNIT as usize;
    let size = 3 * unit + 5;
    let attrs = [
        ("striper.layout.stripe_unit", UNIT.to_string()),
        ("striper.layout.stripe_count", "2".to_owned()),
        ("striper.layout.object_size", UNIT.to_string()),
        ("striper.size", size.to_string()),
        ("lock.striper.lock", "left behind".to_owned()),
        ("user.own", "1".to_owned()),
    ];
    let whole = pattern(4, size);
    {
        let mut world = cluster.0.lock();
        world.objects.insert("v.0000000000000000".into(), piece(&whole[..unit], &attrs));
        for (n, part) in whole[unit..].chunks(unit).enumerate() {
            world.objects.insert(format!("v.{:016x}", n + 1), piece(part, &[]));
        }
        world.objects.insert("plain.0000000000000000".into(), piece(b"", &[]));
    }
    let striper = cluster.striper(0);
    assert_eq!(cluster.wait(striper.read("v", 0, 1 << 30)).unwrap(), whole);
    let shown = cluster.wait(striper.get_xattrs("v")).unwrap();
    assert_eq!(shown.keys().collect::<Vec<_>>(), ["user.own"]);
    assert_eq!(cluster.wait(striper.get_xattr("v", SIZE)).unwrap(), size.to_string());
    cluster.wait(striper.append("v", pattern(5, unit))).unwrap();
    cluster.wait(striper.write("v", 9 * UNIT, pattern(6, 7))).unwrap();
    assert_eq!(cluster.wait(striper.read("v", size as u64, UNIT)).unwrap(), pattern(5, unit));
    // Attributes that other clients understand keep their encoding.
    let shown = cluster.0.lock().objects["v.0000000000000000"].attrs[SIZE].clone();
    assert_eq!(shown, (9 * UNIT + 7).to_string());
    cluster.wait(striper.truncate("v", UNIT + 1)).unwrap();
    assert_eq!(cluster.wait(striper.read("v", 0, 1 << 30)).unwrap(), whole[..unit + 1]);
    assert_eq!(block_on(striper.list().next_object()).unwrap().unwrap().0, "plain");
    for errno in [
        cluster.wait(striper.stat("plain")).unwrap_err().errno(),
        cluster.wait(striper.remove("plain")).unwrap_err().errno(),
        cluster.wait(striper.read("none", 0, 1)).unwrap_err().errno(),
        cluster.wait(striper.set_xattr("none", "a", "b")).unwrap_err().errno(),
    ] {
        assert_eq!(errno, Errno::ENOENT);
    }
    assert_eq!(cluster.wait(striper.set_xattr("v", EPOCH, "9")).unwrap_err().errno(), Errno::EINVAL);
    cluster.wait(striper.set_xattr("v", "a", "b")).unwrap();
    assert_eq!(cluster.wait(striper.get_xattr("v", "a")).unwrap(), "b");
    cluster.wait(striper.rm_xattr("v", "a")).unwrap();
    assert_eq!(cluster.wait(striper.get_xattr("v", "a")).unwrap_err().errno(), Errno::ENODATA);
    cluster.wait(striper.remove("v")).unwrap();
    assert_eq!(cluster.names(), ["plain.0000000000000000"]);
}

#[test]
fn removals_and_truncations_do_not_run_into_writes_of_the_same_handle() {
    let cluster = Cluster::default();
    let striper = cluster.striper(0);
    cluster.wait(striper.write("o", 0, pattern(1, 10))).unwrap();
    cluster.0.lock().held = true;
    let write = striper.write("o", UNIT, pattern(1, 10));
    let busy = |result: Result<()>| assert_eq!(result.unwrap_err().errno(), Errno::EBUSY);
    busy(striper.remove("o").wait());
    busy(striper.truncate("o", 0).wait());
    cluster.wait(write).unwrap();
    let removal = striper.remove("o");
    busy(striper.write("o", 0, pattern(1, 10)).wait());
    busy(striper.append("o", pattern(1, 10)).wait());
    busy(striper.remove("o").wait());
    cluster.wait(removal).unwrap();
    assert!(cluster.names().is_empty());
}

#[test]
fn layouts_that_do_not_fit_fail_when_an_object_is_made() {
    let cluster = Cluster::default();
    let striper = cluster.striper(0);
    let mut layout = Layout::default();
    layout.set_stripe_unit(8 << 20).unwrap();
    striper.set_layout(layout);
    assert_eq!(cluster.wait(striper.write("o", 0, "x")).unwrap_err().errno(), Errno::EINVAL);
    assert_eq!(cluster.wait(striper.write("o", u64::MAX, "x")).unwrap_err().errno(), Errno::EFBIG);
    assert!(cluster.names().is_empty());
}
