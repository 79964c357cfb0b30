//! The gateways of a cluster: how they notify each other of changes, and the caches that depend on it.
//!
//! Cached records are valid while the gateway's watch on [`NOTIFY_OBJECT`] is established. A gateway that changes a user or a
//! bucket notifies all gateways. Its request succeeds only after each of them has acknowledged or has lost its watch. A
//! gateway whose watch gave no sign of life for [`WATCH_TIMEOUT`] may have lost it without knowing; it uses no cached
//! record.

use crate::connection::{Connection, session_name};
use crate::error::{Error, Result};
use crate::message::{GatewayMessage, NOTIFY_OBJECT, QUERY_TIMEOUT};
use bytes::Bytes;
use nacre_client::{IoCtx, Notification, WatchHandler};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// The maximum number of records in each cache.
const REMEMBERED: usize = 10_000;
/// A watch is lost after this time without a sign of life.
const WATCH_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a change waits for the other gateways. By then, gateways that do not answer have lost their watches.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(15);
const _: () = assert!(WATCH_TIMEOUT.as_secs() < NOTIFY_TIMEOUT.as_secs());
/// Attempts to notify the other gateways of a change.
const NOTIFY_ATTEMPTS: u32 = 5;
/// How long a record is cached, as Ceph's `rgw_cache_expiry_interval`: a gateway may die after it changed a record and
/// before it notified the others.
const CACHE_TTL: Duration = Duration::from_secs(900);
/// The delay before another attempt to watch or to notify.
const WATCH_RETRY: Duration = Duration::from_secs(1);

/// A part of a gateway that acts on notifications.
pub(crate) trait MessageListener: Send + Sync {
    /// Handles a change that this or another gateway made.
    fn changed(&self, change: &GatewayMessage);

    /// Handles that changes may have been missed.
    fn missed_changes(&self) {}

    /// Returns the answer to a question of a gateway; `None` if it is not a question for this part.
    fn answer(&self, _question: &GatewayMessage) -> Option<&'static str> {
        None
    }
}

/// The gateways of a cluster, as one of them knows them.
pub(crate) struct Peers {
    connection: Arc<Connection>,
    /// The watch's cookie; and whether the gateway has ended, so that no watch is wanted.
    watch: Mutex<Option<u64>>,
    ended: AtomicBool,
    /// Incremented by every change: a record that was read before a change must not be cached after it.
    changes: AtomicU64,
    listeners: RwLock<Vec<Arc<dyn MessageListener>>>,
    /// Whether the cluster has blocklisted this gateway.
    blocklisted: watch::Sender<bool>,
}

impl Peers {
    pub(crate) fn new(connection: &Arc<Connection>) -> Arc<Peers> {
        Arc::new(Peers {
            connection: Arc::clone(connection),
            watch: Mutex::new(None),
            ended: AtomicBool::new(false),
            changes: AtomicU64::new(0),
            listeners: RwLock::default(),
            blocklisted: watch::Sender::new(false),
        })
    }

    /// Adds a part that acts on notifications. It must not own these peers.
    pub(crate) fn add_listener(&self, listener: Arc<dyn MessageListener>) {
        self.listeners.write().push(listener);
    }

    fn control(&self) -> &IoCtx {
        &self.connection.pools.control
    }

    /// Waits until the cluster has blocklisted this gateway, because it was considered dead. Then all its operations fail,
    /// and it must be restarted.
    pub(crate) async fn wait_blocklisted(&self) {
        // The wait can't fail: these peers own the sender.
        _ = self.blocklisted.subscribe().wait_for(|is_out| *is_out).await;
    }

    /// Gives up the watch: other gateways no longer wait for this one when they change something. Nothing is cached after
    /// this. Gives up after `timeout` if the cluster does not answer.
    pub(crate) async fn unwatch(&self, timeout: Duration) {
        self.ended.store(true, Ordering::Release);
        let cookie = self.watch.lock().take();
        if let Some(cookie) = cookie {
            match tokio::time::timeout(timeout, self.control().unwatch(cookie)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%error, "rgw: the watch was lost already"),
                Err(_) => tracing::warn!("rgw: the watch could not be given back"),
            }
        }
    }

    /// Whether the watch is certainly established. If so, no other gateway completes a change before it has notified this
    /// one.
    fn is_watching(&self) -> bool {
        let cookie = *self.watch.lock();
        let silent = cookie.map(|cookie| self.control().watch_check(cookie));
        silent.is_some_and(|silent| silent.is_ok_and(|silent| silent < WATCH_TIMEOUT))
    }

    /// Returns the sessions of all gateways that watch.
    pub(crate) async fn live_gateways(&self) -> Result<BTreeSet<String>> {
        let watchers = self.control().list_watchers(NOTIFY_OBJECT).await?;
        Ok(watchers.into_iter().map(|watcher| session_name(watcher.client.0)).collect())
    }

    /// Returns the addresses of all gateways that watch.
    pub(crate) async fn gateway_addresses(&self) -> Result<BTreeSet<IpAddr>> {
        // Watchers' addresses have the form ADDRESS:PORT/NONCE.
        let address_of = |text: &str| {
            let socket = text.rsplit_once('/').map_or(text, |(socket, _)| socket);
            socket.parse::<SocketAddr>().ok().map(|socket| socket.ip())
        };
        let watchers = match self.control().list_watchers(NOTIFY_OBJECT).await {
            Err(error) if error.is_not_found() => return Ok(BTreeSet::new()),
            watchers => watchers?,
        };
        Ok(watchers.iter().filter_map(|watcher| address_of(&watcher.addr)).collect())
    }

    /// Handles a change in this gateway only.
    pub(crate) fn invalidate_local(&self, change: &GatewayMessage) {
        self.changes.fetch_add(1, Ordering::AcqRel);
        for listener in self.listeners.read().iter() {
            listener.changed(change);
        }
    }

    fn invalidate_all(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
        for listener in self.listeners.read().iter() {
            listener.missed_changes();
        }
    }

    /// Makes a change and has all gateways invalidate their cached records of it, unless it was certainly not made. Fails if
    /// some gateways may not know of the change: they could use the old record for [`CACHE_TTL`], so the caller must request
    /// the change again.
    pub(crate) async fn with_invalidation<T>(
        &self,
        change: GatewayMessage,
        making: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let (made, told) = self.apply_and_notify(change, making).await;
        let made = made?;
        told.map(|()| made)
    }

    /// Like [`Peers::with_invalidation`], but ignores failed notifications. It is for the creation or removal of a bucket,
    /// which takes further steps: gateways that do not know of it find the record, or no index, when they look.
    pub(crate) async fn with_best_effort_invalidation<T>(
        &self,
        change: GatewayMessage,
        making: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.apply_and_notify(change, making).await.0
    }

    async fn apply_and_notify<T>(
        &self,
        change: GatewayMessage,
        making: impl Future<Output = Result<T>>,
    ) -> (Result<T>, Result<()>) {
        let made = making.await;
        let may_be_made = made.as_ref().map_or_else(Error::is_outcome_unknown, |_| true);
        let told = if may_be_made { self.notify(change).await } else { Ok(()) };
        (made, told)
    }

    /// Asks all gateways a question; returns the answers with the numbers of the gateways' sessions. A gateway that does not
    /// answer in time is missing.
    pub(crate) async fn query(&self, question: &GatewayMessage) -> Result<Vec<(u64, Bytes)>> {
        let payload = postcard::to_stdvec(question).expect("invariant: names can be encoded");
        match self.control().notify(NOTIFY_OBJECT, payload, Some(QUERY_TIMEOUT)).await {
            // No gateway ever watched.
            Err(error) if error.is_not_found() => Ok(Vec::new()),
            outcome => {
                let acks = outcome?.reply.acks.into_iter();
                Ok(acks.map(|(session, _, answer)| (session, answer)).collect())
            }
        }
    }

    /// Notifies all gateways of a change that was made, including this one, and waits until they know. A gateway that does
    /// not answer has lost its watch and empties its caches. Fails if the gateways could not be notified after [`NOTIFY_ATTEMPTS`]
    /// attempts.
    pub(crate) async fn notify(&self, change: GatewayMessage) -> Result<()> {
        self.invalidate_local(&change);
        let payload = postcard::to_stdvec(&change).expect("invariant: names can be encoded");
        let mut attempt = 1;
        loop {
            match self.control().notify(NOTIFY_OBJECT, payload.clone(), Some(NOTIFY_TIMEOUT)).await {
                Ok(outcome) if outcome.timed_out => {
                    tracing::warn!(?change, "rgw: a gateway did not answer");
                    return Ok(());
                }
                Ok(_) => return Ok(()),
                // No gateway ever watched.
                Err(error) if error.is_not_found() => return Ok(()),
                Err(error) => {
                    tracing::warn!(%error, ?change, "rgw: other gateways could not be told");
                    let is_over =
                        matches!(error, nacre_client::Error::ShutDown | nacre_client::Error::Blocklisted);
                    if is_over || attempt == NOTIFY_ATTEMPTS {
                        return Err(error.into());
                    }
                    attempt += 1;
                    tokio::time::sleep(WATCH_RETRY).await;
                }
            }
        }
    }

    fn notified(&self, notification: &Notification) {
        let mut answer = "";
        match postcard::from_bytes::<GatewayMessage>(&notification.payload) {
            Ok(question @ (GatewayMessage::AskBreaker(_) | GatewayMessage::AskStorageClasses)) => {
                let listeners = self.listeners.read();
                answer = listeners.iter().find_map(|listener| listener.answer(&question)).unwrap_or("");
            }
            Ok(change) => self.invalidate_local(&change),
            // A message of a newer release may concern any record.
            Err(_) => self.invalidate_all(),
        }
        self.control().notify_ack(NOTIFY_OBJECT, notification.notify_id, notification.cookie, answer);
    }
}

/// Removes the entries from a cache that a change concerns.
type Invalidate<T> = fn(&mut CacheEntries<T>, &GatewayMessage);

/// Cached records by name, each with the time at which it was cached.
pub(crate) struct CacheEntries<T>(HashMap<String, (Instant, Arc<T>)>);

impl<T> CacheEntries<T> {
    pub(crate) fn remove(&mut self, name: &str) {
        self.0.remove(name);
    }

    /// Removes the records for which `concerns` returns true.
    pub(crate) fn remove_if(&mut self, concerns: impl Fn(&T) -> bool) {
        self.0.retain(|_, (_, value)| !concerns(value));
    }
}

struct CacheListener<T> {
    entries: Mutex<CacheEntries<T>>,
    invalidate: Invalidate<T>,
}

impl<T: Send + Sync> MessageListener for CacheListener<T> {
    fn changed(&self, change: &GatewayMessage) {
        (self.invalidate)(&mut self.entries.lock(), change);
    }

    fn missed_changes(&self) {
        self.entries.lock().0.clear();
    }
}

/// A cache of records that gateways change.
pub(crate) struct MetadataCache<T> {
    peers: Arc<Peers>,
    cached: Arc<CacheListener<T>>,
}

impl<T: Send + Sync + 'static> MetadataCache<T> {
    /// Creates an empty cache. `invalidate` removes what a change concerns.
    pub(crate) fn new(peers: &Arc<Peers>, invalidate: Invalidate<T>) -> MetadataCache<T> {
        let entries = Mutex::new(CacheEntries(HashMap::new()));
        let cached = Arc::new(CacheListener { entries, invalidate });
        peers.add_listener(Arc::clone(&cached) as Arc<dyn MessageListener>);
        MetadataCache { peers: Arc::clone(peers), cached }
    }

    /// Returns the record of that name, as of the beginning of the call or later: the cached one, or the result of `reading`.
    pub(crate) async fn get(&self, name: &str, reading: impl Future<Output = Result<T>>) -> Result<Arc<T>> {
        if self.peers.is_watching()
            && let Some(known) = self.cached(name)
        {
            return Ok(known);
        }
        let changes = self.peers.changes.load(Ordering::Acquire);
        let read = Arc::new(reading.await?);
        if self.peers.is_watching() {
            self.insert_if_unchanged(changes, name, &read);
        }
        Ok(read)
    }

    fn cached(&self, name: &str) -> Option<Arc<T>> {
        let entries = self.cached.entries.lock();
        let found = entries.0.get(name).filter(|(since, _)| since.elapsed() < CACHE_TTL);
        found.map(|(_, value)| Arc::clone(value))
    }

    /// Caches a value that was read when the number of changes was `before`, unless there was a change since.
    fn insert_if_unchanged(&self, before: u64, name: &str, value: &Arc<T>) {
        let mut entries = self.cached.entries.lock();
        if self.peers.changes.load(Ordering::Acquire) == before {
            if entries.0.len() >= REMEMBERED {
                entries.0.clear();
            }
            entries.0.insert(name.to_owned(), (Instant::now(), Arc::clone(value)));
        }
    }
}

/// Passes notifications on while the gateway exists.
struct ControlWatch {
    peers: Weak<Peers>,
    lost: Arc<tokio::sync::Notify>,
}

impl WatchHandler for ControlWatch {
    fn notified(&self, notification: Notification) {
        if let Some(peers) = self.peers.upgrade() {
            peers.notified(&notification);
        }
    }

    fn lost(&self, _cookie: u64, _error: nacre_client::Error) {
        if let Some(peers) = self.peers.upgrade() {
            peers.invalidate_all();
        }
        self.lost.notify_one();
    }
}

/// Watches while the gateway exists; watches again when the watch is lost.
pub(crate) async fn keep_watching(peers: Weak<Peers>) {
    let lost = Arc::new(tokio::sync::Notify::new());
    loop {
        let Some(strong) = peers.upgrade() else { return };
        let control = strong.control().clone();
        let handler = Arc::new(ControlWatch { peers: peers.clone(), lost: Arc::clone(&lost) });
        let watched = match control.create(NOTIFY_OBJECT, false).await {
            Ok(()) => {
                let (cookie, watched) = control.watch(NOTIFY_OBJECT, Some(WATCH_TIMEOUT), handler);
                watched.await.map(|()| cookie)
            }
            Err(error) => Err(error),
        };
        if let Ok(cookie) = &watched {
            // Reads in flight began before the watch, and this gateway was not notified of changes in between: their results
            // must not be cached.
            strong.invalidate_all();
            *strong.watch.lock() = Some(*cookie);
        }
        // The gateway may have ended before the watch was established.
        if strong.ended.load(Ordering::Acquire) {
            let cookie = strong.watch.lock().take();
            if let Some(cookie) = cookie {
                _ = control.unwatch(cookie).await;
            }
            return;
        }
        drop(strong);
        match watched {
            Ok(cookie) => {
                lost.notified().await;
                // The watch is lost, so the result does not matter.
                _ = control.unwatch(cookie).await;
            }
            Err(nacre_client::Error::ShutDown) => return,
            Err(error @ nacre_client::Error::Blocklisted) => {
                tracing::error!(%error, "rgw: the cluster has shut this gateway out: restart it");
                if let Some(peers) = peers.upgrade() {
                    peers.blocklisted.send_replace(true);
                }
                return;
            }
            Err(error) => {
                tracing::warn!(%error, "rgw: can't watch for changes; nothing is remembered meanwhile");
                tokio::time::sleep(WATCH_RETRY).await;
            }
        }
    }
}
