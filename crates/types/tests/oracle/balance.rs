//! Compares the upmap balancer with `osdmaptool --upmap` without random order, on identical maps.

use super::{run, run_ok};
use nacre_crush::{CrushMap, WEIGHT_ONE};
use nacre_types::osdmap::{OsdInfo, OsdMap};
use nacre_types::pool::Pool;
use nacre_types::upmap::{BalanceParams, ItemChanges};
use nacre_types::{Epoch, OsdId, PgId, PoolId};
use std::collections::BTreeSet;
use std::sync::Arc;

const POOL: PoolId = PoolId(1);

/// Hosts of three OSDs with uneven weights, two to a rack, and the rule's steps.
fn crush(hosts: usize, steps: &str) -> CrushMap {
    let mut text = String::from(
        "tunable choose_local_tries 0\ntunable choose_local_fallback_tries 0\ntunable choose_total_tries 50\n\
         tunable chooseleaf_descend_once 1\ntunable chooseleaf_vary_r 1\ntunable chooseleaf_stable 1\n\
         tunable straw_calc_version 1\ntunable allowed_bucket_algs 54\n",
    );
    (0..hosts * 3).for_each(|osd| text += &format!("device {osd} osd.{osd}\n"));
    text += "type 0 osd\ntype 1 host\ntype 3 rack\ntype 10 root\n";
    for host in 0..hosts {
        text += &format!("host h{host} {{\n alg straw2\n hash 0\n");
        for osd in host * 3..host * 3 + 3 {
            text += &format!(" item osd.{osd} weight {}\n", if osd % 5 == 1 { 2.5 } else { 1.0 });
        }
        text += "}\n";
    }
    for rack in 0..hosts.div_ceil(2) {
        text += &format!("rack r{rack} {{\n alg straw2\n hash 0\n");
        (rack * 2..hosts.min(rack * 2 + 2)).for_each(|host| text += &format!(" item h{host}\n"));
        text += "}\n";
    }
    text += "root default {\n alg straw2\n hash 0\n";
    (0..hosts.div_ceil(2)).for_each(|rack| text += &format!(" item r{rack}\n"));
    text += "}\nrule r {\n id 0\n type replicated\n min_size 1\n max_size 10\n";
    text += &format!(" step take default\n{steps} step emit\n}}\n");
    CrushMap::compile(&text).unwrap()
}

struct Beside {
    dir: tempfile::TempDir,
    map: OsdMap,
}

impl Beside {
    fn new(hosts: usize, pg_bits: u32, size: u32, steps: &str) -> Beside {
        let dir = tempfile::tempdir().unwrap();
        let crush = crush(hosts, steps);
        let osds = hosts as u32 * 3;
        let beside = Beside { map: ours(osds, pg_bits, size, crush.clone()), dir };
        std::fs::write(beside.path("crush"), crush.encode()).unwrap();
        let size = format!("--osd_pool_default_size={size}");
        let (osds, bits, map) = (osds.to_string(), pg_bits.to_string(), beside.path("map"));
        let bits = ["--pg-bits", &bits, "--pgp-bits", &bits];
        run_ok(
            "osdmaptool",
            &[&["--createsimple", &osds, &map, "--with-default-pool", &size], &bits[..]].concat(),
        );
        run_ok("osdmaptool", &[&map, "--import-crush", &beside.path("crush")]);
        beside
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    /// Returns the commands that Ceph's tool writes.
    fn theirs(&self, args: &[&str]) -> String {
        let (map, commands) = (self.path("map"), self.path("commands"));
        let quiet = ["--osd_calc_pg_upmaps_aggressively=false", "--log_to_stderr=false"];
        let ran = run(
            "osdmaptool",
            &[&[map.as_str(), "--mark-up-in"], args, &[commands.as_str()], &quiet].concat(),
        );
        assert!(ran.status.success(), "{args:?}: {ran:?}");
        std::fs::read_to_string(commands).unwrap()
    }

    fn apply(&mut self, items: &ItemChanges) {
        for (pg, items) in items {
            match items {
                Some(items) => self.map.pg_upmap_items.insert(*pg, items.clone()),
                None => self.map.pg_upmap_items.remove(pg),
            };
        }
    }
}

fn ours(osds: u32, pg_bits: u32, size: u32, crush: CrushMap) -> OsdMap {
    let mut map = OsdMap::new(uuid::Uuid::nil(), 0, crush);
    map.max_osd = osds;
    for osd in 0..osds {
        map.osds.insert(OsdId(osd), OsdInfo { up: true, weight: WEIGHT_ONE, ..OsdInfo::never_up() });
    }
    map.pools.insert(POOL, Arc::new(Pool::replicated("rbd", size, 1, 0, osds << pg_bits, Epoch(1))));
    map
}

fn commands(items: &ItemChanges) -> String {
    let line = |(pg, items): (&PgId, &Option<Vec<(OsdId, OsdId)>>)| match items {
        None => format!("ceph osd rm-pg-upmap-items {pg}\n"),
        Some(items) => {
            let pairs: Vec<String> = items.iter().map(|(a, b)| format!("{} {}", a.0, b.0)).collect();
            format!("ceph osd pg-upmap-items {pg} {}\n", pairs.join(" "))
        }
    };
    let gone = items.iter().filter(|(_, items)| items.is_none()).map(line);
    let set = items.iter().filter(|(_, items)| items.is_some()).map(line);
    gone.chain(set).collect()
}

const BY_HOST: &str = " step chooseleaf firstn 0 type host\n";
const BY_RACK: &str = " step choose firstn 2 type rack\n step chooseleaf firstn 2 type host\n";
const BY_OSD: &str = " step choose firstn 0 type osd\n";
const TWO_LEVELS: &str = " step choose firstn 0 type host\n step choose firstn 1 type osd\n";

#[test]
fn the_balancer_finds_what_cephs_finds() {
    for (hosts, bits, size, steps, deviation, most) in [
        (6, 5, 3, BY_HOST, 1, 500),
        (6, 5, 3, BY_HOST, 5, 10),
        (6, 4, 4, BY_RACK, 2, 300),
        (4, 5, 2, BY_OSD, 1, 300),
        (5, 4, 3, TWO_LEVELS, 1, 200),
        (9, 6, 3, BY_HOST, 3, 60),
    ] {
        let mut beside = Beside::new(hosts, bits, size, steps);
        let (d, m) = (deviation.to_string(), most.to_string());
        let args = ["--upmap-deviation", &d, "--upmap-max", &m, "--save", "--upmap"];
        let pools = BTreeSet::new();
        // The second round starts with the result of the first one.
        for round in 0..2 {
            let balance =
                BalanceParams { max_deviation: deviation, max_changes: most, ..BalanceParams::new(&pools) };
            let found = beside.map.calc_pg_upmaps(balance);
            assert_eq!(commands(&found.items), beside.theirs(&args), "{hosts} hosts,{steps} round {round}");
            assert!(round > 0 || found.changes > 0, "{hosts} hosts,{steps}");
            beside.apply(&found.items);
        }
        assert_eq!(beside.map.upmap_cleanup(), Default::default());

        // An OSD that goes out invalidates the entries that name it, and makes the others uneven.
        let out = beside.map.pg_upmap_items.values().next().unwrap()[0].1;
        beside.map.osds.insert(out, OsdInfo { up: true, ..OsdInfo::never_up() });
        let out_word = out.0.to_string();
        let theirs = beside.theirs(&["--mark-out", &out_word, "--upmap-cleanup"]);
        let cleanup = beside.map.upmap_cleanup();
        assert!(cleanup.upmaps.is_empty() && !cleanup.items.is_empty());
        assert_eq!(commands(&cleanup.items), theirs, "{hosts} hosts,{steps} without osd.{out}");
    }
}

#[test]
fn random_order_makes_the_balance_no_worse() {
    let beside = Beside::new(6, 5, 3, BY_HOST);
    let pools = BTreeSet::from([POOL]);
    let mut reverse = |pgs: &mut [PgId]| pgs.reverse();
    let balance = BalanceParams {
        max_deviation: 1,
        max_changes: 1000,
        shuffle: Some(&mut reverse),
        ..BalanceParams::new(&pools)
    };
    let found = beside.map.calc_pg_upmaps(balance);
    let mut after = beside;
    after.apply(&found.items);
    let counts = after.map.pg_count_by_osd(&pools);
    let shares = after.map.crush.rule_weight_shares(0);
    let total: usize = counts.values().sum();
    for (osd, pgs) in counts {
        let share = shares[&(osd.0 as i32)] * total as f32;
        assert!((pgs as f32 - share).abs() <= 2.0, "osd.{} holds {pgs} PGs, its share is {share}", osd.0);
    }
    assert_eq!(after.map.upmap_cleanup(), Default::default(), "every entry keeps to the rule");
}
