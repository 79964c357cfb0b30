//! Database keys: order-preserving encodings of collections, objects, log versions and ids (docs/format/bluestore.md).

use nacre_types::ids::{Eversion, Interval, PgId, PoolId};
use nacre_types::object::ObjectId;

/// Length of the collection prefix in bytes.
pub(crate) const COLLECTION_PREFIX_BYTES: usize = 12;

/// Follows the collection prefix in the key of the collection's record.
pub(crate) const COLLECTION_RECORD: u8 = 0;
/// Follows the collection prefix in the key of one of the collection's values. The name follows.
pub(crate) const COLLECTION_META: u8 = 1;

/// Follows the omap's id in the key of the header in the `omap` family.
pub(crate) const OMAP_HEADER: u8 = 0;
/// Follows the omap's id in the key of an entry in the `omap` family. The user's key follows.
pub(crate) const OMAP_ENTRY: u8 = 1;

/// Ends a string. Encoded strings contain this byte and the escape byte only in escaped form.
const END: u8 = 0;
/// Starts an escape sequence: followed by 1 it stands for a zero byte, followed by 2 for itself.
const ESCAPE: u8 = 1;

fn pool_bits(pool: PoolId) -> [u8; 8] {
    (pool.0 as u64 ^ 1 << 63).to_be_bytes()
}

fn pool_of_bits(bits: [u8; 8]) -> PoolId {
    PoolId((u64::from_be_bytes(bits) ^ 1 << 63) as i64)
}

/// The prefix of all keys of a collection.
pub(crate) fn collection(coll: PgId) -> [u8; COLLECTION_PREFIX_BYTES] {
    let mut key = [0; COLLECTION_PREFIX_BYTES];
    key[..8].copy_from_slice(&pool_bits(coll.pool));
    key[8..].copy_from_slice(&coll.seed.to_be_bytes());
    key
}

/// The exclusive upper bound of all keys of a collection.
pub(crate) fn collection_end(coll: PgId) -> Vec<u8> {
    match coll.seed.checked_add(1) {
        Some(seed) => collection(PgId::new(coll.pool, seed)).to_vec(),
        None => collection(PgId::new(PoolId(coll.pool.0.saturating_add(1)), 0)).to_vec(),
    }
}

/// The exclusive upper bound of all keys that begin with `prefix`. Empty if there is no bound.
pub(crate) fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            break;
        }
    }
    end
}

/// Splits a key with a collection prefix into the collection and the rest.
pub(crate) fn split_collection(key: &[u8]) -> Option<(PgId, &[u8])> {
    let (prefix, rest) = key.split_at_checked(COLLECTION_PREFIX_BYTES)?;
    let pool = pool_of_bits(prefix[..8].try_into().ok()?);
    Some((PgId::new(pool, u32::from_be_bytes(prefix[8..].try_into().ok()?)), rest))
}

/// The key of one of a collection's own values.
pub(crate) fn collection_meta(coll: PgId, name: &str) -> Vec<u8> {
    [&collection(coll)[..], &[COLLECTION_META], name.as_bytes()].concat()
}

/// The key of a collection's record.
pub(crate) fn collection_record(coll: PgId) -> Vec<u8> {
    [&collection(coll)[..], &[COLLECTION_RECORD]].concat()
}

/// The key of a log entry.
pub(crate) fn log(coll: PgId, version: Eversion) -> [u8; COLLECTION_PREFIX_BYTES + 16] {
    let mut key = [0; COLLECTION_PREFIX_BYTES + 16];
    key[..COLLECTION_PREFIX_BYTES].copy_from_slice(&collection(coll));
    key[COLLECTION_PREFIX_BYTES..COLLECTION_PREFIX_BYTES + 8]
        .copy_from_slice(&version.interval.0.to_be_bytes());
    key[COLLECTION_PREFIX_BYTES + 8..].copy_from_slice(&version.version.to_be_bytes());
    key
}

/// The collection and version in the key of a log entry.
pub(crate) fn split_log(key: &[u8]) -> Option<(PgId, Eversion)> {
    let (coll, rest) = split_collection(key)?;
    let (interval, version) = rest.split_first_chunk::<8>()?;
    let version = u64::from_be_bytes(version.try_into().ok()?);
    Some((coll, Eversion::new(Interval(u64::from_be_bytes(*interval)), version)))
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    let bytes = text.as_bytes();
    if bytes.iter().all(|byte| *byte > ESCAPE) {
        out.extend_from_slice(bytes);
    } else {
        for byte in bytes {
            if *byte <= ESCAPE {
                out.push(ESCAPE);
            }
            out.push(if *byte <= ESCAPE { byte + 1 } else { *byte });
        }
    }
    out.push(END);
}

fn take_string(key: &[u8]) -> Option<(String, &[u8])> {
    let end = key.iter().position(|byte| *byte == END)?;
    let mut text = Vec::with_capacity(end);
    let mut raw = key[..end].iter();
    while let Some(&byte) = raw.next() {
        text.push(match byte {
            ESCAPE => raw.next()?.checked_sub(1).filter(|byte| *byte <= ESCAPE)?,
            other => other,
        });
    }
    Some((String::from_utf8(text).ok()?, &key[end + 1..]))
}

/// The relation of an object's pool to its collection's pool.
const POOL_BELOW: u8 = 0x40;
const POOL_SAME: u8 = 0x80;
const POOL_ABOVE: u8 = 0xc0;

/// The relation of a name to the key that places the object.
const NAME_BELOW: u8 = 1;
const NAME_IS_KEY: u8 = 2;
const NAME_IS_LOCATOR: u8 = 3;
const NAME_ABOVE: u8 = 4;

/// Appends the key of an object of `coll`. Keys of one collection sort like [`ObjectId`]s.
pub(crate) fn put_onode(out: &mut Vec<u8>, coll: PgId, oid: &ObjectId) {
    out.extend_from_slice(&collection(coll));
    match oid.pool().cmp(&coll.pool) {
        std::cmp::Ordering::Equal => out.push(POOL_SAME),
        order => {
            out.push(if order.is_lt() { POOL_BELOW } else { POOL_ABOVE });
            out.extend_from_slice(&pool_bits(oid.pool()));
        }
    }
    out.extend_from_slice(&oid.sort_hash().to_be_bytes());
    put_string(out, oid.namespace());
    let key = oid.effective_key();
    put_string(out, key);
    match oid.name().cmp(key) {
        std::cmp::Ordering::Equal if oid.locator().is_empty() => out.push(NAME_IS_KEY),
        std::cmp::Ordering::Equal => out.push(NAME_IS_LOCATOR),
        order => {
            out.push(if order.is_lt() { NAME_BELOW } else { NAME_ABOVE });
            put_string(out, oid.name());
        }
    }
    out.extend_from_slice(&oid.snap().to_be_bytes());
}

/// The key of an object of `coll`.
pub(crate) fn onode(coll: PgId, oid: &ObjectId) -> Vec<u8> {
    let mut key = Vec::with_capacity(64);
    put_onode(&mut key, coll, oid);
    key
}

/// The collection and object in the key of an onode.
pub(crate) fn split_onode(key: &[u8]) -> Option<(PgId, ObjectId)> {
    let (coll, rest) = split_collection(key)?;
    let (kind, mut rest) = rest.split_first()?;
    let pool = match *kind {
        POOL_SAME => coll.pool,
        POOL_BELOW | POOL_ABOVE => {
            let (bits, after) = rest.split_first_chunk::<8>()?;
            rest = after;
            pool_of_bits(*bits)
        }
        _ => return None,
    };
    let (hash, rest) = rest.split_first_chunk::<4>()?;
    let (namespace, rest) = take_string(rest)?;
    let (placed_by, rest) = take_string(rest)?;
    let (relation, mut rest) = rest.split_first()?;
    let (locator, name) = match *relation {
        NAME_IS_KEY => (String::new(), placed_by),
        NAME_IS_LOCATOR => (placed_by.clone(), placed_by),
        NAME_BELOW | NAME_ABOVE => {
            let (name, after) = take_string(rest)?;
            rest = after;
            (placed_by, name)
        }
        _ => return None,
    };
    let snap = u64::from_be_bytes(rest.try_into().ok()?);
    if namespace.len() > usize::from(u16::MAX) || locator.len() > usize::from(u16::MAX) {
        return None;
    }
    let hash = u32::from_be_bytes(*hash).reverse_bits();
    Some((coll, ObjectId::with_hash(pool, &namespace, &locator, &name, snap, hash)))
}

/// The key of a numbered record: checksums and shared blobs by blob id.
pub(crate) fn id(id: u64) -> [u8; 8] {
    id.to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_fuzz::Target;
    use nacre_types::object::SNAP_HEAD;
    use proptest::prelude::*;

    fn any_oid() -> impl Strategy<Value = ObjectId> {
        let text = || {
            proptest::collection::vec(
                prop_oneof![Just('\0'), Just('\u{1}'), Just('a'), Just('b'), Just('ÿ')],
                0..4,
            )
        };
        let snap = prop_oneof![Just(SNAP_HEAD), 0..3_u64, Just(u64::MAX)];
        (-2..3_i64, 0..3_u32, text(), text(), text(), snap).prop_map(|(pool, hash, ns, key, name, snap)| {
            let text = |chars: Vec<char>| chars.into_iter().collect::<String>();
            ObjectId::with_hash(PoolId(pool), &text(ns), &text(key), &text(name), snap, hash.reverse_bits())
        })
    }

    proptest! {
        #[test]
        fn onode_keys_sort_as_objects_do_and_decode(a in any_oid(), b in any_oid()) {
            let coll = PgId::new(PoolId(1), 7);
            let (ka, kb) = (onode(coll, &a), onode(coll, &b));
            prop_assert_eq!(ka.cmp(&kb), a.cmp(&b), "{:?} {:?}", a, b);
            prop_assert_eq!(split_onode(&ka), Some((coll, a)));
        }
    }

    #[test]
    fn fuzz_keys() {
        let corpus = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"));
        let coll = PgId { pool: PoolId(3), seed: 7 };
        let mut seeds = Vec::new();
        for (pool, locator, name) in [(3, "", "name"), (2, "key", "key"), (9, "m", "a\u{0}\u{1}")] {
            seeds.push(onode(coll, &ObjectId::new(PoolId(pool), "ns", locator, name)));
        }
        Target::new("onode-key", corpus, seeds).run(|input| {
            let (coll, oid) = split_onode(input)?;
            Some(onode(coll, &oid))
        });
        let seed = log(coll, Eversion::new(Interval(4), 12)).to_vec();
        Target::new("log-key", corpus, vec![seed]).run(|input| {
            let (coll, version) = split_log(input)?;
            Some(log(coll, version).to_vec())
        });
    }

    #[test]
    fn collections_and_logs_sort_by_number() {
        let colls = [
            PgId::new(PoolId(-1), 9),
            PgId::new(PoolId(0), 0),
            PgId::new(PoolId(2), 300),
            PgId::new(PoolId(2), 1 << 31),
        ];
        assert!(colls.windows(2).all(|pair| collection(pair[0]) < collection(pair[1])));
        let version = Eversion::new(Interval(1 << 40), 9);
        assert_eq!(split_log(&log(colls[2], version)), Some((colls[2], version)));
        assert!(
            log(colls[2], Eversion::new(Interval(2), 500)) < log(colls[2], Eversion::new(Interval(3), 1))
        );
        assert_eq!(split_onode(b"short"), None);
    }
}
