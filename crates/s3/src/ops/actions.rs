//! The policy actions of S3's operations.

use std::borrow::Cow;

/// Returns the policy action of an operation on a version of an object; `None` if the operation has no separate action for
/// versions.
pub(super) fn version_action_of(operation: &str) -> Option<&'static str> {
    Some(match operation {
        "HeadObject" | "GetObject" => "s3:GetObjectVersion",
        "DeleteObject" => "s3:DeleteObjectVersion",
        "GetObjectAcl" => "s3:GetObjectVersionAcl",
        "PutObjectAcl" => "s3:PutObjectVersionAcl",
        "GetObjectTagging" => "s3:GetObjectVersionTagging",
        "PutObjectTagging" => "s3:PutObjectVersionTagging",
        "DeleteObjectTagging" => "s3:DeleteObjectVersionTagging",
        "GetObjectAttributes" => "s3:GetObjectVersionAttributes",
        _ => return None,
    })
}

/// Returns the policy action of an operation.
pub(super) fn action_of(operation: &str) -> Cow<'static, str> {
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
        "ListObjectVersions" => "s3:ListBucketVersions",
        "GetBucketEncryption" => "s3:GetEncryptionConfiguration",
        "PutBucketEncryption" | "DeleteBucketEncryption" => "s3:PutEncryptionConfiguration",
        "GetObjectLockConfiguration" => "s3:GetBucketObjectLockConfiguration",
        "PutObjectLockConfiguration" => "s3:PutBucketObjectLockConfiguration",
        "GetBucketLifecycleConfiguration" => "s3:GetLifecycleConfiguration",
        "PutBucketLifecycleConfiguration" | "DeleteBucketLifecycle" => "s3:PutLifecycleConfiguration",
        "ListMultipartUploads" => "s3:ListBucketMultipartUploads",
        "ListParts" => "s3:ListMultipartUploadParts",
        "GetBucketCors" => "s3:GetBucketCORS",
        "PutBucketCors" | "DeleteBucketCors" => "s3:PutBucketCORS",
        "GetBucketNotificationConfiguration" => "s3:GetBucketNotification",
        "PutBucketNotificationConfiguration" | "DeleteBucketNotificationConfiguration" => {
            "s3:PutBucketNotification"
        }
        "DeleteBucketTagging" => "s3:PutBucketTagging",
        "GetPublicAccessBlock" => "s3:GetBucketPublicAccessBlock",
        "PutPublicAccessBlock" | "DeletePublicAccessBlock" => "s3:PutBucketPublicAccessBlock",
        "DeleteBucketOwnershipControls" => "s3:PutBucketOwnershipControls",
        other => return Cow::Owned(format!("s3:{other}")),
    };
    Cow::Borrowed(action)
}
