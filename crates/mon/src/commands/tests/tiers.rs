//! Cache tiers: pools become caches and stop being caches, and no data is hidden on the way.

mod lost;
mod recorded;

use super::*;
use nacre_types::ids::Epoch;
use nacre_types::pool::{CacheMode, HitSetKind, Pool, PoolKind};

const ADD: &str = "osd tier add";
const REMOVE: &str = "osd tier remove";
const MODE: &str = "osd tier cache-mode";
const SET_OVERLAY: &str = "osd tier set-overlay";
const REMOVE_OVERLAY: &str = "osd tier remove-overlay";
const ADD_CACHE: &str = "osd tier add-cache";

fn tier(base: &str, tier: &str) -> Value {
    json!({ "pool": base, "tierpool": tier })
}

fn mode(pool: &str, mode: &str) -> Value {
    json!({ "pool": pool, "mode": mode })
}

fn sure(pool: &str, mode: &str) -> Value {
    json!({ "pool": pool, "mode": mode, "yes_i_really_mean_it": true })
}

fn overlay(base: &str, overlay: &str) -> Value {
    json!({ "pool": base, "overlaypool": overlay })
}

fn of(base: &str) -> Value {
    json!({ "pool": base })
}

/// The pools `base` and `cache`, which have reported that they are empty.
fn pools() -> Desk {
    let mut desk = Desk::new();
    for pool in ["base", "cache"] {
        desk.ok("osd pool create", json!({ "pool": pool, "pg_num": 4 }));
    }
    desk.create_pgs();
    desk.tell("base", 0, 0);
    desk.tell("cache", 0, 0);
    desk
}

/// Makes `cache` the overlay of `base` in this mode, with reports of its PGs since then.
fn tiered(cache_mode: &str) -> Desk {
    let mut desk = pools();
    desk.ok(ADD, tier("base", "cache"));
    desk.ok(MODE, sure("cache", cache_mode));
    desk.ok(SET_OVERLAY, overlay("base", "cache"));
    desk.tell("cache", 0, 0);
    desk
}

impl Desk {
    fn pool(&self, name: &str) -> (PoolId, Pool) {
        self.state.map().pool_by_name(name).map(|(id, pool)| (id, (**pool).clone())).unwrap()
    }

    /// Executes a command that must fail with EBUSY; returns its text.
    fn busy_because(&mut self, prefix: &str, args: Value) -> String {
        let before = self.state.working.clone();
        let (code, status, _) = self.run(prefix, args.clone());
        assert_eq!(code, Errno::EBUSY.negated(), "{prefix} {args}: {status}");
        assert_eq!(self.state.working, before, "{prefix} {args}");
        status
    }

    /// Marks an OSD as one that has a MemStore.
    fn put_in_memory(&mut self, osd: u32) {
        let mut boot = boot_of(osd, 2);
        boot.metadata =
            [("hostname".to_owned(), "vm".to_owned()), ("osd_objectstore".to_owned(), "memstore".to_owned())]
                .into();
        boot.total_bytes = 4 << 30;
        boot.device_class = "hdd".into();
        self.state.handle(self.now, MapEvent::Boot(boot));
        commit(&mut self.state, self.now);
    }
}

#[test]
fn overlays_come_and_go_with_their_epochs_on_both_pools() {
    let mut desk = pools();
    desk.ok(ADD, tier("base", "cache"));
    let (base_id, _) = desk.pool("base");
    let (cache_id, cache) = desk.pool("cache");
    assert_eq!((cache.tiering.tier_of, cache.tiering.overlay_epoch), (Some(base_id), Epoch(0)));
    desk.ok(MODE, mode("cache", "writeback"));
    let epoch = desk.state.map().epoch;
    assert_eq!(desk.pool("cache").1.tiering.mode_epoch, epoch);

    // As the documentation describes: no PG has reported since the pool became a cache.
    desk.ok(SET_OVERLAY, overlay("base", "cache"));
    let set_at = desk.state.map().epoch;
    let (base, cache) = (desk.pool("base").1.tiering, desk.pool("cache").1.tiering);
    assert_eq!((base.read_tier, base.write_tier), (Some(cache_id), Some(cache_id)));
    assert_eq!((base.overlay_epoch, cache.overlay_epoch, cache.mode_epoch), (set_at, set_at, epoch));
    desk.ok(SET_OVERLAY, overlay("base", "cache"));
    assert_eq!(desk.pool("base").1.tiering.overlay_epoch, set_at, "it was set already");

    desk.ok(MODE, mode("cache", "proxy"));
    assert_eq!(desk.pool("cache").1.tiering.mode_epoch, desk.state.map().epoch);
    desk.tell("cache", 0, 0);
    desk.ok(REMOVE_OVERLAY, of("base"));
    let removed_at = desk.state.map().epoch;
    let (base, cache) = (desk.pool("base").1.tiering, desk.pool("cache").1.tiering);
    assert_eq!((base.read_tier, base.write_tier), (None, None));
    assert_eq!((base.overlay_epoch, cache.overlay_epoch), (removed_at, removed_at));

    desk.ok(REMOVE, tier("base", "cache"));
    let left_at = desk.state.map().epoch;
    let (base, cache) = (desk.pool("base").1.tiering, desk.pool("cache").1.tiering);
    assert_eq!((base.overlay_epoch, cache.overlay_epoch, cache.mode_epoch), (left_at, left_at, left_at));
    assert_eq!((base.tiers, cache.tier_of, cache.cache_mode), (vec![], None, CacheMode::None));
}

#[test]
fn an_overlay_is_removed_only_when_every_pg_has_said_that_nothing_is_dirty() {
    for cache_mode in ["writeback", "readproxy"] {
        let mut desk = tiered(cache_mode);
        let why = desk.busy_because(REMOVE_OVERLAY, of("base"));
        assert!(why.contains(&format!("is in mode {cache_mode}")) && why.contains("set mode proxy"), "{why}");
        desk.tell("cache", 5, 2);
        // Reports from before the mode change do not count.
        desk.ok(MODE, mode("cache", "proxy"));
        let why = desk.busy_because(REMOVE_OVERLAY, of("base"));
        assert!(why.contains("has 2 dirty objects") && why.contains("pg 2.0"), "{why}");
        desk.ok(MODE, mode("cache", cache_mode));
        desk.tell("cache", 5, 0);
        desk.ok(MODE, mode("cache", "proxy"));
        let since = desk.state.map().epoch;
        let why = desk.busy_because(REMOVE_OVERLAY, of("base"));
        assert!(why.starts_with("4 pgs of cache pool 'cache' (such as 2.0) have not reported"), "{why}");
        assert!(why.contains(&format!("since epoch {since}")), "{why}");

        // One PG remains: it has not reported, then it still counts its objects.
        desk.tell("cache", 5, 0);
        let (id, _) = desk.pool("cache");
        let last = PgStats { pg: PgId::new(id, 3), ..PgStats::default() };
        desk.tell_pg(PgStats { reported_epoch: Epoch(since.0 - 1), sums_complete: true, ..last.clone() });
        let why = desk.busy_because(REMOVE_OVERLAY, of("base"));
        assert!(why.starts_with("1 pg of cache pool 'cache' (such as 2.3)"), "{why}");
        desk.tell_pg(PgStats { reported_epoch: since, sums_complete: false, ..last.clone() });
        desk.busy_because(REMOVE_OVERLAY, of("base"));
        desk.tell_pg(PgStats { reported_epoch: since, sums_complete: true, ..last });
        desk.ok(REMOVE_OVERLAY, of("base"));
    }
}

#[test]
fn a_map_authority_that_starts_knows_of_no_cache_that_is_clean() {
    let mut desk = tiered("proxy");
    desk.restart();
    let why = desk.busy_because(REMOVE_OVERLAY, of("base"));
    assert!(why.contains("have not reported"), "{why}");
    desk.tell("cache", 0, 0);
    desk.ok(REMOVE_OVERLAY, of("base"));
}

#[test]
fn changes_of_one_epoch_do_not_count_earlier_reports() {
    let mut desk = tiered("writeback");
    // Both commands arrive before the first one's change is proposed.
    let requests = [(MODE, mode("cache", "proxy")), (REMOVE_OVERLAY, of("base"))];
    for (tid, (prefix, mut args)) in requests.into_iter().enumerate() {
        args["prefix"] = prefix.into();
        let request = CommandRequest {
            origin: ConnToken(9),
            entity: EntityName::client("admin"),
            peer: Ipv4Addr::LOCALHOST.into(),
            caps: desk.caps.clone(),
            command: MonCommand { tid: tid as u64, cmd: args.to_string(), input: Bytes::new() },
            fresh_key: Key::generate().unwrap(),
        };
        desk.state.handle(desk.now, MapEvent::Command(Box::new(request)));
    }
    let codes: Vec<i32> = commit(&mut desk.state, desk.now)
        .into_iter()
        .map(|effect| match effect {
            MapEffect::CommandReply { reply, .. } => reply.code,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(codes, [0, Errno::EBUSY.negated()]);
    assert!(desk.pool("base").1.tiering.read_tier.is_some());
}

#[test]
fn modes_that_do_not_serve_dirty_objects_follow_proxy_alone() {
    for (to, args) in [("none", mode("cache", "none")), ("readonly", sure("cache", "readonly"))] {
        let mut desk = tiered("readproxy");
        let why = desk.busy_because(MODE, args.clone());
        assert!(why.contains("set mode proxy first"), "{why}");
        desk.ok(MODE, mode("cache", "proxy"));
        let why = desk.busy_because(MODE, args.clone());
        assert!(why.contains("have not reported"), "{why}");
        desk.tell("cache", 3, 1);
        let why = desk.busy_because(MODE, args.clone());
        assert_eq!(why, format!("unable to set cache-mode '{to}' on pool 'cache': dirty objects found"));
        desk.tell("cache", 3, 0);
        desk.ok(MODE, args);
    }
}

#[test]
fn copies_that_may_be_old_are_never_served_as_current() {
    // In mode readonly the base pool changes while the copies do not.
    let mut desk = tiered("readonly");
    desk.tell("cache", 3, 0);
    for to in ["writeback", "proxy", "readproxy", "none"] {
        let why = desk.busy_because(MODE, mode("cache", to));
        assert!(why.ends_with("may be older than the objects of 'base'; remove-overlay first"), "{why}");
    }
    desk.ok(REMOVE_OVERLAY, of("base"));
    desk.ok(MODE, mode("cache", "writeback"));
    // The same applies without an overlay.
    let why = desk.busy_because(SET_OVERLAY, overlay("base", "cache"));
    assert!(why.contains("has 3 objects from before its overlay was removed"), "{why}");
    assert!(why.contains("rados -p cache cache-flush-evict-all"), "{why}");
    desk.restart();
    let why = desk.busy_because(SET_OVERLAY, overlay("base", "cache"));
    assert!(why.contains("have not reported since epoch"), "{why}");
    desk.tell("cache", 0, 0);
    desk.ok(SET_OVERLAY, overlay("base", "cache"));
}

#[test]
fn a_tier_begins_empty() {
    let mut desk = pools();
    desk.tell("cache", 1, 0);
    let full = "tier pool 'cache' is not empty; --force-nonempty to force";
    desk.fails(ADD, tier("base", "cache"), Errno::ENOTEMPTY, full);
    let size = json!({ "pool": "base", "tierpool": "cache", "size": 1 });
    desk.fails(ADD_CACHE, size, Errno::ENOTEMPTY, "tier pool 'cache' is not empty");
    // A monitor that starts does not know the objects.
    desk.now = at(60_000);
    desk.restart();
    let why = desk.busy_because(ADD, tier("base", "cache"));
    assert!(why.starts_with("4 pgs of tier pool 'cache' (2.0, …) have not reported"), "{why}");
    let forced = json!({ "pool": "base", "tierpool": "cache", "force_nonempty": true });
    desk.ok(ADD, forced);
}

#[test]
fn what_tiers_are_not_made_for_is_refused() {
    let mut desk = pools();
    let ids = [desk.pool("base").0, desk.pool("cache").0];
    type Change = fn(&mut Pool, bool);
    let erasure: Change = |pool, on| pool.kind = if on { PoolKind::Erasure } else { PoolKind::Replicated };
    let snapshots: Change = |pool, on| pool.snap_seq = u64::from(on);
    let cases = [
        (1, erasure, Errno::ENOTSUP, "tier pool 'cache' is an ec pool, which cannot be a tier"),
        (
            1,
            snapshots,
            Errno::ENOTEMPTY,
            "tier pool 'cache' has snapshot state; it cannot be added as a tier without breaking the pool",
        ),
        (
            0,
            erasure,
            Errno::ENOTSUP,
            "pool 'base' is an ec pool; this release puts cache tiers before replicated pools only",
        ),
        (
            0,
            snapshots,
            Errno::ENOTSUP,
            "pool 'base' has snapshot state; this release puts cache tiers before pools without snapshots only",
        ),
    ];
    let size = json!({ "pool": "base", "tierpool": "cache", "size": 1 });
    for (at, change, errno, text) in cases {
        desk.state.change_pool(ids[at], |pool| change(pool, true));
        commit(&mut desk.state, desk.now);
        desk.fails(ADD, tier("base", "cache"), errno, text);
        desk.fails(ADD_CACHE, size.clone(), errno, text);
        desk.state.change_pool(ids[at], |pool| change(pool, false));
        commit(&mut desk.state, desk.now);
    }
    let itself = "pool 'base' can't be a tier of itself";
    desk.fails(ADD, tier("base", "base"), Errno::EINVAL, itself);
}

#[test]
fn writes_on_memstores_ask_for_consent() {
    let mut desk = pools();
    desk.put_in_memory(1);
    desk.ok(ADD, tier("base", "cache"));
    for to in ["writeback", "readproxy"] {
        let text = format!(
            "pool 'cache' is kept in memory (osd.1): in mode {to} a power cut loses all writes that are not flushed to 'base' \
             yet.  pass --yes-i-really-mean-it to accept that."
        );
        desk.fails(MODE, mode("cache", to), Errno::EPERM, &text);
    }
    desk.ok(MODE, mode("cache", "proxy"));
    desk.ok(MODE, sure("cache", "writeback"));
    desk.ok(SET_OVERLAY, overlay("base", "cache"));

    // `add-cache` has no flag.
    desk.ok("osd pool create", json!({ "pool": "quick", "pg_num": 4 }));
    desk.ok("osd pool create", json!({ "pool": "other", "pg_num": 4 }));
    let size = json!({ "pool": "other", "tierpool": "quick", "size": 1 });
    let (code, text, _) = desk.run(ADD_CACHE, size);
    assert_eq!(code, Errno::EPERM.negated());
    assert!(text.ends_with("use osd tier add, osd tier cache-mode with --yes-i-really-mean-it and osd tier set-overlay to accept that."), "{text}");
}

#[test]
fn a_rule_does_not_move_a_cache_into_memory_unasked() {
    let mut desk = Desk::new();
    desk.put_in_memory(1);
    desk.ok("osd crush rm-device-class", json!({ "ids": ["1"] }));
    desk.ok("osd crush set-device-class", json!({ "class": "mem", "ids": ["1"] }));
    for (rule, class) in [("disks", "hdd"), ("memory", "mem")] {
        let args = json!({ "name": rule, "root": "default", "type": "osd", "class": class });
        desk.ok("osd crush rule create-replicated", args);
    }
    for pool in ["base", "cache"] {
        desk.ok(
            "osd pool create",
            json!({ "pool": pool, "pg_num": 4, "rule": "disks", "size": 1, "yes_i_really_mean_it": true }),
        );
    }
    desk.ok(ADD, tier("base", "cache"));
    desk.ok(MODE, mode("cache", "writeback"));
    let rule = |pool: &str| json!({ "pool": pool, "var": "crush_rule", "val": "memory" });
    let text = "pool 'cache' is kept in memory (osd.1): in mode writeback a power cut loses all writes that are not flushed to \
                'base' yet.  pass --yes-i-really-mean-it to accept that.";
    desk.fails("osd pool set", rule("cache"), Errno::EPERM, text);
    desk.ok("osd pool set", rule("base"));
    let mut accepted = rule("cache");
    accepted["yes_i_really_mean_it"] = true.into();
    desk.ok("osd pool set", accepted);
}

#[test]
fn a_cache_is_added_with_the_defaults_of_the_options() {
    let mut desk = pools();
    desk.state.tuning.tier_defaults.cache_mode = CacheMode::Readproxy;
    desk.state.tuning.tier_defaults.hit_set_count = 9;
    desk.ok(ADD_CACHE, json!({ "pool": "base", "tierpool": "cache", "size": 4096 }));
    let epoch = desk.state.map().epoch;
    let (id, cache) = desk.pool("cache");
    let t = cache.tiering;
    assert_eq!((t.cache_mode, t.hit_set_count, t.target_max_bytes), (CacheMode::Readproxy, 9, 4096));
    assert_eq!((t.hit_set, t.hit_set_period_s), (HitSetKind::Bloom { fpp: 0.05 }, 1200));
    assert_eq!((t.overlay_epoch, t.mode_epoch), (epoch, epoch));
    let base = desk.pool("base").1.tiering;
    assert_eq!((base.read_tier, base.overlay_epoch), (Some(id), epoch));
    // A second cache would hide the first one.
    desk.ok("osd pool create", json!({ "pool": "second", "pg_num": 4 }));
    let text = "pool 'base' has overlay 'cache'; please remove-overlay first";
    let second = json!({ "pool": "base", "tierpool": "second", "size": 1 });
    desk.fails(ADD_CACHE, second, Errno::EINVAL, text);
}

#[test]
fn health_tells_of_targets_hit_sets_and_writes_in_memory() {
    let mut desk = tiered("writeback");
    desk.tell("cache", 95, 40);
    let target = |var: &str, val: &str| json!({ "pool": "cache", "var": var, "val": val });
    // 0.8 of the target is full; the warning starts at 0.66 of the rest.
    desk.ok("osd pool set", target("target_max_objects", "102"));
    let detail = |desk: &mut Desk| desk.text("health", json!({ "detail": "detail" }));
    assert!(!detail(&mut desk).contains("CACHE_POOL_NEAR_FULL"));
    desk.ok("osd pool set", target("target_max_objects", "101"));
    desk.ok("osd pool set", target("target_max_bytes", "100000"));
    let said = detail(&mut desk);
    assert!(
        said.contains(
            "[WRN] CACHE_POOL_NEAR_FULL: 1 cache pools at or near target size\n    cache pool 'cache' with 95 objects at/near \
             target max 101 objects\n    cache pool 'cache' with 93 KiB at/near target max 98 KiB\n"
        ),
        "{said}"
    );
    assert!(
        said.contains(
            "[WRN] CACHE_POOL_NO_HIT_SET: 1 cache pools are missing hit_sets\n    pool 'cache' with cache_mode writeback needs \
             hit_set_type to be set but it is not\n"
        ),
        "{said}"
    );
    assert!(!said.contains("CACHE_POOL_VOLATILE"), "{said}");
    desk.ok("osd pool set", target("hit_set_type", "bloom"));
    assert!(!detail(&mut desk).contains("CACHE_POOL_NO_HIT_SET"));

    desk.put_in_memory(2);
    let volatile = |mode: &str, dirty: &str| {
        format!(
            "[WRN] CACHE_POOL_VOLATILE: 1 cache pools keep writes in memory before they are flushed\n    pool 'cache' with \
             cache_mode {mode} has {dirty} of pool 'base' in memory (osd.2): a power cut loses them\n"
        )
    };
    let said = detail(&mut desk);
    assert!(said.contains(&volatile("writeback", "40 dirty objects (39 KiB)")), "{said}");
    desk.ok(MODE, mode("cache", "proxy"));
    let said = detail(&mut desk);
    assert!(said.contains(&volatile("proxy", "40 dirty objects (39 KiB)")), "not flushed yet: {said}");
    desk.tell("cache", 95, 0);
    assert!(!detail(&mut desk).contains("CACHE_POOL_VOLATILE"));
}

#[test]
fn usage_counts_what_is_dirty_in_caches() {
    let mut desk = tiered("writeback");
    desk.tell("base", 7, 0);
    desk.tell("cache", 95, 40);
    let df = desk.text("df", json!({ "detail": "detail" }));
    let heading = df.lines().find(|line| line.starts_with("POOL")).unwrap();
    let at = heading.find("DIRTY").unwrap();
    let dirty =
        |pool: &str| df.lines().find(|line| line.starts_with(pool)).unwrap()[at..at + 5].trim().to_owned();
    assert_eq!((dirty("base"), dirty("cache")), ("N/A".into(), "40".into()));
}
