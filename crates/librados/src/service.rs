//! The service map: programs that provide a service on the cluster register with `rados_service_register`. `ceph -s` and `ceph
//! service dump` show them as long as they run.

use crate::abi::{CStrPtr, Handle};
use crate::client::CLIENTS;
use crate::guard::exports;
use crate::service_registration::{ServiceMetadata, ServiceRegistration};
use nacre_types::errno::Errno;
use std::ffi::c_int;

/// Names of the cluster's own daemons, which no service may take.
const RESERVED_NAMES: [&str; 5] = ["osd", "mds", "client", "mon", "mgr"];

/// Facts about the machine, which Ceph's library reports too.
fn of_machine() -> impl Iterator<Item = (String, String)> {
    let kernel = |name: &str| {
        let text = std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    };
    let facts = [
        ("arch", Some(std::env::consts::ARCH.to_owned())),
        ("hostname", kernel("hostname")),
        ("kernel_version", kernel("osrelease")),
        ("os", kernel("ostype")),
    ];
    facts.into_iter().filter_map(|(name, fact)| Some((name.to_owned(), fact?)))
}

exports! {
    /// Registers the program as a daemon of a service until the handle is shut down, before or after connecting. EEXIST if one
    /// is registered, EINVAL for names of the cluster's own daemons.
    fn rados_service_register(cluster: Handle, service: CStrPtr, daemon: CStrPtr, metadata_dict: CStrPtr) -> c_int {
        let client = CLIENTS.get(cluster)?;
        let (service, daemon) = (service.text()?, daemon.text()?);
        if service.is_empty() || daemon.is_empty() || RESERVED_NAMES.contains(&service) {
            return Err(Errno::EINVAL.into());
        }
        let mut metadata: ServiceMetadata = metadata_dict.pairs()?.into_iter().collect();
        metadata.extend(of_machine());
        client.register(ServiceRegistration::new(service, daemon, metadata))?;
        Ok(0)
    }

    /// Replaces the status of the registered daemon. Does nothing if none is registered.
    fn rados_service_update_status(cluster: Handle, status_dict: CStrPtr) -> c_int {
        CLIENTS.get(cluster)?.set_service_status(status_dict.pairs()?.into_iter().collect())?;
        Ok(0)
    }
}
