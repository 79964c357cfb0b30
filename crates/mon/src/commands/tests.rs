//! Commands on a small cluster: texts and errors as Ceph printed them, and JSON fields compared with recordings of Ceph 16.2
//! (`tests/recordings`).

mod osds;
mod pools;
mod recordings;
mod requests;
mod settings;
mod texts;
mod tiers;

use super::*;
use crate::logic::tests::{commit, member};
use crate::logic::{ConnToken, Databases, MapEvent, Tuning};
use crate::testing::{at, boot_of};
use nacre_crush::CrushMap;
use nacre_types::caps::mon::MonCaps;
use nacre_types::ids::{Interval, OsdId, PgId};
use nacre_types::msg::{MonCommand, PgCas, StatsReport};
use nacre_types::osdmap::{OsdMap, PgMembership};
use nacre_types::placement::PgMapper;
use nacre_types::stats::{ObjectSums, OsdStats, PgStats, pg_state};
use serde_json::json;
use std::net::Ipv4Addr;
use std::sync::Arc;
use uuid::Uuid;

/// A cluster, and a user with all capabilities.
pub(crate) struct Desk {
    pub(crate) state: MapState,
    pub(crate) now: Now,
    caps: Arc<MonCaps>,
}

/// Code, status, output.
type Said = (i32, String, String);

impl Desk {
    /// A cluster of three OSDs on one host, without pools.
    pub(crate) fn new() -> Desk {
        let map = OsdMap::new(Uuid::from_u128(7), at(0).wall_ns, CrushMap::new_cluster("osd").unwrap());
        let tuning = Tuning { allow_pool_delete: true, allow_pool_size_one: true, ..Tuning::default() };
        let databases = Databases {
            mon_name: "a".into(),
            mon_metadata: nacre_runtime::host::metadata(
                &nacre_common::config::ConfigBuilder::new(EntityName::mon()).build().unwrap(),
            ),
            ..Databases::default()
        };
        let state = MapState::with_databases(map, tuning, at(0), databases);
        let mut desk = Desk { state, now: at(0), caps: Arc::new(MonCaps::all()) };
        for osd in 0..3 {
            let mut boot = boot_of(osd, 1);
            boot.metadata = [("hostname".to_owned(), "vm".to_owned())].into();
            boot.total_bytes = 4 << 30;
            boot.device_class = "hdd".into();
            desk.state.handle(desk.now, MapEvent::Boot(boot));
        }
        commit(&mut desk.state, desk.now);
        desk
    }

    /// The same with the pools p1 (8 PGs, an application, eight objects) and p2 (size 2), all clean.
    pub(crate) fn busy() -> Desk {
        let mut desk = Desk::new();
        desk.ok("osd pool create", json!({ "pool": "p1", "pg_num": 8 }));
        desk.ok("osd pool create", json!({ "pool": "p2", "pg_num": 4, "size": 2 }));
        desk.ok("osd pool application enable", json!({ "pool": "p1", "app": "rbd" }));
        desk.create_pgs();
        desk.report(pg_state::ACTIVE | pg_state::CLEAN);
        desk
    }

    /// Creates all missing PGs on their up sets.
    pub(crate) fn create_pgs(&mut self) {
        let map = self.state.map();
        let pgs: Vec<PgId> = map.pg_ids().filter(|pg| map.membership(*pg).is_none()).collect();
        for pg in pgs {
            let up = PgMapper::new(self.state.map()).up(pg);
            let in_sync = up.iter().map(|osd| member(osd.0)).collect();
            let proposed = PgMembership { interval: Interval(1), primary: up[0], in_sync };
            let cas = PgCas { tid: 1, pg, proposer: member(up[0].0), expected: None, proposed };
            self.state.handle(self.now, MapEvent::Cas { origin: ConnToken(1), osd: up[0], cas });
        }
        commit(&mut self.state, self.now);
    }

    /// Ends every PG's first interval, with the same members.
    pub(crate) fn raise_intervals(&mut self) {
        let pgs: Vec<PgId> = self.state.map().pg_ids().collect();
        for pg in pgs {
            let now = self.state.map().membership(pg).expect("created before").clone();
            let proposed = PgMembership { interval: now.interval.next(), ..now.clone() };
            let (osd, proposer) = (now.primary, member(now.primary.0));
            let cas = PgCas { tid: 2, pg, proposer, expected: Some(now), proposed };
            self.state.handle(self.now, MapEvent::Cas { origin: ConnToken(1), osd, cas });
        }
        commit(&mut self.state, self.now);
    }

    /// Makes every primary report its disk and its PGs in `state`, with one object of 1000 bytes per PG.
    pub(crate) fn report(&mut self, state: u64) {
        let osds: Vec<OsdId> = self.state.map().osds.keys().copied().collect();
        for osd in osds {
            self.report_from(osd, state, 3 << 30);
        }
    }

    /// Makes one OSD report in this way, with this much space available on its disk of 4 GiB.
    pub(crate) fn report_from(&mut self, osd: OsdId, state: u64, available_bytes: u64) {
        let pgs = self
            .state
            .map()
            .pg_ids()
            .filter(|pg| self.state.map().membership(*pg).is_some_and(|m| m.primary == osd));
        let pgs = pgs
            .map(|pg| PgStats {
                pg,
                state,
                acting: self.state.map().membership(pg).map(|m| m.acting()).unwrap_or_default(),
                reported_epoch: self.state.map().epoch,
                sums: ObjectSums { bytes: 1000, objects: 1, ..ObjectSums::default() },
                sums_complete: true,
                stored_bytes: 4096,
                last_active_ns: self.now.wall_ns,
                last_clean_ns: self.now.wall_ns,
                ..PgStats::default()
            })
            .collect();
        let osd_stats = OsdStats { total_bytes: 4 << 30, available_bytes, ..OsdStats::default() };
        let report = StatsReport { osd: osd_stats, pgs, starting: false };
        self.state.handle(self.now, MapEvent::Stats { osd, report });
        commit(&mut self.state, self.now);
    }

    /// Makes all PGs of a pool report with the newest map. The first of them has objects of 1000 bytes, `dirty` of them dirty.
    pub(crate) fn tell(&mut self, pool: &str, objects: u64, dirty: u64) {
        let map = self.state.map().clone();
        let (id, pool) = map.pool_by_name(pool).map(|(id, pool)| (id, pool.pg_num)).expect("it exists");
        for pg in (0..pool).map(|seed| PgId::new(id, seed)) {
            let (objects, dirty) = if pg.seed == 0 { (objects, dirty) } else { (0, 0) };
            let sums = ObjectSums {
                bytes: 1000 * objects,
                objects,
                dirty,
                dirty_bytes: 1000 * dirty,
                ..ObjectSums::default()
            };
            let stats = PgStats {
                state: pg_state::ACTIVE | pg_state::CLEAN,
                reported_epoch: map.epoch,
                sums_complete: true,
                ..PgStats { pg, sums, ..PgStats::default() }
            };
            self.tell_pg(stats);
        }
    }

    /// Makes a PG's primary report it.
    pub(crate) fn tell_pg(&mut self, stats: PgStats) {
        let membership = self.state.map().membership(stats.pg).expect("the PG was created").clone();
        let stats = PgStats { acting: membership.acting(), interval: membership.interval, ..stats };
        let osd_stats = OsdStats { total_bytes: 4 << 30, available_bytes: 3 << 30, ..OsdStats::default() };
        let report = StatsReport { osd: osd_stats, pgs: vec![stats], starting: false };
        self.state.handle(self.now, MapEvent::Stats { osd: membership.primary, report });
        commit(&mut self.state, self.now);
    }

    /// Restarts the map authority with the durable state, after some time.
    pub(crate) fn restart(&mut self) {
        let (map, tuning) = (self.state.map().clone(), self.state.tuning().clone());
        self.state = MapState::new(map, tuning, self.now);
        self.state.handle(self.now, MapEvent::Tick);
        commit(&mut self.state, self.now);
    }

    pub(crate) fn raw(&mut self, cmd: &str, input: &[u8]) -> Said {
        let request = CommandRequest {
            origin: ConnToken(9),
            entity: EntityName::client("admin"),
            peer: Ipv4Addr::LOCALHOST.into(),
            caps: self.caps.clone(),
            command: MonCommand { tid: 5, cmd: cmd.to_owned(), input: Bytes::copy_from_slice(input) },
            fresh_key: Key::generate().unwrap(),
        };
        let mut effects = self.state.handle(self.now, MapEvent::Command(Box::new(request)));
        effects.extend(commit(&mut self.state, self.now));
        match effects.as_slice() {
            [MapEffect::CommandReply { to: ConnToken(9), reply }] if reply.tid == 5 => {
                (reply.code, reply.status.clone(), String::from_utf8_lossy(&reply.output).into_owned())
            }
            other => panic!("expected one answer to {cmd}, got {other:?}"),
        }
    }

    pub(crate) fn run(&mut self, prefix: &str, args: Value) -> Said {
        self.with_input(prefix, args, b"")
    }

    pub(crate) fn with_input(&mut self, prefix: &str, mut args: Value, input: &[u8]) -> Said {
        args["prefix"] = prefix.into();
        self.raw(&args.to_string(), input)
    }

    /// Executes a command that must succeed; returns its status and output.
    pub(crate) fn ok(&mut self, prefix: &str, args: Value) -> (String, String) {
        let (code, status, output) = self.run(prefix, args.clone());
        assert_eq!(code, 0, "{prefix} {args}: {status}");
        (status, output)
    }

    pub(crate) fn status(&mut self, prefix: &str, args: Value) -> String {
        self.ok(prefix, args).0
    }

    pub(crate) fn text(&mut self, prefix: &str, args: Value) -> String {
        self.ok(prefix, args).1
    }

    pub(crate) fn json(&mut self, prefix: &str, mut args: Value) -> Value {
        args["format"] = "json".into();
        serde_json::from_str(&self.text(prefix, args)).unwrap()
    }

    /// Executes a command that must fail without changes.
    pub(crate) fn fails(&mut self, prefix: &str, args: Value, errno: Errno, text: &str) {
        let before =
            (self.state.working.clone(), self.state.config.iter().count(), self.state.auth.iter().count());
        let (code, status, _) = self.run(prefix, args.clone());
        assert_eq!((code, status.as_str()), (errno.negated(), text), "{prefix} {args}");
        assert!(!self.state.has_changes(), "{prefix} {args}");
        let after =
            (self.state.working.clone(), self.state.config.iter().count(), self.state.auth.iter().count());
        assert_eq!(before, after, "{prefix} {args}");
    }
}
