//! `osd ok-to-stop` and `osd safe-to-destroy`: checks before an operator removes or stops an OSD.

use super::{CommandAnswer, CommandFailure, CommandOutcome, unhandled};
use crate::logic::MapState;
use nacre_types::command::Call;
use nacre_types::errno::Errno;
use nacre_types::ids::{OsdId, PgId};
use serde_json::json;
use std::collections::BTreeSet;

impl MapState {
    pub(super) fn osd_safety(&self, call: &Call<'_>) -> CommandOutcome {
        let words = call.texts("ids");
        let mut osds = BTreeSet::new();
        for word in &words {
            if matches!(*word, "all" | "any" | "*") {
                osds.extend(self.committed.osds.keys().copied());
                continue;
            }
            let osd: OsdId = word.parse().map_err(|_| {
                CommandFailure::invalid(format!("osd id {word} is not of the form osd.N or N"))
            })?;
            osds.insert(osd);
        }
        if osds.is_empty() {
            return Err(CommandFailure::invalid("must specify one or more OSDs"));
        }
        match call.prefix() {
            "osd ok-to-stop" => self.ok_to_stop(&osds, call.int("max")),
            "osd safe-to-destroy" => self.safe_to_destroy(&osds),
            _ => unhandled(call),
        }
    }

    /// Fails while an OSD holds PGs, for `osd destroy`.
    pub(super) fn check_safe_to_destroy(&self, osd: OsdId) -> Result<(), CommandFailure> {
        self.safe_to_destroy(&BTreeSet::from([osd])).map(drop).map_err(|failure| {
            let warning = "You can proceed by passing --force, but be warned that this will likely mean real, \
                           permanent data loss.";
            CommandFailure::new(failure.errno, format!("{} \n{warning}", failure.text))
        })
    }

    /// The PGs that stay active without these OSDs, with at least `min_size` live members of their in-sync sets, and the number
    /// of those that do not.
    fn without(&self, osds: &BTreeSet<OsdId>) -> (Vec<PgId>, usize) {
        let map = &self.committed;
        let (mut degraded, mut offline) = (Vec::new(), 0);
        for pg in map.pg_ids() {
            let Some(membership) = map.membership(pg) else { continue };
            let holds = |osd: &OsdId| membership.in_sync.iter().any(|m| m.osd == *osd);
            if !osds.iter().any(holds) {
                continue;
            }
            let live =
                membership.in_sync.iter().filter(|m| map.is_member_up(**m) && !osds.contains(&m.osd)).count();
            let min_size = map.pools.get(&pg.pool).map_or(1, |pool| pool.min_size);
            if live < min_size as usize {
                offline += 1;
            } else {
                degraded.push(pg);
            }
        }
        (degraded, offline)
    }

    /// Whether every PG stays active without these OSDs, and which further OSDs can be stopped, up to `max` in total.
    fn ok_to_stop(&self, osds: &BTreeSet<OsdId>, max: Option<i64>) -> CommandOutcome {
        let (_, offline) = self.without(osds);
        if offline > 0 {
            let text =
                format!("unsafe to stop osd(s) at this time ({offline} PGs are or would become offline)");
            return Err(CommandFailure::new(Errno::EBUSY, text));
        }
        let max = max.and_then(|max| usize::try_from(max).ok()).unwrap_or(0);
        let osds = self.most_to_stop(osds.clone(), max);
        let (degraded, offline) = self.without(&osds);
        Ok(CommandAnswer::json(json!({
            "ok_to_stop": true,
            "osds": osds.iter().map(|osd| osd.0).collect::<Vec<_>>(),
            "num_ok_pgs": degraded.len(),
            "num_not_ok_pgs": offline,
            "ok_become_degraded": degraded.iter().map(PgId::to_string).collect::<Vec<_>>(),
        })))
    }

    /// Adds OSDs that can be stopped together with these, up to `max` in total, starting with those under the nearest bucket.
    /// Stops after a bucket with an OSD that can't be stopped.
    fn most_to_stop(&self, mut osds: BTreeSet<OsdId>, max: usize) -> BTreeSet<OsdId> {
        let crush = &self.committed.crush;
        let mut at = osds.first().map_or(0, |osd| osd.0 as i32);
        while let Some(parent) = crush.parents(at).find(|bucket| !crush.is_shadow(bucket.id)) {
            at = parent.id;
            let mut all = true;
            let below: BTreeSet<OsdId> =
                crush.devices_below(at).into_iter().map(|id| OsdId(id as u32)).collect();
            for osd in below {
                if osds.len() >= max {
                    return osds;
                }
                if self.committed.is_up(osd) && osds.insert(osd) && self.without(&osds).1 > 0 {
                    osds.remove(&osd);
                    all = false;
                }
            }
            if !all {
                break;
            }
        }
        osds
    }

    /// Whether no PG has, or may have, data on these OSDs that is not complete elsewhere.
    fn safe_to_destroy(&self, osds: &BTreeSet<OsdId>) -> CommandOutcome {
        let map = &self.committed;
        let (mut safe, mut busy) = (Vec::new(), Vec::new());
        for osd in osds {
            let Some(info) = map.osds.get(osd) else {
                safe.push(osd.0);
                continue;
            };
            let involved = |pg: &PgId| {
                map.membership(*pg).is_some_and(|m| m.in_sync.iter().any(|member| member.osd == *osd))
            };
            let count = map.pg_ids().filter(involved).count();
            let whole = map.pg_ids().all(|pg| {
                let size = map.pools.get(&pg.pool).map_or(0, |pool| pool.size as usize);
                map.membership(pg).is_some_and(|m| {
                    m.in_sync.iter().filter(|m| m.osd != *osd && map.is_member_up(**m)).count() >= size
                })
            });
            // The strays of an OSD that is down are unknown. If every PG is complete elsewhere, they are not needed.
            if count == 0 && (info.up || whole) {
                safe.push(osd.0);
            } else {
                busy.push((osd.0, count));
            }
        }
        if busy.is_empty() {
            let text =
                format!("OSD(s) {} are safe to destroy without reducing data durability.", join(&safe));
            let json =
                json!({ "safe_to_destroy": safe, "active": [], "missing_stats": [], "stored_pgs": [] });
            return Ok(CommandAnswer::json(json).with_status(text));
        }
        let pgs: usize = busy.iter().map(|(_, count)| count).sum();
        let ids: Vec<u32> = busy.iter().map(|(osd, _)| *osd).collect();
        let text = if pgs > 0 {
            format!("OSD(s) {} have {pgs} pgs currently mapped to them.", join(&ids))
        } else {
            format!(
                "OSD(s) {} have no reported stats, and not all PGs are active+clean; we cannot draw any conclusions.",
                join(&ids)
            )
        };
        Err(CommandFailure::new(if pgs > 0 { Errno::EBUSY } else { Errno::EAGAIN }, text))
    }
}

fn join(osds: &[u32]) -> String {
    osds.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::super::tests::Desk;
    use super::*;

    #[test]
    fn stopping_is_fine_while_enough_members_stay() {
        let mut desk = Desk::busy();
        let answer: serde_json::Value =
            serde_json::from_str(&desk.text("osd ok-to-stop", json!({ "ids": ["0"], "format": "json" })))
                .unwrap();
        assert_eq!(
            (answer["ok_to_stop"].as_bool(), answer["num_not_ok_pgs"].as_u64()),
            (Some(true), Some(0))
        );
        assert!(answer["num_ok_pgs"].as_u64().unwrap() > 0);
        let (code, text, _) = desk.run("osd ok-to-stop", json!({ "ids": ["0", "osd.1"] }));
        assert_eq!(code, Errno::EBUSY.negated());
        assert!(text.starts_with("unsafe to stop osd(s) at this time ("), "{text}");
        assert_eq!(desk.run("osd ok-to-stop", json!({ "ids": ["x"] })).0, Errno::EINVAL.negated());
    }

    #[test]
    fn as_many_osds_are_named_as_can_be_stopped_together() {
        let mut desk = Desk::new();
        desk.ok("osd pool create", json!({ "pool": "p", "pg_num": 8 }));
        desk.ok("osd pool set", json!({ "pool": "p", "var": "min_size", "val": "1" }));
        desk.create_pgs();
        for (max, expected) in [(-1, json!([1])), (1, json!([1])), (2, json!([0, 1])), (9, json!([0, 1]))] {
            let answer = desk.json("osd ok-to-stop", json!({ "ids": ["1"], "max": max }));
            assert_eq!(answer["osds"], expected, "{max}");
            assert_eq!((&answer["num_ok_pgs"], &answer["num_not_ok_pgs"]), (&json!(8), &json!(0)));
        }
        let (code, _, _) = desk.run("osd ok-to-stop", json!({ "ids": ["0", "1", "2"], "max": 9 }));
        assert_eq!(code, Errno::EBUSY.negated());
    }

    #[test]
    fn an_osd_that_holds_pgs_is_not_safe_to_destroy() {
        let mut desk = Desk::busy();
        let (code, text, _) = desk.run("osd safe-to-destroy", json!({ "ids": ["1"] }));
        assert_eq!(code, Errno::EBUSY.negated());
        assert!(text.contains("pgs currently mapped to them"), "{text}");
        let (status, _) = Desk::new().ok("osd safe-to-destroy", json!({ "ids": ["1"] }));
        assert_eq!(status, "OSD(s) 1 are safe to destroy without reducing data durability.");
    }
}
