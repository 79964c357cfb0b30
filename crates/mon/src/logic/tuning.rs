//! The options of the map logic, with Ceph's names and defaults.

use nacre_common::options::{HitSetType, Options, TierMode};
use nacre_types::pool::{CacheMode, HitSetKind};

/// The settings that `osd tier add-cache` applies to a cache: the options `osd_tier_default_cache_…`.
#[derive(Clone, Debug, PartialEq)]
pub struct TierDefaults {
    /// `osd_tier_default_cache_mode`.
    pub cache_mode: CacheMode,
    /// `osd_tier_default_cache_hit_set_type`.
    pub hit_set: HitSetKind,
    /// `osd_tier_default_cache_hit_set_count`.
    pub hit_set_count: u32,
    /// `osd_tier_default_cache_hit_set_period`, in seconds.
    pub hit_set_period_s: u32,
    /// `osd_tier_default_cache_hit_set_grade_decay_rate`.
    pub hit_set_grade_decay_rate: u32,
    /// `osd_tier_default_cache_hit_set_search_last_n`.
    pub hit_set_search_last_n: u32,
    /// `osd_tier_default_cache_min_read_recency_for_promote`.
    pub min_read_recency_for_promote: u32,
    /// `osd_tier_default_cache_min_write_recency_for_promote`.
    pub min_write_recency_for_promote: u32,
}

impl Default for TierDefaults {
    fn default() -> Self {
        TierDefaults {
            cache_mode: CacheMode::Writeback,
            hit_set: HitSetKind::Bloom { fpp: 0.05 },
            hit_set_count: 4,
            hit_set_period_s: 1_200,
            hit_set_grade_decay_rate: 20,
            hit_set_search_last_n: 1,
            min_read_recency_for_promote: 1,
            min_write_recency_for_promote: 1,
        }
    }
}

/// Options of the map logic. [`Tuning::default`] has Ceph 16.2's defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct Tuning {
    /// `mon_osd_min_down_reporters`: distinct subtrees that must report an OSD before it is marked down.
    pub min_down_reporters: usize,
    /// `mon_osd_reporter_subtree_level`: CRUSH type of those subtrees.
    pub reporter_subtree_level: String,
    /// `osd_heartbeat_grace`, in milliseconds: how long an OSD must have been silent before it is marked down.
    pub heartbeat_grace_ms: u64,
    /// `mon_osd_report_timeout`, in milliseconds: silence towards the map authority itself.
    pub report_timeout_ms: u64,
    /// `mon_ticket_grace`.
    pub ticket_grace_ms: u64,
    /// `mon_osd_down_out_interval`, in milliseconds; 0 never marks out.
    pub down_out_interval_ms: u64,
    /// `mon_osd_down_out_subtree_limit`: whole subtrees of this type or above that are down are not marked out.
    pub down_out_subtree_limit: String,
    /// `mon_osd_min_up_ratio`: no OSD is marked down automatically below this share of up ones.
    pub min_up_ratio: f64,
    /// `mon_osd_min_in_ratio`: no OSD is marked out automatically below this share of in ones.
    pub min_in_ratio: f64,
    /// `mon_osd_auto_mark_in`: any booting OSD is marked in.
    pub auto_mark_in: bool,
    /// `mon_osd_auto_mark_auto_out_in`: one that was marked out automatically is marked in when it boots.
    pub auto_mark_auto_out_in: bool,
    /// `mon_osd_auto_mark_new_in`: a new one is marked in when it boots first.
    pub auto_mark_new_in: bool,
    /// `osd_crush_update_on_start`: a booting OSD is placed at its `crush_location`.
    pub crush_update_on_start: bool,
    /// `osd_crush_initial_weight`: CRUSH weight of new OSDs; below 0: their size in TiB.
    pub crush_initial_weight: f64,
    /// `mon_max_osd`: ids are below this.
    pub max_osd: u32,
    /// `osd_pool_default_size`.
    pub pool_default_size: u32,
    /// `osd_pool_default_min_size`; 0: size minus half of it.
    pub pool_default_min_size: u32,
    /// `osd_pool_default_pg_num`.
    pub pool_default_pg_num: u32,
    /// `osd_pool_default_pgp_num`; 0: as `pg_num`.
    pub pool_default_pgp_num: u32,
    /// `osd_pool_default_crush_rule`; below 0: the first replicated rule.
    pub pool_default_crush_rule: i32,
    /// `osd_pool_default_flag_hashpspool`.
    pub pool_default_hashpspool: bool,
    /// `osd_pool_default_flag_nodelete`.
    pub pool_default_nodelete: bool,
    /// `osd_pool_default_flag_nopgchange`.
    pub pool_default_nopgchange: bool,
    /// `osd_pool_default_flag_nosizechange`.
    pub pool_default_nosizechange: bool,
    /// `osd_pool_default_cache_target_dirty_ratio`, in millionths.
    pub pool_default_dirty_ratio_micro: u32,
    /// `osd_pool_default_cache_target_dirty_high_ratio`, in millionths.
    pub pool_default_dirty_high_ratio_micro: u32,
    /// `osd_pool_default_cache_target_full_ratio`, in millionths.
    pub pool_default_full_ratio_micro: u32,
    /// `osd_pool_default_cache_min_flush_age`, in seconds.
    pub pool_default_min_flush_age_s: u32,
    /// `osd_pool_default_cache_min_evict_age`, in seconds.
    pub pool_default_min_evict_age_s: u32,
    /// `osd_pool_default_hit_set_bloom_fpp`.
    pub hit_set_bloom_fpp: f64,
    /// The settings of `osd tier add-cache`.
    pub tier_defaults: TierDefaults,
    /// `mon_cache_target_full_warn_ratio`.
    pub cache_target_full_warn_ratio: f64,
    /// `mon_warn_on_cache_pools_without_hit_sets`.
    pub warn_on_cache_pools_without_hit_sets: bool,
    /// `mon_max_pg_per_osd`.
    pub max_pg_per_osd: u32,
    /// `mon_max_pool_pg_num`.
    pub max_pool_pg_num: u32,
    /// `mon_allow_pool_delete`.
    pub allow_pool_delete: bool,
    /// `mon_allow_pool_size_one`.
    pub allow_pool_size_one: bool,
    /// `mon_warn_on_pool_no_redundancy`.
    pub warn_on_pool_no_redundancy: bool,
    /// `mon_warn_on_pool_no_app`.
    pub warn_on_pool_no_app: bool,
    /// `mon_warn_on_too_few_osds`.
    pub warn_on_too_few_osds: bool,
    /// `mon_warn_on_osd_down_out_interval_zero`.
    pub warn_on_down_out_interval_zero: bool,
    /// `mon_health_max_detail`: lines of detail per check.
    pub health_max_detail: usize,
    /// `mon_cluster_log_max_lines`: lines of the cluster log that are kept.
    pub log_max_lines: usize,
    /// `mon_pg_stuck_threshold`, in seconds.
    pub pg_stuck_threshold_s: u64,
}

impl Tuning {
    /// The values of the option table.
    pub fn from_options(options: &Options) -> Tuning {
        let (mon, osd) = (&options.mon, &options.osd);
        let small = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        let micro = |share: f64| (share * 1e6).round() as u32;
        Tuning {
            min_down_reporters: mon.mon_osd_min_down_reporters as usize,
            reporter_subtree_level: mon.mon_osd_reporter_subtree_level.clone(),
            heartbeat_grace_ms: osd.osd_heartbeat_grace.as_millis() as u64,
            report_timeout_ms: mon.mon_osd_report_timeout.as_millis() as u64,
            ticket_grace_ms: mon.mon_ticket_grace.as_millis() as u64,
            down_out_interval_ms: mon.mon_osd_down_out_interval.as_millis() as u64,
            down_out_subtree_limit: mon.mon_osd_down_out_subtree_limit.clone(),
            min_up_ratio: mon.mon_osd_min_up_ratio,
            min_in_ratio: mon.mon_osd_min_in_ratio,
            auto_mark_in: mon.mon_osd_auto_mark_in,
            auto_mark_auto_out_in: mon.mon_osd_auto_mark_auto_out_in,
            auto_mark_new_in: mon.mon_osd_auto_mark_new_in,
            crush_update_on_start: osd.osd_crush_update_on_start,
            crush_initial_weight: osd.osd_crush_initial_weight,
            max_osd: u32::try_from(mon.mon_max_osd).unwrap_or(u32::MAX),
            pool_default_size: small(mon.osd_pool_default_size),
            pool_default_min_size: small(mon.osd_pool_default_min_size),
            pool_default_pg_num: small(mon.osd_pool_default_pg_num),
            pool_default_pgp_num: small(mon.osd_pool_default_pgp_num),
            pool_default_crush_rule: i32::try_from(mon.osd_pool_default_crush_rule).unwrap_or(-1),
            pool_default_hashpspool: mon.osd_pool_default_flag_hashpspool,
            pool_default_nodelete: mon.osd_pool_default_flag_nodelete,
            pool_default_nopgchange: mon.osd_pool_default_flag_nopgchange,
            pool_default_nosizechange: mon.osd_pool_default_flag_nosizechange,
            pool_default_dirty_ratio_micro: micro(mon.osd_pool_default_cache_target_dirty_ratio),
            pool_default_dirty_high_ratio_micro: micro(mon.osd_pool_default_cache_target_dirty_high_ratio),
            pool_default_full_ratio_micro: micro(mon.osd_pool_default_cache_target_full_ratio),
            pool_default_min_flush_age_s: small(mon.osd_pool_default_cache_min_flush_age.as_secs()),
            pool_default_min_evict_age_s: small(mon.osd_pool_default_cache_min_evict_age.as_secs()),
            hit_set_bloom_fpp: mon.osd_pool_default_hit_set_bloom_fpp,
            tier_defaults: TierDefaults {
                cache_mode: match mon.osd_tier_default_cache_mode {
                    TierMode::None => CacheMode::None,
                    TierMode::Writeback => CacheMode::Writeback,
                    TierMode::Readonly => CacheMode::Readonly,
                    TierMode::Readproxy => CacheMode::Readproxy,
                    TierMode::Proxy => CacheMode::Proxy,
                },
                hit_set: match mon.osd_tier_default_cache_hit_set_type {
                    HitSetType::Bloom => HitSetKind::Bloom { fpp: mon.osd_pool_default_hit_set_bloom_fpp },
                    HitSetType::ExplicitHash => HitSetKind::ExplicitHash,
                    HitSetType::ExplicitObject => HitSetKind::ExplicitObject,
                },
                hit_set_count: small(mon.osd_tier_default_cache_hit_set_count),
                hit_set_period_s: small(mon.osd_tier_default_cache_hit_set_period),
                hit_set_grade_decay_rate: small(mon.osd_tier_default_cache_hit_set_grade_decay_rate),
                hit_set_search_last_n: small(mon.osd_tier_default_cache_hit_set_search_last_n),
                min_read_recency_for_promote: small(mon.osd_tier_default_cache_min_read_recency_for_promote),
                min_write_recency_for_promote: small(
                    mon.osd_tier_default_cache_min_write_recency_for_promote,
                ),
            },
            cache_target_full_warn_ratio: mon.mon_cache_target_full_warn_ratio,
            warn_on_cache_pools_without_hit_sets: mon.mon_warn_on_cache_pools_without_hit_sets,
            max_pg_per_osd: small(mon.mon_max_pg_per_osd),
            max_pool_pg_num: small(mon.mon_max_pool_pg_num),
            allow_pool_delete: mon.mon_allow_pool_delete,
            allow_pool_size_one: mon.mon_allow_pool_size_one,
            warn_on_pool_no_redundancy: mon.mon_warn_on_pool_no_redundancy,
            warn_on_pool_no_app: mon.mon_warn_on_pool_no_app,
            warn_on_too_few_osds: mon.mon_warn_on_too_few_osds,
            warn_on_down_out_interval_zero: mon.mon_warn_on_osd_down_out_interval_zero,
            health_max_detail: mon.mon_health_max_detail as usize,
            log_max_lines: mon.mon_cluster_log_max_lines as usize,
            pg_stuck_threshold_s: mon.mon_pg_stuck_threshold.as_secs(),
        }
    }
}

impl Default for Tuning {
    fn default() -> Self {
        Tuning {
            min_down_reporters: 2,
            reporter_subtree_level: "host".into(),
            heartbeat_grace_ms: 20_000,
            report_timeout_ms: 900_000,
            ticket_grace_ms: 86_400_000,
            down_out_interval_ms: 600_000,
            down_out_subtree_limit: "rack".into(),
            min_up_ratio: 0.3,
            min_in_ratio: 0.75,
            auto_mark_in: false,
            auto_mark_auto_out_in: true,
            auto_mark_new_in: true,
            crush_update_on_start: true,
            crush_initial_weight: -1.0,
            max_osd: 10_000,
            pool_default_size: 3,
            pool_default_min_size: 0,
            pool_default_pg_num: 32,
            pool_default_pgp_num: 0,
            pool_default_crush_rule: -1,
            pool_default_hashpspool: true,
            pool_default_nodelete: false,
            pool_default_nopgchange: false,
            pool_default_nosizechange: false,
            pool_default_dirty_ratio_micro: 400_000,
            pool_default_dirty_high_ratio_micro: 600_000,
            pool_default_full_ratio_micro: 800_000,
            pool_default_min_flush_age_s: 0,
            pool_default_min_evict_age_s: 0,
            hit_set_bloom_fpp: 0.05,
            tier_defaults: TierDefaults::default(),
            cache_target_full_warn_ratio: 0.66,
            warn_on_cache_pools_without_hit_sets: true,
            max_pg_per_osd: 250,
            max_pool_pg_num: 65_536,
            allow_pool_delete: false,
            allow_pool_size_one: false,
            warn_on_pool_no_redundancy: true,
            warn_on_pool_no_app: true,
            warn_on_too_few_osds: true,
            pg_stuck_threshold_s: 60,
            warn_on_down_out_interval_zero: true,
            health_max_detail: 50,
            log_max_lines: 10_000,
        }
    }
}
