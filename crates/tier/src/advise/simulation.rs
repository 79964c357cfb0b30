//! What the policies of this crate make of a trace, with any parameters.
//!
//! [`simulate`] runs the PGs of one OSD, which share its promotion throttle, through their traces. A PG is a cache in
//! which each object that was followed stands for several: sums, targets, the agent's steps and the throttle are scaled by
//! the share that was followed. It decides by [`promote::decide`](crate::promote::decide), and its agent by
//! [`effort`](crate::effort) and [`temperature`](crate::temperature), as an OSD does.
//!
//! The first half of a trace warms the caches up, the second half counts. An object whose first access in the trace was a
//! hit is in the cache from the beginning, as far as it has room. Objects with several accesses, or such a hit, are in the
//! hit sets from before the trace, and frequencies are those of the whole trace from the beginning.
//!
//! # What is left out
//!
//! Flushes are as fast as the agent wants them, promotions take no time, nothing is watched or pinned, hit sets make no
//! false positives, and objects keep the size that they had last.

use super::sampler::{Trace, TracedAccess};
use crate::effort::{self, AgentMode, AgentOptions, CacheSums, CacheTargets, EvictMode, FlushMode};
use crate::hit_set::history::{HitSetConfig, HitSetHistory, HitSetIndex, Recorded};
use crate::key::mix;
use crate::promote::sketch::FrequencyFilter;
use crate::promote::throttle::PromoteThrottle;
use crate::promote::{Admission, Decision, decide, fits};
use crate::temperature::{Candidate, Grades, TemperatureHistogram};
use nacre_types::object::SNAP_HEAD;
use nacre_types::pool::{CacheMode, HitSetKind};
use nacre_types::{Eversion, ObjectId, PgId};
use std::collections::{BTreeMap, BTreeSet};

/// Hit sets from before the trace that are made up.
const MOST_SEALED: u32 = 16;
/// Steps of an agent between two accesses; after that its cache counts as settled.
const MOST_STEPS: u32 = 1024;
/// Steps of an agent before the trace begins.
const MOST_SETTLING: u32 = 1 << 16;
const NS_PER_S: u64 = 1_000_000_000;

/// What lets objects in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmissionKind {
    /// The pool's recency variables.
    Recency,
    /// [`FrequencyFilter`].
    Frequency,
}

/// The parameters of a cache, for one of its PGs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    /// The cache's mode.
    pub mode: CacheMode,
    /// How accesses are recorded.
    pub hit_sets: HitSetConfig,
    /// How objects are judged by them.
    pub grades: Grades,
    /// What lets objects in.
    pub admission: AdmissionKind,
    /// `min_read_recency_for_promote`.
    pub min_read_recency: u32,
    /// `min_write_recency_for_promote`.
    pub min_write_recency: u32,
    /// The targets; `max_bytes` is the effective one.
    pub targets: CacheTargets,
    /// The OSD's options for its agents.
    pub agent: AgentOptions,
    /// `cache_min_evict_age` in seconds.
    pub min_evict_age_s: u32,
    /// `osd_tier_promote_max_objects_sec`.
    pub promoted_objects_per_s: u64,
    /// `osd_tier_promote_max_bytes_sec`.
    pub promoted_bytes_per_s: u64,
}

impl Policy {
    /// The same with targets that are `scale` times as large.
    pub fn scaled(self, scale: f64) -> Policy {
        let scaled = |target: u64| match target {
            0 => 0,
            target => ((target as f64 * scale) as u64).max(1),
        };
        let (max_bytes, max_objects) = (scaled(self.targets.max_bytes), scaled(self.targets.max_objects));
        Policy { targets: CacheTargets { max_bytes, max_objects, ..self.targets }, ..self }
    }
}

/// Accesses per second, and those of them that found their object in the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Hits {
    /// All accesses.
    pub accesses: f64,
    /// Hits. An estimate can be less than 0 or more than all.
    pub hits: f64,
}

impl Hits {
    /// The hit rate, 0 to 1; `None` where nothing was accessed.
    pub fn rate(&self) -> Option<f64> {
        (self.accesses > 0.0).then(|| (self.hits / self.accesses).clamp(0.0, 1.0))
    }

    /// Adds those of another PG or OSD.
    pub fn add(&mut self, other: Hits) {
        self.accesses += other.accesses;
        self.hits += other.hits;
    }
}

/// The part of a trace that counts: all accesses in it, their hits, and its seconds. PGs' traces differ in length.
struct Counted {
    from: usize,
    accesses: f64,
    hits: f64,
    seconds: f64,
}

impl Counted {
    fn of(trace: &Trace) -> Counted {
        let from = trace.len() / 2;
        let (accesses, hits) = trace.counted(from);
        let seconds = (trace.duration_ns(from) as f64 / 1e9).max(1e-3);
        Counted { from, accesses: accesses.into(), hits: hits.into(), seconds }
    }
}

/// The hits that the PGs had during the part of their traces that a simulation counts.
pub fn measured<'a>(traces: impl IntoIterator<Item = &'a Trace>) -> Hits {
    let mut sum = Hits::default();
    for counted in traces.into_iter().map(Counted::of) {
        let Counted { accesses, hits, seconds, .. } = counted;
        sum.add(Hits { accesses: accesses / seconds, hits: hits / seconds });
    }
    sum
}

/// The hits that the PGs would have had. All policies are of one OSD: they differ in their targets' divisors at most.
pub fn simulate(pgs: &[(PgId, &Trace, Policy)]) -> Hits {
    let Some((_, _, policy)) = pgs.first() else { return Hits::default() };
    let mut caches: Vec<PgCache> =
        pgs.iter().map(|(pg, trace, policy)| PgCache::of_trace(*pg, trace, policy)).collect();
    let counted: Vec<Counted> = pgs.iter().map(|(_, trace, _)| Counted::of(trace)).collect();
    let mut order: Vec<(u64, u32, u32)> =
        Vec::with_capacity(pgs.iter().map(|(_, trace, _)| trace.len()).sum());
    for (pg, (_, trace, _)) in pgs.iter().enumerate() {
        order.extend((0..trace.len()).map(|at| (trace.access(at).at_ns, pg as u32, at as u32)));
    }
    order.sort_unstable();
    let first_ns = order.first().map_or(0, |(at_ns, _, _)| *at_ns);
    let (objects, bytes) = (policy.promoted_objects_per_s, policy.promoted_bytes_per_s);
    let mut throttle = PromoteThrottle::new(objects, bytes, first_ns);
    let mut of_objects: Vec<BTreeMap<u64, OfObject>> = vec![BTreeMap::new(); pgs.len()];
    for (_, pg, at) in order {
        let (pg, at) = (pg as usize, at as usize);
        let access = pgs[pg].1.access(at);
        let is_hit = caches[pg].access(&access, &mut throttle);
        if at >= counted[pg].from {
            let of_object = of_objects[pg].entry(access.key).or_default();
            of_object.accesses += 1.0;
            of_object.measured += f64::from(u8::from(access.is_hit));
            of_object.simulated += f64::from(u8::from(is_hit));
        }
    }
    let (per_access, per_hit) = regression(of_objects.iter().flat_map(BTreeMap::values));
    let mut sum = Hits::default();
    for (((_, trace, _), counted), of_objects) in pgs.iter().zip(counted).zip(of_objects) {
        let total = |part: fn(&OfObject) -> f64| of_objects.values().map(part).sum::<f64>() / trace.rate();
        let hits = total(|object| object.simulated)
            + per_access * (counted.accesses - total(|object| object.accesses))
            + per_hit * (counted.hits - total(|object| object.measured));
        sum.add(Hits { accesses: counted.accesses / counted.seconds, hits: hits / counted.seconds });
    }
    sum
}

/// What counts of one object: its accesses, the hits that it had, and those that it has in the simulation.
#[derive(Clone, Copy, Debug, Default)]
struct OfObject {
    accesses: f64,
    measured: f64,
    simulated: f64,
}

/// The regression of objects' simulated hits on their accesses and on the hits that they had. Of both, the sums over all
/// objects are known: they tell how far the followed ones are from the average. Where few objects have many of the
/// accesses, an access more stands for a hit more; where all are accessed alike, for the hit rate.
fn regression<'a>(objects: impl Iterator<Item = &'a OfObject>) -> (f64, f64) {
    let (mut aa, mut am, mut mm, mut sa, mut sm) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for OfObject { accesses, measured, simulated } in objects {
        aa += accesses * accesses;
        am += accesses * measured;
        mm += measured * measured;
        sa += simulated * accesses;
        sm += simulated * measured;
    }
    let determinant = aa * mm - am * am;
    if determinant > 1e-3 * aa * mm {
        return ((sa * mm - sm * am) / determinant, (sm * aa - sa * am) / determinant);
    }
    // Nothing or nearly everything hit.
    (if aa > 0.0 { sa / aa } else { 0.0 }, 0.0)
}

struct Object {
    id: ObjectId,
    bytes: u64,
}

/// The rate of promotions as a moving average.
#[derive(Clone, Copy, Default)]
struct Promotions {
    per_s: f64,
    at_ns: u64,
}

impl Promotions {
    /// The time over which the average fades, in seconds.
    const FADES_S: f64 = 4.0;

    fn per_s(&self, now_ns: u64) -> f64 {
        let elapsed_s = now_ns.saturating_sub(self.at_ns) as f64 / NS_PER_S as f64;
        self.per_s * (-elapsed_s / Promotions::FADES_S).exp()
    }

    fn add(&mut self, now_ns: u64, objects: f64) {
        *self = Promotions { per_s: self.per_s(now_ns) + objects / Promotions::FADES_S, at_ns: now_ns };
    }
}

#[derive(Clone, Copy)]
struct Held {
    changed_ns: u64,
    is_dirty: bool,
}

/// A PG of a cache.
pub(super) struct PgCache {
    policy: Policy,
    /// What is added to times: hit sets begin before the trace does.
    base_ns: u64,
    rate: f64,
    objects: BTreeMap<u64, Object>,
    history: HitSetHistory,
    filter: Option<FrequencyFilter>,
    histogram: TemperatureHistogram,
    mode: AgentMode,
    /// Objects that may come in and displace nothing, in parts.
    room: f64,
    held: BTreeMap<u64, Held>,
    held_bytes: u64,
    dirty: BTreeSet<u64>,
    next_step_ns: u64,
    /// Where the look at clean objects goes on.
    position: u64,
    evicted_in_round: bool,
    rounds: u32,
    /// Parts of objects that the agent may look at and evict still.
    checks: f64,
    evictions: f64,
    promotions: Promotions,
    /// Parts of objects and bytes that the throttle was not charged yet.
    uncharged_objects: f64,
    uncharged_bytes: f64,
}

impl PgCache {
    fn of_trace(pg: PgId, trace: &Trace, policy: &Policy) -> PgCache {
        let first_ns = if trace.is_empty() { 0 } else { trace.access(0).at_ns };
        let bytes: u64 = trace.sizes().values().sum();
        let average = bytes.checked_div(trace.objects() as u64).unwrap_or(0);
        let period_ns = u64::from(policy.hit_sets.period_s) * NS_PER_S;
        let sealed = policy.hit_sets.count.min(MOST_SEALED);
        let mut cache = PgCache::new(pg, policy, trace.rate(), average, first_ns);
        for (key, bytes) in trace.sizes() {
            cache.add_object(*key, *bytes);
        }
        let mut found = BTreeSet::new();
        let mut known = BTreeSet::new();
        for access in (0..trace.len()).map(|at| trace.access(at)) {
            let is_first = found.insert(access.key);
            if is_first && access.is_hit {
                cache.hold(access.key, Held { changed_ns: 0, is_dirty: false });
            }
            if !is_first || access.is_hit {
                known.insert(access.key);
            }
            // Frequencies were about the same before the trace.
            if let (Some(filter), Some(object)) = (&mut cache.filter, cache.objects.get(&access.key)) {
                filter.record(&object.id);
            }
        }
        for turn in 0..sealed {
            if turn > 0 {
                cache.history.rotate(first_ns + u64::from(turn) * period_ns, Eversion::default());
            }
            known.iter().filter_map(|key| cache.objects.get(key)).for_each(|object| {
                cache.history.record(&object.id, first_ns);
            });
        }
        cache.base_ns = u64::from(sealed.saturating_sub(1)) * period_ns;
        cache.next_step_ns += cache.base_ns;
        cache.settle();
        cache
    }

    /// Evicts what a cache with other targets held and this one has no room for: how long that takes is not what is asked.
    fn settle(&mut self) {
        let now_ns = self.next_step_ns;
        self.choose();
        for _ in 0..MOST_SETTLING {
            // A whole object a step, however many each followed one stands for.
            (self.checks, self.evictions) = (1.0, 1.0);
            if !self.evict_some(now_ns) {
                break;
            }
            self.choose();
        }
    }

    /// An empty cache of objects of about that size, of which `rate` are followed.
    pub(super) fn new(pg: PgId, policy: &Policy, rate: f64, average_bytes: u64, now_ns: u64) -> PgCache {
        let mut hit_sets = policy.hit_sets;
        if hit_sets.kind != HitSetKind::None {
            hit_sets.kind = HitSetKind::ExplicitHash;
        }
        hit_sets.max_size = ((f64::from(hit_sets.max_size) * rate) as u32).max(1);
        let filter = (policy.admission == AdmissionKind::Frequency).then(|| {
            let one = CacheSums { objects: 1, bytes: average_bytes, ..CacheSums::default() };
            let capacity = effort::capacity_objects(&one, &policy.targets);
            FrequencyFilter::new((capacity as f64 * rate) as u64)
        });
        PgCache {
            policy: *policy,
            base_ns: 0,
            rate,
            objects: BTreeMap::new(),
            history: HitSetHistory::activate(pg, hit_sets, HitSetIndex::default(), now_ns),
            filter,
            histogram: TemperatureHistogram::default(),
            mode: AgentMode::default(),
            room: 0.0,
            held: BTreeMap::new(),
            held_bytes: 0,
            dirty: BTreeSet::new(),
            next_step_ns: now_ns,
            position: 0,
            evicted_in_round: false,
            rounds: 0,
            checks: 0.0,
            evictions: 0.0,
            promotions: Promotions::default(),
            uncharged_objects: 0.0,
            uncharged_bytes: 0.0,
        }
    }

    /// Makes an object known.
    pub(super) fn add_object(&mut self, key: u64, bytes: u64) {
        let pool = nacre_types::PoolId(0);
        let id = ObjectId::with_hash(pool, "", "", "", SNAP_HEAD, mix(key) as u32);
        self.objects.insert(key, Object { id, bytes });
    }

    fn hold(&mut self, key: u64, held: Held) {
        if self.held.insert(key, held).is_none() {
            self.held_bytes += self.objects.get(&key).map_or(0, |object| object.bytes);
        }
        if held.is_dirty {
            self.dirty.insert(key);
        }
    }

    /// An access of a known object: whether the cache had it.
    pub(super) fn access(&mut self, access: &TracedAccess, throttle: &mut PromoteThrottle) -> bool {
        let now_ns = access.at_ns + self.base_ns;
        self.run_agent(now_ns);
        let Some(object) = self.objects.get(&access.key) else { return false };
        let recorded = self.history.record(&object.id, now_ns);
        if let Some(filter) = &mut self.filter {
            filter.record(&object.id);
        }
        if let Some(held) = self.held.get_mut(&access.key) {
            if access.request.writes {
                *held = Held { changed_ns: now_ns, is_dirty: true };
                self.dirty.insert(access.key);
            }
            return true;
        }
        let is_full = self.mode.evict == EvictMode::Full;
        let admission = self.admission(recorded);
        let mut asked = false;
        let decision = decide(self.policy.mode, &object.id, &access.request, is_full, admission, || {
            asked = throttle.try_start(access.at_ns);
            asked
        });
        let (promotes, becomes_dirty) = match decision {
            Decision::Promote => (true, access.request.writes),
            Decision::ProxyRead { promote } | Decision::ProxyWrite { promote } => (promote, false),
            Decision::Execute | Decision::Redirect | Decision::WaitForRoom => (false, false),
        };
        let (targets, bytes) = (&self.policy.targets, object.bytes);
        if promotes && fits(bytes, targets.pg_bytes(), targets.full_ratio_micro) {
            self.charge(throttle, asked, bytes);
            self.room -= 1.0;
            if self.room <= 0.0 {
                self.next_step_ns = self.next_step_ns.min(now_ns + effort::BUSY_STEP_NS);
            }
            self.promotions.add(now_ns, 1.0 / self.rate);
            self.hold(access.key, Held { changed_ns: now_ns, is_dirty: becomes_dirty });
        }
        false
    }

    fn admission(&self, recorded: Recorded) -> Admission<'_> {
        match &self.filter {
            Some(filter) => Admission::Frequency { filter, has_room: self.room > 0.0 },
            None if !self.history.is_enabled() => Admission::Always,
            None => Admission::Recency {
                history: &self.history,
                was_in_current: recorded.was_in_current,
                min_read: self.policy.min_read_recency,
                min_write: self.policy.min_write_recency,
            },
        }
    }

    /// Charges the objects for which the promoted one stands; the throttle charged itself for one where it was asked.
    fn charge(&mut self, throttle: &mut PromoteThrottle, asked: bool, bytes: u64) {
        if asked {
            self.uncharged_objects += 1.0 / self.rate - 1.0;
        }
        self.uncharged_bytes += bytes as f64 / self.rate;
        let (objects, bytes) = (self.uncharged_objects as u64, self.uncharged_bytes as u64);
        throttle.started(objects);
        throttle.copied(bytes);
        self.uncharged_objects -= objects as f64;
        self.uncharged_bytes -= bytes as f64;
    }

    fn sums(&self) -> CacheSums {
        let scaled = |count: f64| (count / self.rate).round() as u64;
        CacheSums {
            objects: scaled(self.held.len() as f64),
            bytes: scaled(self.held_bytes as f64),
            dirty: scaled(self.dirty.len() as f64),
            ..CacheSums::default()
        }
    }

    /// Lets the agent do what it does until then.
    fn run_agent(&mut self, now_ns: u64) {
        let mut steps = 0;
        while self.next_step_ns <= now_ns {
            let wait_ns = self.step(self.next_step_ns);
            steps += 1;
            if steps == MOST_STEPS {
                self.next_step_ns = now_ns;
            }
            self.next_step_ns += wait_ns.unwrap_or_else(|| {
                // Only the hit sets and ages change until the next access.
                let period_ns = u64::from(self.policy.hit_sets.period_s) * NS_PER_S;
                let until_ns = now_ns.saturating_sub(self.next_step_ns);
                until_ns.min(period_ns).max(effort::IDLE_STEP_NS)
            });
        }
    }

    /// One step; how long the agent rests where there is nothing to do.
    fn step(&mut self, now_ns: u64) -> Option<u64> {
        if self.history.is_rotation_due(now_ns) {
            self.history.rotate(now_ns, Eversion::default());
        }
        let evicted_before = self.mode.evict != EvictMode::Idle;
        self.choose();
        while self.mode.flush != FlushMode::Idle
            && let Some(flushed) = self.dirty.pop_first()
        {
            if let Some(held) = self.held.get_mut(&flushed) {
                held.is_dirty = false;
            }
            self.choose();
        }
        if evicted_before && self.mode.evict == EvictMode::Idle && self.is_refilled(now_ns) {
            self.mode.evict = EvictMode::Some;
            return Some(effort::BUSY_STEP_NS);
        }
        let is_busy = self.evict_some(now_ns);
        is_busy.then_some(effort::BUSY_STEP_NS)
    }

    /// Whether the agent of a whole PG would find objects again that came during its last step, and go on. Of a few
    /// followed objects none may have come.
    fn is_refilled(&self, now_ns: u64) -> bool {
        let in_a_step = self.promotions.per_s(now_ns) * effort::BUSY_STEP_NS as f64 / NS_PER_S as f64;
        self.rate < 1.0 && in_a_step >= std::f64::consts::LN_2
    }

    fn choose(&mut self) {
        let (sums, targets, agent) = (self.sums(), &self.policy.targets, &self.policy.agent);
        self.mode = effort::choose(&self.mode, &sums, targets, agent, false);
        self.room = effort::room_objects(&sums, targets, agent) as f64 * self.rate;
    }

    fn evict_some(&mut self, now_ns: u64) -> bool {
        if self.mode.evict == EvictMode::Idle {
            return false;
        }
        let is_full = self.mode.evict == EvictMode::Full;
        if is_full {
            self.dirty.iter().for_each(|key| {
                if let Some(held) = self.held.get_mut(key) {
                    held.is_dirty = false;
                }
            });
            self.dirty.clear();
        }
        // Parts of objects add up from step to step.
        let budget = |left: f64, whole: usize| left.min(1.0) + whole as f64 * self.rate;
        self.checks = budget(self.checks, effort::STEP_CHECKS);
        self.evictions = budget(self.evictions, effort::STEP_EVICTIONS);
        let surplus = effort::surplus_objects(&self.sums(), &self.policy.targets, &self.policy.agent);
        let mut surplus = surplus as f64 * self.rate;
        let mut is_over = self.held.is_empty();
        while self.checks >= 1.0 && !is_over {
            self.checks -= 1.0;
            let Some((key, held)) = self.held.range(self.position..).next().map(|(key, held)| (*key, *held))
            else {
                is_over = true;
                break;
            };
            self.position = key + 1;
            is_over = self.held.range(self.position..).next().is_none();
            let candidate = Candidate {
                local_mtime_ns: held.changed_ns,
                is_dirty: held.is_dirty,
                ..Candidate::default()
            };
            if candidate.may_evict(now_ns, self.policy.min_evict_age_s, is_full).is_err() {
                continue;
            }
            let Some(object) = self.objects.get(&key) else { continue };
            let temperature = match &self.filter {
                Some(filter) => filter.temperature(&object.id),
                None => self.policy.grades.temperature(&self.history, &object.id),
            };
            self.histogram.add(temperature);
            let is_cold = is_full || self.histogram.is_cold(temperature, self.mode.evict_effort_micro);
            if is_cold && self.evictions >= 1.0 && surplus > 0.0 {
                self.evictions -= 1.0;
                surplus -= 1.0;
                self.evicted_in_round = true;
                self.held.remove(&key);
                self.held_bytes -= object.bytes;
                if let Some(filter) = &mut self.filter {
                    filter.evicted(&object.id);
                }
            }
        }
        // An OSD looks at more objects in a step: it rests where none of the last ones had to go.
        let is_busy = !is_over || self.evicted_in_round;
        if is_over {
            self.position = 0;
            self.evicted_in_round = false;
            self.rounds += 1;
            if self.rounds.is_multiple_of(effort::HALFLIFE_ROUNDS) {
                self.histogram.decay();
            }
        }
        is_busy
    }
}

#[cfg(test)]
mod tests;
