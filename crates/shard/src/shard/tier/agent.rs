//! The in-memory state of a cache's PG, and its agent, which flushes and evicts in the background according to the pool's
//! targets.
//!
//! The agent's cost is proportional to the objects that are dirty or must be evicted. Dirty objects are known by name, from the
//! counting of the PG's objects on; clean ones are examined while some of them must be evicted.

use super::super::background::BackgroundWork as Background;
use super::super::ops::OpOutcome;
use super::super::{Shard, SumsTracker};
use super::dirty_log::DirtyLog;
use super::objects::{InternalChange, ObjectWork};
use nacre_common::options::{Options, PromoteAdmission};
use nacre_exec::tier::TierChange;
use nacre_exec::{self as exec, ObjectContext};
use nacre_pg::Mutation;
use nacre_tier::agent_policy::{
    self, AgentMode, AgentOptions, BUSY_STEP_NS, CacheOsd, CacheSums, CacheTargets, EvictMode, FlushMode,
    HALFLIFE_ROUNDS, IDLE_STEP_NS, STEP_CHECKS, STEP_EVICTIONS,
};
use nacre_tier::cache_sizing::{Access, AccessTrace, Sampler};
use nacre_tier::hit_set::history::{
    ARCHIVE_NAMESPACE, AccessRecord, HitSetArchive, HitSetConfig, HitSetHistory, HitSetIndex,
};
use nacre_tier::key::object_key;
use nacre_tier::promote::sketch::FrequencyFilter;
use nacre_tier::promote::{AdmissionPolicy, RequestTraits};
use nacre_tier::temperature::{Candidate, Grades, TemperatureHistogram};
use nacre_types::encoding::encode;
use nacre_types::errno::Errno;
use nacre_types::ids::{ClientId, Epoch, OsdId, PgId, PoolId};
use nacre_types::object::ObjectId;
use nacre_types::op::{ListDirtyReply, Op, OpResult, OsdOp, object_flag, user_attr};
use nacre_types::osdmap::{OsdMap, flag};
use nacre_types::pool::Tiering;
use std::collections::BTreeMap;

/// Objects in one answer to a listing.
const MAX_LISTED: u64 = 1024;
/// After this time without a client's request, the agent flushes [`IDLE_FLUSHES`] objects at a time.
const CLIENTS_IDLE_NS: u64 = 100_000_000;
/// The objects that the agent of a shard flushes at a time while there are no client requests, if its options do not allow
/// more.
const IDLE_FLUSHES: u64 = 16;
/// The rest between flushes at low speed beside clients, as a multiple of their duration.
const FLUSH_PAUSE_FACTOR: u64 = 3;
/// The share of an OSD's space, in millionths, that caches leave unused.
const RESERVE_MICRO: u32 = 100_000;
/// The attribute of an archived hit set with its times.
const ARCHIVE_ATTR: &str = "archive";

/// See the module's documentation.
pub(in super::super) struct CacheState {
    pub(in super::super) history: HitSetHistory,
    pub(super) mode: AgentMode,
    histogram: TemperatureHistogram,
    rounds: u32,
    /// The position at which the examination of clean objects continues; `None` for the start.
    position: Option<ObjectId>,
    /// The epoch of the last change of the overlay.
    overlay_epoch: Epoch,
    /// Dirty objects, as far as the PG's objects have been counted.
    dirty: BTreeMap<ObjectId, Dirty>,
    /// In a pool that writes through: the number of writes per object since it was clean.
    unflushed: BTreeMap<ObjectId, usize>,
    /// The names that are recorded in the base.
    pub(super) dirty_log: DirtyLog,
    /// The position at which flushing continues.
    flushed_to: Option<ObjectId>,
    pub(super) next_ns: u64,
    /// The most bytes that the PG should hold; 0 for no limit.
    pub(super) pg_bytes: u64,
    /// The filter for admission by frequency, if the OSD uses it.
    filter: Option<Box<FrequencyFilter>>,
    /// The pool's targets, with the effective one in bytes.
    targets: Option<CacheTargets>,
    /// The number of objects that may be promoted without displacing others, until the agent's next step.
    room: u64,
    /// The number of objects that must be evicted.
    surplus: u64,
    /// The samples for `tier advise`.
    sampler: Option<Box<Sampler>>,
}

/// The number of PGs of each cache pool that each OSD has a copy of, in the map of an epoch.
#[derive(Default)]
pub(super) struct PgCopyCounts {
    epoch: Epoch,
    pools: BTreeMap<PoolId, BTreeMap<OsdId, u32>>,
}

impl PgCopyCounts {
    /// The numbers for a pool. All of its PGs are counted once for each map.
    fn of(&mut self, map: &OsdMap, pool: PoolId) -> &BTreeMap<OsdId, u32> {
        if self.epoch != map.epoch {
            *self = PgCopyCounts { epoch: map.epoch, pools: BTreeMap::new() };
        }
        self.pools.entry(pool).or_insert_with(|| {
            let mut copies = BTreeMap::new();
            let pg_num = map.pools.get(&pool).map_or(0, |pool| pool.pg_num);
            for members in (0..pg_num).filter_map(|seed| map.membership(PgId::new(pool, seed))) {
                for osd in members.acting() {
                    *copies.entry(osd).or_default() += 1;
                }
            }
            copies
        })
    }
}

/// The meaning of a dirty object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dirty {
    Object,
    /// A removed object.
    Whiteout,
    /// It does not count: it is from before the overlay was removed ([`exec::tier::is_valid`]).
    Obsolete,
}

impl CacheState {
    fn new(
        (pg, overlay_epoch): (PgId, Epoch),
        config: HitSetConfig,
        index: HitSetIndex,
        wall_ns: u64,
        next_ns: u64,
    ) -> CacheState {
        CacheState {
            overlay_epoch,
            history: HitSetHistory::activate(pg, config, index, wall_ns),
            mode: AgentMode::default(),
            histogram: TemperatureHistogram::default(),
            rounds: 0,
            position: None,
            dirty: BTreeMap::new(),
            unflushed: BTreeMap::new(),
            dirty_log: DirtyLog::default(),
            flushed_to: None,
            next_ns,
            pg_bytes: 0,
            filter: None,
            targets: None,
            room: 0,
            surplus: 0,
            sampler: None,
        }
    }

    /// Records an object's state when it changes or is found.
    pub(in super::super) fn note(&mut self, object: &ObjectId, context: &ObjectContext) {
        let is_dirty = exec::tier::is_dirty(context);
        self.dirty_log.note(object, is_dirty);
        if is_dirty {
            let now = match exec::tier::is_whiteout(context) {
                _ if !exec::tier::is_valid(context, self.overlay_epoch) => Dirty::Obsolete,
                true => Dirty::Whiteout,
                false => Dirty::Object,
            };
            match self.dirty.get_mut(object) {
                Some(known) => *known = now,
                None => _ = self.dirty.insert(object.clone(), now),
            }
        } else {
            self.dirty.remove(object);
            self.unflushed.remove(object);
        }
    }

    /// Counts a write on an object. Returns `false` if the object must be flushed first: a flush carries the records of only a
    /// limited number of requests, and all others are lost with the cache's copies.
    pub(super) fn try_add_unflushed(&mut self, object: &ObjectId, is_dirty: bool) -> bool {
        match self.unflushed.get_mut(object) {
            Some(writes) if is_dirty && *writes >= exec::MAX_COPIED_REQIDS => return false,
            Some(writes) if is_dirty => *writes += 1,
            // Another primary executed writes on it, or it was dirty before.
            None if is_dirty => return false,
            _ => _ = self.unflushed.insert(object.clone(), 1),
        }
        true
    }

    /// Records an access of an object.
    fn record(&mut self, object: &ObjectId, access: &Access, wall_ns: u64) -> AccessRecord {
        if let Some(filter) = &mut self.filter {
            filter.record(object);
        }
        if let Some(sampler) = &mut self.sampler {
            sampler.record(access);
        }
        self.history.record(object, wall_ns)
    }

    /// The samples of the PG's accesses, and its targets.
    pub(super) fn trace(&self) -> Option<(AccessTrace, CacheTargets)> {
        Some((self.sampler.as_ref()?.trace(), self.targets?))
    }

    /// Applies the OSD's options for admission and advice.
    fn configure(&mut self, options: &Options, capacity_objects: u64) {
        let samples = u32::try_from(options.osd.osd_tier_advise_objects).unwrap_or(u32::MAX);
        if self.sampler.as_ref().map_or(0, |sampler| sampler.max_objects()) != samples {
            self.sampler = (samples > 0).then(|| Box::new(Sampler::new(samples)));
        }
        let is_filtered = options.osd.osd_tier_promote_admission == PromoteAdmission::Frequency;
        // A new filter has no history. So the existing one may be twice too large or too small.
        let fits = |filter: &FrequencyFilter| {
            let (made, wanted) = (filter.capacity(), FrequencyFilter::capacity_for(capacity_objects));
            made <= 2 * wanted && wanted <= 2 * made
        };
        if !is_filtered {
            self.filter = None;
        } else if self.filter.as_ref().is_none_or(|filter| !fits(filter)) {
            self.filter = Some(Box::new(FrequencyFilter::new(capacity_objects)));
        }
    }

    /// Records the start of a promotion. Returns whether there is room for more.
    fn admitted(&mut self) -> bool {
        self.room = self.room.saturating_sub(1);
        self.room > 0
    }

    /// The current admission rule.
    pub(super) fn admission(&self, tiering: &Tiering, recorded: AccessRecord) -> AdmissionPolicy<'_> {
        if let Some(filter) = &self.filter {
            return AdmissionPolicy::Frequency { filter, has_room: self.room > 0 };
        }
        if !self.history.is_enabled() {
            return AdmissionPolicy::Always;
        }
        AdmissionPolicy::Recency {
            history: &self.history,
            was_in_current: recorded.was_in_current,
            min_read: tiering.min_read_recency_for_promote,
            min_write: tiering.min_write_recency_for_promote,
        }
    }

    /// Up to `max` dirty objects from `cursor` on, of one namespace or all.
    pub(super) fn list_dirty(&self, cursor: &ObjectId, max: u64, namespace: Option<&str>) -> ListDirtyReply {
        let max = usize::try_from(max.clamp(1, MAX_LISTED)).unwrap_or(usize::MAX);
        let is_wanted = |object: &ObjectId| namespace.is_none_or(|wanted| object.namespace() == wanted);
        let wanted = |(object, dirty): &(&ObjectId, &Dirty)| **dirty != Dirty::Obsolete && is_wanted(object);
        let mut found = self.dirty.range(cursor.clone()..).filter(wanted);
        let objects = found.by_ref().take(max);
        let objects = objects.map(|(object, dirty)| (object.clone(), *dirty == Dirty::Whiteout)).collect();
        ListDirtyReply { objects, next: found.next().map(|(object, _)| object.clone()) }
    }

    /// Whether the object is dirty, as far as the PG's objects have been counted.
    pub(super) fn is_dirty(&self, object: &ObjectId) -> bool {
        self.dirty.contains_key(object)
    }

    /// The number of dirty objects.
    pub(super) fn dirty_count(&self) -> usize {
        self.dirty.len()
    }

    /// The dirty objects.
    pub(super) fn dirty_objects(&self) -> impl Iterator<Item = &ObjectId> {
        self.dirty.keys()
    }

    /// Up to `count` dirty objects, first those after the last flushed one.
    fn next_to_flush(&mut self, count: usize) -> Vec<ObjectId> {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = self.flushed_to.clone().map_or(Unbounded, Excluded);
        let mut found: Vec<ObjectId> =
            self.dirty.range((from, Unbounded)).map(|(object, _)| object.clone()).take(count).collect();
        if found.len() < count {
            self.flushed_to = None;
            let more = self.dirty.keys().take(count - found.len());
            let more: Vec<_> = more.filter(|object| !found.contains(object)).cloned().collect();
            found.extend(more);
        }
        if let Some(last) = found.last() {
            self.flushed_to = Some(last.clone());
        }
        found
    }
}

pub(super) fn hit_set_config(tiering: &Tiering, options: &Options) -> HitSetConfig {
    let osd = &options.osd;
    let size = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    HitSetConfig::new(tiering, size(osd.osd_hit_set_min_size), size(osd.osd_hit_set_max_size))
}

fn micro(ratio: f64) -> u32 {
    (ratio.clamp(0.0, 1.0) * 1e6) as u32
}

pub(super) fn agent_options(options: &Options) -> AgentOptions {
    let osd = &options.osd;
    AgentOptions {
        slop_micro: micro(osd.osd_agent_slop),
        min_evict_effort_micro: micro(osd.osd_agent_min_evict_effort),
        quantize_effort_micro: micro(osd.osd_agent_quantize_effort),
    }
}

impl Shard {
    /// Starts or ends the cache's work on a PG, according to its current role and state.
    pub(in super::super) fn update_cache_state(&mut self, slot: u32) {
        let Some(hosted) = self.slots.get(slot as usize).and_then(Option::as_ref) else { return };
        let tiering =
            hosted.role.as_ref().filter(|role| role.leaves_whiteouts()).and_then(|role| role.cache.clone());
        let overlay_epoch = hosted.role.as_ref().map_or(Epoch(0), |role| role.overlay_epoch);
        let known = hosted.cache.as_ref().map(|cache| cache.overlay_epoch);
        let (pg, has_state) = (hosted.pg, known == Some(overlay_epoch));
        let Some(tiering) = tiering.filter(|_| hosted.active) else {
            if known.is_some() {
                self.release_room(slot);
                self.drop_flush_retries(slot);
                self.fail_dirty_log(slot);
            }
            if let Some(hosted) = self.slots[slot as usize].as_mut() {
                hosted.cache = None;
            }
            return;
        };
        let wall_ns = self.shared.world.wall_ns();
        let config = hit_set_config(&tiering, &self.shared.config.snapshot());
        let mut begins =
            (!has_state).then(|| Box::new(self.load_cache(slot, (pg, overlay_epoch), config, wall_ns)));
        let Some(hosted) = self.slots[slot as usize].as_mut() else { return };
        if let Some(cache) = hosted.cache.as_mut().filter(|_| has_state) {
            return cache.history.reconfigure(config, wall_ns);
        }
        if let (Some(begins), Some(before)) = (&mut begins, &mut hosted.cache) {
            begins.dirty_log = std::mem::take(&mut before.dirty_log).reset_for_overlay();
        }
        hosted.cache = begins;
        // Dirty objects are found by counting the objects, from the first one on.
        let was_counted = hosted.sums.is_complete();
        hosted.sums = SumsTracker::default();
        if was_counted {
            self.background.push_back(Background::Sums { slot });
        }
        self.schedule_agent(slot, self.now_ns + IDLE_STEP_NS);
    }

    /// Loads the PG's archived hit sets.
    fn load_cache(
        &self,
        slot: u32,
        (pg, overlay_epoch): (PgId, Epoch),
        config: HitSetConfig,
        wall_ns: u64,
    ) -> CacheState {
        let store = &*self.shared.store;
        let mut index = HitSetIndex::default();
        let mut objects = Vec::new();
        let first = ObjectId::min_at_hash(pg.pool, pg.seed);
        let page = store.list_objects(pg, &first, None, nacre_tier::hit_set::history::MAX_SETS as usize);
        let entries = page.map(|page| page.entries).unwrap_or_default();
        let is_archive =
            |object: &&ObjectId| object.namespace() == ARCHIVE_NAMESPACE && object.hash() == pg.seed;
        for object in entries.iter().filter(is_archive) {
            let times = store.get_attr(pg, object, &user_attr(ARCHIVE_ATTR)).ok().flatten();
            if let Some(archive) = times.and_then(|times| postcard::from_bytes::<HitSetArchive>(&times).ok())
            {
                objects.push((archive, object.clone()));
            }
        }
        objects.sort_by_key(|(archive, _)| *archive);
        index.archives = objects.iter().map(|(archive, _)| *archive).collect();
        let first_step_ns = self.now_ns + IDLE_STEP_NS;
        let mut state = CacheState::new((pg, overlay_epoch), config, index, wall_ns, first_step_ns);
        for archive in state.history.unread() {
            let found = objects.iter().find(|(known, _)| *known == archive);
            let data = found.and_then(|(_, object)| store.read(pg, object, 0, 64 << 20).ok());
            if let Some(Err(error)) = data.map(|data| state.history.load(&archive, &data)) {
                tracing::warn!(%pg, %error, "an archived hit set can't be read");
            }
        }
        self.replay_accesses(slot, &mut state.history);
        state
    }

    /// Records clients' writes since the last archive, as far as the log has them. Reads under the previous primary are lost.
    fn replay_accesses(&self, slot: u32, history: &mut HitSetHistory) {
        let Some(hosted) = self.slots.get(slot as usize).and_then(Option::as_ref) else { return };
        let entries = hosted.machine.log().entries().rev();
        for entry in entries.take_while(|entry| entry.object.namespace() != ARCHIVE_NAMESPACE) {
            if entry.reqid.client != ClientId(0) {
                history.replay(&entry.object);
            }
        }
    }

    /// When the next agent must run.
    pub(in super::super) fn next_agent_ns(&self) -> Option<u64> {
        self.tiers.agents.peek().map(|std::cmp::Reverse((at, _))| *at)
    }

    /// Runs the agents that are due.
    pub(in super::super) fn run_due_agents(&mut self) {
        while let Some(std::cmp::Reverse((at, slot))) = self.tiers.agents.peek().copied() {
            if at > self.now_ns {
                break;
            }
            self.tiers.agents.pop();
            let next_ns = self.slots.get(slot as usize).and_then(Option::as_ref);
            let next_ns = next_ns.and_then(|hosted| hosted.cache.as_ref()).map(|cache| cache.next_ns);
            if next_ns == Some(at) {
                let wait_ns = self.agent_step(slot);
                self.schedule_agent(slot, self.now_ns + wait_ns);
            }
        }
    }

    /// Schedules the agent of a PG for this time.
    pub(super) fn schedule_agent(&mut self, slot: u32, at_ns: u64) {
        let hosted = self.slots.get_mut(slot as usize).and_then(Option::as_mut);
        let Some(cache) = hosted.and_then(|hosted| hosted.cache.as_mut()) else { return };
        cache.next_ns = at_ns;
        self.tiers.agents.push(std::cmp::Reverse((at_ns, slot)));
        self.inbox.wake_task();
    }

    /// Schedules the agent of a PG for this time at the latest.
    pub(super) fn schedule_agent_by(&mut self, slot: u32, at_ns: u64) {
        let hosted = self.slots.get(slot as usize).and_then(Option::as_ref);
        let is_due = |at: u64| at <= at_ns && at > self.now_ns;
        if !hosted.and_then(|hosted| hosted.cache.as_ref()).is_some_and(|cache| is_due(cache.next_ns)) {
            self.schedule_agent(slot, at_ns);
        }
    }

    /// Records the start of a promotion. If there is no room for more, the agent runs soon.
    pub(super) fn on_promotion_started(&mut self, slot: u32) {
        let hosted = self.slots.get_mut(slot as usize).and_then(Option::as_mut);
        if hosted.and_then(|hosted| hosted.cache.as_mut()).is_some_and(|cache| !cache.admitted()) {
            self.schedule_agent_by(slot, self.now_ns + BUSY_STEP_NS);
        }
    }

    /// Flushes and evicts some of the objects that must be. Returns how long the agent rests.
    fn agent_step(&mut self, slot: u32) -> u64 {
        let (Some(role), Some(map)) = (self.tier_role(slot), self.map.clone()) else { return IDLE_STEP_NS };
        let Some(tiering) = role.cache.clone() else { return IDLE_STEP_NS };
        let options = self.shared.config.snapshot();
        self.rotate_hit_set(slot);
        self.retry_flushes(slot);
        let Some(mode) = self.agent_mode(slot, &map, &tiering, &options) else { return IDLE_STEP_NS };
        let mode = match mode.flush {
            // These objects were dirty before, or no client waits for them.
            FlushMode::Idle if role.writes_through && self.has_dirty(slot) => {
                AgentMode { flush: FlushMode::Low, ..mode }
            }
            _ => mode,
        };
        self.release_room(slot);
        self.maintain_dirty_log(slot, &role);
        if map.has_flag(flag::NOTIERAGENT) {
            return IDLE_STEP_NS;
        }
        // Without an overlay, the base changes independently.
        if !role.serves {
            return if self.discard_some(slot, role.overlay_epoch) { BUSY_STEP_NS } else { IDLE_STEP_NS };
        }
        if mode.is_idle() {
            return IDLE_STEP_NS;
        }
        let flushed = self.flush_some(slot, &mode, &tiering, &options);
        let evicted = self.evict_some(slot, &mode, &tiering);
        if flushed || evicted { BUSY_STEP_NS } else { IDLE_STEP_NS }
    }

    /// Counts a write before its execution in a cache that writes through. Returns `false` if the object must be flushed first.
    pub(super) fn try_add_unflushed(&mut self, slot: u32, object: &ObjectId, is_dirty: bool) -> bool {
        let hosted = self.slots.get_mut(slot as usize).and_then(Option::as_mut);
        let cache = hosted.and_then(|hosted| hosted.cache.as_mut());
        cache.is_none_or(|cache| cache.try_add_unflushed(object, is_dirty))
    }

    /// Resets the count of an object that was found clean.
    pub(super) fn clear_unflushed(&mut self, slot: u32, object: &ObjectId) {
        let hosted = self.slots.get_mut(slot as usize).and_then(Option::as_mut);
        if let Some(cache) = hosted.and_then(|hosted| hosted.cache.as_mut()) {
            cache.unflushed.remove(object);
        }
    }

    /// Records that the base has all writes on the object.
    pub(super) fn mark_all_flushed(&mut self, slot: u32, object: &ObjectId) {
        let hosted = self.slots.get_mut(slot as usize).and_then(Option::as_mut);
        if let Some(cache) = hosted.and_then(|hosted| hosted.cache.as_mut()) {
            cache.unflushed.insert(object.clone(), 0);
        }
    }

    fn has_dirty(&self, slot: u32) -> bool {
        let hosted = self.slots.get(slot as usize).and_then(Option::as_ref);
        hosted.and_then(|hosted| hosted.cache.as_ref()).is_some_and(|cache| !cache.dirty.is_empty())
    }

    fn agent_mode(
        &mut self,
        slot: u32,
        map: &OsdMap,
        tiering: &Tiering,
        options: &Options,
    ) -> Option<AgentMode> {
        let hosted = self.slots.get(slot as usize)?.as_ref()?;
        if !hosted.active || !hosted.sums.is_complete() {
            return None;
        }
        let (pg, sums) = (hosted.pg, hosted.sums.current());
        let divisor = agent_policy::pg_divisor(map.pools.get(&pg.pool)?.pg_num, pg.seed);
        let target = self.effective_target(map, pg, tiering, sums.bytes, divisor);
        let targets = CacheTargets::new(tiering, target, divisor);
        let sums =
            CacheSums { objects: sums.objects, bytes: sums.bytes, dirty: sums.dirty, ..CacheSums::default() };
        let agent = agent_options(options);
        let cache = self.slots.get_mut(slot as usize)?.as_mut()?.cache.as_mut()?;
        // The frequency filter uses memory for existing objects, not for those that there is room for.
        let capacity = agent_policy::capacity_objects(&sums, &targets).min(2 * sums.objects + 1024);
        cache.configure(options, capacity);
        cache.targets = Some(targets);
        cache.room = agent_policy::room_objects(&sums, &targets, &agent);
        cache.surplus = agent_policy::surplus_objects(&sums, &targets, &agent);
        cache.mode = agent_policy::choose_agent_mode(&cache.mode, &sums, &targets, &agent, false);
        cache.pg_bytes = targets.pg_bytes();
        Some(cache.mode)
    }

    /// The bytes that the pool may hold, according to this PG's members.
    fn effective_target(
        &mut self,
        map: &OsdMap,
        pg: PgId,
        tiering: &Tiering,
        pg_bytes: u64,
        divisor: u32,
    ) -> u64 {
        let Some(pool) = map.pools.get(&pg.pool) else { return tiering.target_max_bytes };
        let members = map.membership(pg).map(|members| members.acting()).unwrap_or_default();
        let copies = self.tiers.copies.of(map, pg.pool);
        let total_bytes = self.shared.total_bytes.load(std::sync::atomic::Ordering::Relaxed);
        let own = self.shared.space_bytes.load(std::sync::atomic::Ordering::Relaxed);
        let osds: Vec<CacheOsd> = members
            .into_iter()
            .filter_map(|osd| {
                let free_bytes = if osd == self.shared.whoami { Some(own) } else { self.space.left(osd) };
                Some(CacheOsd {
                    free_bytes: free_bytes?,
                    total_bytes,
                    pgs: copies.get(&osd).copied().unwrap_or(0),
                })
            })
            .collect();
        let stored = pg_bytes.saturating_mul(u64::from(divisor));
        agent_policy::effective_target(tiering.target_max_bytes, stored, pool.pg_num, &osds, RESERVE_MICRO)
    }

    /// Drops copies from before the overlay was removed, including dirty ones.
    fn discard_some(&mut self, slot: u32, overlay_epoch: Epoch) -> bool {
        let Some((objects, next)) = self.next_objects(slot) else { return false };
        let mut room = STEP_EVICTIONS.saturating_sub(self.tiers.internal_changes());
        let mut discarded = false;
        for object in &objects {
            let context = self.context_of(slot, object).filter(|context| context.exists);
            let obsolete = context.filter(|context| !exec::tier::is_valid(context, overlay_epoch));
            let Some(context) = obsolete.filter(|_| !self.tiers.is_busy(object)) else { continue };
            if room == 0 {
                return true;
            }
            room -= 1;
            discarded = true;
            self.discard_stale_copy(slot, object, context.info.version, overlay_epoch);
        }
        let is_through = next.is_none();
        self.go_on_from(slot, next);
        discarded || !is_through
    }

    /// The users' objects that the agent examines in this step, and the position at which the next step continues.
    fn next_objects(&self, slot: u32) -> Option<(Vec<ObjectId>, Option<ObjectId>)> {
        let hosted = self.slots.get(slot as usize)?.as_ref()?;
        let first = ObjectId::min_at_hash(hosted.pg.pool, 0);
        let from = hosted.cache.as_ref()?.position.clone().unwrap_or(first);
        let page = self.shared.store.list_objects(hosted.pg, &from, None, STEP_CHECKS + 1).ok()?;
        let mut entries = page.entries;
        let next = (entries.len() > STEP_CHECKS).then(|| entries.pop()).flatten();
        entries.retain(|object| !nacre_pg::is_temp(object) && object.namespace() != ARCHIVE_NAMESPACE);
        Some((entries, next))
    }

    fn go_on_from(&mut self, slot: u32, next: Option<ObjectId>) {
        let hosted = self.slots.get_mut(slot as usize).and_then(Option::as_mut);
        if let Some(cache) = hosted.and_then(|hosted| hosted.cache.as_mut()) {
            cache.position = next;
        }
    }

    /// Whether a client sent a request recently.
    fn serves_clients(&self) -> bool {
        self.now_ns.saturating_sub(self.tiers.client_ns) < CLIENTS_IDLE_NS
    }

    /// Lets the agent rest after a flush that took `took_ns`, then continue with the next one. At low speed beside clients, the
    /// rest is longer than the flush, so that flushing uses a small share of processors and disks.
    pub(super) fn pause_flushing(&mut self, slot: u32, took_ns: u64) {
        let hosted = self.slots.get(slot as usize).and_then(Option::as_ref);
        let Some(cache) = hosted.and_then(|hosted| hosted.cache.as_ref()) else { return };
        let rest_ns = match cache.mode.flush {
            FlushMode::Low if self.serves_clients() => took_ns.saturating_mul(FLUSH_PAUSE_FACTOR),
            _ => 0,
        };
        self.tiers.flush_rests_until_ns = self.now_ns + rest_ns.min(IDLE_STEP_NS);
        self.schedule_agent_by(slot, self.tiers.flush_rests_until_ns);
    }

    fn flush_some(&mut self, slot: u32, mode: &AgentMode, tiering: &Tiering, options: &Options) -> bool {
        let overlay_epoch = self.tier_role(slot).map_or(Epoch(0), |role| role.overlay_epoch);
        let most = match mode.flush {
            FlushMode::Idle if mode.evict == EvictMode::Full => options.osd.osd_agent_max_ops,
            FlushMode::Idle => return false,
            FlushMode::Low => options.osd.osd_agent_max_low_ops,
            FlushMode::High => options.osd.osd_agent_max_ops,
        };
        let most = match self.serves_clients() {
            true if mode.flush == FlushMode::Low && self.now_ns < self.tiers.flush_rests_until_ns => {
                return true;
            }
            true => most,
            false => most.max(IDLE_FLUSHES),
        };
        // Flushes that clients wait for are bounded together with the clients.
        let own = self.tiers.flushes.values().filter(|flush| !flush.holds_answers()).count();
        let free = usize::try_from(most).unwrap_or(1).saturating_sub(own);
        let hosted = self.slots.get_mut(slot as usize).and_then(Option::as_mut);
        let Some(cache) = hosted.and_then(|hosted| hosted.cache.as_mut()) else { return false };
        let candidates = cache.next_to_flush(free);
        let now_ns = self.shared.world.wall_ns();
        let is_full = mode.evict == EvictMode::Full;
        let mut flushed = free == 0;
        for object in candidates {
            let Some(context) = self.context_of(slot, &object) else { continue };
            let candidate = self.candidate(&object, &context);
            if context.exists && !exec::tier::is_valid(&context, overlay_epoch) {
                if !candidate.is_blocked {
                    self.discard_stale_copy(slot, &object, context.info.version, overlay_epoch);
                    flushed = true;
                }
                continue;
            }
            if candidate.may_flush(now_ns, tiering.min_flush_age_s, is_full).is_ok() {
                self.flush(slot, &object, &context, None);
                flushed = true;
            }
        }
        flushed
    }

    fn candidate(&self, object: &ObjectId, context: &ObjectContext) -> Candidate {
        Candidate {
            local_mtime_ns: context.info.mtime_ns,
            is_dirty: exec::tier::is_dirty(context),
            is_pinned: context.info.flags & object_flag::CACHE_PIN != 0,
            has_watchers: !context.info.watchers.is_empty(),
            is_blocked: self.tiers.has_active_work(object) || self.tiers.flushes.contains_key(object),
            is_internal: object.namespace() == ARCHIVE_NAMESPACE,
        }
    }

    fn evict_some(&mut self, slot: u32, mode: &AgentMode, tiering: &Tiering) -> bool {
        if mode.evict == EvictMode::Idle {
            return false;
        }
        let hosted = self.slots.get(slot as usize).and_then(Option::as_ref);
        let Some(cache) = hosted.and_then(|hosted| hosted.cache.as_ref()) else { return false };
        let surplus = usize::try_from(cache.surplus).unwrap_or(usize::MAX);
        let Some((entries, next)) = self.next_objects(slot) else { return false };
        let grades = Grades::new(tiering.hit_set_grade_decay_rate, tiering.hit_set_search_last_n);
        let now_ns = self.shared.world.wall_ns();
        let is_full = mode.evict == EvictMode::Full;
        let room = STEP_EVICTIONS.saturating_sub(self.tiers.internal_changes()).min(surplus);
        let mut evicted = 0;
        for object in &entries {
            let Some(context) = self.context_of(slot, object).filter(|context| context.exists) else {
                continue;
            };
            let mut candidate = self.candidate(object, &context);
            candidate.is_dirty &= !self.shared.settings.breaks(Mutation::EvictDirty);
            if candidate.may_evict(now_ns, tiering.min_evict_age_s, is_full).is_err() {
                continue;
            }
            let hosted = self.slots.get_mut(slot as usize).and_then(Option::as_mut);
            let Some(cache) = hosted.and_then(|hosted| hosted.cache.as_mut()) else { return false };
            let temperature = match &cache.filter {
                Some(filter) => filter.temperature(object),
                None => grades.temperature(&cache.history, object),
            };
            cache.histogram.add(temperature);
            if evicted < room && (is_full || cache.histogram.is_cold(temperature, mode.evict_effort_micro)) {
                evicted += 1;
                if let Some(filter) = &mut cache.filter {
                    filter.record_eviction(object);
                }
                let version = context.info.version;
                let change = TierChange::Evict { version, is_flushed: false, is_unused: false };
                self.begin(slot, object, ObjectWork::Own, None);
                self.change_tier_object(slot, object, InternalChange::Change(change));
            }
        }
        let hosted = self.slots.get_mut(slot as usize).and_then(Option::as_mut);
        if let Some(cache) = hosted.and_then(|hosted| hosted.cache.as_mut()) {
            if next.is_none() {
                cache.rounds += 1;
                if cache.rounds.is_multiple_of(HALFLIFE_ROUNDS) {
                    cache.histogram.decay();
                }
            }
            cache.position = next.clone();
        }
        evicted > 0 || next.is_some()
    }

    /// Seals the current hit set and starts the next one if that is due.
    fn rotate_hit_set(&mut self, slot: u32) {
        let wall_ns = self.shared.world.wall_ns();
        let Some(hosted) = self.slots.get_mut(slot as usize).and_then(Option::as_mut) else { return };
        let last_update = hosted.machine.last_update();
        let (place, Some(cache)) = ((hosted.pg, hosted.interval), &mut hosted.cache) else { return };
        if !cache.history.is_rotation_due(wall_ns) {
            return;
        }
        let Some(rotation) = cache.history.rotate(wall_ns, last_update) else { return };
        let archive = cache.history.index().archives.back().copied();
        let times = archive.and_then(|archive| postcard::to_allocvec(&archive).ok()).unwrap_or_default();
        let write = vec![
            OsdOp::from(Op::WriteFull { data: rotation.data.into() }),
            OsdOp::from(Op::SetXattr { name: ARCHIVE_ATTR.to_owned(), value: times.into() }),
        ];
        let mut feed = |object, ops| {
            self.submit_internal(slot, place, object, ops, ClientId(0), super::TierOpState::internal());
        };
        feed(rotation.object, write);
        for old in rotation.remove {
            feed(old, vec![OsdOp::from(Op::Remove)]);
        }
    }

    /// Lists objects of a PG whose changes the base lacks.
    pub(super) fn list_dirty(
        &self,
        slot: u32,
        cursor: &ObjectId,
        max: u64,
        namespace: Option<&str>,
    ) -> OpOutcome {
        let hosted = self.slots.get(slot as usize).and_then(Option::as_ref);
        let is_used = self.tier_role(slot).is_some_and(|role| role.leaves_whiteouts());
        let known = match hosted {
            Some(_) if !is_used => Some(ListDirtyReply { objects: Vec::new(), next: None }),
            Some(hosted) if hosted.sums.is_complete() => {
                hosted.cache.as_ref().map(|cache| cache.list_dirty(cursor, max, namespace))
            }
            _ => None,
        };
        match known {
            Some(reply) => OpOutcome { ops: vec![OpResult::output(encode(&reply))], ..OpOutcome::default() },
            None => OpOutcome { result: Errno::EAGAIN.negated(), ..OpOutcome::default() },
        }
    }

    /// Records an access of a cache's object, for hits and admission. `bytes` is its size if the cache has it.
    pub(super) fn record_access(
        &mut self,
        slot: u32,
        object: &ObjectId,
        request: RequestTraits,
        bytes: Option<u64>,
        is_hit: bool,
    ) -> AccessRecord {
        let (wall_ns, now_ns) = (self.shared.world.wall_ns(), self.now_ns);
        let hosted = self.slots.get_mut(slot as usize).and_then(Option::as_mut);
        hosted.and_then(|hosted| hosted.cache.as_mut()).map_or(
            AccessRecord { was_in_current: false, rotation_due: false },
            |cache| {
                let access = Access { key: object_key(object), now_ns, request, is_hit, bytes };
                cache.record(object, &access, wall_ns)
            },
        )
    }

    /// Records that another member's copy replaced an object of the PG.
    pub(in super::super) fn note_replaced(&mut self, slot: u32, object: &ObjectId) {
        let hosted = self.slots.get(slot as usize).and_then(Option::as_ref);
        if hosted.is_none_or(|hosted| hosted.cache.is_none()) {
            return;
        }
        let context = self.context_of(slot, object).unwrap_or_default();
        if let Some(hosted) = self.slots[slot as usize].as_mut()
            && let Some(cache) = &mut hosted.cache
        {
            cache.note(object, &context);
        }
    }

    /// Resumes writes that waited for the agent: they are slowed down, but never held for room that may never become free.
    fn release_room(&mut self, slot: u32) {
        for object in self.tiers.waiting_for_room(slot) {
            self.release(&object, |state| state.has_waited = true);
        }
    }

    /// Whether writes that make objects grow wait until the agent has made room.
    pub(super) fn waits_for_room(&self, slot: u32) -> bool {
        let hosted = self.slots.get(slot as usize).and_then(Option::as_ref);
        let mode = hosted.and_then(|hosted| hosted.cache.as_ref()).map(|cache| cache.mode);
        mode.is_some_and(|mode| mode.evict == EvictMode::Full)
    }
}
