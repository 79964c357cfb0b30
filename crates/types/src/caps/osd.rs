//! Capabilities for OSDs (Ceph's `OSDCap`): `allow rwx pool=data namespace=backup*`, `profile rbd`.
//!
//! Grants are combined only for classes: a single grant must allow the reads and writes of an object, while each class that a
//! request calls may be allowed by a different grant.

use super::network::Network;
use super::scan::Scan;
use super::{CapsError, network, parse_grants};
use crate::pool::Pool;
use std::net::IpAddr;

/// Permissions, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Access(u8);

impl Access {
    const NONE: Access = Access(0);
    const READ: Access = Access(1);
    const WRITE: Access = Access(2);
    const CLASS_READ: Access = Access(4);
    const CLASS_WRITE: Access = Access(8);
    const EXEC: Access = Access(4 | 8);
    /// Everything, including commands to the daemon: more than the sum of its parts.
    const ANY: Access = Access(0xff);

    const fn and(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }

    /// Whether `other` is included, if it is wanted.
    fn covers(self, wanted: bool, other: Access) -> bool {
        !wanted || self.0 & other.0 == other.0
    }
}

/// Parsed OSD capabilities of an entity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OsdCaps {
    grants: Vec<Grant>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Grant {
    access: Access,
    /// A class whose methods may be called, or only one of its methods.
    class: Option<(String, Option<String>)>,
    scope: Scope,
    network: Option<Network>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Scope {
    pool: Option<String>,
    /// A `*` at the end matches all namespaces with this prefix.
    namespace: Option<String>,
    tag: Option<Tag>,
    object_prefix: Option<String>,
}

/// A pool's application with a key and its value; `*` matches any.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Tag {
    application: String,
    key: String,
    value: String,
}

/// The access that a request needs.
#[derive(Clone, Copy, Debug)]
pub struct OsdAccess<'a> {
    /// The object's pool.
    pub pool: &'a Pool,
    /// The object's namespace.
    pub namespace: &'a str,
    /// The object's name.
    pub object: &'a str,
    /// Whether it reads the object directly, not through a class.
    pub reads: bool,
    /// Whether it changes the object directly, not through a class.
    pub writes: bool,
    /// The class methods that it calls.
    pub calls: &'a [ClassCall<'a>],
    /// The client's address.
    pub peer: IpAddr,
}

/// A class method that a request calls.
#[derive(Clone, Copy, Debug)]
pub struct ClassCall<'a> {
    /// The class.
    pub class: &'a str,
    /// The method.
    pub method: &'a str,
    /// Whether it is registered as reading.
    pub reads: bool,
    /// Whether it is registered as writing.
    pub writes: bool,
    /// Whether the class is in `osd_class_default_list`. Others must be granted by name or by `*`.
    pub by_default: bool,
}

impl OsdCaps {
    /// Parses the text of `caps osd`.
    pub fn parse(text: &str) -> Result<OsdCaps, CapsError> {
        let grants = parse_grants("osd", text, |scan| scan.any_spaces(), separator, grant)?;
        Ok(OsdCaps { grants: grants.into_iter().flatten().collect() })
    }

    /// Whether the request is allowed.
    pub fn allows(&self, wanted: &OsdAccess<'_>) -> bool {
        if wanted.calls.is_empty() {
            return self.grants.iter().any(|grant| grant.allows_object(wanted));
        }
        let mut allowed = vec![false; wanted.calls.len()];
        self.grants
            .iter()
            .any(|grant| grant.allows_object(wanted) && grant.allows_calls(wanted, &mut allowed))
    }

    /// Whether a peer at `peer` has every right on everything, which commands to the daemon need.
    pub fn is_allow_all(&self, peer: IpAddr) -> bool {
        self.grants.iter().any(|g| g.access == Access::ANY && g.scope == Scope::default() && g.admits(peer))
    }
}

impl Grant {
    fn admits(&self, peer: IpAddr) -> bool {
        self.network.is_none_or(|network| network.contains(peer))
    }

    fn allows_object(&self, wanted: &OsdAccess<'_>) -> bool {
        self.access.covers(wanted.reads, Access::READ)
            && self.access.covers(wanted.writes, Access::WRITE)
            && self.scope.matches(wanted)
            && self.admits(wanted.peer)
    }

    /// Marks the calls that this grant allows. Returns whether all are allowed now.
    fn allows_calls(&self, wanted: &OsdAccess<'_>, allowed: &mut [bool]) -> bool {
        if self.access == Access::ANY {
            return true;
        }
        for (call, allowed) in wanted.calls.iter().zip(allowed.iter_mut()) {
            let named = self.class.as_ref().is_some_and(|(class, method)| {
                class == call.class && method.as_ref().is_none_or(|method| method == call.method)
            });
            *allowed |= named
                || call.by_default
                    && self.access.covers(call.reads, Access::CLASS_READ)
                    && self.access.covers(call.writes, Access::CLASS_WRITE)
                    // A grant for a class grants nothing else.
                    && self.class.is_none();
        }
        allowed.iter().all(|allowed| *allowed)
    }
}

impl Scope {
    fn matches(&self, wanted: &OsdAccess<'_>) -> bool {
        self.pool.as_ref().is_none_or(|pool| *pool == wanted.pool.name)
            && self.namespace.as_ref().is_none_or(|namespace| match namespace.strip_suffix('*') {
                // This also matches a namespace that actually ends in `*`.
                Some(prefix) => wanted.namespace.starts_with(prefix),
                None => wanted.namespace == namespace,
            })
            && self.object_prefix.as_ref().is_none_or(|prefix| wanted.object.starts_with(prefix.as_str()))
            && self.tag.as_ref().is_none_or(|tag| tag.matches(wanted.pool))
    }
}

impl Tag {
    fn matches(&self, pool: &Pool) -> bool {
        let Some(metadata) = pool.applications.get(&self.application) else { return false };
        match (self.key.as_str(), self.value.as_str()) {
            ("*", "*") => true,
            ("*", value) => metadata.values().any(|held| held == value),
            (key, "*") => metadata.contains_key(key),
            (key, value) => metadata.get(key).is_some_and(|held| held == value),
        }
    }
}

fn separator(scan: &mut Scan<'_>) -> Option<()> {
    scan.literal(";").or_else(|| scan.literal(","))
}

fn blanks(scan: &mut Scan<'_>) {
    let _ = scan.take_while1(|c| matches!(c, ' ' | '\t'));
}

/// Parses one grant. A profile results in several grants.
fn grant(scan: &mut Scan<'_>) -> Option<Vec<Grant>> {
    blanks(scan);
    let spec_first = |scan: &mut Scan<'_>| {
        scan.literal("allow")?;
        let (access, class) = spec(scan)?;
        let scope = scope(scan);
        Some(vec![Grant { access, class, scope, network: network(scan) }])
    };
    let scope_first = |scan: &mut Scan<'_>| {
        scan.literal("allow")?;
        let scope = scope(scan);
        let (access, class) = spec(scan)?;
        Some(vec![Grant { access, class, scope, network: network(scan) }])
    };
    let grants =
        scan.attempt(spec_first).or_else(|| scan.attempt(scope_first)).or_else(|| scan.attempt(profile))?;
    blanks(scan);
    Some(grants)
}

type Spec = (Access, Option<(String, Option<String>)>);

/// `*`, `rwx class-read class-write`, or `class NAME [METHOD]`.
fn spec(scan: &mut Scan<'_>) -> Option<Spec> {
    if let Some(access) = permissions(scan) {
        return Some((access, None));
    }
    let class = scan.attempt(|scan| {
        scan.spaces()?;
        scan.literal("class")?;
        scan.spaces()?;
        scan.value()
    })?;
    let method = scan.attempt(|scan| {
        scan.spaces()?;
        scan.value()
    });
    Some((Access::NONE, Some((class.to_owned(), method.map(str::to_owned)))))
}

fn wildcard(scan: &mut Scan<'_>) -> Option<()> {
    scan.literal("*").or_else(|| scan.literal("all"))
}

fn permissions(scan: &mut Scan<'_>) -> Option<Access> {
    let all = scan.attempt(|scan| {
        scan.spaces()?;
        wildcard(scan)
    });
    if all.is_some() {
        return Some(Access::ANY);
    }
    let letters = scan.attempt(|scan| {
        scan.spaces()?;
        let letters = [("r", Access::READ), ("w", Access::WRITE), ("x", Access::EXEC)];
        let found = letters.into_iter().filter(|(letter, _)| scan.literal(letter).is_some());
        Some(found.fold(Access::NONE, |access, (_, more)| access.and(more))).filter(|a| *a != Access::NONE)
    });
    let class = |scan: &mut Scan<'_>, word: &str, access| {
        let taken = scan.attempt(|scan| {
            scan.spaces()?;
            scan.literal(word)
        });
        taken.map(|()| access)
    };
    let class_read = class(scan, "class-read", Access::CLASS_READ);
    let class_write = class(scan, "class-write", Access::CLASS_WRITE);
    let all = [letters, class_read, class_write];
    all.into_iter().flatten().reduce(Access::and)
}

fn scope(scan: &mut Scan<'_>) -> Scope {
    if let Some(tag) = scan.attempt(tag) {
        return Scope { tag: Some(tag), ..Scope::default() };
    }
    let both = scan.attempt(|scan| {
        let namespace = namespace(scan)?;
        Some(Scope { namespace: Some(namespace), tag: Some(tag(scan)?), ..Scope::default() })
    });
    if let Some(scope) = both {
        return scope;
    }
    let pool = pool(scan);
    let namespace = scan.attempt(namespace);
    let object_prefix = scan.attempt(|scan| {
        scan.spaces()?;
        scan.literal("object_prefix")?;
        scan.spaces()?;
        Some(scan.value()?.to_owned())
    });
    Scope { pool, namespace, object_prefix, tag: None }
}

fn pool(scan: &mut Scan<'_>) -> Option<String> {
    scan.attempt(|scan| {
        scan.spaces()?;
        scan.literal("pool")?;
        scan.equals_or_spaces()?;
        Some(scan.value()?.to_owned())
    })
}

fn namespace(scan: &mut Scan<'_>) -> Option<String> {
    scan.spaces()?;
    scan.literal("namespace")?;
    scan.equals_or_spaces()?;
    let mut namespace = scan.value_or_empty()?.to_owned();
    if scan.literal("*").is_some() {
        namespace.push('*');
    }
    Some(namespace)
}

fn tag(scan: &mut Scan<'_>) -> Option<Tag> {
    let any_or_value = |scan: &mut Scan<'_>| match wildcard(scan) {
        Some(()) => Some("*".to_owned()),
        None => scan.value().map(str::to_owned),
    };
    scan.spaces()?;
    scan.literal("tag")?;
    scan.spaces()?;
    let application = scan.value()?.to_owned();
    scan.spaces()?;
    let key = any_or_value(scan)?;
    scan.any_spaces();
    scan.literal("=")?;
    scan.any_spaces();
    Some(Tag { application, key, value: any_or_value(scan)? })
}

/// `profile NAME [pool[=]P [namespace[=]N]]`. A profile unknown to OSDs grants nothing.
fn profile(scan: &mut Scan<'_>) -> Option<Vec<Grant>> {
    scan.literal("profile")?;
    scan.equals_or_spaces()?;
    let name = scan.value()?;
    let pool = pool(scan);
    let namespace = scan.attempt(namespace);
    let network = network(scan);
    let within = Scope { pool: pool.clone(), namespace: namespace.clone(), ..Scope::default() };
    let grant = |access, scope| Grant { access, scope, network, class: None };
    let call = |method: &str, scope| Grant {
        class: Some(("rbd".to_owned(), Some(method.to_owned()))),
        network,
        scope,
        access: Access::NONE,
    };
    let prefixed = |pool, namespace, prefix: &str| Scope {
        pool,
        namespace,
        object_prefix: Some(prefix.to_owned()),
        tag: None,
    };
    let info = || prefixed(pool.clone(), Some(String::new()), "rbd_info");
    Some(match name {
        "read-only" => vec![grant(Access::READ, within)],
        "read-write" => vec![grant(Access::READ.and(Access::WRITE), within)],
        "rbd" => vec![
            grant(Access::READ, prefixed(None, None, "rbd_info")),
            grant(Access::CLASS_READ, prefixed(None, None, "rbd_children")),
            grant(Access::CLASS_READ, prefixed(None, None, "rbd_mirroring")),
            call("metadata_list", info()),
            grant(Access::READ.and(Access::WRITE).and(Access::EXEC), within),
        ],
        "rbd-read-only" => {
            let header = || prefixed(pool.clone(), namespace.clone(), "rbd_header.");
            vec![
                call("metadata_list", info()),
                grant(Access::READ.and(Access::CLASS_READ), within.clone()),
                call("child_attach", header()),
                call("child_detach", header()),
            ]
        }
        _ => Vec::new(),
    })
}
