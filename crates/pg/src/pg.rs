//! One PG on one OSD.

use crate::api::{Command, Event, LeaseView, PgQuery, Settings};
use bytes::Bytes;
use nacre_types::encoding::DecodeError;
use nacre_types::ids::{Eversion, PgId};
use nacre_types::osdmap::Member;
use nacre_types::stats::PgStats;
use std::sync::Arc;

/// One PG on one OSD.
#[derive(Debug)]
pub struct Pg {
    pg: PgId,
    me: Member,
    boot_nonce: u64,
    settings: Arc<Settings>,
}

impl Pg {
    /// A PG of which this OSD has nothing yet.
    pub fn new(pg: PgId, me: Member, boot_nonce: u64, settings: Arc<Settings>) -> Pg {
        Pg { pg, me, boot_nonce, settings }
    }

    /// A PG as its collection holds it: all of its metadata and log.
    pub fn load(
        pg: PgId,
        me: Member,
        boot_nonce: u64,
        settings: Arc<Settings>,
        _meta: &[(String, Bytes)],
        _log: Vec<(Eversion, Bytes)>,
    ) -> Result<Pg, DecodeError> {
        Ok(Pg::new(pg, me, boot_nonce, settings))
    }

    /// Takes an event and appends what to do to `out`. `now_ns` is CLOCK_BOOTTIME.
    pub fn handle(&mut self, _now_ns: u64, _leases: &dyn LeaseView, _event: Event, _out: &mut Vec<Command>) {}

    /// When to send [`Event::Tick`] at the latest; `None` while nothing waits for time.
    pub fn next_wake(&self) -> Option<u64> {
        None
    }

    /// Statistics and state, without the sums that only the store knows.
    pub fn stats(&self) -> PgStats {
        PgStats { pg: self.pg, ..PgStats::default() }
    }

    /// Whether clients' operations are served here now.
    pub fn is_active(&self) -> bool {
        false
    }

    /// What the PG knows of itself.
    pub fn query(&self) -> PgQuery {
        PgQuery {
            stats: self.stats(),
            info: crate::api::MemberInfo { boot_nonce: self.boot_nonce, ..Default::default() },
            membership: None,
            proposals: Vec::new(),
            phase: format!("{} of {:?}", self.me.osd, self.settings.mutation),
            catching_up: Vec::new(),
            blocked_by: Vec::new(),
        }
    }
}
