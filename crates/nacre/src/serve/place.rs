//! Checks whether `nacre serve` may use a folder, and whether it has enough space.

use crate::cluster_dir::{ClusterDir, ClusterSpec};
use anyhow::{Context, Result, bail};
use rustix::fs::{Access, access, statvfs};
use rustix::process::geteuid;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Size of a new OSD's files in bytes: BlueStore fills its database's log in advance, FileStore creates its journal.
const NEW_OSD_BYTES: u64 = 200 << 20;
/// The same for a MemStore, and for the map authority.
const NEW_FILES_BYTES: u64 = 16 << 20;

/// Fails if the file system of `data` has not enough space for a new cluster.
pub(super) fn check_space(data: &Path, plan: &ClusterSpec) -> Result<()> {
    let of_osd = |osd: usize| {
        let kind = plan.objectstores.get(osd).or_else(|| plan.objectstores.first());
        if kind.is_some_and(|kind| kind == "memstore") { NEW_FILES_BYTES } else { NEW_OSD_BYTES }
    };
    let needed = NEW_FILES_BYTES + (0..plan.osds as usize).map(of_osd).sum::<u64>();
    let space = statvfs(data).with_context(|| format!("can't stat {}", data.display()))?;
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    if free < needed {
        bail!(
            "the file system of {} has {} MiB free, a new cluster of {} OSDs needs {} MiB: free some space, or choose \
             another folder with --data",
            data.display(),
            free >> 20,
            plan.osds,
            needed >> 20
        );
    }
    Ok(())
}

/// Fails if this user may not use the cluster's files.
pub(super) fn check_rights(layout: &ClusterDir) -> Result<()> {
    let mut paths = vec![layout.conf()];
    paths.extend(layout.stores()?);
    for path in paths {
        if access(&path, Access::READ_OK | Access::WRITE_OK).is_err() {
            let owner = fs::metadata(&path).with_context(|| format!("can't stat {}", path.display()))?.uid();
            bail!(
                "no permission for {}: it belongs to user {owner}, this process runs as user {}",
                path.display(),
                geteuid().as_raw()
            );
        }
    }
    Ok(())
}
