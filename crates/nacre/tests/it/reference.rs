//! Runs the command lines of the documents that Nacre is based on (`tests/reference/lines.txt`) unchanged, with Ceph's names on
//! PATH and with hosts and paths substituted.

mod contracts;
mod notifications;
mod place;
mod table;

use crate::librados::library_folder;
use crate::support::nacre;
use nacre_common::options;
use place::ReferenceCluster;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use table::Verdict;

#[test]
fn the_table_has_every_line_of_the_documents_and_no_other() {
    let of_table: BTreeSet<(String, String)> = table::lines()
        .into_iter()
        .filter(|line| !line.document.ends_with('+'))
        .map(|line| (line.document, table::normal(&line.text)))
        .collect();
    let of_documents: BTreeSet<(String, String)> =
        table::of_documents().into_iter().map(|(document, line)| (document, table::normal(&line))).collect();
    assert!(of_documents.len() > 70, "documents.txt was not understood: {of_documents:?}");
    let missing: Vec<_> = of_documents.difference(&of_table).collect();
    assert!(missing.is_empty(), "lines.txt lacks lines of the documents: {missing:#?}");
    let more: Vec<_> = of_table.difference(&of_documents).collect();
    assert!(more.is_empty(), "lines.txt has lines that the documents lack: {more:#?}");
}

#[test]
fn each_line_that_works_has_a_check_and_each_check_a_line() {
    let lines = table::lines();
    let checks = contracts::CONTRACTS.iter().chain(notifications::CONTRACTS);
    let checked: BTreeSet<&str> = checks.map(|contract| contract.line).collect();
    let of = |verdicts: &[Verdict]| -> BTreeSet<&str> {
        let chosen = lines.iter().filter(|line| verdicts.contains(&line.verdict));
        chosen.map(|line| line.text.as_str()).collect()
    };
    let unchecked: Vec<_> =
        of(&[Verdict::Works, Verdict::Consent]).into_iter().filter(|line| !checked.contains(line)).collect();
    assert!(unchecked.is_empty(), "{unchecked:#?}");
    let runnable = of(&[Verdict::Works, Verdict::Consent, Verdict::Pending]);
    let unknown: Vec<_> = checked.into_iter().filter(|line| !runnable.contains(line)).collect();
    assert!(unknown.is_empty(), "{unknown:#?}");
}

fn assert_pending(began_to_work: &[String]) {
    assert!(began_to_work.is_empty(), "these work now; check them instead: {began_to_work:#?}");
}

#[test]
fn lines_of_the_documents_work_or_wait_for_their_system() {
    let place = ReferenceCluster::start();
    for document in ["000", "001", "002", "003"] {
        assert_pending(&place.run_lines(document, contracts::CONTRACTS));
    }
}

#[test]
fn lines_on_notifications_work_or_wait_for_their_system() {
    let place = ReferenceCluster::start_by(notifications::VSTART);
    let mut began_to_work = Vec::new();
    for document in ["004", "004+"] {
        began_to_work.extend(place.run_lines(document, notifications::CONTRACTS));
    }
    assert_pending(&began_to_work);
}

/// The description of an option: its name, and its fields by name.
fn described(line: &str) -> (&str, Vec<(&str, &str)>) {
    let (name, fields) = line.split_once(' ').unwrap();
    (name, fields.split(", ").map(|field| field.split_once(": ").unwrap()).collect())
}

#[test]
fn options_of_the_documents_are_as_described() {
    // One thread per core; the help states Ceph's default.
    const OTHERS: &[(&str, &str, &str)] = &[
        ("bluestore_allocation_recovery_threads", "default", "-1"),
        ("bluestore_allocation_recovery_threads", "type", "int"),
    ];
    let lines = table::of("002", &Verdict::Option);
    assert_eq!(lines.len(), 2);
    for line in &lines {
        let (name, fields) = described(line);
        let spec = options::get(name).unwrap();
        let help = spec.help_json();
        for (field, expected) in fields {
            let other = OTHERS.iter().find(|(of, part, _)| (*of, *part) == (name, field));
            let expected = other.map_or(expected, |(_, _, value)| value);
            let found = match field {
                "runtime updatable" => &help["can_update_at_runtime"],
                field => &help[field],
            };
            let found = found.as_str().map_or_else(|| found.to_string(), str::to_owned);
            assert_eq!(found, expected, "{name}: {field}");
        }
    }
    let threads = options::get("bluestore_allocation_recovery_threads").unwrap();
    assert_eq!(threads.canonical("0").unwrap(), "0", "Ceph's default is still understood");
    assert!(
        table::normal(&threads.help_text()).contains("0 for the simple scan on one thread, Ceph's default")
    );
    // Options in calls of vstart.sh that wait for their system.
    for line in table::of("004", &Verdict::Pending) {
        if let Some((name, _)) = line.strip_prefix("-o \"").and_then(|option| option.split_once('=')) {
            assert!(options::find(name).is_none(), "{name} is there: it is no longer pending");
        }
    }
}

#[test]
fn the_checks_and_loads_of_the_document_on_rocksdb_hold() {
    let settings = table::of("003", &Verdict::Setting);
    let [build, load] = &settings[..] else { panic!("{settings:?}") };
    // The document looks for an optimised build of RocksDB in the log of a build. Here the program prints that.
    assert_eq!(build, "DCMAKE_BUILD_TYPE=RelWithDebInfo");
    let folder = tempfile::tempdir().unwrap();
    let doctor = Command::new(nacre()).args(["doctor", "--data"]).arg(folder.path()).output().unwrap();
    let said = String::from_utf8_lossy(&doctor.stdout).into_owned();
    let line = said.lines().find(|line| line.contains("RocksDB's scan")).unwrap();
    assert!(line.starts_with("ok ") && line.contains(": optimised"), "{said}");
    // One thread, a queue depth of 1.
    assert!(load.starts_with("FIO 4K ") && load.contains("1)"), "{load}");
    let place = ReferenceCluster::start();
    place.ok("ceph osd pool create fio");
    let libraries = library_folder(place.home());
    let librbd = concat!(env!("CARGO_MANIFEST_DIR"), "/../librados/librbd.c");
    let compiled = Command::new("clang")
        .args(["-shared", "-fPIC", "-Wl,-soname,librbd.so.1", "-o"])
        .arg(libraries.join("librbd.so.1"))
        .arg(librbd)
        .status();
    assert!(compiled.unwrap().success());
    let fio = Command::new("fio")
        .args(["--name=job", "--rw=randwrite", "--bs=4k", "--numjobs=1", "--iodepth=1", "--size=2M"])
        .args(["--ioengine=rados", "--clientname=admin", "--pool=fio", "--output-format=json"])
        .arg(format!("--conf={}", place.conf().display()))
        .current_dir(place.home())
        .env("LD_LIBRARY_PATH", &libraries)
        .env("CEPH_CONF", place.conf())
        .output()
        .unwrap();
    assert!(fio.status.success(), "{}", String::from_utf8_lossy(&fio.stderr));
    let text = String::from_utf8_lossy(&fio.stdout).into_owned();
    let report: Value = serde_json::from_str(&text[text.find('{').unwrap()..]).unwrap();
    let job = &report["jobs"][0];
    assert_eq!((&job["error"], &job["write"]["total_ios"]), (&0.into(), &512.into()), "{job}");
    assert!(job["write"]["iops"].as_f64().unwrap() > 0.0, "{job}");
}

/// Lengths of a striped object's pieces, by number.
fn piece_lengths(place: &ReferenceCluster, name: &str) -> Vec<u64> {
    let listed = place.ok("rados -p backup ls");
    let mut pieces: Vec<&str> =
        listed.lines().filter(|piece| piece.starts_with(&format!("{name}."))).collect();
    pieces.sort_unstable();
    let length = |piece: &&str| {
        let stat = place.ok(&format!("rados -p backup stat '{piece}'"));
        stat.trim().rsplit_once("size ").unwrap().1.parse().unwrap()
    };
    pieces.iter().map(length).collect()
}

/// Writes 10 MB as a part of a volume, with a device's options, and reads it back.
fn device(place: &ReferenceCluster, options: &str) -> Vec<u64> {
    let options =
        options.trim_matches('"').replace("/etc/ceph/ceph.conf", &place.conf().display().to_string());
    let run = |operation: &str| {
        place.ok(&format!("device_options='{options}' nacre-dplcompat {operation}"));
    };
    run("upload Full-5409 0000 < volume");
    run("download Full-5409 0000 > back");
    assert!(fs::read(place.work().join("back")).unwrap() == fs::read(place.work().join("volume")).unwrap());
    let lengths = piece_lengths(place, "Full-5409/0000");
    run("remove Full-5409 0000");
    lengths
}

#[test]
fn settings_of_the_documents_are_obeyed() {
    const MIB: u64 = 1 << 20;
    let settings = table::of("000", &Verdict::Setting);
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    let [block, older, unit, count, object, patched] = settings[..] else { panic!("{settings:?}") };
    let value = |line: &str, name: &str| line.strip_prefix(&format!("{name} = ")).unwrap().to_owned();

    let place = ReferenceCluster::start();
    place.ok("ceph osd pool create backup");
    place.ok("head -c 10000000 /dev/zero > volume");
    // Blocks of this size, one at a time, as the storage daemon writes them.
    let block = value(block, "Maximum Block Size");
    place.ok(&format!("rados -p backup --striper put blocks volume -b {block}"));
    assert_eq!(piece_lengths(&place, "blocks"), [4 * MIB, 4 * MIB, 10_000_000 - 8 * MIB]);
    assert_eq!(device(&place, older), [4 * MIB, 4 * MIB, 10_000_000 - 8 * MIB]);
    assert_eq!(device(&place, patched), [10_000_000 - 4 * MIB, 4 * MIB]);

    let layout = [
        ("--stripe-unit", value(unit, "striper_unit")),
        ("--stripe-count", value(count, "striper_count")),
        ("--object-size", value(object, "object_size")),
    ];
    let layout: String = layout.iter().map(|(flag, value)| format!(" {flag} {value}")).collect();
    place.ok("head -c 134217728 /dev/zero > volume");
    place.ok(&format!("rados -p backup --striper put example volume{layout}"));
    assert_eq!(piece_lengths(&place, "example"), [24, 24, 24, 24, 8, 8, 8, 8].map(|mib| mib * MIB));
}

#[test]
fn stores_are_chosen_for_one_osd_or_for_all() {
    let chosen = |conf: &str| -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ceph.conf");
        fs::write(&path, conf).unwrap();
        let shown = |osd: u32| {
            let entity: nacre_types::EntityName = format!("osd.{osd}").parse().unwrap();
            let config = nacre_common::config::ConfigBuilder::new(entity).conf(&path).build().unwrap();
            config.display_value("osd_objectstore").unwrap()
        };
        (0..2).map(shown).collect()
    };
    let lines = table::of("001", &Verdict::Config);
    let [all, one] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!(chosen(&format!("[global]\n{all}\n")), ["memstore", "memstore"]);
    assert_eq!(chosen(&format!("[osd]\n{all}\n")), ["memstore", "memstore"]);
    // Options of older releases are not errors.
    let ignored = table::of("001", &Verdict::Advisory).join("\n");
    let conf = format!("[osd.0] \n{ignored}\n{one}\n");
    assert_eq!(chosen(&conf), ["memstore", "bluestore"]);
}

#[test]
fn old_spellings_still_work() {
    let place = ReferenceCluster::start();
    place.ok("ceph osd crush rule create-replicated second default osd");
    place.ok("ceph osd pool create p 16 16 replicated second");
    assert_eq!(place.ok("ceph osd pool get p crush_rule"), "crush_rule: second\n");
    place.ok("ceph osd pool create q 16 16");
    place.ok("ceph osd pool set q crush_ruleset 1");
    assert_eq!(place.ok("ceph osd pool get q crush_ruleset"), "crush_ruleset: 1\n");
    let refused = place.run("ceph osd pool set q crush_ruleset 9");
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("crush ruleset 9 does not exist"));
    place.ok("ceph osd blacklist add 10.0.0.1:0/7 60");
    assert!(place.ok("ceph osd blocklist ls").contains("10.0.0.1:0/7"));
    place.ok("ceph osd blacklist rm 10.0.0.1:0/7");
    // Connection options, in any position.
    let conf = place.conf();
    let conf = conf.display();
    let keyring = place.home().join("data/ceph.client.admin.keyring");
    let keyring = keyring.display();
    for line in [
        format!("ceph --conf {conf} -s"),
        format!("ceph -c {conf} -n client.admin osd tree"),
        format!("ceph osd tree --conf={conf} --id admin --format=json"),
        format!("ceph -k {conf}.none --version"),
        format!("rados --conf {conf} --id admin df"),
        format!("ceph -m {} -k {keyring} --id admin -c /dev/null -s", place.listen),
        "rados lspools".to_owned(),
    ] {
        assert!(!place.ok(&line).is_empty(), "{line}");
    }
}
