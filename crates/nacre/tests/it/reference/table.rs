//! The table of lines (`tests/reference/lines.txt`), and the lines that the documents have.

const LINES: &str = include_str!("../../reference/lines.txt");
const DOCUMENTS: &str = include_str!("../../reference/documents.txt");

/// The expected behaviour of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Works,
    Consent,
    Config,
    Advisory,
    Option,
    Setting,
    Output,
    Pending,
    Foreign,
}

#[derive(Clone, Debug)]
pub(super) struct Line {
    /// The number of the line's document, with `+` if the document does not contain the line.
    pub(super) document: String,
    pub(super) verdict: Verdict,
    pub(super) text: String,
}

/// The table. A line without a verdict or a document is an error in it.
pub(super) fn lines() -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    let mut document = String::new();
    for row in LINES.lines().filter(|row| !row.is_empty() && !row.starts_with('#')) {
        if let Some(heading) = row.strip_prefix("== ") {
            document = heading.split(' ').next().unwrap().to_owned();
            continue;
        }
        if row.starts_with(' ') {
            let last = lines.last_mut().expect("a line that goes on follows one");
            assert!(last.text.ends_with('\\'), "{row:?} goes on from a line that does not");
            last.text.push_str(&format!("\n{row}"));
            continue;
        }
        let (verdict, text) = row.split_once("| ").unwrap_or_else(|| panic!("no verdict: {row:?}"));
        let words: Vec<&str> = verdict.split_whitespace().collect();
        let verdict = match words[..] {
            ["works"] => Verdict::Works,
            ["consent"] => Verdict::Consent,
            ["config"] => Verdict::Config,
            ["advisory"] => Verdict::Advisory,
            ["option"] => Verdict::Option,
            ["setting"] => Verdict::Setting,
            ["output"] => Verdict::Output,
            ["pending", _] => Verdict::Pending,
            ["foreign", _] => Verdict::Foreign,
            _ => panic!("no verdict is called {words:?}"),
        };
        assert!(document.trim_end_matches('+').parse::<u8>().is_ok(), "no document: {row:?}");
        lines.push(Line { document: document.clone(), verdict, text: text.to_owned() });
    }
    lines
}

/// The table's lines of one document with this verdict.
pub(super) fn of(document: &str, verdict: &Verdict) -> Vec<String> {
    let chosen = |line: &Line| line.document == document && line.verdict == *verdict;
    lines().into_iter().filter(chosen).map(|line| line.text).collect()
}

/// The lines of all documents, with the document's number. Continued lines are joined.
pub(super) fn of_documents() -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    let mut document = "";
    for row in DOCUMENTS.lines().filter(|row| !row.is_empty() && !row.starts_with('#')) {
        match (row.strip_prefix("== "), found.last_mut()) {
            (Some(heading), _) => document = heading.split(' ').next().unwrap(),
            (None, Some((_, last))) if row.starts_with(' ') => *last += &format!("\n{row}"),
            _ => found.push((document.to_owned(), row.to_owned())),
        }
    }
    found
}

/// A line without its layout.
pub(super) fn normal(line: &str) -> String {
    line.replace("\\\n", " ").split_whitespace().collect::<Vec<_>>().join(" ")
}
