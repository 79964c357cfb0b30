//! State that all threads of one OSD share: that of its shards, and that of the daemon around them.

use crate::copy::InternalClient;
use crate::outside::DaemonHost;
use crate::peers::PeerLinks;
use crate::pings::PingLinks;
use crate::ticket::TicketCredentials;
use arc_swap::ArcSwapOption;
use nacre_common::auth::CredentialProvider;
use nacre_common::config::Config;
use nacre_common::metrics::PerfCounters;
use nacre_shard::host::ShardHost;
use nacre_shard::shared::ShardSettings;
use nacre_store::ObjectStore;
use nacre_types::osdmap::Member;
use std::ops::Deref;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use uuid::Uuid;

/// State that a daemon's threads share with its shards.
pub(crate) struct Shared {
    /// The part that the shards use.
    pub(crate) core: Arc<nacre_shard::shared::Shared>,
    pub(crate) outside: Arc<DaemonHost>,
    /// The disk's id.
    pub(crate) uuid: Uuid,
    /// Whether the store's database is being compacted by a command.
    pub(crate) compacting: AtomicBool,
    /// Whether a command is simulating a cache tier.
    pub(crate) advising: AtomicBool,
    /// Whether a command is measuring the store.
    pub(crate) benching: AtomicBool,
    /// All counters of this OSD, including those of its store and its messengers.
    pub(crate) perf: PerfCounters,
}

impl Deref for Shared {
    type Target = nacre_shard::shared::Shared;

    fn deref(&self) -> &nacre_shard::shared::Shared {
        &self.core
    }
}

impl Shared {
    /// Creates the state of one process of the OSD that `config` names, over its mounted store. `uuid` is the disk's id.
    pub(crate) fn new(config: &Config, me: Member, uuid: Uuid, store: Arc<dyn ObjectStore>) -> Arc<Shared> {
        let ticket = Arc::default();
        let credentials = Arc::new(TicketCredentials(Arc::clone(&ticket)));
        let options = config.snapshot();
        let outside = Arc::new(DaemonHost {
            peers: PeerLinks::new(Arc::clone(&credentials) as Arc<dyn CredentialProvider>),
            pings: PingLinks::new(credentials),
            addr: OnceLock::new(),
            ticket,
            copier: Arc::new(InternalClient::new(config.clone(), nacre_shard::shared::shard_count(&options))),
            mon: ArcSwapOption::empty(),
            shared: OnceLock::new(),
        });
        let boot_nonce = Uuid::new_v4().as_u64_pair().0;
        let world = Arc::clone(&outside) as Arc<dyn ShardHost>;
        let settings = ShardSettings::of(&options);
        let core = nacre_shard::shared::Shared::new(config, me, boot_nonce, store, world, &settings);
        outside.shared.get_or_init(|| Arc::downgrade(&core));
        Arc::new(Shared {
            perf: PerfCounters::new(core.whoami),
            core,
            outside,
            uuid,
            compacting: AtomicBool::new(false),
            advising: AtomicBool::new(false),
            benching: AtomicBool::new(false),
        })
    }
}
