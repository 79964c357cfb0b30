//! Reads a PG's contents in pieces of bounded size, for recovery, backfill, counting and removal.

use crate::context::decode_info;
use crate::{INTERNAL_NAMESPACE, ObjectContext, SumsDelta, load_context};
use bytes::Bytes;
use nacre_objectstore::{ReadStore, StoreError};
use nacre_pg::{ObjectPiece, PieceCursor};
use nacre_types::errno::Errno;
use nacre_types::ids::{Eversion, PgId};
use nacre_types::object::ObjectId;
use nacre_types::op::OI_ATTR;
use nacre_types::txn::{Transaction, TxnOp};

/// Objects counted in one piece.
const COUNT_STEP: usize = 128;
/// Objects removed in one transaction.
const REMOVE_STEP: usize = 64;
/// Omap entries read for recovery at a time.
const OMAP_STEP_ENTRIES: usize = 4096;
/// Maximum bytes read for recovery at a time, regardless of the request.
const MAX_PIECE_BYTES: usize = 4 << 20;

/// Returns the next step of a PG's removal: a transaction that removes some of its objects, or finally the collection. `None` if there is
/// no collection.
pub fn removal_step(store: &dyn ReadStore, pg: PgId) -> Result<Option<Transaction>, StoreError> {
    if !store.collection_exists(pg)? {
        return Ok(None);
    }
    let page = store.list_objects(pg, &ObjectId::min_at_hash(pg.pool, 0), None, REMOVE_STEP)?;
    let mut txn = Transaction::new(pg);
    if page.entries.is_empty() {
        txn.push(TxnOp::RemoveCollection);
    }
    txn.ops.extend(page.entries.into_iter().map(TxnOp::Remove));
    Ok(Some(txn))
}

/// Sums up to [`COUNT_STEP`] objects from `from` on. Returns the sums and the next position. `note` is called for each readable object.
pub fn sum_objects(
    store: &dyn ReadStore,
    pg: PgId,
    from: Option<&ObjectId>,
    note: &mut dyn FnMut(&ObjectId, &ObjectContext),
) -> Result<(SumsDelta, Option<ObjectId>), StoreError> {
    let first = ObjectId::min_at_hash(pg.pool, 0);
    let mut page = match store.list_objects(pg, from.unwrap_or(&first), None, COUNT_STEP + 1) {
        Ok(page) => page,
        Err(StoreError::NoCollection(_)) => return Ok((SumsDelta::default(), None)),
        Err(error) => return Err(error),
    };
    let position = (page.entries.len() > COUNT_STEP).then(|| page.entries.pop()).flatten();
    let mut sum = SumsDelta::default();
    let is_users = |oid: &&ObjectId| !nacre_pg::is_temp(oid) && oid.namespace() != INTERNAL_NAMESPACE;
    for oid in page.entries.iter().filter(is_users) {
        match load_context(store, pg, oid) {
            Ok(context) => {
                sum += SumsDelta::between(&ObjectContext::default(), &context);
                note(oid, &context);
            }
            // Damaged objects count as objects; reads report them.
            Err(error) if error.is_damage() => sum.objects += 1,
            Err(error) => return Err(error),
        }
    }
    Ok((sum, position))
}

/// The error that a PG's machine gets for an object that could not be read for recovery. Only damage is a property of the object.
pub fn recovery_errno(error: &StoreError) -> Errno {
    if error.is_damage() { Errno::EIO } else { Errno::EAGAIN }
}

/// Returns up to `max` objects from `from` on with their versions, and whether these are the last. A damaged object has the lowest version.
pub fn list_versions(
    store: &dyn ReadStore,
    pg: PgId,
    from: Option<&ObjectId>,
    max: usize,
) -> Result<(Vec<(ObjectId, Eversion)>, bool), StoreError> {
    let first = ObjectId::min_at_hash(pg.pool, 0);
    let page = match store.list_objects(pg, from.unwrap_or(&first), None, max) {
        Ok(page) => page,
        Err(StoreError::NoCollection(_)) => return Ok((Vec::new(), true)),
        Err(error) => return Err(error),
    };
    let mut objects = Vec::with_capacity(page.entries.len());
    for oid in page.entries {
        let version = match store.get_attr(pg, &oid, OI_ATTR).and_then(|attr| decode_info(&oid, attr)) {
            Ok(info) => info.version,
            Err(error) if error.is_damage() => {
                // This version equals no other, so backfill replaces the damaged copy.
                tracing::error!(object = %oid, %error, "an object's info is damaged");
                Eversion::default()
            }
            Err(error) => return Err(error),
        };
        objects.push((oid, version));
    }
    Ok((objects, !page.more))
}

/// Returns the piece of an object from `cursor` on, or `None` if it does not exist.
pub fn read_piece(
    store: &dyn ReadStore,
    pg: PgId,
    oid: &ObjectId,
    cursor: &PieceCursor,
    max_bytes: usize,
) -> Result<Option<ObjectPiece>, StoreError> {
    let max_bytes = max_bytes.clamp(1, MAX_PIECE_BYTES);
    let stat = match store.stat(pg, oid) {
        Ok(stat) => stat,
        Err(StoreError::NotFound(_) | StoreError::NoCollection(_)) => return Ok(None),
        Err(error) => return Err(error),
    };
    let first = *cursor == PieceCursor::default();
    let attrs = store.get_attrs(pg, oid)?;
    let info = attrs.iter().find(|(name, _)| name == OI_ATTR).map(|(_, value)| value.clone());
    let mut piece = ObjectPiece {
        start: PieceCursor { offset: cursor.offset.min(stat.size), ..cursor.clone() },
        version: decode_info(oid, info)?.version,
        size: stat.size,
        data: Bytes::new(),
        attrs: if first { attrs } else { Vec::new() },
        omap_header: if first && stat.has_omap { store.omap_get_header(pg, oid)? } else { Bytes::new() },
        omap: Vec::new(),
        next: None,
    };
    let mut room = max_bytes;
    let mut omap_after = cursor.omap_after.clone();
    if omap_after.is_none() {
        let left = stat.size - piece.start.offset;
        if left > 0 {
            piece.data = store.read(pg, oid, piece.start.offset, left.min(room as u64))?;
            if piece.data.is_empty() {
                return Err(StoreError::Corrupt {
                    what: oid.to_string(),
                    detail: "shorter than its size".into(),
                });
            }
            room = room.saturating_sub(piece.data.len());
        }
        let end = piece.start.offset + piece.data.len() as u64;
        if end < stat.size {
            piece.next = Some(PieceCursor { offset: end, omap_after: None });
            return Ok(Some(piece));
        }
        if !stat.has_omap {
            return Ok(Some(piece));
        }
        omap_after = Some(Bytes::new());
    }
    let after = omap_after.filter(|after| !after.is_empty());
    if room == 0 {
        let omap_after = Some(after.unwrap_or_default());
        piece.next = Some(PieceCursor { offset: stat.size, omap_after });
        return Ok(Some(piece));
    }
    let page = store.omap_iterate(pg, oid, after.as_deref(), b"", OMAP_STEP_ENTRIES, room)?;
    if page.more {
        let last = page.entries.last().map(|(key, _)| key.clone());
        piece.next = Some(PieceCursor { offset: stat.size, omap_after: last });
    }
    piece.omap = page.entries;
    Ok(Some(piece))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_objectstore::{MemStore, ObjectStore};
    use nacre_types::ids::{Interval, PoolId};
    use nacre_types::op::ObjectInfo;

    const PG: PgId = PgId { pool: PoolId(1), seed: 0 };

    fn store(directory: &std::path::Path) -> MemStore {
        MemStore::mkfs(directory).unwrap();
        let (store, _) = MemStore::mount(directory, Default::default()).unwrap();
        let mut txn = Transaction::new(PG);
        txn.push(TxnOp::CreateCollection);
        store.queue_transaction(&txn, None).unwrap();
        store
    }

    fn put(store: &MemStore, name: &str, data: &[u8], omap: usize) -> ObjectId {
        let oid = ObjectId::new(PoolId(1), "", "", name);
        let info = ObjectInfo { version: Eversion::new(Interval(3), 7), ..ObjectInfo::default() };
        let mut txn = Transaction::new(PG);
        txn.push(TxnOp::Write { oid: oid.clone(), offset: 0, data: Bytes::copy_from_slice(data).into() });
        let info = Bytes::from(nacre_types::encoding::encode(&info));
        txn.push(TxnOp::SetAttrs { oid: oid.clone(), attrs: vec![(OI_ATTR.into(), info)] });
        if omap > 0 {
            let entries =
                (0..omap).map(|i| (Bytes::from(format!("k{i:03}")), Bytes::from(vec![b'v'; 50]))).collect();
            txn.push(TxnOp::OmapSet { oid: oid.clone(), entries });
            txn.push(TxnOp::OmapSetHeader { oid: oid.clone(), header: Bytes::from_static(b"head") });
        }
        store.queue_transaction(&txn, None).unwrap();
        oid
    }

    #[test]
    fn pieces_make_up_the_whole_object() {
        let directory = tempfile::tempdir().unwrap();
        let store = store(directory.path());
        let data: Vec<u8> = (0..1000_u32).map(|i| i as u8).collect();
        for (name, length, omap) in [("a", 1000, 40), ("b", 0, 40), ("c", 1000, 0), ("d", 0, 0)] {
            let oid = put(&store, name, &data[..length], omap);
            let (mut got, mut keys, mut cursor, mut pieces) = (Vec::new(), 0, PieceCursor::default(), 0);
            loop {
                let piece = read_piece(&store, PG, &oid, &cursor, 300).unwrap().unwrap();
                assert_eq!(piece.version, Eversion::new(Interval(3), 7));
                assert_eq!(piece.attrs.len(), usize::from(pieces == 0));
                assert_eq!(piece.omap_header.is_empty(), pieces > 0 || omap == 0);
                got.extend_from_slice(&piece.data);
                keys += piece.omap.len();
                pieces += 1;
                match piece.next {
                    Some(next) => cursor = next,
                    None => break,
                }
                assert!(pieces < 100, "does not end");
            }
            assert_eq!((&got[..], keys), (&data[..length], omap), "{name}");
        }
        let absent = ObjectId::new(PoolId(1), "", "", "absent");
        assert_eq!(read_piece(&store, PG, &absent, &PieceCursor::default(), 300).unwrap(), None);
    }

    #[test]
    fn removal_takes_bounded_steps_and_ends() {
        let directory = tempfile::tempdir().unwrap();
        let store = store(directory.path());
        for i in 0..3 * REMOVE_STEP {
            put(&store, &format!("o{i}"), b"x", 0);
        }
        let (sum, position) = sum_objects(&store, PG, None, &mut |_, _| {}).unwrap();
        assert_eq!((sum.objects, sum.bytes, position.is_some()), (128, 128, true));
        let mut steps = 0;
        while let Some(txn) = removal_step(&store, PG).unwrap() {
            store.queue_transaction(&txn, None).unwrap();
            steps += 1;
        }
        assert_eq!((steps, store.collection_exists(PG).unwrap()), (4, false));
    }

    #[test]
    fn listings_carry_versions_and_resume() {
        let directory = tempfile::tempdir().unwrap();
        let store = store(directory.path());
        let mut all: Vec<_> = (0..10).map(|i| put(&store, &format!("o{i}"), b"x", 0)).collect();
        all.sort();
        let (first, end) = list_versions(&store, PG, None, 6).unwrap();
        assert_eq!((first.len(), end), (6, false));
        let (rest, end) = list_versions(&store, PG, Some(&all[6]), 6).unwrap();
        assert!(end && rest.iter().map(|(oid, _)| oid).eq(&all[6..]));
        assert!(rest.iter().all(|(_, version)| *version == Eversion::new(Interval(3), 7)));
    }
}
