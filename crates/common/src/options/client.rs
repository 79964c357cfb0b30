//! Options of RADOS clients.

use super::kinds::{Bool, IntSecs, Size, Uint};
use super::option_group;
use super::spec::OptionService::Rados;

option_group! {
    /// Clients: requests in flight, and timeouts.
    ClientOptions:
    objecter_inflight_ops: Uint = "1024", "Maximum number of requests in flight" [min("1"), services(&[Rados])];
    objecter_inflight_op_bytes: Size = "100Mi", "Maximum bytes of requests in flight" [min("1"), services(&[Rados])];
    client_notify_timeout: IntSecs = "10", "Default timeout of a notify, in seconds"
        [min("1"), services(&[Rados])];
    rados_mon_op_timeout: IntSecs = "0", "Timeout of requests to the monitors, in seconds; 0 for none"
        [services(&[Rados])];
    rados_osd_op_timeout: IntSecs = "0", "Timeout of requests to OSDs, in seconds; 0 for none"
        [services(&[Rados])];
    objecter_inject_no_watch_ping: Bool = "false", "Do not send pings for watches, so that they expire; for tests"
        [services(&[Rados])];
    client_mount_timeout: IntSecs = "300", "Timeout for connecting to the monitors, in seconds"
        [min("1"), services(&[Rados])];
}
