//! Evaluates policies for requests. An evaluation that reaches its step limit refuses the request; that is logged at most once
//! a minute for each bucket, since any client can cause it.

use crate::log_limit::LogLimit;
use nacre_rgw::policy::{Decision, Policy, PolicyRequest, StepLimitExceeded};
use std::time::{Duration, Instant};

/// Messages about evaluations that reached their step limit, by bucket.
static STEP_LIMIT_LOG: LogLimit = LogLimit::new(Duration::from_secs(60));

/// Returns the decision of a policy on a request.
pub(crate) fn evaluate(policy: &Policy, asked: &PolicyRequest<'_>) -> Decision {
    policy.decide(asked).unwrap_or_else(|StepLimitExceeded| {
        let bucket = subject_of(asked.resource);
        if let Some(omitted) = STEP_LIMIT_LOG.should_log(bucket, Instant::now()) {
            let action = asked.action;
            tracing::warn!(
                bucket,
                action,
                omitted,
                "rgw: a policy has reached its step limit: requests are refused"
            );
        }
        Decision::Deny
    })
}

/// Returns the bucket that contains a resource, or the resource itself if it is of another kind.
fn subject_of(resource: &str) -> &str {
    match resource.strip_prefix("arn:aws:s3:::") {
        Some(name) => name.split('/').next().unwrap_or(name),
        None => resource,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_rgw::policy::PolicyPrincipal;
    use serde_json::json;

    #[test]
    fn an_evaluation_that_reaches_its_step_limit_is_a_refusal() {
        let pattern = format!("*{}?b*", "a".repeat(4000));
        let statement = json!({ "Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "*",
            "Condition": { "StringNotLike": { "aws:Referer": pattern } } });
        let policy = Policy::read(&json!({ "Statement": statement }).to_string(), "b").unwrap();
        let evaluate_for = |referer: &str| {
            let context = |_: &str| vec![referer.to_owned()];
            let (who, resource) = (PolicyPrincipal::default(), "arn:aws:s3:::b/k");
            evaluate(&policy, &PolicyRequest { who, action: "s3:GetObject", resource, context: &context })
        };
        assert_eq!(evaluate_for("http://x"), Decision::Allow);
        assert_eq!(evaluate_for(&"a".repeat(20_000)), Decision::Deny);
    }

    #[test]
    fn messages_name_the_bucket() {
        for (resource, subject) in [
            ("arn:aws:s3:::photos/2024/a", "photos"),
            ("arn:aws:s3:::photos", "photos"),
            ("arn:aws:iam:::role/reader", "arn:aws:iam:::role/reader"),
        ] {
            assert_eq!(subject_of(resource), subject);
        }
    }
}
