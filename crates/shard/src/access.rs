//! The capabilities that a request needs.

use nacre_exec::Limits;
use nacre_exec::cls;
use nacre_types::caps::osd::{ClassCall, OsdAccess, OsdCaps};
use nacre_types::msg::OsdRequest;
use nacre_types::object::ObjectId;
use nacre_types::op::Op;
use nacre_types::osdmap::OsdMap;
use nacre_types::pool::Pool;
use std::net::IpAddr;

/// The name under which capabilities know a listing of all namespaces (`LIBRADOS_ALL_NSPACES`): no namespace has it.
const ALL_NAMESPACES: &str = "\u{1}";

/// Whether `caps` allow a client at `peer` to make the request. Calls of class methods need only what the method declares
/// (`OpInfo::set_from_op`). The source of a copy must be readable, which Ceph does not require.
pub(crate) fn is_allowed(
    caps: &OsdCaps,
    map: &OsdMap,
    pool: &Pool,
    request: &OsdRequest,
    limits: &Limits,
    peer: IpAddr,
) -> bool {
    let (mut reads, mut writes) = (false, false);
    let mut calls = Vec::new();
    for op in &request.ops {
        match &op.op {
            Op::Call { class, method, .. } => {
                // Unknown methods have already been refused.
                let declared = cls::method_access(class, method).unwrap_or_default();
                calls.push(ClassCall {
                    class,
                    method,
                    reads: declared & cls::access::READ != 0,
                    writes: declared & cls::access::WRITE != 0,
                    by_default: limits.classes_by_default.contains(class),
                });
            }
            // The existence of a watch already determines the outcome.
            Op::Watch { .. } | Op::WatchReconnect { .. } | Op::WatchPing { .. } | Op::Unwatch { .. } => {
                (reads, writes) = (true, true);
            }
            Op::PgList { namespace, .. } | Op::ListDirty { namespace, .. } => {
                // The listed namespace, not the one that the request is addressed to.
                let namespace = namespace.as_deref().unwrap_or(ALL_NAMESPACES);
                if !can_read(caps, pool, namespace, "", peer) {
                    return false;
                }
            }
            Op::CopyFrom { source, .. } => {
                writes = true;
                if !can_copy(caps, map, source, peer) {
                    return false;
                }
            }
            op if op.is_write() => writes = true,
            _ => reads = true,
        }
    }
    if !reads && !writes && calls.is_empty() && !request.ops.is_empty() {
        return true;
    }
    let (namespace, object) = (request.object.namespace(), request.object.name());
    caps.allows(&OsdAccess { pool, namespace, object, reads, writes, calls: &calls, peer })
}

fn can_read(caps: &OsdCaps, pool: &Pool, namespace: &str, object: &str, peer: IpAddr) -> bool {
    caps.allows(&OsdAccess { pool, namespace, object, reads: true, writes: false, calls: &[], peer })
}

fn can_copy(caps: &OsdCaps, map: &OsdMap, source: &ObjectId, peer: IpAddr) -> bool {
    // If the pool does not exist, the copy itself fails.
    map.pools
        .get(&source.pool())
        .is_none_or(|pool| can_read(caps, pool, source.namespace(), source.name(), peer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use nacre_crush::CrushMap;
    use nacre_types::ids::{Epoch, PoolId};
    use nacre_types::op::{OsdOp, copy_from_flag};

    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    /// Whether `ops` on object o of namespace `ns` in pool x (1) are allowed; a pool y (2) exists too.
    fn allowed(caps: &str, ops: Vec<Op>) -> bool {
        let mut map = OsdMap::new(Default::default(), 0, CrushMap::new_cluster("osd").unwrap());
        for (id, name) in [(1, "x"), (2, "y")] {
            map.pools.insert(PoolId(id), Pool::replicated(name, 3, 2, 0, 8, Epoch(1)).into());
        }
        let object = ObjectId::new(PoolId(1), "ns", "", "o");
        let ops = ops.into_iter().map(OsdOp::from).collect();
        let request = nacre_exec::testing::request(&object, ops, 0);
        let caps = OsdCaps::parse(caps).unwrap_or_default();
        is_allowed(&caps, &map, &map.pools[&PoolId(1)], &request, &Limits::default(), PEER)
    }

    #[test]
    fn listings_are_judged_by_what_they_list() {
        let list = |namespace: Option<&str>| {
            vec![Op::PgList { cursor: None, max: 10, namespace: namespace.map(str::to_owned) }]
        };
        assert!(allowed("allow r pool=x namespace=ns", list(Some("ns"))));
        assert!(!allowed("allow r pool=x namespace=ns", list(Some(""))));
        assert!(!allowed("allow r pool=x namespace=ns", list(None)), "all namespaces by one's own");
        assert!(allowed("allow r pool=x", list(None)));
        assert!(!allowed("allow w", list(Some("ns"))));
        let mixed = [list(Some("ns")), list(None)].concat();
        assert!(!allowed("allow r namespace=ns", mixed));
    }

    #[test]
    fn copies_need_to_read_their_source() {
        let copy = |pool, namespace| {
            let source = ObjectId::new(PoolId(pool), namespace, "", "s");
            vec![Op::CopyFrom { source, version: 0, flags: copy_from_flag::FLUSH, truncate: (0, 0) }]
        };
        assert!(allowed("allow rw pool=x namespace=ns", copy(1, "ns")));
        assert!(!allowed("allow rw pool=x namespace=ns", copy(1, "")));
        assert!(!allowed("allow rw pool=x", copy(2, "")));
        assert!(allowed("allow rw pool=x, allow r pool=y", copy(2, "")));
        assert!(!allowed("allow r", copy(1, "ns")));
    }

    #[test]
    fn watches_need_to_read_and_write() {
        for op in [
            Op::Watch { cookie: 1, timeout_s: 0 },
            Op::WatchReconnect { cookie: 1 },
            Op::WatchPing { cookie: 1 },
            Op::Unwatch { cookie: 1 },
        ] {
            assert!(!allowed("allow r", vec![op.clone()]), "{op:?}");
            assert!(!allowed("allow w", vec![op.clone()]), "{op:?}");
            assert!(allowed("allow rw", vec![op.clone()]), "{op:?}");
        }
        assert!(allowed("allow r", vec![Op::Notify { timeout_s: 1, payload: Bytes::new() }]));
    }

    #[test]
    fn a_request_without_ops_needs_a_grant_too() {
        assert!(!allowed("", Vec::new()) && allowed("allow r", Vec::new()));
    }
}
