//! The policy for endpoints of topics, from this gateway's options and the addresses in its cluster.

use super::Topics;
use nacre_client::Cluster;
use nacre_common::options::AddrList;
use nacre_topics::endpoint::{CA_FOLDER_OPTION, CLEARTEXT_OPTION, EndpointPolicy, LOCAL_OPTION};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;

/// How often the addresses of other gateways are read.
const POLL_INTERVAL: Duration = Duration::from_secs(30);

/// Called with the policy whenever it may have changed.
type OnChange = Box<dyn Fn(EndpointPolicy) + Send + Sync>;

/// Provides the policy for endpoints. Cheap to clone.
///
/// The topic API asks for the policy when a topic is created or changed. The clients of endpoints are told of changes
/// ([`EndpointRules::on_change`]) and check each connection.
#[derive(Clone)]
pub struct EndpointRules(Arc<Inner>);

struct Inner {
    cluster: Cluster,
    /// The addresses that this gateway listens on.
    listening: Mutex<Vec<IpAddr>>,
    /// The addresses of other gateways.
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
    /// The rules of a gateway of that cluster, which does not listen yet.
    pub fn new(cluster: &Cluster) -> EndpointRules {
        EndpointRules(Arc::new(Inner {
            cluster: cluster.clone(),
            listening: Mutex::default(),
            gateways: Mutex::default(),
            told: Mutex::default(),
            option_changed: Notify::new(),
        }))
    }

    /// The current policy.
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
        // A gateway elsewhere is reached over a network, and this gateway also serves topics that are created through it.
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

    /// Calls `told` with the new policy whenever it may have changed.
    pub fn on_change(&self, told: impl Fn(EndpointPolicy) + Send + Sync + 'static) {
        self.0.told.lock().push(Box::new(told));
    }

    /// Notes that an option was changed. May be called where options can't be read: the gateway evaluates the new policy soon
    /// afterwards.
    pub fn option_changed(&self) {
        self.0.option_changed.notify_one();
    }

    fn changed(&self) {
        let policy = self.policy();
        self.0.told.lock().iter().for_each(|told| told(policy.clone()));
    }

    /// Records that the gateway listens on these addresses.
    pub(super) fn add_listen_addresses(&self, addresses: impl Iterator<Item = IpAddr>) {
        self.0.listening.lock().extend(addresses);
        self.changed();
    }

    /// Records the addresses of gateways. The cluster's map may have changed too.
    fn track_gateway_addresses(&self, addresses: BTreeSet<IpAddr>) {
        *self.0.gateways.lock() = addresses;
        self.changed();
    }
}

/// Keeps the addresses of gateways and the options up to date, as long as the topics exist.
pub(crate) async fn refresh_endpoint_rules(topics: Weak<Topics>) {
    let Some(rules) = topics.upgrade().map(|topics| topics.rules.clone()) else { return };
    while let Some(topics) = topics.upgrade() {
        match topics.peers.gateway_addresses().await {
            Ok(addresses) => rules.track_gateway_addresses(addresses),
            Err(error) => {
                tracing::debug!(%error, "rgw: it is not known where other gateways are");
                rules.changed();
            }
        }
        drop(topics);
        // Both are read again, whether the time has passed or an option was changed.
        _ = tokio::time::timeout(POLL_INTERVAL, rules.0.option_changed.notified()).await;
    }
}
