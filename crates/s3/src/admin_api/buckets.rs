//! `/admin/bucket`: buckets, their indexes, quotas, owners and ACLs.

use super::users::quota_of_params;
use super::{AdminApiError, AdminRequest, Answer};
use http::Method;
use nacre_rgw::caps::Perm;
use nacre_rgw::object::{RemovalEventTypes, WriteCondition};
use serde_json::{Value, json};
use std::sync::Arc;

pub(super) async fn answer(asked: &AdminRequest<'_>) -> Answer {
    let params = asked.params;
    match *asked.method {
        Method::GET if params.has("index") => {
            asked.may("buckets", Perm::WRITE)?;
            check(asked).await
        }
        Method::GET => {
            asked.may("buckets", Perm::READ)?;
            if params.has("policy") { policy(asked).await } else { info(asked).await }
        }
        Method::PUT | Method::POST | Method::DELETE => {
            asked.may("buckets", Perm::WRITE)?;
            change(asked).await
        }
        _ => Err(AdminApiError::no_method()),
    }
}

async fn info(asked: &AdminRequest<'_>) -> Answer {
    let (gateway, params) = (asked.gateway, asked.params);
    if let Some(bucket) = params.text("bucket") {
        return Ok(Some(gateway.bucket_stats(bucket).await?));
    }
    let names = match params.text("uid") {
        Some(uid) => {
            gateway.users.get(uid).await?;
            gateway.users.buckets.list(uid, "", u64::MAX).await?.into_iter().map(|(name, _)| name).collect()
        }
        None => gateway.buckets.list().await?,
    };
    if params.flag("stats")? != Some(true) {
        return super::page(params, names);
    }
    let mut all = Vec::with_capacity(names.len());
    for name in names {
        match gateway.bucket_stats(&name).await {
            // The bucket was removed after it was listed.
            Err(nacre_rgw::Error::NoSuchBucket(_)) => {}
            stats => all.push(stats?),
        }
    }
    Ok(Some(Value::Array(all)))
}

async fn policy(asked: &AdminRequest<'_>) -> Answer {
    let bucket = asked.gateway.bucket(asked.params.needed("bucket")?).await?;
    match asked.params.text("object") {
        Some(key) => {
            let found = asked.gateway.objects.head(&bucket.id, key).await?;
            let (head, _) = found.ok_or(nacre_rgw::Error::NoSuchKey)?;
            Ok(Some(nacre_rgw::admin::describe_acl(&head.acl, &head.owner)))
        }
        None => Ok(Some(nacre_rgw::admin::describe_acl(&bucket.acl, &bucket.owner))),
    }
}

async fn check(asked: &AdminRequest<'_>) -> Answer {
    let fix = asked.params.flag("fix")?.unwrap_or(false);
    let (gateway, bucket) = (Arc::clone(asked.gateway), asked.params.needed("bucket")?.to_owned());
    // The check takes long and must stay on one thread.
    let runtime = tokio::runtime::Handle::current();
    let checked = tokio::task::spawn_blocking(move || runtime.block_on(gateway.checker.check(&bucket, fix)));
    let report = checked.await.map_err(nacre_rgw::Error::task_failed("the check of a bucket"))??;
    let header = |(objects, bytes): (u64, u64)| json!({ "usage": { "rgw.main": { "size": bytes, "num_objects": objects } } });
    Ok(Some(json!({
        "invalid_multipart_entries": [], "num_problems": report.found,
        "check_result": {
            "existing_header": header(report.existing), "calculated_header": header(report.calculated),
        },
    })))
}

async fn change(asked: &AdminRequest<'_>) -> Answer {
    let (gateway, params) = (asked.gateway, asked.params);
    let bucket = params.needed("bucket")?;
    if params.has("quota") {
        if *asked.method != Method::PUT {
            return Err(AdminApiError::no_method());
        }
        let change = quota_of_params(asked)?.ok_or_else(|| AdminApiError::invalid("no quota is named"))?;
        let found = gateway.bucket(bucket).await?;
        if params.text("uid").is_some_and(|uid| uid != found.owner) {
            return Err(AdminApiError::invalid(format!("bucket {bucket} is not of that user")));
        }
        gateway.set_bucket_quota(bucket, change).await?;
        return Ok(None);
    }
    match *asked.method {
        Method::PUT => gateway.link_bucket(bucket, params.needed("uid")?).await?,
        Method::POST => gateway.unlink_bucket(bucket, params.needed("uid")?).await?,
        _ if params.has("object") => {
            let (found, key) = (Arc::new(gateway.bucket(bucket).await?), params.needed("object")?);
            if gateway.objects.head(&found.id, key).await?.is_none() {
                return Err(nacre_rgw::Error::NoSuchKey.into());
            }
            let events = (&gateway.notifications.administration_cause(), RemovalEventTypes::REQUEST);
            gateway.writer.remove_object(&found, (key, &found.owner), WriteCondition::None, events).await?;
        }
        _ => {
            if params.flag("purge-objects")? == Some(true) {
                gateway.purge_bucket(bucket).await?;
            }
            gateway.remove_bucket(bucket).await?;
        }
    }
    Ok(None)
}
