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

use crate::error::{Error, Result};
use crate::gateway::Gateway;
use nacre_types::cls::lock::MAY_RENEW;
use nacre_types::errno::Errno;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};
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

/// A gateway's own lease.
#[derive(Debug, Default)]
pub(crate) struct GatewayLease {
    held: AtomicBool,
    taking: tokio::sync::Mutex<()>,
}

fn object_of(session: &str) -> String {
    format!("{PREFIX}{session}")
}

impl Gateway {
    /// Makes sure that this gateway holds its lease. Called before each change that other gateways might finish.
    pub(crate) async fn ensure_lease(&self) -> Result<()> {
        if self.lease.held.load(Ordering::Acquire) {
            return Ok(());
        }
        let _taking = self.lease.taking.lock().await;
        if !self.lease.held.load(Ordering::Acquire) {
            self.take_lease().await?;
            self.lease.held.store(true, Ordering::Release);
        }
        Ok(())
    }

    async fn take_lease(&self) -> Result<()> {
        let (name, term) = (object_of(self.session()), self.config.lease);
        if self.lock_lease(&name, OWN, term).await? {
            return Ok(());
        }
        Err(Error::Contended(name))
    }

    /// Takes the lock of a lease or renews it; `false` if another gateway has it.
    async fn lock_lease(&self, name: &str, cookie: &str, term: Duration) -> Result<bool> {
        let taken = self.pools.control.lock_exclusive(name, LOCK, cookie, self.session(), term, MAY_RENEW);
        match taken.await {
            Ok(()) => Ok(true),
            Err(error) if matches!(error.errno(), Errno::EBUSY | Errno::EEXIST) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Releases the lease. The gateway must have no pending changes.
    pub(crate) async fn release_lease(&self) -> Result<()> {
        let _taking = self.lease.taking.lock().await;
        if !self.lease.held.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        self.remove_lease(self.session()).await
    }

    /// Claims the lease of a gateway without a watch; returns whether that gateway is dead. If so, it can't take its lease
    /// for [`CLAIM_TIME`], in which the caller fences it.
    pub(crate) async fn claim_lease(&self, session: &str) -> Result<bool> {
        let name = object_of(session);
        if !self.lock_lease(&name, CLAIM, CLAIM_TIME).await? {
            tracing::debug!(
                session,
                "rgw: a gateway has lost its watch, but not its lease: it is not fenced"
            );
            return Ok(false);
        }
        // The gateway may watch again after its lease expired.
        if self.live_gateways().await?.contains(session) {
            self.pools.control.unlock(&name, LOCK, CLAIM).await?;
            return Ok(false);
        }
        Ok(true)
    }

    /// Removes a lease's object.
    pub(crate) async fn remove_lease(&self, session: &str) -> Result<()> {
        match self.pools.control.remove(&object_of(session)).await {
            Err(error) if error.is_not_found() => Ok(()),
            removed => Ok(removed?),
        }
    }

    /// Whether a gateway has a lease, which may have expired.
    pub(crate) async fn has_lease(&self, session: &str) -> Result<bool> {
        match self.pools.control.stat(&object_of(session)).await {
            Err(error) if error.is_not_found() => Ok(false),
            found => Ok(found.map(|_| true)?),
        }
    }

    /// Returns the sessions of gateways that have leases, which may have expired.
    pub(crate) async fn leases(&self) -> Result<Vec<String>> {
        let mut lister = self.pools.control.list();
        let mut sessions = Vec::new();
        while let Some(object) = lister.next().await? {
            sessions.extend(object.name().strip_prefix(PREFIX).map(str::to_owned));
        }
        Ok(sessions)
    }

    /// Removes leases of gateways that ended without releasing them. A lease stays while its gateway has pending changes in
    /// buckets with notifications: it is the record by which these changes are recovered ([`crate::index::recover`]).
    pub(crate) async fn sweep_leases(&self) -> Result<()> {
        let sessions = self.leases().await?;
        let alive = self.live_gateways().await?;
        for session in sessions {
            if session == self.session() || alive.contains(&session) {
                continue;
            }
            // Checked before the claim, which would block the gateways that recover the changes, and again after it, when no
            // further changes are made.
            if self.is_needed(&session).await? || !self.claim_lease(&session).await? {
                continue;
            }
            if !self.is_needed(&session).await? {
                self.remove_lease(&session).await?;
            }
        }
        Ok(())
    }

    async fn is_needed(&self, session: &str) -> Result<bool> {
        Ok(!self.notifying_buckets_with_pending(session).await?.is_empty())
    }
}

/// Renews a gateway's lease while the gateway exists.
pub(crate) async fn renew_lease_periodically(gateway: Weak<Gateway>, term: Duration) {
    loop {
        tokio::time::sleep(term / RENEWALS).await;
        let Some(gateway) = gateway.upgrade() else { return };
        let _taking = gateway.lease.taking.lock().await;
        if !gateway.lease.held.load(Ordering::Acquire) {
            continue;
        }
        if let Err(error) = gateway.take_lease().await {
            tracing::warn!(%error, "rgw: the gateway's lease is not renewed");
        }
    }
}
