//! Runs every command of the README and of docs/*.md as it is written.
//!
//! The `sh` blocks of a page form one script, which runs in its own folder against real clusters and must not fail. The tables
//! below list the differences between the script and the page, with reasons. A page with blocks that is not in [`PAGES`] fails
//! the test, and so does an entry that does not match anything.

use crate::librados::library_folder;
use crate::support::{free_port, free_ports, nacre};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A page, and the commands before its first block.
struct Page {
    path: &'static str,
    /// Shell commands.
    before: &'static str,
}

const PAGES: &[Page] = &[
    // Its first block starts the cluster.
    Page { path: "README.md", before: "" },
    // Continues where the README's tour ends.
    Page { path: "docs/guide.md", before: "serve --data ./data; nacre osd pool create backup 32" },
    Page { path: "docs/backup.md", before: "serve --data ./data" },
    // Daemons as separate processes, because the page stops some of them; four OSDs, because one is removed.
    Page {
        path: "docs/operations.md",
        before: "daemons data 4; nacre osd pool create first 8; nacre osd pool create backup 32
                 nacre user create --uid alice --display-name Alice",
    },
    // Continues where the README's tour has created a bucket.
    Page {
        path: "docs/notifications.md",
        before: r#"serve --data ./data
export $(nacre user info --uid admin | jq -r '.keys[0] | "AWS_ACCESS_KEY_ID=\(.access_key) AWS_SECRET_ACCESS_KEY=\(.secret_key)"')
aws --endpoint-url http://$S3 s3 mb s3://mybucket"#,
    },
    // OSDs of two kinds, and the base pool.
    Page {
        path: "docs/tiers.md",
        before: "serve --data ./data --objectstore memstore,memstore,memstore,bluestore,bluestore,bluestore
nacre osd crush rule create-replicated fast default osd mem; nacre osd pool create backup 32",
    },
    // A benchmark of a store: takes minutes and a separate build.
    Page { path: "docs/performance.md", before: "exit 0" },
];

/// Text that is replaced everywhere: from, to, why.
const REPLACED: &[(&str, &str, &str)] = &[
    ("127.0.0.1:8000", "$S3", "tests take ports that are free"),
    ("127.0.0.1:9092", "127.0.0.1:$KAFKA_PORT", "likewise"),
    ("/usr/local", "$ROOT/usr/local", "nothing is installed on the machine that tests"),
    ("/etc/ceph", "$ROOT/etc/ceph", "likewise"),
    ("/tmp/", "$ROOT/tmp/", "tests leave nothing behind"),
];

/// Lines with a certain start: the page, the start, the replacement, why.
const LINES: &[(&str, &str, &str, &str)] = &[
    ("README.md", "make run     #", "", "the tour does it"),
    ("README.md", "make run", "serve --data ./data", "it builds first; then it does this in the foreground"),
    ("README.md", "make test", "", "this is that test"),
    ("README.md", "scripts/kafka start", "start_kafka ./kafka", "ports that are free"),
    ("docs/notifications.md", "scripts/kafka start", "start_kafka ./kafka", "ports that are free"),
    (
        "docs/guide.md",
        "nacre serve --data ./cluster",
        "$LINE --listen 127.0.0.1:${PORTS[6]}",
        "a port that is free",
    ),
    ("docs/guide.md", "nacre serve --data ./mixed", "serve ${LINE#nacre serve}", "in the background"),
    (
        "docs/guide.md",
        "nacre status -c ./cluster",
        "until $LINE | grep '3 up'; do sleep 0.1; done",
        "they start",
    ),
    ("docs/guide.md", "make install", "install_files", "the files under test in the place of the product's"),
    ("docs/operations.md", "nacre doctor", "$LINE || true", "the disk of the machine that tests may be slow"),
    ("docs/operations.md", "sudo ", "", "systemd is not there; BEFORE stops the OSD"),
];

/// Commands before lines with a certain start: the page, the start, the commands, why.
const BEFORE: &[(&str, &str, &str, &str)] = &[
    ("docs/operations.md", "nacre osd purge 3", "stop_osd 3", "what systemctl does"),
    (
        "docs/operations.md",
        "nacre kvstore-tool bluestore-kv data/osd/0 compact",
        "stop_osd 0",
        "as the page says",
    ),
    ("docs/operations.md", "nacre doctor", "start_osd 0", "the page is done with it"),
    ("docs/operations.md", "truncate", "stop_osd 0", "as the page says"),
    ("docs/operations.md", "nacre ratelimit set", "start_osd 0", "the page is done with it"),
];

/// Functions that the scripts call.
const FUNCTIONS: &str = r#"
set -e
# Starts a cluster in one process and waits until it is ready.
serve() {
  local out=serve-${#PORTS[@]}.out
  local listen=${PORTS[0]} s3=$S3
  PORTS=("${PORTS[@]:1}")
  [ -e served ] && s3=127.0.0.1:${PORTS[0]} PORTS=("${PORTS[@]:1}")
  touch served
  nacre serve "$@" --listen 127.0.0.1:$listen --s3 $s3 -o exporter_http_port=0 >$out 2>&1 &
  local pid=$!
  until grep -q '^cluster is ready' $out; do kill -0 $pid || { cat $out; return 1; }; sleep 0.05; done
}
# Makes a cluster in $1 with $2 OSDs and starts each daemon as a process of its own.
daemons() {
  nacre serve --data $1 --osds $2 --mkfs-only --listen 127.0.0.1:${PORTS[0]} -o exporter_http_port=0
  nacre mon -c $1/ceph.conf >mon.out 2>&1 &
  for osd in $(seq 0 $(($2 - 1))); do start_osd $osd; done
}
start_osd() {
  nacre osd --id $1 -c data/ceph.conf >>osd.$1.out 2>&1 & OSD[$1]=$!
  until nacre osd tree up | grep -q "osd\.$1 "; do sleep 0.05; done
}
stop_osd() { kill ${OSD[$1]}; wait ${OSD[$1]}; }
# Starts a Kafka broker in $1, whose jar files other tests have downloaded.
start_kafka() {
  KAFKA_FOLDER=$1
  XDG_CACHE_HOME=$CACHE scripts/kafka start $1 $KAFKA_PORT
}
stop_kafka() { [ ! -e "$KAFKA_FOLDER/pid" ] || scripts/kafka stop $KAFKA_FOLDER; }
install_files() {
  make -s -C "$REPO" install-files NACRE="$NACRE" LIBRADOS="$LIBRADOS" PREFIX="$ROOT/usr/local"
}
trap 'stop_kafka || true; kill $(jobs -p) 2>/dev/null; wait' EXIT
"#;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The lines of a page's `sh` blocks, without comments and empty lines. Continued lines are joined.
fn commands(page: &str) -> Vec<String> {
    let text = fs::read_to_string(repository().join(page)).unwrap();
    let (mut found, mut inside, mut open) = (Vec::new(), false, String::new());
    for line in text.lines() {
        match line {
            "```sh" => inside = true,
            "```" => inside = false,
            _ if inside => {
                open += line;
                match open.strip_suffix('\\') {
                    Some(more) => open = more.to_owned(),
                    None => found.push(std::mem::take(&mut open)),
                }
            }
            _ => {}
        }
    }
    found.retain(|line| !line.trim().is_empty() && !line.starts_with('#'));
    found
}

/// The script that runs a page's commands.
fn script(page: &Page) -> String {
    let mut script = format!("{FUNCTIONS}{}\n", page.before);
    for line in commands(page.path) {
        let of_page = |entry: &&(&str, &str, &str, &str)| entry.0 == page.path && line.starts_with(entry.1);
        if let Some((_, _, commands, _)) = BEFORE.iter().find(of_page) {
            script += &format!("{commands}\n");
        }
        let mut run = match LINES.iter().find(of_page) {
            None => line.clone(),
            Some((_, _, instead, _)) if instead.contains("${LINE#") => {
                let rest = instead.split_once("${LINE#").and_then(|(_, rest)| rest.split_once('}'));
                let prefix = rest.expect("a closing brace").0;
                match line.strip_prefix(prefix) {
                    Some(after) => instead.replace(&format!("${{LINE#{prefix}}}"), after),
                    None => String::new(),
                }
            }
            Some((_, _, instead, _)) => instead.replace("$LINE", line.split(" #").next().unwrap_or_default()),
        };
        for (from, to, _) in REPLACED {
            run = run.replace(from, to);
        }
        // The log of a failure ends with the line that failed.
        script += &format!("cat <<'+'\n+ {line}\n+\n{run}\n");
    }
    script
}

/// Runs a page.
fn run(path: &str) {
    let page = PAGES.iter().find(|page| page.path == path).unwrap();
    let folder = tempfile::Builder::new().prefix("nacre-docs-").tempdir().unwrap();
    let root = folder.path();
    for inside in ["bin", "tmp", "etc/ceph", "usr/local"] {
        fs::create_dir_all(root.join(inside)).unwrap();
    }
    for name in ["nacre", "nacre-dplcompat"] {
        std::os::unix::fs::symlink(nacre(), root.join("bin").join(name)).unwrap();
    }
    // A tree of files instead of that of the whole repository.
    let copied =
        Command::new("cp").arg("-r").arg(repository().join("crates/pg")).arg(root.join("crates")).status();
    assert!(copied.unwrap().success());
    std::os::unix::fs::symlink(repository().join("scripts"), root.join("scripts")).unwrap();
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .unwrap_or_else(|| PathBuf::from(std::env::var_os("HOME").expect("HOME is set")).join(".cache"));
    let ports: Vec<String> = (0..10).map(|_| free_port().to_string()).collect();
    let script = format!("PORTS=({})\n{}", ports.join(" "), script(page));
    fs::write(root.join("commands"), &script).unwrap();
    let output = fs::File::create(root.join("output")).unwrap();
    let path_variable = std::env::var("PATH").unwrap_or_default();
    let status = Command::new("timeout")
        .args(["-k", "5", "300", "bash", "commands"])
        .current_dir(root)
        .env("PATH", format!("{}:{path_variable}", root.join("bin").display()))
        .env("ROOT", root)
        .env("REPO", repository())
        .env("NACRE", nacre())
        .env("LIBRADOS", library_folder(root).join("librados.so.2"))
        .env("S3", format!("127.0.0.1:{}", free_port()))
        .env("KAFKA_PORT", free_ports(5).to_string())
        .env("CACHE", cache)
        .env("HOME", root)
        // For vstart.sh.
        .env("CEPH_PORT", free_port().to_string())
        .env("CEPH_RGW_PORT", free_port().to_string())
        .env("AWS_DEFAULT_REGION", "us-east-1")
        .env_remove("CEPH_CONF")
        .env_remove("CEPH_ARGS")
        .stdin(Stdio::null())
        .stdout(output.try_clone().unwrap())
        .stderr(output)
        .status()
        .unwrap();
    let said = fs::read_to_string(root.join("output")).unwrap_or_default();
    let last: Vec<&str> = said.lines().rev().take(60).collect();
    let last: Vec<&str> = last.into_iter().rev().collect();
    assert!(status.success(), "{path}: {status}\n{}", last.join("\n"));
}

#[test]
fn the_readme_runs() {
    run("README.md");
}

#[test]
fn the_guide_runs() {
    run("docs/guide.md");
}

#[test]
fn the_page_on_operations_runs() {
    run("docs/operations.md");
}

#[test]
fn the_page_on_notifications_runs() {
    run("docs/notifications.md");
}

#[test]
fn the_page_on_tiers_runs() {
    run("docs/tiers.md");
}

#[test]
fn the_page_on_backups_runs() {
    run("docs/backup.md");
}

#[test]
fn every_page_with_commands_runs_and_no_exemption_is_left_over() {
    let mut pages = vec!["README.md".to_owned()];
    for entry in fs::read_dir(repository().join("docs")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".md") {
            pages.push(format!("docs/{name}"));
        }
    }
    for page in &pages {
        let known = PAGES.iter().any(|of| of.path == page);
        assert_eq!(known, !commands(page).is_empty(), "{page}: PAGES has it if and only if it has sh blocks");
    }
    for (page, beginning, ..) in LINES.iter().chain(BEFORE) {
        let used = commands(page).iter().any(|line| line.starts_with(beginning));
        assert!(used, "{page} has no line '{beginning}' any more");
    }
    for (text, ..) in REPLACED {
        let used = pages.iter().any(|page| commands(page).iter().any(|line| line.contains(text)));
        assert!(used, "no page says {text} any more");
    }
    let readme = fs::read_to_string(repository().join("README.md")).unwrap();
    assert!(readme.lines().count() <= 120, "the README has {} lines", readme.lines().count());
}
