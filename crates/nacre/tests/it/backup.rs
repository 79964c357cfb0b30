//! `nacre backup` and `nacre-dplcompat` on real clusters.

use crate::support::{TestCluster, nacre};
use std::fs;
use std::io::Write;
use std::process::{Command, Output, Stdio};

fn cluster(objectstore: &str) -> TestCluster {
    let cluster = TestCluster::start_with(2, objectstore, "[global]\nosd_pool_default_pg_num = 8");
    cluster.create_pool("backup", 8, 2, 1);
    cluster
}

/// Pseudorandom bytes from a seed.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut data = Vec::with_capacity(len + 8);
    while data.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        data.extend_from_slice(&state.to_le_bytes());
    }
    data.truncate(len);
    data
}

/// Runs a program with `input` on its standard input.
fn fed(mut command: Command, input: &[u8]) -> Output {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        // A program that fails early does not read all of the input.
        scope.spawn(move || drop(stdin.write_all(input)));
        child.wait_with_output().unwrap()
    })
}

fn backup(cluster: &TestCluster, args: &[&str], input: &[u8]) -> Output {
    let mut command = Command::new(nacre());
    command.arg("backup").args(args).arg("-c").arg(cluster.conf());
    fed(command, input)
}

fn ok(out: Output) -> Vec<u8> {
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    out.stdout
}

fn refused(out: &Output, text: &str) {
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success() && stderr.contains(text), "{}: {stderr}", out.status);
}

fn objects(cluster: &TestCluster) -> Vec<String> {
    cluster.ok(&["rados", "-p", "backup", "ls"]).lines().map(str::to_owned).collect()
}

#[test]
fn volumes_keep_streams_and_notice_damage() {
    let cluster = cluster("memstore");
    let run = |args: &[&str], input: &[u8]| backup(&cluster, args, input);
    let (first, second) = (noise(1, 9_000_001), noise(2, 1_234_567));
    let made =
        run(&["create", "v", "--block-size", "1M", "--stripe-unit", "64K", "--object-size", "1M"], &first);
    let told = String::from_utf8_lossy(&made.stderr).into_owned();
    assert!(told.contains("v: 9000001 bytes in ") && told.contains("MB/s, sha256 "), "{told}");
    ok(made);
    ok(run(&["append", "v"], &second));
    ok(run(&["create", "empty"], b""));
    assert!(ok(run(&["cat", "v"], b"")) == [&first[..], &second].concat());
    assert!(ok(run(&["cat", "v", "--segment", "1"], b"")) == second);
    assert_eq!(ok(run(&["cat", "empty"], b"")), b"");
    let file = cluster.folder().join("restored");
    ok(run(&["cat", "v", file.to_str().unwrap(), "--segment=0"], b""));
    assert!(fs::read(&file).unwrap() == first);

    // The digest is a plain SHA-256.
    let sum = ok(fed(Command::new("sha256sum"), &first));
    let info: serde_json::Value = serde_json::from_slice(&ok(run(&["info", "v", "--json"], b""))).unwrap();
    assert_eq!(info["segments"][0]["sha256"].as_str(), Some(std::str::from_utf8(&sum[..64]).unwrap()));
    assert_eq!((&info["bytes"], &info["state"]), (&10_234_568.into(), &"complete".into()));
    assert_eq!(info["layout"]["stripe_unit"], 65536);
    let listed = String::from_utf8(ok(run(&["ls"], b""))).unwrap();
    assert!(listed.lines().count() == 3 && listed.contains("10234568"), "{listed}");
    // It is a striped object like any other.
    let plain = ok(cluster.run(&["rados", "-p", "backup", "--striper", "get", "v", "-"]));
    assert!(plain == [&first[..], &second].concat());
    ok(run(&["verify", "v"], b""));

    refused(&run(&["create", "v"], b"x"), "already exists");
    refused(&run(&["cat", "none"], b""), "there is no volume none");
    refused(&run(&["append", "none"], b"x"), "there is no volume none");
    refused(&run(&["cat", "v", "--segment", "2"], b""), "no segment 2");

    // A changed byte is detected, and no data of its block is returned.
    let flipped = [first[5 << 20] ^ 1];
    let path = cluster.folder().join("flipped");
    fs::write(&path, flipped).unwrap();
    let place = ["--offset", "5242880", "put", "v"];
    cluster.ok(&[&["rados", "-p", "backup", "--striper"], &place[..], &[path.to_str().unwrap()]].concat());
    refused(&run(&["verify", "v"], b""), "v is damaged: the block of 1048576 bytes at byte 5242880");
    let cut = run(&["cat", "v"], b"");
    refused(&cut, "is damaged");
    assert!(cut.stdout == first[..5 << 20]);
    ok(run(&["cat", "v", "--segment", "1"], b""));

    ok(run(&["create", "v", "--force"], &second));
    assert!(ok(run(&["cat", "v"], b"")) == second);

    // A catalog that can't be read is reported, hides no other volume, and can be removed with its volume.
    ok(run(&["create", "w"], &first));
    cluster.ok(&[
        "rados",
        "-p",
        "backup",
        "setomapval",
        "w.backup",
        "segment.00000000",
        "{\"first_block\":7}",
    ]);
    refused(&run(&["cat", "w"], b""), "the catalog of w is damaged");
    let listed = run(&["ls"], b"");
    assert!(String::from_utf8_lossy(&listed.stderr).contains("the catalog of w is damaged"));
    let listed = String::from_utf8(ok(listed)).unwrap();
    let states: Vec<_> =
        listed.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>()).collect();
    assert!(states.iter().any(|line| line[..] == ["w", "damaged"]), "{listed}");
    assert!(states.iter().any(|line| line[0] == "v" && line.contains(&"complete")), "{listed}");
    let listed: serde_json::Value = serde_json::from_slice(&ok(run(&["ls", "--json"], b""))).unwrap();
    assert_eq!(listed[2], serde_json::json!({ "volume": "w", "state": "damaged" }));
    ok(run(&["rm", "w"], b""));
    for volume in ["v", "empty"] {
        ok(run(&["rm", volume], b""));
    }
    refused(&run(&["rm", "v"], b""), "there is no volume v");
    assert_eq!(objects(&cluster), Vec::<String>::new());
}

#[test]
fn a_stream_that_broke_off_goes_on_where_it_was() {
    let cluster = cluster("bluestore");
    let run = |args: &[&str], input: &[u8]| backup(&cluster, args, input);
    let data = noise(3, 48 << 20);
    let blocks = ["--block-size", "256K"];
    for (command, volume) in [("create", "v"), ("append", "v")] {
        // Killed in the middle, and again while it resumes.
        for (attempt, resume) in [&[][..], &["--resume"]].into_iter().enumerate() {
            let mut child = Command::new(nacre())
                .args(["backup", command, volume])
                .args(blocks)
                .args(resume)
                .arg("-c")
                .arg(cluster.conf())
                .stdin(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let mut stdin = child.stdin.take().unwrap();
            let part = &data[..(attempt + 1) * (16 << 20)];
            stdin.write_all(part).unwrap();
            let enough = (part.len() / 262_144 - 40) as u64;
            cluster.wait_for("blocks in the catalog", |_| {
                let out = run(&["info", volume, "--json"], b"").stdout;
                let info: serde_json::Value = serde_json::from_slice(&out).unwrap_or_default();
                let first = info["segments"].as_array().and_then(|all| all.last()?["first_block"].as_u64());
                info["blocks"].as_u64().zip(first).is_some_and(|(blocks, first)| blocks >= first + enough)
            });
            child.kill().unwrap();
            child.wait().unwrap();
            drop(stdin);
        }
        refused(&run(&["cat", volume], b""), "was interrupted");
        refused(&run(&[command, volume], b"x"), "--resume");
        let mut other = data.clone();
        other[1 << 20] ^= 1;
        refused(&run(&[command, volume, "--resume"], &other), "differs from the interrupted");
        refused(&run(&[command, volume, "--resume"], &data[..1 << 20]), "differs from the interrupted");
        // All of it, or less than was sent before.
        let rest = if command == "create" { &data[..] } else { &data[..30 << 20] };
        ok(run(&[command, volume, "--resume"], rest));
        ok(run(&["verify", volume], b""));
    }
    let stored = ok(run(&["cat", "v"], b""));
    assert!(stored == [&data[..], &data[..30 << 20]].concat());
    let stat = cluster.ok(&["rados", "-p", "backup", "--striper", "stat", "v"]);
    assert!(stat.ends_with(&format!("size {}\n", 78 << 20)), "{stat}");
}

/// Bytes of the tree that is stored in a volume and read back; several GB in the long profile.
fn tree_bytes() -> u64 {
    match std::env::var("NEXTEST_PROFILE") {
        Ok(profile) if profile == "long" => 4 << 30,
        _ => 1 << 30,
    }
}

#[test]
fn a_tree_comes_back_from_tar_as_it_was() {
    let cluster = cluster("bluestore");
    let tree = cluster.folder().join("tree");
    let (mut written, mut n) = (0, 0_u64);
    while written < tree_bytes() {
        // Most files are small, most bytes in large ones.
        let len = if n % 16 == 0 { (n * 7919) % (32 << 20) } else { (n * n * 17) % 70_000 };
        let folder = tree.join(format!("d{}", n % 13)).join(format!("e{}", n % 7));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(format!("f{n}")), noise(n, len as usize)).unwrap();
        written += len;
        n += 1;
    }
    let (conf, binary) = (cluster.conf(), nacre());
    let restored = cluster.folder().join("restored");
    fs::create_dir(&restored).unwrap();
    let shell = |line: &str| {
        let out = Command::new("bash")
            .args(["-c", &format!("set -euo pipefail; {line}")])
            .envs([("CONF", conf.as_os_str()), ("TREE", tree.as_os_str()), ("BACK", restored.as_os_str())])
            .env("NACRE", binary)
            .output()
            .unwrap();
        let text = [&out.stdout[..], &out.stderr].concat();
        assert!(out.status.success(), "{line}: {}", String::from_utf8_lossy(&text));
        print!("{}", String::from_utf8_lossy(&text));
    };
    shell("tar c -C $TREE . | $NACRE backup create t -c $CONF");
    shell("$NACRE backup cat t -c $CONF | tar x -C $BACK");
    shell("diff -r $TREE $BACK");
}

#[test]
fn bareos_parts_are_stored_listed_and_removed() {
    let cluster = cluster("memstore");
    let program = cluster.folder().join("nacre-dplcompat");
    std::os::unix::fs::symlink(nacre(), &program).unwrap();
    let options = format!(
        "conffile={},poolname=backup,striped,stripe_unit=65536,stripe_count=2,object_size=131072",
        cluster.conf().display()
    );
    let run = |args: &[&str], input: &[u8]| {
        let mut command = Command::new(&program);
        command.args(args).env_clear().env("device_options", &options);
        fed(command, input)
    };
    let names = String::from_utf8(ok(fed(
        {
            let mut command = Command::new(&program);
            command.arg("options").env_clear();
            command
        },
        b"",
    )))
    .unwrap();
    assert!(names.lines().any(|name| name == "poolname") && names.lines().any(|name| name == "object_size"));
    ok(run(&["testconnection"], b""));
    let volume = "Full: 5409/a.b";
    assert_eq!(ok(run(&["list", volume], b"")), b"");
    let (large, small) = (noise(5, 11_000_003), noise(6, 500_000));
    ok(run(&["upload", volume, "0000"], &large));
    ok(run(&["upload", volume, "0001"], &large));
    ok(run(&["upload", volume, "0001"], &small));
    ok(run(&["upload", volume, "0002"], b""));
    let listed = String::from_utf8(ok(run(&["list", volume], b""))).unwrap();
    assert_eq!(listed, "0000 11000003\n0001 500000\n0002 0\n");
    assert_eq!(ok(run(&["stat", volume, "0001"], b"")), b"500000\n");
    assert!(ok(run(&["download", volume, "0000"], b"")) == large);
    assert!(ok(run(&["download", volume, "0001"], b"")) == small);
    assert_eq!(ok(run(&["download", volume, "0002"], b"")), b"");
    for args in [&["stat", volume, "0009"][..], &["download", volume, "0009"], &["remove", volume, "0009"]] {
        refused(&run(args, b""), "there is no part 0009");
    }
    for args in [&["burn", volume][..], &["stat", volume], &[], &["list", ""], &["stat", volume, "a/0000"]] {
        refused(&run(args, b""), "nacre-dplcompat: ");
    }
    let mut elsewhere = Command::new(&program);
    elsewhere.arg("testconnection").env_clear().env("device_options", options.replace("=backup", "=none"));
    refused(&fed(elsewhere, b""), "can't open pool none");
    // Damage is detected.
    cluster.ok(&["rados", "-p", "backup", "--striper", "truncate", &format!("{volume}/0001"), "499999"]);
    refused(&run(&["download", volume, "0001"], b""), "is damaged");
    // An interrupted upload leaves nothing in the list.
    let mut child = Command::new(&program)
        .args(["upload", volume, "0000"])
        .env("device_options", &options)
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&large[..9 << 20]).unwrap();
    cluster.wait_for("the part to be unlisted", |_| {
        !String::from_utf8(ok(run(&["list", volume], b""))).unwrap().contains("0000 ")
    });
    child.kill().unwrap();
    child.wait().unwrap();
    drop(stdin);
    refused(&run(&["download", volume, "0000"], b""), "there is no part 0000");
    for part in ["0000", "0001", "0002"] {
        ok(run(&["remove", volume, part], b""));
    }
    assert_eq!(objects(&cluster), Vec::<String>::new());
}

#[test]
fn help_needs_no_cluster() {
    for args in [&["backup", "--help"][..], &["dplcompat", "--help"], &["dplcompat", "options"]] {
        let out = Command::new(nacre()).args(args).env_clear().stdin(Stdio::null()).output().unwrap();
        assert!(String::from_utf8(ok(out)).unwrap().lines().count() > 5, "{args:?}");
    }
}
