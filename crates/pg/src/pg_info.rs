//! The records of a copy on disk besides objects and log: one record, and a key per missing object.
//!
//! Keys of the collection's metadata (docs/format/pglog.md): `info` holds [`PgCopyInfo`], `missing.<hex of the encoded
//! object id>` the version that is needed, `temp` the objects that a tail in transfer may have left over.

use bytes::Bytes;
use nacre_types::encoding::{self, DecodeError, Versioned};
use nacre_types::ids::{Eversion, Interval, OsdId};
use nacre_types::object::ObjectId;
use nacre_types::osdmap::PgMembership;
use nacre_types::txn::{Transaction, TxnOp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The namespace of objects that are being assembled. They are never listed and never compared.
pub const TEMP_NAMESPACE: &str = ".nacre.temp";

const INFO_KEY: &str = "info";
const TEMP_KEY: &str = "temp";
const MISSING_PREFIX: &str = "missing.";

/// Whether `object` is being assembled.
pub fn is_temp(object: &ObjectId) -> bool {
    object.namespace() == TEMP_NAMESPACE
}

/// The durable record of a copy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct PgCopyInfo {
    /// The highest membership seen (R7).
    pub(crate) highest: Option<PgMembership>,
    /// The member takes part in no interval below this one (R3).
    pub(crate) promised: Interval,
    /// The MapStore generation under which `highest` was last confirmed (R7).
    pub(crate) generation: u64,
    /// The last interval in which this OSD was primary and knew that all leases of earlier primaries had expired (R4).
    pub(crate) activated: Interval,
    /// The primaries since then: they may still hold leases of this OSD (R4).
    pub(crate) lease_holders: Vec<OsdId>,
    /// Whether every object is present up to the log's head, except the missing ones.
    pub(crate) complete: bool,
    /// The log's tail.
    pub(crate) tail: Eversion,
    /// An update that is known to be acknowledged, with all updates before it; not necessarily the last one.
    pub(crate) committed_to: Eversion,
}

impl Versioned for PgCopyInfo {
    const NAME: &'static str = "PG copy record";
}

/// Temporary objects that may be left over.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Temps(Vec<ObjectId>);

impl Versioned for Temps {
    const NAME: &'static str = "PG temporary objects";
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Needed(Eversion);

impl Versioned for Needed {
    const NAME: &'static str = "PG missing object";
}

/// An object's name inside a key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Named(ObjectId);

impl Versioned for Named {
    const NAME: &'static str = "PG missing object's name";
}

/// The result of [`load`].
pub(crate) struct LoadedCopy {
    pub(crate) record: PgCopyInfo,
    pub(crate) missing: BTreeMap<ObjectId, Eversion>,
    pub(crate) temps: Vec<ObjectId>,
    pub(crate) dups: Vec<(String, Bytes)>,
}

/// Reads a collection's metadata.
pub(crate) fn load(meta: &[(String, Bytes)]) -> Result<LoadedCopy, DecodeError> {
    let mut loaded = LoadedCopy {
        record: PgCopyInfo::default(),
        missing: BTreeMap::new(),
        temps: Vec::new(),
        dups: Vec::new(),
    };
    let mut found = false;
    for (key, value) in meta {
        if key == INFO_KEY {
            loaded.record = encoding::decode(value)?;
            found = true;
        } else if key == TEMP_KEY {
            loaded.temps = encoding::decode::<Temps>(value)?.0;
        } else if let Some(hex) = key.strip_prefix(MISSING_PREFIX) {
            let object = encoding::decode::<Named>(&from_hex(hex)?)?.0;
            loaded.missing.insert(object, encoding::decode::<Needed>(value)?.0);
        } else if key.starts_with(crate::log::DUP_META_PREFIX) {
            loaded.dups.push((key.clone(), value.clone()));
        }
    }
    if !found {
        return Err(DecodeError::Corrupt { what: PgCopyInfo::NAME, detail: "there is none".into() });
    }
    Ok(loaded)
}

/// Adds the record to `txn`.
pub(crate) fn put_record(record: &PgCopyInfo, txn: &mut Transaction) {
    txn.push(TxnOp::MetaSet(vec![(INFO_KEY.into(), encoding::encode(record).into())]));
}

/// Adds the record of a missing object to `txn`.
pub(crate) fn put_missing(object: &ObjectId, needed: Eversion, txn: &mut Transaction) {
    txn.push(TxnOp::MetaSet(vec![(missing_key(object), encoding::encode(&Needed(needed)).into())]));
}

/// Adds the removal of the record of a missing object to `txn`.
pub(crate) fn remove_missing(object: &ObjectId, txn: &mut Transaction) {
    txn.push(TxnOp::MetaRm(vec![missing_key(object)]));
}

/// Adds the record of the temporary objects that may exist to `txn`.
pub(crate) fn put_temps(temps: &[ObjectId], txn: &mut Transaction) {
    txn.push(if temps.is_empty() {
        TxnOp::MetaRm(vec![TEMP_KEY.into()])
    } else {
        TxnOp::MetaSet(vec![(TEMP_KEY.into(), encoding::encode(&Temps(temps.to_vec())).into())])
    });
}

fn missing_key(object: &ObjectId) -> String {
    let mut key = String::from(MISSING_PREFIX);
    for byte in encoding::encode(&Named(object.clone())) {
        key.push(char::from_digit(u32::from(byte >> 4), 16).expect("invariant: a nibble is a hex digit"));
        key.push(char::from_digit(u32::from(byte & 15), 16).expect("invariant: a nibble is a hex digit"));
    }
    key
}

fn from_hex(hex: &str) -> Result<Vec<u8>, DecodeError> {
    let corrupt = || DecodeError::Corrupt { what: Named::NAME, detail: format!("'{hex}' is not hex") };
    let digits: Option<Vec<u8>> = hex.chars().map(|c| c.to_digit(16).map(|d| d as u8)).collect();
    let digits = digits.filter(|d| d.len() % 2 == 0).ok_or_else(corrupt)?;
    Ok(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::ids::{PgId, PoolId};

    #[test]
    fn a_copy_is_read_back_as_written() {
        let object = ObjectId::new(PoolId(1), "ns", "", "näme");
        let record = PgCopyInfo { complete: true, activated: Interval(3), ..PgCopyInfo::default() };
        let needed = Eversion::new(Interval(2), 9);
        let mut txn = Transaction::new(PgId::default());
        put_record(&record, &mut txn);
        put_missing(&object, needed, &mut txn);
        put_temps(std::slice::from_ref(&object), &mut txn);
        let mut meta = Vec::new();
        for op in txn.ops {
            let TxnOp::MetaSet(pairs) = op else { panic!("{op:?}") };
            meta.extend(pairs);
        }
        let loaded = load(&meta).unwrap();
        assert_eq!((loaded.record, loaded.temps), (record, vec![object.clone()]));
        assert_eq!(loaded.missing, BTreeMap::from([(object, needed)]));
        assert!(load(&[]).is_err());
        assert!(load(&[("missing.0g".into(), Bytes::new())]).is_err());
    }
}
