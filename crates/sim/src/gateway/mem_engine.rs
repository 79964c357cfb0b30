//! An engine over objects in memory: a cluster from the clients' point of view.
//!
//! A [`MemCluster`] has pools of PGs with objects (an [`Image`]); [`MemCluster::connect`] opens a session for a process. A
//! request leaves its process and arrives at its PG, which executes it as a whole; the reply travels back. [`Faults`] defines
//! what may happen on the way:
//!
//! - Requests of one session to one PG arrive in order; those to different PGs overtake one another.
//! - A request that was given up, and one of a process that crashed, may be executed later, until the PG has a cluster map
//!   that blocklists the session. A PG learns of a map by itself after a while, and at once from a request of a session that
//!   has it. So after a client has blocklisted a session and then has the newest map, it reads nothing that the session
//!   changes afterwards.
//! - A PG whose OSD is down answers nothing until another one has taken over; acknowledged updates are kept.
//! - A watch persists with its object. It lapses when its session was silent for the watch's timeout.
//!
//! As in a real cluster, a success means durable, and a request is executed at most once.
//!
//! No lock is held while a completion or a handler is called.

mod command;
mod request;
mod session;
#[cfg(test)]
mod tests;
mod watch;

use crate::disk::{Collection, Image, Object};
use crate::gateway::executor::{Executor, ProcessId, Scheduler};
use crate::gateway::faults::{FaultCounts, FaultDraws, Faults};
use crate::schedule::Nanos;
use nacre_engine::engine::{ObjectRequest, OnReply};
use nacre_engine::{Cluster, Error};
use nacre_exec::Limits;
use nacre_types::ceph::SessionAddr;
use nacre_types::hash::pg_of_hash;
use nacre_types::op::{OI_ATTR, ObjectInfo, OsdOp, WatchInfo};
use nacre_types::{ClientId, Epoch, ObjectId, PgId, PoolId, encoding, pool};
use parking_lot::Mutex;
use session::Session;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use watch::{RunningNotify, SessionWatch};

/// OSDs, each of which is the primary of an equal share of the PGs.
pub const OSDS: u32 = 3;
/// Default number of PGs of a pool.
const DEFAULT_PG_NUM: u32 = 8;
/// The number of the first session.
const FIRST_SESSION: u64 = 4100;

/// A cluster in memory. Cheap to clone.
#[derive(Clone)]
pub struct MemCluster {
    inner: Arc<Inner>,
}

/// An executed operation as an observer sees it: complete, at one moment, before any client learns of it.
pub struct Observation<'a> {
    /// The session that sent it.
    pub session: u64,
    /// The object.
    pub object: &'a ObjectId,
    /// Its parts.
    pub ops: &'a [OsdOp],
    /// The object before the operation; `None` if it did not exist.
    pub before: Option<&'a Object>,
}

/// Called with each operation that changed an object. It must not call the cluster.
type Observer = Box<dyn FnMut(&Observation<'_>) + Send>;

struct Inner {
    scheduler: Scheduler,
    world: Mutex<World>,
    observer: Mutex<Option<Observer>>,
}

struct Pool {
    name: String,
    settings: pool::Pool,
}

/// The primary's state of a PG.
#[derive(Default)]
struct Pg {
    /// The newest map that it has.
    epoch: u32,
    /// Maps that it will receive, and when.
    to_learn: Vec<(u32, Nanos)>,
    /// The map with which watches of blocklisted sessions were last ended.
    swept: u32,
    /// The version of the last change.
    version: u64,
    /// Until when its OSD is down.
    stopped_until: Nanos,
}

impl Pg {
    /// Handles the epoch of a request's session. Returns the newest map that the PG has then.
    fn learn(&mut self, epoch: u32, now: Nanos) -> u32 {
        let known = self.to_learn.iter().filter(|(_, at)| *at <= now).map(|(epoch, _)| *epoch).max();
        self.epoch = self.epoch.max(epoch).max(known.unwrap_or(0));
        let newest = self.epoch;
        self.to_learn.retain(|(epoch, _)| *epoch > newest);
        newest
    }
}

/// One client of the cluster.
struct SessionState {
    process: ProcessId,
    /// The newest map that it has.
    epoch: u32,
    blocklisted: bool,
    shut_down: bool,
    next_tid: u64,
    in_flight: BTreeMap<u64, InFlight>,
    /// When the last request to each PG arrives; later ones arrive after it.
    last_arrival: BTreeMap<PgId, Nanos>,
    /// The newest request that arrived.
    newest_arrived: u64,
    next_cookie: u64,
    watches: BTreeMap<u64, SessionWatch>,
}

struct InFlight {
    done: OnReply,
    text: String,
}

/// An entry of the blocklist.
struct Blocked {
    since_epoch: u32,
    until_wall_ns: u64,
}

struct World {
    draws: FaultDraws,
    figures: FaultCounts,
    /// The newest map.
    epoch: u32,
    next_pool: i64,
    pools: BTreeMap<PoolId, Pool>,
    pgs: BTreeMap<PgId, Pg>,
    image: Image,
    limits: Limits,
    blocklist: BTreeMap<String, Blocked>,
    config_keys: BTreeMap<String, String>,
    options: BTreeMap<String, String>,
    sessions: BTreeMap<u64, SessionState>,
    /// Processes that are disconnected from the cluster, or paused, and until when.
    cut: BTreeMap<ProcessId, Nanos>,
    next_notify: u64,
    notifies: BTreeMap<u64, RunningNotify>,
}

/// Calls to be made after the world's lock is released.
type Afterwards = Vec<Box<dyn FnOnce() + Send>>;

fn carry_out(afterwards: Afterwards) {
    afterwards.into_iter().for_each(|call| call());
}

fn info_of(object: &Object) -> ObjectInfo {
    let info = object.attrs.get(OI_ATTR).map(|bytes| encoding::decode(bytes));
    info.and_then(Result::ok).expect("invariant: every change writes the object's info")
}

/// The names that identify a session in a blocklist.
fn names(session: u64) -> [String; 2] {
    [format!("client.{session}"), address(session).to_string()]
}

fn address(session: u64) -> SessionAddr {
    SessionAddr::client(IpAddr::V4(Ipv4Addr::LOCALHOST), ClientId(session))
}

impl World {
    fn pg_of(&self, object: &ObjectId) -> Option<PgId> {
        let pool = self.pools.get(&object.pool())?;
        Some(PgId::new(object.pool(), pg_of_hash(object.hash(), pool.settings.pg_num)))
    }

    /// The watches on an object.
    fn watchers(&self, object: &ObjectId) -> Vec<WatchInfo> {
        let found = self.pg_of(object).and_then(|pg| self.image.object(pg, object).ok());
        found.map_or_else(Vec::new, |object| info_of(object).watchers)
    }

    /// Removes a watch from its object. Returns whether it existed.
    fn remove_watch(&mut self, object: &ObjectId, (client, cookie): (ClientId, u64)) -> bool {
        let kept =
            self.pg_of(object).and_then(|pg| self.image.collections.get_mut(&pg)?.objects.get_mut(object));
        let Some(kept) = kept else { return false };
        let mut info = info_of(kept);
        let before = info.watchers.len();
        info.watchers.retain(|watch| (watch.client, watch.cookie) != (client, cookie));
        let removed = info.watchers.len() < before;
        if removed {
            Arc::make_mut(kept).attrs.insert(OI_ATTR.to_owned(), encoding::encode(&info).into());
        }
        removed
    }

    fn pool_id(&self, name: &str) -> Option<PoolId> {
        self.pools.iter().find(|(_, pool)| pool.name == name).map(|(id, _)| *id)
    }

    /// Whether the map of this epoch has a session on the blocklist.
    fn is_blocklisted(&self, session: u64, epoch: u32, wall_ns: u64) -> bool {
        if self.blocklist.is_empty() {
            return false;
        }
        let blocked = |name: &String| {
            let entry = self.blocklist.get(name);
            entry.is_some_and(|entry| entry.since_epoch <= epoch && entry.until_wall_ns > wall_ns)
        };
        names(session).iter().any(blocked)
    }

    fn make_pool(&mut self, name: &str, pg_num: u32) -> PoolId {
        let pool = PoolId(self.next_pool);
        self.next_pool += 1;
        let settings = pool::Pool::replicated(name, 3, 2, 0, pg_num, Epoch(self.epoch));
        self.pools.insert(pool, Pool { name: name.to_owned(), settings });
        for seed in 0..pg_num {
            let pg = Pg { epoch: self.epoch, ..Pg::default() };
            self.pgs.insert(PgId::new(pool, seed), pg);
            self.image.collections.insert(PgId::new(pool, seed), Collection::default());
        }
        pool
    }

    /// When a process can reach the cluster: now, or when its disconnection ends.
    fn reachable_at(&self, process: ProcessId, now: Nanos) -> Nanos {
        self.cut.get(&process).copied().unwrap_or(0).max(now)
    }
}

impl MemCluster {
    /// A cluster without pools, whose faults are drawn from `seed`.
    pub fn new(executor: &Executor, seed: u64, faults: Faults) -> MemCluster {
        let world = World {
            draws: FaultDraws::new(seed, faults),
            figures: FaultCounts::default(),
            epoch: 1,
            next_pool: 1,
            pools: BTreeMap::new(),
            pgs: BTreeMap::new(),
            image: Image::default(),
            limits: Limits::default(),
            blocklist: BTreeMap::new(),
            config_keys: BTreeMap::new(),
            options: BTreeMap::from([("client_notify_timeout".to_owned(), "10".to_owned())]),
            sessions: BTreeMap::new(),
            cut: BTreeMap::new(),
            next_notify: 1,
            notifies: BTreeMap::new(),
        };
        let scheduler = executor.scheduler().clone();
        let world = Mutex::new(world);
        let inner = Arc::new(Inner { scheduler: scheduler.clone(), world, observer: Mutex::new(None) });
        let cluster = Arc::downgrade(&inner);
        scheduler.on_silence(move |process, until| {
            let Some(inner) = cluster.upgrade() else { return };
            match until {
                Some(until) => inner.process_fell_silent(process, until),
                None => inner.process_crashed(process),
            }
        });
        MemCluster { inner }
    }

    /// Opens a session for a process. Its operations complete as deliveries to that process.
    pub fn connect(&self, process: ProcessId) -> Cluster {
        self.connect_with(process, |request| request)
    }

    /// Opens a session whose requests are changed before they are sent: the process breaks a rule on purpose.
    pub fn connect_with(
        &self,
        process: ProcessId,
        change: impl Fn(ObjectRequest) -> ObjectRequest + Send + Sync + 'static,
    ) -> Cluster {
        let mut world = self.inner.world.lock();
        let number = FIRST_SESSION + world.sessions.len() as u64;
        let state = SessionState {
            process,
            epoch: world.epoch,
            blocklisted: false,
            shut_down: false,
            next_tid: 1,
            in_flight: BTreeMap::new(),
            last_arrival: BTreeMap::new(),
            newest_arrived: 0,
            next_cookie: 1,
            watches: BTreeMap::new(),
        };
        world.sessions.insert(number, state);
        Cluster::from_engine(Arc::new(Session::new(self.inner.clone(), number, process, Box::new(change))))
    }

    /// Creates a pool at once.
    pub fn make_pool(&self, name: &str, pg_num: u32) -> PoolId {
        self.inner.world.lock().make_pool(name, pg_num)
    }

    /// Sets an option that sessions read.
    pub fn set_option(&self, name: &str, value: &str) {
        self.inner.world.lock().options.insert(name.to_owned(), value.to_owned());
    }

    /// Changes the faults from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.inner.world.lock().draws.set_faults(faults);
    }

    /// Calls `observer` with each operation that changes an object, so that a test can check it at once.
    pub fn observe(&self, observer: impl FnMut(&Observation<'_>) + Send + 'static) {
        *self.inner.observer.lock() = Some(Box::new(observer));
    }

    /// How often each kind of fault occurred.
    pub fn figures(&self) -> FaultCounts {
        self.inner.world.lock().figures
    }

    /// An object's current state; `None` if it does not exist.
    pub fn object(&self, object: &ObjectId) -> Option<Arc<Object>> {
        let world = self.inner.world.lock();
        let collection = world.image.collections.get(&world.pg_of(object)?)?;
        collection.objects.get(object).cloned()
    }

    /// The names of all objects of a pool.
    pub fn objects(&self, pool: PoolId) -> Vec<ObjectId> {
        let world = self.inner.world.lock();
        let collections = world.image.collections.iter().filter(|(pg, _)| pg.pool == pool);
        collections.flat_map(|(_, collection)| collection.objects.keys()).cloned().collect()
    }

    /// Requests without an answer, of all sessions whose processes are alive.
    pub fn in_flight(&self) -> usize {
        let world = self.inner.world.lock();
        let alive = world.sessions.values().filter(|s| self.inner.scheduler.is_alive(s.process));
        alive.map(|session| session.in_flight.len()).sum()
    }

    /// Stops an OSD for `wait`: until another one has taken over, its PGs answer nothing. Watchers receive notifies again
    /// that they have not answered.
    pub fn fail_osd(&self, osd: u32, wait: Nanos) {
        let inner = &self.inner;
        let until = inner.scheduler.now() + wait;
        inner.scheduler.note("osd fails", u64::from(osd));
        let mut guard = inner.world.lock();
        let world = &mut *guard;
        let mut stopped = Vec::new();
        for (id, pg) in &mut world.pgs {
            if (id.seed + id.pool.0 as u32) % OSDS == osd {
                pg.stopped_until = pg.stopped_until.max(until);
                stopped.push(*id);
            }
        }
        let told_again: Vec<u64> = world
            .notifies
            .iter()
            .filter(|(_, notify)| world.pg_of(&notify.object).is_some_and(|pg| stopped.contains(&pg)))
            .map(|(id, _)| *id)
            .collect();
        drop(guard);
        for id in told_again {
            let again = inner.clone();
            inner.scheduler.call_after(wait, move || again.send_notifications(&mut again.world.lock(), id));
        }
    }

    /// Disconnects a process from the cluster for `wait`: messages in both directions are held back.
    pub fn cut(&self, process: ProcessId, wait: Nanos) {
        let until = self.inner.scheduler.now() + wait;
        self.inner.scheduler.note("cut", u64::from(process.0));
        self.inner.process_fell_silent(process, until);
    }
}

impl Inner {
    /// Handles a process that is disconnected or paused until then: it sends no keepalives, and no messages pass.
    fn process_fell_silent(self: &Arc<Self>, process: ProcessId, until: Nanos) {
        let mut guard = self.world.lock();
        let world = &mut *guard;
        let cut = world.cut.entry(process).or_default();
        *cut = until.max(*cut);
        let until = *cut;
        for (number, state) in &mut world.sessions {
            if state.process == process {
                self.on_session_silent(*number, state, Some(until));
            }
        }
    }

    /// Handles the crash of a process: its watches lapse after their timeouts, and its requests in flight may still arrive.
    fn process_crashed(self: &Arc<Self>, process: ProcessId) {
        let mut dropped = Vec::new();
        {
            let mut guard = self.world.lock();
            let world = &mut *guard;
            for (number, state) in &mut world.sessions {
                if state.process == process {
                    self.on_session_silent(*number, state, None);
                    // Completions and handlers may own the session.
                    dropped.push((std::mem::take(&mut state.in_flight), std::mem::take(&mut state.watches)));
                }
            }
        }
        drop(dropped);
    }

    /// Gives a session a map: if that blocklists the session, all its waiting requests fail.
    fn learn(&self, session: u64, epoch: u32) {
        let wall_ns = self.scheduler.wall_ns();
        let mut afterwards = Afterwards::new();
        {
            let mut guard = self.world.lock();
            let world = &mut *guard;
            let Some(epoch) = world.sessions.get(&session).map(|state| state.epoch.max(epoch)) else {
                return;
            };
            let blocklisted = world.is_blocklisted(session, epoch, wall_ns);
            let Some(state) = world.sessions.get_mut(&session) else { return };
            (state.epoch, state.blocklisted) = (epoch, blocklisted);
            if blocklisted {
                for in_flight in std::mem::take(&mut state.in_flight).into_values() {
                    afterwards.push(Box::new(move || (in_flight.done)(Err(Error::Blocklisted))));
                }
                afterwards.extend(watch::lose_all(state, &Error::Blocklisted));
            }
        }
        carry_out(afterwards);
    }

    /// Publishes a new map: PGs and sessions learn of it after a while.
    fn publish(self: &Arc<Self>, world: &mut World) {
        world.epoch += 1;
        let (epoch, now) = (world.epoch, self.scheduler.now());
        for pg in world.pgs.values_mut() {
            pg.to_learn.push((epoch, now + world.draws.map_delay()));
        }
        for (number, state) in &world.sessions {
            let (inner, number, wait) = (self.clone(), *number, world.draws.map_delay());
            let wait = wait + world.cut.get(&state.process).map_or(0, |until| until.saturating_sub(now));
            self.scheduler.deliver_after(state.process, wait, move || inner.learn(number, epoch));
        }
    }
}
