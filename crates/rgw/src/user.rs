//! Users and their keys: records in `default.rgw.meta` (docs/format/rgw.md).

use crate::caps::Caps;
use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::message::GatewayMessage;
use crate::peers::{CacheEntries, MetadataCache, Peers};
use crate::policy::Policy;
use crate::quota::Quota;
use crate::ratelimit::RateLimit;
use crate::record;
use crate::time::now_ns;
use crate::user_buckets::{USER_BUCKETS_SUFFIX, UserBuckets};
use nacre_types::encoding::{self, DecodeError, Versioned};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The default for the maximum number of buckets of a user (`rgw_user_max_buckets`).
pub const DEFAULT_MAX_BUCKETS: i32 = 1000;
/// The lengths of generated access keys and secrets, as in radosgw-admin.
const ACCESS_KEY_CHARS: usize = 20;
const SECRET_KEY_CHARS: usize = 40;

/// The prefix of temporary access keys, and their length. No user's own access key has this form.
pub(crate) const TEMPORARY_KEY_PREFIX: &str = "ASIA";
pub(crate) const TEMPORARY_KEY_CHARS: usize = 20;

/// Whether an access key belongs to temporary credentials.
pub fn is_temporary(access_key: &str) -> bool {
    access_key.len() == TEMPORARY_KEY_CHARS && access_key.starts_with(TEMPORARY_KEY_PREFIX)
}

/// A pair of keys of a user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessKey {
    /// The public half, unique in the cluster.
    pub access_key: String,
    /// The secret half, with which requests are signed.
    pub secret_key: String,
}

/// A user.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct User {
    /// Its id, unique in the cluster.
    pub id: String,
    /// Its display name.
    pub display_name: String,
    /// Its mail address; empty if there is none.
    pub email: String,
    /// The keys with which it signs requests.
    pub keys: Vec<AccessKey>,
    /// Requests of suspended users are refused.
    pub suspended: bool,
    /// The maximum number of buckets; 0 for no limit, negative if it may not create any.
    pub max_buckets: i32,
    /// Capabilities for administration (`users=read, write`), by the kind of resource.
    pub caps: Caps,
    /// Whether it may do anything with all buckets, whoever owns them.
    pub admin: bool,
    /// Like `admin`; radosgw has this for gateways of other zones.
    pub system: bool,
    /// The quota for all its buckets together.
    pub user_quota: Quota,
    /// The quota for each of its buckets that has none of its own.
    pub bucket_quota: Quota,
    /// The policies that say what it may do, by name. JSON.
    pub policies: BTreeMap<String, String>,
    /// When it was created, in nanoseconds since 1970; 0 if this is not known.
    pub created_ns: u64,
    /// Its rate limit, per minute and gateway.
    pub ratelimit: RateLimit,
    /// Parsed from the policies.
    #[serde(skip)]
    pub identity: Vec<Arc<Policy>>,
}

/// A user record of the first format.
#[derive(Deserialize)]
struct UserV1 {
    id: String,
    display_name: String,
    email: String,
    keys: Vec<AccessKey>,
    suspended: bool,
    max_buckets: u32,
    caps: Caps,
}

impl Versioned for User {
    const NAME: &'static str = "user";
    const VERSION: u8 = 2;
    /// A reader that does not know policies would not enforce those that deny something.
    const COMPAT: u8 = 2;

    fn decode_old(_version: u8, body: &[u8]) -> Result<User, DecodeError> {
        let old: UserV1 = encoding::decode_body(Self::NAME, body)?;
        Ok(User {
            email: old.email,
            keys: old.keys,
            suspended: old.suspended,
            max_buckets: i32::try_from(old.max_buckets).unwrap_or(i32::MAX),
            caps: old.caps,
            ..User::new(&old.id, &old.display_name)
        })
    }
}

/// The owner of an access key.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct KeyOwner {
    user: String,
}

impl Versioned for KeyOwner {
    const NAME: &'static str = "access key";
}

impl AccessKey {
    /// Generates a pair of random keys.
    pub fn generate() -> Result<AccessKey> {
        loop {
            let key = AccessKey::random()?;
            if !is_temporary(&key.access_key) {
                return Ok(key);
            }
        }
    }

    fn random() -> Result<AccessKey> {
        const UPPER: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
        const ANY: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+_";
        let mut random = [0; ACCESS_KEY_CHARS + SECRET_KEY_CHARS];
        getrandom::fill(&mut random).map_err(Error::no_random_numbers)?;
        let (access, secret) = random.split_at(ACCESS_KEY_CHARS);
        Ok(AccessKey {
            access_key: access.iter().map(|byte| char::from(UPPER[usize::from(byte % 32)])).collect(),
            secret_key: secret.iter().map(|byte| char::from(ANY[usize::from(byte % 64)])).collect(),
        })
    }
}

impl User {
    /// Returns a user without keys.
    pub fn new(id: &str, display_name: &str) -> User {
        User {
            id: id.to_owned(),
            display_name: display_name.to_owned(),
            email: String::new(),
            keys: Vec::new(),
            suspended: false,
            max_buckets: DEFAULT_MAX_BUCKETS,
            caps: Vec::new(),
            ratelimit: RateLimit::default(),
            admin: false,
            system: false,
            user_quota: Quota::default(),
            bucket_quota: Quota::default(),
            policies: BTreeMap::new(),
            created_ns: 0,
            identity: Vec::new(),
        }
    }

    /// Parses the policies. A policy that can't be parsed fails the user's requests, because it may be one that denies them.
    fn read_policies(mut self) -> Result<User> {
        for (name, text) in &self.policies {
            let read = Policy::read_identity(text).map_err(|detail| Error::Corrupt {
                name: format!("{}, policy {name}", self.id),
                source: DecodeError::Corrupt { what: "a user's policy", detail },
            });
            self.identity.push(Arc::new(read?));
        }
        Ok(self)
    }

    /// Returns radosgw-admin's output for a user.
    pub fn describe(&self) -> serde_json::Value {
        let keys: Vec<_> = self
            .keys
            .iter()
            .map(|key| {
                serde_json::json!({
                    "user": self.id, "access_key": key.access_key, "secret_key": key.secret_key, "active": true,
                })
            })
            .collect();
        let caps: Vec<_> =
            self.caps.iter().map(|(kind, perm)| serde_json::json!({ "type": kind, "perm": perm })).collect();
        let mut shown = serde_json::json!({
            "user_id": self.id, "display_name": self.display_name, "email": self.email,
            "suspended": u8::from(self.suspended), "max_buckets": self.max_buckets,
            "subusers": [], "keys": keys, "swift_keys": [], "caps": caps, "op_mask": "read, write, delete",
            "default_placement": "", "default_storage_class": "", "placement_tags": [],
            "bucket_quota": self.bucket_quota.describe(), "user_quota": self.user_quota.describe(),
            "temp_url_keys": [], "type": "rgw", "mfa_ids": [], "account_id": "", "path": "/", "tags": [],
            "group_ids": [],
        });
        if self.created_ns > 0 {
            shown["create_date"] = crate::time::format_time(self.created_ns).into();
        }
        for (name, _) in [("admin", self.admin), ("system", self.system)].iter().filter(|(_, is)| *is) {
            shown[*name] = true.into();
        }
        shown
    }
}

/// Checks that a text may be the id of a user.
fn check_id(id: &str) -> Result<()> {
    let sound =
        !id.is_empty() && id.len() <= 128 && id.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'$');
    // The names of users' lists of buckets have this suffix.
    let sound = sound && !id.ends_with(USER_BUCKETS_SUFFIX);
    if sound { Ok(()) } else { Err(Error::Invalid(format!("'{id}' can't be a user's id"))) }
}

/// The quotas of users that are created without any.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DefaultQuotas {
    pub(crate) user: Quota,
    pub(crate) bucket: Quota,
}

/// The users of a cluster.
pub struct Users {
    connection: Arc<Connection>,
    peers: Arc<Peers>,
    default_quotas: DefaultQuotas,
    by_key: MetadataCache<User>,
    by_id: MetadataCache<User>,
    /// The lists of the users' buckets.
    pub buckets: UserBuckets,
}

impl Users {
    pub(crate) fn new(
        connection: &Arc<Connection>,
        peers: &Arc<Peers>,
        default_quotas: DefaultQuotas,
    ) -> Users {
        let by_key = MetadataCache::new(peers, |users: &mut CacheEntries<User>, change| {
            if let GatewayMessage::User(id) = change {
                users.remove_if(|user| user.id == *id);
            }
        });
        let by_id = MetadataCache::new(peers, |users, change| {
            if let GatewayMessage::User(id) = change {
                users.remove(id);
            }
        });
        let buckets = UserBuckets::new(&connection.pools.users);
        let (connection, peers) = (Arc::clone(connection), Arc::clone(peers));
        Users { connection, peers, default_quotas, by_key, by_id, buckets }
    }

    /// Returns the user of an access key, as of the beginning of the call or later.
    pub async fn cached_by_key(&self, access_key: &str) -> Result<Arc<User>> {
        self.by_key.get(access_key, self.get_by_key(access_key)).await
    }

    /// Returns the user of that id, as of the beginning of the call or later.
    pub async fn cached(&self, id: &str) -> Result<Arc<User>> {
        self.by_id.get(id, self.get(id)).await
    }

    /// Reads the user of that id.
    pub async fn get(&self, id: &str) -> Result<User> {
        let found = record::read::<User>(&self.connection.pools.users, id).await?;
        let (user, _) = found.ok_or_else(|| Error::NoSuchUser(id.to_owned()))?;
        user.read_policies()
    }

    /// Reads the user that an access key belongs to.
    pub async fn get_by_key(&self, access_key: &str) -> Result<User> {
        let unknown = || Error::NoSuchUser(access_key.to_owned());
        let (owner, _) =
            record::read::<KeyOwner>(&self.connection.pools.keys, access_key).await?.ok_or_else(unknown)?;
        let user = self.get(&owner.user).await?;
        // Otherwise the key is being added or removed.
        if user.keys.iter().any(|key| key.access_key == access_key) { Ok(user) } else { Err(unknown()) }
    }

    /// Creates a user with its keys. A user without quotas gets the default quotas.
    pub async fn create(&self, user: &User) -> Result<()> {
        check_id(&user.id)?;
        if record::read::<User>(&self.connection.pools.users, &user.id).await?.is_some() {
            return Err(Error::UserExists(user.id.clone()));
        }
        for key in &user.keys {
            self.take_key(&user.id, &key.access_key).await?;
        }
        let mut user = user.clone();
        user.created_ns = now_ns();
        if user.user_quota == Quota::default() {
            user.user_quota = self.default_quotas.user;
        }
        if user.bucket_quota == Quota::default() {
            user.bucket_quota = self.default_quotas.bucket;
        }
        if !record::create(&self.connection.pools.users, &user.id, &user).await? {
            return Err(Error::UserExists(user.id.clone()));
        }
        for key in &user.keys {
            if let Err(error) = self.confirm_key(&user.id, &key.access_key).await {
                let is_new = |now: &User| {
                    if now.created_ns == user.created_ns {
                        Ok(())
                    } else {
                        Err(Error::UserExists(now.id.clone()))
                    }
                };
                let removing = record::remove_if(&self.connection.pools.users, &user.id, is_new);
                match self.peers.with_invalidation(GatewayMessage::User(user.id.clone()), removing).await {
                    Ok(_) | Err(Error::UserExists(_)) => {}
                    Err(error) => {
                        tracing::warn!(%error, user = user.id, "rgw: a user without its key is left")
                    }
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Reserves an access key for a user. The reservation is confirmed by [`Users::confirm_key`] after the user's record
    /// has the key; until then, another user may take it over.
    async fn take_key(&self, user: &str, access_key: &str) -> Result<()> {
        if access_key.is_empty() || is_temporary(access_key) {
            return Err(Error::Invalid(format!("'{access_key}' can't be a user's access key")));
        }
        let owner = KeyOwner { user: user.to_owned() };
        if record::create(&self.connection.pools.keys, access_key, &owner).await? {
            return Ok(());
        }
        let contended = || Error::Contended(format!("key {access_key}"));
        // The reservation may be left over from an interrupted attempt. It is read before its user, and replaced only if it
        // was not confirmed in between.
        let (found, version) =
            record::read::<KeyOwner>(&self.connection.pools.keys, access_key).await?.ok_or_else(contended)?;
        let is_taken = match self.get(&found.user).await {
            Ok(owner) => owner.keys.iter().any(|key| key.access_key == access_key),
            Err(Error::NoSuchUser(_)) => false,
            Err(error) => return Err(error),
        };
        if is_taken {
            return Err(Error::KeyExists(access_key.to_owned()));
        }
        match record::replace(&self.connection.pools.keys, access_key, version, &owner).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(contended()),
            // It was removed in between.
            Err(error) if error.is_not_found() => Err(contended()),
            Err(error) => Err(error),
        }
    }

    /// Confirms the reservation of an access key that the user's record has. Fails if another user has taken it over.
    ///
    /// The reservation is written once more, so that its version rises: whoever read it before this can't replace it, and
    /// whoever reads it later finds the key in the user's record.
    async fn confirm_key(&self, user: &str, access_key: &str) -> Result<()> {
        let exists = || Error::KeyExists(access_key.to_owned());
        let confirmed = record::update(&self.connection.pools.keys, access_key, |owner: &mut KeyOwner| {
            if owner.user == user { Ok(()) } else { Err(exists()) }
        });
        confirmed.await?.map(drop).ok_or_else(exists)
    }

    /// Changes a user. Keys are changed with [`Users::add_key`] and [`Users::remove_key`].
    pub async fn modify(&self, id: &str, change: impl FnMut(&mut User) -> Result<()>) -> Result<User> {
        let changing = record::update(&self.connection.pools.users, id, change);
        let changed = self.peers.with_invalidation(GatewayMessage::User(id.to_owned()), changing).await?;
        changed.ok_or_else(|| Error::NoSuchUser(id.to_owned()))
    }

    /// Adds a pair of keys to a user.
    pub async fn add_key(&self, id: &str, key: AccessKey) -> Result<User> {
        self.get(id).await?;
        self.take_key(id, &key.access_key).await?;
        let changed = self.modify(id, |user| {
            user.keys.retain(|known| known.access_key != key.access_key);
            user.keys.push(key.clone());
            Ok(())
        });
        let changed = changed.await?;
        if let Err(error) = self.confirm_key(id, &key.access_key).await {
            self.modify(id, |user| {
                user.keys.retain(|known| known.access_key != key.access_key);
                Ok(())
            })
            .await?;
            return Err(error);
        }
        Ok(changed)
    }

    /// Removes a pair of keys from a user.
    pub async fn remove_key(&self, id: &str, access_key: &str) -> Result<User> {
        let unknown = || Error::NoSuchUser(access_key.to_owned());
        if !self.get(id).await?.keys.iter().any(|key| key.access_key == access_key) {
            return Err(unknown());
        }
        self.give_key_back(id, access_key).await?;
        self.modify(id, |user| {
            let before = user.keys.len();
            user.keys.retain(|key| key.access_key != access_key);
            if user.keys.len() == before { Err(unknown()) } else { Ok(()) }
        })
        .await
    }

    /// Removes the reservation of an access key, unless another user has it. The reservation is removed before the key
    /// itself: an interrupted attempt leaves a key that grants no access and can be removed again.
    async fn give_key_back(&self, user: &str, access_key: &str) -> Result<()> {
        let removed = record::remove_if(&self.connection.pools.keys, access_key, |owner: &KeyOwner| {
            if owner.user == user { Ok(()) } else { Err(Error::KeyExists(access_key.to_owned())) }
        });
        match removed.await {
            Ok(_) | Err(Error::KeyExists(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Removes a user that has no buckets.
    pub async fn remove(&self, id: &str) -> Result<()> {
        let user = self.get(id).await?;
        if let Some(bucket) = self.buckets.list(id, "", 1).await?.first() {
            return Err(Error::Invalid(format!("user {id} has buckets, {} for one", bucket.0)));
        }
        for key in &user.keys {
            self.give_key_back(id, &key.access_key).await?;
        }
        let removing = record::remove(&self.connection.pools.users, id);
        self.peers.with_invalidation(GatewayMessage::User(id.to_owned()), removing).await.map(drop)
    }

    /// Returns the ids of all users.
    pub async fn list(&self) -> Result<Vec<String>> {
        let mut lister = self.connection.pools.users.list();
        let mut names = Vec::new();
        while let Some(object) = lister.next().await? {
            let name = object.name().to_owned();
            if !name.ends_with(USER_BUCKETS_SUFFIX) {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestCluster;

    #[test]
    fn users_of_the_first_format_are_read() {
        let keys = vec![AccessKey { access_key: "K".into(), secret_key: "S".into() }];
        let caps: Caps = vec![("users".into(), "*".into())];
        let body = postcard::to_stdvec(&("alice", "Alice", "a@b", &keys, true, 7_u32, &caps)).unwrap();
        let mut bytes = vec![1, 1];
        bytes.extend((body.len() as u32).to_le_bytes());
        bytes.extend(body);
        let user: User = encoding::decode(&bytes).unwrap();
        let wanted = User {
            email: "a@b".into(),
            keys,
            suspended: true,
            max_buckets: 7,
            caps,
            ..User::new("alice", "Alice")
        };
        assert_eq!(user, wanted);
        assert_eq!(encoding::decode::<User>(&encoding::encode(&wanted)).unwrap(), wanted);
        assert_eq!(user.describe()["user_quota"]["max_size"], -1);
    }

    #[test]
    fn an_access_key_belongs_to_one_user() {
        let cluster = TestCluster::new();
        let (connection, peers) = cluster.connect();
        cluster.run(async move {
            let quotas = DefaultQuotas {
                user: Quota { max_objects: 7, ..Quota::default() },
                bucket: Quota::default(),
            };
            let users = Users::new(&connection, &peers, quotas);
            let key = |name: &str| AccessKey { access_key: name.into(), secret_key: "secret".into() };
            let with_key = |id: &str, name: &str| User { keys: vec![key(name)], ..User::new(id, id) };
            users.create(&with_key("alice", "K1")).await.unwrap();
            assert!(matches!(users.create(&with_key("alice", "K2")).await, Err(Error::UserExists(_))));
            assert!(matches!(users.create(&with_key("bob", "K1")).await, Err(Error::KeyExists(_))));
            users.create(&with_key("bob", "K2")).await.unwrap();
            assert_eq!(users.get("bob").await.unwrap().user_quota.max_objects, 7);
            assert!(matches!(users.add_key("alice", key("K2")).await, Err(Error::KeyExists(_))));
            users.add_key("alice", key("K3")).await.unwrap();
            for (name, owner) in [("K1", "alice"), ("K2", "bob"), ("K3", "alice")] {
                assert_eq!(users.get_by_key(name).await.unwrap().id, owner);
            }
            users.remove_key("alice", "K1").await.unwrap();
            assert!(matches!(users.get_by_key("K1").await, Err(Error::NoSuchUser(_))));
            users.add_key("bob", key("K1")).await.unwrap();
            // A user with buckets stays.
            let entry = crate::user_buckets::UserBucketEntry { id: "i".into(), created_ns: 1 };
            users.buckets.add("alice", "b", &entry).await.unwrap();
            assert!(matches!(users.remove("alice").await, Err(Error::Invalid(_))));
            users.buckets.remove("alice", "b").await.unwrap();
            users.remove("alice").await.unwrap();
            assert_eq!(users.list().await.unwrap(), ["bob"]);
            assert!(matches!(users.get_by_key("K3").await, Err(Error::NoSuchUser(_))));
        });
    }
}
