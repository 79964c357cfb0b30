//! Tests the release build for users: optimised, and without code that only tests need.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Every Rust source below a folder.
fn sources(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(fs::read_to_string(&path).unwrap());
        }
    }
}

/// The names of all failpoints: the first argument of each `fail_point!`.
fn failpoints() -> BTreeSet<String> {
    let mut texts = Vec::new();
    for member in fs::read_dir(workspace().join("crates")).unwrap() {
        sources(&member.unwrap().path().join("src"), &mut texts);
    }
    let quoted = |rest: &str| rest.trim_start().strip_prefix('"')?.split('"').next().map(str::to_owned);
    texts.iter().flat_map(|text| text.split("fail_point!(").skip(1)).filter_map(quoted).collect()
}

/// The names of the rules that the simulator can break: the variants of `nacre_pg::Mutation`.
fn mutations() -> BTreeSet<String> {
    let text = fs::read_to_string(workspace().join("crates/pg/src/settings.rs")).unwrap();
    let body = text.split_once("pub enum Mutation {").unwrap().1.split_once("\n}").unwrap().0;
    let variant = |line: &str| line.trim().strip_suffix(',').map(str::to_owned);
    body.lines().filter_map(variant).filter(|name| name != "None").collect()
}

/// The release build's binary and library: those in `NACRE_TEST_BINARY`, or otherwise what Cargo builds.
fn release_build() -> (PathBuf, PathBuf) {
    if let Some(binary) = std::env::var_os("NACRE_TEST_BINARY") {
        return (PathBuf::from(&binary), Path::new(&binary).with_file_name("librados.so"));
    }
    let mut cargo = Command::new(env!("CARGO"));
    // Variables that Cargo sets for this test are not settings of the build: build scripts that depend on them would run again.
    let set_by_cargo = |name: &str| {
        ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_EXE_", "LD_LIBRARY_PATH"]
            .iter()
            .any(|part| name.starts_with(part))
    };
    for (name, _) in std::env::vars().filter(|(name, _)| set_by_cargo(name)) {
        cargo.env_remove(name);
    }
    let args = ["build", "--locked", "--release", "-p", "nacre", "-p", "nacre-librados"];
    let built = cargo.current_dir(workspace()).args(args).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let folder = workspace().join("target/release");
    (folder.join("nacre"), folder.join("librados.so"))
}

#[test]
fn the_release_build_has_no_assertions_failpoints_or_mutations() {
    let (binary, library) = release_build();
    let doctor = Command::new(&binary).arg("doctor").output().unwrap();
    let said = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(said.contains(", without assertions"), "{said}");

    let (failpoints, mutations) = (failpoints(), mutations());
    assert!(failpoints.len() > 20 && mutations.len() > 10, "{failpoints:?} {mutations:?}");
    for program in [binary, library] {
        let bytes = fs::read(&program).unwrap();
        // As a whole: a symbol such as `nacre_mapstore::read_prefix` contains the name of a failpoint.
        let is_word =
            |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
        let has = |name: &str| {
            memchr::memmem::find_iter(&bytes, name.as_bytes())
                .any(|at| !is_word(at.checked_sub(1).and_then(|before| bytes.get(before))))
        };
        assert!(has("osd_max_backfills"), "{}: the search finds what is there", program.display());
        for name in failpoints.iter().chain(&mutations) {
            assert!(!has(name), "{} contains {name}", program.display());
        }
    }
}
