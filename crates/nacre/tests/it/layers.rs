//! The allowed dependencies between crates, as in ARCHITECTURE.md. A new edge is an architectural decision, recorded in both
//! places. Also checks that the modules of a crate form no cycles, licences and sources of external crates, and the profile of
//! the tests.

mod modules;

use modules::ModuleGraph;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Each crate with the workspace's crates that it may use.
const ALLOWED: &[(&str, &[&str])] = &[
    // Used by tests only.
    ("fuzz", &[]),
    ("crush", &[]),
    ("types", &["crush"]),
    ("index", &["types"]),
    ("common", &["types"]),
    ("session", &["types"]),
    ("runtime", &["types", "common", "session"]),
    ("pg", &["types"]),
    ("tier", &["types"]),
    ("topics", &["types"]),
    ("queues", &["types"]),
    ("objectstore", &["types", "common"]),
    ("store", &["types", "common", "objectstore"]),
    ("exec", &["types", "common", "objectstore", "pg"]),
    ("engine", &["types"]),
    ("task", &[]),
    ("objecter", &["types", "engine"]),
    ("striper", &["types", "engine"]),
    ("client", &["types", "common", "runtime", "engine", "objecter", "striper", "task"]),
    ("notify", &["types", "engine", "task", "topics", "index", "queues"]),
    ("mon", &["crush", "types", "common"]),
    ("mapstore", &["types", "common", "mon"]),
    ("monitor", &["crush", "types", "common", "runtime", "mon", "mapstore"]),
    ("shard", &["types", "common", "objectstore", "pg", "tier", "exec"]),
    ("osd", &["types", "common", "runtime", "pg", "exec", "shard", "store", "client"]),
    (
        "sim",
        &[
            "crush",
            "types",
            "common",
            "session",
            "objectstore",
            "pg",
            "exec",
            "shard",
            "mon",
            "engine",
            "objecter",
            "striper",
            "task",
        ],
    ),
    ("librados", &["types", "common", "runtime", "client"]),
    ("rgw", &["types", "common", "client", "engine", "task", "topics", "index", "queues", "notify"]),
    ("s3", &["types", "common", "topics", "notify", "rgw"]),
    ("push", &["types", "topics", "notify"]),
    (
        "nacre",
        &[
            "crush", "types", "common", "runtime", "pg", "store", "client", "mon", "mapstore", "monitor",
            "osd", "rgw", "s3", "topics", "notify", "push",
        ],
    ),
];

/// Dependencies that make code impure: clocks, sockets, threads, randomness.
const IMPURE: &[&str] = &["tokio", "rand", "getrandom", "rustix", "socket2", "rocksdb", "tracing"];

/// Crates that the simulator must not depend on, directly or indirectly: databases and sockets, timers and threads of tokio.
const NOT_SIMULATED: &[&str] = &["rocksdb", "librocksdb-sys", "mio", "socket2", "nacre-runtime"];

#[test]
fn the_simulator_stands_on_nothing_that_reaches_the_world() {
    let tree = Command::new(env!("CARGO"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args([
            "tree",
            "--locked",
            "--offline",
            "--edges",
            "normal",
            "--prefix",
            "none",
            "--package",
            "nacre-sim",
        ])
        .args(["--format", "{p}|{f}"])
        .output()
        .unwrap();
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let tree = String::from_utf8(tree.stdout).unwrap();
    assert!(tree.contains("nacre-pg v"), "{tree}");
    for line in tree.lines() {
        let (package, features) = line.split_once('|').unwrap_or((line, ""));
        let name = package.split(' ').next().unwrap_or_default();
        assert!(!NOT_SIMULATED.contains(&name), "nacre-sim has {package}");
        if name == "tokio" {
            let features = features.trim_end_matches(" (*)");
            let more: Vec<&str> = features.split(',').filter(|f| !["sync", ""].contains(f)).collect();
            assert!(more.is_empty(), "nacre-sim has tokio with {more:?}");
        }
    }
}

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
    for name in ["engine", "task", "striper", "notify", "shard"] {
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
    for name in ["crush", "types", "session", "pg", "tier", "topics", "index", "queues", "objecter", "mon"] {
        let dependencies = &found[name];
        assert!(!dependencies.is_empty(), "the manifest of {name} was not understood");
        for impure in IMPURE {
            assert!(!dependencies.iter().any(|d| d == impure), "{name} is pure and may not use {impure}");
        }
    }
}

/// The cycles of top-level modules that are left: the crate, all modules of the cycle, and the reason. Cycles are only removed from
/// the list.
const CYCLES: &[(&str, &[&str], &str)] = &[(
    "pg",
    &["damage", "membership", "peering", "pg", "primary", "recovery", "replica", "restore", "tail"],
    "the machine of one PG: each file is an `impl Pg` for one part of the protocol, and has its state",
)];

/// The differences between the cycles of a crate and those that the list allows.
fn unexpected_cycles(name: &str, graph: &ModuleGraph, allowed: &[(&str, &[&str], &str)]) -> Vec<String> {
    let of_crate = allowed.iter().filter(|(of, _, _)| *of == name);
    let listed: BTreeSet<BTreeSet<&str>> =
        of_crate.map(|(_, modules, _)| modules.iter().copied().collect()).collect();
    let found = graph.cycles();
    let new = found
        .difference(&listed)
        .map(|cycle| format!("{name}: these modules use each other, {cycle:?}:{}", graph.describe(cycle)));
    let gone = listed.difference(&found).map(|cycle| {
        format!(
            "{name}: these modules are no cycle, or only a part of one; remove it from the list: {cycle:?}"
        )
    });
    new.chain(gone).collect()
}

#[test]
fn modules_of_a_crate_form_no_cycles() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut problems = Vec::new();
    let names = workspace().into_keys().collect::<BTreeSet<_>>();
    for name in &names {
        let roots = ["lib.rs", "main.rs"].map(|root| crates.join(name).join("src").join(root));
        let root = roots.iter().find(|root| root.exists()).unwrap();
        problems.extend(unexpected_cycles(name, &ModuleGraph::read(root), CYCLES));
    }
    let unknown = CYCLES.iter().filter(|(name, _, _)| !names.contains(*name));
    problems.extend(unknown.map(|(name, _, _)| format!("there is no crate {name}")));
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
}

#[test]
fn a_cycle_of_modules_is_found_with_the_files_that_cause_it() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("lib.rs", "mod a;\nmod b;\npub mod c;\n#[cfg(test)]\nmod d;\npub use b::{Other, T as B};\n");
    write("a.rs", "mod deep;\nuse crate::{B, c::{self, C}};\n");
    write("a/deep.rs", "mod inner { fn f() { super::super::super::c::f() } }\n");
    // What is not a use: comments, texts, tests, and paths that stay in the module.
    let unused = [
        "// crate::a",
        "/* /* crate::a */ crate::a */",
        r##"const T: (&str, &str, char) = ("\"crate::a", r#"crate::a""#, '"');"##,
        "fn f<'a>(s: &'a str) { self::a::f(s) }",
        "#[cfg(test)] mod tests { use crate::a::A; }",
        "#[cfg(test)] use crate::a::A;",
    ];
    write("c.rs", &unused.join("\n"));
    write("b.rs", "mod a { use super::f; }");
    let problems = |allowed: &[(&str, &[&str], &str)]| {
        unexpected_cycles("x", &ModuleGraph::read(&folder.path().join("lib.rs")), allowed)
    };
    assert_eq!(problems(&[]), [""; 0]);

    write("b.rs", "use super::a::A;");
    let [problem] = &problems(&[])[..] else { panic!("one cycle is one problem") };
    assert!(problem.ends_with("\n    a -> b: a.rs\n    b -> a: b.rs"), "{problem}");
    assert_eq!(problems(&[("x", &["a", "b"], "")]), [""; 0]);
    // A cycle of the list must exist as it is listed.
    assert_eq!(problems(&[("x", &["a", "b", "c"], "")]).len(), 2);

    write("c.rs", "use { crate::b, crate::c };");
    let [problem] = &problems(&[])[..] else { panic!("one cycle is one problem") };
    let edges = ["a -> b: a.rs", "a -> c: a.rs, a/deep.rs", "b -> a: b.rs", "c -> b: c.rs"];
    assert!(problem.ends_with(&edges.map(|edge| format!("\n    {edge}")).concat()), "{problem}");
}

/// Licences that dependencies may have.
const LICENCES: &[&str] = &[
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Zlib",
];

/// Crates that would add a second TLS or crypto stack besides rustls and RustCrypto.
const REFUSED: &[&str] = &["native-tls", "openssl"];

/// Whether a licence expression (SPDX, or the old form with slashes) can be satisfied. Parentheses only surround alternatives.
fn may_be_used(expression: &str) -> bool {
    expression.replace(['(', ')'], "").split(" AND ").all(|all| {
        all.split(['/']).flat_map(|any| any.split(" OR ")).any(|licence| LICENCES.contains(&licence.trim()))
    })
}

#[test]
fn dependencies_have_licences_and_sources_that_are_allowed() {
    let metadata = Command::new(env!("CARGO"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["metadata", "--locked", "--offline", "--format-version", "1"])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .output()
        .unwrap();
    assert!(metadata.status.success(), "{}", String::from_utf8_lossy(&metadata.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&metadata.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    assert!(packages.len() > 200, "{} packages", packages.len());
    for package in packages {
        let name = package["name"].as_str().unwrap();
        assert!(!REFUSED.contains(&name), "{name} may not be used");
        let licence = package["license"].as_str().unwrap_or_default();
        assert!(may_be_used(licence), "{name} has the licence {licence:?}");
        // The workspace's own crates have no source.
        if let Some(source) = package["source"].as_str() {
            assert!(source.starts_with("registry+"), "{name} comes from {source}");
        }
    }
    assert!(!may_be_used("GPL-3.0") && !may_be_used("MIT AND GPL-2.0") && !may_be_used(""));
    assert!(may_be_used("MIT/Apache-2.0") && may_be_used("(GPL-2.0 OR MIT) AND Zlib"));
}

#[test]
fn the_tests_profile_names_every_crate() {
    let manifest =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml")).unwrap();
    let section = manifest.split_once("[profile.bench.package]").unwrap().1;
    for name in workspace().keys() {
        let package = if name == "nacre" { name.clone() } else { format!("nacre-{name}") };
        let line = section.lines().find(|line| line.starts_with(&format!("{package} = ")));
        assert!(line.is_some_and(|line| line.contains("debug-assertions = true")), "{package}: {line:?}");
    }
}
