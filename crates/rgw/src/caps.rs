//! Users' capabilities for administration: which kinds of resources they may read or change with the admin API, in radosgw's
//! notation (`users=read, write;buckets=*`). This module is pure.

use crate::error::{Error, Result};

/// The capability for the notification topics of all users: to read them, or to change them and publish to them.
pub const TOPICS: &str = "topics";

/// The kinds of resources that have capabilities, with radosgw's names.
const KINDS: [&str; 19] = [
    "user",
    "users",
    "buckets",
    "metadata",
    "info",
    "usage",
    "zone",
    "bilog",
    "mdlog",
    "datalog",
    "roles",
    "user-policy",
    "amz-cache",
    "oidc-provider",
    "user-info-without-keys",
    "ratelimit",
    "accounts",
    "opstate",
    // Notification topics of all users; this kind is specific to Nacre.
    TOPICS,
];

/// The access to a kind of resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Perm {
    /// Whether resources may be read.
    pub read: bool,
    /// Whether resources may be changed.
    pub write: bool,
}

impl Perm {
    /// Read access.
    pub const READ: Perm = Perm { read: true, write: false };
    /// Write access.
    pub const WRITE: Perm = Perm { read: false, write: true };

    fn parse(text: &str) -> Option<Perm> {
        let mut perm = Perm::default();
        for word in text.split([',', ' ']).filter(|word| !word.is_empty()) {
            match word {
                "*" => perm = Perm { read: true, write: true },
                "read" => perm.read = true,
                "write" => perm.write = true,
                _ => return None,
            }
        }
        Some(perm)
    }

    fn text(self) -> Option<&'static str> {
        match (self.read, self.write) {
            (true, true) => Some("*"),
            (true, false) => Some("read"),
            (false, true) => Some("write"),
            (false, false) => None,
        }
    }

    fn covers(self, wanted: Perm) -> bool {
        (self.read || !wanted.read) && (self.write || !wanted.write)
    }
}

/// Capabilities as they are stored: kind and permission.
pub type Caps = Vec<(String, String)>;

/// Parses capabilities, such as `users=read, write;buckets=*`.
pub fn parse(text: &str) -> Result<Vec<(String, Perm)>> {
    let wrong =
        |part: &str| Error::Invalid(format!("'{part}' is not a capability: KIND=read, write or KIND=*"));
    let mut caps = Vec::new();
    for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
        let (kind, perm) = part.split_once('=').ok_or_else(|| wrong(part))?;
        let (kind, perm) = (kind.trim(), Perm::parse(perm).ok_or_else(|| wrong(part))?);
        if !KINDS.contains(&kind) {
            return Err(Error::Invalid(format!("'{kind}' is nothing that there are capabilities for")));
        }
        caps.push((kind.to_owned(), perm));
    }
    if caps.is_empty() { Err(wrong(text)) } else { Ok(caps) }
}

fn held(caps: &Caps, kind: &str) -> Perm {
    let found = caps.iter().find(|(known, _)| known == kind);
    found.and_then(|(_, perm)| Perm::parse(perm)).unwrap_or_default()
}

fn set(caps: &mut Caps, kind: &str, perm: Perm) {
    caps.retain(|(known, _)| known != kind);
    if let Some(text) = perm.text() {
        caps.push((kind.to_owned(), text.to_owned()));
        caps.sort();
    }
}

/// Adds capabilities to a user's existing ones.
pub fn add(caps: &mut Caps, more: &[(String, Perm)]) {
    for (kind, perm) in more {
        let old = held(caps, kind);
        set(caps, kind, Perm { read: old.read || perm.read, write: old.write || perm.write });
    }
}

/// Removes capabilities from a user's existing ones.
pub fn remove(caps: &mut Caps, gone: &[(String, Perm)]) {
    for (kind, perm) in gone {
        let old = held(caps, kind);
        set(caps, kind, Perm { read: old.read && !perm.read, write: old.write && !perm.write });
    }
}

/// Whether capabilities include the access `wanted` to a kind of resource.
pub fn allow(caps: &Caps, kind: &str, wanted: Perm) -> bool {
    held(caps, kind).covers(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_added_and_taken() {
        let mut caps = Caps::new();
        add(&mut caps, &parse("users=read, write; buckets=read").unwrap());
        assert_eq!(
            caps,
            [("buckets".into(), "read".into()), ("users".into(), "*".into())] as [(String, String); 2]
        );
        assert!(allow(&caps, "users", Perm::WRITE) && allow(&caps, "buckets", Perm::READ));
        assert!(!allow(&caps, "buckets", Perm::WRITE) && !allow(&caps, "usage", Perm::READ));
        remove(&mut caps, &parse("users=read;buckets=*").unwrap());
        assert_eq!(caps, [("users".into(), "write".into())] as [(String, String); 1]);
        assert!(!allow(&caps, "users", Perm::READ));
    }

    #[test]
    fn what_is_no_capability_is_refused() {
        for text in ["", ";", "users", "users=all", "cookies=read", "users=read write;x"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
