//! The lists of users' buckets: the omap of an object per user in `default.rgw.meta` (docs/format/rgw.md).

use crate::error::{Error, Result};
use crate::record;
use bytes::Bytes;
use nacre_client::{IoCtx, WriteOp};
use nacre_types::encoding::Versioned;
use nacre_types::op::CmpOp;
use serde::{Deserialize, Serialize};

/// The suffix of the names of the lists. No user's id ends with it.
pub(crate) const USER_BUCKETS_SUFFIX: &str = ".buckets";

/// An entry of a user's list of buckets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserBucketEntry {
    /// The bucket's id.
    pub id: String,
    /// When it was created, in nanoseconds since 1970.
    pub created_ns: u64,
}

impl Versioned for UserBucketEntry {
    const NAME: &'static str = "a user's bucket";
}

/// Returns the key of a bucket in its owner's list.
fn list_key(name: &str) -> Bytes {
    Bytes::from(name.to_owned())
}

/// Returns the name of the RADOS object that lists a user's buckets.
fn list_object(user: &str) -> String {
    format!("{user}{USER_BUCKETS_SUFFIX}")
}

/// The lists of users' buckets.
pub struct UserBuckets {
    pool: IoCtx,
}

impl UserBuckets {
    /// `pool` contains the users.
    pub(crate) fn new(pool: &IoCtx) -> UserBuckets {
        UserBuckets { pool: pool.clone() }
    }

    /// Returns at most `max` buckets of a user after `after`, by name.
    pub async fn list(&self, user: &str, after: &str, max: u64) -> Result<Vec<(String, UserBucketEntry)>> {
        let list = list_object(user);
        let (mut found, mut after) = (Vec::new(), after.to_owned());
        while (found.len() as u64) < max {
            let asked = max - found.len() as u64;
            let page = match self.pool.omap_get_vals(&list, after.clone(), "", asked.min(1000)).await {
                Err(error) if error.is_not_found() => break,
                page => page?,
            };
            for (key, value) in &page.entries {
                let name = String::from_utf8_lossy(key).into_owned();
                found.push((name.clone(), record::decode::<UserBucketEntry>(&list, value)?));
                after = name;
            }
            if !page.more {
                break;
            }
        }
        Ok(found)
    }

    /// Adds a bucket to a user's list, or replaces its entry. Returns the encoded entry.
    pub(crate) async fn add(&self, user: &str, name: &str, entry: &UserBucketEntry) -> Result<Bytes> {
        let encoded = record::encode(entry);
        self.pool.omap_set(&list_object(user), vec![(list_key(name), encoded.clone())]).await?;
        Ok(encoded)
    }

    /// Returns the encoded entry of a bucket in a user's list.
    pub(crate) async fn get(&self, user: &str, name: &str) -> Result<Option<Bytes>> {
        let key = list_key(name);
        match self.pool.omap_get_vals_by_keys(&list_object(user), vec![key.clone()]).await {
            Err(error) if error.is_not_found() => Ok(None),
            listed => Ok(listed?.remove(&key)),
        }
    }

    /// Replaces the entry of a bucket in a user's list with `wanted`, or removes it, if it still equals `known`.
    pub(crate) async fn replace(
        &self,
        user: &str,
        name: &str,
        known: Bytes,
        wanted: Option<&UserBucketEntry>,
    ) -> Result<()> {
        let mut op = WriteOp::new();
        op.omap_cmp(vec![(list_key(name), CmpOp::Eq, known)]);
        match wanted {
            Some(wanted) => op.omap_set(vec![(list_key(name), record::encode(wanted))]),
            None => op.omap_rm_keys(vec![list_key(name)]),
        };
        match self.pool.operate(&list_object(user), op).await?.success().map_err(Error::from) {
            Err(error) if error.is_canceled() || error.is_not_found() => Ok(()),
            done => done.map(drop),
        }
    }

    /// Removes a bucket from a user's list.
    pub(crate) async fn remove(&self, user: &str, name: &str) -> Result<()> {
        match self.pool.omap_rm_keys(&list_object(user), vec![list_key(name)]).await {
            Err(error) if error.is_not_found() => Ok(()),
            removed => Ok(removed?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestCluster;

    #[test]
    fn an_entry_is_replaced_only_if_it_is_the_known_one() {
        let cluster = TestCluster::new();
        let (connection, _) = cluster.connect();
        cluster.run(async move {
            let buckets = UserBuckets::new(&connection.pools.users);
            let entry = |id: &str| UserBucketEntry { id: id.into(), created_ns: 5 };
            let known = buckets.add("alice", "b", &entry("1")).await.unwrap();
            buckets.add("alice", "a", &entry("2")).await.unwrap();
            buckets.add("bob", "c", &entry("3")).await.unwrap();
            let names = async |after: &str, max| {
                let listed = buckets.list("alice", after, max).await.unwrap();
                listed.into_iter().map(|(name, entry)| (name, entry.id)).collect::<Vec<_>>()
            };
            assert_eq!(names("", 9).await, [("a".into(), "2".into()), ("b".into(), "1".into())]);
            assert_eq!(names("", 1).await, [("a".to_owned(), "2".to_owned())]);
            assert_eq!(names("a", 9).await, [("b".to_owned(), "1".to_owned())]);
            buckets.replace("alice", "b", known.clone(), Some(&entry("4"))).await.unwrap();
            buckets.replace("alice", "b", known, None).await.unwrap();
            assert_eq!(names("a", 9).await, [("b".to_owned(), "4".to_owned())], "it was replaced meanwhile");
            assert_eq!(buckets.get("alice", "absent").await.unwrap(), None);
            buckets.remove("alice", "b").await.unwrap();
            assert!(names("a", 9).await.is_empty());
        });
    }
}
