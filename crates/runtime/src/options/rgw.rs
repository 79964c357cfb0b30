//! Options of the S3 gateway.

use super::kinds::{IntSecs, Size, Str, Uint};
use super::option_group;
use super::spec::Service::Rgw;

option_group! {
    /// The S3 gateway.
    RgwOptions:
    rgw_frontends: Str = "beast endpoint=127.0.0.1:8000", "Where the gateway listens"
        [basic(), startup(), services(&[Rgw]), long("The word beast, for Ceph's sake, and endpoint=ADDRESS:PORT or port=PORT. \
        With a port alone it listens on the loopback address.")];
    rgw_region: Str = "default", "The region that clients are told of" [startup(), services(&[Rgw])];
    rgw_override_bucket_index_max_shards: Uint = "11", "Shards of a new bucket's index"
        [range("1", "65521"), startup(), services(&[Rgw])];
    rgw_max_put_memory: Size = "128Mi", "Bytes of objects' data that are held on their way into RADOS, for all requests together"
        [min("1Mi"), startup(), nacre(), services(&[Rgw]), long("Requests wait to be read where it is used up.")];
    rgw_pending_bucket_index_op_expiration: IntSecs = "120", "Seconds after which what a gateway has begun is seen through by another one, if it is gone"
        [startup(), services(&[Rgw])];
    rgw_gc_obj_min_wait: IntSecs = "7200", "Seconds that the data of a removed or replaced object stays for those who still read it"
        [startup(), services(&[Rgw])];
    rgw_gc_processor_period: IntSecs = "3600", "Seconds between two collections of garbage"
        [min("1"), startup(), services(&[Rgw])];
}
