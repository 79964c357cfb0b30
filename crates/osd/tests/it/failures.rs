//! OSDs that crash, restart, or restart without their data.

use super::cluster::TestCluster;
use bytes::Bytes;
use nacre_client::IoCtx;
use nacre_types::ids::OsdId;
use std::collections::BTreeMap;

fn payload(seed: u64) -> Bytes {
    let len = 1000 + (seed as usize * 7919) % 60_000;
    (0..len as u64).map(|i| (i.wrapping_mul(seed | 1) >> 7) as u8).collect::<Vec<_>>().into()
}

/// Writes some objects and records what was acknowledged.
fn write_some(cluster: &TestCluster, io: &IoCtx, from: u64, to: u64, known: &mut BTreeMap<String, u64>) {
    cluster.block_on(async {
        let writes: Vec<_> = (from..to)
            .map(|seed| {
                let name = format!("o{}", seed % 150);
                let pending = io.write_full(&name, payload(seed));
                (name, seed, pending)
            })
            .collect();
        for (name, seed, pending) in writes {
            pending.await.unwrap();
            known.insert(name, seed);
        }
    });
}

fn check(cluster: &TestCluster, io: &IoCtx, known: &BTreeMap<String, u64>) {
    cluster.block_on(async {
        for (name, seed) in known {
            assert!(
                io.read(name, 0, 0).await.unwrap() == payload(*seed),
                "{name} is not what was acknowledged"
            );
        }
    });
}

#[test]
fn io_goes_on_without_one_of_three() {
    let mut cluster = TestCluster::start(3, &[]);
    let pool = cluster.create_pool("data", 3, 2, 8);
    cluster.wait_clean(pool);
    let io = cluster.io("data");
    let mut known = BTreeMap::new();
    write_some(&cluster, &io, 0, 100, &mut known);
    cluster.kill_osd(OsdId(1));
    write_some(&cluster, &io, 100, 200, &mut known);
    check(&cluster, &io, &known);
    cluster.start_osd(OsdId(1));
    write_some(&cluster, &io, 200, 260, &mut known);
    cluster.wait_clean(pool);
    check(&cluster, &io, &known);
}

#[test]
fn a_restarted_osd_recovers_by_log() {
    let mut cluster = TestCluster::start(3, &[]);
    let pool = cluster.create_pool("data", 3, 2, 8);
    cluster.wait_clean(pool);
    let io = cluster.io("data");
    let mut known = BTreeMap::new();
    write_some(&cluster, &io, 0, 100, &mut known);
    cluster.stop_osd(OsdId(2));
    write_some(&cluster, &io, 100, 160, &mut known);
    cluster.start_osd(OsdId(2));
    cluster.wait_clean(pool);
    // The restarted OSD, which is now the only one, must have everything.
    cluster.stop_osd(OsdId(0));
    check(&cluster, &io, &known);
}

#[test]
fn a_wiped_osd_is_filled_again() {
    let mut cluster = TestCluster::start(3, &[]);
    let pool = cluster.create_pool("data", 3, 2, 8);
    cluster.wait_clean(pool);
    let io = cluster.io("data");
    let mut known = BTreeMap::new();
    write_some(&cluster, &io, 0, 120, &mut known);
    cluster.kill_osd(OsdId(0));
    cluster.wipe_osd(OsdId(0));
    cluster.start_osd(OsdId(0));
    write_some(&cluster, &io, 120, 180, &mut known);
    cluster.wait_clean(pool);
    cluster.stop_osd(OsdId(1));
    check(&cluster, &io, &known);
}

#[test]
fn an_orderly_restart_of_all_loses_nothing() {
    let mut cluster = TestCluster::start(3, &[]);
    let pool = cluster.create_pool("data", 3, 2, 8);
    cluster.wait_clean(pool);
    let io = cluster.io("data");
    let mut known = BTreeMap::new();
    write_some(&cluster, &io, 0, 150, &mut known);
    for osd in 0..3 {
        cluster.stop_osd(OsdId(osd));
    }
    for osd in 0..3 {
        cluster.start_osd(OsdId(osd));
    }
    cluster.wait_clean(pool);
    check(&cluster, &io, &known);
    write_some(&cluster, &io, 150, 200, &mut known);
    check(&cluster, &io, &known);
}

#[test]
fn io_goes_on_while_the_map_authority_restarts() {
    let mut cluster = TestCluster::start(3, &[]);
    let pool = cluster.create_pool("data", 3, 2, 8);
    cluster.wait_clean(pool);
    let io = cluster.io("data");
    let mut known = BTreeMap::new();
    write_some(&cluster, &io, 0, 50, &mut known);
    cluster.authority.stop();
    write_some(&cluster, &io, 50, 100, &mut known);
    cluster.start_authority();
    cluster.kill_osd(OsdId(1));
    write_some(&cluster, &io, 100, 150, &mut known);
    check(&cluster, &io, &known);
}

#[test]
fn killing_all_at_once_loses_nothing_that_bluestore_has() {
    let mut cluster =
        TestCluster::start(3, &[("osd_objectstore", "bluestore"), ("bluestore_block_size", "2Gi")]);
    let pool = cluster.create_pool("data", 3, 2, 8);
    cluster.wait_clean(pool);
    let io = cluster.io("data");
    let mut known = BTreeMap::new();
    for round in 0..2 {
        write_some(&cluster, &io, round * 100, round * 100 + 100, &mut known);
        for osd in 0..3 {
            cluster.kill_osd(OsdId(osd));
        }
        for osd in 0..3 {
            cluster.start_osd(OsdId(osd));
        }
        cluster.wait_clean(pool);
        check(&cluster, &io, &known);
    }
}

#[test]
fn one_of_three_comes_back_on_bluestore() {
    let mut cluster =
        TestCluster::start(3, &[("osd_objectstore", "bluestore"), ("bluestore_block_size", "2Gi")]);
    let pool = cluster.create_pool("data", 3, 2, 8);
    cluster.wait_clean(pool);
    let io = cluster.io("data");
    let mut known = BTreeMap::new();
    write_some(&cluster, &io, 0, 100, &mut known);
    cluster.kill_osd(OsdId(2));
    write_some(&cluster, &io, 100, 200, &mut known);
    cluster.start_osd(OsdId(2));
    write_some(&cluster, &io, 200, 250, &mut known);
    cluster.wait_clean(pool);
    cluster.stop_osd(OsdId(0));
    check(&cluster, &io, &known);
}

#[test]
fn a_new_osd_takes_its_share_and_others_let_go() {
    let mut cluster = TestCluster::start(3, &[("osd_op_num_shards", "2")]);
    let pool = cluster.create_pool("data", 2, 1, 16);
    cluster.wait_clean(pool);
    let io = cluster.io("data");
    let mut known = BTreeMap::new();
    write_some(&cluster, &io, 0, 150, &mut known);
    cluster.add_osd(OsdId(3));
    write_some(&cluster, &io, 150, 250, &mut known);
    cluster.wait("the new one holds some", |c| {
        let map = c.map();
        map.is_up(OsdId(3))
            && map.pg_ids().any(|pg| map.membership(pg).is_some_and(|m| m.acting().contains(&OsdId(3))))
    });
    cluster.wait_clean(pool);
    cluster.wait("strays are gone", |c| {
        let held: u64 = (0..4).map(|osd| pgs_of(c, OsdId(osd))).sum();
        held == 32
    });
    check(&cluster, &io, &known);
}

fn pgs_of(cluster: &TestCluster, osd: OsdId) -> u64 {
    let reply = cluster.osd(osd).command(r#"{"prefix": "status"}"#);
    let status: serde_json::Value = serde_json::from_slice(&reply.output).unwrap();
    status["num_pgs"].as_u64().unwrap()
}
