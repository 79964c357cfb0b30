//! Listings of a pool that has a cache tier: the base pool's objects, with the cache's changes applied.
//!
//! A page of the base's PG is read after the dirty objects of the same range. An object that is flushed in between is in the base by then,
//! and an object that did not change is in one of the two. So an object that did not change is listed once, and a deleted one is not
//! listed.

use super::state::ReplyTarget;
use super::{Shared, listing};
use nacre_engine::engine::{Cursor, ListPage};
use nacre_engine::{Error, Result};
use nacre_types::errno::Errno;
use nacre_types::op::{ListDirtyReply, Op};
use nacre_types::osdmap::OsdMap;
use nacre_types::pool::Pool;
use nacre_types::{ObjectId, PgId, PoolId, encoding};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How often the cache is asked again while one of its PGs does not know its dirty objects, and the delay between tries.
const TRIES: u32 = 100;
const WAIT: Duration = Duration::from_millis(100);

/// The cache tier that serves `pool`, if any.
pub(super) fn cache_of(map: Option<&OsdMap>, pool: PoolId) -> Option<PoolId> {
    let map = map?;
    let tiering = &map.pools.get(&pool)?.tiering;
    let cache = tiering.write_tier.or(tiering.read_tier)?;
    map.pools.contains_key(&cache).then_some(cache)
}

/// The PGs of `cache` that may hold objects of the base's PG `seed`. If the smaller number of PGs is a power of two, these are the PGs that
/// have the same low bits; otherwise all PGs.
fn pgs_of_cache(cache: PoolId, pool: &Pool, base: &Pool, seed: u32) -> Vec<PgId> {
    let least = pool.pg_num.min(base.pg_num);
    let bits = if least.is_power_of_two() { least - 1 } else { 0 };
    let seeds = (0..pool.pg_num).filter(|other| other & bits == seed & bits);
    seeds.map(|seed| PgId::new(cache, seed)).collect()
}

/// Lists a page from `cursor` on. It ends where the listing of either pool ends.
pub(super) async fn list(
    shared: &Arc<Shared>,
    cursor: ObjectId,
    max: u64,
    namespace: Option<String>,
) -> Result<ListPage> {
    let map = shared.map();
    let Some(cache) = cache_of(map.as_deref(), cursor.pool()) else {
        return shared.list_pool(cursor, max, namespace).await;
    };
    let Some((map, base)) = map.as_ref().and_then(|map| Some((map, map.pools.get(&cursor.pool())?))) else {
        return Err(Errno::ENOENT.into());
    };
    let pg = base.pg_of_hash(cursor.pool(), cursor.hash());
    let (mut dirty, mut end) = (BTreeMap::new(), None::<ObjectId>);
    for of_cache in pgs_of_cache(cache, &map.pools[&cache], base, pg.seed) {
        let reply = list_dirty(shared, of_cache, cursor.with_pool(cache), max, namespace.clone()).await?;
        for (object, deleted) in reply.objects {
            let object = object.with_pool(cursor.pool());
            if base.pg_of(&object) == pg {
                dirty.insert(object, deleted);
            }
        }
        let next = reply.next.map(|next| next.with_pool(cursor.pool()));
        end = [end, next].into_iter().flatten().min();
    }
    let page = shared.list_pool(cursor, max, namespace).await?;
    // The page ends where either listing ends. It goes beyond the base's PG only if the cache's PGs were listed to their ends.
    let in_pg = match &page.next {
        Cursor::At(next) if base.pg_of_hash(next.pool(), next.hash()) == pg => Some(next.clone()),
        _ => None,
    };
    let end = [end, in_pg].into_iter().flatten().min();
    let before_end = |object: &ObjectId| end.as_ref().is_none_or(|end| object < end);
    let mut objects: BTreeMap<ObjectId, bool> =
        page.objects.into_iter().filter(before_end).map(|object| (object, false)).collect();
    objects.extend(dirty.into_iter().filter(|(object, _)| before_end(object)));
    let objects = objects.into_iter().filter(|(_, deleted)| !deleted).map(|(object, _)| object).collect();
    Ok(ListPage { objects, next: end.map_or(page.next, Cursor::At) })
}

async fn list_dirty(
    shared: &Arc<Shared>,
    pg: PgId,
    cursor: ObjectId,
    max: u64,
    namespace: Option<String>,
) -> Result<ListDirtyReply> {
    for _ in 0..TRIES {
        let op = Op::ListDirty { cursor: cursor.clone(), max, namespace: namespace.clone() };
        let request = listing(ObjectId::min_at_hash(pg.pool, pg.seed), op);
        let reply = shared.operate_with(request, ReplyTarget::Channel).await?;
        match reply.success() {
            Ok(mut reply) => return Ok(encoding::decode(&reply.output(0)?)?),
            Err(error) if error.errno() == Errno::EAGAIN => tokio::time::sleep(WAIT).await,
            Err(error) => return Err(error),
        }
    }
    Err(Error::TimedOut(format!("pg {pg} of the cache does not know what is dirty yet")))
}
