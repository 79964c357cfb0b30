//! `/admin/user`: users, their keys, capabilities and quotas.

use super::{AdminApiError, AdminRequest, Answer};
use http::{Method, StatusCode};
use nacre_rgw::caps::{self, Perm};
use nacre_rgw::quota::QuotaChange;
use nacre_rgw::user::{AccessKey, User};
use serde::Deserialize;
use serde_json::json;

/// A quota in a request's body.
#[derive(Debug, Default, Deserialize)]
struct QuotaBody {
    enabled: Option<bool>,
    max_size: Option<i64>,
    max_size_kb: Option<i64>,
    max_objects: Option<i64>,
}

/// Both quotas of a user in a request's body.
#[derive(Debug, Default, Deserialize)]
struct QuotasBody {
    user_quota: Option<QuotaBody>,
    bucket_quota: Option<QuotaBody>,
}

impl QuotaBody {
    fn change(&self) -> QuotaChange {
        let max_size =
            self.max_size.or(self.max_size_kb.map(|kb| if kb < 0 { -1 } else { kb.saturating_mul(1024) }));
        QuotaChange { enabled: self.enabled, max_size, max_objects: self.max_objects }
    }
}

/// Returns the change of a quota that the parameters name; `None` if they name none.
pub(super) fn quota_of_params(asked: &AdminRequest<'_>) -> Result<Option<QuotaChange>, AdminApiError> {
    let params = asked.params;
    let body = QuotaBody {
        enabled: params.flag("enabled")?,
        max_size: params.number("max-size")?,
        max_size_kb: params.number("max-size-kb")?,
        max_objects: params.number("max-objects")?,
    };
    let change = body.change();
    Ok((change != QuotaChange::default()).then_some(change))
}

pub(super) async fn answer(asked: &AdminRequest<'_>) -> Answer {
    let params = asked.params;
    let wanted = if *asked.method == Method::GET { Perm::READ } else { Perm::WRITE };
    let without_keys = *asked.method == Method::GET && !params.has("quota") && !params.has("list");
    let shows_keys = asked.may("users", wanted).is_ok();
    if !shows_keys {
        // This capability allows seeing users without their keys.
        if !without_keys {
            return Err(AdminApiError::denied());
        }
        asked.may("user-info-without-keys", Perm::READ)?;
    }
    for kind in ["subuser", "policy", "mfa"] {
        if params.has(kind) {
            let message = format!("there is no {kind} of users here");
            return Err(AdminApiError::new(StatusCode::NOT_IMPLEMENTED, "NotImplemented", message));
        }
    }
    if params.has("key") {
        return keys(asked).await;
    }
    if params.has("caps") {
        return change_caps(asked).await;
    }
    if params.has("quota") {
        return quota(asked).await;
    }
    match *asked.method {
        Method::GET if params.has("list") => super::page(params, asked.gateway.users.list().await?),
        Method::GET => info(asked, shows_keys).await,
        Method::PUT => create(asked).await,
        Method::POST => modify(asked).await,
        Method::DELETE => {
            let uid = params.needed("uid")?;
            if params.flag("purge-data")? == Some(true) {
                asked.gateway.purge_user(uid).await?;
            } else {
                asked.gateway.users.remove(uid).await?;
            }
            Ok(None)
        }
        _ => Err(AdminApiError::no_method()),
    }
}

async fn info(asked: &AdminRequest<'_>, shows_keys: bool) -> Answer {
    let params = asked.params;
    let user = match (params.text("uid"), params.text("access-key")) {
        (Some(uid), _) => asked.gateway.users.get(uid).await?,
        (None, Some(key)) => asked.gateway.users.get_by_key(key).await?,
        (None, None) => return Err(AdminApiError::invalid("uid or access-key is needed")),
    };
    let mut shown = user.describe();
    shown["tenant"] = json!("");
    if !shows_keys {
        shown["keys"] = json!([]);
    }
    if params.flag("stats")? == Some(true) {
        shown["stats"] = asked.gateway.user_stats(&user.id).await?.usage_fields();
    }
    Ok(Some(shown))
}

/// Returns the key pair that a request names or asks to generate.
fn key_of(asked: &AdminRequest<'_>, by_default: bool) -> Result<Option<AccessKey>, AdminApiError> {
    let params = asked.params;
    if params.text("key-type").is_some_and(|kind| kind != "s3") {
        return Err(AdminApiError::new(StatusCode::BAD_REQUEST, "InvalidKeyType", "keys are of type s3"));
    }
    let (access, secret) = (params.text("access-key"), params.text("secret-key"));
    let generate = params.flag("generate-key")?.unwrap_or(by_default);
    if access.is_none() && secret.is_none() && !generate {
        return Ok(None);
    }
    let made_up = AccessKey::generate()?;
    Ok(Some(AccessKey {
        access_key: access.map_or(made_up.access_key, str::to_owned),
        secret_key: secret.map_or(made_up.secret_key, str::to_owned),
    }))
}

fn caps_of(text: &str) -> Result<Vec<(String, Perm)>, AdminApiError> {
    let wrong = |error: nacre_rgw::Error| {
        AdminApiError::new(StatusCode::BAD_REQUEST, "InvalidCapability", error.to_string())
    };
    caps::parse(text).map_err(wrong)
}

async fn create(asked: &AdminRequest<'_>) -> Answer {
    let params = asked.params;
    let mut user = User::new(params.needed("uid")?, params.needed("display-name")?);
    user.email = params.text("email").unwrap_or_default().to_owned();
    user.max_buckets = params.number("max-buckets")?.unwrap_or(user.max_buckets);
    user.suspended = params.flag("suspended")?.unwrap_or(false);
    if let Some(text) = params.text("user-caps") {
        caps::add(&mut user.caps, &caps_of(text)?);
    }
    user.keys.extend(key_of(asked, true)?);
    asked.gateway.users.create(&user).await?;
    shown(asked, &user.id).await
}

async fn shown(asked: &AdminRequest<'_>, uid: &str) -> Answer {
    let mut shown = asked.gateway.users.get(uid).await?.describe();
    shown["tenant"] = json!("");
    Ok(Some(shown))
}

async fn modify(asked: &AdminRequest<'_>) -> Answer {
    let params = asked.params;
    let uid = params.needed("uid")?;
    let (max_buckets, suspended) = (params.number("max-buckets")?, params.flag("suspended")?);
    let more = params.text("user-caps").map(caps_of).transpose()?.unwrap_or_default();
    let key = key_of(asked, false)?;
    let change = |user: &mut User| {
        if let Some(name) = params.text("display-name") {
            user.display_name = name.to_owned();
        }
        if let Some(email) = params.text("email") {
            user.email = email.to_owned();
        }
        user.max_buckets = max_buckets.unwrap_or(user.max_buckets);
        user.suspended = suspended.unwrap_or(user.suspended);
        caps::add(&mut user.caps, &more);
        Ok(())
    };
    asked.gateway.users.modify(uid, change).await?;
    if let Some(key) = key {
        asked.gateway.users.add_key(uid, key).await?;
    }
    shown(asked, uid).await
}

async fn keys(asked: &AdminRequest<'_>) -> Answer {
    let params = asked.params;
    match *asked.method {
        Method::PUT | Method::POST => {
            let key = key_of(asked, true)?
                .ok_or_else(|| AdminApiError::invalid("access-key or generate-key is needed"))?;
            let user = asked.gateway.users.add_key(params.needed("uid")?, key).await?;
            Ok(Some(user.describe()["keys"].take()))
        }
        Method::DELETE => {
            let key = params.needed("access-key")?;
            let unknown = || {
                AdminApiError::new(StatusCode::FORBIDDEN, "InvalidAccessKeyId", "the user has no such key")
            };
            let uid = match params.text("uid") {
                Some(uid) => uid.to_owned(),
                None => asked.gateway.users.get_by_key(key).await.map_err(|_| unknown())?.id,
            };
            let user = asked.gateway.users.get(&uid).await?;
            if !user.keys.iter().any(|known| known.access_key == key) {
                return Err(unknown());
            }
            asked.gateway.users.remove_key(&uid, key).await?;
            Ok(None)
        }
        _ => Err(AdminApiError::no_method()),
    }
}

async fn change_caps(asked: &AdminRequest<'_>) -> Answer {
    let uid = asked.params.needed("uid")?;
    let caps = caps_of(asked.params.needed("user-caps")?)?;
    let adds = match *asked.method {
        Method::PUT | Method::POST => true,
        Method::DELETE => false,
        _ => return Err(AdminApiError::no_method()),
    };
    let user = asked.gateway.users.modify(uid, |user| {
        if adds {
            caps::add(&mut user.caps, &caps);
        } else {
            caps::remove(&mut user.caps, &caps);
        }
        Ok(())
    });
    Ok(Some(user.await?.describe()["caps"].take()))
}

async fn quota(asked: &AdminRequest<'_>) -> Answer {
    let uid = asked.params.needed("uid")?;
    let kind = asked.params.text("quota-type");
    if kind.is_some_and(|kind| kind != "user" && kind != "bucket") {
        return Err(AdminApiError::invalid("quota-type is user or bucket"));
    }
    match *asked.method {
        Method::GET => {
            let user = asked.gateway.users.get(uid).await?;
            let (own, bucket) = (user.user_quota.describe(), user.bucket_quota.describe());
            Ok(Some(match kind {
                Some("user") => own,
                Some(_) => bucket,
                None => json!({ "bucket_quota": bucket, "user_quota": own }),
            }))
        }
        Method::PUT | Method::POST => {
            for (bucket, change) in changes(asked, kind)? {
                asked.gateway.set_user_quota(uid, bucket, change).await?;
            }
            Ok(None)
        }
        _ => Err(AdminApiError::no_method()),
    }
}

/// Returns the changes of a user's quotas, from the parameters or else from the body. The flag is whether the change is to
/// the bucket quota.
fn changes(asked: &AdminRequest<'_>, kind: Option<&str>) -> Result<Vec<(bool, QuotaChange)>, AdminApiError> {
    if let Some(change) = quota_of_params(asked)? {
        let kind = kind.ok_or_else(|| AdminApiError::invalid("quota-type is needed"))?;
        return Ok(vec![(kind == "bucket", change)]);
    }
    let wrong =
        |error: serde_json::Error| AdminApiError::invalid(format!("the body is not a quota: {error}"));
    if asked.body.is_empty() {
        return Err(AdminApiError::invalid("neither parameters nor a body name a quota"));
    }
    match kind {
        Some(kind) => {
            let body: QuotaBody = serde_json::from_slice(asked.body).map_err(wrong)?;
            Ok(vec![(kind == "bucket", body.change())])
        }
        None => {
            let body: QuotasBody = serde_json::from_slice(asked.body).map_err(wrong)?;
            let both = [(false, body.user_quota), (true, body.bucket_quota)];
            Ok(both.into_iter().filter_map(|(bucket, quota)| Some((bucket, quota?.change()))).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_in_bodies_may_be_in_kilobytes() {
        let body: QuotaBody = serde_json::from_value(json!({ "enabled": true, "max_size_kb": 2 })).unwrap();
        assert_eq!(
            body.change(),
            QuotaChange { enabled: Some(true), max_size: Some(2048), max_objects: None }
        );
        let body: QuotaBody =
            serde_json::from_value(json!({ "max_size": -1, "max_size_kb": 0, "check_on_raw": false }))
                .unwrap();
        assert_eq!(body.change().max_size, Some(-1));
        let value = User::new("a", "A").user_quota.describe();
        let body: QuotaBody = serde_json::from_value(value).unwrap();
        assert_eq!(
            body.change(),
            QuotaChange { enabled: Some(false), max_size: Some(-1), max_objects: Some(-1) }
        );
    }
}
