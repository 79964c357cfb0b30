//! Access to a BlueStore's database for tools that work on its records while the store is not in use.

use super::BlueStoreConfig;
use super::allocation::delta;
use super::db::{self, Family};
use super::{mount, state};
use crate::error::Result;
use nacre_objectstore::files::StoreLock;
use rocksdb::{DB, Options, WriteBatch};
use std::path::Path;
use uuid::Uuid;

/// The prefix whose keys are removed by single deletes. Each key is put once between removals.
pub(crate) const SINGLE_DELETE_PREFIX: &str = db::family_name(Family::PgLog);

/// Locks the BlueStore in `directory`. Fails if it is in use or does not exist.
pub(crate) fn lock(directory: &Path) -> Result<StoreLock> {
    mount::check_type(directory)?;
    StoreLock::take(directory)
}

/// Whether `directory` holds a BlueStore.
pub(crate) fn is_bluestore(directory: &Path) -> bool {
    mount::check_type(directory).is_ok()
}

/// Opens the database in `directory` with the store's own options.
pub(crate) fn open_database(directory: &Path) -> Result<DB> {
    db::open(directory, BlueStoreConfig::default().db(), false)
}

/// Creates the column families that are missing in the database in `directory`, empty.
pub(crate) fn add_missing_families(directory: &Path) -> Result<()> {
    let failed = |error| crate::error::database("make the families of the metadata database again", &error);
    let options = Options::default();
    let present = DB::list_cf(&options, directory).map_err(failed)?;
    let mut database = DB::open_cf(&options, directory, &present).map_err(failed)?;
    for name in db::family_names().filter(|name| !present.iter().any(|have| have == name)) {
        database.create_cf(name, &options).map_err(failed)?;
    }
    Ok(())
}

/// Adds a new identity of the store to `batch`, because it may have lost acknowledged data.
pub(crate) fn mint_incarnation(database: &DB, batch: &mut WriteBatch) {
    let family = database.cf_handle(db::family_name(Family::Super)).expect("invariant: opened with it");
    batch.put_cf(family, state::INCARNATION, Uuid::new_v4().as_bytes());
}

/// Adds a change to `batch` that makes the next start determine the allocation from the objects' records, because manual changes
/// of records may change it.
pub(crate) fn invalidate_allocation(database: &DB, batch: &mut WriteBatch) {
    let family = database.cf_handle(db::family_name(Family::AllocDelta)).expect("invariant: opened with it");
    batch.delete_range_cf(family, [].as_slice(), &delta::END);
}
