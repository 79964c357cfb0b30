//! The form in which `crushtool` and `osdmaptool` describe their options: what `--help` prints, and how far each option
//! does what Ceph's does.

use std::fmt::Write;

/// Where the help's texts begin.
const COLUMN: usize = 25;

/// How far an option does what Ceph's 16.2 does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Support {
    /// All of it.
    Full,
    /// Not all of it: what differs.
    Partial(&'static str),
    /// Refused by name: why.
    Refused(&'static str),
}

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

    /// An option that is refused by name.
    pub(super) const fn refused(usage: &'static str, why: &'static str) -> ToolOption {
        ToolOption { usage, help: "", support: Support::Refused(why) }
    }

    /// The option's long name.
    pub(crate) fn name(&self) -> &'static str {
        let words = self.usage.split([' ', '|', '[', ']', '=']);
        words.into_iter().find(|word| word.starts_with("--")).unwrap_or(self.usage)
    }
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
        for option in options.iter().filter(|option| !matches!(option.support, Support::Refused(_))) {
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
        if let Support::Partial(missing) = option.support {
            let _ = writeln!(out, "   {}: {missing}", option.name());
        }
    }
    out
}

/// The reason for which an option of this name is refused.
pub(super) fn refusal(sections: &[Section], name: &str) -> Option<&'static str> {
    let mut options = sections.iter().flat_map(|(_, options)| options.iter());
    options.find(|option| option.name() == name).and_then(|option| match option.support {
        Support::Refused(why) => Some(why),
        _ => None,
    })
}
