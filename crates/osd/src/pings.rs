//! Connections to other OSDs for heartbeats: one lossy connection per peer process, made on first use.

use crate::control::TicketCredentials;
use nacre_common::auth::Credentials;
use nacre_pg::heartbeat::HbEnvelope;
use nacre_runtime::msgr::{Conn, Messenger, Policy, Target};
use nacre_types::ids::{EntityName, OsdId};
use nacre_types::osdmap::OsdMap;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// The peer process of a heartbeat connection: the connection's context.
pub(crate) struct Pinged {
    pub(crate) osd: OsdId,
    pub(crate) boot_nonce: u64,
}

/// See the module's documentation.
pub(crate) struct PingLinks {
    messenger: Mutex<Option<Messenger>>,
    credentials: Arc<TicketCredentials>,
    conns: Mutex<HashMap<OsdId, (u64, Conn)>>,
}

impl PingLinks {
    /// No connections yet; they authenticate by `credentials`.
    pub(crate) fn new(credentials: Arc<TicketCredentials>) -> PingLinks {
        PingLinks { messenger: Mutex::default(), credentials, conns: Mutex::default() }
    }

    /// Gives the messenger to connect with, before anything else.
    pub(crate) fn set_messenger(&self, messenger: Messenger) {
        *self.messenger.lock() = Some(messenger);
    }

    /// Forgets messenger and connections: they hold on to what holds this.
    pub(crate) fn close(&self) {
        self.messenger.lock().take();
        self.conns.lock().clear();
    }

    /// Sends to the process of `to` that `map` shows.
    pub(crate) fn ping(&self, map: &OsdMap, to: OsdId, message: &HbEnvelope) {
        let shown = map.osds.get(&to).filter(|info| info.up);
        let Some((nonce, addr)) = shown.and_then(|info| Some((info.boot_nonce, info.addr?))) else { return };
        let mut conns = self.conns.lock();
        let usable = conns.get(&to).filter(|(of, conn)| *of == nonce && !conn.is_over());
        let conn = match usable {
            Some((_, conn)) => conn.clone(),
            None => {
                let Some(messenger) = self.messenger.lock().clone() else { return };
                let credentials = Arc::clone(&self.credentials) as Arc<dyn Credentials>;
                let entity = Some(EntityName::osd(to));
                let target = Target { addr, entity, policy: Policy::Lossy, lane: 0, credentials };
                match messenger.connect(target) {
                    Ok(conn) => {
                        conn.set_context(Arc::new(Pinged { osd: to, boot_nonce: nonce }));
                        conns.insert(to, (nonce, conn.clone()));
                        conn
                    }
                    Err(error) => return tracing::debug!(%to, %error, "can't ping"),
                }
            }
        };
        drop(conns);
        if let Err(error) = conn.send(message) {
            tracing::debug!(%to, %error, "can't ping");
        }
    }

    /// Follows the map: connections to processes that it no longer shows are closed.
    pub(crate) fn on_map(&self, map: &OsdMap) {
        self.conns.lock().retain(|osd, (nonce, conn)| {
            let keep = map.osds.get(osd).is_some_and(|info| info.up && info.boot_nonce == *nonce);
            if !keep {
                conn.abort();
            }
            keep
        });
    }

    /// Forgets a connection that is over.
    pub(crate) fn forget(&self, osd: OsdId, conn: &Conn) {
        let mut conns = self.conns.lock();
        if conns.get(&osd).is_some_and(|(_, of)| of == conn) {
            conns.remove(&osd);
        }
    }
}
