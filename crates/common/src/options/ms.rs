//! Options of the messenger.

use super::kinds::{Bool, ConnModes, FloatSecs, IntSecs, Size, Uint};
use super::option_group;

option_group! {
    /// The messenger: ports, protection, timeouts, bounds.
    MsOptions:
    ms_cluster_mode: ConnModes = "crc secure", "Modes of connections between daemons, preferred first"
        [basic(), startup(), see(&["ms_service_mode", "ms_client_mode"]), long("crc checks each message against \
        corruption; secure encrypts and authenticates every byte. Both authenticate the peers when they connect. \
        Sessions with monitors are always secure, because keys are handed out in them.")];
    ms_service_mode: ConnModes = "crc secure", "Modes that daemons take from clients, preferred first"
        [basic(), startup(), see(&["ms_cluster_mode", "ms_client_mode"])];
    ms_client_mode: ConnModes = "crc secure", "Modes that clients ask of daemons, preferred first"
        [basic(), startup(), see(&["ms_cluster_mode", "ms_service_mode"])];
    ms_crc_data: Bool = "true", "Checksum the data of messages" [dev(), long("The description of a message is \
        always checksummed. Takes effect on messages sent from now on.")];
    ms_tcp_nodelay: Bool = "true", "Send small messages at once" [startup()];
    ms_tcp_rcvbuf: Size = "0", "Size of the sockets' receive buffers; 0 leaves it to the kernel"
        [range("0", "1Gi"), startup()];
    ms_tcp_listen_backlog: Uint = "512", "Connections that may wait to be accepted" [range("1", "65535"), startup()];
    ms_bind_port_min: Uint = "6800", "The lowest port that daemons listen on" [range("1", "65535"), startup()];
    ms_bind_port_max: Uint = "7300", "The highest port that daemons listen on" [range("1", "65535"), startup()];
    ms_initial_backoff: FloatSecs = "0.2", "Seconds before the first reconnect; doubles with each failure"
        [range("0.001", "60")];
    ms_max_backoff: FloatSecs = "15", "The longest wait before a reconnect, in seconds" [range("0.001", "3600")];
    ms_connection_ready_timeout: IntSecs = "10", "Seconds within which a new connection must have authenticated"
        [range("1", "600")];
    ms_connection_idle_timeout: IntSecs = "900", "Seconds after which an unused lossy connection is closed"
        [range("1", "86400")];
    ms_dispatch_throttle_bytes: Size = "100Mi", "Bytes of messages from daemons being handled at a time"
        [range("64Ki", "1Ti"), startup(), long("Past it no more is read from sockets until handlers have finished \
        with what there is. Messages of clients count against osd_client_message_size_cap instead, so that a \
        flood of them never holds up replication.")];
    ms_out_queue_bytes: Size = "256Mi", "Bytes of messages that may wait on one connection" [range("64Ki", "1Ti"),
        startup(), nacre(), long("Counts what is not yet written and, on lossless connections, what the peer has \
        not yet acknowledged. A message larger than this is taken if nothing else waits.")];
    ms_out_queues_bytes: Size = "1Gi", "Bytes of messages that may wait for all clients together"
        [range("1Mi", "1Ti"), startup(), nacre(), long("Past it a client that has 1 MiB waiting and does not read is \
        cut off.")];
    ms_max_connections: Uint = "16384", "Connections at a time past which clients are not let in"
        [range("16", "1000000"), startup(), nacre()];
    ms_max_frame_meta_bytes: Size = "32Mi", "The longest description of a message that is taken"
        [range("64Ki", "1Gi"), startup(), nacre()];
    ms_max_frame_data_bytes: Size = "256Mi", "The longest data of a message that is taken"
        [range("1Mi", "2Gi"), startup(), nacre()];
    ms_max_handshakes: Uint = "256", "Connections that may be authenticating at a time" [range("1", "65535"),
        startup(), nacre(), long("One more takes the place of another one: the oldest from the address that has most \
        of them, before those that have shown a valid key or ticket.")];
    ms_keepalive_interval: FloatSecs = "10", "Seconds of silence after which a connection asks for a sign of life"
        [range("0.01", "3600"), startup(), nacre(), see(&["ms_keepalive_timeout"])];
    ms_keepalive_timeout: FloatSecs = "30", "Seconds without a sign of life after which a connection is given up"
        [range("0.02", "3600"), startup(), nacre(), see(&["ms_keepalive_interval"])];
    ms_session_timeout: IntSecs = "900", "Seconds for which a lossless session waits for its peer to reconnect"
        [range("1", "86400"), startup(), nacre(), long("Afterwards what was queued for the peer is dropped and the \
        session's owner is told of a reset.")];
}
