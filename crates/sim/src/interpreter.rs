//! Executes requests with the OSD's own interpreter on the contents of a simulated disk.

use crate::disk::Image;
use nacre_exec::{ExecEnv, ExecResult, Limits, ObjectContext, Origin};
use nacre_objectstore::StoreError;
use nacre_types::errno::Errno;
use nacre_types::msg::OsdRequest;
use nacre_types::pool::Pool;
use nacre_types::{Eversion, ObjectId, ReqId};
use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr};
use uuid::Uuid;

/// The environment in which a request is executed.
pub struct ExecContext<'a> {
    /// The PG's pool.
    pub pool: &'a Pool,
    /// Ceph's limits.
    pub limits: &'a Limits,
    /// Whether writes that need space are refused.
    pub full: bool,
    /// The version that the request gets if it changes anything.
    pub at: Eversion,
    /// The wall clock, in nanoseconds since 1970.
    pub wall_ns: u64,
    /// The latest requests that changed an object, newest first.
    pub recent_requests: &'a dyn Fn(&ObjectId) -> Vec<(ReqId, u64)>,
}

/// Executes a request. Damage is returned as [`ExecResult::damaged`]. Watches are not counted, and nothing is copied from other objects.
pub fn execute(image: &Image, setting: &ExecContext<'_>, request: &OsdRequest) -> ExecResult {
    let context = match nacre_exec::load_context(image, request.pg, &request.object) {
        Ok(context) => context,
        Err(StoreError::NoCollection(_)) => ObjectContext::default(),
        Err(error) if error.is_damage() => {
            return ExecResult { damaged: true, ..ExecResult::failed(Errno::EIO, 0) };
        }
        Err(error) => panic!("{error}: a simulated disk fails by damage alone"),
    };
    let made = Cell::new(0);
    let fresh_uuid = || {
        made.set(made.get() + 1);
        let change =
            u128::from(setting.at.interval.0) << 64 | u128::from(setting.at.version) << 8 | made.get();
        Uuid::from_u128(change.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
    };
    let env = ExecEnv {
        store: image,
        pg: request.pg,
        pool: setting.pool,
        limits: setting.limits,
        full: setting.full,
        no_space: false,
        at: setting.at,
        whiteouts: false,
        takes_watches: false,
        last_user_version: setting.at.version.saturating_sub(1),
        origin: Origin { client: request.reqid.client, ip: IpAddr::V4(Ipv4Addr::LOCALHOST) },
        wall_ns: &|| setting.wall_ns,
        fresh_uuid: &fresh_uuid,
        watches: &|_| (0, 0),
        copied: None,
        recent_requests: setting.recent_requests,
        missing: &|_, _| Vec::new(),
    };
    nacre_exec::execute(&env, request, &context)
}
