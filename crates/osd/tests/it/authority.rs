//! A map authority for tests: the real map logic behind a messenger, without a store or commands.

use nacre_common::auth::{
    AuthTicketReply, AuthTicketRequest, Keyring, RotatingSecrets, SessionKey, TicketBody, TicketGrant,
    Verifier,
};
use nacre_common::clock::{Clock, SystemClock};
use nacre_common::config::Config;
use nacre_crush::CrushMap;
use nacre_mon::logic::{ConnToken, MapEffect, MapEvent, MapState, Now, Tuning};
use nacre_runtime::msgr::{Conn, Dispatcher, Frame, Messenger, ResetReason};
use nacre_types::encoding::encode;
use nacre_types::ids::{ClientId, Epoch, PoolId};
use nacre_types::msg::{
    ConfigPublish, ConfigReport, EncodedIncremental, LogAppend, MapPublish, Message, MonSubscribe, OsdBeacon,
    OsdBoot, OsdFailure, OsdMarkMeDown, PgCas, StatsReport,
};
use nacre_types::osdmap::OsdMap;
use nacre_types::pool::Pool;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

const TICKET_SECS: u64 = 3600;

struct State {
    logic: MapState,
    incrementals: BTreeMap<Epoch, Vec<u8>>,
    subscribers: Vec<(Conn, Epoch)>,
    origins: BTreeMap<u64, Conn>,
    next_origin: u64,
    keys: RotatingSecrets,
    next_client: u64,
    sessions: BTreeMap<Vec<u8>, ClientId>,
}

pub(crate) struct Authority {
    state: Arc<Mutex<State>>,
    messenger: Option<Messenger>,
    runtime: Option<tokio::runtime::Runtime>,
    keyring: Keyring,
    pub(crate) addr: SocketAddr,
}

struct Server(Arc<Mutex<State>>);

fn now() -> Now {
    Now { mono_ms: SystemClock.monotonic().as_millis() as u64, wall_ns: SystemClock.wall_ns() }
}

impl Authority {
    pub(crate) fn new(fsid: Uuid, keyring: Keyring, tuning: Tuning) -> Authority {
        let map = OsdMap::new(fsid, now().wall_ns, CrushMap::new_cluster("osd").unwrap());
        let state = State {
            logic: MapState::new(map, tuning, now()),
            incrementals: BTreeMap::new(),
            subscribers: Vec::new(),
            origins: BTreeMap::new(),
            next_origin: 1,
            keys: RotatingSecrets::generate(now().wall_ns / 1_000_000_000, TICKET_SECS).unwrap(),
            next_client: 1,
            sessions: BTreeMap::new(),
        };
        let addr = SocketAddr::from(([127, 0, 0, 1], 0));
        Authority { state: Arc::new(Mutex::new(state)), messenger: None, runtime: None, keyring, addr }
    }

    /// Listens, on the earlier address if there was one.
    pub(crate) fn start(&mut self, config: &Config) {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let messenger = Messenger::builder(config)
            .verifier(Verifier::new().with_keys(Arc::new(self.keyring.clone())))
            .lane(runtime.handle().clone(), Arc::new(Server(Arc::clone(&self.state))))
            .build()
            .unwrap();
        self.addr = messenger.bind(self.addr).unwrap();
        let state = Arc::clone(&self.state);
        runtime.spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_millis(100)).await;
                state.lock().event(MapEvent::Tick);
            }
        });
        (self.runtime, self.messenger) = (Some(runtime), Some(messenger));
    }

    /// Stops listening and drops the connections. The cluster's state remains.
    pub(crate) fn stop(&mut self) {
        if let (Some(runtime), Some(messenger)) = (self.runtime.take(), self.messenger.take()) {
            runtime.block_on(messenger.shutdown(Duration::ZERO));
            runtime.shutdown_timeout(Duration::from_secs(5));
        }
        let mut state = self.state.lock();
        state.subscribers.clear();
        state.origins.clear();
    }

    pub(crate) fn map(&self) -> OsdMap {
        self.state.lock().logic.map().clone()
    }

    pub(crate) fn add_pool(&self, pool: Pool) -> PoolId {
        let mut state = self.state.lock();
        let id = state.logic.add_pool(pool);
        state.commit();
        id
    }

    pub(crate) fn remove_pool(&self, pool: PoolId) {
        let mut state = self.state.lock();
        state.logic.remove_pool(pool);
        state.commit();
    }

    /// The last statistics of every PG.
    pub(crate) fn pg_stats(&self) -> BTreeMap<nacre_types::PgId, nacre_types::stats::PgStats> {
        let state = self.state.lock();
        let map = state.logic.map();
        map.pg_ids().filter_map(|pg| Some((pg, state.logic.stats().pgs.get(&pg)?.clone()))).collect()
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        self.stop();
    }
}

impl State {
    fn event(&mut self, event: MapEvent) {
        let effects = self.logic.handle(now(), event);
        self.carry_out(effects);
        self.commit();
    }

    fn commit(&mut self) {
        while let Some(proposal) = self.logic.propose(now()) {
            if let Some(incremental) = &proposal.incremental {
                self.incrementals.insert(incremental.epoch, encode(incremental));
            }
            let effects = self.logic.on_committed(proposal.number);
            self.publish();
            self.carry_out(effects);
        }
    }

    fn carry_out(&mut self, effects: Vec<MapEffect>) {
        for effect in effects {
            let MapEffect::CasReply { to, reply } = effect else { continue };
            if let Some(conn) = self.origins.remove(&to.0) {
                let _ = conn.send(&reply);
            }
        }
    }

    fn publish(&mut self) {
        let map = self.logic.map();
        self.subscribers.retain(|(conn, _)| !conn.is_over());
        for (conn, next) in &mut self.subscribers {
            if *next > map.epoch {
                continue;
            }
            let known = next.0 > 0 && self.incrementals.contains_key(next);
            let publish = MapPublish {
                fsid: map.fsid,
                full: if known { Default::default() } else { encode(map).into() },
                incrementals: if known {
                    self.incrementals
                        .range(*next..)
                        .map(|(_, blob)| EncodedIncremental(blob.clone().into()))
                        .collect()
                } else {
                    Vec::new()
                },
                newest: map.epoch,
            };
            let _ = conn.send(&publish);
            *next = map.epoch.next();
        }
    }

    fn ticket(&mut self, conn: &Conn, request: &AuthTicketRequest) {
        let peer = conn.peer().unwrap();
        let known = request.renew.as_ref().and_then(|blob| self.sessions.get(&blob[..])).copied();
        let client = known.unwrap_or_else(|| {
            self.next_client += 1;
            ClientId(self.next_client)
        });
        let issued_unix = now().wall_ns / 1_000_000_000;
        let ticket = self
            .keys
            .seal(TicketBody {
                entity: peer.entity.clone(),
                client: Some(client),
                caps: peer.caps.clone(),
                issued_unix,
                expires_unix: issued_unix + TICKET_SECS,
                session_key: SessionKey::generate().unwrap(),
            })
            .unwrap();
        self.sessions.insert(ticket.blob.to_vec(), client);
        let is_osd = peer.entity.osd_id().is_some();
        let reply = AuthTicketReply {
            tid: request.tid,
            code: 0,
            status: String::new(),
            client,
            ticket: Some(TicketGrant {
                blob: ticket.blob,
                session_key: ticket.session_key,
                expires_unix: ticket.expires_unix,
            }),
            keys: if is_osd { self.keys.keys().to_vec() } else { Vec::new() },
        };
        let _ = conn.send(&reply);
    }
}

impl Dispatcher for Server {
    fn on_message(&self, conn: &Conn, frame: Frame) {
        let state = &mut *self.0.lock();
        let osd = conn.peer_entity().and_then(|entity| entity.osd_id());
        match frame.kind() {
            MonSubscribe::KIND => {
                let subscribe: MonSubscribe = frame.decode().unwrap();
                state.subscribers.retain(|(known, _)| known != conn);
                state.subscribers.push((conn.clone(), subscribe.next_epoch));
                if subscribe.config {
                    let _ = conn.send(&ConfigPublish { values: BTreeMap::new() });
                }
                state.publish();
            }
            AuthTicketRequest::KIND => {
                let request = frame.decode().unwrap();
                state.ticket(conn, &request);
            }
            OsdBoot::KIND => state.event(MapEvent::Boot(frame.decode().unwrap())),
            OsdFailure::KIND => {
                let report = frame.decode().unwrap();
                state.event(MapEvent::Failure { reporter: osd.unwrap(), report });
            }
            OsdBeacon::KIND => {
                let alive = frame.decode().unwrap();
                state.event(MapEvent::Alive { osd: osd.unwrap(), alive });
            }
            OsdMarkMeDown::KIND => {
                let request = frame.decode().unwrap();
                state.event(MapEvent::MarkMeDown { osd: osd.unwrap(), request });
            }
            PgCas::KIND => {
                let cas: PgCas = frame.decode().unwrap();
                let origin = state.next_origin;
                state.next_origin += 1;
                state.origins.insert(origin, conn.clone());
                state.event(MapEvent::Cas { origin: ConnToken(origin), osd: osd.unwrap(), cas });
            }
            StatsReport::KIND => {
                let report = frame.decode().unwrap();
                state.event(MapEvent::Stats { osd: osd.unwrap(), report });
            }
            ConfigReport::KIND | LogAppend::KIND => {}
            other => panic!("unexpected message kind {other}"),
        }
    }

    fn on_reset(&self, conn: &Conn, _reset: ResetReason) {
        self.0.lock().subscribers.retain(|(known, _)| known != conn);
    }
}
