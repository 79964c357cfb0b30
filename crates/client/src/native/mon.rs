//! The session with the map authority: a connection that authenticates with the key, a ticket for the OSDs that is renewed in time, the
//! subscription to maps and configuration, and the commands that wait for an answer.

use super::{Shared, ticket};
use nacre_common::auth::{AuthTicketReply, AuthTicketRequest, CredentialProvider, Ticket};
use nacre_engine::engine::LogSubscription;
use nacre_engine::{Error, Result};
use nacre_runtime::log::NOTICE_TARGET;
use nacre_runtime::msgr::{Conn, ConnectTarget, Messenger, Policy};
use nacre_types::Epoch;
use nacre_types::errno::Errno;
use nacre_types::msg::{LogSubscribe, MonSubscribe};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// The first delay between attempts to reach a monitor; it doubles.
const FIRST_DELAY: Duration = Duration::from_millis(50);
/// The longest such delay.
const LONGEST_DELAY: Duration = Duration::from_secs(2);
/// A monitor that has not finished the handshake after this time is skipped.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// For this time after the start a refusal of the key is not final: another cluster's monitor may be about to leave the address. A monitor
/// reads its keys before it listens.
const REFUSALS_COUNT_AFTER: Duration = Duration::from_secs(1);
/// How long a monitor may take to grant a ticket before the request is repeated.
const TICKET_TIMEOUT: Duration = Duration::from_secs(2);
/// Delay before more is put into a queue that was full.
const FULL_QUEUE_DELAY: Duration = Duration::from_millis(20);
/// The shortest time between two requests for a ticket.
const LEAST_RENEWAL: Duration = Duration::from_millis(200);

/// Progress of the session.
#[derive(Debug, Clone)]
pub(super) enum Session {
    /// No ticket or no map yet.
    Connecting,
    /// There were a ticket and a map at least once. From then on the session is reconnected for as long as the client lives.
    Established,
    /// It will not be established.
    Failed(Error),
}

/// Why a connection to a monitor ended.
enum ConnectionEnd {
    /// Try the next one.
    Again(nacre_common::Error),
    /// The monitor refuses the key.
    Refused(String),
}

/// Keeps a session with one of the monitors for as long as the client lives.
pub(super) async fn run(shared: Arc<Shared>, messenger: Messenger, key: Arc<dyn CredentialProvider>) {
    let mount_timeout = shared.config.snapshot().client.client_mount_timeout;
    let give_up = Instant::now() + mount_timeout;
    let refusals_count_at = Instant::now() + REFUSALS_COUNT_AFTER.min(mount_timeout);
    let mut established = false;
    let mut delay = FIRST_DELAY;
    let mut last: Option<(SocketAddr, String)> = None;
    let mut at = 0_usize;
    loop {
        let hosts = shared.config.snapshot().global.mon_host.clone();
        let resolved = tokio::task::spawn_blocking(move || hosts.resolve()).await;
        let addrs = match resolved {
            Ok(Ok(addrs)) if !addrs.is_empty() => addrs,
            Ok(Err(error)) => {
                tracing::warn!(%error, "monitors' names can't be looked up");
                Vec::new()
            }
            _ => Vec::new(),
        };
        if let Some(addr) = addrs.get(at % addrs.len().max(1)).copied() {
            let mut up = false;
            match serve(&shared, &messenger, &key, addr, &mut up, give_up).await {
                ConnectionEnd::Refused(detail) => {
                    if !established && !up && Instant::now() >= refusals_count_at {
                        let detail =
                            format!("the monitor at {addr} refuses {}: {detail}", messenger.entity());
                        let failed = Error::Unreachable { errno: Errno::EACCES, detail };
                        shared.session.send_replace(Session::Failed(failed));
                        return;
                    }
                    if established || up {
                        tracing::error!(%addr, detail, "the monitor refuses our key");
                    }
                    last = Some((addr, detail));
                }
                ConnectionEnd::Again(error) => last = Some((addr, error.to_string())),
            }
            if up {
                established |= matches!(*shared.session.borrow(), Session::Established);
                delay = FIRST_DELAY;
            }
        }
        if !established && Instant::now() >= give_up {
            let tried = match last {
                Some((addr, reason)) => format!("no session with the monitor at {addr}: {reason}"),
                None => "no monitor's address could be looked up".to_owned(),
            };
            let detail =
                format!("{tried} (gave up after {} s; is the cluster running?)", mount_timeout.as_secs());
            shared
                .session
                .send_replace(Session::Failed(Error::Unreachable { errno: Errno::ETIMEDOUT, detail }));
            return;
        }
        sleep(delay).await;
        delay = (delay * 2).min(LONGEST_DELAY);
        at += 1;
    }
}

/// Runs one connection. Sets `up` once the monitor has accepted the key.
async fn serve(
    shared: &Arc<Shared>,
    messenger: &Messenger,
    key: &Arc<dyn CredentialProvider>,
    addr: SocketAddr,
    up: &mut bool,
    give_up: Instant,
) -> ConnectionEnd {
    let target =
        ConnectTarget { addr, entity: None, policy: Policy::Lossy, lane: 0, credentials: Arc::clone(key) };
    let conn = match messenger.connect(target) {
        Ok(conn) => conn,
        Err(error) => return ConnectionEnd::Again(error),
    };
    shared.mon_conn.store(conn.id(), Ordering::Relaxed);
    let mut lost = shared.mon_lost.subscribe();
    match timeout(HANDSHAKE_TIMEOUT, conn.ready()).await {
        Ok(Ok(())) => *up = true,
        Ok(Err(nacre_common::Error::Denied(detail))) => return ConnectionEnd::Refused(detail),
        Ok(Err(error)) => return ConnectionEnd::Again(error),
        Err(_) => {
            conn.abort();
            return ConnectionEnd::Again(nacre_common::Error::TimedOut("the handshake".into()));
        }
    }
    let unsent = {
        // Commands started from now on are sent by their callers. Earlier ones are sent here, after the session's own messages, because
        // they may fill the connection's queue.
        let mut state = shared.state.lock();
        state.ip = conn.local_ip().or(state.ip);
        state.mon = Some(conn.clone());
        request_ticket(shared, &conn, state.ticket.lock().as_ref());
        subscribe(&conn, state.objecter.map().map_or(Epoch(0), |map| map.epoch.next()));
        if let Some((follow, seen)) = &state.log {
            follow_log(&conn, follow, *seen);
        }
        let pending: Vec<u64> = state.mon_commands.keys().copied().collect();
        super::commands::send_again(&state, &conn, pending)
    };
    let id = conn.id();
    let error = tokio::select! {
        lost = lost.wait_for(|(lost, _)| *lost == id) => match lost {
            Ok(lost) => lost.1.clone(),
            Err(_) => nacre_common::Error::Closed,
        },
        error = keep_ticket(shared, &conn) => error,
        error = first_map(shared, give_up) => error,
        error = send_rest(shared, &conn, unsent) => error,
    };
    // Late messages must not mix with those of the next connection.
    conn.abort();
    ConnectionEnd::Again(error)
}

/// Ends a session that has received no map by `give_up`, if the client never had one.
async fn first_map(shared: &Shared, give_up: Instant) -> nacre_common::Error {
    sleep_until(give_up).await;
    if !matches!(*shared.session.borrow(), Session::Connecting) {
        return std::future::pending().await;
    }
    let who = shared.config.entity();
    nacre_common::Error::TimedOut(format!("a map for {who}, which may lack the capability mon 'allow r'"))
}

/// Sends the commands that did not fit into the connection's queue, as it drains.
async fn send_rest(shared: &Shared, conn: &Conn, mut unsent: Vec<u64>) -> nacre_common::Error {
    while !unsent.is_empty() {
        sleep(FULL_QUEUE_DELAY).await;
        unsent = super::commands::send_again(&shared.state.lock(), conn, unsent);
    }
    std::future::pending().await
}

/// Requests a new ticket in time, and when an OSD reports the current one as expired.
async fn keep_ticket(shared: &Shared, conn: &Conn) -> nacre_common::Error {
    loop {
        let due = *shared.renew_at.lock();
        let forced = tokio::select! {
            () = sleep_until(due.unwrap_or_else(|| Instant::now() + TICKET_TIMEOUT)) => false,
            () = shared.renew.notified() => true,
        };
        if !forced && due != *shared.renew_at.lock() {
            continue;
        }
        let sent = {
            let state = shared.state.lock();
            let ticket = state.ticket.lock();
            request_ticket(shared, conn, ticket.as_ref())
        };
        if !sent {
            return nacre_common::Error::Closed;
        }
        // A slow answer is requested again; one that arrived has set a later time.
        let _ = timeout(TICKET_TIMEOUT, shared.granted.notified()).await;
        sleep(LEAST_RENEWAL).await;
    }
}

fn now_unix() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Requests a ticket that replaces `old`. Returns whether the request could be sent.
fn request_ticket(shared: &Shared, conn: &Conn, old: Option<&Ticket>) -> bool {
    let request = AuthTicketRequest { tid: shared.now_ms(), renew: old.map(|ticket| ticket.blob.clone()) };
    conn.send(&request).is_ok()
}

/// Subscribes to maps from `next_epoch` on (0 for a full one) and to configuration.
pub(super) fn subscribe(conn: &Conn, next_epoch: Epoch) {
    if let Err(error) = conn.send(&MonSubscribe { next_epoch, config: true }) {
        // The end of the connection is reported separately.
        tracing::debug!(%error, "subscription not sent");
    }
}

/// Subscribes to the cluster log after the line `seen`, or from now on.
pub(super) fn follow_log(conn: &Conn, follow: &LogSubscription, seen: Option<u64>) {
    let LogSubscription { level, channel, .. } = follow;
    let wanted = LogSubscribe { level: level.clone(), channel: channel.clone(), after: seen };
    if let Err(error) = conn.send(&wanted) {
        // The end of the connection is reported separately, and the next one subscribes again.
        tracing::debug!(%error, "the cluster log is not followed yet");
    }
}

/// Uses a granted ticket from now on.
pub(super) fn install_ticket(shared: &Arc<Shared>, conn: &Conn, reply: AuthTicketReply) {
    if let Err(error) = granted(shared, reply) {
        tracing::error!(monitor = %conn.peer_addr(), %error, "the monitor grants no ticket");
        shared.session.send_if_modified(|session| {
            let first = matches!(session, Session::Connecting);
            if first {
                *session = Session::Failed(error);
            }
            first
        });
    }
}

fn granted(shared: &Arc<Shared>, reply: AuthTicketReply) -> Result<()> {
    let refused = |errno, detail| Error::Unreachable { errno, detail };
    if let Err(errno) = Errno::from_result(reply.code) {
        return Err(refused(errno, format!("no ticket: {}", reply.status)));
    }
    let Some(grant) = reply.ticket else {
        return Err(refused(Errno::EACCES, "no ticket: the monitor's answer holds none".into()));
    };
    let ticket = Ticket {
        entity: shared.config.entity().clone(),
        blob: grant.blob,
        session_key: grant.session_key,
        expires_unix: grant.expires_unix,
    };
    // At half of its life: the service keys outlive several tickets, so a slow monitor does no harm.
    let ttl = shared.config.snapshot().global.auth_service_ticket_ttl;
    let (life, expired_secs) = ticket::ticket_lifetime(ticket.expires_unix, now_unix(), ttl);
    if let Some(notice) = shared.clock_notices.lock().on_grant(std::time::Instant::now(), expired_secs) {
        tracing::warn!(target: NOTICE_TARGET, "{notice}");
    }
    *shared.renew_at.lock() = Some(Instant::now() + (life / 2).max(LEAST_RENEWAL));
    *shared.state.lock().ticket.lock() = Some(ticket);
    shared.granted.notify_one();
    let changed = shared.with_objecter(|objecter, sink| objecter.set_client(reply.client, sink));
    if changed {
        shared.lose_watches(&Errno::ENOTCONN.into());
    }
    Ok(())
}

impl Shared {
    /// Returns once the session is established for the first time, or has failed permanently.
    pub(super) async fn established(&self) -> Result<()> {
        let mut session = self.session.subscribe();
        let reached = session.wait_for(|s| matches!(s, Session::Established | Session::Failed(_))).await;
        match reached.as_deref() {
            Ok(Session::Failed(error)) => Err(error.clone()),
            Ok(_) => Ok(()),
            Err(_) => Err(Error::ShutDown),
        }
    }
}
