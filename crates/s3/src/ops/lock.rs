//! Object lock: retention keeps a version from being removed before a date, and a legal hold until the hold is removed.

use super::access::{Requester, bucket_of};
use super::{S3Api, answer, timestamp};
use nacre_rgw::bucket::{Bucket, OBJECT_LOCK, Versioning};
use nacre_rgw::error::Error;
use nacre_rgw::notifications::Cause;
use nacre_rgw::stored::{Head, Retention};
use nacre_rgw::time::now_ns;
#[allow(clippy::wildcard_imports, reason = "S3's structures, all by their own names")]
use s3s::dto::*;
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result, s3_error};
use std::time::Duration;

const DAY_NS: u64 = Duration::from_secs(24 * 3600).as_nanos() as u64;
/// Days per year of a bucket's default retention.
const YEAR_DAYS: u64 = 365;
/// The longest default retention, in days and in years.
const MAX_DAYS: i32 = 36_500;
const MAX_YEARS: i32 = 100;

fn is_locking(bucket: &Bucket) -> bool {
    bucket.object_lock.is_some()
}

fn nanoseconds(date: &Timestamp) -> S3Result<u64> {
    let date = time::OffsetDateTime::from(date.clone());
    u64::try_from(date.unix_timestamp_nanos()).map_err(|_| s3_error!(InvalidArgument, "a date before 1970"))
}

/// Returns whether a retention mode is COMPLIANCE. Fails for an unknown mode.
fn is_compliance(mode: &str) -> S3Result<bool> {
    match mode {
        ObjectLockMode::COMPLIANCE => Ok(true),
        ObjectLockMode::GOVERNANCE => Ok(false),
        _ => Err(s3_error!(MalformedXML, "unknown mode of retention {mode}")),
    }
}

fn future(compliance: bool, until: &Timestamp) -> S3Result<Retention> {
    let until_ns = nanoseconds(until)?;
    if until_ns <= now_ns() {
        return Err(s3_error!(InvalidArgument, "The retain until date must be in the future!"));
    }
    Ok(Retention { compliance, until_ns })
}

/// Returns the retention and the legal hold of a write. Without a retention in the request, the bucket's default applies.
pub(super) fn requested_lock(
    bucket: &Bucket,
    mode: Option<&ObjectLockMode>,
    until: Option<&Timestamp>,
    hold: Option<&ObjectLockLegalHoldStatus>,
) -> S3Result<(Option<Retention>, bool)> {
    let asked = match (mode, until) {
        (Some(mode), Some(until)) => Some(future(is_compliance(mode.as_str())?, until)?),
        (None, None) => None,
        _ => {
            return Err(s3_error!(
                InvalidArgument,
                "x-amz-object-lock-retain-until-date and x-amz-object-lock-mode must both be supplied"
            ));
        }
    };
    let Some(lock) = &bucket.object_lock else {
        return match (asked, hold) {
            (None, None) => Ok((None, false)),
            _ => Err(s3_error!(InvalidRequest, "Bucket is missing Object Lock Configuration")),
        };
    };
    let default = lock.rule.as_ref().and_then(|rule| rule.default_retention.as_ref());
    let default = default.and_then(|default| {
        let days = default.days.map(|days| days as u64);
        let days = days.or(default.years.map(|years| years as u64 * YEAR_DAYS))?;
        let compliance = default.mode.as_ref()?.as_str() == ObjectLockRetentionMode::COMPLIANCE;
        Some(Retention { compliance, until_ns: now_ns() + days * DAY_NS })
    });
    Ok((asked.or(default), hold.is_some_and(|hold| hold.as_str() == ObjectLockLegalHoldStatus::ON)))
}

/// The object lock headers of an answer.
pub(super) struct LockHeaders {
    pub(super) mode: Option<ObjectLockMode>,
    pub(super) until: Option<Timestamp>,
    pub(super) hold: Option<ObjectLockLegalHoldStatus>,
}

fn mode_of(retention: Retention) -> &'static str {
    if retention.compliance { ObjectLockMode::COMPLIANCE } else { ObjectLockMode::GOVERNANCE }
}

/// Returns the object lock headers for an object.
pub(super) fn lock_headers(head: &Head) -> LockHeaders {
    LockHeaders {
        mode: head.retention.map(|retention| ObjectLockMode::from_static(mode_of(retention))),
        until: head.retention.map(|retention| timestamp(retention.until_ns)),
        hold: head.legal_hold.then(|| ObjectLockLegalHoldStatus::from_static(ObjectLockLegalHoldStatus::ON)),
    }
}

impl S3Api {
    pub(super) async fn do_get_object_lock_configuration(
        &self,
        req: S3Request<GetObjectLockConfigurationInput>,
    ) -> S3Result<S3Response<GetObjectLockConfigurationOutput>> {
        let bucket = bucket_of(&req)?;
        let lock = bucket.object_lock.as_ref().ok_or_else(|| {
            s3_error!(
                ObjectLockConfigurationNotFoundError,
                "Object Lock configuration does not exist for this bucket"
            )
        })?;
        answer(GetObjectLockConfigurationOutput { object_lock_configuration: Some((**lock).clone()) })
    }

    pub(super) async fn do_put_object_lock_configuration(
        &self,
        req: S3Request<PutObjectLockConfigurationInput>,
    ) -> S3Result<S3Response<PutObjectLockConfigurationOutput>> {
        let bucket = bucket_of(&req)?;
        let lock = req.input.object_lock_configuration;
        let lock = lock.ok_or_else(|| s3_error!(MalformedXML, "there is no configuration"))?;
        let enabled = lock.object_lock_enabled.as_ref().map(ObjectLockEnabled::as_str);
        if enabled != Some(ObjectLockEnabled::ENABLED) {
            return Err(s3_error!(MalformedXML, "ObjectLockEnabled must be Enabled"));
        }
        if let Some(rule) = &lock.rule {
            let default = rule.default_retention.as_ref();
            let default =
                default.ok_or_else(|| s3_error!(MalformedXML, "a rule without DefaultRetention"))?;
            let mode = default.mode.as_ref().map_or("", ObjectLockRetentionMode::as_str);
            is_compliance(mode)?;
            match (default.days, default.years) {
                (Some(days), None) if (1..=MAX_DAYS).contains(&days) => {}
                (None, Some(years)) if (1..=MAX_YEARS).contains(&years) => {}
                (Some(_), None) | (None, Some(_)) => {
                    let code = S3ErrorCode::Custom("InvalidRetentionPeriod".into());
                    let message = format!(
                        "The default retention is between 1 and {MAX_DAYS} days, or 1 and {MAX_YEARS} years."
                    );
                    let mut error = S3Error::with_message(code, message);
                    error.set_status_code(http::StatusCode::BAD_REQUEST);
                    return Err(error);
                }
                _ => return Err(s3_error!(MalformedXML, "either Days or Years")),
            }
        }
        let text = serde_json::to_string(&lock).map_err(|error| s3_error!(error, InternalError))?;
        let change = |bucket: &mut Bucket| {
            if bucket.versioning != Versioning::Enabled {
                return Err(Error::BucketState(
                    "Versioning must be 'Enabled' on the bucket to apply a Object Lock configuration",
                ));
            }
            bucket.documents.insert(OBJECT_LOCK.to_owned(), text.clone());
            Ok(())
        };
        self.gateway.buckets.modify(&bucket.name, change).await?;
        answer(PutObjectLockConfigurationOutput::default())
    }

    pub(super) async fn do_get_object_retention(
        &self,
        req: S3Request<GetObjectRetentionInput>,
    ) -> S3Result<S3Response<GetObjectRetentionOutput>> {
        let (requester, bucket) = (Requester::from_request(&req), bucket_of(&req)?);
        must_lock(&bucket)?;
        let head =
            self.read_head(&requester, &bucket, &req.input.key, req.input.version_id.as_deref()).await?;
        let retention = head.retention.ok_or_else(no_lock)?;
        let retention = ObjectLockRetention {
            mode: Some(ObjectLockRetentionMode::from_static(mode_of(retention))),
            retain_until_date: Some(timestamp(retention.until_ns)),
        };
        answer(GetObjectRetentionOutput { retention: Some(retention) })
    }

    pub(super) async fn do_put_object_retention(
        &self,
        req: S3Request<PutObjectRetentionInput>,
    ) -> S3Result<S3Response<PutObjectRetentionOutput>> {
        let (requester, bucket) = (Requester::from_request(&req), bucket_of(&req)?);
        must_lock(&bucket)?;
        let input = req.input;
        let ObjectLockRetention { mode, retain_until_date } =
            input.retention.ok_or_else(|| s3_error!(MalformedXML, "there is no retention"))?;
        let wanted = match (mode, retain_until_date) {
            (Some(mode), Some(until)) => Some(future(is_compliance(mode.as_str())?, &until)?),
            // The request removes the retention.
            (None, None) => None,
            _ => return Err(s3_error!(MalformedXML, "Mode and RetainUntilDate go together")),
        };
        let bypass = input.bypass_governance_retention.unwrap_or(false)
            && requester.may_bypass_governance(&bucket, &input.key)?;
        let change = |head: &mut Head| {
            if let Some(old) = head.retention
                && old.until_ns > now_ns()
            {
                let longer = wanted.is_some_and(|wanted| {
                    wanted.until_ns >= old.until_ns && wanted.compliance == old.compliance
                });
                if !longer && (old.compliance || !bypass) {
                    return Err(Error::Locked);
                }
            }
            head.retention = wanted;
            Ok(())
        };
        let version = (&*input.key, input.version_id.as_deref());
        // S3 has no event type for this change.
        self.gateway.writer.modify_version(&bucket, version, (&Cause::default(), &[]), change).await?;
        answer(PutObjectRetentionOutput::default())
    }

    pub(super) async fn do_get_object_legal_hold(
        &self,
        req: S3Request<GetObjectLegalHoldInput>,
    ) -> S3Result<S3Response<GetObjectLegalHoldOutput>> {
        let (requester, bucket) = (Requester::from_request(&req), bucket_of(&req)?);
        must_lock(&bucket)?;
        let head =
            self.read_head(&requester, &bucket, &req.input.key, req.input.version_id.as_deref()).await?;
        let status =
            if head.legal_hold { ObjectLockLegalHoldStatus::ON } else { ObjectLockLegalHoldStatus::OFF };
        let status = Some(ObjectLockLegalHoldStatus::from_static(status));
        answer(GetObjectLegalHoldOutput { legal_hold: Some(ObjectLockLegalHold { status }) })
    }

    pub(super) async fn do_put_object_legal_hold(
        &self,
        req: S3Request<PutObjectLegalHoldInput>,
    ) -> S3Result<S3Response<PutObjectLegalHoldOutput>> {
        let bucket = bucket_of(&req)?;
        must_lock(&bucket)?;
        let input = req.input;
        let status = input.legal_hold.and_then(|hold| hold.status);
        let hold = match status.as_ref().map(ObjectLockLegalHoldStatus::as_str) {
            Some(ObjectLockLegalHoldStatus::ON) => true,
            Some(ObjectLockLegalHoldStatus::OFF) => false,
            _ => return Err(s3_error!(MalformedXML, "the status of a legal hold is ON or OFF")),
        };
        let change = |head: &mut Head| {
            head.legal_hold = hold;
            Ok(())
        };
        let version = (&*input.key, input.version_id.as_deref());
        // S3 has no event type for this change.
        self.gateway.writer.modify_version(&bucket, version, (&Cause::default(), &[]), change).await?;
        answer(PutObjectLegalHoldOutput::default())
    }
}

fn must_lock(bucket: &Bucket) -> S3Result<()> {
    if is_locking(bucket) {
        Ok(())
    } else {
        Err(s3_error!(InvalidRequest, "Bucket is missing Object Lock Configuration"))
    }
}

fn no_lock() -> S3Error {
    s3_error!(NoSuchObjectLockConfiguration, "The specified object does not have a ObjectLock configuration")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_forbid_removals() {
        let later = Some(now_ns() + DAY_NS);
        let head = |compliance, until_ns: Option<u64>, legal_hold| Head {
            retention: until_ns.map(|until_ns| Retention { compliance, until_ns }),
            legal_hold,
            ..Head::default()
        };
        assert!(head(false, None, false).check_lock(false).is_ok());
        assert!(head(false, later, false).check_lock(false).is_err());
        assert!(head(false, later, false).check_lock(true).is_ok());
        assert!(head(true, later, false).check_lock(true).is_err());
        assert!(head(true, Some(1), false).check_lock(false).is_ok());
        assert!(head(false, None, true).check_lock(true).is_err());
    }
}
