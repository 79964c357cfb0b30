//! Identifies the sender of a request and checks whether it may do what it asks for.
//!
//! A bucket's ACL says who may list the bucket and write into it; other operations on the bucket are its owner's. An
//! object's own ACL says who may read it. It is checked when the object's head has been read ([`Requester::authorize_read`]).

use super::acl::GRANT_HEADERS;
use super::actions::{action_of, version_action_of};
use super::encryption::check_key_transport;
use crate::caller::Caller;
use crate::conditions::{ConditionContext, refuse_response_overrides, sets_tags, version_of_query};
use crate::evaluation::evaluate;
use crate::request::{RequestInfo, RequestOrigin};
use http::{HeaderMap, Method, Uri, header};
use nacre_rgw::acl::{Acl, Permission};
use nacre_rgw::bucket::Bucket;
use nacre_rgw::error::Error;
use nacre_rgw::gateway::Gateway;
use nacre_rgw::policy::{Decision, Policy, PolicyPrincipal, PolicyRequest};
use nacre_rgw::public_access::Ownership;
use nacre_rgw::ratelimit::RateLimitScope;
use nacre_rgw::role::Role;
use nacre_rgw::session::CallerIdentity;
use nacre_rgw::stored::Head;
use nacre_rgw::user::User;
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::{S3Auth, SecretKey};
use s3s::path::S3Path;
use s3s::{S3Error, S3ErrorCode, S3Request, S3Result, s3_error};
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

/// Provides the secret keys of users to check signatures.
pub(crate) struct SecretKeyProvider(pub(crate) Arc<Gateway>);

#[async_trait::async_trait]
impl S3Auth for SecretKeyProvider {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        match self.0.authenticator.secret_key(access_key).await {
            Err(Error::NoSuchUser(_)) => Err(s3_error!(InvalidAccessKeyId)),
            secret => Ok(SecretKey::from(secret?)),
        }
    }
}

/// The sender of a request: an anonymous client, or a user whose signature is valid.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requester {
    user: Option<Arc<User>>,
    /// The role that the user has assumed, and the session's name.
    role: Option<(Arc<Role>, String)>,
    /// The session's policy, which limits what it may do.
    session_policy: Option<Arc<Policy>>,
    /// The actions by which the request was judged, also by the bucket's policy.
    actions: Arc<[String]>,
    /// Whether a policy allows the request, whatever ACLs say.
    allowed: bool,
    /// How far the ACLs of the bucket and its objects apply.
    acl_scope: AclScope,
    /// The values of condition keys of policies.
    context: Arc<ConditionContext>,
}

/// How far ACLs apply in a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum AclScope {
    /// All grants apply.
    #[default]
    Count,
    /// Grants to groups do not apply.
    WithoutGroups,
    /// No grant applies: everything is the bucket owner's. The flag says whether the requester is that owner.
    Owner(bool),
}

impl Requester {
    /// Returns the sender of a request that went through [`AccessChecker`].
    pub(crate) fn from_request<T>(req: &S3Request<T>) -> Requester {
        req.extensions.get::<Requester>().cloned().unwrap_or_default()
    }

    /// Returns the user. Fails with AccessDenied for an anonymous client.
    pub(crate) fn user(&self) -> S3Result<&User> {
        self.user.as_deref().ok_or_else(denied)
    }

    /// Returns the id of the user that owns what the request creates; empty for an anonymous client.
    pub(crate) fn id(&self) -> &str {
        self.user.as_ref().map_or("", |user| &user.id)
    }

    /// Returns the user id for ACLs and owners. `None` for an anonymous client and for an assumed role, which ACLs and
    /// owners do not know: policies say what it may do.
    pub(crate) fn acl_user(&self) -> Option<&str> {
        self.user.as_ref().filter(|_| self.role.is_none()).map(|user| user.id.as_str())
    }

    /// Returns the requester as policies identify it.
    fn who(&self) -> PolicyPrincipal<'_> {
        let role = self.role.as_ref().map(|(role, session)| (role.name.as_str(), session.as_str()));
        PolicyPrincipal { user: self.user.as_ref().map(|user| user.id.as_str()), role }
    }

    /// Returns the requester as the policies of topics judge it; `None` for an anonymous client.
    pub(crate) fn caller(&self) -> Option<Caller> {
        Some(Caller {
            assumed: CallerIdentity {
                user: Arc::clone(self.user.as_ref()?),
                role: self.role.clone(),
                policy: self.session_policy.clone(),
            },
            temporary: false,
            context: ConditionContext::clone(&self.context),
        })
    }

    /// Fails with AccessDenied unless `acl` grants `wanted` or a policy allows the request. An owner may always read and
    /// change the ACL itself.
    pub(crate) fn authorize_acl(&self, acl: &Acl, owner: &str, wanted: Permission) -> S3Result<()> {
        let own =
            self.acl_user() == Some(owner) && matches!(wanted, Permission::ReadAcl | Permission::WriteAcl);
        let granted = match self.acl_scope {
            AclScope::Owner(asks) => asks,
            _ if self.role.is_some() => acl.grants(None, wanted) && self.acl_scope == AclScope::Count,
            AclScope::Count => own || acl.grants(self.acl_user(), wanted),
            AclScope::WithoutGroups => own || acl.grants_with_groups(self.acl_user(), wanted, false),
        };
        if granted || self.allowed { Ok(()) } else { Err(denied()) }
    }

    /// Evaluates the bucket's policy, the policies of the user or role, and the session's policy for `action` on a
    /// resource. Without `bucket`, no bucket policy is evaluated.
    fn decide(&self, bucket: Option<&Bucket>, action: &str, resource: &str) -> Decision {
        // As in radosgw, these users may do everything, whatever policies say.
        if self.user.as_ref().is_some_and(|user| user.admin || user.system) && self.role.is_none() {
            return Decision::Allow;
        }
        let context = |name: &str| self.context.get(name);
        let asked = PolicyRequest { who: self.who(), action, resource, context: &context };
        let of_bucket = match bucket.and_then(|bucket| Some((bucket, bucket.policy.as_ref()?))) {
            Some((bucket, policy)) => {
                let decision = evaluate(policy, &asked);
                let restricted = bucket.public_access.restrict_public_buckets
                    && self.acl_user() != Some(&bucket.owner)
                    && policy.is_public();
                if restricted && decision == Decision::Allow { Decision::Pass } else { decision }
            }
            None => Decision::Pass,
        };
        let own = self
            .own_policies()
            .iter()
            .fold(Decision::Pass, |decision, policy| decision.or(evaluate(policy, &asked)));
        match &self.session_policy {
            Some(limit) => of_bucket.or(own).and(evaluate(limit, &asked)),
            None => of_bucket.or(own),
        }
    }

    /// Returns the policies of the user, or of the role that it has assumed.
    fn own_policies(&self) -> &[Arc<Policy>] {
        match (&self.role, &self.user) {
            (Some((role, _)), _) => &role.permissions,
            (None, Some(user)) => &user.identity,
            (None, None) => &[],
        }
    }

    /// Returns whether a decision on an object in `bucket` may depend on the object's tags.
    fn depends_on_tags(&self, bucket: &Bucket) -> bool {
        let of_bucket = bucket.policy.as_deref();
        let own = self.own_policies().iter().map(|policy| &**policy);
        of_bucket.into_iter().chain(own).chain(self.session_policy.as_deref()).any(Policy::uses_object_tags)
    }

    /// Returns the request with the tags of the object or version that it names. The tags are read only if a policy
    /// has a condition on tags.
    pub(super) async fn with_object_tags(
        mut self,
        gateway: &Gateway,
        bucket: &Bucket,
        (key, version): (&str, Option<&str>),
    ) -> S3Result<Requester> {
        if !self.depends_on_tags(bucket) {
            return Ok(self);
        }
        let tags = match gateway.objects.head_of_version(&bucket.id, key, version).await {
            Ok(head) => head.tags,
            // Without an object there are no tags. The operation reports the error itself.
            Err(
                Error::NoSuchKey
                | Error::NoSuchVersion
                | Error::InvalidVersionId
                | Error::DeleteMarker { .. },
            ) => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        Arc::make_mut(&mut self.context).set_existing_tags(&tags);
        Ok(self)
    }

    /// Judges the request again if the tags in the object's head differ from the tags by which it was judged before: the
    /// object may have been replaced in between.
    pub(super) fn reevaluate_with_tags(
        &self,
        bucket: &Bucket,
        key: &str,
        head: &Head,
    ) -> S3Result<Requester> {
        if self.actions.is_empty() || !self.depends_on_tags(bucket) {
            return Ok(self.clone());
        }
        let mut seeing = self.clone();
        Arc::make_mut(&mut seeing.context).set_existing_tags(&head.tags);
        if seeing.context == self.context {
            return Ok(seeing);
        }
        let actions: Vec<&str> = self.actions.iter().map(String::as_str).collect();
        seeing.evaluate_actions(bucket, &actions, Some(key))
    }

    /// Returns the request for `version` of one object, where a request names versions of several objects.
    pub(super) fn with_version(mut self, version: Option<&str>) -> Requester {
        Arc::make_mut(&mut self.context).set_version(version);
        self
    }

    /// Returns the request to read `version` of the source of a copy.
    pub(super) fn with_source_version(mut self, version: Option<&str>) -> Requester {
        Arc::make_mut(&mut self.context).restrict_to_copy_source(version);
        self
    }

    /// Returns the request to give an object `tags`, whatever its headers say.
    pub(super) fn with_request_tags(mut self, tags: &[(String, String)]) -> Requester {
        Arc::make_mut(&mut self.context).set_request_tags(tags);
        self
    }

    /// Judges `action` on `key` of `bucket` by policies, and returns the requester with the result. Fails with AccessDenied
    /// if a policy denies the action.
    pub(crate) fn evaluate_action(
        &self,
        bucket: &Bucket,
        action: &str,
        key: Option<&str>,
    ) -> S3Result<Requester> {
        self.evaluate_actions(bucket, &[action], key)
    }

    /// As [`Requester::evaluate_action`], for an operation that needs several actions.
    fn evaluate_actions(&self, bucket: &Bucket, actions: &[&str], key: Option<&str>) -> S3Result<Requester> {
        let judged = self.judged(bucket, Some(bucket), actions, key)?;
        let actions = actions.iter().map(|action| (*action).to_owned()).collect();
        Ok(Requester { actions, ..judged })
    }

    /// As [`Requester::evaluate_action`], without the bucket's own policy.
    fn evaluate_identity_policy(&self, bucket: &Bucket, action: &str) -> S3Result<Requester> {
        self.judged(bucket, None, &[action], None)
    }

    fn judged(
        &self,
        bucket: &Bucket,
        policy_of: Option<&Bucket>,
        actions: &[&str],
        key: Option<&str>,
    ) -> S3Result<Requester> {
        let resource = match key {
            Some(key) => format!("arn:aws:s3:::{}/{key}", bucket.name),
            None => format!("arn:aws:s3:::{}", bucket.name),
        };
        let mut allowed = true;
        for action in actions {
            allowed &= match self.decide(policy_of, action, &resource) {
                Decision::Deny => return Err(denied()),
                Decision::Allow => true,
                // A limited session may do only what policies allow; ACLs grant it nothing.
                Decision::Pass if self.session_policy.is_some() => return Err(denied()),
                Decision::Pass => false,
            };
        }
        Ok(Requester { allowed, ..self.with_acl_scope(bucket) })
    }

    /// Checks an action that concerns no existing bucket. Users may do it unless a policy denies it; a role or a limited
    /// session needs a policy that allows it.
    fn authorize_service_action(&self, action: &str, resource: &str) -> S3Result<()> {
        self.user()?;
        match self.decide(None, action, resource) {
            Decision::Allow => Ok(()),
            Decision::Pass if self.role.is_none() && self.session_policy.is_none() => Ok(()),
            _ => Err(denied()),
        }
    }

    /// Returns the requester with how far ACLs apply in the bucket.
    fn with_acl_scope(&self, bucket: &Bucket) -> Requester {
        let lists = match (bucket.ownership, bucket.public_access.ignore_public_acls) {
            (Ownership::BucketOwnerEnforced, _) => AclScope::Owner(self.acl_user() == Some(&bucket.owner)),
            (_, true) => AclScope::WithoutGroups,
            (_, false) => AclScope::Count,
        };
        Requester { acl_scope: lists, ..self.clone() }
    }

    /// Returns whether a policy allows the request, whatever ACLs say.
    pub(crate) fn is_allowed(&self) -> bool {
        self.allowed
    }

    /// Returns whether the requester may override retention in governance mode.
    pub(crate) fn may_bypass_governance(&self, bucket: &Bucket, key: &str) -> S3Result<bool> {
        let asking = self.evaluate_action(bucket, "s3:BypassGovernanceRetention", Some(key))?;
        Ok(asking.allowed || self.acl_user() == Some(&bucket.owner))
    }

    /// Fails with AccessDenied if the requester may not do what the headers of a write do in addition to it.
    ///
    /// Retention and legal holds bind the bucket's owner, so anyone else needs a policy that allows setting them. The ACL
    /// and the tags of an object belong to the object's own owner, as if they were set afterwards: policies may deny
    /// setting them. A role owns nothing, so it needs a policy that allows it.
    fn authorize_write_headers(&self, bucket: &Bucket, key: &str, headers: &HeaderMap) -> S3Result<()> {
        let is_there = |names: &[&str]| names.iter().any(|name| headers.contains_key(*name));
        for (names, action) in LOCK_HEADERS {
            if is_there(names) {
                self.evaluate_action(bucket, action, Some(key))?.require_owner(bucket)?;
            }
        }
        if is_there(&["x-amz-acl"]) || GRANT_HEADERS.iter().any(|(name, _)| is_there(&[name])) {
            let asking = self.evaluate_action(bucket, "s3:PutObjectAcl", Some(key))?;
            if self.role.is_some() && !asking.allowed {
                return Err(denied());
            }
        }
        if is_there(&["x-amz-tagging"]) { self.authorize_tagging(bucket, key) } else { Ok(()) }
    }

    /// As [`Requester::evaluate_action`], for giving an object `tags`.
    pub(crate) fn evaluate_tagging(
        &self,
        bucket: &Bucket,
        (key, version): (&str, Option<&str>),
        tags: &[(String, String)],
    ) -> S3Result<Requester> {
        let asking = self.clone().with_request_tags(tags);
        let operation = "PutObjectTagging";
        let action = version.and_then(|_| version_action_of(operation)).map(Cow::Borrowed);
        asking.evaluate_action(bucket, &action.unwrap_or_else(|| action_of(operation)), Some(key))
    }

    /// Fails with AccessDenied if the requester may not give tags to an object that it creates.
    pub(super) fn authorize_tagging(&self, bucket: &Bucket, key: &str) -> S3Result<()> {
        let asking = self.evaluate_action(bucket, "s3:PutObjectTagging", Some(key))?;
        let is_others = self.role.is_some() || asking.acl_scope == AclScope::Owner(false);
        if is_others && !asking.allowed { Err(denied()) } else { Ok(()) }
    }

    /// Fails with AccessDenied if the requester may not read the tags of an object that it copies: the copy gets them.
    pub(super) fn authorize_tag_copy(&self, bucket: &Bucket, key: &str, versioned: bool) -> S3Result<()> {
        let action = if versioned { "s3:GetObjectVersionTagging" } else { "s3:GetObjectTagging" };
        let asking = self.evaluate_action(bucket, action, Some(key))?;
        // As in radosgw, an ACL that lets an object be read also lets it be copied with its tags.
        if self.role.is_some() && !asking.allowed { Err(denied()) } else { Ok(()) }
    }

    /// Returns whether the requester owns the object or its bucket, and so the object's tags.
    pub(crate) fn owns(&self, bucket: &Bucket, head: &Head) -> bool {
        let by_lists = bucket.ownership != Ownership::BucketOwnerEnforced;
        self.acl_user().is_some_and(|id| id == bucket.owner || (by_lists && id == head.owner))
    }

    /// Fails with AccessDenied if the requester may not write into a bucket.
    pub(crate) fn authorize_write(&self, bucket: &Bucket) -> S3Result<()> {
        self.authorize_acl(&bucket.acl, &bucket.owner, Permission::Write)
    }

    /// Fails with AccessDenied if the requester may not read an object.
    pub(crate) fn authorize_read(&self, head: &Head) -> S3Result<()> {
        self.authorize_acl(&head.acl, &head.owner, Permission::Read)
    }

    /// Fails with AccessDenied if the requester may not list a bucket.
    pub(crate) fn authorize_list(&self, bucket: &Bucket) -> S3Result<()> {
        self.authorize_acl(&bucket.acl, &bucket.owner, Permission::Read)
    }

    /// Fails with AccessDenied unless the requester owns the bucket or a policy allows the request.
    fn require_owner(&self, bucket: &Bucket) -> S3Result<()> {
        if self.allowed || self.acl_user() == Some(&bucket.owner) { Ok(()) } else { Err(denied()) }
    }
}

/// Headers of writes that lock the object, and the policy actions for them.
const LOCK_HEADERS: [(&[&str], &str); 2] = [
    (&["x-amz-object-lock-mode", "x-amz-object-lock-retain-until-date"], "s3:PutObjectRetention"),
    (&["x-amz-object-lock-legal-hold"], "s3:PutObjectLegalHold"),
];

/// Returns the session token of temporary credentials: a header or, in a presigned URL, a parameter.
fn token_of(headers: &HeaderMap, uri: &Uri) -> Option<String> {
    if let Some(token) = headers.get("x-amz-security-token") {
        return Some(token.to_str().unwrap_or_default().to_owned());
    }
    let pairs = uri.query()?.split('&');
    let token =
        pairs.filter_map(|pair| pair.split_once('=')).find(|(name, _)| *name == "X-Amz-Security-Token");
    token.map(|(_, token)| {
        urlencoding::decode(token).map_or_else(|_| String::new(), |token| token.into_owned())
    })
}

/// Returns the AccessDenied error.
pub(crate) fn denied() -> S3Error {
    s3_error!(AccessDenied, "Access Denied")
}

/// Returns the error for a bucket whose owner is suspended.
fn suspended() -> S3Error {
    let mut error =
        S3Error::with_message(S3ErrorCode::Custom("UserSuspended".into()), "the bucket's owner is suspended");
    error.set_status_code(http::StatusCode::FORBIDDEN);
    error
}

/// Fails with AccessDenied if the bucket's owner is not the one that the request expects, whatever the requester may do
/// there.
fn check_expected_owner(headers: &HeaderMap, bucket: &Bucket) -> S3Result<()> {
    match headers.get("x-amz-expected-bucket-owner") {
        Some(expected) if expected.as_bytes() != bucket.owner.as_bytes() => Err(denied()),
        _ => Ok(()),
    }
}

/// Refuses requests to a bucket whose owner is suspended. As in radosgw, what a suspended user has made public is no longer
/// accessible.
pub(super) async fn check_owner_not_suspended(gateway: &Gateway, bucket: &Bucket) -> S3Result<()> {
    match gateway.users.cached(&bucket.owner).await {
        Ok(owner) if owner.suspended => Err(suspended()),
        Ok(_) | Err(Error::NoSuchUser(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Checks every request before it is processed further.
pub(crate) struct AccessChecker(pub(crate) Arc<Gateway>);

impl AccessChecker {
    /// Checks that a form may create `key` of `bucket`, and returns its sender. `headers` are the form's fields as headers;
    /// `signed` is the access key and the token of the signer.
    pub(crate) async fn check_post_object(
        &self,
        signed: Option<(&str, Option<&str>)>,
        head: &http::request::Parts,
        headers: &HeaderMap,
        bucket: &Bucket,
        key: &str,
    ) -> S3Result<Requester> {
        let info = head.extensions.get::<Arc<RequestInfo>>().cloned().unwrap_or_default();
        let mut asked = headers.clone();
        for name in [header::REFERER, header::USER_AGENT] {
            if let Some(value) = head.headers.get(&name) {
                asked.insert(name, value.clone());
            }
        }
        let (user, role, limit) = match signed {
            Some((access_key, token)) => {
                let CallerIdentity { user, role, policy } = self.identify(access_key, token).await?;
                (Some(user), role, policy)
            }
            None => (None, None, None),
        };
        let peer = head.extensions.get::<RequestOrigin>();
        check_key_transport(self.0.config.require_tls_for_keys, headers, peer)?;
        let context = Arc::new(ConditionContext::of(&asked, "", peer, user.as_deref(), role.as_ref()));
        let requester = Requester { user, role, session_policy: limit, context, ..Requester::default() };
        info.set_operation("PostObject", requester.id());
        check_owner_not_suspended(&self.0, bucket).await?;
        let requester = requester.with_object_tags(&self.0, bucket, (key, None)).await?;
        let requester = requester.evaluate_action(bucket, "s3:PutObject", Some(key))?;
        requester.authorize_write(bucket)?;
        requester.authorize_write_headers(bucket, key, headers)?;
        self.count(requester.user.as_deref(), Some(bucket), &head.method, &info)?;
        Ok(requester)
    }

    /// Checks a request that concerns a bucket as a whole, and returns its sender and the bucket. It is for requests that
    /// do not go through the protocol's own operations. Only the bucket's owner, and requesters that a policy allows, may
    /// send them.
    pub(crate) async fn check_bucket_request<T>(
        &self,
        req: &S3Request<T>,
        name: &str,
        operation: &str,
    ) -> S3Result<(Requester, Arc<Bucket>)> {
        let info = req.extensions.get::<Arc<RequestInfo>>().cloned().unwrap_or_default();
        let token = token_of(&req.headers, &req.uri);
        let (user, role, limit) = match &req.credentials {
            Some(credentials) => {
                let assumed = self.identify(&credentials.access_key, token.as_deref()).await?;
                (Some(assumed.user), assumed.role, assumed.policy)
            }
            None => (None, None, None),
        };
        let peer = req.extensions.get::<RequestOrigin>();
        let query = req.uri.query().unwrap_or_default();
        let context =
            Arc::new(ConditionContext::of(&req.headers, query, peer, user.as_deref(), role.as_ref()));
        let requester = Requester { user, role, session_policy: limit, context, ..Requester::default() };
        info.set_operation(operation, requester.id());
        info.set_bucket(name);
        let bucket = self.0.cached_bucket(name).await?;
        info.set_owner(&bucket.owner);
        check_expected_owner(&req.headers, &bucket)?;
        check_owner_not_suspended(&self.0, &bucket).await?;
        let requester = requester.evaluate_action(&bucket, &action_of(operation), None)?;
        requester.require_owner(&bucket)?;
        self.count(requester.user.as_deref(), Some(&bucket), &req.method, &info)?;
        Ok((requester, bucket))
    }

    async fn identify(&self, access_key: &str, token: Option<&str>) -> S3Result<CallerIdentity> {
        match self.0.authenticator.authenticate(access_key, token).await {
            Err(Error::NoSuchUser(_)) => Err(s3_error!(InvalidAccessKeyId)),
            assumed => Ok(assumed?),
        }
    }

    /// Counts a request against the rate limits of its user and its bucket. Fails with SlowDown if a limit is exceeded.
    fn count(
        &self,
        user: Option<&User>,
        bucket: Option<&Bucket>,
        method: &Method,
        info: &RequestInfo,
    ) -> S3Result<()> {
        let user = user.map(|user| (user.ratelimit, RateLimitScope::User(user.id.clone())));
        let bucket = bucket.map(|bucket| (bucket.ratelimit, RateLimitScope::Bucket(bucket.id.clone())));
        let writes = !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
        for (limit, scope) in user.into_iter().chain(bucket).filter(|(limit, _)| limit.enabled) {
            let account = self.0.ratelimits.take(scope, limit, writes, Instant::now());
            info.add_rate_limit_entry(
                account.ok_or_else(|| s3_error!(SlowDown, "Please reduce your request rate."))?,
            );
        }
        Ok(())
    }
}

#[async_trait::async_trait]
impl S3Access for AccessChecker {
    async fn check(&self, cx: &mut S3AccessContext<'_>) -> S3Result<()> {
        let token = token_of(cx.headers(), cx.uri());
        let assumed = match cx.credentials() {
            Some(credentials) => Some(self.identify(&credentials.access_key, token.as_deref()).await?),
            None => None,
        };
        let (user, role, limit) = match assumed {
            Some(CallerIdentity { user, role, policy }) => (Some(user), role, policy),
            None => (None, None, None),
        };
        let peer = cx.extensions_mut().get::<RequestOrigin>().copied();
        check_key_transport(self.0.config.require_tls_for_keys, cx.headers(), peer.as_ref())?;
        let query = cx.uri().query().unwrap_or_default();
        let mut context =
            ConditionContext::of(cx.headers(), query, peer.as_ref(), user.as_deref(), role.as_ref());
        if !sets_tags(cx.s3_op().name(), cx.headers()) {
            context.set_request_tags(&[]);
        }
        let context = Arc::new(context);
        let mut requester = Requester { user, role, session_policy: limit, context, ..Requester::default() };
        let name = match cx.s3_path() {
            S3Path::Root => None,
            S3Path::Bucket { bucket } | S3Path::Object { bucket, .. } => Some(bucket.to_string()),
        };
        let info = cx.extensions_mut().get::<Arc<RequestInfo>>().cloned().unwrap_or_default();
        info.set_operation(cx.s3_op().name(), requester.id());
        match (cx.s3_op().name(), name) {
            ("CreateBucket", Some(name)) => {
                info.set_bucket(&name);
                requester.authorize_service_action("s3:CreateBucket", &format!("arn:aws:s3:::{name}"))?;
                self.count(requester.user.as_deref(), None, cx.method(), &info)?;
            }
            (_, None) => {
                requester.authorize_service_action("s3:ListAllMyBuckets", "arn:aws:s3:::*")?;
                self.count(requester.user.as_deref(), None, cx.method(), &info)?;
            }
            (operation, Some(name)) => {
                info.set_bucket(&name);
                let bucket = self.0.cached_bucket(&name).await?;
                info.set_owner(&bucket.owner);
                check_expected_owner(cx.headers(), &bucket)?;
                check_owner_not_suspended(&self.0, &bucket).await?;
                let key = match cx.s3_path() {
                    S3Path::Object { key, .. } => Some(&**key),
                    _ => None,
                };
                // A policy must not lock the bucket's owner out of changing it.
                let policies = ["GetBucketPolicy", "PutBucketPolicy", "DeleteBucketPolicy"];
                let of_owner = policies.contains(&operation) && requester.acl_user() == Some(&bucket.owner);
                let query = cx.uri().query().unwrap_or_default();
                if requester.user.is_none() && ["GetObject", "HeadObject"].contains(&operation) {
                    refuse_response_overrides(query)?;
                }
                let version = version_of_query(query);
                if let Some(key) = key.filter(|_| operation != "DeleteObjects") {
                    requester =
                        requester.with_object_tags(&self.0, &bucket, (key, version.as_deref())).await?;
                }
                // DeleteObjects judges each of its keys, and PutObjectTagging the tags that it sets.
                requester = if ["DeleteObjects", "PutObjectTagging"].contains(&operation) {
                    requester.with_acl_scope(&bucket)
                } else if of_owner {
                    requester.evaluate_identity_policy(&bucket, &action_of(operation))?
                } else {
                    let action_of = |operation| {
                        let action = version.as_ref().and_then(|_| version_action_of(operation));
                        action.map_or_else(|| action_of(operation), Cow::Borrowed)
                    };
                    let action = action_of(operation);
                    match operation {
                        // The attributes are a part of what a read returns.
                        "GetObjectAttributes" => {
                            requester.evaluate_actions(&bucket, &[&action, &action_of("GetObject")], key)?
                        }
                        _ => requester.evaluate_action(&bucket, &action, key)?,
                    }
                };
                match operation {
                    // These are checked when the object's head has been read.
                    "GetObject"
                    | "HeadObject"
                    | "GetObjectAttributes"
                    | "GetObjectAcl"
                    | "PutObjectAcl"
                    | "GetObjectTagging"
                    | "PutObjectTagging"
                    | "DeleteObjectTagging" => {}
                    "DeleteObjects" => {}
                    "GetBucketAcl" => {
                        requester.authorize_acl(&bucket.acl, &bucket.owner, Permission::ReadAcl)?
                    }
                    "PutBucketAcl" => {
                        requester.authorize_acl(&bucket.acl, &bucket.owner, Permission::WriteAcl)?
                    }
                    "ListObjects"
                    | "ListObjectsV2"
                    | "ListObjectVersions"
                    | "HeadBucket"
                    | "GetBucketLocation"
                    | "ListMultipartUploads" => requester.authorize_list(&bucket)?,
                    "PutObject"
                    | "PostObject"
                    | "DeleteObject"
                    | "CopyObject"
                    | "CreateMultipartUpload"
                    | "UploadPart"
                    | "UploadPartCopy"
                    | "CompleteMultipartUpload"
                    | "AbortMultipartUpload"
                    | "ListParts" => {
                        requester.authorize_write(&bucket)?;
                    }
                    _ => requester.require_owner(&bucket)?,
                }
                if let ("PutObject" | "CopyObject" | "CreateMultipartUpload", Some(key)) = (operation, key) {
                    requester.authorize_write_headers(&bucket, key, cx.headers())?;
                }
                self.count(requester.user.as_deref(), Some(&bucket), cx.method(), &info)?;
                cx.extensions_mut().insert(bucket);
            }
        }
        cx.extensions_mut().insert(requester);
        Ok(())
    }
}

/// Returns the bucket of a request that went through [`AccessChecker`].
pub(crate) fn bucket_of<T>(req: &S3Request<T>) -> S3Result<Arc<Bucket>> {
    req.extensions.get::<Arc<Bucket>>().cloned().ok_or_else(|| s3_error!(NoSuchBucket))
}
