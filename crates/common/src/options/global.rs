//! Options of every program: identity, paths, keys, logs, authentication.

use super::kinds::{
    Addr, AddrListKind, AuthMethod, Bool, FloatSecs, Int, IntSecs, LogLevel, Secret, Str, UuidKind,
};
use super::option_group;
use super::spec::OptionService::{Mon, Osd};

option_group! {
    /// Cluster identity, paths, keys, logs and authentication.
    GlobalOptions:
    fsid: UuidKind = "00000000-0000-0000-0000-000000000000", "Id of the cluster"
        [basic(), startup(), no_mon_update()];
    mon_host: AddrListKind = "", "Addresses of the monitors"
        [basic(), startup(), no_mon_update(), long("Names or addresses, separated by commas or blanks, each with an optional \
            port (default 3300). Of a vector such as [v2:10.0.0.1:3300,v1:10.0.0.1:6789] the v2 address is used.")];
    host: Str = "", "Name of the local host; empty to ask the system" [basic(), startup()];
    public_addr: Addr = "-", "Address to listen on"
        [basic(), startup(), services(&[Mon, Osd]), long("An address with an optional port. Without it, daemons listen on the \
            loopback address only.")];
    keyring: Str = "/etc/nacre/$cluster.$name.keyring,/etc/ceph/$cluster.$name.keyring,/etc/ceph/$cluster.keyring,/etc/ceph/keyring",
        "Paths of keyring files; the first existing file is used"
        [startup(), no_mon_update(), see(&["key", "keyfile"])];
    key: Secret = "", "Key of the entity" [startup(), no_mon_update(), see(&["keyfile", "keyring"]),
        long("A key on the command line or in a configuration file is visible to others; a keyring file is not.")];
    keyfile: Str = "", "Path of a file that contains only the entity's key"
        [startup(), no_mon_update(), see(&["key", "keyring"])];
    run_dir: Str = "/var/run/ceph", "Directory for pid files and sockets" [startup(), see(&["admin_socket"])];
    admin_socket: Str = "$run_dir/$cluster-$name.asok", "Path of the daemon's admin socket"
        [startup(), see(&["run_dir"])];
    exporter_addr: Str = "127.0.0.1", "IP address of the metrics endpoint"
        [startup(), see(&["exporter_http_port"]), long("Every client that can reach the endpoint can read it. Ceph listens on \
            all addresses by default, Nacre on loopback.")];
    exporter_http_port: Int = "9926", "Port of the metrics endpoint; 0 for any, -1 for none"
        [range("-1", "65535"), startup(), see(&["exporter_addr"]), long("If the port is in use, the next free one of the \
            following hundred is used, so that each daemon of a machine has its own.")];
    pid_file: Str = "", "Path of the pid file; empty for none" [startup()];
    log_file: Str = "", "Path of the log file; empty for none"
        [basic(), daemon_default("/var/log/ceph/$cluster-$name.log"), see(&["log_to_file", "log_to_stderr"])];
    log_to_file: Bool = "true", "Write log lines to log_file" [basic(), see(&["log_file"])];
    log_to_journald: Bool = "true", "Under systemd, write log lines to the journal instead of to log_file"
        [startup(), see(&["log_to_file", "mon_cluster_log_to_journald"]), long("Lines go to the journal with their priority if \
            the daemon's stderr is the journal. Otherwise, the option has no effect.")];
    log_to_stderr: Bool = "true", "Write log lines to stderr" [basic(), daemon_default("false")];
    log_level: LogLevel = "info", "Lowest severity that is logged by parts without a debug option"
        [basic(), runtime(), nacre_only(), see(&["debug_osd", "debug_mon", "debug_ms"])];
    clog_to_monitors: Bool = "true", "Send cluster log lines to the monitors" [];
    auth_cluster_required: AuthMethod = "cephx", "How daemons authenticate to each other" [startup(), partial("cephx only"),
        long("Nacre always authenticates both ends of a connection.")];
    auth_service_required: AuthMethod = "cephx", "How clients authenticate to daemons"
        [startup(), partial("cephx only"), see(&["auth_cluster_required"])];
    auth_client_required: AuthMethod = "cephx", "How daemons authenticate to clients"
        [startup(), partial("cephx only"), see(&["auth_cluster_required"])];
    auth_service_ticket_ttl: FloatSecs = "3600", "Lifetime of service tickets, in seconds"
        [range("1", "604800"), services(&[Mon]), long("Service keys rotate once in this time. A ticket that was sealed with \
            the previous key is accepted until it expires.")];
    auth_clock_skew: FloatSecs = "10", "Tolerance for the start and the expiry of tickets, in seconds"
        [range("0", "300"), nacre_only()];
    auth_refusal_log_interval: IntSecs = "600",
        "Interval in which refusals of a peer are logged only once, in seconds" [range("1", "86400"), nacre_only()];
}
