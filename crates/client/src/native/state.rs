//! What the session's lock guards, and how completions leave it.

use super::linger::Lingers;
use crate::objecter::{Answer, Objecter, Sent, Sink};
use crate::throttle::Share;
use nacre_common::auth::{Credential, Ticket};
use nacre_engine::engine::{CommandReply, LogFollow, OnReply};
use nacre_engine::{Completer, Error, OpReply, Result};
use nacre_runtime::msgr::{Conn, Messenger, Policy, Target};
use nacre_types::errno::Errno;
use nacre_types::ids::EntityName;
use nacre_types::msg::{MonCommand, OsdRequest};
use nacre_types::{ClientId, OsdId};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// What a request's completion needs.
pub(super) struct Token {
    /// Given back before the caller hears of the outcome, so that it may start the next request.
    pub(super) share: Share,
    pub(super) done: Done,
}

/// Who hears of an outcome.
pub(super) enum Done {
    Channel(Completer<OpReply>),
    Callback(OnReply),
    Answer(Box<dyn FnOnce(Result<Answer>) + Send>),
}

impl Token {
    fn deliver(self, result: Result<Answer>) {
        drop(self.share);
        match self.done {
            Done::Channel(completer) => completer.complete(result.map(op_reply)),
            Done::Callback(callback) => callback(result.map(op_reply)),
            Done::Answer(callback) => callback(result),
        }
    }
}

fn op_reply(answer: Answer) -> OpReply {
    let reply = answer.reply;
    OpReply { result: reply.result, version: reply.user_version, ops: reply.ops }
}

/// Completions gathered under the lock. Most steps complete one request at most.
#[derive(Default)]
pub(super) struct Batch {
    first: Option<(Token, Result<Answer>)>,
    rest: Vec<(Token, Result<Answer>)>,
}

impl Batch {
    fn push(&mut self, token: Token, result: Result<Answer>) {
        match self.first {
            None => self.first = Some((token, result)),
            Some(_) => self.rest.push((token, result)),
        }
    }

    /// Tells the callers; never called under the lock.
    pub(super) fn deliver(self) {
        for (token, result) in self.first.into_iter().chain(self.rest) {
            token.deliver(result);
        }
    }
}

/// A command that waits for its answer.
pub(super) struct Command {
    pub(super) message: MonCommand,
    /// Whether it is for the daemon itself, not for the cluster.
    pub(super) to_daemon: bool,
    pub(super) done: Completer<CommandReply>,
    /// When to give up, where there is such a time.
    pub(super) deadline_ms: Option<u64>,
}

/// Everything that more than one thread changes.
pub(super) struct State {
    pub(super) objecter: Objecter<Token>,
    pub(super) lingers: Lingers,
    messenger: Option<Messenger>,
    osds: HashMap<OsdId, Conn>,
    /// Shared with the connections' handshakes, which take the newest one.
    pub(super) ticket: Arc<Mutex<Option<Ticket>>>,
    next_command: u64,
    /// Sent to the monitors, and again on each new session with one.
    pub(super) mon_commands: BTreeMap<u64, Command>,
    /// Sent once on a connection to an OSD.
    pub(super) osd_commands: HashMap<u64, (OsdId, Command)>,
    pub(super) mon: Option<Conn>,
    /// The address that we last reached a monitor from.
    pub(super) ip: Option<IpAddr>,
    /// Who wants lines of the cluster log, and the last one seen.
    pub(super) log: Option<(LogFollow, Option<u64>)>,
}

/// The outside of the objecter: connections to send on, and the batch of completions.
pub(super) struct Outside<'a> {
    messenger: Option<&'a Messenger>,
    osds: &'a mut HashMap<OsdId, Conn>,
    ticket: &'a Arc<Mutex<Option<Ticket>>>,
    batch: &'a mut Batch,
}

impl State {
    pub(super) fn new(client: ClientId) -> State {
        State {
            objecter: Objecter::new(client),
            lingers: Lingers::default(),
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

    pub(super) fn attach(&mut self, messenger: Messenger) {
        self.messenger = Some(messenger);
    }

    pub(super) fn split<'a>(&'a mut self, batch: &'a mut Batch) -> (&'a mut Objecter<Token>, Outside<'a>) {
        let outside =
            Outside { messenger: self.messenger.as_ref(), osds: &mut self.osds, ticket: &self.ticket, batch };
        (&mut self.objecter, outside)
    }

    /// The connection to an OSD, opened where there is none.
    pub(super) fn osd_conn(&mut self, osd: OsdId, addr: SocketAddr) -> Result<Conn> {
        let messenger = self.messenger.as_ref();
        connection(messenger, &mut self.osds, &self.ticket, osd, addr)
    }

    /// Forgets a connection that is over; the OSD that it led to, if it still was the one in use.
    pub(super) fn forget(&mut self, conn: &Conn) -> Option<OsdId> {
        let osd = self.osds.iter().find(|(_, held)| *held == conn).map(|(osd, _)| *osd)?;
        self.osds.remove(&osd);
        Some(osd)
    }

    pub(super) fn next_command(&mut self) -> u64 {
        self.next_command += 1;
        self.next_command
    }

    pub(super) fn take_commands(&mut self) -> (Vec<Command>, Vec<Command>) {
        let mon = std::mem::take(&mut self.mon_commands).into_values().collect();
        let osds = std::mem::take(&mut self.osd_commands).into_values().map(|(_, command)| command).collect();
        (mon, osds)
    }
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
    let target = Target {
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

impl Sink<Token> for Outside<'_> {
    fn send(&mut self, osd: OsdId, addr: SocketAddr, request: &OsdRequest) -> Sent {
        let conn = match connection(self.messenger, self.osds, self.ticket, osd, addr) {
            Ok(conn) => conn,
            Err(error) => return Sent::Refused(error),
        };
        match conn.send(request) {
            // A closed connection's reset is reported, or its session is over: either way the request is told.
            Ok(()) | Err(nacre_common::Error::Closed) => Sent::Queued,
            Err(nacre_common::Error::Full) => Sent::Full,
            Err(error) => Sent::Refused(Error::Invalid { errno: Errno::E2BIG, detail: error.to_string() }),
        }
    }

    fn close(&mut self, osd: OsdId) {
        if let Some(conn) = self.osds.remove(&osd) {
            conn.abort();
        }
    }

    fn complete(&mut self, token: Token, result: Result<Answer>) {
        self.batch.push(token, result);
    }
}
