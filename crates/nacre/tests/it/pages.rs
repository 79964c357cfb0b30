//! Tests completions in a real shell, and manual pages.

use crate::support::nacre;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

/// The completions that bash offers after `line`, whose last word is incomplete.
fn offered(folder: &Path, line: &str) -> Vec<String> {
    let script = format!(
        "export PATH={}:$PATH\nsource <(nacre completions bash)\nCOMP_WORDS=({line})\n{}\
         COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n_nacre\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"\n\
         complete -p \"${{COMP_WORDS[0]}}\" >&2",
        folder.display(),
        if line.ends_with(' ') { "COMP_WORDS+=('')\n" } else { "" }
    );
    let out = Command::new("bash").args(["--norc", "-c", &script]).output().unwrap();
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && stderr.starts_with("complete -o default -F _nacre"), "{line}: {stderr}");
    String::from_utf8(out.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_and_options() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["nacre", "ceph", "rados", "crushtool", "osdmaptool"] {
        symlink(nacre(), folder.path().join(name)).unwrap();
    }
    let offered = |line: &str| offered(folder.path(), line);
    assert_eq!(offered("ceph osd pool cr"), ["create"]);
    assert_eq!(offered("nacre osd pool cr"), ["create"]);
    assert_eq!(offered("nacre -c some/file ceph osd pool cr"), ["create"]);
    assert_eq!(offered("nacre crusht"), ["crushtool"]);
    assert_eq!(offered("ceph osd blocklist "), ["add", "clear", "ls", "range", "rm"]);
    assert_eq!(offered("rados -p pool listomapk"), ["listomapkeys"]);
    assert_eq!(offered("nacre rados listomapk"), ["listomapkeys"]);
    assert_eq!(offered("osdmaptool --test-map-pgs-dump-"), ["--test-map-pgs-dump-all"]);
    assert_eq!(offered("crushtool --create-r"), ["--create-replicated-rule"]);
    let words = offered("ceph ");
    assert!(words.contains(&"health".to_owned()) && words.iter().filter(|word| *word == "osd").count() == 1);
}

#[test]
fn manual_pages_are_made_from_the_help() {
    let folder = tempfile::tempdir().unwrap();
    let made = Command::new(nacre()).arg("man").arg(folder.path()).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    for name in ["nacre", "nacre-serve", "nacre-ceph", "nacre-rados", "nacre-crushtool", "nacre-osdmaptool"] {
        let page = fs::read_to_string(folder.path().join(format!("man8/{name}.8"))).unwrap();
        assert!(page.starts_with(&format!(".TH {} 8", name.to_uppercase())), "{page}");
    }
    let page = fs::read_to_string(folder.path().join("man8/nacre-serve.8")).unwrap();
    assert!(page.contains("\\-\\-objectstore"), "{page}");
}
