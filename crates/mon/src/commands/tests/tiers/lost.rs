//! Caches that write through, and caches whose copies are lost.

use super::*;
use crate::logic::LastReportedDirty;
use nacre_types::ids::Incarnation;
use nacre_types::msg::{OsdBoot, OsdMarkMeDown};

const FORCE_CREATE: &str = "osd force-create-pg";
const THROUGH: &str = "cache_write_through";
const LOG: &str = "cache_dirty_log";

fn through(val: &str) -> Value {
    json!({ "pool": "cache", "var": THROUGH, "val": val })
}

fn detail(desk: &mut Desk) -> String {
    desk.text("health", json!({ "detail": "detail" }))
}

fn accept(pg: PgId) -> Value {
    json!({ "pgid": pg.to_string(), "yes_i_really_mean_it": true })
}

impl Desk {
    /// The PGs of the pool `cache`.
    fn pgs(&self) -> Vec<PgId> {
        let (id, pool) = self.pool("cache");
        (0..pool.pg_num).map(|seed| PgId::new(id, seed)).collect()
    }

    /// OSDs stop and start again with empty MemStores.
    fn lose(&mut self, osds: &[u32]) {
        for osd in osds.iter().copied() {
            let boot_nonce = self.state.map().osds[&OsdId(osd)].boot_nonce;
            let event = MapEvent::MarkMeDown { osd: OsdId(osd), request: OsdMarkMeDown { boot_nonce } };
            self.state.handle(self.now, event);
            commit(&mut self.state, self.now);
        }
        for osd in osds.iter().copied() {
            let metadata = [("osd_objectstore".to_owned(), "memstore".to_owned())].into();
            let incarnation = Incarnation(Uuid::from_u128(0x900 + u128::from(osd)));
            let boot = OsdBoot { incarnation, metadata, total_bytes: 4 << 30, ..boot_of(osd, 7) };
            self.state.handle(self.now, MapEvent::Boot(boot));
            commit(&mut self.state, self.now);
        }
    }
}

#[test]
fn a_cache_that_writes_through_may_be_in_memory() {
    let mut desk = pools();
    (0..3).for_each(|osd| desk.put_in_memory(osd));
    desk.fails("osd pool set", through("true"), Errno::EACCES, "(13) Permission denied");
    desk.ok(ADD, tier("base", "cache"));
    assert_eq!(
        desk.text("osd pool get", json!({ "pool": "cache", "var": THROUGH })),
        "cache_write_through: false\n"
    );
    let (code, ..) = desk.run(MODE, mode("cache", "writeback"));
    assert_eq!(code, Errno::EPERM.negated());
    desk.ok("osd pool set", through("true"));
    assert_eq!(
        desk.text("osd pool get", json!({ "pool": "cache", "var": THROUGH })),
        "cache_write_through: true\n"
    );
    assert!(desk.text("osd pool ls", json!({ "detail": "detail" })).contains("cache_write_through"));
    desk.ok(MODE, mode("cache", "writeback"));
    desk.ok(SET_OVERLAY, overlay("base", "cache"));
    // Writes from before the change may be lost; later ones may not.
    desk.tell("cache", 5, 2);
    assert!(detail(&mut desk).contains("has 2 dirty objects (2.0 KiB) of pool 'base' in memory"));
    desk.tell("cache", 5, 0);
    assert!(!detail(&mut desk).contains("CACHE_POOL_VOLATILE"));
    desk.tell("cache", 5, 3);
    assert!(!detail(&mut desk).contains("CACHE_POOL_VOLATILE"), "their writes are not acknowledged yet");

    let text = "pool 'cache' is kept in memory (osd.0, osd.1, osd.2): in mode writeback a power cut loses all writes that are not \
                flushed to 'base' yet.  pass --yes-i-really-mean-it to accept that.";
    desk.fails("osd pool set", through("false"), Errno::EPERM, text);
    let mut sure = through("false");
    sure["yes_i_really_mean_it"] = true.into();
    desk.ok("osd pool set", sure);
    assert!(detail(&mut desk).contains("has 3 dirty objects"));
    desk.ok("osd pool set", through("1"));
    assert!(detail(&mut desk).contains("has 3 dirty objects"), "they may be from in between");
    desk.ok(MODE, mode("cache", "proxy"));
    desk.tell("cache", 0, 0);
    desk.ok(REMOVE_OVERLAY, of("base"));
    desk.ok(REMOVE, tier("base", "cache"));
    assert!(!desk.pool("cache").1.has_flag(nacre_types::pool::flag::CACHE_WRITE_THROUGH));
}

#[test]
fn the_log_of_what_is_dirty_is_switched_for_caches() {
    let set = |value: &str| json!({ "pool": "cache", "var": LOG, "val": value });
    let get = json!({ "pool": "cache", "var": LOG });
    let mut desk = pools();
    desk.fails("osd pool set", set("true"), Errno::EACCES, "(13) Permission denied");
    desk.ok(ADD, tier("base", "cache"));
    assert_eq!(desk.text("osd pool get", get.clone()), "cache_dirty_log: false\n");
    desk.fails("osd pool set", set("perhaps"), Errno::EINVAL, "expecting value 'true', 'false', '0', or '1'");
    desk.ok("osd pool set", set("true"));
    assert_eq!(desk.text("osd pool get", get), "cache_dirty_log: true\n");
    assert!(desk.text("osd pool ls", json!({ "detail": "detail" })).contains("cache_dirty_log"));
    desk.ok(REMOVE, tier("base", "cache"));
    assert!(!desk.pool("cache").1.has_flag(nacre_types::pool::flag::CACHE_DIRTY_LOG));
}

#[test]
fn what_a_lost_cache_had_is_told_until_the_operator_accepts_the_loss() {
    let mut desk = tiered("writeback");
    desk.raise_intervals();
    desk.tell("cache", 9, 4);
    let pgs = desk.pgs();
    assert!(!detail(&mut desk).contains("CACHE_POOL_DIRTY_LOST"));
    desk.lose(&[0, 1]);
    assert!(!detail(&mut desk).contains("CACHE_POOL_DIRTY_LOST"), "one copy is left");
    let left = format!(
        "pg {} is not lost: osd.2 may have all its data; start it, or give up what is there with ceph osd lost",
        pgs[0]
    );
    desk.fails(FORCE_CREATE, accept(pgs[0]), Errno::EBUSY, &left);
    desk.lose(&[2]);
    // The empty OSD does not know the PG's former contents.
    desk.tell_pg(PgStats { pg: pgs[0], reported_epoch: desk.state.map().epoch, ..PgStats::default() });
    let said = detail(&mut desk);
    assert!(
        said.contains(
            "[ERR] CACHE_POOL_DIRTY_LOST: 4 pgs of cache pools lost all copies, with 4 dirty objects (3.9 KiB) at their last reports\n"
        ),
        "{said}"
    );
    let first = pgs[0];
    assert!(
        said.contains(&format!(
            "    pg {first} of cache pool 'cache' lost all copies: 4 dirty objects (3.9 KiB) of pool 'base' at its last report; \
             operations wait until ceph osd force-create-pg {first} --yes-i-really-mean-it accepts that\n"
        )),
        "{said}"
    );
    let (code, status, _) = desk.run(FORCE_CREATE, json!({ "pgid": first.to_string() }));
    assert!(
        code == Errno::EPERM.negated() && status.starts_with("This command will recreate a lost"),
        "{status}"
    );
    let beyond = PgId::new(first.pool, 77);
    desk.fails(FORCE_CREATE, accept(beyond), Errno::ENOENT, &format!("pg {beyond} should not exist"));

    let before = desk.state.map().membership(first).unwrap().clone();
    assert_eq!(desk.status(FORCE_CREATE, accept(first)), format!("pg {first} now creating, ok"));
    let now = desk.state.map().membership(first).unwrap().clone();
    assert!(now.interval.is_creation() && now.interval > before.interval);
    assert_eq!(now.in_sync.len(), 3);
    assert!(
        now.in_sync
            .iter()
            .all(|member| !before.is_in_sync(*member) && desk.state.map().is_member_up(*member))
    );
    assert_eq!(desk.status(FORCE_CREATE, accept(first)), format!("pg {first} already creating"));
    let log = desk.state.log().last(1, LogLevel::Warn, "cluster");
    assert!(log[0].text.ends_with("(9 objects of 8.8 KiB, of which 4 dirty (3.9 KiB))"), "{}", log[0].text);
    let said = detail(&mut desk);
    assert!(said.contains("3 pgs of cache pools lost all copies, with 0 dirty objects"), "{said}");
    // Its first primary continues as in any other new PG.
    let (primary, next) = (now.primary, PgMembership { interval: now.interval.next(), ..now.clone() });
    let proposer = now.in_sync[0];
    let cas = PgCas { tid: 3, pg: first, proposer, expected: Some(now), proposed: next.clone() };
    desk.state.handle(desk.now, MapEvent::Cas { origin: ConnToken(1), osd: primary, cas });
    commit(&mut desk.state, desk.now);
    assert_eq!(desk.state.map().membership(first), Some(&next));
    pgs[1..].iter().for_each(|pg| _ = desk.ok(FORCE_CREATE, accept(*pg)));
    assert!(!detail(&mut desk).contains("CACHE_POOL_DIRTY_LOST"));
}

#[test]
fn a_lost_cache_that_wrote_through_or_passed_lacks_nothing() {
    for passes in [true, false] {
        let mut desk = tiered("writeback");
        desk.raise_intervals();
        match passes {
            true => _ = desk.ok(MODE, mode("cache", "proxy")),
            false => _ = desk.ok("osd pool set", through("true")),
        }
        desk.tell("cache", 9, 0);
        if !passes {
            // The changes are not acknowledged yet.
            desk.tell("cache", 9, 2);
        }
        desk.lose(&[0, 1, 2]);
        let said = detail(&mut desk);
        let summary = "[WRN] CACHE_POOL_DIRTY_LOST: 4 pgs of cache pools lost all copies, with nothing that the base pools lack\n";
        assert!(said.contains(summary), "{said}");
        assert!(
            said.contains("lost all copies: all that it acknowledged is in pool 'base'; operations wait"),
            "{said}"
        );
    }
}

#[test]
fn what_was_given_up_is_lost_and_too_few_osds_make_no_pg() {
    let mut desk = tiered("writeback");
    desk.raise_intervals();
    desk.tell("cache", 9, 4);
    let pg = desk.pgs()[0];
    desk.lose(&[0]);
    for osd in [1, 2] {
        let boot_nonce = desk.state.map().osds[&OsdId(osd)].boot_nonce;
        let event = MapEvent::MarkMeDown { osd: OsdId(osd), request: OsdMarkMeDown { boot_nonce } };
        desk.state.handle(desk.now, event);
        commit(&mut desk.state, desk.now);
    }
    let (code, status, _) = desk.run(FORCE_CREATE, accept(pg));
    assert!(
        code == Errno::EBUSY.negated() && status.contains("osd.1, osd.2 may have all its data; start them"),
        "{status}"
    );
    for osd in [1, 2] {
        desk.ok("osd lost", json!({ "id": osd, "yes_i_really_mean_it": true }));
    }
    assert!(detail(&mut desk).contains("CACHE_POOL_DIRTY_LOST"));
    let text = format!("pg {pg} needs 2 OSDs that are up, and CRUSH chooses 1");
    desk.fails(FORCE_CREATE, accept(pg), Errno::EBUSY, &text);
    // A monitor that starts knows the stored counts.
    desk.now = at(20_000);
    desk.state.handle(desk.now, MapEvent::Tick);
    let record = desk.state.keys[&crate::keys::tier_dirty(pg.pool)].clone().unwrap();
    desk.state.last_dirty = LastReportedDirty::default();
    desk.state.last_dirty.load_record(&record).unwrap();
    let said = detail(&mut desk);
    assert!(said.contains("with 4 dirty objects (3.9 KiB) at their last reports\n"), "{said}");
    // A monitor without stored counts does not.
    desk.state.last_dirty = LastReportedDirty::default();
    desk.state.stats = Default::default();
    let said = detail(&mut desk);
    assert!(said.contains("how many objects of pool 'base' were dirty is not known"), "{said}");
    assert!(
        said.contains(
            "4 pgs of cache pools lost all copies, with 0 or more dirty objects (0 B) at their last reports\n"
        ),
        "{said}"
    );
}
