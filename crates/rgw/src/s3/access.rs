//! Who a request comes from and whether it may do what it asks.
//!
//! A bucket's list says who may list it and write into it; what else concerns the bucket is its owner's. An object's own
//! list says who may read it: that is seen when its head is at hand ([`Requester::may_read`]).

use super::acl::GRANT_HEADERS;
use super::actions::{action_of, version_action_of};
use super::conditions::{Context, check_overrides, gives_tags, version_of_query};
use super::encryption::check_secrecy;
use crate::acl::{Acl, Permission};
use crate::bucket::Bucket;
use crate::error::Error;
use crate::evaluation::evaluate;
use crate::forms::Caller;
use crate::gateway::Gateway;
use crate::object::Head;
use crate::policy::{Asked, Decision, Policy, Who};
use crate::public_access::Ownership;
use crate::ratelimit::Scope;
use crate::role::Role;
use crate::server::RequestInfo;
use crate::session::Assumed;
use crate::user::User;
use http::{HeaderMap, Method, Uri, header};
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::{S3Auth, SecretKey};
use s3s::path::S3Path;
use s3s::{S3Error, S3ErrorCode, S3Request, S3Result, s3_error};
use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

/// Gives signatures' checks the secrets of users' keys.
pub(crate) struct Keys(pub(crate) Arc<Gateway>);

#[async_trait::async_trait]
impl S3Auth for Keys {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        match self.0.secret_of(access_key).await {
            Err(Error::NoSuchUser(_)) => Err(s3_error!(InvalidAccessKeyId)),
            secret => Ok(SecretKey::from(secret?)),
        }
    }
}

/// Who asks: an anonymous client, or a user whose signature is right.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requester {
    user: Option<Arc<User>>,
    /// The role that the user has assumed, and the session's name.
    role: Option<(Arc<Role>, String)>,
    /// What the session may do at most.
    limit: Option<Arc<Policy>>,
    /// The actions that the request was judged by, in the bucket's policy too.
    actions: Arc<[String]>,
    /// A policy allows the request, whatever lists say.
    allowed: bool,
    /// What lists of the bucket and its objects count for.
    lists: Lists,
    /// What conditions of policies may ask for.
    context: Arc<Context>,
}

/// What lists count for in a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Lists {
    /// All of them.
    #[default]
    Count,
    /// What they grant to groups does not.
    WithoutGroups,
    /// Nothing: all is the bucket's owner's, who asks or not.
    Owner(bool),
}

/// Where a request comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) address: IpAddr,
    /// By TLS.
    pub(crate) secure: bool,
}

impl Requester {
    /// Who sent a request that went through [`Access`].
    pub(crate) fn of<T>(req: &S3Request<T>) -> Requester {
        req.extensions.get::<Requester>().cloned().unwrap_or_default()
    }

    /// The user.
    pub(crate) fn user(&self) -> S3Result<&User> {
        self.user.as_deref().ok_or_else(denied)
    }

    /// The id of the user that owns what the request creates; empty for an anonymous client.
    pub(crate) fn id(&self) -> &str {
        self.user.as_ref().map_or("", |user| &user.id)
    }

    /// The user, as lists and owners know it. In a role it is none that they know: that may do what policies say.
    pub(crate) fn known(&self) -> Option<&str> {
        self.user.as_ref().filter(|_| self.role.is_none()).map(|user| user.id.as_str())
    }

    /// Who asks, as policies know it.
    fn who(&self) -> Who<'_> {
        let role = self.role.as_ref().map(|(role, session)| (role.name.as_str(), session.as_str()));
        Who { user: self.user.as_ref().map(|user| user.id.as_str()), role }
    }

    /// Who asks, as topics' policies judge it; `None` for an anonymous client.
    pub(crate) fn caller(&self) -> Option<Caller> {
        Some(Caller {
            assumed: Assumed {
                user: Arc::clone(self.user.as_ref()?),
                role: self.role.clone(),
                policy: self.limit.clone(),
            },
            temporary: false,
            context: Context::clone(&self.context),
        })
    }

    /// Refuses who is not granted `wanted`; an owner may always read and change the list itself.
    pub(crate) fn may(&self, acl: &Acl, owner: &str, wanted: Permission) -> S3Result<()> {
        let own = self.known() == Some(owner) && matches!(wanted, Permission::ReadAcl | Permission::WriteAcl);
        let granted = match self.lists {
            Lists::Owner(asks) => asks,
            _ if self.role.is_some() => acl.grants(None, wanted) && self.lists == Lists::Count,
            Lists::Count => own || acl.grants(self.known(), wanted),
            Lists::WithoutGroups => own || acl.grants_counting(self.known(), wanted, false),
        };
        if granted || self.allowed { Ok(()) } else { Err(denied()) }
    }

    /// What the bucket's policy, the user's or role's own ones and the session's say of `action` on a resource. Without
    /// `bucket` that is not asked.
    fn decide(&self, bucket: Option<&Bucket>, action: &str, resource: &str) -> Decision {
        // As in radosgw, whatever policies say.
        if self.user.as_ref().is_some_and(|user| user.admin || user.system) && self.role.is_none() {
            return Decision::Allow;
        }
        let context = |name: &str| self.context.get(name);
        let asked = Asked { who: self.who(), action, resource, context: &context };
        let of_bucket = match bucket.and_then(|bucket| Some((bucket, bucket.policy.as_ref()?))) {
            Some((bucket, policy)) => {
                let decision = evaluate(policy, &asked);
                let restricted = bucket.public_access.restrict_public_buckets
                    && self.known() != Some(&bucket.owner)
                    && policy.is_public();
                if restricted && decision == Decision::Allow { Decision::Nothing } else { decision }
            }
            None => Decision::Nothing,
        };
        let own = self
            .own_policies()
            .iter()
            .fold(Decision::Nothing, |decision, policy| decision.or(evaluate(policy, &asked)));
        match &self.limit {
            Some(limit) => of_bucket.or(own).and(evaluate(limit, &asked)),
            None => of_bucket.or(own),
        }
    }

    /// The policies of the user, or of the role that it has assumed.
    fn own_policies(&self) -> &[Arc<Policy>] {
        match (&self.role, &self.user) {
            (Some((role, _)), _) => &role.permissions,
            (None, Some(user)) => &user.identity,
            (None, None) => &[],
        }
    }

    /// Whether the decision on what is in `bucket` may depend on an object's tags.
    fn depends_on_tags(&self, bucket: &Bucket) -> bool {
        let of_bucket = bucket.policy.as_deref();
        let own = self.own_policies().iter().map(|policy| &**policy);
        of_bucket.into_iter().chain(own).chain(self.limit.as_deref()).any(Policy::asks_for_tags)
    }

    /// The request with the tags of the object, or of its version, that it asks for; those are read where a policy asks about
    /// them.
    pub(super) async fn with_tags_of(
        mut self,
        gateway: &Gateway,
        bucket: &Bucket,
        (key, version): (&str, Option<&str>),
    ) -> S3Result<Requester> {
        if !self.depends_on_tags(bucket) {
            return Ok(self);
        }
        let tags = match gateway.head_of_version(bucket, key, version).await {
            Ok(head) => head.tags,
            // It has none; the operation says so itself.
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

    /// The request with the object's head at hand. It is judged again where the object's tags are not those by which it was
    /// judged before: the object may have been replaced in between.
    pub(super) fn seeing(&self, bucket: &Bucket, key: &str, head: &Head) -> S3Result<Requester> {
        if self.actions.is_empty() || !self.depends_on_tags(bucket) {
            return Ok(self.clone());
        }
        let mut seeing = self.clone();
        Arc::make_mut(&mut seeing.context).set_existing_tags(&head.tags);
        if seeing.context == self.context {
            return Ok(seeing);
        }
        let actions: Vec<&str> = self.actions.iter().map(String::as_str).collect();
        seeing.asking_all(bucket, &actions, Some(key))
    }

    /// The request as one of several that ask for different versions of different objects.
    pub(super) fn for_version(mut self, version: Option<&str>) -> Requester {
        Arc::make_mut(&mut self.context).set_version(version);
        self
    }

    /// The request as one that reads a copy's source, of which `version` is named.
    pub(super) fn reading_source(mut self, version: Option<&str>) -> Requester {
        Arc::make_mut(&mut self.context).set_reading(version);
        self
    }

    /// The request as one that gives an object `tags`, whatever its headers say.
    pub(super) fn giving_tags(mut self, tags: &[(String, String)]) -> Requester {
        Arc::make_mut(&mut self.context).set_request_tags(tags);
        self
    }

    /// Who asks, as `action` on `key` of `bucket` is to be judged; fails where a policy refuses it.
    pub(crate) fn asking(&self, bucket: &Bucket, action: &str, key: Option<&str>) -> S3Result<Requester> {
        self.asking_all(bucket, &[action], key)
    }

    /// As [`Requester::asking`], of what needs several actions.
    fn asking_all(&self, bucket: &Bucket, actions: &[&str], key: Option<&str>) -> S3Result<Requester> {
        let judged = self.judged(bucket, Some(bucket), actions, key)?;
        let actions = actions.iter().map(|action| (*action).to_owned()).collect();
        Ok(Requester { actions, ..judged })
    }

    /// As [`Requester::asking`], where the bucket's own policy has no say.
    fn asking_without_bucket(&self, bucket: &Bucket, action: &str) -> S3Result<Requester> {
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
                // A session that is limited may do what the limit allows, and nothing by lists.
                Decision::Nothing if self.limit.is_some() => return Err(denied()),
                Decision::Nothing => false,
            };
        }
        Ok(Requester { allowed, ..self.towards(bucket) })
    }

    /// Refuses what concerns no bucket that is there, where policies do not allow it: users may do it, roles what they say.
    fn may_elsewhere(&self, action: &str, resource: &str) -> S3Result<()> {
        self.user()?;
        match self.decide(None, action, resource) {
            Decision::Allow => Ok(()),
            Decision::Nothing if self.role.is_none() && self.limit.is_none() => Ok(()),
            _ => Err(denied()),
        }
    }

    /// Who asks, with what lists count for in that bucket.
    fn towards(&self, bucket: &Bucket) -> Requester {
        let lists = match (bucket.ownership, bucket.public_access.ignore_public_acls) {
            (Ownership::BucketOwnerEnforced, _) => Lists::Owner(self.known() == Some(&bucket.owner)),
            (_, true) => Lists::WithoutGroups,
            (_, false) => Lists::Count,
        };
        Requester { lists, ..self.clone() }
    }

    /// Whether a policy allows what is asked, whatever lists say.
    pub(crate) fn is_allowed(&self) -> bool {
        self.allowed
    }

    /// Whether retention that only governs may be overridden.
    pub(crate) fn may_bypass(&self, bucket: &Bucket, key: &str) -> S3Result<bool> {
        let asking = self.asking(bucket, "s3:BypassGovernanceRetention", Some(key))?;
        Ok(asking.allowed || self.known() == Some(&bucket.owner))
    }

    /// Refuses who may not do what a write's headers do besides it.
    ///
    /// Retention and holds bind the bucket's owner: policies must allow them to all others. The list and the tags of an
    /// object are its own owner's, as if they were set afterwards; policies may refuse them, and to roles, who own
    /// nothing, must allow them.
    fn may_do_besides(&self, bucket: &Bucket, key: &str, headers: &HeaderMap) -> S3Result<()> {
        let is_there = |names: &[&str]| names.iter().any(|name| headers.contains_key(*name));
        for (names, action) in LOCK_HEADERS {
            if is_there(names) {
                self.asking(bucket, action, Some(key))?.must_own(bucket)?;
            }
        }
        if is_there(&["x-amz-acl"]) || GRANT_HEADERS.iter().any(|(name, _)| is_there(&[name])) {
            let asking = self.asking(bucket, "s3:PutObjectAcl", Some(key))?;
            if self.role.is_some() && !asking.allowed {
                return Err(denied());
            }
        }
        if is_there(&["x-amz-tagging"]) { self.may_tag(bucket, key) } else { Ok(()) }
    }

    /// Who asks to give an object `tags`, as that is to be judged; fails where a policy refuses it.
    pub(crate) fn asking_to_tag(
        &self,
        bucket: &Bucket,
        (key, version): (&str, Option<&str>),
        tags: &[(String, String)],
    ) -> S3Result<Requester> {
        let asking = self.clone().giving_tags(tags);
        let operation = "PutObjectTagging";
        let action = version.and_then(|_| version_action_of(operation)).map(Cow::Borrowed);
        asking.asking(bucket, &action.unwrap_or_else(|| action_of(operation)), Some(key))
    }

    /// Refuses who may not give tags to an object that it makes.
    pub(super) fn may_tag(&self, bucket: &Bucket, key: &str) -> S3Result<()> {
        let asking = self.asking(bucket, "s3:PutObjectTagging", Some(key))?;
        let is_others = self.role.is_some() || asking.lists == Lists::Owner(false);
        if is_others && !asking.allowed { Err(denied()) } else { Ok(()) }
    }

    /// Fails with AccessDenied if the requester may not read the tags of an object that it copies: the copy gets them.
    pub(super) fn may_copy_tags(&self, bucket: &Bucket, key: &str, versioned: bool) -> S3Result<()> {
        let action = if versioned { "s3:GetObjectVersionTagging" } else { "s3:GetObjectTagging" };
        let asking = self.asking(bucket, action, Some(key))?;
        // As radosgw does, a list that lets an object be read lets it be copied with its tags.
        if self.role.is_some() && !asking.allowed { Err(denied()) } else { Ok(()) }
    }

    /// Whether an object, and so its tags, are those of who asks.
    pub(crate) fn owns(&self, bucket: &Bucket, head: &Head) -> bool {
        let by_lists = bucket.ownership != Ownership::BucketOwnerEnforced;
        self.known().is_some_and(|id| id == bucket.owner || (by_lists && id == head.owner))
    }

    /// Refuses who may not write into a bucket.
    pub(crate) fn may_write(&self, bucket: &Bucket) -> S3Result<()> {
        self.may(&bucket.acl, &bucket.owner, Permission::Write)
    }

    /// Refuses who may not read an object.
    pub(crate) fn may_read(&self, head: &Head) -> S3Result<()> {
        self.may(&head.acl, &head.owner, Permission::Read)
    }

    /// Refuses who may not list a bucket.
    pub(crate) fn may_list(&self, bucket: &Bucket) -> S3Result<()> {
        self.may(&bucket.acl, &bucket.owner, Permission::Read)
    }

    /// Refuses who does not own a bucket.
    fn must_own(&self, bucket: &Bucket) -> S3Result<()> {
        if self.allowed || self.known() == Some(&bucket.owner) { Ok(()) } else { Err(denied()) }
    }
}

/// Headers of writes that lock what is written, and what policies call that.
const LOCK_HEADERS: [(&[&str], &str); 2] = [
    (&["x-amz-object-lock-mode", "x-amz-object-lock-retain-until-date"], "s3:PutObjectRetention"),
    (&["x-amz-object-lock-legal-hold"], "s3:PutObjectLegalHold"),
];

/// The token of temporary credentials: a header or, in an address that was signed, a parameter.
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

/// The answer to who may not.
pub(crate) fn denied() -> S3Error {
    s3_error!(AccessDenied, "Access Denied")
}

/// The answer where a bucket's owner is suspended.
fn suspended() -> S3Error {
    let mut error =
        S3Error::with_message(S3ErrorCode::Custom("UserSuspended".into()), "the bucket's owner is suspended");
    error.set_status_code(http::StatusCode::FORBIDDEN);
    error
}

/// Who asks for another one's bucket than it means to is told so, whatever it may do there.
fn check_expected_owner(headers: &HeaderMap, bucket: &Bucket) -> S3Result<()> {
    match headers.get("x-amz-expected-bucket-owner") {
        Some(expected) if expected.as_bytes() != bucket.owner.as_bytes() => Err(denied()),
        _ => Ok(()),
    }
}

/// As radosgw does: what a suspended user has made public is so no longer.
pub(super) async fn check_owner(gateway: &Gateway, bucket: &Bucket) -> S3Result<()> {
    match gateway.known_user_id(&bucket.owner).await {
        Ok(owner) if owner.suspended => Err(suspended()),
        Ok(_) | Err(Error::NoSuchUser(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Checks every request before it is read further.
pub(crate) struct Access(pub(crate) Arc<Gateway>);

impl Access {
    /// Who sent a form that makes `key` of `bucket`, where that may be; `headers` is what its fields are as headers, and
    /// `signed` the access key and the token of who signed it.
    pub(crate) async fn of_form(
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
                let Assumed { user, role, policy } = self.identify(access_key, token).await?;
                (Some(user), role, policy)
            }
            None => (None, None, None),
        };
        let peer = head.extensions.get::<Peer>();
        check_secrecy(self.0.config.require_tls_for_keys, headers, peer)?;
        let context = Arc::new(Context::of(&asked, "", peer, user.as_deref(), role.as_ref()));
        let requester = Requester { user, role, limit, context, ..Requester::default() };
        info.note("PostObject", requester.id());
        check_owner(&self.0, bucket).await?;
        let requester = requester.with_tags_of(&self.0, bucket, (key, None)).await?;
        let requester = requester.asking(bucket, "s3:PutObject", Some(key))?;
        requester.may_write(bucket)?;
        requester.may_do_besides(bucket, key, headers)?;
        self.count(requester.user.as_deref(), Some(bucket), &head.method, &info)?;
        Ok(requester)
    }

    /// Who sent a request for what a bucket is as a whole, where that may be, and the bucket. For requests that do not go
    /// through the protocol's own operations; only the bucket's owner, and users that a policy allows it, may send them.
    pub(crate) async fn of_bucket<T>(
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
        let peer = req.extensions.get::<Peer>();
        let query = req.uri.query().unwrap_or_default();
        let context = Arc::new(Context::of(&req.headers, query, peer, user.as_deref(), role.as_ref()));
        let requester = Requester { user, role, limit, context, ..Requester::default() };
        info.note(operation, requester.id());
        info.note_bucket(name);
        let bucket = self.0.known_bucket(name).await?;
        info.note_owner(&bucket.owner);
        check_expected_owner(&req.headers, &bucket)?;
        check_owner(&self.0, &bucket).await?;
        let requester = requester.asking(&bucket, &action_of(operation), None)?;
        requester.must_own(&bucket)?;
        self.count(requester.user.as_deref(), Some(&bucket), &req.method, &info)?;
        Ok((requester, bucket))
    }

    async fn identify(&self, access_key: &str, token: Option<&str>) -> S3Result<Assumed> {
        match self.0.identify(access_key, token).await {
            Err(Error::NoSuchUser(_)) => Err(s3_error!(InvalidAccessKeyId)),
            assumed => Ok(assumed?),
        }
    }

    /// Counts a request against what its user and its bucket may do in a minute.
    fn count(
        &self,
        user: Option<&User>,
        bucket: Option<&Bucket>,
        method: &Method,
        info: &RequestInfo,
    ) -> S3Result<()> {
        let user = user.map(|user| (user.ratelimit, Scope::User(user.id.clone())));
        let bucket = bucket.map(|bucket| (bucket.ratelimit, Scope::Bucket(bucket.id.clone())));
        let writes = !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
        for (limit, scope) in user.into_iter().chain(bucket).filter(|(limit, _)| limit.enabled) {
            let account = self.0.ratelimits.take(scope, limit, writes, Instant::now());
            info.note_account(
                account.ok_or_else(|| s3_error!(SlowDown, "Please reduce your request rate."))?,
            );
        }
        Ok(())
    }
}

#[async_trait::async_trait]
impl S3Access for Access {
    async fn check(&self, cx: &mut S3AccessContext<'_>) -> S3Result<()> {
        let token = token_of(cx.headers(), cx.uri());
        let assumed = match cx.credentials() {
            Some(credentials) => Some(self.identify(&credentials.access_key, token.as_deref()).await?),
            None => None,
        };
        let (user, role, limit) = match assumed {
            Some(Assumed { user, role, policy }) => (Some(user), role, policy),
            None => (None, None, None),
        };
        let peer = cx.extensions_mut().get::<Peer>().copied();
        check_secrecy(self.0.config.require_tls_for_keys, cx.headers(), peer.as_ref())?;
        let query = cx.uri().query().unwrap_or_default();
        let mut context = Context::of(cx.headers(), query, peer.as_ref(), user.as_deref(), role.as_ref());
        if !gives_tags(cx.s3_op().name(), cx.headers()) {
            context.set_request_tags(&[]);
        }
        let context = Arc::new(context);
        let mut requester = Requester { user, role, limit, context, ..Requester::default() };
        let name = match cx.s3_path() {
            S3Path::Root => None,
            S3Path::Bucket { bucket } | S3Path::Object { bucket, .. } => Some(bucket.to_string()),
        };
        let info = cx.extensions_mut().get::<Arc<RequestInfo>>().cloned().unwrap_or_default();
        info.note(cx.s3_op().name(), requester.id());
        match (cx.s3_op().name(), name) {
            ("CreateBucket", Some(name)) => {
                info.note_bucket(&name);
                requester.may_elsewhere("s3:CreateBucket", &format!("arn:aws:s3:::{name}"))?;
                self.count(requester.user.as_deref(), None, cx.method(), &info)?;
            }
            (_, None) => {
                requester.may_elsewhere("s3:ListAllMyBuckets", "arn:aws:s3:::*")?;
                self.count(requester.user.as_deref(), None, cx.method(), &info)?;
            }
            (operation, Some(name)) => {
                info.note_bucket(&name);
                let bucket = self.0.known_bucket(&name).await?;
                info.note_owner(&bucket.owner);
                check_expected_owner(cx.headers(), &bucket)?;
                check_owner(&self.0, &bucket).await?;
                let key = match cx.s3_path() {
                    S3Path::Object { key, .. } => Some(&**key),
                    _ => None,
                };
                // A policy must not lock its bucket's owner out of changing it; each of several keys is judged by itself.
                let policies = ["GetBucketPolicy", "PutBucketPolicy", "DeleteBucketPolicy"];
                let of_owner = policies.contains(&operation) && requester.known() == Some(&bucket.owner);
                let query = cx.uri().query().unwrap_or_default();
                if requester.user.is_none() && ["GetObject", "HeadObject"].contains(&operation) {
                    check_overrides(query)?;
                }
                let version = version_of_query(query);
                if let Some(key) = key.filter(|_| operation != "DeleteObjects") {
                    requester = requester.with_tags_of(&self.0, &bucket, (key, version.as_deref())).await?;
                }
                // The first by each of its keys, the other by the tags that it brings.
                requester = if ["DeleteObjects", "PutObjectTagging"].contains(&operation) {
                    requester.towards(&bucket)
                } else if of_owner {
                    requester.asking_without_bucket(&bucket, &action_of(operation))?
                } else {
                    let action_of = |operation| {
                        let action = version.as_ref().and_then(|_| version_action_of(operation));
                        action.map_or_else(|| action_of(operation), Cow::Borrowed)
                    };
                    let action = action_of(operation);
                    match operation {
                        // What it says is part of what a read says.
                        "GetObjectAttributes" => {
                            requester.asking_all(&bucket, &[&action, &action_of("GetObject")], key)?
                        }
                        _ => requester.asking(&bucket, &action, key)?,
                    }
                };
                match operation {
                    // With the object's head at hand.
                    "GetObject"
                    | "HeadObject"
                    | "GetObjectAttributes"
                    | "GetObjectAcl"
                    | "PutObjectAcl"
                    | "GetObjectTagging"
                    | "PutObjectTagging"
                    | "DeleteObjectTagging" => {}
                    "DeleteObjects" => {}
                    "GetBucketAcl" => requester.may(&bucket.acl, &bucket.owner, Permission::ReadAcl)?,
                    "PutBucketAcl" => requester.may(&bucket.acl, &bucket.owner, Permission::WriteAcl)?,
                    "ListObjects"
                    | "ListObjectsV2"
                    | "ListObjectVersions"
                    | "HeadBucket"
                    | "GetBucketLocation"
                    | "ListMultipartUploads" => requester.may_list(&bucket)?,
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
                        requester.may_write(&bucket)?;
                    }
                    _ => requester.must_own(&bucket)?,
                }
                if let ("PutObject" | "CopyObject" | "CreateMultipartUpload", Some(key)) = (operation, key) {
                    requester.may_do_besides(&bucket, key, cx.headers())?;
                }
                self.count(requester.user.as_deref(), Some(&bucket), cx.method(), &info)?;
                cx.extensions_mut().insert(bucket);
            }
        }
        cx.extensions_mut().insert(requester);
        Ok(())
    }
}

/// The bucket of a request that went through [`Access`].
pub(crate) fn bucket_of<T>(req: &S3Request<T>) -> S3Result<Arc<Bucket>> {
    req.extensions.get::<Arc<Bucket>>().cloned().ok_or_else(|| s3_error!(NoSuchBucket))
}
