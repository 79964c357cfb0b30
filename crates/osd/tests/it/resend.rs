//! Resends of every writing op, compared byte by byte: executed once, answered alike (rule R6). A client of the test sends what the real
//! client would after its connection was lost.

use super::cluster::TestCluster;
use bytes::Bytes;
use nacre_common::auth::{AuthTicketReply, AuthTicketRequest, Credential, Ticket, find_key};
use nacre_runtime::msgr::{Conn, ConnectTarget, Dispatcher, Frame, Messenger, Policy, ResetReason};
use nacre_types::ceph::Encoder;
use nacre_types::errno::Errno;
use nacre_types::ids::{ClientId, EntityName, OsdId, PoolId, ReqId};
use nacre_types::msg::{Message, OsdReply, OsdRequest};
use nacre_types::object::{ObjectId, SNAP_HEAD};
use nacre_types::op::{Op, OsdOp, op_flag, request_flag};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// A dispatcher that forwards messages to channels.
struct Post {
    tickets: Sender<AuthTicketReply>,
    replies: Sender<OsdReply>,
}

impl Dispatcher for Post {
    fn on_message(&self, _conn: &Conn, frame: Frame) {
        match frame.kind() {
            AuthTicketReply::KIND => self.tickets.send(frame.decode().unwrap()).unwrap(),
            OsdReply::KIND => self.replies.send(frame.decode().unwrap()).unwrap(),
            _ => {}
        }
    }

    fn on_reset(&self, _conn: &Conn, _reset: ResetReason) {}
}

struct RawClient<'a> {
    cluster: &'a TestCluster,
    runtime: tokio::runtime::Runtime,
    messenger: Messenger,
    replies: Receiver<OsdReply>,
    ticket: Ticket,
    client: ClientId,
    pool: PoolId,
    tid: u64,
}

impl RawClient<'_> {
    fn new(cluster: &TestCluster, pool: PoolId) -> RawClient<'_> {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let config = cluster.config(EntityName::client("admin"));
        let (ticket_sender, tickets) = channel();
        let (reply_sender, replies) = channel();
        let post = Post { tickets: ticket_sender, replies: reply_sender };
        let lane = Messenger::builder(&config).lane(runtime.handle().clone(), Arc::new(post));
        let messenger = lane.build().unwrap();
        let mon = messenger.connect(ConnectTarget {
            addr: cluster.authority.addr,
            entity: None,
            policy: Policy::Lossy,
            lane: 0,
            credentials: Arc::new(find_key(&config).unwrap()),
        });
        mon.unwrap().send(&AuthTicketRequest { tid: 1, renew: None }).unwrap();
        let granted = tickets.recv_timeout(super::cluster::PATIENCE).unwrap();
        let grant = granted.ticket.unwrap();
        let ticket = Ticket {
            entity: EntityName::client("admin"),
            blob: grant.blob,
            session_key: grant.session_key,
            expires_unix: grant.expires_unix,
        };
        RawClient { cluster, runtime, messenger, replies, ticket, client: granted.client, pool, tid: 0 }
    }

    fn request(&mut self, object: &str, ops: Vec<OsdOp>, flags: u32) -> OsdRequest {
        self.tid += 1;
        let map = self.cluster.map();
        let object = ObjectId::new(self.pool, "", "", object);
        let pg = map.pools[&self.pool].pg_of(&object);
        OsdRequest {
            reqid: ReqId { client: self.client, tid: self.tid },
            oldest_tid: self.tid,
            attempt: 0,
            epoch: map.epoch,
            pg,
            interval: map.interval(pg),
            object,
            mtime_ns: 1,
            flags,
            snap: SNAP_HEAD,
            snap_context: None,
            ops,
            tier: None,
        }
    }

    /// Sends on a new connection.
    fn send(&self, request: &OsdRequest) -> OsdReply {
        let map = self.cluster.map();
        let ticket = self.ticket.clone();
        let conn = self.messenger.connect(ConnectTarget {
            addr: map.osds[&OsdId(0)].addr.unwrap(),
            entity: Some(EntityName::osd(OsdId(0))),
            policy: Policy::Lossy,
            lane: 0,
            credentials: Arc::new(move || Ok(Credential::Ticket(ticket.clone()))),
        });
        let conn = conn.unwrap();
        conn.send(request).unwrap();
        let reply = self.replies.recv_timeout(super::cluster::PATIENCE).unwrap();
        conn.close();
        reply
    }

    fn state(&mut self, object: &str) -> OsdReply {
        let ops = vec![
            Op::Read { offset: 0, len: 0 },
            Op::GetXattrs,
            Op::OmapGetVals { start_after: Bytes::new(), filter_prefix: Bytes::new(), max: 100 },
            Op::ListWatchers,
        ];
        let request = self.request(object, ops.into_iter().map(OsdOp::from).collect(), 0);
        // An `oldest_tid` of 1 keeps the dup records of all earlier requests.
        let mut reply = self.send(&OsdRequest { oldest_tid: 1, ..request });
        (reply.reqid, reply.epoch) = Default::default();
        reply
    }
}

impl Drop for RawClient<'_> {
    fn drop(&mut self) {
        self.runtime.block_on(self.messenger.shutdown(std::time::Duration::from_secs(1)));
    }
}

fn call(class: &str, method: &str, input: Bytes) -> Op {
    Op::Call { class: class.into(), method: method.into(), input }
}

#[test]
fn resent_writes_are_executed_once_and_answered_alike() {
    let cluster = TestCluster::start(1, &[]);
    let pool = cluster.create_pool("data", 1, 1, 4);
    let mut client = RawClient::new(&cluster, pool);
    let text = |text: &'static str| Bytes::from_static(text.as_bytes());
    let mut number = Encoder::default();
    number.bytes(b"count");
    number.bytes(b"3");
    let number = number.finish();
    let source = ObjectId::new(pool, "", "", "source");
    let made = client.request("source", vec![Op::WriteFull { data: text("source").into() }.into()], 0);
    assert_eq!(client.send(&made).result, 0);
    let entries = vec![(text("k1"), text("v")), (text("k2"), text("v")), (text("k3"), text("v"))];
    let writes = [
        Op::Create { exclusive: true },
        Op::Write { offset: 3, data: text("data").into() },
        Op::WriteFull { data: text("0123456789").into() },
        Op::Append { data: text("+").into() },
        Op::WriteSame { offset: 0, len: 4, data: text("ab") },
        Op::Truncate { size: 8 },
        Op::Zero { offset: 1, len: 2 },
        Op::SetXattr { name: "a".into(), value: text("1") },
        Op::RmXattr { name: "a".into() },
        Op::OmapSet { entries },
        Op::OmapSetHeader { header: text("h") },
        Op::OmapRmKeys { keys: vec![text("k1")] },
        Op::OmapRmRange { first: text("k2"), last: text("k3") },
        Op::SetAllocHint { expected_object_size: 1, expected_write_size: 2, flags: 3 },
        Op::Watch { cookie: 7, timeout_s: 600 },
        Op::WatchReconnect { cookie: 7 },
        Op::Unwatch { cookie: 7 },
        call("numops", "add", number.clone()),
        call("numops", "mul", number),
        call(
            "version",
            "inc",
            nacre_types::ceph::CephEncoding::to_bytes(&nacre_types::cls::version::ConditionsOp::default()),
        ),
        call("hello", "turn_it_to_11", Bytes::new()),
        call("hello", "write_return_data", Bytes::new()),
        Op::CopyFrom { source, version: 0, flags: 0, truncate: (0, 0) },
        Op::OmapClear,
        Op::Remove,
    ];
    for op in writes {
        let name = format!("{op:?}");
        // The output of the op before it is part of the recorded reply.
        let ops = vec![OsdOp { op: Op::Stat, flags: op_flag::FAILOK }, op.into()];
        let request = client.request("o", ops, request_flag::RETURNVEC);
        let first = client.send(&request);
        assert_eq!(first.result.min(0), 0, "{name}: {first:?}");
        let after = client.state("o");
        let resent = OsdRequest { attempt: 1, ..request };
        let second = client.send(&resent);
        assert_eq!(OsdReply { attempt: 0, epoch: first.epoch, ..second }, first, "{name}");
        assert_eq!(client.state("o"), after, "{name} was executed twice");
    }
}

#[test]
fn resent_failures_fail_alike_even_where_they_would_succeed_by_now() {
    let cluster = TestCluster::start(1, &[]);
    let pool = cluster.create_pool("data", 1, 1, 4);
    let mut client = RawClient::new(&cluster, pool);
    let made = client.request("o", vec![Op::WriteFull { data: Bytes::from_static(b"abc").into() }.into()], 0);
    assert_eq!(client.send(&made).result, 0);
    let data = Bytes::from_static(b"abX");
    let failing = [
        (vec![Op::Create { exclusive: true }], -Errno::EEXIST.0),
        (vec![Op::CmpExt { offset: 0, data }, Op::Truncate { size: 0 }], -4095 - 2),
        (vec![call("hello", "write_return_data", Bytes::from_static(b"input"))], -Errno::EINVAL.0),
        (vec![Op::WatchReconnect { cookie: 1 }], -Errno::ENOTCONN.0),
        (vec![Op::AssertVersion { version: 99 }, Op::Truncate { size: 0 }], -Errno::EOVERFLOW.0),
    ];
    let requests: Vec<_> = failing
        .into_iter()
        .map(|(ops, result)| {
            let request = client.request("o", ops.into_iter().map(OsdOp::from).collect(), 0);
            let reply = client.send(&request);
            assert_eq!(reply.result, result, "{:?}", request.ops);
            (OsdRequest { attempt: 1, ..request }, reply)
        })
        .collect();
    let gone = client.request("o", vec![Op::Remove.into()], 0);
    assert_eq!(client.send(&OsdRequest { oldest_tid: 1, ..gone }).result, 0);
    for (request, first) in requests {
        let again = client.send(&OsdRequest { oldest_tid: 1, ..request });
        assert_eq!((again.result, again.ops), (first.result, first.ops));
    }
}

#[test]
fn resent_requests_that_changed_nothing_change_nothing_later() {
    let cluster = TestCluster::start(1, &[]);
    let pool = cluster.create_pool("data", 1, 1, 4);
    let mut client = RawClient::new(&cluster, pool);
    let text = Bytes::from_static(b"0123456789");
    let failok = |op: Op| vec![OsdOp { op, flags: op_flag::FAILOK }];
    let write = |client: &mut RawClient<'_>, object: &str, op: Op| {
        let request = client.request(object, vec![op.into()], 0);
        // An `oldest_tid` of 1 keeps the dup records of all earlier requests.
        assert_eq!(client.send(&OsdRequest { oldest_tid: 1, ..request }).result, 0);
    };
    let full = || Op::WriteFull { data: text.clone().into() };
    // The initial object, the ops that succeed without changing it, and the later change of the object.
    let cases = [
        (Some(full()), failok(Op::Create { exclusive: true }), Op::Remove),
        (None, failok(Op::Remove), full()),
        (None, vec![Op::Truncate { size: 3 }.into()], full()),
        (None, vec![Op::Zero { offset: 0, len: 5 }.into()], full()),
        (Some(full()), vec![Op::Unwatch { cookie: 9 }.into()], Op::Watch { cookie: 9, timeout_s: 600 }),
        (None, vec![Op::Create { exclusive: true }.into(), Op::Remove.into()], full()),
        // The outputs are too long to be recorded.
        (
            Some(Op::WriteFull { data: Bytes::from(vec![7; 100_000]).into() }),
            [vec![Op::Read { offset: 0, len: 0 }.into()], failok(Op::Create { exclusive: true })].concat(),
            Op::Remove,
        ),
    ];
    for (number, (before, ops, after)) in cases.into_iter().enumerate() {
        let object = format!("o{number}");
        if let Some(before) = before {
            write(&mut client, &object, before);
        }
        let request = OsdRequest { oldest_tid: 1, ..client.request(&object, ops, 0) };
        let first = client.send(&request);
        assert_eq!(first.result, 0, "{:?}", request.ops);
        write(&mut client, &object, after);
        let state = client.state(&object);
        let second = client.send(&OsdRequest { attempt: 1, ..request.clone() });
        if first.ops.iter().any(|op| op.output.len() > 1000) {
            assert_eq!(second.result, -Errno::EOVERFLOW.0, "{:?}", request.ops);
        } else {
            assert_eq!((second.result, &second.ops), (first.result, &first.ops), "{:?}", request.ops);
        }
        assert_eq!(client.state(&object), state, "{:?} was executed later", request.ops);
    }
}
