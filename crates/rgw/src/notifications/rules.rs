//! What endpoints may name, as this gateway's options and its place in the network say.

use crate::gateway::Gateway;
use nacre_client::Cluster;
use nacre_runtime::options::AddrList;
use nacre_topics::endpoint::{CA_FOLDER_OPTION, CLEARTEXT_OPTION, EndpointPolicy, LOCAL_OPTION};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How often it is looked where other gateways are.
const LOOK: Duration = Duration::from_secs(30);

/// Tells what endpoints may name. Cheap to clone; options that change count at once.
///
/// The clients of endpoints ask at each connection, the topic API when a topic is made or changed.
#[derive(Clone)]
pub struct EndpointRules(Arc<Inner>);

struct Inner {
    cluster: Cluster,
    /// Where this gateway listens.
    listening: Mutex<Vec<IpAddr>>,
    /// Where other gateways are.
    gateways: Mutex<BTreeSet<IpAddr>>,
}

impl std::fmt::Debug for EndpointRules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EndpointRules").field("policy", &self.policy()).finish()
    }
}

impl EndpointRules {
    /// Of a gateway of that cluster, which listens nowhere yet.
    pub fn new(cluster: &Cluster) -> EndpointRules {
        EndpointRules(Arc::new(Inner {
            cluster: cluster.clone(),
            listening: Mutex::default(),
            gateways: Mutex::default(),
        }))
    }

    /// What counts now.
    pub fn policy(&self) -> EndpointPolicy {
        let Inner { cluster, listening, gateways } = &*self.0;
        let is_on = |option: &str| cluster.option(option).is_some_and(|text| text == "true");
        let (listening, gateways) = (listening.lock().clone(), gateways.lock().clone());
        let own = cluster.address().and_then(|address| address.addr).map(|address| address.ip());
        let map = cluster.osdmap();
        let osds = map.iter().flat_map(|map| map.osds.values()).filter_map(|osd| osd.addr);
        let monitors = cluster.option("mon_host").and_then(|text| AddrList::parse(&text).ok());
        let monitors = monitors.iter().flat_map(|list| &list.0).filter_map(|host| host.host.parse().ok());
        let is_specific = |address: &&IpAddr| !address.is_unspecified();
        let addresses: BTreeSet<IpAddr> = osds
            .map(|address| address.ip())
            .chain(monitors)
            .chain(own)
            .chain(gateways.iter().copied())
            .chain(listening.iter().filter(is_specific).copied())
            .collect();
        // A gateway elsewhere is reached over a network, and a topic that is made through it is served by this one too.
        let is_beyond = |address: &IpAddr| !address.to_canonical().is_loopback();
        let folder = cluster.option(CA_FOLDER_OPTION).filter(|folder| !folder.is_empty());
        EndpointPolicy {
            allow_cleartext_secrets: is_on(CLEARTEXT_OPTION),
            allow_local: is_on(LOCAL_OPTION),
            own_addresses: addresses.into_iter().collect(),
            listens_beyond_loopback: listening.iter().chain(&gateways).any(is_beyond),
            ca_folder: folder.map(Into::into),
        }
    }

    /// The gateway listens at these addresses.
    pub(crate) fn note_listening(&self, addresses: impl Iterator<Item = IpAddr>) {
        self.0.listening.lock().extend(addresses);
    }

    /// Other gateways are at these addresses.
    pub(crate) fn note_gateways(&self, addresses: BTreeSet<IpAddr>) {
        *self.0.gateways.lock() = addresses;
    }
}

impl Gateway {
    /// The gateway listens at these addresses.
    pub(crate) fn note_listening(&self, addresses: impl Iterator<Item = IpAddr>) {
        self.rules.note_listening(addresses);
    }
}

/// Notes where other gateways are, as long as the gateway is there.
pub(crate) async fn note_gateways(gateway: Weak<Gateway>) {
    loop {
        let Some(gateway) = gateway.upgrade() else { return };
        match gateway.gateway_addresses().await {
            Ok(addresses) => gateway.rules.note_gateways(addresses),
            Err(error) => tracing::debug!(%error, "rgw: it is not known where other gateways are"),
        }
        drop(gateway);
        tokio::time::sleep(LOOK).await;
    }
}
