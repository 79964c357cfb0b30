//! Capabilities towards the map authority: `allow r`, `allow *`, `profile osd`, `allow command "…"`.
//!
//! Grammar (a part of Ceph's MonCap): grants separated by commas or semicolons, each
//! `[allow] (* | r w x in any order | profile NAME | service NAME RWX | command "PREFIX" [with …])`.

use nacre_types::ids::EntityName;

/// What an entity may do, parsed from its `mon` caps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MonCaps {
    grants: Vec<Grant>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Grant {
    scope: Scope,
    rwx: Rwx,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Scope {
    Everything,
    Service(String),
    Command(String),
    Profile(String),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Rwx {
    read: bool,
    write: bool,
    exec: bool,
}

impl Rwx {
    const ALL: Rwx = Rwx { read: true, write: true, exec: true };
    const READ: Rwx = Rwx { read: true, write: false, exec: false };

    fn parse(text: &str) -> Option<Rwx> {
        if text == "*" || text == "all" {
            return Some(Rwx::ALL);
        }
        let mut rwx = Rwx::default();
        for c in text.chars() {
            match c {
                'r' => rwx.read = true,
                'w' => rwx.write = true,
                'x' => rwx.exec = true,
                _ => return None,
            }
        }
        (!text.is_empty()).then_some(rwx)
    }

    fn covers(self, wanted: Rwx) -> bool {
        (self.read || !wanted.read) && (self.write || !wanted.write) && (self.exec || !wanted.exec)
    }
}

/// Why caps can't be parsed, in Ceph's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("mon capability parse failed, stopped at '{rest}' of '{whole}'")]
pub struct CapsError {
    rest: String,
    whole: String,
}

impl MonCaps {
    /// Parses the text of `caps mon`.
    pub fn parse(text: &str) -> Result<MonCaps, CapsError> {
        let mut grants = Vec::new();
        for part in text.split([',', ';']) {
            let part = part.trim();
            if part.is_empty() {
                continue;
            }
            let stopped = || CapsError { rest: part.to_owned(), whole: text.to_owned() };
            grants.push(Grant::parse(part).ok_or_else(stopped)?);
        }
        Ok(MonCaps { grants })
    }

    /// May do everything.
    pub fn all() -> MonCaps {
        MonCaps { grants: vec![Grant { scope: Scope::Everything, rwx: Rwx::ALL }] }
    }

    /// Whether a command of `module` that needs `perm` (some of `r`, `w`, `x`) is allowed.
    pub fn allows_command(&self, prefix: &str, module: &str, perm: &str) -> bool {
        let wanted = Rwx::parse(perm).unwrap_or(Rwx::ALL);
        self.grants.iter().any(|grant| match &grant.scope {
            Scope::Everything => grant.rwx.covers(wanted),
            Scope::Service(service) => service == module && grant.rwx.covers(wanted),
            Scope::Command(command) => command == prefix,
            Scope::Profile(profile) => profile_allows(profile, prefix, module, wanted),
        })
    }

    /// Whether maps and configuration may be read.
    pub fn allows_subscription(&self) -> bool {
        self.allows_command("osd getmap", "osd", "r") || !self.grants.is_empty()
    }

    /// Whether `entity` may speak as an OSD (boot, reports, membership).
    pub fn allows_osd(&self, entity: &EntityName) -> bool {
        entity.osd_id().is_some()
            && self.grants.iter().any(|grant| match &grant.scope {
                Scope::Everything => grant.rwx == Rwx::ALL,
                Scope::Profile(profile) => profile == "osd",
                Scope::Service(_) | Scope::Command(_) => false,
            })
    }
}

impl Grant {
    fn parse(text: &str) -> Option<Grant> {
        let text = text.strip_prefix("allow").map_or(text, str::trim_start);
        let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let rest = rest.trim();
        match word {
            "profile" => (!rest.is_empty() && !rest.contains(char::is_whitespace))
                .then(|| Grant { scope: Scope::Profile(unquote(rest).to_owned()), rwx: Rwx::default() }),
            "service" => {
                let (service, rwx) = rest.split_once(char::is_whitespace)?;
                Some(Grant {
                    scope: Scope::Service(unquote(service).to_owned()),
                    rwx: Rwx::parse(rwx.trim())?,
                })
            }
            "command" => {
                // Arguments (`with …`) narrow a grant; one that can't be checked grants nothing.
                let command = unquote(rest);
                (!command.is_empty() && !rest.contains(" with "))
                    .then(|| Grant { scope: Scope::Command(command.to_owned()), rwx: Rwx::default() })
            }
            _ if rest.is_empty() => Some(Grant { scope: Scope::Everything, rwx: Rwx::parse(word)? }),
            _ => None,
        }
    }
}

fn unquote(text: &str) -> &str {
    let quoted = |q: char| text.strip_prefix(q).and_then(|t| t.strip_suffix(q));
    text.strip_prefix('=').unwrap_or_else(|| quoted('"').or_else(|| quoted('\'')).unwrap_or(text))
}

fn profile_allows(profile: &str, prefix: &str, module: &str, wanted: Rwx) -> bool {
    let may_read = Rwx::READ.covers(wanted) && module != "auth" && module != "config-key";
    match profile {
        "mon" | "mgr" => true,
        "role-definer" => module == "auth" || may_read,
        "read-write" => (Rwx { exec: false, ..Rwx::ALL }).covers(wanted) && module != "auth",
        "bootstrap-osd" => may_read || prefix == "osd new" || prefix == "osd purge-new",
        "rbd" | "rbd-mirror" => may_read || prefix.starts_with("osd blocklist"),
        "simple-rados-client-with-blocklist" => may_read || prefix.starts_with("osd blocklist"),
        "osd" | "mds" | "read-only" | "simple-rados-client" | "rbd-read-only" => may_read,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(caps: &str, prefix: &str, module: &str, perm: &str) -> bool {
        MonCaps::parse(caps).unwrap().allows_command(prefix, module, perm)
    }

    #[test]
    fn grants_cover_what_they_say_and_no_more() {
        assert!(allows("allow *", "auth rm", "auth", "rwx"));
        assert!(allows("allow r", "status", "mon", "r"));
        assert!(!allows("allow r", "osd out", "osd", "rw"));
        assert!(allows("allow rw", "osd out", "osd", "rw"));
        assert!(!allows("allow rw", "auth ls", "auth", "rx"));
        assert!(allows("allow r, allow command \"osd out\"", "osd out", "osd", "rw"));
        assert!(allows("allow service osd rw", "osd out", "osd", "rw"));
        assert!(!allows("allow service osd rw", "config set", "config", "rw"));
        assert!(
            allows("profile osd", "osd dump", "osd", "r") && !allows("profile osd", "osd out", "osd", "rw")
        );
        assert!(!allows("", "status", "mon", "r"));
    }

    #[test]
    fn nonsense_is_refused_in_cephs_words() {
        let error = MonCaps::parse("foo").unwrap_err().to_string();
        assert_eq!(error, "mon capability parse failed, stopped at 'foo' of 'foo'");
        for bad in
            ["allow", "allow rq", "allow r w", "profile", "service osd", "allow command \"x\" with a=b"]
        {
            assert!(MonCaps::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn only_osds_with_the_profile_speak_as_osds() {
        let osd: EntityName = "osd.3".parse().unwrap();
        assert!(MonCaps::parse("allow profile osd").unwrap().allows_osd(&osd));
        assert!(!MonCaps::parse("allow rwx").unwrap().allows_osd(&"client.a".parse().unwrap()));
        assert!(!MonCaps::parse("allow r").unwrap().allows_osd(&osd));
    }
}
