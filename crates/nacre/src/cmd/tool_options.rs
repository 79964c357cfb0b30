//! The form in which `crushtool` and `osdmaptool` describe their options: what `--help` prints, and how far each option
//! does what Ceph's does.

use nacre_types::support::Support;
use std::fmt::Write;

/// Where the help's texts begin.
const COLUMN: usize = 25;

/// An option: how it is written, what it does, how far it does what Ceph's does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ToolOption {
    /// `--add-item id weight name`; the option's name is the first word.
    pub(crate) usage: &'static str,
    /// What it does, in lines.
    pub(crate) help: &'static str,
    /// Against Ceph's.
    pub(crate) support: Support,
}

impl ToolOption {
    /// An option that does all that Ceph's does.
    pub(super) const fn full(usage: &'static str, help: &'static str) -> ToolOption {
        ToolOption { usage, help, support: Support::Full }
    }

    /// An option that differs in `missing`.
    pub(super) const fn partial(
        usage: &'static str,
        help: &'static str,
        missing: &'static str,
    ) -> ToolOption {
        ToolOption { usage, help, support: Support::Partial(missing) }
    }

    /// An option that is accepted and has no effect.
    pub(super) const fn advisory(usage: &'static str, help: &'static str, why: &'static str) -> ToolOption {
        ToolOption { usage, help, support: Support::Advisory(why) }
    }

    /// An option that is refused by name.
    pub(super) const fn refused(usage: &'static str, why: &'static str) -> ToolOption {
        ToolOption { usage, help: "", support: Support::Refused(why) }
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

/// The sections as `--help` prints them. Options that are refused are left out.
pub(super) fn listing(sections: &[Section]) -> String {
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

/// Where options do less than Ceph's or do it otherwise, for the end of `--help`.
pub(super) fn differences(sections: &[Section]) -> String {
    let mut out = "\nDifferences from Ceph 16.2\n\n".to_owned();
    for option in sections.iter().flat_map(|(_, options)| options.iter()) {
        if let Support::Partial(note) | Support::Advisory(note) = option.support {
            let _ = writeln!(out, "   {}: {note}", option.name());
        }
    }
    out
}

/// Each option once with its support. Those that only the usage of another one names do all that Ceph's do.
pub(super) fn rows(sections: &[Section]) -> Vec<(&'static str, Support)> {
    let options = || sections.iter().flat_map(|(_, options)| options.iter());
    let own = options().map(|option| (option.name(), option.support));
    let others = options().flat_map(|option| long_names(option.usage)).map(|name| (name, Support::Full));
    let mut rows: Vec<(&'static str, Support)> = Vec::new();
    for (name, support) in own.chain(others) {
        if rows.iter().all(|(known, _)| *known != name) {
            rows.push((name, support));
        }
    }
    rows
}

/// The reason for which an option of this name is refused.
pub(super) fn refusal(sections: &[Section], name: &str) -> Option<&'static str> {
    let mut options = sections.iter().flat_map(|(_, options)| options.iter());
    options.find(|option| option.name() == name).and_then(|option| match option.support {
        Support::Refused(why) => Some(why),
        _ => None,
    })
}
