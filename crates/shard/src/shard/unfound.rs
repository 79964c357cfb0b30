//! Unfound objects (R10): the primary's list of them, and their removal when an operator gives them up.

use super::Shard;
use nacre_types::ids::{Eversion, PgId};
use nacre_types::object::ObjectId;
use nacre_types::op::Op;

impl Shard {
    /// The unfound objects of a PG in order, with the versions that are needed; `None` if this OSD is not its active primary.
    pub fn unfound(&self, pg: PgId) -> Option<Vec<(ObjectId, Eversion)>> {
        let hosted = self.slots[*self.by_pg.get(&pg)? as usize].as_ref()?;
        Some(hosted.machine.unfound()?.map(|(object, needed)| (object.clone(), needed)).collect())
    }

    /// Starts to remove the unfound objects of a PG.
    pub(super) fn remove_unfound(&mut self, pg: PgId) {
        let (Some(unfound), Some(slot)) = (self.unfound(pg), self.by_pg.get(&pg).copied()) else { return };
        for (object, needed) in unfound {
            tracing::warn!(%pg, %object, version = %needed, "an unfound object is given up");
            self.submit_internal_change(slot, object, Op::Remove, Self::INTERNAL_REQID.client);
        }
    }
}
