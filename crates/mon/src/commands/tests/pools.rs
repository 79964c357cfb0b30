//! Pools: their applications, variables and quotas.

use super::*;

#[test]
fn applications_keep_metadata_within_bounds() {
    let mut desk = Desk::busy();
    let (set, rm) = ("osd pool application set", "osd pool application rm");
    let pair = |key: &str, value: &str| json!({ "pool": "p1", "app": "rbd", "key": key, "value": value });
    let (status, _) = desk.ok(set, pair("k", "v"));
    assert_eq!(status, "set application 'rbd' key 'k' to 'v' on pool 'p1'");
    desk.ok(set, pair("k", "w"));
    assert_eq!(
        desk.json("osd pool application get", json!({ "pool": "p1" })),
        json!({ "rbd": { "k": "w" } })
    );
    for key in ["k2", "k3", "k4"] {
        desk.ok(set, pair(key, ""));
    }
    let text = "too many keys set for application 'rbd' on pool 'p1'; max 4";
    desk.fails(set, pair("k5", "v"), Errno::EINVAL, text);
    desk.fails(set, pair("", "v"), Errno::EINVAL, "key must be provided");
    let long = "v".repeat(129);
    desk.fails(set, pair("k", &long), Errno::EINVAL, &format!("value '{long}' too long; max length 128"));
    let other = json!({ "pool": "p2", "app": "x", "key": "k", "value": "v" });
    desk.fails(set, other, Errno::ENOENT, "application 'x' is not enabled on pool 'p2'");
    for key in ["k", "k2", "k3", "k4"] {
        desk.ok(rm, json!({ "pool": "p1", "app": "rbd", "key": key }));
    }
    let (status, _) = desk.ok(rm, json!({ "pool": "p1", "app": "rbd", "key": "k" }));
    assert_eq!(status, "application 'rbd' on pool 'p1' does not have key 'k'");
    assert_eq!(desk.json("osd pool application get", json!({ "pool": "p1" })), json!({ "rbd": {} }));
}

#[test]
fn pools_are_made_changed_and_removed_only_as_ceph_would() {
    let mut desk = Desk::new();
    assert_eq!(desk.status("osd pool create", json!({ "pool": "p" })), "pool 'p' created");
    assert_eq!(
        desk.status("osd pool create", json!({ "pool": "p", "pg_num": 9 })),
        "pool 'p' already exists"
    );
    let (id, pool) = desk.state.map().pool_by_name("p").map(|(id, p)| (id, p.clone())).unwrap();
    assert_eq!((id.0, pool.size, pool.min_size, pool.pg_num, pool.pgp_num), (1, 3, 2, 32, 32));
    let range = "'pg_num' must be greater than 0 and less than or equal to 65536 (you may adjust 'mon max pool pg num' for higher values)";
    desk.fails("osd pool create", json!({ "pool": "q", "pg_num": 65537 }), Errno::ERANGE, range);
    let many = "pg_num 700 size 3 would mean 2196 total pgs, which exceeds max 750 (mon_max_pg_per_osd 250 * num_in_osds 3)";
    desk.fails("osd pool create", json!({ "pool": "q", "pg_num": 700 }), Errno::ERANGE, many);
    desk.fails(
        "osd pool create",
        json!({ "pool": "q", "pg_num": 8, "size": 20 }),
        Errno::EINVAL,
        "pool size must be between 1 and 10",
    );
    desk.fails(
        "osd pool create",
        json!({ "pool": "q", "pg_num": 8, "rule": "no" }),
        Errno::ENOENT,
        "specified rule no doesn't exist",
    );
    let erasure = json!({ "pool": "p", "pg_num": 8, "pool_type": "erasure" });
    let long = "x".repeat(5000);
    desk.fails(
        "osd pool create",
        json!({ "pool": long }),
        Errno::ENAMETOOLONG,
        "a pool name has at most 4096 bytes",
    );
    for name in ["a/b".to_owned(), "a\tb".to_owned(), "x".repeat(300)] {
        let created = desk.status("osd pool create", json!({ "pool": name, "pg_num": 1 }));
        assert_eq!(created, format!("pool '{name}' created"));
    }
    desk.fails("osd pool create", erasure, Errno::EINVAL, "pool 'p' cannot change to type erasure");
    let (code, ..) = desk.run("osd pool create", json!({ "pool": "q", "pool_type": "erasure" }));
    assert_eq!(code, Errno::ENOTSUP.negated());

    assert_eq!(
        desk.status("osd pool rename", json!({ "srcpool": "p", "destpool": "r" })),
        "pool 'p' renamed to 'r'"
    );
    assert_eq!(
        desk.status("osd pool rename", json!({ "srcpool": "p", "destpool": "r" })),
        "pool 'p' does not exist; pool 'r' does -- assuming successful rename"
    );
    desk.fails(
        "osd pool rename",
        json!({ "srcpool": "x", "destpool": "y" }),
        Errno::ENOENT,
        "unrecognized pool 'x'",
    );

    let warning = "WARNING: this will *PERMANENTLY DESTROY* all data stored in pool r.  If you are *ABSOLUTELY CERTAIN* that is \
                   what you want, pass the pool name *twice*, followed by --yes-i-really-really-mean-it.";
    for args in [
        json!({ "pool": "r" }),
        json!({ "pool": "r", "pool2": "r" }),
        json!({ "pool": "r", "pool2": "x", "yes_i_really_really_mean_it": true }),
    ] {
        desk.fails("osd pool rm", args, Errno::EPERM, warning);
    }
    let sure = json!({ "pool": "r", "pool2": "r", "yes_i_really_really_mean_it": true });
    desk.ok("osd pool set", json!({ "pool": "r", "var": "nodelete", "val": "1" }));
    let locked = "pool deletion is disabled; you must unset nodelete flag for the pool first";
    desk.fails("osd pool rm", sure.clone(), Errno::EPERM, locked);
    desk.ok("osd pool set", json!({ "pool": "r", "var": "nodelete", "val": "0" }));
    desk.state.tuning.allow_pool_delete = false;
    let disabled = "pool deletion is disabled; you must first set the mon_allow_pool_delete config option to true before you can destroy a pool";
    desk.fails("osd pool rm", sure.clone(), Errno::EPERM, disabled);
    desk.state.tuning.allow_pool_delete = true;
    assert_eq!(desk.status("osd pool rm", sure.clone()), "pool 'r' removed");
    assert_eq!(desk.status("osd pool rm", sure), "pool 'r' does not exist");
    desk.ok("osd pool create", json!({ "pool": "p" }));
    assert_eq!(desk.state.map().pool_by_name("p").unwrap().0.0, 5, "ids are never used again");
}

#[test]
fn pool_variables_are_typed_and_checked_like_cephs() {
    let mut desk = Desk::busy();
    let set = |var: &str, val: &str| json!({ "pool": "p1", "var": var, "val": val });
    let get = |var: &str| json!({ "pool": "p1", "var": var });
    assert_eq!(desk.status("osd pool set", set("size", "2")), "set pool 1 size to 2");
    assert_eq!(desk.text("osd pool get", get("size")), "size: 2\n");
    let one = "WARNING: setting pool size 1 could lead to data loss without recovery. If you are *ABSOLUTELY CERTAIN* that is what \
               you want, pass the flag --yes-i-really-mean-it.";
    let bad = [
        ("size", "0", Errno::EINVAL, "pool size must be between 1 and 10"),
        ("size", "11", Errno::EINVAL, "pool size must be between 1 and 10"),
        (
            "size",
            "x",
            Errno::EINVAL,
            "error parsing integer value 'x': Expected option value to be integer, got 'x'",
        ),
        ("size", "1", Errno::EPERM, one),
        ("min_size", "4", Errno::EINVAL, "pool min_size must be between 1 and size, which is set to 2"),
        ("pgp_num", "1000", Errno::EINVAL, "specified pgp_num 1000 > pg_num 8"),
        ("pgp_num", "0", Errno::EINVAL, "specified pgp_num must > 0, but you set to 0"),
        ("crush_rule", "nope", Errno::ENOENT, "crush rule nope does not exist"),
        ("nodelete", "maybe", Errno::EINVAL, "expecting value 'true', 'false', '0', or '1'"),
        ("hit_set_type", "bloom", Errno::EACCES, "(13) Permission denied"),
        ("target_max_bytes", "1", Errno::EACCES, "(13) Permission denied"),
        ("fast_read", "1", Errno::EINVAL, "fast read is not supported in replication pool"),
        ("compression_mode", "foo", Errno::EINVAL, "unrecognized compression mode 'foo'"),
        ("compression_algorithm", "foo", Errno::EINVAL, "unrecognized compression_algorithm 'foo'"),
        (
            "compression_required_ratio",
            "3",
            Errno::EINVAL,
            "compression_required_ratio is out of range (0-1): '3'",
        ),
        ("csum_type", "foo", Errno::EINVAL, "unrecognized csum_type 'foo'"),
        (
            "scrub_min_interval",
            "x",
            Errno::EINVAL,
            "error parsing floating point value 'x': strict_strtod: expected double, got: 'x'",
        ),
        ("recovery_priority", "50", Errno::EINVAL, "pool recovery_priority must be between -10 and 10"),
        ("pg_autoscale_mode", "foo", Errno::EINVAL, "specified invalid mode foo"),
        ("target_size_ratio", "-1", Errno::EINVAL, "target_size_ratio cannot be negative"),
        (
            "allow_ec_overwrites",
            "true",
            Errno::EINVAL,
            "ec overwrites can only be enabled for an erasure coded pool",
        ),
        ("dedup_tier", "nope", Errno::EINVAL, "expecting value 'pool name'"),
    ];
    for (var, val, errno, text) in bad {
        desk.fails("osd pool set", set(var, val), errno, text);
    }
    let (code, status, _) = desk.run("osd pool set", set("pg_num", "16"));
    assert_eq!(code, Errno::ENOTSUP.negated());
    assert!(status.contains("can't split"), "{status}");
    desk.fails(
        "osd pool set",
        json!({ "pool": "nope", "var": "size", "val": "1" }),
        Errno::ENOENT,
        "unrecognized pool 'nope'",
    );
    for (var, val) in [
        ("compression_mode", "force"),
        ("recovery_priority", "5"),
        ("target_size_ratio", "0.5"),
        ("bulk", "1"),
        ("csum_max_block", "3"),
    ] {
        desk.ok("osd pool set", set(var, val));
    }
    let all = desk.text("osd pool get", get("all"));
    assert_eq!(
        all,
        "size: 2\nmin_size: 2\npg_num: 8\npgp_num: 8\ncrush_rule: replicated_rule\nhashpspool: true\nnodelete: \
         false\nnopgchange: false\nnosizechange: false\nwrite_fadvise_dontneed: false\nnoscrub: false\nnodeep-scrub: \
         false\nuse_gmt_hitset: 1\nfast_read: 0\nrecovery_priority: 5\ncompression_mode: \
         force\ncsum_max_block: 3\ntarget_size_ratio: 0.5\npg_autoscale_mode: off\nbulk: true\n"
    );
    desk.fails("osd pool get", get("csum_type"), Errno::ENOENT, "option 'csum_type' is not set on pool 'p1'");
    let tier = "pool 'p1' is not a tier pool: variable not applicable";
    desk.fails("osd pool get", get("hit_set_type"), Errno::EACCES, tier);
    // The parameters of a tier can be set once the pool is one, with their types.
    desk.state.change_pool(PoolId(1), |pool| pool.tiering.tier_of = Some(PoolId(2)));
    commit(&mut desk.state, desk.now);
    for (var, val) in [
        ("hit_set_type", "bloom"),
        ("hit_set_fpp", "0.1"),
        ("hit_set_count", "4"),
        ("hit_set_search_last_n", "2"),
        ("target_max_bytes", "1G"),
        ("cache_target_dirty_ratio", "0.25"),
    ] {
        desk.ok("osd pool set", set(var, val));
    }
    assert_eq!(desk.text("osd pool get", get("target_max_bytes")), "target_max_bytes: 1073741824\n");
    assert_eq!(
        desk.text("osd pool get", get("cache_target_dirty_ratio")),
        "cache_target_dirty_ratio: 0.25\n"
    );
    desk.fails(
        "osd pool set",
        set("hit_set_search_last_n", "9"),
        Errno::EINVAL,
        "value out of range,valid range is 0 - hit_set_count",
    );
    desk.fails(
        "osd pool set",
        set("hit_set_fpp", "2"),
        Errno::EINVAL,
        "hit_set_fpp should be in the range 0..1",
    );
}

#[test]
fn a_restart_takes_no_flag_of_a_full_pool_back_before_all_have_reported() {
    use nacre_types::pool::flag::{FULL, FULL_QUOTA};
    const CLEAN: u64 = pg_state::ACTIVE | pg_state::CLEAN;
    let flags = |desk: &Desk| desk.state.map().pools[&PoolId(1)].flags & (FULL | FULL_QUOTA);
    let free = 3 << 30;

    let mut desk = Desk::busy();
    desk.report_from(OsdId(2), CLEAN, 1 << 20);
    assert_eq!(flags(&desk), FULL);
    desk.restart();
    assert_eq!(flags(&desk), FULL);
    desk.report_from(OsdId(0), CLEAN, free);
    desk.report_from(OsdId(1), CLEAN, free);
    assert_eq!(flags(&desk), FULL, "osd.2 has not reported");
    desk.report_from(OsdId(2), CLEAN, free);
    assert_eq!(flags(&desk), 0);

    desk.ok("osd pool set-quota", json!({ "pool": "p1", "field": "max_objects", "val": "8" }));
    assert_eq!(flags(&desk), FULL | FULL_QUOTA);
    desk.restart();
    assert_eq!(flags(&desk), FULL | FULL_QUOTA);
    desk.report_from(OsdId(0), CLEAN, free);
    desk.report_from(OsdId(1), CLEAN, free);
    desk.report_from(OsdId(2), CLEAN, free);
    assert_eq!(flags(&desk), FULL | FULL_QUOTA, "it is full indeed");
    desk.restart();
    desk.ok("osd pool set-quota", json!({ "pool": "p1", "field": "max_objects", "val": "9" }));
    assert_eq!(flags(&desk), FULL | FULL_QUOTA, "nobody has reported");
    desk.report(CLEAN);
    assert_eq!(flags(&desk), 0);
}

#[test]
fn a_pg_without_a_primary_does_not_keep_a_pool_full() {
    use nacre_types::pool::flag::{FULL, FULL_QUOTA};
    const CLEAN: u64 = pg_state::ACTIVE | pg_state::CLEAN;
    let flags = |desk: &Desk| desk.state.map().pools[&PoolId(1)].flags & (FULL | FULL_QUOTA);
    let quota = |val: &str| json!({ "pool": "p1", "field": "max_objects", "val": val });
    let mut desk = Desk::busy();
    desk.ok("osd pool set-quota", quota("8"));
    desk.ok("osd down", json!({ "ids": ["2"] }));
    let led_by_2 = |pg: &PgId| desk.state.map().membership(*pg).is_some_and(|m| m.primary == OsdId(2));
    assert!(desk.state.map().pg_ids().filter(|pg| pg.pool == PoolId(1)).any(|pg| led_by_2(&pg)));
    desk.restart();
    desk.report_from(OsdId(0), CLEAN, 3 << 30);
    desk.report_from(OsdId(1), CLEAN, 3 << 30);
    assert_eq!(flags(&desk), FULL | FULL_QUOTA, "its PGs count as the others do");
    desk.ok("osd pool set-quota", quota("9"));
    assert_eq!(flags(&desk), 0);
}

#[test]
fn quotas_stop_a_pool_and_let_it_go_again() {
    let mut desk = Desk::busy();
    let quota = |val: &str| json!({ "pool": "p1", "field": "max_objects", "val": val });
    let bad = "error parsing value '1k': strict_si_cast: unit prefix not recognized";
    desk.fails("osd pool set-quota", quota("1k"), Errno::EINVAL, bad);
    assert_eq!(desk.status("osd pool set-quota", quota("4")), "set-quota max_objects = 4 for pool p1");
    let full = nacre_types::pool::flag::FULL | nacre_types::pool::flag::FULL_QUOTA;
    assert!(desk.state.map().pools[&PoolId(1)].has_flag(full));
    assert!(
        desk.text("health", json!({ "detail": "detail" }))
            .contains("    pool 'p1' is full (running out of quota)\n")
    );
    desk.ok("osd pool set-quota", quota("0"));
    assert!(!desk.state.map().pools[&PoolId(1)].has_flag(nacre_types::pool::flag::FULL));
    let bytes = json!({ "pool": "p1", "field": "max_bytes", "val": "1G" });
    assert_eq!(desk.status("osd pool set-quota", bytes), "set-quota max_bytes = 1073741824 for pool p1");
    assert_eq!(
        desk.text("osd pool get-quota", json!({ "pool": "p1" })),
        "quotas for pool 'p1':\n  max objects: N/A\n  max bytes  : 1 GiB  (current num bytes: 8000 bytes)\n"
    );
}
