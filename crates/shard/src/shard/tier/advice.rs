//! The data of a cache's PGs for `tier advise`.

use super::super::Shard;
use super::agent::{agent_options, hit_set_config};
use nacre_common::options::{Options, PromoteAdmission};
use nacre_tier::agent_policy::CacheTargets;
use nacre_tier::cache_sizing::AccessTrace;
use nacre_tier::cache_sizing::simulation::{self, AccessRate, AdmissionKind, CachePolicy};
use nacre_tier::temperature::Grades;
use nacre_types::ids::{PgId, PoolId};
use nacre_types::pool::{CacheMode, Tiering};
use serde_json::{Value, json};

/// The sizes that are simulated, as multiples of the current target.
const SCALES: [f64; 5] = [0.25, 0.5, 1.0, 2.0, 4.0];
/// The values of `min_read_recency_for_promote` that are simulated in addition to the current one.
const RECENCIES: [u32; 3] = [0, 1, 2];

/// The sampled accesses of a cache's PG.
pub struct PgAccesses {
    /// The PG.
    pub pg: PgId,
    /// Its sampled accesses.
    pub trace: AccessTrace,
    /// Its current policy.
    pub policy: CachePolicy,
    /// The objects that it holds.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
}

fn policy(tiering: &Tiering, targets: CacheTargets, options: &Options) -> CachePolicy {
    let osd = &options.osd;
    CachePolicy {
        // Other modes use no copies: the question is what copies would be worth.
        mode: match tiering.cache_mode {
            mode @ (CacheMode::Readproxy | CacheMode::Readonly) => mode,
            _ => CacheMode::Writeback,
        },
        hit_sets: hit_set_config(tiering, options),
        grades: Grades::new(tiering.hit_set_grade_decay_rate, tiering.hit_set_search_last_n),
        admission: match osd.osd_tier_promote_admission {
            PromoteAdmission::Recency => AdmissionKind::Recency,
            PromoteAdmission::Frequency => AdmissionKind::Frequency,
        },
        min_read_recency: tiering.min_read_recency_for_promote,
        min_write_recency: tiering.min_write_recency_for_promote,
        targets,
        agent: agent_options(options),
        min_evict_age_s: tiering.min_evict_age_s,
        promoted_objects_per_s: osd.osd_tier_promote_max_objects_sec,
        promoted_bytes_per_s: osd.osd_tier_promote_max_bytes_sec,
    }
}

impl Shard {
    /// The sampled accesses of the PGs of a cache that this shard serves.
    pub fn tier_accesses(&self, pool: PoolId) -> Vec<PgAccesses> {
        let options = self.shared.config.snapshot();
        let hosted = self.slots.iter().flatten().filter(|hosted| hosted.pg.pool == pool);
        let known = hosted.filter_map(|hosted| {
            let tiering = hosted.role.as_ref()?.tiering()?;
            let (trace, targets) = hosted.cache.as_ref()?.trace()?;
            let sums = hosted.sums.current();
            let policy = policy(tiering, targets, &options);
            Some(PgAccesses { pg: hosted.pg, trace, policy, objects: sums.objects, bytes: sums.bytes })
        });
        known.collect()
    }
}

/// An OSD's answer to `tier advise`: sums over the PGs of a cache that it serves, so that the answers of OSDs can be added up.
/// It takes a fraction of a second for each PG, without any lock.
pub fn advise(pgs: &[PgAccesses]) -> Value {
    let sum = |of: fn(&PgAccesses) -> u64| pgs.iter().map(of).fold(0, u64::saturating_add);
    let measured = simulation::measured(pgs.iter().map(|pg| &pg.trace));
    let longest_ns = pgs.iter().map(|pg| pg.trace.duration_ns(0)).max().unwrap_or(0);
    let present = pgs.first().map(|pg| pg.policy);
    json!({
        "pgs": pgs.len(),
        "objects": sum(|pg| pg.objects),
        "bytes": sum(|pg| pg.bytes),
        "target_bytes": sum(|pg| pg.policy.targets.pg_bytes()),
        "target_objects": sum(|pg| pg.policy.targets.pg_objects()),
        "followed_objects": sum(|pg| pg.trace.objects() as u64),
        "followed_accesses": sum(|pg| pg.trace.len() as u64),
        "seconds": longest_ns as f64 / 1e9,
        "admission": present.map(|policy| admission_name(policy.admission)),
        "min_read_recency_for_promote": present.map(|policy| policy.min_read_recency),
        "measured": shown(measured),
        "predicted": present.map_or_else(Vec::new, |present| predictions(pgs, &present)),
    })
}

fn admission_name(admission: AdmissionKind) -> &'static str {
    match admission {
        AdmissionKind::Recency => PromoteAdmission::Recency.as_str(),
        AdmissionKind::Frequency => PromoteAdmission::Frequency.as_str(),
    }
}

fn shown(hits: AccessRate) -> Value {
    json!({ "accesses_per_s": hits.accesses, "hits_per_s": hits.hits })
}

fn predictions(pgs: &[PgAccesses], present: &CachePolicy) -> Vec<Value> {
    let mut recencies = RECENCIES.to_vec();
    if !recencies.contains(&present.min_read_recency) {
        recencies.push(present.min_read_recency);
    }
    let mut variants: Vec<(AdmissionKind, u32)> =
        recencies.into_iter().map(|recency| (AdmissionKind::Recency, recency)).collect();
    variants.push((AdmissionKind::Frequency, present.min_read_recency));
    let mut shown_all = Vec::new();
    for scale in SCALES {
        for (admission, min_read_recency) in &variants {
            let changed = |policy: CachePolicy| {
                CachePolicy { admission: *admission, min_read_recency: *min_read_recency, ..policy }
                    .scaled(scale)
            };
            let simulated: Vec<_> = pgs.iter().map(|pg| (pg.pg, &pg.trace, changed(pg.policy))).collect();
            let mut predicted = shown(simulation::simulate(&simulated));
            predicted["scale"] = scale.into();
            predicted["admission"] = admission_name(*admission).into();
            if *admission == AdmissionKind::Recency {
                predicted["min_read_recency_for_promote"] = (*min_read_recency).into();
            }
            shown_all.push(predicted);
        }
    }
    shown_all
}
