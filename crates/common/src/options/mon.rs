//! Options of the map authority, and the pool defaults that it applies.

use super::kinds::{
    AutoscaleMode, Bool, Float, FloatSecs, HitSetType, Int, IntSecs, Size, Str, TierMode, Uint,
};
use super::option_group;
use super::spec::OptionService::{Mon, Osd};

option_group! {
    /// The map authority: failure detection, limits, warnings and pool defaults.
    MonOptions:
    mon_data: Str = "/var/lib/ceph/mon/$cluster-$id", "Data directory of the monitor"
        [services(&[Mon]), startup(), no_mon_update()];
    mon_map_store: Str = "local", "Where the cluster's map is stored: local, in mon_data, or etcd://HOST:PORT,HOST:PORT…/PREFIX"
        [services(&[Mon]), startup(), no_mon_update(), nacre_only(), long("The keys in etcd start with the prefix, which is \
            nacre if none is given. Clusters that share an etcd need different ones.")];
    mon_map_store_cacert: Str = "", "File of the certificate authority of etcd's members; empty for connections without TLS"
        [services(&[Mon]), startup(), no_mon_update(), nacre_only(), see(&["mon_map_store"])];
    mon_map_store_cert: Str = "", "File of the certificate with which the monitor authenticates itself to etcd"
        [services(&[Mon]), startup(), no_mon_update(), nacre_only(), see(&["mon_map_store_cacert", "mon_map_store_key"])];
    mon_map_store_key: Str = "", "File of the key of mon_map_store_cert"
        [services(&[Mon]), startup(), no_mon_update(), nacre_only(), see(&["mon_map_store_cert"])];
    mon_map_store_user: Str = "", "User of etcd; empty for none"
        [services(&[Mon]), startup(), no_mon_update(), nacre_only(), see(&["mon_map_store_password_file"])];
    mon_map_store_password_file: Str = "/etc/nacre/etcd.password", "File with the password of mon_map_store_user"
        [services(&[Mon]), startup(), no_mon_update(), nacre_only(), see(&["mon_map_store_user"])];
    mon_map_store_quota: Size = "2G", "Limit of etcd's database (its --quota-backend-bytes), for health warnings if etcd does not report it"
        [services(&[Mon]), startup(), no_mon_update(), nacre_only(), min("1M")];
    mon_ticket_grace: FloatSecs = "86400", "Time for which tickets are renewed while the map store does not answer, in seconds"
        [services(&[Mon]), nacre_only(), min("0")];
    mon_allow_pool_delete: Bool = "false", "Allow the deletion of pools" [services(&[Mon])];
    mon_allow_pool_size_one: Bool = "false", "Allow pools with one copy" [services(&[Mon])];
    mon_max_pg_per_osd: Uint = "250", "Maximum number of PG replicas per OSD; pools that would exceed it are refused"
        [min("1"), services(&[Mon])];
    mon_max_pool_pg_num: Uint = "65536", "Maximum pg_num of a pool" [range("1", "1048576"), services(&[Mon])];
    mon_max_osd: Int = "10000", "Maximum number of OSDs" [range("1", "1000000"), services(&[Mon])];
    mon_osd_min_down_reporters: Uint = "2", "Number of OSDs that must report a failure before an OSD is marked down"
        [min("1"), services(&[Mon]), see(&["mon_osd_reporter_subtree_level"])];
    mon_osd_reporter_subtree_level: Str = "host",
        "CRUSH level at which reporters of a failure are counted: one per subtree"
        [runtime(), services(&[Mon]), see(&["mon_osd_min_down_reporters"])];
    mon_osd_down_out_interval: IntSecs = "600", "Time after which a down OSD is marked out, in seconds; 0 for never"
        [min("0"), services(&[Mon])];
    mon_osd_down_out_subtree_limit: Str = "rack",
        "Smallest CRUSH level whose OSDs are not marked out if the whole subtree is down"
        [runtime(), services(&[Mon])];
    mon_osd_auto_mark_in: Bool = "false", "Mark every OSD in when it starts" [services(&[Mon])];
    mon_osd_auto_mark_auto_out_in: Bool = "true", "Mark an OSD in when it starts if it was marked out automatically for being down"
        [services(&[Mon]), see(&["mon_osd_down_out_interval"])];
    mon_osd_auto_mark_new_in: Bool = "true", "Mark a new OSD in when it starts" [services(&[Mon])];
    mon_osd_min_in_ratio: Float = "0.75", "Minimum ratio of OSDs that stay in when others are marked out automatically"
        [range("0", "1"), services(&[Mon])];
    mon_osd_min_up_ratio: Float = "0.3", "Minimum ratio of OSDs that stay up when others are marked down"
        [range("0", "1"), services(&[Mon])];
    mon_osd_report_timeout: IntSecs = "900", "Time without a beacon after which an OSD is marked down, in seconds"
        [min("1"), services(&[Mon]), see(&["osd_beacon_report_interval"])];
    mon_osd_full_ratio: Float = "0.95", "Usage ratio at which an OSD counts as full"
        [range("0", "1"), cluster_create(), services(&[Mon]),
        see(&["mon_osd_nearfull_ratio", "mon_osd_backfillfull_ratio"])];
    mon_osd_backfillfull_ratio: Float = "0.90", "Usage ratio at which an OSD accepts no backfill"
        [range("0", "1"), cluster_create(), services(&[Mon])];
    mon_osd_nearfull_ratio: Float = "0.85", "Usage ratio at which an OSD raises a health warning"
        [range("0", "1"), cluster_create(), services(&[Mon])];
    mon_tick_interval: IntSecs = "5", "Interval of the periodic checks of the monitor, in seconds" [min("1"), services(&[Mon])];
    mon_pg_stuck_threshold: IntSecs = "60", "Time after which an unclean PG is reported as stuck, in seconds" [services(&[Mon])];
    mon_warn_on_pool_no_redundancy: Bool = "true", "Warn about pools with one copy" [services(&[Mon])];
    mon_warn_on_pool_no_app: Bool = "true", "Warn about pools without an application" [services(&[Mon])];
    mon_warn_on_too_few_osds: Bool = "true", "Warn if there are fewer OSDs than osd_pool_default_size"
        [services(&[Mon])];
    mon_warn_on_cache_pools_without_hit_sets: Bool = "true", "Warn about cache pools without hit sets"
        [services(&[Mon])];
    mon_cache_target_full_warn_ratio: Float = "0.66",
        "Position between cache_target_full_ratio and the cache's target at which health warns, from 0 to 1"
        [range("0", "1"), services(&[Mon])];
    mon_health_max_detail: Uint = "50", "Maximum lines of detail per health check" [min("1"), services(&[Mon])];
    mon_warn_on_osd_down_out_interval_zero: Bool = "true", "Warn if mon_osd_down_out_interval is 0"
        [services(&[Mon])];
    mon_cluster_log_to_file: Bool = "true", "Write the cluster log to a file" [services(&[Mon])];
    mon_cluster_log_to_journald: Bool = "true", "Under systemd, write the cluster log to the journal instead of to its file"
        [services(&[Mon]), see(&["log_to_journald"])];
    mon_cluster_log_file: Str = "/var/log/ceph/$cluster.log", "Path of the cluster log"
        [runtime(), services(&[Mon])];
    mon_cluster_log_file_level: Str = "debug", "Lowest severity in the file of the cluster log"
        [runtime(), services(&[Mon])];
    mon_cluster_log_max_lines: Uint = "10000", "Number of lines of the cluster log that are kept for 'log last'"
        [range("10", "1000000"), services(&[Mon]), nacre_only()];
    mon_propose_interval: FloatSecs = "0.005", "Time for which map changes are collected into one epoch, in seconds"
        [range("0", "10"), services(&[Mon]), nacre_only()];
    osd_pool_default_size: Uint = "3", "Number of copies of each object in new pools"
        [range("0", "10"), services(&[Mon]), see(&["osd_pool_default_min_size"])];
    osd_pool_default_min_size: Uint = "0", "Minimum number of copies for I/O in new pools; 0 to derive it from the size"
        [range("0", "255"), services(&[Mon]), see(&["osd_pool_default_size"]), long("0 means the size minus half of it, \
            rounded down: 2 for pools with 3 copies.")];
    osd_pool_default_pg_num: Uint = "32", "Number of PGs of new pools"
        [min("1"), services(&[Mon]), see(&["osd_pool_default_pgp_num"])];
    osd_pool_default_pgp_num: Uint = "0", "Number of PGs for placement in new pools; 0 for the number of PGs"
        [min("0"), services(&[Mon]), see(&["osd_pool_default_pg_num"])];
    osd_pool_default_crush_rule: Int = "-1", "CRUSH rule of new pools; -1 for the rule with the lowest id"
        [services(&[Mon])];
    osd_pool_default_pg_autoscale_mode: AutoscaleMode = "off", "PG autoscale mode of new pools"
        [runtime(), services(&[Mon]), advisory("there is no PG autoscaler: new pools have the mode off")];
    osd_pool_default_flag_hashpspool: Bool = "true", "Place PGs of new pools independently of those of other pools"
        [services(&[Mon])];
    osd_pool_default_flag_nodelete: Bool = "false", "Set nodelete on new pools, which forbids their deletion" [services(&[Mon])];
    osd_pool_default_flag_nopgchange: Bool = "false", "Set nopgchange on new pools, which forbids changes of pg_num" [services(&[Mon])];
    osd_pool_default_flag_nosizechange: Bool = "false", "Set nosizechange on new pools, which forbids changes of size"
        [services(&[Mon])];
    osd_pool_default_cache_target_dirty_ratio: Float = "0.4",
        "Ratio of dirty objects at which flushing begins, in new pools that become cache tiers"
        [range("0", "1"), services(&[Mon])];
    osd_pool_default_cache_target_dirty_high_ratio: Float = "0.6",
        "Ratio of dirty objects at which flushing at high speed begins, in new pools that become cache tiers"
        [range("0", "1"), services(&[Mon])];
    osd_pool_default_cache_target_full_ratio: Float = "0.8",
        "Ratio of use at which eviction begins, in new pools that become cache tiers"
        [range("0", "1"), services(&[Mon])];
    osd_pool_default_cache_min_flush_age: IntSecs = "0",
        "Minimum age of objects for flushing, in seconds, in new pools that become cache tiers" [services(&[Mon])];
    osd_pool_default_cache_min_evict_age: IntSecs = "0",
        "Minimum age of objects for eviction, in seconds, in new pools that become cache tiers" [services(&[Mon])];
    osd_pool_default_hit_set_bloom_fpp: Float = "0.05", "False positive rate of the bloom filters of new hit sets"
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
    osd_pool_default_read_lease_ratio: Float = "0.8", "Read lease of a PG, as a ratio of osd_heartbeat_grace"
        [range("0.05", "0.95"), services(&[Mon, Osd]), see(&["osd_heartbeat_grace"]), long("A primary answers reads only \
            during the leases of its replicas. A new primary waits until they have expired.")];
    osd_crush_chooseleaf_type: Int = "1", "CRUSH level over which the first rule distributes copies: 0 for OSDs, 1 for hosts"
        [range("0", "100"), cluster_create(), services(&[Mon])];
}
