//! The options that the map logic obeys, with Ceph's names and defaults.

use nacre_common::options::Options;

/// Options of the map logic. [`Tuning::default`] has Ceph 16.2's defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct Tuning {
    /// `mon_osd_min_down_reporters`: distinct subtrees that must report an OSD before it is marked down.
    pub min_down_reporters: usize,
    /// `mon_osd_reporter_subtree_level`: CRUSH type of those subtrees.
    pub reporter_subtree_level: String,
    /// `osd_heartbeat_grace`, in milliseconds: how long an OSD must have been silent.
    pub heartbeat_grace_ms: u64,
    /// `mon_osd_report_timeout`, in milliseconds: silence towards the map authority itself.
    pub report_timeout_ms: u64,
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
    /// `osd_crush_update_on_start`: a booting OSD is put at its `crush_location`.
    pub crush_update_on_start: bool,
    /// `osd_crush_initial_weight`: CRUSH weight of new OSDs; below 0: their size in TiB.
    pub crush_initial_weight: f64,
    /// `mon_max_osd`: ids are below this.
    pub max_osd: u32,
    /// `osd_pool_default_size`.
    pub pool_default_size: u32,
    /// `osd_pool_default_min_size`; 0: size less its half.
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
        Tuning {
            min_down_reporters: mon.mon_osd_min_down_reporters as usize,
            reporter_subtree_level: mon.mon_osd_reporter_subtree_level.clone(),
            heartbeat_grace_ms: osd.osd_heartbeat_grace.as_millis() as u64,
            report_timeout_ms: mon.mon_osd_report_timeout.as_millis() as u64,
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
