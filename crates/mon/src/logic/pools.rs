//! Creation, change and removal of pools. Commands check the requests; this module maintains ids and epochs.

use super::MapState;
use nacre_types::ids::PoolId;
use nacre_types::pool::Pool;
use std::sync::Arc;

impl MapState {
    /// Adds a pool under an id that was never used before, and sets its epochs.
    pub fn add_pool(&mut self, mut pool: Pool) -> PoolId {
        let id = PoolId(self.working.pool_max.0 + 1);
        let next = self.next_epoch();
        (pool.created, pool.last_change) = (next, next);
        self.working.pool_max = id;
        self.working.pgs.insert(id, Arc::new(vec![None; pool.pg_num as usize]));
        self.working.pools.insert(id, Arc::new(pool));
        self.changes.pools.insert(id);
        id
    }

    /// Changes a pool.
    ///
    /// # Panics
    /// If the pool does not exist.
    pub fn change_pool(&mut self, id: PoolId, change: impl FnOnce(&mut Pool)) {
        let next = self.next_epoch();
        let pool = self.working.pools.get_mut(&id).map(Arc::make_mut);
        let pool = pool.expect("invariant: the pool's existence was checked");
        let before = pool.clone();
        change(pool);
        if *pool != before {
            pool.last_change = next;
            self.changes.pools.insert(id);
        }
    }

    /// Removes a pool with its PGs. Its id is never used again.
    pub fn remove_pool(&mut self, id: PoolId) {
        self.working.pools.remove(&id);
        self.working.pgs.remove(&id);
        self.working.pg_upmap.retain(|pg, _| pg.pool != id);
        self.working.pg_upmap_items.retain(|pg, _| pg.pool != id);
        self.changes.pools.insert(id);
        self.changes.pgs.retain(|pg| pg.pool != id);
        self.stats.prune(&self.working);
    }
}
