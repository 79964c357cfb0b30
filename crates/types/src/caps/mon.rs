//! Capabilities for monitors (Ceph's `MonCap`): `allow rw`, `allow service osd r`, `profile osd`, `allow command "osd pool
//! create" with pool prefix foo`.
//!
//! Commands belong to services (a signature's module) and need some of `r`, `w`, `x`. The permissions of all grants are
//! combined.

use super::network::Network;
use super::scan::Scan;
use super::{CapsError, network, parse_grants};
use crate::command::Call;
use crate::ids::EntityName;
use regex::RegexBuilder;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Maximum memory of one regular expression in bytes.
const REGEX_BYTES: usize = 256 << 10;

/// Permissions for monitors, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Perm(u8);

impl Perm {
    /// No permissions.
    pub const NONE: Perm = Perm(0);
    /// Read.
    pub const READ: Perm = Perm(1);
    /// Write.
    pub const WRITE: Perm = Perm(2);
    /// Access to secrets.
    pub const EXEC: Perm = Perm(4);
    /// Read, write and access to secrets.
    pub const ALL: Perm = Perm(7);
    /// `*`: more than the sum of its parts, because it includes every service.
    const ANY: Perm = Perm(0xff);

    /// Converts the letters in command tables.
    pub fn of_letters(letters: &str) -> Perm {
        let of = |letter| match letter {
            'r' => Perm::READ,
            'w' => Perm::WRITE,
            'x' => Perm::EXEC,
            _ => Perm::ALL,
        };
        letters.chars().map(of).fold(Perm::NONE, Perm::and)
    }

    const fn and(self, other: Perm) -> Perm {
        Perm(self.0 | other.0)
    }

    fn covers(self, wanted: Perm) -> bool {
        self.0 & wanted.0 == wanted.0
    }
}

/// Parsed monitor capabilities of an entity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MonCaps {
    grants: Vec<Grant>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Grant {
    what: What,
    network: Option<Network>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    Everywhere(Perm),
    Service(String, Perm),
    Command(String, Vec<(String, Constraint)>),
    Profile(String),
}

/// The constraint on an argument.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Constraint {
    Equal(String),
    Prefix(String),
    Regex(String),
    /// The argument must be absent.
    Absent,
}

/// The access that a peer requests.
#[derive(Clone, Copy, Debug)]
pub struct MonAccess<'a> {
    /// The service, as command tables name it: `osd`, `auth`, `mon`, …
    pub service: &'a str,
    /// The command's prefix; empty for other accesses.
    pub command: &'a str,
    /// The command's arguments as text ([`constraint_args`]).
    pub args: &'a BTreeMap<String, String>,
    /// The required permissions.
    pub perm: Perm,
    /// The requesting entity.
    pub entity: &'a EntityName,
    /// The address of the request.
    pub peer: IpAddr,
}

/// Returns a command's arguments as constraints use them: numbers and switches as text, several values joined by blanks, and
/// `caps` as one argument for each service (`caps_mon`).
pub fn constraint_args(call: &Call<'_>) -> BTreeMap<String, String> {
    let mut args = BTreeMap::new();
    for (name, value) in call.arguments() {
        let texts: Vec<String> = match value {
            serde_json::Value::Array(values) => values.iter().map(text_of).collect(),
            single => vec![text_of(single)],
        };
        if name == "caps" && texts.len().is_multiple_of(2) {
            for pair in texts.chunks_exact(2) {
                args.insert(format!("caps_{}", pair[0]), pair[1].clone());
            }
        } else {
            args.insert(name.to_owned(), texts.join(" "));
        }
    }
    args
}

fn text_of(value: &serde_json::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

impl MonCaps {
    /// Parses the text of `caps mon`.
    pub fn parse(text: &str) -> Result<MonCaps, CapsError> {
        Ok(MonCaps { grants: parse_grants("mon", text, |_| {}, separator, grant)? })
    }

    /// Returns capabilities that allow everything.
    pub fn all() -> MonCaps {
        MonCaps { grants: vec![Grant { what: What::Everywhere(Perm::ANY), network: None }] }
    }

    /// Whether the access is allowed.
    pub fn allows(&self, wanted: &MonAccess<'_>) -> bool {
        let mut granted = Perm::NONE;
        self.grants.iter().any(|grant| {
            if grant.network.is_some_and(|network| !network.contains(wanted.peer)) {
                return false;
            }
            granted = granted.and(grant.what.granted(wanted));
            grant.what == What::Everywhere(Perm::ANY) || granted.covers(wanted.perm)
        })
    }

    /// Whether `entity` has `perm` in `service` for other accesses than commands: subscriptions, log lines, messages as an OSD.
    pub fn allows_service(&self, entity: &EntityName, peer: IpAddr, service: &str, perm: Perm) -> bool {
        let args = BTreeMap::new();
        self.allows(&MonAccess { service, command: "", args: &args, perm, entity, peer })
    }
}

impl What {
    fn granted(&self, wanted: &MonAccess<'_>) -> Perm {
        match self {
            // Only `allow *`, or a separate grant, allows access to the key-value store: daemons store secrets in it.
            What::Everywhere(_) if wanted.service == "config-key" => Perm::NONE,
            What::Everywhere(perm) => *perm,
            What::Service(service, perm) if service == wanted.service => *perm,
            What::Command(command, constraints) if command == wanted.command => {
                let met = |(name, constraint): &(String, Constraint)| {
                    constraint.is_met(wanted.args.get(name).map(String::as_str))
                };
                if constraints.iter().all(met) { Perm::ALL } else { Perm::NONE }
            }
            What::Profile(profile) => {
                let grants = expand(profile, wanted.entity);
                grants.iter().map(|grant| grant.granted(wanted)).fold(Perm::NONE, Perm::and)
            }
            What::Service(..) | What::Command(..) => Perm::NONE,
        }
    }
}

impl Constraint {
    fn is_met(&self, value: Option<&str>) -> bool {
        let Some(value) = value else { return *self == Constraint::Absent };
        match self {
            Constraint::Absent => false,
            Constraint::Equal(wanted) => value == wanted,
            Constraint::Prefix(prefix) => value.starts_with(prefix.as_str()),
            Constraint::Regex(pattern) => {
                let whole = format!(r"\A(?:{pattern})\z");
                let limited =
                    RegexBuilder::new(&whole).size_limit(REGEX_BYTES).dfa_size_limit(REGEX_BYTES).build();
                limited.is_ok_and(|regex| regex.is_match(value))
            }
        }
    }
}

/// Returns the grants of a profile; none for an unknown one.
fn expand(profile: &str, entity: &EntityName) -> Vec<What> {
    let service = |name: &str, perm| What::Service(name.to_owned(), perm);
    let command = |prefix: &str| What::Command(prefix.to_owned(), Vec::new());
    let with = |prefix: &str, args: &[(&str, Constraint)]| {
        let args = args.iter().map(|(name, constraint)| ((*name).to_owned(), constraint.clone())).collect();
        What::Command(prefix.to_owned(), args)
    };
    let equal = |text: &str| Constraint::Equal(text.to_owned());
    let prefix = |text: &str| Constraint::Prefix(text.to_owned());
    let (read, all) = (Perm::READ, Perm::ALL);
    let read_write = Perm::READ.and(Perm::WRITE);
    let own_keys = || {
        let own = prefix(&format!("daemon-private/{entity}/"));
        ["get", "put", "set", "exists", "delete"]
            .map(|verb| with(&format!("config-key {verb}"), &[("key", own.clone())]))
    };
    let read_maps = || vec![service("mon", read), service("osd", read)];
    let client = || vec![service("mon", read), service("osd", read), service("pg", read)];
    // For an entity's own ended sessions: address and nonce are required, so a range of addresses does not match.
    let blocklist = || {
        let session = Constraint::Regex("^[^/]+/[0-9]+$".into());
        [("osd blocklist", "blocklistop"), ("osd blacklist", "blacklistop")].map(|(name, verb)| {
            with(name, &[(verb, equal("add")), ("addr", session.clone()), ("range", Constraint::Absent)])
        })
    };
    let bootstrap = |kind: &str, caps: &[(&str, Constraint)]| {
        let entity = [("entity", prefix(kind))];
        let mut grants = read_maps();
        grants.push(command("mon getmap"));
        grants.push(with("auth get-or-create", &[&entity, caps].concat()));
        grants
    };
    match profile {
        "read-only" => vec![What::Everywhere(read)],
        "read-write" => vec![What::Everywhere(read_write)],
        "mon" => {
            let mut grants = vec![service("mon", all), service("log", all)];
            grants.extend(own_keys());
            grants
        }
        "osd" => {
            let mut grants = vec![service("osd", all), service("mon", read), service("pg", read_write)];
            grants.push(service("log", Perm::WRITE));
            grants.extend(own_keys());
            grants
        }
        "mds" => {
            let mut grants = vec![service("mds", all), service("mon", read), service("osd", read)];
            grants.extend([command("osd pool rmsnap"), command("osd blocklist"), command("osd blacklist")]);
            grants.push(service("log", Perm::WRITE));
            grants.extend(own_keys());
            grants
        }
        "mgr" => {
            let mut grants = vec![service("mgr", all), service("auth", read.and(Perm::EXEC))];
            let served = ["log", "mon", "mds", "fs", "osd", "config-key", "config"];
            grants.extend(served.map(|name| service(name, read_write)));
            grants.extend(["auth get-or-create", "auth rm", "auth caps"].map(command));
            grants.push(command("tell"));
            grants.extend(own_keys());
            grants
        }
        "bootstrap-osd" => {
            let mut grants = read_maps();
            grants.extend(["mon getmap", "osd new", "osd purge-new"].map(command));
            grants
        }
        "bootstrap-mds" => {
            let caps = [("caps_mon", equal("allow profile mds")), ("caps_osd", equal("allow rwx"))];
            bootstrap("mds.", &[&caps[..], &[("caps_mds", equal("allow"))]].concat())
        }
        "bootstrap-mgr" => bootstrap("mgr.", &[("caps_mon", equal("allow profile mgr"))]),
        "bootstrap-rgw" => {
            bootstrap("client.rgw.", &[("caps_mon", equal("allow rw")), ("caps_osd", equal("allow rwx"))])
        }
        "bootstrap-rbd" | "bootstrap-rbd-mirror" => {
            let mon = if profile == "bootstrap-rbd" { "profile rbd" } else { "profile rbd-mirror" };
            let osd = r#"^([ ,]*profile(=|[ ]+)['"]?rbd[^ ,'"]*['"]?([ ]+pool(=|[ ]+)['"]?[^,'"]+['"]?)?)+$"#;
            let caps = [("caps_mon", equal(mon)), ("caps_osd", Constraint::Regex(osd.into()))];
            let create = with("auth get-or-create", &[&[("entity", prefix("client."))], &caps[..]].concat());
            vec![service("mon", read), create]
        }
        "fs-client" => {
            let mut grants = client();
            grants.push(service("mds", read));
            grants
        }
        "simple-rados-client" => client(),
        "simple-rados-client-with-blocklist" | "rbd" | "rbd-mirror" | "rbd-read-only" => {
            let mut grants = client();
            grants.extend(blocklist());
            if profile == "rbd-mirror" {
                grants.push(with("config-key get", &[("key", prefix("rbd/mirror/"))]));
            }
            grants
        }
        "crash" => vec![service("mon", read)],
        "role-definer" => vec![service("mon", read), service("auth", all)],
        _ => Vec::new(),
    }
}

/// White space in this grammar.
pub(super) fn spaces(scan: &mut Scan<'_>) -> Option<()> {
    scan.take_while1(|c| matches!(c, ' ' | '\n' | '\t')).map(drop)
}

/// `,` or `;`, optionally with blanks around it.
pub(super) fn separator(scan: &mut Scan<'_>) -> Option<()> {
    let blanks = |scan: &mut Scan<'_>| scan.take_while1(|c| c == ' ').map(drop);
    let _ = blanks(scan);
    scan.literal(";").or_else(|| scan.literal(","))?;
    let _ = blanks(scan);
    Some(())
}

/// `*`, `all`, or `r`, `w`, `x` in this order.
pub(super) fn permissions(scan: &mut Scan<'_>) -> Option<Perm> {
    if scan.literal("*").or_else(|| scan.literal("all")).is_some() {
        return Some(Perm::ANY);
    }
    let letters = [("r", Perm::READ), ("w", Perm::WRITE), ("x", Perm::EXEC)];
    let found = letters.into_iter().filter(|(letter, _)| scan.literal(letter).is_some());
    Some(found.fold(Perm::NONE, |perm, (_, more)| perm.and(more))).filter(|perm| *perm != Perm::NONE)
}

fn grant(scan: &mut Scan<'_>) -> Option<Grant> {
    let _ = spaces(scan);
    let allowed = |then: fn(&mut Scan<'_>) -> Option<What>| {
        move |scan: &mut Scan<'_>| {
            scan.literal("allow")?;
            spaces(scan)?;
            Some(Grant { what: then(scan)?, network: network(scan) })
        }
    };
    let grant = scan
        .attempt(allowed(|scan| permissions(scan).map(What::Everywhere)))
        .or_else(|| scan.attempt(profile))
        .or_else(|| scan.attempt(allowed(service)))
        .or_else(|| scan.attempt(allowed(command)))?;
    let _ = spaces(scan);
    Some(grant)
}

fn profile(scan: &mut Scan<'_>) -> Option<Grant> {
    let _ = scan.attempt(|scan| {
        scan.literal("allow")?;
        spaces(scan)
    });
    let name = keyword_value(scan, "profile")?;
    Some(Grant { what: What::Profile(name), network: network(scan) })
}

fn service(scan: &mut Scan<'_>) -> Option<What> {
    let name = keyword_value(scan, "service")?;
    spaces(scan)?;
    Some(What::Service(name, permissions(scan)?))
}

fn command(scan: &mut Scan<'_>) -> Option<What> {
    let prefix = keyword_value(scan, "command")?;
    let args = scan.attempt(|scan| {
        spaces(scan)?;
        scan.literal("with")?;
        spaces(scan)?;
        constraints(scan)
    });
    let args = args.unwrap_or_default().into_iter().map(|(name, how, value)| {
        let constraint = match how {
            MatchKind::Equal => Constraint::Equal(value),
            MatchKind::Prefix => Constraint::Prefix(value),
            MatchKind::Regex => Constraint::Regex(value),
        };
        (name, constraint)
    });
    Some(What::Command(prefix, args.collect()))
}

/// `WORD=NAME` or `WORD NAME`.
pub(super) fn keyword_value(scan: &mut Scan<'_>, word: &str) -> Option<String> {
    scan.literal(word)?;
    scan.literal("=").or_else(|| spaces(scan))?;
    Some(scan.value()?.to_owned())
}

/// The comparison of a constraint.
#[derive(Clone, Copy)]
pub(super) enum MatchKind {
    Equal,
    Prefix,
    Regex,
}

/// `NAME=VALUE`, `NAME prefix VALUE` or `NAME regex VALUE`, one or more.
pub(super) fn constraints(scan: &mut Scan<'_>) -> Option<Vec<(String, MatchKind, String)>> {
    let mut all = vec![scan.attempt(constraint)?];
    let next = |scan: &mut Scan<'_>| {
        spaces(scan)?;
        constraint(scan)
    };
    while let Some(more) = scan.attempt(next) {
        // The first constraint of a name counts.
        if all.iter().all(|(name, ..)| *name != more.0) {
            all.push(more);
        }
    }
    Some(all)
}

fn constraint(scan: &mut Scan<'_>) -> Option<(String, MatchKind, String)> {
    let name = scan.value()?.to_owned();
    let worded = |word: &'static str, how| {
        move |scan: &mut Scan<'_>| {
            spaces(scan)?;
            scan.literal(word)?;
            spaces(scan)?;
            Some((how, scan.value()?.to_owned()))
        }
    };
    let equal = |scan: &mut Scan<'_>| {
        scan.literal("=")?;
        Some((MatchKind::Equal, scan.value()?.to_owned()))
    };
    let (how, value) = scan
        .attempt(equal)
        .or_else(|| scan.attempt(worded("prefix", MatchKind::Prefix)))
        .or_else(|| scan.attempt(worded("regex", MatchKind::Regex)))?;
    Some((name, how, value))
}
