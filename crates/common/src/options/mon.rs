//! Options of the map authority, and the pool defaults that it applies.

use super::kinds::{AutoscaleMode, Bool, Float, FloatSecs, HitSetType, Int, IntSecs, Str, TierMode, Uint};
use super::option_group;
use super::spec::Service::{Mon, Osd};

option_group! {
    /// The map authority: failure detection, limits, warnings and pool defaults.
    MonOptions:
    mon_data: Str = "/var/lib/ceph/mon/$cluster-$id", "Directory of the monitor's data"
        [services(&[Mon]), startup(), no_mon_update()];
    mon_allow_pool_delete: Bool = "false", "Allow pools to be deleted" [services(&[Mon])];
    mon_allow_pool_size_one: Bool = "false", "Allow pools that keep one copy only" [services(&[Mon])];
    mon_max_pg_per_osd: Uint = "250", "PG replicas per OSD beyond which no pool is created"
        [min("1"), services(&[Mon])];
    mon_max_pool_pg_num: Uint = "65536", "The greatest pg_num of a pool" [range("1", "1048576"), services(&[Mon])];
    mon_max_osd: Int = "10000", "The greatest number of OSDs" [range("1", "1000000"), services(&[Mon])];
    mon_osd_min_down_reporters: Uint = "2", "OSDs that must miss another one before it is marked down"
        [min("1"), services(&[Mon]), see(&["mon_osd_reporter_subtree_level"])];
    mon_osd_reporter_subtree_level: Str = "host",
        "The CRUSH level of which reporters of a failure must be different members"
        [runtime(), services(&[Mon]), see(&["mon_osd_min_down_reporters"])];
    mon_osd_down_out_interval: IntSecs = "600", "Seconds after which a down OSD is marked out; 0 for never"
        [min("0"), services(&[Mon])];
    mon_osd_down_out_subtree_limit: Str = "rack",
        "The smallest CRUSH level whose OSDs are not marked out when all of it is down"
        [runtime(), services(&[Mon])];
    mon_osd_auto_mark_in: Bool = "false", "Mark any OSD in when it starts" [services(&[Mon])];
    mon_osd_auto_mark_auto_out_in: Bool = "true", "Mark an OSD in again that was marked out for being down"
        [services(&[Mon]), see(&["mon_osd_down_out_interval"])];
    mon_osd_auto_mark_new_in: Bool = "true", "Mark a new OSD in when it starts" [services(&[Mon])];
    mon_osd_min_in_ratio: Float = "0.75", "The share of OSDs that must stay in for marking others out"
        [range("0", "1"), services(&[Mon])];
    mon_osd_min_up_ratio: Float = "0.3", "The share of OSDs that must stay up for marking others down"
        [range("0", "1"), services(&[Mon])];
    mon_osd_report_timeout: IntSecs = "900", "Seconds without a beacon after which an OSD is marked down"
        [min("1"), services(&[Mon]), see(&["osd_beacon_report_interval"])];
    mon_osd_full_ratio: Float = "0.95", "Use of an OSD at which it counts as full"
        [range("0", "1"), cluster_create(), services(&[Mon]),
        see(&["mon_osd_nearfull_ratio", "mon_osd_backfillfull_ratio"])];
    mon_osd_backfillfull_ratio: Float = "0.90", "Use of an OSD at which nothing is backfilled to it"
        [range("0", "1"), cluster_create(), services(&[Mon])];
    mon_osd_nearfull_ratio: Float = "0.85", "Use of an OSD at which health warns"
        [range("0", "1"), cluster_create(), services(&[Mon])];
    mon_tick_interval: IntSecs = "5", "Seconds between the monitor's routine checks" [min("1"), services(&[Mon])];
    mon_pg_stuck_threshold: IntSecs = "60", "Seconds after which an unclean PG is called stuck" [services(&[Mon])];
    mon_warn_on_pool_no_redundancy: Bool = "true", "Warn about pools that keep one copy only" [services(&[Mon])];
    mon_warn_on_pool_no_app: Bool = "true", "Warn about pools without an application" [services(&[Mon])];
    mon_warn_on_too_few_osds: Bool = "true", "Warn when there are fewer OSDs than osd_pool_default_size"
        [services(&[Mon])];
    mon_warn_on_cache_pools_without_hit_sets: Bool = "true", "Warn about cache pools that remember no accesses"
        [services(&[Mon])];
    mon_cache_target_full_warn_ratio: Float = "0.66",
        "How far beyond cache_target_full_ratio health warns, as a share of the way to the cache's target"
        [range("0", "1"), services(&[Mon])];
    mon_health_max_detail: Uint = "50", "Lines of detail that one health check has" [min("1"), services(&[Mon])];
    mon_warn_on_osd_down_out_interval_zero: Bool = "true", "Warn when OSDs are never marked out"
        [services(&[Mon])];
    mon_cluster_log_to_file: Bool = "true", "Write the cluster log to a file" [services(&[Mon])];
    mon_cluster_log_to_journald: Bool = "true", "Under systemd, write the cluster log to the journal, not to its file"
        [services(&[Mon]), see(&["log_to_journald"])];
    mon_cluster_log_file: Str = "/var/log/ceph/$cluster.log", "Path of the cluster log"
        [runtime(), services(&[Mon])];
    mon_cluster_log_file_level: Str = "debug", "The least severe lines of the cluster log's file"
        [runtime(), services(&[Mon])];
    mon_cluster_log_max_lines: Uint = "10000", "Lines of the cluster log that are kept for 'log last'"
        [range("10", "1000000"), services(&[Mon]), nacre()];
    mon_propose_interval: FloatSecs = "0.005", "Seconds for which map changes are gathered into one epoch"
        [range("0", "10"), services(&[Mon]), nacre()];
    osd_pool_default_size: Uint = "3", "Copies of each object in new pools"
        [range("0", "10"), services(&[Mon]), see(&["osd_pool_default_min_size"])];
    osd_pool_default_min_size: Uint = "0", "Copies that must be there for I/O on new pools"
        [range("0", "255"), services(&[Mon]), see(&["osd_pool_default_size"]), long("0 stands for the size less \
        half of it: 2 for pools of 3 copies.")];
    osd_pool_default_pg_num: Uint = "32", "PGs of new pools"
        [min("1"), services(&[Mon]), see(&["osd_pool_default_pgp_num"])];
    osd_pool_default_pgp_num: Uint = "0", "PGs for placement of new pools; 0 for as many as PGs"
        [min("0"), services(&[Mon]), see(&["osd_pool_default_pg_num"])];
    osd_pool_default_crush_rule: Int = "-1", "CRUSH rule of new pools; -1 picks the lowest rule id"
        [services(&[Mon])];
    osd_pool_default_pg_autoscale_mode: AutoscaleMode = "off", "Whether new pools have their number of PGs adjusted"
        [runtime(), services(&[Mon]), advisory("there is no PG autoscaler: new pools have the mode off")];
    osd_pool_default_flag_hashpspool: Bool = "true", "Whether PGs of new pools are spread independently of others'"
        [services(&[Mon])];
    osd_pool_default_flag_nodelete: Bool = "false", "Whether new pools refuse to be deleted" [services(&[Mon])];
    osd_pool_default_flag_nopgchange: Bool = "false", "Whether new pools refuse changes of pg_num" [services(&[Mon])];
    osd_pool_default_flag_nosizechange: Bool = "false", "Whether new pools refuse changes of size"
        [services(&[Mon])];
    osd_pool_default_cache_target_dirty_ratio: Float = "0.4",
        "Share of the target that may be dirty in new pools that become caches, before it is flushed"
        [range("0", "1"), services(&[Mon])];
    osd_pool_default_cache_target_dirty_high_ratio: Float = "0.6",
        "Share of the target that may be dirty in new pools that become caches, before it is flushed at high speed"
        [range("0", "1"), services(&[Mon])];
    osd_pool_default_cache_target_full_ratio: Float = "0.8",
        "Share of the target that may be in use in new pools that become caches, before objects are evicted"
        [range("0", "1"), services(&[Mon])];
    osd_pool_default_cache_min_flush_age: IntSecs = "0",
        "Seconds that objects stay dirty at least in new pools that become caches" [services(&[Mon])];
    osd_pool_default_cache_min_evict_age: IntSecs = "0",
        "Seconds that objects stay at least in new pools that become caches" [services(&[Mon])];
    osd_pool_default_hit_set_bloom_fpp: Float = "0.05", "False positive rate of new hit sets that are bloom filters"
        [range("0", "1"), services(&[Mon])];
    osd_tier_default_cache_mode: TierMode = "writeback", "Cache mode that 'osd tier add-cache' sets"
        [runtime(), services(&[Mon])];
    osd_tier_default_cache_hit_set_type: HitSetType = "bloom", "hit_set_type that 'osd tier add-cache' sets"
        [runtime(), services(&[Mon])];
    osd_tier_default_cache_hit_set_count: Uint = "4", "hit_set_count that 'osd tier add-cache' sets"
        [range("0", "1024"), services(&[Mon])];
    osd_tier_default_cache_hit_set_period: Uint = "1200", "hit_set_period that 'osd tier add-cache' sets, in seconds"
        [range("0", "4294967295"), services(&[Mon])];
    osd_tier_default_cache_hit_set_grade_decay_rate: Uint = "20",
        "hit_set_grade_decay_rate that 'osd tier add-cache' sets" [range("0", "100"), services(&[Mon])];
    osd_tier_default_cache_hit_set_search_last_n: Uint = "1",
        "hit_set_search_last_n that 'osd tier add-cache' sets" [range("0", "1024"), services(&[Mon])];
    osd_tier_default_cache_min_read_recency_for_promote: Uint = "1",
        "min_read_recency_for_promote that 'osd tier add-cache' sets" [range("0", "4294967295"), services(&[Mon])];
    osd_tier_default_cache_min_write_recency_for_promote: Uint = "1",
        "min_write_recency_for_promote that 'osd tier add-cache' sets" [range("0", "4294967295"), services(&[Mon])];
    osd_pool_default_read_lease_ratio: Float = "0.8", "A PG's read lease, as a share of osd_heartbeat_grace"
        [range("0.05", "0.95"), services(&[Mon, Osd]), see(&["osd_heartbeat_grace"]), long("A primary serves reads \
        only while its replicas' grants last; a new primary waits them out.")];
    osd_crush_chooseleaf_type: Int = "1", "The CRUSH level that the first rule spreads copies over: 0 OSDs, 1 hosts"
        [range("0", "100"), cluster_create(), services(&[Mon])];
}
