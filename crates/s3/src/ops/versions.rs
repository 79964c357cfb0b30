//! Versioning of buckets, and the listing of versions.

use super::access::bucket_of;
use super::list::{KeyEncoder, check_max, non_empty_delimiter};
use super::object::class_name;
use super::owners::{OwnerNames, distinct};
use super::{S3Api, answer, timestamp};
use nacre_rgw::bucket::Versioning;
use nacre_rgw::index::{ListQuery, ListedVersion};
#[allow(clippy::wildcard_imports, reason = "S3's structures, all by their own names")]
use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result, s3_error};

impl S3Api {
    pub(super) async fn do_get_bucket_versioning(
        &self,
        req: S3Request<GetBucketVersioningInput>,
    ) -> S3Result<S3Response<GetBucketVersioningOutput>> {
        let status = match bucket_of(&req)?.versioning {
            Versioning::Off => None,
            Versioning::Enabled => Some(BucketVersioningStatus::ENABLED),
            Versioning::Suspended => Some(BucketVersioningStatus::SUSPENDED),
        };
        let status = status.map(BucketVersioningStatus::from_static);
        answer(GetBucketVersioningOutput { status, ..GetBucketVersioningOutput::default() })
    }

    pub(super) async fn do_put_bucket_versioning(
        &self,
        req: S3Request<PutBucketVersioningInput>,
    ) -> S3Result<S3Response<PutBucketVersioningOutput>> {
        let bucket = bucket_of(&req)?;
        let VersioningConfiguration { mfa_delete, status } = req.input.versioning_configuration;
        if mfa_delete.is_some_and(|mfa| mfa.as_str() == MFADelete::ENABLED) {
            return Err(s3_error!(NotImplemented, "there are no MFA devices"));
        }
        let versioning = match status.as_ref().map(BucketVersioningStatus::as_str) {
            Some(BucketVersioningStatus::ENABLED) => Versioning::Enabled,
            Some(BucketVersioningStatus::SUSPENDED) => Versioning::Suspended,
            _ => return Err(s3_error!(IllegalVersioningConfigurationException)),
        };
        self.gateway.set_versioning(&bucket.name, versioning).await?;
        answer(PutBucketVersioningOutput::default())
    }

    pub(super) async fn do_list_object_versions(
        &self,
        req: S3Request<ListObjectVersionsInput>,
    ) -> S3Result<S3Response<ListObjectVersionsOutput>> {
        let bucket = bucket_of(&req)?;
        let input = req.input;
        let (names, max) =
            (KeyEncoder::for_encoding(input.encoding_type.as_ref())?, check_max(input.max_keys)?);
        let delimiter = input.delimiter.clone().unwrap_or_default();
        let marker = input.key_marker.clone().unwrap_or_default();
        let version = input.version_id_marker.as_deref().filter(|version| !version.is_empty());
        if version.is_some() && marker.is_empty() {
            return Err(s3_error!(
                InvalidArgument,
                "A version-id marker cannot be specified without a key marker."
            ));
        }
        let query = ListQuery {
            prefix: input.prefix.clone().unwrap_or_default(),
            // A marker that ends with the delimiter is the common prefix at the end of the previous page.
            after_group: !delimiter.is_empty() && version.is_none() && marker.ends_with(&delimiter),
            after: marker,
            delimiter,
            max: max as usize,
            markers: true,
        };
        let listing = self.gateway.index.list_versions(&bucket, &query, version).await?;
        let owners = listing.versions.iter().map(|version| version.head.owner.as_str());
        let owners = OwnerNames::find(&self.gateway, distinct(owners)).await;
        let (mut versions, mut markers) = (Vec::new(), Vec::new());
        for ListedVersion { key, head, latest } in listing.versions {
            let owner = owners.owner(&head.owner);
            let (key, version_id) = (Some(names.encode(key)), Some(head.version_id().to_owned()));
            let (is_latest, last_modified) = (Some(latest), Some(timestamp(head.mtime_ns)));
            if head.marker {
                markers.push(DeleteMarkerEntry { is_latest, key, last_modified, owner, version_id });
            } else {
                versions.push(ObjectVersion {
                    e_tag: Some(ETag::Strong(head.etag)),
                    size: Some(head.size as i64),
                    storage_class: Some(class_name(&head.class).to_owned().into()),
                    is_latest,
                    key,
                    last_modified,
                    owner,
                    version_id,
                    ..ObjectVersion::default()
                });
            }
        }
        let (next_key_marker, next_version_id_marker) = listing.next.clone().unzip();
        answer(ListObjectVersionsOutput {
            name: Some(input.bucket),
            prefix: Some(names.encode(input.prefix.unwrap_or_default())),
            key_marker: Some(names.encode(input.key_marker.unwrap_or_default())),
            version_id_marker: Some(input.version_id_marker.unwrap_or_default()),
            max_keys: Some(max),
            is_truncated: Some(listing.next.is_some()),
            next_key_marker: next_key_marker.map(|key| names.encode(key)),
            next_version_id_marker: next_version_id_marker.filter(|id| !id.is_empty()),
            versions: Some(versions),
            delete_markers: Some(markers),
            common_prefixes: Some(names.prefixes(listing.prefixes)),
            delimiter: non_empty_delimiter(input.delimiter).map(|delimiter| names.encode(delimiter)),
            encoding_type: input.encoding_type,
            request_charged: None,
        })
    }
}
