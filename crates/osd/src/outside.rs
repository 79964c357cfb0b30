//! The services around an OSD's shards: its peers, the map authority, the sources of copies, and the machine's clocks.

use crate::clock;
use crate::copy::InternalClient;
use crate::peers::PeerLinks;
use crate::pings::PingLinks;
use crate::store_kind;
use arc_swap::ArcSwapOption;
use nacre_common::auth::Ticket;
use nacre_common::conn::ConnRef;
use nacre_common::error::Error;
use nacre_pg::heartbeat::HbEnvelope;
use nacre_runtime::msgr::{Conn, EncodedMessage};
use nacre_shard::host::ShardHost;
use nacre_shard::inbox::ShardMessage;
use nacre_shard::session::IncomingRequest;
use nacre_shard::shared::Shared;
use nacre_store::ObjectStore;
use nacre_types::ids::OsdId;
use nacre_types::msg::OsdRequest;
use nacre_types::osdmap::OsdMap;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock, Weak};
use uuid::Uuid;

/// See the module's documentation.
pub(crate) struct DaemonHost {
    pub(crate) peers: PeerLinks,
    pub(crate) pings: PingLinks,
    pub(crate) copier: Arc<InternalClient>,
    /// The connection to the map authority, while there is one.
    pub(crate) mon: ArcSwapOption<Conn>,
    /// The address on which this OSD listens.
    pub(crate) addr: OnceLock<SocketAddr>,
    /// Authenticates this OSD to its peers. Set once the map authority has issued it.
    pub(crate) ticket: Arc<ArcSwapOption<Ticket>>,
    /// The shared state of the OSD that this belongs to.
    pub(crate) shared: OnceLock<Weak<Shared>>,
}

impl DaemonHost {
    fn shared(&self) -> Option<Arc<Shared>> {
        self.shared.get()?.upgrade()
    }
}

impl ShardHost for DaemonHost {
    fn boot_ns(&self) -> u64 {
        clock::boot_ns()
    }

    fn wall_ns(&self) -> u64 {
        clock::wall_ns()
    }

    fn fresh_uuid(&self) -> Uuid {
        Uuid::new_v4()
    }

    fn send_to_mon(&self, message: EncodedMessage) {
        if let Some(mon) = self.mon.load().as_ref()
            && let Err(error) = mon.send_encoded(&message)
        {
            tracing::debug!(%error, kind = message.kind, "could not send to the monitor");
        }
    }

    fn peer(&self, osd: OsdId, shard: usize) -> Result<Option<ConnRef>, Error> {
        self.peers.get(osd, shard)
    }

    fn drop_peer(&self, osd: OsdId) {
        self.peers.drop_conn(osd);
    }

    fn follow_map(&self, map: &OsdMap) -> Vec<OsdId> {
        let Some(shared) = self.shared() else { return Vec::new() };
        self.pings.on_map(map, shared.whoami);
        self.peers.on_map(map, shared.whoami)
    }

    fn ping(&self, osd: OsdId, message: &HbEnvelope) {
        self.pings.ping(osd, message);
    }

    fn public_addr(&self) -> Option<SocketAddr> {
        self.ticket.load().as_ref()?;
        self.addr.get().copied()
    }

    fn pools_changed(&self) {
        if let Some(shared) = self.shared() {
            store_kind::set_data_options(&shared);
        }
    }

    fn health(&self, store: &dyn ObjectStore) -> Vec<(String, String)> {
        let uses_database = store.kind() != "memstore";
        let build = if uses_database { nacre_store::build_warnings() } else { &[] };
        let build = build.iter().map(|text| ("KVSTORE_UNOPTIMIZED".to_owned(), text.clone()));
        store.health().into_iter().chain(build).collect()
    }

    fn fetch(&self, shard: usize, arrival: Box<IncomingRequest>) {
        let (copier, shared) = (Arc::clone(&self.copier), self.shared.get().cloned());
        // Spawned on the shard's own runtime: the shard's thread calls this.
        tokio::spawn(async move {
            let Some(shared) = shared.and_then(|shared| shared.upgrade()) else { return };
            let max_bytes = shared.limits.load().max_object_size_bytes;
            let fetched = copier.fetch(shard, &arrival.request, max_bytes).await;
            shared.inboxes[shard].post(ShardMessage::Fetched { arrival, fetched });
        });
    }

    fn read_base(&self, shard: usize, ticket: u64, request: Box<OsdRequest>, max_bytes: u64) {
        let (copier, shared) = (Arc::clone(&self.copier), self.shared.get().cloned());
        tokio::spawn(async move {
            let Some(shared) = shared.and_then(|shared| shared.upgrade()) else { return };
            let fetched = copier.fetch(shard, &request, max_bytes).await;
            shared.inboxes[shard].post(ShardMessage::PromotionRead { ticket, fetched });
        });
    }

    fn request_other_pool(&self, shard: usize, ticket: u64, request: Box<OsdRequest>) {
        let shared = self.shared.get().cloned();
        self.copier.send_request(
            shard,
            request,
            Box::new(move |reply| {
                let Some(shared) = shared.and_then(|shared| shared.upgrade()) else { return };
                shared.inboxes[shard].post(ShardMessage::TierReply { ticket, reply });
            }),
        );
    }
}
