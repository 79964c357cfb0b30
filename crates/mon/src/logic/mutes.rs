//! Muted health checks (`health mute`). A mute ends when its time is over, when the check clears or when it gets worse.

use super::{LogLevel, MapState, Now};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A muted check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mute {
    /// When the mute ends, in nanoseconds since 1970; `None` for never.
    pub until_ns: Option<u64>,
    /// Whether it stays when the check clears or gets worse.
    pub sticky: bool,
    /// The check's summary when it was muted.
    pub summary: String,
    /// The check's count when it was muted.
    pub count: u64,
}

/// Mutes by the codes of their checks.
pub type Mutes = BTreeMap<String, Mute>;

impl MapState {
    /// The mutes.
    pub fn mutes(&self) -> &Mutes {
        &self.mutes
    }

    pub(crate) fn set_mute(&mut self, code: &str, mute: Mute) {
        let value =
            postcard::to_extend(&mute, Vec::new()).expect("invariant: a plain structure always encodes");
        self.keys.insert(crate::keys::mute(code), Some(value));
        self.mutes.insert(code.to_owned(), mute);
    }

    pub(crate) fn clear_mute(&mut self, code: &str) {
        if self.mutes.remove(code).is_some() {
            self.keys.insert(crate::keys::mute(code), None);
        }
    }

    /// Removes mutes whose time is over, whose check has cleared, or whose check has got worse.
    pub fn update_mutes(&mut self, now: Now) {
        if self.mutes.is_empty() {
            return;
        }
        let health = self.health(now);
        let mut ended = Vec::new();
        for (code, mute) in &self.mutes {
            if mute.until_ns.is_some_and(|until| until <= now.wall_ns) {
                ended.push((code.clone(), format!("Health alert mute {code} cleared (passed TTL)")));
                continue;
            }
            let check = health.checks.iter().find(|check| check.code == *code);
            match check {
                _ if mute.sticky => {}
                None => ended
                    .push((code.clone(), format!("Health alert mute {code} cleared (health alert cleared)"))),
                Some(check) if check.count as u64 > mute.count => ended.push((
                    code.clone(),
                    format!(
                        "Health alert mute {code} cleared (count increased from {} to {})",
                        mute.count, check.count
                    ),
                )),
                Some(_) => {}
            }
        }
        for (code, text) in ended {
            self.clear_mute(&code);
            self.log.append(now, "mon", LogLevel::Info, text);
        }
    }
}
