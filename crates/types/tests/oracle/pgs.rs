//! Compares the mapping of PGs to OSDs with `osdmaptool --test-map-pgs-dump`, and of objects to PGs with `--test-map-object`.

use super::{generate, run_ok};
use nacre_crush::{CrushMap, ITEM_NONE, RuleType, WEIGHT_ONE, Workspace};
use nacre_types::hash::{ceph_str_hash_rjenkins, pg_of_hash};
use nacre_types::placement::{OsdStates, PoolPlacement, Upmap, map_pg};

struct UpAndIn {
    weights: Vec<u32>,
}

impl OsdStates for UpAndIn {
    fn weights(&self) -> &[u32] {
        &self.weights
    }
    fn exists(&self, osd: i32) -> bool {
        (osd as usize) < self.weights.len()
    }
    fn is_up(&self, osd: i32) -> bool {
        self.exists(osd)
    }
    fn primary_affinity(&self, _osd: i32) -> u32 {
        WEIGHT_ONE
    }
}

fn number_after(text: &str, word: &str) -> u32 {
    let after = text.split(word).nth(1).unwrap_or_else(|| panic!("no '{word}' in {text}"));
    after
        .split_whitespace()
        .next()
        .and_then(|n| n.parse().ok())
        .unwrap_or_else(|| panic!("no number after {word}"))
}

/// Creates an osdmap of `osds` OSDs, with this map if given, and compares all of its PGs.
fn compare(
    osds: usize,
    pg_bits: u32,
    pgp_bits: u32,
    size: u32,
    imported: Option<&CrushMap>,
    out: Option<usize>,
) {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (osdmap, crush_file) = (path("osdmap"), path("crush"));
    let (osds_word, bits, pgp_bits, size_option) = (
        osds.to_string(),
        pg_bits.to_string(),
        pgp_bits.to_string(),
        format!("--osd_pool_default_size={size}"),
    );
    let create =
        ["--createsimple", &osds_word, &osdmap, "--with-default-pool", "--pg-bits", &bits, "--pgp-bits"];
    run_ok("osdmaptool", &[&[size_option.as_str()], &create[..], &[pgp_bits.as_str()]].concat());
    if let Some(map) = imported {
        std::fs::write(&crush_file, map.encode()).unwrap();
        run_ok("osdmaptool", &[&osdmap, "--import-crush", &crush_file]);
    }
    run_ok("osdmaptool", &[&osdmap, "--export-crush", &crush_file]);
    let crush = CrushMap::decode(&std::fs::read(&crush_file).unwrap()).unwrap();
    let print = String::from_utf8(run_ok("osdmaptool", &[&osdmap, "--print"]).stdout).unwrap();
    let pool_line = print.lines().find(|line| line.starts_with("pool 1 ")).expect("osdmaptool made pool 1");
    let pool = PoolPlacement {
        pool: 1,
        pg_num: number_after(pool_line, " pg_num "),
        pgp_num: number_after(pool_line, " pgp_num "),
        size: number_after(pool_line, " size "),
        rule: number_after(pool_line, " crush_rule ") as u8,
        kind: RuleType::Replicated,
        hashpspool: pool_line.contains("hashpspool"),
    };
    assert_eq!(pool.size, size);

    let mut states = UpAndIn { weights: vec![WEIGHT_ONE; osds] };
    let mut args = vec![osdmap.clone(), "--mark-up-in".into(), "--test-map-pgs-dump".into()];
    if let Some(osd) = out {
        states.weights[osd] = 0;
        args.extend(["--mark-out".into(), osd.to_string()]);
    }
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let dump = String::from_utf8(run_ok("osdmaptool", &words).stdout).unwrap();
    let theirs: Vec<&str> = dump.lines().filter(|line| line.starts_with("1.")).collect();
    assert_eq!(theirs.len(), pool.pg_num as usize, "osdmaptool printed\n{dump}");
    let mut work = Workspace::new();
    for (seed, theirs) in theirs.iter().enumerate() {
        let m = map_pg(&crush, &pool, seed as u32, &states, Upmap::default(), &mut work);
        let up: Vec<String> =
            m.up.iter().map(|osd| if *osd == ITEM_NONE { "NONE".into() } else { osd.to_string() }).collect();
        let ours = format!("1.{seed:x}\t[{}]\t{}", up.join(","), m.up_primary.unwrap_or(-1));
        assert_eq!(&ours, theirs, "{osds} osds, {pool_line}");
    }

    for name in
        ["foo", "", "rbd_data.1b2f74b0dc51.0000000000000000", "a/ünïcode name, twelve and more bytes long"]
    {
        if name.is_empty() {
            continue;
        }
        let text = run_ok("osdmaptool", &[&osdmap, "--test-map-object", name, "--pool", "1"]).stdout;
        let text = String::from_utf8(text).unwrap();
        let pg = pg_of_hash(ceph_str_hash_rjenkins(name.as_bytes()), pool.pg_num);
        assert!(
            text.contains(&format!(" object '{name}' -> 1.{pg:x} -> ")),
            "{name} is in 1.{pg:x}, not {text}"
        );
    }
}

#[test]
fn simple_maps_of_several_sizes() {
    for (osds, pg_bits, pgp_bits, size) in
        [(1, 4, 4, 1), (3, 5, 5, 3), (7, 6, 6, 2), (13, 7, 6, 4), (40, 5, 5, 3)]
    {
        let flat = CrushMap::compile(&flat_text(osds)).unwrap();
        compare(osds, pg_bits, pgp_bits, size, None, None);
        compare(osds, pg_bits, pgp_bits, size, Some(&flat), None);
        if osds > 3 {
            compare(osds, pg_bits, pgp_bits, size, Some(&flat), Some(2));
        }
    }
}

/// Hosts of three OSDs below one root, with replicas on different hosts if there are enough.
fn flat_text(osds: usize) -> String {
    let mut text = String::from("tunable choose_total_tries 50\ntunable chooseleaf_stable 1\n");
    let hosts = osds.div_ceil(3);
    (0..osds).for_each(|osd| text += &format!("device {osd} osd.{osd}\n"));
    text += "type 0 osd\ntype 1 host\ntype 10 root\n";
    for host in 0..hosts {
        text += &format!("host h{host} {{\n alg straw2\n");
        (host * 3..osds.min(host * 3 + 3))
            .for_each(|osd| text += &format!(" item osd.{osd} weight 1.{osd}\n"));
        text += "}\n";
    }
    text += "root default {\n alg straw2\n";
    (0..hosts).for_each(|host| text += &format!(" item h{host}\n"));
    let domain = if hosts > 4 { "host" } else { "osd" };
    text + &format!(
        "}}\nrule r {{\n id 0\n type replicated\n min_size 1\n max_size 10\n step take default\n \
         step chooseleaf firstn 0 type {domain}\n step emit\n}}\n"
    )
}

#[test]
fn generated_maps() {
    for seed in 0..12 {
        let mut map = generate::case(seed).map;
        // --mark-up-in changes the weight of devices of weight 0 to 1.
        for osd in 0..map.max_devices() {
            if map.item_weight(osd) == Some(0) {
                map.reweight_item(&format!("osd.{osd}"), WEIGHT_ONE).unwrap();
            }
        }
        let osds = map.max_devices() as usize;
        if osds > 0 {
            compare(osds, 6, 6, 3, Some(&map), (osds > 2).then_some(1));
        }
    }
}
