//! `--check`: finds rules that apply to the same pools, and items without names or types.

use nacre_crush::CrushMap;
use std::collections::{BTreeMap, BTreeSet};

/// Sizes for which several rules of one ruleset and type apply, each with the rules' names, as `crushtool` prints them.
pub(super) fn overlapping_rules(map: &CrushMap) -> Vec<String> {
    let mut served: BTreeMap<(u8, u8), BTreeMap<u8, BTreeSet<&str>>> = BTreeMap::new();
    for (id, rule) in map.rules() {
        let sizes = served.entry((rule.ruleset, rule.kind.number())).or_default();
        for size in rule.min_size..=rule.max_size {
            sizes.entry(size).or_default().insert(map.rule_name(id).unwrap_or_default());
        }
    }
    let mut lines = Vec::new();
    for ((ruleset, _), sizes) in served {
        let mut before: Option<(u8, BTreeSet<&str>)> = None;
        for (size, rules) in sizes {
            let goes_on = before
                .as_ref()
                .is_some_and(|(last, same)| last.checked_add(1) == Some(size) && *same == rules);
            if rules.len() > 1 && !goes_on {
                let names: Vec<&str> = rules.iter().copied().collect();
                lines.push(format!("overlapped rules in ruleset {ruleset}: {}", names.join(", ")));
            }
            before = Some((size, rules));
        }
    }
    lines
}

/// Checks that all items below the roots have names, types and, if `max_id` is above 0, device ids below it.
pub(super) fn names(map: &CrushMap, max_id: i64) -> Result<(), String> {
    for item in map.tree(true) {
        let type_id = match map.bucket(item.id) {
            Some(_) if map.item_name(item.id).is_none() => {
                return Err(format!("unknown item name: item#{}", item.id));
            }
            Some(bucket) => i32::from(bucket.type_id),
            None if max_id > 0 && i64::from(item.id) >= max_id => {
                return Err(format!("item id too large: item#{}", item.id));
            }
            None => 0,
        };
        if map.type_name(type_id).is_none() {
            return Err(format!("unknown type name: item#{}", item.id));
        }
    }
    // Stray devices are also listed by their type.
    if map.type_name(0).is_none() { Err("unknown type name: item#0".to_owned()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_crush::{Rule, RuleType, Step};

    #[test]
    fn sizes_with_several_rules_are_reported_by_ruleset() {
        let mut map = CrushMap::empty();
        for (id, name, ruleset, sizes) in
            [(0, "z", 0, (1, 5)), (1, "b", 0, (5, 10)), (2, "c", 0, (3, 8)), (3, "other", 1, (1, 10))]
        {
            let (min_size, max_size) = sizes;
            let steps = vec![Step::emit()];
            let rule = Rule { ruleset, kind: RuleType::Replicated, min_size, max_size, steps };
            map.add_rule(id, name, rule).unwrap();
        }
        let lines = overlapping_rules(&map);
        assert_eq!(
            lines,
            [
                "overlapped rules in ruleset 0: c, z",
                "overlapped rules in ruleset 0: b, c, z",
                "overlapped rules in ruleset 0: b, c",
            ]
        );
    }
}
