//! `$cluster`, `$type`, `$id`, `$name`, `$host`, `$pid`, `$num` and `$option` in values.

use crate::error::{Error, Result};
use nacre_types::ids::EntityName;

/// The entity for which values are expanded.
#[derive(Debug, Clone)]
pub(super) struct Identity {
    pub(super) cluster: String,
    pub(super) entity: EntityName,
    pub(super) host: String,
}

/// Maximum nesting of references between values; deeper nesting is a loop.
const MAX_DEPTH: u32 = 8;
/// Maximum length of an expansion; a longer one is a mistake.
const MAX_BYTES: usize = 64 << 10;

impl Identity {
    pub(super) fn new(cluster: String, entity: EntityName, host: String) -> Identity {
        let host = if host.is_empty() || host.contains('$') { host_name() } else { host };
        Identity { cluster, entity, host }
    }

    pub(super) fn is_daemon(&self) -> bool {
        super::is_daemon(self.entity.kind)
    }

    /// Replaces variables. `option` returns the raw text of another option. A `$` before anything else is kept.
    pub(super) fn expand(&self, text: &str, option: &dyn Fn(&str) -> Option<String>) -> Result<String> {
        self.expand_at(text, option, 0)
    }

    fn expand_at(&self, text: &str, option: &dyn Fn(&str) -> Option<String>, depth: u32) -> Result<String> {
        if !text.contains('$') {
            return Ok(text.to_owned());
        }
        if depth > MAX_DEPTH {
            return Err(Error::Usage(format!("variables in '{text}' refer to each other in a circle")));
        }
        let mut out = String::with_capacity(text.len() + 16);
        let mut rest = text;
        while let Some(at) = rest.find('$') {
            out.push_str(&rest[..at]);
            let (name, after) = variable(&rest[at + 1..]);
            match self.value(name, option, depth)? {
                Some(value) => out.push_str(&value),
                None => out.push_str(&rest[at..rest.len() - after.len()]),
            }
            if out.len() > MAX_BYTES {
                return Err(Error::Usage(format!("'{text}' expands to more than {MAX_BYTES} bytes")));
            }
            rest = after;
        }
        out.push_str(rest);
        Ok(out)
    }

    fn value(
        &self,
        name: &str,
        option: &dyn Fn(&str) -> Option<String>,
        depth: u32,
    ) -> Result<Option<String>> {
        Ok(Some(match name {
            "cluster" => self.cluster.clone(),
            "type" => self.entity.kind.as_str().to_owned(),
            // The map authority's entity has no id; files and sockets are named after the monitor `a`.
            "id" | "num" if self.entity == EntityName::mon() => "a".to_owned(),
            "name" if self.entity == EntityName::mon() => "mon.a".to_owned(),
            "id" | "num" => self.entity.id.clone(),
            "name" => self.entity.to_string(),
            "host" => self.host.clone(),
            "pid" => std::process::id().to_string(),
            _ => match option(name) {
                Some(text) => self.expand_at(&text, option, depth + 1)?,
                None => return Ok(None),
            },
        }))
    }
}

/// Splits the variable's name, bare or in braces, from the text after a `$`.
fn variable(text: &str) -> (&str, &str) {
    if let Some(inside) = text.strip_prefix('{')
        && let Some(end) = inside.find('}')
    {
        return (&inside[..end], &inside[end + 1..]);
    }
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(text.len());
    (&text[..end], &text[end..])
}

/// Returns the host's name up to the first dot, as Ceph does.
fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().split('.').next().filter(|n| !n.is_empty()).unwrap_or("localhost").to_owned()
}
