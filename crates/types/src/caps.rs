//! Capabilities: what an entity may do, in Ceph's grammar.
//!
//! An entity has one text per service. [`osd`] and [`mon`] parse theirs and make decisions with them. Texts for services that
//! do not exist in Nacre (`mgr`, `mds`) are only checked ([`validate`]), so that the texts of Ceph's tools are accepted or refused
//! as by Ceph. The reference is recordings of a real cluster's answers: `tests/recordings/caps-*.json`.
//!
//! The grammars are Ceph's. Alternatives are tried in Ceph's order, without backtracking over a longer match: an error reports
//! where parsing stopped, and users see that position. A text that does not parse grants nothing.

mod mgr_mds;
pub mod mon;
pub(crate) mod network;
pub mod osd;
mod scan;

use scan::Scan;

/// Maximum length of a text: parsed caps are kept for every session.
pub const MAX_CAPS_BYTES: usize = 16 << 10;

/// Why a capability text was refused, in Ceph's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CapsError {
    /// The text does not match the service's grammar.
    #[error("{service} capability parse failed, stopped at {} of '{whole}'", quoted(.rest))]
    Syntax {
        /// The service.
        service: &'static str,
        /// The text from which on it does not match; `None` for its end, as the monitor's grammar reports it.
        rest: Option<String>,
        /// The text.
        whole: String,
    },
    /// A profile that the manager does not have, or invalid arguments of one.
    #[error("mgr capability parse failed during profile evaluation: {0}")]
    Profile(String),
    /// The service does not exist.
    #[error("unknown cap type '{0}'")]
    UnknownService(String),
    /// The text is longer than [`MAX_CAPS_BYTES`].
    #[error("{0} capability is longer than {MAX_CAPS_BYTES} bytes")]
    TooLong(String),
}

fn quoted(rest: &Option<String>) -> String {
    rest.as_ref().map_or_else(|| "end".into(), |rest| format!("'{rest}'"))
}

/// Whether `text` is a capability of `service`.
pub fn validate(service: &str, text: &str) -> Result<(), CapsError> {
    match service {
        "mon" => mon::MonCaps::parse(text).map(drop),
        "osd" => osd::OsdCaps::parse(text).map(drop),
        "mgr" => mgr_mds::check_mgr(text),
        "mds" => mgr_mds::check_mds(text),
        other => Err(CapsError::UnknownService(other.to_owned())),
    }
}

/// Parses a whole text. `separator` matches between grants and `blanks` around all of them.
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
        if scan.is_at_end() {
            return Ok(grants);
        }
    }
    let at_end = service != "osd" && service != "mds" && scan.is_at_end();
    let rest = (!at_end).then(|| scan.rest().to_owned());
    Err(CapsError::Syntax { service, rest, whole: text.to_owned() })
}

/// Parses `network NET` at the end of a grant.
fn network(scan: &mut Scan<'_>) -> Option<network::Network> {
    scan.attempt(|scan| {
        scan.spaces()?;
        scan.literal("network")?;
        scan.spaces()?;
        Some(network::Network::parse(scan.take_while1(|c| c.is_ascii_hexdigit() || "/.:[]".contains(c))?))
    })
}

#[cfg(test)]
mod tests;
