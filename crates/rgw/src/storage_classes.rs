//! Storage classes: the pool of an object's data. Heads are always in the pool of STANDARD.
//!
//! The zone names the pool of each class ([`crate::zone`]). Before a gateway writes into a class, it marks the class as
//! used, by compare-and-swap of the zone's record. From then on, the class keeps its pool. So a gateway may cache the pools
//! of classes that it has seen marked. The name of tails contains their class, so every record that references data names
//! the class, too.

use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::pool_creation::open_or_create;
use crate::record;
use crate::zone::{ZONE, Zone};
use nacre_client::IoCtx;
use parking_lot::RwLock;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

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
        self.classes.contains(nacre_index::record::storage_class_of(run))
    }
}

/// The storage classes of a zone and their pools.
pub struct StorageClasses {
    connection: Arc<Connection>,
    /// The pools of classes that are in use, by the classes' names. A zone has a bounded number of classes.
    in_use: RwLock<BTreeMap<String, IoCtx>>,
}

impl StorageClasses {
    pub(crate) fn new(connection: &Arc<Connection>) -> StorageClasses {
        StorageClasses { connection: Arc::clone(connection), in_use: RwLock::default() }
    }

    /// Returns the pool for new data in a storage class, which is empty for STANDARD. Creates a missing pool when the first
    /// data of the class is written. Fails with [`Error::NoSuchStorageClass`] if the zone has no pool for that class.
    pub(crate) async fn pool_for_write(&self, class: &str) -> Result<IoCtx> {
        if let Some(pool) = self.cached_pool(class) {
            return Ok(pool);
        }
        let none = || Error::NoSuchStorageClass(class.to_owned());
        let zone = Zone::open(&self.connection.pools.root, false).await?;
        let stored = zone.class(class).ok_or_else(none)?;
        let pool = stored.data_pool.clone().ok_or_else(none)?;
        if stored.used {
            return self.cache_pool(class, self.connection.cluster.open_pool(&pool).await?);
        }
        let opened = open_or_create(&self.connection.cluster, &pool).await?;
        let mark = |zone: &mut Zone| match zone.class_mut(class) {
            Some(found) if found.data_pool.as_ref() == Some(&pool) => {
                found.used = true;
                Ok(())
            }
            // The pool was changed since the zone was read; the next request reads the new one.
            Some(_) => Err(Error::Contended(ZONE.to_owned())),
            None => Err(none()),
        };
        record::update(&self.connection.pools.root, ZONE, mark).await?.ok_or_else(none)?;
        self.cache_pool(class, opened)
    }

    /// Fails with [`Error::NoSuchStorageClass`] if the zone has no pool for a class.
    pub async fn check_has_pool(&self, class: &str) -> Result<()> {
        if self.cached_pool(class).is_some() {
            return Ok(());
        }
        let zone = Zone::open(&self.connection.pools.root, false).await?;
        let has_pool = zone.class(class).is_some_and(|stored| stored.data_pool.is_some());
        if has_pool { Ok(()) } else { Err(Error::NoSuchStorageClass(class.to_owned())) }
    }

    /// Returns the pool that contains the data in a storage class, which is empty for STANDARD.
    pub(crate) async fn pool_for_read(&self, class: &str) -> Result<IoCtx> {
        if let Some(pool) = self.cached_pool(class) {
            return Ok(pool);
        }
        let zone = Zone::open(&self.connection.pools.root, false).await?;
        let stored = zone.class(class).and_then(|stored| Some((stored.data_pool.clone()?, stored.used)));
        let Some((pool, used)) = stored else {
            let detail = format!("{class} has no pool in the zone: data in it can't be reached");
            return Err(Error::Internal { what: "the storage class of data", detail });
        };
        let pool = self.connection.cluster.open_pool(&pool).await?;
        if used { self.cache_pool(class, pool) } else { Ok(pool) }
    }

    /// Returns all pools that contain objects' data.
    pub(crate) async fn pools(&self) -> Result<Vec<DataPool>> {
        let standard = DataPool { pool: self.connection.pools.data.clone(), classes: [String::new()].into() };
        let mut all = vec![standard];
        let zone = Zone::open(&self.connection.pools.root, false).await?;
        for (class, name) in zone.class_pools() {
            let pool = match self.connection.cluster.open_pool(name).await {
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
            return Some(self.connection.pools.data.clone());
        }
        self.in_use.read().get(class).cloned()
    }

    fn cache_pool(&self, class: &str, pool: IoCtx) -> Result<IoCtx> {
        self.in_use.write().insert(class.to_owned(), pool.clone());
        Ok(pool)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestCluster;
    use nacre_index::record::Tails;

    #[test]
    fn a_class_keeps_its_pool_while_it_has_data() {
        let cluster = TestCluster::new();
        let (connection, _) = cluster.connect();
        cluster.run(async move {
            let classes = StorageClasses::new(&connection);
            assert!(matches!(classes.pool_for_write("COLD").await, Err(Error::NoSuchStorageClass(_))));
            Zone::define_class(&connection.cluster, "COLD").await.unwrap();
            assert!(matches!(classes.check_has_pool("COLD").await, Err(Error::NoSuchStorageClass(_))));
            for pool in ["cold1", "cold2"] {
                Zone::set_class_pool(&connection.cluster, "COLD", Some(pool)).await.unwrap();
            }
            classes.check_has_pool("COLD").await.unwrap();
            assert!(connection.cluster.open_pool("cold2").await.is_err(), "nothing was written yet");
            let cold = classes.pool_for_write("COLD").await.unwrap();
            assert_eq!(cold.pool_name(), "cold2");
            let tail = format!("{}_0", Tails::name_for("bucket", "COLD", "tag"));
            cold.write_full(&tail, "data").await.unwrap();
            let moved = Zone::set_class_pool(&connection.cluster, "COLD", Some("cold3")).await;
            assert!(matches!(moved, Err(Error::ClassInUse { .. })));
            // Another gateway finds the same pool.
            let other = StorageClasses::new(&connection);
            assert_eq!(other.pool_for_read("COLD").await.unwrap().pool_name(), "cold2");
            let pools = other.pools().await.unwrap();
            assert_eq!(pools.len(), 2);
            assert!(pools[0].has_heads() && !pools[1].has_heads());
            cold.remove(&tail).await.unwrap();
            Zone::set_class_pool(&connection.cluster, "COLD", Some("cold3")).await.unwrap();
        });
    }
}
