//! All tier commands compared with a recording of Ceph's monitor (`tests/recordings/tiers.jsonl`, by `scripts/record-tiers`).
//! Intended differences are listed here.

use super::*;
use nacre_types::pool::{Tiering, flag};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The fields that a tier leaves in a pool. Ceph leaves ratios of 0, so a cache that is added again evicts everything.
const LEFT: &[(&str, u32, u32)] = &[
    ("cache_target_dirty_ratio_micro", 0, 400_000),
    ("cache_target_dirty_high_ratio_micro", 0, 600_000),
    ("cache_target_full_ratio_micro", 0, 800_000),
];

/// Commands that Ceph executes and Nacre refuses, in the order of the recording: a distinguishing word of the command, the
/// code, the beginning of the text.
const REFUSED: &[(&str, i32, &str)] = &[
    // Objects that are only in the cache would be hidden.
    ("osd tier remove-overlay", -16, "cache pool 'cache' is in mode writeback, which leaves objects dirty"),
    // Ceph treats negative targets as very large ones.
    ("target_max_bytes", -22, "error parsing int '-1': a target is not negative"),
    ("target_max_objects", -22, "error parsing int '-1': a target is not negative"),
];

fn recording() -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recordings/tiers.jsonl");
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn steps(kind: &str) -> Vec<Value> {
    let found: Vec<Value> = recording().into_iter().filter(|step| step["step"] == kind).collect();
    assert!(!found.is_empty(), "the recording has no step '{kind}'");
    found
}

/// A cluster whose OSDs report continuously.
struct Replay {
    desk: Desk,
    /// Objects and dirty objects of each pool.
    objects: BTreeMap<String, (u64, u64)>,
}

impl Replay {
    fn new() -> Replay {
        let mut desk = Desk::new();
        desk.state.tuning.pool_default_size = 1;
        Replay { desk, objects: BTreeMap::new() }
    }

    fn report(&mut self) {
        self.desk.create_pgs();
        let pools = self.desk.state.map().pools.values();
        let names: Vec<String> = pools.map(|pool| pool.name.clone()).collect();
        for name in names {
            let (objects, dirty) = self.objects.get(&name).copied().unwrap_or_default();
            self.desk.tell(&name, objects, dirty);
        }
    }

    /// Runs a recorded command; in its texts, pool ids are replaced by names.
    fn run(&mut self, cmd: &Value) -> Said {
        let (prefix, pool) = (cmd["prefix"].as_str().unwrap(), cmd["pool"].as_str().unwrap_or_default());
        let change = |replay: &mut Replay, change: fn(&mut Pool)| {
            let (id, _) = replay.desk.pool(pool);
            replay.desk.state.change_pool(id, change);
            commit(&mut replay.desk.state, replay.desk.now);
        };
        // Features that Nacre lacks.
        if prefix == "osd pool create" && cmd["pool_type"] == "erasure" {
            self.desk.ok(prefix, json!({ "pool": pool, "pg_num": 1 }));
            self.report();
            change(self, |pool| pool.kind = PoolKind::Erasure);
            return (0, format!("pool '{pool}' created"), String::new());
        }
        if prefix == "osd pool mksnap" {
            change(self, |pool| {
                pool.snap_seq = 1;
                pool.flags |= flag::POOL_SNAPS;
            });
            return (0, format!("created pool {pool} snap s"), String::new());
        }
        let (code, text, output) = self.desk.raw(&cmd.to_string(), b"");
        let pools = &self.desk.state.map().pools;
        let named = pools.iter().find_map(|(id, pool)| {
            let rest = text.strip_prefix(&format!("set pool {id} "))?;
            Some(format!("set pool <{}> {rest}", pool.name))
        });
        (code, named.unwrap_or(text), output)
    }

    fn name(&self, id: i64) -> Value {
        self.desk
            .state
            .map()
            .pools
            .get(&PoolId(id))
            .map_or_else(|| (-1).into(), |pool| pool.name.as_str().into())
    }

    /// The line of a pool in `osd pool ls detail` from its flags on, with names.
    fn line(&mut self, pool: &str) -> String {
        let text = self.desk.text("osd pool ls", json!({ "detail": "detail" }));
        let line = text.lines().find(|line| line.contains(&format!("'{pool}'"))).unwrap();
        let words: Vec<&str> = line[line.find(" flags ").unwrap()..].split_whitespace().collect();
        let shown = words.iter().enumerate().map(|(at, word)| {
            let before = at.checked_sub(1).map_or("", |before| words[before]);
            if !["tiers", "tier_of", "read_tier", "write_tier"].contains(&before) {
                return (*word).to_owned();
            }
            let ids = word.split(',').map(|id| self.name(id.parse().unwrap()));
            ids.map(|name| format!("<{}>", name.as_str().unwrap())).collect::<Vec<_>>().join(",")
        });
        shown.collect::<Vec<_>>().join(" ")
    }

    /// The fields of a pool in `osd dump` that `like` also has, with names.
    fn fields(&mut self, pool: &str, like: &Value) -> Value {
        let dump = self.desk.json("osd dump", json!({}));
        let found = dump["pools"].as_array().unwrap().iter().find(|found| found["pool_name"] == pool);
        let mut fields = found.unwrap().as_object().unwrap().clone();
        fields.retain(|name, _| like.get(name).is_some());
        for name in ["tier_of", "read_tier", "write_tier"] {
            fields[name] = self.name(fields[name].as_i64().unwrap());
        }
        let tiers = fields["tiers"].as_array().unwrap().iter().map(|id| self.name(id.as_i64().unwrap()));
        fields["tiers"] = tiers.collect();
        Value::Object(fields)
    }
}

#[test]
fn commands_have_the_signatures_of_cephs() {
    let ours = mon_commands().descriptions();
    let ours: Vec<&Value> = ours.as_object().unwrap().values().collect();
    for recorded in steps("signature") {
        let mut sig = recorded["words"].as_array().unwrap().clone();
        sig.extend(recorded["params"].as_array().unwrap().iter().cloned());
        let found = ours.iter().find(|entry| entry["sig"].as_array().unwrap().starts_with(&sig));
        let found = found.unwrap_or_else(|| panic!("no command has the signature {sig:?}"));
        assert_eq!(found["sig"].as_array().unwrap().len(), sig.len(), "{sig:?}");
        for field in ["perm", "module", "help"] {
            assert_eq!(found[field], recorded[field], "{sig:?}");
        }
    }
}

#[test]
fn texts_codes_and_pools_are_those_of_ceph() {
    let mut replay = Replay::new();
    let mut refused = REFUSED.iter().peekable();
    let (mut commands, mut shown) = (0, 0);
    for step in recording() {
        match step["step"].as_str().unwrap() {
            "command" => {
                let cmd = &step["cmd"];
                let (code, text, _) = replay.run(cmd);
                let expected = (step["code"].as_i64().unwrap() as i32, step["text"].as_str().unwrap());
                let differs = refused.next_if(|(word, ..)| {
                    cmd.to_string().contains(word) && (code, text.as_str()) != expected && expected.0 == 0
                });
                match differs {
                    Some((_, code_here, beginning)) => {
                        assert!(code == *code_here && text.starts_with(beginning), "{cmd}: {code} {text}");
                    }
                    None => assert_eq!((code, text.as_str()), expected, "{cmd}"),
                }
                commands += 1;
            }
            "objects" => {
                let number = |name: &str| step[name].as_u64().unwrap();
                let pool = step["pool"].as_str().unwrap().to_owned();
                replay.objects.insert(pool, (number("objects"), number("dirty")));
            }
            "shown" => {
                let (code, text, output) = replay.run(&step["cmd"]);
                let expected = (
                    step["code"].as_i64().unwrap() as i32,
                    step["text"].as_str().unwrap(),
                    step["output"].as_str().unwrap(),
                );
                assert_eq!((code, text.as_str(), output.as_str()), expected, "{}", step["cmd"]);
                shown += 1;
            }
            "pools" => {
                let what = step["what"].as_str().unwrap();
                for (pool, line) in step["lines"].as_object().unwrap() {
                    assert_eq!(replay.line(pool), line.as_str().unwrap(), "{what}");
                }
                for (pool, recorded) in step["fields"].as_object().unwrap() {
                    let mut recorded = recorded.clone();
                    for (field, there, here) in LEFT {
                        if what.ends_with("removed") && recorded[*field] == *there {
                            recorded[*field] = (*here).into();
                        }
                    }
                    assert_eq!(replay.fields(pool, &recorded), recorded, "{what}: {pool}");
                }
                shown += 1;
            }
            "health" => {
                let ours = replay.desk.json("health", json!({ "detail": "detail" }));
                for (code, check) in step["checks"].as_object().unwrap() {
                    assert_eq!(&ours["checks"][code], check, "{code}");
                }
                shown += 1;
            }
            "df" => {
                let dirty = |heading: &str, row: &str| {
                    let at = heading.find("DIRTY").unwrap() + "DIRTY".len();
                    row[..at].split_whitespace().last().unwrap().to_owned()
                };
                let text = replay.desk.text("df", json!({ "detail": "detail" }));
                let heading = text.lines().find(|line| line.starts_with("POOL")).unwrap();
                let columns = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
                let recorded = step["heading"].as_str().unwrap();
                assert_eq!(columns(heading), columns(recorded));
                for row in step["rows"].as_array().unwrap() {
                    let row = row.as_str().unwrap();
                    let pool = row.split_whitespace().next().unwrap();
                    let here =
                        text.lines().find(|line| line.split_whitespace().next() == Some(pool)).unwrap();
                    assert_eq!(dirty(heading, here), dirty(recorded, row), "{pool}");
                }
                shown += 1;
            }
            _ => {}
        }
        if step["step"] != "transition" {
            replay.report();
        }
    }
    assert_eq!(refused.next(), None, "this no longer differs");
    assert!(commands > 150 && shown > 40, "{commands} commands, {shown} outputs");
}

/// Why Nacre refuses a mode change that Ceph makes; `None` if both must agree.
fn refusal(before: CacheMode, after: CacheMode, overlay: bool) -> Option<&'static str> {
    use CacheMode::{Readonly, Readproxy};
    match (before, after) {
        (Readproxy, CacheMode::None | Readonly) => Some("in mode readproxy objects become dirty at any time"),
        (Readonly, after) if after != Readonly && overlay => Some("remove-overlay first"),
        _ => None,
    }
}

#[test]
fn modes_follow_each_other_as_in_ceph_or_are_refused_for_a_reason() {
    let mut replay = Replay::new();
    let mut seen = BTreeSet::new();
    let mut refusals = 0;
    for step in steps("transition") {
        let text_of = |name: &str| step[name].as_str().unwrap();
        let flag_of = |name: &str| step[name].as_bool().unwrap();
        let (base, pool) = (text_of("base"), text_of("pool"));
        if replay.desk.state.map().pool_by_name(pool).is_none() {
            for name in [base, pool] {
                replay.desk.ok("osd pool create", json!({ "pool": name, "pg_num": 1 }));
            }
            let dirty = if flag_of("dirty") { 3 } else { 0 };
            replay.objects.insert(pool.to_owned(), (3, dirty));
        }
        let (base_id, pool_id) = (replay.desk.pool(base).0, replay.desk.pool(pool).0);
        let before = CacheMode::parse(text_of("before")).unwrap();
        let over = flag_of("overlay").then_some(pool_id);
        replay.desk.state.change_pool(base_id, |pool| {
            pool.tiering =
                Tiering { tiers: vec![pool_id], read_tier: over, write_tier: over, ..Tiering::default() };
        });
        replay.desk.state.change_pool(pool_id, |pool| {
            pool.tiering = Tiering { tier_of: Some(base_id), cache_mode: before, ..Tiering::default() };
        });
        commit(&mut replay.desk.state, replay.desk.now);
        replay.report();

        let mut args = mode(pool, text_of("after"));
        if flag_of("sure") {
            args["yes_i_really_mean_it"] = true.into();
        }
        let (code, text, _) = replay.desk.run(MODE, args);
        let recorded = (step["code"].as_i64().unwrap() as i32, text_of("text"));
        let refused = CacheMode::parse(text_of("after"))
            .filter(|_| recorded.0 == 0)
            .and_then(|after| refusal(before, after, flag_of("overlay")));
        match refused {
            Some(why) => {
                assert!(code == Errno::EBUSY.negated() && text.contains(why), "{step}: {code} {text}");
                refusals += 1;
            }
            None => assert_eq!((code, text.as_str()), recorded, "{step}"),
        }
        seen.insert((
            text_of("before").to_owned(),
            text_of("after").to_owned(),
            flag_of("dirty"),
            flag_of("sure"),
        ));
    }
    assert_eq!(seen.len(), 5 * 8 * 2 * 2, "every pair of modes, dirty or not, with the flag or without");
    assert!(refusals > 10);
}
