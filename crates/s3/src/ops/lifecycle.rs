//! Operations on the lifecycle rules of buckets, and the expiration that answers report.

use super::access::bucket_of;
use super::{S3Api, answer, timestamp};
use nacre_rgw::bucket::{Bucket, LIFECYCLE};
use nacre_rgw::lifecycle::{DAY, LifecycleConfig, MAX_RULES};
use nacre_rgw::stored::Head;
#[allow(clippy::wildcard_imports, reason = "S3's structures, all by their own names")]
use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result, s3_error};

/// Returns the minimum size for transitions that answers report. It is S3's default, because Terraform waits until it reads
/// this value. As in Ceph, objects of all sizes move; filters of rules can restrict sizes.
fn minimum() -> Option<TransitionDefaultMinimumObjectSize> {
    Some(TransitionDefaultMinimumObjectSize::from_static(
        TransitionDefaultMinimumObjectSize::ALL_STORAGE_CLASSES_128K,
    ))
}

impl S3Api {
    pub(super) async fn do_get_bucket_lifecycle_configuration(
        &self,
        req: S3Request<GetBucketLifecycleConfigurationInput>,
    ) -> S3Result<S3Response<GetBucketLifecycleConfigurationOutput>> {
        let bucket = bucket_of(&req)?;
        let absent = || s3_error!(NoSuchLifecycleConfiguration, "The lifecycle configuration does not exist");
        let text = bucket.documents.get(LIFECYCLE).ok_or_else(absent)?;
        let configuration: BucketLifecycleConfiguration =
            serde_json::from_str(text).map_err(|error| s3_error!(error, InternalError))?;
        answer(GetBucketLifecycleConfigurationOutput {
            rules: Some(configuration.rules),
            transition_default_minimum_object_size: minimum(),
        })
    }

    pub(super) async fn do_put_bucket_lifecycle_configuration(
        &self,
        req: S3Request<PutBucketLifecycleConfigurationInput>,
    ) -> S3Result<S3Response<PutBucketLifecycleConfigurationOutput>> {
        let bucket = bucket_of(&req)?;
        let configuration = req.input.lifecycle_configuration;
        let mut configuration = configuration.ok_or_else(|| s3_error!(MalformedXML, "there are no rules"))?;
        if configuration.rules.is_empty() || configuration.rules.len() > MAX_RULES {
            return Err(s3_error!(MalformedXML, "between 1 and {MAX_RULES} rules"));
        }
        let statuses = [ExpirationStatus::ENABLED, ExpirationStatus::DISABLED];
        if let Some(rule) = configuration.rules.iter().find(|rule| !statuses.contains(&rule.status.as_str()))
        {
            return Err(s3_error!(
                MalformedXML,
                "a rule is Enabled or Disabled, not {}",
                rule.status.as_str()
            ));
        }
        let rules =
            LifecycleConfig::read(&configuration).map_err(|text| s3_error!(InvalidArgument, "{text}"))?;
        for class in rules.transition_classes() {
            self.gateway.classes.check_has_pool(class).await?;
        }
        // A rule without an id gets a generated one.
        for rule in &mut configuration.rules {
            if rule.id.as_deref().is_none_or(str::is_empty) {
                rule.id = Some(self.gateway.new_tag());
            }
        }
        let text = serde_json::to_string(&configuration).map_err(|error| s3_error!(error, InternalError))?;
        // The bucket is listed before the change, so that rules are never without a worker. It is listed again afterwards,
        // because the worker unlists a bucket without rules.
        self.gateway.lifecycle.register(&bucket, true).await?;
        self.set_bucket_document(&bucket.name, LIFECYCLE, Some(text)).await?;
        self.gateway.lifecycle.register(&bucket, true).await?;
        answer(PutBucketLifecycleConfigurationOutput { transition_default_minimum_object_size: minimum() })
    }

    pub(super) async fn do_delete_bucket_lifecycle(
        &self,
        req: S3Request<DeleteBucketLifecycleInput>,
    ) -> S3Result<S3Response<DeleteBucketLifecycleOutput>> {
        let bucket = bucket_of(&req)?;
        let listed = self.gateway.lifecycle.entry(&bucket.name).await?;
        self.set_bucket_document(&bucket.name, LIFECYCLE, None).await?;
        if let Some(listed) = listed {
            self.gateway.lifecycle.unlist(&bucket.name, &listed.tag).await?;
        }
        let mut response = S3Response::new(DeleteBucketLifecycleOutput::default());
        response.status = Some(http::StatusCode::NO_CONTENT);
        Ok(response)
    }

    /// Returns when an object expires by its bucket's rules, and by which rule, in the format of answers.
    pub(super) fn expiration_of(&self, bucket: &Bucket, key: &str, head: &Head) -> Option<String> {
        let rules = bucket.lifecycle.as_ref()?;
        let (due_ns, rule) = rules.expiration(key, head, DAY)?;
        let mut text = Vec::new();
        timestamp(due_ns).format(TimestampFormat::HttpDate, &mut text).ok()?;
        let rule = urlencoding::encode(rule);
        Some(format!("expiry-date=\"{}\", rule-id=\"{rule}\"", String::from_utf8(text).ok()?))
    }
}
