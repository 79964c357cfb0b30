//! Decoders with damaged input, and the map's invariants after edits.

use super::{
    BucketAlg, BucketBody, ChooseArg, ChooseArgs, CrushDecodeError, CrushError, CrushMap,
    DEFAULT_CHOOSE_ARGS, ITEM_NONE, Location, Rule, RuleType, Step, StepOp, WEIGHT_ONE,
};
use proptest::prelude::*;

fn loc(pairs: &[(&str, &str)]) -> Location {
    pairs.iter().map(|(kind, name)| (kind.to_string(), name.to_string())).collect()
}

/// Two racks of two hosts of two devices, alternately hdd and ssd, with weight sets and one rule per mode.
fn sample() -> CrushMap {
    let mut map = CrushMap::new_cluster("host").unwrap();
    for osd in 0..8 {
        let (host, rack) = (format!("host{}", osd / 2), format!("rack{}", osd / 4));
        let at = loc(&[("root", "default"), ("rack", &rack), ("host", &host)]);
        map.insert_item(osd, WEIGHT_ONE, &format!("osd.{osd}"), &at).unwrap();
        map.set_device_class(osd, if osd % 2 == 0 { "hdd" } else { "ssd" }).unwrap();
    }
    map.add_simple_rule("ec", "default", "osd", Some("ssd"), false, RuleType::Erasure).unwrap();
    let mut args = ChooseArgs::default();
    for name in ["host0", "rack0", "default"] {
        let bucket = map.bucket(map.item_id(name).unwrap()).unwrap();
        let weights: Vec<u32> = bucket.weighted_items().map(|(_, weight)| weight).collect();
        let arg = ChooseArg { weight_set: vec![weights.clone(), weights], ids: bucket.items.clone() };
        args.set(!bucket.id as usize, arg);
    }
    map.set_choose_args(DEFAULT_CHOOSE_ARGS, args).unwrap();
    // Gives the shadows their weight sets, as every edit does.
    map.rebuild_class_roots().unwrap();
    map
}

/// Weights are sums at all levels, shadows contain exactly their class, weight sets fit.
fn check_invariants(map: &CrushMap) {
    for bucket in map.buckets() {
        let sum: u32 = bucket.weighted_items().map(|(_, weight)| weight).sum();
        assert_eq!(bucket.weight, sum, "weight of {:?}", map.item_name(bucket.id));
        for (item, weight) in bucket.weighted_items().filter(|(item, _)| *item < 0) {
            assert_eq!(weight, map.bucket(item).unwrap().weight, "{:?} in its parent", map.item_name(item));
        }
    }
    for root in map.roots(false) {
        for (class, name) in map.class_names() {
            let shadow = map.class_bucket(root, class).expect("every root has a shadow per class");
            let mut expected: Vec<i32> =
                map.devices_below(root).into_iter().filter(|d| map.device_class(*d) == Some(name)).collect();
            let mut held = map.devices_below(shadow);
            expected.sort_unstable();
            held.sort_unstable();
            assert_eq!(held, expected, "class {name} below {:?}", map.item_name(root));
        }
    }
    assert_eq!(CrushMap::decode(&map.encode()).as_ref(), Ok(map));
}

#[test]
fn new_cluster_has_cephs_types_root_and_rule() {
    let map = CrushMap::new_cluster("osd").unwrap();
    assert_eq!(map.type_id("root"), Some(11));
    assert_eq!(map.bucket(-1).unwrap().alg(), BucketAlg::Straw2);
    let rule = map.rule(map.rule_id("replicated_rule").unwrap()).unwrap();
    assert_eq!(rule.steps, [Step::take(-1), Step::choose(StepOp::ChooseFirstn, 0, 0), Step::emit()]);
    check_invariants(&map);
}

#[test]
fn edits_keep_weights_shadows_and_weight_sets_in_step() {
    let mut map = sample();
    check_invariants(&map);
    let shadow_before = map.class_bucket(-1, map.class_id("ssd").unwrap());

    map.reweight_item("osd.0", 3 * WEIGHT_ONE).unwrap();
    check_invariants(&map);
    assert_eq!(map.bucket(-1).unwrap().weight, 10 * WEIGHT_ONE);

    map.move_item("host1", &loc(&[("root", "default"), ("rack", "rack1")])).unwrap();
    check_invariants(&map);
    assert_eq!(map.full_location(2), loc(&[("root", "default"), ("rack", "rack1"), ("host", "host1")]));

    assert!(!map.create_or_move_item(2, 9, "osd.2", &loc(&[("host", "host1")])).unwrap());
    assert!(map.create_or_move_item(2, 9, "osd.2", &loc(&[("host", "host0")])).unwrap());
    assert_eq!(map.item_weight(2), Some(WEIGHT_ONE), "a move keeps the weight");
    check_invariants(&map);

    assert!(map.update_item(2, 7, "osd.2", &loc(&[("host", "host0")])).unwrap());
    assert_eq!(map.item_weight(2), Some(7));
    check_invariants(&map);

    map.remove_item("osd.5").unwrap();
    map.rename_bucket("rack1", "row-of-racks").unwrap();
    check_invariants(&map);
    map.reweight_subtree("row-of-racks", 2 * WEIGHT_ONE).unwrap();
    check_invariants(&map);
    assert_eq!(map.class_bucket(-1, map.class_id("ssd").unwrap()), shadow_before, "shadows keep their ids");
    for (_, args) in map.choose_args() {
        for (slot, arg) in args.iter() {
            let size = map.bucket(!(slot as i32)).unwrap().items.len();
            assert!(arg.weight_set.iter().all(|weights| weights.len() == size) && arg.ids.len() <= size);
        }
    }
}

#[test]
fn refused_edits_say_why_and_change_nothing() {
    let mut map = sample();
    let before = map.clone();
    let host0 = loc(&[("host", "host0")]);
    assert!(matches!(map.remove_item("host0"), Err(CrushError::NotEmpty(_))));
    assert!(matches!(map.remove_item("nothing"), Err(CrushError::NotFound(_))));
    assert!(matches!(map.move_item("rack0", &host0), Err(CrushError::Loop(_))));
    map.add_empty_bucket("chassis0", "chassis", &loc(&[])).unwrap();
    let with_chassis = map.clone();
    map.link_bucket("chassis0", &loc(&[("rack", "rack0")])).unwrap();
    assert!(matches!(map.link_bucket("chassis0", &loc(&[("rack", "rack0")])), Err(CrushError::Exists(_))));
    map = with_chassis;
    map.remove_item("chassis0").unwrap();
    assert_eq!(map, before);
    assert!(matches!(map.insert_item(9, 1, "osd 9", &host0), Err(CrushError::Invalid(_))));
    assert!(matches!(map.insert_item(9, 1, "osd.1", &host0), Err(CrushError::Exists(_))));
    assert!(matches!(map.insert_item(9, u32::MAX, "osd.9", &host0), Err(CrushError::OutOfRange(_))));
    assert!(matches!(map.insert_item(9, 1, "osd.9", &loc(&[("house", "x")])), Err(CrushError::Invalid(_))));
    assert!(matches!(map.set_device_class(1, "hdd"), Err(CrushError::InUse(_))));
    assert!(matches!(map.reweight_item("rack0", 1), Err(CrushError::Invalid(_))));
    let same =
        |map: &mut CrushMap| map.add_simple_rule("ec", "default", "", None, true, RuleType::Replicated);
    assert!(matches!(same(&mut map), Err(CrushError::Exists(_))));
    assert_eq!(map, before);
}

#[test]
fn a_bucket_never_lands_below_itself() {
    let mut map = CrushMap::new_cluster("osd").unwrap();
    map.add_empty_bucket("a", "rack", &loc(&[])).unwrap();
    map.add_empty_bucket("b", "room", &loc(&[])).unwrap();
    map.link_bucket("a", &loc(&[("room", "b")])).unwrap();
    assert!(matches!(map.move_item("b", &loc(&[("rack", "a")])), Err(CrushError::Loop(_))));
    assert!(matches!(map.move_item("b", &loc(&[("room", "b")])), Err(CrushError::Loop(_))));

    // In the binary form: bucket a contains b, which contains a.
    let (a, b) = (map.item_id("a").unwrap(), map.item_id("b").unwrap());
    let mut looped = map.clone();
    let bucket = looped.bucket_mut(a).unwrap();
    bucket.items.push(b);
    bucket.body = BucketBody::Straw2 { item_weights: vec![0] };
    let bytes = looped.encode();
    assert!(matches!(CrushMap::decode(&bytes), Err(CrushDecodeError::Corrupt(why)) if why.contains("cycle")));
    // Mapping still terminates.
    let steps = vec![Step::take(b), Step::choose(StepOp::ChooseFirstn, 3, 0), Step::emit()];
    let rule = Rule { ruleset: 9, kind: RuleType::Replicated, min_size: 1, max_size: 9, steps };
    looped.add_rule(9, "loop", rule).unwrap();
    assert!(looped.do_rule(9, 1, 3, &[WEIGHT_ONE; 4], None).is_empty());
}

#[test]
fn indep_leaves_holes_where_devices_are_missing() {
    let map = sample();
    let rule = map.rule_id("ec").unwrap();
    let weights = vec![WEIGHT_ONE; 8];
    let mapped = map.do_rule(rule, 7, 6, &weights, None);
    assert_eq!(mapped.iter().filter(|item| **item == ITEM_NONE).count(), 2, "{mapped:?}");
    assert!(mapped.iter().all(|item| *item == ITEM_NONE || item % 2 == 1), "{mapped:?}");
}

#[test]
fn removing_the_last_device_of_a_class_forgets_it_unless_a_rule_takes_it() {
    let mut map = sample();
    for osd in 0..8 {
        map.remove_device_class(osd).unwrap();
    }
    assert_eq!(map.class_id("hdd"), None);
    assert!(map.class_id("ssd").is_some(), "the rule ec takes it");
    map.remove_rule("ec").unwrap();
    assert_eq!(map.class_id("ssd"), None);
    assert!(map.buckets().all(|b| !map.is_shadow(b.id)));
}

#[test]
fn compile_errors_name_the_line() {
    for (text, line, why) in [
        ("device 0 osd.0\n\ndevice 0 osd.0\n", 3, "defined twice"),
        ("tunable nonsense 1\n", 1, "not recognized"),
        ("type 1 host\nhost a {\n id -1\n alg foo\n}\n", 4, "unknown bucket alg"),
        ("type 1 host\nhost a {\n id -1\n item b\n}\n", 4, "parse error at 'item b'"),
        ("type 1 host\nhost a {\n alg straw2\n item b\n}\n", 4, "is not defined"),
        ("type 1 host\nhost a {\n alg straw2\n", 3, "parse error at ''"),
        ("rule r {\n id 0\n type replicated\n min_size 1\n max_size 2\n step take x\n}\n", 6, "not defined"),
        ("rule r {\n id 999\n type replicated\n", 2, "out of range"),
    ] {
        let error = CrushMap::compile(text).unwrap_err();
        assert!(error.line == line && error.message.contains(why), "{text:?} gives {error:?}");
    }
}

#[test]
fn every_truncation_is_an_error_or_an_older_release() {
    let bytes = sample().encode();
    let mut older = 0;
    for cut in 0..bytes.len() {
        match CrushMap::decode(&bytes[..cut]) {
            Err(CrushDecodeError::CutShort(_) | CrushDecodeError::BadMagic) => {}
            Ok(map) => {
                older += 1;
                assert!(map.choose_args.is_empty(), "cut at {cut}");
            }
            Err(other) => panic!("cut at {cut}: {other}"),
        }
    }
    assert_eq!(older, 8, "one end per generation of the format");
}

#[test]
fn nesting_is_bounded() {
    let nested = |levels: usize| {
        let mut text = String::from("type 1 box\nbox b0 {\n alg straw2\n}\n");
        (1..levels).for_each(|at| text += &format!("box b{at} {{\n alg straw2\n item b{}\n}}\n", at - 1));
        CrushMap::compile(&text)
    };
    let deepest = nested(128).unwrap();
    assert_eq!(CrushMap::decode(&deepest.encode()), Ok(deepest));
    assert!(nested(129).unwrap_err().message.contains("nested"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_decode_or_fail(bytes in proptest::collection::vec(any::<u8>(), 0..400), magic in any::<bool>()) {
        let mut input = if magic { super::codec::MAGIC.to_le_bytes().to_vec() } else { Vec::new() };
        input.extend(bytes);
        if let Ok(map) = CrushMap::decode(&input) {
            prop_assert_eq!(CrushMap::decode(&map.encode()), Ok(map));
        }
    }

    #[test]
    fn a_damaged_map_is_refused_or_usable(
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        x in any::<u32>(),
    ) {
        let mut bytes = sample().encode();
        for (at, value) in damage {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Ok(mut map) = CrushMap::decode(&bytes) {
            prop_assert_eq!(&CrushMap::decode(&map.encode()).unwrap(), &map);
            let _ = map.decompile();
            // Retry counts may be huge, which is slow but not wrong.
            map.tunables.choose_total_tries %= 100;
            map.tunables.choose_local_tries %= 100;
            map.tunables.choose_local_fallback_tries %= 100;
            let small = |rule: &&Rule| rule.steps.iter().all(|step| step.arg1 < 200);
            let rules: Vec<u32> = map.rules().filter(|(_, rule)| small(rule)).map(|(id, _)| id).collect();
            for rule in rules {
                let mapped = map.do_rule(rule, x, 4, &[WEIGHT_ONE; 9], map.choose_args_with_fallback(1));
                prop_assert!(mapped.len() <= 4);
            }
        }
    }

    #[test]
    fn any_text_compiles_or_fails(words in proptest::collection::vec(0..WORDS.len(), 0..60)) {
        let text: Vec<&str> = words.into_iter().map(|word| WORDS[word]).collect();
        if let Ok(map) = CrushMap::compile(&text.join(" ")) {
            prop_assert_eq!(CrushMap::decode(&map.encode()).map(|m| m.decompile()), Ok(map.decompile()));
        }
    }

    #[test]
    fn damaged_text_compiles_or_fails(at in any::<prop::sample::Index>(), with in "[ -~\n]{0,6}", cut in 0..8_usize) {
        let text = sample().decompile();
        let start = at.index(text.len());
        let end = (start + cut).min(text.len());
        let _ = CrushMap::compile(&format!("{}{with}{}", &text[..start], &text[end..]));
    }
}

const WORDS: [&str; 36] = [
    "tunable",
    "choose_total_tries",
    "device",
    "0",
    "1",
    "-1",
    "-2",
    "7",
    "osd.0",
    "class",
    "ssd",
    "type",
    "host",
    "root",
    "{",
    "}",
    "[",
    "]",
    "id",
    "alg",
    "straw2",
    "uniform",
    "tree",
    "hash",
    "item",
    "weight",
    "2.5",
    "pos",
    "rule",
    "step",
    "take",
    "emit",
    "choose_args",
    "bucket_id",
    "weight_set",
    "\n",
];
