//! The mutual handshake, as a state machine without I/O.
//!
//! ```text
//! initiator                                     responder
//!   banner                       ⇄                banner
//!   Hello (claim, modes, target) →
//!   Noise 1 (psk, e)             →                looks the secret up
//!                                ←                Noise 2 (e, ee; entity, process, mode)
//!   Confirm (sealed: process, session)  →         the first change of state on this side
//!                                ←                Ready (sealed: outcome, position)
//! ```
//!
//! Both banners and the Hello are the Noise prologue: any alteration in transit (to a weaker mode or another version) makes the
//! handshake fail. A replayed Hello and Noise 1 get no further than Noise 2, because the Confirm needs the initiator's
//! ephemeral key. Formats: docs/format/messenger.md.

use super::{Credential, Peer, Verifier};
use crate::error::{Error, Result};
use crate::options::kinds::ConnMode;
use bytes::Bytes;
use nacre_types::ids::EntityName;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use snow::{HandshakeState, StatelessTransportState};

const NOISE: &str = "Noise_NNpsk0_25519_ChaChaPoly_SHA256";
/// Maximum size of a handshake record. A ticket with its caps fits.
pub const MAX_RECORD_BYTES: usize = 48 << 10;
/// Bytes that Noise adds to a sealed record.
const TAG_BYTES: usize = 16;

/// Size of a banner in bytes.
pub const BANNER_BYTES: usize = 16;
const MAGIC: [u8; 8] = *b"nacremsg";
/// The oldest and newest protocol version that this build supports.
const VERSIONS: (u16, u16) = (1, 1);

/// Returns the first bytes of each side: magic, oldest and newest supported version (u16 le each), 4 reserved bytes.
pub fn banner() -> [u8; BANNER_BYTES] {
    let mut banner = [0; BANNER_BYTES];
    banner[..8].copy_from_slice(&MAGIC);
    banner[8..10].copy_from_slice(&VERSIONS.0.to_le_bytes());
    banner[10..12].copy_from_slice(&VERSIONS.1.to_le_bytes());
    banner
}

/// Checks the other side's banner. The error describes what the other side speaks instead.
pub fn check_banner(banner: &[u8; BANNER_BYTES]) -> Result<u16, String> {
    if banner[..8] != MAGIC {
        return Err(if banner.starts_with(b"ceph v") {
            "is a Ceph daemon; Nacre speaks a protocol of its own on the wire".to_owned()
        } else {
            "does not speak Nacre's messenger protocol".to_owned()
        });
    }
    let oldest = u16::from_le_bytes([banner[8], banner[9]]);
    let newest = u16::from_le_bytes([banner[10], banner[11]]);
    let version = newest.min(VERSIONS.1);
    if version < oldest.max(VERSIONS.0) {
        return Err(format!(
            "speaks messenger versions {oldest} to {newest}, this release {} to {}: upgrade the older one",
            VERSIONS.0, VERSIONS.1
        ));
    }
    Ok(version)
}

/// The identity that a connecting side claims. The handshake proves it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ClaimedIdentity {
    /// The entity, by its key.
    Key(EntityName),
    /// The entity that the ticket names.
    Ticket(Bytes),
}

#[derive(Debug, Serialize, Deserialize)]
struct Hello {
    claim: ClaimedIdentity,
    /// Connection modes by preference: 1 crc, 2 secure.
    modes: Vec<u8>,
    /// The entity that the connecting side expects to reach.
    target: Option<EntityName>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Welcome {
    entity: EntityName,
    nonce: u64,
    mode: u8,
}

/// A refusal on the wire.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AuthRefusal {
    /// Whether a new ticket would help.
    pub expired: bool,
    /// The reason.
    pub text: String,
}

impl AuthRefusal {
    /// Returns the refusal that the other side receives for `error`.
    pub fn of(error: &Error) -> AuthRefusal {
        match error {
            Error::Expired(text) => AuthRefusal { expired: true, text: text.clone() },
            Error::Denied(text) => AuthRefusal { expired: false, text: text.clone() },
            other => AuthRefusal { expired: false, text: other.to_string() },
        }
    }

    /// Converts to the error on the refused side.
    pub fn into_error(self) -> Error {
        if self.expired { Error::Expired(self.text) } else { Error::Denied(self.text) }
    }
}

pub(super) fn wrong_key_text(entity: &EntityName) -> String {
    format!("{entity} is unknown or its key does not match")
}

fn mode_number(mode: ConnMode) -> u8 {
    match mode {
        ConnMode::Crc => 1,
        ConnMode::Secure => 2,
    }
}

fn mode_of(number: u8) -> Option<ConnMode> {
    match number {
        1 => Some(ConnMode::Crc),
        2 => Some(ConnMode::Secure),
        _ => None,
    }
}

/// Encodes a record's body.
pub fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    postcard::to_extend(value, Vec::with_capacity(128))
        .expect("invariant: postcard into a Vec fails for unsized sequences only")
}

/// Decodes a record's body, which must fill `bytes`.
pub fn decode<T: DeserializeOwned>(what: &'static str, bytes: &[u8]) -> Result<T> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        Ok(_) => Err(Error::Corrupt { what, detail: "bytes left over".into() }),
        Err(e) => Err(Error::Corrupt { what, detail: e.to_string() }),
    }
}

fn noise_error(what: &'static str) -> impl Fn(snow::Error) -> Error {
    move |e| Error::Corrupt { what, detail: e.to_string() }
}

fn builder(prologue: &[u8]) -> Result<snow::Builder<'_>> {
    let params = NOISE.parse().map_err(noise_error("noise parameters"))?;
    snow::Builder::new(params).prologue(prologue).map_err(noise_error("noise prologue"))
}

/// The keys after the handshake.
pub struct TransportKeys {
    state: StatelessTransportState,
    /// The protection of the messages.
    pub mode: ConnMode,
}

impl TransportKeys {
    /// Seals `plain` as record number `nonce` of this direction, appending to `out`.
    pub fn seal(&self, nonce: u64, plain: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let start = out.len();
        out.resize(start + plain.len() + TAG_BYTES, 0);
        let written = self
            .state
            .write_message(nonce, plain, &mut out[start..])
            .map_err(noise_error("sealed record"))?;
        out.truncate(start + written);
        Ok(())
    }

    /// Opens record number `nonce` of the other direction into `out`. Returns the plain length.
    pub fn open(&self, nonce: u64, sealed: &[u8], out: &mut [u8]) -> Result<usize> {
        self.state.read_message(nonce, sealed, out).map_err(noise_error("sealed record"))
    }

    /// Opens a short record.
    pub fn open_vec(&self, nonce: u64, sealed: &[u8]) -> Result<Vec<u8>> {
        let mut out = vec![0; sealed.len()];
        let length = self.open(nonce, sealed, &mut out)?;
        out.truncate(length);
        Ok(out)
    }
}

/// The connecting side, after its first two records.
pub struct Initiator {
    noise: HandshakeState,
    claimed: EntityName,
    modes: Vec<ConnMode>,
}

impl Initiator {
    /// Creates the Hello and Noise 1 records. With a key credential only `secure` is offered.
    pub fn start(
        credential: &Credential,
        modes: &[ConnMode],
        target: Option<&EntityName>,
        banners: [&[u8; BANNER_BYTES]; 2],
    ) -> Result<(Initiator, Vec<u8>, Vec<u8>)> {
        let (claim, claimed, psk, modes) = match credential {
            Credential::Key { entity, key } => {
                (ClaimedIdentity::Key(entity.clone()), entity, key.handshake_psk(), vec![ConnMode::Secure])
            }
            Credential::Ticket(ticket) => (
                ClaimedIdentity::Ticket(ticket.blob.clone()),
                &ticket.entity,
                ticket.session_key.clone(),
                modes.to_vec(),
            ),
        };
        let hello = encode(&Hello {
            claim,
            modes: modes.iter().copied().map(mode_number).collect(),
            target: target.cloned(),
        });
        if hello.len() > MAX_RECORD_BYTES {
            return Err(Error::TooBig { bytes: hello.len() as u64, limit: MAX_RECORD_BYTES as u64 });
        }
        let prologue = [&banners[0][..], banners[1], &hello].concat();
        let mut noise = builder(&prologue)?
            .psk(0, &psk.0)
            .and_then(snow::Builder::build_initiator)
            .map_err(noise_error("noise state"))?;
        let mut first = vec![0; 128];
        let length = noise.write_message(&[], &mut first).map_err(noise_error("noise message 1"))?;
        first.truncate(length);
        Ok((Initiator { noise, claimed: claimed.clone(), modes }, hello, first))
    }

    /// Handles Noise 2, which proves that the other side knows the secret.
    pub fn finish(mut self, second: &[u8]) -> Result<(TransportKeys, Peer)> {
        let mut plain = vec![0; second.len()];
        let length = self
            .noise
            .read_message(second, &mut plain)
            .map_err(|_| Error::Denied(format!("the other side can't prove the key of {}", self.claimed)))?;
        let welcome: Welcome = decode("handshake", &plain[..length])?;
        let mode = mode_of(welcome.mode)
            .filter(|mode| self.modes.contains(mode))
            .ok_or_else(|| Error::Denied("the other side chose a mode that was not offered".into()))?;
        let state = self.noise.into_stateless_transport_mode().map_err(noise_error("noise state"))?;
        let peer = Peer {
            entity: welcome.entity,
            client: None,
            caps: Default::default(),
            nonce: welcome.nonce,
            key_fingerprint: 0,
            expires_unix: None,
        };
        Ok((TransportKeys { state, mode }, peer))
    }
}

/// The identity that a Hello claims, for logs. It is unproven; control characters are removed.
pub fn claimed_name(hello: &[u8]) -> String {
    match decode::<Hello>("handshake", hello) {
        Ok(Hello { claim: ClaimedIdentity::Key(entity), .. }) => {
            entity.to_string().chars().filter(|c| !c.is_control()).take(64).collect()
        }
        Ok(Hello { claim: ClaimedIdentity::Ticket(_), .. }) => "(ticket)".to_owned(),
        Err(_) => "(unreadable)".to_owned(),
    }
}

/// The identity of the accepting side.
#[derive(Debug, Clone)]
pub struct ServerIdentity {
    /// Its entity.
    pub entity: EntityName,
    /// Identifies its process.
    pub nonce: u64,
}

/// The accepting side: answers Hello and Noise 1 with Noise 2. `modes` returns the modes allowed for a peer. The peer is
/// authenticated once it has sent a record that [`TransportKeys::open`] accepts.
pub fn respond(
    verifier: &Verifier,
    me: &ServerIdentity,
    modes: impl FnOnce(&EntityName) -> Vec<ConnMode>,
    banners: [&[u8; BANNER_BYTES]; 2],
    hello_record: &[u8],
    first: &[u8],
    now_unix: u64,
) -> Result<(TransportKeys, Peer, Vec<u8>)> {
    let hello: Hello = decode("handshake", hello_record)?;
    let (peer, psk) = verifier.verify(&hello.claim, now_unix)?;
    let prologue = [&banners[0][..], banners[1], hello_record].concat();
    let mut noise = builder(&prologue)?
        .psk(0, &psk.0)
        .and_then(snow::Builder::build_responder)
        .map_err(noise_error("noise state"))?;
    let mut rest = vec![0; first.len()];
    noise.read_message(first, &mut rest).map_err(|_| Error::Denied(wrong_key_text(&peer.entity)))?;
    if let Some(target) = &hello.target
        && *target != me.entity
    {
        return Err(Error::Denied(format!("{target} was wanted, but this is {}", me.entity)));
    }
    let allowed = match hello.claim {
        ClaimedIdentity::Key(_) => vec![ConnMode::Secure],
        ClaimedIdentity::Ticket(_) => modes(&peer.entity),
    };
    let mode = hello
        .modes
        .iter()
        .filter_map(|number| mode_of(*number))
        .find(|mode| allowed.contains(mode))
        .ok_or_else(|| Error::Denied("no connection mode is allowed on both sides".into()))?;
    let welcome = encode(&Welcome { entity: me.entity.clone(), nonce: me.nonce, mode: mode_number(mode) });
    let mut second = vec![0; welcome.len() + 128];
    let length = noise.write_message(&welcome, &mut second).map_err(noise_error("noise message 2"))?;
    second.truncate(length);
    let state = noise.into_stateless_transport_mode().map_err(noise_error("noise state"))?;
    Ok((TransportKeys { state, mode }, peer, second))
}
