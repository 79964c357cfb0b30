//! `nacre serve`: the tour of the README, with crashes.

use crate::support::{Serve, free_port, nacre};
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Runs a command in `folder`'s parent, where `./data/ceph.conf` is found by default.
fn run(folder: &Path, args: &[&str]) -> Output {
    Command::new(nacre())
        .args(args)
        .current_dir(folder.parent().unwrap())
        .env_remove("CEPH_CONF")
        .env_remove("CEPH_ARGS")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn ok(folder: &Path, args: &[&str]) -> String {
    let out = run(folder, args);
    assert!(out.status.success(), "nacre {}: {}", args.join(" "), String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// Files below `folder` with their contents, by relative path.
fn tree(folder: &Path) -> std::collections::BTreeMap<String, Vec<u8>> {
    let mut found = std::collections::BTreeMap::new();
    let mut open = vec![folder.to_path_buf()];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(&next).unwrap() {
            let entry = entry.unwrap();
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                open.push(entry.path());
            } else if kind.is_file() {
                let name = entry.path().strip_prefix(folder).unwrap().to_string_lossy().into_owned();
                found.insert(name, fs::read(entry.path()).unwrap());
            }
        }
    }
    found
}

#[test]
fn a_tree_of_files_survives_ctrl_c_and_kill_9() {
    let home = tempfile::Builder::new().prefix("nacre-serve-").tempdir().unwrap();
    let data = home.path().join("data");
    fs::create_dir_all(&data).unwrap();
    let listen = format!("127.0.0.1:{}", free_port());
    let (serve, _) = Serve::start(&data, &["--listen", &listen, "-o", "exporter_http_port=0"]);
    ok(&data, &["osd", "pool", "create", "files", "32"]);

    // Real files: this project's own sources and the build tools' documentation.
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let files = home.path().join("files");
    fs::create_dir_all(&files).unwrap();
    for part in ["crates", "docs", "bench"] {
        let copied = Command::new("cp").arg("-rL").arg(source.join(part)).arg(&files).status().unwrap();
        assert!(copied.success());
    }
    let big: Vec<u8> =
        (0..40_000_000u32).flat_map(|i| (i.wrapping_mul(2_654_435_761)).to_le_bytes()).collect();
    fs::write(files.join("big.bin"), &big[..96 << 20]).unwrap();
    drop(big);
    let expected = tree(&files);
    ok(&data, &["rados", "-p", "files", "put-tree", files.to_str().unwrap(), "tree/"]);
    let listed = ok(&data, &["rados", "-p", "files", "ls"]);
    assert_eq!(listed.lines().count(), expected.len());

    serve.interrupt();
    let (serve, restart) = Serve::start(&data, &[]);
    println!("ready {restart:?} after an orderly stop");
    let back = home.path().join("back");
    ok(&data, &["rados", "-p", "files", "get-tree", back.to_str().unwrap(), "tree/"]);
    assert!(tree(&back) == expected, "the tree differs after an orderly restart");

    let victim = listed.lines().find(|name| name.ends_with("big.bin")).unwrap();
    ok(&data, &["rados", "-p", "files", "rm", victim]);
    ok(
        &data,
        &["rados", "-p", "files", "put", "late", files.join("crates/nacre/Cargo.toml").to_str().unwrap()],
    );
    serve.kill();
    let (serve, restart) = Serve::start(&data, &[]);
    println!("ready {restart:?} after kill -9");
    let gone = run(&data, &["rados", "-p", "files", "stat", victim]);
    assert!(!gone.status.success(), "{victim} is back from the dead");
    let late = run(&data, &["rados", "-p", "files", "get", "late", "-"]);
    assert_eq!(late.stdout, expected["crates/nacre/Cargo.toml"]);
    fs::remove_dir_all(&back).unwrap();
    ok(&data, &["rados", "-p", "files", "get-tree", back.to_str().unwrap(), "tree/"]);
    let mut left = expected.clone();
    left.remove("big.bin");
    assert!(tree(&back) == left, "the tree differs after a crash");
    serve.interrupt();
}

#[test]
fn a_client_without_the_key_is_refused() {
    let home = tempfile::Builder::new().prefix("nacre-serve-").tempdir().unwrap();
    let data = home.path().join("data");
    fs::create_dir_all(&data).unwrap();
    let listen = format!("127.0.0.1:{}", free_port());
    let (serve, _) = Serve::start(
        &data,
        &["--listen", &listen, "--osds", "1", "--objectstore", "MemStore", "-o", "exporter_http_port=0"],
    );
    let conf = data.join("ceph.conf");
    let conf = conf.to_str().unwrap();
    assert!(ok(&data, &["-c", conf, "status"]).contains("1 osds: 1 up"));
    // A well-formed key of another cluster, but not this entity's.
    let wrong = home.path().join("wrong.keyring");
    let key = nacre_common::auth::Key::generate().unwrap();
    fs::write(&wrong, format!("[client.admin]\n\tkey = {}\n", &*key.to_base64())).unwrap();
    let refused = run(&data, &["-c", conf, "-k", wrong.to_str().unwrap(), "status"]);
    assert!(!refused.status.success(), "a wrong key was accepted");
    let nobody = run(&data, &["-c", conf, "-n", "client.nobody", "-k", wrong.to_str().unwrap(), "status"]);
    assert!(!nobody.status.success(), "an entity without a key was accepted");
    let mode = |path: &Path| {
        use std::os::unix::fs::PermissionsExt;
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    };
    assert_eq!(mode(&data.join("ceph.client.admin.keyring")), 0o600);
    assert_eq!(mode(&data.join("osd/0/keyring")), 0o600);
    serve.interrupt();
}

/// PGs by pool.
fn pg_nums(data: &Path) -> std::collections::BTreeMap<String, u64> {
    let listed = ok(data, &["osd", "pool", "ls", "detail", "--format", "json"]);
    let pools: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let pools = pools.as_array().unwrap().iter();
    pools.map(|p| (p["pool_name"].as_str().unwrap().to_owned(), p["pg_num"].as_u64().unwrap())).collect()
}

#[test]
fn a_new_cluster_with_s3_has_room_for_more_pools() {
    let home = tempfile::Builder::new().prefix("nacre-serve-").tempdir().unwrap();
    let data = home.path().join("data");
    fs::create_dir_all(&data).unwrap();
    let (listen, s3) = (format!("127.0.0.1:{}", free_port()), format!("127.0.0.1:{}", free_port()));
    let memory = ["--objectstore", "memstore", "-o", "exporter_http_port=0"];
    let args = [&["--listen", &listen, "--s3", &s3][..], &memory[..]].concat();
    let (serve, _) = Serve::start(&data, &args);
    for pool in ["a", "b", "c", "d"] {
        ok(&data, &["osd", "pool", "create", pool, "32"]);
    }
    let pg_nums = pg_nums(&data);
    for (pool, expected) in [(".rgw.root", 8), ("default.rgw.control", 8), ("default.rgw.buckets.index", 32)]
    {
        assert_eq!(pg_nums.get(pool), Some(&expected), "{pool}");
    }
    // A second start reports that the first one is running.
    let again = Command::new(nacre()).args(["serve", "--data"]).arg(&data).output().unwrap();
    let said = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(!again.status.success() && said.contains("is already running"), "{said}");
    serve.interrupt();
}

#[test]
fn a_cluster_without_room_for_the_gateways_pools_serves_s3_with_fewer_pgs() {
    let home = tempfile::Builder::new().prefix("nacre-serve-").tempdir().unwrap();
    let data = home.path().join("data");
    fs::create_dir_all(&data).unwrap();
    let (listen, s3) = (format!("127.0.0.1:{}", free_port()), format!("127.0.0.1:{}", free_port()));
    let few = ["--objectstore", "memstore", "-o", "exporter_http_port=0", "-o", "mon_max_pg_per_osd=45"];
    let args = [&["--listen", &listen, "--s3", &s3][..], &few[..]].concat();
    let (serve, _) = Serve::start(&data, &args);
    let pg_nums = pg_nums(&data);
    assert_eq!(pg_nums.len(), 6, "{pg_nums:?}");
    assert!(pg_nums.values().sum::<u64>() <= 45, "{pg_nums:?}");
    assert!(ok(&data, &["user", "info", "--uid", "admin"]).contains("access_key"));
    serve.interrupt();
}

#[test]
fn what_makes_no_sense_is_refused_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    for (args, said) in [
        (["--listen", "127.0.0.1:0"], "needs a port"),
        (["--objectstore", "paperstore"], "paperstore"),
        (["--option", "no_such_option=1"], "no_such_option"),
    ] {
        let out = Command::new(nacre())
            .args(["serve", "--mkfs-only", "--data"])
            .arg(&data)
            .args(args)
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success() && errors.contains(said), "{args:?}: {errors}");
        assert!(!data.join("ceph.conf").exists(), "{args:?} made a cluster");
    }
}
