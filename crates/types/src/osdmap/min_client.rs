//! The release of Ceph that a client needs for a map.

use super::{OsdMap, WEIGHT_ONE};
use crate::pool::flag;
use nacre_crush::{BucketAlg, CrushMap, DEFAULT_CHOOSE_ARGS, StepOp};

impl OsdMap {
    /// Returns the first release of Ceph whose clients support all features of this map: `min_compat_client` of `osd dump`.
    pub fn min_compat_client(&self) -> &'static str {
        let crush = &self.crush;
        let pools = || self.pools.values();
        let has_step = |op: StepOp| {
            let mut rules = pools().filter_map(|pool| crush.rule(pool.crush_rule.into()));
            rules.any(|rule| rule.steps.iter().any(|step| step.op == op))
        };
        let has_tiers = || pools().any(|p| !p.tiering.tiers.is_empty() || p.tiering.tier_of.is_some());
        let has_affinities = || self.osds.values().any(|info| info.primary_affinity != WEIGHT_ONE);
        if !self.pg_upmap.is_empty() || !self.pg_upmap_items.is_empty() || needs_choose_args(crush) {
            "luminous"
        } else if crush.tunables.chooseleaf_stable != 0 || has_step(StepOp::SetChooseleafStable) {
            "jewel"
        } else if crush.buckets().any(|bucket| bucket.alg() == BucketAlg::Straw2) {
            "hammer"
        } else if crush.tunables.chooseleaf_vary_r != 0
            || has_step(StepOp::SetChooseleafVaryR)
            || has_tiers()
            || has_affinities()
        {
            "firefly"
        } else if crush.tunables.chooseleaf_descend_once != 0
            || pools().any(|pool| pool.has_flag(flag::HASHPSPOOL))
        {
            "dumpling"
        } else {
            "argonaut"
        }
    }
}

/// Whether the weights of weight sets can't be given to older clients as plain weights, because there are several weights per
/// item, or other ids.
fn needs_choose_args(crush: &CrushMap) -> bool {
    crush.choose_args().any(|(id, args)| {
        id != DEFAULT_CHOOSE_ARGS
            || args.iter().any(|(_, arg)| arg.weight_set.len() != 1 || !arg.ids.is_empty())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Epoch, OsdId, PgId, PoolId};
    use crate::pool::Pool;
    use nacre_crush::{ChooseArg, ChooseArgs};
    use std::sync::Arc;

    #[test]
    fn each_feature_asks_for_its_release() {
        let crush = CrushMap::new_cluster("osd").unwrap();
        let mut map = OsdMap::new(uuid::Uuid::nil(), 1, crush.clone());
        assert_eq!(map.min_compat_client(), "jewel");
        let with = |edit: &dyn Fn(&mut CrushMap)| {
            let mut changed = crush.clone();
            edit(&mut changed);
            let map = OsdMap { crush: Arc::new(changed), ..map.clone() };
            map.min_compat_client()
        };
        assert_eq!(with(&|crush| crush.tunables.chooseleaf_stable = 0), "hammer");
        let set = |id: i64, positions: usize| {
            with(&|crush| {
                let mut args = ChooseArgs::default();
                args.set(0, ChooseArg { weight_set: vec![Vec::new(); positions], ids: Vec::new() });
                crush.set_choose_args(id, args).unwrap();
            })
        };
        assert_eq!(set(DEFAULT_CHOOSE_ARGS, 1), "jewel");
        assert_eq!(set(DEFAULT_CHOOSE_ARGS, 2), "luminous");
        assert_eq!(set(1, 1), "luminous");
        map.pg_upmap_items.insert(PgId::new(PoolId(1), 0), vec![(OsdId(0), OsdId(1))]);
        assert_eq!(map.min_compat_client(), "luminous");

        let mut old = CrushMap::empty();
        (old.tunables.chooseleaf_stable, old.tunables.chooseleaf_vary_r) = (0, 1);
        let mut map = OsdMap::new(uuid::Uuid::nil(), 1, old.clone());
        assert_eq!(map.min_compat_client(), "firefly");
        (old.tunables.chooseleaf_vary_r, old.tunables.chooseleaf_descend_once) = (0, 0);
        map.crush = Arc::new(old);
        assert_eq!(map.min_compat_client(), "argonaut");
        map.pools.insert(PoolId(1), Arc::new(Pool::replicated("p", 3, 2, 0, 8, Epoch(1))));
        assert_eq!(map.min_compat_client(), "dumpling");
    }
}
