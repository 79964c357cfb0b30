//! Who a request comes from and whether it may do what it asks.
//!
//! A bucket's list says who may list it and write into it; what else concerns the bucket is its owner's. An object's own
//! list says who may read it: that is seen when its head is at hand ([`Requester::may_read`]).

use crate::acl::{Acl, Permission};
use crate::bucket::Bucket;
use crate::error::Error;
use crate::gateway::Gateway;
use crate::object::Head;
use crate::policy::{Asked, Decision};
use crate::user::User;
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::{S3Auth, SecretKey};
use s3s::path::S3Path;
use s3s::{S3Error, S3Request, S3Result, s3_error};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

/// Gives signatures' checks the secrets of users' keys.
pub(crate) struct Keys(pub(crate) Arc<Gateway>);

#[async_trait::async_trait]
impl S3Auth for Keys {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        let user = match self.0.known_user(access_key).await {
            Err(Error::NoSuchUser(_)) => return Err(s3_error!(InvalidAccessKeyId)),
            user => user?,
        };
        let key = user.keys.iter().find(|key| key.access_key == access_key);
        key.map(|key| SecretKey::from(key.secret_key.as_str())).ok_or_else(|| s3_error!(InvalidAccessKeyId))
    }
}

/// Who asks: nobody known, or a user whose signature was found right.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requester {
    user: Option<Arc<User>>,
    /// The bucket's policy allows the request, whatever lists say.
    allowed: bool,
    /// What conditions of policies may ask for.
    context: Arc<BTreeMap<String, String>>,
}

/// Where a request comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) IpAddr);

impl Requester {
    /// Who sent a request that went through [`Access`].
    pub(crate) fn of<T>(req: &S3Request<T>) -> Requester {
        req.extensions.get::<Requester>().cloned().unwrap_or_default()
    }

    /// The user.
    pub(crate) fn user(&self) -> S3Result<&User> {
        self.user.as_deref().ok_or_else(denied)
    }

    /// The user's id; empty for nobody known.
    pub(crate) fn id(&self) -> &str {
        self.user.as_ref().map_or("", |user| &user.id)
    }

    fn known(&self) -> Option<&str> {
        self.user.as_ref().map(|user| user.id.as_str())
    }

    /// Refuses who is not granted `wanted`; an owner may always read and change the list itself.
    pub(crate) fn may(&self, acl: &Acl, owner: &str, wanted: Permission) -> S3Result<()> {
        let own = self.known() == Some(owner) && matches!(wanted, Permission::ReadAcl | Permission::WriteAcl);
        if own || self.allowed || acl.grants(self.known(), wanted) { Ok(()) } else { Err(denied()) }
    }

    /// What a bucket's policy says of another action than the request's own, on `key` of the bucket.
    fn decide(&self, bucket: &Bucket, action: &str, key: Option<&str>) -> Decision {
        let Some(policy) = &bucket.policy else { return Decision::Nothing };
        let resource = match key {
            Some(key) => format!("arn:aws:s3:::{}/{key}", bucket.name),
            None => format!("arn:aws:s3:::{}", bucket.name),
        };
        let context = |name: &str| self.context.get(name).cloned().into_iter().collect();
        policy.decide(&Asked { user: self.known(), action, resource: &resource, context: &context })
    }

    /// Who asks, as `action` on `key` of `bucket` is to be judged; fails where the bucket's policy refuses it.
    pub(crate) fn asking(&self, bucket: &Bucket, action: &str, key: Option<&str>) -> S3Result<Requester> {
        let allowed = match self.decide(bucket, action, key) {
            Decision::Deny => return Err(denied()),
            Decision::Allow => true,
            Decision::Nothing => false,
        };
        Ok(Requester { allowed, ..self.clone() })
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

/// What policies call an operation.
fn action_of(operation: &str) -> Cow<'static, str> {
    let action = match operation {
        "HeadObject" | "GetObject" => "s3:GetObject",
        "PutObject"
        | "PostObject"
        | "CopyObject"
        | "CreateMultipartUpload"
        | "UploadPart"
        | "UploadPartCopy"
        | "CompleteMultipartUpload" => "s3:PutObject",
        "ListObjects" | "ListObjectsV2" | "HeadBucket" => "s3:ListBucket",
        "ListMultipartUploads" => "s3:ListBucketMultipartUploads",
        "ListParts" => "s3:ListMultipartUploadParts",
        "GetBucketCors" => "s3:GetBucketCORS",
        "PutBucketCors" | "DeleteBucketCors" => "s3:PutBucketCORS",
        "DeleteBucketTagging" => "s3:PutBucketTagging",
        other => return Cow::Owned(format!("s3:{other}")),
    };
    Cow::Borrowed(action)
}

/// The values of conditions' keys, by their names in lower case.
fn context_of(cx: &mut S3AccessContext<'_>, user: Option<&User>) -> BTreeMap<String, String> {
    let mut context = BTreeMap::from([
        ("aws:securetransport".to_owned(), "false".to_owned()),
        ("aws:currenttime".to_owned(), (crate::gateway::now_ns() / 1_000_000_000).to_string()),
        ("aws:epochtime".to_owned(), (crate::gateway::now_ns() / 1_000_000_000).to_string()),
    ]);
    let mut set = |name: &str, value: &str| drop(context.insert(name.to_owned(), value.to_owned()));
    if let Some(user) = user {
        set("aws:username", &user.id);
        set("aws:userid", &user.id);
    }
    if let Some(Peer(address)) = cx.extensions_mut().get::<Peer>() {
        set("aws:sourceip", &address.to_string());
    }
    for (header, name) in HEADER_KEYS {
        if let Some(value) = cx.headers().get(header).and_then(|value| value.to_str().ok()) {
            set(name, value);
        }
    }
    for pair in cx.uri().query().unwrap_or_default().split('&') {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        if let Some((_, key)) = QUERY_KEYS.into_iter().find(|(query, _)| *query == name) {
            let value = value.replace('+', " ");
            set(key, &urlencoding::decode(&value).map_or_else(|_| value.clone(), |value| value.into_owned()));
        }
    }
    context
}

/// Headers that conditions may ask for, and by which keys.
const HEADER_KEYS: [(&str, &str); 8] = [
    ("referer", "aws:referer"),
    ("user-agent", "aws:useragent"),
    ("x-amz-acl", "s3:x-amz-acl"),
    ("x-amz-copy-source", "s3:x-amz-copy-source"),
    ("x-amz-metadata-directive", "s3:x-amz-metadata-directive"),
    ("x-amz-content-sha256", "s3:x-amz-content-sha256"),
    ("x-amz-storage-class", "s3:x-amz-storage-class"),
    ("x-amz-grant-full-control", "s3:x-amz-grant-full-control"),
];
/// Parameters that conditions may ask for, and by which keys.
const QUERY_KEYS: [(&str, &str); 3] =
    [("prefix", "s3:prefix"), ("delimiter", "s3:delimiter"), ("max-keys", "s3:max-keys")];
/// What conditions may ask for besides.
const OTHER_KEYS: [&str; 6] =
    ["aws:securetransport", "aws:currenttime", "aws:epochtime", "aws:username", "aws:userid", "aws:sourceip"];

/// Whether conditions may ask for a key, in lower case.
pub(super) fn is_known_key(key: &str) -> bool {
    OTHER_KEYS.contains(&key) || HEADER_KEYS.iter().chain(&QUERY_KEYS).any(|(_, known)| *known == key)
}

/// The answer to who may not.
pub(crate) fn denied() -> S3Error {
    s3_error!(AccessDenied, "Access Denied")
}

/// Checks every request before it is read further.
pub(crate) struct Access(pub(crate) Arc<Gateway>);

#[async_trait::async_trait]
impl S3Access for Access {
    async fn check(&self, cx: &mut S3AccessContext<'_>) -> S3Result<()> {
        let user = match cx.credentials() {
            Some(credentials) => {
                let user = match self.0.known_user(&credentials.access_key).await {
                    Err(Error::NoSuchUser(_)) => return Err(s3_error!(InvalidAccessKeyId)),
                    user => user?,
                };
                if user.suspended {
                    return Err(s3_error!(AccessDenied, "the user is suspended"));
                }
                Some(user)
            }
            None => None,
        };
        let context = Arc::new(context_of(cx, user.as_deref()));
        let mut requester = Requester { user, allowed: false, context };
        let name = match cx.s3_path() {
            S3Path::Root => None,
            S3Path::Bucket { bucket } | S3Path::Object { bucket, .. } => Some(bucket.to_string()),
        };
        match (cx.s3_op().name(), name) {
            ("ListBuckets" | "CreateBucket", _) | (_, None) => drop(requester.user()?),
            (operation, Some(name)) => {
                let bucket = self.0.known_bucket(&name).await?;
                let key = match cx.s3_path() {
                    S3Path::Object { key, .. } => Some(&**key),
                    _ => None,
                };
                // A policy must not lock its bucket's owner out of changing it; each of several keys is judged by itself.
                let policies = ["GetBucketPolicy", "PutBucketPolicy", "DeleteBucketPolicy"];
                let of_owner = policies.contains(&operation) && requester.known() == Some(&bucket.owner);
                if !of_owner && operation != "DeleteObjects" {
                    requester = requester.asking(&bucket, &action_of(operation), key)?;
                }
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
