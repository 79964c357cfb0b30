//! `nacre map-store`: a cluster moves onto etcd and back with its data, and a backup is restored.

use crate::etcd_cluster::EtcdCluster;
use crate::support::{Daemon, TestCluster};
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// Sets the option `mon_map_store`.
fn use_store(cluster: &TestCluster, store: &str) {
    let text = fs::read_to_string(cluster.conf()).unwrap();
    let kept: Vec<&str> = text.lines().filter(|line| !line.starts_with("mon_map_store")).collect();
    let text = kept.join("\n").replacen("[mon]\n", &format!("[mon]\nmon_map_store = {store}\n"), 1);
    assert!(text.contains("mon_map_store"), "{text}");
    fs::write(cluster.conf(), text).unwrap();
}

/// Runs a command that must fail, and returns its error.
fn refused(cluster: &TestCluster, args: &[&str]) -> String {
    let out = cluster.run(args);
    assert!(!out.status.success(), "{args:?} succeeded");
    String::from_utf8_lossy(&out.stderr).into_owned()
}

fn put(cluster: &TestCluster, name: &str) {
    let file = cluster.folder().join("object");
    fs::write(&file, format!("contents of {name}")).unwrap();
    cluster.ok(&["rados", "-p", "p", "put", name, file.to_str().unwrap()]);
}

fn check(cluster: &TestCluster, names: &[&str]) {
    for name in names {
        assert_eq!(cluster.ok(&["rados", "-p", "p", "get", name, "-"]), format!("contents of {name}"));
    }
}

#[test]
fn a_cluster_moves_onto_etcd_and_back_and_is_restored_from_a_backup() {
    let etcd = EtcdCluster::start(3, &[]);
    let url = etcd.url("moved");
    let mut cluster = TestCluster::start_with(2, "filestore", "");
    cluster.create_pool("p", 8, 2, 1);
    cluster.wait_healthy();
    put(&cluster, "first");
    let error = refused(&cluster, &["map-store", "migrate", &url]);
    assert!(error.contains("in use by another process"), "{error}");
    assert!(refused(&cluster, &["map-store", "migrate", "etcd://nowhere"]).contains("HOST:PORT"));

    // The OSDs run on, and go on with the map in etcd.
    cluster.terminate(Daemon::Mon);
    let moved = cluster.ok(&["map-store", "migrate", &url]);
    assert!(moved.contains(&format!("has moved to {url}\n")), "{moved}");
    assert!(refused(&cluster, &["map-store", "migrate", &url, "--abort"]).contains("nothing to abort"));
    cluster.spawn(Daemon::Mon);
    assert!(!cluster.wait_ended(Daemon::Mon).success());
    let log = cluster.log_of(Daemon::Mon);
    assert!(log.contains(&format!("sealed: its cluster has moved to {url}")), "{log}");
    use_store(&cluster, &url);
    cluster.spawn(Daemon::Mon);
    cluster.wait_healthy();
    check(&cluster, &["first"]);
    put(&cluster, "second");

    // A backup, while the monitor runs.
    let backup = cluster.folder().join("backup");
    let file = backup.to_str().unwrap();
    let saved = cluster.ok(&["map-store", "export", file]);
    assert!(saved.contains(" keys of cluster "), "{saved}");
    assert_eq!(fs::metadata(&backup).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(refused(&cluster, &["map-store", "export", file]).contains("File exists"));
    // What the backup does not have.
    cluster.ok(&["ceph", "config-key", "set", "later", "lost"]);

    cluster.terminate(Daemon::Mon);
    let back = cluster.ok(&["map-store", "migrate", "local"]);
    assert!(back.contains("has moved to local"), "{back}");
    use_store(&cluster, "local");
    cluster.spawn(Daemon::Mon);
    cluster.wait_healthy();
    check(&cluster, &["first", "second"]);
    put(&cluster, "third");
    assert_eq!(cluster.ok(&["ceph", "config-key", "get", "later"]).trim(), "lost");

    // The backup is older than what the OSDs have seen: a new generation.
    cluster.terminate(Daemon::Mon);
    assert!(refused(&cluster, &["map-store", "import", file]).contains("holds a cluster already"));
    use_store(&cluster, &etcd.url("restored"));
    let imported = cluster.ok(&["map-store", "import", file]);
    assert!(imported.contains(" has generation "), "{imported}");
    cluster.spawn(Daemon::Mon);
    cluster.wait_healthy();
    check(&cluster, &["first", "second", "third"]);
    assert!(!cluster.run(&["ceph", "config-key", "get", "later"]).status.success());
}

#[test]
fn a_cluster_whose_map_store_is_lost_is_rebuilt_from_its_osds() {
    let mut cluster = TestCluster::start_with(3, "filestore", "");
    cluster.create_pool("p", 8, 3, 2);
    cluster.wait_healthy();
    put(&cluster, "first");
    cluster.ok(&["ceph", "config", "set", "osd", "osd_max_backfills", "3"]);
    let dirs: Vec<String> =
        (0..3).map(|osd| cluster.folder().join(format!("osd/{osd}")).to_str().unwrap().to_owned()).collect();
    let admin = cluster.folder().join("ceph.client.admin.keyring").to_str().unwrap().to_owned();
    let mut rebuild = vec!["map-store", "rebuild", "--from-osds"];
    rebuild.extend(dirs.iter().map(String::as_str));
    cluster.terminate(Daemon::Mon);
    let running = refused(&cluster, &rebuild);
    assert!(running.contains("can't read the OSD in"), "{running}");
    // One OSD ends in a crash.
    cluster.kill(Daemon::Osd(0));
    cluster.terminate(Daemon::Osd(1));
    cluster.terminate(Daemon::Osd(2));
    let store = cluster.folder().join("mon/store.db");
    fs::rename(&store, cluster.folder().join("lost")).unwrap();
    let without_admin = refused(&cluster, &rebuild);
    assert!(without_admin.contains("client.admin"), "{without_admin}");
    rebuild.extend(["--keyring", &admin]);
    let rebuilt = cluster.ok(&rebuild);
    assert!(["osd.0", "osd.2", "client.admin"].iter().all(|name| rebuilt.contains(name)), "{rebuilt}");
    assert!(rebuilt.contains("lost: other entities"), "{rebuilt}");
    cluster.spawn(Daemon::Mon);
    (0..3).for_each(|osd| cluster.spawn(Daemon::Osd(osd)));
    cluster.wait_healthy();
    check(&cluster, &["first"]);
    put(&cluster, "second");
    assert!(!cluster.ok(&["ceph", "config", "dump"]).contains("osd_max_backfills"));
}
