//! Pools of a cluster: list, look up, create, delete.

use crate::abi::{CStrPtr, Handle, OutBuf, OutPtr, c_len};
use crate::client::{CLIENTS, Client};
use crate::guard::{ApiResult, exports};
use nacre_client::block_on;
use nacre_types::PoolId;
use nacre_types::errno::Errno;
use nacre_types::osdmap::OsdMap;
use serde_json::{Value, json};
use std::ffi::c_int;
use std::sync::Arc;

/// "No owner": the only value that pools have had since Ceph 12 (`CEPH_AUTH_UID_DEFAULT`).
const NO_AUID: u64 = u64::MAX;

exports! {
    /// The names of all pools, each with a zero, and a final zero. Returns the required size of the buffer.
    fn rados_pool_list(cluster: Handle, buf: OutBuf, len: usize) -> c_int {
        if len > 0 && buf.is_null() {
            return Err(Errno::EINVAL.into());
        }
        let pools = block_on(CLIENTS.get(cluster)?.cluster()?.pools())?;
        Ok(c_len(buf.fill_list(len, pools.iter().map(|(_, name)| name.as_str()))?))
    }

    /// EOPNOTSUPP: without scrub it is unknown which copies differ. ENOENT if the pool does not exist.
    fn rados_inconsistent_pg_list(cluster: Handle, pool: i64, _buf: OutBuf, _len: usize) -> c_int {
        existing(&CLIENTS.get(cluster)?.newest_osdmap()?, pool)?;
        Err(crate::unsupported::not_supported("rados_inconsistent_pg_list"))
    }

    /// A pool's id.
    fn rados_pool_lookup(cluster: Handle, pool_name: CStrPtr) -> i64 {
        let cluster = CLIENTS.get(cluster)?.cluster()?;
        Ok(block_on(cluster.lookup_pool(pool_name.text()?))?.0)
    }

    /// A pool's name. Returns its length.
    fn rados_pool_reverse_lookup(cluster: Handle, id: i64, buf: OutBuf, maxlen: usize) -> c_int {
        let client = CLIENTS.get(cluster)?;
        let known = client.cluster()?.pool_name(PoolId(id));
        let name = match known {
            Some(name) => name,
            None => existing(&client.newest_osdmap()?, id)?.name.clone(),
        };
        Ok(c_len(buf.fill_text(maxlen, name.as_bytes())?))
    }

    /// Creates a pool with the cluster's defaults. EEXIST if it exists.
    fn rados_pool_create(cluster: Handle, pool_name: CStrPtr) -> c_int {
        create(&*CLIENTS.get(cluster)?, pool_name.text()?, NO_AUID, None)
    }

    /// Like `rados_pool_create`. EINVAL for any owner.
    fn rados_pool_create_with_auid(cluster: Handle, pool_name: CStrPtr, auid: u64) -> c_int {
        create(&*CLIENTS.get(cluster)?, pool_name.text()?, auid, None)
    }

    /// Like `rados_pool_create`, with the number of a CRUSH rule.
    fn rados_pool_create_with_crush_rule(cluster: Handle, pool_name: CStrPtr, crush_rule: u8) -> c_int {
        create(&*CLIENTS.get(cluster)?, pool_name.text()?, NO_AUID, Some(crush_rule))
    }

    /// Like `rados_pool_create_with_crush_rule`. EINVAL for any owner.
    fn rados_pool_create_with_all(cluster: Handle, pool_name: CStrPtr, auid: u64, crush_rule: u8) -> c_int {
        create(&*CLIENTS.get(cluster)?, pool_name.text()?, auid, Some(crush_rule))
    }

    /// Removes a pool with all its objects. ENOENT if it does not exist, EPERM unless `mon_allow_pool_delete` is on.
    fn rados_pool_delete(cluster: Handle, pool_name: CStrPtr) -> c_int {
        let cluster = CLIENTS.get(cluster)?.cluster()?;
        let name = pool_name.text()?;
        block_on(cluster.lookup_pool(name))?;
        block_on(cluster.remove_pool(name))?;
        Ok(0)
    }

    /// The base pool of a cache tier. For any other pool, the pool itself.
    fn rados_pool_get_base_tier(cluster: Handle, pool: i64, base_tier: OutPtr<i64>) -> c_int {
        let map = CLIENTS.get(cluster)?.newest_osdmap()?;
        let base = existing(&map, pool)?.tiering.tier_of.unwrap_or(PoolId(pool));
        base_tier.required()?.set(base.0);
        Ok(0)
    }
}

fn existing(map: &Arc<OsdMap>, id: i64) -> ApiResult<&nacre_types::pool::Pool> {
    Ok(map.pools.get(&PoolId(id)).ok_or(Errno::ENOENT)?)
}

fn create(client: &Client, name: &str, auid: u64, rule: Option<u8>) -> ApiResult<c_int> {
    if auid != NO_AUID || name.is_empty() {
        return Err(Errno::EINVAL.into());
    }
    let map = client.newest_osdmap()?;
    if map.pool_by_name(name).is_some() {
        return Err(Errno::EEXIST.into());
    }
    let mut command = json!({ "prefix": "osd pool create", "pool": name });
    if let Some(rule) = rule {
        let rule = map.crush.rule_name(rule.into()).ok_or(Errno::ENOENT)?;
        command["rule"] = Value::from(rule);
    }
    client.cluster()?.command(command.to_string(), Vec::new()).wait()?;
    client.newest_osdmap()?;
    Ok(0)
}
