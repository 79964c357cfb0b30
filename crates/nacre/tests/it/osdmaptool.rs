//! `osdmaptool` beside Debian's, and on the maps of a cluster.

use crate::support::{TestCluster, nacre};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn run(program: &mut Command, folder: &Path, args: &str) -> Output {
    program.args(args.split_whitespace()).current_dir(folder).output().unwrap()
}

fn ours(folder: &Path, args: &str) -> Output {
    run(Command::new(nacre()).arg("osdmaptool"), folder, args)
}

fn theirs(folder: &Path, args: &str) -> Output {
    run(&mut Command::new("osdmaptool"), folder, args)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs both on their own map of the same kind; exit codes and standard output must be alike.
fn alike(folder: &Path, args: &str) -> String {
    let (ours, theirs) = (ours(folder, &format!("ours {args}")), theirs(folder, &format!("theirs {args}")));
    let named = |bytes: &[u8]| text(bytes).replace("ours", "theirs");
    assert_eq!(named(&ours.stdout), text(&theirs.stdout), "{args}: {}", text(&ours.stderr));
    assert_eq!(ours.status.code(), theirs.status.code(), "{args}");
    assert_eq!(named(&ours.stderr), text(&theirs.stderr), "{args}");
    text(&ours.stdout)
}

#[test]
fn placement_is_that_of_cephs_osdmaptool() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for (osds, bits) in [(4, 2), (9, 5)] {
        let made =
            format!("--createsimple {osds} --with-default-pool --pg-bits {bits} --pgp-bits {bits} --clobber");
        let made = |name: &str| format!("{made} {name}");
        assert_eq!(text(&ours(folder, &made("ours")).stdout), "osdmaptool: writing epoch 1 to ours\n");
        assert!(theirs(folder, &made("theirs")).status.success());
        let nowhere = text(&ours(folder, "ours --test-map-pgs").stdout);
        assert!(nowhere.contains(" in 0\nsize 0\t"), "{nowhere}");
        for args in [
            "--mark-up-in --test-map-pgs",
            "--mark-up-in --test-map-pgs --pool 1",
            "--mark-up-in --test-map-pgs-dump",
            "--mark-up-in --test-map-pgs-dump-all --pool 1",
            "--mark-up-in --mark-out 2 --test-map-pgs-dump --pool 1",
            "--mark-up-in --test-map-object foo --pool 1",
            "--mark-up-in --test-map-object foo",
            "--mark-up-in --test-map-pg 1.3",
            "--test-map-pgs --pool 7",
            "--test-map-object foo --pool 7",
        ] {
            alike(folder, args);
        }
        // Debian's hangs at this.
        let again = text(&ours(folder, "ours --mark-up-in --mark-out 2 --mark-in 2 --test-map-pgs").stdout);
        let all = text(&ours(folder, "ours --mark-up-in --test-map-pgs").stdout);
        let marked = again.replace("marking OSD@2 as out\n", "").replace("marking OSD@2 as in\n", "");
        assert!(again != all && marked == all, "{again}");
        // The CRUSH map is the same to the last byte, and either reads the other's.
        ours(folder, "ours --export-crush ours.crush");
        theirs(folder, "theirs --export-crush theirs.crush");
        let decompiled =
            |name: &str| text(&run(&mut Command::new("crushtool"), folder, &format!("-d {name}")).stdout);
        assert_eq!(decompiled("ours.crush"), decompiled("theirs.crush"));
        assert!(decompiled("ours.crush").contains("host localhost"));
    }

    // With three hosts all replicas find a place; the change is kept, marks are not.
    let built = "--build --num_osds 9 -o three host straw2 3 root straw2 0";
    assert!(run(&mut Command::new("crushtool"), folder, built).status.success());
    alike(folder, "--mark-up-in --import-crush three");
    let dumped = alike(folder, "--mark-up-in --test-map-pgs-dump --pool 1");
    assert!(dumped.contains("size 3\t288\n"), "{dumped}");
    assert!(!text(&ours(folder, "ours --test-map-pgs").stdout).contains("size 3"));
}

#[test]
fn what_is_wrong_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let fails = |args: &str, code: i32, what: &str| {
        let out = ours(folder, args);
        assert_eq!(
            (out.status.code(), text(&out.stderr).contains(what)),
            (Some(code), true),
            "{args}: {out:?}"
        );
    };
    fails("none --print", 255, "couldn't open none: can't open none: (2) No such file or directory");
    assert!(theirs(folder, "--createsimple 3 theirs").status.success());
    fails("theirs --print", 255, "maps in Ceph's own format are not read");
    assert!(ours(folder, "--createsimple 3 ours").status.success());
    fails("--createsimple 3 ours", 255, "ours exists, --clobber to overwrite");
    fails("ours", 1, "no action specified?");
    fails("ours --upmap x", 1, "--upmap is not offered");
    fails("ours --import-crush theirs", 1, "unable to decode crush map theirs");
    fails("ours --mark-out 3 --tree", 1, "there is no osd.3");
    let mut damaged = fs::read(folder.join("ours")).unwrap();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    fs::write(folder.join("damaged"), damaged).unwrap();
    fails("damaged --print", 255, "its checksum does not match");
}

#[test]
fn a_clusters_map_is_shown_as_the_cluster_shows_it() {
    let cluster = TestCluster::start_with(3, "memstore", "[global]\nosd_pool_default_size = 2");
    cluster.create_pool("it", 8, 2, 1);
    let map = cluster.folder().join("map");
    let map = map.to_str().unwrap();
    let status = cluster.run(&["ceph", "osd", "getmap", "-o", map]);
    assert!(text(&status.stderr).contains("got osdmap epoch"), "{status:?}");
    let shown = |args: &str| {
        let out = ours(cluster.folder(), &format!("{map} {args}"));
        assert!(out.status.success(), "{args}: {out:?}");
        text(&out.stdout)
    };
    assert_eq!(shown("--print"), cluster.ok(&["ceph", "osd", "dump"]));
    assert_eq!(shown("--tree"), cluster.ok(&["ceph", "osd", "tree"]));
    let json = |text: String| {
        let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
        // The map authority remembers these beside the map.
        for stamp in ["last_up_change", "last_in_change"] {
            json.as_object_mut().unwrap().remove(stamp);
        }
        json
    };
    assert_eq!(json(shown("--dump json")), json(cluster.ok(&["ceph", "osd", "dump", "--format", "json"])));
    // Where an object is, by both.
    let placed = json(cluster.ok(&["ceph", "osd", "map", "it", "foo", "--format", "json"]));
    let pool = placed["pool_id"].to_string();
    let line = shown(&format!("--test-map-object foo --pool {pool}"));
    let up = placed["up"].to_string();
    assert_eq!(line, format!(" object 'foo' -> {} -> {up}\n", placed["pgid"].as_str().unwrap()));
    // The CRUSH map goes out, is changed, and comes in.
    assert!(shown("--export-crush crush").contains("exported crush map to crush"));
    let mut real = Command::new("crushtool");
    assert!(
        run(&mut real, cluster.folder(), "-i crush --reweight-item osd.1 0.5 -o changed").status.success()
    );
    shown("--import-crush changed");
    assert!(shown("--tree").contains("0.50000"), "{}", shown("--tree"));
}
