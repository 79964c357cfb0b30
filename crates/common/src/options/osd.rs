//! Options of object storage daemons.

use super::kinds::{
    Bool, Float, FloatSecs, IntSecs, ObjectStoreKind, PromoteAdmission, Size, Str, Uint, UuidKind,
};
use super::option_group;
use super::spec::OptionService::{Mon, Osd};

option_group! {
    /// Object storage daemons: store, limits, heartbeats, logs of PGs, recovery.
    OsdOptions:
    osd_data: Str = "/var/lib/ceph/osd/$cluster-$id", "Data directory of the OSD"
        [services(&[Osd]), startup(), no_mon_update()];
    osd_objectstore: ObjectStoreKind = "bluestore", "Object store of a new OSD"
        [services(&[Osd]), create(), long("bluestore is for disks; filestore uses plain files; memstore keeps everything in \
            memory and loses it in a crash. An existing OSD uses the store that is recorded in its data directory.")];
    osd_device_class: Str = "", "Device class of a new OSD; empty for mem on memstore and ssd on other stores"
        [services(&[Osd]), startup(), nacre_only(), long("Applies when the OSD is first added to the CRUSH map; 'ceph osd crush \
            set-device-class' changes it later.")];
    osd_uuid: UuidKind = "00000000-0000-0000-0000-000000000000", "UUID of a new OSD; zeros to generate one"
        [services(&[Osd]), create()];
    osd_op_num_shards: Uint = "0", "Number of threads that execute PGs; 0 for half of the cores"
        [range("0", "256"), services(&[Osd]), startup()];
    osd_max_object_size: Size = "128Mi", "Maximum size of an object" [min("1"), services(&[Osd])];
    osd_max_write_size: Size = "90", "Maximum size of a write in one request, in MiB" [min("4"), services(&[Osd])];
    osd_max_object_name_len: Uint = "2048", "Maximum length of an object name, in bytes" [range("16", "4096"), services(&[Osd])];
    osd_max_object_namespace_len: Uint = "256", "Maximum length of an object namespace, in bytes"
        [range("0", "4096"), services(&[Osd])];
    osd_max_attr_name_len: Uint = "100", "Maximum length of the name of an extended attribute, in bytes"
        [range("1", "255"), services(&[Osd])];
    osd_max_attr_size: Size = "0", "Maximum size of an extended attribute; 0 for the limit of the store" [services(&[Osd])];
    osd_max_omap_entries_per_request: Uint = "1024", "Maximum number of omap entries that one request returns"
        [min("1"), services(&[Osd])];
    osd_max_omap_bytes_per_request: Size = "1Gi", "Maximum bytes of omap entries that one request returns"
        [min("4Ki"), services(&[Osd])];
    osd_max_pgls: Uint = "1024", "Maximum number of objects that one listing request returns" [range("1", "65536"), services(&[Osd])];
    osd_max_write_op_reply_len: Size = "64", "Maximum output of a write per op, in bytes"
        [services(&[Osd])];
    osd_client_message_cap: Uint = "256", "Maximum number of client requests in progress; 0 for no limit" [services(&[Osd]), startup()];
    osd_client_message_size_cap: Size = "500Mi", "Maximum bytes of client requests in progress"
        [min("1Mi"), services(&[Osd]), startup(), see(&["ms_dispatch_throttle_bytes"])];
    osd_heartbeat_interval: IntSecs = "6", "Interval of pings to a peer, in seconds" [range("1", "60"), services(&[Osd])];
    osd_heartbeat_grace: IntSecs = "20", "Time without an answer after which a peer is reported as failed, in seconds"
        [min("1"), services(&[Osd, Mon]), see(&["osd_heartbeat_interval"])];
    osd_heartbeat_min_peers: Uint = "10", "Minimum number of peers to ping" [services(&[Osd])];
    osd_fast_fail_on_connection_refused: Bool = "true", "Report a peer as failed immediately if it refuses connections"
        [services(&[Osd])];
    osd_beacon_report_interval: IntSecs = "300", "Interval of beacons to the monitors, in seconds"
        [min("1"), services(&[Osd]), see(&["mon_osd_report_timeout"])];
    osd_mon_report_interval: IntSecs = "5", "Interval of statistics reports to the monitors, in seconds"
        [min("1"), services(&[Osd])];
    osd_mon_shutdown_timeout: FloatSecs = "5", "Timeout for the answer of the monitors at shutdown, in seconds" [services(&[Osd])];
    osd_min_pg_log_entries: Uint = "250", "Minimum number of entries in a PG's log"
        [min("1"), services(&[Osd]), see(&["osd_max_pg_log_entries"])];
    osd_max_pg_log_entries: Uint = "10000", "Maximum number of entries in a PG's log that are kept for absent members"
        [min("1"), services(&[Osd]), see(&["osd_min_pg_log_entries"])];
    osd_max_backfills: Uint = "1", "Maximum number of concurrent backfills of an OSD" [min("1"), services(&[Osd])];
    osd_recovery_max_active: Uint = "0", "Maximum number of objects that an OSD recovers concurrently; 0 to choose by device"
        [services(&[Osd]), see(&["osd_recovery_max_active_ssd"])];
    osd_recovery_max_active_ssd: Uint = "10",
        "Maximum number of objects that an OSD on a solid-state device recovers concurrently" [services(&[Osd])];
    osd_recovery_max_chunk: Size = "8Mi", "Maximum bytes of an object per recovery step" [min("4Ki"), services(&[Osd])];
    osd_backfill_scan_max: Uint = "512", "Maximum number of objects per backfill scan" [min("1"), services(&[Osd])];
    osd_op_thread_timeout: IntSecs = "15", "Time after which an OSD with a hanging shard stops answering pings, in seconds; 0 for never"
        [services(&[Osd]), see(&["osd_op_thread_suicide_timeout"])];
    osd_op_thread_suicide_timeout: IntSecs = "150",
        "Time after which an OSD with a hanging shard or store is aborted, in seconds; 0 for never"
        [services(&[Osd]), see(&["osd_op_thread_timeout"])];
    osd_op_complaint_time: FloatSecs = "30", "Time after which a request counts as slow, in seconds" [services(&[Osd])];
    osd_bench_small_size_max_iops: Uint = "100", "Writes per second that `bench` assumes for blocks below 1 MiB"
        [services(&[Osd])];
    osd_bench_large_size_max_throughput: Size = "100Mi", "Bytes per second that `bench` assumes for larger blocks"
        [services(&[Osd])];
    osd_bench_max_block_size: Size = "64Mi", "Maximum block size of `bench`" [services(&[Osd])];
    osd_bench_duration: Uint = "30", "Maximum duration of `bench` at the assumed rates, in seconds" [services(&[Osd])];
    osd_op_history_size: Uint = "20", "Number of finished requests that are kept for inspection" [services(&[Osd])];
    osd_op_history_duration: IntSecs = "600", "Time for which finished requests are kept, in seconds" [services(&[Osd])];
    osd_op_history_slow_op_size: Uint = "20", "Number of finished slow requests that are kept for inspection" [services(&[Osd])];
    osd_op_history_slow_op_threshold: FloatSecs = "10", "Duration from which a finished request is kept as slow, in seconds"
        [services(&[Osd])];
    osd_client_watch_timeout: IntSecs = "30", "Timeout of watches, in seconds"
        [min("1"), services(&[Osd])];
    osd_default_notify_timeout: Uint = "30", "Default timeout of a notify, in seconds"
        [min("1"), services(&[Osd])];
    osd_max_object_watches: Uint = "4096", "Maximum number of watches on an object" [min("1"), services(&[Osd]), nacre_only()];
    osd_max_client_watches: Uint = "4096", "Maximum number of watches of a session on an OSD"
        [min("1"), services(&[Osd]), nacre_only()];
    osd_max_watches: Uint = "262144", "Maximum number of watches on an OSD" [min("1"), services(&[Osd]), nacre_only()];
    osd_tier_promote_max_objects_sec: Uint = "25",
        "Maximum objects per second that an OSD promotes into cache tiers besides proxied requests"
        [services(&[Osd])];
    osd_tier_promote_max_bytes_sec: Size = "5Mi", "Maximum bytes per second that an OSD promotes into cache tiers besides proxied requests"
        [services(&[Osd])];
    osd_tier_promote_admission: PromoteAdmission = "recency",
        "Rule for promoting objects of proxied requests: `recency` uses hit sets; `frequency` \
        requires more accesses than evicted objects had, so that a scan evicts nothing"
        [services(&[Osd]), nacre_only()];
    osd_tier_advise_objects: Uint = "2048",
        "Number of objects per PG of a cache tier whose accesses are recorded for `tier advise`, at 240 bytes each; 0 for none"
        [range("0", "65536"), services(&[Osd]), nacre_only()];
    osd_agent_max_ops: Uint = "4",
        "Objects that the tier agent of a shard flushes concurrently at high speed while clients are served; 16 or more while idle"
        [min("1"), services(&[Osd]), see(&["osd_agent_max_low_ops"])];
    osd_agent_max_low_ops: Uint = "2",
        "Objects that the tier agent of a shard flushes concurrently at low speed while clients are \
        served, with pauses between them"
        [min("1"), services(&[Osd]), see(&["osd_agent_max_ops"])];
    osd_agent_min_evict_effort: Float = "0.1", "Minimum ratio of objects that a tier agent evicts"
        [range("0", "0.99"), services(&[Osd])];
    osd_agent_quantize_effort: Float = "0.1", "Step size of a tier agent's effort"
        [range("0", "1"), services(&[Osd])];
    osd_agent_slop: Float = "0.02", "Hysteresis of the modes of a tier agent, as a ratio of the target"
        [range("0", "1"), services(&[Osd])];
    osd_hit_set_min_size: Uint = "1000", "Minimum number of objects that a PG's hit set is sized for"
        [range("1", "1000000"), services(&[Osd]), see(&["osd_hit_set_max_size"])];
    osd_hit_set_max_size: Uint = "100000", "Number of objects at which a PG's hit set is full"
        [range("1", "10000000"), services(&[Osd]), see(&["osd_hit_set_min_size"])];
    osd_crush_update_on_start: Bool = "true", "Update the location of the OSD in the CRUSH map when it starts" [services(&[Osd])];
    osd_crush_initial_weight: Float = "-1", "CRUSH weight of a new OSD; negative for its size in TiB"
        [services(&[Osd]), startup()];
    crush_location: Str = "", "Location of a new OSD in the CRUSH map, such as 'root=default host=a'"
        [services(&[Osd]), startup()];
    osd_class_default_list: Str = "*", "Object classes that clients may call without naming them in their capabilities"
        [services(&[Osd]), startup()];
    osd_class_load_list: Str = "*", "Object classes that the OSD provides" [services(&[Osd]), startup()];
}
