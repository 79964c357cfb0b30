//! Options of object storage daemons.

use super::kinds::{
    Bool, Float, FloatSecs, IntSecs, ObjectStoreKind, PromoteAdmission, Size, Str, Uint, UuidKind,
};
use super::option_group;
use super::spec::Service::{Mon, Osd};

option_group! {
    /// Object storage daemons: store, limits, heartbeats, logs of PGs, recovery.
    OsdOptions:
    osd_data: Str = "/var/lib/ceph/osd/$cluster-$id", "Directory of the OSD's data"
        [services(&[Osd]), startup(), no_mon_update()];
    osd_objectstore: ObjectStoreKind = "bluestore", "The store that a new OSD keeps its data in"
        [services(&[Osd]), create(), long("bluestore is for disks, memstore keeps everything in memory and loses it \
        in a crash, filestore uses plain files. What an existing OSD uses is written beside its data.")];
    osd_device_class: Str = "", "Device class of a new OSD; empty for mem on memstore and ssd on others"
        [services(&[Osd]), startup(), nacre(), long("Counts when the OSD is first added to the CRUSH map; later 'ceph osd crush set-device-class' changes it.")];
    osd_uuid: UuidKind = "00000000-0000-0000-0000-000000000000", "Id of a new OSD; zeros to make one up"
        [services(&[Osd]), create()];
    osd_op_num_shards: Uint = "0", "Threads that PGs are spread over; 0 for half of the cores"
        [range("0", "256"), services(&[Osd]), startup()];
    osd_max_object_size: Size = "128Mi", "The greatest size of an object" [min("1"), services(&[Osd])];
    osd_max_write_size: Size = "90", "The greatest write in one request, in MiB" [min("4"), services(&[Osd])];
    osd_max_object_name_len: Uint = "2048", "The longest object name, in bytes" [range("16", "4096"), services(&[Osd])];
    osd_max_object_namespace_len: Uint = "256", "The longest object namespace, in bytes"
        [range("0", "4096"), services(&[Osd])];
    osd_max_attr_name_len: Uint = "100", "The longest name of an extended attribute, in bytes"
        [range("1", "255"), services(&[Osd])];
    osd_max_attr_size: Size = "0", "The longest extended attribute; 0 leaves it to the store" [services(&[Osd])];
    osd_max_omap_entries_per_request: Uint = "1024", "Entries of an omap that one request returns"
        [min("1"), services(&[Osd])];
    osd_max_omap_bytes_per_request: Size = "1Gi", "Bytes of an omap that one request returns"
        [min("4Ki"), services(&[Osd])];
    osd_max_pgls: Uint = "1024", "Objects that one listing request returns" [range("1", "65536"), services(&[Osd])];
    osd_max_write_op_reply_len: Size = "64", "Output that a write may return, per op, in bytes"
        [services(&[Osd])];
    osd_client_message_cap: Uint = "256", "Requests of clients in hand at a time; 0 for no limit" [services(&[Osd]), startup()];
    osd_client_message_size_cap: Size = "500Mi", "Bytes of clients' requests in hand at a time"
        [min("1Mi"), services(&[Osd]), startup(), see(&["ms_dispatch_throttle_bytes"])];
    osd_heartbeat_interval: IntSecs = "6", "Seconds between pings of a peer" [range("1", "60"), services(&[Osd])];
    osd_heartbeat_grace: IntSecs = "20", "Seconds without an answer after which a peer is reported as failed"
        [min("1"), services(&[Osd, Mon]), see(&["osd_heartbeat_interval"])];
    osd_heartbeat_min_peers: Uint = "10", "The least number of peers to ping" [services(&[Osd])];
    osd_fast_fail_on_connection_refused: Bool = "true", "Report a peer as failed at once when its port is closed"
        [services(&[Osd])];
    osd_beacon_report_interval: IntSecs = "300", "Seconds between beacons to the monitors"
        [min("1"), services(&[Osd]), see(&["mon_osd_report_timeout"])];
    osd_mon_report_interval: IntSecs = "5", "Seconds between reports of statistics to the monitors"
        [min("1"), services(&[Osd])];
    osd_mon_shutdown_timeout: FloatSecs = "5", "Seconds to wait for the monitors when stopping" [services(&[Osd])];
    osd_min_pg_log_entries: Uint = "250", "Entries of a PG's log that are always kept"
        [min("1"), services(&[Osd]), see(&["osd_max_pg_log_entries"])];
    osd_max_pg_log_entries: Uint = "10000", "Entries of a PG's log that are kept for members that are away"
        [min("1"), services(&[Osd]), see(&["osd_min_pg_log_entries"])];
    osd_max_backfills: Uint = "1", "Backfills that one OSD takes part in at a time" [min("1"), services(&[Osd])];
    osd_recovery_max_active: Uint = "0", "Objects that one OSD recovers at a time; 0 chooses by the device"
        [services(&[Osd]), see(&["osd_recovery_max_active_ssd"])];
    osd_recovery_max_active_ssd: Uint = "10", "Objects that one OSD with a solid-state device recovers at a time" [services(&[Osd])];
    osd_recovery_max_chunk: Size = "8Mi", "Bytes of an object that are recovered at a time" [min("4Ki"), services(&[Osd])];
    osd_backfill_scan_max: Uint = "512", "The greatest number of objects in a backfill scan" [min("1"), services(&[Osd])];
    osd_op_thread_timeout: IntSecs = "15", "Seconds after which an OSD whose shard hangs answers no pings; 0 for never"
        [services(&[Osd]), see(&["osd_op_thread_suicide_timeout"])];
    osd_op_thread_suicide_timeout: IntSecs = "150", "Seconds after which an OSD whose shard or store hangs is aborted; 0 for never"
        [services(&[Osd]), see(&["osd_op_thread_timeout"])];
    osd_op_complaint_time: FloatSecs = "30", "Seconds after which a request counts as slow" [services(&[Osd])];
    osd_bench_small_size_max_iops: Uint = "100", "Writes per second that `bench` assumes for blocks below 1 MiB"
        [services(&[Osd])];
    osd_bench_large_size_max_throughput: Size = "100Mi", "Bytes per second that `bench` assumes for larger blocks"
        [services(&[Osd])];
    osd_bench_max_block_size: Size = "64Mi", "Largest block of `bench`" [services(&[Osd])];
    osd_bench_duration: Uint = "30", "Seconds that `bench` may take at the assumed rates" [services(&[Osd])];
    osd_op_history_size: Uint = "20", "Finished requests that are kept for inspection" [services(&[Osd])];
    osd_op_history_duration: IntSecs = "600", "Seconds for which finished requests are kept" [services(&[Osd])];
    osd_op_history_slow_op_size: Uint = "20", "Finished slow requests that are kept for inspection" [services(&[Osd])];
    osd_op_history_slow_op_threshold: FloatSecs = "10", "Seconds after which a finished request is kept as a slow one"
        [services(&[Osd])];
    osd_client_watch_timeout: IntSecs = "30", "Seconds after which a silent watcher is forgotten"
        [min("1"), services(&[Osd])];
    osd_default_notify_timeout: Uint = "30", "Seconds that a notify waits for its watchers where it does not say"
        [min("1"), services(&[Osd])];
    osd_max_object_watches: Uint = "4096", "Watches on one object" [min("1"), services(&[Osd]), nacre()];
    osd_max_client_watches: Uint = "4096", "Watches that one session may have on one OSD"
        [min("1"), services(&[Osd]), nacre()];
    osd_max_watches: Uint = "262144", "Watches on one OSD" [min("1"), services(&[Osd]), nacre()];
    osd_tier_promote_max_objects_sec: Uint = "25", "Objects per second that one OSD promotes into cache tiers beside proxied requests"
        [services(&[Osd])];
    osd_tier_promote_max_bytes_sec: Size = "5Mi", "Bytes per second that one OSD promotes into cache tiers beside proxied requests"
        [services(&[Osd])];
    osd_tier_promote_admission: PromoteAdmission = "recency", "What lets an object into a cache tier beside a proxied request: `recency` asks hit sets, `frequency` wants more accesses than evicted objects had, so that a scan displaces nothing"
        [services(&[Osd]), nacre()];
    osd_tier_advise_objects: Uint = "2048", "Objects of each PG of a cache tier whose accesses `tier advise` learns from, at 240 bytes each; 0 for none"
        [range("0", "65536"), services(&[Osd]), nacre()];
    osd_agent_max_ops: Uint = "4", "Objects that the tier agent of one shard flushes at a time at high speed, where clients are served: while they are idle it is 16 or more"
        [min("1"), services(&[Osd]), see(&["osd_agent_max_low_ops"])];
    osd_agent_max_low_ops: Uint = "2", "Objects that the tier agent of one shard flushes at a time at low speed, where clients are served: it rests between them then"
        [min("1"), services(&[Osd]), see(&["osd_agent_max_ops"])];
    osd_agent_min_evict_effort: Float = "0.1", "Least share of the objects that a tier agent evicts"
        [range("0", "0.99"), services(&[Osd])];
    osd_agent_quantize_effort: Float = "0.1", "Steps in which a tier agent's effort changes"
        [range("0", "1"), services(&[Osd])];
    osd_agent_slop: Float = "0.02", "Distance from a target, as a share of it, within which a tier agent keeps its mode"
        [range("0", "1"), services(&[Osd])];
    osd_hit_set_min_size: Uint = "1000", "Least number of objects that a PG's hit set is laid out for"
        [range("1", "1000000"), services(&[Osd]), see(&["osd_hit_set_max_size"])];
    osd_hit_set_max_size: Uint = "100000", "Number of objects at which a PG's hit set counts as full"
        [range("1", "10000000"), services(&[Osd]), see(&["osd_hit_set_min_size"])];
    osd_crush_update_on_start: Bool = "true", "Place the OSD in the CRUSH map when it starts" [services(&[Osd])];
    osd_crush_initial_weight: Float = "-1", "CRUSH weight of a new OSD; negative for its size in TiB"
        [services(&[Osd]), startup()];
    crush_location: Str = "", "Location of a new OSD in the CRUSH map, such as 'root=default host=a'"
        [services(&[Osd]), startup()];
    osd_class_default_list: Str = "*", "Object classes that clients may call without naming them in their caps"
        [services(&[Osd]), startup()];
    osd_class_load_list: Str = "*", "Object classes that are offered" [services(&[Osd]), startup()];
}
