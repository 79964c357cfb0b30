//! OSD capabilities: what a key lets its owner do to which objects (`OSDCap`).
//!
//! The grammar is Ceph's: grants separated by commas or semicolons, each `allow` or `profile NAME` with its permissions
//! and matches in any order, such as `allow rwx pool=data namespace=backup*`. Text that does not parse grants nothing.

use nacre_types::pool::Pool;
use std::fmt;

/// Permissions, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access(u8);

impl Access {
    /// Reading objects.
    pub const READ: Access = Access(1);
    /// Changing objects.
    pub const WRITE: Access = Access(2);
    /// Calling class methods that read.
    pub const CLASS_READ: Access = Access(4);
    /// Calling class methods that write.
    pub const CLASS_WRITE: Access = Access(8);
    /// Commands to the daemon itself.
    pub const ADMIN: Access = Access(16);
    /// Everything.
    pub const ALL: Access = Access(31);
    /// Nothing.
    pub const NONE: Access = Access(0);

    /// Both.
    pub const fn and(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }

    /// Whether all of `other` is in.
    pub fn contains(self, other: Access) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Why a capability text was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("osd capability '{caps}': {reason}")]
pub struct CapsError {
    caps: String,
    reason: String,
}

/// Parsed OSD capabilities of an entity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OsdCaps {
    grants: Vec<Grant>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Grant {
    access: Access,
    pool: Option<String>,
    namespace: Option<String>,
    object_prefix: Option<String>,
    /// Application, key, value; `*` matches all.
    tag: Option<(String, String, String)>,
}

/// What a request touches.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    /// The pool.
    pub pool: &'a Pool,
    /// The object's namespace.
    pub namespace: &'a str,
    /// The object's name.
    pub object: &'a str,
}

impl OsdCaps {
    /// Parses a capability text; an empty one grants nothing.
    pub fn parse(text: &str) -> Result<OsdCaps, CapsError> {
        let error = |reason: String| CapsError { caps: text.to_owned(), reason };
        let mut grants = Vec::new();
        for part in tokens(text).map_err(error)?.split(|token| matches!(token, Token::Separator)) {
            if !part.is_empty() {
                grants.push(parse_grant(part).map_err(error)?);
            }
        }
        Ok(OsdCaps { grants })
    }

    /// Whether the grants together allow `wanted` on `target`.
    pub fn allows(&self, target: Target<'_>, wanted: Access) -> bool {
        let mut granted = Access::NONE;
        for grant in &self.grants {
            if grant.matches(target) {
                granted = granted.and(grant.access);
                if granted.contains(wanted) {
                    return true;
                }
            }
        }
        false
    }

    /// Whether everything is allowed on everything: what commands to the daemon ask for.
    pub fn is_allow_all(&self) -> bool {
        self.grants.iter().any(|g| g.access == Access::ALL && g.is_unrestricted())
    }
}

impl Grant {
    fn is_unrestricted(&self) -> bool {
        self.pool.is_none() && self.namespace.is_none() && self.object_prefix.is_none() && self.tag.is_none()
    }

    fn matches(&self, target: Target<'_>) -> bool {
        let pool = self.pool.as_ref().is_none_or(|wanted| *wanted == target.pool.name);
        let namespace = self.namespace.as_ref().is_none_or(|wanted| match wanted.strip_suffix('*') {
            Some(prefix) => target.namespace.starts_with(prefix),
            None => target.namespace == wanted,
        });
        let prefix =
            self.object_prefix.as_ref().is_none_or(|prefix| target.object.starts_with(prefix.as_str()));
        let tag = self.tag.as_ref().is_none_or(|(application, key, value)| {
            target.pool.applications.iter().any(|(name, metadata)| {
                (application == "*" || application == name)
                    && (key == "*" || metadata.get(key).is_some_and(|v| value == "*" || v == value))
            })
        });
        pool && namespace && prefix && tag
    }
}

enum Token {
    Word(String),
    Equals,
    Separator,
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Token::Word(word) => f.write_str(word),
            Token::Equals => f.write_str("="),
            Token::Separator => f.write_str(","),
        }
    }
}

fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let mut out = Vec::new();
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            ',' | ';' => out.push(Token::Separator),
            '=' => out.push(Token::Equals),
            c if c.is_whitespace() => {}
            quote @ ('"' | '\'') => {
                let mut word = String::new();
                loop {
                    match rest.next() {
                        Some(c) if c == quote => break,
                        Some(c) => word.push(c),
                        None => return Err("unterminated quote".into()),
                    }
                }
                out.push(Token::Word(word));
            }
            c => {
                let mut word = String::from(c);
                while let Some(c) = rest.next_if(|c| !c.is_whitespace() && !",;=".contains(*c)) {
                    word.push(c);
                }
                out.push(Token::Word(word));
            }
        }
    }
    Ok(out)
}

fn parse_grant(tokens: &[Token]) -> Result<Grant, String> {
    let mut grant =
        Grant { access: Access::NONE, pool: None, namespace: None, object_prefix: None, tag: None };
    let mut words = tokens.iter().peekable();
    fn next<'a>(words: &mut dyn Iterator<Item = &'a Token>, what: &str) -> Result<&'a str, String> {
        match words.next() {
            Some(Token::Word(word)) => Ok(word),
            Some(other) => Err(format!("'{other}' where {what} belongs")),
            None => Err(format!("{what} is missing")),
        }
    }
    match next(&mut words, "'allow' or 'profile'")? {
        "allow" => {}
        "profile" => {
            words.next_if(|t| matches!(t, Token::Equals));
            let name = next(&mut words, "a profile's name")?;
            grant.access = match name {
                "osd" => Access::ALL,
                "rbd" => Access::READ.and(Access::WRITE).and(Access::CLASS_READ).and(Access::CLASS_WRITE),
                "rbd-read-only" => Access::READ.and(Access::CLASS_READ),
                other => return Err(format!("unknown profile '{other}'")),
            };
        }
        other => return Err(format!("'{other}' where 'allow' or 'profile' belongs")),
    }
    while words.peek().is_some() {
        let word = next(&mut words, "a permission or match")?;
        let mut value = |what: &str| {
            words.next_if(|t| matches!(t, Token::Equals));
            next(&mut words, what).map(str::to_owned)
        };
        match word {
            "pool" => grant.pool = Some(value("a pool's name")?),
            "namespace" => grant.namespace = Some(value("a namespace")?),
            "object_prefix" => grant.object_prefix = Some(value("an object prefix")?),
            "tag" => {
                let application = value("an application")?;
                let key = value("a key")?;
                let wanted = value("a value")?;
                grant.tag = Some((application, key, wanted));
            }
            "class-read" => grant.access = grant.access.and(Access::CLASS_READ),
            "class-write" => grant.access = grant.access.and(Access::CLASS_WRITE),
            "*" | "all" => grant.access = Access::ALL,
            letters => grant.access = grant.access.and(parse_letters(letters)?),
        }
    }
    Ok(grant)
}

fn parse_letters(letters: &str) -> Result<Access, String> {
    letters.chars().try_fold(Access::NONE, |access, letter| {
        Ok(access.and(match letter {
            'r' => Access::READ,
            'w' => Access::WRITE,
            'x' => Access::CLASS_READ.and(Access::CLASS_WRITE),
            _ => return Err(format!("unknown permission '{letters}'")),
        }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::ids::Epoch;

    fn allowed(caps: &str, pool: &str, namespace: &str, wanted: Access) -> bool {
        let mut pool = Pool::replicated(pool, 3, 2, 0, 8, Epoch(1));
        pool.applications.insert("rgw".into(), [("zone".to_owned(), "a".to_owned())].into());
        let target = Target { pool: &pool, namespace, object: "prefix.o" };
        OsdCaps::parse(caps).unwrap().allows(target, wanted)
    }

    #[test]
    fn grants_allow_what_they_name_and_no_more() {
        let (r, w, x) = (Access::READ, Access::WRITE, Access::CLASS_READ.and(Access::CLASS_WRITE));
        for (caps, pool, namespace, wanted, expected) in [
            ("", "p", "", r, false),
            ("allow *", "p", "ns", Access::ALL, true),
            ("allow r", "p", "", r, true),
            ("allow r", "p", "", w, false),
            ("allow w", "p", "", r, false),
            ("allow rw", "p", "", r.and(w), true),
            ("allow rw", "p", "", x, false),
            ("allow rwx", "p", "", r.and(w).and(x), true),
            ("allow rwx", "p", "", Access::ADMIN, false),
            ("allow class-read", "p", "", Access::CLASS_READ, true),
            ("allow rw pool=p", "p", "any", w, true),
            ("allow rw pool=p", "q", "", w, false),
            ("allow rw pool = p", "p", "", w, true),
            ("allow pool p rw", "p", "", w, true),
            ("allow rw pool=\"p q\"", "p q", "", w, true),
            ("allow r, allow w pool=p", "p", "", r.and(w), true),
            ("allow r; allow w pool=p", "q", "", r.and(w), false),
            ("allow rw namespace=ns", "p", "ns", w, true),
            ("allow rw namespace=ns", "p", "", w, false),
            ("allow rw namespace=\"\"", "p", "ns", w, false),
            ("allow rw namespace=back*", "p", "backup", w, true),
            ("allow rw pool=p namespace=ns", "q", "ns", w, false),
            ("allow r object_prefix prefix.", "p", "", r, true),
            ("allow r object_prefix other.", "p", "", r, false),
            ("allow rw tag rgw zone=a", "p", "", w, true),
            ("allow rw tag rgw zone=b", "p", "", w, false),
            ("allow rw tag rgw *=*", "p", "", w, true),
            ("allow rw tag cephfs *=*", "p", "", w, false),
            ("profile osd", "p", "", Access::ALL, true),
            ("profile rbd pool=p", "p", "", w, true),
            ("profile rbd-read-only", "p", "", w, false),
        ] {
            assert_eq!(allowed(caps, pool, namespace, wanted), expected, "{caps} on {pool}/{namespace}");
        }
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        for caps in
            ["allow q", "deny *", "allow r pool=", "allow r pool", "profile nobody", "allow r pool='x"]
        {
            let error = OsdCaps::parse(caps).unwrap_err();
            assert!(error.to_string().contains(caps), "{error}");
        }
    }

    #[test]
    fn only_unrestricted_all_allows_commands() {
        assert!(OsdCaps::parse("allow *").unwrap().is_allow_all());
        assert!(!OsdCaps::parse("allow * pool=p").unwrap().is_allow_all());
        assert!(!OsdCaps::parse("allow rwx").unwrap().is_allow_all());
    }
}
