//! Tickets: statements of a monitor, sealed under service keys that rotate.
//!
//! Three service keys exist at a time: the previous one, whose tickets are still valid; the current one, which seals; and the
//! next one, which daemons get in advance, so that no ticket reaches a daemon before its key. A key is current for the lifetime
//! of a ticket, so when a key is dropped all of its tickets have expired.
//!
//! A sealed ticket is `version u8 | key id u64 le | nonce 24 bytes | XChaCha20-Poly1305 of the body`, with version and
//! key id authenticated too (docs/format/messenger.md).

use super::Caps;
use super::key::{SessionKey, random_bytes};
use crate::error::{Error, Result};
use arc_swap::ArcSwap;
use bytes::Bytes;
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use nacre_types::ids::{ClientId, EntityName};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;
use zeroize::Zeroizing;

const VERSION: u8 = 1;
const PREFIX_BYTES: usize = 9;
const NONCE_BYTES: usize = 24;
/// Maximum size of a ticket; a longer blob is refused without reading it.
pub(crate) const MAX_TICKET_BYTES: usize = 32 << 10;

/// The content of a ticket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TicketBody {
    /// The entity that may use it.
    pub entity: EntityName,
    /// The session's id.
    pub client: Option<ClientId>,
    /// The entity's capabilities.
    pub caps: Caps,
    /// When its validity begins, seconds since 1970.
    pub issued_unix: u64,
    /// When it expires, seconds since 1970.
    pub expires_unix: u64,
    /// The secret that its holder must prove.
    pub session_key: SessionKey,
}

/// A ticket as its holder has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ticket {
    /// Its holder.
    pub entity: EntityName,
    /// The sealed body, which services receive.
    pub blob: Bytes,
    /// The ticket's secret.
    pub session_key: SessionKey,
    /// When it expires, seconds since 1970.
    pub expires_unix: u64,
}

/// One generation of a service's key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceKey {
    /// Its number, which increases.
    pub id: u64,
    /// The secret.
    pub secret: SessionKey,
    /// When it starts to seal, seconds since 1970.
    pub valid_from_unix: u64,
}

impl ServiceKey {
    fn generate(id: u64, valid_from_unix: u64) -> Result<ServiceKey> {
        Ok(ServiceKey { id, secret: SessionKey::generate()?, valid_from_unix })
    }

    fn cipher(&self) -> XChaCha20Poly1305 {
        XChaCha20Poly1305::new((&self.secret.0).into())
    }

    fn prefix(&self) -> [u8; PREFIX_BYTES] {
        let mut prefix = [VERSION; PREFIX_BYTES];
        prefix[1..].copy_from_slice(&self.id.to_le_bytes());
        prefix
    }

    fn seal(&self, body: &TicketBody) -> Result<Bytes> {
        let plain = Zeroizing::new(
            postcard::to_extend(body, Vec::with_capacity(512))
                .expect("invariant: postcard into a Vec fails for unsized sequences only"),
        );
        let nonce: [u8; NONCE_BYTES] = random_bytes()?;
        let prefix = self.prefix();
        let sealed = self
            .cipher()
            .encrypt(XNonce::from_slice(&nonce), Payload { msg: &plain, aad: &prefix })
            .map_err(|_| Error::TooBig { bytes: plain.len() as u64, limit: MAX_TICKET_BYTES as u64 })?;
        let blob = [&prefix[..], &nonce, &sealed].concat();
        if blob.len() > MAX_TICKET_BYTES {
            return Err(Error::TooBig { bytes: blob.len() as u64, limit: MAX_TICKET_BYTES as u64 });
        }
        Ok(blob.into())
    }
}

/// Opens `blob` with the one of `keys` that sealed it.
fn unseal(keys: &[ServiceKey], blob: &[u8]) -> Result<TicketBody> {
    let corrupt = |detail: &str| Error::Corrupt { what: "ticket", detail: detail.to_owned() };
    if blob.len() > MAX_TICKET_BYTES {
        return Err(corrupt("too long"));
    }
    let (prefix, rest) = blob.split_at_checked(PREFIX_BYTES).ok_or_else(|| corrupt("cut short"))?;
    let (nonce, sealed) = rest.split_at_checked(NONCE_BYTES).ok_or_else(|| corrupt("cut short"))?;
    if prefix[0] != VERSION {
        return Err(corrupt("unknown version"));
    }
    let mut id = [0; 8];
    id.copy_from_slice(&prefix[1..]);
    let id = u64::from_le_bytes(id);
    let key = keys
        .iter()
        .find(|key| key.id == id)
        .ok_or_else(|| Error::Expired(format!("the ticket's service key {id} is not among those in use")))?;
    let plain = key
        .cipher()
        .decrypt(XNonce::from_slice(nonce), Payload { msg: sealed, aad: prefix })
        .map(Zeroizing::new)
        .map_err(|_| corrupt("not sealed with its service key"))?;
    match postcard::take_from_bytes::<TicketBody>(&plain) {
        Ok((body, [])) => Ok(body),
        _ => Err(corrupt("its body makes no sense")),
    }
}

/// The map authority's service keys: stored as a whole, rotated by [`RotatingSecrets::rotate`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RotatingSecrets {
    /// Previous, current, next.
    keys: [ServiceKey; 3],
}

impl RotatingSecrets {
    /// Creates keys, the second of which is current from `now_unix` on for `ttl_secs`.
    pub fn generate(now_unix: u64, ttl_secs: u64) -> Result<RotatingSecrets> {
        Ok(RotatingSecrets {
            keys: [
                ServiceKey::generate(1, now_unix.saturating_sub(ttl_secs))?,
                ServiceKey::generate(2, now_unix)?,
                ServiceKey::generate(3, now_unix.saturating_add(ttl_secs))?,
            ],
        })
    }

    /// Rotates the keys if the next key is due at `now_unix`. Returns whether they changed; then they must be stored and sent
    /// to daemons before the next ticket is sealed.
    pub fn rotate(&mut self, now_unix: u64, ttl_secs: u64) -> Result<bool> {
        let next = &self.keys[2];
        if now_unix < next.valid_from_unix {
            return Ok(false);
        }
        // After a long downtime no daemon has a valid ticket: one step that starts at the present time suffices.
        let start = if now_unix - next.valid_from_unix < ttl_secs { next.valid_from_unix } else { now_unix };
        let following = ServiceKey::generate(next.id + 1, start.saturating_add(ttl_secs))?;
        self.keys.rotate_left(1);
        self.keys[1].valid_from_unix = start;
        self.keys[2] = following;
        Ok(true)
    }

    /// The keys with which daemons open tickets.
    pub fn keys(&self) -> &[ServiceKey] {
        &self.keys
    }

    /// Seals a ticket with the current key.
    pub fn seal(&self, body: TicketBody) -> Result<Ticket> {
        let blob = self.keys[1].seal(&body)?;
        Ok(Ticket {
            entity: body.entity.clone(),
            blob,
            session_key: body.session_key.clone(),
            expires_unix: body.expires_unix,
        })
    }

    /// Opens a ticket regardless of its expiry, for renewals, which keep the session's id.
    pub fn open_expired(&self, blob: &[u8]) -> Result<TicketBody> {
        unseal(&self.keys, blob)
    }
}

/// The difference between a service's clock and the monitor's: `7200 s ahead of`, `30 s behind`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockSkew {
    /// Seconds.
    pub secs: u64,
    /// Whether the service's clock is ahead.
    pub ahead: bool,
}

impl fmt::Display for ClockSkew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} s {}", self.secs, if self.ahead { "ahead of" } else { "behind" })
    }
}

/// A daemon's copy of its service's keys, replaced as a whole when the monitors send new ones.
#[derive(Debug, Default)]
pub struct RotatingKeyring {
    keys: ArcSwap<Vec<ServiceKey>>,
    skew_secs: u64,
}

impl RotatingKeyring {
    /// Creates a set without keys, which refuses every ticket. Clocks may differ by `skew_secs`.
    pub fn new(skew_secs: u64) -> RotatingKeyring {
        RotatingKeyring { keys: ArcSwap::default(), skew_secs }
    }

    /// Replaces the keys.
    pub fn update(&self, keys: Vec<ServiceKey>) {
        self.keys.store(Arc::new(keys));
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.keys.load().is_empty()
    }

    /// When a ticket that expires at `expires_unix` is no longer accepted, seconds since 1970.
    pub(super) fn accepted_until(&self, expires_unix: u64) -> u64 {
        expires_unix.saturating_add(self.skew_secs)
    }

    /// Opens a ticket that is valid at `now_unix`, seconds since 1970.
    pub fn unseal(&self, blob: &[u8], now_unix: u64) -> Result<TicketBody> {
        let body = unseal(&self.keys.load(), blob)?;
        let TicketBody { entity, issued_unix, expires_unix, .. } = &body;
        if now_unix > self.accepted_until(*expires_unix) {
            // The ticket is old, or this clock is ahead; its holder knows when it was granted.
            return Err(Error::Expired(format!(
                "by the clock of this service the ticket of {entity} was issued {0} s ago and expired {1} s ago; if the \
                 monitor has just issued it, their clocks differ by {0} s",
                now_unix.saturating_sub(*issued_unix),
                now_unix - expires_unix
            )));
        }
        if now_unix.saturating_add(self.skew_secs) < *issued_unix {
            return Err(Error::Expired(format!(
                "the clocks of the monitor and of this service differ by {} s, auth_clock_skew allows {} s: the ticket of \
                 {entity} is from the future",
                issued_unix - now_unix,
                self.skew_secs
            )));
        }
        Ok(body)
    }

    /// Opens a ticket regardless of the time, for one that the monitor has just granted to this service itself.
    pub fn open_ignoring_time(&self, blob: &[u8]) -> Result<TicketBody> {
        unseal(&self.keys.load(), blob)
    }

    /// The difference between this service's clock, at `now_unix`, and that of the monitor, which has just issued `ticket`.
    /// `None` if it is within the limit.
    pub fn excess_clock_skew(&self, ticket: &TicketBody, now_unix: u64) -> Option<ClockSkew> {
        let (secs, ahead) = match now_unix.checked_sub(ticket.issued_unix) {
            Some(secs) => (secs, true),
            None => (ticket.issued_unix - now_unix, false),
        };
        (secs > self.skew_secs).then_some(ClockSkew { secs, ahead })
    }
}
