//! The crates' allowed direction, as ARCHITECTURE.md draws it. A new edge is an architectural decision: it is made
//! there and here together.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Each crate with what it may use of the workspace.
const ALLOWED: &[(&str, &[&str])] = &[
    // Used by tests only.
    ("fuzz", &[]),
    ("types", &[]),
    ("runtime", &["types"]),
    ("pg", &["types"]),
    ("store", &["types", "runtime"]),
    ("engine", &["types"]),
    ("task", &[]),
    ("client", &["types", "runtime", "engine", "task"]),
    ("mon", &["types", "runtime"]),
    ("osd", &["types", "runtime", "pg", "store", "client"]),
    ("sim", &["types", "runtime", "pg", "mon", "engine", "task"]),
    ("librados", &["types", "runtime", "client"]),
    ("rgw", &["types", "runtime", "client"]),
    ("nacre", &["types", "runtime", "pg", "store", "client", "mon", "osd", "rgw"]),
];

/// Dependencies that make code impure: clocks, sockets, threads, randomness.
const IMPURE: &[&str] = &["tokio", "rand", "getrandom", "rustix", "socket2", "rocksdb", "tracing"];

/// The names in `[dependencies]` of a manifest.
fn dependencies(manifest: &Path) -> Vec<String> {
    let text = fs::read_to_string(manifest).unwrap_or_else(|e| panic!("{}: {e}", manifest.display()));
    let section = text.split("\n[").find(|s| s.starts_with("dependencies]")).unwrap_or("");
    let names = section.lines().skip(1).filter_map(|line| line.split(['.', '=', ' ']).next());
    names.filter(|name| !name.is_empty() && !name.starts_with('#')).map(str::to_owned).collect()
}

fn workspace() -> BTreeMap<String, Vec<String>> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let folders = fs::read_dir(crates).unwrap().map(|entry| entry.unwrap().path());
    folders
        .filter(|path| path.join("Cargo.toml").exists())
        .map(|path| {
            (path.file_name().unwrap().to_string_lossy().into_owned(), dependencies(&path.join("Cargo.toml")))
        })
        .collect()
}

#[test]
fn crates_use_only_what_their_layer_allows() {
    let found = workspace();
    for (name, dependencies) in &found {
        let (_, allowed) =
            ALLOWED.iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("{name} is not in the table"));
        for dependency in dependencies.iter().filter_map(|d| d.strip_prefix("nacre-")) {
            assert!(allowed.contains(&dependency), "{name} may not use {dependency}");
        }
    }
    assert!(found.len() >= ALLOWED.len(), "a crate of the table is gone: {found:?}");
}

#[test]
fn crates_below_simulated_code_have_channels_of_tokio_at_most() {
    let found = workspace();
    for name in ["engine", "task"] {
        let impure = IMPURE.iter().filter(|impure| !["tokio", "tracing"].contains(impure));
        for impure in impure {
            assert!(!found[name].iter().any(|d| d == impure), "{name} may not use {impure}");
        }
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join(name).join("Cargo.toml");
        let text = fs::read_to_string(manifest).unwrap();
        for line in text.lines().filter(|line| line.starts_with("tokio")) {
            let channels = r#"tokio = { version = "1", default-features = false, features = ["sync"] }"#;
            assert_eq!(line, channels, "{name} has more of tokio than channels");
        }
    }
}

#[test]
fn pure_crates_have_no_way_to_reach_the_world() {
    let found = workspace();
    for name in ["types", "pg"] {
        let dependencies = &found[name];
        assert!(!dependencies.is_empty(), "the manifest of {name} was not understood");
        for impure in IMPURE {
            assert!(!dependencies.iter().any(|d| d == impure), "{name} is pure and may not use {impure}");
        }
    }
}
