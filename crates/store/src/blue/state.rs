//! The store's own state in the `super` family (docs/format/bluestore.md).

use super::db::{Db, Family};
use super::label::FIRST_DATA_BLOCK;
use super::onode::BLOCK_BYTES;
use crate::error::{Result, StoreError};
use nacre_types::ids::Incarnation;
use uuid::Uuid;

/// Format of the whole store. A release refuses formats that it does not know.
pub(super) const FORMAT: &[u8] = b"m/format";
/// The format that this release writes.
pub(super) const FORMAT_VERSION: u32 = 3;
/// The oldest format that this release reads. A mount converts it to the newest.
const OLDEST_FORMAT: u32 = 1;
/// The uuid of the device that belongs to this database.
pub(super) const UUID: &[u8] = b"m/uuid";
/// Identity of the contents.
pub(super) const INCARNATION: &[u8] = b"m/incarnation";
/// 1 after a clean unmount, else 0.
pub(super) const CLEAN: &[u8] = b"m/clean";
/// Every nid, blob id and omap id in use is below this.
pub(super) const ID_MAX: &[u8] = b"m/id_max";
/// All valid numbers are below this. A higher number in a record is damage, even if the record's checksum matches.
pub(super) const MAX_ID: u64 = 1 << 62;
/// Every block that was ever allocated is below this.
pub(super) const FRONTIER: &[u8] = b"m/frontier";
/// 1 if used blocks are recorded in the database.
pub(super) const ALLOCATION_RECORDED: &[u8] = b"m/records";
/// The allocation unit in bytes. The default is one block.
pub(super) const UNIT: &[u8] = b"m/min_alloc_size";
/// Prefix of the owner's keys.
pub(super) const OWNER_PREFIX: &[u8] = b"u/";

/// Maximum allocation unit in bytes. Data begins at a multiple of it.
pub(super) const MAX_UNIT_BYTES: u64 = FIRST_DATA_BLOCK * BLOCK_BYTES;

/// The store's state at mount.
#[derive(Clone, Debug)]
pub(super) struct SuperMeta {
    pub(super) uuid: Uuid,
    pub(super) incarnation: Incarnation,
    pub(super) clean: bool,
    pub(super) id_max: u64,
    pub(super) frontier: u64,
    /// Whether used blocks are recorded in the database.
    pub(super) records: bool,
    /// The allocation unit in blocks.
    pub(super) unit_blocks: u64,
}

impl SuperMeta {
    pub(super) fn read(db: &Db, path: &str) -> Result<SuperMeta> {
        let get = |key: &[u8]| -> Result<Vec<u8>> {
            let value = db.get(Family::Super, key)?.ok_or_else(|| {
                let name = String::from_utf8_lossy(key);
                StoreError::WrongStore { path: path.into(), reason: format!("the database has no {name}") }
            })?;
            Ok(value.to_vec())
        };
        let damaged = |key: &[u8]| {
            let what = format!("{} in the database", String::from_utf8_lossy(key));
            StoreError::corrupt(what, "wrong length")
        };
        let number = |key: &[u8]| -> Result<u64> {
            Ok(u64::from_le_bytes(get(key)?.try_into().map_err(|_| damaged(key))?))
        };
        let uuid = |key: &[u8]| -> Result<Uuid> {
            Ok(Uuid::from_bytes(get(key)?.try_into().map_err(|_| damaged(key))?))
        };
        let format = get(FORMAT)?;
        let known = (OLDEST_FORMAT..=FORMAT_VERSION).any(|version| format == version.to_le_bytes());
        if !known {
            let reason = format!("format {format:?}: this release reads up to format {FORMAT_VERSION}");
            return Err(StoreError::WrongStore { path: path.into(), reason });
        }
        let unit = match db.get(Family::Super, UNIT)? {
            None => BLOCK_BYTES,
            Some(_) => number(UNIT)?,
        };
        if !unit.is_power_of_two() || !(BLOCK_BYTES..=MAX_UNIT_BYTES).contains(&unit) {
            return Err(StoreError::corrupt("m/min_alloc_size in the database", "no such unit"));
        }
        Ok(SuperMeta {
            unit_blocks: unit / BLOCK_BYTES,
            uuid: uuid(UUID)?,
            incarnation: Incarnation(uuid(INCARNATION)?),
            clean: get(CLEAN)? == [1],
            id_max: number(ID_MAX)?,
            frontier: number(FRONTIER)?,
            records: db.get(Family::Super, ALLOCATION_RECORDED)?.as_deref() == Some(&[1]),
        })
    }
}
