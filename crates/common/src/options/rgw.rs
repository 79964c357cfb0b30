//! Options of the S3 gateway.

use super::kinds::{Bool, FloatSecs, Int, IntSecs, Size, Str, Uint};
use super::option_group;
use super::spec::Service::Rgw;

option_group! {
    /// The S3 gateway.
    RgwOptions:
    rgw_frontends: Str = "beast endpoint=127.0.0.1:8000", "Where the gateway listens"
        [basic(), startup(), services(&[Rgw]), long("The word beast, for Ceph's sake, and any number of endpoint=ADDRESS:PORT \
        and port=PORT; by TLS ssl_endpoint=ADDRESS:PORT and ssl_port=PORT, with ssl_certificate=FILE (PEM, with those that signed it) and \
        ssl_private_key=FILE (else it is in the same file). A port alone is one of the loopback address. ssl_reload=SECONDS is how often it is \
        looked whether these files have changed (10, 0 for never); SIGHUP reads them again too. A new certificate that can't be used leaves the old one. \
        request_timeout_ms=N (65000) is how long the gateway waits for a byte of a request's body, for a client to take a byte of an answer, and for \
        another request on a connection; max_connection_backlog=N (4096) how many connections may wait to be accepted, at most net.core.somaxconn; \
        max_header_size=BYTES (65536) the longest head of a request; tcp_nodelay=0 lets the kernel gather small packets.")];
    rgw_thread_pool_size: Uint = "0", "Threads that the gateway works on; 0 for one per core" [basic(), startup(), services(&[Rgw]),
        long("There are never more than one per core: a request that waits holds none, and connections are not bound to threads.")];
    rgw_region: Str = "default", "The region that clients are told of" [startup(), services(&[Rgw])];
    rgw_dns_name: Str = "", "Host names of the gateway, with commas between them" [startup(), services(&[Rgw]),
        long("A request to BUCKET.NAME is one to that bucket, and its path is the key. For any other host the path begins with the bucket.")];
    rgw_dns_s3website_name: Str = "", "Names under which buckets' websites are served, with commas between them" [startup(), services(&[Rgw]),
        long("BUCKET.NAME is the website of that bucket.")];
    rgw_override_bucket_index_max_shards: Uint = "11", "Shards of a new bucket's index"
        [range("1", "65521"), startup(), services(&[Rgw])];
    rgw_max_put_memory: Size = "128Mi", "Bytes of objects' data that are held on their way into RADOS, for all requests together"
        [min("1Mi"), startup(), nacre(), services(&[Rgw]), long("Requests wait to be read where it is used up.")];
    rgw_pending_bucket_index_op_expiration: IntSecs = "120", "Seconds after which another gateway finishes the changes that a gateway started, if that one is gone"
        [startup(), services(&[Rgw])];
    rgw_gateway_lease_duration: IntSecs = "30", "Seconds without a sign of life after which a gateway may be taken for gone"
        [min("1"), startup(), nacre(), services(&[Rgw]), long("A gateway renews its lease in RADOS four times in this time. Another gateway's changes are \
        finished only after that one's lease is over, and after it is blocklisted.")];
    rgw_gc_obj_min_wait: IntSecs = "7200", "Seconds that the data of a removed or replaced object stays for those who still read it"
        [startup(), services(&[Rgw])];
    rgw_max_connections: Uint = "4096", "Connections that a gateway has at a time" [min("1"), startup(), services(&[Rgw]),
        long("One more takes the place of the connection that has waited longest for a request, or has stalled in one, of the address that has most of \
        them. While all are busy, more wait to be accepted. No more than three quarters of the process's limit of open files.")];
    rgw_max_connections_per_address: Uint = "1024", "Connections that a gateway has at a time from one address"
        [startup(), nacre(), services(&[Rgw]), long("One more takes the place of the address's oldest idle one, and is closed while all are busy. A /64 \
        network of IPv6 is one address. 0 is any number.")];
    rgw_header_timeout: FloatSecs = "30", "Seconds that the head of a request may take to arrive, from the connection or its first byte on"
        [min("0.1"), startup(), nacre(), services(&[Rgw])];
    rgw_tls_handshake_timeout: FloatSecs = "10", "Seconds that a TLS handshake may take" [min("0.1"), startup(), nacre(), services(&[Rgw])];
    rgw_min_transfer_rate: Size = "512", "Bytes per second that clients must send of a body and take of an answer"
        [startup(), nacre(), services(&[Rgw]), long("Only time counts in which the gateway waits for the client. What falls behind by more than \
        request_timeout_ms of rgw_frontends is ended. 0: one byte in that time is enough.")];
    rgw_stalled_request_time: FloatSecs = "5", "Seconds for which the gateway has waited for a known user's request before others may take its place"
        [startup(), nacre(), services(&[Rgw]), long("Others take it where rgw_max_connections, rgw_max_connections_per_address or \
        rgw_max_concurrent_requests is reached. Requests without a valid signature have no such time.")];
    rgw_max_concurrent_requests: Uint = "1024", "Requests that a gateway has under way at a time" [min("1"), startup(), services(&[Rgw]),
        long("One more takes the place of the one that has waited longest for its client (rgw_stalled_request_time); where none has, it is answered with \
        SlowDown.")];
    rgw_max_request_rate: Uint = "0", "Requests that a gateway takes in a second" [startup(), services(&[Rgw]),
        long("More are answered with SlowDown. 0 is any number.")];
    rgw_exit_timeout_secs: IntSecs = "120", "Seconds that requests under way may take to end when the gateway is told to end"
        [startup(), services(&[Rgw])];
    rgw_op_complaint_time: FloatSecs = "30", "Seconds until an answer begins after which a request is logged as slow"
        [startup(), services(&[Rgw])];
    rgw_ops_log_file_path: Str = "", "File that takes a line for every request, in the format of S3's server access logs"
        [startup(), services(&[Rgw]), long("It is created again when it is moved away, and only its owner can read it. Empty: no such log.")];
    rgw_admin_entry: Str = "admin", "What the paths of the admin API begin with" [startup(), services(&[Rgw]),
        long("Objects of a bucket of that name can't be reached by path. Empty: no admin API.")];
    rgw_bucket_quota_ttl: IntSecs = "600", "Seconds that a gateway judges a bucket's quota by sums that it remembers"
        [min("1"), startup(), services(&[Rgw]), long("Its own changes it counts at once, those of other gateways when it reads again. Parts that no upload was completed with count as long.")];
    rgw_user_quota_bucket_sync_interval: IntSecs = "180", "Seconds that a gateway judges a user's quota by sums that it remembers"
        [min("1"), startup(), services(&[Rgw])];
    rgw_user_default_quota_max_objects: Int = "-1", "The most objects of a new user; below zero for any number" [startup(), services(&[Rgw])];
    rgw_user_default_quota_max_size: Int = "-1", "The most bytes of a new user; below zero for any number" [startup(), services(&[Rgw])];
    rgw_bucket_default_quota_max_objects: Int = "-1", "The most objects in each bucket of a new user; below zero for any number"
        [startup(), services(&[Rgw])];
    rgw_bucket_default_quota_max_size: Int = "-1", "The most bytes in each bucket of a new user; below zero for any number"
        [startup(), services(&[Rgw])];
    rgw_enable_usage_log: Bool = "false", "Whether requests and bytes are counted by user, bucket, kind and hour"
        [startup(), services(&[Rgw]), long("`nacre usage show` prints what was counted.")];
    rgw_usage_log_flush_threshold: Uint = "1024", "Records of the usage log with which it is written at once" [min("1"), startup(), services(&[Rgw])];
    rgw_usage_log_tick_interval: IntSecs = "30", "Seconds between two writes of the usage log" [min("1"), startup(), services(&[Rgw])];
    rgw_crypt_default_encryption_key: Str = "", "Secret for server-side encryption with the cluster's key, 32 bytes in base64" [startup(), services(&[Rgw]),
        long("Without one a secret is made at first need and kept with the monitors (config-key rgw/crypt/default_encryption_key/…). Data that is \
        encrypted under another secret can't be read any more.")];
    rgw_crypt_require_ssl: Bool = "true", "Whether clients' keys for encryption (SSE-C) are refused where they come in the clear"
        [startup(), services(&[Rgw]), long("A connection from the gateway's own host counts as a safe one.")];
    rgw_trust_forwarded_https: Bool = "false", "Whether a proxy is believed that says a request came to it by TLS"
        [startup(), services(&[Rgw]), long("It says so in Forwarded or X-Forwarded-Proto. Only for gateways that nothing but the proxy can reach.")];
    rgw_max_objs_per_shard: Uint = "100000", "Objects that a shard of a bucket's index should have at most"
        [startup(), services(&[Rgw]), long("0 is any number.")];
    rgw_dynamic_resharding: Bool = "true", "Whether the gateway reshards buckets with more objects than their shards should have"
        [startup(), services(&[Rgw])];
    rgw_max_dynamic_shards: Uint = "1999", "The most shards that a bucket is given by itself" [range("1", "65521"), startup(), services(&[Rgw])];
    rgw_reshard_bucket_lock_duration: IntSecs = "360", "Seconds that a gateway that reshards may be silent before another one takes over"
        [min("1"), startup(), services(&[Rgw])];
    rgw_reshard_thread_interval: IntSecs = "600", "Seconds between two looks whether a bucket is to be resharded"
        [min("1"), startup(), services(&[Rgw])];
    rgw_enable_lc_threads: Bool = "true", "Whether the gateway does what buckets' lifecycles say" [startup(), services(&[Rgw])];
    rgw_lifecycle_work_time: Str = "00:00-06:00", "When the gateway does what buckets' lifecycles say" [startup(), services(&[Rgw]),
        long("HH:MM-HH:MM, in UTC.")];
    rgw_lc_debug_interval: Int = "-1", "Seconds that a day of buckets' lifecycles lasts, for trying them" [startup(), services(&[Rgw]),
        long("Above 0 the gateway looks for what is due so often, whatever the time. -1: a day is a day.")];
    rgw_gc_processor_period: IntSecs = "3600", "Seconds between two collections of garbage"
        [min("1"), startup(), services(&[Rgw])];
    rgw_bucket_persistent_notif_num_shards: Uint = "11", "Shards of a new persistent notification topic's queue"
        [range("1", "4096"), services(&[Rgw]), long("A topic keeps the number that it was made with; `nacre topic reshard` changes it.")];
    rgw_topic_persistency_time_to_live: IntSecs = "0", "Seconds after which an event that could not be delivered expires, for topics without time_to_live"
        [services(&[Rgw]), long("0: never.")];
    rgw_topic_persistency_max_retries: Uint = "0", "Retries after which an event expires, for topics without max_retries"
        [services(&[Rgw]), long("0: any number.")];
    rgw_topic_persistency_sleep_duration: IntSecs = "0", "Seconds between two tries of an event, for topics without retry_sleep_duration"
        [services(&[Rgw]), long("0: tries follow each other with pauses that grow up to 30 seconds.")];
    rgw_topic_queue_max_bytes: Size = "1Gi", "Bytes of a persistent topic's queue beyond which queue-full-policy decides, for topics without queue-max-bytes"
        [min("1"), nacre(), services(&[Rgw])];
    rgw_topic_push_timeout: FloatSecs = "5", "Seconds that an operation waits for the endpoints of topics that are not persistent"
        [min("0.1"), nacre(), services(&[Rgw]), long("Events that are not delivered by then are lost.")];
    rgw_http_notif_message_timeout: Uint = "10", "Seconds that the push of an event to an HTTP endpoint takes at most"
        [range("1", "86400"), startup(), services(&[Rgw]), long("The connection included.")];
    rgw_http_notif_connection_timeout: Uint = "5", "Seconds that it takes at most to connect to an HTTP endpoint"
        [range("1", "86400"), startup(), services(&[Rgw])];
    rgw_http_notif_max_connections: Uint = "32", "Connections that a gateway has at a time to one HTTP endpoint"
        [range("1", "1024"), startup(), nacre(), services(&[Rgw]), long("Further requests wait for one of them.")];
    rgw_kafka_message_timeout: Uint = "5000", "Milliseconds that the push of an event to Kafka takes at most"
        [range("1", "86400000"), startup(), services(&[Rgw]), long("Repetitions included. Less than 1000 counts as 1000.")];
    rgw_kafka_connection_idle: Uint = "300", "Seconds after which connections to Kafka that are not used are closed"
        [range("1", "86400"), startup(), services(&[Rgw])];
    rgw_kafka_max_batch_size: Uint = "0", "Bytes of events that are sent to Kafka in one request, at most"
        [range("0", "2147483647"), startup(), services(&[Rgw]), long("0: 1000000, the default of librdkafka.")];
    rgw_amqp_message_timeout: Uint = "10", "Seconds that the push of an event to an AMQP broker takes at most"
        [range("1", "86400"), startup(), nacre(), services(&[Rgw]), long("The connection included.")];
    rgw_amqp_connection_timeout: Uint = "5", "Seconds that it takes at most to connect to an AMQP broker"
        [range("1", "86400"), startup(), nacre(), services(&[Rgw])];
    rgw_notification_max_inflight: Uint = "8192", "Events that the client of a Kafka or AMQP broker holds, at most"
        [range("1", "1000000"), startup(), nacre(), services(&[Rgw]), long("Further ones are tried again later. Each takes some memory.")];
    rgw_allow_notification_secrets_in_cleartext: Bool = "false", "Whether credentials of notification endpoints may be sent without TLS"
        [services(&[Rgw]), long("In requests for topics, and to endpoints.")];
    rgw_allow_notification_local_endpoints: Bool = "false", "Whether notification endpoints may be at link-local addresses, the cluster's own and loopback"
        [nacre(), services(&[Rgw]), long("Loopback is allowed anyway as long as all gateways listen on loopback only.")];
    rgw_notification_ca_folder: Str = "", "Folder that the ca-location of notification topics must be in"
        [runtime(), nacre(), services(&[Rgw]), long("Empty: topics may name no ca-location.")];
}
