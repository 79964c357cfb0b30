//! Authentication: keys and keyrings, tickets under rotating service keys, and the mutual handshake.
//!
//! Every connection starts with a Noise handshake (`NNpsk0`, X25519, ChaChaPoly, SHA-256) that both sides can finish only with
//! the same pre-shared secret. There are two kinds of credentials:
//!
//! - a *key*: the entity's name is sent in clear, and the secret comes from its keyring entry. Used towards the monitors, which
//!   look the key up ([`KeyServer`]).
//! - a *ticket*: a blob that a monitor sealed with a service key that all daemons of a kind have ([`RotatingKeyring`]). It contains
//!   the entity, its caps, an expiry and the session key that is the secret. Used towards OSDs.
//!
//! Secrets are wiped from memory when dropped, and print as `Key(…)`. The crate implements no cryptography itself: `snow` for
//! the handshake, `chacha20poly1305` to seal tickets, `sha2` to derive a pre-shared key from a keyring secret.

pub mod handshake;
mod key;
mod keyring;
mod messages;
mod ticket;

pub use key::random_bytes;
pub use key::{Key, SessionKey};
pub use keyring::{ConfiguredKey, Keyring, KeyringEntry, find_key};
pub use messages::{AuthTicketReply, AuthTicketRequest, RotatingKeys, TicketGrant};
pub use ticket::{ClockSkew, RotatingKeyring, RotatingSecrets, ServiceKey, Ticket, TicketBody};

use crate::error::{Error, Result};
use nacre_types::ids::{ClientId, EntityName};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Capabilities by service, as in keyrings: `mon` → `allow r`. The services define their meaning.
pub type Caps = BTreeMap<String, String>;

/// The credential of a connecting side.
#[derive(Debug, Clone)]
pub enum Credential {
    /// The entity's own key.
    Key {
        /// The connecting entity.
        entity: EntityName,
        /// Its secret.
        key: Key,
    },
    /// A ticket from a monitor.
    Ticket(Ticket),
}

/// Provides a connection's credential each time it connects.
pub trait CredentialProvider: Send + Sync + 'static {
    /// Returns the current credential. Must not block.
    fn credential(&self) -> Result<Credential>;
}

impl CredentialProvider for Credential {
    fn credential(&self) -> Result<Credential> {
        Ok(self.clone())
    }
}

impl<F: Fn() -> Result<Credential> + Send + Sync + 'static> CredentialProvider for F {
    fn credential(&self) -> Result<Credential> {
        self()
    }
}

/// An entity's key and caps in the map authority.
#[derive(Debug, Clone)]
pub struct KeyRecord {
    /// The secret.
    pub key: Key,
    /// The entity's capabilities.
    pub caps: Caps,
}

/// The map authority's side of key credentials.
pub trait KeyServer: Send + Sync + 'static {
    /// Returns the record of `entity`, or `None` if it is unknown. Must not block.
    fn lookup(&self, entity: &EntityName) -> Option<KeyRecord>;
}

impl KeyServer for Keyring {
    fn lookup(&self, entity: &EntityName) -> Option<KeyRecord> {
        self.get(entity).map(|entry| KeyRecord { key: entry.key.clone(), caps: entry.caps.clone() })
    }
}

/// An authenticated peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// The peer's entity.
    pub entity: EntityName,
    /// Its session id, if it authenticated with a ticket.
    pub client: Option<ClientId>,
    /// Its capabilities; empty on the connecting side, which does not receive them.
    pub caps: Caps,
    /// Identifies its process.
    pub nonce: u64,
    /// Identifies the key that it used ([`Key::fingerprint`]); 0 for a ticket.
    pub key_fingerprint: u64,
    /// When its ticket, and with it the connection, expires: seconds since 1970. `None` for a key.
    pub expires_unix: Option<u64>,
}

/// Verifies credentials on the accepting side.
#[derive(Clone, Default)]
pub struct Verifier {
    keys: Option<Arc<dyn KeyServer>>,
    tickets: Option<Arc<RotatingKeyring>>,
}

impl Verifier {
    /// Creates a verifier that refuses all credentials.
    pub fn new() -> Verifier {
        Verifier::default()
    }

    /// Accepts key credentials that `server` knows (monitors).
    pub fn with_keys(mut self, server: Arc<dyn KeyServer>) -> Verifier {
        self.keys = Some(server);
        self
    }

    /// Accepts tickets sealed under `keys` (OSDs).
    pub fn with_tickets(mut self, keys: Arc<RotatingKeyring>) -> Verifier {
        self.tickets = Some(keys);
        self
    }

    /// Returns the peer that `claim` names and the secret that it must prove, at `now` seconds since 1970.
    fn verify(&self, claim: &handshake::ClaimedIdentity, now_unix: u64) -> Result<(Peer, SessionKey)> {
        match claim {
            handshake::ClaimedIdentity::Key(entity) => {
                let server = self
                    .keys
                    .as_ref()
                    .ok_or_else(|| Error::Denied("keys are not taken here: this is not a monitor".into()))?;
                // The same answer for an unknown entity and a wrong key, so that it does not reveal which entities exist.
                let record =
                    server.lookup(entity).ok_or_else(|| Error::Denied(handshake::wrong_key_text(entity)))?;
                let peer = Peer {
                    entity: entity.clone(),
                    client: None,
                    caps: record.caps,
                    nonce: 0,
                    key_fingerprint: record.key.fingerprint(),
                    expires_unix: None,
                };
                Ok((peer, record.key.handshake_psk()))
            }
            handshake::ClaimedIdentity::Ticket(blob) => {
                let keys = self
                    .tickets
                    .as_ref()
                    .ok_or_else(|| Error::Denied("tickets are not taken here".into()))?;
                let body = keys.unseal(blob, now_unix)?;
                let peer = Peer {
                    entity: body.entity,
                    client: body.client,
                    caps: body.caps,
                    nonce: 0,
                    key_fingerprint: 0,
                    expires_unix: Some(keys.accepted_until(body.expires_unix)),
                };
                Ok((peer, body.session_key))
            }
        }
    }
}

#[cfg(test)]
mod tests;
