//! Operations on the website configuration of a bucket.

use super::access::bucket_of;
use super::{S3Api, answer};
use nacre_rgw::bucket::WEBSITE;
use s3s::dto::{
    DeleteBucketWebsiteInput, DeleteBucketWebsiteOutput, GetBucketWebsiteInput, GetBucketWebsiteOutput,
    PutBucketWebsiteInput, PutBucketWebsiteOutput, RoutingRule, WebsiteConfiguration,
};
use s3s::{S3Request, S3Response, S3Result, s3_error};

/// The most routing rules of a website.
const MAX_RULES: usize = 50;
/// Status codes of redirections.
const REDIRECTS: [&str; 6] = ["301", "302", "303", "304", "307", "308"];

/// Returns whether a redirection may lead to this host. The host becomes part of a header.
fn is_host(host: &str) -> bool {
    let is_sound = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
    !host.is_empty() && host.bytes().all(is_sound)
}

fn is_protocol(protocol: &str) -> bool {
    ["http", "https"].contains(&protocol)
}

fn check_rule(rule: &RoutingRule) -> Result<(), String> {
    let redirect = &rule.redirect;
    if redirect.replace_key_with.is_some() && redirect.replace_key_prefix_with.is_some() {
        return Err("You can only define ReplaceKeyPrefix or ReplaceKey but not both.".into());
    }
    if redirect.host_name.as_deref().is_some_and(|host| !is_host(host)) {
        return Err("The HostName is not well formed".into());
    }
    if redirect.protocol.as_ref().is_some_and(|protocol| !is_protocol(protocol.as_str())) {
        return Err("Invalid protocol, protocol can be http or https.".into());
    }
    if redirect.http_redirect_code.as_deref().is_some_and(|code| !REDIRECTS.contains(&code)) {
        let code = redirect.http_redirect_code.as_deref().unwrap_or_default();
        return Err(format!("The provided HTTP redirect code ({code}) is not valid."));
    }
    let code =
        rule.condition.as_ref().and_then(|condition| condition.http_error_code_returned_equals.as_deref());
    let is_error = |code: &str| code.parse::<u16>().is_ok_and(|code| (400..600).contains(&code));
    if code.is_some_and(|code| !is_error(code)) {
        return Err("The provided HTTP error code is not valid.".into());
    }
    Ok(())
}

/// Checks a new website configuration. The error is the message for the client.
fn check(website: &WebsiteConfiguration) -> Result<(), String> {
    if let Some(all) = &website.redirect_all_requests_to {
        if website.index_document.is_some()
            || website.error_document.is_some()
            || website.routing_rules.as_ref().is_some_and(|rules| !rules.is_empty())
        {
            return Err(
                "RedirectAllRequestsTo cannot be provided in conjunction with other Routing Rules.".into()
            );
        }
        let protocol = all.protocol.as_ref().is_none_or(|protocol| is_protocol(protocol.as_str()));
        return if protocol && is_host(&all.host_name) {
            Ok(())
        } else {
            Err("The HostName is not well formed".into())
        };
    }
    let index = website.index_document.as_ref().map_or("", |index| &index.suffix);
    if index.is_empty() || index.contains('/') {
        return Err("The IndexDocument Suffix is not well formed".into());
    }
    if website.error_document.as_ref().is_some_and(|document| document.key.is_empty()) {
        return Err("The ErrorDocument Key is not well formed".into());
    }
    let rules = website.routing_rules.as_deref().unwrap_or_default();
    if rules.len() > MAX_RULES {
        return Err(format!(
            "{} routing rules provided, the number of routing rules in a website configuration is limited to {MAX_RULES}.",
            rules.len()
        ));
    }
    rules.iter().try_for_each(check_rule)
}

impl S3Api {
    pub(super) async fn do_get_bucket_website(
        &self,
        req: S3Request<GetBucketWebsiteInput>,
    ) -> S3Result<S3Response<GetBucketWebsiteOutput>> {
        let bucket = bucket_of(&req)?;
        let website = bucket.website.as_deref().cloned().ok_or_else(|| {
            s3_error!(
                NoSuchWebsiteConfiguration,
                "The specified bucket does not have a website configuration"
            )
        })?;
        answer(GetBucketWebsiteOutput {
            error_document: website.error_document,
            index_document: website.index_document,
            redirect_all_requests_to: website.redirect_all_requests_to,
            routing_rules: website.routing_rules,
        })
    }

    pub(super) async fn do_put_bucket_website(
        &self,
        req: S3Request<PutBucketWebsiteInput>,
    ) -> S3Result<S3Response<PutBucketWebsiteOutput>> {
        let website = &req.input.website_configuration;
        check(website).map_err(|text| s3_error!(InvalidRequest, "{text}"))?;
        let text = serde_json::to_string(website).map_err(|error| s3_error!(error, InternalError))?;
        self.set_bucket_document(&req.input.bucket, WEBSITE, Some(text)).await?;
        answer(PutBucketWebsiteOutput::default())
    }

    pub(super) async fn do_delete_bucket_website(
        &self,
        req: S3Request<DeleteBucketWebsiteInput>,
    ) -> S3Result<S3Response<DeleteBucketWebsiteOutput>> {
        self.set_bucket_document(&req.input.bucket, WEBSITE, None).await?;
        answer(DeleteBucketWebsiteOutput::default())
    }
}
