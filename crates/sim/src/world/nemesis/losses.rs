//! Caches that lose all copies of a PG, with changes that their bases do not have.

use super::FaultEvent;
use crate::random::Random;
use crate::schedule::{MILLI, SECOND};
use crate::world::{World, WorldEvent};
use bytes::Bytes;
use nacre_common::auth::Key;
use nacre_mon::CommandRequest;
use nacre_mon::logic::{ConnToken, MapEvent};
use nacre_pg::Mutation;
use nacre_types::caps::mon::MonCaps;
use nacre_types::ids::EntityName;
use nacre_types::msg::MonCommand;
use nacre_types::{PgId, PoolId};
use std::net::Ipv4Addr;
use std::sync::Arc;

/// The new key for commands that create an entity; the command here does not.
const NO_KEY: &str = "AQAAAAAAAAAAABAAAAAAAAAAAAAAAAAAAAAAAA==";

impl World {
    /// Wipes the disk of an OSD with the last copies of PGs of a cache. Its other PGs have other copies.
    pub(super) fn lose_cache(&mut self, random: &mut Random) -> bool {
        let first = self.any_osd(random);
        let osds = self.osds.len() as u32;
        let found = (0..osds).map(|number| (first + number) % osds).find_map(|osd| {
            let lost = self.last_copies(osd);
            (!lost.is_empty() && lost.iter().all(|pg| self.base_of(*pg).is_some())).then_some((osd, lost))
        });
        let Some((osd, lost)) = found else { return false };
        self.kill(osd, random);
        self.say(format_args!("osd.{osd} loses its disk, and caches the last copies of {lost:?}"));
        self.osds[osd as usize].wipe();
        self.schedule.after(random.range(200 * MILLI, 4 * SECOND), WorldEvent::OsdStart(osd));
        if self.nemesis.settings.breaks(Mutation::ServeLost) {
            for pg in lost {
                self.invariants.ignore_pool(pg.pool);
                self.later(SECOND, FaultEvent::MakeAgain(pg));
            }
        }
        true
    }

    /// The operator accepts the losses: the base pool's clients see its contents. Earlier answers to them were correct.
    pub(super) fn accept_losses(&mut self) {
        for pg in self.lost_pgs() {
            let Some(base) = self.base_of(pg) else { continue };
            self.history.ignore_pool(base);
            self.invariants.ignore_pool(pg.pool);
            self.later(SECOND, FaultEvent::MakeAgain(pg));
        }
    }

    /// The operator creates a PG that lost all its copies again, and repeats that until it succeeds.
    pub(super) fn recreate_pg(&mut self, pg: PgId) {
        if !self.lost_pgs().contains(&pg) {
            return;
        }
        let cmd = serde_json::json!({
            "prefix": "osd force-create-pg",
            "pgid": pg.to_string(),
            "yes_i_really_mean_it": true,
        });
        let request = CommandRequest {
            // No connection has this number: the answer is ignored.
            origin: ConnToken(0),
            entity: EntityName::client("admin"),
            peer: Ipv4Addr::LOCALHOST.into(),
            caps: Arc::new(MonCaps::parse("allow *").expect("invariant: the capabilities are well-formed")),
            command: MonCommand { tid: 0, cmd: cmd.to_string(), input: Bytes::new() },
            fresh_key: Key::from_base64(NO_KEY).expect("invariant: the key is well-formed"),
        };
        let now = self.schedule.now();
        self.with_monitor(|monitor, out| monitor.handle(now, MapEvent::Command(Box::new(request)), out));
        self.later(SECOND, FaultEvent::MakeAgain(pg));
    }

    /// The base pool of the cache that a PG belongs to, if any.
    fn base_of(&self, pg: PgId) -> Option<PoolId> {
        self.monitor.view().map.pools.get(&pg.pool)?.tiering.tier_of
    }
}
