//! Administrative operations on users, buckets, objects and metadata, with results in radosgw-admin's JSON. The command line
//! and the admin API return the same results.

use crate::acl::{Acl, Grant, Grantee, Permission};
use crate::bucket::{Bucket, QUOTA, Versioning};
use crate::error::{Error, Result};
use crate::gateway::Gateway;
use crate::quota::{Quota, QuotaChange, QuotaUsage};
use crate::record;
use crate::stored::DataLocation;
use crate::time::format_time;
use crate::user::User;
use crate::user_buckets::UserBucketEntry;
use crate::zone::DEFAULT_STORAGE_CLASS;
use serde_json::{Value, json};
use std::sync::Arc;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Parses a date as administrators write it; returns seconds since 1970. Accepts `2026-01-31`, `2026-01-31 12:00:00`, `T`
/// instead of the space, a final `Z`, and the number itself. Returns `None` for anything else.
pub fn parse_epoch(text: &str) -> Option<u64> {
    let text = text.trim();
    if let Ok(epoch) = text.parse() {
        return Some(epoch);
    }
    let text = text.trim_end_matches('Z').replace(' ', "T");
    let whole = match text.split_once('T') {
        Some((_, clock)) if clock.matches(':').count() == 2 => format!("{text}Z"),
        Some((_, clock)) if clock.matches(':').count() == 1 => format!("{text}:00Z"),
        Some(_) => return None,
        None => format!("{text}T00:00:00Z"),
    };
    u64::try_from(OffsetDateTime::parse(&whole, &Rfc3339).ok()?.unix_timestamp()).ok()
}

/// Formats objects and bytes in radosgw's fields. The space that data occupies on disk is not known here.
fn describe_usage(used: QuotaUsage) -> Value {
    let kb = used.bytes.div_ceil(1024);
    json!({
        "size": used.bytes, "size_actual": used.bytes, "size_utilized": used.bytes, "size_kb": kb, "size_kb_actual": kb,
        "size_kb_utilized": kb, "num_objects": used.objects,
    })
}

/// The usage of all buckets of a user.
#[derive(Clone, Copy, Debug)]
pub struct UserStats {
    used: QuotaUsage,
    at_ns: u64,
}

impl UserStats {
    /// Returns the output of `radosgw-admin user stats`.
    pub fn describe(&self) -> Value {
        json!({
            "stats": describe_usage(self.used),
            "last_stats_sync": format_time(self.at_ns),
            "last_stats_update": format_time(self.at_ns),
        })
    }

    /// Returns the usage as `GET /admin/user?stats` includes it among the user's fields.
    pub fn usage_fields(&self) -> Value {
        describe_usage(self.used)
    }
}

/// Returns the output of `radosgw-admin bucket stats`.
pub(crate) fn describe_bucket(bucket: &Bucket, used: QuotaUsage) -> Value {
    let versioning = match bucket.versioning {
        Versioning::Off => "off",
        Versioning::Enabled => "enabled",
        Versioning::Suspended => "suspended",
    };
    let tags: serde_json::Map<String, Value> =
        bucket.tags.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
    let mut usage = json!({});
    if used != QuotaUsage::default() {
        usage["rgw.main"] = describe_usage(used);
    }
    json!({
        "bucket": bucket.name, "num_shards": bucket.shards, "tenant": "", "versioning": versioning,
        "zonegroup": "default", "placement_rule": "default-placement",
        "explicit_placement": { "data_pool": "", "data_extra_pool": "", "index_pool": "" },
        "id": bucket.id, "marker": bucket.id, "index_type": "Normal", "index_generation": bucket.generation,
        "ver": "", "master_ver": "", "mtime": format_time(bucket.created_ns), "max_marker": "",
        "versioned": bucket.versioning != Versioning::Off,
        "versioning_enabled": bucket.versioning == Versioning::Enabled,
        "object_lock_enabled": bucket.object_lock.is_some(), "mfa_enabled": false, "owner": bucket.owner,
        "creation_time": format_time(bucket.created_ns), "creation_time_ns": bucket.created_ns,
        "usage": usage, "bucket_quota": bucket.quota.unwrap_or_default().describe(), "tagset": tags,
    })
}

/// Formats an access control list in radosgw's JSON, with radosgw's permission flags.
pub fn describe_acl(acl: &Acl, owner: &str) -> Value {
    let flags = |permission| match permission {
        Permission::Read => 1,
        Permission::Write => 2,
        Permission::ReadAcl => 4,
        Permission::WriteAcl => 8,
        Permission::Full => 15,
    };
    let (mut users, mut groups, mut grants) = (Vec::new(), Vec::new(), Vec::new());
    for Grant { grantee, permission } in &acl.grants {
        let flags = flags(*permission);
        let (kind, id, group) = match grantee {
            Grantee::User(id) => (0, id.as_str(), 0),
            Grantee::Everybody => (2, "", 1),
            Grantee::AnyUser => (2, "", 2),
        };
        match group {
            0 => users.push(json!({ "user": id, "acl": flags })),
            _ => groups.push(json!({ "group": group, "acl": flags })),
        }
        grants.push(json!({ "id": id, "grant": {
            "type": { "type": kind }, "id": id, "email": "", "permission": { "flags": flags }, "name": id,
            "group": group, "url_spec": "",
        } }));
    }
    json!({
        "acl": { "acl_user_map": users, "acl_group_map": groups, "grant_map": grants },
        "owner": { "id": owner, "display_name": owner },
    })
}

impl Gateway {
    /// Returns the output of `radosgw-admin bucket stats` for a bucket.
    pub async fn bucket_stats(&self, name: &str) -> Result<Value> {
        let bucket = self.bucket(name).await?;
        let (objects, bytes) = self.shards.usage(&bucket).await?;
        Ok(describe_bucket(&bucket, QuotaUsage { objects, bytes }))
    }

    /// Reads the usage of all buckets of a user.
    pub async fn user_stats(&self, id: &str) -> Result<UserStats> {
        self.users.get(id).await?;
        Ok(UserStats { used: self.quotas.user_usage(id).await?, at_ns: crate::time::now_ns() })
    }

    /// Changes the quota of a user. With `bucket`, changes the quota for each of its buckets that has none of its own.
    pub async fn set_user_quota(&self, id: &str, bucket: bool, change: QuotaChange) -> Result<User> {
        self.users
            .modify(id, |user| {
                let quota = if bucket { &mut user.bucket_quota } else { &mut user.user_quota };
                *quota = change.apply(*quota);
                Ok(())
            })
            .await
    }

    /// Changes a bucket's own quota.
    pub async fn set_bucket_quota(&self, name: &str, change: QuotaChange) -> Result<Bucket> {
        let changed = self.buckets.modify(name, |bucket| {
            let quota: Option<Quota> = bucket.document(QUOTA)?;
            let quota = change.apply(quota.unwrap_or_default());
            let text = serde_json::to_string(&quota).map_err(|error| Error::Internal {
                what: "a quota can't be written",
                detail: error.to_string(),
            })?;
            bucket.documents.insert(QUOTA.to_owned(), text);
            Ok(())
        });
        changed.await?;
        self.bucket(name).await
    }

    /// Transfers a bucket to another user. The owners of its objects do not change.
    pub async fn link_bucket(&self, name: &str, user: &str) -> Result<()> {
        self.users.get(user).await?;
        let bucket = self.bucket(name).await?;
        let own = UserBucketEntry { id: bucket.id.clone(), created_ns: bucket.created_ns };
        // The list entry is written first: an entry for a bucket of another user does less harm than a bucket that is in no
        // list.
        self.users.buckets.add(user, name, &own).await?;
        let mut before = String::new();
        self.buckets
            .modify(name, |bucket| {
                before = std::mem::replace(&mut bucket.owner, user.to_owned());
                bucket.acl.transfer_grants(&before, user);
                Ok(())
            })
            .await?;
        if before != user {
            self.users.buckets.remove(&before, name).await?;
        }
        Ok(())
    }

    /// Removes a bucket from its owner's list. The user remains its owner, but the list no longer shows the bucket.
    pub async fn unlink_bucket(&self, name: &str, user: &str) -> Result<()> {
        let bucket = self.bucket(name).await?;
        if bucket.owner != user {
            return Err(Error::Invalid(format!(
                "bucket {name} is not of user {user}, but of {}",
                bucket.owner
            )));
        }
        self.users.buckets.remove(user, name).await
    }

    /// Removes a user with all its buckets and their contents.
    pub async fn purge_user(self: &Arc<Gateway>, id: &str) -> Result<()> {
        self.users.get(id).await?;
        for (name, _) in self.users.buckets.list(id, "", u64::MAX).await? {
            let own = match self.bucket(&name).await {
                Err(Error::NoSuchBucket(_)) => false,
                bucket => bucket?.owner == id,
            };
            if own {
                self.purge_bucket(&name).await?;
                self.remove_bucket(&name).await?;
            } else {
                self.users.buckets.remove(id, &name).await?;
            }
        }
        self.users.remove(id).await
    }

    /// Returns the output of `radosgw-admin object stat`.
    pub async fn object_stat(&self, bucket: &str, key: &str) -> Result<Value> {
        let bucket = self.bucket(bucket).await?;
        let reader = self.objects.open_object(&bucket.id, key).await?;
        let head = &reader.head;
        let map = |pairs: &[(String, String)]| -> Value {
            pairs
                .iter()
                .map(|(name, value)| (name.clone(), json!(value)))
                .collect::<serde_json::Map<_, _>>()
                .into()
        };
        let run = |name: &str, count: u64| json!({ "prefix": name, "objects": count });
        let manifest = match &head.data {
            DataLocation::Inline => json!({ "in_head": true }),
            DataLocation::Tails(tails) => {
                json!({ "in_head": false, "tails": [run(&tails.name, tails.count)] })
            }
            DataLocation::Parts(_) => {
                let parts = reader.manifest.parts.iter().map(|part| {
                    let mut shown = run(&part.tails.name, part.tails.count);
                    shown["number"] = part.number.into();
                    shown["size"] = part.size.into();
                    shown
                });
                json!({ "in_head": false, "parts": parts.collect::<Vec<_>>() })
            }
        };
        let checksum =
            head.checksum.as_ref().map(|sum| json!({ "algorithm": sum.algorithm, "value": sum.value }));
        Ok(json!({
            "name": key, "size": head.size, "mtime": format_time(head.mtime_ns), "etag": head.etag, "tag": head.tag,
            "policy": describe_acl(&head.acl, &head.owner), "manifest": manifest,
            "attrs": { "headers": map(&head.headers), "metadata": map(&head.metadata), "tags": map(&head.tags) },
            "checksum": checksum, "storage_class": if head.class.is_empty() { DEFAULT_STORAGE_CLASS } else { &head.class },
        }))
    }

    /// Returns the metadata sections that [`Gateway::metadata_keys`] and [`Gateway::metadata`] support.
    pub fn metadata_sections() -> [&'static str; 3] {
        ["bucket", "bucket.instance", "user"]
    }

    /// Returns the keys of a metadata section.
    pub async fn metadata_keys(&self, section: &str) -> Result<Vec<String>> {
        match section {
            "user" => self.users.list().await,
            "bucket" => self.buckets.list().await,
            "bucket.instance" => {
                let mut keys = Vec::new();
                for name in self.buckets.list().await? {
                    match self.bucket(&name).await {
                        Err(Error::NoSuchBucket(_)) => {}
                        bucket => keys.push(format!("{name}:{}", bucket?.id)),
                    }
                }
                Ok(keys)
            }
            _ => Err(Error::NoSuchMetadata(section.to_owned())),
        }
    }

    /// Returns the output of `radosgw-admin metadata get SECTION:KEY`.
    pub async fn metadata(&self, section: &str, key: &str) -> Result<Value> {
        let shown = |version: u64, mtime_ns: u64, data: Value| {
            json!({
                "key": format!("{section}:{key}"), "ver": { "tag": "", "ver": version },
                "mtime": format_time(mtime_ns), "data": data,
            })
        };
        match section {
            "user" => {
                let found = record::read::<User>(&self.pools.users, key).await?;
                let (user, version) = found.ok_or_else(|| Error::NoSuchUser(key.to_owned()))?;
                let mut data = user.describe();
                data["attrs"] = json!([]);
                Ok(shown(version, user.created_ns, data))
            }
            "bucket" | "bucket.instance" => {
                let (name, id) = match key.split_once(':') {
                    Some((name, id)) if section == "bucket.instance" => (name, Some(id)),
                    _ => (key, None),
                };
                let unknown = || Error::NoSuchBucket(key.to_owned());
                let found = record::read::<Bucket>(&self.pools.buckets, name).await?;
                let (bucket, version) = found.ok_or_else(unknown)?;
                if id.is_some_and(|id| id != bucket.id) {
                    return Err(unknown());
                }
                let named = json!({ "name": bucket.name, "marker": bucket.id, "bucket_id": bucket.id, "tenant": "",
                    "explicit_placement": { "data_pool": "", "data_extra_pool": "", "index_pool": "" } });
                let data = if section == "bucket" {
                    let own = self.users.buckets.list(&bucket.owner, "", u64::MAX).await?;
                    json!({
                        "bucket": named, "owner": bucket.owner, "creation_time": format_time(bucket.created_ns),
                        "linked": own.iter().any(|(own, _)| *own == bucket.name).to_string(), "has_bucket_info": "false",
                    })
                } else {
                    let mut info = describe_bucket(&bucket, QuotaUsage::default());
                    info["bucket"] = named;
                    json!({ "bucket_info": info, "attrs": describe_acl(&bucket.acl, &bucket.owner) })
                };
                Ok(shown(version, bucket.created_ns, data))
            }
            _ => Err(Error::NoSuchMetadata(section.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_read_as_administrators_write_them() {
        for (text, epoch) in [
            ("1970-01-02", Some(86_400)),
            ("1970-01-01 01:00:00", Some(3600)),
            ("1970-01-01T01:00:05Z", Some(3605)),
            ("1970-01-01 01:30", Some(5400)),
            ("3600", Some(3600)),
            ("yesterday", None),
            ("1970-01-01T01", None),
            ("1970-13-01", None),
        ] {
            assert_eq!(parse_epoch(text), epoch, "{text}");
        }
        assert_eq!(crate::time::format_usage_time(3600), "1970-01-01 01:00:00.000000Z");
        assert_eq!(parse_epoch(&format_time(86_400_000_000_000)), Some(86_400));
    }
}
