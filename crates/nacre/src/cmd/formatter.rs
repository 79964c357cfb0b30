//! Ceph's output formats for a JSON document: `json`, `json-pretty`, `xml`, `xml-pretty`, `table`, `table-kv`, `html` and
//! `html-pretty`, with the layout of Ceph's `Formatter` classes.
//!
//! In JSON the elements of an array and the document itself have no names; in XML and tables they do. [`ElementNames`] supplies them.

use super::crushtool::tester::format_g;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;

/// The layout of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DumpFormat {
    /// One line of JSON.
    Json,
    /// JSON, indented by four spaces.
    JsonPretty,
    /// XML.
    Xml { pretty: bool },
    /// HTML lists.
    Html { pretty: bool },
    /// One table with a column for each value.
    Table,
    /// `key::NAME="VALUE"` pairs.
    TableKv,
}

impl DumpFormat {
    /// The format with this name, as in `--format`.
    pub(super) fn from_name(name: &str) -> Option<DumpFormat> {
        Some(match name {
            "json" => DumpFormat::Json,
            "json-pretty" => DumpFormat::JsonPretty,
            "xml" => DumpFormat::Xml { pretty: false },
            "xml-pretty" => DumpFormat::Xml { pretty: true },
            "html" => DumpFormat::Html { pretty: false },
            "html-pretty" => DumpFormat::Html { pretty: true },
            "table" => DumpFormat::Table,
            "table-kv" => DumpFormat::TableKv,
            _ => return None,
        })
    }
}

/// The names that JSON lacks.
#[derive(Clone, Copy)]
pub(super) struct ElementNames {
    /// The name of the document.
    pub(super) root: &'static str,
    /// The name of an array's elements, by the array's name.
    pub(super) element: fn(&str) -> &'static str,
    /// Fields that Ceph's tables assign to the section around their own.
    pub(super) outer_fields: &'static [&'static str],
}

/// The document's text. Formats with several lines end with a newline.
pub(super) fn render(document: &Value, names: ElementNames, format: DumpFormat) -> String {
    match format {
        DumpFormat::Json => document.to_string(),
        DumpFormat::JsonPretty => {
            String::from_utf8_lossy(&nacre_types::command::render_json(document, None)).into_owned()
        }
        DumpFormat::Xml { pretty } | DumpFormat::Html { pretty } => {
            let html = matches!(format, DumpFormat::Html { .. });
            let mut markup = Markup { names, pretty, html, out: String::new() };
            markup.value(names.root, document, 0);
            if pretty {
                // Ceph adds another newline after the document.
                markup.out.push('\n');
            }
            markup.out
        }
        DumpFormat::Table | DumpFormat::TableKv => {
            let mut columns = Columns { names, cells: Vec::new(), counts: BTreeMap::new() };
            columns.value(names.root, document, "");
            match format {
                DumpFormat::TableKv => columns.pairs(),
                _ => columns.table(),
            }
        }
    }
}

/// A scalar's text.
fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

struct Markup {
    names: ElementNames,
    pretty: bool,
    html: bool,
    out: String,
}

impl Markup {
    fn value(&mut self, name: &str, value: &Value, depth: usize) {
        match value {
            Value::Object(fields) => {
                let fields = fields.iter().map(|(name, value)| (name.as_str(), value));
                self.section(name, fields, depth);
            }
            Value::Array(elements) => {
                let element = (self.names.element)(name);
                self.section(name, elements.iter().map(|value| (element, value)), depth);
            }
            Value::Number(number) if self.html && !number.is_i64() && !number.is_u64() => {
                let text = format_g(number.as_f64().unwrap_or_default());
                self.leaf(name, &text, depth);
            }
            other => self.leaf(name, &scalar(other), depth),
        }
    }

    fn section<'v>(&mut self, name: &str, parts: impl Iterator<Item = (&'v str, &'v Value)>, depth: usize) {
        self.line(depth, &format!("<{name}>"));
        for (part, value) in parts {
            self.value(part, value, depth + 1);
        }
        self.line(depth, &format!("</{name}>"));
    }

    fn leaf(&mut self, name: &str, text: &str, depth: usize) {
        let text = escape(text);
        let text =
            if self.html { format!("<li>{name}: {text}</li>") } else { format!("<{name}>{text}</{name}>") };
        self.line(depth, &text);
    }

    fn line(&mut self, depth: usize, text: &str) {
        if self.pretty {
            self.out.extend(std::iter::repeat_n(' ', depth));
        }
        self.out.push_str(text);
        if self.pretty {
            self.out.push('\n');
        }
    }
}

fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '\'' => out.push_str("&apos;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
}

/// All scalars of the document with their paths, the innermost section first.
struct Columns {
    names: ElementNames,
    cells: Vec<(String, String)>,
    /// How often each path occurred.
    counts: BTreeMap<String, usize>,
}

impl Columns {
    fn value(&mut self, name: &str, value: &Value, outer: &str) {
        match value {
            Value::Object(fields) => {
                let inside = format!("{name}:{outer}");
                for (field, value) in fields {
                    let is_late = self.names.outer_fields.contains(&field.as_str());
                    self.value(field, value, if is_late { outer } else { &inside });
                }
            }
            Value::Array(elements) => {
                let inside = format!("{name}:{outer}");
                let element = (self.names.element)(name);
                for value in elements {
                    self.value(element, value, &inside);
                }
            }
            other => {
                let path = format!("{outer}{name}");
                let count = self.counts.entry(path.clone()).or_default();
                self.cells.push((format!("{path}[{count}]"), scalar(other)));
                *count += 1;
            }
        }
    }

    fn pairs(&self) -> String {
        let mut out = String::new();
        for (name, value) in &self.cells {
            let _ = write!(out, "key::{name}=\"{value}\" ");
        }
        out.push('\n');
        out
    }

    fn table(&self) -> String {
        let widths: Vec<usize> =
            self.cells.iter().map(|(name, value)| name.chars().count().max(value.chars().count())).collect();
        let rule: String = widths.iter().map(|width| format!("+{}", "-".repeat(width + 3))).collect();
        let row = |cell: fn(&(String, String)) -> &str| -> String {
            let cells = self.cells.iter().zip(&widths);
            cells.map(|(pair, width)| format!("| {:<width$}  ", cell(pair))).collect()
        };
        let (names, values) = (row(|pair| &pair.0), row(|pair| &pair.1));
        format!("{rule}+\n{names}|\n{rule}+\n{values}|\n{rule}+\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const NAMES: ElementNames = ElementNames {
        root: "map",
        element: |array| match array {
            "things" => "thing",
            _ => "item",
        },
        outer_fields: &["stamp"],
    };

    #[test]
    fn a_document_is_laid_out_in_every_format() {
        let document =
            json!({ "epoch": 1, "things": [{ "name": "a<b", "w": 0.123456789 }, { "name": "c" }], "no": [] });
        let render = |format: &str| render(&document, NAMES, DumpFormat::from_name(format).unwrap());
        assert_eq!(
            render("xml"),
            "<map><epoch>1</epoch><things><thing><name>a&lt;b</name><w>0.123456789</w></thing><thing><name>c</name>\
             </thing></things><no></no></map>"
        );
        assert!(render("xml-pretty").starts_with("<map>\n <epoch>1</epoch>\n <things>\n  <thing>\n"));
        assert!(render("html").contains("<li>w: 0.123457</li>"));
        assert_eq!(
            render("table-kv"),
            "key::map:epoch[0]=\"1\" key::thing:things:map:name[0]=\"a<b\" key::thing:things:map:w[0]=\"0.123456789\" \
             key::thing:things:map:name[1]=\"c\" \n"
        );
        assert!(render("json-pretty").starts_with("{\n    \"epoch\": 1,"));
        assert_eq!(DumpFormat::from_name("yaml"), None);
    }

    #[test]
    fn a_table_has_a_column_for_each_value() {
        let document = json!({ "a": "long value", "in": { "b": true, "stamp": "0'0" } });
        let table = render(&document, NAMES, DumpFormat::Table);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines[0], "+-------------+--------------+---------------+");
        assert_eq!(lines[1], "| map:a[0]    | in:map:b[0]  | map:stamp[0]  |");
        assert_eq!(lines[3], "| long value  | true         | 0'0           |");
        assert_eq!(lines.len(), 5);
    }
}
