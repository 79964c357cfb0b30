//! ceph.conf: sections, `name = value` lines, comments, quotes, continuation.
//!
//! In names, blanks, dashes and underscores are equivalent. A comment starts at `;` or `#` outside quotes. A backslash at the
//! end of a line joins the next line; before another character it makes that character literal. Lines before the first section
//! belong to `[global]`.

use crate::error::{Error, Result};
use crate::options::{normalize_name, redacted};
use std::fmt;
use std::path::{Path, PathBuf};

/// Maximum size of a configuration file.
const MAX_BYTES: u64 = 4 << 20;

/// One `name = value` line. Secrets print as dots.
#[derive(Clone, PartialEq, Eq)]
pub struct ConfEntry {
    /// The name, normalised.
    pub name: String,
    /// The value, quotes and comments removed.
    pub value: String,
    /// Its line, counted from 1.
    pub line: usize,
}

impl fmt::Debug for ConfEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {:?}", self.name, redacted(&self.name, &self.value))
    }
}

/// A parsed configuration file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfFile {
    path: PathBuf,
    sections: Vec<(String, Vec<ConfEntry>)>,
}

impl ConfFile {
    /// Reads and parses the file at `path`.
    pub fn read(path: &Path) -> Result<ConfFile> {
        let size = match std::fs::metadata(path) {
            Ok(meta) => meta.len(),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return Err(Error::NotFound(format!("configuration file {} does not exist", path.display())));
            }
            Err(e) => return Err(Error::io("open", path, e)),
        };
        let refuse =
            |reason: &str| Error::Syntax { file: path.to_owned(), line: 1, reason: reason.to_owned() };
        if size > MAX_BYTES {
            return Err(refuse("too long for a configuration file"));
        }
        let bytes = std::fs::read(path).map_err(|e| Error::io("read", path, e))?;
        let text = String::from_utf8(bytes).map_err(|_| refuse("not a text file"))?;
        ConfFile::parse(path, &text)
    }

    /// Parses `text`. `path` is for error messages.
    pub fn parse(path: &Path, text: &str) -> Result<ConfFile> {
        ConfFile::parse_quoting(path, text, true)
    }

    /// Parses `text` that may contain secrets: error messages contain nothing of it.
    pub(crate) fn parse_sensitive(path: &Path, text: &str) -> Result<ConfFile> {
        ConfFile::parse_quoting(path, text, false)
    }

    fn parse_quoting(path: &Path, text: &str, quote: bool) -> Result<ConfFile> {
        let short = |text: &str| if quote { text.chars().take(60).collect() } else { "…".to_owned() };
        let mut file = ConfFile { path: path.to_owned(), sections: Vec::new() };
        let mut current = "global".to_owned();
        for (line, logical) in logical_lines(text) {
            let trimmed = logical.trim();
            if trimmed.is_empty() || trimmed.starts_with([';', '#']) {
                continue;
            }
            if let Some(header) = trimmed.strip_prefix('[') {
                let (name, after) = header
                    .split_once(']')
                    .ok_or_else(|| file.syntax_error(line, "section header without ']'"))?;
                let after = after.trim_start();
                if !(after.is_empty() || after.starts_with([';', '#'])) {
                    return Err(file.syntax_error(line, "text after the section header"));
                }
                if name.trim().is_empty() {
                    return Err(file.syntax_error(line, "section without a name"));
                }
                current = name.trim().to_owned();
                file.entries(&current);
                continue;
            }
            let (name, value) = trimmed.split_once('=').ok_or_else(|| {
                file.syntax_error(line, format!("expected 'name = value', got '{}'", short(trimmed)))
            })?;
            let name = normalize_name(name);
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '/' | ':');
            if name.is_empty() || !name.chars().all(plain) {
                return Err(file.syntax_error(line, format!("'{}' is not an option name", short(&name))));
            }
            let value = unquote(value.trim()).map_err(|reason| file.syntax_error(line, reason))?;
            file.entries(&current).push(ConfEntry { name, value, line });
        }
        Ok(file)
    }

    fn entries(&mut self, section: &str) -> &mut Vec<ConfEntry> {
        let at = self.sections.iter().position(|(name, _)| name == section).unwrap_or_else(|| {
            self.sections.push((section.to_owned(), Vec::new()));
            self.sections.len() - 1
        });
        &mut self.sections[at].1
    }

    /// The path from which it was read.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The sections with their lines.
    pub(crate) fn into_sections(self) -> Vec<(String, Vec<ConfEntry>)> {
        self.sections
    }

    /// The sections' names in the file's order.
    pub fn section_names(&self) -> impl Iterator<Item = &str> {
        self.sections.iter().map(|(name, _)| name.as_str())
    }

    /// Returns a section's lines; none if it is missing. The last one of a name counts.
    pub fn section(&self, name: &str) -> &[ConfEntry] {
        self.sections.iter().find(|(section, _)| section == name).map_or(&[], |(_, entries)| entries)
    }

    /// Returns the value of `option` in the first of `sections` that has it (`ceph-conf --lookup`).
    pub fn lookup(&self, sections: &[&str], option: &str) -> Option<&str> {
        let option = normalize_name(option);
        sections.iter().find_map(|section| {
            self.section(section).iter().rev().find(|e| e.name == option).map(|e| e.value.as_str())
        })
    }

    pub(crate) fn syntax_error(&self, line: usize, reason: impl Into<String>) -> Error {
        Error::Syntax { file: self.path.clone(), line, reason: reason.into() }
    }
}

/// Joins lines that end in a backslash. Yields the number of the first of them.
fn logical_lines(text: &str) -> impl Iterator<Item = (usize, String)> {
    let mut lines = text.lines().enumerate();
    std::iter::from_fn(move || {
        let (at, first) = lines.next()?;
        let mut joined = first.to_owned();
        while ends_in_continuation(&joined) {
            joined.pop();
            match lines.next() {
                Some((_, more)) => joined.push_str(more.trim_start()),
                None => break,
            }
        }
        Some((at + 1, joined))
    })
}

/// Whether the line ends in an odd number of backslashes.
fn ends_in_continuation(line: &str) -> bool {
    line.bytes().rev().take_while(|b| *b == b'\\').count() % 2 == 1
}

/// Removes quotes, escapes and a trailing comment.
fn unquote(text: &str) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut kept = 0;
    let mut quote = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (c, quote) {
            ('\\', _) => match chars.next() {
                Some(escaped) => {
                    out.push(escaped);
                    kept = out.len();
                }
                None => return Err("a backslash at the end of the file".to_owned()),
            },
            (c, Some(open)) if c == open => quote = None,
            (c, Some(_)) => {
                out.push(c);
                kept = out.len();
            }
            ('"' | '\'', None) => {
                quote = Some(c);
                kept = out.len();
            }
            (';' | '#', None) => break,
            (c, None) => {
                out.push(c);
                if !c.is_whitespace() {
                    kept = out.len();
                }
            }
        }
    }
    if quote.is_some() {
        return Err("quotation mark without its pair".to_owned());
    }
    out.truncate(kept);
    Ok(out)
}
