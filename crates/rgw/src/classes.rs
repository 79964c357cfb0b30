//! Storage classes: the pool of an object's data. Heads are always in the pool of STANDARD.
//!
//! The zone names the pool of each class ([`crate::zone`]). Before a gateway writes into a class, it marks the class as
//! used, by compare-and-swap of the zone's record. From then on, the class keeps its pool. So a gateway may cache the pools
//! of classes that it has seen marked. The name of tails contains their class, so every record that references data names
//! the class, too.

use crate::error::{Error, Result};
use crate::gateway::Gateway;
use crate::object::{DataLocation, Head};
use crate::pools;
use crate::record;
use crate::zone::{ZONE, Zone};
use nacre_client::IoCtx;
use parking_lot::RwLock;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The pools of classes that are in use, by the classes' names. A zone has a bounded number of classes.
#[derive(Clone, Default)]
pub(crate) struct ClassPools(Arc<RwLock<BTreeMap<String, IoCtx>>>);

/// A pool that contains objects' data, and the storage classes whose data is there; the empty name is STANDARD.
pub(crate) struct DataPool {
    pub(crate) pool: IoCtx,
    classes: BTreeSet<String>,
}

impl DataPool {
    /// Whether it contains the heads.
    pub(crate) fn has_heads(&self) -> bool {
        self.classes.contains("")
    }

    /// Whether it is the pool of these tails.
    pub(crate) fn has_tails(&self, run: &str) -> bool {
        self.classes.contains(nacre_index::record::class_of(run))
    }
}

impl Gateway {
    /// Returns the pool for new data in a storage class, which is empty for STANDARD. Creates a missing pool when the first
    /// data of the class is written. Fails with [`Error::NoSuchStorageClass`] if the zone has no pool for that class.
    pub(crate) async fn pool_for_write(&self, class: &str) -> Result<IoCtx> {
        if let Some(pool) = self.cached_pool(class) {
            return Ok(pool);
        }
        let none = || Error::NoSuchStorageClass(class.to_owned());
        let zone = Zone::open(&self.pools.root, false).await?;
        let stored = zone.class(class).ok_or_else(none)?;
        let pool = stored.data_pool.clone().ok_or_else(none)?;
        if stored.used {
            return self.cache_pool(class, self.cluster.open_pool(&pool).await?);
        }
        let opened = pools::open_or_create(&self.cluster, &pool).await?;
        let mark = |zone: &mut Zone| match zone.class_mut(class) {
            Some(found) if found.data_pool.as_ref() == Some(&pool) => {
                found.used = true;
                Ok(())
            }
            // The pool was changed since the zone was read; the next request reads the new one.
            Some(_) => Err(Error::Contended(ZONE.to_owned())),
            None => Err(none()),
        };
        record::update(&self.pools.root, ZONE, mark).await?.ok_or_else(none)?;
        self.cache_pool(class, opened)
    }

    /// Fails with [`Error::NoSuchStorageClass`] if the zone has no pool for a class.
    pub async fn check_class(&self, class: &str) -> Result<()> {
        if self.cached_pool(class).is_some() {
            return Ok(());
        }
        let zone = Zone::open(&self.pools.root, false).await?;
        let has_pool = zone.class(class).is_some_and(|stored| stored.data_pool.is_some());
        if has_pool { Ok(()) } else { Err(Error::NoSuchStorageClass(class.to_owned())) }
    }

    /// Returns the pool that contains the data in a storage class, which is empty for STANDARD.
    pub(crate) async fn pool_for_read(&self, class: &str) -> Result<IoCtx> {
        if let Some(pool) = self.cached_pool(class) {
            return Ok(pool);
        }
        let zone = Zone::open(&self.pools.root, false).await?;
        let stored = zone.class(class).and_then(|stored| Some((stored.data_pool.clone()?, stored.used)));
        let Some((pool, used)) = stored else {
            let detail = format!("{class} has no pool in the zone: data in it can't be reached");
            return Err(Error::Internal { what: "the storage class of data", detail });
        };
        let pool = self.cluster.open_pool(&pool).await?;
        if used { self.cache_pool(class, pool) } else { Ok(pool) }
    }

    /// Returns the pool that contains the data of an object, as far as it is not in the head.
    pub(crate) async fn data_pool(&self, head: &Head) -> Result<IoCtx> {
        match head.data {
            // There is no such data, so the zone need not be read.
            DataLocation::Inline => Ok(self.pools.data.clone()),
            DataLocation::Tails(_) | DataLocation::Parts(_) => self.pool_for_read(&head.class).await,
        }
    }

    /// Returns all pools that contain objects' data.
    pub(crate) async fn data_pools(&self) -> Result<Vec<DataPool>> {
        let standard = DataPool { pool: self.pools.data.clone(), classes: [String::new()].into() };
        let mut all = vec![standard];
        let zone = Zone::open(&self.pools.root, false).await?;
        for (class, name) in zone.class_pools() {
            let pool = match self.cluster.open_pool(name).await {
                // Nothing was written into the class.
                Err(error) if error.is_not_found() => continue,
                pool => pool?,
            };
            match all.iter_mut().find(|known| known.pool.pool() == pool.pool()) {
                Some(known) => drop(known.classes.insert(class.to_owned())),
                None => all.push(DataPool { pool, classes: [class.to_owned()].into() }),
            }
        }
        Ok(all)
    }

    fn cached_pool(&self, class: &str) -> Option<IoCtx> {
        if class.is_empty() {
            return Some(self.pools.data.clone());
        }
        self.pools.classes.0.read().get(class).cloned()
    }

    fn cache_pool(&self, class: &str, pool: IoCtx) -> Result<IoCtx> {
        self.pools.classes.0.write().insert(class.to_owned(), pool.clone());
        Ok(pool)
    }
}
