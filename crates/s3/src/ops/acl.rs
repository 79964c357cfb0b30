//! Access control lists in S3's terms, and the operations on them.

use super::access::{Requester, bucket_of, denied};
use super::owners::{OwnerNames, distinct};
use super::{S3Api, answer};
use http::HeaderMap;
use nacre_rgw::acl::{self, Acl};
use nacre_rgw::bucket::Bucket as StoredBucket;
use nacre_rgw::error::Error;
use nacre_rgw::gateway::Gateway;
use nacre_rgw::public_access::Ownership;
use nacre_topics::event::EventType;
#[allow(clippy::wildcard_imports, reason = "S3's structures, all by their own names")]
use s3s::dto::*;
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result, s3_error};
use std::borrow::Cow;

const EVERYBODY: &str = "http://acs.amazonaws.com/groups/global/AllUsers";
const ANY_USER: &str = "http://acs.amazonaws.com/groups/global/AuthenticatedUsers";

/// The most grants of an ACL.
const MAX_GRANTS: usize = 100;

/// The headers that grant a permission, in the order in which grants are shown.
pub(super) const GRANT_HEADERS: [(&str, acl::Permission); 5] = [
    ("x-amz-grant-read", acl::Permission::Read),
    ("x-amz-grant-write", acl::Permission::Write),
    ("x-amz-grant-read-acp", acl::Permission::ReadAcl),
    ("x-amz-grant-write-acp", acl::Permission::WriteAcl),
    ("x-amz-grant-full-control", acl::Permission::Full),
];

fn group_of(uri: &str) -> S3Result<acl::Grantee> {
    match uri {
        EVERYBODY => Ok(acl::Grantee::Everybody),
        ANY_USER => Ok(acl::Grantee::AnyUser),
        _ => Err(s3_error!(InvalidArgument, "Invalid group uri")),
    }
}

async fn user_of(gateway: &Gateway, id: &str) -> S3Result<acl::Grantee> {
    match gateway.users.get(id).await {
        Ok(user) => Ok(acl::Grantee::User(user.id)),
        Err(Error::NoSuchUser(_)) => Err(s3_error!(InvalidArgument, "Invalid id")),
        Err(error) => Err(error.into()),
    }
}

/// Returns the user with the given email address. Reads all users: grants by email address are rare.
async fn user_by_email(gateway: &Gateway, email: &str) -> S3Result<acl::Grantee> {
    for id in gateway.users.list().await? {
        match gateway.users.cached(&id).await {
            Ok(user) if !email.is_empty() && user.email.eq_ignore_ascii_case(email) => {
                return Ok(acl::Grantee::User(id));
            }
            Ok(_) | Err(Error::NoSuchUser(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let text = "The e-mail address you provided does not match any account on record.";
    Err(S3Error::with_message(S3ErrorCode::UnresolvableGrantByEmailAddress, text))
}

/// Returns the ACL that a request's headers specify for a bucket or object of `owner`: a canned ACL, single grants, or by
/// default the private ACL.
pub(super) async fn acl_from_headers(
    gateway: &Gateway,
    headers: &HeaderMap,
    owner: &str,
    bucket_owner: &str,
) -> S3Result<Acl> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let mut grants = Vec::new();
    for (name, permission) in GRANT_HEADERS {
        for part in text(name).unwrap_or_default().split(',').filter(|part| !part.trim().is_empty()) {
            let wrong =
                || s3_error!(InvalidArgument, "{name}: '{part}' is neither id=, uri= nor emailAddress=");
            if grants.len() >= MAX_GRANTS {
                return Err(s3_error!(InvalidArgument, "no more than {MAX_GRANTS} grants"));
            }
            let (kind, value) = part.trim().split_once('=').ok_or_else(wrong)?;
            let value = value.trim().trim_matches('"');
            let grantee = match kind.trim() {
                "id" => user_of(gateway, value).await?,
                "uri" => group_of(value)?,
                "emailAddress" => user_by_email(gateway, value).await?,
                _ => return Err(wrong()),
            };
            grants.push(acl::Grant { grantee, permission });
        }
    }
    match (text("x-amz-acl"), grants.is_empty()) {
        (Some(_), false) => {
            Err(s3_error!(InvalidRequest, "a canned ACL and single grants exclude one another"))
        }
        (Some(name), true) => {
            let canned = Acl::canned(name, owner, bucket_owner);
            canned.ok_or_else(|| s3_error!(InvalidArgument, "unknown canned ACL {name}"))
        }
        (None, false) => Ok(Acl { grants }),
        (None, true) => Ok(Acl::private(owner)),
    }
}

/// Returns the owner and the ACL of an object that a request creates.
pub(super) async fn acl_for_object(
    gateway: &Gateway,
    headers: &HeaderMap,
    requester: &Requester,
    bucket: &StoredBucket,
) -> S3Result<(String, Acl)> {
    let canned = headers.get("x-amz-acl").and_then(|value| value.to_str().ok());
    let given = canned == Some("bucket-owner-full-control");
    let is_said = canned.is_some() || GRANT_HEADERS.iter().any(|(name, _)| headers.contains_key(*name));
    let owners = (bucket.owner.clone(), Acl::private(&bucket.owner));
    match bucket.ownership {
        Ownership::BucketOwnerEnforced if is_said && !given => return Err(disabled()),
        Ownership::BucketOwnerEnforced => return Ok(owners),
        Ownership::BucketOwnerPreferred if given => return Ok(owners),
        _ => {}
    }
    let acl = acl_from_headers(gateway, headers, requester.id(), &bucket.owner).await?;
    check_public(bucket, &acl)?;
    Ok((requester.id().to_owned(), acl))
}

/// Returns the error for setting an ACL in a bucket where ACLs are disabled.
fn disabled() -> S3Error {
    s3_error!(AccessControlListNotSupported, "The bucket does not allow ACLs")
}

/// Returns the effective ACL of a bucket or of an object in it.
fn effective<'a>(bucket: &StoredBucket, acl: &'a Acl) -> Cow<'a, Acl> {
    match bucket.ownership {
        Ownership::BucketOwnerEnforced => Cow::Owned(Acl::private(&bucket.owner)),
        _ => Cow::Borrowed(acl),
    }
}

/// Refuses an ACL that the bucket's public access block forbids.
fn check_public(bucket: &StoredBucket, acl: &Acl) -> S3Result<()> {
    if bucket.public_access.block_public_acls && acl.is_public() { Err(denied()) } else { Ok(()) }
}

/// Returns the ACL in a request's body, for a bucket or object of `owner`.
async fn of_policy(gateway: &Gateway, policy: AccessControlPolicy, owner: &str) -> S3Result<Acl> {
    if policy.owner.and_then(|owner| owner.id).is_some_and(|id| id != owner) {
        return Err(denied());
    }
    let given = policy.grants.unwrap_or_default();
    if given.len() > MAX_GRANTS {
        return Err(s3_error!(MalformedACLError, "no more than {MAX_GRANTS} grants"));
    }
    let mut grants = Vec::with_capacity(given.len());
    for grant in given {
        let malformed = || s3_error!(MalformedACLError);
        let permission = match grant.permission.as_ref().map(Permission::as_str) {
            Some(Permission::FULL_CONTROL) => acl::Permission::Full,
            Some(Permission::READ) => acl::Permission::Read,
            Some(Permission::WRITE) => acl::Permission::Write,
            Some(Permission::READ_ACP) => acl::Permission::ReadAcl,
            Some(Permission::WRITE_ACP) => acl::Permission::WriteAcl,
            _ => return Err(malformed()),
        };
        let grantee = grant.grantee.ok_or_else(malformed)?;
        let grantee = match (grantee.id, grantee.uri, grantee.email_address) {
            (Some(id), ..) => user_of(gateway, &id).await?,
            (None, Some(uri), _) => group_of(&uri)?,
            (None, None, Some(email)) => user_by_email(gateway, &email).await?,
            (None, None, None) => return Err(malformed()),
        };
        grants.push(acl::Grant { grantee, permission });
    }
    Ok(Acl { grants })
}

/// Converts an ACL and its owner for an answer. As in radosgw, grants to groups come first.
async fn shown(gateway: &Gateway, acl: &Acl, owner: &str) -> (Option<Vec<Grant>>, Option<Owner>) {
    let users = acl.grants.iter().filter_map(|grant| match &grant.grantee {
        acl::Grantee::User(id) => Some(id.as_str()),
        _ => None,
    });
    let owners = OwnerNames::find(gateway, distinct(users.chain([owner]))).await;
    let grantee = |grantee: &acl::Grantee| {
        let group = |uri: &str| (None, Some(uri.to_owned()), Type::GROUP);
        let (id, uri, kind) = match grantee {
            acl::Grantee::User(id) => (Some(id.clone()), None, Type::CANONICAL_USER),
            acl::Grantee::Everybody => group(EVERYBODY),
            acl::Grantee::AnyUser => group(ANY_USER),
        };
        let type_ = Type::from_static(kind);
        let display_name = id.as_deref().map(|id| owners.name(id));
        Grantee { display_name, email_address: None, id, type_, uri }
    };
    let permission = |permission| match permission {
        acl::Permission::Read => Permission::READ,
        acl::Permission::Write => Permission::WRITE,
        acl::Permission::ReadAcl => Permission::READ_ACP,
        acl::Permission::WriteAcl => Permission::WRITE_ACP,
        acl::Permission::Full => Permission::FULL_CONTROL,
    };
    let grant = |grant: &acl::Grant| Grant {
        grantee: Some(grantee(&grant.grantee)),
        permission: Some(Permission::from_static(permission(grant.permission))),
    };
    let (groups, users): (Vec<_>, Vec<_>) = acl.grants.iter().partition(|grant| grant.grantee.is_group());
    (Some(groups.into_iter().chain(users).map(grant).collect()), owners.owner(owner))
}

impl S3Api {
    /// Returns the ACL that a request sets. `own` is the owner of the bucket or object.
    async fn set(
        &self,
        headers: &HeaderMap,
        policy: Option<AccessControlPolicy>,
        own: &str,
        bucket: &StoredBucket,
    ) -> S3Result<Acl> {
        if bucket.ownership == Ownership::BucketOwnerEnforced {
            return Err(disabled());
        }
        let acl = match policy.filter(|policy| policy.grants.is_some()) {
            Some(policy) => of_policy(&self.gateway, policy, own).await?,
            None => acl_from_headers(&self.gateway, headers, own, &bucket.owner).await?,
        };
        check_public(bucket, &acl)?;
        Ok(acl)
    }

    pub(super) async fn do_get_bucket_acl(
        &self,
        req: S3Request<GetBucketAclInput>,
    ) -> S3Result<S3Response<GetBucketAclOutput>> {
        let bucket = bucket_of(&req)?;
        let acl = effective(&bucket, &bucket.acl);
        let (grants, owner) = shown(&self.gateway, &acl, &bucket.owner).await;
        answer(GetBucketAclOutput { grants, owner })
    }

    pub(super) async fn do_put_bucket_acl(
        &self,
        req: S3Request<PutBucketAclInput>,
    ) -> S3Result<S3Response<PutBucketAclOutput>> {
        let bucket = bucket_of(&req)?;
        let acl = self.set(&req.headers, req.input.access_control_policy, &bucket.owner, &bucket).await?;
        self.gateway
            .buckets
            .modify(&bucket.name, |bucket| {
                bucket.acl.clone_from(&acl);
                Ok(())
            })
            .await?;
        answer(PutBucketAclOutput::default())
    }

    pub(super) async fn do_get_object_acl(
        &self,
        req: S3Request<GetObjectAclInput>,
    ) -> S3Result<S3Response<GetObjectAclOutput>> {
        let (requester, bucket) = (Requester::from_request(&req), bucket_of(&req)?);
        let (key, version) = (&req.input.key, req.input.version_id.as_deref());
        let head = self.read_head(&requester, &bucket, key, version).await?;
        requester.authorize_acl(&head.acl, &head.owner, acl::Permission::ReadAcl)?;
        let acl = effective(&bucket, &head.acl);
        let own =
            if bucket.ownership == Ownership::BucketOwnerEnforced { &bucket.owner } else { &head.owner };
        let (grants, owner) = shown(&self.gateway, &acl, own).await;
        answer(GetObjectAclOutput { grants, owner, request_charged: None })
    }

    pub(super) async fn do_put_object_acl(
        &self,
        req: S3Request<PutObjectAclInput>,
    ) -> S3Result<S3Response<PutObjectAclOutput>> {
        let (requester, bucket) = (Requester::from_request(&req), bucket_of(&req)?);
        let cause = self.cause(&req);
        let (key, version) = (&req.input.key, req.input.version_id.as_deref());
        let head = self.read_head(&requester, &bucket, key, version).await?;
        requester.authorize_acl(&head.acl, &head.owner, acl::Permission::WriteAcl)?;
        let acl = self.set(&req.headers, req.input.access_control_policy, &head.owner, &bucket).await?;
        let change = |head: &mut nacre_rgw::stored::Head| {
            head.acl.clone_from(&acl);
            Ok(())
        };
        let events = (&cause, &[EventType::ObjectAclPut][..]);
        self.gateway.writer.modify_version(&bucket, (key, version), events, change).await?;
        answer(PutObjectAclOutput::default())
    }
}
