//! Who a request comes from and whether it may do what it asks.
//!
//! A bucket's list says who may list it and write into it; what else concerns the bucket is its owner's. An object's own
//! list says who may read it: that is seen when its head is at hand ([`Requester::may_read`]).

use crate::acl::{Acl, Permission};
use crate::bucket::Bucket;
use crate::error::Error;
use crate::gateway::Gateway;
use crate::object::Head;
use crate::user::User;
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::{S3Auth, SecretKey};
use s3s::path::S3Path;
use s3s::{S3Error, S3Request, S3Result, s3_error};
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
pub(crate) struct Requester(Option<Arc<User>>);

impl Requester {
    /// Who sent a request that went through [`Access`].
    pub(crate) fn of<T>(req: &S3Request<T>) -> Requester {
        req.extensions.get::<Requester>().cloned().unwrap_or_default()
    }

    /// The user.
    pub(crate) fn user(&self) -> S3Result<&User> {
        self.0.as_deref().ok_or_else(denied)
    }

    /// The user's id; empty for nobody known.
    pub(crate) fn id(&self) -> &str {
        self.0.as_ref().map_or("", |user| &user.id)
    }

    fn known(&self) -> Option<&str> {
        self.0.as_ref().map(|user| user.id.as_str())
    }

    /// Refuses who is not granted `wanted`; an owner may always read and change the list itself.
    pub(crate) fn may(&self, acl: &Acl, owner: &str, wanted: Permission) -> S3Result<()> {
        let own = self.known() == Some(owner) && matches!(wanted, Permission::ReadAcl | Permission::WriteAcl);
        if own || acl.grants(self.known(), wanted) { Ok(()) } else { Err(denied()) }
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
        if self.known() == Some(&bucket.owner) { Ok(()) } else { Err(denied()) }
    }
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
        let requester = match cx.credentials() {
            Some(credentials) => {
                let user = match self.0.known_user(&credentials.access_key).await {
                    Err(Error::NoSuchUser(_)) => return Err(s3_error!(InvalidAccessKeyId)),
                    user => user?,
                };
                if user.suspended {
                    return Err(s3_error!(AccessDenied, "the user is suspended"));
                }
                Requester(Some(user))
            }
            None => Requester(None),
        };
        let name = match cx.s3_path() {
            S3Path::Root => None,
            S3Path::Bucket { bucket } | S3Path::Object { bucket, .. } => Some(bucket.to_string()),
        };
        match (cx.s3_op().name(), name) {
            ("ListBuckets" | "CreateBucket", _) | (_, None) => drop(requester.user()?),
            (operation, Some(name)) => {
                let bucket = self.0.known_bucket(&name).await?;
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
                    | "DeleteObjects"
                    | "CopyObject"
                    | "CreateMultipartUpload"
                    | "UploadPart"
                    | "UploadPartCopy"
                    | "CompleteMultipartUpload"
                    | "AbortMultipartUpload"
                    | "ListParts" => {
                        requester.may(&bucket.acl, &bucket.owner, Permission::Write)?;
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
