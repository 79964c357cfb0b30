//! The state that a primary reports for its PG, and what it waits for.

use super::{Primary, PrimaryPhase};
use crate::pg::Pg;
use nacre_types::stats::pg_state;

impl Pg {
    /// Whether all copies are where CRUSH wants them, on as many OSDs as the pool's size.
    pub(crate) fn is_clean(&self) -> bool {
        let Some(primary) = &self.primary else { return false };
        let set = self.in_sync();
        primary.phase == PrimaryPhase::Active
            && primary.catching_up.is_empty()
            && primary.proposals().next().is_none()
            && self.missing.is_empty()
            && set.len() >= self.size()
            && self.up.iter().all(|osd| set.iter().any(|m| m.osd == *osd))
            // If CRUSH finds fewer OSDs than the pool's size, the required number of other members stays.
            && (!self.is_remapped() || set.len() == self.size() && !self.up.is_empty())
    }

    /// Whether there are members that CRUSH does not want.
    fn is_remapped(&self) -> bool {
        self.in_sync().iter().any(|m| !self.up.contains(&m.osd))
    }

    pub(crate) fn primary_state(&self, primary: &Primary) -> u64 {
        let set = self.in_sync();
        let live = set.iter().filter(|m| m.osd == self.me.osd || self.is_member_up(**m)).count();
        let mut state = match primary.phase {
            PrimaryPhase::Active if live >= self.min_size() => pg_state::ACTIVE,
            PrimaryPhase::Active | PrimaryPhase::Peered => pg_state::PEERED,
            PrimaryPhase::Peering => pg_state::PEERING,
        };
        if self.is_remapped() {
            state |= pg_state::REMAPPED;
        }
        if self.is_clean() {
            return state | pg_state::CLEAN;
        }
        if live < self.size() {
            state |= pg_state::UNDERSIZED;
            if primary.phase != PrimaryPhase::Peering {
                state |= pg_state::DEGRADED;
            }
        }
        state | self.recovery_state(primary)
    }

    pub(crate) fn blocked_by(&self) -> Vec<String> {
        if self.restoring.is_some() {
            let told = |osd| format!("the MapStore was restored: {osd} has not told its highest record");
            return self.unanswered_members().into_iter().map(told).collect();
        }
        let Some(primary) = &self.primary else { return Vec::new() };
        let dead = self.in_sync().iter().filter(|m| m.osd != self.me.osd && !self.is_member_up(**m));
        let mut reasons: Vec<String> =
            dead.map(|m| format!("{} is in the in-sync set but down", m.osd)).collect();
        reasons.extend(
            primary
                .lost_copies
                .iter()
                .map(|osd| format!("{osd} lacks what it must have as an in-sync member")),
        );
        if self.in_sync().len() < self.min_size() {
            reasons.push(format!(
                "{} in-sync members, min_size is {}",
                self.in_sync().len(),
                self.min_size()
            ));
        }
        if !self.exists {
            reasons.push("the primary has no copy".into());
        }
        reasons
    }
}
