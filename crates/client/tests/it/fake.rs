//! A fake cluster: a map authority that issues tickets and maps, and OSDs that share one table of objects. Fields control whether they
//! refuse, drop or hold messages.

use bytes::Bytes;
use nacre_client::{Cluster, native};
use nacre_common::auth::{
    AuthTicketReply, AuthTicketRequest, Caps, Key, KeyRecord, KeyServer, Keyring, RotatingKeyring,
    RotatingSecrets, SessionKey, TicketBody, TicketGrant, Verifier,
};
use nacre_common::config::{Config, ConfigBuilder};
use nacre_crush::CrushMap;
use nacre_runtime::msgr::{Conn, Dispatcher, Frame, Messenger, ResetReason};
use nacre_types::errno::Errno;
use nacre_types::ids::{EntityKind, EntityName};
use nacre_types::msg::{
    DaemonCommand, DaemonCommandReply, EncodedIncremental, MapPublish, Message, MonCommand, MonCommandReply,
    MonSubscribe, OsdBackoff, OsdReply, OsdRequest,
};
use nacre_types::op::{ListReply, Op, OpResult, StatReply};
use nacre_types::osdmap::{Incremental, Member, OsdInfo, OsdMap, PgChange, PgMembership};
use nacre_types::pool::Pool;
use nacre_types::{ClientId, Epoch, Incarnation, Interval, ObjectId, OsdId, PgId, PoolId, ReqId, encoding};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::runtime::Runtime;
use uuid::Uuid;

pub(crate) const POOL: PoolId = PoolId(1);
pub(crate) const PG_NUM: u32 = 8;

/// How OSDs handle requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mood {
    Serve,
    /// Execute, but never answer.
    Swallow,
    /// Refuse until the epoch.
    Backoff(Epoch),
}

/// A received request: OSD, tid, attempt, oldest tid, object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Arrival {
    pub(crate) osd: OsdId,
    pub(crate) tid: u64,
    pub(crate) attempt: u32,
    pub(crate) oldest_tid: u64,
    pub(crate) object: String,
}

pub(crate) struct World {
    pub(crate) mood: Mood,
    pub(crate) arrivals: Vec<Arrival>,
    pub(crate) executions: HashMap<ReqId, u32>,
    /// Lifetime of tickets in seconds.
    pub(crate) ticket_life: u64,
    pub(crate) tickets: u32,
    /// Commands received by the map authority and the OSDs.
    pub(crate) commands: Vec<String>,
    /// Whether commands are left unanswered.
    pub(crate) mute: bool,
    /// Number of epochs beyond the newest one that `osd stat` reports.
    pub(crate) epochs_ahead: u32,
    /// The OSDs that handled pings of watches.
    pub(crate) pings: Vec<OsdId>,
    /// Whether pings succeed at OSDs to which their watch is not connected.
    pub(crate) lenient_pings: bool,
    /// The OSD to which each watch is connected.
    watches: HashMap<(ClientId, u64), OsdId>,
    objects: BTreeMap<ObjectId, Vec<u8>>,
    dups: HashMap<ReqId, OsdReply>,
    map: OsdMap,
    subscribers: Vec<Conn>,
    service: RotatingSecrets,
    osd_conns: Vec<Conn>,
    next_client: u64,
}

/// The whole fake cluster.
pub(crate) struct Fake {
    pub(crate) world: Arc<Mutex<World>>,
    runtime: Runtime,
    keys: Arc<Keys>,
    mon: Option<Messenger>,
    mon_addr: SocketAddr,
    osds: Vec<Messenger>,
    osd_keys: Arc<RotatingKeyring>,
    key: Key,
}

/// The map authority's keys.
struct Keys {
    keyring: Keyring,
    /// Number of look-ups that will find nothing.
    unknown: AtomicU32,
}

impl KeyServer for Keys {
    fn lookup(&self, entity: &EntityName) -> Option<KeyRecord> {
        let less = |left: u32| left.checked_sub(1);
        match self.unknown.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less) {
            Ok(_) => None,
            Err(_) => self.keyring.lookup(entity),
        }
    }
}

fn now_unix() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

fn config(entity: EntityName) -> Config {
    ConfigBuilder::new(entity).build().unwrap()
}

impl Fake {
    /// A map authority and two OSDs.
    pub(crate) fn start() -> Fake {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let mut map = OsdMap::new(Uuid::from_u128(1), 0, CrushMap::default());
        map.pool_max = POOL;
        map.pools.insert(POOL, Arc::new(Pool::replicated("data", 1, 1, 0, PG_NUM, Epoch(1))));
        let world = Arc::new(Mutex::new(World {
            mood: Mood::Serve,
            arrivals: Vec::new(),
            executions: HashMap::new(),
            ticket_life: 3600,
            tickets: 0,
            commands: Vec::new(),
            mute: false,
            epochs_ahead: 0,
            pings: Vec::new(),
            lenient_pings: false,
            watches: HashMap::new(),
            objects: BTreeMap::new(),
            dups: HashMap::new(),
            map,
            subscribers: Vec::new(),
            service: RotatingSecrets::generate(now_unix(), 3600).unwrap(),
            osd_conns: Vec::new(),
            next_client: 100,
        }));
        let key = Key::generate().unwrap();
        let mut keyring = Keyring::new();
        keyring.insert(EntityName::client("admin"), key.clone(), Caps::new());
        let osd_keys = Arc::new(RotatingKeyring::new(0));
        osd_keys.update(world.lock().service.keys().to_vec());
        let mut fake = Fake {
            world,
            runtime,
            keys: Arc::new(Keys { keyring, unknown: AtomicU32::new(0) }),
            mon: None,
            mon_addr: SocketAddr::from(([127, 0, 0, 1], 0)),
            osds: Vec::new(),
            osd_keys,
            key,
        };
        for id in 0..2 {
            fake.start_osd(OsdId(id));
        }
        {
            let world = &mut *fake.world.lock();
            let pgs = (0..PG_NUM).map(|seed| Some(membership(1, OsdId(seed % 2)))).collect();
            world.map.pgs.insert(POOL, Arc::new(pgs));
        }
        fake.start_mon();
        fake
    }

    fn start_osd(&mut self, osd: OsdId) {
        let dispatch = Arc::new(FakeOsd { osd, world: self.world.clone() });
        let messenger = Messenger::builder(&config(EntityName::osd(osd)))
            .verifier(Verifier::new().with_tickets(self.osd_keys.clone()))
            .lane(self.runtime.handle().clone(), dispatch)
            .build()
            .unwrap();
        let _guard = self.runtime.enter();
        let addr = messenger.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        self.world.lock().map.osds.insert(osd, osd_info(addr));
        self.osds.push(messenger);
    }

    /// Starts the map authority, on its earlier address if it had one.
    pub(crate) fn start_mon(&mut self) {
        let dispatch = Arc::new(FakeMon { world: self.world.clone() });
        let messenger = Messenger::builder(&config(EntityName::new(EntityKind::Mon, "a")))
            .verifier(Verifier::new().with_keys(self.keys.clone()))
            .lane(self.runtime.handle().clone(), dispatch)
            .build()
            .unwrap();
        let _guard = self.runtime.enter();
        self.mon_addr = messenger.bind(self.mon_addr).unwrap();
        self.mon = Some(messenger);
    }

    /// Makes the map authority refuse the next `count` keys.
    pub(crate) fn refuse_keys(&self, count: u32) {
        self.keys.unknown.store(count, Ordering::SeqCst);
    }

    /// Stops the map authority as a crash would.
    pub(crate) fn stop_mon(&mut self) {
        if let Some(mon) = self.mon.take() {
            self.runtime.block_on(mon.shutdown(Duration::ZERO));
        }
        self.world.lock().subscribers.clear();
    }

    /// Returns a client's configuration, with `options` added.
    pub(crate) fn client_config(&self, options: &[(&str, &str)]) -> Config {
        let mut builder = ConfigBuilder::new(EntityName::client("admin"))
            .set("mon_host", self.mon_addr.to_string())
            .set("key", self.key.to_base64().as_str());
        for (name, value) in options {
            builder = builder.set(name, *value);
        }
        builder.build().unwrap()
    }

    pub(crate) fn connect(&self) -> Cluster {
        self.connect_with(&[])
    }

    pub(crate) fn connect_with(&self, options: &[(&str, &str)]) -> Cluster {
        native::connect(&self.client_config(options)).wait().unwrap()
    }

    /// Cuts every connection to OSDs.
    pub(crate) fn cut_osd_connections(&self) {
        let conns = std::mem::take(&mut self.world.lock().osd_conns);
        conns.iter().for_each(Conn::abort);
    }

    /// Publishes an epoch in which `osd` is the primary of every PG, in the next interval.
    pub(crate) fn move_all_to(&self, osd: OsdId) {
        self.publish(|inc, map| {
            inc.pgs = (0..PG_NUM)
                .map(|seed| {
                    let pg = PgId::new(POOL, seed);
                    let interval = map.interval(pg).next();
                    PgChange { pg, membership: membership(interval.0, osd) }
                })
                .collect();
        });
    }

    pub(crate) fn publish(&self, change: impl FnOnce(&mut Incremental, &OsdMap)) {
        let world = &mut *self.world.lock();
        let mut inc = Incremental {
            fsid: world.map.fsid,
            epoch: world.map.epoch.next(),
            modified_ns: 1,
            ..Incremental::default()
        };
        change(&mut inc, &world.map);
        world.map = world.map.apply(&inc).unwrap();
        let publish = MapPublish {
            fsid: world.map.fsid,
            full: Bytes::new(),
            incrementals: vec![EncodedIncremental(encoding::encode(&inc).into())],
            newest: inc.epoch,
        };
        // A client whose connection has ended subscribes again on its next session.
        world.subscribers.retain(|conn| conn.send(&publish).is_ok());
    }

    /// Publishes an epoch in which `osd` is down. Its process keeps running.
    pub(crate) fn mark_down(&self, osd: OsdId) {
        self.publish(|inc, map| {
            inc.osds.insert(osd, OsdInfo { up: false, ..map.osds[&osd].clone() });
        });
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.world.lock().map.epoch
    }
}

/// Polls until `done`, for at most a minute.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn membership(interval: u64, osd: OsdId) -> PgMembership {
    let incarnation = Incarnation(Uuid::from_u128(u128::from(osd.0)));
    let in_sync = vec![Member { osd, incarnation }];
    PgMembership { interval: Interval(interval), primary: osd, in_sync }
}

fn osd_info(addr: SocketAddr) -> OsdInfo {
    OsdInfo { up: true, addr: Some(addr), boot_nonce: 1, ..OsdInfo::never_up() }
}

struct FakeMon {
    world: Arc<Mutex<World>>,
}

impl Dispatcher for FakeMon {
    fn on_message(&self, conn: &Conn, frame: Frame) {
        let world = &mut *self.world.lock();
        match frame.kind() {
            AuthTicketRequest::KIND => {
                let reply = world.ticket(conn, frame.decode().unwrap());
                conn.send(&reply).unwrap();
            }
            MonSubscribe::KIND => {
                let subscribe: MonSubscribe = frame.decode().unwrap();
                if subscribe.next_epoch <= world.map.epoch {
                    let publish = MapPublish {
                        fsid: world.map.fsid,
                        full: encoding::encode(&world.map).into(),
                        incrementals: Vec::new(),
                        newest: world.map.epoch,
                    };
                    conn.send(&publish).unwrap();
                }
                world.subscribers.push(conn.clone());
            }
            MonCommand::KIND => {
                let command: MonCommand = frame.decode().unwrap();
                world.commands.push(command.cmd.clone());
                if world.mute {
                    return;
                }
                let (code, status, output) = match command.cmd.contains("osd stat") {
                    true => {
                        let epoch = world.map.epoch.0 + world.epochs_ahead;
                        (0, String::new(), format!("{{\"epoch\":{epoch}}}"))
                    }
                    false if command.cmd.contains("fail") => {
                        (Errno::ENOENT.negated(), "no such thing".into(), String::new())
                    }
                    false => (0, "done".into(), String::from_utf8_lossy(&command.input).into_owned()),
                };
                let output = Bytes::from(output);
                conn.send(&MonCommandReply { tid: command.tid, code, status, output }).unwrap();
            }
            kind => panic!("message {kind}"),
        }
    }

    fn on_reset(&self, conn: &Conn, _: ResetReason) {
        self.world.lock().subscribers.retain(|held| held != conn);
    }
}

impl World {
    fn ticket(&mut self, conn: &Conn, request: AuthTicketRequest) -> AuthTicketReply {
        let renewed = request.renew.and_then(|blob| self.service.open_expired(&blob).unwrap().client);
        let client = renewed.unwrap_or_else(|| {
            self.next_client += 1;
            ClientId(self.next_client)
        });
        let body = TicketBody {
            entity: conn.peer_entity().unwrap(),
            client: Some(client),
            caps: Caps::new(),
            issued_unix: now_unix(),
            expires_unix: now_unix() + self.ticket_life,
            session_key: SessionKey::generate().unwrap(),
        };
        let ticket = self.service.seal(body).unwrap();
        self.tickets += 1;
        let grant = TicketGrant {
            blob: ticket.blob,
            session_key: ticket.session_key,
            expires_unix: ticket.expires_unix,
        };
        let (code, status, keys) = (0, String::new(), Vec::new());
        AuthTicketReply { tid: request.tid, code, status, client, ticket: Some(grant), keys }
    }

    fn execute(&mut self, request: &OsdRequest) -> OsdReply {
        if let Some(reply) = self.dups.get(&request.reqid) {
            return OsdReply { attempt: request.attempt, ..reply.clone() };
        }
        *self.executions.entry(request.reqid).or_default() += 1;
        let mut ops = Vec::new();
        for op in &request.ops {
            ops.push(self.one(request, &op.op));
        }
        let result = ops.iter().map(|op| op.code).find(|code| *code < 0).unwrap_or(0);
        let OsdRequest { reqid, attempt, epoch, .. } = *request;
        let reply = OsdReply { reqid, attempt, epoch, result, user_version: 1, ops };
        if request.may_write() {
            self.dups.insert(request.reqid, reply.clone());
        }
        reply
    }

    fn primary(&self, request: &OsdRequest) -> OsdId {
        self.map.membership(request.pg).unwrap().primary
    }

    fn one(&mut self, request: &OsdRequest, op: &Op) -> OpResult {
        let object = &request.object;
        match op {
            Op::WriteFull { data } => {
                self.objects.insert(object.clone(), data.to_vec());
                OpResult::default()
            }
            Op::Append { data } => {
                self.objects.entry(object.clone()).or_default().extend_from_slice(data);
                OpResult::default()
            }
            Op::Read { .. } => match self.objects.get(object) {
                Some(data) => OpResult::output(data.clone()),
                None => OpResult::error(Errno::ENOENT),
            },
            Op::Stat => match self.objects.get(object) {
                Some(data) => {
                    let stat = StatReply { size: data.len() as u64, mtime_ns: request.mtime_ns };
                    OpResult::output(encoding::encode(&stat))
                }
                None => OpResult::error(Errno::ENOENT),
            },
            Op::Remove => match self.objects.remove(object) {
                Some(_) => OpResult::default(),
                None => OpResult::error(Errno::ENOENT),
            },
            Op::Watch { cookie, .. } | Op::WatchReconnect { cookie } => {
                self.watches.insert((request.reqid.client, *cookie), self.primary(request));
                OpResult::default()
            }
            Op::WatchPing { cookie } => {
                let osd = self.primary(request);
                self.pings.push(osd);
                let connected = self.watches.get(&(request.reqid.client, *cookie)) == Some(&osd);
                match connected || self.lenient_pings {
                    true => OpResult::default(),
                    false => OpResult::error(Errno::ETIMEDOUT),
                }
            }
            Op::PgList { cursor, max, namespace } => {
                let pool = &self.map.pools[&request.pg.pool];
                let here = self.objects.keys().filter(|o| pool.pg_of(o) == request.pg);
                let from = here.filter(|o| cursor.as_ref().is_none_or(|cursor| *o >= cursor));
                let mut objects: Vec<ObjectId> = from
                    .filter(|o| namespace.as_ref().is_none_or(|ns| ns == o.namespace()))
                    .cloned()
                    .collect();
                let next = objects.get(*max as usize).cloned();
                objects.truncate(*max as usize);
                OpResult::output(encoding::encode(&ListReply { objects, next }))
            }
            other => panic!("op {}", other.name()),
        }
    }
}

struct FakeOsd {
    osd: OsdId,
    world: Arc<Mutex<World>>,
}

impl Dispatcher for FakeOsd {
    fn on_message(&self, conn: &Conn, frame: Frame) {
        let world = &mut *self.world.lock();
        if frame.kind() == DaemonCommand::KIND {
            let DaemonCommand { tid, cmd, .. } = frame.decode().unwrap();
            world.commands.push(cmd.clone());
            if world.mute {
                return;
            }
            let output = Bytes::from(format!("{}: {cmd}", self.osd));
            conn.send(&DaemonCommandReply { tid, code: 0, status: String::new(), output }).unwrap();
            return;
        }
        let request: OsdRequest = frame.decode().unwrap();
        let OsdRequest { reqid, attempt, oldest_tid, .. } = request;
        assert_eq!(conn.client_id(), Some(reqid.client));
        world.arrivals.push(Arrival {
            osd: self.osd,
            tid: reqid.tid,
            attempt,
            oldest_tid,
            object: request.object.name().to_owned(),
        });
        if let Mood::Backoff(epoch) = world.mood
            && request.epoch < epoch
        {
            conn.send(&OsdBackoff { reqid, attempt, epoch }).unwrap();
            return;
        }
        let membership = world.map.membership(request.pg).unwrap();
        if (membership.interval, membership.primary) != (request.interval, self.osd) {
            conn.send(&OsdBackoff { reqid, attempt, epoch: world.map.epoch }).unwrap();
            return;
        }
        let reply = world.execute(&request);
        if world.mood != Mood::Swallow {
            conn.send(&reply).unwrap();
        }
    }

    fn on_accept(&self, conn: &Conn) {
        self.world.lock().osd_conns.push(conn.clone());
    }

    fn on_reset(&self, conn: &Conn, _: ResetReason) {
        self.world.lock().osd_conns.retain(|held| held != conn);
    }
}
