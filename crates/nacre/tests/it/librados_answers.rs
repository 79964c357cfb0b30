//! Compares the results of usual and unusual calls of Nacre's librados with those of Ceph's.
//!
//! `librados/answers/probe.py` makes the calls and prints one line for each. `ceph-16.2.txt` is its output with Ceph 16.2 on a
//! Ceph cluster (created by `record`). `differences.txt` lists each line that differs, with the reason.

use crate::librados::ok;
use crate::support::TestCluster;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/librados/answers").join(name)
}

/// Results by part, call and number of earlier identical calls in that part.
fn answers(text: &str) -> BTreeMap<(String, String, usize), String> {
    let (mut found, mut part) = (BTreeMap::new(), String::new());
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("== ") {
            part = name.to_owned();
            continue;
        }
        let (call, answer) = line.split_once(": ").unwrap_or((line, ""));
        // A command is JSON, which contains such separators itself.
        let (call, answer) = match line.rfind("}: ") {
            Some(at) if part == "commands" => (&line[..=at], &line[at + 3..]),
            _ => (call, answer),
        };
        let nth = (0..).find(|n| !found.contains_key(&(part.clone(), call.to_owned(), *n))).unwrap();
        found.insert((part.clone(), call.to_owned(), nth), answer.to_owned());
    }
    found
}

/// The start and the end of a command's output, if the command succeeds: `begins { leads 0 ends 1`.
fn shape(answer: &str) -> Option<&str> {
    let shape = answer.strip_prefix("0 begins ")?;
    let end = shape.find(" ends ")? + " ends 0".len();
    shape.get(..end)
}

/// Whether two results of a call are equivalent. For commands only the shape of JSON is compared; other tests compare the rest.
fn alike(part: &str, call: &str, theirs: &str, ours: &str) -> bool {
    if part != "commands" || !call.contains('{') {
        return theirs == ours;
    }
    match (shape(theirs), shape(ours)) {
        (Some(theirs), Some(ours)) if call.contains(r#""format": "json""#) => theirs == ours,
        _ => true,
    }
}

/// Parts and calls of `differences.txt`, in lines of the form `PART | CALL | REASON`. A call that ends with `*` is a prefix.
fn listed() -> Vec<(String, String)> {
    let text = fs::read_to_string(file("differences.txt")).unwrap();
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let fields: Vec<&str> = line.split(" | ").map(str::trim).collect();
            assert!(fields.len() == 3 && !fields[2].is_empty(), "differences.txt: {line}");
            (fields[0].to_owned(), fields[1].to_owned())
        })
        .collect()
}

fn covers((part, call): &(String, String), in_part: &str, of: &str) -> bool {
    part == in_part && call.strip_suffix('*').map_or(call == of, |begin| of.starts_with(begin))
}

#[test]
fn answers_are_cephs_or_listed_as_different() {
    let conf =
        "[global]\nosd_pool_default_size = 2\nosd_pool_default_pg_num = 8\nmon_allow_pool_delete = true";
    let cluster = TestCluster::start_with(3, "memstore", conf);
    cluster.create_pool("probe", 8, 2, 1);
    // The recorded pool had no application.
    let application = ["ceph", "osd", "pool", "application", "disable", "probe", "test"];
    cluster.ok(&[&application[..], &["--yes-i-really-mean-it"]].concat());
    let printed = ok(&cluster, "/usr/bin/python3", &["-B", file("probe.py").to_str().unwrap(), "probe"]);
    let (theirs, ours) = (answers(&fs::read_to_string(file("ceph-16.2.txt")).unwrap()), answers(&printed));
    assert!(printed.ends_with("== end\n") && theirs.len() > 1000, "{printed}");
    let listed = listed();
    let mut met = BTreeSet::new();
    let mut unlisted = Vec::new();
    for (key @ (part, call, nth), answer) in &theirs {
        let own = ours.get(key).map_or("(not called)", String::as_str);
        if alike(part, call, answer, own) {
            continue;
        }
        match listed.iter().position(|entry| covers(entry, part, call)) {
            Some(at) => drop(met.insert(at)),
            None => unlisted.push(format!("{part} | {call} [{nth}]: Ceph {answer}, ours {own}")),
        }
    }
    assert!(unlisted.is_empty(), "{} answers differ:\n{}", unlisted.len(), unlisted.join("\n"));
    let needless: Vec<_> = listed.iter().enumerate().filter(|(at, _)| !met.contains(at)).collect();
    assert!(needless.is_empty(), "listed, but alike: {needless:?}");
}
