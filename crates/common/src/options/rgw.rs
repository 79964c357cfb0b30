//! Options of the S3 gateway.

use super::kinds::{Bool, FloatSecs, Int, IntSecs, Size, Str, Uint};
use super::option_group;
use super::spec::OptionService::Rgw;

option_group! {
    /// The S3 gateway.
    RgwOptions:
    rgw_frontends: Str = "beast endpoint=127.0.0.1:8000", "Endpoints and settings of the gateway"
        [basic(), startup(), services(&[Rgw]), long("The word beast, accepted for compatibility with Ceph, and any number of \
            endpoint=ADDRESS:PORT and port=PORT; for TLS ssl_endpoint=ADDRESS:PORT and ssl_port=PORT, with \
            ssl_certificate=FILE (the certificate chain in PEM) and ssl_private_key=FILE (default: in the same file). Without \
            an address, a port is on the loopback address. ssl_reload=SECONDS is the interval of checks whether these files \
            have changed (10, 0 for never); SIGHUP also reloads them. An invalid new certificate does not replace the current \
            one. request_timeout_ms=N (65000) is the timeout for the next byte of a request's body, for a client to read from \
            an answer, and for the next request on a connection; max_connection_backlog=N (4096) is the maximum number of \
            connections that wait to be accepted, limited by net.core.somaxconn; max_header_size=BYTES (65536) is the maximum \
            size of a request's head; tcp_nodelay=0 lets the kernel coalesce small packets.")];
    rgw_thread_pool_size: Uint = "0", "Number of threads of the gateway; 0 for one per core" [basic(), startup(), services(&[Rgw]),
        long("The maximum is one per core: a waiting request occupies no thread, and connections are not bound to threads.")];
    rgw_region: Str = "default", "Region that is reported to clients" [startup(), services(&[Rgw])];
    rgw_dns_name: Str = "", "Host names of the gateway, separated by commas" [startup(), services(&[Rgw]),
        long("In a request to BUCKET.NAME, the bucket is taken from the host and the path is the key. For other hosts, the \
            path begins with the bucket.")];
    rgw_dns_s3website_name: Str = "",
        "Host names under which websites of buckets are served, separated by commas" [startup(), services(&[Rgw]),
        long("BUCKET.NAME is the website of that bucket.")];
    rgw_override_bucket_index_max_shards: Uint = "11", "Number of shards of a new bucket's index"
        [range("1", "65521"), startup(), services(&[Rgw])];
    rgw_max_put_memory: Size = "128Mi", "Maximum bytes of object data in memory on the way to RADOS, for all requests together"
        [min("1Mi"), startup(), nacre_only(), services(&[Rgw]), long("At the limit, the gateway stops reading request bodies.")];
    rgw_pending_bucket_index_op_expiration: IntSecs = "120",
        "Time after which a gateway finishes pending changes of another gateway that has ended, in seconds"
        [startup(), services(&[Rgw])];
    rgw_gateway_lease_duration: IntSecs = "30", "Lease duration of a gateway, in seconds"
        [min("1"), startup(), nacre_only(), services(&[Rgw]), long("A gateway renews its lease in RADOS four times in this time. \
            Another gateway's changes are finished only after its lease has expired and it is blocklisted.")];
    rgw_gc_obj_min_wait: IntSecs = "7200", "Time for which the data of a removed or replaced object is kept for current readers, in seconds"
        [startup(), services(&[Rgw])];
    rgw_max_connections: Uint = "4096", "Maximum number of connections of a gateway" [min("1"), startup(), services(&[Rgw]),
        long("A further connection replaces the one that has waited longest for a request, or has stalled in one, of the \
            address with the most connections. If all are busy, further connections wait to be accepted. At most three \
            quarters of the limit of open files of the process.")];
    rgw_max_connections_per_address: Uint = "1024", "Maximum number of connections of a gateway from one address"
        [startup(), nacre_only(), services(&[Rgw]), long("A further connection replaces the oldest idle one of the address, and is \
            closed if all are busy. A /64 network of IPv6 counts as one address. 0 for no limit.")];
    rgw_header_timeout: FloatSecs = "30",
        "Timeout for the head of a request, from the start of the connection or the first byte, in seconds"
        [min("0.1"), startup(), nacre_only(), services(&[Rgw])];
    rgw_tls_handshake_timeout: FloatSecs = "10", "Timeout of TLS handshakes, in seconds" [min("0.1"), startup(), nacre_only(), services(&[Rgw])];
    rgw_min_transfer_rate: Size = "512", "Minimum rate at which clients must send a body and read an answer, in bytes per second"
        [startup(), nacre_only(), services(&[Rgw]), long("Only time in which the gateway waits for the client counts. A request \
            that falls behind by more than request_timeout_ms of rgw_frontends is aborted. 0: one byte within that time is \
            sufficient.")];
    rgw_stalled_request_time: FloatSecs = "5",
        "Time of waiting for the client after which the request of an authenticated user can be replaced by others, in seconds"
        [startup(), nacre_only(), services(&[Rgw]), long("Requests are replaced when rgw_max_connections, \
            rgw_max_connections_per_address or rgw_max_concurrent_requests is reached. Requests without a valid signature can \
            be replaced immediately.")];
    rgw_max_concurrent_requests: Uint = "1024",
        "Maximum number of requests in progress in a gateway" [min("1"), startup(), services(&[Rgw]),
        long("A further request replaces the one that has waited longest for its client (rgw_stalled_request_time); if there \
            is none, it is answered with SlowDown.")];
    rgw_max_request_rate: Uint = "0", "Maximum number of requests per second of a gateway; 0 for no limit" [startup(), services(&[Rgw]),
        long("Further requests are answered with SlowDown.")];
    rgw_exit_timeout_secs: IntSecs = "120", "Timeout for requests in progress at shutdown, in seconds"
        [startup(), services(&[Rgw])];
    rgw_op_complaint_time: FloatSecs = "30", "Time until the beginning of an answer after which a request is logged as slow, in seconds"
        [startup(), services(&[Rgw])];
    rgw_ops_log_file_path: Str = "", "Path of the access log, in the format of S3's server access logs; empty for none"
        [startup(), services(&[Rgw]), long("Each request is logged in one line. The file is created again after it was moved \
            away. Only its owner can read it.")];
    rgw_admin_entry: Str = "admin", "Path prefix of the admin API; empty to disable it" [startup(), services(&[Rgw]),
        long("Objects of a bucket with that name cannot be accessed by path.")];
    rgw_bucket_quota_ttl: IntSecs = "600", "Time for which a gateway caches the usage of a bucket for its quota, in seconds"
        [min("1"), startup(), services(&[Rgw]), long("The gateway counts its own changes immediately, and those of other \
            gateways when it reads the usage again. Parts that are not in a completed upload count for the same time.")];
    rgw_user_quota_bucket_sync_interval: IntSecs = "180",
        "Time for which a gateway caches the usage of a user for the user's quota, in seconds"
        [min("1"), startup(), services(&[Rgw])];
    rgw_user_default_quota_max_objects: Int = "-1",
        "Default maximum number of objects of a new user; negative for no limit" [startup(), services(&[Rgw])];
    rgw_user_default_quota_max_size: Int = "-1", "Default maximum bytes of a new user; negative for no limit" [startup(), services(&[Rgw])];
    rgw_bucket_default_quota_max_objects: Int = "-1",
        "Default maximum number of objects in each bucket of a new user; negative for no limit"
        [startup(), services(&[Rgw])];
    rgw_bucket_default_quota_max_size: Int = "-1", "Default maximum bytes in each bucket of a new user; negative for no limit"
        [startup(), services(&[Rgw])];
    rgw_enable_usage_log: Bool = "false", "Record requests and bytes by user, bucket, category and hour"
        [startup(), services(&[Rgw]), long("`nacre usage show` prints the records.")];
    rgw_usage_log_flush_threshold: Uint = "1024",
        "Number of records at which the usage log is written immediately" [min("1"), startup(), services(&[Rgw])];
    rgw_usage_log_tick_interval: IntSecs = "30", "Interval of writes of the usage log, in seconds" [min("1"), startup(), services(&[Rgw])];
    rgw_crypt_default_encryption_key: Str = "",
        "Key for server-side encryption with the cluster's key, 32 bytes in base64" [startup(), services(&[Rgw]),
        long("If empty, a key is generated when it is first needed and stored in the monitors (config-key \
            rgw/crypt/default_encryption_key/…). Data that was encrypted with another key can no longer be read.")];
    rgw_crypt_require_ssl: Bool = "true", "Refuse keys of clients for encryption (SSE-C) without TLS"
        [startup(), services(&[Rgw]), long("Connections from the gateway's own host are accepted.")];
    rgw_trust_forwarded_https: Bool = "false", "Trust a proxy that reports that a request came to it by TLS"
        [startup(), services(&[Rgw]), long("The proxy uses the header Forwarded or X-Forwarded-Proto. Only for gateways that \
            only the proxy can reach.")];
    rgw_max_objs_per_shard: Uint = "100000", "Maximum number of objects that a shard of a bucket's index should have"
        [startup(), services(&[Rgw]), long("0: no limit.")];
    rgw_dynamic_resharding: Bool = "true", "Reshard buckets with more than rgw_max_objs_per_shard objects per shard"
        [startup(), services(&[Rgw])];
    rgw_max_dynamic_shards: Uint = "1999",
        "Maximum number of shards that dynamic resharding gives to a bucket" [range("1", "65521"), startup(), services(&[Rgw])];
    rgw_reshard_bucket_lock_duration: IntSecs = "360",
        "Time without progress of a resharding gateway after which another one takes over, in seconds"
        [min("1"), startup(), services(&[Rgw])];
    rgw_reshard_thread_interval: IntSecs = "600", "Interval of checks for buckets to reshard, in seconds"
        [min("1"), startup(), services(&[Rgw])];
    rgw_enable_lc_threads: Bool = "true", "Apply lifecycle rules of buckets" [startup(), services(&[Rgw])];
    rgw_lifecycle_work_time: Str = "00:00-06:00", "Time of day in which lifecycle rules are applied" [startup(), services(&[Rgw]),
        long("HH:MM-HH:MM, in UTC.")];
    rgw_lc_debug_interval: Int = "-1",
        "Length of a day in lifecycle rules for tests, in seconds; -1 for a real day" [startup(), services(&[Rgw]),
        long("If positive, rules are applied at this interval at any time of day.")];
    rgw_gc_processor_period: IntSecs = "3600", "Interval of garbage collection, in seconds"
        [min("1"), startup(), services(&[Rgw])];
    rgw_bucket_persistent_notif_num_shards: Uint = "11", "Number of shards of the queue of a new persistent notification topic"
        [range("1", "4096"), services(&[Rgw]), long("A topic keeps its number of shards; `nacre topic reshard` changes it.")];
    rgw_topic_persistency_time_to_live: IntSecs = "0",
        "Time after which an undelivered event expires, for topics without time_to_live, in seconds"
        [services(&[Rgw]), long("0: never.")];
    rgw_topic_persistency_max_retries: Uint = "0",
        "Number of retries after which an event expires, for topics without max_retries"
        [services(&[Rgw]), long("0: no limit.")];
    rgw_topic_persistency_sleep_duration: IntSecs = "0",
        "Delay between retries of an event, for topics without retry_sleep_duration, in seconds"
        [services(&[Rgw]), long("0: the delay grows with each retry, up to 30 seconds.")];
    rgw_topic_queue_max_bytes: Size = "1Gi",
        "Size of a persistent topic's queue from which queue-full-policy applies, for topics without queue-max-bytes"
        [min("1"), nacre_only(), services(&[Rgw])];
    rgw_topic_push_timeout: FloatSecs = "5", "Timeout for the endpoints of non-persistent topics during an operation, in seconds"
        [min("0.1"), nacre_only(), services(&[Rgw]), long("Events that are not delivered by then are lost.")];
    rgw_http_notif_message_timeout: Uint = "10", "Timeout for pushing an event to an HTTP endpoint, in seconds"
        [range("1", "86400"), startup(), services(&[Rgw]), long("Includes the time to connect.")];
    rgw_http_notif_connection_timeout: Uint = "5", "Timeout for connecting to an HTTP endpoint, in seconds"
        [range("1", "86400"), startup(), services(&[Rgw])];
    rgw_http_notif_max_connections: Uint = "32", "Maximum number of connections of a gateway to one HTTP endpoint"
        [range("1", "1024"), startup(), nacre_only(), services(&[Rgw]), long("Further requests wait for a connection.")];
    rgw_kafka_message_timeout: Uint = "5000", "Timeout for pushing an event to Kafka, in milliseconds"
        [range("1", "86400000"), startup(), services(&[Rgw]), long("Includes retries. Values below 1000 count as 1000.")];
    rgw_kafka_connection_idle: Uint = "300", "Time after which idle connections to Kafka are closed, in seconds"
        [range("1", "86400"), startup(), services(&[Rgw])];
    rgw_kafka_max_batch_size: Uint = "0", "Maximum bytes of events in one request to Kafka; 0 for the default of librdkafka"
        [range("0", "2147483647"), startup(), services(&[Rgw]), long("The default of librdkafka is 1000000.")];
    rgw_amqp_message_timeout: Uint = "10", "Timeout for pushing an event to an AMQP broker, in seconds"
        [range("1", "86400"), startup(), nacre_only(), services(&[Rgw]), long("Includes the time to connect.")];
    rgw_amqp_connection_timeout: Uint = "5", "Timeout for connecting to an AMQP broker, in seconds"
        [range("1", "86400"), startup(), nacre_only(), services(&[Rgw])];
    rgw_notification_max_inflight: Uint = "8192", "Maximum number of events in flight to a Kafka or AMQP broker"
        [range("1", "1000000"), startup(), nacre_only(), services(&[Rgw]), long("Further events are retried later. Each event in \
            flight uses some memory.")];
    rgw_allow_notification_secrets_in_cleartext: Bool = "false", "Allow credentials of notification endpoints without TLS"
        [services(&[Rgw]), long("Applies to requests for topics and to endpoints.")];
    rgw_allow_notification_local_endpoints: Bool = "false",
        "Allow notification endpoints at link-local addresses, addresses of the cluster and loopback"
        [nacre_only(), services(&[Rgw]), long("Loopback is always allowed while all gateways listen only on loopback.")];
    rgw_notification_ca_folder: Str = "", "Folder that must contain the ca-location of notification topics"
        [runtime(), nacre_only(), services(&[Rgw]), long("If empty, topics cannot have a ca-location.")];
}
