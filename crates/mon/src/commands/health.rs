//! `health`, `health mute`, `health unmute`.

use super::{CommandAnswer, CommandFailure, CommandOutcome, Context, unhandled};
use crate::logic::{MapState, Mute};
use nacre_types::command::Call;

const SECOND_NS: u64 = 1_000_000_000;

impl MapState {
    pub(super) fn health_command(&mut self, call: &Call<'_>, ctx: &Context) -> CommandOutcome {
        match call.prefix() {
            "health" => {
                let detail = call.text("detail").is_some();
                let health = self.health(ctx.now);
                Ok(CommandAnswer::either(ctx, || health.json(detail), || health.text(detail, ctx.now)))
            }
            "health mute" => self.health_mute(call, ctx),
            "health unmute" => {
                match call.text("code") {
                    Some(code) => self.clear_mute(code),
                    None => {
                        let codes: Vec<String> = self.mutes().keys().cloned().collect();
                        codes.iter().for_each(|code| self.clear_mute(code));
                    }
                }
                Ok(CommandAnswer::default())
            }
            _ => unhandled(call),
        }
    }

    fn health_mute(&mut self, call: &Call<'_>, ctx: &Context) -> CommandOutcome {
        let (code, sticky) = (call.required_text("code"), call.flag("sticky"));
        let until_ns = match call.text("ttl") {
            Some(text) => Some(ctx.now.wall_ns.saturating_add(timespan_s(text)?.saturating_mul(SECOND_NS))),
            None => None,
        };
        let health = self.health(ctx.now);
        let check = health.checks.iter().find(|check| check.code == code);
        if check.is_none() && !sticky {
            return Err(CommandFailure::not_found(format!("health alert {code} is not currently raised")));
        }
        let valid = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
        if code.is_empty() || code.len() > 128 || !code.chars().all(valid) {
            return Err(CommandFailure::invalid(format!("invalid health alert code '{code}'")));
        }
        let mute = Mute {
            until_ns,
            sticky,
            summary: check.map(|check| check.summary.clone()).unwrap_or_default(),
            count: check.map_or(0, |check| check.count as u64),
        };
        self.set_mute(code, mute);
        Ok(CommandAnswer::default())
    }
}

/// Parses a duration such as `90`, `5m`, `2h` or `1d12h` into seconds (Ceph's `parse_timespan`).
fn timespan_s(text: &str) -> Result<u64, CommandFailure> {
    let invalid = |what: &str| CommandFailure::invalid(format!("invalid duration: {text} ({what})"));
    let (mut total, mut rest) = (0_u64, text.trim());
    if rest.is_empty() {
        return Err(invalid("expected digit"));
    }
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        if digits == 0 {
            return Err(invalid("expected digit"));
        }
        let number: u64 = rest[..digits].parse().map_err(|_| invalid("number too large"))?;
        rest = rest[digits..].trim_start();
        let letters = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_alphabetic()).len();
        let unit = match &rest[..letters] {
            "" | "s" | "sec" | "secs" | "second" | "seconds" => 1,
            "m" | "min" | "mins" | "minute" | "minutes" => 60,
            "h" | "hr" | "hrs" | "hour" | "hours" => 3600,
            "d" | "day" | "days" => 86_400,
            "w" | "wk" | "wks" | "week" | "weeks" => 7 * 86_400,
            "mo" | "month" | "months" => 30 * 86_400,
            "y" | "yr" | "yrs" | "year" | "years" => 365 * 86_400,
            _ => return Err(invalid("unrecognized unit")),
        };
        total = number
            .checked_mul(unit)
            .and_then(|n| n.checked_add(total))
            .ok_or_else(|| invalid("number too large"))?;
        rest = rest[letters..].trim_start();
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::super::tests::Desk;
    use crate::testing::at;
    use nacre_types::errno::Errno;
    use serde_json::json;

    #[test]
    fn a_muted_check_does_not_count_until_its_time_is_over() {
        let mut desk = Desk::busy();
        desk.ok("osd pool application enable", json!({ "pool": "p2", "app": "x" }));
        desk.ok("osd set", json!({ "key": "noscrub" }));
        desk.ok("health mute", json!({ "code": "OSDMAP_FLAGS", "ttl": "5m" }));
        assert_eq!(desk.text("health", json!({})), "HEALTH_OK (muted: OSDMAP_FLAGS(5m))\n");
        assert_eq!(
            desk.text("health", json!({ "detail": "detail" })),
            "HEALTH_OK (muted: OSDMAP_FLAGS(5m))\n(MUTED ttl 5m) [WRN] OSDMAP_FLAGS: noscrub flag(s) set\n"
        );
        let health = desk.json("health", json!({}));
        assert_eq!(
            (&health["status"], &health["checks"]["OSDMAP_FLAGS"]["muted"]),
            (&json!("HEALTH_OK"), &json!(true))
        );
        assert_eq!(health["mutes"][0]["summary"], "noscrub flag(s) set");
        assert!(
            desk.text("status", json!({}))
                .contains("health: HEALTH_OK\n            (muted: OSDMAP_FLAGS(5m))\n")
        );
        desk.now = at(301_000);
        desk.state.update_mutes(desk.now);
        assert_eq!(desk.text("health", json!({})), "HEALTH_WARN noscrub flag(s) set\n");
    }

    #[test]
    fn mutes_end_when_the_check_clears_or_worsens_unless_they_stick() {
        let mut desk = Desk::busy();
        desk.ok("osd pool application enable", json!({ "pool": "p2", "app": "x" }));
        desk.ok("osd set", json!({ "key": "noscrub" }));
        desk.ok("health mute", json!({ "code": "OSDMAP_FLAGS" }));
        desk.ok("osd set", json!({ "key": "nodeep-scrub" }));
        desk.state.update_mutes(desk.now);
        assert_eq!(desk.text("health", json!({})), "HEALTH_WARN noscrub,nodeep-scrub flag(s) set\n");
        desk.ok("health mute", json!({ "code": "OSDMAP_FLAGS", "sticky": true }));
        for key in ["noscrub", "nodeep-scrub"] {
            desk.ok("osd unset", json!({ "key": key }));
        }
        desk.state.update_mutes(desk.now);
        assert_eq!(desk.text("health", json!({})), "HEALTH_OK (muted: OSDMAP_FLAGS)\n");
        desk.ok("health unmute", json!({ "code": "OSDMAP_FLAGS" }));
        assert_eq!(desk.text("health", json!({})), "HEALTH_OK\n");
    }

    #[test]
    fn mutes_fail_with_cephs_texts() {
        let mut desk = Desk::busy();
        let mute = |code: &str, ttl: &str| json!({ "code": code, "ttl": ttl });
        desk.fails(
            "health mute",
            mute("NONESUCH", "5m"),
            Errno::ENOENT,
            "health alert NONESUCH is not currently raised",
        );
        let text = "invalid duration: xx (expected digit)";
        desk.fails("health mute", mute("POOL_APP_NOT_ENABLED", "xx"), Errno::EINVAL, text);
        desk.ok("health mute", json!({ "code": "NONESUCH", "ttl": "1d12h", "sticky": true }));
        assert!(desk.text("health", json!({})).contains("(muted: NONESUCH(36h))"));
    }
}
