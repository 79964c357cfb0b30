//! A toy map authority: marks OSDs up and down and decides on proposals, by the rules of the real one.

use nacre_types::ids::{Epoch, Interval, OsdId, PgId};
use nacre_types::msg::{PgCas, PgCasReply};
use nacre_types::osdmap::{Member, OsdInfo, OsdMap, PgMembership};
use nacre_types::pool::Pool;
use std::sync::Arc;
use uuid::Uuid;

pub struct Authority {
    pub pg: PgId,
    pub map: Arc<OsdMap>,
    pub up: Vec<OsdId>,
    pub min_size: usize,
    /// Memberships that took effect, in order.
    pub history: Vec<PgMembership>,
}

impl Authority {
    pub fn new(pg: PgId, size: u32, min_size: u32, up: Vec<OsdId>) -> Authority {
        let mut map = OsdMap::new(Uuid::from_u128(7), 0, Default::default());
        map.pools.insert(pg.pool, Arc::new(Pool::replicated("p", size, min_size, 0, 1, Epoch(1))));
        map.pgs.insert(pg.pool, Arc::new(vec![None]));
        let min_size = min_size as usize;
        Authority { pg, map: Arc::new(map), up, min_size, history: Vec::new() }
    }

    pub fn change(&mut self, how: impl FnOnce(&mut OsdMap)) {
        let mut map = (*self.map).clone();
        map.epoch = map.epoch.next();
        how(&mut map);
        self.map = Arc::new(map);
    }

    pub fn boot(&mut self, member: Member, nonce: u64) {
        self.change(|map| {
            let epoch = map.epoch;
            let info = map.osds.entry(member.osd).or_insert_with(OsdInfo::never_up);
            (info.up, info.incarnation, info.boot_nonce) = (true, Some(member.incarnation), nonce);
            info.up_from = epoch;
        });
    }

    pub fn is_process(&self, osd: OsdId, nonce: u64) -> bool {
        self.map.osds.get(&osd).is_some_and(|info| info.up && info.boot_nonce == nonce)
    }

    pub fn down(&mut self, osd: OsdId) {
        self.change(|map| {
            let epoch = map.epoch;
            let info = map.osds.get_mut(&osd).unwrap();
            (info.up, info.down_at) = (false, epoch);
        });
    }

    /// Marks a process up again that was marked down without reason.
    pub fn up_again(&mut self, osd: OsdId) {
        self.change(|map| {
            let epoch = map.epoch;
            let info = map.osds.get_mut(&osd).unwrap();
            (info.up, info.up_from) = (true, epoch);
        });
    }

    pub fn set_up(&mut self, up: &[u32]) {
        self.up = up.iter().copied().map(OsdId).collect();
        self.change(|_| {});
    }

    pub fn membership(&self) -> Option<&PgMembership> {
        self.map.membership(self.pg)
    }

    /// Restores the store to an old membership: a new generation.
    pub fn restore(&mut self, old: Option<PgMembership>) {
        let pg = self.pg;
        self.change(|map| {
            map.generation += 1;
            map.epoch = Epoch(map.epoch.0 + 1000);
            map.generation_from = map.epoch;
            map.pgs.insert(pg.pool, Arc::new(vec![old]));
        });
    }

    /// The operator accepts that all copies are lost: creates the PG again on the up set.
    pub fn recreate(&mut self) {
        let current = self.membership().expect("the PG exists");
        assert!(!current.in_sync.iter().any(|member| self.map.is_member_up(*member)), "it is not lost");
        let interval = current.interval.recreation().unwrap();
        let in_sync: Vec<Member> = self.up.iter().filter_map(|osd| self.map.up_member(*osd)).collect();
        let (pg, next) = (self.pg, PgMembership { interval, primary: in_sync[0].osd, in_sync });
        self.history.push(next.clone());
        self.change(|map| {
            map.pgs.insert(pg.pool, Arc::new(vec![Some(next)]));
        });
    }

    pub fn cas(&mut self, cas: &PgCas) -> PgCasReply {
        let accepted = self.allows(cas);
        if accepted {
            let (pg, proposed) = (self.pg, cas.proposed.clone());
            self.history.push(proposed.clone());
            self.change(|map| {
                map.pgs.insert(pg.pool, Arc::new(vec![Some(proposed)]));
            });
        }
        PgCasReply {
            tid: 0,
            pg: self.pg,
            accepted,
            current: self.membership().cloned(),
            epoch: self.map.epoch,
        }
    }

    fn allows(&self, cas: &PgCas) -> bool {
        let (map, next) = (&self.map, &cas.proposed);
        if !map.is_member_up(cas.proposer) || self.membership() != cas.expected.as_ref() {
            return false;
        }
        assert!(next.in_sync.iter().any(|m| m.osd == next.primary), "malformed: {next:?}");
        let generation = map.generation;
        let Some(current) = cas.expected.as_ref().filter(|c| c.interval.is_since(generation)) else {
            let creates = next.interval == Interval::creation(generation);
            let puts_back = next.interval == Interval::after_restore(generation) && generation > 1;
            // Proposals of an earlier generation may arrive late.
            assert!(creates || puts_back || !next.interval.is_since(generation), "{next:?}");
            return puts_back || creates && next.in_sync.iter().all(|m| map.is_member_up(*m));
        };
        assert_eq!(next.interval, current.interval.next());
        let added: Vec<_> = next.in_sync.iter().filter(|m| !current.is_in_sync(**m)).collect();
        let promotes = cas.proposer.osd != current.primary;
        let stays = next.in_sync.iter().any(|m| current.is_in_sync(*m));
        let shrinks = next.in_sync.len() < current.in_sync.len() && next.in_sync.len() < self.min_size;
        current.is_in_sync(cas.proposer)
            && added.iter().all(|m| map.is_member_up(**m))
            && stays
            && !(promotes && (next.primary != cas.proposer.osd || !added.is_empty()))
            && !shrinks
    }
}
