//! Options of every program: identity, paths, keys, logs, authentication.

use super::kinds::{
    Addr, AddrListKind, AuthMethod, Bool, FloatSecs, Int, IntSecs, LogLevel, Secret, Str, UuidKind,
};
use super::option_group;
use super::spec::Service::{Mon, Osd};

option_group! {
    /// Cluster identity, paths, keys, logs and authentication.
    GlobalOptions:
    fsid: UuidKind = "00000000-0000-0000-0000-000000000000", "The cluster's id"
        [basic(), startup(), no_mon_update()];
    mon_host: AddrListKind = "", "Addresses of the monitors"
        [basic(), startup(), no_mon_update(), long("Names or addresses, separated by commas or blanks, \
        each with an optional port (3300 where it is missing). Of a vector such as \
        [v2:10.0.0.1:3300,v1:10.0.0.1:6789] the v2 address is used.")];
    host: Str = "", "The local host's name; empty to ask the system" [basic(), startup()];
    public_addr: Addr = "-", "The address to listen on"
        [basic(), startup(), services(&[Mon, Osd]), long("An address with an optional port. Without it \
        daemons listen on the loopback address only; nothing is ever exposed beyond it unasked.")];
    keyring: Str = "/etc/nacre/$cluster.$name.keyring,/etc/ceph/$cluster.$name.keyring,/etc/ceph/$cluster.keyring,/etc/ceph/keyring",
        "Paths of keyring files, the first that exists counts"
        [startup(), no_mon_update(), see(&["key", "keyfile"])];
    key: Secret = "", "The entity's key itself" [startup(), no_mon_update(), see(&["keyfile", "keyring"]),
        long("A key on the command line or in a configuration file is visible to others; a keyring file is not.")];
    keyfile: Str = "", "Path of a file that holds only the entity's key"
        [startup(), no_mon_update(), see(&["key", "keyring"])];
    run_dir: Str = "/var/run/ceph", "Directory for pid files and sockets" [startup(), see(&["admin_socket"])];
    admin_socket: Str = "$run_dir/$cluster-$name.asok", "Path of the daemon's admin socket"
        [startup(), see(&["run_dir"])];
    exporter_addr: Str = "127.0.0.1", "The IP address of the metrics endpoint"
        [startup(), see(&["exporter_http_port"]), long("Every client that reaches the endpoint may read it: Ceph's default is \
        all addresses, Nacre's the loopback one.")];
    exporter_http_port: Int = "9926", "The port of the metrics endpoint; 0 for any, -1 for none"
        [range("-1", "65535"), startup(), see(&["exporter_addr"]), long("Where it is taken, the next free one of \
        the following hundred counts: daemons of one machine have one each.")];
    pid_file: Str = "", "Path of the pid file; empty for none" [startup()];
    log_file: Str = "", "Path of the log file; empty for none"
        [basic(), daemon("/var/log/ceph/$cluster-$name.log"), see(&["log_to_file", "log_to_stderr"])];
    log_to_file: Bool = "true", "Write log lines to log_file" [basic(), see(&["log_file"])];
    log_to_journald: Bool = "true", "Under systemd, write log lines to the journal instead of to log_file"
        [startup(), see(&["log_to_file", "mon_cluster_log_to_journald"]), long("Where a daemon's stderr is the \
        journal, lines go there with their priority. It changes nothing elsewhere.")];
    log_to_stderr: Bool = "true", "Write log lines to stderr" [basic(), daemon("false")];
    log_level: LogLevel = "info", "The least severe lines that are logged by parts without a debug option"
        [basic(), runtime(), nacre(), see(&["debug_osd", "debug_mon", "debug_ms"])];
    clog_to_monitors: Bool = "true", "Send cluster log lines to the monitors" [];
    auth_cluster_required: AuthMethod = "cephx", "How daemons authenticate to each other" [startup(), partial("cephx only"),
        long("Nacre authenticates every connection both ways; there is no mode without.")];
    auth_service_required: AuthMethod = "cephx", "How clients authenticate to daemons"
        [startup(), partial("cephx only"), see(&["auth_cluster_required"])];
    auth_client_required: AuthMethod = "cephx", "How daemons authenticate to clients"
        [startup(), partial("cephx only"), see(&["auth_cluster_required"])];
    auth_service_ticket_ttl: FloatSecs = "3600", "Seconds for which a ticket to a service is valid"
        [range("1", "604800"), services(&[Mon]), long("Service keys rotate once in this time; a ticket sealed \
        with the key before the current one is still taken until it expires.")];
    auth_clock_skew: FloatSecs = "10", "Seconds by which a ticket may come from the future or outlive its expiry"
        [range("0", "300"), nacre()];
    auth_refusal_log_interval: IntSecs = "600",
        "Seconds in which refusals of one peer are logged once only" [range("1", "86400"), nacre()];
}
