//! What endpoints may name, as this gateway's options and its place in the network say.

use crate::gateway::Gateway;
use nacre_client::Cluster;
use nacre_common::options::AddrList;
use nacre_topics::endpoint::{CA_FOLDER_OPTION, CLEARTEXT_OPTION, EndpointPolicy, LOCAL_OPTION};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;

/// How often it is looked where other gateways are.
const LOOK: Duration = Duration::from_secs(30);

/// Called with what endpoints may name, whenever that may have changed.
type OnChange = Box<dyn Fn(EndpointPolicy) + Send + Sync>;

/// Tells what endpoints may name. Cheap to clone.
///
/// The topic API asks when a topic is made or changed; the clients of endpoints are told of changes ([`EndpointRules::on_change`])
/// and check each connection.
#[derive(Clone)]
pub struct EndpointRules(Arc<Inner>);

struct Inner {
    cluster: Cluster,
    /// Where this gateway listens.
    listening: Mutex<Vec<IpAddr>>,
    /// Where other gateways are.
    gateways: Mutex<BTreeSet<IpAddr>>,
    told: Mutex<Vec<OnChange>>,
    option_changed: Notify,
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
            told: Mutex::default(),
            option_changed: Notify::new(),
        }))
    }

    /// What counts now.
    pub fn policy(&self) -> EndpointPolicy {
        let Inner { cluster, listening, gateways, .. } = &*self.0;
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

    /// Has `told` called with what counts then, whenever that may have changed.
    pub fn on_change(&self, told: impl Fn(EndpointPolicy) + Send + Sync + 'static) {
        self.0.told.lock().push(Box::new(told));
    }

    /// An option was changed; may be called where options can't be read. What counts is worked out soon afterwards, by the gateway.
    pub fn option_changed(&self) {
        self.0.option_changed.notify_one();
    }

    fn changed(&self) {
        let policy = self.policy();
        self.0.told.lock().iter().for_each(|told| told(policy.clone()));
    }

    /// The gateway listens at these addresses.
    fn note_listening(&self, addresses: impl Iterator<Item = IpAddr>) {
        self.0.listening.lock().extend(addresses);
        self.changed();
    }

    /// Gateways are at these addresses. The cluster's map may have changed too.
    fn note_gateways(&self, addresses: BTreeSet<IpAddr>) {
        *self.0.gateways.lock() = addresses;
        self.changed();
    }
}

impl Gateway {
    /// The gateway listens at these addresses.
    pub(crate) fn note_listening(&self, addresses: impl Iterator<Item = IpAddr>) {
        self.rules.note_listening(addresses);
    }
}

/// Notes where gateways are and what options say, as long as the gateway is there.
pub(crate) async fn note_gateways(gateway: Weak<Gateway>) {
    let Some(rules) = gateway.upgrade().map(|gateway| gateway.rules.clone()) else { return };
    while let Some(gateway) = gateway.upgrade() {
        match gateway.gateway_addresses().await {
            Ok(addresses) => rules.note_gateways(addresses),
            Err(error) => {
                tracing::debug!(%error, "rgw: it is not known where other gateways are");
                rules.changed();
            }
        }
        drop(gateway);
        // Whether time is over or an option was changed: both are looked at then.
        _ = tokio::time::timeout(LOOK, rules.0.option_changed.notified()).await;
    }
}
