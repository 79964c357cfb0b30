//! Simulation of this crate's policies on traces, with any parameters.
//!
//! [`simulate`] replays the traces of the PGs of one OSD, which share its promotion throttle. A PG is a cache in which each sampled object
//! stands for several: sums, targets, the agent's steps and the throttle are scaled by the sampled share. As in an OSD,
//! [`promote::decide`](crate::promote::decide) makes the decisions, and the agent uses [`agent_policy`] and
//! [`temperature`](crate::temperature).
//!
//! The first half of a trace warms the caches up; the second half counts. An object whose first access in the trace was a hit is in the
//! cache from the beginning, if there is room. Objects with several accesses, or with such a hit, are in the hit sets from before the
//! trace. Frequencies are those of the whole trace from the beginning.
//!
//! # What is left out
//!
//! Flushes are as fast as the agent needs them, promotions take no time, no object is watched or pinned, hit sets have no false positives,
//! and objects keep their last size.

use super::sampler::{AccessTrace, TracedAccess};
use crate::agent_policy::{self, AgentMode, AgentOptions, CacheSums, CacheTargets, EvictMode, FlushMode};
use crate::hit_set::history::{AccessRecord, HitSetConfig, HitSetHistory, HitSetIndex};
use crate::key::mix;
use crate::promote::sketch::FrequencyFilter;
use crate::promote::throttle::PromoteThrottle;
use crate::promote::{AdmissionPolicy, MissDecision, decide, fits};
use crate::temperature::{Candidate, Grades, TemperatureHistogram};
use nacre_types::object::SNAP_HEAD;
use nacre_types::pool::{CacheMode, HitSetKind};
use nacre_types::{Eversion, ObjectId, PgId};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of artificial hit sets from before the trace.
const MAX_SEALED: u32 = 16;
/// Maximum number of an agent's steps between two accesses; after that its cache counts as settled.
const MAX_STEPS: u32 = 1024;
/// Maximum number of an agent's steps before the trace begins.
const MAX_SETTLING_STEPS: u32 = 1 << 16;
const NS_PER_S: u64 = 1_000_000_000;

/// The rule that admits objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmissionKind {
    /// The pool's recency variables.
    Recency,
    /// [`FrequencyFilter`].
    Frequency,
}

/// The parameters of a cache, for one of its PGs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CachePolicy {
    /// The cache's mode.
    pub mode: CacheMode,
    /// How accesses are recorded.
    pub hit_sets: HitSetConfig,
    /// The grades by which they determine temperatures.
    pub grades: Grades,
    /// The admission rule.
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

impl CachePolicy {
    /// Returns the policy with targets multiplied by `scale`.
    pub fn scaled(self, scale: f64) -> CachePolicy {
        let scaled = |target: u64| match target {
            0 => 0,
            target => ((target as f64 * scale) as u64).max(1),
        };
        let (max_bytes, max_objects) = (scaled(self.targets.max_bytes), scaled(self.targets.max_objects));
        CachePolicy { targets: CacheTargets { max_bytes, max_objects, ..self.targets }, ..self }
    }
}

/// Accesses per second, and the hits among them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AccessRate {
    /// All accesses.
    pub accesses: f64,
    /// Hits. An estimate can be below 0 or above the number of accesses.
    pub hits: f64,
}

impl AccessRate {
    /// The hit rate, 0 to 1; `None` without accesses.
    pub fn rate(&self) -> Option<f64> {
        (self.accesses > 0.0).then(|| (self.hits / self.accesses).clamp(0.0, 1.0))
    }

    /// Adds the hits of another PG or OSD.
    pub fn add(&mut self, other: AccessRate) {
        self.accesses += other.accesses;
        self.hits += other.hits;
    }
}

/// The part of a trace that counts: its accesses, hits and seconds. PGs' traces differ in length.
struct MeasuredPart {
    from: usize,
    accesses: f64,
    hits: f64,
    seconds: f64,
}

impl MeasuredPart {
    fn of(trace: &AccessTrace) -> MeasuredPart {
        let from = trace.len() / 2;
        let (accesses, hits) = trace.access_and_hit_counts(from);
        let seconds = (trace.duration_ns(from) as f64 / 1e9).max(1e-3);
        MeasuredPart { from, accesses: accesses.into(), hits: hits.into(), seconds }
    }
}

/// Returns the measured hits of the PGs in the part of their traces that a simulation counts.
pub fn measured<'a>(traces: impl IntoIterator<Item = &'a AccessTrace>) -> AccessRate {
    let mut sum = AccessRate::default();
    for counted in traces.into_iter().map(MeasuredPart::of) {
        let MeasuredPart { accesses, hits, seconds, .. } = counted;
        sum.add(AccessRate { accesses: accesses / seconds, hits: hits / seconds });
    }
    sum
}

/// Returns the hits that the PGs would have had. All policies must be of one OSD: only their targets' divisors may differ.
pub fn simulate(pgs: &[(PgId, &AccessTrace, CachePolicy)]) -> AccessRate {
    let Some((_, _, policy)) = pgs.first() else { return AccessRate::default() };
    let mut caches: Vec<PgCache> =
        pgs.iter().map(|(pg, trace, policy)| PgCache::of_trace(*pg, trace, policy)).collect();
    let counted: Vec<MeasuredPart> = pgs.iter().map(|(_, trace, _)| MeasuredPart::of(trace)).collect();
    let mut order: Vec<(u64, u32, u32)> =
        Vec::with_capacity(pgs.iter().map(|(_, trace, _)| trace.len()).sum());
    for (pg, (_, trace, _)) in pgs.iter().enumerate() {
        order.extend((0..trace.len()).map(|at| (trace.access(at).at_ns, pg as u32, at as u32)));
    }
    order.sort_unstable();
    let first_ns = order.first().map_or(0, |(at_ns, _, _)| *at_ns);
    let (objects, bytes) = (policy.promoted_objects_per_s, policy.promoted_bytes_per_s);
    let mut throttle = PromoteThrottle::new(objects, bytes, first_ns);
    let mut of_objects: Vec<BTreeMap<u64, ObjectCounts>> = vec![BTreeMap::new(); pgs.len()];
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
    let mut sum = AccessRate::default();
    for (((_, trace, _), counted), of_objects) in pgs.iter().zip(counted).zip(of_objects) {
        let total =
            |part: fn(&ObjectCounts) -> f64| of_objects.values().map(part).sum::<f64>() / trace.rate();
        let hits = total(|object| object.simulated)
            + per_access * (counted.accesses - total(|object| object.accesses))
            + per_hit * (counted.hits - total(|object| object.measured));
        sum.add(AccessRate { accesses: counted.accesses / counted.seconds, hits: hits / counted.seconds });
    }
    sum
}

/// The counts of one object: accesses, measured hits and simulated hits.
#[derive(Clone, Copy, Debug, Default)]
struct ObjectCounts {
    accesses: f64,
    measured: f64,
    simulated: f64,
}

/// The regression of objects' simulated hits on their accesses and measured hits. The sums of both over all objects are known, which gives
/// the deviation of the sampled objects from the average. If few objects have many of the accesses, an additional access stands for one
/// hit; if all objects are accessed equally, for the hit rate.
fn regression<'a>(objects: impl Iterator<Item = &'a ObjectCounts>) -> (f64, f64) {
    let (mut aa, mut am, mut mm, mut sa, mut sm) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for ObjectCounts { accesses, measured, simulated } in objects {
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
    // There were no hits, or nearly all accesses were hits.
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
    /// The time constant of the average in seconds.
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
struct CachedObject {
    changed_ns: u64,
    is_dirty: bool,
}

/// A PG of a cache.
pub(super) struct PgCache {
    policy: CachePolicy,
    /// Added to times, because hit sets begin before the trace does.
    base_ns: u64,
    rate: f64,
    objects: BTreeMap<u64, Object>,
    history: HitSetHistory,
    filter: Option<FrequencyFilter>,
    histogram: TemperatureHistogram,
    mode: AgentMode,
    /// Number of objects, with fractions, that can be promoted without displacing others.
    room: f64,
    held: BTreeMap<u64, CachedObject>,
    held_bytes: u64,
    dirty: BTreeSet<u64>,
    next_step_ns: u64,
    /// Where the search for clean objects continues.
    position: u64,
    evicted_in_round: bool,
    rounds: u32,
    /// Number of objects, with fractions, that the agent may still check and evict.
    checks: f64,
    evictions: f64,
    promotions: Promotions,
    /// Fractions of objects and bytes that are not charged to the throttle yet.
    uncharged_objects: f64,
    uncharged_bytes: f64,
}

impl PgCache {
    fn of_trace(pg: PgId, trace: &AccessTrace, policy: &CachePolicy) -> PgCache {
        let first_ns = if trace.is_empty() { 0 } else { trace.access(0).at_ns };
        let bytes: u64 = trace.sizes().values().sum();
        let average = bytes.checked_div(trace.objects() as u64).unwrap_or(0);
        let period_ns = u64::from(policy.hit_sets.period_s) * NS_PER_S;
        let sealed = policy.hit_sets.count.min(MAX_SEALED);
        let mut cache = PgCache::new(pg, policy, trace.rate(), average, first_ns);
        for (key, bytes) in trace.sizes() {
            cache.add_object(*key, *bytes);
        }
        let mut found = BTreeSet::new();
        let mut known = BTreeSet::new();
        for access in (0..trace.len()).map(|at| trace.access(at)) {
            let is_first = found.insert(access.key);
            if is_first && access.is_hit {
                cache.hold(access.key, CachedObject { changed_ns: 0, is_dirty: false });
            }
            if !is_first || access.is_hit {
                known.insert(access.key);
            }
            // Frequencies before the trace were about the same.
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

    /// Evicts objects that exceed this cache's targets. The time for this is not a part of the simulation.
    fn settle(&mut self) {
        let now_ns = self.next_step_ns;
        self.choose();
        for _ in 0..MAX_SETTLING_STEPS {
            // One whole object per step, regardless of how many each sampled one stands for.
            (self.checks, self.evictions) = (1.0, 1.0);
            if !self.evict_some(now_ns) {
                break;
            }
            self.choose();
        }
    }

    /// Creates an empty cache for objects of this average size, of which the share `rate` is sampled.
    pub(super) fn new(pg: PgId, policy: &CachePolicy, rate: f64, average_bytes: u64, now_ns: u64) -> PgCache {
        let mut hit_sets = policy.hit_sets;
        if hit_sets.kind != HitSetKind::None {
            hit_sets.kind = HitSetKind::ExplicitHash;
        }
        hit_sets.max_size = ((f64::from(hit_sets.max_size) * rate) as u32).max(1);
        let filter = (policy.admission == AdmissionKind::Frequency).then(|| {
            let one = CacheSums { objects: 1, bytes: average_bytes, ..CacheSums::default() };
            let capacity = agent_policy::capacity_objects(&one, &policy.targets);
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

    /// Adds an object that may be accessed.
    pub(super) fn add_object(&mut self, key: u64, bytes: u64) {
        let pool = nacre_types::PoolId(0);
        let id = ObjectId::with_hash(pool, "", "", "", SNAP_HEAD, mix(key) as u32);
        self.objects.insert(key, Object { id, bytes });
    }

    fn hold(&mut self, key: u64, held: CachedObject) {
        if self.held.insert(key, held).is_none() {
            self.held_bytes += self.objects.get(&key).map_or(0, |object| object.bytes);
        }
        if held.is_dirty {
            self.dirty.insert(key);
        }
    }

    /// Handles an access to a known object. Returns whether it was a hit.
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
                *held = CachedObject { changed_ns: now_ns, is_dirty: true };
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
            MissDecision::Promote => (true, access.request.writes),
            MissDecision::ProxyRead { promote } | MissDecision::ProxyWrite { promote } => (promote, false),
            MissDecision::Execute | MissDecision::Redirect | MissDecision::WaitForRoom => (false, false),
        };
        let (targets, bytes) = (&self.policy.targets, object.bytes);
        if promotes && fits(bytes, targets.pg_bytes(), targets.full_ratio_micro) {
            self.charge(throttle, asked, bytes);
            self.room -= 1.0;
            if self.room <= 0.0 {
                self.next_step_ns = self.next_step_ns.min(now_ns + agent_policy::BUSY_STEP_NS);
            }
            self.promotions.add(now_ns, 1.0 / self.rate);
            self.hold(access.key, CachedObject { changed_ns: now_ns, is_dirty: becomes_dirty });
        }
        false
    }

    fn admission(&self, recorded: AccessRecord) -> AdmissionPolicy<'_> {
        match &self.filter {
            Some(filter) => AdmissionPolicy::Frequency { filter, has_room: self.room > 0.0 },
            None if !self.history.is_enabled() => AdmissionPolicy::Always,
            None => AdmissionPolicy::Recency {
                history: &self.history,
                was_in_current: recorded.was_in_current,
                min_read: self.policy.min_read_recency,
                min_write: self.policy.min_write_recency,
            },
        }
    }

    /// Charges the throttle for the objects that the promoted one stands for. If it was asked, it has already charged one.
    fn charge(&mut self, throttle: &mut PromoteThrottle, asked: bool, bytes: u64) {
        if asked {
            self.uncharged_objects += 1.0 / self.rate - 1.0;
        }
        self.uncharged_bytes += bytes as f64 / self.rate;
        let (objects, bytes) = (self.uncharged_objects as u64, self.uncharged_bytes as u64);
        throttle.charge_objects(objects);
        throttle.charge_bytes(bytes);
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

    /// Runs the agent's steps up to this time.
    fn run_agent(&mut self, now_ns: u64) {
        let mut steps = 0;
        while self.next_step_ns <= now_ns {
            let wait_ns = self.step(self.next_step_ns);
            steps += 1;
            if steps == MAX_STEPS {
                self.next_step_ns = now_ns;
            }
            self.next_step_ns += wait_ns.unwrap_or_else(|| {
                // Until the next access only the hit sets and the ages change.
                let period_ns = u64::from(self.policy.hit_sets.period_s) * NS_PER_S;
                let until_ns = now_ns.saturating_sub(self.next_step_ns);
                until_ns.min(period_ns).max(agent_policy::IDLE_STEP_NS)
            });
        }
    }

    /// Runs one step. Returns the time to the next one, or `None` if there is nothing to do.
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
            return Some(agent_policy::BUSY_STEP_NS);
        }
        let is_busy = self.evict_some(now_ns);
        is_busy.then_some(agent_policy::BUSY_STEP_NS)
    }

    /// Whether the agent of a whole PG would find objects again that were promoted during its last step, and so continue. Among a few
    /// sampled objects there may be none.
    fn is_refilled(&self, now_ns: u64) -> bool {
        let in_a_step = self.promotions.per_s(now_ns) * agent_policy::BUSY_STEP_NS as f64 / NS_PER_S as f64;
        self.rate < 1.0 && in_a_step >= std::f64::consts::LN_2
    }

    fn choose(&mut self) {
        let (sums, targets, agent) = (self.sums(), &self.policy.targets, &self.policy.agent);
        self.mode = agent_policy::choose_agent_mode(&self.mode, &sums, targets, agent, false);
        self.room = agent_policy::room_objects(&sums, targets, agent) as f64 * self.rate;
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
        // Fractions of objects accumulate over steps.
        let budget = |left: f64, whole: usize| left.min(1.0) + whole as f64 * self.rate;
        self.checks = budget(self.checks, agent_policy::STEP_CHECKS);
        self.evictions = budget(self.evictions, agent_policy::STEP_EVICTIONS);
        let surplus = agent_policy::surplus_objects(&self.sums(), &self.policy.targets, &self.policy.agent);
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
                    filter.record_eviction(&object.id);
                }
            }
        }
        // An OSD checks more objects per step: it rests if none of the last ones had to be evicted.
        let is_busy = !is_over || self.evicted_in_round;
        if is_over {
            self.position = 0;
            self.evicted_in_round = false;
            self.rounds += 1;
            if self.rounds.is_multiple_of(agent_policy::HALFLIFE_ROUNDS) {
                self.histogram.decay();
            }
        }
        is_busy
    }
}

#[cfg(test)]
mod tests;
