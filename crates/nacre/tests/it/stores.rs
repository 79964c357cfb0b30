//! Clusters on FileStore, on MemStore and on several stores at once: the effects of a crash, the reports of a loss, and pools
//! that use one device class.

use crate::failures::{Load, conf, connect, open};
use crate::support::{Daemon, TestCluster};
use bytes::Bytes;
use nacre_client::IoCtx;
use nacre_common::config::ConfigBuilder;
use nacre_types::errno::Errno;
use nacre_types::ids::EntityName;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// Pools of one copy are refused by default.
const ALONE: &str = "mon_allow_pool_size_one=true";

fn json(cluster: &TestCluster, args: &[&str]) -> Value {
    let text = cluster.ok(&[&["ceph"], args, &["--format", "json"]].concat());
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{args:?}: {e}: {text}"))
}

fn health(cluster: &TestCluster) -> String {
    String::from_utf8_lossy(&cluster.run(&["ceph", "health", "detail"]).stdout).into_owned()
}

/// A client whose requests fail after some seconds instead of waiting for the cluster.
fn impatient(cluster: &TestCluster, pool: &str) -> IoCtx {
    let config = ConfigBuilder::new(EntityName::client("admin"))
        .conf(cluster.conf())
        .set("rados_osd_op_timeout", "3")
        .build()
        .unwrap();
    let cluster = nacre_client::native::connect(&config).wait().unwrap();
    nacre_client::block_on(cluster.open_pool(pool)).unwrap()
}

fn resident_bytes(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
}

/// All files below `directory`.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                directories.push(entry.path());
            } else {
                found.push(entry.path());
            }
        }
    }
    found
}

#[test]
fn killed_memstore_is_healed_by_its_replicas() {
    let mut cluster = TestCluster::start_with(3, "memstore", conf());
    cluster.create_pool("data", 8, 3, 2);
    cluster.wait_healthy();
    let load = Load::start(&cluster, "data", "client", 2);
    load.expect_progress(50, &cluster);
    cluster.kill(Daemon::Osd(1));
    load.expect_progress(50, &cluster);
    cluster.spawn(Daemon::Osd(1));
    load.expect_progress(20, &cluster);
    cluster.wait_healthy();
    let log = fs::read_to_string(cluster.folder().join("log/osd.1.log")).unwrap();
    assert!(log.contains("contents lost"), "the loss is told: {log}");
    load.expect_progress(20, &cluster);
    cluster.ok(&["ceph", "osd", "pool", "set", "data", "min_size", "1"]);
    cluster.wait_healthy();
    // The recovered copy is as good as the others: it alone serves all acknowledged data.
    cluster.terminate(Daemon::Osd(0));
    cluster.terminate(Daemon::Osd(2));
    assert!(load.finish(&cluster) >= 20);
}

/// Kills all OSDs after writes and restarts them. Lost data must be reported and never served as other data.
fn loses_loudly(osds: usize, size: u32) {
    let mut cluster = TestCluster::start_with_options(osds, "memstore", &["-o", ALONE], conf());
    cluster.create_pool("data", 4, size, 1);
    if size > 1 {
        cluster.wait_healthy();
    }
    let io = open(&cluster, "data");
    for at in 0..20 {
        io.write_full(&format!("object-{at}"), Bytes::from(format!("contents {at}"))).wait().unwrap();
    }
    // The map authority receives the number of objects.
    cluster.wait_for("20 objects in the statistics", |c| {
        json(c, &["df"])["pools"].as_array().unwrap().iter().any(|pool| pool["stats"]["objects"] == 20)
    });
    for osd in 0..osds {
        cluster.kill(Daemon::Osd(osd));
    }
    for osd in 0..osds {
        cluster.spawn(Daemon::Osd(osd));
    }
    cluster.wait_for("the loss in health", |c| {
        let said = health(c);
        said.contains("OBJECT_UNFOUND") && said.contains("PG_DAMAGED")
    });
    let said = health(&cluster);
    assert!(said.starts_with("HEALTH_ERR"), "{said}");
    assert!(said.contains("20/20 objects unfound (100.000%)"), "{said}");
    assert!(said.contains("has lost all copies") && said.contains("osd.0"), "{said}");
    let states = json(&cluster, &["status"])["pgmap"]["pgs_by_state"].clone();
    assert!(states.as_array().unwrap().iter().any(|state| state["state_name"] == "incomplete"), "{states}");
    let late = impatient(&cluster, "data");
    for at in 0..3 {
        let read = late.read(&format!("object-{at}"), 0, 0).wait();
        assert_eq!(read.unwrap_err().errno(), Errno::ETIMEDOUT, "neither empty nor absent");
    }
    let write = late.write_full("new", Bytes::from_static(b"x")).wait();
    assert_eq!(write.unwrap_err().errno(), Errno::ETIMEDOUT);
    // The operator gives up the data, and the cluster continues.
    cluster.ok(&["ceph", "config", "set", "mon", "mon_allow_pool_delete", "true"]);
    cluster.ok(&["ceph", "osd", "pool", "delete", "data", "data", "--yes-i-really-really-mean-it"]);
    cluster.create_pool("again", 4, size, 1);
    cluster.wait_for("no more loss in health", |c| !health(c).contains("unfound"));
    let io = open(&cluster, "again");
    io.write_full("object", Bytes::from_static(b"here")).wait().unwrap();
    assert_eq!(io.read("object", 0, 0).wait().unwrap(), "here");
}

#[test]
fn killed_memstore_without_replicas_tells_what_is_lost() {
    loses_loudly(1, 1);
}

#[test]
fn all_memstores_killed_at_once_tell_what_is_lost() {
    loses_loudly(3, 3);
}

#[test]
fn memstores_stopped_in_order_lose_nothing() {
    let mut cluster = TestCluster::start_with(3, "memstore", conf());
    cluster.create_pool("data", 8, 3, 2);
    cluster.wait_healthy();
    let load = Load::start(&cluster, "data", "client", 2);
    load.expect_progress(60, &cluster);
    for osd in 0..3 {
        cluster.terminate(Daemon::Osd(osd));
    }
    for osd in 0..3 {
        cluster.spawn(Daemon::Osd(osd));
    }
    load.expect_progress(20, &cluster);
    cluster.wait_healthy();
    load.finish(&cluster);
}

#[test]
fn memstore_takes_no_more_memory_than_it_was_given() {
    const GIVEN: u64 = 96 << 20;
    let options = ["-o", "memstore_device_bytes=100663296", "-o", ALONE];
    let cluster = TestCluster::start_with_options(1, "memstore", &options, conf());
    cluster.create_pool("data", 4, 1, 1);
    cluster.ok(&["ceph", "osd", "set-full-ratio", "0.97"]);
    let io = open(&cluster, "data").with_full_try();
    io.write_full("first", Bytes::from(vec![1; 4096])).wait().unwrap();
    let before = resident_bytes(cluster.pid(0));
    let mut taken = Vec::new();
    let mut most = 0;
    // Sizes that leave gaps, and attributes and omaps, which are not data.
    'fill: for round in 0..20_000_u64 {
        let name = format!("object-{round}");
        let size = [500, 4096, 5000, 70_000, 300_000][(round % 5) as usize];
        if io.write_full(&name, Bytes::from(vec![round as u8; size])).wait().is_err() {
            break 'fill;
        }
        taken.push(name);
        if round % 50 == 0 {
            most = most.max(resident_bytes(cluster.pid(0)));
        }
    }
    let refused = io.write_full("one-more", Bytes::from(vec![7; 300_000])).wait().unwrap_err();
    assert_eq!(refused.errno(), Errno::ENOSPC);
    most = most.max(resident_bytes(cluster.pid(0)));
    let grown = most - before.min(most);
    eprintln!("{} objects, resident memory grew by {grown} of {GIVEN}", taken.len());
    assert!(taken.len() > 500, "full after {} objects", taken.len());
    // Data in flight and the allocator's own reserve are added to the contents.
    assert!(grown < GIVEN + GIVEN / 4, "{grown} bytes resident for {GIVEN} given");
    for name in &taken {
        io.remove(name).wait().unwrap();
    }
    cluster.wait_for("room again", |_| io.write_full("after", Bytes::from(vec![7; 300_000])).wait().is_ok());
}

#[test]
fn filestores_killed_under_load_lose_nothing() {
    let mut cluster = TestCluster::start_with_options(3, "filestore", &["-o", "osd_journal_size=64"], conf());
    cluster.create_pool("data", 8, 3, 2);
    cluster.wait_healthy();
    let load = Load::start(&cluster, "data", "client", 2);
    load.expect_progress(40, &cluster);
    cluster.kill(Daemon::Osd(0));
    load.expect_progress(20, &cluster);
    cluster.spawn(Daemon::Osd(0));
    cluster.wait_healthy();
    for osd in 0..3 {
        cluster.kill(Daemon::Osd(osd));
    }
    for osd in 0..3 {
        cluster.spawn(Daemon::Osd(osd));
    }
    load.expect_progress(20, &cluster);
    cluster.kill(Daemon::Osd(1));
    cluster.wipe(1);
    cluster.spawn(Daemon::Osd(1));
    cluster.wait_healthy();
    load.finish(&cluster);
}

#[test]
fn damaged_file_is_an_error_and_never_served() {
    let made = ["-o", "osd_journal_size=64", "-o", ALONE];
    let mut cluster = TestCluster::start_with_options(1, "filestore", &made, conf());
    cluster.create_pool("data", 4, 1, 1);
    let io = open(&cluster, "data");
    let contents = Bytes::from(vec![b'x'; 50_000]);
    io.write_full("victim", contents.clone()).wait().unwrap();
    io.write_full("other", contents.clone()).wait().unwrap();
    cluster.terminate(Daemon::Osd(0));
    let current = cluster.folder().join("osd/0/current");
    let found: Vec<_> =
        files(&current).into_iter().filter(|path| path.to_string_lossy().contains("victim__head_")).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(fs::read(&found[0]).unwrap(), contents, "the object is a plain file");
    let mut changed = contents.to_vec();
    changed[20_000] = b'y';
    fs::write(&found[0], changed).unwrap();
    cluster.spawn(Daemon::Osd(0));
    let io = open(&cluster, "data");
    assert_eq!(io.read("victim", 0, 0).wait().unwrap_err().errno(), Errno::EIO);
    assert_eq!(io.read("other", 0, 0).wait().unwrap(), contents);
    cluster.wait_for("FILESTORE_DAMAGED in health", |c| health(c).contains("FILESTORE_DAMAGED"));
}

#[test]
fn pools_live_on_one_class_of_a_mixed_cluster() {
    let kinds = "memstore,memstore,filestore,filestore,bluestore,bluestore";
    let classes = "[osd.2]\nosd device class = hdd\n[osd.3]\nosd device class = hdd\n";
    // All of one size, because CRUSH weights OSDs by their size.
    let sizes =
        ["osd_journal_size=64", "filestore_device_bytes=1073741824", "bluestore_block_size=1073741824"];
    let made = sizes.map(|size| ["-o", size]).concat();
    let mut cluster = TestCluster::start_with_options(6, kinds, &made, &format!("{}{classes}", conf()));
    let stores: Vec<String> = (0..6)
        .map(|osd| {
            let metadata = json(&cluster, &["osd", "metadata", &osd.to_string()]);
            metadata["osd_objectstore"].as_str().unwrap().to_owned()
        })
        .collect();
    assert_eq!(stores.join(","), kinds);
    let mut pools = Vec::new();
    for (class, members) in [("mem", [0, 1]), ("hdd", [2, 3]), ("ssd", [4, 5])] {
        let listed = json(&cluster, &["osd", "crush", "class", "ls-osd", class]);
        assert_eq!(listed, serde_json::json!(members));
        let rule = format!("on-{class}");
        cluster.ok(&["ceph", "osd", "crush", "rule", "create-replicated", &rule, "default", "osd", class]);
        cluster.create_pool(class, 8, 2, 1);
        cluster.ok(&["ceph", "osd", "pool", "set", class, "crush_rule", &rule]);
        pools.push((class, members));
    }
    cluster.create_pool("everywhere", 16, 3, 2);
    cluster.wait_healthy();
    for (class, members) in &pools {
        let listed = json(&cluster, &["pg", "ls-by-pool", class]);
        for pg in listed["pg_stats"].as_array().unwrap() {
            let acting: Vec<u64> =
                pg["acting"].as_array().unwrap().iter().map(|osd| osd.as_u64().unwrap()).collect();
            assert!(acting.len() == 2 && acting.iter().all(|osd| members.contains(osd)), "{class}: {pg}");
        }
    }
    let loads: Vec<_> = [("mem", "mem"), ("hdd", "hdd"), ("ssd", "ssd"), ("everywhere", "all")]
        .map(|(pool, prefix)| Load::start(&cluster, pool, prefix, 1))
        .into();
    loads.iter().for_each(|load| load.expect_progress(20, &cluster));
    // One of each kind fails, one after the other. The others have its copies, whatever their store.
    for osd in [0, 2, 4] {
        cluster.kill(Daemon::Osd(osd));
        loads.iter().for_each(|load| load.expect_progress(20, &cluster));
        cluster.spawn(Daemon::Osd(osd));
        cluster.wait_healthy();
    }
    for load in loads {
        load.finish(&cluster);
    }
    drop(connect(&cluster));
    // A new OSD uses the kind in its own section.
    let conf = fs::read_to_string(cluster.conf()).unwrap();
    assert!(conf.contains("[osd.2]\nosd_objectstore = filestore\n"), "{conf}");
    fs::write(cluster.conf(), format!("{conf}\n[osd.5]\nosd objectstore = MemStore\n")).unwrap();
    cluster.terminate(Daemon::Osd(5));
    cluster.wipe(5);
    cluster.spawn(Daemon::Osd(5));
    cluster.wait_healthy();
    assert_eq!(json(&cluster, &["osd", "metadata", "5"])["osd_objectstore"], "memstore");
}

#[test]
fn compressed_pools_are_counted_and_read_back() {
    let mut cluster = TestCluster::start_with(3, "bluestore", conf());
    cluster.create_pool("data", 8, 3, 2);
    let refused = cluster.run(&["ceph", "osd", "pool", "set", "data", "compression_algorithm", "zlib"]);
    assert!(!refused.status.success());
    let set = |name: &str, value: &str| cluster.ok(&["ceph", "osd", "pool", "set", "data", name, value]);
    set("compression_mode", "force");
    set("compression_algorithm", "zstd");
    set("csum_type", "xxhash64");
    cluster.wait_healthy();
    let detail = |c: &TestCluster| {
        let pools = json(c, &["df", "detail"])["pools"].clone();
        let pool = pools.as_array().unwrap().iter().find(|pool| pool["name"] == "data").unwrap();
        let number = |name: &str| pool["stats"][name].as_u64().unwrap();
        (number("compress_bytes_used"), number("compress_under_bytes"), number("bytes_used"))
    };
    let io = open(&cluster, "data");
    let line = b"a line of a log that says much the same as the one before\n";
    let contents: Bytes = line.iter().copied().cycle().take(1 << 20).collect::<Vec<u8>>().into();
    // The reports of the OSDs may take a moment.
    cluster.wait_for("compressed data in df", |c| {
        for at in 0..4 {
            io.write_full(&format!("log-{at}"), contents.clone()).wait().unwrap();
        }
        detail(c).1 == 12 << 20
    });
    let (used, original, all) = detail(&cluster);
    assert!(used > 0 && used < original / 8 && all < original / 4, "{used} {original} {all}");
    let table = cluster.ok(&["ceph", "df", "detail"]);
    assert!(table.contains("USED COMPR") && table.contains("12 MiB"), "{table}");
    for osd in 0..3 {
        cluster.terminate(Daemon::Osd(osd));
        cluster.spawn(Daemon::Osd(osd));
    }
    cluster.wait_healthy();
    assert_eq!(io.read("log-3", 0, 0).wait().unwrap(), contents);
    assert_eq!(io.read("log-0", 500_000, 1000).wait().unwrap(), contents.slice(500_000..501_000));
    for at in 0..4 {
        io.remove(&format!("log-{at}")).wait().unwrap();
    }
    cluster.wait_for("nothing compressed", |c| detail(c).1 == 0);
}

/// Waits until all PGs are clean. Health continues to report damaged blocks.
fn wait_clean(cluster: &TestCluster) {
    cluster.wait_for("clean PGs", |c| {
        let status = json(c, &["status"]);
        let states = status["pgmap"]["pgs_by_state"].as_array().unwrap().clone();
        status["osdmap"]["num_up_osds"] == 3
            && states.iter().all(|state| state["state_name"] == "active+clean")
    });
}

/// Changes bytes on the device of an OSD that is down: those of the object's data from `marker` on.
fn damage_device(cluster: &TestCluster, osd: usize, marker: &[u8]) {
    use std::os::unix::fs::FileExt;
    let is_device = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name == "block")
            && path.parent().is_some_and(|folder| folder.ends_with(format!("osd/{osd}")))
    };
    let device = files(cluster.folder()).into_iter().find(is_device).expect("the OSD has a device");
    let contents = fs::read(&device).unwrap();
    let found: Vec<usize> = contents
        .windows(marker.len())
        .enumerate()
        .filter(|(_, bytes)| *bytes == marker)
        .map(|(at, _)| at)
        .collect();
    assert!(!found.is_empty(), "the data is not on {}", device.display());
    let file = fs::OpenOptions::new().write(true).open(&device).unwrap();
    for at in found {
        file.write_all_at(b"changed", at as u64 + 100).unwrap();
    }
}

/// Data of 16 blocks, each of which starts with a unique text.
fn marked(name: &str) -> (Bytes, impl Fn(usize) -> Vec<u8>) {
    let name = name.to_owned();
    let marker = move |block: usize| format!("<block {block} of {name}>").into_bytes();
    let mut data = Vec::new();
    for block in 0..16 {
        let mut bytes = marker(block);
        bytes.resize(4096, b'a' + block as u8);
        data.extend(bytes);
    }
    (Bytes::from(data), marker)
}

#[test]
fn a_damaged_block_costs_neither_its_osd_nor_the_object() {
    let mut cluster =
        TestCluster::start_with_options(3, "bluestore", &["-o", "bluestore_block_size=268435456"], conf());
    cluster.create_pool("data", 8, 3, 2);
    cluster.wait_healthy();
    let io = open(&cluster, "data");
    let (read, updated, lost) = (marked("read"), marked("updated"), marked("lost"));
    let given_up = marked("given up");
    for (name, (data, _)) in
        [("read", &read), ("updated", &updated), ("lost", &lost), ("given up", &given_up)]
    {
        io.write_full(name, data.clone()).wait().unwrap();
    }
    io.write_full("sound", read.0.clone()).wait().unwrap();
    // Stops members of the object's PG one by one, and damages a block of each.
    let damage =
        |cluster: &mut TestCluster, object: &str, members: std::ops::Range<usize>, marker: Vec<u8>| {
            let acting = json(cluster, &["osd", "map", "data", object])["acting"].as_array().unwrap().clone();
            for member in &acting[members] {
                let osd = member.as_u64().unwrap() as usize;
                cluster.kill(Daemon::Osd(osd));
                damage_device(cluster, osd, &marker);
                cluster.spawn(Daemon::Osd(osd));
                wait_clean(cluster);
            }
            acting.iter().map(|member| member.as_u64().unwrap() as usize).collect::<Vec<_>>()
        };
    let processes = |c: &TestCluster| (0..3).map(|osd| c.pid(osd)).collect::<Vec<_>>();

    // The primary can't read it, but another member can.
    damage(&mut cluster, "read", 0..1, read.1(3));
    // A replica and the primary can't read the rest of a block that is partly overwritten.
    damage(&mut cluster, "updated", 0..1, updated.1(5));
    let members = damage(&mut cluster, "updated", 2..3, updated.1(7));
    let before = processes(&cluster);
    assert_eq!(io.read("read", 0, 0).wait().unwrap(), read.0);
    let mut wanted = updated.0.to_vec();
    for block in [5, 7] {
        io.write("updated", block * 4096 + 1000, Bytes::from_static(b"new")).wait().unwrap();
        wanted[block as usize * 4096 + 1000..][..3].copy_from_slice(b"new");
    }
    assert_eq!(io.read("updated", 0, 0).wait().unwrap(), wanted);
    wait_clean(&cluster);
    assert_eq!(processes(&cluster), before, "no OSD ended");

    // Data that no member can read is reported as lost.
    damage(&mut cluster, "lost", 0..3, lost.1(9));
    assert_eq!(io.read("lost", 0, 0).wait().unwrap_err().errno(), Errno::EIO);
    cluster.wait_for("the loss in health", |c| health(c).contains("OBJECT_UNFOUND"));
    assert_eq!(io.read("sound", 0, 0).wait().unwrap(), read.0);
    assert_eq!(io.append("lost", Bytes::from_static(b"more")).wait().unwrap_err().errno(), Errno::EIO);
    io.remove("lost").wait().unwrap();
    io.write_full("lost", Bytes::from_static(b"made again")).wait().unwrap();
    wait_clean(&cluster);
    assert_eq!(io.read("lost", 0, 0).wait().unwrap(), "made again");

    // An operator gives up lost data.
    damage(&mut cluster, "given up", 0..3, given_up.1(2));
    assert_eq!(io.read("given up", 0, 0).wait().unwrap_err().errno(), Errno::EIO);
    let pg = json(&cluster, &["osd", "map", "data", "given up"])["pgid"].as_str().unwrap().to_owned();
    cluster.wait_for("the loss in a listing", |c| json(c, &["pg", &pg, "list_unfound"])["num_unfound"] == 1);
    let listed = json(&cluster, &["pg", &pg, "list_unfound"]);
    assert_eq!((&listed["objects"][0]["oid"]["oid"], &listed["more"]), (&"given up".into(), &false.into()));
    let offset = listed["objects"][0]["oid"].to_string();
    assert_eq!(json(&cluster, &["pg", &pg, "list_unfound", &offset])["objects"], Value::Array(Vec::new()));
    let refused = cluster.run(&["ceph", "pg", &pg, "mark_unfound_lost", "revert"]);
    assert_eq!(refused.status.code(), Some(22));
    let text = cluster.run(&["ceph", "pg", &pg, "mark_unfound_lost", "delete"]);
    let text = String::from_utf8_lossy(&[text.stdout, text.stderr].concat()).into_owned();
    assert!(text.contains("pg has 1 objects unfound and apparently lost marking"), "{text}");
    cluster.wait_for("nothing lost", |c| json(c, &["pg", &pg, "list_unfound"])["num_unfound"] == 0);
    assert_eq!(io.read("given up", 0, 0).wait().unwrap_err().errno(), Errno::ENOENT);
    wait_clean(&cluster);

    // The repaired copy alone serves the data that it got from the others.
    cluster.ok(&["ceph", "osd", "pool", "set", "data", "min_size", "1"]);
    wait_clean(&cluster);
    for osd in &members[..2] {
        cluster.terminate(Daemon::Osd(*osd));
    }
    assert_eq!(io.read("updated", 0, 0).wait().unwrap(), wanted);
    assert_eq!(io.read("read", 0, 0).wait().unwrap(), read.0);
}
