//! The store's own state in the `super` family (docs/format/bluestore.md).

use super::db::{Db, Family};
use super::varint::{self, Fields};
use crate::PoolUsage;
use crate::error::{Result, StoreError};
use nacre_types::ids::{Incarnation, PoolId};
use std::collections::BTreeMap;
use uuid::Uuid;

/// Format of the whole store; a release refuses others.
pub(super) const FORMAT: &[u8] = b"m/format";
/// What this release writes under [`FORMAT`].
pub(super) const FORMAT_VERSION: u32 = 1;
/// The device that belongs to this database.
pub(super) const UUID: &[u8] = b"m/uuid";
/// Identity of the contents.
pub(super) const INCARNATION: &[u8] = b"m/incarnation";
/// 1 after a clean unmount, else 0.
pub(super) const CLEAN: &[u8] = b"m/clean";
/// Every nid, blob id and omap id in use is below this.
pub(super) const ID_MAX: &[u8] = b"m/id_max";
/// Every block that was ever allocated is below this.
pub(super) const FRONTIER: &[u8] = b"m/frontier";
/// Before a pool's id: its usage.
const USAGE_PREFIX: &[u8] = b"p/";
/// Before the owner's own keys.
pub(super) const USER_PREFIX: &[u8] = b"u/";

/// The state at mount.
#[derive(Clone, Debug)]
pub(super) struct State {
    pub(super) uuid: Uuid,
    pub(super) incarnation: Incarnation,
    pub(super) clean: bool,
    pub(super) id_max: u64,
    pub(super) frontier: u64,
    pub(super) usage: BTreeMap<PoolId, PoolUsage>,
}

impl State {
    pub(super) fn read(db: &Db, path: &str) -> Result<State> {
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
        if format != FORMAT_VERSION.to_le_bytes() {
            let reason = format!("format {format:?}: this release reads format {FORMAT_VERSION}");
            return Err(StoreError::WrongStore { path: path.into(), reason });
        }
        let mut usage = BTreeMap::new();
        let end = [b"p0".as_slice()].concat();
        let mut range = db.range(Family::Super, USAGE_PREFIX, Some(end));
        while let Some((key, value)) = range.next()? {
            let (pool, pool_usage) = decode_usage(key, value).ok_or_else(|| damaged(key))?;
            usage.insert(pool, pool_usage);
        }
        Ok(State {
            uuid: uuid(UUID)?,
            incarnation: Incarnation(uuid(INCARNATION)?),
            clean: get(CLEAN)? == [1],
            id_max: number(ID_MAX)?,
            frontier: number(FRONTIER)?,
            usage,
        })
    }
}

/// Key and value of a pool's usage.
pub(super) fn encode_usage(pool: PoolId, usage: PoolUsage) -> (Vec<u8>, Vec<u8>) {
    let mut value = Vec::with_capacity(16);
    for number in [usage.stored_bytes, usage.allocated_bytes, usage.objects] {
        varint::put(&mut value, number);
    }
    ([USAGE_PREFIX, &pool.0.to_be_bytes()].concat(), value)
}

fn decode_usage(key: &[u8], value: &[u8]) -> Option<(PoolId, PoolUsage)> {
    let pool = i64::from_be_bytes(key.strip_prefix(USAGE_PREFIX)?.try_into().ok()?);
    let mut fields = Fields(value);
    let usage = PoolUsage {
        stored_bytes: fields.number()?,
        allocated_bytes: fields.number()?,
        objects: fields.number()?,
    };
    fields.0.is_empty().then_some((PoolId(pool), usage))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_fuzz::Target;

    #[test]
    fn fuzz_usage_of_pools() {
        let corpus = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"));
        let usage = PoolUsage { stored_bytes: 1 << 33, allocated_bytes: 4096, objects: 3 };
        let joined = |(key, value): (Vec<u8>, Vec<u8>)| [key, value].concat();
        let seeds = vec![joined(encode_usage(PoolId(3), usage))];
        Target::new("usage", corpus, seeds).run(|input| {
            let (key, value) = input.split_at_checked(USAGE_PREFIX.len() + 8)?;
            let (pool, usage) = decode_usage(key, value)?;
            Some(joined(encode_usage(pool, usage)))
        });
    }
}
