//! Words that the project does not use. `words.txt` lists them with what to write instead.

use regex::Regex;
use std::path::Path;

const EXTENSIONS: [&str; 7] = ["rs", "md", "py", "sh", "c", "toml", "txt"];
/// Not the project's prose: recordings of Ceph's output, corpora of fuzz tests, output of builds, and the list itself with its test.
const SKIPPED: [&str; 7] = ["target", "data", "recordings", "corpus", "answers", "words.txt", "words.rs"];

struct Word {
    pattern: Regex,
    instead: &'static str,
}

fn words() -> Vec<Word> {
    let lines = include_str!("words.txt").lines().filter(|line| !line.starts_with('#'));
    let word = |line: &'static str| {
        let (pattern, instead) = line.split_once('\t').unwrap_or_else(|| panic!("no tab: {line}"));
        Word { pattern: Regex::new(&format!(r"(?i-u:\b(?:{pattern})\b)")).unwrap(), instead }
    };
    lines.map(word).collect()
}

/// Calls `check` with each text file of the repository.
fn each_text(folder: &Path, check: &mut impl FnMut(&Path, &str)) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if name.starts_with('.') || SKIPPED.contains(&name) {
            continue;
        }
        if path.is_dir() {
            each_text(&path, check);
        } else if path.extension().is_none_or(|extension| EXTENSIONS.iter().any(|known| extension == *known))
            && let Ok(text) = std::fs::read_to_string(&path)
        {
            check(&path, &text);
        }
    }
}

#[test]
fn words_of_the_list_are_not_used() {
    let (words, root) = (words(), Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
    let (mut found, mut files) = (Vec::new(), 0);
    each_text(&root, &mut |path, text| {
        files += 1;
        for word in &words {
            for hit in word.pattern.find_iter(text) {
                let line = text[..hit.start()].matches('\n').count() + 1;
                let path = path.strip_prefix(&root).unwrap().display();
                found.push(format!("{path}:{line}: \"{}\": write {}", hit.as_str(), word.instead));
            }
        }
    });
    assert!(files > 1000, "only {files} files were searched");
    assert!(found.is_empty(), "{} words of the list:\n{}", found.len(), found.join("\n"));
}

/// The list finds what it is for.
#[test]
fn words_of_the_list_are_found() {
    let words = words();
    let is_found = |text: &str| words.iter().any(|word| word.pattern.is_match(text));
    for text in [
        "the PG peers anew",
        "data that nothing names any more",
        "pub struct Begun {",
        "// Hence it is gone.",
    ] {
        assert!(is_found(text), "{text}");
    }
    for text in ["renewed", "unreferenced data", "let stand = 1;", "enum Standing {"] {
        assert!(!is_found(text), "{text}");
    }
}
