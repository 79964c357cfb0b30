//! Leases show whether a gateway still runs.
//!
//! Another gateway may finish the pending changes of a gateway only after it has fenced (blocklisted) that gateway. A fence ends
//! a gateway, so a running one must not be fenced: a watch that broke for a moment proves nothing. Therefore each gateway holds
//! a lock on an object of its own, `lease.SESSION` in `default.rgw.control`. It takes the lock before its first change, for
//! `rgw_gateway_lease_duration`, and renews it four times in that time. OSDs measure the time. To fence a gateway, another one
//! must take this lock, which succeeds only after a whole term without a renewal, and must find the gateway without a watch
//! both before and after.
//!
//! Gateways of earlier releases have no leases: for them the watch decides.

use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::peers::Peers;
use nacre_types::cls::lock::MAY_RENEW;
use nacre_types::errno::Errno;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The prefix of the names of leases' objects.
const PREFIX: &str = "lease.";
const LOCK: &str = "lease";
/// The lock's cookie if the gateway itself holds it, and if another gateway claims it.
const OWN: &str = "own";
const CLAIM: &str = "claim";
/// How long a claim lasts. The claimant blocklists the gateway in that time.
const CLAIM_TIME: Duration = Duration::from_secs(60);
/// Renewals in a term.
const RENEWALS: u32 = 4;

/// The leases of the gateways of a cluster, and this gateway's own.
pub(crate) struct Leases {
    connection: Arc<Connection>,
    peers: Arc<Peers>,
    /// How long a lease lasts without a renewal.
    term: Duration,
    held: AtomicBool,
    taking: tokio::sync::Mutex<()>,
}

fn object_of(session: &str) -> String {
    format!("{PREFIX}{session}")
}

impl Leases {
    pub(crate) fn new(connection: &Arc<Connection>, peers: &Arc<Peers>, term: Duration) -> Leases {
        Leases {
            connection: Arc::clone(connection),
            peers: Arc::clone(peers),
            term,
            held: AtomicBool::new(false),
            taking: tokio::sync::Mutex::default(),
        }
    }

    /// Makes sure that this gateway holds its lease. Called before each change that other gateways might finish.
    pub(crate) async fn ensure_held(&self) -> Result<()> {
        if self.held.load(Ordering::Acquire) {
            return Ok(());
        }
        let _taking = self.taking.lock().await;
        if !self.held.load(Ordering::Acquire) {
            self.take().await?;
            self.held.store(true, Ordering::Release);
        }
        Ok(())
    }

    async fn take(&self) -> Result<()> {
        let (name, term) = (object_of(self.connection.session()), self.term);
        if self.lock(&name, OWN, term).await? {
            return Ok(());
        }
        Err(Error::Contended(name))
    }

    /// Takes the lock of a lease or renews it; `false` if another gateway has it.
    async fn lock(&self, name: &str, cookie: &str, term: Duration) -> Result<bool> {
        let taken = self.connection.pools.control.lock_exclusive(
            name,
            LOCK,
            cookie,
            self.connection.session(),
            term,
            MAY_RENEW,
        );
        match taken.await {
            Ok(()) => Ok(true),
            Err(error) if matches!(error.errno(), Errno::EBUSY | Errno::EEXIST) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Releases the lease. The gateway must have no pending changes.
    pub(crate) async fn release(&self) -> Result<()> {
        let _taking = self.taking.lock().await;
        if !self.held.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        self.remove(self.connection.session()).await
    }

    /// Claims the lease of a gateway without a watch; returns whether that gateway is dead. If so, it can't take its lease
    /// for [`CLAIM_TIME`], in which the caller fences it.
    pub(crate) async fn claim_if_dead(&self, session: &str) -> Result<bool> {
        let name = object_of(session);
        if !self.lock(&name, CLAIM, CLAIM_TIME).await? {
            tracing::debug!(
                session,
                "rgw: a gateway has lost its watch, but not its lease: it is not fenced"
            );
            return Ok(false);
        }
        // The gateway may watch again after its lease expired.
        if self.peers.live_gateways().await?.contains(session) {
            self.connection.pools.control.unlock(&name, LOCK, CLAIM).await?;
            return Ok(false);
        }
        Ok(true)
    }

    /// Removes a lease's object.
    pub(crate) async fn remove(&self, session: &str) -> Result<()> {
        match self.connection.pools.control.remove(&object_of(session)).await {
            Err(error) if error.is_not_found() => Ok(()),
            removed => Ok(removed?),
        }
    }

    /// Whether a gateway has a lease, which may have expired.
    pub(crate) async fn exists(&self, session: &str) -> Result<bool> {
        match self.connection.pools.control.stat(&object_of(session)).await {
            Err(error) if error.is_not_found() => Ok(false),
            found => Ok(found.map(|_| true)?),
        }
    }

    /// Returns the sessions of gateways that have leases, which may have expired.
    pub(crate) async fn sessions(&self) -> Result<Vec<String>> {
        let mut lister = self.connection.pools.control.list();
        let mut sessions = Vec::new();
        while let Some(object) = lister.next().await? {
            sessions.extend(object.name().strip_prefix(PREFIX).map(str::to_owned));
        }
        Ok(sessions)
    }

    /// Returns the sessions of gateways that ended without releasing their leases.
    pub(crate) async fn unwatched_sessions(&self) -> Result<Vec<String>> {
        let mut sessions = self.sessions().await?;
        let alive = self.peers.live_gateways().await?;
        sessions.retain(|session| session != self.connection.session() && !alive.contains(session));
        Ok(sessions)
    }
}

/// Renews a gateway's lease while the gateway exists.
pub(crate) async fn renew_periodically(leases: Weak<Leases>, term: Duration) {
    loop {
        tokio::time::sleep(term / RENEWALS).await;
        let Some(leases) = leases.upgrade() else { return };
        let _taking = leases.taking.lock().await;
        if !leases.held.load(Ordering::Acquire) {
            continue;
        }
        if let Err(error) = leases.take().await {
            tracing::warn!(%error, "rgw: the gateway's lease is not renewed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::NOTIFY_OBJECT;
    use crate::testing::TestCluster;

    #[test]
    fn a_lease_is_claimed_only_after_it_expired() {
        const TERM: Duration = Duration::from_secs(30);
        let cluster = TestCluster::new();
        let [first, second] = [0, 1].map(|_| {
            let (connection, peers) = cluster.connect();
            let control = connection.pools.control.clone();
            cluster.run(async move { control.write_full(NOTIFY_OBJECT, "").await.unwrap() });
            (connection.session().to_owned(), Arc::new(Leases::new(&connection, &peers, TERM)))
        });
        let (session, leases) = first;
        let claim = || {
            let (session, second) = (session.clone(), Arc::clone(&second.1));
            cluster.run(async move { second.claim_if_dead(&session).await.unwrap() })
        };
        let own = Arc::clone(&leases);
        cluster.run(async move { own.ensure_held().await.unwrap() });
        assert!(!claim(), "the lease is held");
        cluster.pass(TERM + Duration::from_secs(1));
        assert!(claim());
        // The gateway that was silent can't take it again while it is being fenced.
        let (own, other) = (Arc::clone(&leases), Arc::clone(&second.1));
        cluster.run(async move {
            assert!(matches!(own.take().await, Err(Error::Contended(_))));
            assert_eq!(other.sessions().await.unwrap(), std::slice::from_ref(&session));
            assert!(other.exists(&session).await.unwrap());
            other.remove(&session).await.unwrap();
            assert!(!other.exists(&session).await.unwrap());
        });
    }
}
