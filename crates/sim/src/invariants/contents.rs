//! Contents of objects on disks: a version of an object has the same content wherever and whenever it becomes durable.
//!
//! The model keeps a digest of each version that became durable, and checks the objects that each durable change touches.

use super::Violation;
use crate::disk::{Image, Object};
use nacre_pg::log::{EntryKind, LogEntry};
use nacre_types::op::{OI_ATTR, ObjectInfo};
use nacre_types::{Eversion, ObjectId, OsdId, PgId, PoolId, encoding};
use std::collections::BTreeMap;

/// Digests of all versions that were ever durable.
#[derive(Debug, Default)]
pub(super) struct DurableContents {
    digests: BTreeMap<(PgId, ObjectId), BTreeMap<Eversion, (u64, OsdId)>>,
}

impl DurableContents {
    /// Stops checking a pool whose contents were destroyed.
    pub(super) fn ignore_pool(&mut self, pool: PoolId) {
        self.digests.retain(|(pg, _), _| pg.pool != pool);
    }

    /// Records that an object has become durable on an OSD.
    pub(super) fn durable(
        &mut self,
        osd: OsdId,
        pg: PgId,
        oid: &ObjectId,
        object: &Object,
    ) -> Result<(), Violation> {
        // An object that arrives in pieces has no info before the last one.
        if !object.attrs.contains_key(OI_ATTR) {
            return Ok(());
        }
        let unreadable = |error| ("an object without a version", format!("{oid}: {error}"));
        let version = version_of(object).map_err(unreadable)?;
        let mine = (object.digest(), osd);
        let versions = self.digests.entry((pg, oid.clone())).or_default();
        let known = *versions.entry(version).or_insert(mine);
        if known.0 == mine.0 {
            return Ok(());
        }
        let detail =
            format!("{oid} of {pg} at {version}: {object:?} on {osd} differs from what {} had", known.1);
        Err(("one version, two contents", detail))
    }
}

fn version_of(object: &Object) -> Result<Eversion, String> {
    let info = object.attrs.get(OI_ATTR).ok_or("it has no info")?;
    encoding::decode::<ObjectInfo>(info).map(|info| info.version).map_err(|error| error.to_string())
}

/// The part of an acknowledged update that a disk lacks according to its log: the object must exist in that version or a
/// later one, or have been removed by or after it.
pub(super) fn lacking(image: &Image, pg: PgId, acknowledged: Eversion) -> Option<(ObjectId, String)> {
    let collection = image.collections.get(&pg)?;
    let decode = |bytes: &bytes::Bytes| LogEntry::decode(bytes).ok();
    let entry = collection.log.get(&acknowledged).and_then(decode)?;
    let oid = entry.object;
    if entry.kind == EntryKind::Error || image.damaged.contains_key(&(pg, oid.clone())) {
        return None;
    }
    let removes = |entry: &LogEntry| entry.object == oid && entry.kind == EntryKind::Delete;
    let removed = || {
        collection
            .log
            .range(acknowledged..)
            .filter_map(|(_, entry)| decode(entry))
            .any(|entry| removes(&entry))
    };
    let has = match collection.objects.get(&oid).map(|object| version_of(object)) {
        Some(Ok(version)) if version >= acknowledged => return None,
        Some(Ok(version)) => format!("it has {version}"),
        Some(Err(error)) => error,
        None => "it has none".to_owned(),
    };
    (!removed()).then_some((oid, has))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use nacre_types::{Interval, ReqId};

    const PG: PgId = PgId { pool: PoolId(1), seed: 0 };

    fn oid() -> ObjectId {
        ObjectId::new(PoolId(1), "", "", "o")
    }

    fn version(number: u64) -> Eversion {
        Eversion::new(Interval(1), number)
    }

    fn object(number: u64, data: &[u8]) -> Object {
        let info = ObjectInfo { version: version(number), ..ObjectInfo::default() };
        let mut object = Object { data: data.into(), ..Object::default() };
        object.attrs.insert(OI_ATTR.into(), encoding::encode(&info).into());
        object
    }

    #[test]
    fn a_version_has_one_content() {
        let mut contents = DurableContents::default();
        let mut durable = |osd, object: &Object| {
            contents.durable(OsdId(osd), PG, &oid(), object).map_err(|violation| violation.0)
        };
        assert_eq!(durable(0, &object(1, b"a")), Ok(()));
        assert_eq!(durable(1, &object(1, b"a")), Ok(()));
        assert_eq!(durable(1, &object(2, b"b")), Ok(()));
        assert_eq!(durable(2, &object(1, b"b")), Err("one version, two contents"));
        assert_eq!(durable(2, &Object::default()), Ok(()), "it is not complete yet");
    }

    #[test]
    fn an_acknowledged_update_is_in_the_object() {
        let entry = |number, kind| {
            let entry = LogEntry {
                version: version(number),
                prior: Eversion::default(),
                object: oid(),
                kind,
                reqid: ReqId::default(),
                user_version: number,
                mtime_ns: 0,
                result: Bytes::new(),
            };
            (version(number), entry.encode())
        };
        let lacks = |log: &[(u64, EntryKind)], stored: Option<u64>| {
            let mut image = Image::default();
            let collection = image.collections.entry(PG).or_default();
            collection.log.extend(log.iter().map(|(number, kind)| entry(*number, *kind)));
            collection.objects.extend(stored.map(|number| (oid(), object(number, b"x").into())));
            lacking(&image, PG, version(2)).is_some()
        };
        use EntryKind::{Delete, Error, Modify};
        assert!(!lacks(&[(2, Modify)], Some(2)));
        assert!(!lacks(&[(2, Modify), (3, Modify)], Some(3)));
        assert!(!lacks(&[(2, Modify), (3, Delete)], None));
        assert!(!lacks(&[(2, Delete)], None));
        assert!(!lacks(&[(2, Error)], Some(1)));
        assert!(lacks(&[(2, Modify)], Some(1)));
        assert!(lacks(&[(2, Modify)], None));
    }
}
