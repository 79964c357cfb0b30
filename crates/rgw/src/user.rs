//! Users and their keys: records in `default.rgw.meta` (docs/format/rgw.md).

use crate::error::{Error, Result};
use crate::gateway::Gateway;
use crate::record;
use nacre_types::encoding::Versioned;
use serde::{Deserialize, Serialize};

/// Buckets that a user may have where nothing else is said (`rgw_user_max_buckets`).
pub const DEFAULT_MAX_BUCKETS: u32 = 1000;
/// Length of generated access keys and secrets, as radosgw-admin makes them.
const ACCESS_KEY_CHARS: usize = 20;
const SECRET_KEY_CHARS: usize = 40;

/// A pair of keys of a user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessKey {
    /// The public half, unique in the cluster.
    pub access_key: String,
    /// What signatures are made with.
    pub secret_key: String,
}

/// A user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// Its id, unique in the cluster.
    pub id: String,
    /// Its name for people.
    pub display_name: String,
    /// Its mail address; empty where there is none.
    pub email: String,
    /// Keys that it signs with.
    pub keys: Vec<AccessKey>,
    /// Requests of suspended users are refused.
    pub suspended: bool,
    /// Buckets that it may have; 0: as many as it likes.
    pub max_buckets: u32,
    /// Capabilities for administration (`users=read, write`), by what they are for.
    pub caps: Vec<(String, String)>,
}

impl Versioned for User {
    const NAME: &'static str = "user";
}

/// Whose an access key is.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct KeyOwner {
    user: String,
}

impl Versioned for KeyOwner {
    const NAME: &'static str = "access key";
}

impl AccessKey {
    /// A new pair of random keys.
    pub fn generate() -> Result<AccessKey> {
        const UPPER: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
        const ANY: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+_";
        let mut random = [0; ACCESS_KEY_CHARS + SECRET_KEY_CHARS];
        getrandom::fill(&mut random).map_err(|e| Error::Invalid(format!("no random numbers: {e}")))?;
        let (access, secret) = random.split_at(ACCESS_KEY_CHARS);
        Ok(AccessKey {
            access_key: access.iter().map(|byte| char::from(UPPER[usize::from(byte % 32)])).collect(),
            secret_key: secret.iter().map(|byte| char::from(ANY[usize::from(byte % 64)])).collect(),
        })
    }
}

impl User {
    /// A user without keys.
    pub fn new(id: &str, display_name: &str) -> User {
        User {
            id: id.to_owned(),
            display_name: display_name.to_owned(),
            email: String::new(),
            keys: Vec::new(),
            suspended: false,
            max_buckets: DEFAULT_MAX_BUCKETS,
            caps: Vec::new(),
        }
    }

    /// What radosgw-admin prints of a user.
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
        serde_json::json!({
            "user_id": self.id, "display_name": self.display_name, "email": self.email,
            "suspended": u8::from(self.suspended), "max_buckets": self.max_buckets,
            "subusers": [], "keys": keys, "swift_keys": [], "caps": caps, "op_mask": "read, write, delete",
            "default_placement": "", "default_storage_class": "", "placement_tags": [],
            "type": "rgw", "mfa_ids": [],
        })
    }
}

/// Whether a user may be called so.
fn check_id(id: &str) -> Result<()> {
    let sound =
        !id.is_empty() && id.len() <= 128 && id.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'$');
    if sound { Ok(()) } else { Err(Error::Invalid(format!("'{id}' can't be a user's id"))) }
}

impl Gateway {
    /// The user of that id.
    pub async fn user(&self, id: &str) -> Result<User> {
        let found = record::read::<User>(&self.pools.users, id).await?;
        found.map(|(user, _)| user).ok_or_else(|| Error::NoSuchUser(id.to_owned()))
    }

    /// The user that an access key belongs to.
    pub async fn user_of_key(&self, access_key: &str) -> Result<User> {
        let unknown = || Error::NoSuchUser(access_key.to_owned());
        let (owner, _) = record::read::<KeyOwner>(&self.pools.keys, access_key).await?.ok_or_else(unknown)?;
        let user = self.user(&owner.user).await?;
        // A key that is being made or removed.
        if user.keys.iter().any(|key| key.access_key == access_key) { Ok(user) } else { Err(unknown()) }
    }

    /// Makes a user with its keys.
    pub async fn create_user(&self, user: &User) -> Result<()> {
        check_id(&user.id)?;
        if record::read::<User>(&self.pools.users, &user.id).await?.is_some() {
            return Err(Error::UserExists(format!("user {}", user.id)));
        }
        for key in &user.keys {
            self.take_key(&user.id, &key.access_key).await?;
        }
        if record::create(&self.pools.users, &user.id, user).await? {
            return Ok(());
        }
        Err(Error::UserExists(format!("user {}", user.id)))
    }

    /// Reserves an access key for a user.
    async fn take_key(&self, user: &str, access_key: &str) -> Result<()> {
        let owner = KeyOwner { user: user.to_owned() };
        if record::create(&self.pools.keys, access_key, &owner).await? {
            return Ok(());
        }
        // It may be left of an attempt that did not end.
        let (found, _) = record::read::<KeyOwner>(&self.pools.keys, access_key)
            .await?
            .ok_or_else(|| Error::Invalid(format!("key {access_key} is being removed")))?;
        let taken = match self.user(&found.user).await {
            Ok(owner) => owner.keys.iter().any(|key| key.access_key == access_key),
            Err(Error::NoSuchUser(_)) => false,
            Err(error) => return Err(error),
        };
        if taken {
            return Err(Error::UserExists(format!("key {access_key}")));
        }
        record::update(&self.pools.keys, access_key, |found: &mut KeyOwner| {
            found.user = user.to_owned();
            Ok(())
        })
        .await?;
        Ok(())
    }

    /// Changes a user; keys are changed by [`Gateway::add_key`] and [`Gateway::remove_key`].
    pub async fn modify_user(&self, id: &str, change: impl FnMut(&mut User) -> Result<()>) -> Result<User> {
        let changed = record::update(&self.pools.users, id, change).await?;
        self.tell_others(crate::gateway::Change::User(id.to_owned())).await;
        changed.ok_or_else(|| Error::NoSuchUser(id.to_owned()))
    }

    /// Gives a user another pair of keys.
    pub async fn add_key(&self, id: &str, key: AccessKey) -> Result<User> {
        self.user(id).await?;
        self.take_key(id, &key.access_key).await?;
        self.modify_user(id, |user| {
            user.keys.retain(|known| known.access_key != key.access_key);
            user.keys.push(key.clone());
            Ok(())
        })
        .await
    }

    /// Takes a pair of keys from a user.
    pub async fn remove_key(&self, id: &str, access_key: &str) -> Result<User> {
        let user = self
            .modify_user(id, |user| {
                let before = user.keys.len();
                user.keys.retain(|key| key.access_key != access_key);
                if user.keys.len() == before {
                    return Err(Error::NoSuchUser(access_key.to_owned()));
                }
                Ok(())
            })
            .await?;
        record::remove(&self.pools.keys, access_key).await?;
        Ok(user)
    }

    /// Removes a user that has no buckets.
    pub async fn remove_user(&self, id: &str) -> Result<()> {
        let user = self.user(id).await?;
        if let Some(bucket) = self.buckets_of(id, "", 1).await?.first() {
            return Err(Error::Invalid(format!("user {id} has buckets, {} for one", bucket.0)));
        }
        record::remove(&self.pools.users, id).await?;
        for key in &user.keys {
            record::remove(&self.pools.keys, &key.access_key).await?;
        }
        self.tell_others(crate::gateway::Change::User(id.to_owned())).await;
        Ok(())
    }

    /// The ids of all users.
    pub async fn users(&self) -> Result<Vec<String>> {
        let mut lister = self.pools.users.list();
        let mut names = Vec::new();
        while let Some(object) = lister.next().await? {
            let name = object.name().to_owned();
            if !name.ends_with(crate::bucket::OF_USER) {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }
}
