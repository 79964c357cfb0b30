//! `nacre rados` on a cluster: every verb has the output and exit code of Debian's `rados` 16.2 on a real one, and data is read
//! back byte for byte.

use crate::support::{TestCluster, nacre};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// The output of a command, and its exit code.
#[derive(Debug, PartialEq)]
struct Ran {
    out: String,
    err: String,
    code: i32,
}

fn run_with(cluster: &TestCluster, words: &[&str], input: &[u8]) -> Ran {
    let mut child = Command::new(nacre())
        .args(words)
        .env("CEPH_CONF", cluster.conf())
        .env_remove("CEPH_ARGS")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that reads no input may have ended already.
    let _ = child.stdin.take().unwrap().write_all(input);
    let output = child.wait_with_output().unwrap();
    Ran {
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
        code: output.status.code().unwrap(),
    }
}

struct Pool<'a>(&'a TestCluster);

impl Pool<'_> {
    fn run(&self, words: &str) -> Ran {
        self.run_with(words, b"")
    }

    fn run_with(&self, words: &str, input: &[u8]) -> Ran {
        let words: Vec<&str> = ["rados", "-p", "p"].into_iter().chain(words.split_whitespace()).collect();
        run_with(self.0, &words, input)
    }

    /// Requires success without output.
    fn quiet(&self, words: &str) {
        let ran = self.run(words);
        assert_eq!((ran.code, ran.out.as_str(), ran.err.as_str()), (0, "", ""), "{words}");
    }

    /// Requires success with this output.
    fn prints(&self, words: &str, out: &str) {
        let ran = self.run(words);
        assert_eq!((ran.code, ran.out.as_str(), ran.err.as_str()), (0, out, ""), "{words}");
    }

    /// Requires a failure with this line.
    fn fails(&self, words: &str, err: &str) {
        let ran = self.run(words);
        assert_eq!((ran.code, ran.out.as_str(), ran.err.trim_end()), (1, "", err), "{words}");
    }
}

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect()
}

fn one_osd() -> TestCluster {
    TestCluster::start_with(1, "memstore", "[global]\nmon_allow_pool_size_one = true")
}

fn create_pool(cluster: &TestCluster) {
    let ran = run_with(cluster, &["osd", "pool", "create", "p", "8"], b"");
    assert_eq!((ran.code, ran.err.trim_end()), (0, "pool 'p' created"), "{ran:?}");
}

#[test]
fn verbs_print_what_the_real_program_prints() {
    let cluster = one_osd();
    create_pool(&cluster);
    let pool = Pool(&cluster);
    let file = cluster.folder().join("hello");
    fs::write(&file, "hello\n").unwrap();
    let file = file.to_str().unwrap();

    pool.quiet(&format!("put foo {file}"));
    pool.quiet(&format!("-N ns put nsobj {file}"));
    pool.quiet(&format!("--object-locator loc put locobj {file}"));
    let listed = pool.run("ls");
    let mut lines: Vec<&str> = listed.out.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["foo", "locobj\tloc"]);
    let listed = pool.run("ls --all");
    let mut lines: Vec<&str> = listed.out.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["\tfoo", "\tlocobj\tloc", "ns\tnsobj"]);
    pool.prints("-N ns ls", "nsobj\n");
    pool.prints("-N ns ls -f json", r#"[{"namespace":"ns","name":"nsobj"}]"#);
    pool.prints("lspools", "p\n");

    pool.quiet(&format!("put foo {file} --offset 100"));
    let stat = pool.run("stat foo");
    assert!(
        stat.out.starts_with("p/foo mtime 20") && stat.out.ends_with(".000000+0000, size 106\n"),
        "{stat:?}"
    );
    pool.fails("stat none", " error stat-ing p/none: (2) No such file or directory");
    pool.fails("get none -", "error getting p/none: (2) No such file or directory");
    pool.prints("get foo -", &format!("hello\n{}hello\n", "\0".repeat(94)));
    pool.quiet(&format!("append foo {file}"));
    pool.quiet("truncate foo 3");
    pool.prints("get foo -", "hel");
    pool.fails("truncate foo x", "Invalid value for size: 'x'");
    pool.quiet("create new");
    pool.fails("create new", "error creating p/new: (17) File exists");
    pool.fails("rm new none", "error removing p>none: (2) No such file or directory");
    pool.fails("stat new", " error stat-ing p/new: (2) No such file or directory");

    pool.quiet("setxattr foo a1 v1");
    pool.prints("getxattr foo a1", "v1");
    pool.prints("listxattr foo", "a1\n");
    pool.fails("getxattr foo none", "error getting xattr p/foo/none: (61) No data available");
    pool.fails("getxattr none a1", "error getting xattr p/none/a1: (2) No such file or directory");
    pool.fails("listxattr none", "error getting xattr set p/none: (2) No such file or directory");
    pool.quiet("rmxattr foo a1");

    pool.quiet("setomapval foo k1 v1");
    pool.quiet(&format!("setomapval foo k2 --input-file {file}"));
    let value = |len: usize, hex: &str, text: &str| {
        format!("value ({len} bytes) :\n00000000  {hex:<48}  |{text}|\n{len:08x}\n\n")
    };
    let (v1, v2) = (value(2, "76 31", "v1"), value(6, "68 65 6c 6c 6f 0a", "hello."));
    pool.prints("getomapval foo k1", &v1);
    pool.prints("listomapkeys foo", "k1\nk2\n");
    pool.prints("listomapvals foo", &format!("k1\n{v1}k2\n{v2}"));
    let shown = pool.run("getomapval foo k1 --format json").out;
    assert!(shown.starts_with(r#"{"value":""#) && shown.contains(r#""length":"#), "{shown}");
    let absent = pool.run("getomapval foo none --format json");
    assert_eq!((absent.code, absent.out.as_str()), (1, ""));
    assert_eq!(pool.run("listwatchers foo --format json").out, "[]");
    let missing = pool.run("getomapval foo none");
    assert_eq!((missing.code, missing.out.as_str()), (1, "No such key: p/foo/none\n"));
    pool.fails("getomapval none k", "error getting omap value p/none/k: (2) No such file or directory");
    pool.fails("listomapkeys none", "error getting omap key set p/none: (2) No such file or directory");
    pool.quiet("setomapheader foo hdr");
    pool.prints("getomapheader foo", &value(3, "68 64 72", "hdr").replace("value", "header"));
    pool.quiet("rmomapkey foo k1");
    pool.quiet("rmomapkey foo none");
    pool.prints("listomapkeys foo", "k2\n");

    pool.quiet("setxattr foo a2 v2");
    pool.quiet("cp foo bar");
    pool.prints("get bar -", "hel");
    pool.prints("getxattr bar a2", "v2");
    pool.prints("listomapkeys bar", "k2\n");
    pool.prints("getomapheader bar", &value(3, "68 64 72", "hdr").replace("value", "header"));
    pool.fails("cp none bar", "error copying p/none => p/bar: (2) No such file or directory");
    pool.fails("cp foo", "cannot copy object into itself");
    pool.quiet("clearomap foo");
    pool.prints("listomapkeys foo", "");
    pool.quiet("touch foo 1000000000");
    pool.prints("stat foo", "p/foo mtime 2001-09-09T01:46:40.000000+0000, size 3\n");

    pool.fails("frob", "unrecognized command frob; -h or --help for usage\nerror 22: (22) Invalid argument");
    let usage = pool.run("put onlyone");
    assert!(usage.code == 1 && usage.err.starts_with("usage: rados [options] [commands]\n"));
    let missing = run_with(&cluster, &["rados", "-p", "nope", "ls"], b"");
    assert_eq!(
        (missing.code, missing.err.as_str()),
        (1, "error opening pool nope: (2) No such file or directory\n")
    );
    let none = run_with(&cluster, &["rados", "ls"], b"");
    assert_eq!((none.code, none.err.as_str()), (1, "either pool name or pg id needs to be specified\n"));
    let df = run_with(&cluster, &["rados", "df"], b"");
    assert!(df.out.starts_with("POOL_NAME") && df.out.contains("\ntotal_space ") && df.code == 0, "{df:?}");
    let purge = run_with(&cluster, &["rados", "purge", "p", "--yes-i-really-really-mean-it"], b"");
    assert_eq!(
        (purge.code, purge.out.as_str()),
        (0, "Removed 4 objects\nsuccessfully purged pool p\n"),
        "{purge:?}"
    );
    pool.prints("ls --all", "");
}

#[test]
fn large_objects_stream_both_ways() {
    let cluster = one_osd();
    create_pool(&cluster);
    let pool = Pool(&cluster);
    let data = pattern(9_000_001, 7);
    let put = pool.run_with("-b 1M put streamed -", &data);
    assert_eq!((put.code, put.err.as_str()), (0, ""));
    let target = cluster.folder().join("back");
    pool.quiet(&format!("-b 300000 get streamed {}", target.display()));
    assert!(fs::read(&target).unwrap() == data);
    let tail = pool.run(&format!("get streamed {} --offset 9000000", target.display()));
    assert_eq!((tail.code, fs::read(&target).unwrap()), (0, data[9_000_000..].to_vec()));
    // Replacing it with less data leaves nothing of the previous contents.
    assert_eq!(pool.run_with("put streamed -", b"short").code, 0);
    pool.prints("get streamed -", "short");
    assert_eq!(pool.run_with("put empty -", b"").code, 0);
    pool.prints("get empty -", "");

    let huge = cluster.folder().join("huge");
    fs::File::create(&huge).unwrap().set_len(200 << 20).unwrap();
    let ran = pool.run(&format!("put huge {}", huge.display()));
    assert!(ran.code == 1 && ran.err.starts_with("error putting p/huge: (27) File too large"), "{ran:?}");
    pool.fails("stat huge", " error stat-ing p/huge: (2) No such file or directory");
}

#[test]
fn trees_come_back_byte_for_byte() {
    let cluster = one_osd();
    create_pool(&cluster);
    let pool = Pool(&cluster);
    let (source, target) = (cluster.folder().join("source"), cluster.folder().join("target"));
    for n in 0..150_usize {
        let dir = source.join(format!("d{}", n % 7));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(format!("f{n}")), pattern(n * 997 % 70_000, n as u64)).unwrap();
    }
    fs::write(source.join("large"), pattern(5 << 20, 99)).unwrap();
    let stored = pool.run(&format!("-b 1M put-tree {} backup/", source.display()));
    assert!(stored.code == 0 && stored.out.starts_with("stored 151 objects, "), "{stored:?}");
    assert_eq!(pool.run("ls").out.lines().filter(|name| name.starts_with("backup/d3/")).count(), 21);
    let fetched = pool.run(&format!("get-tree {} backup/", target.display()));
    assert!(fetched.code == 0 && fetched.out.starts_with("fetched 151 objects, "), "{fetched:?}");
    assert_eq!(read_tree(&source), read_tree(&target));
    let again = pool.run(&format!("get-tree {} backup/ --format json", target.display()));
    assert!(again.code == 0 && again.out.starts_with(r#"{"objects":151,"bytes":"#), "{again:?}");
}

fn read_tree(root: &Path) -> Vec<(String, Vec<u8>)> {
    let mut out = Vec::new();
    let mut dirs = vec![root.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else {
                let name = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
                out.push((name, fs::read(&path).unwrap()));
            }
        }
    }
    out.sort();
    out
}

#[test]
fn bench_writes_reads_verifies_and_cleans_up() {
    let cluster = one_osd();
    create_pool(&cluster);
    let pool = Pool(&cluster);
    let none = pool.run("bench 1 seq");
    assert_eq!((none.code, none.out.as_str()), (1, "hints = 1\n"));
    assert!(
        none.err
            .starts_with("Must write data before running a read benchmark!\nerror during benchmark: (2) ")
    );

    let write = pool.run("bench 10 write -b 4096 -O 65536 -t 4 --max-objects 3 --no-cleanup");
    assert_eq!(write.code, 0, "{write:?}");
    let head = "hints = 1\nMaintaining 4 concurrent writes of 4096 bytes to objects of size 65536 for up to 10 seconds or 3 objects\nObject prefix: benchmark_data_";
    assert!(write.out.starts_with(head), "{}", write.out);
    for line in
        ["Total writes made:      48", "Write size:             4096", "Object size:            65536"]
    {
        assert!(write.out.lines().any(|have| have == line), "{line}: {}", write.out);
    }
    for label in ["Bandwidth (MB/sec):", "Average IOPS:", "Stddev Latency(s):", "Client CPU (us/op):"] {
        assert!(write.out.contains(label), "{label}: {}", write.out);
    }
    assert_eq!(pool.run("ls").out.lines().filter(|n| n.starts_with("benchmark_data_")).count(), 3);
    let read = pool.run("bench 10 seq -t 4 -f json");
    let json: serde_json::Value = serde_json::from_str(&read.out).unwrap();
    assert_eq!((json["total_reads_made"].as_str(), json["read_size"].as_str()), (Some("48"), Some("4096")));
    assert_eq!(pool.run("bench 1 rand -t 4").code, 0);

    // Damage to the data is detected.
    let name = pool.run("ls").out.lines().find(|n| n.ends_with("_object1")).unwrap().to_owned();
    assert_eq!(pool.run_with(&format!("put {name} - --offset 8200"), b"!").code, 0);
    let damaged = pool.run("bench 10 seq -t 4");
    assert!(damaged.code == 1 && damaged.err.contains("is not correct!"), "{damaged:?}");

    pool.prints("cleanup", "Removed 3 objects\n");
    pool.prints("cleanup", "");
    pool.prints("ls", "");
    let warm = pool.run("bench 1 write -b 4096 -t 4 --warm-up 1 --slice 1 --no-cleanup -f json");
    let json: serde_json::Value = serde_json::from_str(&warm.out).unwrap();
    let slices = json["slices"].as_array().unwrap();
    let ops = |warm_up: bool| -> u64 {
        let of = slices.iter().filter(|slice| slice["warm_up"] == warm_up);
        of.map(|slice| slice["ops"].as_u64().unwrap()).sum()
    };
    let total: u64 = json["total_writes_made"].as_str().unwrap().parse().unwrap();
    assert!(
        ops(true) > 0 && (ops(false)..=ops(false) + 4).contains(&total),
        "only what follows counts: {json}"
    );
    assert!(json["p999_latency"].as_str() >= json["p99_latency"].as_str(), "{json}");
    assert_eq!(pool.run("cleanup").code, 0);
    pool.prints("ls", "");
    let cleaned = pool.run("bench 1 write -b 4096 -t 4 --warm-up 1 --slice 1");
    assert!(
        cleaned.out.contains("\nWarmed up for ") && cleaned.out.contains(", not steady\n"),
        "{cleaned:?}"
    );
    assert!(cleaned.out.contains("\nCleaning up (deleting benchmark objects)\nRemoved "), "{cleaned:?}");
    pool.prints("ls", "");
    pool.fails(
        "cleanup --prefix x",
        "Specified --prefix invalid, it must begin with \"benchmark_data\"\nerror during cleanup: (22) Invalid argument\nerror 22: (22) Invalid argument",
    );
}

#[test]
fn cluster_commands_answer_as_ceph_does() {
    let cluster = one_osd();
    create_pool(&cluster);
    let run = |words: &str| run_with(&cluster, &words.split_whitespace().collect::<Vec<_>>(), b"");
    let tree = run("ceph osd tree -f json");
    assert!(tree.out.starts_with("\n{") && tree.code == 0, "{tree:?}");
    let id = run("osd pool ls");
    assert_eq!((id.code, id.out.as_str()), (0, "p\n"));
    let wrong = run("osd pool create");
    assert_eq!(wrong.code, 22);
    assert!(
        wrong
            .err
            .starts_with("Invalid command: missing required parameter pool(<pool>)\nosd pool create <pool>")
    );
    assert!(wrong.err.ends_with("Error EINVAL: invalid command\n"));
    let missing = run("osd pool get nope size");
    assert_eq!((missing.code, missing.err.as_str()), (2, "Error ENOENT: unrecognized pool 'nope'\n"));
    let version = run("tell osd.0 version");
    assert!(version.code == 0 && version.out.contains("version"), "{version:?}");
    let down = run("tell osd.7 version");
    assert_eq!((down.code, down.err.as_str()), (2, "Error ENOENT: osd.7 does not exist\n"));
    let query = run("pg 1.0 query -f json");
    assert!(query.code == 0 && query.out.contains("\"state\""), "{query:?}");
    let map = cluster.folder().join("crush");
    let got = run(&format!("osd getcrushmap -o {}", map.display()));
    assert!(got.code == 0 && got.out.is_empty() && fs::read(&map).unwrap().len() > 100, "{got:?}");
    assert_eq!(run(&format!("osd setcrushmap -i {}", map.display())).code, 0);
}

#[test]
fn cache_verbs_name_each_object_and_go_on_after_failures() {
    let cluster = one_osd();
    create_pool(&cluster);
    let pool = Pool(&cluster);
    for (words, data) in [("put a -", b"a"), ("-N ns --object-locator loc put b -", b"b")] {
        assert_eq!(pool.run_with(words, data).code, 0);
    }
    // The pool is not a cache: each verb fails, with the text of Ceph's program.
    for verb in ["cache-flush", "cache-try-flush", "cache-evict"] {
        let ran = pool.run(&format!("{verb} a"));
        assert!(ran.code == 1 && ran.err.starts_with("error from cache-flush a: ("), "{ran:?}");
        assert!(pool.run(verb).err.starts_with("usage: rados"), "{verb} needs an object");
    }
    for verb in ["cache-flush-evict-all", "cache-try-flush-evict-all"] {
        let ran = pool.run(&format!("{verb} --with-clones"));
        let (mut names, mut errors): (Vec<_>, Vec<_>) =
            (ran.out.lines().collect(), ran.err.lines().collect());
        names.sort_unstable();
        assert_eq!(names, ["\ta\t", "ns\tb\tloc"]);
        assert_eq!((ran.code, errors.pop()), (1, Some(format!("{verb} finished with errors").as_str())));
        errors.sort_unstable();
        assert!(errors[0].starts_with("failed to flush /a: ("), "{errors:?}");
        assert!(errors[1].starts_with("failed to flush ns/b: (") && errors.len() == 2, "{errors:?}");
    }
    pool.prints("get a -", "a");
    pool.quiet("rm a");
    pool.quiet("-N ns --object-locator loc rm b");
    pool.quiet("cache-flush-evict-all");
}
