//! `--format json`: each command that prints a result prints one JSON document to standard output and nothing else.
//!
//! The commands are taken from the programs' own help. A new one that is not in a table below fails the test.

use crate::support::{Daemon, TestCluster, nacre};
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::{Child, Command, Output, Stdio};

/// The output of a command with JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Prints {
    /// A document.
    Json,
    /// No output.
    Nothing,
}
use Prints::{Json, Nothing};

/// Verbs of rados with arguments. The order provides what each of them needs.
const RADOS: &[(&str, Prints)] = &[
    ("lspools", Json),
    ("df", Json),
    ("create o", Nothing),
    ("put o FILE", Nothing),
    ("append o FILE", Nothing),
    ("touch o", Nothing),
    ("truncate o 100", Nothing),
    ("get o FILE", Nothing),
    ("ls", Json),
    ("stat o", Json),
    ("stat2 o", Json),
    ("mapext o", Json),
    ("cp o p", Nothing),
    ("setxattr o a value", Nothing),
    ("getxattr o a", Json),
    ("listxattr o", Json),
    ("rmxattr o a", Nothing),
    ("setomapval o key value", Nothing),
    ("getomapval o key", Json),
    ("listomapkeys o", Json),
    ("listomapvals o", Json),
    ("rmomapkey o key", Nothing),
    ("setomapheader o header", Nothing),
    ("getomapheader o", Json),
    ("clearomap o", Nothing),
    ("set-alloc-hint o 4096 4096", Nothing),
    ("lock get o name", Nothing),
    ("lock list o", Json),
    ("lock info o name", Json),
    ("lock break o name client.0", Nothing),
    ("listwatchers o", Json),
    ("watch o", Nothing),
    ("notify o message", Json),
    ("put-tree TREE tree/", Json),
    ("get-tree BACK tree/", Json),
    ("bench 1 write -b 4096 -t 2 --no-cleanup", Json),
    ("cleanup", Json),
    ("rm o", Nothing),
    ("purge it --yes-i-really-really-mean-it", Json),
];

/// Commands of ceph-kvstore-tool on the database of a stopped OSD.
const KVSTORE: &[(&str, Prints)] = &[
    ("set super key ver 1", Nothing),
    ("list super", Json),
    ("list-crc super", Json),
    ("dump super", Json),
    ("exists super key", Json),
    ("get super key", Json),
    ("crc super key", Json),
    ("get-size super key", Json),
    ("store-crc FILE", Json),
    ("store-copy COPY", Json),
    ("compact", Json),
    ("compact-prefix super", Json),
    ("compact-range super a z", Json),
    ("stats", Json),
    ("rm super key", Nothing),
    ("rm-prefix nonesuch", Nothing),
    ("destructive-repair", Json),
];

/// Commands of ceph-bluestore-tool on its store. The last two create and crash their own stores.
const BLUESTORE: &[(&str, Prints)] = &[
    ("show-label", Json),
    ("fsck", Json),
    ("repair", Json),
    ("qfsck", Json),
    ("allocmap", Json),
    ("recovery-compare", Json),
    ("free-dump", Json),
    ("free-score", Json),
    ("bluefs-stats", Json),
    ("bluefs-bdev-expand", Json),
    ("export --dest-file EXPORT --object kept", Json),
    ("import --input-file EXPORT --force", Json),
    ("bench-start", Json),
    ("fill --mkfs 256Mi --onodes 10 --extents 10 --pgs 1", Json),
];

/// Commands of nacre backup.
const BACKUP: &[(&str, Prints)] = &[
    ("create volume FILE", Json),
    ("append volume FILE", Json),
    ("cat volume COPIED", Nothing),
    ("ls", Json),
    ("info volume", Json),
    ("verify volume", Json),
    ("rm volume", Nothing),
];

/// A process that is killed when the value is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a program in the cluster's folder; `words` are its arguments.
fn run(cluster: &TestCluster, before: &[&str], words: &str) -> Output {
    let mut command = Command::new(nacre());
    command.args(before).args(words.split(' ')).args(["--format", "json"]);
    command.current_dir(cluster.folder()).env("CEPH_CONF", cluster.conf()).env_remove("CEPH_ARGS");
    command.stdin(Stdio::null()).output().unwrap()
}

fn check(cluster: &TestCluster, before: &[&str], words: &str, prints: Prints) {
    let out = run(cluster, before, words);
    let (stdout, stderr) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{before:?} {words}: {}\n{stdout}{stderr}", out.status);
    match prints {
        Json => {
            let parsed = serde_json::from_str::<Value>(&stdout);
            assert!(parsed.is_ok(), "{before:?} {words}: {parsed:?}\n{stdout}");
        }
        Nothing => assert_eq!(stdout, "", "{before:?} {words}"),
    }
}

/// The first words of the lines of a program's help with this indentation, without options.
fn verbs(program: &str, indent: usize) -> BTreeSet<String> {
    let help = Command::new(nacre()).args([program, "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let begins = |line: &&str| line.len() > indent && line.trim_start().len() + indent == line.len();
    let first = |line: &str| line.split_whitespace().next().unwrap().to_owned();
    let is_verb = |word: &String| {
        word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            && !word.starts_with('-')
    };
    help.lines().filter(begins).map(first).filter(is_verb).collect()
}

fn of_table(table: &[(&str, Prints)]) -> BTreeSet<String> {
    table.iter().map(|(words, _)| words.split(' ').next().unwrap().to_owned()).collect()
}

#[test]
fn every_command_of_the_help_is_tried() {
    let mut rados = verbs("rados", 3);
    // These need a cache tier. The tests of tiers cover them.
    for of_tiers in [
        "cache-flush",
        "cache-try-flush",
        "cache-evict",
        "cache-flush-evict-all",
        "cache-try-flush-evict-all",
    ] {
        assert!(rados.remove(of_tiers), "{of_tiers}");
    }
    assert_eq!(rados, of_table(RADOS));
    assert_eq!(verbs("kvstore-tool", 2), of_table(KVSTORE));
    let mut bluestore = verbs("bluestore-tool", 2);
    bluestore.remove("help");
    assert_eq!(bluestore, of_table(BLUESTORE));
    let mut backup = verbs("backup", 2);
    for example in ["tar", "nacre"] {
        backup.remove(example);
    }
    assert_eq!(backup, of_table(BACKUP));
}

#[test]
fn programs_print_a_document_where_json_is_asked_for() {
    let mut cluster = TestCluster::start_with(2, "bluestore", "");
    cluster.create_pool("it", 8, 2, 1);
    cluster.wait_healthy();
    let folder = cluster.folder().to_owned();
    std::fs::write(folder.join("FILE"), "data").unwrap();
    std::fs::create_dir(folder.join("TREE")).unwrap();
    std::fs::write(folder.join("TREE/file"), "data").unwrap();
    for (words, prints) in RADOS {
        let words = match *words {
            // Only the holder has a known name.
            "lock break o name client.0" => {
                let info = run(&cluster, &["rados", "-p", "it"], "lock info o name");
                let info: Value = serde_json::from_slice(&info.stdout).unwrap();
                format!("lock break o name {}", info["lockers"][0]["name"].as_str().unwrap())
            }
            words => words.to_owned(),
        };
        check(&cluster, &["rados", "-p", "it"], &words, *prints);
    }
    for (words, prints) in BACKUP {
        check(&cluster, &["backup", "-p", "it"], words, *prints);
    }
    check(&cluster, &["doctor"], &format!("--data {}", folder.display()), Json);
    check(&cluster, &["osd", "compact"], "osd.1", Json);
    // Each entry is a document on its own line.
    let mut follow = Command::new(nacre());
    follow.args(["-w", "--format", "json", "-c"]).arg(cluster.conf()).stdout(Stdio::piped());
    let mut follow = Running(follow.spawn().unwrap());
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(follow.0.stdout.take().unwrap()));
    let mut next = || serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap();
    assert!(next()["fsid"].is_string());
    cluster.ok(&["log", "a line to follow"]);
    while next()["message"] != "a line to follow" {}
    drop(follow);

    cluster.ok(&["rados", "-p", "it", "put", "kept", folder.join("FILE").to_str().unwrap()]);
    cluster.terminate(Daemon::Osd(0));
    let store = folder.join("osd/0").display().to_string();
    for (words, prints) in KVSTORE {
        check(&cluster, &["kvstore-tool", "bluestore-kv", &store], words, *prints);
    }
    for (words, prints) in BLUESTORE {
        let made = folder.join("made").display().to_string();
        let path = if words.starts_with("fill") { &made } else { &store };
        check(&cluster, &["bluestore-tool", "--path", path], words, *prints);
    }
}
