//! How far each pool variable of Ceph is supported.

use super::{CRUSH_RULESET, EC_VARS, FLAGS, OPTIONS, PLAIN_VARS, TIER_VARS};
use nacre_types::support_level::SupportLevel::{self, Advisory, Partial, Refused};

const NO_SCRUB: &str = "there is no scrub; reads and recovery verify checksums";
const NO_DEDUP: &str = "there is no deduplication";
const NO_AUTOSCALER: &str = "a hint for the PG autoscaler, which Nacre does not have";

/// Variables that are not fully supported, besides those of tiers and of erasure-coded pools.
const EXCEPTIONS: &[(&str, SupportLevel)] = &[
    ("pg_num", Partial("set when the pool is created; PGs are not split or merged")),
    ("write_fadvise_dontneed", Advisory("a hint for caches")),
    ("noscrub", Advisory("there is no scrub to forbid")),
    ("nodeep-scrub", Advisory("there is no scrub to forbid")),
    ("use_gmt_hitset", Partial("true only, as in Ceph: hit sets go by UTC")),
    ("pg_autoscale_mode", Partial("off only: there is no PG autoscaler")),
    ("bulk", Advisory(NO_AUTOSCALER)),
    ("scrub_min_interval", Refused(NO_SCRUB)),
    ("scrub_max_interval", Refused(NO_SCRUB)),
    ("deep_scrub_interval", Refused(NO_SCRUB)),
    ("scrub_priority", Refused(NO_SCRUB)),
    ("recovery_op_priority", Refused("recovery is bounded by osd_recovery_max_active and osd_max_backfills")),
    ("fingerprint_algorithm", Refused(NO_DEDUP)),
    ("pg_num_min", Advisory(NO_AUTOSCALER)),
    ("pg_num_max", Advisory(NO_AUTOSCALER)),
    ("target_size_bytes", Advisory(NO_AUTOSCALER)),
    ("target_size_ratio", Advisory(NO_AUTOSCALER)),
    ("pg_autoscale_bias", Advisory(NO_AUTOSCALER)),
    ("dedup_tier", Refused(NO_DEDUP)),
    ("dedup_chunk_algorithm", Refused(NO_DEDUP)),
    ("dedup_cdc_chunk_size", Refused(NO_DEDUP)),
];

/// The support of the variable `name`.
pub(super) fn of(name: &str) -> SupportLevel {
    if EC_VARS.contains(&name) {
        return Refused("there are no erasure-coded pools (EINVAL, as on Ceph's replicated pools)");
    }
    EXCEPTIONS
        .iter()
        .find(|(variable, _)| *variable == name)
        .map_or(SupportLevel::Full, |(_, support)| *support)
}

/// All variables of `osd pool set`, with their support.
pub fn variables() -> Vec<(&'static str, SupportLevel)> {
    let flags = FLAGS.iter().map(|(name, _)| *name);
    let options = OPTIONS.iter().map(|(name, _)| *name);
    let names = PLAIN_VARS.iter().copied().chain([CRUSH_RULESET]).chain(flags);
    let names = names.chain(["fast_read", "pg_autoscale_mode", "bulk"]).chain(options);
    let names =
        names.chain(["use_gmt_hitset"]).chain(TIER_VARS.iter().copied()).chain(EC_VARS.iter().copied());
    names.map(|name| (name, of(name))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::super::tests::Desk;
    use super::*;
    use nacre_types::errno::Errno;
    use serde_json::json;

    /// A value that Ceph accepts.
    fn value(name: &str) -> &'static str {
        match name {
            "crush_rule" => "replicated_rule",
            "crush_ruleset" | "fast_read" => "0",
            "size" | "min_size" => "2",
            "pg_num" | "pgp_num" => "8",
            "pg_autoscale_mode" => "off",
            "compression_mode" => "force",
            "compression_algorithm" => "zstd",
            "csum_type" => "crc32c",
            "fingerprint_algorithm" => "sha1",
            "dedup_tier" => "p1",
            "dedup_chunk_algorithm" => "fastcdc",
            "hit_set_type" => "bloom",
            "erasure_code_profile" => "default",
            "allow_ec_overwrites" => "true",
            _ => "1",
        }
    }

    #[test]
    fn variables_behave_as_the_table_says() {
        let mut desk = Desk::busy();
        desk.ok("osd pool create", json!({ "pool": "p3", "pg_num": 4 }));
        desk.ok("osd tier add", json!({ "pool": "p1", "tierpool": "p3" }));
        desk.ok("osd pool set", json!({ "pool": "p3", "var": "hit_set_type", "val": "bloom" }));
        assert!(EXCEPTIONS.iter().all(|(name, _)| variables().iter().any(|(known, _)| known == name)));
        for (name, support) in variables() {
            let of_tier = TIER_VARS.contains(&name) || name == "use_gmt_hitset";
            let (pool, id) = if of_tier { ("p3", 3) } else { ("p1", 1) };
            let set = json!({ "pool": pool, "var": name, "val": value(name), "yes_i_really_mean_it": true });
            let (code, text, _) = desk.run("osd pool set", set);
            match support {
                Refused(reason) => {
                    let expected = match name {
                        _ if EC_VARS.contains(&name) => Errno::EINVAL,
                        _ => Errno::EOPNOTSUPP,
                    };
                    assert_eq!(code, expected.negated(), "{name}: {text}");
                    let named = format!("{name} is not supported: {reason}");
                    assert!(expected != Errno::EOPNOTSUPP || text == named, "{text}");
                }
                _ => {
                    assert_eq!((code, text), (0, format!("set pool {id} {name} to {}", value(name))));
                    let shown = desk.text("osd pool get", json!({ "pool": pool, "var": name }));
                    assert!(shown.starts_with(&format!("{name}: ")), "{shown}");
                }
            }
        }
        // Values that turn a function off are accepted, so that scripts which unset a variable work.
        for name in ["scrub_min_interval", "recovery_op_priority"] {
            desk.ok("osd pool set", json!({ "pool": "p1", "var": name, "val": "0" }));
        }
    }
}
