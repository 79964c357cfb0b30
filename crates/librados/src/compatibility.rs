//! Compares the table of functions (`compatibility.txt`) with what the library exports and refuses.

use nacre_types::support_level::{SupportLevel, parse_table};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Names of exported functions in the sources below `folder`.
fn exported(folder: &Path, names: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            exported(&path, names);
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let lines = text.lines().map(str::trim_start);
        let declared = lines.filter_map(|line| {
            let name = line.strip_prefix("fn ").or_else(|| line.strip_prefix("versions!(\""))?;
            Some(name.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default())
        });
        let ours = declared.filter(|name| name.starts_with("rados_") || name.starts_with("libradosstriper_"));
        names.extend(ours.map(str::to_owned));
    }
}

#[test]
fn every_function_is_in_the_table_and_refused_as_it_says() {
    let table: BTreeMap<&str, SupportLevel> =
        parse_table(include_str!("../compatibility.txt")).unwrap().into_iter().collect();
    let mut names = BTreeSet::new();
    exported(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut names);
    let refused: BTreeSet<&str> = crate::unsupported::NAMES.iter().copied().collect();
    names.extend(refused.iter().map(|name| (*name).to_owned()));
    let listed: BTreeSet<String> = table.keys().map(|name| (*name).to_owned()).collect();
    assert!(names.len() > 250);
    assert_eq!(listed.difference(&names).collect::<Vec<_>>(), Vec::<&String>::new(), "not exported");
    assert_eq!(names.difference(&listed).collect::<Vec<_>>(), Vec::<&String>::new(), "not in the table");
    // Functions with their own bodies: they complete with the error, or have two versions.
    let other = |name: &str| {
        name.starts_with("rados_aio_ioctx_selfmanaged")
            || name.starts_with("rados_tmap_")
            || name == "rados_inconsistent_pg_list"
    };
    for (name, support) in table {
        assert_eq!(support.is_refused(), refused.contains(name) || other(name), "{name}");
    }
}
