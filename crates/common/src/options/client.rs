//! Options of RADOS clients.

use super::kinds::{Bool, IntSecs, Size, Uint};
use super::option_group;
use super::spec::Service::Rados;

option_group! {
    /// Clients: requests in flight, and timeouts.
    ClientOptions:
    objecter_inflight_ops: Uint = "1024", "Requests in flight at a time" [min("1"), services(&[Rados])];
    objecter_inflight_op_bytes: Size = "100Mi", "Bytes of requests in flight at a time" [min("1"), services(&[Rados])];
    client_notify_timeout: IntSecs = "10", "Seconds that a notify waits for its watchers where the program does not say"
        [min("1"), services(&[Rados])];
    rados_mon_op_timeout: IntSecs = "0", "Seconds after which a request to the monitors fails; 0 for never"
        [services(&[Rados])];
    rados_osd_op_timeout: IntSecs = "0", "Seconds after which a request to an OSD fails; 0 for never"
        [services(&[Rados])];
    objecter_inject_no_watch_ping: Bool = "false", "Send no signs of life for watches, so that they lapse; for tests"
        [services(&[Rados])];
    client_mount_timeout: IntSecs = "300", "Seconds within which a session with the monitors must be there"
        [min("1"), services(&[Rados])];
}
