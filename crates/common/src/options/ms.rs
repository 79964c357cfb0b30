//! Options of the messenger.

use super::kinds::{Bool, ConnModes, FloatSecs, IntSecs, Size, Uint};
use super::option_group;

option_group! {
    /// The messenger: ports, protection, timeouts, bounds.
    MsOptions:
    ms_cluster_mode: ConnModes = "crc secure", "Modes of connections between daemons, preferred first"
        [basic(), startup(), see(&["ms_service_mode", "ms_client_mode"]), long("crc protects each message with checksums; \
            secure encrypts and authenticates every byte. Both authenticate the peers when they connect. Sessions with \
            monitors are always secure, because they transfer keys.")];
    ms_service_mode: ConnModes = "crc secure", "Modes that daemons accept from clients, preferred first"
        [basic(), startup(), see(&["ms_cluster_mode", "ms_client_mode"])];
    ms_client_mode: ConnModes = "crc secure", "Modes that clients request from daemons, preferred first"
        [basic(), startup(), see(&["ms_cluster_mode", "ms_service_mode"])];
    ms_crc_data: Bool = "true", "Checksum the data of messages" [dev(), long("The metadata of a message is always checksummed. \
            Takes effect for messages that are sent afterwards.")];
    ms_tcp_nodelay: Bool = "true", "Send small messages immediately (TCP_NODELAY)" [startup()];
    ms_tcp_rcvbuf: Size = "0", "Size of the receive buffer of sockets; 0 for the default of the kernel"
        [range("0", "1Gi"), startup()];
    ms_tcp_listen_backlog: Uint = "512", "Maximum number of connections that wait to be accepted" [range("1", "65535"), startup()];
    ms_bind_port_min: Uint = "6800", "Lowest port that daemons listen on" [range("1", "65535"), startup()];
    ms_bind_port_max: Uint = "7300", "Highest port that daemons listen on" [range("1", "65535"), startup()];
    ms_initial_backoff: FloatSecs = "0.2", "Delay before the first reconnect, in seconds; doubles with each failure"
        [range("0.001", "60")];
    ms_max_backoff: FloatSecs = "15", "Maximum delay before a reconnect, in seconds" [range("0.001", "3600")];
    ms_connection_ready_timeout: IntSecs = "10", "Timeout for the authentication of a new connection, in seconds"
        [range("1", "600")];
    ms_connection_idle_timeout: IntSecs = "900", "Time after which an idle lossy connection is closed, in seconds"
        [range("1", "86400")];
    ms_dispatch_throttle_bytes: Size = "100Mi", "Maximum bytes of messages from daemons that are being handled"
        [range("64Ki", "1Ti"), startup(), long("At the limit, nothing is read from sockets until handlers finish. Messages of \
            clients count against osd_client_message_size_cap instead, so that they do not delay replication.")];
    ms_out_queue_bytes: Size = "256Mi", "Maximum bytes of messages queued on one connection" [range("64Ki", "1Ti"),
        startup(), nacre_only(), long("Counts data that is not yet written and, on lossless connections, not yet acknowledged. A \
            larger message is accepted if nothing else is queued.")];
    ms_out_queues_bytes: Size = "1Gi", "Maximum bytes of messages queued for all clients together"
        [range("1Mi", "1Ti"), startup(), nacre_only(), long("Above the limit, a client that has 1 MiB queued and does not read is \
            disconnected.")];
    ms_max_connections: Uint = "16384", "Maximum number of connections; further clients are refused"
        [range("16", "1000000"), startup(), nacre_only()];
    ms_max_frame_meta_bytes: Size = "32Mi", "Maximum size of the metadata of a message"
        [range("64Ki", "1Gi"), startup(), nacre_only()];
    ms_max_frame_data_bytes: Size = "256Mi", "Maximum size of the data of a message"
        [range("1Mi", "2Gi"), startup(), nacre_only()];
    ms_max_handshakes: Uint = "256", "Maximum number of connections that are authenticating" [range("1", "65535"),
        startup(), nacre_only(), long("A further connection replaces the oldest one of the address with the most connections. \
            Connections that have shown a valid key or ticket are replaced last.")];
    ms_keepalive_interval: FloatSecs = "10", "Idle time after which a connection sends a keepalive, in seconds"
        [range("0.01", "3600"), startup(), nacre_only(), see(&["ms_keepalive_timeout"])];
    ms_keepalive_timeout: FloatSecs = "30", "Time without an answer to keepalives after which a connection is closed, in seconds"
        [range("0.02", "3600"), startup(), nacre_only(), see(&["ms_keepalive_interval"])];
    ms_session_timeout: IntSecs = "900", "Time that a lossless session waits for its peer to reconnect, in seconds"
        [range("1", "86400"), startup(), nacre_only(), long("Afterwards, messages that are queued for the peer are dropped, and the \
            session's owner is notified of a reset.")];
}
