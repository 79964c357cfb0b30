//! Compares `osdmaptool` with Debian's, and runs it on the maps of a cluster.

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

/// A text without times and the EC profile, which Nacre does not have.
fn timeless(text: &str) -> String {
    let profile = [
        "\"default\":{\"k\":\"2\",\"m\":\"2\",\"plugin\":\"jerasure\",\"technique\":\"reed_sol_van\"}",
        "<default><k>2</k><m>2</m><plugin>jerasure</plugin><technique>reed_sol_van</technique></default>",
    ];
    let mut text = profile.iter().fold(text.to_owned(), |text, profile| text.replace(profile, ""));
    let mut from = 0;
    while let Some(at) = text[from..].find("+0000").map(|at| from + at) {
        text.replace_range(at - 26..at + 5, "TIME");
        from = at - 26;
    }
    text
}

/// The text of Ceph's log lines (with a time, a thread and a level) in the form of Nacre's messages.
fn unlogged(stderr: &str) -> String {
    let plain = |line: &str| match line.split_once(" -1 ") {
        Some((stamp, words)) if stamp.contains("+0000 ") => format!("osdmaptool: {words}\n"),
        _ => format!("{line}\n"),
    };
    stderr.lines().filter(|line| !line.is_empty()).map(plain).collect()
}

/// Runs both tools on their own map of the same kind. Exit codes and standard output must be equivalent.
fn alike(folder: &Path, args: &str) -> String {
    let (ours, theirs) = (ours(folder, &format!("ours {args}")), theirs(folder, &format!("theirs {args}")));
    let named = |bytes: &[u8]| timeless(&text(bytes).replace("ours", "theirs"));
    assert_eq!(named(&ours.stdout), timeless(&text(&theirs.stdout)), "{args}: {}", text(&ours.stderr));
    assert_eq!(ours.status.code(), theirs.status.code(), "{args}");
    assert_eq!(unlogged(&named(&ours.stderr)), unlogged(&text(&theirs.stderr)), "{args}");
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
        assert!(nowhere.contains(" in 0\n avg 0 stddev -nan "), "{nowhere}");
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
            "--test-map-pg 9.3",
            "--pg_num 4 --mark-up-in --test-map-pgs",
            "--print",
            "--mark-up-in --print",
            "--mark-up-in --mark-out 1 -p",
            "--dump plain",
            "--dump json",
            "--mark-up-in --dump json",
            "--mark-up-in --dump xml",
            "--dump nonsense",
            "--tree",
            "--mark-up-in --mark-out 2 --tree=plain",
            "--tree=json",
            "--mark-up-in --tree=json-pretty",
            "--tree=xml",
            "--tree=table",
            "--tree=nonsense",
            "--health",
            "--mark-up-in --health",
            "--adjust-crush-weight 0:2,1:0.5 --tree=json",
            "--adjust-crush-weight 0:2.25 --mark-up-in --test-map-pgs-dump",
            "--adjust-crush-weight 3:2 --save",
            "--print",
            "--adjust-crush-weight 0:0,1:3 --save --print",
            "--mark-up-in --tree",
            "--mark-out 1 --print",
            "--mark-up 1 --print",
            "--mark-out 1 --mark-out 2 --print",
            "--mark-up-in --mark-out 1 --mark-out 2 --dump json",
            "--mark-up-in --mark-out 1 --adjust-crush-weight 1:1 --save --dump json",
            "--print",
            "--upmap - --upmap-deviation 1 --upmap-pool rbd --upmap-pool nope",
            "--range-first 0 --range-last 1",
            "--import-crush missing",
        ] {
            alike(folder, args);
        }
        // Debian's tool hangs at this.
        let again = text(&ours(folder, "ours --mark-up-in --mark-out 2 --mark-in 2 --test-map-pgs").stdout);
        let all = text(&ours(folder, "ours --mark-up-in --test-map-pgs").stdout);
        let marked = again.replace("marking OSD@2 as out\n", "").replace("marking OSD@2 as in\n", "");
        assert!(again != all && marked == all, "{again}");
        // The CRUSH map is identical, and each tool reads the other's.
        ours(folder, "ours --export-crush ours.crush");
        theirs(folder, "theirs --export-crush theirs.crush");
        let decompiled =
            |name: &str| text(&run(&mut Command::new("crushtool"), folder, &format!("-d {name}")).stdout);
        assert_eq!(decompiled("ours.crush"), decompiled("theirs.crush"));
        assert!(decompiled("ours.crush").contains("host localhost"));
    }

    // With three hosts all replicas find a place; marks are written with the change.
    let built = "--build --num_osds 9 -o three host straw2 3 root straw2 0";
    assert!(run(&mut Command::new("crushtool"), folder, built).status.success());
    alike(folder, "--mark-up-in --import-crush three");
    let dumped = alike(folder, "--mark-up-in --test-map-pgs-dump --pool 1");
    assert!(dumped.contains("size 3\t288\n"), "{dumped}");
    assert!(alike(folder, "--test-map-pgs").contains("size 3\t288\n"));
    assert!(alike(folder, "--print").contains("\nmodified 0.000000\n"));
    alike(folder, "--dump json");
    // Marks alone are not an action, and are not written.
    for marks in ["--mark-up-in --mark-out 1", "--mark-out 1"] {
        let (ours, theirs) = both(folder, &format!("MAP {marks}"));
        assert_eq!(ours.status.code(), theirs.status.code(), "{marks}");
        assert_eq!(unlogged(&text(&ours.stderr).replace("ours", "theirs")), unlogged(&text(&theirs.stderr)));
        let marked = |out: &Output| text(&out.stdout).split(" usage:").next().map(str::to_owned);
        assert_eq!(marked(&ours), marked(&theirs), "{marks}");
        alike(folder, "--print");
    }
}

/// The output of both tools for the same words.
fn both(folder: &Path, args: &str) -> (Output, Output) {
    (ours(folder, &args.replace("MAP", "ours")), theirs(folder, &args.replace("MAP", "theirs")))
}

#[test]
fn maps_are_made_from_a_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let conf = "[global]\nosd pool default size = 2\nosd crush chooseleaf type = 0\n[osd.0]\nhost = h1\nrack = r1\n\
                row = ro1\nroom = rm1\ndatacenter = dc1\n[osd.1]\nhost = h2\nrack = r1\n[osd.3]\nhost = h3\n";
    fs::write(folder.join("c.conf"), conf).unwrap();
    fs::write(folder.join("empty.conf"), "").unwrap();
    let legacy = "device 0 osd.0\ntype 0 osd\ntype 1 root\nroot default {\n alg straw\n hash 0\n item osd.0 weight 1\n}\n";
    fs::write(folder.join("legacy.txt"), legacy).unwrap();
    assert!(run(&mut Command::new("crushtool"), folder, "-c legacy.txt -o legacy").status.success());
    for made in [
        "-c c.conf --create-from-conf --with-default-pool",
        "-c empty.conf --create-from-conf",
        "-c empty.conf --createsimple 5 --with-default-pool --pg-bits 3 --osd_pool_default_size 1",
        "-c c.conf --createsimple 5 --with-default-pool --pg-bits 3 --osd_pool_default_size 4",
        "-c empty.conf --createsimple 3 --osd_crush_chooseleaf_type=3",
    ] {
        let (ours, theirs) = both(folder, &format!("{made} --clobber MAP"));
        assert_eq!(text(&ours.stdout).replace("ours", "theirs"), text(&theirs.stdout), "{made}: {ours:?}");
        for args in [
            "--print",
            "--tree",
            "--mark-up-in --health",
            "--mark-up-in --test-map-pgs-dump",
            "--export-crush crush",
        ] {
            alike(folder, args);
        }
        let exported = |map: &str| {
            assert!(both(folder, "MAP --export-crush MAP.crush").0.status.success());
            text(&run(&mut Command::new("crushtool"), folder, &format!("-d {map}.crush")).stdout)
        };
        assert_eq!(exported("ours"), exported("theirs"), "{made}");
    }
    alike(folder, "--import-crush legacy");
    alike(folder, "--mark-up-in --mark-out 1 --health");
}

#[test]
fn upmaps_even_out_what_osds_hold() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let built = "--build --num_osds 18 -o uneven host straw2 3 rack straw2 2 root straw2 0";
    assert!(run(&mut Command::new("crushtool"), folder, built).status.success());
    for osd in [1, 4, 7] {
        let args = format!("-i uneven --reweight-item osd.{osd} 2.5 -o uneven");
        assert!(run(&mut Command::new("crushtool"), folder, &args).status.success());
    }
    let (made, _) = both(folder, "--createsimple 18 --with-default-pool --pg-bits 5 MAP");
    assert!(made.status.success(), "{made:?}");
    alike(folder, "--import-crush uneven");
    let exact = "--mark-up-in --osd_calc_pg_upmaps_aggressively=false";
    for args in [
        "--upmap -",
        "--upmap - --upmap-deviation 1 --upmap-max 20 --upmap-pool rbd",
        "--upmap - --upmap-max 0",
        "--upmap - --upmap-deviation 1 --upmap-max 500 --save",
        "--upmap - --upmap-deviation 1",
        "--mark-out 4 --upmap-cleanup -",
        "--mark-out 4 --upmap-cleanup - --print",
        "--upmap-cleanup -",
    ] {
        alike(folder, &format!("{exact} {args}"));
    }
    // Both wrote the same map.
    assert!(alike(folder, "--print").contains("\npg_upmap_items 1."));
    alike(folder, "--dump json");
    alike(folder, "--tree");
    // As an active balancer, in random order: at the end every OSD is within one PG of its share.
    let active = "--mark-up-in --upmap commands --upmap-deviation 1 --upmap-max 1000 --upmap-active";
    let (out, _) = both(folder, &format!("MAP {active}"));
    let (stdout, commands) = (text(&out.stdout), fs::read_to_string(folder.join("commands")).unwrap());
    assert!(out.status.success() && stdout.contains("Unable to find further optimization"), "{out:?}");
    assert!(commands.lines().all(|line| line.starts_with("ceph osd ")), "{commands}");
    let held: Vec<f64> = stdout
        .lines()
        .filter_map(|line| line.strip_prefix("osd.")?.split(" pgs ").nth(1)?.parse().ok())
        .collect();
    assert_eq!((held.len(), held.iter().sum::<f64>()), (18, 1728.0), "{stdout}");
    for (osd, held) in held.iter().enumerate() {
        let share = 1728.0 / 22.5 * if [1, 4, 7].contains(&osd) { 2.5 } else { 1.0 };
        assert!((held - share).abs() <= 2.0, "osd.{osd} holds {held} of {share}: {stdout}");
    }
    // Random placements fill every PG.
    let random = text(&ours(folder, "ours --mark-up-in --test-map-pgs --test-random").stdout);
    assert!(random.contains("size 3\t576\n") && random.contains(" in 18\n"), "{random}");
    // The endless test ends with its reader.
    let mut endless = Command::new(nacre());
    let endless = endless.args(["osdmaptool", "ours", "--mark-up-in", "--test-crush"]).current_dir(folder);
    let mut child =
        endless.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::null()).spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    let first: Vec<String> = lines.by_ref().take(3).map(Result::unwrap).collect();
    assert_eq!(first, ["marking all OSDs up and in", "pass 1", "1.0 attempt 0"]);
    drop(lines);
    assert!(child.wait().unwrap().success());
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
    fails("ours --nonsense x", 1, "--nonsense is not an option");
    fails("ours --adjust-crush-weight 9:1", 1, "osd.9 is not in the crush map");
    fails("ours --adjust-crush-weight 9", 1, "use ':' as separator");
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
        // The map authority stores these outside of the map.
        for stamp in ["last_up_change", "last_in_change"] {
            json.as_object_mut().unwrap().remove(stamp);
        }
        json
    };
    assert_eq!(json(shown("--dump json")), json(cluster.ok(&["ceph", "osd", "dump", "--format", "json"])));
    // The place of an object, from both.
    let placed = json(cluster.ok(&["ceph", "osd", "map", "it", "foo", "--format", "json"]));
    let pool = placed["pool_id"].to_string();
    let line = shown(&format!("--test-map-object foo --pool {pool}"));
    let up = placed["up"].to_string();
    assert_eq!(line, format!(" object 'foo' -> {} -> {up}\n", placed["pgid"].as_str().unwrap()));
    // The CRUSH map is exported, changed, and imported.
    assert!(shown("--export-crush crush").contains("exported crush map to crush"));
    let mut real = Command::new("crushtool");
    assert!(
        run(&mut real, cluster.folder(), "-i crush --reweight-item osd.1 0.5 -o changed").status.success()
    );
    shown("--import-crush changed");
    assert!(shown("--tree").contains("0.50000"), "{}", shown("--tree"));
}
