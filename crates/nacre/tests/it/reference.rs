//! The command lines of the documents that Nacre starts from (`tests/reference/lines.txt`), run as they stand there by
//! Ceph's names on PATH, with hosts and paths substituted.

use crate::support::{Serve, free_port, nacre};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const LINES: &str = include_str!("../reference/lines.txt");

/// What a line is expected to do.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    Works,
    Config,
    Setting,
    Pending(String),
    Foreign(String),
}

#[derive(Clone, Debug)]
struct Line {
    verdict: Verdict,
    text: String,
}

/// Reads the table; a line without a verdict is a mistake in it.
fn lines(table: &str) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for row in table.lines().filter(|row| !row.is_empty() && !row.starts_with('#') && !row.starts_with("=="))
    {
        if row.starts_with(' ') {
            let last = lines.last_mut().expect("a line that goes on follows one");
            assert!(last.text.ends_with('\\'), "{row:?} goes on from a line that does not");
            last.text.push_str(&format!("\n{row}"));
            continue;
        }
        let (verdict, text) = row.split_once("| ").unwrap_or_else(|| panic!("no verdict: {row:?}"));
        let words: Vec<&str> = verdict.split_whitespace().collect();
        let verdict = match words[..] {
            ["works"] => Verdict::Works,
            ["config"] => Verdict::Config,
            ["setting"] => Verdict::Setting,
            ["pending", system] => Verdict::Pending(system.to_owned()),
            ["foreign", why] => Verdict::Foreign(why.to_owned()),
            _ => panic!("no verdict is called {words:?}"),
        };
        lines.push(Line { verdict, text: text.to_owned() });
    }
    lines
}

/// A cluster, a folder to work in, and Ceph's names for the binary.
struct Place {
    home: tempfile::TempDir,
    listen: String,
    _serve: Serve,
}

impl Place {
    fn start() -> Place {
        let home = tempfile::Builder::new().prefix("nacre.reference.").tempdir().unwrap();
        let data = home.path().join("data");
        fs::create_dir_all(&data).unwrap();
        let listen = format!("127.0.0.1:{}", free_port());
        let options = [
            "exporter_http_port=0",
            "mon_max_pg_per_osd=32768",
            "osd_pool_default_pg_num=8",
            "osd_pool_default_pg_autoscale_mode=off",
        ];
        let mut args = vec!["--listen", listen.as_str(), "--objectstore", "memstore", "--osds", "3"];
        options.iter().for_each(|option| args.extend(["-o", option]));
        let (serve, _) = Serve::start(&data, &args);
        let place = Place { home, listen, _serve: serve };
        let bin = place.work().join("bin");
        fs::create_dir_all(&bin).unwrap();
        let names = ["ceph", "rados", "crushtool", "osdmaptool", "ceph-kvstore-tool", "ceph-bluestore-tool"];
        for name in names.into_iter().chain(["nacre-dplcompat"]) {
            symlink(nacre(), bin.join(name)).unwrap();
        }
        // The rest of what lines call, and nothing else: no other program of Ceph's must answer for ours.
        for name in ["sh", "awk", "cut", "grep", "head", "sort", "xargs"] {
            let real = ["/usr/bin", "/bin"].map(|folder| Path::new(folder).join(name));
            symlink(real.iter().find(|path| path.exists()).unwrap(), bin.join(name)).unwrap();
        }
        // A machine whose disks are mounted where OSDs have their folders.
        let df = bin.join("df");
        fs::write(&df, format!("#!/bin/sh\necho /dev/sdb 1 1 1 1% {}/osd/ceph-0\n", data.display())).unwrap();
        fs::set_permissions(&df, fs::Permissions::from_mode(0o755)).unwrap();
        symlink(place.conf(), place.work().join("ceph.conf")).unwrap();
        place
    }

    fn work(&self) -> PathBuf {
        self.home.path().join("build")
    }

    fn conf(&self) -> PathBuf {
        self.home.path().join("data/ceph.conf")
    }

    /// Runs a line by the shell.
    fn run(&self, line: &str) -> Output {
        Command::new("/bin/sh")
            .args(["-c", line])
            .current_dir(self.work())
            .env_clear()
            .env("PATH", self.work().join("bin"))
            .env("CEPH_CONF", self.conf())
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    /// Runs a line that must succeed; returns what it prints.
    fn ok(&self, line: &str) -> String {
        let out = self.run(line);
        assert!(out.status.success(), "{line}: {}: {}", out.status, String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    }

    fn json(&self, line: &str) -> Value {
        let text = self.ok(&format!("{line} --format json"));
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{line}: {error}: {text}"))
    }

    /// A line with this cluster's paths and with values in the place of the documents' names for values.
    fn substituted(&self, line: &str) -> String {
        let data = self.home.path().join("data");
        let data = data.display();
        let shown = [
            ("/ceph.conf", format!("{data}/ceph.conf")),
            ("/var/lib/ceph/osd", format!("{data}/osd")),
            ("<osd-data-path>", format!("{data}/stopped-osd")),
            ("{cachepool}", "cachepool".to_owned()),
            ("{0.0..1.0}", "0.4".to_owned()),
            ("{#objects}", "1000".to_owned()),
            ("{#seconds}", "600".to_owned()),
        ];
        let each = |line: String, (from, to): &(&str, String)| line.replace(from, to);
        shown.iter().fold(line.to_owned(), each)
    }
}

/// What a line needs and what must be so after it.
struct Contract {
    line: &'static str,
    before: fn(&Place),
    after: fn(&Place, &str),
}

/// A second rule, as the document adds one for its OSDs in memory.
const SECOND_RULE: &str = "\
rule memstore {
	id 1
	type replicated
	min_size 1
	max_size 10
	step take default
	step chooseleaf firstn 0 type osd
	step emit
}
";

fn nothing(_: &Place) {}

/// Checks what both scans of a store must print, as in the document.
fn scans_agree(_: &Place, output: &str) {
    let mut lines = output.lines();
    assert_eq!(lines.next(), Some("recovery-compare bluestore compare new and legacy onode recovery"));
    let mut told = Vec::new();
    for name in ["New", "Legacy"] {
        assert_eq!(lines.next(), Some(&*format!("{name} recovery start")));
        let took = lines.next().unwrap();
        let took = took.strip_prefix(&format!("{name} recovery result=0 took ")).unwrap();
        assert!(took.strip_suffix(" seconds").unwrap().parse::<f64>().unwrap() > 0.0);
        assert_eq!(lines.next(), Some(&*format!("{name} recovery stats=")));
        let rule = "==========================================================";
        assert_eq!(lines.next(), Some(rule));
        told.push(lines.by_ref().take_while(|line| *line != rule).collect::<Vec<_>>());
        assert_eq!(lines.next(), Some(""));
    }
    assert_eq!(told[0], told[1]);
    assert_eq!(
        told[0],
        [
            "onode_count             =       2000",
            "shard_count             =       2600",
            "shared_blob_count       =          0",
            "compressed_blob_count   =          0",
            "spanning_blob_count     =          0",
            "skipped_illegal_extent  =          0",
            "extent_count            =       9000",
            "insert_count            =       9000",
            "store store_statfs(0x0/0x0/0x0, data 0x0/0x0, compress 0x0/0x0/0x0, omap 0x0, meta 0x0)",
            "pool 1 store_statfs(0x0/0x0/0x0, data 0x4650000/0x4650000, compress 0x0/0x0/0x0, omap 0x0, meta 0x0)",
        ]
    );
    let rest: Vec<&str> = lines.collect();
    assert_eq!(rest, ["FSstats the same.", "Allocators the same.", "recovery-compare success"]);
}

const CONTRACTS: &[Contract] = &[
    Contract {
        line: r#"df|grep "/var/lib/ceph/osd" |awk '{print $6}' |cut -d '-' -f 2|sort -n|xargs -n 1 -P 10 -I OSD ceph-kvstore-tool bluestore-kv /var/lib/ceph/osd/ceph-OSD compact"#,
        before: |place| {
            // The OSD of another cluster that does not run, where `df` says that one is.
            let other = place.home.path().join("other");
            let listen = format!("127.0.0.1:{}", free_port());
            let args = ["--listen", &listen, "--objectstore", "bluestore", "--osds", "1", "--mkfs-only"];
            let made =
                Command::new(nacre()).args(["serve", "--data"]).arg(&other).args(args).output().unwrap();
            assert!(made.status.success(), "{made:?}");
            symlink(other.join("osd/0"), place.home.path().join("data/osd/ceph-0")).unwrap();
            let store = "ceph-kvstore-tool bluestore-kv ../data/osd/ceph-0";
            for value in 1..=3 {
                place.ok(&format!("{store} set super u/compacted ver {value}"));
            }
        },
        after: |place, _| {
            let store = "ceph-kvstore-tool bluestore-kv ../data/osd/ceph-0";
            let shown = place.ok(&format!("{store} get super u/compacted"));
            assert!(shown.starts_with("(super, u/compacted)\n00000000  03 00"), "{shown}");
            // Three values were written; compacted, the database holds one.
            let stats = place.ok(&format!("{store} stats"));
            assert!(stats.contains("Compaction Stats [super]"), "{stats}");
            place.ok(&format!("{store} rm super u/compacted"));
            assert!(!place.run(&format!("{store} exists super u/compacted")).status.success());
            // An OSD that runs keeps its own.
            let refused = place.run("ceph-kvstore-tool bluestore-kv ../data/osd/0 compact");
            assert!(!refused.status.success(), "{refused:?}");
        },
    },
    Contract {
        line: "ceph-bluestore-tool --path <osd-data-path> recovery-compare",
        before: |place| {
            let path = place.substituted("<osd-data-path>");
            place.ok(&format!(
                "ceph-bluestore-tool --path {path} fill --mkfs 1Gi --onodes 2000 --extents 9000 --pgs 8"
            ));
        },
        after: scans_agree,
    },
    Contract {
        line: "ceph-bluestore-tool --path <osd-data-path> --bluestore_allocation_recovery_threads=12 recovery-compare",
        before: nothing,
        after: scans_agree,
    },
    Contract {
        line: "rados -p backup ls",
        before: |place| {
            place.ok("ceph osd pool create backup");
            for part in 0..3 {
                place.ok(&format!("rados -p backup put Full-5409.{part:016} ceph.conf"));
            }
        },
        after: |_, output| {
            let listed: BTreeSet<&str> = output.lines().collect();
            let wanted =
                ["Full-5409.0000000000000000", "Full-5409.0000000000000001", "Full-5409.0000000000000002"];
            assert_eq!(listed, BTreeSet::from(wanted));
        },
    },
    Contract {
        line: "rados -p backup ls --striper",
        before: |place| {
            // What was put there as plain objects is not striped.
            for part in 0..3 {
                place.ok(&format!("rados -p backup rm Full-5409.{part:016}"));
            }
            place.ok("head -c 10000000 /dev/zero > volume");
            for volume in ["Full-5409", "Incr-5822"] {
                place.ok(&format!("rados -p backup --striper put {volume} volume"));
            }
        },
        after: |place, output| {
            assert_eq!(output.lines().collect::<BTreeSet<_>>(), BTreeSet::from(["Full-5409", "Incr-5822"]));
            assert_eq!(place.ok("rados -p backup ls").lines().count(), 6);
        },
    },
    Contract {
        line: "ceph osd getcrushmap -o crushmap",
        before: nothing,
        after: |place, _| assert!(fs::metadata(place.work().join("crushmap")).unwrap().len() > 100),
    },
    Contract {
        line: "crushtool -d crushmap -o crush.map",
        before: nothing,
        after: |place, _| {
            let text = fs::read_to_string(place.work().join("crush.map")).unwrap();
            assert!(text.contains("# begin crush map") && text.contains("item osd.2 weight"), "{text}");
        },
    },
    Contract {
        line: "crushtool -c crush.map -o crushmap",
        before: |place| {
            let path = place.work().join("crush.map");
            let text = fs::read_to_string(&path).unwrap();
            fs::write(&path, text.replace("\n# end crush map", &format!("{SECOND_RULE}\n# end crush map")))
                .unwrap();
        },
        after: |place, _| {
            let back = place.ok("crushtool -d crushmap");
            assert!(back.contains("rule memstore {") && back.contains("rule replicated_rule {"), "{back}");
        },
    },
    Contract {
        line: "ceph osd setcrushmap -i crushmap",
        before: nothing,
        after: |place, _| assert_eq!(place.ok("ceph osd crush rule ls"), "replicated_rule\nmemstore\n"),
    },
    Contract {
        line: "ceph osd pool create cachepool 512 512 replicated",
        before: nothing,
        after: |place, _| {
            let pool = place.json("ceph osd pool get cachepool all");
            assert_eq!((&pool["pg_num"], &pool["pgp_num"]), (&512.into(), &512.into()));
        },
    },
    Contract {
        line: "ceph osd pool set cachepool crush_ruleset 1",
        before: nothing,
        after: |place, _| {
            assert_eq!(place.json("ceph osd pool get cachepool crush_rule")["crush_rule"], "memstore");
            assert_eq!(place.ok("ceph osd pool get cachepool crush_ruleset"), "crush_ruleset: 1\n");
        },
    },
    Contract {
        line: "ceph osd pool set .rgw.buckets crush_ruleset 0",
        before: |place| {
            place.ok("ceph osd pool create .rgw.buckets 8 8 replicated memstore");
        },
        after: |place, _| {
            assert_eq!(
                place.json("ceph osd pool get .rgw.buckets crush_rule")["crush_rule"],
                "replicated_rule"
            );
            place.ok("rados -p .rgw.buckets put o ceph.conf");
        },
    },
    Contract {
        line: "bin/rados -c ceph.conf ls --pool default.rgw.log --namespace notif",
        before: |place| {
            place.ok("ceph osd pool create default.rgw.log");
            for name in [":otherwise", ":otherwise.1"] {
                place.ok(&format!("rados -p default.rgw.log --namespace notif put {name} ceph.conf"));
            }
            place.ok("rados -p default.rgw.log put elsewhere ceph.conf");
        },
        after: |_, output| {
            assert_eq!(
                output.lines().collect::<BTreeSet<_>>(),
                BTreeSet::from([":otherwise", ":otherwise.1"])
            );
        },
    },
];

#[test]
fn every_line_of_the_documents_works_or_waits_for_its_system() {
    let lines = lines(LINES);
    let works = |line: &&Line| line.verdict == Verdict::Works;
    let promised: BTreeSet<&str> = lines.iter().filter(works).map(|line| line.text.as_str()).collect();
    let checked: BTreeSet<&str> = CONTRACTS.iter().map(|contract| contract.line).collect();
    assert_eq!(promised, checked, "each line that works has a check, and each check a line");

    let place = Place::start();
    let mut began_to_work = Vec::new();
    for line in &lines {
        let text = place.substituted(&line.text);
        match &line.verdict {
            Verdict::Works => {
                let contract = CONTRACTS.iter().find(|contract| contract.line == line.text).unwrap();
                (contract.before)(&place);
                let output = place.ok(&text);
                (contract.after)(&place, &output);
            }
            Verdict::Pending(_) if place.run(&text).status.success() => began_to_work.push(&line.text),
            Verdict::Pending(_) | Verdict::Config | Verdict::Setting | Verdict::Foreign(_) => {}
        }
    }
    assert!(began_to_work.is_empty(), "these work now; check them instead: {began_to_work:#?}");
}

/// Lengths of a striped object's pieces, by number.
fn piece_lengths(place: &Place, name: &str) -> Vec<u64> {
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
fn device(place: &Place, options: &str) -> Vec<u64> {
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
    let lines = lines(LINES);
    let settings = lines.iter().filter(|line| line.verdict == Verdict::Setting);
    let settings: Vec<&str> = settings.map(|line| line.text.as_str()).collect();
    let [block, older, unit, count, object, patched] = settings[..] else { panic!("{settings:?}") };
    let value = |line: &str, name: &str| line.strip_prefix(&format!("{name} = ")).unwrap().to_owned();

    let place = Place::start();
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
            let config = nacre_runtime::config::ConfigBuilder::new(entity).conf(&path).build().unwrap();
            config.text("osd_objectstore").unwrap()
        };
        (0..2).map(shown).collect()
    };
    let of_config = |line: &Line| line.verdict == Verdict::Config;
    let lines = lines(LINES);
    let [all, one] = &lines.iter().filter(|line| of_config(line)).collect::<Vec<_>>()[..] else { panic!() };
    assert_eq!(chosen(&format!("[global]\n{}\n", all.text)), ["memstore", "memstore"]);
    assert_eq!(chosen(&format!("[osd]\n{}\n", all.text)), ["memstore", "memstore"]);
    let conf = format!("[osd.0] \nhost = 10.20.6.54\ndevs = /dev/sdb\n{}\n", one.text);
    assert_eq!(chosen(&conf), ["memstore", "bluestore"]);
}

#[test]
fn old_spellings_still_work() {
    let place = Place::start();
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
    // Connection options, wherever they stand.
    let conf = place.conf();
    let conf = conf.display();
    let keyring = place.home.path().join("data/ceph.client.admin.keyring");
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
