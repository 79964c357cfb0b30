//! The zone's placement target: the pool of objects' data, by storage class.
//!
//! The choice is a record in `.rgw.root`, so that it is the same for every gateway and every command. The pool of STANDARD
//! may be chosen until the first gateway starts and marks the record: from then on, objects may be in the pool, and the
//! choice stays. The pool of another class may be chosen until the first gateway writes into the class and marks it
//! ([`crate::storage_classes`]), and again when no gateway runs and no data of the class is left.
//!
//! As in Ceph, a class is first defined in the zonegroup and then given a pool in the zone. The record contains both.

use crate::error::{Error, Result};
use crate::message::{GatewayMessage, QUERY_TIMEOUT};
use crate::pool_creation::{ROOT_POOL, open_or_create};
use crate::record;
use nacre_client::{Cluster, IoCtx};
use nacre_index::record::storage_class_of;
use nacre_types::encoding::{self, DecodeError, Versioned};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The pool of buckets' records, and the namespace of the records.
const BUCKETS: (&str, &str) = ("default.rgw.meta", "root");
/// The object that gateways watch, and its pool.
const WATCHED: (&str, &str) = ("default.rgw.control", crate::message::NOTIFY_OBJECT);
/// The object of the record.
pub(crate) const ZONE: &str = "zone_info.default";

/// The only placement target.
pub const DEFAULT_PLACEMENT: &str = "default-placement";
/// The storage class of objects that name none.
pub const DEFAULT_STORAGE_CLASS: &str = "STANDARD";
/// The maximum length of a storage class's name. A manifest contains it for each part.
pub(crate) const MAX_CLASS_CHARS: usize = 32;
/// The maximum number of storage classes besides STANDARD.
const MAX_CLASSES: usize = 64;

/// A zone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Zone {
    /// The pool of STANDARD.
    pub data_pool: String,
    /// Whether a gateway has served it.
    pub(crate) used: bool,
    /// Storage classes besides STANDARD, by name. Records without any are encoded without this field, in the previous
    /// format.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    classes: BTreeMap<String, StorageClass>,
}

/// A storage class that the zonegroup defines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StorageClass {
    /// The pool that contains the data of its objects; `None` while the zone names none.
    pub(crate) data_pool: Option<String>,
    /// Whether a gateway may have written data into it.
    pub(crate) used: bool,
}

impl Versioned for Zone {
    const NAME: &'static str = "zone";
    const VERSION: u8 = 2;
    /// A gateway that does not know classes would not find their data.
    const COMPAT: u8 = 2;

    fn envelope(&self) -> (u8, u8) {
        if self.classes.is_empty() { (1, 1) } else { (2, 2) }
    }

    fn decode_old(_version: u8, body: &[u8]) -> Result<Zone, DecodeError> {
        let (data_pool, used) = encoding::decode_body(Self::NAME, body)?;
        Ok(Zone { data_pool, used, classes: BTreeMap::new() })
    }
}

impl Default for Zone {
    fn default() -> Zone {
        Zone { data_pool: "default.rgw.buckets.data".to_owned(), used: false, classes: BTreeMap::new() }
    }
}

/// Checks that a text may be the name of a storage class besides STANDARD.
fn check_class(class: &str) -> Result<()> {
    let wrong = |what: &str| Err(Error::Invalid(format!("storage class '{class}': {what}")));
    if class == DEFAULT_STORAGE_CLASS {
        return wrong("it is always there");
    }
    let is_sound = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if class.is_empty() || class.len() > MAX_CLASS_CHARS || !class.chars().all(is_sound) {
        return wrong("a name has 1 to 32 letters, digits, '_', '-' and '.'");
    }
    Ok(())
}

impl Zone {
    /// Reads the zone of a cluster. Returns the default if there is no record.
    pub async fn read(cluster: &Cluster) -> Result<Zone> {
        match cluster.open_pool(ROOT_POOL).await {
            Err(error) if error.is_not_found() => Ok(Zone::default()),
            root => Ok(record::read(&root?, ZONE).await?.map_or_else(Zone::default, |(zone, _)| zone)),
        }
    }

    /// Reads the zone for a process that opens its pools. A gateway that will serve the zone marks it as used first.
    pub(crate) async fn open(root: &IoCtx, serves: bool) -> Result<Zone> {
        loop {
            let zone = match record::read::<Zone>(root, ZONE).await? {
                Some((zone, _)) => zone,
                None if serves => {
                    let zone = Zone { used: true, ..Zone::default() };
                    if record::create(root, ZONE, &zone).await? {
                        return Ok(zone);
                    }
                    continue;
                }
                None => Zone::default(),
            };
            if zone.used || !serves {
                return Ok(zone);
            }
            let mark = |zone: &mut Zone| {
                zone.used = true;
                Ok(())
            };
            if let Some(zone) = record::update(root, ZONE, mark).await? {
                return Ok(zone);
            }
        }
    }

    /// Sets the pool of objects' data; the first gateway creates the pool if it does not exist. Fails with
    /// [`Error::ZoneInUse`] if a gateway has served the zone.
    pub async fn set_data_pool(cluster: &Cluster, pool: &str) -> Result<Zone> {
        let root = open_or_create(cluster, ROOT_POOL).await?;
        let zone = Zone::open(&root, false).await?;
        let in_use = |zone: &Zone| Error::ZoneInUse(zone.data_pool.clone());
        if zone.data_pool == pool {
            return Ok(zone);
        }
        // Earlier releases did not mark the zone.
        if zone.used || has_buckets(cluster).await? || has_gateways(cluster).await? {
            return Err(in_use(&zone));
        }
        let chosen = Zone { data_pool: pool.to_owned(), ..zone.clone() };
        if record::create(&root, ZONE, &chosen).await? {
            return Ok(chosen);
        }
        let choose = |zone: &mut Zone| {
            if zone.used {
                return Err(in_use(zone));
            }
            zone.data_pool = pool.to_owned();
            Ok(())
        };
        Ok(record::update(&root, ZONE, choose).await?.unwrap_or(chosen))
    }

    /// Returns a storage class besides STANDARD.
    pub(crate) fn class(&self, class: &str) -> Option<&StorageClass> {
        self.classes.get(class)
    }

    /// Returns a storage class besides STANDARD, to be changed.
    pub(crate) fn class_mut(&mut self, class: &str) -> Option<&mut StorageClass> {
        self.classes.get_mut(class)
    }

    /// Returns the storage classes besides STANDARD that have pools, with these pools.
    pub(crate) fn class_pools(&self) -> impl Iterator<Item = (&str, &str)> {
        self.classes.iter().filter_map(|(class, stored)| Some((class.as_str(), stored.data_pool.as_deref()?)))
    }

    /// Defines a storage class in the zonegroup.
    pub async fn define_class(cluster: &Cluster, class: &str) -> Result<Zone> {
        if class == DEFAULT_STORAGE_CLASS {
            return Zone::read(cluster).await;
        }
        check_class(class)?;
        check_gateways(cluster).await?;
        let root = open_or_create(cluster, ROOT_POOL).await?;
        change(&root, |zone| {
            if zone.classes.len() >= MAX_CLASSES && !zone.classes.contains_key(class) {
                return Err(Error::LimitExceeded(format!("{MAX_CLASSES} storage classes")));
            }
            zone.classes.entry(class.to_owned()).or_default();
            Ok(())
        })
        .await
    }

    /// Removes a storage class from the zonegroup. Fails while the class has a pool in the zone.
    pub async fn undefine_class(cluster: &Cluster, class: &str) -> Result<Zone> {
        check_class(class)?;
        let root = open_or_create(cluster, ROOT_POOL).await?;
        change(&root, |zone| {
            if let Some(pool) = zone.class(class).and_then(|class| class.data_pool.as_ref()) {
                return Err(Error::Invalid(format!(
                    "storage class {class} has pool {pool} in the zone: remove it there first (zone placement rm)"
                )));
            }
            zone.classes.remove(class);
            Ok(())
        })
        .await
    }

    /// Sets the pool of a storage class; the first gateway that writes into the class creates the pool if it does not exist.
    /// Without `pool`, the class keeps its current pool. For STANDARD, this is [`Zone::set_data_pool`]. Fails with
    /// [`Error::ClassInUse`] if another pool may contain data of the class.
    pub async fn set_class_pool(cluster: &Cluster, class: &str, pool: Option<&str>) -> Result<Zone> {
        let unnamed = || Error::Invalid("data pool not configured, need to specify --data-pool".to_owned());
        let pool = pool.filter(|pool| !pool.is_empty());
        if class == DEFAULT_STORAGE_CLASS {
            return match pool {
                Some(pool) => Zone::set_data_pool(cluster, pool).await,
                None => Zone::read(cluster).await,
            };
        }
        let undefined = || {
            let text = format!(
                "storage class '{class}' is not defined in zonegroup '{DEFAULT_PLACEMENT}' placement target \
                 (zonegroup placement add)"
            );
            Error::Invalid(text)
        };
        let zone = Zone::read(cluster).await?;
        let old = zone.class(class).ok_or_else(undefined)?.clone();
        let pool = pool.or(old.data_pool.as_deref()).ok_or_else(unnamed)?;
        if old.data_pool.as_deref() == Some(pool) {
            return Ok(zone);
        }
        check_unused(cluster, class, &old).await?;
        check_gateways(cluster).await?;
        let root = open_or_create(cluster, ROOT_POOL).await?;
        change(&root, |zone| {
            let found = zone.class_mut(class).ok_or_else(undefined)?;
            unchanged(&old, found)?;
            *found = StorageClass { data_pool: Some(pool.to_owned()), used: false };
            Ok(())
        })
        .await
    }

    /// Removes a storage class from the zone. Fails with [`Error::ClassInUse`] if the class may have data.
    pub async fn remove_class_pool(cluster: &Cluster, class: &str) -> Result<Zone> {
        if class == DEFAULT_STORAGE_CLASS {
            return Err(Error::Invalid(format!(
                "{DEFAULT_STORAGE_CLASS} can't be removed: heads of objects are in its pool"
            )));
        }
        check_class(class)?;
        let zone = Zone::read(cluster).await?;
        let Some(old) = zone.class(class).filter(|old| old.data_pool.is_some()).cloned() else {
            return Err(Error::Invalid(format!("there is no storage class {class} in the zone")));
        };
        check_unused(cluster, class, &old).await?;
        let root = open_or_create(cluster, ROOT_POOL).await?;
        change(&root, |zone| {
            if let Some(found) = zone.class_mut(class) {
                unchanged(&old, found)?;
                *found = StorageClass::default();
            }
            Ok(())
        })
        .await
    }

    /// Returns the output of `radosgw-admin zonegroup placement list`.
    pub fn describe_zonegroup_placement(&self) -> Value {
        let mut classes: Vec<&str> =
            self.classes.keys().map(String::as_str).chain([DEFAULT_STORAGE_CLASS]).collect();
        classes.sort_unstable();
        json!([{ "key": DEFAULT_PLACEMENT, "val": { "name": DEFAULT_PLACEMENT, "tags": [], "storage_classes": classes } }])
    }

    /// Returns the output of `radosgw-admin zonegroup get`.
    pub fn describe_zonegroup(&self) -> Value {
        json!({
            "id": "default", "name": "default", "api_name": "default", "is_master": true, "endpoints": [],
            "master_zone": "default", "zones": [{ "id": "default", "name": "default" }],
            "placement_targets": self.describe_zonegroup_placement(), "default_placement": DEFAULT_PLACEMENT, "realm_id": "",
        })
    }

    /// Returns the output of `radosgw-admin zone placement list`.
    pub fn describe_zone_placement(&self) -> Value {
        let mut classes = serde_json::Map::new();
        classes.insert(DEFAULT_STORAGE_CLASS.to_owned(), json!({ "data_pool": self.data_pool }));
        for (class, pool) in self.class_pools() {
            classes.insert(class.to_owned(), json!({ "data_pool": pool }));
        }
        json!([{
            "key": DEFAULT_PLACEMENT,
            "val": {
                "index_pool": "default.rgw.buckets.index",
                "storage_classes": classes,
                "data_extra_pool": self.data_pool,
                "index_type": 0,
                "inline_data": true,
            },
        }])
    }

    /// Returns the output of `radosgw-admin zone get`.
    pub fn describe(&self) -> Value {
        json!({
            "id": "default", "name": "default",
            "domain_root": "default.rgw.meta:root", "control_pool": "default.rgw.control",
            "gc_pool": "default.rgw.log:gc", "lc_pool": "default.rgw.log:lc", "log_pool": "default.rgw.log",
            "usage_log_pool": "default.rgw.log:usage", "reshard_pool": "default.rgw.log:reshard",
            "roles_pool": "default.rgw.meta:roles", "user_keys_pool": "default.rgw.meta:users.keys",
            "user_uid_pool": "default.rgw.meta:users.uid",
            "placement_pools": self.describe_zone_placement(), "realm_id": "",
        })
    }
}

/// Changes the zone's record; creates it if it does not exist.
async fn change(root: &IoCtx, mut change: impl FnMut(&mut Zone) -> Result<()>) -> Result<Zone> {
    loop {
        if let Some(zone) = record::update(root, ZONE, &mut change).await? {
            return Ok(zone);
        }
        let mut zone = Zone::default();
        change(&mut zone)?;
        if record::create(root, ZONE, &zone).await? {
            return Ok(zone);
        }
    }
}

/// Fails if a class was changed since it was checked.
fn unchanged(old: &StorageClass, now: &StorageClass) -> Result<()> {
    if old == now { Ok(()) } else { Err(Error::Contended("the zone".to_owned())) }
}

/// Fails if the pool of a class may contain data of the class.
async fn check_unused(cluster: &Cluster, class: &str, stored: &StorageClass) -> Result<()> {
    let Some(name) = stored.data_pool.as_deref().filter(|_| stored.used) else { return Ok(()) };
    let in_use = |why: &str| {
        Err(Error::ClassInUse { class: class.to_owned(), pool: name.to_owned(), why: why.to_owned() })
    };
    // Gateways may be writing into the class.
    if has_gateways(cluster).await? {
        return in_use("stop all gateways before it is changed");
    }
    let pool = match cluster.open_pool(name).await {
        Err(error) if error.is_not_found() => return Ok(()),
        pool => pool?,
    };
    let mut lister = pool.list();
    while let Some(object) = lister.next().await? {
        let run = object.name().rsplit_once('_').map_or("", |(run, _)| run);
        if storage_class_of(run) == class {
            return in_use("data of objects in it is there");
        }
    }
    Ok(())
}

/// Fails if a gateway runs that does not know storage classes: it would look for their data in the pool of STANDARD.
async fn check_gateways(cluster: &Cluster) -> Result<()> {
    let (pool, object) = WATCHED;
    let control = match cluster.open_pool(pool).await {
        Err(error) if error.is_not_found() => return Ok(()),
        control => control?,
    };
    let question =
        postcard::to_stdvec(&GatewayMessage::AskStorageClasses).expect("invariant: it can be encoded");
    for _ in 0..ASKINGS {
        let outcome = match control.notify(object, question.clone(), Some(QUERY_TIMEOUT)).await {
            Err(error) if error.is_not_found() => return Ok(()),
            outcome => outcome?,
        };
        if outcome.reply.acks.iter().any(|(_, _, answer)| answer != STORAGE_CLASSES_ANSWER) {
            return Err(Error::Invalid(
                "a gateway of an earlier release runs, which knows no storage classes: upgrade it first"
                    .to_owned(),
            ));
        }
        if !outcome.timed_out {
            return Ok(());
        }
    }
    Err(Error::Invalid("a gateway does not answer: stop it, or wait until it answers again".to_owned()))
}

/// How often gateways are asked. In this time, the watch of a dead gateway ends.
const ASKINGS: usize = 4;

/// The answer to [`GatewayMessage::AskStorageClasses`] of gateways that know storage classes.
pub(crate) const STORAGE_CLASSES_ANSWER: &str = "storage classes";

async fn has_buckets(cluster: &Cluster) -> Result<bool> {
    let (pool, namespace) = BUCKETS;
    match cluster.open_pool(pool).await {
        Err(error) if error.is_not_found() => Ok(false),
        meta => Ok(meta?.with_namespace(namespace).list().next().await?.is_some()),
    }
}

async fn has_gateways(cluster: &Cluster) -> Result<bool> {
    let (pool, object) = WATCHED;
    let control = match cluster.open_pool(pool).await {
        Err(error) if error.is_not_found() => return Ok(false),
        control => control?,
    };
    match control.list_watchers(object).await {
        Err(error) if error.is_not_found() => Ok(false),
        watchers => Ok(!watchers?.is_empty()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_with_classes_refuse_gateways_that_know_none() {
        let mut zone = Zone { used: true, ..Zone::default() };
        let plain = record::encode(&zone);
        assert_eq!(plain[..2], [1, 1]);
        assert_eq!(record::decode::<Zone>(ZONE, &plain).unwrap(), zone);
        zone.classes.insert("COLD".into(), StorageClass { data_pool: Some("cold".into()), used: true });
        zone.classes.insert("WARM".into(), StorageClass::default());
        let classed = record::encode(&zone);
        assert_eq!(classed[..2], [2, 2]);
        assert_eq!(record::decode::<Zone>(ZONE, &classed).unwrap(), zone);
        assert_eq!(zone.class_pools().collect::<Vec<_>>(), [("COLD", "cold")]);
        let targets = zone.describe_zonegroup_placement();
        assert_eq!(targets[0]["val"]["storage_classes"], json!(["COLD", "STANDARD", "WARM"]));
    }

    #[test]
    fn names_of_classes_can_be_part_of_names_of_tails() {
        for sound in ["COLD", "STANDARD_IA", "x-1.2", &"C".repeat(MAX_CLASS_CHARS)] {
            check_class(sound).unwrap();
        }
        for wrong in ["", "STANDARD", "a b", "a/b", "\u{fc}", &"C".repeat(MAX_CLASS_CHARS + 1)] {
            assert!(check_class(wrong).is_err(), "{wrong}");
        }
    }
}
