//! The state that the session's lock guards, and the delivery of completions outside the lock.

use super::linger::Watcher;
use crate::throttle::ThrottleShare;
use nacre_common::auth::{Credential, Ticket};
use nacre_engine::engine::{CommandReply, LogSubscription, OnReply};
use nacre_engine::{Completer, Error, OpReply, Result};
use nacre_objecter::{Answer, Objecter, SendOutcome, Sink, Watches};
use nacre_runtime::msgr::{Conn, ConnectTarget, Messenger, Policy};
use nacre_types::errno::Errno;
use nacre_types::ids::EntityName;
use nacre_types::msg::{MonCommand, OsdRequest};
use nacre_types::{ClientId, OsdId};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// The state of a request for its completion.
pub(super) struct RequestToken {
    /// Released before the caller receives the outcome, so that it can start the next request.
    pub(super) share: ThrottleShare,
    pub(super) done: ReplyTarget,
}

/// Receives the outcome of a request.
pub(super) enum ReplyTarget {
    Channel(Completer<OpReply>),
    Callback(OnReply),
    Answer(Box<dyn FnOnce(Result<Answer>) + Send>),
}

impl RequestToken {
    fn deliver(self, result: Result<Answer>) {
        drop(self.share);
        match self.done {
            ReplyTarget::Channel(completer) => completer.complete(result.map(op_reply)),
            ReplyTarget::Callback(callback) => callback(result.map(op_reply)),
            ReplyTarget::Answer(callback) => callback(result),
        }
    }
}

fn op_reply(answer: Answer) -> OpReply {
    let reply = answer.reply;
    OpReply { result: reply.result, version: reply.user_version, ops: reply.ops }
}

/// Completions gathered under the lock. Most steps complete one request at most.
#[derive(Default)]
pub(super) struct CompletionBatch {
    first: Option<(RequestToken, Result<Answer>)>,
    rest: Vec<(RequestToken, Result<Answer>)>,
    /// Commands whose connection was lost.
    lost_commands: Vec<(OsdId, PendingCommand)>,
    lost_watches: Vec<(u64, Watcher, Error)>,
}

impl CompletionBatch {
    fn push(&mut self, token: RequestToken, result: Result<Answer>) {
        match self.first {
            None => self.first = Some((token, result)),
            Some(_) => self.rest.push((token, result)),
        }
    }

    pub(super) fn lose_watch(&mut self, cookie: u64, watcher: Watcher, error: Error) {
        self.lost_watches.push((cookie, watcher, error));
    }

    /// Delivers the outcomes to the callers. Must not be called under the lock.
    pub(super) fn deliver(self) {
        for (token, result) in self.first.into_iter().chain(self.rest) {
            token.deliver(result);
        }
        for (osd, command) in self.lost_commands {
            let status = format!("the connection to {osd} was lost");
            command.done.complete(Err(Error::Command { errno: Errno::ENXIO, status }));
        }
        for (cookie, watcher, error) in self.lost_watches {
            watcher.lost(cookie, error);
        }
    }
}

/// A command that waits for its answer.
pub(super) struct PendingCommand {
    pub(super) message: MonCommand,
    /// Whether it is for the daemon itself instead of the cluster.
    pub(super) to_daemon: bool,
    pub(super) done: Completer<CommandReply>,
    /// When the command fails, if it has a time limit.
    pub(super) deadline_ms: Option<u64>,
}

/// The state that more than one thread changes.
pub(super) struct State {
    pub(super) objecter: Objecter<RequestToken>,
    pub(super) watches: Watches<Watcher>,
    messenger: Option<Messenger>,
    osds: HashMap<OsdId, Conn>,
    /// Shared with the connections' handshakes, which use the newest one.
    pub(super) ticket: Arc<Mutex<Option<Ticket>>>,
    next_command: u64,
    /// Sent to the monitors, and sent again on each new session.
    pub(super) mon_commands: BTreeMap<u64, PendingCommand>,
    /// Sent once on a connection to an OSD.
    pub(super) osd_commands: HashMap<u64, (OsdId, PendingCommand)>,
    pub(super) mon: Option<Conn>,
    /// The local address from which a monitor was last reached.
    pub(super) ip: Option<IpAddr>,
    /// The follower of the cluster log, and the number of the last line received.
    pub(super) log: Option<(LogSubscription, Option<u64>)>,
}

/// The objecter's environment: connections to send on, and the batch of completions.
pub(super) struct ObjecterSink<'a> {
    messenger: Option<&'a Messenger>,
    osds: &'a mut HashMap<OsdId, Conn>,
    osd_commands: &'a mut HashMap<u64, (OsdId, PendingCommand)>,
    ticket: &'a Arc<Mutex<Option<Ticket>>>,
    batch: &'a mut CompletionBatch,
}

impl State {
    pub(super) fn new(client: ClientId) -> State {
        State {
            objecter: Objecter::new(client),
            watches: Watches::default(),
            messenger: None,
            osds: HashMap::new(),
            ticket: Arc::default(),
            next_command: 1,
            mon_commands: BTreeMap::new(),
            osd_commands: HashMap::new(),
            mon: None,
            ip: None,
            log: None,
        }
    }

    pub(super) fn set_messenger(&mut self, messenger: Messenger) {
        self.messenger = Some(messenger);
    }

    pub(super) fn split<'a>(
        &'a mut self,
        batch: &'a mut CompletionBatch,
    ) -> (&'a mut Objecter<RequestToken>, ObjecterSink<'a>) {
        let outside = ObjecterSink {
            messenger: self.messenger.as_ref(),
            osds: &mut self.osds,
            osd_commands: &mut self.osd_commands,
            ticket: &self.ticket,
            batch,
        };
        (&mut self.objecter, outside)
    }

    /// Returns the connection to an OSD that is up, opened if there is none. The map closes it like those of requests.
    pub(super) fn osd_conn(&mut self, osd: OsdId) -> Result<Option<Conn>> {
        let Some(addr) = self.objecter.open_session(osd) else { return Ok(None) };
        connection(self.messenger.as_ref(), &mut self.osds, &self.ticket, osd, addr).map(Some)
    }

    /// Returns the OSD at the other end of a connection in use.
    pub(super) fn osd_at(&self, conn: &Conn) -> Option<OsdId> {
        self.osds.iter().find(|(_, held)| *held == conn).map(|(osd, _)| *osd)
    }

    /// Handles the end of a connection. If it was the one in use to an OSD, the OSD's requests wait to be resent and its
    /// commands fail; returns the OSD. This is one step: a request that another thread starts in between would open the
    /// next connection and overtake earlier requests.
    pub(super) fn on_reset(
        &mut self,
        conn: &Conn,
        now_ms: u64,
        batch: &mut CompletionBatch,
    ) -> Option<OsdId> {
        let osd = self.osd_at(conn)?;
        self.osds.remove(&osd);
        self.objecter.on_reset(osd, now_ms);
        lose_commands(&mut self.osd_commands, osd, batch);
        Some(osd)
    }

    pub(super) fn next_command(&mut self) -> u64 {
        self.next_command += 1;
        self.next_command
    }

    pub(super) fn take_commands(&mut self) -> (Vec<PendingCommand>, Vec<PendingCommand>) {
        let mon = std::mem::take(&mut self.mon_commands).into_values().collect();
        let osds = std::mem::take(&mut self.osd_commands).into_values().map(|(_, command)| command).collect();
        (mon, osds)
    }
}

/// Removes the commands whose answers were lost with a connection to an OSD.
fn lose_commands(
    commands: &mut HashMap<u64, (OsdId, PendingCommand)>,
    osd: OsdId,
    batch: &mut CompletionBatch,
) {
    batch.lost_commands.extend(commands.extract_if(|_, (to, _)| *to == osd).map(|(_, lost)| lost));
}

fn connection(
    messenger: Option<&Messenger>,
    osds: &mut HashMap<OsdId, Conn>,
    ticket: &Arc<Mutex<Option<Ticket>>>,
    osd: OsdId,
    addr: SocketAddr,
) -> Result<Conn> {
    if let Some(conn) = osds.get(&osd) {
        return Ok(conn.clone());
    }
    let ticket = ticket.clone();
    let target = ConnectTarget {
        addr,
        entity: Some(EntityName::osd(osd)),
        policy: Policy::Lossy,
        lane: 0,
        credentials: Arc::new(move || {
            let ticket = ticket.lock().clone();
            let missing = || nacre_common::Error::Expired("there is no ticket yet".to_owned());
            ticket.map(Credential::Ticket).ok_or_else(missing)
        }),
    };
    let conn = messenger.ok_or(Error::ShutDown)?.connect(target).map_err(|_| Error::ShutDown)?;
    osds.insert(osd, conn.clone());
    Ok(conn)
}

impl Sink<RequestToken> for ObjecterSink<'_> {
    fn send(&mut self, osd: OsdId, addr: SocketAddr, request: &OsdRequest) -> SendOutcome {
        let conn = match connection(self.messenger, self.osds, self.ticket, osd, addr) {
            Ok(conn) => conn,
            Err(error) => return SendOutcome::Refused(error),
        };
        match conn.send(request) {
            // If the connection is closed, either its reset is reported or the session has ended. Both complete the request.
            Ok(()) | Err(nacre_common::Error::Closed) => SendOutcome::Queued,
            Err(nacre_common::Error::Full) => SendOutcome::Full,
            Err(error) => {
                SendOutcome::Refused(Error::Invalid { errno: Errno::E2BIG, detail: error.to_string() })
            }
        }
    }

    fn close(&mut self, osd: OsdId) {
        if let Some(conn) = self.osds.remove(&osd) {
            conn.abort();
        }
        // A connection closed by this side reports no reset.
        lose_commands(self.osd_commands, osd, self.batch);
    }

    fn complete(&mut self, token: RequestToken, result: Result<Answer>) {
        self.batch.push(token, result);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::NetworkThread;
    use bytes::Bytes;
    use nacre_common::config::ConfigBuilder;
    use nacre_crush::CrushMap;
    use nacre_engine::Pending;
    use nacre_objecter::Submission;
    use nacre_runtime::msgr::{Dispatcher, Frame, ResetReason};
    use nacre_types::object::SNAP_HEAD;
    use nacre_types::op::{Op, OsdOp};
    use nacre_types::osdmap::{Member, OsdInfo, OsdMap, PgMembership};
    use nacre_types::pool::Pool;
    use nacre_types::{Epoch, Incarnation, Interval, ObjectId, PoolId};
    use uuid::Uuid;

    const OSD: OsdId = OsdId(0);

    struct Deaf;

    impl Dispatcher for Deaf {
        fn on_message(&self, _: &Conn, _: Frame) {}
        fn on_reset(&self, _: &Conn, _: ResetReason) {}
    }

    struct World {
        state: State,
        map: OsdMap,
        batch: CompletionBatch,
        _network: Arc<NetworkThread>,
    }

    /// Three OSDs; the first is the primary of a pool's one PG.
    fn map() -> OsdMap {
        let incarnation = |osd: u32| Incarnation(Uuid::from_u128(100 + u128::from(osd)));
        let mut map = OsdMap::new(Uuid::nil(), 0, CrushMap::default());
        for osd in 0..3 {
            let info = OsdInfo {
                up: true,
                addr: Some(SocketAddr::from(([127, 0, 0, 1], 40_000 + osd as u16))),
                incarnation: Some(incarnation(osd)),
                boot_nonce: 1,
                ..OsdInfo::never_up()
            };
            map.osds.insert(OsdId(osd), info);
        }
        let in_sync = (0..3).map(|osd| Member { osd: OsdId(osd), incarnation: incarnation(osd) }).collect();
        let membership = PgMembership { interval: Interval(1), primary: OSD, in_sync };
        map.pool_max = PoolId(1);
        map.pools.insert(PoolId(1), Arc::new(Pool::replicated("p", 3, 2, 0, 1, Epoch(1))));
        map.pgs.insert(PoolId(1), Arc::new(vec![Some(membership)]));
        map
    }

    impl World {
        /// A session with a map of OSDs that do not answer.
        fn new() -> World {
            let network = NetworkThread::start().unwrap();
            let config = ConfigBuilder::new(EntityName::client("admin")).build().unwrap();
            let messenger =
                Messenger::builder(&config).lane(network.handle().clone(), Arc::new(Deaf)).build().unwrap();
            let mut state = State::new(ClientId(7));
            state.set_messenger(messenger);
            let map = map();
            let mut world = World { state, map, batch: CompletionBatch::default(), _network: network };
            world.publish(|_| {});
            world
        }

        fn publish(&mut self, change: impl FnOnce(&mut OsdMap)) {
            self.map.epoch = self.map.epoch.next();
            change(&mut self.map);
            let (objecter, mut outside) = self.state.split(&mut self.batch);
            objecter.on_map(Arc::new(self.map.clone()), 0, &mut outside);
        }

        fn write(&mut self) {
            let submission = Submission {
                object: ObjectId::new(PoolId(1), "", "", "name"),
                ops: vec![OsdOp::from(Op::Truncate { size: 1 })],
                flags: 0,
                snap: SNAP_HEAD,
                snap_context: None,
                mtime_ns: 0,
                deadline_ms: None,
                tier: None,
            };
            let token =
                RequestToken { share: ThrottleShare::default(), done: ReplyTarget::Answer(Box::new(|_| {})) };
            let (objecter, mut outside) = self.state.split(&mut self.batch);
            objecter.submit(submission, token, 0, &mut outside);
        }

        fn command(&mut self, osd: OsdId) -> Pending<CommandReply> {
            assert!(self.state.osd_conn(osd).unwrap().is_some());
            let (done, pending) = Pending::channel();
            let tid = self.state.next_command();
            let message = MonCommand { tid, cmd: String::new(), input: Bytes::new() };
            let command = PendingCommand { message, to_daemon: true, done, deadline_ms: None };
            self.state.osd_commands.insert(tid, (osd, command));
            pending
        }

        fn deliver(&mut self) {
            std::mem::take(&mut self.batch).deliver();
        }
    }

    #[test]
    fn a_lost_connection_holds_later_requests_back_at_once() {
        let mut world = World::new();
        world.write();
        let (lost, other) = (world.command(OSD), world.command(OsdId(1)));
        let conn = world.state.osds[&OSD].clone();
        assert_eq!(world.state.on_reset(&conn, 1, &mut world.batch), Some(OSD));
        world.write();
        assert!(!world.state.osds.contains_key(&OSD), "the second write would overtake the first");
        world.deliver();
        assert_eq!(lost.wait().unwrap_err().errno(), Errno::ENXIO);
        // The reset of a connection that was replaced has no effect.
        assert_eq!(world.state.on_reset(&conn, 1, &mut world.batch), None);
        assert_eq!(world.state.osd_commands.len(), 1);
        drop(other);
    }

    #[test]
    fn commands_fail_with_a_connection_that_the_map_closes() {
        let mut world = World::new();
        let (lost, other) = (world.command(OSD), world.command(OsdId(1)));
        world.publish(|map| map.osds.get_mut(&OSD).unwrap().boot_nonce = 2);
        world.deliver();
        assert_eq!(lost.wait().unwrap_err().errno(), Errno::ENXIO);
        assert_eq!(world.state.osd_commands.len(), 1);
        drop(other);
    }

    #[test]
    fn a_command_goes_to_the_address_that_an_osd_has_now() {
        let mut world = World::new();
        let before = world.state.osd_conn(OSD).unwrap().unwrap();
        let addr = SocketAddr::from(([127, 0, 0, 1], 40_009));
        world.publish(|map| map.osds.get_mut(&OSD).unwrap().addr = Some(addr));
        let now = world.state.osd_conn(OSD).unwrap().unwrap();
        assert!(now != before && now.peer_addr() == addr);
        world.publish(|map| map.osds.get_mut(&OSD).unwrap().up = false);
        assert!(world.state.osd_conn(OSD).unwrap().is_none());
    }
}
