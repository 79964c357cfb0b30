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
        .filter(|spec| !matches!(spec.support, nacre_types::support::Support::Advisory(_)))
        .map(|spec| spec.name)
        .filter(|name| !words.contains(name) && !FIXED.contains(name))
        .collect();
    assert!(unused.is_empty(), "nothing reads {unused:?}");
}
