//! Capabilities: what an entity may do, in Ceph's grammar.
//!
//! An entity has one text per service. [`osd`] and [`mon`] read theirs and decide by them; those for services that do
//! not exist here (`mgr`, `mds`) are only checked ([`check`]), so that what Ceph's tools write is taken or refused as
//! Ceph does. Recordings of a real cluster's answers say what is right: `tests/recordings/caps-*.json`.
//!
//! The grammars are Ceph's, alternatives in its order and without going back over a longer one that matched: an error
//! tells where the reading stopped, and that place is part of what users see. A text that does not parse grants
//! nothing.

mod foreign;
pub mod mon;
pub(crate) mod network;
pub mod osd;
mod scan;

use scan::Scan;

/// A longer text is refused: parsed caps are kept for every session.
pub const MAX_CAPS_BYTES: usize = 16 << 10;

/// Why a capability text was refused, in Ceph's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CapsError {
    /// It is not in the service's grammar.
    #[error("{service} capability parse failed, stopped at {} of '{whole}'", quoted(.rest))]
    Syntax {
        /// The service.
        service: &'static str,
        /// From where on it makes no sense; `None` for its end, as the monitor's grammar tells it.
        rest: Option<String>,
        /// The text.
        whole: String,
    },
    /// A profile that the manager does not have, or with what it does not take.
    #[error("mgr capability parse failed during profile evaluation: {0}")]
    Profile(String),
    /// No such service.
    #[error("unknown cap type '{0}'")]
    UnknownService(String),
    /// More than [`MAX_CAPS_BYTES`].
    #[error("{0} capability is longer than {MAX_CAPS_BYTES} bytes")]
    TooLong(String),
}

fn quoted(rest: &Option<String>) -> String {
    rest.as_ref().map_or_else(|| "end".into(), |rest| format!("'{rest}'"))
}

/// Whether `text` is a capability of `service`.
pub fn check(service: &str, text: &str) -> Result<(), CapsError> {
    match service {
        "mon" => mon::MonCaps::parse(text).map(drop),
        "osd" => osd::OsdCaps::parse(text).map(drop),
        "mgr" => foreign::check_mgr(text),
        "mds" => foreign::check_mds(text),
        other => Err(CapsError::UnknownService(other.to_owned())),
    }
}

/// Reads a whole text: grants separated as `separator` says, blanks around all of them as `blanks` says.
fn parse_grants<T>(
    service: &'static str,
    text: &str,
    blanks: fn(&mut Scan<'_>),
    separator: fn(&mut Scan<'_>) -> Option<()>,
    grant: fn(&mut Scan<'_>) -> Option<T>,
) -> Result<Vec<T>, CapsError> {
    if text.len() > MAX_CAPS_BYTES {
        return Err(CapsError::TooLong(service.to_owned()));
    }
    let mut scan = Scan::new(text);
    blanks(&mut scan);
    let mut grants = Vec::new();
    if let Some(first) = scan.attempt(grant) {
        grants.push(first);
        while let Some(next) = scan.attempt(|scan| separator(scan).and_then(|()| grant(scan))) {
            grants.push(next);
        }
        blanks(&mut scan);
        if scan.is_over() {
            return Ok(grants);
        }
    }
    let at_end = service != "osd" && service != "mds" && scan.is_over();
    let rest = (!at_end).then(|| scan.rest().to_owned());
    Err(CapsError::Syntax { service, rest, whole: text.to_owned() })
}

/// `network NET` at a grant's end.
fn network(scan: &mut Scan<'_>) -> Option<network::Network> {
    scan.attempt(|scan| {
        scan.spaces()?;
        scan.word("network")?;
        scan.spaces()?;
        Some(network::Network::parse(scan.run(|c| c.is_ascii_hexdigit() || "/.:[]".contains(c))?))
    })
}

#[cfg(test)]
mod tests;
