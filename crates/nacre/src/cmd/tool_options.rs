//! How `crushtool` and `osdmaptool` describe their options: the output of `--help`, and how far each option is equivalent to
//! Ceph's.

use nacre_types::support_level::SupportLevel;
use std::fmt::Write;

/// Column in which the texts of the help start.
const COLUMN: usize = 25;

/// An option: its syntax, its effect, and its support compared with Ceph.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ToolOption {
    /// `--add-item id weight name`. The option's name is the first word.
    pub(crate) usage: &'static str,
    /// Its effect, in lines.
    pub(crate) help: &'static str,
    /// Compared with Ceph.
    pub(crate) support: SupportLevel,
}

impl ToolOption {
    /// An option that is equivalent to Ceph's.
    pub(super) const fn full(usage: &'static str, help: &'static str) -> ToolOption {
        ToolOption { usage, help, support: SupportLevel::Full }
    }

    /// An option that differs from Ceph's in `missing`.
    pub(super) const fn partial(
        usage: &'static str,
        help: &'static str,
        missing: &'static str,
    ) -> ToolOption {
        ToolOption { usage, help, support: SupportLevel::Partial(missing) }
    }

    /// An option that is accepted and has no effect.
    pub(super) const fn advisory(usage: &'static str, help: &'static str, why: &'static str) -> ToolOption {
        ToolOption { usage, help, support: SupportLevel::Advisory(why) }
    }

    /// An option that is refused by name.
    pub(super) const fn refused(usage: &'static str, why: &'static str) -> ToolOption {
        ToolOption { usage, help: "", support: SupportLevel::Refused(why) }
    }

    /// The option's long name.
    pub(crate) fn name(&self) -> &'static str {
        long_names(self.usage).next().unwrap_or(self.usage)
    }
}

/// The long names of options in a usage.
fn long_names(usage: &'static str) -> impl Iterator<Item = &'static str> {
    usage.split([' ', '|', '[', ']', '=']).filter(|word| word.starts_with("--"))
}

/// Options under a heading.
pub(crate) type Section = (&'static str, &'static [ToolOption]);

/// The sections in the format of `--help`, without refused options.
pub(super) fn options_help(sections: &[Section]) -> String {
    let mut out = String::new();
    for (heading, options) in sections {
        if !heading.is_empty() {
            let _ = writeln!(out, "\n{heading}\n");
        }
        for option in options.iter().filter(|option| !option.support.is_refused()) {
            let mut lines = option.help.lines();
            let usage = format!("   {}", option.usage);
            if usage.len() < COLUMN {
                let _ = writeln!(out, "{usage:<COLUMN$}{}", lines.next().unwrap_or_default());
            } else {
                let _ = writeln!(out, "{usage}");
            }
            for line in lines {
                let _ = writeln!(out, "{:COLUMN$}{line}", "");
            }
        }
    }
    out
}

/// The options that differ from Ceph's, for the end of `--help`.
pub(super) fn differences(sections: &[Section]) -> String {
    let mut out = "\nDifferences from Ceph 16.2\n\n".to_owned();
    for option in sections.iter().flat_map(|(_, options)| options.iter()) {
        if let SupportLevel::Partial(note) | SupportLevel::Advisory(note) = option.support {
            let _ = writeln!(out, "   {}: {note}", option.name());
        }
    }
    out
}

/// Each option once with its support. Options that appear only in the usage of another one are equivalent to Ceph's.
pub(super) fn support_rows(sections: &[Section]) -> Vec<(&'static str, SupportLevel)> {
    let options = || sections.iter().flat_map(|(_, options)| options.iter());
    let own = options().map(|option| (option.name(), option.support));
    let others = options().flat_map(|option| long_names(option.usage)).map(|name| (name, SupportLevel::Full));
    let mut rows: Vec<(&'static str, SupportLevel)> = Vec::new();
    for (name, support) in own.chain(others) {
        if rows.iter().all(|(known, _)| *known != name) {
            rows.push((name, support));
        }
    }
    rows
}

/// The reason why an option with this name is refused.
pub(super) fn refusal(sections: &[Section], name: &str) -> Option<&'static str> {
    let mut options = sections.iter().flat_map(|(_, options)| options.iter());
    options.find(|option| option.name() == name).and_then(|option| match option.support {
        SupportLevel::Refused(why) => Some(why),
        _ => None,
    })
}
