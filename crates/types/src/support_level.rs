//! How far Nacre supports a command, option, pool variable, function or operation of Ceph.
//!
//! Each table of these has a [`SupportLevel`] per row. `docs/compatibility.md` is generated from these tables, and tests compare
//! them with the behaviour.

use std::fmt;

/// How far one part of Ceph's interfaces is supported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SupportLevel {
    /// It behaves as in Ceph.
    #[default]
    Full,
    /// It works, except for what the text lists.
    Partial(&'static str),
    /// It is accepted and has no effect, and results are correct without one. The text gives the reason.
    Advisory(&'static str),
    /// It fails, with EOPNOTSUPP if Ceph defines no other error. The text gives the reason.
    Refused(&'static str),
}

impl SupportLevel {
    /// The word of the tables: `full`, `partial`, `advisory` or `refused`.
    pub const fn word(self) -> &'static str {
        match self {
            SupportLevel::Full => "full",
            SupportLevel::Partial(_) => "partial",
            SupportLevel::Advisory(_) => "advisory",
            SupportLevel::Refused(_) => "refused",
        }
    }

    /// What is missing, or the reason; empty for full support.
    pub const fn note(self) -> &'static str {
        match self {
            SupportLevel::Full => "",
            SupportLevel::Partial(note) | SupportLevel::Advisory(note) | SupportLevel::Refused(note) => note,
        }
    }

    /// Whether it is refused.
    pub const fn is_refused(self) -> bool {
        matches!(self, SupportLevel::Refused(_))
    }

    /// Parses `full`, or one of the other words with a note.
    pub fn parse(word: &str, note: &'static str) -> Option<SupportLevel> {
        match word {
            "full" if note.is_empty() => Some(SupportLevel::Full),
            "partial" if !note.is_empty() => Some(SupportLevel::Partial(note)),
            "advisory" if !note.is_empty() => Some(SupportLevel::Advisory(note)),
            "refused" if !note.is_empty() => Some(SupportLevel::Refused(note)),
            _ => None,
        }
    }
}

impl fmt::Display for SupportLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// Parses a table of lines `WORD NAME[| NOTE]`. Empty lines and lines that start with `#` are skipped. Fails with the first
/// line of another form.
pub fn parse_table(text: &'static str) -> Result<Vec<(&'static str, SupportLevel)>, String> {
    let rows = text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    rows.map(|line| {
        let (left, note) = line.split_once('|').unwrap_or((line, ""));
        let mut words = left.split_whitespace();
        let row = match (words.next(), words.next(), words.next()) {
            (Some(word), Some(name), None) => SupportLevel::parse(word, note.trim()).map(|s| (name, s)),
            _ => None,
        };
        row.ok_or_else(|| format!("not a line of the form 'WORD NAME | NOTE': {line}"))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_name_a_status_and_say_why() {
        let table = "# functions\n\nfull rados_read\nrefused rados_tmap_get | tmaps are obsolete\n";
        assert_eq!(
            parse_table(table).unwrap(),
            [
                ("rados_read", SupportLevel::Full),
                ("rados_tmap_get", SupportLevel::Refused("tmaps are obsolete"))
            ]
        );
        for wrong in ["full a | why", "refused a", "works a", "full", "full a b"] {
            assert!(parse_table(wrong).is_err(), "{wrong}");
        }
    }
}
