//! Tests that generated pages match the code.

use crate::support::nacre;
use regex::Regex;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn pages_that_are_generated_are_up_to_date() {
    let pages = [("options", "option-reference"), ("compatibility", "compatibility-reference")];
    for (name, command) in pages {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../docs/{name}.md"));
        let written = std::fs::read_to_string(&page).unwrap_or_default();
        let generated = Command::new(nacre()).arg(command).output().unwrap();
        assert!(generated.status.success());
        let generated = String::from_utf8(generated.stdout).unwrap();
        assert!(generated.contains("osd_pool_default_pg_autoscale_mode"), "{name}.md is empty");
        assert!(written == generated, "docs/{name}.md is stale: run `make docs`");
    }
}

/// Collects the pages below a folder, with their text.
fn pages(folder: &Path, into: &mut BTreeMap<PathBuf, String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            pages(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            let text = std::fs::read_to_string(&path).unwrap();
            into.insert(path, text);
        }
    }
}

/// The part of a link after `#` that leads to a heading, as GitHub and mdBook make it.
fn anchor(heading: &str) -> String {
    let link = Regex::new(r"\[([^\]]*)\]\([^)]*\)").unwrap();
    let text = link.replace_all(heading.trim(), "$1").to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_' | ' '));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// A page without its code, in which brackets are no links.
fn prose(text: &str) -> String {
    let fences = Regex::new(r"(?ms)^```.*?^```").unwrap();
    Regex::new(r"`[^`\n]*`").unwrap().replace_all(&fences.replace_all(text, ""), "").into_owned()
}

#[test]
fn links_between_pages_lead_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let mut all = BTreeMap::new();
    pages(&root.join("docs"), &mut all);
    for name in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "bench/RESULTS.md"] {
        all.insert(root.join(name), std::fs::read_to_string(root.join(name)).unwrap());
    }
    // Its links are relative to the root: scripts/book puts it there.
    let summary = std::fs::read_to_string(root.join("contrib/book/SUMMARY.md")).unwrap();
    let is_listed =
        |page: &PathBuf| summary.contains(&format!("({})", page.strip_prefix(&root).unwrap().display()));
    let missing: Vec<_> = all.keys().filter(|page| !is_listed(page)).collect();
    assert!(missing.is_empty(), "contrib/book/SUMMARY.md lacks {missing:?}");
    all.insert(root.join("SUMMARY.md"), summary);
    let link = Regex::new(r"\]\(([^)\s]+)\)").unwrap();
    let (mut broken, mut count) = (Vec::new(), 0);
    for (page, text) in &all {
        for found in link.captures_iter(&prose(text)) {
            let target = &found[1];
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            count += 1;
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let file = if file.is_empty() {
                Some(page.clone())
            } else {
                page.with_file_name(file).canonicalize().ok()
            };
            let is_there = file.is_some_and(|file| {
                let Some(text) = all.get(&file).filter(|_| !heading.is_empty()) else {
                    return heading.is_empty();
                };
                let headings = text
                    .lines()
                    .filter_map(|line| line.trim_start_matches('#').strip_prefix(' ').map(anchor));
                headings.into_iter().any(|anchor| anchor == heading)
            });
            if !is_there {
                broken.push(format!("{}: {target}", page.strip_prefix(&root).unwrap().display()));
            }
        }
    }
    assert!(count > 100, "only {count} links were found");
    assert!(broken.is_empty(), "{broken:#?}");
}

/// Options that are read, checked and shown, but have no effect, because there is only one value.
const FIXED: [&str; 3] = ["auth_cluster_required", "auth_service_required", "auth_client_required"];

fn sources(folder: &Path, into: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            if !path.ends_with("common/src/options") && !path.ends_with("tests") {
                sources(&path, into);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            // A comment is not a use of an option.
            let text = std::fs::read_to_string(&path).unwrap();
            into.extend(
                text.lines().filter(|line| !line.trim_start().starts_with("//")).flat_map(|l| [l, "\n"]),
            );
        }
    }
}

#[test]
fn every_option_has_something_behind_it() {
    let mut code = String::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), &mut code);
    let words: std::collections::HashSet<&str> =
        code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
    let unused: Vec<&str> = nacre_common::options::all()
        .filter(|spec| !matches!(spec.support, nacre_types::support_level::SupportLevel::Advisory(_)))
        .map(|spec| spec.name)
        .filter(|name| !words.contains(name) && !FIXED.contains(name))
        .collect();
    assert!(unused.is_empty(), "nothing reads {unused:?}");
}
