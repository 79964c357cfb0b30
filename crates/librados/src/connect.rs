//! The session: connect, information about the cluster, and shutdown.

use crate::abi::{CStrPtr, ClusterStat, Handle, MallocBuf, OutBuf, OutPtr, c_len};
use crate::client::CLIENTS;
use crate::guard::exports;
use nacre_client::block_on;
use nacre_types::errno::Errno;
use serde_json::json;
use std::ffi::c_int;

/// Ceph's numbers of the releases that `osd dump` names.
const PACIFIC: i8 = 16;
const LUMINOUS: i8 = 12;
const JEWEL: i8 = 10;
/// The id of a cluster before it is known.
const NO_FSID: &str = "00000000-0000-0000-0000-000000000000";

exports! {
    /// Connects to the cluster. ENOENT without keyring or monitors, EACCES if the key is refused, ETIMEDOUT after
    /// `client_mount_timeout`.
    fn rados_connect(cluster: Handle) -> c_int {
        CLIENTS.get(cluster)?.connect()?;
        Ok(0)
    }

    /// Ends the session and destroys the handle.
    fn rados_shutdown(cluster: Handle) {
        CLIENTS.remove(cluster)?.shut_down();
        Ok(())
    }

    /// Space of the cluster: total, used and available.
    fn rados_cluster_stat(cluster: Handle, result: OutPtr<ClusterStat>) -> c_int {
        let stats = block_on(CLIENTS.get(cluster)?.cluster()?.stats())?;
        result.required()?.set(ClusterStat {
            kb: stats.total_bytes / 1024,
            kb_used: stats.used_bytes / 1024,
            kb_avail: stats.available_bytes / 1024,
            num_objects: stats.objects,
        });
        Ok(0)
    }

    /// The cluster's id, or all zeros without a session. Returns its length.
    fn rados_cluster_fsid(cluster: Handle, buf: OutBuf, len: usize) -> c_int {
        let session = CLIENTS.get(cluster)?.cluster();
        let fsid = session.map_or_else(|_| NO_FSID.to_owned(), |cluster| cluster.fsid());
        Ok(c_len(buf.fill_text(len, fsid.as_bytes())?))
    }

    /// This session's number, unique in the cluster.
    fn rados_get_instance_id(cluster: Handle) -> u64 {
        Ok(CLIENTS.get(cluster)?.cluster()?.instance_id())
    }

    /// This session's address as blocklists name it, such as `127.0.0.1:0/4123`.
    fn rados_getaddrs(cluster: Handle, addrs: OutPtr<MallocBuf>) -> c_int {
        let addr = CLIENTS.get(cluster)?.cluster()?.address().ok_or(Errno::ENOTCONN)?;
        addrs.required()?.set(MallocBuf::nul_terminated(addr.to_string().as_bytes())?);
        Ok(0)
    }

    /// Returns when the newest cluster map has been received.
    fn rados_wait_for_latest_osdmap(cluster: Handle) -> c_int {
        CLIENTS.get(cluster)?.cluster()?.refresh_map().wait()?;
        Ok(0)
    }

    /// The minimum release of the OSDs, as Ceph's number.
    fn rados_get_min_compatible_osd(cluster: Handle, require_osd_release: OutPtr<i8>) -> c_int {
        CLIENTS.get(cluster)?.cluster()?;
        require_osd_release.required()?.set(PACIFIC);
        Ok(0)
    }

    /// The minimum release of clients that can connect, and the minimum that the cluster requires, as Ceph's numbers.
    fn rados_get_min_compatible_client(
        cluster: Handle,
        min_compat_client: OutPtr<i8>,
        require_min_compat_client: OutPtr<i8>,
    ) -> c_int {
        CLIENTS.get(cluster)?.cluster()?;
        min_compat_client.required()?.set(JEWEL);
        require_min_compat_client.required()?.set(LUMINOUS);
        Ok(0)
    }

    /// Fences a client for some seconds; 0 for the default time.
    fn rados_blocklist_add(cluster: Handle, client_address: CStrPtr, expire_seconds: u32) -> c_int {
        blocklist(cluster, client_address, expire_seconds)
    }

    /// The older name of `rados_blocklist_add`.
    fn rados_blacklist_add(cluster: Handle, client_address: CStrPtr, expire_seconds: u32) -> c_int {
        blocklist(cluster, client_address, expire_seconds)
    }
}

fn blocklist(cluster: Handle, address: CStrPtr, expire_seconds: u32) -> crate::guard::ApiResult<c_int> {
    let cluster = CLIENTS.get(cluster)?.cluster()?;
    let address = address.text()?;
    if address.is_empty() {
        return Err(Errno::EINVAL.into());
    }
    let mut command = json!({ "prefix": "osd blocklist", "blocklistop": "add", "addr": address });
    if expire_seconds > 0 {
        command["expire"] = f64::from(expire_seconds).into();
    }
    cluster.command(command.to_string(), Vec::new()).wait()?;
    Ok(0)
}
