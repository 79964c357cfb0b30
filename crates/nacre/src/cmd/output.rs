//! Output of commands: text for users, or one JSON document for scripts.

use serde_json::Value;
use std::io::{self, Write};

/// `--format`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(in crate::cmd) enum Format {
    /// Text for people
    #[default]
    Plain,
    /// Compact JSON
    Json,
    /// Indented JSON
    JsonPretty,
}

impl Format {
    /// The format of this name.
    pub(in crate::cmd) fn from_name(name: &str) -> Option<Format> {
        match name {
            "plain" => Some(Format::Plain),
            "json" => Some(Format::Json),
            "json-pretty" => Some(Format::JsonPretty),
            _ => None,
        }
    }

    /// Ceph's JSON: compact without a newline, or indented by four with one.
    pub(in crate::cmd) fn render(self, document: &Value) -> String {
        match self {
            Format::Plain | Format::Json => document.to_string(),
            Format::JsonPretty => String::from_utf8(nacre_types::command::render_json(document, None))
                .expect("invariant: JSON is UTF-8"),
        }
    }

    /// The destination of text for users: none if JSON was requested.
    pub(in crate::cmd) fn text_writer(self) -> Box<dyn Write> {
        match self {
            Format::Plain => Box::new(io::stdout().lock()),
            Format::Json | Format::JsonPretty => Box::new(io::sink()),
        }
    }

    /// Writes the document and a newline to `out` if JSON was requested.
    pub(in crate::cmd) fn write_json(self, out: &mut dyn Write, document: &Value) -> io::Result<()> {
        match self {
            Format::Plain => Ok(()),
            format => writeln!(out, "{}", format.render(document).trim_end()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;
    use serde_json::json;

    #[test]
    fn documents_are_for_scripts_only() {
        let document = json!({ "a": [1] });
        for (name, expected) in [
            ("plain", ""),
            ("json", "{\"a\":[1]}\n"),
            ("json-pretty", "{\n    \"a\": [\n        1\n    ]\n}\n"),
        ] {
            let mut out = Vec::new();
            let format = Format::from_name(name).unwrap();
            format.write_json(&mut out, &document).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), expected, "{name}");
            assert_eq!(Format::from_str(name, false), Ok(format), "the same name for clap");
        }
        assert_eq!(Format::from_name("xml"), None);
    }
}
